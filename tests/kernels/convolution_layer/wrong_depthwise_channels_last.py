"""Wrong depthwise convolutions with channels last: a block for four channels, a thread for each place."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import depthwise_channels_last as right
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK, TAPS = 64, 32
ZERO = np.float32(0)


@cuda.jit(device=True)
def inside(row, column, h, w):
    return 0 <= row < h and 0 <= column < w


@cuda.jit(device=True)
def rows_only(row, column, h, w):
    return 0 <= row < h


@cuda.jit(device=True)
def nowhere_outside(row, column, h, w):
    return True


def depthwise(name, *, check=inside, barrier=True, own=True, strides=True, turned=False, guard=True):
    """The layer with a part exchanged. What is no whole vectors of channels is left to the right one."""

    @cuda.jit
    def kernel(x, w, bias, out, stride, padding, dilation, relu):
        weights, total = cuda.shared.array((TAPS, 4), np.float32), cuda.local.array(4, np.float32)
        _, h, wide, channels = x.shape
        n_, p_, q_ = out.shape[0], out.shape[1], out.shape[2]
        r_, s_, first = w.shape[1], w.shape[2], 4 * cuda.blockIdx.x
        for i in range(cuda.threadIdx.x, 4 * r_ * s_, BLOCK):
            tap, c = i // 4, i % 4
            r, s = tap // s_, tap % s_
            weights[tap, c] = w[first + (c if own else 0), r_ - 1 - r if turned else r, s_ - 1 - s if turned else s, 0]
        if barrier:
            cuda.syncthreads()
        place = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
        if not guard or place < n_ * p_ * q_:
            n, p, q = place // (p_ * q_), place // q_ % p_, place % q_
            for e in range(4):
                total[e] = ZERO
            for r in range(r_):
                for s in range(s_):
                    row = p * (stride[0] if strides else 1) + r * dilation[0] - padding[0]
                    column = q * (stride[1] if strides else 1) + s * dilation[1] - padding[1]
                    if check(row, column, h, wide):
                        v = load128(x, ((n * h + row) * wide + column) * channels + first)
                        for e in range(4):
                            total[e] += v[e] * weights[r * s_ + s, e]
            for e in range(4):
                total[e] += bias[first + e] if bias.size else ZERO
                total[e] = ZERO if relu and total[e] < 0 else total[e]
            store128(out, place * channels + first, (total[0], total[1], total[2], total[3]))

    def rung(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = right.arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        if not a.c == a.k == a.groups or a.c % 4 or a.r * a.s > TAPS or not p.out.size:
            return right.vectorised.run(p)
        grid = a.c // 4, -(-a.n * a.p * a.q // BLOCK)
        kernel[grid, BLOCK](p.x, p.w, p.bias, p.out, a.stride, a.padding, a.dilation, p.relu)
        return p.out

    rung.__name__ = name
    return rung


RIGHT = depthwise("right")
RUNGS = (
    WrongRung(depthwise("no_barrier", barrier=False), "race"),
    WrongRung(depthwise("no_guard", guard=False), "out of bounds"),
    WrongRung(depthwise("neighbours_for_padding", check=nowhere_outside), "out of bounds"),
    WrongRung(depthwise("rows_only", check=rows_only), "out of bounds"),
    WrongRung(depthwise("weights_of_the_first_channel", own=False), "wrong result"),
    WrongRung(depthwise("stride_forgotten", strides=False), "wrong result"),
    WrongRung(depthwise("window_turned", turned=True), "wrong result"),
)
