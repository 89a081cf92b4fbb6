"""Client drift: neutral settings, sums, workers, resume, refusals."""
import pytest
import torch
from conftest import bits, one_line, run
from golden import replay
from fdgnb.core import FdgnbError
from fdgnb.methods.drift import step_reach

KEYS = ["fedprox", "scaffold", "feddyn", "fednova", "fedcm", "fedadam", "fedyogi", "fedadagrad"]


@pytest.mark.parametrize("name", ["fedprox", "fedcm"])
def test_neutral_setting(tiny, name):
    neutral = dict(fedprox=dict(mu=0.), fedcm=dict(alpha=1.))[name]
    assert bits(run(name, tiny, **neutral), "model") == bits(run("fedavg", tiny), "model")
    assert bits(run(name, tiny), "model") != bits(run("fedavg", tiny), "model")


ADAM = dict(optimizer="adam")


@pytest.mark.parametrize("name, how", [("scaffold", dict(momentum=.9)), ("scaffold", ADAM),
                                       ("fednova", ADAM), ("fedcm", ADAM)])
def test_refused_before_any_work(tiny, name, how):
    with pytest.raises(FdgnbError, match=f"{name} is defined for") as e: run(name, tiny, **how)
    assert one_line(e)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova"])
def test_some_clients_in_each_round(tiny, name):
    r = run(name, tiny, rounds=3, per_round=2, drops=((2, "inked"),))
    assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_no_local_steps(tiny):
    "A round without steps moves nothing and divides by nothing."
    for name in ("scaffold", "fednova", "fedcm"):
        r = run(name, tiny, local_epochs=0, eval_every=0)
        assert all(v.isfinite().all() for v in r.fed.server.model.values() if v.is_floating_point())


def test_buffers_are_averaged_as_in_fedavg(tiny):
    "FedNova scales no running statistics, the server's optimizers neither."
    usual = run("fedavg", tiny, rounds=1).fed.server.model
    for name in ("fednova", "fedadam", "feddyn"):
        if name == "feddyn": continue                                      # trains another loss
        model = run(name, tiny, rounds=1).fed.server.model
        assert all(torch.equal(model[k], usual[k]) for k in usual if "running" in k)


def test_control_variates_double_the_traffic(tiny):
    "SCAFFOLD sends as many statistics as it has parameters, and receives them from the second round on."
    r = run("scaffold", tiny)
    n = sum(p.numel()*4 for p in r.fed.net.parameters())
    stats = r.ledger.query("kind == 'stats'").groupby(["round", "direction"]).bytes.sum()
    assert stats.to_dict() == {(1, "up"): 3*n, (2, "down"): 3*n, (2, "up"): 3*n}


def test_reach_of_no_steps(): assert step_reach(0, .9, .1) == 0


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
