"Protocols give each method allowed values at every scale; augmentation depends on its generator alone."
import itertools
from dataclasses import fields
import pytest
import torch
import fdgnb
from conftest import says
from fdgnb.core import generator
from fdgnb.data.augment import AUGMENTATIONS
from fdgnb.data.catalogue import DATASETS
from fdgnb.federation.compose import METHODS
from fdgnb.models import MODELS
from fdgnb.runs.metrics import RULES
from fdgnb.runs.protocols import PROTOCOLS, SCALES, resolve

DATA = [*DATASETS.load(), "somebody's own"]
SETTINGS = {f.name: f for f in fields(fdgnb.Settings)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_value_is_a_setting_or_a_hyper_parameter_and_no_row_is_in_vain(protocol):
    "FDSE's protocol once gave Ditto a `mu`, which is called `lam` here: it was dropped without a word."
    about, seen = PROTOCOLS[protocol], []
    every = {f.name for name in METHODS.names() for f in fields(METHODS.get(name).Hyper)}
    assert about.select in RULES and about.point in ("local", "aggregated", "both")
    for row in about.rows:
        assert row.source and row.scale in SCALES and {*row.data} <= {*DATA} and {*row.method} <= {*METHODS.names()}
        for method in row.method:
            own = {f.name for f in fields(METHODS.get(method).Hyper)}
            assert row.name in {"rounds", *SETTINGS, *own}, f"{row.name} of {method}"
        assert row.name in {"rounds", *SETTINGS, *every}
        seen += [(row.name, d, m, row.scale) for d in row.data or ("",) for m in row.method or ("",)]
    assert len(seen) == len(set(seen)), "a value is given twice"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_value_is_allowed_and_scales_only_shrink(protocol):
    for data, method in itertools.product(DATA, ["fedavg", "fdse", "fedprox+ga"]):
        smoke, cpu, paper = (resolve(protocol, scale, data, method) for scale in SCALES)
        assert smoke["rounds"] < cpu["rounds"] < paper["rounds"]
        for values in (smoke, cpu, paper):
            fdgnb.Settings(**{k: v for k, v in values.items() if k in SETTINGS})
            assert values.get("backbone", "cnn2") in MODELS and values.get("augment", "none") in AUGMENTATIONS
        for name in ("local_epochs", "local_steps", "size", "limit", "batch_size"):
            sizes = [values.get(name, float("inf")) for values in (smoke, cpu, paper)]
            assert sizes == sorted(sizes), (data, name)


def test_values_of_papers_by_data_set_and_method():
    rate = lambda protocol, data, method=None: resolve(protocol, None, data, method)["lr"]
    assert [rate("fdse", "pacs", m) for m in ("fedavg", "fedheal", "fdse", "ditto")] == [.1, .1, .05, .05]
    assert [rate("fedbr", data) for data in ("rotated_mnist", "cifar10")] == [1e-3, .01]
    assert [resolve("fdse", None, d)["local_epochs"] for d in ("office_caltech10", "domainnet10")] == [1, 5]
    assert [resolve("fdse", None, d, "ditto")["lam"] for d in ("office_caltech10", "pacs")] == [.01, 1e-4]
    assert resolve("common", method="fedasam+scaffold")["fedasam.rho"] == .1
    assert resolve("fedka", None, "amazon_review")["load"] == dict(encoder="bert", tokens=256)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("shape", [(1, 3, 28, 28), (4, 1, 32, 20)])
def test_augmentation_draws_from_its_generator_and_stays_an_image(name, shape):
    x = torch.rand(*shape, generator=generator(0))
    kept, augment = x.clone(), AUGMENTATIONS[name]
    out = augment(x, generator(1))
    assert torch.equal(out, augment(x, generator(1))) and torch.equal(x, kept)
    assert out.shape == x.shape and out.dtype == x.dtype and out.min() >= -1e-6 and out.max() <= 1 + 1e-5
    assert (name == "none") == all(torch.equal(out, augment(x, generator(seed))) for seed in range(2, 12))


def test_each_image_is_changed_in_its_own_way_and_only_colors_are_colored():
    x = torch.rand(1, 3, 16, 16, generator=generator(0)).expand(8, -1, -1, -1)
    out = AUGMENTATIONS["ga"](x, generator(0))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(out, 2))
    says(lambda: AUGMENTATIONS.get("ga")(torch.zeros(2, 6, 28, 28), generator(0)), "not 6")
