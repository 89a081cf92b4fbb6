"Odd inputs that looked right once: names that look alike, what systems leave in folders, arguments of other types."
import os
import numpy as np
import pytest
import torch
from PIL import Image
import fdgnb
from fdgnb import FdgnbError
from pairs import bars, short


def images(n): return torch.zeros(n, 3, 8, 8, dtype=torch.uint8)


class Shelf(torch.utils.data.Dataset):
    "A data set that numbers its own classes."
    def __init__(self, names, numbers=None):
        self.names, self.classes = names, sorted(set(names))
        self.class_to_idx = numbers or {c: i for i, c in enumerate(self.classes)}

    def __len__(self): return len(self.names)
    def __getitem__(self, i): return images(1)[0], self.class_to_idx[self.names[i]]


def words_of(**sets):
    data = fdgnb.from_torch(sets)
    return {d: [data.classes[i] for i in own.y.tolist()] for d, own in data.domains.items()}


def test_names_of_classes_are_matched_across_domains():
    a, b = Shelf(["cat", "dog", "pig"]), Shelf(["dog", "pig"])
    both = torch.utils.data.ConcatDataset([torch.utils.data.Subset(a, [2]), torch.utils.data.Subset(b, [0])])
    assert words_of(a=a, b=b, c=both) == dict(a=["cat", "dog", "pig"], b=["dog", "pig"], c=["pig", "dog"])
    assert words_of(a=Shelf(["cat", "dog"], dict(cat=3, dog=7))) == dict(a=["cat", "dog"])


@pytest.mark.parametrize("pair", [("caf\u00e9", "cafe\u0301"), ("cat", "cat\u200b"), ("Dog", "dog ")])
def test_names_that_look_alike(pair):
    with pytest.warns(UserWarning, match="different classes"): fdgnb.from_arrays(dict(a=(images(2), list(pair))))


def test_fractions_divided_twice():
    x = np.random.default_rng(0).random((3, 3, 8, 8))/255
    with pytest.warns(UserWarning, match="divided by 255 twice"): fdgnb.from_arrays(dict(a=(x, [0, 1, 2])))


@pytest.mark.parametrize("left", ["~$a.png", "@Recycle/a.png", "@tmp/a.png", "Network Trash Folder/a.png", "round"])
def test_what_systems_leave_in_a_folder_is_no_image(tmp_path, left):
    for name in [f"{d}/{c}/{i}.png" for d in "ab" for c in "xy" for i in range(2)] + [f"a/x/{left}"]:
        (tmp_path/name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("round"): os.symlink(tmp_path, tmp_path/"a"/"round")            # a link to where it lies
        else: Image.new("RGB", (8, 8)).save(tmp_path/name)
    data = fdgnb.from_folder(tmp_path, size=8)
    assert (data.names, data.classes, len(data["a"].y)) == (["a", "b"], ["x", "y"], 4)


BIAS, VARIANCE = "model.head.fc2.bias", "model.features.conv1.bn.running_var"


@pytest.mark.parametrize("key, value", [(BIAS, 1e30), (BIAS, -1e38), (VARIANCE, -1.)])
def test_a_model_that_cannot_be_is_told_by_its_client(key, value):
    class Evil(fdgnb.Method):
        "One client sends something else."
        def upload(self, model, client):
            sent = dict(super().upload(model, client))
            return sent | {key: torch.full_like(sent[key], value)} if client.id == "b" else sent
    with pytest.raises(FdgnbError, match="client 'b'"): short(Evil)


ODD = [np.array("a"), np.zeros(2), torch.ones(2), 3, object(), b"x"]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_odd_arguments_are_refused(value, tmp_path):
    run = short("fedavg", out=tmp_path, eval_every=1)
    kept, x = fdgnb.load(tmp_path), images(1)
    calls = [lambda: run.model_of(value), lambda: run.predict(x, domain=value), lambda: kept.predict(x, domain=value),
             lambda: run.table(rules=value), lambda: run.save(value),
             lambda: fdgnb.get_dataset("digits", domains=value), lambda: fdgnb.from_texts(value),
             lambda: fdgnb.from_arrays(dict(a=(images(3), [0, 1, 2])), classes=value),
             lambda: fdgnb.from_arrays(dict(a=(images(3), [0, 1, 2])), name=value),
             lambda: short("fedavg", bars(), callbacks=[value]), lambda: short("fedavg", bars(), target=value)]
    for call in calls:
        with pytest.raises(FdgnbError): call()
