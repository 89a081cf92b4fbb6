"""Style: beside the authors' functions, in sums, resumed."""
import json
from pathlib import Path
import pytest
import torch
import fdgnb
from torch import nn
from fdgnb.core import FdgnbError
from fdgnb.methods import style
from conftest import bits, one_line, run, same_bits
from golden.style import SPECTRA, filled, inputs

GOLDEN = json.loads((Path(__file__).parent/"golden"/"style.json").read_text())["found"]
NAMES = ("elcfs", "harmofl", "ccst", "fedfa")
V = inputs()


def near(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=ours.dtype), rtol=0, atol=atol)


def check_spectra(f):
    "ELCFS's interpolation and HarmoFL's normalization, which is the same with all of the other amplitude."
    low = lambda share, i: style.amplitudes(V["other"], share)[i:i + 1]
    for i, (share, own) in enumerate(SPECTRA):
        near(f(V["x"][i:i + 1], low(share, i), share, 1 - own)[0], GOLDEN["elcfs"][i])
    for share, there in zip((0., .3, .5), GOLDEN["harmofl"]["normalized"]):
        near(f(V["x"][:1], low(share, 0), share)[0], there, 1e-6)                        # theirs in float32


def check_amplitudes(f):
    "With an integer momentum HarmoFL's running amplitude is the first batch's mean for good."
    there = torch.fft.fftshift(torch.tensor(GOLDEN["harmofl"]["running"]), dim=(-2, -1))
    near(f(V["x"], .5).mean(0).float(), there[:, 1:].tolist(), 1e-5)          # the square of 5 x 5 of 6 x 5


def check_style(f): near(f(V["maps"].flip(0)**2, pooled(), 1e-5), GOLDEN["ccst"]["restyled"])


def pooled(f=style.pool_style): return torch.tensor(GOLDEN["ccst"]["style"], dtype=torch.float64)[None]


def check_pooled(f): near(f(V["maps"].split(3), 1e-5)[0], GOLDEN["ccst"]["style"], 1e-6)


def check_redrawn(f):
    "FedFA's layer with a variance per channel, as its equations have it."
    s = style.channel_style(V["maps"], 1e-6)
    near(style.with_style(V["maps"], f(s, V["v"], V["noise"]), 1e-6), GOLDEN["fedfa"]["out"])


def check_over_clients(f):
    "With one channel the released variance, over clients and channels at once, is the right one."
    near(f([{"0": s} for s in V["clients"]])["0"], GOLDEN["fedfa"]["v"])
    apart = f([{"0": torch.tensor([[0., k], [1., 1]])} for k in range(3)])["0"]
    assert apart.tolist() == [[0, 1], [0, 0]]


def check_fast(f):
    "The two-level gradient in one weight, by hand: w^2 inside, (w')^3 outside, w' = w - b 2w."
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(3., dtype=torch.float64))
        def forward(self, x): return x*self.w
    for second, slope in ((True, 3*(3 - .1*6)**2*(1 - .2)), (False, 3*(3 - .1*6)**2)):
        net = One()
        outer = style.judge(net, f(net.w**2, net, .1, 100., second), 1.)**3
        assert outer.item() == pytest.approx((3 - .1*6)**3)
        assert torch.autograd.grad(outer, net.w)[0].item() == pytest.approx(slope)
    assert f(net.w**2, net, .1, 4., True)["w"].item() == pytest.approx(3 - .1*4)


def check_drawn(f):
    "Rows stay with their owner, and each row of an owner comes."
    bank = [torch.full((n, 1), float(i)) + torch.arange(n)[:, None]/10 for i, n in enumerate((1, 4, 2))]
    who = torch.arange(3).repeat(100)
    rows = f(bank, who, torch.Generator().manual_seed(0)).flatten()
    assert torch.equal(rows.long(), who) and len(rows.unique()) == 7


CHECKS = {"with_amplitudes": check_spectra, "amplitudes": check_amplitudes, "with_style": check_style,
          "pool_style": check_pooled, "redraw_styles": check_redrawn, "vary_over_clients": check_over_clients,
          "fast_weights": check_fast, "draw_rows": check_drawn}


@pytest.mark.parametrize("name", CHECKS)
def test_formula(name): CHECKS[name](getattr(style, name))


def test_one_variance_for_all_channels_would_make_the_clients_vanish():
    "The released code's defect: what is drawn does not depend on the variance, if channels share it."
    s = style.channel_style(V["maps"], 1e-6)
    a, b = (style.redraw_styles(s, torch.full((2, 3), v, dtype=torch.float64), V["noise"]) for v in (.01, 9.))
    torch.testing.assert_close(a, b)
    assert (style.redraw_styles(s, V["v"], V["noise"]) - a).abs().max() > .005


def one_step(cls, w, **hyper):
    "The weights after one step of HarmoFL down the sum of the fourth powers."
    class Powers(cls):
        def loss(self, model, x, y, client): return model.w.pow(4).sum()
    net = nn.Module()
    net.w = nn.Parameter(w.clone())
    who = fdgnb.federation.loop.Client("a", {}, fdgnb.settings.Settings(lr=.5))
    who.optimizer = torch.optim.SGD([net.w], lr=.5)
    Powers(**hyper).step(net, None, None, who)
    return net.w.detach()


def test_perturbed_step():
    near(one_step(style.HarmoFL, V["w"], harmo_alpha=.25), GOLDEN["harmofl"]["step"])


def blank():
    "Encoder and decoder with room for weights, without drawing any."
    with torch.device("meta"): nets = style.vgg_encoder(), style.vgg_decoder()
    return [net.to_empty(device="cpu") for net in nets]


def test_vgg_and_decoder():
    "The authors' layers under the authors' numbers, so that their files fit."
    (vgg, decoder), there = blank(), GOLDEN["ccst"]
    assert [*vgg.state_dict(), *decoder.state_dict()] == there["keys"]
    with torch.no_grad():
        z = filled(vgg)(torch.linspace(0, 1, 3*20*12, dtype=torch.float64).reshape(1, 3, 20, 12))
        out = filled(decoder)(z)
    for ours, (shape, some), every in ((z, there["z"], 199), (out, there["out"], 37)):
        assert list(ours.shape) == shape
        near(ours.flatten()[::every], some, 1e-9)


def test_weights_from_disk(tiny, tmp_path, monkeypatch):
    "Files in the folder of weights are used, with layers that nobody needs left out; without them: refused."
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    with pytest.raises(FdgnbError, match="no weights file vgg_normalised.pth") as e:
        run("ccst", tiny, ccst_space="vgg")
    assert one_line(e)
    for net, name, more in zip(blank(), style.FILES, (1, 0)):
        spare = {"33.bias": torch.zeros(512)} if more else {}
        torch.save(filled(net).float().state_dict() | spare, tmp_path/name)
    a, b = (run("ccst", tiny, rounds=1, ccst_space=s, ccst_k=2, local_steps=1) for s in ("vgg", "pixels"))
    assert a.fed.server.state["stats.ccst.bank.optical"].shape == (1, 2, 512) and bits(a) != bits(b)


def test_same_bits(monkeypatch, tiny, tmp_path): same_bits(monkeypatch, tmp_path, "ccst+fedfa", tiny)


@pytest.mark.parametrize("name,kind", [("elcfs", "images"), ("ccst", "stats")])
def test_a_client_that_comes_late_is_sent_the_bank(name, kind, tiny):
    "One client of three per round: each is sent the others' styles the first time it takes part, only then."
    book = run(name, tiny, rounds=6, per_round=1).ledger
    down = book[(book.kind == kind) & (book.direction == "down")]
    met = book[(book.kind == "model") & (book.direction == "up")].groupby("client")["round"].min()
    assert down.groupby("client")["round"].apply(list).to_dict() == {k: [r] for k, r in met.items()}


def test_the_unseen_client_gets_the_amplitude_and_it_stays(tiny):
    "HarmoFL's mean amplitude is the same in every round and in the network for the target."
    first, last = (run("harmofl", tiny, rounds=r) for r in (1, 3))
    mean = lambda r: r.model.state_dict()["features.harmofl.mean"]
    assert torch.equal(mean(first), mean(last)) and mean(last).shape == (3, 28, 28)


@pytest.mark.parametrize("name", ["elcfs", "harmofl", "ccst", "fedfa"])
def test_vectors_are_refused(name):
    x, y = torch.arange(240.).reshape(40, 6)/240, torch.arange(40) % 2
    data = fdgnb.from_arrays(dict(a=(x, y), b=(x + 1, y)))
    with pytest.raises(FdgnbError, match=name) as e:
        fdgnb.fit(name, data, "b", 1, backbone="mlp2", progress=False)
    assert one_line(e)
