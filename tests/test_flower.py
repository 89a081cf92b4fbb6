"""Runs of `fit` over Flower's messages have the bits, history and ledger of threads; what a site may not send.

Here every message is answered in this process. Processes of Flower's own: tests/test_flower_runs.py."""
import math
from importlib.util import find_spec
import numpy as np
import pytest
import torch
import fdgnb
from conftest import bits, says

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from hospitals import deploy, nodes_of, write_hospitals
from loopback import without_processes

USUAL = dict(target="t", rounds=2, seed=3, lr=.01, batch_size=8, local_steps=1, eval_every=1, eval_local=1, workers=1,
             backbone="cnn2", progress=False)
CASES = {
    "scaffold": {}, "moon": {}, "fdse": {}, "fedmix": {}, "fedka": dict(mmd_batch=8, votes=9), "fedprox+ga": {},
    "fedavg bfloat16": dict(precision="bfloat16"), "fedavg augmented": dict(augment="ga", optimizer="adam"),
    "fedavg trial": dict(rounds=3, eval_every=0), "fedavg split": dict(partition=("split", 2), batch_size=4),
    "scaffold drops": dict(rounds=4, per_round=2, drops=((2, "b"),)), "fedbn in-domain": dict(target=None)}


@pytest.fixture(scope="module")
def data():
    "Twelve images of 16 pixels in each of four domains."
    draw = np.random.default_rng(0)
    def domain(): return draw.integers(0, 256, (12, 3, 16, 16), dtype=np.uint8), np.arange(12) % 3
    return fdgnb.from_arrays({name: domain() for name in "abct"})


def play(engine, method, data, **given):
    "A short run with an engine."
    with without_processes(): return fdgnb.fit(method, data, engine=engine, **USUAL | given)


def assert_same(one, other):
    assert bits(one) == bits(other)
    assert one.history.equals(other.history) and one.ledger.equals(other.ledger)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_run_over_messages_is_that_of_threads(data, name):
    threads, flower = (play(engine, name.split()[0], data, **CASES[name]) for engine in ("threads", "flower"))
    assert_same(threads, flower)


@pytest.mark.parametrize("first, then", [("threads", "flower"), ("flower", "threads")])
def test_a_run_goes_on_with_the_other_engine(data, tmp_path, first, then):
    play(first, "scaffold", data, rounds=1, out=tmp_path)
    whole, again = play("threads", "scaffold", data, rounds=3), play(then, "scaffold", data, rounds=3, out=tmp_path)
    assert_same(whole, again)


def test_an_engine_that_is_not_there(data):
    says(lambda: play("flowr", "fedavg", data), "did you mean 'flower'?")


class Wrong(fdgnb.Method):
    "Fails at client b in round 2."
    error = TypeError
    def begin(self, model, client, download):
        if client.round == 1 and client.id == "b": raise self.error("what is wrong")


class Refused(Wrong): error = fdgnb.FdgnbError


def test_an_error_at_a_client_ends_the_run(data):
    "One of ours with its line, one of the code's with the client's name and its place."
    says(lambda: play("flower", Refused, data), "what is wrong")
    with pytest.raises(RuntimeError, match="client 'b'") as error: play("flower", Wrong, data)
    assert "TypeError: what is wrong" in str(error.value) and "test_flower.py" in str(error.value)


# ---- what a site of a deployment may not send

@pytest.fixture(scope="module")
def hospitals(tmp_path_factory): return write_hospitals(tmp_path_factory.mktemp("data"), 12)


def matrix(payload):
    "The key of the first matrix of a model."
    return next(k for k, v in payload.items() if k.startswith("model.") and v.ndim > 1)


def put(**entries): return lambda up, said: up.update({k.replace("_", "."): v for k, v in entries.items()})
def row(*row): return lambda up, said: said["rows"].append(list(row))
def number(value): return torch.tensor(value, dtype=torch.float64)


HOSTILE = [
    ("train", lambda up, said: up[matrix(up)].view(-1)[0].fill_(math.nan), "not finite"),
    ("train", lambda up, said: up.update({matrix(up): torch.ones(2, 2)}), "model."),
    ("train", lambda up, said: up.pop(matrix(up)), "model."), ("train", put(stats_own_x=torch.ones(3)), "stats.own.x"),
    ("train", put(stats_own_x=torch.ones(2**22)), "bytes"), ("train", put(scalars_n=number(13.)), "scalars.n"),
    ("train", row("optical", "test", "local", "accuracy", 1.), "own name"),
    ("train", row("inked", "test", "aggregated", "accuracy", 1.), "aggregated"),
    ("train", row("inked", "test", "local", "accuracy", 2.), "0 to 1"), ("train", row("inked", "test"), "row"),
    ("train", lambda up, said: said["rows"].append(said["rows"][0]), "once"),
    ("train", lambda up, said: said.clear(), "[]"), ("score", put(model_x=torch.ones(1)), "model.x"),
    ("score", row("blended", "target", "aggregated", "accuracy", 1.), "own name")]


@pytest.mark.parametrize("asked, change, part", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_answer_is_refused_in_the_name_of_its_sender(hospitals, tmp_path, asked, change, part):
    names = "blended cluttered inked".split()
    plan = dict(method="fedavg", dataset="hospitals", rounds=1, hyper=dict(size=16, batch_size=4, local_steps=1))
    def alter(what, node, payload, said):
        if (what, names[node - 1]) == (asked, "inked"): change(payload, said)
    says(lambda: deploy(hospitals, tmp_path, plan, nodes_of(hospitals, tmp_path, names), after=alter), "'inked'", part)
