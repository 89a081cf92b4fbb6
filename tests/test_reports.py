"""What is published: studies by the command a user types, and the papers' ledger."""
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
from fdgnb.experiments import studies
from fdgnb.tables.ledger import Records, measure
from fdgnb.tables.overview import published as printed

ROOT = Path(__file__).resolve().parent.parent
TINY = """
[tiny]
what = "Few digits"
folder = "tiny"
grid = {dataset = "digits", target = "optical", protocol = "common", rounds = 1, hyper = {limit = 20, size = 16}}
cpu = {methods = ["local"], seeds = 1}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    "A project of one study that nobody has run, in which one works."
    monkeypatch.chdir(tmp_path)
    Path("settings.ini").touch()
    Path("reports").mkdir()
    Path("reports/studies.toml").write_text(TINY)
    return tmp_path


# ---- studies of runs

def test_a_study_runs_nothing_twice(project, capsys):
    "A fresh clone, which has the published records alone, has nothing to do."
    assert studies.main(["tiny"]) == 0
    assert "tiny: 1 runs made" in capsys.readouterr().out
    before = Path("reports/records/tiny.jsonl.gz").read_bytes()
    (project/"runs").rename(project/"lost")
    assert studies.main(["tiny"]) == 0
    assert "tiny: 0 runs made" in capsys.readouterr().out
    assert Path("reports/records/tiny.jsonl.gz").read_bytes() == before


def test_studies_go_on_after_one_that_fails(project, capsys):
    "Its store has a torn record; the exit names it."
    Path("reports/studies.toml").write_text(TINY.replace("tiny", "bad") + TINY)
    torn = Path("runs/studies/bad/digits/x.json")
    torn.parent.mkdir(parents=True)
    torn.write_text("half of")
    assert studies.main([]) == "failed: bad"
    said = capsys.readouterr().out
    assert "bad: failed: " in said and "is torn" in said and "tiny: 1 runs made" in said


def test_a_study_is_named(project):
    assert "did you mean 'tiny'" in studies.main(["tinny"])


# ---- the papers' numbers

def test_the_ledger_on_file_is_of_the_records_on_file():
    "Every printed number, our value and its state, measured anew from all published records."
    file, records = pd.read_csv(ROOT/"reports"/"ledger.csv", keep_default_na=False, na_values=[""]), Records()
    book = pd.DataFrame([measure(r, records) for r in printed().itertuples()])
    assert len(book) == 1074 and {*book.state} == {"reproduced", "not reproduced", "not run"}
    assert file[["state", "n"]].equals(book[["state", "n"]]), "execute tables/10_ledger into reports"
    assert np.allclose(file[["ours", "at_least"]], book[["ours", "least"]], rtol=1e-3, equal_nan=True)
