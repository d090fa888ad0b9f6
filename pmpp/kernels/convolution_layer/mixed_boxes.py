"""Convolution layers of 16 bits whose tiles the copy engine brings: stride 1, outputs of the size of the input.

In `pmpp.kernels.convolution_layer.mixed_warpgroups` every thread computes the addresses of what it copies, chunk by
chunk, and that takes longer than the products. Here one thread asks the copy engine of a Hopper GPU for whole boxes.
The engine knows matrices and no images, so images are written in an order in which a box is what a tile needs. Channels
lie last, and behind each row of an image, and behind each image, lie so many pixels of zeros as the layer pads with::

    0 1 2 .        rows of 3 pixels, a padding of 1: the pixel behind a row is also the one before the next row,
    3 4 5 .        and the row behind an image is also the one before the next image
    . . . .

Every pixel has a *place*, counted in rows of this order. Row r and column s of a kernel lead from any place to the one
that lies ``(r - padding) * pitch + s - padding`` further, the zeros included. So the pixels that (r, s) meets at 128
neighbouring places are 128 neighbouring rows of one matrix. What is computed at places of zeros is not stored.

    output        places x (R S C)  times  (R S C) x filters
    by input      places x (R S K)  times  (R S K) x channels, of the outputs' gradients in the same order
    by weights    filters x places  times  places x (R S C): places of zeros add nothing

In a kernel one warp asks for boxes, and two warpgroups multiply: `pmpp.kernels.matmul.warpgroups.specialised`. For the
gradient by weights the filters must be the rows of the first operand, and lie along the rows of the tile instead. So a
warp loads them transposed into registers.

Source: PTX ISA, "cp.async.bulk.tensor" and "wgmma"; CUTLASS, "Implicit GEMM convolution".
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.common.division import divisor, quotient
from pmpp.kernels.convolution_layer.definition import Layer, layer_of
from pmpp.kernels.convolution_layer.mixed_places import BLOCK
from pmpp.kernels.convolution_layer.mixed_warpgroups import Taps, column_storer, turned
from pmpp.kernels.matmul.mixed_tiles import a_reader, fragment_storer
from pmpp.kernels.matmul.mixed_warpgroups import row_storer
from pmpp.kernels.matmul.tensor_cores import KERNELS, WARP, order_of_tiles, swizzled_place
from pmpp.kernels.matmul.warpgroups import PRODUCTS
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_tile,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_registers import wgmma_bf16_kept, wgmma_f16_kept
from pmpp.runtime.vector import load128, store128

CAPABILITY = (9, 0)  # of the only GPUs that have wgmma
KEPT = {"float16": wgmma_f16_kept, "bfloat16": wgmma_bf16_kept}
PANEL = 64  # columns of a box: 128 bytes
PLACES = 128  # of a tile; of the gradient by weights PANEL
TEAM, ROWS = 128, 64  # threads, and rows of a product, of a warpgroup
MAPS = 2 * 16  # words of a block's two tensor maps
STAGES = 3  # of a tile of places
RESIDENT = {64: 3, 128: 2}  # blocks that share a multiprocessor, by the filters of a tile
PANELS = 3  # of R S C in a tile of the gradient by weights
GROUP = 8
SQUARE_CHANNELS, SQUARE_PIXELS, SQUARE_PITCH = 64, 32, 33  # of what a block turns
SQUARE, EIGHT = 64, 8  # channels and pixels of what it turns by 16 bytes at a time, 8 numbers each
MOST = 2**31 - 512  # places: the copy engine counts rows with 32 bits
#: Times the pixels are the most places: with more of them other kernels are faster. Of gradients by weights, and of
#: products whose tiles have places as rows.
MOST_PADDED, MOST_GATHERED = 1.3, 1.1
f0 = np.float32(0)


class Order(typing.NamedTuple):
    """Where the pixels of images lie, as above. ``pitch``, ``image``, ``all``: places of a row, an image, and all.

    ``down``, ``along``: rows and columns of padding.
    """

    rows: int
    columns: int
    down: int
    along: int
    pitch: int
    image: int
    all: int
    pitch_times: int  # what divides by `pitch`, `image`, and `columns`
    pitch_shift: int
    image_times: int
    image_shift: int
    columns_times: int
    columns_shift: int


class Work(typing.NamedTuple):
    """A product with ``n`` columns of results, and sums over taps and ``depth`` numbers of each.

    ``kernel_rows``, ``kernel_columns``: taps. ``sign``: 1 if a tap leads to the pixel that it meets, -1 if from it.
    ``m``, ``c_pitch``, ``steps``: of a gradient by weights its rows, what they are apart, and the steps of a part.
    """

    m: int
    n: int
    depth: int
    kernel_rows: int
    kernel_columns: int
    sign: int
    c_pitch: int
    steps: int


def takes(a: Layer) -> bool:
    """Whether these kernels compute a layer and its gradients, on this GPU."""
    return (
        device.limits()["compute_capability"] == CAPABILITY
        and (a.groups, tuple(a.stride), tuple(a.dilation)) == (1, (1, 1), (1, 1))
        and (a.r, a.s) == (2 * a.padding.rows + 1, 2 * a.padding.columns + 1)
        and not (a.c % PANEL or a.k % PANEL)
        and _suits(a.n, a.h, a.w, *a.padding, min(a.c, a.k), device.limits()["multiprocessors"])
    )


@functools.lru_cache(4096)
def _suits(n: int, h: int, w: int, down: int, along: int, channels: int, multiprocessors: int) -> bool:
    """Whether there are not many more places than pixels, and about a tile for each multiprocessor.

    >>> _suits(128, 32, 32, 1, 1, 64, 132), _suits(128, 8, 8, 1, 1, 256, 132), _suits(128, 4, 4, 1, 1, 512, 132)
    (True, True, False)
    """
    places = n * (h + down) * (w + along)
    enough = 10 * blocks(places, PLACES) * blocks(channels, PANEL) >= 9 * multiprocessors
    return enough and places <= min(MOST, MOST_PADDED * n * h * w)


def gathers(a: Layer) -> bool:
    """Whether `gathered` computes a layer that these kernels take: not if many places of a tile would be zeros."""
    return (a.h + a.padding.rows) * (a.w + a.padding.columns) <= MOST_GATHERED * a.h * a.w


def order_of(n: int, h: int, w: int, down: int, along: int) -> Order:
    """The order of n images of h x w pixels."""
    pitch, image = w + along, (h + down) * (w + along)
    most = n * image + PLACES
    by = (x for d in (pitch, image, w) for x in divisor(d, most))
    return Order(*map(np.int64, (h, w, down, along, pitch, image, n * image, *by)))


# ------------------------------------------------------------------------------------------------------------ the order


@cuda.jit
def padded_kernel(x, out, channels, pixels, s):
    """Images of (channels, pixels) become rows of channels in the order, with zeros where no pixel is.

    A block turns 64 channels of 32 pixels in shared memory. ``out`` is of words: two channels each. Who writes the last
    pixel of a row writes the zeros behind it, and who writes the last row the zeros below.
    """
    square = cuda.shared.array((SQUARE_CHANNELS, SQUARE_PITCH), np.uint16)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    across, down = (pixels + SQUARE_PIXELS - 1) // SQUARE_PIXELS, channels // SQUARE_CHANNELS
    block = np.int64(cuda.blockIdx.x)
    tile = block // across
    image = tile // down
    pixel0, channel0 = (block - tile * across) * SQUARE_PIXELS, (tile - image * down) * SQUARE_CHANNELS
    for i in range(ty, SQUARE_CHANNELS, BLOCK // SQUARE_PIXELS):
        value = np.uint16(0)
        if pixel0 + tx < pixels:
            value = x[(image * channels + channel0 + i) * pixels + pixel0 + tx]
        square[i, tx] = value
    cuda.syncthreads()
    words = channels // 2
    for i in range(ty, SQUARE_PIXELS, BLOCK // SQUARE_PIXELS):
        pixel = pixel0 + i
        if pixel < pixels:
            row = np.int64(quotient(pixel, s.columns_times, s.columns_shift))
            column = pixel - row * s.columns
            both = np.uint32(square[2 * tx, i]) | np.uint32(square[2 * tx + 1, i]) << np.uint32(16)
            at = (image * s.image + row * s.pitch + column) * words + channel0 // 2 + tx
            rows = s.down + 1 if row == s.rows - 1 else np.int64(1)
            columns = s.along + 1 if column == s.columns - 1 else np.int64(1)
            for r in range(rows):
                for c in range(columns):
                    out[at + (r * s.pitch + c) * words] = both if r + c == 0 else np.uint32(0)


@cuda.jit
def padded_chunks_kernel(x, out, channels, pixels, tiles, s):
    """The same, 16 bytes at a time: a block turns 64 channels of 64 pixels. Both arrays are of words of 32 bits.

    The first ``tiles`` blocks do that, and each of the others writes the zeros of an image.
    """
    square = cuda.shared.array((SQUARE, SQUARE_PITCH), np.uint32)
    thread, block = np.int64(cuda.threadIdx.x), np.int64(cuda.blockIdx.x)
    words, low, half = channels // 2, np.uint32(0xFFFF), np.uint32(16)
    if block >= tiles:
        vectors, behind = words // 4, s.rows * s.along  # places behind rows come first, then those below
        for i in range(thread, (behind + s.down * s.pitch) * vectors, BLOCK):
            zero = i // vectors
            row = zero // s.along if zero < behind else s.rows
            place = row * s.pitch + (s.columns + zero - row * s.along if zero < behind else zero - behind)
            nothing = np.uint32(0)
            at = ((block - tiles) * s.image + place) * words + (i - zero * vectors) * 4
            store128(out, at, (nothing, nothing, nothing, nothing))
        return
    across, down = (pixels + SQUARE - 1) // SQUARE, channels // SQUARE
    tile = block // across
    image = tile // down
    pixel0, channel0 = (block - tile * across) * SQUARE, (tile - image * down) * SQUARE
    chunk, line = thread % EIGHT, thread // EIGHT
    for i in range(line, SQUARE, BLOCK // EIGHT):
        pixel = pixel0 + chunk * EIGHT
        if pixel < pixels:
            loaded = load128(x, ((image * channels + channel0 + i) * pixels + pixel) // 2)
            for k in range(4):
                square[i, chunk * 4 + k] = loaded[k]
    cuda.syncthreads()
    for i in range(line, SQUARE, BLOCK // EIGHT):
        pixel = pixel0 + i
        if pixel < pixels:
            first, word, shift = chunk * EIGHT, i // 2, half if i % 2 else np.uint32(0)
            one = square[first, word] >> shift & low | square[first + 1, word] >> shift << half
            two = square[first + 2, word] >> shift & low | square[first + 3, word] >> shift << half
            three = square[first + 4, word] >> shift & low | square[first + 5, word] >> shift << half
            four = square[first + 6, word] >> shift & low | square[first + 7, word] >> shift << half
            row = np.int64(quotient(pixel, s.columns_times, s.columns_shift))
            place = image * s.image + row * s.pitch + pixel - row * s.columns
            store128(out, place * words + channel0 // 2 + chunk * 4, (one, two, three, four))


def padded(x: typing.Any, padding: tuple[int, int], stream: typing.Any) -> typing.Any:
    """Images (N, C, H, W), contiguous, with a multiple of 64 channels, in the order: a vector of uint16."""
    n, channels, h, w = x.shape
    if channels % SQUARE_CHANNELS:
        raise ValueError(f"x must have a multiple of {SQUARE_CHANNELS} channels where zeros are given, had {channels}")
    down, along = padding
    made = device.empty((n * (h + down) * (w + along) * channels,), np.uint16, stream=stream)
    if not made.size:
        return made
    s, flat, words = order_of(n, h, w, down, along), x.reshape(-1), made.view(np.uint32)
    sizes = np.int64(channels), np.int64(h * w)
    if h * w % EIGHT == 0 and device.address(x) % 16 == 0:
        tiles = n * blocks(h * w, SQUARE) * (channels // SQUARE)
        grid = tiles + (n if down or along else 0)
        padded_chunks_kernel[grid, BLOCK, stream](flat.view(np.uint32), words, *sizes, np.int64(tiles), s)
    else:
        grid = n * blocks(h * w, SQUARE_PIXELS) * (channels // SQUARE_CHANNELS)
        padded_kernel[grid, (SQUARE_PIXELS, BLOCK // SQUARE_PIXELS), stream](flat.view(np.uint16), words, *sizes, s)
    return made


# ---------------------------------------------------------------------------------------------------- output, by input


@functools.lru_cache(KERNELS)
def boxes_kernel(side: int, kind: str, biased: bool) -> typing.Any:
    """The kernel ``(x_map, w_map, maps, bias, c, t, s)``, a block for each PLACES places and ``side`` filters.

    ``full[s]`` ends a phase when the tiles of stage s are there, and ``empty[s]`` when all warps have used them.
    """
    wgmma, stages, panels = PRODUCTS[kind], STAGES, side // PANEL
    stage_size, a_size = np.uint32((PLACES + side) * PANEL), np.uint32(PLACES * PANEL)
    nbytes = 2 * (PLACES + side) * PANEL
    apart, along, below = PANEL * PANEL if side > PANEL else 0, np.uint32(16), np.uint32(16 * PANEL)
    consumers, nothing = PLACES // ROWS * 4, (f0,) * (side // 2)
    threads, resident = (consumers + 1) * WARP, RESIDENT[side]
    store, tile_of = column_storer(side // 2, biased), order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, at, place, k, row, column, full):
        """The box of x at (place, k), and boxes of the weights at (row, column)."""
        begin = np.uint32(stage * stage_size)
        expect_bytes(full, stage, nbytes)
        bulk_tile(shared, begin, maps, at, place, k, full, stage)
        for panel in range(panels):
            to = np.uint32(begin + a_size + np.uint32(panel) * np.uint32(PANEL * PANEL))
            bulk_tile(shared, to, maps, at + 16, row, column + panel * PANEL, full, stage)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, sums):
        """Start to add the products of a stage to the sums of this warpgroup, whose rows of A begin at ``row``."""
        a, b = np.uint32(begin + row * np.uint32(PANEL)), np.uint32(begin + a_size)
        wgmma_fence()
        sums = wgmma(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, apart), sums)
        sums = wgmma(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + below, apart), sums)
        sums = wgmma(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * below, apart), sums)
        sums = wgmma(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * below, apart), sums)
        wgmma_commit()
        return sums

    @cuda.jit(device=True)
    def target_of(place, t, s):
        """Where the first filter's result of a place lies, and whether there is a pixel."""
        image = np.int64(quotient(place, s.image_times, s.image_shift))
        within = place - image * s.image
        row = np.int64(quotient(within, s.pitch_times, s.pitch_shift))
        column = within - row * s.pitch
        inside = place < s.all and row < s.rows and column < s.columns
        return image * t.n * s.rows * s.columns + row * s.columns + column, inside

    @cuda.jit(launch_bounds=(threads, resident))
    def boxes_of_places_kernel(x_map, w_map, maps, bias, c, t, s):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        thread = np.uint32(cuda.threadIdx.x)
        warp, lane = np.uint32(thread // np.uint32(WARP)), np.uint32(thread % np.uint32(WARP))
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (s.all + PLACES - 1) // PLACES, (t.n + side - 1) // side)
        first, column = tile_m * PLACES, tile_n * side
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
        cuda.syncthreads()
        now, parity = np.uint32(0), np.uint32(0)
        if warp == consumers:
            if lane == 0:
                at, row = np.int64(cuda.blockIdx.x) * MAPS, np.int64(0)
                place_map(maps, at, x_map)
                place_map(maps, at + 16, w_map)
                for r in range(t.kernel_rows):
                    for q in range(t.kernel_columns):
                        place = first + t.sign * ((r - s.down) * s.pitch + q - s.along)
                        for k in range(0, t.depth, PANEL):
                            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # before the first phase all are empty
                            fetch(shared, now, maps, at, place, k, row, column, full)
                            row += PANEL
                            now, parity = next_stage(now, parity)
        else:
            mine = np.uint32(warp // 4 * np.uint32(ROWS))
            sums, before = nothing, now
            steps = t.kernel_rows * t.kernel_columns * (t.depth // PANEL)
            for step in range(steps):
                mbarrier_wait(full, now, parity)
                sums = multiply(shared, np.uint32(now * stage_size), mine, sums)
                sums = wgmma_wait(1, sums)  # the products of the step before have used their stage
                if lane == 0 and step > 0:
                    mbarrier_arrive(empty, before)
                before = now
                now, parity = next_stage(now, parity)
            sums = wgmma_wait(0, sums)
            place = first + np.int64(mine + warp % 4 * np.uint32(16) + lane // 4)
            upper, lower = target_of(place, t, s), target_of(place + 8, t, s)
            at, inside = (upper[0], lower[0]), (upper[1], lower[1])
            store(c, at, inside, column + np.int64(lane % 4 * 2), sums, bias, t.n, s.rows * s.columns)

    return boxes_of_places_kernel


def gathered(w, last, bias, out, a: Layer, by_filters: bool, stream: typing.Any) -> None:
    """The output, or else the gradient by the input, of what `padded` has made of x, or of dy."""
    n, rows = out.shape[:2]
    terms, count = a.c if by_filters else a.k, a.r * a.s
    weights, pitch = turned(w, rows, terms, terms, Taps(count, 0, a.s, a.s, 1), by_filters, stream)
    s = order_of(n, *out.shape[2:], *a.padding)
    places = int(s.all)
    wide = blocks(places, PLACES) * blocks(rows, 2 * PANEL) >= device.limits()["multiprocessors"]
    side = 2 * PANEL if rows > PANEL and wide else PANEL
    t = Work(*map(np.int64, (places, rows, terms, a.r, a.s, 1 if by_filters else -1, 0, 0)))
    grid, flat = blocks(places, PLACES) * blocks(rows, side), out.reshape(-1)
    maps = device.empty((grid * MAPS,), np.uint64, stream=stream)
    given = (
        tensor_map(last.reshape(places, terms), PLACES, PANEL),
        tensor_map(weights.reshape(count * terms, pitch), PANEL, PANEL),
    )
    kernel = boxes_kernel(side, out.dtype.name, bias is not None)
    nbytes = 2 * STAGES * (PLACES + side) * PANEL
    threads = (PLACES // ROWS * 4 + 1) * WARP
    kernel[grid, threads, stream, nbytes](*given, maps, flat if bias is None else bias, flat, t, s)


# ---------------------------------------------------------------------------------------------------------- by weights


class Cut(typing.NamedTuple):
    """How a gradient by weights is computed: ``teams`` warpgroups of 64 filters each, in parts of so many steps."""

    teams: int
    parts: int
    steps: int

    @property
    def stages(self) -> int:
        """That have room in shared memory: of two blocks, or of one that has two warpgroups."""
        return 3 if self.teams == 1 else 5

    @property
    def stage(self) -> int:
        """Elements of a stage: a panel of filters for each warpgroup, then panels of (r, s) and channels."""
        return (self.teams + PANELS) * PANEL * PANEL


@functools.lru_cache(4096)
def cut_for(filters: int, panels: int, places: int, multiprocessors: int) -> Cut:
    """The cut with which the last block is done first. Results are written and read, which takes as long as 8 steps.

    >>> cut_for(64, 9, 128 * 33 * 33, 132)
    Cut(teams=1, parts=88, steps=25)
    >>> cut_for(512, 72, 128 * 5 * 5, 132)
    Cut(teams=2, parts=1, steps=50)
    """
    teams = 1 if filters <= ROWS else 2
    tiles, total = blocks(filters, ROWS * teams) * blocks(panels, PANELS), max(blocks(places, PANEL), 1)
    together = multiprocessors * (2 if teams == 1 else 1)

    def time(parts: int) -> int:
        return blocks(tiles * parts, together) * (blocks(total, parts) + 8)

    parts = min(range(1, min(total, max(together // tiles, 1) * 4) + 1), key=time)
    steps = blocks(total, parts)
    return Cut(teams, blocks(total, steps), steps)


@cuda.jit(device=True)
def both_bf16(word):
    """The sum of the two bfloat16 in a word: each has the upper half of the bits of a float32."""
    low, high = np.uint32(word << np.uint32(16)), np.uint32(word & np.uint32(0xFFFF0000))
    return cuda.libdevice.int_as_float(np.int32(low)) + cuda.libdevice.int_as_float(np.int32(high))


@cuda.jit(device=True)
def both_f16(word):
    """The sum of the two float16 in a word."""
    low, high = np.int16(word & np.uint32(0xFFFF)), np.int16(word >> np.uint32(16))
    return cuda.libdevice.half2float(low) + cuda.libdevice.half2float(high)


@functools.cache
def row_adder(kind: str) -> typing.Any:
    """A device function that adds a fragment to the sums of its lane's two rows: 4 of the 16 columns."""
    both = both_bf16 if kind == "bfloat16" else both_f16

    @cuda.jit(device=True)
    def add(fragment, upper, lower):
        return upper + both(fragment[0]) + both(fragment[2]), lower + both(fragment[1]) + both(fragment[3])

    return add


@functools.lru_cache(KERNELS)
def correlated_kernel(teams: int, kind: str, counted: bool) -> typing.Any:
    """The kernel ``(dy_map, x_map, maps, sums, rows, t, s)``: 64 filters a warpgroup times PANELS panels of R S C.

    ``counted``: the sums of dy's filters, the gradient of a bias, go to ``rows``, (parts, filters).
    """
    wgmma, cut = KEPT[kind], Cut(teams, 1, 1)
    stages, stage_size, nbytes = cut.stages, np.uint32(cut.stage), 2 * cut.stage
    panel_size, b_begin = np.uint32(PANEL * PANEL), np.uint32(teams * PANEL * PANEL)
    apart, below, nothing = PANEL * PANEL, np.uint32(16 * PANEL), (f0,) * (PANELS * PANEL // 2)
    consumers, a_side, columns = 4 * teams, teams * PANEL, PANELS * PANEL
    threads, resident = (consumers + 1) * WARP, 2 if teams == 1 else 1
    read, tile_of = a_reader(False, swizzled_place(8)), order_of_tiles(GROUP)
    half, add = PANEL // 2, row_adder(kind)  # sums of a panel that a lane has
    store = row_storer(half, fragment_storer(False, True, False))

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def box_of(panel, t, s):
        """By how many places the pixels that a panel's (r, s) meets lie further, and the panel's first channel."""
        tap = panel * PANEL // t.depth
        r = tap // t.kernel_columns
        further = (r - s.down) * s.pitch + tap - r * t.kernel_columns - s.along
        # Beyond the last panel there are zeros: the box lies beyond the last place.
        return further if tap < t.kernel_rows * t.kernel_columns else s.all, panel * PANEL - tap * t.depth

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, at, place, filter_, boxes, full):
        begin = np.uint32(stage * stage_size)
        expect_bytes(full, stage, nbytes)
        for team in range(teams):
            to = np.uint32(begin + np.uint32(team) * panel_size)
            bulk_tile(shared, to, maps, at, place, filter_ + team * PANEL, full, stage)
        to = np.uint32(begin + b_begin)
        bulk_tile(shared, to, maps, at + 16, place + boxes[0][0], boxes[0][1], full, stage)
        to = np.uint32(to + panel_size)
        bulk_tile(shared, to, maps, at + 16, place + boxes[1][0], boxes[1][1], full, stage)
        to = np.uint32(to + panel_size)
        bulk_tile(shared, to, maps, at + 16, place + boxes[2][0], boxes[2][1], full, stage)

    @cuda.jit(device=True)
    def multiply(shared, begin, mine, row, sums, upper, lower, first):
        """Start to add the products of a stage. ``mine``: where this warpgroup's filters begin; ``row``: the warp's.

        ``first``: whether the tile is one of those that dy's filters are summed by.
        """
        a, b = np.uint32(begin + mine), np.uint32(begin + b_begin)
        one, two = read(shared, a, row, np.uint32(0)), read(shared, a, row, np.uint32(16))
        three, four = read(shared, a, row, np.uint32(32)), read(shared, a, row, np.uint32(48))
        if counted and first:
            upper, lower = add(one, upper, lower)
            upper, lower = add(two, upper, lower)
            upper, lower = add(three, upper, lower)
            upper, lower = add(four, upper, lower)
        wgmma_fence()
        sums = wgmma(one, tile_descriptor(shared, b, apart), sums)
        sums = wgmma(two, tile_descriptor(shared, b + below, apart), sums)
        sums = wgmma(three, tile_descriptor(shared, b + 2 * below, apart), sums)
        sums = wgmma(four, tile_descriptor(shared, b + 3 * below, apart), sums)
        wgmma_commit()
        return sums, upper, lower

    @cuda.jit(launch_bounds=(threads, resident))
    def correlated_boxes_kernel(dy_map, x_map, maps, out, rows, t, s):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        thread = np.uint32(cuda.threadIdx.x)
        warp, lane = np.uint32(thread // np.uint32(WARP)), np.uint32(thread % np.uint32(WARP))
        tiles_m, tiles_n = (t.m + a_side - 1) // a_side, (t.n + columns - 1) // columns
        block = np.int64(cuda.blockIdx.x)
        part, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first = part * t.steps
        steps = min(t.steps, (s.all + PANEL - 1) // PANEL - first)
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
        cuda.syncthreads()
        now, parity = np.uint32(0), np.uint32(0)
        if warp == consumers:
            if lane == 0:
                at, panel = np.int64(cuda.blockIdx.x) * MAPS, tile_n * PANELS
                place_map(maps, at, dy_map)
                place_map(maps, at + 16, x_map)
                boxes = box_of(panel, t, s), box_of(panel + 1, t, s), box_of(panel + 2, t, s)
                for step in range(steps):
                    mbarrier_wait(empty, now, parity ^ np.uint32(1))
                    fetch(shared, now, maps, at, (first + step) * PANEL, tile_m * a_side, boxes, full)
                    now, parity = next_stage(now, parity)
        else:
            mine, row, sums = np.uint32(warp // 4 * panel_size), np.uint32(warp % 4 * np.uint32(16)), nothing
            upper, lower = f0, f0
            for _ in range(steps):
                mbarrier_wait(full, now, parity)
                begin = np.uint32(now * stage_size)
                sums, upper, lower = multiply(shared, begin, mine, row, sums, upper, lower, tile_n == 0)
                sums = wgmma_wait(0, sums)  # the registers of the filters are needed for the next step
                if lane == 0:
                    mbarrier_arrive(empty, now)
                now, parity = next_stage(now, parity)
            base, filter_, column = part * t.m * t.n, tile_m * a_side + np.int64(warp * np.uint32(16)), tile_n * columns
            one = np.float32(1)
            if counted and tile_n == 0:  # four lanes have the columns of a row
                upper += cuda.shfl_xor_sync(FULL_WARP, upper, 1)
                upper += cuda.shfl_xor_sync(FULL_WARP, upper, 2)
                lower += cuda.shfl_xor_sync(FULL_WARP, lower, 1)
                lower += cuda.shfl_xor_sync(FULL_WARP, lower, 2)
                at = filter_ + lane // 4
                if lane % 4 == 0 and at < t.m:
                    rows[part * t.m + at], rows[part * t.m + at + 8] = upper, lower
            store(out, base, filter_, column, sums[:half], out, one, t)
            store(out, base, filter_, column + PANEL, sums[half:PANEL], out, one, t)
            store(out, base, filter_, column + 2 * PANEL, sums[PANEL:], out, one, t)

    return correlated_boxes_kernel


def correlated(dy, x, kind: str, a: Layer, stream: typing.Any, counted: bool = False) -> tuple:
    """The sums (parts, filters, (r, s), channels) of a gradient by weights of `padded` operands, and the parts.

    If ``counted``, the sums (parts, filters) of a gradient by a bias follow.
    """
    s = order_of(a.n, a.h, a.w, *a.padding)
    places, n = int(s.all), a.r * a.s * a.c
    cut = cut_for(a.k, n // PANEL, places, device.limits()["multiprocessors"])
    sums = device.empty((cut.parts * a.k * n,), np.float32, stream=stream)
    t = Work(*map(np.int64, (a.k, n, a.c, a.r, a.s, 1, n, cut.steps)))
    grid = cut.parts * blocks(a.k, cut.teams * PANEL) * blocks(n, PANELS * PANEL)
    maps = device.empty((grid * MAPS,), np.uint64, stream=stream)
    given = (tensor_map(one.reshape(places, width), PANEL, PANEL) for one, width in ((dy, a.k), (x, a.c)))
    kernel, threads = correlated_kernel(cut.teams, kind, counted), (4 * cut.teams + 1) * WARP
    rows = device.empty((cut.parts * a.k,), np.float32, stream=stream) if counted else sums  # not written
    kernel[grid, threads, stream, 2 * cut.stages * cut.stage](*given, maps, sums, rows, t, s)
    return (sums, cut.parts, rows) if counted else (sums, cut.parts)


# The parts are many bytes, and nobody waits for one of them alone. So a thread adds up four results, 16 bytes of each
# part, and asks for four parts before it adds the first. Where that leaves few threads, several share the parts.

RESULTS = 4  # of a thread
FEWEST_THREADS = 2**15


@cuda.jit(device=True)
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@cuda.jit(device=True)
def sum_of_parts(sums, i, each, first, parts, apart):
    """Four results from ``i`` on, of the parts ``first``, ``first + apart`` and so on, in their order."""
    total, part = (f0, f0, f0, f0), first
    while part + 3 * apart < parts:
        one, two = load128(sums, part * each + i), load128(sums, (part + apart) * each + i)
        three, four = load128(sums, (part + 2 * apart) * each + i), load128(sums, (part + 3 * apart) * each + i)
        total = plus(plus(plus(plus(total, one), two), three), four)
        part += 4 * apart
    while part < parts:
        total = plus(total, load128(sums, part * each + i))
        part += apart
    return total


@cuda.jit(device=True)
def sum_of_slices(sums, i, each, parts, slices, which, width, shared):
    """The same of all parts: ``slices`` threads, ``width`` apart in the block, add up some each. For the first of them.

    ``shared``: room for four numbers of each thread of the block.
    """
    total = (f0, f0, f0, f0)
    if i < each:
        total = sum_of_parts(sums, i, each, which, parts, slices)
    if slices > 1:
        thread = np.int64(cuda.threadIdx.x)
        for k in range(RESULTS):
            shared[k, thread] = total[k]
        cuda.syncthreads()
        if which == 0:
            for other in range(1, slices):
                at = other * width + thread
                total = plus(total, (shared[0, at], shared[1, at], shared[2, at], shared[3, at]))
    return total


@cuda.jit
def add_parts_kernel(sums, out, each, parts, slices):
    """Each result as the sum of its parts, which lie ``each`` results apart."""
    shared = cuda.shared.array((RESULTS, BLOCK), np.float32)
    width = BLOCK // slices
    which = cuda.threadIdx.x // width
    i = (np.int64(cuda.blockIdx.x) * width + cuda.threadIdx.x - which * width) * RESULTS
    total = sum_of_slices(sums, i, each, parts, slices, which, width, shared)
    if which == 0 and i < each:
        for k in range(RESULTS):
            out[i + k] = total[k]


def slices_of(each: int, parts: int) -> int:
    """How many threads share the parts of some results.

    >>> slices_of(64 * 576, 88), slices_of(512 * 4608, 2)
    (8, 1)
    """
    return 8 if parts >= 16 and each < RESULTS * FEWEST_THREADS else 1


def transposed_product_suits(rows: int, filters: int, channels: int, *arrays: typing.Any) -> bool:
    """Whether `transposed_product` takes matrices of these extents: long ones, on a Hopper GPU.

    Then the kernel that gives the sums an order by parts is faster than one that has tiles for all of the sum.
    """
    return (
        device.limits()["compute_capability"] == CAPABILITY
        and not (filters % PANEL or channels % PANEL)
        and rows >= LONG
        and not any(device.address(one) % 16 for one in arrays)
    )


LONG = 4096  # rows: fewer make too few steps for a GPU of more than a hundred multiprocessors


def transposed_product(dy: typing.Any, x: typing.Any, stream: typing.Any, counted: bool = False) -> tuple:
    """``dy.T @ x`` of matrices of 16 bits in C order, and if ``counted`` the sums of dy's columns, else None.

    The gradients of a linear layer by its weights and its bias: as of a 1 x 1 layer. Sums are in float32 and are
    rounded once. The same call gives the same bits on the same GPU.
    """
    (rows, filters), channels = dy.shape, x.shape[1]
    a = layer_of((1, channels, 1, rows), (filters, channels, 1, 1))
    flat = (one.reshape(-1).view(np.uint16) for one in (dy, x))
    sums, parts, *more = correlated(*flat, dy.dtype.name, a, stream, counted)
    product = added(sums, parts, (filters, channels), dy.dtype, stream)
    return product, added(more[0], parts, (filters,), dy.dtype, stream) if counted else None


def added(sums: typing.Any, parts: int, shape: tuple[int, ...], dtype: typing.Any, stream: typing.Any) -> typing.Any:
    """The sums of all parts, each of that shape with a multiple of four elements, rounded to a dtype."""
    out = device.empty(shape, dtype, stream=stream)
    slices = slices_of(out.size, parts)
    grid, sizes = blocks(out.size, BLOCK // slices * RESULTS), map(np.int64, (out.size, parts, slices))
    add_parts_kernel[grid, BLOCK, stream](sums, out.reshape(-1), *sizes)
    return out
