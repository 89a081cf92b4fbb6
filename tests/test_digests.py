"""No change of the code changes a result unsaid: every run as in tests/digests.json, and the rules for changing it."""
import copy
import pytest
import digests
from fdgnb.federation.compose import METHODS

FILE = digests.load()


@pytest.mark.parametrize("label", digests.RUNS)
def test_run_is_as_on_file(label):
    old = FILE["runs"].get(label)
    assert old, f"{label!r} is not on file: python tests/digests.py {label!r}"
    assert old["given"] == digests.settings(label), f"{label!r} has other settings: python tests/digests.py"
    raised = digests.raised(label, old)
    assert not raised, f"{raised}: another version than in digests.json: python tests/digests.py"
    found = digests.digest(label)
    differ = digests.differences(found, old, label)
    if differ: pytest.fail(digests.what_to_do(label, old, differ), pytrace=False)
    names = digests.lone(found, old)
    assert not names, f"states have other entries than on file ({names[0]}): python tests/digests.py {label!r}"


def test_every_method_has_a_run():
    assert {*FILE["runs"]} == {*digests.RUNS} and {*digests.OURS} <= {*digests.RUNS}, "python tests/digests.py"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    "A file of two runs, a changelog, and digests that say what the file says: {label: digest}."
    labels = ["fedprox", "ga"]
    monkeypatch.setattr(digests, "FILE", tmp_path/"digests.json")
    monkeypatch.setattr(digests, "CHANGELOG", tmp_path/"CHANGELOG.md")
    monkeypatch.setattr(digests, "RUNS", {k: digests.RUNS[k] for k in labels})
    digests.dump(FILE)
    found = {k: copy.deepcopy(FILE["runs"][k]) for k in labels}
    for run in found.values():
        del run["versions"], run["given"]
        for owner in ("server", "clients", "models", "unseen"):
            run[owner] = {k: [*v, 0.] for k, v in run[owner].items()}
    monkeypatch.setattr(digests, "digest", found.get)
    return found


def test_numbers_change_only_with_a_version_and_a_line(desk, monkeypatch, capsys):
    before = digests.FILE.read_text()
    desk["fedprox"]["server"]["model.head.fc2.bias"][0] *= 1.001
    assert digests.write(["fedprox"], "") == 1 and "FedProx.version" in capsys.readouterr().out
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 2)
    assert digests.write([], "") == 1 and "has no line '- fedprox 2: why'" in capsys.readouterr().out
    assert digests.FILE.read_text() == before
    digests.CHANGELOG.write_text("- fedprox 2: half the square\n")
    assert digests.write([], "") == 0
    runs = digests.load()["runs"]
    assert runs["fedprox"]["versions"]["fedprox"] == 2 and runs["ga"] == FILE["runs"]["ga"]
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 1)
    assert digests.write([], "") == 1 and "is lower than in the file" in capsys.readouterr().out


def test_what_differs_from_a_commit():
    run = dict(versions={"loop": 1, "ga": 1}, bits={"server model.w of server": "1", "server ga.a of server": "2"})
    assert digests.compared(run, run, True) == ("", False)
    changed = run | dict(bits=run["bits"] | {"server model.w of server": "3"})
    assert digests.compared(changed, run, True)[1]
    assert not digests.compared(changed | dict(versions={"loop": 1, "ga": 2}), run, True)[1]
    error = dict(error="no")
    assert digests.compared(error, run, False)[1] and digests.compared(run, error, True)[1]
    assert not digests.compared(run, error, False)[1]                  # a run that is newer than the commit
