"""Plant the faults of faults.toml one at a time into a copy of the package, and say which the tests find.

python bench/faults/plant.py [NAME or FILE ...] [--check] [--clean] [--tests TEST ...] [--write]"""
import argparse
import os
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


def read_faults(wanted):
    "The faults of the list whose name or whose file's beginning is among `wanted`; all where none is."
    faults = tomllib.loads((HERE/"faults.toml").read_text())["fault"]
    names = [fault["name"] for fault in faults]
    assert len(set(names)) == len(names), "two faults have one name"
    if not wanted: return faults
    return [fault for fault in faults if fault["name"] in wanted or fault["file"].startswith(tuple(wanted))]


def applies(fault, root=ROOT):
    "Whether the text to be replaced is there exactly once."
    return (root/"fdgnb"/fault["file"]).read_text().count(fault["find"]) == 1


def copy_tree(folder):
    "Copy the files that git knows, and those that it would take, into a folder."
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not (ROOT/name).is_file(): continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/name, folder/name)


def command_of(test):
    "The command that runs a test file, with -k and the like behind its name, or a page."
    words, pytest = shlex.split(test), [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    if not words[0].endswith(".ipynb"): return [*pytest, *words]
    return [str(Path(sys.executable).with_name("nbdev_test")), "--n_workers", "0", "--path", words[0]]


def run_test(test, folder, seconds):
    "(exit code, the line that says what failed) of a test in the copy; no exit code where its time is over."
    environment = os.environ | dict(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    try:
        done = subprocess.run(command_of(test), cwd=folder, env=environment, capture_output=True, text=True,
                              timeout=max(1, seconds))
    except subprocess.TimeoutExpired: return None, f"{test}: no end"
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, said[0].split(" - ")[0] if said else test


def try_tests(tests, folder):
    "(what came of the tests, one after the other until one fails, the line that says which)."
    end = time.monotonic() + SECONDS
    for test in tests:
        code, line = run_test(test, folder, end - time.monotonic())
        if code is None: return NOT_FOUND, line
        if code in (4, 5): return NO_TEST, test
        if code: return FOUND, line
    return NOT_FOUND, ""


def plant(fault, folder, tests):
    "Plant a fault in the copy, run the tests, and take it out again."
    if not applies(fault, folder): return NO_FIT, ""
    file = folder/"fdgnb"/fault["file"]
    text = file.read_text()
    file.write_text(text.replace(fault["find"], fault["put"]))
    try:
        return try_tests(tests, folder)
    finally:
        file.write_text(text)


def write_table(rows, minutes):
    "Write what was found as found.md."
    n = sum(what == FOUND for _, what, _ in rows)
    head = f"# Planted faults\n\n{n} of {len(rows)} found, in {minutes:.0f} minutes (`python bench/faults/plant.py --write`).\n\n"
    lines = ["| fault | file | breaks | | by |", "|---|---|---|---|---|"]
    for fault, what, line in rows:
        cells = fault["name"], fault["file"], fault["breaks"], what, line
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    (HERE/"found.md").write_text(head + "\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wanted", nargs="*", help="names of faults, or how their files begin, like federation/")
    parser.add_argument("--check", action="store_true", help="only see whether each fault's text is there once")
    parser.add_argument("--clean", action="store_true", help="run the tests without a fault: they must pass")
    parser.add_argument("--tests", nargs="+", help="what is run for each fault in place of its own tests")
    parser.add_argument("--write", action="store_true", help="write found.md")
    given = parser.parse_args()
    faults, began, rows = read_faults(given.wanted), time.monotonic(), []
    if given.check:
        odd = [fault["name"] for fault in faults if not applies(fault)]
        print(f"{len(faults) - len(odd)} of {len(faults)} apply")
        sys.exit(", ".join(odd) or 0)
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        if given.clean:
            tests = given.tests or sorted({test for fault in faults for test in fault["tests"]})
            for test in tests: print(*run_test(test, Path(folder), SECONDS), flush=True)
            return
        for fault in faults:
            start = time.monotonic()
            what, line = plant(fault, Path(folder), given.tests or fault["tests"])
            rows.append((fault, what, line))
            print(f"{what:16} {fault['name']:40} {time.monotonic() - start:4.0f} s  {line}", flush=True)
    n, minutes = sum(what == FOUND for _, what, _ in rows), (time.monotonic() - began)/60
    print(f"{n} of {len(rows)} found, in {minutes:.1f} minutes")
    if given.write: write_table(rows, minutes)


if __name__ == "__main__": main()
