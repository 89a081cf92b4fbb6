"Selection rules by hand, tables, metrics against scikit-learn, records and pictures of a run."
import json, re
from types import SimpleNamespace
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
import fdgnb
from conftest import bits, run, says
from fdgnb.runs import plots
from fdgnb.runs.callbacks import Metrics
from fdgnb.__main__ import main
from fdgnb.runs.metrics import METRICS, RULES, rules_table, show

SIZES = dict(a=dict(train=80, val=10, test=10), b=dict(train=240, val=30, test=30), t=dict(target=20))
EVEN = dict(a=dict(val=20, test=10), b=dict(val=20, test=10), t=dict(target=5))
COLUMNS = ["round", "client", "split", "point", "metric", "value"]
PLACES = [("a", "val"), ("b", "val"), ("a", "test"), ("b", "test"), ("t", "target")]


def history(rounds, point="aggregated", metric="accuracy"):
    "A history of values (a val, b val, a test, b test, target), a round each; None leaves a value out."
    rows = [(r, *place, point, metric, v) for r, values in enumerate(rounds, 1) for place, v in zip(PLACES, values)]
    return pd.DataFrame([row for row in rows if row[-1] is not None], columns=COLUMNS)


def table(rounds, sizes=SIZES, **how):
    given = rounds if isinstance(rounds, pd.DataFrame) else history(rounds)
    return rules_table(SimpleNamespace(history=given, sizes=sizes, args=dict(seed=0)), **how)


FOUR = [(.2, .2, .1, .3, .1), (.6, .6, .5, .5, .4), (.6, .6, .5, .7, .4), (.1, .5, .9, .5, .2)]


def test_rules_take_the_earlier_of_equal_rounds():
    t = table(FOUR)
    assert dict(t["rounds"].astype(str)) == dict(last="4", source_val="2", top5="1, 2, 3, 4", target="2")
    assert t["target"].tolist() == [.2, .4, pytest.approx((.1 + .4 + .4 + .2)/4), .4]
    assert t.loc["last", ["a", "b", "AVG", "ALL"]].tolist() == pytest.approx([.9, .5, .7, (.9*10 + .5*30)/40])


def test_validation_is_pooled_by_its_own_sizes():
    "Round 1 has 9 + 12 of 40 right, round 2 5 + 20; of domains of one size the plain mean decides."
    rounds = [(.9, .4, .5, .5, .5), (.5, 2/3, .5, .5, .5)]
    assert [str(table(rounds, sizes).loc["source_val", "rounds"]) for sizes in (SIZES, EVEN)] == ["2", "1"]


def test_few_validation_samples_do_not_choose_alone():
    "Of 20 samples a round that is one sample behind the best is as good: the latest; of 40 it is not."
    rounds = [(.8, .8, 0, 0, 0), (.8, .7, 0, 0, 0), (.7, .7, 0, 0, 0)]
    few, many = ({d: dict(val=n) for d in "ab"} | dict(t=dict(target=5)) for n in (10, 20))
    assert [str(table(rounds, sizes).loc["source_val", "rounds"]) for sizes in (few, many)] == ["2", "1"]


def test_accuracy_selects_whatever_is_shown_and_a_domain_may_be_called_like_a_column():
    losses = history([(0,)*4 + (v,) for v in (3., 2., 1., .5)], metric="loss")
    assert table(pd.concat([history(FOUR), losses]), metric="loss").loc["target", "target"] == 2.
    sizes = dict(target=dict(test=1, val=1), ALL=dict(test=3, val=3), NA=dict(target=2))
    rows = [("target", "test", 1.), ("ALL", "test", 0.), ("NA", "target", .5)]
    odd = pd.DataFrame([(1, d, s, "aggregated", "accuracy", v) for d, s, v in rows], columns=COLUMNS)
    found = table(odd, sizes).loc["last", ["target (domain)", "ALL (domain)", "target", "ALL", "AVG"]]
    assert found.tolist() == [1., 0., .5, .25, .5]


VAL_F1 = """
from fdgnb.runs.metrics import RULES, Rule, best_rounds, values

@RULES.register("val_f1")
class ValidationF1(Rule):
    metric = "macro_f1"
    def select(self, history, sizes):
        return best_rounds(values(history, sizes, split="val", metric="macro_f1")["AVG"])
"""


def test_a_rule_of_ones_own_is_known_everywhere(small, tmp_path, capsys):
    "In a run's table, its weights, records, tables and the command."
    (tmp_path/"val_f1_rule.py").write_text(VAL_F1)
    words = ["compare", "--rule", "val_f1", "--methods", "fedavg", "--target", "inked", "--seeds", 1, "--rounds", 2,
             "--limit", 40, "--scale", "smoke", "--jobs", 1, "--no-pooled", "--store", tmp_path/"s", "--out", tmp_path]
    try:
        assert main([*map(str, words), "--imports", str(tmp_path/"val_f1_rule.py")]) == 0
        assert "rule val_f1" in " ".join(capsys.readouterr().out.split())
        done = run("fedavg", small, rounds=3, eval_every=1, out=tmp_path/"run", callbacks=[Metrics("macro_f1")])
        f1 = done.history.query("split == 'val' and metric == 'macro_f1'").groupby("round")["value"].mean()
        assert done.table()["rounds"]["val_f1"] == str(f1.idxmax()) and f1.is_unique
        logits = done.predict(small["blended"].x, rule="val_f1")
        assert fdgnb.load(tmp_path/"run").predict(small["blended"].x, rule="val_f1").equal(logits)
        right = (logits.argmax(1) == small["blended"].y).float().mean().item()
        assert done.table()["target"]["val_f1"] == pytest.approx(right)
    finally: RULES.pop("val_f1", None)


def test_of_many_clients_a_sample_is_scored_and_all_in_the_last_round(small, tmp_path):
    how = dict(data=small, method="fedavg", per_round=3, eval_every=1, local_steps=1, target=None, rounds=3,
               partition=("split", 12), fractions=(.4, .2, .4))
    with pytest.warns(UserWarning, match="50 of 60 clients"): some = run(**how)
    every = run(**how, eval_clients=60)
    assert bits(some) == bits(every) and "eval_clients" not in some.fed.args()["settings"]
    n = some.history.query("metric == 'accuracy'").groupby(["point", "round"])["client"].nunique()
    assert n["aggregated"].tolist() == [50]*3 and n["everyone"].to_dict() == {3: 60}
    said = some.table()["uses"]
    assert said["source_val"] == "source validation; 50 of 60 clients scored" and said["last"] == "nothing"
    assert some.table().loc["last", "ALL"] == every.table().loc["last", "ALL"]
    with pytest.warns(UserWarning):
        run(**how | dict(rounds=2), out=tmp_path)
        assert run(**how, out=tmp_path).rows == some.rows


# ---- metrics

def guesses(present, n=60, classes=4):
    "(probabilities, labels) of a random classifier."
    draws = np.random.default_rng(3)
    return draws.dirichlet(np.ones(classes), n), draws.choice(present, n)


@pytest.mark.parametrize("present", [[0, 1, 2, 3], [0, 2, 3]])
def test_metrics_are_those_of_scikit_learn(present):
    p, y = guesses(present)
    guess, score = p.argmax(1), lambda name: METRICS.get(name)(p, y)
    assert score("balanced_accuracy") == pytest.approx(np.mean([(guess[y == c] == c).mean() for c in present]))
    assert score("macro_f1") == pytest.approx(sk.f1_score(y, guess, average="macro"))
    aucs = [sk.roc_auc_score(y == c, p[:, c]) for c in present]
    assert np.nanmean(score("auroc")) == pytest.approx(np.mean(aucs))
    recalls = sk.recall_score(y, guess, labels=present, average=None)
    assert np.asarray(score("recall"))[present] == pytest.approx(recalls)
    if len(present) < 4: return
    assert score("auc") == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert np.asarray(score("precision")) == pytest.approx(sk.precision_score(y, guess, average=None))


def test_expected_calibration_error_by_hand():
    "Two bins: 80 % sure and right half of the time, 60 % sure and always right."
    p, y = np.array([[.8, .2]]*4 + [[.4, .6]]*4), np.array([0, 0, 1, 1] + [1]*4)
    assert METRICS.get("ece")(p, y) == pytest.approx((.3 + .4)/2, abs=1e-6)


@pytest.fixture(scope="module")
def done(small):
    return run("fedavg", small, eval_every=1, callbacks=[Metrics("macro_f1", "recall")])


def test_what_a_run_scores_is_what_its_model_predicts(done, small):
    x, y = small["blended"].x, small["blended"].y
    logits, guess = done.predict(x), done.predict(x).argmax(1)
    scored = lambda metric: done.table(metric=metric).loc["last", "target"]
    assert scored("accuracy") == pytest.approx((guess == y).float().mean().item())
    assert scored("loss") == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert scored("macro_f1") == pytest.approx(sk.f1_score(y, guess, average="macro"))
    assert scored("recall[3]") == pytest.approx((guess[y == 3] == 3).float().mean().item())


# ---- records and pictures

def test_a_saved_run_is_read_as_it_was_and_no_torn_file_is(done, tmp_path):
    done.save(tmp_path)
    back = fdgnb.load(tmp_path)
    pd.testing.assert_frame_equal(back.table(point="both"), done.table(point="both"))
    pd.testing.assert_frame_equal(back.history, done.history)
    pd.testing.assert_frame_equal(back.ledger, done.ledger)
    record = tmp_path/"record.json"
    whole = record.read_text()
    altered = json.loads(whole)
    altered["scores"]["aggregated"]["last"]["target"] = .99
    for bad in (whole[:99], "[]", json.dumps(altered)):
        record.write_text(bad)
        says(lambda: fdgnb.load(tmp_path).table(), "torn")
    record.write_text(whole)
    (tmp_path/"history.csv").write_bytes((tmp_path/"history.csv").read_bytes()[:-3])
    says(lambda: fdgnb.load(tmp_path).history, "does not belong to the record")


def test_names_are_words_on_a_page_and_in_pictures():
    "Domains and classes that are markup, mathematics and links."
    odd = ["<img src=x onerror=alert(1)>", r"$\href{javascript:alert(1)}{x}$", "[a](javascript:b) _b_ `c`", r"a$b\frac"]
    x = np.random.default_rng(0).integers(0, 256, (16, 3, 16, 16), dtype=np.uint8)
    data = fdgnb.from_arrays({name: (x, np.arange(16) % 4) for name in odd}, classes=odd)
    one = fdgnb.fit("fedavg", data, odd[0], 1, backbone="cnn2", local_steps=1, progress=False)
    assert not re.search(r"<img|<a |\$\\", show(one.table()).to_html())
    for draw in (plots.overview_plot, plots.confusion, plots.domain_bars): draw(one).draw_without_rendering()


# ---- what a saved run tells afterwards: any metric, the report, the temperature

@pytest.fixture(scope="module")
def kept(small, tmp_path_factory):
    "A run that measured nothing but accuracy and loss, its folder, and the run as it is read back."
    out = tmp_path_factory.mktemp("kept")
    done = run("bnstats", small, eval_every=1, rounds=4, lr=.3, out=out)
    done.save()
    return done, out, fdgnb.load(out)


def test_a_saved_run_has_any_metric_as_if_it_had_been_measured(kept, small):
    done, _, back = kept
    named = run("bnstats", small, eval_every=1, rounds=4, lr=.3, callbacks=[Metrics("macro_f1", "recall")])
    for metric in ("macro_f1", "recall[3]"):
        wanted = named.table(metric=metric).drop("top5")
        for model in (done, back): pd.testing.assert_frame_equal(model.table(metric=metric), wanted)
    says(lambda: back.table(metric="macro_f1", rules="top5"), "mean over several rounds")


def test_the_report_is_one_page_whose_numbers_are_scikit_learns(kept):
    _, out, back = kept
    page = back.report()
    assert page == out/"report.html" and f"temperature {back.temperature():.3f}" in page.read_text()
    scores, errors = (pd.read_csv(out/f"report{name}.csv") for name in ("", "-confusion"))
    logits, y = back.predictions[4, "blended", "target", "adapted"]
    of = scores[(scores.client == "blended") & (scores.point == "adapted")].set_index("metric").value
    assert of["macro_f1"] == pytest.approx(sk.f1_score(y, logits.argmax(1), average="macro"))
    mine = errors[(errors.client == "blended") & (errors.point == "adapted")].set_index(["true", "predicted"]).samples
    assert mine.get((3, 3), 0) == ((logits.argmax(1) == 3) & (y == 3)).sum() and mine.sum() == len(y)


def test_the_temperature_is_the_best_on_source_validation(kept, small):
    done, _, back = kept
    pairs = [pair for (r, _, split, _), pair in back.predictions.items() if (r, split) == (4, "val")]
    z, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*pairs))
    loss = [torch.nn.functional.cross_entropy(z/(back.temperature()*f), y) for f in (1, .98, 1.02)]
    assert loss[0] == min(loss) and done.temperature() == back.temperature()
    x = small["blended"].x
    assert torch.equal(back.predict(x, calibrated=True), back.predict(x)/back.temperature())
    assert back.record["temperatures"]["4"] == back.temperature()
    says(lambda: back.adapt(x).predict(x, calibrated=True), "no temperature")
