"""For every registered key: the same bits on any workers and after a stop, an unseen client's network, the
checkpoint, the ledger, bfloat16; and no key does at its default values what another one does."""
import collections, json
import numpy as np
import pytest
import torch
import fdgnb
import digests
from conftest import bits, one_line
from digests import data, hashed
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.federation.loop import client_offer, client_update, downloads, makes_offers, server_gather
from fdgnb.runs.checkpoints import load_checkpoint, save_checkpoint
from fdgnb.runs.protocols import resolve
from fdgnb.runs.setup import Federation
from pairs import TINY, light

KEYS = METHODS.names()
each = pytest.mark.parametrize("key", KEYS)
small = pytest.fixture(scope="module")(lambda: data(n=12))


def short(key, data, **given): return fdgnb.fit(key, data, **TINY | dict(rounds=2) | light(key) | given)


@each
def test_same_bits_on_any_workers_and_after_a_stop(key, small, tmp_path):
    whole = short(key, small)
    stopped = short(key, small, workers=3, out=tmp_path, callbacks=[lambda run, rows: True])
    assert stopped.round == 1
    resumed = short(key, small, workers=2, out=tmp_path)
    assert bits(resumed) == bits(whole) and resumed.book.rows == whole.book.rows
    unseen, kept = whole.model, fdgnb.load(tmp_path).model_of(rule="last")       # as the folder has it
    x = torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): logits = unseen(x)
    assert logits.shape == (3, 4) and logits.isfinite().all() and not unseen.training
    states = unseen.state_dict(), kept.state_dict()
    assert sorted(map(hashed, states[0].values())) == sorted(map(hashed, states[1].values()))


@each
def test_a_search_tries_three_values_and_what_common_has_is_one_of_them(key):
    tune, h = METHODS[key].tune, METHODS[key]().h
    for option, values in tune.items():
        default = resolve("common", method=key).get(option, getattr(h, option))
        assert len(tune) == 1 and len(set(values)) == 3 and (default is None or default in values)


@pytest.mark.parametrize("tune", [
    dict(lr=(.1, .2)), dict(lr=(.1, .2, .3, .4)), dict(lr=(.1, .2, .2)), dict(lr=.1), dict(lr="abc"), [.1, .2, .3],
    None, dict(lr=(.1, .2, .3), momentum=(0., .5, .9))])
def test_a_tune_of_another_form_is_refused(tune):
    with pytest.raises(fdgnb.FdgnbError, match="tune of method 'searched': wanted one option and three") as e:
        method_class(type("Searched", (fdgnb.Method,), dict(tune=tune)))
    assert one_line(e)


def by_hand(key, data):
    "Bytes of the payloads of a first round, {(client, direction): bytes}, of a round that is played here."
    f, out = Federation(key, data, **{k: v for k, v in TINY.items() if k not in ("workers", "progress")},
                        **light(key)), collections.Counter()
    size = lambda payload: sum(v.numel()*v.element_size() for v in payload.values())
    down = downloads(f.method, f.server)
    if makes_offers(f.method, 0):
        offers = [(c.id, client_offer(f.method, f.net, c, down[c.id], 0)) for c in f.clients]
        for k, offer in offers: out[k, "up"] += size(offer)
        had, down = down, server_gather(f.method, f.server, offers, 0)
        for k, payload in had.items():
            out[k, "down"] += size(payload)                       # sent again unchanged: not counted
            down = down | {k: down[k]}
            same = {q for q, v in payload.items() if q in down[k] and torch.equal(v, down[k][q])}
            out[k, "down"] -= size({q: v for q, v in down[k].items() if q in same})
    for k, payload in down.items(): out[k, "down"] += size(payload)
    for c in f.clients: out[c.id, "up"] += size(client_update(f.method, f.net, c, down[c.id], 0))
    return {k: n for k, n in out.items() if n}


@each
def test_the_ledger_counts_the_payloads(key, small):
    first = short(key, small, rounds=1).ledger.query("round == 1")
    assert first.groupby(["client", "direction"])["bytes"].sum().to_dict() == by_hand(key, small)


@each
@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
def test_bfloat16(key, small):
    state = short(key, small, rounds=1, precision="bfloat16").model.state_dict()
    floats = [v for v in state.values() if v.is_floating_point()]
    assert all(v.isfinite().all() and v.dtype == torch.float32 for v in floats)


@each
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_gives_finite_and_repeatable_results(key, small):
    one, two = (short(key, small, device="cuda").model.state_dict() for _ in range(2))
    for k, v in one.items():
        assert v.isfinite().all(), k
        assert torch.allclose(v.float(), two[k].float(), rtol=1e-4, atol=1e-5), k


# ---- no two keys are one

SAME = {                                                # keys of one digest -> why they agree there
    frozenset(("fedavg", "bnstats", "tent", "noeval", "consistency")):
        "three act when a model is tried; consistency looks at FDSE's blocks alone",
    frozenset(("fedbn", "dsbn")): "own BatchNorm layers both; DSBN answers an unseen domain by all of them",
}


def test_every_key_differs_from_every_other():
    "In the models on file in tests/digests.json: the server's and those that it sends."
    alike = collections.defaultdict(set)
    for key in KEYS:
        run = digests.load()["runs"][key]
        model = {k: v for k, v in run["server"].items() if k.startswith("model.")}
        alike[json.dumps([model, run["models"], run["unseen"]], sort_keys=True)].add(key)
    assert {frozenset(keys) for keys in alike.values() if len(keys) > 1} == set(SAME)


# ---- a method of one's own leaves nothing where another client would meet it

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


@pytest.mark.parametrize("cls, said", [
    (Keeps, "'keeps' keeps 'me' on itself"), (KeepsInAList, "'seen' on itself"), (Hooks, "another forward on 'head'"),
    (Draws, "global random generator of numpy (in batch)"), (Adapts, "generator of torch (in adapt)"),
    (Stays, "left the global model as it was"), (Peeks, "no labels here")])
def test_what_a_client_leaves_or_may_not_see_is_refused(cls, said, small):
    before = np.random.get_state(), torch.get_rng_state()
    with pytest.raises(fdgnb.FdgnbError) as e: fdgnb.fit(cls, small, **TINY | dict(rounds=2, eval_every=1))
    np.random.set_state(before[0]); torch.set_rng_state(before[1])
    assert one_line(e) and said in str(e.value)


def test_a_split_holds_its_own_samples(small):
    client = Federation("fedavg", small, target="t").clients[0]
    train = client.splits["train"]
    assert client.n() == len(train.x) == len(train.y) < len(small[client.id])


def test_states_come_back_in_their_order(tmp_path):
    state = {"z": torch.ones(1), "b": 2, "a": torch.zeros(2), "c": [1]}
    save_checkpoint(tmp_path/"c", dict(server=state), {})
    assert list(load_checkpoint(tmp_path/"c")[0]["server"]) == list("zbac")
