"""The pages of results, made from the files of reports/: comparison, fidelity, papers, ledger, how it was measured.

No number is written here: a sentence counts what the tables hold, and a section exists where its files do.
"""
import json, os, re, tomllib
from pathlib import Path
import pandas as pd
from notebook_pages import FILES, LINK, NBS, REPORTS, linked, outside_code

SCRIPT, STYLE = "_static/datatables.js", "_static/datatables.css"
ASSETS = f'''<link rel="stylesheet" href="../{STYLE}">
<script defer src="../{SCRIPT}"></script>
<script defer src="../_static/tables.js"></script>'''
TOP = 12                                                            # rows of a table that is read first
SMALL = 60                                                          # rows of a table that a page shows whole
STATES = ("reproduced", "not reproduced", "not run")
BETTER, WORSE, TRAINED = "▲", "▼", "T"                              # the marks of the comparison's tables
ADAPTED = " (adapted)"


# ---- files

def read(file):
    "A table as it is written; a first column without a name holds the methods."
    return pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"Unnamed: 0": "method"})


def read_if(file): return read(file) if file.exists() else pd.DataFrame()


def studies(folder):
    "{name: study} of studies.toml, in its order."
    file = folder/"studies.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}


def beside(stem, folder, suffixes=(".csv", ".md", ".tex", ".ipynb", ".json")):
    "Links to the files of one name, by their formats."
    there = [f for s in suffixes if (f := stem.parent/f"{stem.name}{s}").exists()]
    return " · ".join(f"{{download}}`{f.name} <{on_site(f, folder)}>`" for f in there)


def on_site(file, folder): return f"/{FILES}/reports/{file.relative_to(folder).as_posix()}"


def copies(folder=REPORTS):
    "{place below the site's sources: file} of all that the pages link to or show; single records are left out."
    found = [p for p in sorted(folder.rglob("*")) if p.suffix in (".csv", ".md", ".tex", ".png", ".json", ".ipynb")]
    left_out = {"records", ".ipynb_checkpoints"}
    found = [p for p in found if not left_out & set(p.relative_to(folder).parts) and p != folder/"README.md"]
    return {on_site(p, folder)[1:]: p for p in found}


# ---- text

def raw(html): return f"```{{raw}} html\n{html}\n```\n"


def words(name):
    "A name of a file or of folders in words: 'table2' is 'Table 2', 'office_features' is 'Office features'."
    apart = re.sub(r"([a-z])(\d+)(?![a-z\d])", r"\1 \2", name.replace("_", " "))
    return apart[:1].upper() + apart[1:]


def listed(items, most=8):
    "'a, b and c'; of many the first ones and how many more."
    items = [str(i) for i in items]
    if len(items) > most: items = [*items[:most - 1], f"{len(items) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def counted(n, one, many=""): return f"{n:,} {one if n == 1 else many or one + 's'}"


def identifier(path): return re.sub(r"\W+", "-", path).strip("-")


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
    return re.sub(r">\n\s+<", ">\n<", html.replace("<table ", f"<table {data} ", 1)).replace(' style="text-align: right;"', "")


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


# ---- comparison

def points(text):
    "The number that a gain begins with; NaN of none."
    m = re.match(r"[+-]?\d+(?:\.\d+)?", text)
    return float(m[0]) if m else float("nan")


def is_inside(folder):
    "Whether a setting tests each client on its own domain."
    file = folder/"setting.json"
    given = json.loads(file.read_text()) if file.exists() else {}
    return any(part.get("targets") == ["None"] for part in given.values())


def settings(folder):
    "The folders of the comparison's settings, in the order of the studies."
    order = [Path(s["folder"]).name for s in studies(folder).values() if s["folder"].startswith("comparison/")]
    found = {p.parent.name: p.parent for p in sorted((folder/"comparison").glob("*/table.csv"))}
    return [found[n] for n in dict.fromkeys([*order, *found]) if n in found]


def list_lines(folder):
    "A line for each method of each setting: gain in points, mark, what it needs, costs."
    parts = []
    for setting in settings(folder):
        for stem in ("table", "table_adapted"):
            rows = read_if(setting/f"{stem}.csv")
            if rows.empty: continue
            gain = next(c for c in rows if c.startswith("gain"))
            rows = rows.rename(columns={gain: "gain", "accuracy, %": "accuracy"})
            parts.append(rows.assign(setting=setting.name, inside=is_inside(setting), points=rows.gain.map(points),
                                     adapts=rows.method.str.endswith(ADAPTED)))
    lines = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if lines.empty: return lines
    trains = lines.mark.str.contains(TRAINED)
    lines["target"] = ["at test time" if a else "in training" if t else "" for a, t in zip(lines.adapts, trains)]
    return lines


def shown_better(lines):
    "'`a` and `b` (+1.2 to +4.3 points)' of the lines that beat FedAvg; '' of none."
    better = lines[lines.mark.str.contains(BETTER)].sort_values("points", ascending=False)
    if better.empty: return ""
    low, high = better.points.min(), better.points.max()
    span = f"{low:+.1f}" if low == high else f"{low:+.1f} to {high:+.1f}"
    return f"{listed(f'`{m}`' for m in dict.fromkeys(better.method.str.removesuffix(ADAPTED)))} ({span} points)"


def sentences(lines):
    "What the comparison says, in three sentences."
    rivals = lines[lines.method != "fedavg"]
    methods = rivals.method.str.removesuffix(ADAPTED).nunique()
    n = lines.setting.nunique()
    said = [f"{counted(methods, 'method')} ran beside FedAvg in {counted(n, 'setting')}, each with values searched for it, "
            "on the same targets, rounds and seeds."]
    outside, inside = rivals[~rivals.inside], rivals[rivals.inside]
    claim = lambda found: f"these are better than FedAvg: {found}" if found else "no method is shown to be better than FedAvg"
    if len(outside):
        without, given = (claim(shown_better(part)) for part in (outside[outside.target == ""], outside[outside.target != ""]))
        said.append(f"On a domain that no client has, and without its data, {without}" + (";" if len(inside) else "."))
        said.append(f"{'with' if len(inside) else 'With'} unlabeled samples of that domain, {given}.")
    if len(inside): said.append(f"On the clients' own domains, {claim(shown_better(inside))}.")
    return " ".join(said)


def best_rows(lines, costs, most=TOP):
    "FedAvg's accuracy, then the methods shown better in most settings, then by mean gain: a column a setting."
    base = lines[lines.method == "fedavg"]
    names = list(dict.fromkeys(lines.setting))
    rows = []
    for method, own in lines[lines.method != "fedavg"].groupby("method", sort=False):
        better, worse = own.mark.str.contains(BETTER).sum(), own.mark.str.contains(WORSE).sum()
        row = {"method": method, "target data": own.target.iloc[0] or "none"}
        text = {r.setting: f"{r.points:+.1f} {re.sub('[^▲▼]', '', r.mark)}".strip() for r in own.itertuples()
                if r.points == r.points}
        row |= {words(s): text.get(s, "") for s in names}
        row |= costs_of(method.removesuffix(ADAPTED), costs)
        rows.append((worse - better, -own.points.mean(), row))
    rows = [row for *_, row in sorted(rows, key=lambda r: r[:2])]
    first = {"method": "fedavg", "target data": "none"}
    first |= {words(r.setting): f"{r.accuracy} %" for r in base.itertuples()} | dict(bytes="1", seconds="1")
    return pd.DataFrame([first, *rows[:most - 1]]).fillna("")


def costs_of(method, costs):
    "A method's bytes and seconds of a round, times FedAvg's: the mean over the settings."
    own = costs[costs.label == method] if len(costs) else costs
    if own.empty: return {}
    mean = lambda c: f"{own[c].astype(float).mean():.2g}"
    return dict(bytes=mean("bytes"), seconds=mean("seconds"))


def picture(file, folder, alt, width=""):
    return f"```{{image}} {on_site(file, folder)}\n:alt: {alt}\n:class: figure\n```\n" if file.exists() else ""


READ = """Points over FedAvg, mean over targets and seeds, at the round with the best validation accuracy of the clients;
▲ better, ▼ worse by a paired t test at 5 % after Holm's correction; no mark: no difference shown. The first row is
FedAvg's accuracy. Bytes and seconds of a round are multiples of FedAvg's."""


def describe_setting(folder, top):
    "The sections of one setting: what was run, and its tables."
    study = next((s for s in studies(top).values() if top/s["folder"] == folder), {})
    what = study.get("what", words(folder.name)).removeprefix("Comparison: ")
    file = folder/"setting.json"
    given = next(iter(json.loads(file.read_text()).values()), {}) if file.exists() else {}
    facts = [counted(given["runs"], "run") if "runs" in given else "",
             counted(given["rounds"][0], "round") if given.get("rounds") else "",
             f"seeds {listed(given['seeds'])}" if given.get("seeds") else ""]
    lines = [f"### {words(folder.name)}", f"{what}. {', '.join(filter(None, facts))}."]
    titles = {"table": "the model as received", "table_adapted": "adapted at test time", "table_local": "after local steps"}
    for stem, title in titles.items():
        rows = read_if(folder/f"{stem}.csv")
        if rows.empty: continue
        lines += [folded(f"All {len(rows)} rows: {title}", raw(table(rows, f"{folder.name}-{stem}", length=-1, code=["method"]))),
                  beside(folder/stem, top)]
    return "\n\n".join(lines)


def comparison(folder):
    "Which method, in two minutes; below, all rows of each setting."
    lines = list_lines(folder)
    here = folder/"comparison"
    quotation = "Every method at values searched for it, under one protocol: what is better than FedAvg, by how much, at what price."
    if lines.empty: return page("Which method?", quotation, "No run yet.")
    rows = best_rows(lines, read_if(here/"costs.csv"))
    files = [beside(here/s, folder) for s in ("comparison", "gains", "which", "costs", "values", "rules")]
    return page(
        "Which method?", quotation, sentences(lines),
        raw(small(rows, code=["method"])),
        f":::{{container}} caption\n{READ} {more_rows(lines, rows)}\n:::",
        picture(here/"gains.png", folder, "Gains over FedAvg by setting, in points"),
        ":::{container} caption\nGains over FedAvg with 95 % intervals; filled dots are shown after the correction; below the dotted line is "
        "what adapts to unlabeled samples of the target at test time.\n:::",
        "## By setting", *[describe_setting(s, folder) for s in settings(folder)],
        "## Files", " · ".join(filter(None, files)),
        "[All methods](../methods/list.md) · [How it was measured](measured.md)")


def more_rows(lines, rows):
    "How many rows stand below alone."
    rest = lines.method.nunique() - len(rows)
    return f"The other {counted(rest, 'row')} are [below](#by-setting)." if rest > 0 else ""


# ---- fidelity

def fidelity(folder):
    "What each difference between a paper and its code changes."
    here, title = folder/"fidelity", "As printed, as released"
    quotation = "Each released code differs from its paper in places. Every such place is a switch here; this is what each one changes."
    rows = read_if(here/"fidelity.csv")
    if rows.empty: return page(title, quotation, "No run yet.")
    system = rows[~rows.system.str.startswith("fedavg") & (rows.label != "as printed")]
    switches, data = system.drop_duplicates(["system", "label"]), list(dict.fromkeys(rows.dataset))
    clear = system[system.clear == "*"]
    changes = lambda t: pd.DataFrame({
        "system": t.system, "difference": t.label, "data": t.dataset, "points": t.difference.map(lambda v: f"{float(v):+.1f}"),
        "95 %": [f"{float(a):+.1f} to {float(b):+.1f}" if a and b else "" for a, b in zip(t.low, t.high)], "p, Holm": t.holm.map(lambda v: "< .0001" if v and float(v) < 1e-4 else v)})
    order = clear.difference.astype(float).abs().sort_values(ascending=False).index
    said = (f"{counted(len(switches), 'difference')} between {counted(system.system.nunique(), 'paper')} and their code ran on "
            f"{listed(data)}, within the same seeds. {counted(len(clear), 'row')} of {len(system)} "
            f"change{'s' if len(clear) == 1 else ''} the accuracy by more than a point after Holm's correction. "
            "A row that is not listed has not been shown to be equal: the column `seen` says how large a difference would have been found.")
    back = read_if(here/"taken_back.csv")
    return page(
        title, quotation, said,
        raw(small(changes(clear.loc[order[:TOP]]), code=["system"])) if len(clear) else "",
        ":::{container} caption\nAccuracy on the held-out domain after the last round, in points beyond the paper's text: the clear differences, "
        "largest first.\n:::" if len(clear) else "",
        picture(here/"fidelity.png", folder, "Differences to the text as printed"),
        "## All differences", raw(table(shorter(rows), "fidelity", filters=["dataset", "system"], length=25, code=["system"])),
        "## A difference taken back" if len(back) else "",
        "All differences at once but one, and the telling ones alone. `held out` and `clients` are accuracies in percent." if len(back) else "",
        raw(small(back, code=["system"])) if len(back) else "",
        "## Files", " · ".join(filter(None, [beside(here/s, folder) for s in ("fidelity", "runs", "taken_back", "setting")])),
        "The switches are listed on the methods' pages. [How the table is made](../tables/02_fidelity.ipynb)")


def shorter(rows):
    "The columns of the fidelity table that a reader sorts by."
    span = [f"{low} to {high}" if low else "" for low, high in zip(rows.low, rows.high)]
    rows = rows.assign(**{"95 %": span}).rename(columns=dict(clear="shown", holm="p, Holm"))
    first = ["system", "label", "dataset", "difference", "95 %", "p, Holm", "shown", "seen", "accuracy", "sd", "seeds", "why"]
    return rows[[c for c in first if c in rows and (rows[c] != "").any()]]


# ---- the papers

def states(frame, names=None):
    "How many numbers are in which state, a row a paper."
    order = [s for s in STATES if s in set(frame.state)] + sorted(set(frame.state) - {*STATES})
    rows = [dict(paper=(names or {}).get(p, p)) | {s: f"{(part.state == s).sum():,}" for s in order} | dict(all=f"{len(part):,}")
            for p, part in frame.groupby("paper", sort=False)]
    rows.append(dict(paper="all") | {s: f"{(frame.state == s).sum():,}" for s in order} | dict(all=f"{len(frame):,}"))
    return pd.DataFrame(rows)


def side_by_side(rows):
    "A paper's table: methods by what was measured, each cell ours / printed (difference); what has no run is left out."
    rows = rows[rows.ours != ""]
    keys = [k for k in ("dataset", "backbone", "target", "metric", "note") if k in rows]
    told = [k for k in keys if rows[k].nunique() > 1]
    column = rows[told].agg(lambda r: " ".join(v for v in r if v), axis=1) if told else "ours / printed"
    signed = lambda v: f" ({float(v):+.2f})" if v else ""
    cell = [f"{trim(r.ours)} / {trim(r.printed) or '–'}{signed(r.difference)}{' ' + r.mark if r.mark else ''}" for r in rows.itertuples()]
    wide = rows.assign(column=column, cell=cell).drop_duplicates(["method", "column"])
    return wide.pivot(index="method", columns="column", values="cell").reindex(
        index=list(dict.fromkeys(wide.method)), columns=list(dict.fromkeys(wide.column))).fillna("").rename_axis(
            columns=None).reset_index()


def trim(value):
    "A number with at most two decimals."
    try: return f"{float(value):.2f}" if "." in value else value
    except ValueError: return value


def paper_table(file, folder):
    "One table of a paper: ours beside printed, or the number of rows that wait."
    rows = read(file)
    if "printed" not in rows or "ours" not in rows:
        return f"{words(file.stem)}: {counted(len(rows), 'row')} of single runs, {beside(file.with_suffix(''), folder)}" \
            if len(rows) > SMALL else folded(words(file.stem), raw(small(rows)), beside(file.with_suffix(""), folder))
    ran = (rows.ours != "").sum()
    name = words(file.stem)
    rest = f"{ran:,} of {counted(len(rows), 'number')} with a run"
    return folded(f"{name}: {rest}", raw(small(side_by_side(rows))), beside(file.with_suffix(""), folder))


def figures(found, folder):
    "Pictures side by side, each a link to its file."
    shown = [f'<a href="{source(f, folder)}"><img loading="lazy" src="{source(f, folder)}" alt="{words(f.stem)}">{words(f.stem)}</a>'
             for f in found]
    return folded(f"{counted(len(found), 'figure')}", raw(f'<div class="figures">{"".join(shown)}</div>')) if found else ""


def source(file, folder): return f"../_static/reports/{file.relative_to(folder).as_posix()}"


def paper(study, here, folder, book):
    "The section of one paper."
    key, name = here.name, study["what"].split(",")[0]
    own = book[book.paper == key] if len(book) else book
    page_of_method = next(iter(sorted((NBS/"methods").glob(f"*_{key}.ipynb"))), None)
    link = f"[{name}, derived](../methods/{page_of_method.name}). " if page_of_method else ""
    tell = lambda s: f"{(own.state == s).sum():,} {s}"
    said = f"Of {counted(len(own), 'printed number')}, {listed(tell(s) for s in STATES)}; each one stands in [the ledger](ledger.md)." \
        if len(own) else "The ledger has no numbers of this paper: they are not in the text we have."
    nested = sorted(here.glob("*/*.csv"))
    files = sorted(here.glob("*.csv"))
    waiting = [f for f in files if "ours" in (rows := read(f)) and not (rows.ours != "").any()]
    tables = [paper_table(f, folder) for f in files if f not in waiting]
    tables += ["No run yet: " + " · ".join(f"{words(f.stem)} ({counted(len(read(f)), 'number')}, {beside(f.with_suffix(''), folder, ['.csv'])})"
                                           for f in waiting)] if waiting else []
    more = [folded(f"{words(f.parent.name)}: {words(f.stem).lower()}", raw(small(read(f))), beside(f.with_suffix(''), folder)) for f in nested]
    reports = [f for f in sorted(here.rglob("*.ipynb")) if ".ipynb_checkpoints" not in f.parts]
    executed = "Executed notebooks: " + " · ".join(f"{{download}}`{f.name} <{on_site(f, folder)}>`" for f in reports) if reports else ""
    return "\n\n".join([f"## {name}", f"{link}{said}", *tables, *more, figures(sorted(here.rglob("*.png")), folder), executed])


def papers(folder):
    "One page, a section a paper: its tables beside ours."
    book = read_if(folder/"ledger.csv")
    found = {}
    for study in studies(folder).values():
        here = folder/study["folder"]
        if study["folder"].startswith("papers/") and here.is_dir() and study["folder"].count("/") == 1: found.setdefault(here, study)
    said = "A cell reads ours / printed (difference): accuracies in percent, costs in the units of the table. Few runs here have the paper's " \
        "rounds and weights, so a difference is no verdict; [the ledger](ledger.md) gives the verdicts and [the settings](measured.md) say what was run."
    return page("The papers", "The tables of the five papers, ours beside printed.", said,
                *[paper(study, here, folder, book) for here, study in found.items()])


# ---- the ledger

SHOWN = ["paper", "table", "row", "dataset", "target", "metric", "printed", "ours", "n", "difference", "state", "why"]


def ledger(folder):
    "Every printed number and its state, with filters."
    book = read_if(folder/"ledger.csv")
    title, quotation = "The ledger", "Every number that four of the five papers print, and what became of it here."
    if book.empty: return page(title, quotation, "No run yet.", indexed=False)
    if "odd" in book: book["why"] = [" · ".join(filter(None, [why, odd])) for why, odd in zip(book.why, book.odd)]
    rows = book[[c for c in SHOWN if c in book]].rename(columns=dict(n="seeds"))
    filters = [c for c in ("state", "paper", "table", "dataset", "metric") if c in rows]
    return page(
        title, quotation, raw(small(states(book))),
        "*Reproduced*: within a point or two standard deviations of the printed number, with three seeds at the paper's scale. "
        f"[The rules](../tables/10_ledger.ipynb) · {beside(folder/'ledger', folder)}",
        raw(table(rows, "ledger", filters=filters, length=25, hidden=[c for c in ["metric"] if c in rows])), indexed=False)


# ---- how it was measured

def list_settings(folder):
    "What each set of runs had: a row a table, of all files setting.json."
    rows = []
    for file in sorted(folder.rglob("setting.json")):
        where = file.parent.relative_to(folder).as_posix()
        given = json.loads(file.read_text())
        for name, part in given.items():
            if not isinstance(part, dict): continue
            one = lambda k: listed(part.get(k) or [], 5)
            rows.append({"results": f"{where}" + (f", {words(name).lower()}" if len(given) > 1 else ""), "runs": part.get("runs", ""),
                         "protocol": one("protocol"), "scale": one("scale"), "rounds": one("rounds"), "seeds": one("seeds"),
                         "data": one("data"), "network": one("network"), "side": one("size"), "images": one("limit"),
                         "processor": one("hardware"), "made": part.get("made", "")})
    return pd.DataFrame(rows)


def readme(folder, used):
    "The text of reports/README.md without its title; links lead to where the site shows what they mean."
    path = folder/"README.md"
    if not path.exists(): return ""
    text = re.sub(r"^# .*\n", "", path.read_text())
    return linked(text, path, used) if folder == REPORTS else outside_code(text, lambda part: LINK.sub(lambda m: m[1], part))


def rules(folder):
    "Accuracy under three rules that choose the round, by setting: FedAvg and the mean over the methods."
    rows = read_if(folder/"comparison/rules.csv")
    if rows.empty: return rows
    number = [c for c in ("last", "source_val", "oracle") if c in rows]
    rows[number] = rows[number].apply(pd.to_numeric)
    out = []
    for setting, part in rows.groupby("setting", sort=False):
        for name, own in (("fedavg", part[part.method == "fedavg"]), ("mean of the methods", part)):
            if len(own): out.append(dict(setting=words(setting), of=name) | {c: f"{own[c].mean():.1f}" for c in number})
    return pd.DataFrame(out)


OTHER = {"flower/costs.csv": "Cost of a federation over Flower", "flower/imports.csv": "Seconds of processor time to import",
         "privacy/curve.csv": "Accuracy under differential privacy"}


def measured(folder, used):
    "What was run, on what, and how the numbers are chosen."
    n = sum(len(p.read_text().splitlines()) for p in (folder/"records").glob("*.jsonl"))
    parts = ["Accuracy is measured on the held-out domain, or on each client's own where the setting says in-domain. The round is the one with the "
             "best [validation accuracy of the clients](../runs/02_metrics.ipynb), unless a paper's [protocol](../runs/06_protocols.ipynb) says "
             "otherwise. In the comparison each method gets the same [search](../experiments/10_tuning.ipynb) for its learning rate and its most "
             "important value, on other seeds than those reported. Gains are [paired within target and seed](../experiments/05_statistics.ipynb).",
             f"{n:,} runs are on record in `reports/records`, a line each: metrics, curves, costs. `make verify` runs a sample of them again." if n else ""]
    given, chosen = list_settings(folder), rules(folder)
    if len(given): parts += ["## Settings", raw(table(given, "settings", length=-1))]
    if len(chosen): parts += ["## What the choice of the round changes", "Accuracy in percent at the last round, at the round with the best validation "
                              "accuracy of the clients, and at an oracle's, which looks at the target's labels.", raw(small(chosen))]
    if text := readme(folder, used): parts += ["## Studies", text]
    others = [(folder/f, title) for f, title in OTHER.items() if (folder/f).exists()]
    if others: parts += ["## Other measurements"]
    for file, title in others: parts += [f"### {title}", raw(small(read(file))), beside(file.with_suffix(""), folder)]
    return page("How it was measured", "What was run, on which data and machine, and how a number is chosen.", *parts)


def pages(folder=REPORTS, used=None):
    "{path below the site's sources: Markdown} of the five pages, in reading order."
    made = dict(comparison=comparison(folder), fidelity=fidelity(folder), papers=papers(folder), ledger=ledger(folder),
                measured=measured(folder, used))
    return {f"results/{name}.md": text for name, text in made.items()}


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
