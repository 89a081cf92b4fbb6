"""Client drift: rounds by hand on two quadratics, neutral settings, absent clients, refusals."""
import numpy as np
import pytest
import torch
from fastcore.test import test_close as close
from torch import nn
from conftest import bits, one_line, run
from golden import replay
from fdgnb.core import FdgnbError, seeded
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client, Method, Server, client_update, downloads, federated_round, server_update
from fdgnb.methods.drift import (FedAdagrad, FedAdam, FedCM, FedDyn, FedNova, FedYogi, Scaffold, add_to_sum,
                                 displacement, half_square, step_reach)
from fdgnb.settings import Settings
from fdgnb.vectors import part

KEYS = ["fedprox", "scaffold", "feddyn", "fednova", "fedcm", "fedadam", "fedyogi", "fedadagrad"]


# two clients with the loss h (theta - c)^2 / 2, weights 3 to 1

c, h, p, tau, eta = np.array([-1., 2.]), np.array([1., 4.]), np.array([.75, .25]), 5, .1
OPTIMUM = (p*h) @ c/(p @ h)


class Quadratic(Method):
    "A sample is (c, h)."
    def loss(self, model, x, y, client): return (x[:, 1]*(model.theta - x[:, 0])**2).mean()/2


def scalar_model():
    net = nn.Module()
    net.theta = nn.Parameter(torch.tensor(0., dtype=torch.float64))
    return net


def scalar_client(k, c, h, n=1, **kw):
    x = torch.tensor([[c, h]]*n).double()
    return Client(k, dict(train=(x, torch.zeros(n, dtype=torch.long))), Settings(**kw))


def two(tau=(tau, tau), eta=eta, **kw):
    "The two clients, with so many local steps."
    return [scalar_client(k, c[i], h[i], (3, 1)[i], lr=eta, local_epochs=tau[i], **kw) for i, k in enumerate("ab")]


def toy(cls, **hyper):
    "A method on this world."
    return type(cls.__name__, (Quadratic,) if cls is Method else (cls, Quadratic), {})(**hyper)


def path(method, rounds, clients=None):
    "The global theta before and after each round."
    clients, net = clients or two(), scalar_model()
    server = Server({"theta": net.theta.detach().clone()}, "ab", clients[0].settings, rounds=rounds, net=net)
    method.setup(server)
    down, out = downloads(method, server), [0.]
    for r in range(rounds):
        down = federated_round(method, server, clients, scalar_model(), down, r)
        out.append(server.model["theta"].item())
    return out


def test_half_the_square_of_all_parameters_as_one_vector():
    with seeded(0): net, client = nn.Linear(3, 2), two()[0]
    client.scratch = {"received": {k: q.detach().clone() for k, q in net.named_parameters()}}
    with torch.no_grad(): [q.add_(i + 1.) for i, q in enumerate(net.parameters())]
    far = half_square(net, client)
    far.backward()
    close(far.item(), (6*1 + 2*4)/2, 1e-5)
    close(net.weight.grad, torch.ones(2, 3), 1e-6)
    close(displacement(net, client)["bias"], net.bias.grad, 1e-6)
    assert add_to_sum({}, {"a": 1}) == {"a": 1}


def scaffold_by_hand(rounds, theta=0., factor=1., steps=(tau, tau), decay=1., most=np.inf):
    own, mean, out = [0., 0.], 0., [theta]
    for r in range(rounds):
        local, change, lr = [], [], eta*decay**r
        for k in range(2):
            y = theta
            for _ in range(steps[k]): y = y - lr*(np.clip(h[k]*(y - c[k]), -most, most) - own[k] + mean)
            local.append(y); change.append(-mean + factor*(theta - y)/(steps[k]*lr))
        theta = p[0]*local[0] + p[1]*local[1]
        mean = mean + p[0]*change[0] + p[1]*change[1]
        own = [own[0] + change[0], own[1] + change[1]]
        out.append(theta)
    return out


def test_scaffold_with_unequal_steps_falling_rates_and_clipped_gradients():
    falling = two((2, 8), lr_decay=.5)
    close(path(toy(Scaffold), 4, falling), scaffold_by_hand(4, steps=(2, 8), decay=.5), 1e-12)
    close(path(toy(Scaffold), 4, two(clip=.7)), scaffold_by_hand(4, most=.7), 1e-5)      # before it is corrected
    close(path(toy(Scaffold), 40, two((2, 8)))[-1], OPTIMUM, 1e-6)


@pytest.mark.parametrize("factor", [.1, .001, 3, 5])
def test_scaffold_with_a_wrong_estimate_is_what_the_page_computes_by_hand(factor):
    class Wrong(Scaffold):
        def end(self, model, client):
            client.scratch["steps"] /= factor
            super().end(model, client)
    close(path(toy(Wrong), 4), scaffold_by_hand(4, factor=factor), 1e-9)


def test_feddyn_with_unequal_steps_and_its_first_round():
    close(path(toy(FedDyn, alpha=2.), 40, two((2, 8)))[-1], OPTIMUM, 1e-6)
    close(path(toy(FedDyn, alpha=1e-9), 1)[1], 2*path(toy(Method), 1)[1], 1e-6)


def partly(method, sizes, most, rounds):
    "Server and clients after rounds of `most` clients, drawn anew; the two of this world in turns, so large."
    clients = [scalar_client(k, c[i % 2], h[i % 2], n, lr=eta, local_epochs=tau)
               for i, (k, n) in enumerate(zip("abcd", sizes))]
    names, net, rng = [k.id for k in clients], scalar_model(), np.random.default_rng(0)
    server = Server({"theta": net.theta.detach().clone()}, names, clients[0].settings, rounds=rounds, net=net)
    down = downloads(method, server)
    for r in range(rounds):
        there = [clients[i] for i in sorted(rng.permutation(len(clients))[:most])]
        down = federated_round(method, server, there, net, down, r)
    return server, clients


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (6, 1, 1, 2)])
@pytest.mark.parametrize("key, method", [("scaffold", toy(Scaffold)), ("feddyn", toy(FedDyn, alpha=2.))])
def test_the_servers_term_is_the_mean_over_all_clients(key, method, sizes, rounds):
    "Also while some are unseen: these count as the mean of those that were."
    server, clients = partly(method, sizes, 2, rounds)
    seen = np.array([f"{key}.theta" in k.state for k in clients])
    own = [k.state.get(f"{key}.theta", torch.tensor(0.)).item() for k in clients]
    n = np.where(seen, sizes, np.mean(np.array(sizes)[seen]))
    close(server.state[f"{key}.sum.theta"].item(), n @ own/n.sum(), 1e-9)
    assert seen.all() == (rounds > 2)


def test_weights_that_move_keep_the_common_term_of_clients_that_are_alike():
    class Moving(Scaffold, Quadratic):
        def weight(self, server, k, upload): return 1. + server.round*(k == "a") % 3
    alike, net, m = [scalar_client(k, c[0], h[0], lr=eta, local_epochs=tau) for k in "ab"], scalar_model(), Moving()
    server = Server({"theta": net.theta.detach().clone()}, "ab", alike[0].settings, rounds=9, net=net)
    down = downloads(m, server)
    for r in range(9): down = federated_round(m, server, alike, net, down, r)
    close([server.state["scaffold.sum.theta"].item()]*2, [k.state["scaffold.theta"].item() for k in alike], 1e-9)
    assert [server.state[f"scaffold.weights.{k}"].item() for k in "ab"] == [1. + 8 % 3, 1.]


def reach_by_torch(steps, rho=0., mu=0., lr=.1):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=lr, momentum=rho)
    for _ in range(steps):
        opt.zero_grad()
        (w + mu/2*w**2).backward()
        opt.step()
    return -w.item()/lr


def test_the_reach_is_the_plain_sum_of_the_coefficients():
    "With momentum and a proximal term some are negative: the paper's norm is larger."
    one, a, v = np.eye(30), np.zeros(30), np.zeros(30)                   # entry i: what gradient i has become
    for i in range(30):
        v = .9*v + one[i] - .05*a
        a = a + v
    close(a.sum(), step_reach(30, .9, .05), 1e-9)
    close((a.sum(), abs(a).sum()), (16.06, 44.31), .005)


def nova_by_hand(tau, rho=0., mu=0., eta=eta, theta=0.):
    moves, reach = [], []
    for k in range(2):
        y, v = theta, 0.
        for _ in range(tau[k]):
            v = rho*v + h[k]*(y - c[k]) + mu*(y - theta)
            y -= eta*v
        moves.append(y - theta); reach.append(reach_by_torch(tau[k], rho, mu, eta))
    return theta + (p @ reach)*(p[0]*moves[0]/reach[0] + p[1]*moves[1]/reach[1])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("rho, mu", [(0., 0.), (.9, 0.), (0., 1.), (.5, 1.)])
def test_fednova_by_hand(rho, mu, kept):
    "Unequal steps and a falling rate; a momentum buffer kept from the first round has no say."
    first = nova_by_hand((2, 8), rho, mu)
    second = nova_by_hand((2, 8), rho, mu, eta/2, first)
    clients = two((2, 8), momentum=rho, lr_decay=.5, keep_optimizer=kept)
    close(path(toy(FedNova, mu=mu), 2, clients), [0., first, second], 1e-12)


def fedcm_by_hand(rounds, alpha, theta=0., rho=0., steps=(tau, tau), reach=None, decay=1., most=np.inf):
    mean, out = 0., [theta]
    for r in range(rounds):
        local, lr = [], eta*decay**r
        for k in range(2):
            y, v = theta, 0.
            for _ in range(steps[k]):
                v = rho*v + alpha*np.clip(h[k]*(y - c[k]), -most, most) + (1 - alpha)*mean
                y -= lr*v
            local.append(y)
        new = p @ local
        mean, theta = (theta - new)/(lr*(p @ (reach or steps))), new
        out.append(theta)
    return out


def test_fedcm_with_unequal_steps_falling_rates_and_clipped_gradients():
    close(path(toy(FedCM, alpha=.1), 4), fedcm_by_hand(4, .1), 1e-12)
    by_hand = fedcm_by_hand(4, .6, steps=(2, 8), decay=.5)
    close(path(toy(FedCM, alpha=.6), 4, two((2, 8), lr_decay=.5)), by_hand, 1e-12)
    close(path(toy(FedCM, alpha=.6), 4, two(clip=.7)), fedcm_by_hand(4, .6, most=.7), 1e-5)


@pytest.mark.parametrize("kept", [False, True])
def test_fedcm_under_momentum_divides_by_the_reach(kept):
    "Divided by the number of steps alone it would diverge."
    reach = sum((1 - .9**j)/(1 - .9) for j in range(1, tau + 1))
    by_hand = fedcm_by_hand(40, .1, rho=.9, reach=(reach, reach))
    close(path(toy(FedCM, alpha=.1), 40, two(momentum=.9, keep_optimizer=kept)), by_hand, 1e-9)
    assert abs(by_hand[-1] - OPTIMUM) < .5 and abs(fedcm_by_hand(40, .1, rho=.9)[-1]) > 1e6


@pytest.mark.parametrize("cls, kw", [(FedAdam, dict(eta=.05, tau=.1)), (FedYogi, dict(eta=.05, tau=.1)),
                                     (FedAdagrad, dict(eta=.2, tau=.1))])
def test_the_servers_optimizers_rest_where_fedavg_does(cls, kw):
    s = p*(1 - (1 - eta*h)**tau)
    close(path(toy(cls, **kw), 60)[-1], s @ c/s.sum(), .02)


@pytest.mark.parametrize("name", KEYS)
def test_running_statistics_are_the_weighted_mean(name):
    "One round with 2 and 8 local steps, on a network with BatchNorm."
    with seeded(0): net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    rng = np.random.default_rng(0)
    draw = lambda *size: torch.tensor(rng.normal(size=size), dtype=torch.float32)
    with torch.no_grad(): [q.copy_(draw(*q.shape)) for q in net.parameters()]
    data = lambda n: dict(train=(draw(n, 2) + n, torch.arange(n) % 2))
    clients = [Client(k, data(n), Settings(lr=.1, local_epochs=steps)) for k, n, steps in (("a", 12, 2), ("b", 4, 8))]
    method = method_class(name)()
    server = Server({k: v.clone() for k, v in net.state_dict().items()}, "ab", clients[0].settings, net=net)
    method.setup(server)
    down = downloads(method, server)
    sent = [(k.id, client_update(method, net, k, down[k.id], 0)) for k in clients]
    server_update(method, server, sent, 0)
    (a, b), after = [part(u, "model") for _, u in sent], server.model
    for k in ("1.running_mean", "1.running_var"):
        assert (a[k] - b[k]).abs().min() > .1
        close(after[k], .75*a[k] + .25*b[k], 1e-5)
    assert after["1.num_batches_tracked"].item() == 8


@pytest.mark.parametrize("name, kw", [("fednova", {}), ("fedadam", dict(eta=2e-3, beta1=0., beta2=1.)),
                                      ("fedyogi", dict(eta=2e-3, beta1=0., beta2=1.)),
                                      ("fedadagrad", dict(eta=2e3, tau=1e3))])
def test_neutral_setting_to_rounding(tiny, name, kw):
    a, b = (run(n, tiny, local_steps=2, **k).fed.server.model for n, k in ((name, kw), ("fedavg", {})))
    assert max((a[k] - b[k]).abs().max() for k in a) < 1e-5


def test_scaffolds_first_round_is_fedavgs(tiny):
    for rounds in (1, 2):
        a, b = (bits(run(n, tiny, rounds=rounds), "model") for n in ("scaffold", "fedavg"))
        assert (a == b) == (rounds == 1)


@pytest.mark.parametrize("name", ["fedprox", "fedcm"])
def test_neutral_setting(tiny, name):
    neutral = dict(fedprox=dict(mu=0.), fedcm=dict(alpha=1.))[name]
    assert bits(run(name, tiny, **neutral), "model") == bits(run("fedavg", tiny), "model")
    assert bits(run(name, tiny), "model") != bits(run("fedavg", tiny), "model")


ADAM = dict(optimizer="adam")


@pytest.mark.parametrize("name, how", [("scaffold", dict(momentum=.9)), ("scaffold", ADAM),
                                       ("fednova", ADAM), ("fedcm", ADAM)])
def test_refused_before_any_work(tiny, name, how):
    with pytest.raises(FdgnbError, match=f"{name} is defined for") as e: run(name, tiny, **how)
    assert one_line(e)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova"])
def test_some_clients_in_each_round(tiny, name):
    r = run(name, tiny, rounds=3, per_round=2, drops=((2, "inked"),))
    assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_no_local_steps(tiny):
    "A round without steps moves nothing and divides by nothing."
    for name in ("scaffold", "fednova", "fedcm"):
        r = run(name, tiny, local_epochs=0, eval_every=0)
        assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_buffers_are_averaged_as_in_fedavg(tiny):
    "FedNova scales no running statistics, the server's optimizers neither."
    usual = run("fedavg", tiny, rounds=1).fed.server.model
    for name in ("fednova", "fedadam", "feddyn"):
        if name == "feddyn": continue                                      # trains another loss
        model = run(name, tiny, rounds=1).fed.server.model
        assert all(torch.equal(model[k], usual[k]) for k in usual if "running" in k)


def test_control_variates_double_the_traffic(tiny):
    "SCAFFOLD sends as many statistics as it has parameters, and receives them from the second round on."
    r = run("scaffold", tiny)
    n = sum(p.numel()*4 for p in r.fed.net.parameters())
    stats = r.ledger.query("kind == 'stats'").groupby(["round", "direction"]).bytes.sum()
    assert stats.to_dict() == {(1, "up"): 3*n, (2, "down"): 3*n, (2, "up"): 3*n}


def test_reach_of_no_steps(): assert step_reach(0, .9, .1) == 0


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
