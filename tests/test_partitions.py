"Clients from domains: who gets which samples, what is refused, and the cut into parts."
import numpy as np
import pytest
import torch
from scipy import stats

from fdgnb import fit, from_arrays
from fdgnb.core import FdgnbError, generator
from fdgnb.data.domain import Dataset, Domain
from fdgnb.data.partitions import (PARTITIONS, class_counts, client_splits, cut_domain, halves, held_out, lda,
                                   log_dirichlet, partition_domains, rotate, split, steps_of, subsample,
                                   subsample_domains, turn)
from fdgnb.runs.protocols import resolve
from fdgnb.settings import Settings


def toy(sizes=(70, 84, 56, 98), names=("art", "cartoon", "photo", "sketch"), classes=7, side=2):
    "Domains whose images have their own number as pixels, counted through, so that none is lost or doubled unseen."
    out, start = {}, 0
    for name, n in zip(names, sizes):
        i = start + torch.arange(n)
        start += n
        x = torch.stack([i//256, i % 256, 0*i], 1).to(torch.uint8)[:, :, None, None]
        out[name] = Domain(name, x.repeat(1, 1, side, side), torch.arange(n) % classes)
    return Dataset("toy", out, [str(c) for c in range(classes)])


def blank(name, n, **lists):
    return Domain(name, torch.zeros(n, 2), torch.zeros(n, dtype=torch.long), **lists)


def number(d):
    return (d.x[:, 0, 0, 0].long()*256 + d.x[:, 1, 0, 0]).tolist()


def numbers(domains):
    return sum(map(number, domains), [])


def sizes(parts):
    return {part: len(rows) for part, rows in parts.items() if len(rows)}


@pytest.fixture
def g():
    return generator(0, purpose="test")


def test_halves_give_each_sample_to_one_client(g):
    eight = halves(toy(), None, g)
    assert len(eight.domains) == 8 and eight.names[:2] == ["art 0-3", "art 4-6"]
    assert [eight[k].y.unique().tolist() for k in eight.names[:2]] == [[0, 1, 2, 3], [4, 5, 6]]
    assert sorted(numbers(eight.domains.values())) == list(range(308))


def test_split_gives_equal_parts_and_leaves_the_target_whole(g):
    data = toy()
    many = split(data, "sketch", g, 3)
    assert many.names[-1] == "sketch" and len(many.domains) == 10
    assert number(many["sketch"]) == number(data["sketch"])
    assert [len(d) for d in many.domains.values()][:3] == [24, 23, 23]
    assert sorted(numbers(d for k, d in many.domains.items() if k.startswith("art"))) == number(data["art"])
    with pytest.raises(FdgnbError, match="60 clients of domain 'photo', which has 56 samples"): split(data, None, g, 60)


def test_dirichlet_draws_have_a_beta_marginal_and_do_not_underflow():
    rng, a = np.random.default_rng(0), np.array([.3, .01, 0., 2.])
    q = np.exp([log_dirichlet(a, rng) for _ in range(5_000)])
    assert np.allclose(q.sum(1), 1, atol=1e-9)
    assert stats.kstest(q[:, 0], stats.beta(a[0], a.sum() - a[0]).cdf).pvalue > .001
    assert np.isfinite(log_dirichlet(np.full(10, 1e-5), rng)).all()


def test_counts_fill_a_client_and_never_exceed_what_is_left():
    rng, left = np.random.default_rng(0), np.array([7, 4, 9, 5])
    counts = np.array([class_counts(np.log([.6, .25, .1, .05]), left, 15, rng) for _ in range(500)])
    assert (counts.sum(1) == 15).all() and (counts <= left).all()


@pytest.mark.parametrize("convention", ["hsu", "ones"])
def test_lda_deals_equal_clients_without_replacement(convention):
    ten = toy((5003,), ("all",), classes=10)
    parts, again = (lda(ten, None, generator(1), 10, .1, convention) for _ in range(2))
    assert {len(d) for d in parts.domains.values()} == {500} and parts.names[-1] == "client 9"
    assert len(set(numbers(parts.domains.values()))) == 5000
    assert all((d.y == torch.tensor(number(d)) % 10).all() for d in parts.domains.values())
    assert all(torch.equal(d.x, again[k].x) for k, d in parts.domains.items())


def test_lda_leaves_the_target_whole_and_names_its_conventions(g):
    data = toy()
    left_out = lda(data, "sketch", generator(0), 5, .5)
    assert len(left_out.domains) == 6 and number(left_out["sketch"]) == number(data["sketch"])
    assert PARTITIONS.get("dirichlet") is lda
    with pytest.raises(FdgnbError, match="unknown convention 'hus' of partition 'lda'; did you mean 'hsu'?"):
        lda(data, None, g, 5, .1, "hus")
    with pytest.raises(FdgnbError, match="unknown partition 'ldaa'; did you mean 'lda'?"): PARTITIONS.get("ldaa")


def test_rotate_turns_sources_by_steps_and_not_the_target(g):
    square = toy(side=8)
    quarter = rotate(square, "sketch", g, 90)
    assert quarter["art"].x.equal(square["art"].x) and quarter["sketch"].x.equal(square["sketch"].x)
    assert quarter["cartoon"].x.equal(square["cartoon"].x.rot90(1, (2, 3)))


def test_turn_gives_each_image_one_of_the_angles():
    x = torch.randint(0, 256, (200, 1, 9, 9), dtype=torch.uint8, generator=generator(0))
    one = Dataset("one", dict(a=Domain("a", x, torch.arange(200) % 2)), ["0", "1"])
    out = turn(one, None, generator(0), 90, angles=4, alpha=10.)["a"].x
    assert all(any(torch.equal(a.rot90(k, (1, 2)), b) for k in range(4)) for a, b in zip(x, out))


def test_fedbrs_chain_trains_on_no_official_test_image():
    official = toy((1200,), ("all",), classes=10, side=8)
    official["all"].split = dict(train=torch.arange(1000), test=torch.arange(1000, 1200))
    name, first, *steps = resolve("fedbr", "paper", "rotated_mnist")["partition"]
    assert first == ("load", "mnist")
    fed = PARTITIONS.get(name)(official, None, generator(0), *steps)
    assert [sizes(d.split) for d in fed.domains.values()] == [dict(train=80, val=20, test=20)]*10
    first = fed["client 0"]
    numbered = {part: [number(first)[i] for i in rows] for part, rows in first.split.items()}
    assert max(numbered["train"]) < 1000 <= min(numbered["test"])


def test_load_takes_the_domains_of_another_data_set(g):
    x = torch.zeros(2, 3, 28, 28, dtype=torch.uint8)
    upright = Dataset("other", dict(a=Domain("a", x, torch.arange(2))), list("0123456789"))
    loaded = PARTITIONS.get("load")(upright, None, g, "digits")
    assert loaded.name == "other" and loaded.names == ["optical", "blended", "inked", "rendered", "cluttered"]
    with pytest.raises(FdgnbError, match="'digits' has other classes"):
        PARTITIONS.get("load")(toy(side=28), None, g, "digits")
    by_settings = Settings(partition=("chain", ("load", "digits"), ("lda", 3, 1.)), limit=50)
    clients, _, after, read = client_splits(upright, by_settings)
    assert [d.name for d in read] == ["other", "digits"] and list(clients) == ["client 0", "client 1", "client 2"]
    assert [len(d) for d in after.domains.values()] == [50]*3


CHAIN = Settings(partition=("chain", ("lda", 4, .5), ("split", 2)))


def test_a_chain_of_the_settings_is_its_steps_one_by_one():
    data, rng = toy(), generator(3, purpose="partition")
    by_settings = partition_domains(data, "sketch", CHAIN, 3)
    by_hand = split(lda(data, "sketch", rng, 4, .5), "sketch", rng, 2)
    assert [number(d) for d in by_settings.domains.values()] == [number(d) for d in by_hand.domains.values()]
    assert partition_domains(data, "sketch", Settings(), 3).names == data.names
    with pytest.raises(FdgnbError, match="'halves' takes no arguments"):
        partition_domains(data, None, Settings(partition=("halves", 2)), 0)
    assert steps_of(("chain", ("chain", ("split", 2.), ("rotate", 15)), ("halves",))) == [
        ("split", 2), ("rotate", 15.), ("halves",)]


@pytest.mark.parametrize("bad, says", [
    ("halves", "partition='halves': wanted a name and its arguments"),
    ((["split"], 2), "unknown partition"),
    (("split", 0), "partition 'split': n=0 is out of range: 1 to 1e+06 (clients)"),
    (("split", 1.5), "n=1.5: expected a whole number"), (("split",), "partition 'split' takes n"),
    (("lda", 2, "x"), "alpha='x': expected a number"),
    (("lda", 2, float("nan")), "alpha=nan is out of range"),
    (("lda", 2, 1., "hus"), "convention='hus' is not allowed; did you mean 'hsu'?"),
    (("lda", 2, 1., "hsu", 2), "holdout=2 is out of range: 0 to 1"),
    (("turn", 15, 10**9), "angles=1000000000 is out of range"),
    (("rotate", None), "step=None: expected a number"),
    (("chain", ("split", 2), 5), "partition=5: wanted a name")])
def test_arguments_are_checked_before_anything_is_read(bad, says):
    with pytest.raises(FdgnbError) as error: steps_of(bad)
    assert says in str(error.value)


def test_a_target_is_whole_or_a_share_rounded_down():
    def tenth(n): return len(cut_domain(blank("t", n), Settings(target_fraction=.1), True, generator(0))["target"])
    assert [tenth(n) for n in (1123, 958, 157, 295)] == [112, 95, 15, 29]
    cut = cut_domain(blank("a", 50), Settings(), False, generator(0))
    assert sizes(cut) == dict(train=40, val=5, test=5)


def test_official_test_images_stay_unless_told_otherwise():
    lists = dict(train=torch.arange(14), test=torch.arange(14, 20))
    own = dict(train=torch.arange(13), val=torch.arange(13, 14), test=torch.arange(14, 20))
    b = blank("b", 20, split=own, official=lists)
    def cut(**kw): return cut_domain(b, Settings(**kw), False, generator(0))
    assert sizes(cut()) == dict(train=13, val=1, test=6) and cut()["test"].tolist() == list(range(14, 20))
    assert sizes(cut(fractions=(1., 0., 0.))) == dict(train=14, test=6)
    assert sizes(cut(official="lists")) == dict(train=13, val=1, test=6)
    assert sizes(cut(official="ignore")) == dict(train=16, val=2, test=2)
    with pytest.raises(FdgnbError, match="nothing to train on"): cut(fractions=(0., .5, .5))


def test_a_limit_keeps_the_lists_of_the_samples_that_remain():
    a = blank("a", 50, split=dict(train=torch.arange(10), test=torch.arange(40, 50)))
    less = subsample_domains(Dataset("two", dict(a=a, b=blank("b", 20)), ["0"]), 25, 0)
    assert [len(d) for d in less.domains.values()] == [25, 20]
    kept = subsample(torch.arange(50), 25, generator(0, client="a", purpose="limit"))
    assert kept[less["a"].split["train"]].tolist() == [i for i in kept.tolist() if i < 10]


def test_client_splits_share_the_images_and_cover_every_sample():
    pair = Dataset("pair", dict(a=blank("a", 50), b=blank("b", 20)), ["0"])
    clients, target, after, read = client_splits(pair, Settings(target_fraction=.5), "b")
    assert {k: sizes(c) for k, c in clients.items()} == dict(a=dict(train=40, val=5, test=5))
    assert sizes(target) == dict(target=10) and after.names == ["a", "b"] and read == [pair]
    assert clients["a"]["train"]._x is pair["a"].x
    clients, nobody, after, _ = client_splits(toy(), CHAIN)
    assert list(clients) == after.names and nobody is None
    for name, parts in clients.items():
        rows = torch.cat([part.index for part in parts.values()])
        assert sorted(rows.tolist()) == list(range(len(after[name])))


def test_domains_held_out_together_are_one():
    three = Dataset("three", {k: blank(k, n) for k, n in zip("abc", (50, 20, 30))}, ["0"])
    both, name = held_out(three, ["b", "c"])
    assert name == "b+c" and both.names == ["a", "b+c"] and len(both[name]) == 50
    assert held_out(three, ["b"]) == (three, "b")
    with pytest.raises(FdgnbError, match="unknown domain 'd' of three"): held_out(three, ["b", "d"])


@pytest.mark.parametrize("target", ["photo", None])
def test_pool_joins_the_very_samples_of_each_part(target):
    data, kept = toy(), dict(fractions=(.6, .2, .2), limit=40)
    apart, _, *_ = client_splits(data, Settings(**kept), target)
    pooled, unseen, joined, _ = client_splits(data, Settings(partition=("pool",), **kept), target)
    assert list(pooled) == ["pooled"] and (unseen is None) == (target is None)
    for part, own in pooled["pooled"].items():
        assert torch.equal(own.x, torch.cat([c[part].x for c in apart.values()]))
    assert joined.names == ["pooled", *[target]*bool(target)]


def test_a_run_trains_the_clients_of_its_partition():
    rng = np.random.default_rng(0)
    data = from_arrays({k: (rng.random((200, 4)), np.arange(200) % 2) for k in "abc"})
    few = dict(batch_size=8, lr=.01, progress=False)
    run = fit("fedavg", data, target="c", rounds=1, partition=("split", 2), **few)
    assert set(run.history.client) >= {"a 0", "a 1", "b 0", "b 1", "c"}
