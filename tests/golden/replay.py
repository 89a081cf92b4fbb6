"""Our code on the input of a golden file, compared with the numbers in it."""
import json
from pathlib import Path
import numpy as np
import torch
from torch import nn
from fdgnb.federation.loop import Method, Server, client_update
from fdgnb.federation.loop import Client
from fdgnb.methods import drift, reweighting, sharpness
from fdgnb.settings import Settings

HERE = Path(__file__).parent
exact = lambda v: torch.tensor(v, dtype=torch.float64)


def close(a, b, eps=1e-9):
    "Whether numbers agree."
    as_array = lambda v: v.detach().numpy() if torch.is_tensor(v) else np.array(v, float)
    np.testing.assert_allclose(as_array(a), as_array(b), atol=eps, rtol=0)


def stored(key): return (HERE/f"{key}.json").exists()


class Bowl(Method):
    "Half the curvature times the squared distance from a center, entry by entry; a sample is both."
    def loss(self, model, x, y, client):
        center, curvature = client.splits["train"].x[0].chunk(2)
        return (curvature*(model.w - center)**2).sum()/2


def vector(start):
    net = nn.Module()
    net.w = nn.Parameter(exact(start))
    return net


def world(cls, g, k, steps, momentum=0., **hyper):
    "A method on the world of a golden file, and one of its clients."
    x = exact([g["centers"][k] + g["curvature"][k]]*2)
    s = Settings(lr=g["lr"], local_steps=steps, momentum=momentum, batch_size=2)
    toy = type(cls.__name__, (cls, Bowl), {})(**hyper)
    return toy, Client(str(k), dict(train=(x, torch.zeros(2, dtype=torch.long))), s)


def fednova(g, made):
    for case in made.values():
        how, uploads = dict(momentum=case["momentum"], mu=case["mu"]), []
        server = Server({"w": exact(g["start"])}, "01", net=vector(g["start"]))
        for k in range(2):
            toy, client = world(drift.FedNova, g, k, g["steps"][k], **how)
            u = client_update(toy, vector(g["start"]), client, {"model.w": exact(g["start"])}, 0)
            close(u["scalars.fednova.a"], case["reach"][k])
            uploads.append((str(k), u | {"scalars.n": exact(g["n"][k])}))
        toy.aggregate(server, uploads)
        close(server.model["w"], case["new"])


def fedcm(g, made):
    toy, client = world(drift.FedCM, g, 0, g["steps"], alpha=g["alpha"])
    down = {"model.w": exact(g["start"]), "stats.fedcm.w": exact(g["delta"])}
    close(client_update(toy, vector(g["start"]), client, down, 0)["model.w"], made["new"])


def server_step(cls, g, made):
    "The steps of a server's optimizer, each from where the last one led."
    rule, zero = cls(eta=g["eta"], tau=g["tau"]), [0.]*3
    server = Server({"w": exact(zero)}, "a", net=vector(zero))
    for d, step in zip(g["moves"], made["steps"]):
        old = server.model["w"]
        rule.aggregate(server, [("a", {"model.w": old + exact(d), "scalars.n": exact(1.)})])
        close(server.model["w"] - old, step)


def ascent(cls, g, made):
    rule = cls(**{k: g[k] for k in vars(cls().h)})
    names = ("weight", "bias")
    stretch = [rule._stretch(k, exact(g[k])) for k in names]
    eps = sharpness.ascent([exact(g[f"g_{k}"]) for k in names], g["rho"], stretch)
    for k, e in zip(names, eps): close(exact(g[k]) + e, made[k])


def arfl(g, made):
    n = exact(g["n"])
    for reg, a in made.items(): close(reweighting.water_filling(exact(g["losses"]), n, float(reg)*n.sum()), a)


def fedheal(g, made):
    server = Server({"w": torch.zeros(3)}, "01", net=vector([0.]*3))
    rule = reweighting.FedHEAL(tau=g["tau"], beta=g["beta"])
    rule.setup(server)
    for moves, want in zip(g["rounds"], made["path"]):
        base = server.model["w"]
        up = lambda d: {"model.w": base + torch.tensor(d), "scalars.n": exact(1.)}
        rule.aggregate(server, [(str(k), up(d)) for k, d in enumerate(moves)])
        close(server.model["w"], want, 1e-6)


REPLAY = dict(fednova=fednova, fedcm=fedcm, arfl=arfl, fedheal=fedheal,
              fedadam=lambda *a: server_step(drift.FedAdam, *a),
              fedyogi=lambda *a: server_step(drift.FedYogi, *a),
              fedadagrad=lambda *a: server_step(drift.FedAdagrad, *a),
              fedsam=lambda *a: ascent(sharpness.FedSAM, *a), fedasam=lambda *a: ascent(sharpness.FedASAM, *a))


def compare(key):
    "AssertionError where ours differs from the numbers of tests/golden/<key>.json."
    golden = json.loads((HERE/f"{key}.json").read_text())
    REPLAY[key](golden["given"], golden["made"])
