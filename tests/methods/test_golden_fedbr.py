"""FedBR as released against numbers that the authors' own code gave (tests/golden/fedbr.py), to 1e-9."""
from pathlib import Path
import numpy as np
import pytest, torch
from safetensors import safe_open
from torch import nn
import fdgnb.methods.fedbr as fedbr
from fdgnb.core import seeded
from fdgnb.federation.loop import Client, Server, client_update, downloads, server_update
from fdgnb.methods.fedbr import FedBR
from fdgnb.models import Net, chain
from fdgnb.settings import Settings

FILE = Path(__file__).parent.parent/"golden"/"fedbr.safetensors"
NAMES = {"features.fc": "featurizer.fc", "features.bn": "featurizer.bn", "head": "classifier",
         "projection.fc1": "discriminator.input", "projection.fc2": "discriminator.hiddens.0",
         "projection.fc3": "discriminator.output"}
CASES = dict(rsm={}, mixture=dict(pseudo="mixture"), mixup=dict(mixup=True),
             both=dict(pseudo="mixture", mixup=True))
SETTINGS = Settings(lr=.1, batch_size=8)
STEPS = (0, 12), (12, 16)                                              # of the two rounds


@pytest.fixture(scope="module")
def golden():
    with safe_open(FILE, "pt") as f: return {k: f.get_tensor(k) for k in f.keys()}


def state(golden, which, net):
    "Their state under our names: weights and running statistics."
    theirs = {q: f"{which}.{NAMES[q.rpartition('.')[0]]}.{q.rpartition('.')[2]}"
              for q, v in net.state_dict().items() if v.dim()}
    return {q: golden[k] for q, k in theirs.items()}


def network(method):
    "The network of the golden run, as ours, in double precision."
    with seeded(0):
        features = chain(fc=nn.Linear(6, 8), bn=nn.BatchNorm1d(8), relu=nn.ReLU())
        return method.build(Net("tiny", features, nn.Linear(8, 4), 8, 4, 6)).double()


class Given(FedBR):
    "FedBR on the golden run's batches."
    def sample(self, client, rng): return iter(client.rows[slice(*STEPS[client.round])])


def same_draws(golden, monkeypatch, case, i, steps):
    "In these steps client i mixes with the partners, shares and orders that were drawn in the golden run."
    partners, shares, orders = (golden.get(f"{case}.{k}") for k in ("partners", "shares", "orders"))
    if partners is not None:
        drawn = iter(partners[steps, i])
        monkeypatch.setattr(torch, "randint", lambda *a, **kw: next(drawn))
    if shares is not None:
        pairs = zip(shares[steps, i, 0].tolist(), orders[steps, i])
        monkeypatch.setattr(fedbr, "mixup_draw", lambda n, rng: next(pairs))


def largest(state, wanted): return max((state[k] - v).abs().max().item() for k, v in wanted.items())


def played(golden, monkeypatch, case, **hyper):
    "{what: largest difference} of twelve steps, an average, four steps, an average, with theirs."
    method = Given(variant="released", **CASES[case] | hyper)
    net = network(method)
    first = [dict(net.state_dict()) | state(golden, f"first.{i}", net) for i in range(4)]
    monkeypatch.setattr(fedbr, "redraw_weights", lambda server, k: first[1 + int(k)])
    server = Server({k: v.clone() for k, v in first[0].items()}, "012", SETTINGS, 0, 2, net=net, n_classes=4)
    clients = [Client(k, dict(train=(golden["x"][i].double()/255, golden["y"][i])), SETTINGS, 0, 2)
               for i, k in enumerate("012")]
    method.setup(server)
    server.state["fedbr.pool"] = golden["pool"]
    down, out, ups = downloads(method, server), {}, {}
    for i, c in enumerate(clients): c.rows = golden["rows"][i]
    for r in range(2):
        for i, c in enumerate(clients):
            with monkeypatch.context() as m:
                same_draws(golden, m, case, i, slice(*STEPS[r]))
                ups[c.id] = client_update(method, net, c, down[c.id], r)
        if not r:
            ours = [{k[6:]: v for k, v in up.items() if k.startswith("model.")} for up in ups.values()]
            theirs = [state(golden, f"{case}.trained.{i}", net) for i in range(3)]
            out["steps"] = max(map(largest, ours, theirs))
        down = server_update(method, server, ups.items(), r)
        out[f"average {r + 1}"] = largest(server.model, state(golden, f"{case}.average.{r}", net))
    return out


@pytest.mark.parametrize("case", CASES)
def test_steps_and_averages_as_released(golden, monkeypatch, case):
    apart = played(golden, monkeypatch, case)
    print(case, apart)
    assert len(apart) == 3 and max(apart.values()) < 1e-9


OTHERWISE = [("rsm", dict(order="local")), ("rsm", dict(first="same")), ("mixture", dict(partners="any")),
             ("mixup", dict(mixup=False))]

@pytest.mark.parametrize("case, h", OTHERWISE, ids=str)
def test_each_switch_matters(golden, monkeypatch, case, h):
    apart = played(golden, monkeypatch, case, **h)
    print(case, h, apart)
    assert max(apart.values()) > 1e-4


def test_means_as_released(golden):
    "Each of the released means is that of the ten rows it read, of one client, and some row was read twice."
    x, who, rows = golden["x"].double()/255, golden["pool_client"], golden["pool_rows"]
    means = torch.stack([x[k][r].mean(0) for k, r in zip(who, rows)])
    assert (means - golden["pool"]).abs().max() < 1e-12
    assert min(len(r.unique()) for r in rows) < 10 and len(set(np.bincount(who.numpy()))) > 1


def test_where_the_numbers_come_from():
    with safe_open(FILE, "pt") as f: about = f.metadata()
    assert about["repository"] == "LINs-lab/FedBR" and len(about["commit"]) == 40
    assert "FedBR.update" in about["functions"]
