"""Uploads: what cannot be averaged is refused by client and key, what ruins the model names its client."""
import re
import numpy as np
import pytest
import torch
from conftest import bits, run
from fdgnb import FdgnbError, Method
from fdgnb.federation.compose import method_class
from fdgnb.runs.checkpoints import load_checkpoint

KEY = "model.head.weight"


def spoiled(change, client="inked", round=0, method="fedavg"):
    "A method whose client uploads something else from one round on: `change(upload)`."
    class Spoiled(method_class(method)):
        "A method with one odd client."
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
            "'optical' sends 'scalars.n', 'inked' does not$")


def times(factor):
    "Uploads with all weights multiplied."
    weight = lambda k, v: k.startswith("model.") and v.is_floating_point()
    return lambda u: {k: v*factor if weight(k, v) else v for k, v in u.items()}


@pytest.mark.parametrize("eval_every", [0, 1])
@pytest.mark.parametrize("factor", [1e30, 1e9])
def test_a_model_that_ruins_the_average(small, tmp_path, eval_every, factor):
    "The client that did it is named, in the round it did it; the round before stays."
    cls = spoiled(times(factor), round=1)
    at_once = "client 'inked' holds 'model.*after round 2"
    later = "after round 2 .*client 'inked' uploaded a model .* the others at most"
    refused(cls, small, at_once if factor > 1e12 else later, eval_every=eval_every, out=tmp_path)
    states, meta = load_checkpoint(tmp_path/"checkpoint.safetensors")
    assert len(meta["seconds"]) == 1
    model = {k: v for k, v in states["server"].items() if k.startswith("model.") and v.is_floating_point()}
    assert max(float(v.abs().max()) for v in model.values()) < 1e4


def test_infinite_weights_name_their_client(small):
    refused(spoiled(times(float("inf"))), small, "the upload of client 'inked' is not finite after round 1")


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


ODD = dict(
    meta=(lambda v: v.to("meta"), "without storage"), sparse=(lambda v: v.to_sparse(), "layout sparse_coo"),
    quantized=(lambda v: torch.quantize_per_tensor(v.float(), .1, 0, torch.qint8), "a quantized tensor"),
    complex=(lambda v: v.to(torch.complex64), r"complex64 \["), bool=(lambda v: v.bool(), r"bool \["),
    nested=(lambda v: torch.nested.nested_tensor([v.float().reshape(-1)]), "a nested tensor"),
    none=(lambda v: None, "a NoneType"), number=(lambda v: 1., "a float"), words=(lambda v: "1", "a str"),
    array=(lambda v: v.numpy(), "a ndarray"), dict=(lambda v: {"v": v}, "a dict"), list=(lambda v: [v], "a list"))


@pytest.mark.parametrize("key", ["model.", "stats.scaffold.", "scalars.n"])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_tensor_of_numbers(small, kind, key):
    "One line that names client and key, whatever the entry is for; a RuntimeError of torch named nobody."
    change, says = ODD[kind]
    def spoil(upload):
        q = next(q for q in upload if q.startswith(key))
        return upload | {q: change(upload[q])}
    cls = spoiled(spoil, method="scaffold")
    refused(cls, small, f"^the upload of client 'inked' holds '{re.escape(key)}.* as .*{says}", rounds=1)


@pytest.mark.parametrize("value", [2**63 - 1, -2**63, -1])
def test_a_counter_that_cannot_be(small, value):
    def spoil(upload):
        q = next(q for q in upload if q.endswith("num_batches_tracked"))
        return upload | {q: torch.full_like(upload[q], value)}
    refused(spoiled(spoil), small, "the upload of client 'inked' holds .*num_batches_tracked' with numbers", rounds=1)


@pytest.mark.parametrize("upload, says", [
    (lambda u: None, "is a NoneType: wanted a dict"), (lambda u: list(u.items()), "is a list: wanted a dict"),
    (lambda u: u | {3: torch.ones(1)}, "has the key 3"), (lambda u: u | {"v": torch.ones(1)}, "'v' names no kind"),
    (lambda u: u | {"stats.v": torch.ones(1)}, "'stats.v' names no owner")], ids="none list number kind owner".split())
def test_what_is_no_payload(small, upload, says):
    refused(spoiled(upload), small, f"the upload of client 'inked'.*{says}", rounds=1)


@pytest.mark.parametrize("value, says", [
    (float("nan"), "whole number"), (-1., "whole number"), (0., "whole number"), (1e30, "whole number"),
    (float("inf"), "whole number"), (2.5, "whole number"), (1000., "at most the 48 that it trains on")])
@pytest.mark.parametrize("method", ["fedavg", "arfl"])
def test_a_number_of_samples_that_cannot_be(small, method, value, says):
    "1e30 samples took the average over."
    spoil = spoiled(lambda u: u | {"scalars.n": torch.tensor(value, dtype=torch.float64)}, method=method)
    refused(spoil, small, f"the upload of client 'inked' states 'scalars.n' as .*{says}", rounds=1)


@pytest.mark.parametrize("method, key", [("groupdro", "scalars.reweighting.loss"), ("arfl", "scalars.reweighting.loss"),
                                         ("scaffold", "stats.scaffold."), ("fedavg", "scalars.loss"),
                                         ("dann", "stats.dann."), ("fednova", "scalars.fednova.a")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_numbers_beside_the_model(small, method, key, value):
    "A NaN among the losses made GroupDRO uniform for ever."
    spoil = lambda u: u | {q: torch.full_like(v, value) for q, v in u.items() if q.startswith(key)}
    text = refused(spoiled(spoil, method=method), small, "^the upload of client 'inked'", rounds=2)
    assert key in text and "after round 1" in text


@pytest.mark.parametrize("change", [lambda v: v.reshape(-1)[:1], lambda v: v.double(), lambda v: v[None]],
                         ids=["broadcast", "double", "deeper"])
@pytest.mark.parametrize("client", ["optical", "inked"])
def test_statistics_of_another_shape(small, client, change):
    "A control variate of one number was broadcast; both clients are named, for the first may be the odd one."
    spoil = lambda u: {q: change(v) if q.startswith("stats.") else v for q, v in u.items()}
    text = refused(spoiled(spoil, client, method="scaffold"), small, "does not go with that of", rounds=1)
    assert "'inked' sends 'stats.scaffold." in text and "'optical' as float" in text


def test_a_statistic_that_lacks(small):
    spoil = lambda u: {q: v for q, v in u.items() if not q.startswith("stats.")}
    refused(spoiled(spoil, method="scaffold"), small, "'optical' sends 'stats.scaffold.*, 'inked' does not", rounds=1)


@pytest.mark.parametrize("change, says", [
    (lambda v: v*float("nan"), "the offer of client 'inked' is not finite after round 1"),
    (lambda v: v[:, :1], "the offer of client 'inked' does not go with that of 'optical'"),
    (lambda v: v.to_sparse(), "the offer of client 'inked' holds 'stats.harmofl.mean' as a tensor of layout")],
    ids=["nan", "shape", "sparse"])
def test_offers(small, change, says):
    class Spoiled(method_class("harmofl")):
        "HarmoFL with one odd client."
        def offer(self, model, client):
            out = super().offer(model, client)
            return {q: change(v) for q, v in out.items()} if client.id == "inked" else out
    refused(Spoiled, small, says, rounds=1)


def rows_of(declared):
    "FedAvg whose clients send a row for each of their samples, declared or not."
    class Rows(Method):
        "FedAvg and a row a sample."
        varying = ("features.rows",) if declared else ()
        def upload(self, model, client):
            return super().upload(model, client) | {"features.rows.x": torch.ones(client.n(), 2)}
    return Rows


def test_what_differs_by_client_is_declared(tiny):
    assert run(rows_of(True), tiny, rounds=1).round == 1
    refused(rows_of(False), tiny, r"as float32 \[.*; to let it differ: varying = \('features.rows.x',\)")


def test_the_last_checkpoint_is_sound(small, tmp_path):
    "What the server made of a round is looked at before it is kept."
    class Poisons(Method):
        "FedAvg whose server keeps a NaN after round 2."
        def finish(self, server): server.state["poisons.v"] = torch.tensor(1. if server.round == 0 else float("nan"))
    with pytest.raises(FdgnbError, match=r"the state of the server is not finite after round 2 \(poisons.v\)"):
        run(Poisons, small, rounds=3, out=tmp_path)
    states, meta = load_checkpoint(tmp_path/"checkpoint.safetensors")
    assert len(meta["seconds"]) == 1 and float(states["server"]["poisons.v"]) == 1


def test_an_honest_client_goes_on(small, tmp_path):
    "Nothing of a round that was refused is kept, so that the first round may be played by another version."
    with pytest.raises(FdgnbError, match="client 'inked'"): run(spoiled(times(float("nan"))), small, out=tmp_path)
    class Spoiled(Method): "The same, honest."
    assert run(Spoiled, small, out=tmp_path).round == 2


def test_what_may_be_unknown_is_declared(small):
    "ARFL keeps NaN for a client that has not answered yet; another method's NaN in a client's state is refused."
    assert run("arfl", small, per_round=2, rounds=1).fed.server.state["arfl.loss"].isnan().any()
    class Keeps(Method):
        "FedAvg that keeps what is not finite."
        def end(self, model, client): client.state["kept"] = torch.tensor(float("inf"))
    refused(Keeps, small, r"the state of the client 'optical' is not finite after round 1 \(kept\)")
    Keeps.gaps = ("kept",)
    assert run(Keeps, small).round == 2


def test_no_step_no_loss(small):
    assert np.isnan(run("fedavg", small, local_epochs=0, rounds=1).history.value).all()
