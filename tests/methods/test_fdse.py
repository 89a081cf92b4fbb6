"""FDSE: the two aggregations, who keeps what, sums, switches; its network and its penalty have tests of their own."""
import copy, dataclasses, itertools, math
import pytest
import torch
from torch.testing import assert_close
import fdgnb.models as models
from conftest import bits, broken_off, one_line, run, sized
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.vectors import digest, is_vector, part, tagged
from fdgnb.settings import Settings
from fdgnb.federation.compose import METHODS, hyper_of, method, method_class
from fdgnb.federation.loop import Server
from fdgnb.federation.steps import clip_gradients
from fdgnb.methods import fdse, fdse_penalty
from fdgnb.methods.drift import Scaffold
from fdgnb.methods.fdse import attention, consensus_step, consensus_update, entries, for_unseen, layers
from fdgnb.methods.fdse import min_norm_weights, recall, rows, similarity_aggregate, similarity_step, unrow, without
from fdgnb.methods.fdse_network import decompose, owner
from fdgnb.methods.fdse_penalty import erase, take_statistics
from fdgnb.runs.setup import Federation

CONV1 = "features.conv1.conv"


@pytest.fixture(scope="module")
def trained(tiny): return run("fdse", tiny)


def target_samples(fed): return fed.target_client.splits["target"].samples()


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


def kkt(D):
    "Largest violation of the optimality conditions of Eq. 8, relative to the longest row."
    u, top = min_norm_weights(D), D.double().square().sum(1).max().clamp(min=1e-300)
    p = u @ D.double()
    slack = (D.double() @ p - p @ p)/top
    return max(float(-u.min()), float((u.sum() - 1).abs()), float(-slack.min()), float((u*slack.abs()).max()))


@pytest.mark.parametrize("K,d", [*itertools.product((1, 2, 5, 12, 40), (1, 3, 30, 500))])
def test_min_norm_meets_the_optimality_conditions(K, d):
    "Also for rows that are doubled, opposed, tiny, huge or zero."
    D = torch.randn(K, d, generator=generator(K)) + .25
    for E in (D, D*1e-6, D*1e6, torch.cat([D, D]), torch.cat([D, -D]), torch.cat([D, D[:1]*0])): assert kkt(E) < 1e-7


def test_in_full_conflict_nothing_is_left():
    assert min_norm_weights(torch.tensor([[1., 0], [-1, 0]])).tolist() == [.5, .5]


@pytest.mark.parametrize("K,d", [*itertools.product((1, 2, 4, 9), (1, 2, 7, 200))])
def test_consensus_update_is_the_formula(K, d):
    "It opposes no client; a client that did not move only shortens it."
    g = generator(K)
    D = torch.randn(K, d, generator=g, dtype=torch.float64)*torch.rand(K, 1, generator=g, dtype=torch.float64)*3
    unit = D/D.norm(dim=1, keepdim=True)
    by_paper = D.norm(dim=1).mean()*(min_norm_weights(unit) @ unit)
    assert (unit @ consensus_update(D) >= -1e-9).all()
    assert_close(consensus_update(D), by_paper, atol=1e-9, rtol=1e-7)
    assert_close(consensus_update(torch.cat([D, D[:1]*0])), by_paper*K/(K + 1), atol=1e-9, rtol=1e-7)


def test_consensus_update_at_the_ends():
    assert_close(consensus_update(torch.tensor([[3., 4.]])), torch.tensor([3., 4.]))
    assert consensus_update(torch.tensor([[1e-30, 0.], [0., 1e-30]])).isfinite().all()


# -- layer by layer
def states(n=3):
    "A state of a decomposed cnn2, and states of n clients."
    with seeded(0): start = decompose(models.get("cnn2", 10)).state_dict()
    g = generator(5)
    return start, [{k: v + torch.randn(v.shape, generator=g) for k, v in start.items()} for _ in range(n)]


def test_a_payload_falls_apart_into_its_kinds_and_the_rest():
    start, _ = states(0)
    payload = tagged("model", start) | {"scalars.n": torch.tensor(3.)}
    kinds = "shared", "personal", "statistics", "local"
    assert sum(len(entries(payload, kind)) for kind in kinds) == len(start)
    assert list(without(payload, *kinds)) == ["scalars.n"]


def test_layers_of_a_network_and_back():
    "Three blocks and the head."
    start, _ = states(0)
    shared, personal = (entries(tagged("model", start), kind) for kind in ("shared", "personal"))
    assert [len(layers(s)) for s in (shared, personal)] == [4, 3]
    assert [len(g) for g in layers(personal, "tensor")] == [1]*9
    keys = layers(shared)[0]
    back = unrow(rows([start], keys)[0], keys, start)
    assert all(torch.equal(back[k], start[k]) for k in keys)


@pytest.mark.parametrize("per", ["layer", "tensor"])
def test_both_steps_take_a_layer_as_one_vector(per):
    start, ups = states()
    start = {k: v for k, v in start.items() if owner(k) == "shared"}
    ups = [{k: v for k, v in u.items() if k in start} for u in ups]
    keys = layers(start, per)[0]
    flat = lambda s: torch.cat([s[k].flatten() for k in keys])
    V, was = torch.stack([flat(u) for u in ups]), flat(start)
    new = flat(consensus_step(start, ups, per))
    assert_close(new, was + consensus_update(V - was), rtol=1e-4, atol=1e-5)
    assert_close(flat(similarity_step(ups, .1, per)[1]), similarity_aggregate(V, .1)[1], rtol=1e-4, atol=1e-5)
    assert_close(flat(similarity_step(ups, None, per)[2]), V.mean(0))


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


def test_similarity_by_cosines():
    V = torch.randn(4, 6, generator=generator(0), dtype=torch.float64)
    V[2] = 0
    cosine = lambda i, j: 1. if i == j else 0. if 2 in (i, j) else float(V[i] @ V[j]/(V[i].norm()*V[j].norm()))
    for tau, i in itertools.product((.05, .5, 3.), range(4)):
        e = [math.exp(cosine(i, j)/tau) for j in range(4)]
        assert_close(similarity_aggregate(V, tau)[i], sum(w/sum(e)*v for w, v in zip(e, V)))


def test_parallel_rows_are_averaged_at_every_temperature():
    parallel = torch.tensor([[1., 2.], [3., 6.], [-2., 1.]]).double()
    assert_close(similarity_aggregate(parallel, 1e-4), torch.tensor([[2., 4.], [2., 4.], [-2., 1.]]).double())


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
    again, labels = trained.model, fed.target_client._scored["target"].y
    labels.copy_(labels.flip(0))
    try: fed.method.adapt(again, target_samples(fed), fed.target_client)
    finally: labels.copy_(labels.flip(0))
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in again.state_dict().items())


def test_nothing_to_adapt_to(trained):
    net = trained.model
    before = copy.deepcopy(net.state_dict())
    trained.fed.method.adapt(net, target_samples(trained.fed)[:1], trained.fed.target_client)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_what_the_server_keeps_for_whom():
    "Two clients of three have taken part; for the third, and for a stranger, nothing is kept."
    server = Server({}, "abc")
    for i, v in enumerate((1., 3.)):
        theirs = {"x.dse.weight": torch.tensor([v]), "x.bn_dse.running_mean": torch.tensor([2*v])}
        server.state |= tagged(f"fdse{i}", theirs)
    assert [len(recall(server, k)) for k in "abcd"] == [2, 2, 0, 0]
    assert [v.item() for v in for_unseen(server).values()] == [2., 4.]
    assert list(for_unseen(server, "initial")) == ["x.bn_dse.running_mean"]
    assert for_unseen(Server({}, "a")) == {}


def test_a_client_keeps_its_own_statistics_of_bn_dse(tiny):
    fed = Federation("dse+similarity", tiny, "blended", new_statistics="drawn", adapt_epochs=0)
    c, x = fed.clients[0], tiny["blended"].x

    def received():
        m, down = copy.deepcopy(fed.net), fed.method.download(fed.server, c.id)
        fed.method.receive(m, c, down)
        fed.method.begin(m, c, down)
        return m.train()
    c.round, c.scratch = 1, dict(loss=0.)
    m = received()
    models.set_generator(m, generator(0))
    with torch.no_grad(): m(x.float()/255)
    fed.method.end(m, c)
    c.scratch["loss"] = 0.
    up = fed.method.upload(m, c)
    assert {owner(k) for k in part(up, "model")} == {"shared", "personal", "statistics"}
    assert not part(up, "stats.fdse")
    later = received()
    for k, v in m.state_dict().items(): assert torch.equal(later.state_dict()[k], v) == (owner(k) != "statistics"), k


def test_adaptation_goes_by_the_formula_that_is_set(tiny):
    how = dict(penalty="v2", adapt_epochs=1, adapt_lr=.5, adapt_batch=20)
    fed = Federation("dse+similarity", tiny, "blended", **how)
    c, x, m = fed.clients[0], tiny["blended"].x, copy.deepcopy(fed.net)
    other = copy.deepcopy(m)
    fed.method.adapt(m, x, c)
    erase(other, x, fed.method.hs["similarity"], c.rng("adapt"), fdse_penalty.penalty_v2)
    for k, v in other.state_dict().items(): assert torch.equal(m.state_dict()[k], v), k


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


def test_defaults_of_the_paper():
    "Of A7.4's grids the middle, of Table A6; for the adaptation ours."
    printed = hyper_of(method_class("fdse")())
    numbers = dict(G=2, dw=3, lam=.1, beta=.001, tau=.5, adapt_epochs=5, adapt_lr=.05, adapt_batch=50)
    assert {k: printed[k] for k in numbers} == numbers
