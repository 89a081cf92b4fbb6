"""FedBR: golden numbers, two steps by hand, its pseudo-data and what travels of them, switches."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from conftest import bits, run as short_run
from golden import replay
from fdgnb.core import generator, seeded
from fdgnb.data.domain import Dataset, Domain
from fdgnb.federation.loop import Client, client_update
from fdgnb.methods import fedbr
from fdgnb.methods.fedbr import FedBR
from fdgnb.methods.fedbr_pseudo import random_sample_mean
from fdgnb.models import Net, chain
from fdgnb.settings import Settings
from fdgnb.vectors import tagged


def make_images(n=12, names=("a", "b", "t"), size=16):
    "Bright bars; b has fewer images, so that weights by size and equal weights differ."
    g, domains = generator(3), {}
    for i, name in enumerate(names):
        y = torch.arange(n - 3*(name == "b")) % 3
        x = torch.randint(0, 60, (len(y), 3, size, size), generator=g)
        for j, c in enumerate(y):
            x[j, :, 5*c:5*c + 5, 3:12] += 120 + 20*i
        domains[name] = Domain(name, x.to(torch.uint8), y)
    return Dataset("toy", domains, ["0", "1", "2"], defaults=dict(backbone="cnn2"))


IMAGES = make_images()


def run(name="fedbr", data=IMAGES, **given):
    return short_run(name, data, **dict(target="t", rounds=3, lr=.02, batch_size=4, eval_every=3, workers=1) | given)


@pytest.fixture(scope="module")
def whole():
    return run()


# ---- golden numbers
NAMES = {"features.fc": "featurizer.fc", "features.bn": "featurizer.bn", "head": "classifier",
         "projection.fc1": "discriminator.input", "projection.fc2": "discriminator.hiddens.0",
         "projection.fc3": "discriminator.output"}
CASES = dict(rsm={}, mixture=dict(pseudo="mixture"), mixup=dict(mixup=True),
             both=dict(pseudo="mixture", mixup=True))
STEPS = slice(0, 12), slice(12, 16)                                     # of the two rounds


@pytest.fixture(scope="module")
def golden():
    return replay.read("fedbr")


def their_state(golden, which, net):
    "Their weights and running statistics under our names."
    names = [k.rpartition(".") for k, v in net.state_dict().items() if v.ndim]
    return {f"{layer}.{entry}": golden[f"{which}.{NAMES[layer]}.{entry}"] for layer, _, entry in names}


class AsDrawn(FedBR):
    "FedBR on the golden run's batches; `draws` is what was drawn for the client whose turn it is."
    def sample(self, client, rng):
        i, steps = int(client.id), STEPS[client.round]
        if "partners" in self.drawn:
            self.draws["partners"] = iter(self.drawn["partners"][steps, i])
        if "shares" in self.drawn:
            shares = self.drawn["shares"][steps, i, 0].tolist()
            self.draws["shares"] = zip(shares, self.drawn["orders"][steps, i])
        return iter(self.rows[i, steps])


def find_differences(golden, monkeypatch, case, **h):
    "Largest differences from their averages after twelve steps, and after four more."
    method = AsDrawn(variant="released", **CASES[case] | h)
    method.drawn = {k: golden[f"{case}.{k}"] for k in ("partners", "shares", "orders") if f"{case}.{k}" in golden}
    method.draws, method.rows = {}, golden["rows"]
    with seeded(0):
        features = chain(fc=nn.Linear(6, 8), bn=nn.BatchNorm1d(8), relu=nn.ReLU())
        net = method.build(Net("tiny", features, nn.Linear(8, 4), 8, 4, 6)).double()
    first = [dict(net.state_dict()) | their_state(golden, f"first.{i}", net) for i in range(4)]
    monkeypatch.setattr(fedbr, "redraw_weights", lambda server, k: first[1 + int(k)])
    if "partners" in method.drawn:
        monkeypatch.setattr(torch, "randint", lambda *a, **kw: next(method.draws["partners"]))
    if "shares" in method.drawn:
        monkeypatch.setattr(fedbr, "mixup_draw", lambda n, rng: next(method.draws["shares"]))
    data = {k: dict(train=(golden["x"][i].double()/255, golden["y"][i])) for i, k in enumerate("012")}
    settings = Settings(lr=.1, batch_size=8)
    server, clients = replay.make_federation(method, net, first[0], data, settings, 2, n_classes=4)
    server.state["fedbr.pool"] = golden["pool"]
    return [replay.largest_difference(server.model, their_state(golden, f"{case}.average.{r}", net))
            for r, _ in enumerate(replay.play(method, server, clients, net))]


@pytest.mark.parametrize("case", CASES)
def test_averages_as_released(golden, monkeypatch, case):
    found = find_differences(golden, monkeypatch, case)
    assert len(found) == 2 and max(found) < 1e-9


def test_means_as_released(golden):
    "Each of the released means is that of the ten rows it read, of one client, and some row was read twice."
    x, who, rows = golden["x"].double()/255, golden["pool_client"], golden["pool_rows"]
    means = torch.stack([x[k][r].mean(0) for k, r in zip(who, rows)])
    assert (means - golden["pool"]).abs().max() < 1e-12
    assert min(len(r.unique()) for r in rows) < 10


# ---- the loss and the players
def contrast_by_hand(p_i, p_g, p_local, h):
    "Eqs. 5 to 7: each temperature belongs to its own cosine."
    s1, s2 = ((p_i*v).sum(1)/p_i.norm(dim=1)/v.norm(dim=1) for v in (p_g, p_local))
    t1, t2 = (h.tau1, h.tau2) if h.similarity == "divide" else (1/h.tau1, 1/h.tau2)
    f1, f2 = (s1/t1).exp(), (s2/t2).exp()
    return -(f1/(f1 + f2)).log().mean()


class InOrder(FedBR):
    "Two steps a round, on all samples."
    def sample(self, client, rng):
        return iter([torch.arange(client.n())]*2)


@pytest.mark.parametrize("h", [
    {}, dict(max_step=False), dict(projection=False), dict(component1=False, tau1=.5, tau2=3.),
    dict(similarity="multiply", tau1=.5, tau2=3.), dict(width="features", lam=.3, mu=2.)], ids=str)
def test_two_steps_by_hand(h):
    "Algorithm 1: theta goes up the contrast, then features and head go down the loss; phi_g is what was received."
    method, g, lr = InOrder(**h), generator(0), .2
    x, pool = (torch.randn(6, 3, generator=g, dtype=torch.float64) for _ in range(2))
    y, uniform = torch.arange(6) % 3, torch.full((6, 3), 1/3, dtype=torch.float64)
    with seeded(1):
        net = method.build(Net("toy", nn.Linear(3, 5), nn.Linear(5, 3), 5, 3, 3)).double()
    client = Client("a", dict(train=(x, y)), Settings(lr=lr, batch_size=6))
    down = {k: v.clone() for k, v in tagged("model", net.state_dict()).items()}
    up = client_update(method, net, client, down | {"images.fedbr.pool": pool}, 1)
    net.load_state_dict({k.removeprefix("model."): v for k, v in down.items()})
    P = net.projection.requires_grad_(True) if method.h.projection else nn.Identity()
    theta, others = [*P.parameters()], [*net.features.parameters(), *net.head.parameters()]
    received = net.features(pool).detach()
    for _ in range(2):
        z, zp = net.features(x), net.features(pool)
        if method.h.max_step and theta:
            up_the_contrast = contrast_by_hand(P(zp.detach()), P(received), P(z.detach()), method.h)
            with torch.no_grad():
                for p, gradient in zip(theta, torch.autograd.grad(up_the_contrast, theta)):
                    p += lr*gradient
        loss = F.cross_entropy(net.head(z), y) + method.h.mu*contrast_by_hand(P(zp), P(received), P(z), method.h)
        if method.h.component1:
            loss = loss + method.h.lam*F.cross_entropy(net.head(zp), uniform)
        with torch.no_grad():
            for p, gradient in zip(others, torch.autograd.grad(loss, others)):
                p -= lr*gradient
    for k, v in net.state_dict().items():
        torch.testing.assert_close(up[f"model.{k}"], v, rtol=1e-9, atol=1e-12)


# ---- pseudo-data
def test_a_mean_is_of_different_samples():
    "Rows of a unit matrix: a mean has a tenth of each of its samples; as released some come twice."
    different = random_sample_mean(torch.eye(25), 10, 50, generator(1))
    assert all(sorted(row.tolist()) == pytest.approx([0.]*15 + [.1]*10) for row in different)
    repeated = random_sample_mean(torch.eye(25), 10, 50, generator(1), replace=True)
    assert repeated.max() > .15 and torch.allclose(repeated.sum(1), torch.ones(50))
    assert torch.allclose(random_sample_mean(torch.eye(4), 9, 1, generator(0)), torch.full((1, 4), .25))
    assert random_sample_mean(torch.full((4, 2), 255, dtype=torch.uint8), 3, 1, generator(0)).tolist() == [[1., 1.]]


@pytest.mark.parametrize("h, sizes", [({}, [8, 8, 4]), (dict(batches="replacement"), [8, 8]),
                                      (dict(first_round="step"), [8])], ids=str)
def test_batches_of_the_first_round(h, sizes):
    client = Client("a", dict(train=(torch.zeros(20, 1), torch.zeros(20).long())), Settings(batch_size=8))
    assert [len(rows) for rows in FedBR(**h).sample(client, generator(0))] == sizes


ONE = 3*16*16*4                                                        # bytes of a mean
EACH = {(1, "up"): 4, (2, "up"): 4, (2, "down"): 8}


def count_images(r):
    "{(round, direction): how many images of pseudo-data}."
    sent = r.ledger.query("kind == 'images'").groupby(["round", "direction"]).bytes.sum()
    return (sent//ONE).to_dict()


@pytest.mark.parametrize("h, sent", [
    ({}, EACH), (dict(refresh="once"), {(1, "up"): 4, (2, "down"): 8}),
    (dict(variant="released", width="printed"), {(1, "up"): 4, (1, "down"): 8}),
    (dict(component1=False, component2=False), {})], ids=str)
def test_what_travels(h, sent):
    "Two clients send two means each and get four; as released all that happens before the first step."
    assert count_images(run(rounds=2, **h)) == sent


def test_of_a_mixture_no_clients_image_goes_up():
    assert {direction for _, direction in count_images(run(pseudo="mixture"))} == {"down"}


def test_once_reaches_those_who_come_late():
    r = run(refresh="once", rounds=4, drops=((1, "b"), (2, "b")))
    assert [k for k in count_images(r) if k[1] == "down"] == [(2, "down"), (3, "down")]   # a, then b
    assert all("fedbr.pool" in c.state for c in r.fed.clients)


# ---- switches
SWITCHES = [dict(component1=False), dict(component2=False), dict(max_step=False), dict(projection=False),
            dict(refresh="once"), dict(pseudo="mixture"), dict(pseudo="mixture", K=0),
            dict(pseudo="mixture", reference="first"), dict(pseudo="mixture", partners="batch"),
            dict(similarity="multiply"), dict(statistics="kept"), dict(statistics="running"), dict(average="uniform"),
            dict(first="each"), dict(mixup=True), dict(begins="before"),
            dict(means="replacement"), dict(statistics="kept", order="pseudo"), dict(first_round="step"),
            dict(batches="replacement"), dict(variant="released", width="printed")]


@pytest.mark.parametrize("h", SWITCHES, ids=str)
def test_every_switch_is_finite_and_does_something(h, whole):
    r = run(**h)
    assert r.history.value.abs().max() < 1e6 and r.history.value.notna().all()
    assert bits(r) != bits(whole)
