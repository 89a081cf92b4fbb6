"""A fixed sample of the pairs of tests/pairs.py, and every sum that stands in a table of the five papers."""
import pytest
from fdgnb.core import FdgnbError
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.tables.overview import row_map
from pairs import REASONS, outcome, pairs, reason

RUN = """arfl+tent am+fedmix ccst+dsbn consistency+fedadam dann+fedbn ditto+moon bnstats+dsbn dse+fedprox
    elcfs+fedcm fdse+mixup fedasam+rsc fedavg+scaffold feddecorr+fedsr feddrop+fedgma feddyn+local
    fedfa+harmofl fediir+fednova fedka+mixup fednova+vhl fedntd+lgfedavg fedsam+fedyogi budget+groupdro
    bnstats+partialfed fedadg+labelsmoothing dsbn+tent noeval+tent
    arfl+fedcm arfl+fednova ccst+subsample disentangler+feddrop fdse+fedgma fdse+fednova fedheal+local
    fedsr+harmofl harmofl+fedsr fedsr+disentangler""".split()
REFUSED = {"disentangler+fdann": "one of them contains the other", "budget+fedsb": "they share a part",
           "arfl+fedheal": "both replace the same hook", "dse+feddrop": "no layer to drop units of",
           "fdann+fedsr": "to be written the other way round"}
SUMS = sorted({k for k in row_map().key if "+" in k})


def runs(key):
    "The sum runs a round; where a part is not registered (yet), there is nothing to run."
    if missing := set(key.split("+")) - {*METHODS.names()}: pytest.skip(f"not registered: {missing}")
    assert outcome(key) == ""


@pytest.mark.parametrize("key", RUN)
def test_pair_runs_a_round(key): runs(key)


@pytest.mark.parametrize("key", SUMS)
def test_sums_of_the_papers_tables_run_a_round(key): runs(key)


@pytest.mark.parametrize("key", REFUSED)
def test_pair_is_refused_for_a_reason_of_the_list(key): assert outcome(key) == REFUSED[key]


def test_every_pair_is_composed_or_refused_for_a_reason_of_the_list():
    "Without a run: what `make pairs` finds out before it trains."
    found = set()
    for key in pairs():
        try: method_class(key)
        except FdgnbError as e: found.add(reason(e))
    assert found | {"no layer to drop units of", "to be written the other way round"} == {*REASONS}


def test_a_new_reason_is_noticed():
    with pytest.raises(AssertionError, match="not on the list"): reason(FdgnbError("out of luck"))
