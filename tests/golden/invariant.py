"""Golden numbers of the invariant-feature methods: what the authors' updates do to a small network.

    python tests/golden/invariant.py DOMAINBED FEDSR FEDIIR

DOMAINBED: facebookresearch/DomainBed; FEDSR: atuannguyen/FedSR; FEDIIR: YamingGuo98/FedIIR, at the commits
below. The classes alone are taken out of their files; an object with the few things that an update reads
stands for their networks, with plain SGD.
"""
import ast, copy, json, sys
from pathlib import Path
from types import MethodType, SimpleNamespace
from unittest.mock import MagicMock
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FILE = Path(__file__).with_suffix(".json")
BED = dict(repository="facebookresearch/DomainBed", commit="b93c22a1cfc3b2428398272c1a116c8de1f4139e")
SOURCES = dict(
    dann=BED | dict(function="AbstractDANN.update of domainbed/algorithms.py: D's turn, the network's"),
    rsc=BED | dict(function="RSC.update of domainbed/algorithms.py"),
    fedsr=dict(repository="atuannguyen/FedSR", commit="ba8d894a90fab9da3d62cce570bc8fe17a312a2d",
               function="Model.train_client of src/methods/FedSR.py"),
    fediir=dict(repository="YamingGuo98/FedIIR", commit="3e7a785e30002ac75d9b3575e3e9062d8e22ea42",
                function="FedIIR.mean_grad, update of domainbed/algorithms.py"))
LR, LAM, GAMMA, EMA, L2R, CMI, BATCH = .5, .25, .5, .75, .125, .25, 4


def filled(net, seed):
    "The network with weights in eighths."
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters(): p.data = torch.randint(-8, 9, p.shape, generator=g).double()/8
    return net.double()


def parts():
    "Features and classifier, a discriminator, and an encoder's last layer."
    features, head = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 3)
    D = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    return [filled(v, i) for i, v in enumerate((features, head, D, nn.Linear(3, 6)))]


def inputs():
    "Two clients of two batches of four samples, and the noise of a drawn representation."
    g = torch.Generator().manual_seed(21)
    x = torch.randint(-8, 9, (2, 2*BATCH, 4), generator=g).double()/8
    y = torch.randint(3, (2, 2*BATCH), generator=g)
    noise = torch.randn(2*BATCH, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    return x, y, noise.double()


def taken(path, name, **room):
    "A class of a file, without its parents and the rest of the file."
    room |= dict(np=np, torch=torch, nn=nn, F=F, autograd=torch.autograd, distributions=torch.distributions)
    tree = ast.parse(Path(path).read_text())
    tree.body = [d for d in tree.body if getattr(d, "name", None) == name]
    tree.body[0].bases = []
    exec(compile(tree, "theirs", "exec"), room)
    return room[name]


def sgd(*nets): return torch.optim.SGD([p for net in nets for p in net.parameters()], lr=LR)


def weights(*nets): return [p.tolist() for net in nets for p in net.parameters()]


def dann(theirs, x, y):
    "Client 1 of two: D's step, then the network's, on one batch."
    features, head, D, _ = parts()
    h = dict(grad_penalty=0., d_steps_per_g_step=1)
    me = SimpleNamespace(featurizer=features, classifier=head, discriminator=D, conditional=False,
                         class_balance=False, hparams=h | {"lambda": LAM}, update_count=torch.tensor([1]),
                         disc_opt=sgd(D), gen_opt=sgd(features, head))
    for _ in range(2): theirs.update(me, [(x[0][:0], y[0][:0]), (x[1], y[1])])
    return weights(features, head, D)


def rsc(theirs, x, y):
    "One step."
    features, head, _, _ = parts()
    me = SimpleNamespace(featurizer=features, classifier=head, drop_f=100*2/3, drop_b=100*2/3, num_classes=3,
                         optimizer=sgd(features, head))
    theirs.update(me, [(x[0], y[0])])
    return weights(features, head)


def fedsr(theirs, x, y, noise):
    "Two steps on one batch with the same noise."
    features, head, _, code = parts()
    def featurize(x, return_dist):
        mu, raw = code(features(x)).chunk(2, 1)
        sigma = F.softplus(raw)
        return mu + sigma*noise, (mu, sigma)
    r = nn.ParameterList([torch.zeros(3, 3), torch.ones(3, 3), torch.ones([])])
    me = SimpleNamespace(train=lambda: None, device="cpu", featurize=featurize, cls=head, L2R_coeff=L2R,
                         CMI_coeff=CMI, r_mu=r[0], r_sigma=r[1], C=r[2], optim=sgd(features, code, head, r))
    theirs.train_client(me, [(x[0], y[0])], steps=2)
    return weights(features, code, head, r)


def fediir(theirs, x, y):
    "One round of two clients: the mean gradient and each client's weights."
    features, head, _, _ = parts()
    me = SimpleNamespace(device="cpu", featurizer=features, classifier=head,
                         hparams=dict(ema=EMA, penalty=GAMMA), global_epoch=0,
                         grad_mean=tuple(torch.zeros_like(p) for p in head.parameters()))
    def create_client():
        me.featurizer_client, me.classifier_client = copy.deepcopy(features), copy.deepcopy(head)
        me.optimizer_client = sgd(me.featurizer_client, me.classifier_client)
    ended = []
    me.create_client, me.aggregation_client = create_client, ended.extend
    me.mean_grad = MethodType(theirs.mean_grad, me)
    theirs.update(me, [(k, list(zip(x[k].split(BATCH), y[k].split(BATCH)))) for k in range(2)], 1)
    return dict(mean=[g.tolist() for g in me.grad_mean],
                clients=[[v.tolist() for state in pair for v in state.values()] for pair in ended])


def main(bed, sr, iir):
    torch.set_default_dtype(torch.float64)
    x, y, noise = inputs()
    found = dict(dann=dann(taken(Path(bed)/"domainbed"/"algorithms.py", "AbstractDANN"), x, y),
                 rsc=rsc(taken(Path(bed)/"domainbed"/"algorithms.py", "RSC"), x, y),
                 fedsr=fedsr(taken(Path(sr)/"src"/"methods"/"FedSR.py", "Model", AverageMeter=MagicMock),
                             x, y, noise),
                 fediir=fediir(taken(Path(iir)/"domainbed"/"algorithms.py", "FedIIR"), x, y))
    FILE.write_text(json.dumps(dict(sources=SOURCES, torch=torch.__version__, found=found), indent=1) + "\n")


if __name__ == "__main__": main(*sys.argv[1:])
