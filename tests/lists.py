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
    "The list as it stands in a file."
    return "\n".join([BEGIN, *lines(FILES[file]), END])


def text_of(file):
    "A file's text; of a notebook, of its cells."
    text = (ROOT/file).read_text()
    return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"]) if "{" == text[0] else text


def rewritten(file, text):
    "A text with the list between its marks."
    before, rest = text.split(BEGIN)
    return before + listed(file) + rest.split(END)[1]


if __name__ == "__main__":
    (ROOT/"README.md").write_text(rewritten("README.md", text_of("README.md")))
    page = ROOT/"nbs/index.ipynb"
    nb = json.loads(page.read_text())
    cell, = (c for c in nb["cells"] if BEGIN in "".join(c["source"]))
    cell["source"] = rewritten("nbs/index.ipynb", "".join(cell["source"])).splitlines(keepends=True)
    page.write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n")
