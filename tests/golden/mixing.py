"""Golden numbers of the mixing methods: what the authors' functions give on small fixed inputs.

    python tests/golden/mixing.py FEDDG_GA FEDBR VHL

FEDDG_GA: MediaBrain-SJTU/FedDG-GA; FEDBR: LINs-lab/FedBR; VHL: wizard1203/VHL, at the commits below. FedBR's
module imports more than is needed here (torchvision among it): dummies stand for that.
"""
import importlib.util, json, sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock
import torch
from torch import nn

FILE = Path(__file__).with_suffix(".json")
SOURCES = dict(
    am=dict(repository="MediaBrain-SJTU/FedDG-GA", commit="8d03a24a2af2155dc0b8978afacfdb659146bf62",
            function="FFT2_Amp_MixUp of data/Fourier_Aug.py"),
    fedmix=dict(repository="LINs-lab/FedBR", commit="6c4c5395c08a73bbb5f453535d3d29581032e471",
                function="FedMix.update of fedbr/algorithms.py"),
    vhl=dict(repository="wizard1203/VHL", commit="c5aa7a1fb0581e5f567183b7af49d449dabf6ce9",
             function="SupConLoss of loss_fn/losses.py"))


def inputs():
    "Numbers in eighths: images, their partners, logits' weights, features, labels."
    g = torch.Generator().manual_seed(11)
    eighths = lambda *s: torch.randint(-8, 9, s, generator=g).double()/8
    return dict(x=eighths(3, 2, 5, 4), other=eighths(3, 2, 5, 4), a=eighths(4, 6), b=eighths(3, 4),
                rows=eighths(4, 6), means=eighths(4, 6), z=eighths(8, 3))


VHL_NEEDS = "utils", "utils.data_utils", "loss_fn", "loss_fn.ot"
LABELS = dict(rows=[0, 2, 1, 2], z=[0, 0, 1, 2, 1, 0, 3, 2])
SOFT = [[.5, .25, .25], [0., 1., 0.], [.125, .375, .5], [.25, .25, .5]]


def module(checkout, *path, dummies=()):
    "A module of a checkout, by its file; `dummies`: what it imports and need not be there."
    for name in dummies: sys.modules[name] = MagicMock()
    spec = importlib.util.spec_from_file_location("theirs_" + path[-1][:-3], Path(checkout, *path))
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    return theirs


def fedmix(theirs, v, n):
    "Loss and gradient of the first weight of one update on `n` samples."
    net = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    net[0].weight.data, net[2].weight.data = v["a"].clone(), v["b"].clone()
    me = SimpleNamespace(predict=net, optimizer=SimpleNamespace(zero_grad=net.zero_grad, step=lambda: None))
    batches = [(v["rows"][:n], torch.tensor(LABELS["rows"][:n]))]
    means = [(v["means"][i:i + 1], SOFT[i]) for i in range(n)]
    loss = theirs.FedMix.update(me, batches, means)["loss"]
    return dict(n=n, loss=loss, gradient=net[0].weight.grad.tolist())


def main(feddg_ga, fedbr, vhl):
    torch.set_default_dtype(torch.float64)
    v = inputs()
    amplitude = module(feddg_ga, "data", "Fourier_Aug.py").FFT2_Amp_MixUp
    dummies = "fedbr", "fedbr.networks", "fedbr.lib", "fedbr.lib.misc", "fedbr.losses"
    mixes = module(fedbr, "fedbr", "algorithms.py", dummies=dummies)
    losses = module(vhl, "loss_fn", "losses.py", dummies=VHL_NEEDS)
    contrast = losses.SupConLoss("all", base_temperature=.07, device="cpu")
    z = nn.functional.normalize(v["z"], dim=1).unsqueeze(1)
    mixes_of = lambda i, lam: amplitude(v["x"][i], v["other"][i], lam).tolist()
    found = dict(am=[mixes_of(i, lam) for i, lam in enumerate((.25, .5, .9))],
                 fedmix=[fedmix(mixes, v, n) for n in (1, 4)],
                 vhl=float(contrast(z, torch.tensor(LABELS["z"]), temperature=.07)))
    FILE.write_text(json.dumps(dict(sources=SOURCES, torch=torch.__version__, found=found), indent=1) + "\n")


if __name__ == "__main__": main(*sys.argv[1:])
