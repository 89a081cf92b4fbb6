"""Which files of a data set count, lists that name absent ones, the place of decoded images, texts in `predict`."""
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
import fdgnb
from conftest import said, says
from fdgnb.data.photos import DOMAINNET10, DOMAINNET_CLASSES, VLCS_CLASSES
from fdgnb.data.prepare import main
from fdgnb.data.text import find_missing



@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    "Empty folders of data and of decoded images."
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path/"data"))
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    return tmp_path/"data"


def write(file, seed=0):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)


@pytest.fixture
def shop(tmp_path):
    "A folder of two domains, two classes, three images each."
    for domain in "ab":
        for name in "xy":
            for i in range(3): write(tmp_path/"shop"/domain/name/f"{i}.png", i)
    return tmp_path/"shop"


def test_lists_that_name_absent_files(home):
    "Some: said with the first, and with a part that is left empty; all: refused."
    def arrange(there, root=""):
        for name in DOMAINNET10:
            for i in range(there): write(home/"domainnet"/"clipart"/name/f"{i}.png", i)
        for part, rows in dict(train=range(3), test=range(3, 4)).items():
            lines = [f"{root}clipart/{name}/{i}.png {DOMAINNET_CLASSES.index(name)}"
                     for name in DOMAINNET10 for i in rows]
            (home/"domainnet"/f"clipart_{part}.txt").write_text("\n".join(lines))

    def load(): return fdgnb.get_dataset("domainnet10", size=8, domains=["clipart"])
    arrange(2)
    lines = said(load)[1]
    assert lines[0].startswith("20 of 40 files") and "bird/2.png" in lines[0] and "the part test" in lines[0]
    arrange(4)
    assert said(load)[1] == []
    arrange(4, "elsewhere/")
    says(load, "none of the 40 files", "elsewhere/clipart/bird/0.png")


def test_vlcs_crossval_is_its_val(home):
    for part, n in dict(train=3, crossval=1, test=2).items():
        for label in range(5):
            for i in range(n): write(home/"vlcs"/"LABELME"/part/str(label)/f"{i}.png", i)
    data = fdgnb.get_dataset("vlcs", size=8, domains=["LabelMe"])
    assert {part: len(rows) for part, rows in data["LabelMe"].split.items()} == dict(train=15, val=5, test=10)
    assert data.classes == VLCS_CLASSES


def test_decoded_images_are_kept_listed_removed_or_not_kept(shop, tmp_path, monkeypatch, capsys):
    "The same bits from memory where the cache is off, and not a file more on the disk."
    kept = fdgnb.from_folder(shop, size=8)
    assert main(["cache"]) == 0 and "shop-a-8" in capsys.readouterr().out
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("FDGNB_CACHE", "off")
    assert torch.equal(fdgnb.from_folder(shop, size=8)["a"].x, kept["a"].x) and sorted(tmp_path.rglob("*")) == before
    assert main(["cache"]) == 2 and "FDGNB_CACHE=off" in capsys.readouterr().err
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    assert main(["cache", "--clear", "shop"]) == 0 and "2 entries of shop" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["~nobody-here/x", "x/"*3000, "x"*999, None, 3])
def test_paths_that_are_none(path): says(lambda: fdgnb.from_folder(path), "folder of <domain>/<class>")


@pytest.mark.skipif(bool(find_missing()), reason="the encoder of texts is not installed: make text")
def test_texts_are_asked_as_they_were_read(tmp_path):
    "By the data set's encoder, in the run and read back; what is no text is told so."
    rows = [(f"{word} {what}", word, domain) for word in ("good", "bad") for domain in ("books", "pans")
            for what in ("one", "two")]
    frame = pd.DataFrame(rows, columns=["text", "label", "domain"])
    data = fdgnb.from_texts(frame, tokens=8)
    run = fdgnb.fit("fedavg", data, None, 1, out=tmp_path/"run", progress=False, workers=1)
    texts = frame.text[frame.domain == "books"].tolist()
    for model in (run, fdgnb.load(tmp_path/"run")):
        assert torch.allclose(model.predict(texts), run.predict(data["books"]), atol=1e-5)
        for wrong in (["so good", " "], [Image.new("L", (8, 8))], np.zeros((2, 5)), []):
            says(lambda: model.predict(wrong))


@pytest.mark.parametrize("kind", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_table_of_another_encoding(kind, shop, tmp_path):
    "A class keeps its accent; cp1252 is guessed, and said."
    rows = [f"{domain}/x/{i}.png,{label},{domain}" for domain in "ab" for i, label in enumerate(("café", "thé", "thé"))]
    (shop/"own.csv").write_bytes("\n".join(["file,label,domain", *rows]).encode(kind))
    data, lines = said(lambda: fdgnb.from_table(shop/"own.csv", size=8))
    assert data.classes == ["café", "thé"] and len(lines) == (kind == "cp1252")
