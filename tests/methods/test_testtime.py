"""Test time: golden batches of Tent and BatchNorm statistics, a sorted target, Tent and DSBN together."""
import json
from dataclasses import replace
from pathlib import Path
import torch
from torch import nn
from fdgnb.core import generator, seeded
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.federation.loop import Client
from fdgnb.methods.testtime import Tent, reestimate, use_batch_statistics
from bars import bars, short

GOLDEN = Path(__file__).parent.parent/"golden"


def golden(key):
    "The numbers of a file, and its network."
    g = json.loads((GOLDEN/f"{key}.json").read_text())
    with seeded(0):
        net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2),
                            nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()
    net.load_state_dict({k: torch.tensor(v, dtype=net.state_dict()[k].dtype) for k, v in g["start"].items()})
    return g, net.eval()


def near(ours, theirs, atol=1e-7):
    torch.testing.assert_close(ours.double(), torch.as_tensor(theirs, dtype=torch.float64), rtol=0, atol=atol)


def test_golden_tent():
    "Three batches; nothing but scale and shift moves."
    (g, net), who, tent = golden("tent"), Client("t", {}), Tent(tent_lr=.01)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    tent.adapt(net, None, who)
    with torch.no_grad():
        for x, answer in zip(g["batches"], g["answers"]): near(tent.predict(net, torch.tensor(x).double(), who), answer)
    for k, v in g["end"].items(): near(net.state_dict()[k], v)
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k]) and "tracked" not in k}
    assert moved == {"1.weight", "1.bias", "4.weight", "4.bias"}


def test_golden_bnstats():
    "One batch: the authors' layers with momentum 1 keep its statistics, ours its average; `prior` counts as samples."
    (g, net), (_, source), (_, mixed) = (golden("bnstats") for _ in range(3))
    x = torch.tensor(g["batches"][0], dtype=torch.float64)
    near(use_batch_statistics(golden("bnstats")[1])(x), g["answers"])
    reestimate(net.float(), x.float())
    reestimate(mixed.float(), x.float(), 10.)
    for k, v in g["end"].items():
        if "running" not in k: continue
        near(net.state_dict()[k], v, 1e-5)
        near(mixed.state_dict()[k], (10*source.state_dict()[k] + 5*torch.tensor(v))/15, 1e-4)


def test_a_sorted_target_is_seen_in_a_drawn_order_and_answered_in_its_own():
    images, seen = bars(), {}
    target, at = images["t"], images["t"].y.argsort(stable=True)
    images = replace(images, domains=images.domains | dict(t=replace(target, x=target.x[at], y=target.y[at])))
    for order in ("drawn", "stored"):
        class Looks(METHODS["tent"]):
            name = f"looks_{order}"
            def predict(self, model, x, client):
                seen.setdefault(order, []).append(x)
                return super().predict(model, x, client)
        short(Looks, images, eval_every=1, tent_order=order, tent_batch=4)
    x = images["t"].x
    as_stored = {k: torch.equal((torch.cat(batches)*255).round().byte(), x) for k, batches in seen.items()}
    assert as_stored == dict(drawn=False, stored=True)
    a, b = (short("tent", images, tent_order=order, tent_lr=0.).adapt(x).predict(x) for order in ("drawn", "stored"))
    near(a, b, 1e-4)


# ---- Tent and DSBN together

def three_branches():
    "Three networks that differ in BatchNorm's scale and shift."
    nets, g = [], generator(6)
    for _ in range(3):
        with seeded(0):
            net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).double()
        for p in (*net[0].parameters(), *net[2].parameters()): p.data += torch.randn(p.shape, generator=g)
        nets.append(net.eval())
    return nets


def online(key, batches):
    "A sum's answers to batches."
    nets, who = three_branches(), Client("t", {})
    branch = lambda net: {k: v.clone() for k, v in net.state_dict().items() if k.startswith(("0.", "2."))}
    who.scratch["dsbn"] = [branch(net) for net in nets]
    how = method_class(key)(tent_lr=.05)
    how.adapt(nets[0], None, who)
    with torch.no_grad(): return torch.stack([how.predict(nets[0], x, who) for x in batches])


def test_dsbn_above_tent_is_tent_on_every_branch_alone():
    batches = torch.randn(3, 20, 3, generator=generator(7), dtype=torch.float64)
    alone = []
    for net in three_branches():
        tent, who = Tent(tent_lr=.05), Client("t", {})
        tent.adapt(net, None, who)
        with torch.no_grad(): alone.append(torch.stack([tent.predict(net, x, who).softmax(1) for x in batches]))
    above, below = (online(key, batches).exp() for key in ("tent+dsbn", "dsbn+tent"))
    near(above, sum(alone)/3, 1e-9)
    near(above[0], below[0], 1e-12)
    assert not torch.allclose(above[1], below[1])
