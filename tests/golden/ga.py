"""Golden numbers of GA: the authors' own training loop on three small sources, in float64.

    python tests/golden/ga.py CHECKOUT

CHECKOUT: MediaBrain-SJTU/FedDG-GA at the commit below. `main` of algorithms/fedavg/train_pacs_GA.py runs as
it is, on the data and the network of this script; what it averages and with which weights is written down.
What it imports and does not need here (torchvision, cv2, TensorBoard) is replaced by dummies.
"""
import copy, importlib, json, sys
from pathlib import Path
from unittest.mock import MagicMock
import torch
from torch import nn

FILE = Path(__file__).with_suffix(".json")
SOURCE = dict(repository="MediaBrain-SJTU/FedDG-GA", commit="8d03a24a2af2155dc0b8978afacfdb659146bf62",
              function="main of algorithms/fedavg/train_pacs_GA.py (site_train, site_evaluation, FedAvg, "
                       "FedUpdate, refine_weight_dict_by_GA, GetFedModel)")
SETTINGS = dict(comm=5, local_epochs=2, batch_size=8, lr=.05, step_size=.2)
SITES = dict(p=(20, 9), a=(12, 11), c=(16, 10))                           # training, validation samples


def inputs():
    "{site: {split: (x, y)}}, numbers with few digits, and the first weights of the network."
    g = torch.Generator().manual_seed(5)
    data = {}
    for i, (site, sizes) in enumerate(SITES.items()):
        data[site] = {}
        for split, n in zip(("train", "val"), sizes):
            y = torch.randint(3, (n,), generator=g)
            x = torch.randn(n, 4, generator=g) + 2*torch.eye(3, 4)[(y + i) % 3]
            data[site][split] = (x*8).round().double()/8, y
    start = network().state_dict()
    return data, {k: draw(v, g) if v.ndim else v for k, v in start.items()}


def draw(v, g):
    "Random numbers with three decimals in the shape of a state's entry; BatchNorm's stay as they begin."
    new = (torch.randn(v.shape, generator=g)*400).round().double()/1000
    return v if v.unique().numel() == 1 else new


def network():
    "Four numbers to three classes."
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()


def batches(x, y, size):
    "What the authors' loaders give: images, labels, domain labels; here in order."
    return [(a, b, b) for a, b in zip(x.split(size), y.split(size))]


def run(checkout, fair, data, start):
    "Weights and global model of each average of the authors' `main`."
    sys.path.insert(0, str(checkout))
    for name in ("cv2", "PIL", "torchvision", "torchvision.transforms", "torchvision.datasets",
                 "torchvision.models", "torch.utils.tensorboard", "torch.utils.tensorboard.writer"):
        sys.modules[name] = MagicMock()
    torch.Tensor.cuda = nn.Module.cuda = lambda self: self
    importlib.import_module("configs.default").log_count_path = ""        # imported there, not published
    theirs = importlib.import_module("algorithms.fedavg.train_pacs_GA")
    training = importlib.import_module("utils.trainval_func")

    def built(*args):
        net = network()
        net.load_state_dict(copy.deepcopy(start))
        return net, None

    loaders = {k: {s: batches(*xy, SETTINGS["batch_size"]) for s, xy in v.items()} for k, v in data.items()}
    loaders["s"] = dict(test=loaders["p"]["val"])
    sources = MagicMock(train_domain_list=list(data))
    sources.GetData.return_value = loaders, None
    training.GetNetwork, theirs.PACS_FedDG = built, lambda **kw: sources
    theirs.Gen_Log_Dir = lambda *a, **kw: ("", "")
    theirs.Get_Logger = theirs.Save_Hyperparameter = theirs.SaveCheckPoint = MagicMock()
    average, seen = theirs.FedAvg, []

    def recorded(models, weights, net):
        average(models, weights, net)
        state = {k: v.tolist() for k, v in net.state_dict().items() if v.ndim}
        seen.append(dict(weights={k: float(w) for k, w in weights.items()}, model=state))

    theirs.FedAvg = recorded
    given = {"test_domain": "s", "num_classes": 3, "fair": fair} | SETTINGS
    sys.argv = ["ga", *(str(a) for k, v in given.items() for a in (f"--{k}", v))]
    try: theirs.main()
    finally: theirs.FedAvg = average
    return seen


if __name__ == "__main__":
    (data, start), where = inputs(), sys.argv[1]
    numbers = lambda v: v.tolist() if torch.is_tensor(v) else v
    out = dict(source=SOURCE, settings=SETTINGS, start={k: v.tolist() for k, v in start.items()},
               data={k: {s: [*map(numbers, xy)] for s, xy in v.items()} for k, v in data.items()},
               rounds={fair: run(where, fair, data, start) for fair in ("acc", "loss")})
    FILE.write_text(json.dumps(out) + "\n")
