"""Our code on the input of a golden file, compared with the numbers in it.

The methods of the first half play single steps (`compare`); of the five systems whole rounds are played:
`read` a file, `make_federation` of its clients and first weights, `play` it, and see how far the weights are off.
"""
import json
from pathlib import Path
import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from fdgnb.core import seeded
from fdgnb.federation.loop import Client, Method, Server, client_update, downloads, federated_round, weigh
from fdgnb.methods import drift, reweighting, sharpness
from fdgnb.settings import Settings
from fdgnb.vectors import part

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
        toy.aggregate(server, weigh(toy, server, uploads))
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
        sent = [("a", {"model.w": old + exact(d), "scalars.n": exact(1.)})]
        rule.aggregate(server, weigh(rule, server, sent))
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
        rule.aggregate(server, weigh(rule, server, [(str(k), up(d)) for k, d in enumerate(moves)]))
        close(server.model["w"], want, 1e-6)


class Linear(nn.Module):
    "The linear classifier of FedDyn's repository, its weights in a row."
    def __init__(self, flat):
        super().__init__()
        with seeded(0): self.fc = nn.Linear(2, 3).double()
        nn.utils.vector_to_parameters(exact(flat), self.parameters())

    def forward(self, x): return self.fc(x)


def in_a_row(state): return torch.cat([state["fc.weight"].flatten(), state["fc.bias"]])


def rounds_of(cls, g, made, **hyper):
    "Rounds of FedDyn's repository (its numbers are float32) with the clients that it drew."
    method, net = cls(**hyper), Linear(g["start"])
    s = Settings(lr=g["lr"], local_steps=g["steps"], batch_size=6)
    server = Server({k: v.clone() for k, v in net.state_dict().items()}, "012", s, net=Linear(g["start"]))
    method.setup(server)
    data = zip("012", g["x"], g["y"])
    clients = [Client(k, dict(train=(exact(x), torch.tensor(y))), s) for k, x, y in data]
    for r, (who, want) in enumerate(zip(g["who"], made["models"])):
        start = dict(server.model)
        taking = [clients[i] for i in who]
        ups = [(c.id, client_update(method, net, c, method.download(server, c.id), r)) for c in taking]
        method.aggregate(server, weigh(method, server, ups))
        new = in_a_row(server.model)
        if cls is drift.FedDyn: new = sum(in_a_row(part(u, "model")) for _, u in ups)/len(ups)
        close(new, want, 2e-6)
        assert not torch.allclose(in_a_row(start), new)


def groupdro(g, made):
    "Our weights of clients, and the loss they make, where DomainBed has them in each of its steps."
    rule, server = reweighting.GroupDRO(eta_q=g["eta"]), Server({"w": exact([0.])}, "012", net=vector([0.]))
    rule.setup(server)
    for server.round, (logits, want) in enumerate(zip(g["logits"], made["rounds"])):
        losses = [nn.functional.cross_entropy(exact(x), torch.tensor(y)) for x, y in zip(logits, g["y"])]
        up = lambda v: {"model.w": v[None], "scalars.n": exact(1.), "scalars.reweighting.loss": v}
        rule.aggregate(server, weigh(rule, server, [(k, up(v)) for k, v in zip("012", losses)]))
        a = exact(list(server.weights.values()))
        close(a/a.sum(), want["q"], 1e-6)
        close(server.model["w"], [want["loss"]], 1e-6)


def fedgma(g, made):
    "FedDG_Benchmark's step, written with our agreement and our mean; and where ours goes instead."
    server = Server({"w": exact(g["start"])}, "0123", net=vector(g["start"]))
    sent = enumerate(zip(g["models"], g["n"]))
    ups = [(str(i), {"model.w": exact(w), "scalars.n": exact(n)}) for i, (w, n) in sent]
    a = reweighting.agreement(reweighting.client_moves(server, ups, "w"))
    move = exact(g["n"]) @ (exact(g["models"]) - exact(g["start"]))/sum(g["n"])
    close(exact(g["start"]) + torch.where(a >= g["tau"], g["tau"]*(1 + a), 0.)*move, made["released"])
    rule = reweighting.FedGMA(tau=g["tau"])
    rule.aggregate(server, weigh(rule, server, ups))
    close(server.model["w"], exact(g["start"]) + torch.where(a >= g["tau"], 1., a)*move)


REPLAY = dict(fednova=fednova, fedcm=fedcm, arfl=arfl, fedheal=fedheal, groupdro=groupdro, fedgma=fedgma,
              fedprox=lambda g, made: rounds_of(drift.FedProx, g, made, mu=g["mu"]),
              scaffold=lambda g, made: rounds_of(drift.Scaffold, g, made),
              feddyn=lambda g, made: rounds_of(drift.FedDyn, g, made, alpha=g["alpha_coef"]),
              fedadam=lambda *a: server_step(drift.FedAdam, *a),
              fedyogi=lambda *a: server_step(drift.FedYogi, *a),
              fedadagrad=lambda *a: server_step(drift.FedAdagrad, *a),
              fedsam=lambda *a: ascent(sharpness.FedSAM, *a),
              fedasam=lambda *a: ascent(sharpness.FedASAM, *a))


def compare(key):
    "AssertionError where ours differs from the numbers of tests/golden/<key>.json."
    golden = read(key)
    REPLAY[key](golden["given"], golden["made"])


# ---- whole rounds
def read(key):
    "What a golden file holds: the dict of a .json, or {name: tensor} of a .safetensors."
    if stored(key): return json.loads((HERE/f"{key}.json").read_text())
    with safe_open(HERE/f"{key}.safetensors", "pt") as file:
        return {k: file.get_tensor(k) for k in file.keys()}


def make_federation(method, net, start, data, settings, rounds, **of_server):
    """(server, clients) of a method that is set up.

    start: first weights, which may leave out what the network has; data: {client: its splits}."""
    model = {k: v.clone() for k, v in net.state_dict().items()} | start
    server = Server(model, list(data), settings, rounds=rounds, net=net, **of_server)
    method.setup(server)
    return server, [Client(k, splits, settings, rounds=rounds) for k, splits in data.items()]


def play(method, server, clients, net, rounds=None):
    "Play all rounds, or so many; after each, what is sent next: {client: payload}."
    down = downloads(method, server)
    for r in range(rounds or server.rounds):
        down = federated_round(method, server, clients, net, down, r)
        yield down


def largest_difference(state, wanted):
    "How far the entries of a state are from those wanted, at most."
    return max(float((state[k] - v).abs().max()) for k, v in wanted.items())
