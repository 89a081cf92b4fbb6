"""Golden numbers of FedBR: the authors' own functions on small fixed inputs, in float64.

`python tests/golden/fedbr.py CHECKOUT` writes fedbr.safetensors beside this file. CHECKOUT: a folder with
github.com/LINs-lab/FedBR as it was at COMMIT. Its modules are imported from there: the algorithm, the average
and the making of pseudo-data. Given to them are a featurizer small enough to keep and known batches.
"""
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from fdgnb.core import generator
from fdgnb.models import torchvision_models

REPOSITORY, COMMIT = "LINs-lab/FedBR", "6c4c5395c08a73bbb5f453535d3d29581032e471"
CLIENTS, N, BATCH, INPUTS, FEATURES, CLASSES = 3, 24, 8, 6, 8, 4
ROUNDS = 12, 4                                                         # local steps before each average
CASES = dict(rsm={}, mixture=dict(use_Mixture=True), mixup=dict(use_Mixup=True),
             both=dict(use_Mixture=True, use_Mixup=True))
ABSENT = "cv2", "parso", "wilds", "backpack", "matplotlib", "tqdm", "gdown", "fedbr.src"


class Absent:
    "Finds the modules that theirs import and these functions never use: empty ones."
    def find_spec(self, name, path=None, target=None):
        absent = any(f"{name}.".startswith(f"{a}.") for a in ABSENT)
        return ModuleSpec(name, self, is_package=True) if absent else None
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module
    def exec_module(self, module): pass


class Tiny(nn.Module):
    "A featurizer with batch normalization."
    n_outputs = n_outputs_feature = FEATURES
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES)
    def forward(self, x): return torch.relu(self.bn(self.fc(x)))


class Rows:
    "A client's data, which note what is read of them."
    def __init__(self, who, x, read): self.who, self.x, self.read = who, x, read
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        self.read.append((self.who, int(i)))
        return self.x[int(i)], 0


def inputs():
    "x in [0, 1] as 255ths (3, N, 6), y (3, N), rows of the batches (3, steps, 8)."
    g = generator(0, purpose="golden")
    x = torch.randint(256, (CLIENTS, N, INPUTS), generator=g, dtype=torch.uint8)
    y = torch.randint(CLASSES, (CLIENTS, N), generator=g)
    return x, y, torch.randint(N, (CLIENTS, sum(ROUNDS), BATCH), generator=g)


def pseudo_data(train, x):
    "Their means of random samples (BATCH, 6), and of which client (BATCH,) and rows (BATCH, 10) each is."
    read = []
    envs = [(Rows(k, v, read), None) for k, v in enumerate(x)]
    means = torch.cat(train.get_augmentation_mean_data(envs, "cpu", None, BATCH))
    rows = torch.tensor(read).view(BATCH, -1, 2)[:, 1:]                     # the first look is at the shape
    return means, rows[:, 0, 0], rows[..., 1]


def noting(owner, name, kept):
    "Put in place of a function one that also keeps what it gives."
    f = getattr(owner, name)
    def call(*a, **kw):
        out = f(*a, **kw)
        kept.append(out)
        return out
    setattr(owner, name, call)
    return f


def states(algorithm): return {k: v.detach().clone() for k, v in algorithm.state_dict().items() if v.dim()}


def played(algorithms, wrapped, options, x, y, rows, pool):
    "{name: tensor} of a case: what was drawn in it, first weights, and before and after each average."
    hparams = dict(lr=.1, weight_decay=0., nonlinear_classifier=False, use_Mixture=False, use_Mixup=False)
    hparams |= options
    torch.manual_seed(1)
    np.random.seed(1)
    server, *clients = [wrapped.FedAvg(algorithms.FedBR((INPUTS,), CLASSES, CLIENTS, dict(hparams)))
                        for _ in range(CLIENTS + 1)]
    out = {f"first.{i}.{k}": v for i, a in enumerate((server, *clients)) for k, v in states(a).items()}
    partners, shares, orders = [], [], []
    drawn = (torch, "randint", partners), (np.random, "beta", shares), (torch, "randperm", orders)
    theirs = [(owner, name, noting(owner, name, kept)) for owner, name, kept in drawn]
    steps = iter(range(sum(ROUNDS)))
    for r, n in enumerate(ROUNDS):
        for s in (next(steps) for _ in range(n)):
            for xs, ys, c, own in zip(x, y, clients, rows[:, s]):
                c.update([[xs[own], ys[own]]], list(pool.split(1)))
        trained = enumerate(clients) if r == 0 else ()
        for i, c in trained: out |= {f"trained.{i}.{k}": v for k, v in states(c).items()}
        weights = np.array([c.p for c in clients])
        server.global_update([c.gradients for c in clients], weights/weights.sum(), dict(global_lr=1.))
        for c in clients:
            c.copy_from(server)
            c.algorithm.if_updated = True
        out |= {f"average.{r}.{k}": v for k, v in states(server).items()}
    for owner, name, f in theirs: setattr(owner, name, f)
    seen = dict(partners=partners, shares=shares, orders=[o for o in orders if len(o) == BATCH])
    each = {k: torch.as_tensor(np.array([np.asarray(v) for v in vs])) for k, vs in seen.items() if vs}
    return out | {k: v.reshape(sum(ROUNDS), CLIENTS, -1) for k, v in each.items()}


def numbers(checkout):
    "{name: tensor}: the inputs and, of each case, what came out."
    torchvision_models()                           # its import, where torchvision's compiled part is missing
    sys.meta_path.insert(0, Absent())
    sys.path[0] = checkout                               # not this folder: this file has their package's name
    from fedbr import algorithms, algorithms_fed, networks
    from fedbr.scripts import train_fed
    networks.Featurizer = lambda shape, hparams: Tiny()
    x, y, rows = inputs()
    torch.manual_seed(0)
    pool, who, of = pseudo_data(train_fed, x/255)
    out = dict(x=x, y=y, rows=rows, pool=pool, pool_client=who, pool_rows=of)
    for case, options in CASES.items():
        made = played(algorithms, algorithms_fed, options, x/255, y, rows, pool)
        out |= {k if k.startswith("first.") else f"{case}.{k}": v for k, v in made.items()}
    return {k: v.contiguous() for k, v in out.items()}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    made = numbers(sys.argv[1])
    about = dict(repository=REPOSITORY, commit=COMMIT, torch=torch.__version__,
                 functions="algorithms.FedBR.update, algorithms_fed.FedAvg.global_update and copy_from, "
                           "scripts.train_fed.get_augmentation_mean_data")
    save_file(made, Path(__file__).with_suffix(".safetensors"), about)
    print(len(made), "tensors,", sum(v.nbytes for v in made.values()), "bytes")
