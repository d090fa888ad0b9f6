"""Box blur: each pixel becomes the mean of a square of pixels around it.

Chapter: notebooks/10_images.ipynb.  PMPP 4e ch. 3.

A pixel is one byte in and one byte out, whatever the radius r is. The mean of its square, taken by itself, needs
(2 r + 1)^2 additions. So memory is the bound of the definition, and arithmetic that of the naive kernel. Neighbouring
squares have most of their pixels in common: sums that are kept make the work as little for a large radius as for a
small one.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime import check, device
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

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
    cases |= {"one lane": (9, EACH, 1), "more than a warp": (12, 31 * EACH, 9), "far lanes": (18, 5 * EACH, 33)}
    made = {name: (rng.integers(0, 256, (h, w), dtype=np.uint8), r) for name, (h, w, r) in cases.items()}
    made["white"] = (np.full((10, 40), 255, np.uint8), 3)  # 255 must stay 255
    made["all white, by lanes"] = (np.full((10, 48), 255, np.uint8), 2)
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

    Leaves: the sums go to memory and come back, eight bytes a pixel beside two; and an integer is divided for each.
    """
    h, w = p.x.shape
    sums = device.empty((h, w), np.int32, stream=p.stream)
    running_down_kernel[(blocks(w, BLOCK), blocks(h, STRIP)), BLOCK, p.stream](p.x, sums, p.radius)
    grid = blocks(blocks(w, RUN), WIDE), blocks(h, HIGH)
    running_along_kernel[grid, (WIDE, HIGH), p.stream](sums, p.result, p.radius)


# ------------------------------------------------------------------------------------------- both walks in one kernel

EACH, HALF = 16, 8  # columns of a thread; half of them
PLACES = EACH + 1  # where a window can begin: one more, which nobody uses, since four are computed at a time
WARPS, DEEP = 2, (8, 16)  # of a block; rows that a warp walks down, at least and at most
MOST_FUSED = 44  # the largest radius whose means are exact: see `rounded`

EVEN, ODD, NONE = np.int32(0x4240), np.int32(0x4341), np.int32(0x4444)  # bytes of a word, each below a byte of 0
LIFT = 0x8000  # keeps the lower one of two differences in a word from borrowing of the upper one
LARGE, LARGE_BITS = np.float32(2**23), 0x4B000000  # one number: from it on, float32 are integers


@cuda.jit(device=True)
def lower(word):
    """The lower half of a word."""
    return np.int32(np.uint32(word) & np.uint32(0xFFFF))


@cuda.jit(device=True)
def upper(word):
    """The upper half of a word."""
    return np.int32(np.uint32(word) >> np.uint32(16))


@cuda.jit(device=True)
def sum_at(sums, k):
    """The sum of column k. Four columns are in two words: 0 and 2, then 1 and 3."""
    word = sums[k // 4 * 2 + k % 2]
    return upper(word) if k % 4 > 1 else lower(word)


@cuda.jit(device=True)
def two_sums_at(sums, words, k):
    """The sum of column k and, in the upper half, that of column k + 2, if the words have it."""
    word, following = sums[k // 4 * 2 + k % 2], (k + 2) // 4 * 2 + k % 2
    if k % 4 < 2:
        return np.int32(word)
    if following < words:
        return cuda.libdevice.byte_perm(np.int32(word), np.int32(sums[following]), np.int32(0x5432))
    return upper(word)


@cuda.jit(device=True)
def sum_of_eight(a, b, c, d):
    """The sum of the eight numbers in four words. Two of them together fit into 16 bits."""
    ab, cd = np.uint32(a + b), np.uint32(c + d)
    return lower(ab) + lower(cd) + upper(ab) + upper(cd)


@cuda.jit(device=True)
def share_of(count):
    """A pixel's share in a mean, as the float32 after 1 / count: see `rounded`."""
    share = np.float32(1) / np.float32(np.int32(count))
    return cuda.libdevice.int_as_float(np.int32(cuda.libdevice.float_as_int(share) + 1))


@cuda.jit(device=True)
def rounded(total, share):
    """A mean as the bits of 2^23 + it. ``total`` are the bits of 2^23 + the sum of a window.

    The multiply-add rounds once, to an integer. The mean of c pixels is a half, or at least 1/(2 c) away from one. The
    share is more than 1/c, so that a half is rounded up, but by less than 1.5 * 2^-23 of it. That makes a mean of at
    most 255 too large by less than 2^-14, so that for c < 2^13 the integer is right. A window of radius 44 has c = 89^2
    pixels.
    """
    exact = cuda.libdevice.int_as_float(total) - LARGE
    return cuda.libdevice.float_as_int(cuda.libdevice.fmaf_rn(exact, share, LARGE))


def useful_lanes(radius: int) -> int:
    """How many lanes of a warp have the columns of their windows in the warp. The others' are there for them.

    >>> useful_lanes(8), useful_lanes(17)
    (30, 28)
    """
    return 32 - 2 * blocks(radius, EACH)


@cuda.jit(device=True)
def four_bytes(a, b, c, d):
    """The lowest bytes of four words as one word."""
    left, right = cuda.libdevice.byte_perm(a, b, np.int32(0x0040)), cuda.libdevice.byte_perm(c, d, np.int32(0x0040))
    return np.uint32(cuda.libdevice.byte_perm(left, right, np.int32(0x5410)))


@cuda.jit(device=True)
def loaded_if(there, x, at, otherwise):
    """The four words from x[at] on if they are there, or else what was loaded before."""
    if there:
        return load128(x, at)
    return otherwise


@cuda.jit(device=True)
def two_bytes(word, which):
    """Bytes 0 and 2 of a word, or 1 and 3, or none: `EVEN`, `ODD`, `NONE`."""
    return np.uint32(cuda.libdevice.byte_perm(np.int32(word), np.int32(0), which))


@cuda.jit(device=True)
def from_lane(value, half):
    """The value of the lane to which a half belongs."""
    away = half // 2
    if away > 0:
        return cuda.shfl_down_sync(FULL_WARP, value, away)
    if away < 0:
        return cuda.shfl_up_sync(FULL_WARP, value, -away)
    return value


@functools.lru_cache(maxsize=16)
def fused_for(radius: int) -> typing.Any:
    """The kernel for a radius. That is a constant: the compiler then knows in which half of which word a sum is."""
    useful = useful_lanes(radius)
    # Halves of eight sums are counted from the lane's first column: its own are 0 and 1. Along its pixels the sums of
    # columns radius + 1 to radius + 15 enter the window, and those of columns -radius to 14 - radius leave it.
    enter, leave = (radius + 1) // HALF, -radius // HALF
    entering, leaving = (radius + EACH - 1) // HALF + 1 - enter, (EACH - 2 - radius) // HALF + 1 - leave
    # The first pixel's window has these halves as a whole, then some sums on their left and on their right.
    whole, whole_end, left, right = -(radius // HALF), (radius + 1) // HALF, radius % HALF, (radius + 1) % HALF
    enter_words, leave_words, first_left = 4 * entering, 4 * leaving, -radius % HALF
    whole_share = np.nextafter(np.float32(1) / np.float32((2 * radius + 1) ** 2), np.float32(1))

    @cuda.jit(device=True)
    def add_row(sums, words, even, odd):
        for k in range(4):
            sums[2 * k] += two_bytes(words[k], even)
            sums[2 * k + 1] += two_bytes(words[k], odd)

    @cuda.jit(device=True)
    def subtract_row(sums, words, even, odd):
        for k in range(4):
            sums[2 * k] -= two_bytes(words[k], even)
            sums[2 * k + 1] -= two_bytes(words[k], odd)

    @cuda.jit
    def fused_kernel(x, out, h, words, deep):
        sums = cuda.local.array(8, np.uint32)  # in registers, down the lane's 16 columns: two in a word
        totals = cuda.local.array(2, np.int32)  # of either half of them
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, warp = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y)
        w, first = np.int32(4 * words), np.int32(cuda.blockIdx.y * deep)
        column = np.int32(EACH * (warp * useful + lane - (32 - useful) // 2))
        inside = column >= 0 and column < w
        at_side = column < radius or np.int32(column + EACH + radius) > w
        writes = inside and 2 * lane >= 32 - useful and 2 * lane < 32 + useful
        # Outside of the image all sums are 0.
        at, even, odd = (np.int64(column // 4), EVEN, ODD) if inside else (np.int64(0), NONE, NONE)
        for k in range(8):
            sums[k] = 0
        row = max(np.int32(first - radius), np.int32(0))
        entering_at = row * words + at
        while row < min(np.int32(first + radius), h):
            add_row(sums, load128(x, entering_at), even, odd)
            entering_at += words
            row = np.int32(row + 1)
        here = first * words + at
        leaving_at = here - radius * words
        new = load128(x, min(entering_at, (h - 1) * words + at))
        old = new
        row = first
        while row < min(np.int32(first + deep), h):
            if np.int32(row + radius) < h:
                add_row(sums, new, even, odd)
            if row > first and row > radius:
                subtract_row(sums, old, even, odd)
            # For the next row: they come meanwhile.
            entering_at += words
            new = loaded_if(np.int32(row + radius + 1) < h, x, entering_at, new)
            old = loaded_if(row >= radius, x, leaving_at, old)
            leaving_at += words
            for k in range(2):
                totals[k] = sum_of_eight(sums[4 * k], sums[4 * k + 1], sums[4 * k + 2], sums[4 * k + 3])
            for i in range(enter_words):
                half = enter + i // 4
                enters[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
            for i in range(leave_words):
                half = leave + i // 4
                leaves[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
            total = np.int32(LARGE_BITS)
            for half in range(whole, whole_end):
                total = np.int32(total + from_lane(totals[half % 2], half))
            for k in range(left):
                total = np.int32(total + sum_at(leaves, first_left + k))
            for k in range(right):
                total = np.int32(total + sum_at(enters, k))
            window[0] = total
            # By how much the next four windows differ, each from the one before: by two and two in a word.
            for j in range(0, EACH, 4):
                enter_one, leave_one = right + j, first_left + j
                one = two_sums_at(enters, enter_words, enter_one) - two_sums_at(leaves, leave_words, leave_one) + LIFT
                other = two_sums_at(enters, enter_words, enter_one + 1)
                other = other - two_sums_at(leaves, leave_words, leave_one + 1) + LIFT
                window[j + 1] = np.int32(window[j] + lower(one) - LIFT)
                window[j + 2] = np.int32(window[j + 1] + lower(other) - LIFT)
                window[j + 3] = np.int32(window[j + 2] + (np.int32(one) >> 16))
                window[j + 4] = np.int32(window[j + 3] + (np.int32(other) >> 16))
            for j in range(EACH):
                means[j] = rounded(window[j], whole_share)
            if at_side or row < radius or np.int32(row + radius) >= h:
                # Here windows have fewer pixels. min(row, 0) is 0: without it the compiler would count the columns
                # before the loop, and keep them in 16 registers.
                rows, edge = np.int32(covered(row, radius, h)), np.int32(column + min(row, np.int32(0)))
                for j in range(EACH):
                    end = min(np.int32(edge + j + radius + 1), w)
                    columns = np.int32(end - max(np.int32(edge + j - radius), np.int32(0)))
                    means[j] = rounded(window[j], share_of(rows * max(columns, np.int32(1))))
            for k in range(4):
                means[k] = four_bytes(means[4 * k], means[4 * k + 1], means[4 * k + 2], means[4 * k + 3])
            if writes:
                store128(out, here, (means[0], means[1], means[2], means[3]))
            here += words
            row = np.int32(row + 1)

    return fused_kernel


@rung(fused_for, running_down_kernel, running_along_kernel)
def fused(p):
    """Both walks in one kernel: the sums down the columns stay in registers, two in a word, and go from lane to lane.

    A lane has 16 columns, 128 bits of a row, and its warp walks down at most 16 rows. One addition adds two bytes to
    two sums. After each row the lanes get the sums of their neighbours by shuffles. One subtraction gives by how much
    two windows differ from those before them, and each lane walks along its 16 pixels. The mean is one multiply-add of
    float32, of which a GPU does twice as many as of integers. A warp's outer lanes have columns for the others only.

    A radius above 44 is left to `running`: float32 could not tell its means from a half. So is an image whose rows do
    not begin at multiples of 16 bytes.

    Source: the walks are McDonnell's; integers in parts of a word, and in the bits of a large float32: H. S. Warren,
    "Hacker's delight" (2nd edition, 2012), chapters 2 and 17.

    Leaves: a row is loaded when it enters a window and when it leaves it, and 2 r rows more where a walk begins. What
    is on its way waits in registers, of which the sums need so many that few warps are on a multiprocessor.
    """
    (h, w), aligned = p.x.shape, device.address(p.x) % 16 == 0 and device.address(p.result) % 16 == 0
    if p.radius > MOST_FUSED or w % EACH or not aligned:
        running.launch(p)
        return
    across = blocks(w // EACH, WARPS * useful_lanes(p.radius))
    # With long walks, rows that leave windows are no longer in the L2 cache: others have walked far in between.
    deep = min(max(h * across // (4 * device.limits()["multiprocessors"]), DEEP[0]), DEEP[1])
    x, out, grid = p.x.view(np.uint32), p.result.view(np.uint32), (across, blocks(h, deep))
    fused_for(p.radius)[grid, (32, WARPS), p.stream](x, out, np.int32(h), np.int64(w // 4), np.int32(deep))


# ------------------------------------------------------------------ rows that wait until they leave the window

SIDE = 2  # lanes at either end of a warp that are there for the others: their columns are a sector of memory
ROW = 128  # words of a warp's row
AHEAD = 4  # rows that are under way while a warp adds up another one
PAIRS = 2  # pairs of warps of a block, at most
WALK = (2, 16)  # rows that a warp walks: at least, and at most beside 2 r more
MOST_SHARED = 48 * 1024  # bytes of a block's shared memory
MOST_KEPT = 16  # the largest radius with which this is faster than `fused`

#: Of a kernel's maker, the oldest GPU that can run it: it has asynchronous copies.
CAPABILITY_OF = {"circular_buffer_for": (8, 0)}


def coarse_share(count: int) -> tuple[np.float32, np.float32] | None:
    """A pixel's share in a mean as a multiple of 2^-24, and what a multiply-add has to add with it; or None.

    `rounded` subtracts 2^23 from a sum first. It need not with such a share: 2^23 * share is a multiple of a half, so
    that 2^23 - 2^23 * share is a float32. Then (2^23 + sum) * share plus this is 2^23 + the mean, rounded once. The
    share is at least 1/c. It must be so near to it that 255 becomes too large by less than 1/(2 c), as in `rounded`. So
    it is for windows with (2 r + 1)^2 pixels up to a radius of 8, and for few beyond.

    >>> [float(number) for number in coarse_share(15**2)], coarse_share(19**2)
    ([0.004444479942321777, 8351325.0], None)
    """
    share = -(-(2**24) // count)
    if 2 * count * 255 * (share * count - 2**24) >= 2**24:
        return None
    return np.float32(share / 2**24), np.float32(2**23 - share / 2)


def rows_held(radius: int) -> int:
    """Rows of a warp's buffer: those of a window, the one that leaves it, and those that are under way."""
    return 2 * radius + 2 + AHEAD


def pairs_of(radius: int) -> int:
    """Pairs of warps of a block, as many as there is shared memory for.

    >>> pairs_of(8), pairs_of(12)
    (2, 1)
    """
    return min(PAIRS, MOST_SHARED // (8 * (ROW * rows_held(radius) + 2 * radius + 2)))


def rows_of_walk(h: int, across: int, radius: int) -> int:
    """How many rows a warp walks: fewer in a low image, where there would be few warps for each multiprocessor."""
    enough = h * across // (40 * device.limits()["multiprocessors"])
    return min(max(enough, WALK[0]), WALK[1] + 2 * radius)


@cuda.jit(device=True)
def lower_without_lift(word, byte):
    """The lower half of a word, less `LIFT`: a multiplication shifts it up. ``byte`` is 256: see `circular_buffer`."""
    return np.int32(np.int32(word) * np.int32(byte * byte) + np.int32(byte << 23)) >> 16


@cuda.jit(device=True)
def packed(a, b, c, d, byte):
    """The lowest bytes of four words as one word, by multiplications: the other bytes of a are those of 2^23."""
    return np.int32(np.int32(np.int32(np.int32(d * byte) + c) * byte + b) * byte + np.int32(a - LARGE_BITS))


@functools.lru_cache(maxsize=16)
def circular_buffer_for(radius: int) -> typing.Any:
    """The kernel for a radius: a constant, as of `fused_for`, where the numbers of sums are explained."""
    before, width, useful = 2 * radius, 2 * radius + 1, 32 - 2 * SIDE
    pairs, counts, held = pairs_of(radius), width + 1, ROW * rows_held(radius)  # words of a warp
    warps, ring_words, all_ahead = 2 * pairs, 2 * pairs * held, AHEAD + 1
    enter, leave = (radius + 1) // HALF, -radius // HALF
    entering, leaving = (radius + EACH - 1) // HALF + 1 - enter, (EACH - 2 - radius) // HALF + 1 - leave
    whole, whole_end, left, right = -(radius // HALF), (radius + 1) // HALF, radius % HALF, (radius + 1) % HALF
    enter_words, leave_words, first_left = 4 * entering, 4 * leaving, -radius % HALF
    whole_share = np.nextafter(np.float32(1) / np.float32(width**2), np.float32(1))
    coarse, addend = coarse_share(width**2) or (whole_share, LARGE)
    at_once = coarse_share(width**2) is not None

    @cuda.jit(device=True)
    def add_row(sums, words):
        for k in range(4):
            sums[2 * k] += two_bytes(words[k], EVEN)
            sums[2 * k + 1] += two_bytes(words[k], ODD)

    @cuda.jit(device=True)
    def replace_row(sums, new, old):
        for k in range(4):
            sums[2 * k] = np.uint32(sums[2 * k] + two_bytes(new[k], EVEN) - two_bytes(old[k], EVEN))
            sums[2 * k + 1] = np.uint32(sums[2 * k + 1] + two_bytes(new[k], ODD) - two_bytes(old[k], ODD))

    @cuda.jit(device=True)
    def walk_along(sums, totals, enters, leaves, window, byte):
        """The sums of the lane's windows, from those of its columns and of its neighbours' columns."""
        for k in range(2):
            both = np.uint32(sums[4 * k] + sums[4 * k + 1] + sums[4 * k + 2] + sums[4 * k + 3])
            totals[k] = lower(both) + upper(both)
        for i in range(enter_words):
            half = enter + i // 4
            enters[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
        for i in range(leave_words):
            half = leave + i // 4
            leaves[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
        total = np.int32(LARGE_BITS)
        for half in range(whole, whole_end):
            total = np.int32(total + from_lane(totals[half % 2], half))
        for k in range(left):
            total = np.int32(total + sum_at(leaves, first_left + k))
        for k in range(right):
            total = np.int32(total + sum_at(enters, k))
        window[0] = total
        for j in range(0, EACH, 4):
            enter_one, leave_one = right + j, first_left + j
            one = two_sums_at(enters, enter_words, enter_one) - two_sums_at(leaves, leave_words, leave_one) + LIFT
            other = two_sums_at(enters, enter_words, enter_one + 1)
            other = other - two_sums_at(leaves, leave_words, leave_one + 1) + LIFT
            window[j + 1] = np.int32(window[j] + lower_without_lift(one, byte))
            window[j + 2] = np.int32(window[j + 1] + lower_without_lift(other, byte))
            window[j + 3] = np.int32(window[j + 2] + (np.int32(one) >> 16))
            window[j + 4] = np.int32(window[j + 3] + (np.int32(other) >> 16))

    @cuda.jit(device=True)
    def mean_of(total):
        if at_once:
            number = cuda.libdevice.int_as_float(total)
            return cuda.libdevice.float_as_int(cuda.libdevice.fmaf_rn(number, coarse, addend))
        return rounded(total, whole_share)

    @cuda.jit
    def circular_buffer_kernel(x, out, h, words, across, tall, byte):
        ring = cuda.shared.array(ring_words, np.uint32)
        shares = cuda.shared.array((warps, counts), np.float32)  # of a pixel, by the columns of its window
        sums = cuda.local.array(8, np.uint32)  # in registers, down the lane's 16 columns: two in a word
        totals = cuda.local.array(2, np.int32)  # of either half of them
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, own = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y)
        pair, w = np.int32(cuda.blockIdx.x * pairs + own // 2), np.int32(4 * words)
        tile, up = np.int32(pair // across), own % 2 == 1
        column = np.int32(EACH * ((pair - tile * across) * useful + lane - SIDE))
        inside = column >= 0 and column < w
        # Of the warp, so that all its lanes go the same way.
        at_side = np.int32(column - EACH * lane) < radius or np.int32(column + EACH * (32 - lane) + radius) > w
        writes = inside and lane >= SIDE and lane < 32 - SIDE
        # The first warp of a pair walks down from the middle of its tile, and the second one walks up.
        middle = np.int32((2 * tile + 1) * tall)
        row, step, stride = (np.int32(middle - 1), np.int32(-1), -words) if up else (middle, np.int32(1), words)
        count = tall if up else min(tall, np.int32(h - middle))
        here = np.int64(row) * words + column // 4
        # The rows that it needs, if they are in the image. Others are copied as zeros, as is what lies beside it.
        needed = max(np.int32(middle - radius - (tall if up else np.int32(0))), np.int32(0))
        end = min(np.int32(middle + radius + (np.int32(0) if up else tall)), h)
        there = np.uint32(max(np.int32(end - needed), np.int32(0)) if inside else np.int32(0))
        coming, coming_at = np.int32(row - step * radius - needed), here - stride * radius
        # The first windows of both have 2 r rows in common. Either warp fetches half of these, for both.
        mine, others = np.int32(own * held + 4 * lane), np.int32((own ^ 1) * held + 4 * lane)
        for k in range(radius):
            copy_async(ring, np.int32(mine + ROW * k), x, coming_at, 4 if np.uint32(coming) < there else 0)
            coming, coming_at = np.int32(coming + step), coming_at + stride
        commit_copies()
        coming, coming_at = np.int32(coming + radius * step), coming_at + radius * stride
        for k in range(all_ahead):
            copy_async(ring, np.int32(mine + ROW * (before + k)), x, coming_at, 4 if np.uint32(coming) < there else 0)
            commit_copies()
            coming, coming_at = np.int32(coming + step), coming_at + stride
        ring_end = np.int32(mine + held)
        new, old = np.int32(mine + ROW * before), np.int32(ring_end - ROW)
        store128(ring, old, (0, 0, 0, 0))  # nothing leaves the first window
        for k in range(8):
            sums[k] = 0
        wait_copies(all_ahead)
        cuda.syncthreads()
        for k in range(radius):
            words_of_other = load128(ring, np.int32(others + ROW * k))
            store128(ring, np.int32(mine + ROW * (before - 1 - k)), words_of_other)
            add_row(sums, words_of_other)
            add_row(sums, load128(ring, np.int32(mine + ROW * k)))
        cuda.syncthreads()
        shares_of = np.int32(counts)  # more rows than there can be: none are there yet
        while count > 0:
            wait_copies(AHEAD)
            replace_row(sums, load128(ring, new), load128(ring, old))
            # The row that has left makes room for the one that comes next.
            copy_async(ring, old, x, coming_at, 4 if np.uint32(coming) < there else 0)
            commit_copies()
            coming, coming_at = np.int32(coming + step), coming_at + stride
            new, old = np.int32(new + ROW), np.int32(old + ROW)
            new, old = mine if new == ring_end else new, mine if old == ring_end else old
            walk_along(sums, totals, enters, leaves, window, byte)
            for j in range(EACH):
                means[j] = mean_of(window[j])
            if at_side or row < radius or np.int32(row + radius) >= h:
                # Here windows have fewer pixels. The shares are those for one number of rows, which seldom changes.
                rows = np.int32(covered(row, radius, h))
                if rows != shares_of:
                    cuda.syncwarp()
                    k = lane
                    while k < counts:
                        shares[own, k] = share_of(np.int32(max(rows, np.int32(1)) * max(k, np.int32(1))))
                        k = np.int32(k + 32)
                    cuda.syncwarp()
                shares_of = rows
                edge = np.int32(column + min(row, np.int32(0)))  # `column`: see `fused_for`
                for j in range(EACH):
                    stop = min(np.int32(edge + j + radius + 1), w)
                    columns = np.int32(stop - max(np.int32(edge + j - radius), np.int32(0)))
                    means[j] = rounded(window[j], shares[own, max(columns, np.int32(0))])
            for k in range(4):
                means[k] = packed(means[4 * k], means[4 * k + 1], means[4 * k + 2], means[4 * k + 3], byte)
            if writes and row < h:
                store128(out, here, (means[0], means[1], means[2], means[3]))
            row, here = np.int32(row + step), here + stride
            count = np.int32(count - 1)

    return circular_buffer_kernel


@rung(circular_buffer_for, fused_for, running_down_kernel, running_along_kernel)
def circular_buffer(p):
    """Asynchronous copies bring each row once into shared memory, where it waits until it leaves the window.

    A warp has a *circular buffer*: the row that leaves makes room for one that is to come. Rows that are on their way
    need no registers. Rows that two walks need are loaded by both, and so a pair of warps begins in the middle of its
    tile. One walks down, the other one up, and each fetches half of the rows around the middle for both. The outermost
    rows are in two tiles, whose warps come to them at about the same time: one finds them in the L2 cache.

    Memory goes to and from that cache by sectors of 32 bytes. A warp's outer lanes, which are there for the others
    only, have the columns of whole sectors. The sums are those of `fused`. One unit of a GPU makes the additions, the
    shifts and `byte_perm`, and another one has multiplications alone: some shifts are multiplications by 256 here, a
    number that the compiler does not know, or it would make them shifts again.

    Longer walks load fewer rows twice. But they are fewer, and the last of them leave most multiprocessors idle.

    A radius above 16 is left to `fused`. So is an image whose rows do not begin at multiples of 16 bytes, and any
    image on a GPU before compute capability 8.0, which has no asynchronous copies.

    The memory is busy for most of the time now, and still fewer instructions would make it faster: while a warp adds
    up, few others are there to wait for the memory, since each needs room for its rows in shared memory.

    Source: PMPP 4e section 12.6 has a circular buffer; CUDA C++ programming guide, "Asynchronous data copies".
    """
    (h, w), aligned = p.x.shape, device.address(p.x) % 16 == 0 and device.address(p.result) % 16 == 0
    can_copy = device.limits()["compute_capability"] >= CAPABILITY_OF["circular_buffer_for"]
    if p.radius > MOST_KEPT or w % EACH or not (aligned and can_copy):
        fused.launch(p)
        return
    pairs, across = pairs_of(p.radius), blocks(w // EACH, 32 - 2 * SIDE)
    tall, x, out = rows_of_walk(h, across, p.radius), p.x.view(np.uint32), p.result.view(np.uint32)
    grid, block = blocks(across * blocks(h, 2 * tall), pairs), (32, 2 * pairs)
    sizes = np.int32(h), np.int64(w // 4), np.int32(across), np.int32(tall)
    circular_buffer_for(p.radius)[grid, block, p.stream](x, out, *sizes, np.int32(256))


LADDER = (direct, separable, running, fused, circular_buffer)
