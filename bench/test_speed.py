"""`make bench`: what a round costs against hand-written loops, memory against the number of clients, and the time of the import.

The competitors take turns in one process, block by block, so that a busy machine slows all alike; printed are the medians of the
paired ratios. Nothing is asserted: a benchmark reports.
"""
import copy, os, statistics, subprocess, sys, threading, time
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import fdgnb
from fdgnb import models
from fdgnb.core import generator, seeded
from fdgnb.data.domain import Dataset, Domain

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
WORK = dict(cnn2=dict(clients=4, n=512, size=28, batch=16, most=(.6, 1.05)), alexnet_bn=dict(clients=4, n=100, size=64, batch=50, most=(.8, 1.05)))
BLOCK, REPEATS = 3, 6


def dataset(clients, n, size, **_):
    g = generator(0, purpose="bench")
    return Dataset("bench", {f"c{k}": Domain(f"c{k}", torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=g), torch.randint(10, (n,), generator=g))
                             for k in range(clients)}, [str(c) for c in range(10)])


def network(name, seed=0):
    with seeded(seed): return models.get(name, 10)


def average(states):
    return {k: sum(s[k] for s in states)/len(states) if states[0][k].is_floating_point() else states[0][k] for k in states[0]}


class Loader:
    "(a) The usual loop: a DataLoader a client, torch on all cores, an average of state dicts."
    def __init__(self, name, data, batch, **_):
        self.net = network(name)
        models.set_generator(self.net, generator(1))
        self.loaders = [DataLoader(TensorDataset(d.x.float()/255, d.y), batch, shuffle=True) for d in data.domains.values()]
        self.theta = copy.deepcopy(self.net.state_dict())

    def rounds(self, n):
        torch.set_num_threads(CORES)
        seconds = []
        for _ in range(n):
            start, states = time.perf_counter(), []
            for loader in self.loaders:
                self.net.load_state_dict(self.theta); self.net.train()
                opt = torch.optim.SGD(self.net.parameters(), lr=3e-4)
                for x, y in loader:
                    opt.zero_grad(); F.cross_entropy(self.net(x), y).backward(); opt.step()
                states.append({k: v.clone() for k, v in self.net.state_dict().items()})
            self.theta = average(states)
            seconds.append(time.perf_counter() - start)
        torch.set_num_threads(1)
        return seconds


class Hand:
    "(b) The fastest loop written by hand: float tensors in memory, channels last, one Python thread with one torch thread a core."
    def __init__(self, name, data, batch, **_):
        self.batch, self.xs, self.ys = batch, [(d.x.float()/255).contiguous(memory_format=torch.channels_last) for d in data.domains.values()], [d.y for d in data.domains.values()]
        self.nets = [network(name).to(memory_format=torch.channels_last) for _ in range(CORES)]
        self.theta = copy.deepcopy(self.nets[0].state_dict())

    def worker(self, net, todo, states):
        torch.set_num_threads(1)
        models.set_generator(net, generator(1))
        while todo:
            try: k = todo.pop()
            except IndexError: return
            net.load_state_dict(self.theta); net.train()
            opt = torch.optim.SGD(net.parameters(), lr=3e-4)
            for idx in torch.randperm(len(self.ys[k])).split(self.batch):
                opt.zero_grad(); F.cross_entropy(net(self.xs[k][idx]), self.ys[k][idx]).backward(); opt.step()
            states[k] = {n: v.clone() for n, v in net.state_dict().items()}

    def rounds(self, n):
        seconds = []
        for _ in range(n):
            start, states, todo = time.perf_counter(), {}, list(range(len(self.xs)))
            threads = [threading.Thread(target=self.worker, args=(net, todo, states)) for net in self.nets]
            [t.start() for t in threads]; [t.join() for t in threads]
            self.theta = average([states[k] for k in sorted(states)])
            seconds.append(time.perf_counter() - start)
        return seconds


class Fit:
    "A round of FedAvg through `fit`, evaluation off."
    def __init__(self, name, data, batch, **_): self.name, self.data, self.batch = name, data, batch

    def rounds(self, n):
        return fdgnb.fit("fedavg", self.data, rounds=n, backbone=self.name, batch_size=self.batch, lr=3e-4, eval_every=0, fractions=(1., 0., 0.), progress=False).seconds


@pytest.mark.parametrize("name", WORK)
def test_round(benchmark, name, capsys):
    work = WORK[name]
    data = dataset(**work)
    runners = {c.__name__: c(name, data, work["batch"]) for c in (Loader, Hand, Fit)}
    times = {c: [] for c in runners}

    def block():
        "Each competitor in turn, its first round dropped."
        for c, r in runners.items(): times[c] += r.rounds(BLOCK)[1:]
    benchmark.pedantic(block, rounds=REPEATS, warmup_rounds=1)
    skip = BLOCK - 1                                                     # the warm-up block
    ratio = lambda a, b: statistics.median(x/y for x, y in zip(times[a][skip:], times[b][skip:]))
    lines = [f"{name}, {work['clients']} clients x {work['n']} samples, batch {work['batch']}, {CORES} cores: median seconds a round " +
             ", ".join(f"{c} {statistics.median(t[skip:]):.3f}" for c, t in times.items())]
    for other, most, what in (("Loader", work["most"][0], "(a) the usual DataLoader loop"), ("Hand", work["most"][1], "(b) the fastest hand-written loop")):
        r = benchmark.extra_info[other] = ratio("Fit", other)
        lines.append(f"  fit / {what}: {r:.3f}   goal at most {most}   {'met' if r <= most else 'MISSED'}")
    with capsys.disabled(): print("\n" + "\n".join(lines))


PEAK = """
import resource, sys, torch, fdgnb
sys.path.insert(0, {here!r})
from test_speed import dataset
torch.set_num_threads(1)
method, clients = sys.argv[1], int(sys.argv[2])
r = fdgnb.fit(method, dataset(clients, 8, 64), rounds=2, backbone="alexnet_bn", batch_size=8, eval_every=0, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024, sum(v.numel()*v.element_size() for v in r.fed.server.model.values())/2**20)
"""


def test_memory(benchmark, capsys):
    "Peak memory with 4 and with 64 clients of AlexNet; growth in models."
    def peak(method, clients):
        return map(float, subprocess.run([sys.executable, "-c", PEAK.format(here=os.path.dirname(__file__)), method, str(clients)], capture_output=True, text=True, check=True).stdout.split())
    lines = []
    def measure():
        for method in ("fedavg", "fdse"):
            (few, size), (many, _) = peak(method, 4), peak(method, 64)
            lines.append(f"peak memory, {method}, alexnet_bn ({size:.0f} MiB a model): 4 clients {few:.0f} MiB, 64 clients {many:.0f} MiB: {(many - few)/size:.2f} models more")
    benchmark.pedantic(measure, rounds=1)
    with capsys.disabled(): print("\n" + "\n".join(lines))


PAIR = """
import torch
try: import torchvision
except RuntimeError:                                                     # its compiled operators do not load beside this torch
    for op in ("nms", "qnms"): torch.library.define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
"""


def test_import(benchmark, capsys):
    "Time of `import fdgnb` against torch and torchvision."
    times = {"torch, torchvision": [], "fdgnb": [], "fdgnb and its loop": []}
    code = dict(zip(times, (PAIR, "import fdgnb", "import fdgnb; fdgnb.fit")))
    def turn():
        for k, c in code.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", c], check=True, capture_output=True)
            times[k].append(time.perf_counter() - start)
    benchmark.pedantic(turn, rounds=5, warmup_rounds=1)
    base = statistics.median(times["torch, torchvision"][1:])
    with capsys.disabled():
        print()
        for k, t in times.items(): print(f"import {k}: {statistics.median(t[1:]):.2f} s, {statistics.median(t[1:])/base:.2f} of torch and torchvision" + ("   goal at most 1.2" if k != "torch, torchvision" else ""))


def test_digits(benchmark, capsys):
    "Seconds to make the embedded data set on an empty cache, one thread."
    from fdgnb.data.digits import DIGITS, draw_digits
    seconds = benchmark.pedantic(lambda: [draw_digits(d) for d in DIGITS], rounds=1) and benchmark.stats.stats.max
    with capsys.disabled(): print(f"\ndigits made in {seconds:.1f} s   goal at most 20   {'met' if seconds <= 20 else 'MISSED'}")
