"""Style: beside the authors' functions, each hook by hand, in sums, resumed."""
import dataclasses, json, math
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import fdgnb
from torch import nn
from fdgnb import models
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.data.domain import scale_channels
from fdgnb.federation.compose import method_class
from fdgnb.methods import style
from fdgnb.vectors import digest, part
from conftest import bits, one_line, run, same_bits, says
from golden.style import SPECTRA, filled, inputs

GOLDEN = json.loads((Path(__file__).parent.parent/"golden"/"style.json").read_text())["found"]
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


def close(a, b, atol=1e-6): torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=atol)


# values

DEFAULTS = dict(elcfs=dict(elcfs_gamma=1., elcfs_beta=.001, elcfs_sent=1/8,
                           elcfs_share=.01, elcfs_mixed=True, elcfs_second=True),
                harmofl=dict(harmo_norm=True, harmo_share=.5, harmo_alpha=.05),
                ccst=dict(ccst_k=3, ccst_alpha=1., ccst_style="overall", ccst_space="pixels"),
                fedfa=dict(fa_p=.5, fa_momentum=.99))
NEUTRAL = dict(elcfs=dict(elcfs_gamma=0.), harmofl=dict(harmo_norm=False, harmo_alpha=0.),
               ccst=dict(ccst_k=1, ccst_alpha=0.), fedfa=dict(fa_p=0.))


@pytest.mark.parametrize("name", NAMES)
def test_defaults(name):
    hyper = dataclasses.asdict(method_class(name)().h)
    assert {k: v for k, v in hyper.items() if k != "variant"} == DEFAULTS[name]


def test_neutral_settings_are_fedavg_and_all_others_differ(tiny):
    theta = lambda name, **hyper: digest(run(name, tiny, rounds=1, local_steps=2, **hyper).fed.server.model)
    fedavg = theta("fedavg")
    for name, off in NEUTRAL.items(): assert theta(name, **off) == fedavg, name
    released = [theta(name, variant="released") for name in ("elcfs", "harmofl")]
    assert len({fedavg, *map(theta, NAMES), *released}) == 7


# the two splits

def test_amplitudes_of_the_image_itself_and_of_the_mean_color():
    g = generator(1)
    x, other = (torch.rand(3, 2, 6, 6, generator=g, dtype=torch.float64) for _ in range(2))
    swapped = style.with_amplitudes(x, style.amplitudes(other, 0), 0)
    close(swapped.mean((2, 3)), other.mean((2, 3)), 1e-9)
    close(style.with_amplitudes(x, style.amplitudes(x, .3), .3, .7), x, 1e-12)
    sides = [style.amplitudes(torch.rand(1, 1, n, n, generator=g), .01).shape[-1] for n in (28, 99, 100)]
    assert sides == [1, 1, 3]                                # a share of .01: below 100 pixels the mean color


def test_images_of_other_channels_are_refused():
    gray = SimpleNamespace(splits=dict(train=SimpleNamespace(shape=(1, 4, 4))))
    style.images_only("elcfs", gray)
    says(lambda: style.images_only("ccst", gray, 3), "ccst takes the style of images of 3 channels")


def test_epsilon_is_added_to_the_variance():
    g = generator(1)
    x, other = (3*torch.randn(4, 2, 5, 6, generator=g, dtype=torch.float64) + 1 for _ in range(2))
    restyled = style.with_style(x, style.channel_style(other, 0.), 0.)
    close(style.channel_style(restyled, 0.), style.channel_style(other, 0.), 1e-12)
    close(style.with_style(x, style.channel_style(x, .1), .1), x, 1e-12)
    close(style.channel_style(x, .1)[:, 1]**2, x.var((2, 3)) + .1)
    pooled = style.pool_style(x.split(3), 0.)
    close(style.pool_style([x], .1)[:, 1]**2, pooled[:, 1]**2 + .1, 1e-5)
    far = style.pool_style((x + 3000).float().split(3), 0.)                    # a mean a thousand deviations off
    close(far[:, 1], pooled[:, 1], 1e-3)


# ELCFS

@pytest.fixture(scope="module")
def elcfs(small): return run("elcfs", small, elcfs_share=.1)


def test_elcfs_sends_an_eighth_of_the_amplitudes_once(elcfs):
    sent, n = elcfs.ledger[elcfs.ledger.kind == "images"], 6*3*5*5*4           # bytes of a client's offer
    assert set(sent["round"]) == {1}
    assert sent.groupby("direction").bytes.sum().to_dict() == dict(up=4*n, down=4*3*n)
    fed, who = elcfs.fed, elcfs.fed.clients[0]
    assert {q.split(".")[0] for q in fed.method.download(fed.server, "blended")} == {"model"}
    first = torch.randperm(48, generator=who.rng("elcfs"))[:6]
    offer = lambda **h: style.ELCFS(**h).offer(elcfs.model, who)["images.elcfs.bank"]
    close(offer(elcfs_share=.1), style.amplitudes(who.take(first)[0], .1))
    assert len(offer(elcfs_sent=0.)) == 1


def elcfs_by_hand(net, who, x, y, form, beta):
    "(loss, gradient) of ELCFS's step with gamma one half; through the inner gradient: a Hessian times a vector."
    theta, bank = list(net.parameters()), [v for _, v in sorted(part(who.state, "images.elcfs").items())]
    rng = who.rng("elcfs.draw")
    low = style.draw_rows(bank, torch.randint(3, (12,), generator=rng), rng)
    lam = torch.rand(12, 1, 1, 1, generator=rng) if form == "paper" else 1.
    inner = F.cross_entropy(net(x), y)
    slopes = torch.autograd.grad(inner, theta, create_graph=True)
    for p, s in zip(theta, slopes): p.data -= beta*s.data
    outer = F.cross_entropy(net(style.with_amplitudes(x, low, .1, lam)), y)
    there = torch.autograd.grad(outer, theta)
    for p, s in zip(theta, slopes): p.data += beta*s.data
    if form == "paper":
        through = torch.autograd.grad(sum((s*v).sum() for s, v in zip(slopes, there)), theta)
        there = [v - beta*t for v, t in zip(there, through)]
    return (inner + .5*outer).item(), [s + .5*v for s, v in zip(slopes, there)]


@pytest.mark.parametrize("form", ["paper", "released"])
def test_elcfs_step_by_hand(elcfs, form):
    net, who = elcfs.model.train(), elcfs.fed.clients[0]
    for v in net.modules():
        if hasattr(v, "generator"): v.p = 0.                                          # no dropout
    x, y = who.take(torch.arange(12))
    m, bn = style.ELCFS(variant=form, elcfs_share=.1, elcfs_gamma=.5, elcfs_beta=.1), net.features.conv1.bn
    who.scratch = {}
    m.begin(net, who, {})
    before, found = bn.num_batches_tracked.item(), m.loss(net, x, y, who)
    assert bn.num_batches_tracked.item() == before + 1                              # its own images, once
    loss, slopes = elcfs_by_hand(net, who, x, y, form, .1)
    assert found.item() == pytest.approx(loss, abs=1e-5)
    for a, b in zip(torch.autograd.grad(found, list(net.parameters())), slopes): close(a, b, 1e-4)


# HarmoFL

def test_harmofl_sends_its_mean_once_and_keeps_it_out_of_uploads(tiny):
    r = run("harmofl", tiny)
    net, who = r.model, r.fed.clients[0]
    assert set(r.ledger[r.ledger.kind == "stats"]["round"]) == {1}
    who.scratch["loss"] = 0.
    sent = part(r.fed.method.upload(net, who), "model")
    assert set(net.state_dict()) - set(sent) == {"features.harmofl.mean"}


def test_harmofl_as_released_replaces_the_mean_color_alone(tiny):
    r = run("harmofl", tiny, variant="released")
    own = [c.take(torch.arange(c.n()))[0] for c in r.fed.clients]
    color = torch.stack([x.mean((2, 3)).abs().mean(0) for x in own]).mean(0)
    strange = r.fed.target_client.take(torch.arange(5), "target")[0]
    out = r.model.features.harmofl(strange)
    close(out.mean((2, 3)), color.expand(5, 3), 1e-5)
    close(out.std((2, 3)), strange.std((2, 3)), 1e-5)


def harmo_step(net, x, loss, clip=None, **hyper):
    "Two steps of HarmoFL with SGD, of any network and loss(network, x)."
    class Mine(style.HarmoFL):
        def loss(self, model, x, y, client): return loss(model, x)
    sgd = torch.optim.SGD(net.parameters(), lr=.1)
    who = SimpleNamespace(scratch={}, optimizer=sgd, settings=SimpleNamespace(clip=clip))
    return Mine(**hyper).step(net, x, None, who)


def test_harmofl_clips_the_gradient_at_the_perturbed_weights():
    net = nn.Module()
    net.w = nn.Parameter(torch.tensor([3., -1.]))
    loss = harmo_step(net, None, lambda net, x: net.w[0]**2 + net.w[1]**4, clip=.2, harmo_alpha=.5)
    a, b = 3 + .5*6/math.hypot(6, 4), -1 - .5*4/math.hypot(6, 4)
    cut = .2/math.hypot(2*a, 4*b**3)
    assert loss.item() == pytest.approx(10.)
    close(net.w.detach(), torch.tensor([3 - .1*cut*2*a, -1 - .1*cut*4*b**3]))


def test_both_passes_of_a_harmofl_step_share_their_dropout_masks():
    masks = []
    def loss(net, x):
        out = net(x)
        masks.append(out != 0)
        return out.square().sum()
    with seeded(0, "wet"): net = nn.Sequential(nn.Linear(2, 40), models.Dropout(.5)).train()
    models.set_generator(net, generator(1))
    for _ in range(2): harmo_step(net, torch.ones(3, 2), loss)
    assert [torch.equal(masks[i], masks[i + 1]) for i in range(3)] == [True, False, True]


# CCST

@pytest.fixture(scope="module")
def ccst_run(small): return run("ccst", small)


@pytest.fixture
def ccst(ccst_run):
    "(run, method, client, its samples) of a round that begins."
    r, m, who = ccst_run, style.CCST(), ccst_run.fed.clients[0]
    m.begin(r.model, who, {})
    return r, m, who, who.take(torch.arange(who.n()))


def test_ccst_sends_a_style_of_24_bytes_once(ccst_run):
    sent = ccst_run.ledger[ccst_run.ledger.kind == "stats"]
    assert set(sent["round"]) == {1}
    assert sent.groupby("direction").bytes.sum().to_dict() == dict(up=4*24, down=4*3*24)


def test_a_round_of_ccst_shows_each_image_in_three_planned_styles(ccst):
    r, m, who, _ = ccst
    names, seen = sorted(c.id for c in r.fed.clients[1:]), []
    pixels = {c.id: c.take(torch.arange(c.n()))[0].transpose(0, 1).flatten(1) for c in r.fed.clients}
    for idx in m.sample(who, who.rng("sample")):
        x, y = who.take(idx)
        rendered = m.batch(x, y, who, who.rng("batch"))[0]
        for i, image, raw, v in zip(idx.tolist(), rendered, x, who.scratch["ccst.view"].tolist()):
            seen.append((i, v))
            if v == 0: assert torch.equal(image, raw)
            elif raw.std((1, 2)).min() > .05:                                       # eps does not show
                close(image.mean((1, 2)), pixels[names[v - 1]].mean(1), 1e-4)
                close(image.std((1, 2)), pixels[names[v - 1]].std(1, correction=0), 2e-3)
    assert len(seen) == len(set(seen)) == 3*48 and {i for i, _ in seen} == set(range(48))


def test_ccst_plans_styles_once_and_takes_turns_with_local_steps(ccst, monkeypatch):
    r, m, who, _ = ccst
    plan, other = who.scratch["ccst.plan"], r.fed.clients[1]
    monkeypatch.setattr(who, "round", 7, raising=False)
    for c in (who, other): m.begin(r.model, c, {})
    assert [torch.equal(plan, c.scratch["ccst.plan"]) for c in (who, other)] == [True, False]
    monkeypatch.setattr(who, "settings", dataclasses.replace(who.settings, local_steps=5))
    views = [(idx, who.scratch["ccst.view"]) for idx in m.sample(who, who.rng("sample"))]
    assert [torch.equal(view, plan[idx, i % 3]) for i, (idx, view) in enumerate(views)] == [True]*5


def test_ccst_alpha_and_samples_that_another_method_chose(ccst):
    "A share alpha of the other style; without a plan for the batch the own style is as likely as any other."
    _, m, who, (x, y) = ccst
    x, y = x[:12], y[:12]
    who.scratch["ccst.view"] = who.scratch["ccst.plan"][:12, 0]
    restyle = lambda a: style.CCST(ccst_alpha=a).batch(x, y, who, who.rng("batch"))[0]
    close(restyle(.4), .4*restyle(1.) + .6*x, 1e-5)
    del who.scratch["ccst.view"]
    rng = who.rng("batch")
    plain = torch.stack([(m.batch(x, y, who, rng)[0] == x).all(3).all(2).all(1) for _ in range(100)])
    assert plain.float().mean().item() == pytest.approx(1/4, abs=3*math.sqrt(3/16/plain.numel()))


def test_ccst_single_styles(ccst):
    r, _, who, (x, _) = ccst
    single = style.CCST(ccst_style="single").offer(r.model, who)["stats.ccst.bank"]
    raw = x.numpy()
    close(single[:, 0], raw.mean((2, 3)), 1e-5)
    close(single[:, 1], np.sqrt(raw.var((2, 3), ddof=1) + 1e-5), 1e-4)


def test_ccst_images_come_back_in_their_size_and_scaling(monkeypatch):
    "With a coder that doubles and halves, and pads as VGG does; cut to what an image can be."
    with torch.device("meta"):
        z = style.vgg_encoder()(torch.empty(2, 3, 28, 28))
        assert (z.shape, style.vgg_decoder()(z).shape) == ((2, 512, 4, 4), (2, 3, 32, 32))
    x = torch.rand(2, 3, 4, 4, generator=generator(1))
    given = scale_channels(x, "imagenet")
    close(style.unscale(given, "imagenet"), x)
    pair = (lambda x: 2*x), (lambda z: F.pad(z/2, (0, 4, 0, 4)))
    monkeypatch.setattr(style, "coder", lambda folder, device: pair)
    who = SimpleNamespace(settings=SimpleNamespace(normalize="imagenet"), device="cpu")
    close(style.encode(given, "vgg", who), 2*x, 1e-5)
    for z, there in ((2*x, given), (2*x + 9, scale_channels(torch.ones_like(x), "imagenet"))):
        close(style.decode(z, given, "vgg", who), there, 1e-5)
    assert style.encode(given, "pixels", who) is given is style.decode(given, x, "pixels", who)


# FedFA

def redrawn_by_loops(s, v, noise):
    "FedFA's equations, one number at a time."
    n, _, C = s.shape
    out = np.empty(s.shape)
    for t in range(2):
        r = [v[t, c]/(1 + v[t, c]) for c in range(C)]
        for c in range(C):
            spread = (C*r[c]/sum(r) + 1)*np.var(s[:, t, c], ddof=1)
            for i in range(n): out[i, t, c] = s[i, t, c] + math.sqrt(spread)*noise[i, t, c]
    return out


@pytest.fixture(scope="module")
def fedfa_run(small): return run("fedfa", small, rounds=1, fa_p=1.)


@pytest.fixture
def fedfa(fedfa_run):
    "(run, method, client, network, download) with every batch redrawn."
    r, m, who, net = fedfa_run, fedfa_run.fed.method, fedfa_run.fed.clients[0], fedfa_run.model.eval()
    down = m.download(r.fed.server, "optical")
    who.scratch = {}
    m.begin(net, who, down)
    return r, m, who, net, down


def test_fedfa_sends_the_variance_over_clients_per_channel(fedfa):
    r, *_, down = fedfa
    assert style.vary_over_clients([{"0": torch.zeros(2, 3)}]) == {}
    for i, channels in enumerate((64, 50)):
        there = np.var([c.state[f"fedfa.{i}"].numpy() for c in r.fed.clients], axis=0, ddof=1)
        assert there.shape == (2, channels)
        close(down[f"stats.fedfa.{i}"], there)


def test_fedfa_gives_a_map_the_statistics_that_it_drew(fedfa):
    _, m, who, _, down = fedfa
    z, rng = torch.rand(6, 64, 5, 5, generator=generator(2)), who.rng("fedfa")
    out = m._augmented("0", z, who)
    torch.rand((), generator=rng)                                                    # the coin
    s = style.channel_style(z, 1e-6)
    noise = torch.randn(s.shape, generator=rng)
    new = redrawn_by_loops(*(u.numpy() for u in (s, down["stats.fedfa.0"], noise)))
    close(out.mean((2, 3)).double(), new[:, 0], 1e-3)
    close(out.std((2, 3)).double(), abs(new[:, 1]), 1e-3)


def test_fedfa_moving_average_begins_at_the_first_batch(fedfa, monkeypatch):
    _, m, who, _, _ = fedfa
    monkeypatch.setattr(who, "state", {})
    g = generator(2)
    batches = [torch.rand(6, 64, 5, 5, generator=g) + v for v in range(3)]
    for z in batches: m._augmented("0", z, who)
    a, b, c = (style.channel_style(z, 1e-6).mean(0) for z in batches)
    close(who.state["fedfa.0"], .99*(.99*a + .01*b) + .01*c, 1e-5)


def test_fedfa_leaves_small_maps_and_half_of_the_batches(fedfa):
    _, m, who, net, _ = fedfa
    z = torch.rand(6, 64, 5, 5, generator=generator(2))
    assert [m._augmented("0", v, who) for v in (z[:1], z[..., :1, :1])] == [None, None]
    usual = style.FedFA()
    left = sum(usual._augmented("0", z, who) is None for _ in range(400))/400
    assert left == pytest.approx(.5, abs=3*math.sqrt(.25/400))
    assert [len(stage._forward_hooks) for stage in style.stages(net.features)] == [0, 0]


def test_stages_of_some_networks():
    with seeded(0):
        count = {k: len(style.stages(models.get(k, 3).features)) for k in ("cnn2", "cnn4", "alexnet_bn", "vgg11")}
    assert count == dict(cnn2=2, cnn4=4, alexnet_bn=5, vgg11=8)
