"""Grids and stores: every run is made once and found again, after a kill, by several processes; what is refused."""
import os, signal, subprocess, sys, time, warnings
from pathlib import Path
import pytest
import torch
from joblib import parallel_config
import fdgnb
from conftest import one_line, says, slice_of
from fdgnb.experiments.execution import run
from fdgnb.experiments.grid import grid
from fdgnb.experiments.search import search
from fdgnb.experiments.store import Store, results
from fdgnb.experiments.table import table
from fdgnb.experiments.verify import main as verify
from fdgnb.federation.compose import METHODS

HERE = Path(__file__).resolve().parent
FILL = """
import sys
from test_grids import run, small
if __name__ == "__main__": run(small(), sys.argv[1] + "/records", 1, sys.argv[1] + "/work", progress=False)
"""


def few_digits(): return slice_of(fdgnb.get_dataset("digits"), 16)


def small(seed=range(2), **given):
    how = dict(target="inked", rounds=4, batch_size=8, lr=.01) | given
    return grid(["fedavg", "ga"], few_digits(), seed=seed, **how)


def outcomes(made):
    "What came of the runs of a grid: scores and curves, to the last digit."
    return [(record["scores"], record["curves"]) for record in made.record]


def records_in(folder): return sorted(Path(folder).glob("*/*.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "The small grid, played one run after the other in this process."
    at = tmp_path_factory.mktemp("whole")
    return run(small(), at/"records", 1, at/"work")


@pytest.fixture
def places(tmp_path):
    "Where `run` keeps records, its number of jobs, where it works."
    return tmp_path/"records", 1, tmp_path/"work"


# ---- found again, killed, stale, torn

def test_a_killed_worker_loses_no_finished_round(whole, tmp_path, places):
    "After kill -9 amid a run two processes at once go on: each run is there once, as if nothing had happened."
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    def start(): return subprocess.Popen(command, cwd=HERE, start_new_session=True)
    def checkpoints(): return [*tmp_path.glob("work/*/*/checkpoint.safetensors")]
    first, until = start(), time.time() + 120
    while not checkpoints() and time.time() < until: time.sleep(.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert checkpoints() and len(records_in(places[0])) < 4
    both = [start(), start()]
    assert [process.wait(240) for process in both] == [0, 0]
    assert len(records_in(places[0])) == 4 and not [*tmp_path.rglob("*.lock")]
    assert outcomes(results(small(), Store(places[0]))) == outcomes(whole)


def test_a_finished_run_is_not_played_again(whole, places):
    "More seeds later: only these are played, by threads of joblib."
    first = run(small(seed=[1.0]), *places)                                          # 1.0 names the seed 1
    stamps = {file: file.stat().st_mtime_ns for file in records_in(places[0])}
    with parallel_config(backend="threading", n_jobs=2): made = run(small(), places[0], work=places[2])
    assert {*made.state} == {"done"} and len(records_in(places[0])) == 4
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())
    assert outcomes(made) == outcomes(whole) and outcomes(first) == outcomes(whole[whole.seed == 1])


def test_a_stale_record_is_played_anew(places, monkeypatch):
    "A method's version goes up: its record counts no more, and the next call replaces it."
    one = small().iloc[:1]
    run(one, *places)
    monkeypatch.setattr(METHODS.get("fedavg"), "version", 1_000)
    found = results(one, Store(places[0]))
    assert [*found.state] == ["stale"] and [*found.record] == [None]
    assert run(one, *places).state[0] == "done" and len(records_in(places[0])) == 1
    assert results(one, Store(places[0])).state[0] == "done"


def test_a_record_that_cannot_be_trusted_is_named(places):
    "Cut off, altered by a digit, no record at all, or of a later version, which nobody is told to delete."
    one = small().iloc[:1]
    run(one, *places)
    file, = records_in(places[0])
    good = file.read_text()
    torn = good[:99], good.replace('": 0.', '": 1.', 1), "", "null", "["*100_000
    for text in torn:
        file.write_text(text)
        says(lambda: results(one, Store(places[0])), file.name, "torn")
    file.write_text(good.replace('"fdgnb-result-', '"fdgnb-result-9'))
    with pytest.raises(fdgnb.FdgnbError) as error: results(one, Store(places[0]))
    assert one_line(error) and "delete" not in str(error.value)


def test_records_of_another_processor_are_compared_apart(tmp_path, capsys, monkeypatch):
    "Where a published score is wrong, `verify` fails on this kind of processor and counts it on others."
    from fdgnb.runs.records import write_study
    monkeypatch.chdir(tmp_path)
    Path("settings.ini").touch()
    digits = grid("fedavg", "digits", "optical", 0, 1, protocol="common", scale="smoke")
    record = run(digits, tmp_path/"records", 1, tmp_path/"work").record[0]
    wrong = record | dict(best_val=record["best_val"] + .5)
    elsewhere = wrong | dict(provenance=record["provenance"] | dict(hardware="a loom"))
    for published, fails in ((wrong, True), (elsewhere, False)):
        write_study(tmp_path/"reports"/"records"/"one.jsonl.gz", [published])
        assert bool(verify(["1"])) == fails, capsys.readouterr().out


# ---- runs that fail, machines that fail

IGNORED = pytest.mark.filterwarnings("ignore:said in each run")


class Breaks(fdgnb.Method):
    "FedAvg that warns, and raises an error in its first round."
    error = None
    def begin(self, model, client, download):
        super().begin(model, client, download)
        warnings.warn("said in each run")
        if self.error: raise self.error


def test_a_failing_run_is_named_and_stops_no_other(places):
    "It is kept as failed, is not tried again unless asked to, and has no place in a table."
    lines = grid(["fedavg(lr=1e30)", "fedavg"], few_digits(), "inked", [0], 1)
    made = run(lines, *places)
    failed, = [file for file in records_in(places[0]) if '"error"' in file.read_text()]
    stamp = failed.stat().st_mtime_ns
    assert made.state.tolist() == ["failed", "done"] and "smaller lr" in made.error[0]
    says(lambda: table(made[:1]), "run it first")
    run(lines, *places)
    assert failed.stat().st_mtime_ns == stamp
    run(lines, *places, retry=True)
    assert failed.stat().st_mtime_ns > stamp


@IGNORED
@pytest.mark.parametrize("error, said", [
    (MemoryError(), "out of memory"), (torch.OutOfMemoryError("CUDA out of memory.\nGPU 0 has 9"), "out of memory"),
    (OSError(5, "no disk"), "no disk")])
def test_what_the_machine_lacks_is_no_run_s_failure(error, said, places, monkeypatch):
    monkeypatch.setattr(Breaks, "error", error)
    lines = grid(Breaks, few_digits(), "inked", [0], 1, batch_size=8)
    says(lambda: run(lines, *places), said)
    assert not records_in(places[0])


# ---- one's own in worker processes

OWN = """
import torch
from torch import nn
import fdgnb
from fdgnb.data.catalogue import dataset
from fdgnb.models import add_backbone
from fdgnb.runs.metrics import METRICS
from own_beside import WEIGHT

@fdgnb.method("own_prox")
class Prox(fdgnb.Method):
    "FedAvg with a weighted loss."
    class Hyper: weight: float = fdgnb.hp(WEIGHT, "weight of the loss", low=0.)
    def loss(self, model, x, y, client): return self.h.weight*super().loss(model, x, y, client)

@dataset("own_data", counts=dict(a=12, b=12), classes=2)
def make_data(size=None):
    rng = torch.Generator().manual_seed(3)
    draw = lambda: (torch.rand(12, 3, 28, 28, generator=rng), torch.arange(12) % 2)
    return fdgnb.from_arrays(dict(a=draw(), b=draw()), name="own_data")

add_backbone("own_net", lambda n, channels: nn.Sequential(nn.Flatten(), nn.Linear(channels*784, n)))

@METRICS.register("own_hits")
def hits(p, y): return (p.argmax(1) == y).mean()

class Free(fdgnb.Method): "FedAvg, unregistered."
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    "A module of one's own in a folder that no worker knows of; forgotten in the end."
    from fdgnb.data.catalogue import DATASETS
    from fdgnb.models import MODELS
    from fdgnb.runs.metrics import METRICS
    (tmp_path/"own.py").write_text(OWN)
    (tmp_path/"own_beside.py").write_text("WEIGHT = .5")
    monkeypatch.syspath_prepend(tmp_path)
    import own
    yield own
    for registry, name in ((METHODS, "own_prox"), (DATASETS, "own_data"), (MODELS, "own_net"), (METRICS, "own_hits")):
        registry.pop(name, None)
    for name in ("own", "own_beside"): sys.modules.pop(name, None)


def test_one_s_own_runs_in_worker_processes(own, tmp_path):
    "A method by name, in a sum and as a class, a data set, a backbone, a metric: the bits of one process."
    how = dict(target="a", seed=[0], rounds=1, batch_size=4, backbone="own_net")
    lines = grid(["own_prox+ga", own.Free], "own_data", **how)
    one, two = (run(lines, tmp_path/f"r{n}", n, tmp_path/f"w{n}", metrics="own_hits") for n in (1, 2))
    assert [*two.state] == ["done"]*2, [*two.error]
    assert outcomes(one) == outcomes(two)
    hits, accuracy = (table(two, "last", metric=metric).mean["a"] for metric in ("own_hits", "accuracy"))
    assert hits.tolist() == pytest.approx(accuracy.tolist(), abs=1e-6)


def test_what_no_worker_can_import_is_refused(places):
    "A class of a function, before any process starts; one job runs it."
    class Inner(fdgnb.Method): "FedAvg in a function."
    lines = grid(Inner, few_digits(), "inked", [0], 1, batch_size=8)
    says(lambda: run(lines, places[0], 2, places[2]), "known in this process alone")
    assert run(lines, *places).state[0] == "done"


# ---- what a grid is made of, and what it refuses

def test_a_method_s_own_values_go_before_shared_ones():
    methods = ["fedprox", "fedprox(mu=1)", "fedavg"]
    plans = grid(methods, seed=0, target="inked", hyper=dict(mu=.1), lr=.05).plan
    assert [made.call["hyper"] for made in plans] == [dict(mu=.1, lr=.05), dict(mu=1, lr=.05), dict(lr=.05)]


def test_methods_that_are_compared_on_a_folder_train_one_network(tmp_path):
    for domain in "ab": (tmp_path/domain/"cat").mkdir(parents=True)
    plans = grid(["fedavg", "fedbn", "ga(backbone=mlp)"], tmp_path, None, seed=0).plan
    assert [made.given["backbone"] for made in plans] == ["mlp_bn", "mlp_bn", "mlp"]
    assert grid(["fedavg", "ga"], tmp_path, None, seed=0).plan[0].given["backbone"] == "mlp"


@pytest.mark.parametrize("target, held_out", [
    ("each", ["optical", "blended", "inked"]), (None, [None]), ("inked", ["inked"]),
    ("pairs", [["optical", "blended"], ["optical", "inked"], ["blended", "inked"]])])
def test_what_is_held_out_in_turn(target, held_out):
    three = dict(load=dict(domains=["optical", "blended", "inked"]))
    assert grid("fedavg", "digits", target, seed=0, hyper=three).target.tolist() == held_out


@pytest.mark.parametrize("given, said", [
    (dict(method="gaa"), "did you mean 'ga'"), (dict(method="ga(d=f())"), "name(key=value"),
    (dict(method=["ga", "ga"]), "twice"), (dict(hyper=dict(mu=1.)), "no method of the grid has"),
    (dict(hyper=dict(lr=.1), lr=.2), "given twice"), (dict(lrr=1.), "'lr'"), (dict(target="blendet"), "'blended'"),
    (dict(seed=[1, 1.]), "different seeds"), (dict(method="fedka", target=None), "target")])
def test_a_grid_refuses_what_fit_would_refuse(given, said):
    says(lambda: grid(**dict(method="fedavg", rounds=3) | given), said)


@pytest.mark.parametrize("call, said", [
    (lambda lines, at: run([1], at), "wanted the lines"),
    (lambda lines, at: run(lines, at, metrics="macro_f2"), "did you mean 'macro_f1'"),
    (lambda lines, at: run(lines, __file__, 1), "Not a directory"),
    (lambda lines, at: run(small(drops=[(1, "inked")]), at, 1), "'inked'"),
    (lambda lines, at: run(small(backbone="alexnet_bn"), at, 1), "at least 63 px"),
    (lambda lines, at: Store(5), "store=5"), (lambda lines, at: search("fedavg", hyper=1.), "hyper=1.0")])
def test_what_cannot_be_is_refused_before_any_run(call, said, tmp_path):
    says(lambda: call(small(), tmp_path/"records"), said)
    assert not records_in(tmp_path/"records")
