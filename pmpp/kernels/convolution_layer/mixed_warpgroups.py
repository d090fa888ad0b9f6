"""Convolution layers of 16 bits by warpgroups, and their gradients, where there are enough pixels.

The product of `pmpp.kernels.convolution_layer.mixed`, the other way round: pixels are the rows of the result, and
filters its columns. For wgmma wants the first operand with the numbers of a sum side by side, as the channels of a
pixel lie, and takes the second one with its columns side by side, for which weights are brought into that order.
Pixels are gathered as there, 64 numbers of the sum at a time, and multiplied as in
`pmpp.kernels.matmul.mixed_warpgroups`. A lane has two pixels of many filters, so it stores its results one by one: the
eight lanes of neighbouring pixels write 16 bytes together.

Source: PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate instructions"; CUTLASS, "Implicit GEMM
convolution".
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.common.division import divisor, quotient
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.gradient_classes import classes_of, covers
from pmpp.kernels.convolution_layer.mixed_places import (
    BLOCK,
    LOADS,
    Places,
    Product,
    begin_walk,
    copy_chunk,
    copy_met,
    far_of,
    pixel_of,
    walk_of,
    walk_on,
)
from pmpp.kernels.matmul.mixed_tiles import copier, fragment_storer
from pmpp.kernels.matmul.mixed_warpgroups import (
    DEPTH,
    PRODUCTS,
    RESIDENT,
    ROWS,
    SIDE,
    STAGES,
    THREADS,
    panel_place,
    row_storer,
)
from pmpp.kernels.matmul.tensor_cores import CHUNK, GROUP, KERNELS, WARP, order_of_tiles, swizzled_place
from pmpp.runtime import device
from pmpp.runtime.hopper import copies_visible, tile_descriptor, wgmma_commit, wgmma_fence, wgmma_wait
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import widened

CAPABILITY = (9, 0)  # of the only GPUs that have wgmma
SIDES = 128, 64  # filters of a tile; it has SIDE pixels
TURN, TURN_PITCH = 32, 33  # of the squares of weights that are turned
f0 = np.float32(0)


class Target(typing.NamedTuple):
    """Which pixels of an image the places are: from (first_row, first_column) on, every step_row-th and step_column-th.

    ``pixels``, ``columns``: of an image.
    """

    pixels: int
    columns: int
    first_row: int
    first_column: int
    step_row: int
    step_column: int


class Turn(typing.NamedTuple):
    """Of weights: ``rows`` filters or channels, ``terms`` of the others, for which there is room for ``depth``.

    ``window``: the places of a kernel. ``pitch``: the room for rows. The rest divides by pitch, by depth and by window.
    """

    rows: int
    terms: int
    window: int
    depth: int
    pitch: int
    pitch_times: int
    pitch_shift: int
    depth_times: int
    depth_shift: int
    window_times: int
    window_shift: int
    whole: int  # places of a kernel in w, of which these are ``first`` and so on, with ``across`` in a row
    first: int
    across: int
    row_step: int
    column_step: int


@cuda.jit
def turned_channels_kernel(w, out, t):
    """A row for each (r, s) and filter, and in it the channels: in w these lie ``window`` apart."""
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < out.size:
        other = quotient(i, t.pitch_times, t.pitch_shift)
        place = quotient(other, t.depth_times, t.depth_shift)
        row, term, down = i - other * t.pitch, other - place * t.depth, place // t.across
        inside = row < t.rows and term < t.terms
        place = t.first + down * t.row_step + (place - down * t.across) * t.column_step
        out[i] = w[(term * t.rows + row) * t.whole + place] if inside else np.uint16(0)


@cuda.jit
def turned_filters_kernel(w, out, t):
    """A row for each (r, s) and channel, and in it the filters, far from each other in w. A block turns a square."""
    square = cuda.shared.array((TURN, TURN_PITCH), np.uint16)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    across = (t.pitch + TURN - 1) // TURN
    line, row = np.int64(cuda.blockIdx.x) // across * TURN, np.int64(cuda.blockIdx.x) % across * TURN
    for i in range(ty, TURN, BLOCK // TURN):
        inside = row + i < t.rows and line + tx < t.terms * t.window
        square[i, tx] = w[(row + i) * t.terms * t.window + line + tx] if inside else np.uint16(0)
    cuda.syncthreads()
    for i in range(ty, TURN, BLOCK // TURN):
        term = quotient(line + i, t.window_times, t.window_shift)
        place = line + i - term * t.window
        if term < t.depth and row + tx < t.pitch:
            out[(place * t.depth + term) * t.pitch + row + tx] = square[tx, i]


@functools.cache
def column_storer(registers: int, biased: bool) -> typing.Any:
    """A device function that stores so many sums of each lane: two pixels of many filters. Halves, until 4 are left."""
    half, middle, columns = None if registers == 4 else column_storer(registers // 2, biased), registers // 2, registers

    @cuda.jit(device=True)
    def one(c, at, inside, column, value, bias, n, apart):
        if inside and column < n:
            if biased:
                value += widened(bias[column])
            c[at + column * apart] = value

    @cuda.jit(device=True)
    def four(c, at, inside, column, sums, bias, n, apart):
        one(c, at[0], inside[0], column, sums[0], bias, n, apart)
        one(c, at[0], inside[0], column + 1, sums[1], bias, n, apart)
        one(c, at[1], inside[1], column, sums[2], bias, n, apart)
        one(c, at[1], inside[1], column + 1, sums[3], bias, n, apart)

    @cuda.jit(device=True)
    def both(c, at, inside, column, sums, bias, n, apart):
        half(c, at, inside, column, sums[:middle], bias, n, apart)
        half(c, at, inside, column + columns, sums[middle:], bias, n, apart)

    return four if half is None else both


@functools.lru_cache(KERNELS)
def kernel_for(side: int, kind: str, biased: bool) -> typing.Any:
    """The kernel ``(x, w, bias, c, s, g, t)``, a block for each SIDE pixels and ``side`` filters: `gathered_kernel`."""
    wgmma, place = PRODUCTS[kind], swizzled_place(DEPTH // CHUNK)
    first_b, copy_b = copier(DEPTH, side // CHUNK, THREADS, panel_place, 64)
    width, lines, b_lines = np.uint32(DEPTH // CHUNK), THREADS * CHUNK // DEPTH, THREADS * CHUNK // side
    stage_size, a_size = np.uint32((SIDE + side) * DEPTH), np.uint32(SIDE * DEPTH)
    further, panel, nothing = np.uint32(lines * DEPTH), DEPTH * 64 if side > 64 else 0, (f0,) * (side // 2)
    end_stage, along, down = np.uint32(STAGES * (SIDE + side) * DEPTH), np.uint32(16), np.uint32(16 * 64)
    ahead, pending, store, tile_of = STAGES - 1, STAGES - 2, column_storer(side // 2, biased), order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def state_of(row, s, g):
        """Of a row: its image's first pixel, or -1 beyond the last one, and what `far_of` says of its place."""
        image = row // s.pixels
        first = np.int32(image * g.rows * g.columns) if row < s.m else np.int32(-1)
        return first, far_of(row - image * s.pixels, g)

    @cuda.jit(device=True)
    def target_of(row, s, g, t):
        """Where the first filter's result of a row lies."""
        image = quotient(row, s.pixels_times, s.pixels_shift)
        place = row - image * s.pixels
        p = quotient(place, g.across_times, g.across_shift)
        down, along = t.first_row + p * t.step_row, t.first_column + (place - p * g.across) * t.step_column
        return image * s.channels * t.pixels + down * t.columns + along

    @cuda.jit(device=True)
    def copy_a(shared, begin, x, images, fars, k, s, g):
        """Begin to copy a chunk for each of this thread's rows: the one at ``k`` of the sum."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        k = np.int32(k + np.int32(chunk * np.uint32(CHUNK)))
        window = quotient(k, g.depth_times, g.depth_shift)
        r = quotient(window, g.kernel_times, g.kernel_shift)
        column = np.int32(window - r * g.kernel)
        within = np.int32(k - window * g.depth) if k < s.k else np.int32(-1)
        to = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
        copy_chunk(shared, to, x, images[0], pixel_of(fars[0], r, column, g, False), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[1], pixel_of(fars[1], r, column, g, False), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[2], pixel_of(fars[2], r, column, g, False), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[3], pixel_of(fars[3], r, column, g, False), within, g)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, sums):
        """Start to add the products of a stage to the sums of this warpgroup, whose rows of A begin at ``row``."""
        a, b = np.uint32(begin + row * np.uint32(DEPTH)), np.uint32(begin + a_size)
        wgmma_fence()
        sums = wgmma(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * down, panel), sums)
        wgmma_commit()
        return sums

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def gathered_warpgroups_kernel(x, w, bias, c, s, g, t):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        block, pitch = np.int64(cuda.blockIdx.x), s.c_pitch
        tile_m, tile_n = tile_of(block, (s.m + SIDE - 1) // SIDE, (s.n + side - 1) // side)
        first_row, first_column = tile_m * SIDE, tile_n * side
        thread = np.uint32(cuda.threadIdx.x)
        warp, lane = np.uint32(thread // np.uint32(WARP)), np.uint32(thread % np.uint32(WARP))
        mine = np.uint32(warp // 4 * np.uint32(ROWS))
        b_left, b_step = np.int32(min(pitch - first_column, np.int64(side))), b_lines * pitch
        b_at, b_more = first_b(np.int64(0), np.int64(0), first_column, pitch), DEPTH * pitch
        row = first_row + thread // width
        one, two = state_of(row, s, g), state_of(row + lines, s, g)
        three, four = state_of(row + 2 * lines, s, g), state_of(row + 3 * lines, s, g)
        images, fars = (one[0], two[0], three[0], four[0]), (one[1], two[1], three[1], four[1])
        coming, end = np.int32(0), np.int32(s.k)
        for stage in range(ahead):
            begin = np.uint32(np.uint32(stage) * stage_size)
            copy_a(shared, begin, x, images, fars, coming, s, g)
            copy_b(shared, np.uint32(begin + a_size), w, b_at, b_step, np.int32(min(end - coming, DEPTH)), b_left)
            commit_copies()
            coming, b_at = np.int32(coming + DEPTH), b_at + b_more
        sums, now, k0 = nothing, np.uint32(0), np.int32(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k0 < end:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            copies_visible()  # for the tensor cores as well,
            cuda.syncthreads()  # and of all; and everyone has waited for products of the tiles that are overwritten
            sums = multiply(shared, now, mine, sums)
            copy_a(shared, into, x, images, fars, coming, s, g)
            copy_b(shared, np.uint32(into + a_size), w, b_at, b_step, np.int32(min(end - coming, DEPTH)), b_left)
            commit_copies()
            sums = wgmma_wait(0, sums)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, coming, b_at = np.int32(k0 + DEPTH), np.int32(coming + DEPTH), b_at + b_more
        row = first_row + np.int64(mine + warp % 4 * np.uint32(16) + lane // 4)
        inside, at = (row < s.m, row + 8 < s.m), (target_of(row, s, g, t), target_of(row + 8, s, g, t))
        store(c, at, inside, first_column + np.int64(lane % 4 * 2), sums, bias, s.n, t.pixels)

    return gathered_warpgroups_kernel


@functools.lru_cache(KERNELS)
def correlated_kernel(kind: str) -> typing.Any:
    """The kernel ``(dy, x, sums, s, g, walk)`` of the gradient by weights: filters times (r, s, c), summed over pixels.

    dy is taken as it lies. There the pixels of a filter are side by side, as wgmma wants the numbers of a sum.
    """
    wgmma, place = PRODUCTS[kind], swizzled_place(DEPTH // CHUNK)
    store = row_storer(SIDE // 2, fragment_storer(False, True, False))
    width, lines = np.uint32(DEPTH // CHUNK), THREADS * CHUNK // DEPTH
    b_width, b_lines = np.uint32(SIDE // CHUNK), THREADS * CHUNK // SIDE
    further, b_further, panel = np.uint32(lines * DEPTH), np.uint32(b_lines * 64), DEPTH * 64
    stage_size, a_size, end_stage = (
        np.uint32(2 * SIDE * DEPTH),
        np.uint32(SIDE * DEPTH),
        np.uint32(STAGES * 2 * SIDE * DEPTH),
    )
    along, down, nothing = np.uint32(16), np.uint32(16 * 64), (f0,) * (SIDE // 2)
    ahead, pending, tile_of = STAGES - 1, STAGES - 2, order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def copy_filter(shared, to, dy, at, filter_, pixel, end, s):
        inside = filter_ < s.m and pixel < end
        copy_async(shared, np.uint32(to), dy, at if inside else np.int64(0), np.int32(CHUNK if inside else 0))

    @cuda.jit(device=True)
    def copy_a(shared, begin, dy, first_row, pixel, end, s):
        """Begin to copy eight pixels of each of four filters."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        pixel = np.int32(pixel + np.int32(chunk * np.uint32(CHUNK)))
        image = quotient(pixel, s.pixels_times, s.pixels_shift)
        filter_, step = first_row + line, lines * s.pixels
        at = (image * s.m + filter_) * s.pixels + (pixel - image * np.int32(s.pixels))
        to = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
        copy_filter(shared, to, dy, at, filter_, pixel, end, s)
        to = np.uint32(to + further)
        copy_filter(shared, to, dy, at + step, filter_ + lines, pixel, end, s)
        to = np.uint32(to + further)
        copy_filter(shared, to, dy, at + 2 * step, filter_ + 2 * lines, pixel, end, s)
        to = np.uint32(to + further)
        copy_filter(shared, to, dy, at + 3 * step, filter_ + 3 * lines, pixel, end, s)

    @cuda.jit(device=True)
    def copy_b(shared, begin, x, state, ends, within, g, walk):
        """Begin to copy the chunks that (r, s) meets at four pixels. Returns the state at the next one."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // b_width), np.uint32(thread % b_width)
        to = np.uint32(begin + panel_place(line, chunk) * np.uint32(CHUNK))
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + b_further)
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + b_further)
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + b_further)
        copy_met(shared, to, x, state, within, g)
        return walk_on(state, ends, walk)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, sums):
        """As in `kernel_for`."""
        a, b = np.uint32(begin + row * np.uint32(DEPTH)), np.uint32(begin + a_size)
        wgmma_fence()
        sums = wgmma(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * down, panel), sums)
        wgmma_commit()
        return sums

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def correlated_warpgroups_kernel(dy, x, sums_out, s, g, walk):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        tiles_m, tiles_n = (s.m + SIDE - 1) // SIDE, (s.n + SIDE - 1) // SIDE
        block = np.int64(cuda.blockIdx.x)
        part, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first_row, first_column = tile_m * SIDE, tile_n * SIDE
        thread = np.uint32(cuda.threadIdx.x)
        warp = np.uint32(thread // np.uint32(WARP))
        mine = np.uint32(warp // 4 * np.uint32(ROWS))
        # Which row and column of the kernel, and which channels, this thread's chunks of x belong to.
        own = first_column + np.int64(thread % b_width * np.uint32(CHUNK))
        window = np.int32(own // g.depth)
        r = np.int32(window // g.kernel)
        across = np.int32(window - r * g.kernel)
        within = np.int32(own - window * g.depth) if own < s.n else np.int32(-1)
        coming = np.int32(part * s.length)
        end = np.int32(min(part * s.length + s.length, s.k))
        k0 = coming
        state, ends = begin_walk(np.int32(coming + np.int32(thread // b_width)), end, r, across, s, g)
        for stage in range(ahead):
            begin = np.uint32(np.uint32(stage) * stage_size)
            copy_a(shared, begin, dy, first_row, coming, end, s)
            state = copy_b(shared, np.uint32(begin + a_size), x, state, ends, within, g, walk)
            commit_copies()
            coming = np.int32(coming + DEPTH)
        sums, now, into = nothing, np.uint32(0), np.uint32(np.uint32(ahead) * stage_size)
        while k0 < end:
            wait_copies(pending)  # as in `kernel_for`
            copies_visible()
            cuda.syncthreads()
            sums = multiply(shared, now, mine, sums)
            copy_a(shared, into, dy, first_row, coming, end, s)
            state = copy_b(shared, np.uint32(into + a_size), x, state, ends, within, g, walk)
            commit_copies()
            sums = wgmma_wait(0, sums)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, coming = np.int32(k0 + DEPTH), np.int32(coming + DEPTH)
        row = first_row + np.int64(mine + warp % 4 * np.uint32(16))
        store(sums_out, part * s.m * s.n, row, first_column, sums, sums_out, np.float32(1), s)

    return correlated_warpgroups_kernel


def correlated(dy, x, sums, a: Layer, g: Places, n: int, parts: int, length: int, stream) -> None:
    """Launch the kernel on dy as it lies, and on x with its channels last, for parts of so many pixels."""
    pixels = a.p * a.q
    by = divisor(pixels, a.n * pixels + STAGES * DEPTH)
    s = Product(*map(np.int64, (a.k, n, a.n * pixels, pixels, a.k, n, length, *by)))
    grid = parts * blocks(a.k, SIDE) * blocks(n, SIDE)
    nbytes = 2 * STAGES * 2 * SIDE * DEPTH
    flat = dy.reshape(-1).view(np.uint16)
    walk = walk_of(THREADS * CHUNK // SIDE, a)
    correlated_kernel(dy.dtype.name)[grid, THREADS, stream, nbytes](flat, x, sums, s, g, walk)


def side_for(pixels: int, filters: int, multiprocessors: int) -> int | None:
    """The filters of a tile for which few multiprocessors are without one; None if there are too few of either.

    >>> side_for(2**17, 64, 132), side_for(2**17, 128, 132), side_for(2048, 512, 132), side_for(512, 64, 132)
    (64, 128, 64, None)
    """
    for side in SIDES:
        if filters > side // 2 and 10 * blocks(pixels, SIDE) * blocks(filters, side) >= 9 * multiprocessors:
            return side
    return None


def turned(w, rows: int, terms: int, depth: int, taps: Taps, by_filters: bool, stream) -> tuple[typing.Any, int]:
    """Weights with ``rows`` filters, or channels, side by side, and the room for them."""
    window, pitch = taps.count, round_up(rows, CHUNK)
    made = device.empty((window * depth * pitch,), np.uint16, stream=stream)
    by = (divisor(d, made.size) for d in (pitch, depth, window))
    given = rows, terms, window, depth, pitch, *(x for pair in by for x in pair), w.size // (rows * terms), *taps[1:]
    t = Turn(*map(np.int64, given))
    flat = w.reshape(-1).view(np.uint16)
    if by_filters:
        grid = blocks(depth * window, TURN) * blocks(pitch, TURN)
        turned_filters_kernel[grid, (TURN, BLOCK // TURN), stream](flat, made, t)
    else:
        turned_channels_kernel[blocks(made.size, BLOCK), BLOCK, stream](flat, made, t)
    return made, pitch


class Taps(typing.NamedTuple):
    """Places of a kernel: how many, the first one, how many in a row, and the steps to the next row and column."""

    count: int
    first: int
    across: int
    row_step: int
    column_step: int


def gathered(w, x, bias, out, g: Places, side: int, rows: int, terms: int, by_filters: bool, stream) -> None:
    """All pixels of ``out``. ``rows``: filters, or else channels; so many ``terms`` of the others make a sum."""
    pixels, window = int(np.prod(out.shape[2:])), w.size // (rows * terms)
    across = int(g.kernel)
    taps, target = Taps(window, 0, across, across, 1), Target(pixels, out.shape[3], 0, 0, 1, 1)
    gathered_at(w, x, bias, out, g, taps, target, side, rows, terms, by_filters, stream)


def by_classes(dy, w, out, a: Layer, places: typing.Callable, stream) -> None:
    """A gradient by the input, class by class: pixels between which the strides lie use the same weights.

    ``dy`` has its channels last, and ``places`` makes `Places`. What no weight reaches becomes 0.
    """
    if not covers(a):
        flat = out.reshape(-1).view(np.uint16)
        zero_kernel[blocks(flat.size, BLOCK), BLOCK, stream](flat)
    multiprocessors = device.limits()["multiprocessors"]
    for down, along in classes_of(a):
        first = down.begin + (down.taps - 1) * down.apart, along.begin + (along.taps - 1) * along.apart
        g = places(first, (-down.apart, -along.apart), (down.count, along.count), (down.taps, along.taps))
        taps = Taps(down.taps * along.taps, down.first * a.s + along.first, along.taps, down.step * a.s, along.step)
        target = Target(a.h * a.w, a.w, down.start, along.start, a.stride.rows, a.stride.columns)
        side = side_for(a.n * down.count * along.count, a.c, multiprocessors) or SIDES[-1]
        gathered_at(w, dy, None, out, g, taps, target, side, a.c, a.k, False, stream)


@cuda.jit
def zero_kernel(out):
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < out.size:
        out[i] = np.uint16(0)


def gathered_at(
    w, x, bias, out, g: Places, taps: Taps, target: Target, side: int, rows: int, terms: int, by_filters: bool, stream
) -> None:
    """Launch the kernel for the places of g, with these taps."""
    n, channels = out.shape[:2]
    pixels, window, depth = int(g.down) * int(g.across), taps.count, int(g.depth)
    weights, pitch = turned(w, rows, terms, depth, taps, by_filters, stream)
    by = divisor(pixels, n * pixels + SIDE)
    s = Product(*map(np.int64, (n * pixels, rows, window * depth, pixels, channels, pitch, 0, *by)))
    kernel, flat = kernel_for(side, out.dtype.name, bias is not None), out.reshape(-1)
    grid = blocks(n * pixels, SIDE) * blocks(rows, side)
    nbytes = 2 * STAGES * (SIDE + side) * DEPTH
    t = Target(*map(np.int64, target))
    kernel[grid, THREADS, stream, nbytes](x, weights, flat if bias is None else bias, flat, s, g, t)


if SIDE * DEPTH != LOADS * THREADS * CHUNK:
    raise ValueError("each thread must copy four chunks of a tile of pixels")
