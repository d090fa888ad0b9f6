"""Colour to grey: each pixel of three bytes becomes one byte, its brightness.

Chapter: notebooks/10_images.ipynb.  PMPP 4e ch. 3.

A pixel moves four bytes, three in and one out, and takes a few integer operations. So memory is the bound. The
difficulty is that a pixel is small: a thread that takes one pixel asks for single bytes.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("uint8",)
WIDE, HIGH = 32, 8  # a block's threads along x and along y: a warp is 32 threads of one row of the block
BLOCK = 256  # threads in a block of one dimension
EACH = 16  # pixels that a thread of the last rung takes: 48 bytes in, 16 bytes out
MOST = 65535 * HIGH  # rows or columns: a grid has at most 65,535 blocks along y
RED, GREEN, BLUE = 54, 184, 18  # shares of the brightness in 256ths: PMPP's 0.21, 0.72 and 0.07. Their sum is 256.


def reference(x: np.ndarray) -> np.ndarray:
    """The grey image (h, w) of a colour image (h, w, 3), both uint8, a pixel at a time.

    A pixel is (54 red + 184 green + 18 blue) / 256, rounded to the nearest; a half is rounded up.
    """
    out = np.empty(x.shape[:2], np.uint8)
    for row, column in np.ndindex(out.shape):
        red, green, blue = map(int, x[row, column])
        out[row, column] = (RED * red + GREEN * green + BLUE * blue + 128) // 256
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward images: a name, and ``(x,)``."""
    rng = np.random.default_rng(10) if rng is None else rng
    shapes = {"one": (1, 1), "a row": (1, 77), "a column": (77, 1)}
    shapes |= {"no rows": (0, 5), "no columns": (5, 0), "empty": (0, 0)}
    shapes |= {f"a block {d:+}": (HIGH + d, WIDE + d) for d in (-1, 0, 1)}
    shapes |= {f"a thread's pixels {d:+}": (1, EACH + d) for d in (-1, 0, 1)}
    shapes |= {"wide": (5, 130), "high": (130, 5), "several blocks": (37, 75)}
    made = {name: rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for name, shape in shapes.items()}
    made["black"] = np.zeros((9, 33, 3), np.uint8)
    made["white"] = np.full((9, 33, 3), 255, np.uint8)  # 255 must stay 255
    made["pure colours"] = np.tile(255 * np.eye(3, dtype=np.uint8), (4, 3, 1))
    # 54 x 128 = 27 x 256, and the like: sums at a half, just below it and just above it.
    made["around a half"] = np.array([[[0, 16, 0], [64, 16, 0], [1, 0, 1], [1, 0, 4], [1, 1, 1], [0, 48, 0]]], np.uint8)
    return {name: (x,) for name, x in made.items()}


def tolerance(x: np.ndarray) -> float:
    """0: the arithmetic is of integers, and exact."""
    return 0.0


def cost(h: int, w: int) -> Cost:
    """No operation in floating point; three bytes read and one written for each of h x w pixels."""
    return Cost(flops=0, bytes=4 * h * w)


def arguments(x, *, out=None, stream=0) -> Problem:
    """Make a colour image grey.

    Args:
        x: a uint8 image of shape (h, w, 3), red, green and blue from 0 to 255, contiguous in C order. h and w are from
            0 to 524,280.
        out: a uint8 device array of shape (h, w) in C order, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done: (54 red + 184 green + 18 blue) / 256, rounded to the
    nearest, and a half up. That is PMPP's 0.21 red + 0.72 green + 0.07 blue in whole numbers; PMPP cuts off instead.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.images import grey
    >>> grey.sixteen_each(np.uint8([[[255, 255, 255], [200, 100, 0]]])).copy_to_host()
    array([[255, 114]], dtype=uint8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, shape=(None, None, 3), stream=stream)
    if max(x.shape) > MOST:
        raise ValueError(f"x must have at most {MOST} rows and columns, had shape {tuple(x.shape)}")
    out = device.as_output("out", out, shape=x.shape[:2], dtype=np.uint8, apart={"x": x}, stream=stream)
    return Problem(out, stream=stream, x=x)


@cuda.jit(device=True)
def brightness(red, green, blue):
    """From 0 to 255. To divide by 256 is to shift by 8 bits; 128 before makes it round to the nearest."""
    return (RED * red + GREEN * green + BLUE * blue + 128) >> 8


@cuda.jit
def rows_first_kernel(x, out):
    row, column = cuda.grid(2)  # neighbouring threads are in neighbouring rows
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@rung(rows_first_kernel)
def rows_first(p):
    """One thread for each pixel, in a grid of two dimensions, in which x is the row and y the column.

    Source: PMPP 4e section 3.2.

    Leaves: the lanes of a warp are in 32 rows, so each byte that a lane asks for is in a sector of its own.
    """
    h, w = p.result.shape
    rows_first_kernel[(blocks(h, WIDE), blocks(w, HIGH)), (WIDE, HIGH), p.stream](p.x, p.result)


@cuda.jit
def columns_first_kernel(x, out):
    column, row = cuda.grid(2)  # neighbouring threads are in neighbouring columns
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = brightness(x[row, column, 0], x[row, column, 1], x[row, column, 2])


@rung(columns_first_kernel)
def columns_first(p):
    """The axes are exchanged: x is the column, so the lanes of a warp are neighbours in a row of the image.

    Source: PMPP 4e sections 3.2 and 6.1.

    Leaves: a lane asks for one byte at a time, three times, and stores one byte. A warp's request is for 32 bytes.
    """
    h, w = p.result.shape
    columns_first_kernel[(blocks(w, WIDE), blocks(h, HIGH)), (WIDE, HIGH), p.stream](p.x, p.result)


@cuda.jit(device=True)
def four_pixels(a, b, c):
    """Twelve bytes in three words, r g b r | g b r g | b r g b, as a word of four grey bytes."""
    first = brightness(a & 255, a >> 8 & 255, a >> 16 & 255)
    second = brightness(a >> 24, b & 255, b >> 8 & 255)
    third = brightness(b >> 16 & 255, b >> 24, c & 255)
    fourth = brightness(c >> 8 & 255, c >> 16 & 255, c >> 24)
    return first | second << 8 | third << 16 | fourth << 24


@cuda.jit
def sixteen_each_kernel(x, out, words, grey_words):
    thread = cuda.grid(1)
    if 4 * thread < grey_words.size:
        a, b, c, d = load128(words, 12 * thread)
        e, f, g, h = load128(words, 12 * thread + 4)
        i, j, k, m = load128(words, 12 * thread + 8)
        four = four_pixels(a, b, c), four_pixels(d, e, f), four_pixels(g, h, i), four_pixels(j, k, m)
        store128(grey_words, 4 * thread, four)
    pixel = 4 * grey_words.size + thread  # fewer than sixteen are left: the first threads take one each
    if pixel < out.size:
        out[pixel] = brightness(x[3 * pixel], x[3 * pixel + 1], x[3 * pixel + 2])


@rung(sixteen_each_kernel, columns_first_kernel)
def sixteen_each(p):
    """In row-major order the image is one vector. A thread takes sixteen pixels: three 128-bit loads and one store.

    The rows play no part any more, so there is one boundary test, at the end of the image. Where ``x`` or ``out`` does
    not begin at a multiple of 16 bytes, this is `columns_first`.

    Source: PMPP 4e section 6.3.
    """
    if device.address(p.x) % 16 or device.address(p.result) % 16:
        columns_first.launch(p)
        return
    x, out = p.x.reshape(-1), p.result.reshape(-1)
    whole = out.size // EACH * EACH
    words, grey_words = x[: 3 * whole].view(np.uint32), out[:whole].view(np.uint32)
    grid = blocks(max(whole // EACH, out.size - whole), BLOCK)
    sixteen_each_kernel[grid, BLOCK, p.stream](x, out, words, grey_words)


LADDER = (rows_first, columns_first, sixteen_each)
