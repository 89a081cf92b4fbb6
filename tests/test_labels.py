"""Labels: each data set's own numbering is translated by name, one or several a sample; what is no label is refused."""
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from conftest import said, says
from pictures import pixels, write_picture
import fdgnb

x = pixels(6, 3, 8, 8)
y = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1]])
CLASSES = ["edema", "nodule", "effusion"]


def read(labels, **how): return fdgnb.from_arrays(dict(a=(x, labels)), **how)


# ---- one class a sample

class Shelf(Dataset):
    "Numbers its own classes by name; the brightness of an image is that of its name."
    def __init__(self, names, numbers=None):
        self.names = names.split()
        self.class_to_idx = numbers or {c: i for i, c in enumerate(sorted({*self.names}))}
        self.classes = sorted(self.class_to_idx)

    def __len__(self): return len(self.names)
    def __getitem__(self, i):
        image = torch.full((1, 4, 4), 30*len(self.names[i]), dtype=torch.uint8)
        return image, self.class_to_idx[self.names[i]]


class Plain(Dataset):
    "A wrapper that hands on the samples of its `dataset` alone, their labels changed or not."
    def __init__(self, dataset, change=lambda label: label): self.dataset, self.change = dataset, change
    def __len__(self): return len(self.dataset)
    def __getitem__(self, i): return self.dataset[i][0], self.change(self.dataset[i][1])


def names_in(data, domain): return [data.classes[i] for i in data[domain].y.tolist()]


A, B = Shelf("ox cat horse ox cat horse"), Shelf("cat horse horse cat")
SWAPPED = Shelf("ox cat horse", dict(ox=0, cat=2, horse=1))
FORMS = {
    "lacks a class": (B, "cat horse horse cat"), "another order": (SWAPPED, "ox cat horse"),
    "a plain wrapper": (Plain(Subset(SWAPPED, [2, 0])), "horse ox"),
    "subset of concat": (Subset(ConcatDataset([B, SWAPPED]), [0, 4, 6]), "cat ox horse")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [None, ["horse", "ox", "cat"]])
def test_each_set_numbers_its_own(form, classes):
    "The name of each label is that of its image, whatever the set's numbering and however it is wrapped."
    ds, wanted = FORMS[form]
    data = fdgnb.from_torch(dict(a=A, b=ds), classes=classes)
    assert data.classes == (classes or ["cat", "horse", "ox"])
    assert names_in(data, "a") == A.names and names_in(data, "b") == wanted.split()
    assert (data["b"].x[:, 0, 0, 0]//30).tolist() == [len(name) for name in names_in(data, "b")]


def test_names_of_torch_data_sets_that_do_not_fit():
    says(lambda: fdgnb.from_torch(dict(a=A), classes=["cat", "ox", "hose"]), "did you mean 'hose'?")
    says(lambda: fdgnb.from_torch(dict(a=Shelf("ox cat", dict(ox=0, cat=0)))), "one number")
    plain = TensorDataset(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]))
    says(lambda: fdgnb.from_torch(dict(a=A, b=plain)), "domain 'b'", "`classes`")
    data = fdgnb.from_torch(dict(a=A, b=plain), classes=["ox", "cat", "horse"])
    assert names_in(data, "a") == A.names and names_in(data, "b") == ["ox", "cat"]


def test_many_whole_numbers_are_classes_only_by_name():
    "Ages became as many classes once; few numbers, or many samples of each, are asked nothing."
    rows, ages = np.zeros((330, 2)), np.arange(330) % 57 + 20
    says(lambda: fdgnb.from_arrays(dict(a=(rows, ages))), "57 different whole numbers", "classes={20: '20', ...}")
    says(lambda: fdgnb.from_arrays(dict(a=(rows, ages/7))), "regression, which is not supported")
    meant = fdgnb.from_arrays(dict(a=(rows, ages)), classes={n: f"{n} years" for n in range(20, 77)})
    assert meant.n_classes == 57 and meant.classes[0] == "20 years"
    for y in (ages % 33, ages % 10): assert fdgnb.from_arrays(dict(a=(rows, y))).n_classes == len({*y})
    assert read(range(6)).n_classes == 6


def test_labels_that_a_set_does_not_number_itself_keep_their_numbers():
    "Harmonized by hand, they were once translated back by the folder's own numbers."
    turned = Plain(Shelf("healthy healthy healthy healthy sick sick"), lambda label: 1 - label)
    turned.dataset.targets = [0, 0, 0, 0, 1, 1]
    with pytest.warns(UserWarning, match="not the numbers"):
        data = fdgnb.from_torch(dict(a=turned), classes=["sick", "healthy"])
    assert data.counts().loc["a"].to_dict() == dict(sick=2, healthy=4)


words = ["cat", "dog"]*3
TAKEN = {
    "categories": (pd.Series(words, index=range(9, 15), dtype="category"), ["cat", "dog"]),
    "a column": (np.array([3, 7]*3)[:, None], ["3", "7"]), "nullable": (pd.Series([0, 1]*3, dtype="Int64"), ["0", "1"]),
    "a tensor": (torch.tensor([0, 1]*3), ["0", "1"]), "below 0": ([-1, 7]*3, ["-1", "7"])}


@pytest.mark.parametrize("form", TAKEN)
def test_labels_that_are_taken(form):
    labels, names = TAKEN[form]
    data = read(labels)
    assert data["a"].y.tolist() == [0, 1]*3 and data.classes == names


gone = float("nan")
REFUSED = {
    "NaN": (["cat", gone, "dog"]*2, "missing"), "nullable": (pd.Series([0, None, 1]*2, dtype="Int64"), "sample 1"),
    "masked": (np.ma.masked_array([0, 1, 2]*2, [1, 0, 0, 0, 0, 0]), "mask"), "1 and '1'": ([0, 1, "1"]*2, "mixed"),
    "ragged": ([0, [1], 2]*2, "mixed"), "one-hot": (np.eye(3)[[0, 1, 2]*2], "argmax(1)"),
    "masks": (np.zeros((6, 8, 8)), "masks"), "floats": (np.array([0., 1.]*3), "astype(int)"),
    "too few": ([0, 1, 0], "labels (3,)"), "sparse": (torch.eye(6).to_sparse(), "to_dense")}


@pytest.mark.parametrize("what", REFUSED)
def test_labels_that_are_refused(what):
    labels, part = REFUSED[what]
    says(lambda: read(labels), "domain 'a'", part)


def test_names_of_classes():
    assert read([7, 3]*3, classes={7: "cat", 3: "dog"})["a"].y.tolist() == [0, 1]*3
    says(lambda: read([7, 3]*3, classes=["cat", "dog"]), "{label: name}")
    for twice in (["cat", "cat"], {0: "cat", 1: "cat"}, [1, "1"]): says(lambda: read([0, 1]*3, classes=twice), "twice")
    says(lambda: fdgnb.from_arrays(dict(a=(x, [0, 1]*3), b=(x, words))), "words")
    alike, lines = said(lambda: read(["Sick", "sick"]*3))
    assert alike.classes == ["Sick", "sick"] and "different classes" in lines[0]


# ---- several labels a sample

SEVERAL = {"bool": y > 0, "float": y*1., "tensor": torch.tensor(y), "list": y.tolist(), "frame": pd.DataFrame(y)}


@pytest.mark.parametrize("form", SEVERAL)
def test_zeros_and_ones_in_any_form_are_the_same_labels(form):
    data = read(SEVERAL[form], classes=CLASSES)
    assert data.multilabel and data["a"].y.dtype == torch.float32 and data["a"].y.tolist() == y.tolist()
    assert data.counts().loc["a"].tolist() == y.sum(0).tolist()


def test_classes_by_number_put_the_columns_in_order():
    data = read(y, classes={2: "effusion", 0: "edema", 1: "nodule"})
    assert data.classes == ["effusion", "edema", "nodule"] and data["a"].y.tolist() == y[:, [2, 0, 1]].tolist()
    assert read(np.eye(3, dtype=int)[[0, 1, 2]*2], multilabel=True).multilabel


@pytest.mark.parametrize("labels, part", [
    (-y, "no masks"), (y*2, "no masks"), (np.where(y, np.nan, 0), "no masks"), (np.full((6, 4), 31.7), "no masks"),
    ([0, 1]*3, "(6,)"), (y[:, :2], "(6, 2)")])
def test_several_labels_that_are_refused(labels, part):
    says(lambda: fdgnb.from_arrays(dict(a=(x, y), b=(x, labels))), part)


def test_columns_of_torch_data_sets_and_tables(tmp_path):
    class Listed(list): classes = CLASSES
    class Turned(list): classes = CLASSES[::-1]
    named = Listed((torch.from_numpy(v), torch.tensor(row)) for v, row in zip(x, y))
    data = fdgnb.from_torch(dict(a=named, b=Subset(named, [3, 4, 5])))
    assert data.classes == CLASSES and data["b"].y.tolist() == y[3:].tolist()
    says(lambda: fdgnb.from_torch(dict(a=named, b=Turned(named))), "differently")
    for i, image in enumerate(x): write_picture(tmp_path/f"{i}.png", image.transpose(1, 2, 0))
    table = pd.DataFrame(y, columns=CLASSES).assign(file=[f"{i}.png" for i in range(6)], domain=list("ababab"))
    read_table = lambda *columns: fdgnb.from_table(table, folder=tmp_path, size=8, label=[*columns])
    assert read_table(*CLASSES)["b"].y.tolist() == y[1::2].tolist()
    for truth in (["FALSE", "TRUE"], ["false ", " 1"]):
        table.replace({c: dict(enumerate(truth)) for c in CLASSES}).to_csv(tmp_path/"t.csv", index=False)
        assert fdgnb.from_table(tmp_path/"t.csv", size=8, label=CLASSES)["b"].y.tolist() == y[1::2].tolist()
    says(lambda: read_table("edema", "nodul"), "'nodul'")
    says(lambda: read_table("edema", "file"), "zeros and ones")
    for wrong in (CLASSES[:2], [*CLASSES, "more"]): says(lambda: read(y, classes=wrong), "classes")
