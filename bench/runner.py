"""One competitor of `make bench` in a process of its own.

    python bench/runner.py KIND NETWORK [PRECISION]        KIND: loader, hand, fedavg, fdse, fluke

It reads a number of rounds per line and prints the seconds of each round as JSON. A process of its own,
because glibc's allocator is set once per process and cannot be set back."""
import copy, json, os, sys, threading, time
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import fdgnb
from fdgnb import models
from fdgnb.core import generator, seeded
from fdgnb.federation.engine import keep_large_blocks

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
WORK = dict(cnn2=dict(clients=4, n=512, size=28, batch=16),
            alexnet_bn=dict(clients=4, n=100, size=64, batch=50))
LR = 3e-4


def dataset(clients, n, size, **_):
    "Random images: `clients` domains of `n`."
    g = generator(0, purpose="bench")
    x = lambda: torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=g)
    y = lambda: torch.randint(10, (n,), generator=g)
    domains = {f"c{k}": fdgnb.Domain(f"c{k}", x(), y()) for k in range(clients)}
    return fdgnb.Dataset("bench", domains, [str(c) for c in range(10)])


def network(name, precision="float32"):
    with seeded(0): return models.in_precision(models.get(name, 10), precision)


def average(states):
    "Mean of state dicts; counters are the first one's."
    mean = lambda k: sum(s[k] for s in states)/len(states)
    return {k: mean(k) if v.is_floating_point() else v for k, v in states[0].items()}


def timed(rounds, one):
    "Seconds of `rounds` calls."
    out = []
    for _ in range(rounds):
        start = time.perf_counter()
        one()
        out.append(time.perf_counter() - start)
    return out


class Loader:
    "The usual loop: a DataLoader per client, torch on all cores, an average of state dicts."
    def __init__(self, name, data, batch, precision):
        self.net = models.set_generator(network(name, precision), generator(1))
        sets = [TensorDataset(d.x.float()/255, d.y) for d in data.domains.values()]
        self.loaders = [DataLoader(s, batch, shuffle=True) for s in sets]
        self.theta = copy.deepcopy(self.net.state_dict())
        torch.set_num_threads(CORES)

    def one(self):
        states = []
        for loader in self.loaders:
            self.net.load_state_dict(self.theta)
            self.net.train()
            opt = torch.optim.SGD(self.net.parameters(), lr=LR)
            for x, y in loader:
                opt.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                opt.step()
            states.append({k: v.clone() for k, v in self.net.state_dict().items()})
        self.theta = average(states)

    def rounds(self, n): return timed(n, self.one)


class Hand:
    "The fastest loop by hand: floats in memory, channels last, a thread per core; our allocator, optimizer."
    def __init__(self, name, data, batch, precision):
        keep_large_blocks()
        torch.set_num_threads(1)
        floats = lambda d: (d.x.float()/255).contiguous(memory_format=torch.channels_last)
        self.batch = batch
        self.xs, self.ys = zip(*((floats(d), d.y) for d in data.domains.values()))
        build = lambda: network(name, precision).to(memory_format=torch.channels_last)
        self.nets = [build() for _ in range(CORES)]
        self.theta = copy.deepcopy(self.nets[0].state_dict())

    def worker(self, net, todo, states):
        torch.set_num_threads(1)
        models.set_generator(net, generator(1))
        while todo:
            try: k = todo.pop()
            except IndexError: return
            net.load_state_dict(self.theta)
            net.train()
            opt = torch.optim.SGD(net.parameters(), lr=LR, fused=True)
            for idx in torch.randperm(len(self.ys[k])).split(self.batch):
                opt.zero_grad()
                F.cross_entropy(net(self.xs[k][idx]), self.ys[k][idx]).backward()
                opt.step()
            states[k] = {n: v.clone() for n, v in net.state_dict().items()}

    def one(self):
        states, todo = {}, list(range(len(self.xs)))
        threads = [threading.Thread(target=self.worker, args=(net, todo, states)) for net in self.nets]
        for t in threads: t.start()
        for t in threads: t.join()
        self.theta = average([states[k] for k in sorted(states)])

    def rounds(self, n): return timed(n, self.one)


class Fit:
    "A round through `fit`, evaluation off."
    def __init__(self, name, data, batch, precision, method="fedavg"):
        torch.set_num_threads(1)
        self.args = dict(method=method, dataset=data, backbone=name, batch_size=batch, precision=precision,
                         lr=LR, eval_every=0, fractions=(1., 0., 0.), progress=False)

    def rounds(self, n): return fdgnb.fit(rounds=n, **self.args).seconds


KINDS = dict(loader=Loader, hand=Hand, fedavg=Fit, fdse=lambda *a: Fit(*a, method="fdse"))


def main(kind, name, precision="float32"):
    work = WORK[name]
    if kind == "fluke":
        import peers
        runner = peers.KINDS[kind](name, dataset(**work), work["batch"])
    else: runner = KINDS[kind](name, dataset(**work), work["batch"], precision)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin: print(json.dumps(runner.rounds(int(line))), flush=True)


if __name__ == "__main__": main(*sys.argv[1:])
