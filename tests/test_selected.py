"""The model of each selection rule: which it is, kept bit for bit, loaded without data, applied, exported."""
import json
from types import SimpleNamespace
import numpy as np
import pytest, torch
import fdgnb
from conftest import one_line, python
from fdgnb import load
from fdgnb.core import FdgnbError, generator
from fdgnb.data.domain import Dataset, Domain
from fdgnb.federation.compose import METHODS, hooks_of
from fdgnb.runs import fit as fitting, metrics, selected
from fdgnb.runs.checkpoints import load_checkpoint
from fdgnb.runs.records import predictions
from fdgnb.vectors import digest
from safetensors.torch import save

refused = lambda says: pytest.raises(FdgnbError, match=says)
SHORT = dict(target="blended", lr=.05, batch_size=16, progress=False, seed=1)
RULES = ("last", "source_val", "target")


@pytest.fixture(scope="module")
def vary(tiny):
    "Settings whose best rounds differ: a rate so large that accuracy goes up and down."
    return dict(method="fedavg", dataset=tiny, rounds=5, local_steps=2, eval_local=0, **SHORT | dict(lr=.3))


def states(run):
    "{rule: state of the network that it names}."
    return {r: run.model_of(rule=r).state_dict() for r in RULES}


def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def accuracy_on_target(run, rule):
    part = run.fed.target_client._scored["target"]
    return (run.predict(part.samples(), rule=rule).argmax(1) == part.y).float().mean().item()


def test_each_rules_network_scores_what_the_table_says(vary, tmp_path):
    run = fdgnb.fit(**vary, out=tmp_path)
    chosen, table = metrics.chosen_rounds(run.history, run.sizes, run.round), run.table()
    assert len(set(chosen.values())) > 1                                # else the test shows nothing
    for rule in RULES:
        assert accuracy_on_target(run, rule) == pytest.approx(table.loc[rule, "target"], abs=1e-6)
        assert accuracy_on_target(SimpleNamespace(fed=run.fed, predict=load(tmp_path).predict), rule) \
            == pytest.approx(table.loc[rule, "target"], abs=1e-6)
    files = sorted(f.name for f in tmp_path.glob("round-*"))
    assert files == sorted(f"round-{r:04}.safetensors" for r in set(chosen.values()))
    again = fdgnb.fit(**vary)                                              # without a folder: kept in memory
    for rule in RULES: assert equal(states(run)[rule], states(again)[rule])


def test_the_network_of_a_round_is_that_of_a_run_of_so_many_rounds(vary):
    run = fdgnb.fit(**vary)
    for rule, r in metrics.chosen_rounds(run.history, run.sizes, run.round).items():
        until = fdgnb.fit(**vary | dict(rounds=r))
        assert equal(run.model_of(rule=rule).state_dict(), until.model.state_dict())


class Stop(Exception): pass


@pytest.mark.parametrize("every", [1, 4])
def test_stopped_and_resumed_keeps_the_same_weights(vary, tmp_path, every):
    whole = fdgnb.fit(**vary)
    for r in range(1, 5):
        def breaks(run, rows):
            if run.round == r: raise Stop
        with pytest.raises(Stop):
            fdgnb.fit(**vary, out=tmp_path/"a", callbacks=[breaks], checkpoint_every=every)
    done = fdgnb.fit(**vary, out=tmp_path/"a", checkpoint_every=every)
    read = fdgnb.fit(**vary, out=tmp_path/"a")                                            # nothing is played
    for other in (done, read, load(tmp_path/"a")):
        for rule in RULES: assert equal(states(other)[rule], states(whole)[rule])


@pytest.mark.parametrize("where", ["save_checkpoint", "name_weights", "write_weights"])
def test_killed_between_two_files_the_folder_stays_whole(vary, tmp_path, monkeypatch, where):
    "Broken off before and after every writing; what is left selects files that are there."
    whole, real, count = fdgnb.fit(**vary), getattr(fitting, where), [0]
    def dies(*a, **kw):
        count[0] += 1
        if count[0] % 3 == 1: raise Stop
        out = real(*a, **kw)
        if count[0] % 3 == 2: raise Stop
        return out
    monkeypatch.setattr(fitting, where, dies)
    for _ in range(30):
        try: done = fdgnb.fit(**vary, out=tmp_path)
        except Stop: continue
        if done.round == 5: break
    monkeypatch.setattr(fitting, where, real)
    done = fdgnb.fit(**vary, out=tmp_path)
    for rule in RULES: assert equal(states(done)[rule], states(whole)[rule])


NETWORK = {"build", "receive", "download"}
OWN = [k for k, cls in sorted(METHODS.load().items()) if NETWORK & hooks_of(cls).keys()]


@pytest.mark.parametrize("name", ["fedavg", *OWN])
def test_every_methods_network_is_built_again_from_its_folder(name, tiny, tmp_path):
    run = fdgnb.fit(name, tiny, rounds=1, out=tmp_path, local_steps=1, eval_local=0, **SHORT)
    kept, x = load(tmp_path), tiny["blended"].x[:8]
    for rule in RULES: assert equal(states(kept)[rule], run.model.state_dict())
    assert torch.equal(kept.predict(x), run.predict(x))


def test_a_sum_and_half_precision_are_built_again(tiny, tmp_path):
    run = fdgnb.fit("fedsb+ga", tiny, rounds=2, out=tmp_path, S=8, precision="bfloat16", **SHORT)
    x = tiny["blended"].x[:8]
    assert torch.equal(load(tmp_path).predict(x), run.predict(x))
    assert run.export(tmp_path/"m.pt2").exists()


def test_what_has_no_model_says_so(vary, tiny, tmp_path):
    run = fdgnb.fit(**vary | dict(rounds=2), out=tmp_path/"a")
    for one in (run, load(tmp_path/"a")):
        with refused("'top5' is a mean over five rounds and has no model") as e: one.model_of(rule="top5")
        assert one_line(e)
        with refused("unknown selection rule 'sourceval'; did you mean 'source_val'"):
            one.model_of(rule="sourceval")
    for one in (run, load(tmp_path/"a")):
        with refused("no client 'inkd'; did you mean 'inked'") as e: one.model_of("inkd", rule="source_val")
        assert one_line(e)
    blind = fdgnb.fit(**vary | dict(rounds=2, eval_every=0), out=tmp_path/"b")
    with refused("'source_val' names no round"): blind.model_of(rule="source_val")
    with refused("under the rule 'target' in"): load(tmp_path/"b").model_of(rule="target")
    assert equal(load(tmp_path/"b").model_of().state_dict(), blind.model.state_dict())
    with refused("no record at"): load(tmp_path/"c")


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "ditto", "local", "lgfedavg", "partialfed", "fdse", "dsbn"])
def test_every_client_s_model_is_kept_with_the_run(name, tiny, tmp_path):
    "Of each rule, in memory and read back without the data; an unseen client's is the target's."
    run = fdgnb.fit(name, tiny, rounds=2, out=tmp_path, local_steps=2, eval_local=0, **SHORT | dict(lr=.3))
    kept, x = load(tmp_path), tiny["blended"].x[:8]
    for c in run.fed.clients:
        assert equal(kept.model_of(c.id).state_dict(), run.model_of(c.id).state_dict())
        assert torch.equal(kept.predict(x, domain=c.id), run.model_of(c.id)(x/255))
        is_own = not equal(run.model_of(c.id).state_dict(), run.model.state_dict())
        assert is_own == (name != "fedavg")
        for rule in RULES:
            assert equal(kept.model_of(c.id, rule).state_dict(), run.model_of(c.id, rule).state_dict())
    assert equal(kept.model_of("blended").state_dict(), run.model.state_dict())


def test_a_round_s_own_models_are_those_of_a_run_of_so_many_rounds(vary, tmp_path):
    how = vary | dict(method="fedbn")
    run = fdgnb.fit(**how, out=tmp_path)
    for rule, r in metrics.chosen_rounds(run.history, run.sizes, run.round).items():
        until = fdgnb.fit(**how | dict(rounds=r))
        for c in ("inked", "optical"):
            wanted = until.model_of(c).state_dict()
            assert equal(run.model_of(c, rule).state_dict(), wanted)
            assert equal(load(tmp_path).model_of(c, rule).state_dict(), wanted)


def test_own_models_cost_their_size_and_large_ones_are_kept_once(vary, tmp_path, monkeypatch):
    "FedBN's files grow by the BatchNorm layers, FedAvg's not; beyond a limit only the last round has them."
    size = lambda folder: max(f.stat().st_size for f in folder.glob("round-*"))
    for name in ("fedavg", "fedbn", "ditto"): fdgnb.fit(**vary | dict(method=name, rounds=1), out=tmp_path/name)
    assert size(tmp_path/"fedavg") < size(tmp_path/"fedbn") < 1.2*size(tmp_path/"fedavg")
    assert size(tmp_path/"ditto") > 3*size(tmp_path/"fedavg")
    monkeypatch.setattr(selected, "MOST_OWN", 10)
    monkeypatch.setattr(metrics, "FEW", 0)                                     # so that a rule names an early round
    run = fdgnb.fit(**vary | dict(method="fedbn"), out=tmp_path/"limited")
    chosen, kept = metrics.chosen_rounds(run.history, run.sizes, run.round), load(tmp_path/"limited")
    rule = next(rule for rule, r in chosen.items() if r < run.round)
    for one in (run, kept):
        with refused("were too large to be kept: rule='last' has them") as e: one.model_of("inked", rule)
        assert one_line(e) and equal(one.model_of("inked").state_dict(), run.model_of("inked").state_dict())


def save_crafted(file, model, raw):
    "A file of weights whose digest is right and whose JSON is anything."
    tensors = {f"model/{k}": v for k, v in model.items()}
    tensors["json"] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    head = json.dumps(dict(format="fdgnb-2", digest=digest(tensors)))
    file.write_bytes(save({k: v.clone() for k, v in tensors.items()}, {"fdgnb": head}))


def test_damage_is_one_line(vary, tmp_path):
    run = fdgnb.fit(**vary | dict(rounds=1), out=tmp_path)
    file, names = tmp_path/"round-0001.safetensors", tmp_path/"selected.json"
    whole, text = file.read_bytes(), names.read_text()
    for bad in (whole[:-5], b"", whole[:9] + bytes(50) + whole[59:]):
        file.write_bytes(bad)
        with refused("is torn or was not written by fdgnb") as e: load(tmp_path)
        assert one_line(e)
    file.write_bytes((tmp_path/"checkpoint.safetensors").read_bytes())
    with refused("holds no model|is torn"): load(tmp_path)
    file.write_bytes(whole)
    for bad in ("", "[]", "null", '{"rules": 3}', '{"format": "x", "rules": {}}', text[:20]):
        names.write_text(bad)
        with refused("selected.json is torn") as e: load(tmp_path)
        assert one_line(e)
    names.write_text(text)
    states, about = load_checkpoint(file)
    plain = {"model": {}}
    crafted = [about | wrong for wrong in (dict(args=3), dict(classes=["\x1b[2J"]), dict(shape="x"))]
    for bad in (b"[1,2]", b"\xff{", dict(meta={}), *(dict(plain=plain, meta=meta) for meta in (None, *crafted))):
        save_crafted(file, states["model"], bad if isinstance(bad, bytes) else json.dumps(bad).encode())
        with refused("round-0001.safetensors is torn|the name '.x1b.2J' holds a sign") as e: load(tmp_path).model
        assert one_line(e)
    file.unlink()
    with refused("the weights of round 1 are not in"): load(tmp_path)
    assert run.round == 1


def test_a_saved_run_has_its_models_wherever_it_was_saved(vary, tmp_path):
    run = fdgnb.fit(**vary | dict(rounds=3))
    run.save(tmp_path)
    back = load(tmp_path)
    assert back.history.equals(run.history) and back.round == 3
    for rule in RULES: assert equal(states(back)[rule], states(run)[rule])


def test_loading_needs_no_data_and_no_other_process(vary, tmp_path):
    run = fdgnb.fit(**vary | dict(rounds=1), out=tmp_path)
    x = torch.arange(2*3*28*28).reshape(2, 3, 28, 28).remainder(256).to(torch.uint8)
    code = f"""import fdgnb, torch, sys
x = torch.arange(2*3*28*28).reshape(2, 3, 28, 28).remainder(256).to(torch.uint8)
print(fdgnb.load({str(tmp_path)!r}).predict(x, rule='source_val').tolist())"""
    told = python(code)
    assert json.loads(told.stdout) == run.predict(x).tolist(), told.stderr


# ---- predict and export

@pytest.mark.parametrize("normalize", ["none", "imagenet", "half"])
def test_predict_scales_as_the_run_does(tiny, normalize):
    run = fdgnb.fit("fedavg", tiny, rounds=2, normalize=normalize, **SHORT)
    part = run.fed.target_client._scored["target"]
    x = part.samples()
    wanted = predictions(run)["predicted"]
    for given in (x, x/255, x.numpy(), (x/255).double().numpy()):
        assert (run.predict(given).argmax(1).numpy() == wanted).all()
    assert torch.equal(run.predict(x), run.predict(x/255))
    assert torch.equal(run.predict(x[0]), run.predict(x[:1]))
    with refused(r"bytes \(uint8\), or floats in \[0, 1\]; these reach from 0 to 255"): run.predict(x.float())


def test_predict_of_vectors():
    g = generator(0)
    make = lambda n: Domain(n, torch.randn(40, 6, generator=g), torch.arange(40) % 2)
    data = Dataset("v", {n: make(n) for n in "abt"}, ["0", "1"], defaults=dict(backbone="mlp2"))
    run = fdgnb.fit("fedavg", data, rounds=1, **SHORT | dict(target="t"))
    x = data["t"].x
    assert (run.predict(x).argmax(1).numpy() == predictions(run)["predicted"]).all()
    with refused(r"a batch \(N, 6\), not \(40, 5\)"): run.predict(x[:, :5])
    with refused("finite numbers; these reach from nan"): run.predict(x*float("nan"))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("method", ["fedavg", "fdse"])
def test_an_exported_program_gives_predicts_logits(tiny, tmp_path, suffix, method):
    if suffix == ".onnx": pytest.importorskip("onnxscript") and pytest.importorskip("onnxruntime")
    run = fdgnb.fit(method, tiny, rounds=1, normalize="imagenet", **SHORT)
    x = tiny["blended"].x[:5]
    read = dict([(".pt2", selected.run_program), (".onnx", selected.run_onnx)])[suffix]
    for floats in (False, True):
        path = run.export(tmp_path/f"m{suffix}", rule="source_val", floats=floats)
        for n in (1, 5):
            torch.testing.assert_close(read(path, x[:n]/255 if floats else x[:n]), run.predict(x[:n]),
                                       rtol=1e-4, atol=1e-4)
    assert [f.name for f in tmp_path.iterdir()] == [f"m{suffix}"]


def test_an_export_that_does_not_agree_is_not_left(tiny, tmp_path, monkeypatch):
    run = fdgnb.fit("fedavg", tiny, rounds=1, **SHORT)
    wrong = selected.make_writer(selected.write_program, lambda path, x: selected.run_program(path, x) + 1)
    monkeypatch.setitem(selected.WRITERS, ".pt2", wrong)
    with refused("off the network") as e: run.export(tmp_path/"m.pt2")
    assert one_line(e) and not list(tmp_path.iterdir())
    with refused("the suffix says the kind"): run.export(tmp_path/"m.pkl")
    monkeypatch.setattr(selected, "find_spec", lambda name: None)
    with refused("onnx is not installed: pip install fdgnb"): run.export(tmp_path/"m.onnx")


def test_files_are_read_as_the_run_read_them(tmp_path):
    "A folder of images of several sizes: predicted from their files as from the run's own samples."
    from PIL import Image
    rng = np.random.default_rng(0)
    for i, (site, label) in enumerate((s, c) for s in "ab" for c in "xy" for _ in range(4)):
        (at := tmp_path/"data"/site/label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + i, 31, 3)).astype(np.uint8)).save(at/f"{i:02}.png")
    run = fdgnb.fit("fedavg", str(tmp_path/"data"), target="b", rounds=1, local_steps=1, out=tmp_path/"run",
                    size=28, progress=False)
    kept, files = load(tmp_path/"run"), sorted((tmp_path/"data"/"b").glob("*/*.png"))
    assert kept.classes == ["x", "y"] and run.classes == kept.classes
    stored = fdgnb.from_folder(str(tmp_path/"data"), size=28)["b"]
    for model in (run, kept):
        assert torch.equal(model.predict(files), run.predict(stored.x))
        assert torch.equal(model.predict(stored), run.predict(stored.x))
        with refused(r"takes a batch \(N, 3, 28, 28\), not \(8, 3, 56, 56\).*size"):
            model.predict(stored.x.repeat(1, 1, 2, 2))
    with refused("holds models, no results: run.save"): kept.table()
    assert not hasattr(kept, "history") and not hasattr(kept, "nothing")
    run.save()
    assert load(tmp_path/"run").table().equals(run.table())


def test_what_cannot_adapt_is_refused(tiny):
    "What needs a server's message, and what finds nothing in its network; the images of another size too."
    for name, says in (("dsbn", "dsbn does not adapt"), ("fedavg+dsbn", "does not adapt to a domain"),
                       ("similarity", "similarity finds nothing to adapt in this network")):
        run = fdgnb.fit(name, tiny, rounds=1, local_steps=1, eval_local=0, **SHORT)
        with refused(says): run.adapt(run.fed.target_client.splits["target"].samples())


@pytest.mark.parametrize("name", ["fedavg", "bnstats", "tent", "fdse", "fdse+tent"])
def test_adapted_is_what_the_run_scored(tiny, tmp_path, name):
    "By accuracy and loss; a second model, and the model it came from, are not moved."
    made = fdgnb.fit(name, tiny, rounds=2, local_steps=2, eval_local=0, out=tmp_path, **SHORT)
    x, y = (part := made.fed.target_client._scored["target"]).samples(), part.y
    if name == "fedavg":
        with refused("does not adapt to a domain: use predict; these do: .*bnstats.*fdse"): made.adapt(x)
        return
    said = made.history.query("point == 'adapted'").set_index("metric")["value"]
    for model in (made, load(tmp_path)):
        before = model.predict(x)
        for _ in range(2):
            logits = model.adapt(x).predict(x)
            assert (logits.argmax(1) == y).float().mean().item() == pytest.approx(said.accuracy, abs=1e-6)
            assert torch.nn.functional.cross_entropy(logits, y).item() == pytest.approx(said.loss, rel=1e-5)
        assert torch.equal(model.predict(x), before) and not torch.equal(logits, before)


def test_exported_programs_say_what_they_take(vary, tmp_path):
    "The classes and a sample's shape lie in the program."
    run = fdgnb.fit(**vary)
    extra = {"notes.json": ""}
    torch.export.load(run.export(tmp_path/"a.pt2"), extra_files=extra)
    notes = json.loads(extra["notes.json"])
    assert notes == dict(classes=run.classes, shape=[3, 28, 28], takes="bytes (uint8)")
    onnx = pytest.importorskip("onnx")
    props = onnx.load(run.export(tmp_path/"a.onnx", floats=True)).metadata_props
    said = {p.key: json.loads(p.value) for p in props}
    assert said["classes"] == run.classes and said["takes"] == "floats in [0, 1]"


ABOUT = dict(in_channels=3, size=8, shape=[3, 8, 8])
PAIR = dict(in_channels=2, size=None)                                  # of a run of vectors of two numbers


def some_bytes(): return torch.randint(256, (4, 3, 8, 8), generator=generator(0)).to(torch.uint8)


def test_a_batch_is_taken_in_every_form_a_user_has():
    x = some_bytes()
    for given in (x, x.numpy(), (x/255.).tolist(), x.permute(0, 2, 3, 1), Domain("a", x, torch.zeros(4).long())):
        assert torch.equal(selected.as_batch(given, ABOUT), x)
    assert torch.equal(selected.as_batch(x[0], ABOUT), x[:1])
    vectors = torch.tensor([[1, 200]]).to(torch.uint8)
    assert torch.equal(selected.as_batch(vectors, PAIR), vectors.float())
    assert selected.as_batch([[1., -7.]], PAIR).tolist() == [[1., -7.]]


def test_what_is_no_batch_is_refused_with_the_remedy():
    x, batch = some_bytes(), selected.as_batch
    wrong = [(x.float(), r"floats in \[0, 1\]; these reach from 0 to 255"), (x.float()*float("nan"), "from nan"),
             (x[:, :1], r"a batch \(N, 3, 8, 8\), not \(4, 1, 8, 8\)"), (x[:0], "no samples"), ("cat.png", "cat.png: "),
             (x[..., 1:], "the run saw another size: resize as it did"), ([[1], [1, 2]], "several shapes"),
             (x.to_sparse(), r"give its to_dense\(\)"), (x.long()*2, "0 to 255")]
    for bad, says in wrong:
        with refused(says): batch(bad, ABOUT)
    with refused("finite numbers"): batch([[1., float("inf")]], PAIR)
    with refused("no image files"): batch("a.png", PAIR)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_file_of_any_mode_is_read_as_a_data_set_reads_it(tmp_path, mode):
    from PIL import Image
    from fdgnb.data.folders import decode
    ramp = np.random.default_rng(0).integers(0, 256, (20, 12, 4)).astype(np.uint8)
    deep = Image.fromarray(ramp[..., 0].astype(np.uint16)*256)
    image = deep if mode == "I;16" else Image.fromarray(ramp).convert(mode)
    image.save(file := tmp_path/"a.png")
    same = torch.from_numpy(decode(file, 8).copy())
    with Image.open(file) as again: assert torch.equal(selected.as_batch(again, ABOUT), same[None])
    assert torch.equal(selected.as_batch([file, str(file)], ABOUT), torch.stack([same, same]))
