"""A fixed sample of the pairs of tests/pairs.py, and every sum that stands in a table of the five papers."""
import pytest
from fdgnb.core import FdgnbError
from fdgnb.federation.compose import method_class
from fdgnb.tables.overview import row_map
from pairs import REASONS, outcome, pairs, reason

RUN = """arfl+tent am+fedmix ccst+dsbn consistency+fedadam dann+fedbn ditto+moon dse+fedprox elcfs+fedcm fdse+mixup
    fedasam+rsc feddecorr+fedsr feddyn+local fedfa+harmofl fediir+fednova fednova+vhl fedntd+lgfedavg budget+groupdro
    bnstats+partialfed dsbn+tent harmofl+fedsr fedsr+disentangler""".split()
REFUSED = {"disentangler+fdann": "one of them contains the other", "budget+fedsb": "they share a part",
           "arfl+fedheal": "both replace the same hook", "dse+feddrop": "no layer to drop units of",
           "fdann+fedsr": "to be written the other way round"}
SUMS = sorted({k for k in row_map().key if "+" in k})


@pytest.mark.parametrize("key", [*RUN, *SUMS])
def test_a_sum_runs_a_round(key):
    assert outcome(key) == ""


@pytest.mark.parametrize("key", REFUSED)
def test_a_pair_is_refused_for_a_reason_of_the_list(key):
    assert outcome(key) == REFUSED[key]


def test_every_pair_is_composed_or_refused_for_a_reason_of_the_list():
    "Without a run: what `make pairs` finds out before it trains."
    found = set()
    for key in pairs():
        try: method_class(key)
        except FdgnbError as e: found.add(reason(e))
    assert found | {"no layer to drop units of", "to be written the other way round"} == {*REASONS}


def test_a_new_reason_is_noticed():
    with pytest.raises(AssertionError, match="not on the list"): reason(FdgnbError("out of luck"))
