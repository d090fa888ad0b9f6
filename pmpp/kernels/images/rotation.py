"""Rotation: each pixel of the result comes from between four pixels of the image, by bilinear sampling.

Chapter: notebooks/10_images.ipynb.  PMPP 4e ch. 3.

A pixel is one byte in and one byte out, so memory is the bound of the definition. But a pixel needs four loads and
some thirty operations, so the *instructions* are the bound of every kernel here. The lanes of a warp that are
neighbours in a row of the result lie on a slanted line in the image. Which pixels they are given decides how many
pieces of memory the warp reads.

Positions are whole numbers: pixels times 2^32. They have the same value on every machine, and going on by a column is
an addition that rounds nothing.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import check, device
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("uint8",)
WIDE, HIGH = 32, 8  # a block's threads along x and along y
PATCH = 8  # columns of the patch of a warp, which has 4 rows
EACH = 4  # neighbours in a row that a thread computes: the bytes of a word
MOST = 65535 * HIGH  # rows or columns: a grid has at most 65,535 blocks along y
ONE = 2**32  # of a position: the distance of two pixels


def steps(angle: float) -> tuple[int, int]:
    """Cosine and sine of an angle in radians, times 2^31, as whole numbers: half of what a pixel's distance is."""
    return round(math.cos(angle) * (ONE // 2)), round(math.sin(angle) * (ONE // 2))


def reference(x: np.ndarray, angle: float) -> np.ndarray:
    """The image (h, w) turned about its middle, counterclockwise by ``angle`` radians; both are uint8 of one shape.

    Pixel (row, column) of the result is looked up where it came from. Of the position there the whole part says which
    four pixels are around it, and eight bits of the fraction how near each of them is. The weighted mean is rounded to
    the nearest, and a half is rounded up. What is outside of the image is 0.
    """
    h, w = x.shape
    cos, sin = steps(angle)
    down, right = np.int64(2) * np.arange(h)[:, None] - (h - 1), np.int64(2) * np.arange(w) - (w - 1)
    around = np.zeros((h + 2, w + 2), np.int64)  # a border of zeros: what is outside
    around[1:-1, 1:-1] = x

    def whole_and_share(position: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        whole = position >> 32
        inside = (whole >= -1) & (whole < size)
        return np.where(inside, whole, 0) + 1, (position >> 24) & 255, inside

    row, below, in_rows = whole_and_share(down * cos + right * sin + (h - 1) * (ONE // 2), h)
    column, beside, in_columns = whole_and_share(right * cos - down * sin + (w - 1) * (ONE // 2), w)
    upper = (256 - beside) * around[row, column] + beside * around[row, column + 1] if x.size else 0
    lower = (256 - beside) * around[row + 1, column] + beside * around[row + 1, column + 1] if x.size else 0
    mean = ((256 - below) * upper + below * lower + 2**15) >> 16
    return np.where(in_rows & in_columns, mean, 0).astype(np.uint8).reshape(h, w)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, float]]:
    """Small awkward images: a name, and ``(x, angle)``."""
    rng = np.random.default_rng(12) if rng is None else rng
    cases: dict[str, tuple] = {"one": (1, 1, 0.7), "a row": (1, 77, 0.1), "a column": (77, 1, 2.0)}
    cases |= {"no rows": (0, 5, 0.3), "no columns": (5, 0, 0.3)}
    cases |= {f"a block {d:+}": (HIGH + d, WIDE + d, 0.4) for d in (-1, 0, 1)}
    cases |= {f"words {d:+}": (13, 8 * EACH + d, -0.3) for d in (-1, 0, 1)}
    cases |= {"not turned": (9, 20, 0.0), "a quarter": (16, 16, math.pi / 2), "a half": (9, 24, math.pi)}
    cases |= {"a quarter, not square": (7, 40, -math.pi / 2), "several blocks": (37, 75, 1.0), "often": (19, 36, 50.0)}
    made = {name: (rng.integers(0, 256, (h, w), dtype=np.uint8), angle) for name, (h, w, angle) in cases.items()}
    made["white"] = (np.full((21, 40), 255, np.uint8), 0.5)  # inside 255 stays 255, and the corners become black
    return made


def tolerance(x: np.ndarray, angle: float) -> float:
    """0: the arithmetic is of integers, and exact."""
    return 0.0


def cost(h: int, w: int) -> Cost:
    """No operation in floating point; each byte read once and written once."""
    return Cost(flops=0, bytes=2 * h * w)


def arguments(x, angle, *, out=None, stream=0) -> Problem:
    """Turn a grey image about its middle.

    Args:
        x: a uint8 image of shape (h, w), contiguous in C order. h and w are from 0 to 524,280.
        angle: by how much, in radians, counterclockwise: a finite number, at most 10^6 in size.
        out: a uint8 device array of shape (h, w) in C order, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the shape of ``x``: corners that turn out of it are
    cut off, and what comes in from outside is 0. Between four pixels their mean is taken, with weights in 256ths.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import math
    >>> from pmpp.kernels.images import rotation
    >>> rotation.in_words(np.uint8([[1, 2], [3, 4]]), math.pi / 2).copy_to_host()
    array([[2, 4],
           [1, 3]], dtype=uint8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    if max(x.shape) > MOST:
        raise ValueError(f"x must have at most {MOST} rows and columns, had shape {tuple(x.shape)}")
    angle = float(check.as_number("angle", angle, -1e6, 1e6, dtype=np.float64))
    out = device.as_output("out", out, shape=x.shape, dtype=np.uint8, apart={"x": x}, stream=stream)
    cos, sin = steps(angle)
    return Problem(out, stream=stream, x=x, cos=np.int64(cos), sin=np.int64(sin))


@cuda.jit(device=True)
def place(row, column, h, w, cos, sin):
    """Where a pixel of the result comes from: row and column, each times 2^32. Both are counted from the middle."""
    down, right = 2 * np.int64(row) - (h - 1), 2 * np.int64(column) - (w - 1)
    middle = np.int64(2**31)
    return down * cos + right * sin + (h - 1) * middle, right * cos - down * sin + (w - 1) * middle


@cuda.jit(device=True)
def pixel(x, i, j):
    """A pixel, or 0 outside of the image."""
    if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
        return np.int32(x[i, j])
    return np.int32(0)


@cuda.jit(device=True)
def mean(down, right, upper_left, upper_right, lower_left, lower_right):
    """The mean of four pixels. The weights are eight bits of the fractions of a position."""
    below, beside = np.int32((down >> 24) & 255), np.int32((right >> 24) & 255)
    upper = (256 - beside) * upper_left + beside * upper_right
    lower = (256 - beside) * lower_left + beside * lower_right
    return ((256 - below) * upper + below * lower + 32768) >> 16


@cuda.jit(device=True)
def sampled(x, down, right):
    """The image at a position, each of the four pixels tested."""
    i, j = np.int32(down >> 32), np.int32(right >> 32)
    return mean(down, right, pixel(x, i, j), pixel(x, i, j + 1), pixel(x, i + 1, j), pixel(x, i + 1, j + 1))


@cuda.jit(device=True)
def sampled_inside(flat, w, down, right):
    """The image, as one line of rows of w pixels, at a position that is known to lie between four pixels of it."""
    i = (down >> 32) * w + (right >> 32)
    upper_left, upper_right = np.int32(flat[i]), np.int32(flat[i + 1])
    return mean(down, right, upper_left, upper_right, np.int32(flat[i + w]), np.int32(flat[i + w + 1]))


@cuda.jit
def in_rows_kernel(x, out, cos, sin):
    column, row = cuda.grid(2)
    h, w = out.shape
    if row < h and column < w:
        down, right = place(row, column, h, w, cos, sin)
        out[row, column] = sampled(x, down, right)


@rung(in_rows_kernel)
def in_rows(p):
    """One thread for each pixel; the lanes of a warp are 32 neighbours in a row of the result.

    Source: PMPP 4e section 3.2.

    Leaves: turned by a quarter, a warp's row is a column of the image, and each lane reads a sector of its own.
    """
    h, w = p.x.shape
    in_rows_kernel[(blocks(w, WIDE), blocks(h, HIGH)), (WIDE, HIGH), p.stream](p.x, p.result, p.cos, p.sin)


@cuda.jit
def in_patches_kernel(x, out, cos, sin):
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    # A warp has 8 columns of 4 rows, and the eight warps of a block 4 x 2 of these patches.
    column = cuda.blockIdx.x * 32 + (warp & 3) * 8 + (lane & 7)
    row = cuda.blockIdx.y * 8 + (warp >> 2) * 4 + (lane >> 3)
    h, w = out.shape
    if row < h and column < w:
        down, right = place(row, column, h, w, cos, sin)
        out[row, column] = sampled(x, down, right)


@rung(in_patches_kernel)
def in_patches(p):
    """The lanes of a warp have a patch of 8 columns and 4 rows. However it is turned, it stays a compact piece.

    Source: Z. S. Hakura and A. Gupta, "The design and analysis of a cache architecture for texture mapping" (1997).

    Leaves: each pixel computes its position anew, by four products of 64 bits, tests four places, and stores a byte.
    """
    h, w = p.x.shape
    in_patches_kernel[(blocks(w, WIDE), blocks(h, HIGH)), (WIDE, HIGH), p.stream](p.x, p.result, p.cos, p.sin)


@cuda.jit(device=True)
def is_inside(down, right, h, w):
    """Whether all four pixels around a position are in the image."""
    return 0 <= down >> 32 < h - 1 and 0 <= right >> 32 < w - 1


@cuda.jit
def in_words_kernel(x, flat, out, cos, sin):
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    # A lane has four columns. A warp has 16 columns of 8 rows, and the eight warps of a block 2 x 4 of these patches.
    word = cuda.blockIdx.x * 8 + (warp & 1) * 4 + (lane & 3)
    row = cuda.blockIdx.y * 32 + (warp >> 1) * 8 + (lane >> 2)
    h, w = x.shape
    if row < h and word < out.shape[1]:
        down, right = place(row, 4 * word, h, w, cos, sin)
        found = np.uint32(0)
        # The four positions lie on a line. If its ends are inside, so is what is between them.
        if is_inside(down, right, h, w) and is_inside(down + 6 * sin, right + 6 * cos, h, w):
            for k in range(4):
                found |= np.uint32(sampled_inside(flat, w, down, right)) << np.uint32(8 * k)
                down += 2 * sin
                right += 2 * cos
        else:
            for k in range(4):
                found |= np.uint32(sampled(x, down, right)) << np.uint32(8 * k)
                down += 2 * sin
                right += 2 * cos
        out[row, word] = found


@rung(in_words_kernel, in_patches_kernel)
def in_words(p):
    """A thread has four neighbours of a row. It goes from one to the next by an addition, and stores them as a word.

    The four positions lie on a line, and a rectangle is convex. So if the first and the last one are between pixels of
    the image, the others are too, and no place is tested. Then one product gives the address of all four pixels.

    Where a row is no whole number of words, or ``out`` does not begin at one, this is `in_patches`.

    Source: J. E. Bresenham, "Algorithm for computer control of a digital plotter" (1965), for steps by addition.
    """
    h, w = p.x.shape
    if w % EACH or device.address(p.result) % EACH:
        in_patches.launch(p)
        return
    words = p.result.reshape(-1).view(np.uint32).reshape(h, w // EACH)
    grid = blocks(w // EACH, 8), blocks(h, 32)
    in_words_kernel[grid, (32, 8), p.stream](p.x, p.x.reshape(-1), words, p.cos, p.sin)


LADDER = (in_rows, in_patches, in_words)
