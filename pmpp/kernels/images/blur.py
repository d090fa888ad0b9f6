"""Box blur: each pixel becomes the mean of a square of pixels around it.

Chapter: notebooks/10_images.ipynb.  PMPP 4e ch. 3.

A pixel is one byte in and one byte out, whatever the radius r is. The mean of its square, taken by itself, needs
(2 r + 1)^2 additions. So memory is the bound of the definition, and arithmetic that of the naive kernel. Neighbouring
squares have most of their pixels in common: sums that are kept make the work as little for a large radius as for a
small one.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import check, device
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("uint8",)
WIDE, HIGH = 32, 8  # a block's threads along x and along y
BLOCK = 128  # threads of a block that walk side by side
STRIP = 128  # rows that a thread walks down
RUN = 16  # neighbours in a row that a thread computes one after another
MOST = 65535 * HIGH  # rows or columns: a grid has at most 65,535 blocks along y
MOST_RADIUS = 1023  # 511 times the 2047^2 pixels of a square are less than 2^31


def reference(x: np.ndarray, radius: int) -> np.ndarray:
    """The blurred image (h, w) of a grey image (h, w), both uint8, a pixel at a time.

    A pixel is the mean of the pixels at most ``radius`` rows and columns away. What would lie outside of the image is
    not counted. The mean is rounded to the nearest; a half is rounded up.
    """
    out = np.empty_like(x)
    for row, column in np.ndindex(x.shape):
        rows = slice(max(row - radius, 0), row + radius + 1)
        columns = slice(max(column - radius, 0), column + radius + 1)
        total, count = int(x[rows, columns].sum(dtype=np.int64)), x[rows, columns].size
        out[row, column] = (2 * total + count) // (2 * count)
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, int]]:
    """Small awkward images: a name, and ``(x, radius)``."""
    rng = np.random.default_rng(11) if rng is None else rng
    cases = {"one": (1, 1, 1), "a row": (1, 77, 2), "a column": (77, 1, 2)}
    cases |= {"no rows": (0, 5, 1), "no columns": (5, 0, 1)}
    cases |= {f"a block {d:+}": (HIGH + d, WIDE + d, 1) for d in (-1, 0, 1)}
    cases |= {f"a strip {d:+}": (STRIP + d, 3, 2) for d in (-1, 0, 1)}
    cases |= {f"a run {d:+}": (3, RUN + d, 2) for d in (-1, 0, 1)}
    cases |= {"radius 0": (9, 35, 0), "radius 5": (19, 43, 5), "a radius beyond the image": (5, 7, 12)}
    made = {name: (rng.integers(0, 256, (h, w), dtype=np.uint8), r) for name, (h, w, r) in cases.items()}
    made["white"] = (np.full((10, 40), 255, np.uint8), 3)  # 255 must stay 255
    made["halves"] = (np.tile(np.uint8([0, 1]), (1, 9)), 1)
    made["halves at the corners"] = (np.uint8([[0, 0], [1, 1]]), 1)
    return made


def tolerance(x: np.ndarray, radius: int) -> float:
    """0: the arithmetic is of integers, and exact."""
    return 0.0


def cost(h: int, w: int) -> Cost:
    """No operation in floating point; each byte read once and written once, whatever the radius is."""
    return Cost(flops=0, bytes=2 * h * w)


def arguments(x, radius, *, out=None, stream=0) -> Problem:
    """Blur a grey image.

    Args:
        x: a uint8 image of shape (h, w), contiguous in C order. h and w are from 0 to 524,280.
        radius: how many rows and columns away a pixel may be that counts, from 0 to 1023.
        out: a uint8 device array of shape (h, w) in C order, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done: each pixel is the mean of the pixels around it that are in
    the image, rounded to the nearest, and a half up. PMPP cuts off instead.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.images import blur
    >>> blur.running(np.uint8([[0, 0, 0, 90, 0, 0]]), 1).copy_to_host()
    array([[ 0,  0, 30, 30, 30,  0]], dtype=uint8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    if max(x.shape) > MOST:
        raise ValueError(f"x must have at most {MOST} rows and columns, had shape {tuple(x.shape)}")
    radius = check.as_integer("radius", radius, 0, MOST_RADIUS)
    out = device.as_output("out", out, shape=x.shape, dtype=np.uint8, apart={"x": x}, stream=stream)
    return Problem(out, stream=stream, x=x, radius=radius)


@cuda.jit(device=True)
def mean(total, count):
    """total / count, rounded to the nearest, and a half up."""
    return (2 * total + count) // (2 * count)


@cuda.jit(device=True)
def covered(at, radius, size):
    """How many of the places at - radius to at + radius are from 0 to size - 1."""
    return min(at + radius + 1, size) - max(at - radius, 0)


@cuda.jit
def direct_kernel(x, out, radius):
    column, row = cuda.grid(2)
    h, w = out.shape
    if row < h and column < w:
        total, count = 0, 0
        for i in range(row - radius, row + radius + 1):
            for j in range(column - radius, column + radius + 1):
                if 0 <= i < h and 0 <= j < w:
                    total += x[i, j]
                    count += 1
        out[row, column] = mean(total, count)


@rung(direct_kernel)
def direct(p):
    """One thread for each pixel adds up its whole square, and tests of each place whether it is in the image.

    Source: PMPP 4e section 3.3.

    Leaves: (2 r + 1)^2 loads, tests and additions for a pixel; its neighbour does nearly all of them again.
    """
    h, w = p.x.shape
    direct_kernel[(blocks(w, WIDE), blocks(h, HIGH)), (WIDE, HIGH), p.stream](p.x, p.result, p.radius)


@cuda.jit
def down_kernel(x, sums, radius):
    column, row = cuda.grid(2)
    h, w = sums.shape
    if row < h and column < w:
        total = 0
        for i in range(max(row - radius, 0), min(row + radius + 1, h)):
            total += x[i, column]
        sums[row, column] = total


@cuda.jit
def along_kernel(sums, out, radius):
    column, row = cuda.grid(2)
    h, w = out.shape
    if row < h and column < w:
        total = 0
        for j in range(max(column - radius, 0), min(column + radius + 1, w)):
            total += sums[row, j]
        out[row, column] = mean(total, covered(row, radius, h) * covered(column, radius, w))


@rung(down_kernel, along_kernel)
def separable(p):
    """The sum of a square is a sum of sums: one kernel adds down the columns, a second one adds these along the rows.

    The limits of the loops are computed beforehand, so that no place is tested. The sums between have four bytes each.

    Source: PMPP 4e section 3.3; L. G. Shapiro and G. C. Stockman, "Computer vision" (2001), section 5.3.

    Leaves: 2 (2 r + 1) loads for a pixel. The sum of the next row has all but one of these pixels in it.
    """
    h, w = p.x.shape
    grid, block = (blocks(w, WIDE), blocks(h, HIGH)), (WIDE, HIGH)
    sums = device.empty((h, w), np.int32, stream=p.stream)
    down_kernel[grid, block, p.stream](p.x, sums, p.radius)
    along_kernel[grid, block, p.stream](sums, p.result, p.radius)


@cuda.jit
def running_down_kernel(x, sums, radius):
    column, first = cuda.grid(1), cuda.blockIdx.y * STRIP
    h, w = sums.shape
    if column < w:
        total = 0
        for i in range(max(first - radius, 0), min(first + radius, h)):
            total += x[i, column]
        for row in range(first, min(first + STRIP, h)):
            if row + radius < h:
                total += x[row + radius, column]  # enters the window
            sums[row, column] = total
            if row >= radius:
                total -= x[row - radius, column]  # leaves it


@cuda.jit
def running_along_kernel(sums, out, radius):
    thread, row = cuda.grid(2)
    h, w = out.shape
    first = thread * RUN
    if row < h and first < w:
        total, rows = 0, covered(row, radius, h)
        for j in range(max(first - radius, 0), min(first + radius, w)):
            total += sums[row, j]
        for column in range(first, min(first + RUN, w)):
            if column + radius < w:
                total += sums[row, column + radius]
            out[row, column] = mean(total, rows * covered(column, radius, w))
            if column >= radius:
                total -= sums[row, column - radius]


@rung(running_down_kernel, running_along_kernel)
def running(p):
    """A thread walks: it adds the pixel that enters its window, and subtracts the one that leaves it.

    Down the columns it walks 128 rows, along the rows 16 columns. The sums are of integers, so that subtracting gives
    exactly what adding up anew would.

    Source: M. J. McDonnell, "Box-filtering techniques" (1981).
    """
    h, w = p.x.shape
    sums = device.empty((h, w), np.int32, stream=p.stream)
    running_down_kernel[(blocks(w, BLOCK), blocks(h, STRIP)), BLOCK, p.stream](p.x, sums, p.radius)
    grid = blocks(blocks(w, RUN), WIDE), blocks(h, HIGH)
    running_along_kernel[grid, (WIDE, HIGH), p.stream](sums, p.result, p.radius)


LADDER = (direct, separable, running)
