"""The site: `python docs/build_site.py` writes its sources to _docs/source and builds _docs/html."""
import importlib.util, json, shutil, subprocess, sys, time
from pathlib import Path
import api_pages, results_page
from notebook_pages import NBS, REPORTS, ROOT, module_of, page_of, place, title_of, titles

DOCS, OUT = ROOT/"docs", ROOT/"_docs"
SOURCE, HTML = OUT/"source", OUT/"html"
# a room's name and what is in it; a folder that is not named here goes last, under its own name
ROOMS = {
    "core": ("Core", "Notation, errors, seeds; arithmetic of models, the ledger; every option; backbones."),
    "data": ("Data", "Domains, data sets by name and of your own, random changes of images, partitions."),
    "federation": ("Federation", "FedAvg derived: the loop and its hooks, sums of methods, evaluation."),
    "runs": ("Runs", "One run: arguments, selection rules, records, figures, the papers' protocols."),
    "methods": ("Methods", "The five systems and the baselines of their tables, each derived and checked."),
    "flower": ("Flower", "The same run on other machines: what travels, and who answers."),
    "experiments": ("Experiments", "Any methods, targets and seeds by one call; statistics."),
    "tables": ("Tables", "The papers' tables again, and all methods side by side.")}
FIRST = ("run", "compare", "command", "own_data", "deploy", "add")              # beside the front page, in this order


def notebooks(folder):
    "{path: notebook} of all notebooks below a folder, in reading order."
    found = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    return {p: json.loads(p.read_text()) for p in found}


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


def without_suffix(path): return path.removesuffix(".ipynb").removesuffix(".md")


def room_page(room, pages, nbs):
    "A room's front page: every page of it with its quotation."
    name, what = ROOMS.get(room, (room.replace("_", " ").capitalize(), ""))
    here = "" if room == "core" else f"{room}/"
    lines = [f"# {name}", f"> {what}" if what else "", ""]
    for p in pages:
        title, quotation = title_of(nbs[p])
        lines += [f"[{title}]({place(p).removeprefix(here)})", f": {quotation}", ""]
    return "\n".join([*lines, toctree([without_suffix(place(p).removeprefix(here)) for p in pages])])


def room_path(room): return "core.md" if room == "core" else f"{room}/index.md"


def contents(pages, reports):
    "The tables of contents of the front page."
    top = [p.stem for p in pages if room_of(p) == "" and p.stem != "index"]
    top = [s for s in FIRST if s in top] + [s for s in top if s not in FIRST]
    executed = [f"{title}, executed <{without_suffix(place(p))}>" for p, title in titles(reports).items()]
    fronts = [without_suffix(room_path(r)) for r in rooms(pages)]
    return "\n".join([toctree(top, "Begin"), toctree(fronts, "Notebooks"),
                      toctree(["results", *executed], "Results"), toctree(["api/index"], "Reference")])


def mathjax():
    "{place below the site's sources: file} of MathJax: the program, its fonts, and what rare commands load."
    top = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent/"static/mathjax"
    folders = [top/"output/chtml/fonts", top/"input/tex/extensions"]
    parts = [top/"tex-chtml.js", *(p for f in folders for p in f.rglob("*"))]
    return {f"_static/mathjax/{p.relative_to(top).as_posix()}": p for p in parts if p.is_file()}


def sources():
    "{path below the site's sources: text, or the file to copy} of the whole site."
    nbs, reports, used = notebooks(NBS), notebooks(REPORTS), set()
    api = api_pages.pages()
    modules = {m for m in map(module_of, nbs.values()) if f"api/{m}.md" in api}
    out = {}
    for path, nb in {**nbs, **reports}.items():
        page = page_of(nb, path, modules if path in nbs else (), used)
        if path == NBS/"index.ipynb":
            toc = contents(nbs, reports)
            page["cells"].append(dict(cell_type="markdown", id="contents", metadata={}, source=toc))
        out[place(path)] = json.dumps(page, ensure_ascii=False)
    out |= {room_path(r): room_page(r, ps, nbs) for r, ps in rooms(nbs).items()} | api
    out |= {"results.md": results_page.page(reports, used=used)} | results_page.copies()
    return out | results_page.bundle() | mathjax() | {place(f): f for f in used}


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


def main(fresh=False):
    began = time.perf_counter()
    if fresh: shutil.rmtree(OUT, ignore_errors=True)
    wanted = sources()
    write(wanted, SOURCE)
    # what changed is read, every page is written: a new page stands in the side bar of all
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-c", DOCS, "-j", "2", "-W", "--keep-going"]
    rc = subprocess.run([*command, "-a", "-q", "-d", OUT/"doctrees", SOURCE, HTML]).returncode
    if rc: sys.exit(f"the site was not built: Sphinx ended with {rc}")
    (OUT/"built").touch()
    pages, size = list(HTML.rglob("*.html")), sum(p.stat().st_size for p in HTML.rglob("*") if p.is_file())
    took = f"{len(pages)} pages, {size/2**20:.0f} MB, {time.perf_counter() - began:.0f} s"
    print(f"{took}: {HTML.relative_to(ROOT)}/index.html")


if __name__ == "__main__": main(fresh="--fresh" in sys.argv[1:])
