"""Moving the code changes no result: short runs against digests made before it (tests/digests.py)."""
import json
import pytest
import digests
from fdgnb.federation.compose import METHODS

KEPT = json.loads(digests.FILE.read_text())
SAME = digests.machine() == KEPT["machine"]


@pytest.mark.parametrize("label", digests.RUNS)
def test_digest(label):
    "On the file's machine bit for bit; elsewhere (other instructions or torch) norm and accuracies closely."
    new, old = digests.digest(label), KEPT["runs"][label]
    if SAME: assert new == old
    assert new["norm"] == pytest.approx(old["norm"], rel=.02)
    for a, b in zip(new["accuracies"], old["accuracies"], strict=True):
        assert a[:-1] == b[:-1] and abs(a[-1] - b[-1]) <= .3


def test_every_method_has_a_digest():
    "The five systems and their parts, alone or in a sum."
    pages = "federation", "compose", "fedsb", "ga", "fedka", "fedbr", "fdse"
    page_of = lambda name: METHODS.get(name).__module__.rsplit(".", 1)[-1]
    own = {n for n in METHODS.names() if page_of(n) in pages}
    assert own <= {m for run, _ in digests.RUNS.values() for m in (run, *run.split("+"))}
