"Registered methods and their sums: what is refused, in which order hooks run, whose hyper-parameters are whose."
from dataclasses import fields, make_dataclass
from types import SimpleNamespace
import pytest
import torch
from fastcore.test import test_fail as fails
from fdgnb.federation.compose import METHODS, FedAvg, admit, check_replaces, helper, hooks_of, list_hyper, list_methods
from fdgnb.federation.compose import merge_hyper, method, method_class, order_parts
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


def refused(f, says): fails(f, contains=says)


class Adds(Method):
    "Adds one."
    def loss(self, *a): return super().loss(*a) + 1


class Replaces(Method):
    replaces = ("loss",)
    def loss(self, *a): return 100
    def end(self, *a): return super().end(*a)


class Quiet(Method):
    @torch.no_grad()
    def aggregate(self, *a): return super().aggregate(*a)


class Heir(Replaces):
    def loss(self, *a): return super().loss(*a) + 1


def mine(**functions): return lambda: admit(type("Mine", (Method,), functions), "mine")


@pytest.mark.parametrize("functions, says", [
    (dict(agregate=lambda self, server, uploads: 0), "'agregate' of Mine is no hook; did you mean 'aggregate'?"),
    (dict(locall_loss=lambda self: 0), "'locall_loss' of Mine is no hook"),
    (dict(loss=lambda self, model, x, y: 0), "the hook 'loss' of Mine must take (self, model, x, y, client)"),
    (dict(tune=dict(m=[1, 2, 3])), "tune of method 'mine': unknown 'm'"),
    (dict(tune=dict(lr=[.1, 1, "fast"])), "lr='fast': expected a number"),
    (dict(tune=dict(lr=[.1, 1])), "wanted one option and three different values")])
def test_a_class_that_is_refused(functions, says): refused(mine(**functions), says)


def test_helpers_and_arguments_by_star_are_admitted():
    mine(match=helper(lambda self: 0), _mine=lambda self: 0, loss=lambda self, *a: 0)()


def test_a_hyper_parameter_is_not_called_like_a_setting():
    class Greedy(Method):
        class Hyper: lr: float = hp(1., "a setting's name")
    refused(lambda: admit(Greedy, "greedy"), "names a hyper-parameter like a setting: lr; rename it")


def test_a_decorator_hides_nothing_and_an_heir_replaces_what_its_parent_does():
    assert (hooks_of(Method), hooks_of(Adds)) == ({}, dict(loss=False))
    assert hooks_of(Replaces) == dict(end=False, loss=True)
    assert hooks_of(Quiet) == dict(aggregate=False)
    assert hooks_of(Heir)["loss"]
    for cls in (Adds, Replaces, Quiet, Heir): check_replaces(cls)


def test_two_that_replace_one_hook_clash():
    class Rival(Method):
        replaces = ("loss",)
        def loss(self, *a): return -100
    refused(lambda: order_parts(dict(a=Rival, b=Heir)), "both replace the hook 'loss'")


def test_a_method_builds_on_the_weight_that_fedsb_puts_in_place_of_the_samples():
    "The example of the page."
    class Twice(Method):
        def weight(self, server, k, upload): return 2*super().weight(server, k, upload)
    class Three(Method):
        replaces = ("weight",)
        def weight(self, server, k, upload): return 3.
    register(twice=Twice, three=Three)
    assert method_class("fedsb+twice")().weight(None, "a", None) == 2
    refused(lambda: method_class("fedsb+three"), "both replace the hook 'weight'")


def test_a_shared_base_puts_neither_part_first():
    class Base(Replaces):
        def step(self, *a): return super().step(*a)
    class Left(Base):
        def loss(self, *a): return super().loss(*a) + 1
    class Right(Base):
        def loss(self, *a): return super().loss(*a) + 2
    for parts in (dict(left=Left, right=Right), dict(right=Right, left=Left)):
        assert order_parts(parts) == ["left", "right"]


def test_overrides_of_aggregate_stand_in_the_order_of_the_alphabet():
    class Later(Method):
        def aggregate(self, *a): return super().aggregate(*a)
    for parts in (dict(a=Quiet, b=Later), dict(b=Later, a=Quiet)): assert order_parts(parts) == ["a", "b"]


def test_of_two_batches_that_do_not_commute_the_first_written_acts_first():
    class Doubles(Method):
        def batch(self, x, *a): return 2*super().batch(x, *a)[0], None
    class AddsOne(Method):
        def batch(self, x, *a): return super().batch(x, *a)[0] + 1, None
    register(doubles=Doubles, addsone=AddsOne)
    images = [method_class(name)().batch(3, None, None, None)[0] for name in ("doubles+addsone", "addsone+doubles")]
    assert images == [2*3 + 1, 2*(3 + 1)]


def test_contrary_orders_are_refused():
    class LossFirst(Method):
        replaces = ("loss",)
        def loss(self, *a): return 0
        def end(self, *a): return super().end(*a)
    class EndFirst(Method):
        replaces = ("end",)
        def loss(self, *a): return super().loss(*a)
        def end(self, *a): return None
    register(lossfirst=LossFirst, endfirst=EndFirst)
    refused(lambda: method_class("lossfirst+endfirst"), "their hooks need contrary orders")


@pytest.mark.parametrize("declared, is_one", [
    ((hp(1., "pull"), hp(1., "weight")), True),
    ((hp(1., "pull"), hp(2., "pull")), False),
    ((hp(1., "pull"), hp(1., "pull", low=0)), False)])
def test_declarations_that_differ_in_their_sentence_alone_are_one(declared, is_one):
    hypers = [make_dataclass("Hyper", [("mu", float, mu)]) for mu in declared]
    parts = {f"part{i}": SimpleNamespace(Hyper=h) for i, h in enumerate(hypers)}
    assert [f.name for f in fields(merge_hyper(parts))] == ["mu"]*is_one


class Late(Method):
    "Has an option and a switch that came later."
    class Hyper:
        mu: float = hp(1., "its first option")
        tau: float = hp(2., "an option that came later", added=True)
        mode: str = switch("a difference found later", paper="a", released="b", added=True)
        variant: str = variant(added=True)


class Other(Method):
    class Hyper: mu: float = hp(2., "another"); nu: float = hp(0., "a third"); variant: str = variant()


@pytest.mark.parametrize("name", ["late", "late+replaces"])
def test_a_hyper_parameter_that_came_later_is_named_only_where_it_changes_something(name):
    register(late=Late, replaces=Replaces)
    cls = method_class(name)
    assert list_hyper(cls(tau=2., mode="a")) == dict(mu=1.)
    assert list_hyper(cls(tau=3.)) == dict(mu=1., tau=3.)
    assert list_hyper(cls(variant="released")) == dict(mu=1., mode="b", variant="released")


def test_in_a_sum_each_part_names_its_own():
    register(late=Late, other=Other)
    both = method_class("late+other")
    assert list_hyper(both(tau=3.)) == {"late.mu": 1., "other.mu": 2., "nu": 0., "tau": 3., "variant": "paper"}
    refused(lambda: both(mu=1.), "'mu' is a hyper-parameter of 'late' and 'other', and not the same: say late.mu")
    refused(lambda: both(**{"late.nu": 1.}), "unknown hyper-parameter of late+other 'late.nu'")
    refused(lambda: both(**{"late.mu": "x"}), "mu='x'")


def test_what_does_not_go_together_is_refused():
    class Rival(Method):
        replaces = ("loss",)
        def loss(self, *a): return 5
    register(own=Replaces, own2=Heir, rival=Rival)
    refused(lambda: method_class("own+own2"), "already contains")
    refused(lambda: method_class("own+rival"), "both replace the hook 'loss'")
    refused(lambda: method_class("own+own"), "'own' is in it twice")
    refused(lambda: method_class("dse+fdse"), "'dse' is in it twice")
    refused(lambda: method_class("fedavgg"), "did you mean 'fedavg'?")
    refused(lambda: method_class("fedavg")(mu=1), "unknown hyper-parameter of fedavg 'mu'")


def test_a_class_that_is_not_registered_runs_under_its_own_name():
    class Mine(Method): "FedAvg by another name."
    assert (method_class(Mine), Mine.name) == (Mine, "mine")
    bad = type("Bad", (Method,), dict(uplod=lambda self: 0))
    refused(lambda: method_class(bad), "did you mean 'upload'?")
    class Heiress(FedAvg): "A child of a registered class is another method."
    assert (method_class(Heiress), Heiress.name, method_class(Method)) == (Heiress, "heiress", FedAvg)
    refused(lambda: method_class(type("FedAvg", (Method,), {})), "would run as 'fedavg'")


class Once(Method):
    "Offers before the first round."
    extra = None
    @property
    def label(self): return "once"
    def offer(self, model, client): return super().offer(model, client) | {"scalars.once.x": torch.ones(1)}
    def gather(self, server, offers):
        super().gather(server, offers)
        server.seen.append((self.label, self.extra, server.round, [k for k, o in offers if "scalars.once.x" in o]))


class Always(Method):
    "Offers before each round, too."
    offers_each, extra = True, 7
    def offer(self, model, client): return super().offer(model, client) | {"scalars.always.x": torch.ones(1)}
    def gather(self, server, offers):
        super().gather(server, offers)
        mine = [k for k, o in offers if "scalars.always.x" in o]
        server.seen.append(("always", self.extra, server.round, mine))


def test_each_summand_gathers_its_own_offers_when_it_asked_for_them():
    register(once=Once, always=Always)
    both, seen, ab = method_class("once+always")(), [], ["a", "b"]
    for r in (0, 1):
        who = SimpleNamespace(round=r, seen=seen)
        both.gather(who, iter([(k, both.offer(None, who)) for k in "ab"]))
    assert sorted(seen, key=str) == [("always", 7, 0, ab), ("always", 7, 1, ab), ("once", None, 0, ab)]


def test_a_method_keeps_nothing_itself():
    class Keeps(Method):
        replaces = ("setup",)
        def setup(self, server): self.x = 1
    register(once=Once, keeps=Keeps)
    refused(lambda: method_class("keeps+once")().setup(None), "a method keeps nothing itself: put 'x' into")


def test_every_method_says_what_it_changes():
    every = list_methods()
    assert every.loc["fedavg", "paper"] == "McMahan et al., AISTATS 2017" and every.index.name == "method"
    assert every.changes.str.len().min() > 0
