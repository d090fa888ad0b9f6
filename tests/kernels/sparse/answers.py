"""Answers to the exercises of chapter 44: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- starts


@right("sparse/starts")
@cuda.jit
def starts_backwards(row, starts):
    """Each thread looks at its value and at the one behind it."""
    j = cuda.grid(1)
    if j == 0:
        for r in range(row[0] + 1):
            starts[r] = 0
    if j < row.size:
        r = row[j] + 1
        last = row[j + 1] if j + 1 < row.size else starts.size - 1
        while r <= last:
            starts[r] = j + 1
            r += 1


@wrong("sparse/starts", "empty rows left out")
@cuda.jit
def starts_of_rows_with_values(row, starts):
    j = cuda.grid(1)
    if j < row.size and (j == 0 or row[j] != row[j - 1]):
        starts[row[j]] = j
    if j == row.size:
        starts[starts.size - 1] = j


@wrong("sparse/starts", "output not written")
@cuda.jit
def starts_without_the_end(row, starts):
    j = cuda.grid(1)
    if j < row.size:
        first = row[j - 1] + 1 if j > 0 else 0
        for r in range(first, row[j] + 1):
            starts[r] = j


@wrong("sparse/starts", "missing guard")
@cuda.jit
def starts_unguarded(row, starts):
    j = cuda.grid(1)
    first = row[j - 1] + 1 if j > 0 else 0
    last = row[j] if j < row.size else starts.size - 1
    for r in range(first, last + 1):
        starts[r] = j


@wrong("sparse/starts", "output not written")
@cuda.jit
def starts_from_the_second_row(row, starts):
    j = cuda.grid(1)
    if 0 < j <= row.size:
        last = row[j] if j < row.size else starts.size - 1
        for r in range(row[j - 1] + 1, last + 1):
            starts[r] = j


@wrong("sparse/starts", "wrong result")
@cuda.jit
def starts_one_late(row, starts):
    j = cuda.grid(1)
    if j <= row.size:
        first = row[j - 1] + 1 if j > 0 else 0
        last = row[j] if j < row.size else starts.size - 1
        for r in range(first, last + 1):
            starts[r] = min(j + 1, row.size)


@wrong("sparse/starts", "only right for one block")
@cuda.jit
def starts_within_a_block(row, starts):
    j = cuda.threadIdx.x
    if j <= row.size:
        first = row[j - 1] + 1 if j > 0 else 0
        last = row[j] if j < row.size else starts.size - 1
        for r in range(first, last + 1):
            starts[r] = j


# -- ell


@right("sparse/ell")
@cuda.jit
def ell_until_the_end(values, columns, x, out):
    """Rows are filled from the top, so the first column of -1 ends one."""
    row = cuda.grid(1)
    if row < out.size:
        total, k = np.float32(0), 0
        while k < values.shape[0] and columns[k, row] != -1:
            total += values[k, row] * x[columns[k, row]]
            k += 1
        out[row] = total


@wrong("sparse/ell", "padding multiplied")
@cuda.jit
def ell_padding_is_column_0(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            total += values[k, row] * x[max(columns[k, row], 0)]
        out[row] = total


@wrong("sparse/ell", "negative index")
@cuda.jit
def ell_padding_wraps(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            total += values[k, row] * x[columns[k, row]]
        out[row] = total


@wrong("sparse/ell", "missing guard")
@cuda.jit
def ell_unguarded(values, columns, x, out):
    row = cuda.grid(1)
    total = np.float32(0)
    for k in range(values.shape[0]):
        column = columns[k, row]
        if column >= 0:
            total += values[k, row] * x[column]
    out[row] = total


@wrong("sparse/ell", "wrong result")
@cuda.jit
def ell_column_0_is_padding(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            column = columns[k, row]
            if column > 0:
                total += values[k, row] * x[column]
        out[row] = total


@wrong("sparse/ell", "accidental float64")
@cuda.jit
def ell_in_float64(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = 0.0
        for k in range(values.shape[0]):
            column = columns[k, row]
            if column >= 0:
                total += values[k, row] * x[column]
        out[row] = total


@wrong("sparse/ell", "uncoalesced")
@cuda.jit
def ell_by_one_lane_of_a_warp(values, columns, x, out):
    """A lane takes 32 rows that follow one another, and its neighbours are far away."""
    thread = cuda.grid(1)
    threads = cuda.gridDim.x * cuda.blockDim.x
    each = (out.size + threads - 1) // threads
    for row in range(thread * 8 * each, min((thread + 1) * 8 * each, out.size)):
        total = np.float32(0)
        for k in range(values.shape[0]):
            column = columns[k, row]
            if column >= 0:
                total += values[k, row] * x[column]
        out[row] = total


@wrong("sparse/ell", "negative index")
@cuda.jit
def ell_value_not_0(values, columns, x, out):
    """The value is tested, and not the column."""
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            if values[k, row] != 0:
                total += values[k, row] * x[columns[k, row]]
        out[row] = total


@wrong("sparse/ell", "padding times 0")
@cuda.jit
def ell_padding_as_a_factor(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            column = columns[k, row]
            total += np.float32(column >= 0) * values[k, row] * x[max(column, 0)]
        out[row] = total


# -- transposed


@right("sparse/transposed")
@cuda.jit
def transposed_with_x_kept(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        own, j = x[row], starts[row]
        while j < starts[row + 1]:
            cuda.atomic.add(out, columns[j], own * values[j])
            j += 1


@wrong("sparse/transposed", "missing atomic")
@cuda.jit
def transposed_without_atomic(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            out[columns[j]] += values[j] * x[row]


@wrong("sparse/transposed", "missing guard")
@cuda.jit
def transposed_unguarded(values, columns, starts, x, out):
    row = cuda.grid(1)
    for j in range(starts[row], starts[row + 1]):
        cuda.atomic.add(out, columns[j], values[j] * x[row])


@wrong("sparse/transposed", "wrong result")
@cuda.jit
def transposed_guarded_by_out(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < min(out.size, x.size):
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[row])


@wrong("sparse/transposed", "output not written")
@cuda.jit
def transposed_one_short(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row] + 1, starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[row])


@wrong("sparse/transposed", "argument ignored")
@cuda.jit
def transposed_by_place(values, columns, starts, x, out):
    """The place of a value is taken for its column."""
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, j % out.size, values[j] * x[row])


@wrong("sparse/transposed", "wrong result")
@cuda.jit
def transposed_within_a_block(values, columns, starts, x, out):
    row = cuda.threadIdx.x
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[row])


@wrong("sparse/transposed", "not transposed", "x has an element for each row")
@cuda.jit
def transposed_not_at_all(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * x[columns[j]]
        out[row] = total


@wrong("sparse/transposed", "not transposed", "x has an element for each row")
@cuda.jit
def transposed_not_at_all_with_guards(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size and row < out.size:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            if columns[j] < x.size:
                total += values[j] * x[columns[j]]
        out[row] = total


@wrong("sparse/transposed", "x of the column", "x has an element for each row")
@cuda.jit
def transposed_by_x_of_the_column(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[columns[j]])


@wrong("sparse/transposed", "x of the column", "x has an element for each row")
@cuda.jit
def transposed_by_x_of_the_column_if_there(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            if columns[j] < x.size:
                cuda.atomic.add(out, columns[j], values[j] * x[columns[j]])


@wrong("sparse/transposed", "idle threads", "nobody searches all rows")
@cuda.jit
def transposed_by_a_thread_a_column(values, columns, starts, x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.size):
            for j in range(starts[row], starts[row + 1]):
                if columns[j] == column:
                    total += values[j] * x[row]
        out[column] = total


@wrong("sparse/transposed", "too much traffic", "nobody searches all rows")
@cuda.jit
def transposed_by_a_choice_in_each_step(values, columns, starts, x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.size):
            for j in range(starts[row], starts[row + 1]):
                total += values[j] * x[row] if columns[j] == column else np.float32(0)
        out[column] = total


# -- dense


@right("sparse/dense")
@cuda.jit
def dense_one_by_one(values, columns, starts, b, out):
    """Where a row ends is looked up in each step."""
    thread = cuda.grid(1)
    if thread < out.size:
        row, column = thread // out.shape[1], thread % out.shape[1]
        total, j = np.float32(0), starts[row]
        while j < starts[row + 1]:
            total += b[columns[j], column] * values[j]
            j += 1
        out[row, column] = total


@wrong("sparse/dense", "uncoalesced")
@cuda.jit
def dense_neighbours_take_rows(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread % out.shape[0], thread // out.shape[0]
    if column < out.shape[1]:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@wrong("sparse/dense", "index out of bounds")
@cuda.jit
def dense_unguarded(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    total = np.float32(0)
    for j in range(starts[row], starts[row + 1]):
        total += values[j] * b[columns[j], column]
    out[row, column] = total


@wrong("sparse/dense", "output not written")
@cuda.jit
def dense_only_rows_with_values(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0] and starts[row] < starts[row + 1]:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@wrong("sparse/dense", "wrong result")
@cuda.jit
def dense_one_short(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = np.float32(0)
        for j in range(starts[row] + 1, starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@wrong("sparse/dense", "row for column", "its column says")
@cuda.jit
def dense_by_the_own_row(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = np.float32(0)
        if row < b.shape[0]:
            for j in range(starts[row], starts[row + 1]):
                total += values[j] * b[row, column]
        out[row, column] = total


@wrong("sparse/dense", "wrong result")
@cuda.jit
def dense_without_the_last_column(values, columns, starts, b, out):
    """The last column is taken for the first."""
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], (column + 1) % out.shape[1]]
        out[row, column] = total
