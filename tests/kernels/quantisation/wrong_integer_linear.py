"""Wrong integer layers: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.quantisation import integer_linear as room
from pmpp.runtime.matrix import load32, mma_s8
from tests.support.wrong import WrongRung

BLOCK = 64
i0, f0, f1, half = np.int32(0), np.float32(0), np.float32(1), np.float32(0.5)


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(x, w, factors, bias=None, relu=False):
        p = room.arguments(x, w, factors, bias, relu)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def by_thread(
    name,
    in_bytes=False,
    unsigned=False,
    own_factor=True,
    bias_after=False,
    cut_off=False,
    wraps=False,
    relu_too=True,
    guard=True,
    one=f1,
):
    """A thread for each element, with one of the steps exchanged."""

    @cuda.jit
    def kernel(x, w, factors, bias, low, out):
        i = cuda.grid(1)
        if guard and i >= out.size:
            return
        row, column, total = i // out.shape[1], i % out.shape[1], i0
        for k in range(x.shape[1]):
            if in_bytes:
                total = np.int32(np.int8(total + x[row, k] * w[column, k]))
            elif unsigned:
                total = np.int32(total + np.int32(np.uint8(x[row, k])) * np.int32(w[column, k]))
            else:
                total = np.int32(total + np.int32(x[row, k]) * np.int32(w[column, k]))
        if bias.size and not bias_after:
            total = np.int32(total + bias[column])
        scaled = one * (np.float32(total) * factors[column if own_factor else 0])
        if bias.size and bias_after:
            scaled += np.float32(bias[column])
        if cut_off:
            q = cuda.libdevice.float2int_rz(np.float32(scaled))
        else:
            q = cuda.libdevice.float2int_rn(np.float32(scaled))
        if not wraps:
            q = min(max(q, low if relu_too else np.int32(-128)), np.int32(127))
        out[row, column] = np.int8(q)

    def work(p):
        given = p.x, p.w, p.factors, p.bias, p.low, p.result
        kernel[blocks(p.result.size, BLOCK), BLOCK](*given)

    return launched(name, work)


@cuda.jit
def anywhere_kernel(x, w, factors, bias, low, out):
    """Loads words wherever rows begin, and beyond their ends."""
    lane = cuda.threadIdx.x
    tiles_n = (out.shape[1] + 7) // 8
    row, column = cuda.blockIdx.x // tiles_n * 16, cuda.blockIdx.x % tiles_n * 8
    upper, lower = min(row + lane // 4, x.shape[0] - 1), min(row + lane // 4 + 8, x.shape[0] - 1)
    beside, sums = min(column + lane // 4, w.shape[0] - 1), (i0, i0, i0, i0)
    for k in range(lane % 4 * 4, x.shape[1], 32):
        a = (
            load32(x, upper * x.shape[1] + k),
            load32(x, lower * x.shape[1] + k),
            load32(x, upper * x.shape[1] + k + 16),
            load32(x, lower * x.shape[1] + k + 16),
        )
        b = load32(w, beside * x.shape[1] + k), load32(w, beside * x.shape[1] + k + 16)
        sums = mma_s8(a, b, sums)
    room.store(out, row, column, sums, factors, bias, low)


def words_anywhere(p):
    tiles = blocks(p.result.shape[0], 16) * blocks(p.result.shape[1], 8)
    anywhere_kernel[tiles, 32](p.x, p.w, p.factors, p.bias, p.low, p.result)


@cuda.jit
def shared_kernel(x, w, factors, bias, low, out):
    parts = cuda.shared.array(2, np.int32)
    row, column, thread = cuda.blockIdx.x // out.shape[1], cuda.blockIdx.x % out.shape[1], cuda.threadIdx.x
    total = i0
    for k in range(thread, x.shape[1], 2):
        total = np.int32(total + np.int32(x[row, k]) * np.int32(w[column, k]))
    parts[thread] = total
    if thread == 0:
        out[row, column] = np.int8(room.requantised(np.int32(parts[0] + parts[1]), column, factors, bias, low))


def no_barrier(p):
    """Two threads share a sum, and the first does not wait for the second."""
    shared_kernel[p.result.size, 2](p.x, p.w, p.factors, p.bias, p.low, p.result)


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("sums_in_int8", in_bytes=True), "wrong result"),
    WrongRung(by_thread("x_without_sign", unsigned=True), "wrong result"),
    WrongRung(by_thread("one_factor_for_all", own_factor=False), "wrong result"),
    WrongRung(by_thread("bias_after_the_factor", bias_after=True), "wrong result"),
    WrongRung(by_thread("cut_off", cut_off=True), "wrong result"),
    WrongRung(by_thread("wraps_around", wraps=True), "wrong result"),
    WrongRung(by_thread("no_relu", relu_too=False), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(launched("words_anywhere", words_anywhere), "out of bounds"),
    WrongRung(launched("no_barrier", no_barrier), "race"),
)
