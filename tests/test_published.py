"""Published data sets: files that are damaged or disagree, lists, what `check` says. Their pages check right values."""
import gzip, json, os, pickle, struct
from pathlib import Path
import numpy as np
import pytest
from conftest import said, says
from pictures import call_data, pixels, write_picture, write_shop
import fdgnb

AGAIN = "damaged: get it again"
PACS = "dog elephant giraffe guitar horse house person".split()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path/"data"))
    monkeypatch.setenv("FDGNB_CACHE", "off")
    (tmp_path/"data").mkdir()
    return tmp_path/"data"


def load(name, domain, **how): return said(lambda: fdgnb.get_dataset(name, domains=[domain], **how))[0]


def put(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


# ---- each data set's files, small, with labels 0, 1, 2 ... in every part

def pacs(home, first=1):
    for i, c in enumerate(PACS):
        for k in range(3): write_picture(home/"pacs/kfold/photo"/c/f"{k}.png", seed=9*i + k)
    for word, ks in dict(train=(1, 2), crossval=(0,)).items():
        rows = [f"photo/{c}/{k}.png {i + first}" for i, c in enumerate(PACS) for k in ks]
        (home/f"pacs/kfold/photo_{word}_kfold.txt").write_text("\n".join(rows))


def usps(home, **change):
    arrays = dict(x_train=pixels(6, 8, 8), y_train=np.arange(6), x_test=pixels(3, 8, 8), y_test=np.arange(3))
    (home/"digit_five").mkdir(exist_ok=True)
    np.savez(home/"digit_five/usps.npz", **{k: v for k, v in (arrays | change).items() if v is not None})


def mnist(home):
    for part, n in dict(train=6, t10k=3).items():
        for kind, a in {"images-idx3": pixels(n, 28, 28), "labels-idx1": np.arange(n, dtype=np.uint8)}.items():
            head = bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape)
            put(home/f"mnist/{part}-{kind}-ubyte.gz", gzip.compress(head + a.tobytes()))


def cifar100(home):
    for part, n in dict(train=4, test=2).items():
        content = {b"data": pixels(n, 3072), b"fine_labels": [*range(n)]}
        put(home/"cifar-100-python"/part, pickle.dumps(content, protocol=2))


def traps(home, **change):
    for i in range(2): write_picture(home/f"terra_incognita/eccv_18_all_images_sm/{i}.jpg", seed=i)
    notes = dict(categories=[dict(id=1, name="opossum"), dict(id=97, name="car")],
                 images=[dict(id=f"a{i}", file_name=f"{i}.jpg", location="38") for i in range(2)],
                 annotations=[dict(image_id=f"a{i}", category_id=c) for i, c in enumerate((1, 97))])
    put(home/"terra_incognita/caltech.json", json.dumps(notes | change).encode())


def domainnet(home, count=4, root=""):
    "Three of the ten classes, of which each list counts files whose first four are there."
    numbers = dict(bird=31, teapot=302, zebra=343)
    for c in numbers:
        for i in range(4): write_picture(home/"domainnet/clipart"/c/f"{i}.png", seed=i)
    for part, rows in dict(train=range(2), test=range(2, count)).items():
        lines = [f"{root}clipart/{c}/{i}.png {n}" for c, n in numbers.items() for i in rows]
        (home/f"domainnet/clipart_{part}.txt").write_text("\n".join(lines))


FILES = {                                               # who writes it, data set, domain, the file that is damaged
    "npz": (usps, "digit_five", "usps", "digit_five/usps.npz"),
    "pickle": (cifar100, "cifar100", "cifar100", "cifar-100-python/train"),
    "idx": (mnist, "mnist", "mnist", "mnist/train-images-idx3-ubyte.gz"),
    "json": (traps, "terra_incognita", "location_38", "terra_incognita/caltech.json")}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_or_altered_is_one_line_with_its_name(kind, home, monkeypatch, capsys):
    write, name, domain, file = FILES[kind]
    write(home)
    read = lambda: call_data(monkeypatch, capsys, "check", name, "--domain", domain)
    assert said(read)[0][0] == 0
    whole = (home/file).read_bytes()
    for content in (whole[:len(whole)//2], whole[:3], b"", b"<html>404 Not Found</html>"):
        (home/file).write_bytes(content)
        code, _, err = said(read)[0]
        assert code == 2 and err.count("\n") == 1 and Path(file).name in err and AGAIN in err


DISAGREE = {
    "counts": (usps, dict(y_train=np.arange(5)), "labels"), "labels": (usps, dict(y_test=np.arange(3) + 9), "label"),
    "an array": (usps, dict(x_test=None), "x_test"), "lists": (pacs, dict(first=0), "counted from 1"),
    "out": (traps, dict(images=[dict(id="a0", file_name="../x.jpg", location="38")]), "leads out"),
    "a root": (domainnet, dict(root="elsewhere/"), "none of")}
READ_AS = {usps: ("digit_five", "usps"), pacs: ("pacs", "photo"), traps: ("terra_incognita", "location_38"),
           domainnet: ("domainnet10", "clipart")}


@pytest.mark.parametrize("what", DISAGREE)
def test_files_that_disagree_with_themselves(what, home):
    write, change, part = DISAGREE[what]
    write(home, **change)
    says(lambda: load(*READ_AS[write], size=8), part)


def test_lists_of_domainnet(home):
    domainnet(home)
    ten = load("domainnet10", "clipart", size=8)
    assert ten["clipart"].y.tolist() == [0, 0, 4, 4, 9, 9, 0, 0, 4, 4, 9, 9] and len(ten["clipart"].split["test"]) == 6
    assert load("domainnet", "clipart", size=8)["clipart"].y.unique().tolist() == [31, 302, 343]
    domainnet(home, count=9)
    _, lines = said(lambda: fdgnb.get_dataset("domainnet10", size=8, domains=["clipart"]))
    assert lines[0].startswith("15 of 27 files that clipart_train/test.txt name are not there")


# ---- what is missing, and the commands

@pytest.mark.parametrize("name", [name for name in fdgnb.list_datasets().name if name != "digits"])
def test_data_that_are_not_here(name, home):
    says(lambda: fdgnb.get_dataset(name), "download", str(home), "FDGNB_DATA")


def test_check_of_a_published_data_set(home, monkeypatch, capsys):
    pacs(home)
    copy = (home/"pacs/kfold/photo/dog/0.png").read_bytes()
    for place in ("photo/dog/copy.png", "sketch/dog/copy.png"): put(home/"pacs/kfold"/place, copy)
    code, out, _ = call_data(monkeypatch, capsys, "check", "pacs")
    assert code == 0 and "22 ! 1670" in out and "not here: art_painting" in out
    assert call_data(monkeypatch, capsys, "check", "pacs", "--strict")[0] == 1
    for words in ("", "chek", "check pac", "check pacs --domain x", "prepare pacs --size many", "check ./nowhere"):
        code, out, err = call_data(monkeypatch, capsys, *words.split())
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and not out


def test_check_of_a_folder_says_what_a_run_refuses_or_passes_over(tmp_path, monkeypatch, capsys):
    shop = write_shop(tmp_path/"shop")
    check = lambda *words: call_data(monkeypatch, capsys, "check", shop, *words)[:2]
    assert check()[0] == 0 and "publ" not in check()[1]
    put(shop/"b/x/copy.png", (shop/"a/x/0.png").read_bytes())
    put(shop/"b/x/2.png", b"no image")
    write_picture(shop/"a/loose.png")
    code, out = check()
    assert code == 0 and "skipped 1 of 7" in out and "loose.png" in out and "across" in out, out
    assert "cannot be read" not in check("--no-decode")[1]
    for i in range(3): (shop/f"b/y/{i}.png").unlink()
    code, out = check()
    assert code == 1 and "has no images" in out


BESIDE = Path(__file__).parents[2]/"shared/data"
PLACES = [Path(os.environ.get("FDGNB_TEST_DATA", BESIDE)), BESIDE]


@pytest.mark.parametrize("name", ["pacs", "office_caltech10", "cifar10", "amazon_review"])
def test_real_data_are_as_many_as_published(name, monkeypatch, capsys):
    place = next((place for place in PLACES if (place/name).is_dir()), None)
    if not place: pytest.skip(f"{name} is not here")
    monkeypatch.setenv("FDGNB_DATA", str(place))
    assert call_data(monkeypatch, capsys, "check", name, "--no-decode", "--strict")[0] == 0
