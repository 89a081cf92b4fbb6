"""GA: its update, the gap, weights of absent and new clients; on other methods, resumed, on workers."""
import copy, math, re
from dataclasses import fields
from pathlib import Path
import numpy as np
import pytest
import torch
from conftest import bits, broken_off, run as short_run
from torch import nn
from fdgnb.core import FdgnbError
from fdgnb.federation import node
from fdgnb.federation.loop import Client, Method, Server, client_update, downloads, weigh
from fdgnb.federation.compose import METHODS, hooks_of, hyper_of, method_class
from fdgnb.settings import Settings, switches
from fdgnb.methods.ga import DIFFERENCES, GA, adjust_reporting, adjust_weights, check_gap, collect_by_client
from fdgnb.methods.ga import initial_weights, measure, risk, step_size, trace


ROOT = Path(__file__).resolve().parents[2]
RELEASED = dict(center=False, absolute=True, capped=True)


NAN = math.nan


def run(name, data, **kw): return short_run(name, data, **dict(rounds=3) | kw)


def double(*v): return torch.tensor(v, dtype=torch.float64)


def printed(a, G, d):
    "(5) in plain Python."
    mu = sum(G)/len(G)
    top = max(x - mu for x in G)
    new = [max(ai + d*(x - mu)/top, 0) for ai, x in zip(a, G)]
    return [v/sum(new) for v in new]


def released(a, G, d):
    "(6) in plain Python."
    top = max(abs(x) for x in G)
    new = [min(max(ai + d*x/top, 0), 1) for ai, x in zip(a, G)]
    return [v/sum(new) for v in new]


@pytest.mark.parametrize("K", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("step", [.02, .2, .9])
def test_the_update_is_the_formula(K, step):
    "As printed and as released, for gaps of either sign; neither their level nor their size matters as printed."
    rng = np.random.default_rng(K)
    a, G = rng.dirichlet(np.ones(K)), rng.normal(size=K)
    new = adjust_weights(a, G, step)
    assert new.tolist() == pytest.approx(printed(a, G, step), abs=1e-9)
    for gaps in (G, abs(G), -abs(G) + .1*(G > 0)):
        assert adjust_weights(a, gaps, step, **RELEASED).tolist() == pytest.approx(released(a, gaps, step), abs=1e-9)
    for other in (G + 3, 1e-6*G, 3 + 1e-6*G):
        assert adjust_weights(a, other, step).tolist() == pytest.approx(new.tolist(), abs=1e-8)


@pytest.mark.parametrize("level", [0., .1, -7.3])
def test_equal_gaps_leave_the_weights_to_the_bit(level):
    a = np.random.default_rng(0).dirichlet(np.ones(6))
    assert adjust_weights(a, np.full(6, level), .2).tolist() == a.tolist()


def test_as_many_gaps_as_weights():
    with pytest.raises(FdgnbError, match="1 weights but 2 gaps"): adjust_weights([1.], [0., 1.], .1)


def test_the_step_falls_linearly():
    assert [step_size(r, 4, .2) for r in range(5)] == pytest.approx([.2, .15, .1, .05, 0.])
    assert [3*step_size(r, 4, .2, 3., True) for r in range(1, 6)] == pytest.approx([.25, .2, .15, .1, .05])


def frozen(rounds=100, **how):
    "(weights, gaps) of three frozen quadratics in one dimension after many updates, and the smallest weight of all."
    own, h, a = np.array([-1., 0., 2.]), np.array([1., 3., 1.]), np.ones(3)/3
    gaps, least = lambda a: .5*h*(a @ own - own)**2, 1.
    for r in range(rounds):
        a = adjust_weights(a, gaps(a), step_size(r, rounds, .1, how.get("divisor", 1.)),
                           **{k: v for k, v in how.items() if k != "divisor"}).numpy()
        least = min(least, a.min())
    return a, gaps(a), least


def test_where_gaps_cannot_be_even_clients_without_weight_have_the_smallest():
    "The even point lies outside the simplex: the client in the middle has the smallest gap at any weight."
    a, gaps, _ = frozen()
    assert a[1] < .01 and abs(gaps[0] - gaps[2]) < .1 and gaps[1] < gaps[[0, 2]].min()


def test_it_is_the_missing_mean_that_keeps_every_client_in_the_average():
    "More than the smaller step."
    assert frozen()[2] < .01 and frozen(divisor=3.)[2] < .01
    assert frozen(**RELEASED, divisor=3.)[2] > .05 and frozen(**RELEASED)[2] > .05


@pytest.fixture(scope="module")
def adjusted(tiny): return run("ga", tiny)


def test_names(tiny, adjusted):
    "ga, fedavg+ga and ga on the uniform average are one method; ga takes the place of any weights beneath."
    for name in ("fedavg+ga", "ga+fedavg", "uniform+ga"): assert bits(run(name, tiny)) == bits(adjusted)
    adjusted_model = bits(adjusted, "model")
    for name in ("fedavg", "uniform"): assert bits(run(name, tiny), "model") != adjusted_model


@pytest.mark.parametrize("name, plain, how", [
    ("ga", "uniform", {}), ("fedprox+ga", "fedprox+uniform", dict(mu=.5))])
def test_without_a_step_it_is_the_uniform_average(tiny, name, plain, how):
    assert bits(run(name, tiny, rounds=2, d=0., **how), "model") == bits(run(plain, tiny, rounds=2, **how), "model")


def test_without_a_step_but_with_fedavgs_first_weights_it_is_fedavg_to_rounding(tiny):
    inherited = run("ga", tiny, rounds=2, d=0., initial="inherit").fed.server.model
    for k, v in run("fedavg", tiny, rounds=2).fed.server.model.items():
        assert torch.allclose(inherited[k].float(), v.float(), atol=1e-4)


def test_its_values():
    both = [list(method_class(name).parts)[-2:] for name in ("fedsb+ga", "ga+fedsb")]
    assert both == [["uniform", "ga"]]*2 and (GA().h.d, GA().h.initial) == (.2, "uniform")
    want = dict(gap="accuracy", gap_on="val", divisor=3., late=True, **RELEASED)
    assert {k: getattr(GA(variant="released").h, k) for k in want} == want
    for h in (dict(d=-1), dict(divisor=.5)):
        with pytest.raises(FdgnbError, match="is out of range"): GA(**h)
    with pytest.raises(FdgnbError, match="did you mean 'loss'?"): method_class("ga")(gap="los")


def test_the_released_variant_with_every_switch_turned_back_is_the_printed_one():
    back = GA(variant="released", **{n: f.metadata["paper"] for n, f in switches(GA.Hyper).items()}).h
    assert [f.name for f in fields(GA.Hyper) if getattr(back, f.name) != getattr(GA().h, f.name)] == ["variant"]


def test_what_a_client_measures():
    "A network that is right on three of four samples; a split by its name; what is empty or infinite is refused."
    four = Client("a", dict(train=(torch.eye(2)[[0, 1, 1, 1]], torch.tensor([0, 1, 1, 0]))))
    scores = measure(nn.Identity(), four, "train")
    assert scores == pytest.approx((.75, math.log(1 + math.e) - .75))
    assert (risk(scores, "accuracy"), risk(scores, "loss")) == (-scores[0], scores[1])
    both = Client("a", {k: (torch.eye(2), torch.tensor(y)) for k, y in (("train", [0, 1]), ("val", [1, 0]))})
    assert [measure(nn.Identity(), both, k)[0] for k in ("train", "val")] == [1., 0.]
    with pytest.raises(FdgnbError, match="client 'a' has no val samples"): measure(nn.Identity(), four, "val")
    with pytest.raises(FdgnbError, match="gap of client 'a' is inf in round 1"): check_gap(math.inf, four)


class Pull(GA):
    "The loss (theta - 1)^2; theta stands for the accuracy."
    def loss(self, model, x, y, client): return ((model.theta - 1)**2).mean()
    def _scores(self, model, client): return model.theta.item(), ((model.theta - 1)**2).item()


@pytest.mark.parametrize("gap, want", [("loss", 1.5**2 - .8**2), ("accuracy", .2 - -.5)])
def test_the_gap_is_what_arrives_against_what_was_reached(gap, want):
    "theta = 0 becomes 0.2, then -0.5 arrives; in accuracy the sign is turned; a gap that is no number ends the run."
    data = dict(train=(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)))
    client = Client("a", data, Settings(lr=.1, batch_size=4))
    net, rule = nn.Module(), Pull(gap=gap)
    net.theta = nn.Parameter(double(0.))
    update = lambda theta, r: client_update(rule, net, client, {"model.theta": double(theta)}, r)
    assert "scalars.ga.gap" not in update(0., 0)
    assert update(-.5, 1)["scalars.ga.gap"].item() == pytest.approx(want)
    assert "scalars.ga.gap" not in update(0., 3)                                             # round 2 was missed
    if gap == "loss":
        with pytest.raises(FdgnbError, match="gap of client 'a' is inf in round 5"): update(1e200, 4)


def test_on_fedsb(tiny):
    both, parts = run("fedsb+ga", tiny, S=32), run("ga+labelsmoothing+budget+uniform", tiny, S=32)
    assert bits(both) == bits(parts) and bits(both, "model") != bits(run("fedsb", tiny, S=32), "model")
    assert bits(run("fedsb+ga", tiny, S=32, d=0.), "model") == bits(run("fedsb", tiny, S=32), "model")
    released = hyper_of(method_class("fedsb+ga")(variant="released"))
    want = dict(variant="released", S=512, d=.2, order="first", gap="accuracy")
    assert {k: released[k] for k in want} == want


def test_inherits_the_weights_beneath(tiny):
    r = run("fedavg+ga", tiny, d=0., initial="inherit")
    n = torch.tensor([c.n() for c in r.fed.clients], dtype=torch.float64)
    assert torch.allclose(r.fed.server.state["ga.a"], n/n.sum())
    a = run("fedsb+ga", tiny, d=0., S=32, initial="inherit").fed.server.state["ga.a"]
    assert torch.allclose(a, torch.full((3,), 1/3, dtype=torch.float64))


@pytest.mark.parametrize("h", [dict(), dict(variant="released"), dict(initial="inherit"),
                               dict(drops=((2, "inked"),))])
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run("ga", tiny, workers=1, **h), run("ga", tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows


def test_resume_keeps_the_weights(tiny, tmp_path, monkeypatch):
    "Broken off after two of four rounds, the run goes on with the same weights, gaps and models."
    whole = run("ga", tiny, rounds=4)
    broken_off(monkeypatch, 2, lambda: run("ga", tiny, rounds=4, out=tmp_path))
    again = run("ga", tiny, rounds=4, out=tmp_path)
    assert bits(again) == bits(whole) and again.book.rows == whole.book.rows
    assert trace(again).equals(trace(whole))
    assert trace(whole).gap.notna().sum() == 3*3


def test_clients_that_stay_away(tiny):
    "A client missing in round 2 has no gap in rounds 2 and 3: its own model is too old; its weight stays."
    t = trace(run("ga", tiny, rounds=5, drops=((2, "inked"),))).set_index(["round", "client"])
    assert t.gap.isna()[[(1, k) for k in ("optical", "inked", "rendered")]].all()
    assert math.isnan(t.gap[2, "inked"]) and math.isnan(t.gap[3, "inked"])
    assert t.gap[[(2, "optical"), (3, "optical"), (4, "inked")]].notna().all()
    assert t.weight[2, "inked"] == pytest.approx(1/3) and t.weight[3, "inked"] == pytest.approx(1/3)
    assert t.groupby("round").weight.sum().tolist() == pytest.approx([1]*5)


@pytest.mark.parametrize("initial", ["uniform", "inherit"])
def test_clients_drawn_at_random(tiny, initial):
    r = run("ga", tiny, rounds=6, per_round=2, initial=initial)
    t = trace(r)
    known = t.groupby("round").weight.sum()
    assert known.tolist() == pytest.approx([1]*6) and (t.weight.dropna() >= 0).all()
    assert all(torch.isfinite(v).all() for v in r.fed.server.model.values())


def test_all_who_answer_have_weight_zero(tiny):
    "They count alike in that round; nothing divides by zero, and what was learned stays."
    cls = method_class("ga")
    m, r = cls(d=0.), run("uniform", tiny, rounds=1)
    server = r.fed.server
    m.setup(server)
    server.state["ga.a"] = torch.tensor([0., 0., 1.], dtype=torch.float64)
    up = {f"model.{k}": v for k, v in server.model.items()} | {"scalars.n": torch.tensor(5.)}
    assert m.decide(server, [(k, up) for k in server.clients[:2]]) == dict.fromkeys(server.clients[:2], 1.)
    assert server.state["ga.a"].tolist() == [0., 0., 1.]


def server_of(rule, names="abc"):
    server = Server({"theta": double(0.)}, names, Settings(), rounds=50)
    rule.setup(server)
    return server


def heard(rule, server, **thetas):
    "Uploads of some clients, aggregated."
    sent = [(k, {"scalars.n": double(1.), "model.theta": double(v)}) for k, v in thetas.items()]
    rule.aggregate(server, weigh(rule, server, sent))
    return server.model["theta"].item()


def test_weights_of_zero_are_equal_for_a_round_and_stay_zero():
    rule = GA()
    server = server_of(rule)
    server.state["ga.a"] = double(0., 0., 1.)
    assert heard(rule, server, a=1., b=3.) == 2. and server.weights == dict(a=1., b=1.)
    assert server.state["ga.a"].tolist() == server.state["ga.log"][-1, 0].tolist() == [0., 0., 1.]
    assert heard(rule, server, a=1., c=3.) == 3.
    server.state["ga.a"] = double(0., 0., NAN)
    heard(rule, server, a=1., b=3.)
    assert server.state["ga.a"][:2].tolist() == [.5, .5]


@pytest.mark.parametrize("h, want", [
    ({}, (1.482, 0, .541)), (dict(center=False), (1.482, 0, .1)), (dict(absolute=True), (1.188, 0, .394)),
    (dict(capped=True), (1, 0, .541))], ids=str)
def test_each_switch_of_the_update_by_hand(h, want):
    "One update with a step of 0.882; `want` before the weights are made to sum to one."
    rule, server = GA(d=.9, **h), server_of(GA())
    server.round, server.state["ga.a"] = 1, double(.6, .3, .1)
    rule.decide(server, [(k, {"scalars.n": double(1.), "scalars.ga.gap": double(v)})
                         for k, v in zip("abc", (.1, -.4, 0.))])
    assert server.state["ga.a"].tolist() == pytest.approx([v/sum(want) for v in want], abs=1e-12)


def test_vectors_over_clients():
    server = server_of(GA())
    got = collect_by_client(server, [("c", {"n": 3}), ("a", {"n": 1})], lambda k, u: u["n"])
    assert got[[0, 2]].tolist() == [1, 3] and got[1].isnan()


def test_the_trace_has_a_row_for_each_round_and_client():
    class Logged: fed = type("", (), dict(server=Server({}, "ab", Settings())))
    Logged.fed.server.state["ga.log"] = double([[.5, .5], [NAN, NAN]], [[.6, .4], [.3, .1]])
    assert trace(Logged).values[2:].tolist() == [[2, "a", .6, .3], [2, "b", .4, .1]]


def test_scores_handed_over_are_the_engines_and_are_used(tiny):
    fed = run("ga", tiny).fed
    net, client, down = copy.deepcopy(fed.net), fed.clients[0], downloads(fed.method, fed.server)
    client_update(fed.method, net, client, down[client.id], 3)
    handed = client.scratch["scores"]
    assert list(handed) == ["train"] and handed["train"] == node.evaluate(net, client, "train")
    handed["train"] = (.123, 4.)
    assert (client.id, "train", "local", "accuracy", .123) in node.score_local(fed.nodes[client.id], net, True)


def test_sends_one_number_more(tiny, adjusted):
    scalars = lambda r: r.ledger.query("direction == 'up' and kind == 'scalars'").groupby("round").bytes.sum()
    assert (scalars(adjusted) - scalars(run("uniform", tiny))).tolist() == [0, 24, 24]
    down = lambda r: [row for row in r.book.rows if row[2] == "down"]
    assert down(adjusted) == down(run("uniform", tiny))


def test_no_samples_to_measure_on(tiny):
    with pytest.raises(FdgnbError, match="ga: client 'optical' has no val samples"):
        run("ga", tiny, variant="released", fractions=(.9, 0., .1))


@pytest.mark.parametrize("h, split", [(dict(), "train"), (dict(variant="released"), "val")], ids=str)
def test_no_split_is_scored_twice(tiny, h, split, monkeypatch):
    "The history is that of an engine that scores all itself, with an evaluation per client and round less."
    calls, real, alone = [], node.evaluate, node.assess
    def counting(model, client, of, predict=None): calls.append(of); return real(model, client, of, predict)
    monkeypatch.setattr(node, "evaluate", counting)
    usual = dict(rounds=2, eval_every=1, eval_local=1, eval_train=1, workers=1, **h)
    a, with_known = run("ga", tiny, **usual).rows, calls.count(split)
    calls.clear()
    monkeypatch.setattr(node, "assess", lambda *args, known={}, **kw: alone(*args, **kw))
    b, without = run("ga", tiny, **usual).rows, calls.count(split)
    assert a == b and without - with_known == 2*3


@pytest.mark.parametrize("K", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("how, step", [({}, ()), (RELEASED, (3., True))], ids=["paper", "released"])
def test_weights_stay_weights(K, how, step):
    g = torch.Generator().manual_seed(K)
    a = torch.full((K,), 1/K, dtype=torch.float64)
    for r in range(40):
        gaps = torch.randn(K, generator=g, dtype=torch.float64)
        a = adjust_weights(a, gaps, step_size(r, 40, .9, *step), **how)
        assert a.min() >= 0 and abs(float(a.sum()) - 1) < 1e-9
    assert torch.equal(adjust_weights(a, torch.zeros(K), .2, **how), a)


def test_everybody_gains_from_the_average():
    "Released, every weight falls; where all would be clipped away, they stay."
    a = torch.full((20,), .05, dtype=torch.float64)
    assert torch.equal(adjust_weights(a, -torch.ones(20), .2, **RELEASED), a)


@pytest.mark.parametrize("a, gaps, want", [
    ((.2, .3, .5), (1, NAN, 3), (.1, .3, .6)), ((.2, .3, .5), (NAN, NAN, 3), (.2, .3, .5)),
    ((.2, .3, .5), (NAN, NAN, NAN), (.2, .3, .5)), ((0, 0, 1), (1, 2, NAN), (0, 0, 1))], ids=str)
def test_clients_without_a_gap_keep_their_weight(a, gaps, want):
    assert adjust_reporting(double(*a), double(*gaps), .1).tolist() == pytest.approx(want)


def test_with_all_gaps_it_is_the_plain_update():
    a, gaps = double(.2, .3, .5), double(1, 2, 6)
    assert torch.allclose(adjust_reporting(a, gaps, .1), adjust_weights(a, gaps, .1))


@pytest.mark.parametrize("a, w, want", [
    ((NAN, NAN, NAN), (30, 10, NAN), (.75, .25, NAN)), ((.75, .25, NAN), (NAN, NAN, 7), (.5, .5/3, 1/3)),
    ((.75, .25, NAN), (2, 3, 0), (.75, .25, 0)), ((.75, .25, NAN), (NAN, 3, 0), (.75, .25, 0)),
    ((.75, .25, NAN), (2, 3, NAN), (.75, .25, NAN)), ((.5, .5, NAN, NAN), (1, 1, 8, 0), (1/3, 1/3, 1/3, 0)),
    ((NAN, NAN), (0, 0), (0, 0))], ids=str)
def test_first_weights(a, w, want):
    assert initial_weights(double(*a), double(*w)).tolist() == pytest.approx(want, nan_ok=True)


def test_adjusting_and_joining_keep_the_total():
    nan = math.nan
    a = torch.tensor([.1, .2, .3, .4], dtype=torch.float64)
    b = adjust_reporting(a, torch.tensor([1., nan, 5., 2.], dtype=torch.float64), .3)
    assert b[1] == a[1] and abs(float(b.sum()) - 1) < 1e-12 and b.min() >= 0
    old, new = torch.tensor([.5, .5, nan, nan]), torch.tensor([nan, 1., 3., 1.])
    late = initial_weights(old.double(), new.double())
    assert late.tolist() == pytest.approx([.25, .25, .375, .125])


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n != "ga"])
def test_sits_on_every_registered_method(name):
    "Whatever hooks a method claims, GA builds on them; the written order does not matter."
    a, b = method_class(f"{name}+ga"), method_class(f"ga+{name}")
    assert a.parts == b.parts and a.decide is not Method.decide
    above = list(a.parts)[list(a.parts).index("ga") + 1:]
    for k in above:                                                # what lies above GA hands on to it
        assert not {hook for hook in ("weight", "decide", "aggregate") if hooks_of(a.parts[k]).get(hook)}
    a()


def test_the_list_of_differences_starts_as_printed_and_changes_one_thing_at_a_time():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("ga", {})) and "as released" in DIFFERENCES
    for label, (name, h) in DIFFERENCES.items():
        assert len(h) == int(label != "as printed")
        method_class(name)(**h)


@pytest.mark.parametrize("label", DIFFERENCES)
def test_each_difference_runs(tiny, label):
    name, h = DIFFERENCES[label]
    r = run(name, tiny, rounds=2, **h)
    assert r.round == 2 and trace(r).weight.groupby(trace(r)["round"]).sum().tolist() == pytest.approx([1, 1])


def test_a_gap_goes_with_the_step_of_the_round_it_is_sent_in():
    "Algorithm 1: a^r = GA(a^{r-1}, G(theta^r), d^r), R = 5; the release goes by d (1 - (r - 2)/R)/3."
    up = lambda k, gap: (k, {"model.w": torch.ones(1), "scalars.n": torch.tensor(1.),
                             "scalars.ga.gap": torch.tensor(gap, dtype=torch.float64)})
    for given, step in ((dict(), .2*(1 - 1/5)), (dict(variant="released", center=True), .2*(1 + 1/5)/3)):
        method, server = method_class("ga")(**given), Server(dict(w=torch.ones(1)), "abc", rounds=5)
        method.setup(server)
        server.round = 1
        method.decide(server, [up("a", .3), up("b", .2), up("c", .1)])
        assert server.state["ga.a"].tolist() == pytest.approx([1/3 + step, 1/3, 1/3 - step], abs=1e-12)


def test_every_sum_the_pages_name_is_registered():
    for page in (ROOT/"nbs"/"methods").glob("*.ipynb"):
        for name in re.findall(r"`[^\w`]*((?:\w+\+)+ga)[^\w`]*`", page.read_text()):
            method_class(name)


@pytest.mark.parametrize("R, apart", [(40, []), (10, []), (5, []), (6, [25])])
def test_where_lr_drops_is_the_releases_steplr(R, apart, E=5):
    "torch's StepLR, set as the release sets it, counts local epochs; `lr_drops` acts at whole rounds."
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.)
    scheduler, there = torch.optim.lr_scheduler.StepLR(opt, int(R*E*.8), .1), []
    for _ in range(R*E):
        there.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    here = [Settings(lr=1., lr_drops=(.8,)).lr_at(r, R) for r in range(R) for _ in range(E)]
    assert [e for e, (a, b) in enumerate(zip(there, here), 1) if abs(a - b) > 1e-9] == apart
