"""Several labels a sample: what is trained, refused, scored, kept and predicted."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from conftest import says
import fdgnb
from fdgnb.__main__ import main
from fdgnb.runs.callbacks import Metrics

CLASSES = ["edema", "nodule", "effusion"]
USUAL = dict(workers=1, progress=False)
SINGLE = set("dsbn fedadg fedbr fediir fedka fedntd fedsb fedsr labelsmoothing rsc tent vhl voting".split())


def vectors(seed, n=30):
    "Vectors whose first three numbers tell the findings."
    rng = np.random.default_rng(seed)
    found = (rng.random((n, 3)) < .4).astype(int)
    return np.hstack([found, found]) + rng.normal(0, .3, (n, 6)), found


@pytest.fixture(scope="module")
def ward(): return fdgnb.from_arrays({d: vectors(i) for i, d in enumerate("abt")}, CLASSES, "ward")


@pytest.fixture(scope="module")
def run(ward, tmp_path_factory):
    how = dict(out=tmp_path_factory.mktemp("several")/"run", callbacks=[Metrics("auroc", "recall")], lr=.3)
    done = fdgnb.fit("fedavg", ward, "t", 3, **how, **USUAL)
    done.save()
    return done


def test_scores_are_those_by_hand(run, ward):
    logits, y = run.predict(ward["t"]), ward["t"].y.numpy()
    last = run.history.query("round == 3 and client == 't' and point == 'aggregated'").set_index("metric").value
    by_hand = [roc_auc_score(y[:, c], logits[:, c]) for c in range(3)]
    assert last["macro_auroc"] == pytest.approx(np.mean(by_hand)) == last["auroc"]
    assert [last[f"auroc[{c}]"] for c in CLASSES] == pytest.approx(by_hand)
    assert last["accuracy"] == pytest.approx(((logits.numpy() > 0) == (y > 0)).mean())
    assert last["loss"] == pytest.approx(F.binary_cross_entropy_with_logits(logits, ward["t"].y).item(), rel=1e-5)
    assert last["recall[nodule]"] == pytest.approx((logits[:, 1].numpy() > 0)[y[:, 1] > 0].mean())


def test_every_method_trains_or_says_that_it_cannot(ward):
    refused = {}
    for name in fdgnb.list_methods().index:
        try: fdgnb.fit(name, ward, "t", 1, batch_size=10, eval_every=0, **USUAL)
        except fdgnb.FdgnbError as e: refused[name] = str(e)
    assert {name for name, why in refused.items() if "one class a sample" in why} == SINGLE
    assert all("is for images" in why for name, why in refused.items() if name not in SINGLE)


def test_what_needs_one_class_is_refused(ward):
    fit = lambda method="fedavg", **how: lambda: fdgnb.fit(method, ward, "t", 1, **how, **USUAL)
    says(fit("fedprox+labelsmoothing"), "labelsmoothing", "one class a sample")
    for how in (dict(callbacks=[Metrics("ece")]), dict(stratify=True)): says(fit(**how), "one class a sample")
    for partition in (("halves",), ("chain", ("lda", 3, .5))): says(fit(partition=partition), "several labels")
    says(fit(class_weights=dict(nodul=2.)), "did you mean 'nodule'")


def test_a_run_is_read_back_and_predicts(run, ward, tmp_path, capsys):
    back = fdgnb.load(run.out)
    assert back.multilabel and back.table().equals(run.table())
    assert back.predict(ward["t"], rule="last").equal(run.predict(ward["t"]))
    page = back.report(tmp_path/"page").read_text()
    assert "auroc" in page and "<img" not in page and .1 <= back.temperature() <= 10
    x = np.random.default_rng(0).random((12, 3, 8, 8))
    pictures = fdgnb.from_arrays({d: (np.roll(x, i, 0), vectors(i, 12)[1]) for i, d in enumerate("ab")}, CLASSES)
    shown = fdgnb.fit("fedbn", pictures, None, 1, out=tmp_path/"run", **USUAL)
    from PIL import Image
    Image.fromarray(pictures["a"].x[0].permute(1, 2, 0).numpy()).save(tmp_path/"one.png")
    assert main(["predict", tmp_path/"run", tmp_path/"one.png", "--csv"]) == 0
    header, row = capsys.readouterr().out.split()
    assert header == "file,edema,nodule,effusion"
    wanted = shown.predict(pictures["a"].x[:1]).sigmoid()[0].tolist()
    assert list(map(float, row.split(",")[1:])) == pytest.approx(wanted, abs=1e-5)
    program = torch.export.load(shown.export(tmp_path/"several.pt2")).module()
    assert program(pictures["a"].x[:1]/255)[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_finetune_finds_the_columns_by_their_names(run, ward):
    tuned = fdgnb.finetune(run, ward["t"], epochs=2)
    turned = fdgnb.from_arrays(dict(t=(ward["t"].x, ward["t"].y[:, [2, 0, 1]])), ["effusion", "edema", "nodule"])
    assert tuned.multilabel and fdgnb.finetune(run, turned, epochs=2).history.equals(tuned.history)
    says(lambda: fdgnb.finetune(run, fdgnb.Domain("t", ward["t"].x, torch.zeros(30).long())), "3 columns")
    fewer = fdgnb.from_arrays(dict(t=(ward["t"].x, ward["t"].y[:, :2])), CLASSES[:2])
    says(lambda: fdgnb.finetune(run, fewer), "columns")
