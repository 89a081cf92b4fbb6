"""Style: golden numbers of ELCFS, HarmoFL, CCST and FedFA; HarmoFL's layer; VGG's weights from disk."""
import torch
from torch import nn
from fdgnb.federation.loop import Client
from fdgnb.methods import style
from fdgnb.settings import Settings
from golden.replay import read
from golden.style import SPECTRA, filled, inputs
from bars import short

GOLDEN = read("style")["found"]
V = inputs()


def near(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=ours.dtype), rtol=0, atol=atol)


def test_golden_spectra():
    "ELCFS's interpolation, and HarmoFL's normalization, which is the same with all of the other amplitude."
    def restyle(i, share, weight):
        low = style.amplitudes(V["other"], share)[i:i + 1]
        return style.with_amplitudes(V["x"][i:i + 1], low, share, weight)[0]
    for i, (share, own) in enumerate(SPECTRA): near(restyle(i, share, 1 - own), GOLDEN["elcfs"][i])
    for share, there in zip((0., .3, .5), GOLDEN["harmofl"]["normalized"]): near(restyle(0, share, 1.), there, 1e-6)
    there = torch.fft.fftshift(torch.tensor(GOLDEN["harmofl"]["running"]), dim=(-2, -1))
    near(style.amplitudes(V["x"], .5).mean(0).float(), there[:, 1:], 1e-5)          # the square of 5 x 5 of 6 x 5


def test_golden_channel_styles():
    "CCST's pooled style and AdaIN; FedFA's layer with a variance per channel, as its equations have it."
    there = torch.tensor(GOLDEN["ccst"]["style"], dtype=torch.float64)[None]
    near(style.pool_style(V["maps"].split(3), 1e-5), there, 1e-6)
    near(style.with_style(V["maps"].flip(0)**2, there, 1e-5), GOLDEN["ccst"]["restyled"])
    redrawn = style.redraw_styles(style.channel_style(V["maps"], 1e-6), V["v"], V["noise"])
    near(style.with_style(V["maps"], redrawn, 1e-6), GOLDEN["fedfa"]["out"])
    near(style.vary_over_clients([{"0": s} for s in V["clients"]])["0"], GOLDEN["fedfa"]["v"])
    apart = style.vary_over_clients([{"0": torch.tensor([[0., k], [1., 1]])} for k in range(3)])["0"]
    assert apart.tolist() == [[0, 1], [0, 0]]


class Powers(style.HarmoFL):
    "The loss is the sum of the fourth powers."
    def loss(self, model, x, y, client): return model.w.pow(4).sum()


def harmo_step(w, lr, **settings):
    net, client = nn.Module(), Client("a", {}, Settings(lr=lr, **settings))
    net.w = nn.Parameter(w.clone())
    client.optimizer = torch.optim.SGD([net.w], lr=lr)
    Powers(harmo_alpha=.25).step(net, None, None, client)
    return net.w.detach()


def test_golden_step_of_harmofl_and_with_a_clipped_gradient():
    "What is clipped is the gradient at the perturbed weights."
    near(harmo_step(V["w"], .5), GOLDEN["harmofl"]["step"])
    slope = 4*V["w"]**3
    worst = 4*(V["w"] + .25*slope/slope.norm())**3
    near(harmo_step(V["w"], .5, clip=.2), V["w"] - .5*worst*.2/worst.norm(), 1e-5)


def blank():
    "Encoder and decoder with room for weights, without drawing any."
    with torch.device("meta"): nets = style.vgg_encoder(), style.vgg_decoder()
    return [net.to_empty(device="cpu") for net in nets]


def test_golden_vgg_and_its_weights_from_disk(tmp_path, monkeypatch):
    "The authors' layers under the authors' numbers, so that their files fit; layers that nobody needs are left out."
    (vgg, decoder), there = map(filled, blank()), GOLDEN["ccst"]
    assert [*vgg.state_dict(), *decoder.state_dict()] == there["keys"]
    with torch.no_grad():
        z = vgg(torch.linspace(0, 1, 3*20*12, dtype=torch.float64).reshape(1, 3, 20, 12))
        out = decoder(z)
    for ours, (shape, some), every in ((z, there["z"], 199), (out, there["out"], 37)):
        assert list(ours.shape) == shape
        near(ours.flatten()[::every], some, 1e-9)
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    for net, name in zip((vgg, decoder), style.FILES):
        torch.save(net.float().state_dict() | {"99.bias": torch.zeros(512)}, tmp_path/name)
    a, b = (short("ccst", ccst_space=space, ccst_k=2).fed.server for space in ("vgg", "pixels"))
    assert a.state["stats.ccst.bank.b"].shape == (1, 2, 512)
    assert any(not torch.equal(v, b.model[k]) for k, v in a.model.items())
