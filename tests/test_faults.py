"""Bad input and bad luck: one clear line each, nothing lost."""
import json, os, re, signal, subprocess, sys, time
from pathlib import Path
import pytest
import torch
import fdgnb
from fdgnb import FdgnbError
from fdgnb.data.domain import Dataset, Domain
from fdgnb.vectors import digest
from fdgnb.runs.checkpoints import load_checkpoint

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import sys, fdgnb, conftest
from fdgnb.vectors import digest
r = fdgnb.fit("fdse", conftest.cut(fdgnb.get_dataset("digits"), 60), target="blended", rounds=6, progress=False, out=sys.argv[1] if len(sys.argv) > 1 else None)
print(digest(r.fed.server.state), digest({f"{c.id}.{k}": v for c in r.fed.clients for k, v in c.state.items()}), len(r.rows))
"""


def start(*args):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, args)], cwd=ROOT/"tests", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(p):
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    return out


def test_kill_9_and_resume(tmp_path):
    "A run killed without warning, taken up again, ends in the same bits as one that was left alone."
    whole, killed = start(), start(tmp_path)
    file, t = tmp_path/"checkpoint.safetensors", time.time()
    while not file.exists() and killed.poll() is None and time.time() - t < 240: time.sleep(.02)
    killed.send_signal(signal.SIGKILL); killed.wait()
    done = load_checkpoint(file)[1]["rows"][-1][0]
    assert 1 <= done < 6, "the run was over before it could be killed"
    assert finished(start(tmp_path)) == finished(whole)


def one_line(call, says):
    with pytest.raises(FdgnbError) as e: call()
    text = str(e.value)
    assert "\n" not in text and re.search(says, text), text


GREY = Dataset("grey", {k: Domain(k, torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 2) for k in ("inked", "blended")}, ["0", "1"])
VECTORS = Dataset("vectors", {k: Domain(k, torch.zeros(8, 4), torch.arange(8) % 2) for k in ("inked", "blended")}, ["0", "1"], defaults=dict(backbone="mlp2"))


@pytest.mark.parametrize("bad, says", [
    (dict(method="fdsee"), "unknown method 'fdsee'; did you mean 'fdse'"),
    (dict(method="fedavg+fedavg"), "names a method twice"),
    (dict(dataset="digitz"), "unknown data ?set 'digitz'.*'digits'"),
    (dict(load="bert"), "wanted a dict"), (dict(load=dict(size=8)), "'size' is no option"), (dict(load=dict(x={1, 2})), "plain values"),
    (dict(load=dict(domains=["inked"])), "is loaded already"), (dict(load=dict(load=1)), "'load' is no option"), (dict(normalize="imagenet", dataset=GREY), "three channels"),
    (dict(dataset=VECTORS, augment="flip"), "augmentation is for images"), (dict(dataset="digits", load=dict(domains=3)), "wanted a list of different names"),
    (dict(target="blendid"), "blendid.*did you mean 'blended'"),
    (dict(lam_=3), "unknown hyper-parameter 'lam_'"),
    (dict(method="fdse", lam=-1.), "lam=-1.0 is out of range"),
    (dict(method="fdse", tau="small"), "tau='small': expected a number"),
    (dict(backbone="cnn3"), "unknown model 'cnn3'; did you mean 'cnn"),
    (dict(rounds=2.5), "rounds=2.5: expected a whole number"),
    (dict(batch_size=1), "batch_size=1 does not go with BatchNorm"),
    (dict(fractions=(.5, .1)), "fractions"),
    (dict(device="cuda"), "not available here"),
    (dict(device="gpu"), "unknown device 'gpu'"),
    (dict(lr=None), "lr=None: wanted a value like"),
    (dict(drop_last="no"), "drop_last='no': expected True or False"),
    (dict(partition="halves"), "partition='halves': expected a list"),
    (dict(partition=("split",)), "'split' takes "),
    (dict(drops=((1, "inkd"),)), "unknown client 'inkd'; did you mean 'inked'"),
    (dict(workers=0), "workers=0 is out of range"),
    (dict(checkpoint_every=0), "checkpoint_every=0 is out of range"),
    (dict(target=["blended"]), "unknown domain"),
    (dict(scale="cpu"), "name a protocol too"),
    (dict(out="/proc/nowhere"), "out='/proc/nowhere' cannot be used"),
], ids=lambda v: "-".join(map(str, v)) if isinstance(v, dict) else "")
def test_bad_arguments(bad, says, small):
    if bad.get("device") == "cuda" and torch.cuda.is_available(): pytest.skip("there is a GPU here")
    one_line(lambda: fdgnb.fit(**dict(method="fedavg", dataset=small, target="blended", rounds=1, progress=False) | bad), says)


def test_a_mislabelled_domain_is_no_client(small):
    "A key that is not its domain's name would let the target in among the clients."
    from fdgnb.data.domain import Dataset
    one_line(lambda: Dataset("m", {"T": small["blended"], "inked": small["inked"]}, small.classes), "'blended' stands under the key 'T'")


def test_a_model_that_is_not_finite_is_not_kept(small, tmp_path):
    call = lambda: fdgnb.fit("fedavg", small, "blended", 1, lr=1e38, batch_size=200, out=tmp_path, progress=False)
    one_line(call, "not finite after round 1|is (nan|inf) in round 1")
    assert not (tmp_path/"checkpoint.safetensors").exists()


def test_a_folder_belongs_to_one_run(small, tmp_path):
    "Claimed before the first round, not after it."
    from fdgnb.runs.setup import Federation
    from fdgnb.runs.fit import Run
    from fdgnb.federation import reserve_folder
    reserve_folder(Run(Federation("fedavg", small, "blended", 1, seed=0), out=tmp_path))
    one_line(lambda: fdgnb.fit("fedavg", small, "blended", 1, seed=1, out=tmp_path), "seed: 0 there, 1 now")


def test_numbers_of_a_checkpoint_are_protected(small, tmp_path):
    fdgnb.fit("fedavg", small, "blended", 1, out=tmp_path, progress=False)
    file = tmp_path/"checkpoint.safetensors"
    whole = file.read_bytes()
    at = whole.index(b'"accuracy", 0.') + len(b'"accuracy", 0.')
    file.write_bytes(whole[:at] + (b"9" if whole[at:at+1] != b"9" else b"8") + whole[at+1:])
    one_line(lambda: load_checkpoint(file), "torn or was not written by fdgnb")


def test_what_the_server_draws_survives_a_resume(small, tmp_path):
    "A download that is drawn anew each round is the same after a stop: the round is part of what is taken up."
    from fdgnb.federation.compose import METHODS, method
    from fdgnb.federation.loop import Method
    class Stop(Exception): pass
    armed = []
    @method("noisy")
    class Noisy(Method):
        "FedAvg that sends a number drawn by the server."
        def download(self, server, k):
            return super().download(server, k) | {"scalars.noise": torch.rand((), generator=server.rng("noise"))}
        def begin(self, model, client, download):
            for p in model.parameters(): p.data += .01*download["scalars.noise"]
        def finish(self, server):
            if armed and server.round == 1: raise Stop
    try:
        whole = fdgnb.fit("noisy", small, "blended", 3, progress=False)
        armed.append(1)
        with pytest.raises(Stop): fdgnb.fit("noisy", small, "blended", 3, out=tmp_path, progress=False)
        armed.clear()
        again = fdgnb.fit("noisy", small, "blended", 3, out=tmp_path, progress=False)
        assert digest(again.fed.server.state) == digest(whole.fed.server.state) and again.rows == whole.rows
    finally: del METHODS["noisy"]


def test_single_sample_under_batchnorm(small):
    from conftest import cut
    one_line(lambda: fdgnb.fit("fedavg", cut(small, 1), target="blended", rounds=1), "single training sample, too few for BatchNorm")


def test_only_the_target(small):
    import dataclasses
    alone = dataclasses.replace(small, domains={"blended": small["blended"]})
    one_line(lambda: fdgnb.fit("fedavg", alone, target="blended", rounds=1), "no domain left to train on")


def test_nan_keeps_the_last_checkpoint(small, tmp_path):
    "A loss that is not finite stops the run; what was saved before stays."
    @fdgnb.method("zz_breaks")
    class Breaks(fdgnb.Method):
        "NaN in round 3, in the second client's second step."
        def loss(self, model, x, y, client):
            n = client.scratch["n"] = client.scratch.get("n", 0) + 1
            return super().loss(model, x, y, client)*(float("nan") if (client.round, client.id, n) == (2, "inked", 2) else 1.)
    from fdgnb.federation.compose import METHODS
    try: one_line(lambda: fdgnb.fit("zz_breaks", small, target="blended", rounds=5, progress=False, out=tmp_path), "client 'inked' is nan in round 3, step 2")
    finally: del METHODS["zz_breaks"]
    states, meta = load_checkpoint(tmp_path/"checkpoint.safetensors")
    assert meta["rows"][-1][0] == 2 and all(v.isfinite().all() for v in states["server"].values() if torch.is_tensor(v))


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "foreign"])
def test_torn_checkpoint(harm, small, tmp_path):
    args = dict(method="fedavg", dataset=small, target="blended", progress=False, rounds=2, out=tmp_path)
    fdgnb.fit(**args)
    file = tmp_path/"checkpoint.safetensors"
    whole = file.read_bytes()
    file.write_bytes(dict(truncated=whole[:-100], flipped=whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:], empty=b"", foreign=b"PK\x03\x04 a pickle")[harm])
    one_line(lambda: fdgnb.fit(**args), "checkpoint.safetensors is torn or was not written by fdgnb")


def test_other_arguments_on_the_same_folder(small, tmp_path):
    args = dict(method="fedavg", dataset=small, target="blended", progress=False, rounds=2, out=tmp_path)
    fdgnb.fit(**args)
    before = (tmp_path/"checkpoint.safetensors").read_bytes()
    one_line(lambda: fdgnb.fit(**args | dict(seed=3, lr=.2)), r"seed: 0 there, 3 now; settings.lr: .* now")
    assert (tmp_path/"checkpoint.safetensors").read_bytes() == before
    assert fdgnb.fit(**args).round == 2


def papermill(tmp_path, *args):
    exe = Path(sys.executable).parent/"papermill"
    if not exe.exists(): pytest.skip("papermill is not installed")
    return subprocess.run([exe, ROOT/"nbs/run.ipynb", tmp_path/"out.ipynb", "--no-progress-bar", *map(str, args)], cwd=tmp_path, capture_output=True, text=True, timeout=500)


def test_papermill_refuses_a_wrong_method(tmp_path):
    p = papermill(tmp_path, "-p", "method", "fdsee", "-p", "out", tmp_path/"o")
    assert p.returncode != 0 and "did you mean 'fdse'" in p.stderr and not (tmp_path/"o/record.json").exists()


def test_papermill_passes_its_parameters(tmp_path):
    "Two methods, two records."
    records = []
    for m in ("fdse", "fedavg"):
        p = papermill(tmp_path, "-p", "method", m, "-p", "rounds", 1, "-p", "out", tmp_path/m)
        assert p.returncode == 0, p.stderr[-2000:]
        records.append(json.loads((tmp_path/m/"record.json").read_text()))
    assert [r["args"]["method"] for r in records] == ["fdse", "fedavg"] and records[0]["args"]["hyper"] != records[1]["args"]["hyper"]
    assert [r["args"]["rounds"] for r in records] == [1, 1]
