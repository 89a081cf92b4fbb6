"""Flower's records: a payload and a state come out as they went in; what is none is refused in one line."""
import io
from importlib.util import find_spec
import numpy as np
import pytest
import torch
from conftest import says
from fdgnb.vectors import nbytes

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from fdgnb.flower.wire import pack, pack_state, unpack, unpack_state           # before flwr: no telemetry
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.supercore import telemetry
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from loopback import travel

few = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
               phases=[Phase.generate])
TYPES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2
    int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool""".split()


def same(sent, came):
    "Whether two dicts have the same order, and every value the same type, shape and bits."
    def describe(value):
        if not torch.is_tensor(value): return repr(value)
        return value.dtype, value.shape, bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist())
    return [(k, describe(v)) for k, v in sent.items()] == [(k, describe(v)) for k, v in came.items()]


@st.composite
def tensors(draw):
    "A tensor of any type and shape, of any bits."
    name, shape = draw(st.sampled_from(TYPES)), draw(st.lists(st.integers(0, 3), max_size=4))
    tensor = torch.empty(shape, dtype=getattr(torch, name))
    raw = tensor.reshape(-1).view(torch.uint8)
    raw[:] = torch.tensor([*draw(st.binary(min_size=raw.numel(), max_size=raw.numel()))], dtype=torch.uint8)
    return tensor.view(torch.uint8).remainder(2).bool() if name == "bool" else tensor


words = st.text(st.characters(codec="utf8"), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words
nested = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
plain = st.recursive(leaves, nested, max_leaves=8)
kinds = st.sampled_from("stats features images scalars".split())
keys = st.builds("{}.own.{}".format, kinds, words) | st.sampled_from(["scalars.n", "model.w"])
payloads = st.dictionaries(keys, tensors(), max_size=6)


@few
@given(payloads, st.dictionaries(words, plain, max_size=3), st.dictionaries(words, plain | tensors(), max_size=6))
def test_a_payload_and_a_state_come_out_as_they_went_in(payload, about, state):
    content = pack(payload, about)
    content.update(pack_state(state))
    content = travel(content)
    back, said = unpack(content)
    assert same(payload, back) and repr(said) == repr(about) and same(state, unpack_state(content))


def test_a_view_travels_as_its_values_and_equal_arrays_come_out_apart():
    view = torch.arange(6.).reshape(2, 3).T
    a, b = unpack(travel(pack({"model.a": view, "model.b": view}, {})))[0].values()
    a += 1
    assert torch.equal(b, view) and b.is_contiguous()


def test_bytes_by_kind_and_numbers_as_metrics():
    "Flower's modifiers look for a model among arrays; a number of samples is none."
    n = torch.tensor(3, dtype=torch.float64)
    payload = {"model.w": torch.ones(1000), "stats.own.w": torch.ones(10), "scalars.n": n}
    content, counted = pack(payload, {}), nbytes(payload)
    assert dict(content["numbers"]) == {"scalars.n": 3.} and telemetry.FLWR_TELEMETRY_ENABLED == "0"
    content.update(pack_state({"w": torch.ones(50)}))
    assert set(content) == {"model", "stats", "numbers", "about", "state", "state about"}
    assert all(counted[k] < content[k].count_bytes() < counted[k] + 600 for k in ("model", "stats"))


# ---- what another process may send

def saved(array, version=None, pickled=False):
    "The bytes of an array's file."
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=pickled)
    return file.getvalue()


SENT = {"model.w": torch.ones(2, 3), "scalars.n": torch.tensor(3., dtype=torch.float64),
        "stats.own.b": torch.ones(2, dtype=torch.bfloat16)}
ONES = Array(np.ones((2, 3), "float32"))
PICKLE = saved(np.array([[None]*3]*2), pickled=True)
HUGE = ONES.data.replace(b"(2, 3), }" + b" "*12, b"(1099511627776, 9), }")


def other(**fields):
    "The record of the model with something else in its array."
    sound = dict(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=ONES.data)
    return ArrayRecord({"model.w": Array(**sound | fields)})


def text(text): return ConfigRecord({"json": text})


@pytest.mark.parametrize("name, record, part", [
    ("model", other(dtype="object", data=PICKLE), "model.w"), ("model", other(stype="pickle"), "model.w"),
    ("model", other(data=ONES.data[:-1]), "model.w"), ("model", other(data=ONES.data + b"0"), "model.w"),
    ("model", other(data=saved(np.ones((2, 3), ">f4"))), "model.w"), ("model", other(dtype="float64"), "model.w"),
    ("model", other(dtype="bool", data=saved(np.ones((2, 3), bool))[:-1] + b"\2"), "model.w"),
    ("model", other(shape=(2**40, 9), data=HUGE), "model.w"), ("model", ArrayRecord({}), "more often"),
    ("stats", ArrayRecord({"model.x": ONES}), "model.x"), ("weights", ArrayRecord({"w": ONES}), "weights"),
    ("scalars", ArrayRecord({"scalars.n": ONES}), "twice"), ("numbers", MetricRecord({"scalars.n": [1.]}), "neither"),
    ("about", text("["*10**5), "'about'"), ("about", text('{"keys": 3, "about": {}}'), "'about'")])
def test_what_is_no_message_of_ours_is_refused(name, record, part):
    "Type, shape, bytes and names have to agree before a byte is taken."
    content = pack(SENT, {})
    if name in content: del content[name]
    content[name] = record
    says(lambda: unpack(content), part)


def test_too_many_bytes_are_refused_by_their_largest_entry_and_a_state_is_missed():
    content = pack(SENT | {"model.big": torch.ones(10**4)}, {})
    says(lambda: unpack(content, most=10**4), "'model.big'")
    says(lambda: unpack_state(content), "state")
