"""Grids: killed and taken up again, several processes on one store, other backends, what is refused."""
import json, os, signal, subprocess, sys, threading, time, torch, warnings
from pathlib import Path
from shutil import which
from zlib import crc32
import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from papermill import inspect_notebook
from conftest import one_line
import fdgnb
from digests import data
from fdgnb import FdgnbError, Method
from fdgnb.data.catalogue import DATASETS
from fdgnb.experiments import execution, studies
from fdgnb.experiments.execution import hold_lock, make_record, run
from fdgnb.experiments.grid import call_of, grid
from fdgnb.experiments.search import search
from fdgnb.experiments.store import Planner, Store, add_digest, digest_of, file_name, metric_version
from fdgnb.experiments.store import outcome, read_study, record_of, results, sets_up_own_code, write_study
from fdgnb.experiments.table import table
from fdgnb.experiments.tuning import usual_values
from fdgnb.federation.compose import METHODS
from fdgnb.models import MODELS, add_backbone
from fdgnb.runs import imports
from fdgnb.runs.callbacks import Metrics
from fdgnb.runs.checkpoints import load_checkpoint
from fdgnb.runs.metrics import METRICS
from fdgnb.runs.setup import Federation, RunData
from fdgnb.runs.versions import versions_of

HERE = Path(__file__).resolve().parent
SCRIPT = """
import sys
from digests import data
from fdgnb.experiments.execution import run
from fdgnb.experiments.grid import grid
if __name__ == "__main__":
    run(grid(["fedavg", "ga"], data(n=24), "t", range(2), 4, batch_size=8, lr=.01), sys.argv[1] + "/records",
        int(sys.argv[2]), sys.argv[1] + "/work", progress=False)
"""


def small(seed=range(2), **given):
    usual = dict(batch_size=8, lr=.01)
    return grid(["fedavg", "ga"], data(n=24), "t", seed, 4, **usual | given)


def lines(folder):
    "{file: what came of the run} of a store."
    return {p.name: outcome(json.loads(p.read_text())) for p in sorted(folder.glob("*/*.json"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "The records of the small grid, made one after the other in this process."
    at = tmp_path_factory.mktemp("whole")
    run(small(), at/"records", 1, at/"work")
    return lines(at/"records")


def started(folder, jobs=1):
    command = [sys.executable, "-c", SCRIPT, str(folder), str(jobs)]
    return subprocess.Popen(command, cwd=HERE, start_new_session=True)


def test_kill_9_in_the_middle(whole, tmp_path):
    "Two worker processes, killed with their parent once a run has a checkpoint; the next call ends alike."
    p = started(tmp_path, 2)
    until = time.time() + 120
    while not list(tmp_path.glob("work/*/*/checkpoint.safetensors")) and time.time() < until: time.sleep(.01)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    assert list(tmp_path.glob("work/*/*/checkpoint.safetensors")) and len(lines(tmp_path/"records")) < 4
    made = run(small(), tmp_path/"records", 1, tmp_path/"work")
    assert {*made.state} == {"done"} and lines(tmp_path/"records") == whole


def test_two_processes_fill_one_store(whole, tmp_path):
    "Every run is made once, whoever comes first."
    both = [started(tmp_path), started(tmp_path)]
    assert [p.wait(240) for p in both] == [0, 0]
    assert lines(tmp_path/"records") == whole


def test_a_busy_run_is_left_to_who_has_it(tmp_path):
    "Who shares the store alone sees the lock too; nothing of it is left in the end."
    row, store = small().iloc[0], Store(tmp_path/"records")
    what = call_of(row), *Planner()(row), store.folder
    here, there = ((*what, tmp_path/w) for w in ("here", "there"))
    with hold_lock(store.folder, what[1]): assert make_record(*here) == make_record(*there) == "busy"
    assert make_record(*here) == "done" and make_record(*there) == "there"
    assert not [*tmp_path.rglob("*.lock")]


def test_a_lock_that_is_deleted_on_release_is_held_by_one(tmp_path):
    "Eight threads raise a counter that loses steps unless one of them at a time is at it."
    counter, args = tmp_path/"n", dict(dataset="d", method="m", target="t", seed=0)
    counter.write_text("0")

    def steps():
        for _ in range(25):
            with hold_lock(tmp_path, args, timeout=-1):
                n = int(counter.read_text())
                time.sleep(.0005)
                counter.write_text(str(n + 1))
    threads = [threading.Thread(target=steps) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert counter.read_text() == "200" and not [*tmp_path.rglob("*.lock")]


def test_a_run_that_is_not_repeatable_ends_no_grid(tmp_path, whole, monkeypatch):
    "Another machine, whose lock is not seen, has filed a run that is under way here, different in a bit."
    store, first, fit = Store(tmp_path/"records"), [], execution.fit

    def overtaken(**call):
        made = fit(**call)
        if not first:
            rec = record_of(made)
            old = rec["provenance"] | dict(hardware="a machine of 1999")
            first.append(add_digest(rec | dict(flops_round=rec["flops_round"] + 1, provenance=old)))
            store.put(first[0])
        return made
    monkeypatch.setattr(execution, "fit", overtaken)
    with pytest.warns(UserWarning, match="fedavg, target t, seed 0: not the result"):
        made = run(small(), store, 1, tmp_path/"work")
    assert [*made.state] == ["done"]*4 and made.record[0] == first[0]
    assert "a machine of 1999" in made.error[0] and [*made.error[1:]] == [None]*3
    mine = lines(tmp_path/"records")
    assert sum(mine[name] != whole[name] for name in whole) == 1 and mine.keys() == whole.keys()


def test_ray(whole, tmp_path):
    "The same through Ray's backend, on two processes of this machine; where Ray is installed."
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install fdgnb[ray]")
    from ray.util.joblib import register_ray
    register_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with parallel_config(backend="ray", n_jobs=2):
            made = run(small(), tmp_path/"records", work=tmp_path/"work")
    finally: ray.shutdown()
    assert {*made.state} == {"done"} and lines(tmp_path/"records") == whole


def test_a_torn_record_is_named(tmp_path, whole):
    made = run(small().iloc[:1], tmp_path/"records", 1, tmp_path/"work")
    path, = tmp_path.glob("records/*/*.json")
    path.write_text(path.read_text()[:300])
    with pytest.raises(FdgnbError, match="is torn") as e: results(small(), Store(tmp_path/"records"))
    assert one_line(e) and path.name in str(e.value) and made.state[0] == "done"


def test_code_that_changes_during_a_run_files_nothing(tmp_path, whole, monkeypatch):
    "As when a module is written anew while a grid runs: the digest is read once, and is not the planned one."
    one, usual = small().iloc[[0]], execution.record_of
    monkeypatch.setattr(execution, "record_of", lambda *a: add_digest(usual(*a) | dict(versions=dict(loop=9))))
    with pytest.raises(FdgnbError, match="the code changed while the grid was running: call again") as error:
        run(one, tmp_path/"records", 1, tmp_path/"work")
    assert one_line(error) and not lines(tmp_path/"records")
    monkeypatch.undo()
    run(one, tmp_path/"records", 1, tmp_path/"work")
    assert lines(tmp_path/"records").items() <= whole.items()


def full(path, *data):
    "A disk without room."
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["fdgnb.runs.checkpoints", "fdgnb.runs.fit"])
def test_a_full_disk_is_no_run_s_failure(where, whole, tmp_path, monkeypatch):
    "At a checkpoint or at a run's first file: one line, nothing is filed, the next call ends alike."
    monkeypatch.setattr(f"{where}.atomic_write", full)
    with pytest.raises(FdgnbError, match="No space left on device") as e:
        run(small(), tmp_path/"records", 1, tmp_path/"work")
    assert one_line(e) and not lines(tmp_path/"records")
    monkeypatch.undo()
    run(small().iloc[:1], tmp_path/"records", 1, tmp_path/"work")
    assert lines(tmp_path/"records").items() <= whole.items() and len(lines(tmp_path/"records")) == 1


def test_a_full_disk_at_the_record_loses_no_run(whole, tmp_path, monkeypatch):
    "The store has no room: the run's folder stays, and the next call plays no round of it again."
    one, at = small().iloc[:1], (tmp_path/"records", 1, tmp_path/"work")
    monkeypatch.setattr("fdgnb.experiments.store.atomic_write", full)
    with pytest.raises(FdgnbError, match="No space left on device.*fedavg-t-0-.*call again") as e:
        run(one, *at)
    assert one_line(e) and not lines(tmp_path/"records")
    monkeypatch.undo()
    kept, = tmp_path.glob("work/*/*/checkpoint.safetensors")
    took = load_checkpoint(kept)[1]["seconds"]
    again = run(one, *at).record[0]
    assert len(took) == 4 and again["provenance"]["seconds"]["total"] == pytest.approx(sum(took), abs=.001)
    assert lines(tmp_path/"records").items() <= whole.items() and not [*tmp_path.glob("work/*/*")]


@pytest.mark.parametrize("rounds, every", [(4, 1), (40, 4)])
def test_a_run_of_a_grid_writes_ten_checkpoints(rounds, every, tmp_path, monkeypatch):
    asked = []
    def fit(*args, checkpoint_every, **how):
        asked.append(checkpoint_every)
        raise FdgnbError("enough")
    monkeypatch.setattr(execution, "fit", fit)
    run(grid("fedavg", data(n=24), "t", [0], rounds, batch_size=8), tmp_path/"records", 1, tmp_path/"work")
    assert asked == [every]


def test_a_grid_below_an_except_still_records_failures(tmp_path):
    "What the caller is handling, a file not found, is a context of all that is raised: not the run's error."
    wild, at = small(lr=1e30).iloc[:1], (tmp_path/"records", 1, tmp_path/"work")
    try: open(tmp_path/"none")
    except FileNotFoundError: made = run(wild, *at)
    assert [*made.state] == ["failed"] and "nan" in made.error[0]


@pytest.mark.parametrize("error", [
    MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has 9"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes, out of memory")])
def test_too_little_memory_is_said_in_one_line(error, tmp_path, monkeypatch):
    "Of the processor or of a graphics card: it is the machine's, and no run's failure."
    def fit(*args, **how): raise error
    monkeypatch.setattr(execution, "fit", fit)
    with pytest.raises(FdgnbError, match="out of memory.*: runs that ended are kept; call again") as e:
        run(small().iloc[:1], tmp_path/"records", 1, tmp_path/"work")
    assert one_line(e) and not lines(tmp_path/"records")


def test_another_error_of_torch_is_the_run_s(tmp_path, monkeypatch):
    def fit(*args, **how): raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    monkeypatch.setattr(execution, "fit", fit)
    assert [*run(small().iloc[:1], tmp_path/"records", 1, tmp_path/"work").state] == ["failed"]


def test_a_run_of_another_process_is_waited_for_within_the_budget(tmp_path):
    one, store, began = small().iloc[:1], Store(tmp_path/"records"), time.monotonic()
    with hold_lock(store.folder, Planner()(one.iloc[0])[0]):
        made = run(one, store, 1, tmp_path/"work", seconds=2)
    assert [*made.state] == ["missing"] and time.monotonic() - began < 30


class Warns(Method):
    "FedAvg that says something before each client's steps, and then fails where it is told to."
    wrong = None
    def begin(self, model, client, download):
        warnings.warn("said in each run")
        if self.wrong: raise self.wrong


@pytest.mark.parametrize("wrong", [None, FdgnbError("no"), OSError(5, "no disk")])
def test_warnings_are_said_once_a_call(wrong, tmp_path, monkeypatch):
    "In the second call too, and where the run fails, by itself or by its machine."
    monkeypatch.setattr(Warns, "wrong", wrong)
    g = grid(Warns, data(n=24), "t", range(2), 1, batch_size=8)
    for n in range(2):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try: run(g, tmp_path/f"records{n}", 1, tmp_path/"work")
            except FdgnbError as e: assert "no disk" in str(e)
        assert sum(str(w.message) == "said in each run" for w in heard) == 1


def test_a_record_that_cannot_be_read_loses_no_run(tmp_path, monkeypatch):
    "A torn record that comes while the run is played is no other result: it is said, and the run is kept."
    one, fitted = small().iloc[:1], execution.fit
    path = Store(tmp_path/"records").path(Planner()(one.iloc[0])[0])
    def fit(*args, **how):
        out = fitted(*args, **how)
        path.write_bytes(b"{")
        return out
    monkeypatch.setattr(execution, "fit", fit)
    with pytest.raises(FdgnbError, match="is torn") as e:
        run(one, tmp_path/"records", 1, tmp_path/"work")
    assert one_line(e) and [*tmp_path.glob("work/*/*/checkpoint.safetensors")]


def lines_of(g): return [file_name(Planner()(row)[0]) for _, row in g.iterrows()]


def test_a_record_that_cannot_be_read_is_not_called_torn(tmp_path, whole, monkeypatch):
    "Nobody is told to delete what a later version wrote, or what a disk will not give today."
    store = Store(tmp_path/"records")
    run(small().iloc[:1], store, 1, tmp_path/"work")
    path, = tmp_path.glob("records/*/*.json")
    good = path.read_bytes()
    def says(match):
        with pytest.raises(FdgnbError, match=match) as e: results(small(), store)
        assert one_line(e) and path.name in str(e.value)
        return str(e.value)
    path.write_bytes(good.replace(b"fdgnb-result-2", b"fdgnb-result-3"))
    assert "delete" not in says("has the format 'fdgnb-result-3', not 'fdgnb-result-2'")
    edited = good.replace(b'":0.', b'":1.', 1)
    for torn in (b"", b"null", b"[]", b"["*100_000, b"\xff\xfe", good[:99], edited):
        path.write_bytes(torn)
        says("is torn")
    path.write_bytes(good)
    def broken(self): raise OSError(5, "Input/output error")
    monkeypatch.setattr(Path, "read_bytes", broken)
    assert "delete" not in says("cannot be read: Input/output error")


def test_a_place_that_cannot_be_written_is_found_before_any_run(tmp_path, monkeypatch):
    "The folder of locks, a data set's folder, a name that no disk takes: one line, no round is played."
    g, played = small().iloc[:1], lambda *a, **k: pytest.fail("a run is played")
    monkeypatch.setattr(execution, "fit", played)
    for n, taken in enumerate((".locks", Path(lines_of(g)[0]).parent)):
        (tmp_path/f"r{n}").mkdir()
        (tmp_path/f"r{n}"/taken).write_text("a file")
        with pytest.raises(FdgnbError, match="cannot be (written: File exists|read: Not a dir)") as e:
            run(g, tmp_path/f"r{n}", 1, tmp_path/"w")
        assert one_line(e)
    for wrong in ("x"*300, "a\0b"):
        for given in (dict(store=tmp_path/wrong), dict(work=tmp_path/wrong)):
            with pytest.raises(FdgnbError, match="cannot be (written|read)|: wanted") as e:
                run(g, **dict(store=tmp_path/"r", work=tmp_path/"w", jobs=1) | given)
            assert one_line(e)
    with pytest.raises(FdgnbError, match="wanted the lines that"): run([1], tmp_path)
    with pytest.raises(FdgnbError, match="metrics=5: wanted names"): run(g, tmp_path/"r", metrics=5)


def test_a_planner_keeps_what_it_knows_by_identity(monkeypatch):
    "A data set that was thrown away gives its id to the next one: that must not be taken for the first."
    plan, seen = Planner(), []
    for n in (24, 30, 36, 24):
        args, _ = plan(grid("fedavg", data(n=n), "t", [0], 1, batch_size=8).iloc[0])
        seen.append(args["data"])
    assert len({*seen}) == 3 and seen[0] == seen[3]
    assert {id(what[0]) for *_, what in plan._known.values()} == {key[0] for key in plan._known}


def test_seeds_are_whole_numbers_however_they_come(whole, tmp_path):
    "1.0 is 1, or its record would lie under another name than the one that is looked for."
    for seed in ([1.0], np.array(1), (s for s in [1]), pd.Series([1]), {1}, np.array([1.0])):
        assert repr([*small(seed=seed).seed]) == "[1, 1]"
    made = run(small(seed=[1.0]).iloc[:1], tmp_path/"r", 1, tmp_path/"w")
    assert [*made.state] == ["done"] and lines(tmp_path/"r").items() <= whole.items()


def test_a_failure_is_kept_and_retried_on_request(tmp_path):
    wild, at = small(lr=1e30).iloc[:1], (tmp_path/"records", 1, tmp_path/"work")
    first = run(wild, *at)
    path, = tmp_path.glob("records/*/*.json")
    stamp = path.stat().st_mtime_ns
    assert [*first.state] == ["failed"] and [*run(wild, *at).state] == ["failed"]
    assert path.stat().st_mtime_ns == stamp
    run(wild, *at, retry=True)
    assert path.stat().st_mtime_ns > stamp
    with pytest.raises(FdgnbError, match="run it first"): table(first)


def test_in_domain_and_several_rules(tmp_path):
    made = run(small().iloc[:0], tmp_path/"r", 1, tmp_path/"w")
    assert made.empty
    g = grid(["fedavg", "ga"], data(n=24), None, range(2), 2, batch_size=8)
    made = run(g, tmp_path/"r", 1, tmp_path/"w")
    t = table(made, "last")
    rec = made.record[0]["scores"]["aggregated"]["last"]
    first = [r["scores"]["aggregated"]["last"] for r in made.record[:2]]
    assert [*t.mean] == [*data(n=24).names, "Avg", "ALL"]
    assert t.mean.loc["fedavg", "ALL"] == pytest.approx(sum(r["ALL"] for r in first)/2)
    assert t.mean.loc["fedavg", "Avg"] == pytest.approx(sum(r["AVG"] for r in first)/2, abs=1e-6)
    assert rec["ALL"] <= 1


# ---- the notebooks and the Makefile

def papermill(page, to, **given):
    "The finished process of one of nbs/ with parameters."
    words = [str(w) for k, v in given.items() for w in ("-p", k, v)]
    command = [sys.executable, "-m", "papermill", "--log-level", "ERROR", HERE.parent/"nbs"/page, to, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)


def shown(notebook, kind):
    "What an executed notebook's outputs hold of a kind, a text each."
    outputs = [o for c in json.loads(notebook.read_text())["cells"] for o in c.get("outputs", [])]
    return ["".join(o["data"][kind]) for o in outputs if kind in o.get("data", {})]


def test_papermill_knows_the_parameters_of_the_page():
    "It reads a line of one `=` alone, and would warn of `methods`, which is given, as of a name unknown."
    known = {*inspect_notebook(str(HERE.parent/"nbs"/"compare.ipynb"))}
    assert {"methods", "dataset", "out"} <= known


def test_papermill_refuses_in_one_line(tmp_path):
    "Before any run."
    p = papermill("compare.ipynb", tmp_path/"out.ipynb", method="fedavg", scale="smoke", store=tmp_path/"records")
    last = p.stderr.strip().splitlines()[-1]
    assert p.returncode and last.startswith("FdgnbError: unknown parameter 'method'; did you mean 'methods'?")
    (tmp_path/"taken").write_text("a file")
    p = papermill("compare.ipynb", tmp_path/"out.ipynb", methods="fedavg", scale="smoke",
                  store=tmp_path/"records", out=tmp_path/"taken")
    assert p.returncode and "cannot be written: File exists" in p.stderr.strip().splitlines()[-1]
    assert not list(tmp_path.glob("records/*/*"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    "The folder of two methods' comparison, and the process that made it."
    at = tmp_path_factory.mktemp("compared")
    done = papermill("compare.ipynb", at/"compare.ipynb", methods="fedavg, fedprox", target="optical",
                     rounds=1, scale="smoke", jobs=1, store=at/"records", out=at/"kept", pooled=False)
    return at, done


def test_a_comparison_by_papermill(compared):
    "Four records, the table of them, five pictures."
    at, done = compared
    assert done.returncode == 0, done.stderr[-2000:]
    made = lines(at/"records")
    assert len(made) == 4 and len(shown(at/"compare.ipynb", "image/png")) == 5
    target = [rec["scores"]["aggregated"]["source_val"]["target"] for rec in made.values()]
    first = shown(at/"compare.ipynb", "text/html")[0]
    assert f"{50*sum(target[:2]):.1f}" in first and "fedprox" in first            # in percent, of two seeds
    figures = {f"{stem}.{end}" for stem in ("accuracy", "rounds", "cost", "selection", "points")
               for end in ("png", "svg")}
    assert {p.name for p in (at/"kept").iterdir()} == figures | {f"table{end}" for end in (
        ".csv", ".md", ".tex", "_runs.csv", "_mean.csv")}
    assert f"{50*sum(target[:2]):.1f}" in (at/"kept"/"table.csv").read_text()
    runs, mean = (pd.read_csv(at/"kept"/f"table_{k}.csv") for k in ("runs", "mean"))
    assert [*runs] == ["label", "column", "seed", "score", "rule", "point", "metric"]
    assert runs.score.tolist() == pytest.approx(target) and runs.seed.tolist() == [0, 1, 0, 1]
    told = runs[["rule", "point", "column"]].drop_duplicates().to_numpy().tolist()
    assert told == [["source_val", "aggregated", "optical"]]
    by_hand = runs.groupby("label", sort=False).score.agg(["mean", "std", "count"])
    assert mean.label.tolist() == by_hand.index.tolist() == ["fedavg", "fedprox"]
    assert mean[["mean", "sd", "n"]].to_numpy() == pytest.approx(by_hand.to_numpy())
    gain = (np.array(target[2:]) - target[:2]).mean()
    assert np.isnan(mean.gain[0]) and mean.gain[1] == pytest.approx(gain) and mean.p[1] >= 0


def test_a_comparison_by_another_metric(compared):
    "The runs of the store are played again for it, their results stay; table and pictures are of it."
    at, _ = compared
    before, new = lines(at/"records"), at/"f1"
    done = papermill("compare.ipynb", at/"f1.ipynb", methods="fedavg, fedprox", target="optical", rounds=1,
                     scale="smoke", jobs=1, store=at/"records", out=new, metric="macro_f1", pooled=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert lines(at/"records") == before and (new/"domains.png").exists()
    runs = pd.read_csv(new/"table_runs.csv")
    of = {(r["args"]["method"], r["args"]["seed"]): r for r in Store(at/"records")}
    for r in runs.itertuples():
        scores = of[r.label, r.seed]["metrics"]["macro_f1"]["scores"]["aggregated"]["source_val"]
        assert r.metric == "macro_f1" and r.score == pytest.approx(scores["target"])
        assert r.score != pytest.approx(of[r.label, r.seed]["scores"]["aggregated"]["source_val"]["target"])
    assert "macro_f1 on the held-out domain, %" in shown(at/"f1.ipynb", "text/html")[0]


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_make_passes_on_what_it_is_given_or_refuses_it():
    "No variable is left out without a word; ARGS and IMPORTS go to the notebook as they are."
    def plan(*given): return subprocess.run(["make", "-n", "-o", "install", *given], cwd=HERE.parent,
                                            capture_output=True, text=True)
    wrong = plan("run", "LR=0.1", "METHOD=fedavg")
    assert wrong.returncode and "unknown variable LR:" in wrong.stderr and "papermill" not in wrong.stdout
    assert not plan("run", "FDGNB_DATA=/data", "CI=1").returncode                    # of the environment
    given = "-p workers 2 -r hyper '{lr: 0.05}'"
    assert "goes into ARGS" in wrong.stderr
    for job in ("run", "compare"):
        assert '-r load "{encoder: none}"' in plan(job, "LOAD={encoder: none}").stdout
        assert given in plan(job, f"ARGS={given}").stdout and given not in plan(job).stdout
        assert '-r imports "lib/a.py, b"' in plan(job, "IMPORTS=lib/a.py, b").stdout
        assert "imports" not in plan(job).stdout
    assert not plan("fuzz", "N=5", "PROCESSES=1").returncode and not plan("reports", "SCALE=smoke").returncode


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_a_failed_call_keeps_the_page_before_it(tmp_path):
    (tmp_path/"compare.ipynb").write_text("{}")
    command = ["make", "-o", "install", "compare", "METHODS=fedagv", f"OUT={tmp_path}"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    assert done.returncode and "did you mean 'fedavg'" in done.stderr
    assert (tmp_path/"compare.ipynb").read_text() == "{}" and (tmp_path/"unfinished.ipynb").exists()


# ---- what is one's own, in other processes

OWN = """
import torch
from torch import nn
import fdgnb
from fdgnb.data.catalogue import dataset
from fdgnb.models import add_backbone
from fdgnb.runs.metrics import METRICS
from {stem}_beside import WEIGHT

@fdgnb.method("{stem}_prox")
class Prox(fdgnb.Method):
    "Stay near the global model."
    class Hyper: weight: float = fdgnb.hp(WEIGHT, "weight of the proximal term", low=0.)
    def begin(self, model, client, download):
        super().begin(model, client, download)
        client.scratch["anchor"] = [p.detach().clone() for p in model.parameters()]
    def loss(self, model, x, y, client):
        far = sum((p - q).square().sum() for p, q in zip(model.parameters(), client.scratch["anchor"]))
        return super().loss(model, x, y, client) + WEIGHT*self.h.weight*far

@dataset("{stem}_data", counts=dict(a=12, b=12), classes=2)
def made(size=None):
    rng = torch.Generator().manual_seed(3)
    draw = lambda: (torch.rand(12, 3, 28, 28, generator=rng), torch.arange(12) % 2)
    return fdgnb.from_arrays(dict(a=draw(), b=draw()), name="{stem}_data")

add_backbone("{stem}_net", lambda n, channels: nn.Sequential(nn.Flatten(), nn.Linear(channels*784, n)))

@METRICS.register("{stem}_hits")
def hits(p, y): return (p.argmax(1) == y).mean()

class Free(fdgnb.Method):
    "FedAvg, unregistered."
"""


@pytest.fixture
def own(tmp_path, request):
    "The name of a module in a folder that no worker knows of; gone from this process in the end."
    stem, path = f"own{crc32(request.node.name.encode())}", [*sys.path]
    registries = METHODS, DATASETS, MODELS, METRICS
    before = [set(r.load()) for r in registries]
    (tmp_path/"lib").mkdir()
    (tmp_path/"lib"/f"{stem}.py").write_text(OWN.format(stem=stem))
    (tmp_path/"lib"/f"{stem}_beside.py").write_text("WEIGHT = .5")
    yield stem
    sys.path[:] = path
    imports.IMPORTED.clear()
    for r, names in zip(registries, before):
        for k in set(r) - names: del r[k]
    for m in [m for m in sys.modules if m.startswith(stem)]: del sys.modules[m]


def outcomes(made): return [outcome(r) for r in made.record]


def test_one_s_own_runs_in_worker_processes(own, tmp_path, monkeypatch):
    "A method by name, in a sum and as a class, a data set and a backbone: the bits of one process."
    monkeypatch.syspath_prepend(tmp_path/"lib")
    mine = __import__(own)
    how = dict(target="a", seed=[0], rounds=1, batch_size=4, backbone=f"{own}_net")
    g = grid(["fedavg", f"{own}_prox", f"{own}_prox+ga", mine.Free], f"{own}_data", **how)
    one, two = (run(g, tmp_path/f"r{n}", n, tmp_path/f"w{n}") for n in (1, 2))
    assert [*two.state] == ["done"]*4, [*two.error]
    assert outcomes(one) == outcomes(two) and lines(tmp_path/"r1") == lines(tmp_path/"r2")
    assert {*two.label} == {"fedavg", f"{own}_prox", f"{own}_prox+ga", "Free"}


def test_a_metric_of_one_s_own_in_worker_processes(own, tmp_path, monkeypatch):
    "Workers measure it though nothing else of the run is one's own; where it counts hits, it is accuracy."
    monkeypatch.syspath_prepend(tmp_path/"lib")
    __import__(own)
    g = grid(["fedavg", "bnstats"], data(n=24), "t", range(2), 2, batch_size=8)
    first = run(g, tmp_path/"r", 1, tmp_path/"w")
    made = run(g, tmp_path/"r", 2, tmp_path/"w", metrics=f"{own}_hits")
    assert [*made.state] == ["done"]*4 and outcomes(first) == outcomes(made)
    for r in made.record:
        hits = r["metrics"][f"{own}_hits"]["scores"]
        assert {*hits} == {*r["scores"]} - {"local"}
        assert ("adapted" in hits) == (r["args"]["method"] == "bnstats")
        for point, rules in hits.items():
            for rule, row in rules.items():
                same = {k: v for k, v in r["scores"][point][rule].items() if k in row}       # no ALL, of no mean
                assert row == pytest.approx(same, abs=1e-6) and "target" in same
    def wrong(p, y): raise ValueError("no")
    METRICS.register(f"{own}_bad")(wrong)
    with pytest.raises(FdgnbError, match=f"metric {own}_bad: ValueError: no"):
        run(g, tmp_path/"r3", 1, tmp_path/"w3", metrics=f"{own}_bad")
    assert not [*Store(tmp_path/"r3")]                            # the run is not filed as a failure
    METRICS.register(f"{own}_lone")(lambda p, y: 0.)              # by no module that a worker imports
    with pytest.raises(FdgnbError, match=f"where the run is played: unknown metric '{own}_lone'"):
        run(g, tmp_path/"r", 2, tmp_path/"w", metrics=f"{own}_lone")


def test_a_run_cut_off_without_a_metric_is_measured_from_its_first_round(tmp_path):
    "Its checkpoint is of rounds in which nothing was measured: the metric begins anew, and goes on likewise."
    g = grid("fedavg", data(n=24), "t", [0], 4, batch_size=8)
    full = run(g, tmp_path/"r", 1, tmp_path/"w", metrics="macro_f1").record[0]
    args, versions = Planner()(g.iloc[0])
    folder = lambda **metrics: f"{file_name(args).removesuffix('.json')}-{digest_of([versions, metrics], 4)}"
    without, mine = folder(), folder(macro_f1=metric_version("macro_f1"))
    for name, told in ((without, []), (mine, [Metrics("macro_f1")])):
        stop = lambda run, rows: run.round == 2
        fdgnb.fit(**call_of(g.iloc[0]), out=tmp_path/"w2"/name, progress=False, callbacks=[*told, stop])
    again = run(g, tmp_path/"r2", 1, tmp_path/"w2", metrics="macro_f1").record[0]
    assert again["metrics"] == full["metrics"] and outcome(again) == outcome(full)
    assert (tmp_path/"w2"/without).exists() and not (tmp_path/"w2"/mine).exists()


def test_a_module_that_was_edited_is_imported_anew(own, tmp_path, monkeypatch):
    "The same workers play the next call; the file beside the module is another one by then."
    monkeypatch.syspath_prepend(tmp_path/"lib")
    g = lambda: grid(f"{own}_prox", data(n=24), "t", range(6), 1, batch_size=8)         # both workers play
    __import__(own)
    first = run(g(), tmp_path/"r", 2, tmp_path/"w")
    (tmp_path/"lib"/f"{own}_beside.py").write_text("WEIGHT = .0625")
    for m in (own, f"{own}_beside"): sys.modules.pop(m)
    __import__(own)
    second = run(g(), tmp_path/"r", 2, tmp_path/"w")
    assert [*first.state, *second.state] == ["done"]*12
    assert [r["args"]["hyper"]["weight"] for r in (*first.record, *second.record)] == [.5]*6 + [.0625]*6


def test_what_is_known_here_alone_is_refused(own, tmp_path):
    "A script's method, data set and backbone, and a function's class; with jobs=1 they run."
    class Inner(Method): "FedAvg in a function."
    exec(OWN.format(stem=own).replace(f"from {own}_beside import WEIGHT", "WEIGHT = 1."),
         {"__name__": "__main__"})
    made = grid(f"{own}_prox", data(n=24), "t", [0], 1, batch_size=8)
    for g, kind in ((made, "method"), (grid("fedavg", f"{own}_data", "a", [0], 1, batch_size=4), "dataset"),
                    (grid("fedavg", data(n=24), "t", [0], 1, backbone=f"{own}_net"), "model"),
                    (inner := grid(Inner, data(n=24), "t", [0], 1, batch_size=8), "method")):
        with pytest.raises(FdgnbError, match=f"{kind} '.*' is known in this process alone: a module") as e:
            run(g, tmp_path/"r", 2, tmp_path/"w")
        assert one_line(e)
    assert not lines(tmp_path/"r")
    for g in (made, inner): assert [*run(g, tmp_path/"r", 1, tmp_path/"w").state] == ["done"]


def test_what_a_worker_does_not_know_is_not_filed(own, tmp_path, monkeypatch):
    "A name that the import does not register: the grid ends with one line, the store stays empty."
    monkeypatch.syspath_prepend(tmp_path/"lib")
    __import__(own)
    METHODS[f"{own}_late"] = METHODS[f"{own}_prox"]
    g = grid(f"{own}_late", data(n=24), "t", [0], 1, batch_size=8)
    with pytest.raises(FdgnbError, match=f"where the run is played: unknown method '{own}_late'") as e:
        run(g, tmp_path/"r", 2, tmp_path/"w")
    assert one_line(e) and not lines(tmp_path/"r")
    (tmp_path/"lib"/f"{own}.py").write_text("x = 1/0")
    with pytest.raises(FdgnbError, match=f"in a worker process: imports: {own}: ZeroDivisionError") as e:
        run(grid(f"{own}_prox", data(n=24), "t", [0], 1, batch_size=8), tmp_path/"r", 2, tmp_path/"w")
    assert one_line(e) and not lines(tmp_path/"r")


SLICE = """
import sys
from fdgnb import get_dataset
from fdgnb.experiments.execution import run
from fdgnb.experiments.grid import grid
from fdgnb.federation.toys import slice_of
if __name__ == "__main__":
    g = grid("fedavg", slice_of(get_dataset("digits"), 24), "inked", [0], 1, batch_size=8)
    print(*run(g, sys.argv[1] + "/r", 2, sys.argv[1] + "/w", progress=False).state)
"""


def test_a_slice_of_a_named_data_set_has_one_code_in_all_processes(tmp_path):
    "The name is in the catalogue, which a fresh worker had not loaded: its records had another address."
    done = subprocess.run([sys.executable, "-c", SLICE, tmp_path], capture_output=True, text=True, cwd=HERE)
    assert done.stdout.split() == ["done"], done.stderr[-2000:]


def test_one_s_own_on_dask(own, tmp_path, monkeypatch):
    "In joblib's Dask backend; workers that were started before the module's folder was on the path."
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        monkeypatch.syspath_prepend(tmp_path/"lib")
        g = grid([f"{own}_prox", __import__(own).Free], data(n=24), "t", [0], 1, batch_size=8)
        with parallel_config(backend="dask"): made = run(g, tmp_path/"r", work=tmp_path/"w")
    assert [*made.state] == ["done"]*2, [*made.error]


def test_one_s_own_by_papermill(own, tmp_path):
    "compare with imports=, values of one's own and two workers; run alike; a module that raises is one line."
    file = tmp_path/"lib"/f"{own}.py"
    done = papermill("compare.ipynb", tmp_path/"a.ipynb", methods=f"fedavg(local_epochs=2, lr=.02), {own}_prox",
                     target="optical", rounds=1, seeds=1, scale="smoke", jobs=2, store=tmp_path/"r", imports=file)
    assert done.returncode == 0, done.stderr[-2000:]
    ran = {r["args"]["method"]: r["args"]["settings"] for r in Store(tmp_path/"r") if "error" not in r}
    assert ran.keys() == {"fedavg", f"{own}_prox"}
    assert (ran["fedavg"]["local_epochs"], ran["fedavg"]["lr"]) == (2, .02) != ran[f"{own}_prox"]["lr"]
    assert "fedavg(local_epochs=2, lr=.02)" in shown(tmp_path/"a.ipynb", "text/html")[0]
    done = papermill("run.ipynb", tmp_path/"b.ipynb", method=f"{own}_prox", dataset=f"{own}_data", rounds=1,
                     imports=file, batch_size=4, backbone=f"{own}_net", out=tmp_path/"b")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path/"b"/"record.json").read_text())["args"]["method"] == f"{own}_prox"
    file.write_text("import nowhere_at_all")
    done = papermill("compare.ipynb", tmp_path/"c.ipynb", methods=f"{own}_prox", imports=file)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and last.startswith("FdgnbError: imports: ") and f"({own}.py, line 1)" in last


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_make_passes_imports():
    for job in ("run", "compare"):
        plan = lambda *given: subprocess.run(["make", "-n", "-o", "install", job, *given], cwd=HERE.parent,
                                             capture_output=True, text=True, check=True).stdout
        assert '-r imports "lib/a.py, b"' in plan("IMPORTS=lib/a.py, b") and "imports" not in plan()


def test_a_stale_record_is_shown_and_made_anew(tmp_path, whole, monkeypatch):
    "One version up: it is not read in; the next call replaces it."
    one, at = small().iloc[:1], (tmp_path/"records", 1, tmp_path/"work")
    run(one, *at)
    monkeypatch.setattr(METHODS.get("fedavg"), "version", 1_000)
    found = results(one, Store(tmp_path/"records"))
    assert [*found.state] == ["stale"] and [*found.record] == [None]
    again = run(one, *at)
    assert again.record[0]["versions"]["fedavg"] == 1_000 and len(lines(tmp_path/"records")) == 1
    assert lines(tmp_path/"records").items() <= whole.items()


def test_what_is_published_is_not_run_again(tmp_path, whole):
    "A study's file stands for the folder that it was written from, and the folder may go on."
    made = run(small(), tmp_path/"first", 1, tmp_path/"work")
    write_study(tmp_path/"records"/"small.jsonl", Store(tmp_path/"first"))
    again = run(small(seed=range(3)), tmp_path/"records", 1, tmp_path/"work")
    assert [*again.state] == ["done"]*6 and len(lines(tmp_path/"records")) == 2
    assert outcomes(again[again.seed < 2]) == outcomes(made)


STUDIES = sorted((HERE.parent/"reports"/"records").glob("*.jsonl"))


@pytest.mark.parametrize("file", STUDIES, ids=[p.stem for p in STUDIES])
def test_the_records_on_file_are_whole(file, tmp_path):
    "Read and written again, each is the same file; none of them has lists that belong to a run's own folder."
    records = read_study(file)
    assert write_study(tmp_path/"again.jsonl", records).read_bytes() == file.read_bytes()
    for rec in records:
        if "error" in rec: continue                                       # a run that failed has no curves
        assert len(rec["curves"]["round"]) <= 20 and not {"units", "code"} & {*rec}
        assert {"loop"} < {*rec["versions"]} and {"commit", "hardware", "made"} <= {*rec["provenance"]}


def test_the_records_on_file_are_small_and_each_is_there_once():
    "A run takes 2,500 bytes or less on average."
    names = [file_name(rec["args"]) for p in STUDIES for rec in read_study(p)]
    assert sum(p.stat().st_size for p in STUDIES) < 2_500*len(names)
    assert len(names) == len({*names})


OF_RUNS = [(name, scale) for name, study in studies.read_studies().items() if studies.has_runs(study)
           for scale in studies.SCALES if scale in study]


@pytest.mark.parametrize("name, scale", OF_RUNS)
def test_every_method_of_a_study_takes_its_values(name, scale, monkeypatch):
    "At every scale, also of a graphics card, which is not here."
    monkeypatch.setattr(studies, "Plan", lambda *given: given)
    methods, how, *_ = studies.plan_study(studies.read_studies()[name], scale, None)
    for method in methods: assert usual_values(method, ["lr"], how)["lr"] > 0


def test_pairs_of_held_out_domains(tmp_path):
    "Every two domains together, a column each; too few domains are refused."
    three = data(n=24)
    pairs = grid("fedavg", three, "pairs", 0, 1, batch_size=8, lr=.01)
    names = three.names
    assert [*pairs.target] == [[a, b] for i, a in enumerate(names) for b in names[i + 1:]]
    found = run(pairs, tmp_path/"records", 1, tmp_path/"work")
    assert [*table(found).mean] == ["+".join(t) for t in pairs.target] + ["Avg", "ALL"]
    two = fdgnb.Dataset("two", dict(list(three.domains.items())[:2]), three.classes)
    with pytest.raises(FdgnbError, match="two has 2 domains, and pairs leave none to train on"): grid("fedavg", two,
                                                                                                      "pairs")


def test_what_is_no_line_of_a_grid_is_one_line(tmp_path):
    lines = small()
    found = results(lines, tmp_path)
    for call, says in [(lambda: results(None), "wanted the lines that `grid` makes"),
             (lambda: results(lines[["label"]]), "wanted the"),
                       (lambda: results(lines.assign(options=None)),
                        "wanted the"), (lambda: results(lines, tmp_path, metrics=[[]]), "unknown metric"),
                       (lambda: table(found, rule=[]), "unknown selection rule"), (lambda: table(found, base=[]),
                                                                                   "base="),
                       (lambda: table(found, metric=[]), "unknown metric"), (lambda: table(found[["record"]]),
                                                                             "wanted the lines"),
                       (lambda: table(found, columns=None), "unknown columns None"),
                       (lambda: search("fedavg", data(n=24), hyper=1.), "hyper=1.0: wanted a dict"),
                       (lambda: search("fedavg", data(n=24), seed=None), "seed=None"), (lambda: search(None),
                                                                                        "method")]:
        with pytest.raises(FdgnbError, match=says) as e: call()
        assert one_line(e)


def test_a_network_that_cannot_be_is_refused_before_any_run(tmp_path):
    "The second line's images are too small for its network: the first does not begin."
    lines = pd.concat([small().iloc[:1], grid("fedavg", data(n=24), "t", 0, 1, backbone="alexnet_bn")])
    with pytest.raises(FdgnbError, match="at least 63 px"): run(lines, tmp_path/"records", 1, tmp_path/"work")
    assert not [*tmp_path.rglob("*.json")]


@pytest.mark.parametrize("method", ["fedavg", "fdse", "scaffold", "fedka", "fedbr", "fedsb+ga"])
def test_what_identifies_a_run_is_known_before_its_network(method):
    given = method, data(n=24), "t", 2
    early, whole = RunData(*given), Federation(*given)
    assert early.args() == whole.args() and versions_of(early) == versions_of(whole)


def test_a_backbone_that_keeps_what_it_made_is_the_same_run(tmp_path):
    "Its module's state, and so its digest, is that after its first network."
    kept = {}
    def lazy(n, channels):
        kept.setdefault("w", torch.ones(4, 4))
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels*784, n))
    add_backbone("lazy_kept", lazy)
    one = grid("fedavg", data(n=24), "t", [0], 1, batch_size=8, lr=.01, backbone="lazy_kept")
    try: assert [*run(one, tmp_path/"records", 1, tmp_path/"work").state] == ["done"]
    finally: del MODELS["lazy_kept"]


def test_an_augmentation_of_the_library_needs_no_network():
    assert not sets_up_own_code(RunData("fedavg", data(n=24), "t", 2, augment="domainbed"))
