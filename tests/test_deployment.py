"""Deployments in one process: five folders, a server without data, messages as Flower carries them."""
import json, shutil
from importlib.util import find_spec
import pytest
import fdgnb
from fdgnb import FdgnbError
from fdgnb.vectors import digest

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from conftest import says
from sites import NAMES, Grid, deploy, nodes_of, write_hospitals

OPTIONS = dict(size=16, lr=.05, batch_size=8)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory): return write_hospitals(tmp_path_factory.mktemp("data"))


def plan_of(method, rounds=2, **more): return dict(method=method, dataset="hospitals", rounds=rounds, hyper=OPTIONS | more)


def serial(hospitals, method, rounds=2, **more):
    return fdgnb.fit(method, hospitals, "blended", rounds, progress=False, **OPTIONS | more)


def rows_of(run):
    "The history but for models of clients scored on the target, whose samples are elsewhere."
    return [repr(r) for r in run.rows if r[2:4] != ("target", "local")]


def assert_same(run, whole):
    assert digest(run.fed.server.state) == digest(whole.fed.server.state)
    assert rows_of(run) == rows_of(whole) and run.book.rows == whole.book.rows


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fdse", "fedbn", "fedka", "moon", "fedbr"])
def test_a_deployment_is_the_run_over_the_joined_folders(hospitals, tmp_path, method):
    public = hospitals/"blended" if method == "fedka" else None
    more = dict(mmd_batch=8) if method == "fedka" else {}
    run, _, said = deploy(hospitals, tmp_path, plan_of(method, **more), public=public)
    assert_same(run, serial(hospitals, method, **more))
    kept = fdgnb.load(tmp_path/"server")
    images = sorted((hospitals/"inked").glob("*/*.png"))[:4]
    assert kept.predict(images).shape == (4, 3) and kept.history.equals(run.history)
    assert said[-1] == f"kept in {tmp_path/'server'}"
