"What is told of a run, to whom, and who may stop it."
import sys, warnings
from types import SimpleNamespace
import pandas as pd
import pytest
import fdgnb
from conftest import bits, says
from fdgnb.runs.callbacks import Csv, Metrics, MLflow, Patience, WandB
from fdgnb.runs.metrics import METRICS, write_csv


@pytest.fixture(scope="module")
def short(tiny):
    return dict(method="fedavg", dataset=tiny, target="blended", rounds=4, lr=.05, batch_size=16,
                local_steps=2, eval_local=0, progress=False)


STILL = dict(rounds=12, lr=0.)                                # nothing is learned: round 1 stays best


def until(n): return lambda run, rows: run.round == n


def test_each_row_is_told_once_in_its_round_and_no_bit_changes(short):
    heard = []
    run = fdgnb.fit(**short, callbacks=[lambda run, rows: heard.append((run.round, rows))])
    assert [n for n, _ in heard] == [1, 2, 3, 4]
    assert [row for _, rows in heard for row in rows] == run.rows
    assert bits(run) == bits(fdgnb.fit(**short))


def test_a_stopped_run_is_kept_and_goes_on_to_the_same_bits(short, tmp_path):
    stopped = fdgnb.fit(**short, out=tmp_path, callbacks=[until(2)], checkpoint_every=3)
    assert stopped.stopped and stopped.round == 2 and fdgnb.load(tmp_path).rules["last"] == 2
    whole, done = fdgnb.fit(**short), fdgnb.fit(**short, out=tmp_path)
    assert (bits(done), done.rows, done.stopped) == (bits(whole), whole.rows, False)


def test_patience_stops_when_validation_has_not_risen(short, tmp_path, capsys):
    "Called again it plays nothing; it goes on with more patience, with more rounds, or without any."
    still, two = short | STILL, [Patience(2)]
    first = fdgnb.fit(**still, out=tmp_path, callbacks=two)
    said, = capsys.readouterr().out.splitlines()
    assert said == first.reason and "after round 3 of 12" in said and "round 1 was best" in said
    again = fdgnb.fit(**still, out=tmp_path, callbacks=two)
    assert (again.round, again.rows, again.stopped) == (3, first.rows, True)
    assert fdgnb.fit(**still, out=tmp_path, callbacks=[Patience(3)]).round == 4
    assert fdgnb.fit(**still | dict(rounds=20), out=tmp_path, callbacks=two).round == 6         # two more, from 4
    assert fdgnb.fit(**still | dict(rounds=7), callbacks=[]).round == 7


def test_a_callback_that_fails_still_ends_those_that_started(short):
    told = []
    class Note:
        "A callback that need not derive from ours."
        def __init__(self, name): self.name = name
        def start(self, run):
            if self.name == "c": raise KeyError("planted")
            told.append(f"start {self.name}")
        def round(self, run, rows): raise ZeroDivisionError("planted")
        def end(self, run): told.append(f"end {self.name}")
    with pytest.raises(KeyError, match="planted"): fdgnb.fit(**short, callbacks=[Note("a"), Note("b"), Note("c")])
    assert told == ["start a", "start b", "end b", "end a"]
    with pytest.raises(ZeroDivisionError): fdgnb.fit(**short, callbacks=[Note("a")])
    assert told[4:] == ["start a", "end a"]


@pytest.mark.parametrize("given, word", [
    ("csv", "a list"), (print, "a list"), ([3], "neither a function"), ([Patience], "nor a Callback")])
def test_what_is_no_callback_is_refused_before_data_are_read(given, word, short):
    says(lambda: fdgnb.fit(**short | dict(dataset="nowhere"), callbacks=given), word)


ROW = (1, "inked", "test", "aggregated", "x", .5)


@pytest.mark.parametrize("answer, word", [
    (3, "True to stop"), (pd.DataFrame(), "True to stop"), ([3], "(round, client"), ([(2, *ROW[1:])], "the round 1"),
    ([(*ROW[:5], "high")], "a number"), ([(*ROW[:3], "agregated", "x", 1.)], "'aggregated'"),
    ([ROW, ROW], "has it already")], ids=range(7))
def test_what_is_no_answer_is_refused_and_no_round_is_written(answer, word, short, tmp_path):
    def answers(run, rows): return answer
    says(lambda: fdgnb.fit(**short, out=tmp_path, callbacks=[answers]), "answers", word)
    assert not (tmp_path/"checkpoint.safetensors").exists()


def test_a_file_holds_the_history_whatever_the_order_and_after_a_resume(short, tmp_path):
    "Who looks is told last, so it hears what callbacks behind it add."
    file, adding = tmp_path/"log"/"history.csv", [Metrics("macro_f1"), lambda run, rows: [(run.round, *ROW[1:])]]
    fdgnb.fit(**short, out=tmp_path/"run", callbacks=[Csv(file), *adding, until(2)])
    run = fdgnb.fit(**short, out=tmp_path/"run", callbacks=[Csv(file), *adding])
    pd.testing.assert_frame_equal(pd.read_csv(file), run.history)
    assert {"macro_f1", "x"} <= set(run.history.metric)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fdgnb.fit(**short, out=tmp_path/"run", callbacks=[Csv(file), *adding, Patience(1)])


def test_the_history_in_a_run_s_folder_grows_with_the_run(short, tmp_path):
    def fail(run, rows): return 1/(3 - run.round) < 0                                         # in round 3
    with pytest.raises(ZeroDivisionError): fdgnb.fit(**short, out=tmp_path, checkpoint_every=4, callbacks=[fail])
    assert pd.read_csv(tmp_path/"history.csv")["round"].max() == 2
    fdgnb.fit(**short | dict(rounds=3), out=tmp_path/"more").save()
    for out in (tmp_path, tmp_path/"more"):
        run = fdgnb.fit(**short, out=out)
        assert (out/"history.csv").read_text() == write_csv(run.history) and not (out/"record.json").exists()


def test_metrics_join_the_table_from_the_rounds_that_measured_them(short, tmp_path):
    once = short | dict(rounds=2, out=tmp_path)
    fdgnb.fit(**once)
    with pytest.warns(UserWarning, match="no ece of rounds 1"): fdgnb.fit(**once, callbacks=[Metrics("ece")])
    metrics = Metrics("macro_f1", "recall", every=2)
    run = fdgnb.fit(**short | dict(rounds=3), callbacks=[metrics])
    assert run.history.query("metric == 'macro_f1'")["round"].unique().tolist() == [2, 3]
    assert run.table(metric="macro_f1")["rounds"].equals(run.table()["rounds"])        # accuracy still selects
    assert {"recall", "recall[3]"} <= set(run.history.metric)


def test_a_metric_of_ones_own(short):
    METRICS.register("error")(lambda p, y: (p.argmax(1) != y).mean())
    try: run = fdgnb.fit(**short | dict(rounds=1), callbacks=[Metrics("error")])
    finally: del METRICS["error"]
    scores = [run.table(metric=metric).loc["last", "target"] for metric in ("error", "accuracy")]
    assert sum(scores) == pytest.approx(1)


def test_wandb_and_mlflow_are_told_every_row(short, monkeypatch):
    told, params = [], []
    def log(values, step): told.extend((step, value) for value in values.values())
    wandb = SimpleNamespace(init=lambda config, project: params.append(config["method"]) or SimpleNamespace(
        log=log, finish=lambda: params.append("end")))
    mlflow = SimpleNamespace(active_run=lambda: None, start_run=lambda **given: params.append(given["run_name"]),
                             log_params=lambda given: params.append(given["method"]), log_metrics=log,
                             end_run=lambda: params.append("end"))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for make, wanted in ((lambda: WandB(project="p"), ["fedavg", "end"]),
                         (lambda: MLflow(run_name="a"), ["a", "fedavg", "end"])):
        told.clear(), params.clear()
        run = fdgnb.fit(**short | dict(rounds=2), callbacks=[make()])
        assert params == wanted and told == [(row[0], row[5]) for row in run.rows]
    for name, make in (("wandb", WandB), ("mlflow", MLflow)):
        monkeypatch.setitem(sys.modules, name, None)
        says(make, f"pip install {name}")
