"""Wrong statistics of gradients."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def finite(x):
    return abs(x) <= np.float32(3.4e38)


@cuda.jit(device=True)
def is_number(x):
    return x == x


def statistics(name, counted=finite, signed=False, guard=True, root=True, barrier=True, mean=True, everywhere=True):
    """Statistics of one tensor by one block, with some parts exchanged."""

    @cuda.jit
    def kernel(x, out):
        partial = cuda.shared.array((4, 32), np.float32)
        squares, total, largest, lost = f0, f0, f0, f0
        for i in range(cuda.threadIdx.x, x.size if guard else (x.size + BLOCK - 1) // BLOCK * BLOCK, BLOCK):
            value = x[i]
            if counted(value):
                largest = max(largest, value if signed else abs(value))
            else:
                lost += f1
            squares += value * value
            total += value
        if everywhere:
            squares, total = block_sum(squares, partial[0]), block_sum(total, partial[1])
        else:  # both use the same memory, and nobody waits in between
            squares, total = block_sum(squares, partial[0]), block_sum(total, partial[0])
        largest, lost = block_max(largest, partial[2]), block_sum(lost, partial[3])
        if cuda.threadIdx.x < 2:
            row = cuda.threadIdx.x
            out[row, 0] = math.sqrt(squares) if root else squares
            out[row, 1] = total / np.float32(max(x.size, 1)) if mean else total
            out[row, 2], out[row, 3] = largest, lost

    def call(gradient):
        x = device.to_device(gradient) if isinstance(gradient, np.ndarray) else gradient
        out = device.empty((2, 4), np.float32)
        kernel[1, BLOCK](x.reshape(-1), out)
        return out

    call.__name__ = name
    return call


RUNGS = (
    WrongRung(statistics("no_guard", guard=False), "out of bounds"),
    WrongRung(statistics("no_root", root=False), "wrong result"),
    WrongRung(statistics("the_sum_for_the_mean", mean=False), "wrong result"),
    WrongRung(statistics("the_largest_with_its_sign", signed=True), "wrong result"),
    WrongRung(statistics("infinities_are_finite", counted=is_number), "wrong result"),
    WrongRung(statistics("one_piece_of_shared_memory", everywhere=False), "race"),
)
