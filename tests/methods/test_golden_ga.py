"""GA as released against what the authors' own training loop gave; see golden/ga.py."""
import json
from pathlib import Path
import pytest
import torch
from torch import nn
from fdgnb.core import seeded
from fdgnb.data.domain import Split
from fdgnb.federation.loop import Client, Server, downloads, federated_round
from fdgnb.federation.steps import index_batches
from fdgnb.methods.ga import GA
from fdgnb.settings import Settings

GOLDEN = json.loads((Path(__file__).parent.parent/"golden"/"ga.json").read_text())
HOW = GOLDEN["settings"]


class InOrder(GA):
    "Batches in order, as the script's loaders give them."
    def sample(self, client, rng):
        s = client.settings
        for _ in range(s.local_epochs): yield from index_batches(torch.arange(client.n()), s.batch_size)


def double(v): return torch.tensor(v, dtype=torch.float64)


def federation(**hyper):
    "(method, server, clients, network) on the golden inputs."
    s = Settings(lr=HOW["lr"], batch_size=HOW["batch_size"], local_epochs=HOW["local_epochs"], momentum=.9,
                 weight_decay=5e-4, keep_optimizer=True, lr_drops=(.8,))
    with seeded(0): layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    net = nn.Sequential(*layers).double()
    start = {k: double(v) for k, v in GOLDEN["start"].items()}
    split = lambda x, y: Split(double(x), torch.tensor(y))
    clients = [Client(k, {s_: split(*xy) for s_, xy in v.items()}, s, rounds=HOW["comm"])
               for k, v in GOLDEN["data"].items()]
    server = Server(start, [c.id for c in clients], s, rounds=HOW["comm"])
    method = InOrder(variant="released", d=HOW["step_size"], **hyper)
    method.setup(server)
    return method, server, clients, net


@pytest.mark.parametrize("fair, gap, near", [("acc", "accuracy", 1e-9), ("loss", "loss", 1e-6)])
def test_as_released(fair, gap, near):
    """Every weight and every number of the global model in six rounds: its loop makes one more than `comm`.

    Losses are measured in float32 here, accuracies are counted."""
    method, server, clients, net = federation(gap=gap)
    down = downloads(method, server)
    for r, want in enumerate(GOLDEN["rounds"][fair]):
        down = federated_round(method, server, clients, net, down, r)
        weights = double([want["weights"][k] for k in server.clients])
        assert torch.allclose(server.state["ga.a"], weights, rtol=0, atol=near), r
        for k, v in want["model"].items():
            assert torch.allclose(server.model[k], double(v), rtol=0, atol=near), (r, k)
