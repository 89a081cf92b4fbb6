"""What makes a run another run besides its arguments: versions of ours, digests of the source of one's own."""
import copy, importlib, json, os, shutil, subprocess, sys, types
from functools import cache, partial
from pathlib import Path
import pytest
import torch
from conftest import bits, run
from fdgnb import FdgnbError, Method, method
from fdgnb.federation.compose import METHODS
from fdgnb.federation.loop import HOOKS
from fdgnb.data.augment import AUGMENTATIONS
from fdgnb.data.partitions import PARTITIONS
from fdgnb.models import MODELS, add_backbone
from fdgnb.runs.setup import Federation
from fdgnb.runs.versions import is_ours, source_digest, versions_of

ROOT = Path(__file__).resolve().parent.parent


def edited(n):
    "FedAvg whose clients weigh n or 1: another method under the same name."
    class Mine(Method):
        "FedAvg with its own weights."
        replaces = ("weight",)
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


def weighs(what, before=""):
    "The text of a method whose weight is an expression."
    return f"{before}\nclass Mine(Method):\n    def weight(self, server, k, upload): return {what}\n"


LOSS = "class Loss(torch.nn.Module):\n    def forward(self, a, b): return {n}*(a - b)\ncrit = Loss()\n"
NOTEBOOK = dict(
    number=weighs("T", "T = {n}"), table=weighs("T['a']", "T = {{'a': {n}}}"), numbers=weighs("T[0]", "T = [{n}]"),
    tensor=weighs("float(T)", "T = torch.full((), {n}, dtype=torch.bfloat16, requires_grad=True)"),
    array=weighs("T[0]", "T = np.array([None, {n}], dtype=object)"), names=weighs("T.a", "T = SimpleNamespace(a={n})"),
    generator=weighs("sum(f() for _ in 'a')", "def f(): return {n}"),
    comprehension=weighs("sum([f() for _ in 'a'])", "def f(): return {n}"),
    inner=weighs("(lambda: f())()", "def f(): return {n}"), cached=weighs("f()", "@cache\ndef f(): return {n}"),
    slots=weighs("T.a", "class C: __slots__ = 'a',\nT = C()\nT.a = {n}"),
    attribute=weighs("f.a", "def f(): return 1\nf.a = {n}"), twins=weighs(
        "T['a']()", "def f(): return 1\ndef g(): return 2\nT = dict(b=[f, g], a=f if {n} == 1 else g)"),
    library=weighs("crit(1, 1)", "crit = torch.nn.CrossEntropyLoss(label_smoothing=1/{n})"),
    own_loss=weighs("crit(1, 1)", LOSS), partial=weighs("f()", "f = partial(max, {n}, 0)"),
    bound=weighs("f()", "class C:\n    a = {n}\n    def f(self): return self.a\nf = C().f"),
    cycle=weighs("T[0]", "T = [{n}]\nT.append(T)"), words=weighs("len(T)", "T = {{'a', 'b', 'c', 'd{n}'}}"))
IMPORTS = """import numpy as np
import torch
from fdgnb import Method
from functools import cache, partial
from types import SimpleNamespace
"""
SAYS = "import sys\nfrom fdgnb.runs.versions import source_digest\n"


def said_elsewhere(script, where="."):
    "What another process prints, which orders sets in its own way."
    p = subprocess.run([sys.executable, "-c", SAYS + script], cwd=where, capture_output=True, text=True,
                       env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"})
    assert not p.returncode, p.stderr
    return json.loads(p.stdout.replace("'", '"'))


def test_what_a_notebook_holds_counts():
    "Whatever a hook reads; made again, here or in another process, it is the same."
    def digest(text, n):
        names = dict(__name__="__main__")
        exec(IMPORTS + text.format(n=n), names)
        return source_digest(names["Mine"])
    found = {what: [digest(text, n) for n in (1, 1, 2)] for what, text in NOTEBOOK.items()}
    wrong = [what for what, (one, again, other) in found.items() if one != again or one == other]
    assert not wrong
    script = (f"found = {{}}\nfor what, text in {NOTEBOOK!r}.items():\n    names = dict(__name__='__main__')\n"
              f"    exec({IMPORTS!r} + text.format(n=1), names)\n    found[what] = source_digest(names['Mine'])\n"
              "print(found)")
    assert said_elsewhere(script) == {what: one for what, (one, *_) in found.items()}


METHOD = "from fdgnb import Method\n"
INSIDE = METHOD + "class Mine(Method):\n    def weight(self, server, k, upload):\n        "
BASE = METHOD + "T = {{'a': {n}}}\nclass Base(Method):\n    def weight(self, server, k, upload): return T['a']\n"
TABLE = "T = {{'a': {n}}}\ndef f(): return T['a']\n"
MODULES = dict(
    function=(METHOD + weighs("f()", "from vz_a import f"), "def f(): return {n}\n"),
    module=(METHOD + weighs("vz_a.f()", "import vz_a"), "def f(): return {n}\n"),
    further=(METHOD + weighs("vz_a.f()", "import vz_a"), "import vz_b\ndef f(): return vz_b.f()\n", TABLE),
    table=(METHOD + weighs("T['a']", "from vz_a import T"), TABLE),
    users_table=(METHOD + weighs("f()", "from vz_a import f"), TABLE),
    tensor=(METHOD + weighs("f()", "from vz_a import f"), "import torch\nT = torch.ones(1)*{n}\ndef f(): return T\n"),
    loss=(METHOD + weighs("crit(1, 1)", "from vz_a import crit"), "import torch\n" + LOSS),
    cached=(METHOD + weighs("f()", "from vz_a import f"), "import functools\n@functools.cache\ndef f(): return {n}\n"),
    inside=(INSIDE + "from vz_a import f\n        return f()\n", "import vz_b\nf = vz_b.f\n", TABLE),
    base=("from vz_a import Base\nclass Mine(Base): pass\n", BASE))


@pytest.mark.parametrize("what", MODULES)
@pytest.mark.parametrize("folder", ["mine", "site-packages"])
def test_what_modules_hold_counts(what, folder, tmp_path, monkeypatch):
    "A file that is edited, beside the method or further on; in an installed package of one's own, too."
    if folder == "mine": names = ("vz_mine", "vz_a", "vz_b")
    else: names = ("vz.mine", "vz.a", "vz.b")
    where = tmp_path/folder
    (where/"vz").mkdir(parents=True)
    (where/"vz"/"__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(where))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    def digest(n):
        for name in (*names, "vz"): sys.modules.pop(name, None)
        for name, text in zip(names, MODULES[what]):
            if folder != "mine":
                for word in "ab": text = text.replace(f"import vz_{word}", f"from vz import {word} as vz_{word}")
                for word in "ab": text = text.replace(f"from vz_{word} import", f"from .{word} import")
            (where/f"{name.replace('.', '/')}.py").write_text(text.format(n=n))
        importlib.invalidate_caches()
        return source_digest(importlib.import_module(names[0]).Mine)
    first = digest(1)
    assert digest(2) != first == digest(1)
    script = f"sys.path.insert(0, {str(where)!r})\nfrom {names[0]} import Mine\nprint([source_digest(Mine)])"
    assert said_elsewhere(script) == [first]
    for name in (*names, "vz"): sys.modules.pop(name, None)


def score(p, y, k=1): return float(k)


class Maker:
    "A score of one's own that is a bound method."
    def __init__(self, k): self.k = k
    def score(self, p, y): return float(self.k)


@pytest.mark.parametrize("made", [lambda k: partial(score, k=k), lambda k: Maker(k).score,
                                  lambda k: cache(partial(score, k=k)), lambda k: partial(torch.add, alpha=k)])
def test_what_is_made_of_functions_counts(made):
    "As a metric, or anything that is registered."
    assert not is_ours(made(1)) and source_digest(made(1)) == source_digest(made(1)) != source_digest(made(2))


@pytest.mark.parametrize("registry, kind", [(MODELS, "backbone"), (AUGMENTATIONS, "augment"),
                                             (PARTITIONS, "partition")])
def test_a_partial_counts_in_a_run(registry, kind, small):
    "Under the name that it is registered by."
    def build(n, channels, width): return torch.nn.Linear(channels*784, width)
    def part(dataset, target, generator, width=1): return PARTITIONS.get("halves")(dataset, target, generator)
    def of(width):
        if kind == "backbone": add_backbone("zz", partial(build, width=width))
        else: registry["zz"] = partial(dict(augment=lambda x, rng, width: x*width, partition=part)[kind], width=width)
        settings = types.SimpleNamespace(**dict(backbone="", augment="none", partition=("halves",)) |
                                         {kind: ("zz",) if kind == "partition" else "zz"})
        return versions_of(types.SimpleNamespace(method=Method(), settings=settings, data=small))
    try: assert of(1) == of(1) != of(2)
    finally: del registry["zz"]
