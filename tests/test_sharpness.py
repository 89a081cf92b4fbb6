"""FedSAM and FedASAM: neutral radius, sums, workers, statistics; each page check fails on wrong code."""
import pytest
import fdgnb
import pages
from conftest import bits, run
from digests import data
from fdgnb.federation.compose import METHODS
from golden import replay
from pairs import TINY, light

KEYS = ["fedsam", "fedasam"]
PAGE = "methods/07_sharpness.ipynb"
MUTATIONS = {
    "down, not up": ("return [rho/(size + 1e-12)*t*t*g", "return [-rho/(size + 1e-12)*t*t*g"),
    "norm per tensor": ("for g, t in zip(grads, stretch)]).norm()",
                        "for g, t in zip(grads, stretch)]).max()"),
    "T once, not squared": ("*t*t*g", "*t*g"),
    "statistics twice": ("m.track_running_stats = False", "pass"),
    "FedASAM without its addend": ("p.abs() + self.h.eta", "p.abs()"),
    "all that the network has is moved": ("self.params(model), worst", "model.parameters(), worst"),
    "the loss at the worst point reported": (
        "model): super().step(model, x, y, client)\n        return loss.detach()",
        "model): return super().step(model, x, y, client)"),
    "masks of its own": ("g.set_state(state)", "pass"),
    "no clipping": ("        super().gradients(model, client)\n", ""),
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


# a loss that draws, keeps or trains something does so in both passes: the page names these sums
TWICE = {"dann", "elcfs", "fdse", "fedadg", "fedfa", "fedmix", "vhl"}


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n not in KEYS])
def test_radius_zero_on_top_of_any_method(name):
    "Bit for bit the method beneath, or one of the named exceptions."
    how = TINY | light(name) | dict(rounds=2, local_steps=2)
    alone, both = (bits(fdgnb.fit(n, data(n=12), **how, **h), "model")
                   for n, h in ((name, {}), (f"{name}+fedsam", dict(rho=0.))))
    assert (alone != both) == (name in TWICE)


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
