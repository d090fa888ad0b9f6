"""Arrays by address: what a kernel reads and writes there, on both backends, and what is refused."""

import re

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import addresses, device
from pmpp.runtime.addresses import array_at
from pmpp.runtime.vector import load128, store128
from tests.runtime.test_vector import accesses, typing_error

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="a GPU does not say what is wrong")


def test_the_intrinsic_is_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twin by this name.
    assert [intrinsic._name for intrinsic in addresses.numba_intrinsics().values()] == ["array_at"]


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="array_of"):
        addresses.array_of  # noqa: B018


BLOCK = 32


def double_all(table, out):
    """A block doubles the array that its row of the table says."""
    k = cuda.blockIdx.x
    x = array_at(table[k, 0], table[k, 1], np.float32)
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        x[i] = 2 * x[i]
    if cuda.threadIdx.x == 0:
        out[k] = x.size


def double_vectors(table, out):
    x = array_at(table[cuda.blockIdx.x, 0], table[cuda.blockIdx.x, 1], np.float32)
    i = 4 * cuda.threadIdx.x
    if i < x.size:
        a, b, c, d = load128(x, i)
        store128(x, i, (2 * a, 2 * b, 2 * c, 2 * d))
    if i == 0:
        out[cuda.blockIdx.x] = x.size


def table_of(arrays):
    return device.to_device(np.array([(device.address(x), x.size) for x in arrays], np.int64).reshape(-1, 2))


@pytest.mark.parametrize("kernel", [double_all, double_vectors])
def test_blocks_work_on_arrays_that_a_table_names(kernel):
    whole = device.to_device(np.arange(100, dtype=np.float32))
    arrays = [device.to_device(np.arange(n, dtype=np.float32)) for n in (8, 1, 40, 0)] if kernel is double_all else []
    arrays += [device.to_device(np.arange(n, dtype=np.float32)) for n in (4, 128)] + [whole[8:16], whole[8:16][4:4]]
    before = [x.copy_to_host() for x in arrays]
    out = device.to_device(np.full(len(arrays), -1, np.int64))
    cuda.jit(kernel)[len(arrays), BLOCK](table_of(arrays), out)
    for x, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x.copy_to_host(), 2 * old)
    assert out.copy_to_host().tolist() == [x.size for x in arrays]
    np.testing.assert_array_equal(whole.copy_to_host()[:8], np.arange(8))


def test_the_address_is_said_to_be_in_global_memory(ptx):
    text = ptx(double_vectors, np.zeros((1, 2), np.int64), np.zeros(1, np.int64))
    assert accesses(text) == ["ld.global.v4.f32", "st.global.v4.f32"]
    plain = ptx(double_all, np.zeros((1, 2), np.int64), np.zeros(1, np.int64))
    assert "ld.global.f32" in plain
    assert not re.search(r"\bld\.f32", plain)


def float_address(x):
    array_at(x[0], 1, np.float32)


def no_dtype(table):
    array_at(table[0], 1, table)


def test_an_address_that_cannot_be_one_is_a_typing_error(ptx):
    said = typing_error(ptx, float_address, np.zeros(1, np.float32))
    assert "array_at: the address must be an integer, was float32" in said
    assert "array_at: the dtype must be a type of numbers" in typing_error(ptx, no_dtype, np.zeros(1, np.int64))


def fill(table):
    x = array_at(table[0, 0], table[0, 1], np.float32)
    x[cuda.threadIdx.x] = 1


def fill_double(table):
    x = array_at(table[0, 0], table[0, 1], np.float64)
    x[cuda.threadIdx.x] = 1


@interpreter_only
def test_what_does_not_lie_at_an_address_is_refused():
    x = device.to_device(np.zeros(4, np.float32))
    rows = {
        "no array lies at the address": np.array([[12345, 4]]),
        "5 elements do not lie there: 4 do": np.array([[device.address(x), 5]]),
    }
    for words, table in rows.items():
        with pytest.raises(simt.SimtError, match=words):
            cuda.jit(fill)[1, 4](device.to_device(table))
    with pytest.raises(simt.SimtError, match="an array of float32, not of float64"):
        cuda.jit(fill_double)[1, 4](table_of([x]))
    gone = table_of([device.to_device(np.zeros(4, np.float32))])
    with pytest.raises(simt.SimtError, match=r"no array lies at the address .*; was it freed"):
        cuda.jit(fill)[1, 4](gone)


@interpreter_only
def test_an_array_by_its_address_is_checked_like_any_other():
    x = device.to_device(np.zeros(4, np.float32))
    with simt.record("check", collect=True) as reports:
        cuda.jit(fill)[1, 5](table_of([x]))
    assert [hazard.kind for hazard in reports[0].hazards] == ["out_of_bounds"]
    fresh = device.empty(64, np.float32)
    with simt.record("check", collect=True) as reports:
        cuda.jit(double_all)[2, BLOCK](table_of([fresh, x]), np.zeros(2, np.int64))
    assert {hazard.kind for hazard in reports[0].hazards} == {"uninitialised_read"}
    assert reports[0].counters["global_store_requests"] == 2 + 1 + 2  # 64 elements, 4 elements, two sizes
