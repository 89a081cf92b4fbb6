"""The input of mixing.json."""
import torch

LABELS = dict(rows=[0, 2, 1, 2], z=[0, 0, 1, 2, 1, 0, 3, 2])
SOFT = [[.5, .25, .25], [0., 1., 0.], [.125, .375, .5], [.25, .25, .5]]


def inputs():
    "Numbers in eighths: images, their partners, logits' weights, features, labels."
    g = torch.Generator().manual_seed(11)

    def eighths(*shape):
        return torch.randint(-8, 9, shape, generator=g).double()/8

    return dict(x=eighths(3, 2, 5, 4), other=eighths(3, 2, 5, 4), a=eighths(4, 6), b=eighths(3, 4),
                rows=eighths(4, 6), means=eighths(4, 6), z=eighths(8, 3))
