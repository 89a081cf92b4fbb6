"""ARFL, GroupDRO, FedGMA, FedHEAL: neutral settings, sums, workers, resume."""
import pytest
from conftest import bits, run
from golden import replay

KEYS = ["arfl", "groupdro", "fedgma", "fedheal"]


def test_neutral_settings(tiny):
    assert bits(run("fedgma", tiny, tau=0.), "model") == bits(run("fedavg", tiny), "model")
    assert bits(run("groupdro", tiny, eta_q=0.), "model") == bits(run("uniform", tiny), "model")


def test_a_neutral_mask_to_rounding(tiny):
    short = dict(rounds=1, local_steps=2)
    a, b = (run(n, tiny, **kw, **short).fed.server.model
            for n, kw in (("fedheal", dict(tau=-1., beta=0.)), ("uniform", {})))
    assert max((a[k] - b[k]).abs().max() for k in a) < 1e-6


@pytest.mark.parametrize("name", KEYS)
def test_some_clients_in_each_round(tiny, name):
    r = run(name, tiny, rounds=3, per_round=2, drops=((2, "inked"),))
    assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_one_number_more(tiny):
    "ARFL and GroupDRO send the loss, FedGMA and FedHEAL what FedAvg sends."
    up = lambda n: run(n, tiny).ledger.query("direction == 'up'").bytes.sum()
    assert [up(n) - up("fedavg") for n in KEYS] == [2*3*8, 2*3*8, 0, 0]


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
