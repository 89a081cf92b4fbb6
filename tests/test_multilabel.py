"Several labels a sample: what is read, trained, refused, scored, kept and pictured."
import json

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, roc_auc_score

import fdgnb
from fdgnb.__main__ import main
from fdgnb.core import FdgnbError
from fdgnb.data.domain import Dataset, Domain
from fdgnb.federation.compose import METHODS
from fdgnb.federation.loop import Client, Method
from fdgnb.runs import metrics, plots, records
from fdgnb.runs.callbacks import Metrics
from fdgnb.runs.setup import weigh_classes

CLASSES = ["edema", "nodule", "effusion"]
REFUSED = set("dsbn fedadg fedbr fediir fedka fedntd fedsb fedsr labelsmoothing rsc tent vhl voting".split())


def hospital(seed, n=24, size=16):
    "(images, findings): a channel lights up where its finding is there."
    rng = np.random.default_rng(seed)
    found = (rng.random((n, 3)) < .4).astype(int)
    return rng.random((n, 3, size, size))*.4 + .6*found[:, :, None, None], found


@pytest.fixture(scope="module")
def chest():
    return fdgnb.from_arrays({d: hospital(i) for i, d in enumerate("abt")}, CLASSES, "chest")


@pytest.fixture(scope="module")
def run(chest, tmp_path_factory):
    out = tmp_path_factory.mktemp("multi")/"run"
    more = [Metrics("auroc", "recall")]
    done = fdgnb.fit("fedavg", chest, "t", 3, out=out, workers=1, progress=False, callbacks=more)
    done.save()
    return done


def says(f, *parts):
    with pytest.raises(FdgnbError) as e: f()
    said = str(e.value)
    assert "\n" not in said and all(part in said for part in parts), said


FORMS = {"int": lambda y: y, "bool": lambda y: y > 0, "float": lambda y: y*1., "uint8": lambda y: y.astype(np.uint8),
         "tensor": torch.tensor, "list": lambda y: y.tolist(), "rows": list, "frame": lambda y: pd.DataFrame(y)}


@pytest.mark.parametrize("form", FORMS)
def test_zeros_and_ones_in_any_form_are_the_same_labels(form):
    x, y = hospital(0, 6, 8)
    data = fdgnb.from_arrays({"a": (x, FORMS[form](y))}, CLASSES)
    assert data.multilabel and data["a"].y.dtype == torch.float32 and data["a"].y.tolist() == y.tolist()
    assert data.counts().loc["a"].tolist() == y.sum(0).tolist()


def test_classes_by_number_put_the_columns_in_order():
    x, y = hospital(0, 6, 8)
    data = fdgnb.from_arrays({"a": (x, y)}, {2: "effusion", 0: "edema", 1: "nodule"})
    assert data.classes == ["effusion", "edema", "nodule"] and data["a"].y.tolist() == y[:, [2, 0, 1]].tolist()


def test_labels_that_are_refused():
    x, y = hospital(0, 6, 8)
    one = np.eye(3, dtype=int)[[0, 1, 2]*2]
    read = lambda labels, **kw: lambda: fdgnb.from_arrays({"a": (x, y), "b": (x, labels)}, **kw)
    for odd in (-y, y*2, np.where(y, np.nan, 0), np.full((6, 3), .5), np.full((6, 4), 31.7), np.zeros((6, 8, 8)),
                np.array([["x", "y", "z"]]*6)):
        says(read(odd), "domain 'b'", "no masks, no boxes")
    says(read([0, 1]*3), "(6, 3)", "(6,)")
    says(read(y[:, :2]), "(6, 3)", "(6, 2)")
    says(read(y, classes=CLASSES[:2]), "3 columns", "2 names")
    says(read(y, classes=[*CLASSES, "other"]), "3 columns", "4 names")
    says(read([0, 1]*3, multilabel=True), "multilabel=True")
    says(lambda: fdgnb.from_arrays({"a": (x, one)}), "y.argmax(1)", "multilabel=True")
    assert read(one)().multilabel                                    # the other domain says what they are
    assert fdgnb.from_arrays({"a": (x, one)}, multilabel=True).multilabel


class Listed(list):
    "A data set that names its classes."
    def __init__(self, pairs, classes):
        super().__init__(pairs)
        self.classes = classes


def test_torch_data_sets_with_rows_as_labels():
    x, y = hospital(0, 6, 8)
    named = lambda classes: Listed([(torch.tensor(v).float(), torch.tensor(row)) for v, row in zip(x, y)], classes)
    part = torch.utils.data.Subset(named(CLASSES), [3, 4, 5])
    data = fdgnb.from_torch({"a": named(CLASSES), "b": part})
    assert data.classes == CLASSES and data["b"].y.tolist() == y[3:].tolist()
    says(lambda: fdgnb.from_torch({"a": named(CLASSES), "b": named(CLASSES[::-1])}), "name the columns", "differently")
    as_lists = [(torch.tensor(v).float(), row.tolist()) for v, row in zip(x, y)]
    assert fdgnb.from_torch({"a": as_lists}, classes=CLASSES)["a"].y.tolist() == y.tolist()
    says(lambda: fdgnb.from_torch({"a": [(torch.zeros(3, 8, 8), torch.zeros(8, 8))]*2}), "label of sample 0")
    says(lambda: fdgnb.from_torch({"a": [(torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)})]*2}), "label of sample 0")


def test_domains_that_do_not_go_together():
    several = Domain("a", torch.zeros(2, 5), torch.ones(2, 3))
    single = Domain("b", torch.zeros(2, 5), torch.tensor([0, 1]))
    says(lambda: Dataset("d", {"a": several, "b": single}, CLASSES), "in all")
    says(lambda: Dataset("d", {"a": several}, CLASSES[:2]), "labels of 3 columns")
    for y in (torch.full((2, 3), .5), torch.ones(2, 3).long(), torch.ones(2, 3, 3)):
        says(lambda: Domain("a", torch.zeros(2, 5), y), "zeros and ones, float32 (N, C)")


def test_the_loss_is_binary_cross_entropy_and_soft_labels_of_one_class_keep_theirs():
    logits, y = torch.arange(12.).view(4, 3) - 5, torch.tensor([[1., 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    ward, single = (Client("a", dict(train=(torch.zeros(4, 2), labels))) for labels in (y, y.argmax(1)))
    assert Method().criterion(logits, y, ward) == F.binary_cross_entropy_with_logits(logits, y)
    soft = y.softmax(1)
    assert Method().criterion(logits, soft, single) == F.cross_entropy(logits, soft)
    ward.class_weights = torch.tensor([1., 2, 3])
    wanted = F.binary_cross_entropy_with_logits(logits, y, pos_weight=ward.class_weights)
    assert Method().criterion(logits, y, ward) == wanted


def test_weights_of_labels_that_are_present():
    y = torch.tensor([[1., 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    assert weigh_classes("balanced", y, CLASSES).tolist() == [3, 1, 1]           # none and all: nothing to balance
    assert weigh_classes({"nodule": 5.}, y, CLASSES).tolist() == [1, 5, 1]
    says(lambda: weigh_classes({"nodul": 5.}, y, CLASSES), "did you mean 'nodule'")


@pytest.fixture(scope="module")
def vectors():
    "Vectors whose first three numbers tell the findings."
    rng = np.random.default_rng(0)
    found = {d: (rng.random((30, 3)) < .4).astype(int) for d in "abt"}
    noisy = lambda y: np.hstack([y, y]) + rng.normal(0, .3, (30, 6))
    return fdgnb.from_arrays({d: (noisy(y), y) for d, y in found.items()}, CLASSES)


TRAINED = "fedavg fedprox scaffold moon ditto fedadam fednova feddyn fedsam ga groupdro mixup fedmix partialfed".split()


@pytest.mark.parametrize("name", TRAINED)
def test_methods_that_train(name, vectors):
    run = fdgnb.fit(name, vectors, "t", 2, workers=1, progress=False)
    assert run.history.query("metric == 'macro_auroc'").value.between(0, 1).all()


@pytest.mark.parametrize("name", ["fedbn", "fdse", "elcfs"])
def test_methods_of_images_that_train(name, chest):
    run = fdgnb.fit(name, chest, "t", 1, workers=1, progress=False, limit=12)
    assert run.history.query("metric == 'macro_auroc'").value.between(0, 1).all()


def test_methods_that_are_refused_before_any_work(chest):
    assert {name for name in fdgnb.list_methods().index if METHODS[name].single_label} == REFUSED
    for name in ("fedsr", "fedka", "labelsmoothing"):
        says(lambda: fdgnb.fit(name, chest, "t", 1), name, "one class a sample", "several labels")


def test_a_sum_with_a_refused_part_is_refused(chest):
    says(lambda: fdgnb.fit("fedprox+labelsmoothing", chest, "t", 1), "labelsmoothing")


def test_it_learns(vectors):
    for name in ("fedavg", "ga"):
        table = fdgnb.fit(name, vectors, "t", 5, workers=1, progress=False, lr=.3).table(metric="macro_auroc")
        assert table.loc["source_val", "target"] > .9, name


def test_scores_are_those_by_hand(run, chest):
    logits, y = run.predict(chest["t"]), chest["t"].y.numpy()
    last = run.history.query("round == 3 and client == 't' and point == 'aggregated'").set_index("metric").value
    by_hand = [roc_auc_score(y[:, c], logits[:, c]) for c in range(3)]
    assert last["macro_auroc"] == pytest.approx(np.mean(by_hand)) == last["auroc"]
    assert [last[f"auroc[{c}]"] for c in CLASSES] == pytest.approx(by_hand)
    assert last["accuracy"] == pytest.approx(((logits.numpy() > 0) == (y > 0)).mean())
    assert last["loss"] == pytest.approx(F.binary_cross_entropy_with_logits(logits, chest["t"].y).item(), rel=1e-5)
    assert last["recall[nodule]"] == pytest.approx((logits[:, 1].numpy() > 0)[y[:, 1] > 0].mean())


def test_rules_go_by_auroc(run):
    history = run.history
    best = history.query("metric == 'macro_auroc' and split == 'val' and point == 'aggregated'").groupby("round").value
    assert metrics.ranking_metric(history) == "macro_auroc"
    of_val = metrics.values(history, run.sizes, split="val", metric="macro_auroc")["ALL"]
    many = {d: {part: 20*n for part, n in parts.items()} for d, parts in run.sizes.items()}
    assert metrics.select(history, many) == [of_val.idxmax()] and best.ngroups == 3
    assert {"accuracy", "macro_auroc"} <= set(history.metric)
    single = history[history.metric != "macro_auroc"]
    assert metrics.ranking_metric(single) == "accuracy"                     # though a callback measured auroc


def test_metrics_of_several_labels():
    p, y = np.array([[.9, .2, .1], [.8, .6, .2], [.4, .7, .3]]), np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    found = metrics.compute_metrics(["recall", "precision", "auroc", "macro_f1"], p, y, CLASSES)
    assert found["recall[edema]"] == .5 and found["precision[edema]"] == .5 and found["auroc[edema]"] == .5
    assert found["recall[nodule]"] == found["precision[nodule]"] == found["auroc[nodule]"] == 1
    assert all(np.isnan(found[f"{m}[effusion]"]) for m in ("recall", "precision", "auroc"))
    assert found["macro_f1"] == pytest.approx(f1_score(y[:, :2], p[:, :2] > .5, average="macro"))


def test_what_needs_one_class_is_refused(run, chest):
    fit = lambda **kw: lambda: fdgnb.fit("fedavg", chest, "t", 1, progress=False, **kw)
    for name in ("ece", "auc", "balanced_accuracy"):
        says(fit(callbacks=[Metrics(name)]), name, "one class a sample")
    for partition in (("halves",), ("lda", 3, .5), ("chain", ("dirichlet", 3, .5))):
        says(fit(partition=partition), "partition", "several labels")
    for picture in (plots.confusion, plots.embedding): says(lambda: picture(run), "one class a sample")
    assert fdgnb.fit("fedavg", chest, "t", 1, progress=False, workers=1, partition=("split", 2)).sizes.keys() > {"a 0"}


def test_pictures_and_arrays(run):
    for picture in (plots.overview_plot, plots.curves_plot, plots.domain_bars, plots.ledger_plot): picture(run)
    plots.sample_sheet(run.fed.data)
    kept = records.arrays(run)
    assert kept["label"].shape == kept["predicted"].shape == (24, 3) and kept["feature_label"].shape[1] == 3
    level, what = plots.baseline(run)
    share = run.fed.data["t"].y.mean(0)
    assert level == pytest.approx(float(torch.maximum(share, 1 - share).mean())) and "label" in what
    by_label = metrics.label_recalls(kept["label"], kept["predicted"], CLASSES)
    assert by_label.samples.tolist() == kept["label"].sum(0).tolist()
    last = run.history.query("round == 3 and client == 't' and point == 'aggregated'").set_index("metric").value
    assert by_label.recall.tolist() == pytest.approx([last[f"recall[{c}]"] for c in CLASSES])
    assert "%" in metrics.summarize(run) and "t" in repr(run.table())


def test_a_run_read_back(run, chest, capsys, tmp_path):
    back = fdgnb.load(run.out)
    assert back.multilabel and back.table().equals(run.table())
    assert torch.equal(back.predict(chest["t"], rule="last"), run.predict(chest["t"]))
    assert plots.baseline(back) == plots.baseline(run)
    again = fdgnb.fit("fedavg", chest, "t", 3, out=run.out, workers=1, progress=False)
    assert again.round == 3 and again.history.equals(run.history)
    from PIL import Image
    Image.fromarray(chest["t"].x[0].permute(1, 2, 0).numpy()).save(tmp_path/"one.png")
    assert main(["predict", run.out, tmp_path/"one.png", "--csv"]) == 0
    header, row = capsys.readouterr().out.split()
    assert header == "file,edema,nodule,effusion"
    wanted = run.predict(chest["t"].x[:1]).sigmoid()[0].tolist()
    assert list(map(float, row.split(",")[1:])) == pytest.approx(wanted, abs=1e-5)


def test_a_run_of_one_class_says_so(tmp_path):
    x, y = hospital(0, 24)
    data = fdgnb.from_arrays({d: (x, y[:, 0]) for d in "ab"})
    done = fdgnb.fit("fedavg", data, None, 1, out=tmp_path/"r", workers=1, progress=False)
    assert not done.multilabel and set(done.history.metric) == {"accuracy", "loss"}


def test_finetune(run, chest):
    tuned = fdgnb.finetune(run, chest["t"], epochs=2)
    assert {"accuracy", "loss", "macro_auroc"} == set(tuned.history.metric) and tuned.multilabel
    turned = fdgnb.from_arrays({"t": (chest["t"].x, chest["t"].y[:, [2, 0, 1]])}, ["effusion", "edema", "nodule"])
    assert fdgnb.finetune(run, turned, epochs=2).history.equals(tuned.history)
    one = Domain("t", chest["t"].x, torch.zeros(24).long())
    says(lambda: fdgnb.finetune(run, one), "several labels a sample", "one class a sample")
    fewer = fdgnb.from_arrays({"t": (chest["t"].x, chest["t"].y[:, :2])}, CLASSES[:2])
    says(lambda: fdgnb.finetune(run, fewer), "no column 'effusion'")


def test_the_record_is_json(run):
    assert json.loads((run.out/"record.json").read_text())["classes"] == CLASSES


def test_a_table_with_a_column_for_each_label(tmp_path):
    from PIL import Image
    x, y = hospital(0, 12, 16)
    rows = []
    for i, (pixels, found) in enumerate(zip(x, y)):
        Image.fromarray((pixels*255).astype("uint8").transpose(1, 2, 0)).save(tmp_path/f"{i}.png")
        rows.append(dict(zip(CLASSES, found), file=f"{i}.png", domain="ab"[i % 2], patient=f"{i % 2} {i//4}"))
    pd.DataFrame(rows).to_csv(tmp_path/"images.csv", index=False)
    read = lambda **kw: fdgnb.from_table(tmp_path/"images.csv", size=16, **kw)
    data = read(label=CLASSES, groups="patient")
    assert data.classes == CLASSES and data["b"].y.tolist() == y[1::2].tolist()
    fed = fdgnb.fit("fedavg", data, "b", 1, workers=1, progress=False).fed
    assert fed.clients[0].multilabel
    says(lambda: fdgnb.fit("fedavg", data, "b", 1, stratify=True), "stratify needs one class a sample")
    says(lambda: read(label=["edema"]), "a list of several")
    says(lambda: read(label=["edema", "nodul"]), "no column 'nodul'")
    says(lambda: read(label=["edema", "patient"]), "zeros and ones")
