"""`make bench`: a training step with augmentation against the same step on tensors already augmented.

The two take turns, step by step, so that a busy machine slows both alike; printed are the ratio of the
medians and the median of the paired ratios. Nothing is asserted: a benchmark reports."""
import statistics, time
import pytest
import torch
import torch.nn.functional as F
from fdgnb import models
from fdgnb.core import generator, seeded
from fdgnb.data.augment import AUGMENTATIONS
from fdgnb.data.domain import to_float

# augmentation, pixels, batch
CASES = [("ga", 64, 16), ("ga", 64, 32), ("fedsb", 64, 64), ("fedbn", 64, 32), ("ga", 224, 16)]


def measure(name, size, batch, device="cpu", steps=14):
    "Seconds of steps on (augmented there and then, already augmented), lists in turns."
    with seeded(0): net = models.get("resnet18", 7).to(device).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=.9)
    rng, a, n = torch.Generator().manual_seed(0), AUGMENTATIONS.get(name), steps*batch
    of = lambda seed: generator(seed, purpose="bench")
    x = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=of(0)).to(device)
    y = torch.randint(7, (n,), generator=of(1)).to(device)
    augmented = lambda x: a(to_float(x), rng).contiguous(memory_format=torch.channels_last)
    done = augmented(x)
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def step(idx, augment):
        wait()
        start = time.perf_counter()
        xs = augmented(x[idx]) if augment else done[idx]
        opt.zero_grad()
        F.cross_entropy(net(xs), y[idx]).backward()
        opt.step()
        wait()
        return time.perf_counter() - start

    times = [], []
    for i, idx in enumerate(torch.randperm(n, generator=of(2)).to(device).split(batch)):
        for augment in ((True, False), (False, True))[i % 2]: times[not augment].append(step(idx, augment))
    return [t[2:] for t in times]                                        # the first steps warm up


@pytest.mark.parametrize("name,size,batch", CASES)
def test_augment(benchmark, name, size, batch, capsys):
    torch.set_num_threads(1)
    found = []
    steps = 14 if size < 100 else 6
    benchmark.pedantic(lambda: found.append(measure(name, size, batch, steps=steps)), rounds=1)
    fresh, done = found[0]
    with_it, without = statistics.median(fresh), statistics.median(done)
    ratio = benchmark.extra_info["ratio"] = with_it/without
    paired = statistics.median(a/b for a, b in zip(fresh, done))
    with capsys.disabled():
        print(f"\n{name} at {size} pixels, batch {batch}, ResNet-18, one thread: {1e3*with_it:.1f} ms "
              f"per step with augmentation, {1e3*without:.1f} on augmented tensors: {ratio:.3f}, "
              f"paired {paired:.3f}   goal at most 1.1   {'met' if ratio <= 1.1 else 'MISSED'}")
