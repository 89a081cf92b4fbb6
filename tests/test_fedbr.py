"""FedBR: every switch, the pseudo-data's way through a run, workers, resume, sums."""
import pytest
import torch
import torch.nn.functional as F
from conftest import bits, broken_off, run as short_run
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.data.domain import Dataset, Domain
from fdgnb.federation.compose import METHODS, hooks_of, method, method_class
from fdgnb.federation.loop import Client, Method
from fdgnb.methods.fedbr import ABLATIONS, DIFFERENCES, FedBR, ascend, contrast, contrastive_loss
from fdgnb.methods.fedbr import ask, mix_pairs, mixture, mixup_draw, projection, pseudo_batch, random_sample_mean


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
