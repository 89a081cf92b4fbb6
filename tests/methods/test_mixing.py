"""Mixing: beside the authors' functions, each hook by hand, in sums, resumed."""
import dataclasses, json, math
from pathlib import Path
from types import SimpleNamespace
import pytest
import torch
import torch.nn.functional as F
import fdgnb
from fdgnb.core import FdgnbError, generator
from fdgnb.federation.compose import method_class
from fdgnb.methods import mixing
from fdgnb.vectors import digest
from conftest import one_line, run, same_bits
from golden.mixing import LABELS, SOFT, inputs

GOLDEN = json.loads((Path(__file__).parent.parent/"golden"/"mixing.json").read_text())["found"]
NAMES = ("mixup", "fedmix", "am", "vhl")
V = inputs()


def check_amplitudes(f):
    for i, lam in enumerate((.25, .5, .9)):        # there lam is the image's own
        there = torch.tensor(GOLDEN["am"][i], dtype=torch.float64)
        torch.testing.assert_close(f(V["x"][i], V["other"][i], 1 - lam), there, rtol=0, atol=1e-12)


def check_first_order(f):
    "Of one sample the released loss and ours are the same; of four, its third term is a quarter of ours."
    for there in GOLDEN["fedmix"]:
        a = V["a"].clone().requires_grad_()
        net = lambda x: (x @ a.T).tanh() @ V["b"].T
        n, ym = there["n"], torch.tensor(SOFT, dtype=torch.float64)
        x, y, xm = V["rows"][:n], torch.tensor(LABELS["rows"][:n]), V["means"][:n]
        loss = f(net, x, y, xm/n, ym[:n], .1)
        loss.backward()
        assert loss.item() == pytest.approx(there["loss"], abs=1e-12)
        slope = torch.tensor(there["gradient"], dtype=torch.float64)
        torch.testing.assert_close(a.grad, slope, rtol=0, atol=1e-12)


def check_contrast(f):
    assert f(V["z"], torch.tensor(LABELS["z"]), .07).item() == pytest.approx(GOLDEN["vhl"], abs=1e-10)


def check_means(f):
    x, y = f(torch.arange(7.).reshape(7, 1), torch.eye(7), 3)
    assert x.flatten().tolist() == [1., 4.5] and torch.allclose(y.sum(1), torch.ones(2))
    assert f(torch.tensor([[1.], [2.]]), torch.eye(2), 3)[0].tolist() == [[1.5]]


def check_mixed(f):
    y, z = torch.tensor([0, 2]), torch.tensor([[1., 2, 3], [0., 1, -1]])
    soft = f(F.one_hot(y, 3).float(), F.one_hot(y.flip(0), 3).float(), .25)
    by_hand = .75*F.cross_entropy(z, y) + .25*F.cross_entropy(z, y.flip(0))
    assert F.cross_entropy(z, soft).item() == pytest.approx(by_hand.item(), abs=1e-6)


CHECKS = {"amplitude_mix": check_amplitudes, "fedmix_loss": check_first_order, "means_of": check_means,
          "supervised_contrast": check_contrast, "mix": check_mixed}


@pytest.mark.parametrize("name", CHECKS)
def test_formula(name): CHECKS[name](getattr(mixing, name))


def test_same_bits(monkeypatch, tiny, tmp_path): same_bits(monkeypatch, tmp_path, "fedbr+mixup", tiny)


def test_a_client_that_comes_late_is_sent_the_means(tiny):
    "One client of three per round: each is sent the means the first time it takes part, and only then."
    book = run("fedmix", tiny, rounds=6, per_round=1, M=5).ledger
    down = book[(book.kind == "images") & (book.direction == "down")]
    met = book[(book.kind == "model") & (book.direction == "up")].groupby("client")["round"].min()
    assert down.groupby("client")["round"].apply(list).to_dict() == {k: [r] for k, r in met.items()}


def test_spectra_of_vectors_are_refused():
    x, y = torch.arange(240.).reshape(40, 6)/240, torch.arange(40) % 2
    data = fdgnb.from_arrays(dict(a=(x, y), b=(x + 1, y)))
    with pytest.raises(FdgnbError, match="am mixes spectra of images") as e:
        fdgnb.fit("am", data, "b", 1, backbone="mlp2", progress=False)
    assert one_line(e)


def close(a, b, atol=1e-6): torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=atol)


# values

DEFAULTS = dict(mixup=dict(mixup_alpha=.2), fedmix=dict(fedmix_lam=.1, M=10), am=dict(am_alpha=1., am_p=1.),
                vhl=dict(vhl_n=2000, vhl_alpha=1., vhl_beta=1., vhl_tau=.07))
NEUTRAL = dict(mixup=dict(mixup_alpha=0.), fedmix=dict(fedmix_lam=0.), am=dict(am_alpha=0.),
               vhl=dict(vhl_alpha=0., vhl_beta=0.))


@pytest.mark.parametrize("name", NAMES)
def test_defaults(name):
    hyper = dataclasses.asdict(method_class(name)().h)
    assert {k: v for k, v in hyper.items() if k != "variant"} == DEFAULTS[name]


def test_neutral_settings_are_fedavg_and_all_others_differ(tiny):
    theta = lambda name, **hyper: digest(run(name, tiny, rounds=1, local_steps=2, **hyper).fed.server.model)
    fedavg = theta("fedavg")
    for name, off in NEUTRAL.items(): assert theta(name, **off) == fedavg, name
    assert len({fedavg, *map(theta, NAMES)}) == 5


# Mixup

def test_mixup_pairs_samples_and_labels_with_one_weight_per_batch():
    "Of samples that are their own one-hot labels the mixed ones are the mixed labels."
    who, partners = SimpleNamespace(scratch={"mixup.classes": 6}), set()
    for seed in range(4):
        x, y = mixing.Mixup().batch(torch.eye(6), torch.arange(6), who, generator(seed))
        close(x, y, 1e-7)
        assert (x.diag() < 1).sum() > 1
        others = x*(1 - torch.eye(6))
        assert len(others[others > 0].unique()) == 1
        partners.add(tuple(others.argmax(1).tolist()))
    assert len(partners) == 4


# FedMix

@pytest.fixture(scope="module")
def fedmix(small): return run("fedmix", small, M=12)


def test_fedmix_sends_means_of_shuffled_samples_once(fedmix):
    state, who = fedmix.fed.server.state, fedmix.fed.clients[0]
    assert state["fedmix.x"].shape == (16, 3, 28, 28)                     # 4 clients, 48 training samples each
    every = torch.cat([c.take(torch.arange(c.n()))[0] for c in fedmix.fed.clients]).mean(0)
    close(state["fedmix.x"].mean(0), every, 1e-5)
    assert set(fedmix.ledger[fedmix.ledger.kind == "images"]["round"]) == {1}
    x, y = who.take(torch.randperm(48, generator=who.rng("fedmix")))
    made = fedmix.fed.method.offer(fedmix.model, who)
    for i, rows in enumerate(torch.arange(48).split(12)):
        close(made["images.fedmix.x"][i], x[rows].mean(0))
        close(made["images.fedmix.y"][i], torch.bincount(y[rows], minlength=10)/12)


def test_fedmix_step_by_forward_differentiation_and_with_another_criterion(fedmix):
    class Twice(mixing.FedMix):
        "Twice the cross-entropy."
        def criterion(self, logits, y, client): return 2*F.cross_entropy(logits, y)
    net, who, state = fedmix.model.eval(), fedmix.fed.clients[0], fedmix.fed.server.state
    x, y = who.take(torch.arange(12))
    pick = torch.randint(16, (12,), generator=who.rng("fedmix.draw"))
    xm, ym = (state[f"fedmix.{v}"][pick] for v in "xy")
    at_x, slope = torch.func.jvp(lambda v: F.cross_entropy(net(v), y), (.9*x,), (xm,))
    by_hand = .9*at_x + .1*F.cross_entropy(net(.9*x), ym) + .1*.9*slope
    for form, times in ((fedmix.fed.method, 1), (Twice(M=12), 2)):
        who.scratch = {}
        form.begin(net, who, {})
        assert form.loss(net, x, y, who).item() == pytest.approx(times*by_hand.item(), abs=1e-4)


# amplitudes

def test_an_image_mixed_with_itself_stays():
    x = torch.rand(2, 1, 6, 5, generator=generator(5), dtype=torch.float64)
    close(mixing.amplitude_mix(x, x, .3), x, 1e-12)


def test_am_mixes_every_batch_and_as_released_half_of_them():
    x, g = torch.rand(2, 1, 6, 5, generator=generator(5)), generator(6)
    half = sum(mixing.AmplitudeMix(variant="released").batch(x, None, None, g)[0] is not x for _ in range(400))/400
    assert half == pytest.approx(.5, abs=3*math.sqrt(.25/400))
    assert all(mixing.AmplitudeMix().batch(x, None, None, g)[0] is not x for _ in range(50))


def test_am_weights_are_uniform_and_independent_per_image():
    "An image of zeros mixed with one of ones becomes the weight everywhere; labels stay."
    m, rng, x, y = mixing.AmplitudeMix(am_alpha=.6), generator(1), torch.ones(2, 1, 3, 3), torch.tensor([3, 5])
    x[0], found = 0., []
    for _ in range(1200):
        out, labels = m.batch(x, y, None, rng)
        assert labels.tolist() == [3, 5]
        if out[0].max() > 0: found.append((out[0].mean().item(), 1 - out[1].mean().item()))
    w = torch.tensor(found)[:400]
    for q in (.25, .5, .75):
        for share in (w < .6*q).float().mean(0): assert share.item() == pytest.approx(q, abs=3*math.sqrt(q*(1 - q)/400))
    assert abs(torch.corrcoef(w.T)[0, 1].item()) < 3/math.sqrt(400)


# VHL

@pytest.mark.parametrize("shape", [(20,), (1, 20, 36), (3, 28, 28)], ids=str)
def test_virtual_data_lie_around_their_class(shape):
    x, y = mixing.virtual_data(200, shape, 10, 0)
    assert (x.shape[1:], torch.bincount(y).tolist(), len(x.unique(dim=0))) == (shape, [20]*10, 200)
    centers = torch.stack([x[y == c].mean(0) for c in range(10)]).flatten(1)
    near = torch.cdist(x.flatten(1), centers).argmin(1)
    assert (near == y).float().mean() > .9 and x.min() >= 0 and x.max() <= 1


def test_contrast_of_distinct_labels_is_zero():
    z = torch.randn(9, 4, generator=generator(6))
    assert mixing.supervised_contrast(z, torch.arange(9)).item() == 0.


@pytest.mark.parametrize("h", [dict(), dict(vhl_alpha=.3, vhl_beta=.5), dict(vhl_alpha=0.), dict(vhl_beta=0.)], ids=str)
def test_vhl_step_by_hand(h, fedmix):
    net, who = fedmix.model.eval(), fedmix.fed.clients[0]
    m, theta, who.scratch = mixing.VHL(vhl_n=40, **h), list(net.parameters()), {}
    m.begin(net, who, {})
    (x, y), (xv, yv, _) = who.take(torch.arange(12)), who.scratch["vhl"]
    pick = torch.randint(40, (12,), generator=who.rng("vhl"))
    alike = mixing.supervised_contrast(net.features(torch.cat([x, xv[pick]])), torch.cat([y, yv[pick]]), .07)
    virtual = F.cross_entropy(net(xv[pick]), yv[pick])
    by_hand = F.cross_entropy(net(x), y) + h.get("vhl_alpha", 1.)*virtual + h.get("vhl_beta", 1.)*alike
    slopes = torch.autograd.grad(by_hand, theta, retain_graph=True)
    for labels in (y, F.one_hot(y, 10).float()):
        who.scratch["vhl"] = xv, yv, who.rng("vhl")
        found = m.loss(net, x, labels, who)
        assert found.item() == pytest.approx(by_hand.item(), abs=1e-4)
        for u, v in zip(torch.autograd.grad(found, theta), slopes): close(u, v, 1e-4)


def test_virtual_data_are_those_of_the_run(fedmix):
    m, made = mixing.VHL(vhl_n=40), []
    for who in fedmix.fed.clients[:2]:
        who.scratch = {}
        m.begin(fedmix.model, who, {})
        made.append(who.scratch["vhl"][0])
    assert torch.equal(*made)
    other, _ = mixing.virtual_data(40, (3, 28, 28), 10, fedmix.fed.clients[0].seed + 1)
    assert not torch.equal(other, made[0])
