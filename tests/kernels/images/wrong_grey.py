"""Wrong versions of `grey` that people write, each with the reason for which the tests reject it."""

from pmpp import cuda
from pmpp.kernels.images import grey as room
from pmpp.kernels.images.grey import brightness
from tests.support.wrong import WrongRung


def version(kernel, across=True):
    """``kernel(x, out)`` as a rung is called, with a thread for each pixel; ``across``: x counts the columns."""

    def grey(x):
        p = room.arguments(x)
        if not p.done:
            h, w = p.result.shape
            grid = (-(-w // 32), -(-h // 8)) if across else (-(-h // 32), -(-w // 8))
            kernel[grid, (32, 8)](p.x, p.result)
        return p.result

    grey.__name__ = kernel.py_func.__name__ if hasattr(kernel, "py_func") else kernel.__name__
    return grey


@cuda.jit
def right(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@cuda.jit
def no_test(x, out):
    column, row = cuda.grid(2)
    out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@cuda.jit
def one_row_too_many(x, out):
    column, row = cuda.grid(2)
    if row <= out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@cuda.jit
def rows_by_columns(x, out):
    row, column = cuda.grid(2)  # the grid has its x along the columns
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@cuda.jit
def cut_off(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = (54 * x[row, column, 0] + 184 * x[row, column, 1] + 18 * x[row, column, 2]) // 256


@cuda.jit
def blue_first(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 2], x[row, column, 1], x[row, column, 0])


@cuda.jit
def in_float64(x, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = 54.0 * x[row, column, 0] + 184.0 * x[row, column, 1] + 18.0 * x[row, column, 2]
        out[row, column] = int(total / 256.0 + 0.5)


RIGHT = version(right)
RUNGS = (
    WrongRung(version(no_test), "out of bounds"),
    WrongRung(version(one_row_too_many), "out of bounds"),
    WrongRung(version(rows_by_columns), "wrong result"),
    WrongRung(version(cut_off), "wrong result"),
    WrongRung(version(blue_first), "wrong result"),
    WrongRung(version(in_float64), "float64"),
)
