"The model of each selection rule: kept bit for bit, loaded without data, applied, adapted, exported."
import json
import numpy as np
import pytest, torch
import torch.nn.functional as F
import fdgnb
from conftest import run, says
from fdgnb import load
from fdgnb.runs.callbacks import Metrics
from fdgnb.runs.metrics import values
from PIL import Image

RULES = ("last", "source_val", "target")
VARY = dict(rounds=5, eval_every=1, local_steps=2, eval_local=0, lr=.3, seed=1)       # accuracy goes up and down
SHORT = VARY | dict(rounds=2, lr=.05)


def state(model, domain=None, rule=None): return model.model_of(domain, rule).state_dict()


def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def scores(model, data):
    "(accuracy, loss) of a model's predictions by rule."
    logits = [model.predict(data.x, rule=rule) for rule in RULES]
    return [((z.argmax(1) == data.y).float().mean().item(), F.cross_entropy(z, data.y).item()) for z in logits]


def test_a_rules_models_are_those_of_a_run_of_so_many_rounds(tiny, tmp_path):
    "The table has their scores; read from the folder without data, each client's own model too."
    done = run("ditto", tiny, out=tmp_path, **VARY)
    kept, table = load(tmp_path), done.table()
    assert table["rounds"].loc[[*RULES]].nunique() > 1                            # else this shows nothing
    for rule in RULES:
        short = run("ditto", tiny, **VARY | dict(rounds=int(table.loc[rule, "rounds"])))
        for model in (done, kept):
            for domain in (None, "inked", "optical"):
                assert equal(state(model, domain, rule), state(short, domain))
    wanted = [(table.loc[r, "target"], done.table(metric="loss").loc[r, "target"]) for r in RULES]
    for model in (done, kept): assert scores(model, tiny["blended"]) == [pytest.approx(w, rel=1e-5) for w in wanted]
    assert not equal(state(done, "inked"), state(done))
    assert {f.name for f in tmp_path.glob("round-*")} == {f"round-{int(r):04}.safetensors" for r in
                                                          table.loc[[*RULES], "rounds"]}


def test_a_round_is_selected_by_any_metric(tiny, tmp_path):
    how = VARY | dict(data=tiny, method="fedavg", eval_every=2, fractions=(.4, .4, .2), select=["macro_f1", "ece"])
    done = run(**how)
    run(**how, out=tmp_path, callbacks=[Metrics("macro_f1"), lambda run, rows: run.round == 3])
    again = run(**how, out=tmp_path)
    for rule, best in (("macro_f1", "idxmax"), ("ece", "idxmin")):
        score, line = values(done.history, done.sizes, split="val", metric=rule)["ALL"], done.table().loc[rule]
        assert (line["rounds"], line["uses"]) == (str(getattr(score, best)()), f"source validation, {rule}")
        assert list(score.index) == [2, 4, 5] and again.table().loc[rule].equals(line)
        assert load(tmp_path).predict(tiny["blended"].x, rule=rule).equal(done.predict(tiny["blended"].x, rule=rule))


@pytest.mark.parametrize("method, given", [("fedsb+ga", dict(S=8, precision="bfloat16")), ("fdse", {}), ("fedsr", {})])
@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
def test_a_network_that_a_method_makes_is_built_again_from_its_folder(method, given, tiny, tmp_path):
    done, x = run(method, tiny, out=tmp_path, **SHORT | dict(rounds=1) | given), tiny["blended"].x[:8]
    assert torch.equal(load(tmp_path).predict(x), done.predict(x))


def test_what_has_no_model_says_so(tiny, tmp_path):
    done = run("fedavg", tiny, out=tmp_path/"a", **SHORT)
    for model in (done, load(tmp_path/"a")):
        says(lambda: model.model_of(rule="top5"), "no model")
        says(lambda: model.model_of(rule="sourceval"), "did you mean 'source_val'")
        says(lambda: model.model_of("inkd"), "did you mean 'inked'")
    run("fedavg", tiny, out=tmp_path/"b", **SHORT | dict(eval_every=0))
    says(lambda: load(tmp_path/"b").model_of(rule="target"), "'target'")
    says(lambda: load(tmp_path/"c"), "no record")
    says(lambda: load(tmp_path/"a").table(), "run.save")


# ---- predict

@pytest.mark.parametrize("normalize", ["none", "imagenet", "half"])
def test_predict_takes_a_batch_in_every_form_a_user_has_and_scales_it_as_the_run_did(normalize, tiny):
    done, data = run("fedavg", tiny, normalize=normalize, **SHORT), tiny["blended"]
    x, logits = data.x, done.predict(data.x)
    assert (logits.argmax(1) == data.y).float().mean().item() == pytest.approx(done.table().loc["last", "target"])
    for given in (x/255, x.numpy(), (x/255).double().numpy(), x.permute(0, 2, 3, 1), data):
        assert torch.equal(done.predict(given), logits)
    assert torch.equal(done.predict(x[0]), done.predict(x[:1]))
    wrong = [(x.float(), "255"), (x.float()*float("NaN"), "NaN"), (x[:, :1], "(N, 3, 28, 28)"), (x[:0], "samples"),
             ("cat.png", "cat.png"), (x[..., 1:], "size"), (x.long()*2, "255")]
    for bad, word in wrong: says(lambda: done.predict(bad), word)


def test_files_are_read_as_the_run_read_them(tmp_path):
    "Of several sizes and modes: predicted from their files as from the run's own samples."
    draws, modes = np.random.default_rng(0), ["1", "L", "LA", "P", "RGB", "RGBA", "RGB", "L"]
    for i, (site, label) in enumerate((s, c) for s in "ab" for c in "xy" for _ in range(4)):
        folder = tmp_path/"data"/site/label
        folder.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(draws.integers(0, 256, (20 + i, 31, 4)).astype(np.uint8))
        pixels.convert(modes[i % 8]).save(folder/f"{i:02}.png")
    done = run("fedavg", str(tmp_path/"data"), target="b", rounds=1, local_steps=1, out=tmp_path/"run", size=28)
    stored, files = fdgnb.from_folder(str(tmp_path/"data"), size=28)["b"], sorted((tmp_path/"data"/"b").glob("*/*.png"))
    kept = load(tmp_path/"run")
    assert kept.classes == done.classes == ["x", "y"]
    for model in (done, kept): assert torch.equal(model.predict(files), done.predict(stored.x))
    first = Image.open(files[0])
    assert torch.equal(done.predict(first), done.predict(stored.x[:1]))


# ---- adapt and export

@pytest.mark.parametrize("name", ["tent", "fdse+tent"])
def test_adapted_is_what_the_run_scored_and_moves_no_other_model(name, tiny, tmp_path):
    done, data = run(name, tiny, out=tmp_path, **SHORT), tiny["blended"]
    scored = done.history.query("point == 'adapted'").set_index("metric")["value"]
    for model in (done, load(tmp_path)):
        before = model.predict(data.x)
        for _ in range(2): logits = model.adapt(data.x).predict(data.x)
        assert (logits.argmax(1) == data.y).float().mean().item() == pytest.approx(scored.accuracy, abs=1e-6)
        assert F.cross_entropy(logits, data.y).item() == pytest.approx(scored.loss, rel=1e-5)
        assert torch.equal(model.predict(data.x), before) and not torch.equal(logits, before)


@pytest.mark.parametrize("name, word", [("fedavg", "use predict"), ("dsbn", "dsbn does not adapt"),
                                        ("similarity", "finds nothing to adapt")])
@pytest.mark.filterwarnings("ignore:similarity")
def test_what_cannot_adapt_says_so(name, word, tiny):
    done = run(name, tiny, **SHORT | dict(rounds=1))
    says(lambda: done.adapt(tiny["blended"].x), word)


def run_program(path, x):
    "(probabilities, recipe) of torch's program."
    recipe = {"recipe.json": ""}
    program = torch.export.load(path, extra_files=recipe).module()
    return program(x), json.loads(recipe["recipe.json"])


def run_onnx(path, x):
    "(probabilities, recipe) of a program in ONNX."
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    recipe = session.get_modelmeta().custom_metadata_map
    answer = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return torch.from_numpy(answer), {k: json.loads(v) for k, v in recipe.items()}


READERS = {".onnx": run_onnx, ".pt2": run_program}


@pytest.mark.parametrize("method, suffix, temperature", [("fedavg", ".onnx", 2.), ("fdse", ".pt2", 1.)])
def test_an_exported_program_gives_predicts_probabilities(method, suffix, temperature, tiny, tmp_path, monkeypatch):
    "From pictures in [0, 1], bytes or not, in batches of any size; its recipe says what it is."
    if suffix == ".onnx": pytest.importorskip("onnxscript")
    done = run(method, tiny, normalize="imagenet", **SHORT | dict(rounds=1))
    monkeypatch.setattr(type(done), "temperature", lambda self, rule: temperature, raising=False)
    path = done.export(tmp_path/f"m{suffix}", rule="source_val", calibrated=temperature != 1)
    x = torch.cat([tiny["blended"].x[:5]/255, tiny["blended"].x[5:10]/256])
    for n in (1, 10):
        found, recipe = READERS[suffix](path, x[:n])
        wanted = (done.predict(x[:n], rule="source_val")/temperature).softmax(1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert recipe.items() >= dict(classes=done.classes, size=[28, 28], channels=3, range=[0, 1], encoder=None,
                                  temperature=temperature, rule="source_val", round=1, method=method).items()
    assert recipe["normalization"]["std"] == pytest.approx([.229, .224, .225])
    assert [f.name for f in tmp_path.iterdir()] == [f"m{suffix}"]
    says(lambda: done.export(tmp_path/"m.pkl"), "the suffix says the kind")


class Values(torch.nn.Module):
    "Has an operator that ONNX lacks."
    def __init__(self, n_classes, in_channels):
        super().__init__()
        self.head = torch.nn.Linear(28, n_classes)

    def forward(self, x): return self.head(torch.linalg.svdvals(x.mean(1)))


def test_an_operator_that_onnx_lacks_is_one_line(tiny, tmp_path):
    pytest.importorskip("onnxscript")
    done = run("fedavg", tiny, backbone=Values, **SHORT | dict(rounds=1, lr=.001))
    says(lambda: done.export(tmp_path/"m.onnx"), "_linalg_svd", "export to .pt2")
    found, _ = run_program(done.export(tmp_path/"m.pt2"), tiny["blended"].x[:5]/255)
    assert torch.equal(found.argmax(1), done.predict(tiny["blended"].x[:5]).argmax(1))
