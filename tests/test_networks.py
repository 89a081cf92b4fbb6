"Networks: shapes, first weights, the refusal of wrong sizes, weights of others, networks of one's own."
import hashlib
from copy import deepcopy
from importlib.util import find_spec
import pytest, torch
import torch.nn.functional as F
from torch import nn
import fdgnb
from conftest import run, same_bits, says
from fdgnb import models
from fdgnb.core import generator, seed_of, seeded

SMALL = {"cnn2": (3, 28, 28), "cnn4": (3, 28, 28), "mlp2": (384,), "alexnet_bn": (3, 64, 64),
         "resnet18": (3, 64, 64), "vgg11": (3, 32, 32), "cct_7_3x1": (3, 32, 32)}        # fast enough to compute
each_model = pytest.mark.parametrize("name", models.MODELS.names())
needs_timm = pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
SHORT = dict(batch_size=8, local_steps=2, lr=.01)


def build(name, **given):
    with seeded(0): return models.get(name, 5, **given)


def on_meta(name, **given):
    "A network without numbers, which costs nothing to build."
    with torch.device("meta"): return models.get(name, 5, **given).eval()


@each_model
def test_a_network_is_features_and_a_head_and_draws_from_nowhere(name):
    shape = models.MODELS.get(name).input
    net, x = on_meta(name, in_channels=shape[0]), torch.zeros(2, *shape, device="meta")
    phi = net.features(x)
    assert phi.shape == (2, net.feature_dim) and net.head(phi).shape == net(x).shape == (2, 5)
    assert models.n_parameters(net) == sum(p.numel() for p in net.parameters())
    for layer in net.modules():
        assert not isinstance(layer, nn.modules.dropout._DropoutNd)
        if isinstance(layer, nn.modules.batchnorm._NormBase): assert layer.track_running_stats
    gray = on_meta(name, in_channels=1)
    assert gray(torch.zeros(2, 1, *shape[1:], device="meta")).shape == (2, 5)
    says(lambda: gray(torch.zeros(2, 3, *shape[1:], device="meta")), f"{name} takes a batch (N, 1")


@pytest.mark.parametrize("name", SMALL)
def test_first_weights_are_those_of_torchs_own_seed(name):
    "Bit for bit what the global generator gives from the same seed."
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(0, purpose="init"))
        wanted = models.get(name, 5).state_dict()
    found = build(name).state_dict()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize("name", SMALL)
def test_training_draws_from_the_generator_alone(name):
    net, x = build(name, in_channels=SMALL[name][0]), torch.randn(4, *SMALL[name], generator=generator(0))
    results = []
    for twin in (deepcopy(net), deepcopy(net)):
        results.append(models.set_generator(twin, generator(1))(x))
        results[-1].square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in twin.parameters())
    assert torch.equal(*results)


@pytest.mark.parametrize("name, least, wrong, word", [
    ("cnn2", 16, 15, "at least 16"), ("alexnet_bn", 63, 62, "at least 63"), ("vit_b_16", 32, 100, "100 px"),
    ("resnet18", 8, None, ""), ("cct_7_3x1", 33, None, ""), ("swin_t", 64, None, "")])
def test_the_smallest_size_works_and_a_wrong_one_is_refused(name, least, wrong, word):
    assert on_meta(name, size=least)(torch.zeros(2, 3, least, least, device="meta")).shape == (2, 5)
    if wrong: says(lambda: on_meta(name, size=wrong)(torch.zeros(2, 3, wrong, wrong, device="meta")), word)


@pytest.mark.parametrize("call, word", [
    (lambda: on_meta("squeezenet1_0"), "linear layer"),
    (lambda: models.get("cnn2", 5, pretrained=True), "no weights"),
    (lambda: models.get("resnet18", 5, pretrained=True), "resnet18-f37072fd.pth")])
def test_what_is_not_there_is_named(call, word, monkeypatch, tmp_path):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    says(call, word)


# ---- weights of others

def save(state, folder):
    "Write a state under the name that torchvision gives resnet18's."
    torch.save(state, folder/"w.pth")
    digest = hashlib.sha256((folder/"w.pth").read_bytes()).hexdigest()[:8]
    return (folder/"w.pth").rename(folder/f"w-{digest}.pth")


class Evil:
    def __reduce__(self): return exec, ("raise SystemExit('ran code from a weights file')",)


def test_weights_from_a_file_are_torchvisions_and_run_no_code(monkeypatch, tmp_path):
    with seeded(3): theirs = models.torchvision_models().resnet18()
    path = save(theirs.state_dict(), tmp_path)
    monkeypatch.setattr(models, "weights_file", lambda name, which: path)
    net, x = build("resnet18", pretrained=True).eval(), torch.randn(2, 3, 64, 64, generator=generator(0))
    theirs.fc = nn.Identity()
    assert torch.equal(net.features(x), theirs.eval()(x)) and net(x).shape == (2, 5)
    says(lambda: build("resnet18", in_channels=1, pretrained=True), "takes 3 channels, not 1")
    path.write_bytes(path.read_bytes()[:-1])
    says(lambda: build("resnet18", pretrained=True), "is damaged")
    for state, word in (({"a": torch.zeros(1)}, "do not fit resnet18"), ({"a": Evil()}, "no torch weights file")):
        path = save(state, tmp_path)
        says(lambda: build("resnet18", pretrained=True), word)


@needs_timm
def test_networks_of_timm():
    theirs = models.import_timm()
    with seeded(0): plain = theirs.create_model("resnet10t", num_classes=5)
    net = build("timm:resnet10t", size=64)
    assert models.n_parameters(net) == models.n_parameters(plain) and isinstance(net.head, nn.Linear)
    vit, x = build("timm:vit_tiny_patch16_224", size=32), torch.rand(2, 3, 32, 32, generator=generator(0))
    assert vit(x).shape == (2, 5)
    assert build("timm:mobilenetv3_small_050@2", in_channels=16, size=8).name == "timm:mobilenetv3_small_050@2"
    for name, word in (("resnet10", "did you mean 'resnet10t'"), ("ghostnet_050@3", "cannot be cut at a block")):
        says(lambda: build(f"timm:{name}"), word)
    says(lambda: build("timm:resnet10t", pretrained="packaged"), "no packaged weights")


# ---- a network of one's own

class Own(nn.Module):
    "As users write them: no `features`, no `head`, the last layer made first."
    def __init__(self, n_classes=10, in_channels=3):
        super().__init__()
        self.out, self.conv = nn.Linear(12, n_classes), nn.Conv2d(in_channels, 8, 3, 2)
        self.norm, self.fc, self.drop = nn.BatchNorm2d(8), nn.Linear(8, 12), nn.Dropout(.2)

    def forward(self, x):
        z = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.out(self.drop(self.fc(z)).relu())


class Parts(nn.Module):
    "Two parts, the second of which is no single layer."
    def __init__(self, n_classes, in_channels):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(in_channels, 6, 5, 2), nn.BatchNorm2d(6), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, n_classes))

    def forward(self, x): return self.head(self.features(x))


def own():
    with seeded(0): return Own()


@pytest.mark.parametrize("method", "fedavg fedka fedbr moon fedbn dann".split())
@pytest.mark.parametrize("backbone", [own(), Parts], ids=["network", "class"])
def test_methods_take_a_network_of_ones_own(method, backbone, tiny, monkeypatch, tmp_path):
    whole = same_bits(monkeypatch, tmp_path, method, tiny, backbone=backbone, eval_every=1, **SHORT)
    x = tiny["blended"].x[:4]
    assert torch.equal(fdgnb.load(tmp_path, backbone=backbone).predict(x), whole.predict(x))


def test_a_folder_knows_which_network_it_was(tiny, tmp_path):
    net, x = own(), tiny["inked"].x[:2]
    call = SHORT | dict(rounds=1, out=tmp_path)
    first = run("fedavg", tiny, backbone=net, **call)
    assert run("fedavg", tiny, backbone=net.eval(), **call).round == 1
    with torch.no_grad(): net.out.bias += 1
    says(lambda: run("fedavg", tiny, backbone=net, **call), "backbone", "own:Own-")
    assert torch.equal(fdgnb.load(tmp_path, backbone=net).predict(x), first.predict(x))
    with pytest.warns(UserWarning, match="another"): other = fdgnb.load(tmp_path, backbone=Parts)
    says(lambda: other.predict(x), "do not fit")
    says(lambda: fdgnb.load(tmp_path, backbone="cnn2"), "wanted a network")


class Lost(nn.Module):
    "A linear layer whose output is not what is returned."
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3*28*28, 10)

    def forward(self, x): return self.fc(x.flatten(1)).log_softmax(1)


class Careless(Own):
    def forward(self, x): return self.out(F.dropout(self.fc(self.conv(x).mean((2, 3))), .5, self.training))


def flat(*layers):
    with seeded(0): return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize("make, word", [
    (Lost, "does not end in"), (lambda: nn.Linear(5, 10), "cannot take a batch"),
    (lambda: nn.Linear(5, 10).double(), "dtype"), (lambda: nn.LazyLinear(10), "uninitialized"),
    (lambda: flat(nn.Linear(3*28*28, 10), nn.AlphaDropout(.1)), "AlphaDropout"), (lambda: lambda n, c: None, "None"),
    (lambda: lambda n, c: 1/0, "ZeroDivisionError"), (lambda: Parts(7, 3), "[7]"), (Careless, "global random state")])
def test_what_is_no_network_says_why(make, word, tiny):
    with seeded(0): backbone = make()
    says(lambda: run("fedavg", tiny, backbone=backbone), word)
