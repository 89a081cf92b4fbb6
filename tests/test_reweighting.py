"""ARFL, GroupDRO, FedGMA, FedHEAL: neutral settings, sums, workers, resume; mutations of the page."""
import pytest
import pages
from conftest import bits, run
from golden import replay

KEYS = ["arfl", "groupdro", "fedgma", "fedheal"]
PAGE = "methods/08_reweighting.ipynb"
MUTATIONS = {
    "ARFL, first level, not the last": (".nonzero().max()", ".nonzero().min()"),
    "ARFL, sizes left out of the weights": ("return n/lam*(level", "return 1/lam*(level"),
    "ARFL, the level without lambda": ("level = (nl_up + lam)/n_up", "level = (nl_up + 1)/n_up"),
    "GroupDRO lowers": ("+= self.h.eta_q*", "-= self.h.eta_q*"),
    "GroupDRO forgets": ("log_q = server.state[\"groupdro.log_q\"].cpu().clone()",
                         "log_q = torch.zeros(len(server.clients), dtype=torch.float64)"),
    "FedGMA, agreement without bars": (".mean(0).abs()", ".mean(0)"),
    "FedGMA, mask turned around": ("torch.where(a >= self.h.tau, mean[k], damped[k])",
                                   "torch.where(a >= self.h.tau, damped[k], mean[k])"),
    "FedHEAL, consistency turned around": ("torch.where(fell > 0, before, 1 - before)",
                                           "torch.where(fell > 0, 1 - before, before)"),
    "FedHEAL, rounds counted from one": ("(before*rounds + fell)/(rounds + 1)",
                                         "(before*(rounds + 1) + fell)/(rounds + 2)"),
    "FedHEAL, beta swapped": ("(1 - beta)*kept[1, there] + beta*far",
                              "beta*kept[1, there] + (1 - beta)*far"),
    "FedHEAL, not shared among the unmasked": ("/torch.where(total > 0, total, torch.ones_like(total))", ""),
}


def test_page(): pages.check(PAGE)


@pytest.mark.parametrize("what", MUTATIONS)
def test_page_fails_on(what):
    with pytest.raises(AssertionError): pages.check(PAGE, *MUTATIONS[what])


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
