"""FDSE: decomposition of every backbone, the two aggregations, the penalty, who owns what, newcomers, workers, resume, switches, bad values."""
import copy, dataclasses, itertools
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
import fdgnb
import fdgnb.models as models
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.vectors import part
from fdgnb.federation.compose import METHODS
from fdgnb.runs.setup import Federation
from fdgnb.vectors import digest
from fdgnb.methods import fdse
from fdgnb.methods.fdse import DSEBlock, attention, blocks, consensus_update, consistency_loss, decompose, erase, min_norm_weights, owner, shared_statistics, similarity_aggregate, tapped


def run(data, name="fdse", **kw):
    return fdgnb.fit(name, data, **dict(target="blended", rounds=2, lr=.05, batch_size=16, eval_every=0, progress=False) | kw)


def bits(r):
    states = {"server": r.fed.server.state} | {c.id: c.state for c in r.fed.clients}
    return digest({f"{o}.{k}": v for o, s in states.items() for k, v in s.items() if torch.is_tensor(v)})


@pytest.fixture(scope="module")
def tiny(small):
    sizes = dict(optical=60, inked=30, rendered=45, blended=40)
    return dataclasses.replace(small, domains={k: type(small[k])(k, small[k].x[:n], small[k].y[:n]) for k, n in sizes.items()})


@pytest.fixture(scope="module")
def trained(tiny): return run(tiny)


# -- decomposition
@pytest.mark.parametrize("name", models.MODELS.names())
def test_every_backbone(name):
    "Splits, keeps the shape of what it puts out and its number of features, loses parameters, and every entry has an owner."
    build = models.MODELS.get(name)
    with torch.device("meta"), seeded(0):
        plain, split = models.get(name, 10, build.input[0]).eval(), decompose(models.get(name, 10, build.input[0])).eval()
        x = torch.zeros(2, *build.input)
        assert split(x).shape == plain(x).shape and split.features(x).shape == plain.features(x).shape
    assert len(blocks(split)) > 0 and models.n_parameters(split) < models.n_parameters(plain)
    kinds = [owner(k) for k in split.state_dict()]
    assert kinds.count("personal") == 3*len(blocks(split)) and kinds.count("local") == 3*len(blocks(split))
    last = list(split.head.modules())[-1]                                      # the last layer stays what it was
    assert isinstance(last, nn.Linear) and last.out_features == 10


def test_parameter_counts():
    "Table 4: 1.30e7 for AlexNet, 0.65e7 for FDSE's; DSEBlock by counting."
    with torch.device("meta"), seeded(0): counts = [models.n_parameters(m) for m in (models.get("alexnet_bn", 10), decompose(models.get("alexnet_bn", 10)))]
    assert [round(n/1e7, 2) for n in counts] == [1.30, .65]
    for S, T, k, G, dw in [(3, 64, 5, 2, 3), (4, 9, 3, 2, 3), (5, 10, 3, 4, 1)]:
        T1 = -(-T//G)
        with torch.device("meta"), seeded(0): b = DSEBlock(S, T, k, G=G, dw=dw)
        assert models.n_parameters(b) == T1*(S*k*k + 1) + 2*T1 + T1*(G - 1)*dw*dw + 2*T


def test_identity_half():
    "The first T1 channels that reach BN_DFE are what the extractor and BN_DSE give; zero erasers leave nothing else."
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
    assert torch.equal(split.features.conv1.conv.dfe.weight, plain.features.conv1.conv.weight[:32])
    assert torch.equal(split.head.fc1.fc.dfe.bias, plain.head.fc1.fc.bias[:50]) and torch.equal(split.head.fc2.weight, plain.head.fc2.weight)


def test_resnet_blocks_keep_the_rest():
    with seeded(0): plain = models.get("resnet18", 10)
    with seeded(1): split = decompose(copy.deepcopy(plain))
    a, b = plain.state_dict(), split.state_dict()
    gone = [k for k in a if k not in b]
    assert all(".conv2." in k or ".bn2." in k for k in gone) and all(torch.equal(v, b[k]) for k, v in a.items() if k in b)


@pytest.mark.parametrize("bad", [dict(G=1), dict(dw=2), dict(dw=0)])
def test_bad_block(bad):
    with pytest.raises(FdgnbError, match="DSEBlock needs G of at least 2 and an odd dw"): DSEBlock(3, 8, 3, **bad)


def test_nothing_to_decompose():
    with seeded(0), pytest.raises(FdgnbError, match="nothing to decompose"): decompose(nn.Sequential(nn.Linear(4, 4)))


def test_function_of_the_identity_half_is_preserved():
    "In evaluation mode the first channels of a block are the old layer's: filters and BatchNorm are taken over."
    with seeded(0): conv, bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var): v.uniform_(.5, 2, generator=generator(1))
    x = torch.randn(4, 3, 9, 9, generator=generator(2))
    expected = bn.eval()(conv(x)).relu()[:, :4]
    with seeded(1): split = decompose(nn.Sequential(conv, bn, nn.ReLU())).eval()
    assert len(split) == 1 and len(blocks(split)) == 1
    assert_close(split(x)[:, :4]*(1 + 1e-5)**.5, expected)


@pytest.mark.parametrize("layers,left", [((nn.Conv2d(3, 8, 3), nn.ReLU(), nn.GroupNorm(2, 8)), [DSEBlock, nn.GroupNorm]), ((nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), [DSEBlock, nn.Linear]),
                                         ((nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, groups=2), nn.BatchNorm2d(4)),
                                          [DSEBlock, nn.MaxPool2d, nn.Conv2d, nn.BatchNorm2d])])
def test_what_a_run_is(layers, left):
    "BatchNorm and ReLU go with the layer, other norms and poolings stay, grouped convolutions and outputs are not split."
    with seeded(0): split = decompose(nn.Sequential(*copy.deepcopy(layers)))
    assert [type(m) for m in split] == left
    assert isinstance(blocks(split)[0].relu, nn.ReLU) == isinstance(layers[1], nn.ReLU)


# -- Eq. 8
def objective(D, u): return float((u @ D).square().sum())


@pytest.mark.parametrize("K,d,seed", list(itertools.product((2, 4, 7), (2, 5, 60), (0, 1))))
def test_min_norm_against_slsqp(K, d, seed):
    from scipy.optimize import minimize
    D = torch.randn(K, d, generator=generator(seed), dtype=torch.float64) + .4
    G = (D @ D.T).numpy()
    free = minimize(lambda u: u @ G @ u, [1/K]*K, jac=lambda u: 2*G @ u, bounds=[(0, 1)]*K, method="SLSQP",
                    constraints=dict(type="eq", fun=lambda u: u.sum() - 1), options=dict(ftol=1e-14, maxiter=500))
    u = min_norm_weights(D)
    assert u.shape == (K,) and u.min() >= 0 and abs(float(u.sum()) - 1) < 1e-12
    assert objective(D, u) <= free.fun + 1e-9 and abs(objective(D, u) - free.fun) < 1e-5*max(1., free.fun)


@pytest.mark.parametrize("K", (2, 3))
def test_min_norm_against_brute_force(K):
    n = 400
    grid = torch.tensor([c for c in itertools.product(range(n + 1), repeat=K - 1) if sum(c) <= n], dtype=torch.float64)/n
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    for seed in range(8):
        D = torch.randn(K, 3, generator=generator(seed), dtype=torch.float64) + .5
        best = float((grid @ D).square().sum(1).min())
        assert best - 1e-3*D.square().sum() <= objective(D, min_norm_weights(D)) <= best + 1e-12


def test_min_norm_duplicates_and_zeros():
    D = torch.randn(3, 4, generator=generator(0), dtype=torch.float64) + .5
    value = objective(D, min_norm_weights(D))
    twice = torch.cat([D, D])
    assert abs(objective(twice, min_norm_weights(twice)) - value) < 1e-12              # duplicates change nothing
    assert objective(torch.cat([D, D[:1]*0]), min_norm_weights(torch.cat([D, D[:1]*0]))) < 1e-20      # the hull now holds 0
    assert_close(min_norm_weights(torch.zeros(4, 3)), torch.full((4,), .25, dtype=torch.float64))
    assert objective(torch.cat([D, -D]), min_norm_weights(torch.cat([D, -D]))) < 1e-12
    assert min_norm_weights(D[:1]).tolist() == [1.]


def test_consensus_update_scales():
    D = torch.randn(4, 9, generator=generator(0), dtype=torch.float64) + .3
    p = consensus_update(D)
    assert_close(consensus_update(5*D), 5*p)                                           # homogeneous of degree one
    s = torch.tensor([2., 1., .5, 4.], dtype=torch.float64)[:, None]
    q = consensus_update(s*D)                                                          # lengths change the length only
    assert_close(q/q.norm(), p/p.norm(), rtol=1e-6, atol=1e-8)
    assert_close(q.norm()/p.norm(), (s*D).norm(dim=1).mean()/D.norm(dim=1).mean(), rtol=1e-6, atol=1e-8)
    assert (D @ p >= -1e-12).all()
    same = D[:1].repeat(3, 1)
    assert_close(consensus_update(same), D[0])                                         # agreement: the common update
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
        assert A.isfinite().all() and (A >= 0).all() and torch.allclose(A.sum(1), torch.ones(4, dtype=torch.float64))
        assert_close(A[1], torch.softmax(torch.tensor([0., 1, 0, 0], dtype=torch.float64)/tau, 0))
    assert torch.equal(similarity_aggregate(torch.zeros(3, 2), .5), torch.zeros(3, 2))
    assert_close(attention(V*torch.tensor([3., 1, .1, 7])[:, None], .3), attention(V, .3))     # cosines do not see lengths


# -- Eqs. 4 to 7
def random_stats(seed, dims=(3, 5)):
    g = generator(seed)
    return [(torch.randn(d, generator=g, dtype=torch.float64), torch.rand(d, generator=g, dtype=torch.float64)) for d in dims]


def test_only_the_batch_carries_gradient():
    batch, running, target = ([tuple(t.requires_grad_() for t in s) for s in random_stats(i)] for i in range(3))
    loss, now = consistency_loss(batch, running, [tuple(t.detach() for t in s) for s in target], .9, .5)
    loss.backward()
    assert all(t.grad is not None and t.grad.abs().max() > 0 for s in batch for t in s)
    assert all(t.grad is None for s in running for t in s) and not any(t.requires_grad for s in now for t in s)


def test_at_the_start_of_a_round_it_is_the_distance_of_the_batch():
    "Running statistics that start at the target: the penalty is (1-gamma)^2 times the batch's own distance."
    batch, target = random_stats(0), random_stats(1)
    assert_close(consistency_loss(batch, target, target, .9, .5)[0], .01*consistency_loss(batch, batch, target, 0., .5)[0])


def test_a_step_on_the_penalty_alone_brings_the_batch_nearer():
    with seeded(0): net = decompose(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6))).double()
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


# -- who keeps what
def test_local_statistics_stay_and_shared_ones_are_averaged(tiny):
    "BN_DSE's statistics never come back from the server; BN_DFE's are the uniform mean of the uploads."
    seen = {}

    class Spy(METHODS.get("fdse")):
        def aggregate(self, server, uploads):
            seen["ups"] = list(uploads); super().aggregate(server, iter(seen["ups"]))
    METHODS["spy"] = Spy
    try: r = run(tiny, "spy")
    finally: del METHODS["spy"]
    server = r.fed.server
    for c in r.fed.clients:
        assert not [k for k in r.fed.method.download(server, c.id) if owner(k) == "local"]
        mine = part(c.state, "fdse")
        assert mine and all(owner(k) == "local" for k in mine)
        state = r.model_of(c.id).state_dict()
        assert all(torch.equal(state[k], v) for k, v in mine.items())
    means = [part(c.state, "fdse")["features.conv1.conv.bn_dse.running_mean"] for c in r.fed.clients]
    assert not torch.equal(means[0], means[1])
    for k, v in server.model.items():
        if owner(k) == "statistics" and v.is_floating_point():
            assert_close(v, torch.stack([u[f"model.{k}"] for _, u in seen["ups"]]).mean(0), rtol=1e-5, atol=1e-6)
    assert not [k for _, u in seen["ups"] for k in u if k.startswith("model.") and owner(k) == "local"]


def test_personal_parameters_are_mixed_and_given_back(tiny, trained):
    fed = trained.fed
    mine = [fed.method.download(fed.server, c.id)["model.features.conv1.conv.dse.weight"] for c in fed.clients]
    assert len({digest({"": m}) for m in mine}) == len(mine)
    apart, off = run(tiny, tau=0.).fed.server.state, run(tiny, B=False).fed.server.state
    assert apart.keys() == off.keys() and all(torch.equal(v, off[k]) for k, v in apart.items())          # tau = 0 is B off


def test_a_newcomer_starts_from_the_means(tiny, trained):
    fed = trained.fed
    new, first = fed.method.download(fed.server, "blended"), Federation("fdse", tiny, "blended").net.state_dict()
    for k in first:
        if owner(k) in ("personal", "local") and first[k].is_floating_point():
            assert_close(new[f"model.{k}"], torch.stack([fed.method.kept(fed.server, c.id)[k] for c in fed.clients]).mean(0), rtol=1e-4, atol=1e-6)
    other = run(tiny, new_eraser="initial").fed
    new = other.method.download(other.server, "blended")
    assert all(torch.equal(new[f"model.{k}"], v) for k, v in first.items() if owner(k) == "personal")


def test_without_uploaded_statistics(tiny):
    r = run(tiny, new_statistics="target")
    assert "stats" not in set(r.ledger.kind)
    assert not [k for c in r.fed.clients for k in r.fed.method.kept(r.fed.server, c.id) if owner(k) == "local"]
    adapted = copy.deepcopy(r.model)
    r.fed.method.adapt(adapted, r.fed.target_client.samples("target"), r.fed.target_client)
    assert not torch.equal(adapted.state_dict()["features.conv1.conv.bn_dse.running_mean"], r.model.state_dict()["features.conv1.conv.bn_dse.running_mean"])


def test_adaptation_moves_only_the_erasers(trained):
    "Algorithm 3: personal parameters and BN_DSE's statistics move, nothing else; labels are not even passed."
    fed, net = trained.fed, trained.model
    before = copy.deepcopy(net.state_dict())
    fed.method.adapt(net, fed.target_client.samples("target"), fed.target_client)
    moved = {owner(k) for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"personal", "local"} and not net.training
    again = trained.model
    labels = fed.target_client.splits["target"][1]
    labels.copy_(labels.flip(0))
    try: fed.method.adapt(again, fed.target_client.samples("target"), fed.target_client)
    finally: labels.copy_(labels.flip(0))
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in again.state_dict().items())


def test_nothing_to_adapt_to(trained):
    net = trained.model
    before = copy.deepcopy(net.state_dict())
    trained.fed.method.adapt(net, trained.fed.target_client.samples("target")[:1], trained.fed.target_client)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# -- runs
@pytest.mark.parametrize("h", [dict(), dict(variant="released"), dict(drops=((2, "inked"),)), dict(penalty="v1"), dict(per_round=2)])
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run(tiny, workers=1, **h), run(tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows


@pytest.mark.parametrize("h", [dict(), dict(variant="released")])
def test_resume(tiny, tmp_path, h):
    "Broken off after two of three rounds, the run goes on with the same erasers and statistics."
    cls = METHODS.get("fdse")
    whole = run(tiny, rounds=3, **h)

    class Stop(Exception): pass

    class Breaks(cls):
        armed = True
        def finish(self, server):
            super().finish(server)
            if server.round == 2 and Breaks.armed: raise Stop
    METHODS["fdse"] = Breaks
    try:
        with pytest.raises(Stop): run(tiny, rounds=3, out=tmp_path, **h)
        Breaks.armed = False
        again = run(tiny, rounds=3, out=tmp_path, **h)
    finally: METHODS["fdse"] = cls
    assert bits(again) == bits(whole) and again.rows == whole.rows


def test_switches(tiny, trained):
    "A, B and C each change the run; with all of them off and the erasers averaged it is FedAvg on the decomposed network (equal sizes)."
    assert len({bits(run(tiny, name, **h)) for name, h in fdse.ABLATION.values()} | {bits(trained)}) == len(fdse.ABLATION) == 5
    assert bits(run(tiny, lam=0.)) == bits(run(tiny, C=False))
    even = dataclasses.replace(tiny, domains={k: type(tiny[k])(k, tiny[k].x[:30], tiny[k].y[:30]) for k in tiny.names})
    a, b = run(even, "dse").fed.server.model, run(even, A=False, B=False, C=False, without_B="mean").fed.server.model
    assert all(torch.equal(v, b[k]) for k, v in a.items() if owner(k) != "local")


def test_variants(tiny, trained):
    cls = METHODS.get("fdse")
    printed, released = cls().h, cls(variant="released").h
    assert (printed.inner, printed.shift, printed.penalty, printed.per, printed.beta) == (True, False, "squared", "layer", .001)
    assert (released.inner, released.shift, released.penalty, released.per, released.beta, released.lam, released.tau) == (False, True, "v2", "tensor", .1, .01, .5)
    assert cls(variant="released", penalty="squared").h.penalty == "squared"
    back = {f.name: getattr(printed, f.name) for f in dataclasses.fields(printed) if f.name != "variant"}
    assert bits(run(tiny, variant="released", **back)) == bits(trained)               # every switch turned back is the paper's form
    assert bits(run(tiny, variant="released")) != bits(trained)


def test_differences():
    "Every entry is a run that can start; all but the controls differ from the first in one hyper-parameter, or in the variant."
    labels = list(fdse.DIFFERENCES)
    assert labels[0] == "as printed" and fdse.DIFFERENCES["as printed"] == ("fdse", {})
    for label, (name, h) in fdse.DIFFERENCES.items():
        settings = {f.name for f in dataclasses.fields(fdgnb.federation.Settings)}
        METHODS.get(name)(**{k: v for k, v in h.items() if k not in settings})
        assert len(h) == (2 if "latest" in label else 1) or not h


@pytest.mark.parametrize("bad,says", [(dict(tau=-1.), "tau=-1.0 is out of range"), (dict(penalty="v3"), "did you mean"), (dict(variant="papers"), "did you mean 'paper'"),
                                      (dict(lamb=1.), "did you mean 'lam'"), (dict(G=1), "G=1 is out of range"), (dict(dw=2), "odd dw"), (dict(per="layers"), "did you mean 'layer'"),
                                      (dict(A="yes"), "A='yes': expected True or False")])
def test_bad_hyper(tiny, bad, says):
    with pytest.raises(FdgnbError, match=says) as e: run(tiny, **bad)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["fdse+labelsmoothing", "fdse+budget", "dse+ga"])
def test_composes(tiny, name):
    r = run(tiny, name, **(dict(S=16) if "budget" in name else {}))
    assert all(v.isfinite().all() for v in r.fed.server.model.values())
    assert bits(r) == bits(run(tiny, "+".join(reversed(name.split("+"))), **(dict(S=16) if "budget" in name else {})))


def test_clash():
    with pytest.raises(FdgnbError, match="cannot be combined"): fdgnb.federation.method_class("fdse+dse")


def test_public_names():
    for name in ("DSEBlock", "decompose", "consistency_loss", "min_norm_weights", "consensus_update", "similarity_aggregate"): assert hasattr(fdse, name)
