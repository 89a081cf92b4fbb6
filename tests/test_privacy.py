"""Differential privacy: the sum by hand, its bits, what is refused, the accountant against closed forms."""
import math
import pytest
import torch
from torch import nn
import fdgnb
from conftest import bits, one_line, run, same_bits, says
from digests import data
from fdgnb.federation.compose import METHODS, method_class, sends_model_alone
from fdgnb.federation.loop import Server, downloads, federated_round, makes_offers, server_update
from fdgnb.federation.privacy import clip_change, count_drawn, describe_privacy, epsilon, spend
from fdgnb.runs.records import load
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings, make
from fdgnb.vectors import norm
from pairs import light

DP = dict(dp_clip=.5, dp_noise=.1, client_weights="uniform")
ALIKE = "ditto dsbn fedbn lgfedavg similarity subsample voting".split()    # here alone, by hooks that could do more
PRIVATE = "fedavg fedprox fedbn fedsam fedasam mixup moon labelsmoothing budget".split()


NORMED = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))


def play(*changes, clients="abcd", **given):
    "The model after a round from 0 to which clients send so much change."
    settings = Settings(**dict(client_weights="uniform", dp_clip=1.) | given)
    server = Server({"w": torch.zeros(len(changes[0])), "n": torch.tensor(3)}, clients, settings)
    uploads = [(k, {"model.w": torch.tensor(c), "model.n": torch.tensor(9)}) for k, c in zip(clients, changes)]
    server_update(method_class("fedavg")(), server, uploads, 0)
    return server.model


def test_no_client_moves_the_model_further_than_its_share():
    "The length over all entries counts, not one entry; a short change stays; integers are the server's."
    model = play([3e6, 4e6], [.3, .4], clients="ab")
    torch.testing.assert_close(model["w"], torch.tensor([.6 + .3, .8 + .4])/2)
    assert model["n"] == 3
    assert norm(clip_change({"a": torch.ones(9), "b": torch.ones(7)}, 2.)) == pytest.approx(2)


def test_who_is_absent_leaves_the_divisor():
    "A divisor that counts who answered would tell of a client."
    torch.testing.assert_close(play([1., 0.])["w"], torch.tensor([1/4, 0.]))
    torch.testing.assert_close(play([1., 0.], per_round=2)["w"], torch.tensor([1/2, 0.]))
    assert [count_drawn(Settings(per_round=n), 5) for n in (None, 2, 9)] == [5, 2, 5]


def test_the_noise_covers_every_entry_that_was_sent():
    n = 40_000
    w = play([0.]*n, [0.]*n, dp_noise=3., dp_clip=2.)["w"]
    assert float(w.std()) == pytest.approx(3*2/4, rel=.02) and abs(float(w.mean())) < .03


def test_a_running_variance_stays_a_variance():
    server = Server({"bn.running_var": torch.full((500,), .1)}, "a", Settings(**DP | dict(dp_noise=9.)))
    server_update(method_class("fedavg")(), server, [("a", {"model.bn.running_var": torch.full((500,), .1)})], 0)
    var = server.model["bn.running_var"]
    assert var.min() == 0 and var.max() > 1


@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_same_bits_on_any_workers_and_after_a_stop(name, small, monkeypatch, tmp_path):
    "fedbn: its BatchNorm stays with the clients, and no noise falls on what nobody sent."
    given = DP | dict(local_steps=1) | (dict(backbone=NORMED, unseen="initial") if name == "fedbn" else {})
    whole = same_bits(monkeypatch, tmp_path, name, small, **given)
    if name == "fedavg": return
    start = Federation(name, small, "blended", 2, **given).server.model
    kept = [q for q, v in whole.fed.server.model.items() if torch.equal(v, start[q])]
    assert sum(q.endswith("running_var") for q in kept) and start.keys() - {*kept}


def test_the_key_hides_noise_and_draw_of_who_knows_the_seed(small, monkeypatch):
    given = dict(rounds=1, per_round=2, **DP)
    plain = run("fedavg", small, **given)
    monkeypatch.setenv("FDGNB_DP_KEY", "a word")
    hidden = run("fedavg", small, **given)
    assert bits(hidden) != bits(plain) and bits(run("fedavg", small, **given)) == bits(hidden)
    free = run("fedavg", small, rounds=1, per_round=2)
    monkeypatch.delenv("FDGNB_DP_KEY")
    assert bits(run("fedavg", small, rounds=1, per_round=2)) == bits(free)


def test_settings_that_do_not_go_together():
    says(lambda: make(Settings, dict(dp_noise=1.), "setting"), "dp_noise=1 needs dp_clip")
    says(lambda: make(Settings, dict(dp_clip=1.), "setting"), "client_weights='uniform'")


@pytest.mark.parametrize("name", METHODS.names())
def test_who_may_be_private(name, small):
    "A method whose server makes more of the uploads than a mean is refused before data are read."
    try: Federation(name, "/nowhere", "none", 1, **DP)
    except fdgnb.FdgnbError as e: text = str(e)
    assert "\n" not in text
    refused = text.startswith("dp_clip: of method")
    cls = METHODS[name]
    own = [hook for hook in ("aggregate", "decide", "weight", "finish", "gather", "download")
           if getattr(cls, hook) is not getattr(fdgnb.Method, hook)]
    if own: assert refused or cls.uses_target
    if name in PRIVATE: assert not refused, text


def names_sent(name, small):
    "(names down, names up) of the payloads of two rounds of a method, `n` and `loss` apart; offers too."
    fed = Federation(name, small, "t", 2, lr=.01, batch_size=8, local_steps=1, **light(name))
    down, up, method = set(), set(), fed.method
    took, sent = method.receive, {hook: getattr(method, hook) for hook in ("offer", "upload")}

    def receive(model, client, download):
        down.update(download)
        return took(model, client, download)

    def spy(hook):
        def send(model, client):
            payload = sent[hook](model, client)
            up.update(payload)
            return payload
        return send

    method.receive, method.upload = receive, spy("upload")
    if makes_offers(method, 0): method.offer = spy("offer")
    now = downloads(method, fed.server)
    for r in range(2): now = federated_round(method, fed.server, fed.clients, fed.net, now, r)
    return down, up - {"scalars.n", "scalars.loss"}


@pytest.mark.parametrize("name", METHODS.names())
def test_who_sends_a_model_alone(name):
    "What the hooks say is what is sent: a model under the same names both ways, or something else."
    down, up = names_sent(name, data(n=12))
    alone = all(k.startswith("model.") for k in down | up) and down == up
    assert sends_model_alone(METHODS[name]()) == (alone and name not in ALIKE)
    assert alone or name not in ALIKE


def test_epsilon_of_full_participation_is_the_gaussian_mechanisms():
    "RDP of T rounds is T alpha / 2z^2, and epsilon the least over alpha (Canonne, Kamath, Steinke 2020, Prop. 12)."
    pytest.importorskip("opacus")
    for z, rounds, delta in [(1., 1, 1e-5), (4., 30, 1e-3), (30., 100, 1e-6)]:
        orders = [1 + i/100 for i in range(1, 20_000)]
        least = min(rounds*a/(2*z*z) + math.log1p(-1/a) - math.log(delta*a)/(a - 1) for a in orders)
        assert epsilon(z, rounds, 1., delta) == pytest.approx(least, rel=.01)
    assert epsilon(1., 10, .1, 1e-3) < epsilon(1., 10, 1., 1e-3)
    assert epsilon(0., 1) == math.inf and epsilon(1., 0) == 0


def test_a_run_says_what_it_is_worth(small, capsys, tmp_path):
    pytest.importorskip("opacus")
    r = run("fedavg", small, rounds=2, eval_every=1, per_round=2, **DP | dict(dp_noise=2., dp_clip=.01))
    line = capsys.readouterr().out.strip()
    assert line.startswith("privacy: epsilon") and "\n" not in line and "0.5 of them" in line
    assert r.privacy["epsilon"] == epsilon(2., 2, .5, 4**-1.1) < r.privacy["unsampled"]
    r.save(tmp_path)
    assert load(tmp_path).record["privacy"]["epsilon"] == r.privacy["epsilon"]
    assert run("fedavg", small, rounds=1).privacy is None


def test_without_opacus_a_run_ends_and_names_the_extra(monkeypatch):
    monkeypatch.setattr("fdgnb.federation.privacy.find_spec", lambda name: None)
    spent = spend(Settings(**DP), 4, 2)
    assert spent["epsilon"] is None and "fdgnb[privacy]" in describe_privacy(spent)
    with pytest.raises(fdgnb.FdgnbError) as e: epsilon(1., 1)
    assert one_line(e) and "fdgnb[privacy]" in str(e.value)
