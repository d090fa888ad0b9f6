# seconds: 25
# gpus: 1
export TRIAL=$(mktemp -d)
cat > $TRIAL/trial.py <<'EOF_FILE'
import sys, time, os
t0 = time.time()
sys.path.insert(0, os.environ["TRIAL"])
import numpy as np
from pmpp.kernels.images import blur
from pmpp.runtime import device
from pmpp.lab.measure import timing
try: import old_blur
except Exception as error: print("no old", error); old_blur = blur
timer = timing.gpu_timer()
rng = np.random.default_rng(5)
def dev(a): return device.as_input("x", a, dtypes=("uint8",), ndim=2, stream=0)
made = {}
def sets_of(h, w):
    if (h, w) not in made:
        made.clear()
        host = np.frombuffer(rng.bytes(h * w), np.uint8).reshape(h, w)
        made[h, w] = [(dev(a), device.empty((h, w), np.uint8)) for a in (host, np.roll(host, 1, 0))]
    return made[h, w]
def one(h, w, r, fn, name, judge=True):
    try:
        sets = sets_of(h, w)
        said = ""
        if judge:
            x, out = sets[0]
            fn(x, r, out=out); got = out.copy_to_host(); blur.running(x, r, out=out)
            said = "same as running" if np.array_equal(got, out.copy_to_host()) else "WRONG"
        t = timing.measure(lambda x, out: fn(x, r, out=out), sets, timer=timer, set_bytes=2 * h * w, max_seconds=0.06, min_repeats=7)
        print(f"{name} {h} x {w} r {r}: {t.median*1e6:8.2f} us [{t.low*1e6:.1f} {t.high*1e6:.1f}] {said} at {time.time()-t0:.1f} s", flush=True)
    except Exception as error:
        print(f"{name} {h} {w} {r} {type(error).__name__}: {str(error)[:200]}", flush=True)
S = 16384
print(f"ready {time.time()-t0:.1f}", flush=True)
one(S, S, 8, blur.fused, "new")
keep = blur.rows_of_tile
for tall in (24, 40, 48):
    blur.rows_of_tile = lambda h, across, radius: tall
    one(S, S, 8, blur.fused, f"new tall {tall}", False)
blur.rows_of_tile = keep
for r in (1, 20, 44): one(S, S, r, blur.fused, "new")
one(S, S, 44, old_blur.fused, "old", False)
for tall in (96, 256):
    blur.rows_of_tile = lambda h, across, radius: tall
    one(S, S, 44, blur.fused, f"new tall {tall}", False)
blur.rows_of_tile = keep
for r in (8, 1): one(4096, 4096, r, blur.fused, "new")
one(1000, 1504, 8, blur.fused, "new")
one(1000, 1504, 8, old_blur.fused, "old", False)
one(4096, 4096, 8, old_blur.fused, "old", False)
one(S, S, 8, old_blur.fused, "old", False)
one(S, S, 20, old_blur.fused, "old", False)
one(8192, 8192, 32, blur.fused, "new")
EOF_FILE
cat > $TRIAL/prof.py <<'EOF_FILE'
EOF_FILE
cat > $TRIAL/old_blur.py <<'EOF_FILE'
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
    def two_bytes(word, which):
        return np.uint32(cuda.libdevice.byte_perm(np.int32(word), np.int32(0), which))

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

    @cuda.jit(device=True)
    def from_lane(value, half):
        """The value of the lane to which a half belongs."""
        away = half // 2
        if away > 0:
            return cuda.shfl_down_sync(FULL_WARP, value, away)
        if away < 0:
            return cuda.shfl_up_sync(FULL_WARP, value, -away)
        return value

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

    It waits for memory and for instructions in turns: either is busy for about two thirds of the time. A warp has its
    next rows on the way, but needs so many registers for the sums that few warps are on a multiprocessor.

    Source: the walks are McDonnell's; integers in parts of a word, and in the bits of a large float32: H. S. Warren,
    "Hacker's delight" (2nd edition, 2012), chapters 2 and 17.
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


LADDER = (direct, separable, running, fused)
EOF_FILE
export PYTHONPATH=$PWD
unset PMPP_BACKEND
timeout 24 python3 $TRIAL/trial.py > $OUT/table.txt 2>&1; cat $OUT/table.txt
