"""The repository's own rules: clean notebooks with unique ids, the parameters tag, exported code, pins, imports."""
import ast, json, re, subprocess, sys
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(p for p in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
MODULES = sorted(p for p in (ROOT/"fdgnb").rglob("*.py") if p.name not in ("_modidx.py",) and p.read_text().strip())
read = lambda p: json.loads(p.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cell_ids_are_there_and_unique(path):
    ids = [c.get("id") for c in read(path)["cells"]]
    assert all(ids) and len(set(ids)) == len(ids)


def test_parameters_tag():
    "Without it papermill would run the defaults whatever -p says, and exit 0."
    tagged = [c for c in read(ROOT/"nbs/run.ipynb")["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    names = {t.id for n in ast.parse("".join(tagged[0]["source"])).body if isinstance(n, ast.Assign) for t in n.targets}
    assert {"method", "dataset", "target", "backbone", "rounds", "seed", "local_epochs", "batch_size", "lr", "device", "hyper", "protocol", "scale", "out"} <= names


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if re.match(r"4\d_", p.stem)], ids=lambda p: p.stem)
def test_every_report_takes_parameters(path):
    assert sum("parameters" in c["metadata"].get("tags", []) for c in read(path)["cells"]) == 1


def test_readme_method(small):
    "The method of the README works as printed, alone and under ga."
    import fdgnb
    from fdgnb.federation.compose import METHODS
    block = next(b for b in re.findall(r"```python\n(.*?)```", (ROOT/"README.md").read_text(), re.S) if "class FedProx" in b)
    had = METHODS.pop("fedprox", None)
    try:
        exec(block, {"__name__": "readme"})
        for name in ("fedprox", "fedprox+ga"): assert fdgnb.fit(name, small, "blended", 1, mu=.1, progress=False).round == 1
    finally:
        METHODS.pop("fedprox", None)
        if had: METHODS["fedprox"] = had


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_readable(path):
    "Title and one-line quotation first; small; no error among the outputs."
    nb = read(path)
    first = next("".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "markdown")
    assert first.startswith("# ") and "\n> " in first
    assert path.stat().st_size < 400_000, "move pictures to reports/"
    assert not [o for c in nb["cells"] for o in c.get("outputs", []) if o["output_type"] == "error"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT/"fdgnb")))
def test_module_comes_from_a_notebook(path):
    m = re.search(r"File to edit: (\S+\.ipynb)", path.read_text())
    assert m, "fdgnb/ is exported, never edited"
    assert (path.parent/m[1]).resolve() in NOTEBOOKS


def test_every_environment_package_is_pinned():
    lines = [l for l in (ROOT/"constraints.txt").read_text().splitlines() if l and not l.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^+\s]+", l) for l in lines)
    assert {"torch==2.13.0", "torchvision==0.28.0", "nbdev==2.4.14"} <= set(lines)


def test_import_is_light():
    "`import fdgnb` and its core bring in no notebook tooling, no plotting, no pandas."
    code = "import sys, fdgnb, fdgnb.federation; print(*[m for m in ('IPython', 'nbdev', 'fastcore', 'matplotlib', 'pandas', 'sklearn', 'scipy', 'torchvision', 'papermill') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""


def test_public_names():
    import fdgnb
    for name in ("fit", "list_methods", "list_datasets", "from_folder", "FdgnbError", "models", "methods", "protocols", "datasets", "metrics", "plots"): assert getattr(fdgnb, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fitt'"): fdgnb.fitt
