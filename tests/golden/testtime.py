"""Golden numbers of Tent and BatchNorm re-estimation from their authors' code.

`python tests/golden/testtime.py CHECKOUTS`, a folder with the checkout DequanWang/tent (e9e926a) as
DequanWang+tent; writes tent.json and bnstats.json beside this file. Their code runs as it is.
"""
import json, sys
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent
numbers = lambda state: {k: v.tolist() for k, v in state.items()}


def network():
    "Convolution, BatchNorm, convolution, BatchNorm, classifier; float64."
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2),
                        nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()
    g = torch.Generator().manual_seed(1)
    for k, v in net.state_dict().items():
        if v.is_floating_point(): v.copy_(torch.rand(v.shape, generator=g).double() - .3*("running" not in k))
    return net


def batches():
    g = torch.Generator().manual_seed(2)
    return [torch.rand(5, 1, 4, 4, generator=g).double()*2 for _ in range(3)]


def tent(module):
    net = module.configure_model(network())
    params, _ = module.collect_params(net)
    model = module.Tent(net, torch.optim.Adam(params, lr=.01, betas=(.9, .999), weight_decay=0.))
    answers = [model(x).tolist() for x in batches()]
    return dict(lr=.01, answers=answers, end=numbers({k: v for k, v in net.named_parameters()}))


def bnstats(module):
    "Momentum 1: the statistics of the last batch."
    net = module.Norm(network().eval(), momentum=1., reset_stats=True)
    with torch.no_grad(): answers = net(batches()[0]).tolist()
    return dict(answers=answers, end=numbers(net.model.state_dict()))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1])/"DequanWang+tent"))
    import norm
    import tent as authors
    given = dict(start=numbers(network().state_dict()), batches=[x.tolist() for x in batches()])
    source = "DequanWang/tent e9e926a, "
    for key, made in dict(tent=tent(authors), bnstats=bnstats(norm)).items():
        where = dict(tent="tent.py: Tent", bnstats="norm.py: Norm, momentum 1")[key]
        (HERE/f"{key}.json").write_text(json.dumps(dict(source=source + where) | given | made) + "\n")
