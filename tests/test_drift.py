"""Client drift: neutral settings, sums, workers, resume, refusals; the page's checks fail on wrong code."""
import pytest
import torch
import pages
from conftest import bits, one_line, run
from golden import replay
from fdgnb.core import FdgnbError
from fdgnb.methods.drift import step_reach

KEYS = ["fedprox", "scaffold", "feddyn", "fednova", "fedcm", "fedadam", "fedyogi", "fedadagrad"]
PAGE = "methods/06_drift.ipynb"
MUTATIONS = {
    "FedProx without its half": ('client.scratch["received"])/2', 'client.scratch["received"])'),
    "FedProx pushes away": ("+ self.h.mu*half_square", "- self.h.mu*half_square"),
    "SCAFFOLD, sign of the correction": ("c[k] - own[k]", "own[k] - c[k]"),
    "SCAFFOLD, no 1/eta": ("-1/(client.scratch[\"steps\"]*client.lr)", "-1/client.scratch[\"steps\"]"),
    "the unseen count nothing": ("*(len(server.clients)/len(weights))", ""),
    "weights that move, move the sum": ("newcomers = now | before", "newcomers = weights"),
    "weights as first seen": ("weights = before | now", "weights = now | before"),
    "newcomers do not move the sum": ("total_weight(server, before)/total_weight(server, newcomers)", "1."),
    "FedDyn, sign of the linear term": ("return loss - linear", "return loss + linear"),
    "FedDyn, server's h not divided": ("mean[k] - v/self.h.alpha", "mean[k] - v"),
    "FedNova, momentum not counted": ("v = momentum*v + 1", "v = 1"),
    "FedNova, clients not normalized": ("+ s*(upload[f\"model.{k}\"] - old[k])",
                                        "+ (upload[f\"model.{k}\"] - old[k])"),
    "FedNova keeps its momentum": ("client.optimizer.state.clear()", "pass"),
    "the server's optimizers step buffers": ("for k, _ in server.net.named_parameters()}", "for k in new}"),
    "the first round's learning rate": ("client.scratch[\"steps\"]*client.lr)",
                                        "client.scratch[\"steps\"]*client.settings.lr)"),
    "no clipping": ("        super().gradients(model, client)\n", ""),
    "FedNova, effective steps doubled": ("effective = float(", "effective = 2*float("),
    "FedCM, shares swapped": ("p.grad.mul_(alpha).add_(delta.get(k, torch.zeros_like(p)), alpha=1 - alpha)",
                              "p.grad.mul_(1 - alpha).add_(delta.get(k, torch.zeros_like(p)), alpha=alpha)"),
    "FedCM, sign of the move": ("-1/way if way else 0.", "1/way if way else 0."),
    "FedAdam, no square": ("beta2*v + (1 - beta2)*d*d)", "beta2*v + (1 - beta2)*d.abs())"),
    "FedYogi, sign": ("v - (1 - beta2)*d*d*(v - d*d).sign()", "v + (1 - beta2)*d*d*(v - d*d).sign()"),
    "FedAdagrad decays": ("lambda v, d: v + d*d", "lambda v, d: .9*v + d*d"),
    "adaptive, v from 0": ("torch.full_like(x, h.tau**2)", "torch.zeros_like(x)"),
}


def test_page(): pages.check(PAGE)


@pytest.mark.parametrize("what", MUTATIONS)
def test_page_fails_on(what):
    with pytest.raises(AssertionError): pages.check(PAGE, *MUTATIONS[what])


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
