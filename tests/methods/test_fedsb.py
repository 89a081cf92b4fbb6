"""FedSB: golden numbers, its equations by hand, its parts, its switches."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from conftest import bits, run as short_run, sized
from golden import replay
from golden.replay import exact
from fdgnb.core import generator, seeded
from fdgnb.federation.loop import Client, Method
from fdgnb.methods.fedsb import DIFFERENCES, Budget, FedSB, LabelSmoothing, smooth_labels
from fdgnb.settings import Settings


def run(name, data, **given):
    return short_run(name, data, **dict(lr=.02) | given)


@pytest.fixture(scope="module")
def even(small):
    return sized(small, optical=30, inked=30, blended=20)


@pytest.fixture(scope="module")
def whole(even):
    return run("fedsb", even, S=24)


# ---- golden numbers
def test_as_released():
    "Three clients; the last batch of one has a single sample, another has more samples than the budget."
    golden = replay.read("fedsb")
    how = golden["settings"]
    settings = Settings(optimizer="adam", lr=how["lr"], batch_size=how["batch_size"], weight_decay=how["weight_decay"])
    with seeded(0):
        layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    net = nn.Sequential(*layers).double()
    start = {k: exact(v) for k, v in golden["start"].items()}
    data = {k: dict(train=(exact(x), torch.tensor(y))) for k, (x, y) in golden["data"].items()}
    method = FedSB(variant="released", epsilon=how["smoothing"], S=how["budget"]*how["batch_size"])
    server, clients = replay.make_federation(method, net, start, data, settings, how["rounds"])
    for _, want in zip(replay.play(method, server, clients, net), golden["rounds"], strict=True):
        assert replay.largest_difference(server.model, {k: exact(v) for k, v in want.items()}) < 1e-9


# ---- Eqs. 1 to 3
class Brier(Method):
    "Squared distance of the probabilities from the label."
    def criterion(self, logits, y, client):
        return ((logits.softmax(1) - F.one_hot(y, logits.shape[1]))**2).sum(1).mean()


class SmoothedBrier(LabelSmoothing, Brier):
    "Labels smoothed over Brier's score."


@pytest.mark.parametrize("h, epsilon", [({}, .1), (dict(epsilon=.3), .3), (dict(epsilon=0.), 0.)], ids=str)
def test_smoothing_adds_to_whatever_criterion_lies_beneath(h, epsilon):
    "Brier's score by a double loop; epsilon is 0.1 by default."
    z, y = torch.randn(6, 5, generator=generator(0), dtype=torch.float64), torch.tensor([0, 4, 2, 2, 1, 3])
    p, pairs = z.softmax(1), [(i, c) for i in range(6) for c in range(5)]
    brier = sum((p[i, c].item() - (c == y[i].item()))**2 for i, c in pairs)/6
    uniform = -sum(p[i, c].log().item() for i, c in pairs)/(6*5)
    assert SmoothedBrier(**h).criterion(z, y, None).item() == pytest.approx((1 - epsilon)*brier + epsilon*uniform)


def test_smoothed_labels_are_a_mixture():
    "Also of labels that are soft already: the loss on them is the loss on smoothed soft labels."
    assert smooth_labels(torch.tensor([0]), 5, .2)[0].tolist() == pytest.approx([.84, .04, .04, .04, .04])
    g = generator(3)
    logits = torch.randn(8, 6, generator=g, dtype=torch.float64)
    soft = torch.rand(8, 6, generator=g, dtype=torch.float64).softmax(1)
    by_labels = F.cross_entropy(logits, smooth_labels(soft, 6, .2))
    assert torch.allclose(LabelSmoothing(epsilon=.2).criterion(logits, soft, None), by_labels)


# ---- Eqs. 4 to 7
def draw(n=100, round=0, name="a", seed=0, local_epochs=1, drop_last=False, **h):
    "The batches of 8 of a client with n samples, as lists of indices."
    data = dict(train=(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)))
    client = Client(name, data, Settings(batch_size=8, local_epochs=local_epochs, drop_last=drop_last), seed)
    client.round = round
    return [batch.tolist() for batch in Budget(**h).sample(client, client.rng("sample"))]


def draw_samples(**h):
    return sorted(sum(draw(**h), []))


@pytest.mark.parametrize("h", [dict(), dict(redraw="once"), dict(order="first"), dict(variant="released")], ids=str)
def test_everybody_takes_the_same_steps(h):
    assert {len(draw(n, S=48, **h)) for n in (3, 16, 40, 200)} == {6}


def test_when_samples_are_drawn():
    "Anew for each pass; drawn once, the same in another order, others for other clients and seeds."
    once = dict(S=24, redraw="once")
    assert draw_samples(S=24) != draw_samples(round=1, S=24)
    assert draw_samples(**once) == draw_samples(round=1, **once)
    assert draw(**once) != draw(round=1, **once)
    assert draw_samples(**once) not in (draw_samples(name="b", **once), draw_samples(seed=1, **once))
    two = draw(S=24, local_epochs=2)
    assert sorted(sum(two[:3], [])) != sorted(sum(two[3:], []))


@pytest.mark.parametrize("h, sizes", [
    (dict(S=20, order="first"), [8, 8, 8]),
    (dict(S=20, variant="released", local_epochs=3, round=1), [8, 8, 8]),
    (dict(S=20, variant="released", order="random", local_epochs=3), [8, 8, 4]*3),
    (dict(S=40, order="first", n=11), [8, 3, 8, 3, 8]),
    (dict(S=32, variant="released", n=25), [8, 8, 8, 1]),
    (dict(S=32, variant="released", n=25, drop_last=True), [8]*4),
    (dict(S=25), [8, 8, 9]),
    (dict(S=20, drop_last=True), [8, 8])], ids=str)
def test_the_first_batches_are_counted_whole(h, sizes):
    "As released: the first batches, in one order, whatever the epochs; at random a lone sample joins a batch."
    batches = draw(**h)
    assert [len(batch) for batch in batches] == sizes
    fixed = "random" not in h.values() and {"order", "variant"} & h.keys()
    assert (batches[0] == [*range(8)]) == bool(fixed)


# ---- the sum
@pytest.mark.parametrize("parts", ["labelsmoothing+budget+uniform", "budget+uniform+labelsmoothing"])
def test_the_parts_are_the_whole(even, whole, parts):
    assert bits(run(parts, even, S=24)) == bits(whole)


def test_each_difference_changes_the_run(even):
    "Of the list of differences from the paper."
    assert next(iter(DIFFERENCES)) == "as printed"
    runs = {label: bits(run(name, even, rounds=1, S=24, **h)) for label, (name, h) in DIFFERENCES.items()}
    drawn_once = runs.pop("samples drawn once")                # in one round that shows in the order alone
    assert len({*runs.values(), drawn_once}) == len(DIFFERENCES)
