"""On a GPU: images per second of FedAvg's rounds beside a hand-written loop over random tensors that lie there.

    python bench/gpu.py
"""
import time
import pandas as pd
import torch
import torch.nn.functional as F
import fdgnb
from fdgnb import models
from fdgnb.core import seeded
from runner import dataset

WORK = dict(small=dict(size=64, n=2000, batch=64), alexnet_bn=dict(size=64, n=2000, batch=64),
            resnet18=dict(size=224, n=500, batch=32))
CLIENTS = 4


def wait(): torch.cuda.synchronize()


def bare_loop(backbone, size, n, batch):
    "Images per second of forward, backward and a fused step on batches that lie on the GPU."
    with seeded(0): net = models.get(backbone, 10, size=size).cuda().to(memory_format=torch.channels_last)
    x = torch.rand(batch, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    steps = CLIENTS*n//batch
    for _ in range(10): step()
    wait()
    start = time.perf_counter()
    for _ in range(steps): step()
    wait()
    return steps*batch/(time.perf_counter() - start)


def rounds(backbone, size, n, batch):
    "Images per second of the rounds of a run, the first one apart, without scoring."
    run = fdgnb.fit("fedavg", dataset(CLIENTS, n, size), None, rounds=6, backbone=backbone, lr=1e-4, batch_size=batch,
                    fractions=(1, 0, 0), eval_every=0, progress=False, device="cuda")
    return CLIENTS*n/sorted(run.seconds[1:])[2]


def main():
    "Print the table."
    rows = [dict(backbone=k, **w, loop=bare_loop(k, **w), fdgnb=rounds(k, **w)) for k, w in WORK.items()]
    table = pd.DataFrame(rows)
    table["ratio"] = table.fdgnb/table.loop
    print(torch.cuda.get_device_name())
    print(table.to_string(index=False, float_format="{:.2f}".format))


if __name__ == "__main__": main()
