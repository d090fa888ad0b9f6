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

SIDE = 64  # rows and columns of the tile of the result that a block computes
THREADS = 128  # of a block: four warps. Where a thread begins is computed less often if there are few.
BOX_ROWS, PIECES = 96, 13  # of the box of the image that a tile comes from, at most: rows, and 8 columns each
PITCH = 104  # pairs of pixels from a row of the box to the next one: with it few lanes meet in a bank
AHEAD, WORDS_AHEAD = 3, 6  # rows that a thread loads before it stores the first of them, and their words
AT_ONCE = THREADS // 16  # rows of the box that the block loads with one instruction: 16 lanes have a row
ACROSS, DEEP = 4, 8  # columns and rows of a warp's patch: whatever the angle is, few of its lanes meet in a bank
TOGETHER = DEEP * THREADS // 32  # rows of the tile that the block computes at a time
MEANS = BOX_ROWS * PITCH // 2  # where the results of the warps lie behind the box, in words
OF_A_WARP = DEEP * SIDE // 4  # words of them that a warp has
SHARED = 4 * (MEANS + THREADS // 32 * OF_A_WARP)  # bytes of shared memory

ZERO, ALL = np.int32(0), 0xFFFFFFFF
# Which bytes of two words become those of one: see `cuda.libdevice.byte_perm`. Byte 4 is the first of the second word.
FIRST_PAIRS, LAST_PAIRS, SAME = np.int32(0x2110), np.int32(0x4332), np.int32(0x3210)
THIRD, LOWER, UPPER = np.int32(0x0062), np.int32(0x5410), np.int32(0x7632)  # THIRD: the third byte of each word
FIRST_TWO, LAST_TWO = np.int32(0x5140), np.int32(0x7362)
# Two weights each, the first one in the lower half: see `pmpp.runtime.dots`.
IN_ROWS, APART = np.uint32(PITCH << 16), np.uint32(((1 << 16) - 1) << 16)


@cuda.jit(device=True)
def fraction(position):
    """The lower word of a position. To a shift or a mask the compiler would carry out every addition twice."""
    return cuda.libdevice.double2loint(cuda.libdevice.longlong_as_double(position))


@cuda.jit(device=True)
def afresh(position):
    """A position that the compiler does not recognise. It would prepare all that are k steps away before the loop."""
    low = np.uint32(cuda.libdevice.byte_perm(fraction(position), ZERO, SAME))
    return (position >> 32 << 32) | np.int64(low)


@cuda.jit(device=True)
def word_at(flat, h, words, i, j):
    """Four pixels of a row, or zeros outside of the image."""
    if 0 <= i < h and 0 <= j < words:
        return np.int32(flat[np.uint64(np.int64(i) * words + j)])
    return ZERO


@cuda.jit(device=True)
def put_pairs(pairs, at, a, b):
    """Eight pixels, each with its right neighbour: pixels 0 and 1, 1 and 2, ... The next lane has the last one's."""
    c = cuda.shfl_down_sync(ALL, a, 1)
    left, right = cuda.libdevice.byte_perm(a, b, FIRST_PAIRS), cuda.libdevice.byte_perm(a, b, LAST_PAIRS)
    beside, last = cuda.libdevice.byte_perm(b, c, FIRST_PAIRS), cuda.libdevice.byte_perm(b, c, LAST_PAIRS)
    if cuda.threadIdx.x & 15 < PIECES:
        store128(pairs, at, (left, right, beside, last))


@cuda.jit(device=True)
def fill_box(pairs, flat, double, h, words, top, first, rows):
    """Pairs of neighbours of ``rows`` rows of the image from row ``top`` on, and in each from word ``first`` on.

    A row is loaded by 16 lanes, which have 8 pixels each. Such a load of a warp touches few lines of the cache.
    """
    waiting = cuda.local.array(WORDS_AHEAD, np.int32)
    row, part = np.int32(np.uint32(cuda.threadIdx.x) >> np.uint32(4)), np.int32(cuda.threadIdx.x & 15)
    at = np.uint64(np.uint32(row * (PITCH // 2) + 4 * part))
    part = min(part, np.int32(PIECES))  # the last two lanes load what the one before them does
    i, j = np.int32(top + row), np.int32(first + 2 * part)
    left = np.int32(rows)
    if top >= 0 and np.int32(top + BOX_ROWS) <= h and first >= 0 and np.int32(first + 2 * PIECES + 2) <= words:
        source = np.uint64(np.int64(i) * words + j) >> np.uint64(1)
        step = np.uint64(np.uint32(AT_ONCE // 2 * words))
        while left > 0:
            left = np.int32(left - AT_ONCE * AHEAD)
            for k in range(AHEAD):
                both = double[source]
                waiting[2 * k], waiting[2 * k + 1] = np.int32(both), np.int32(both >> np.uint64(32))
                source += step
            for k in range(AHEAD):
                put_pairs(pairs, at + np.uint64(AT_ONCE * PITCH // 2 * k), waiting[2 * k], waiting[2 * k + 1])
            at += np.uint64(AT_ONCE * PITCH // 2 * AHEAD)
    else:
        while left > 0:
            put_pairs(pairs, at, word_at(flat, h, words, i, j), word_at(flat, h, words, i, np.int32(j + 1)))
            left, i = np.int32(left - AT_ONCE), np.int32(i + AT_ONCE)
            at += np.uint64(AT_ONCE * PITCH // 2)


@cuda.jit(device=True)
def pixel_in(box, down, right):
    """2^16 times the mean at a position in the box, of which ``down`` is given times 2^8.

    The upper word of ``down`` has the share in its lowest byte and the row in the next. ``APART`` times the share of
    ``right``, and 256, are the weights of a pair: 256 less the share, and the share.
    """
    row = np.uint32(np.uint64(down) >> np.uint64(32))
    at = np.uint64(dot_low(IN_ROWS, row, np.uint32(right >> 32)))
    weights = dot_high(APART, fraction(right), np.uint32(256))
    # The 128 that either has in addition become 2^15 in the result.
    upper = dot_low(weights, np.uint32(box[at]), np.uint32(128))
    lower = dot_low(weights, np.uint32(box[at + np.uint64(PITCH)]), np.uint32(128))
    # The lowest byte of ~row is 255 less the share.
    return np.int32(dot_low(lower, row, dot_low(upper, np.uint32(~row), upper)))


@cuda.jit(device=True)
def transposed(a, b, c, d):
    """Four words, of which each has the bytes that stood in one place of the four words given."""
    permuted = cuda.libdevice.byte_perm
    a, b, c, d = np.int32(a), np.int32(b), np.int32(c), np.int32(d)
    upper, lower = permuted(a, b, FIRST_TWO), permuted(c, d, FIRST_TWO)
    first, second = permuted(upper, lower, LOWER), permuted(upper, lower, UPPER)
    upper, lower = permuted(a, b, LAST_TWO), permuted(c, d, LAST_TWO)
    return first, second, permuted(upper, lower, LOWER), permuted(upper, lower, UPPER)


class Walk(typing.NamedTuple):
    """How far something is from something else in the image: numbers of 64 bits, pixels times 2^32."""

    down: np.int64  # the result's first pixel from the image's
    right: np.int64
    cos: np.int64  # the next pixel of a column or a row
    sin: np.int64
    highest: np.int64  # the pixels of a tile from its first one, at the least and at the most
    lowest: np.int64
    leftmost: np.int64
    patch_down: np.int64  # the next patch in a row; what goes down is given times 2^8
    patch_right: np.int64
    pass_down: np.int64  # the next patch in a column
    pass_right: np.int64


@cuda.jit(device=True)
def times(count, distance):
    """A count that is not negative, times a distance: fewer instructions than for two numbers with signs."""
    return np.int64(np.uint64(np.uint32(count)) * np.uint64(distance))


@cuda.jit
def in_boxes_kernel(flat, double, out, h, words, walk):
    box = cuda.shared.array(0, np.uint16, alignment=16)
    pairs = cuda.shared.array(0, np.uint32, alignment=16)  # the same memory, two of them at a time
    found = cuda.local.array(4, np.int32)
    thread = np.int32(cuda.threadIdx.x)
    lane, warp = np.int32(thread & 31), np.int32(np.uint32(thread) >> np.uint32(5))
    tile_row, tile_word = np.int32(cuda.blockIdx.y * SIDE), np.int32(cuda.blockIdx.x * (SIDE // 4))
    down = walk.down + times(tile_row, walk.cos) + times(4 * tile_word, walk.sin)
    right = walk.right + times(4 * tile_word, walk.cos) - times(tile_row, walk.sin)
    top, first = np.int32((down + walk.highest) >> 32), np.int32(2 * np.int32((right + walk.leftmost) >> 35))
    fill_box(pairs, flat, double, h, words, top, first, np.int32(np.int32((down + walk.lowest) >> 32) - top + 2))
    cuda.syncthreads()
    # From here on positions are counted from the corner of the box. Each lane is in a patch of 4 columns and 8 rows.
    row, column = np.int32(np.uint32(thread) // np.uint32(ACROSS)), np.int32(thread & (ACROSS - 1))
    down += times(row, walk.cos) + times(column, walk.sin) - (np.int64(top) << 32)
    right += times(column, walk.cos) - times(row, walk.sin) - (np.int64(first) << 34)
    down = down << 8
    # Of what its warp has computed, a lane stores sixteen neighbours of a row: 8 lanes are below each other.
    own = np.uint64(MEANS + warp * OF_A_WARP)
    row = np.int32(tile_row + DEEP * warp + (lane & (DEEP - 1)))
    word = np.int32(tile_word + 4 * np.int32(np.uint32(lane) // np.uint32(DEEP)))
    target = np.int64(row) * words + word
    rows = h if word < words else np.int32(0)
    for _ in range(SIDE // TOGETHER):
        at_down, at_right = afresh(down), afresh(right)
        for k in range(SIDE // (4 * ACROSS)):
            for j in range(4):
                found[j] = pixel_in(box, at_down, at_right)
                at_down += walk.patch_down
                at_right += walk.patch_right
            left = cuda.libdevice.byte_perm(found[0], found[1], THIRD)
            last = cuda.libdevice.byte_perm(found[2], found[3], THIRD)
            pairs[own + np.uint64(lane + 32 * k)] = np.uint32(cuda.libdevice.byte_perm(left, last, LOWER))
        cuda.syncwarp()
        a, b, c, d = load128(pairs, own + np.uint64(4 * lane))
        if row < rows:
            store128(out, target, transposed(a, b, c, d))
        cuda.syncwarp()
        down += walk.pass_down
        right += walk.pass_right
        row = np.int32(row + TOGETHER)
        target += TOGETHER * words


def farthest(a: int, b: int) -> tuple[int, int]:
    """How far the pixels of a tile are from its first one at the least and at the most, in steps of a and b."""
    return sum(min((SIDE - 1) * each, 0) for each in (a, b)), sum(max((SIDE - 1) * each, 0) for each in (a, b))


def walk_of(h: int, w: int, cos: int, sin: int) -> Walk:
    """The distances in an image of w columns and h rows, for half a pixel's cosine and sine."""
    down, right = -(h - 1) * cos - (w - 1) * sin, -(w - 1) * cos + (h - 1) * sin
    (highest, lowest), (leftmost, _) = farthest(2 * cos, 2 * sin), farthest(2 * cos, -2 * sin)
    distances = (
        *(down + (h - 1) * (ONE // 2), right + (w - 1) * (ONE // 2), 2 * cos, 2 * sin, highest, lowest, leftmost),
        *(2 * ACROSS * sin << 8, 2 * ACROSS * cos, 2 * TOGETHER * cos << 8, -2 * TOGETHER * sin),
    )
    return Walk(*map(np.int64, distances))


@rung(in_boxes_kernel, in_words_kernel, in_patches_kernel)
def in_boxes(p):
    """A block fetches the box of the image that its tile comes from, and what a pixel needs is loaded from there.

    The box has about twice the tile's pixels. Sixteen lanes load a row of it, so a load of a warp touches few lines of
    the cache. In shared memory each pixel stands beside its right neighbour, so that a pair is one load, and a pixel
    needs two of them. What is outside of the image is 0 there, and no pixel is tested. A pair and its two weights are
    one dot product, and so are a pixel's place in the box and the weights themselves: see `pmpp.runtime.dots`. The
    results go through shared memory, too: a lane stores sixteen neighbours of a row at once.

    It is bound by instructions and by shared memory, nearly as much: a pixel needs more than twenty, a few of them for
    the box. Where rows of ``x`` or ``out`` do not begin at multiples of 16 bytes, this is `in_words`.

    Source: PMPP 4e section 5.3, for tiles in shared memory; PTX ISA, "dp2a".
    """
    h, w = p.x.shape
    if w % 16 or device.address(p.result) % 16 or device.address(p.x) % 16:
        in_words.launch(p)
        return
    flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1).view(np.uint32)
    places = np.int32(h), np.int32(w // EACH), walk_of(h, w, int(p.cos), int(p.sin))
    grid = blocks(w, SIDE), blocks(h, SIDE)
    in_boxes_kernel[grid, THREADS, p.stream, SHARED](flat, flat.view(np.uint64), out, *places)


LADDER = (in_rows, in_patches, in_words, in_boxes)
