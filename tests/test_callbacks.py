"""What is told of a run, to whom, and who may stop it."""
import sys
from importlib.util import find_spec
from types import SimpleNamespace
import pandas as pd
import pytest
import fdgnb
from conftest import bits, one_line
from fdgnb.core import FdgnbError
from fdgnb.runs import callbacks, metrics
from fdgnb.runs.records import predictions, read_table

refused = lambda says: pytest.raises(FdgnbError, match=says)


@pytest.fixture(scope="module")
def short(tiny):
    return dict(method="fedavg", dataset=tiny, target="blended", rounds=4, lr=.05, batch_size=16,
                local_steps=2, eval_local=0, progress=False)


def until(n):
    return lambda run, rows: run.round == n


def test_after_each_round_its_rows_are_told_and_no_bit_changes(short):
    heard = []
    run = fdgnb.fit(**short, callbacks=[lambda run, rows: heard.append((run.round, rows))])
    assert [n for n, _ in heard] == [1, 2, 3, 4]
    assert [r for _, rows in heard for r in rows] == run.rows
    assert all(r[0] == n for n, rows in heard for r in rows)
    assert bits(run) == bits(fdgnb.fit(**short))


def test_a_stopped_run_is_checkpointed_and_goes_on_to_the_same_bits(short, tmp_path):
    whole = fdgnb.fit(**short)
    stopped = fdgnb.fit(**short, out=tmp_path, callbacks=[until(2)], checkpoint_every=3)
    assert stopped.stopped and stopped.round == 2
    assert fdgnb.load(tmp_path).rules["last"] == 2
    done = fdgnb.fit(**short, out=tmp_path)
    assert not done.stopped and (bits(done), done.rows) == (bits(whole), whole.rows)


def test_what_is_no_callback_is_refused_before_any_work(short):
    for bad, says in (("csv", "wanted a list"), ([3], "3 is neither a function"), (print, "wanted a list"),
                      ([callbacks.Patience], "nor a Callback")):
        with refused(says) as e: fdgnb.fit(**short | dict(dataset="nowhere"), callbacks=bad)
        assert one_line(e)
    with refused("unknown metric 'f1'"): callbacks.Metrics("f1")
    with refused("rounds=0 is out of range"): callbacks.Patience(0)


def test_each_started_callback_is_ended_after_an_error_too(short):
    told = []
    class Note(callbacks.Callback):
        def __init__(self, name): self.name = name
        def start(self, run):
            if self.name == "c": raise KeyError("planted")
            told.append(f"start {self.name}")
        def end(self, run): told.append(f"end {self.name}")
    with pytest.raises(KeyError, match="planted"):
        fdgnb.fit(**short, callbacks=[Note("a"), Note("b"), Note("c")])
    assert told == ["start a", "start b", "end b", "end a"]
    def breaks(run, rows): raise ZeroDivisionError("planted")
    with pytest.raises(ZeroDivisionError, match="planted"): fdgnb.fit(**short, callbacks=[Note("a"), breaks])
    assert told[4:] == ["start a", "end a"]


def test_csv_is_the_history_after_a_resume_too(short, tmp_path):
    file = tmp_path/"log"/"history.csv"
    fdgnb.fit(**short, out=tmp_path/"run", callbacks=[callbacks.Csv(file), until(2)])
    run = fdgnb.fit(**short, out=tmp_path/"run", callbacks=[callbacks.Csv(file)])
    pd.testing.assert_frame_equal(read_table(file.read_bytes()), run.history)


def test_tensorboard_holds_every_row(short, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run = fdgnb.fit(**short, callbacks=[callbacks.TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    kept = {(e.step, tag): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert kept == {(r[0], callbacks.curve(r)): pytest.approx(r[5], rel=1e-6) for r in run.rows}


def test_wandb_is_told_the_same(short, monkeypatch):
    logged = []
    class At:
        def log(self, values, step): logged.append((step, values))
        def finish(self): logged.append("end")
    fake = SimpleNamespace(init=lambda config, project: logged.append((project, config["method"])) or At())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = fdgnb.fit(**short, callbacks=[callbacks.WandB(project="p")])
    assert logged[0] == ("p", "fedavg") and logged[-1] == "end"
    found = [(n, k, v) for n, values in logged[1:-1] for k, v in values.items()]
    assert found == [(r[0], callbacks.curve(r), r[5]) for r in run.rows]


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("wandb is not installed: pip install wandb"): callbacks.WandB()
    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
    with refused("pip install fdgnb"): callbacks.TensorBoard("x")


def test_patience_stops_when_validation_has_not_risen(short):
    run = fdgnb.fit(**short | dict(rounds=12, lr=0.), callbacks=[callbacks.Patience(2)])
    assert run.stopped and run.round == 3                     # nothing is learned: round 1 stays best


def test_metrics_join_the_history_and_the_table(short, tmp_path):
    if not find_spec("torchmetrics"): pytest.skip("torchmetrics is not installed")
    from sklearn.metrics import balanced_accuracy_score
    names = ("balanced_accuracy", "macro_f1", "auc", "ece")
    run = fdgnb.fit(**short, callbacks=[callbacks.Metrics(*names)], out=tmp_path)
    a = predictions(run)
    t = {n: run.table(metric=n) for n in names}
    assert t["balanced_accuracy"].loc["last", "target"] == pytest.approx(
        balanced_accuracy_score(a["label"], a["predicted"]))
    for n in names[:2] + names[3:]:
        values = t[n].loc[["last", "source_val", "target"], ["optical", "inked", "rendered", "target"]]
        assert values.notna().all().all() and values.stack().between(0, 1).all()
    assert run.table()["rounds"].equals(t["ece"]["rounds"])             # selection goes by accuracy still
    assert bits(run) == bits(fdgnb.fit(**short)) and fdgnb.fit(**short, out=tmp_path).rows == run.rows
    rare = fdgnb.fit(**short | dict(rounds=3), callbacks=[callbacks.Metrics("ece", every=2)])
    assert rare.history.query("metric == 'ece'")["round"].unique().tolist() == [2, 3]


def test_a_metric_of_ones_own(short):
    metrics.METRICS.register("error")(lambda p, y: (p.argmax(1) != y).mean())
    run = fdgnb.fit(**short | dict(rounds=1), callbacks=[callbacks.Metrics("error")])
    t = run.table(metric="error").loc["last", "target"], run.table().loc["last", "target"]
    del metrics.METRICS["error"]
    assert sum(t) == pytest.approx(1)
