"""Depthwise and grouped convolution: layers whose channels hardly meet, which are bound by memory.

Chapter: notebooks/71_depthwise_convolution.ipynb.  PMPP 4e ch. 7 and 16.

In a depthwise layer every channel has a filter of its own, and an output is a sum over one window of one channel. With
K filters an ordinary layer does K / G times as much arithmetic as one of G groups, and moves hardly more bytes. So an
ordinary layer is bound by arithmetic, and a depthwise one by memory: its time is that of reading x and writing the
output once. A kernel misses it by asking the first-level cache for each element once for each tap, and by spending
more instructions on where an element is than on the product.

The rungs take every layer of `pmpp.kernels.convolution_layer.definition.arguments`. What a rung is not made for it
hands to the one before.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks, round_up
from pmpp.kernels.convolution_layer import definition, direct
from pmpp.kernels.convolution_layer.definition import Layer, Pair, Problem, finish
from pmpp.kernels.convolution_layer.direct_tiles import f0, numbers_of
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128, store128

BLOCK = 128  # threads a block, where nothing else decides
u32, i32 = np.uint32, np.int32

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small layers of one and of few channels a group, at the edges of strips, of vectors and of packs of planes."""
    rng = np.random.default_rng(71) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, x: tuple, w: tuple, *options: typing.Any, bias: bool = False) -> None:
        values = rng.standard_normal(x, dtype=np.float32), rng.standard_normal(w, dtype=np.float32)
        made[name] = *values, rng.standard_normal(w[0], dtype=np.float32) if bias else None, *options

    add("one", (1, 1, 1, 1), (1, 1, 1, 1))
    add("3x3 p1, whole vectors", (1, 2, 9, 8), (2, 1, 3, 3), 1, 1, 1, 2)
    add("3x3 p1, bias, ReLU", (2, 3, 8, 7), (3, 1, 3, 3), 1, 1, 1, 3, True, bias=True)
    add("3x3 s2 p1, whole vectors", (1, 2, 9, 16), (2, 1, 3, 3), 2, 1, 1, 2)
    add("3x3 s2 p1, odd", (1, 3, 7, 9), (3, 1, 3, 3), 2, 1, 1, 3, bias=True)
    add("planes of 7x7", (1, 5, 7, 7), (5, 1, 3, 3), 1, 1, 1, 5, bias=True)
    add("5x5 p2", (1, 2, 6, 12), (2, 1, 5, 5), 1, 2, 1, 2)
    add("7x7 p3", (1, 1, 5, 8), (1, 1, 7, 7), 1, 3)
    add("9x9, beyond the registers", (1, 2, 3, 4), (2, 1, 9, 9), 1, 4, 1, 2)
    add("dilated, padding 5x6", (1, 2, 5, 8), (2, 1, 3, 2), 1, (5, 6), (3, 2), 2)
    add("3x2 s2x1 p1x0 d1x2", (1, 2, 9, 8), (2, 1, 3, 2), (2, 1), (1, 0), (1, 2), 2)
    add("stride beyond the window", (1, 2, 7, 11), (2, 1, 2, 2), (3, 5), 0, 1, 2)
    add("two filters a channel", (1, 3, 5, 8), (6, 1, 3, 3), 1, 1, 1, 3, bias=True)
    add("two channels and five filters a group", (1, 4, 5, 6), (10, 2, 3, 3), 1, 1, 1, 2, True, bias=True)
    add("three channels a group, whole vectors", (2, 6, 4, 8), (4, 3, 3, 3), 1, 1, 1, 2)
    add("one group", (1, 3, 4, 5), (2, 3, 3, 3), 1, 1)
    add("no images", (0, 3, 4, 4), (3, 1, 3, 3), 1, 1, 1, 3)
    x, w = np.arange(-24, 24, dtype=np.float32).reshape(1, 1, 6, 8), np.zeros((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 2] = 1  # this filter shifts the image; with a wrong sign or swapped axes it shifts otherwise
    return made | {"shift": (x, w, None, 1, 1)}


tolerance = definition.tolerance
cost = definition.cost
arguments = definition.arguments


def refuses(layer: Layer) -> str | None:
    """Why this algorithm is not offered for a layer; None if `suits`. The rungs compute every layer."""
    if suits(layer):
        return None
    few = f"groups of at most {FEW} channels and {FEW} filters"
    return f"x must have {few} for these strips, and w windows of at most {TAPS} x {TAPS}"


def workspace_bytes(layer: Layer) -> int:
    """Bytes of device memory besides the arguments and the result: none."""
    return 0


def _flat(p: Problem) -> tuple:
    return p.x.reshape(-1), p.w.reshape(-1), p.bias, p.result.reshape(-1)


# --------------------------------------------------------------------------------------------------- a thread an output


@rung(direct.naive_kernel)
def naive(p):
    """A thread for each output fetches the two numbers of each product, and adds them up, as in chapter 62.

    A product with padding is left out: an infinite or NaN weight does no harm there. The rungs after this one multiply
    the zeros. Source: PMPP 4e section 16.3.

    Leaves: an element of x is fetched once for each tap, and every time with index arithmetic in 64 bits.
    """
    direct.naive.launch(p)


# ------------------------------------------------------------------------------------------------- a tile with its halo

TALL, WIDE = 8, 32  # outputs of a block, one a thread: a warp has 32 neighbours of a row


class Tiles(typing.NamedTuple):
    """How tiles cover the output, and what a block stages: int32."""

    down: int  # tiles
    across: int
    rows: int  # of x that a tile needs
    columns: int


@cuda.jit
def tiled_kernel(x, w, bias, out, relu, sizes, window, tiles):
    patch = cuda.shared.array(0, np.float32)  # the launch says how much
    tx, ty = i32(cuda.threadIdx.x), i32(cuda.threadIdx.y)
    line = u32(cuda.blockIdx.x // tiles.across)
    plane = u32(line // u32(tiles.down))  # of the output
    p, q = i32(TALL * (line - plane * tiles.down)), i32(WIDE * (cuda.blockIdx.x - line * tiles.across))
    n = u32(plane // u32(sizes.groups * sizes.group_filters))
    k = i32(plane - n * (sizes.groups * sizes.group_filters))
    channel = i32(n * sizes.c + k // sizes.group_filters * sizes.group_channels)
    top, left = p * window.stride.rows - window.padding.rows, q * window.stride.columns - window.padding.columns
    total = f0
    for c in range(sizes.group_channels):
        first = np.int64(channel + c) * (sizes.h * sizes.w)
        for y in range(ty, tiles.rows, TALL):
            for z in range(tx, tiles.columns, WIDE):
                inside = 0 <= top + y < sizes.h and 0 <= left + z < sizes.w
                patch[y * tiles.columns + z] = x[first + (top + y) * sizes.w + left + z] if inside else f0
        cuda.syncthreads()  # the patch is whole before a thread reads it
        tap = (k * sizes.group_channels + c) * (sizes.r * sizes.s)
        for r in range(sizes.r):
            at = (ty * window.stride.rows + r * window.dilation.rows) * tiles.columns + tx * window.stride.columns
            for s in range(sizes.s):
                total += patch[at + s * window.dilation.columns] * w[tap + r * sizes.s + s]
        cuda.syncthreads()  # all have read it before one overwrites it
    if p + ty < sizes.p and q + tx < sizes.q:
        out[(np.int64(plane) * sizes.p + p + ty) * sizes.q + q + tx] = finish(total, bias, k, relu)


def tiles_of(a: Layer) -> Tiles | None:
    """The tiles of a layer, or None if what one needs of x does not fit in shared memory."""
    rows = (TALL - 1) * a.stride.rows + (a.r - 1) * a.dilation.rows + 1
    columns = (WIDE - 1) * a.stride.columns + (a.s - 1) * a.dilation.columns + 1
    down, across = blocks(a.p, TALL), blocks(a.q, WIDE)
    if 4 * rows * columns > SHARED_LIMIT or a.n * a.k * down * across > definition.MOST:
        return None
    return Tiles(*map(i32, (down, across, rows, columns)))


@rung(tiled_kernel, *naive.kernels)
def tiled(p):
    """A block stages what its 8 x 32 outputs need of a channel, halo included, and multiplies from shared memory.

    A layer of which this does not fit goes to `naive`. Source: PMPP 4e section 7.4 (tiles with a halo).

    Leaves: each product still has two loads, now from shared memory and from the cache, and a small image leaves most
    threads of a tile without an output.
    """
    a, tiles = p.layer, tiles_of(p.layer)
    if tiles is None:
        naive.launch(p)
        return
    grid, staged = a.n * a.k * int(tiles.down) * int(tiles.across), 4 * int(tiles.rows) * int(tiles.columns)
    tiled_kernel[grid, (WIDE, TALL), p.stream, staged](*_flat(p), p.relu, *numbers_of(a), tiles)


# ------------------------------------------------------------------------------------------- a window that slides down
# From here on a kernel is compiled for a window: then all that a thread needs has registers.

TAPS = 7  # rows and columns of a window, at most
REACH = 32  # rows and columns of x that a thread may need, and half as many columns where it has four outputs in a row
SUMS = 16  # of a thread at most
LONGEST = 8  # outputs of a thread, one below the other
REGISTERS = 128  # of a thread at most: 512 threads then fit on a multiprocessor
THREADS = 512  # that keep a multiprocessor's memory busy, with a few loads each


class Form(typing.NamedTuple):
    """What a kernel is compiled for."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    rows: int = 1  # of outputs that a thread computes, one below the other
    columns: int = 1  # of outputs side by side: 1, or 4 where x and each of its rows begin at multiples of 16 bytes
    filters: int = 1  # of a group, that share what a thread loads
    skip: int = 0  # columns from a multiple of four to the first that a thread needs
    wide: bool = False  # the output and each of its rows begin at multiples of 16 bytes, too

    @property
    def reach(self) -> Pair:
        """Rows and columns of x that a thread's outputs span."""
        sides = zip(self.kernel, self.stride, self.dilation, (self.rows, self.columns), strict=True)
        return Pair(*((count - 1) * u + (taps - 1) * d + 1 for taps, u, d, count in sides))

    @property
    def loads(self) -> int:
        """Loads that a thread makes for a row of x: of vectors, or of single elements."""
        return self.kernel.columns if self.columns == 1 else blocks(self.skip + self.reach.columns, 4)


class Strips(typing.NamedTuple):
    """How threads are numbered: uint32."""

    across: int  # threads along a row of outputs
    down: int  # along a column
    planes: int  # blocks of filters, of all images
    filter_blocks: int  # of a group
    threads: int


@functools.lru_cache(256)
def window_for(form: Form) -> typing.Any:
    """Two device functions that a kernel of this form is made of.

    ``find_columns(left, sizes, places, within)``: where in a row the thread's loads begin, and whether inside. A place
    outside is moved inside, and what is loaded there replaced by 0: then no load is in a branch, and all can be on
    their way at once.
    ``add_channel(x, first, w, tap, last, top, places, within, sizes, totals)``: add a channel to the thread's sums. The
    channel begins at ``first`` in x, and the first tap meets its row ``top``. The weights of the thread's first filter
    begin at ``tap`` in w, and those of the group's last one at ``last``.
    """
    (taps_down, taps_across), (u, v), (d, e), (reach_down, reach_across) = *form[:3], form.reach
    rows, columns, filters, skip, loads = *form[3:7], form.loads
    # Row i u + r d was loaded before, for a tap ``up`` rows higher of the output ``down`` rows lower.
    up, down = u // math.gcd(u, d), d // math.gcd(u, d)
    width = skip + reach_across + 3

    @cuda.jit(device=True)
    def find_columns(left, sizes, places, within):
        for j in range(loads):
            column = i32(left - skip + 4 * j) if columns == 4 else i32(left + e * j)
            within[j] = u32(column) < u32(sizes.w)
            places[j] = u32(min(max(column, i32(0)), i32(sizes.w - columns)))

    @cuda.jit(device=True)
    def load_row(x, first, row, places, within, sizes, values, y):
        """A row of the channel that begins at ``first``, into row y of the values; 0 outside of the image."""
        inside = u32(row) < u32(sizes.h)
        at = u32(first + u32(min(max(row, i32(0)), i32(sizes.h - 1))) * u32(sizes.w))
        for j in range(loads):
            here = inside and within[j]
            if columns == 1:
                value = x[u32(at + places[j])]
                values[y, e * j] = value if here else f0
            # One element of a vector at the border: the other three would only take registers.
            elif 4 * j == skip - 3:
                value = x[u32(at + places[j] + 3)]
                values[y, skip] = value if here else f0
            elif 4 * j == skip + reach_across - 1:
                value = x[u32(at + places[j])]
                values[y, 4 * j] = value if here else f0
            else:
                vector = load128(x, u32(at + places[j]))
                for m in range(4):
                    values[y, 4 * j + m] = vector[m] if here else f0

    @cuda.jit(device=True)
    def add_row(r, x, first, w, tap, last, top, places, within, sizes, values, totals):
        """Multiply with row r of the taps. It meets a row of x more than the row of taps above did."""
        taps = cuda.local.array((filters, taps_across), np.float32)
        apart = u32(sizes.group_channels) * u32(taps_down * taps_across)
        for f in range(filters):
            weight = u32(min(u32(tap + u32(f) * apart), last) + u32(r * taps_across))
            for s in range(taps_across):
                taps[f, s] = w[u32(weight + u32(s))]
        for i in range(rows):
            if r < up or i >= rows - down:
                load_row(x, first, i32(top + i * u + r * d), places, within, sizes, values, i * u + r * d)
        for i in range(rows):
            for f in range(filters):
                for s in range(taps_across):
                    for j in range(columns):
                        totals[f, i, j] += values[i * u + r * d, skip + j * v + s * e] * taps[f, s]

    @cuda.jit(device=True)
    def add_channel(x, first, w, tap, last, top, places, within, sizes, totals):
        values = cuda.local.array((reach_down, width), np.float32)
        # Written out: a loop with so much in it is not unrolled, and would keep all that in memory.
        add_row(0, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 1:
            add_row(1, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 2:
            add_row(2, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 3:
            add_row(3, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 4:
            add_row(4, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 5:
            add_row(5, x, first, w, tap, last, top, places, within, sizes, values, totals)
        if taps_down > 6:
            add_row(6, x, first, w, tap, last, top, places, within, sizes, values, totals)

    return find_columns, add_channel


@cuda.jit(device=True)
def store_row(out, at, left, wide, values, bias, k, relu):
    """Store a thread's outputs of a row, those of the ``left`` that the row has from here on."""
    if wide:
        a, b = finish(values[0], bias, k, relu), finish(values[1], bias, k, relu)
        store128(out, at, (a, b, finish(values[2], bias, k, relu), finish(values[3], bias, k, relu)))
    else:
        for j in range(values.size):
            if j < left:
                out[u32(at + u32(j))] = finish(values[j], bias, k, relu)


@functools.lru_cache(256)  # a compilation each
def strips_kernel(form: Form) -> typing.Any:
    """The kernel ``(x, w, bias, out, relu, sizes, window, strips)`` of a form. Arrays are flat."""
    (u, v), rows, columns, filters, wide = form.stride, form.rows, form.columns, form.filters, form.wide
    taps, loads, (find_columns, add_channel) = math.prod(form.kernel), form.loads, window_for(form)

    @cuda.jit(max_registers=REGISTERS)
    def strips_of_outputs(x, w, bias, out, relu, sizes, window, strips):
        i = u32(cuda.grid(1))
        if i >= strips.threads:
            return
        line = u32(i // strips.across)
        plane = u32(line // strips.down)
        p, q = i32(rows * (line - plane * strips.down)), i32(columns * (i - line * strips.across))
        group = u32(plane // strips.filter_blocks)  # of all images
        k, n = u32((plane - group * strips.filter_blocks) * filters), u32(group // u32(sizes.groups))  # k: of the group
        weights, area = u32(sizes.group_channels * taps), u32(sizes.h * sizes.w)
        before = u32((group - n * u32(sizes.groups)) * u32(sizes.group_filters))  # filters of the groups before
        totals = cuda.local.array((filters, rows, columns), np.float32)
        for f in range(filters):
            for y in range(rows):
                for j in range(columns):
                    totals[f, y, j] = 0
        places, within = cuda.local.array(loads, np.uint32), cuda.local.array(loads, np.bool_)
        find_columns(i32(q * v - window.padding.columns), sizes, places, within)
        top, first = i32(p * u - window.padding.rows), u32(group * u32(sizes.group_channels) * area)
        tap, last = u32((before + k) * weights), u32((before + u32(sizes.group_filters) - u32(1)) * weights)
        for _ in range(sizes.group_channels):
            add_channel(x, first, w, tap, last, top, places, within, sizes, totals)
            first, tap, last = u32(first + area), u32(tap + u32(taps)), u32(last + u32(taps))
        for f in range(filters):
            filter_ = u32(before + k + u32(f))
            plane = u32(n * u32(sizes.groups * sizes.group_filters) + filter_)
            for y in range(rows):
                if p + y < sizes.p and k + u32(f) < u32(sizes.group_filters):
                    at = u32((plane * u32(sizes.p) + u32(p + y)) * u32(sizes.q) + u32(q))
                    store_row(out, at, i32(sizes.q - q), wide, totals[f, y], bias, filter_, relu)

    return strips_of_outputs


def form_of(p: Problem, columns: int, filters: int) -> Form | None:
    """The form for a problem's layer with so many outputs side by side, and at most so many filters, a thread.

    None if a thread cannot hold what the window needs.
    """
    aligned, wide = device.address(p.x) % 16 == 0, device.address(p.result) % 16 == 0
    return _form_of(p.layer, columns, filters, aligned, wide, device.limits()["multiprocessors"])


@functools.lru_cache(4096)  # as `definition.window_of`
def _form_of(a: Layer, columns: int, filters: int, aligned: bool, wide: bool, sms: int) -> Form | None:
    filters = min(filters, a.k // a.groups)
    form = Form(Pair(a.r, a.s), a.stride, a.dilation, 1, columns, filters)
    if columns > 1 and aligned and a.w % 4 == 0 and form.reach.columns <= REACH // 2:
        form = form._replace(skip=-a.padding.columns % 4, wide=wide and a.q % 4 == 0)
    else:
        form = form._replace(columns=1)
    if max(form.kernel) > TAPS or max(form.reach) > REACH:
        return None
    across = a.n * a.groups * blocks(a.k // a.groups, filters) * blocks(a.q, form.columns)
    return form._replace(rows=rows_of(form, a.p, across, THREADS * sms))


def rows_of(form: Form, p: int, across: int, enough: int) -> int:
    """How many of ``p`` outputs, one below the other, a thread should compute.

    So many that the fewest rows of x are loaded. But there should be ``enough`` threads: ``across`` for each strip.
    """
    most = max(1, min(LONGEST, SUMS // (form.columns * form.filters)))
    found = [(1, form)]
    found += [(rows, form._replace(rows=rows)) for rows in range(2, most + 1) if across * blocks(p, rows) >= enough]
    return min((blocks(p, rows) * one.reach.rows, rows) for rows, one in found if one.reach.rows <= REACH)[1]


def strips_of(a: Layer, form: Form) -> Strips:
    """How the threads of a form's kernel are numbered."""
    filter_blocks = blocks(a.k // a.groups, form.filters)
    across, down = blocks(a.q, form.columns), blocks(a.p, form.rows)
    planes = a.groups * filter_blocks
    return Strips(*map(u32, (across, down, planes, filter_blocks, a.n * planes * across * down)))


def by_strips(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0, **changed):
    """Compute a layer by strips that the caller chooses, to try what `rows_of` decides.

    The arguments are those of a rung, and fields of a `Form` to change: ``rows``, and ``columns`` and ``filters``, at
    most so many. Raises ValueError if the window is too large for registers.

    >>> by_strips(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32), rows=2).copy_to_host()
    array([[[[9., 9.],
             [9., 9.]]]], dtype=float32)
    """
    p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out, stream=stream)
    form = form_of(p, changed.pop("columns", 1), changed.pop("filters", 1))
    if form is None:
        raise ValueError(f"w must have at most {TAPS} x {TAPS} taps that span {REACH} elements, had shape {w.shape}")
    if not p.done:
        launch_strips(p, form._replace(**changed))
    return p.result


def launch_strips(p: Problem, form: Form) -> None:
    """Launch the kernel of a form."""
    strips = strips_of(p.layer, form)
    strips_kernel(form)[blocks(int(strips.threads), BLOCK), BLOCK, p.stream](
        *_flat(p), p.relu, *numbers_of(p.layer), strips
    )


@rung(strips_kernel, *tiled.kernels)
def sliding(p):
    """A thread computes outputs one below the other: a row of x that it has loaded serves all taps that meet it.

    The kernel is compiled for the window, so that taps, sums and the rows in use are registers. Windows of more than
    7 x 7, or with taps more than 32 rows or columns apart, go to `tiled`.

    Leaves: a load brings 4 bytes, and each column of x is loaded by as many threads as the window is wide.
    """
    form = form_of(p, 1, 1)
    if form is None:
        tiled.launch(p)
    else:
        launch_strips(p, form)


@rung(strips_kernel, *tiled.kernels)
def vectorised(p):
    """A thread computes four outputs side by side, too, from loads of 128 bits, and stores them together.

    Where the rows of x are no multiple of four wide, this is `sliding`.

    Leaves: the rows of a small image are short, and seldom a multiple of four wide.
    """
    form = form_of(p, 4, 1)
    if form is None:
        tiled.launch(p)
    else:
        launch_strips(p, form)


# ------------------------------------------------------------------------------------------------- planes in one piece

STAGE = 2048  # elements of x, and of the output, that a block should stage: four vectors for each of 128 threads
TOGETHER = 4  # vectors that a thread asks for before it stores the first
WORKERS = 256  # threads a block at most
CROWD = 4  # blocks that keep a multiprocessor busy


class Pack(typing.NamedTuple):
    """Some planes that a block computes: uint32."""

    planes: int  # of a block
    all: int  # planes of x: images times channels
    down: int  # threads along a column of outputs
    items: int  # strips of outputs of a block
    results: int  # where the block's outputs begin in shared memory
    aligned: bool  # x begins at a multiple of 16 bytes
    wide: bool  # the output does


@cuda.jit(device=True)
def copy(source, at, target, to, count, wide):
    """Copy ``count`` neighbours by all threads of a block: in vectors, if both begin at multiples of 16 bytes."""
    thread, threads = u32(cuda.threadIdx.x), u32(cuda.blockDim.x)
    whole, i = u32(count & u32(0xFFFFFFFC)) if wide else u32(0), u32(4 * thread)
    values = cuda.local.array((TOGETHER, 4), np.float32)
    while i < whole:
        for j in range(TOGETHER):
            place = u32(i + u32(4 * j) * threads)
            vector = load128(source, u32(at + min(place, u32(whole - u32(4)))))
            for m in range(4):
                values[j, m] = vector[m]
        for j in range(TOGETHER):
            place = u32(i + u32(4 * j) * threads)
            if place < whole:
                store128(target, u32(to + place), (values[j, 0], values[j, 1], values[j, 2], values[j, 3]))
        i = u32(i + u32(4 * TOGETHER) * threads)
    i = u32(whole + thread)
    while i < count:
        target[u32(to + i)] = source[u32(at + i)]
        i = u32(i + threads)


@functools.lru_cache(256)  # a compilation each
def packs_kernel(form: Form) -> typing.Any:
    """The kernel ``(x, w, bias, out, relu, sizes, window, pack)`` of a form. Arrays are flat."""
    (u, v), rows, taps, loads = form.stride, form.rows, math.prod(form.kernel), form.loads
    find_columns, add_channel = window_for(form)

    @cuda.jit(max_registers=REGISTERS)
    def packs_of_planes(x, w, bias, out, relu, sizes, window, pack):
        stage = cuda.shared.array(0, np.float32)  # x, and behind it the outputs; the launch says how much
        area, outputs = u32(sizes.h * sizes.w), u32(sizes.p * sizes.q)
        before = u32(cuda.blockIdx.x) * pack.planes
        planes = min(pack.planes, u32(pack.all - before))
        copy(x, u32(before * area), stage, u32(0), u32(planes * area), pack.aligned)
        cuda.syncthreads()  # the planes are whole before a thread reads them
        item = u32(cuda.threadIdx.x)
        while item < pack.items:
            line = u32(item // u32(sizes.q))
            plane = u32(line // pack.down)
            p, q = i32(rows * (line - plane * pack.down)), i32(item - line * u32(sizes.q))
            if plane < planes:
                channel = u32((before + plane) % u32(sizes.c))
                totals = cuda.local.array((1, rows, 1), np.float32)
                for y in range(rows):
                    totals[0, y, 0] = 0
                places, within = cuda.local.array(loads, np.uint32), cuda.local.array(loads, np.bool_)
                find_columns(i32(q * v - window.padding.columns), sizes, places, within)
                tap, top = u32(channel * u32(taps)), i32(p * u - window.padding.rows)
                add_channel(stage, u32(plane * area), w, tap, tap, top, places, within, sizes, totals)
                for y in range(rows):
                    if p + y < sizes.p:
                        at = u32(pack.results + plane * outputs + u32((p + y) * sizes.q + q))
                        stage[at] = finish(totals[0, y, 0], bias, channel, relu)
            item = u32(item + u32(cuda.blockDim.x))
        cuda.syncthreads()  # the outputs are whole before they are copied
        copy(stage, pack.results, out, u32(before * outputs), u32(planes * outputs), pack.wide)

    return packs_of_planes


class PackPlan(typing.NamedTuple):
    """How a layer of small planes is computed."""

    form: Form
    pack: Pack
    blocks: int
    threads: int
    shared: int  # bytes


def pack_of(p: Problem) -> PackPlan | None:
    """The plan for a layer of one channel and one filter a group, and of small planes; None for any other."""
    aligned, wide = device.address(p.x) % 16 == 0, device.address(p.result) % 16 == 0
    return _pack_of(p.layer, aligned, wide, device.limits()["multiprocessors"])


@functools.lru_cache(4096)  # as `definition.window_of`
def _pack_of(a: Layer, aligned: bool, wide: bool, sms: int) -> PackPlan | None:
    plane, form = max(a.h * a.w, a.p * a.q), Form(Pair(a.r, a.s), a.stride, a.dilation)
    if not (a.c == a.k == a.groups) or 4 * plane > STAGE or max(form.kernel) > TAPS or max(form.reach) > REACH:
        return None
    # Eight planes are whole sectors of 32 bytes, whatever their size.
    planes = max(8, min(STAGE // plane, blocks(a.n * a.c, CROWD * sms)) // 8 * 8)
    return pack_with(a, planes, rows_of(form, a.p, planes * a.q, WORKERS // 2), aligned, wide)


def pack_with(a: Layer, planes: int, rows: int, aligned: bool, wide: bool) -> PackPlan:
    """The plan for blocks of so many planes, whose threads compute so many outputs one below the other."""
    form, down = Form(Pair(a.r, a.s), a.stride, a.dilation, rows), blocks(a.p, rows)
    items, results = planes * a.q * down, round_up(planes * a.h * a.w, 4)
    threads = round_up(blocks(items, blocks(items, WORKERS)), 32)
    pack = Pack(*map(u32, (planes, a.n * a.c, down, items, results)), aligned, wide)
    return PackPlan(form, pack, blocks(a.n * a.c, planes), threads, 4 * (results + planes * a.p * a.q))


def by_packs(
    x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, planes, rows, out=None, stream=0
):
    """Compute a layer by packs that the caller chooses, to try what `pack_of` decides.

    The arguments are those of a rung, and ``planes`` of a block, a multiple of eight that shared memory holds, and
    ``rows`` of a thread. Raises ValueError for a layer that `pack_of` has no plan for.

    >>> x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    >>> by_packs(x, w, planes=8, rows=2).copy_to_host()
    array([[[[9.]]]], dtype=float32)
    """
    p = arguments(x, w, bias, stride, padding, dilation, groups, relu, out=out, stream=stream)
    plan = pack_of(p)
    if plan is None:
        raise ValueError(f"x must have small planes, each with a filter of its own, had shapes {x.shape} and {w.shape}")
    if not p.done:
        launch_packs(p, pack_with(p.layer, planes, rows, plan.pack.aligned, plan.pack.wide))
    return p.result


def launch_packs(p: Problem, plan: PackPlan) -> None:
    """Launch the kernel of a plan."""
    configuration = plan.blocks, plan.threads, p.stream, plan.shared
    packs_kernel(plan.form)[configuration](*_flat(p), p.relu, *numbers_of(p.layer), plan.pack)


@rung(packs_kernel, *vectorised.kernels)
def packed(p):
    """A block copies several small planes, which lie one behind the other, to shared memory and its outputs back.

    Both ways are whole vectors, whatever the width of a plane. Between them a thread computes outputs of a column.
    It is for planes of up to 512 elements with a channel and a filter for each group, of which x or the output has rows
    that are no multiple of four wide. All others go to `vectorised`.

    Leaves: where a channel has several filters, each loads it again.
    """
    a, plan = p.layer, pack_of(p)
    if plan is None or (a.w % 4 == 0 and a.q % 4 == 0):
        vectorised.launch(p)
    else:
        launch_packs(p, plan)


# ---------------------------------------------------------------------------------------------- several filters a group

FILTERS = 4  # of a thread
FEW = 8  # channels or filters of a group, at most, where strips have something to gain over tiles of many filters


def suits(layer: Layer) -> bool:
    """Whether the last rung is made for a layer: it has groups, of few channels and few filters.

    >>> suits(Layer(32, 144, 56, 56, 144, 3, 3, padding=(1, 1), groups=144)), suits(Layer(32, 3, 224, 224, 64, 7, 7))
    (True, False)
    """
    few = max(layer.c, layer.k) <= FEW * layer.groups
    return few and layer.groups > 1 and max(layer.r, layer.s) <= TAPS


@rung(*packed.kernels)
def grouped(p):
    """A thread computes up to four filters of a group: what it has loaded of a channel serves all of them.

    With one filter a group this is `packed`. In groups of many filters `direct` and `implicit` reuse more.
    """
    form = None if p.layer.k == p.layer.groups else form_of(p, 4, FILTERS)
    if form is None:
        packed.launch(p)
    else:
        launch_strips(p, form)


LADDER = (naive, tiled, sliding, vectorised, packed, grouped)
