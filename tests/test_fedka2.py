"""FedKA's Table 2, dslr and webcam: what the printed digits allow, and the page that runs the rest."""
import itertools, json, subprocess, sys
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
from fdgnb.data.catalogue import DATASETS
from fdgnb.tables.fedka2 import attainable, sums
from fdgnb.tables.overview import published

ROOT = Path(__file__).resolve().parent.parent
PAGE, FILE = ROOT/"nbs"/"tables"/"04_fedka2.ipynb", ROOT/"reports"/"table_fedka2_sources.csv"


def test_sums_by_hand():
    assert sums(1, 4) == {(x, x*x) for x in range(-2, 3)}
    assert sums(2, 2) == {(a + b, a*a + b*b) for a in (-1, 0, 1) for b in (-1, 0, 1)}


@pytest.mark.parametrize("n, runs, ddof", [(4, 2, 0), (6, 3, 1), (3, 4, 0), (3, 5, 0)])
def test_what_counting_gives_is_attainable_and_nothing_else(n, runs, ddof):
    score = np.array(list(itertools.product(range(n + 1), repeat=runs)))/n*100
    pairs = np.stack([score.mean(1), score.std(1, ddof=ddof)], 1)
    for m, s in np.unique(pairs.round(9), axis=0):
        for dm, ds in itertools.product((0, .1, -.1, 3.3), (0, .01, -.01, 1.07)):
            mean, sd = round(round(m, 1) + dm, 1), round(round(s, 2) + ds, 2)
            if sd < 0 or not 0 < mean < 100: continue
            hit = (abs(pairs - [mean, sd]) <= np.array([.05, .005]) + 1e-7).all(1).any()
            assert attainable(mean, sd, n, runs, ddof) == hit, (mean, sd)


def test_the_printed_digits_say_five_runs_over_the_whole_target():
    numbers = published()
    office = numbers[(numbers.paper == "fedka") & (numbers.dataset == "office_caltech10")]
    def count(target, n, runs, tables=("table2", "table5")):
        own = office[(office.target == target) & office.table.isin(tables)]
        return sum(attainable(float(m), float(s), n, runs) for m, s in zip(own["mean"], own["std"]))
    assert count("dslr", 157, 5) == count("webcam", 295, 5) == 12
    assert count("dslr", 157, 5, ["table2"]) == count("webcam", 295, 5, ["table2"]) == 7
    assert count("dslr", 157, 3) == count("webcam", 295, 3) == 2
    assert max(count("dslr", n, 5) for n in (128, 144, 156, 158, 160)) <= 4        # parts, dropped batches


def test_the_runs_on_file_are_whole():
    table = pd.read_csv(FILE)
    key = ["case", "method", "sources", "target", "seed", "rounds", "every", "limit"]
    assert not table.duplicated([*key, "mode"]).any() and (table.groupby(key).size() >= 2).all()
    for r in table.itertuples():
        hits = [int(h) for h in str(r.hits).split()]
        assert len(hits) == -(-r.rounds//r.every) and 0 <= min(hits) and max(hits) <= r.n
        assert r.target not in r.sources.split("+")


def printed(notebook):
    "What the cells of an executed notebook printed."
    outputs = (o for c in json.loads(notebook.read_text())["cells"] for o in c.get("outputs", []))
    return "".join("".join(o.get("text", "")) for o in outputs)


def papermill(to, **parameters):
    "Execute the page with parameters: the finished process."
    args = [str(a) for k, v in parameters.items() for a in ("-p", k, v)]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", PAGE, to, *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.skipif(not DATASETS.get("office_caltech10").info["available"](), reason="no data here")
def test_a_second_execution_runs_nothing(tmp_path):
    given = dict(rounds=1, limit=24, targets="dslr, webcam", cases="alone, ends", sources="amazon",
                 out=tmp_path/"runs", report=tmp_path/"table.csv")
    for made in (4, 0):
        done = papermill(tmp_path/"x.ipynb", **given)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"4 asked for, {made} made now" in printed(tmp_path/"x.ipynb")
    table, on_file = pd.read_csv(tmp_path/"table.csv"), pd.read_csv(FILE)
    assert len(table) == len(on_file) + 12 and set(table[table.limit == 24].case) == {"alone", "ends"}


def test_an_unknown_name_is_refused_before_any_run(tmp_path):
    done = papermill(tmp_path/"x.ipynb", rounds=1, sources="amazone", out=tmp_path/"runs")
    assert done.returncode and "did you mean 'amazon'" in done.stderr and not (tmp_path/"runs").exists()
