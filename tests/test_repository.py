"""The repository's own rules: pages with titles, the parameters tag, exported code, pins, imports."""
import ast, json, re, subprocess, sys, tomllib
from importlib.metadata import distributions
from pathlib import Path
import pytest
from packaging.specifiers import SpecifierSet
from conftest import python

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(p for p in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MODULES = sorted(p for p in (ROOT/"fdgnb").rglob("*.py") if p.name != "_modidx.py" and p.read_text().strip())
LIBRARY = "06_figures", "07_comparison", "08_printed", "01_setting"       # pages of tables without a report
REPORTS = [p for p in sorted((ROOT/"nbs/tables").glob("*.ipynb")) if p.stem not in LIBRARY]
read = lambda p: json.loads(p.read_text())
name_of = lambda p: str(p.relative_to(ROOT))
source = lambda cell: "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_page_begins_with_its_title_and_its_cells_have_ids(path):
    cells = read(path)["cells"]
    ids = [c.get("id") for c in cells]
    assert all(ids) and len(set(ids)) == len(ids)
    first = next(source(c) for c in cells if c["cell_type"] == "markdown")
    assert first.startswith("# ") and "\n> " in first


def tagged(path): return [c for c in read(path)["cells"] if "parameters" in c["metadata"].get("tags", [])]


def test_parameters_tag():
    "Without it papermill would run the defaults whatever -p says, and exit 0."
    cell, = tagged(ROOT/"nbs/run.ipynb")
    assigned = [n for n in ast.parse(source(cell)).body if isinstance(n, ast.Assign)]
    names = {t.id for n in assigned for t in n.targets}
    assert names >= set("""method dataset target backbone rounds seed local_epochs batch_size lr device hyper
        protocol scale out""".split())


@pytest.mark.parametrize("path", REPORTS, ids=name_of)
def test_every_report_takes_parameters(path):
    assert len(tagged(path)) == 1


def test_readme_method(small):
    "The method of the README works as printed, under a free name: it is FedProx, and composes with ga."
    import fdgnb
    from fdgnb.federation.compose import METHODS
    from fdgnb.federation.toys import same
    blocks = re.findall(r"```python\n(.*?)```", (ROOT/"README.md").read_text(), re.S)
    theirs, before = next(b for b in blocks if "class FedProx" in b), set(METHODS.load())
    how = dict(target="blended", rounds=1, mu=.1, local_steps=3, progress=False)
    model = lambda name: fdgnb.fit(name, small, **how).fed.server.model
    try:
        exec(theirs, {"__name__": "readme"})
        assert set(METHODS) - before == {"my_fedprox"}
        assert same(model("my_fedprox"), model("fedprox"))
        assert same(model("my_fedprox+ga"), model("fedprox+ga"))
    finally: METHODS.pop("my_fedprox", None)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_comes_from_a_page_in_a_folder_of_its_name(path):
    "fdgnb/data/found.py comes from a page in nbs/data whose name ends in found."
    named = re.search(r"File to edit: (\S+\.ipynb)", path.read_text())
    assert named, "fdgnb/ is exported, never edited"
    page = (path.parent/named[1]).resolve()
    assert page in NOTEBOOKS
    assert page.parent.relative_to(ROOT/"nbs") == path.parent.relative_to(ROOT/"fdgnb")
    if not path.stem.startswith("__"):
        assert re.sub(r"^\d+_", "", page.stem) == path.stem


def test_what_the_repository_holds_is_not_ignored():
    "An unanchored `data/` in .gitignore would swallow nbs/data and fdgnb/data."
    files = [name_of(p) for p in (*NOTEBOOKS, *MODULES, *(ROOT/"tests").glob("*.py"))]
    git = ["git", "check-ignore", "--no-index", *files]
    try: done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError: pytest.skip("git is not installed")
    if done.returncode == 128: pytest.skip("not a git checkout")
    assert done.stdout == ""


def test_every_environment_package_is_pinned():
    lines = [l for l in (ROOT/"constraints.txt").read_text().splitlines() if l and not l.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^+\s]+", l) for l in lines)
    assert {"torch==2.13.0", "torchvision==0.28.0", "nbdev==2.4.14"} <= set(lines)


def test_every_package_takes_the_oldest_python_we_name():
    "One that refuses it sends pip through all versions of all others, for minutes, into resolution-too-deep."
    named = tomllib.loads((ROOT/"pyproject.toml").read_text())["project"]["requires-python"]
    oldest, = (f"{s.version}.0" for s in SpecifierSet(named))
    plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
    there = {plain(d.name): (d.version.split("+")[0], d.metadata["Requires-Python"]) for d in distributions()}
    lines = [l.split("==") for l in (ROOT/"constraints.txt").read_text().splitlines() if "==" in l]
    pins = {plain(n): v for n, v in lines if plain(n) in there}
    if Path(sys.prefix) == ROOT/".venv":                                   # that is what `make` installs
        assert {n: there[n][0] for n in pins} == pins, "other versions than pinned: make"
    wants = {f"{n}=={v}": there[n][1] or "" for n, v in pins.items() if v == there[n][0]}
    assert [f"{n} {w}" for n, w in wants.items() if oldest not in SpecifierSet(w)] == []
    if len(wants) < len(lines)/2: pytest.skip(f"{len(wants)} of {len(lines)} pins are installed here")


HEAVY = """pandas matplotlib seaborn kornia torchvision sklearn scipy transformers IPython nbdev fastcore
    papermill flwr ray""".split()


def brings(code):
    "Which of the heavy libraries are loaded after `code`, in a process of its own."
    done = python(f"import sys\n{code}\nprint(*sorted(set({HEAVY}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("code", [
    "import fdgnb", "import fdgnb.core, fdgnb.vectors, fdgnb.settings, fdgnb.models",
    "import fdgnb.federation.loop", "import fdgnb.federation.compose"])
def test_import_is_light(code):
    "The package, its lower floors, the loop: no notebook tooling, no plotting, no pandas."
    assert not brings(code)


def test_fit_is_light():
    "What a run needs, before it runs: pandas for its history, and nothing of this."
    assert brings("import fdgnb; fdgnb.fit; fdgnb.Method; fdgnb.get_dataset") <= {"pandas"}


def test_flower_is_imported_in_its_folder_alone():
    "Everything else works where it is not installed."
    said = re.compile(r"^(\s*(from|import) flwr|(from|import) fdgnb\.flower)\b", re.M)
    assert [name_of(p) for p in MODULES if p.parent.name != "flower" and said.search(p.read_text())] == []
    code = "import sys; sys.modules['flwr'] = None\nimport fdgnb, fdgnb.flower; fdgnb.fit\nimport fdgnb.flower.wire"
    line = python(code).stderr.splitlines()[-1]
    assert line == "fdgnb.core.FdgnbError: Flower is not installed: pip install 'fdgnb[flower]', or make flower"


def test_a_star_brings_the_public_names():
    "They come at first use, so that a star would find none of them without a list."
    names = "fit, load, Method, Domain, from_folder, FdgnbError"
    done = python(f"from fdgnb import *\nprint(*(n.__name__ for n in ({names})))")
    assert done.stdout.split() == names.split(", "), done.stderr


def test_unknown_public_name():
    with pytest.raises(ImportError, match="cannot import name 'fitt'"): from fdgnb import fitt  # noqa: F401


def test_a_public_name_is_no_submodule():
    "`fdgnb.data` is the folder and `fdgnb.fit` the function, whatever was imported before."
    code = "import fdgnb.runs.fit, fdgnb.data.domain, fdgnb; print(callable(fdgnb.fit), fdgnb.data.__name__)"
    assert python(code).stdout == "True fdgnb.data\n"


@pytest.mark.parametrize("file", sorted((ROOT/"fdgnb").rglob("*.py")), ids=lambda f: f.relative_to(ROOT).as_posix())
def test_a_module_gives_a_name_once(file):
    "Two cells of a page named two functions alike, and the second took the calls of the first."
    names = [n.name for n in ast.parse(file.read_text()).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    assert not {n for n in names if n != "_" and names.count(n) > 1}
