"""FedSAM and FedASAM beside autograd: what the page's step leaves out, clipping, decay, layers, statistics."""
import copy
import pytest
import torch
from torch import nn
from fdgnb.core import generator, seeded
from fdgnb.federation.loop import Client, client_update
from fdgnb.methods.sharpness import FedASAM, FedSAM
from fdgnb.settings import Settings

with seeded(0): NET = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
X, Y = torch.randn(16, 4, generator=generator(1)), torch.arange(16) % 3


def sent(cls, settings={}, **hyper):
    "What a client sends after one step."
    net, settings = copy.deepcopy(NET), Settings(lr=.1, batch_size=len(X), **settings)
    down = {f"model.{k}": v for k, v in net.state_dict().items()}
    return client_update(cls(**hyper), net, Client("a", dict(train=(X, Y)), settings), down, 0)


def by_autograd(rho, stretch, clip, decay):
    "The same step, entry by entry of a functional network."
    net = copy.deepcopy(NET).train()
    theta = {k: p.detach() for k, p in net.named_parameters()}
    def slope(at):
        at = {k: v.clone().requires_grad_() for k, v in at.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(net, at, (X,)), Y)
        return dict(zip(at, torch.autograd.grad(loss, list(at.values()))))
    length = lambda vectors: sum(v.square().sum() for v in vectors)**.5
    g, T = slope(theta), {k: stretch(k, v) for k, v in theta.items()}
    size = length(T[k]*g[k] for k in g)
    worst = slope({k: v + rho*T[k]**2*g[k]/size for k, v in theta.items()})
    cut = min(1., clip/length(worst.values()))
    return {k: v - .1*(worst[k]*cut + decay*v) for k, v in theta.items()}


def scaled(key, weight): return weight.abs() + .2 if key.endswith("weight") else torch.ones_like(weight)


@pytest.mark.parametrize("cls, hyper, stretch", [(FedSAM, {}, lambda k, v: torch.ones_like(v)),
                                                 (FedASAM, dict(eta=.2), scaled)])
def test_a_step_with_clip_and_decay_at_the_worst_point(cls, hyper, stretch):
    step = sent(cls, dict(clip=.05, weight_decay=.3), rho=.5, **hyper)
    for k, v in by_autograd(.5, stretch, .05, .3).items():
        torch.testing.assert_close(step[f"model.{k}"], v, rtol=0, atol=1e-5)
