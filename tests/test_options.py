"""What training takes besides names: networks, functions, transforms, schedules, weights of classes, devices."""
import functools, math, random, sys
import numpy as np
import pytest, torch
import torch.nn.functional as F
from torch import nn
from conftest import bits, one_line, python, run, same_bits
import fdgnb
from fdgnb import models
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.data.augment import AUGMENTATIONS
from fdgnb.federation.loop import Method
from fdgnb.runs.callbacks import Metrics, MLflow
from fdgnb.runs.setup import Federation, check_device, explain_mps
from fdgnb.settings import Settings, list_settings

SMALL = dict(batch_size=8, local_steps=2, lr=.01)


class Own(nn.Module):
    "A network as users write them: no `features`, no `head`, its last layer made first."
    def __init__(self, n_classes=10, in_channels=3, drop=True):
        super().__init__()
        self.out, self.conv = nn.Linear(12, n_classes), nn.Conv2d(in_channels, 8, 3, 2)
        self.norm, self.fc, self.drop = nn.BatchNorm2d(8), nn.Linear(8, 12), nn.Dropout(.2)

    def forward(self, x):
        z = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.out(self.drop(self.fc(z)).relu())


class Parts(nn.Module):
    "A network of two parts, the second of which is no single layer; a constant is made as it runs."
    def __init__(self, n_classes, in_channels):
        super().__init__()
        layers = nn.Conv2d(in_channels, 6, 5, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        self.features, self.head = nn.Sequential(*layers), nn.Sequential(nn.Linear(24, 10), nn.ReLU(),
                                                                         nn.Linear(10, n_classes))

    def forward(self, x): return self.head(self.features(x)) + torch.zeros(1)


def own(*given, kind=Own):
    "A network with the first weights of a seed."
    with seeded(0): return kind(*given) if kind is Own else kind(*given, 3)


def refused(says, data, **given):
    with pytest.raises(FdgnbError, match=says) as e: Federation("fedavg", data, "blended", 1, hyper=given)
    assert one_line(e)


# ---- networks

@pytest.mark.parametrize("method", "fedavg fdse fedka fedbr fedsr moon fedbn dann fedfa tent".split())
@pytest.mark.parametrize("backbone", [Own(), Parts], ids=["network", "class"])
def test_methods_take_a_network_of_ones_own(method, backbone, tiny, monkeypatch, tmp_path):
    given = SMALL | dict(backbone=backbone)
    if method == "fdse" and backbone is not Parts:
        refused_by = pytest.raises(FdgnbError, match="has nothing to decompose")
        with refused_by: run(method, tiny, **given)
        return
    whole = same_bits(monkeypatch, tmp_path, method, tiny, **given)
    x = tiny["blended"].x[:4]
    assert torch.equal(fdgnb.load(tmp_path, backbone=backbone).predict(x), whole.predict(x))


def test_a_network_starts_from_its_own_weights_and_is_left_alone(tiny):
    net = own().eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    fed = Federation("fedavg", tiny, "blended", 1, backbone=net, seed=1)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()) and not net.training
    assert torch.equal(fed.net.features.body.conv.weight, net.conv.weight)
    assert torch.equal(fed.net.head.weight, net.out.weight)
    run("fedavg", tiny, backbone=net, **SMALL)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_function_draws_from_the_seed(tiny):
    made = lambda seed, f: Federation("fedavg", tiny, "blended", 1, backbone=f, seed=seed).net.head.weight
    build = functools.partial(Own, drop=False)
    assert torch.equal(made(1, Own), made(1, build)) and not torch.equal(made(1, Own), made(2, Own))
    shared = own()
    first = run("fedavg", tiny, backbone=lambda n, c: shared, **SMALL)         # each run gets a copy
    assert bits(first) == bits(run("fedavg", tiny, backbone=lambda n, c: shared, **SMALL))


def test_a_folder_knows_which_network_it_was(tiny, tmp_path):
    net = own()
    call = SMALL | dict(rounds=1, out=tmp_path)
    first = run("fedavg", tiny, backbone=net, **call)
    assert first.fed.args()["settings"]["backbone"].startswith("own:Own-")
    assert run("fedavg", tiny, backbone=net.eval(), **call).round == 1
    with torch.no_grad(): net.out.bias += 1
    with pytest.raises(FdgnbError, match="settings.backbone: 'own:Own-"): run("fedavg", tiny, backbone=net, **call)
    assert torch.equal(fdgnb.load(tmp_path).predict(tiny["inked"].x[:2]), first.predict(tiny["inked"].x[:2]))
    kept = fdgnb.load(tmp_path, backbone=net)                                   # other weights, the same network
    assert torch.equal(kept.predict(tiny["inked"].x[:2]), first.predict(tiny["inked"].x[:2]))
    with pytest.warns(UserWarning, match="its structure or code is another"):
        other = fdgnb.load(tmp_path, backbone=Parts)
    with pytest.raises(FdgnbError, match="the weights do not fit"): other.predict(tiny["inked"].x[:2])
    with pytest.raises(FdgnbError, match="wanted a network"): fdgnb.load(tmp_path, backbone="cnn2")
    models.GIVEN.clear()                                                        # as in another process
    with pytest.raises(FdgnbError, match=r"load\(folder, backbone=\)") as e:
        fdgnb.load(tmp_path).predict(tiny["inked"].x)
    assert one_line(e)


def test_a_name_needs_no_object(tiny, tmp_path):
    run("fedavg", tiny, rounds=1, out=tmp_path, **SMALL)
    with pytest.raises(FdgnbError, match="which needs no object"): fdgnb.load(tmp_path, backbone=own())


def test_the_name_of_a_network_is_the_same_in_another_process():
    code = """import torch; from torch import nn; from fdgnb.core import seeded
from fdgnb.runs.versions import name_object
with seeded(0): net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(.1), nn.Linear(4, 2))
print(name_object(net))"""
    there, here = python(code), {}
    exec(code.replace("print(name_object(net))", "name = name_object(net)"), here)
    assert there.stdout.strip() == here["name"] and here["name"].startswith("own:Sequential-"), there.stderr


class Lost(nn.Module):
    "A linear layer that is not what is returned."
    def __init__(self, f):
        super().__init__()
        self.fc, self.f = nn.Linear(3*28*28, 10), f

    def forward(self, x): return self.f(self.fc(x.flatten(1)))


@pytest.mark.parametrize("bad, says", [
    (Lost(lambda z: z.log_softmax(1)), "does not end in a linear layer: give it two modules"),
    (nn.Sequential(nn.Flatten(), nn.ReLU()), "does not end in a linear layer"),
    (nn.Linear(5, 10), "cannot take a batch of shape"), (nn.Linear(5, 10).double(), "weights of torch.float64"),
    (nn.LazyLinear(10), "has no numbers yet"), (nn.Linear(5, 10, device="meta"), "has no numbers yet"),
    (nn.Sequential(nn.Flatten(), nn.Linear(3*28*28, 10), nn.AlphaDropout(.1)), "AlphaDropout reads the global"),
    (len, "asked for a network of so many classes"), (int, "raises: TypeError"), (lambda n, c: None, "gives None"),
    (lambda n, c: 1/0, "raises: ZeroDivisionError"), (["cnn2"], "expected a word"), ("own:Own-12", "unknown model")])
def test_what_is_no_backbone_says_why(bad, says, tiny): refused(says, tiny, backbone=bad)


def test_a_head_of_several_layers_must_have_the_classes(tiny):
    refused(r"gives \[7\] for a sample, not 10 logits", tiny, backbone=own(7, kind=Parts))
    fed = Federation("fedavg", tiny, "blended", 1, backbone=own(7))              # one layer is made anew
    assert fed.net.head.out_features == 10


class Careless(Own):
    def forward(self, x): return self.out(F.dropout(self.fc(self.conv(x).mean((2, 3))), .5, self.training))


class Drawing(Own):
    def forward(self, x): return self.out(self.fc(self.conv(x + torch.rand(1)).mean((2, 3))))


@pytest.mark.parametrize("net", [Careless(), Careless, Drawing()], ids=["dropout", "class", "rand"])
def test_a_network_that_draws_from_the_global_state_is_refused(net, tiny):
    refused("draws from the global random state in training", tiny, backbone=net)


def test_a_given_network_has_weights(tiny):
    refused("pretrained is for backbones by name", tiny, backbone=own(), pretrained=True)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "efficientnet_b0",
                                  "densenet121", "vit_l_32", "swin_t", "convnext_tiny", "googlenet", "maxvit_t"])
def test_torchvisions_names(name):
    with torch.device("meta"):
        size = 224 if name in ("maxvit_t", "vit_l_32") else 64
        net = models.get(name, 5, 1, size=size).eval()
        assert net.head(net.features(torch.zeros(2, 1, size, size))).shape == (2, 5) and net.name == name
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in net.modules())


def test_torchvisions_names_are_checked():
    with pytest.raises(FdgnbError, match="squeezenet1_0 has no linear layer"), torch.device("meta"):
        models.get("squeezenet1_0", 5)
    with pytest.raises(FdgnbError, match="was built for 32 x 32"), torch.device("meta"):
        models.get("vit_l_32", 5, size=32)(torch.zeros(1, 3, 64, 64))
    with pytest.raises(FdgnbError, match="cannot be built for images of 30 px"), torch.device("meta"):
        models.get("vit_l_32", 5, size=30)
    with pytest.raises(FdgnbError, match="no weights file mobilenet_v3_small"), torch.device("meta"):
        models.get("mobilenet_v3_small", 5, pretrained=True)


# ---- augmentation

def v2():
    models.torchvision_models()
    from torchvision.transforms import v2
    return v2


def shifted(x, rng): return x.roll(int(torch.randint(3, (1,), generator=rng)), 3)


def test_runs_with_a_function_or_a_transform_do_not_depend_on_threads(tiny, monkeypatch, tmp_path):
    t = v2()
    mirror = t.Compose([t.RandomHorizontalFlip(.5), t.RandomRotation(10)])
    plain = run("fedavg", tiny, **SMALL)
    for i, augment in enumerate((shifted, mirror)):
        whole = same_bits(monkeypatch, tmp_path/str(i), "fedavg", tiny, augment=augment, **SMALL)
        assert bits(whole) != bits(plain)
        with pytest.raises(FdgnbError, match="settings.augment: 'own:"):
            run("fedavg", tiny, augment=t.Compose([t.RandomRotation(11)]), out=tmp_path/str(i), **SMALL)


class Counts:
    def __init__(self): self.n = 0
    def __call__(self, x, rng):
        self.n += 1
        return x*(.5 + .1*(self.n % 3))


@pytest.mark.parametrize("bad, says", [
    (lambda x, rng: x*random.random(), "does not draw from the generator"), (Counts(), "does not draw from"),
    (lambda x: x*float(np.random.rand()), "does not draw from"), (lambda x, rng: x[:1], "shape and type must stay"),
    (lambda x, rng: x.double(), "shape and type must stay"), (lambda x, rng: None, "into NoneType"),
    (lambda x, rng: x.nope, "raises on a batch of shape .*: AttributeError"),
    (len, "raises on an image of shape .*: TypeError"), (5, "expected a word")])
def test_what_is_no_augmentation_says_why(bad, says, tiny):
    before = random.getstate(), np.random.get_state()[1].tolist()
    refused(says, tiny, augment=bad)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_colors_of_six_channels_are_refused():
    with pytest.raises(FdgnbError, match="these have 6"):
        AUGMENTATIONS.get("ga")(torch.zeros(2, 6, 28, 28), generator(0))


def test_augmix_draws_where_no_generator_reaches(tiny): refused("does not draw from", tiny, augment=v2().AugMix())


# ---- optimizers and schedules

@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_kept_optimizer_resumes_to_the_same_bits(optimizer, tiny, monkeypatch, tmp_path):
    how = dict(optimizer=optimizer, keep_optimizer=True, weight_decay=.1, schedule="cosine", warmup=1, rounds=3)
    same_bits(monkeypatch, tmp_path, "fedavg", tiny, **SMALL | how)


def test_adamw_is_not_adam(tiny):
    a, b = (run("fedavg", tiny, optimizer=o, weight_decay=.5, **SMALL) for o in ("adam", "adamw"))
    assert bits(a) != bits(b)
    a, b = (run("fedavg", tiny, optimizer=o, **SMALL) for o in ("adam", "adamw"))
    assert bits(a) == bits(b)


def test_a_cosine_ends_near_zero_and_goes_with_the_others():
    lr = Settings(lr=1., schedule="cosine", warmup=2, lr_decay=.5).lr_at
    assert [lr(r, 6) for r in range(6)] == pytest.approx(
        [.5, .5, .25, .125*(1 + math.cos(math.pi/4))/2, .0625/2, .03125*(1 + math.cos(3*math.pi/4))/2])


def test_a_run_with_a_cosine_is_not_prolonged(tiny, tmp_path):
    run("fedavg", tiny, schedule="cosine", out=tmp_path, **SMALL)
    with pytest.raises(FdgnbError, match="the cosine of the learning rate spans the rounds"):
        run("fedavg", tiny, schedule="cosine", out=tmp_path, **SMALL | dict(rounds=3))
    refused("warmup=1: wanted fewer than the 1 rounds", tiny, warmup=1)


def test_runs_without_the_later_settings_are_named_as_before():
    told = list_settings(Settings())
    assert not {"schedule", "warmup", "class_weights"} & told.keys()
    assert list_settings(Settings(warmup=2))["warmup"] == 2 and len(list_settings(Settings(warmup=2))) == len(told) + 1


# ---- weights of classes

def test_balanced_weights_are_each_clients_own(tiny):
    fed = Federation("fedavg", tiny, "blended", 1, class_weights="balanced")
    for c in fed.clients:
        n = torch.bincount(c.splits["train"].y, minlength=10)
        assert torch.allclose((c.class_weights*n)[n > 0], torch.tensor(c.n()/int((n > 0).sum())))
    assert Federation("fedavg", tiny, "blended", 1).clients[0].class_weights is None


def test_weights_change_the_loss_and_resume(tiny, monkeypatch, tmp_path):
    weights = {"3": 5., "7": .5}
    whole = same_bits(monkeypatch, tmp_path, "labelsmoothing", tiny, class_weights=weights, **SMALL)
    assert bits(whole) != bits(run("labelsmoothing", tiny, **SMALL))
    ones = run("fedavg", tiny, class_weights=[1.]*10, **SMALL)
    assert bits(ones) == bits(run("fedavg", tiny, **SMALL))
    logits, y = torch.randn(6, 10, generator=generator(0)), torch.arange(6)
    c = whole.fed.clients[0]
    assert torch.equal(Method().criterion(logits, y, c), F.cross_entropy(logits, y, c.class_weights))


class OwnLoss(Method):
    replaces = ("criterion",)
    def criterion(self, logits, y, client): return F.multi_margin_loss(logits, y)


def test_weights_that_would_do_nothing_are_refused(tiny):
    for bad, says in [([1.]*9, "9 numbers for 10 classes"), ({"ten": 1.}, "unknown class 'ten'"),
                      (-1, "class_weights=-1: ")]:
        refused(says, tiny, class_weights=bad)
    with pytest.raises(FdgnbError, match="class_weights do nothing in 'ownloss'"):
        Federation(OwnLoss, tiny, "blended", 1, class_weights="balanced")


# ---- devices and metrics

def test_devices(monkeypatch):
    assert check_device("auto") == ("cuda" if torch.cuda.is_available() else check_device("auto"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert check_device("auto") == "cpu"
    with pytest.raises(FdgnbError, match="device 'mps' is not available here; use device='cpu', or 'auto'"):
        check_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert check_device("auto") == check_device("mps") == "mps"
    with pytest.raises(FdgnbError, match="use device='cpu'"), explain_mps(): raise TypeError("MPS ... float64")


def test_auto_is_recorded_as_what_it_was(tiny):
    fed = Federation("fedavg", tiny, "blended", 1, device="auto")
    assert fed.args()["device"] == str(fed.device) != "auto"


def test_metrics_by_class_stand_in_the_history(tiny):
    done = run("fedavg", tiny, eval_every=1, callbacks=[Metrics("recall", "precision", "auroc")], **SMALL)
    there = set(done.history.metric)
    for name in ("recall", "precision", "auroc"): assert {name, f"{name}[3]"} <= there
    at = done.history[(done.history["round"] == 2) & (done.history.split == "target")].set_index("metric")["value"]
    assert at["recall"] == pytest.approx(at[[k for k in at.index if k.startswith("recall[")]].mean())
    assert 0 <= done.table(metric="auroc[3]").loc["last", "target"] <= 1


class FakeMlflow:
    "What the callback calls of mlflow."
    def __init__(self): self.told, self.inside = [], None
    def active_run(self): return self.inside
    def start_run(self, **kw): self.told.append(("start", kw))
    def log_params(self, params): self.told.append(("params", params))
    def log_metrics(self, values, step): self.told.append((step, values))
    def end_run(self): self.told.append("end")


def test_mlflow_is_told_every_row(tiny, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    call = SMALL | dict(eval_every=1)
    done = run("fedavg", tiny, callbacks=[Metrics("recall"), MLflow(run_name="a")], **call)
    (_, how), (_, params), *rounds, end = fake.told
    assert how == dict(nested=False, run_name="a") and end == "end"
    assert params["method"] == "fedavg" and params["settings.lr"] == "0.01"
    found = [(step, v) for step, values in rounds for v in values.values()]
    assert found == [(r[0], r[5]) for r in done.rows]
    names = {n for _, values in rounds for n in values}
    assert "recall_3_/aggregated/target/blended" in names
    fake.told, fake.inside = [], object()
    run("fedavg", tiny, callbacks=[MLflow()], **SMALL)
    assert fake.told[0] == ("start", dict(nested=True))


def test_mlflow_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(FdgnbError, match="pip install mlflow") as e: MLflow()
    assert one_line(e)
