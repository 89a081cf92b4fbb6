"""The pages of results, made from the files of reports/: fidelity, papers, ledger, how it was measured.

No number is written here: a sentence counts what the tables hold, and a section exists where its files do.
"""
import gzip, json, re, tomllib
from pathlib import Path
import pandas as pd
from notebook_pages import FILES, NBS, REPORTS, linked

SCRIPT, STYLE = "_static/datatables.js", "_static/datatables.css"
ASSETS = f'''<link rel="stylesheet" href="../{STYLE}">
<script defer src="../{SCRIPT}"></script>
<script defer src="../_static/tables.js"></script>'''
TOP = 12                                                            # rows of a table that is read first
SMALL = 60                                                          # rows of a table that a page shows whole
STATES = ("reproduced", "not reproduced", "not run")


# ---- files

def as_written(file, used): return linked(file.read_text(), file, used) if file.exists() else ""
def read_if(file): return read(file) if file.exists() else pd.DataFrame()
def on_site(file, folder): return f"/{FILES}/reports/{file.relative_to(folder).as_posix()}"


def read(file):
    "A table as it is written; a first column without a name holds the methods."
    return pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"Unnamed: 0": "method"})


def studies(folder):
    "{name: study} of studies.toml, in its order."
    file = folder/"studies.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}


def beside(stem, folder, suffixes=(".csv", ".md", ".tex", ".ipynb", ".json")):
    "Links to the files of one name, by their formats."
    there = [f for s in suffixes if (f := stem.parent/f"{stem.name}{s}").exists()]
    return " · ".join(f"{{download}}`{f.name} <{on_site(f, folder)}>`" for f in there)


def copies(folder=REPORTS):
    "{place below the site's sources: file} of all that the pages link to or show; single records are left out."
    found = [p for p in sorted(folder.rglob("*")) if p.suffix in (".csv", ".md", ".tex", ".png", ".json", ".ipynb")]
    left_out = {"records", ".ipynb_checkpoints"}
    found = [p for p in found if not left_out & set(p.relative_to(folder).parts) and p != folder/"README.md"]
    return {on_site(p, folder)[1:]: p for p in found}


# ---- text

def raw(html): return f"```{{raw}} html\n{html}\n```\n"
def caption(text): return f":::{{container}} caption\n{text}\n:::"
def links(stems, folder): return " · ".join(filter(None, (beside(stem, folder) for stem in stems)))
def counted(n, one, many=""): return f"{n:,} {one if n == 1 else many or one + 's'}"
def identifier(path): return re.sub(r"\W+", "-", path).strip("-")


def words(name):
    "A name of a file or of folders in words: 'table2' is 'Table 2', 'office_features' is 'Office features'."
    apart = re.sub(r"([a-z])(\d+)(?![a-z\d])", r"\1 \2", name.replace("_", " "))
    return apart[:1].upper() + apart[1:]


def listed(items, most=8):
    "'a, b and c'; of many the first ones and how many more."
    items = [str(i) for i in items]
    if len(items) > most: items = [*items[:most - 1], f"{len(items) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def table(frame, name, filters=(), length=10, code=(), hidden=()):
    """A table of HTML; static/tables.js makes it sort by a click on a column, and filter.

    filters: columns with a list of their values above the table. hidden: columns that only filter. code: of names."""
    frame = frame.copy()
    for c in code: frame[c] = [f"<code>{escape(v)}</code>" if v else "" for v in frame[c]]
    for c in frame.columns.difference([*code]): frame[c] = frame[c].map(escape)
    with pd.option_context("display.max_colwidth", None):
        html = frame.to_html(index=False, border=0, table_id=f"table-{identifier(name)}", escape=False,
                             classes="results display compact", na_rep="")
    places = lambda columns: json.dumps([list(frame).index(c) for c in columns])
    given = dict(filters=places(filters), hidden=places(hidden), length=length)
    data = " ".join(f'data-{k}="{v}"' for k, v in given.items())
    html = html.replace("<table ", f"<table {data} ", 1).replace(' style="text-align: right;"', "")
    return re.sub(r">\n\s+<", ">\n<", html)


def escape(value):
    "A text as HTML; a link stays one."
    text = str(value)
    if text.startswith("<a href="): return text
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def small(frame, code=()):
    "A short table as HTML, without buttons."
    html = table(frame, "small", code=code).replace("results display compact", "plain dataframe")
    return re.sub(r' id="[\w-]*"| data-\w+="[^"]*"', "", html)


def folded(summary, *parts):
    "What opens on a click."
    return "\n".join([raw(f"<details class=\"fold\"><summary>{summary}</summary>"), *parts, raw("</details>")])


def page(title, quotation, *parts, indexed=True):
    "A page of Markdown; what is not indexed is no hit of the search."
    front = "" if indexed else "---\nnosearch: true\n---\n\n"
    return f"{front}# {title}\n> {quotation}\n\n{raw(ASSETS)}\n" + "\n\n".join(p for p in parts if p) + "\n"


def picture(file, folder, alt):
    "A figure, if it is there."
    return f"```{{image}} {on_site(file, folder)}\n:alt: {alt}\n:class: figure\n```\n" if file.exists() else ""


# ---- fidelity

CLEAR = """Accuracy on the held-out domain after the last round, minus that of the method as its paper prints it, in
points: the rows that are shown and exceed a point, largest first."""


BACK = """Which differences are needed together, on digits. *x as printed* is the released code with switch x set back
to the paper's text: where the accuracy returns, that difference was needed. *Only ... as released* is the paper's text
with only these differences. `held out` and `clients` are accuracies in percent, `moves` is the range of the first over
the last half of the rounds, and `signs` counts the seeds above and below *as released*."""


def show_changes(rows):
    "Differences that are shown, largest first."
    rows = rows.loc[rows.difference.astype(float).abs().sort_values(ascending=False).index]
    number = lambda text: f"{float(text):+.1f}"
    span = [f"{number(low)} to {number(high)}" if low else "" for low, high in zip(rows.low, rows.high)]
    chance = ["< .0001" if p and float(p) < 1e-4 else p for p in rows.holm]
    return pd.DataFrame({"system": rows.system, "difference": rows.label, "data": rows.dataset,
                         "points": rows.difference.map(number), "95 %": span, "p, Holm": chance})


def fidelity(folder):
    "What each difference between a paper and its code changes."
    here, title = folder/"fidelity", "As printed, as released"
    quotation = "Each released code differs from its paper in places. What does each difference change?"
    rows, back = read_if(here/"fidelity.csv"), read_if(here/"taken_back.csv")
    if rows.empty: return page(title, quotation, "No run yet.")
    own = rows[~rows.system.str.startswith("fedavg") & (rows.label != "as printed")]
    whole = own.label.str.startswith("control") | (own.label == "as released")
    switches, clear = own[~whole].drop_duplicates(["system", "label"]), own[own.clear == "*"]
    change = "is shown" if len(clear) == 1 else "are shown"
    data = listed(dict.fromkeys(rows.dataset))
    said = (f"{counted(len(switches), 'difference')} between {counted(own.system.nunique(), 'paper')} and their code "
            f"ran on {data}, with the same seeds. *As released* takes all of a system's at once, and a *control* "
            "puts another method or a part in its place. "
            f"{counted(len(clear), 'row')} of {len(own)} {change} to change the accuracy, after Holm's correction, "
            "and by more than a point in the mean. A row without a mark has not been shown to be equal: the column "
            "`seen` says how large a difference would have been found. "
            "[What follows from the rows](../tables/02_fidelity.ipynb)")
    parts = [said]
    if len(clear): parts += [raw(small(show_changes(clear)[:TOP], code=["system"])), caption(CLEAR)]
    parts += [picture(here/"fidelity.png", folder, "Differences to the text as printed"), "## All differences",
              raw(table(shorter(rows), "fidelity", filters=["dataset", "system"], length=25, code=["system"]))]
    if len(back):
        parts += ["## A difference taken back", BACK, raw(small(back, code=["system"]))]
    files = [here/stem for stem in ("fidelity", "runs", "taken_back", "setting")]
    how = "The methods' pages list the switches. [How the table is made](../tables/02_fidelity.ipynb)"
    return page(title, quotation, *parts, "## Files", links(files, folder), how)


def shorter(rows):
    "The columns of the fidelity table that a reader sorts by."
    span = [f"{low} to {high}" if low else "" for low, high in zip(rows.low, rows.high)]
    rows = rows.assign(**{"95 %": span}).rename(columns=dict(clear="shown", holm="p, Holm"))
    first = ["system", "label", "dataset", "difference", "95 %", "p, Holm", "shown", "seen", "accuracy", "sd", "seeds",
             "why"]
    return rows[[c for c in first if c in rows and (rows[c] != "").any()]]


# ---- the papers

def states(frame):
    "How many numbers are in which state, a row a paper."
    order = [s for s in STATES if s in set(frame.state)] + sorted(set(frame.state) - {*STATES})
    parts = [*frame.groupby("paper", sort=False), ("all", frame)]
    count = lambda part: {s: f"{(part.state == s).sum():,}" for s in order} | dict(all=f"{len(part):,}")
    return pd.DataFrame([dict(paper=name) | count(part) for name, part in parts])


def side_by_side(rows):
    "Methods by what was measured, each cell ours / printed (difference); what has no run is left out."
    rows = rows[rows.ours != ""]
    told = [k for k in ("dataset", "backbone", "target", "metric", "note") if k in rows and rows[k].nunique() > 1]
    column = rows[told].agg(lambda r: " ".join(v for v in r if v), axis=1) if told else "ours / printed"
    wide = rows.assign(column=column, cell=[write_cell(r) for r in rows.itertuples()])
    wide = wide.drop_duplicates(["method", "column"])
    index, columns = (list(dict.fromkeys(wide[c])) for c in ("method", "column"))
    pivoted = wide.pivot(index="method", columns="column", values="cell").reindex(index=index, columns=columns)
    return pivoted.fillna("").rename_axis(columns=None).reset_index()


def write_cell(row):
    "'2.50 / 1.50 (+1.00) *'."
    difference = f" ({float(row.difference):+.2f})" if row.difference else ""
    return f"{trim(row.ours)} / {trim(row.printed) or '–'}{difference} {row.mark}".strip()


def trim(value):
    "A number with at most two decimals."
    try: return f"{float(value):.2f}" if "." in value else value
    except ValueError: return value


def paper_table(file, folder):
    "One table of a paper, ours beside printed; a short table of another kind as it is."
    rows, name, files = read(file), words(file.stem), beside(file.with_suffix(""), folder)
    if "printed" in rows and "ours" in rows:
        ran = f"{(rows.ours != '').sum():,} of {counted(len(rows), 'number')} with a run"
        return folded(f"{name}: {ran}", raw(small(side_by_side(rows))), files)
    if len(rows) > SMALL: return f"{name}: {counted(len(rows), 'row')} of single runs, {files}"
    return folded(name, raw(small(rows)), files)


def waits(file):
    "Whether none of a table's numbers has a run."
    rows = read(file)
    return "ours" in rows and not (rows.ours != "").any()


def list_waiting(files, folder):
    "The tables without a run, in a line."
    said = [f"{words(f.stem)} ({counted(len(read(f)), 'number')}, {beside(f.with_suffix(''), folder, ['.csv'])})"
            for f in files]
    return f"Without a run: {' · '.join(said)}" if said else ""


def figures(found, folder):
    "Pictures side by side, each a link to its file."
    if not found: return ""
    place = {f: f"../_static/reports/{f.relative_to(folder).as_posix()}" for f in found}
    shown = [f'<a href="{at}"><img loading="lazy" src="{at}" alt="{words(f.stem)}">{words(f.stem)}</a>'
             for f, at in place.items()]
    return folded(counted(len(found), "figure"), raw(f'<div class="figures">{"".join(shown)}</div>'))


def said_of_paper(key, name, book):
    "A link to the method's page, and how many printed numbers are in which state."
    own = book[book.paper == key] if len(book) else book
    method = next(iter(sorted((NBS/"methods").glob(f"*_{key}.ipynb"))), None)
    link = f"[{name}, derived](../methods/{method.name}). " if method else ""
    if not len(own): return f"{link}The ledger has no numbers of this paper: they are not in the text we have."
    tell = listed(f"{(own.state == s).sum():,} {s}" for s in STATES)
    return f"{link}Of {counted(len(own), 'printed number')}, {tell}; [the ledger](#the-ledger) has each of them."


def paper(study, here, folder, book):
    "The section of one paper."
    name, files = study["what"].split(",")[0], sorted(here.glob("*.csv"))
    waiting = [f for f in files if waits(f)]
    parts = [f"## {name}", said_of_paper(here.name, name, book)]
    parts += [paper_table(f, folder) for f in files if f not in waiting] + [list_waiting(waiting, folder)]
    for f in sorted(here.glob("*/*.csv")):
        title = f"{words(f.parent.name)}: {words(f.stem).lower()}"
        parts.append(folded(title, raw(small(read(f))), beside(f.with_suffix(""), folder)))
    reports = [f for f in sorted(here.rglob("*.ipynb")) if ".ipynb_checkpoints" not in f.parts]
    executed = " · ".join(f"{{download}}`{f.name} <{on_site(f, folder)}>`" for f in reports)
    parts += [figures(sorted(here.rglob("*.png")), folder), f"Executed notebooks: {executed}" if executed else ""]
    return "\n\n".join(filter(None, parts))


CELL = """A cell reads ours / printed (difference): accuracies in percent, costs in the units of the table. Most runs
here are much smaller than the paper's, with fewer rounds and often on a smaller network without pretrained weights, so
that a difference is no verdict. [The ledger](#the-ledger) counts such numbers as *not run*. Where a cell ends with
*yes* or *no*, runs of the paper's size agree with the printed number or do not. [The settings](measured.md) say what
was run."""


def papers(folder):
    "One page, a section a paper: its tables beside ours."
    book, found = read_if(folder/"ledger.csv"), {}
    for study in studies(folder).values():
        here = folder/study["folder"]
        if here.parent == folder/"papers" and here.is_dir(): found.setdefault(here, study)
    sections = [paper(study, here, folder, book) for here, study in found.items()]
    said = "Every number that four of the five papers print, and what became of it here."
    return page("The papers", "The tables of the five papers, ours beside printed.", CELL, *sections,
                "## The ledger", said, ledger(folder))


# ---- the ledger

SHOWN = "paper table row dataset target metric printed ours n difference state why".split()
RULE = """*Reproduced*, of an accuracy: within a point or two printed standard deviations, in the mean of three seeds at
the paper's scale. Parameters, bytes and FLOPs are counted without training and may differ by a hundredth. *Not run*: no
three seeds at the paper's scale. [The rules](../tables/10_ledger.ipynb)"""
COUNTED = "params|comm_MB|flops"                                    # metrics that need no training


def describe_agreement(book):
    "How many of the printed numbers that agree, and of those that do not, are accuracies."
    trained = book[~book.metric.str.contains(COUNTED)]
    tell = [f"{(trained.state == s).sum():,} of the {(book.state == s).sum():,} numbers {s}" for s in STATES[:2]]
    return f"Results of training are {listed(tell)}; the others count parameters, bytes or FLOPs."


def ledger(folder):
    "Every printed number and its state, with filters; out of the search, which would find little else."
    book = read_if(folder/"ledger.csv")
    if book.empty: return "No run yet."
    if "odd" in book: book["why"] = [" · ".join(filter(None, both)) for both in zip(book.why, book.odd)]
    rows = book[[c for c in SHOWN if c in book]].rename(columns=dict(n="seeds"))
    filters = [c for c in ("state", "paper", "table", "dataset", "metric") if c in rows]
    hidden = [c for c in ["metric"] if c in rows]
    shown = raw(table(rows, "ledger", filters=filters, length=25, hidden=hidden))
    rule = f"{RULE} · {beside(folder/'ledger', folder)}"
    return "\n\n".join([raw(small(states(book))), describe_agreement(book), rule,
                        f":::{{container}} no-search\n{shown}\n:::"])


# ---- how it was measured

HOW = """Accuracy is measured on the held-out domain, or on each client's own domain where the setting says so. The
round is the one with the best [validation accuracy of the clients](../runs/02_metrics.ipynb), unless a paper's
[protocol](../runs/06_protocols.ipynb) says otherwise. [The comparison](../tables/16_ours.ipynb) has
[a protocol](protocol.md) of its own. Gains are [paired within target and seed](../experiments/05_statistics.ipynb)."""
OTHER = {"flower/costs.csv": "Cost of a federation over Flower",
         "flower/imports.csv": "Seconds of processor time to import",
         "flower/faults.csv": "Faults of a deployment, what was expected and what came",
         "privacy/curve.csv": "Accuracy under differential privacy"}
# what setting.json says, and the heads of its columns
FACTS = dict(protocol="protocol", scale="scale", rounds="rounds", seeds="seeds", data="data", network="network",
             size="side", limit="images", hardware="processor")


def setting_of(folder):
    "{table: what its runs had} of a folder's setting.json."
    file = folder/"setting.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return {name: part for name, part in found.items() if isinstance(part, dict)}


def list_settings(folder):
    "What each set of runs had: a row a table, of all files setting.json."
    rows = []
    for file in sorted(folder.rglob("setting.json")):
        given, where = setting_of(file.parent), file.parent.relative_to(folder).as_posix()
        for name, part in given.items():
            name = f"{where}, {words(name).lower()}" if len(given) > 1 else where
            row = dict(results=name, runs=part.get("runs", ""))
            row |= {head: listed(part.get(key) or [], 5) for key, head in FACTS.items()}
            rows.append(row | dict(made=part.get("made", "")))
    return pd.DataFrame(rows)


def readme(folder, used):
    "The text of reports/README.md without its title; links lead to where the site shows what they mean."
    path = folder/"README.md"
    if not path.exists(): return ""
    text = re.sub(r"^# .*\n", "", path.read_text())
    return linked(text, path, used) if folder == REPORTS else text


def measured(folder, used):
    "What was run, on what, and how the numbers are chosen."
    n = sum(len(gzip.decompress(p.read_bytes()).splitlines()) for p in (folder/"records").rglob("*.jsonl.gz"))
    parts = [HOW]
    if n: parts.append(f"{n:,} runs are on record in `reports/records`. `make verify` repeats a sample of them.")
    given = list_settings(folder)
    if len(given): parts += ["## Settings", raw(table(given, "settings", length=-1))]
    if text := readme(folder, used): parts += ["## Studies", text]
    others = {folder/f: title for f, title in OTHER.items() if (folder/f).exists()}
    if others: parts += ["## Other measurements"]
    for file, title in others.items():
        parts += [f"### {title}", raw(small(read(file))), beside(file.with_suffix(""), folder)]
    quotation = "What was run, on which data and machine, and how a number is chosen."
    return page("How it was measured", quotation, *parts)


def pages(folder=REPORTS, used=None):
    "{path below the site's sources: Markdown} of the pages, in reading order."
    made = dict(fidelity=fidelity(folder), papers=papers(folder),
                first_runs=as_written(folder/"first_runs.md", used), protocol=as_written(folder/"protocol.md", used),
                measured=measured(folder, used))
    return {f"results/{name}.md": text for name, text in made.items() if text}


def pictures(folder=REPORTS):
    "{place below the site's sources: file} of the figures that stand side by side."
    return {f"_static/reports/{p.relative_to(folder).as_posix()}": p for p in sorted((folder/"papers").rglob("*.png"))}


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
