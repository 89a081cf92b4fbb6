"""Labels: each data set's own numbering is translated by name, and what is no label is refused with its sample."""
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split
from conftest import one_line
import fdgnb
from fdgnb import FdgnbError

x = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)


def says(f, *parts):
    with pytest.raises(FdgnbError) as e: f()
    assert one_line(e) and all(p in str(e.value) for p in parts), str(e.value)


class Shelf(Dataset):
    "Numbers its own classes by name; the brightness of an image is that of its name."
    def __init__(self, names, numbers=None, **attributes):
        self.names = names.split()
        self.class_to_idx = numbers or {c: i for i, c in enumerate(sorted(set(self.names)))}
        self.classes = sorted(self.class_to_idx)
        vars(self).update(attributes)

    def __len__(self): return len(self.names)
    def __getitem__(self, i):
        image = torch.full((1, 4, 4), 50*len(self.names[i]), dtype=torch.uint8)
        return image, self.class_to_idx[self.names[i]]


class Plain(Dataset):
    "A wrapper that hands on the samples of its `dataset` alone."
    def __init__(self, dataset): self.dataset = dataset
    def __len__(self): return len(self.dataset)
    def __getitem__(self, i): return self.dataset[i]


def names_in(data, domain): return [data.classes[i] for i in data[domain].y.tolist()]


A, B = Shelf("ox cat horse ox cat horse"), Shelf("cat horse horse cat")
SWAPPED = Shelf("ox cat horse", dict(ox=0, cat=2, horse=1))
FORMS = {
    "lacks a class": (B, "cat horse horse cat"), "another order": (SWAPPED, "ox cat horse"),
    "subset": (Subset(B, [2, 0]), "horse cat"),
    "concat": (ConcatDataset([B, SWAPPED]), "cat horse horse cat ox cat horse"),
    "subset of concat": (Subset(ConcatDataset([B, SWAPPED]), [0, 4, 6]), "cat ox horse"),
    "concat of subsets": (ConcatDataset([Subset(SWAPPED, [1]), Subset(B, [1, 0])]), "cat horse cat"),
    "a plain wrapper": (Plain(Subset(SWAPPED, [2, 0])), "horse ox"),
    "split": (random_split(B, [3, 1], torch.Generator().manual_seed(0))[0], None)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [None, ["horse", "ox", "cat"]])
def test_each_set_numbers_its_own(form, classes):
    "The name of each label is that of its image, whatever the set's numbering and however it is wrapped."
    ds, wanted = FORMS[form]
    data = fdgnb.from_torch(dict(a=A, b=ds), classes=classes)
    assert data.classes == (classes or ["cat", "horse", "ox"])
    assert names_in(data, "a") == A.names
    if wanted: assert names_in(data, "b") == wanted.split()
    length = data["b"].x[:, 0, 0, 0].numpy()//50
    assert [len(name) for name in names_in(data, "b")] == length.tolist()


def test_classes_that_do_not_name_a_label():
    says(lambda: fdgnb.from_torch(dict(a=A, b=B), classes=["cat", "ox"]), "'horse'", "`classes` does not name it")
    says(lambda: fdgnb.from_torch(dict(a=A), classes=["cat", "ox", "hose"]), "did you mean 'hose'?")
    assert fdgnb.from_torch(dict(b=B), classes=["cat", "ox", "horse"]).counts().loc["b"].tolist() == [2, 0, 2]
    assert fdgnb.from_torch(dict(a=A), classes={0: "cat", 1: "horse", 2: "ox"}).classes == ["cat", "horse", "ox"]


def test_sets_that_name_no_classes():
    "By their numbers alone; beside one that names them the remedy is a name, not a renumbering."
    plain = TensorDataset(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]))
    assert fdgnb.from_torch(dict(a=plain)).classes == ["0", "1"]
    says(lambda: fdgnb.from_torch(dict(a=A, b=plain)), "domain 'b'", "attribute `classes`")
    data = fdgnb.from_torch(dict(a=A, b=plain), classes=["ox", "cat", "horse"])
    assert names_in(data, "a") == A.names and names_in(data, "b") == ["ox", "cat"]


def test_names_that_do_not_fit():
    says(lambda: fdgnb.from_torch(dict(a=Shelf("ox cat", dict(ox=0, cat=0)))), "two classes one number")
    odd = Shelf("ox cat")
    odd.class_to_idx = dict(ox=7, cat=0)
    odd.__class__ = type("Odd", (Shelf,), dict(__getitem__=lambda s, i: (torch.zeros(1, 4, 4), 3)))
    says(lambda: fdgnb.from_torch(dict(a=odd)), "the label 3 of sample 0 is none that its data set names")


MISSING = {
    "NaN": ["cat", float("nan"), "dog"]*2, "None": ["cat", None, "dog"]*2, "NaT": ["cat", pd.NaT, "dog"]*2,
    "NA": ["cat", pd.NA, "dog"]*2, "a series": pd.Series(["cat", None, "dog"]*2),
    "nullable": pd.Series([0, None, 1]*2, dtype="Int64"), "floats": np.array([0, np.nan, 1]*2),
    "a tensor": torch.tensor([0, float("nan"), 1]*2), "categories": pd.Series(["a", None, "b"]*2, dtype="category"),
    "dates": np.array(["2020-01-01", "NaT", "2020-01-02"]*2, "datetime64[D]")}


@pytest.mark.parametrize("what", MISSING)
def test_a_label_that_is_missing_is_no_class(what):
    says(lambda: fdgnb.from_arrays(dict(a=(x, MISSING[what]))), "domain 'a'", "2 labels are missing", "sample 1")
    pairs = [(x[i], MISSING[what][i]) for i in range(6)]
    says(lambda: fdgnb.from_torch(dict(a=pairs)), "domain 'a'", "2 labels are missing", "sample 1")


WRONG = {
    "beyond int64": (np.array([2**63 + 5, 1, 2, 0, 1, 2], np.uint64), "beyond 64 bits"),
    "masked": (np.ma.masked_array([0, 1, 2]*2, [1, 0, 0, 0, 0, 0]), "under a mask"),
    "1 and '1'": ([0, 1, "1"]*2, "labels are words and numbers, '1' of sample 2 and 0 of sample 0"),
    "ragged": ([0, [1], 2]*2, "the label of sample 1 is of type list"),
    "one-hot": (np.eye(3)[[0, 1, 2]*2], "y.argmax(1)"),
    "shares": (np.full((6, 3), 1/3), "no masks, no boxes"),
    "masks": (np.zeros((6, 8, 8)), "no masks, no boxes"),
    "of gradients": ([0, 1, torch.tensor([1.], requires_grad=True)]*2, "floating-point: give y.astype(int)")}


@pytest.mark.parametrize("what", WRONG)
def test_labels_that_are_wrong(what):
    y, part = WRONG[what]
    says(lambda: fdgnb.from_arrays(dict(a=(x, y))), "domain 'a'", part)


def test_labels_that_are_taken():
    for y in (pd.Series(["cat", "dog"]*3, index=range(9, 15)), pd.Series(["cat", "dog"]*3, dtype="category"),
              np.ma.masked_array(["cat", "dog"]*3, [False]*6), np.array(["cat", "dog"]*3, object)):
        assert fdgnb.from_arrays(dict(a=(x, y))).classes == ["cat", "dog"]
    for y in (pd.Series([0, 1]*3, dtype="Int64"), [np.int8(0), 1]*3, [False, True]*3, torch.tensor([0, 1]*3)):
        assert fdgnb.from_arrays(dict(a=(x, y)))["a"].y.tolist() == [0, 1]*3
    for twice in (["cat", "cat"], ["cat", "dog", "cat"], {0: "cat", 1: "cat"}, [1, "1"]):
        says(lambda: fdgnb.from_arrays(dict(a=(x, [0, 1]*3)), classes=twice), "twice")


@pytest.mark.parametrize("how", ["target_transform", "a wrapper"])
def test_labels_that_a_set_does_not_number_itself(how, tmp_path):
    "Harmonized by hand, they were translated back by the folder's own numbers: sick counted as healthy."
    class Folder(torch.utils.data.Dataset):
        classes, targets = ["healthy", "sick"], [0, 0, 0, 0, 1, 1]
        target_transform = staticmethod(lambda y: 1 - y) if how == "target_transform" else None
        def __len__(self): return 6
        def __getitem__(self, i):
            y = self.targets[i]
            return torch.zeros(3, 8, 8), self.target_transform(y) if self.target_transform else y

    class Turned(torch.utils.data.Dataset):
        def __init__(self, dataset): self.dataset = dataset
        def __len__(self): return len(self.dataset)
        def __getitem__(self, i): return self.dataset[i][0], 1 - self.dataset[i][1]

    made = Folder() if how == "target_transform" else Turned(Folder())
    with pytest.warns(UserWarning, match="not the numbers that its `classes` name"):
        data = fdgnb.from_torch({"a": made}, classes=["sick", "healthy"])
    assert data.counts().loc["a"].to_dict() == {"sick": 2, "healthy": 4}
