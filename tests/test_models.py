"""What holds for every backbone: shapes, the split, a generator instead of the global random state, one-line errors."""
import hashlib, subprocess, sys
from copy import deepcopy
import pytest, torch
from torch import nn
from fdgnb import models
from fdgnb.core import FdgnbError, generator, seeded

SMALL = {"cnn2": (3, 28, 28), "cnn4": (3, 28, 28), "mlp2": (384,), "alexnet_bn": (3, 64, 64), "resnet18": (3, 64, 64), "vgg11": (3, 32, 32),
         "cct_7_3x1": (3, 32, 32)}                                # these also compute; all are built on the meta device


def build(name, **kw):
    with seeded(0): return models.get(name, 5, **kw)


def run(code, **kw):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **kw)


def one_line(e): return "\n" not in str(e.value)


@pytest.mark.parametrize("name", models.MODELS.names())
def test_shapes_on_meta(name):
    with torch.device("meta"):
        shape = models.MODELS.get(name).input
        net, x = models.get(name, 5, shape[0]).eval(), torch.zeros(2, *shape)
    assert isinstance(net, models.Net) and net.name == name and net.n_classes == 5 and net.in_channels == shape[0]
    assert models.summary(net, shape).parameters.sum() == models.n_parameters(net) > 0
    phi = net.features(x)
    assert phi.shape == (2, net.feature_dim) and net.head(phi).shape == net(x).shape == (2, 5)


@pytest.mark.parametrize("name", models.MODELS.names())
def test_no_foreign_randomness_and_bn(name):
    with torch.device("meta"): net = models.get(name, 5)
    for m in net.modules():
        assert not isinstance(m, nn.modules.dropout._DropoutNd)
        assert not (isinstance(m, nn.MultiheadAttention) and m.dropout)
        if isinstance(m, nn.modules.batchnorm._NormBase): assert type(m) in (nn.BatchNorm1d, nn.BatchNorm2d) and m.track_running_stats


@pytest.mark.parametrize("name", SMALL)
def test_trains_on_the_generator_alone(name):
    net, x = build(name, in_channels=SMALL[name][0]), torch.randn(4, *SMALL[name], generator=generator(0))
    before, results = torch.get_rng_state(), []
    for twin in (deepcopy(net), deepcopy(net)):
        out = models.set_generator(twin, generator(1))(x)
        out.square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in twin.parameters())
        results.append(out)
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(*results)


@pytest.mark.parametrize("name", models.MODELS.names())
def test_other_channels_and_wrong_input(name):
    with torch.device("meta"): net, shape = models.get(name, 5, in_channels=1).eval(), models.MODELS.get(name).input[1:]
    assert net(torch.zeros(2, 1, *shape, device="meta")).shape == (2, 5)
    with pytest.raises(FdgnbError, match=rf"{name} takes a batch \(N, 1(, H, W)?\)") as e: net(torch.zeros(2, 3, *shape, device="meta"))
    assert one_line(e)


@pytest.mark.parametrize("name", SMALL)
def test_seeded_initialisation(name):
    a, b = build(name).state_dict(), build(name).state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_unknown_name_option_and_numbers():
    with pytest.raises(FdgnbError, match="unknown model 'resnet81'; did you mean 'resnet18'"): models.get("resnet81", 5)
    with pytest.raises(FdgnbError, match="cnn2 has no option 'widht'"): models.get("cnn2", 5, widht=2)
    with pytest.raises(FdgnbError, match="at least one class"): models.get("cnn2", 0)


def test_sizes():
    for name, size, message in (("cnn2", 15, "at least 16 px"), ("alexnet_bn", 62, "at least 63 px"), ("vgg11", 31, "at least 32 px"),
                                ("vit_b_16", 100, "multiple of 16 px"), ("mlp2", 28, r"takes a batch \(N, 3\)")):
        with torch.device("meta"), pytest.raises(FdgnbError, match=message) as e: models.get(name, 5, size=size)
        assert one_line(e)
    for name, size in (("cnn2", 16), ("cnn4", 1), ("alexnet_bn", 63), ("vgg11", 32), ("resnet18", 8), ("vit_b_8", 64), ("cct_7_3x1", 28), ("cct_7_3x1", 33)):
        with torch.device("meta"): assert models.get(name, 5, size=size).eval()(torch.zeros(2, 3, size, size)).shape == (2, 5)
    with torch.device("meta"), pytest.raises(FdgnbError, match="this cct_7_3x1 was built for 32 x 32 px, not 28 x 28"):
        models.get("cct_7_3x1", 5)(torch.zeros(2, 3, 28, 28))


def test_published_counts():
    for name, n_classes, size, printed in (("vgg11", 10, 32, "9.2"), ("cct_7_3x1", 10, 32, "3.8"), ("alexnet_bn", 10, 224, "13.0")):
        with torch.device("meta"): assert f"{models.n_parameters(models.get(name, n_classes, size=size))/1e6:.1f}" == printed


def test_missing_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    with pytest.raises(FdgnbError, match="no weights file resnet18-f37072fd.pth") as e: models.get("resnet18", 5, pretrained=True)
    assert one_line(e) and str(tmp_path) in str(e.value)
    with pytest.raises(FdgnbError, match="no published weights for 'cnn2'"): models.get("cnn2", 5, pretrained=True)
    with pytest.raises(FdgnbError, match="resnet18 has no weights 'V7'"): models.get("resnet18", 5, pretrained="V7")


def save(state, folder):
    "Write a state under a name that carries its digest, as torchvision does."
    torch.save(state, folder/"w.pth")
    path = folder/f"w-{hashlib.sha256((folder/'w.pth').read_bytes()).hexdigest()[:8]}.pth"
    (folder/"w.pth").rename(path)
    return path


def test_weights_from_a_file(monkeypatch, tmp_path):
    with seeded(3): theirs = models.torchvision_models().resnet18()
    path = save(theirs.state_dict(), tmp_path)
    monkeypatch.setattr(models, "weights_file", lambda name, which: path)
    net = build("resnet18", pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64, generator=generator(0))
    theirs.fc = nn.Identity()
    assert torch.equal(net.features(x), theirs.eval()(x)) and net(x).shape == (2, 5)
    with pytest.raises(FdgnbError, match="takes 3 channels, not 1"): build("resnet18", in_channels=1, pretrained=True)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FdgnbError, match="is damaged") as e: build("resnet18", pretrained=True)
    assert one_line(e)
    path = save({"a": torch.zeros(1)}, tmp_path)
    monkeypatch.setattr(models, "weights_file", lambda name, which: path)
    with pytest.raises(FdgnbError, match="do not fit resnet18") as e: build("resnet18", pretrained=True)
    assert one_line(e)


def test_vgg_and_vit_weights():
    tv = models.torchvision_models()
    given = {f"features.{k}": v for k, v in build("vgg11").features.layers.state_dict().items()}
    with seeded(7): net = models.MODELS.get("vgg11")(5, 3, state=given)
    assert all(torch.equal(v, given[f"features.{k}"]) for k, v in net.features.layers.state_dict().items())
    with seeded(3): theirs = tv.VisionTransformer(32, 8, 1, 3, 48, 192)
    with seeded(0): small, large = (models._vit("tiny", 8, 5, 3, s, theirs.state_dict(), depth=1, heads=3, dim=48).eval() for s in (32, 64))
    theirs.heads, x = nn.Identity(), torch.randn(2, 3, 32, 32, generator=generator(0))
    torch.testing.assert_close(small.features(x), theirs.eval()(x))
    assert large(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


class Evil:
    def __reduce__(self): return exec, ("raise SystemExit('ran code from a weights file')",)


def test_weights_run_no_code(tmp_path):
    with pytest.raises(FdgnbError, match="not a torch weights file") as e: models.read_weights(save({"a": Evil()}, tmp_path))
    assert one_line(e)


def test_dropout_generator_and_copies():
    net = models.set_generator(nn.Sequential(models.Dropout(.5), nn.Sequential(models.Dropout(.5, channels=True))), generator(0))
    x = torch.ones(8, 6, 3, 3)
    y = net(x)
    twin = deepcopy(net)
    assert twin[0].generator is None and twin[1][0].generator is None and net[0].generator is not None
    with pytest.raises(FdgnbError, match="set_generator"): twin(x)
    assert torch.equal(twin.eval()(x), x)
    assert torch.equal(models.set_generator(twin.train(), generator(0))(x), y)
    assert not torch.equal(models.set_generator(twin, generator(1))(x), y)
    assert ((models.set_generator(twin, generator(2))[1](x) == 0).flatten(2).float().mean(2) % 1 == 0).all()       # whole channels


def test_dropout_does_not_depend_on_memory_order_or_dtype():
    drop, x = models.Dropout(.5), torch.rand(4, 3, 5, 5, generator=generator(3))
    a = models.set_generator(drop, generator(0))(x)
    b = models.set_generator(drop, generator(0))(x.to(memory_format=torch.channels_last))
    c = models.set_generator(drop, generator(0))(x.to(torch.bfloat16))
    assert torch.equal(a, b) and c.dtype == torch.bfloat16 and torch.equal(a == 0, c == 0)


def test_guard_twice_lazy_and_after_a_failed_import():
    code = """import sys, fdgnb.models as m
assert 'torchvision' not in sys.modules
try: import torchvision
except Exception: pass
assert m.torchvision_models() is m.torchvision_models()
import torchvision.transforms
print('ok')"""
    assert run(code).stdout == "ok\n"
