"""Wrong quantisation: each kernel with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.quantisation import ladder as room
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

BLOCK = 64
f1, half = np.float32(1), np.float32(0.5)


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(x, scales, zeros=None, bits=8):
        p = room.arguments(x, scales, zeros, bits)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def with_one(
    name,
    rounding="even",
    saturate=True,
    guard=True,
    own_scale=True,
    zero_too=True,
    reciprocal=False,
    one=f1,
    symmetric=False,
    zero_first=False,
):
    """A thread for each element, with one of the steps exchanged."""

    @cuda.jit
    def kernel(x, scales, zeros, out, inner, low, high):
        i = cuda.grid(1)
        if guard and i >= x.size:
            return
        channel = i // inner if own_scale else 0
        zero = room.zero_of(zeros, channel) if zero_too else np.int32(0)
        steps = one * (x[i] * (f1 / scales[channel]) if reciprocal else cuda.libdevice.fdiv_rn(x[i], scales[channel]))
        if zero_first:
            steps, zero = steps + np.float32(zero), np.int32(0)
        if rounding == "up":
            q = cuda.libdevice.float2int_rd(np.float32(steps + half))
        elif rounding == "away":
            q = cuda.libdevice.float2int_rz(np.float32(steps + cuda.libdevice.copysignf(half, np.float32(steps))))
        elif rounding == "zero":
            q = cuda.libdevice.float2int_rz(np.float32(steps))
        else:
            q = cuda.libdevice.float2int_rn(np.float32(steps))
        q = np.int32(min(max(q, np.int32(-512)), np.int32(512)) + zero)
        if saturate:
            q = min(max(q, np.int32(-high) if symmetric else low), high)
        out[i] = np.int8(q)

    return launched(name, lambda p: kernel[blocks(p.x.size, BLOCK), BLOCK](*room.given(p)))


@cuda.jit
def words_kernel(x, scales, zeros, out, words, inner, low, high, mask):
    v = cuda.grid(1)
    if v < words.size:
        channel, values = 4 * v // inner, load128(x, 4 * v)
        word = 0
        for j in range(4):
            q = room.whole(values[j], scales[channel], room.zero_of(zeros, channel), low, high)
            word |= (q & 255 if mask else q) << 8 * j
        words[v] = np.uint32(word)


def by_words(name, mask=True):
    """Four at a time: without the last few, and of any length of a channel; or with the sign of one over the next."""

    def work(p):
        x, scales, zeros, out, *rest = room.given(p)
        words = out[: out.size // 4 * 4].view(np.uint32)
        if words.size:
            words_kernel[blocks(words.size, BLOCK), BLOCK](x, scales, zeros, out, words, *rest, mask)
        if not mask and out.size % 4:
            room.thread_per_element.launch(p)

    return launched(name, work)


@cuda.jit
def word_each_kernel(x, scales, zeros, out, words, inner, low, high):
    i = cuda.grid(1)
    if i < 4 * words.size:
        channel = i // inner
        q = room.whole(x[i], scales[channel], room.zero_of(zeros, channel), low, high) & 255
        shift = 8 * (i % 4)
        words[i // 4] = np.uint32(words[i // 4] & ~(255 << shift) | q << shift)


def byte_into_a_word(p):
    """Four threads share a word: each reads it, exchanges its byte, and writes it back."""
    x, scales, zeros, out, *rest = room.given(p)
    words = out[: out.size // 4 * 4].view(np.uint32)
    room.thread_per_element.launch(p)
    if words.size:
        word_each_kernel[blocks(4 * words.size, BLOCK), BLOCK](x, scales, zeros, out, words, *rest)


RUNGS = (
    WrongRung(with_one("no_guard", guard=False), "out of bounds"),
    WrongRung(with_one("halves_up", rounding="up"), "wrong result"),
    WrongRung(with_one("halves_away_from_zero", rounding="away"), "wrong result"),
    WrongRung(with_one("cut_off", rounding="zero"), "wrong result"),
    WrongRung(with_one("wraps_around", saturate=False), "wrong result"),
    WrongRung(with_one("least_number_left_out", symmetric=True), "wrong result"),
    WrongRung(with_one("one_scale_for_all", own_scale=False), "wrong result"),
    WrongRung(with_one("zero_forgotten", zero_too=False), "wrong result"),
    WrongRung(with_one("zero_before_rounding", zero_first=True), "wrong result"),
    WrongRung(with_one("times_the_reciprocal", reciprocal=True), "wrong result"),
    WrongRung(with_one("in_float64", one=1.0), "float64"),
    WrongRung(by_words("last_few_left_out"), "wrong result"),
    WrongRung(by_words("sign_over_the_next", mask=False), "wrong result"),
    WrongRung(launched("byte_into_a_word", byte_into_a_word), "race"),
)
