"What a declaration refuses, and in which words: values, settings, switches and arguments."
import math
from dataclasses import dataclass, fields
import numpy as np
import pytest
from fdgnb.core import FdgnbError, echo
from fdgnb.settings import Settings, arg, check_arguments, check_value, differences_table, hp, make, switch, variant


@dataclass(frozen=True)
class Hyper:
    mu: float = hp(.01, "weight of the proximal term", low=0.)
    steps: int = hp(5, "local steps; None: a whole epoch", low=1)
    norm: str = hp("l2", "what is measured", choices=("l2", "cosine"))
    nesterov: bool = hp(False, "look ahead")
    drops: tuple[float, ...] = hp((), "rounds after which it shrinks")
    most: int = hp(None, "at most so many; None: all", low=1)


@dataclass(frozen=True)
class Switched:
    inner: bool = switch("ReLU before the eraser", paper=True, released=False)
    lam: float = switch("weight of the penalty", paper=.1, released=.01, low=0.)
    variant: str = variant()


DECLARED = {f.name: f for f in fields(Hyper)}
OUT = " is out of range: 0 to 3.40282e+38 (weight of the proximal term)"
REFUSED = [
    ("mu", None, ": expected a number, like 0.01 (weight of the proximal term)"),
    ("mu", "small", ": expected a number, like 0.01"),
    ("mu", True, ": expected a number, like 0.01"),
    ("mu", 10**400, ": expected a number, like 0.01"),
    ("mu", -1, " is out of range: at least 0 (weight of the proximal term)"),
    *[("mu", value, OUT) for value in (math.inf, math.nan, 1e39)],
    ("steps", 2.5, ": expected a whole number, like 5"),
    ("steps", 10**5000, " is out of range: 1 to 2.14748e+09"),
    ("nesterov", 1, ": expected True or False (look ahead)"),
    ("drops", .5, ": expected a list (rounds after which it shrinks)"),
    ("drops", (1., "a"), ": at place 2 expected a number"),
    ("norm", "cosin", " is not allowed; did you mean 'cosine'? known: l2, cosine"),
    *[("norm", value, "") for value in ([], {}, np.zeros(2), 3, None)],
    *[("most", value, ": expected a whole number") for value in (1.5, math.nan, "3", True, [3])]]


def said(call):
    "The line of the error of a call."
    with pytest.raises(FdgnbError) as error: call()
    return str(error.value)


@pytest.mark.parametrize("name, value, says", REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_is_refused(name, value, says):
    assert f"{name}={echo(value)}{says}" in said(lambda: check_value(name, value, DECLARED[name]))


@pytest.mark.parametrize("value", [0, 1.5, "2"])
def test_a_field_outside_a_class_has_the_type_of_its_default(value):
    said(lambda: check_value("every", value, hp(5, "rounds", low=1)))


def test_the_message_of_a_long_value_is_short():
    assert len(said(lambda: check_value("mu", "x"*10_000, DECLARED["mu"]))) < 300


def test_names_lists_and_defaults_of_make():
    line = said(lambda: make(Hyper, dict(nu=1), "hyper-parameter"))
    assert "unknown hyper-parameter 'nu'; did you mean 'mu'?" in line
    assert make(Hyper, dict(mu=1, drops=[3, 4]), "hyper-parameter") == Hyper(mu=1., drops=(3, 4))


@pytest.mark.parametrize("given, says", [
    (dict(inner="no"), "inner='no' is not allowed"), (dict(lam=-1), "lam=-1 is out of range: at least 0"),
    (dict(lam="x"), "lam='x': expected a number"),
    (dict(variant="papers"), "variant='papers' is not allowed; did you mean 'paper'?")])
def test_a_switch_that_is_refused(given, says):
    assert says in said(lambda: make(Switched, given, "hyper-parameter"))


def test_a_class_without_switches_has_no_differences(): assert len(differences_table(Hyper)) == 0


@pytest.mark.parametrize("bad, says", [
    (dict(batchsize=3), "unknown setting 'batchsize'; did you mean 'batch_size'?"),
    (dict(lr=-1), "lr=-1 is out of range: at least 0 (learning rate)"),
    (dict(lr=None), "lr=None: expected a number, like 0.05"),
    (dict(batch_size=2.5), "batch_size=2.5: expected a whole number"),
    (dict(optimizer="sgdd"), "did you mean 'sgd'?"),
    (dict(drop_last="no"), "expected True or False"),
    (dict(partition="halves"), "expected a list"),
    (dict(drops=5), "expected a list"),
    (dict(drops=[5]), "at place 1 expected a list ((round, client) pairs that do not answer"),
    (dict(drops=[(0, "a")]), "rounds counted from 1"),
    (dict(drops=[(1, ["a"])]), "at place 1.2 expected a word"),
    (dict(lr_drops=["a"]), "at place 1 expected a number (fractions of the rounds"),
    (dict(lr_drops=[1.]), "wanted fractions of the rounds between 0 and 1"),
    (dict(fractions=("a", "b", "c")), "at place 1 expected a number"),
    (dict(fractions=(.5, .5)), "wanted three shares that sum to 1"),
    (dict(partition=("load", Settings)), "wanted a name and plain values"),
    (dict(limit=1.5), "limit=1.5: expected a whole number"),
    (dict(normalize=["half"]), "normalize=['half'] is not allowed"),
    (dict(load="bert"), "expected a dict"),
    (dict(load=dict(f=len)), "wanted a dict of names and plain values"),
    (dict(load=dict(size=8)), "'size' is no option"),
    (dict(clip=0), "out of range"),
    (dict(schedule="cosin"), "did you mean 'cosine'?"),
    (dict(class_weights="equal"), "wanted 'balanced', a list of positive numbers"),
    (dict(class_weights=[1, 0]), "wanted 'balanced'"),
    (dict(class_weights={"cat": "x"}), "wanted 'balanced'")])
def test_a_setting_that_is_refused(bad, says): assert says in said(lambda: make(Settings, bad, "setting"))


def test_a_range_without_a_lower_limit_says_the_upper_one():
    with pytest.raises(FdgnbError, match="^tau=2 is out of range: at most 1 "):
        check_value("tau", 2, arg(float, "share", high=1.))


def piece(x, n: arg(int, "pieces", low=1), how: arg(str, "how", choices=("even", "odd")) = "even"): return x


def test_arguments_come_back_as_declared():
    assert check_arguments("'piece'", piece, 1, (np.int64(3), "odd")) == (3, "odd")
    assert check_arguments("'piece'", piece, 1, (3.,)) == (3,)


@pytest.mark.parametrize("args, says", [
    ((), "'piece' takes n, how"), ((1, "odd", 2), "takes n, how"),
    ((0,), "'piece': n=0 is out of range: at least 1 (pieces)"),
    ((None,), "n=None: expected a whole number (pieces)"), ((1, "evn"), "did you mean 'even'?")])
def test_an_argument_that_is_refused(args, says):
    assert says in said(lambda: check_arguments("'piece'", piece, 1, args))
