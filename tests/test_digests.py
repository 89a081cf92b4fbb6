"""Moving the code changes no result: short runs against digests made before it (tests/digests.py)."""
import json
import pytest
import digests
from fdgnb.federation.compose import METHODS

KEPT = json.loads(digests.FILE.read_text())
HERE = digests.machine()


@pytest.mark.parametrize("label", digests.RUNS)
def test_digest(label):
    "On the machine that made it bit for bit; elsewhere (other instructions, torch) norm, accuracies closely."
    new, old = digests.digest(label), KEPT["runs"][label]
    if HERE == old.get("machine", KEPT["machine"]): assert new == {k: old[k] for k in new}
    assert new["norm"] == pytest.approx(old["norm"], rel=.02)
    for a, b in zip(new["accuracies"], old["accuracies"], strict=True):
        assert a[:-1] == b[:-1] and abs(a[-1] - b[-1]) <= .3


def test_every_method_has_a_digest():
    "The five systems and their parts, alone or in a sum."
    pages = "federation", "compose", "fedsb", "ga", "fedka", "fedbr", "fdse"
    page_of = lambda name: METHODS.get(name).__module__.rsplit(".", 1)[-1]
    own = {n for n in METHODS.names() if page_of(n) in pages}
    assert own <= {m for run, _ in digests.RUNS.values() for m in (run, *run.split("+"))}
