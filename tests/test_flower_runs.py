"""Whole runs of `fit` over Flower, in processes of their own: `make test-flower`, for each takes a minute."""
import os, secrets, time
from importlib.util import find_spec
from pathlib import Path
import pytest
import fdgnb
from conftest import bits

if os.environ.get("FDGNB_FLOWER") != "1": pytest.skip("minutes: make test-flower", allow_module_level=True)
if not find_spec("ray"): pytest.skip("no Ray: make flower", allow_module_level=True)


def play(method, engine="flower", **given):
    "Two rounds of 30 images a domain."
    return fdgnb.fit(method, "digits", rounds=2, limit=30, engine=engine, progress=False, **given)


def left_behind(word, seconds):
    "The command lines of processes with a word in their environment, once some time to end is over."
    end = time.monotonic() + seconds
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if word.encode() in (entry/"environ").read_bytes(): found.append((entry/"cmdline").read_bytes()[:80])
            except OSError: pass                                                  # it has ended, or is another's
        if not found or time.monotonic() > end: return found
        time.sleep(.5)


@pytest.fixture
def word(monkeypatch):
    "A word in the environment of every process that a test starts. None of them is left."
    word = secrets.token_hex(8)
    monkeypatch.setenv("FDGNB_TEST", word)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    yield word
    assert left_behind(word, 180) == []                                           # Ray's agents look rarely


@pytest.mark.parametrize("method", ["scaffold", "fdse"])
def test_bits_history_and_ledger_are_those_of_threads(word, method):
    flower, threads = play(method), play(method, "threads")
    assert bits(flower) == bits(threads)
    assert flower.history.equals(threads.history) and flower.ledger.equals(threads.ledger)
