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


@pytest.mark.parametrize("pair", [("caf\u00e9", "cafe\u0301"), ("Dog", "dog ")])
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
