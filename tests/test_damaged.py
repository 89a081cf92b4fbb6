"""Damaged files of every kind a loader reads: one line that names the file and says what to do.

A file is cut, flipped, or disagrees with itself; nothing but an FdgnbError of one line may come out.
"""
import bz2, gzip, io, itertools, json, os, pickle, random, struct, warnings, zlib
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from fdgnb.core import FdgnbError
from fdgnb.data import arrays, files, folders, own
from fdgnb.data.arrays import CIFAR10_CLASSES
from fdgnb.data.catalogue import get_dataset
from fdgnb.data.folders import decode, from_folder
from fdgnb.data.photos import PACS_CLASSES
from fdgnb.data.prepare import check, main

AGAIN = "damaged: get it again"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    "An empty data folder and a cache of its own for every test."
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path/"data"))
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    (tmp_path/"data").mkdir()
    return tmp_path/"data"


def says(f, *parts):
    "`f` fails with an FdgnbError of one line that holds `parts`, and hides what it was made from."
    with warnings.catch_warnings(), pytest.raises(FdgnbError) as e:
        warnings.simplefilter("ignore")
        f()
    said = str(e.value)
    assert "\n" not in said and all(str(p) in said for p in parts), said
    assert e.value.__cause__ is None and len(said) < 500
    return said


def warned(f):
    "What `f` returns, and its warnings."
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        return f(), [str(i.message) for i in w if i.category is UserWarning]


# ---- one small whole file of each kind

pixels = lambda *s: np.random.default_rng(0).integers(0, 256, s, dtype=np.uint8)
tens = lambda n: (np.arange(n) % 10)[:, None]


def packed(path, **change):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = dict(x_train=pixels(6, 8, 8), y_train=np.arange(6), x_test=pixels(3, 8, 8), y_test=np.arange(3))
    np.savez(path, **{k: v for k, v in (whole | change).items() if v is not None})


def mat(path, **change):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = dict(train_data=pixels(6, 8, 8, 3), test_data=pixels(3, 8, 8, 3), train_label=tens(6),
                 test_label=tens(3))
    savemat(path, {k: v for k, v in (whole | change).items() if v is not None}, do_compression=True)


def idx(path, a):
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape)
    path.write_bytes(gzip.compress(head + a.tobytes()))


def mnist(home):
    for part, n in (("train", 6), ("t10k", 3)):
        idx(home/"mnist"/f"{part}-images-idx3-ubyte.gz", pixels(n, 28, 28))
        idx(home/"mnist"/f"{part}-labels-idx1-ubyte.gz", np.arange(n, dtype=np.uint8))


def usps(home):
    (home/"digit_five").mkdir()
    row = lambda y: f"{y} " + " ".join(f"{j + 1}:{.5}" for j in range(256)) + "\n"
    for name in ("usps.bz2", "usps.t.bz2"):
        (home/"digit_five"/name).write_bytes(bz2.compress((row(1) + row(10)).encode()))


def cifar(home, **change):
    (home/"cifar-100-python").mkdir(exist_ok=True)
    for part, n in (("train", 4), ("test", 2)):
        d = {b"data": pixels(n, 3072), b"fine_labels": list(range(n))}
        d |= {k.encode(): v for k, v in change.items()} if part == "train" else {}
        (home/"cifar-100-python"/part).write_bytes(pickle.dumps(d, protocol=2))


def jpegs(home, **change):
    (home/"cifar10").mkdir(exist_ok=True)
    b = io.BytesIO()
    Image.fromarray(pixels(8, 8, 3)).save(b, "jpeg")
    n = len(b.getvalue())
    whole = dict(jpeg=np.frombuffer(b.getvalue()*2, np.uint8), offset=[0, n, 2*n], y=[0, 1],
                 classes=CIFAR10_CLASSES)
    for part in ("train", "test"):
        np.savez(home/"cifar10"/f"{part}.npz", **whole | (change if part == "train" else {}))


def reviews(home, *rows):
    whole = [dict(title="a", text="b", label=1), dict(title="c", text="d", label=0)]
    path = home/"amazon_review"/"books"/"books.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(json.dumps(r) for r in [*whole, *rows]).encode()))
    return path


def traps(home, **change):
    top = home/"terra_incognita"
    (top/"eccv_18_all_images_sm").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(top/"eccv_18_all_images_sm"/"0.jpg")
    notes = dict(categories=[dict(id=1, name="opossum")], annotations=[dict(image_id="a", category_id=1)],
                 images=[dict(id="a", file_name="0.jpg", location="38")])
    (top/"caltech.json").write_text(json.dumps(notes | change))
    return top/"caltech.json"


def pacs(home, **change):
    path = home/"pacs"/"photo"/"photo_8.npz"
    path.parent.mkdir(parents=True)
    whole = dict(x=pixels(2, 8, 8, 3), y=[0, 6], name=["dog/1.jpg", "person/1.jpg"], classes=PACS_CLASSES)
    np.savez(path, **whole | change)
    return path


# what makes a whole file, which one is then damaged, and how it is read
KINDS = dict(
    npz=(lambda h: packed(h/"digit_five/usps.npz"), "digit_five/usps.npz", "digit_five", "usps"),
    mat=(lambda h: mat(h/"digit_five/syn_number.mat"), "digit_five/syn_number.mat", "digit_five", "syn"),
    idx_images=(mnist, "mnist/train-images-idx3-ubyte.gz", "mnist", "mnist"),
    idx_labels=(mnist, "mnist/t10k-labels-idx1-ubyte.gz", "mnist", "mnist"),
    bz2=(usps, "digit_five/usps.bz2", "digit_five", "usps"),
    pickle=(cifar, "cifar-100-python/train", "cifar100", "cifar100"),
    jpegs=(jpegs, "cifar10/train.npz", "cifar10", "cifar10"),
    packed_pacs=(pacs, "pacs/photo/photo_8.npz", "pacs", "photo"),
    reviews=(reviews, "amazon_review/books/books.jsonl.gz", "amazon_review", "books"),
    json=(traps, "terra_incognita/caltech.json", "terra_incognita", "location_38"))


def read(name, domain):
    "Everything a loader reads of a domain: labels, samples, duplicates; images decoded where there are any."
    check(name, [domain])
    if name != "amazon_review": get_dataset(name, domains=[domain], size=8)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_and_cut(kind, home):
    "The whole file is read; cut anywhere, or replaced by nothing or nonsense, it is one line with its name."
    make, file, name, domain = KINDS[kind]
    make(home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read(name, domain)
    whole = (home/file).read_bytes()
    for b in (whole[:len(whole)//2], whole[:-5], whole[:3], b"", b"<html>404 Not Found</html>"):
        (home/file).write_bytes(b)
        said = says(lambda: read(name, domain), (home/file).name)
        assert AGAIN in said, said


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes(kind, home):
    "Of 40 files with bytes flipped at random each is read, or is one line: never a traceback."
    make, file, name, domain = KINDS[kind]
    make(home)
    r, whole, refused = random.Random(0), (home/file).read_bytes(), 0
    for i in range(40):
        b = bytearray(whole)
        for _ in range(r.choice((1, 3, 20))):
            b[r.randrange(min(len(b), r.choice((99, 10**9))))] = r.randrange(256)
        (home/file).write_bytes(bytes(b))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try: read(name, domain)
            except FdgnbError as e:
                refused += 1
                assert "\n" not in str(e)
    assert refused or kind in ("idx_images", "bz2")


NAN = float("nan")
WRONG = {
    "counts of an npz": (dict(y_train=np.arange(5)), "6 images, but 5 labels"),
    "labels below 0": (dict(y_train=np.arange(6) - 1), "labels -1 to 4, wanted 0 to 9"),
    "labels beyond the classes": (dict(y_test=np.arange(3) + 9), "labels 0 to 11, wanted 0 to 9"),
    "labels that are NaN": (dict(y_train=np.full(6, NAN)), "NaN or no whole numbers"),
    "labels in halves": (dict(y_train=np.arange(6)/2), "NaN or no whole numbers"),
    "labels that are words": (dict(y_train=list("abcdef")), "wanted whole numbers"),
    "labels nearly one-hot": (dict(y_train=np.ones((6, 10))), "not one-hot"),
    "pixels that are NaN": (dict(x_train=np.full((6, 8, 8), NAN)), "pixels that are not finite"),
    "pixels that are no images": (dict(x_train=np.zeros((6, 63))), "holds no images"),
    "five channels": (dict(x_train=np.zeros((6, 9, 8, 5))), "images of 5 channels"),
    "no training part": (dict(x_train=np.zeros((0, 8, 8)), y_train=[]), "its training part is empty"),
    "an array is missing": (dict(x_test=None), "holds no array 'x_test'"),
    "two shapes": (dict(x_test=pixels(3, 9, 9)), "images of another shape")}


@pytest.mark.parametrize("what", WRONG)
def test_a_packed_file_that_disagrees_with_itself(what, home):
    change, part = WRONG[what]
    packed(home/"digit_five/usps.npz", **change)
    says(lambda: read("digit_five", "usps"), "usps.npz", AGAIN, part)


def test_other_formats_that_disagree_with_themselves(home):
    mat(home/"digit_five/syn_number.mat", train_label=tens(5))
    says(lambda: read("digit_five", "syn"), "syn_number.mat", AGAIN, "6 images, but 5 labels")
    mat(home/"digit_five/syn_number.mat", train_label=None)
    says(lambda: read("digit_five", "syn"), "syn_number.mat", AGAIN, "holds no array 'train_label'")
    savemat(home/"digit_five/usps_28x28.mat", dict(dataset=np.zeros(3)))
    says(lambda: read("digit_five", "usps"), "usps_28x28.mat", AGAIN, "no pair of pairs")
    house = dict(X=pixels(32, 32, 3, 2), y=[[11], [1]])
    for p in ("train", "test"): savemat(home/f"digit_five/{p}_32x32.mat", house)
    says(lambda: read("digit_five", "svhn"), "train_32x32.mat", AGAIN, "labels 1 to 11")
    mnist(home)
    idx(home/"mnist/train-labels-idx1-ubyte.gz", np.arange(5, dtype=np.uint8))
    says(lambda: read("mnist", "mnist"), "train-images", AGAIN, "6 images, but 5 labels")
    for change in (dict(fine_labels=[0]), dict(data=None), dict(fine_labels=[0, 1, 2, 100]),
                   dict(fine_labels=[0, 1, 2, NAN]), dict(data=np.zeros((4, 9), np.uint8)),
                   dict(data=np.zeros((4, 3072)))):
        cifar(home, **change)
        says(lambda: read("cifar100", "cifar100"), AGAIN, "train")
    (home/"cifar-100-python"/"train").write_bytes(pickle.dumps([1]))
    says(lambda: read("cifar100", "cifar100"), AGAIN, "no dictionary")
    for change in (dict(offset=[0, 10**9, 5]), dict(offset=[0, 1]), dict(y=[0, -1]), dict(y=[0, NAN])):
        jpegs(home, **change)
        says(lambda: read("cifar10", "cifar10"), AGAIN, "train.npz")
    says(lambda: (pacs(home, name=["dog/1.jpg"]), read("pacs", "photo")), "photo_8.npz", AGAIN, "1 names")
    rows = dict(title="a"), dict(title="a", text="b", label=2), dict(title="a", text=3, label=0), [1], None
    for row in rows:
        reviews(home, row)
        says(lambda: read("amazon_review", "books"), "books.jsonl.gz", AGAIN, "line 3")


@pytest.mark.parametrize("change", [dict(images=None), dict(images=[1]), dict(images=[dict(id="a")]),
                                    dict(annotations=dict(a=1)), dict(categories=[dict(id=[], name="b")])])
def test_annotations_of_another_form(change, home):
    says(lambda: (traps(home, **change), check("terra_incognita")), "caltech.json", AGAIN, next(iter(change)))


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "a/../../secret.jpg", "..\\secret.jpg",
                                  "a\0b"])
def test_annotations_stay_in_their_folder(name, home):
    Image.new("RGB", (8, 8)).save(home/"secret.jpg")
    images = [dict(id="a", file_name=name, location="38")]
    traps(home, images=images)
    says(lambda: check("terra_incognita"), "leads out of its folder", "caltech.json")


def test_official_lists(home):
    "A list that is not UTF-8 is damaged; one that leads out of its folder is refused."
    (home/"domainnet/clipart/bird").mkdir(parents=True)
    (home/"domainnet/clipart_test.txt").write_text("")
    (home/"domainnet/clipart_train.txt").write_bytes(b"clipart/bird/\xff.jpg 31\n")
    says(lambda: check("domainnet", ["clipart"]), "clipart_train.txt", AGAIN, "UnicodeDecodeError")
    (home/"domainnet/clipart_train.txt").write_text("../../bird/1.jpg 31\n")
    says(lambda: check("domainnet", ["clipart"]), "clipart_train.txt", "leads out of its folder")
    (home/"domainnet/clipart_train.txt").write_text("")
    says(lambda: check("domainnet", ["clipart"]), "clipart_train/test.txt name no files")


def test_the_command_line_says_it_too(home, capsys):
    packed(home/"digit_five/usps.npz", y_train=np.full(6, NAN))
    assert main(["check", "digit_five", "--domain", "usps"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- images

def shop(home, side=12):
    for d in ("back", "front"):
        for c in ("cat", "dog"):
            (home/d/c).mkdir(parents=True)
            Image.fromarray(pixels(side, side, 3)).save(home/d/c/"1.png")
    return home


def png_of(width, height):
    "A PNG that announces so many pixels and holds none."
    part = lambda k, b: struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b))
    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"\0"*99)) + part(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_a_decompression_bomb(side, home):
    "Refused by its header, at one and at twice PIL's limit; skipped as any damaged file."
    (shop(home)/"back/cat/2.png").write_bytes(png_of(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        says(lambda: from_folder(home, size=8, on_error="raise"), "back/cat/2.png", "MAX_IMAGE_PIXELS allows: shrink")
        assert len(from_folder(home, size=8)["back"]) == 2


@pytest.mark.parametrize("form", ["gif", "ppm", "tga", "ico", "eps"])
def test_formats_that_are_not_allowed(form, home):
    Image.fromarray(pixels(16, 16, 3)).save(shop(home)/"back/cat/2.png", form)
    says(lambda: from_folder(home, size=8, on_error="raise"), "back/cat/2.png", "neither BMP, JPEG, PNG, TIFF nor WebP")


@pytest.mark.parametrize("form", ["png", "jpeg", "tiff", "bmp", "webp"])
def test_images_cut_and_flipped(form):
    "100 damaged images of each format: each is decoded, or is one line."
    b, r, refused = io.BytesIO(), random.Random(0), 0
    Image.fromarray(pixels(24, 24, 3)).save(b, form)
    for i in range(100):
        m = bytearray(b.getvalue())
        if i % 3 == 0: m = m[:r.randrange(1, len(m))]
        for _ in range(r.choice((0, 1, 5))): m[r.randrange(len(m))] = r.randrange(256)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try: assert decode(io.BytesIO(m), 8).shape == (3, 8, 8)
            except FdgnbError as e:
                refused += 1
                assert "\n" not in str(e)
    assert refused >= 20


@pytest.mark.parametrize("files, lost, few", [
    (155, [7], True), (3, [0], True), (1, [0], False), (40, range(4), True), (40, range(5), False)])
def test_a_few_damaged_files_of_a_class_stop_nothing(files, lost, few):
    labels = [1]*files + [0]*50
    assert folders.are_few(labels, list(lost), ["damaged"]) == few
    assert not folders.are_few(labels, list(lost), [folders.NoScale("give the white= they have")])


def test_a_damaged_text_is_skipped_with_a_line(home):
    for d, c, i in itertools.product("ab", "xy", range(3)):
        (home/d/c).mkdir(parents=True, exist_ok=True)
        (home/d/c/f"{i}.txt").write_text("words")
    (home/"a/x/0.txt").write_text(" ")
    (home/"b/x/0.txt").write_bytes(b"a\0b\0")
    rows, said = warned(lambda: own._text_rows(home))
    assert len(rows) == 10 and len([m for m in said if "skipped 1 of 6 files" in m]) == 2
    says(lambda: own._text_rows(home, on_error="raise"), "0.txt", "it is empty")


def test_a_mistake_of_our_own_keeps_its_traceback(home, monkeypatch):
    "What is no reader's exception is not called damage, nor skipped."
    def mistake(*args): raise ZeroDivisionError("ours")
    monkeypatch.setattr(folders, "open_image", mistake)
    with pytest.raises(ZeroDivisionError): from_folder(shop(home), size=8, on_error="skip")
    mnist(home)
    monkeypatch.setattr(arrays, "_idx", mistake)
    with pytest.raises(ZeroDivisionError): check("mnist")
    with pytest.raises(NameError), files.reading("a", "npz"): undefined                       # noqa: F821


# ---- folders

def test_dangling_links_and_special_files_are_counted(home, tmp_path):
    top = shop(home)
    (top/"back/cat/2.png").symlink_to(tmp_path/"gone.png")
    os.mkfifo(top/"back/cat/3.png")
    (top/"back/cat/loop").symlink_to(top/"back/cat/loop")
    (top/"side").symlink_to(tmp_path/"unmounted")
    (top/"front/elk").symlink_to(tmp_path/"unmounted")
    data, said = warned(lambda: from_folder(top, size=8))
    assert len(data["back"]) == 2 and data.names == ["back", "front"]
    counted = [m for m in said if "dangling link" in m]
    assert len(counted) == 3 and "3 dangling links" in counted[2] and "back/cat/2.png" in counted[2]
    assert "front/elk" in counted[1] and "side" in counted[0]
    (top/"back/cat/4.png").symlink_to(top/"back/dog/1.png")                      # a link that leads somewhere
    assert len(warned(lambda: from_folder(top, size=8))[0]["back"]) == 3


def test_a_pipe_in_the_place_of_an_archive_does_not_block(home):
    (home/"digit_five").mkdir()
    os.mkfifo(home/"digit_five/usps.npz")
    says(lambda: check("digit_five", ["usps"]), "no usps", "download")


def test_names_that_are_not_utf8(home):
    "A file of such a name is read; a folder, whose name would become a class, is refused."
    top = shop(home)
    (top/"back/cat/1.png").rename(top/"back/cat"/os.fsdecode(b"caf\xe9.png"))
    assert len(from_folder(top, size=8)["back"]) == 2
    (top/"front/cat").rename(top/"front"/os.fsdecode(b"caf\xe9"))
    says(lambda: from_folder(top, size=8), "is not UTF-8", "rename it", "front")
    (top/"front"/os.fsdecode(b"caf\xe9")).rename(top/"front"/"a\nb")
    says(lambda: from_folder(top, size=8), "control character", "rename it")


# ---- single files

def test_damage_is_told_from_absence_and_from_a_mistake(home):
    file = home/"a.gz"
    file.write_bytes(gzip.compress(b"a"*999)[:-9])

    def unpack(path):
        with files.reading(path, "gzip"): return gzip.decompress(path.read_bytes())
    with pytest.raises(FdgnbError, match="a.gz' is damaged: get it again \\(EOFError"): unpack(file)
    with pytest.raises(FdgnbError, match="cannot read .*b.gz': No such file"): unpack(home/"b.gz")
    with pytest.raises(NameError), files.reading(file, "gzip"): undefined  # noqa: B018, F821


def test_packed_arrays_are_read_when_asked_for(home):
    file = home/"a.npz"
    np.savez(file, x=np.arange(999), y=np.arange(3))
    whole, packed = file.read_bytes(), files.Packed(file)
    assert packed["y"].tolist() == [0, 1, 2]
    with pytest.raises(FdgnbError, match="holds no array 'z'"): packed["z"]
    file.write_bytes(whole[:-99])
    with pytest.raises(FdgnbError, match="damaged"): files.Packed(file)
    file.write_bytes(whole[:400] + b"?" + whole[401:])
    with pytest.raises(FdgnbError, match="damaged"): files.Packed(file)["x"]
    file.write_text('{"images": [')
    with pytest.raises(FdgnbError, match="JSONDecodeError"): files.read_json(file)


def test_encodings_of_a_text(home):
    file = home/"a.txt"
    for kind in ("utf8", "utf-8-sig", "utf-16", "utf-32"):
        file.write_text("café", kind)
        assert files.read_text(file) == "café"
    file.write_text("café", "cp1252")
    with pytest.raises(FdgnbError, match="UnicodeDecodeError"): files.read_text(file)
    with pytest.warns(UserWarning, match="read as cp1252"): assert files.read_text(file, guess=True) == "café"
    file.write_bytes(b"\x81\0")
    with pytest.raises(FdgnbError, match="neither UTF-8 nor cp1252"): files.read_text(file, guess=True)


def test_labels_and_names_in_a_file(home):
    assert files.to_labels([1., 0.], "a").tolist() == [1, 0]
    for y in ([.5], [float("nan")], ["a"], [[1]]):
        with pytest.raises(FdgnbError, match="labels.mat.*damaged"): files.to_labels(y, "labels.mat")
    assert files.join_path(home/"a", "b/c.jpg", "notes.json") == home/"a"/"b"/"c.jpg"
    for name in ("../c.jpg", "/c.jpg", "b\\..\\..\\c.jpg", "C:\\c.jpg", "", None, "a\0b"):
        with pytest.raises(FdgnbError, match="leads out of its folder"): files.join_path(home/"a", name, "notes.json")


def test_which_files_count(home):
    (home/"gone.png").symlink_to(home/"nowhere.png")
    os.mkfifo(home/"pipe.png")
    (home/"a.txt").write_text("a")
    four = [home/"gone.png", home/"pipe.png", home/"a.txt", home]
    assert list(map(files.is_lost, four)) == [True, True, False, False]
    with pytest.warns(UserWarning, match="passed over 2 dangling links or special files"): files.warn_of_lost(four)
    for name in (".ipynb_checkpoints/1.png", "@eaDir/1.png", "Thumbs.db", "b/1.png"):
        (home/"thumbs"/name).parent.mkdir(parents=True, exist_ok=True)
        (home/"thumbs"/name).write_text("")
    assert files.list_below(home/"thumbs") == [home/"thumbs"/"b"/"1.png"]
    assert files.check_name(home/"Café") == "Café"
    with pytest.raises(FdgnbError, match="is not UTF-8"): files.check_name(home/os.fsdecode(b"caf\xe9"))
