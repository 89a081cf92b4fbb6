"""Golden numbers of released losses: MOON, FedNTD, FedDecorr, AM, FedMix and VHL; Mixup's labels; constant features."""
import pytest
import torch
import torch.nn.functional as F
from fdgnb.core import generator
from fdgnb.methods import contrast, mixing
from golden.mixing import LABELS, SOFT, inputs
from golden.replay import exact, read


def near(ours, theirs, atol=1e-12): torch.testing.assert_close(ours.detach(), exact(theirs), rtol=0, atol=atol)


def check(loss, x, value, gradient, atol=1e-12):
    "A loss and its gradient in x are those of other code."
    x = x.clone().requires_grad_()
    found = loss(x)
    found.backward()
    near(found, value, atol)
    near(x.grad, gradient, atol)


def test_golden_moon():
    g = read("moon")
    z, near_to, far, logits = (exact(g[k]) for k in ("z", "near", "far", "logits"))
    flgo, ntd = g["flgo"], g["fedntd"]
    check(lambda z: contrast.model_contrast(z, near_to, far, flgo["tau"]), z, flgo["value"], flgo["gradient"])
    whole = F.cross_entropy(logits, torch.tensor(g["y"]))
    near(whole + ntd["mu"]*contrast.model_contrast(z, near_to, far, ntd["tau"]), ntd["value"])


def test_golden_fedntd():
    g = read("fedntd")
    teacher, y = exact(g["teacher"]), torch.tensor(g["y"])
    for case in g["losses"]:
        loss = lambda v: F.cross_entropy(v, y) + case["beta"]*contrast.not_true_distillation(v, teacher, y, case["tau"])
        check(loss, exact(g["logits"]), case["value"], case["gradient"])


def test_golden_feddecorr():
    "The authors' code is our released form; the printed form is about a batch size smaller."
    g = read("feddecorr")
    z = exact(g["z"])
    N, d = z.shape
    check(contrast.released_decorrelation, z, g["value"], g["gradient"], 1e-5)
    near(contrast.decorrelation(z), g["value"]*N/(N - 1)**2*(d - 1)/d + 1/d, 1e-6)


@pytest.mark.parametrize("z", [torch.zeros(6, 4), torch.ones(1, 4), torch.eye(6, 4)])
def test_decorrelation_of_constant_features_is_finite(z):
    for loss in (contrast.decorrelation, contrast.released_decorrelation):
        z = z.detach().clone().requires_grad_()
        loss(z).backward()
        assert z.grad.isfinite().all()


def test_golden_mixing():
    "Of FedMix's loss with one sample the released code is ours; with four, its third term is a quarter of ours."
    v, g = inputs(), read("mixing")["found"]
    for x, other, own, there in zip(v["x"], v["other"], (.25, .5, .9), g["am"]):
        near(mixing.amplitude_mix(x, other, 1 - own), there)
    for there in g["fedmix"]:
        n = there["n"]
        def loss(a):
            net = lambda x: (x @ a.T).tanh() @ v["b"].T
            y = torch.tensor(LABELS["rows"][:n])
            return mixing.fedmix_loss(net, v["rows"][:n], y, v["means"][:n]/n, exact(SOFT)[:n], .1)
        check(loss, v["a"], there["loss"], there["gradient"])
    near(mixing.supervised_contrast(v["z"], torch.tensor(LABELS["z"]), .07), g["vhl"], 1e-10)


def test_mixup_mixes_images_and_labels_alike():
    "Of samples that are their own one-hot labels the mixed ones are the mixed labels, with one weight per batch."
    x, y = mixing.Mixup().batch(torch.eye(6), torch.arange(6), type("Client", (), dict(scratch={"mixup.classes": 6})),
                                generator(0))
    torch.testing.assert_close(x, y)
    others = x*(1 - torch.eye(6))
    assert len(others[others > 0].unique()) == 1
