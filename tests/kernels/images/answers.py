"""Answers to the exercises of chapter 10: wrong ones with their mistakes, and other right ones."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MIRROR, GREEN = "images/mirror", "images/green"


# -- mirror


@right(MIRROR)
@cuda.jit
def mirror_by_stores(x, out):
    column, row = cuda.grid(2)
    if row >= x.shape[0] or column >= x.shape[1]:
        return
    for colour in range(3):
        out[row, x.shape[1] - 1 - column, colour] = x[row, column, colour]


@right(MIRROR)
@cuda.jit
def mirror_from_the_end(x, out):
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.shape[0] and column < out.shape[1]:
        for colour in range(3):
            out[row, column, colour] = x[row, -1 - column, colour]


@wrong(MIRROR, "missing guard")
@cuda.jit
def mirror_without_a_test(x, out):
    column, row = cuda.grid(2)
    for colour in range(3):
        out[row, column, colour] = x[row, x.shape[1] - 1 - column, colour]


@wrong(MIRROR, "missing guard")
@cuda.jit
def mirror_tests_columns_alone(x, out):
    column, row = cuda.grid(2)
    if column < x.shape[1]:
        for colour in range(3):
            out[row, column, colour] = x[row, x.shape[1] - 1 - column, colour]


@wrong(MIRROR, "wrong axis order")
@cuda.jit
def mirror_rows_first(x, out):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        for colour in range(3):
            out[row, column, colour] = x[row, x.shape[1] - 1 - column, colour]


@wrong(MIRROR, "wrong way round", "upside down")
@cuda.jit
def mirror_of_rows(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        for colour in range(3):
            out[row, column, colour] = x[x.shape[0] - 1 - row, column, colour]


@wrong(MIRROR, "colours exchanged")
@cuda.jit
def mirror_of_colours(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        for colour in range(3):
            out[row, column, colour] = x[row, x.shape[1] - 1 - column, 2 - colour]


@wrong(MIRROR, "output not written")
@cuda.jit
def mirror_of_red(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column, 0] = x[row, x.shape[1] - 1 - column, 0]


# -- green


@right(GREEN)
@cuda.jit
def green_by_a_running_place(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        place = 3 * out.shape[1] * row + 3 * column
        out[row, column] = x[place + 1]


@right(GREEN)
@cuda.jit
def green_by_number(x, out):
    column, row = cuda.grid(2)
    pixel = row * out.shape[1] + column
    if column < out.shape[1] and pixel < out.size:
        out[pixel // out.shape[1], pixel % out.shape[1]] = x[3 * pixel + 1]


@wrong(GREEN, "missing guard")
@cuda.jit
def green_without_a_test(x, out):
    column, row = cuda.grid(2)
    out[row, column] = x[3 * (row * out.shape[1] + column) + 1]


@wrong(GREEN, "wrong colour", "This is red")
@cuda.jit
def green_is_red(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[3 * (row * out.shape[1] + column)]


@wrong(GREEN, "wrong layout")
@cuda.jit
def green_of_planes(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[out.size + row * out.shape[1] + column]


@wrong(GREEN, "wrong stride")
@cuda.jit
def green_with_rows_of_pixels(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[row * out.shape[1] + 3 * column + 1]


@wrong(GREEN, "wrong axis order")
@cuda.jit
def green_rows_first(x, out):
    row, column = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[3 * (row * out.shape[1] + column) + 1]


@wrong(GREEN, "wrong result")
@cuda.jit
def green_column_by_column(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[3 * (column * out.shape[0] + row) + 1]
