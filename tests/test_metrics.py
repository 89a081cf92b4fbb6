"""Selection, tables, ledger and records on histories made by hand; one short run for what needs a network."""
import copy, json
from types import SimpleNamespace
import numpy as np
import pandas as pd
import pytest
from fdgnb import metrics
from fdgnb.core import FdgnbError

SIZES = dict(a=dict(train=80, val=10, test=10), b=dict(train=240, val=30, test=30), t=dict(target=20))
COLUMNS = ["round", "client", "split", "point", "metric", "value"]


def history(rows, point="aggregated", metric="accuracy"):
    "rows: one (a val, b val, a test, b test, target) a round; None leaves a value out."
    places = [("a", "val"), ("b", "val"), ("a", "test"), ("b", "test"), ("t", "target")]
    return pd.DataFrame([(r, *p, point, metric, v) for r, row in enumerate(rows, 1) for p, v in zip(places, row) if v is not None], columns=COLUMNS)


def run_of(rows, sizes=SIZES, **args): return SimpleNamespace(history=history(rows), sizes=sizes, args=dict(seed=0) | args)


RUN = run_of([(.2, .2, .1, .3, .1), (.6, .6, .5, .5, .4), (.6, .6, .5, .7, .4), (.1, .5, .9, .5, .2)])


def test_all_is_pooled_and_avg_is_plain():
    v = metrics.values(RUN.history, SIZES)
    assert v.loc[3, "ALL"] == pytest.approx((10*.5 + 30*.7)/40) and v.loc[3, "AVG"] == pytest.approx(.6) and v.loc[3, "target"] == .4


def test_rules_take_the_earlier_of_equal_rounds():
    assert {r: metrics.select(RUN.history, SIZES, r) for r in metrics.RULES} == dict(last=[4], source_val=[2], top5=[1, 2, 3, 4], target=[2])


def test_validation_is_pooled_by_its_own_sizes():
    "Round 1: 9 and 12 of 40 right; round 2: 5 and 20. The plain mean would take round 1."
    assert metrics.select(history([(.9, .4, .5, .5, .5), (.5, 2/3, .5, .5, .5)]), SIZES, "source_val") == [2]
    even = dict(a=dict(val=10, test=10), b=dict(val=10, test=10), t=dict(target=5))
    assert metrics.select(history([(.9, .4, .5, .5, .5), (.5, 2/3, .5, .5, .5)]), even, "source_val") == [1]


def test_top5_is_a_mean_of_five():
    target = [.1, .9, .5, .3, .7, .2, .6]
    t = metrics.table(run_of([(.5,)*4 + (v,) for v in target]))
    assert t.loc["top5", "target"] == pytest.approx((.9 + .5 + .3 + .7 + .6)/5) and t.loc["top5", "rounds"] == "2, 3, 4, 5, 7"


def test_oracles_are_named_and_nobody_else():
    for run, word in ((RUN, "target"), (run_of([(.5,)*4], {k: SIZES[k] for k in "ab"}), "test samples")):
        uses = metrics.table(run)["uses"]
        assert {r for r, u in uses.items() if u == f"ORACLE: labels of the {word}"} == {"top5", "target"}
        assert not uses[["last", "source_val"]].str.contains("ORACLE").any()


def test_in_domain():
    inside = {k: SIZES[k] for k in "ab"}
    t = metrics.table(run_of([(.2, .2, .1, .9), (.3, .3, .8, .4), (.1, .1, .3, .3)], inside))
    assert "target" not in t and t["rounds"].to_dict() == dict(last="3", source_val="2", top5="1, 2, 3", target="2")


@pytest.mark.parametrize("lost", ["val", "test", "target"])
def test_missing_values_stay_missing(lost):
    h = RUN.history[RUN.history.split != lost]
    t = metrics.table(SimpleNamespace(history=h, sizes=SIZES), point="both")
    assert t.loc["local", ["a", "target", "ALL", "AVG"]].isna().all().all()
    if lost == "val": assert t.loc[("aggregated", "source_val"), "rounds"] == "" and t.loc[("aggregated", "last"), "target"] == .2
    if lost == "test": assert t.loc["aggregated", ["a", "b", "ALL", "AVG"]].isna().all().all() and t.loc[("aggregated", "target"), "target"] == .4
    if lost == "target": assert t.loc[("aggregated", "top5"), "rounds"] == "" and t.loc[("aggregated", "last"), "AVG"] == pytest.approx(.7)


def test_empty_history():
    t = metrics.table(SimpleNamespace(history=history([]), sizes=SIZES))
    assert t[["a", "b", "target", "ALL", "AVG"]].isna().all().all() and (t["rounds"] == "").all()


def test_local_target_is_the_mean_of_the_clients_models():
    rows = [(1, k, "target", "local", "accuracy", v) for k, v in (("a", .2), ("b", .6))]
    assert metrics.table(SimpleNamespace(history=pd.DataFrame(rows, columns=COLUMNS), sizes=SIZES), "local").loc["last", "target"] == pytest.approx(.4)


def test_adapted_row():
    more = pd.DataFrame([(4, "t", "target", "adapted", "accuracy", .8)], columns=COLUMNS)
    t = metrics.table(SimpleNamespace(history=pd.concat([RUN.history, more]), sizes=SIZES))
    assert t.loc["adapted", "target"] == .8 and "without labels" in t.loc["adapted", "uses"] and t.loc["last", "target"] == .2


def test_loss_is_shown_where_accuracy_selects():
    h = pd.concat([RUN.history, history([(0,)*4 + (v,) for v in (3., 2., 1., .5)], metric="loss")])
    assert metrics.table(SimpleNamespace(history=h, sizes=SIZES), metric="loss").loc["target", "target"] == 2.


def test_a_domain_may_be_called_like_a_column():
    "Folders called 'target', 'ALL' and 'NA' are domains like any other."
    sizes = dict(target=dict(test=1, val=1), ALL=dict(test=3, val=3), NA=dict(target=2))
    h = pd.DataFrame([(1, "target", "test", "aggregated", "accuracy", 1.), (1, "ALL", "test", "aggregated", "accuracy", 0.), (1, "NA", "target", "aggregated", "accuracy", .5)], columns=COLUMNS)
    row = metrics.table(SimpleNamespace(history=h, sizes=sizes)).loc["last"]
    assert (row["target (domain)"], row["ALL (domain)"], row["target"], row["ALL"], row["AVG"]) == (1., 0., .5, .25, .5)
    assert metrics.read_table(h.to_csv(index=False).encode()).equals(h)


def test_rounds_to():
    assert [metrics.rounds_to(RUN, x) for x in (.1, .4, .41)] == [1, 2, None]
    with pytest.raises(FdgnbError, match="did you mean 'AVG'"): metrics.rounds_to(RUN, .5, domain="AV")


def test_over_seeds():
    runs = [run_of([(.5, .5, .5, .5, v)], seed=i) for i, v in enumerate((.1, .2, .6))]
    s = metrics.over_seeds(runs)
    assert s.loc["last", ("target", "mean")] == pytest.approx(.3) and s.loc["last", ("target", "std")] == pytest.approx(np.std([.1, .2, .6], ddof=1)) and s.loc["last", ("target", "n")] == 3
    assert metrics.plus_minus(s).loc["last", "target"] == "30.0 ± 26.5" and metrics.plus_minus(metrics.over_seeds(runs[:1])).loc["last", "target"] == "10.0"
    with pytest.raises(FdgnbError, match="seed 1 is there 2 times"): metrics.over_seeds([runs[1], runs[1]])
    with pytest.raises(FdgnbError, match="differ in more than the seed: lr"): metrics.over_seeds([run_of([], seed=0, lr=.1), run_of([], seed=1, lr=.2)])
    with pytest.raises(FdgnbError, match="no runs"): metrics.over_seeds([])


def test_traffic_by_hand():
    book = pd.DataFrame([(1, "a", "down", "model", 8), (1, "a", "up", "model", 8), (1, "a", "up", "scalars", 2), (2, "b", "down", "model", 8)], columns=["round", "client", "direction", "kind", "bytes"])
    t = metrics.traffic(SimpleNamespace(ledger=book))
    assert t.loc[("down", "all")].tolist() == [16, 8, 8] and t.loc[("up", "all")].tolist() == [10, 5, 10]       # b was drawn in round 2 and did not answer


@pytest.fixture(scope="module")
def done(small):
    import fdgnb
    return fdgnb.fit("fedavg", small, target="inked", rounds=2, batch_size=24, progress=False)


def test_record_round_trip(done, tmp_path):
    metrics.save(done, tmp_path)
    rec, back = metrics.read_record(tmp_path), metrics.load(tmp_path)
    assert rec["args"] == done.fed.args() and rec["args"]["method"] == "fedavg" and {"python", "torch", "fdgnb"} <= set(rec["versions"])
    for point in ("aggregated", "local", "both"): pd.testing.assert_frame_equal(metrics.stored_table(rec, point), done.table(point=point))
    pd.testing.assert_frame_equal(back.history, done.history); pd.testing.assert_frame_equal(back.ledger, done.ledger)
    a = back.arrays
    assert (a["predicted"] == a["label"]).mean() == pytest.approx(done.table().loc["last", "target"])
    assert a["features"].shape == (len(a["feature_label"]), 800) and list(a["classes"]) == list("0123456789")


def test_one_result_one_digest(done, tmp_path):
    "Seconds and versions do not change the digest; the seed does."
    rec = metrics.record(done)
    slower = SimpleNamespace(**{k: getattr(done, k) for k in ("fed", "history", "sizes", "ledger", "round")}, seconds=[9., 9.])
    assert metrics.record(slower)["digest"] == rec["digest"]
    other = copy.deepcopy(rec); other["args"]["seed"] = 1
    assert metrics.seal(other)["digest"] != rec["digest"]


def test_no_torn_or_foreign_file_is_read(done, tmp_path):
    file = metrics.save(done, tmp_path)
    whole = file.read_text()
    altered = json.loads(whole); altered["table"]["aggregated"]["last"]["target"] = .99
    for bad in (whole[:len(whole)//2], "", "[]", "null", '{"accuracy": 1}', "\x00\xff", json.dumps(altered)):
        file.write_text(bad)
        with pytest.raises(FdgnbError, match="record.json is torn, altered or was not written by fdgnb"): metrics.read_record(tmp_path)
    file.write_text(whole)
    for name in ("history.csv", "ledger.csv", "arrays.npz"):
        data = (tmp_path/name).read_bytes(); (tmp_path/name).write_bytes(data[:-3])
        with pytest.raises(FdgnbError, match=f"{name} does not belong to the record"): metrics.load(tmp_path)
        (tmp_path/name).unlink()
        with pytest.raises(FdgnbError, match=f"{name} does not belong to the record"): metrics.load(tmp_path)
        (tmp_path/name).write_bytes(data)
    metrics.load(tmp_path)
    with pytest.raises(FdgnbError, match="no record at"): metrics.read_record(tmp_path/"elsewhere")


def test_costs_leave_the_run_alone(done):
    before, states = {k: v.clone() for k, v in done.fed.server.state.items()}, [dict(c.state) for c in done.fed.clients]
    first = metrics.costs(done); second = metrics.costs(done)
    assert first.equals(second) and first.value["flops_round"] > 0
    assert all((v == done.fed.server.state[k]).all() for k, v in before.items()) and states == [dict(c.state) for c in done.fed.clients]


def test_plots_draw_without_a_display(done):
    from fdgnb import plots
    import matplotlib.pyplot as plt
    for draw in (plots.curves, plots.domain_bars, plots.confusion, plots.ledger_plot, plots.overview): assert draw(done).axes
    assert plt.get_fignums() == []
