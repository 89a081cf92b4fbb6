"""Ctrl-C, a full disk, killed runs: a run ends soon and in one line, and its folder stays good."""
import os, signal, subprocess, sys, time
from pathlib import Path
import pytest
from conftest import bits, run
from fdgnb import FdgnbError
from fdgnb.core import atomic_write
from fdgnb.runs import checkpoints
from fdgnb.runs.checkpoints import load_checkpoint

HERE = Path(__file__).resolve().parent
SCRIPT = """
import faulthandler, os, sys, threading, fdgnb
faulthandler.dump_traceback_later(120, exit=True)                  # whatever becomes of the test
from conftest import cut, run
class Long(fdgnb.Method):
    "FedAvg whose second round would take days."
    def sample(self, client, rng):
        for n in range(1 if client.round == 0 else 100_000): yield from super().sample(client, rng)
    def begin(self, model, client, download):
        if client.round == 1: os.write(1, b"long\\n")              # in one piece: two threads write
data = cut(fdgnb.get_dataset("digits"), 60)
try: run(Long, data, rounds=3, batch_size=50, workers=2, out=sys.argv[1])
except KeyboardInterrupt:
    for t in threading.enumerate():
        if t.name.startswith("fdgnb"): t.join(20)
    print("ended", [t.name for t in threading.enumerate() if t.name.startswith("fdgnb")], flush=True)
"""


@pytest.mark.parametrize("presses", [1, 5])
def test_ctrl_c(tmp_path, presses):
    "Within a step, 100,000 local epochs ahead; a second press does not undo the first."
    pipe = subprocess.PIPE
    p = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=HERE, stdout=pipe, stderr=pipe,
                         text=True, start_new_session=True)
    try:
        assert p.stdout.readline() == "long\n", p.stderr.read()
        time.sleep(.3)
        begun = time.time()
        for _ in range(presses):
            os.kill(p.pid, signal.SIGINT)
            time.sleep(.002)
        out, err = p.communicate(timeout=60)
    finally:
        p.kill()
        p.wait()
    assert time.time() - begun < 30
    if presses == 1: assert "ended []" in out, (out, err)
    assert p.returncode in (0, 1, -signal.SIGINT), (p.returncode, err)
    assert len(load_checkpoint(tmp_path/"checkpoint.safetensors")[1]["seconds"]) == 1


def full(path, data):
    "A disk without room."
    raise OSError(28, "No space left on device")


def test_full_disk_at_a_checkpoint(small, tmp_path, monkeypatch):
    "One line; the last checkpoint is kept, and the run goes on from it to the same bits."
    whole, left = run("fedavg", small, rounds=3), [2]
    def fills(path, data):
        left[0] -= 1
        return (atomic_write if left[0] else full)(path, data)
    monkeypatch.setattr(checkpoints, "atomic_write", fills)
    with pytest.raises(FdgnbError) as e: run("fedavg", small, rounds=3, out=tmp_path)
    text = str(e.value)
    assert "checkpoint of round 2 cannot be written" in text and "No space left on device" in text
    assert "\n" not in text and e.value.__suppress_context__
    monkeypatch.undo()
    assert len(load_checkpoint(tmp_path/"checkpoint.safetensors")[1]["seconds"]) == 1
    assert bits(run("fedavg", small, rounds=3, out=tmp_path)) == bits(whole)


def test_full_disk_at_the_start(small, tmp_path, monkeypatch):
    monkeypatch.setattr("fdgnb.runs.fit.atomic_write", full)
    with pytest.raises(FdgnbError, match="cannot be used: .*No space left on device"):
        run("fedavg", small, out=tmp_path/"o")


LIMITED = """
import resource, sys, fdgnb
from conftest import cut, run
data = cut(fdgnb.get_dataset("digits"), 60)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try: run("fedavg", data, rounds=1, out=sys.argv[1])
except fdgnb.FdgnbError as e: print(e)
"""


def test_file_size_limit(tmp_path):
    "The operating system's own refusal, in the middle of a file; nothing half-written is left."
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    p = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    assert "cannot be written" in p.stdout and "File too large" in p.stdout, (p.stdout, p.stderr)
    assert p.stdout.count("\n") == 1 and [f.name for f in tmp_path.iterdir()] == ["args.json"]


def test_leftovers_are_swept(small, tmp_path):
    "A killed process's temporary files go at the next start; a living one's stay."
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f".{n}.{pid}-0123abcd.tmp" for n in ("checkpoint.safetensors", "args.json")
             for pid in (dead.pid, os.getpid())]
    for n in names: (tmp_path/n).write_bytes(b"half")
    run("fedavg", small, rounds=1, out=tmp_path)
    left = {f.name for f in tmp_path.iterdir() if f.suffix == ".tmp"}
    assert left == {names[1], names[3]} and (tmp_path/"checkpoint.safetensors").exists()


def test_no_chained_traceback(tmp_path):
    "What a user sees of a refusal is the refusal alone."
    code = "import fdgnb; fdgnb.fit('fedavg', out='/proc/nowhere')"
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert p.returncode and p.stderr.count("Traceback") == 1 and "During handling" not in p.stderr
