"""No change of the code changes a result unsaid: every run as in tests/digests.json, and the rules for changing it."""
import pytest
import digests
from fdgnb.federation.compose import METHODS

FILE = digests.load()


@pytest.mark.parametrize("label", digests.RUNS)
def test_run_is_as_on_file(label):
    old = FILE["runs"].get(label)
    assert old, f"{label!r} is not on file: python tests/digests.py {label!r}"
    assert old["given"] == digests.settings(label), f"{label!r} has other settings: python tests/digests.py"
    now = digests.versions(digests.RUNS[label][0])
    assert old["versions"] == now, "another version than in digests.json: python tests/digests.py"
    found = digests.digest(label)
    differ = digests.differences(found, old, label)
    if differ: pytest.fail(digests.what_to_do(label, old, differ), pytrace=False)
    names = digests.lone(found, old)
    assert not names, f"states have other entries than on file ({names[0]}): python tests/digests.py {label!r}"


def test_every_method_has_a_run():
    assert {*FILE["runs"]} == {*digests.RUNS} and {*digests.OURS} <= {*digests.RUNS}, "python tests/digests.py"


def test_numbers_change_only_with_a_version_and_a_line(tmp_path, monkeypatch, capsys):
    found = digests.digest("fedprox")
    monkeypatch.setattr(digests, "FILE", tmp_path/"digests.json")
    monkeypatch.setattr(digests, "CHANGELOG", tmp_path/"CHANGELOG.md")
    monkeypatch.setattr(digests, "RUNS", {"fedprox": digests.RUNS["fedprox"]})
    monkeypatch.setattr(digests, "digest", lambda label: found)
    digests.dump(FILE)
    before = digests.FILE.read_text()
    assert digests.write(["fedprox"], "") == 0 and digests.FILE.read_text() == before
    found["server"]["model.head.fc2.bias"][0] *= 1.001
    assert digests.write(["fedprox"], "") == 1 and "raise the version" in capsys.readouterr().out
    monkeypatch.setattr(METHODS.get("fedprox"), "version", 2)
    assert digests.write([], "") == 1 and "no line '- fedprox 2: why'" in capsys.readouterr().out
    assert digests.FILE.read_text() == before
    digests.CHANGELOG.write_text("- fedprox 2: half the square\n")
    assert digests.write([], "") == 0 and digests.load()["runs"]["fedprox"]["versions"]["fedprox"] == 2
