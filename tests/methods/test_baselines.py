"""All methods in one table each: golden steps, neutral settings, refusals, latecomers."""
import functools
import pytest
import torch
from fdgnb import FdgnbError, from_arrays
from conftest import says, sized
from golden import replay
from bars import bars, short


@pytest.mark.parametrize("key", sorted(replay.REPLAY))
def test_golden_steps(key): replay.compare(key)


@functools.cache
def plain(key, rounds):
    "The global model of a method at its own values."
    return short(key, rounds=rounds, local_steps=2).fed.server.model


OFF = dict(                                             # what switches a method off: then it is FedAvg, bit for bit
    fedprox=dict(mu=0.), fedcm=dict(alpha=1.), fedgma=dict(tau=0.), fedsam=dict(rho=0.), fedasam=dict(rho=0.),
    feddrop=dict(rates=(0.,)), moon=dict(mu=0.), fedntd=dict(beta=0.), feddecorr=dict(beta=0.), ditto=dict(lam=5.),
    mixup=dict(mixup_alpha=0.), fedmix=dict(fedmix_lam=0.), am=dict(am_alpha=0.), vhl=dict(vhl_alpha=0., vhl_beta=0.),
    dann=dict(dann_lam=0.), fediir=dict(iir_gamma=0.), fedadg=dict(adg_lam=0.), rsc=dict(rsc_p=0.),
    elcfs=dict(elcfs_gamma=0.), harmofl=dict(harmo_norm=False, harmo_alpha=0.), ccst=dict(ccst_k=1, ccst_alpha=0.),
    fedfa=dict(fa_p=0.), labelsmoothing=dict(epsilon=0.), fedbr=dict(component1=False, component2=False), tent={},
    bnstats={})
OTHERS = [("groupdro", dict(eta_q=0.), "uniform"), ("fedsam+scaffold", dict(rho=0.), "scaffold"),
          ("feddyn+fedsam", dict(rho=0.), "feddyn"), ("dsbn", {}, "fedbn"), ("fdse+tent", {}, "fdse"),
          ("fedprox+ga", dict(d=0.), "fedprox+uniform")]


@pytest.mark.parametrize("key, off, same", [*((key, off, "fedavg") for key, off in OFF.items()), *OTHERS])
def test_neutral_settings(key, off, same):
    model, usual = short(key, rounds=2, local_steps=2, **off).fed.server.model, plain(same, 2)
    assert all(torch.equal(model[k], v) for k, v in usual.items())


@pytest.mark.parametrize("key, off, same", [
    ("fednova", {}, "fedavg"), ("arfl", dict(reg=1e9), "fedavg"), ("fedheal", dict(tau=-1., beta=0.), "uniform"),
    ("fedadam", dict(eta=2e-3, beta1=0., beta2=1.), "fedavg"), ("fedadagrad", dict(eta=2e3, tau=1e3), "fedavg")])
def test_neutral_settings_to_rounding(key, off, same):
    model = short(key, rounds=2, local_steps=2, **off).fed.server.model
    for k, v in plain(same, 2).items(): torch.testing.assert_close(model[k], v, rtol=0, atol=1e-5)


@pytest.mark.parametrize("key", ["scaffold", "moon"])
def test_the_first_round_is_fedavgs(key):
    model = short(key, rounds=1, local_steps=2).fed.server.model
    assert all(torch.equal(model[k], v) for k, v in plain("fedavg", 1).items())
    assert any(not torch.equal(plain(key, 2)[k], v) for k, v in plain("fedavg", 2).items())


@pytest.mark.parametrize("key", ["fednova", "fedadam"])
def test_running_statistics_are_those_of_fedavg(key):
    "Of the first round, whatever is done to weights."
    unequal = sized(bars(), a=12, b=8, c=4, t=4)
    model, usual = (short(k, unequal, local_epochs=2, local_steps=None, batch_size=4).fed.server.model
                    for k in (key, "fedavg"))
    for k, v in usual.items(): assert torch.equal(model[k], v) == ("running" in k or "num_batches" in k)


ADAM, FLAT = dict(optimizer="adam"), dict(backbone="cnn4")
REFUSED = [
    ("scaffold", dict(momentum=.9), "is defined for"), ("fednova", ADAM, "is defined for"),
    ("arfl", dict(reg=0.), "should be"), ("feddrop", dict(rates=(1.,)), "rates"),
    ("feddrop", dict(rates=(.1, .2)), "rates"), ("feddrop", FLAT, "hidden layer"), ("fedbn", FLAT, "no BatchNorm"),
    ("tent", FLAT, "BatchNorm"), ("ditto+mkmmd", dict(exchange="up"), "exchange='up'"),
    ("feddecorr", dict(penalty="x"), "penalty"), ("ccst", dict(ccst_space="vgg"), "vgg_normalised.pth"),
    ("fedsb", dict(variant="released", S=24, batch_size=9), "last batch of one"),
    ("ga", dict(variant="released", fractions=(.9, 0., .1)), "no val samples"), ("fdse", dict(dw=2), "odd dw"),
    ("fdse", dict(start="identity", G=4), "leave one of them out"),
    ("fedka", dict(exchange="up", domain_encoder="client"), "needs the target's images"),
    ("fedka", {"disentangler.exchange": "up"}, "sent no features"),
    ("fedbr", dict(pseudo="mixture", proxy="digitz"), "unknown"),
    *((key, dict(target=None), "target") for key in ("voting", "disentangler", "mkmmd", "fdann", "fdan", "fedka"))]


@pytest.mark.parametrize("key, given, word", REFUSED)
def test_what_cannot_be_is_refused(key, given, word, tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    says(lambda: short(key, **given), word)


@pytest.mark.parametrize("key", ["am", "elcfs", "harmofl", "ccst", "fedfa"])
def test_methods_of_images_take_no_vectors(key):
    x, y = torch.arange(240.).reshape(40, 6)/240, torch.arange(40) % 2
    with pytest.raises(FdgnbError, match=key): short(key, from_arrays(dict(a=(x, y), t=(x, y))), backbone="mlp2")


@pytest.mark.parametrize("key, kind", [("fedmix", "images"), ("elcfs", "images"), ("ccst", "stats")])
def test_a_client_that_comes_late_is_sent_the_bank_once(key, kind):
    "One client of three per round: each gets what the others offered the first time it takes part, and only then."
    book = short(key, rounds=6, per_round=1).ledger
    down = book[(book.kind == kind) & (book.direction == "down")]
    met = book[(book.kind == "model") & (book.direction == "up")].groupby("client")["round"].min()
    assert down.groupby("client")["round"].apply(list).to_dict() == {k: [r] for k, r in met.items()}


@pytest.mark.parametrize("key", ["scaffold", "fednova", "fedcm"])
def test_a_round_without_steps_divides_by_nothing(key):
    model = short(key, rounds=2, local_steps=None, local_epochs=0).fed.server.model
    assert all(v.isfinite().all() for v in model.values())


@pytest.mark.parametrize("key", ["tent", "bnstats", "dsbn"])
def test_a_single_sample_is_answered(key):
    rows = short(key, sized(bars(), a=12, b=12, t=1), eval_every=1).history
    assert "adapted" in {*rows.point} and rows.value.notna().all()


@pytest.mark.parametrize("key", ["dann", "fediir", "fedadg", "scaffold", "feddyn", "ditto", "arfl", "groupdro"])
def test_clients_that_stay_away(key):
    model = short(key, rounds=3, per_round=2, drops=((2, "b"),)).fed.server.model
    assert all(v.isfinite().all() for v in model.values())
