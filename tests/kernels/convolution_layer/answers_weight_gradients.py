"""More answers to the exercise on the gradient by the weights: right in another way, or wrong."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import warp_sum
from pmpp.kernels.convolution_layer.weight_gradients_exercises import BLOCK, ZERO
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
TAPS = "weight_gradients/taps"


@right(TAPS)
@cuda.jit
def taps_by_a_warp(dy, x, padding, dw):
    k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
    total = ZERO
    for n in range(dy.shape[0]):
        for q in range(cuda.threadIdx.x, dy.shape[2], BLOCK):
            if 0 <= q + s - padding < x.shape[1]:
                total += dy[n, k, q] * x[n, q + s - padding]
    total = warp_sum(total)
    if cuda.threadIdx.x == 0:
        dw[k, s] = total


def taps(pads=True, turned=False, images=True, waits=True, sums_all=True, atomic=False):
    @cuda.jit
    def kernel(dy, x, padding, dw):
        sums = cuda.shared.array(BLOCK, np.float32)
        thread = cuda.threadIdx.x
        k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
        total = ZERO
        for place in range(thread, (dy.shape[0] if images else 1) * dy.shape[2], BLOCK):
            n, q = place // dy.shape[2], place % dy.shape[2]
            column = q + (dw.shape[1] - 1 - s if turned else s) - (padding if pads else 0)
            if 0 <= column < x.shape[1]:
                total += dy[n, k, q] * x[n, column]
        sums[thread] = total
        if atomic:
            if thread == 0:
                dw[k, s] = 0
            cuda.syncthreads()
            cuda.atomic.add(dw, (k, s), total)
        else:
            if waits:
                cuda.syncthreads()
            if thread == 0:
                for other in range(1, BLOCK if sums_all else BLOCK - 1):
                    total += sums[other]
                dw[k, s] = total

    return kernel


def add(name, mistake, said="", **parts):
    kernel = taps(**parts)
    kernel.__name__ = name
    wrong(TAPS, mistake, said)(kernel)


ALSO_RIGHT.append((TAPS, taps()))
add("taps_without_padding", "padding forgotten", pads=False)
add("taps_turned", "turned", "nothing is turned", turned=True)
add("taps_of_the_first_row", "first row only", "over n, too", images=False)
add("taps_without_a_barrier", "missing barrier", waits=False)
add("taps_without_the_last_thread", "wrong result", sums_all=False)


@wrong(TAPS, "missing atomic", "a sum of its own")
@cuda.jit
def taps_all_written_by_all(dy, x, padding, dw):
    k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
    if cuda.threadIdx.x == 0:
        dw[k, s] = 0
    cuda.syncthreads()
    for place in range(cuda.threadIdx.x, dy.shape[0] * dy.shape[2], BLOCK):
        n, column = place // dy.shape[2], place % dy.shape[2] + s - padding
        if 0 <= column < x.shape[1]:
            dw[k, s] += dy[n, k, place % dy.shape[2]] * x[n, column]


@wrong(TAPS, "too much traffic", "take places of its own")
@cuda.jit
def taps_all_read_by_all(dy, x, padding, dw):
    k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
    total = ZERO
    for n in range(dy.shape[0]):
        for q in range(dy.shape[2]):
            if 0 <= q + s - padding < x.shape[1]:
                total += dy[n, k, q] * x[n, q + s - padding]
    if cuda.threadIdx.x == 0:
        dw[k, s] = total
