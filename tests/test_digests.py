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
    found = digests.digest(label)
    differ = digests.differences(found, old, label)
    if differ: pytest.fail(digests.what_to_do(label, old, differ), pytrace=False)
    names = digests.lone(found, old)
    assert not names, f"states have other entries than on file ({names[0]}): python tests/digests.py {label!r}"


def test_versions_are_those_on_file():
    for label, old in FILE["runs"].items():
        raised = digests.raised(label, old)
        assert not raised, f"{raised}: another version than in digests.json: python tests/digests.py"


def test_every_method_has_a_run():
    assert {*FILE["runs"]} == {*digests.RUNS}, "python tests/digests.py"
    assert {*digests.OURS} <= {*digests.RUNS}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    "A file of three runs, a changelog, and digests that say what the file says: {label: digest}."
    labels = ["fedprox", "fedprox+ga", "ga"]
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


def change(found, *labels):
    for k in labels: found[k]["server"]["model.head.fc2.bias"][0] *= 1.001


def log(text): digests.CHANGELOG.write_text(text)


def test_numbers_change_only_with_a_version_and_a_line(desk, monkeypatch, capsys):
    before = digests.FILE.read_text()
    change(desk, "fedprox", "fedprox+ga")
    assert digests.write(["fedprox"], "") == 1
    said = capsys.readouterr().out
    for what in ("FedProx.version", "'- fedprox 2: why'", "python tests/digests.py fedprox"): assert what in said
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 2)
    assert digests.write([], "") == 1 and "has no line '- fedprox 2: why'" in capsys.readouterr().out
    assert digests.FILE.read_text() == before
    log("- fedprox 2: half the square\n")
    assert digests.write([], "") == 0
    runs = digests.load()["runs"]
    assert [runs[k]["versions"].get("fedprox") for k in runs] == [2, 2, None]
    assert runs["ga"] == FILE["runs"]["ga"]
    assert runs["fedprox"]["server"] != FILE["runs"]["fedprox"]["server"]


def test_a_version_is_raised_only_where_numbers_change(desk, monkeypatch, capsys):
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 2)
    log("- fedprox 2: nothing\n")
    assert digests.write([], "") == 1 and "no run changed" in capsys.readouterr().out
    change(desk, "fedprox")                                    # one of its two runs is enough
    assert digests.write([], "") == 0
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 1)
    assert digests.write([], "") == 1 and "is lower than in the file" in capsys.readouterr().out


def test_settings_of_a_run_change_only_with_a_line(desk, monkeypatch, capsys):
    method, given = digests.RUNS["ga"]
    monkeypatch.setitem(digests.RUNS, "ga", (method, given | dict(rounds=3)))
    before = digests.FILE.read_text()
    change(desk, "ga")
    assert digests.write([], "") == 1 and "no line '- run ga: why'" in capsys.readouterr().out
    assert digests.FILE.read_text() == before
    log("- run ga: three rounds show more\n")
    assert digests.write([], "") == 0
    assert digests.load()["runs"]["ga"]["given"]["rounds"] == 3


def test_names_of_states_are_not_results(desk):
    desk["ga"]["server"]["ga.other"] = desk["ga"]["server"].pop("ga.a")
    assert digests.write(["ga"], "") == 0
    assert "ga.other" in digests.load()["runs"]["ga"]["server"]
    del desk["ga"]["server"]["model.head.fc2.bias"]
    assert digests.write(["ga"], "") == 1


def test_what_differs_from_a_commit():
    run = dict(versions={"loop": 1, "ga": 1}, bits={"server model.w of server": "1", "server ga.a of server": "2"})
    assert digests.compared(run, run, True) == ("", False)
    changed = run | dict(bits=run["bits"] | {"server model.w of server": "3"})
    assert digests.compared(changed, run, True)[1]
    assert not digests.compared(changed | dict(versions={"loop": 1, "ga": 2}), run, True)[1]
    error = dict(error="no")
    assert digests.compared(error, run, False)[1] and digests.compared(run, error, True)[1]
    assert not digests.compared(run, error, False)[1]                  # a run that is newer than the commit
    renamed = run | dict(bits={"server model.w of server": "1", "server ga.weights of server": "2"})
    assert digests.compared(renamed, run, True) == ("", False)


@pytest.mark.parametrize("there, said", [(dict(error="no"), 1), (dict(versions={"loop": 1}, bits={"w": "1"}), 0)])
def test_a_comparison_without_runs_fails(monkeypatch, capsys, there, said):
    here = dict(versions={"loop": 1}, bits={"w": "1"})
    printed = iter([here, there])
    monkeypatch.setattr(digests, "git", lambda *args: '{"runs": {}}')

    class Process:
        def __init__(self): self.text = digests.json.dumps({"ga": next(printed)})
        def communicate(self): return [self.text]

    monkeypatch.setattr(digests, "start_bits", lambda root, labels: Process())
    assert digests.same("abc", []) == said
    assert f"{1 - said} of 1 runs compared with abc" in capsys.readouterr().out
