"""Records: fields of structured arrays, their addresses, and what the sanitizers see of them."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import UnsupportedError, cuda

POINT = np.dtype([("x", np.float32), ("y", np.float32), ("tag", np.int32)])
PACKED = np.dtype([("flag", np.uint8), ("value", np.float64), ("count", np.int32)])  # 13 bytes
ALIGNED = np.dtype([("flag", np.uint8), ("value", np.float64), ("count", np.int32)], align=True)  # 24 bytes
NESTED = np.dtype([("at", POINT), ("m", np.float32, (2, 3)), ("id", np.int16)])


@cuda.jit
def move(points, dx):
    i = cuda.grid(1)
    if i < points.size:
        points[i].x += dx
        points[i]["y"] = points[i].x * 2
        points["tag"][i] = i


@pytest.mark.parametrize("kind", [np.ndarray, np.recarray, "device"])
def test_fields_are_read_and_written_in_all_three_spellings(kind):
    x = np.zeros(40, POINT)
    x["x"] = np.arange(40)
    argument = cuda.to_device(x) if kind == "device" else x.view(kind)
    move[2, 32](argument, np.float32(1))
    result = argument.copy_to_host() if kind == "device" else x
    np.testing.assert_array_equal(result["x"], np.arange(40) + 1)
    np.testing.assert_array_equal(result["y"], 2 * (np.arange(40) + 1))
    np.testing.assert_array_equal(result["tag"], np.arange(40))


@cuda.jit
def scale(records, factor):
    i = cuda.grid(1)
    records["value"][i] *= factor
    records["count"][i] += records[i].flag


@pytest.mark.parametrize("dtype", [PACKED, ALIGNED], ids=["packed", "aligned"])
def test_packed_and_aligned_layouts_keep_their_other_bytes(dtype, rng):
    x = np.zeros(64, dtype)
    x["flag"], x["value"], x["count"] = rng.integers(0, 255, 64), rng.normal(size=64), rng.integers(0, 99, 64)
    expected = x.copy()
    expected["value"] *= 3
    expected["count"] += x["flag"]
    scale[2, 32](x, 3)
    np.testing.assert_array_equal(x, expected)


@cuda.jit
def read_value(records, out):
    out[cuda.threadIdx.x] = records["value"][cuda.threadIdx.x]


@pytest.mark.parametrize("dtype", [PACKED, ALIGNED], ids=["packed", "aligned"])
def test_sectors_are_those_of_the_fields_addresses(dtype):
    report = simt.profile(read_value, 1, 32, (cuda.to_device(np.zeros(32, dtype)), cuda.device_array(32)))
    offset = dtype.fields["value"][1]
    touched = {(i * dtype.itemsize + offset + b) // 32 for i in range(32) for b in range(8)}
    assert report.counters["global_load_sectors"] == len(touched)
    assert report.counters["global_load_requests"] == 1
    assert report.counters["global_load_bytes"] == 32 * 8


@cuda.jit
def through_shared(x, out):
    tile = cuda.shared.array(32, POINT)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[31 - t].x


def test_shared_records_conflict_as_their_stride_says():
    x = np.zeros(32, POINT)
    x["x"] = np.arange(32)
    out = np.zeros(32, np.float32)
    report = simt.profile(through_shared, 1, 32, (x, out), level="check")
    np.testing.assert_array_equal(out, x["x"][::-1])
    # 12 bytes from one to the next: 3 banks, which has no divisor in common with 32.
    assert report.counters["shared_load_wavefronts"] == 1
    assert report.counters["shared_store_requests"] == 3
    assert not report.hazards


@cuda.jit
def in_local(out):
    own = cuda.local.array(2, ALIGNED)
    i = cuda.grid(1)
    own[0].value = i
    own[1] = own[0]
    out[i] = own[1].value


def test_local_records_and_reading_what_nobody_wrote():
    out = np.zeros(64)
    report = simt.profile(in_local, 2, 32, (out,), level="check")
    np.testing.assert_array_equal(out, np.arange(64))
    # The copy reads flag and count, which nobody wrote.
    assert [(h.kind, h.space) for h in report.hazards] == [("uninitialised_read", "local")]


@cuda.jit
def nested(records, out):
    i = cuda.grid(1)
    out[i] = records[i].at.x + records[i].m[1, 2]
    records[i].m[0] = out[i]
    records[i].id = records[i]["at"].tag


def test_records_in_records_and_arrays_in_records():
    x = np.zeros(8, NESTED)
    x["at"]["x"], x["at"]["tag"], x["m"][:, 1, 2] = np.arange(8), 7, 100
    out = np.zeros(8, np.float32)
    nested[1, 8](x, out)
    np.testing.assert_array_equal(out, np.arange(8) + 100)
    np.testing.assert_array_equal(x["m"][:, 0], np.repeat(out[:, None], 3, 1))
    np.testing.assert_array_equal(x["id"], 7)


def test_one_record_is_an_argument_and_comes_back():
    @cuda.jit
    def kernel(record, out):
        out[0] = record.x
        record.y = 5

    x, out = np.array([(1, 2, 3)], POINT), np.zeros(1)
    kernel[1, 1](x[0], out)
    assert (out[0], x[0]["y"], x[0]["tag"]) == (1, 5, 3)


def test_a_device_array_gives_records_and_they_give_their_fields():
    nested = np.dtype([("at", POINT), ("weights", np.float32, (4,))])
    x = cuda.to_device(np.zeros(3, nested))
    with pytest.raises(TypeError, match="a name \\('at'\\): index one record first"):
        x["at"]
    x[1]["at"]["y"] = 2.5
    assert x[1]["at"]["y"] == x.copy_to_host()[1]["at"]["y"] == 2.5

    @cuda.jit
    def kernel(weights, point):
        weights[cuda.threadIdx.x] = cuda.threadIdx.x
        point.tag = 7

    kernel[1, 4](x[2]["weights"], x[2]["at"])
    assert x.copy_to_host()[2]["weights"].tolist() == [0, 1, 2, 3]
    assert x[2]["at"]["tag"] == 7
    for wrong in (0, "z", ...):
        with pytest.raises(KeyError, match="no field of the record; it has at, weights"):
            x[0][wrong]
    with pytest.raises(TypeError, match="'weights' is no number"):
        x[0]["weights"] = 1


def test_a_record_at_any_byte_gives_the_fields_that_numba_loads_by_bytes():
    packed, promised = np.dtype([("a", "f4"), ("b", "f4")]), np.dtype([("a", "f4"), ("b", "f4")], align=True)
    memory = np.arange(41, dtype=np.uint8)
    part = cuda.to_device(memory)[1:]

    @cuda.jit
    def of_one(records, out):
        i = cuda.threadIdx.x
        out[i] = records[i].b

    @cuda.jit
    def of_all(records, out):
        i = cuda.threadIdx.x
        out[i] = records["b"][i]

    for kernel in (of_one, of_all):
        out = np.zeros(5, np.float32)
        kernel[1, 5](part.view(packed), out)
        np.testing.assert_array_equal(out, memory[1:].view(packed)["b"])
        with pytest.raises(simt.SimtError, match=r"test_records.py:\d+: .* misaligned address: .* at byte 5"):
            kernel[1, 5](part.view(promised), out)


def test_atomics_work_on_fields():
    @cuda.jit
    def kernel(records):
        cuda.atomic.add(records["count"], cuda.threadIdx.x % 2, 1)

    x = np.zeros(2, ALIGNED)
    kernel[1, 32](x)
    assert x["count"].tolist() == [16, 16]


# ------------------------------------------------------------------------------------------------------------ hazards


@cuda.jit
def different_fields(records):
    t = cuda.threadIdx.x
    if t == 0:
        records[0].x = 1
    else:
        records[0].y = 2


@cuda.jit
def the_same_field(records):
    records[0].x = cuda.threadIdx.x


def test_threads_race_for_fields_not_for_records():
    x = np.zeros(1, POINT)
    assert not simt.profile(different_fields, 1, 2, (x,), level="check").hazards
    (found,) = simt.profile(the_same_field, 1, 2, (x,), level="check").hazards
    assert (found.kind, found.variable) == ("race", "records[0].x")


def test_a_field_that_nobody_wrote():
    @cuda.jit
    def write_x(records):
        records[cuda.threadIdx.x].x = 1

    @cuda.jit
    def read(records, out):
        out[cuda.threadIdx.x] = records[cuda.threadIdx.x].x
        out[cuda.threadIdx.x] = records[cuda.threadIdx.x].y

    records, out = cuda.device_array(4, POINT), cuda.device_array(4)
    simt.profile(write_x, 1, 4, (records,), level="check")
    (found,) = simt.profile(read, 1, 4, (records, out), level="check").hazards
    assert (found.kind, found.variable) == ("uninitialised_read", "records[cuda.threadIdx.x].y")


def test_out_of_bounds_records_are_named_and_touch_nothing():
    @cuda.jit
    def kernel(records):
        records[cuda.threadIdx.x].tag = 9

    x = np.zeros(3, POINT)
    (found,) = simt.profile(kernel, 1, 5, (x,), level="check", collect=True).hazards
    assert (found.kind, found.variable, found.thread) == ("out_of_bounds", "records", (3, 0, 0))
    assert x["tag"].tolist() == [9, 9, 9]
    with pytest.raises(simt.OutOfBoundsError):
        kernel[1, 5](x)


@pytest.mark.parametrize("what, words", [("read", "no field z; it has x, y, tag"), ("write", "has no field z")])
def test_a_field_that_is_not_there(what, words):
    @cuda.jit
    def reads(records, out):
        out[0] = records[0].z

    @cuda.jit
    def writes(records, out):
        records[0].z = out[0]

    with pytest.raises(UnsupportedError, match=words):
        (reads if what == "read" else writes)[1, 1](np.zeros(1, POINT), np.zeros(1))


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_number_of_a_packed_record_that_is_not_aligned_is_refused_as_numba_does(what):
    @cuda.jit
    def reads(records, out):
        out[0] = records[0].flag + records[0].value

    @cuda.jit
    def writes(records, out):
        records[0]["count"] = 1

    kernel = reads if what == "read" else writes
    kernel[1, 1](np.zeros(1, ALIGNED), np.zeros(1))
    with pytest.raises(UnsupportedError, match="not aligned; make the dtype with align=True"):
        kernel[1, 1](np.zeros(1, PACKED), np.zeros(1))


def test_records_of_other_things_are_refused():
    with pytest.raises(simt.ArgumentError, match="records of numbers"):
        cuda.to_device(np.zeros(2, [("name", "U4")]))
