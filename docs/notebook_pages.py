"""A notebook of nbs/ as a page of the site: what MyST reads, without what only nbdev reads.

Directives (`#| export`) are taken out, `#| hide` cells go, `#| fig-cap` becomes the caption below a figure,
display equations stand on lines of their own, and links lead to where the site has their target. Code that is
exported, that checks and that shows something gets a tag each, which static/site.css tells apart.
"""
import os, re
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parent.parent
NBS, REPORTS, FILES = ROOT/"nbs", ROOT/"reports", "files"
ALONE = dict(ledger="papers", protocol="protocol", first_runs="first_runs")      # {file of reports/: page of results}
CODE = re.compile(r"(```.*?```|~~~.*?~~~|``[^`]+``|`[^`\n]+`)", re.S)
LINK = re.compile(r"(?<=\]\()<?([^)\s>]+)>?(?=(?:\s+[\"'][^\"']*[\"'])?\))")
CHECKING = re.compile(r"^\s*(?:for .*: |if .*: |with .*: )?(?:assert |test_\w+\()", re.M)
WIDGET = "application/vnd.jupyter.widget-view+json"


def text_of(cell): return "".join(cell["source"])
def is_picture(output): return any(k.startswith("image/") for k in output.get("data", {}))
def wrapped(line): return line if "  " in line else fill(line, 110, break_long_words=False, break_on_hyphens=False)


def outside_code(text, change):
    "A Markdown text with `change` applied to what is neither a fenced block nor a piece in backquotes."
    parts = CODE.split(text)
    return "".join(p if i % 2 else change(p) for i, p in enumerate(parts))


def displayed(text):
    "`$$` on lines of their own, which MyST wants; prose before and after an equation stays where it is."
    masked = CODE.sub(lambda m: "\0"*len(m[0]), text)
    out, end = [], 0
    for m in re.finditer(r"(?<!\\)\$\$(.+?)(?<!\\)\$\$", masked, re.S):
        equation = text[m.start(1):m.end(1)].strip("\n ")
        before, after = text[end:m.start()].rstrip(" "), text[m.end():]
        out += [before, "" if not before or before.endswith("\n") else "\n", f"$$\n{equation}\n$$"]
        skipped = len(after) - len(after.lstrip(" "))
        out.append("" if after[skipped:skipped + 1] in ("\n", "") else "\n")
        end = m.end() + skipped
    return "".join(out) + text[end:]


def directives(source):
    "({name: value}, the rest) of a code cell: nbdev reads `#|` lines at its head only."
    named, lines = {}, source.split("\n")
    while lines and (m := re.match(r"#\s?\|\s*([\w-]+):?\s*(.*)", lines[0])):
        named[m[1]] = m[2].strip().strip("\"'")
        lines.pop(0)
    return named, "\n".join(lines).strip("\n")


def slug(heading):
    "The anchor of a heading, as MyST makes it; an anchor as Jupyter writes it gives the same."
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def reported(path):
    "The page of results that shows a folder, an executed report or a list of reports/; None for any other file."
    inside = path.relative_to(REPORTS)
    if not inside.parts: return "results/papers.md"
    if len(inside.parts) == 1 and inside.stem in ALONE: return f"results/{ALONE[inside.stem]}.md"
    if path.suffix not in (".ipynb", "") and path.name not in ("README.md", "which.md"): return None
    first = inside.parts[0]
    if first == "comparison": return "tables/16_ours.ipynb"
    return f"results/{first if first in ('fidelity', 'papers') else 'measured'}.md"


def place(path):
    "Where the site's sources have a file or folder of the repository, relative to their top."
    path = Path(path).resolve()
    if path.is_relative_to(REPORTS) and (page := reported(path)): return page
    if path == NBS or path == ROOT/"README.md": return "index.ipynb"
    if path.is_relative_to(NBS):
        inside = path.relative_to(NBS)
        return str(inside/"index.md" if path.is_dir() else inside)
    return str(Path(FILES)/path.relative_to(ROOT))


def part_of_page(path):
    "The anchor of a paper's section on the page of the papers; '' for what has a page of its own."
    inside = path.relative_to(REPORTS) if path.is_relative_to(REPORTS) else Path()
    is_paper = len(inside.parts) > 1 and inside.parts[0] == "papers"
    return f"#{inside.parts[1]}" if is_paper else ""


def leads_to(target, page):
    "(the file meant, the link on the site) of a link on a page; (None, the link itself) if no file is."
    path, _, anchor = target.partition("#")
    anchor = f"#{slug(anchor)}" if anchor else ""
    if re.match(r"[a-z][a-z0-9+.-]*:", target): return None, target
    if not path: return None, anchor
    found = (page.parent/path).resolve()
    if found.exists() and found.is_relative_to(ROOT):
        at = place(found)
        to = os.path.relpath(at, os.path.dirname(place(page)) or ".")
        if found.is_relative_to(REPORTS): anchor = part_of_page(found)     # a report's own headings are not on the site
        return found, to + anchor
    return None, target


def linked(text, page, used=None):
    "A Markdown text of a page whose links lead into the site; files that are no pages are added to `used`."
    def change(m):
        found, to = leads_to(m[1], page)
        if used is not None and found and found.is_file() and place(found).startswith(FILES): used.add(found)
        return to
    return outside_code(text, lambda part: LINK.sub(change, part))


def prose(cell, page, used=None):
    "A Markdown cell for the site, or None if nothing of it is left: comments (front matter) are not shown."
    text = outside_code(text_of(cell), lambda part: re.sub(r"<!--.*?-->\n?", "", part, flags=re.S))
    text = linked(displayed(text), page, used).strip("\n")
    if "cards" in cell["metadata"].get("tags", ()): text = f":::{{container}} cards\n{text}\n:::"
    return dict(cell, source=text) if text.strip() else None


def shown(output, page=ROOT/"page"):
    """An output for the site; of a widget its picture, or None where it has none. Styled tables look like the others.

    Links of a table to notebooks lead to their pages: MyST does not touch what is HTML already."""
    data = output.get("data", {})
    if WIDGET in data:
        return dict(output, data={k: v for k, v in data.items() if k != WIDGET}) if is_picture(output) else None
    if "text" in output: output = dict(output, text="\n".join(map(wrapped, "".join(output["text"]).split("\n"))))
    if "text/html" not in data: return output
    html = re.sub(r'<table id="T_', '<table class="dataframe" id="T_', "".join(data["text/html"]))
    def to_page(m):
        found, to = leads_to(m[1], page)
        return m[0] if found is None else f'href="{re.sub(r"[.](ipynb|md)(?=#|$)", ".html", to)}"'
    html = re.sub(r'href="([^"]+\.ipynb(?:#[^"]*)?)"', to_page, html)
    return dict(output, data=data | {"text/html": html})


def folded_title(source):
    "What stands for a folded check on the site: the comment in its first line."
    first = source.split("\n")[0]
    return "Check: " + first.strip("# ") if first.startswith("#") else "Check"


def only_imports(source):
    "Whether a cell only imports: the site folds it."
    lines = source.split("\n")
    return bool(source) and all(re.match(r"(import |from \w|\s|[)])", line) for line in lines if line)


def kind_of(named, source, tags):
    "What a code cell is for: it goes into the package (`exported`), it is a `check`, or it is an `example`."
    if {"export", "exporti", "exports"} & named.keys(): return "exported"
    return "check" if "hide-cell" in tags or CHECKING.search(source) else "example"


def code(cell, page=ROOT/"page"):
    "The cells that a code cell becomes: none, itself without its directives, or itself and its caption."
    named, source = directives(text_of(cell))
    outputs = [o for o in (shown(o, page) for o in cell.get("outputs", [])) if o]
    if "hide" in named or not (source or outputs): return []
    caption, tags = named.get("fig-cap", ""), cell["metadata"].get("tags", [])
    metadata = {"tags": [*tags, kind_of(named, source, tags) if source else "remove-input"]}
    if "hide-cell" in tags: metadata["mystnb"] = {"code_prompt_show": folded_title(source)}
    if "hide-input" in tags: metadata["mystnb"] = {"code_prompt_show": "Code of the picture" if caption else "Code"}
    if only_imports(source):
        metadata["tags"].append("hide-input")
        metadata["mystnb"] = {"code_prompt_show": "Imports"}
    has_picture = any(map(is_picture, outputs))
    if not has_picture: caption = ""
    spoken = re.sub(r"[`$\\]", "", caption or source.split("\n")[-1])
    if has_picture: metadata.setdefault("mystnb", {})["image"] = {"alt": spoken}
    this = dict(cell, source=source, outputs=outputs, execution_count=None, metadata=metadata)
    below = dict(cell_type="markdown", id=f"{cell.get('id', 'cell')}-caption", metadata={},
                 source=f":::{{container}} caption\n{caption}\n:::")
    return [this, below][:1 + bool(caption)]


def module_of(nb):
    "The dotted name of the module that a notebook exports; None if it exports none."
    sources = [text_of(c) for c in nb["cells"] if c["cell_type"] == "code"]
    names = [n["default_exp"] for n, _ in map(directives, sources) if "default_exp" in n]
    return f"fdgnb.{names[0]}".removesuffix(".__init__") if names else None


def title_of(nb):
    "(title, one-line quotation) of a notebook; the quotation is empty where there is none."
    first = next(text_of(c) for c in nb["cells"] if text_of(c).startswith("# "))
    title, *rest = first.split("\n")
    return title[2:].strip(), next((l[2:].strip() for l in rest if l.startswith("> ")), "")


def with_module(text, module, has_reference):
    "The title cell with a line that names the module; it leads to the reference if that has a part for it."
    name = f"{{py:mod}}`{module}`" if has_reference else f"`{module}`"
    line = f":::{{container}} exports\nexports {name}\n:::"
    head = re.match(r"# .*\n(?:> .*\n?)*", text + "\n")
    return f"{head[0].rstrip()}\n\n{line}\n\n{text[head.end():]}".rstrip("\n")


def page_of(nb, page, modules=(), used=None):
    "A notebook as the site's source has it; `modules` stand in the reference."
    cells = []
    for c in nb["cells"]:
        if c["cell_type"] == "code": cells += code(c, page)
        elif c["cell_type"] == "markdown": cells.append(prose(c, page, used))
    cells = [dict(c) for c in cells if c]
    title = next((c for c in cells if c["cell_type"] == "markdown" and text_of(c).startswith("# ")), None)
    module = module_of(nb)
    if title and module and module != "fdgnb": title["source"] = with_module(text_of(title), module, module in modules)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
              "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
