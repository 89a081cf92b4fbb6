"""Groups (patients) and parts: from every loader and beside `fit`, cut whole, stratified or as one says."""
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import said, says
from pictures import pixels, write_picture
import fdgnb

x, y = np.arange(180.).reshape(60, 3), np.arange(60)//5 % 3
USUAL = dict(target=None, rounds=1, batch_size=8, local_steps=1, progress=False, workers=1)
THREE = ["train"]*40 + ["val"]*10 + ["test"]*10


def patients(d): return [f"{d}{i//5}" for i in range(60)]


def sites(groups=True, **how):
    "Two hospitals of twelve patients, who have five samples each."
    return fdgnb.from_arrays({d: (x + 999*(d == "b"), y, *[patients(d)]*groups) for d in "ab"}, **how)


def read(**how): return fdgnb.from_arrays(dict(a=(x, y)), **{what: dict(a=value) for what, value in how.items()})


def groups_of(run):
    "{client: {part: its groups}}, of the samples by their values, after asserting that no group is in two parts."
    group = {tuple(row): g for d in sites().domains.values() for row, g in zip(d.x.tolist(), d.groups.tolist())}
    found = {c.id: {part: {group[tuple(row)] for row in s.samples().tolist()} for part, s in c.splits.items()}
             for c in run.fed.clients}
    for parts in found.values(): assert sum(map(len, parts.values())) == len(set.union(*parts.values()))
    return found


# ---- groups

@pytest.mark.parametrize("stratify", [False, True])
def test_a_group_is_in_one_part_and_parts_have_their_shares(stratify):
    for seed in range(3):
        run = fdgnb.fit("fedavg", sites(), seed=seed, stratify=stratify, **USUAL)
        assert {part: len(own) for part, own in groups_of(run)["a"].items()} == dict(train=10, val=1, test=1)
        assert run.sizes["a"] == dict(train=50, val=5, test=5)


def test_stratified_groups_hold_the_rare_class_everywhere():
    "One patient in eight is ill: each part has as many as its share; the same seed cuts alike, another not."
    samples, who = np.arange(480.).reshape(160, 3), np.arange(160)//4
    ill, cuts = who % 8 == 0, []
    data = fdgnb.from_arrays(dict(a=(samples, ill*1, who)), stratify=True)
    for seed in (0, 0, 1):
        run = fdgnb.fit("fedavg", data, seed=seed, fractions=(.6, .2, .2), **USUAL)
        parts = run.fed.clients[0].splits
        rows = {part: (s.samples()[:, 0]/3).long().tolist() for part, s in parts.items()}
        assert {k: (len(i), ill[i].sum()) for k, i in rows.items()} == dict(train=(96, 12), val=(32, 4), test=(32, 4))
        cuts.append(rows["test"])
    assert cuts[0] == cuts[1] != cuts[2]


def test_groups_beside_fit_are_those_of_the_loader():
    plain = sites(groups=False)
    given = fdgnb.fit("fedavg", plain, groups={d: patients(d) for d in "ab"}, **USUAL)
    other = fdgnb.fit("fedavg", sites(), **USUAL)
    assert given.fed.args() == other.fed.args() and given.rows == other.rows and plain["a"].groups is None
    assert given.fed.args() != fdgnb.fit("fedavg", plain, **USUAL).fed.args()
    _, lines = said(lambda: fdgnb.fit("fedavg", plain, groups=dict(a=patients("a")), **USUAL))
    assert "'b'" in lines[0]
    run, lines = said(lambda: fdgnb.fit("fedavg", plain, groups=dict(a=patients("a")), **USUAL | dict(target="b")))
    assert run.sizes["b"] == dict(target=60) and not lines


@pytest.mark.parametrize("partition", [("split", 3), ("chain", ("split", 2), ("split", 2))])
def test_whole_groups_are_dealt_to_clients(partition):
    found = groups_of(fdgnb.fit("fedavg", sites(), partition=partition, **USUAL))
    owners = [g for parts in found.values() for own in parts.values() for g in own]
    assert sorted(owners) == list(range(24))
    says(lambda: fdgnb.fit("fedavg", sites(), partition=("split", 13), **USUAL), "13 clients", "12 groups")


def test_forms_of_groups():
    n = np.arange(60)//5
    for form in (n.astype(float), list(map(str, n)), torch.tensor(n), pd.Series(n)):
        assert read(groups=form)["a"].groups.equal(read(groups=n)["a"].groups)
    _, lines = said(lambda: fdgnb.from_arrays({d: (x, y, patients("p")) for d in "ab"}))
    assert len(lines) == 1 and "12 groups are in two domains" in lines[0]


REFUSED = [
    (dict(groups=[1]*59), "a list of 60"), (dict(groups=[1]*59 + [None]), "sample 59"), (dict(groups=5), "a list"),
    (dict(groups=np.array(["p"]*59 + [""])), "sample 59"), (dict(groups=np.array([1.]*59 + [np.nan])), "sample 59"),
    (dict(split=dict(train=[0, 1], test=[1, 2])), "sample 1 is twice"), (dict(split=dict(train=[0, 60])), "0 to 59"),
    (dict(split=dict(train=[-1])), "[-1]"), (dict(split=dict(train=[.5])), "whole numbers"),
    (dict(split=dict(train=[True])), "a mask of 60"), (dict(split=dict(test=[1])), "no training"),
    (dict(split=dict(train=[0], tset=[1])), "did you mean 'test'?"), (dict(split=THREE[1:]), "a list of 60"),
    (dict(split=THREE[1:] + ["exam"]), "'exam'")]


@pytest.mark.parametrize("given, part", REFUSED)
def test_groups_and_splits_that_are_refused(given, part): says(lambda: read(**given), "domain 'a'", part)


# ---- parts

@pytest.mark.parametrize("split", [
    dict(train=range(40), val=np.arange(40, 50), test=torch.arange(50, 60)), THREE, np.array(THREE), pd.Series(THREE),
    dict(train=np.arange(60) < 40, val=[40 <= i < 50 for i in range(60)], test=torch.arange(60) >= 50)])
def test_forms_of_a_split(split):
    wanted = dict(train=[*range(40)], val=[*range(40, 50)], test=[*range(50, 60)])
    assert {k: v.tolist() for k, v in read(split=split)["a"].split.items()} == wanted
    assert fdgnb.fit("fedavg", read(), split=dict(a=split), **USUAL).sizes["a"] == dict(train=40, val=10, test=10)


def test_samples_in_no_part_and_torn_groups_are_said():
    split = {d: dict(train=range(42), test=range(42, 50)) for d in "ab"}
    run, lines = said(lambda: fdgnb.fit("fedavg", sites(), split=split, **USUAL))
    assert run.sizes["b"] == dict(train=42, val=0, test=8)
    for part in ("10 of 60 samples are in no part", "1 of 10 groups"): assert sum(part in line for line in lines) == 2


# ---- files, tables, torch data sets

def write(folder, pattern="{d}/{c}/p{p}_{i}.png"):
    "24 images of six patients in each of two domains, in alternating parts."
    for d in "ab":
        for i in range(24):
            name = pattern.format(d=d, c="xy"[i//4 % 2], p=f"{d}{i//4}", i=i, part=("train", "val", "test")[i % 3])
            write_picture(folder/name, np.full((8, 8, 3), 10*i, np.uint8))
    return folder


@pytest.mark.parametrize("pattern, how", [
    ("{d}/{c}/p{p}_{i}.png", r"/p([ab]\d)_"), ("{d}/{c}/p{p}_{i}.png", lambda file: file.name.split("_")[0]),
    ("{d}/{c}/{p}/{i}.png", "folder")])
def test_groups_of_files(tmp_path, pattern, how):
    data = fdgnb.from_folder(write(tmp_path, pattern), size=8, groups=how)
    number = (data["a"].x[:, 0, 0, 0]//10).tolist()
    assert len(data["a"].groups.unique()) == 6
    assert len({*zip([i//4 for i in number], data["a"].groups.tolist())}) == 6


def test_parts_of_folders(tmp_path):
    data = fdgnb.from_folder(write(tmp_path/"f", "{d}/{part}/{c}/{i}.png"), size=8, split="folder")
    number = (data["a"].x[:, 0, 0, 0]//10).long()
    for k, part in enumerate(("train", "val", "test")): assert (number[data["a"].split[part]] % 3 == k).sum() == 8
    says(lambda: fdgnb.from_folder(write(tmp_path/"g"), split="folder"), "is no part")
    for how, part in (("folder", "finds nothing"), (r"case(\d+)", "finds nothing"), ("[", "one group"),
                      (lambda file: 1/0, "ZeroDivisionError"), (lambda file: None, "no group for")):
        says(lambda: fdgnb.from_folder(tmp_path/"g", size=8, groups=how), part)


def test_columns_of_a_table_and_functions_of_an_index(tmp_path):
    files = sorted(write(tmp_path).rglob("*.png"))
    rows = [dict(file=str(f), label=f.parent.name, domain=f.parts[-3], who="0" + f.name[2:3]) for f in files]
    table = pd.DataFrame(rows)
    table["use"] = ["test" if f.stem[-1] == "7" else "train" for f in files]
    table.loc[0, "use"] = None
    table.to_csv(tmp_path/"t.csv", index=False)
    data, lines = said(lambda: fdgnb.from_table(tmp_path/"t.csv", groups="who", split="use", size=8))
    same = fdgnb.from_folder(tmp_path, size=8, groups=r"/p.(\d)_")
    for d in "ab": assert data[d].x.equal(same[d].x) and data[d].groups.equal(same[d].groups)
    assert any("1 of 24 samples are in no part" in line for line in lines) and len(data["a"].split["test"]) == 2
    says(lambda: fdgnb.from_table(table, groups="whom", size=8), "no column 'whom'")
    sets = {d: [(torch.from_numpy(v), i % 2) for i, v in enumerate(pixels(12, 3, 8, 8))] for d in "ab"}
    asked, _ = said(lambda: fdgnb.from_torch(sets, groups=lambda i: i//5, split=lambda i: "val" if i > 9 else "train"))
    assert asked["b"].groups.tolist() == [0]*5 + [1]*5 + [2]*2 and asked["a"].split["val"].tolist() == [10, 11]
    says(lambda: fdgnb.from_torch(sets, groups=lambda i: 1/(i - 7)), "'7' fails")
