"""Dot products of 16-bit and 8-bit numbers: what Numba emits and refuses, and the interpreter's twins."""

from unittest import mock

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device, dots
from pmpp.runtime.dots import dot_high, dot_low


@cuda.jit
def both(weights, values, totals, low, high):
    i = cuda.grid(1)
    if i < low.size:
        low[i] = dot_low(weights[i], values[i], totals[i])
        high[i] = dot_high(weights[i], values[i], totals[i])


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_the_sums(rng, dtype):
    given = rng.integers(0, 2**32, (3, 100), dtype=np.uint32)
    given[:, :4] = [[0, 2**32 - 1, 2**16, 65535], [0, 2**32 - 1, 2**8, 255], [0, 2**32 - 1, 1, 2]]
    low, high = device.empty(100, np.uint32), device.empty(100, np.uint32)
    both[1, 128](*(device.to_device(one.view(dtype)) for one in given), low, high)
    (weights, values, totals), wide = given.astype(np.uint64), np.uint64
    w0, w1 = weights & wide(65535), weights >> wide(16)
    v0, v1, v2, v3 = ((values >> wide(8 * i)) & wide(255) for i in range(4))
    np.testing.assert_array_equal(low.copy_to_host(), (totals + w0 * v0 + w1 * v1).astype(np.uint32))
    np.testing.assert_array_equal(high.copy_to_host(), (totals + w0 * v2 + w1 * v3).astype(np.uint32))


def emitted(name="dot_low", kind="uint32"):
    """PTX of one product. The intrinsic itself: tests.support.compiled has its twin in its place."""
    numba_cuda = pytest.importorskip("numba.cuda")
    dot, number = dots.numba_intrinsics()[name], getattr(np, kind)

    def one(x):
        x[0] = dot(x[1], number(x[2]), x[3])

    device_of = "numba.cuda.dispatcher.get_current_device"
    with mock.patch(device_of, return_value=mock.Mock(compute_capability=(9, 0))):
        return numba_cuda.compile_ptx(one, (numba_cuda.types.uint32[::1],), cc=(9, 0))[0]


def test_the_instructions():
    assert "dp2a.lo.u32.u32" in emitted("dot_low")
    assert "dp2a.hi.u32.u32" in emitted("dot_high")


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_what_is_refused(kind):
    errors = pytest.importorskip("numba.core.errors"), pytest.importorskip("numba.cuda.core.errors")
    said = f"dot_high: values must be an integer of at most 32 bits, was {kind}"
    with pytest.raises(tuple(module.TypingError for module in errors), match=said):
        emitted("dot_high", kind)


def test_the_interpreter_finds_its_twin():
    """When it profiles a kernel that was written for the GPU."""
    pytest.importorskip("numba.cuda")
    made = dots.numba_intrinsics()
    assert {name: made[name].py_func for name in dots.NAMES} == dots._TWINS


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="dot_middle"):
        dots.dot_middle  # noqa: B018
