"""The input of invariant.json."""
import torch
from torch import nn

LR, LAM, GAMMA, EMA, L2R, CMI, BATCH = .5, .25, .5, .75, .125, .25, 4


def filled(net, seed):
    "The network with weights in eighths."
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.data = torch.randint(-8, 9, p.shape, generator=g).double()/8
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


def sgd(*nets):
    return torch.optim.SGD([p for net in nets for p in net.parameters()], lr=LR)
