"""The command line, and what `make` leaves: the same calls as in Python, one line on what is wrong."""
import json, os, re, subprocess, sys
from dataclasses import fields
from pathlib import Path
from shutil import which
import nbformat
import numpy as np
import pandas as pd
import pytest
from papermill import inspect_notebook
from PIL import Image
import fdgnb
from conftest import slice_of
from fdgnb.__main__ import fields_of, main, read_command, takes
from fdgnb.experiments.grid import ComparePage
from fdgnb.runs.setup import RunPage
from fdgnb.settings import Settings

ROOT = Path(__file__).parents[1]
BROKEN = """
import fdgnb
@fdgnb.method("breaks")
class Breaks(fdgnb.Method):
    "Raises in its first round."
    def aggregate(self, server, uploads): raise ValueError("broken")
"""


@pytest.fixture
def broken(tmp_path):
    "The path of a module with a method that fails."
    file = tmp_path/"broken_method.py"
    file.write_text(BROKEN)
    yield file
    fdgnb.federation.compose.METHODS.pop("breaks", None)


def test_a_run_is_that_of_fit(tmp_path, capsys):
    "The same numbers as the call in Python; every exponent is a number; the table fits 80 columns."
    (tmp_path/"run.yaml").write_text("rounds: 2\nlimit: 30\nlr: 5e-2\nhyper: {mu: 1e-3, momentum: 5e-1}\n")
    words = ["run", "fedprox", "--config", tmp_path/"run.yaml", "--lr", "1e-1", "--out", tmp_path/"a"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "learning rate 0.1, batches of 16, no protocol"
    assert printed.splitlines()[2].split()[0] == "target" and max(map(len, printed.splitlines()[:8])) <= 80
    done = fdgnb.fit("fedprox", rounds=2, limit=30, lr=.1, hyper=dict(mu=.001, momentum=.5), progress=False)
    assert fdgnb.load(tmp_path/"a").table().equals(done.table())
    assert fdgnb.load(tmp_path/"a").args == done.fed.args()
    assert main(words) == 0                                                     # there already: shown again


def test_one_line_from_a_shell(tmp_path):
    "No traceback, nothing printed; 2 for a mistyped option, 1 for what is wrong with a value."
    def call(*words): return subprocess.run([sys.executable, "-m", "fdgnb", *words], capture_output=True, text=True,
                                            cwd=tmp_path)
    for words, code, says in ((("run", "fedavg", "--datset", "digits"), 2, "--dataset"),
                              (("run", "fedavg", "--dataset", "digts"), 1, "did you mean 'digits'?")):
        done = call(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        assert done.stderr.startswith("error: ") and says in done.stderr
    shown = call("--help").stdout
    assert all(word in shown for word in ("run", "compare", "predict", "methods"))
    assert max(map(len, shown.splitlines())) <= 80


def test_every_parameter_of_a_page_is_an_option():
    "And every setting; names are written once."
    for page in (RunPage, ComparePage):
        @takes(page)
        def command(**options): pass
        there = {*command.__signature__.parameters}
        assert there == {f.name for f in (*fields(page), *fields(Settings))} - {"hyper"}
        assert there == {*fields_of(page)} - {"hyper"}


def test_the_page_and_the_command_compare_by_the_same_defaults():
    "The parameters' cell of the page and the dataclass."
    there = {k: v["default"] for k, v in inspect_notebook(str(ROOT/"nbs"/"compare.ipynb")).items()}
    for f in fields(ComparePage):
        if f.name in ("methods", "device", "hyper"): continue
        assert eval(there[f.name]) == f.default, f.name
    assert {*there} == {f.name for f in fields(ComparePage)} - {"device"}


@pytest.mark.parametrize("text, says", [("lr: [1", "is no YAML"), ("rounds: 2\nrouns: 3", "did you mean 'rounds'?"),
                                        ("hyper: 5", "hyper=5 is no dict"), ("- a", "wanted lines like")])
def test_a_config_that_is_wrong(tmp_path, text, says):
    (tmp_path/"run.yaml").write_text(text)
    with pytest.raises(fdgnb.FdgnbError, match=re.escape(says)) as e: read_command(RunPage, {}, tmp_path/"run.yaml")
    assert "\n" not in str(e.value)


def test_the_line_goes_before_the_file(tmp_path):
    "Wherever the file says it: among its hyper-parameters or beside them."
    (tmp_path/"run.yaml").write_text("lr: 0.05\nhyper: {momentum: 0.9, mu: 0.2}\n")
    found = read_command(RunPage, dict(momentum="0.1"), tmp_path/"run.yaml", ["lr=1e-3"])
    assert (found["hyper"], found["momentum"], "lr" in found) == (dict(mu=.2, lr="1e-3"), .1, False)


def test_a_comparison_that_fails_in_part(tmp_path, broken, capsys):
    "Table and pictures of the others are there, each failure is a line, the code is 1."
    words = ["compare", "--methods", "fedavg breaks", "--imports", broken, "--target", "inked", "--seeds", 1,
             "--rounds", 1, "--limit", 30, "--scale", "smoke", "--jobs", 1, "--store", tmp_path/"store",
             "--out", tmp_path/"out"]
    assert main(words) == 1
    told = capsys.readouterr()
    assert "breaks, target inked, seed 0: ValueError: broken\n" in told.err and "error: 1 of 3 runs failed" in told.err
    assert "held out: inked; seed 0" in told.out and "at most 30 samples" in told.out and "fedavg" in told.out
    assert {"accuracy.png", "rounds.svg", "cost.png", "table.csv"} <= {p.name for p in (tmp_path/"out").iterdir()}


def keep_run(method, folder, n=3):
    "A run, kept in <folder>/run, and the files of some images."
    fdgnb.fit(method, slice_of(fdgnb.get_dataset("digits"), 30), target="inked", rounds=1, progress=False,
              out=folder/"run").save()
    files = [str(folder/f"{i}.png") for i in range(n)]
    for file, x in zip(files, fdgnb.get_dataset("digits")["inked"].x):
        Image.fromarray(x.permute(1, 2, 0).numpy()).save(file)
    return files


def test_a_run_goes_on_from_its_checkpoint_aloud(tmp_path, capsys):
    "Fewer rounds are refused in words of a shell; below the table stands what the row `adapted` is."
    words = ["run", "bnstats", "--target", "inked", "--limit", 30, "--out", tmp_path/"a", "--rounds"]
    assert main([*words, 1]) == 0
    told = capsys.readouterr()
    assert told.err == "" and "\nadapted: the last round's model" in told.out and "(predict --adapt)" in told.out
    assert main([*words, 2]) == 0 and capsys.readouterr().err == "goes on from the checkpoint of round 1\n"
    assert main([*words, 1]) == 1 and "--no-resume" in capsys.readouterr().err
    assert main([*words, 1, "--no-resume"]) == 0 and capsys.readouterr().err == ""


HOOK = """
import fdgnb
@fdgnb.method("mistaken")
class Mistaken(fdgnb.Method):
    "Looks for what is not there."
    def loss(self, model, x, y, client): return super().loss(model, x, y, client) + client.nothing
"""


def test_an_error_in_a_hook_of_one_s_own_is_shown_from_its_file_on(tmp_path, capsys, monkeypatch):
    "FDGNB_TRACEBACK=1 shows all, as does an error that no file of the user's is part of."
    (tmp_path/"mistaken_hook.py").write_text(HOOK)
    words = ["run", "mistaken", "--imports", tmp_path/"mistaken_hook.py", "--limit", 30, "--rounds", 1,
             "--out", tmp_path/"a"]
    try:
        assert main(words) == 1
        lines = capsys.readouterr().err.splitlines()
        assert "mistaken_hook.py" in lines[1] and sum(line.startswith("  File ") for line in lines) == 1
        assert lines[-1] == "AttributeError: 'Client' object has no attribute 'nothing'"
        monkeypatch.setenv("FDGNB_TRACEBACK", "1")
        with pytest.raises(AttributeError): main(words)
    finally: fdgnb.federation.compose.METHODS.pop("mistaken", None)


def test_an_unknown_method_may_be_one_s_own(capsys):
    for words in (["run", "zzzz"], ["compare", "--methods", "fedavg zzzz"]):
        assert main(words) == 1
        error = r"error: unknown method 'zzzz'; none of \d+ names is near it; your own: --imports FILE.py\n"
        assert re.fullmatch(error, capsys.readouterr().err)


def test_what_predict_is_told_wrongly(tmp_path, capsys):
    files = keep_run("fedavg", tmp_path)
    for given, says in ([*files, "--adapt"], "fedavg does not adapt to a domain: leave out --adapt;"), \
                       (["nothere.png"], "error: nothere.png: no such file\n"), \
                       ([tmp_path], f"error: {tmp_path} is a folder: write {tmp_path}/*.png\n"):
        assert main(["predict", tmp_path/"run", *given]) == 1
        assert says in capsys.readouterr().err


def test_predictions_of_a_model_that_adapts_to_the_files(tmp_path, capsys):
    files = keep_run("bnstats", tmp_path, 6)
    assert main(["predict", tmp_path/"run", *files, "--csv", "--adapt"]) == 0
    (tmp_path/"found.csv").write_text(capsys.readouterr().out)
    found, kept = pd.read_csv(tmp_path/"found.csv").probability.tolist(), fdgnb.load(tmp_path/"run")
    as_trained, adapted = (model.predict(files).softmax(1).amax(1).tolist() for model in (kept, kept.adapt(files)))
    assert found == pytest.approx(adapted, abs=1e-5) and found != pytest.approx(as_trained, abs=1e-3)
    assert main(["predict", tmp_path/"run", files[0], "--adapt"]) == 1
    assert "to a single image: give several" in capsys.readouterr().err


def test_predictions_are_those_of_the_run(tmp_path, capsys):
    "Class and probability of files, in order."
    files = keep_run("fedavg", tmp_path)
    assert main(["predict", tmp_path/"run", *files, "--csv"]) == 0
    printed = capsys.readouterr().out
    (tmp_path/"found.csv").write_text(printed)
    found, kept = pd.read_csv(tmp_path/"found.csv", dtype={"class": str}), fdgnb.load(tmp_path/"run")
    p = kept.predict(files).softmax(1)
    assert found.file.tolist() == files
    assert found["class"].tolist() == [kept.classes[i] for i in p.argmax(1)]
    assert found.probability.tolist() == pytest.approx(p.max(1).values.tolist(), abs=1e-6)


# ---- the pages, by papermill and make

def test_papermill_s_own_names_and_numbers(tmp_path):
    "--inject-paths defines two names; YAML reads 1e-3 as a word."
    command = [sys.executable, "-m", "papermill", "--log-level", "ERROR", "--no-progress-bar", "--inject-paths",
               ROOT/"nbs"/"run.ipynb", tmp_path/"run.ipynb", "-p", "method", "fedprox", "-p", "rounds", "1",
               "-p", "workers", "1", "-p", "out", tmp_path/"out", "-y", "{hyper: {mu: 1e-3, lr: 1e-2, limit: 30}}"]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    args = json.loads((tmp_path/"out"/"record.json").read_text())["args"]
    assert (args["hyper"]["mu"], args["settings"]["lr"]) == (.001, .01)


def make(*words):
    "Run make, with its bars, without installing, as if no other make had called the tests."
    apart = "CI", "TQDM_DISABLE", "MAKELEVEL", "MAKEFLAGS", "MFLAGS"
    env = {k: v for k, v in os.environ.items() if k not in apart}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    return subprocess.run(["make", "-o", "install", *words], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_make_says_in_one_line_what_a_page_refuses(tmp_path):
    done = make("run", "METHOD=fdsee", f"OUT={tmp_path}/out")
    assert done.returncode == 2
    assert re.search("^error: unknown method 'fdsee'; did you mean 'fdse'", done.stderr, re.M)
    for frame in ("Traceback", "Exception encountered", "PapermillExecutionError"): assert frame not in done.stderr


def test_an_error_of_one_s_own_keeps_its_frames(tmp_path):
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("def breaks(): return 1/0\nbreaks()")])
    nbformat.write(page, tmp_path/"page.ipynb")
    command = [sys.executable, ROOT/"docs"/"execute.py", tmp_path/"page.ipynb", tmp_path/"out.ipynb", "-k", "python3"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "in breaks()" in done.stderr and "ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_make_shows_rounds_and_leaves_pages(tmp_path, broken):
    "A comparison in which a method fails: the counter, the page with captions and folded code, exit code 1."
    words = ["METHODS=fedavg breaks", f"IMPORTS={broken}", "TARGET=inked", "SEEDS=1", "ROUNDS=1", "SCALE=smoke",
             f"OUT={tmp_path}/out", f"ARGS=-r hyper '{{limit: 30}}' -p store {tmp_path}/store -p jobs 1"]
    done = make("compare", *words)
    out = tmp_path/"out"
    assert done.returncode == 2, done.stderr[-2000:]                                 # make's own for a failed recipe
    assert "3 of 3 runs: 100%" in done.stderr and "Traceback" not in done.stderr
    assert (out/"failed.txt").read_text() == "breaks, target inked, seed 0: failed: ValueError: broken\n"
    assert {"compare.ipynb", "compare.html", "accuracy.png", "table.csv"} <= {p.name for p in out.iterdir()}
    page = re.sub(r"<style.*?</style>|data:image/png;base64,[^\"]*", "", (out/"compare.html").read_text(), flags=re.S)
    assert "held out: inked" in page and "Avg is the mean of the columns" in page and "at most 30 samples" in page
    assert page.count('<p class="caption">') == page.count("<img") == 5
    assert page.count('<details class="code">') > 5 and "papermill nbs/compare.ipynb" not in page
    assert page.count("of 3 runs:") == 1                                              # not every step of the bar


def test_an_export_warns_of_nothing(tmp_path, recwarn):
    "torch's exporter warns of its own code."
    pytest.importorskip("onnxscript")
    small = slice_of(fdgnb.get_dataset("digits"), 30)
    fdgnb.fit("fedavg", small, target="inked", rounds=1, progress=False).export(tmp_path/"a.onnx")
    assert not [w for w in recwarn if issubclass(w.category, FutureWarning)]


def test_a_warning_is_said_once_in_one_line(tmp_path, capsys):
    "The data are read twice, for the name of the run's folder and by the run."
    for d in "ab":
        for c in "kl":
            (tmp_path/"xr"/d/c).mkdir(parents=True)
            for i in range(4):
                image = Image.fromarray(np.full((16, 16), 4095 - i, np.uint16))
                image.save(tmp_path/"xr"/d/c/f"{i}.png")
    words = ["run", "fedavg", "--dataset", f"{tmp_path}/xr", "--rounds", "1", "--out", f"{tmp_path}/out"]
    assert main(words) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "counts as white" in line]
    assert len(said) == 1 and said[0].startswith("warning: xr: pixels reach 4095")
