"""What a local step would gain by other ways of computing it, beside the one in use; one thread.

    python bench/trials.py [NETWORK ...]

Ways: flat, parameters and gradients as views of one buffer each; first, channels first; compile, torch.compile of
the loss. Each prints CPU milliseconds a step (least and median; the ways take turns of twenty steps, so that another
load on the machine meets all alike), its share of the way in use, whether the weights are equal to its bit for bit
after the steps, and the seconds of the first step (of compile: with what TORCHINDUCTOR_CACHE_DIR keeps)."""
import statistics, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from fdgnb import models
from fdgnb.core import generator, seeded
from fdgnb.federation.engine import keep_large_blocks
from fdgnb.federation.steps import sgd_groups

SETTINGS = dict(momentum=.9, weight_decay=1e-4, clip=10.)
WORK = {"cnn2 28": ("cnn2", 32, (3, 28, 28)), "cnn2 16": ("cnn2", 32, (3, 16, 16)),
        "small 64": ("small", 32, (3, 64, 64)),
        "alexnet_bn 64": ("alexnet_bn", 32, (3, 64, 64)), "vectors 1280": ("vectors", 32, (1280,))}


def network(name, shape):
    "The network with the first weights of seed 0; `vectors`: a hidden layer of 256 units on vectors."
    with seeded(0):
        if name != "vectors": return models.get(name, 10, shape[0], size=shape[-1])
        return nn.Sequential(nn.Linear(*shape, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))


def flatten(net):
    "Make a network's parameters, and their gradients, views of one buffer each: the one of the parameters."
    params = list(net.parameters())
    flat = lambda p: p.detach().permute(0, 2, 3, 1).flatten() if p.ndim == 4 else p.detach().flatten()
    theta = torch.cat([*map(flat, params), torch.zeros(-sum(p.numel() for p in params) % 64)])   # for the fused kernel
    grads = torch.zeros_like(theta)
    sizes = [p.numel() for p in params]
    sizes.append(len(theta) - sum(sizes))
    for p, own, grad in zip(params, theta.split(sizes), grads.split(sizes)):
        def shape(v):
            if p.ndim != 4: return v.view(p.shape)
            n, c, h, w = p.shape
            return v.view(n, h, w, c).permute(0, 3, 1, 2)
        p.data, p.grad = shape(own), shape(grad)
    theta.grad = grads
    return theta


class Way:
    "One way to take steps: `step()` takes the next."
    def __init__(self, name, batch, shape, kind):
        form = torch.contiguous_format if kind == "first" else torch.channels_last
        self.net = models.set_generator(network(name, shape).to(memory_format=form), generator(1)).train()
        x = torch.rand(batch, *shape, generator=generator(2))
        self.x = x.contiguous(memory_format=form) if x.ndim == 4 else x
        self.y = torch.randint(10, (batch,), generator=generator(3))
        self.params = [flatten(self.net)] if kind == "flat" else list(self.net.parameters())
        self.is_flat = kind == "flat"
        momentum, decay = SETTINGS["momentum"], SETTINGS["weight_decay"]
        self.opt = torch.optim.SGD(sgd_groups(self.params, momentum), lr=1e-3, momentum=momentum, weight_decay=decay)
        loss = lambda x, y: F.cross_entropy(self.net(x), y)
        self.loss = torch.compile(loss) if kind == "compile" else loss

    def step(self):
        loss = self.loss(self.x, self.y)
        self.opt.zero_grad(set_to_none=not self.is_flat)
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, SETTINGS["clip"])
        self.opt.step()


def seconds(way, n=20):
    "CPU seconds of a step, the mean of `n`."
    start = time.process_time()
    for _ in range(n): way.step()
    return (time.process_time() - start)/n


def main(name, kinds, n=12):
    ways = {k: Way(*WORK[name], k) for k in ("usual", *kinds)}
    first = {k: seconds(way, 1) for k, way in ways.items()}
    times = {k: [] for k in ways}
    for _ in range(n):
        for k, way in ways.items(): times[k].append(1000*seconds(way))
    weights = lambda way: torch.cat([p.detach().flatten() for p in way.net.parameters()])
    for k, t in times.items():
        share = statistics.median(a/b for a, b in zip(t, times["usual"]))
        bits = "equal" if weights(ways[k]).equal(weights(ways["usual"])) else "other"
        print(f"{name:14} {k:8} least {min(t):7.2f}, median {statistics.median(t):7.2f} ms, share {share:.2f}, "
              f"{bits} bits, first step {first[k]:.1f} s", flush=True)


if __name__ == "__main__":
    keep_large_blocks()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or WORK: main(name, ("flat", "first", "compile"))
