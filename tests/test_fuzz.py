"A bounded number of random inputs of every kind: each is accepted, or refused in one line."
import pytest
pytest.importorskip("hypothesis")
import fuzz
from hypothesis import HealthCheck, given, settings

EXAMPLES = dict(call=25, setting=30, method=25, partition=30, file=20, loader=20, load=25, predict=30, export=5,
                adapt=10,
                run=30, tune=20, callback=20, grid=25, table=25, search=10, own=25)


@pytest.fixture(autouse=True)
def own_folders(monkeypatch):
    "The fuzz has folders of its own, and what an odd path makes lies there."
    for name in ("FDGNB_DATA", "FDGNB_CACHE"): monkeypatch.setenv(name, fuzz.box())
    monkeypatch.chdir(fuzz.box())


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_accepted_or_refused_in_one_line(kind):
    "The same cases every time; a traceback comes out with the smallest input that gives it."
    seen = []
    @settings(max_examples=EXAMPLES[kind], database=None, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(fuzz.KINDS[kind]())
    def one(case): seen.append(fuzz.outcome(case[1]))
    one()
    # a damaged file is mostly found to be damaged
    assert seen.count("accepted") >= len(seen)*dict(file=.05, adapt=.1, search=.1, own=.15).get(kind, .2)


def test_the_fuzz_finds_a_planted_bug(monkeypatch):
    "A traceback is counted and shown, and no error of ours is taken for one."
    import collections
    def bug(*args): raise KeyError("planted")
    monkeypatch.setattr("fdgnb.runs.setup.targets_of", bug)
    seen, broken = collections.Counter(), {}
    fuzz.search("partition", 5, seen, broken)
    assert sum(k for (*_, how), k in seen.items() if how == "traceback")
    assert {error for _, error, _ in broken} == {"KeyError"}
