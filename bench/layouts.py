"""Milliseconds of a local step by memory layout and precision, one thread.

    python bench/layouts.py [NETWORK ...]"""
import statistics, sys, time
import torch
import torch.nn.functional as F
from fdgnb import models
from fdgnb.core import generator
from fdgnb.federation.engine import keep_large_blocks
from runner import WORK, network

LAYOUTS = dict(channels_last=torch.channels_last, channels_first=torch.contiguous_format)


def step(net, x, y, opt):
    "Seconds of one step."
    start = time.perf_counter()
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
    return time.perf_counter() - start


def seconds(name, precision, layout, n=15):
    "Seconds of `n` steps on random images."
    work = WORK[name]
    net = models.set_generator(network(name, precision).to(memory_format=layout), generator(1)).train()
    x = torch.rand(work["batch"], 3, work["size"], work["size"], generator=generator(2))
    x, y = x.contiguous(memory_format=layout), torch.randint(10, (len(x),), generator=generator(3))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    return [step(net, x, y, opt) for _ in range(n + 3)][3:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_large_blocks()
    for name in sys.argv[1:] or WORK:
        for precision in ("float32", "bfloat16"):
            for layout, form in LAYOUTS.items():
                t = [1000*s for s in seconds(name, precision, form)]
                middle = statistics.median(t)
                print(f"{name} {precision} {layout}: {min(t):.1f} ms the least, {middle:.1f} the median")
