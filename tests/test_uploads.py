"""Uploads: what cannot be averaged is refused by client and key, what ruins the model names its client."""
import re
import pytest
import torch
from conftest import bits, run
from fdgnb import FdgnbError, Method
from fdgnb.runs.checkpoints import load_checkpoint

KEY = "model.head.weight"


def spoiled(change, client="inked", round=0):
    "FedAvg whose client uploads something else from one round on: `change(upload)`."
    class Spoiled(Method):
        "FedAvg with one odd client."
        def upload(self, model, client_):
            out = super().upload(model, client_)
            return change(dict(out)) if client_.id == client and client_.round >= round else out
    return Spoiled


def refused(cls, data, says, **kw):
    with pytest.raises(FdgnbError) as e: run(cls, data, **dict(rounds=3) | kw)
    text = str(e.value)
    assert "\n" not in text and re.search(says, text), text
    assert e.value.__suppress_context__
    return text


def head(small):
    "The name of the last weight, and the client's uploads' keys."
    return [k for k in run("fedavg", small, rounds=1).fed.server.state if k.endswith("weight")][-1]


@pytest.mark.parametrize("change, says", [
    (lambda v: v[:1], r"as float32 \[1, \d+\], the server as float32 \[\d+, \d+\]"),
    (lambda v: v.sum(), r"as float32 \[\], the server as"),
    (lambda v: v.double(), "as float64"),
    (lambda v: v.half(), "as float16")], ids=["slice", "scalar", "double", "half"])
def test_shape_and_type(small, change, says):
    "Each was broadcast or cast into the average without a word."
    key = head(small)
    text = refused(spoiled(lambda u: u | {key: change(u[key])}), small, says)
    assert "client 'inked'" in text and key in text


def test_a_missing_and_an_unknown_key(small):
    key = head(small)
    drop = lambda u: {k: v for k, v in u.items() if k != key}
    refused(spoiled(drop), small, f"client 'inked'.*'optical' sends '{key}', 'inked' does not")
    new = spoiled(lambda u: u | {"model.new": torch.ones(2)})
    refused(new, small, "client 'inked' holds 'model.new', which")
    refused(spoiled(lambda u: {k: v for k, v in u.items() if k != "scalars.n"}), small,
            "client 'inked' lacks 'scalars.n'")


def times(factor):
    "Uploads with all weights multiplied."
    weight = lambda k, v: k.startswith("model.") and v.is_floating_point()
    return lambda u: {k: v*factor if weight(k, v) else v for k, v in u.items()}


@pytest.mark.parametrize("eval_every", [0, 1])
@pytest.mark.parametrize("factor", [1e30, 1e9])
def test_a_model_that_ruins_the_average(small, tmp_path, eval_every, factor):
    "The client that did it is named, in the round it did it; the round before stays."
    cls = spoiled(times(factor), round=1)
    refused(cls, small, r"after round 2 .*client 'inked' uploaded a model .* the others at most",
            eval_every=eval_every, out=tmp_path)
    states, meta = load_checkpoint(tmp_path/"checkpoint.safetensors")
    assert len(meta["seconds"]) == 1
    model = {k: v for k, v in states["server"].items() if k.startswith("model.") and v.is_floating_point()}
    assert max(float(v.abs().max()) for v in model.values()) < 1e4


def test_infinite_weights_name_their_client(small):
    refused(spoiled(times(float("inf"))), small, "the model of client 'inked' is not finite after round 1")


def test_max_change(small):
    "Off by default; a limit names who is above it, and does not change a run that stays below."
    away = r"client 'inked' uploaded a model .* away .* in round 1: more than max_change=50"
    refused(spoiled(times(100.)), small, away, max_change=50)
    assert bits(run("fedavg", small, max_change=1e3)) == bits(run("fedavg", small))
    with pytest.raises(FdgnbError, match="max_change"): run("fedavg", small, max_change=-1.)


@pytest.mark.parametrize("value, says", [
    ((1, 2), "a tuple back"), ({1: 2}, "a dict back"), ({1, 2}, "a set back"), (b"x", "a bytes back"),
    (torch.ones(2, dtype=torch.complex64), "a Tensor back"), (torch.ones(2, requires_grad=True), "a Tensor")],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else "")
def test_state_that_a_checkpoint_would_change(small, value, says):
    "Refused in the first round, with or without a folder: a resumed run would have gone on otherwise."
    class Keeps(Method):
        "FedAvg that keeps something."
        def end(self, model, client): client.state["kept"] = value
    refused(Keeps, small, f"client 'optical'.state\\['kept'\\]: a checkpoint does not give {says}")


def test_state_with_a_key_that_is_no_name(small):
    class Keeps(Method):
        "FedAvg that keeps something under a number."
        def end(self, model, client): client.state[3] = 1.
    refused(Keeps, small, "does not give the int 3 back")


def test_default_type(small):
    torch.set_default_dtype(torch.float64)
    try: refused("fedavg", small, "torch's default type is torch.float64, a run computes in float32")
    finally: torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method, hyper", [("fedsb", dict(S=1)), ("fedka", dict(samples=1))])
def test_one_sample_per_pass(small, method, hyper):
    refused(method, small, "on a single sample per pass .*=1.*too few for BatchNorm", **hyper)
