"""The command line: the same calls as in Python, an exit code and one line on what is wrong; a page by papermill."""
import json, re, subprocess, sys
from io import StringIO
from pathlib import Path
from shutil import which
import pandas as pd
import pytest
from papermill import inspect_notebook
from PIL import Image
import fdgnb
from conftest import slice_of
from fdgnb.__main__ import main
from fdgnb.federation.compose import METHODS

ROOT = Path(__file__).parents[1]
BROKEN = """
import fdgnb
@fdgnb.method("breaks")
class Breaks(fdgnb.Method):
    "Raises in its first round."
    def aggregate(self, server, uploads): raise ValueError("broken")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    "The path of a module with a method that fails."
    file = tmp_path_factory.mktemp("broken")/"broken_method.py"
    file.write_text(BROKEN)
    yield file
    METHODS.pop("breaks", None)


@pytest.fixture
def files(tmp_path):
    "Some images of digits."
    paths = [str(tmp_path/f"{i}.png") for i in range(6)]
    for path, x in zip(paths, fdgnb.get_dataset("digits")["inked"].x):
        Image.fromarray(x.permute(1, 2, 0).numpy()).save(path)
    return paths


def train(method, folder):
    "A short run, kept in a folder."
    data = slice_of(fdgnb.get_dataset("digits"), 30)
    fdgnb.fit(method, data, target="inked", rounds=1, progress=False, out=folder).save()
    return fdgnb.load(folder)


# ---- run

def test_a_run_is_that_of_fit(tmp_path, capsys):
    "What is said on the line goes before the file; YAML's exponents are numbers; the same command shows it again."
    (tmp_path/"run.yaml").write_text("rounds: 2\nlimit: 30\nlr: 5e-2\nhyper: {mu: .2, momentum: 5e-1}\n")
    words = ["run", "fedprox", "--config", tmp_path/"run.yaml", "--lr", "1e-1", "--hyper", "mu=1e-3"]
    words += ["--out", tmp_path/"a"]
    assert main(words) == 0
    printed, kept = capsys.readouterr().out, fdgnb.load(tmp_path/"a")
    done = fdgnb.fit("fedprox", rounds=2, limit=30, lr=.1, hyper=dict(mu=.001, momentum=.5), progress=False)
    assert kept.table().equals(done.table()) and kept.args == done.fed.args()
    assert max(map(len, printed.splitlines()[:8])) <= 80
    assert main(words) == 0 and capsys.readouterr().err == ""


def test_a_run_goes_on_from_its_checkpoint(tmp_path, capsys):
    "Said aloud; fewer rounds are refused unless it begins anew."
    words = ["run", "fedavg", "--target", "inked", "--limit", 30, "--out", tmp_path/"a", "--rounds"]
    assert main([*words, 1]) == 0 and capsys.readouterr().err == ""
    assert main([*words, 2]) == 0 and "checkpoint of round 1" in capsys.readouterr().err
    assert main([*words, 1]) == 1 and "--no-resume" in capsys.readouterr().err
    assert main([*words, 1, "--no-resume"]) == 0


def test_one_line_from_a_shell(tmp_path):
    "No traceback, nothing printed, an exit code that is no success."
    command = [sys.executable, "-m", "fdgnb", "run", "fedavg", "--dataset", "digts"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: ") and "did you mean 'digits'" in done.stderr


@pytest.mark.parametrize("words, code, said", [
    (["run", "fedavg", "--datset", "digits"], 2, "--dataset"), (["run", "fedavg", "--rounds"], 2, "--rounds"),
    (["run", "zzzz"], 1, "--imports FILE.py"), (["run"], 1, "which method?"),
    (["run", "fedavg", "--rounds", "two"], 1, "rounds"), (["run", "fedprox", "--hyper", "mu"], 1, "name=value"),
    (["run", "fedavg", "--config", "none.yaml"], 1, "No such file"), (["methods", "zzzz"], 1, "no method"),
    (["compare", "--methods", "fedavg zzzz"], 1, "unknown method 'zzzz'"),
    (["compare", "--rule", "lats"], 1, "did you mean 'last'"), (["compare", "--seeds", "0"], 1, "seeds=0"),
    (["predict", "nowhere", "a.png"], 1, "nowhere"),
    (["predict", "nowhere", "a.png", "--adapt", "--domain", "a"], 1, "--adapt with --domain")])
def test_what_a_command_refuses(words, code, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and told.err.startswith("error: ") and said in told.err


@pytest.mark.parametrize("text, said", [
    ("lr: [1", "is no YAML"), ("rouns: 3", "did you mean 'rounds'"), ("hyper: 5", "hyper=5"), ("- a", "wanted lines")])
def test_a_config_that_is_wrong(text, said, tmp_path, capsys):
    (tmp_path/"run.yaml").write_text(text)
    assert main(["run", "fedavg", "--config", tmp_path/"run.yaml"]) == 1
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_an_error_of_one_s_own_code_is_shown_from_its_file_on(tmp_path, broken, capsys, monkeypatch):
    "FDGNB_TRACEBACK=1 shows all."
    words = ["run", "breaks", "--imports", broken, "--limit", 30, "--rounds", 1, "--out", tmp_path/"a"]
    assert main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("  File ") for line in lines) == 1 and "broken_method.py" in lines[1]
    assert lines[-1] == "ValueError: broken"
    monkeypatch.setenv("FDGNB_TRACEBACK", "1")
    with pytest.raises(ValueError): main(words)


# ---- compare, predict, methods

def test_a_comparison_that_fails_in_part(tmp_path, broken, capsys):
    "Table and pictures of the others are there, each failure is a line, the code is 1."
    words = ["compare", "--methods", "fedavg breaks", "--imports", broken, "--target", "inked", "--seeds", 1,
             "--rounds", 1, "--limit", 30, "--scale", "smoke", "--jobs", 1, "--store", tmp_path/"store",
             "--out", tmp_path/"out"]
    assert main(words) == 1
    told = capsys.readouterr()
    assert "breaks, target inked, seed 0: ValueError: broken\n" in told.err and "1 of 3 runs failed" in told.err
    assert "fedavg" in told.out and "pooled" in told.out
    assert {"accuracy.png", "rounds.svg", "cost.png", "table.csv"} <= {p.name for p in (tmp_path/"out").iterdir()}


def test_predictions_are_those_of_the_run(tmp_path, files, capsys):
    "Class and probability of each file; with --adapt those of the model that adapted to the files."
    kept = train("bnstats", tmp_path/"run")
    for more, model in ([], kept), (["--adapt"], kept.adapt(files)):
        assert main(["predict", tmp_path/"run", *files, "--csv", *more]) == 0
        (tmp_path/"found.csv").write_text(capsys.readouterr().out)
        found = pd.read_csv(tmp_path/"found.csv", dtype={"class": str})
        best = model.predict(files).softmax(1).max(1)
        assert found.file.tolist() == files
        assert found["class"].tolist() == [kept.classes[i] for i in best.indices]
        assert found.probability.tolist() == pytest.approx(best.values.tolist(), abs=1e-5)
        assert found[kept.classes].to_numpy() == pytest.approx(model.predict(files).softmax(1).numpy(), abs=1e-5)
    assert main(["predict", tmp_path/"run", files[0], "--adapt"]) == 1
    assert "single image" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["local", "local+bnstats"])
def test_where_clients_trained_alone_one_says_whose_model(tmp_path, files, capsys, method):
    kept = train(method, tmp_path/"run")
    for words in ["predict", files[0]], ["predict", files[0], "--adapt"], ["export", tmp_path/"no.pt2"]:
        assert main([words[0], tmp_path/"run", *words[1:]]) == 1 and "name the client" in capsys.readouterr().err
    for domain in "optical", "rendered":
        assert main(["predict", tmp_path/"run", files[0], "--csv", "--domain", domain]) == 0
        found = pd.read_csv(StringIO(capsys.readouterr().out))
        own = kept.predict(files[:1], domain=domain).softmax(1)[0]
        assert found[kept.classes].iloc[0].tolist() == pytest.approx(own.tolist(), abs=1e-5)
    assert not kept.predict(files[:1], domain="optical").equal(kept.predict(files[:1], domain="rendered"))
    assert main(["export", tmp_path/"run", tmp_path/"its.pt2", "--domain", "optical"]) == 0


def test_predictions_go_on_after_a_file_that_is_no_image_and_may_be_calibrated(tmp_path, files, capsys):
    kept = train("fedavg", tmp_path/"run")
    (tmp_path/"torn.png").write_text("no image")
    words = ["predict", tmp_path/"run", files[0], tmp_path/"torn.png", files[1], "--csv", "--calibrated"]
    assert main(words) == 1
    assert main([*words, "--on-error", "skip"]) == 0
    (tmp_path/"found.csv").write_text(capsys.readouterr().out)
    found = pd.read_csv(tmp_path/"found.csv", dtype={"class": str})
    assert found.file.tolist() == [files[0], str(tmp_path/"torn.png"), files[1]]
    assert "torn.png" in found.error[1] and found.error[[0, 2]].isna().all() and pd.isna(found.probability[1])
    assert found["class"].notna().tolist() == [True, False, True] and list(found)[3:-1] == kept.classes
    assert main([*words[:2], tmp_path/"torn.png", "--on-error", "skip"]) == 1
    assert main(["report", tmp_path/"run"]) == 0 and (tmp_path/"run/report.html").exists()


# ---- the page `compare`, by papermill and make

def test_every_parameter_of_the_page_is_an_option_of_the_command(capsys):
    assert main(["compare", "--help"]) == 0
    options = {*re.findall(r"--([a-z][\w-]*)", capsys.readouterr().out)}
    parameters = inspect_notebook(str(ROOT/"nbs"/"compare.ipynb"))
    assert {name.replace("_", "-") for name in parameters} <= options


def test_a_comparison_by_papermill(tmp_path):
    "With a method of one's own; the table's numbers are those of its runs, means and deviations by hand."
    (tmp_path/"mine.py").write_text(BROKEN.replace('raise ValueError("broken")', "super().aggregate(server, uploads)"))
    given = dict(methods="fedavg(local_epochs=2, lr=.02), breaks", imports=tmp_path/"mine.py", target="optical",
                 rounds=1, seeds=2, scale="smoke", jobs=1, store=tmp_path/"records", out=tmp_path/"kept", pooled=False)
    words = [str(word) for name, value in given.items() for word in ("-p", name, value)]
    command = [sys.executable, "-m", "papermill", "--log-level", "ERROR", ROOT/"nbs/compare.ipynb",
               tmp_path/"compare.ipynb", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    runs, means = (pd.read_csv(tmp_path/"kept"/f"table_{kind}.csv") for kind in ("runs", "mean"))
    by_hand = runs.groupby("label", sort=False).score.agg(["mean", "std", "count"])
    assert means.label.tolist() == by_hand.index.tolist() == ["fedavg(local_epochs=2, lr=.02)", "breaks"]
    assert means[["mean", "sd", "n"]].to_numpy() == pytest.approx(by_hand.to_numpy())
    records = [json.loads(file.read_text()) for file in (tmp_path/"records").glob("*/*.json")]
    assert sorted(record["args"]["settings"]["local_epochs"] for record in records)[2:] == [2, 2]
    page = json.loads((tmp_path/"compare.ipynb").read_text())
    outputs = [output for cell in page["cells"] for output in cell.get("outputs", [])]
    tables = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    assert f"{100*by_hand['mean'].iloc[0]:.1f}" in tables[0]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5


@pytest.mark.skipif(not which("make"), reason="make is not installed")
def test_make_passes_on_what_it_is_given_or_refuses_it():
    def plan(*given):
        return subprocess.run(["make", "-n", "-o", "install", *given], cwd=ROOT, capture_output=True, text=True)
    wrong = plan("run", "LR=0.1")
    assert wrong.returncode and "unknown variable LR:" in wrong.stderr and "papermill" not in wrong.stdout
    for job in ("run", "compare"):
        assert '-r imports "lib/a.py, b"' in plan(job, "IMPORTS=lib/a.py, b").stdout
        assert "-r hyper '{lr: 0.05}'" in plan(job, "ARGS=-r hyper '{lr: 0.05}'").stdout


# ---- a record again

OWN = """
import fdgnb
from again_helper import FACTOR

@fdgnb.method("again_own")
class Own(fdgnb.Method):
    "Scale the loss."
    def loss(self, *given): return super().loss(*given)*FACTOR
"""


def test_a_run_comes_again_from_its_record_and_from_a_pack(tmp_path, capsys, monkeypatch):
    "The pack has the module and the helper that it imports; another score, seed or module is found."
    def forget():
        METHODS.pop("again_own", None)
        for name in ("again_own", "again_helper"): sys.modules.pop(name, None)
    lib = tmp_path/"lib"
    lib.mkdir()
    (lib/"again_own.py").write_text(OWN)
    (lib/"again_helper.py").write_text("FACTOR = .5\n")
    words = ["run", "again_own", "--imports", lib/"again_own.py", "--limit", 30, "--rounds", 2, "--out", tmp_path/"a"]
    monkeypatch.setattr(sys, "path", [*sys.path])
    imported = []                                                       # of this test alone
    for place in ("imports", "records"): monkeypatch.setattr(f"fdgnb.runs.{place}.IMPORTED", imported)
    assert main(words) == 0 and main(["run", "--from", tmp_path/"a"]) == 0
    assert main(["run", "--from", tmp_path/"a", "--seed", 1]) == 1
    told = capsys.readouterr().out
    assert "equal: scores and curves, bit for bit" in told and "args.seed: 0 there, 1 here" in told
    assert main(["pack", tmp_path/"a", tmp_path/"b"]) == 0

    forget()
    lib.rename(tmp_path/"gone")
    monkeypatch.chdir(tmp_path/"b")
    try:
        assert main(["run", "--from", "record.json"]) == 0
        assert "versions" not in capsys.readouterr().out
        forget()
        (tmp_path/"b"/"again_helper.py").write_text("FACTOR = .25\n")
        assert main(["run", "--from", "."]) == 1 and "not equal: " in capsys.readouterr().out
        assert main(["run", "--config", "run.yaml", "--out", tmp_path/"c"]) == 0
    finally: forget()
