"""Wrong convolutions with channels last: a thread for each output, whose sum goes over rows, columns and channels."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.implicit_channels_last import arguments
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

BLOCK = 64
ZERO = np.float32(0)


@cuda.jit(device=True)
def inside(row, column, h, w):
    return 0 <= row < h and 0 <= column < w


@cuda.jit(device=True)
def not_beyond_the_end(row, column, h, w):
    return row < h and column < w


@cuda.jit(device=True)
def rows_only(row, column, h, w):
    return 0 <= row < h


def convolution(
    name, *, check=inside, guard=True, dilates=True, own_group=True, by_filter=True, order="rsc", vectors=0
):
    """The layer by a kernel with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, w, bias, out, stride, padding, dilation, groups, relu):
        i = cuda.grid(1)
        _, rows, columns, filters = out.shape
        r_, s_, channels = w.shape[1], w.shape[2], w.shape[3]
        if not guard or i < out.size:
            f, place = i % filters, i // filters
            n, p, q = place // (rows * columns), place // columns % rows, place % columns
            start = f // (filters // groups) * channels if own_group else 0
            total = ZERO
            for r in range(r_):
                for s in range(s_):
                    row = p * stride[0] + r * (dilation[0] if dilates else 1) - padding[0]
                    column = q * stride[1] + s * (dilation[1] if dilates else 1) - padding[1]
                    if check(row, column, x.shape[1], x.shape[2]):
                        for c in range(0, channels, 4 if vectors else 1):
                            if vectors:
                                at = ((n * x.shape[1] + row) * x.shape[2] + column) * x.shape[3] + start + c
                                a, b = load128(x, at), load128(w, ((f * r_ + r) * s_ + s) * channels + c)
                                for e in range(4):
                                    total += a[e] * b[e]
                            elif order == "rsc":
                                total += x[n, row, column, start + c] * w[f, r, s, c]
                            else:  # the numbers of a filter, as if they lay with channels first
                                k = (c * r_ + r) * s_ + s
                                total += (
                                    x[n, row, column, start + c]
                                    * w[f, k // channels // s_, k // channels % s_, k % channels]
                                )
            if bias.size:
                total += bias[f if by_filter else 0]
            out[n, p, q, f] = ZERO if relu and total < 0 else total

    def rung(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        if p.out.size:
            grid = blocks(p.out.size, BLOCK)
            kernel[grid, BLOCK](p.x, p.w, p.bias, p.out, a.stride, a.padding, a.dilation, a.groups, p.relu)
        return p.out

    rung.__name__ = name
    return rung


RIGHT = convolution("right")
RUNGS = (
    WrongRung(convolution("no_guard", guard=False), "out of bounds"),
    WrongRung(convolution("not_above_the_image", check=not_beyond_the_end), "out of bounds"),
    WrongRung(convolution("rows_only", check=rows_only), "out of bounds"),
    WrongRung(convolution("not_dilated", dilates=False), "wrong result"),
    WrongRung(convolution("channels_of_the_first_group", own_group=False), "wrong result"),
    WrongRung(convolution("one_bias", by_filter=False), "wrong result"),
    WrongRung(convolution("filters_with_channels_first", order="crs"), "wrong result"),
    WrongRung(convolution("vectors_of_any_channels", vectors=True), "misaligned"),
)
