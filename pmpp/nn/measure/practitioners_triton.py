"""Two kernels in Triton, for `pmpp.nn.measure.practitioners`. Triton comes with PyTorch for Linux.

A program of Triton works on a tile. Its compiler decides what a thread does, what lies in shared memory, how a tile
gets there, and which instructions multiply. A kernel says which tiles are loaded, what is computed, and what is stored.

Source: P. Tillet, H. T. Kung, D. Cox, Triton (2019); the documentation of triton.language.
"""

import typing

try:
    import triton
    import triton.language as tl
except ImportError:  # then nobody calls what is here
    triton = None

TILES = {"TILE_M": 128, "TILE_N": 256, "TILE_K": 64, "GROUP": 8}

if triton is not None:

    @triton.jit
    def softmax_kernel(x, out, columns, WIDTH: tl.constexpr):
        """A program for each row, which it has as a whole: WIDTH is the next power of two."""
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, WIDTH)
        inside = places < columns
        values = tl.load(x + row * columns + places, mask=inside, other=-float("inf"))
        weights = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + places, weights / tl.sum(weights, axis=0), mask=inside)

    @triton.jit
    def product_kernel(
        a, b, c, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr
    ):
        """A program for each tile of C. GROUP rows of tiles come together, and find their tiles of B in the cache."""
        across, number = tl.cdiv(n, TILE_N), tl.program_id(0)
        group = number // (GROUP * across)
        height = min(tl.cdiv(m, TILE_M) - group * GROUP, GROUP)
        tile_m = group * GROUP + number % (GROUP * across) % height
        tile_n = number % (GROUP * across) // height
        rows, columns = tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * TILE_N + tl.arange(0, TILE_N)
        along = tl.arange(0, TILE_K)
        sums = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        for first in range(0, k, TILE_K):
            left = k - first
            of_a = (rows[:, None] < m) & (along[None, :] < left)
            of_b = (along[:, None] < left) & (columns[None, :] < n)
            tile_a = tl.load(a + rows[:, None] * k + (first + along)[None, :], mask=of_a, other=0.0)
            tile_b = tl.load(b + (first + along)[:, None] * n + columns[None, :], mask=of_b, other=0.0)
            sums = tl.dot(tile_a, tile_b, sums)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.float16), mask=inside)


def softmax(x: typing.Any, out: typing.Any) -> None:
    """The softmax of each row of a matrix of float32, PyTorch's, into ``out``."""
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, WIDTH=triton.next_power_of_2(columns))


def product(a: typing.Any, b: typing.Any, c: typing.Any) -> None:
    """The product of two matrices of float16 in C order, PyTorch's, with sums in float32, into ``c``.

    Places in a matrix are counted with 32 bits.
    """
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, TILES["TILE_M"]) * triton.cdiv(n, TILES["TILE_N"]),)
    product_kernel[grid](a, b, c, m, n, k, **TILES, num_warps=8, num_stages=4)
