"""One contract over every registered method: finite numbers, the same bits on any workers, odd clients."""
import math, os
import pytest
import torch
import fdgnb
from conftest import bits, run
from fdgnb import Dataset, Domain, FdgnbError
from fdgnb.core import generator
from fdgnb.federation.compose import METHODS, own_classes
from fdgnb.runs.fit import depends_on_rounds
from fdgnb.runs.versions import reads_rounds
from fdgnb.runs.setup import Federation
from pairs import light

ALL = METHODS.names()
SYSTEMS = "fedsb", "ga", "fedka", "fedbr", "fdse"
REST = [n for n in ALL if n not in SYSTEMS]
# test_methods.py goes over every key; here the systems and some of the rest, or all with `make contract`
MOST = ALL if os.environ.get("FDGNB_ALL") else ["fedavg", *SYSTEMS]
TURN = ALL if os.environ.get("FDGNB_ALL") else [*SYSTEMS, *ALL[::4]]
SOME = sorted({*MOST, *REST[::12]})
POINTS = {("training", "loss"), ("local", "accuracy"), ("aggregated", "accuracy")}
ODD = dict(one_client=["a", "t"], absent_class=["a", "b", "t"], few=["a", "b", "t"])


def toy(names, n=24, classes=3, absent=None, few=None):
    "Small bright-spot images; `absent`: a domain without class 0; `few`: a domain with 4 images."
    domains = {}
    for i, name in enumerate(names):
        g = generator(7, client=name)
        m = 4 if name == few else n
        y = torch.arange(m) % classes
        if name == absent: y = 1 + y % (classes - 1)
        x = torch.randint(0, 60, (m, 3, 28, 28), generator=g)
        for j, c in enumerate(y): x[j, :, 4 + 8*c:10 + 8*c, 6:20] += 120 + 20*i
        domains[name] = Domain(name, x.to(torch.uint8), y)
    return Dataset("toy", domains, [str(c) for c in range(classes)], defaults=dict(backbone="cnn2"))


def short(name, data, **given):
    "Two rounds that are scored."
    return run(name, data, **dict(target="t", lr=.02, batch_size=8, eval_every=1) | light(name) | given)


def finite(r): return r.history.value.map(lambda v: math.isfinite(v) and abs(v) < 1e6).all()


@pytest.mark.filterwarnings("ignore:precision='bfloat16'")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MOST)
def test_contract(name, precision):
    data = toy(["a", "b", "c", "t"])
    r = short(name, data, workers=1, precision=precision)
    h = r.history
    assert finite(r), "a number is not finite"
    assert POINTS <= {*zip(h.point, h.metric)}
    assert h.query("metric == 'accuracy'").value.between(0, 1).all()
    x = torch.rand(5, 3, 28, 28, generator=generator(0))
    with torch.no_grad(): assert r.model(x).shape == (5, 3)
    assert set(r.ledger.direction) == {"up", "down"} and (r.ledger.bytes > 0).all()
    again = short(name, data, workers=3, precision=precision)
    assert bits(again) == bits(r) and again.rows == r.rows, "the number of workers changed the bits"


@pytest.mark.parametrize("name", ALL)
def test_sum_with_ga(name):
    "With GA's weights on any workers, in any order written (a part: `TURN`); or refused in one line."
    data = toy(["a", "b", "t"])
    try: Federation(f"{name}+ga", data, "t", 1)
    except FdgnbError as e:
        assert "cannot be combined" in str(e) and "\n" not in str(e), e
        return
    if name not in TURN: return
    one, two = (short(n, data, rounds=1, workers=w) for n, w in ((f"{name}+ga", 1), (f"ga+{name}", 2)))
    assert finite(one) and bits(one) == bits(two)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("case", ODD)
def test_odd_clients(name, case):
    odd = dict(absent_class=dict(absent="a"), few=dict(few="a")).get(case, {})
    assert short(name, toy(ODD[case], **odd)).history.value.notna().all()


@pytest.mark.parametrize("name", SOME)
def test_more_rounds(name, tmp_path):
    "A finished run goes on to more rounds in the same bits, or is refused with the reason."
    data, given = toy(["a", "b", "t"]), dict(eval_every=2, eval_local=2, eval_train=2)
    two = short(name, data, **given | dict(rounds=2, out=tmp_path))
    try: grown = short(name, data, **given | dict(rounds=3, out=tmp_path))
    except FdgnbError as e:
        why = depends_on_rounds(two.fed)
        assert why and why in str(e) and "resume=False" in str(e)
        return
    whole = short(name, data, **given | dict(rounds=3))
    assert bits(grown) == bits(whole) and grown.book.rows == whole.book.rows
    assert grown.rows == whole.rows


@pytest.mark.parametrize("name", ALL)
def test_methods_say_why_rounds_cannot_be_added(name):
    "Whoever reads the number of rounds declares the reason."
    cls = METHODS.get(name)
    parts = getattr(cls, "parts", {name: cls}).values()
    reading = any(reads_rounds(c) for p in parts for c in own_classes(p))
    assert not reading or any(p.uses_rounds for p in parts)


@pytest.mark.parametrize("name", [n for n in SOME if not METHODS.get(n).uses_target])
def test_in_domain(name):
    "Without a target every domain is a client."
    r = short(name, toy(["a", "b"]), target=None, rounds=1)
    assert set(r.history.client) == {"a", "b"}


def test_sums_do_not_depend_on_the_order_written():
    "Hooks that only add to what lies beneath commute."
    @fdgnb.method("zz_plus_one")
    class One(fdgnb.Method):
        "Adds the squared logits."
        def criterion(self, logits, y, client):
            return super().criterion(logits, y, client) + .01*logits.square().mean()
    @fdgnb.method("zz_plus_two")
    class Two(fdgnb.Method):
        "Adds the size of the weights."
        def loss(self, model, x, y, client):
            return super().loss(model, x, y, client) + 1e-3*sum(p.square().sum() for p in model.parameters())
    try:
        data = toy(["a", "b", "t"])
        sums = "zz_plus_one+zz_plus_two", "zz_plus_two+zz_plus_one"
        a, b, plain = (short(n, data) for n in (*sums, "fedavg"))
        assert bits(a) == bits(b) != bits(plain)
    finally: del METHODS["zz_plus_one"], METHODS["zz_plus_two"]


class Bank(fdgnb.Method):
    "Offers the mean features of some samples before each round."
    offers_each = True

    def offer(self, model, client):
        x, _ = client.take(torch.arange(4))
        return {"stats.bank.f": model.features(x).mean(0)}

    def gather(self, server, offers):
        server.state["bank.f"] = torch.stack([o["stats.bank.f"] for _, o in offers]).mean(0)


def test_offers_do_not_depend_on_the_engine():
    "Offers come from the received network, whatever a worker's network was used for before."
    data = toy(["a", "b", "c", "t"])
    cases = (dict(workers=1), dict(workers=3), dict(workers=2, eval_every=0))
    runs = [run(Bank, data, target="t", rounds=3, **kw) for kw in cases]
    assert len({bits(r) for r in runs}) == 1
