"What no tool checks of a page: its links lead somewhere, its outputs show no error and no folder of a machine."
import json, re
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [p for p in sorted((ROOT/"nbs").rglob("*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
TEXTS = [*PAGES, ROOT/"README.md", ROOT/"reports/README.md"]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
LINK = re.compile(r"\]\(<?([^)\s>#]+)[^)]*\)")
MACHINE = re.compile(r"(?<![\w.<])/(?:tmp|root|home|mnt|Users)/\w+")


def cells(page): return json.loads(page.read_text())["cells"]


def prose(path):
    "The Markdown of a page or a text, code left out."
    if path.suffix == ".md": return CODE.sub("", path.read_text())
    found = ["".join(c["source"]) for c in cells(path) if c["cell_type"] == "markdown"]
    return CODE.sub("", "\n".join(found))


def links(path):
    "The relative targets of a text's links, anchors cut off."
    return [target for target in LINK.findall(prose(path)) if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(path):
    assert not [target for target in links(path) if not (path.parent/target).exists()]


def test_every_page_leads_to_another():
    assert not [page for page in PAGES if not any(target.endswith(".ipynb") for target in links(page))]


def shown(output):
    "An output as text, pictures left out."
    return json.dumps({k: v for k, v in output.get("data", output).items() if not k.startswith("image/")})


def test_outputs_show_no_error_and_no_folder_of_a_machine():
    outputs = [(page.name, output) for page in PAGES for cell in cells(page) for output in cell.get("outputs", [])]
    assert not [(name, output["ename"]) for name, output in outputs if output["output_type"] == "error"]
    assert not [(name, found[0]) for name, output in outputs if (found := MACHINE.search(shown(output)))]


def test_a_folded_check_says_what_it_checks_and_is_folded_in_jupyter_too():
    "The site folds by the tag, Jupyter by its own key; the first line is what both show."
    folds = [(page.stem, cell) for page in PAGES for cell in cells(page)
             if "hide-cell" in cell["metadata"].get("tags", []) or "jupyter" in cell["metadata"]]
    def is_wrong(cell):
        folded = cell["metadata"] == {"tags": ["hide-cell"], "jupyter": {"source_hidden": True}}
        first = next(line for line in cell["source"] if not line.startswith("#|"))
        return not folded or not first.startswith("# ")
    assert not [(page, cell["id"]) for page, cell in folds if is_wrong(cell)]
