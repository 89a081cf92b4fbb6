"""On a GPU: every method is finite and gives the same bits twice, and a run goes on from its checkpoint with them."""
import numpy as np
import pytest
import torch
import fdgnb
from fdgnb.federation.compose import METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(scope="module")
def sites():
    draw = np.random.default_rng(0)
    look = lambda n: (draw.integers(0, 256, (n, 3, 28, 28), dtype=np.uint8), np.arange(n) % 3)
    return fdgnb.from_arrays({k: look(n) for k, n in zip("abcd", (40, 33, 36, 30))})


def play(method, sites, **kw):
    usual = dict(target="d", backbone="cnn2", rounds=2, batch_size=8, progress=False, device="cuda")
    return fdgnb.fit(method, sites, **usual | kw)


def bits(run):
    "The server's tensors; entries that may be NaN by design left out."
    state, gaps = run.fed.server.state, run.fed.method.gaps
    return {k: v.cpu() for k, v in state.items() if torch.is_tensor(v) and k not in gaps}


def are_equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("method", METHODS.names())
def test_a_method_is_finite_and_repeatable(method, sites):
    first, again = play(method, sites), play(method, sites)
    assert all(v.isfinite().all() for v in bits(first).values() if v.is_floating_point())
    assert are_equal(bits(first), bits(again)) and first.history.equals(again.history)


def test_a_run_goes_on(sites, tmp_path):
    whole = play("fdse", sites, rounds=4)
    play("fdse", sites, rounds=2, out=tmp_path)
    assert are_equal(bits(whole), bits(play("fdse", sites, rounds=4, out=tmp_path)))
    assert fdgnb.load(tmp_path).predict(sites["d"]).shape == (30, 3)
