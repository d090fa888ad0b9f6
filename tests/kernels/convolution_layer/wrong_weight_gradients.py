"""Wrong gradients by the weights: a block of threads for each weight, with one of its parts exchanged."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.weight_gradients import arguments
from tests.support.wrong import WrongRung

T = 32
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


def gradient(check=inside, zero=ZERO, **more):
    pads, dilates, strides, own_group, all_images, waits, clears, whole = (
        more.get(name, True)
        for name in ("pads", "dilates", "strides", "own_group", "all_images", "waits", "clears", "whole")
    )

    @cuda.jit
    def kernel(dy, x, dw, stride, padding, dilation, groups):
        sums = cuda.shared.array(T, np.float32)
        thread, i = cuda.threadIdx.x, cuda.blockIdx.x
        s, r = i % dw.shape[3], i // dw.shape[3] % dw.shape[2]
        c, k = i // dw.shape[3] // dw.shape[2] % dw.shape[1], i // dw.shape[3] // dw.shape[2] // dw.shape[1]
        channel = (k // (dw.shape[0] // groups) * dw.shape[1] if own_group else 0) + c
        total = zero
        images = dy.shape[0] if all_images else min(dy.shape[0], 1)
        for place in range(thread, images * dy.shape[2] * dy.shape[3], T):
            q, p = place % dy.shape[3], place // dy.shape[3] % dy.shape[2]
            n = place // dy.shape[3] // dy.shape[2]
            row = p * (stride[0] if strides else 1) + r * (dilation[0] if dilates else 1) - (padding[0] if pads else 0)
            col = q * (stride[1] if strides else 1) + s * (dilation[1] if dilates else 1) - (padding[1] if pads else 0)
            if check(row, col, x.shape[2], x.shape[3]):
                total += dy[n, k, p, q] * x[n, channel, row, col]
        sums[thread] = total
        if waits:
            cuda.syncthreads()
        if thread == 0:
            for other in range(1, T if whole else T - 1):
                total += sums[other]
            if clears:
                dw[k, c, r, s] = total
            else:
                dw[k, c, r, s] += total

    def rung(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1):
        p = arguments(dy, x, kernel_size, stride, padding, dilation, groups)
        a = p.layer
        kernel[p.result.size, T](p.dy, p.x, p.result, a.stride, a.padding, a.dilation, a.groups)
        return p.result

    return rung


ROWS, TAPS = 3, 16  # outputs of a strip, one below the other, and taps at most


def strips(stops=True, clamps=True, every_tap=True):
    """A thread for each filter and channel goes down x with a strip of dy: each row meets all taps that it can."""

    @cuda.jit
    def kernel(dy, x, dw, stride, padding, dilation, groups):
        k, c = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
        channel = k // (dw.shape[0] // groups) * dw.shape[1] + c
        sums = cuda.local.array(TAPS, np.float32)
        for tap in range(dw.shape[2] * dw.shape[3]):
            sums[tap] = 0
        reach = (ROWS - 1) * stride[0] + (dw.shape[2] - 1) * dilation[0] + 1
        for place in range(dy.shape[0] * dy.shape[3] * ((dy.shape[2] + ROWS - 1) // ROWS)):
            q, n, p = (
                place % dy.shape[3],
                place // dy.shape[3] % dy.shape[0],
                place // dy.shape[3] // dy.shape[0] * ROWS,
            )
            for y in range(reach):
                row, met = p * stride[0] - padding[0] + y, 0
                for i in range(ROWS):
                    r = (y - i * stride[0]) // dilation[0]
                    meets = y - i * stride[0] == r * dilation[0] and 0 <= r < dw.shape[2]
                    if meets and (p + i < dy.shape[2] or not stops) and (every_tap or met == 0):
                        met += 1
                        given = dy[n, k, min(p + i, dy.shape[2] - 1) if clamps else p + i, q]
                        for s in range(dw.shape[3]):
                            column = q * stride[1] - padding[1] + s * dilation[1]
                            if inside(row, column, x.shape[2], x.shape[3]):
                                sums[r * dw.shape[3] + s] += given * x[n, channel, row, column]
        for tap in range(dw.shape[2] * dw.shape[3]):
            dw[k, c, tap // dw.shape[3], tap % dw.shape[3]] = sums[tap]

    def rung(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1):
        p = arguments(dy, x, kernel_size, stride, padding, dilation, groups)
        a = p.layer
        kernel[a.k * (a.c // a.groups), 1](p.dy, p.x, p.result, a.stride, a.padding, a.dilation, a.groups)
        return p.result

    return rung


def named(name, made_by=gradient, **parts):
    rung = made_by(**parts)
    rung.__name__ = name
    return rung


RIGHT, RIGHT_STRIPS = named("right"), named("right_strips", strips)
RUNGS = (
    WrongRung(named("no_check_above_and_left", check=not_beyond_the_end), "out of bounds"),
    WrongRung(named("no_check_of_columns", check=rows_only), "out of bounds"),
    WrongRung(named("no_barrier_before_the_sum", waits=False), "race"),
    WrongRung(named("adds_to_what_is_there", clears=False), "uninitialised read"),
    WrongRung(named("forgets_the_last_thread", whole=False), "wrong result"),
    WrongRung(named("the_first_image_only", all_images=False), "wrong result"),
    WrongRung(named("forgets_the_padding", pads=False), "wrong result"),
    WrongRung(named("forgets_the_stride", strides=False), "wrong result"),
    WrongRung(named("forgets_the_dilation", dilates=False), "wrong result"),
    WrongRung(named("the_first_groups_channels", own_group=False), "wrong result"),
    WrongRung(named("a_float64_total", zero=0.0), "float64"),
    WrongRung(named("a_strip_that_repeats_the_last_output", strips, stops=False), "wrong result"),
    WrongRung(named("a_strip_below_the_last_output", strips, stops=False, clamps=False), "out of bounds"),
    WrongRung(named("a_row_that_meets_one_tap", strips, every_tap=False), "wrong result"),
)
