"""Runs over Flower's messages: bits, history and ledger of threads for every method; what is refused, who is missing.

Here every message is answered in this process. Processes of Flower's own: tests/test_flower_runs.py."""
import json, math, sys, threading
from importlib.util import find_spec
import pytest
import torch
import fdgnb, fdgnb.runs.fit
import digests
from conftest import bits, broken_off, says
from fdgnb import FdgnbError

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from fdgnb.federation import engine as engines
from fdgnb.federation.compose import METHODS
from fdgnb.flower.engine import Flower, Loopback, answer
from fdgnb.flower.simulation import held_by
from fdgnb.flower.wire import pack, unpack
from fdgnb.runs.setup import Federation
from digests import ADAM, SGD
from loopback import ASKED
from pairs import TINY, light

SCORED = dict(rounds=2, eval_every=1, eval_local=1, eval_train=1)
VARIANTS = {
    "fedprox+ga": {}, "fdse adapted": dict(adapt="every"), "fedavg bfloat16": dict(precision="bfloat16"),
    "fedavg momentum": SGD, "fedavg adam": ADAM, "ga augmented": dict(augment="ga"),
    "fedavg per_round": dict(rounds=4, per_round=2), "scaffold drop": dict(rounds=4, drop=.4),
    "scaffold drops": dict(rounds=3, drops=((2, "b"),)), "fedavg idle": dict(local_steps=None, local_epochs=0),
    "fedavg trial": dict(rounds=3, eval_every=0), "fedavg in-domain": dict(target=None),
    "fedbn two targets": dict(target=["c", "t"]), "fedavg split": dict(partition=("split", 2), batch_size=4)}


def data():
    "A few images of 16 pixels, and a network as small."
    if "bars" not in fdgnb.models.MODELS: fdgnb.models.add_backbone("bars", digests.network, (3, 16, 16))
    return digests.data(16, n=12)


small = pytest.fixture(scope="module")(data)


@pytest.fixture
def loopback(monkeypatch):
    "`engine='flower'` answers in this process."
    monkeypatch.setitem(engines.ENGINES, "flower", "loopback:open_loopback")


def short(key, data, **given):
    return fdgnb.fit(key, data, **TINY | SCORED | dict(backbone="bars") | light(key) | given)


def assert_same(one, other):
    "The same bits at the server and the clients, history and ledger."
    assert bits(other) == bits(one)
    assert repr(other.rows) == repr(one.rows)                                     # NaN is not equal to itself
    assert other.book.rows == one.book.rows and other.fed.start == one.fed.start


# ---- the same run

@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
@pytest.mark.parametrize("name", [*METHODS.names(), *VARIANTS])
def test_a_run_over_messages_is_that_of_threads(loopback, small, name):
    key, given = name.split()[0], VARIANTS.get(name, {})
    threads, flower = (short(key, small, **given, engine=name) for name in ("threads", "flower"))
    assert_same(threads, flower)
    assert list(flower.fed.server.state) == list(threads.fed.server.state)


@pytest.mark.parametrize("first, then", [("threads", "flower"), ("flower", "threads")])
def test_a_run_goes_on_with_the_other_engine(loopback, small, tmp_path, monkeypatch, first, then):
    whole = short("scaffold", small, rounds=3)
    broken_off(monkeypatch, 1, lambda: short("scaffold", small, rounds=3, out=tmp_path, engine=first))
    monkeypatch.setitem(engines.ENGINES, "flower", "loopback:open_loopback")      # undone by broken_off
    args = (tmp_path/"args.json").read_text()
    again = short("scaffold", small, rounds=3, out=tmp_path, engine=then)
    assert_same(whole, again)
    assert (tmp_path/"args.json").read_text() == args and "engine" not in json.loads(args)
    kept = [{k: v.numpy().tobytes() for k, v in run.model_of("b").state_dict().items()} for run in (whole, again)]
    assert kept[0] == kept[1]


def test_a_callback_stops_a_run_over_messages(loopback, small, capsys):
    run = short("fedavg", small, rounds=4, engine="flower", callbacks=[lambda run, rows: run.round == 2])
    assert run.round == 2 and run.stopped


# ---- what is refused before any work

def test_an_engine_that_is_not_there(small, monkeypatch):
    says(lambda: short("fedavg", small, engine="flowr"), "engine='flowr' is not allowed; did you mean 'flower'?")
    says(lambda: short("fedavg", small, engin="flower"), "unknown argument 'engin'; did you mean 'engine'?")
    monkeypatch.setattr("fdgnb.flower.simulation.find_spec", lambda name: None)
    says(lambda: short("fedavg", small, engine="flower"), "needs Ray", "fdgnb[simulation]", "make flower")


def test_a_method_that_no_other_process_can_have(loopback, small):
    class Locked(fdgnb.Method):
        def __init__(self, **hyper):
            super().__init__(**hyper)
            self.lock = threading.Lock()
    says(lambda: short(Locked, small, engine="flower"), "cannot be written for other processes")


# ---- errors in a round

class Wrong(fdgnb.Method):
    "Raises what it is told to, in round 2."
    name, raises = "wrong", TypeError
    def begin(self, model, client, download):
        if client.round == 1 and client.id == "b": raise self.raises("what is wrong")


class Refused(Wrong):
    name, raises = "refused", FdgnbError


def test_an_error_of_ours_ends_the_run_with_its_line(loopback, small):
    with pytest.raises(FdgnbError, match="^what is wrong$"): short(Refused, small, engine="flower")


def test_an_error_in_code_comes_with_its_place(loopback, small):
    with pytest.raises(RuntimeError, match="client 'b'") as e: short(Wrong, small, engine="flower")
    assert "TypeError: what is wrong" in str(e.value) and "test_flower.py" in str(e.value)


def test_what_a_client_cannot_send_is_the_same_line_as_on_threads(loopback, small):
    class Odd(fdgnb.Method):
        def upload(self, model, client): return super().upload(model, client) | {"stats.own.x": torch.ones(1)/0}
    lines = []
    for engine in ("threads", "flower"):
        with pytest.raises(FdgnbError) as e: short(Odd, small, engine=engine)
        lines.append(str(e.value))
    assert lines[0] == lines[1]


# ---- a server and its nodes, which are sites: they keep their state, and may do anything

def site(fed, change=None, absent=lambda k, what, round: False):
    "(grid, {id: number}) of nodes that answer here; change(k, what, payload, said) is what a hostile one does."
    names = dict(enumerate(fed.nodes))
    def reply(type, content, number):
        k, what = names[number], ASKED[type]
        download, about = unpack(content)
        assert about["id"] == k
        if absent(k, what, about["round"]): return None
        content = answer(what, fed.nodes[k], fed.net, download, about)
        payload, said = unpack(content)
        if change: change(k, what, payload, said)
        return pack(payload, said)
    return Loopback(reply, names), {k: i for i, k in names.items()}


def played(monkeypatch, data, key="fedavg", change=None, absent=lambda *a: False, say=print, **given):
    "A run whose clients are `site`s."
    def open_sites(fed, workers):
        grid, nodes = site(fed, change, absent)
        engine = Flower(grid, nodes, held_by(fed), fed.settings, timeout=.3, say=say)
        engine.poll = .01
        return engines.closing(engine)
    monkeypatch.setattr(sys.modules["fdgnb.runs.fit"], "find_engine", lambda name: open_sites)
    return short(key, data, engine="flower", **given)


def test_sites_that_keep_their_state_give_the_same_run(monkeypatch, small):
    with monkeypatch.context() as m: sites = played(m, small, "scaffold")
    assert_same(short("scaffold", small), sites)


def test_who_does_not_answer_is_named_and_the_run_is_that_of_the_others(monkeypatch, small):
    lines, gone = [], lambda k, what, round: (k, what, round) == ("b", "train", 1)
    with monkeypatch.context() as m: run = played(m, small, "scaffold", absent=gone, say=lines.append, rounds=3)
    assert lines == ["round 2 goes on without client 'b', asked for 'train': 0.3 s are over"]
    assert_same(short("scaffold", small, rounds=3, drops=((2, "b"),)), run)


def test_a_site_that_breaks_down_or_is_not_connected(monkeypatch, small):
    lines = []
    def breaks(k, what, payload, said):
        if k == "a" and what == "score": raise MemoryError("no\nmemory")
    with monkeypatch.context() as m: run = played(m, small, change=breaks, say=lines.append, rounds=1)
    assert lines == ["round 1 goes on without client 'a', asked for 'score': MemoryError('no\\nmemory')"]
    assert {r[1] for r in run.rows if r[3] == "aggregated"} == {"b", "c", "t"}
    fed = Federation("fedavg", small, "t", 1)
    grid, nodes = site(fed)
    engine = Flower(grid, {k: i for k, i in nodes.items() if k != "b"}, held_by(fed), say=lines.append)
    down = {k: fed.method.download(fed.server, k) for k in "ab"}
    assert [k for k, *_ in engine.ask("trial", down, dict(round=4))] == ["a"]
    assert lines[1] == "round 5 goes on without client 'b', asked for 'trial': it is not connected"


def test_nobody_answers(monkeypatch, small):
    gone = lambda k, what, round: what == "train" and round == 1
    says(lambda: played(monkeypatch, small, absent=gone, say=lambda line: None), "round 2 failed: nobody answered")


def test_answers_are_given_out_in_order_whenever_they_come():
    fed = Federation("fedavg", data(), "t", 1)
    grid, nodes = site(fed)
    late, pull = list("cab"), grid.pull_messages
    def pull_one(numbers):
        "One reply at a look, in an order of its own."
        if not late: return []
        k = late.pop(0)
        return pull([n for n in numbers if n == str(1 + "abc".index(k))])
    grid.pull_messages = pull_one
    engine = Flower(grid, nodes, held_by(fed))
    engine.poll = 0
    down = {k: fed.method.download(fed.server, k) for k in "abc"}
    assert [k for k, *_ in engine.ask("trial", down, dict(round=0))] == list("abc")
    sent = [n for *_, way, n in engine.wire if way == "down"]
    assert len(sent) == 3 and min(sent) > sum(v.numel()*v.element_size() for v in down["a"].values())


# ---- hostile uploads: what an honest client's `pack` would have stopped, or no node may say

def model_of(payload): return next(k for k, v in payload.items() if k.startswith("model.") and v.ndim > 1)


def first(value):
    "Put a value into the first entry of the first matrix of the model."
    def change(up, said): up[model_of(up)].view(-1)[0] = value
    return change


def put(**entries): return lambda up, said: up.update({k.replace("_", "."): v for k, v in entries.items()})
def state(**values): return lambda up, said: said.update(values)
def row(*row): return lambda up, said: said["rows"].append(list(row))
def double(v): return torch.tensor(v, dtype=torch.float64)


HOSTILE = {
    "nan": (first(math.nan), "the upload of client 'b' is not finite after round 1 (model."),
    "inf": (first(math.inf), "the upload of client 'b' is not finite after round 1 (model."),
    "huge": (first(1e30), "the upload of client 'b' holds 'model."),
    "shape": (lambda up, said: up.update({model_of(up): torch.ones(2, 2)}), "the upload of client 'b' holds 'model."),
    "type": (lambda up, said: up.update({model_of(up): up[model_of(up)].double()}), "client 'b' holds 'model."),
    "lacks": (lambda up, said: up.pop(model_of(up)), "'b' does not"),
    "nothing": (lambda up, said: up.clear(), "'b' does not"),
    "more": (put(model_evil=torch.ones(3)), "holds 'model.evil', which the global model has not"),
    "bool": (put(stats_own_x=torch.ones(3) > 0), "client 'b' holds 'stats.own.x' as bool [3]"),
    "own": (put(stats_own_x=torch.ones(3)), "'b' sends 'stats.own.x'"),
    "n huge": (put(scalars_n=double(1e9)), "the upload of client 'b' states 'scalars.n' as 1e+09"),
    "n more": (put(scalars_n=double(15.)), "client 'b' states 'scalars.n'"),
    "n zero": (put(scalars_n=double(0.)), "client 'b' states 'scalars.n' as 0"),
    "n part": (put(scalars_n=double(1.5)), "client 'b' states 'scalars.n' as 1.5"),
    "n nan": (put(scalars_n=double(math.nan)), "client 'b' states 'scalars.n' as nan"),
    "n many": (put(scalars_n=torch.ones(2)), "client 'b' holds 'scalars.n' as float32 [2]: wanted one number"),
    "loss nan": (put(scalars_loss=double(math.nan)), "the upload of client 'b' is not finite"),
    "another's row": (row("a", "test", "local", "accuracy", 1.), "client 'b' sends the row"),
    "no split of its": (row("b", "else", "local", "accuracy", 1.), "it has no such split"),
    "no point": (row("b", "test", "aggregated", "accuracy", 1.), "wanted training or local as the point"),
    "no metric": (row("b", "test", "local", "beauty", 1.), "wanted one of accuracy, loss, macro_auroc"),
    "no number": (row("b", "test", "local", "accuracy", "1"), "wanted a finite number, or NaN"),
    "true": (row("b", "test", "local", "accuracy", True), "wanted a finite number, or NaN"),
    "inf row": (row("b", "train", "local", "loss", math.inf), "wanted a finite number, or NaN"),
    "list": (row("b", ["test"], "local", "accuracy", 1.), "it has no such split"),
    "list as metric": (row("b", "test", "local", ["accuracy"], 1.), "wanted one of accuracy"),
    "list as point": (row("b", "test", {"local": 1}, "accuracy", 1.), "wanted training or local"),
    "giant": (row("b", "test", "local", "accuracy", 10**400), "wanted a finite number, or NaN"),
    "accuracy of 2": (row("b", "test", "local", "accuracy", 2.), "wanted a number from 0 to 1, or NaN"),
    "loss below 0": (row("b", "test", "local", "loss", -1.), "wanted a loss of at least 0, or NaN"),
    "no training": (lambda up, said: said.update(rows=said["rows"][1:]), "wanted its loss, once"),
    "training twice": (row("b", "test", "training", "loss", 1.), "wanted its loss, once"),
    "start giant": (state(start=-10**400), "client 'b' says start="),
    "nan many": (lambda up, said: (up.update({"scalars.loss": torch.full((2,), math.nan)}),
                                   said["rows"][0].__setitem__(4, math.nan)), "wanted one number"),
    "short row": (row("b", "test"), "wanted client, split, point, metric and value"),
    "twice": (lambda up, said: said["rows"].append(said["rows"][0]), "twice"),
    "no rows": (state(rows=None), "client 'b' sends None: wanted a list of rows"),
    "no row": (state(rows=["b"]), "client 'b' sends the row 'b'"),
    "start": (state(start="low"), "client 'b' says start='low': wanted a number"),
    "more said": (state(evil=1), "client 'b' says ['evil', 'rows', 'start'] when asked for 'train'"),
    "less said": (lambda up, said: said.clear(), "client 'b' says [] when asked for 'train'"),
    "lines": (state(error="all\nis\nlost"), "all is lost"),
    "no words": (state(error=[1]), "[1]")}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_upload_is_refused_in_the_name_of_its_sender(monkeypatch, small, name):
    change, line = HOSTILE[name]
    def b_alone(k, what, payload, said):
        if (k, what) == ("b", "train"): change(payload, said)
    says(lambda: played(monkeypatch, small, change=b_alone), line)


@pytest.mark.parametrize("what, change, line", [
    ("score", put(model_x=torch.ones(1)), "client 'b' sends 'model.x' when asked for 'score'"),
    ("score", row("b", "train", "training", "loss", 1.), "wanted aggregated or adapted as the point"),
    ("score", row("t", "target", "aggregated", "accuracy", 1.), "it is not in its own name"),
    ("trial", state(loss=None), "client 'b' says loss=None: wanted a number"),
    ("offer", put(scalars_own_x=torch.ones(2)), "the offer of client 'b' holds 'scalars.own.x'"),
    ("offer", put(stats_own_x=torch.ones(1)/0), "the offer of client 'b' is not finite")])
def test_other_hostile_answers(monkeypatch, small, what, change, line):
    def b_alone(k, asked, payload, said):
        if (k, asked) == ("b", what): change(payload, said)
    given = dict(eval_every=0, rounds=3) if what == "trial" else {}
    says(lambda: played(monkeypatch, small, "fedmix" if what == "offer" else "fedavg", b_alone, **given), line)


def test_what_is_no_message_of_ours_is_refused_in_the_name_of_its_sender():
    fed = Federation("fedavg", data(), "t", 1)
    names = dict(enumerate(fed.nodes))
    def reply(type, content, number):
        out = pack({}, dict(loss=1.))
        if names[number] == "b": del out["about"]
        return out
    engine = Flower(Loopback(reply, names), {k: i for i, k in names.items()}, held_by(fed))
    down = {k: fed.method.download(fed.server, k) for k in "ab"}
    says(lambda: list(engine.ask("trial", down, dict(round=0))), "client 'b' sends a message without")
