"Hostile uploads: what cannot be averaged is refused in one line that names the client, and the round before is kept."
import pytest
import torch
import fdgnb
from conftest import bits, run, says
from fdgnb.federation.compose import METHODS


def spoiled(change, method="fedavg", first=0, hook="upload"):
    "A method whose client `inked` sends something else from a round on: `change(payload)`."
    class Spoiled(METHODS.get(method)):
        "A method with one odd client."
    def send(self, model, client):
        payload = getattr(METHODS.get(method), hook)(self, model, client)
        return change(dict(payload)) if client.id == "inked" and client.round >= first else payload
    setattr(Spoiled, hook, send)
    return Spoiled


def each(kind, change):
    "Change every entry of an upload whose name begins so."
    return lambda upload: {k: change(v) if k.startswith(kind) else v for k, v in upload.items()}


def weights(change):
    "Change the weights of the head."
    return lambda upload: {k: change(v) if "head" in k and k.endswith("weight") else v for k, v in upload.items()}


def without(kind): return lambda upload: {k: v for k, v in upload.items() if not k.startswith(kind)}


def with_samples(number): return each("scalars.n", lambda v: torch.tensor(number, dtype=torch.float64))


STATS, LOSS = "stats.", "scalars.reweighting.loss"
HOSTILE = [                                                  # method, what becomes of the upload, a word of the refusal
    ("fedavg", weights(lambda v: v[:1]), "head"), ("fedavg", weights(lambda v: v.double()), "float64"),
    ("fedavg", weights(lambda v: v.to("meta")), "meta"), ("fedavg", weights(lambda v: v.to_sparse()), "sparse"),
    ("fedavg", weights(lambda v: torch.quantize_per_tensor(v, .1, 0, torch.qint8)), "qint8"),
    ("fedavg", weights(lambda v: v.numpy()), "ndarray"), ("fedavg", weights(lambda v: v*float("nan")), "not finite"),
    ("fedavg", without("model.head"), "head"), ("fedavg", without("scalars.n"), "scalars.n"),
    ("fedavg", lambda upload: upload | {"model.new": torch.ones(2)}, "model.new"),
    ("fedavg", lambda upload: upload | {3: torch.ones(1)}, "key 3"), ("fedavg", lambda upload: None, "NoneType"),
    ("fedavg", with_samples(float("nan")), "whole number"), ("fedavg", with_samples(0.), "whole number"),
    ("fedavg", with_samples(2.5), "whole number"),
    ("fedavg", with_samples(1000.), "at most the 48"),       # more than it has: it would outweigh the others
    ("groupdro", each(LOSS, lambda v: v*float("nan")), LOSS),          # made the weights uniform for ever
    ("arfl", each(LOSS, lambda v: torch.full_like(v, 1e30)), LOSS),
    ("scaffold", each(STATS, lambda v: v.reshape(-1)[:1]), "stats.scaffold"),    # was broadcast
    ("scaffold", without(STATS), "stats.scaffold")]


@pytest.mark.parametrize("method, change, word", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_upload_is_refused(method, change, word, small):
    says(lambda: run(spoiled(change, method), small, rounds=1, local_steps=1), "'inked'", word)


@pytest.mark.parametrize("change, word", [
    (lambda v: v*float("nan"), "not finite"), (lambda v: v[:, :1], "offer"), (lambda v: v.to_sparse(), "sparse")])
def test_a_hostile_offer_is_refused(change, word, small):
    spoil = lambda offer: {k: change(v) for k, v in offer.items()}
    says(lambda: run(spoiled(spoil, "harmofl", hook="offer"), small, rounds=1), "'inked'", word)


@pytest.mark.parametrize("factor, settings", [(1e30, {}), (1e9, {}), (100., dict(max_change=50.))])
def test_a_model_far_away_is_refused_and_the_round_before_is_kept(factor, settings, small, tmp_path):
    far = each("model.", lambda v: v*factor if v.is_floating_point() else v)
    call = dict(rounds=3, eval_every=1, out=tmp_path)
    says(lambda: run(spoiled(far, first=1), small, **call | settings), "'inked'", "round 2")
    assert fdgnb.load(tmp_path).rules["last"] == 1


def test_a_limit_that_nobody_reaches_changes_no_bit(small):
    assert bits(run("fedavg", small, max_change=1e3)) == bits(run("fedavg", small))


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {1, 2}, b"x", torch.ones(2, dtype=torch.complex64),
                                   torch.ones(2, requires_grad=True), torch.tensor(float("inf"))], ids=range(7))
def test_a_state_that_a_checkpoint_would_not_give_back_is_refused(value, small):
    "With or without a folder, else a resumed run would go on otherwise."
    class Keeps(fdgnb.Method):
        "FedAvg whose clients keep something."
        def end(self, model, client): client.state["kept"] = value
    says(lambda: run(Keeps, small, rounds=1), "'optical'", "kept")


def test_what_a_server_makes_of_a_round_is_looked_at_before_it_is_kept(small, tmp_path):
    class Poisons(fdgnb.Method):
        "FedAvg whose server keeps a NaN after round 2."
        def finish(self, server): server.state["poisons.v"] = torch.tensor(1. if server.round == 0 else float("nan"))
    says(lambda: run(Poisons, small, rounds=3, eval_every=1, out=tmp_path), "not finite after round 2", "poisons.v")
    assert fdgnb.load(tmp_path).rules["last"] == 1


def test_what_differs_by_client_or_may_be_unknown_is_declared(tiny):
    class Rows(fdgnb.Method):
        "FedAvg whose clients send a row for each of their samples."
        def upload(self, model, client):
            return super().upload(model, client) | {"features.rows.x": torch.ones(client.n(), 2)}
    says(lambda: run(Rows, tiny, rounds=1), "varying = ('features.rows.x',)")
    Rows.varying = ("features.rows",)
    assert run(Rows, tiny, rounds=1).round == 1
    class Keeps(fdgnb.Method):
        "FedAvg whose clients keep what is not finite."
        gaps = ("kept",)
        def end(self, model, client): client.state["kept"] = torch.tensor(float("inf"))
    assert run(Keeps, tiny, rounds=1).round == 1
