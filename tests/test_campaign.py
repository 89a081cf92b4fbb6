"The comparison's campaign: a toy study, stopped by its clock; what is published is enough to go on."
import json
from pathlib import Path
import pytest
from fdgnb.experiments import campaign
from fdgnb.experiments.campaign import find_reports, is_whole, read_comparison, records_of, run_campaign

TOY = """
[toy]
what = "Digits"
folder = "comparison/toy"
classes = 10
repetitions = 1
trial_rounds = 1
further_trials = true
hours = 1
smallest_gain = "1"
methods = ["fedavg", "fedprox"]
repeated = {dataset = "digits", target = "each", protocol = "common", rounds = 2, hyper = {limit = 20, size = 16}}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("settings.ini").touch()
    Path("reports").mkdir()
    Path("reports/studies.toml").write_text(TOY)
    toy, = read_comparison()
    toy.targets = toy.targets[:2]
    return toy


def test_a_campaign_is_gone_on_with_in_the_same_choices(study):
    assert not run_campaign([study], budget=0)
    for file in Path("reports/records").glob("toy/*"): file.unlink()
    assert run_campaign([study])
    records = records_of(study)[0]
    assert is_whole(study, 0, records)
    reports = find_reports(study, records)
    assert len(reports) == 4 and {len(report["trials"]) for report in reports.values()} == {5}
    seeds = {(target, seed) for _, target, seed in reports}
    assert len(seeds) == 2 and len({seed for _, seed in seeds}) == 2        # a target has seeds of its own
    before = {file: file.read_bytes() for file in Path("reports/records").rglob("*") if file.is_file()}
    for file in Path("runs").rglob("*.json"): file.unlink()                 # what is published is enough
    assert run_campaign([study])
    assert {file: file.read_bytes() for file in before} == before


def test_no_repetition_begins_beyond_the_limit(study, capsys):
    Path("reports/records").mkdir()
    Path("reports/records/hours.json").write_text(json.dumps({"toy 0": 60.}))
    assert not run_campaign([study])
    assert "0 of 1 repetitions; 60.0 core hours are spent" in capsys.readouterr().out


def test_a_study_is_named_or_none(study):
    assert "did you mean 'toy'" in campaign.main(["toyy"])
