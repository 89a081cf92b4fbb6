"""What is told of a run, to whom, and who may stop it."""
import sys, warnings
from importlib.util import find_spec
from types import SimpleNamespace
import pandas as pd
import pytest
import fdgnb
from conftest import bits, one_line
from fdgnb.core import FdgnbError
from fdgnb.runs import callbacks, metrics
from fdgnb.runs.records import predictions, read_frame

refused = lambda says: pytest.raises(FdgnbError, match=says)


@pytest.fixture(scope="module")
def short(tiny):
    return dict(method="fedavg", dataset=tiny, target="blended", rounds=4, lr=.05, batch_size=16,
                local_steps=2, eval_local=0, progress=False)


STILL = dict(rounds=12, lr=0.)                                # nothing is learned: round 1 stays best


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
    pd.testing.assert_frame_equal(read_frame(file.read_bytes()), run.history)


def test_tensorboard_holds_every_row(short, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run = fdgnb.fit(**short, callbacks=[callbacks.TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    kept = {(e.step, tag): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert kept == {(r[0], callbacks.curve_name(r)): pytest.approx(r[5], rel=1e-6) for r in run.rows}


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
    assert found == [(r[0], callbacks.curve_name(r), r[5]) for r in run.rows]


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("wandb is not installed: pip install wandb"): callbacks.WandB()
    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
    with refused("pip install fdgnb"): callbacks.TensorBoard("x")


def test_a_stop_prints_who_and_why_in_one_line(short, capsys):
    run = fdgnb.fit(**short | STILL, callbacks=[callbacks.Csv("/dev/null"), callbacks.Patience(2)])
    said, = capsys.readouterr().out.splitlines()
    assert said == run.reason == (
        "Patience(2) stopped the run after round 3 of 12; validation on the sources has not risen for 2 "
        "scored rounds, round 1 was best")
    def enough(run, rows): return run.round == 2
    run = fdgnb.fit(**short, callbacks=[enough, lambda run, rows: False, until(2)])
    assert run.reason == "enough and <lambda> stopped the run after round 2 of 4"
    assert not fdgnb.fit(**short | dict(rounds=1)).reason


def test_a_run_that_patience_stopped_is_done(short, tmp_path, capsys):
    "Called again it plays nothing; it goes on with more patience, without any, or to more rounds."
    still, two = short | STILL, [callbacks.Patience(2)]
    first = fdgnb.fit(**still, out=tmp_path, callbacks=two)
    files = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    capsys.readouterr()
    for _ in range(2):
        again = fdgnb.fit(**still, out=tmp_path, callbacks=two)
        assert (again.round, again.rows, again.stopped) == (3, first.rows, True)
        assert capsys.readouterr().out.startswith("no round was played after round 3 of 12 for Patience(2)")
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir() if p.name in files} == files
    assert fdgnb.fit(**still, out=tmp_path, callbacks=[callbacks.Patience(3)]).round == 4
    more = still | dict(rounds=20)
    assert fdgnb.fit(**more, out=tmp_path, callbacks=two).round == 6               # two more, from round 4
    assert fdgnb.fit(**more, out=tmp_path, callbacks=two).round == 6
    assert fdgnb.fit(**still | dict(rounds=20), out=tmp_path).round == 20


def test_where_patience_looks_back_the_last_weights_are_kept(short, tmp_path):
    "A run that broke off without patience, and then is told to have some."
    def breaks(run, rows):
        if run.round == 5: raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError): fdgnb.fit(**short | STILL, out=tmp_path, callbacks=[breaks])
    run = fdgnb.fit(**short | STILL, out=tmp_path, callbacks=[callbacks.Patience(2)])
    assert run.stopped and run.round == 4 and "not risen for 3 scored rounds" in run.reason
    assert fdgnb.load(tmp_path).rules == dict(last=4, source_val=4, target=1)


def test_the_order_in_the_list_does_not_matter(short, tmp_path):
    "Who looks is told last: a file holds what a callback behind it adds."
    mine = lambda run, rows: [(run.round, "me", "test", "aggregated", "x", 1)]
    adding = [callbacks.Metrics("macro_f1"), mine]
    kept = []
    for i, order in enumerate((lambda c: c, lambda c: c[::-1])):
        file = tmp_path/f"{i}.csv"
        told = order([callbacks.Csv(file), *adding, callbacks.Patience(3)])
        run = fdgnb.fit(**short | dict(rounds=2), callbacks=told)
        pd.testing.assert_frame_equal(read_frame(file.read_bytes()), run.history)
        kept.append(sorted(run.rows))
        assert {"macro_f1", "x"} <= set(run.history.metric)
    assert kept[0] == kept[1]


@pytest.mark.parametrize("said", [3, 0, "stop", (), {}, [3], [(1, "a")], pd.DataFrame()], ids=repr)
def test_what_is_no_answer_is_refused_after_one_round(short, said, tmp_path):
    def answers(run, rows): return said
    with refused("^callbacks: answers (returned|adds the row) ") as e:
        fdgnb.fit(**short, out=tmp_path, callbacks=[answers])
    kind = f"({type(said).__name__}): wanted True to stop"
    assert one_line(e) and ("wanted (round, client" if isinstance(said, list) else kind) in str(e.value)
    assert not (tmp_path/"checkpoint.safetensors").exists()                       # no round was written


def test_rows_that_repeat_others_are_refused(short):
    for twice in ([callbacks.Metrics("macro_f1"), callbacks.Metrics("auc", "macro_f1")],
                  [lambda run, rows: rows[:1]]):
        with refused("the history has it already: is a callback given twice") as e:
            fdgnb.fit(**short, callbacks=twice)
        assert one_line(e)
    class Starts(callbacks.Callback):
        def start(self, run): return "yes"
    with refused("Starts returned 'yes'"): fdgnb.fit(**short, callbacks=[Starts()])


def test_a_callback_that_need_not_derive_from_ours(short):
    plain = SimpleNamespace(start=lambda run: None, end=lambda run: None, round=until(1))
    reason = fdgnb.fit(**short, callbacks=[plain]).reason
    assert reason == "SimpleNamespace stopped the run after round 1 of 4"


def test_what_a_run_was_played_without_is_said(short, tmp_path):
    "A warning where metrics, or the file, of rounds played before are wanted; else none."
    once = short | dict(rounds=2, out=tmp_path/"run")
    fdgnb.fit(**once)
    f1, file = callbacks.Metrics("macro_f1"), tmp_path/"h.csv"
    with pytest.warns(UserWarning, match=r"Metrics\('macro_f1'\): the history has no macro_f1 of rounds 1"):
        run = fdgnb.fit(**once, callbacks=[f1])
    with refused("has no metric 'macro_f1'; it has accuracy, loss.") as e: run.table(metric="macro_f1")
    assert one_line(e) and "callbacks=[Metrics('macro_f1')]" in str(e.value)
    with pytest.warns(UserWarning, match="h.csv is not written, the run is finished"):
        fdgnb.fit(**once, callbacks=[callbacks.Csv(file)])
    with pytest.warns(UserWarning, match="of rounds 1 to 2"):
        run = fdgnb.fit(**once | dict(rounds=3), callbacks=[f1, callbacks.Csv(file)])
    t = run.table(metric="macro_f1", rules=["last"])
    assert t["target"].notna().all() and file.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fdgnb.fit(**once | dict(rounds=3), callbacks=[f1, callbacks.Csv(file), callbacks.Patience(1)])
        fdgnb.fit(**short | dict(rounds=1), callbacks=[f1])


def test_a_metric_without_rows_is_refused_where_it_is_asked_for(short):
    run = fdgnb.fit(**short | dict(rounds=1, eval_local=1), callbacks=[callbacks.Metrics("auc", "macro_f1")])
    for point in ("aggregated", "both"):
        assert run.table(point=point, metric="macro_f1")["target"].notna().any()
    with refused("no metric 'macro_f1' at the point local; it has accuracy, loss"):
        run.table(point="local", metric="macro_f1")
    with refused("no metric 'f1'; it has accuracy, loss, .*macro_f1"): run.table(metric="f1")
    assert run.table(metric="loss", point="both")["target"].notna().all()
    dark = fdgnb.fit(**short | dict(rounds=1, eval_every=0))
    assert all(dark.table(metric=m)["target"].isna().all() for m in ("accuracy", "loss"))      # not scored


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


# ---- without a run: any object with rows and a round

FIRST = (1, "a", "test", "aggregated", "accuracy", .5)


def toy(): return SimpleNamespace(rows=[FIRST], round=1, fed=SimpleNamespace(rounds=9))


def told(*given, run=None): return callbacks.tell(callbacks.as_callbacks([*given]), run or toy(), [FIRST])


def adds(run, rows): return [(1, "a", "test", "aggregated", "auc", .75)]


class Looks(callbacks.Callback):
    "Told last, it hears what was added, though it stands first."
    told_last, heard = True, ()
    def round(self, run, rows): self.heard = rows


def test_who_looks_hears_all_and_who_answers_no_stops_nothing():
    looks, run = Looks(), toy()
    assert told(looks, adds, lambda run, rows: None, lambda run, rows: False, run=run) == []
    assert looks.heard == run.rows == [FIRST, (*FIRST[:4], "auc", .75)]
    assert told(lambda run, rows: pd.Series([.5]).gt(1)[0]) == []                         # numpy's own False


@pytest.mark.parametrize("given, says", [(print, "wanted a list"), ([3], "3 is neither a function f"),
                                         ([callbacks.Callback], r"nor a Callback\(\)")])
def test_what_is_no_list_of_callbacks(given, says):
    with refused(says): callbacks.as_callbacks(given)


def test_answers_that_are_none_are_named():
    def notes(run, rows): return len("a line")
    with refused(r"notes returned 6 \(int\): wanted True to stop the run, None or False to go on"): told(notes)
    with refused(r"<lambda> returned 'stop' \(str\)"): told(lambda run, rows: "stop")
    looks = Looks()
    looks.round = adds                                                                    # it was to look only
    with refused(r"Looks returned \[\(1, 'a'"): told(looks)


@pytest.mark.parametrize("row, why", [
    ((2, *FIRST[1:]), "its round is 2, the run's is 1"), (FIRST, "the history has it already"),
    (FIRST[:5], r"wanted \(round, client,"), (dict(value=1), r"wanted \(round, client,"),
    ((*FIRST[:4], None, 1.), "its metric is None, wanted a name"),
    ((*FIRST[:3], "agregated", "f1", 1.), "did you mean 'aggregated'"),
    ((*FIRST[:4], "f1", "high"), r"its value is 'high' \(str\), wanted a number")])
def test_what_is_no_row(row, why):
    with refused(why): told(lambda run, rows: [row])


def past(n, grown=False):
    "A run after n rounds whose validation is best in round 3."
    rows = [(r + 1, "a", "val", "aggregated", "accuracy", v) for r, v in enumerate([.1, .2, .6, .5, .6, .4, .3][:n])]
    return SimpleNamespace(history=pd.DataFrame(rows, columns=callbacks.HISTORY_COLUMNS), sizes=dict(a=dict(val=10)),
                           round=n, grown=grown, fed=SimpleNamespace(rounds=20))


def test_patience_asks_before_the_first_round_too():
    assert [callbacks.Patience(n).start(past(5)) for n in (1, 2, 3)] == [True, True, False]
    assert callbacks.Patience(2).start(past(0)) is False                                  # nothing is done yet
    again = callbacks.Patience(2)
    started = again.start(past(5, grown=True))
    assert [started, *(again.round(past(n), []) for n in (6, 7))] == [False, False, True]
