"""More answers to the exercises on direct convolution: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
DEPTHWISE, FILTERS = "direct/depthwise", "direct/filters"
f0 = np.float32(0)


# -- depthwise


@right(DEPTHWISE)
@cuda.jit
def depthwise_between_the_borders(x, w, out):
    i = cuda.grid(1)
    if i < out.size:
        height, width = x.shape[1], x.shape[2]
        c, p, q = i // width // height, i // width % height, i % width
        total = f0
        for y in range(max(p - 1, 0), min(p + 2, height)):
            for z in range(max(q - 1, 0), min(q + 2, width)):
                total += w[c, y - p + 1, z - q + 1] * x[c, y, z]
        out[c, p, q] = total


def depthwise(centred=True, exchanged=False, transposed=False, name="depthwise"):
    """The answer to depthwise with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, w, out):
        i = cuda.grid(1)
        if i < out.size:
            height, width = (x.shape[2], x.shape[1]) if exchanged else (x.shape[1], x.shape[2])
            c, p, q = i // width // height, i // width % height, i % width
            total = f0
            for tap in range(9):
                r, s = tap // 3, tap % 3
                y, z = (p + r - 1, q + s - 1) if centred else (p + r, q + s)
                if 0 <= y < height and 0 <= z < width:
                    total += x[c, y, z] * (w[c, s, r] if transposed else w[c, r, s])
            out[c, p, q] = total

    kernel.py_func.__name__ = name
    return kernel


wrong(DEPTHWISE, "wrong result", "1 channel of 1 x 1")(depthwise(centred=False, name="depthwise_not_centred"))
wrong(DEPTHWISE, "index out of bounds")(depthwise(exchanged=True, name="depthwise_with_extents_exchanged"))
wrong(DEPTHWISE, "kernel transposed", "1 channel of 8 x 16")(depthwise(transposed=True, name="depthwise_transposed"))


@wrong(DEPTHWISE, "wrong result", r"out\[0, 0, 0\] is as before the launch, and should be")
@cuda.jit
def depthwise_over_all_channels(x, w, out):
    i = cuda.grid(1)
    if i < out.size:
        height, width = x.shape[1], x.shape[2]
        p, q = i // width % height, i % width
        total = f0
        for c in range(x.shape[0]):
            for r in range(3):
                for s in range(3):
                    if 0 <= p + r - 1 < height and 0 <= q + s - 1 < width:
                        total += x[c, p + r - 1, q + s - 1] * w[c, r, s]
        out[c, p, q] = total


# -- filters


@right(FILTERS)
@cuda.jit
def filters_in_four_variables(x, w, out):
    i, columns = cuda.grid(1), out.shape[2]
    if i < out.shape[1] * columns:
        p, q = i // columns, i % columns
        first, second, third, fourth = f0, f0, f0, f0
        for c in range(x.shape[0]):
            for r in range(3):
                for s in range(3):
                    value = x[c, p + r, q + s]
                    first += value * w[0, c, r, s]
                    second += value * w[1, c, r, s]
                    third += value * w[2, c, r, s]
                    fourth += value * w[3, c, r, s]
        out[0, p, q], out[1, p, q], out[2, p, q], out[3, p, q] = first, second, third, fourth


@right(FILTERS)
@cuda.jit
def filters_with_the_weights_of_a_channel_in_shared_memory(x, w, out):
    weights = cuda.shared.array((4, 9), np.float32)
    i, thread, columns = cuda.grid(1), cuda.threadIdx.x, out.shape[2]
    inside, p, q = i < out.shape[1] * columns, i // columns, i % columns
    first, second, third, fourth = f0, f0, f0, f0
    for c in range(x.shape[0]):
        if thread < 36:
            weights[thread // 9, thread % 9] = w[thread // 9, c, thread // 3 % 3, thread % 3]
        cuda.syncthreads()
        if inside:
            for tap in range(9):
                value = x[c, p + tap // 3, q + tap % 3]
                first += value * weights[0, tap]
                second += value * weights[1, tap]
                third += value * weights[2, tap]
                fourth += value * weights[3, tap]
        cuda.syncthreads()
    if inside:
        out[0, p, q], out[1, p, q], out[2, p, q], out[3, p, q] = first, second, third, fourth


def filters(turned=False, again=False, channels_first=False, in_out=False, name="filters"):
    """The answer to filters with one of its parts exchanged; ``in_out``: the sums are in device memory."""

    @cuda.jit
    def kernel(x, w, out):
        i, columns = cuda.grid(1), out.shape[2]
        if i < out.shape[1] * columns:
            p, q = i // columns, i % columns
            totals = cuda.local.array(4, np.float32)
            for k in range(4):
                totals[k] = 0
                if in_out:
                    out[k, p, q] = 0
            for c in range(x.shape[0]):
                if again:
                    for k in range(4):
                        totals[k] = 0
                for r in range(3):
                    for s in range(3):
                        value, a, b = x[c, p + r, q + s], 2 - r if turned else r, 2 - s if turned else s
                        for k in range(4):
                            if in_out:
                                out[k, p, q] += value * w[k, c, a, b]
                            else:
                                totals[k] += value * (w[c, k, a, b] if channels_first else w[k, c, a, b])
            if not in_out:
                for k in range(4):
                    out[k, p, q] = totals[k]

    kernel.py_func.__name__ = name
    return kernel


wrong(FILTERS, "kernel turned round")(filters(turned=True, name="filters_turned_round"))
wrong(FILTERS, "wrong result", "2 channels")(filters(again=True, name="filters_of_the_last_channel"))
wrong(FILTERS, "index out of bounds", r"reads w\[:, 1, :, :\]")(
    filters(channels_first=True, name="filters_channels_first")
)
wrong(FILTERS, "too much traffic", "for out alone")(filters(in_out=True, name="filters_in_device_memory"))
