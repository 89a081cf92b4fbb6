"""Random values for everything that is declared: each call is accepted, or refused in one line.

`make fuzz` tries 5,000: make fuzz N=500 PROCESSES=4."""
import inspect, os, resource, warnings
from dataclasses import fields
from pathlib import Path
import numpy as np
import pytest
import torch
pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings, strategies as st
import fdgnb
from fdgnb.federation.compose import METHODS

TRIES = int(os.environ.get("FDGNB_FUZZ", 0))              # in all; 0: a few of each kind, the same each time
LARGE = 100                                               # beyond it a run is set up, but no round is played
HOSTILE = [
    None, True, "", "x", "a\nb", "x"*9999, "\ud800", "\0", "../x", b"x", -1, 0, 1.5, 1e39, 2**31, 2**63, 10**400,
    1e-320, float("nan"), float("inf"), 1j, [], (), {}, ["x"], [[]], [None], ((1, "a"),), {"a": 1}, {1: 2}, {1, 2},
    object(), len, int, np, np.zeros(2), np.int64(3), np.float64("nan"), np.str_("sgd"), np.bool_(True),
    torch.zeros(2), torch.tensor(1), range(3), Path("x")]
hostile = st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(), st.text(max_size=20))


def toy():
    "Three domains of small images, with settings under which a round is cheap."
    draws = np.random.default_rng(0)
    images = {k: draws.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8) for k, n in zip("abc", (12, 9, 8))}
    data = fdgnb.from_arrays({k: (x, np.arange(len(x)) % 3) for k, x in images.items()})
    data.defaults = dict(backbone="cnn2", batch_size=4, local_steps=1)
    return data


DATA = toy()


class PlayNothing:
    "A callback that stops a run before its first round."
    def start(self, run): return True
    def round(self, run, rows): pass
    def end(self, run): pass


def values_of(field):
    "What a declared field should take, its limits and what lies beyond them, or anything at all."
    about, default = field.metadata, field.default
    low, high = about.get("low") or 0, about.get("high") or 9
    if about.get("choices"): usual = st.sampled_from(about["choices"])
    elif isinstance(default, bool): usual = st.booleans()
    elif isinstance(default, int): usual = st.integers(int(low), int(min(high, low + 5)))
    elif isinstance(default, float): usual = st.floats(float(low), float(min(high, low + 2)))
    else: usual = st.just(default)
    return st.one_of(usual, usual, st.sampled_from([low, high, low - 1, high + 1]), hostile)


def is_large(value):
    "Whether a value holds a number with which a round could take long."
    if isinstance(value, (list, tuple)): return any(map(is_large, value))
    return isinstance(value, (int, float, np.number)) and not abs(value) <= LARGE


ARGUMENTS = sorted({*inspect.signature(fdgnb.fit).parameters} - {"out", "options"})


@st.composite
def of_fit(draw): return {draw(st.sampled_from(ARGUMENTS)): draw(hostile)}


@st.composite
def of_settings(draw):
    chosen = draw(st.lists(st.sampled_from(fields(fdgnb.Settings)), min_size=1, max_size=2, unique=True))
    return {f.name: draw(values_of(f)) for f in chosen}


@st.composite
def of_methods(draw):
    name = draw(st.sampled_from([name for name in METHODS.names() if fields(METHODS.get(name).Hyper)]))
    field = draw(st.sampled_from(fields(METHODS.get(name).Hyper)))
    return dict(method=name, hyper={field.name: draw(values_of(field))})


def call_fit(asked):
    "A run of one round, or only its preparation."
    usual = dict(method="fedavg", dataset=DATA, target="c", rounds=1, progress=False, eval_every=0)
    values = [*asked.values(), *(asked["hyper"].values() if isinstance(asked.get("hyper"), dict) else ())]
    if any(map(is_large, values)): usual["callbacks"] = [PlayNothing()]
    fdgnb.fit(**usual | asked)


@pytest.fixture(scope="module")
def finished(): return fdgnb.fit("bnstats", DATA, "c", 1, progress=False)


DOORS = dict(predict="images rule domain", adapt="images rule", table="point metric rules", model_of="domain rule",
             finetune="data which epochs lr batch_size test seed rule domain site")


def check(strategy, tries, call, monkeypatch, folder):
    "Call with what a strategy draws; anything but an FdgnbError of one line comes out."
    monkeypatch.chdir(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    @settings(max_examples=TRIES//8 or tries, database=None, deadline=None, derandomize=not TRIES,
              suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(asked):
        try: call(asked)
        except fdgnb.FdgnbError as error: assert "\n" not in str(error) and 0 < len(str(error)) <= 1000
    resource.setrlimit(resource.RLIMIT_AS, (32*2**30, hard))          # of 2**31 images none shall be tried
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one()
    finally: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("strategy, tries", [(of_fit(), 40), (of_settings(), 60), (of_methods(), 40)],
                         ids=["fit", "settings", "methods"])
def test_a_call_is_accepted_or_refused_in_one_line(strategy, tries, monkeypatch, tmp_path):
    check(strategy, tries, call_fit, monkeypatch, tmp_path)


@pytest.mark.parametrize("door", DOORS)
def test_a_finished_run_accepts_or_refuses_in_one_line(door, finished, monkeypatch, tmp_path):
    arguments = st.dictionaries(st.sampled_from(DOORS[door].split()), hostile, min_size=1, max_size=1)
    valid = dict(images=DATA["c"].x) if door in ("predict", "adapt") else {}
    if door == "finetune": valid = dict(data=DATA["c"], epochs=1)
    act = getattr(finished, door, None) or (lambda **asked: fdgnb.finetune(finished, **asked))
    def call(asked):
        if any(map(is_large, asked.values())) and "epochs" in asked: return
        act(**valid | asked)
    check(arguments, 20, call, monkeypatch, tmp_path)
