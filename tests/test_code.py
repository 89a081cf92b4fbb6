"""The digest of a run's code: what changes it, what does not, and that it holds all a run goes through."""
import copy, inspect, json, shutil, subprocess, sys
from pathlib import Path
import pytest
import torch
from conftest import bits, run
from fdgnb import FdgnbError, Method
from fdgnb.federation.loop import HOOKS
from fdgnb.runs import code
from fdgnb.runs.fit import folder_args
from fdgnb.runs.setup import Federation

ROOT = Path(__file__).resolve().parent.parent


def edited(n):
    "FedAvg whose clients weigh n or 1: another method under the same name."
    class Mine(Method):
        "FedAvg with its own weights."
        def weight(self, server, k, upload): return n if k == "inked" else 1.
    return Mine


def test_an_edited_method_is_refused(small, tmp_path):
    "The old result used to come back; resume=False starts the folder again."
    run(edited(1.), small, out=tmp_path)
    with pytest.raises(FdgnbError) as e: run(edited(5.), small, out=tmp_path)
    assert "the code of Mine changed: choose another folder, or resume=False" in str(e.value)
    again = run(edited(5.), small, out=tmp_path, resume=False)
    assert bits(again) == bits(run(edited(5.), small))
    assert json.loads((tmp_path/"args.json").read_text())["code"]
    with pytest.raises(FdgnbError, match="resume"): run("fedavg", small, out=tmp_path, resume="no")


def test_a_class_without_source(small, tmp_path):
    "From exec: by its bytecode."
    def made(n):
        names = dict(Method=Method)
        exec(f"class Mine(Method):\n    def weight(self, server, k, upload): return {n}.", names)
        return names["Mine"]
    run(made(1), small, out=tmp_path)
    run(made(1), small, out=tmp_path)
    with pytest.raises(FdgnbError, match="the code of Mine changed"): run(made(2), small, out=tmp_path)


TABLE, ACT = {"inked": 1.}, torch.relu


def clients(table, loss, act=torch.relu):
    "FedAvg that encloses a table, holds another one and a loss, and names two objects of this module."
    class Mine(Method):
        "FedAvg with values around it."
        own, cross = dict(table), torch.nn.CrossEntropyLoss(label_smoothing=loss)
        def weight(self, server, k, upload): return table.get(k, 1.)*self.own.get(k, 1.)*TABLE.get(k, 1.)
        def criterion(self, logits, y, client): return self.cross(ACT(act(logits)), y)
    return Mine


def test_values_count_as_the_code_does(small, monkeypatch):
    "Tables, arrays and objects that a class holds, encloses or names; made again, they are the same."
    def units(*args): return folder_args(Federation(clients(*args), small, "blended", 1))["code"]
    one = units({"inked": 2.}, .1)
    assert units({"inked": 2.}, .1) == one
    others = [units({"inked": 3.}, .1), units({"inked": 2.}, .2), units({"inked": 2.}, .1, torch.sigmoid)]
    monkeypatch.setattr(sys.modules[__name__], "ACT", torch.tanh)
    others.append(units({"inked": 2.}, .1))
    for other in others: assert [u for u in one if other[u] != one[u]] == ["Mine"]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_counts(small, hook):
    def made(n):
        class Mine(Method): "FedAvg with one hook written anew."
        def new(self, *args): return getattr(Method, hook)(self, *args) if n else None
        setattr(Mine, hook, new)
        return code.code_of([Mine])[0]
    assert made(1) == made(1) != made(0)


def test_parts_of_a_sum_count(small, monkeypatch):
    before = folder_args(Federation("fedsb+ga", small, "blended", 1))["code"]
    monkeypatch.setattr("fdgnb.methods.fedsb.Budget.sample", lambda self, client, rng: [])
    after = folder_args(Federation("fedsb+ga", small, "blended", 1))["code"]
    assert "fdgnb.methods.fedsb" in [u for u in before if before[u] != after[u]]


def test_model_and_data_count(small, monkeypatch):
    "A network's forward pass and how a split gives its samples."
    def units(): return folder_args(Federation("fedavg", small, "blended", 1))["code"]
    one, net = units(), type(Federation("fedavg", small, "blended", 1).net)
    monkeypatch.setattr(net, "forward", lambda self, x: self.head(self.features(x))*2)
    two = units()
    monkeypatch.setattr("fdgnb.data.domain.Split.take", lambda self, *args: None)
    three = units()
    changed = lambda a, b: [u for u in a.keys() | b.keys() if a.get(u) != b.get(u)]
    assert "fdgnb.models" in changed(one, two) and "fdgnb.data.domain" in changed(two, three)


def test_a_copy_or_a_pickle_changes_nothing(small):
    "Python notes in a class that an object of it was copied."
    class Fresh(Method): "FedAvg, never copied before."
    fed = Federation(Fresh, small, "blended", 1)
    before = folder_args(fed)
    for o in (fed.method, fed.clients[0], fed.data): copy.copy(o)
    assert "__slotnames__" in vars(Fresh) and folder_args(fed) == before


def test_a_patched_step_is_refused(small, tmp_path, monkeypatch):
    "The package's own code counts as it runs."
    run("fedavg", small, out=tmp_path)
    monkeypatch.setattr("fdgnb.federation.loop.descend", lambda method, loss, model, client: loss.detach())
    with pytest.raises(FdgnbError, match="the code of .* changed"): run("fedavg", small, out=tmp_path)


@pytest.mark.parametrize("name", ["fedavg", "fdse", "fedka", "fedbr", "fedsb+ga"])
def test_all_that_a_run_goes_through(name, small):
    "Traced: every function of the package that a round runs is among what was digested."
    fed, called = Federation(name, small, "blended", 1, limit=20), set()
    found = code.Reached([])
    original, kept = code.Reached, []
    class Kept(original):
        def __init__(self, *args):
            kept.append(self)
            super().__init__(*args)
    code.Reached = Kept
    try: folder_args(fed)
    finally: code.Reached = original
    known = {n for unit in kept[0].units.values() for n in unit}

    def trace(frame, event, arg):
        c = frame.f_code
        here = frame.f_globals.get("__name__", "")
        own = event == "call" and here.startswith("fdgnb.") and "<" not in c.co_qualname
        if own: called.add((here, c.co_qualname))
    sys.setprofile(trace)
    try: fed.method.download(fed.server, "inked"); one_round(fed)
    finally: sys.setprofile(None)
    outside = {"fdgnb.runs.fit", "fdgnb.runs.code"}
    unknown = sorted(q for m, q in called if m not in outside and q not in known)
    missing = [q for q in unknown if q.split(".")[0] not in HELPERS]
    assert len(called) > 20 and not missing and found.units == {}


HELPERS = {"Ledger", "nbytes", "Registry", "Federation"}


def one_round(fed):
    "A round in this thread alone."
    from fdgnb.federation.rounds import run_round
    from fdgnb.federation.loop import downloads
    from fdgnb.vectors import Ledger
    class Here:
        def map(self, f, items): return (f(fed.net, i) for i in items)
    return run_round(fed, Here(), downloads(fed.method, fed.server), 0, Ledger())


NORMAL = """
import ast, hashlib, json, sys
from itertools import groupby
{functions}
texts = [open(p).read() for p in sys.argv[1:]]
print(hashed([essence(ast.parse(t)) for t in texts]))
"""


def pythons():
    "The other Pythons of this machine."
    found = [shutil.which(f"python3.{n}") for n in (11, 12, 13)]
    found += sorted(map(str, (Path.home()/".pyenv/versions").glob("3.1[123]*/bin/python")))
    return [p for p in found if p]


def test_the_same_in_all_versions_of_python():
    "Every file of the package has the same digest under 3.11, 3.12 and 3.13."
    functions = code.idle, code.texts_joined, code.essence, code.hashed
    parts = [f"SKIPPED = {code.SKIPPED!r}", *map(inspect.getsource, functions)]
    script = NORMAL.format(functions="\n".join(parts))
    files = sorted(str(p) for p in (ROOT/"fdgnb").rglob("*.py"))
    said = {p: subprocess.run([p, "-c", script, *files], capture_output=True, text=True) for p in pythons()}
    works = {p: r.stdout.strip() for p, r in said.items() if not r.returncode}
    if len(works) < 2: pytest.skip("one Python here")
    assert len(set(works.values())) == 1, works


def test_where_the_package_lies_does_not_matter(tmp_path):
    "A copy in another folder, with comments and docstrings changed, has the same digest; edited, another."
    shutil.copytree(ROOT/"fdgnb", tmp_path/"fdgnb", ignore=shutil.ignore_patterns("__pycache__"))
    script = ("import fdgnb, json, torch; from fdgnb.runs.fit import folder_args\n"
              "from fdgnb.runs.setup import Federation\n"
              "x, y = torch.zeros(20, 3, 28, 28, dtype=torch.uint8), torch.arange(20) % 2\n"
              "d = fdgnb.Dataset('d', {k: fdgnb.Domain(k, x, y) for k in 'abc'}, list('01'))\n"
              "print(json.dumps(folder_args(Federation('fedavg', d, 'a', 1, backbone='cnn2'))['code']))")
    def digests(where):
        p = subprocess.run([sys.executable, "-c", script], cwd=where, capture_output=True, text=True,
                           env={**__import__("os").environ, "PYTHONPATH": str(where)})
        assert not p.returncode, p.stderr
        return json.loads(p.stdout)
    here, file = digests(ROOT), tmp_path/"fdgnb/federation/steps.py"
    text = file.read_text()
    file.write_text("# moved\n\n" + text.replace('"One step of the client', '"A step of the client'))
    assert digests(tmp_path) == here
    file.write_text(text.replace("client.optimizer.step()", "client.optimizer.step(), None"))
    there = digests(tmp_path)
    assert [u for u in here if here[u] != there[u]] == ["fdgnb.federation.steps"]
