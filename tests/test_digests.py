"""Moving the code changes no result: short runs of every method against the digests made before anything moved (tests/digests.py)."""
import json
import pytest
import torch
import digests

KEPT = json.loads(digests.FILE.read_text())
SAME = digests.machine() == KEPT["machine"]


@pytest.mark.parametrize("label", digests.RUNS)
def test_digest(label):
    "On the machine of the file bit for bit; elsewhere (other instructions, another torch) the norm and the accuracies closely."
    new, old = digests.digest(label), KEPT["runs"][label]
    if SAME: assert new == old
    assert new["norm"] == pytest.approx(old["norm"], rel=.02)
    near = [abs(a[-1] - b[-1]) <= .3 and a[:-1] == b[:-1] for a, b in zip(new["accuracies"], old["accuracies"], strict=True)]
    assert all(near)


def test_every_method_has_a_digest():
    "The five systems and their parts, alone or in a sum."
    from fdgnb.federation.compose import METHODS
    own = {n for n in METHODS.names() if METHODS.get(n).__module__.rsplit(".", 1)[-1] in ("federation", "compose", "fedsb", "ga", "fedka", "fedbr", "fdse")}
    assert own <= {m for run, _ in digests.RUNS.values() for m in (run, *run.split("+"))}
