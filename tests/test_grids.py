"Small cases of the pages on experiments: what is refused, gaps, edges. Whole grids are in test_experiments."
import shutil
from dataclasses import fields
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
import fdgnb
from fastcore.test import test_close as close, test_eq as same, test_fail as fails
from fdgnb import FdgnbError
from fdgnb.data.catalogue import get_dataset
from fdgnb.experiments.grid import (ComparePage, check_seeds, grid, list_members, parse_methods, plan_comparison,
                                    split_names)
from fdgnb.experiments.store import (Store, add_digest, combine, failure_of, metric_names, outcome, read_study,
                                     record_of, scores_in, share, subtract, thin, to_six, write_study)
from fdgnb.experiments.statistics import judge, verdicts
from fdgnb.experiments.table import all_rules, cost_of, curves_of, table
from fdgnb.federation.toys import slice_of
from fdgnb.runs.callbacks import Metrics
from fdgnb.runs.setup import read_page


def refuses(call, said):
    "The call raises an FdgnbError that says so."
    with pytest.raises(FdgnbError) as e: call()
    assert said in str(e.value)


@pytest.mark.parametrize("wrong", ["ga(", "ga)", "ga(d=1", "(d=1)", "ga(.5)", "ga(d=1, d=2)", "ga(**x)", "ga(d=f())",
                                   "ga()(d=1)", "ga)(", "ga(d=1)#x"])
def test_a_method_that_is_written_wrongly_is_refused(wrong):
    refuses(lambda: parse_methods(split_names(wrong)), "wanted name(key=value, ...)")


def test_methods_come_in_any_container_and_a_set_is_sorted():
    longer = split_names("fedavg fedavg(local_epochs=3), fedka(sent=plain, gamma=.5)")
    assert longer == ["fedavg", "fedavg(local_epochs=3)", "fedka(sent=plain, gamma=.5)"]
    written = [("fedavg", {}), ("fedavg", dict(local_epochs=3)), ("fedka", dict(sent="plain", gamma=.5))]
    assert parse_methods(longer) == [(label, *m) for label, m in zip(longer, written)]
    assert parse_methods({"GA": "ga", "wide": ("ga", dict(d=.5))}) == [("GA", "ga", {}), ("wide", "ga", dict(d=.5))]
    assert parse_methods(pd.Index(["ga ", "fedavg"])) == parse_methods(m for m in ("ga", "fedavg"))
    five = {"moon", "ga", "fedavg", "fdse", "fedprox"}
    assert [m for m, *_ in parse_methods(five)] == sorted(five)
    refuses(lambda: parse_methods("gaa"), "did you mean 'ga'?")
    refuses(lambda: parse_methods(["ga", "ga"]), "is there twice")
    refuses(lambda: split_names(5), "methods=5: wanted names")


def test_seeds_are_different_whole_numbers():
    for several in ([1, 2.], np.arange(1, 3), pd.Series([1, 2]), {2, 1}, (s for s in (1, 2))):
        assert repr(check_seeds(several)) == "[1, 2]"                      # 2. would be another run's name
    refuses(lambda: check_seeds([1, 1]), "different seeds")


def test_samples_by_number_are_one_data_set_whose_end_is_not_looked_for():
    class Endless:
        def __getitem__(self, i): return i
    assert list_members(Endless()) is None


@pytest.mark.parametrize("given, said", [
    (dict(hyper=dict(mu=1.)), "no method of the grid has"), (dict(hyper=dict(lrr=.1)), "did you mean 'lr'?"),
    (dict(lrr=1.), "did you mean 'lr'?"), (dict(target="blendet"), "did you mean 'blended'?"),
    (dict(seeds=3), "unknown argument 'seeds'; did you mean 'seed'?"), (dict(hyper=dict(lr=.1), lr=.2), "given twice"),
    (dict(rounds=3, drops=[(1, "inked")]), "unknown client 'inked' with inked held out"),
    (dict(dataset=["digits"]*2), "'digits' is there twice"),
    (dict(dataset=["digits", Path("digits")]), "'digits' is there twice"),
    (dict(dataset=["digits", "digits/"]), "'digits' is there twice"),
    (dict(method="fedka", target=None), "name a target"),
    (dict(method={"slow": "fednova", "control": ("scaffold", dict(momentum=.9))}),
     "control: scaffold is defined for plain SGD")])
def test_a_grid_refuses_what_fit_would_refuse(given, said):
    refuses(lambda: grid(**dict(method="fedavg") | given), said)


def test_a_client_may_drop_out_where_it_is_not_held_out():
    assert len(grid("fedavg", target="blended", seed=0, rounds=3, drops=[(1, "inked")])) == 1


@pytest.mark.parametrize("given, said", [
    (dict(method="ga"), "unknown parameter 'method'; did you mean 'methods'?"),
    (dict(rule="lats"), "rule='lats' is not allowed; did you mean 'last'?"),
    (dict(seeds=0), "seeds=0 is out of range"), (dict(retry="no"), "retry='no': expected True or False")])
def test_the_page_compare_refuses_wrong_parameters(given, said):
    refuses(lambda: read_page(ComparePage, given), said)


def test_the_page_compare_becomes_a_grid(tmp_path):
    defaults = {f.name: f.default for f in fields(ComparePage)}
    given = read_page(ComparePage, defaults | dict(methods="fedavg, ga(d=.5)", out=f"{tmp_path}/a"))
    lines, names, folder = plan_comparison(given)
    assert folder.is_dir() and (len(lines), names, {*lines.rounds}) == (3*5*2, ["fedavg", "ga(d=.5)"], {8})
    assert [*plan_comparison(dict(target="none", seeds=1))[0].target] == [None, None]
    refuses(lambda: plan_comparison(dict(base="gaa", methods="ga fedavg")), "did you mean 'ga'?")
    refuses(lambda: plan_comparison(dict(device="gpu")), "unknown device 'gpu'")


def test_pooled_has_the_settings_of_the_base_and_no_test():
    given = dict(methods="ga fedavg(local_epochs=3)", base="fedavg(local_epochs=3)", target="inked", seeds=1, rounds=1)
    halved = plan_comparison(given | dict(hyper=dict(partition=["split", 2], limit=20)))[0]
    assert halved.iloc[-1].options["partition"] == ("chain", ["split", 2], ("pool",))
    lines = plan_comparison(given | dict(hyper=dict(limit=20)))[0]
    assert lines.label.tolist()[-1] == "pooled" and lines.iloc[-1].options["local_epochs"] == 3
    assert len(plan_comparison(given | dict(pooled=False))[0]) == 2


@pytest.fixture(scope="module")
def made():
    "A short run on a few digits, its record, arguments and versions."
    data = slice_of(get_dataset("digits"), 24)
    run = fdgnb.fit("fedavg", data, "blended", 2, 1, batch_size=16, progress=False)
    return run, record_of(run), run.fed.args(), dict(loop=1, fedavg=1)


def test_a_record_has_the_run_s_scores_and_curve(made):
    run, rec, *_ = made
    assert rec["scores"]["aggregated"]["last"]["target"] == to_six(run.table().loc["last", "target"])
    assert rec["curves"]["round"] == [1, 2] and "reached" not in rec
    assert len(thin(range(1, 201))) == 20 and thin(range(1, 201))[-1] == 200


def test_a_failure_does_not_replace_a_result(made, tmp_path):
    _, rec, args, versions = made
    store = Store(tmp_path)
    store.put(rec)
    store.put(failure_of(args, versions, "out of\nmemory"))
    assert store.find(args, versions) == ("done", rec)
    store.put(failure_of(args, versions | dict(loop=2), "out of\nmemory"))
    assert store.find(args, versions | dict(loop=2))[1]["error"] == "out of memory"


def test_a_record_that_was_altered_copied_or_differs_is_refused(made, tmp_path):
    _, rec, args, versions = made
    store = Store(tmp_path/"one")
    path = store.put(rec)
    path.write_text(path.read_text().replace('"rounds":2,', '"rounds":3,'))
    refuses(lambda: store.find(args, versions), "is torn")
    store = Store(tmp_path/"another")
    first = store.put(rec).read_bytes()
    refuses(lambda: store.put(add_digest(rec | dict(rounds=3))), "not repeatable here")
    another = args | dict(seed=9)                                      # a copy under another run's name
    shutil.copy(store.path(args), store.path(another))
    refuses(lambda: store.find(another, versions), "no record of the run that it is named for")
    refuses(lambda: Store(5), "store=5: wanted the path of a folder")
    assert store.path(args).read_bytes() == first


def test_a_study_reads_what_was_written_and_the_better_record_is_found(made, tmp_path):
    _, rec, args, versions = made
    others = [rec | dict(args=args | dict(seed=s), best_val=.5) for s in (2, 3, 4)]
    study = write_study(tmp_path/"published"/"small.jsonl", [rec, *others])
    back = {r["args"]["seed"]: r for r in read_study(study)}
    assert back[1] == {k: v for k, v in rec.items() if k != "digest"}
    assert [{**back[r["args"]["seed"]], "digest": r["digest"]} for r in others] == others
    both = Store(tmp_path/"third", tmp_path/"published")
    assert both.find(args, versions) == ("done", back[1]) and len([*both]) == 4
    both.put(failure_of(args, versions, "out of memory"))                 # the published one is better
    assert (both.find(args, versions), len([*both]), [*both][0]) == (("done", back[1]), 4, back[1])
    refuses(lambda: write_study(study, [rec, rec]), "is there twice")
    for old, new, said in (('{"args":{"seed":4}', '{"args":{"seed}', "line 5: no record"),
                           ("fdgnb-result-2", "fdgnb-result-3", "another version's")):
        text = study.read_text()
        study.write_text(text.replace(old, new, 1))
        refuses(lambda: read_study(study), said)
        study.write_text(text)


def test_a_failed_run_is_a_short_line_of_a_study(made, tmp_path):
    _, rec, args, versions = made
    study, others = tmp_path/"published"/"small.jsonl", [rec | dict(args=args | dict(seed=s)) for s in (2, 3)]
    failed = failure_of(args | dict(seed=5), versions, "x")
    several = write_study(study, [rec, *others, failed]).read_text().splitlines()
    assert len(several[-1]) < 100 and several[:-1] == write_study(study, [rec, *others]).read_text().splitlines()
    assert [*map(add_digest, read_study(write_study(study, [failed])))] == [failed]
    write_study(study, [rec, *others, failed])
    assert [add_digest(r) for r in read_study(study) if "error" in r] == [failed]
    assert Store(tmp_path/"fourth", tmp_path/"published").find(failed["args"], versions)[0] == "failed"
    assert read_study(write_study(study, [])) == []


def test_what_dicts_share_and_what_they_do_not_add_up():
    a, b = dict(x=1, y=dict(z=1), s="t"), dict(x=2, y=dict(z=1, w={}), s=dict(u=1))
    assert [combine(share([a, b, a]), subtract(v, share([a, b, a]))) for v in (a, b)] == [a, b]


def test_metrics_lie_beside_the_scores_and_an_edited_one_is_unmeasured(made, tmp_path, monkeypatch):
    run, rec, args, versions = made
    store, data = Store(tmp_path), slice_of(get_dataset("digits"), 24)
    again = fdgnb.fit("fedavg", data, "blended", 2, 1, batch_size=16, progress=False,
                      callbacks=[Metrics("macro_f1", "auc")])
    store.put(record_of(again, ["macro_f1", "auc"]))
    store.put(record_of(run))                                          # from elsewhere, without any
    state, kept = store.find(args, versions, ["macro_f1", "auc"])
    assert (state, outcome(kept), scores_in(kept, "auc")) == ("done", outcome(rec), {})   # a class lacks: no AUC
    versions_of_metrics = dict(macro_f1="edited", auc=None)
    monkeypatch.setattr("fdgnb.experiments.store.metric_version", versions_of_metrics.get)
    assert [store.find(args, versions, [m])[0] for m in ("macro_f1", "auc")] == ["unmeasured", "done"]
    path = store.path(args)
    path.write_text(path.read_text().replace('"macro_f1":', '"macro_f2":'))
    refuses(lambda: store.find(args, versions), "is torn")


def test_names_of_metrics():
    assert metric_names(["auc", "accuracy", "auc"]) == ["auc"] and metric_names(None) == []
    refuses(lambda: metric_names("macro_f2"), "did you mean 'macro_f1'?")


def line(label, target, seed, value, dataset="toy", n=10, **more):
    "A finished run of the grid; of no value one that is missing."
    scored = dict(aggregated=dict(last={"target" if target else "AVG": value, "rounds": "2"}))
    rec = dict(args=dict(target=target, **more), samples={target: n}, scores=scored)
    return dict(label=label, method=label, dataset=dataset, target=target, seed=seed,
                state="missing" if value is None else "done", record=None if value is None else rec)


def test_what_was_asked_for_and_is_not_there_shows():
    asked = [line(m, t, s, .5 + (m == "b")*.1*(s + 1) if t != "z" and (t, s) != ("y", 1) else None)
             for m in "ab" for t in "xyz" for s in range(3)]
    t = table(pd.DataFrame(asked), "last", base="a")
    same(list(t.mean), [*"xyz", "Avg", "ALL"]); assert t.mean[["z", "Avg", "ALL"]].isna().all(axis=None)
    assert "8 cells without a score (runs: 8 missing)" in t.caption and t.extra.gain.isna().all()
    same(t.cell("b", "y"), "70.0 ± 14.1 (2)"); same(t.cell("b", "z"), "")
    t = table(pd.DataFrame([r for r in asked if r["target"] == "x"]), "last", base="a")
    same(judge(t).tolist(), ["open"])
    same(verdicts(table(pd.DataFrame(asked), "last")), "No row fedavg to compare with.")


def test_data_sets_side_by_side():
    two = [line(m, t, s, v + .1*(m == "b"), d, n) for m in "ab" for s in (0, 1)
           for d, t, n, v in (("d", "p", 100, .2), ("d", "q", 300, .4), ("e", "r", 50, .6))]
    t = table(pd.DataFrame(two), "last", base="a", columns="dataset")
    close(t.mean.loc["a"], [.3, .6, .45, (100*.2 + 300*.4 + 50*.6)/450])
    same(judge(t).tolist(), ["untested"])                                # each seed has the same gain
    t = table(pd.DataFrame([*two[:-1], line("b", "r", 1, None, "e")]), "last", base="a", columns="dataset")
    same(t.cell("b", "e"), "70.0 (1)"); same(t.cell("b", "d"), "40.0 ± 0.0")


def test_different_things_in_one_cell_are_refused():
    scored = dict(a=(.033333, .083333), b=(.05, .066667))
    ties = [line(m, "x", s, v) for m, vs in scored.items() for s, v in enumerate(vs)]
    same(table(pd.DataFrame(ties), "last", base="a").extra["rank"].tolist(), [1.5, 1.5])
    many = [line(m, None, s, .5) for m in "ab" for s in (0, 1)]               # so many clients: means alone
    close(table(pd.DataFrame(many), "last", base="a").mean.AVG, [.5, .5])
    for wrong, said, columns in (
            ([line("a", "x", 0, .5), line("b", None, 0, .5)], "in-domain runs and held-out", "target"),
            ([line("a", "x", 0, .5, data="1"), line("b", "x", 0, .5, data="2")], "of one name", "dataset"),
            ([line("a", "x", 0, .5), line("a", "x", 0, .6)], "several runs of 'a'", "dataset"),
            ([line("a", "x", 0, .5), line("a", "x", 0, .6)], "labels of their own", "target")):
        fails(lambda: table(pd.DataFrame(wrong), "last", base="a", columns=columns), contains=said)
    fails(lambda: table(pd.DataFrame(ties), "last", base="c"), contains="no row 'c'")
    fails(lambda: table(pd.DataFrame(ties).drop(columns="record")), contains="wanted the lines that a grid's")


def test_domains_held_out_together_and_odd_names(tmp_path):
    listed = [line(m, "x+y", s, .5 + .1*s) for m in "ab" for s in (0, 1)]            # two held out together
    listed[-1] |= dict(record=None, state="missing")
    for r in listed: r["target"] = ["x", "y"]
    t = table(pd.DataFrame(listed), "last", base="a")
    same(list(t.mean), ["x+y"]); same(t.cell("b", "x+y"), "50.0 (1)")
    turned = table(pd.DataFrame(listed), "last", base="x+y", rows="target", columns="label")
    same([*turned.mean.index], ["x+y"])
    two = [line(m, t, s, v + .1*(m == "b"), d, n) for m in "ab" for s in (0, 1)
           for d, t, n, v in (("d", "p", 100, .2), ("d", "q", 300, .4), ("e", "r", 50, .6))]
    mixed = pd.DataFrame([*two, line("a", None, 0, None, "f")])
    close(table(mixed, "last", base="a", columns="dataset").mean.loc["a", ["d", "e"]], [.3, .6])
    renamed = pd.DataFrame([dict(line(m, "x", s, .5), method="m") for m in "ab" for s in (0, 1)])
    same(list(table(renamed, "last", base="m", rows="method", columns="label").mean), [*"ab", "Avg", "ALL"])
    named = table(pd.DataFrame([line(m, "h|1", 0, .5) for m in ("[x] a", "b|c\nd")]), "last", base="b|c\nd")
    assert "\n{}[x] a &" in named.to_latex()
    same({r.count("|") - r.count("\\|") for r in named.to_markdown().splitlines()[2:]}, {5})
    (tmp_path/"file").touch()
    fails(lambda: named.save(tmp_path/"file", "t"), contains="cannot be written")


def record(values, per_round=None, flops=10, sent=4, **rules):
    "An in-domain record of two clients, of 10 and 30 test samples; curves rise to their mean."
    row = lambda a, b: dict(a=a, b=b, AVG=(a + b)/2, ALL=(10*a + 30*b)/40, rounds="2")
    at = dict(last=row(*values), **{r: row(*v) for r, v in rules.items()})
    args = dict(target=None, settings=dict(per_round=per_round))
    return dict(args=args, samples=dict(a=10, b=30), rounds=2, flops_round=flops,
                scores=dict(aggregated=at), bytes=dict(up=dict(model=sent), down=dict(model=2*sent)),
                curves=dict(round=[1, 2], target=[.1, None], val=[.7, .8]))


def test_in_domain_tables_costs_rules_and_verdicts():
    of = dict(fedavg=[record((.2, .4), source_val=(.1, .3)), record((.4, .6), source_val=(.3, .5))],
              half=[record((.5, .5), 1, 30, 2, source_val=(.4, .4)),
                    record((.6, .9), 1, 30, 2, source_val=(.5, .8))])
    inside = pd.DataFrame([dict(label=m, method=m, dataset="toy", target=None, seed=s, state="done", record=r)
                           for m, rs in of.items() for s, r in enumerate(rs)])
    t = table(inside, "last")
    assert t.inside and not table(inside.assign(target="a", record=[
        dict(r, args=dict(r["args"], target="a"), scores=dict(aggregated=dict(last=dict(target=.5, rounds="2"))))
        for r in inside.record]), "last").inside
    same([*t.mean], ["a", "b", "Avg", "ALL"])
    close(t.mean.loc["half"].to_numpy(), [.55, .7, .625, (10*.55 + 30*.7)/40])
    close(t.extra.gain["half"], .225); same(t.n.loc["half", "Avg"], 2)
    costs = cost_of(inside, t)
    close(costs.loc["half", ["gain", "bytes", "flops"]].to_numpy(float), [.225, .5, 1.5])
    same(costs.loc["fedavg"].dropna().to_dict(), dict(gain=0., bytes=1., flops=1.))
    same(curves_of(inside)[["round", "value"]].to_numpy().tolist(), [[1, .1]]*4)
    choices = all_rules(inside)
    same([*choices], ["last", "source_val"])
    close(choices.loc["half"].to_numpy(), [62.5, 52.5])
    close(choices.loc["fedavg"].to_numpy(), [40, 30])
    same(t.best("a"), {"half"})
    one = table(inside[:3], "last")                                       # a seed of `half` is not there
    same((one.best("a"), one.cell("half", "a")), ({"fedavg"}, "50.0 (1)"))
    assert "an oracle" not in t.caption
    under = lambda rule: inside.assign(record=[
        dict(r, scores=dict(aggregated={rule: r["scores"]["aggregated"]["last"]})) for r in inside.record])
    for r in ("top5", "target"): assert "an oracle: it looks at the target's labels" in table(under(r), r).caption
    unseen = under("last")
    same([*all_rules(unseen)], ["last"])
    fails(lambda: table(unseen), contains="no validation samples to select by, rule='last'")
    other = inside.assign(target="a", record=[
        dict(r, args=dict(r["args"], target="a"), samples=dict(a=10 + 2*(k > 1), b=30),
             scores=dict(aggregated=dict(last=dict(target=.5, rounds="2"))))
        for k, r in enumerate(inside.record)])
    fails(lambda: table(other, "last"), contains="on different numbers of samples of a")
    same(verdicts(table(inside.drop(index=[0, 1]), "last")), "No row fedavg to compare with.")
    lone = inside.assign(record=[None if m == "fedavg" else r for m, r in zip(inside.label, inside.record)])
    assert verdicts(table(lone, "last")).startswith("No whole run of fedavg to compare with")
    def luck(gains):
        "The verdict on `half` over FedAvg at .2 and .3, by gains (a, b) a seed."
        more = [("fedavg", .2, .3)]*len(gains) + [("half", .2 + a, .3 + b) for a, b in gains]
        lines = [dict(inside.loc[0], label=m, method=m, seed=k % len(gains), record=record((a, b)))
                 for k, (m, a, b) in enumerate(more)]
        return verdicts(table(pd.DataFrame(lines), "last"))
    shared = "* of these, with each of the {} seeds as one number, as its clients share a run, still shown: {}"
    apart, alike = [(.1, .12), (.12, .1), (.11, .111)], [(.02, .02), (.1, .1), (.07, .07), (.04, .04)]
    same(luck(apart).splitlines(), ["* beats fedavg: half (+11.0)", shared.format(3, "half")])
    same(luck(alike).splitlines()[1:], [shared.format(4, "half")])
    few = luck([(.02, .02), (.1, .1), (.07, .07)]).splitlines()
    same(few, ["* beats fedavg: half (+6.3)", shared.format(3, "none")])
    even = luck([(.09, .11), (.11, .09), (.1, .1)]).splitlines()          # seeds of one mean: no test
    same(even, ["* beats fedavg: half (+10.0)", shared.format(3, "none") + "; without a test: half"])
    assert len(luck([(.1, -.1), (-.1, .2)]).splitlines()) == 1               # nothing shown, nothing to say
