"""Test time: golden batches of Tent and BatchNorm statistics, a sorted target."""
from dataclasses import replace
import torch
from torch import nn
from fdgnb.core import seeded
from fdgnb.federation.compose import METHODS
from fdgnb.federation.loop import Client
from fdgnb.methods.testtime import Tent, reestimate, use_batch_statistics
from bars import bars, short
from golden.replay import read


def golden(key):
    "The numbers of a file, and its network."
    g = read(key)
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
