"""Wrong gradients by the input: one gather, with one of its parts exchanged."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.input_gradients import arguments
from tests.support.wrong import WrongRung

ZERO = np.float32(0)


@cuda.jit(device=True)
def meets(down, stride, extent):
    return down >= 0 and down % stride == 0 and down // stride < extent


@cuda.jit(device=True)
def rounds_down(down, stride, extent):
    return down >= 0 and down // stride < extent


@cuda.jit(device=True)
def not_beyond_the_end(down, stride, extent):
    return down % stride == 0 and down // stride < extent


@cuda.jit(device=True)
def not_before_the_start(down, stride, extent):
    return down >= 0 and down % stride == 0


def gradient(check=meets, zero=ZERO, **more):
    turned, pads, dilates, own_group, whole, scatters = (
        more.get(name, True) for name in ("turned", "pads", "dilates", "own_group", "whole", "gathers")
    )

    @cuda.jit
    def kernel(dy, w, dx, stride, padding, dilation, groups):
        i = cuda.grid(1)
        if i < dx.size:
            column, row = i % dx.shape[3], i // dx.shape[3] % dx.shape[2]
            c, n = i // dx.shape[3] // dx.shape[2] % dx.shape[1], i // dx.shape[3] // dx.shape[2] // dx.shape[1]
            filters = dy.shape[1] // groups
            first = c // w.shape[1] * filters if own_group else 0
            total = zero
            for r in range(w.shape[2]):
                for s in range(w.shape[3]):
                    far = (dilation[0], dilation[1]) if dilates else (1, 1)
                    down = row + (padding[0] if pads else 0) - (r if turned else w.shape[2] - 1 - r) * far[0]
                    right = column + (padding[1] if pads else 0) - (s if turned else w.shape[3] - 1 - s) * far[1]
                    if check(down, stride[0], dy.shape[2]) and check(right, stride[1], dy.shape[3]):
                        for k in range(filters if whole else filters - 1):
                            g = dy[n, first + k, down // stride[0], right // stride[1]]
                            total += g * w[first + k, c % w.shape[1], r, s]
            dx[n, c, row, column] = total

    @cuda.jit
    def scatter(dy, w, dx, stride, padding, dilation, groups):
        i = cuda.grid(1)
        if i < dy.size:
            q, p = i % dy.shape[3], i // dy.shape[3] % dy.shape[2]
            k, n = i // dy.shape[3] // dy.shape[2] % dy.shape[1], i // dy.shape[3] // dy.shape[2] // dy.shape[1]
            first = k // (dy.shape[1] // groups) * w.shape[1]
            for c in range(w.shape[1]):
                for r in range(w.shape[2]):
                    for s in range(w.shape[3]):
                        row = p * stride[0] + r * dilation[0] - padding[0]
                        column = q * stride[1] + s * dilation[1] - padding[1]
                        if 0 <= row < dx.shape[2] and 0 <= column < dx.shape[3]:
                            dx[n, first + c, row, column] += dy[n, k, p, q] * w[k, c, r, s]

    def rung(dy, w, shape, stride=1, padding=0, dilation=1, groups=1):
        p = arguments(dy, w, shape, stride, padding, dilation, groups)
        a = p.layer
        pairs = a.stride, a.padding, a.dilation, a.groups
        if scatters:
            kernel[-(-p.result.size // 64), 64](p.dy, p.w, p.result, *pairs)
        else:
            p.result[:] = 0
            scatter[-(-p.dy.size // 64), 64](p.dy, p.w, p.result, *pairs)
        return p.result

    return rung


def named(name, **parts):
    rung = gradient(**parts)
    rung.__name__ = name
    return rung


RIGHT = named("right")
RUNGS = (
    WrongRung(named("no_check_before_the_start", check=not_beyond_the_end), "out of bounds"),
    WrongRung(named("no_check_beyond_the_end", check=not_before_the_start), "out of bounds"),
    WrongRung(named("rounds_a_place_between_outputs_down", check=rounds_down), "wrong result"),
    WrongRung(named("filters_that_are_not_turned", turned=False), "wrong result"),
    WrongRung(named("forgets_the_padding", pads=False), "wrong result"),
    WrongRung(named("forgets_the_dilation", dilates=False), "wrong result"),
    WrongRung(named("the_first_groups_filters", own_group=False), "wrong result"),
    WrongRung(named("forgets_the_last_filter", whole=False), "wrong result"),
    WrongRung(named("adds_without_atomics", gathers=False), "race"),
    WrongRung(named("a_float64_total", zero=0.0), "float64"),
)
