"""Wrong products in other formats, and wrong ways to make them, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.sparse import formats, ladder
from pmpp.kernels.sparse.formats import NOTHING, f0, row_of
from tests.support.wrong import WrongRung


def with_kernels(make, **kernels):
    """The product in the format that ``make`` makes, with other kernels in the places of those of `formats`."""

    def product(values, columns, starts, x):
        before = {name: getattr(formats, name) for name in kernels}
        vars(formats).update(kernels)
        try:
            return formats.multiply(make(values, columns, starts, x.size), x)
        finally:
            vars(formats).update(before)

    product.__name__ = "_".join(kernel.py_func.__name__ for kernel in kernels.values())
    return product


def and_back(make, **kernels):
    """The product by compressed rows again, made of the format that ``make`` makes, with other kernels."""

    def product(values, columns, starts, x):
        before = {name: getattr(formats, name) for name in kernels}
        vars(formats).update(kernels)
        try:
            made = formats.to_rows(make(values, columns, starts, x.size))
        finally:
            vars(formats).update(before)
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
]
RIGHT = [with_kernels(formats.to_padded, padded_kernel=formats.padded_kernel)]
assert NOTHING == -1
