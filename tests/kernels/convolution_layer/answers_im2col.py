"""More answers to the exercises on im2col: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
COLUMNS, BACK = "im2col/columns", "im2col/back"
f0 = np.float32(0)


@right(COLUMNS)
@cuda.jit
def columns_by_element(x, columns):
    for i in range(cuda.grid(1), columns.size, cuda.gridsize(1)):
        row, pixel = i // columns.shape[1], i % columns.shape[1]
        y, z = pixel // x.shape[2] + row // 3 % 3 - 1, pixel % x.shape[2] + row % 3 - 1
        value = f0
        if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
            value = x[row // 9, y, z]
        columns[row, pixel] = value


@wrong(COLUMNS, "race", "Look at the index, or at which of them should write")
@cuda.jit
def columns_of_all_channels_in_one_place(x, columns):
    i = cuda.grid(1)
    if i < x.size:
        height, width = x.shape[1], x.shape[2]
        c, pixel = i // (height * width), i % (height * width)
        for tap in range(9):
            y, z = pixel // width + tap // 3 - 1, pixel % width + tap % 3 - 1
            columns[tap, pixel] = x[c, y, z] if 0 <= y < height and 0 <= z < width else f0


@right(BACK)
@cuda.jit
def back_by_pixel(g, slope):
    i = cuda.grid(1)
    if i < slope.size:
        height, width = slope.shape[1], slope.shape[2]
        c, y, z = i // width // height, i // width % height, i % width
        total = f0
        for p in range(max(y - 1, 0), min(y + 2, height)):
            for q in range(max(z - 1, 0), min(z + 2, width)):
                total += g[9 * c + 3 * (y - p + 1) + z - q + 1, p * width + q]
        slope[c, y, z] = total


@wrong(BACK, "wrong result", "1 channel of 1 x 1")
@cuda.jit
def back_with_a_test_of_the_pixel_alone(g, slope):
    i = cuda.grid(1)
    if i < slope.size:
        height, width = slope.shape[1], slope.shape[2]
        c, y, z = i // width // height, i // width % height, i % width
        total = f0
        for r in range(3):
            for s in range(3):
                pixel = (y - r + 1) * width + z - s + 1
                if 0 <= pixel < height * width:
                    total += g[9 * c + 3 * r + s, pixel]
        slope[c, y, z] = total


@wrong(BACK, "too much traffic", "stores move")
@cuda.jit
def back_added_up_in_device_memory(g, slope):
    i = cuda.grid(1)
    if i < slope.size:
        height, width = slope.shape[1], slope.shape[2]
        c, y, z = i // width // height, i // width % height, i % width
        slope[c, y, z] = 0
        for r in range(3):
            for s in range(3):
                p, q = y - r + 1, z - s + 1
                if 0 <= p < height and 0 <= q < width:
                    slope[c, y, z] += g[9 * c + 3 * r + s, p * width + q]


def back_scattered(barrier, name):
    """Each pixel adds its nine numbers to the elements that they came from, atomically, after a 0."""

    @cuda.jit
    def kernel(g, slope):
        i, pixels = cuda.grid(1), slope.shape[1] * slope.shape[2]
        c, pixel = i // pixels, i % pixels
        p, q = pixel // slope.shape[2], pixel % slope.shape[2]
        if i < slope.size:
            slope[c, p, q] = 0
        if barrier:
            cuda.syncthreads()
        if i < slope.size:
            for tap in range(9):
                y, z = p + tap // 3 - 1, q + tap % 3 - 1
                if 0 <= y < slope.shape[1] and 0 <= z < slope.shape[2]:
                    cuda.atomic.add(slope, (c, y, z), g[9 * c + tap, pixel])

    kernel.py_func.__name__ = name
    return kernel


wrong(BACK, "missing barrier", "Gather")(back_scattered(False, "back_scattered_without_a_barrier"))
wrong(BACK, "race between blocks", "Gather")(back_scattered(True, "back_scattered_over_zeros_of_other_blocks"))


@wrong(COLUMNS, "axes exchanged", r"columns\[i, j\] holds what belongs into columns\[j, i\]")
@cuda.jit
def columns_as_rows(x, columns):
    i, pixels = cuda.grid(1), x.shape[1] * x.shape[2]
    if i < x.size:
        c, pixel = i // pixels, i % pixels
        for tap in range(9):
            y, z = pixel // x.shape[2] + tap // 3 - 1, pixel % x.shape[2] + tap % 3 - 1
            inside = 0 <= y < x.shape[1] and 0 <= z < x.shape[2]
            columns[pixel, 9 * c + tap] = x[c, y, z] if inside else np.float32(0)
