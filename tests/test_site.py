"""The site: what a notebook becomes; where `make docs` has built it, its links, equations, tables, search.

The pages are opened in a headless Chromium; where it, or the site, is missing these tests are skipped."""
import json, os, re, sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pandas as pd
import pytest
from browser import browser, program, served

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/"docs"))
import api_pages, build_site, methods_page, notebook_pages as pages, results_page
SITE, BUILT = ROOT/"_docs/html", ROOT/"_docs/built"
NBS, REPORTS = ROOT/"nbs", ROOT/"reports"
NOTEBOOKS = [p for p in sorted(NBS.rglob("*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
RESULTS = ["results/comparison", "results/fidelity", "results/papers", "results/ledger", "results/measured"]


# ---- a notebook as a page

def markdown(text): return dict(cell_type="markdown", id="m", metadata={}, source=text)


def coded(source, outputs=(), tags=()):
    cell = dict(cell_type="code", id="c", metadata={"tags": list(tags)} if tags else {}, execution_count=3)
    return cell | dict(source=source, outputs=list(outputs))


def displaying(kind): return dict(output_type="display_data", data={kind: "", "text/plain": ""}, metadata={})


@pytest.mark.parametrize("before, after", [
    ("The loss is (2) $$a = b$$", "The loss is (2)\n$$\na = b\n$$"),
    ("$$a$$ and $$b$$", "$$\na\n$$\nand\n$$\nb\n$$"),
    ("so $$\na\n$$\nand", "so\n$$\na\n$$\nand"),
    ("x\n$$\na\n$$\ny", "x\n$$\na\n$$\ny"),
    ("$$\na\n\\tag{1}\n$$", "$$\na\n\\tag{1}\n$$"),
    ("`$$a$$` and ```\n$$b$$\n```", "`$$a$$` and ```\n$$b$$\n```"),
    (r"with $\gamma=5\cdot$`rounds`$/$`all`", r"with $\gamma=5\cdot$`rounds`$/$`all`"),
    ("no equation, $x$ alone", "no equation, $x$ alone")])
def test_display_equations_get_lines_of_their_own(before, after):
    assert pages.displayed(before) == after
    assert pages.displayed(after) == after                            # what is right already stays


def test_directives_are_taken_out():
    head = '#| export\n#|slow\n#| fig-cap: "What it shows: a curve."\n'
    named, source = pages.directives(head + "a = 1\n#| not one\n")
    assert named == {"export": "", "slow": "", "fig-cap": "What it shows: a curve."}
    assert source == "a = 1\n#| not one"
    assert pages.code(coded("#| hide\nassert True")) == []
    assert pages.code(coded("#| default_exp core")) == []
    cell, = pages.code(coded("#| exporti\nx = 1", tags=["hide-input"]))
    assert cell["source"] == "x = 1" and cell["metadata"] == {"tags": ["hide-input", "exported"]} and cell["id"] == "c"


@pytest.mark.parametrize("source, kind", [
    ("#| export\ndef f(): assert True", "exported"), ("#| exporti\nx = 1", "exported"), ("test_eq(1, 1)", "check"),
    ("x = 1\nfor a in b: assert a", "check"), ("run.plot()", "example"), ("say('assert')", "example")])
def test_code_is_told_apart(source, kind):
    cell, = pages.code(coded(source))
    assert cell["metadata"]["tags"] == [kind]


def test_cards_are_a_list_in_the_notebook():
    cell = dict(markdown("* **[Run](run.ipynb)**"), metadata={"tags": ["cards"]})
    assert pages.prose(cell, NBS/"index.ipynb")["source"].startswith(":::{container} cards\n* **[Run]")
    index = json.loads((NBS/"index.ipynb").read_text())["cells"]
    text, = [pages.text_of(c) for c in index if "cards" in c["metadata"].get("tags", ())]
    assert len(re.findall(r"^\* ", text, re.M)) == 3


def test_a_page_comes_before_its_parts(tmp_path):
    "The parts in the order of its links to them; what a paper prints, last."
    names = "05_fdse_network 05_fdse_aggregate 05_fdse_paper 05_fdse 06_drift".split()
    for n in names: (tmp_path/f"{n}.ipynb").write_text(json.dumps(dict(cells=[markdown(f"# {n}")])))
    links = "[a](05_fdse_paper.ipynb) [b](05_fdse_network.ipynb) [c](05_fdse_aggregate.ipynb)"
    (tmp_path/"05_fdse.ipynb").write_text(json.dumps(dict(cells=[markdown(links)])))
    found = [p.stem for p in build_site.notebooks(tmp_path)]
    assert found == "05_fdse 05_fdse_network 05_fdse_aggregate 05_fdse_paper 06_drift".split()


def test_a_folded_check_is_named_by_its_first_line():
    cell, = pages.code(coded("#| slow\n# one step by hand\nassert True", tags=["hide-cell"]))
    assert cell["metadata"]["mystnb"] == {"code_prompt_show": "Check: one step by hand"}


def test_a_caption_stands_below_its_figure_and_nowhere_else():
    source = '#| fig-cap: "Loss of `x` per round."\nplot()'
    cell, caption = pages.code(coded(source, [displaying("image/png")]))
    assert cell["metadata"]["mystnb"] == {"image": {"alt": "Loss of x per round."}}
    assert caption["cell_type"] == "markdown" and "caption\nLoss of `x` per round." in caption["source"]
    assert len(pages.code(coded(source))) == 1                        # not drawn, no caption


def test_front_matter_and_widgets_are_not_shown():
    page = NBS/"run.ipynb"
    assert pages.prose(markdown("<!--\n- skip_exec: true\n-->"), page) is None
    kept = pages.prose(markdown("# A\n> B\n\n<!--\n- skip_exec: true\n-->\n\nC `<!-- x -->`"), page)
    assert kept["source"] == "# A\n> B\n\n\nC `<!-- x -->`"
    cell, = pages.code(coded("x", [displaying(pages.WIDGET)]))
    assert cell["outputs"] == []
    nb = dict(cells=[markdown("---\nskip_exec: true\n---") | dict(cell_type="raw"), markdown("# A")])
    assert [c["source"] for c in pages.page_of(nb, page)["cells"]] == ["# A"]


@pytest.mark.parametrize("page, link, to", [
    ("nbs/methods/02_ga.ipynb", "../runs/06_protocols.ipynb", "../runs/06_protocols.ipynb"),
    ("nbs/methods/06_drift.ipynb", "#2.-FedProx", "#2-fedprox"),
    ("nbs/runs/03_records.ipynb", "02_metrics.ipynb#Over-seeds", "02_metrics.ipynb#over-seeds"),
    ("nbs/index.ipynb", "../reports", "results/comparison.md"),
    ("nbs/methods/03_fedka.ipynb", "../../reports/papers/fedka/fedka.ipynb#Tables", "../results/papers.md#fedka"),
    ("nbs/methods/03_fedka.ipynb", "../../reports/fidelity/fidelity.ipynb", "../results/fidelity.md"),
    ("nbs/methods/03_fedka.ipynb", "../../reports/ledger.csv", "../results/ledger.md"),
    ("nbs/methods/03_fedka.ipynb", "../../reports/README.md", "../results/measured.md"),
    ("nbs/index.ipynb", "../README.md", "index.ipynb"),
    ("nbs/methods/02_ga.ipynb", "../../tests/methods/test_ga.py", "../files/tests/methods/test_ga.py"),
    ("nbs/add.ipynb", "data", "data/index.md"),
    ("nbs/add.ipynb", "https://docs.pytorch.org", "https://docs.pytorch.org")])
def test_links_lead_into_the_site(page, link, to):
    used = set()
    text = "see [`this`]({}) and $[a](x)$"
    assert pages.linked(text.format(link), ROOT/page, used) == text.format(to)
    assert {p.name for p in used} == ({"test_ga.py"} if "tests" in link else set())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_cell_is_lost_on_the_way(path):
    "All prose, all code but what is hidden, and every picture of a notebook are on its page."
    nb = json.loads(path.read_text())
    page = pages.page_of(nb, path)
    shown = "\n".join(c["source"] for c in page["cells"])
    assert not re.search(r"^#\| ?(export|hide|slow|fig-cap|default_exp)", shown, re.M)
    count = lambda cells: sum(map(pages.is_picture, [o for c in cells for o in c.get("outputs", [])]))
    assert count(page["cells"]) == count(nb["cells"])
    left_out = 0
    for c in nb["cells"]:
        if c["cell_type"] != "code": continue
        named, source = pages.directives("".join(c["source"]))
        left_out += "hide" in named
        assert "hide" in named or source in shown
    assert left_out <= 5
    ids = [c["id"] for c in page["cells"]]
    assert len(set(ids)) == len(ids)


# ---- results

def reports(folder, files):
    "A folder of results: {path: text}."
    for name, text in files.items():
        path = folder/name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


COMPARED = """method,"accuracy, %",gain over fedavg,over its best rate,mark,seeds,steps,bytes,values
{}fedavg,60.0 ± 1.0,,,,3,1,1,lr 0.1
"fedavg, lr 0.3",59.0 ± 1.0,"-1.0 [-2.0, +0.0]","-1.0 [-2.0, +0.0]",,3,1,1,
"""


def compared(folder, several=15):
    "A comparison of one setting: FedAvg and some methods, of which `m0` is better and `t` needs the target."
    gains = [(i, 9 - i/2, "▲" if i == 0 else "") for i in range(several)]
    rows = "".join(f'm{i},61.0 ± 1.0,"+{gain} [+0.1, +9.0]","+{gain - 1} [-0.1, +8.0]",{mark},3,1,1,lr 0.1\n'
                   for i, gain, mark in gains)
    adapted = COMPARED.splitlines()[0] + '\nt (adapted),64.0 ± 1.0,"+4.0 [+3.0, +5.0]",'
    adapted += '"+3.0 [+2.0, +4.0]",▲,3,1,1,lr 0.1\n'
    setting = dict(table=dict(runs=48, rounds=[20], seeds=[0, 1, 2], targets=["a"], made="2026-11-27"))
    return reports(folder, {
        "comparison/photos/table.csv": COMPARED.format(rows), "comparison/photos/table_adapted.csv": adapted,
        "comparison/photos/setting.json": json.dumps(setting),
        "comparison/gains_short.png": "", "comparison/gains.png": "",
        "comparison/costs.csv": "setting,label,steps,bytes,seconds,flops\nphotos,m0,1,0.5,2,1\n"})


def test_the_comparison_is_read_in_two_minutes(tmp_path):
    "Three sentences, at most twelve rows, a picture; all of it from the files."
    folder = compared(tmp_path/"reports")
    lines = results_page.list_lines(folder)
    said = results_page.sentences(lines)
    assert said.startswith("16 methods ran beside FedAvg in 1 setting") and said.count(". ") == 2
    assert "better than FedAvg: `m0` (+8.0 points)." in said and "`t` (+3.0 points)." in said
    rows = results_page.best_rows(lines, results_page.read_if(folder/"comparison/costs.csv"))
    assert len(rows) == results_page.TOP and list(rows.method[:3]) == ["fedavg", "m0", "t (adapted)"]
    assert list(rows.loc[1, ["Photos", "bytes", "seconds"]]) == ["+9.0 ▲", "0.5", "2"]
    text = results_page.comparison(folder)
    assert "gains_short.png" in text and "gains.png" in text
    assert "48 runs, 20 rounds, seeds 0, 1 and 2" in text and "The other 6 rows" in text
    other = results_page.sentences(pd.concat([lines, lines.assign(inside=True, setting="own")]))
    assert "in 2 settings" in other and other.count(". ") == 2 and "On the clients' own domains, these" in other


def test_results_of_files_that_come_later(tmp_path):
    "The ledger with its counts, a paper's tables, records that are counted: each where its file exists."
    table = "method,dataset,target,printed,ours,difference,mark\n"
    folder = reports(tmp_path/"reports", {
        "papers/x/table1.csv": f"{table}A,d,t1,1.50,2.5,1.0,*\nA,d,t2,1,,,\nB,d,t1,3,3,0,\n",
        "papers/x/x.ipynb": "",
        "papers/x/table2.csv": f"{table}A,d,t1,1,,,\n", "records/d.jsonl": "{}\n{}\n", "records/hidden.csv": "a\n1\n",
        "README.md": "# R\n| [x](papers/x/x.ipynb) |\n",
        "studies.toml": '[x]\nwhat = "X, Table 1"\nfolder = "papers/x"\n'})
    made = results_page.pages(folder)
    assert [*made] == [f"{name}.md" for name in RESULTS]
    text = made["results/papers.md"]
    assert "## X" in text and "2 of 3 numbers with a run" in text and "2.50 / 1.50 (+1.00) *" in text
    assert "No run yet: Table 2 (1 number" in text and "x.ipynb" in text
    assert "2 runs are on record" in made["results/measured.md"] and not any("hidden" in t for t in made.values())
    states = ["reproduced"]*2 + ["not run"]*3 + ["not reproduced"]
    ledger = pd.DataFrame(dict(paper=["FDSE"]*4 + ["GA"]*2, printed=1., state=states, why="w", odd=""))
    ledger.to_csv(folder/"ledger.csv", index=False)
    counts = results_page.states(ledger).set_index("paper")
    assert list(counts.loc["FDSE"]) == ["2", "0", "2", "4"] and list(counts.loc["all"]) == ["2", "1", "3", "6"]
    assert 'data-filters="[2, 0]"' in results_page.ledger(folder)


def test_a_table_is_shown_whole(tmp_path):
    "Nothing of a cell is cut, and what looks like HTML is text; a link stays one."
    long = "why " + "x"*300
    frame = pd.DataFrame(dict(row=["a", '<a href="../x.html">x</a>'], why=[long, "p < .05"], key=["k", "l"]))
    html = results_page.table(frame, "w", filters=["key"], hidden=["why"], code=["key"])
    assert long in html and "p &lt; .05" in html and '<a href="../x.html">' in html and "<code>k</code>" in html
    assert 'data-filters="[2]" data-hidden="[1]"' in html


def test_every_method_has_its_line():
    "With its page, what it sends, its cost: as the registry and the measured table say."
    from fdgnb.federation.compose import METHODS
    rows = methods_page.rows()
    assert len(rows) == len(METHODS.names()) and set(methods_page.measured()) >= set(METHODS.names())
    assert (rows[["method", "idea", "subject", "sends", "target data", "cost", "bytes", "FLOPs"]] != "").all(axis=None)
    line = {re.sub("<.*?>", "", r.method): r for r in rows.itertuples()}
    assert line["fedavg"].bytes == "1" and line["scaffold"].sends == "model, stats" and line["local"].sends == "nothing"
    assert methods_page.sends(dict(down="model 0.51", up="model 0.51, scalars")) == "part of the model"
    assert methods_page.traffic(dict(down="features 0.5, model 1", up="model 1.5, scalars")) == "1.5"


@pytest.mark.parametrize("report", sorted(REPORTS.rglob("*.ipynb")), ids=lambda p: p.stem)
def test_links_of_a_report_lead_somewhere(report):
    cells, found = json.loads(report.read_text())["cells"], []
    for t in [pages.text_of(c) for c in cells if c["cell_type"] == "markdown"]:
        pages.outside_code(t, lambda part: found.extend(pages.LINK.findall(part)) or part)
    paths = [f.partition("#")[0] for f in found if not re.match(r"[a-z]+:", f)]
    assert not [p for p in paths if p and not (report.parent/p).exists()]


def test_results_as_they_are():
    "Every table, figure and executed report of reports/ is shown or linked."
    text = "".join(results_page.pages(used=set()).values())
    shown = [p.removeprefix("files/reports/") for p in results_page.copies() if p.endswith((".csv", ".png", ".ipynb"))]
    assert not [p for p in shown if p not in text]


# ---- reference

def test_a_docstring_is_shown_word_by_word():
    text = r"(5) a*b*c of x_i_j, |d| < [0, 1], `a*b`; $\sum u_i=1$, $ 3"
    assert api_pages.plain(text) == r"(5) a\*b\*c of x\_i\_j, \|d\| \< \[0, 1\], `a*b`; $\sum u_i=1$, \$ 3"


def test_reference_of_every_public_name():
    "Each on one page, under the task of its module; parameters and options as tables."
    found = api_pages.pages()
    for module, tree in api_pages.trees().items():
        if module == "fdgnb": continue
        task, _ = api_pages.task_of(module)
        for name in api_pages.public(tree): assert name in found[f"api/{task}.md"], (module, name)
        assert sum(f"```{{py:module}} {module}\n" in text for text in found.values()) == 1
    for name in api_pages.face(api_pages.trees()["fdgnb"]): assert f"`fdgnb.{name} <" in found["api/index.md"]
    methods = found["api/methods.md"]
    assert "{py:method} Method.loss(model, x, y, client)" in methods
    assert "`return self.criterion(model(x), y, client)`" in methods
    assert '{py:class} FedProx\n' in methods and "FedProx.loss" not in methods
    assert "| `eval_every` | `1` |" in found["api/train.md"] and "{py:function} fit(method" in found["api/train.md"]


# ---- the site as it was built

class Page(HTMLParser):
    "Ids, links, what is loaded, and the text of a page outside code and equations."
    VOID = "area base br col embed hr img input link meta source track wbr".split()
    SILENT = "pre code script style".split()

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded, self.texts, self.equations, self.silent = set(), [], [], [], 0, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        self.ids |= {a[k] for k in ("id", "name") if a.get(k)}
        if tag == "a" and "href" in a: self.links.append(a["href"])
        if tag == "link" and a.get("rel") not in ("canonical", "next", "prev", "index", "search"):
            self.loaded.append(a["href"])
        if tag in ("script", "img", "iframe", "source") and a.get("src"): self.loaded.append(a["src"])
        is_math = "math" in a.get("class", "").split()
        self.equations += is_math
        data = tag == "table" and "dataframe" in a.get("class", "")
        silent = self.silent or is_math or data or tag in self.SILENT
        if silent and tag not in self.VOID: self.silent.append(tag)

    def handle_endtag(self, tag):
        if self.silent and self.silent[-1] == tag: self.silent.pop()

    def handle_data(self, data):
        if not self.silent: self.texts.append(data)


def older():
    "A source that is newer than the site, or None; of the records the site shows the number alone."
    tops = [(NBS, "*.ipynb"), (REPORTS, "*"), (ROOT/"docs", "*"), (ROOT/"fdgnb", "*.py")]
    found = [p for top, kind in tops for p in top.rglob(kind) if p.is_file() and "__pycache__" not in p.parts
             and REPORTS/"records" not in p.parents]
    made = BUILT.stat().st_mtime
    return next((p.relative_to(ROOT) for p in found if p.stat().st_mtime > made), None)


@pytest.fixture(scope="module")
def site():
    "{page: what is in it}; where `make docs` calls, it fails instead of being skipped."
    refuse = pytest.fail if os.environ.get("FDGNB_SITE") else pytest.skip
    if not BUILT.exists(): refuse("the site is not built: make docs")
    if newer := older(): refuse(f"the site is older than {newer}: make docs")
    return {p.relative_to(SITE).as_posix(): Page(p) for p in SITE.rglob("*.html") if "_static" not in p.parts}


def test_every_notebook_has_its_page(site):
    assert {str(Path(pages.place(p)).with_suffix(".html")) for p in NOTEBOOKS} <= set(site)
    assert {*(f"{r}.html" for r in RESULTS), "methods/list.html", "api/index.html", "search.html"} <= set(site)
    assert len([name for name in site if name.startswith("results/")]) == len(RESULTS)


def test_results_load_fast(site):
    for name in RESULTS:
        if name != "results/ledger": assert (SITE/f"{name}.html").stat().st_size < 300_000, name


def test_every_room_stands_in_the_side_bar_of_every_page(site):
    rooms = {p.parent.name for p in NOTEBOOKS if p.parent.parent == NBS}
    for name, page in site.items():
        if name in ("search.html", "genindex.html", "py-modindex.html"): continue
        paths = [urlsplit(link).path for link in page.links]          # of a page to itself: empty
        there = {(SITE/name).resolve(), *(((SITE/name).parent/path).resolve() for path in paths if path)}
        assert {(SITE/r/"index.html").resolve() for r in rooms} <= there, name


def test_no_broken_link(site):
    "Every link and everything loaded, with its anchor, over the whole site."
    broken, followed = [], 0
    for name, page in site.items():
        for link in [*page.links, *page.loaded]:
            url = urlsplit(link)
            if url.scheme in ("http", "https", "mailto", "data"): continue
            followed += 1
            path = unquote(url.path)
            target = (SITE/name).parent/path if path else SITE/name
            there = target.resolve()
            known = site.get(there.relative_to(SITE).as_posix()) if there.is_relative_to(SITE) else None
            if not there.is_file(): broken.append((name, link))
            elif known and url.fragment and unquote(url.fragment) not in known.ids:
                broken.append((name, link))
    assert not broken
    assert followed > 1000


def test_nothing_is_loaded_from_elsewhere(site):
    outside = [(n, u) for n, page in site.items() for u in page.loaded if re.match(r"(https?:)?//", u)]
    elsewhere = re.compile(r"url\(['\"]?(?:https?:)?//")
    assert not outside and not [p.name for p in SITE.rglob("*.css") if elsewhere.search(p.read_text())]


def test_no_raw_equation_or_directive(site):
    raw = re.compile(r"\$\$|\\(frac|sum|theta|mathcal|begin|tag|left|nabla)\b|#\| ?\w|skip_exec|\]\(\S+\)")
    found = [(n, m[0], t[:80]) for n, page in site.items() for t in page.texts for m in [raw.search(t)] if m]
    assert not found
    assert sum(page.equations for page in site.values()) > 300


@pytest.fixture(scope="module")
def chromium(site):
    "(a browser, the site's address)."
    if not program(): pytest.skip("no Chromium here")
    if not find_spec("websocket"): pytest.skip("the package websocket-client is not installed: make docs")
    with served(SITE) as address, browser() as b: yield b, address


def well(b, address):
    "Nothing red in the console, nothing asked of another host."
    assert not b.errors
    assert not [u for u in b.requests if not u.startswith((address, "data:", "blob:", "about:"))]


SAMPLE = "index run methods/index methods/list methods/01_fedsb api/index api/train search".split() + RESULTS
CUT = "[...document.querySelectorAll('.cell_input pre')].some(p => p.scrollWidth > p.clientWidth + 1)"
SET = "['mjx-container', 'mjx-merror'].map(name => document.querySelectorAll(name).length)"


@pytest.mark.parametrize("width, dark", [(1600, False), (1600, True), (400, False), (400, True)],
                         ids=("wide", "wide, dark", "narrow", "narrow, dark"))
def test_pages_in_the_browser(chromium, site, width, dark):
    """No error, no other host; all equations set; nothing wider than the screen, on a wide one no code.

    Every page with equations is opened once, a sample of all pages on each screen."""
    b, address = chromium
    b.screen(width, dark=dark)
    first = (width, dark) == (1600, False)
    for name in [n for n in site if n.removesuffix(".html") in SAMPLE or first and site[n].equations]:
        b.open(f"{address}/{name}")
        well(b, address)
        assert b.js(SET) == [site[name].equations, 0], name
        assert b.js("document.documentElement.scrollWidth") <= width, name
        assert b.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        if width > 1500: assert not b.js(CUT), name


ROWS = "[...document.querySelectorAll('{} tbody tr')].map(r => r.cells[{}].textContent)"


TYPED = "(i => {{ i.value = '{}'; i.dispatchEvent(new Event('input', {{bubbles: true}})) }})({})"
CHOSEN = """(value => {{
    const list = document.querySelector('select[aria-label="{1}"]');
    list.value = value;
    list.dispatchEvent(new Event('change', {{bubbles: true}}));
}})('{0}')"""
COUNT = "document.querySelector('.filters output').textContent"


@pytest.mark.parametrize("start", ("served", "a folder"))
def test_the_ledger_sorts_and_filters(chromium, start):
    "Opened from a server, and as a file."
    b, address = chromium
    b.screen(1600)
    b.open(f"{address if start == 'served' else SITE.as_uri()}/results/ledger.html")
    assert not b.errors
    book = pd.read_csv(REPORTS/"ledger.csv")
    head = "[...document.querySelectorAll('#table-ledger thead th')]"
    at = b.js(f"{head}.findIndex(th => th.textContent.trim() === 'printed')")
    rows = lambda: b.js(ROWS.format("#table-ledger", at))
    for order, reverse in (("ascending", False), ("descending", True)):
        b.js(f"{head}[{at}].click()")
        b.wait(f"document.querySelector('#table-ledger th[aria-sort={order}]')")
        assert [float(v) for v in rows()] == sorted(book.printed, reverse=reverse)[:25]
    paper = book.paper.iloc[0]
    b.js(CHOSEN.format("not run", "state"))
    b.js(CHOSEN.format(paper, "paper"))
    left = ((book.paper == paper) & (book.state == "not run")).sum()
    b.wait(f"{COUNT} === '{left} of {len(book)}: {left} not run'")
    b.js(CHOSEN.format("", "state"))
    b.js(TYPED.format(book.row.iloc[0], "document.querySelector('.dt-search input')"))
    b.wait(f"!{COUNT}.startsWith('{left} of')")


def test_methods_are_found_by_what_they_need(chromium):
    b, address = chromium
    b.open(f"{address}/methods/list.html")
    rows = methods_page.rows()
    b.wait(f"{COUNT} === '{len(rows)} of {len(rows)}'")
    b.js(CHOSEN.format("none", "target data"))
    b.js(CHOSEN.format("as FedAvg", "cost"))
    left = ((rows["target data"] == "none") & (rows.cost == "as FedAvg")).sum()
    b.wait(f"{COUNT} === '{left} of {len(rows)}'")
    well(b, address)


@pytest.mark.parametrize("width, seen", [(1200, True), (1600, True), (500, False)])
def test_contents_of_a_page_beside_it(chromium, width, seen):
    b, address = chromium
    b.screen(width)
    b.open(f"{address}/methods/02_ga.html")
    box = b.js("(r => [r.left, r.width])(document.querySelector('.bd-sidebar-secondary').getBoundingClientRect())")
    assert (0 < box[0] < width and box[1] > 100) is seen
    assert b.js("document.documentElement.scrollWidth") <= width


OVERLAP = """[...document.querySelectorAll('div.math')].filter(div => {
    const tag = div.querySelector('[data-labels]'), body = div.querySelector('[data-table] [data-mml-node=mlabeledtr]');
    if (!tag || !body) return false;
    const [t, e] = [tag, body].map(node => node.getBoundingClientRect());
    return t.left < e.right - 1 && e.left < t.right - 1 && t.top < e.bottom && e.top < t.bottom;
}).length"""


# none begins left of where its box can be scrolled to
BEGINS = """[...document.querySelectorAll('div.math mjx-container')].every(
    c => c.getBoundingClientRect().left >= c.closest('div.math').getBoundingClientRect().left - 1)"""


def test_no_number_lies_on_its_equation(chromium, site):
    "On a phone held upright."
    b, address = chromium
    b.screen(500)
    for name in [p for p in site if p.startswith("methods/") and "tag{" in (SITE/p).read_text()]:
        b.open(f"{address}/{name}")
        assert b.js(OVERLAP) == 0, name
        assert b.js("document.querySelectorAll('[data-labels]').length"), name
        assert b.js(BEGINS), name


CELLS = ["-21.2 [-25.0, -17.9]", "", "+12.0 [8.1, 15.9]", "+3.5", "1,204 ± 3", "63.1 (1)"]
DRESSED = """(cells => {
    const table = Object.assign(document.createElement("table"), {className: "results", id: "trial"});
    table.innerHTML = "<thead><tr><th>gain</th><th>name</th></tr></thead><tbody>" +
        cells.map(c => `<tr><td>${c}</td><td>3 of ${c.length}</td></tr>`).join("") + "</tbody>";
    table.dataset.hidden = "[1]";
    document.querySelector("article").append(table);
    dress(table);
})(%s)"""


def test_gains_with_intervals_sort_by_their_number(chromium):
    "And a hidden column is not shown."
    b, address = chromium
    b.screen(1600)
    b.open(f"{address}/results/comparison.html")
    b.js(DRESSED % json.dumps(CELLS))
    for order, wanted in (("ascending", ["", *[CELLS[i] for i in (0, 3, 2, 5, 4)]]),
                          ("descending", [*[CELLS[i] for i in (4, 5, 2, 3, 0)], ""])):
        b.js("document.querySelector('#trial thead th').click()")
        b.wait(f"document.querySelector('#trial th[aria-sort={order}]')")
        assert b.js(ROWS.format("#trial", 0)) == wanted
    assert b.js("document.querySelectorAll('#trial td[data-order]').length") == len(CELLS)
    assert b.js("document.querySelectorAll('#trial thead th').length") == 1
    assert not b.errors


def test_search_finds_scaffold(chromium):
    b, address = chromium
    b.open(f"{address}/search.html?q=SCAFFOLD")
    b.wait("document.querySelectorAll('#search-results li a').length > 2")
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href').split('?')[0])"
    found = b.js(links)
    plain = [link for link in found if "#" not in link]
    assert any("methods/06_drift.html" in link for link in plain[:3]) and len(plain) == len(set(plain))
    assert not [link for link in plain if link.startswith(("api/", "reports/", "results/ledger"))]
    well(b, address)


def test_code_folds(chromium):
    "Cells tagged hide-input show their code on a click."
    b, address = chromium
    b.open(f"{address}/run.html")
    assert b.js("document.querySelectorAll('details.hide').length") >= 3
    seen = "document.querySelector('details.hide pre').checkVisibility()"
    assert b.js(seen) is False
    b.js("document.querySelector('details.hide summary').click()")
    b.wait(seen)
