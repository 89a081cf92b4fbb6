"""GA on top of other methods: composition, resume, workers, absent clients, bad gaps, scores handed over."""
import math, re
from pathlib import Path
import pytest
import torch
from conftest import bits, broken_off, run as short_run
from fdgnb.core import FdgnbError
from fdgnb.federation import node
from fdgnb.federation.loop import Method, Server
from fdgnb.federation.compose import METHODS, hooks_of, hyper_of, method_class
from fdgnb.settings import Settings
from fdgnb.methods.ga import DIFFERENCES, adjust_reporting, adjust_weights, initial_weights, step_size, trace


ROOT = Path(__file__).resolve().parent.parent
RELEASED = dict(center=False, absolute=True, capped=True)


def run(name, data, **kw): return short_run(name, data, **dict(rounds=3) | kw)


@pytest.fixture(scope="module")
def adjusted(tiny): return run("ga", tiny)


def test_names(tiny, adjusted):
    "ga, fedavg+ga and ga on the uniform average are one method; ga takes the place of any weights beneath."
    for name in ("fedavg+ga", "ga+fedavg", "uniform+ga"): assert bits(run(name, tiny)) == bits(adjusted)
    adjusted_model = bits(adjusted, "model")
    for name in ("fedavg", "uniform"): assert bits(run(name, tiny), "model") != adjusted_model


def test_on_fedsb(tiny):
    both, parts = run("fedsb+ga", tiny, S=32), run("ga+labelsmoothing+budget+uniform", tiny, S=32)
    assert bits(both) == bits(parts) and bits(both, "model") != bits(run("fedsb", tiny, S=32), "model")
    assert bits(run("fedsb+ga", tiny, S=32, d=0.), "model") == bits(run("fedsb", tiny, S=32), "model")
    released = hyper_of(method_class("fedsb+ga")(variant="released"))
    want = dict(variant="released", S=512, d=.2, order="first", gap="accuracy")
    assert {k: released[k] for k in want} == want


def test_inherits_the_weights_beneath(tiny):
    r = run("fedavg+ga", tiny, d=0., initial="inherit")
    n = torch.tensor([c.n() for c in r.fed.clients], dtype=torch.float64)
    assert torch.allclose(r.fed.server.state["ga.a"], n/n.sum())
    a = run("fedsb+ga", tiny, d=0., S=32, initial="inherit").fed.server.state["ga.a"]
    assert torch.allclose(a, torch.full((3,), 1/3, dtype=torch.float64))


@pytest.mark.parametrize("h", [dict(), dict(variant="released"), dict(initial="inherit"),
                               dict(drops=((2, "inked"),))])
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run("ga", tiny, workers=1, **h), run("ga", tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows


def test_resume_keeps_the_weights(tiny, tmp_path, monkeypatch):
    "Broken off after two of four rounds, the run goes on with the same weights, gaps and models."
    whole = run("ga", tiny, rounds=4)
    broken_off(monkeypatch, 2, lambda: run("ga", tiny, rounds=4, out=tmp_path))
    again = run("ga", tiny, rounds=4, out=tmp_path)
    assert bits(again) == bits(whole) and again.book.rows == whole.book.rows
    assert trace(again).equals(trace(whole))
    assert trace(whole).gap.notna().sum() == 3*3


def test_clients_that_stay_away(tiny):
    "A client missing in round 2 has no gap in rounds 2 and 3: its own model is too old; its weight stays."
    t = trace(run("ga", tiny, rounds=5, drops=((2, "inked"),))).set_index(["round", "client"])
    assert t.gap.isna()[[(1, k) for k in ("optical", "inked", "rendered")]].all()
    assert math.isnan(t.gap[2, "inked"]) and math.isnan(t.gap[3, "inked"])
    assert t.gap[[(2, "optical"), (3, "optical"), (4, "inked")]].notna().all()
    assert t.weight[2, "inked"] == pytest.approx(1/3) and t.weight[3, "inked"] == pytest.approx(1/3)
    assert t.groupby("round").weight.sum().tolist() == pytest.approx([1]*5)


@pytest.mark.parametrize("initial", ["uniform", "inherit"])
def test_clients_drawn_at_random(tiny, initial):
    r = run("ga", tiny, rounds=6, per_round=2, initial=initial)
    t = trace(r)
    known = t.groupby("round").weight.sum()
    assert known.tolist() == pytest.approx([1]*6) and (t.weight.dropna() >= 0).all()
    assert all(torch.isfinite(v).all() for v in r.fed.server.model.values())


def test_all_who_answer_have_weight_zero(tiny):
    "They count alike in that round; nothing divides by zero, and what was learned stays."
    cls = method_class("ga")
    m, r = cls(d=0.), run("uniform", tiny, rounds=1)
    server = r.fed.server
    m.setup(server)
    server.state["ga.a"] = torch.tensor([0., 0., 1.], dtype=torch.float64)
    up = {f"model.{k}": v for k, v in server.model.items()} | {"scalars.n": torch.tensor(5.)}
    assert m.decide(server, [(k, up) for k in server.clients[:2]]) == dict.fromkeys(server.clients[:2], 1.)
    assert server.state["ga.a"].tolist() == [0., 0., 1.]


def test_sends_one_number_more(tiny, adjusted):
    scalars = lambda r: r.ledger.query("direction == 'up' and kind == 'scalars'").groupby("round").bytes.sum()
    assert (scalars(adjusted) - scalars(run("uniform", tiny))).tolist() == [0, 24, 24]
    down = lambda r: [row for row in r.book.rows if row[2] == "down"]
    assert down(adjusted) == down(run("uniform", tiny))


def test_no_samples_to_measure_on(tiny):
    with pytest.raises(FdgnbError, match="ga: client 'optical' has no val samples"):
        run("ga", tiny, variant="released", fractions=(.9, 0., .1))


@pytest.mark.parametrize("h, split", [(dict(), "train"), (dict(variant="released"), "val")], ids=str)
def test_no_split_is_scored_twice(tiny, h, split, monkeypatch):
    "The history is that of an engine that scores all itself, with an evaluation per client and round less."
    calls, real, alone = [], node.evaluate, node.assess
    def counting(model, client, of, predict=None): calls.append(of); return real(model, client, of, predict)
    monkeypatch.setattr(node, "evaluate", counting)
    usual = dict(rounds=2, eval_every=1, eval_local=1, eval_train=1, workers=1, **h)
    a, with_known = run("ga", tiny, **usual).rows, calls.count(split)
    calls.clear()
    monkeypatch.setattr(node, "assess", lambda *args, known={}, **kw: alone(*args, **kw))
    b, without = run("ga", tiny, **usual).rows, calls.count(split)
    assert a == b and without - with_known == 2*3


@pytest.mark.parametrize("K", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("how, step", [({}, ()), (RELEASED, (3., True))], ids=["paper", "released"])
def test_weights_stay_weights(K, how, step):
    g = torch.Generator().manual_seed(K)
    a = torch.full((K,), 1/K, dtype=torch.float64)
    for r in range(40):
        gaps = torch.randn(K, generator=g, dtype=torch.float64)
        a = adjust_weights(a, gaps, step_size(r, 40, .9, *step), **how)
        assert a.min() >= 0 and abs(float(a.sum()) - 1) < 1e-9
    assert torch.equal(adjust_weights(a, torch.zeros(K), .2, **how), a)


def test_everybody_gains_from_the_average():
    "Released, every weight falls; where all would be clipped away, they stay."
    a = torch.full((20,), .05, dtype=torch.float64)
    assert torch.equal(adjust_weights(a, -torch.ones(20), .2, **RELEASED), a)


def test_adjusting_and_joining_keep_the_total():
    nan = math.nan
    a = torch.tensor([.1, .2, .3, .4], dtype=torch.float64)
    b = adjust_reporting(a, torch.tensor([1., nan, 5., 2.], dtype=torch.float64), .3)
    assert b[1] == a[1] and abs(float(b.sum()) - 1) < 1e-12 and b.min() >= 0
    old, new = torch.tensor([.5, .5, nan, nan]), torch.tensor([nan, 1., 3., 1.])
    late = initial_weights(old.double(), new.double())
    assert late.tolist() == pytest.approx([.25, .25, .375, .125])


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n != "ga"])
def test_sits_on_every_registered_method(name):
    "Whatever hooks a method claims, GA builds on them; the written order does not matter."
    a, b = method_class(f"{name}+ga"), method_class(f"ga+{name}")
    assert a.parts == b.parts and a.decide is not Method.decide
    above = list(a.parts)[list(a.parts).index("ga") + 1:]
    for k in above:                                                # what lies above GA hands on to it
        assert not {hook for hook in ("weight", "decide", "aggregate") if hooks_of(a.parts[k]).get(hook)}
    a()


def test_the_list_of_differences_starts_as_printed_and_changes_one_thing_at_a_time():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("ga", {})) and "as released" in DIFFERENCES
    for name, h in DIFFERENCES.values():
        assert len(h) <= 1
        method_class(name)(**h)


def test_a_gap_goes_with_the_step_of_the_round_it_is_sent_in():
    "Algorithm 1: a^r = GA(a^{r-1}, G(theta^r), d^r), R = 5; the release goes by d (1 - (r - 2)/R)/3."
    up = lambda k, gap: (k, {"model.w": torch.ones(1), "scalars.n": torch.tensor(1.),
                             "scalars.ga.gap": torch.tensor(gap, dtype=torch.float64)})
    for given, step in ((dict(), .2*(1 - 1/5)), (dict(variant="released", center=True), .2*(1 + 1/5)/3)):
        method, server = method_class("ga")(**given), Server(dict(w=torch.ones(1)), "abc", rounds=5)
        method.setup(server)
        server.round = 1
        method.decide(server, [up("a", .3), up("b", .2), up("c", .1)])
        assert server.state["ga.a"].tolist() == pytest.approx([1/3 + step, 1/3, 1/3 - step], abs=1e-12)


def test_every_sum_the_pages_name_is_registered():
    for page in (ROOT/"nbs"/"methods").glob("*.ipynb"):
        for name in re.findall(r"`[^\w`]*((?:\w+\+)+ga)[^\w`]*`", page.read_text()):
            method_class(name)


@pytest.mark.parametrize("R, apart", [(40, []), (10, []), (5, []), (6, [25])])
def test_where_lr_drops_is_the_releases_steplr(R, apart, E=5):
    "torch's StepLR, set as the release sets it, counts local epochs; `lr_drops` acts at whole rounds."
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.)
    scheduler, there = torch.optim.lr_scheduler.StepLR(opt, int(R*E*.8), .1), []
    for _ in range(R*E):
        there.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    here = [Settings(lr=1., lr_drops=(.8,)).lr_at(r, R) for r in range(R) for _ in range(E)]
    assert [e for e, (a, b) in enumerate(zip(there, here), 1) if abs(a - b) > 1e-9] == apart
