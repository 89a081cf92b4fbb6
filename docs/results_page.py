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


def files(folder, *suffixes):
    "What lies in a folder of results and below it, but for the single records."
    left_out = {RECORDS, ".ipynb_checkpoints"}
    found = sorted(p for p in folder.rglob("*") if p.suffix in suffixes)
    return [p for p in found if not left_out & set(p.relative_to(folder).parts)]


def named_by(folder):
    "{file: executed report} as the README's tables state it: a report and what it made stand in one row."
    readme, out = folder/"README.md", {}
    if not readme.exists(): return out
    for row in readme.read_text().split("\n"):
        targets = [folder/t for t in LINK.findall(row)] if row.startswith("|") else []
        made = [t for t in targets if t.suffix != ".ipynb"]
        for report in [t for t in targets if t.suffix == ".ipynb"][:1]: out |= dict.fromkeys(made, report)
    return out


def by_name(file, reports):
    "The report whose name, its number and `table` left out, begins the file's name; None if none does."
    core = lambda p: re.sub(r"^(\d+_)?(table_)?", "", p.stem)
    fits = [r for r in reports if core(file).startswith(core(r))]
    return max(fits, key=lambda r: len(core(r)), default=None)


def by_report(folder):
    "{executed report, or None: its files}: what the README states, else what the names say."
    stated, reports = named_by(folder), files(folder, ".ipynb")
    out = {r: [] for r in reports}
    for f in files(folder, ".csv", ".png", ".svg"):
        if f.name == LEDGER: continue
        report = stated.get(f) or by_name(f, reports)
        out.setdefault(report if report in out else None, []).append(f)
    return out


def path_of(file, folder=REPORTS): return file.relative_to(folder).as_posix()


def beside(file, folder, *suffixes):
    "Links to a file and to those of the same name in other formats."
    there = [file.with_suffix(s) for s in (file.suffix, *suffixes) if file.with_suffix(s).exists()]
    return " · ".join(f"{{download}}`{f.name} <{FILES}/reports/{path_of(f, folder)}>`" for f in there)


def table(frame, name):
    "A table of HTML; static/tables.js makes it sort by a click on a column and filter by a word."
    return frame.to_html(index=False, border=0, table_id=f"table-{name}", classes="results display compact")


def raw(html): return f"```{{raw}} html\n{html}\n```\n"


def identifier(path): return re.sub(r"\W+", "-", path).strip("-")


def read(file): return pd.read_csv(file, dtype=str, keep_default_na=False)        # shown as it is written


def table_section(file, folder, level="###"):
    "Heading, size, links to the file, the table."
    frame = read(file)
    size = f"{len(frame):,} rows" if len(frame) != 1 else "1 row"
    links = beside(file, folder, ".md", ".tex")
    name = path_of(file, folder).removesuffix(".csv")
    return "\n".join([f"{level} {name}", "", f"{size}, {len(frame.columns)} columns: {links}", "",
                      raw(table(frame, identifier(name)))])


def figure_section(file, folder, level="###"):
    "Heading, links, the picture; of a picture in two formats the pixels are shown."
    name = path_of(file, folder).removesuffix(file.suffix)
    links = beside(file, folder, *({".png", ".svg"} - {file.suffix}))
    shown = f"{FILES}/reports/{path_of(file, folder)}"
    return "\n".join([f"{level} {name}: figure", "", links, "", f"![{name}]({shown})", ""])


def sections(made, folder):
    "Figures first, then tables."
    pictures = [f for f in made if f.suffix == ".png"]
    pictures += [f for f in made if f.suffix == ".svg" and f.with_suffix(".png") not in made]
    tables = [f for f in made if f.suffix == ".csv"]
    return [figure_section(f, folder) for f in pictures] + [table_section(f, folder) for f in tables]


def counts(frame):
    "How many numbers are in which state, and by paper where the ledger names it."
    states = [s for s in ORDER if s in set(frame.state)] + sorted(set(frame.state) - set(ORDER))
    head = f"| | {' | '.join(states)} | all |\n|---|{'---:|'*(len(states) + 1)}"
    row = lambda name, part: (f"| {name} | " + " | ".join(f"{(part.state == s).sum():,}" for s in states)
                              + f" | {len(part):,} |")
    papers = [row(p, part) for p, part in frame.groupby("paper")] if "paper" in frame else []
    return "\n".join([head, *papers, row("**all**", frame), ""])


def ledger_section(folder):
    "The replication ledger: counts by state on top, then every printed number."
    file = folder/LEDGER
    if not file.exists(): return []
    frame = read(file)
    lead = "Every number that the five papers print, and what became of it here."
    top = ["## The replication ledger", "", lead, ""] + ([counts(frame)] if "state" in frame else [])
    return ["\n".join(top), table_section(file, folder)]


def readme(folder, used):
    "The text of reports/README.md without its title; links to tables and figures lead to their sections."
    path = folder/"README.md"
    if not path.exists(): return []
    text = re.sub(r"^# .*\n", "", path.read_text())
    here = {path_of(f, folder): f for f in files(folder, ".csv", ".png")}

    def change(m):
        name = m[1] if m[1] in here else re.sub(r"\.(md|tex|svg)$", ".csv", m[1])
        if name not in here: return m[1]
        stem = re.sub(r"\.(csv|png)$", "", name)
        return f"#{stem.lower().replace('/', '')}" + "-figure"*name.endswith(".png")
    return [linked(outside_code(text, lambda part: LINK.sub(change, part)), path, used)]


def records_line(folder):
    "How many runs are on file."
    n = len(list((folder/RECORDS).rglob("*.json"))) if (folder/RECORDS).is_dir() else 0
    return [f"{n:,} runs are on record in `reports/{RECORDS}`, a file each: metrics, curves, costs."]*(n > 0)


def page(notebooks, folder=REPORTS, used=None):
    "The page as Markdown; `notebooks` is {executed report: notebook}. A section exists where its files do."
    lead = "> Every table and figure that the reports wrote, beside the report that made it."
    lines = ["# Results", lead, "", raw(ASSETS), *records_line(folder), "", *ledger_section(folder),
             *readme(folder, used)]
    for report, made in by_report(folder).items():
        if report is None: continue
        title, lead = title_of(notebooks[report])
        link = f"[Executed report]({'reports/' + path_of(report, folder)}): {lead}"
        lines += [f"## {title}", "", link, "", *sections(made, folder)]
    rest = by_report(folder).get(None)
    if rest: lines += ["## Further tables and figures", "", *sections(rest, folder)]
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
    found = files(folder, ".csv", ".md", ".tex", ".png", ".svg")
    return {os.path.join(FILES, "reports", path_of(f, folder)): f for f in found if f.name != "README.md"}
