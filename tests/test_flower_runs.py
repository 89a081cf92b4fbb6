"""Whole runs over Flower, in processes of their own: `make test-flower`. Elsewhere skipped: each takes a minute.

A run's processes are known by a word in their environment, so that what is left behind is found."""
import json, os, secrets, signal, subprocess, sys, time
from importlib.util import find_spec
from pathlib import Path
import pytest

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(os.environ.get("FDGNB_FLOWER") != "1", reason="minutes: make test-flower"),
              pytest.mark.skipif(not (find_spec("flwr") and find_spec("ray")), reason="no Flower: make flower")]
ROOT = Path(__file__).resolve().parent.parent
NINE = "fedavg scaffold fdse fedka fedbr ga fedsb fedbn moon".split()


def left_behind(word):
    "The command lines of living processes with a word in their environment."
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry/"environ").read_bytes(): found.append((entry/"cmdline").read_bytes()[:80])
        except OSError: pass                                                      # it has ended, or is another's
    return found


def wait_until_gone(word, seconds=20):
    "What is left of a run after some time at most."
    end = time.monotonic() + seconds
    while (left := left_behind(word)) and time.monotonic() < end: time.sleep(.5)
    return left


def begin(*command, **given):
    "(process, word in its environment) of a command in this checkout."
    word = f"FDGNB_TEST={secrets.token_hex(8)}"
    name, _, value = word.partition("=")
    env = os.environ | {name: value, "CI": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT/"tests")])}
    return subprocess.Popen(list(map(str, command)), text=True, env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **given), word


def finish(process, word):
    "(standard output, error stream) of a process that ends by itself, with nothing left of it."
    out, err = process.communicate(timeout=1500)
    assert wait_until_gone(word) == [], "processes are left"
    return out, err


METHODS = """
import json, sys, fdgnb
from conftest import bits
from test_flower_runs import small
for name in sys.argv[1:]:
    given = dict(target="blended", rounds=2, progress=False) | (dict(mmd_batch=8, votes=16) if name == "fedka" else {})
    threads, flower = (fdgnb.fit(name, small(), engine=e, **given) for e in ("threads", "flower"))
    print(json.dumps(dict(name=name, bits=bits(flower)[:16], equal=dict(
        bits=bits(flower) == bits(threads), history=flower.rows == threads.rows,
        ledger=flower.book.rows == threads.book.rows))), flush=True)
"""


def small():
    "digits, 30 images a domain."
    import fdgnb
    from fdgnb.federation.toys import slice_of
    return slice_of(fdgnb.get_dataset("digits"), 30)


def test_nine_methods_give_the_bits_history_and_ledger_of_threads():
    out, err = finish(*begin(sys.executable, "-c", METHODS, *NINE))
    print(f"\n{out}", err)
    found = [json.loads(line) for line in out.splitlines()]
    assert [f["name"] for f in found] == NINE
    assert all(f["equal"] == dict(bits=True, history=True, ledger=True) for f in found)
    assert err == "", "Flower or Ray is heard"


OWN = """
import time
from fdgnb import FdgnbError, Method, method

@method("flawed")
class Flawed(Method):
    "Raises a TypeError, or what fdgnb raises, in round 2."
    class Hyper: kind: str = "ours"
    def begin(self, model, client, download):
        if client.round == 0 or client.id != "inked": return
        if self.h.kind == "ours": raise FdgnbError("what is wrong")
        if self.h.kind == "theirs": raise TypeError("a slip")
        open(self.h.kind, "w").close()                            # says that it is busy
    def batch(self, x, y, client, rng):
        if client.round and "/" in self.h.kind: time.sleep(1)
        return x, y
"""
FLAWED = """
import sys, fdgnb
from test_flower_runs import small
from fdgnb.runs.imports import import_modules
import_modules(sys.argv[1])
fdgnb.fit("flawed", small(), "blended", 3, out=sys.argv[3], engine="flower", kind=sys.argv[2], progress=True,
          batch_size=2)
"""


@pytest.fixture
def own(tmp_path):
    "A module of one's own, outside every path."
    file = tmp_path/"flawed_own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize("kind, last", [("ours", "fdgnb.core.FdgnbError: what is wrong"),
                                        ("theirs", "TypeError: a slip")])
def test_an_error_in_a_client_ends_the_run_and_its_processes(own, tmp_path, kind, last):
    process, word = begin(sys.executable, "-c", FLAWED, own, kind, tmp_path/"out")
    out, err = finish(process, word)
    lines = [line for line in err.splitlines() if line]
    assert process.returncode == 1 and lines[-1] == last
    assert (tmp_path/"out/checkpoint.safetensors").exists()                       # of round 1


def begin_busy(own, tmp_path):
    "(process, word) of a run in the middle of its second round."
    busy = tmp_path/"busy"
    process, word = begin(sys.executable, "-c", FLAWED, own, busy, tmp_path/"out")
    while not busy.exists() and process.poll() is None: time.sleep(.2)
    return process, word


def test_ctrl_c_in_a_round_ends_all_processes(own, tmp_path):
    process, word = begin_busy(own, tmp_path)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = finish(process, word)
    assert "interrupted after 1 of 3 rounds" in out and err.splitlines()[-1] == "KeyboardInterrupt"
    assert time.monotonic() - begun < 60


def test_a_run_that_is_killed_leaves_no_processes(own, tmp_path):
    process, word = begin_busy(own, tmp_path)
    process.kill()
    process.communicate()
    assert wait_until_gone(word, 180) == []                                       # Ray's agents look rarely


def test_the_command_and_the_notebook(tmp_path):
    given = "--rounds 1 --hyper limit=30".split()
    command = [sys.executable, "-m", "fdgnb", "run", "fedavg"]
    threads, _ = finish(*begin(*command, "--out", tmp_path/"a", *given))
    flower, err = finish(*begin(*command, "--out", tmp_path/"b", *given, "--engine", "flower"))
    table = lambda said: said.splitlines()[1:-1]                                  # without seconds, and the folder
    assert table(threads) == table(flower) and len(table(flower)) > 4 and err == ""
    page = "-p engine flower -p method fedavg -p rounds 1".split()
    _, err = finish(*begin("papermill", "--log-level", "ERROR", "--no-progress-bar", ROOT/"nbs/run.ipynb",
                           tmp_path/"r.ipynb", *page, "-p", "out", tmp_path/"c", "-y", "{hyper: {limit: 30}}"))
    digests = [json.loads((tmp_path/k/"record.json").read_text())["digest"] for k in "abc"]
    assert digests[0] == digests[1] == digests[2], err
