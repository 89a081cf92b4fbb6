"""The lists of methods in README.md and nbs/index.ipynb: `python tests/lists.py` writes them anew."""
import itertools, json
from pathlib import Path
from fdgnb.federation.compose import METHODS
from fdgnb.tables.overview import home

ROOT = Path(__file__).resolve().parent.parent
FILES = {"README.md": "nbs/", "nbs/index.ipynb": ""}                # file -> what is before a page's path
BEGIN, END = "<!-- methods: tests/lists.py -->", "<!-- end -->"


def lines(prefix):
    "The list, a line per page."
    page = lambda key: home(key)
    for path, keys in itertools.groupby(sorted(METHODS.names(), key=lambda k: (page(k), k)), page):
        stem = Path(path).stem.split("_", 1)[1]
        yield f"* [{stem}]({prefix}{path}): " + " ".join(f"`{k}`" for k in keys)


def listed(file):
    "The list as it stands in the file (in a notebook, as JSON)."
    text = "\n".join([BEGIN, *lines(FILES[file]), END])
    return ",\n    ".join(json.dumps(l + "\n", ensure_ascii=False) for l in text.split("\n"))[:-3] + '"' if (
        file.endswith(".ipynb")) else text


def rewritten(text, prefix):
    "A text with the list between its marks."
    before, rest = text.split(BEGIN)
    return before + "\n".join([BEGIN, *lines(prefix), END]) + rest.split(END)[1]


if __name__ == "__main__":
    (ROOT/"README.md").write_text(rewritten((ROOT/"README.md").read_text(), FILES["README.md"]))
    page = ROOT/"nbs/index.ipynb"
    nb = json.loads(page.read_text())
    cell, = (c for c in nb["cells"] if BEGIN in "".join(c["source"]))
    cell["source"] = rewritten("".join(cell["source"]), FILES["nbs/index.ipynb"]).splitlines(keepends=True)
    page.write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n")
