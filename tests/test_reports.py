"""The notebooks that make reports/ run at a tiny scale, and the reports on file are of the code as it is."""
import json, subprocess, sys
from importlib import import_module
from pathlib import Path
import pandas as pd
import pytest
from fdgnb.experiments.store import Store, digest_of

ROOT = Path(__file__).resolve().parent.parent
FIDELITY = ROOT/"reports"/"fidelity.csv"                              # scale small: all systems
ON_FILE = [ROOT/"reports"/f"{n}.csv" for n in ("fidelity", "fidelity_cpu")]
on_file = pytest.mark.parametrize("file", [pytest.param(f, id=f.stem) for f in ON_FILE if f.exists()] or [
    pytest.param(None, marks=pytest.mark.skip(reason="no report on file"))])
SYSTEMS = ("fedsb", "ga", "fedka", "fedbr", "fdse")


def papermill(notebook, to, **parameters):
    "Execute one of nbs/ with parameters; what it says of errors, '' where it went well."
    args = [str(a) for k, v in parameters.items() for a in ("-p", k, v)]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", ROOT/"nbs"/notebook, to, *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stderr[-2000:] if done.returncode else ""


def differences(system): return set(import_module(f"fdgnb.methods.{system}").DIFFERENCES)


def fidelity(to, **given):
    "The page at scale smoke, GA alone, its records and its report below `to`: the table, or what went wrong."
    wrong = papermill("tables/02_fidelity.ipynb", to/"x.ipynb", scale="smoke", systems="ga", jobs=1,
                      store=to/"records", report=to/"report", **given)
    return wrong or pd.read_csv(to/"report"/"fidelity.csv")


def test_fidelity_in_the_small(tmp_path):
    "Its table has every difference, of records in a store; the second call runs nothing and gives the same."
    table = fidelity(tmp_path, run_missing=True)
    assert set(table.label) == differences("ga")
    assert table.accuracy.between(0, 100).all() and (table[table.label == "as printed"].difference == 0).all()
    null = table[table.label == "first weights by size"].iloc[0]
    assert null.why and null.difference == 0 and pd.isna(null.holm)
    runs = pd.read_csv(tmp_path/"report"/"fidelity_runs.csv")
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("records/digits/*.json")}
    assert len(stamps) == len(runs) == len(table) + 1                                # and FedAvg
    assert {"fidelity.md", "fidelity.tex", "fidelity.png"} <= {p.name for p in (tmp_path/"report").iterdir()}
    assert fidelity(tmp_path, run_missing=False).equals(table)
    assert stamps == {p: p.stat().st_mtime_ns for p in tmp_path.glob("records/digits/*.json")}
    for p in tmp_path.glob("records/digits/ga*.json"): p.unlink()                    # FedAvg alone is left
    assert "FdgnbError: no run of ga as printed is in the store" in fidelity(tmp_path, run_missing=False)


def test_the_ledger_of_an_empty_store(tmp_path):
    "As on a fresh machine, where no run is on file: every number has a state all the same."
    (tmp_path/"none").mkdir()
    wrong = papermill("tables/10_ledger.ipynb", tmp_path/"l.ipynb", store=tmp_path/"none", report=tmp_path)
    assert not wrong, wrong
    assert len(pd.read_csv(tmp_path/"ledger.csv")) == 1074


@on_file
def test_the_tables_on_file_are_made_of_the_runs_on_file(file):
    "Means and deviations of the paired differences, worked out again from the file of the runs."
    runs = pd.read_csv(file.with_name(f"{file.stem}_runs.csv"))
    wide = runs.pivot_table(index=["dataset", "system", "label"], columns="seed", values="accuracy")
    for r in pd.read_csv(file).itertuples():
        d = wide.loc[r.dataset, r.system, r.label] - wide.loc[r.dataset, r.system, "as printed"]
        assert abs(d.mean() - r.difference) < .01 and abs(d.std() - r.sd_difference) < .01, r


@on_file
def test_the_runs_on_file_are_records(file):
    runs = pd.read_csv(file.with_name(f"{file.stem}_runs.csv"))
    known = {digest_of(r["args"]): r for r in Store() if "error" not in r}
    for r in runs.itertuples():
        assert abs(100*known[r.run]["scores"]["aggregated"]["last"]["target"] - r.accuracy) < 1e-3, r


@on_file
def test_the_report_on_file_has_every_difference(file):
    "A switch that was added or renamed since makes the report stale."
    table = pd.read_csv(file)
    for (data, system), rows in table.groupby(["dataset", "system"]):
        assert set(rows.label) == differences(system), (data, system)
    assert set(table.system) == set(SYSTEMS) or file != FIDELITY


@pytest.mark.skipif(not (ROOT/"reports"/"16_ours.ipynb").exists(), reason="no report on file")
def test_what_our_comparison_says_is_of_the_runs_on_file():
    "Its last cell holds the text against the runs it was written of; of others it prints that it does not."
    nb = json.loads((ROOT/"reports"/"16_ours.ipynb").read_text())
    printed = ["".join(o.get("text", "")) for c in nb["cells"] for o in c.get("outputs", ())]
    assert not any(w in text for text in printed for w in ("was written of other runs", "was not checked"))
    assert "quoted_rest(*settings[:3])" in "".join(nb["cells"][-1]["source"])
