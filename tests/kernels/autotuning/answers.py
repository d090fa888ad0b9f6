"""Answers to the exercises of chapter 37: wrong ones, and right ones that are written differently."""

import functools
import itertools
import math

import numpy as np

from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
REFUSED, PREDICTED, CLASS = "autotuning/refused_by", "autotuning/predicted", "autotuning/shape_class"


def each(one):
    """Of an answer for one configuration or matrix an answer for arrays of them."""

    @functools.wraps(one)
    def answer(*arrays):
        return np.array([one(*map(int, row)) for row in zip(*arrays, strict=True)], np.int64)

    return answer


def each_shape(one):
    """The same, with three numbers for each."""

    @functools.wraps(one)
    def answer(m, n):
        return np.array([one(int(rows), int(columns)) for rows, columns in zip(m, n, strict=True)]).reshape(-1, 3)

    return answer


# ------------------------------------------------------------------------------------------------------- refused_by


@wrong(REFUSED, "pad forgotten", "a column beyond")
@each
def a_square_of_shared_memory(side, rows, pad, registers):
    refusals = side % rows, side * rows > 1024, 4 * side**2 > 49152, side * rows * registers > 65536
    return next((code for code, refused in enumerate(refusals, start=1) if refused), 0)


@wrong(REFUSED, "registers of a thread", "register too many")
@each
def one_thread(side, rows, pad, registers):
    if side % rows:
        return 1
    if side * rows > 1024:
        return 2
    if 4 * side * (side + pad) > 49152:
        return 3
    return 4 if registers > 65536 else 0


@wrong(REFUSED, "elements for bytes")
@each
def counts_elements(side, rows, pad, registers):
    if side % rows:
        return 1
    if side * rows > 1024:
        return 2
    if side * (side + pad) > 49152:
        return 3
    return 4 if side * rows * registers > 65536 else 0


@wrong(REFUSED, "limit refused", "1,024 threads")
@each
def less_than(side, rows, pad, registers):
    if side % rows != 0:
        return 1
    if not side * rows < 1024:
        return 2
    if not 4 * side * (side + pad) < 48 * 1024:
        return 3
    return 0 if side * rows * registers < 65536 else 4


@wrong(REFUSED, "last restriction")
@each
def the_last_one(side, rows, pad, registers):
    code = 0
    if side % rows:
        code = 1
    if side * rows > 1024:
        code = 2
    if 4 * side * (side + pad) > 49152:
        code = 3
    if side * rows * registers > 65536:
        code = 4
    return code


@wrong(REFUSED, "order of 1 and 2", "with threads and rows")
@each
def threads_first(side, rows, pad, registers):
    if side * rows > 1024:
        return 2
    if side % rows:
        return 1
    if 4 * side * (side + pad) > 49152:
        return 3
    return 4 if side * rows * registers > 65536 else 0


@wrong(REFUSED, "order of 3 and 4", "with shared memory and registers")
@each
def registers_first(side, rows, pad, registers):
    if side % rows:
        return 1
    if side * rows > 1024:
        return 2
    if side * rows * registers > 65536:
        return 4
    return 3 if 4 * side * (side + pad) > 49152 else 0


@wrong(REFUSED, "wrong result", "a tile that can run")
@each
def says_true(side, rows, pad, registers):
    return side % rows == 0 and side * rows <= 1024 and 4 * side * (side + pad) <= 49152


@wrong(REFUSED, "does not run", "a tile that can run")
@each
def finds_nothing(side, rows, pad, registers):
    refusals = side % rows, side * rows > 1024, 4 * side * (side + pad) > 49152, side * rows * registers > 65536
    return 1 + [bool(one) for one in refusals].index(True)


@right(REFUSED)
@each
def by_a_list(side, rows, pad, registers):
    allowed = [side // rows * rows == side, side * rows <= 2**10, side * (side + pad) <= 12288]
    allowed.append(registers <= 2**16 // (side * rows) if rows else False)
    return 0 if all(allowed) else 1 + allowed.index(False)


@right(REFUSED)
@each
def from_the_last(side, rows, pad, registers):
    code = 4 if side * rows * registers > 65536 else 0
    code = 3 if 4 * side * (side + pad) > 49152 else code
    code = 2 if side * rows > 1024 else code
    return 1 if side % rows else code


# -------------------------------------------------------------------------------------------------------- predicted


@wrong(PREDICTED, "times added")
def one_after_the_other(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return nbytes / bandwidth + tail * (flops / peak + wavefronts / sms / clock)


@wrong(PREDICTED, "tail forgotten", "a block too many")
def without_a_tail(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    return np.maximum.reduce([nbytes / bandwidth, flops / peak, wavefronts / sms / clock])


@wrong(PREDICTED, "no tail for shared memory", "bank conflicts in a block too many")
def a_tail_for_arithmetic(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return np.maximum.reduce([nbytes / bandwidth, tail * flops / peak, wavefronts / sms / clock])


@wrong(PREDICTED, "no tail for arithmetic", "with a block too many")
def a_tail_for_wavefronts(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return np.maximum.reduce([nbytes / bandwidth, flops / peak, tail * wavefronts / sms / clock])


@wrong(PREDICTED, "tail for memory", "wait for memory")
def a_tail_for_all(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    longest = np.maximum.reduce([nbytes / bandwidth, flops / peak, wavefronts / sms / clock])
    return longest * np.ceil(blocks / sms) * sms / blocks


@wrong(PREDICTED, "one multiprocessor")
def all_wavefronts_in_one(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return np.maximum.reduce([nbytes / bandwidth, tail * flops / peak, tail * wavefronts / clock])


@wrong(PREDICTED, "wrong result", "a block too many")
def whole_waves_only(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.maximum(blocks // sms, 1) * sms / blocks
    return np.maximum.reduce([nbytes / bandwidth, tail * flops / peak, tail * wavefronts / sms / clock])


@wrong(PREDICTED, "wrong result", "memory as the bound")
def the_shortest(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    tail = np.ceil(blocks / sms) * sms / blocks
    return np.minimum.reduce([nbytes / bandwidth, tail * flops / peak, tail * wavefronts / sms / clock])


@right(PREDICTED)
def with_numpy(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    share = -(-blocks // sms) / blocks  # of the busiest multiprocessor
    inside = np.maximum(flops / (peak / sms), wavefronts / clock) * share
    return np.maximum(inside, nbytes / bandwidth)


@right(PREDICTED)
def as_a_list(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    def one(moved, work, passes, grid):
        busiest = (int(grid) + sms - 1) // sms
        return max(moved / bandwidth, max(work / peak * sms, passes / clock) * busiest / grid)

    return np.array([one(*row) for row in zip(nbytes, flops, wavefronts, blocks, strict=True)])


# ------------------------------------------------------------------------------------------------------- shape_class


@wrong(CLASS, "rounded up")
@each_shape
def next_power(m, n):
    return np.array([*(math.ceil(round(math.log(extent, 4), 9)) for extent in (m, n)), int(n % 4 == 0)])


@wrong(CLASS, "rounded down")
@each_shape
def last_power(m, n):
    return np.array([(extent.bit_length() - 1) // 2 for extent in (m, n)] + [int(n % 4 == 0)])


@wrong(CLASS, "nearest by difference", "7 x 9")
@each_shape
def nearest_on_the_line(m, n):
    powers = 4 ** np.arange(10)
    return np.array([*(int(np.argmin(abs(powers - extent))) for extent in (m, n)), int(n % 4 == 0)])


@wrong(CLASS, "exponents exchanged", "with 4 x 16")
@each_shape
def columns_first(m, n):
    return round(math.log2(n) / 2), round(math.log2(m) / 2), int(n % 4 == 0)


@wrong(CLASS, "powers for exponents", "with 4 x 16")
@each_shape
def the_powers(m, n):
    return 4 ** round(math.log(m, 4)), 4 ** round(math.log(n, 4)), int(n % 4 == 0)


@wrong(CLASS, "powers of 2")
@each_shape
def exponents_of_two(m, n):
    return round(math.log2(m)), round(math.log2(n)), int(n % 4 == 0)


@wrong(CLASS, "the other extent")
@each_shape
def columns_aligned(m, n):
    return np.array([round(math.log(m, 4)), round(math.log(n, 4)), int(m % 4 == 0)])


@wrong(CLASS, "one size")
@each_shape
def one_size(m, n):
    whole = round(math.log(m * n, 16))
    return np.array([whole, whole, int(n % 4 == 0)])


@wrong(CLASS, "wrong result", "4 x 16")
@each_shape
def never_aligned(m, n):
    return np.array([round(math.log(m, 4)), round(math.log(n, 4)), int(n % 4)])


@right(CLASS)
@each_shape
def by_the_ratio(m, n):
    def exponent(extent):
        return min(range(12), key=lambda power: max(4**power / extent, extent / 4**power))

    return exponent(m), exponent(n), int(n % 4 == 0)


@right(CLASS)
@each_shape
def by_counting(m, n):
    def exponent(extent):
        return next(power for power in itertools.count() if extent <= 2 * 4**power)

    return np.array([exponent(m), exponent(n), 1 if n & 3 == 0 else 0])


@right(CLASS)
def at_once(m, n):
    exponents = np.rint(np.log2([m, n]) / 2).astype(int)
    return np.column_stack([*exponents, n % 4 == 0])
