"""Differential privacy: the sum by hand, its bits, what is refused, the accountant against closed forms."""
import math
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from torch import nn
import fdgnb
from conftest import bits, one_line, run, same_bits, says
from digests import data
from fdgnb.federation.compose import METHODS, method_class, sends_model_alone
from fdgnb.federation.engine import ENGINES
from fdgnb.federation.loop import Server, downloads, federated_round, makes_offers, server_update
from fdgnb.federation.privacy import (check_secret, clip_change, count_drawn, describe_privacy, draw_normal, epsilon,
                                      make_key, spend)
from fdgnb.federation.rounds import try_selection
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


def noise_of(changes, noise=1., clients="abcd", clip=9.):
    "What a round adds to the clipped sum of some clients' changes, in units of a deviation."
    changes = {k: torch.full((5000,), v) for k, v in changes.items()}
    server = Server({"w": torch.zeros(5000)}, clients, Settings(client_weights="uniform", dp_clip=clip, dp_noise=noise))
    server_update(method_class("fedavg")(), server, [(k, {"model.w": v}) for k, v in changes.items()], 0)
    return (server.model["w"]*len(clients) - sum(changes.values()))/(noise*clip)


def test_noise_of_another_sum_is_independent():
    "Else the round played once more without a client, or with less noise, gives the noise away by subtraction."
    base = noise_of(dict(a=.1, b=.05))
    torch.testing.assert_close(noise_of(dict(a=.1, b=.05)), base, rtol=0, atol=0)
    others = [noise_of(dict(a=.1)), noise_of(dict(a=.1, b=.05), noise=2.), noise_of(dict(a=.1, b=.05), clip=8.)]
    for other in others:
        assert abs(float(np.corrcoef(base, other)[0, 1])) < .07 and float(other.std()) == pytest.approx(1, rel=.05)


def test_a_key_is_worth_more_than_32_bits():
    "torch's generator takes a seed modulo 2^32; keys of equal low bits, other entries and rounds have other streams."
    keys = [make_key(0, 0, "w"), make_key(2**32, 0, "w"), make_key(0, 1, "w"), make_key(0, 0, "v")]
    drawn = np.stack([draw_normal(key, 100_001) for key in keys])
    assert abs(np.corrcoef(drawn) - np.eye(4)).max() < .015
    np.testing.assert_allclose([drawn.mean(), drawn.std(), (drawn**4).mean()], [0, 1, 3], atol=.05)
    halves = drawn[0, :50_000], drawn[0, 50_000:-1]
    assert abs(np.corrcoef(*halves)[0, 1]) < .02 and abs(drawn).max() < 8.6
    assert [len(draw_normal("k", n)) for n in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_the_draw_of_clients_is_keyed_and_fair(monkeypatch):
    "Under dp_clip each client is as likely, and a key gives other rounds than none."
    fed = SimpleNamespace(settings=Settings(per_round=2, **DP), seed=0, server=Server({}, "abcde"))
    draw = lambda: ["".join(try_selection(fed, r)[0]) for r in range(500)]
    free = draw()
    assert all(abs(sum(k in names for names in free) - 200) < 50 for k in "abcde") and draw() == free
    sizes = np.bincount([len(names) for names in free], minlength=6)/500           # each by itself: binomial
    np.testing.assert_allclose(sizes, [math.comb(5, m)*.4**m*.6**(5 - m) for m in range(6)], atol=.06)
    monkeypatch.setenv("FDGNB_DP_KEY", "a word")
    assert sum(a == b for a, b in zip(free, draw())) < 100


@pytest.mark.parametrize("engine", ["threads", "flower"])
def test_a_round_for_which_nobody_is_drawn_is_noise(small, monkeypatch, engine):
    "And nothing else, over messages as on threads; nothing is sent."
    if engine == "flower": pytest.importorskip("flwr")
    monkeypatch.setitem(ENGINES, "flower", "loopback:open_loopback")
    given = dict(per_round=1, local_steps=1, eval_every=1, engine=engine, seed=6, **DP)
    before, r = (run("fedavg", small, rounds=n, **given) for n in (1, 2))
    assert {row[0] for row in r.rows if row[3] == "training"} == {1} and {row[0] for row in r.book.rows} == {1}
    moved = torch.cat([(v - before.model.state_dict()[k]).flatten() for k, v in r.model.state_dict().items()
                       if k.endswith("weight")])
    assert float(moved.std()) == pytest.approx(.1*.5/1, rel=.05)


def test_noise_in_a_deployment_needs_a_secret(monkeypatch):
    monkeypatch.delenv("FDGNB_DP_KEY", raising=False)
    says(lambda: check_secret(Settings(**DP)), "set the environment variable FDGNB_DP_KEY")
    check_secret(Settings(**DP | dict(dp_noise=0.)))
    monkeypatch.setenv("FDGNB_DP_KEY", "a word")
    check_secret(Settings(**DP))


def test_the_warm_up_of_batchnorm_does_not_begin_anew():
    "A counter left at 0 let the first batch of each round replace the noised statistics; one that stays home stays."
    layer = {"running_var": torch.tensor(1.), "num_batches_tracked": torch.tensor(0)}
    start = {f"{name}.{q}": v for name in "ab" for q, v in layer.items()}
    for given, counts in [(dict(local_steps=3), (6, 0)), (dict(local_epochs=2), (4, 0))]:
        server = Server(start, "k", Settings(**DP, **given))
        for r in range(2):
            upload = {"model.a.running_var": torch.tensor(1.), "model.a.num_batches_tracked": torch.tensor(99)}
            server_update(method_class("fedavg")(), server, [("k", upload)], r)
        assert tuple(int(server.model[f"{name}.num_batches_tracked"]) for name in "ab") == counts


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
    if own: assert refused or cls.uses_target or cls.needs_images         # pictures of a folder are encoded
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
    kinds = {k.split(".")[0] for k in up} - {"model", "stats", "scalars"}          # the deployment page lists these
    assert kinds <= {k.split(".")[0] for k in METHODS[name].varying}


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
    assert r.privacy["epsilon"] == epsilon(2., 2, .5, 1e-5) < r.privacy["unsampled"]
    r.save(tmp_path)
    assert load(tmp_path).record["privacy"]["epsilon"] == r.privacy["epsilon"]
    assert run("fedavg", small, rounds=1).privacy is None


def test_delta_promises_something_of_few_clients():
    "K^-1.1 is .22 of four clients: the guarantee failed for one of five."
    assert spend(Settings(**DP), 4, 0)["delta"] == 1e-5
    assert spend(Settings(**DP), 10**6, 0)["delta"] == pytest.approx(10**-6.6)


def test_without_opacus_a_run_ends_and_names_the_extra(monkeypatch):
    monkeypatch.setattr("fdgnb.federation.privacy.find_spec", lambda name: None)
    spent = spend(Settings(**DP), 4, 2)
    assert spent["epsilon"] is None and "fdgnb[privacy]" in describe_privacy(spent)
    with pytest.raises(fdgnb.FdgnbError) as e: epsilon(1., 1)
    assert one_line(e) and "fdgnb[privacy]" in str(e.value)
