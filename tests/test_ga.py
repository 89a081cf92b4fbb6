"""GA on top of other methods: composition, resume, workers, clients that stay away, bad gaps."""
import dataclasses, math
import pytest
import torch
import fdgnb
from fdgnb.core import FdgnbError
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.vectors import digest
from fdgnb.methods.ga import DIFFERENCES, adjust_weights, initial_weights, step_size, trace, adjust_reporting


def run(name, data, **kw):
    return fdgnb.fit(name, data, **dict(target="blended", rounds=3, lr=.05, batch_size=16, eval_every=0, progress=False) | kw)


def bits(r, only=""):
    states = {"server": r.fed.server.state} | {c.id: c.state for c in r.fed.clients}
    return digest({f"{o}.{k}": v for o, s in states.items() for k, v in s.items() if torch.is_tensor(v) and k.startswith(only)})


@pytest.fixture(scope="module")
def tiny(small):
    sizes = dict(optical=60, inked=30, rendered=45, blended=40)
    return dataclasses.replace(small, domains={k: type(small[k])(k, small[k].x[:n], small[k].y[:n]) for k, n in sizes.items()})


@pytest.fixture(scope="module")
def adjusted(tiny): return run("ga", tiny)


def test_names(tiny, adjusted):
    "ga, fedavg+ga and ga on the uniform average are one method; ga takes the place of any weights beneath."
    for name in ("fedavg+ga", "ga+fedavg", "uniform+ga"): assert bits(run(name, tiny)) == bits(adjusted)
    assert bits(run("fedavg", tiny), "model") != bits(adjusted, "model") != bits(run("uniform", tiny), "model")


def test_on_fedsb(tiny):
    both, parts = run("fedsb+ga", tiny, S=32), run("ga+labelsmoothing+budget+uniform", tiny, S=32)
    assert bits(both) == bits(parts) and bits(both, "model") != bits(run("fedsb", tiny, S=32), "model")
    assert bits(run("fedsb+ga", tiny, S=32, d=0.), "model") == bits(run("fedsb", tiny, S=32), "model")
    released = method_class("fedsb+ga")(variant="released").h
    assert (released.variant, released.S, released.d) == ("released", 512, .2)


def test_inherits_the_weights_beneath(tiny):
    r = run("fedavg+ga", tiny, d=0., initial="inherit")
    n = torch.tensor([c.n() for c in r.fed.clients], dtype=torch.float64)
    assert torch.allclose(r.fed.server.state["ga.a"], n/n.sum())
    a = run("fedsb+ga", tiny, d=0., S=32, initial="inherit").fed.server.state["ga.a"]
    assert torch.allclose(a, torch.full((3,), 1/3, dtype=torch.float64))


@pytest.mark.parametrize("h", [dict(), dict(variant="released"), dict(initial="inherit"), dict(drops=((2, "inked"),))])
def test_same_bits_on_any_number_of_workers(tiny, h):
    one, two = run("ga", tiny, workers=1, **h), run("ga", tiny, workers=2, **h)
    assert bits(one) == bits(two) and one.book.rows == two.book.rows


def test_resume_keeps_the_weights(tiny, tmp_path):
    "Broken off after two of four rounds, the run goes on with the same weights, gaps and models."
    whole, cls = run("ga", tiny, rounds=4), METHODS.get("ga")
    class Breaks(cls):
        def finish(self, server):
            super().finish(server)
            if server.round == 2: raise KeyboardInterrupt
    METHODS["ga"] = Breaks
    try:
        with pytest.raises(KeyboardInterrupt): run("ga", tiny, rounds=4, out=tmp_path)
    finally: METHODS["ga"] = cls
    again = run("ga", tiny, rounds=4, out=tmp_path)
    assert bits(again) == bits(whole) and trace(again).equals(trace(whole)) and again.book.rows == whole.book.rows
    assert trace(whole).gap.notna().sum() == 3*3


def test_clients_that_stay_away(tiny):
    "A client missing in round 2 has no gap in rounds 2 and 3 (its own model is too old), and its weight stays meanwhile."
    t = trace(run("ga", tiny, rounds=5, drops=((2, "inked"),))).set_index(["round", "client"])
    assert t.gap.isna()[[(1, k) for k in ("optical", "inked", "rendered")]].all()
    assert math.isnan(t.gap[2, "inked"]) and math.isnan(t.gap[3, "inked"]) and t.gap[[(2, "optical"), (3, "optical"), (4, "inked")]].notna().all()
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
    "They count alike; nothing divides by zero."
    cls = method_class("ga")
    m, r = cls(d=0.), run("uniform", tiny, rounds=1)
    server = r.fed.server
    m.setup(server)
    server.state["ga.a"] = torch.tensor([0., 0., 1.], dtype=torch.float64)
    up = {f"model.{k}": v for k, v in server.model.items()} | {"scalars.n": torch.tensor(5.)}
    m.aggregate(server, iter([(k, up) for k in server.clients[:2]]))
    assert server.state["ga.a"][0] == server.state["ga.a"][1] > 0


def test_sends_one_number_more(tiny, adjusted):
    plain, extra = (r.ledger.query("direction == 'up' and kind == 'scalars'").groupby("round").bytes.sum() for r in (run("uniform", tiny), adjusted))
    assert (extra - plain).tolist() == [0, 24, 24]
    down = lambda r: [row for row in r.book.rows if row[2] == "down"]
    assert down(adjusted) == down(run("uniform", tiny))


def test_no_samples_to_measure_on(tiny):
    with pytest.raises(FdgnbError, match="ga: client 'optical' has no val samples"): run("ga", tiny, variant="released", fractions=(.9, 0., .1))


@pytest.mark.parametrize("K", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_weights_stay_weights(K, variant):
    g = torch.Generator().manual_seed(K)
    a = torch.full((K,), 1/K, dtype=torch.float64)
    for r in range(40):
        a = adjust_weights(a, torch.randn(K, generator=g, dtype=torch.float64), step_size(r, 40, .9, variant), variant)
        assert a.min() >= 0 and abs(float(a.sum()) - 1) < 1e-9
    assert torch.equal(adjust_weights(a, torch.zeros(K), .2, variant), a)


def test_everybody_gains_from_the_average():
    "Released, every weight falls; where all would be clipped away, they stay."
    a = torch.full((20,), .05, dtype=torch.float64)
    assert torch.equal(adjust_weights(a, -torch.ones(20), .2, "released"), a)


def test_trading_and_seating_keep_the_total():
    nan = math.nan
    a = torch.tensor([.1, .2, .3, .4], dtype=torch.float64)
    b = adjust_reporting(a, torch.tensor([1., nan, 5., 2.], dtype=torch.float64), .3)
    assert b[1] == a[1] and abs(float(b.sum()) - 1) < 1e-12 and b.min() >= 0
    late = initial_weights(torch.tensor([.5, .5, nan, nan], dtype=torch.float64), torch.tensor([nan, 1., 3., 1.], dtype=torch.float64))
    assert late.tolist() == pytest.approx([.25, .25, .375, .125])


@pytest.mark.parametrize("name", [n for n in METHODS.names() if n != "ga"])
def test_sits_on_every_registered_method(name):
    "Whatever hooks a method claims, GA builds on them; only a hyper-parameter of the same name and another meaning stands in the way."
    try: a, b = method_class(f"{name}+ga"), method_class(f"ga+{name}")
    except FdgnbError as e:
        if "hyper-parameter" not in str(e): raise
        pytest.xfail(str(e))
    assert a.__mro__[1:] == b.__mro__[1:]
    above = a.__mro__[:a.__mro__.index(METHODS["ga"])]
    for hook in ("weight", "aggregate"):                            # what lies above GA hands on to it
        assert all("__class__" in vars(c)[hook].__code__.co_freevars for c in above if hook in vars(c))
    if "weights" in a.Hyper.__dataclass_fields__ and hasattr(a, "chosen"): assert a().chosen("weights") == "samples"
    a()


def test_the_list_of_differences_starts_as_printed_and_changes_one_thing_at_a_time():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("ga", {})) and "as released" in DIFFERENCES
    for name, h in DIFFERENCES.values():
        assert len(h) <= 1
        method_class(name)(**h)
