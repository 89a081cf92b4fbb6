"""Plant the faults of faults.toml one at a time into a copy of the package, and say which the tests find.

A page that has the faulty code is changed too, for a page runs its own cells."""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 300                                   # that the tests of one fault may take
FOUND, NOT_FOUND, NO_FIT, NO_TEST = "found", "NOT FOUND", "does not apply", "tests do not run"
HEAD = "# Planted faults\n\n{} of {} found, in {:.1f} minutes (`python bench/faults/plant.py --write`).\n\n"


def read_faults(wanted):
    "The faults of the list whose name or whose file's beginning is among `wanted`; all where none is."
    faults = tomllib.loads((HERE/"faults.toml").read_text())["fault"]
    if not wanted: return faults
    return [fault for fault in faults if fault["name"] in wanted or fault["file"].startswith(tuple(wanted))]


def applies(fault, root=ROOT):
    "Whether the text to be replaced is there exactly once."
    return (root/"fdgnb"/fault["file"]).read_text().count(fault["find"]) == 1


def copy_tree(folder):
    "Copy the files that git knows, and those that it would take, into a folder."
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if not (ROOT/name).is_file(): continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/name, folder/name)


def command_of(test):
    "The command that runs a test file, with -k and the like behind its name, or a page."
    words, python = shlex.split(test), Path(sys.executable)
    if words[0].endswith(".ipynb"): return [python.with_name("nbdev_test"), "--n_workers", "0", "--path", *words]
    return [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]


def run_test(test, folder, seconds=SECONDS):
    "(exit code, the line that says what failed) of a test in the copy; no exit code where its time is over."
    how = dict(cwd=folder, env=os.environ | dict(PYTHONPATH=str(folder)), capture_output=True, text=True)
    try: done = subprocess.run(command_of(test), timeout=max(1, seconds), **how)
    except subprocess.TimeoutExpired: return None, f"{test}: no end"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, said[0].split(" - ")[0] if said else test


def try_tests(tests, folder):
    "(what came of the tests, one after the other until one fails, the line that says which)."
    end = time.monotonic() + SECONDS
    for test in tests:
        code, line = run_test(test, folder, end - time.monotonic())
        if code in (None, 4, 5): return NO_TEST, line
        if code: return FOUND, line
    return NOT_FOUND, ""


def change_page(page, fault):
    "Replace the text in the cells of a page that are exported."
    content = json.loads(page.read_text())
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if "#| export" in source: cell["source"] = source.replace(fault["find"], fault["put"]).splitlines(keepends=True)
    page.write_text(json.dumps(content))


def plant(fault, folder, tests):
    "Plant a fault in the copy, run the tests, and take it out again."
    if not applies(fault, folder): return NO_FIT, ""
    file = folder/"fdgnb"/fault["file"]
    page = folder/re.search(r"File to edit: [./]*(nbs/\S+\.ipynb)", file.read_text())[1]
    code, before = file.read_text(), page.read_text()
    file.write_text(code.replace(fault["find"], fault["put"]))
    change_page(page, fault)
    try: return try_tests(tests, folder)
    finally: file.write_text(code), page.write_text(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wanted", nargs="*", help="names of faults, or how their files begin, like federation/")
    parser.add_argument("--check", action="store_true", help="only see whether each fault's text is there once")
    parser.add_argument("--clean", action="store_true", help="run the tests without a fault: they must pass")
    parser.add_argument("--tests", nargs="+", help="what is run for each fault in place of its own tests")
    parser.add_argument("--write", action="store_true", help="write found.md")
    given = parser.parse_args()
    faults, began, found = read_faults(given.wanted), time.monotonic(), 0
    rows = "| fault | file | breaks | | by |\n|---|---|---|---|---|\n"
    if given.check: sys.exit(", ".join(fault["name"] for fault in faults if not applies(fault)) or 0)
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        if given.clean:
            tests = given.tests or sorted({test for fault in faults for test in fault["tests"]})
            sys.exit("; ".join(line for code, line in (run_test(test, folder) for test in tests) if code != 0) or 0)
        for fault in faults:
            start = time.monotonic()
            what, line = plant(fault, Path(folder), given.tests or fault["tests"])
            print(f"{what:16} {fault['name']:40} {time.monotonic() - start:4.0f} s  {line}", flush=True)
            found += what == FOUND
            cells = fault["name"], fault["file"], fault["breaks"], what, line.replace("|", "/")
            rows += f"| {' | '.join(cells)} |\n"
    head = HEAD.format(found, len(faults), (time.monotonic() - began)/60)
    print(head)
    if given.write: (HERE/"found.md").write_text(head + rows)


if __name__ == "__main__": main()
