"""Golden numbers of FedKA: the authors' own notebook cells on small fixed inputs, in float64.

`python tests/golden/fedka.py CHECKOUT` writes fedka.safetensors beside this file. CHECKOUT: a folder with
github.com/yuweisunn/federated-knowledge-alignment as it was at COMMIT. Its cells are executed from there:
`run` (two rounds with voting; without it for f-DANN and f-DAN), MMD_loss, ReverseLayerF. Given to them are a
network small enough to keep, batches in a known order (fdgnb's generators), and a processor for the GPU.
"""
import json, sys, types
from pathlib import Path
import tqdm.notebook
import torch
from safetensors.torch import save_file
from torch import nn
from fdgnb.core import generator

REPOSITORY, COMMIT = "yuweisunn/federated-knowledge-alignment", "bd028260e6797d9befba86d0d77632451b3e7cde"
SEED, ROUNDS, BATCH, N, VOTERS, INPUTS, FEATURES, CLASSES = 0, 2, 16, 512, 2048, 6, 4, 5
METHODS = {"fdann": (1, False), "fedka": (2, True), "fdan": (3, False)}


def inputs():
    "Integers: x of four clients (4, N, 6) and the target (VOTERS, 6), y (4, N); x/32 goes into the network."
    g = generator(SEED, purpose="golden")
    y = torch.randint(CLASSES, (5, VOTERS), generator=g)
    centers = 40*torch.randn(CLASSES, INPUTS, generator=g)
    shifts = 15*torch.randn(5, 1, INPUTS, generator=g)
    x = centers[y] + shifts + 25*torch.randn(5, VOTERS, INPUTS, generator=g)
    x = x.round().clamp(-127, 127).to(torch.int8)
    return x[:4, :N], y[:4, :N], x[4]


def order(round, who, purpose, n): return torch.randperm(n, generator=generator(SEED, round, who, purpose))


class Passes:
    "What a loader is to the cells: each `iter` is the next of the given lists of batches."
    def __init__(self, x, y, orders): self.x, self.y, self.orders = x, y, iter(orders)
    def __iter__(self): return Pass((self.x[i], self.y[i]) for i in next(self.orders).split(BATCH))


class Pass:
    def __init__(self, batches): self.next = batches.__next__
    def __iter__(self): return self
    def __next__(self): return self.next()


def loaders(voting):
    "(the clients', the target's), in the orders in which fdgnb draws for the same seed."
    (x, y, t), clients = inputs(), []
    for k in range(4):
        drawn = [order(r, str(k), p, N) for r in range(ROUNDS) for p in ("sample", "match")]
        clients.append(Passes(x[k].double()/32, y[k], drawn))
    own = []
    for r in range(ROUNDS):
        purpose = f"target after {r - 1}" if r else "target"
        target = order(max(r - 1, 0), "server", purpose, VOTERS)
        voters = order(r, "server", "voters", VOTERS)
        own += [target[:N].repeat(8), *[voters]*(1 + voting)]        # two passes of four clients, votes, test
    return clients, Passes(t.double()/32, torch.zeros(VOTERS, dtype=torch.long), own)


def states(net): return {k: v.detach().clone() for k, v in net.state_dict().items() if "running" not in k}


class Double(types.ModuleType):
    "torch in double precision; what is made a `Tensor` are the labels voted for, and noted."
    FloatTensor = torch.DoubleTensor
    def __init__(self):
        super().__init__("torch")
        self.labels = []

    def __getattr__(self, name): return getattr(torch, name)
    def Tensor(self, values):
        self.labels += values
        return torch.Tensor(values)


def played(cells, method, voting):
    "(first draws, loads, labels voted for) of a run; a load: (which network, all before it, its state)."
    made, drawn, loads, space, double = [], [], [], {}, Double()

    class Tiny(nn.Module):
        "A network with the three parts that the cells ask for."
        def __init__(self):
            super().__init__()
            norm, hidden = nn.BatchNorm1d(FEATURES), nn.BatchNorm1d(100)
            self.feature = nn.Sequential(nn.Linear(INPUTS, FEATURES, bias=False), norm, nn.ReLU())
            self.class_classifier = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.LogSoftmax(1))
            self.domain_classifier = nn.Sequential(nn.Linear(FEATURES, 100), hidden, nn.ReLU(),
                                                   nn.Linear(100, 2), nn.LogSoftmax(1))
            made.append(self)
            drawn.append(states(self))

        def forward(self, input_data, alpha):
            h = self.feature(input_data)
            return self.class_classifier(h), self.domain_classifier(space["ReverseLayerF"].apply(h, alpha))

        def load_state_dict(self, state):
            before = [states(net) for net in made]
            out = super().load_state_dict(state)
            loads.append((made.index(self), before, states(self)))
            return out

    for cell in cells: exec(cell, space)
    clients, cloud = loaders(voting)
    space |= dict(torch=double, CNNModel=Tiny, n_epoch=ROUNDS)
    space |= dict(clients_datasets=clients, cloud_dataset=[cloud])
    torch.manual_seed(SEED)
    space["run"](method, voting)
    return drawn, loads, double.labels


def cells_of(checkout):
    "The source of the cells that are needed: settings, MMD_loss, the networks, run."
    notebook = json.loads((Path(checkout)/"FedKA-Digit-Five.ipynb").read_text())
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    wanted = "class MMD_loss", "class ReverseLayerF", "def run("
    return [next(c for c in code if w in c) for w in wanted]


def without_a_gpu(cells):
    "What the cells take from their first cell and their machine: names, and no `.cuda()`."
    names = """import torch, torch.nn as nn, torch.optim as optim, numpy as np
from torch.autograd import Function
lr, image_size, cuda = 3e-4, 28, False"""
    for owner in (torch.Tensor, nn.Module): owner.cuda = lambda self: self
    tqdm.notebook.tqdm = lambda rounds: rounds
    return [names, *cells]


def numbers(checkout):
    "{name: tensor}: the inputs, the first draws, and of each case what came out."
    cells, (x, y, t) = without_a_gpu(cells_of(checkout)), inputs()
    out = {"x": x, "y": y.to(torch.uint8), "target": t}
    for case, (method, voting) in METHODS.items():
        drawn, loads, labels = played(cells, method, voting)
        for i, state in enumerate(drawn): out |= {f"first.{i}.{k}": v for k, v in state.items()}
        for r in range(ROUNDS):
            (server, _, average), (_, before, _) = loads[5*r], loads[5*r + 1]
            assert server == 0, "the server loads the average first"
            if case != "fedka" and r + 1 < ROUNDS: continue
            out |= {f"{case}.{r}.average.{k}": v for k, v in average.items()}
            if case == "fedka": out |= {f"{case}.{r}.tuned.{k}": v for k, v in before[0].items()}
        if voting: out["fedka.labels"] = torch.tensor(labels, dtype=torch.uint8).view(ROUNDS, VOTERS)
    return {k: v.contiguous() for k, v in out.items() if "num_batches" not in k}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    made = numbers(sys.argv[1])
    about = dict(repository=REPOSITORY, commit=COMMIT, torch=torch.__version__,
                 functions="run (methods 1, 2 with voting, 3), MMD_loss, ReverseLayerF")
    save_file(made, Path(__file__).with_suffix(".safetensors"), about)
    print(len(made), "tensors,", sum(v.nbytes for v in made.values()), "bytes")
