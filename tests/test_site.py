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
import api_pages, notebook_pages as pages, results_page
SITE, BUILT = ROOT/"_docs/html", ROOT/"_docs/built"
NBS, REPORTS = ROOT/"nbs", ROOT/"reports"
NOTEBOOKS = [p for top in (NBS, REPORTS) for p in sorted(top.rglob("*.ipynb"))
             if ".ipynb_checkpoints" not in p.parts]


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
    assert cell["source"] == "x = 1" and cell["metadata"] == {"tags": ["hide-input"]} and cell["id"] == "c"


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
    ("reports/papers/fedka/fedka.ipynb", "../../../nbs/methods/03_fedka.ipynb", "../../../methods/03_fedka.ipynb"),
    ("nbs/index.ipynb", "../reports", "results.md"),
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


def test_results_of_files_that_come_later(tmp_path):
    "The ledger with its counts, tables in folders, records that are counted: each where its file exists."
    folder = reports(tmp_path/"reports", {
        "papers/x/table1.csv": "a,b\n1.50,x\n", "papers/x/x.ipynb": "", "records/d.jsonl": "{}\n{}\n",
        "records/hidden.csv": "a\n1\n", "README.md": "# R\n| [x](papers/x/x.ipynb) | [papers/x](papers/x) |\n"})
    notebooks = {folder/"papers/x/x.ipynb": dict(cells=[markdown("# X\n> What.")])}
    text = results_page.page(notebooks, folder)
    assert "## Papers, x" in text and "### Table 1" in text and "1.50" in text and "x.ipynb): What." in text
    assert "(results-of-papers-x)=" in text and "[papers/x](#results-of-papers-x)" in text
    assert "2 runs are on record" in text and "hidden" not in text and "ledger" not in text
    states = ["reproduced"]*2 + ["not run"]*3 + ["not reproduced"]
    ledger = pd.DataFrame(dict(paper=["FDSE"]*4 + ["GA"]*2, printed=1., state=states))
    ledger.to_csv(folder/"ledger.csv", index=False)
    text = results_page.page(notebooks, folder)
    assert "| | reproduced | not reproduced | not run | all |" in text
    assert "| FDSE | 2 | 0 | 2 | 4 |" in text and "| **all** | 2 | 1 | 3 | 6 |" in text
    assert text.index("replication ledger") < text.index("## Papers, x")


def test_what_all_rows_share_is_said_once_and_wide_tables_fold(tmp_path):
    "Nothing of a cell is cut."
    long = "why " + "x"*300
    frame = pd.DataFrame(dict(row=[*"abc"], metric="accuracy", why=long, empty="", n=[*"123"]))
    same = dict(metric="accuracy", why=long, empty="")
    assert results_page.constant(frame) == same
    assert results_page.said_once(same) == f"In every row: metric `accuracy`, why `{long}`; empty: empty"
    more = {f"c{i}": "1234567890" for i in range(7)}
    wide = frame.drop(columns="empty").assign(why=[long, "b", "c"], metric=[*"abc"], **more)
    assert results_page.folded(wide) == ["metric"] and results_page.folded(frame) == []
    html = results_page.table(wide, "w")
    assert long in html and 'data-folded="[1]"' in html


def test_two_reports_of_one_title_are_told_apart(tmp_path):
    nb = lambda title: dict(cells=[dict(source=f"# {title}\n> what")])
    made = {"fedka": "FedKA", "fedka_table2": "FedKA", "fed": "Other", "ledger": "Ledger"}
    named = pages.titles({tmp_path/f"{k}.ipynb": nb(t) for k, t in made.items()})
    assert {p.stem: t for p, t in named.items()} == made | {"fedka_table2": "FedKA: table 2"}


@pytest.mark.parametrize("report", sorted(REPORTS.rglob("*.ipynb")), ids=lambda p: p.stem)
def test_links_of_a_report_lead_somewhere(report):
    cells, found = json.loads(report.read_text())["cells"], []
    for t in [pages.text_of(c) for c in cells if c["cell_type"] == "markdown"]:
        pages.outside_code(t, lambda part: found.extend(pages.LINK.findall(part)) or part)
    paths = [f.partition("#")[0] for f in found if not re.match(r"[a-z]+:", f)]
    assert not [p for p in paths if p and not (report.parent/p).exists()]


def test_results_as_they_are():
    "Every table, figure and executed report of reports/ is on the page."
    notebooks = {p: json.loads(p.read_text()) for p in results_page.files(REPORTS, ".ipynb")}
    text = results_page.page(notebooks)
    targets = re.findall(r"^\((.+)\)=$", text, re.M)
    assert len(targets) == len(set(targets)), "a link's target stands twice: Sphinx ends there"
    for f in results_page.files(REPORTS, ".csv", ".png", ".ipynb"):
        assert f.relative_to(REPORTS).as_posix() in text, f.name


# ---- reference

def test_a_docstring_is_shown_word_by_word():
    text = r"(5) a*b*c of x_i_j, |d| < [0, 1], `a*b`; $\sum u_i=1$, $ 3"
    assert api_pages.plain(text) == r"(5) a\*b\*c of x\_i\_j, \|d\| \< \[0, 1\], `a*b`; $\sum u_i=1$, \$ 3"


def test_reference_of_every_public_name():
    found = api_pages.pages()
    for module, tree in api_pages.trees().items():
        text = found["api/index.md" if module == "fdgnb" else f"api/{module}.md"]
        for name in api_pages.public(tree) if module != "fdgnb" else api_pages.face(tree): assert name in text
    loop = found["api/fdgnb.federation.loop.md"]
    assert "{py:method} Method.loss(model, x, y, client)" in loop
    assert "`return self.criterion(model(x), y, client)`" in loop
    assert "| `eval_every` | `1` |" in found["api/fdgnb.settings.md"]


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
             and REPORTS/results_page.RECORDS not in p.parents]
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
    assert {"results.html", "api/index.html", "search.html"} <= set(site)


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


SAMPLE = """index results run methods/index methods/01_fedsb reports/fidelity/fidelity api/index search
    api/fdgnb.federation.loop""".split()
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
        older = name.startswith("reports/")                           # than the rule of 110 columns
        if width > 1500 and not older: assert not b.js(CUT), name


ROWS = "[...document.querySelectorAll('{} tbody tr')].map(r => r.cells[{}].textContent)"


@pytest.mark.parametrize("start", ("served", "a folder"))
def test_a_table_sorts_and_filters(chromium, start):
    "Opened from a server, and as a file."
    b, address = chromium
    b.screen(1600)
    b.open(f"{address if start == 'served' else SITE.as_uri()}/results.html")
    assert not b.errors
    tables = b.js("document.querySelectorAll('table.results').length")
    assert tables == len(results_page.files(REPORTS, ".csv"))
    assert b.js("document.querySelectorAll('table.results.dataTable').length") == tables
    table, frame = "#table-papers-fedka-table2", pd.read_csv(REPORTS/"papers/fedka/table2.csv")
    column = b.js(f"[...document.querySelectorAll('{table} thead th')].findIndex("
                  "th => th.textContent.trim() === 'printed')")
    click = f"document.querySelectorAll('{table} thead th')[{column}].click()"
    rows = lambda i: b.js(ROWS.format(table, i))
    b.js(click)
    b.wait(f"document.querySelector('{table} th[aria-sort=ascending]')")
    assert [float(v) for v in rows(column)] == sorted(frame.printed)[:10]
    b.js(click)
    b.wait(f"document.querySelector('{table} th[aria-sort=descending]')")
    assert [float(v) for v in rows(column)] == sorted(frame.printed, reverse=True)[:10]
    typed = "(i => {{ i.value = '{}'; i.dispatchEvent(new Event('input', {{bubbles: true}})) }})({})"
    every = f"document.querySelector('{table}').closest('.dt-container').querySelector('.dt-search input')"
    b.js(typed.format("dslr", every))
    b.wait(ROWS.format(table, 1) + ".every(t => t === 'dslr')")
    assert len(rows(1)) == min(10, (frame.target == "dslr").sum())
    b.js(typed.format("", every))
    b.js(typed.format("FedKA", f"document.querySelector('{table} tfoot input')"))
    b.wait(ROWS.format(table, 0) + ".every(t => t === 'FedKA')")
    assert len(rows(0)) == min(10, frame.method.str.contains("FedKA").sum())


CELLS = ["-21.2 [-25.0, -17.9]", "", "+12.0 [8.1, 15.9]", "+3.5", "1,204 ± 3", "63.1 (1)"]
DRESSED = """(cells => {
    const table = Object.assign(document.createElement("table"), {className: "results", id: "trial"});
    table.innerHTML = "<thead><tr><th>gain</th><th>name</th></tr></thead><tbody>" +
        cells.map(c => `<tr><td>${c}</td><td>3 of ${c.length}</td></tr>`).join("") + "</tbody>";
    table.dataset.folded = "[1]";
    document.querySelector("article").append(table);
    dress(table);
})(%s)"""


def test_gains_with_intervals_sort_by_their_number(chromium):
    "And a column that is folded away comes back by its button."
    b, address = chromium
    b.screen(1600)
    b.open(f"{address}/results.html")
    b.js(DRESSED % json.dumps(CELLS))
    for order, wanted in (("ascending", ["", *[CELLS[i] for i in (0, 3, 2, 5, 4)]]),
                          ("descending", [*[CELLS[i] for i in (4, 5, 2, 3, 0)], ""])):
        b.js("document.querySelector('#trial thead th').click()")
        b.wait(f"document.querySelector('#trial th[aria-sort={order}]')")
        assert b.js(ROWS.format("#trial", 0)) == wanted
    assert b.js("document.querySelectorAll('#trial td[data-order]').length") == len(CELLS)
    heads = "document.querySelectorAll('#trial thead th').length"
    button = "[...document.querySelectorAll('button.fold')].at(-1)"
    assert b.js(heads) == 1 and b.js(f"{button}.textContent") == "show also name"
    b.js(f"{button}.click()")
    assert b.js(heads) == 2 and b.js("document.querySelectorAll('#trial tfoot input').length") == 2
    assert not b.errors


def test_search_finds_scaffold(chromium):
    b, address = chromium
    b.open(f"{address}/search.html?q=SCAFFOLD")
    b.wait("document.querySelectorAll('#search-results li a').length > 2")
    found = b.js("[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))")
    assert any("methods/06_drift.html" in link for link in found)
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
