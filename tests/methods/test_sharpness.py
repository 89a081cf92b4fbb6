"""FedSAM and FedASAM: one step by autograd, neutral radius, sums, statistics."""
import copy
import numpy as np
import pytest
import torch
from fastcore.test import test_close as close
from torch import nn
import fdgnb
from conftest import bits, run
from digests import data
from fdgnb.core import generator, seeded
from fdgnb.federation.compose import METHODS
from fdgnb.federation.loop import Client, Method, client_update
from fdgnb.federation.toys import same
from fdgnb.methods.sharpness import FedASAM, FedSAM
from fdgnb.models import Dropout
from fdgnb.settings import Settings
from fdgnb.vectors import part
from golden import replay
from pairs import TINY, light

KEYS = ["fedsam", "fedasam"]


class LastLayer(FedSAM):
    "Trains the last layer alone."
    def params(self, model): return model[3].parameters()


@pytest.fixture(scope="module")
def world():
    "A network with BatchNorm, and 16 samples."
    with seeded(0): net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return net, torch.randn(16, 4, generator=generator(1)), torch.arange(16) % 3


def sent(cls, net, x, y, settings={}, **hyper):
    "What a client sends after one step."
    net, settings = copy.deepcopy(net), Settings(lr=.1, batch_size=len(x), **settings)
    down = {f"model.{k}": v for k, v in net.state_dict().items()}
    return client_update(cls(**hyper), net, Client("a", dict(train=(x, y)), settings), down, 0)


def one_step(*args, **kw): return part(sent(*args, **kw), "model")


def by_autograd(net, x, y, rho, stretch=lambda name, p: torch.ones_like(p), clip=np.inf, decay=0.):
    "The same step, with flat vectors and a functional call."
    net, names = copy.deepcopy(net).train(), dict(net.named_parameters())
    sizes = [p.numel() for p in names.values()]
    def grad(flat):
        flat = flat.detach().requires_grad_()
        pieces = [v.view_as(p) for v, p in zip(flat.split(sizes), names.values())]
        logits = torch.func.functional_call(net, dict(zip(names, pieces)), (x,))
        return torch.autograd.grad(nn.functional.cross_entropy(logits, y), flat)[0]
    flat = torch.cat([p.detach().flatten() for p in names.values()])
    T = torch.cat([stretch(k, p.detach()).flatten() for k, p in names.items()])
    g = grad(flat)
    worst = grad(flat + rho*T**2*g/(T*g).norm())
    new = flat - .1*(worst*min(1., clip/worst.norm().item()) + decay*flat)
    return {k: v.view_as(p) for (k, p), v in zip(names.items(), new.split(sizes))}


def test_clip_is_of_the_gradient_at_the_worst_point_and_decay_of_theta(world):
    got = one_step(FedSAM, *world, dict(clip=.05, weight_decay=.3), rho=.5)
    for k, v in by_autograd(*world, .5, clip=.05, decay=.3).items(): close(got[k], v, 1e-5)


def test_the_ball_is_of_what_is_trained(world):
    last = lambda name, p: torch.full_like(p, float(name.startswith("3.")))
    got, want = one_step(LastLayer, *world, rho=.5), by_autograd(*world, .5, stretch=last)
    for k, v in world[0].named_parameters(): close(got[k], want[k] if k.startswith("3.") else v, 1e-5)


def test_fedasam_scales_weights_alone(world):
    weights = lambda name, p: p.abs() + .2 if name.endswith("weight") else torch.ones_like(p)
    got = one_step(FedASAM, *world, rho=.5, eta=.2)
    for k, v in by_autograd(*world, .5, stretch=weights).items(): close(got[k], v, 1e-5)
    assert not same(got, one_step(FedSAM, *world, rho=.5))


def test_statistics_and_loss_are_those_of_one_pass(world):
    far, once = sent(FedSAM, *world, rho=.5), sent(Method, *world)
    kept = [k for k in once if k.startswith("model.1.running") or "num_batches" in k] + ["scalars.loss"]
    assert len(kept) == 4 and all(torch.equal(far[k], once[k]) for k in kept)


@pytest.mark.parametrize("cls", [FedSAM, FedASAM])
def test_radius_zero_under_dropout(world, cls):
    net, x, y = world
    wet = nn.Sequential(*net[:3], Dropout(.5), net[3])
    for n in (net, wet): assert same(one_step(cls, n, x, y, rho=0.), one_step(Method, n, x, y))


@pytest.mark.parametrize("name", KEYS)
def test_neutral_radius(tiny, name):
    "In a network with BatchNorm and dropout: FedAvg's bits."
    usual = bits(run("fedavg", tiny, weight_decay=1e-3), "model")
    assert bits(run(name, tiny, rho=0., weight_decay=1e-3), "model") == usual
    assert bits(run(name, tiny, weight_decay=1e-3), "model") != usual


@pytest.mark.parametrize("other", ["fedprox", "scaffold", "fedcm", "feddyn"])
def test_with_a_correction_of_the_step(tiny, other):
    "Sharpness beneath or above a correction of the gradient: with radius 0 it is that method."
    beneath = bits(run(other, tiny), "model")
    for name in (f"fedsam+{other}", f"{other}+fedsam"): assert bits(run(name, tiny, rho=0.), "model") == beneath


# a loss that draws, keeps or trains something does so in both passes: the page names these sums
TWICE = ["dann", "elcfs", "fdse", "fedadg", "fedfa", "fedmix", "vhl"]


OTHERS = [n for n in METHODS.names() if n not in TWICE and n not in KEYS]


@pytest.mark.parametrize("name", [*TWICE, *OTHERS[::8]])
def test_radius_zero_on_top_of_a_method(name):
    "Bit for bit the method beneath, or one of the named exceptions."
    how = TINY | light(name) | dict(rounds=2, local_steps=2, diverge="go")
    alone, both = (bits(fdgnb.fit(n, data(n=12), **how, **h), "model")
                   for n, h in ((name, {}), (f"{name}+fedsam", dict(rho=0.))))
    assert (alone != both) == (name in TWICE)


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
