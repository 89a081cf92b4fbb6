"""MOON, FedNTD, FedDecorr: golden numbers, formulas, neutral settings, memory, sums."""
import json, math
from pathlib import Path
import pytest
import torch
import torch.nn.functional as F
from conftest import bits, one_line, run, same_bits
from torch import nn
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.federation.compose import method_class
from fdgnb.federation.toys import same
from fdgnb.methods.contrast import decorrelation, freeze_copy, model_contrast, not_true
from fdgnb.methods.contrast import not_true_distillation, released_decorrelation
from fdgnb.runs.setup import Federation
from fdgnb.vectors import part

ALL = ["moon", "fedntd", "feddecorr"]
GOLDEN = Path(__file__).parent.parent/"golden"
draw = lambda seed, *shape: torch.randn(*shape, generator=generator(seed)).double()


def golden(key): return json.loads((GOLDEN/f"{key}.json").read_text())
def tensor(v): return torch.tensor(v, dtype=torch.float64)


def with_gradient(f, x):
    x = x.clone().requires_grad_()
    value = f(x)
    value.backward()
    return value.item(), x.grad


# ---- golden numbers of other implementations (tests/golden/contrast.py made them)

def test_golden_moon():
    g = golden("moon")
    z, near, far, logits = (tensor(g[k]) for k in ("z", "near", "far", "logits"))
    value, gradient = with_gradient(lambda v: model_contrast(v, near, far, g["flgo"]["tau"]), z)
    assert abs(value - g["flgo"]["value"]) < 1e-12
    assert torch.allclose(gradient, tensor(g["flgo"]["gradient"]))
    mu, tau, want = (g["fedntd"][k] for k in ("mu", "tau", "value"))
    got = F.cross_entropy(logits, torch.tensor(g["y"])) + mu*model_contrast(z, near, far, tau)
    assert abs(got.item() - want) < 1e-12


def test_golden_fedntd():
    g = golden("fedntd")
    logits, teacher, y = tensor(g["logits"]), tensor(g["teacher"]), torch.tensor(g["y"])
    for case in g["losses"]:
        beta, tau = case["beta"], case["tau"]
        loss = lambda v: F.cross_entropy(v, y) + beta*not_true_distillation(v, teacher, y, tau)
        value, gradient = with_gradient(loss, logits)
        assert abs(value - case["value"]) < 1e-12 and torch.allclose(gradient, tensor(case["gradient"]))


def test_golden_feddecorr():
    "The authors' code is our released form; the printed form is about a batch size smaller."
    g = golden("feddecorr")
    value, gradient = with_gradient(released_decorrelation, tensor(g["z"]))
    assert abs(value - g["value"]) < 1e-6 and torch.allclose(gradient, tensor(g["gradient"]), rtol=1e-5)
    N, d = tensor(g["z"]).shape
    printed = g["value"]*N/(N - 1)**2*(d - 1)/d + 1/d
    assert abs(decorrelation(tensor(g["z"])).item() - printed) < 1e-6


# ---- formulas

def test_moon_is_its_equation_sample_by_sample():
    z, near, far = draw(1, 5, 7), draw(2, 5, 7), draw(3, 5, 7)
    cos = lambda u, v: (u @ v/u.norm()/v.norm()/.4).exp()
    each = [-(cos(u, g)/(cos(u, g) + cos(u, p))).log() for u, g, p in zip(z, near, far)]
    assert abs(model_contrast(z, near, far, .4) - torch.stack(each).mean()) < 1e-10


def test_moon_of_opposite_features_is_its_least_value():
    z = draw(1, 5, 7)
    assert abs(model_contrast(z, z, -z, .5).item() - math.log(1 + math.exp(-4))) < 1e-10


def test_fedntd_vanishes_at_the_teachers_opinion_of_the_wrong_classes_and_takes_soft_labels():
    logits, teacher, y = draw(4, 6, 4), draw(5, 6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    shifted = teacher + 5*F.one_hot(y, 4)                              # another confidence in the true class
    assert abs(not_true_distillation(shifted, teacher, y).item()) < 1e-12
    assert torch.equal(not_true(logits, F.one_hot(y, 4).double()), not_true(logits, y))


def test_fedntd_has_no_gradient_at_the_true_class():
    logits, teacher, y = draw(4, 6, 4).requires_grad_(), draw(5, 6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    not_true_distillation(logits, teacher, y).backward()
    assert not logits.grad[range(6), y].any()


def test_fedntd_is_torchs_divergence_and_not_the_reverse():
    a, b, y = draw(6, 6, 4), draw(7, 6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    by_torch = F.kl_div(F.log_softmax(not_true(a, y), 1), F.softmax(not_true(b, y), 1), reduction="batchmean")
    assert torch.allclose(not_true_distillation(a, b, y), by_torch)
    assert not torch.allclose(not_true_distillation(b, a, y), by_torch)


def test_decorrelation_does_not_see_scale_and_shift():
    z = draw(8, 20, 5)
    assert torch.allclose(decorrelation(3*z + 7), decorrelation(z))


def test_the_gradient_of_decorrelation_is_orthogonal_to_shift_and_scale():
    z = draw(4, 64, 5) @ draw(5, 5, 5)
    _, slope = with_gradient(decorrelation, z)
    assert slope.abs().max() > 1e-4
    for direction in (torch.ones_like(z), z): assert (direction*slope).sum(0).abs().max() < 1e-8


def test_decorrelation_of_one_direction_is_one_and_of_a_dead_feature_finite():
    z = draw(4, 64, 5)
    assert abs(decorrelation(z[:, :1].repeat(1, 5)).item() - 1) < 1e-6
    _, slope = with_gradient(decorrelation, torch.cat([z, torch.zeros(64, 1).double()], 1))
    assert slope.isfinite().all()


@pytest.mark.parametrize("z", [torch.zeros(6, 4), torch.ones(1, 4)])
def test_decorrelation_of_constant_features_and_single_samples(z):
    for f in (decorrelation, released_decorrelation):
        _, gradient = with_gradient(f, z)
        assert gradient.isfinite().all()


# ---- in the loop

@pytest.fixture(scope="module")
def plain(tiny): return run("fedavg", tiny)


@pytest.mark.parametrize("name, off", [("moon", "mu"), ("fedntd", "beta"), ("feddecorr", "beta")])
def test_without_its_term_it_is_fedavg(tiny, plain, name, off):
    r = run(name, tiny, **{off: 0.})
    assert same(r.fed.server.model, plain.fed.server.model)
    assert not same(run(name, tiny).fed.server.model, plain.fed.server.model)


@pytest.mark.parametrize("name", ALL)
def test_unseen_client_gets_the_global_model(tiny, name):
    r = run(name, tiny)
    assert same(r.model_of().state_dict(), r.fed.server.model)


SUMS = ["feddecorr+fedbr", "fedntd+fedbr", "moon+ga", "fedntd+ga", "feddecorr+ga"]


@pytest.mark.parametrize("name", SUMS)
def test_same_bits_on_any_number_of_workers(tiny, name):
    one, three = (run(name, tiny, workers=w) for w in (1, 3))
    assert bits(one) == bits(three)


def test_moon_remembers_over_a_stop_and_over_missed_rounds(monkeypatch, tiny, tmp_path):
    same_bits(monkeypatch, tmp_path, "moon", tiny, rounds=3, drops=((2, "inked"),))


def test_moons_first_round_is_fedavgs(tiny):
    assert same(run("moon", tiny, rounds=1).fed.server.model, run("fedavg", tiny, rounds=1).fed.server.model)


def test_projection_head(tiny):
    fed = Federation("moon", tiny, "blended", 1, project=16)
    assert fed.net.feature_dim == 16 and fed.net.eval()(torch.zeros(2, 3, 28, 28)).shape == (2, 10)
    run("moon", tiny, project=16)


def test_the_projection_head_is_two_linear_layers_with_a_relu_between(tiny):
    net = Federation("moon", tiny, "blended", 1, project=32).net.eval()
    x = torch.rand(2, 3, 28, 28, generator=generator(2))
    layers = [v for k, v in net.features.named_parameters() if not k.startswith("base.")]
    assert [tuple(v.shape) for v in layers] == [(800, 800), (800,), (32, 800), (32,)]
    w1, b1, w2, b2 = layers
    by_hand = (net.features.base(x) @ w1.T + b1).clamp(min=0) @ w2.T + b2
    assert torch.allclose(net.features(x), by_hand, atol=1e-5)


def test_moon_keeps_a_copy_that_no_later_step_moves(tiny):
    fed = run("moon", tiny, rounds=1).fed
    client, net = fed.clients[0], fed.net
    fed.method.end(net, client)
    kept = {k: v.clone() for k, v in net.features.state_dict().items()}
    with torch.no_grad():
        for p in net.parameters(): p.mul_(2.)
    assert same(part(client.state, "moon"), kept)


def test_feddecorr_as_released_is_another_method_than_as_printed(tiny):
    assert bits(run("feddecorr", tiny)) != bits(run("feddecorr", tiny, variant="released"))


def test_defaults():
    h = {name: method_class(name)().h for name in ALL}
    assert (h["moon"].mu, h["moon"].tau, h["fedntd"].beta, h["fedntd"].tau, h["feddecorr"].beta) == (1., .5, 1., 1., .1)


def test_a_frozen_network_answers_each_sample_alone_and_the_original_learns_on():
    with seeded(0): net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    still, x = freeze_copy(net), torch.randn(6, 3, generator=generator(1))
    assert torch.allclose(still(x)[:1], still(x[:1]), atol=1e-6)
    assert net.training and all(p.requires_grad for p in net.parameters())


def test_a_frozen_network_does_not_change(tiny):
    net = Federation("fedavg", tiny, "blended", 1).net.train()
    still = freeze_copy(net)
    before = {k: v.clone() for k, v in still.state_dict().items()}
    still(torch.rand(4, 3, 28, 28, generator=generator(1)))
    assert same(before, still.state_dict()) and net.training


BAD = [("moon", dict(tau=0.)), ("moon", dict(project=0)), ("fedntd", dict(beta=-1.)),
       ("feddecorr", dict(penalty="max"))]


@pytest.mark.parametrize("name, bad", BAD)
def test_bad_values_are_refused_in_one_line(name, bad):
    with pytest.raises(FdgnbError) as e: method_class(name)(**bad)
    assert one_line(e) and next(iter(bad)) in str(e.value)
