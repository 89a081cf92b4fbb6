"""Protocols resolve for every method and scale; partitions lose nothing; augmentation depends on its
generator alone; bad names are refused."""
import itertools, threading
from dataclasses import fields
import pytest
import torch
import fdgnb
from fdgnb.core import FdgnbError, generator
from fdgnb.data.domain import Dataset, Domain
from fdgnb.federation.compose import METHODS, hyper_names, method_class
from fdgnb.settings import Settings, check_value
from fdgnb.runs.setup import Federation, resolve_arguments
from fdgnb.vectors import digest
from fdgnb.methods.drift import step_reach
from fdgnb.runs.metrics import RULES
from fdgnb.models import MODELS
from fdgnb.data.augment import AUGMENTATIONS, Augment, list_augmentations
from fdgnb.data.catalogue import DATASETS
from fdgnb.data.partitions import PARTITIONS
from fdgnb.runs.protocols import PROTOCOLS, SCALES, list_protocols, protocol_table, resolve, row

DATA = ["digits", "office_caltech10", "pacs", "vlcs", "officehome", "terra_incognita", "domainnet",
        "domainnet10",
        "digit_five", "rotated_mnist", "cifar10", "cifar100", "amazon_review", "somebody's own"]
SETTINGS = {f.name: f for f in fields(Settings)}


def toy(sizes=(60, 45, 33), classes=5, side=8, official=False):
    "Domains whose first two pixels carry the number of the image."
    out, start = {}, 0
    for name, n in zip("abcdefgh", sizes):
        x = torch.zeros(n, 3, side, side, dtype=torch.uint8)
        i = start + torch.arange(n); start += n
        x[:, 0], x[:, 1] = (i//256).to(torch.uint8)[:, None, None], (i % 256).to(torch.uint8)[:, None, None]
        out[name] = Domain(name, x, torch.randint(classes, (n,), generator=generator(n)))
        if official: out[name].split = dict(train=torch.arange(2*n//3), test=torch.arange(2*n//3, n))
    return Dataset("toy", out, [str(c) for c in range(classes)])


def number(d): return (d.x[:, 0, 0, 0].long()*256 + d.x[:, 1, 0, 0]).tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_value_is_allowed_for_every_method_scale_and_data_set(protocol):
    for scale, data in itertools.product((None, *SCALES), DATA):
        for method in [*METHODS.names(), "fedprox+ga"]:
            values = resolve(protocol, scale, data, method)
            assert isinstance(values.pop("rounds"), int)
            own = {f.name: f for f in fields(method_class(method).Hyper)} if method in METHODS else {}
            for k, v in values.items():
                if f := (own | SETTINGS).get(k): assert check_value(k, v, f) == v, k
            if "backbone" in values: MODELS.get(values["backbone"])
            if "augment" in values: AUGMENTATIONS.get(values["augment"])
            for name, *rest in [values["partition"]] if "partition" in values else []:
                for n, *_ in (rest if name == "chain" else [(name, *rest)]): PARTITIONS.get(n)


def test_no_row_is_written_in_vain():
    hyper = {f.name for m in METHODS.names() for f in fields(METHODS.get(m).Hyper)}
    known = set(SETTINGS) | {"rounds"} | hyper
    for p in PROTOCOLS.values():
        for r in p.rows:
            assert r.source and r.scale in SCALES and set(r.data) <= set(DATA), r
            assert {*r.data} <= {*DATASETS.load()} and {*r.method} <= {*METHODS.names()}, r
            assert r.name in known or (r.method and not set(r.method) & set(METHODS.names())), r
        seen = [(r.name, d, m, r.scale) for r in p.rows for d in r.data or ("",) for m in r.method or ("",)]
        assert len(seen) == len(set(seen)), f"{p.name} gives a value twice"


def unknown_rows(rows):
    "(method, name) of the rows for a method that are neither a setting nor a hyper-parameter of it."
    known = {m: {"rounds", *SETTINGS, *hyper_names(method_class(m))} for r in rows for m in r.method}
    return [(m, r.name) for r in rows for m in r.method if r.name not in known[m]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_of_a_method_are_settings_or_hyper_parameters_of_it(protocol):
    "FDSE's protocol gave Ditto a `mu`, which is called `lam` here: it was dropped without a word."
    assert unknown_rows(PROTOCOLS[protocol].rows) == []


def test_rows_of_a_method_reach_it():
    for data, lam, tau in (("office_caltech10", .01, .2), ("pacs", 1e-4, .1)):
        for method, own in (("ditto", dict(lam=lam)), ("fedheal", dict(tau=tau))):
            _, hyper, _ = resolve_arguments(method_class(method), {}, protocol="fdse", dataset=data)
            assert hyper == own
    assert unknown_rows([row("mu", .01, "a mistake", method="ditto")]) == [("ditto", "mu")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tables_and_reporting(protocol):
    p = PROTOCOLS[protocol]
    assert p.name == protocol and p.select in RULES and p.metric
    assert p.point in ("local", "aggregated", "both")
    table = protocol_table(protocol)
    assert list(table.columns) == ["of", "paper", "cpu", "smoke", "source"]
    needed = "client validation seeds selection rounds lr batch_size client_weights"
    assert set(needed.split()) <= set(table.index)
    assert list_protocols().loc[protocol, "select"] == p.select


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scales_only_shrink(protocol):
    for data in DATA:
        smoke, cpu, paper = (resolve(protocol, s, data) for s in SCALES)
        assert smoke["rounds"] < cpu["rounds"] < paper["rounds"]
        for k in ("rounds", "local_epochs", "local_steps", "size", "limit", "batch_size"):
            v = [s.get(k, float("inf")) for s in (smoke, cpu, paper)]
            assert v == sorted(v), (data, k, v)
        tokens = [s.get("load", {}).get("tokens", float("inf")) for s in (smoke, cpu, paper)]
        assert tokens == sorted(tokens)


def test_a_row_holds_for_its_data_methods_and_scale_alone():
    bound = row("lr", .1, "x", data="pacs")
    assert [bound.applies("paper", d, "fedavg") for d in ("pacs", "digits")] == [True, False]
    bound, methods = row("lr", .1, "x", method="fdse ga"), ("fdse", "fedprox+ga", "fedavg", None)
    assert [bound.applies("paper", "pacs", m) for m in methods] == [True, True, False, False]
    bound = row("lr", .1, "x", scale="cpu")
    assert [bound.applies(s, "pacs", "ga") for s in ("smoke", "cpu", "paper")] == [False, True, False]


def test_values_differ_by_data_set_and_method():
    assert [resolve("fdse", None, d)["local_epochs"] for d in ("office_caltech10", "domainnet10")] == [1, 5]
    methods = ("fedavg", "fedheal", "fdse", "dse+similarity", "ditto")
    assert [resolve("fdse", None, "pacs", m)["lr"] for m in methods] == [.1, .1, .05, .05, .05]
    assert [resolve("fedbr", "paper", d)["lr"] for d in ("rotated_mnist", "cifar10")] == [1e-3, .01]
    assert "backbone" not in resolve("ga", "paper", "digits")
    assert "client_weights" in resolve("fedka", "paper", "pacs", "fedavg")
    assert "local_steps" in resolve("fedbr", "paper", "pacs", "fedavg")


def test_common_gives_all_methods_the_same_but_those_that_a_row_names():
    named = {m for r in PROTOCOLS["common"].rows for m in r.method}
    for data in ("pacs", "digits", "cifar10"):
        values = {m: resolve("common", "paper", data, m) for m in METHODS.names()}
        base = values["fedavg"]
        own = {m: {k: x for k, x in v.items() if base.get(k) != x} for m, v in values.items()}
        assert {m for m in own if values[m] != base} == named
        assert (own["scaffold"], own["fedasam"]) == (dict(momentum=0., lr=.1), dict(rho=.1))
    assert resolve("common", method="fedasam+scaffold")["fedasam.rho"] == .1


def test_momentum_reaches_seven_to_ten_times_as_far():
    "Why SCAFFOLD's rate under `common` is ten times the others': in a round of 38 steps and in the limit."
    reach = {n: step_reach(n, .9)/step_reach(n) for n in (38, 1000)}
    assert reach[38] > 7 and 9.9 < reach[1000] < 10


def test_a_run_takes_the_protocol_s_values(tiny):
    fed = Federation("fedavg", tiny, protocol="fdse", scale="smoke")
    assert (fed.rounds, fed.settings.fractions) == (2, (.8, .1, .1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_smoke_runs(protocol):
    run = dict(protocol=protocol, scale="smoke", backbone="cnn2", rounds=1, progress=False)
    for target in (None, "a"):
        r = fdgnb.fit("fedavg", toy((40, 40, 40), side=28), target=target, **run)
        assert r.history.value.map(lambda v: v == v).all()


@pytest.mark.parametrize("steps", [("halves",), ("split", 3), ("split", 1), ("lda", 4, .1, "hsu"),
                                   ("lda", 4, .1, "ones"), ("lda", 7, 100., "ones"),
                                   ("chain", ("lda", 4, .1, "hsu"), ("split", 2)),
                                   ("chain", ["halves"], ["split", 2])])
@pytest.mark.parametrize("target", [None, "b"])
@pytest.mark.parametrize("official", [False, True])
def test_partitions_lose_and_double_nothing(steps, target, official):
    data = toy(official=official)
    (name, *rest), make = steps, lambda seed: PARTITIONS.get(steps[0])(data, target, generator(seed),
                                                                       *steps[1:])
    out = make(0)
    used = sum((number(d) for k, d in out.domains.items() if k != target), [])
    have = sum((number(d) for k, d in data.domains.items() if k != target), [])
    assert len(used) == len(set(used)) and set(used) <= set(have)
    y = {i: c for d in data.domains.values() for i, c in zip(number(d), d.y.tolist())}
    assert all([y[i] for i in number(d)] == d.y.tolist()
               for d in out.domains.values()), "an image changed its label"
    if "lda" not in str(steps): assert set(used) == set(have)
    else: assert len(have) - len(used) < 7
    if target:
        assert out.names[-1] == target
        assert torch.equal(out[target].x, data[target].x)
        assert out[target] is data[target]
    if official:
        exam = {i for d in data.domains.values() for i in torch.tensor(number(d))[d.split["test"]].tolist()}
        for k, d in out.domains.items():
            n = torch.tensor(number(d))
            assert sorted(torch.cat(list(d.split.values())).tolist()) == list(range(len(d)))
            assert set(n[d.split["test"]].tolist()) <= exam and not set(n[d.split["train"]].tolist()) & exam
    again, other = make(0), make(1)
    same = lambda b: all(torch.equal(d.x, b.domains[k].x) for k, d in out.domains.items() if k in b.domains
                         and d.x.shape == b.domains[k].x.shape)
    assert same(again) and (name == "halves" and len(rest) == 0 or steps == ("split", 1) or not same(other))


def test_lda_sizes_and_more_clients_than_classes():
    sizes = [len(d) for d in PARTITIONS.get("lda")(toy((1000,)), None, generator(0), 100, .1,
                                                   "hsu").domains.values()]
    assert sizes == [10]*100
    # q underflows: still whole
    tiny = PARTITIONS.get("lda")(toy((50,)), None, generator(0), 5, 1e-6, "hsu")
    assert sum(map(len, tiny.domains.values())) == 50


@pytest.mark.parametrize("steps, says", [(("lda", 4, .1, "hsuu"), "did you mean 'hsu'"),
                                         (("lda", 400, .1), "400 clients"),
                                         (("lda", 4, 0.), "alpha=0.0 is out of range"),
                                         (("split", 100), "100 clients"),
                                         (("chain", ("halve",)), "did you mean 'halves'"),
                                         (("rotat", 3), "did you mean 'rotate'"), (("halves", 2), "takes")])
def test_bad_partitions(steps, says):
    with pytest.raises((FdgnbError, TypeError), match=says):
        fdgnb.fit("fedavg", toy(side=28), rounds=1, partition=steps, backbone="cnn2", progress=False)


def test_nobody_left():
    for steps in (("lda", 2, .1), ("halves",), ("split", 2), ("rotate", 15)):
        with pytest.raises(FdgnbError, match="no domain besides the target"):
            PARTITIONS.get(steps[0])(toy((20,)), "a", generator(0), *steps[1:])


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("shape", [(1, 3, 28, 28), (5, 3, 32, 20), (4, 1, 28, 28), (2, 3, 8, 8)])
def test_augmentation_by_its_generator_alone(name, shape):
    "(The global generator is watched by conftest.)"
    x = torch.rand(*shape, generator=generator(0))
    kept, f = x.clone(), AUGMENTATIONS[name]
    out = f(x, generator(1))
    assert torch.equal(out, f(x, generator(1)))
    assert torch.equal(x, kept)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert out.isfinite().all() and out.min() >= -1e-6 and out.max() <= 1 + 1e-5
    assert (name == "none") == all(torch.equal(out, f(x, generator(s))) for s in range(2, 12))


def test_each_image_its_own_change():
    x = torch.rand(1, 3, 16, 16, generator=generator(0)).expand(16, -1, -1, -1)
    out = AUGMENTATIONS["ga"](x, generator(0))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(out, 2))


def test_augmented_runs_do_not_depend_on_the_workers():
    a, b = (fdgnb.fit("fedavg", toy(side=28), rounds=2, augment="ga", backbone="cnn2", workers=w,
                      progress=False).rows for w in (1, 3))
    assert a == b


def test_augmentation_beside_somebody_who_draws():
    "Neither disturbs the other: what kornia draws does not come from torch's global generator."
    x, stop, g = torch.rand(4, 3, 16, 16, generator=generator(0)), threading.Event(), torch.get_rng_state()
    def draw():
        while not stop.is_set(): torch.rand(1)
    other = threading.Thread(target=draw); other.start()
    try: assert len({digest({"x": AUGMENTATIONS["ga"](x, generator(3))}) for _ in range(40)}) == 1
    finally: stop.set(); other.join(); torch.set_rng_state(g)


def test_loader_options_join_the_protocols():
    fedka = dict(protocol="fedka")
    values = lambda data, **h: resolve_arguments(METHODS.get("fedavg"), h, dataset=data, **fedka)[2].get("load")
    assert values("amazon_review") == dict(encoder="bert", tokens=256)
    both = values("amazon_review", load=dict(domains=["dvd"], tokens=9))
    assert both == dict(encoder="bert", tokens=9, domains=["dvd"])
    loaded = Dataset("amazon_review", toy().domains, toy().classes)
    assert values("amazon_review", load=None) is None and values(loaded) is None
    resolve("fedka", None, "amazon_review")["load"]["tokens"] = 1
    assert resolve("fedka", None, "amazon_review")["load"]["tokens"] == 256


def test_text_is_not_augmented():
    text = Dataset("text", {k: Domain(k, torch.randn(20, 6, generator=generator(i)), torch.arange(20) % 2)
                            for i, k in enumerate("ab")}, ["0", "1"])
    with pytest.raises(FdgnbError, match="augmentation is for images"):
        fdgnb.fit("fedavg", text, rounds=1, augment="flip", backbone="mlp2", progress=False)
    with pytest.raises(FdgnbError, match="only images can be turned"):
        PARTITIONS.get("rotate")(text, None, generator(0), 15)
    with pytest.raises(FdgnbError, match="1 or 3 channels"):
        Augment(gray=.5)(torch.rand(2, 4, 8, 8, generator=generator(0)), generator(0))


def test_bad_names():
    for kw, says in ((dict(protocol="fdsee"), "unknown protocol 'fdsee'; did you mean 'fdse'"),
                     (dict(protocol="ga", scale="cpuu"), "unknown scale 'cpuu'; did you mean 'cpu'"),
                     (dict(augment="gaa"), "unknown augmentation 'gaa'; did you mean 'ga'")):
        with pytest.raises(FdgnbError, match=says):
            fdgnb.fit("fedavg", toy(side=28), rounds=1, backbone="cnn2", progress=False, **kw)
    assert set(list_augmentations().index) == set(AUGMENTATIONS)
