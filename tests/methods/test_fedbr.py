"""FedBR: every switch, the pseudo-data's way through a run, workers, resume, sums; its functions by themselves."""
import copy, math
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import bits, broken_off, run as short_run
from fastcore.test import test_close as close
from torch import nn
import fdgnb.methods.fedbr as fedbr
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.data.catalogue import get_dataset
from fdgnb.data.domain import Dataset, Domain, to_float
from fdgnb.federation.compose import METHODS, hooks_of, method, method_class
from fdgnb.federation.loop import Client, Method, Server, client_update, server_update, weigh
from fdgnb.federation.steps import descend
from fdgnb.federation.toys import same
from fdgnb.methods.fedbr import ABLATIONS, DIFFERENCES, FedBR, FedBRHyper, ascend, aside, contrast, contrastive_loss
from fdgnb.methods.fedbr import full_batches, global_features, mix_pairs, mixup_draw, projection, pseudo_features
from fdgnb.methods.fedbr_pseudo import arrive, ask, fit_to, mean_indices, mixture, pool_means, proxy_means
from fdgnb.methods.fedbr_pseudo import pseudo_batch, random_sample_mean, renew, strengths
from fdgnb.models import Dropout, Net, set_generator
from fdgnb.settings import Settings, make, switches
from fdgnb.vectors import scalar, tagged


def data(n=20, names=("a", "b", "t"), size=16):
    g, domains = generator(3), {}
    for i, name in enumerate(names):
        y = torch.arange(n - 5*(name == "b")) % 3                  # b has fewer: n_k and equal weights differ
        x = torch.randint(0, 60, (len(y), 3, size, size), generator=g)
        for j, c in enumerate(y): x[j, :, 5*c:5*c + 5, 3:12] += 120 + 20*i
        domains[name] = Domain(name, x.to(torch.uint8), y)
    return Dataset("toy", domains, ["0", "1", "2"], defaults=dict(backbone="cnn2"))


def run(name="fedbr", d=None, **kw):
    usual = dict(target="t", rounds=3, lr=.02, batch_size=8, eval_every=3, workers=1)
    return short_run(name, d or data(), **usual | kw)


def images(r):
    "{(round, direction): bytes of images}"
    return r.ledger.query("kind == 'images'").groupby(["round", "direction"]).bytes.sum().to_dict()


SWITCHES = [dict(component1=False), dict(component2=False), dict(max_step=False), dict(projection=False),
            dict(refresh="once"), dict(pseudo="mixture"), dict(pseudo="mixture", K=0),
            dict(pseudo="mixture", reference="first"), dict(pseudo="mixture", K=2, refresh="once"),
            dict(similarity="multiply"), dict(width="features"), dict(statistics="kept"),
            dict(statistics="running"), dict(average="uniform"), dict(first="each"), dict(mixup=True),
            dict(begins="before"), dict(means="replacement"), dict(pseudo="mixture", partners="batch"),
            dict(statistics="kept", order="pseudo"), dict(first_round="step"), dict(batches="replacement"),
            dict(variant="released"), dict(variant="released", pseudo="mixture", mixup=True),
            dict(variant="released", pseudo="mixture"), dict(m=100), dict(normalize="half", pseudo="mixture"),
            dict(clip=1.)]


@pytest.fixture(scope="module")
def usual_bits(): return bits(run())


@pytest.mark.parametrize("switch", SWITCHES, ids=str)
def test_every_switch_is_finite_and_does_something(switch, usual_bits):
    r = run(**switch)
    assert r.history.value.map(lambda v: v == v and abs(v) < 1e6).all()
    assert bits(r) != usual_bits


def test_names_are_checked():
    with pytest.raises(FdgnbError, match="did you mean 'once'"): run(refresh="onec")
    with pytest.raises(FdgnbError, match="lam=-1"): run(lam=-1)
    with pytest.raises(FdgnbError, match="unknown"): run(pseudo="mixture", proxy="digitz")


WAYS = [{}, dict(refresh="once"), dict(pseudo="mixture")]


@pytest.mark.parametrize("switch", [*WAYS, dict(variant="released")], ids=str)
def test_workers_do_not_change_a_bit(switch):
    a, b = run(**switch), run(workers=2, **switch)
    assert bits(a) == bits(b) and a.rows == b.rows


@pytest.mark.parametrize("switch", WAYS, ids=str)
def test_resume_keeps_the_pseudo_data(switch, tmp_path, monkeypatch):
    whole = run(**switch)
    broken_off(monkeypatch, 2, lambda: run(out=tmp_path, **switch))
    again = run(out=tmp_path, **switch)
    assert bits(again) == bits(whole) and again.book.rows == whole.book.rows
    assert "fedbr.pool" in again.fed.server.state
    if switch.get("refresh") == "once": assert all("fedbr.pool" in c.state for c in again.fed.clients)


def test_the_ledger_shows_the_images():
    one = 3*16*16*4
    each = {(r, "up"): 8*one for r in (1, 2, 3)} | {(r, "down"): 16*one for r in (2, 3)}
    assert images(run()) == each
    assert images(run(refresh="once")) == {(1, "up"): 8*one, (2, "down"): 16*one}
    assert {d for _, d in images(run(pseudo="mixture"))} == {"down"}      # a proxy: no client's image goes up
    assert not images(run(component1=False, component2=False))


def test_once_reaches_those_who_come_late():
    r = run(refresh="once", rounds=4, drops=((1, "b"), (2, "b")))
    assert [k for k in images(r) if k[1] == "down"] == [(2, "down"), (3, "down")]   # a, then b
    assert all("fedbr.pool" in c.state for c in r.fed.clients)


def test_neutral_is_fedavg():
    avg = run("fedavg").fed.server.model
    for kw in (dict(lam=0., mu=0.), dict(component1=False, component2=False), dict(lam=1e-30, mu=1e-30)):
        m = run(**kw).fed.server.model
        assert all(torch.equal(m[k], v) for k, v in avg.items()), kw
    kept = run(lam=1e-30, mu=1e-30, statistics="kept").fed.server.model
    assert not all(torch.equal(kept[k], v) for k, v in avg.items())


def conv(r): return r.fed.server.model["features.conv1.conv.weight"]


def test_first_weights_of_their_own_move_one_draw():
    "The first average is the server's draw and the clients' mean update: as widely spread as one draw."
    still = dict(lr=0., rounds=1)
    one, moved = run(**still), run(**still, first="each")
    assert torch.allclose(conv(moved), conv(one), atol=1e-6), "lr 0: nobody moves, so the server's draw stays"
    assert conv(run(rounds=1, first="each")).std() > .9*conv(one).std()


def test_clients_draw_for_themselves_once():
    "In round 1 every client starts from another network, in round 2 all from the average; the unseen never."
    r = run(rounds=1, first="each")
    m, server = r.fed.method, r.fed.server
    m.setup(server)
    a, b, unseen = (m.download(server, k)["model.features.conv1.conv.weight"] for k in ("a", "b", "t"))
    assert not torch.equal(a, b) and not torch.equal(a, unseen)


def test_pseudo_data_before_the_first_step():
    "As released the first round is not FedAvg's, and the images pass before it: up, then down, and no more."
    plain, early = run(component1=False, component2=False, rounds=1), run(begins="before", rounds=1)
    assert not torch.equal(conv(plain), conv(early)) and torch.equal(conv(plain), conv(run(rounds=1)))
    one = 3*16*16*4
    once = run(begins="before", refresh="once")
    assert images(once) == {(1, "up"): 8*one, (1, "down"): 16*one}
    assert images(run(variant="released")) == {(1, "up"): 8*one, (1, "down"): 16*one}


def test_nobody_is_asked_for_an_offer_in_vain():
    "With per_round=1 a printed run sends the model to the one drawn, and to no one before the first round."
    down = run(per_round=1, rounds=1).ledger.query("direction == 'down' and kind == 'model'")
    assert len(down) == 1


def test_means_are_of_a_client_at_random():
    r = run(means="replacement", rounds=1)
    asked = [ask(r.fed.method.h, r.fed.server, k) for k in ("a", "b", "t")]
    assert sum(asked) == 8 and asked[2] == 0


def test_batches_with_replacement_are_full():
    class Seen(METHODS.get("fedbr")):
        def step(self, model, x, y, client):
            seen.append((client.id, client.round, len(x)))
            return super().step(model, x, y, client)
    seen = []
    run(Seen, batches="replacement", rounds=1)
    assert {n for _, _, n in seen} == {8} and [k for k, _, _ in seen] == ["a", "a", "b"]
    seen = []
    run(Seen, variant="released", rounds=2)
    assert [r for k, r, _ in seen if k == "a"] == [0, 1, 1], "the first round is one step"


def test_partners_of_a_mixture_are_of_the_batch():
    x, y = torch.arange(20.)[:, None]*torch.ones(1, 3), torch.arange(20) % 4
    client, net = Client("a", dict(train=(x, y))), torch.nn.Module()
    net.n_classes = 4
    client.scratch = {"fedbr.xp": torch.zeros(50, 3), "fedbr.rng": generator(0)}
    def partners(**h):
        xp, _ = pseudo_batch(FedBR(pseudo="mixture", **h).h, net, x[3:5], y[3:5], client)
        return {v for v in (2*xp[:, 0]).tolist()}
    assert partners(partners="batch") == {3., 4.} and len(partners()) > 10


def test_mixup():
    "One share for the whole batch; labels are distributions; without components it is FedAvg + Mixup."
    x, y = torch.rand(6, 3, generator=generator(0)), torch.arange(6) % 3
    share, order = mixup_draw(6, generator(1))
    a, q = mix_pairs(x, y, 3, share, order)
    want = share*F.one_hot(y, 3) + (1 - share)*F.one_hot(y[order], 3)
    assert torch.allclose(q, want.float()) and torch.allclose(a, share*x + (1 - share)*x[order])
    off = dict(component1=False, component2=False)
    assert bits(run(**off, mixup=True)) != bits(run(**off))


def test_min_player_cannot_move_the_projection():
    start = run(rounds=1).fed.server.model
    still, moves = run(max_step=False).fed.server.model, run().fed.server.model
    for k in (k for k in start if k.startswith("projection.")):
        assert torch.equal(still[k], start[k]) and not torch.equal(moves[k], start[k])


def test_sums():
    @method("zz_shift")
    class Shift(Method):
        "Mirrors the batch."
        def batch(self, x, y, client, rng): return super().batch(x.flip(-1), y, client, rng)
    try:
        assert not any(hooks_of(METHODS.get("fedbr")).values()), "FedBR claims a hook"
        a, b = run("fedbr+zz_shift"), run("zz_shift+fedbr")
        assert bits(a) == bits(b) != bits(run())
    finally: del METHODS["zz_shift"]


@pytest.mark.parametrize("other", ["labelsmoothing", "ga"])
def test_sums_with_real_methods(other):
    a, b = run(f"fedbr+{other}", rounds=2), run(f"{other}+fedbr", rounds=2)
    assert bits(a) == bits(b) and a.rows == b.rows
    assert bits(a) not in (bits(run(rounds=2)), bits(run(other, rounds=2)))


def test_rows_of_the_tables_are_names():
    for name, h in {**ABLATIONS, **DIFFERENCES}.values(): method_class(name)(**h)
    assert next(iter(DIFFERENCES)) == "as printed" and DIFFERENCES["as printed"] == ("fedbr", {})


@pytest.mark.parametrize("players", [dict(), dict(similarity="multiply"), dict(projection=False)], ids=str)
def test_signs_of_the_players(players):
    "A max step raises L_con for the projection's sake; the features' gradient, followed down, lowers it."
    h, x, y = FedBR(**players).h, torch.randn(8, 5, generator=generator(1)), torch.zeros(8, dtype=torch.long)
    client, net = Client("a", dict(train=(x, y))), torch.nn.Module()
    with seeded(0): net.projection = projection(5, 16, 8).requires_grad_(False)
    z, zp, zg = (torch.randn(8, 5, generator=generator(i)).requires_grad_() for i in (2, 3, 4))
    loss = lambda *a: contrast(h, net, *a, zg.detach(), client)
    before = loss(z, zp)
    ascend(net.projection, lambda: loss(z.detach(), zp.detach()), .1) if h.projection else None
    middle = loss(z, zp)
    assert (middle > before) == h.projection
    by_z, by_zp = torch.autograd.grad(middle, (z, zp))
    assert loss(z - .1*by_z, zp - .1*by_zp) < middle
    assert all(not p.requires_grad for p in net.projection.parameters())


def test_functions():
    x = torch.rand(9, 2, generator=generator(0))
    assert random_sample_mean(x, 4, 5, generator(1)).shape == (5, 2)
    assert torch.allclose(random_sample_mean(x, 9, 1, generator(1))[0], x.mean(0))
    xt, q = mixture(x[:2], x[2:4], torch.tensor([0, 1]), 4)
    assert torch.allclose(xt, (x[:2] + x[2:4])/2)
    assert torch.allclose(q.sum(1), torch.ones(2)) and q[0, 0] == .625
    a, g, l = (torch.randn(6, 3, generator=generator(i)) for i in range(3))
    cosines = torch.stack([F.cosine_similarity(a, g), F.cosine_similarity(a, l)], 1)
    want = F.cross_entropy(cosines/.5, torch.zeros(6, dtype=torch.long))
    assert torch.allclose(contrastive_loss(a, g, l, .5, .5), want)
    assert torch.allclose(contrastive_loss(a, g, l, 2., 2., "multiply"), want)  # times 2 is divided by a half


# two clients in the plane, two classes each

CENTERS = torch.tensor([[-1., 1.], [1., 1.], [-1., -1.], [1., -1.]])


def corners(classes, n=60, seed=0):
    "n points of each class, normal around its corner: x (N, 2), y (N,)."
    g = generator(seed, purpose=f"corners {classes}")
    y = torch.tensor(classes).repeat_interleave(n)
    return CENTERS[y] + .28*torch.randn(len(y), 2, generator=g), y


def toy_net(seed=0):
    "2 -> 32 -> 2 features, then a linear head of four classes."
    with seeded(seed):
        features = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        return Net("toy", features, nn.Linear(2, 4), 2, 4, 2)


def descended(net, x, y, steps, lr=.3):
    "A copy of `net` after full-batch gradient steps on the cross-entropy."
    net = copy.deepcopy(net).requires_grad_(True)
    opt = torch.optim.SGD(net.parameters(), lr)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return net.requires_grad_(False)


X1, Y1 = corners([0, 1])
START = toy_net(1)


def hyper(**h): return make(FedBRHyper, h, "hyper-parameter")


def normal(seed, n=9, d=5): return torch.randn(n, d, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", [2, 3])
def test_pitfalls_on_four_corners(seed):
    "Local training forgets the other classes, moves features, and lets unseen classes fall onto its own."
    x, y = corners([0, 1, 2, 3], seed=seed)
    net = descended(toy_net(seed), x, y, 15)
    both, one = (descended(net, x[:n], y[:n], 600) for n in (240, 120))
    f_g, f_1 = both.features(x), one.features(x)
    right = lambda net, rows: (net(x[rows]).argmax(1) == y[rows]).float().mean()
    assert right(both, slice(None)) > .9 and right(one, slice(120, None)) < .5 < .9 < right(one, slice(120))
    spread = (f_g[:120] - f_g[:120].mean(0)).norm(dim=1).mean()
    assert (f_1[:120] - f_g[:120]).norm(dim=1).mean()/spread > .1
    def lower(f):
        "Distance of the lower classes from the upper ones, in distances of the two upper classes."
        c = [f[y == k].mean(0) for k in range(4)]
        return ((c[0] - c[2]).norm() + (c[1] - c[3]).norm())/2/(c[0] - c[1]).norm()
    assert lower(f_1) < .8*lower(f_g)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_undertrained_model_forgets_sooner(seed):
    (x1, y1), (x2, y2) = (corners(c, seed=seed) for c in ([0, 1], [2, 3]))
    def taken(before):
        "Share of client 2's data put into client 1's classes after 300 steps on client 1's."
        net = descended(toy_net(seed), torch.cat([x1, x2]), torch.cat([y1, y2]), before)
        return (descended(net, x1, y1, 300)(x2).argmax(1) < 2).float().mean()
    assert taken(15) > .4 > .35 > taken(60)


# pseudo-data

def test_a_mean_is_of_different_samples_as_a_loop_takes_it():
    x = torch.rand(25, 3, 2, 2, generator=generator(0, purpose="x"))
    rows = mean_indices(25, 10, 6, generator(1)).tolist()
    assert all(len(set(r)) == 10 for r in rows)
    close(random_sample_mean(x, 10, 6, generator(1)), torch.stack([sum(x[j] for j in r)/10 for r in rows]), 1e-6)
    pixels = (x*255).byte()
    by_loop = torch.stack([sum(pixels[j].float()/255 for j in r)/10 for r in rows])
    close(random_sample_mean(pixels, 10, 6, generator(1)), by_loop, 1e-6)
    close(random_sample_mean(x, 99, 1, generator(0))[0], x.mean(0), 1e-6)
    assert min(len(set(r)) for r in mean_indices(25, 10, 50, generator(1), replace=True).tolist()) < 10
    with pytest.raises(FdgnbError, match="cannot average 0 of 25 samples"):
        random_sample_mean(x, 0, 1, generator(0))


def test_a_mixture_takes_soft_labels_and_a_multiple_of_samples():
    xp, x = torch.rand(4, 3, generator=generator(0)), torch.rand(12, 3, generator=generator(1))
    y = torch.arange(12) % 5
    q = mixture(xp, x, y, 5)[1]
    close(q.sum(1), torch.ones(4), 1e-6)
    assert torch.equal(mixture(xp, x, F.one_hot(y, 5), 5)[1], q)
    with pytest.raises(FdgnbError, match="a multiple of 4 local samples, not 7"): mixture(xp, x[:7], y[:7], 5)


def whole_domains(): return torch.stack([to_float(d.x).mean(0) for d in get_dataset("digits").domains.values()])


def apart(means): return (means[:, None] - whole_domains()).abs().flatten(2).amax(2)


def test_a_proxys_mean_is_of_one_domain():
    exact = apart(proxy_means("digits", 1000, 20, generator(1)))
    close(exact.min(1).values, torch.zeros(20), 1e-5)
    assert len(exact.argmin(1).unique()) == 5
    assert apart(proxy_means("digits", 1000, 20, generator(1), replace=True)).min() > .01


def test_noise_is_in_the_range_of_images():
    single = proxy_means("noise", 1, 300, generator(1))
    assert 0 <= single.min() and single.max() <= 1


def test_images_are_fit_to_a_shape():
    x = proxy_means("digits", 10, 8, generator(0))
    assert fit_to(x, (3, 28, 28)) is x
    close(fit_to(torch.full((1, 3, 9, 9), .3), (1, 20, 20)), torch.full((1, 1, 20, 20), .3), 1e-6)
    row = torch.rand(8, generator=generator(2))                      # half the size: weights 1, 3, 3, 1
    got = fit_to(row.expand(1, 1, 8, 8), (1, 4, 4))[0, 0, 0]
    want = [(row[i:i + 4]*torch.tensor([1., 3., 3., 1.])).sum()/8 for i in (1, 3)]
    close(got[1:3], torch.stack(want), 1e-6)
    with pytest.raises(FdgnbError, match="use pseudo='rsm'"): fit_to(x, (384,))


def test_defaults_are_the_papers_and_a_given_value_wins():
    h = hyper(variant="released", width="printed", component1=False)
    assert (h.similarity, h.width, strengths(h)) == ("multiply", "printed", (0., .5))
    assert [getattr(hyper(), k) for k in ("m", "K", "lam", "mu", "tau1", "tau2")] == [10, 1, 1., .5, 2., 2.]


def test_how_many_means_a_client_is_asked_for():
    asked = lambda s, **h: ask(hyper(**h), Server({}, "abc", s), "a")
    assert asked(Settings(batch_size=8, per_round=1), begins="before") == 3, "before round 1 all are asked"
    at_random, three = hyper(means="replacement"), Server({}, "abc", Settings(batch_size=600))
    each = [ask(at_random, three, k) for k in "abc"]
    assert sum(each) == 600 and ask(at_random, three, "unseen") == 0
    assert 150 < min(each) < max(each) < 250
    three.settings = Settings(batch_size=600, per_round=1)           # whoever is drawn brings 600 on average
    assert sum(ask(at_random, three, k) for k in "abc") == 3*600


def test_a_proxys_pool_is_of_the_proxy_named_and_ends_the_asking():
    server = Server({"w": torch.zeros(1)}, "abc", Settings(batch_size=8))
    renew(hyper(), server)
    assert server.state["fedbr.pool"].shape == (8, 3, 32, 32)
    assert [ask(hyper(refresh=r), server, "a") for r in ("each", "once")] == [3, 0]
    def off(**h):
        renew(hyper(proxy="digits", m=1000, **h), server)
        return apart(server.state["fedbr.pool"]).min(1).values.max().item()
    assert off() < 1e-5 and off(means="replacement") > .01


def test_a_pool_holds_each_mean_once():
    server, sent = Server({}, "abc", Settings(batch_size=8)), torch.arange(9.)[:, None]
    assert len(set(pool_means(server, [sent]).flatten().tolist())) == 8
    assert set(pool_means(server, [sent[:5], sent[5:]]).flatten().tolist()) <= {*range(9)}


def arrived(n=6, **h):
    "A client of class 0 alone, whose pseudo-data have arrived, and its first pseudo-batch."
    h, c = hyper(**h), Client("a", dict(train=corners([0])))
    arrive(h, START, c, {"images.fedbr.pool": .3*torch.randn(n, 2, generator=generator(8))})
    return c, *pseudo_batch(h, START, *c.take(torch.arange(2)), c)


def whose(a, c):
    "Distance of each partner in a mixture with K = 1 from the client's nearest sample, and which that is."
    return ((2*a - c.scratch["fedbr.xp"])[:, None] - c.splits["train"].x).norm(dim=2).min(1)


def test_what_arrives_is_kept_as_long_as_it_must():
    c, a, q = arrived()
    assert torch.equal(a, c.scratch["fedbr.xp"]) and (c.state, "fedbr.phi_g" in c.scratch) == ({}, False)
    close(q, torch.full((6, 4), .25))
    c, a, q = arrived(pseudo="mixture", refresh="once")
    assert list(c.state) == ["fedbr.pool"]
    close(q, torch.tensor([[.625, .125, .125, .125]]*6))
    c.scratch = {}
    arrive(hyper(lam=0., mu=0.), START, c, {"images.fedbr.pool": a})
    assert c.scratch == {}, "with both components off nothing is kept"


def test_a_mixtures_partners_are_samples_of_the_client_and_change_by_round():
    c, a, _ = arrived(pseudo="mixture")
    close(whose(a, c).values, torch.zeros(6), 1e-5)
    assert whose(a, c).indices.max() > 1
    c.round, h = 1, hyper(pseudo="mixture")
    arrive(h, START, c, {"images.fedbr.pool": c.scratch["fedbr.xp"]})
    assert not torch.equal(pseudo_batch(h, START, *c.take(torch.arange(2)), c)[0], a)
    c, a, _ = arrived(pseudo="mixture", partners="batch")
    close(whose(a, c).values, torch.zeros(6), 1e-5)
    assert set(whose(a, c).indices.tolist()) == {0, 1}


def test_a_proxy_is_sized_and_scaled_like_the_clients_images():
    images = torch.randint(0, 255, (4, 3, 28, 28), generator=generator(0)).byte()
    c = Client("a", dict(train=(images, torch.arange(4))), Settings(normalize="half"))
    noise = proxy_means("noise", 10, 6, generator(0))
    arrive(hyper(pseudo="mixture"), toy_net(), c, {"images.fedbr.pool": noise})
    close(c.scratch["fedbr.xp"], 2*fit_to(noise, (3, 28, 28)) - 1, 1e-6)


def upload_of(*images):
    "An upload of a client with one sample."
    pool = {"images.fedbr.pool": torch.stack(images)} if images else {}
    return {"model.w": torch.zeros(1), "scalars.n": scalar(1)} | pool


def test_once_is_sent_until_a_client_has_answered():
    server, once = Server({"w": torch.zeros(1)}, ["a", "b"], Settings(batch_size=4)), FedBR(refresh="once")
    some = torch.arange(4.)[:, None]
    once.setup(server)
    down = once.download(server, "a")
    assert sorted(down) == ["model.w", "scalars.fedbr.want"] and down["scalars.fedbr.want"].item() == 2
    down = server_update(once, server, [("a", upload_of(*some[:2])), ("b", upload_of(*some[2:]))], 0)
    assert sorted(down["a"]["images.fedbr.pool"].flatten().tolist()) == [0, 1, 2, 3]
    assert torch.equal(down["a"]["images.fedbr.pool"], down["b"]["images.fedbr.pool"])
    assert "scalars.fedbr.want" not in down["a"]
    down = server_update(once, server, [("a", upload_of())], 1)                           # b has not answered
    assert "images.fedbr.pool" not in down["a"] and "images.fedbr.pool" in down["b"]


@pytest.mark.parametrize("refresh", ["each", "once"])
def test_a_mixtures_pool_is_renewed_or_not(refresh):
    server, m = Server({"w": torch.zeros(1)}, "ab", Settings(batch_size=4)), FedBR(pseudo="mixture", refresh=refresh)
    m.setup(server)
    first = server.state["fedbr.pool"]
    m.finish(server)
    assert torch.equal(server.state["fedbr.pool"], first) == (refresh == "once")


def test_without_components_no_pool_is_made():
    off = Server({"w": torch.zeros(1)}, ["a"])
    FedBR(pseudo="mixture", lam=0., mu=0.).setup(off)
    assert "fedbr.pool" not in off.state


def test_a_client_with_fewer_than_m_samples_sends_its_mean():
    c = Client("a", dict(train=(X1[:3], Y1[:3])))
    c.scratch["fedbr.want"] = 5
    sent = lambda **h: FedBR(**h)._means(c, "check")["images.fedbr.pool"]
    close(sent(), X1[:3].mean(0).expand(5, 2), 1e-6)
    assert (sent(means="replacement") - X1[:3].mean(0)).norm(dim=1).min() > 1e-3


def test_a_mean_is_of_one_client():
    "The two clients of the plane lie above and below: a mean of both would lie between."
    server = Server({"w": torch.zeros(1)}, ["upper", "lower"], Settings(batch_size=20))
    images = []
    for k, c in (("upper", [0, 1]), ("lower", [2, 3])):
        client = Client(k, dict(train=corners(c)))
        client.scratch["fedbr.want"] = 10
        images.append(FedBR()._means(client, "fedbr.rsm")["images.fedbr.pool"])
    side = pool_means(server, images)[:, 1]
    assert side.abs().min() > .5 and set(side.sign().tolist()) == {-1., 1.}


# the loss and the players

def test_each_temperature_belongs_to_its_own_cosine():
    a, g, l = normal(0), normal(1), normal(2)
    def cosine(u, v): return sum(i*j for i, j in zip(u, v))/math.hypot(*u)/math.hypot(*v)
    for how, (t1, t2) in [("divide", (.5, 3.)), ("multiply", (.5, 3.)), ("divide", (2., 2.))]:
        heat = lambda s, t: math.exp(s/t if how == "divide" else s*t)
        losses = []
        for u, v, w in zip(a.tolist(), g.tolist(), l.tolist()):
            f1, f2 = heat(cosine(u, v), t1), heat(cosine(u, w), t2)
            losses.append(-math.log(f1/(f1 + f2)))
        close(contrastive_loss(a, g, l, t1, t2, how).item(), np.mean(losses), 1e-12)
    with pytest.raises(FdgnbError, match="divide or multiply"): contrastive_loss(a, g, l, similarity="add")


def test_sizes_of_the_projection():
    with seeded(0): P = projection(128, 256, 128)
    assert sum(p.numel() for p in P.parameters()) == 128*256 + 256 + 256*256 + 256 + 256*128 + 128
    with seeded(0): built = [FedBR(width=w).build(toy_net()).projection for w in ("printed", "features")]
    assert [(P.fc1.out_features, P.fc3.out_features) for P in built] == [(256, 128), (4, 2)]


def test_a_max_step_is_taken_once_by_the_rounds_step_size():
    net, c = toy_net(), Client("a", dict(train=corners([0, 1])))
    with seeded(1): net.projection = projection(2, 16, 8).requires_grad_(False)
    theta = copy.deepcopy(net.projection)
    xp = random_sample_mean(X1, 10, 16, generator(0))
    z, zp, zg = net.features(X1[:10]), net.features(xp), START.features(xp).detach()      # ten pairs
    of = lambda **h: contrast(hyper(**h), net, z, zp, zg, c).item()
    by_pairs = lambda P, **kw: contrastive_loss(P(zp[:10]), P(zg[:10]), P(z), **kw).item()
    assert of() == by_pairs(theta), "no max step is due"
    c.scratch["fedbr.max"] = True
    assert of() > by_pairs(theta) and "fedbr.max" not in c.scratch
    assert of() == by_pairs(net.projection)
    assert of(projection=False, similarity="multiply") == by_pairs(nn.Identity(), similarity="multiply")
    assert of(tau1=.5, tau2=3.) == by_pairs(net.projection, tau1=.5, tau2=3.)
    c.settings, c.round, theta = Settings(lr=.2, lr_decay=.5), 1, copy.deepcopy(net.projection)
    c.scratch["fedbr.max"] = True
    of()
    ascend(theta, lambda: contrastive_loss(*(theta(v[:10].detach()) for v in (zp, zg, z))), .1)
    for p, q in zip(theta.parameters(), net.projection.parameters()): close(p, q, 1e-7)


def test_references_of_a_mixture_drift_apart_where_not_exact():
    "In a round in which nothing is learned the positive cosine is one; by the first features it is not."
    def cosines(**h):
        h, net, c = hyper(pseudo="mixture", **h), toy_net(), Client("a", dict(train=corners([0, 1])))
        net.features = nn.Sequential(nn.BatchNorm1d(2), net.features).train()
        arrive(h, net, c, {"images.fedbr.pool": .3*torch.randn(16, 2, generator=generator(8))})
        for _ in range(5):
            xp, _ = pseudo_batch(h, net, *c.take(torch.arange(16)), c)
            zp = pseudo_features(h, net, xp)
            yield F.cosine_similarity(zp, global_features(zp, xp, c)).mean().item()
    first = [*cosines(reference="first")]
    assert first[0] > 1 - 1e-6 and max(first[1:]) < .95
    assert min(cosines()) > 1 - 1e-6 and max(cosines(statistics="running")) < .99


def test_aside_leaves_modes_as_they_were():
    with seeded(0): both = nn.Sequential(nn.BatchNorm1d(3), Dropout(.5)).train()
    set_generator(both, generator(0))
    norm, drop = both
    x, before = 3 + 2*normal(1, 50, 3).float(), {k: v.clone() for k, v in both.state_dict().items()}
    for how in ("own", "running"):
        with aside(both, how): both(x)
        assert same(both.state_dict(), before) and norm.training and drop.training and norm.track_running_stats


@pytest.mark.parametrize("order", ["pseudo", "local"])
def test_order_of_what_passes_the_features(order):
    "With a plain call the running mean is a tenth of the last batch and nine tenths of what came before."
    net, h = toy_net(), dict(lam=1., mu=0., statistics="kept", order=order)
    net.features = nn.Sequential(nn.BatchNorm1d(2), net.features)
    c = Client("a", dict(train=(X1[:20], Y1[:20])), Settings(batch_size=20))
    down = tagged("model", net.state_dict()) | {"images.fedbr.pool": torch.full((20, 2), 3.)}
    mean = client_update(FedBR(**h), net, c, down, 1)["model.features.0.running_mean"]
    here, pseudo = X1[:20].mean(0), torch.full((2,), 3.)
    first, last = (pseudo, here) if order == "pseudo" else (here, pseudo)
    close(mean, .9*.1*first + .1*last, 1e-5)


def test_one_max_step_a_local_step_however_often_the_loss_is_evaluated(monkeypatch):
    @method("zz_twice")
    class Twice(Method):
        "Descends along the mean of two evaluations."
        replaces = ("step",)
        def step(self, model, x, y, client):
            twice = self.loss(model, x, y, client) + self.loss(model, x, y, client)
            return descend(self, twice/2, model, client)
    ups = []
    monkeypatch.setattr(fedbr, "ascend", lambda *a: (ups.append(1), ascend(*a)))
    try:
        both = method_class("zz_twice+fedbr")()
        with seeded(0): net = both.build(toy_net())
        c = Client("a", dict(train=(X1, Y1)), Settings(batch_size=20))
        for r, pool in enumerate(({}, {"images.fedbr.pool": X1[:20]})):
            client_update(both, net, c, tagged("model", net.state_dict()) | pool, r)
            assert c.scratch["steps"] == 6 and len(ups) == 6*r, "none without pseudo-data, then one a step"
    finally: del METHODS["zz_twice"]


# the switches of the released code

def test_the_share_of_mixup_is_betas():
    x, y = torch.rand(5, 3, generator=generator(0)), torch.arange(5) % 4
    share, order = mixup_draw(5, generator(1))
    _, q = mix_pairs(x, y, 4, share, order)
    close(mix_pairs(x, q, 4, 1., order)[1], q, 1e-6)                          # labels may be mixed already
    g = generator(2)
    shares = np.array([mixup_draw(2, g)[0] for _ in range(4000)])
    close([shares.mean(), shares.var()], [1/2, 1/4/1.4], .02)


def test_a_step_with_mixup_is_the_step_on_the_mixed_batch(monkeypatch):
    c = Client("a", dict(train=(X1[30:90], Y1[30:90])), Settings(batch_size=20, lr=.1), seed=4)
    alone, net = FedBR(mixup=True, component1=False, component2=False, first_round="step"), toy_net()
    up = client_update(alone, toy_net(), c, tagged("model", net.state_dict()), 0)
    share, order = mixup_draw(20, c.rng("fedbr.mixup"))
    assert .2 < share < .8, "a share near 0 or 1 would only reorder the batch"
    x, y = mix_pairs(*c.take(next(alone.sample(c, c.rng("sample")))), 4, share, order)
    F.cross_entropy(net(x), y).backward()
    for k, v in net.named_parameters(): close(up[f"model.{k}"], (v - .1*v.grad).detach(), 1e-6)
    shares = []
    def draw(*a):
        shares.append(mixup_draw(*a))
        return shares[-1]
    monkeypatch.setattr(fedbr, "mixup_draw", draw)
    client_update(alone, toy_net(), c, tagged("model", net.state_dict()), 1)
    assert len({share for share, _ in shares}) == 3, "every step draws a share of its own"


def test_batches_of_a_round():
    "Full batches are drawn with replacement; a first round may be one step."
    c = Client("a", dict(train=(X1[:20], Y1[:20])), Settings(batch_size=8, local_epochs=3))
    rows = [*full_batches(c, generator(0))]
    assert [len(r) for r in rows] == [8]*6 and min(len(r.unique()) for r in rows) < 8
    c.settings = Settings(batch_size=32, local_steps=2)
    assert [len(r) for r in full_batches(c, generator(0))] == [32, 32]
    c.settings = Settings(batch_size=8)
    def n_batches(round, **h):
        c.round = round
        return len([*FedBR(**h).sample(c, generator(0))])
    assert [n_batches(r, first_round="step") for r in (0, 1)] + [n_batches(0)] == [1, 3, 3]


def test_networks_of_their_own_average_to_the_servers_draw():
    net = toy_net()
    server = Server({k: v.clone() for k, v in net.state_dict().items()}, "abc", net=net)
    w, given, m = "model.features.0.weight", server.model["features.0.weight"], FedBR(first="each")
    m.setup(server)
    draws = {k: m.download(server, k)[w] for k in "abc"}
    assert torch.equal(m.download(server, "unseen")[w], given)
    assert len({v.sum().item() for v in draws.values()}) == 3
    ups = ((k, m.download(server, k) | {"scalars.n": scalar(7)}) for k in "abc")
    m.aggregate(server, weigh(m, server, ups))
    close(server.model["features.0.weight"], given, 1e-6)                 # nobody moved: the server's own draw
    assert (sum(draws.values())/3).std() < .7*given.std()
    assert torch.equal(m.download(server, "a")[w], server.model["features.0.weight"])


def test_weights_of_the_average_are_sizes_or_equal():
    seven, server = upload_of() | {"scalars.n": scalar(7)}, Server({}, "ab")
    assert [FedBR(average=a).weight(server, "a", seven) for a in ("size", "uniform")] == [7., 1.]


def test_parts_that_the_rows_of_the_ablation_train():
    def parts(label):
        name, h = ABLATIONS[label]
        return {k.split(".")[0] for k in run(name, rounds=1, **h).fed.server.model}
    assert parts("Table 4: component 1") | {"projection"} == parts("Table 4: component 2")


def test_a_difference_is_one_switch():
    odd = {k: len(h) for k, (name, h) in DIFFERENCES.items() if len(h) != 1 and name == "fedbr"}
    assert odd == {"as printed": 0, "mixture, first reference": 2, "mixture, partners of the batch": 2}
    back = {n: f.metadata["paper"] for n, f in switches(FedBR.Hyper).items()}
    released = FedBR(variant="released", **back).h
    assert {k for k, v in vars(released).items() if v != getattr(FedBR().h, k)} == {"variant"}


def test_component_1_keeps_the_training_loss_above_lambda_log_c():
    "Cross-entropy against the uniform label is never less than log C, once there are pseudo-data."
    loss = run(rounds=2, component2=False).history.query("point == 'training'").groupby("round").value.mean()
    assert loss[1] < 2*math.log(3) and loss[2] > math.log(3)
