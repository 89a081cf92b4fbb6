"Variants of the faults of the first hour: each is one line, or right."
import os, warnings
import numpy as np
import pytest
import torch
import fdgnb
from PIL import Image
from fdgnb import FdgnbError, Method
from fdgnb.core import seeded
from fdgnb.data.files import check_listed, is_ignored
from fdgnb.vectors import RunningMean
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split

USUAL = dict(backbone="cnn2", batch_size=4, local_steps=1, progress=False, workers=1)


def images(n, side=8): return torch.zeros(n, 3, side, side, dtype=torch.uint8)


def three(side=16):
    "Three domains of three classes."
    rng = np.random.default_rng(0)
    return fdgnb.from_arrays({k: (rng.integers(0, 256, (9, 3, side, side), dtype=np.uint8), np.arange(9) % 3)
                              for k in "abt"})


class Shelf(Dataset):
    "A data set that numbers its own classes."
    def __init__(self, names, numbers=None):
        self.names, self.classes = names, sorted(set(names))
        self.class_to_idx = numbers or {c: i for i, c in enumerate(self.classes)}

    def __len__(self): return len(self.names)
    def __getitem__(self, i): return images(1)[0], self.class_to_idx[self.names[i]]


class Wrapper(Dataset):
    "A data set in another, under a name of its own choice."
    def __init__(self, inner): self.inner = inner
    def __len__(self): return len(self.inner)
    def __getitem__(self, i): return self.inner[i]


def odd(**members):
    "A data set of three samples, with further members."
    usual = dict(__len__=lambda self: 3, __getitem__=lambda self, i: (images(1)[0], i))
    return type("Odd", (), usual | members)()


def words_of(**sets):
    data = fdgnb.from_torch(sets)
    return {d: [data.classes[i] for i in own.y.tolist()] for d, own in data.domains.items()}


# ---- labels

def test_a_wrapper_shows_the_names_of_what_it_holds():
    a, b = Shelf(["cat", "dog", "pig"]), Shelf(["dog", "pig"])
    assert words_of(a=Wrapper(a), b=Wrapper(b)) == dict(a=["cat", "dog", "pig"], b=["dog", "pig"])
    halves = random_split(Wrapper(b), [1, 1], torch.Generator().manual_seed(0))
    assert sum(words_of(a=a, p=halves[0], q=halves[1]).values(), [])[3:] in (["dog", "pig"], ["pig", "dog"])
    both = ConcatDataset([Subset(a, [2]), Subset(b, [0])])
    assert words_of(a=both, b=b)["a"] == ["pig", "dog"]
    with pytest.raises(FdgnbError, match="number their classes differently"): words_of(a=Wrapper(both))


def test_numbers_of_classes_with_gaps():
    assert words_of(a=Shelf(["cat", "dog"], dict(cat=3, dog=7))) == dict(a=["cat", "dog"])


@pytest.mark.parametrize("members", [
    dict(classes={"x", "y", "z"}), dict(classes="xyz"), dict(classes=object()),
    dict(classes=property(lambda self: 1/0)),
    dict(class_to_idx=dict(x=[0])), dict(class_to_idx=dict(x="0")), dict(__len__=lambda self: -1),
    dict(__len__=lambda self: 1/0), dict(__len__=lambda self: 0), dict(__getitem__=lambda self, i: None)])
def test_what_a_data_set_says_of_itself(members):
    with pytest.raises(FdgnbError): fdgnb.from_torch(dict(a=odd(**members)))


def test_names_of_classes_in_other_containers():
    pd = pytest.importorskip("pandas")
    for names in (np.array(["x", "y", "z"]), pd.Index(["x", "y", "z"]), pd.Series(["x", "y", "z"])):
        assert words_of(a=odd(classes=names)) == dict(a=["x", "y", "z"])
    for none in (None, 3, np.zeros(())): assert words_of(a=odd(classes=none)) == dict(a=["0", "1", "2"])


def test_a_class_is_no_data_set():
    with pytest.raises(FdgnbError, match="is a class"): fdgnb.from_torch(dict(a=Shelf))


@pytest.mark.parametrize("y, why", [
    (["a", "", "b"], "missing"), (["a", " ", "b"], "missing"), ([0, 1, np.inf], "infinite")])
def test_labels_that_are_none(y, why):
    with pytest.raises(FdgnbError, match=why): fdgnb.from_arrays(dict(a=(images(3), y)))


def test_names_that_look_alike():
    for pair in ("caf\u00e9", "cafe\u0301"), ("cat", "cat\u200b"), ("Dog", "dog "):
        with pytest.warns(UserWarning, match="different classes"): fdgnb.from_arrays(dict(a=(images(2), list(pair))))


def test_images_of_two_types_in_one_set():
    mixed = [(torch.full((3, 8, 8), .5), 0), (torch.full((3, 8, 8), 200, dtype=torch.uint8), 1)]
    with pytest.raises(FdgnbError, match="two scales"): fdgnb.from_torch(dict(a=mixed))


def test_fractions_divided_twice():
    x = np.random.default_rng(0).random((3, 3, 8, 8))/255
    with pytest.warns(UserWarning, match="divided by 255 twice"): fdgnb.from_arrays(dict(a=(x, [0, 1, 2])))


# ---- files

def folder(root, *more):
    "Two domains of two classes, and more images."
    usual = [f"{d}/{c}/{i}.png" for d in "ab" for c in "xy" for i in range(2)]
    for name in [*usual, *more]:
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root/name)
    return root


@pytest.mark.parametrize("name", [
    "~$a.png", "@Recycle/a.png", "@tmp/a.png", "Network Trash Folder/a.png", "found.000/a.png"])
def test_more_that_systems_leave(tmp_path, name):
    assert is_ignored(name.split("/")[0])
    assert len(fdgnb.from_folder(folder(tmp_path, f"a/x/{name}"), size=8)["a"].y) == 4


def test_a_link_to_where_it_lies_is_no_class(tmp_path):
    folder(tmp_path)
    os.symlink(tmp_path, tmp_path/"a"/"round")
    os.symlink(tmp_path, tmp_path/"round")
    data = fdgnb.from_folder(tmp_path, size=8)
    assert data.names == ["a", "b"] and data.classes == ["x", "y"]


def test_images_beside_class_folders(tmp_path):
    with pytest.warns(UserWarning, match="1 image beside the class folders"):
        fdgnb.from_folder(folder(tmp_path, "a/loose.png"), size=8)


@pytest.mark.parametrize("listed, why", [
    (dict(train=[], test=[]), "name no files"), (dict(train=["a"], test=["a"]), "are of train and of test"),
    (dict(train=["gone"], test=["a"]), "of training that .* name is there")])
def test_lists_that_leave_nothing_to_train_on(listed, why):
    with pytest.raises(FdgnbError, match=why): check_listed("list.txt", listed, "a".__eq__)


# ---- uploads

def evil(change, base=Method):
    "A method whose client b sends something else."
    class Evil(base):
        "sends something else"
        def upload(self, model, client):
            sent = dict(super().upload(model, client))
            return sent | change(sent) if client.id == "b" else sent
    return Evil


BIAS, VARIANCE = "model.head.fc2.bias", "model.features.conv1.bn.running_var"


@pytest.mark.parametrize("change", [
    lambda u: {BIAS: u[BIAS]*0 + 1e30}, lambda u: {BIAS: u[BIAS]*0 - 1e38}, lambda u: {VARIANCE: -u[VARIANCE] - 1}])
def test_a_model_that_cannot_be_is_told_by_its_client(change):
    with pytest.raises(FdgnbError, match="client 'b'"): fdgnb.fit(evil(change), three(), "t", 1, **USUAL)


def own(**hooks): return type("Own", (Method,), dict(__doc__="has its own hooks") | hooks)


@pytest.mark.parametrize("hooks, why", [
    (dict(weight=lambda self, server, k, u: None), "aggregation weight"),
    (dict(weight=lambda self, server, k, u: "x"), "aggregation weight"),
    (dict(weight=lambda self, server, k, u: torch.ones(2)), "aggregation weight"),
    (dict(decide=lambda self, server, us: None), "decide"), (dict(decide=lambda self, server, us: {"a": 1.}), "decide"),
    (dict(loss=lambda self, m, x, y, c: None), "loss of own is None"),
    (dict(loss=lambda self, m, x, y, c: m(x)), "loss"),
    (dict(loss=lambda self, m, x, y, c: m(x).sum().detach()), "depends on"),
    (dict(finish=lambda self, server: server.state.update({3: 1.})), "has the key 3"),
    (dict(finish=lambda self, server: server.state.update({"own.x": [1., float("nan")]})), "not finite")])
def test_hooks_that_give_something_else(hooks, why):
    hooks["replaces"] = tuple(hooks)
    with pytest.raises(FdgnbError, match=why): fdgnb.fit(own(**hooks), three(), "t", 1, **USUAL)


def test_a_mean_takes_no_odd_weight():
    for weight in (None, "1", float("nan"), -1, torch.ones(2), [1]):
        with pytest.raises(FdgnbError): RunningMean().push(dict(a=torch.ones(1)), weight)


# ---- methods without their layers

class Bare(torch.nn.Module):
    "A network without BatchNorm and dropout."
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 3)

    def forward(self, x): return self.head(self.conv(x).relu().mean((2, 3)))


@pytest.mark.parametrize("name", ["consistency", "similarity", "noeval"])
def test_a_method_that_does_nothing_says_so(name):
    with seeded(0): network = Bare()
    with pytest.warns(UserWarning, match=f"{name}: .* changes nothing"):
        fdgnb.fit(name, three(), "t", 1, **USUAL | dict(backbone=network))


@pytest.mark.parametrize("name", ["dse+consistency", "fdse", "noeval"])
def test_a_method_with_its_layers_says_nothing(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*changes nothing")
        fdgnb.fit(name, three(), "t", 1, **USUAL)


def test_a_matching_without_samples_says_so():
    with pytest.warns(UserWarning, match="mmd: client 'a' trains on 4 samples a round, fewer than mmd_batch=128"):
        fdgnb.fit("mkmmd", three(), "t", 1, **USUAL)


# ---- arguments

@pytest.fixture(scope="module")
def run(): return fdgnb.fit("fedavg", three(), "t", 1, **USUAL)


def nested():
    "A list in a list, deeper than Python prints."
    deep = []
    for _ in range(2000): deep = [deep]
    return deep


ODD = [np.array("a"), np.zeros(2), torch.ones(2), nested(), 3, object(), b"x"]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_odd_arguments_of_a_run(run, value):
    calls = [lambda: run.model_of(value), lambda: run.predict(images(1, 16), domain=value),
             lambda: run.table(rules=value), lambda: run.save(value),
             lambda: fdgnb.get_dataset("digits", size=2 if isinstance(value, int) else value),
             lambda: fdgnb.get_dataset("digits", domains=value), lambda: fdgnb.from_texts(value),
             lambda: fdgnb.from_arrays(dict(a=(images(3), [0, 1, 2])), classes=value),
             lambda: fdgnb.from_arrays(dict(a=(images(3), [0, 1, 2])), name=value),
             lambda: fdgnb.fit("fedavg", three(), "t", 1, callbacks=[value], **USUAL)]
    for call in calls:
        with pytest.raises(FdgnbError): call()


def test_odd_clients_of_a_folder(tmp_path):
    fdgnb.fit("fedavg", three(), "t", 1, out=tmp_path, eval_every=1, **USUAL)
    kept = fdgnb.load(tmp_path)
    for value in (np.zeros(2), torch.ones(2), 3, object()):
        with pytest.raises(FdgnbError): kept.predict(images(1, 16), domain=value)
    with pytest.raises(FdgnbError): fdgnb.fit("fedavg", three(), 10**5000, 1, **USUAL)


def test_a_callback_of_other_arguments():
    with pytest.raises(FdgnbError, match="neither a function"):
        fdgnb.fit("fedavg", three(), "t", 1, callbacks=[lambda: None], **USUAL)


def test_a_long_name_of_texts():
    with pytest.raises(FdgnbError): fdgnb.from_texts("x"*9999)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_is_no_config(tmp_path):
    pytest.importorskip("typer")
    from fdgnb.__main__ import read_config
    os.mkfifo(tmp_path/"run.yaml")
    with pytest.raises(FdgnbError, match="no regular file"): read_config(tmp_path/"run.yaml")
