"""FedKA and its parts: golden numbers, its losses by hand, votes, what travels, switches."""
import math
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from conftest import bits, run as short_run, sized
from golden import replay
from fdgnb.core import generator, seeded
from fdgnb.federation.compose import method_class
from fdgnb.methods import fedka, fedka_target
from fdgnb.methods.fedka import FedKA, vote
from fdgnb.methods.fedka_losses import mk_mmd
from fdgnb.models import Net, chain
from fdgnb.settings import Settings, switches

PARTS = ("voting", "disentangler", "mkmmd", "fdann", "fdan")
MATCHING = ("mkmmd", "fdan", "fedka")


def run(name, data, **given):
    "Two rounds, with a matching that fits into small clients."
    if any(part in MATCHING for part in name.split("+")):
        given = dict(mmd_batch=8) | given
    return short_run(name, data, **dict(batch_size=8) | given)


@pytest.fixture(scope="module")
def few(small):
    return sized(small, optical=24, inked=16, blended=16)


@pytest.fixture(scope="module")
def whole(few):
    return run("fedka", few)


# ---- golden numbers
NAMES = {"features.fc": "feature.0", "features.bn": "feature.1", "head": "class_classifier.0",
         "discriminator.net.fc1.fc": "domain_classifier.0", "discriminator.net.fc1.bn": "domain_classifier.1",
         "discriminator.net.fc2": "domain_classifier.3"}


@pytest.fixture(scope="module")
def golden():
    return replay.read("fedka")


def their_weights(golden, which, net):
    "Their weights under our names, for the parameters of `net`."
    names = [name.rpartition(".") for name, _ in net.named_parameters()]
    return {f"{layer}.{entry}": golden[f"{which}.{NAMES[layer]}.{entry}"] for layer, _, entry in names}


def vote_as_drawn(labels):
    "A vote that breaks ties as theirs: it takes their labels, which must have as many votes as any."
    def draw(predictions, n_classes, generator):
        counts, won = F.one_hot(predictions, n_classes).sum(0), next(labels)
        assert torch.equal(counts.gather(1, won[:, None])[:, 0], counts.max(1).values)
        return won
    return draw


def find_differences(golden, monkeypatch, name):
    "Largest differences of the averages and tuned models that the file holds, in two rounds as released."
    method = method_class(name)(variant="released", **dict(votes=2048) if name == "fedka" else {})
    with seeded(0):
        features = chain(fc=nn.Linear(6, 4, bias=False), bn=nn.BatchNorm1d(4), relu=nn.ReLU())
        net = method.build(Net("tiny", features, nn.Linear(4, 5), 4, 5, 6)).double()
    first = [dict(net.state_dict()) | their_weights(golden, f"first.{i}", net) for i in range(5)]
    monkeypatch.setattr(fedka_target, "redraw_weights", lambda server, k: first[1 + int(k)])
    monkeypatch.setattr(fedka, "vote", vote_as_drawn(v.long() for v in golden["fedka.labels"]))
    data = {k: dict(train=(golden["x"][i].double()/32, golden["y"][i].long())) for i, k in enumerate("0123")}
    settings = Settings(lr=3e-4, optimizer="adam", keep_optimizer=True, batch_size=16)
    server, clients = replay.make_federation(method, net, first[0], data, settings, 2, n_classes=5,
                                             public=golden["target"].double()/32)
    found = []
    for r, down in enumerate(replay.play(method, server, clients, net)):
        sent = {k.removeprefix("model."): v for k, v in down["0"].items()}
        for what, state in (("average", sent), ("tuned", server.model)):
            if f"{name}.{r}.{what}.feature.0.weight" in golden:
                found.append(replay.largest_difference(state, their_weights(golden, f"{name}.{r}.{what}", net)))
    return found


@pytest.mark.parametrize("name, count", [("fedka", 4), ("fdann", 1), ("fdan", 1)])
def test_two_rounds_as_released(golden, monkeypatch, name, count):
    found = find_differences(golden, monkeypatch, name)
    assert len(found) == count and max(found) < 1e-9


# ---- Eqs. 5 and 6
def mmd_by_double_loop(hs, ht):
    "Eqs. 5 and 6, pair by pair; the bandwidths are numbers, without gradient."
    z, n, m = torch.cat([hs, ht]), len(hs), len(ht)
    pairs = [(i, j) for i in range(n + m) for j in range(n + m)]
    d = {(i, j): ((z[i] - z[j])**2).sum() for i, j in pairs}
    mean = float(sum(v.detach() for v in d.values()))/((n + m)*(n + m - 1))
    w = [1/n]*n + [-1/m]*m
    return sum(w[i]*w[j]*torch.exp(-d[i, j]/(f*mean)) for i, j in pairs for f in (1/4, 1/2, 1, 2, 4))/5


@pytest.mark.parametrize("n, m, u", [(6, 9, 4), (1, 1, 3), (8, 2, 1), (5, 5, 30)])
def test_mk_mmd_and_its_gradient(n, m, u):
    g = generator(n)
    hs = torch.randn(n, u, generator=g, dtype=torch.float64).requires_grad_()
    ht = (.5 + torch.randn(m, u, generator=g, dtype=torch.float64)).requires_grad_()
    fast, slow = mk_mmd(hs, ht), mmd_by_double_loop(hs, ht)
    assert fast.item() == pytest.approx(slow.item(), abs=1e-12)
    for a, b in zip(*(torch.autograd.grad(J, [hs, ht]) for J in (fast, slow))):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# ---- Eq. 10
def test_vote():
    "The most votes win; of as many each wins as often, by the generator alone."
    ballots = torch.randint(4, (5, 400), generator=generator(0))
    won = vote(ballots, 4, generator(1))
    for column, w in zip(ballots.T.tolist(), won.tolist()):
        assert column.count(w) == max(map(column.count, column))
    assert torch.equal(won, vote(ballots, 4, generator(1)))
    tied = vote(torch.tensor([[0], [1], [2], [3]]).expand(4, 4000), 6, generator(2))
    assert (torch.bincount(tied, minlength=6)/4000).tolist() == pytest.approx([.25]*4 + [0]*2, abs=.03)


@pytest.mark.parametrize("sent", ["tuned", "plain"])
def test_what_clients_start_from_after_a_vote(few, sent):
    "What is tuned is judged; the plain average is what clients get as if nobody had voted."
    r, average = run("voting", few, rounds=1, sent=sent), run("fedavg", few, rounds=1).fed.server.model
    down, tuned = r.fed.method.download(r.fed.server, "inked"), r.fed.server.model
    assert any(not torch.equal(tuned[k], v) for k, v in average.items())
    start = average if sent == "plain" else tuned
    assert all(torch.equal(down[f"model.{k}"], v) for k, v in start.items())


# ---- parts and what travels
def test_fedka_is_the_sum_of_its_parts(few, whole):
    assert bits(run("mkmmd+voting+disentangler", few)) == bits(whole)
    pairs = ("disentangler+voting", "mkmmd+voting", "disentangler+mkmmd")
    assert len({bits(run(name, few)) for name in pairs} | {bits(whole)}) == 4


@pytest.mark.parametrize("name", [*PARTS, "fedka"])
def test_without_the_ramp_it_is_fedavg(few, name):
    plain, off = run("fedavg", few).fed.server.model, run(name, few, gamma=0.)
    assert all(torch.equal(off.fed.server.model[k], v) for k, v in plain.items())
    assert set(off.ledger.kind) == {"model", "scalars"}


FEATURES, IMAGES = {"features"}, {"images"}


@pytest.mark.parametrize("name, h, down, up", [
    ("voting", {}, set(), set()),
    ("fedka", {}, FEATURES, set()),
    ("fdann", {}, IMAGES, set()),
    ("fdan", dict(variant="released"), FEATURES, set()),
    ("fedka", dict(variant="released"), FEATURES | IMAGES, set()),
    ("fedka", dict(exchange="up"), FEATURES, FEATURES)])
def test_what_travels(few, name, h, down, up):
    "Of the target, or of clients, in the second round; where features go up, a gradient a sample comes down."
    r = run(name, few, **h)
    book = r.ledger.query("round == 2 and bytes > 0")
    for direction, kinds in (("down", down), ("up", up)):
        assert set(book[book.direction == direction].kind) & (FEATURES | IMAGES) == kinds
    if up:
        sent = r.ledger.query("direction == 'down' and kind == 'features'")
        assert set(sent["round"]) == {2}
        assert {k: b//(4*800) for k, b in zip(sent.client, sent.bytes)} == {c.id: c.n() for c in r.fed.clients}


def test_the_discriminator_stays_where_it_is_put(few):
    "It is averaged, or each client keeps its own, or the server has one."
    def bytes_up(r):
        return r.ledger.query("kind == 'model' and direction == 'up'").bytes.sum()

    def has_critic(owner):
        return any(k.startswith("critic.") for k in owner.state)

    averaged, kept, up = (run("disentangler", few, **h) for h in ({}, dict(critic="kept"), dict(exchange="up")))
    assert bytes_up(kept) == bytes_up(up) == bytes_up(run("fedavg", few)) < bytes_up(averaged)
    assert all(map(has_critic, kept.fed.clients))
    assert has_critic(up.fed.server) and not any(map(has_critic, up.fed.clients))


@pytest.mark.parametrize("h", [dict(drop_last=True), dict(variant="released"), dict(batch_size=64, samples=5)], ids=str)
def test_a_client_smaller_than_a_batch(small, h):
    r = run("fedka", sized(small, optical=24, inked=7, blended=9), **dict(batch_size=16, eval_every=2) | h)
    assert r.history.value.map(math.isfinite).all()


# ---- switches
SWITCHES = {name: (f.metadata["paper"], f.metadata["released"]) for name, f in switches(FedKA.Hyper).items()}


@pytest.mark.parametrize("name", [name for name, (paper, released) in SWITCHES.items() if paper != released])
def test_each_switch_changes_the_run(few, whole, name):
    paper, released = SWITCHES[name]
    assert (getattr(FedKA().h, name), getattr(FedKA(variant="released").h, name)) == (paper, released)
    assert bits(run("fedka", few, **{name: released})) != bits(whole)


def test_a_client_with_fewer_samples_than_a_matching_matches_all_of_them_where_asked(few):
    with pytest.warns(UserWarning, match="nothing is matched"): none = run("mkmmd", few, mmd_batch=64)
    assert bits(none, "model.") == bits(run("fedavg", few), "model.")
    whole = run("mkmmd", few, mmd_batch=64, mmd_few="all")
    assert bits(whole, "model.") != bits(none, "model.")
    assert bits(run("mkmmd", few, mmd_few="all")) == bits(run("mkmmd", few))           # a matching of 8 fits
