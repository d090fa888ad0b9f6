"""Wrong products with packed weights: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, warp_sum
from pmpp.kernels.quantisation import weight_only as room
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


def launched(name, work):
    """A function of the room that solves a problem with 4 bits by ``work``, and one with 8 as the room does."""

    def call(x, w, scales):
        p = room.arguments(x, w, scales)
        if p.done:
            return p.result
        if p.bits == 4:
            work(p)
        else:
            room.coalesced.launch(p)
        return p.result

    call.__name__ = name
    return call


def by_thread(
    name,
    upper_first=False,
    raised=8,
    signed=False,
    guard=True,
    one=f1,
    scale_of="group",
    fill=False,
    of_x="own",
    whole_bytes=False,
):
    """A thread for each element of the result, with one of the steps exchanged."""

    @cuda.jit
    def kernel(x, w, scales, out):
        i, total = cuda.grid(1), f0
        if guard and i >= out.size:
            return
        m, row = i // out.shape[1], i % out.shape[1]
        end = 2 * w.shape[1] if fill else x.shape[1] // 2 * 2 if whole_bytes else x.shape[1]
        for k in range(end):
            byte = np.int32(w[row, k // 2])
            q = byte & 15 if (k % 2 == 1) == upper_first else byte >> 4
            if signed:
                q -= 16 if q > 7 else 0
            group = k // room.GROUP if scale_of == "group" else 0 if scale_of == "row" else k % scales.shape[1]
            from_row = m if of_x == "own" else 0
            total += one * scales[row, group] * np.float32(q - raised) * np.float32(x[from_row, k])
        out[m, row] = total

    return launched(name, lambda p: kernel[blocks(p.result.size, BLOCK), BLOCK](p.x, p.w, p.scales, p.result))


def by_warp(name, distances=(16, 8, 4, 2, 1)):
    """A warp for each element, with an error in what the lanes do together."""

    @cuda.jit
    def kernel(x, w, scales, out):
        i, total, lane = cuda.grid(1) // 32, f0, cuda.laneid
        m, row = i // out.shape[1], i % out.shape[1]
        if i < out.size:
            for k in range(lane, x.shape[1], 32):
                total += scales[row, k // room.GROUP] * room.weight_of_half(w, row, k) * np.float32(x[m, k])
        for distance in distances:
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        if i < out.size and lane == 0:
            out[m, row] = total

    return launched(name, lambda p: kernel[blocks(32 * p.result.size, BLOCK), BLOCK](p.x, p.w, p.scales, p.result))


@cuda.jit
def wide_kernel(x, w, scales, out, n, k, groups):
    """Loads of 128 bits of W, of one row of x."""
    row, lane, total = cuda.grid(1) // 32, cuda.laneid, f0
    if row < n:
        for at in range(32 * lane, k, 1024):
            words = load128(w, row * groups * 16 + at // 8)
            for j in range(32):
                q = words[0] if j < 8 else words[1] if j < 16 else words[2] if j < 24 else words[3]
                number = np.float32(np.int32(q >> np.uint32(j % 8 * 4) & np.uint32(15)) - 8)
                if at + j < k:
                    total += number * scales[row * groups + at // 128] * np.float32(x[at + j])
    total = warp_sum(total)
    if row < n and lane == 0:
        out[row] = total


def wide_anywhere(p):
    """Loads 128 bits from wherever the matrix begins."""
    (m, k), n = p.x.shape, p.w.shape[0]
    if m != 1:
        room.coalesced.launch(p)
        return
    given = room.flat(p.x), room.flat(p.w, np.uint32), room.flat(p.scales), room.flat(p.result)
    wide_kernel[blocks(32 * n, BLOCK), BLOCK](*given, n, k, blocks(k, room.GROUP))


@cuda.jit
def atomic_kernel(x, w, scales, out):
    i = cuda.grid(1)
    if i < out.shape[1] * x.shape[1]:
        row, k = i // x.shape[1], i % x.shape[1]
        value = scales[row, k // room.GROUP] * room.weight_of_half(w, row, k)
        for m in range(x.shape[0]):
            cuda.atomic.add(out, (m, row), value * np.float32(x[m, k]))


def atomics_into_nothing(p):
    """Adds to what nobody has set to 0."""
    atomic_kernel[blocks(p.x.shape[1] * p.w.shape[0], BLOCK), BLOCK](p.x, p.w, p.scales, p.result)


@cuda.jit
def shared_kernel(x, w, scales, out):
    partial = cuda.shared.array(2, np.float32)
    row, thread, total = cuda.blockIdx.x % out.shape[1], cuda.threadIdx.x, f0
    m = cuda.blockIdx.x // out.shape[1]
    for k in range(thread, x.shape[1], BLOCK):
        total += scales[row, k // room.GROUP] * room.weight_of_half(w, row, k) * np.float32(x[m, k])
    total = warp_sum(total)
    if thread % 32 == 0:
        partial[thread // 32] = total
    if thread == 0:
        out[m, row] = partial[0] + partial[1]


def no_barrier(p):
    """A block for each element, whose first thread does not wait for the second warp."""
    shared_kernel[p.result.size, BLOCK](p.x, p.w, p.scales, p.result)


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("upper_half_first", upper_first=True), "wrong result"),
    WrongRung(by_thread("not_lowered", raised=0), "wrong result"),
    WrongRung(by_thread("lowered_by_seven", raised=7), "wrong result"),
    WrongRung(by_thread("two_s_complement", signed=True, raised=0), "wrong result"),
    WrongRung(by_thread("a_scale_for_the_row", scale_of="row"), "wrong result"),
    WrongRung(by_thread("scales_in_turns", scale_of="turns"), "wrong result"),
    WrongRung(by_thread("the_filling_counts", fill=True), "out of bounds"),
    WrongRung(by_thread("last_half_byte_left_out", whole_bytes=True), "wrong result"),
    WrongRung(by_thread("first_row_of_x_for_all", of_x="first"), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(by_warp("half_a_warp", distances=(8, 4, 2, 1)), "wrong result"),
    WrongRung(launched("wide_anywhere", wide_anywhere), "misaligned"),
    WrongRung(launched("atomics_into_nothing", atomics_into_nothing), "uninitialised read"),
    WrongRung(launched("no_barrier", no_barrier), "race"),
)
