"""FedSAM and FedASAM: neutral radius, sums, workers, statistics."""
import pytest
import fdgnb
from conftest import bits, run
from digests import data
from fdgnb.federation.compose import METHODS
from golden import replay
from pairs import TINY, light

KEYS = ["fedsam", "fedasam"]


@pytest.mark.parametrize("name", KEYS)
def test_neutral_radius(tiny, name):
    "In a network with BatchNorm and dropout: FedAvg's bits."
    usual = bits(run("fedavg", tiny, weight_decay=1e-3), "model")
    assert bits(run(name, tiny, rho=0., weight_decay=1e-3), "model") == usual
    assert bits(run(name, tiny, weight_decay=1e-3), "model") != usual


@pytest.mark.parametrize("other", ["fedprox", "scaffold", "fedcm", "feddyn"])
def test_with_a_correction_of_the_step(tiny, other):
    "Sharpness beneath or above a correction of the gradient: with radius 0 it is that method."
    beneath = bits(run(other, tiny), "model")
    for name in (f"fedsam+{other}", f"{other}+fedsam"): assert bits(run(name, tiny, rho=0.), "model") == beneath


# a loss that draws, keeps or trains something does so in both passes: the page names these sums
TWICE = ["dann", "elcfs", "fdse", "fedadg", "fedfa", "fedmix", "vhl"]


OTHERS = [n for n in METHODS.names() if n not in TWICE and n not in KEYS]


@pytest.mark.parametrize("name", [*TWICE, *OTHERS[::8]])
def test_radius_zero_on_top_of_a_method(name):
    "Bit for bit the method beneath, or one of the named exceptions."
    how = TINY | light(name) | dict(rounds=2, local_steps=2, diverge="go")
    alone, both = (bits(fdgnb.fit(n, data(n=12), **how, **h), "model")
                   for n, h in ((name, {}), (f"{name}+fedsam", dict(rho=0.))))
    assert (alone != both) == (name in TWICE)


@pytest.mark.parametrize("key", [k for k in KEYS if replay.stored(k)])
def test_golden(key): replay.compare(key)
