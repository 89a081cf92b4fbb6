"""The input of style.json."""
import torch

SPECTRA = [(0., .75), (.3, .25), (.3, 0.)]                     # share of the side; the image's own weight


def inputs():
    "Numbers in eighths: images and their partners, feature maps, clients' statistics, noise, weights."
    g = torch.Generator().manual_seed(12)

    def eighths(*shape):
        return torch.randint(-8, 9, shape, generator=g).double()/8

    return dict(x=eighths(3, 2, 6, 5), other=eighths(3, 2, 6, 5), maps=eighths(4, 3, 4, 3),
                v=eighths(2, 3).abs() + .125, clients=eighths(4, 2, 1), noise=eighths(4, 2, 3), w=eighths(5))


def filled(net):
    "The network with numbers in sixty-fourths for weights; its output has a size of about one."
    g = torch.Generator().manual_seed(13)
    for p in net.parameters():
        p.data = torch.randint(-8, 9, p.shape, generator=g).double()/8/p[0].numel()**.5
    return net.double()
