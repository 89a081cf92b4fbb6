"Clients from domains: who gets which samples, and in which part."
import numpy as np
import pytest
import torch
from conftest import says
import fdgnb

USUAL = dict(rounds=1, local_steps=1, batch_size=4, progress=False, workers=1)


def toy(sizes=(70, 84, 56, 98), names=("art", "cartoon", "photo", "sketch"), classes=7):
    "Domains whose samples are numbered through in their first place, so that none is lost or doubled unseen."
    ends = np.cumsum(sizes)
    order = {d: np.arange(end - n, end) for d, n, end in zip(names, sizes, ends)}
    return fdgnb.from_arrays({d: (np.outer(rows, np.ones(3)), rows % classes) for d, rows in order.items()})


def official(n, **lists):
    "A domain of n samples with lists that came with it."
    rows = {part: torch.arange(*ends) for part, ends in lists.items()}
    domain = fdgnb.Domain("b", torch.arange(n).float()[:, None].repeat(1, 3), torch.arange(n) % 2, rows, rows)
    return fdgnb.Dataset("listed", dict(b=domain), ["0", "1"], defaults=dict(backbone="mlp2"))


def run(data, *partition, target=None, **how):
    return fdgnb.fit("fedavg", data, target=target, partition=partition, **USUAL | how)


def numbers(samples): return samples[:, 0].long().tolist()


def parts_of(run):
    "{client: {part: numbers of its samples}}, of those parts that have any."
    clients = {c.id: c.splits for c in run.fed.clients}
    if run.fed.target_client: clients[run.fed.target_client.id] = run.fed.target_client.splits
    return {k: {part: numbers(s.samples()) for part, s in parts.items() if len(s)} for k, parts in clients.items()}


def all_of(parts): return sorted(sum(parts.values(), []))


def sizes_of(run): return {k: {part: n for part, n in parts.items() if n} for k, parts in run.sizes.items()}


@pytest.mark.parametrize("partition", [(), ("halves",), ("split", 3), ("lda", 4, .5), ("pool",),
                                       ("heterogeneous", 3, .2), ("chain", ("lda", 4, .5), ("split", 2))])
@pytest.mark.parametrize("target", [None, "sketch"])
def test_every_sample_is_in_one_part_of_one_client(partition, target):
    "Labels stay with their samples and the target stays whole; lda, whose clients are of one size, leaves a few out."
    found = run(toy(), *partition, target=target)
    parts = parts_of(found)
    whole = parts.pop("sketch")["target"] if target else []
    dealt = sorted(sum(map(all_of, parts.values()), []))
    assert len({*dealt}) == len(dealt) and not {*dealt} & {*whole}
    if target: assert sorted(whole) == list(range(210, 308))
    assert 308 - 4*("lda" in str(partition)) <= len(dealt) + len(whole) <= 308
    for d in found.fed.data.domains.values(): assert d.y.tolist() == [n % 7 for n in numbers(d.x)]


def test_halves_and_split_by_hand():
    eight = run(toy(), "halves").fed.data
    assert eight.names[:2] == ["art 0-3", "art 4-6"] and eight["art 4-6"].y.unique().tolist() == [4, 5, 6]
    many = run(toy(), "split", 3, target="sketch").fed.data
    assert [len(d) for d in many.domains.values()] == [24, 23, 23, 28, 28, 28, 19, 19, 18, 98]
    says(lambda: run(toy(), "split", 60), "60 clients", "56 samples")


def test_lda_deals_skewed_clients_of_one_size():
    "A client has the fewer classes the less alpha, which `hsu` shares between the classes and `ones` gives to each."
    ten, classes = toy((1003,), ("all",), classes=10), []
    for alpha, convention in ((.1, "hsu"), (.1, "ones"), (100., "hsu")):
        dealt, again = (run(ten, name, 10, alpha, convention).fed.data for name in ("lda", "dirichlet"))
        assert {len(d) for d in dealt.domains.values()} == {100} and dealt.names[-1] == "client 9"
        assert all(again[k].x.equal(d.x) for k, d in dealt.domains.items())
        classes.append((dealt.counts().values > 5).sum(1).mean())
    assert classes[0] < classes[1] - 1 < classes[2] - 3


@pytest.mark.parametrize("sizes, lam, counts", [
    ((2048, 2344, 1670), 0., [[2048, 0, 0], [0, 1172, 0], [0, 1172, 0], [0, 0, 1670]]),
    ((2048, 2344, 1670), 0., [[0, 2344, 0], [2048, 0, 1670]]),
    ((2048, 2344, 1670), .1, [[963, 47, 34], [963, 47, 34], [41, 1102, 33], [41, 1102, 33], [40, 46, 1536]]),
    ((2048, 2344, 1670), .25, [[256, 2051, 209], [1792, 293, 1461]]),
    ((70, 84, 56, 98), 1., [[24, 28, 19, 33], [23, 28, 19, 33], [23, 28, 18, 32]])])
def test_heterogeneous_clients_are_those_of_the_released_code(sizes, lam, counts):
    "Samples by client and domain, as NonIIDSplitter of inouye-lab/FedDG_Benchmark at abc37bcd counts them."
    found = run(toy(sizes, "abcd"[:len(sizes)]), "heterogeneous", len(counts), lam)
    ends = [0, *np.cumsum(sizes)]
    assert [np.histogram(all_of(parts), ends)[0].tolist() for parts in parts_of(found).values()] == counts


def test_dirichlet_by_domain_skews_classes_within_a_domain():
    data = toy((100, 400, 203, 305), "abcd")
    found = {alpha: run(data, "dirichlet_by_domain", 20, alpha).fed.data for alpha in (.1, 100.)}
    for name, d in found[.1].domains.items():
        assert set(numbers(d.x)) <= set(numbers(data[name[0]].x)) and 50 <= len(d) <= 51
    assert [sum(k[0] == d for k in found[.1].domains) for d in "abcd"] == [2, 8, 4, 6]
    few, many = ((d.counts().values > 5).sum(1).mean() for d in found.values())
    assert few < many - 2
    says(lambda: run(data, "dirichlet_by_domain", 3, .1), "3 clients of 4 domains")
    says(lambda: run(data, "heterogeneous", 2000, .1), "2000 clients of 1008 samples")


def test_a_split_seed_of_its_own_is_shared_by_runs_of_several_seeds():
    how = dict(limit=50, per_round=.3)
    one, two = (run(toy(), "split", 2, seed=seed, split_seed=7, **how) for seed in (0, 7))
    own = run(toy(), "split", 2, seed=7, **how)
    assert parts_of(one) == parts_of(two) == parts_of(own) and own.fed.digest == two.fed.digest
    assert own.rows == two.rows != one.rows and "split_seed" not in own.fed.args()["settings"]
    assert own.fed.server.settings.per_round == 2 and own.fed.args()["settings"]["per_round"] == .3
    assert own.ledger.query("direction == 'down'").client.nunique() == 2


def test_rotate_and_turn_by_quarters():
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
    square = fdgnb.from_arrays({d: (np.roll(x, i, 0), [0, 1]*6) for i, d in enumerate("abt")})
    quarter = run(square, "rotate", 90, target="t", backbone="small").fed.data
    assert quarter["a"].x.equal(square["a"].x) and quarter["t"].x.equal(square["t"].x)
    assert quarter["b"].x.equal(square["b"].x.rot90(1, (2, 3)))
    turned = run(square, "turn", 90, 4, backbone="small").fed.data["a"].x
    ways = [[k for k in range(4) if a.rot90(k, (1, 2)).equal(b)] for a, b in zip(square["a"].x, turned)]
    assert all(ways) and len({way[0] for way in ways}) > 1


def test_load_takes_the_domains_of_another_data_set():
    ten = fdgnb.from_arrays(dict(a=(np.zeros((20, 3, 28, 28), np.uint8), [*range(10)]*2)))
    found = run(ten, "chain", ("load", "digits"), ("lda", 3, 1.), limit=50, backbone="cnn2")
    assert [len(d) for d in found.fed.data.domains.values()] == [50]*3
    seven = fdgnb.from_arrays(dict(a=(np.zeros((7, 3, 28, 28), np.uint8), range(7))))
    says(lambda: run(seven, "load", "digits"), "other classes")


@pytest.mark.parametrize("partition, part", [
    (("ldaa", 2), "did you mean 'lda'?"), (("halves", 2), "too many"), (("split", 0), "n=0"),
    (("split", 1.5), "valid integer"), (("lda", 2, float("nan")), "alpha=nan"), (("lda", 2, 1., "hus"), "'hsu'"),
    (("rotate", None), "step=None"), (("chain", ("split", 2), 5), "partition=5")])
def test_partitions_that_are_refused_before_anything_is_read(partition, part):
    says(lambda: run("./no such folder", *partition, target=None), part)


def test_a_target_is_a_share_rounded_down_and_domains_may_be_held_out_together():
    for n, share in ((1123, 112), (157, 15), (295, 29)):
        found = run(toy((50, n), "at", 2), target="t", target_fraction=.1)
        assert found.sizes == dict(a=dict(train=40, val=5, test=5), t=dict(target=share))
    both = run(toy((50, 20, 30), "abc", 2), target=["b", "c"])
    assert both.sizes["b+c"] == dict(target=50) and parts_of(both)["b+c"]["target"] == list(range(50, 100))


@pytest.mark.parametrize("how, sizes", [
    ({}, dict(train=13, val=1, test=6)), (dict(fractions=(1., 0., 0.)), dict(train=14, test=6)),
    (dict(official="lists"), dict(train=13, val=1, test=6)), (dict(official="ignore"), dict(train=16, val=2, test=2))])
def test_official_test_samples_stay_unless_told_otherwise(how, sizes):
    data = official(20, train=(14,), test=(14, 20))
    data["b"].split = dict(train=torch.arange(13), val=torch.arange(13, 14), test=torch.arange(14, 20))
    found = run(data, **how)
    assert sizes_of(found) == dict(b=sizes)
    assert (sorted(parts_of(found)["b"]["test"]) == list(range(14, 20))) == (sizes["test"] == 6)
    says(lambda: run(data, fractions=(0., .5, .5)), "nothing to train on")


def test_partitions_train_on_no_official_test_sample():
    found = run(official(120, train=(100,), test=(100, 120)), "lda", 4, 1.)
    for parts in parts_of(found).values(): assert max(parts["train"]) < 100 <= min(parts["test"])


@pytest.mark.parametrize("target", ["photo", "pooled", None])
def test_pool_joins_the_very_samples_of_each_part(target):
    how = dict(fractions=(.6, .2, .2), limit=40, target=target)
    data = toy(names=("art", "cartoon", target or "photo", "sketch"))
    apart, pooled = parts_of(run(data, **how)), parts_of(run(data, "pool", **how))
    for part, own in next(iter(pooled.values())).items():
        assert own == sum((parts.get(part, []) for parts in apart.values()), [])
