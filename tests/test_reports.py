"""The notebooks that make reports/ run at a tiny scale, and the reports on file are of the code as it is."""
import subprocess, sys
from importlib import import_module
from pathlib import Path
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
FIDELITY = ROOT/"reports"/"fidelity.csv"
SYSTEMS = ("fedsb", "ga", "fedka", "fedbr", "fdse")


def papermill(notebook, to, **parameters):
    "Execute one of nbs/ with parameters; fails with its last lines."
    args = [str(a) for k, v in parameters.items() for a in ("-p", k, v)]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", ROOT/"nbs"/notebook, to, *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def differences(system): return set(import_module(f"fdgnb.methods.{system}").DIFFERENCES)


def test_fidelity_in_the_small(tmp_path):
    papermill("tables/02_fidelity.ipynb", tmp_path/"x.ipynb", systems="ga", datasets="digits", seeds="0",
              rounds=1, limit=40, jobs=1, out=tmp_path/"runs", report=tmp_path/"report")
    table = pd.read_csv(tmp_path/"report"/"fidelity.csv")
    assert set(table.label) == differences("ga")
    assert table.accuracy.between(0, 100).all() and (table[table.label == "as printed"].difference == 0).all()
    assert len(list((tmp_path/"runs").glob("*/result.json"))) == len(table)
    made = {p.name for p in (tmp_path/"report").iterdir()}
    assert {"fidelity.md", "fidelity.png", "fidelity_runs.csv"} <= made


@pytest.mark.skipif(not FIDELITY.exists(), reason="no report on file")
def test_the_tables_on_file_are_made_of_the_runs_on_file(tmp_path):
    "Drawn from the file of finished runs, without a run, every number comes out as it is."
    runs = FIDELITY.with_name("fidelity_runs.csv")
    papermill("tables/02_fidelity.ipynb", tmp_path/"x.ipynb", runs_csv=runs, report=tmp_path)
    for name in ("fidelity.csv", "fidelity_runs.csv"):
        assert (tmp_path/name).read_text() == FIDELITY.with_name(name).read_text()


@pytest.mark.skipif(not FIDELITY.exists(), reason="no report on file")
def test_the_report_on_file_has_every_difference():
    "A switch that was added or renamed since makes the report stale."
    table = pd.read_csv(FIDELITY)
    for (data, system), rows in table.groupby(["dataset", "system"]):
        assert set(rows.label) == differences(system), (data, system)
    assert set(table.system) == set(SYSTEMS)
