"""Which files count, lists that name absent ones, the place of decoded images, and texts in `predict`."""
import os, shutil, subprocess, sys
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from conftest import one_line, said, says, zero_vectors
import fdgnb
from fdgnb import FdgnbError
from fdgnb.data import text
from fdgnb.data.cache import cache_dir, cache_entries, check_room
from fdgnb.data.own import _text_rows
from fdgnb.data.photos import DOMAINNET10, DOMAINNET_CLASSES, PACS_CLASSES, VLCS_CLASSES
from fdgnb.data.prepare import check, main

JUNK = (".ipynb_checkpoints", "@eaDir", "__MACOSX", "lost+found", ".hidden/deeper")
MINILM = pytest.mark.skipif(bool(text.find_missing()), reason="no encoder")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path/"data"))
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    return tmp_path/"data"


def write(file, seed=0):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)


def shop(folder):
    for d in "ab":
        for c in "xy":
            for i in range(3): write(folder/d/c/f"{i}.png", i)
    return folder


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", ["", "a", "a/x", "a/x/deeper"])
def test_what_is_hidden_or_a_systems_own_counts_nowhere(junk, place, tmp_path):
    "Images and texts alike; Thumbs.db and .DS_Store are passed over without a word."
    folder, texts = shop(tmp_path/"shop"), tmp_path/"texts"
    shutil.copy(folder/"a"/"x"/"0.png", write(folder/place/junk/"x"/"0.png") or folder/place/junk/"1.png")
    for d in "ab":
        for c in "xy":
            (texts/d/c).mkdir(parents=True)
            (texts/d/c/"1.txt").write_text("one")
    (texts/place/junk/"z").mkdir(parents=True)
    for name in ("1.txt", "z/1.txt"): (texts/place/junk/name).write_text("no")
    for name in ("Thumbs.db", ".DS_Store", "._1.png", "desktop.ini"): (folder/"a"/"x"/name).write_text("")
    data, lines = said(lambda: fdgnb.from_folder(folder, size=8))
    assert lines == [] and data.counts().values.tolist() == [[3, 3], [3, 3]] and data.classes == ["x", "y"]
    assert len(_text_rows(texts)) == 4
    assert [*check(folder).query("`class` == 'all'").found] == [6, 6]


def lists_of(home, there, root=""):
    "DomainNet's ten classes, twelve files each in the lists, those that `there` says on the disk."
    for c in DOMAINNET10:
        for i in range(12):
            if there(i): write(home/"domainnet"/"clipart"/c/f"{i}.png", i)
    for part, rows in dict(train=range(8), test=range(8, 12)).items():
        lines = [f"{root}clipart/{c}/{i}.png {DOMAINNET_CLASSES.index(c)}" for c in DOMAINNET10 for i in rows]
        (home/"domainnet"/f"clipart_{part}.txt").write_text("\n".join(lines))


def test_lists_that_name_absent_files(home):
    lists_of(home, lambda i: i < 4)
    load = lambda: fdgnb.get_dataset("domainnet10", size=8, domains=["clipart"])
    _, lines = said(load)
    wanted = "80 of 120 files that clipart_train/test.txt name are not there, the first: "
    assert lines[0].startswith(wanted) and "bird/4.png" in lines[0] and "nothing is left of the part test" in lines[0]
    lists_of(home, lambda i: True)
    assert said(load)[1] == []
    lists_of(home, lambda i: True, "elsewhere/")
    says(load, "none of the 120 files that clipart_train/test.txt name is there", "elsewhere/clipart/bird/0.png")


def test_pacs_lists_that_name_absent_files(home):
    "No image is called damaged for what a list says."
    for c in PACS_CLASSES: write(home/"pacs"/"photo"/c/"1.png")
    name = lambda stem: [f"photo/{c}/{stem}.png {i}\n" for i, c in enumerate(PACS_CLASSES, 1)]
    for word, stems in dict(train="12", crossval="3").items():
        lines = "".join(line for stem in stems for line in name(stem))
        (home/"pacs"/f"photo_{word}_kfold.txt").write_text(lines)
    load = lambda: fdgnb.get_dataset("pacs", size=8, domains=["photo"])
    lines = said(load)[1]
    assert lines[0].startswith("14 of 21 files that photo_train/crossval_kfold.txt name are not there")
    (home/"pacs"/"photo_train_kfold.txt").write_text("".join(name("2")))
    says(load, "none of the 14 files that photo_train/crossval_kfold.txt name is there", "photo/dog/2.png")


def test_vlcs_crossval_is_its_val(home):
    for part, n in dict(train=3, crossval=1, test=2).items():
        for c in range(5):
            for i in range(n): write(home/"vlcs"/"LABELME"/part/str(c)/f"{i}.png", i)
    data = said(lambda: fdgnb.get_dataset("vlcs", size=8, domains=["LabelMe"]))[0]
    assert {part: len(rows) for part, rows in data["LabelMe"].split.items()} == dict(train=15, val=5, test=10)
    assert data.counts().loc["LabelMe"].tolist() == [6]*5 and data.classes == VLCS_CLASSES
    shutil.rmtree(home/"vlcs"/"LABELME"/"train")
    (home/"vlcs"/"LABELME"/"train").mkdir()
    says(lambda: fdgnb.get_dataset("vlcs", size=8, domains=["LabelMe"]), "LABELME/train", "no images of the 5 classes")


# ---- the cache


def test_nothing_is_kept_where_the_cache_is_off(tmp_path, monkeypatch, capsys):
    "The same bits from memory, and not a file more on the disk; texts too."
    folder = shop(tmp_path/"shop")
    kept = fdgnb.from_folder(folder, size=8)
    monkeypatch.setenv("FDGNB_CACHE", "off")
    before = sorted(tmp_path.rglob("*"))
    data = fdgnb.from_folder(folder, size=8)
    assert torch.equal(data["a"].x, kept["a"].x) and sorted(tmp_path.rglob("*")) == before
    (folder/"a"/"x"/"0.png").write_bytes(b"no image")
    says(lambda: fdgnb.from_folder(folder, size=8, on_error="raise"), "cannot read 1 of")
    assert len(said(lambda: fdgnb.from_folder(folder, size=8))[0]["a"]) == 5
    assert len(fdgnb.get_dataset("digits", domains=["optical"])["optical"]) == 599
    assert cache_entries() == {} and main(["cache"]) == 2 and "FDGNB_CACHE=off" in capsys.readouterr().err
    assert not os.path.exists("off")


def test_the_place_is_said_once_by_a_process(tmp_path):
    code = f"import fdgnb\nfor size in (8, 9): fdgnb.from_folder({str(shop(tmp_path/'shop'))!r}, size=size)"
    run = lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    first = run()
    assert first.count("keeps decoded data in") == 1 and str(tmp_path/"cache") in first and "=off" in first
    assert run() == ""


def test_what_is_kept_is_listed_and_removed(tmp_path, capsys):
    fdgnb.from_folder(shop(tmp_path/"shop"), size=8)
    fdgnb.get_dataset("digits", domains=["optical"])
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "3 entries" in lines[-1] and str(cache_dir()) in lines[-1]
    assert "shop-a-8" in lines[1] and "shop-b-8" in lines[2]
    assert main(["cache", "digits"]) == 0 and "1 entries of digits" in capsys.readouterr().out
    assert main(["cache", "--clear", "shop"]) == 0 and "2 entries of shop" in capsys.readouterr().out
    assert [p.name.split("-")[0] for p in cache_entries()] == ["digits"]
    assert main(["cache", "--clear"]) == 0 and cache_entries() == {}


def test_a_folder_for_which_there_is_no_room(tmp_path, monkeypatch):
    "Said before anything is decoded, on a disk and in memory."
    folder = shop(tmp_path/"shop")
    def never(*args, **kw): raise AssertionError("decoded")
    monkeypatch.setattr("fdgnb.data.folders.decode_with_high", never)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**8))
    says(lambda: fdgnb.from_folder(folder, size=4096), "12 images of 4096 pixels", "604.0 MB", "100.0 MB are free")
    says(lambda: fdgnb.from_folder(folder, size=100_000), "size=100000 is out of range")
    monkeypatch.setenv("FDGNB_CACHE", "off")
    says(lambda: check_room(10**15, "own"), "1000000.0 GB", "of memory")


def test_paths_that_are_none():
    for path in ("~nobody-here/x", "x/"*3000, "x"*999, None, 3):
        says(lambda: fdgnb.from_folder(path), "folder of <domain>/<class>")
    for name in ("~nobody-here/x", "x"*999): says(lambda: fdgnb.fit("fedavg", name))


# ---- texts


@MINILM
def test_texts_are_asked_as_they_were_read(tmp_path):
    "By the data set's encoder, in the run and read back; what is no text is told so, without a word of images."
    rows = [(f"{w} {what}", w, d) for w in ("good", "bad") for d in ("books", "pans") for what in ("one", "two")]
    table = pd.DataFrame(rows, columns=["text", "label", "domain"])
    data = fdgnb.from_texts(table, tokens=8)
    run = fdgnb.fit("fedavg", data, None, 1, out=tmp_path/"run", progress=False, workers=1)
    back, texts = fdgnb.load(tmp_path/"run"), table.text[table.domain == "books"]
    for model in (run, back):
        assert torch.allclose(model.predict(texts.tolist()), run.predict(data["books"]), atol=1e-5)
        assert torch.equal(model.predict(texts), model.predict(texts.tolist()))
        assert model.predict("so good").shape == (1, 2)
        for wrong in (["so good", " "], [Image.new("L", (8, 8))], np.zeros((2, 5)), []):
            with pytest.raises(FdgnbError) as e: model.predict(wrong)
            assert one_line(e) and "pixels" not in str(e.value)


@pytest.mark.parametrize("kind", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_csv_of_another_encoding(kind, tmp_path, monkeypatch):
    seen = []
    zeros = lambda texts, *how: seen.extend(texts) or zero_vectors(texts)
    monkeypatch.setattr("fdgnb.data.own._vectors_of", zeros)
    (tmp_path/"own.csv").write_bytes("text,label,domain\r\ncafé,0,a\r\nthé,1,a\r\n".encode(kind))
    _, lines = said(lambda: fdgnb.from_texts(tmp_path/"own.csv"))
    assert seen == ["café", "thé"] and len(lines) == (kind == "cp1252")
