"""FedSAM and FedASAM: neutral radius, sums, workers, statistics; each page check fails on wrong code."""
import pytest
import pages
from conftest import bits, run
from golden import replay

KEYS = ["fedsam", "fedasam"]
PAGE = "methods/07_sharpness.ipynb"
MUTATIONS = {
    "down, not up": ("return [rho/(size + 1e-12)*t*t*g", "return [-rho/(size + 1e-12)*t*t*g"),
    "norm per tensor": ("for g, t in zip(grads, stretch)]).norm()",
                        "for g, t in zip(grads, stretch)]).max()"),
    "T once, not squared": ("*t*t*g", "*t*g"),
    "statistics twice": ("m.track_running_stats = False", "pass"),
    "weights not put back": ("p.copy_(v)", "v.copy_(p)"),
    "FedASAM without its addend": ("p.abs() + self.h.eta", "p.abs()"),
    "FedASAM on biases too": ('if "weight" in name', 'if name'),
}


def test_page(): pages.check(PAGE)


@pytest.mark.parametrize("what", MUTATIONS)
def test_page_fails_on(what):
    with pytest.raises(AssertionError): pages.check(PAGE, *MUTATIONS[what])


@pytest.mark.parametrize("name", KEYS)
def test_neutral_radius(tiny, name):
    "In a network with BatchNorm and dropout: FedAvg's bits."
    usual = bits(run("fedavg", tiny, weight_decay=1e-3), "model")
    assert bits(run(name, tiny, rho=0., weight_decay=1e-3), "model") == usual
    assert bits(run(name, tiny, weight_decay=1e-3), "model") != usual


@pytest.mark.parametrize("other", ["fedprox", "scaffold", "fedcm", "feddyn"])
def test_with_a_correction_of_the_step(tiny, other):
    "Sharpness beneath or above a correction of the gradient: with radius 0 it is that method."
    for name in (f"fedsam+{other}", f"{other}+fedsam"):
        assert bits(run(name, tiny, rho=0.), "model") == bits(run(other, tiny), "model")


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
