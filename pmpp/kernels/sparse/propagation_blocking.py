"""A sparse matrix in tiles, and its product with a vector in two steps that read and write neighbours alone.

Chapter: notebooks/44_sparse.ipynb.  PMPP 4e sections 14.2 to 14.6, for what a format is; 5e ch. 17.

By compressed rows nearly every value asks for an element of x somewhere else in memory. Here the columns are cut into
*slices*, so narrow that the elements of x for a slice fit shared memory. And the values, row by row, are cut into
*pieces*, so short that the products of a piece fit shared memory. A *tile* has the values that a slice and a piece have
in common. Values are stored slice by slice, and in a slice piece by piece.

1. *Multiply.* A block brings the elements of x for a slice to shared memory, and multiplies its *share* of the values
   of this slice. Products are written where values are read.
2. *Add.* A block takes a piece, which has a run of neighbouring products in each slice. It brings them to shared
   memory, tile behind tile. Each thread adds up 32 values in the order of rows, whatever rows they are of: 16 bits for
   each value say where its product is. A bit for each value says whether it is the last of its row.

What comes to shared memory comes by asynchronous copies, where the GPU has them. Meanwhile threads load what else they
need.

`formats.to_tiled` makes such a matrix, `formats.multiply` multiplies it, and `formats.to_rows` leads back.

Source: Beamer, Asanović and Patterson, "Reducing PageRank communication via propagation blocking" (2017), for the two
steps; Blelloch, Heroux and Zagha, "Segmented operations for sparse matrix computation on vector multiprocessors"
(1993), for a sum by segments.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan, sort
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.sparse.ladder import BLOCK, f0, finish_kernel, row_of, set_to_zero
from pmpp.runtime import device
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import load128, store128

WIDEST = 2**15  # columns of a slice: 128 KB of x
LONGEST = 2**13  # values of a piece: 32 KB of products, and 256 threads
SHORTEST = 2**10  # values of a piece: a warp
BESIDES = 2**10  # bytes of shared memory that a block needs besides
RUN = 32  # values that a thread adds up: as many as a word has bits
EIGHT = 8  # values whose places a thread loads at a time: a vector of 128 bits
GROUP = 4  # values that a thread multiplies at a time: a vector of 128 bits, and their columns a word of 64
MULTIPLIERS = 1024  # threads a block of the first step
AT_ONCE = 2  # groups that a thread asks for at a time
HELD = AT_ONCE * GROUP
TOGETHER = 6  # blocks of the second step that the shared memory of a multiprocessor has room for
NOWHERE = np.uint32(2**32 - 1)

#: Of a kernel's maker, the oldest GPU that has the asynchronous copies. Older ones run what it makes without them.
CAPABILITY_OF = {"multiply_kernel_for": (8, 0), "add_kernel_for": (8, 0)}


class Tiled(typing.NamedTuple):
    """Values by slices, in a slice by pieces, and in a tile in the order of rows.

    Tiles are filled up to groups of four: they repeat their last value. Value q of a piece by compressed rows belongs
    to *run* q // 32. A thread that adds up a run loads the places of eight of its values at a time, and so `spot` says
    where they stand in ``places``.
    """

    values: typing.Any  # (4 groups,)
    columns: typing.Any  # in the slice, uint16
    slices: typing.Any  # (slices + 1,): the group with which each slice starts
    shares: typing.Any  # (shares + 1,): the group with which each block of the first step starts
    slice_of: typing.Any  # (shares,): the slice that the share is of
    tiles: typing.Any  # (pieces + 1, slices): the group with which each tile starts
    offsets: typing.Any  # (pieces, slices + 1): the same, if only the groups of the piece are counted
    places: typing.Any  # (pieces * piece,): where a value's product lies among those of its piece, uint16
    ends: typing.Any  # (runs,): bit k of a word is 1 if value k of the run is the last of its row, uint32
    firsts: typing.Any  # (pieces + 1,): how many rows with values end before each piece
    filled: typing.Any  # the rows that have values, in order
    lasts: typing.Any  # of each such row, the place of its last value, uint16
    starts: typing.Any  # (rows + 1,), as by compressed rows
    width_of_slice: int  # columns
    piece: int  # values
    shape: tuple[int, int]


# --------------------------------------------------------------------------------------------------------- to make it


@cuda.jit
def slice_of_kernel(columns, width_of_slice, slice_of):
    j = cuda.grid(1)
    if j < columns.size:
        slice_of[j] = columns[j] // width_of_slice


@cuda.jit
def before_kernel(slice_of, order, piece, before):
    """before[s, p]: how many of the ordered values come before those of slice s and piece p. A thread a tile.

    The order is that of slices, and of values that share a slice that of rows.
    """
    thread = np.int64(cuda.grid(1))
    s, p = thread // before.shape[1], thread % before.shape[1]
    if s < before.shape[0]:
        low, high = 0, order.size
        while low < high:
            middle = low + high >> 1
            j = order[middle]
            if slice_of[j] < s or (slice_of[j] == s and j < p * piece):
                low = middle + 1
            else:
                high = middle
        before[s, p] = low


@cuda.jit
def groups_kernel(before, groups):
    """How many groups each tile has, slice by slice. The last one, of no tile, is 0."""
    tile, slices, pieces = np.int64(cuda.grid(1)), before.shape[0], before.shape[1] - 1
    if tile < slices * pieces:
        s, p = tile // pieces, tile % pieces
        groups[tile] = (before[s, p + 1] - before[s, p] + GROUP - 1) // GROUP
    elif tile == slices * pieces:
        groups[tile] = 0


@cuda.jit
def tiles_kernel(begins, slices, tiles):
    """Where slices and tiles start, of where the tiles start slice by slice."""
    thread, pieces = np.int64(cuda.grid(1)), tiles.shape[0] - 1
    p, s = thread // tiles.shape[1], thread % tiles.shape[1]
    if p <= pieces:
        tiles[p, s] = begins[s * pieces + p]
        if p == 0:
            slices[s] = begins[s * pieces]
        if thread == 0:
            slices[slices.size - 1] = begins[begins.size - 1]


@cuda.jit
def offsets_kernel(groups, offsets):
    """How many groups of a piece come before each of its tiles. A thread a piece."""
    p, pieces, total = np.int64(cuda.grid(1)), offsets.shape[0], np.int32(0)
    if p < pieces:
        for s in range(offsets.shape[1] - 1):
            offsets[p, s] = total
            total += groups[s * pieces + p]
        offsets[p, offsets.shape[1] - 1] = total


@cuda.jit(device=True)
def spot(p, q, piece):
    """Where the place of value q of piece p stands: eights of a run together, and first eights of all runs first."""
    runs = piece // RUN
    return p * piece + (q % RUN // EIGHT * runs + q // RUN) * EIGHT + q % EIGHT


@cuda.jit
def fill_kernel(
    values, columns, order, before, begins, offsets, width_of_slice, piece, values_out, columns_out, places
):
    """A thread a group: a search finds its tile."""
    group, pieces = np.int64(cuda.grid(1)), before.shape[1] - 1
    if group < values_out.size // GROUP:
        tile = row_of(group, begins)
        s, p = tile // pieces, tile % pieces
        place = GROUP * (offsets[p, s] + group - begins[tile])
        for k in range(GROUP):
            i, last = before[s, p] + (group - begins[tile]) * GROUP + k, np.int64(before[s, p + 1] - 1)
            j = order[min(i, last)]
            values_out[group * GROUP + k] = values[j]
            columns_out[group * GROUP + k] = columns[j] - s * width_of_slice
            if i <= last:
                places[spot(p, j - p * piece, piece)] = place + k


@cuda.jit
def no_values_kernel(offsets, stored, piece, places):
    """Behind the last value, the last piece has the place behind all its products: there `add_kernel_for` has a 0."""
    p, last = np.int64(offsets.shape[0] - 1), offsets.shape[1] - 1
    q = stored - p * piece + cuda.grid(1)
    if q < piece:
        places[spot(p, q, piece)] = GROUP * offsets[p, last]


@cuda.jit
def has_values_kernel(starts, there):
    """1 for a row that has values. The last one, of no row, is 0."""
    row = cuda.grid(1)
    if row < there.size:
        there[row] = 1 if row < there.size - 1 and starts[row + 1] > starts[row] else 0


@cuda.jit
def filled_kernel(starts, numbers, filled):
    row = cuda.grid(1)
    if row < starts.size - 1 and starts[row + 1] > starts[row]:
        filled[numbers[row]] = row


@cuda.jit(device=True)
def rows_until(value, starts, filled):
    """How many of the rows with values end before value number ``value``."""
    low, high = 0, filled.size
    while low < high:
        middle = low + high >> 1
        if starts[filled[middle] + 1] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@cuda.jit
def firsts_kernel(starts, filled, piece, firsts):
    p = np.int64(cuda.grid(1))
    if p < firsts.size:
        firsts[p] = rows_until(p * piece, starts, filled)


@cuda.jit
def lasts_kernel(places, starts, filled, piece, lasts):
    number = np.int64(cuda.grid(1))
    if number < filled.size:
        j = np.int64(starts[filled[number] + 1] - 1)
        lasts[number] = places[spot(j // piece, j % piece, piece)]


@cuda.jit
def ends_kernel(starts, filled, ends):
    """A thread a run: a search finds the first row that ends in it."""
    run = np.int64(cuda.grid(1))
    if run < ends.size:
        number, word = rows_until(run * RUN, starts, filled), np.uint32(0)
        while number < filled.size and starts[filled[number] + 1] <= (run + 1) * RUN:
            word |= np.uint32(1) << np.uint32(starts[filled[number] + 1] - 1 - run * RUN)
            number += 1
        ends[run] = word


def _grid(n: int) -> tuple[int, int]:
    return blocks(n, BLOCK), BLOCK


def shares_of(slices: np.ndarray, multiprocessors: int) -> tuple[np.ndarray, np.ndarray]:
    """Where shares start, and of which slices they are. ``slices``: where these start, on the host, both in groups.

    A slice has as many shares as it holds the average of a multiprocessor, rounded, and at least one. That average is
    not less than a group for each thread.

    >>> shares_of(np.int32([0, 5, 5, 9]), 2)
    (array([0, 5, 9], dtype=int32), array([0, 2], dtype=int32))
    """
    counts = np.diff(slices.astype(np.int64))
    average = max(MULTIPLIERS, blocks(int(slices[-1]), multiprocessors))
    shares = np.maximum(np.rint(counts / average).astype(np.int64), counts > 0)
    own = np.repeat(np.arange(counts.size), shares)
    number = np.arange(own.size) - np.repeat(np.cumsum(shares) - shares, shares)  # of the shares of its slice
    starts = slices[own] + number * counts[own] // shares[own]
    return np.append(starts, slices[-1]).astype(np.int32), own.astype(np.int32)


def number_at(x, place: int, stream) -> int:
    """One number of a vector, on the host. It waits for the GPU."""
    if stream:
        stream.synchronize()
    return int(device.to_host(x[place : place + 1])[0])


def fitting(most: int) -> int:
    """How many float32 fit the shared memory of a block of this device: ``most``, or halved until they do.

    >>> fitting(1024)
    1024
    """
    while not fits(most):
        most //= 2
    return most


def fits(elements: int) -> bool:
    """Whether so many float32 fit the shared memory of a block of this device."""
    return 4 * elements + BESIDES <= device.limits()["max_shared_memory_per_multiprocessor"]


def most_products(piece: int, slices: int) -> int:
    """How many products a piece may have, tiles filled up, and the 0 behind them, in groups of four.

    >>> most_products(2**13, 32), most_products(2**13, 2**20)
    (8292, 32772)
    """
    return min(GROUP * piece, piece + (GROUP - 1) * slices) // GROUP * GROUP + GROUP


def piece_fitting(slices: int) -> int:
    """How many values a piece has whose products fit shared memory: `LONGEST`, or halved until they do.

    >>> piece_fitting(32)
    8192
    """
    piece = LONGEST
    while piece > SHORTEST and not fits(most_products(piece, slices)):
        piece //= 2
    return piece


def tiled_of(values, columns, starts, shape, width_of_slice: int, piece: int, stream) -> Tiled:
    """A matrix by compressed rows, which has been checked, in tiles."""
    stored, empty = values.size, functools.partial(device.empty, stream=stream)
    if not stored:
        none, short = empty(0, np.int32), empty(0, np.uint16)
        zero = device.to_device(np.zeros(1, np.int32), stream=stream)
        no_tiles, no_offsets = zero.reshape(1, 1), none.reshape(0, 1)
        rest = no_tiles, no_offsets, short, empty(0, np.uint32), none, none, short, starts, width_of_slice, piece, shape
        return Tiled(values, short, zero, zero, none, *rest)
    slices, pieces, runs = blocks(shape[1], width_of_slice), blocks(stored, piece), blocks(stored, RUN)

    slice_of, before = empty(stored, np.int32), empty((slices, pieces + 1), np.int32)
    slice_of_kernel[*_grid(stored), stream](columns, np.int32(width_of_slice), slice_of)
    order = sort.argsort(slice_of, stream=stream)
    before_kernel[*_grid(before.size), stream](slice_of, order, np.int64(piece), before)
    groups = empty(slices * pieces + 1, np.int32)
    groups_kernel[*_grid(groups.size), stream](before, groups)
    begins = scan.cumsum(groups, exclusive=True, stream=stream)
    slice_starts, tiles = empty(slices + 1, np.int32), empty((pieces + 1, slices), np.int32)
    tiles_kernel[*_grid(tiles.size), stream](begins, slice_starts, tiles)
    if stream:
        stream.synchronize()
    shares, share_of = shares_of(device.to_host(slice_starts), device.limits()["multiprocessors"])
    size = GROUP * int(shares[-1])
    made, own, places = empty(size, np.float32), empty(size, np.uint16), empty(pieces * piece, np.uint16)
    offsets = empty((pieces, slices + 1), np.int32)
    offsets_kernel[*_grid(pieces), stream](groups, offsets)
    parts = values, columns, order, before, begins, offsets, np.int32(width_of_slice), np.int64(piece)
    fill_kernel[*_grid(size // GROUP), stream](*parts, made, own, places)
    if behind := pieces * piece - stored:
        no_values_kernel[*_grid(behind), stream](offsets, np.int64(stored), np.int64(piece), places)

    there = empty(shape[0] + 1, np.int32)
    has_values_kernel[*_grid(there.size), stream](starts, there)
    numbers = scan.cumsum(there, exclusive=True, stream=stream)
    filled = empty(number_at(numbers, shape[0], stream), np.int32)
    filled_kernel[*_grid(shape[0]), stream](starts, numbers, filled)
    ends, firsts, lasts = empty(runs, np.uint32), empty(pieces + 1, np.int32), empty(filled.size, np.uint16)
    lasts_kernel[*_grid(filled.size), stream](places, starts, filled, np.int64(piece), lasts)
    ends_kernel[*_grid(runs), stream](starts, filled, ends)
    firsts_kernel[*_grid(pieces + 1), stream](starts, filled, np.int64(piece), firsts)
    shared_out = device.to_device(shares, stream=stream), device.to_device(share_of, stream=stream)
    rest = tiles, offsets, places, ends, firsts, filled, lasts, starts, width_of_slice, piece, shape
    return Tiled(made, own, slice_starts, *shared_out, *rest)


@cuda.jit
def rows_again_kernel(values, columns, places, tiles, offsets, width_of_slice, piece, values_out, columns_out):
    """A thread a value by compressed rows. Its place says which group of its piece it is in, a search which slice."""
    j = np.int64(cuda.grid(1))
    if j < values_out.size:
        p = j // piece
        place = np.int64(places[spot(p, j % piece, piece)])
        s = row_of(place // GROUP, offsets[p])
        i = GROUP * (np.int64(tiles[p, s]) - offsets[p, s]) + place
        values_out[j] = values[i]
        columns_out[j] = s * width_of_slice + columns[i]


def rows_again(matrix: Tiled, values, columns, stream) -> None:
    """Write the values and columns of a matrix in tiles in the order of its rows."""
    parts = matrix.values, matrix.columns, matrix.places, matrix.tiles, matrix.offsets
    sizes = np.int32(matrix.width_of_slice), np.int64(matrix.piece)
    rows_again_kernel[*_grid(values.size), stream](*parts, *sizes, values, columns)


# ---------------------------------------------------------------------------------------------------------- its product


def copies_for(asynchronous: bool) -> tuple:
    """How a thread brings up to four neighbours to shared memory, and how it waits for all that it has brought.

    An asynchronous copy does not pass through registers: the thread goes on with something else. It takes 16 bytes,
    which begin at a multiple of 16.
    """
    if asynchronous:

        @cuda.jit(device=True)
        def bring(own, place, x, i, count):
            copy_async(own, place, x, i, count)

        @cuda.jit(device=True)
        def wait():
            commit_copies()
            wait_copies(0)

    else:

        @cuda.jit(device=True)
        def bring(own, place, x, i, count):
            for k in range(count):
                own[place + k] = x[i + k]

        @cuda.jit(device=True)
        def wait():
            pass

    return bring, wait


@cuda.jit(device=True)
def quarter(word, k):
    """Number k of the four numbers of 16 bits in a word of 64."""
    return word >> 16 * k & 0xFFFF


@cuda.jit(device=True)
def ask(values, columns, group, last, mine, words):
    """Load a thread's next groups, as far as there are any: all loads are on their way before one is waited for."""
    for k in range(AT_ONCE):
        there = np.uint64(np.uint32(group + k * MULTIPLIERS))
        if there < last:
            a, b, c, d = load128(values, GROUP * there)
            mine[4 * k], mine[4 * k + 1], mine[4 * k + 2], mine[4 * k + 3] = a, b, c, d
            words[k] = columns[there]


@functools.cache
def multiply_kernel_for(asynchronous: bool) -> typing.Any:
    """The first step. With asynchronous copies, x must begin at a multiple of 16 bytes."""
    bring, wait = copies_for(asynchronous)

    @cuda.jit(launch_bounds=(MULTIPLIERS, 1))
    def multiply_kernel(values, columns, shares, slice_of, x, width_of_slice, products):
        """A block multiplies a share. ``columns`` has a word for a group."""
        mine, words = cuda.local.array(HELD, np.float32), cuda.local.array(AT_ONCE, np.int64)
        own = cuda.shared.array(0, np.float32)  # the elements of x for the slice
        share, thread = np.int64(cuda.blockIdx.x), np.uint32(cuda.threadIdx.x)
        first = np.int64(slice_of[share]) * width_of_slice
        i, count = np.uint32(GROUP * thread), np.uint32(min(width_of_slice, x.size - first))
        while i < count:
            bring(own, i, x, np.uint64(first + i), min(GROUP, np.int32(count - i)))
            i = np.uint32(i + GROUP * MULTIPLIERS)
        group, last = np.uint32(shares[share] + thread), np.uint32(shares[share + 1])
        ask(values, columns, group, last, mine, words)  # while the slice is on its way
        wait()
        cuda.syncthreads()
        while group < last:
            for k in range(AT_ONCE):
                there = np.uint64(np.uint32(group + k * MULTIPLIERS))
                if there < last:
                    a, b = mine[4 * k] * own[quarter(words[k], 0)], mine[4 * k + 1] * own[quarter(words[k], 1)]
                    c, d = mine[4 * k + 2] * own[quarter(words[k], 2)], mine[4 * k + 3] * own[quarter(words[k], 3)]
                    store128(products, GROUP * there, (a, b, c, d))
            group = np.uint32(group + AT_ONCE * MULTIPLIERS)
            ask(values, columns, group, last, mine, words)

    return multiply_kernel


@cuda.jit(device=True)
def add_eight(own, words, ends, total, head):
    """Add up eight values of a run to ``total``. The sum of a row takes the place of its last product.

    ``words``: their places, two a word. ``ends``: a bit for each says whether it is the last of its row. ``head``: the
    place of the first sum of the run, or NOWHERE. Returns what is behind the last sum, and ``head``.
    """
    places, products = cuda.local.array(EIGHT, np.uint32), cuda.local.array(EIGHT, np.float32)
    a, b, c, d = words
    places[0], places[2], places[4], places[6] = a & 0xFFFF, b & 0xFFFF, c & 0xFFFF, d & 0xFFFF
    places[1], places[3], places[5], places[7] = a >> 16, b >> 16, c >> 16, d >> 16
    for k in range(EIGHT):  # all at once: after a store the compiler must not load ahead
        products[k] = own[places[k]]
    for k in range(EIGHT):
        total += products[k]
        if ends >> np.uint32(k) & np.uint32(1):
            own[places[k]] = total
            total = f0
            if head == NOWHERE:
                head = places[k]
    return total, head


@cuda.jit(device=True)
def from_before(tail, ended, tails, any_ended):
    """What threads before this one have of the row in which its run begins.

    ``tail`` is what a thread has behind the last end of a row in its run, or all of the run if no row ``ended`` there.
    A sum by segments: tails are added up from the last thread on in whose run a row ended.
    """
    lane, warp = cuda.laneid, cuda.threadIdx.x // 32
    distance = 1
    while distance < 32:
        other, other_ended = cuda.shfl_up_sync(FULL_WARP, tail, distance), cuda.shfl_up_sync(FULL_WARP, ended, distance)
        if lane >= distance:
            if not ended:
                tail = other + tail
            ended |= other_ended
        distance *= 2
    if lane == 31:
        tails[warp], any_ended[warp] = tail, ended
    carried, has_ended = cuda.shfl_up_sync(FULL_WARP, tail, 1), cuda.shfl_up_sync(FULL_WARP, ended, 1)
    cuda.syncthreads()
    if lane == 0:
        carried, has_ended = f0, np.int32(0)
    if not has_ended:
        total = f0  # of the warps before this one
        for other_warp in range(warp):
            total = tails[other_warp] + (f0 if any_ended[other_warp] else total)
        carried = total + carried
    return carried


@functools.cache
def add_kernel_for(asynchronous: bool) -> typing.Any:
    """The second step, as `multiply_kernel_for` has the first one. Products always begin at a multiple of 16 bytes."""
    bring, wait = copies_for(asynchronous)

    @cuda.jit(device=True)
    def bring_piece(products, tiles, offsets, block, own):
        """The products of a piece into shared memory, tile behind tile. A warp takes every so many of the tiles.

        A warp reads where 32 tiles begin and end at a time, and its lanes tell each other.
        """
        warp, warps, slices = cuda.threadIdx.x // 32, cuda.blockDim.x // 32, np.int32(tiles.shape[1])
        for first in range(0, slices, 32):
            s = min(first + cuda.laneid, slices - 1)
            begin, end = tiles[block, s], tiles[block + 1, s]
            ahead = offsets[block, s] - begin
            for k in range(warp, min(32, slices - first), warps):
                group = np.uint32(cuda.shfl_sync(FULL_WARP, begin, k) + cuda.laneid)
                end_of_tile = np.uint32(cuda.shfl_sync(FULL_WARP, end, k))
                ahead_of_tile = np.uint32(cuda.shfl_sync(FULL_WARP, ahead, k))  # modulo 2^32
                while group < end_of_tile:
                    place = np.uint32(GROUP * np.uint32(group + ahead_of_tile))
                    bring(own, place, products, GROUP * np.uint64(group), GROUP)
                    group = np.uint32(group + 32)

    @cuda.jit(launch_bounds=(LONGEST // RUN, TOGETHER))
    def add_kernel(products, tiles, offsets, places, ends, firsts, filled, lasts, out, open_rows, open_sums):
        """A block a piece, and a thread a run of 32 values. ``places`` has a word for two."""
        own = cuda.shared.array(0, np.float32)  # the products of the piece
        tails, any_ended = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.int32)
        thread, runs, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x), np.int64(cuda.blockIdx.x)
        bring_piece(products, tiles, offsets, block, own)
        if thread == 0:
            own[GROUP * offsets[block, tiles.shape[1]]] = f0  # for what a shorter last piece lacks
        run = block * runs + thread
        word = ends[np.uint64(run)] if run < ends.size else np.uint32(0)
        at, step = GROUP * np.uint64(block * (RUN // EIGHT) * runs + thread), GROUP * np.uint64(runs)
        a, b = load128(places, at), load128(places, at + step)
        c, d = load128(places, at + np.uint64(2) * step), load128(places, at + np.uint64(3) * step)
        number, last = np.uint32(firsts[block] + thread), np.uint32(firsts[block + 1])  # of the rows that end here
        wait()
        cuda.syncthreads()
        total, head = add_eight(own, a, word, f0, NOWHERE)
        total, head = add_eight(own, b, word >> np.uint32(8), total, head)
        total, head = add_eight(own, c, word >> np.uint32(16), total, head)
        total, head = add_eight(own, d, word >> np.uint32(24), total, head)
        carried = from_before(total, np.int32(word != 0), tails, any_ended)
        if word:
            own[head] += carried  # the row in which the run begins
        else:
            total = carried + total
        cuda.syncthreads()
        while number < last:
            out[np.uint64(filled[np.uint64(number)])] = own[lasts[np.uint64(number)]]
            number = np.uint32(number + runs)
        if thread == runs - 1:
            open_rows[block] = filled[np.uint64(last)] if last < filled.size else out.size
            open_sums[block] = total

    return add_kernel


def by_tiles(matrix: Tiled, x, out, stream) -> None:
    """The product of a matrix that stores a value."""
    pieces, slices = matrix.offsets.shape[0], matrix.offsets.shape[1] - 1
    capability = device.limits()["compute_capability"]
    products = device.empty(matrix.values.size, np.float32, stream=stream)
    launch = matrix.slice_of.size, MULTIPLIERS, stream, 4 * matrix.width_of_slice
    parts = matrix.values, matrix.columns.view(np.int64), matrix.shares, matrix.slice_of, x
    asynchronous = capability >= CAPABILITY_OF["multiply_kernel_for"] and device.address(x) % 16 == 0
    multiply_kernel_for(asynchronous)[launch](*parts, np.int64(matrix.width_of_slice), products)
    if matrix.filled.size < out.size:
        set_to_zero(out, stream)
    open_rows = device.empty(pieces, np.int64, stream=stream)
    open_sums = device.empty(pieces, np.float32, stream=stream)
    launch = pieces, matrix.piece // RUN, stream, 4 * most_products(matrix.piece, slices)
    places, rows = matrix.places.view(np.uint32), (matrix.firsts, matrix.filled, matrix.lasts)
    parts = products, matrix.tiles, matrix.offsets, places, matrix.ends, *rows
    asynchronous = capability >= CAPABILITY_OF["add_kernel_for"]
    add_kernel_for(asynchronous)[launch](*parts, out, open_rows, open_sums)
    if pieces > 1:
        finish_kernel[pieces, BLOCK, stream](open_rows, open_sums, out)
