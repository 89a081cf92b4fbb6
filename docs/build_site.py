"""The site: `python docs/build_site.py` writes its sources to _docs/source and builds _docs/html."""
import importlib.util, json, shutil, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))      # the package, for the list of methods
import api_pages, methods_page, results_page
from notebook_pages import NBS, REPORTS, ROOT, page_of, place, text_of, title_of

DOCS, OUT = ROOT/"docs", ROOT/"_docs"
SOURCE, HTML = OUT/"source", OUT/"html"
# a room's name and what is in it; a folder that is not named here goes last, under its own name
ROOMS = {
    "core": ("Core", "Notation, errors, seeds; arithmetic of models, the ledger; every option; backbones."),
    "data": ("Data", "Domains, data sets by name and of your own, random changes of images, partitions."),
    "federation": ("Federation", "FedAvg derived: the loop and its hooks, sums of methods, evaluation."),
    "runs": ("Runs", "One run: arguments, selection rules, records, figures, the papers' protocols."),
    "methods": ("Other methods", "The baselines of the five systems' tables, each derived and checked."),
    "flower": ("Flower", "The same run on other machines: what travels, and who answers."),
    "experiments": ("Experiments", "Any methods, targets and seeds by one call; statistics."),
    "tables": ("Tables", "The papers' tables again, and all methods side by side.")}
# the parts of the side bar, by stem; what stands in none of them is internal: out of the search, behind one link
LEARN = {"federation/01_loop": "The loop", "methods/06_drift": "Client drift", "methods/01_fedsb": "FedSB",
         "methods/02_ga": "FedDG-GA", "methods/03_fedka": "FedKA", "methods/04_fedbr": "FedBR",
         "methods/05_fdse": "FDSE",
         "methods/index": "Other methods", "methods/list": "All methods"}
USE = {"run": "One run", "own_data": "Your own data", "add": "Your own method", "compare": "A comparison",
       "deploy": "Several machines", "command": "Command line"}
RESULTS = {"findings": "Findings", "tables/16_ours": "Which method?", "results/fidelity": "Paper and code",
           "results/papers": "The papers' tables", "results/first_runs": "First runs", "results/protocol": "Protocol",
           "results/measured": "How it was measured"}
REFERENCE = {"api/index": "By task", "api/modules": "By module", "internals": "Internals"}
ALL_METHODS, INTERNALS = "methods/list.md", "internals.md"
UNSEARCHED = "---\nnosearch: true\n---\n\n"                                     # a list of titles: no hit of its own
# notebooks that only a report executes, and the copy of reports/ that has their outputs
EXECUTED = {"tables/02_fidelity": "fidelity/fidelity", "tables/16_ours": "comparison/comparison",
            "tables/11_fedsb": "papers/fedsb/fedsb", "tables/12_ga": "papers/ga/ga",
            "tables/13_fedka": "papers/fedka/fedka", "tables/14_fedbr": "papers/fedbr/fedbr",
            "tables/15_fdse": "papers/fdse/fdse"}


def stem_of(page): return page.relative_to(NBS).with_suffix("").as_posix()                  # as methods/05_fdse
def parts_of(page, pages): return [p for p in pages if whole_of(p, pages) == page]          # in reading order
def without_suffix(path): return path.removesuffix(".ipynb").removesuffix(".md")
def room_path(room): return "core.md" if room == "core" else f"{room}/index.md"


def notebooks(folder):
    "{path: notebook} of all notebooks below a folder, in reading order."
    found = [p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    read = {p: read_notebook(p) for p in found}
    return {p: read[p] for p in sorted(found, key=lambda p: reading_order(p, read))}


def read_notebook(path):
    "A notebook; of one that only a report executes, with the outputs of the report's copy."
    nb = json.loads(path.read_text())
    if stem_of(path) not in EXECUTED: return nb
    copy = json.loads((REPORTS/f"{EXECUTED[stem_of(path)]}.ipynb").read_text())
    outputs = {c["id"]: c["outputs"] for c in copy["cells"] if "outputs" in c}
    for cell in nb["cells"]:
        if "outputs" in cell: cell["outputs"] = outputs.get(cell["id"], [])
    return nb


def whole_of(path, pages):
    "The page whose part a page is: of 05_fdse_network 05_fdse; None for others."
    return next((w for w in pages if w.parent == path.parent and path.stem.startswith(f"{w.stem}_")), None)


def reading_order(path, read):
    "Pages by name; parts (05_fdse_network) behind the whole, in the order of its links to them."
    whole = whole_of(path, read)
    if whole is None: return path.parent, path.stem, 0, ""
    text = "".join(text_of(c) for c in read[whole]["cells"] if c["cell_type"] == "markdown")
    at = text.find(path.name) + 1 or len(text) + 1
    return path.parent, whole.stem, at, path.stem


def room_of(page):
    "The room of a page of nbs/; '' for the front page and those beside it."
    inside = page.relative_to(NBS)
    if len(inside.parts) > 1: return inside.parts[0]
    return "core" if inside.stem[0].isdigit() else ""


def rooms(pages):
    "{room: its pages}, the floors first."
    found = {}
    for p in pages: found.setdefault(room_of(p), []).append(p)
    order = [*ROOMS, *sorted(set(found) - {*ROOMS, ""})]
    return {r: found[r] for r in order if r in found}


def toctree(entries, caption=""):
    "A table of contents that only the side bar shows."
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join([*head, "", *entries, "```", ""])


def contents_of(page, pages):
    "The table of contents of a page with parts; '' of one without."
    parts = [p.stem for p in parts_of(page, pages)]
    return toctree(parts) if parts else ""


def is_internal(page):
    "Whether a page stands in no part of the side bar but the last."
    stem = stem_of(page)
    if stem in ("index", *LEARN, *USE, *RESULTS): return False
    return room_of(page) != "methods"


def room_page(room, pages, nbs):
    "A room's front page: every page of it with its quotation."
    name, what = ROOMS.get(room, (room.replace("_", " ").capitalize(), ""))
    here = "" if room == "core" else f"{room}/"
    lines = [f"# {name}", f"> {what}" if what else "", ""]
    if room == "methods":
        lines += ["[All methods in one table](list.md), with filters.", ""]
        pages = [p for p in pages if not (stem_of(p) in LEARN or whole_of(p, pages))]
    for p in pages:
        title, quotation = title_of(nbs[p])
        lines += [f"[{title}]({place(p).removeprefix(here)})", f": {quotation}", ""]
    further = [p for p in pages if stem_of(p) not in (*LEARN, *RESULTS)]
    return UNSEARCHED + "\n".join([*lines, toctree([without_suffix(place(p).removeprefix(here)) for p in further])])


def internals_page(found):
    "How the package is built, room by room: the pages of core, data, federation, runs, flower, experiments, tables."
    lines = ["# Internals", "> How the package is built: one notebook a module, room by room.", ""]
    rooms_shown = [room for room in found if room != "methods"]
    for room in rooms_shown:
        name, what = ROOMS.get(room, (room, ""))
        lines += [f"[{name}]({room_path(room)})", f": {what} {len(found[room])} pages.", ""]
    return UNSEARCHED + "\n".join([*lines, toctree([without_suffix(room_path(room)) for room in rooms_shown])])


def contents(there):
    "The tables of contents of the front page, of those pages that are there."
    parts = {"Learn": LEARN, "Use": USE, "Results": RESULTS, "Reference": REFERENCE}
    return "\n".join(toctree([f"{title} <{stem}>" for stem, title in part.items() if stem in there], caption)
                     for caption, part in parts.items())


def mathjax():
    "{place below the site's sources: file} of MathJax: the program, and what rare commands load."
    top = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent/"static/mathjax"
    parts = [top/"tex-svg.js", *(top/"input/tex/extensions").rglob("*")]
    return {f"_static/mathjax/{p.relative_to(top).as_posix()}": p for p in parts if p.is_file()}


def sources():
    "{path below the site's sources: text, or the file to copy} of the whole site."
    nbs, used = notebooks(NBS), set()
    pages = {path: page_of(nb, path, api_pages.modules(), used) for path, nb in nbs.items()}
    for page in pages.values(): api_pages.refer(page["cells"])
    found = rooms(nbs)
    out = {room_path(r): room_page(r, ps, nbs) for r, ps in found.items()} | {INTERNALS: internals_page(found)}
    out |= {ALL_METHODS: methods_page.page()} | api_pages.pages() | results_page.pages(used=used)
    there = {without_suffix(at) for at in (*out, *map(place, pages))}
    for path, page in pages.items():
        if is_internal(path): page["metadata"]["nosearch"] = True
        toc = contents(there) if path == NBS/"index.ipynb" else contents_of(path, nbs)
        if toc: page["cells"].append(dict(cell_type="markdown", id="contents", metadata={}, source=toc))
        out[place(path)] = json.dumps(page, ensure_ascii=False)
    out |= results_page.copies() | results_page.pictures() | results_page.bundle() | mathjax()
    return out | {f"files/{f.relative_to(ROOT).as_posix()}": f for f in used}


def write(wanted, folder):
    "Make a folder hold just what is wanted; a file that is right already is left alone: Sphinx skips it."
    for path, what in wanted.items():
        to, new = folder/path, what.read_bytes() if isinstance(what, Path) else what.encode()
        if to.exists() and to.read_bytes() == new: continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(new)
    for p in sorted(folder.rglob("*"), reverse=True):
        if p.is_file() and p.relative_to(folder).as_posix() not in wanted: p.unlink()
        elif p.is_dir() and not any(p.iterdir()): p.rmdir()


def remove_old(wanted):
    "Pages that the site had before and has no more: Sphinx leaves them."
    kept = {Path(w).with_suffix(".html").as_posix() for w in wanted} | {"search.html"}
    for p in HTML.rglob("*.html"):
        if not {"_static", "_sources"} & set(p.parts) and p.relative_to(HTML).as_posix() not in kept: p.unlink()


def main(fresh=False):
    began = time.perf_counter()
    if fresh: shutil.rmtree(OUT, ignore_errors=True)
    wanted = sources()
    write(wanted, SOURCE)
    # what changed is read, every page is written: a new page stands in the side bar of all
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-c", DOCS, "-j", "2", "-W", "--keep-going"]
    rc = subprocess.run([*command, "-a", "-q", "-d", OUT/"doctrees", SOURCE, HTML]).returncode
    if rc: sys.exit(f"the site was not built: Sphinx ended with {rc}")
    remove_old(wanted)
    (OUT/"built").touch()
    pages, size = list(HTML.rglob("*.html")), sum(p.stat().st_size for p in HTML.rglob("*") if p.is_file())
    took = f"{len(pages)} pages, {size/2**20:.0f} MB, {time.perf_counter() - began:.0f} s"
    print(f"{took}: {HTML.relative_to(ROOT)}/index.html")


if __name__ == "__main__": main(fresh="--fresh" in sys.argv[1:])
