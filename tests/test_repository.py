"""Promises of the repository that no tool checks: light imports, public names, pages and their addresses, pins."""
import ast, json, os, re, shutil, subprocess, sys, tomllib, zipfile
from importlib.metadata import distributions
from pathlib import Path
import pytest
from packaging.specifiers import SpecifierSet
from conftest import python

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for page in sorted((ROOT/"nbs").rglob("*.ipynb")) if ".ipynb_checkpoints" not in page.parts]
MODULES = [file for file in sorted((ROOT/"fdgnb").rglob("*.py"))
           if file.name != "_modidx.py" and file.read_text().strip()]
MACHINE = re.compile(r"(?<![\w.<])/(?:tmp|root|home|mnt|Users)/\w+")


def name_of(path): return str(path.relative_to(ROOT))
def cells_of(page): return json.loads(page.read_text())["cells"]
def source_of(cell): return "".join(cell["source"])


# ---- imports

HEAVY = """pandas matplotlib seaborn kornia torchvision sklearn scipy transformers IPython nbdev fastcore
    papermill flwr ray""".split()


@pytest.mark.parametrize("code, allowed", [
    ("import fdgnb.core, fdgnb.vectors, fdgnb.settings, fdgnb.models, fdgnb.federation.compose", set()),
    ("import fdgnb; fdgnb.fit; fdgnb.Method; fdgnb.get_dataset", {"pandas"})])
def test_imports_are_light(code, allowed):
    "No notebook tooling and no plotting; for a run pandas alone."
    done = python(f"import sys\n{code}\nprint(*set({HEAVY}) & set(sys.modules))")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= allowed


def test_public_names():
    "A star brings them; `fdgnb.data` is the folder and `fdgnb.fit` the function; Flower is missed in its folder alone."
    code = """
import sys
sys.modules["flwr"] = None
import fdgnb.runs.fit, fdgnb.data.domain, fdgnb, fdgnb.flower
from fdgnb import *
print(all(map(callable, (fit, fdgnb.fit, load, Method, Domain, from_folder, FdgnbError))), fdgnb.data.__name__)
import fdgnb.flower.wire"""
    done = python(code)
    assert done.stdout == "True fdgnb.data\n"
    assert done.stderr.splitlines()[-1].startswith("fdgnb.core.FdgnbError: Flower is not installed")


def test_a_module_gives_a_name_once():
    "Of two functions of one name in a page the second would take the calls of the first."
    for file in MODULES:
        named = [node.name for node in ast.parse(file.read_text()).body
                 if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != "_"]
        assert len(named) == len(set(named)), name_of(file)


def test_examples_of_docstrings_run(tmp_path):
    "In an interpreter and a folder of their own, with fdgnb and what their module names; encoders are not asked for."
    shown = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in MODULES if ">>> " in file.read_text()]
    assert "fdgnb.runs.fit" in shown
    code = f"""
import doctest, importlib, fdgnb
for name in {shown}:
    for test in doctest.DocTestFinder().find(importlib.import_module(name), extraglobs=dict(fdgnb=fdgnb)):
        if test.name.rpartition(".")[2] not in ("from_texts", "encode_images"): doctest.DocTestRunner().run(test)"""
    done = python(code, cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(ROOT), CI="1"))
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


# ---- pages

def test_a_module_comes_from_a_page_in_a_folder_of_its_name():
    "fdgnb/data/found.py comes from a page in nbs/data whose name ends in found."
    for file in MODULES:
        said = re.search(r"File to edit: (\S+\.ipynb)", file.read_text())
        assert said, f"{name_of(file)}: fdgnb/ is exported, never edited"
        page = (file.parent/said[1]).resolve()
        assert page in PAGES and page.parent.relative_to(ROOT/"nbs") == file.parent.relative_to(ROOT/"fdgnb")
        assert file.stem.startswith("__") or re.sub(r"^\d+_", "", page.stem) == file.stem, name_of(file)


@pytest.mark.parametrize("text", [*PAGES, ROOT/"README.md", ROOT/"reports/README.md"], ids=name_of)
def test_relative_links_lead_to_files(text):
    "In Jupyter and on a forge, where Sphinx has not read them."
    prose = text.read_text() if text.suffix == ".md" else "\n".join(
        source_of(cell) for cell in cells_of(text) if cell["cell_type"] == "markdown")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", prose, flags=re.S)
    links = re.findall(r"\]\(<?([^)\s>#]+)[^)]*\)", prose)
    assert not [link for link in links if not re.match(r"[a-z]+:", link) and not (text.parent/link).exists()]


def test_outputs_show_no_error_and_no_folder_of_a_machine():
    for page in PAGES:
        for output in [output for cell in cells_of(page) for output in cell.get("outputs", [])]:
            shown = {kind: value for kind, value in output.get("data", output).items() if not kind.startswith("image/")}
            assert output["output_type"] != "error" and not MACHINE.search(json.dumps(shown)), name_of(page)


def test_pages_that_take_parameters_have_the_tag():
    "Without it papermill would run the defaults whatever -p says, and exit 0."
    for name in ("run", "compare", "tables/02_fidelity", "tables/10_ledger", "tables/15_fdse", "tables/16_ours"):
        tagged = [cell for cell in cells_of(ROOT/f"nbs/{name}.ipynb")
                  if "parameters" in cell["metadata"].get("tags", [])]
        assert len(tagged) == 1, name


def test_the_method_of_the_readme_is_fedprox(small):
    import fdgnb
    from fdgnb.federation.compose import METHODS
    from fdgnb.federation.toys import same
    blocks = re.findall(r"```python\n(.*?)```", (ROOT/"README.md").read_text(), re.S)
    how = dict(target="blended", rounds=1, mu=.1, local_steps=3, progress=False)
    def train(name): return fdgnb.fit(name, small, **how).fed.server.model
    try:
        exec(next(block for block in blocks if "class FedProx" in block), {"__name__": "readme"})
        assert same(train("my_fedprox"), train("fedprox"))
        assert same(train("my_fedprox+ga"), train("fedprox+ga"))
    finally: METHODS.pop("my_fedprox", None)


# ---- packages

def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    "Built of a copy, because a build leaves folders where it ran."
    copy = tmp_path/"copy"
    shutil.copytree(ROOT/"fdgnb", copy/"fdgnb", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"): shutil.copy(ROOT/name, copy)
    files = {str(file.relative_to(copy)) for file in (copy/"fdgnb").rglob("*") if file.is_file()}
    build = "-m pip wheel . --no-deps --no-index --no-build-isolation --wheel-dir".split()
    subprocess.run([sys.executable, *build, tmp_path], cwd=copy, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("fdgnb-*.whl"))) as wheel: held = set(wheel.namelist())
    assert {"fdgnb/data/domainnet.txt", "fdgnb/tables/published.csv"} <= files <= held


def test_pins_take_the_oldest_python_we_name():
    "One that refuses it sends pip through all versions of all others, for minutes, into resolution-too-deep."
    lines = [line for line in (ROOT/"constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^+\s]+", line) for line in lines)
    named = tomllib.loads((ROOT/"pyproject.toml").read_text())["project"]["requires-python"]
    oldest = next(f"{part.version}.0" for part in SpecifierSet(named))
    def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
    there = {plain(found.name): found for found in distributions()}
    for name, pin in (line.split("==") for line in lines):
        found = there.get(plain(name))
        if found and found.version.split("+")[0] == pin:
            assert oldest in SpecifierSet(found.metadata["Requires-Python"] or ""), name
        elif found and Path(sys.prefix) == ROOT/".venv": pytest.fail(f"{name} is not as pinned: make")
