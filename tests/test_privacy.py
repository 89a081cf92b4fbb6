"Differential privacy: a round by hand, noise and its keys, who may be private, epsilon against closed forms."
import math
import numpy as np
import pytest
import torch
from torch import nn
import fdgnb
from conftest import bits, run, same_bits
from fdgnb.federation.compose import METHODS

DP = dict(dp_clip=.5, dp_noise=.1, client_weights="uniform")
PRIVATE = "fedavg fedprox fedbn fedsam fedasam mixup moon labelsmoothing budget".split()


class Network(nn.Module):
    "A linear layer of zeros, so that a model is the change of a round."
    def __init__(self, classes=10, channels=3):
        super().__init__()
        self.flat, self.head = nn.Flatten(), nn.Linear(channels*28*28, classes)
        for weight in self.parameters(): nn.init.zeros_(weight)

    def forward(self, x): return self.head(self.flat(x))


def change_of(data, method="fedavg", **given):
    "What a round adds to a model of zeros, as one vector."
    one = run(method, data, rounds=1, backbone=Network, **given)
    return torch.cat([v.flatten() for v in one.model.state_dict().values()])


def sends(**changes):
    "A method whose clients send weights of one value each."
    class Sends(fdgnb.Method):
        "FedAvg whose clients send what they are told."
        def upload(self, model, client):
            out = super().upload(model, client)
            return {k: torch.full_like(v, changes[client.id]) if k.startswith("model.") else v for k, v in out.items()}
    return Sends


def test_no_client_moves_the_model_further_than_its_share(tiny):
    "The length over all entries counts; a short change stays as it is."
    n = 10*(3*28*28 + 1)
    far, near = 3e6, .01/math.sqrt(n)
    told = sends(optical=far, inked=near, rendered=0.)
    change = change_of(tiny, told, client_weights="uniform", dp_clip=1.)
    assert change == pytest.approx((1/math.sqrt(n) + near)/3, rel=1e-4)


def test_who_is_absent_leaves_the_divisor(tiny):
    "A divisor that counts who answered would tell of a client."
    told = sends(optical=1e-3, inked=1e-3, rendered=1e-3)
    gone = dict(client_weights="uniform", dp_clip=1., drops=((1, "inked"),))
    assert change_of(tiny, told, **gone) == pytest.approx(2e-3/3, rel=1e-4)


def noise_of(data, **given):
    "The noise of a round in which nothing is learned, in units of what it should be."
    how = dict(lr=0., client_weights="uniform", dp_clip=2., dp_noise=3.) | given
    return change_of(data, **how)*3/(how["dp_clip"]*how["dp_noise"])


def test_noise_is_normal_and_fits_the_clip_and_the_number_of_clients(tiny):
    noise = noise_of(tiny)
    assert float(noise.std()) == pytest.approx(1, rel=.02) and abs(float(noise.mean())) < .03
    assert float((noise**4).mean()) == pytest.approx(3, rel=.1)
    assert torch.equal(noise, noise_of(tiny))


@pytest.mark.parametrize("other", [dict(seed=1), dict(seed=2**32), dict(dp_noise=2.), dict(dp_clip=1.)], ids=str)
def test_noise_of_another_sum_is_independent(other, tiny):
    "Else the round played once more with less noise gives it away by subtraction. torch's seeds have 32 bits."
    noise, another = noise_of(tiny), noise_of(tiny, **other)
    assert abs(float(np.corrcoef(noise, another)[0, 1])) < .03 and float(another.std()) == pytest.approx(1, rel=.03)


def test_a_key_hides_noise_and_draw_from_who_knows_the_seed(tiny, monkeypatch):
    given = dict(rounds=1, per_round=2, **DP)
    free, plain = run("fedavg", tiny, rounds=1, per_round=2), run("fedavg", tiny, **given)
    monkeypatch.setenv("FDGNB_DP_KEY", "a word")
    hidden = run("fedavg", tiny, **given)
    assert bits(hidden) != bits(plain) and bits(run("fedavg", tiny, **given)) == bits(hidden)
    assert bits(run("fedavg", tiny, rounds=1, per_round=2)) == bits(free)


def test_each_client_is_drawn_by_itself(tiny):
    "So the accountant's sampling holds: numbers of clients are binomial, and each client is as likely."
    drawn = run("fedavg", tiny, rounds=150, per_round=1, local_steps=1, backbone=Network, batch_size=2, **DP)
    sent = drawn.ledger.query("direction == 'up' and kind == 'model'")
    sizes = sent.groupby("round").client.nunique().reindex(range(1, 151), fill_value=0)
    counts = np.bincount(sizes, minlength=4)/150
    np.testing.assert_allclose(counts, [math.comb(3, k)*(1/3)**k*(2/3)**(3 - k) for k in range(4)], atol=.12)
    assert sent.client.value_counts().between(30, 70).all()


@pytest.mark.parametrize("engine", ["threads", "messages"])
def test_a_round_for_which_nobody_is_drawn_is_noise(small, engine):
    if engine == "messages": pytest.importorskip("flwr")
    given = dict(per_round=1, local_steps=1, engine=engine, seed=6, **DP)
    before, after = (run("fedavg", small, rounds=n, **given) for n in (1, 2))
    assert set(after.ledger["round"]) == {1}
    moved = [(v - before.model.state_dict()[k]).flatten() for k, v in after.model.state_dict().items()]
    assert float(torch.cat(moved).std()) == pytest.approx(.1*.5/1, rel=.05)


def test_same_bits_on_any_workers_and_after_a_stop(small, monkeypatch, tmp_path):
    same_bits(monkeypatch, tmp_path, "fedavg", small, local_steps=1, **DP)


@pytest.mark.parametrize("name", METHODS.names())
def test_only_a_method_whose_server_takes_a_mean_may_be_private(name):
    "It is said before data are read, which are not there."
    with pytest.raises(fdgnb.FdgnbError) as error: fdgnb.fit(name, "/nowhere", None, 1, **DP)
    refused = str(error.value).startswith("dp_clip: of method")
    if name in PRIVATE: assert not refused
    hooks = "aggregate decide weight finish gather download".split()
    if any(getattr(METHODS[name], hook) is not getattr(fdgnb.Method, hook) for hook in hooks):
        assert refused or METHODS[name].uses_target or METHODS[name].needs_images


def gaussian_epsilon(z, rounds, delta):
    "The least over alpha of T rounds' RDP, T alpha / 2z^2 (Canonne, Kamath, Steinke 2020, Prop. 12)."
    orders = [1 + i/100 for i in range(1, 20_000)]
    return min(rounds*a/(2*z*z) + math.log1p(-1/a) - math.log(delta*a)/(a - 1) for a in orders)


def test_epsilon_of_full_participation_is_the_gaussian_mechanisms(small, capsys, tmp_path):
    pytest.importorskip("opacus")
    given = dict(local_steps=1, backbone=Network, dp_noise=2., dp_clip=.01, client_weights="uniform")
    full = run("fedavg", small, rounds=3, **given)
    spent = full.privacy
    assert spent["delta"] == 1e-5 and spent["epsilon"] == pytest.approx(gaussian_epsilon(2., 3, 1e-5), rel=.01)
    assert capsys.readouterr().out.startswith("privacy: epsilon")
    some = run("fedavg", small, rounds=3, per_round=1, **given).privacy
    assert some["epsilon"] < some["unsampled"] == pytest.approx(spent["epsilon"])
    full.save(tmp_path)
    assert fdgnb.load(tmp_path).record["privacy"]["epsilon"] == spent["epsilon"]
    assert run("fedavg", small, rounds=1, **given | dict(dp_noise=0.)).privacy["epsilon"] == math.inf
    assert run("fedavg", small, rounds=1).privacy is None
