"""GA: golden numbers, its update by hand, who has a gap and a weight, other methods beneath."""
import math
import numpy as np
import pytest
import torch
from torch import nn
from conftest import bits, run as short_run, sized
from golden import replay
from golden.replay import exact
from fdgnb.core import seeded
from fdgnb.data.domain import Split
from fdgnb.federation.loop import Server, weigh
from fdgnb.federation.steps import index_batches
from fdgnb.methods.ga import DIFFERENCES, GA, adjust_reporting, adjust_weights, initial_weights, trace
from fdgnb.settings import Settings

RELEASED = dict(center=False, absolute=True, capped=True)
NAN = math.nan


def run(name, data, **given):
    return short_run(name, data, **dict(rounds=3) | given)


@pytest.fixture(scope="module")
def few(small):
    return sized(small, optical=30, inked=18, rendered=24, blended=16)


# ---- golden numbers
class InOrder(GA):
    "Batches in order, as the script's loaders give them."
    def sample(self, client, rng):
        for _ in range(client.settings.local_epochs):
            yield from index_batches(torch.arange(client.n()), client.settings.batch_size)


@pytest.mark.parametrize("fair, gap, near", [("acc", "accuracy", 1e-9), ("loss", "loss", 1e-6)])
def test_as_released(fair, gap, near):
    """Every weight and every number of the global model in six rounds: its loop makes one more than `comm`.

    Losses are measured in float32 here, accuracies are counted."""
    golden = replay.read("ga")
    how, wanted = golden["settings"], golden["rounds"][fair]
    settings = Settings(lr=how["lr"], batch_size=how["batch_size"], local_epochs=how["local_epochs"], momentum=.9,
                        weight_decay=5e-4, keep_optimizer=True, lr_drops=(.8,))
    with seeded(0):
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    start = {k: exact(v) for k, v in golden["start"].items()}
    data = {k: {name: Split(exact(x), torch.tensor(y)) for name, (x, y) in splits.items()}
            for k, splits in golden["data"].items()}
    method = InOrder(variant="released", d=how["step_size"], gap=gap)
    server, clients = replay.make_federation(method, net, start, data, settings, how["comm"])
    rounds = replay.play(method, server, clients, net, len(wanted))
    for _, want in zip(rounds, wanted, strict=True):
        weights = exact([want["weights"][k] for k in server.clients])
        assert torch.allclose(server.state["ga.a"], weights, rtol=0, atol=near)
        assert replay.largest_difference(server.model, {k: exact(v) for k, v in want["model"].items()}) < near


# ---- Eqs. 2 to 6
def by_equation_5(a, gaps, d):
    mean = sum(gaps)/len(gaps)
    top = max(gap - mean for gap in gaps)
    new = [max(weight + d*(gap - mean)/top, 0) for weight, gap in zip(a, gaps)]
    return [v/sum(new) for v in new]


def by_equation_6(a, gaps, d):
    top = max(abs(gap) for gap in gaps)
    new = [min(max(weight + d*gap/top, 0), 1) for weight, gap in zip(a, gaps)]
    return [v/sum(new) for v in new]


@pytest.mark.parametrize("K", [2, 3, 6])
@pytest.mark.parametrize("step", [.02, .2, .9])
def test_the_update_is_the_formula(K, step):
    "As printed and as released, for gaps of either sign."
    rng = np.random.default_rng(K)
    a, gaps = rng.dirichlet(np.ones(K)), rng.normal(size=K)
    for other in (gaps, -gaps, abs(gaps), -abs(gaps) + .1*(gaps > 0)):
        printed, released = by_equation_5(a, other, step), by_equation_6(a, other, step)
        assert adjust_weights(a, other, step).tolist() == pytest.approx(printed, abs=1e-9)
        assert adjust_weights(a, other, step, **RELEASED).tolist() == pytest.approx(released, abs=1e-9)


def make_server(rule, **given):
    server = Server({"theta": exact(0.)}, "abc", Settings(), **dict(rounds=50) | given)
    rule.setup(server)
    return server


def send(k, theta=0., **scalars):
    "An upload of client k."
    named = {f"scalars.{name}": exact(v) for name, v in scalars.items()}
    return k, {"scalars.n": exact(1.), "model.theta": exact(theta)} | named


@pytest.mark.parametrize("h, want", [
    ({}, (1.482, 0, .541)), (dict(center=False), (1.482, 0, .1)), (dict(absolute=True), (1.188, 0, .394)),
    (dict(capped=True), (1, 0, .541)), (dict(divisor=3.), (.894, 0, .247)),
    (dict(late=True), (1.518, 0, .559))], ids=str)
def test_each_switch_of_the_update_by_hand(h, want):
    "One update in round 2 of 50 with d = 0.9; `want` before the weights are made to sum to one."
    rule = GA(d=.9, **h)
    server = make_server(rule)
    server.round, server.state["ga.a"] = 1, exact([.6, .3, .1])
    rule.decide(server, [send(k, **{"ga.gap": gap}) for k, gap in zip("abc", (.1, -.4, 0.))])
    assert server.state["ga.a"].tolist() == pytest.approx([v/sum(want) for v in want], abs=1e-12)


# ---- who has a gap, who has a weight
@pytest.mark.parametrize("a, gaps, want", [
    ((.2, .3, .5), (1, NAN, 3), (.1, .3, .6)), ((.2, .3, .5), (NAN, NAN, 3), (.2, .3, .5)),
    ((.2, .3, .5), (NAN, NAN, NAN), (.2, .3, .5)), ((0, 0, 1), (1, 2, NAN), (0, 0, 1))], ids=str)
def test_clients_without_a_gap_keep_their_weight(a, gaps, want):
    assert adjust_reporting(exact(a), exact(gaps), .1).tolist() == pytest.approx(want)


@pytest.mark.parametrize("a, w, want", [
    ((NAN, NAN, NAN), (30, 10, NAN), (.75, .25, NAN)), ((.75, .25, NAN), (NAN, NAN, 7), (.5, .5/3, 1/3)),
    ((.75, .25, NAN), (2, 3, 0), (.75, .25, 0)), ((.75, .25, NAN), (2, 3, NAN), (.75, .25, NAN)),
    ((.5, .5, NAN, NAN), (1, 1, 8, 0), (1/3, 1/3, 1/3, 0)), ((NAN, NAN), (0, 0), (0, 0))], ids=str)
def test_first_weights(a, w, want):
    "Newcomers get, as a group, the share of their number; who has no weight beneath gets none."
    assert initial_weights(exact(a), exact(w)).tolist() == pytest.approx(want, nan_ok=True)


def test_weights_of_zero_are_equal_for_a_round_and_stay_zero():
    "Where all who answer have weight 0 nothing divides by zero."
    rule = GA()
    server = make_server(rule)

    def answer(**thetas):
        rule.aggregate(server, weigh(rule, server, [send(k, theta) for k, theta in thetas.items()]))
        return server.model["theta"].item()

    server.state["ga.a"] = exact([0., 0., 1.])
    assert answer(a=1., b=3.) == 2.
    assert server.state["ga.a"].tolist() == [0., 0., 1.]
    assert answer(a=1., c=3.) == 3.


def test_clients_that_stay_away(few):
    "A client missing in round 2 has no gap in rounds 2 and 3: its own model is too old; its weight stays."
    t = trace(run("ga", few, rounds=4, drops=((2, "inked"),))).set_index(["round", "client"])
    assert t.gap.isna()[[(1, k) for k in ("optical", "inked", "rendered")]].all()
    assert math.isnan(t.gap[2, "inked"]) and math.isnan(t.gap[3, "inked"])
    assert t.gap[[(2, "optical"), (3, "optical"), (4, "inked")]].notna().all()
    assert t.weight[2, "inked"] == pytest.approx(1/3) and t.weight[3, "inked"] == pytest.approx(1/3)
    assert t.groupby("round").weight.sum().tolist() == pytest.approx([1]*4)


# ---- on other methods
@pytest.fixture(scope="module")
def adjusted(few):
    return run("ga", few)


def test_it_takes_the_place_of_any_weights_beneath(few, adjusted):
    "ga, fedavg+ga and ga on the uniform average are one method, which is neither of those beneath."
    for name in ("ga+fedavg", "uniform+ga"):
        assert bits(run(name, few)) == bits(adjusted)
    for name in ("fedavg", "uniform"):
        assert bits(run(name, few), "model") != bits(adjusted, "model")


@pytest.mark.parametrize("label", [label for label in DIFFERENCES if label != "as printed"])
def test_each_difference_changes_the_run(few, adjusted, label):
    "Of the list of differences from the slides; the weights stay weights."
    name, h = DIFFERENCES[label]
    r = run(name, few, **h)
    assert bits(r) != bits(adjusted)
    assert trace(r).weight.groupby(trace(r)["round"]).sum().tolist() == pytest.approx([1]*3)
