"Data: determinism, the cache, anyone's folders, and the one line that each mistake gets."
import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgnb.core import FdgnbError
from fdgnb.data.domain import (Dataset, Domain, check_names, check_size, choose_domains, scale_channels, split_indices,
                               suggest_backbone)
from platformdirs import user_cache_path
from fdgnb.data.cache import cache_dir, cache_places, cache_arrays, data_dir
from fdgnb.data.folders import decode, from_folder
from fdgnb.data.catalogue import DATASETS, get_dataset, list_datasets
from fdgnb.data.digits import deal_thirds
from fdgnb.data.prepare import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    "Every test decodes into a folder of its own."
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    return tmp_path / "cache"


def start(code, folder):
    "Run `code` in another process with its own cache."
    env = {**os.environ, "FDGNB_CACHE": str(folder), "OMP_NUM_THREADS": "1",
           "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


def says(f, *parts):
    "`f` fails with an FdgnbError of one line that holds `parts`."
    with pytest.raises(FdgnbError) as e:
        f()
    message = str(e.value)
    assert "\n" not in message
    for p in parts:
        assert p in message, message


def picture(path, color=(200, 100, 50), side=12):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), color).save(path)


@pytest.fixture
def shop(tmp_path):
    "Two domains, two classes, two pictures each."
    for d in ("front", "back"):
        for c in ("cat", "dog"):
            for i in range(2):
                picture(tmp_path / "shop" / d / c / f"{i}.png", (len(d) * 10, ord(c[0]), i))
    return tmp_path / "shop"


# digits


def test_digits_shapes_and_balance():
    ds = get_dataset("digits")
    assert ds.names == ["optical", "blended", "inked", "rendered", "cluttered"]
    assert (ds.n_classes, ds.in_channels, ds.size) == (10, 3, 28)
    for d in ds.domains.values():
        assert d.x.dtype == torch.uint8 and d.y.dtype == torch.int64 and d.x.shape == (len(d), 3, 28, 28)
    counts = ds.counts()
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 3
    assert counts.loc[["rendered", "cluttered"]].eq(100).all().all()
    no_handwritten_sample_is_in_two_domains(ds)


def no_handwritten_sample_is_in_two_domains(ds):
    "From the pixels: each picture is most like the sample it was dealt, and the samples dealt are disjoint."
    from sklearn.datasets import load_digits
    hand = load_digits()
    dealt = deal_thirds(hand.target)
    assert sorted(np.concatenate(list(dealt.values()))) == list(range(1797))

    def standard(a):
        a = a.reshape(len(a), -1) - a.reshape(len(a), -1).mean(1, keepdims=True)
        return a / np.linalg.norm(a, axis=1, keepdims=True)
    small = ds["optical"].x[:, 0, 3:25, 3:25].numpy()
    small = np.stack([np.asarray(Image.fromarray(i).resize((8, 8), Image.BOX), float) for i in small])
    found = (standard(small) @ standard(hand.images).T).argmax(1)
    assert (found == dealt["optical"]).mean() > .99
    assert not set(found) & set(np.concatenate([dealt["blended"], dealt["inked"]]))
    for name, at in dealt.items():
        assert np.array_equal(ds[name].y, hand.target[at])


def test_digits_other_size():
    ds = get_dataset("digits", size=32, domains=["inked"])
    assert ds.names == ["inked"] and ds["inked"].x.shape == (599, 3, 32, 32)
    says(lambda: get_dataset("digits", size="28"), "size='28'")


def test_small_images_have_a_small_network():
    assert get_dataset("digits", size=32, domains=["inked"]).defaults["backbone"] == "cnn2"
    assert [suggest_backbone(side) for side in (7, 8, 15, 16, 28, 62, 63)] == [
        "resnet18", "small", "small", "cnn2", "cnn2", "cnn2", "alexnet_bn"]


def test_versions_of_packages_are_looked_up_once(monkeypatch):
    get_dataset("digits", domains=["inked"])
    monkeypatch.setattr("importlib.metadata.version", lambda name: pytest.fail("looked up again"))
    get_dataset("digits", domains=["inked"])


# names


def test_missing_dataset_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path / "nowhere"))
    says(lambda: get_dataset("office_caltech10"), "download", str(tmp_path / "nowhere" / "office_caltech10"),
         "FDGNB_DATA",
         "dataset=digits needs nothing")
    table = list_datasets().set_index("name")
    assert not table.loc["office_caltech10", "available"] and table.loc["digits", "available"]
    assert not (tmp_path / "nowhere").exists()


# cache

def test_cache_makes_once_and_repairs(cache):
    calls = []

    def make():
        calls.append(1)
        return dict(x=np.arange(1000, dtype=np.uint8), y=np.arange(3))
    good = np.arange(1000, dtype=np.uint8)
    for _ in range(2):
        assert np.array_equal(cache_arrays("entry", make)["x"], good)
    assert len(calls) == 1
    entry = cache / "entry"

    def tear(name, f):
        b = (entry / name).read_bytes()
        (entry / name).write_bytes(f(b))
        os.utime(entry / name, ns=(1, 1))
    cases = [("x.npy", lambda b: b[:-1], "its manifest says"),
             ("x.npy", lambda b: b[:500] + b"?" + b[501:], "was altered"),
             ("y.npy", lambda b: b"", "its manifest says"),
             ("manifest.json", lambda b: b[: len(b) // 2], "cannot be read"),
             ("manifest.json", lambda b: b"{}", "cannot be read"),
             ("manifest.json", lambda b: b.replace(b"1128", b"1127"), "altered")]
    for k, (name, f, word) in enumerate(cases):
        tear(name, f)
        with pytest.warns(UserWarning, match=word) as w:
            assert np.array_equal(cache_arrays("entry", make)["x"], good)
        assert len(w) == 1 and "\n" not in str(w[0].message) and len(calls) == 2 + k
    (entry / "y.npy").unlink()
    with pytest.warns(UserWarning, match="missing"):
        cache_arrays("entry", make)
    assert [p.name for p in cache.iterdir()] == ["entry"]


def test_cache_altered_between_processes(cache):
    "One flipped byte, length and time stamp kept: found by the digest at the first open of a fresh process."
    code = "import numpy as np; from fdgnb.data.cache import cache_arrays; " \
           "print(int(cache_arrays('entry', lambda: dict(x=np.arange(1000)))['x'].sum()))"
    assert finish(start(code, cache)) == "499500"
    file = cache / "entry" / "x.npy"
    s, b = file.stat(), bytearray(file.read_bytes())
    b[-1] ^= 1
    file.write_bytes(b)
    os.utime(file, ns=(s.st_atime_ns, s.st_mtime_ns))
    p = start(code, cache)
    out, err = p.communicate(timeout=60)
    assert out.strip() == "499500" and "was altered" in err


def test_failed_make_leaves_nothing(cache):
    def boom(): raise RuntimeError("boom")
    with pytest.raises(RuntimeError):
        cache_arrays("entry", boom)
    assert list(cache.iterdir()) == []


def test_arrays_are_copy_on_write(cache):
    a = cache_arrays("entry", lambda: dict(x=np.zeros(4)))["x"]
    torch.from_numpy(a).add_(1)
    assert a.sum() == 4 and cache_arrays("entry", lambda: None)["x"].sum() == 0


def test_two_processes_prepare_one_dataset(tmp_path):
    "Both make it at once and get the same bytes, one whole entry stays, nothing else; the next one opens it."
    code = """
import hashlib, os, sys, time, numpy as np
from pathlib import Path
from fdgnb.data.cache import cache_arrays, _fault, cache_dir
def make():
    print('made', flush=True); Path(READY, str(os.getpid())).touch(); end = time.time() + 60
    while len(os.listdir(READY)) < 2 and time.time() < end: time.sleep(.01)    # until the other one makes it
    return dict(x=np.arange(100000, dtype=np.uint8))
print(hashlib.blake2b(cache_arrays('entry', make)['x'].tobytes()).hexdigest(), _fault(cache_dir()/'entry'))
""".replace("READY", repr(str(tmp_path / "ready")))
    (tmp_path / "ready").mkdir()
    outs = [finish(p).splitlines() for p in [start(code, tmp_path / "shared") for _ in range(2)]]
    want = f"{hashlib.blake2b(np.arange(100000, dtype=np.uint8).tobytes()).hexdigest()} None"
    assert outs == [["made", want]] * 2 and len(list((tmp_path / "ready").iterdir())) == 2
    assert [p.name for p in (tmp_path / "shared").iterdir()] == ["entry"]
    assert finish(start(code, tmp_path / "shared")) == want                      # the third one opens it


def test_two_processes_repair_one_entry(tmp_path):
    "The same, on an entry that is torn."
    (tmp_path / "shared" / "digits").mkdir(parents=True)
    code = "import numpy as np; from fdgnb.data.cache import cache_arrays; " \
           "print(int(cache_arrays('digits', lambda: dict(x=np.arange(9)))['x'].sum()))"
    assert [finish(p) for p in [start(code, tmp_path / "shared") for _ in range(2)]] == ["36", "36"]


def test_cache_is_the_users_own(tmp_path, monkeypatch):
    "Nothing is written to the data folder, which may be shared; a sealed cache folder is left alone."
    user, data = tmp_path / "user", tmp_path / "shared"
    data.mkdir()
    monkeypatch.delenv("FDGNB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(user))
    monkeypatch.setenv("FDGNB_DATA", str(data))
    assert cache_places()[0] == user_cache_path("fdgnb", appauthor=False)
    if sys.platform == "linux":
        assert cache_dir() == user / "fdgnb"
        get_dataset("digits", size=8, domains=["inked"])
        assert len(list((user / "fdgnb").iterdir())) == 1
        (user / "fdgnb").chmod(0o555)
        assert user not in cache_dir().parents
        (user / "fdgnb").chmod(0o755)
    assert list(data.iterdir()) == []
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_a_cache_is_its_users_alone_or_a_groups(tmp_path, monkeypatch):
    def modes(folder): return [oct(p.stat().st_mode & 0o777) for p in sorted((folder, *folder.rglob("*")))]
    def keep(): return cache_arrays("entry", lambda: dict(x=np.arange(9)))
    keep()
    assert modes(tmp_path / "cache") == ["0o700", "0o700", "0o600", "0o600"]
    for name, mode, entry in (("old", 0o755, ["0o755", "0o700"]), ("group", 0o770, ["0o770", "0o770"])):
        monkeypatch.setenv("FDGNB_CACHE", str(tmp_path / name))
        (tmp_path / name / "entry").mkdir(parents=True)
        (tmp_path / name / "entry" / "manifest.json").write_text("{}")                 # as an earlier version left it
        (tmp_path / name).chmod(mode)
        with pytest.warns(UserWarning, match="making it anew"): keep()
        assert modes(tmp_path / name)[:2] == entry
    refused = [("open", lambda p: p.chmod(0o777))]
    if os.getuid() == 0: refused.append(("other", lambda p: os.chown(p, 4001, 4001)))
    for name, spoil in refused:
        monkeypatch.setenv("FDGNB_CACHE", str(tmp_path / name))
        (tmp_path / name).mkdir()
        spoil(tmp_path / name)
        with pytest.raises(FdgnbError, match="is another user's, or anybody may write to it: set FDGNB_CACHE"): keep()


def test_clean_frees_what_the_cache_holds_and_nothing_else(tmp_path, monkeypatch, capsys):
    "Entries of one data set, then all; a stranger's files, and a former version's place, are only named."
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / ".fdgnb_cache" / "pacs-photo-64-x").mkdir(parents=True)
    (tmp_path / "data" / ".fdgnb_cache" / "pacs-photo-64-x" / "x.npy").write_bytes(b"\0" * 5000)
    for key in ("toy-a-8", "toy-b-8", "toys-a-8"):
        cache_arrays(key, lambda: dict(x=np.zeros(1000)))
    (cache_dir() / "notes").mkdir()
    (cache_dir() / "notes" / "letter.txt").write_text("mine")
    assert main(["prepare", "toy", "--clean"]) == 0
    said = capsys.readouterr().out
    assert "freed 16." in said and "2 entries of toy" in said and str(cache_dir()) in said
    assert "a former version left 5.0 kB" in said and "remove it by hand" in said
    assert {p.name for p in cache_dir().iterdir()} == {"toys-a-8", "notes"}
    assert main(["prepare", "--clean"]) == 0 and "1 entries" in capsys.readouterr().out
    assert [p.name for p in cache_dir().rglob("*")] == ["notes", "letter.txt"]
    assert main(["prepare", "--clean"]) == 0 and "freed 0 bytes, 0 entries" in capsys.readouterr().out
    assert main(["prepare"]) == 2 and "name a data set" in capsys.readouterr().err


# folders


def test_files_that_are_no_images_are_said(shop):
    for n in ("notes.txt", ".hidden", "scan.dcm"): (shop / "front" / "cat" / n).write_text("x")
    with pytest.warns(UserWarning, match="passed over 2 files.*notes.txt"):
        assert len(from_folder(shop, size=8)["front"]) == 4


def test_options_of_a_loader(shop):
    says(lambda: get_dataset(str(shop), size=8, domain=["front"]), "unknown option 'domain'",
         "did you mean 'domains'?")
    says(lambda: get_dataset(str(shop), size=8, path="x"), "unknown option 'path'")
    says(lambda: from_folder(shop, size=8, classes=["dog", "dog"]), "wanted a list of different names")


def test_class_absent_from_a_domain(shop):
    for f in (shop / "back" / "dog").iterdir():
        f.unlink()
    says(lambda: from_folder(shop), "class folder", str(shop / "back" / "dog"), "has no images")
    (shop / "back" / "dog").rmdir()
    assert from_folder(shop, size=8).counts().loc["back"].tolist() == [2, 0]


def test_corrupted_image(shop):
    bad = shop / "back" / "cat" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    raises = dict(size=8, on_error="raise")
    says(lambda: from_folder(shop, **raises), str(bad), 'on_error="skip" (of the command: --load "{on_error: skip}")')
    for on_error in (None, "skip"):                                # the second time from the cache
        with pytest.warns(UserWarning, match="skipped 1 of 4 .*damaged") as w:
            ds = from_folder(shop, size=8, on_error=on_error)
        assert "\n" not in str(w[0].message) and ds["back"].y.tolist() == [0, 1, 1]
    for f in (shop / "back" / "cat").iterdir():
        f.write_bytes(b"nothing")
    says(lambda: from_folder(shop, size=8), "cannot read 2 of 4 files")                # a class would be lost
    assert len(from_folder(shop, size=8, on_error="skip")["back"]) == 2
    for f in (shop / "back" / "dog").iterdir():
        f.write_bytes(b"nothing")
    says(lambda: from_folder(shop, size=8, on_error="skip"), "cannot read 4 of 4 files")
    says(lambda: from_folder(shop, on_error="skp"), "did you mean 'skip'?")


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "bmp", "webp", "tif", "png"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK", "1"])
def test_formats(tmp_path, suffix, mode):
    "Every format and mode that can be written is read as RGB, gray stays gray."
    try:
        Image.new("L", (9, 9), 255).convert(mode).save(tmp_path / f"a.{suffix}")
    except OSError:
        pytest.skip(f"{suffix} cannot hold {mode}")
    x = decode(tmp_path / f"a.{suffix}", 8)
    assert x.shape == (3, 8, 8) and x.dtype == np.uint8 and x.min() > 250


def test_folders_of_another_form(shop):
    for path in ("~nobody/shop", "x/"*3000, None): says(lambda: from_folder(path))
    says(lambda: from_folder(shop, size=100_000), "size=100000")
    says(lambda: from_folder(shop, white=0), "white=0")
    says(lambda: from_folder(shop / "front"), "has no class folders")
    says(lambda: from_folder(shop, domains=["fromt"]), "did you mean 'front'?")


def test_groups_and_stratify_of_a_folder(tmp_path):
    for i in range(8):
        picture(tmp_path / "clinic" / "north" / "xy"[i // 4] / f"patient{i // 2}_{i % 2}.png", (i, 0, 0))
    clinic = from_folder(tmp_path / "clinic", size=16, groups=r"patient(\d+)", stratify=True)
    assert clinic["north"].groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and clinic.defaults["stratify"] is True
    says(lambda: from_folder(tmp_path / "clinic", size=16, groups="patient"))
    says(lambda: from_folder(tmp_path / "clinic", size=16, split="folder"), "is no part")


# the real data

def test_office_caltech10_counts(monkeypatch):
    office = DATASETS.get("office_caltech10")
    if not office.info["available"]():
        pytest.skip(f"office_caltech10 is not in {data_dir()}: set FDGNB_DATA")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = get_dataset("office_caltech10", domains=["dslr", "webcam"])
    assert {k: len(d) for k, d in ds.domains.items()} == dict(dslr=157, webcam=295)
    assert ds.size == 28
    assert ds.n_classes == 10
    # the large ones: without decoding
    counts = {d: len(found().y) for d, found in office.find().items()}
    assert counts == dict(amazon=958, caltech=1123, dslr=157, webcam=295)


def test_office_caltech10_other_counts_and_names(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_DATA", str(tmp_path))
    for d in ("Amazon", "Caltech10", "DSLR", "Webcam"):
        picture(tmp_path / "office_caltech10" / d / "mug" / "1.jpg")
    with pytest.warns(UserWarning, match=r"amazon 1 \(published: 958\), caltech 1 \(published: 1123\)") as w:
        assert get_dataset("office_caltech10").names == ["amazon", "caltech", "dslr", "webcam"]
    assert "\n" not in str(w[0].message)


# splits and batches


def test_split_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    split_indices(100)
    get_dataset("digits", domains=["rendered"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_splits_refuse_what_they_cannot_cut():
    says(lambda: split_indices(9, fractions=(.8, .1)), "three fractions")
    says(lambda: split_indices(3, torch.zeros(3, 2), stratify=True), "stratify needs one class a sample")
    assert {k: len(v) for k, v in split_indices(1).items()} == dict(train=1, val=0, test=0)


# domains and data sets


def flat(name, y, width=2, n=None):
    return Domain(name, torch.zeros(len(y) if n is None else n, width), torch.tensor(y))


def test_domains_refuse_arrays_that_do_not_fit():
    says(lambda: flat("photo", [0, 0, 0], n=4), "4 inputs and 3 labels")
    says(lambda: flat("photo", [0., 0., 0.]), "wanted uint8 images")
    says(lambda: flat("ward", [[.5, 1.]]), "zeros and ones, float32")


def test_data_sets_refuse_domains_that_do_not_fit():
    ward = flat("ward", [[1., 1., 0.], [0., 1., 0.]])
    says(lambda: Dataset("toy", {}, ["cat"]), "has no domains")
    says(lambda: Dataset("toy", {"a": flat("a", [0, 2])}, ["cat", "dog"]), "labels 0 to 2, wanted 0 to 1")
    says(lambda: Dataset("chest", {"ward": ward}, ["edema"]), "labels of 3 columns, wanted one for")
    mixed = {"ward": ward, "b": flat("b", [0])}
    says(lambda: Dataset("chest", mixed, ["edema", "nodule", "effusion"]), "wanted one class a sample in all domains")


def test_arguments_that_loaders_share():
    assert (check_size(28), choose_domains("toy", None, ["sketch"])) == (28, ["sketch"])
    says(lambda: check_size("28"), "size='28': expected a whole number")
    says(lambda: check_names(classes=["cat", "cat"]), "classes=['cat', 'cat']: wanted a list of different names")
    says(lambda: choose_domains("toy", ["skech"], ["sketch"]), "did you mean 'sketch'?")


def test_scaled_channels_keep_their_dtype():
    pixels = torch.linspace(0, 1, 300, dtype=torch.float64).view(4, 3, 5, 5)
    assert torch.equal(scale_channels(pixels, "none"), pixels)
    assert torch.allclose(scale_channels(pixels, "half"), 2*pixels - 1)
    assert torch.allclose(scale_channels(pixels, "imagenet")[:, 1], (pixels[:, 1] - .456)/.224)
