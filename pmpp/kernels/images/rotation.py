"""Rotation: each pixel of the result comes from between four pixels of the image, by bilinear sampling.

Chapter: notebooks/10_images.ipynb.  PMPP 4e ch. 3.

A pixel is one byte in and one byte out, so memory is the bound of the definition. But a pixel needs four neighbours and
some twenty operations, so the *loads* from the L1 cache or from shared memory, and the instructions, are the bound of
every kernel here. The lanes of a warp that are neighbours in a row of the result lie on a slanted line in the image.
Which pixels they are given decides how many pieces of memory the warp reads.

Positions are whole numbers: pixels times 2^32. They have the same value on every machine, and going on by a column is
an addition that rounds nothing.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import check, device
from pmpp.runtime.dots import dot_high, dot_low
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("uint8",)
WIDE, HIGH = 32, 8  # a block's threads along x and along y
PATCH = 8  # columns of the patch of a warp, which has 4 rows
EACH = 4  # neighbours in a row that a thread computes: the bytes of a word
MOST = 65535 * HIGH  # rows or columns: a grid has at most 65,535 blocks along y
ONE = 2**32  # of a position: the distance of two pixels


def steps(angle: float) -> tuple[int, int]:
    """Cosine and sine of an angle in radians, times 2^31, as whole numbers: half of what a pixel's distance is.

    They are rounded to multiples of 128. So a pixel's distance from its neighbour has 24 bits after the point, and a
    place in a small part of the image needs no more than 32 bits. The error of a position is at most 2^-25 for each
    row and each column between it and the middle.
    """
    return round(math.cos(angle) * 2**24) * 128, round(math.sin(angle) * 2**24) * 128


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
    cases |= {"more than a tile": (SIDE + 1, SIDE + 16, 0.9), "a tile": (SIDE, SIDE, 0.2)}
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

    Leaves: four loads of a byte for each pixel, and each of them touches many sectors. Neighbours load the same bytes.

    Source: J. E. Bresenham, "Algorithm for computer control of a digital plotter" (1965), for steps by addition.
    """
    h, w = p.x.shape
    if w % EACH or device.address(p.result) % EACH:
        in_patches.launch(p)
        return
    words = p.result.reshape(-1).view(np.uint32).reshape(h, w // EACH)
    grid = blocks(w // EACH, 8), blocks(h, 32)
    in_words_kernel[grid, (32, 8), p.stream](p.x, p.x.reshape(-1), words, p.cos, p.sin)


# ------------------------------------------------------------------------------------- a box of the image, shared

SIDE, WARPS = 64, 4  # rows and columns of the tile of the result that a block computes; its warps
BOX_ROWS, BOX_PIECES = 92, 13  # of the box of the image that a tile comes from, at most: rows, and 8 columns each
PITCH = 104  # pairs of pixels from a row of the box to the next one
ROUNDS = 6  # pieces that a lane loads at a time. A tile touches no more; a whole box may take two such batches.
DEEP = 8  # rows of the tile that a warp computes at a time
TOGETHER = DEEP * WARPS  # rows that the block computes at a time
RESULTS, OF_A_WARP = BOX_ROWS * PITCH // 2, 160  # in words: where the results lie behind the box; a warp's
NEXT_SIXTEEN = 40  # words from the results of 16 columns to the next 16: with it no lanes meet in a bank
SHARED = 4 * (RESULTS + WARPS * OF_A_WARP)  # bytes of shared memory

ALL, ONES, ZERO = 0xFFFFFFFF, np.uint32(0xFFFFFFFF), np.int32(0)
# Which bytes of two words become those of one: see `cuda.libdevice.byte_perm`. Byte 4 is the first of the second word.
FIRST_PAIRS, LAST_PAIRS, APART = np.int32(0x2110), np.int32(0x4332), np.int32(0x4140)
SHARE, THIRDS, SAME = np.int32(0x4442), np.int32(0x0062), np.int32(0x3210)  # THIRDS: the third byte of either word
EVEN, ODD = np.int32(0x6420), np.int32(0x7531)


class Walk(typing.NamedTuple):
    """How far something is from something else in the image. With 64 bits: pixels times 2^32; with 32: times 2^24."""

    down: np.int64  # the first pixel of the result from that of the image
    right: np.int64
    cos: np.int64  # the next pixel of a row or of a column
    sin: np.int64
    highest: np.int64  # the pixels of a tile from its first one, at the least and at the most
    lowest: np.int64
    leftmost: np.int64
    rightmost: np.int64
    short_cos: np.uint32
    short_sin: np.uint32
    eight_down: np.uint32  # the pixel eight columns further
    eight_right: np.uint32
    on_down: np.uint32  # from there, the first pixel of the second half of a patch
    on_right: np.uint32
    below: np.int32  # rows and columns from the first 16 lanes of a warp to the other 16
    beside: np.int32
    second: np.int32  # numbers of 16 bits from where the results of the first half wait to those of the second


def farthest(a: int, b: int) -> tuple[int, int]:
    """How far the pixels of a tile are from its first one at the least and at the most, in steps of a and b."""
    return sum(min((SIDE - 1) * each, 0) for each in (a, b)), sum(max((SIDE - 1) * each, 0) for each in (a, b))


def passes(cos: int, sin: int, wide: bool) -> float:
    """How many passes a load of a warp takes from the banks of shared memory, for patches of 8 x 4 or of 4 x 8 pixels.

    The mean of 64 patches that begin anywhere. A pass delivers a word of each bank.
    """
    lane = np.arange(32)
    row, column = (lane >> 2 & 3) + (lane >> 4) * (0 if wide else 4), (lane & 3) + (lane >> 4) * (4 if wide else 0)
    starts = np.random.default_rng(0).integers(2**38, 2**38 + 2**36, (2, 64, 1))
    down, right = starts[0] + 2 * (row * cos + column * sin), starts[1] + 2 * (column * cos - row * sin)
    words = np.sort(((down >> 32) * PITCH + (right >> 32)) // 2)
    of_patch, at = np.nonzero(np.diff(words, prepend=-1))  # a word that several lanes want is one
    return float(np.bincount(32 * of_patch + words[of_patch, at] % 32, minlength=64 * 32).reshape(64, 32).max(1).mean())


@functools.lru_cache(64)
def walk_of(h: int, w: int, cos: int, sin: int) -> Walk:
    """The distances in an image of h rows and w columns, for half a pixel's cosine and sine."""
    down, right = -(h - 1) * cos - (w - 1) * sin, -(w - 1) * cos + (h - 1) * sin
    far = down + (h - 1) * (ONE // 2), right + (w - 1) * (ONE // 2), 2 * cos, 2 * sin
    far += *farthest(2 * cos, 2 * sin), *farthest(2 * cos, -2 * sin)
    c, s = cos >> 7, sin >> 7
    wide = passes(cos, sin, True) < passes(cos, sin, False)
    second = (4 * c, -4 * s) if wide else (4 * s, 4 * c)
    short = c, s, 8 * s, 8 * c, second[0] - 8 * s, second[1] - 8 * c
    patch = (0, 4, 4 * 8) if wide else (4, 0, 4)
    return Walk(*map(np.int64, far), *(np.uint32(each % ONE) for each in short), *map(np.int32, patch))


def touched(cos: int, sin: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last piece that a tile needs of each row of its box, wherever in the image the tile lies."""
    side, ends = np.arange(SIDE), np.repeat([0, SIDE - 1], SIDE)
    row, column = np.append(np.tile(side, 2), ends), np.append(ends, np.tile(side, 2))  # the tile's border is enough
    (highest, _), (leftmost, _) = farthest(2 * cos, 2 * sin), farthest(2 * cos, -2 * sin)
    down, right = 2 * (row * cos + column * sin) - highest, 2 * (column * cos - row * sin) - leftmost
    # A box begins at a whole row and at a whole piece. So each pixel is up to a row and up to 8 columns further than
    # this, and it needs the next row and the next column.
    first, last = np.full(BOX_ROWS, 8 * BOX_PIECES), np.full(BOX_ROWS, -1)
    for further in range(3):
        np.minimum.at(first, (down >> 32) + further, right >> 32)
        np.maximum.at(last, (down >> 32) + further, (right >> 32) + 9)
    return first[last >= 0] >> 3, last[last >= 0] >> 3


def in_bank_order(first: np.ndarray, last: np.ndarray) -> list[int]:
    """An order of the rows of a box in which 8 pieces that follow each other lie in different banks, where possible.

    A stored piece has 16 bytes, and 8 of them fill the banks. A row goes on where the one before it ends.
    """
    waiting: list[list[int]] = [[] for _ in range(8)]
    for row in reversed(range(first.size)):
        waiting[(row * PITCH // 8 + first[row]) % 8].append(row)
    order, bank = [], 0
    for _ in range(first.size):
        row = next(waiting[(bank + step) % 8].pop() for step in range(8) if waiting[(bank + step) % 8])
        order.append(row)
        bank = (row * PITCH // 8 + last[row] + 1) % 8
    return order


@device.cached(64)
def pieces_of(cos: int, sin: int, whole: bool) -> typing.Any:
    """What a block loads: row + 2^8 * piece, an int32 for each lane and round; negative if it is not to be stored.

    A lane takes the pixel to the right of its piece from the next lane. So the last lane of a round has the first piece
    of the next round, and does not store it.
    """
    first, last = touched(cos, sin)
    if whole:
        first, last = np.full_like(first, first.min()), np.full_like(last, last.max())
    order = in_bank_order(first, last)
    first, counts = first[order], (last - first + 1)[order]
    rows, before = np.repeat(order, counts), np.cumsum(counts) - counts
    listed = rows + ((np.arange(rows.size) + np.repeat(first - before, counts)) << 8)
    rounds = -(-listed.size // (31 * WARPS * ROUNDS)) * WARPS * ROUNDS
    padded = np.full(31 * rounds + 1, listed[-1] - 2**31)
    padded[: listed.size] = listed
    lanes = padded[31 * np.arange(rounds)[:, None] + np.arange(32)]
    lanes[:, 31] |= -(2**31)
    return device.to_device(lanes.astype(np.int32).reshape(-1))


@cuda.jit(device=True)
def eight_at(double, h, half, i, j):
    """Eight pixels of a row, or zeros outside of the image."""
    if 0 <= i < h and 0 <= j < half:
        return double[np.uint64(np.int64(i) * half + j)]
    return np.uint64(0)


@cuda.jit(device=True)
def load_pieces(loaded, places, double, h, half, top, first):
    """What a lane is to put into a box that begins at row ``top`` and piece ``first`` of the image."""
    inside = top >= 0 and np.int32(top + BOX_ROWS) <= h and first >= 0 and np.int32(first + BOX_PIECES) <= half
    source = np.uint64(np.int64(top) * half + first)
    for k in range(len(loaded)):
        row, piece = np.int32(places[k] & 255), np.int32((places[k] >> 8) & 255)
        if inside:
            loaded[k] = double[source + np.uint64(np.uint32(np.uint32(row * half) + np.uint32(piece)))]
        else:
            loaded[k] = eight_at(double, h, half, np.int32(top + row), np.int32(first + piece))


@cuda.jit(device=True)
def put_pieces(pairs, loaded, places):
    """It puts them there, each pixel with its right neighbour: 0 and 1, 1 and 2, ... The ninth is the next lane's."""
    permuted = cuda.libdevice.byte_perm
    for k in range(len(loaded)):
        a, b = np.int32(loaded[k]), np.int32(loaded[k] >> np.uint64(32))
        c = cuda.shfl_down_sync(ALL, a, 1)
        if places[k] >= 0:
            at = np.uint64(np.uint32((places[k] & 255) * (PITCH // 2) + (places[k] >> 8) * 4))
            left, right = permuted(a, b, FIRST_PAIRS), permuted(a, b, LAST_PAIRS)
            store128(pairs, at, (left, right, permuted(b, c, FIRST_PAIRS), permuted(b, c, LAST_PAIRS)))


@cuda.jit(device=True)
def afresh(position):
    """A position that the compiler does not recognise. It would prepare all that are k steps away before the loop."""
    return np.uint32(cuda.libdevice.byte_perm(np.int32(position), ZERO, SAME))


@cuda.jit(device=True)
def box_of(down, right, h, half, walk):
    """The row and the piece at which the box of a tile begins, and whether nothing of the image is in it."""
    top, first = np.int32((down + walk.highest) >> 32), np.int32((right + walk.leftmost) >> 35)
    before = (down + walk.lowest) >> 32 < -1 or (right + walk.rightmost) >> 32 < -1
    return top, first, before or top >= h or first >= half


def boxes_kernel(pixel_in, batches, tiles, registers=None):
    """A kernel in which a lane loads so many batches of pieces of a box, and a block computes tiles below each other.

    ``pixel_in`` gives 2^16 times the mean at a position in a box, which comes as pixels times 2^24. A batch is what a
    lane holds in its registers. If there are several tiles, a box must be one batch. A thread has at most so many
    ``registers``, if the number is not None.
    """

    @cuda.jit(max_registers=registers)
    def in_boxes_kernel(pieces, double, out, h, words, walk):
        box = cuda.shared.array(0, np.uint16, alignment=16)
        pairs = cuda.shared.array(0, np.uint32, alignment=16)  # the same memory, two of them at a time
        permuted = cuda.libdevice.byte_perm
        places, loaded = cuda.local.array(ROUNDS, np.int32), cuda.local.array(ROUNDS, np.uint64)
        lane, warp = np.int32(cuda.threadIdx.x & 31), np.int32(cuda.threadIdx.x >> 5)
        tile_row, tile_word = np.int32(cuda.blockIdx.y * (SIDE * tiles)), np.int32(cuda.blockIdx.x * (SIDE // 4))
        down = walk.down + tile_row * walk.cos + 4 * tile_word * walk.sin
        right = walk.right + 4 * tile_word * walk.cos - tile_row * walk.sin
        half = np.int32(words >> 1)
        top, first, outside = box_of(down, right, h, half, walk)
        for batch in range(batches):
            own = np.uint64(np.uint32((WARPS * batch + warp) * (32 * ROUNDS) + lane))
            for k in range(ROUNDS):
                places[k] = pieces[own + np.uint64(32 * k)]
            if not outside:
                load_pieces(loaded, places, double, h, half, top, first)
                if batch < batches - 1:
                    put_pieces(pairs, loaded, places)
        count = min(np.int32(tiles), np.int32((h - tile_row + SIDE - 1) // SIDE)) if tiles > 1 else np.int32(1)
        for left in range(count, 0, -1):
            nothing = outside
            if not nothing:
                put_pieces(pairs, loaded, places)
            # From here on positions are counted from the corner of the box, and 32 bits have them.
            first_down = np.uint32((down - (np.int64(top) << 32)) >> 8)
            first_right = np.uint32((right - (np.int64(first) << 35)) >> 8)
            cuda.syncthreads()
            if tiles > 1 and left > 1:  # what the next tile needs is on its way while this one is computed
                down += SIDE * walk.cos
                right -= SIDE * walk.sin
                top, first, outside = box_of(down, right, h, half, walk)
                if not outside:
                    load_pieces(loaded, places, double, h, half, top, first)
            # Where in a patch a lane computes, and where its results wait: those of two pixels lie beside each other.
            deep, beside = np.int32(((lane >> 2) & 3) + (lane >> 4) * walk.below), np.int32((lane >> 4) * walk.beside)
            cos, sin = walk.short_cos, walk.short_sin
            i, j = np.uint32(DEEP * warp + deep), np.uint32((lane & 3) + beside)
            first_down = np.uint32(first_down + np.uint32(np.uint32(i * cos) + np.uint32(j * sin)))
            first_right = np.uint32(first_right + np.uint32(np.uint32(j * cos) - np.uint32(i * sin)))
            own = np.uint64(RESULTS + warp * OF_A_WARP)
            waiting = np.uint64(2 * (RESULTS + warp * OF_A_WARP) + 8 * deep + beside + (lane & 3))
            # And of what its warp has computed, it stores 16 neighbours of a row.
            row, word = np.int32(tile_row + DEEP * warp + (lane >> 2)), np.int32(tile_word + 4 * (lane & 3))
            target, rows = np.int64(row) * words + word, (h if word < words else np.int32(0))
            tile_row = np.int32(tile_row + SIDE)
            for _ in range(SIDE // TOGETHER):
                a, b, c, d = ZERO, ZERO, ZERO, ZERO
                if not nothing:
                    at_down, at_right, at = afresh(first_down), afresh(first_right), waiting
                    for _ in range(SIDE // 16):
                        for part in range(2):
                            one = np.int32(pixel_in(box, at_down, at_right))
                            at_down = np.uint32(at_down + walk.eight_down)
                            at_right = np.uint32(at_right + walk.eight_right)
                            two = np.int32(pixel_in(box, at_down, at_right))
                            box[at + np.uint64(part * walk.second)] = np.uint16(permuted(one, two, THIRDS))
                            at_down = np.uint32(at_down - walk.on_down if part else at_down + walk.on_down)
                            at_right = np.uint32(at_right - walk.on_right if part else at_right + walk.on_right)
                        at += np.uint64(2 * NEXT_SIXTEEN)
                    cuda.syncwarp()
                    p, q, u, v = load128(pairs, own + np.uint64(NEXT_SIXTEEN * (lane & 3) + 4 * (lane >> 2)))
                    p, q, u, v = np.int32(p), np.int32(q), np.int32(u), np.int32(v)
                    a, b, c, d = permuted(p, q, EVEN), permuted(u, v, EVEN), permuted(p, q, ODD), permuted(u, v, ODD)
                    cuda.syncwarp()
                if row < rows:
                    store128(out, target, (a, b, c, d))
                first_down = np.uint32(first_down + np.uint32(np.uint32(TOGETHER) * cos))
                first_right = np.uint32(first_right - np.uint32(np.uint32(TOGETHER) * sin))
                row = np.int32(row + TOGETHER)
                target += TOGETHER * words
            cuda.syncthreads()

    return in_boxes_kernel


def launch_boxes(kernel, p, tiles, pieces):
    """A launch of such a kernel."""
    h, w = p.x.shape
    double, out = p.x.reshape(-1).view(np.uint64), p.result.reshape(-1).view(np.uint32)
    given = pieces, double, out, np.int32(h), np.int32(w // EACH), walk_of(h, w, int(p.cos), int(p.sin))
    kernel[(blocks(w, SIDE), blocks(h, SIDE * tiles)), 32 * WARPS, p.stream, SHARED](*given)


def fits(p) -> bool:
    """Whether rows of ``x`` and of ``out`` begin at multiples of 16 bytes."""
    return not (p.x.shape[1] % 16 or device.address(p.result) % 16 or device.address(p.x) % 16)


@cuda.jit(device=True)
def between(pair, weights):
    """256 times the weighted mean of a pair, and 128. One multiplication makes both products and adds them.

    The pair is p + q * 2^16, and the weights are u + v * 2^16. The product is p u + (p v + q u) * 2^16, and what is
    beyond 32 bits is lost. p u has less than 16 bits, so nothing is carried from it into the upper half.
    """
    apart = np.uint32(cuda.libdevice.byte_perm(np.int32(pair), ZERO, APART))
    return np.uint32(np.uint32(apart * weights) + np.uint32(128 << 16)) >> np.uint32(16)


@cuda.jit(device=True)
def pixel_in(box, down, right):
    """2^16 times the mean at a position in the box. Its uppermost bytes are row and column, and the next the shares."""
    at = np.uint64(np.uint32(np.uint32(down >> np.uint32(24)) * np.uint32(PITCH)) + np.uint32(right >> np.uint32(24)))
    beside = np.uint32(cuda.libdevice.byte_perm(np.int32(right), ZERO, SHARE))
    below = np.uint32(cuda.libdevice.byte_perm(np.int32(down), ZERO, SHARE))
    weights = np.uint32(np.uint32(256 << 16) - np.uint32(beside * np.uint32((1 << 16) - 1)))
    upper, lower = between(box[at], weights), between(box[at + np.uint64(PITCH)], weights)
    # The 128 that either has in addition become 2^15 here.
    return np.uint32(np.uint32(upper << np.uint32(8)) + np.uint32(below * np.uint32(lower - upper)))


in_boxes_kernel = boxes_kernel(pixel_in, 2, 1)
in_pieces_kernel = boxes_kernel(pixel_in, 1, 1)


@rung(in_boxes_kernel, in_pieces_kernel, in_words_kernel, in_patches_kernel)
def in_boxes(p):
    """A block fetches the box of the image that its tile comes from, and what a pixel needs is loaded from there.

    The box has about twice the tile's pixels. In shared memory each pixel stands beside its right neighbour, so that a
    pair is one load, and a pixel needs two of them. What is outside of the image is 0 there, and no pixel is tested; of
    a box that is wholly outside nothing is fetched. One multiplication weights both pixels of a pair. The results of a
    warp go through shared memory, too: a lane stores sixteen neighbours of a row at once.

    The lanes of a warp have a patch of 8 columns and 4 rows or of 4 columns and 8 rows: the one with which fewer of
    their pairs lie in one bank, at this angle.

    Where rows of ``x`` or ``out`` do not begin at multiples of 16 bytes, this is `in_words`.

    Leaves: the box is upright and the tile in it is turned. The corners of the box are fetched in vain.

    Source: PMPP 4e section 5.3, for tiles in shared memory; H. S. Warren, "Hacker's delight" (2nd edition, 2012),
    chapter 2, for several numbers in a word.
    """
    if not fits(p):
        in_words.launch(p)
        return
    pieces = pieces_of(int(p.cos), int(p.sin), True)
    kernel = in_boxes_kernel if pieces.size > 32 * WARPS * ROUNDS else in_pieces_kernel  # at 0 degrees it is small
    launch_boxes(kernel, p, 1, pieces)


@rung(in_pieces_kernel, in_words_kernel, in_patches_kernel)
def in_pieces(p):
    """Of the box, a block fetches the pieces that its turned tile touches: a list that is the same for every tile.

    The kernel is that of `in_boxes`, and the list is shorter. It depends on the angle, and the launch keeps it.

    Leaves: a mean of two bytes is multiplied in 32 bits, after the numbers were taken apart and their weights made.

    Source: J. D. Foley, A. van Dam, S. K. Feiner and J. F. Hughes, "Computer graphics: principles and practice" (2nd
    edition, 1990), section 3.6, for the runs of pixels that a polygon covers.
    """
    if not fits(p):
        in_words.launch(p)
        return
    launch_boxes(in_pieces_kernel, p, 1, pieces_of(int(p.cos), int(p.sin), False))


IN_ROWS, ONE_LESS = np.uint32(PITCH << 16), np.uint32((1 << 16) - 1)  # two weights each: see `pmpp.runtime.dots`


@cuda.jit(device=True)
def pixel_by_dots(box, down, right):
    """What `pixel_in` computes, by dot products."""
    at = np.uint64(dot_high(IN_ROWS, down, np.uint32(right >> np.uint32(24))))
    weights = dot_high(ONE_LESS, right, np.uint32(256))  # 256 less the share, and in the upper half the share
    # The 128 that either has in addition become 2^15 in the result.
    upper = dot_low(weights, np.uint32(box[at]), np.uint32(128))
    lower = dot_low(weights, np.uint32(box[at + np.uint64(PITCH)]), np.uint32(128))
    # The third byte of ~down is 255 less the share. Of a plain ~ the compiler would make two more additions.
    return dot_high(lower, down, dot_high(upper, np.uint32(down ^ afresh(ONES)), upper))


by_dots_kernel = boxes_kernel(pixel_by_dots, 1, 1)


@rung(by_dots_kernel, in_words_kernel, in_patches_kernel)
def by_dots(p):
    """A weighted sum of two bytes is a dot product, for which GPUs have an instruction: see `pmpp.runtime.dots`.

    So are a pixel's place in the box, and the two weights that are made of one share.

    Leaves: a block first waits for its pieces, and then computes. Each block finds its place anew.

    Source: PTX ISA, "dp2a".
    """
    if not fits(p):
        in_words.launch(p)
        return
    launch_boxes(by_dots_kernel, p, 1, pieces_of(int(p.cos), int(p.sin), False))


TILES = 4  # below each other, that a block computes one after the other
# By itself the compiler takes fewer registers, and a multiprocessor has room for a ninth block. Its box would be taken
# from the L1 cache, by way of which the pieces come.
ahead_kernel = boxes_kernel(pixel_by_dots, 1, TILES, 64)


@rung(ahead_kernel, in_words_kernel, in_patches_kernel)
def ahead(p):
    """A block walks down four tiles, and loads what the next one needs into registers while it computes this one.

    It is bound by instructions, of which a pixel needs some twenty, and by shared memory, nearly as much.

    Source: PMPP 4e section 6.3, for one block that does the work of several.
    """
    if not fits(p):
        in_words.launch(p)
        return
    launch_boxes(ahead_kernel, p, TILES, pieces_of(int(p.cos), int(p.sin), False))


LADDER = (in_rows, in_patches, in_words, in_boxes, in_pieces, by_dots, ahead)
