"""Invariant features: golden updates of DANN, RSC, FedSR and FedIIR."""
import copy
from types import SimpleNamespace
import torch
from torch import nn
from fdgnb.core import generator, seeded
from fdgnb.methods import invariant
from golden import invariant as given
from golden.invariant import BATCH, CMI, EMA, GAMMA, L2R, LAM, inputs, sgd
from golden.replay import read

GOLDEN = read("invariant")["found"]
X, Y, _ = inputs()


def parts():
    with seeded(0): return given.parts()


def near(ours, theirs, atol=1e-12):
    "Networks' weights, and tensors, are those of the authors' code."
    ours = [p.detach() for v in ours for p in ([v] if torch.is_tensor(v) else v.parameters())]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.double(), torch.as_tensor(b, dtype=torch.float64), rtol=0, atol=atol)


def network(features, head):
    "What a method's loss asks of a network."
    net = nn.Module()
    net.features, net.head, net.n_classes = features, head, 3
    net.forward = lambda x: net.head(net.features(x))
    return net


def descend(method, net, batches, client, opt):
    "Plain SGD down a method's loss."
    for x, y in batches:
        opt.zero_grad()
        method.loss(net, x, y, client).backward()
        opt.step()


def test_golden_dann():
    "DomainBed lets a batch train D and another the network; shown the same batch twice, that is our step."
    features, head, D, _ = parts()
    client = SimpleNamespace(scratch={"dann": (1, D, sgd(D))})
    descend(invariant.DANN(dann_lam=LAM), network(features, head), [(X[1], Y[1])], client, sgd(features, head))
    near((features, head, D), GOLDEN["dann"])


def test_golden_rsc():
    features, head, _, _ = parts()
    descend(invariant.RSC(rsc_p=1/3, rsc_b=1/3), network(features, head), [(X[0], Y[0])], None, sgd(features, head))
    near((features, head), GOLDEN["rsc"])


def test_golden_fedsr():
    "As released: the plain norm, the scale C in the divergence, the reference trained along."
    features, head, _, code = parts()
    with torch.device("meta"): gauss = invariant.Gaussian(features, 3, 3)
    gauss.inner, gauss.code = features, code
    net = network(gauss, head)
    net.reference = r = invariant.Reference(3, 3).double()
    method, opt = invariant.FedSR(l2r=L2R, cmi=CMI, z_dim=3, variant="released"), sgd(features, code, head, r)
    for _ in range(2):
        gauss.generator = generator(0).manual_seed(5)
        descend(method, net, [(X[0], Y[0])], None, opt)
    near((features, code, head, r.mu, r.raw, r.C), GOLDEN["fedsr"], 1e-9)


def test_golden_fediir():
    "A round of two clients: offers, the mean with its moving average, and the clients' steps."
    features, head, _, _ = parts()
    method, net = invariant.FedIIR(iir_gamma=GAMMA, iir_ema=EMA), network(features, head)
    server = SimpleNamespace(state={})
    batches = [list(zip(X[k].split(BATCH), Y[k].split(BATCH))) for k in range(2)]
    def offer(k):
        g = invariant.mean_head_gradient(net, batches[k], len(X[k]))
        return {f"stats.fediir.{q}": v for q, v in g.items()} | {"scalars.n": torch.tensor(float(len(X[k])))}
    method.gather(server, [(k, offer(k)) for k in range(2)])
    mean = {q: server.state[f"fediir.{q}"] for q in ("weight", "bias")}
    near(mean.values(), GOLDEN["fediir"]["mean"])
    for k in range(2):
        own = network(copy.deepcopy(features), copy.deepcopy(head))
        descend(method, own, batches[k], SimpleNamespace(scratch={"fediir": mean}), sgd(own.features, own.head))
        near((own.features, own.head), GOLDEN["fediir"]["clients"][k])
