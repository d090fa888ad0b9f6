"""Signals between GPUs: the instructions that Numba emits, what the interpreter's twins order, and what is refused."""

import re

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, system
from pmpp.runtime.system import load_acquire_system, load_relaxed_system, store_relaxed_system, store_release_system
from tests.runtime.test_vector import typing_error

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="a GPU does not say what is wrong")


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    assert [one._name for one in system.numba_intrinsics().values()] == list(system.NAMES)


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="store_device"):
        system.store_device  # noqa: B018


def all_four(flags, out):
    store_release_system(flags, 0, 1.5)
    out[0] = load_acquire_system(flags, 0)
    store_relaxed_system(flags, 1, 2)
    out[1] = load_relaxed_system(flags, np.int32(1))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_each_is_one_instruction_of_its_width(ptx, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    text = ptx(all_four, np.zeros(4, dtype), np.zeros(2, dtype))
    found = re.findall(r"^\s*((?:ld|st)\.(?:relaxed|acquire|release)\.\S+)", text, re.MULTILINE)
    assert found == [f"{one}.sys.global.u{bits}" for one in ("st.release", "ld.acquire", "st.relaxed", "ld.relaxed")]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_values_are_converted_as_by_a_plain_store(dtype):
    out = device.to_device(np.zeros(2, dtype))
    cuda.jit(all_four)[1, 1](device.to_device(np.zeros(4, dtype)), out)
    assert out.copy_to_host().tolist() == [1, 2]


def in_two_dimensions(flags):
    store_release_system(flags, 5, 7)


def test_the_index_goes_into_the_flat_storage():
    flags = device.to_device(np.zeros((2, 4), np.int64))
    cuda.jit(in_two_dimensions)[1, 1](flags)
    np.testing.assert_array_equal(flags.copy_to_host(), [[0, 0, 0, 0], [0, 7, 0, 0]])


def read_float(x):
    load_acquire_system(x, 0)


def at_a_float(x):
    load_relaxed_system(x, 1.0)


def store_text(x):
    store_release_system(x, 0, (1, 2))


def test_what_cannot_be_a_signal_is_a_typing_error(ptx):
    assert "load_acquire_system: the array's dtype must be one of int32" in typing_error(ptx, read_float, np.zeros(4))
    ints = np.zeros(4, np.int64)
    assert "load_relaxed_system: the index must be one integer" in typing_error(ptx, at_a_float, ints)
    assert "store_release_system: the value must be a number" in typing_error(ptx, store_text, ints)
    assert "must be contiguous" in typing_error(ptx, in_two_dimensions, np.zeros((4, 4), np.int64)[::2, ::2])


@interpreter_only
def test_the_interpreter_refuses_it_too():
    with pytest.raises(simt.SimtError, match="dtype must be one of int32"):
        cuda.jit(read_float)[1, 1](device.to_device(np.zeros(4)))
    with pytest.raises(simt.SimtError, match="must be contiguous"):
        cuda.jit(in_two_dimensions)[1, 1](device.to_device(np.zeros((4, 4), np.int64))[::2, ::2])


def acquired(data, flag, out):
    """Block 0 writes and signals, block 1 waits and reads."""
    if cuda.blockIdx.x == 0:
        data[0] = 7
        store_release_system(flag, 0, 1)
    else:
        looks = 0
        while load_acquire_system(flag, 0) < 1 and looks < 100_000:
            looks += 1
        out[0] = data[0]


def store_is_relaxed(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        store_relaxed_system(flag, 0, 1)
    else:
        looks = 0
        while load_acquire_system(flag, 0) < 1 and looks < 100_000:
            looks += 1
        out[0] = data[0]


@interpreter_only
@pytest.mark.parametrize("kernel, hazards", [(acquired, []), (store_is_relaxed, ["race"])])
def test_a_release_orders_what_was_before_it(kernel, hazards):
    data, flag, out = (device.to_device(np.zeros(1, np.int64)) for _ in range(3))
    with simt.record("check", collect=True) as reports:
        cuda.jit(kernel)[2, 1](data, flag, out)
    assert sorted({hazard.kind for report in reports for hazard in report.hazards}) == hazards
    assert out.copy_to_host()[0] == 7
