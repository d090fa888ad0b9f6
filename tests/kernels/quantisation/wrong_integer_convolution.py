"""Wrong integer convolutions: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.quantisation import integer_convolution as room
from pmpp.runtime.matrix import load32, mma_s8
from tests.support.wrong import WrongRung

BLOCK = 64
i0, f1 = np.int32(0), np.float32(1)


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(x, w, factors, bias=None, stride=1, padding=0, relu=False, zero=0):
        p = room.arguments(x, w, factors, bias, stride, padding, relu, zero)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def by_thread(
    name,
    border=True,
    turned=False,
    swapped=False,
    from_the_edge=False,
    guard=True,
    checked=True,
    own_factor=True,
    one=f1,
):
    """A thread for each output, with one of the steps exchanged."""

    @cuda.jit
    def kernel(x, w, factors, bias, low, zero, stride, padding, out):
        i = cuda.grid(1)
        if guard and i >= out.size:
            return
        filters, across, down = out.shape[3], out.shape[2], out.shape[1]
        place, k = i // filters, i % filters
        n, p, q = place // (across * down), place // across % down, place % across
        total = i0
        for r in range(w.shape[1]):
            for s in range(w.shape[2]):
                row, column = p * stride[0] + r, q * stride[1] + s
                if not from_the_edge:
                    row, column = row - padding[1 if swapped else 0], column - padding[0 if swapped else 1]
                inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                for c in range(w.shape[3]):
                    number = zero if border else i0
                    if inside or not checked:
                        number = np.int32(x[n, row, column, c])
                    weight = w[k, w.shape[1] - 1 - r, w.shape[2] - 1 - s, c] if turned else w[k, r, s, c]
                    total = np.int32(total + number * np.int32(weight))
        if bias.size:
            total = np.int32(total + bias[k])
        q_ = cuda.libdevice.float2int_rn(np.float32(one * (np.float32(total) * factors[k if own_factor else 0])))
        out[n, p, q, k] = np.int8(min(max(q_, low), np.int32(127)))

    def work(p):
        pairs = (tuple(map(np.int64, pair)) for pair in (p.layer.stride, p.layer.padding))
        given = p.x, p.w, p.factors, p.bias, p.low, np.int32(p.zero), *pairs, p.result
        kernel[blocks(p.result.size, BLOCK), BLOCK](*given)

    return launched(name, work)


@cuda.jit
def anywhere_kernel(x, border, w, factors, bias, low, out, g):
    """Words of x wherever they begin, and whether or not their pixel lies in the image."""
    lane = cuda.threadIdx.x
    tiles_n = (out.shape[1] + 7) // 8
    row, column = cuda.blockIdx.x // tiles_n * 16, cuda.blockIdx.x % tiles_n * 8
    upper = room.corner_of(np.int32(min(row + lane // 4, out.shape[0] - 1)), g)
    lower = room.corner_of(np.int32(min(row + lane // 4 + 8, out.shape[0] - 1)), g)
    sums = (i0, i0, i0, i0)
    for k in range(lane % 4 * 4, w.shape[1], 32):
        near, far = room.term_of(np.int32(k), g), room.term_of(np.int32(k + 16), g)
        a = (
            load32(x, np.int64(room.found(upper, near, g)[0])),
            load32(x, np.int64(room.found(lower, near, g)[0])),
            load32(x, np.int64(room.found(upper, far, g)[0])),
            load32(x, np.int64(room.found(lower, far, g)[0])),
        )
        b = room.word(w, column + lane // 4, k, True), room.word(w, column + lane // 4, k + 16, True)
        sums = mma_s8(a, b, sums)
    room.store(out, row, column, sums, factors, bias, low)


def words_anywhere(p):
    a = p.layer
    count = a.n * a.p * a.q
    given = p.x.reshape(-1), room.border_of(p.zero), p.w.reshape(a.k, a.terms), p.factors, p.bias, p.low
    tiles = blocks(count, 16) * blocks(a.k, 8)
    anywhere_kernel[tiles, 32](*given, p.result.reshape(count, a.k), room.places_of(a, "bytes", 32))


@cuda.jit
def shared_kernel(x, w, factors, bias, low, zero, padding, out):
    parts = cuda.shared.array(2, np.int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    filters, across, down = out.shape[3], out.shape[2], out.shape[1]
    place, k = block // filters, block % filters
    n, p, q = place // (across * down), place // across % down, place % across
    total = i0
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            row, column = p + r - padding[0], q + s - padding[1]
            inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
            for c in range(thread, w.shape[3], 2):
                number = np.int32(x[n, row, column, c]) if inside else zero
                total = np.int32(total + number * np.int32(w[k, r, s, c]))
    parts[thread] = total
    if thread == 0:
        out[n, p, q, k] = np.int8(room.requantised(np.int32(parts[0] + parts[1]), k, factors, bias, low))


def no_barrier(p):
    """Two threads share the channels of a sum, and the first does not wait for the second."""
    padding = tuple(map(np.int64, p.layer.padding))
    given = p.x, p.w, p.factors, p.bias, p.low, np.int32(p.zero), padding, p.result
    shared_kernel[p.result.size, 2](*given)


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("beyond_the_image", checked=False), "out of bounds"),
    WrongRung(by_thread("zeros_around", border=False), "wrong result"),
    WrongRung(by_thread("filters_turned", turned=True), "wrong result"),
    WrongRung(by_thread("padding_the_other_way_round", swapped=True), "wrong result"),
    WrongRung(by_thread("padding_on_one_side", from_the_edge=True), "wrong result"),
    WrongRung(by_thread("one_factor_for_all", own_factor=False), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(launched("words_anywhere", words_anywhere), "misaligned"),
    WrongRung(launched("no_barrier", no_barrier), "race"),
)
