"""Answers to the exercises of chapter 88 on elements: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
VIEW, CHOOSE = "elementwise/view", "elementwise/choose"
f0 = np.float32(0)


# -- view


@right(VIEW)
@cuda.jit
def view_by_a_loop(x, first, down, along, out):
    rows, columns = out.shape
    for i in range(cuda.grid(1), rows * columns, cuda.gridsize(1)):
        row, column = divmod(i, columns)
        out[row, column] = x[column * along + first + down * row]


@right(VIEW)
@cuda.jit
def view_that_returns_early(x, first, down, along, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= out.size:
        return
    row = i // out.shape[1]
    column = i - row * out.shape[1]
    first += row * down + column * along
    out[row, column] = x[first]


@wrong(VIEW, "strides exchanged")
@cuda.jit
def view_with_strides_exchanged(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        place = first + row * along + column * down
        out[row, column] = x[place] if place < x.size else f0


@wrong(VIEW, "strides ignored")
@cuda.jit
def view_in_order(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size and first + i < x.size:
        out[i // out.shape[1], i % out.shape[1]] = x[first + i]


@wrong(VIEW, "first ignored")
@cuda.jit
def view_from_the_beginning(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = x[row * down + column * along]


@wrong(VIEW, "missing guard")
@cuda.jit
def view_without_guard(x, first, down, along, out):
    i = cuda.grid(1)
    row, column = i // out.shape[1], i % out.shape[1]
    out[row, column] = x[first + row * down + column * along]


@wrong(VIEW, "missing guard", "look at how this one is computed")
@cuda.jit
def view_with_the_rows_for_columns(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[0], i % out.shape[0]
        out[row, column] = x[first + row * down + column * along]


@wrong(VIEW, "only right for one block")
@cuda.jit
def view_of_the_first_block(x, first, down, along, out):
    i = cuda.threadIdx.x
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = x[first + row * down + column * along]


# -- choose


@right(CHOOSE)
@cuda.jit
def choose_in_two_branches(mask, a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        row, column = divmod(i, b.size)
        if not mask[row] <= f0:
            out[row, column] = a[row, column]
        else:
            out[row, column] = b[column]


@right(CHOOSE)
@cuda.jit
def choose_by_a_loop(mask, a, b, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        row, column = i // a.shape[1], i % a.shape[1]
        value = b[column]
        if mask[row] > f0:
            value = a[row, column]
        out[row, column] = value


@wrong(CHOOSE, "a and b exchanged")
@cuda.jit
def choose_the_other(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = b[column] if mask[row] > f0 else a[row, column]


@wrong(CHOOSE, "mask of the column")
@cuda.jit
def choose_by_column(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[column % mask.size] > f0 else b[column]


@wrong(CHOOSE, "b of the row")
@cuda.jit
def choose_b_by_row(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[row] > f0 else b[row % b.size]


@wrong(CHOOSE, "missing guard")
@cuda.jit
def choose_without_guard(mask, a, b, out):
    i = cuda.grid(1)
    row, column = i // out.shape[1], i % out.shape[1]
    out[row, column] = a[row, column] if mask[row] > f0 else b[column]


@wrong(CHOOSE, "accidental float64")
@cuda.jit
def choose_in_float64(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = 1.0 * a[row, column] if mask[row] > f0 else b[column]


@wrong(CHOOSE, "mixed", r"is nan, and should be.*choose an element")
@cuda.jit
def choose_by_a_product(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        share = np.float32(mask[row] > f0)
        out[row, column] = share * a[row, column] + (np.float32(1) - share) * b[column]


@wrong(CHOOSE, "wrong result", "with 1 x 1")
@cuda.jit
def choose_a_mixture(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = mask[row] * a[row, column] + (np.float32(1) - mask[row]) * b[column]


@wrong(CHOOSE, "below 0 counts")
@cuda.jit
def choose_by_the_truth(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[row] else b[column]


@wrong(CHOOSE, "only 1 counts")
@cuda.jit
def choose_by_equality(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[row] == np.float32(1) else b[column]


@wrong(CHOOSE, "uncoalesced")
@cuda.jit
def choose_down_the_columns(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i % out.shape[0], i // out.shape[0]
        out[row, column] = a[row, column] if mask[row] > f0 else b[column]
