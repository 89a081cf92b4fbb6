"""Shared by all tests: one torch thread, no progress bars, small data, one way to run and to compare.

Tests import the helpers: `from conftest import bits, run, slice_of, sized`; `small` and `tiny` are fixtures.
"""
import dataclasses, os, signal, subprocess, sys, warnings
from functools import partial
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "1")
import pytest
import torch
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:       # as for what a shell starts in the background:
    signal.signal(signal.SIGINT, signal.default_int_handler)          # no process of a test could be stopped
import fdgnb
from fdgnb.federation.toys import slice_of
from fdgnb.vectors import digest


def sized(data, **sizes):
    "The named domains alone, each with so many of its first images: clients of different sizes."
    first = lambda d, n: type(d)(d.name, d.x[:n], d.y[:n])
    return dataclasses.replace(data, domains={k: first(data[k], n) for k, n in sizes.items()})


def run(method, data, **given):
    "A short run of a method; what is given goes before two rounds of digits without evaluation."
    usual = dict(target="blended", rounds=2, lr=.05, batch_size=16, eval_every=0, progress=False)
    return fdgnb.fit(method, data, **usual | given)


def bits(run, only=""):
    "A digest of all tensors that a run's server and clients keep, or of those whose key begins with `only`."
    owners = [("server", run.fed.server), *((c.id, c) for c in run.fed.clients)]
    kept = lambda k, v: torch.is_tensor(v) and k.startswith(only)
    return digest({f"{o}.{k}": v for o, owner in owners for k, v in owner.state.items() if kept(k, v)})


def broken_off(monkeypatch, after, call):
    "The call of `fdgnb.fit`, ended by Ctrl-C in the round after so many that are saved."
    def press(run, rows):
        if run.round > after: raise KeyboardInterrupt
    monkeypatch.setattr(fdgnb, "fit", partial(fdgnb.fit, callbacks=[press]))
    with pytest.raises(KeyboardInterrupt): call()
    monkeypatch.undo()


def same_bits(monkeypatch, folder, name, data, **given):
    "One worker or three, ended by Ctrl-C after a round or not: the same bits. Returns the whole run."
    whole = run(name, data, workers=1, **given)
    broken_off(monkeypatch, 1, lambda: run(name, data, workers=3, out=folder, **given))
    assert bits(run(name, data, workers=2, out=folder, **given)) == bits(whole)
    return whole


def python(code, **kw):
    "Run some code in a new process: what it printed, and how it ended."
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **kw)


def one_line(error):
    "Whether what pytest.raises caught says it in one line."
    return "\n" not in str(error.value)


def says(f, *parts):
    "Assert that `f` raises an FdgnbError of one line with these parts."
    with pytest.raises(fdgnb.FdgnbError) as e: f()
    assert one_line(e) and all(p in str(e.value) for p in parts), str(e.value)


def said(f):
    "(what f returns, its warnings), each one line."
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        out = f()
    lines = [str(i.message) for i in w]
    assert not any("\n" in line for line in lines)
    return out, lines


@pytest.fixture(scope="session")
def small():
    "digits, 60 images a domain."
    return slice_of(fdgnb.get_dataset("digits"), 60)


@pytest.fixture(scope="session")
def tiny(small):
    "Three clients of different sizes and the target `blended`."
    return sized(small, optical=60, inked=30, rendered=45, blended=40)


@pytest.fixture(autouse=True)
def global_rng_untouched():
    "Nothing in a run may draw from torch's global generator."
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random generator was used"


def pytest_terminal_summary(terminalreporter):
    "The table of faults of a deployment, where its tests ran."
    faults = sys.modules.get("faults")
    if not faults or not faults.TABLE: return
    terminalreporter.section("faults")
    terminalreporter.write_line(faults.show_table())
    file = os.environ.get("FDGNB_FAULTS")
    if file: faults.write_table(file)
