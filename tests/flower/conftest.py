"Processes of tests end with them; the table of faults comes last."
import os
from importlib.util import find_spec
from pathlib import Path
import pytest
from deployed import kill_all
from faults import TABLE, show_table, write_table

SKIP = ("minutes: make test-flower" if os.environ.get("FDGNB_FLOWER") != "1" else
        "no Flower: make flower" if not find_spec("flwr") else "")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent != Path(__file__).parent: continue
        item.add_marker(pytest.mark.slow)
        if SKIP: item.add_marker(pytest.mark.skip(reason=SKIP))


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    yield
    kill_all()


def pytest_terminal_summary(terminalreporter):
    if not TABLE: return
    terminalreporter.section("faults")
    terminalreporter.write_line(show_table())
    file = os.environ.get("FDGNB_FAULTS")
    if file: write_table(file)
