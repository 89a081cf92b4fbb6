"""FedSB and its parts: the sum is the whole, soft labels pass through, odd sizes and both variants hold."""
import pytest
import torch
import torch.nn.functional as F
from conftest import bits, one_line, run as short_run, sized
from fdgnb.core import FdgnbError, generator
from fdgnb.federation.compose import hyper_of, method_class
from fdgnb.federation.loop import Client
from fdgnb.methods.fedsb import DIFFERENCES, Budget, FedSB, LabelSmoothing
from fdgnb.methods.fedsb import budget_indices, smooth_labels, smoothed_cross_entropy
from fdgnb.settings import Settings


def run(name, data, **kw): return short_run(name, data, **dict(lr=.02) | kw)


@pytest.fixture(scope="module")
def even(small): return sized(small, optical=60, inked=60, blended=60)


@pytest.fixture(scope="module")
def uneven(small): return sized(small, optical=60, inked=30, blended=60)


@pytest.fixture(scope="module")
def whole(even): return run("fedsb", even, S=32)


@pytest.mark.parametrize("parts", ["labelsmoothing+budget+uniform", "uniform+budget+labelsmoothing",
                                   "budget+uniform+labelsmoothing"])
def test_the_parts_are_the_whole(even, whole, parts):
    assert bits(run(parts, even, S=32)) == bits(whole)
    assert hyper_of(method_class(parts)()) == hyper_of(FedSB())


@pytest.mark.parametrize("part", ["labelsmoothing", "budget", "uniform", "labelsmoothing+budget",
                                  "budget+uniform"])
def test_each_part_matters(uneven, part):
    h = {"S": 32} if "budget" in part else {}
    assert bits(run(part, uneven, **h)) != bits(run("fedsb", uneven, S=32))


@pytest.mark.parametrize("h", [dict(), dict(redraw="once"), dict(variant="released"), dict(local_epochs=2)])
def test_same_bits_on_any_number_of_workers(even, h):
    assert bits(run("fedsb", even, S=40, workers=1, **h)) == bits(run("fedsb", even, S=40, workers=2, **h))


def test_uniform_is_fedavg_for_equal_sizes_only(even, uneven):
    assert bits(run("uniform", even)) == bits(run("fedavg", even))
    assert bits(run("uniform", uneven)) != bits(run("fedavg", uneven))


def test_weights_of_the_ledger_are_fedavgs(even, whole):
    "FedSB sends what FedAvg sends, to the byte."
    assert whole.book.rows == run("fedavg", even).book.rows


@pytest.mark.parametrize("eps", [0., .05, 1.])
def test_smoothing_on_a_soft_batch_is_smoothing_of_the_labels(eps):
    g = generator(3)
    logits = torch.randn(8, 6, generator=g, dtype=torch.float64)
    soft = torch.rand(8, 6, generator=g, dtype=torch.float64).softmax(1)
    want = F.cross_entropy(logits, smooth_labels(soft, 6, eps))
    assert torch.allclose(LabelSmoothing(epsilon=eps).criterion(logits, soft, None), want)
    assert torch.allclose(smoothed_cross_entropy(logits, soft, eps), want)


@pytest.mark.parametrize("n", [1, 2, 5, 17, 64])
@pytest.mark.parametrize("S", [1, 2, 16, 17, 63, 200])
def test_budget_is_even(n, S):
    counts = torch.bincount(budget_indices(n, S, generator(n, S)), minlength=n)
    assert counts.sum() == S and counts.max() - counts.min() <= 1


def client_of(n, **settings):
    "A client of n samples, in batches of 8."
    data = dict(train=(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)))
    return Client("a", data, Settings(batch_size=8, **settings))


def batches(client, **h): return list(Budget(**h).sample(client, client.rng("sample")))


@pytest.mark.parametrize("h", [dict(), dict(redraw="once"), dict(order="first"), dict(variant="released")])
def test_everybody_takes_the_same_steps(h):
    counts = set()
    for n in (3, 16, 40, 200):
        taken = batches(client_of(n), S=48, **h)
        counts.add(len(taken))
        assert all(0 <= int(b.min()) and int(b.max()) < n for b in taken)
        if not {"order", "variant"} & h.keys(): assert sum(map(len, taken)) == 48
    assert counts == {6}


def test_released_counts_the_total_whatever_the_epochs():
    steps = lambda **h: len(batches(client_of(50, local_epochs=3), S=24, **h))
    assert (steps(), steps(variant="released"), steps(variant="released", order="random")) == (9, 3, 9)


def test_the_released_order_turned_back_is_drawn_once():
    back, once = dict(variant="released", order="random"), dict(redraw="once")
    two = [batches(client_of(50), S=24, **h) for h in (back, once)]
    assert [torch.equal(a, b) for a, b in zip(*two)] == [True]*3


@pytest.mark.parametrize("bad", [dict(epsilon=1.2), dict(S=0), dict(S=1.5), dict(redraw="never"),
                                 dict(order="last"), dict(variant="printed")])
def test_bad_values_are_refused_in_one_line(bad):
    with pytest.raises(FdgnbError) as e: method_class("fedsb")(**bad)
    assert one_line(e) and next(iter(bad)) in str(e.value)


def test_the_list_of_differences_starts_as_printed_and_leaves_the_budget_to_the_caller():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("fedsb", {})) and "as released" in DIFFERENCES
    for name, h in DIFFERENCES.values():
        assert "S" not in h
        method_class(name)(**h, S=48)


@pytest.mark.parametrize("drop_last, want", [(False, [8, 8, 8, 1]), (True, [8, 8, 8, 8])])
def test_released_keeps_a_last_batch_of_one(drop_last, want):
    "As the release's loader; drawn at random, a sample left over joins the batch before it."
    taken = batches(client_of(25, drop_last=drop_last), S=32, variant="released")
    assert [len(b) for b in taken] == want and taken[0].tolist() == [*range(8)]
    assert [len(b) for b in batches(client_of(60), S=25)] == [8, 8, 9]


@pytest.mark.parametrize("backbone", ["cnn2", None])
def test_released_refuses_a_last_batch_of_one_under_batchnorm_over_vectors(uneven, backbone):
    "In one line, before any work; a batch size that leaves no single sample trains."
    given = dict(variant="released", S=48, backbone=backbone)
    with pytest.raises(FdgnbError, match="a last batch of one of its 48 samples") as e:
        run("fedsb", uneven, batch_size=47, **given)
    assert one_line(e) and "client 'optical'" in str(e.value) and "drop_last=True" in str(e.value)
    assert run("fedsb", uneven, batch_size=46, rounds=1, **given).round == 1
    assert run("fedsb", uneven, batch_size=47, drop_last=True, rounds=1, **given).round == 1
