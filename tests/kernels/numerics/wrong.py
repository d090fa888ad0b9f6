"""Wrong versions of `numerics` that people write, each with the reason for which the tests reject it.

``CLAIMS`` says as which rung's equal each is offered: its result is held to that rung's bound.
"""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.numerics.ladder import BINS, DIGITS, LOWEST, ZERO, collect, two_sum, warp_join
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64  # threads, in one block: two warps
CLAIMS = {}


def summer(claims, *, scratch=np.float32):
    """A kernel of ``(x, totals, rests)`` as a function of x: a pair a thread, and the host adds them up exactly."""

    def decorate(kernel):
        def total(x, grid=None):
            x = device.to_device(x) if isinstance(x, np.ndarray) else x
            totals, rests = (device.to_device(np.zeros(BLOCK, scratch)) for _ in range(2))
            kernel[1, BLOCK](x, totals, rests)
            with np.errstate(all="ignore"):
                pair = np.float64([totals.copy_to_host(), rests.copy_to_host()])
                result = pair.sum() if np.isfinite(pair.sum()) else pair[0].sum()
                return device.to_device(np.full(1, result, np.float32))

        total.__name__ = kernel.py_func.__name__
        CLAIMS[total.__name__] = claims
        return total

    return decorate


@summer("compensated")
@cuda.jit
def right(x, totals, rests):
    total, rest = ZERO, ZERO
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        total, lost = two_sum(total, x[i])
        rest += lost
    totals[cuda.threadIdx.x], rests[cuda.threadIdx.x] = total, rest


@summer("compensated")
@cuda.jit
def short_sum_whatever_is_larger(x, totals, rests):
    """Three operations give the error if the first number is the larger one; here it need not be (Dekker 1971)."""
    total, rest = ZERO, ZERO
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        value = x[i]
        after = total + value
        rest += value - (after - total)
        total = after
    totals[cuda.threadIdx.x], rests[cuda.threadIdx.x] = total, rest


@summer("compensated")
@cuda.jit
def the_rest_has_the_wrong_sign(x, totals, rests):
    total, rest = ZERO, ZERO
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        total, lost = two_sum(total, x[i])
        rest -= lost
    totals[cuda.threadIdx.x], rests[cuda.threadIdx.x] = total, rest


@summer("compensated")
@cuda.jit
def the_rest_of_lane_0_alone(x, totals, rests):
    thread, total, rest = cuda.threadIdx.x, ZERO, ZERO
    for i in range(thread, x.size, BLOCK):
        total, lost = two_sum(total, x[i])
        rest += lost
    total, _ = warp_join(total, rest)  # and what was lost there, and in other lanes, is not kept
    if cuda.laneid == 0:
        totals[thread], rests[thread] = total, rest


@summer("compensated")
@cuda.jit
def the_rest_as_algebra_has_it(x, totals, rests):
    """What a compiler makes of it that may treat floats as real numbers: (a + b) - a is b, and nothing is lost."""
    total, rest = ZERO, ZERO
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        value = x[i]
        rest += (value - value) + (total - total)
        total += value
    totals[cuda.threadIdx.x], rests[cuda.threadIdx.x] = total, rest


@summer("wider", scratch=np.float64)
@cuda.jit
def wider_too_late(x, totals, rests):
    total = ZERO
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        total += x[i]
    totals[cuda.threadIdx.x] = np.float64(total)


@summer("one_after_another")
@cuda.jit
def from_a_literal(x, totals, rests):
    total = 0.0
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        total += x[i]
    totals[cuda.threadIdx.x] = total


@summer("one_after_another")
@cuda.jit
def of_whole_vectors(x, totals, rests):
    total = ZERO
    for i in range(cuda.threadIdx.x, x.size // 4 * 4, BLOCK):
        total += x[i]
    totals[cuda.threadIdx.x] = total


def binned(rounded=True):
    """A kernel of ``(x, digits, special)`` as a function of x; the host makes a float32 of the digits."""

    def decorate(kernel):
        def total(x, grid=None):
            x = device.to_device(x) if isinstance(x, np.ndarray) else x
            digits, special = device.to_device(np.zeros(DIGITS, np.int64)), device.to_device(np.zeros(1, np.float32))
            kernel[1, BLOCK](x, digits, special)
            odd = special.copy_to_host()
            return odd if odd != 0 else as_float32(digits.copy_to_host(), rounded)

        total.__name__ = kernel.py_func.__name__
        CLAIMS[total.__name__] = "exact"
        return total

    return decorate


def as_float32(digits, rounded):
    whole = sum(int(digit) << (16 * k) for k, digit in enumerate(digits))
    shift = max(0, abs(whole).bit_length() - 24)
    kept, left = divmod(abs(whole), 2**shift)
    kept += rounded and (2 * left > 2**shift or (2 * left == 2**shift and kept % 2 == 1))
    with np.errstate(over="ignore"):
        return np.full(1, np.float64(math.copysign(math.ldexp(int(kept), shift + LOWEST), whole))).astype(np.float32)


@cuda.jit(device=True)
def publish(bins, digits, special, odd):
    cuda.syncthreads()
    if special != ZERO:
        cuda.atomic.add(odd, 0, special)
    if cuda.threadIdx.x < BINS:
        total = np.int64(0)
        for other in range(BLOCK):
            total += np.int64(bins[cuda.threadIdx.x, other])
        digits[cuda.threadIdx.x] = total


@binned()
@cuda.jit
def right_bins(x, digits, odd):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for k in range(BINS):
        bins[k, thread] = 0
    for i in range(thread, x.size, BLOCK):
        special = collect(x[i], bins, special)
    publish(bins, digits, special, odd)


@binned(rounded=False)
@cuda.jit
def cut_off(x, digits, odd):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for k in range(BINS):
        bins[k, thread] = 0
    for i in range(thread, x.size, BLOCK):
        special = collect(x[i], bins, special)
    publish(bins, digits, special, odd)


@binned()
@cuda.jit
def bins_of_32_bits(x, digits, odd):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int32)
    for k in range(BINS):
        bins[k, thread] = 0
    for i in range(thread, x.size, BLOCK):
        special = collect(x[i], bins, special)
    publish(bins, digits, special, odd)


@binned()
@cuda.jit
def bins_that_were_not_cleared(x, digits, odd):
    special = ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for i in range(cuda.threadIdx.x, x.size, BLOCK):
        special = collect(x[i], bins, special)
    publish(bins, digits, special, odd)


@binned()
@cuda.jit
def one_column_for_all(x, digits, odd):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for k in range(BINS):
        bins[k, thread] = 0
    cuda.syncthreads()
    for i in range(thread, x.size, BLOCK):
        bits = cuda.libdevice.float_as_int(x[i])
        exponent = (bits >> 23) & 0xFF
        term = np.int64(bits & 0x7FFFFF | (0x800000 if exponent > 0 else 0)) << (max(exponent, 1) & 15)
        if exponent == 0xFF:
            special += x[i]
        else:
            bins[max(exponent, 1) >> 4, 0] += term if bits >= 0 else -term
    publish(bins, digits, special, odd)


@binned()
@cuda.jit
def every_number_has_a_hidden_bit(x, digits, odd):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for k in range(BINS):
        bins[k, thread] = 0
    for i in range(thread, x.size, BLOCK):
        bits = cuda.libdevice.float_as_int(x[i])
        exponent = (bits >> 23) & 0xFF
        term = np.int64(bits & 0x7FFFFF | 0x800000) << (exponent & 15)
        if exponent == 0xFF:
            special += x[i]
        else:
            bins[exponent >> 4, thread] += term if bits >= 0 else -term
    publish(bins, digits, special, odd)


RUNGS = (
    WrongRung(short_sum_whatever_is_larger, "wrong result"),
    WrongRung(the_rest_has_the_wrong_sign, "wrong result"),
    WrongRung(the_rest_of_lane_0_alone, "wrong result"),
    WrongRung(the_rest_as_algebra_has_it, "wrong result"),
    WrongRung(wider_too_late, "wrong result"),
    WrongRung(of_whole_vectors, "wrong result"),
    WrongRung(cut_off, "wrong result"),
    WrongRung(bins_of_32_bits, "wrong result"),
    WrongRung(every_number_has_a_hidden_bit, "wrong result"),
    WrongRung(from_a_literal, "float64"),
    WrongRung(bins_that_were_not_cleared, "uninitialised read"),
    WrongRung(one_column_for_all, "race"),
)
RIGHT = (right, right_bins)
