"""What holds for every backbone: shapes, the split, a generator, no global state, one-line errors."""
import hashlib, threading
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
import pytest, torch
from torch import nn
from conftest import one_line
from fdgnb import models
from fdgnb.core import FdgnbError, generator, seed_of, seeded

# these compute; all are built on the meta device
SMALL = {"cnn2": (3, 28, 28), "cnn4": (3, 28, 28), "mlp2": (384,), "alexnet_bn": (3, 64, 64),
         "resnet18": (3, 64, 64), "vgg11": (3, 32, 32), "cct_7_3x1": (3, 32, 32)}
each_model = pytest.mark.parametrize("name", models.MODELS.names())
refused = lambda says: pytest.raises(FdgnbError, match=says)


def build(name, **kw):
    with seeded(0): return models.get(name, 5, **kw)


@each_model
def test_shapes_on_meta(name):
    with torch.device("meta"):
        shape = models.MODELS.get(name).input
        net, x = models.get(name, 5, shape[0]).eval(), torch.zeros(2, *shape)
    assert isinstance(net, models.Net) and net.name == name
    assert net.n_classes == 5 and net.in_channels == shape[0]
    assert models.summarize_layers(net, shape).parameters.sum() == models.n_parameters(net) > 0
    phi = net.features(x)
    assert phi.shape == (2, net.feature_dim) and net.head(phi).shape == net(x).shape == (2, 5)


@each_model
def test_no_foreign_randomness_and_bn(name):
    with torch.device("meta"): net = models.get(name, 5)
    for m in net.modules():
        assert not isinstance(m, nn.modules.dropout._DropoutNd)
        assert not (isinstance(m, nn.MultiheadAttention) and m.dropout)
        if isinstance(m, nn.modules.batchnorm._NormBase):
            assert type(m) in (nn.BatchNorm1d, nn.BatchNorm2d) and m.track_running_stats


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


@each_model
def test_other_channels_and_wrong_input(name):
    with torch.device("meta"):
        net, shape = models.get(name, 5, in_channels=1).eval(), models.MODELS.get(name).input[1:]
        assert net(torch.zeros(2, 1, *shape)).shape == (2, 5)
        with refused(rf"{name} takes a batch \(N, 1(, H, W)?\)") as e: net(torch.zeros(2, 3, *shape))
    assert one_line(e)


@pytest.mark.parametrize("name", SMALL)
def test_seeded_initialization(name):
    a, b = build(name).state_dict(), build(name).state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


@contextmanager
def drawing_beside(seed=1):
    "Inside, a second thread draws from torch's global generator all the time; yields what it has drawn."
    drawn, ended = [], threading.Event()
    def draw():
        while not ended.is_set() or not drawn: drawn.append(torch.rand(40))
    thread = threading.Thread(target=draw)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        thread.start()
        try: yield drawn
        finally:
            ended.set()
            thread.join()
        torch.manual_seed(seed)                         # its stream was neither interrupted nor rewound
        assert all(torch.equal(torch.rand(40), d) for d in drawn)


@each_model
def test_first_weights_are_those_of_torchs_own_seed(name):
    "Bit for bit what the global generator gives from the same seed, though a thread disturbs it meanwhile."
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(0, purpose="init"))
        wanted = models.get(name, 5).state_dict()
    with drawing_beside(): got = build(name).state_dict()
    assert all(torch.equal(got[k], wanted[k]) for k in wanted)


def test_no_class_is_refused():
    with refused("at least one class"): models.get("cnn2", 0)


@pytest.mark.parametrize("name,size,message", [
    ("cnn2", 15, "at least 16 px"), ("alexnet_bn", 62, "at least 63 px"), ("vgg11", 31, "at least 32 px"),
    ("vit_b_16", 100, "multiple of 16 px"), ("mlp2", 28, r"takes a batch \(N, 3\)")])
def test_a_wrong_size_is_refused(name, size, message):
    with torch.device("meta"), refused(message) as e: models.get(name, 5, size=size)
    assert one_line(e)


@pytest.mark.parametrize("name,size", [
    ("cnn2", 16), ("cnn4", 1), ("alexnet_bn", 63), ("vgg11", 32), ("resnet18", 8), ("vit_b_8", 64),
    ("cct_7_3x1", 28), ("cct_7_3x1", 33)])
def test_the_smallest_size_works(name, size):
    with torch.device("meta"):
        assert models.get(name, 5, size=size).eval()(torch.zeros(2, 3, size, size)).shape == (2, 5)


def test_parameters_and_features_of_networks_for_vectors_by_hand():
    with torch.device("meta"):
        small, large = models.get("mlp2", 2, in_features=384), models.get("mlp2", 2, in_features=256*768)
        frozen = models.get("mlp_bn", 7, 1280)
    assert models.n_parameters(large) == (256*768 + 1)*500 + 501*500 + 501*100 + 101*2 + 2*(500 + 500 + 100)
    assert small.features(torch.zeros(4, 384, device="meta")).shape == (4, 500)
    with refused(r"mlp2 takes a batch \(N, 384\), not \(4, 768\)"): small(torch.zeros(4, 768))
    assert models.n_parameters(frozen) == 1281*256 + 2*256 + 257*7
    assert frozen.features(torch.zeros(4, 1280, device="meta")).shape == (4, 256)


@pytest.mark.parametrize("side", [8, 16, 28, 32, 64, 128])
def test_small_keeps_a_map_of_two_to_sixteen_points(side):
    with torch.device("meta"): net = models.get("small", 3, size=side)
    with models.outputs_of(net.features.conv4) as maps: out = net(torch.zeros(2, 3, side, side, device="meta"))
    assert out.shape == (2, 3) and 2 <= maps[0].shape[-1] <= 16


def test_lenet_has_a_map_of_two_points_at_16_pixels():
    with torch.device("meta"): net = models.get("lenet", 10, size=16)
    with models.outputs_of(net.features.conv2) as maps: out = net(torch.zeros(2, 3, 16, 16, device="meta"))
    assert (out.shape, maps[0].shape) == ((2, 10), (2, 32, 2, 2))


def test_torch_itself_refuses_what_alexnet_bn_refuses():
    unguarded = nn.Sequential(*list(build("alexnet_bn").features)[1:])
    with pytest.raises(RuntimeError): unguarded(torch.zeros(2, 3, 62, 62))


@pytest.mark.parametrize("name,side", [("cnn2", 28), ("alexnet_bn", 64)])
def test_channels_last_changes_nothing_beyond_rounding(name, side):
    net, x = build(name), torch.randn(8, 3, side, side, generator=generator(0))
    last = deepcopy(net).to(memory_format=torch.channels_last)
    a = models.set_generator(net, generator(0))(x)
    b = models.set_generator(last, generator(0))(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_missing_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    with refused("no weights file resnet18-f37072fd.pth") as e: models.get("resnet18", 5, pretrained=True)
    assert one_line(e) and str(tmp_path) in str(e.value)
    with refused("no published weights for 'cnn2'"): models.get("cnn2", 5, pretrained=True)
    with refused("resnet18 has no weights 'V7'"): models.get("resnet18", 5, pretrained="V7")


def test_weights_files_are_named_as_torchvision_names_them():
    assert models.weights_file("resnet18").name == "resnet18-f37072fd.pth"
    assert models.weights_file("resnet50", "IMAGENET1K_V2").name == "resnet50-11ad3fa6.pth"
    with refused("did you mean 'IMAGENET1K_V"): models.weights_file("resnet50", "IMAGENET1K_V3")
    with refused("resnet18-f37072fd.pth and put it into nowhere"): models.read_weights("nowhere/resnet18-f37072fd.pth")


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
    with refused("takes 3 channels, not 1"): build("resnet18", in_channels=1, pretrained=True)
    path.write_bytes(path.read_bytes()[:-1])
    with refused("is damaged") as e: build("resnet18", pretrained=True)
    assert one_line(e)
    path = save({"a": torch.zeros(1)}, tmp_path)
    monkeypatch.setattr(models, "weights_file", lambda name, which: path)
    with refused("do not fit resnet18") as e: build("resnet18", pretrained=True)
    assert one_line(e)


def test_vgg_and_vit_weights():
    tv = models.torchvision_models()
    given = {f"features.{k}": v for k, v in build("vgg11").features.layers.state_dict().items()}
    with seeded(7): net = models.MODELS.get("vgg11")(5, 3, state=given)
    assert all(torch.equal(v, given[f"features.{k}"]) for k, v in net.features.layers.state_dict().items())
    with seeded(3): theirs = tv.VisionTransformer(32, 8, 1, 3, 48, 192)
    given = theirs.state_dict()
    ours = lambda side: models._vit("tiny", 8, 5, 3, side, given, depth=1, heads=3, dim=48).eval()
    with seeded(0): small, large = ours(32), ours(64)
    theirs.heads, x = nn.Identity(), torch.randn(2, 3, 32, 32, generator=generator(0))
    torch.testing.assert_close(small.features(x), theirs.eval()(x))
    assert large(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


class Evil:
    def __reduce__(self): return exec, ("raise SystemExit('ran code from a weights file')",)


def test_weights_run_no_code(tmp_path):
    file = save({"a": Evil()}, tmp_path)
    with refused("not a torch weights file") as e: models.read_weights(file)
    assert one_line(e)


def test_dropout_generator_and_copies():
    net = nn.Sequential(models.Dropout(.5), nn.Sequential(models.Dropout(.5, channels=True)))
    models.set_generator(net, generator(0))
    x = torch.ones(8, 6, 3, 3)
    y = net(x)
    twin = deepcopy(net)
    assert twin[0].generator is None and twin[1][0].generator is None and net[0].generator is not None
    with refused("set_generator"): twin(x)
    assert torch.equal(twin.eval()(x), x)
    assert torch.equal(models.set_generator(twin.train(), generator(0))(x), y)
    assert not torch.equal(models.set_generator(twin, generator(1))(x), y)
    dropped = models.set_generator(twin, generator(2))[1](x) == 0
    assert (dropped.flatten(2).float().mean(2) % 1 == 0).all()           # whole channels


def test_dropout_does_not_depend_on_memory_order_or_dtype():
    drop, x = models.Dropout(.5), torch.rand(4, 3, 5, 5, generator=generator(3))
    a = models.set_generator(drop, generator(0))(x)
    b = models.set_generator(drop, generator(0))(x.to(memory_format=torch.channels_last))
    c = models.set_generator(drop, generator(0))(x.to(torch.bfloat16))
    assert torch.equal(a, b) and c.dtype == torch.bfloat16 and torch.equal(a == 0, c == 0)


# ---- the library timm, and packaged weights

def timm():
    if not find_spec("timm"): pytest.skip("timm is not installed")
    return models.import_timm()


def test_timm_backbones_split_draw_and_refuse():
    with seeded(0): theirs = timm().create_model("resnet10t", num_classes=5)
    with drawing_beside(): net, again = (build("timm:resnet10t", size=64) for _ in range(2))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in net.state_dict().items())
    assert net.name == "timm:resnet10t" and net.feature_dim == 512 and isinstance(net.head, nn.Linear)
    assert models.n_parameters(net) == models.n_parameters(theirs)
    with refused(r"timm:resnet10t takes a batch \(N, 3, H, W\)"): net(torch.zeros(2, 1, 64, 64))
    assert build("timm:resnet10t", in_channels=1)(torch.zeros(2, 1, 64, 64)).shape == (2, 5)
    with refused("timm has no model 'resnet10'; did you mean 'resnet10t'") as e: build("timm:resnet10")
    assert one_line(e)
    with refused("has no weights 'V2'"): build("timm:resnet10t", pretrained="V2")
    with refused("no packaged weights for 'timm:resnet10t'"): build("timm:resnet10t", pretrained="packaged")


def test_a_ghostnet_is_not_cut():
    "It has an activation between its stem and its blocks."
    timm()
    with refused("timm:ghostnet_050 cannot be cut at a block"): build("timm:ghostnet_050@3")
    assert build("timm:mobilenetv3_small_050@2", in_channels=16, size=8).name == "timm:mobilenetv3_small_050@2"


def test_a_timm_transformer_is_built_for_a_size_and_draws_from_the_generator():
    timm()
    net, x = build("timm:vit_tiny_patch16_224", size=32), torch.rand(2, 3, 32, 32, generator=generator(0))
    before = torch.get_rng_state()
    net(x)
    assert torch.equal(before, torch.get_rng_state())
    with refused("was built for 32 x 32 px"): net(torch.zeros(2, 3, 64, 64))
    with seeded(0): deep = timm().create_model("resnet10t", num_classes=0, drop_path_rate=.2)
    models.own_dropout(deep)
    assert sum(isinstance(m, models.DropPath) for m in deep.modules()) == 3


def test_timm_weights_that_are_not_at_hand_are_one_line(monkeypatch, tmp_path):
    timm()
    monkeypatch.setattr(models.import_timm(), "create_model", lambda *a, **kw: (_ for _ in ()).throw(
        OSError("cannot reach the hub\nand more")))
    with refused("timm cannot make resnet10t with its weights: cannot reach the hub and more") as e:
        models.build_timm("resnet10t", 3, 64, True)
    assert one_line(e)


def test_packaged_weights_give_their_own_librarys_logits():
    timm()
    state = models.read_packaged("tf_efficientnet_lite0")
    net = build("timm:tf_efficientnet_lite0", pretrained="packaged").eval()
    assert all(torch.equal(v, state[k.removeprefix("features.body.")])
               for k, v in net.state_dict().items() if k.startswith("features."))
    library = pytest.importorskip("efficientnet_lite_pytorch")
    with seeded(0): own = library.EfficientNet.from_name("efficientnet-lite0").eval()
    models.fill(own, dict(zip(own.state_dict(), state.values())), "own")
    with seeded(0): net.head = nn.Linear(1280, 1000)
    models.fill(net.head, {k: state[f"classifier.{k}"] for k in ("weight", "bias")}, "head")
    x = torch.randn(2, 3, 96, 96, generator=generator(0))
    torch.testing.assert_close(net(x), own(x), rtol=0, atol=1e-5)
    with refused("takes 3 channels, not 1"):
        build("timm:tf_efficientnet_lite0", in_channels=1, pretrained="packaged")


def test_without_timm_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    models.timm_backbone.cache_clear()
    with refused("timm is not installed: pip install fdgnb"): models.get("timm:resnet10t", 5)
