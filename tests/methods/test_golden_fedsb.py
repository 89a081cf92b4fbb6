"""FedSB as released against what the authors' own functions gave; see golden/fedsb.py."""
import json
from pathlib import Path
import torch
from torch import nn
from fdgnb.core import seeded
from fdgnb.federation.loop import Client, Server, downloads, federated_round
from fdgnb.methods.fedsb import FedSB
from fdgnb.settings import Settings

GOLDEN = json.loads((Path(__file__).parent.parent/"golden"/"fedsb.json").read_text())
HOW = GOLDEN["settings"]


def double(v): return torch.tensor(v, dtype=torch.float64)


def differences():
    "Largest difference of a number of the global model after each of three rounds."
    s = Settings(optimizer="adam", **{k: HOW[k] for k in ("lr", "batch_size", "weight_decay")})
    with seeded(0): layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    net = nn.Sequential(*layers).double()
    start = net.state_dict() | {k: double(v) for k, v in GOLDEN["start"].items()}
    clients = [Client(k, dict(train=(double(x), torch.tensor(y))), s) for k, (x, y) in GOLDEN["data"].items()]
    method = FedSB(variant="released", epsilon=HOW["smoothing"], S=HOW["budget"]*HOW["batch_size"])
    server = Server({k: v.clone() for k, v in start.items()}, list(GOLDEN["data"]), s, rounds=HOW["rounds"])
    down = downloads(method, server)
    for r, want in enumerate(GOLDEN["rounds"]):
        down = federated_round(method, server, clients, net, down, r)
        yield max(float((server.model[k] - double(v)).abs().max()) for k, v in want.items())


def test_as_released():
    "Three clients; the last batch of one has a single sample, another has more samples than the budget."
    assert max(differences()) < 1e-9
