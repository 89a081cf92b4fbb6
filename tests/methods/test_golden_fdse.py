"""Both releases of FDSE against what the authors' own classes gave; see golden/fdse.py."""
import json
from collections import OrderedDict
from pathlib import Path
import pytest
import torch
from torch import nn
from fdgnb.core import seeded
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client, Server, downloads, federated_round
from fdgnb.federation.steps import index_batches
from fdgnb.methods.fdse import recall
from fdgnb.settings import Settings

GOLDEN = json.loads((Path(__file__).parents[1]/"golden"/"fdse.json").read_text())
HOW, RUNS = GOLDEN["settings"], GOLDEN["runs"]
FIRST = dict(inner=True, identity="conv", shift="personal", penalty="v1")
BLOCKS = {"use_dse_activate": dict(inner="leaky"), "shortcut": dict(identity="none"), "ratio": dict(G=1)}
NAMES = dict(dfe_conv="dfe", dse_bn="bn_dse", dse_conv="dse", dfe_bias="shift", dfe_bn="bn_dfe",
             Vshare="dfe", norm_V="bn_dse", Up="dse", Vbias="own_shift", bn="bn_dfe")


def double(v): return torch.tensor(v, dtype=torch.float64)
def ours(key): return ".".join(NAMES.get(k, k) for k in key.split("."))


class InOrder(method_class("fdse")):
    "The next two batches in order, as the script gives them."
    def sample(self, client, rng):
        every, n = index_batches(torch.arange(client.n()), HOW["batch_size"]), HOW["steps"]
        return [every[(client.round*n + i) % len(every)] for i in range(n)]


def network():
    "Plain layers where the script has the authors' blocks."
    def split(name, op, bn): return {name: op, f"{name}_bn": bn, f"{name}_relu": nn.ReLU()}
    layers = (split("conv1", nn.Conv2d(2, 4, 3, 1, 1), nn.BatchNorm2d(4))
              | split("conv2", nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6))
              | dict(pool=nn.AvgPool2d(2), flat=nn.Flatten())
              | split("fc1", nn.Linear(24, 6), nn.BatchNorm1d(6)) | dict(head=nn.Linear(6, 3)))
    return nn.Sequential(OrderedDict(layers)).double()


def differences(run):
    "Largest difference of a number after each round: shared entries, and each client's own."
    block = FIRST if run["release"] == "first" else BLOCKS.get(next(iter(run["options"]), ""), {})
    how = dict(lam=HOW["lmbd"][run["release"]], beta=HOW["beta"], tau=HOW["tau"])
    method = InOrder(variant="released", **how, **block)
    with seeded(0): net = method.build(network())
    shapes = {k: v.shape for k, v in net.state_dict().items()}
    states = lambda s: {ours(k): double(v).reshape(shapes[ours(k)]) for k, v in s.items()}
    start = states(run["start"])
    assert {k for k in shapes if "num_batches" not in k} == start.keys()
    s = Settings(lr=HOW["lr"], batch_size=HOW["batch_size"])
    clients = [Client(k, dict(train=(double(x), torch.tensor(y))), s) for k, (x, y) in GOLDEN["data"].items()]
    server = Server({k: v.clone() for k, v in net.state_dict().items()} | start, list(GOLDEN["data"]), s)
    method.setup(server)
    down = downloads(method, server)
    for r, want in enumerate(run["rounds"]):
        down = federated_round(method, server, clients, net, down, r)
        pairs = [(recall(server, c.id), v) for c, v in zip(clients, want["own"])]
        pairs += [(server.model, want["shared"])]
        both = ((here[k], v) for here, there in pairs for k, v in states(there).items())
        yield max(float((a - b).abs().max()) for a, b in both)


@pytest.mark.parametrize("run", RUNS, ids=lambda r: " ".join([r["release"], *r["options"]]))
def test_as_released(run):
    "Four rounds of three clients (options: two). Theirs divides by a norm plus 1e-8, ours by the norm."
    assert max(differences(run)) < 1e-6
