"""Products of tiles with 2:4 sparsity: bits, what Numba emits, and what is refused."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_tile,
    expect_bytes,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_sparse import wgmma_sp_bf16, wgmma_sp_f16
from pmpp.simt.values import sparse_tiles
from pmpp.simt.values.sparse_tensor_cores import ORDERED
from tests.kernels.sparsity import sparse_instructions  # noqa: F401  for the compiler of the tests
from tests.runtime.test_hopper import HOPPER, MAP, NOTHING, brains, halves, hopper_only, numba_error

COLUMNS = (64, 128, 192, 256)
KINDS = [("wgmma_sp_f16", wgmma_sp_f16, halves), ("wgmma_sp_bf16", wgmma_sp_bf16, brains)]


def kernel_of(columns, multiply):
    """A block of four warps multiplies 64 x 128, of which 64 x 64 are stored, by 128 x ``columns``.

    Metadata: (4, 2, 32), of each warp a word of its lanes for the first 64 columns, and one for the others.
    """
    nothing, count, panels = NOTHING[columns], columns // 2, columns // 64

    @cuda.jit
    def kernel(a_map, b_map, maps, metadata, c):
        tiles, full = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
        cuda.syncthreads()
        if t == 0:
            place_map(maps, 0, a_map)
            place_map(maps, 16, b_map)
            expect_bytes(full, 0, 2 * 64 * 64 * (1 + 2 * panels))
            bulk_tile(tiles, 0, maps, 0, 0, 0, full, 0)
            for panel in range(panels):
                bulk_tile(tiles, 4096 + 8192 * panel, maps, 16, 0, 64 * panel, full, 0)
        mbarrier_wait(full, 0, 0)
        sums = nothing
        wgmma_fence()
        for both in range(2):
            a, b, word = 32 * both, 4096 + 4096 * both, metadata[t // 32, both, t % 32]
            sums = multiply(tile_descriptor(tiles, a, 0), tile_descriptor(tiles, b, 8192), sums, word, 0)
            sums = multiply(tile_descriptor(tiles, a + 16, 0), tile_descriptor(tiles, b + 2048, 8192), sums, word, 1)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        for i in range(count):
            c[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]

    return kernel


def random_metadata(rng):
    fours = rng.choice(np.array(ORDERED, np.uint32), (4, 2, 32, 8))
    return (fours << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)


def product(a, b, metadata, multiply):
    """Of 16-bit numbers, 64 x 64 that are stored and 128 x n."""
    a, b, metadata = map(device.to_device, (a, b, metadata))
    c, maps = device.empty((64, b.shape[1]), np.float32), device.empty(32, np.uint64)
    kernel = kernel_of(b.shape[1], multiply)
    shared = 2 * (64 * 64 + 128 * b.shape[1])
    kernel[1, 128, 0, shared](tensor_map(a, 64, 64), tensor_map(b, 128, 64), maps, metadata, c)
    return device.to_host(c)


def modelled(name, a, b, metadata):
    """The same by the arithmetic that the interpreter has."""
    rows = []
    for warp in range(4):
        sums = np.zeros((16, b.shape[1]), np.float32)
        for step in range(4):
            left, right = a[16 * warp : 16 * warp + 16, 16 * step : 16 * step + 16], b[32 * step : 32 * step + 32]
            sums = sparse_tiles.multiply(name, left, right, sums, metadata[warp, step // 2], step % 2)
        rows.append(sums)
    return np.vstack(rows)


def with_zeros(a, metadata):
    """The 64 x 128 matrix, element by element, as the documentation says where each belongs."""
    full = np.zeros((64, 128), a.dtype)
    for row in range(64):
        for four in range(32):
            step, within = divmod(four, 8)
            lane = 4 * (row % 8) + 2 * (step % 2) + within // 4
            word = int(metadata[row // 16, step // 2, lane])
            bits = word >> (4 * (within % 4) + 16 * (row % 16 // 8)) & 15
            full[row, 4 * four + (bits & 3)] = a[row, 2 * four]
            full[row, 4 * four + (bits >> 2)] = a[row, 2 * four + 1]
    return full


def test_stored_numbers_belong_where_the_metadata_says(rng):
    """Of small whole numbers every sum is exact: this is the layout, on both backends."""
    a, b = rng.integers(-9, 10, (64, 64)).astype(np.float16), rng.integers(-9, 10, (128, 64)).astype(np.float16)
    metadata = random_metadata(rng)
    found = product(a.view(np.uint16), b.view(np.uint16), metadata, wgmma_sp_f16)
    np.testing.assert_array_equal(found, with_zeros(a.astype(float), metadata) @ b.astype(float))


@hopper_only
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("name", "multiply", "draw"), KINDS)
def test_a_product_has_the_bits_of_the_model(rng, columns, name, multiply, draw):
    for spread in (0, 12) if columns == 64 else (3,):
        a, b, metadata = draw(rng, (64, 64), spread), draw(rng, (128, columns), spread), random_metadata(rng)
        found = product(a, b, metadata, multiply)
        np.testing.assert_array_equal(found.view(np.uint32), modelled(name, a, b, metadata).view(np.uint32))
