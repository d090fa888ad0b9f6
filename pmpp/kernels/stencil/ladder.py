"""Stencil: each cell of a grid becomes a weighted sum of itself and its nearest neighbours along the axes.

Chapter: notebooks/26_stencil.ipynb.  PMPP 4e ch. 8; 5e ch. 8.

A stencil of order R has one coefficient for the centre and one for each distance from 1 to R. One step is

    out[cell] = c[0] x[cell] + sum over d = 1 .. R of c[d] (sum of x at distance d, in both directions of each axis)

The outermost R cells on every side keep their values: a fixed (Dirichlet) border. Several steps follow one another.

A cell costs 6 FLOP in two dimensions at order 1, and 29 in three at order 4, for 8 bytes moved. A GPU does more than
ten FLOP in the time of a byte, so memory is the bound. The rungs read each cell from memory less and less often. The
last one makes several steps while a cell is on the chip.

Kernels see every grid as planes, rows and columns. A grid of two dimensions has planes of a single row.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, round_up
from pmpp.kernels.stencil.cells import at_end, blocks_of, corner, is_aligned, put, vectors_for
from pmpp.kernels.stencil.walks import LANES, TALL, can_walk, walk_bytes, walk_for, walk_planes
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

HIGHEST = 4  # order


def reference(x: np.ndarray, coefficients: tuple, steps: int = 1) -> np.ndarray:
    """Shifted grids, weighted and added up in float64. What float32 cannot hold is infinite after each step."""
    order = len(coefficients) - 1
    inner = (slice(order, -order),) * x.ndim
    grid = x.astype(np.float64)
    if min(x.shape) <= 2 * order:
        return grid  # all cells belong to the border
    for _ in range(steps):
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
            total = np.float64(np.float32(coefficients[0])) * grid[inner]
            for axis in range(x.ndim):
                for d in range(1, order + 1):
                    for shift in (-d, d):
                        total += np.float64(np.float32(coefficients[d])) * np.roll(grid, shift, axis)[inner]
            total[abs(total) > np.finfo(np.float32).max] *= np.inf
        grid[inner] = total
    return grid


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, coefficients, steps)``."""
    rng = np.random.default_rng(26) if rng is None else rng
    weights = (0.4, 0.3, -0.2, 0.1, 0.05)
    made: dict[str, tuple] = {}

    def add(name: str, shape: tuple[int, ...], order: int, steps: int = 1) -> None:
        made[name] = rng.standard_normal(shape, dtype=np.float32), weights[: order + 1], steps

    add("no rows", (0, 5), 1)
    add("no columns, in space", (3, 4, 0), 2)
    add("one cell", (1, 1), 1, 2)
    add("nothing but border", (4, 30), 2, 3)
    add("one inner cell", (3, 3, 3), 1)
    add("a row of inner cells", (3, 300), 1, 5)
    add("a column of inner cells", (70, 3), 1, 2)
    add("order 1, aligned", (40, 136), 1, 9)
    add("order 2", (19, 133), 2, 3)
    add("order 3", (15, 128), 3, 2)
    add("order 4, wide", (11, 261), 4, 3)
    add("order 1 in space", (6, 37, 70), 1, 2)
    add("order 2 in space", (7, 9, 68), 2)
    add("order 4 in space", (10, 12, 76), 4)
    add("more planes than a block walks", (67, 4, 5), 1)
    x = rng.standard_normal((12, 44), dtype=np.float32)
    made["cancelling"] = np.full((9, 30), 1e6, np.float32), (1.0, -0.25), 2
    made["zeros"] = x, (0.0, 0.0), 1
    made["a list of coefficients"] = x, [1, 2], 1
    holes = x.copy()
    holes[5, 7], holes[0, 0], holes[8, 40] = np.nan, np.inf, -np.inf
    made["not finite"] = holes, (0.5, 0.125), 3
    made["overflowing"] = np.full((5, 6), 1e38, np.float32), (4.0, 0.25), 1
    return made


def tolerance(x: np.ndarray, coefficients: tuple, steps: int = 1) -> typing.Any:
    """steps (2 axes + 2 R + 1) 2^-24 S, where S is the result for |x| and |coefficients|; and what subnormals lose.

    A term passes 2 axes - 1 additions to its distance's sum, a multiplication, and R + 1 additions: fewer than the
    bracket. A later step passes an error on as it passes on values, so errors grow as S does. Each operation is off by
    at most 2^-149 near 0, too. Cells of the border are exact.
    """
    order = len(coefficients) - 1
    rounds, sizes = 2 * x.ndim + 2 * order + 1, tuple(abs(np.float64(c)) for c in coefficients)
    size = np.where(np.isfinite(x), abs(x), 0)
    growth = max(1.0, sizes[0] + 2 * x.ndim * sum(sizes[1:])) ** steps
    bound = steps * rounds * (2.0**-24 * reference(size, sizes, steps) + 2.0**-149 * growth)
    inner = np.zeros(x.shape)
    if min(x.shape) > 2 * order:
        inner[(slice(order, -order),) * x.ndim] = 1
    with np.errstate(invalid="ignore"):  # 0 times what overflows
        return np.nan_to_num(bound * inner, posinf=0)


def cost(h: int, w: int, depth: int | None = None, order: int = 1, steps: int = 1) -> Cost:
    """For each inner cell R (2 axes + 1) + 1 FLOP a step. The grid read once and written once, whatever the steps.

    A neighbour is an addition, and each distance, as the centre, a multiplication. A grid in space also has ``depth``.
    """
    shape = (h, w) if depth is None else (h, w, depth)
    inner = math.prod(max(n - 2 * order, 0) for n in shape)
    return Cost(flops=steps * inner * (order * (2 * len(shape) + 1) + 1), bytes=8 * math.prod(shape))


def arguments(x, coefficients, steps=1, *, out=None, stream=0) -> Problem:
    """Make steps of a star-shaped stencil on a grid whose border keeps its values.

    Args:
        x: a grid of shape (H, W) or (D, H, W), extents >= 0, float32, contiguous in C order.
        coefficients: a tuple or a list of 2 to 5 finite numbers, rounded to float32: that of the centre, and one for
            each distance 1, 2, ... R, the same on all axes and in both directions. R is the order.
        steps: how many steps to make, at least 1.
        out: a float32 device array of the shape of ``x``, apart from it in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The outermost R cells on each side are copied. The
    neighbours at one distance are added before they are multiplied, and their sum must fit into float32.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import stencil
    >>> stencil.basic(np.float32([[0, 0, 0], [1, 8, 3], [0, 4, 0]]), (0, 0.25)).copy_to_host()
    array([[0., 0., 0.],
           [1., 2., 3.],
           [0., 4., 0.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=(2, 3), stream=stream)
    if not isinstance(coefficients, tuple | list) or not 2 <= len(coefficients) <= HIGHEST + 1:
        raise TypeError(
            f"coefficients must be a tuple or a list of 2 to {HIGHEST + 1} numbers, of the centre and of each "
            f"distance, was {coefficients!r}"
        )
    numbers = tuple(as_number(f"coefficients[{i}]", value) for i, value in enumerate(coefficients))
    steps = as_integer("steps", steps, 1, 2**31 - 1)
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, apart={"x": x}, stream=stream)
    p = Problem(out, stream=stream, x=x, c=numbers, steps=steps, order=len(numbers) - 1, space=len(x.shape) == 3)
    p.shape = x.shape if p.space else (x.shape[0], 1, x.shape[1])
    return p


# ---------------------------------------------------------------------------------------------- what all rungs share


def make_trips(p: Problem, launch: typing.Any, most: int = 1) -> None:
    """``launch(source, target, steps)`` until all steps are made, with ``most`` at a time.

    The grid goes to and fro between ``out`` and one more array, so that the last trip ends in ``out``.
    """
    trips = -(-p.steps // most)
    out, source = p.result.reshape(p.shape), p.x.reshape(p.shape)
    spare = device.empty(p.shape, np.float32, stream=p.stream) if trips > 1 else out
    for i in range(trips):
        target = spare if (trips - 1 - i) % 2 else out
        launch(source, target, min(most, p.steps - i * most))
        source = target


@cuda.jit(device=True)
def fixed(x, z, y, w, order, space):
    """Whether a cell belongs to the border, which keeps its values."""
    sides = at_end(z, x.shape[0], order) or at_end(w, x.shape[2], order)
    return sides or (space and at_end(y, x.shape[1], order))


# --------------------------------------------------------------------------------------------------- a thread a cell


@functools.lru_cache(maxsize=16)
def basic_for(order: int, space: bool) -> typing.Any:
    """The kernel for an order, in two dimensions or in space (three)."""

    @cuda.jit
    def basic_kernel(x, out, c):
        front, top, left = corner(x, cuda.blockDim.z, cuda.blockDim.y, cuda.blockDim.x)
        z, y, w = front + cuda.threadIdx.z, top + cuda.threadIdx.y, left + cuda.threadIdx.x
        if z < x.shape[0] and y < x.shape[1] and w < x.shape[2]:
            total = x[z, y, w]
            if not fixed(x, z, y, w, order, space):
                total = c[0] * total
                for d in range(1, order + 1):
                    near = x[z - d, y, w] + x[z + d, y, w] + (x[z, y, w - d] + x[z, y, w + d])
                    if space:
                        near += x[z, y - d, w] + x[z, y + d, w]
                    total += c[d] * near
            out[z, y, w] = total

    return basic_kernel


@rung(basic_for)
def basic(p):
    """One thread for each cell reads all that its sum needs from global memory.

    Source: PMPP 4e section 8.2.

    Leaves: a cell is read for its own sum and for those of all its neighbours, 25 times at order 4 in space. The caches
    catch many of these reads, and how many depends on the grid.
    """
    block = (32, 8, 1) if p.space else (32, 1, 8)
    kernel = basic_for(p.order, p.space)
    launch = blocks_of(p.shape, *block[::-1]), block, p.stream
    make_trips(p, lambda source, target, steps: kernel[launch](source, target, p.c))


# ----------------------------------------------------------------------------------------- a tile with halo in shared


@functools.lru_cache(maxsize=16)
def tiled_for(order: int, space: bool) -> typing.Any:
    """The kernel, for blocks of 8 x 8 x 8 cells in space, and of 16 x 32 in two dimensions."""
    deep, tall, wide = (8, 8, 8) if space else (16, 1, 32)
    beside = order if space else 0
    planes, rows, columns = deep + 2 * order, tall + 2 * beside, wide + 2 * order

    @cuda.jit
    def tiled_kernel(x, out, c):
        tile = cuda.shared.array((planes, rows, columns), np.float32)
        front, top, left = corner(x, deep, tall, wide)
        tx, ty, tz = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
        i = (tz * tall + ty) * wide + tx
        while i < planes * rows * columns:
            a, b, e = i // (rows * columns), i // columns % rows, i % columns
            z, y, w = front + a - order, top + b - beside, left + e - order
            # Outside the grid no cell is needed, and none may be read.
            inside = z >= 0 and y >= 0 and w >= 0 and z < x.shape[0] and y < x.shape[1] and w < x.shape[2]
            tile[a, b, e] = x[z, y, w] if inside else np.float32(0)
            i += deep * tall * wide
        cuda.syncthreads()  # the tile is whole before a thread reads it
        z, y, w = front + tz, top + ty, left + tx
        a, b, e = tz + order, ty + beside, tx + order
        if z < x.shape[0] and y < x.shape[1] and w < x.shape[2]:
            total = tile[a, b, e]
            if not fixed(x, z, y, w, order, space):
                total = c[0] * total
                for d in range(1, order + 1):
                    near = tile[a - d, b, e] + tile[a + d, b, e] + (tile[a, b, e - d] + tile[a, b, e + d])
                    if space:
                        near += tile[a, b - d, e] + tile[a, b + d, e]
                    total += c[d] * near
            out[z, y, w] = total

    return tiled_kernel


@rung(tiled_for)
def tiled(p):
    """A block loads its cells and their halo into shared memory once, and all its sums read them there.

    Source: PMPP 4e section 8.3.

    It is slower than `basic` on an H200: the caches have most of what is read again, and to find out where each cell of
    the tile comes from takes more instructions than they save.

    Leaves: in space a block has 8 x 8 x 8 cells, and at order 4 it loads 16 x 16 x 16 for them: eight times as many.
    """
    block = (8, 8, 8) if p.space else (32, 1, 16)
    kernel = tiled_for(p.order, p.space)
    launch = blocks_of(p.shape, *block[::-1]), block, p.stream
    make_trips(p, lambda source, target, steps: kernel[launch](source, target, p.c))


# --------------------------------------------------------------------------------------------- a block walks on planes

DEEP = 64  # planes that a block walks, and in two dimensions rows


@functools.lru_cache(maxsize=16)
def coarsened_for(order: int, space: bool) -> typing.Any:
    """The kernel, for planes of 16 x 32 cells in space, and for rows of 256 in two dimensions."""
    tall, wide = (16, 32) if space else (1, 256)
    beside = order if space else 0
    planes, rows, columns = 2 * order + 1, tall + 2 * beside, wide + 2 * order

    @cuda.jit(device=True)
    def load_plane(x, tile, z, top, left):
        """Put the cells of plane z, with their halo, into their place in the ring."""
        i = cuda.threadIdx.y * wide + cuda.threadIdx.x
        while i < rows * columns:
            b, e = i // columns, i % columns
            y, w = top + b - beside, left + e - order
            inside = z >= 0 and y >= 0 and w >= 0 and z < x.shape[0] and y < x.shape[1] and w < x.shape[2]
            tile[(z + planes) % planes, b, e] = x[z, y, w] if inside else np.float32(0)
            i += tall * wide

    @cuda.jit
    def coarsened_kernel(x, out, c):
        tile = cuda.shared.array((planes, rows, columns), np.float32)  # a ring: plane z has place z % planes
        front, top, left = corner(x, DEEP, tall, wide)
        y, w = top + cuda.threadIdx.y, left + cuda.threadIdx.x
        b, e = cuda.threadIdx.y + beside, cuda.threadIdx.x + order
        for z in range(front - order, front + order):
            load_plane(x, tile, z, top, left)
        for z in range(front, min(front + DEEP, x.shape[0])):
            load_plane(x, tile, z + order, top, left)
            cuda.syncthreads()
            if y < x.shape[1] and w < x.shape[2]:
                a = z % planes
                total = tile[a, b, e]
                if not fixed(x, z, y, w, order, space):
                    total = c[0] * total
                    for d in range(1, order + 1):
                        near = tile[(z + planes - d) % planes, b, e] + tile[(z + d) % planes, b, e]
                        near += tile[a, b, e - d] + tile[a, b, e + d]
                        if space:
                            near += tile[a, b - d, e] + tile[a, b + d, e]
                        total += c[d] * near
                out[z, y, w] = total
            cuda.syncthreads()  # all have read the oldest plane before the next one takes its place

    return coarsened_kernel


@rung(coarsened_for)
def coarsened(p):
    """A block walks along the first axis and keeps 2 R + 1 planes in shared memory: each new plane is loaded once.

    Source: PMPP 4e section 8.4.

    On an H200 it is faster than `tiled` in space at order 4 and in two dimensions at order 1. In space at order 1 and
    in two dimensions at order 4 it is slower.

    Leaves: neighbours along the walk are in shared memory, though only one thread needs them; and a thread moves 4
    bytes at a time and waits for each new plane.
    """
    block = (32, 16) if p.space else (256, 1)
    kernel = coarsened_for(p.order, p.space)
    launch = blocks_of(p.shape, DEEP, *block[::-1]), block, p.stream
    make_trips(p, lambda source, target, steps: kernel[launch](source, target, p.c))


# ------------------------------------------------------------------------------------------ planes kept in registers


@functools.lru_cache(maxsize=32)
def register_tiled_for(order: int, space: bool, aligned: bool) -> typing.Any:
    """The kernel, for planes of 32 x 64 cells in space, and for rows of 1024 in two dimensions."""
    tall, lanes = (32, 16) if space else (1, 256)  # threads of a block; each has four cells of a row
    beside, wide, planes = order if space else 0, 4 * lanes, 2 * order + 1
    pitch = wide + 8  # of a row in shared memory: a vector of halo on either side
    size = (tall + 2 * beside) * pitch
    sides = 2 * tall
    edges = sides + 2 * beside * lanes  # vectors of halo, at most one a thread
    both, cells = 2 * size, 4 * planes
    load_four, store_four = vectors_for(aligned)

    @cuda.jit
    def register_tiled_kernel(x, out, c):
        shared = cuda.shared.array(both, np.float32, alignment=16)  # this plane, and room for the next one
        walk = cuda.local.array(cells, np.float32)  # in registers: this thread's cells on 2 R + 1 planes
        row, total = cuda.local.array(12, np.float32), cuda.local.array(4, np.float32)
        tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
        front, top, left = corner(x, DEEP, tall, wide)
        y, w = top + ty, left + 4 * tx
        mine = (ty + beside) * pitch + 4 + 4 * tx
        # Where the vector of halo is that this thread loads: beside the tile, or above or below it.
        thread = ty * lanes + tx
        edge_y, edge_w = thread // 2, wide if thread % 2 else -4
        if thread >= sides:
            line = (thread - sides) // lanes
            edge_y, edge_w = line - beside if line < beside else line - beside + tall, 4 * tx
        edge_at = (edge_y + beside) * pitch + 4 + edge_w
        edge_y, edge_w = top + edge_y, left + edge_w
        for k in range(2 * order):
            put(walk, 4 * k + 4, load_four(x, front - order + k, y, w))
        ahead = load_four(x, front + order, y, w)
        edge = load_four(x, front, edge_y, edge_w) if thread < edges else ahead
        here = np.int64(0)
        for z in range(front, min(front + DEEP, x.shape[0])):
            for k in range(8 * order):
                walk[k] = walk[k + 4]
            put(walk, 8 * order, ahead)
            own = walk[4 * order], walk[4 * order + 1], walk[4 * order + 2], walk[4 * order + 3]
            store128(shared, here + mine, own)
            if thread < edges:
                store128(shared, here + edge_at, edge)
                edge = load_four(x, z + 1, edge_y, edge_w)  # for the next plane: it comes while this one is computed
            ahead = load_four(x, z + 1 + order, y, w)
            cuda.syncthreads()
            put(row, 0, load128(shared, here + mine - 4))
            put(row, 4, own)
            put(row, 8, load128(shared, here + mine + 4))
            for j in range(4):
                total[j] = c[0] * row[4 + j]
            for d in range(1, order + 1):
                up = down = own
                if space:
                    up, down = load128(shared, here + mine - d * pitch), load128(shared, here + mine + d * pitch)
                for j in range(4):
                    near = walk[4 * (order - d) + j] + walk[4 * (order + d) + j] + (row[4 + j - d] + row[4 + j + d])
                    if space:
                        near += up[j] + down[j]
                    total[j] += c[d] * near
            for j in range(4):
                if fixed(x, z, y, w + j, order, space):
                    total[j] = row[4 + j]
            if y < x.shape[1] and w < x.shape[2]:
                store_four(out, z, y, w, total)
            here = size - here  # two places take turns, so that one barrier a plane is enough

    return register_tiled_kernel


@rung(register_tiled_for)
def register_tiled(p):
    """A thread keeps its own cells of 2 R + 1 planes in registers; only the plane of the sum is in shared memory.

    A thread has four cells of a row, which it moves 128 bits at a time, and loads them a plane before they are needed.
    If rows do not begin at multiples of 16 bytes, it moves single cells.

    Source: PMPP 4e section 8.5; Micikevicius, "3D finite difference computation on GPUs using CUDA" (2009).

    Leaves: between two barriers a block asks memory for one plane or row, and then waits for it: too few bytes are
    under way. Of its instructions in space, at order 4, many only move planes from register to register, or count.
    """
    aligned = is_aligned(p.x, p.result)

    def launch(source: typing.Any, target: typing.Any, steps: int) -> None:
        block = (16, 32) if p.space else (256, 1)
        kernel = register_tiled_for(p.order, p.space, aligned)
        kernel[blocks_of(p.shape, DEEP, block[1], 4 * block[0]), block, p.stream](source, target, p.c)

    make_trips(p, launch)


# ---------------------------------------------------------------------------------------------- more bytes under way

PATCH, THREADS = 4, 128  # in two dimensions: rows of a thread; threads of a block


@functools.lru_cache(maxsize=8)
def patch_for(order: int, aligned: bool) -> typing.Any:
    """The kernel for two dimensions: a thread has four rows of four cells, and asks for all that it needs at once."""
    lines = PATCH + 2 * order
    held, ends = 4 * lines, 4 * PATCH
    load_four, store_four = vectors_for(aligned)

    @cuda.jit(device=True)
    def load(x, z, w):
        """Four cells of a row. Where they are outside the grid no sum needs them, and the nearest ones will do."""
        z = min(max(z, 0), x.shape[0] - 1)
        if aligned:
            return load128(x, z * x.shape[2] + min(max(w, 0), x.shape[2] - 4))
        return load_four(x, z, 0, w)

    @cuda.jit
    def patch_kernel(x, out, c):
        cells = cuda.local.array(held, np.float32)  # in registers: the rows, and R more above and below
        end = cuda.local.array(ends, np.float32)  # four cells of each row beside those of the first or the last lane
        row, total = cuda.local.array(12, np.float32), cuda.local.array(4, np.float32)
        lane, last = np.int64(cuda.threadIdx.x), cuda.blockDim.x - 1
        front, _, left = corner(x, PATCH * cuda.blockDim.y, 1, 4 * cuda.blockDim.x)
        z, w = front + PATCH * cuda.threadIdx.y, left + 4 * lane
        for k in range(lines):
            put(cells, 4 * k, load(x, z - order + k, w))
        beyond = -4 if lane == 0 else 4 if lane == last else 0
        if beyond:
            for k in range(PATCH):
                put(end, 4 * k, load(x, z + k, w + beyond))
        n, width = x.shape[0], x.shape[2]
        at_side = (
            at_end(w, width, order),
            at_end(w + 1, width, order),
            at_end(w + 2, width, order),
            at_end(w + 3, width, order),
        )
        for k in range(PATCH):
            for j in range(4):
                own = cells[4 * (order + k) + j]
                row[4 + j] = own
                if j >= 4 - order:
                    row[j] = cuda.shfl_up_sync(FULL_WARP, own, 1)  # the lane before has the four columns before
                    if lane == 0:
                        row[j] = end[4 * k + j]
                if j < order:
                    row[8 + j] = cuda.shfl_down_sync(FULL_WARP, own, 1)
                    if lane == last:
                        row[8 + j] = end[4 * k + j]
            at_top = at_end(z + k, n, order)
            for j in range(4):
                total[j] = c[0] * row[4 + j]
                for d in range(1, order + 1):
                    near = cells[4 * (order + k - d) + j] + cells[4 * (order + k + d) + j]
                    total[j] += c[d] * (near + (row[4 + j - d] + row[4 + j + d]))
                if at_top or at_side[j]:
                    total[j] = row[4 + j]
            if z + k < n and w < width:
                store_four(out, z + k, 0, w, total)

    return patch_kernel


@rung(patch_for, walk_for, register_tiled_for)
def in_flight(p):
    """Many loads are under way before the first one is needed, and fewer instructions go beside the sums.

    In two dimensions there is no walk and no barrier. A thread asks for 4 rows of four cells and R rows above and below
    at once; blocks lie side by side in memory as they lie in the grid, and rows that two of them need are in the cache.
    Cells of the same row come from the lanes next door.

    In space the walk stays. Copies into shared memory are asked for four planes ahead, and pass no register. The loop
    makes ten planes a turn, as many as there are in shared memory, so that each has its fixed place there and in
    registers. Two planes share a barrier. Each multiprocessor has a single block: with more and smaller ones, less of
    the halo that two of them share is in the cache when the second one asks. If rows do not begin at multiples of 16
    bytes, if all planes are border, and on a GPU without asynchronous copies (before compute capability 8.0) or without
    shared memory for ten planes, this is `register_tiled`.

    Source: PMPP 4e section 6.5; CUDA C++ programming guide, "Asynchronous data copies".

    Leaves: each step reads the whole grid from memory and writes it back, though the next step wants the same cells.
    """
    launch_steps(p, 1)


def launch_steps(p: Problem, most: int) -> None:
    """All steps of a problem, ``most`` at a time: by `temporal_for`, or one by one by the kernels of `in_flight`."""
    aligned = is_aligned(p.x, p.result)
    inner = p.shape[0] - 2 * p.order  # planes
    if p.space and not (aligned and inner > 0 and can_walk(p.order)):
        register_tiled.launch(p)
        return

    def launch(source: typing.Any, target: typing.Any, steps: int) -> None:
        if p.space:
            deep = walk_planes(p.shape, p.order)
            grid, block = blocks_of((inner, *p.shape[1:]), deep, TALL, 4 * LANES), (LANES, TALL)
            walk_for(p.order)[grid, block, p.stream, walk_bytes(p.order)](source, target, p.c, deep)
        elif steps == 1:
            lanes = 32 if p.shape[2] > 64 else 16
            tall = THREADS // lanes
            patch = patch_for(p.order, aligned)
            patch[blocks_of(p.shape, tall * PATCH, 1, 4 * lanes), (lanes, tall), p.stream](source, target, p.c)
        else:
            kernel = temporal_for(p.order, steps, aligned)
            wide = WARPS * useful_columns(p.order, steps)
            kernel[blocks_of(p.shape, DEEP, 1, wide), (32, WARPS), p.stream](source, target, p.c)

    make_trips(p, launch, most)


# --------------------------------------------------------------------------------------------- several steps at a time

WARPS = 4  # of a block
MOST = {1: 6, 2: 4, 3: 2, 4: 2}  # steps that a trip makes, by the order; with more, registers run out


def useful_columns(order: int, steps: int) -> int:
    """Of the 128 columns that a warp loads, how many have their right value after all steps."""
    return 128 - 2 * round_up(order * steps, 4)


@functools.lru_cache(maxsize=32)
def stage_for(order: int) -> typing.Any:
    """A step of four cells a lane: a row comes in, and the row ``order`` before it comes out."""

    @cuda.jit(device=True)
    def stage(queue, first, line, c, at_top, at_side):
        """Put ``line`` at the end of the queue, and make the step of the row in its middle, which replaces ``line``."""
        row = cuda.local.array(12, np.float32)
        for k in range(8 * order):
            queue[first + k] = queue[first + k + 4]
        for j in range(4):
            queue[first + 8 * order + j] = line[j]
        for j in range(4):
            own = queue[first + 4 * order + j]
            row[4 + j] = own
            if j >= 4 - order:
                row[j] = cuda.shfl_up_sync(FULL_WARP, own, 1)  # the lane before has the four columns before
            if j < order:
                row[8 + j] = cuda.shfl_down_sync(FULL_WARP, own, 1)
        for j in range(4):
            total = c[0] * row[4 + j]
            for d in range(1, order + 1):
                near = queue[first + 4 * (order - d) + j] + queue[first + 4 * (order + d) + j]
                total += c[d] * (near + (row[4 + j - d] + row[4 + j + d]))
            line[j] = row[4 + j] if at_top or at_side[j] else total

    return stage


@functools.lru_cache(maxsize=64)
def temporal_for(order: int, steps: int, aligned: bool) -> typing.Any:
    """The kernel that makes ``steps`` steps in two dimensions."""
    halo, useful = round_up(order * steps, 4), useful_columns(order, steps)
    queue = 4 * (2 * order + 1)
    queued = steps * queue
    load_four, store_four = vectors_for(aligned)
    stage = stage_for(order)

    @cuda.jit
    def temporal_kernel(x, out, c):
        queues = cuda.local.array(queued, np.float32)  # in registers: 2 R + 1 rows before each step
        line = cuda.local.array(4, np.float32)
        front, _, left = corner(x, DEEP, 1, WARPS * useful)
        lane = np.int64(cuda.threadIdx.x)
        w = left + cuda.threadIdx.y * useful - halo + 4 * lane
        n, end = x.shape[0], x.shape[2]
        at_side = (
            at_end(w, end, order),
            at_end(w + 1, end, order),
            at_end(w + 2, end, order),
            at_end(w + 3, end, order),
        )
        writes = 4 * lane >= halo and 4 * lane < 128 - halo and w < end
        for k in range(queued):
            queues[k] = 0
        last = min(front + DEEP, n)
        ahead = load_four(x, front - order * steps, 0, w)
        for z in range(front - order * steps, last + order * steps):
            put(line, 0, ahead)
            ahead = load_four(x, z + 1, 0, w)
            for t in range(steps):
                # After t + 1 steps the newest row is this many rows behind.
                stage(queues, t * queue, line, c, at_end(z - (t + 1) * order, n, order), at_side)
            done = z - order * steps
            if writes and done >= front:
                store_four(out, done, 0, w, line)

    return temporal_kernel


@rung(temporal_for, patch_for, walk_for, register_tiled_for)
def temporal(p):
    """Six steps at order 1, four at 2, two above, while the rows are on the chip: each step is a few rows behind.

    A warp loads 128 columns and walks down the rows. The first step has the row that has just come; the second one has
    the results of the first, R rows behind it. Neighbours in a row come from other lanes by shuffles. After each step R
    more columns on either side lack a neighbour, so that a warp writes fewer columns than it loads. A grid of three
    dimensions, and a single step, are left to `in_flight`.

    Source: Nguyen et al., "3.5-D blocking optimization for stencil computations on modern CPUs and GPUs" (2010).
    """
    launch_steps(p, 1 if p.space or p.steps == 1 else MOST[p.order])


LADDER = (basic, tiled, coarsened, register_tiled, in_flight, temporal)
