"""Execute the pages as `nbdev_test` does, but each in a process of its own, as Jupyter would.

execute.py [word of the path ...]: all pages, or some. `nbdev_test` gives many pages to a process, and a page
that defines `digits` registers it again: the next one there would find another code than the exported one, no
record made by it, and leave out what it checks on records.
"""
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from tempfile import TemporaryDirectory
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import test_nb as execute

config = get_config(path=Path(__file__).resolve().parent)
ROOT = config.config_path
WORKERS = 2


def pages(words):
    "All pages, or those with one of some words in their path."
    found = sorted(f.absolute() for f in nbglob(config.nbs_path, as_path=True))
    return [f for f in found if not words or any(w in str(f.relative_to(ROOT)) for w in words)]


def shown(page): return execute(page, skip_flags=config.tst_flags.split(), basepath=ROOT)


def executed(todo, server):
    "[(passed, seconds)] of pages; None of one whose process died, and of all that waited behind it."
    with ProcessPoolExecutor(WORKERS, server, max_tasks_per_child=1) as pool:
        return [outcome(f, page) for f, page in zip([pool.submit(shown, f) for f in todo], todo)]


def outcome(future, page):
    "(passed, seconds) of a page; of one that could not be read, the reason is said."
    try: return future.result()
    except BrokenProcessPool: return
    except Exception as e: return print(f"{page.relative_to(ROOT)}: {e!r}", file=sys.stderr), 0


def again(page, server):
    "The same of a page by itself, so that one whose process dies is named, and no other."
    found = executed([page], server)[0]
    if not found: print(f"{page.relative_to(ROOT)}: its process died", file=sys.stderr)
    return found or (False, 0)


def tried(todo):
    "[(passed, seconds)] of pages. Their temporary files go too: a worker has no orderly exit."
    with TemporaryDirectory(prefix="pages-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["torch", "pandas", "nbdev.test", "execnb.shell"])
        first = executed(todo, server)
        if None in first:
            print(f"a process died: {first.count(None)} pages again, one by one", file=sys.stderr)
        return [v or again(page, server) for v, page in zip(first, todo)]


if __name__ == "__main__":
    todo = pages(sys.argv[1:])
    if not todo: sys.exit(f"no page has any of {sys.argv[1:]} in its path")
    done = tried(todo)
    took = sorted(((s, f.stem) for f, (_, s) in zip(todo, done)), reverse=True)
    print("seconds:", ", ".join(f"{name} {s:.0f}" for s, name in took if s >= 1))
    bad = [str(f.relative_to(ROOT)) for f, (ok, _) in zip(todo, done) if not ok]
    sys.exit(f"{len(bad)} of {len(todo)} pages failed: {', '.join(bad)}" if bad else 0)
