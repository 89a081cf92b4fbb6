"""Personal parts: what stays with a client, what an unseen one gets, golden numbers, resume, sums."""
import json
from pathlib import Path
import pytest
import torch
from torch import nn
import fdgnb.methods.personal as personal
from conftest import bits, run, same_bits, sized
from fdgnb.core import seeded
from fdgnb.federation.loop import Client, Server, client_update, weigh
from fdgnb.federation.toys import same
from fdgnb.methods.personal import DSBN, Ditto, FedBN, LGFedAvg
from fdgnb.methods.personal import entries_of, first_moments, learn_gates, mix_layers, nearest_branch
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings

ALL = [("local", {}), ("lgfedavg", {}), ("lgfedavg", dict(unseen="initial")), ("fedbn", {}),
       ("fedbn", dict(unseen="initial")), ("dsbn", {}), ("dsbn", dict(answer="nearest")), ("ditto", {}),
       ("partialfed", {}), ("partialfed", dict(strategy="adaptive"))]
GOLDEN = Path(__file__).parent/"golden"
each = pytest.mark.parametrize("name, h", ALL)


def golden(key): return json.loads((GOLDEN/f"{key}.json").read_text())


@pytest.fixture(scope="module")
def plain(tiny): return run("fedavg", tiny)


@pytest.fixture(scope="module")
def initial(tiny): return Federation("fedavg", tiny, "blended", 2, lr=.05, batch_size=16)


@pytest.mark.parametrize("name, h", [(n, h) for n, h in ALL if h])
def test_same_bits(monkeypatch, tiny, tmp_path, name, h): same_bits(monkeypatch, tmp_path, name, tiny, **h)


@each
def test_with_ga_and_with_clients_that_stay_away(tiny, name, h):
    "A sum with GA runs and differs from GA; who misses a round keeps what is its own."
    kw = dict(rounds=3, drops=((2, "inked"),))
    both = run(f"{name}+ga", tiny, **kw, **h)
    assert bits(both) != bits(run("ga", tiny, **kw))
    assert all(v.isfinite().all() for v in both.fed.server.model.values())


# ---- what an unseen client gets

def unseen(name, data, **h): return run(name, data, **h).model_of().state_dict()


@pytest.mark.parametrize("name, what", [("fedbn", "bn"), ("lgfedavg", "features")])
def test_unseen_initial_leaves_own_entries_as_they_began_and_sends_nothing_of_them(tiny, initial, name, what):
    held = unseen(name, tiny, unseen="initial")
    own = entries_of(initial.net, what)
    moved = {k for k in held if not torch.equal(held[k], initial.server.model[k])}
    assert moved == held.keys() - set(own)
    up = lambda **h: run(name, tiny, **h).ledger.query("direction == 'up' and kind == 'model'").bytes.sum()
    spared = sum(initial.server.model[k].nbytes for k in own)
    assert up() - up(unseen="initial") == spared*2*3                      # two rounds, three clients


def test_lgfedavg_sends_down_the_head_after_the_first_round(tiny, initial):
    book = run("lgfedavg", tiny).ledger.query("kind == 'model' and direction == 'down'")
    head = sum(initial.server.model[k].nbytes for k in entries_of(initial.net, "head"))
    whole = sum(v.nbytes for v in initial.server.model.values())
    assert {*zip(book["round"], book.bytes)} == {(1, whole), (2, head)}


# ---- neutral settings, to the bit

def test_local_with_one_client_is_fedavg(tiny):
    one = sized(tiny, optical=60, blended=40)
    assert same(run("local", one).model_of("optical").state_dict(), run("fedavg", one).fed.server.model)


@pytest.mark.parametrize("kw", [dict(clip=.5), dict(momentum=.9, keep_optimizer=True)])
def test_ditto_without_pull_is_fedavg_and_local_side_by_side(tiny, kw):
    ditto, alone = run("ditto", tiny, lam=0., **kw), run("local", tiny, **kw)
    assert same(ditto.fed.server.model, run("fedavg", tiny, **kw).fed.server.model)
    if "momentum" in kw: return                       # v's optimizer is new in each round, local's is kept
    for k in ("optical", "inked"): assert same(ditto.model_of(k).state_dict(), alone.model_of(k).state_dict())


# ---- formulas

class Toy(nn.Module):
    "BatchNorm layers whose names do not say so."
    def __init__(self):
        super().__init__()
        with seeded(0):
            self.features = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3), nn.BatchNorm1d(3))
            self.head = nn.Linear(3, 2)
        g = torch.Generator().manual_seed(4)
        for p in self.parameters(): p.data = torch.rand(p.shape, generator=g)

    def forward(self, x): return self.head(self.features(x))


def test_batchnorm_is_found_by_its_type():
    own = set(entries_of(Toy(), "bn"))
    assert {k.rpartition(".")[0] for k in own} == {"features.0", "features.2"} and len(own) == 10


class Quadratic:
    "A sample is (c, h); the loss h (theta - c)^2 / 2."
    def loss(self, model, x, y, client): return (x[:, 1]*(model.theta - x[:, 0])**2).mean()/2


class ScalarDitto(Quadratic, Ditto): "Ditto on a number."


def resting_point(lam, c=2., h=3., w=-1.):
    "Where Ditto's personal number comes to rest while the global one is held at w."
    net = nn.Module()
    net.theta = nn.Parameter(torch.tensor(0., dtype=torch.float64))
    data = dict(train=(torch.tensor([[c, h]]).double(), torch.zeros(1, dtype=torch.long)))
    client = Client("a", data, Settings(lr=.1, local_epochs=2))
    for r in range(80):
        client_update(ScalarDitto(lam=lam), net, client, {"model.theta": torch.tensor(w).double()}, r)
    return client.state["ditto.theta"].item()


def at_rest(lam): return abs(resting_point(lam) - (3*2 + lam*-1)/(3 + lam)) < 1e-9


def test_ditto_rests_between_the_optimum_and_the_global_model(): assert at_rest(.5) and at_rest(2.)


def test_gates_load_what_helps():
    loss = lambda s, batch: (1 - s[0])**2 + s[1]**2
    descend = lambda f: learn_gates(torch.zeros(2), f, range(60), torch.Generator().manual_seed(1), 1., .5)
    a, turned = descend(loss), descend(lambda s, batch: -loss(s, batch))
    assert a[0] > 0 > a[1] and turned[0] < 0 < turned[1]                  # mutation: the sign


def test_layers_are_mixed_from_the_right_side():
    theta, own = ({k: torch.full((2,), v) for k in ("p.x", "q.x")} for v in (1., 3.))
    mixed = lambda a, b: [v[0].item() for v in mix_layers(a, b, torch.tensor([1., .25])).values()]
    assert mixed(theta, own) == [1., 2.5] and mixed(own, theta) != [1., 2.5]


def test_nearest_branch_is_the_clients_own(tiny):
    r = run("dsbn", tiny, local_epochs=12, lr=1e-3)           # the running statistics need some steps
    held = r.fed.method.download(r.fed.server, "new")
    branches = personal.split_by_branch({k[len("stats.dsbn."):]: v for k, v in held.items() if "dsbn" in k})
    assert len(branches) == 3
    net = r.model_of()
    for i, c in enumerate(r.fed.clients):
        found = first_moments(net, c.splits["train"].samples(), "none")
        assert nearest_branch(branches, *found) is branches[i]


# ---- golden numbers of other implementations (tests/golden/personal.py made them)

def tensors(state): return {k: torch.tensor(v, dtype=torch.float64) for k, v in state.items()}


def test_golden_fedbn():
    "The official averaging of two networks: shared entries alike, BatchNorm each its own."
    g = golden("fedbn")
    states, weights = [tensors(s) for s in g["models"]], g["weights"]

    class Given(FedBN):
        def weight(self, server, k, upload): return weights["ab".index(k)]
    method, clients = Given(unseen="initial"), [Client(k, {}) for k in "ab"]
    net, uploads = Toy().double(), []
    server = Server(tensors(g["server"]), "ab", net=Toy())
    for c, state in zip(clients, states):
        net.load_state_dict(state)
        c.scratch["loss"] = 0.
        method.end(net, c)
        uploads.append((c.id, {k: v.clone() for k, v in method.upload(net, c).items()}))
    method.aggregate(server, weigh(method, server, uploads))
    assert server.model.keys() == g["new_server"].keys()
    for k, v in tensors(g["new_server"]).items(): assert torch.allclose(server.model[k].double(), v), k
    for c, want in zip(clients, g["new_models"]):
        method.receive(net, c, method.download(server, c.id))
        for k, v in tensors(want).items(): assert torch.allclose(net.state_dict()[k].double(), v), (c.id, k)


def test_golden_ditto():
    "PFLlib's optimizer of the personal model, its anchor held at the received model."
    g = golden("ditto")
    with seeded(0): net = nn.Linear(3, 2).double()
    start, pulled_to = tensors(g["start"]), tensors(g["anchor"])
    x, y = torch.tensor(g["x"], dtype=torch.float64), torch.tensor(g["y"])

    class WholeBatch(Ditto):
        def sample(self, client, rng): return [torch.arange(len(y))]*g["steps"]
        def batch(self, x_, y_, client, rng): return x, y
    client = Client("a", dict(train=(x.float(), y)), Settings(lr=g["lr"]))
    client.state |= {f"ditto.{k}": v for k, v in start.items()}
    down = {f"model.{k}": v for k, v in pulled_to.items()}
    client_update(WholeBatch(lam=g["mu"]), net, client, down, 0)
    for k, v in tensors(g["end"]).items(): assert torch.allclose(client.state[f"ditto.{k}"], v, atol=1e-12), k


def test_golden_lgfedavg():
    "FLGo's client: what it makes of a new global model."
    g = golden("lgfedavg")
    client, net = Client("a", {}), Toy().double()
    net.load_state_dict(tensors(g["own"]))
    client.state |= {f"lgfedavg.{k}": net.state_dict()[k].clone() for k in entries_of(net, "features")}
    LGFedAvg().receive(net, client, {f"model.{k}": v for k, v in tensors(g["sent"]).items()})
    for k, v in tensors(g["held"]).items(): assert torch.equal(net.state_dict()[k].double(), v), k


def test_golden_dsbn():
    "The official layer with two branches: what the client of each domain and an unseen one compute."
    g = golden("dsbn")
    class Layer(nn.Module):
        "One BatchNorm and nothing else."
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(2).double()
        def forward(self, x): return self.bn(x).flatten(1)
    net = Layer().eval()
    server = Server(net.state_dict(), "ab", net=Layer())
    for i, branch in enumerate(g["branches"]):
        server.state |= {f"dsbn.{i}.bn.{k}": v for k, v in tensors(branch).items()}
    x, outs = (torch.tensor(g[k], dtype=torch.float64) for k in ("x", "out"))
    outs = outs.flatten(2)
    method = DSBN()
    for k, out in zip("ab", outs):
        method.receive(net, Client(k, {}), method.download(server, k))
        assert torch.allclose(net(x), out)
    unseen = Client("new", {})
    method.receive(net, unseen, method.download(server, "new"))
    assert torch.allclose(method.predict(net, x, unseen).exp(), outs.softmax(2).mean(0))
