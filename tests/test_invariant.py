"""Invariant features: beside the authors' updates, in sums, resumed."""
import copy, json
from pathlib import Path
from types import SimpleNamespace
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from fdgnb.methods import invariant
from conftest import bits, run, same_bits
from golden.invariant import BATCH, CMI, EMA, GAMMA, L2R, LAM, inputs, parts, sgd

GOLDEN = json.loads((Path(__file__).parent/"golden"/"invariant.json").read_text())["found"]
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
        offers.append((k, {f"stats.fediir.{q}": v for q, v in g.items()} | {"scalars.fediir.n": n}))
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
