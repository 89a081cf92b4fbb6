"""Faults that a hostile review found, each with the value that is right."""
import collections, json, types
import numpy as np
import pytest
import torch
from PIL import Image
import fdgnb
from conftest import one_line
from digests import data
from fdgnb.core import FdgnbError, check_words
from fdgnb.data.cache import cache_dir
from fdgnb.data.own import join_labels, read_labels, to_nchw
from fdgnb.federation.rounds import select_clients
from fdgnb.methods.reweighting import clip_losses
from pairs import TINY
from test_splits import STORED, make_dicom

small = pytest.fixture(scope="module")(lambda: data(n=12))
WINDOW = dict(WindowCenter=1024, WindowWidth=1024)


def refused(call, said):
    with pytest.raises(FdgnbError) as e: call()
    assert one_line(e) and said in str(e.value)


def test_only_what_the_cache_wrote_is_made_private(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path))
    ours = json.dumps(dict(format=1, digest="x", files={"x.npy": 1, "link.npy": 1}))
    for name, manifest in (("app", "{}"), ("list", "[]"), ("torn", "{"), ("entry", ours)):
        (tmp_path/name).mkdir(mode=0o755)
        for file, text in (("manifest.json", manifest), ("x.npy", ""), ("run.sh", "")):
            (tmp_path/name/file).write_text(text)
            (tmp_path/name/file).chmod(0o755)
    (tmp_path/"entry"/"link.npy").symlink_to(tmp_path/"app"/"run.sh")
    cache_dir()
    changed = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.stat().st_mode & 0o777 != 0o755}
    assert changed == {"entry", "entry/manifest.json", "entry/x.npy"}


@pytest.mark.parametrize("other, fields, said", [
    (lambda file: Image.fromarray(STORED).save(file.with_suffix(".png")), WINDOW, "has not the window (512.0, 1535.0)"),
    (lambda file: np.save(file.with_suffix(".npy"), STORED/65535), WINDOW, "has not the window"),
    (lambda file: None, WINDOW | dict(VOILUTFunction="SIGMOID"), "without a linear window"),
    (lambda file: Image.new("L", (16, 16)).save(file.with_suffix(".png")), WINDOW, None)])
def test_a_window_of_dicom_is_for_dicom(other, fields, said, tmp_path):
    for i, c in enumerate("xyxy"):
        make_dicom(tmp_path/"f"/"ab"[i//2]/c/f"{i}.dcm", STORED, **fields)
        if i > 1: other(tmp_path/"f"/"b"/c/f"o{i}")
    read = lambda: fdgnb.from_folder(tmp_path/"f", size=16)
    if said is None: assert read().window == (512., 1535.)
    else: refused(read, said)


def test_one_dicom_that_is_cut_off_is_skipped(tmp_path):
    files = [make_dicom(tmp_path/"f"/d/"windows"/f"{i}.dcm", STORED + i, **WINDOW) for d in "ab" for i in range(4)]
    files[0].write_bytes(files[0].read_bytes()[:-100])
    with pytest.warns(UserWarning, match="skipped 1 of 4 files") as said:
        assert len(fdgnb.from_folder(tmp_path/"f", size=16)["a"]) == 3
    assert not any("pip install" in str(w.message) for w in said)


def test_a_loss_alone_in_its_round_is_bounded():
    loss = "scalars.reweighting.loss"
    with pytest.warns(UserWarning, match="counts as that"):
        ((_, upload),) = clip_losses(types.SimpleNamespace(n_classes=2), [("a", {loss: torch.tensor(1e11)})])
    assert float(upload[loss]) == 10


class Own(fdgnb.Method):
    "Does something as it begins."
    seen, table, deep, _act = collections.deque(), np.zeros(2), {"a": []}, None
    def begin(self, model, client, download):
        super().begin(model, client, download)
        if self._act: self._act(next(model.parameters()), model)


def average_by_numpy(self, server, uploads):
    uploads = list(uploads)
    for q, v in server.model.items(): v.numpy()[...] = sum(u[f"model.{q}"] for _, u in uploads)/len(uploads)


@pytest.mark.parametrize("hook, does, said", [
    ("_act", lambda self, p, net: p.requires_grad_(False), "a frozen weight or another forward on"),
    ("_act", lambda self, p, net: p.register_post_accumulate_grad_hook(lambda p: None), "leaves a hook"),
    ("_act", lambda self, p, net: setattr(net, "forward", net.forward), "another forward on 'the network'"),
    ("_act", lambda self, p, net: self.seen.append(1), "'seen' on itself"),
    ("_act", lambda self, p, net: self.deep["a"].append(1), "'deep' on itself"),
    ("_act", lambda self, p, net: np.add(self.table, 1, out=self.table), "'table' on itself"),
    ("aggregate", average_by_numpy, None),
    ("aggregate", lambda self, server, up: average_by_numpy(self, server, up) if server.round else list(up), None),
    ("aggregate", lambda self, server, uploads: list(uploads), "left the global model as it was")])
def test_what_a_method_leaves_is_seen(hook, does, said, small):
    play = lambda: fdgnb.fit(type("Mine", (Own,), {hook: does}), small, **TINY | dict(rounds=2))
    if said is None: assert play().round == 2
    else: refused(play, said)


def test_who_answers_and_what_is_read():
    settings = types.SimpleNamespace(dp_clip=1., per_round=None, drop=0., drops=((1, "a"), (1, "b")))
    fed = types.SimpleNamespace(settings=settings, seed=0, server=types.SimpleNamespace(clients=["a", "b"]))
    assert select_clients(fed, 0) == (["a", "b"], [])
    for sign in "\n\r\u2028\u200b\u200e\ufeff": refused(lambda: check_words("x", [f"a{sign}b"]), "rename it")
    cells = {"label 0": ["TRUE", "false", " True"], "label 1": read_labels([" 1", "0 ", "1"])}
    assert join_labels(cells, ["p", "q"]) == dict(label=[[1, 1], [0, 0], [1, 1]])
    refused(lambda: to_nchw(np.zeros((4, 9)), "x"), "kind='vectors'")
    x, y = np.random.default_rng(0).integers(0, 255, (24, 3, 16, 16), dtype=np.uint8), np.arange(24) % 2
    own = fdgnb.from_arrays({d: (x, y) for d in ("a", "pooled", "c")}, name="own")
    run = fdgnb.fit("fedavg", own, "pooled", partition=("pool",), backbone="lenet", batch_size=8, rounds=1)
    assert [c.id for c in run.fed.clients] == ["pooled sources"]
