"""Own data: every usual form is taken, and each mistake is one line that says the remedy."""
import random
import warnings
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from conftest import one_line
import fdgnb
from fdgnb import FdgnbError
from fdgnb.data import text
from fdgnb.data.cache import cache_dir
from fdgnb.data.prepare import main

MINILM = pytest.mark.skipif(bool(text.find_missing()), reason=f"not installed: {', '.join(text.find_missing())}")
rng = np.random.default_rng(0)
x, y = rng.integers(0, 256, (6, 3, 28, 28), dtype=np.uint8), [0, 1, 0, 1, 0, 1]
vectors = {k: (rng.normal(size=(12, 5)), np.arange(12) % 2) for k in ("a", "b")}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")


def says(f, *parts):
    with pytest.raises(FdgnbError) as e: f()
    assert one_line(e) and all(p in str(e.value) for p in parts), str(e.value)
    assert len(str(e.value)) < 300 and e.value.__cause__ is None


def spoiled(value):
    a = x/255
    a[2, 1, 3, 3] = value
    return a


SAMPLES = {
    "fractions of 255": (x.astype(np.float32), "divide by 255"),
    "normalized": (x/128 - 1, "undo the normalization"),
    "NaN": (spoiled(np.nan), "1 pixels are NaN or infinite"),
    "infinite": (spoiled(np.inf), "numpy.nan_to_num"),
    "32 bits": (x.astype(int)*2000, "scale them to [0, 1]"),
    "negative": (x.astype(int) - 9, "scale it to [0, 1]"),
    "no pixels": (np.zeros((6, 3, 0, 0)), "hold no numbers"),
    "a tensor without numbers": (torch.zeros(6, 3, 8, 8, device="meta"), "the device meta"),
    "masked": (np.ma.masked_array(x, x > 99), "samples under a mask"),
    "some of PIL": ([Image.new("L", (8, 8)), np.zeros((8, 8))], "some samples are PIL images"),
    "RGBA": (np.zeros((6, 8, 8, 4), np.uint8), "x[..., :3]"),
    "RGBA, first": (np.zeros((6, 4, 8, 8), np.uint8), "x[:, :3]"),
    "rows of RGBA": (np.zeros((6, 3, 8, 4), np.uint8), "channels may be first or last"),
    "sizes": ([np.zeros((8, 8)), np.zeros((9, 9))], "several shapes; resize them"),
    "ragged lists": ([[1, 2], [3]], "several shapes"),
    "deeper ragged lists": ([[[1], [2, 3]]], "several lengths"),
    "paths": (["a.png", "b.png"], "from_folder reads image files"),
    "objects": (np.array([None, 1]), "wanted numbers"),
    "a number": (3, "no samples"), "none": ([], "no samples"), "None": (None, "wanted numbers"),
    "cubes": (np.zeros((6, 3, 4, 4, 4)), "are no images")}


@pytest.mark.parametrize("what", SAMPLES)
def test_samples(what):
    samples, remedy = SAMPLES[what]
    says(lambda: fdgnb.from_arrays(dict(a=(samples, y))), "domain 'a'", remedy)


LABELS = {
    "NaN": ([0, 1, np.nan, 1, 0, 1], "leave those samples out"),
    "fractions": (np.array(y)/2, "fractions, wanted whole numbers"),
    "floating-point": (np.array(y, float), "floating-point: give y.astype(int)"),
    "one-hot": (np.eye(2)[y], "y.argmax(1)"),
    "too few": (y[:3], "6 inputs and 3 labels"),
    "None": ([None]*6, "wanted whole numbers or words"),
    "a number": (1, "wanted (N,)")}


@pytest.mark.parametrize("what", LABELS)
def test_labels(what):
    labels, remedy = LABELS[what]
    says(lambda: fdgnb.from_arrays(dict(a=(x, labels))), "domain 'a'", remedy)


def test_a_sample_whose_file_cannot_be_read(tmp_path):
    "A file that is gone or cut is named with its sample; a mistake in the data set's own code is not hidden."
    Image.fromarray(x[0, 0]).save(tmp_path/"cut.png")
    (tmp_path/"cut.png").write_bytes((tmp_path/"cut.png").read_bytes()[:60])
    class Files(list):
        def __getitem__(self, i): return super().__getitem__(i)()
    def read(name):
        with Image.open(tmp_path/name) as im: return im.convert("RGB"), 0
    for name in ("cut.png", "gone.png"):
        ds = Files([lambda: (Image.fromarray(x[0, 0]), 0), lambda: read(name)])
        says(lambda: fdgnb.from_torch(dict(a=ds), size=8), "domain 'a': sample 1 cannot be read")
    with pytest.raises(FdgnbError, match="sample 0 cannot be read .ZeroDivisionError") as e:
        fdgnb.from_torch(dict(a=Files([lambda: 1/0])))
    assert one_line(e) and isinstance(e.value.__cause__, ZeroDivisionError)


def test_check_of_a_folder_says_what_a_run_refuses(tmp_path, capsys):
    "Of a folder of one's own nothing is called published, and what a run refuses or passes over is said."
    for d in ("north", "south"):
        for c in ("cat", "dog"):
            (tmp_path/"shop"/d/c).mkdir(parents=True)
            for i in range(3): Image.fromarray(x[i].transpose(1, 2, 0)).save(tmp_path/"shop"/d/c/f"{i}.png")
    assert main(["check", str(tmp_path/"shop")]) == 0
    said = capsys.readouterr().out
    assert "publ" not in said and said.rstrip().endswith("counted and decoded")
    assert "cannot be read" not in said
    (tmp_path/"shop"/"south"/"cat"/"1.png").write_bytes(b"no image")
    assert main(["check", str(tmp_path/"shop")]) == 0
    said = capsys.readouterr().out
    assert "images of south that cannot be read: 1" in said and "1.png" in said and "a run leaves them out" in said
    (tmp_path/"shop"/"south"/"cat"/"2.png").write_bytes(b"no image")
    assert main(["check", str(tmp_path/"shop")]) == 1 and "a run refuses them" in capsys.readouterr().out
    (tmp_path/"shop"/"south"/"cat"/"2.png").unlink()
    assert main(["check", str(tmp_path/"shop"), "--no-decode"]) == 0
    assert "cannot be read" not in (said := capsys.readouterr().out) and "counted, not decoded" in said
    (tmp_path/"shop"/"south"/"cat"/"1.png").unlink()
    (tmp_path/"shop"/"north"/"cat"/"0.png").rename(tmp_path/"shop"/"north"/"cat"/"0.dcm")
    for f in (tmp_path/"shop"/"south"/"dog").iterdir(): f.unlink()
    assert main(["check", str(tmp_path/"shop")]) == 1
    said = capsys.readouterr().out
    assert all(w in said for w in ("folders without images: 1", "the first: 'dog in south'", "0.dcm"))
    says(lambda: fdgnb.from_folder(tmp_path/"shop"), "has no images")


def test_signals_are_vectors_where_one_says_so():
    "Floats (N, H, W) may be either: gray images are said to be taken for such, once, unless their kind is given."
    signals = rng.random((6, 12, 100))
    two = {d: (signals, y) for d in "ab"}
    with pytest.warns(UserWarning, match=r"\(12, 100\) are taken for gray images.*kind='vectors'") as lines:
        assert fdgnb.from_arrays(two)["a"].x.shape == (6, 1, 12, 100)
    assert len(lines) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fdgnb.from_arrays(two, kind="images")["a"].x.shape == (6, 1, 12, 100)
        data = fdgnb.from_arrays(two, kind="vectors")
        pairs = torch.utils.data.TensorDataset(torch.from_numpy(signals), torch.tensor(y))
        assert torch.equal(fdgnb.from_torch(dict(a=pairs), kind="vectors")["a"].x, data["a"].x)
    assert torch.equal(data["a"].x, torch.from_numpy(signals).float().flatten(1))
    run = fdgnb.fit("fedavg", data, None, 1, batch_size=4, progress=False, workers=1, fractions=(1., 0., 0.))
    assert torch.equal(run.predict(signals), run.predict(data["a"]))
    says(lambda: fdgnb.from_arrays(vectors, kind="images"), "are no images")
    says(lambda: fdgnb.from_arrays(dict(a=([Image.new("L", (8, 8))]*6, y)), kind="vectors"), "no vectors")


@pytest.mark.parametrize("draw", [lambda: np.random.default_rng().random(), np.random.rand, random.random])
def test_a_random_transform_of_a_torch_data_set_is_said(draw):
    "Also where it changes only some samples, and whatever it draws from."
    class Flipped(list):
        def __getitem__(self, i): return Image.fromarray(x[i % 6, 0, :, ::(-1 if i > 9 and draw() < .5 else 1)]), i % 2
    with pytest.warns(UserWarning, match="domain 'a': sample .* other pixels each time .* augment="):
        fdgnb.from_torch(dict(a=Flipped(range(40))))


def test_forms_that_are_taken():
    tensor = torch.from_numpy(x)
    forms = [x.tolist(), list(x), tuple(tensor), x[::-1][::-1], x.astype(">i2"), (x/255).astype(np.float32),
             torch.from_numpy(x/255).requires_grad_(), x.transpose(0, 2, 3, 1),
             [Image.fromarray(i) for i in x.transpose(0, 2, 3, 1)]]
    for form in forms: assert torch.equal(fdgnb.from_arrays(dict(a=(form, y)))["a"].x, tensor)
    assert fdgnb.from_arrays(dict(a=(pd.DataFrame(vectors["a"][0]), vectors["a"][1])))["a"].x.shape == (12, 5)
    assert fdgnb.from_arrays(dict(a=(x[:, 0], y)))["a"].x.shape == (6, 1, 28, 28)
    assert fdgnb.from_arrays({2019: fdgnb.from_arrays(dict(a=(x, y)))["a"]}).names == ["2019"]


def test_labels_need_not_be_contiguous():
    gaps = fdgnb.from_arrays(dict(a=(x, [7, 3, 7, 3, 3, 3]), b=(x, [-1]*6)))
    assert gaps.classes == ["-1", "3", "7"] and gaps["a"].y.tolist() == [2, 1, 2, 1, 1, 1]
    assert gaps["b"].y.tolist() == [0]*6
    says(lambda: fdgnb.from_arrays(dict(a=(x, [7, 3]*3)), classes=["cat", "dog"]), "classes={label: name}")
    mixed = dict(a=(x, y), b=(x, ["cat"]*6))
    says(lambda: fdgnb.from_arrays(mixed), "numbers in one domain and words in another")
    run = fdgnb.fit("fedavg", gaps, target="b", rounds=1, batch_size=3, progress=False, local_steps=1)
    assert run.fed.data.n_classes == 3


def test_a_dict_of_domains_and_other_containers():
    says(lambda: fdgnb.fit("fedavg", dict(a=(x, y))), "a dict is neither", "from_arrays makes one of")
    says(lambda: fdgnb.fit("fedavg", [x, y]), "a list is neither", "from_arrays")
    says(lambda: fdgnb.fit("fedavg", x), "neither a name, nor a folder, nor a Dataset")
    says(lambda: fdgnb.from_arrays(dict(a=dict(x=x, y=y))), "wanted a pair (x, y)")
    says(lambda: fdgnb.from_arrays({1: (x, y), "1": (x, y)}), "two domains of one name")
    says(lambda: fdgnb.from_arrays(dict(a=(x, y), b=(x[:, :1], y))), "wanted one shape for all")
    says(lambda: fdgnb.from_torch([1]), "from_torch takes a dict")
    says(lambda: fdgnb.from_torch({}), "from_torch takes a dict")
    for ds, part in (([], "no samples"), ([3], "no pair"), ([(x[0], None)], "wanted whole numbers"),
                     ([(x[0], 1), (x[0, :, 1:], 0)], "give size=, like size=64"), (iter([]), "no map-style")):
        says(lambda: fdgnb.from_torch(dict(a=ds)), "domain 'a'", part)


@pytest.mark.parametrize("backbone", ["cnn2", "cnn4", "alexnet_bn", "resnet18", "vgg11", "cct_7_3x1"])
def test_vectors_with_an_image_backbone(backbone):
    data = fdgnb.from_arrays(vectors)
    says(lambda: fdgnb.fit("fedavg", data, target="a", rounds=1, backbone=backbone), backbone,
         "choose backbone='mlp2' for vectors")


def test_images_with_a_backbone_for_vectors():
    says(lambda: fdgnb.fit("fedavg", fdgnb.from_arrays(dict(a=(x, y), b=(x, y))), backbone="mlp2"),
         "choose another backbone for images")


@pytest.mark.parametrize("size, backbone", [(28, "small"), (32, "small"), (64, "small")])
def test_a_folder_at_any_size_runs(size, backbone, tmp_path):
    "The default of a folder takes its size: AlexNet, the default of other sizes than 28 once, needs 63 px."
    for d in ("north", "south"):
        for c in ("cat", "dog"):
            (tmp_path/"shops"/d/c).mkdir(parents=True)
            for i, image in enumerate(x[:4].transpose(0, 2, 3, 1)):
                Image.fromarray(image).save(tmp_path/"shops"/d/c/f"{i}.png")
    data = fdgnb.from_folder(tmp_path/"shops", size=size)
    assert data.defaults["backbone"] == backbone
    run = fdgnb.fit("fedavg", data, target="north", rounds=1, batch_size=4, local_steps=1, progress=False)
    assert len(run.history)


# ---- texts

ROWS = [(f"{w} {what}", label, d) for label, w in ((5, "lovely"), (2, "dull"))
        for what, d in (("novel", "books"), ("story", "books"), ("mixer", "kitchen"), ("pan", "kitchen"))]
TABLE = pd.DataFrame(ROWS, columns=["text", "label", "domain"])


def entries(): return sorted(p.name for p in cache_dir().iterdir())


@MINILM
def test_texts_from_a_table_a_csv_and_a_folder(tmp_path, monkeypatch):
    "The same vectors from each, encoded once; labels with gaps; the vectors are the encoder's."
    table = fdgnb.from_texts(TABLE, tokens=8)
    kept = entries()
    assert len(kept) == 2 and table.classes == ["2", "5"] and table["books"].y.tolist() == [1, 1, 0, 0]
    direct = text.encode([t for t, _, d in ROWS if d == "books"], tokens=8)
    assert np.allclose(table["books"].x.numpy(), direct, atol=1e-5)
    assert all(table[d].encoded_from is not None for d in table.names)
    TABLE.to_csv(tmp_path/"reviews.csv", index=False)
    for i, (t, label, d) in enumerate(sorted(ROWS, key=lambda r: -r[1])):
        (tmp_path/"texts"/d/str(label)).mkdir(parents=True, exist_ok=True)
        (tmp_path/"texts"/d/str(label)/f"{i}.txt").write_text(t)
    by_file = fdgnb.from_texts(tmp_path/"texts", tokens=8)
    assert by_file.classes == ["2", "5"] and by_file["books"].y.tolist() == [0, 0, 1, 1]
    kept = entries()
    def never(*args, **kw): raise AssertionError("encoded again")
    monkeypatch.setattr("fdgnb.data.found.encode", never)
    names = {2: "bad", 5: "good"}
    again = fdgnb.from_texts(str(tmp_path/"reviews.csv"), tokens=8, classes=names, name="mine")
    assert torch.equal(again["books"].x, table["books"].x) and entries() == kept
    assert again.classes == ["bad", "good"] and again.name == "mine"
    run = fdgnb.fit("fedavg", again, target="books", rounds=1, progress=False)
    assert run.fed.settings.backbone == "mlp2"


def test_texts_that_are_wrong(tmp_path, monkeypatch):
    "Each is refused before anything is encoded."
    def never(*args, **kw): raise AssertionError("encoded")
    monkeypatch.setattr("fdgnb.data.found.encode", never)
    cases = [
        (TABLE.rename(columns=dict(label="labels")), "no column 'label'; did you mean 'labels'?"),
        (TABLE.assign(text=[None, *TABLE.text[1:]]), "1 rows have no text, the first is row 0"),
        (TABLE.assign(label=[1.5]*8), "fractions"), (TABLE.assign(text=" "), "8 texts are empty"),
        (TABLE.assign(text=3), "8 texts are empty or no text"), (TABLE[:0], "no rows"),
        (3, "a folder, a CSV file, or a DataFrame"), (tmp_path/"none", "no folder and no CSV file"),
        (tmp_path, "no texts in"), (TABLE.assign(label=[(1,)]*8), "labels of shape (4, 1)")]
    for source, part in cases: says(lambda: fdgnb.from_texts(source), part)
    says(lambda: fdgnb.from_texts(TABLE, classes=["bad", "good"]), "classes={label: name}")
    if not text.find_missing(): says(lambda: fdgnb.from_texts(TABLE, encoder="minilmm"), "did you mean 'minilm'?")
    files = dict(cut=b'text,label,domain\n"a,0,b\n', none=b"", odd=b"text,label,domain\n\x81,0,b\n",
                 unmarked="text,label,domain\na,0,b\n".encode("utf-16-le"),
                 wide=b"text,label,domain\na,0,b\na,0,b,c,d\n", zeros=b"\0"*99)
    for name, b in files.items():
        (tmp_path/f"{name}.csv").write_bytes(b)
        says(lambda: fdgnb.from_texts(tmp_path/f"{name}.csv"), f"{name}.csv")
    (tmp_path/"texts/books/good").mkdir(parents=True)
    (tmp_path/"texts/books/good/1.txt").write_bytes(b"caf\xe9")
    with pytest.warns(UserWarning, match="1.txt' is not UTF-8; read as cp1252"), pytest.raises(AssertionError):
        fdgnb.from_texts(tmp_path/"texts")
    (tmp_path/"texts/books/good/1.txt").write_text("fine")
    (tmp_path/"texts/books/good/2.txt").symlink_to(tmp_path/"gone")
    zeros = lambda texts, *args, **kw: np.zeros((len(texts), 4), np.float32)
    monkeypatch.setattr("fdgnb.data.found.encode", zeros)
    if text.find_missing(): return
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        assert len(fdgnb.from_texts(tmp_path/"texts")["books"]) == 1
    assert any("1 dangling link" in str(i.message) for i in w)


@pytest.mark.parametrize("n, side", [(66, 32), (33, 16), (82, 8)])
def test_a_first_run_learns_with_every_default(n, side):
    """Three gray levels that a mean separates. 66 samples in batches of 32 left a last batch of 2, whose
    normalization over a map of one point exploded, and a ResNet-18 stayed at chance."""
    draw, levels = np.random.default_rng(1), np.array([60, 128, 200])

    def site(n):
        label = draw.integers(0, 3, n)
        return (levels[label][:, None, None, None] + draw.normal(0, 10, (n, 3, side, side))).astype(np.uint8), label

    run = fdgnb.fit("fedavg", fdgnb.from_arrays({k: site(n) for k in "abc"}), rounds=4, progress=False)
    fresh, label = site(200)
    assert (run.predict(fresh).argmax(1).numpy() == label).mean() > .9
    assert run.history.query("metric == 'loss'").value.max() < 10



ODD = {"a bit beyond 1": (x/255*1.0001, "clip them"), "a bit below 0": (x/255 - .01, "clip them"),
       "complex": (x*1j, "wanted numbers"), "sparse": (torch.from_numpy(x).to_sparse(), "to_dense()"),
       "floats of PIL": ([Image.new("F", (8, 8))]*6, "domain 'a'")}


@pytest.mark.parametrize("what", ODD)
def test_odd_pixels(what):
    samples, remedy = ODD[what]
    says(lambda: fdgnb.from_arrays(dict(a=(samples, y))), remedy)


def test_booleans_are_black_and_white():
    assert torch.equal(fdgnb.from_arrays(dict(a=(x > 99, y)))["a"].x, torch.from_numpy((x > 99)*np.uint8(255)))


def test_a_column_of_labels_and_words_that_look_alike():
    column = np.array(y)[:, None] + 3
    for labels in (column, torch.from_numpy(column)):
        assert fdgnb.from_arrays(dict(a=(x, labels)))["a"].y.tolist() == y
    pairs = [(Image.fromarray(v), np.array([label])) for v, label in zip(x.transpose(0, 2, 3, 1), y)]
    assert fdgnb.from_torch(dict(a=pairs))["a"].y.tolist() == y
    alike = dict(a=(x, ["Sick", "well"]*3), b=(x, ["sick", "well"]*3))
    with pytest.warns(UserWarning, match="are different classes, though"):
        assert fdgnb.from_arrays(alike).classes == ["Sick", "sick", "well"]
    says(lambda: fdgnb.from_arrays(dict(a=(x, torch.eye(6).to_sparse()))), "to_dense()")


def test_size_is_for_pil_images():
    pairs = [(Image.fromarray(v), label) for v, label in zip(x.transpose(0, 2, 3, 1), y)]
    assert fdgnb.from_torch(dict(a=pairs), size=16).size == 16
    assert torch.equal(fdgnb.from_torch(dict(a=pairs))["a"].x, torch.from_numpy(x))
    for size in ("16", 0, True): says(lambda size=size: fdgnb.from_torch(dict(a=pairs), size=size), "size=")
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x)/255, torch.tensor(y))
    assert torch.equal(fdgnb.from_torch(dict(a=tensors))["a"].x, torch.from_numpy(x))
    says(lambda: fdgnb.from_torch(dict(a=tensors), size=16), "size= is for PIL images")


def test_a_pil_image_is_read_as_its_file_is(tmp_path):
    "Upright by the camera's note, 16 bits scaled, what is transparent over white; a gray one keeps one channel."
    gray, color = Image.fromarray(x[0, 0, :8, :8]), Image.fromarray(x[0, :, :8, :8].transpose(1, 2, 0))
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)*1000)
    clear, turned = color.copy(), Image.Exif()
    clear.putalpha(gray)
    turned[274] = 6                                                     # orientation: a quarter turn
    kinds = dict(gray=gray, color=color, deep=deep, clear=clear, bits=gray.convert("1"), both=clear.convert("LA"),
                 palette=color.quantize(8))
    for name in (*kinds, "phone"): (tmp_path/"f"/name/"c").mkdir(parents=True)
    for name, im in kinds.items():
        im.save(tmp_path/"f"/name/"c"/"1.png", **(dict(transparency=0) if name == "palette" else {}))
    color.save(tmp_path/"f"/"phone"/"c"/"1.jpg", exif=turned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                                 # 16 bits: 65,535 counts as white
        files = fdgnb.from_folder(tmp_path/"f", size=6)
        for name in files.names:
            with Image.open(next((tmp_path/"f"/name/"c").iterdir())) as im:
                one = fdgnb.from_torch(dict(a=[(im, 0)]), size=6)["a"].x
            assert torch.equal(one.expand(1, 3, 6, 6), files[name].x)
            assert one.shape[1] == (1 if name in ("gray", "deep", "bits") else 3)
    assert len(files["deep"].x.unique()) > 9 and files["clear"].x.float().mean() > files["color"].x.float().mean()
