"""Golden numbers of FedSB: the authors' local training and average over three rounds, in float64.

    python tests/golden/fedsb.py CHECKOUT

CHECKOUT: miladsoltany/FedSB at the commit below. Their `main` needs data on disk, so the few lines around the
two functions (each client trains, the average goes back to all) stand here; what is computed is theirs. What
main.py imports and does not need here (torchvision, wandb, DomainBed) is replaced by dummies, and
`Tensor.float` keeps float64, so that the average is not rounded.
"""
import copy, importlib, json, sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import MagicMock
import torch
from torch import nn

FILE = Path(__file__).with_suffix(".json")
SOURCE = dict(repository="miladsoltany/FedSB", commit="60cfd8a29bf9efae7c13b1030ca23ab506a31984",
              function="train_source, federated_averaging and LabelSmoothingCrossEntropy of main.py")
SETTINGS = dict(rounds=3, lr=.01, batch_size=8, budget=6, smoothing=.1, weight_decay=.001)
CLIENTS = dict(a=25, b=16, c=64)                # a: the last of four batches has one sample; c: more than S


def network():
    "Images of 2 x 6 x 6 to three classes, with BatchNorm over maps."
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*layers).double()


def inputs():
    "{client: (x, y)} in eighths, and the first weights with three decimals."
    g, data = torch.Generator().manual_seed(6), {}
    for k, n in CLIENTS.items():
        y = torch.randint(3, (n,), generator=g)
        x = torch.randint(-8, 9, (n, 2, 6, 6), generator=g).double()/8 + y.view(-1, 1, 1, 1)*.25
        data[k] = x, y
    return data, {k: (v*1000).round()/1000 for k, v in network().state_dict().items() if v.ndim}


def run(checkout, data, start, **changed):
    "The global model after each round."
    sys.path.insert(0, str(checkout))
    for name in ("wandb", "torchvision", "torchvision.models", "domainbed", "domainbed.lib",
                 "domainbed.hparams_registry", "domainbed.datasets", "torch.utils.model_zoo"):
        sys.modules[name] = MagicMock()
    torch.Tensor.float = torch.Tensor.double
    theirs = importlib.import_module("main")
    theirs.device = "cpu"
    how = SETTINGS | changed
    args = Namespace(num_source_epochs=1, weight_decay=how["weight_decay"], fedprox_mu=0.,
                     budget=how["budget"])
    criterion = theirs.LabelSmoothingCrossEntropy(how["smoothing"])
    loaders = [list(zip(x.split(how["batch_size"]), y.split(how["batch_size"]))) for x, y in data.values()]
    net = network()
    net.load_state_dict(start, strict=False)
    models, seen = [copy.deepcopy(net) for _ in data], []
    for _ in range(how["rounds"]):
        for model, loader in zip(models, loaders):
            theirs.train_source(args, dict(lr=how["lr"]), "source", model, criterion, loader)
        theirs.federated_averaging(args, net, models, None)
        for model in models: model.load_state_dict(net.state_dict())
        seen.append({k: v.tolist() for k, v in net.state_dict().items() if v.ndim})
    return seen


if __name__ == "__main__":
    data, start = inputs()
    out = dict(source=SOURCE, settings=SETTINGS, start={k: v.tolist() for k, v in start.items()},
               data={k: [x.tolist(), y.tolist()] for k, (x, y) in data.items()},
               rounds=run(sys.argv[1], data, start))
    FILE.write_text(json.dumps(out) + "\n")
