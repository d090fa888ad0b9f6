"""A cost model: how long each convolution algorithm should take for a layer, from its shape and the GPU's figures.

An algorithm is a few kernels, one after the other. What bounds a kernel is either memory, and then its time is the
bytes that it moves over the bandwidth, or what the busiest multiprocessor has to do: instructions, or waiting. That is
the roofline, told of each kernel. The GPU says its bandwidth, its clock and how many multiprocessors it has, and the
rooms say their tiles. The constants are the same for all GPUs: round figures of how recent multiprocessors work. No fit
set them, but a person who looked at the survey of an H200 and at some layers on an H100. They need not be exact,
because only the order of the algorithms counts. How good the choice is, on layers that were measured:
`pmpp.kernels.convolution_layer.survey`.
"""

from __future__ import annotations

import functools
import math
import typing

from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import by_fft, direct_tiles, implicit_gather
from pmpp.kernels.convolution_layer import direct as direct_room
from pmpp.kernels.convolution_layer import im2col as im2col_room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.matmul import batched, fitted
from pmpp.kernels.matmul.fitted import FINISH, FROM_CACHE, LOAD, SLOTS, WAIT
from pmpp.runtime import device

REACHED = 0.85  # of the bandwidth, by a kernel that does nothing but move
SUSTAINED = 0.9  # of the fastest clock, while all multiprocessors work
LAUNCH = 3e-6  # seconds from the end of a kernel to the work of the next one
TRANSFORM = 7e-6  # seconds that a kernel of Fourier transforms takes at least: it waits for many barriers
SPECTRA = 0.5  # of what a kernel reaches of the bandwidth, where it moves spectra: their pieces are short
SCATTERED = 1.5  # times as long as side by side, for columns: a thread writes a row of them after the other
NARROW = 1.4  # cycles for an element that is stored by itself, four apart from its neighbour's
BY_TABLE, BY_CHANNEL = 10, 4  # instructions to gather an element of the columns, by the mode of the gather
DIRECT = 1.3  # by how much more than `direct_tiles.time_of` says a multiprocessor is busy
SERIAL = 40  # cycles that a thread takes for a term, if it has nobody to share a multiprocessor with
FAR = 300  # cycles for a term of a sum whose factors both come from memory, one after the other
SLOTS_A_TAP = 3  # instructions for a product of a depthwise layer


class Rates(typing.NamedTuple):
    """What a GPU can do: ``clock`` in cycles a second, ``bandwidth`` in bytes a second."""

    multiprocessors: int
    clock: float
    bandwidth: float

    def moving(self, count: float) -> float:
        """Seconds to move so many bytes."""
        return count / self.bandwidth

    def working(self, cycles: float) -> float:
        """Seconds for so many cycles."""
        return cycles / self.clock


def rates() -> Rates:
    """Those of the current device."""
    return _rates_of(device.current())


@functools.cache
def _rates_of(number: int) -> Rates:
    limits = device.limits()
    bandwidth = 2e3 * limits["memory_clock"] * limits["memory_bus"] / 8
    return Rates(limits["multiprocessors"], SUSTAINED * 1e3 * limits["clock"], REACHED * bandwidth)


def busiest(grid: int, resident: int, steps: int, busy: float, wait: float, finish: float, gpu: Rates) -> float:
    """Seconds of the multiprocessor that gets most of ``grid`` blocks, of which so many are ``resident`` at a time.

    In each of its steps a block is ``busy`` for so many cycles and waits for so many more; meanwhile the others are
    busy. ``finish``: cycles at its end.
    """

    def turn(count: int) -> float:
        return count * finish + steps * max(count * busy, busy + wait)

    turns, rest = divmod(blocks(grid, gpu.multiprocessors), resident)
    return gpu.working(turns * turn(resident) + (turn(rest) if rest else 0))


def _in_tiles(m: int, n: int, slots: float) -> float:
    """Cycles for one k of a tile of m x n: its instructions, or its bytes from the cache."""
    return max(slots / SLOTS, 4 * (m + n) / FROM_CACHE)


# ------------------------------------------------------------------------- seconds of each algorithm, kernel by kernel


def direct(a: Layer, gpu: Rates) -> dict[str, float]:
    """One kernel, whose busy cycles the room estimates itself."""
    if a.c == a.groups and (a.r, a.s) == (3, 3):  # a kernel of its own, for strips
        return {"launch": LAUNCH, "sums": 2.2 * gpu.moving(a.cost.bytes)}
    style = direct_room.SINGLE if direct_room.wants_single(a) else direct_room.NEIGHBOURS
    if a.stride.columns > 2 or a.dilation.columns > 1:
        style = direct_room.SPREAD
    tile = direct_tiles.tile_of(a, style)
    if tile is None:
        turns, cycles = blocks(math.prod(a.shape), gpu.multiprocessors * 2048), 0.0
        cycles = turns * a.terms * FAR
    else:
        chunks = blocks(a.c // a.groups, tile.channels) * blocks(a.r, tile.kernel_rows)
        turns = blocks(tile.grid(a), gpu.multiprocessors * max(1, direct_tiles.RESIDENT // tile.warps))
        cycles = DIRECT * direct_tiles.time_of(a, style, tile) + turns * (1.5 * WAIT * chunks + SERIAL * a.terms)
    return {"launch": 1.5 * LAUNCH, "sums": max(gpu.working(cycles), gpu.moving(a.cost.bytes))}


def im2col(a: Layer, gpu: Rates) -> dict[str, float]:
    """Columns written, then read by a product that `fitted` plans."""
    group, pixels, product = a.k // a.groups, a.p * a.q, im2col_room.is_product(a)
    images = a.n if product else im2col_room.images_of(a, a.groups * a.terms)
    passes = blocks(a.n, images) if a.n else 0
    plan = im2col_room.plan_of(a, min(images, a.n))
    cycles = fitted.cycles(plan, images * a.groups * round_up(group, plan.tile.m), pixels, a.terms, gpu.multiprocessors)
    moved = a.cost.bytes
    columns = 0 if product else 4 * a.n * a.groups * a.terms * pixels
    return {
        "launches": LAUNCH * passes * (1 if product else 2),
        "columns": gpu.moving(SCATTERED * columns + 4 * a.n * a.c * a.h * a.w) if columns else 0.0,
        "product": max(passes * gpu.working(cycles), gpu.moving(columns + moved)),
    }


def implicit(a: Layer, gpu: Rates) -> dict[str, float]:
    """Weights in another order, a product that gathers its columns, and the parts of divided sums."""
    mode = implicit_gather.mode_of(a)
    plan = implicit_gather.plan_of(a, mode, True)
    m, n, depth = implicit_gather.FILTERS, implicit_gather.COLUMNS, implicit_gather.DEPTH
    gather = {implicit_gather.ANY: BY_TABLE, implicit_gather.CHANNELS: BY_CHANNEL}.get(mode, LOAD)
    busy = depth * _in_tiles(m, n, m * n * (1 + 2 / implicit_gather.SIDE) + gather * n + LOAD * m)
    narrow = NARROW * min(m, a.k // a.groups) * n if a.p * a.q % 4 else 0
    finish = FINISH / 2 * implicit_gather.SIDE**2 + narrow
    steps, outputs = blocks(blocks(plan.depth, depth), plan.parts), 4 * math.prod(a.shape)
    product = busiest(plan.blocks, implicit_gather.TOGETHER, steps, busy, WAIT, finish, gpu)
    return {
        "launches": LAUNCH * (1 + (plan.weights > 0) + (plan.parts > 1)),
        "weights": gpu.moving(8 * plan.weights),
        "product": max(product, gpu.moving(a.cost.bytes)),
        "parts": gpu.moving(2 * plan.parts * outputs) if plan.parts > 1 else 0.0,
    }


def winograd(a: Layer, gpu: Rates) -> dict[str, float]:
    """Images, weights and sums, each transformed, in memory, and read again; and 36 products a group."""
    tiles, channels = a.n * blocks(a.p, 4) * blocks(a.q, 4), a.c // a.groups
    moved = a.cost.bytes + 2 * 4 * 36 * (tiles * (a.c + a.k) + a.k * channels)
    count, m, n, k = 36 * a.groups, a.k // a.groups, round_up(tiles, 4), round_up(channels, batched.DEPTH)
    tile = batched.tile_for(count, m, n, k)
    grid = count * blocks(m, tile.m) * blocks(n, tile.n)
    resident = min(65536 // (tile.registers * tile.threads), 2048 // tile.threads)
    slots = tile.m * tile.n * (1 + 1 / 8 + 1 / tile.columns) + LOAD * (tile.m + tile.n)
    busy, finish = batched.DEPTH * _in_tiles(tile.m, tile.n, slots), FINISH / 2 * 8 * tile.columns
    return {
        "launches": 4 * LAUNCH,
        "transforms": gpu.moving(moved),
        "products": busiest(grid, resident, blocks(k, batched.DEPTH), busy, WAIT, finish, gpu),
    }


def fft(a: Layer, gpu: Rates) -> dict[str, float]:
    """Spectra of images, masks and sums, each written and read; and a complex product for each frequency."""
    tiling, channels, filters = by_fft.tiling_of(a), a.c // a.groups, a.k // a.groups
    if tiling is None:
        tiles, size = a.n, by_fft.whole_image_workspace(a) // (8 * (a.n * (a.c + a.k) + a.k * channels))
    else:
        tiles, size = tiling.count(a), tiling.size
    spectra = 8 * size * (tiles * (a.c + a.k) + a.k * channels)
    if min(filters, tiles) < by_fft.SIDE // 4:  # a thread for each value of a sum
        turns = blocks(size * tiles * a.k, 2048 * gpu.multiprocessors)
        read = 8 * size * tiles * a.k * (2 * channels + 1) / 3  # neighbours share a part of it, in the cache
        products = max(gpu.moving(read), gpu.working(turns * channels * FAR))
    else:
        m = by_fft.SIDE
        grid = blocks(size, by_fft.TOGETHER) * a.groups * blocks(filters, m) * blocks(tiles, m)
        slots = by_fft.TOGETHER * (4 * m * m * (1 + 6 / 32) + 4 * LOAD * m)
        products = busiest(grid, 2, channels, slots / SLOTS, WAIT / by_fft.DEPTH, 3 * WAIT, gpu)
    return {
        "launches": 4 * TRANSFORM,
        "transforms": gpu.moving(2 * spectra) / SPECTRA + gpu.moving(a.cost.bytes),
        "products": products,
    }


def depthwise(a: Layer, gpu: Rates) -> dict[str, float]:
    """One kernel, which seldom reaches the whole bandwidth: a strip waits for its rows."""
    slots = SLOTS_A_TAP * math.prod(a.shape) * a.terms / gpu.multiprocessors
    return {"launch": LAUNCH, "sums": max(1.5 * gpu.moving(a.cost.bytes), gpu.working(slots / SLOTS))}


KERNELS = {
    "direct": direct,
    "im2col": im2col,
    "implicit": implicit,
    "winograd": winograd,
    "fft": fft,
    "depthwise": depthwise,
}


def seconds(algorithm: str, layer: Layer) -> dict[str, float]:
    """Seconds of each kernel, or of several alike, that the algorithm should take for the layer on this device.

    >>> list(seconds("winograd", Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1))))
    ['launches', 'transforms', 'products']
    """
    return KERNELS[algorithm](layer, rates())


def guess(algorithm: str, layer: Layer) -> float:
    """Milliseconds that the algorithm should take for the layer on this device."""
    return _guess(algorithm, layer, rates())


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def _guess(algorithm: str, layer: Layer, gpu: Rates) -> float:
    return 1e3 * sum(KERNELS[algorithm](layer, gpu).values())
