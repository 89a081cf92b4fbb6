"""Faults that a hostile review found, each with the value that is right."""
import collections, types
import numpy as np
import pytest
import torch
import fdgnb
from conftest import one_line
from digests import data
from fdgnb.core import FdgnbError, check_words
from fdgnb.data.cache import cache_dir
from fdgnb.federation.rounds import select_clients
from fdgnb.methods.reweighting import clip_losses
from pairs import TINY

small = pytest.fixture(scope="module")(lambda: data(n=12))


def refused(call, said):
    with pytest.raises(FdgnbError) as e: call()
    assert one_line(e) and said in str(e.value)


def test_only_what_the_cache_wrote_is_made_private(tmp_path, monkeypatch):
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path))
    for name, manifest in (("app", "{}"), ("list", "[]"), ("torn", "{"), ("like", '{"format": 1, "digest": "x"}')):
        (tmp_path/name).mkdir(mode=0o755)
        for file, text in (("manifest.json", manifest), ("run.sh", "")):
            (tmp_path/name/file).write_text(text)
            (tmp_path/name/file).chmod(0o755)
    cache_dir()
    assert all(f.stat().st_mode & 0o777 == 0o755 for f in tmp_path.rglob("*"))


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
    x, y = np.random.default_rng(0).integers(0, 255, (24, 3, 16, 16), dtype=np.uint8), np.arange(24) % 2
    own = fdgnb.from_arrays({d: (x, y) for d in ("a", "pooled", "c")}, name="own")
    run = fdgnb.fit("fedavg", own, "pooled", partition=("pool",), backbone="lenet", batch_size=8, rounds=1)
    assert [c.id for c in run.fed.clients] == ["pooled sources"]
