"""The page of results: every table and figure of reports/, beside the report that made it."""
import os, re
from pathlib import Path
import pandas as pd
from notebook_pages import FILES, LINK, REPORTS, linked, outside_code, title_of

LEDGER, RECORDS = "ledger.csv", "records"
SCRIPT, STYLE = "_static/datatables.js", "_static/datatables.css"
ASSETS = f'''<link rel="stylesheet" href="{STYLE}">
<script defer src="{SCRIPT}"></script>
<script defer src="_static/tables.js"></script>'''
ORDER = ("reproduced", "not reproduced", "not run")
# what a wide table folds away first, until its columns fit the page
FOLDED = """metric backbone at_least at_cpu least printed_sd ours_sd sd largest_sd last_sd sd_difference n
    dataset note hyper signs""".split()
CONTENTS = "```{contents}\n:local:\n:depth: 1\n:backlinks: none\n```"
WIDE = 140                                                          # characters that a page has room for


def files(folder, *suffixes):
    "What lies in a folder of results and below it, but for the single records."
    left_out = {RECORDS, ".ipynb_checkpoints"}
    found = sorted(p for p in folder.rglob("*") if p.suffix in suffixes)
    return [p for p in found if not left_out & set(p.relative_to(folder).parts)]


def by_folder(folder):
    "{folder: (its executed reports, its tables and figures)}, our own comparison before the papers."
    out = {}
    for f in files(folder, ".ipynb", ".csv", ".png"):
        if f.name == LEDGER: continue
        reports, made = out.setdefault(f.parent, ([], []))
        (reports if f.suffix == ".ipynb" else made).append(f)
    return out


def path_of(file, folder=REPORTS): return file.relative_to(folder).as_posix()


def beside(file, folder, *suffixes):
    "Links to a file and to those of the same name in other formats."
    there = [file.with_suffix(s) for s in (file.suffix, *suffixes) if file.with_suffix(s).exists()]
    return " · ".join(f"{{download}}`{f.name} <{FILES}/reports/{path_of(f, folder)}>`" for f in there)


def constant(frame):
    "{column: value} of the columns that say the same in every row, of more than two rows."
    same = [c for c in frame if len(frame) > 2 and frame[c].nunique() == 1]
    return {c: frame[c].iloc[0] for c in same} if len(same) < len(frame.columns) else {}


def folded(frame):
    "The columns that a wide table shows on request alone."
    width = {c: max(len(c) + 3, min(40, frame[c].str.len().max() + 2)) for c in frame} if len(frame) else {}
    out = []
    for c in [c for c in FOLDED if c in width]:
        if sum(width.values()) <= WIDE: break
        out.append(c)
        width.pop(c)
    return out


def said_once(same):
    "A line that says what a table's constant columns hold."
    given = [f"{c} `{v}`" for c, v in same.items() if v]
    empty = [c for c, v in same.items() if not v]
    return "In every row: " * bool(given) + ", ".join(given) + "; "*bool(given and empty) \
        + ("empty: " if given else "Empty in every row: ")*bool(empty) + ", ".join(empty)


def table(frame, name):
    "A table of HTML; static/tables.js makes it sort by a click on a column, filter by a word, and unfold."
    with pd.option_context("display.max_colwidth", None):
        html = frame.to_html(index=False, border=0, table_id=f"table-{name}",
                             classes="results display compact")
    hidden = [list(frame).index(c) for c in folded(frame)]
    return html.replace("<table ", f'<table data-folded="{hidden}" ', 1) if hidden else html


def raw(html): return f"```{{raw}} html\n{html}\n```\n"


def identifier(path): return re.sub(r"\W+", "-", path).strip("-")


def read(file):
    "A table as it is written; a first column without a name holds the methods."
    return pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"Unnamed: 0": "method"})


def anchor(file, folder):
    "Where links to a table or a figure lead: both may have one name."
    kind = "table" if file.suffix == ".csv" else "figure"
    name = path_of(file, folder).removesuffix(file.suffix).lower()
    return f"{kind}-of-" + re.sub(r"[\W_]+", "-", name)


def words(name):
    "A name of a file or of folders in words: 'papers/fedka/table2' is 'Papers, fedka, table 2'."
    apart = re.sub(r"([a-z])(\d+)(?![a-z\d])", r"\1 \2", name.replace("/", ", ").replace("_", " "))
    return capital(apart)


def capital(text): return text[:1].upper() + text[1:]


def heading(file, folder):
    "Where links lead, and the name in words."
    twin = file.suffix != ".csv" and file.with_suffix(".csv").exists()
    return [f"({anchor(file, folder)})=", f"### {words(file.stem)}" + ", figure"*twin, ""]


def table_section(file, folder):
    "Heading, size, links to the file, what all rows share, the table."
    frame = read(file)
    size = f"{len(frame):,} rows" if len(frame) != 1 else "1 row"
    links, same = beside(file, folder, ".md", ".tex"), constant(frame)
    name = path_of(file, folder).removesuffix(".csv")
    return "\n".join([*heading(file, folder), f"{size}, {len(frame.columns)} columns: {links}", "", said_once(same), "",
                      raw(table(frame.drop(columns=[*same]), identifier(name)))])


def figure_section(file, folder):
    "Heading, link, the picture."
    shown = f"{FILES}/reports/{path_of(file, folder)}"
    return "\n".join([*heading(file, folder), beside(file, folder), "", f"![{words(file.stem)}]({shown})", ""])


def sections(made, folder):
    "Figures first, then tables."
    return [figure_section(f, folder) for f in made if f.suffix == ".png"] + \
        [table_section(f, folder) for f in made if f.suffix == ".csv"]


def counts(frame):
    "How many numbers are in which state, and by paper where the ledger names it."
    states = [s for s in ORDER if s in set(frame.state)] + sorted(set(frame.state) - set(ORDER))
    head = f"| | {' | '.join(states)} | all |\n|---|{'---:|'*(len(states) + 1)}"
    row = lambda name, part: (f"| {name} | " + " | ".join(f"{(part.state == s).sum():,}" for s in states)
                              + f" | {len(part):,} |")
    papers = [row(p, part) for p, part in frame.groupby("paper")] if "paper" in frame else []
    return "\n".join([head, *papers, row("**all**", frame), ""])


def executed(report, notebooks, folder):
    "The link to an executed report, with its quotation."
    title, quotation = title_of(notebooks[report])
    return f"[Executed report: {title}](reports/{path_of(report, folder)}): {quotation}"


def ledger_section(folder):
    "The replication ledger: counts by state on top, then every printed number."
    file = folder/LEDGER
    if not file.exists(): return []
    frame = read(file)
    lead = "Every number that four of the five papers print, and what became of it here."
    top = ["## The replication ledger", "", lead, ""] + ([counts(frame)] if "state" in frame else [])
    return ["\n".join(top), table_section(file, folder)]


def results_of(path): return f"results-of-{identifier(path)}"


def readme(folder, used):
    "The text of reports/README.md without its title; links to folders lead to their sections."
    path = folder/"README.md"
    if not path.exists(): return []
    text = re.sub(r"^# .*\n", "## What is there\n", path.read_text())
    shown = {path_of(f, folder) for f in by_folder(folder)} - {"."}
    change = lambda m: f"#{results_of(m[1])}" if m[1] in shown else m[1]
    return [linked(outside_code(text, lambda part: LINK.sub(change, part)), path, used)]


def records_line(folder):
    "How many runs are on file."
    n = sum(len(p.read_text().splitlines()) for p in (folder/RECORDS).glob("*.jsonl"))
    return [f"{n:,} runs are on record in `reports/{RECORDS}`, a line each: metrics, curves, costs."]*(n > 0)


def page(notebooks, folder=REPORTS, used=None):
    "The page as Markdown; `notebooks` is {executed report: notebook}. A section exists where its files do."
    lead = "> Every table and figure that the reports wrote, beside the report that made it."
    lines = ["# Results", lead, "", raw(ASSETS), *records_line(folder), CONTENTS, *ledger_section(folder)]
    lines += readme(folder, used)
    for where, (reports, made) in by_folder(folder).items():
        path = path_of(where, folder)
        lines += [f"({results_of(path)})=\n## {words(path) if path != '.' else 'All papers'}", ""]
        lines += [executed(r, notebooks, folder) for r in reports if r in notebooks]
        lines += sections(made, folder)
    return "\n\n".join(lines) + "\n"


def bundle():
    "{place below the site's sources: text} of itables' bundle of DataTables, as a plain script."
    from itables.utils import find_package_file
    module = Path(find_package_file("html/dt_bundle.js"))
    source = module.read_text(encoding="utf8")
    exported = re.search(r"\bexport\s*\{[^}]*?(\w+) as default[^}]*\};?", source)
    if not exported: raise ValueError("itables' bundle does not export DataTables as it did")
    source = source.replace(exported[0], f"window.DataTable = {exported[1]};")
    return {SCRIPT: f'(() => {{ "use strict";\n{source}\n}})();\n',
            STYLE: module.with_suffix(".css").read_text(encoding="utf8")}


def copies(folder=REPORTS):
    "{place below the site's sources: file} of all that the page links to or shows."
    found = files(folder, ".csv", ".md", ".tex", ".png", ".json")
    return {os.path.join(FILES, "reports", path_of(f, folder)): f for f in found if f.name != "README.md"}
