"""`make bench`: what augmentation costs beside a training step, against the same step on tensors already augmented.

The two take turns, step by step, so that a busy machine slows both alike; printed is the ratio of the medians and the median of the
paired ratios. Nothing is asserted: a benchmark reports.
"""
import statistics, time
import pytest
import torch
import torch.nn.functional as F
from fdgnb import models
from fdgnb.core import generator, seeded
from fdgnb.data.domain import to_float
from fdgnb.data.augment import AUGMENTATIONS

CASES = [("ga", 64, 16), ("ga", 64, 32), ("fedsb", 64, 64), ("fedbn", 64, 32), ("ga", 224, 16)]         # augmentation, pixels, batch


def measure(name, size, batch, device="cpu", steps=14):
    "Seconds of steps on (augmented there and then, already augmented), lists in turns."
    with seeded(0): net = models.get("resnet18", 7).to(device).to(memory_format=torch.channels_last)
    opt, rng, a = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=.9), torch.Generator().manual_seed(0), AUGMENTATIONS.get(name)
    x = torch.randint(0, 256, (steps*batch, 3, size, size), dtype=torch.uint8, generator=generator(0, purpose="bench")).to(device)
    y = torch.randint(7, (steps*batch,), generator=generator(1, purpose="bench")).to(device)
    done = a(to_float(x), rng).contiguous(memory_format=torch.channels_last)
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def step(idx, augment):
        wait(); start = time.perf_counter()
        xs = a(to_float(x[idx]), rng).contiguous(memory_format=torch.channels_last) if augment else done[idx]
        opt.zero_grad(); F.cross_entropy(net(xs), y[idx]).backward(); opt.step()
        wait(); return time.perf_counter() - start
    times = [], []
    for i, idx in enumerate(torch.randperm(len(y), generator=generator(2, purpose="bench")).to(device).split(batch)):
        for augment in ((True, False), (False, True))[i % 2]: times[not augment].append(step(idx, augment))
    return [t[2:] for t in times]                                        # the first steps warm up


@pytest.mark.parametrize("name,size,batch", CASES)
def test_augment(benchmark, name, size, batch, capsys):
    torch.set_num_threads(1)
    found = []
    benchmark.pedantic(lambda: found.append(measure(name, size, batch, steps=14 if size < 100 else 6)), rounds=1)
    fresh, done = found[0]
    ratio = benchmark.extra_info["ratio"] = statistics.median(fresh)/statistics.median(done)
    with capsys.disabled():
        print(f"\n{name} at {size} pixels, batch {batch}, ResNet-18, one thread: {1e3*statistics.median(fresh):.1f} ms a step with augmentation, {1e3*statistics.median(done):.1f} on augmented tensors: "
              f"{ratio:.3f}, paired {statistics.median(a/b for a, b in zip(fresh, done)):.3f}   goal at most 1.1   {'met' if ratio <= 1.1 else 'MISSED'}")
