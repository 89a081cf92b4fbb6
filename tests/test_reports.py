"""What is published: campaigns of studies by the command a user types, the papers' ledger, the map of their rows."""
import os, signal, subprocess, sys, time
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
tuned.dataset = "digits"
tuned.target = "optical"
tuned.protocol = "common"
tuned.rounds = 1
tuned.hyper = {backbone = "cnn2", size = 16, limit = 20, fractions = [0.6, 0.2, 0.2]}
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


def published(name="tiny"):
    "The bytes of a study's published records, b'' of none."
    file = Path(f"reports/records/{name}.jsonl.gz")
    return file.read_bytes() if file.exists() else b""


def campaign(*words): return studies.main([*words, "--jobs", "1"])


# ---- campaigns

def test_a_campaign_keeps_within_its_budget_and_runs_nothing_twice(project, capsys):
    """Without time it says what is missing; with time ten trials and the report are played and published.

    A fresh clone, which has the published records alone, has nothing to do."""
    assert campaign("tiny", "--budget", "0") == 0
    assert "tiny: 0 of 11 runs are there" in capsys.readouterr().out and not published()
    assert campaign("tiny", "--budget", "600") == 0
    assert "tiny: 11 of 11 runs are there" in capsys.readouterr().out
    before = published()
    (project/"runs").rename(project/"lost")
    assert campaign("tiny", "--budget", "0") == 0
    assert "tiny: 11 of 11 runs are there" in capsys.readouterr().out and published() == before


def test_a_campaign_goes_on_after_a_study_that_fails(project, capsys):
    "Its store has a torn record; the exit names it."
    Path("reports/studies.toml").write_text(TINY.replace("tiny", "bad") + TINY)
    torn = Path("runs/studies/bad/digits/x.json")
    torn.parent.mkdir(parents=True)
    torn.write_text("half of")
    assert campaign("--budget", "0") == "failed: bad"
    said = capsys.readouterr().out
    assert "bad: failed: " in said and "is torn" in said and "tiny: 0 of 11 runs are there" in said


def test_a_campaign_that_is_stopped_publishes_what_ended(project):
    "One line, an exit code that is no success, and the runs that ended."
    command = [sys.executable, "-m", "fdgnb.experiments.studies", "tiny", "--budget", "600", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | dict(PYTHONPATH=str(ROOT)))
    until = time.time() + 120
    while not [*Path("runs").glob("**/digits/*.json")] and time.time() < until: time.sleep(.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said.startswith("interrupted: ") and said.count("\n") == 1, said
    assert published()


@pytest.mark.parametrize("words, said", [
    (["tinny", "--budget", "1"], "did you mean 'tiny'"), (["--budget", "-1"], "budget=-1"),
    (["tiny", "--budget", "1", "--scale", "paper"], "no runs of its own")])
def test_what_a_campaign_cannot_run(project, words, said):
    assert said in studies.main(words)


# ---- the papers' numbers

def test_the_ledger_on_file_is_of_the_records_on_file():
    "Every printed number, our value and its state, measured anew from all published records."
    file, records = pd.read_csv(ROOT/"reports"/"ledger.csv", keep_default_na=False, na_values=[""]), Records()
    book = pd.DataFrame([measure(r, records) for r in printed().itertuples()])
    assert len(book) == 1074 and {*book.state} == {"reproduced", "not reproduced", "not run"}
    assert file[["state", "n"]].equals(book[["state", "n"]]), "execute tables/10_ledger into reports"
    assert np.allclose(file[["ours", "at_least"]], book[["ours", "least"]], rtol=1e-3, equal_nan=True)
