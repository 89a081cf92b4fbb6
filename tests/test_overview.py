"""The map of the published rows, the lists of methods in README and index, and what the table measures."""
from pathlib import Path
import pytest
from fdgnb.core import FdgnbError
from fdgnb.data.catalogue import DATASETS
from fdgnb.federation.compose import METHODS
from fdgnb.runs.records import flops
from fdgnb.runs.setup import resolve_arguments
from fdgnb.federation.compose import method_class
from fdgnb.tables.overview import HUNDRED, LEFT, MIXTURE, home, is_personal, key_of, published, row_map
from fdgnb.tables.overview import row_run, trial
from lists import FILES, listed, results, text_of
from pairs import outcome

ROOT = Path(__file__).resolve().parent.parent
ROWS = row_map()


def test_no_row_is_left_but_the_listed_ones():
    left = ROWS[ROWS.why != ""]
    assert {m.removesuffix("+GA") for m in left.method} == {"FedCSA", "Best (more clients)"} == set(LEFT)
    assert len(ROWS) == len(published()[["paper", "table", "method", "dataset"]].drop_duplicates())
    assert (ROWS[ROWS.why == ""].key != "").all()


def test_the_published_numbers_are_whole():
    p = published()
    assert len(p) == 1074 and set(p.paper) == {"fedka", "ga", "fedbr", "fdse"}
    row = p.query("paper == 'fdse' and table == 'table1' and method == 'FDSE' and dataset == 'domainnet'")
    assert dict(zip(row.target, row["mean"])) == {"all": 76.77, "avg": 74.5}


@pytest.mark.parametrize("row, key, given", [
    ("fdse table2 FedBN office_caltech10", "fedbn+bnstats", {}),
    ("fdse table2 FDSE_-_align domainnet", "fdse", dict(adapt="never")),
    ("fdse table1 FedBN pacs", "fedbn", {}), ("fdse table3 FDSE[A+C] pacs", "fdse", dict(tau=0.)),
    ("fedbr table2 FedBR_(32_pseudo-data) cifar10", "fedbr", dict(refresh="once")),
    ("fedbr table3 FedAvg_+_FedBR cifar10", "fedbr", MIXTURE),
    ("fedbr table3 FedCM_+_FedBR cifar100", "fedcm+fedbr+mixup", MIXTURE),
    ("fedbr table3 FedCM_+_FedBR cifar10", "fedcm+fedbr", MIXTURE),
    ("fedbr table3 FedAvg cifar100", "mixup", {}),
    ("fedbr table6 FedBR cifar10", "fedbr", dict(refresh="once", eval_local=1)),
    ("fedbr table6 VHL cifar10", "vhl", dict(eval_local=1)),
    ("fedbr table7 FedBR cifar10", "fedbr", dict(refresh="once")),
    ("fedbr table7 FedBR cifar100", "fedbr+mixup", dict(refresh="once")),
    ("fedbr table1 FedBR cifar10", "fedbr", {}), ("fedbr table5 FedBR cifar10", "fedbr", HUNDRED),
    ("fedbr table1 FedAvg cifar100", "fedavg", {}), ("fedbr table1 FedBR_+_Mixup cifar10", "fedbr+mixup", {}),
    ("fedbr table4 Component_1 cifar10", "fedbr", dict(component2=False)),
    ("ga main FedAvg+GA pacs", "ga", {}), ("ga main FedProx+GA pacs", "fedprox+ga", {}),
    ("ga test_time Tent+GA pacs", "tent+ga", {}), ("fdse tableA9 FedDG-GA domainnet", "ga", {}),
    ("fedka table1 Disentangler_+_Voting-L digit_five", "disentangler+voting", dict(votes=2048))])
def test_rows_one_by_one(row, key, given):
    paper, table, method, dataset = row.split()
    assert key_of(paper, table, method.replace("_", " "), dataset) == (key, given)


def test_every_row_is_accepted_under_its_papers_protocol():
    "Names and values of what `row_run` gives are known to `fit`; every target is a domain of the data set."
    for r in published().itertuples():
        if r.method.removesuffix("+GA") in LEFT or r.dataset == "avg3": continue
        call = row_run(r.paper, r.table, r.method, r.dataset, r.backbone, r.target)
        if set(call["method"].split("+")) - set(METHODS.names()): continue
        apart = {k: call.pop(k) for k in ("method", "dataset", "target", "protocol")}
        cls = method_class(apart["method"])
        rounds, *_ = resolve_arguments(cls, call, None, apart["protocol"], None, apart["dataset"])
        assert rounds > 1 and apart["target"] in (None, "own", *DATASETS.get(apart["dataset"]).info["counts"])


def test_rows_that_have_no_run_are_refused_in_one_line():
    for args, why in {("ga", "main", "FedCSA", "pacs"): "no definition found",
                      ("ga", "main", "FedAvg", "avg3"): "is a mean",
                      ("ga", "main", "FedAgv", "pacs"): "did you mean 'FedAvg'"}.items():
        with pytest.raises(FdgnbError, match=why) as e: row_run(*args)
        assert "\n" not in str(e.value)


GIVEN = {f"{r.key} {r.given}": (r.key, r.given) for r in ROWS.itertuples() if r.given}


@pytest.mark.parametrize("row", GIVEN)
def test_rows_with_hyper_parameters_run_a_round(row):
    "The others: keys alone in test_methods, sums in test_pairs."
    key, given = GIVEN[row]
    given = {k: v for k, v in given.items() if k not in ("partition", "vhl_n")}          # sizes of their data
    assert outcome(key, **given) == ""


@pytest.mark.parametrize("file", FILES)
def test_lists_of_methods_are_those_of_the_registry(file):
    assert listed(file) in text_of(file), "python tests/lists.py writes them"


def test_the_readme_shows_the_records_on_file():
    assert results() in text_of("README.md"), "python tests/lists.py writes them"


def test_every_page_of_the_registry_is_there():
    for key in METHODS.names(): assert (ROOT/"nbs"/home(key)).exists()


def test_flops_of_a_method_that_differentiates_twice():
    "torch's tracker of modules broke on `autograd.grad`, so a run of fedmix could not be saved."
    assert flops(trial("fedmix")).flops.sum() > flops(trial("fedavg")).flops.sum()


def test_who_is_personal():
    assert {k: is_personal(trial(k)) for k in ("fedavg", "ga", "fedbn", "local", "ditto")} == dict(
        fedavg=False, ga=False, fedbn=True, local=True, ditto=True)
