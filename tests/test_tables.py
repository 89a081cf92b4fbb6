"""Tables and tests of significance: records planted by hand, against scipy, statsmodels and numbers worked out here."""
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from conftest import says
from fdgnb.experiments.statistics import gain_of, mean_ranks, verdicts
from fdgnb.experiments.table import table

SIZES = dict(a=10, b=30, c=60)


def plant(label, target, seed, value, dataset="toy", sizes=SIZES, data="1", base=None, local=None):
    """A line of a grid's results. value: the score on the target, {domain: score} in-domain, None: no run yet.

    This is the one place of these tests that knows how a record is written."""
    record = None
    if value is not None:
        row = dict(target=value) if target else value | dict(
            AVG=np.mean([*value.values()]), ALL=np.average([*value.values()], weights=[sizes[k] for k in value]))
        points = {point: dict(last=scores | dict(rounds="2")) for point, scores in
                  dict(aggregated=row, local=local).items() if scores}
        record = dict(args=dict(target=target, data=data, settings=dict(per_round=None)), samples=sizes,
                      scores=points)
    return dict(label=label, method=label, dataset=dataset, target=target, seed=seed, record=record,
                state="missing" if value is None else "done")


def tabulate(lines, **given): return table(pd.DataFrame(lines), "last", **dict(base="fedavg") | given)


def held_out(**scores):
    "Lines of {label: {target: values by seed}}."
    return [plant(label, target, seed, value) for label, targets in scores.items()
            for target, values in targets.items() for seed, value in enumerate(values)]


# ---- tables

FEDAVG, OURS = dict(a=[.5, .7], b=[.2, .4]), dict(a=[.6, .8], b=[.1, .5])


def test_means_deviations_gains_and_ranks_by_hand():
    "`ours` is better on a, level on b; ALL weighs columns by their samples."
    t = tabulate(held_out(fedavg=FEDAVG, ours=OURS))
    assert t.mean.loc["ours"].to_dict() == pytest.approx(dict(a=.7, b=.3, Avg=.5, ALL=(10*.7 + 30*.3)/40))
    assert t.sd.loc["ours", "a"] == pytest.approx(np.std([.6, .8], ddof=1))
    assert t.sd.loc["ours", "Avg"] == pytest.approx(np.std([.35, .65], ddof=1))
    assert t.extra.loc["ours", "gain"] == pytest.approx(.05)
    assert t.extra["rank"].to_dict() == dict(fedavg=1.75, ours=1.25)
    assert t.cell("ours", "a") == "70.0 ± 14.1" and (t.best("a"), t.best("b")) == ({"ours"}, {"ours", "fedavg"})


def test_in_domain_columns_are_the_clients():
    lines = [plant(label, None, seed, dict(a=.2 + up, b=.4 + up)) for label, more in dict(fedavg=0, ours=.1).items()
             for seed, up in enumerate((more, more + .2))]
    t = tabulate(lines)
    assert t.mean.loc["fedavg"].to_dict() == pytest.approx(dict(a=.3, b=.5, Avg=.4, ALL=(10*.3 + 30*.5)/40))
    assert t.extra.gain["ours"] == pytest.approx(.1)


def test_gaps_are_shown_and_not_averaged():
    "Nothing was run on c, and one seed of b lacks `ours`: no mean over columns, fewer seeds are said and never bold."
    lines = held_out(fedavg=FEDAVG | dict(c=[None, None]), ours=dict(a=[.6, .8], b=[.9, None], c=[None, None]))
    t = tabulate(lines)
    assert t.mean[["c", "Avg", "ALL"]].isna().all(axis=None) and t.extra.gain.isna().all()
    assert "5 missing" in t.caption
    assert (t.cell("ours", "b"), t.cell("ours", "c")) == ("90.0 (1)", "")
    fewer = tabulate(held_out(fedavg=FEDAVG, ours=dict(a=[.9, None], b=[.9, .9])))
    assert fewer.cell("ours", "a") == "90.0 (1)" and fewer.best("a") == {"fedavg"}


def test_data_sets_side_by_side():
    "A column is the mean of a data set's targets; ALL still weighs all samples."
    cells = [("digits", "a", .2), ("digits", "b", .4), ("office", "c", .6)]
    lines = [plant(label, target, seed, value + .1*(label == "ours"), dataset)
             for label in ("fedavg", "ours") for seed in (0, 1) for dataset, target, value in cells]
    t = tabulate(lines, columns="dataset")
    assert t.mean.loc["fedavg"].tolist() == pytest.approx([.3, .6, .45, (10*.2 + 30*.4 + 60*.6)/100])
    assert "not tested" in verdicts(t)                                       # both seeds have the same gain


def test_domains_held_out_together_are_a_column_and_odd_names_keep_a_table_s_shape():
    lines = [plant(label, "a+b", seed, .5) for label in ("fedavg", "x|y\nz") for seed in (0, 1)]
    t = tabulate([line | dict(target=["a", "b"]) for line in lines])
    assert [*t.mean] == ["a+b"]
    assert {row.count("|") - row.count("\\|") for row in t.to_markdown().splitlines()[2:]} == {5}


@pytest.mark.parametrize("lines, said, given", [
    ([plant("fedavg", "a", 0, .5), plant("ours", None, 0, dict(a=.5, b=.5))], "in-domain runs and held-out", {}),
    ([plant("fedavg", "a", 0, .5), plant("fedavg", "a", 0, .6)], "labels of their own", {}),
    ([plant("fedavg", "a", 0, .5), plant("ours", "a", 0, .5, data="2")], "of one name", dict(columns="dataset")),
    ([plant("fedavg", "a", 0, .5), plant("ours", "a", 0, .5, sizes=dict(a=11))], "different numbers of samples", {}),
    (held_out(fedavg=FEDAVG), "no row 'gone'", dict(base="gone")),
    (held_out(fedavg=FEDAVG), "unknown columns", dict(columns=None)),
    (held_out(fedavg=FEDAVG), "unknown metric", dict(metric="f2"))])
def test_what_cannot_stand_in_one_table(lines, said, given):
    says(lambda: tabulate(lines, **given), said)


def test_scores_that_the_target_chose_are_called_an_oracle():
    lines = held_out(fedavg=FEDAVG)
    for line in lines:
        at = line["record"]["scores"]["aggregated"]
        at["target"] = at["last"]
    assert "oracle" in table(pd.DataFrame(lines), "target").caption
    assert "oracle" not in tabulate(lines).caption
    says(lambda: table(pd.DataFrame(lines)), "source_val")                   # no validation to select by


# ---- tests of significance

def blocks(targets, seeds, labels="xyz", seed=1):
    "Random scores by (target, seed)."
    index = pd.MultiIndex.from_product([[*targets], range(seeds)], names=["column", "seed"])
    return pd.DataFrame(np.random.default_rng(seed).random((len(index), len(labels))), index, [*labels])


def test_on_one_target_the_test_is_the_paired_one():
    wide = blocks("a", 12)
    gain, low, high, p = gain_of(wide, "x", "y")
    paired = stats.ttest_rel(wide.x, wide.y)
    assert (gain, p) == pytest.approx(((wide.x - wide.y).mean(), paired.pvalue), abs=1e-12)
    assert (low, high) == pytest.approx(tuple(paired.confidence_interval()), abs=1e-12)


def test_over_targets_the_degrees_of_freedom_are_satterthwaite_s():
    "Of two targets the test is Welch's, of the differences on one against the negative ones on the other."
    wide = blocks("ab", 5)
    wide.loc["b"] = (wide.loc["b"]*3).to_numpy()                              # another variance
    differences = wide.x - wide.y
    welch = stats.ttest_ind(differences["a"], -differences["b"], equal_var=False)
    interval = welch.confidence_interval()                                    # of twice the mean of both
    assert gain_of(wide, "x", "y")[1:].tolist() == pytest.approx(
        [interval.low/2, interval.high/2, welch.pvalue], abs=1e-12)
    three = blocks("abc", 4)
    errors = np.array([(three.x - three.y)[target].var(ddof=1)/4 for target in "abc"])
    freedom = errors.sum()**2/(errors**2/3).sum()
    gain = (three.x - three.y).mean()
    by_hand = 2*stats.t.sf(abs(gain)/(errors.sum()**.5/3), freedom)
    assert gain_of(three, "x", "y")[[0, 3]].tolist() == pytest.approx([gain, by_hand], abs=1e-12)


def test_seeds_and_labels_that_lack_a_target_do_not_count():
    wide = blocks("ab", 5)
    holes = wide.assign(v=wide.x.where(wide.index.get_level_values(0) == "a"))
    holes.loc[("b", 4), "z"] = np.nan
    whole = wide.drop(index=4, level=1)
    assert gain_of(holes, "z", "y").tolist() == pytest.approx(gain_of(whole, "z", "y").tolist(), abs=1e-12)
    assert np.isnan(gain_of(holes, "v", "y")).all()
    places = np.mean([stats.rankdata(-wide.loc[target, ["x", "y"]].mean()) for target in "ab"], axis=0)
    assert mean_ranks(holes).to_dict() == pytest.approx(dict(zip("xy", places)))       # z and v have no rank
    copied = mean_ranks(holes.assign(w=holes.y))                              # a copy takes no place of its own
    assert copied[["x", "y"]].tolist() == pytest.approx([*places]) and copied["w"] == copied["y"]


def test_verdicts_are_corrected_after_holm():
    """Four rivals on one target: a verdict is what statsmodels' Holm makes of scipy's paired p.

    `near` would be shown if it were tested alone; `copy` is FedAvg in every run, and no test."""
    spread, base = np.array([-1, 0, 1, .5, -.5]), np.array([.5, .52, .48, .51, .53])
    gains = dict(up=.05, down=-.05, near=.011, none=.001)
    scores = {label: base + gain + .01*spread for label, gain in gains.items()} | dict(copy=base)
    p = [stats.ttest_rel(scores[label], base).pvalue for label in gains]
    holm = multipletests(p, method="holm")[1]
    assert p[2] < .05 < holm[2] and max(holm[:2]) < .05 < holm[3]
    t = tabulate(held_out(**{label: dict(a=values) for label, values in (dict(fedavg=base) | scores).items()}))
    assert t.extra.p[[*gains]].tolist() == pytest.approx(p, abs=1e-9)
    assert verdicts(t).splitlines() == [
        "* beats fedavg: up (+5.0)", "* is worse than fedavg: down (-5.0)",
        "* no difference shown: near (+1.1), none (+0.1)", "* the same score as fedavg in every run: copy (+0.0)"]


def test_in_domain_verdicts_say_what_holds_by_seeds_alone():
    "Clients of a seed share its run: with each seed as one number, three uneven ones show nothing."
    def decide(gains):
        lines = [plant("fedavg", None, seed, dict(a=.2, b=.3)) for seed in range(len(gains))]
        lines += [plant("ours", None, seed, dict(a=.2 + a, b=.3 + b)) for seed, (a, b) in enumerate(gains)]
        return verdicts(tabulate(lines)).splitlines()
    sure = decide([(.1, .12), (.12, .1), (.11, .111)])
    unsure = decide([(.02, .02), (.1, .1), (.07, .07)])
    assert sure[0] == "* beats fedavg: ours (+11.0)" and sure[1].endswith("still shown: ours")
    assert unsure[0] == "* beats fedavg: ours (+6.3)" and unsure[1].endswith("still shown: none")
    by_seeds = [stats.ttest_1samp(means, 0).pvalue for means in ([.11, .11, .1105], [.02, .1, .07])]
    assert by_seeds[0] < .05 < by_seeds[1]


def test_without_a_whole_run_of_the_base_there_is_no_verdict():
    assert verdicts(tabulate(held_out(fedavg=dict(a=[None]), ours=dict(a=[.5])))).startswith("No whole run of fedavg")
    assert verdicts(table(pd.DataFrame(held_out(ours=OURS)), "last")).startswith("No row fedavg")


def test_costs_and_a_label_are_in_the_latex_table_and_one_seed_has_no_interval():
    lines = held_out(fedavg=dict(a=[.5]), ours=dict(a=[.6]))
    for line, seconds in zip(lines, (2., 3.)):
        line["record"] |= dict(bytes=dict(down=dict(model=10**6, all=10**6), up=dict(model=5*10**5, all=5*10**5)),
                               steps_round=40, flops_round=1, rounds=3, provenance=dict(
                                   seconds=dict(total=seconds), libraries=dict(torch="2")))
    t = tabulate(lines, costs=True)
    assert t.text("{}").loc["ours", ["MB", "steps", "seconds"]].tolist() == ["1.5", "120", "3"]
    assert t.to_latex("tab:digits").count("\\label{tab:digits}") == 1 and "label" not in tabulate(lines).to_latex()
    assert "interval" not in t.caption and "±" not in t.to_markdown() and "[" not in t.text().loc["ours"].iloc[-4]
