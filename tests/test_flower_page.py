"""The page `deploy`, followed word for word: five terminals of this machine, TLS and keys."""
import json, os, re, signal, subprocess, time
from contextlib import suppress
from pathlib import Path
import pytest
import fdgnb
from deployed import SLOW, PATIENCE, ROOT, Started, free_port, kill_all
from faults import note

pytestmark = SLOW


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    "Processes of tests end with them."
    yield
    kill_all()


BLOCK = re.compile(r"```sh\n# ([^\n]*)\n(.*?)```(?:\s*```text\n(.*?)```)?", re.S)
SITES = "st_mary", "st_john", "st_luke"
TERMINALS = "server", "run", *SITES


def read_blocks():
    "(where, what is typed, lines to wait for) of the page's blocks, in order."
    cells = json.loads((ROOT/"nbs/deploy.ipynb").read_text())["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return [(where, typed, (lines or "").splitlines()) for where, typed, lines in BLOCK.findall(text)]


class Terminal(Started):
    "A shell that is typed into."
    def __init__(self, name, folder):
        super().__init__(["bash"], folder/f"{name}.log", folder, stdin=subprocess.PIPE)
        self.type(f"NAME={name}\n")

    def type(self, text):
        self.seen = self.log.stat().st_size
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def ctrl_c(self):
        "What the terminal does: a signal to what runs in it, not to the shell."
        before = children(self.process.pid)
        for pid in before:
            with suppress(ProcessLookupError): os.kill(pid, signal.SIGINT)             # a child may end by its parent
        end = time.monotonic() + 90
        while children(self.process.pid) and time.monotonic() < end: time.sleep(.2)
        assert not children(self.process.pid), "it does not end by Ctrl-C"


def children(pid):
    "The processes that a process has started, and those that these have."
    try: found = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError: found = []                                                    # it has ended
    return found + [c for p in found for c in children(p)]


def test_the_page_is_followed_by_five_terminals(tmp_path):
    port, blocks = free_port(), read_blocks()
    assert len(blocks) >= 10
    terminals = {name: Terminal(name, tmp_path) for name in TERMINALS}
    for where, typed, wanted in blocks:
        names = SITES if where.startswith("each site") else [name for name in TERMINALS if name in where]
        assert names, where
        for name in names:
            if "Ctrl-C" in where: terminals[name].ctrl_c()
            terminals[name].type(typed.replace("9092", str(port)))
        for name in names:
            for line in wanted:
                found = terminals[name].wait_for(re.escape(line), r"error: .*", seconds=2*PATIENCE)
                assert found[0] == line, f"{name}: {found[0]}"
    for name in reversed(TERMINALS): terminals[name].ctrl_c()
    at = tmp_path/"practice/server/out"
    first = fdgnb.load(at/"first")
    images = sorted((tmp_path/"practice/st_luke/images").glob("*/*.png"))[:4]
    assert first.predict(images).shape == (4, 3) and first.record["rounds"] == 2
    assert "stddev" in (tmp_path/"st_mary.log").read_text()                        # the noise of LocalDpMod
    note("none: the page deploy, followed by five terminals", "every line that it shows is said",
         f"{len(blocks)} blocks, two runs")
