"""A method of one's own: what its hooks may not do. Of all keys: what a search tries."""
from itertools import combinations
import numpy as np
import pytest
import torch
from torch import nn
import fdgnb
from fdgnb import FdgnbError
from fdgnb.core import seeded
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.runs.protocols import resolve
from bars import bars, short


@pytest.fixture(scope="module")
def images():
    return bars()


@pytest.mark.parametrize("key", [k for k in METHODS.names() if METHODS[k].tune])
def test_a_search_tries_three_values_and_what_common_has_is_one_of_them(key):
    (option, values), = METHODS[key].tune.items()
    default = resolve("common", method=key).get(option, getattr(METHODS[key]().h, option))
    assert len(set(values)) == 3 and (default is None or default in values)


def test_every_pair_is_composed_or_cannot_be_combined():
    for pair in combinations(METHODS.names(), 2):
        try: method_class("+".join(pair))
        except FdgnbError as e: assert "cannot be combined" in str(e), pair


# ---- what a client leaves, or may not see

class Keeps(fdgnb.Method):
    "Keeps whose turn it is."
    def begin(self, model, client, download): self.me = client.id


class KeepsInAList(fdgnb.Method):
    "Notes whose turn it was in a list of its class."
    seen = []
    def end(self, model, client): self.seen.append(client.id)


class Hooks(fdgnb.Method):
    "Leaves a hook."
    def begin(self, model, client, download): model.head.register_forward_hook(lambda *a: None)


class Freezes(fdgnb.Method):
    "Freezes a weight."
    def begin(self, model, client, download): next(model.parameters()).requires_grad_(False)


class Draws(fdgnb.Method):
    "Draws from a global generator."
    def batch(self, x, y, client, rng): return x + float(np.random.rand())*.1, y


class Adapts(fdgnb.Method):
    "Draws from a global generator where it adapts."
    def adapt(self, model, x, client): torch.rand(1)


class Stays(fdgnb.Method):
    "Averages nothing."
    def aggregate(self, server, uploads): list(uploads)


class Peeks(fdgnb.Method):
    "Looks for labels of the target."
    def adapt(self, model, x, client):
        assert client.take(torch.arange(2), "target")[1] is None
        client.splits["target"].y


@pytest.mark.parametrize("cls, says", [
    (Keeps, "'me' on itself"), (KeepsInAList, "'seen' on itself"), (Hooks, "on 'head'"),
    (Freezes, "frozen"), (Draws, "generator of numpy"), (Adapts, "generator of torch"),
    (Stays, "left the global model"), (Peeks, "no labels")])
def test_what_a_client_leaves_or_may_not_see_is_refused(cls, says, images):
    before = np.random.get_state(), torch.get_rng_state()
    with pytest.raises(FdgnbError) as error: short(cls, images, rounds=2, eval_every=1)
    np.random.set_state(before[0])
    torch.set_rng_state(before[1])
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("hook, gives, says", [
    ("weight", lambda self, server, k, u: None, "aggregation weight"),
    ("weight", lambda self, server, k, u: -1., "aggregation weight"),
    ("weight", lambda self, server, k, u: torch.ones(2), "aggregation weight"),
    ("decide", lambda self, server, us: None, "decide"), ("decide", lambda self, server, us: {"a": 1.}, "decide"),
    ("loss", lambda self, m, x, y, c: None, "loss of own is None"), ("loss", lambda self, m, x, y, c: m(x), "loss"),
    ("loss", lambda self, m, x, y, c: m(x).sum().detach(), "depends on"),
    ("finish", lambda self, server: server.state.update({3: 1.}), "has the key 3"),
    ("finish", lambda self, server: server.state.update({"own.x": [1., float("nan")]}), "not finite")])
def test_a_hook_that_gives_something_else_is_refused(hook, gives, says, images):
    own = type("Own", (fdgnb.Method,), {"__doc__": "Has a hook of its own.", "replaces": (hook,), hook: gives})
    with pytest.raises(FdgnbError, match=says): short(own, images)


# ---- a network without the layers that a method needs

class Bare(nn.Module):
    "A network without BatchNorm and dropout."
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x): return self.head(self.conv(x).relu().mean((2, 3)))


@pytest.mark.parametrize("key", ["consistency", "similarity", "noeval"])
def test_a_method_that_does_nothing_says_so(key, images):
    with seeded(0): network = Bare()
    with pytest.warns(UserWarning, match=f"{key}: .* changes nothing"): short(key, images, backbone=network)
