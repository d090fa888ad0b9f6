"""The filter of one tile, and the tiles before it: device functions for `tiled` and `single_pass` of `filter.ladder`.

A block loads its tile into registers, sixteen elements a thread, and counts what it keeps before each thread's part.
It gathers the kept elements in shared memory, and writes them from there side by side.

A tile also has to know how many elements all tiles before it keep. In `tiled` a scan has found that before. In
`single_pass` the tiles tell each other while they run. A tile publishes its own count (PARTIAL), looks back until it
knows what came before it, and publishes the count up to its end (COMPLETE). State and count share one word of 64 bits.
Every tile waits for earlier ones only, and tiles are numbered in the order in which their blocks begin. So the earliest
unfinished tile never waits, and all tiles finish, however few blocks the GPU runs at a time.

Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, warp_sum
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from pmpp.kernels.scan.tile import SLOTS, load_four_rows, scan_warps

BLOCK = 512  # threads a block
VECTORS = 4  # of 128 bits for each thread: one in each of four rows, which `load_four_rows` loads
TILE = BLOCK * VECTORS * 4  # elements, of 32 bits
STATE = 60  # the bit of a word at which the state begins: the count has those below it


@cuda.jit(device=True)
def warp_counts(counts):
    """In each lane the sum of ``counts`` of the lanes up to it. They are four counts, in the bytes of an int32.

    A row has 128 elements, so no byte overflows. The last one may set the sign, which no reader of a byte sees.
    """
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, counts, distance)
        if cuda.laneid >= distance:
            counts = np.int32(counts + earlier)
    return counts


@cuda.jit(device=True)
def places_of(a, b, c, d, ends):
    """Where this lane's kept elements of each row go in the tile, four places; and how many the tile keeps.

    Args:
        a, b, c, d: of each row, a bit for each of the lane's four elements that is kept.
        ends: a shared array of SLOTS.
    """
    mine = np.int32(cuda.popc(a) | cuda.popc(b) << 8 | cuda.popc(c) << 16 | cuda.popc(d) << 24)
    upto = warp_counts(mine)  # one scan for four rows
    rows = cuda.shfl_sync(FULL_WARP, upto, 31)
    row_a, row_b, row_c, row_d = rows & 255, rows >> 8 & 255, rows >> 16 & 255, rows >> 24 & 255
    first, total = scan_warps(SUM, np.int32(0), np.int32(row_a + row_b + row_c + row_d), ends)
    before = np.int32(upto - mine)
    place_a = first + (before & 255)
    place_b = first + row_a + (before >> 8 & 255)
    place_c = first + row_a + row_b + (before >> 16 & 255)
    place_d = first + row_a + row_b + row_c + (before >> 24 & 255)
    return place_a, place_b, place_c, place_d, total


@cuda.jit(device=True)
def gather_four(kept, place, bits, four):
    """Those of four elements whose bit is set, one after another, into the shared array ``kept`` from ``place`` on."""
    if bits & 1:
        kept[place] = four[0]
    if bits & 2:
        kept[place + (bits & 1)] = four[1]
    if bits & 4:
        kept[place + cuda.popc(bits & 3)] = four[2]
    if bits & 8:
        kept[place + cuda.popc(bits & 7)] = four[3]


@cuda.jit(device=True)
def publish_count(words, tile, state, count):
    """Write state and count as one word. A reader sees both or neither, so no fence is needed."""
    if cuda.gridDim.x > 1:
        cuda.atomic.exch(words, tile + 1, np.int64(state) << STATE | np.int64(count))


@cuda.jit(device=True)
def look_back_counts(words, tile):
    """How many elements all tiles before ``tile`` keep, in all lanes. A warp looks at 32 earlier tiles at a time."""
    before = np.int64(0)
    last = tile - 1  # lane 0 looks at this one, lane 1 at the one before it
    while last >= 0:
        mine = last - cuda.laneid
        word = np.int64(COMPLETE) << STATE  # nothing is kept before the first tile
        if mine >= 0:
            word = cuda.atomic.add(words, mine + 1, 0)  # an atomic reads memory each time, unlike words[mine + 1]
            while word == 0:
                word = cuda.atomic.add(words, mine + 1, 0)
        cuda.syncwarp()  # lanes leave the loop at different times, and meet here
        complete = cuda.ballot_sync(FULL_WARP, word >> STATE == COMPLETE)
        nearest = cuda.ffs(complete) - 1 if complete else 31
        count = word & (1 << STATE) - 1
        if cuda.laneid > nearest:
            count = np.int64(0)  # the nearest complete count already includes it
        before += warp_sum(count)
        if complete:
            break
        last -= 32
    return before


class Kernels(typing.NamedTuple):
    """What filters by one predicate: `tiled` launches ``counts`` and ``compact``, and `single_pass` the last one."""

    counts: typing.Any
    compact: typing.Any
    single_pass: typing.Any


@functools.lru_cache(64)  # a compilation each
def kernels_for(keep: typing.Any) -> Kernels:
    """The kernels that keep an element if the device function ``keep(value, threshold)`` is true for it."""

    @cuda.jit(device=True)
    def bits_of(four, i, n, threshold):
        """A bit for each of four elements, from number i on, that is among the n and is kept."""
        a = i < n and keep(four[0], threshold)
        b = i + 1 < n and keep(four[1], threshold)
        c = i + 2 < n and keep(four[2], threshold)
        d = i + 3 < n and keep(four[3], threshold)
        return np.int32(a | b << 1 | c << 2 | d << 3)

    @cuda.jit(device=True)
    def filter_tile(x, threshold, tile, aligned, kept):
        """Gather what the tile keeps in the shared array ``kept``, and return how many that is. No barrier follows."""
        i = tile * TILE + cuda.threadIdx.x // 32 * (128 * VECTORS) + 4 * cuda.laneid
        whole = aligned and (tile + 1) * TILE <= x.size
        a, b, c, d = load_four_rows(x, i, threshold, whole)
        in_a, in_b = bits_of(a, i, x.size, threshold), bits_of(b, i + 128, x.size, threshold)
        in_c, in_d = bits_of(c, i + 256, x.size, threshold), bits_of(d, i + 384, x.size, threshold)
        ends = cuda.shared.array(SLOTS, np.int32)
        place_a, place_b, place_c, place_d, total = places_of(in_a, in_b, in_c, in_d, ends)
        gather_four(kept, place_a, in_a, a)
        gather_four(kept, place_b, in_b, b)
        gather_four(kept, place_c, in_c, c)
        gather_four(kept, place_d, in_d, d)
        return total

    @cuda.jit(device=True)
    def write(out, start, kept, total):
        """The first ``total`` gathered elements to out[start:]. Neighbouring threads write neighbouring places."""
        for k in range(cuda.threadIdx.x, total, BLOCK):
            out[start + k] = kept[k]

    @cuda.jit
    def counts_kernel(x, threshold, counts, aligned):
        tile = np.int64(cuda.blockIdx.x)
        total = filter_tile(x, threshold, tile, aligned, cuda.shared.array(TILE, x.dtype))
        if cuda.threadIdx.x == 0:
            counts[tile] = total

    @cuda.jit
    def compact_kernel(x, threshold, starts, out, count, aligned):
        tile = np.int64(cuda.blockIdx.x)
        kept = cuda.shared.array(TILE, x.dtype)
        total = filter_tile(x, threshold, tile, aligned, kept)
        cuda.syncthreads()
        write(out, starts[tile], kept, total)
        if tile == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
            count[0] = starts[tile] + total

    @cuda.jit(max_registers=40)  # so that three blocks fit on a multiprocessor, which has 65,536; by itself it takes 56
    def single_pass_kernel(x, threshold, words, out, count, aligned):
        tile = next_tile(words, cuda.shared.array(1, np.int64))
        kept = cuda.shared.array(TILE, x.dtype)
        total = filter_tile(x, threshold, tile, aligned, kept)
        start = cuda.shared.array(1, np.int64)
        if cuda.threadIdx.x < 32:
            if cuda.threadIdx.x == 0:
                publish_count(words, tile, PARTIAL, total)
            before = look_back_counts(words, tile)
            if cuda.threadIdx.x == 0:
                publish_count(words, tile, COMPLETE, before + total)
                start[0] = before
                if tile == cuda.gridDim.x - 1:
                    count[0] = before + total
        cuda.syncthreads()
        write(out, start[0], kept, total)

    return Kernels(counts_kernel, compact_kernel, single_pass_kernel)
