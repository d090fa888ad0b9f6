"""Wrong versions of `blur` that people write, each with the reason for which the tests reject it."""

from pmpp import cuda
from pmpp.kernels.images import blur as room
from tests.support.wrong import WrongRung


def version(kernel):
    """``kernel(x, out, radius)`` as a rung is called, with a thread for each pixel."""

    def blur(x, radius):
        p = room.arguments(x, radius)
        if not p.done:
            h, w = p.x.shape
            kernel[(-(-w // 32), -(-h // 8)), (32, 8)](p.x, p.result, p.radius)
        return p.result

    blur.__name__ = kernel.py_func.__name__ if hasattr(kernel, "py_func") else kernel.__name__
    return blur


@cuda.jit
def right(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, 0
        for i in range(max(row - radius, 0), min(row + radius + 1, out.shape[0])):
            for j in range(max(column - radius, 0), min(column + radius + 1, out.shape[1])):
                total += x[i, j]
                count += 1
        out[row, column] = (2 * total + count) // (2 * count)


@cuda.jit
def no_test_of_places(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, (2 * radius + 1) ** 2
        for i in range(row - radius, row + radius + 1):
            for j in range(column - radius, column + radius + 1):
                total += x[i, j]
        out[row, column] = (2 * total + count) // (2 * count)


@cuda.jit
def divides_by_the_whole_square(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, (2 * radius + 1) ** 2
        for i in range(max(row - radius, 0), min(row + radius + 1, out.shape[0])):
            for j in range(max(column - radius, 0), min(column + radius + 1, out.shape[1])):
                total += x[i, j]
        out[row, column] = (2 * total + count) // (2 * count)


@cuda.jit
def radius_less_one(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, 0
        for i in range(max(row - radius, 0), min(row + radius, out.shape[0])):  # range ends before its end
            for j in range(max(column - radius, 0), min(column + radius, out.shape[1])):
                total += x[i, j]
                count += 1
        out[row, column] = (2 * total + count) // (2 * count) if count else 0


@cuda.jit
def cut_off(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, 0
        for i in range(max(row - radius, 0), min(row + radius + 1, out.shape[0])):
            for j in range(max(column - radius, 0), min(column + radius + 1, out.shape[1])):
                total += x[i, j]
                count += 1
        out[row, column] = total // count


@cuda.jit
def in_place(x, out, radius):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total, count = 0, 0
        for i in range(max(row - radius, 0), min(row + radius + 1, out.shape[0])):
            for j in range(max(column - radius, 0), min(column + radius + 1, out.shape[1])):
                total += x[i, j]
                count += 1
        x[row, column] = (2 * total + count) // (2 * count)  # others still read it
        out[row, column] = x[row, column]


RIGHT = version(right)
RUNGS = (
    WrongRung(version(no_test_of_places), "out of bounds"),
    WrongRung(version(divides_by_the_whole_square), "wrong result"),
    WrongRung(version(radius_less_one), "wrong result"),
    WrongRung(version(cut_off), "wrong result"),
    WrongRung(version(in_place), "race"),
)
