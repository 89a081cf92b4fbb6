"""Splits by patient, stratified and one's own, from every loader and in fit; arrays and DICOM files by a window."""
import struct
import zlib
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from conftest import said, says, zero_vectors
import fdgnb
from fdgnb import Domain
from fdgnb.core import generator
from fdgnb.data.domain import split_indices
from fdgnb.data.partitions import client_splits, subsample_domains
from fdgnb.settings import Settings

rng = np.random.default_rng(0)
images = rng.integers(0, 256, (60, 16, 16), dtype=np.uint8)
y = np.arange(60)//5 % 3
USUAL = dict(backbone="cnn2", batch_size=8, local_steps=1, progress=False, workers=1, rounds=1)


def patients(d): return [f"{d}{i//5}" for i in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))


def sites(**about):
    return fdgnb.from_arrays({d: (images, y, patients(d)) for d in "ab"}, **about)


def write(folder, pattern="{d}/{c}/p{p}_{i}.png"):
    "24 images of six patients in two domains."
    for d in "ab":
        for i in range(24):
            part = ("train", "val", "test")[i % 3]
            file = folder/pattern.format(d=d, c="xy"[i//4 % 2], p=f"{d}{i//4}", i=i, part=part)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (10*i, 0, 0)).save(file)
    return folder


def assert_apart(clients, data):
    "No group of a client is in two of its parts, and every sample is in one."
    for name, parts in clients.items():
        groups = data[name].groups
        seen = [g for s in parts.values() for g in groups[s.index].unique().tolist()]
        assert len(seen) == len(set(seen)) == len(groups.unique())
        assert sum(map(len, parts.values())) == len(groups)


# ---- the cut

@pytest.mark.parametrize("stratify", [False, True])
def test_a_group_is_in_one_part_and_parts_have_their_shares(stratify):
    for seed in range(5):
        g = np.random.default_rng(seed)
        groups = torch.from_numpy(np.repeat(np.arange(80), g.integers(1, 9, 80)))
        labels = torch.from_numpy(g.integers(0, 2, 80))[groups]
        parts = split_indices(len(groups), labels, generator=generator(seed), stratify=stratify, groups=groups)
        assert torch.cat(list(parts.values())).sort().values.equal(torch.arange(len(groups)))
        own = [set(groups[rows].tolist()) for rows in parts.values()]
        assert sum(map(len, own)) == 80
        for part, share in zip(("train", "val", "test"), (.8, .1, .1)):
            assert abs(len(parts[part])/len(groups) - share) < .05


def test_stratified_groups_hold_the_rare_class_everywhere():
    "One patient in eight is ill: each part has as many as its share."
    groups = torch.arange(40).repeat_interleave(4)
    ill = (groups % 8 == 0).long()
    for seed in range(5):
        parts = split_indices(160, ill, (.6, .2, .2), generator(seed), True, groups)
        counts = {k: (len(v), int(ill[v].sum())) for k, v in parts.items()}
        assert counts == dict(train=(96, 12), val=(32, 4), test=(32, 4))


def test_few_groups_and_odd_fractions():
    of = lambda k, fractions=(.8, .1, .1): {part: len(rows) for part, rows in split_indices(
        20*k, None, fractions, groups=torch.arange(k).repeat_interleave(20)).items()}
    assert of(1) == dict(train=20, val=0, test=0)
    assert of(3) == dict(train=20, val=20, test=20)
    assert of(5) == dict(train=60, val=20, test=20)
    assert of(5, (0., 1., 0.)) == dict(train=20, val=80, test=0)


def test_the_same_seed_gives_the_same_cut_and_no_groups_change_nothing():
    groups = torch.arange(40).repeat_interleave(4)
    cut = lambda seed: split_indices(160, generator=generator(seed), groups=groups)["test"].tolist()
    assert cut(1) == cut(1) != cut(2)
    plain = split_indices(160, generator=generator(1))
    assert plain["val"].equal(torch.randperm(160, generator=generator(1))[:16])


# ---- groups and splits of arrays, and in fit

def test_groups_of_arrays_reach_a_run():
    run = fdgnb.fit("fedavg", sites(), **USUAL)
    assert_apart({c.id: c.splits for c in run.fed.clients}, run.fed.data)
    assert run.sizes["a"] == dict(train=50, val=5, test=5)


def test_groups_beside_fit_are_those_of_the_loader():
    plain = fdgnb.from_arrays({d: (images, y) for d in "ab"})
    given = fdgnb.fit("fedavg", plain, groups={d: patients(d) for d in "ab"}, **USUAL)
    other = fdgnb.fit("fedavg", sites(), **USUAL)
    assert given.fed.args() == other.fed.args() and given.rows == other.rows
    assert plain["a"].groups is None                              # the data set of the caller stays as it was
    assert given.fed.args() != fdgnb.fit("fedavg", plain, **USUAL).fed.args()


def test_a_target_is_tested_whole_and_needs_no_groups():
    plain = fdgnb.from_arrays({d: (np.roll(images, i, -1), y) for i, d in enumerate("abc")})
    groups = {d: patients(d) for d in "ab"}
    run, lines = said(lambda: fdgnb.fit("fedavg", plain, target="c", groups=groups, **USUAL))
    assert run.sizes["c"] == dict(target=60) and not lines
    _, lines = said(lambda: fdgnb.fit("fedavg", plain, groups=groups, **USUAL))
    assert any("groups does not name the domain 'c'" in line for line in lines)


@pytest.mark.parametrize("split", [
    dict(train=range(40), val=np.arange(40, 50), test=torch.arange(50, 60)),
    dict(train=np.arange(60) < 40, val=[40 <= i < 50 for i in range(60)], test=torch.arange(60) >= 50),
    ["train"]*40 + ["val"]*10 + ["test"]*10, np.array(["train"]*40 + ["val"]*10 + ["test"]*10),
    pd.Series(["train"]*40 + ["val"]*10 + ["test"]*10)])
def test_forms_of_a_split(split):
    data = fdgnb.from_arrays(dict(a=(images, y)), split=dict(a=split))
    want = dict(train=list(range(40)), val=list(range(40, 50)), test=list(range(50, 60)))
    assert {k: v.tolist() for k, v in data["a"].split.items()} == want
    run = fdgnb.fit("fedavg", fdgnb.from_arrays(dict(a=(images, y))), split=dict(a=split), **USUAL)
    assert run.sizes == dict(a=dict(train=40, val=10, test=10))


def test_a_run_without_validation_samples_of_its_own_runs():
    run = fdgnb.fit("fedavg", sites(), split={d: dict(train=range(45), test=range(45, 60)) for d in "ab"}, **USUAL)
    assert run.sizes["b"] == dict(train=45, val=0, test=15)


@pytest.mark.parametrize("split, parts", [
    (dict(train=[0, 1], test=[1, 2]), ["sample 1 is twice", "'train' and 'test'"]),
    (dict(train=[0, 0]), ["sample 0 is twice"]), (dict(train=[0, 60]), ["rows 0 to 60", "0 to 59"]),
    (dict(train=[-1]), ["rows -1"]), (dict(train=[.5]), ["rows (whole numbers) or a mask"]),
    (dict(train=[True]), ["a mask of 1 samples"]), (dict(test=[1]), ["no training samples"]),
    (dict(train=[]), ["no training samples"]), (dict(train=[0], tset=[1]), ["'tset'", "did you mean 'test'?"]),
    (dict(train="all"), ["rows (whole numbers) or a mask"]), (dict(train=[[1], [2, 3]]), ["a mask"]),
    (["train"]*59, ["split of 59 samples", "60"]), (["train"]*59 + ["exam"], ["'exam'"]), (5, ["wanted a list"]),
    (["val"]*60, ["no training samples"]), (dict(train=None), ["a mask"])])
def test_a_split_that_cannot_be_meant_is_one_line(split, parts):
    says(lambda: fdgnb.from_arrays(dict(a=(images, y)), split=dict(a=split)), "domain 'a'", *parts)


@pytest.mark.parametrize("groups, parts", [
    ([1]*59, ["groups of 59 samples", "60"]), ([1]*59 + [None], ["1 samples have no group", "sample 59"]),
    (np.array([1.]*59 + [np.nan]), ["sample 59"]), (np.array(["p"]*59 + [""]), ["sample 59"]),
    (5, ["wanted a list"]), ([[1]]*60, ["wanted a word or a number"]), (pd.Series([1, pd.NA]*30), ["sample 1"])])
def test_groups_that_cannot_be_meant_are_one_line(groups, parts):
    says(lambda: fdgnb.from_arrays(dict(a=(images, y)), groups=dict(a=groups)), "domain 'a'", *parts)
    says(lambda: fdgnb.from_arrays(dict(a=(images, y, groups))), "domain 'a'", *parts)


def test_what_is_named_wrongly_is_one_line():
    one = fdgnb.from_arrays(dict(a=(images, y)))
    says(lambda: fdgnb.fit("fedavg", one, groups=dict(aa=y)), "groups names the domain 'aa'")
    says(lambda: fdgnb.fit("fedavg", one, groups=r"(\d)"), "wanted a dict", "loaded already")
    says(lambda: fdgnb.from_arrays(dict(a=(images, y)), split=["train"]*60), "wanted a dict")
    says(lambda: fdgnb.from_arrays(dict(a=(images, y)), stratify="yes"), "stratify='yes'")
    says(lambda: fdgnb.from_arrays(dict(a=(images, y, y)), groups=dict(a=y)), "twice")
    says(lambda: Domain("a", one["a"].x, one["a"].y, groups=torch.zeros(3)), "groups of 60 samples")


def test_numbers_and_words_name_a_group_alike():
    of = lambda groups: fdgnb.from_arrays(dict(a=(images, y)), groups=dict(a=groups))["a"].groups.tolist()
    n = np.arange(60)//5
    assert of(n) == of(n.astype(float)) == of(list(map(str, n))) == of(torch.tensor(n)) == of(pd.Series(n))


def test_a_group_in_two_domains_is_named_once():
    _, lines = said(lambda: fdgnb.from_arrays({d: (images, y, patients("p")) for d in "ab"}))
    assert len(lines) == 1 and "12 groups are in two domains, the first, 'p0'," in lines[0]
    _, lines = said(sites)
    assert not lines


def test_samples_in_no_part_are_said_and_torn_groups_too():
    split = {d: dict(train=range(42), test=range(42, 50)) for d in "ab"}
    run, lines = said(lambda: fdgnb.fit("fedavg", sites(), split=split, **USUAL))
    assert sum("10 of 60 samples are in no part" in line for line in lines) == 2
    assert sum("1 of 10 groups have samples in several parts" in line for line in lines) == 2


def test_stratify_from_the_loader_and_from_fit():
    few = (np.arange(60) % 10 == 0).astype(int)
    plain = lambda **about: fdgnb.from_arrays(dict(a=(images, few)), **about)
    count = lambda run: [int(few[s.index].sum()) for s in run.fed.clients[0].splits.values()]
    share = dict(fractions=(.5, .25, .25), **USUAL)
    assert count(fdgnb.fit("fedavg", plain(stratify=True), **share)) in ([3, 1, 2], [3, 2, 1], [4, 1, 1], [2, 2, 2])
    given = fdgnb.fit("fedavg", plain(), stratify=True, **share)
    assert given.rows == fdgnb.fit("fedavg", plain(stratify=True), **share).rows
    assert fdgnb.fit("fedavg", plain(stratify=True), stratify=False, **share).rows == fdgnb.fit(
        "fedavg", plain(), **share).rows
    assert "stratify" not in fdgnb.fit("fedavg", plain(), **share).fed.args()["settings"]


# ---- partitions and limits

@pytest.mark.parametrize("partition", [(), ("split", 3), ("chain", ("split", 2), ("split", 2))])
def test_whole_groups_are_dealt_to_clients(partition):
    (clients, _, data, _), lines = said(lambda: client_splits(sites(), Settings(partition=partition)))
    assert_apart(clients, data)
    owners = [g for d in data.domains.values() for g in d.groups.unique().tolist()]
    assert len(owners) == len(set(owners)) == 24 and not lines


@pytest.mark.parametrize("partition", [("halves",), ("lda", 3, 1.), ("rotate", 15)])
def test_partitions_carry_groups(partition):
    (clients, _, data, _), lines = said(lambda: client_splits(sites(), Settings(partition=partition)))
    assert all(len(d.groups) == len(d) for d in data.domains.values())
    assert_apart(clients, data)
    assert any("have samples at several clients" in line for line in lines) == (partition[0] == "lda")


def test_a_limit_keeps_the_groups_of_what_remains():
    data = subsample_domains(sites(), 20, 0)
    whole = {x.numpy().tobytes(): g for x, g in zip(sites()["a"].x, sites()["a"].groups.tolist())}
    assert [whole[x.numpy().tobytes()] for x in data["a"].x] == data["a"].groups.tolist()
    says(lambda: client_splits(sites(), Settings(partition=("split", 13))), "13 clients", "12 groups")


def test_a_folder_goes_on_only_with_the_same_groups(tmp_path):
    fdgnb.fit("fedavg", sites(), out=tmp_path/"run", **USUAL)
    other = fdgnb.from_arrays({d: (images, y) for d in "ab"}, split={d: dict(train=range(60)) for d in "ab"})
    says(lambda: fdgnb.fit("fedavg", other, out=tmp_path/"run", **USUAL), "other arguments", "data")


# ---- folders, tables, torch, texts

@pytest.mark.parametrize("groups", [r"/p([ab]\d)_", lambda file: file.name.split("_")[0]])
def test_groups_of_files(tmp_path, groups):
    data = fdgnb.from_folder(write(tmp_path/"f"), size=16, groups=groups)
    assert data["a"].groups.tolist() == [p for ps in ((0, 2, 4), (1, 3, 5)) for p in ps for _ in range(4)]
    assert set(data["b"].groups.tolist()) == set(range(6, 12))
    run = fdgnb.fit("fedavg", tmp_path/"f", size=16, groups=groups, **USUAL)
    assert_apart({c.id: c.splits for c in run.fed.clients}, run.fed.data)


def test_folders_of_patients_and_of_parts(tmp_path):
    data = fdgnb.from_folder(write(tmp_path/"f", "{d}/{c}/{p}/{i}.png"), size=16, groups="folder")
    assert len(data["a"].groups.unique()) == 6
    write(tmp_path/"g", "{d}/{part}/{c}/{p}/{i}.png")
    data = fdgnb.from_folder(tmp_path/"g", size=16, groups="folder", split="folder")
    assert {k: len(v) for k, v in data["a"].split.items()} == dict(train=8, val=8, test=8)
    assert len(data["a"].groups.unique()) == 6 and data.classes == ["x", "y"]
    level = (data["a"].x[:, 0, 0, 0]/10).long()
    for k, part in enumerate(("train", "val", "test")): assert (level[data["a"].split[part]] % 3 == k).all()
    says(lambda: fdgnb.from_folder(tmp_path/"f", split="folder"), "is no part", "train, val and test")
    says(lambda: fdgnb.from_folder(write(tmp_path/"h"), groups="folder"), "lies in no folder of its own")


def test_skipped_files_take_their_groups_along(tmp_path):
    (write(tmp_path/"f")/"a"/"x"/"pa0_0.png").write_bytes(b"no image")
    data, lines = said(lambda: fdgnb.from_folder(tmp_path/"f", size=16, groups=r"p(a?b?\d)_"))
    assert data["a"].groups.tolist()[:5] == [0, 0, 0, 2, 2] and len(data["a"]) == 23


@pytest.mark.parametrize("how, parts", [
    (r"case(\d+)", ["finds nothing in 'a/x/pa0_0.png'"]), ("[", ["one group"]), ("p", ["one group"]),
    (3, ["one group"]), (r"(p)(a)", ["one group"]), (lambda file: 1/0, ["ZeroDivisionError", "pa0_0.png"]),
    (lambda file: None, ["no group for", "pa0_0.png"])])
def test_a_path_without_its_group_is_one_line(tmp_path, how, parts):
    says(lambda: fdgnb.from_folder(write(tmp_path/"f"), size=16, groups=how), "groups", *parts)


def test_a_table_names_files_patients_and_parts(tmp_path):
    write(tmp_path/"f")
    files = sorted((tmp_path/"f").rglob("*.png"))
    table = pd.DataFrame(dict(image=[str(f.relative_to(tmp_path)) for f in files], sick=[f.parent.name for f in files],
                              site=[f.parts[-3] for f in files], who=[f.name.split("_")[0] for f in files]))
    table["use"] = ["train" if f.stem[-1] in "02468" else "test" for f in files]
    table.loc[0, "use"] = None
    names = dict(file="image", label="sick", domain="site")
    data, lines = said(lambda: fdgnb.from_table(table, groups="who", split="use", folder=tmp_path, size=16, **names))
    assert {d: len(own) for d, own in data.domains.items()} == dict(a=24, b=24) and data.classes == ["x", "y"]
    assert any("1 of 24 samples are in no part" in line for line in lines)
    table.to_csv(tmp_path/"t.csv", index=False)
    same, _ = said(lambda: fdgnb.from_table(tmp_path/"t.csv", groups="who", split="use", size=16, **names))
    folder = fdgnb.from_folder(tmp_path/"f", size=16, groups=r"/(p[ab]\d)_")
    for d in "ab":
        assert same[d].groups.equal(data[d].groups) and same[d].x.equal(folder[d].x) and same[d].y.equal(folder[d].y)
        assert same[d].groups.equal(folder[d].groups)
    absolute = table.assign(image=[str(f) for f in files])
    assert fdgnb.from_table(absolute, size=16, **names)["b"].x.equal(folder["b"].x)
    says(lambda: fdgnb.from_table(table, groups="patient", **names), "no column 'patient'")
    says(lambda: fdgnb.from_table(table, folder=tmp_path/"f", **names), "48 of 48 files are not there")
    nobody = table.assign(who=None)
    says(lambda: fdgnb.from_table(nobody, groups="who", folder=tmp_path, **names), "48 rows have no who")
    says(lambda: fdgnb.from_table([1]), "from_table takes")
    says(lambda: fdgnb.from_table(tmp_path/"none.csv"), "no CSV file")


def test_groups_of_torch_data_sets_by_list_and_by_index():
    sets = {d: [(torch.from_numpy(x), int(c)) for x, c in zip(images, y)] for d in "ab"}
    listed = fdgnb.from_torch(sets, groups={d: patients(d) for d in "ab"})
    asked = fdgnb.from_torch(sets, groups={d: lambda i, d=d: f"{d}{i//5}" for d in "ab"})
    assert asked["b"].groups.equal(listed["b"].groups)
    part = lambda i: "val" if i > 50 else "train"
    both, lines = said(lambda: fdgnb.from_torch(sets, groups=lambda i: i//5, split=part))
    assert len(both["a"].groups.unique()) == 12 and len(both["a"].split["val"]) == 9
    says(lambda: fdgnb.from_torch(sets, groups=lambda i: 1/(i - 7)), "groups fails on sample 7")


def test_groups_of_texts(monkeypatch):
    monkeypatch.setattr("fdgnb.data.own._vectors_of", zero_vectors)
    rows = pd.DataFrame([dict(text=f"t{i}", label=i % 2, domain="ab"[i % 2], who=f"{'ab'[i % 2]}{i//4}", use="train")
                         for i in range(20)])
    data = fdgnb.from_texts(rows, groups="who", split="use", stratify=True)
    assert data["a"].groups.tolist() == [i//2 for i in range(10)] and len(data["b"].split["train"]) == 10
    says(lambda: fdgnb.from_texts(rows, groups="whom"), "no column 'whom'")


# ---- arrays and DICOM files

def save_arrays(folder, x, suffix="npy"):
    for d in "ab":
        for c in "xy":
            (folder/d/c).mkdir(parents=True, exist_ok=True)
            np.save(folder/d/c/f"1.{suffix}", x)
    return folder


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float16, np.float32, np.float64])
def test_an_array_by_a_window(tmp_path, dtype):
    units = np.linspace(-1000, 1000, 256).reshape(16, 16).astype(dtype)
    data = fdgnb.from_folder(save_arrays(tmp_path/"f", units), size=16, window=(-160, 240))
    want = np.rint((units.astype(float).clip(-160, 240) + 160)*255/400)
    assert (data["a"].x[0].numpy() == want).all() and data.window == (-160., 240.)
    says(lambda: fdgnb.from_folder(tmp_path/"f", size=16), "give window=(low, high)", "1.npy")
    other = fdgnb.from_folder(tmp_path/"f", size=16, window=(-1000, 1000))
    assert not other["a"].x.equal(data["a"].x)                    # the cache tells windows apart
    run = fdgnb.fit("fedavg", data, backbone="cnn2", batch_size=2, rounds=1, progress=False, fractions=(1., 0., 0.))
    logits = run.predict(data["a"])
    torch.testing.assert_close(run.predict(tmp_path/"f"/"a"/"x"/"1.npy"), logits[:1])


def test_arrays_that_say_their_scale_need_no_window(tmp_path):
    color = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    for k, x in enumerate((color, color/255, color[..., 0] > 99, color[..., :1])):
        data, lines = said(lambda: fdgnb.from_folder(save_arrays(tmp_path/str(k), x), size=16))
        want = np.asarray(x)*(1 if x.dtype == np.uint8 else 255)
        want = want if want.ndim == 3 else want[..., None]
        assert (data["a"].x[0].numpy() == np.rint(np.broadcast_to(want, (16, 16, 3))).transpose(2, 0, 1)).all()
        assert not lines
    deep = rng.integers(0, 4096, (16, 16)).astype(np.uint16)
    deep[0, 0] = 4095
    data, lines = said(lambda: fdgnb.from_folder(save_arrays(tmp_path/"deep", deep), size=16))
    assert data.white == 4095 and "4095 counts as white" in lines[0]
    assert (data["a"].x[0, 0].numpy() == np.rint(deep/4095*255)).all()


@pytest.mark.parametrize("x, part", [
    (np.zeros((4, 8, 8)), "save each slice"), (np.zeros(8), "(H, W)"), (np.full((8, 8), np.nan), "NaN"),
    (np.zeros((8, 8), complex), "complex"), (np.array([["a"]]), "wanted numbers"), (np.zeros((0, 8)), "(H, W)"),
    (np.array([[None]]), "no array of numbers")])
def test_an_array_that_is_no_image_is_one_line(tmp_path, x, part):
    says(lambda: fdgnb.from_folder(save_arrays(tmp_path/"f", x), size=16), "1.npy", part)


@pytest.mark.parametrize("window", [(1,), (2, 1), (0, float("inf")), "lung", 5, (True, 2), (None, 3)])
def test_a_window_is_two_numbers(tmp_path, window):
    says(lambda: fdgnb.from_folder(save_arrays(tmp_path/"f", images[0]), size=16, window=window), "wanted (low, high)")


def test_a_window_holds_for_deep_images(tmp_path):
    for d in "ab":
        (tmp_path/"f"/d/"x").mkdir(parents=True)
        Image.fromarray((images[0].astype(np.uint16)*100)).save(tmp_path/"f"/d/"x"/"1.png")
    data, lines = said(lambda: fdgnb.from_folder(tmp_path/"f", size=16, window=(0, 25500)))
    assert (data["a"].x[0, 0].numpy() == images[0]).all() and not lines


def make_dicom(file, x, **fields):
    "A DICOM file of an array of 12 bits in 16."
    pydicom = pytest.importorskip("pydicom")
    ds = pydicom.Dataset()
    ds.file_meta = pydicom.dataset.FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = pydicom.uid.CTImageStorage
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = "1.2.3"
    ds.Rows, ds.Columns, ds.SamplesPerPixel, ds.PhotometricInterpretation = *x.shape[:2], 1, "MONOCHROME2"
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 12, 11, 0
    for name, value in fields.items(): setattr(ds, name, value)
    ds.PixelData = x.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(file, enforce_file_format=True)
    return file


STORED = (np.arange(256).reshape(16, 16)*16).astype(np.uint16)


@pytest.mark.parametrize("fields, window, want", [
    (dict(WindowCenter=1024, WindowWidth=1024), None, (STORED - 512.)/1023),
    (dict(WindowCenter=[1024, 40], WindowWidth=[1024, 400]), None, (STORED - 512.)/1023),
    (dict(RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=0, WindowWidth=1024), None, (STORED - 512.)/1023),
    (dict(RescaleSlope=1, RescaleIntercept=-1024), (-160, 240), (STORED - 1024. + 160)/400),
    (dict(WindowCenter=1024, WindowWidth=1024), (0, 4095), STORED/4095)])
@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
def test_a_dicom_file_by_its_own_window_or_the_given_one(tmp_path, fields, window, want, kind):
    for d, name in (("a", "1.dcm"), ("b", "IM0001")):
        make_dicom(tmp_path/"f"/d/"x"/name, STORED, PhotometricInterpretation=kind, **fields)
    data, lines = said(lambda: fdgnb.from_folder(tmp_path/"f", size=16, window=window))
    want = np.rint(want.clip(0, 1)*255)
    if kind == "MONOCHROME1": want = 255 - want
    for d in "ab": assert abs(data[d].x[0].numpy().astype(int) - want).max() <= 1
    assert not lines and data.white == 255 and len(data.window) == 2


EIGHT = dict(BitsAllocated=8, BitsStored=8, HighBit=7)
NO_SCALE = {                                                            # fields of the files of two hospitals
    "signed": (np.int16, dict(PixelRepresentation=1), {}), "unsigned": (np.uint16, {}, {}),
    "bits": (np.uint16, {}, dict(BitsStored=16, HighBit=15)),
    "a slope of its own": (np.uint8, EIGHT, EIGHT | dict(RescaleSlope=2, RescaleIntercept=0)),
    "a window in one hospital": (np.uint16, {}, dict(WindowCenter=1024, WindowWidth=1024)),
    "a window in one hospital, of bytes": (np.uint8, EIGHT, EIGHT | dict(WindowCenter=90, WindowWidth=100)),
    "two windows": (np.uint16, dict(WindowCenter=1024, WindowWidth=900), dict(WindowCenter=1024, WindowWidth=1024)),
    "inverted": (np.uint16, {}, dict(PhotometricInterpretation="MONOCHROME1"))}


@pytest.mark.parametrize("what", NO_SCALE)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_dicom_files_without_one_scale_want_a_window(tmp_path, what, on_error):
    "None of them is skipped for it, and with a window equal values are equal grays."
    kind, *fields = NO_SCALE[what]
    for d, own in zip("ab", fields): make_dicom(tmp_path/"f"/d/"x"/"1.dcm", (STORED//16).astype(kind), **own)
    says(lambda: fdgnb.from_folder(tmp_path/"f", size=16, on_error=on_error), "1.dcm", "give window=(low, high)")
    data = fdgnb.from_folder(tmp_path/"f", size=16, window=(0, 255))
    if fields[0] == EIGHT: assert fdgnb.from_folder(tmp_path/"f", size=16, domains=["a"])["a"].x.equal(data["a"].x)
    want = {"a slope of its own": (2*data["a"].x.int()).clip(max=255).byte(), "inverted": 255 - data["a"].x}
    assert data["b"].x.equal(want.get(what, data["a"].x))


def save_deep_colors(file, x):
    "Colors of 16 bits (H, W, 3) as a PNG, which PIL cannot write."
    rows = b"".join(b"\0" + row.tobytes() for row in x.astype(">u2"))
    head = struct.pack(">IIBBBBB", *x.shape[1::-1], 16, 2, 0, 0, 0)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(rows), b"IEND": b""}.items()
    body = (struct.pack(">I", len(v)) + k + v + struct.pack(">I", zlib.crc32(k + v)) for k, v in chunks)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(body))


@pytest.mark.parametrize("bits", [12, 14, 16])
def test_colors_of_16_bits_by_their_upper_8_unless_these_are_dark(tmp_path, bits):
    x = rng.integers(0, 2**bits, (16, 16, 3))
    save_deep_colors(tmp_path/"f"/"a"/"x"/"1.png", x)
    read = lambda: fdgnb.from_folder(tmp_path/"f", size=16, on_error="skip")["a"].x[0].numpy()
    if bits == 16: assert (read() == x.transpose(2, 0, 1)//256).all()
    else: says(read, "1.png", "save it with 8 bits a color")


def test_a_dicom_file_is_predicted_as_it_was_read(tmp_path):
    for d in "ab":
        for c in "xy":
            for i in range(3):
                make_dicom(tmp_path/"f"/d/c/f"{i}.dcm", STORED//(i + 1), WindowCenter=1000, WindowWidth=900)
    run = fdgnb.fit("fedavg", tmp_path/"f", size=16, out=tmp_path/"run", **USUAL)
    kept = fdgnb.load(tmp_path/"run")
    files = [tmp_path/"f"/"a"/"x"/f"{i}.dcm" for i in range(3)]
    assert kept.predict(files).equal(run.predict(files))
    torch.testing.assert_close(run.predict(files), run.predict(run.fed.data["a"])[:3])


def test_what_is_no_single_image_of_dicom_is_one_line(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    read = lambda: fdgnb.from_folder(tmp_path/"f", size=16)
    file = tmp_path/"f"/"a"/"x"/"1.dcm"
    make_dicom(file, STORED, NumberOfFrames=2)
    says(read, "1.dcm", "2 frames")
    ds = pydicom.dcmread(make_dicom(file, STORED))
    del ds.PixelData
    ds.save_as(file)
    says(read, "DICOM without an image")
    whole = make_dicom(file, STORED, WindowCenter=5, WindowWidth=0).read_bytes()
    says(read, "1.dcm", "a window of width 0: give window=")
    file.write_bytes(whole[:300])
    says(read, "1.dcm", "DICOM")


def test_compressed_dicom_without_a_decoder_and_dicom_without_pydicom(tmp_path, monkeypatch):
    pydicom = pytest.importorskip("pydicom")
    file = tmp_path/"f"/"a"/"x"/"1.dcm"
    ds = pydicom.dcmread(make_dicom(file, STORED))
    ds.file_meta.TransferSyntaxUID = pydicom.uid.HTJ2KLossless
    ds.PixelData = pydicom.encaps.encapsulate([b"0"*64])
    ds["PixelData"].VR = "OB"
    ds.save_as(file)
    says(lambda: fdgnb.from_folder(tmp_path/"f", size=16), "1.dcm", "pip install 'pylibjpeg[all]'")
    monkeypatch.setattr("fdgnb.data.dicom.find_spec", lambda name: None)
    says(lambda: fdgnb.from_folder(tmp_path/"f", size=16), "pip install 'fdgnb[dicom]'")


def test_groups_of_text_files_by_path(tmp_path, monkeypatch):
    monkeypatch.setattr("fdgnb.data.own._vectors_of", zero_vectors)
    for d in "ab":
        for i in range(8):
            file = tmp_path/"t"/d/"xy"[i % 2]/f"{d}{i//2}_{i}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"text {i}")
    plain = fdgnb.from_texts(tmp_path/"t")
    data = fdgnb.from_texts(tmp_path/"t", groups=r"([ab]\d)_", split=lambda f: "test" if f.stem[-1] == "7" else "train")
    assert plain["a"].groups is None and data["a"].groups.tolist() == [0, 1, 2, 3]*2
    assert data["b"].split["test"].tolist() == [7] and data["b"].y.tolist() == [0]*4 + [1]*4


def test_a_domain_of_two_patients_has_no_test_part_and_says_so():
    x, y = np.zeros((8, 3, 16, 16), np.uint8), [0, 1]*4
    patients = {k: [f"{k}{i//4}" for i in range(8)] for k in "ab"}
    data = fdgnb.from_arrays({k: (x, y) for k in "ab"}, groups=patients)
    with pytest.warns(UserWarning, match="domain 'a' has 2 groups: no samples for test"):
        fdgnb.runs.setup.Federation("fedavg", data, None, 1)
