"""Golden numbers of MOON, FedNTD and FedDecorr from public implementations.

`python tests/golden/contrast.py CHECKOUTS`, a folder with the checkouts Lee-Gihun/FedNTD (be00ee5),
WwZzz/easyFL (ea07f1d) and bytedance/FedDecorr (973e4af), each as owner+name; writes moon.json, fedntd.json
and feddecorr.json beside this file. Their code runs as it is.
"""
import importlib, json, sys, types
from pathlib import Path
import torch

HERE = Path(__file__).parent


def load(path):
    "A module from a file, in a package that stands for its folder (whose own __init__ wants a server)."
    name = path.parts[-2]
    package = sys.modules.setdefault(name, types.ModuleType(name))
    package.__path__ = [str(path.parent)]
    return importlib.import_module(f"{name}.{path.stem}")


def draw(seed, *shape): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def with_gradient(f, x):
    "(value, gradient) of a scalar function, as lists."
    x = x.clone().requires_grad_()
    value = f(x)
    value.backward()
    return value.item(), x.grad.tolist()


def moon(root):
    sys.path.insert(0, str(root/"WwZzz+easyFL"))
    flgo = load(root/"WwZzz+easyFL/resources/algorithm/moon.py")
    ntd = load(root/"Lee-Gihun+FedNTD/algorithms/moon/criterion.py")
    z, near, far, logits = draw(1, 5, 7), draw(2, 5, 7), draw(3, 5, 7), draw(4, 5, 3)
    y = [0, 2, 1, 1, 0]
    value, gradient = with_gradient(lambda v: flgo.model_contrastive_loss(v, near, far, .5), z)
    whole = ntd.ModelContrastiveLoss(mu=.7, tau=.3)(logits, torch.tensor(y), z, far, near).item()
    return dict(z=z.tolist(), near=near.tolist(), far=far.tolist(), logits=logits.tolist(), y=y,
                flgo=dict(tau=.5, value=value, gradient=gradient), fedntd=dict(mu=.7, tau=.3, value=whole))


def fedntd(root):
    theirs = load(root/"Lee-Gihun+FedNTD/algorithms/fedntd/criterion.py")
    logits, teacher, y, out = draw(5, 6, 4), draw(6, 6, 4), [0, 3, 1, 1, 2, 0], []
    for tau, beta in ((1., 1.), (3., .5)):
        loss = theirs.NTD_Loss(num_classes=4, tau=tau, beta=beta)
        value, gradient = with_gradient(lambda v: loss(v, torch.tensor(y), teacher), logits)
        out.append(dict(tau=tau, beta=beta, value=value, gradient=gradient))
    return dict(logits=logits.tolist(), teacher=teacher.tolist(), y=y, losses=out)


def feddecorr(root):
    theirs = load(root/"bytedance+FedDecorr/loss.py")
    z = draw(7, 12, 5) @ draw(8, 5, 5)
    value, gradient = with_gradient(theirs.FedDecorrLoss(), z)
    return dict(z=z.tolist(), value=value, gradient=gradient)


SOURCES = dict(moon="WwZzz/easyFL ea07f1d, resources/algorithm/moon.py: model_contrastive_loss; "
                    "Lee-Gihun/FedNTD be00ee5, algorithms/moon/criterion.py: ModelContrastiveLoss",
               fedntd="Lee-Gihun/FedNTD be00ee5, algorithms/fedntd/criterion.py: NTD_Loss",
               feddecorr="bytedance/FedDecorr 973e4af, loss.py: FedDecorrLoss")

if __name__ == "__main__":
    for key, source in SOURCES.items():
        made = dict(source=source) | globals()[key](Path(sys.argv[1]))
        (HERE/f"{key}.json").write_text(json.dumps(made) + "\n")
