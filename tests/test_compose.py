"Registered methods and their sums: what is refused, in which order hooks run, whose hyper-parameters are whose."
import pytest
from conftest import says
from fdgnb.federation.compose import METHODS, FedAvg, list_hyper, method, method_class
from fdgnb.federation.loop import Method
from fdgnb.settings import hp, switch, variant


@pytest.fixture(autouse=True)
def none_left():
    "What a test registers is gone after it."
    before = set(METHODS.names())
    yield
    for name in set(METHODS.names()) - before: del METHODS[name]


def register(**classes):
    for key, cls in classes.items(): method(key)(cls)


class Adds(Method):
    "Adds one."
    def loss(self, *a): return super().loss(*a) + 1


class Replaces(Method):
    replaces = ("loss",)
    def loss(self, *a): return 100
    def end(self, *a): return super().end(*a)


class Heir(Replaces):
    def loss(self, *a): return super().loss(*a) + 1


class Rival(Method):
    replaces = ("loss",)
    def loss(self, *a): return -100


class Greedy(Method):
    class Hyper: lr: float = hp(1., "a setting's name")


def mine(**functions): return type("Mine", (Method,), functions)


@pytest.mark.parametrize("cls, word", [
    (mine(agregate=lambda self, server, uploads: 0), "'aggregate'?"), (Greedy, "like a setting: lr"),
    (mine(loss=lambda self, model, x, y: 0), "must take"), (type("FedAvg", (Method,), {}), "would run as 'fedavg'"),
    (mine(tune=dict(m=[1, 2, 3])), "unknown 'm'"), (mine(tune=dict(lr=[.1, .2, .2])), "three")])
def test_a_class_that_is_refused(cls, word):
    says(lambda: method_class(cls), word)


@pytest.mark.parametrize("key, word", [
    ("own+heir", "already contains"), ("own+rival", "both replace the hook 'loss'"), ("own+own", "is in it twice"),
    ("dse+fdse", "is in it twice"), ("fedavgg", "did you mean 'fedavg'?"), ("fedsb+three", "the hook 'weight'"),
    ("lossfirst+endfirst", "contrary orders"), ("silent+own", "replaces")])
def test_a_sum_that_is_refused(key, word):
    class Three(Method):
        replaces = ("weight",)
        def weight(self, server, k, upload): return 3.
    class EndFirst(Method):
        replaces = ("end",)
        def loss(self, *a): return super().loss(*a)
        def end(self, *a): return None
    register(own=Replaces, heir=Heir, rival=Rival, three=Three, lossfirst=Replaces, endfirst=EndFirst,
             silent=mine(loss=lambda self, *a: 0))
    says(lambda: method_class(key), word)


def test_what_is_not_registered_runs_under_its_own_name():
    class Heiress(FedAvg): "A child of a registered class is another method."
    assert (method_class(Heiress).name, method_class(mine()).name) == ("heiress", "mine")
    assert method_class(Method) is FedAvg


def test_what_replaces_a_hook_lies_below_what_adds_to_it():
    class Twice(Method):
        def weight(self, server, k, upload): return 2*super().weight(server, k, upload)
    register(adds=Adds, replaces=Replaces, twice=Twice)
    for key in ("adds+replaces", "replaces+adds"): assert method_class(key)().loss(None, None, None, None) == 101
    assert method_class("fedsb+twice")().weight(None, "a", None) == 2


def test_of_two_batches_that_do_not_commute_the_first_written_acts_first():
    class Doubles(Method):
        def batch(self, x, *a): return 2*super().batch(x, *a)[0], None
    class AddsOne(Method):
        def batch(self, x, *a): return super().batch(x, *a)[0] + 1, None
    register(doubles=Doubles, addsone=AddsOne)
    images = [method_class(name)().batch(3, None, None, None)[0] for name in ("doubles+addsone", "addsone+doubles")]
    assert images == [2*3 + 1, 2*(3 + 1)]


class Late(Method):
    "Has an option and a switch that came later."
    class Hyper:
        mu: float = hp(1., "its first option")
        tau: float = hp(2., "an option that came later", added=True)
        mode: str = switch("a difference found later", paper="a", released="b", added=True)
        variant: str = variant(added=True)


class Other(Method):
    class Hyper: mu: float = hp(2., "another"); nu: float = hp(0., "a third"); variant: str = variant()


class Alike(Method):
    class Hyper: mu: float = hp(1., "in other words"); variant: str = variant()


@pytest.mark.parametrize("name", ["late", "late+adds"])
def test_a_hyper_parameter_that_came_later_is_named_only_where_it_changes_something(name):
    register(late=Late, adds=Adds)
    cls = method_class(name)
    assert list_hyper(cls(tau=2., mode="a")) == dict(mu=1.)
    assert list_hyper(cls(tau=3.)) == dict(mu=1., tau=3.)
    assert list_hyper(cls(variant="released")) == dict(mu=1., mode="b", variant="released")


def test_in_a_sum_each_part_names_its_own():
    register(late=Late, other=Other, alike=Alike)
    both = method_class("late+other")
    assert list_hyper(both(tau=3.)) == {"late.mu": 1., "other.mu": 2., "nu": 0., "tau": 3., "variant": "paper"}
    says(lambda: both(mu=1.), "is a hyper-parameter of 'late' and 'other', and not the same")
    says(lambda: both(**{"late.nu": 1.}), "unknown hyper-parameter")
    says(lambda: both(**{"late.mu": "x"}), "mu='x'")
    assert list_hyper(method_class("late+alike")(mu=3.))["mu"] == 3.              # one declaration in other words


def test_a_value_for_one_part_goes_before_one_for_all():
    "Whichever is written first."
    register(late=Late, alike=Alike)
    for given in ({"mu": 3., "late.mu": 2.}, {"late.mu": 2., "mu": 3.}):
        hyper = list_hyper(method_class("late+alike")(**given))
        assert (hyper["late.mu"], hyper["alike.mu"]) == (2., 3.)
