"""Vector addition: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels.vector_add import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.vector import WIDTH
from tests.kernels.vector_add.wrong import RUNGS as WRONG
from tests.kernels.vector_add.wrong import SHORT_RUNGS as WRONG_IF_SHORT
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import hazards, misaligned, name_of, observe, total, watch

BLOCK = room.BLOCK
DTYPES = [dtype.name for dtype in known(room.DTYPES)]
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def same(result, expected):
    """One addition is rounded once, as IEEE 754 says: there is no tolerance. NaN is NaN, and 0.0 is not -0.0."""
    expected = np.asarray(expected)
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return False
    if is_short(result):
        result, expected = result.astype(F32), expected.astype(F32)  # which hold each of these numbers
    signs = result.dtype.kind == "i" or np.array_equal(
        np.signbit(result) & ~np.isnan(result), np.signbit(expected) & ~np.isnan(expected)
    )
    return signs and np.array_equal(result, expected, equal_nan=result.dtype.kind == "f")


def is_short(x):
    return x.dtype.name in room.SHORT


def faults(add, short=False):
    """All that is wrong with a vector addition, worst first. The ladder has none; wrong.py has one each.

    short: of numbers of 16 bits, and not of the other dtypes.
    """
    found = []
    for x, y in room.inputs().values():
        if is_short(x) != short:
            continue
        a, b = device.to_device(x), device.to_device(y)
        try:
            result, reports = watch(add, a, b)
        except simt.SimtError as error:
            return ["misaligned" if "misaligned" in str(error) else str(error)]
        found += hazards(reports)
        if not found:
            found += ["wrong result"] * (not same(result, room.reference(x, y)))
            found += ["input changed"] * (not same(a.copy_to_host(), x) or not same(b.copy_to_host(), y))
    if found or short:
        return found
    x, y = np.arange(10000, dtype=np.float32).reshape(2, -1)
    for offsets in ((0, 0), (1, 1), (1, 0)):
        try:
            result, reports = watch(add, misaligned(x, offsets[0]), misaligned(y, offsets[1]))
        except simt.SimtError as error:
            return ["misaligned" if "misaligned" in str(error) else str(error)]
        found += hazards(reports) + ["wrong result"] * (not same(result, x + y))
        if reports:
            sectors = 3 * (5000 // 8)
            spent = total(reports, "global_load_sectors") + total(reports, "global_store_sectors")
            # A misaligned warp touches one sector more than its 4. The ends of 16-byte vectors come apart, too.
            found += ["traffic"] * (spent > (1.01 if offsets == (0, 0) else 1.3) * sectors)
            found += ["atomics"] * (total(reports, "atomic_requests") > 0)
            found += ["float64"] * (total(reports, "flops_f64") > 0)
            found += ["flops"] * (total(reports, "flops") != 5000)
    return found


@each_rung
@pytest.mark.parametrize("short", [False, True])
def test_a_rung_has_no_fault(rung, short):
    assert faults(rung, short) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG_IF_SHORT, ids=map(name_of, WRONG_IF_SHORT))
def test_a_wrong_kernel_for_16_bits_is_rejected_for_its_reason(wrong):
    if wrong.reason == "wrong result":
        pytest.importorskip("ml_dtypes")
    assert faults(wrong.function, short=True)[:1] == [wrong.reason]


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_numpys_sum(name):
    x, y = room.inputs()[name]
    with np.errstate(all="ignore"):
        assert same(room.reference(x, y), x + y)


@each_rung
@pytest.mark.parametrize("dtype", DTYPES)
@hypothesis.given(
    n=st.integers(0, 2100), offsets=st.tuples(st.integers(0, 4), st.integers(0, 4)), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=10)
def test_any_length_type_and_alignment(rung, dtype, n, offsets, seed):
    rng = np.random.default_rng(seed)
    if "float" in dtype:
        x, y = rng.standard_normal((2, n)).astype(dtype)
    else:
        x, y = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, n), dtype, endpoint=True)
    result = device.to_host(rung(misaligned(x, offsets[0]), misaligned(y, offsets[1])))
    with np.errstate(over="ignore"):
        assert same(result, x + y)


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("name", ["empty", "one", "a vector and one", "a block +1", "float64", "int64", "float16"])
def test_copy(name, offset):
    x, _ = room.inputs()[name]
    assert same(device.to_host(room.copy(misaligned(x, offset))), x)
    out = device.empty(x.size, x.dtype)
    assert room.copy(device.to_device(x), out=out) is out
    assert same(out.copy_to_host(), x)


@interpreter_only
@pytest.mark.parametrize(("n", "offset"), [(2051, 0), (2051, 1), (2, 3)])
def test_a_copy_reads_each_element_once(n, offset):
    """Several blocks, or less than a vector; with a head and a tail."""
    x = np.arange(n, dtype=F32)
    out = misaligned(np.full(n, np.nan, F32), offset)
    with simt.record("check") as reports:
        room.copy(misaligned(x, offset), out=out)
    assert same(out.copy_to_host(), x)
    assert total(reports, "global_load_bytes") == total(reports, "global_store_bytes") == x.nbytes


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 33])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", [(0, 0), (1, 1), (3, 3), (0, 1), (1, 2)])
def test_the_vector_span(size, dtype, offsets):
    x, y = (device.to_device(np.zeros(size + 4, dtype))[offset : offset + size] for offset in offsets)
    head, tail, width = room.vector_span(x, y)
    assert width == WIDTH[dtype]
    starts = {offset % width for offset in offsets}
    if size and len(starts) > 1:
        assert (head, tail) == (0, 0)
    elif size:
        first = min(-starts.pop() % width, size)
        assert (head, tail) == (first, size - (size - first) % width)


@each_rung
def test_output_and_stream(rung):
    x, y = room.inputs()["a block +1"]
    out = device.to_device(np.full_like(x, np.nan))
    stream = cuda.stream()
    assert rung(x, y, out=out, stream=stream) is out
    stream.synchronize()
    assert same(out.copy_to_host(), x + y)


@each_rung
def test_in_place(rung):
    x, y = room.inputs()["a block of vectors +1"]
    a = device.to_device(x)
    rung(a, y, out=a)
    assert same(a.copy_to_host(), x + y)


# ------------------------------------------------------------------------------------------------------------ bad input


class ReadOnly:
    """What says of itself that it lies on a GPU, and may not be written."""

    def __init__(self, x):
        interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (device.address(x), True), "version": 3}
        self.__cuda_array_interface__ = interface


VECTOR = np.ones(5, F32)
BAD = {
    "another dtype": (
        (VECTOR.astype(np.uint8), VECTOR),
        {},
        TypeError,
        r"x must be float32, .* or bfloat16, was uint8",
    ),
    "two dtypes": ((VECTOR, VECTOR.astype(np.float64)), {}, TypeError, "y must be float32, was float64"),
    "a matrix": (
        (np.ones((2, 3), F32), VECTOR),
        {},
        ValueError,
        r"x must have 1 dimension, had 2: its shape was \(2, 3\)",
    ),
    "a scalar": ((np.ones((), F32), VECTOR), {}, ValueError, "x must have 1 dimension, had 0"),
    "two lengths": ((VECTOR, VECTOR[:4]), {}, ValueError, r"y must have shape \(5,\), had \(4,\)"),
    "every other": ((np.ones(10, F32)[::2], VECTOR), {}, ValueError, "x must be contiguous in C order, had .* copy it"),
    "backwards": ((VECTOR, VECTOR[::-1]), {}, ValueError, "y must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


@each_rung
def test_a_bad_output(rung):
    good = device.empty(5, F32)
    with pytest.raises(ValueError, match=r"out must have shape \(5,\), had \(6,\)"):
        rung(VECTOR, VECTOR, out=device.empty(6, F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        rung(VECTOR, VECTOR, out=device.empty(5, np.float64))
    with pytest.raises(ValueError, match="out must be contiguous in C order"):
        rung(VECTOR, VECTOR, out=device.empty(10, F32)[::2])
    with pytest.raises(ValueError, match="out must be writable, was a read-only array"):
        rung(VECTOR, VECTOR, out=ReadOnly(good))
    with pytest.raises(TypeError, match="out must be"):
        rung(VECTOR, VECTOR, out=[0.0] * 5)


# ------------------------------------------------------------------------------------------------------------- counters

# A warp's request for 32 neighbouring float32 is 128 bytes: 4 sectors. Each rung reads two vectors and writes one.


def counted(rung, n, offset=0):
    values = np.arange(n, dtype=F32)
    x = misaligned(values, offset)
    result, (report,) = observe(rung, x, x)
    assert same(result, 2 * values)
    names = ("load_requests", "load_sectors", "load_bytes", "store_requests", "store_sectors", "store_bytes")
    assert report.counters["flops"] == n
    assert report.counters["flops_f64"] == report.counters["atomic_requests"] == report.counters["barriers"] == 0
    return tuple(report.counters[f"global_{name}"] for name in names)


@interpreter_only
@pytest.mark.parametrize("rung", room.LADDER[:2], ids=lambda rung: rung.name)
def test_counters_of_one_element_a_thread(rung):
    assert counted(rung, 1024) == (2 * 32, 2 * 128, 2 * 4096, 32, 128, 4096)
    assert counted(rung, 1025) == (2 * 33, 2 * 129, 2 * 4100, 33, 129, 4100)  # one warp more, with one lane
    # 4 bytes behind a boundary, a warp's 128 bytes reach into a fifth sector; out, which is new, stays aligned.
    assert counted(rung, 1024, offset=1) == (2 * 32, 2 * 160, 2 * 4096, 32, 128, 4096)


@interpreter_only
def test_counters_of_the_vectorised_fast_path():
    # A quarter of the requests, each for 512 bytes: 16 sectors.
    assert counted(room.vectorised, 1024) == (2 * 8, 2 * 128, 2 * 4096, 8, 128, 4096)
    # The element that is left takes a request of its own.
    assert counted(room.vectorised, 1025) == (2 * 9, 2 * 129, 2 * 4100, 9, 129, 4100)
    # out begins on a boundary and x does not: one element per thread, as in one_thread_each.
    assert counted(room.vectorised, 1024, offset=1) == counted(room.one_thread_each, 1024, offset=1)


@interpreter_only
def test_a_head_before_the_first_boundary():
    base = device.to_device(np.arange(1029, dtype=F32))
    x, out = base[1:], device.empty(1029, F32)[1:]
    with simt.record() as reports:
        room.vectorised(x, x, out=out)
    # 1028 = 3 + 256 x 4 + 1: eight warps of vectors, one request each for head and tail.
    assert total(reports, "global_load_requests") == 2 * (8 + 1 + 1)
    assert total(reports, "global_store_requests") == 8 + 1 + 1
    # The head lies in sector 0, whose second half is the first vector's. 16 bytes off, a warp's 512 touch 17 sectors.
    assert total(reports, "global_load_sectors") == 2 * (1 + 8 * 17 + 1)
    assert same(out.copy_to_host(), 2 * np.arange(1, 1029, dtype=F32))


@interpreter_only
def test_a_vector_of_64_bits_is_two_elements():
    x = np.arange(1024.0)
    result, (report,) = observe(room.vectorised, x, x)
    assert same(result, 2 * x)
    assert report.counters["global_load_requests"] == 2 * 16
    assert report.counters["global_load_sectors"] == 2 * 256


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_a_vector_of_16_bits_is_eight_elements(dtype):
    x = np.arange(1024).astype(dtype)
    result, (report,) = observe(room.vectorised, x, x)
    assert same(result, x + x)
    # Half the requests and half the sectors of float32, and as many additions.
    assert report.counters["global_load_requests"] == 2 * 4
    assert report.counters["global_load_sectors"] == 2 * 64
    assert report.counters["global_store_sectors"] == 64
    assert report.counters["flops"] == 1024
    assert report.counters["flops_f16"] == 0  # the additions are of float32


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_sums_of_16_bits_are_computed_in_float32(ptx, dtype):
    x = np.zeros(16, dtype)
    text = ptx(room.vectorised_kernel, x, x, x, 0, 16, 8, cc=(9, 0))
    assert ".extern" not in text
    assert text.count("ld.global.v4.u32") == 2
    assert text.count("st.global.v4.u32") == 1
    assert text.count("add.f32") == 8 + 2  # of the vector, and what lies before and after


# --------------------------------------------------------------------------------------------------- other libraries


def without_subnormals(x):
    """CuPy's float32 kernels flush numbers too small to be normalised to 0; Numba's and PyTorch's do not."""
    if x.dtype.kind != "f" or is_short(x):
        return x
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(np.zeros_like(x), x), x)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", [name for name in room.inputs() if "bfloat16" not in name])
def test_cupy_agrees(rung, name):
    cupy = pytest.importorskip("cupy")
    x, y = map(cupy.asarray, room.inputs()[name])
    stream = cupy.cuda.Stream()
    with stream:
        expected = cupy.asnumpy(x + y)
    assert same(without_subnormals(device.to_host(rung(x, y, stream=stream))), expected)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", room.inputs())
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, y = (tensor_of(torch, v) for v in room.inputs()[name])
    out = torch.empty_like(x)
    rung(x, y, out=out)
    assert same(array_of(torch, out), array_of(torch, x + y))
