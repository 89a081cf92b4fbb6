"""What makes a run another run besides its arguments: versions of ours, digests of the source of one's own."""
import copy, json, os, shutil, subprocess, sys
from pathlib import Path
import pytest
import torch
from conftest import bits, run
from fdgnb import FdgnbError, Method, method
from fdgnb.federation.compose import METHODS
from fdgnb.federation.loop import HOOKS
from fdgnb.models import MODELS
from fdgnb.runs.setup import Federation
from fdgnb.runs.versions import source_digest, versions_of

ROOT = Path(__file__).resolve().parent.parent


def edited(n):
    "FedAvg whose clients weigh n or 1: another method under the same name."
    class Mine(Method):
        "FedAvg with its own weights."
        def weight(self, server, k, upload): return n if k == "inked" else 1.
    return Mine


def test_an_edited_method_is_refused(small, tmp_path):
    "resume=False starts the folder again."
    run(edited(1.), small, out=tmp_path)
    with pytest.raises(FdgnbError) as e: run(edited(5.), small, out=tmp_path)
    assert "another version of mine: choose another folder, or resume=False" in str(e.value)
    again = run(edited(5.), small, out=tmp_path, resume=False)
    assert bits(again) == bits(run(edited(5.), small))
    assert json.loads((tmp_path/"args.json").read_text())["versions"].keys() == {"loop", "mine"}
    with pytest.raises(FdgnbError, match="resume"): run("fedavg", small, out=tmp_path, resume="no")


def test_a_class_without_source(small, tmp_path):
    "From exec: by its bytecode."
    def made(n):
        names = dict(Method=Method)
        exec(f"class Mine(Method):\n    def weight(self, server, k, upload): return {n}.", names)
        return names["Mine"]
    run(made(1), small, out=tmp_path)
    run(made(1), small, out=tmp_path)
    with pytest.raises(FdgnbError, match="another version of mine"): run(made(2), small, out=tmp_path)


@pytest.mark.parametrize("what", ["loop", "fedavg"])
def test_a_version_that_was_raised_is_refused(small, tmp_path, monkeypatch, what):
    run("fedavg", small, out=tmp_path)
    run("fedavg", small, out=tmp_path)
    if what == "loop": monkeypatch.setattr("fdgnb.runs.versions.BEHAVIOR", 1_000)
    else: monkeypatch.setattr(METHODS.get("fedavg"), "version", 1_000)
    with pytest.raises(FdgnbError, match=f"another version of {what}: "): run("fedavg", small, out=tmp_path)


ACT = torch.relu


def clients(table, loss, act=torch.relu):
    "FedAvg that encloses a table, holds another one and a loss, and names an object of this module."
    class Mine(Method):
        "FedAvg with values around it."
        own, cross = dict(table), torch.nn.CrossEntropyLoss(label_smoothing=loss)
        def weight(self, server, k, upload): return table.get(k, 1.)*self.own.get(k, 1.)
        def criterion(self, logits, y, client): return self.cross(ACT(act(logits)), y)
    return Mine


def ours(x): return x
def others(x): return x + 1


def test_values_count_as_the_code_does(monkeypatch):
    "Tables and objects that a class holds, encloses or names; made again, they are the same."
    one = source_digest(clients({"inked": 2.}, .1, ours))
    assert source_digest(clients({"inked": 2.}, .1, ours)) == one
    found = [source_digest(clients(*a)) for a in
             (({"inked": 3.}, .1, ours), ({"inked": 2.}, .2, ours), ({"inked": 2.}, .1, others))]
    monkeypatch.setattr(sys.modules[__name__], "ACT", others)
    found.append(source_digest(clients({"inked": 2.}, .1, ours)))
    assert len({one, *found}) == 5


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_counts(hook):
    def made(n):
        class Mine(Method): "FedAvg with one hook written anew."
        def new(self, *args): return getattr(Method, hook)(self, *args) if n else None
        setattr(Mine, hook, new)
        return source_digest(Mine)
    assert made(1) == made(1) != made(0)


def test_a_summand_of_ones_own_counts_beside_ours(small):
    method("mine_too")(edited(1.))
    try:
        both = versions_of(Federation("fedprox+mine_too", small, "blended", 1))
        assert both.keys() == {"loop", "fedprox", "mine_too"} and both["fedprox"] == 1
    finally: del METHODS["mine_too"]


def test_a_method_built_on_ours_has_both(small):
    class Mine(METHODS.get("fedprox")): "FedProx with nothing added."
    assert versions_of(Federation(Mine, small, "blended", 1)).keys() == {"loop", "mine", "fedprox"}


def test_a_model_of_ones_own_counts(small):
    "By what builds it."
    from fdgnb.models import add_backbone
    def of(width):
        "The versions of a run on a network of so many units."
        def build(n, channels): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels*784, width),
                                                           torch.nn.ReLU(), torch.nn.Linear(width, n))
        add_backbone("zz_mine", build)
        return versions_of(Federation("fedavg", small, "blended", 1, backbone="zz_mine"))
    try:
        assert of(4) == of(4) != of(5) and of(4).keys() == {"loop", "fedavg", "model zz_mine"}
    finally: del MODELS["zz_mine"]


def test_a_copy_changes_nothing(small):
    "Python notes in a class that an object of it was copied."
    class Fresh(Method): "FedAvg, never copied before."
    fed = Federation(Fresh, small, "blended", 1)
    before = versions_of(fed)
    for o in (fed.method, fed.clients[0], fed.data): copy.copy(o)
    assert "__slotnames__" in vars(Fresh) and versions_of(fed) == before


def test_a_comment_in_the_loop_changes_nothing(tmp_path):
    "A copy of the package with another comment and docstring finds the folder of this one, and plays no round."
    shutil.copytree(ROOT/"fdgnb", tmp_path/"fdgnb", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path/"fdgnb"/"federation"/"steps.py"
    file.write_text("# moved\n\n" + file.read_text().replace('"One step of the client', '"A step of the client'))
    script = ("import fdgnb, sys, torch\n"
              "x, y = torch.zeros(20, 3, 28, 28, dtype=torch.uint8), torch.arange(20) % 2\n"
              "d = fdgnb.Dataset('d', {k: fdgnb.Domain(k, x, y) for k in 'abc'}, list('01'))\n"
              "r = fdgnb.fit('fedavg', d, 'a', 1, out=sys.argv[1], progress=False,\n"
              "              callbacks=[lambda *a: print('played')])\n"
              "print(fdgnb.__file__)")
    def said(where):
        command = [sys.executable, "-c", script, str(tmp_path/"out")]
        p = subprocess.run(command, cwd=where, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(where)})
        assert not p.returncode, p.stderr
        return p.stdout.split()
    assert said(ROOT)[0] == "played" and said(tmp_path) == [str(tmp_path/"fdgnb"/"__init__.py")]
