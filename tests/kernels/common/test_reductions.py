"""Sums and maxima over a warp and a block: every thread has the result, and idle warps count for nothing."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum, warp_max, warp_sum
from tests.support.wrong import result_of


@cuda.jit
def reduce_kernel(x, out):
    partial = cuda.shared.array((2, 32), np.float64)
    thread = cuda.threadIdx.x
    out[0, thread] = warp_sum(x[thread])
    out[1, thread] = warp_max(x[thread])
    out[2, thread] = block_sum(x[thread], partial[0])
    out[3, thread] = block_max(x[thread], partial[1])


def reduced(x):
    out = cuda.to_device(np.zeros((4, x.size), x.dtype))
    reduce_kernel[1, x.size](cuda.to_device(x), out)
    return out


@pytest.mark.parametrize("threads", [32, 96, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_thread_has_the_sum_and_the_maximum(threads, dtype, rng):
    x = -1 - rng.integers(0, 1000, threads).astype(dtype)  # a maximum that begins at 0 is wrong, and so is padding by 0
    found = result_of(reduced, x)
    warps = x.reshape(-1, 32)
    np.testing.assert_array_equal(found[0], warps.sum(axis=1).repeat(32))  # of whole numbers: exact
    np.testing.assert_array_equal(found[1], warps.max(axis=1).repeat(32))
    np.testing.assert_array_equal(found[2], np.full(threads, x.sum()))
    np.testing.assert_array_equal(found[3], np.full(threads, x.max()))


def test_a_sum_with_a_nan_is_nan_and_a_maximum_of_minus_infinities_is_one():
    x = np.full(64, -np.inf, np.float32)
    np.testing.assert_array_equal(reduced(x).copy_to_host()[3], x)
    x[40] = np.nan
    assert np.isnan(reduced(x).copy_to_host()[2]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_done_in_float64_that_need_not_be(ptx, dtype):
    """What idle lanes bring must not widen a float32: one instruction an addition, not two conversions more."""

    @cuda.jit
    def kernel(x, out):
        partial = cuda.shared.array(32, out.dtype)
        out[cuda.threadIdx.x] = block_max(block_sum(x[cuda.threadIdx.x], partial), cuda.shared.array(32, out.dtype))

    code = ptx(kernel, np.zeros(1, dtype), np.zeros(1, dtype))
    assert (".f64" in code) == (dtype is np.float64)
