# seconds: 20
# gpus: 1
mkdir -p /tmp/rotation_trial2
cat > /tmp/rotation_trial2/oldroom.py <<'EOF_OLD'
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

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import check, device
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
THREADS = 128  # of a block: four warps
BOX_ROWS, PIECES = 92, 12  # of the box of the image that a tile comes from, at most: rows, and 8 columns each
PITCH = 104  # pairs of pixels from a row of the box to the next one: with it few lanes meet in a bank
AT_ONCE = THREADS // PIECES  # rows of the box that the block fills at a time
DEEP = THREADS // 8  # rows of the tile that the block computes at a time: four for each warp
MEANS, MEANS_PITCH = 2 * BOX_ROWS * PITCH, SIDE + 16  # where the block's results lie behind the box; bytes of a row
ROWS_OUT = THREADS // (SIDE // 16)  # rows of them that the block stores at a time
SHARED = MEANS + SIDE * MEANS_PITCH  # bytes of shared memory

ZERO = np.int32(0)
# Which bytes of two words become those of one: see `cuda.libdevice.byte_perm`. Byte 4 is the first of the second word.
FIRST_PAIRS, LAST_PAIRS, APART = np.int32(0x2110), np.int32(0x4332), np.int32(0x4140)
TOP, SAME = np.int32(0x4443), np.int32(0x3210)


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
        return np.int32(flat[np.uint64(i * words + j)])
    return ZERO


@cuda.jit(device=True)
def put_pairs(pairs, at, a, b, c):
    """Eight pixels, each of them with its right neighbour: pixels 0 and 1, 1 and 2, ... The last one is the ninth."""
    left, right = cuda.libdevice.byte_perm(a, b, FIRST_PAIRS), cuda.libdevice.byte_perm(a, b, LAST_PAIRS)
    beside, last = cuda.libdevice.byte_perm(b, c, FIRST_PAIRS), cuda.libdevice.byte_perm(b, c, LAST_PAIRS)
    store128(pairs, at, (left, right, beside, last))


@cuda.jit(device=True)
def fill_box(pairs, flat, h, words, top, first, rows):
    """Pairs of neighbours of ``rows`` rows of the image from row ``top`` on, and in each from word ``first`` on."""
    row = np.int32(np.uint32(cuda.threadIdx.x) // np.uint32(PIECES))
    word = np.int32(2 * (cuda.threadIdx.x - row * PIECES))
    at = np.uint32(row * (PITCH // 2) + 2 * word)
    if top >= 0 and np.int32(top + rows) <= h and first >= 0 and np.int32(first + 2 * PIECES + 1) <= words:
        source = np.int64(np.int32(top + row)) * words + np.int32(first + word)
        while row < rows:
            a, b, c = flat[np.uint64(source)], flat[np.uint64(source + 1)], flat[np.uint64(source + 2)]
            put_pairs(pairs, at, np.int32(a), np.int32(b), np.int32(c))
            source += AT_ONCE * words
            at = np.uint32(at + np.uint32(AT_ONCE * PITCH // 2))
            row = np.int32(row + AT_ONCE)
    else:
        while row < rows:
            i, j = np.int64(top) + row, np.int64(first) + word
            a, b = word_at(flat, h, words, i, j), word_at(flat, h, words, i, j + 1)
            put_pairs(pairs, at, a, b, word_at(flat, h, words, i, j + 2))
            at = np.uint32(at + np.uint32(AT_ONCE * PITCH // 2))
            row = np.int32(row + AT_ONCE)


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
    """The mean at a position in the box."""
    at = np.uint64(down >> 32) * np.uint64(PITCH) + np.uint64(right >> 32)
    beside = np.uint32(cuda.libdevice.byte_perm(fraction(right), ZERO, TOP))
    below = np.uint32(cuda.libdevice.byte_perm(fraction(down), ZERO, TOP))
    weights = np.uint32(np.uint32(256 << 16) - np.uint32(beside * np.uint32((1 << 16) - 1)))
    upper, lower = between(box[at], weights), between(box[at + np.uint64(PITCH)], weights)
    # The 128 that either has in addition become 2^15 here.
    mean = np.uint32(np.uint32(upper << np.uint32(8)) + np.uint32(below * np.uint32(lower - upper)))
    return np.uint8(mean >> np.uint32(16))


@cuda.jit
def in_boxes_kernel(flat, out, h, words, cos, sin, highest, lowest, leftmost):
    box = cuda.shared.array(0, np.uint16, alignment=16)
    pairs = cuda.shared.array(0, np.uint32, alignment=16)  # the same memory, two of them at a time
    means = cuda.shared.array(0, np.uint8, alignment=16)  # what lies behind the box
    found = cuda.local.array(4, np.uint8)
    tile_row, tile_word = np.int32(cuda.blockIdx.y * SIDE), np.int32(cuda.blockIdx.x * (SIDE // 4))
    down, right = place(tile_row, 4 * tile_word, h, 4 * words, cos, sin)
    top, first = np.int32((down + highest) >> 32), np.int32((right + leftmost) >> 34)
    if cuda.threadIdx.x < AT_ONCE * PIECES:
        fill_box(pairs, flat, h, words, top, first, np.int32(np.int32((down + lowest) >> 32) - top + 2))
    cuda.syncthreads()
    # A warp computes patches of eight columns and four rows: whatever the angle is, few of its lanes meet in a bank.
    row, column = np.int32(np.uint32(cuda.threadIdx.x) >> np.uint32(3)), np.int32(cuda.threadIdx.x & 7)
    own = np.uint32(np.uint32(row) * np.uint32(MEANS_PITCH) + np.uint32(column + MEANS))
    # From here on positions are counted from the corner of the box.
    down += 2 * (row * cos + column * sin) - (np.int64(top) << 32)
    right += 2 * (column * cos - row * sin) - (np.int64(first) << 34)
    for _ in range(0, SIDE, DEEP):
        at_down, at_right = afresh(down), afresh(right)
        for k in range(0, SIDE, 32):
            for j in range(4):  # all loads before the stores: the compiler cannot know that they do not meet
                found[j] = pixel_in(box, at_down, at_right)
                at_down += 16 * sin
                at_right += 16 * cos
            for j in range(4):
                means[np.uint64(own) + np.uint64(k + 8 * j)] = found[j]
        own = np.uint32(own + np.uint32(DEEP * MEANS_PITCH))
        down += 2 * DEEP * cos
        right -= 2 * DEEP * sin
    cuda.syncthreads()
    # Sixteen pixels at a time, by rows.
    row = np.int32(np.uint32(cuda.threadIdx.x) // np.uint32(SIDE // 16))
    word = np.int32(4 * (cuda.threadIdx.x - row * (SIDE // 16)))
    source = np.uint32(np.uint32(row) * np.uint32(MEANS_PITCH // 4) + np.uint32(word + MEANS // 4))
    rows = min(np.int32(h - tile_row), SIDE) if np.int32(tile_word + word) < words and row < ROWS_OUT else np.int32(0)
    target = np.int64(np.int32(tile_row + row)) * words + np.int32(tile_word + word)
    while row < np.int32(rows):
        store128(out, target, load128(pairs, source))
        source = np.uint32(source + np.uint32(ROWS_OUT * MEANS_PITCH // 4))
        target += ROWS_OUT * words
        row = np.int32(row + ROWS_OUT)


def farthest(a: int, b: int) -> tuple[int, int]:
    """How far the pixels of a tile are from its first one at the least and at the most, in steps of a and b."""
    return sum(min((SIDE - 1) * each, 0) for each in (a, b)), sum(max((SIDE - 1) * each, 0) for each in (a, b))


@rung(in_boxes_kernel, in_words_kernel, in_patches_kernel)
def in_boxes(p):
    """A block fetches the box of the image that its tile comes from, in words, and the four loads are of shared memory.

    The box has about twice the tile's pixels, and is loaded by rows, which are coalesced. In shared memory each pixel
    stands beside its right neighbour, so that a pair is one load, and a pixel needs two of them. What is outside of the
    image is 0 there, and no pixel is tested. One multiplication weights both pixels of a pair. The results go through
    shared memory, too, and are stored in 128 bits.

    It is bound by shared memory and by instructions, nearly as much: a pixel needs some thirty, a few of them for the
    box. Where rows of ``x`` or ``out`` do not begin at multiples of 16 bytes, this is `in_words`.

    Source: PMPP 4e section 5.3, for tiles in shared memory; H. S. Warren, "Hacker's delight" (2nd edition, 2012),
    chapter 2, for several numbers in a word.
    """
    h, w = p.x.shape
    if w % 16 or device.address(p.result) % 16 or device.address(p.x) % 16:
        in_words.launch(p)
        return
    cos, sin = 2 * int(p.cos), 2 * int(p.sin)
    (highest, lowest), (leftmost, _) = farthest(cos, sin), farthest(cos, -sin)
    places = np.int32(h), np.int32(w // EACH), p.cos, p.sin, np.int64(highest), np.int64(lowest), np.int64(leftmost)
    flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1).view(np.uint32)
    in_boxes_kernel[(blocks(w, SIDE), blocks(h, SIDE)), THREADS, p.stream, SHARED](flat, out, *places)


LADDER = (in_rows, in_patches, in_words, in_boxes)

EOF_OLD
cat > /tmp/rotation_trial2/job3.py <<'EOF_JOB'
import sys, time, math, os, types
T0=time.time()
DEADLINE=float(sys.argv[1])
import numpy as np, cupy
HERE=os.path.dirname(os.path.abspath(__file__)); sys.path.insert(0, HERE)
from pmpp.lab.measure import timing
from pmpp.runtime import device
from pmpp.kernels.images import rotation as room
SRC=open(room.__file__).read()
def module(name, changes):
    text=SRC
    for a,b in changes:
        assert a in text, (name, a)
        text=text.replace(a,b)
    path=f"{HERE}/{name}.py"; open(path,"w").write(text)
    m=types.ModuleType(name); m.__file__=path
    sys.modules[name]=m
    exec(compile(text,path,"exec"),m.__dict__)
    return m
i=SRC.index("    row = np.uint32(np.uint64(down) >> np.uint64(32))\n    at = "); e=SRC.index("@cuda.jit(device=True)\ndef transposed")
FOUR="""@cuda.jit(device=True)
def four_in(box, down, right, next_down, next_right):
    a = pixel_in(box, down, right)
    down += next_down
    right += next_right
    b = pixel_in(box, down, right)
    down += next_down
    right += next_right
    c = pixel_in(box, down, right)
    down += next_down
    right += next_right
    d = pixel_in(box, down, right)
    left = cuda.libdevice.byte_perm(a, b, THIRD)
    last = cuda.libdevice.byte_perm(c, d, THIRD)
    return np.uint32(cuda.libdevice.byte_perm(left, last, LOWER)), down + next_down, right + next_right


"""
H="""    high = np.uint32(np.uint64(down) >> np.uint64(32))
    at = np.uint64(np.uint32(np.uint32(high >> np.uint32(8)) * np.uint32(PITCH)) + np.uint32(right >> 32))
    beside = np.uint32(fraction(right)) >> np.uint32(24)
    below = high & np.uint32(255)
    up, lo = np.int32(box[at]), np.int32(box[at + np.uint64(PITCH)])
    p = np.uint32(cuda.libdevice.byte_perm(up, lo, np.int32(0x3430)))
    q = np.uint32(cuda.libdevice.byte_perm(up, lo, np.int32(0x3531)))
    both = np.uint32(np.uint32(np.uint32(p << np.uint32(8)) + np.uint32(0x00800080)) + np.uint32(beside * np.uint32(q - p)))
    upper, lower = both & np.uint32(65535), both >> np.uint32(16)
    return np.int32(np.uint32(upper << np.uint32(8)) + np.uint32(below * np.uint32(lower - upper)))


"""
B="""    high = np.uint32(np.uint64(down) >> np.uint64(32))
    at = np.uint64(np.uint32(np.uint32(high >> np.uint32(8)) * np.uint32(PITCH)) + np.uint32(right >> 32))
    beside = np.uint32(fraction(right)) >> np.uint32(24)
    below = high & np.uint32(255)
    weights = np.uint32(np.uint32(256 << 16) - np.uint32(beside * np.uint32((1 << 16) - 1)))
    up = np.uint32(cuda.libdevice.byte_perm(np.int32(box[at]), ZERO, np.int32(0x4140)))
    lo = np.uint32(cuda.libdevice.byte_perm(np.int32(box[at + np.uint64(PITCH)]), ZERO, np.int32(0x4140)))
    upper = np.uint32(np.uint32(up * weights) + np.uint32(128 << 16)) >> np.uint32(16)
    lower = np.uint32(np.uint32(lo * weights) + np.uint32(128 << 16)) >> np.uint32(16)
    return np.int32(np.uint32(upper << np.uint32(8)) + np.uint32(below * np.uint32(lower - upper)))


"""
k0=SRC.index("        for k in range(SIDE // (4 * ACROSS)):\n            for j in range(4):"); k1=SRC.index("        cuda.syncwarp()\n        a, b, c, d = load128")
LINE=(SRC[k0:k1],"".join(f"""        found_word, at_down, at_right = four_in(box, at_down, at_right, walk.patch_down, walk.patch_right)
        pairs[own + np.uint64(lane + {32*k})] = found_word
""" for k in range(4)))
DROP=("    found = cuda.local.array(4, np.int32)\n","")
C=B.replace("    high = np.uint32(np.uint64(down) >> np.uint64(32))\n    at = np.uint64(np.uint32(np.uint32(high >> np.uint32(8)) * np.uint32(PITCH)) + np.uint32(right >> 32))","    at = np.uint64(np.uint32(np.uint32(down >> 32) * np.uint32(PITCH)) + np.uint32(right >> 32))").replace("below = high & np.uint32(255)","below = np.uint32(fraction(down)) >> np.uint32(24)")
UNSHIFT=[("    down = down << 8\n",""),("2 * ACROSS * sin << 8","2 * ACROSS * sin"),("2 * TOGETHER * cos << 8","2 * TOGETHER * cos")]
VARIANTS={"plainC":[(SRC[i:e],C+FOUR),LINE,DROP,*UNSHIFT],"plainB":[(SRC[i:e],B+FOUR),LINE,DROP],"dp2a line":[(SRC[i:e],SRC[i:e]+FOUR),LINE,DROP]}
N=16384
def say(*a): print(f"{time.time()-T0:5.1f}s",*a,flush=True)
x=device.to_device(np.random.default_rng(0).integers(0,256,(N,N),dtype=np.uint8))
ref,out=device.empty((N,N),np.uint8),device.empty((N,N),np.uint8)
cref,cout,cx=cupy.asarray(ref),cupy.asarray(out),cupy.asarray(x)
DEG=(0,15,30,45,90)
def ms(fn,secs=.07):
    return round(1e6*timing.measure(lambda _x: fn(), [(x,)], cache="cold", set_bytes=2*N*N, max_seconds=secs, min_repeats=7).median,1)
def times(m, degs=DEG):
    P={d:m.arguments(x,math.radians(d),out=out) for d in degs}
    return {d: ms(lambda: m.in_boxes.launch(P[d])) for d in degs}
def check(m):
    bad=0
    for h,w,a in ((1,16,3.),(64,64,.5),(70,80,0.),(70,80,math.pi),(230,256,2.2),(230,256,math.pi/4),(230,256,math.pi/2),(513,640,-1.2)):
        y=np.random.default_rng(1).integers(0,256,(h,w),dtype=np.uint8)
        p=m.arguments(y,a); m.in_boxes.launch(p)
        bad+=int((device.to_host(p.result)!=m.reference(y,a)).sum())
    return bad
if len(sys.argv)>2:
    m=room if sys.argv[2]=="base" else module(sys.argv[2].replace(" ","_"),VARIANTS[sys.argv[2]])
    m.in_boxes.launch(m.arguments(x,math.radians(30),out=out)); cupy.cuda.runtime.deviceSynchronize(); sys.exit()
import oldroom
say("copy", ms(lambda: cupy.copyto(cout,cx)))
p=oldroom.arguments(x,math.radians(30),out=ref); oldroom.in_boxes.launch(p)
s=time.time(); q=room.arguments(x,math.radians(30),out=out); room.in_boxes.launch(q); cupy.cuda.runtime.deviceSynchronize()
say("compile",round(time.time()-s,1),"wrong",int((cref!=cout).sum()),check(room))
say("old",times(oldroom)); say("new",times(room))
for name,changes in VARIANTS.items():
    if time.time()-T0>DEADLINE: break
    try:
        m=module(name.replace(" ","_"),changes)
        s=time.time(); m.in_boxes.launch(m.arguments(x,math.radians(30),out=out)); cupy.cuda.runtime.deviceSynchronize(); c=time.time()-s
        say(f"{name:10} compile {c:4.1f} wrong", "-" if name.startswith("no") else (int((cref!=cout).sum()),check(m)), times(m,(0,30,45,90) if name.startswith("no") else DEG))
    except Exception as e:
        say(name,"FAILED",type(e).__name__,str(e)[:300])
own={d: ms(lambda: room.in_boxes(x,math.radians(d),out=out)) for d in DEG}; own_old={d: ms(lambda: oldroom.in_boxes(x,math.radians(d),out=out)) for d in DEG}
say("own call new",own); say("own call old",own_old)
say("new again",times(room)); say("old again",times(oldroom,(30,)))

EOF_JOB
export PYTHONPATH=$PWD PMPP_BACKEND=numba
timeout 18 python3 /tmp/rotation_trial2/job3.py 12 > $OUT/table.txt 2>&1
