"""`fit`: what its folder takes up, what its bar and its Ctrl-C say, which rounds and clients it plays."""
import io, json
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
import pytest, torch
import fdgnb
from conftest import bits
from fdgnb.core import FdgnbError
from fdgnb.data.augment import AUGMENTATIONS, Augment
from fdgnb.data.own import from_arrays
from fdgnb.federation.loop import Method
from fdgnb.federation.compose import method_class
from fdgnb.runs import records
from fdgnb.runs.fit import Run, folder_of, interruptible, prepare_run, progress_postfix, read_args, reserve_folder
from fdgnb.runs.setup import Federation

refused = lambda says: pytest.raises(FdgnbError, match=says)
SHORT = dict(target="blended", rounds=3, lr=.05, batch_size=16, progress=False)


def reserve(folder, data, method="fedavg", rounds=1, **kw):
    "Reserve a folder for a run, as if it had kept a round there."
    reserve_folder(Run(Federation(method, data, "blended", rounds, **kw), out=folder))
    (folder/"checkpoint.safetensors").touch()


def test_what_is_no_folder_is_refused():
    for bad in (5, True, ["a"], "~nobody_of_this_name/x"):
        with refused("wanted the path of a folder"): folder_of(bad)
    assert (folder_of(None), folder_of(""), folder_of(Path("a"))) == (None, None, Path("a"))
    with refused("a/args.json is damaged"): read_args(b"[1]", "a/args.json")


def test_a_folder_takes_the_same_run_alone(tiny, tmp_path):
    at = lambda seed: Run(Federation("fedavg", tiny, "blended", 1, seed), out=tmp_path)
    for seed in (0, 0): reserve_folder(at(seed))
    with refused("seed: 0 there, 1 now"): reserve_folder(at(1))
    assert [f.name for f in tmp_path.iterdir()] == ["args.json"]
    for damaged in (b"", b"[1, 2]", b"3", b"\xff\xfe", b"[" * 100_000, b"{'a': 1}"):
        (tmp_path/"args.json").write_bytes(damaged)
        with refused("args.json is damaged or was not written by fdgnb"): reserve_folder(at(0))


def edited(rate):
    "A method whose code holds a number."
    class Edited(Method):
        "FedAvg with another weight."
        def weight(self, server, k, upload): return rate
    return Edited


class Reads(Method):
    "FedAvg with weights that depend on the number of rounds."
    def weight(self, server, k, upload): return 1/server.rounds


@pytest.mark.parametrize("first, then, says", [
    ((edited(1.),), (edited(2.),), "another version of edited: choose another folder, or resume=False .*--no-resume"),
    (("fedavg", 3), ("fedavg", 2), "rounds: 3 there, 2 now"),
    ((Reads,), (Reads, 2), "of 1 rounds that cannot go on to 2: Reads reads the number of rounds")])
def test_another_method_or_number_of_rounds(first, then, says, tiny, tmp_path):
    for _ in range(2): reserve(tmp_path, tiny, *first)
    with refused(says): reserve(tmp_path, tiny, *then)


@pytest.fixture
def recipes():
    "The registry of augmentations, without the recipe `mine` afterwards."
    yield AUGMENTATIONS
    AUGMENTATIONS.pop("mine", None)


def test_another_recipe_under_the_name_of_an_augmentation(tiny, tmp_path, recipes):
    recipes["mine"] = Augment(flip=.5)
    reserve(tmp_path, tiny, augment="mine")
    recipes["mine"] = Augment(crop=(.7, 1.))
    with refused("another version of augmentation mine"): reserve(tmp_path, tiny, augment="mine")


def test_shares_of_the_rounds_forbid_more_of_them(tiny, tmp_path):
    reserve(tmp_path, tiny, rounds=2, lr_drops=(.5,))
    with refused("lr_drops are fractions of the rounds"): reserve(tmp_path, tiny, rounds=4, lr_drops=(.5,))


def test_a_folder_without_versions_is_of_another(tiny, tmp_path):
    reserve(tmp_path, tiny)
    file = tmp_path/"args.json"
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "versions"}))
    with refused("holds a run of another version of fdgnb: choose another folder"): reserve(tmp_path, tiny)


def test_started_again_a_folder_holds_the_new_run(tiny, tmp_path):
    fdgnb.fit("fedavg", tiny, **SHORT | dict(rounds=2), out=tmp_path)
    with refused("settings.lr: 0.05 there, 0.1 now"):
        fdgnb.fit("fedavg", tiny, **SHORT | dict(rounds=2, lr=.1), out=tmp_path)
    assert fdgnb.fit("fedavg", tiny, **SHORT | dict(rounds=1), out=tmp_path, resume=False).round == 1


def test_the_bar_averages_losses_and_scores():
    rows = [(1, c, "train", "training", "loss", v) for c, v in zip("ab", (1., 2.))]
    rows += [(1, c, "test", "aggregated", "accuracy", v) for c, v in zip("ab", (.2, .4))]
    assert progress_postfix(SimpleNamespace(target=None), rows) == dict(loss="1.500", acc="0.300")
    assert progress_postfix(SimpleNamespace(target="t"), rows) == dict(loss="1.500", acc="-")


def test_ctrl_c_says_what_is_kept(tmp_path):
    def pressed(out, *resume):
        "What is printed on Ctrl-C in a run."
        run = SimpleNamespace(out=out, round=2, fed=SimpleNamespace(rounds=3))
        with redirect_stdout(io.StringIO()) as said, suppress(KeyboardInterrupt), interruptible(run, False, *resume):
            raise KeyboardInterrupt
        return said.getvalue()
    assert "2 of 3 rounds: nothing is kept, for no" in pressed(None)
    assert "nothing is kept\n" in pressed(tmp_path)
    (tmp_path/"checkpoint.safetensors").touch()
    assert f"the same call goes on from the checkpoint in {tmp_path}" in pressed(tmp_path)
    assert "the same call, with resume=True, goes on" in pressed(tmp_path, False)


def test_a_prepared_run_has_twelve_rounds_and_a_folder_of_its_own(tiny):
    fed, folder, call = prepare_run(dict(method="fedavg", dataset=tiny, target="blended", workers=2))
    assert (fed.rounds, call["rounds"], call["workers"]) == (12, 12, 2)
    assert folder.name.startswith(f"{tiny.name}-blended-fedavg-seed0-")
    assert prepare_run(call)[1] == folder != prepare_run(call | dict(lr=.01))[1]
    assert prepare_run(call | dict(out="here"))[1] == Path("here")


def test_the_seed_picks_the_images_that_are_left(small):
    x = [Federation("fedavg", small, "blended", limit=50, seed=s).data["optical"].x for s in (0, 0, 1)]
    assert torch.equal(x[0], x[1]) and not torch.equal(x[0], x[2])


def test_a_run_goes_on_with_those_who_answer(tiny):
    half = fdgnb.fit("fedavg", tiny, **SHORT | dict(rounds=6), drop=.5, eval_every=0)
    answered = half.ledger.query("direction == 'up'").groupby("round").client.nunique()
    assert answered.between(1, 2).any() and len(answered) == 6
    nobody = [(2, c) for c in tiny.names if c != "blended"]
    with refused("round 2 failed: none of optical, inked"): fdgnb.fit("fedavg", tiny, **SHORT, drops=nobody)


def test_two_clients_per_round_and_equal_weights(tiny):
    two = fdgnb.fit("fedavg", tiny, **SHORT, per_round=2).ledger.query("direction == 'down'")
    assert two.groupby("round").client.nunique().tolist() == [2, 2, 2]
    few = fdgnb.fit("fedavg", tiny, **SHORT | dict(rounds=1), local_steps=3, client_weights="uniform", eval_every=0)
    assert method_class("fedavg")().weight(few.fed.server, "a", {"scalars.n": 7}) == 1.
    with refused("no client 'inkedd'; did you mean 'inked'"): few.model_of("inkedd")


@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
def test_bfloat16_has_bits_of_its_own_on_any_workers(tiny):
    one, two = (fdgnb.fit("fedavg", tiny, **SHORT, precision="bfloat16", workers=w) for w in (1, 2))
    whole = fdgnb.fit("fedavg", tiny, **SHORT)
    assert bits(one) == bits(two) != bits(whole)
    assert {v.dtype for v in one.fed.server.model.values()} - {torch.int64} == {torch.float32}
    score = lambda run: run.table().loc["last", "AVG"]
    assert abs(score(one) - score(whole)) <= .1


def test_a_run_is_saved_alike_each_time(tiny, tmp_path):
    run = fdgnb.fit("fedavg", tiny, **SHORT)
    written = []
    for name in "ab":
        records.save(run, tmp_path/name)
        written.append({p.name: p.read_bytes() for p in (tmp_path/name).iterdir()})
    assert written[0] == written[1] and "record.json" in written[0]


def test_data_of_one_class_are_refused(tiny):
    zeros = from_arrays({d: (tiny[d].x[tiny[d].y == 0], tiny[d].y[tiny[d].y == 0]) for d in tiny.names})
    with refused("has one class, '0': there is nothing to learn"): fdgnb.fit("fedavg", zeros, rounds=1)
