"""Lead the links of executed reports where they led on their pages: `python docs/relink.py reports`.

Papermill copies a page of nbs/tables word by word, so that a report's relative links start from there."""
import os, re, sys
from pathlib import Path
import nbformat
from notebook_pages import LINK, NBS, outside_code

HOME = NBS/"tables"


def moved(target, folder):
    "A link of a page in HOME as a page in `folder` has to write it; what leads somewhere from there stays."
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"[a-z][a-z0-9+.-]*:", path) or (folder/path).exists(): return target
    if not (HOME/path).exists(): return target
    return os.path.relpath((HOME/path).resolve(), folder.resolve()) + mark + anchor


def relinked(text, folder):
    "A Markdown text whose links lead from `folder` where they led from HOME."
    return outside_code(text, lambda part: LINK.sub(lambda m: moved(m[1], folder), part))


def relink(report):
    "Rewrite a report's links; True if any changed."
    nb, before = nbformat.read(report, as_version=4), report.read_text(encoding="utf8")
    for c in nb.cells:
        if c.cell_type == "markdown": c.source = relinked(c.source, report.parent)
    if (after := nbformat.writes(nb) + "\n") == before: return False
    report.write_text(after, encoding="utf8")
    return True


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]): print(sum(map(relink, sorted(folder.glob("*.ipynb")))), "relinked")
