"A run's folder: who may go on there, kills and Ctrl-C; what goes on gives the same bits."
import os, signal, subprocess, sys, time
from pathlib import Path
import pytest
import torch
import fdgnb
from conftest import bits, run, same_bits, says
from fdgnb.data.augment import AUGMENTATIONS, Augment
from fdgnb.federation.compose import METHODS
from fdgnb.models import MODELS, add_backbone

HERE = Path(__file__).resolve().parent


# ---- what makes a run another run

def test_a_folder_takes_the_same_run_or_one_of_more_rounds(tiny, tmp_path):
    two = run("fedavg", tiny, rounds=2, out=tmp_path)
    assert bits(run("fedavg", tiny, rounds=2, out=tmp_path)) == bits(two)
    assert bits(run("fedavg", tiny, rounds=3, out=tmp_path)) == bits(run("fedavg", tiny, rounds=3))
    says(lambda: run("fedavg", tiny, rounds=2, out=tmp_path), "rounds: 3 there, 2 now")
    says(lambda: run("fedavg", tiny, rounds=3, lr=.1, out=tmp_path), "settings.lr: 0.05 there, 0.1 now")
    says(lambda: run("fedavg", tiny, rounds=3, seed=1, out=tmp_path), "seed: 0 there, 1 now", "resume=False")
    assert run("fedavg", tiny, rounds=1, out=tmp_path, resume=False).round == 1


class Reads(fdgnb.Method):
    "FedAvg with weights that depend on the number of rounds."
    def weight(self, server, k, upload): return 1/server.rounds


@pytest.mark.parametrize("method, given, word", [
    (Reads, {}, "reads the number of rounds"), ("fedavg", dict(lr_drops=(.5,)), "fractions of the rounds"),
    ("fedavg", dict(schedule="cosine"), "spans the rounds")])
def test_a_run_that_depends_on_its_rounds_is_not_prolonged(method, given, word, tiny, tmp_path):
    run(method, tiny, rounds=2, out=tmp_path, **given)
    says(lambda: run(method, tiny, rounds=3, out=tmp_path, **given), word)


def weighs(what, before=""):
    "The text of a method whose weight is an expression."
    return f"{before}\nclass Mine(Method):\n    def weight(self, server, k, upload): return {what}\n"


OWN = dict(                                                  # methods of one's own, in which a number is edited
    code=weighs("{n}."), table=weighs("T['a']", "T = {{'a': {n}}}"), function=weighs("f()", "def f(): return {n}"),
    loss=weighs("T(1, 1)", "class T(torch.nn.Module):\n    def forward(self, a, b): return {n}*a\nT = T()"))


def defined(text, n):
    "The method of a text, as a notebook's cell defines it."
    names = dict(__name__="__main__", Method=fdgnb.Method, torch=torch)
    exec(text.format(n=n), names)
    return names["Mine"]


@pytest.mark.parametrize("text", OWN.values(), ids=OWN)
def test_an_edited_method_is_another_and_the_same_text_is_not(text, small, tmp_path):
    call = dict(rounds=1, local_steps=1, out=tmp_path)
    run(defined(text, 1), small, **call)
    run(defined(text, 1), small, **call)
    says(lambda: run(defined(text, 2), small, **call), "another version of mine")


def test_what_is_registered_counts(small, tmp_path):
    def play(width, crop):
        def build(n, channels): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels*784, width),
                                                           torch.nn.ReLU(), torch.nn.Linear(width, n))
        add_backbone("zz", build)
        AUGMENTATIONS["zz"] = Augment(crop=crop)
        try: return run("fedavg", small, rounds=1, local_steps=1, backbone="zz", augment="zz", out=tmp_path)
        finally: del MODELS["zz"], AUGMENTATIONS["zz"]
    play(4, (.7, 1.))
    play(4, (.7, 1.))
    says(lambda: play(5, (.7, 1.)), "another version of model zz")
    says(lambda: play(4, (.8, 1.)), "another version of augmentation zz")


def test_a_raised_version_of_ours_is_refused(small, tmp_path, monkeypatch):
    run("fedavg", small, rounds=1, out=tmp_path)
    monkeypatch.setattr(METHODS.get("fedavg"), "version", 1_000)
    says(lambda: run("fedavg", small, rounds=1, out=tmp_path), "another version of fedavg")


# ---- kills

KEPT = dict(keep_optimizer=True, weight_decay=.1, warmup=1, rounds=3)


@pytest.mark.parametrize("given", [
    dict(optimizer="sgd", momentum=.9), dict(optimizer="adamw", schedule="cosine"),
    dict(augment=lambda x, rng: x.roll(int(torch.randint(3, (1,), generator=rng)), 3)),
    dict(class_weights={"3": 5., "7": .5}), dict(precision="bfloat16"), dict(per_round=2, drop=.2, augment="ga")],
    ids="sgd adamw function weights bfloat16 some".split())
@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
def test_on_any_workers_stopped_and_resumed_a_run_has_the_same_bits(given, tiny, monkeypatch, tmp_path):
    whole = same_bits(monkeypatch, tmp_path, "fedavg", tiny, local_steps=2, **KEPT | given)
    assert bits(whole) != bits(run("fedavg", tiny, local_steps=2, **KEPT))


KILLED = """
import os, signal, sys, fdgnb
from conftest import run, slice_of
data, seen = slice_of(fdgnb.get_dataset("digits"), 60), [0]
link, replace = os.link, os.replace
def dies(act):
    def do(*names, **how):
        seen[0] += 1
        if seen[0] == int(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)
        return act(*names, **how)
    return do
os.link, os.replace = dies(link), dies(replace)
run("ditto", data, rounds=3, eval_every=1, local_steps=2, lr=.3, out=sys.argv[1])
"""


def test_killed_between_any_two_files_the_folder_stays_whole(small, tmp_path):
    "Each start dies one writing later than the last; what is left is read, and goes on to the same bits."
    for n in (2, 6):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(n)]
        p = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
        assert p.returncode == -signal.SIGKILL, p.stderr
    whole = run("ditto", small, rounds=3, eval_every=1, local_steps=2, lr=.3)
    done = run("ditto", small, rounds=3, eval_every=1, local_steps=2, lr=.3, out=tmp_path)
    assert bits(done) == bits(whole) and done.rows == whole.rows
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))
    kept = fdgnb.load(tmp_path)
    for rule in ("last", "source_val", "target"):
        for k, v in kept.model_of("inked", rule).state_dict().items():
            assert torch.equal(v, whole.model_of("inked", rule).state_dict()[k])


LONG = """
import os, sys, threading, fdgnb
from conftest import run, slice_of
class Long(fdgnb.Method):
    "FedAvg whose second round would take days."
    def sample(self, client, rng):
        for n in range(1 if client.round == 0 else 100_000): yield from super().sample(client, rng)
    def begin(self, model, client, download):
        if client.round == 1: os.write(1, b"long\\n")
data = slice_of(fdgnb.get_dataset("digits"), 60)
try: run(Long, data, rounds=3, batch_size=50, workers=2, out=sys.argv[1], eval_every=1)
except KeyboardInterrupt:
    for thread in threading.enumerate():
        if thread.name.startswith("fdgnb"): thread.join(20)
    print("ended", [thread.name for thread in threading.enumerate() if thread.name.startswith("fdgnb")], flush=True)
"""


def test_ctrl_c_ends_within_a_step_and_keeps_the_round_before(tmp_path):
    pipe = subprocess.PIPE
    p = subprocess.Popen([sys.executable, "-c", LONG, str(tmp_path)], cwd=HERE, stdout=pipe, stderr=pipe, text=True)
    try:
        assert p.stdout.readline() == "long\n", p.stderr.read()
        time.sleep(.3)
        os.kill(p.pid, signal.SIGINT)
        out, err = p.communicate(timeout=60)
    finally: p.kill()
    assert "ended []" in out, (out, err)
    assert fdgnb.load(tmp_path).rules["last"] == 1


@pytest.mark.parametrize("out", [5, True, ["a"], "~nobody_of_this_name/x", "/proc/nowhere", "a\0b"])
def test_what_is_no_folder_is_refused(out, tiny): says(lambda: run("fedavg", tiny, out=out), "")
