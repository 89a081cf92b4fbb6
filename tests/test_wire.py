"""Flower's records: a payload and a state come out as they went in; what is none is refused in one line."""
import io
from importlib.util import find_spec
import numpy as np
import pytest
import torch
from conftest import says
from fdgnb import FdgnbError

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from fdgnb.flower.wire import (                                          # before flwr: it turns its telemetry off
    DTYPES, NAMES, measure, pack, pack_state, unpack, unpack_state)
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.supercore import telemetry
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import HealthCheck, given, settings, strategies as st
from fdgnb.vectors import KINDS, nbytes, scalar

few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def travel(content):
    "A message after Flower wrote it to bytes and read it again."
    objects = get_all_nested_objects(content)
    return inflate_object_from_contents(content.object_id, {k: o.deflate() for k, o in objects.items()})


def equal(a, b):
    "Whether two tensors, or two plain values, are the same in type, shape and every bit."
    if not torch.is_tensor(a): return not torch.is_tensor(b) and repr(a) == repr(b)
    raw = lambda v: v.contiguous().reshape(-1).view(torch.uint8)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def same(a, b): return list(a) == list(b) and all(equal(v, b[k]) for k, v in a.items())


@st.composite
def tensors(draw, names=NAMES):
    "A tensor of any type and shape, of any bits."
    dtype, shape = DTYPES[draw(st.sampled_from(names))], draw(st.lists(st.integers(0, 3), max_size=4))
    v = torch.empty(shape, dtype=dtype)
    raw = v.reshape(-1).view(torch.uint8)
    raw[:] = torch.tensor([*draw(st.binary(min_size=raw.numel(), max_size=raw.numel()))], dtype=torch.uint8)
    return v.view(torch.uint8).remainder(2).bool() if dtype == torch.bool else v


words = st.text(st.characters(codec="utf8"), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words
nested = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
plain = st.recursive(leaves, nested, max_leaves=8)
keys = st.builds("{}.own.{}".format, st.sampled_from([*KINDS]), words) | st.sampled_from(["scalars.n", "model.w"])
payloads = st.dictionaries(keys, tensors(), max_size=6)


@few
@given(payloads, st.dictionaries(words, plain, max_size=3))
def test_a_payload_comes_out_as_it_went_in(payload, about):
    back, said = unpack(travel(pack(payload, about)))
    assert same(payload, back) and equal(about, said)


@few
@given(st.dictionaries(words, plain | tensors(), max_size=6), payloads)
def test_a_state_comes_out_as_it_went_in_beside_a_payload(state, payload):
    content = pack(payload, {})
    content.update(pack_state(state))
    content = travel(content)
    assert same(state, unpack_state(content)) and same(payload, unpack(content)[0])


VIEWS = dict(
    transposed=torch.arange(6.).reshape(2, 3).T, strided=torch.arange(6)[::2], expanded=torch.ones(1).expand(3),
    parameter=torch.nn.Parameter(torch.ones(2)), negated=torch.ones(2, dtype=torch.complex64).conj().imag)


@pytest.mark.parametrize("tensor", VIEWS.values(), ids=VIEWS)
def test_a_view_travels_as_its_values(tensor):
    back, _ = unpack(travel(pack({"model.w": tensor}, {})))
    assert torch.equal(back["model.w"], tensor) and back["model.w"].is_contiguous()


def test_what_comes_out_is_ones_own():
    "Equal arrays go over the wire once; a change of one of them must not be one of the other."
    sent = {"model.a": torch.zeros(3), "model.b": torch.zeros(3)}
    content = travel(pack(sent, {}))
    (a, b), again = unpack(content)[0].values(), unpack(content)[0]
    a += 1
    assert torch.equal(b, torch.zeros(3)) and same(again, sent)
    double = pack({"model.a": torch.zeros(300), "model.b": torch.zeros(300)}, {})
    single = pack({"model.a": torch.zeros(300)}, {})
    assert measure(double)["model"] < measure(single)["model"] + 300


def test_scalars_go_as_metrics_where_these_keep_them():
    "Flower's modifiers look for a model among arrays; a number of samples is none."
    odd = {"scalars.own.a": torch.tensor(1.), "scalars.own.b": torch.ones(1), "scalars.own.c": torch.tensor(True)}
    content = pack({"scalars.n": scalar(3), "scalars.own.i": torch.tensor(2**63 - 1)} | odd, {})
    assert dict(content["numbers"]) == {"scalars.n": 3., "scalars.own.i": 2**63 - 1}
    assert set(content["scalars"]) == set(odd)


def test_bytes_by_kind():
    payload = {"model.w": torch.ones(1000), "stats.own.w": torch.ones(10), "scalars.n": scalar(3)}
    content, counted = pack(payload, {}), nbytes(payload)
    content.update(pack_state({"w": torch.ones(50)}))
    sizes = measure(content)
    assert set(sizes) == {"model", "stats", "scalars", "about", "state"} and sizes["state"] > 200
    assert all(counted[k] < sizes[k] < counted[k] + 600 for k in ("model", "stats", "scalars"))


@pytest.mark.parametrize("payload, part", [
    ({"w": torch.ones(2)}, "'w' names no kind"), ({"stats.w": torch.ones(2)}, "'stats.w' names no owner"),
    ({"model.w": torch.ones(2, dtype=torch.complex64)}, "'model.w' of a message is complex64 [2]"),
    ({"model.w": torch.ones(2).to_sparse()}, "'model.w' of a message is float32 [2]"),
    ({"model.w": torch.ones(2, device="meta")}, "'model.w' of a message is float32 [2]")])
def test_what_cannot_be_sent(payload, part): says(lambda: pack(payload, {}), part)


@pytest.mark.parametrize("value", [torch, 10**5000, np.float32(1)], ids=["object", "long", "numpy"])
def test_what_cannot_be_said(value): says(lambda: pack({}, {"x": value}), "cannot be sent as JSON")


def saved(array, version=None, pickled=False):
    "The bytes of an array's file."
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=pickled)
    return file.getvalue()


SENT = {"model.w": torch.ones(2, 3), "scalars.n": scalar(3), "stats.own.b": torch.ones(2, dtype=torch.bfloat16)}
ONES = Array(np.ones((2, 3), "float32"))
HEADED = ONES.data.replace                                               # bytes whose header says something else


@pytest.mark.parametrize("fields, part", [
    (dict(data=saved(np.array([[None]*3]*2), pickled=True)), "holds 'object'"),
    (dict(dtype="object", data=saved(np.array([[None]*3]*2), pickled=True)), "is of type 'object'"),
    (dict(stype="pickle"), "written as 'pickle'"), (dict(stype="fdgnb.bits"), "written as 'fdgnb.bits'"),
    (dict(data=ONES.data[:-1]), "holds 23 bytes"), (dict(data=ONES.data + b"0"), "holds 25 bytes"),
    (dict(data=ONES.data[:40]), "no array"), (dict(data=b""), "no array"), (dict(data=b"\x80\x04."), "no array"),
    (dict(data=saved(np.ones((2, 3), "float32"), (2, 0))), "no array|another layout"),
    (dict(data=saved(np.ones((3, 2), "float32").T)), "another layout"),
    (dict(data=saved(np.ones((2, 3), ">f4"))), "holds '>f4'"), (dict(dtype="bool"), "written as|says type bool"),
    (dict(dtype="float64"), "says type float64"), (dict(dtype="int32"), "says type int32"),
    (dict(dtype="quint8"), "of type 'quint8'"), (dict(dtype="bfloat16"), "wanted 'fdgnb.bits'"),
    (dict(shape=(3, 2)), "says shape (3, 2)"), (dict(shape=()), "says shape ()"), (dict(shape=(6,)), "says shape (6,)"),
    (dict(shape=(-2, -3), data=HEADED(b"(2, 3), }  ", b"(-2, -3), }")), "cannot have shape (-2, -3)"),
    (dict(shape=(2**40, 9), data=HEADED(b"(2, 3), }" + b" "*12, b"(1099511627776, 9), }")), "24 bytes of numbers")])
def test_an_array_that_is_none_is_refused_by_its_key(fields, part):
    "Type, shape and bytes have to agree before a byte is taken."
    content = pack(SENT, {})
    given = dict(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=ONES.data) | fields
    content["model"]["model.w"] = Array(**given)
    with pytest.raises(FdgnbError) as e: unpack(travel(content))
    text = str(e.value)
    assert "'model.w'" in text and "\n" not in text and any(p in text for p in part.split("|")), text


def test_a_bool_of_other_bits_is_refused():
    two = Array("bool", (1,), "numpy.ndarray", saved(np.ones(1, bool))[:-1] + b"\x02")
    content = pack_state({"a": torch.tensor([True])})
    content["state"]["a"] = two
    says(lambda: unpack_state(content), "'a'", "neither 0 nor 1")


@pytest.mark.parametrize("name, record, part", [
    ("stats", {"model.x": ONES}, "'model.x' of a message comes among the stats"),
    ("images", {"images.x": ONES}, "'images.x' names no owner"),
    ("images", {"images.own.x": ONES}, "'images.own.x' of a message came unannounced"),
    ("scalars", {"scalars.n": ONES}, "'scalars.n' of a message comes twice"),
    ("model", {}, "'model.w' of a message is announced and did not come"),
    ("weights", {"w": ONES}, "the unknown record 'weights'"),
    ("numbers", {"model.w": 1.}, "'model.w' of a message comes"),
    ("numbers", {"scalars.n": [1.]}, "'scalars.n' of a message is [1.0]"),
    ("numbers", {"scalars.n": 2**64 - 1}, "more than 64 bits"),
    ("about", {}, "record 'about'"), ("about", {"json": b"{}"}, "record 'about'"), ("about", {"json": "[]"}, "'about'"),
    ("about", {"json": "{"}, "'about'"), ("about", {"json": "["*10**5}, "'about'"),
    ("about", {"json": "1"*5000}, "'about'"),
    ("about", {"json": '{"keys": []}'}, "'about'"), ("about", {"json": '{"keys": 3, "about": {}}'}, "list of keys"),
    ("about", {"json": '{"keys": [[]], "about": {}}'}, "list of keys"),
    ("about", {"json": '{"keys": ["model.w", "model.w"], "about": {}}'}, "'model.w' of a message is announced twice"),
    ("about", {"json": '{"keys": [], "about": 3}'}, "wanted a dict")])
def test_a_record_that_is_none_is_refused(name, record, part):
    kind = dict(numbers=MetricRecord, about=ConfigRecord).get(name, ArrayRecord)
    content = pack(SENT, {})
    content[name] = kind(record)
    says(lambda: unpack(travel(content)), part)


@pytest.mark.parametrize("name", ["model", "numbers", "about"])
@pytest.mark.parametrize("kind", [ArrayRecord, MetricRecord, ConfigRecord])
def test_a_record_of_another_type_is_refused(name, kind):
    content = pack(SENT, {})
    del content[name]
    content[name] = kind()
    says(lambda: unpack(content), "a message")


def test_too_many_bytes_are_refused_by_their_largest_entry():
    content = pack(SENT | {"model.big": torch.ones(10**4)}, {})
    says(lambda: unpack(content, most=10**4), "'model.big'", "at most 10,000")
    says(lambda: unpack(pack({}, {"x": "x"*2000}), most=10**3), "'about'")
    assert same(unpack(content, most=10**5)[0], SENT | {"model.big": torch.ones(10**4)})


def test_a_message_without_a_state(): says(lambda: unpack_state(pack(SENT, {})), "record 'state about'")


@few
@given(st.data())
def test_altered_messages_are_read_or_refused(data):
    "Any field of an array, any byte of a record: a payload of tensors, or one line."
    content = pack(SENT, {"round": 1})
    key = data.draw(st.sampled_from(["model.w", "stats.own.b"]))
    array = content[key.split(".")[0]][key]
    bits = bytearray(array.data)
    for at in data.draw(st.lists(st.integers(0, len(bits) - 1), max_size=3)): bits[at] = data.draw(st.integers(0, 255))
    bits = bits[:data.draw(st.integers(0, len(bits)) | st.just(len(bits)))]
    fields = dict(dtype=data.draw(st.just(array.dtype) | st.sampled_from([*NAMES, "complex64", ""])),
                  shape=tuple(data.draw(st.just(array.shape) | st.lists(st.integers(-2, 2**63 - 1), max_size=3))),
                  stype=data.draw(st.just(array.stype) | st.sampled_from(["numpy.ndarray", "fdgnb.bits", "pickle"])))
    content[key.split(".")[0]][key] = Array(data=bytes(bits), **fields)
    text = content["about"]["json"]
    at = data.draw(st.integers(0, len(text)) | st.just(len(text)))
    content["about"]["json"] = text[:at] + data.draw(st.just("") | words) + text[at:]
    try: payload, about = unpack(travel(content))
    except FdgnbError as e: assert "\n" not in str(e)
    else: assert all(map(torch.is_tensor, payload.values())) and type(about) is dict


def test_flowers_telemetry_is_off(): assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
