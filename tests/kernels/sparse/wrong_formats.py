"""Wrong products in other formats, and wrong ways to make them, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.sparse import formats, ladder, propagation_blocking
from pmpp.kernels.sparse.formats import NOTHING, f0, row_of
from pmpp.kernels.sparse.propagation_blocking import (
    EIGHT,
    GROUP,
    MULTIPLIERS,
    NOWHERE,
    RUN,
    add_eight,
    from_before,
    quarter,
    spot,
)
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung


def with_kernels(make, home=formats, **kernels):
    """The product in the format that ``make`` makes, with other kernels in the places of those of the module `home`."""

    def product(values, columns, starts, x):
        before = {name: getattr(home, name) for name in kernels}
        vars(home).update(kernels)
        try:
            return formats.multiply(make(values, columns, starts, x.size), x)
        finally:
            vars(home).update(before)

    product.__name__ = "_".join(getattr(kernel, "py_func", kernel).__name__ for kernel in kernels.values())
    return product


def and_back(make, home=formats, **kernels):
    """The product by compressed rows again, made of the format that ``make`` makes, with other kernels."""

    def product(values, columns, starts, x):
        before = {name: getattr(home, name) for name in kernels}
        vars(home).update(kernels)
        try:
            made = formats.to_rows(make(values, columns, starts, x.size))
        finally:
            vars(home).update(before)
        return ladder.by_row(made.values, made.columns, made.starts, x)

    product.__name__ = "_".join(kernel.py_func.__name__ for kernel in kernels.values())
    return product


@cuda.jit
def no_segments(values, columns, rows, x, out):
    """All lanes of a warp as if their values were of one row."""
    j = cuda.grid(1)
    row, total = np.int32(-1), f0
    if j < values.size:
        row, total = rows[j], values[j] * x[columns[j]]
    distance = 16
    while distance:
        total += cuda.shfl_down_sync(FULL_WARP, total, distance)
        distance //= 2
    if row >= 0 and cuda.laneid == 0:
        cuda.atomic.add(out, row, total)


@cuda.jit
def added_twice(values, columns, rows, x, out):
    """Past the last lane a shuffle gives a lane its own value."""
    j = cuda.grid(1)
    row, total = np.int32(-1), f0
    if j < values.size:
        row, total = rows[j], values[j] * x[columns[j]]
    before = cuda.shfl_up_sync(FULL_WARP, row, 1)
    distance = 1
    while distance < 32:
        other_row = cuda.shfl_down_sync(FULL_WARP, row, distance)
        other = cuda.shfl_down_sync(FULL_WARP, total, distance)
        if other_row == row:
            total += other
        distance *= 2
    if row >= 0 and (cuda.laneid == 0 or before != row):
        cuda.atomic.add(out, row, total)


@cuda.jit
def no_atomic_per_column(values, rows, starts, x, lanes, out):
    thread = cuda.grid(1)
    column, lane = thread // lanes, thread % lanes
    if column < x.size:
        for j in range(starts[column] + lane, starts[column + 1], lanes):
            out[rows[j]] += values[j] * x[column]


@cuda.jit
def filled_places_multiplied(values, columns, x, out):
    """A place that is filled up has 0 and no column: 0 times the last element of x is no number where that is none."""
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for k in range(values.shape[0]):
            total += values[k, row] * x[max(columns[k, row], x.size - 1)]
        out[row] = total


@cuda.jit
def not_filled(values, columns):
    """Only the values: a column is whatever was in memory."""
    i = cuda.grid(1)
    if i < values.size:
        values[i] = 0


@cuda.jit
def rest_from_the_end(
    values, columns, starts, values_out, columns_out, rest_ends, rest_values, rest_columns, rest_rows
):
    """The rest of a row is put where that of the next one begins."""
    j = cuda.grid(1)
    if j < values.size:
        row = row_of(j, starts)
        k, most = j - starts[row], values_out.shape[0]
        if k < most:
            values_out[k, row], columns_out[k, row] = values[j], columns[j]
        else:
            place = rest_ends[row] + k - most
            rest_values[place], rest_columns[place], rest_rows[place] = values[j], columns[j], row


@cuda.jit
def in_order_of_lengths(values, columns, starts, order, x, out):
    """The result is not put back into the order of rows."""
    place = cuda.grid(1)
    if place < order.size:
        total, k = f0, 0
        while k < starts.size - 1 and place < starts[k + 1] - starts[k]:
            j = starts[k] + place
            total += values[j] * x[columns[j]]
            k += 1
        out[place] = total


@cuda.jit
def all_as_long_as_the_first(values, columns, starts, order, x, out):
    place = cuda.grid(1)
    if place < order.size:
        total = f0
        for k in range(starts.size - 1):
            if starts[k] + place < values.size:
                total += values[starts[k] + place] * x[columns[starts[k] + place]]
        out[order[place]] = total


@cuda.jit
def rows_and_places_exchanged(order, places):
    i = cuda.grid(1)
    if i < order.size:
        places[i] = order[i]


@cuda.jit
def rest_in_front(values, columns, rest_values, rest_columns, rest_starts, starts, values_out, columns_out):
    """The rest begins where the row does, and so in the place of the row's first values."""
    row = cuda.grid(1)
    if row < starts.size - 1:
        at, k = starts[row], 0
        while k < columns.shape[0] and columns[k, row] != NOTHING:
            values_out[at + k], columns_out[at + k] = values[k, row], columns[k, row]
            k += 1
        for j in range(rest_starts[row], rest_starts[row + 1]):
            values_out[at], columns_out[at] = rest_values[j], rest_columns[j]
            at += 1


@cuda.jit
def place_for_row(starts, order, rows):
    """A value's place in its diagonal is taken for its row."""
    j = cuda.grid(1)
    if j < rows.size:
        rows[j] = j - starts[row_of(j, starts)]


def to_tiles(values, columns, starts, width):
    """Narrow slices, and pieces of two warps."""
    return formats.to_tiled(values, columns, starts, width, width_of_slice=32, piece=2048)


def tiled(way=with_kernels, **kernels):
    return way(to_tiles, home=propagation_blocking, **kernels)


def always(kernel):
    """What makes this kernel, and bears its name."""

    def maker(asynchronous):
        return kernel

    maker.__name__ = kernel.py_func.__name__
    return maker


@cuda.jit(device=True)
def the_slice(x, first, count, own):
    for i in range(cuda.threadIdx.x, count, MULTIPLIERS):
        own[i] = x[first + i]


@cuda.jit(device=True)
def always_the_first_slice(x, first, count, own):
    """A column of a slice is taken for a column of the matrix."""
    for i in range(cuda.threadIdx.x, count, MULTIPLIERS):
        own[i] = x[i]


@cuda.jit(device=True)
def not_the_whole_slice(x, first, count, own):
    """The last element is left out."""
    for i in range(cuda.threadIdx.x, count - 1, MULTIPLIERS):
        own[i] = x[first + i]


def multiplied(bring=the_slice, wait=True):
    """The first step, a value at a time, where ``bring`` brings the elements of x for a slice."""

    @cuda.jit
    def multiply(values, columns, shares, slice_of, x, width_of_slice, products):
        own, share = cuda.shared.array(0, np.float32), cuda.blockIdx.x
        first = slice_of[share] * width_of_slice
        bring(x, first, min(width_of_slice, x.size - first), own)
        if wait:
            cuda.syncthreads()
        for i in range(GROUP * shares[share] + cuda.threadIdx.x, GROUP * shares[share + 1], MULTIPLIERS):
            products[i] = values[i] * own[quarter(columns[i // GROUP], i % GROUP)]

    multiply.py_func.__name__ = f"multiply_{bring.py_func.__name__}" + ("" if wait else "_without_waiting")
    return tiled(multiply_kernel_for=always(multiply))


def never_waited_for(asynchronous, copies_for=propagation_blocking.copies_for):
    """Threads do not wait for their asynchronous copies."""

    @cuda.jit(device=True)
    def wait():
        pass

    return copies_for(asynchronous)[0], wait


def with_copies(copies_for, *makers):
    """The product where the kernels of these makers copy in another way."""
    again = {name: getattr(propagation_blocking, name).__wrapped__ for name in makers}
    return tiled(copies_for=copies_for, **again)


@cuda.jit(device=True)
def the_piece(products, tiles, offsets, block, own):
    for s in range(tiles.shape[1]):
        for i in range(GROUP * tiles[block, s] + cuda.threadIdx.x, GROUP * tiles[block + 1, s], cuda.blockDim.x):
            own[GROUP * (offsets[block, s] - tiles[block, s]) + i] = products[i]


@cuda.jit(device=True)
def only_the_first_slice(products, tiles, offsets, block, own):
    for i in range(GROUP * tiles[block, 0] + cuda.threadIdx.x, GROUP * tiles[block + 1, 0], cuda.blockDim.x):
        own[i - GROUP * tiles[block, 0]] = products[i]


@cuda.jit(device=True)
def tile_on_tile(products, tiles, offsets, block, own):
    """Each tile of a piece is brought to where the first one is."""
    for s in range(tiles.shape[1]):
        for i in range(GROUP * tiles[block, s] + cuda.threadIdx.x, GROUP * tiles[block + 1, s], cuda.blockDim.x):
            own[i - GROUP * tiles[block, s]] = products[i]
        cuda.syncthreads()


@cuda.jit(device=True)
def lower_halves_alone(own, words, ends, total, head):
    """Of the first two places the lower one is taken twice."""
    a, b, c, d = words
    return add_eight(own, (np.uint32((a & 0xFFFF) * 0x10001), b, c, d), ends, total, head)


@cuda.jit(device=True)
def nothing_from_before(tail, ended, tails, any_ended):
    """Each thread as if a row began with its run."""
    return f0


@cuda.jit(device=True)
def from_one_thread_before(tail, ended, tails, any_ended):
    """A row of more than two runs loses what the first ones have."""
    carried = cuda.shfl_up_sync(FULL_WARP, tail, 1)
    if cuda.laneid == 0:
        carried = f0
    return carried


@cuda.jit(device=True)
def from_the_own_warp(tail, ended, tails, any_ended):
    """What warps before have is left out."""
    distance = 1
    while distance < 32:
        other, other_ended = cuda.shfl_up_sync(FULL_WARP, tail, distance), cuda.shfl_up_sync(FULL_WARP, ended, distance)
        if cuda.laneid >= distance:
            if not ended:
                tail = other + tail
            ended |= other_ended
        distance *= 2
    carried = cuda.shfl_up_sync(FULL_WARP, tail, 1)
    if cuda.laneid == 0:
        carried = f0
    return carried


def added(bring=the_piece, before=from_before, eight=add_eight, wait=True):
    """The second step. ``bring`` brings the products, ``before`` knows what the threads before have, and ``eight`` adds
    up eight values."""

    @cuda.jit
    def add(products, tiles, offsets, places, ends, firsts, filled, lasts, out, open_rows, open_sums):
        own = cuda.shared.array(0, np.float32)
        tails, any_ended = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.int32)
        thread, runs, block = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x
        bring(products, tiles, offsets, block, own)
        if thread == 0:
            own[GROUP * offsets[block, tiles.shape[1]]] = f0
        word = ends[block * runs + thread] if block * runs + thread < ends.size else np.uint32(0)
        if wait:
            cuda.syncthreads()
        total, head = f0, NOWHERE
        for v in range(RUN // EIGHT):
            words = load128(places, GROUP * ((block * (RUN // EIGHT) + v) * runs + thread))
            total, head = eight(own, words, word >> np.uint32(EIGHT * v), total, head)
        carried = before(total, np.int32(word != 0), tails, any_ended)
        if word:
            own[head] += carried
        else:
            total = carried + total
        cuda.syncthreads()
        for number in range(firsts[block] + thread, firsts[block + 1], runs):
            out[filled[number]] = own[lasts[number]]
        if thread == runs - 1:
            open_rows[block] = filled[firsts[block + 1]] if firsts[block + 1] < filled.size else out.size
            open_sums[block] = total

    parts = [one.py_func.__name__ for one in (bring, before, eight) if one not in (the_piece, from_before, add_eight)]
    add.py_func.__name__ = "_".join(["add", *parts] + ([] if wait else ["without_waiting"]))
    return tiled(add_kernel_for=always(add))


@cuda.jit
def open_rows_never_finished(open_rows, open_sums, out):
    """What a piece has of a row that ends behind it is lost."""


def zeros_left_out(out, stream):
    """Rows without values are written by nobody."""


@cuda.jit
def tiles_not_filled_up(
    values, columns, order, before, begins, offsets, width_of_slice, piece, values_out, columns_out, places
):
    """Nothing is written behind the last value of a tile."""
    group, pieces = cuda.grid(1), before.shape[1] - 1
    if group < values_out.size // GROUP:
        tile = row_of(group, begins)
        s, p = tile // pieces, tile % pieces
        for k in range(GROUP):
            i = before[s, p] + (group - begins[tile]) * GROUP + k
            if i < before[s, p + 1]:
                j = order[i]
                values_out[group * GROUP + k] = values[j]
                columns_out[group * GROUP + k] = columns[j] - s * width_of_slice
                places[spot(p, j - p * piece, piece)] = GROUP * (offsets[p, s] + group - begins[tile]) + k


@cuda.jit
def places_by_rows(
    values, columns, order, before, begins, offsets, width_of_slice, piece, values_out, columns_out, places
):
    """A value's place by compressed rows is taken for the place of its product."""
    group, pieces = cuda.grid(1), before.shape[1] - 1
    if group < values_out.size // GROUP:
        tile = row_of(group, begins)
        s, p = tile // pieces, tile % pieces
        for k in range(GROUP):
            j = order[min(before[s, p] + (group - begins[tile]) * GROUP + k, before[s, p + 1] - 1)]
            values_out[group * GROUP + k] = values[j]
            columns_out[group * GROUP + k] = columns[j] - s * width_of_slice
            places[spot(p, j - p * piece, piece)] = j - p * piece


@cuda.jit
def nothing_behind_the_last_value(offsets, stored, piece, places):
    """The last piece has no places for the values that it lacks."""


@cuda.jit
def last_of_the_row_before(places, starts, filled, piece, lasts):
    number = cuda.grid(1)
    if number < filled.size:
        j = max(starts[filled[number]] - 1, 0)
        lasts[number] = places[spot(j // piece, j % piece, piece)]


@cuda.jit
def slice_left_out(values, columns, places, tiles, offsets, width_of_slice, piece, values_out, columns_out):
    """On the way back, the column in the slice is taken for the column."""
    j = cuda.grid(1)
    if j < values_out.size:
        p = j // piece
        place = np.int64(places[spot(p, j % piece, piece)])
        s = row_of(place // GROUP, offsets[p])
        i = GROUP * (tiles[p, s] - offsets[p, s]) + place
        values_out[j], columns_out[j] = values[i], columns[i]


RUNGS = [
    WrongRung(with_kernels(formats.to_coordinates, coordinates_kernel=no_segments), "wrong result"),
    WrongRung(with_kernels(formats.to_coordinates, coordinates_kernel=added_twice), "wrong result"),
    WrongRung(with_kernels(formats.to_columns, columns_kernel=no_atomic_per_column), "race"),
    WrongRung(with_kernels(formats.to_padded, padded_kernel=filled_places_multiplied), "wrong result"),
    WrongRung(with_kernels(formats.to_padded, fill_kernel=not_filled), "uninitialised read"),
    WrongRung(with_kernels(formats.to_hybrid, pad_kernel=rest_from_the_end), "out of bounds"),
    WrongRung(with_kernels(formats.to_jagged, jagged_kernel=in_order_of_lengths), "wrong result"),
    WrongRung(with_kernels(formats.to_jagged, jagged_kernel=all_as_long_as_the_first), "wrong result"),
    WrongRung(with_kernels(formats.to_jagged, places_kernel=rows_and_places_exchanged), "out of bounds"),
    WrongRung(and_back(formats.to_hybrid, unpad_kernel=rest_in_front), "out of bounds"),
    WrongRung(and_back(formats.to_jagged, places_in_diagonals_kernel=place_for_row), "wrong result"),
    WrongRung(multiplied(always_the_first_slice), "wrong result"),
    WrongRung(multiplied(not_the_whole_slice), "uninitialised read"),
    WrongRung(multiplied(wait=False), "race"),
    WrongRung(with_copies(never_waited_for, "multiply_kernel_for"), "race"),
    WrongRung(with_copies(never_waited_for, "add_kernel_for"), "race"),
    WrongRung(added(only_the_first_slice), "uninitialised read"),
    WrongRung(added(tile_on_tile), "uninitialised read"),
    WrongRung(added(eight=lower_halves_alone), "wrong result"),
    WrongRung(added(wait=False), "race"),
    WrongRung(added(before=nothing_from_before), "wrong result"),
    WrongRung(added(before=from_one_thread_before), "wrong result"),
    WrongRung(added(before=from_the_own_warp), "wrong result"),
    WrongRung(tiled(finish_kernel=open_rows_never_finished), "wrong result"),
    WrongRung(tiled(set_to_zero=zeros_left_out), "wrong result"),
    WrongRung(tiled(fill_kernel=tiles_not_filled_up), "out of bounds"),
    WrongRung(tiled(fill_kernel=places_by_rows), "wrong result"),
    WrongRung(tiled(no_values_kernel=nothing_behind_the_last_value), "out of bounds"),
    WrongRung(tiled(lasts_kernel=last_of_the_row_before), "wrong result"),
    WrongRung(tiled(and_back, rows_again_kernel=slice_left_out), "wrong result"),
]
RIGHT = [
    with_kernels(formats.to_padded, padded_kernel=formats.padded_kernel),
    multiplied(),
    added(),
    with_copies(propagation_blocking.copies_for, "multiply_kernel_for", "add_kernel_for"),
]
assert NOTHING == -1
