"""Invariant features: beside the authors' updates, each hook by hand, in sums, resumed."""
import copy, json
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from fdgnb.core import generator
from fdgnb.federation.compose import list_hyper, method_class
from fdgnb.federation.loop import client_offer, client_update, server_gather, server_update
from fdgnb.federation.toys import same
from fdgnb.methods import invariant
from fdgnb.models import Dropout, outputs_of, set_generator
from fdgnb.runs.setup import Federation
from fdgnb.vectors import digest, part
from conftest import bits, run, same_bits
from golden.invariant import BATCH, CMI, EMA, GAMMA, L2R, LAM, inputs, parts, sgd

GOLDEN = json.loads((Path(__file__).parent.parent/"golden"/"invariant.json").read_text())["found"]
NAMES = ("dann", "fedsr", "fediir", "fedadg", "rsc")
X, Y, NOISE = inputs()


def near(nets, there, atol=1e-12):
    "Whether the networks' weights, or the tensors, are those of the authors' code."
    ours = [p.detach() for net in nets for p in ([net] if torch.is_tensor(net) else net.parameters())]
    assert len(ours) == len(there)
    for a, b in zip(ours, there):
        torch.testing.assert_close(a.double(), torch.tensor(b, dtype=torch.float64), rtol=0, atol=atol)


def network(features, head):
    "What a method's loss asks of a network."
    net = nn.Module()
    net.features, net.head, net.n_classes = features, head, 3
    net.forward = lambda x: net.head(net.features(x))
    return net


def steps(m, net, batches, client, *more):
    "Plain SGD down a method's loss."
    opt = sgd(net.features, net.head, *more)
    for x, y in batches:
        loss = m.loss(net, x, y, client)
        opt.zero_grad()
        loss.backward()
        opt.step()


def check_dann(room):
    "DomainBed lets a batch train D and another the network; shown the same batch twice, that is our step."
    features, head, D, _ = parts()
    who = SimpleNamespace(scratch={"dann": (1, D, sgd(D))})
    steps(room.DANN(dann_lam=LAM), network(features, head), [(X[1], Y[1])], who)
    near((features, head, D), GOLDEN["dann"])


def check_rsc(room):
    features, head, _, _ = parts()
    steps(room.RSC(rsc_p=1/3, rsc_b=1/3), network(features, head), [(X[0], Y[0])], None)
    near((features, head), GOLDEN["rsc"])


def check_fedsr(room):
    "As released: the plain norm, the scale C in the divergence, and the reference trained along."
    features, head, _, code = parts()
    with torch.device("meta"): gauss = room.Gaussian(features, 3, 3)
    gauss.inner, gauss.code = features, code
    net = network(gauss, head)
    net.reference = room.Reference(3, 3).double()
    m = room.FedSR(l2r=L2R, cmi=CMI, z_dim=3, variant="released")
    opt = sgd(features, code, head, net.reference)
    for _ in range(2):
        gauss.generator = torch.Generator().manual_seed(5)
        opt.zero_grad()
        m.loss(net, X[0], Y[0], None).backward()
        opt.step()
    r = net.reference
    near((features, code, head, r.mu, r.raw, r.C), GOLDEN["fedsr"], 1e-9)


def check_fediir(room):
    "A round of two clients: offers, the mean with its moving average, and the clients' steps."
    features, head, _, _ = parts()
    m, net = room.FedIIR(iir_gamma=GAMMA, iir_ema=EMA), network(features, head)
    server = SimpleNamespace(state={})
    batches = [list(zip(X[k].split(BATCH), Y[k].split(BATCH))) for k in range(2)]
    offers = []
    for k in range(2):
        g, n = room.mean_head_gradient(net, batches[k], len(X[k])), torch.tensor(float(len(X[k])))
        offers.append((k, {f"stats.fediir.{q}": v for q, v in g.items()} | {"scalars.n": n}))
    m.gather(server, offers)
    mean = {q: server.state[f"fediir.{q}"] for q in ("weight", "bias")}
    near([*mean.values()], GOLDEN["fediir"]["mean"])
    for k in range(2):
        own = network(copy.deepcopy(features), copy.deepcopy(head))
        steps(m, own, batches[k], SimpleNamespace(scratch={"fediir": mean}))
        near((own.features, own.head), GOLDEN["fediir"]["clients"][k])


def check_fedadg(room):
    "FedADG's three least-squares games, moved by hand in the order D, G, features."
    (features, head, _, _), x = (v.float() for v in parts()), X[0].float()
    g = torch.Generator().manual_seed(3)
    D, G = room.Verdict(3, 3, 2), nn.Linear(5, 3)
    for p in (*D.parameters(), *G.parameters()): p.data = torch.rand(p.shape, generator=g)
    e = torch.randn(len(x), 2, generator=torch.Generator().manual_seed(8))
    label = .7*F.one_hot(Y[0], 3)
    made = F.linear(torch.cat([e, label], 1), G.weight, G.bias)
    def verdict(w, z):
        "Projection without a bias; the label beside it; leaky ReLU by its definition; a sigmoid."
        inner = F.linear(torch.cat([z @ w[0].T, label], 1), w[1], w[2])
        return (F.linear(torch.where(inner > 0, inner, .01*inner), w[3], w[4])).sigmoid()
    z, w = features(x), [*D.parameters()]
    score = (1 - verdict(w, made.detach()))**2 + verdict(w, z.detach())**2
    w = [v - .5*s for v, s in zip(w, torch.autograd.grad(score.mean(), w))]
    slopes = torch.autograd.grad(verdict(w, made).pow(2).mean(), list(G.parameters()))
    moved = [p - .5*s for p, s in zip(G.parameters(), slopes)]
    by_hand = .75*F.cross_entropy(head(z), Y[0]) + .25*(1 - verdict(w, z)).pow(2).mean()
    scratch = {"adg.D": (D, sgd(D)), "adg.G": (G, sgd(G)), "adg.warm": 0.,
               "adg.rng": torch.Generator().manual_seed(8)}
    m = room.FedADG(adg_lam=.25, adg_noise=2)
    found = m.loss(network(features, head), x, Y[0], SimpleNamespace(scratch=scratch))
    near([found, *D.parameters(), *G.parameters()], [v.tolist() for v in (by_hand, *w, *moved)], 1e-6)


CHECKS = dict(dann=check_dann, fedsr=check_fedsr, fediir=check_fediir, fedadg=check_fedadg, rsc=check_rsc)


@pytest.mark.parametrize("name", CHECKS)
def test_formula(name):
    before = torch.get_rng_state()
    CHECKS[name](invariant)
    torch.set_rng_state(before)                                   # the networks made here draw first weights


@pytest.mark.parametrize("name", ["dann+ga", "fediir+ga"])
def test_same_bits(monkeypatch, name, tiny, tmp_path): same_bits(monkeypatch, tmp_path, name, tiny)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_comes_late(name, tiny):
    "One client of three per round: what travels besides the model is there for whoever comes."
    whole = run(name, tiny, rounds=4, per_round=1)
    assert all(v.isfinite().all() for v in whole.fed.server.model.values() if v.is_floating_point())
    assert bits(run(name, tiny, rounds=4, per_round=1, workers=1)) == bits(whole)


def test_fedadg_as_released_in_sums(tiny):
    "Its look in evaluation mode is no pass that a summand sees; without rates of its own it is the printed method."
    printed = dict(adg_mode="train", adg_rate=1., adg_momentum=0., adg_decay=0.)
    assert bits(run("fedadg", tiny, variant="released", **printed)) == bits(run("fedadg", tiny))
    for name in ("fedadg", "dann+fedadg"):
        released = run(name, tiny, variant="released")
        assert bits(released) != bits(run(name, tiny)) and released.fed.args()["hyper"]["adg_mode"] == "eval"
    assert not {"adg_mode", "adg_rate", "variant"} & {*run("fedadg", tiny).fed.args()["hyper"]}


# values

DEFAULTS = dict(dann=dict(dann_lam=.01, dann_width=256), fediir=dict(iir_gamma=1e-3, iir_ema=.95),
                fedsr=dict(l2r=None, cmi=5e-4, z_dim=512, norm="squared", scaled=False, reference="server"),
                fedadg=dict(adg_lam=.15, adg_noise=64, adg_warm=.3), rsc=dict(rsc_p=1/3, rsc_b=1/3))
NEUTRAL = dict(dann=dict(dann_lam=0.), fediir=dict(iir_gamma=0.), fedadg=dict(adg_lam=0.), rsc=dict(rsc_p=0.))


@pytest.mark.parametrize("name", NAMES)
def test_defaults(name):
    hyper = list_hyper(method_class(name)())
    assert {k: v for k, v in hyper.items() if k != "variant"} == DEFAULTS[name]


def test_neutral_settings_are_fedavg_and_all_others_differ(tiny):
    def theta(name, **hyper):
        model = run(name, tiny, rounds=1, local_steps=2, **hyper).fed.server.model
        return digest({k: v for k, v in model.items() if "reference" not in k})
    fedavg = theta("fedavg")
    for name, off in NEUTRAL.items(): assert theta(name, **off) == fedavg, name
    assert len({fedavg, *map(theta, NAMES)}) == 6


# one client before its first step

def close(a, b, atol=1e-6): torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=atol)


def close_gradients(a, b, theta, atol=1e-6):
    "Whether two losses and their gradients in `theta` are the same."
    assert a.item() == pytest.approx(b.item(), abs=10*atol)
    slopes = (torch.autograd.grad(v, theta, retain_graph=True) for v in (a, b))
    for u, v in zip(*slopes): close(u, v, atol)


def round_zero(name, data, **hyper):
    "(federation, network, client) before the first step."
    fed = Federation(name, data, "blended", 2, batch_size=16, **hyper)
    fed.method.setup(fed.server)
    c, net = fed.clients[1], fed.net.eval()
    c.scratch = {}
    fed.method.begin(net, c, fed.method.download(fed.server, c.id))
    return fed, net, c


def one_round(name, data, **hyper):
    "(federation, first downloads, uploads, next downloads), the latter three by client."
    fed, net, _ = round_zero(name, data, **hyper)
    down = {c.id: fed.method.download(fed.server, c.id) for c in fed.clients}
    up = {c.id: client_update(fed.method, net, c, down[c.id], 0) for c in fed.clients}
    return fed, down, up, server_update(fed.method, fed.server, up.items(), 0)


def close_to_mean(then, up, tag):
    "Whether what comes down under a tag is the mean of what went up."
    each = [part(p, tag) for p in up.values()]
    for k in each[0]: close(then[f"{tag}.{k}"], torch.stack([v[k] for v in each]).mean(0))


def by_layers(weights, z, bend):
    "Linear layers of weights and biases, in numpy, with `bend` between them."
    w = [p.detach().numpy() for p in weights]
    for W, b in zip(w[:-2:2], w[1:-2:2]): z = bend(z @ W.T + b)
    return torch.as_tensor(z @ w[-2].T + w[-1])


# DANN

def test_dann_discriminator_in_numpy_and_not_for_an_unseen_client(small):
    fed, net, c = round_zero("dann", small)
    D, z, d = c.scratch["dann"][1], torch.randn(5, net.feature_dim, generator=generator(1)), net.feature_dim
    close(D(z).detach(), by_layers(D.parameters(), z.numpy(), lambda v: np.maximum(v, 0)), 1e-5)
    assert [tuple(p.shape) for p in D.parameters() if p.ndim == 2] == [(256, d), (256, 256), (4, 256)]
    assert same(D.state_dict(), part(fed.method.download(fed.server, c.id), "stats.dann"))
    kinds = lambda k: {q.split(".")[0] for q in fed.method.download(fed.server, k)}
    assert (kinds(c.id), kinds("blended")) == ({"model", "stats", "scalars"}, {"model"})


def test_dann_averages_the_discriminators_that_clients_trained(small):
    fed, down, up, then = one_round("dann", small, local_steps=1)
    assert [int(down[c.id]["scalars.dann.k"]) for c in fed.clients] == [0, 1, 2, 3]
    for c in fed.clients:
        assert same(part(up[c.id], "stats.dann"), c.scratch["dann"][1].state_dict())
        assert not same(part(up[c.id], "stats.dann"), part(down[c.id], "stats.dann"))
        close_to_mean(then[c.id], up, "stats.dann")


# FedSR

def test_fedsr_first_reference_and_labels_as_rows(small):
    fed, net, c = round_zero("fedsr", small, z_dim=6)
    (x, y), gauss, r = c.take(torch.arange(10)), net.features, net.reference
    assert net.feature_dim == 6
    assert [v.detach().unique().tolist() for v in (r.mu, r.raw, r.C)] == [[0.], [1.], [1.]]
    mu, raw = gauss.code(gauss.inner(x)).split(6, 1)
    gauss.train().inner.eval()
    gauss.generator = generator(7)
    close(gauss(x), mu + F.softplus(raw)*torch.randn(10, 6, generator=generator(7)))
    def loss(y):
        gauss.generator = generator(7)
        return fed.method.loss(net, x, y, c).item()
    assert loss(y) == pytest.approx(loss(F.one_hot(y, 10).float()), abs=1e-5)


@pytest.mark.parametrize("form,owner", [("paper", "server"), ("released", "client")])
def test_fedsr_reference_lives_at(form, owner, tiny):
    fed = run("fedsr", tiny, z_dim=2, variant=form, local_steps=1).fed
    c, down = fed.clients[0], fed.method.download(fed.server, fed.clients[0].id)
    fed.method.receive(fed.net, c, down)
    fed.method.begin(fed.net, c, down)
    there = dict(server=part(down, "model.reference"), client=part(c.state, "fedsr"))
    begun = fed.net.reference.state_dict()
    assert {k: same(begun, v) for k, v in there.items()} == {k: k == owner for k in there}


@pytest.mark.parametrize("norm", invariant.L2R)
def test_fedsr_weight_belongs_to_its_norm(norm, small):
    _, net, c = round_zero("fedsr", small, z_dim=512)
    net.features.train().inner.eval()
    x, y = c.take(torch.arange(12))
    def loss(**weight):
        net.features.generator = generator(7)
        return invariant.FedSR(norm=norm, **weight).loss(net, x, y, c).item()
    assert loss() == loss(l2r=invariant.L2R[norm]) > loss(l2r=0.)


# FedIIR

def closed_form(net, x, y):
    "The gradient of the mean cross-entropy in a last linear layer: (weight, bias)."
    with torch.no_grad():
        z = net.features(x)
        d = (net.head(z).softmax(1) - F.one_hot(y, net.n_classes))/len(x)
        return d.T @ z, d.sum(0)


@pytest.mark.parametrize("backbone,agree", [("cnn4", True), ("cnn2", False)])
def test_head_gradients_in_both_modes_agree_without_batchnorm_and_dropout(backbone, agree, small):
    _, net, c = round_zero("fedsb", small, backbone=backbone)
    x, y = c.take(torch.arange(c.n()))
    evaluated = closed_form(net.eval(), x, y)
    if agree:                                                                 # cnn4's head is one linear layer
        found = invariant.mean_head_gradient(net, c.batches("train", 7), c.n())
        for a, b in zip(found.values(), evaluated): close(a, b)
    for m in net.train().modules():                                           # dropout aside, which draws
        if isinstance(m, Dropout): m.eval()
    both = zip(evaluated, closed_form(net, x, y))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in both) == agree


def test_fediir_penalty_is_the_squared_distance_to_the_mean(small):
    _, net, c = round_zero("fedsb", small, backbone="cnn4")
    x, y = c.take(torch.arange(c.n()))
    c.scratch["fediir"] = {k: torch.full_like(v, .01) for k, v in net.head.named_parameters()}
    penalty = sum((g - .01).square().sum() for g in closed_form(net, x, y))
    by_hand = F.cross_entropy(net(x), y) + .5*penalty
    assert invariant.FedIIR(iir_gamma=.5).loss(net, x, y, c).item() == pytest.approx(by_hand.item(), abs=1e-5)


def test_fediir_moving_average_of_two_gatherings():
    m, server = invariant.FedIIR(), SimpleNamespace(state={})
    one = lambda v, n: {"stats.fediir.w": torch.tensor([v]), "scalars.n": torch.tensor(n)}
    m.gather(server, [("a", one(1., 10.)), ("b", one(4., 20.))])                          # mean 3
    m.gather(server, [("a", one(2., 10.)), ("b", one(2., 20.))])                          # mean 2
    assert server.state["fediir.w"].item() == pytest.approx(.95*(.05*3) + .05*2, abs=1e-6)


def test_fediir_offers_the_mean_gradient_before_every_round(small, tiny):
    fed, net, _ = round_zero("fediir", small, backbone="cnn4")
    clients, down = fed.clients, {c.id: fed.method.download(fed.server, c.id) for c in fed.clients}
    offers = {c.id: client_offer(fed.method, net, c, down[c.id], 0) for c in clients}
    exact = [closed_form(net, *c.take(torch.arange(c.n()))) for c in clients]
    for c, (w, b) in zip(clients, exact):
        assert int(offers[c.id]["scalars.n"]) == 48
        close(offers[c.id]["stats.fediir.weight"], w)
        close(offers[c.id]["stats.fediir.bias"], b)
    then = server_gather(fed.method, fed.server, offers.items(), 0)
    fed.method.begin(net, clients[0], then[clients[0].id])
    close(clients[0].scratch["fediir"]["weight"], .05*torch.stack([w for w, _ in exact]).mean(0), 1e-7)
    book = run("fediir", tiny, rounds=3, local_steps=1).ledger
    assert set(book[(book.kind == "stats") & (book.direction == "up")]["round"]) == {1, 2, 3}


# FedADG

def test_fedadg_networks_in_numpy(small):
    fed, net, c = round_zero("fedadg", small, backbone="cnn4")
    (D, _), (G, _), d = c.scratch["adg.D"], c.scratch["adg.G"], net.feature_dim
    z, e = torch.randn(5, d, generator=generator(1)), invariant.tell_labels(torch.arange(5), 10)
    given = torch.randn(5, 74, generator=generator(2))
    close(G(given).detach(), by_layers(G.parameters(), given.numpy(), lambda v: np.maximum(v, 0)), 1e-5)
    first, *rest = D.parameters()
    beside = np.concatenate([z.numpy() @ first.detach().numpy().T, e.numpy()], 1)
    close(D(z, e).detach(), by_layers(rest, beside, lambda v: np.where(v > 0, v, .01*v)).sigmoid(), 1e-5)
    assert [tuple(p.shape) for p in D.parameters()] == [(128, d), (128, 138), (128,), (1, 128), (1,)]
    assert [len(p) for p in G.parameters()] == [2*d, 2*d, d, d]
    assert same(G.state_dict(), part(fed.method.download(fed.server, c.id), "stats.fedadg"))
    y = torch.arange(5)
    close(invariant.tell_labels(y, 10), invariant.tell_labels(F.one_hot(y, 10)*.6 + .04, 10))


def test_fedadg_averages_generators_and_keeps_discriminators(small):
    first = round_zero("fedadg", small, backbone="cnn4")[2].scratch["adg.D"][0].state_dict()
    fed, down, up, then = one_round("fedadg", small, backbone="cnn4", local_steps=2)
    c, net = fed.clients[1], fed.net
    close_to_mean(then[c.id], up, "stats.fedadg")
    assert same(part(up[c.id], "stats.fedadg"), c.scratch["adg.G"][0].state_dict())
    assert not same(part(up[c.id], "stats.fedadg"), part(down[c.id], "stats.fedadg"))
    G = c.scratch["adg.G"][0].state_dict()
    assert {k for k in up[c.id] if k.startswith("stats")} == {f"stats.fedadg.{k}" for k in G}
    left, c.scratch = c.scratch["adg.D"][0].state_dict(), {}
    fed.method.begin(net, c, then[c.id])
    assert same(c.scratch["adg.D"][0].state_dict(), left) and not same(left, first)


def test_fedadg_warm_up_is_a_third_of_the_samples(small):
    fed, net, c = round_zero("fedadg", small, backbone="cnn4")
    seen = []
    for idx in torch.arange(48).split(16):
        before = digest(c.scratch["adg.D"][0].state_dict())
        fed.method.loss(net, *c.take(idx), c)
        seen.append(digest(c.scratch["adg.D"][0].state_dict()) != before)
    assert (c.n(), seen) == (48, [False, True, True])
    for work, samples in ((dict(local_epochs=10), 480), (dict(local_steps=5), 80)):
        assert round_zero("fedadg", small, **work)[2].scratch["adg.warm"] == pytest.approx(.3*samples)


def test_fedadg_as_released_on_batchnorm_by_hand(small):
    "D learns on features in evaluation mode before the pass that records, with its own rate, momentum and decay."
    fed, net, c = round_zero("fedadg", small, adg_warm=0., backbone="cnn2", variant="released")
    h = fed.method.h
    assert (h.adg_mode, h.adg_rate, h.adg_momentum) == ("eval", .7, .9)
    set_generator(net, generator(4)).train()
    x, y = c.take(torch.arange(12))
    D, e, rng = copy.deepcopy(c.scratch["adg.D"][0]), .7*F.one_hot(y, 10), c.rng("fedadg")
    by_hand = torch.optim.SGD(D.parameters(), lr=.7*c.lr, momentum=.9, weight_decay=1e-5)
    for _ in range(2):
        still = copy.deepcopy(net).eval().features(x).detach()
        G = copy.deepcopy(c.scratch["adg.G"][0])
        made = G(torch.cat([torch.randn(12, 64, generator=rng), e], 1)).detach()
        by_hand.zero_grad()
        ((1 - D(made, e)).pow(2).mean() + D(still, e).pow(2).mean()).backward()
        by_hand.step()
        with outputs_of(net.features) as passed: fed.method.loss(net, x, y, c)
        for a, b in zip(c.scratch["adg.D"][0].parameters(), D.parameters()): close(a.detach(), b.detach())
        assert (passed[-1] - still).abs().max() > .1 and all(m.training for m in net.modules())


# RSC

def test_rsc_loss_is_that_of_what_is_left(small):
    fed, net, c = round_zero("rsc", small, backbone="cnn4")
    x, y = c.take(torch.arange(12))
    z, rows = net.features(x), F.one_hot(y, 10).float()
    left = invariant.self_challenge(net.head, z, rows, 1/3, 1/3)
    by_hand = F.cross_entropy(net.head(z*left), y)
    for labels in (y, rows): close_gradients(fed.method.loss(net, x, labels, c), by_hand, list(net.parameters()))
    assert (left.min(1).values == 0).sum().item() == 4
