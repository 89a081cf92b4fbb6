"""The studies of reports/: what the file asks for is there, a failure stops nothing else, pages run at a tiny scale."""
import json, subprocess, sys
from importlib import import_module
from pathlib import Path
import pandas as pd
import pytest
from fdgnb.experiments import studies

ROOT = Path(__file__).resolve().parent.parent
FIDELITY = ROOT/"reports"/"fidelity"
STUDIES = studies.read_studies()


def papermill(notebook, to, **parameters):
    "Execute one of nbs/ with parameters; what it says of errors, '' where it went well."
    args = [str(a) for k, v in parameters.items() for a in ("-p", k, v)]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", ROOT/"nbs"/notebook, to, *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stderr[-2000:] if done.returncode else ""


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_asks_for_what_is_there(name):
    "Its page and the parameters that it is given, its runs as grids, the studies that it shows."
    import papermill
    study = STUDIES[name]
    scales = [s for s in studies.SCALES if s in study]
    assert scales and study["what"] and ("notebook" in study or "grid" in study)
    assert set(study.get("shows", [])) <= set(STUDIES)
    if "notebook" in study:
        declared = papermill.inspect_notebook(ROOT/"nbs"/f"{study['notebook']}.ipynb")
        for scale in scales: studies.parameters_of(study, scale, declared, {})
    if "grid" in study and not studies.missing_data(study):
        assert all(len(g) for scale in scales for g in studies.grids_of(study, scale))


def page(source):
    "A notebook of a title, parameters, and a cell."
    code = dict(cell_type="code", execution_count=None, outputs=[])
    cells = [dict(cell_type="markdown", id="a", metadata={}, source="# A page\n> It [links](ok.ipynb)."),
             code | dict(id="b", metadata=dict(tags=["parameters"]), source="reports = None\nmore = 0"),
             code | dict(id="c", metadata={}, source=source)]
    kernel = dict(name="python3", display_name="python3", language="python")
    return json.dumps(dict(cells=cells, metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=5))


def test_a_study_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    "The others are made, what lacks data is named, and the exit code is an error with the name."
    (tmp_path/"nbs").mkdir()
    (tmp_path/"reports").mkdir()
    (tmp_path/"nbs/ok.ipynb").write_text(page("open(f'{reports}/x.csv', 'w').write(str(more))"))
    (tmp_path/"nbs/bad.ipynb").write_text(page("1/0"))
    (tmp_path/"reports/studies.toml").write_text("""
        bad = {what = "Fails", folder = "bad", notebook = "bad", cpu = {}}
        away = {what = "Lacks data", folder = "away", notebook = "ok", data = ["domainnet"], cpu = {}}
        ok = {what = "Works", folder = "papers/ok", notebook = "ok", cpu = {more = 2}}
        """)
    monkeypatch.setattr(studies, "root", lambda: tmp_path)
    assert studies.main([]) == "failed: bad"
    said = capsys.readouterr().out
    assert "1 of 3: bad: failed: " in said and "2 of 3: away: left out, not here: domainnet" in said
    assert "3 of 3: ok: 0 runs made" in said
    made = tmp_path/"reports/papers/ok"
    assert sorted(p.name for p in made.iterdir()) == ["ok.ipynb", "x.csv"] and (made/"x.csv").read_text() == "2"
    executed = (made/"ok.ipynb").read_text()
    assert "(../../../nbs/ok.ipynb)" in executed and str(tmp_path) not in executed
    assert (tmp_path/"reports/bad/unfinished.ipynb").exists()
    assert "[ok](papers/ok/ok.ipynb)" in (tmp_path/"reports/README.md").read_text()


def test_the_page_of_reports_is_short():
    assert len((ROOT/"reports/README.md").read_text().splitlines()) <= 40


def differences(system): return set(import_module(f"fdgnb.methods.{system}").DIFFERENCES)


def fidelity(to, **given):
    "The page at scale smoke, GA alone, its records and its report below `to`: the table, or what went wrong."
    wrong = papermill("tables/02_fidelity.ipynb", to/"x.ipynb", scale="smoke", systems="ga", jobs=1,
                      store=to/"records", reports=to/"report", **given)
    return wrong or pd.read_csv(to/"report"/"fidelity.csv")


def test_fidelity_in_the_small(tmp_path):
    "Its table has every difference, of records in a store; the second call runs nothing and gives the same."
    table = fidelity(tmp_path, run_missing=True)
    assert set(table.label) == differences("ga")
    assert table.accuracy.between(0, 100).all() and (table[table.label == "as printed"].difference == 0).all()
    null = table[table.label == "first weights by size"].iloc[0]
    assert null.why and null.difference == 0 and pd.isna(null.holm)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path/"records").rglob("*.json")}
    assert len(stamps) == len(pd.read_csv(tmp_path/"report"/"runs.csv")) == len(table) + 1          # and FedAvg
    assert fidelity(tmp_path, run_missing=False).equals(table)
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path/"records").rglob("*.json")}
    for p in (tmp_path/"records").rglob("ga*.json"): p.unlink()                      # FedAvg alone is left
    assert "FdgnbError: no run of ga as printed is in the store" in fidelity(tmp_path, run_missing=False)


def test_the_table_on_file_is_made_of_the_runs_on_file():
    "Means and deviations of the paired differences, worked out again; a switch that was added makes the report stale."
    runs, table = pd.read_csv(FIDELITY/"runs.csv"), pd.read_csv(FIDELITY/"fidelity.csv")
    wide = runs.pivot_table(index=["dataset", "system", "label"], columns="seed", values="accuracy")
    for r in table.itertuples():
        d = wide.loc[r.dataset, r.system, r.label] - wide.loc[r.dataset, r.system, "as printed"]
        assert abs(d.mean() - r.difference) < .01 and abs(d.std() - r.sd_difference) < .01, r
    for (data, system), rows in table.groupby(["dataset", "system"]):
        assert set(rows.label) == differences(system), (data, system)


def test_no_number_of_scale_smoke_in_reports():
    for p in (ROOT/"reports").rglob("setting.json"):
        assert all("smoke" not in part["scale"] for part in json.loads(p.read_text()).values()), p
    for p in (ROOT/"reports").rglob("*.ipynb"):
        given = json.loads(p.read_text())["metadata"].get("papermill", {}).get("parameters", {})
        assert given.get("scale") != "smoke", p.name


def test_the_ledger_of_an_empty_store(tmp_path):
    "As on a fresh machine, where no run is on file: every number has a state all the same."
    (tmp_path/"none").mkdir()
    wrong = papermill("tables/10_ledger.ipynb", tmp_path/"l.ipynb", store=tmp_path/"none", reports=tmp_path)
    assert not wrong, wrong
    assert len(pd.read_csv(tmp_path/"ledger.csv")) == 1074
