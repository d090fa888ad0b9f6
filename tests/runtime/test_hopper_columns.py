"""Products whose first operand lies column by column: bits, what Numba emits, and what is refused."""

import re

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_columns import wgmma_bf16_columns, wgmma_f16_columns
from tests.runtime.test_hopper import HOPPER, MAP, NOTHING, brains, bring, halves, hopper_only, modelled, numba_error

SUMS, FEW = NOTHING[64], NOTHING[64][:8]
KINDS = [("wgmma_f16", wgmma_f16_columns, halves), ("wgmma_bf16", wgmma_bf16_columns, brains)]


def kernel_of(multiply):
    """A block of four warps multiplies 64 x 64 by 64 x 64; of both matrices a row of 64 lies for each k."""
    nothing = NOTHING[64]

    @cuda.jit
    def kernel(a_map, b_map, maps, c):
        tiles, full = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t, sums = cuda.threadIdx.x, nothing
        bring(a_map, b_map, maps, tiles, full, 64, 1)
        wgmma_fence()
        for step in range(4):
            at = np.uint32(step * 16 * 64)
            a, b = tile_descriptor(tiles, at, 0), tile_descriptor(tiles, at + np.uint32(4096), 0)
            sums = multiply(a, b, sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        for i in range(32):
            row, column = t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2
            c[row, column] = sums[i]

    return kernel


@hopper_only
@pytest.mark.parametrize(("name", "multiply", "draw"), KINDS)
def test_a_product_has_the_bits_of_the_model(rng, name, multiply, draw):
    a, b = draw(rng, (64, 64), 3), draw(rng, (64, 64), 3)
    given = [device.to_device(np.ascontiguousarray(x)) for x in (a.T, b)]
    c, maps = device.to_device(np.zeros((64, 64), np.float32)), device.to_device(np.zeros(32, np.uint64))
    kernel_of(multiply)[1, 128](*(tensor_map(x, 64, 64) for x in given), maps, c)
    found = device.to_host(c)
    np.testing.assert_array_equal(found.view(np.uint32), modelled(name, a, b).view(np.uint32))
    assert (found != modelled(name, a.T.copy(), b)).any()


@pytest.mark.parametrize(("name", "multiply", "draw"), KINDS)
def test_both_operands_are_transposed(ptx, name, multiply, draw):
    text = ptx(kernel_of(multiply), MAP, MAP, np.zeros(32, np.uint64), np.zeros((64, 64), np.float32), cc=HOPPER)
    assert set(re.findall(r"wgmma\.mma_async[^;]*, (p(?:, \d)+);", text)) == {"p, 1, 1, 1, 1"}


@cuda.jit
def with_registers(c):
    c[0] = wgmma_wait(0, wgmma_f16_columns(c[0], np.uint64(0), SUMS))[0]


@cuda.jit
def with_too_few_sums(c):
    c[0] = wgmma_wait(0, wgmma_f16_columns(np.uint64(0), np.uint64(0), FEW))[0]


def test_other_operands_are_refused(ptx):
    c = np.zeros(1, np.float32)
    assert "a must be a descriptor (uint64), was float32" in numba_error(ptx, with_registers, c)
    assert "c must be a tuple of 32, 64, 96 or 128 float32" in numba_error(ptx, with_too_few_sums, c)
