"""Answers to the exercises of chapter 77: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.quantisation.exercises import GROUP
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
QUANTISE, WARPS, TWO = "quantisation/quantise", "quantisation/warps", "quantisation/two_of_four"
CONVOLUTION = "quantisation/convolution"
FULL = 0xFFFFFFFF
f0, f1, half = np.float32(0), np.float32(1), np.float32(0.5)


# -- quantise


def quantise_with(name, rounding="even", low=-128, high=127, own=True, guarded=True, one=f1):
    """A thread for each element, with one of its parts exchanged."""

    @cuda.jit
    def quantise(x, scales, out):
        i = cuda.grid(1)
        if i < x.size or not guarded:
            row, column = i // x.shape[1], i % x.shape[1]
            steps = one * (x[row, column] / scales[row if own else 0])
            if rounding == "zero":
                q = cuda.libdevice.float2int_rz(np.float32(steps))
            elif rounding == "up":
                q = cuda.libdevice.float2int_rd(np.float32(steps + half))
            elif rounding == "away":
                q = cuda.libdevice.float2int_rz(np.float32(steps + cuda.libdevice.copysignf(half, np.float32(steps))))
            else:
                q = cuda.libdevice.float2int_rn(np.float32(steps))
            out[row, column] = min(max(q, low), high)

    quantise.py_func.__name__ = name
    return quantise


wrong(QUANTISE, "cut off")(quantise_with("quantised_towards_zero", "zero"))
wrong(QUANTISE, "half up")(quantise_with("quantised_up", "up"))
wrong(QUANTISE, "half away")(quantise_with("quantised_away", "away"))
wrong(QUANTISE, "wraps around")(quantise_with("quantised_and_wrapped", low=-1000, high=1000))
wrong(QUANTISE, "from -127")(quantise_with("quantised_from_minus_127", low=-127))
wrong(QUANTISE, "one scale")(quantise_with("quantised_by_the_first_scale", own=False))
wrong(QUANTISE, "missing guard")(quantise_with("quantised_without_guard", guarded=False))
wrong(QUANTISE, "accidental float64")(quantise_with("quantised_in_float64", one=1.0))


@wrong(QUANTISE, "times the reciprocal", "with x of 3 x 50 and scales in tenths.*divide")
@cuda.jit
def quantised_by_the_reciprocal(x, scales, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = i // x.shape[1], i % x.shape[1]
        q = cuda.libdevice.float2int_rn(x[row, column] * (f1 / scales[row]))
        out[row, column] = min(max(q, -128), 127)


@right(QUANTISE)
@cuda.jit
def quantised_before_rounding(x, scales, out):
    """Cuts off the float: the limits are whole numbers, so the order does not matter."""
    i = cuda.grid(1)
    if i < out.size:
        row = i // out.shape[1]
        column = i - row * out.shape[1]
        steps = min(max(x[row, column] / scales[row], np.float32(-128)), np.float32(127))
        out[row, column] = np.int8(cuda.libdevice.rintf(np.float32(steps)))


@right(QUANTISE)
@cuda.jit
def quantised_in_strides(x, scales, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        row, column = divmod(i, x.shape[1])
        q = cuda.libdevice.float2int_rn(cuda.libdevice.fdiv_rn(x[row, column], scales[row]))
        if q > 127:
            q = np.int32(127)
        if q < -128:
            q = np.int32(-128)
        out[row, column] = q


# -- warps


def warps_with(
    name,
    upper_first=False,
    less=8,
    signed=False,
    own_scale=True,
    scaled=True,
    guarded=True,
    together=True,
    start=f0,
    every_lane=False,
):
    """A warp for each row, with one of its parts exchanged."""

    @cuda.jit
    def warps(x, w, scales, out):
        row, lane, total = cuda.grid(1) // 32, cuda.laneid, start
        if row < out.size or not guarded:
            for b in range(lane, w.shape[1], 32):
                byte = np.int32(w[row, b])
                low, high = byte & 15, byte >> 4
                if upper_first:
                    low, high = high, low
                if signed:
                    low, high = low - 16 if low > 7 else low, high - 16 if high > 7 else high
                pair = np.float32(low - less) * x[2 * b] + np.float32(high - less) * x[2 * b + 1]
                total += pair * scales[row, 2 * b // GROUP if own_scale else 0] if scaled else pair
        if together:
            for distance in (1, 2, 4, 8, 16):
                total += cuda.shfl_xor_sync(FULL, total, distance)
        if (row < out.size or not guarded) and (lane == 0 or every_lane):
            out[row] = total

    warps.py_func.__name__ = name
    return warps


right(WARPS)(warps_with("warps_by_neighbours_first"))
wrong(WARPS, "upper half first")(warps_with("warps_from_the_upper_half", upper_first=True))
wrong(WARPS, "not lowered")(warps_with("warps_of_raised_weights", less=0))
wrong(WARPS, "two's complement")(warps_with("warps_of_signed_halves", less=0, signed=True))
wrong(WARPS, "first scale")(warps_with("warps_with_a_scale_a_row", own_scale=False))
wrong(WARPS, "no scale")(warps_with("warps_without_scales", scaled=False))
wrong(WARPS, "missing guard")(warps_with("warps_without_guard", guarded=False))
wrong(WARPS, "wrong result")(warps_with("warps_of_one_lane", together=False))
wrong(WARPS, "accidental float64")(warps_with("warps_from_a_float64", start=0.0))
wrong(WARPS, "repeated work")(warps_with("warps_that_all_store", every_lane=True))


@right(WARPS)
@cuda.jit
def warps_of_weights(x, w, scales, out):
    """A lane takes every 32nd weight: two lanes read a byte."""
    row, lane, total = cuda.grid(1) // 32, cuda.threadIdx.x % 32, f0
    if row < out.shape[0]:
        k = lane
        while k < x.size:
            half_byte = (np.int32(w[row, k // 2]) >> 4 * (k % 2)) & 15
            total += np.float32(half_byte - 8) * scales[row, k // GROUP] * x[k]
            k += 32
    distance = 16
    while distance:
        total += cuda.shfl_down_sync(FULL, total, distance)
        distance //= 2
    if lane == 0 and row < out.shape[0]:
        out[row] = total


@wrong(WARPS, "uncoalesced")
@cuda.jit
def warps_in_pieces(x, w, scales, out):
    """A lane takes neighbouring bytes, so the lanes read far apart."""
    row, lane, total = cuda.grid(1) // 32, cuda.laneid, f0
    if row < out.size:
        length = (w.shape[1] + 31) // 32
        for b in range(lane * length, min((lane + 1) * length, w.shape[1])):
            byte = np.int32(w[row, b])
            pair = np.float32((byte & 15) - 8) * x[2 * b] + np.float32((byte >> 4) - 8) * x[2 * b + 1]
            total += scales[row, 2 * b // GROUP] * pair
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


# -- convolution


def convolution_with(
    name, border=True, rounding="nearest", limited=True, own=True, turned=False, guarded=True, one=f1, narrow=False
):
    """A thread for each output, with one of its parts exchanged."""

    @cuda.jit
    def convolution(x, w, factors, zero, out):
        i = cuda.grid(1)
        if i < out.size or not guarded:
            k, place = i % out.shape[3], i // out.shape[3]
            q, p, n = place % out.shape[2], place // out.shape[2] % out.shape[1], place // (out.shape[1] * out.shape[2])
            total = np.int32(0)
            for r in range(3):
                for s in range(3):
                    row, column = p + r - 1, q + s - 1
                    inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                    for c in range(x.shape[3]):
                        weight = np.int32(w[k, 2 - r, 2 - s, c] if turned else w[k, r, s, c])
                        if inside:
                            total = np.int32(total + np.int32(x[n, row, column, c]) * weight)
                        elif border:
                            total = np.int32(total + zero * weight)
                        if narrow:
                            total = np.int32(np.int16(total))
            steps = one * (np.float32(total) * factors[k if own else 0])
            if rounding == "zero":
                whole = cuda.libdevice.float2int_rz(np.float32(steps))
            else:
                whole = cuda.libdevice.float2int_rn(np.float32(steps))
            out[n, p, q, k] = min(max(whole, -128), 127) if limited else whole

    convolution.py_func.__name__ = name
    return convolution


right(CONVOLUTION)(convolution_with("convolution_by_cases"))
wrong(CONVOLUTION, "zeros around")(convolution_with("convolution_without_border", border=False))
wrong(CONVOLUTION, "cut off")(convolution_with("convolution_towards_zero", rounding="zero"))
wrong(CONVOLUTION, "wraps around")(convolution_with("convolution_that_wraps", limited=False))
wrong(CONVOLUTION, "one factor")(convolution_with("convolution_by_the_first_factor", own=False))
wrong(CONVOLUTION, "turned filters")(convolution_with("convolution_turned", turned=True))
wrong(CONVOLUTION, "index out of bounds")(convolution_with("convolution_without_guard", guarded=False))
wrong(CONVOLUTION, "accidental float64")(convolution_with("convolution_in_float64", one=1.0))
wrong(CONVOLUTION, "wrong result")(convolution_with("convolution_in_int16", narrow=True))


@wrong(CONVOLUTION, "wrong result")
@cuda.jit
def convolution_that_requantises_each_product(x, w, factors, zero, out):
    i = cuda.grid(1)
    if i < out.size:
        k, place = i % out.shape[3], i // out.shape[3]
        q, p, n = place % out.shape[2], place // out.shape[2] % out.shape[1], place // (out.shape[1] * out.shape[2])
        total = f0
        for r in range(3):
            for s in range(3):
                row, column = p + r - 1, q + s - 1
                inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                for c in range(x.shape[3]):
                    value = np.float32(x[n, row, column, c] if inside else zero)
                    total += value * np.float32(w[k, r, s, c]) * factors[k]
        out[n, p, q, k] = min(max(cuda.libdevice.float2int_rn(total), -128), 127)


@wrong(CONVOLUTION, "negative index")
@cuda.jit
def convolution_anywhere(x, w, factors, zero, out):
    """Reads x where no pixel is."""
    i = cuda.grid(1)
    if i < out.size:
        k, place = i % out.shape[3], i // out.shape[3]
        q, p, n = place % out.shape[2], place // out.shape[2] % out.shape[1], place // (out.shape[1] * out.shape[2])
        total = np.int32(0)
        for r in range(3):
            for s in range(3):
                for c in range(x.shape[3]):
                    number = np.int32(x[n, p + r - 1, q + s - 1, c])
                    total = np.int32(total + number * np.int32(w[k, r, s, c]))
        out[n, p, q, k] = min(max(cuda.libdevice.float2int_rn(np.float32(total) * factors[k]), -128), 127)


@right(CONVOLUTION)
@cuda.jit
def convolution_in_strides(x, w, factors, zero, out):
    """Takes the zero point off the numbers of x, and adds its share, which is the same for all places."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        place, k = divmod(i, out.shape[3])
        row, q = divmod(place, out.shape[2])
        n, p = divmod(row, out.shape[1])
        total = np.int32(0)
        for c in range(x.shape[3]):
            for r in range(3):
                for s in range(3):
                    total = np.int32(total + zero * np.int32(w[k, r, s, c]))
                    if 0 < p + r <= x.shape[1] and 0 < q + s <= x.shape[2]:
                        more = np.int32(np.int32(x[n, p + r - 1, q + s - 1, c]) - zero)
                        total = np.int32(total + more * np.int32(w[k, r, s, c]))
        whole = cuda.libdevice.float2int_rn(np.float32(total) * factors[k])
        out[n, p, q, k] = np.int8(max(min(whole, np.int32(127)), np.int32(-128)))


# -- two of four


def two_with(name, size=True, largest=True, first=True, guarded=True, keep=2, zero=f0, written=True):
    """A thread for each four, with one of its parts exchanged."""

    @cuda.jit
    def two(w, out):
        at = 4 * cuda.grid(1)
        if at < w.size or not guarded:
            for i in range(4):
                own, before = w[at + i], 0
                for j in range(4):
                    other = w[at + j]
                    a, b = (abs(other), abs(own)) if size else (other, own)
                    if not largest:
                        a, b = -a, -b
                    if a > b or (a == b and (j < i if first else j > i)):
                        before += 1
                if before < keep:
                    out[at + i] = own
                elif written:
                    out[at + i] = zero

    two.py_func.__name__ = name
    return two


right(TWO)(two_with("two_by_counting"))
wrong(TWO, "sign counts")(two_with("two_with_sign", size=False))
wrong(TWO, "smallest kept")(two_with("two_smallest", largest=False))
wrong(TWO, "last of equal ones")(two_with("two_of_the_last", first=False))
wrong(TWO, "missing guard")(two_with("two_without_guard", guarded=False))
wrong(TWO, "wrong result")(two_with("three_of_four", keep=3))
wrong(TWO, "output not written")(two_with("two_and_nothing_else", written=False))


@wrong(TWO, "all that tie")
@cuda.jit
def two_by_a_threshold(w, out):
    at = 4 * cuda.grid(1)
    if at < w.size:
        first, second = np.float32(-1), np.float32(-1)
        for i in range(4):
            size = abs(w[at + i])
            if size > first:
                first, second = size, first
            elif size > second:
                second = size
        for i in range(4):
            out[at + i] = w[at + i] if abs(w[at + i]) >= second else f0


@wrong(TWO, "one of two")
@cuda.jit
def two_pairs(w, out):
    at = 4 * cuda.grid(1)
    if at < w.size:
        for i in range(at, at + 4, 2):
            left = abs(w[i]) >= abs(w[i + 1])
            out[i] = w[i] if left else f0
            out[i + 1] = f0 if left else w[i + 1]


@right(TWO)
@cuda.jit
def two_by_turns(w, out):
    """Finds the largest, then the largest of the others."""
    at = 4 * cuda.grid(1)
    if at >= w.size:
        return
    first = 0
    for i in range(1, 4):
        if abs(w[at + i]) > abs(w[at + first]):
            first = i
    second = -1
    for i in range(4):
        if i != first and (second < 0 or abs(w[at + i]) > abs(w[at + second])):
            second = i
    for i in range(4):
        out[at + i] = w[at + i] if i in (first, second) else f0
