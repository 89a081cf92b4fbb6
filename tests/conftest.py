"""Shared by all tests: one torch thread, no progress bars, a small slice of `digits`."""
import dataclasses, os
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "1")
import pytest
import torch
torch.set_num_threads(1)


def cut(data, n):
    "The first n images of every domain."
    return dataclasses.replace(data, domains={k: type(d)(d.name, d.x[:n], d.y[:n]) for k, d in data.domains.items()})


@pytest.fixture(scope="session")
def small():
    "digits, 60 images a domain."
    import fdgnb
    return cut(fdgnb.get_dataset("digits"), 60)


@pytest.fixture(autouse=True)
def global_rng_untouched():
    "Nothing in a run may draw from torch's global generator."
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random generator was used"
