"""Selection, tables, ledger and records on histories made by hand; one short run for what needs a network."""
import copy, dataclasses, json, re, warnings
from types import SimpleNamespace
import numpy as np
import pandas as pd
import pytest
from nbconvert.filters import markdown2html
from fdgnb import fit, from_arrays
from fdgnb.core import FdgnbError, escape_markup
from fdgnb.runs import metrics, plots, records

SIZES = dict(a=dict(train=80, val=10, test=10), b=dict(train=240, val=30, test=30), t=dict(target=20))
COLUMNS = ["round", "client", "split", "point", "metric", "value"]


def history(rows, point="aggregated", metric="accuracy"):
    "rows: one (a val, b val, a test, b test, target) a round; None leaves a value out."
    places = [("a", "val"), ("b", "val"), ("a", "test"), ("b", "test"), ("t", "target")]
    values = [(r, *p, point, metric, v) for r, row in enumerate(rows, 1) for p, v in zip(places, row)]
    return pd.DataFrame([v for v in values if v[-1] is not None], columns=COLUMNS)


def run_of(rows, sizes=SIZES, **args):
    return SimpleNamespace(history=history(rows), sizes=sizes, args=dict(seed=0) | args)


RUN = run_of([(.2, .2, .1, .3, .1), (.6, .6, .5, .5, .4), (.6, .6, .5, .7, .4), (.1, .5, .9, .5, .2)])


def test_rules_take_the_earlier_of_equal_rounds():
    chosen = {r: metrics.select(RUN.history, SIZES, r) for r in metrics.RULES}
    assert chosen == dict(last=[4], source_val=[2], top5=[1, 2, 3, 4], target=[2])


def test_validation_is_pooled_by_its_own_sizes():
    "Round 1: 9 and 12 of 40 right; round 2: 5 and 20. The plain mean would take round 1."
    rounds = history([(.9, .4, .5, .5, .5), (.5, 2/3, .5, .5, .5)])
    even = dict(a=dict(val=20, test=10), b=dict(val=20, test=10), t=dict(target=5))
    assert [metrics.select(rounds, sizes, "source_val") for sizes in (SIZES, even)] == [[2], [1]]


def test_few_validation_samples_do_not_choose_alone():
    "Of 20 samples: within one of the best (16) the latest; a round two behind is not, nor any of 40 samples."
    rounds = history([(.8, .8, 0, 0, 0), (.8, .7, 0, 0, 0), (.7, .7, 0, 0, 0)])
    few, many = ({d: dict(val=n) for d in "ab"} | dict(t=dict(target=5)) for n in (10, 20))
    assert [metrics.select(rounds, sizes) for sizes in (few, many)] == [[2], [1]]
    assert "only 20 samples validate" in metrics.remarks(SimpleNamespace(history=rounds, sizes=few))[-1]


@pytest.mark.parametrize("curve, n, rises", [
    ([.1, .2, .3, .4], 1000, True), ([.1, .5, .9, .9, .9, .9], 1000, False), ([.5, .9, .4, .6], 1000, False),
    ([.5, .52], 40, False), ([.5], 40, False), ([], 40, False), ([.5, np.nan, .7], 400, True)])
def test_a_curve_still_rises_where_its_end_is_best_beyond_noise(curve, n, rises):
    assert metrics.still_rises(curve, n) == rises


@pytest.mark.parametrize("right, said", [(.5, "50.0 % is not above the share of the largest class, 60"), (.7, None)])
def test_a_run_no_better_than_the_largest_class_says_so(right, said):
    run = run_of([(.2, .2, .1, .3, right)]*3)
    run.arrays, run.classes = dict(label=np.array([0]*6 + [1]*4)), ["cat", "dog"]
    lines = metrics.remarks(run)
    assert (said in lines[0] and "encoder: lite0" in lines[0] and "--rounds" in lines[0]) if said else not lines
    run.arrays = dict(label=np.empty(0, int))                                        # elsewhere: at least one in two
    run.multilabel = False
    assert metrics.largest_share(run) == .5


@pytest.mark.parametrize("clients", [2, 9])
def test_scores_are_laid_out_as_pandas_would(clients):
    "Bit for bit: another order of summation would break ties between rounds otherwise."
    names, rng = [f"d{i}" for i in range(clients)], np.random.default_rng(0)
    sizes = {d: dict(test=10 + i) for i, d in enumerate(names)}
    places = [(r, d) for r in range(1, 6) for d in names]
    frame = pd.DataFrame([(r, d, "test", "aggregated", "accuracy", rng.random()) for r, d in places], columns=COLUMNS)
    wide = frame.pivot(index="round", columns="client", values="value")
    n = wide.notna()*[10 + i for i in range(clients)]
    found = metrics.values(frame, sizes)
    assert found[names].equals(wide.rename_axis(columns=None)) and found["AVG"].equals(wide.mean(axis=1))
    assert found["ALL"].equals((wide*n).sum(axis=1)/n.sum(axis=1))


def test_oracles_are_named_and_nobody_else():
    inside = run_of([(.5,)*4], {k: SIZES[k] for k in "ab"})
    for run, word in ((RUN, "target"), (inside, "test samples")):
        uses = metrics.rules_table(run)["uses"]
        assert {r for r, u in uses.items() if u == f"ORACLE: labels of the {word}"} == {"top5", "target"}
        assert not uses[["last", "source_val"]].str.contains("ORACLE").any()


@pytest.mark.parametrize("lost", ["val", "test", "target"])
def test_missing_values_stay_missing(lost):
    h = RUN.history[RUN.history.split != lost]
    t = metrics.rules_table(SimpleNamespace(history=h, sizes=SIZES), point="both")
    assert t.loc["local", ["a", "target", "ALL", "AVG"]].isna().all().all()
    at = t.loc["aggregated"]
    if lost == "val": assert at.loc["source_val", "rounds"] == "" and at.loc["last", "target"] == .2
    if lost == "test": assert at[["a", "b", "AVG"]].isna().all().all() and at.loc["target", "target"] == .4
    if lost == "target": assert at.loc["top5", "rounds"] == "" and at.loc["last", "AVG"] == pytest.approx(.7)


def test_empty_history():
    t = metrics.rules_table(SimpleNamespace(history=history([]), sizes=SIZES))
    assert t[["a", "b", "target", "ALL", "AVG"]].isna().all().all() and (t["rounds"] == "").all()


def test_local_target_is_the_mean_of_the_clients_models():
    rows = [(1, k, "target", "local", "accuracy", v) for k, v in (("a", .2), ("b", .6))]
    run = SimpleNamespace(history=pd.DataFrame(rows, columns=COLUMNS), sizes=SIZES)
    assert metrics.rules_table(run, "local").loc["last", "target"] == pytest.approx(.4)


# local models: the target in every second round, and training samples after the last one
RARE = [(.9, .9, .5, .5, None), (.3, .3, .2, .2, .6), (.8, .8, .5, .5, None), (.5, .5, .4, .4, .1),
        (.7, .7, .5, .5, None), (.4, .4, .3, .3, .5)]


def rare(point, extra=()):
    "`RARE` at one point, beside a complete history at the other."
    other = dict(local="aggregated", aggregated="local")[point]
    full = history([(r, r, r, r, r) for r in (.1, .2, .3, .6, .5, .4)], other)
    more = pd.DataFrame(list(extra), columns=COLUMNS)
    rows = pd.concat([history(RARE, point), full, more])
    return SimpleNamespace(history=rows, sizes=SIZES, args=dict(seed=0))


def test_local_rounds_with_some_of_the_clients_are_complete():
    "Who was not drawn is missing; the round still has validation, test and target values."
    h = rare("local").history
    some = h[~((h.point == "local") & (h.client == "a") & (h["round"] == 4))]
    assert list(metrics.scored_rounds(some, "local")) == [2, 4, 6]
    assert metrics.select(some, SIZES, "source_val", "local") == [4]


def test_local_never_scored_on_the_target():
    "Nothing to look at for the oracles; the other rules go on over all rounds."
    run = SimpleNamespace(history=history([r[:4] for r in RARE], "local"), sizes=SIZES)
    chosen = {r: metrics.select(run.history, SIZES, r, "local") for r in metrics.RULES}
    assert chosen == dict(last=[6], source_val=[1], top5=[], target=[])


def test_curves_bridge_rounds_that_were_not_scored():
    run = rare("local")
    run.args |= dict(method="fedavg", dataset="toy", target="t")
    run.domains, run.classes = list(SIZES), ["0", "1"]
    lines = plots.curves_plot(run).axes[0].lines
    target = [l for l in lines if l.get_marker() == plots.marks(run.domains)["t"]]
    assert [list(l.get_xdata()) for l in target] == [[1, 2, 3, 4, 5, 6], [2, 4, 6]]
    assert plots.overview_plot(run).axes


def test_loss_is_shown_where_accuracy_selects():
    h = pd.concat([RUN.history, history([(0,)*4 + (v,) for v in (3., 2., 1., .5)], metric="loss")])
    t = metrics.rules_table(SimpleNamespace(history=h, sizes=SIZES), metric="loss")
    assert t.loc["target", "target"] == 2.


def test_a_domain_may_be_called_like_a_column():
    "Folders called 'target', 'ALL' and 'NA' are domains like any other."
    sizes = dict(target=dict(test=1, val=1), ALL=dict(test=3, val=3), NA=dict(target=2))
    rows = [("target", "test", 1.), ("ALL", "test", 0.), ("NA", "target", .5)]
    h = pd.DataFrame([(1, d, s, "aggregated", "accuracy", v) for d, s, v in rows], columns=COLUMNS)
    row = metrics.rules_table(SimpleNamespace(history=h, sizes=sizes)).loc["last"]
    assert row[["target (domain)", "ALL (domain)", "target", "ALL", "AVG"]].tolist() == [1., 0., .5, .25, .5]
    assert records.read_frame(h.to_csv(index=False).encode()).equals(h)


def test_an_unknown_column_is_refused():
    with pytest.raises(FdgnbError, match="did you mean 'AVG'"): metrics.rounds_to(RUN, .5, domain="AV")


def test_means_over_seeds_are_read_as_percent():
    runs = [run_of([(.5, .5, .5, .5, v)], seed=i) for i, v in enumerate((.1, .2, .6))]
    target = metrics.average_seeds(runs).loc["last", "target"]
    assert (target["mean"], round(target["std"], 3)) == (pytest.approx(.3), .265)
    with pytest.raises(FdgnbError, match="no runs"): metrics.average_seeds([])


def test_traffic_by_hand():
    "Client b was drawn in round 2 and did not answer."
    rows = [(1, "a", "down", "model", 8), (1, "a", "up", "model", 8), (1, "a", "up", "scalars", 2),
            (2, "b", "down", "model", 8)]
    book = pd.DataFrame(rows, columns=["round", "client", "direction", "kind", "bytes"])
    t = metrics.traffic(SimpleNamespace(ledger=book))
    assert t.loc[("down", "all")].tolist() == [16, 8, 8] and t.loc[("up", "all")].tolist() == [10, 5, 10]


@pytest.fixture(scope="module")
def done(small):
    import fdgnb
    return fdgnb.fit("fedavg", small, target="inked", rounds=2, batch_size=24, progress=False)


def test_record_round_trip(done, tmp_path):
    records.save(done, tmp_path)
    rec, back = records.read_record(tmp_path), records.load(tmp_path)
    assert rec["args"] == done.fed.args() and rec["args"]["method"] == "fedavg"
    assert {"python", "torch", "fdgnb"} <= set(rec["libraries"])
    for point in ("aggregated", "local", "both"):
        pd.testing.assert_frame_equal(metrics.stored_table(rec, point), done.table(point=point))
    pd.testing.assert_frame_equal(back.history, done.history)
    pd.testing.assert_frame_equal(back.ledger, done.ledger)
    a = back.arrays
    assert (a["predicted"] == a["label"]).mean() == pytest.approx(done.table().loc["last", "target"])
    assert a["features"].shape == (len(a["feature_label"]), 800) and list(a["classes"]) == list("0123456789")


def test_one_result_one_digest(done, tmp_path):
    "Seconds and versions do not change the digest; the seed does."
    rec = records.describe_run(done)
    same = {k: getattr(done, k) for k in ("fed", "history", "sizes", "ledger", "round")}
    slower = SimpleNamespace(**same, seconds=[9., 9.])
    assert records.describe_run(slower)["digest"] == rec["digest"]
    other = copy.deepcopy(rec)
    other["args"]["seed"] = 1
    assert records.seal(other)["digest"] != rec["digest"]


def test_no_torn_or_foreign_file_is_read(done, tmp_path):
    file = records.save(done, tmp_path)
    whole = file.read_text()
    altered = json.loads(whole)
    altered["table"]["aggregated"]["last"]["target"] = .99
    for bad in (whole[:len(whole)//2], "", "[]", "null", '{"accuracy": 1}', "\x00\xff", json.dumps(altered)):
        file.write_text(bad)
        with pytest.raises(FdgnbError, match="record.json is torn"): records.read_record(tmp_path)
    file.write_text(whole)
    for name in ("history.csv", "ledger.csv", "arrays.npz"):
        data = (tmp_path/name).read_bytes()
        (tmp_path/name).write_bytes(data[:-3])
        with pytest.raises(FdgnbError, match=f"{name} does not belong to the record"): records.load(tmp_path)
        (tmp_path/name).unlink()
        with pytest.raises(FdgnbError, match=f"{name} does not belong to the record"): records.load(tmp_path)
        (tmp_path/name).write_bytes(data)
    records.load(tmp_path)
    with pytest.raises(FdgnbError, match="no record at"): records.read_record(tmp_path/"elsewhere")


def test_costs_leave_the_run_alone(done):
    before = {k: v.clone() for k, v in done.fed.server.state.items()}
    states = [dict(c.state) for c in done.fed.clients]
    first, second = records.costs(done), records.costs(done)
    assert first.equals(second) and first.value["flops_round"] > 0
    assert all((v == done.fed.server.state[k]).all() for k, v in before.items())
    assert states == [dict(c.state) for c in done.fed.clients]


def test_balanced_accuracy_is_the_mean_of_recalls():
    "Against a count by hand, over the classes that occur, and without a warning where there is one."
    rng = np.random.default_rng(3)
    for present in ([0, 1, 2, 3], [0, 2, 3], [2]):
        y, guess = rng.choice(present, 50), rng.integers(0, 4, 50)
        by_hand = [sum(g == c for g, t in zip(guess, y) if t == c)/sum(t == c for t in y) for c in set(y)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = metrics.compute_metrics(["balanced_accuracy"], np.eye(4)[guess], y)["balanced_accuracy"]
            only = metrics.compute_metrics(["balanced_accuracy", "macro_f1"], np.eye(4)[y], y)
        assert got == pytest.approx(sum(by_hand)/len(by_hand)) and set(only.values()) == {1.}
        t = metrics.recalls(metrics.confusion_counts(y, guess, 4), "abcd")
        assert t.recall.mean() == pytest.approx(got) and t.recall.isna().sum() == 4 - len(present)
        assert t.samples.sum() == t.predicted.sum() == 50 and t.right.sum() == (y == guess).sum()


def test_one_class_for_all_is_said():
    y = np.repeat([0, 1, 2], [71, 13, 6])
    said = metrics.describe_classes(metrics.confusion_counts(y, 0*y, 3), ["normal", "benign", "malignant"])
    assert "Accuracy **78.9 %**" in said and "**33.3 %** on 90 samples" in said
    assert "*normal*, the largest class, would have 78.9 %" in said
    assert said.endswith("**The model predicts one class only: normal.**")
    even = metrics.describe_classes(np.array([[5, 5], [0, 10]]), "ab")
    assert "chance is 50.0 %" in even and "largest" not in even and "one class" not in even


def uneven(data, keep=3):
    "Of all classes but the first only every so many images."
    def rare(d):
        rows = [i for i, y in enumerate(d.y.tolist()) if y == 0 or i % keep == 0]
        return type(d)(d.name, d.x[rows], d.y[rows])
    return dataclasses.replace(data, domains={k: rare(d) for k, d in data.domains.items()})


@pytest.mark.parametrize("target", ["inked", None])
def test_the_line_of_the_figures_is_the_largest_class(small, target, tmp_path):
    "Of the scored samples: also of a run read from its folder; chance where classes are equal."
    import fdgnb
    data = uneven(small)
    run = fdgnb.fit("fedavg", data, target=target, rounds=1, batch_size=24, progress=False)
    y = records.predictions(run)["label"]
    share = max(np.mean(y == c) for c in range(10))
    assert plots.baseline(run) == (pytest.approx(share), "largest class") and share > .19
    run.save(tmp_path)
    back = records.load(tmp_path)
    assert plots.baseline(back) == plots.baseline(run)
    fig = plots.overview_plot(back)
    dotted = [l.get_ydata()[0] for ax in fig.axes for l in ax.lines if l.get_linestyle() == ":"]
    assert dotted == [pytest.approx(share)]*2
    assert "largest class" in [t.get_text() for t in fig.legends[0].get_texts()]
    assert " largest class" in [t.get_text() for t in fig.axes[1].texts]
    even = SimpleNamespace(arrays=dict(label=np.arange(20) % 10), classes=list("0123456789"))
    assert plots.baseline(even) == (.1, "chance")


@pytest.mark.parametrize("n", [2, 3, 10, 15, 30])
def test_the_title_of_a_confusion_covers_nothing(n):
    y, names = np.arange(90) % n, [f"class {c}" for c in range(n)]
    run = SimpleNamespace(_arrays={2: dict(label=y, predicted=0*y)}, classes=names, sizes=SIZES, round=2,
                          args=dict(method="fedavg", dataset="a_long_name_of_a_folder", target="t", seed=0))
    fig = plots.confusion(run)
    fig.draw_without_rendering()
    title, = [t for t in [fig._suptitle, *(ax.title for ax in fig.axes)] if t and t.get_text()]
    box, others = title.get_window_extent(), fig.axes if title is fig._suptitle else fig.axes[1:]
    assert 0 <= box.x0 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1
    assert all(box.y0 >= ax.get_tightbbox().y1 or box.x1 <= ax.get_tightbbox().x0 for ax in others)
    assert "a_long_name_of_a_folder" in title.get_text()


def test_plots_draw_without_a_display(done):
    import matplotlib.pyplot as plt
    for draw in (plots.curves_plot, plots.domain_bars, plots.confusion, plots.ledger_plot, plots.overview_plot):
        assert draw(done).axes
    assert plt.get_fignums() == []


@pytest.mark.parametrize("method", ["fedavg", "fdse", "fedbr", "fedsb+ga"])
def test_flops_of_some_steps_are_those_of_all(small, method):
    "One step for each batch length, multiplied, is what the whole of `client_update` costs."
    import fdgnb
    from torch.utils.flop_counter import FlopCounterMode
    from fdgnb.federation.loop import client_update
    run = fdgnb.fit(method, small, target="inked", rounds=1, batch_size=20, eval_every=0, progress=False)
    work = records.flops(run)
    for c in run.fed.clients[:2]:
        played, download = copy.copy(c), run.fed.method.download(run.fed.server, c.id)
        played.state, net = copy.deepcopy(c.state), copy.deepcopy(run.fed.net)
        with FlopCounterMode(display=False) as counter:
            client_update(run.fed.method, net, played, download, 0)
        assert counter.get_total_flops() == work.flops[c.id] and work.samples[c.id] >= c.n()


ODD = ["<img src=x onerror=alert(1)>", r"$\href{javascript:alert(1)}{x}$", "[a](javascript:b) _b_ `c`", r"a$b\frac"]


def test_names_are_words_on_a_page_and_in_pictures():
    "Tables, sentences and pictures of a run whose domains and classes are markup, mathematics and links."
    x = np.random.default_rng(0).integers(0, 256, (16, 3, 16, 16), dtype=np.uint8)
    data = from_arrays({name: (x, np.arange(16) % 4) for name in ODD}, classes=ODD)
    run = fit("fedavg", data, ODD[0], 1, backbone="cnn2", local_steps=1, progress=False)
    said = [metrics.summarize(run), metrics.describe_classes(np.eye(4, dtype=int)*[1, 2, 1, 1], ODD)]
    pages = [metrics.show(run.table()).to_html(), *(markdown2html(escape_markup(words)) for words in said)]
    assert not re.search(r"<img|<a |\$\\", "".join(pages)) and "img src=x" in pages[1]
    for draw in (plots.overview_plot, plots.curves_plot, plots.confusion, plots.embedding, plots.domain_bars):
        draw(run).draw_without_rendering()
    shown = [text.get_text() for text in plots.curves_plot(run).legends[0].texts]
    assert all(name in shown for name in ODD[1:])
    assert metrics.write_csv(pd.DataFrame({"=a": ["@1"], "b": [-2.]})) == "'=a,b\n'@1,-2.0\n"
