"""Client drift: what the page's cells leave out of two quadratics by hand: unequal steps, falling rates, clipping."""
import numpy as np
import pytest
import torch
from torch import nn
from fdgnb.federation.loop import Client, Method, Server, downloads, federated_round
from fdgnb.methods.drift import FedCM, FedDyn, Scaffold
from fdgnb.settings import Settings

# two clients with the loss h (theta - c)^2 / 2, weights 3 to 1
c, h, p, eta = np.array([-1., 2.]), np.array([1., 4.]), np.array([.75, .25]), .1
OPTIMUM = (p*h) @ c/(p @ h)


class Quadratic(Method):
    "A sample is (c, h)."
    def loss(self, model, x, y, client): return (x[:, 1]*(model.theta - x[:, 0])**2).mean()/2


def path(cls, rounds, steps=(5, 5), hyper={}, **settings):
    "The global theta before and after each round."
    net = nn.Module()
    net.theta = nn.Parameter(torch.tensor(0., dtype=torch.float64))
    def client(i, k):
        x = torch.tensor([[c[i], h[i]]]*(3, 1)[i]).double()
        return Client(k, dict(train=(x, torch.zeros(len(x), dtype=torch.long))),
                      Settings(lr=eta, local_epochs=steps[i], **settings))
    clients = [client(i, k) for i, k in enumerate("ab")]
    method = type(cls.__name__, (cls, Quadratic), {})(**hyper)
    server = Server({"theta": net.theta.detach().clone()}, "ab", clients[0].settings, rounds=rounds, net=net)
    method.setup(server)
    down, out = downloads(method, server), [0.]
    for r in range(rounds):
        down = federated_round(method, server, clients, net, down, r)
        out.append(server.model["theta"].item())
    return out


def near(ours, by_hand, eps=1e-9): np.testing.assert_allclose(ours, by_hand, rtol=0, atol=eps)


def scaffold_by_hand(rounds, steps=(5, 5), decay=1., most=np.inf):
    theta, own, mean, out = 0., [0., 0.], 0., [0.]
    for r in range(rounds):
        local, change, lr = [], [], eta*decay**r
        for k in range(2):
            y = theta
            for _ in range(steps[k]): y = y - lr*(np.clip(h[k]*(y - c[k]), -most, most) - own[k] + mean)
            local.append(y)
            change.append(-mean + (theta - y)/(steps[k]*lr))
        theta, mean, own = p @ local, mean + p @ change, np.add(own, change)
        out.append(theta)
    return out


def test_scaffold_with_unequal_steps_falling_rates_and_clipped_gradients():
    near(path(Scaffold, 4, (2, 8), lr_decay=.5), scaffold_by_hand(4, (2, 8), decay=.5))
    near(path(Scaffold, 4, clip=.7), scaffold_by_hand(4, most=.7), 1e-5)          # clipped before it is corrected
    near(path(Scaffold, 40, (2, 8))[-1], OPTIMUM, 1e-6)


def test_feddyn_rests_at_the_optimum_though_steps_are_unequal():
    near(path(FedDyn, 40, (2, 8), hyper=dict(alpha=2.))[-1], OPTIMUM, 1e-6)


def fedcm_by_hand(rounds, alpha, steps=(5, 5), rho=0., decay=1., most=np.inf):
    theta, mean, out = 0., 0., [0.]
    for r in range(rounds):
        local, reach, lr = [], [], eta*decay**r
        for k in range(2):
            y, v = theta, 0.
            for _ in range(steps[k]):
                v = rho*v + alpha*np.clip(h[k]*(y - c[k]), -most, most) + (1 - alpha)*mean
                y -= lr*v
            local.append(y)
            reach.append(sum((1 - rho**j)/(1 - rho) for j in range(1, steps[k] + 1)))
        mean, theta = (theta - p @ local)/(lr*(p @ reach)), p @ local
        out.append(theta)
    return out


@pytest.mark.parametrize("alpha, steps, settings", [
    (.6, (2, 8), dict(lr_decay=.5)), (.6, (5, 5), dict(clip=.7)), (.1, (5, 5), dict(momentum=.9))])
def test_fedcm_with_unequal_steps_clipped_gradients_and_momentum(alpha, steps, settings):
    by_hand = fedcm_by_hand(6, alpha, steps, settings.get("momentum", 0.), settings.get("lr_decay", 1.),
                            settings.get("clip", np.inf))
    near(path(FedCM, 6, steps, hyper=dict(alpha=alpha), **settings), by_hand, 1e-5)
