"""FedSB and its parts: the sum of the parts is the whole, soft labels pass through, odd sizes and both variants keep their promises."""
import pytest
import torch
import torch.nn.functional as F
import fdgnb
from fdgnb.core import FdgnbError, generator
from fdgnb.federation.loop import Client
from fdgnb.settings import Settings
from fdgnb.vectors import digest
from fdgnb.federation.compose import method_class
from fdgnb.methods.fedsb import DIFFERENCES, Budget, FedSB, LabelSmoothing, budget_indices, smooth_labels, smoothed_cross_entropy


def run(name, data, **kw):
    return fdgnb.fit(name, data, **dict(target="blended", rounds=2, lr=.02, batch_size=16, eval_every=0, progress=False) | kw)


def bits(r): return digest({k: v for k, v in r.fed.server.state.items() if torch.is_tensor(v)})


@pytest.fixture(scope="module")
def tiny(small):
    import dataclasses
    keep = ("optical", "inked", "blended")
    return dataclasses.replace(small, domains={k: small[k] for k in keep})


@pytest.fixture(scope="module")
def whole(tiny): return run("fedsb", tiny, S=32)


@pytest.mark.parametrize("parts", ["labelsmoothing+budget+uniform", "uniform+budget+labelsmoothing", "budget+uniform+labelsmoothing"])
def test_the_parts_are_the_whole(tiny, whole, parts):
    assert bits(run(parts, tiny, S=32)) == bits(whole)
    assert method_class(parts)().h.__dict__ == FedSB().h.__dict__


@pytest.mark.parametrize("part", ["labelsmoothing", "budget", "uniform", "labelsmoothing+budget", "budget+uniform"])
def test_each_part_matters(tiny, whole, part):
    h = {"S": 32} if "budget" in part else {}
    uneven = cut_domain(tiny, "inked", 30)
    assert bits(run(part, uneven, **h)) != bits(run("fedsb", uneven, S=32))


def cut_domain(data, name, n):
    import dataclasses
    d = data[name]
    return dataclasses.replace(data, domains={**data.domains, name: type(d)(d.name, d.x[:n], d.y[:n])})


@pytest.mark.parametrize("h", [dict(), dict(redraw="once"), dict(variant="released"), dict(local_epochs=2)])
def test_same_bits_on_any_number_of_workers(tiny, h):
    assert bits(run("fedsb", tiny, S=40, workers=1, **h)) == bits(run("fedsb", tiny, S=40, workers=2, **h))


def test_uniform_is_fedavg_for_equal_sizes_only(tiny):
    assert bits(run("uniform", tiny)) == bits(run("fedavg", tiny))
    uneven = cut_domain(tiny, "inked", 30)
    assert bits(run("uniform", uneven)) != bits(run("fedavg", uneven))


def test_weights_of_the_ledger_are_fedavgs(tiny, whole):
    "FedSB sends what FedAvg sends, to the byte."
    assert whole.book.rows == run("fedavg", tiny).book.rows


@pytest.mark.parametrize("eps", [0., .05, 1.])
def test_smoothing_on_a_soft_batch_is_smoothing_of_the_labels(eps):
    g = generator(3)
    logits, soft = torch.randn(8, 6, generator=g, dtype=torch.float64), torch.rand(8, 6, generator=g, dtype=torch.float64).softmax(1)
    want = F.cross_entropy(logits, smooth_labels(soft, 6, eps))
    assert torch.allclose(LabelSmoothing(epsilon=eps).criterion(logits, soft, None), want)
    assert torch.allclose(smoothed_cross_entropy(logits, soft, eps), want)


@pytest.mark.parametrize("n", [1, 2, 5, 17, 64])
@pytest.mark.parametrize("S", [1, 2, 16, 17, 63, 200])
def test_budget_is_even(n, S):
    counts = torch.bincount(budget_indices(n, S, generator(n, S)), minlength=n)
    assert counts.sum() == S and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("h", [dict(), dict(redraw="once"), dict(variant="released")])
def test_everybody_takes_the_same_steps(h):
    counts = set()
    for n in (3, 16, 40, 200):
        c = Client("a", dict(train=(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long))), Settings(batch_size=8))
        batches = list(Budget(S=48, **h).sample(c, c.rng("sample")))
        counts.add(len(batches))
        assert all(0 <= int(b.min()) and int(b.max()) < n for b in batches)
        if h.get("variant") != "released": assert sum(map(len, batches)) == 48
    assert counts == {6}


def steps(n, epochs, **h):
    "How many batches of 8 a client of n samples with budget 24 takes in `epochs` local epochs."
    data = dict(train=(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)))
    client = Client("a", data, Settings(batch_size=8, local_epochs=epochs))
    return len(list(Budget(S=24, **h).sample(client, client.rng("sample"))))


def test_released_counts_the_total_whatever_the_epochs():
    assert (steps(50, 3), steps(50, 3, variant="released")) == (9, 3)


@pytest.mark.parametrize("bad", [dict(epsilon=1.2), dict(S=0), dict(S=1.5), dict(redraw="never"), dict(variant="printed")])
def test_bad_values_are_refused_in_one_line(bad):
    with pytest.raises(FdgnbError) as e: method_class("fedsb")(**bad)
    assert "\n" not in str(e.value) and next(iter(bad)) in str(e.value)


def test_the_list_of_differences_starts_as_printed_and_leaves_the_budget_to_the_caller():
    assert next(iter(DIFFERENCES.items())) == ("as printed", ("fedsb", {})) and "as released" in DIFFERENCES
    for name, h in DIFFERENCES.values():
        assert "S" not in h
        method_class(name)(**h, S=48)
