"""ARFL, GroupDRO, FedGMA, FedHEAL: rules on small worlds, neutral settings, sums, absent clients."""
import numpy as np
import pytest
import torch
from fastcore.test import test_close as close
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import cross_entropy
from conftest import bits, run
from fdgnb.core import FdgnbError
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client, Method, Server, downloads, federated_round, weigh
from fdgnb.federation.toys import same
from fdgnb.methods.reweighting import ARFL, FedGMA, FedHEAL, GroupDRO, keep_reported, share_out, water_filling
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings
from golden import replay

KEYS = ["arfl", "groupdro", "fedgma", "fedheal"]
LOSS = "scalars.reweighting.loss"


def test_one_report_decides_nothing():
    "A loss of 1e11, once, gave a client all weight for ever; one below 0 gives it all of ARFL's."
    rule, server = GroupDRO(eta_q=.1), Server({}, "abc", n_classes=3)
    rule.setup(server)
    with pytest.warns(UserWarning, match="client 'c' reports a loss over 10 times"):
        weights = rule.decide(server, heard([1., 1.2, 1e11]))
    assert weights["c"] == 1 and weights["a"] == pytest.approx(np.exp(.1*(1 - 11)))
    for cls in (GroupDRO, ARFL):
        rule = cls()
        with pytest.raises(FdgnbError, match="client 'b' reports the loss -1"): rule.decide(server, heard([1, -1, 1]))


def number(v): return torch.tensor(v, dtype=torch.float64)


def average(rule, server, uploads):
    "Weigh and aggregate, as the loop does."
    rule.aggregate(server, weigh(rule, server, uploads))


def vector_server(start, n):
    "A server with one vector of parameters and a buffer, for clients named by number."
    net = nn.Module()
    net.w = nn.Parameter(number(start))
    net.register_buffer("seen", number(0.))
    return Server(net.state_dict(), [str(i) for i in range(n)], net=net)


def sent(models, n):
    "Uploads of some vectors by clients with so many samples."
    upload = lambda i, w: {"model.w": number(w), "model.seen": number(float(i)), "scalars.n": number(float(n[i]))}
    return [(str(i), upload(i, w)) for i, w in enumerate(models)]


def heard(losses):
    "Uploads of the first clients of a, b, c."
    return [(k, {LOSS: number(float(v)), "scalars.n": number(n)}) for k, n, v in zip("abc", (5., 10., 20.), losses)]


class Bowl(Method):
    "A sample is c; the loss is (theta - c)^2 / 2, and so is what a client reports."
    def loss(self, model, x, y, client): return ((model.theta - x[:, 0])**2).mean()/2
    def _risk(self, model, client): return self.loss(model, client.splits["train"].x, None, client).item()


def path(cls, centers, rounds, lr, theta=0., sizes=None, **hyper):
    "The global theta after each round of clients with these optima."
    toy = type(cls.__name__, (Bowl,) if cls is Method else (Bowl, cls), {})(**hyper)
    s, sizes = Settings(lr=lr, batch_size=64), sizes or [10]*len(centers)
    data = lambda c, n: dict(train=(torch.full((n, 1), c).double(), torch.zeros(n, dtype=torch.long)))
    clients = [Client(f"c{i}", data(float(c), n), s) for i, (c, n) in enumerate(zip(centers, sizes))]
    net = nn.Module()
    net.theta = nn.Parameter(number(theta))
    server = Server({k: v.clone() for k, v in net.state_dict().items()}, [c.id for c in clients], s, net=net)
    toy.setup(server)
    down, out = downloads(toy, server), [theta]
    for r in range(rounds):
        down = federated_round(toy, server, clients, net, down, r)
        out.append(server.model["theta"].item())
    return out


def test_a_loss_stays_until_it_is_reported_anew():
    server, up = Server({}, "abc"), lambda v: {LOSS: torch.tensor(v)}
    keep_reported(server, [("a", up(1.)), ("c", up(3.))], LOSS, "x")
    assert keep_reported(server, [("c", up(5.))], LOSS, "x")[[0, 2]].tolist() == [1., 5.]
    assert server.state["x"][1].isnan() and server.state["x"][2] == 5


def test_weights_of_zero_for_all_who_answered_become_equal():
    assert share_out(Server({}, "abc"), [("a", {}), ("c", {})], torch.tensor([0., 1., 0.])) == dict(a=1., c=1.)


@pytest.mark.parametrize("lam", [.01, 1., 50., 1e4])
@pytest.mark.parametrize("K", [2, 3, 5, 8])
def test_water_filling_solves_the_quadratic_program(K, lam):
    rng = np.random.default_rng(K)
    L, n = rng.uniform(0, 3, K), rng.integers(1, 50, K).astype(float)
    objective = lambda a: a @ L + lam/2*(a**2/n).sum()
    solved = minimize(objective, np.full(K, 1/K), jac=lambda a: L + lam*a/n, bounds=[(0, 1)]*K, method="SLSQP",
                      constraints=dict(type="eq", fun=lambda a: a.sum() - 1), options=dict(ftol=1e-14, maxiter=500))
    a = water_filling(torch.tensor(L), torch.tensor(n), lam).numpy()
    close(a.sum(), 1., 1e-9)
    close(a, solved.x, 2e-3)
    assert objective(a) <= objective(solved.x) + 1e-9
    if lam == .01: close(a[L.argmin()], 1., 1e-9)                      # all to the least loss
    if lam == 1e4: close(a, n/n.sum(), .02)                                     # shares by size


def test_arfl_without_limit_is_fedavg_with_unequal_sizes():
    how = dict(centers=[-.3, 0., .2, .4, 8.], rounds=5, lr=.5, sizes=[1, 2, 3, 4, 5])
    close(path(ARFL, reg=1e9, **how), path(Method, **how), 1e-6)


@pytest.mark.parametrize("lr, eta_q", [(.3, .7), (.2, .1)])
def test_groupdro_swings_into_the_middle_of_the_outer_two(lr, eta_q):
    swings = path(GroupDRO, [-1., 0., 3.], 100, lr, eta_q=eta_q)
    close(swings[-1], 1., 1e-3)
    assert max(swings) > 1.05


def test_an_absent_client():
    "ARFL uses its last loss; GroupDRO leaves its q, but for the common division."
    arfl, dro, at_arfl, at_dro = ARFL(reg=.5), GroupDRO(eta_q=.5), Server({}, "abc"), Server({}, "abc")
    dro.setup(at_dro)
    for losses in ((1., 2., .8), (1.5, .4)):
        by_arfl, by_dro = arfl.decide(at_arfl, heard(losses)), dro.decide(at_dro, heard(losses))
    a = water_filling(number([1.5, .4, .8]), number([5., 10., 20.]), .5*35)
    close(list(by_arfl.values()), (a/a.max())[:2].tolist(), 1e-12)
    q = np.exp([.5*(1. + 1.5), .5*(2. + .4), .5*.8])
    close(list(by_dro.values()), (q/q.max())[:2], 1e-12)


def gma_by_hand(start, models, n, tau):
    out = list(start)
    for j in range(len(start)):
        moves = [w[j] - start[j] for w in models]
        A = abs(sum((d > 0) - (d < 0) for d in moves))/len(moves)
        out[j] += (1 if A >= tau else A)*sum(k*d for k, d in zip(n, moves))/sum(n)
    return out


@pytest.mark.parametrize("tau", [0., .4, .9, 1.])
def test_fedgma_by_loops(tau):
    start, n = [0., 1., -1., 2.], [10, 20, 30]
    models = [[.5, 1.5, -2., 2.], [.3, .5, 1., 2.5], [.1, 2., -1.5, 1.]]
    server, usual = vector_server(start, 3), vector_server(start, 3)
    average(FedGMA(tau=tau), server, sent(models, n))
    close(server.model["w"].numpy(), gma_by_hand(start, models, n, tau), 1e-12)
    close(server.model["seen"].item(), (0*10 + 1*20 + 2*30)/60, 1e-12)
    average(Method(), usual, sent(models, n))
    assert same(server.model, usual.model) == (tau == 0.)


@pytest.mark.parametrize("tau, move", [(.5, .5), (.51, .25)])
def test_fedgma_at_its_threshold(tau, move):
    server = vector_server([0.], 4)
    average(FedGMA(tau=tau), server, sent([[1.], [1.], [1.], [-1.]], [10]*4))
    close(server.model["w"].item(), move, 1e-12)


def test_defaults_and_a_lambda_of_zero():
    assert (ARFL().h.reg, GroupDRO().h.eta_q, FedGMA().h.tau) == (1., .01, .4)
    assert (FedHEAL().h.tau, FedHEAL().h.beta) == (.3, .4)
    with pytest.raises(FdgnbError, match="reg=0.0 is out of range"): ARFL(reg=0.)


def test_neutral_settings(tiny):
    assert bits(run("fedgma", tiny, tau=0.), "model") == bits(run("fedavg", tiny), "model")
    assert bits(run("groupdro", tiny, eta_q=0.), "model") == bits(run("uniform", tiny), "model")


@pytest.mark.parametrize("name, kw, usual", [("fedheal", dict(tau=-1., beta=0.), "uniform"),
                                             ("arfl", dict(reg=1e9), "fedavg")])
def test_neutral_settings_to_rounding(tiny, name, kw, usual):
    short = dict(rounds=1, local_steps=2)
    a, b = (run(n, tiny, **h, **short).fed.server.model for n, h in ((name, kw), (usual, {})))
    assert max((a[k] - b[k]).abs().max() for k in a) < 1e-6


def test_arfl_reports_the_loss_of_the_received_model(tiny):
    fed = Federation("arfl", tiny, "blended", 1)
    fed.net.load_state_dict(fed.server.model)
    batch = lambda c: c.take(torch.arange(c.n()))
    losses = [cross_entropy(fed.net.eval()(x), y).item() for x, y in map(batch, fed.clients)]
    close(run("arfl", tiny, rounds=1).fed.server.state["arfl.loss"].numpy(), losses, 1e-5)


@pytest.mark.parametrize("name, hyper", [("arfl", dict(reg=.5)), ("groupdro", dict(eta_q=1.))])
def test_ga_inherits_the_first_weights(tiny, name, hyper):
    "One round of the sum is the method's; with d = 0 GA stays there while the method goes on."
    apart = lambda a, b: max((a.model[k] - b.model[k]).abs().max().item() for k in a.model)
    def share(server):
        w = number(list(server.weights.values()))
        return w/w.sum()
    of = lambda n, rounds, **kw: run(n, tiny, rounds=rounds, lr=.02, **hyper, **kw).fed.server
    under, start = f"{name}+ga", dict(initial="inherit", d=0.)
    first = of(name, 1)
    assert apart(of(under, 1, **start), first) < 1e-6 < apart(run("fedavg", tiny, rounds=1, lr=.02).fed.server, first)
    kept = of(under, 2, **start).state["ga.a"]
    close(kept, share(first), 1e-12)
    assert (kept - share(of(name, 2))).abs().max() > 1e-4


def test_ga_keeps_what_it_learned_when_arfl_leaves_a_latecomer_out():
    ga, server = method_class("arfl+ga")(reg=.01, initial="inherit", d=.1), Server({"w": number(0.)}, "abc", rounds=10)
    ga.setup(server)
    for server.round, losses in enumerate([(1., 1.02), (1., 1.02, 9.)]):
        gaps = [{"scalars.ga.gap": number(g)} for g in (.2, .1)[:2*server.round]] + [{}]*3
        ups = [(k, u | gap | {"model.w": number(1.)}) for (k, u), gap in zip(heard(losses), gaps)]
        before = server.state["ga.a"].clone()
        average(ga, server, ups)
    assert .1 < before[1] < .4
    learned = before.nan_to_num(0.) + .1*(1 - 1/10)*number([1., -1., 0.])
    close(server.state["ga.a"], learned, 1e-12)
    server.round = 2                                                 # only a client without weight answers
    average(ga, server, [("c", heard((1., 1.02, 9.))[2][1] | {"model.w": number(5.)})])
    assert server.model["w"].item() == 5.
    close(server.state["ga.a"], learned, 1e-12)


@pytest.mark.parametrize("name", KEYS)
def test_some_clients_in_each_round(tiny, name):
    r = run(name, tiny, rounds=3, per_round=2, drops=((2, "inked"),))
    assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_one_number_more(tiny):
    "ARFL and GroupDRO send the loss, FedGMA and FedHEAL what FedAvg sends."
    up = lambda n: run(n, tiny).ledger.query("direction == 'up'").bytes.sum()
    assert [up(n) - up("fedavg") for n in KEYS] == [2*3*8, 2*3*8, 0, 0]


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
