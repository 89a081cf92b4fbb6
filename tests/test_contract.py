"""The contract of every method key, in two runs: threads and messages give the same bits, a stop changes nothing, the
ledger counts what is sent. For some keys, or all with `make contract`: odd clients, more rounds."""
import os
from collections import Counter
from contextlib import contextmanager
import pytest
import torch
import fdgnb
from conftest import bits, sized
from fdgnb import FdgnbError
from fdgnb.federation.compose import METHODS
from fdgnb.federation.engine import ENGINES, find_engine
from fdgnb.runs.check import check_file, find_difference
from bars import bars, short

KEYS = METHODS.names()
SYSTEMS = ["fedavg", "fedsb", "ga", "fedka", "fedbr", "fdse"]
SOME = KEYS if os.environ.get("FDGNB_ALL") else SYSTEMS
SCORED = dict(rounds=2, eval_every=1, eval_local=1, eval_train=1)
POINTS = {("training", "loss"), ("local", "accuracy"), ("aggregated", "accuracy")}
SENT = Counter()                                                       # {(round, client, direction): bytes}


@pytest.fixture(scope="module")
def images():
    return bars()


def note(round, client, direction, payload):
    size = sum(v.numel()*v.element_size() for v in payload.values())
    if size: SENT[round, client, direction] += size


def find_new(payload, before):
    "What a client was not sent before in the same round."
    return {k: v for k, v in payload.items() if k not in before or not torch.equal(v, before[k])}


@contextmanager
def open_counted(fed, workers=None):
    "Flower's engine, which notes in `SENT` what the clients are sent for training, and answer."
    with find_engine("messages")(fed, workers) as engine:
        ask, offered = engine.ask, {}

        def ask_and_count(what, payloads, about):
            round = about["round"] + 1
            for k, answer, said in ask(what, payloads, about):
                if what in ("offer", "train"):
                    note(round, k, "down", find_new(payloads[k], offered.pop(k, {})))
                    note(round, k, "up", answer)
                if what == "offer": offered[k] = payloads[k]
                yield k, answer, said

        engine.ask = ask_and_count
        yield engine


@pytest.mark.parametrize("key", KEYS)
def test_contract(key, images, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: make flower")
    monkeypatch.setitem(ENGINES, "flower", "test_contract:open_counted")
    whole = short(key, images, **SCORED, workers=2)
    SENT.clear()
    stopped = short(key, images, **SCORED, engine="flower", out=tmp_path, callbacks=[lambda run, rows: True])
    again = short(key, images, **SCORED, engine="flower", out=tmp_path)
    assert stopped.round == 1 and find_difference(whole, again) == ""
    assert whole.ledger.groupby(["round", "client", "direction"]).bytes.sum().to_dict() == SENT

    history = whole.history
    assert POINTS <= {*zip(history.point, history.metric)}
    assert history.value.abs().lt(1e6).all()
    assert history[history.metric == "accuracy"].value.between(0, 1).all()
    kept = fdgnb.load(tmp_path).model_of(rule="last")
    x = images["t"].x[:3].float()/255
    with torch.no_grad(): logits, from_file = whole.model(x), kept(x)
    assert logits.shape == (3, 4) and logits.isfinite().all() and torch.equal(logits, from_file)


@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
@pytest.mark.parametrize("key", SYSTEMS)
def test_bfloat16_leaves_finite_weights_of_32_bits(key, images):
    state = short(key, images, precision="bfloat16").model.state_dict()
    weights = [v for v in state.values() if v.is_floating_point()]
    assert all(v.dtype == torch.float32 and v.isfinite().all() for v in weights)


def without_class_0(images):
    "The client a has no sample of the first class."
    a = images["a"]
    images.domains["a"] = type(a)("a", a.x[a.y > 0], a.y[a.y > 0])
    return images


ODD = dict(one_client=lambda images: sized(images, a=12, t=12), absent_class=without_class_0,
           few_samples=lambda images: sized(images, a=12, b=4, t=12))


@pytest.mark.parametrize("key", SOME)
@pytest.mark.parametrize("case", ODD)
def test_odd_clients(key, case):
    history = short(key, ODD[case](bars()), eval_every=1, batch_size=4).history
    assert history.value.notna().all()


@pytest.mark.parametrize("key", SOME)
def test_a_finished_run_goes_on_to_more_rounds_or_says_why_not(key, images, tmp_path):
    short(key, images, rounds=2, out=tmp_path)
    try: grown = short(key, images, rounds=3, out=tmp_path)
    except FdgnbError as e:
        assert METHODS.get(key).uses_rounds and "resume=False" in str(e)
        return
    assert bits(grown) == bits(short(key, images, rounds=3))


OUTSIDE = """
import fdgnb
KEPT = {}

@fdgnb.method("outside")
class Outside(fdgnb.Method):
    "Keep the length of a client's name in a global."
    fedavg_at = {}
    def begin(self, model, client, download):
        super().begin(model, client, download)
        if client.round == 0: KEPT[client.id] = len(client.id)
    def weight(self, server, k, upload): return super().weight(server, k, upload)*KEPT[k]
"""


def test_a_method_of_one_s_own_is_checked(tmp_path, capsys):
    "What is kept in a global is lost to another process; its weights are not FedAvg's."
    pytest.importorskip("flwr", reason="Flower is not installed: make flower")
    (tmp_path/"outside_method.py").write_text(OUTSIDE)
    try: assert check_file(str(tmp_path/"outside_method.py")) == 1
    finally: METHODS.pop("outside", None)
    found = [line for line in capsys.readouterr().out.splitlines() if not line.endswith(": ok")]
    assert len(found) == 2 and "another process: KeyError" in found[0] and "FedAvg at {}: " in found[1]
