"""The page of results: every table and figure of reports/, beside the report that made it."""
import os, re
from pathlib import Path
import pandas as pd
from notebook_pages import FILES, LINK, REPORTS, linked, outside_code, title_of, titles

LEDGER, RECORDS = "ledger.csv", "records"
SCRIPT, STYLE = "_static/datatables.js", "_static/datatables.css"
ASSETS = f'''<link rel="stylesheet" href="{STYLE}">
<script defer src="{SCRIPT}"></script>
<script defer src="_static/tables.js"></script>'''
ORDER = ("reproduced", "not reproduced", "not run")
NAMES = dict(fedsb="FedSB", ga="GA", fedka="FedKA", fedbr="FedBR", fdse="FDSE")
TITLES = dict(ledger="Every printed number", ours_across="Our own comparison: its settings side by side",
              ours_steps_digits="digits: what beats FedAvg beside more steps of it",
              ours_steps_in_domain_office_caltech10="Office-Caltech10 in-domain: beside more steps of FedAvg",
              ours_steps_in_domain_local_office_caltech10="The same after the local steps",
              ours_alone_digits="digits in-domain: over clients that train alone",
              ours_alone_local_digits="The same after the local steps",
              ours_alone_office_caltech10="Office-Caltech10 in-domain: over clients that train alone",
              ours_alone_local_office_caltech10="The same after the local steps",
              ours_steps_pacs="PACS: what beats FedAvg beside more steps of it",
              ours_steps_office_caltech10="Office-Caltech10: what beats FedAvg beside more steps of it",
              ours_parts_office_caltech10="Office-Caltech10: FedSB taken apart",
              ours_parts_fdse_office_caltech10="Office-Caltech10: FDSE taken apart",
              fidelity_cpu_taken_back="As released, a difference at a time taken back")
FIGURES = dict(ranks="mean ranks", iqm="interquartile means", cost="gain against cost",
               rules="selection rules", alike="against FedAvg with equal weights")
# what a wide table folds away first, until its columns fit the page
FOLDED = """metric backbone at_least at_cpu least printed_sd ours_sd sd largest_sd last_sd sd_difference n
    dataset note hyper signs""".split()
OURS = "16_ours", "17_tuned"                                        # reports that stand before the papers'
CONTENTS = "```{contents}\n:local:\n:depth: 1\n:backlinks: none\n```"
WIDE = 140                                                          # characters that a page has room for


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
        made += [t.with_suffix(".csv") for t in made if t.suffix in (".md", ".tex")]
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
        twins = [f.with_suffix(e) for e in (".png", ".svg") if f.suffix != ".csv"]           # of one figure
        report = stated.get(f) or next((stated[t] for t in twins if t in stated), None) or by_name(f, reports)
        out.setdefault(report if report in out else None, []).append(f)
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


def stem_of(setting): return "_".join(re.sub(r"[\W_]", " ", setting).split())


def settings_of(notebooks):
    "{part of a file's name: setting} of all settings whose tables an executed report shows."
    outputs = [o for nb in notebooks.values() if nb for c in nb["cells"] for o in c.get("outputs", [])]
    texts = ["".join(o.get("data", {}).get("text/markdown", "")) for o in outputs]
    return {stem_of(s): s for t in texts for s in re.findall(r"^### (.+)$", t, re.M)}


def words(stem, settings=()):
    "A file's name in words: the setting as its report writes it, a system as its authors do."
    for begin in sorted(settings, key=len, reverse=True):
        if f"{stem}_".startswith(f"ours_{begin}_"):
            what = stem[len(f"ours_{begin}_"):]
            return capital(settings[begin] + f": {FIGURES.get(what, what)}"*bool(what))
    parts = re.sub(r"([a-z])(\d+)(?![a-z\d])", r"\1_\2", stem.replace("/", ": ")).split("_")
    return TITLES.get(stem) or capital(" ".join(NAMES.get(w, w) for w in parts))


def capital(text): return text[:1].upper() + text[1:]


def heading(file, folder, settings, level):
    "Where links lead, and the name in words."
    name = words(path_of(file, folder).removesuffix(file.suffix), settings)
    twin = file.suffix != ".csv" and file.with_suffix(".csv").exists()
    return [f"({anchor(file, folder)})=", f"{level} {name}" + ", figure"*twin, ""]


def table_section(file, folder, settings=(), level="###"):
    "Heading, size, links to the file, what all rows share, the table."
    frame = read(file)
    size = f"{len(frame):,} rows" if len(frame) != 1 else "1 row"
    links, same = beside(file, folder, ".md", ".tex"), constant(frame)
    name = path_of(file, folder).removesuffix(".csv")
    return "\n".join([*heading(file, folder, settings, level),
                      f"{size}, {len(frame.columns)} columns: {links}", "", said_once(same), "",
                      raw(table(frame.drop(columns=[*same]), identifier(name)))])


def figure_section(file, folder, settings=(), level="###"):
    "Heading, links, the picture; of a picture in two formats the pixels are shown."
    links = beside(file, folder, *({".png", ".svg"} - {file.suffix}))
    name, shown = path_of(file, folder).removesuffix(file.suffix), f"{FILES}/reports/{path_of(file, folder)}"
    return "\n".join([*heading(file, folder, settings, level), links, "",
                      f"![{words(name, settings)}]({shown})", ""])


def sections(made, folder, settings=()):
    "Figures first, then tables."
    pictures = [f for f in made if f.suffix == ".png"]
    pictures += [f for f in made if f.suffix == ".svg" and f.with_suffix(".png") not in made]
    tables = [f for f in made if f.suffix == ".csv"]
    return [figure_section(f, folder, settings) for f in pictures] + \
        [table_section(f, folder, settings) for f in tables]


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
    return f"[Executed report]({'reports/' + path_of(report, folder)}): {title_of(notebooks[report])[1]}"


def ledger_section(folder, notebooks):
    "The replication ledger: counts by state on top, then every printed number; and its executed report."
    file, report = folder/LEDGER, ledger_report(folder, notebooks)
    if not file.exists(): return []
    frame = read(file)
    lead = "Every number that four of the five papers print, and what became of it here."
    link = [executed(report, notebooks, folder), ""] if report else []
    top = ["## The replication ledger", "", lead, "", *link] + ([counts(frame)] if "state" in frame else [])
    made = by_report(folder).get(report, []) if report else []
    return ["\n".join(top), table_section(file, folder), *sections(made, folder)]


def ledger_report(folder, notebooks):
    "The executed report that wrote the ledger, or None."
    fits = [r for r in notebooks if re.fullmatch(r"(\d+_)?ledger", r.stem)]
    return fits[0] if fits and (folder/LEDGER).exists() else None


def readme(folder, used):
    "The text of reports/README.md without its title; links to tables and figures lead to their sections."
    path = folder/"README.md"
    if not path.exists(): return []
    text = re.sub(r"^# .*\n", "## What is there\n", path.read_text())
    here = {path_of(f, folder): f for f in files(folder, ".csv", ".png")}

    def change(m):
        name = m[1] if m[1] in here else re.sub(r"\.(md|tex|svg)$", ".csv", m[1])
        if name not in here: return m[1]
        return f"#{anchor(here[name], folder)}"
    return [linked(outside_code(text, lambda part: LINK.sub(change, part)), path, used)]


def answer(folder, used):
    "What the project's README says first of the results: which method, and the main table."
    path = folder.parent/"README.md"
    found = path.exists() and re.search(r"<!-- results:.*?-->\n(.*?)(?=<details>|<!-- end -->)",
                                        path.read_text(), re.S)
    if not found: return []
    return ["## Which one?", linked(found[1].removeprefix("**Which one?** "), path, used)]


def records_line(folder):
    "How many runs are on file."
    n = len(list((folder/RECORDS).rglob("*.json"))) if (folder/RECORDS).is_dir() else 0
    return [f"{n:,} runs are on record in `reports/{RECORDS}`, a file each: metrics, curves, costs."]*(n > 0)


def page(notebooks, folder=REPORTS, used=None):
    "The page as Markdown; `notebooks` is {executed report: notebook}. A section exists where its files do."
    lead = "> Every table and figure that the reports wrote, beside the report that made it."
    lines = ["# Results", lead, "", raw(ASSETS), *records_line(folder), CONTENTS, *answer(folder, used),
             *ledger_section(folder, notebooks), *readme(folder, used)]
    settings, shown = settings_of(notebooks), {None, ledger_report(folder, notebooks)}
    names = titles(notebooks)
    of_papers = lambda pair: getattr(pair[0], "stem", "") not in OURS
    for report, made in sorted(by_report(folder).items(), key=of_papers):
        if report in shown: continue
        lines += [f"## {names[report]}", "", executed(report, notebooks, folder), "",
                  *sections(made, folder, settings)]
    rest = by_report(folder).get(None)
    if rest: lines += ["## Further tables and figures", "", *sections(rest, folder, settings)]
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
