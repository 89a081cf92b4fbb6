"""Run a page's own checks on mutated code: what a page claims must fail where its code is wrong."""
import json, re
from pathlib import Path
import torch

NBS = Path(__file__).resolve().parent.parent/"nbs"
# cells that train on images or draw, and those that show what was drawn
LEFT_OUT = re.compile(r"\bfit\(|final\(|plt\.|page_style\(\)|\bpaths\b|\bdone\b")


def cells(page):
    "Sources of a page's code cells, those that train or draw left out."
    found = json.loads((NBS/page).read_text())["cells"]
    sources = ["".join(c["source"]) for c in found if c["cell_type"] == "code"]
    return [s for s in sources if "import " in s or not LEFT_OUT.search(s)]


def check(page, old="", new=""):
    """Run a page's cells with `old` replaced by `new` in what it exports; nothing is registered.

    An AssertionError of a cell is raised; `old` must be there."""
    namespace, found = {"__name__": "page"}, not old
    for source in cells(page):
        if "#| export" in source and old in source: source, found = source.replace(old, new), True
        with torch.random.fork_rng(): exec(compile(source, page, "exec"), namespace)
        if "method" in namespace: namespace["method"] = lambda name: lambda cls: cls
    assert found, f"{old!r} is not exported by {page}"
