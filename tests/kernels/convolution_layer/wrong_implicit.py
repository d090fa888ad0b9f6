"""Wrong implicit GEMMs, with a tile of 8 x 8. Wrong answers to the exercises are in their own test file."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.definition import arguments
from tests.support.wrong import WrongRung

T = 8
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


@cuda.jit(device=True)
def order_of_w(k, r, s):
    return k // (r * s), k // s % r, k % s


@cuda.jit(device=True)
def rows_and_columns_swapped(k, r, s):
    return k // (r * s), k % r, k // r % s


def implicit(check=inside, walk=order_of_w, first=True, second=True, tail=True, zero=ZERO, **more):
    """The layer by a kernel with one of its parts exchanged."""
    pads, dilates, own_group, last = (more.get(name, True) for name in ("pads", "dilates", "own_group", "last"))

    @cuda.jit
    def kernel(x, w, bias, out, stride, padding, dilation, relu):
        w_tile, x_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        channels, r_, s_ = w.shape[1], w.shape[2], w.shape[3]
        filters = w.shape[0] // (x.shape[1] // channels)
        tiles = (filters + T - 1) // T
        group = cuda.blockIdx.y // tiles
        f, column = cuda.blockIdx.y % tiles * T + ty, cuda.blockIdx.x * T + tx
        pixels = out.shape[2] * out.shape[3]
        n, p, q = column // pixels, column % pixels // out.shape[3], column % out.shape[3]
        terms = channels * r_ * s_
        total = zero
        for k0 in range(0, terms if last else terms // T * T, T):
            k = k0 + tx
            c, r, s = order_of_w(k, r_, s_)
            w_tile[ty, tx] = w[group * filters + f, c, r, s] if f < filters and k < terms else ZERO
            k = k0 + ty
            c, r, s = walk(k, r_, s_)
            row = p * stride[0] + r * (dilation[0] if dilates else 1) - (padding[0] if pads else 0)
            col = q * stride[1] + s * (dilation[1] if dilates else 1) - (padding[1] if pads else 0)
            c += group * channels if own_group else 0
            value = ZERO
            if (not tail or (k < terms and n < x.shape[0])) and check(row, col, x.shape[2], x.shape[3]):
                value = x[n, c, row, col]
            x_tile[ty, tx] = value
            if first:
                cuda.syncthreads()
            for i in range(T):
                total += w_tile[ty, i] * x_tile[i, tx]
            if second:
                cuda.syncthreads()
        if f < filters and n < x.shape[0]:
            if bias.size:
                total += bias[group * filters + f]
            out[n, group * filters + f, p, q] = ZERO if relu and total < 0 else total

    def rung(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        a = arguments(x, w, bias, stride, padding, dilation, groups, relu)
        n, k, p, q = a.layer.shape
        grid = -(-n * p * q // T), -(-k // groups // T) * groups
        kernel[grid, (T, T)](a.x, a.w, a.bias, a.result, a.layer.stride, a.layer.padding, a.layer.dilation, a.relu)
        return a.result

    return rung


def named(name, **parts):
    rung = implicit(**parts)
    rung.__name__ = name
    return rung


RIGHT = named("right")
RUNGS = (
    WrongRung(named("no_check_above_and_left", check=not_beyond_the_end), "out of bounds"),
    WrongRung(named("no_check_of_columns", check=rows_only), "out of bounds"),
    WrongRung(named("reads_beyond_the_last_column", tail=False), "out of bounds"),
    WrongRung(named("no_barrier_before_reading", first=False), "race"),
    WrongRung(named("no_barrier_before_overwriting", second=False), "race"),
    WrongRung(named("whole_tiles_of_products", last=False), "wrong result"),
    WrongRung(named("rows_and_columns_of_the_kernel_swapped", walk=rows_and_columns_swapped), "wrong result"),
    WrongRung(named("forgets_the_padding", pads=False), "wrong result"),
    WrongRung(named("forgets_the_dilation", dilates=False), "wrong result"),
    WrongRung(named("the_first_groups_channels", own_group=False), "wrong result"),
    WrongRung(named("a_float64_total", zero=0.0), "float64"),
)
