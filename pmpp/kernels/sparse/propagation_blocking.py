"""A sparse matrix in tiles, and its product with a vector in two steps that read and write neighbours alone.

Chapter: notebooks/44_sparse.ipynb.  PMPP 4e sections 14.2 to 14.6, for what a format is; 5e ch. 17.

By compressed rows nearly every value asks for an element of x somewhere else in memory. Here the columns are cut into
*slices*, so narrow that the elements of x for a slice fit shared memory. And the values, row by row, are cut into
*pieces*, so short that the products of a piece fit shared memory. A *tile* has the values that a slice and a piece have
in common. Values are stored slice by slice, and in a slice piece by piece.

1. *Multiply.* A block brings the elements of x for a slice to shared memory, and multiplies its *share* of the values
   of this slice. Products are written where values are read.
2. *Add.* A block takes a piece, which has a run of neighbouring products in each slice. It brings them to shared
   memory, and so back into the order of rows. Each thread adds up 32 of them, whatever rows they are of. A bit for each
   value says whether it is the last of its row.

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
from pmpp.runtime.vector import load128, store128

WIDEST = 2**15  # columns of a slice: 128 KB of x
LONGEST = 2**14  # values of a piece: 64 KB of products, and 512 threads
SHORTEST = 2**10  # values of a piece: a warp
BESIDES = 2**10  # bytes of shared memory that a block needs besides
RUN = 32  # values that a thread adds up: as many as a word has bits
GROUP = 4  # values that a thread multiplies at a time: a vector of 128 bits, and their columns a word of 64
MULTIPLIERS = 1024  # threads a block of the first step
BATCH = 8  # elements of x that a thread asks for at a time
AT_ONCE = 2  # groups that it asks for at a time
HELD = AT_ONCE * GROUP


class Tiled(typing.NamedTuple):
    """Values by slices, in a slice by pieces, and in a tile in the order of rows.

    Tiles are filled up to groups of four: they repeat their last value. Value q of a piece by compressed rows belongs
    to *run* q // 32, and has place q % 32 * runs + q // 32 in shared memory: so threads that add up their runs read
    neighbours in each step.
    """

    values: typing.Any  # (4 groups,)
    columns: typing.Any  # in the slice, uint16
    places: typing.Any  # in the piece, uint16
    slices: typing.Any  # (slices + 1,): the group with which each slice starts
    shares: typing.Any  # (shares + 1,): the group with which each block of the first step starts
    slice_of: typing.Any  # (shares,): the slice that the share is of
    tiles: typing.Any  # (pieces + 1, slices): the group with which each tile starts
    ends: typing.Any  # (runs,): bit k of a word is 1 if value k of the run is the last of its row, uint32
    firsts: typing.Any  # (pieces + 1,): how many rows with values end before each piece
    filled: typing.Any  # the rows that have values, in order
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
def fill_kernel(values, columns, order, before, begins, width_of_slice, piece, values_out, columns_out, places):
    """A thread a group: a search finds its tile."""
    group, pieces = np.int64(cuda.grid(1)), before.shape[1] - 1
    if group < values_out.size // GROUP:
        tile = row_of(group, begins)
        s, p = tile // pieces, tile % pieces
        for k in range(GROUP):
            i = before[s, p] + (group - begins[tile]) * GROUP + k
            j = order[min(i, np.int64(before[s, p + 1] - 1))]
            q = j - p * piece
            values_out[group * GROUP + k] = values[j]
            columns_out[group * GROUP + k] = columns[j] - s * width_of_slice
            places[group * GROUP + k] = q % RUN * (piece // RUN) + q // RUN


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
    while 4 * most + BESIDES > device.limits()["max_shared_memory_per_multiprocessor"]:
        most //= 2
    return most


def tiled_of(values, columns, starts, shape, width_of_slice: int, piece: int, stream) -> Tiled:
    """A matrix by compressed rows, which has been checked, in tiles."""
    stored, empty = values.size, functools.partial(device.empty, stream=stream)
    if not stored:
        none, short, zero = empty(0, np.int32), empty(0, np.uint16), device.to_device(np.zeros(1, np.int32))
        no_tiles, no_ends = zero.reshape(1, 1), empty(0, np.uint32)
        rest = no_tiles, no_ends, none, none, starts, width_of_slice, piece, shape
        return Tiled(values, short, short, zero, zero, none, *rest)
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
    made, own, places = empty(size, np.float32), empty(size, np.uint16), empty(size, np.uint16)
    parts = values, columns, order, before, begins, np.int32(width_of_slice), np.int64(piece)
    fill_kernel[*_grid(size // GROUP), stream](*parts, made, own, places)

    there = empty(shape[0] + 1, np.int32)
    has_values_kernel[*_grid(there.size), stream](starts, there)
    numbers = scan.cumsum(there, exclusive=True, stream=stream)
    filled = empty(number_at(numbers, shape[0], stream), np.int32)
    filled_kernel[*_grid(shape[0]), stream](starts, numbers, filled)
    ends, firsts = empty(runs, np.uint32), empty(pieces + 1, np.int32)
    ends_kernel[*_grid(runs), stream](starts, filled, ends)
    firsts_kernel[*_grid(pieces + 1), stream](starts, filled, np.int64(piece), firsts)
    shared_out = device.to_device(shares), device.to_device(share_of)
    rest = tiles, ends, firsts, filled, starts, width_of_slice, piece, shape
    return Tiled(made, own, places, slice_starts, *shared_out, *rest)


@cuda.jit
def rows_again_kernel(values, columns, places, slices, tiles, width_of_slice, piece, values_out, columns_out):
    """A thread a group: searches find its slice and its piece, and so where its values were by compressed rows."""
    group = np.int64(cuda.grid(1))
    if group < values.size // GROUP:
        s, runs = row_of(group, slices), piece // RUN
        p = row_of(group, tiles[:, s])
        for k in range(GROUP):
            place = np.int64(places[group * GROUP + k])
            j = p * piece + place % runs * RUN + place // runs
            values_out[j] = values[group * GROUP + k]
            columns_out[j] = s * width_of_slice + columns[group * GROUP + k]


def rows_again(matrix: Tiled, values, columns, stream) -> None:
    """Write the values and columns of a matrix in tiles in the order of its rows."""
    parts = matrix.values, matrix.columns, matrix.places, matrix.slices, matrix.tiles
    sizes = np.int32(matrix.width_of_slice), np.int64(matrix.piece)
    rows_again_kernel[*_grid(matrix.values.size // GROUP), stream](*parts, *sizes, values, columns)


# ---------------------------------------------------------------------------------------------------------- its product


@cuda.jit(device=True)
def quarter(word, k):
    """Number k of the four numbers of 16 bits in a word of 64."""
    return word >> 16 * k & 0xFFFF


@cuda.jit(device=True)
def bring_slice(x, first, count, own):
    """``count`` elements of x from ``first`` on into shared memory; a thread has several on their way."""
    mine, i = cuda.local.array(BATCH, np.float32), np.uint32(cuda.threadIdx.x)
    while i < count:
        for k in range(BATCH):
            if np.uint32(i + k * MULTIPLIERS) < count:
                mine[k] = x[np.uint64(first + np.uint32(i + k * MULTIPLIERS))]
        for k in range(BATCH):
            if np.uint32(i + k * MULTIPLIERS) < count:
                own[np.uint32(i + k * MULTIPLIERS)] = mine[k]
        i = np.uint32(i + BATCH * MULTIPLIERS)


@cuda.jit(launch_bounds=(MULTIPLIERS, 1))
def multiply_kernel(values, columns, shares, slice_of, x, width_of_slice, products):
    """A block multiplies a share. ``columns`` has a word for a group.

    All loads of a thread are on their way before the first is used.
    """
    mine, words = cuda.local.array(HELD, np.float32), cuda.local.array(AT_ONCE, np.int64)
    own = cuda.shared.array(0, np.float32)  # the elements of x for the slice
    share = np.int64(cuda.blockIdx.x)
    first = np.int64(slice_of[share]) * width_of_slice
    bring_slice(x, first, np.uint32(min(width_of_slice, x.size - first)), own)
    cuda.syncthreads()
    group, last = np.uint32(shares[share] + cuda.threadIdx.x), np.uint32(shares[share + 1])
    while group < last:
        for k in range(AT_ONCE):
            there = np.uint64(np.uint32(group + k * MULTIPLIERS))
            if there < last:
                a, b, c, d = load128(values, GROUP * there)
                mine[4 * k], mine[4 * k + 1], mine[4 * k + 2], mine[4 * k + 3] = a, b, c, d
                words[k] = columns[there]
        for k in range(AT_ONCE):
            there = np.uint64(np.uint32(group + k * MULTIPLIERS))
            if there < last:
                a, b = mine[4 * k] * own[quarter(words[k], 0)], mine[4 * k + 1] * own[quarter(words[k], 1)]
                c, d = mine[4 * k + 2] * own[quarter(words[k], 2)], mine[4 * k + 3] * own[quarter(words[k], 3)]
                store128(products, GROUP * there, (a, b, c, d))
        group = np.uint32(group + AT_ONCE * MULTIPLIERS)


@cuda.jit(device=True)
def bring_tile(products, places, begin, end, own):
    """The products of the groups from ``begin`` to ``end`` into shared memory, each to its place. A warp does it.

    All loads of a lane are on their way before the first is used.
    """
    mine, words = cuda.local.array(HELD, np.float32), cuda.local.array(AT_ONCE, np.int64)
    group = np.uint32(begin + cuda.laneid)
    while group < end:
        for k in range(AT_ONCE):
            at = np.uint64(np.uint32(group + 32 * k))
            if at < end:
                a, b, c, d = load128(products, GROUP * at)
                mine[4 * k], mine[4 * k + 1], mine[4 * k + 2], mine[4 * k + 3] = a, b, c, d
                words[k] = places[at]
        for k in range(AT_ONCE):
            if np.uint32(group + 32 * k) < end:
                for i in range(GROUP):
                    own[quarter(words[k], i)] = mine[GROUP * k + i]
        group = np.uint32(group + 32 * AT_ONCE)


@cuda.jit(device=True)
def bring_piece(products, places, tiles, block, own):
    """The products of a piece into shared memory. A warp takes every so many of its tiles.

    A warp reads where 32 tiles begin and end at a time, and its lanes tell each other.
    """
    warp, warps, slices = cuda.threadIdx.x // 32, cuda.blockDim.x // 32, np.int32(tiles.shape[1])
    for first in range(0, slices, 32):
        s = min(first + cuda.laneid, slices - 1)
        begin, end = tiles[block, s], tiles[block + 1, s]
        for k in range(warp, min(32, slices - first), warps):
            begin_of_tile, end_of_tile = cuda.shfl_sync(FULL_WARP, begin, k), cuda.shfl_sync(FULL_WARP, end, k)
            bring_tile(products, places, np.uint32(begin_of_tile), np.uint32(end_of_tile), own)


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


@cuda.jit(launch_bounds=(LONGEST // RUN, 3))
def add_kernel(products, places, tiles, ends, firsts, filled, starts, out, open_rows, open_sums):
    """A block a piece, and a thread a run of 32 values, whatever rows they are of."""
    own = cuda.shared.array(0, np.float32)  # the products of the piece: value 0 of all runs, then value 1
    tails, any_ended = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.int32)
    thread, runs, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x), np.int64(cuda.blockIdx.x)
    if block == cuda.gridDim.x - 1:  # the last piece may be shorter
        place = thread
        while place < RUN * runs:
            own[place] = f0
            place = np.uint32(place + runs)
        cuda.syncthreads()
    run = block * runs + thread
    word = ends[np.uint64(run)] if run < ends.size else np.uint32(0)
    bring_piece(products, places, tiles, block, own)
    cuda.syncthreads()
    total, place = f0, thread
    for k in range(RUN):
        total += own[place]
        if word >> np.uint32(k) & np.uint32(1):  # the sum of a row takes the place of its last product
            own[place] = total
            total = f0
        place = np.uint32(place + runs)
    carried = from_before(total, np.int32(word != 0), tails, any_ended)
    if word:
        own[np.uint32((cuda.ffs(word) - 1) * runs + thread)] += carried  # the row in which the run begins
    else:
        total = carried + total
    cuda.syncthreads()
    number, last = np.int64(firsts[block]) + thread, np.int64(firsts[block + 1])  # of the rows that end in the piece
    while number < last:
        row = filled[np.uint64(number)]
        q = np.uint32(starts[np.uint64(row + 1)] - 1 - block * runs * RUN)
        out[np.uint64(row)] = own[np.uint32(q % RUN * runs + q // RUN)]
        number += runs
    if thread == runs - 1:
        open_rows[block] = filled[last] if last < filled.size else out.size
        open_sums[block] = total


def by_tiles(matrix: Tiled, x, out, stream) -> None:
    """The product of a matrix that stores a value."""
    pieces = matrix.tiles.shape[0] - 1
    products = device.empty(matrix.values.size, np.float32, stream=stream)
    launch = matrix.slice_of.size, MULTIPLIERS, stream, 4 * matrix.width_of_slice
    parts = matrix.values, matrix.columns.view(np.int64), matrix.shares, matrix.slice_of, x
    multiply_kernel[launch](*parts, np.int64(matrix.width_of_slice), products)
    if matrix.filled.size < out.size:
        set_to_zero(out, stream)
    open_rows = device.empty(pieces, np.int64, stream=stream)
    open_sums = device.empty(pieces, np.float32, stream=stream)
    parts = (
        products,
        matrix.places.view(np.int64),
        matrix.tiles,
        matrix.ends,
        matrix.firsts,
        matrix.filled,
        matrix.starts,
    )
    add_kernel[pieces, matrix.piece // RUN, stream, 4 * matrix.piece](*parts, out, open_rows, open_sums)
    if pieces > 1:
        finish_kernel[pieces, BLOCK, stream](open_rows, open_sums, out)
