"""Bad input and bad luck: one clear line each, nothing lost, and a run that goes on ends in the same bits."""
import json, os, resource, shutil
import numpy as np
import pytest
import torch
import fdgnb
from conftest import bits, says


def images(names="abct", n=12, channels=3):
    "Noise of 16 pixels and three classes in each of some domains."
    draw = np.random.default_rng(0)
    x = {name: draw.integers(0, 256, (n, channels, 16, 16), dtype=np.uint8) for name in names}
    return fdgnb.from_arrays({name: (x[name], np.arange(n) % 3) for name in names})


def play(method="fedavg", data=None, **given):
    "A short run."
    usual = dict(target="t", rounds=2, backbone="cnn2", batch_size=8, local_steps=2, workers=1, progress=False)
    return fdgnb.fit(method, images() if data is None else data, **usual | given)


@pytest.mark.parametrize("name", ["none", "own"])
def test_a_domain_of_a_target_s_name(name):
    "It is that domain where there is one; the other word says that there is no target."
    data, other = images([name, "b"]), "own" if name == "none" else "none"
    held_out, all_train = play(data=data, target=name, rounds=1), play(data=data, target=other, rounds=1)
    assert [c.id for c in held_out.fed.clients] == ["b"] and [c.id for c in all_train.fed.clients] == [name, "b"]


# ---- files

@pytest.fixture(scope="module")
def done(tmp_path_factory):
    "The folder of a finished run."
    out = tmp_path_factory.mktemp("done")/"run"
    play(eval_every=1, out=out).save()
    return out


def cut(file): file.write_bytes(file.read_bytes()[:-100])


def change_weight(file):
    "Turn a bit of the first number behind the file's head."
    whole = bytearray(file.read_bytes())
    whole[8 + int.from_bytes(whole[:8], "little") + 1] ^= 4
    file.write_bytes(whole)


def write(content): return lambda file: file.write_bytes(content)


def put_pipe(file):
    file.unlink()
    os.mkfifo(file)


def load_and_predict(out): return fdgnb.load(out).predict(torch.zeros(1, 3, 16, 16))
def go_on(out): return play(eval_every=1, out=out)


SELECTED = b'{"format": "fdgnb-selected-1", "rules": {"last": 1e999}}'
CHECKPOINT = "checkpoint.safetensors"
HARMS = [(CHECKPOINT, go_on, cut, "torn"), (CHECKPOINT, go_on, write(b"PK a pickle"), "torn"),
         (CHECKPOINT, go_on, change_weight, "torn"), (CHECKPOINT, go_on, put_pipe, "file"),
         ("args.json", go_on, write(b"3"), "damaged"), ("args.json", go_on, write(b"["*100_000), "damaged"),
         ("selected.json", load_and_predict, write(SELECTED), "torn"), ("args.json", go_on, put_pipe, "file"),
         ("round-0002.safetensors", load_and_predict, put_pipe, "file")]


@pytest.mark.parametrize("name, call, harm, part", HARMS, ids=range(len(HARMS)))
def test_a_torn_or_foreign_file_is_named(done, tmp_path, name, call, harm, part):
    out = shutil.copytree(done, tmp_path/"run")
    harm(out/name)
    says(lambda: call(out), name, part)


def test_weights_of_another_run_are_refused(done, tmp_path):
    play(eval_every=1, seed=5, out=tmp_path/"other")
    out = shutil.copytree(done, tmp_path/"run")
    shutil.copy(tmp_path/"other"/"round-0002.safetensors", out)
    says(lambda: fdgnb.load(out).model_of(rule="last"), "round-0002.safetensors", "another round or run")


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tmp_path):
    "Also of torch's own writer of programs, which ends the process by itself."
    run, before = play(rounds=1), resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in (lambda: run.save(tmp_path/"save"), lambda: run.export(tmp_path/"model.pt2")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, before[1]))
        try: says(write, "File too large")
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.glob("*.pt2")] and not [*tmp_path.glob(".*")]


def test_an_odd_name_comes_back_and_is_no_formula(tmp_path):
    made = play(data=images(["a b", "=b", "'=c", "-1"]), target=None, rounds=1, out=tmp_path)
    made.save()
    assert '"=b"' not in (tmp_path/"history.csv").read_text()
    back = fdgnb.load(tmp_path)
    assert back.history.equals(made.history) and back.ledger.equals(made.ledger) and back.table().equals(made.table())


# ---- numbers that are none

@pytest.mark.parametrize("method, lr", [("fedavg", 10.), ("fedavg", 1e38), ("fedyogi", 1e3)])
def test_a_run_that_diverges_ends_and_keeps_no_such_model(method, lr, tmp_path):
    with pytest.raises(fdgnb.FdgnbError, match="diverged|not finite|beyond 1e|the loss of client"):
        play(method, lr=lr, local_steps=9, rounds=4, out=tmp_path, eval_every=1)


def test_a_diverged_run_that_goes_on_says_so(tmp_path):
    given = dict(lr=10., local_steps=6, rounds=4, eval_every=1)
    says(lambda: play(out=tmp_path, **given), "round")
    gone_on = play(out=tmp_path, diverge="go", **given)
    gone_on.save()
    assert bits(gone_on) == bits(play(diverge="go", **given)) and gone_on.diverged
    assert fdgnb.load(tmp_path).diverged == gone_on.diverged and gone_on.table().uses.str.contains("DIVERGED").all()
    assert play().diverged is None


def test_a_loss_that_is_nan_is_named_and_the_last_checkpoint_stays(tmp_path):
    class Breaks(fdgnb.Method):
        "NaN in round 3, in client b's second step."
        def loss(self, model, x, y, client):
            step = client.scratch["step"] = client.scratch.get("step", 0) + 1
            breaks = (client.round, client.id, step) == (2, "b", 2)
            return super().loss(model, x, y, client)*(float("nan") if breaks else 1.)
    says(lambda: play(Breaks, rounds=4, eval_every=1, out=tmp_path), "client 'b' is nan in round 3, step 2")
    assert (tmp_path/"round-0002.safetensors").exists() and not (tmp_path/"round-0003.safetensors").exists()
    assert json.loads((tmp_path/"args.json").read_text())["rounds"] == 4
