"""A deployment of real processes on this machine: `make test-flower`. Elsewhere skipped: each takes minutes."""
import os, signal
from importlib.util import find_spec
import pytest

if os.environ.get("FDGNB_FLOWER") != "1": pytest.skip("minutes: make test-flower", allow_module_level=True)
if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
import fdgnb
from fdgnb.runs.checkpoints import load_checkpoint
from fdgnb.vectors import digest
from hospitals import write_hospitals
from processes import TARGET, Processes

NAMES = TARGET, "inked", "optical"
OPTIONS = "--rounds 2 --lr 0.05 --batch-size 8 --size 16".split()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    "The folders of three sites."
    return write_hospitals(tmp_path_factory.mktemp("data"), names=NAMES)


def compare(out, hospitals, method, rounds=2, **more):
    "Assert that what a run's folder holds is what the run over the joined folders gives."
    whole = fdgnb.fit(method, hospitals, TARGET, rounds, progress=False, lr=.05, batch_size=8, size=16, **more)
    states, meta = load_checkpoint(out/"checkpoint.safetensors")
    assert digest(states["server"]) == digest(whole.fed.server.state)
    assert [tuple(r) for r in meta["ledger"]] == whole.book.rows
    rows = [repr(r) for r in whole.rows if r[2:4] != ("target", "local")]
    assert [repr(tuple(r)) for r in meta["rows"]] == rows


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_run_of_three_sites_has_the_bits_of_the_joined_folders(hospitals, tmp_path, secure):
    with Processes(tmp_path, hospitals, NAMES, secure) as processes:
        processes.start_server()
        for name in NAMES: processes.start_site(name)
        done = processes.run("scaffold", *OPTIONS)
        assert not done.returncode, done.stderr
    compare(tmp_path/"out", hospitals, "scaffold")
    assert fdgnb.load(tmp_path/"out").record["rounds"] == 2
    kept = next((tmp_path/"inked-kept").glob("scaffold-*"))
    images = sorted((hospitals/"inked").glob("*/*.png"))[:4]
    assert fdgnb.load(kept).predict(images).shape == (4, 3)


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_where_it_stood(hospitals, tmp_path):
    with Processes(tmp_path, hospitals, NAMES, secure=True) as processes:
        processes.start_server()
        for name in NAMES: processes.start_site(name)
        more = ["--engine", "flower", "--federation", "hospitals.toml", "--out", "out", *OPTIONS, "--rounds", "3"]
        processes.start("run", "run", "scaffold", *more)
        processes.wait_for("run", "round 1 of 3", 400)
        processes.end("server", signal.SIGKILL)
        assert processes.running["run"].wait(200)                                  # it says what to do
        assert "The same command goes on" in processes.log("run")
        processes.start_server(times=2)
        done = processes.run("scaffold", *OPTIONS, "--rounds", "3")
        assert not done.returncode, done.stderr
        assert "goes on after round" in done.stdout
    compare(tmp_path/"out", hospitals, "scaffold", 3)
