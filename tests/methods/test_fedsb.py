"""FedSB and its parts: the sum is the whole, soft labels pass through, odd sizes and both variants hold."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from conftest import bits, one_line, run as short_run, sized
from fdgnb.core import FdgnbError, generator
from fdgnb.federation.compose import hyper_of, method_class
from fdgnb.federation.loop import Client, Method
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


def test_each_part_is_fedavg_at_its_neutral_value(even):
    "And FedSB is, only with both."
    avg = run("fedavg", even, rounds=1)
    n = avg.sizes["optical"]["train"]
    is_fedavg = lambda name, **h: bits(run(name, even, rounds=1, **h)) == bits(avg)
    assert is_fedavg("fedsb", epsilon=0., S=n) and is_fedavg("labelsmoothing", epsilon=0.) and is_fedavg("budget", S=n)
    assert not is_fedavg("fedsb", epsilon=.1, S=n) and not is_fedavg("fedsb", epsilon=0., S=n//2)


def test_smoothed_labels_are_a_mixture():
    "Rows sum to one, smoothing is linear in the label, and a share outside [0, 1] is refused."
    y = torch.tensor([0, 2, 2, 4])
    one = smooth_labels(y, 5, .2)
    assert torch.allclose(one.sum(1), torch.ones(4)) and one[0].tolist() == pytest.approx([.84, .04, .04, .04, .04])
    mixed = .7*F.one_hot(y, 5) + .3*F.one_hot(y.flip(0), 5)
    assert torch.allclose(smooth_labels(mixed, 5, .2), .7*one + .3*one.flip(0))
    for eps in (-.5, 1.5):
        with pytest.raises(FdgnbError, match=f"eps={eps} is out of range"): smooth_labels(y, 5, eps)


class Brier(Method):
    "Squared distance of the probabilities from the label."
    def criterion(self, logits, y, client):
        return ((logits.softmax(1) - F.one_hot(y, logits.shape[1]))**2).sum(1).mean()


class SmoothedBrier(LabelSmoothing, Brier): "Labels smoothed over Brier's score."


@pytest.mark.parametrize("h, eps", [({}, .1), (dict(epsilon=.3), .3), (dict(epsilon=0.), 0.)], ids=str)
def test_smoothing_adds_to_whatever_criterion_lies_beneath(h, eps):
    "Brier's score by a double loop; epsilon is 0.1 by default."
    z, y = torch.randn(6, 5, generator=generator(0), dtype=torch.float64), torch.tensor([0, 4, 2, 2, 1, 3])
    p, pairs = z.softmax(1), [(i, c) for i in range(6) for c in range(5)]
    brier = sum((p[i, c].item() - (c == y[i].item()))**2 for i, c in pairs)/6
    smooth = -sum(p[i, c].log().item() for i, c in pairs)/(6*5)
    assert SmoothedBrier(**h).criterion(z, y, None).item() == pytest.approx((1 - eps)*brier + eps*smooth)


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


def test_a_budget_of_n_is_fedavgs_passes_one_after_the_other():
    ours, fedavg = generator(3), generator(3)
    for _ in range(2): assert torch.equal(budget_indices(9, 9, ours), torch.randperm(9, generator=fedavg))
    twice = budget_indices(50, 100, generator(0))
    assert not torch.equal(twice[:50], twice[50:])


@pytest.mark.parametrize("n, S", [(0, 5), (5, 0)])
def test_no_budget_from_nothing(n, S):
    with pytest.raises(FdgnbError, match=f"budget of {S} from {n} samples"): budget_indices(n, S, generator(0))


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


def drawn(n=100, round=0, id="a", seed=0, local_epochs=1, drop_last=False, **h):
    "The batches of a client in a round, as lists of indices."
    client = client_of(n, local_epochs=local_epochs, drop_last=drop_last)
    client.round, client.id, client.seed = round, id, seed
    return [b.tolist() for b in batches(client, **h)]


def samples(**h): return sorted(sum(drawn(**h), []))


ONCE = dict(S=24, redraw="once")


def test_when_samples_are_drawn():
    "Anew in each round; drawn once, the same in another order, others for other clients and seeds."
    assert samples(S=24) != samples(round=1, S=24)
    assert samples(**ONCE) == samples(round=1, **ONCE) and drawn(**ONCE) != drawn(round=1, **ONCE)
    assert samples(**ONCE) not in (samples(id="b", **ONCE), samples(seed=1, **ONCE))


def test_each_pass_of_a_round_is_a_draw_of_its_own():
    passes = lambda h: [sum(part, []) for two in [drawn(local_epochs=2, **h)] for part in (two[:3], two[3:])]
    one, two = passes(dict(S=24))
    assert sorted(one) != sorted(two)
    one, two = passes(ONCE)
    assert sorted(one) == sorted(two) == samples(**ONCE) and one != two


def test_the_first_batches_are_the_same_every_round():
    "Batches are counted, not samples; the total of a round, whatever the epochs."
    first = [[*range(8)], [*range(8, 16)], [*range(16, 24)]]
    for h in (dict(order="first"), dict(order="first", round=1), dict(order="first", local_epochs=3),
              dict(variant="released")): assert drawn(S=20, **h) == first
    assert [len(b) for b in drawn(11, S=40, order="first")] == [8, 3, 8, 3, 8]


def test_drop_last_and_the_default_budget():
    assert [len(b) for b in drawn(S=20, drop_last=True)] == [8, 8]
    assert [len(b) for b in drawn(25, S=32, order="first", drop_last=True)] == [8]*4
    assert drawn(600) == drawn(600, S=512)


def test_batchnorm_over_maps_trains_on_one_sample_over_vectors_it_does_not():
    "What `order='first'` refuses, and what it lets through."
    lone = torch.zeros(1, 3)
    with pytest.raises(ValueError, match="more than 1 value"): nn.BatchNorm1d(3)(lone)
    assert nn.BatchNorm2d(3)(lone[:, :, None, None].expand(1, 3, 2, 2)).shape == (1, 3, 2, 2)


def test_weights_are_equal_and_no_part_comes_twice():
    assert FedSB().weight(None, "a", {"scalars.n": torch.tensor(9.)}) == 1.
    with pytest.raises(FdgnbError, match="'budget' is in it twice"): method_class("fedsb+budget")


def test_released_counts_the_total_whatever_the_epochs():
    steps = lambda **h: len(batches(client_of(50, local_epochs=3), S=24, **h))
    assert (steps(), steps(variant="released"), steps(variant="released", order="random")) == (9, 3, 9)


def test_the_released_order_turned_back_is_drawn_once():
    back, once = dict(variant="released", order="random"), dict(redraw="once")
    two = [batches(client_of(50), S=24, **h) for h in (back, once)]
    assert [torch.equal(a, b) for a, b in zip(*two)] == [True]*3


@pytest.mark.parametrize("bad", [dict(epsilon=1.2), dict(epsilon=-.1), dict(S=0), dict(S=1.5), dict(redraw="never"),
                                 dict(order="last"), dict(variant="printed")])
def test_bad_values_are_refused_in_one_line(bad):
    with pytest.raises(FdgnbError) as e: method_class("fedsb")(**bad)
    assert one_line(e) and next(iter(bad)) in str(e.value)


def test_the_list_of_differences_starts_as_printed_and_leaves_the_budget_to_the_caller():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("fedsb", {})) and "as released" in DIFFERENCES
    for name, h in DIFFERENCES.values():
        assert "S" not in h
        method_class(name)(**h, S=48)
    assert list(DIFFERENCES) == ["as printed", "samples drawn once", "first batches, fixed order", "as released",
                                 "epsilon of the README, 0.01", "epsilon of the command line, 0"]
    assert DIFFERENCES["as released"][1] == dict(variant="released") | DIFFERENCES["epsilon of the README, 0.01"][1]


@pytest.mark.parametrize("label", DIFFERENCES)
def test_each_difference_runs_and_changes_one_thing(even, label):
    name, h = DIFFERENCES[label]
    assert len(h) == {"as printed": 0, "as released": 2}.get(label, 1)
    if label.startswith("epsilon"): assert h == dict(epsilon=float(label.split(", ")[1]))
    assert run(name, even, rounds=1, S=32, **h).round == 1


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
