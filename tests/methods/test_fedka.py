"""FedKA and its parts: sums, workers, resume, what travels which way, switches, odd clients, bad input."""
import copy, math
import conftest, pytest, torch
import fdgnb.models as models
from conftest import bits, broken_off, one_line, sized
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client
from fdgnb.federation.shared import prepare_input
from fdgnb.methods.fedka import DIFFERENCES, FedKA, group_effect, group_effects, tta, vote
from fdgnb.methods.fedka_losses import mk_mmd
from fdgnb.methods.fedka_target import borrow, ramp
from fdgnb.models import Dropout
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings, switches

PARTS = ("voting", "disentangler", "mkmmd", "fdann", "fdan")
MATCHING = ("mkmmd", "fdan", "fedka")
SWITCHES = {n: (f.metadata["paper"], f.metadata["released"]) for n, f in switches(FedKA.Hyper).items()}
ADAM = dict(optimizer="adam", lr=1e-3, keep_optimizer=True)
CASES = [dict(), dict(variant="released"), dict(exchange="up"), dict(critic="kept")]


def run(name, data, **kw):
    "conftest's run, with a matching that fits into small clients."
    if any(n in MATCHING for n in name.split("+")): kw.setdefault("mmd_batch", 32)
    return conftest.run(name, data, **kw)


def kinds(r, direction):
    "Kinds of what travels in one direction in the second round."
    return set(r.ledger.query("round == 2 and direction == @direction and bytes > 0").kind)


@pytest.fixture(scope="module")
def tiny(small): return sized(small, optical=40, inked=24, blended=24)


@pytest.fixture(scope="module")
def whole(tiny): return run("fedka", tiny)


def test_fedka_is_the_sum_of_its_parts(tiny, whole):
    for name in ("voting+mkmmd+disentangler", "disentangler+voting+mkmmd", "mkmmd+voting+disentangler"):
        assert bits(run(name, tiny)) == bits(whole)
    for name in ("disentangler+voting", "mkmmd+voting", "disentangler+mkmmd"):
        assert bits(run(name, tiny)) != bits(whole)


PAIRS = [("voting", "mkmmd"), ("voting", "disentangler"), ("mkmmd", "disentangler"), ("fdan", "fdann")]

@pytest.mark.parametrize("a, b", PAIRS)
def test_parts_commute(tiny, a, b): assert bits(run(f"{a}+{b}", tiny)) == bits(run(f"{b}+{a}", tiny))


LOSES_ONE = ADAM | dict(lr=3e-4, drops=((2, "inked"),))
ALL_SAMPLES = dict(votes=None, target_samples=None, sent="plain")

@pytest.mark.parametrize("h", [*CASES, ALL_SAMPLES, LOSES_ONE])
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run("fedka", tiny, workers=1, **h), run("fedka", tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows and one.rows == two.rows


@pytest.mark.parametrize("h", [*CASES, ADAM])
def test_resume(tiny, tmp_path, monkeypatch, h):
    "Broken off after two of three rounds, the run ends in the same bits."
    h = h | dict(rounds=3)
    uninterrupted = run("fedka", tiny, **h)
    broken_off(monkeypatch, 2, lambda: run("fedka", tiny, out=tmp_path, **h))
    again = run("fedka", tiny, out=tmp_path, **h)
    assert bits(again) == bits(uninterrupted) and again.rows == uninterrupted.rows
    assert again.book.rows == uninterrupted.book.rows


FEATURES, IMAGES = {"features"}, {"images"}

@pytest.mark.parametrize("name, h, down, up", [
    ("voting", {}, set(), set()),
    ("disentangler", {}, FEATURES, set()),
    ("mkmmd", {}, FEATURES, set()),
    ("fedka", {}, FEATURES, set()),
    ("fdann", {}, IMAGES, set()),
    ("fdan", {}, IMAGES, set()),
    ("fdan", dict(variant="released"), FEATURES, set()),
    ("fedka", dict(variant="released"), FEATURES | IMAGES, set()),
    ("fedka", dict(exchange="up"), FEATURES, FEATURES),
    ("fedka", dict(gamma=0.), set(), set())])
def test_what_travels(tiny, name, h, down, up):
    r, extra = run(name, tiny, **h), FEATURES | IMAGES
    assert kinds(r, "down") & extra == down and kinds(r, "up") & extra == up


def test_the_target_never_goes_down_when_features_go_up(tiny):
    "In round 1 nothing but the model; later one gradient per training sample of the client."
    r = run("mkmmd", tiny, exchange="up")
    down = r.ledger.query("direction == 'down' and kind == 'features'")
    assert set(down["round"]) == {2}
    assert {k: b//(4*800) for k, b in zip(down.client, down.bytes)} == {c.id: c.n() for c in r.fed.clients}


def test_what_goes_up_is_for_all_parts_or_none(tiny):
    h = {"disentangler.exchange": "up"}
    with pytest.raises(FdgnbError, match="sent no features") as e: run("fedka", tiny, **h)
    assert one_line(e)


def test_the_discriminator_stays_where_it_is_put(tiny):
    cases = dict(), dict(critic="kept"), dict(exchange="up")
    averaged, kept, up = (run("disentangler", tiny, **h) for h in cases)
    def sent(r): return r.ledger.query("kind == 'model' and direction == 'up'").bytes.sum()
    def has_one(owner): return any(k.startswith("critic.") for k in owner.state)
    assert sent(kept) == sent(up) == sent(run("fedavg", tiny)) < sent(averaged)
    assert all(map(has_one, kept.fed.clients))
    assert has_one(up.fed.server) and not any(map(has_one, up.fed.clients))


@pytest.mark.parametrize("name", SWITCHES)
def test_switches(tiny, whole, name):
    "Each changes the run where its two readings differ."
    paper, released = SWITCHES[name]
    def value(**h): return getattr(method_class("fedka")(**h).h, name)
    assert (value(), value(variant="released")) == (paper, released)
    if paper != released: assert bits(run("fedka", tiny, **{name: released})) != bits(whole)


def test_a_variant_is_all_switches_at_once(tiny, whole):
    printed, released = ({k: v[i] for k, v in SWITCHES.items()} for i in (0, 1))
    assert bits(run("fedka", tiny, **printed)) == bits(whole)
    assert bits(run("fedka", tiny, variant="released")) == bits(run("fedka", tiny, **released))


@pytest.mark.parametrize("name", [*PARTS, "fedka"])
def test_without_the_ramp_it_is_fedavg(tiny, name):
    plain, off = run("fedavg", tiny).fed.server.model, run(name, tiny, gamma=0.)
    assert all(torch.equal(off.fed.server.model[k], v) for k, v in plain.items())
    assert set(off.ledger.kind) == {"model", "scalars"}


def test_plain_is_what_clients_start_from(tiny):
    "sent='plain': what is tuned is judged, but in the next round the clients start as if nobody had voted."
    r = run("voting", tiny, rounds=1, sent="plain")
    download = r.fed.method.download(r.fed.server, "inked")
    average = run("fedavg", tiny, rounds=1).fed.server.model
    assert all(torch.equal(download[f"model.{k}"], v) for k, v in average.items())
    assert any(not torch.equal(r.fed.server.model[k], v) for k, v in average.items())


RELEASED = dict(variant="released", mmd_batch=16)
SMALLER = [dict(), dict(drop_last=True), dict(batch_size=64, samples=5), RELEASED]

@pytest.mark.parametrize("name", ["fedka", "fdann", "fdan"])
@pytest.mark.parametrize("h", SMALLER)
def test_a_client_smaller_than_a_batch(small, name, h):
    if name == "fdann": h = {k: v for k, v in h.items() if k != "mmd_batch"}
    r = run(name, sized(small, optical=60, inked=7, blended=9), **h)
    assert r.history.value.map(math.isfinite).all()


@pytest.mark.parametrize("name", [*PARTS, "fedka", "fedavg+voting"])
@pytest.mark.parametrize("target", [None, "none"])
def test_no_target(tiny, name, target):
    with pytest.raises(FdgnbError, match="target") as e: run(name, tiny, target=target)
    assert one_line(e)


@pytest.mark.parametrize("h, says", [
    (dict(mmd_batch=1), "mmd_batch"),
    (dict(votes=0), "votes"),
    (dict(votes="many"), "votes"),
    (dict(gamma=-1.), "gamma"),
    (dict(gama=1.), "gamma"),
    (dict(samples=0), "samples"),
    (dict(target_samples=1), "target_samples"),
    (dict(exchange="upp"), "did you mean 'up'"),
    (dict(kernels="men"), "did you mean 'mean'"),
    (dict(variant="relased"), "did you mean 'released'"),
    (dict(exchange="up", domain_encoder="client"), "needs the target's images")])
def test_bad_hyper_parameters(tiny, h, says):
    with pytest.raises(FdgnbError, match=says) as e: run("fedka", tiny, **h)
    assert one_line(e)


def test_names_that_clash():
    with pytest.raises(FdgnbError, match="'voting' is in it twice"): method_class("fedka+voting")
    with pytest.raises(FdgnbError, match="already contains"): method_class("fdann+disentangler")


def by_double_loop(hs, ht):
    "Eqs. 5 and 6, pair by pair; the bandwidths are numbers, without gradient."
    z, n, m = torch.cat([hs, ht]), len(hs), len(ht)
    N = n + m
    d = [[((z[i] - z[j])**2).sum() for j in range(N)] for i in range(N)]
    mean = float(sum(d[i][j].detach() for i in range(N) for j in range(N)))/(N*N - N)
    w = [1/n]*n + [-1/m]*m
    def at(f): return sum(w[i]*w[j]*torch.exp(-d[i][j]/(f*mean)) for i in range(N) for j in range(N))
    return sum(map(at, (1/4, 1/2, 1, 2, 4)))/5


@pytest.mark.parametrize("n, m, u", [(6, 9, 4), (1, 1, 3), (16, 2, 1), (5, 5, 30)])
def test_mk_mmd_and_its_gradient(n, m, u):
    g = generator(n)
    hs = torch.randn(n, u, generator=g, dtype=torch.float64, requires_grad=True)
    ht = .5 + torch.randn(m, u, generator=g, dtype=torch.float64)
    ht.requires_grad_()
    fast, slow = mk_mmd(hs, ht), by_double_loop(hs, ht)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-12)
    for a, b in zip(*(torch.autograd.grad(J, [hs, ht]) for J in (fast, slow))):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_mk_mmd_of_equal_points_has_a_finite_gradient():
    h = torch.ones(4, 3, requires_grad=True)
    loss = mk_mmd(h, torch.ones(5, 3))
    loss.backward()
    assert abs(loss.item()) < 1e-6 and torch.isfinite(h.grad).all()


def test_vote():
    ballots = torch.randint(4, (5, 400), generator=generator(0))
    won = vote(ballots, 4, generator(1))
    for column, w in zip(ballots.T.tolist(), won.tolist()):
        assert column.count(w) == max(map(column.count, column))
    assert torch.equal(won, vote(ballots, 4, generator(1))), "ties depend on the generator alone"
    tied = torch.tensor([[0], [1], [2], [3]]).expand(4, 4000)
    first, second = vote(tied, 6, generator(2)), vote(tied, 6, generator(3))
    assert not torch.equal(first, second) and first.max() == 3
    assert (torch.bincount(first, minlength=6)/4000).tolist() == pytest.approx([.25]*4 + [0]*2, abs=.03)
    assert torch.equal(vote(ballots[:1], 4, generator(4)), ballots[0]), "one voter decides"


CONV = "features.conv1.conv.weight"


@pytest.mark.parametrize("name", ["fedka", "fdann", "voting"])
def test_clients_draw_their_own_first_weights(tiny, name):
    "Released: round 1 starts from a network per client; its average is narrower than a draw; then one."
    r = run(name, tiny, rounds=1, lr=0., first="each", gamma=0.)
    server, m = r.fed.server, r.fed.method
    sent = [m.download(server, k)[f"model.{CONV}"] for k in ("optical", "inked", "blended")]
    assert all(torch.equal(v, server.model[CONV]) for v in sent)
    one = run(name, tiny, rounds=1, lr=0., gamma=0.).fed.server.model[CONV]
    assert server.model[CONV].std() < .85*one.std()
    m.setup(server)
    first = [m.download(server, k)[f"model.{CONV}"] for k in ("optical", "inked", "blended")]
    assert not torch.equal(first[0], first[1]) and torch.equal(first[2], server.model[CONV])


@pytest.mark.parametrize("name", ["fdan", "mkmmd"])
def test_the_target_passes_by_a_step_s_batch(tiny, name):
    "As released each row of the target's features is normalized by its 16 alone, not by 24."
    h = dict(match_encoder="global") if name == "fdan" else {}
    server = run(name, tiny, rounds=1, **h).fed.server
    net = borrow(server, server.model)
    for d in net.modules():
        if isinstance(d, Dropout): d.p = 0.
    x = prepare_input(server.public[server.state["target.index"]], "cpu", server.settings.normalize)
    by_step, at_once = (torch.cat([net.features.train()(v) for v in x.split(n)]) for n in (16, 24))
    def of(**kw):
        m = method_class(name)(**h | kw)
        server.state.pop("target.features", None)
        return m.download(server, "inked")["features.fedka.target"]
    assert torch.allclose(of(variant="released"), by_step, atol=1e-5)
    assert torch.allclose(of(), at_once, atol=1e-5) and not torch.allclose(by_step, at_once, atol=1e-2)


def test_noeval_normalizes_by_training_batches():
    "64 samples, predicted in one call, are normalized by 16 at a time."
    with seeded(0): net = models.get("cnn2", 4)
    for d in net.modules():
        if isinstance(d, Dropout): d.p = 0.
    x = torch.rand(64, 3, 28, 28, generator=generator(0))
    client = Client("t", dict(target=(x, torch.zeros(64, dtype=torch.long))), Settings(batch_size=16))
    m, judged = method_class("noeval")(), copy.deepcopy(net).eval()
    m.adapt(judged, x, client)
    want = torch.cat([net.train()(v) for v in x.split(16)]).detach()
    assert torch.allclose(m.predict(judged, x, client).detach(), want, atol=1e-5)


def test_ramp():
    assert ramp(0) == 0 and ramp(1) == pytest.approx(math.tanh(2.5)) and ramp(.7, 0.) == 0


def test_measures_on_any_method(tiny):
    r = run("fedavg", tiny, eval_every=1, eval_local=1)
    h = r.history.query("split == 'target' and metric == 'accuracy'")
    for t in (1, 2):
        local, glob = (h[(h.point == p) & (h["round"] == t)].value for p in ("local", "aggregated"))
        assert group_effects(r.history)[t] == pytest.approx(local.mean() - glob.item())
        assert tta(r.history)[t] == glob.item() and sorted(tta(r.history, "local").loc[t]) == sorted(local)
    assert group_effect([.5, .7], .4) == pytest.approx(.2)
    without = run("fedavg", tiny, target=None).history
    with pytest.raises(FdgnbError, match="no accuracy on a target"): tta(without)


def test_the_list_of_differences_can_be_run(tiny):
    assert next(iter(DIFFERENCES)) == "as printed"
    for name, h in DIFFERENCES.values(): Federation(name, tiny, "blended", 1, **h)


def test_an_entry_of_the_differences_sets_one_switch_to_what_is_released():
    released = method_class("fedka")(variant="released")
    first = DIFFERENCES["as printed"][1]
    for label, (_, h) in list(DIFFERENCES.items())[2:-1]:
        (name, value), = h.items() - first.items()
        assert getattr(released.h, name) == value, label
    h = released.h
    assert (h.votes, h.target_samples, h.mmd_batch, h.gamma, h.samples) == (512, 512, 128, 5., None)
    assert method_class("subsample")().h.samples == 512
