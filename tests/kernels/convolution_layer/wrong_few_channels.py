"""Wrong gradients by the input for stride 2: a thread has a cell of 2 x 2 places, and one part is exchanged."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.input_gradients import arguments
from tests.support.wrong import WrongRung

T, SIDE = 8, 11  # a block has T x T cells, and loads up to SIDE x SIDE values of dy
ZERO = np.float32(0)


@cuda.jit(device=True)
def both_ends(row, column, dy):
    return 0 <= row < dy.shape[2] and 0 <= column < dy.shape[3]


@cuda.jit(device=True)
def not_before_the_start(row, column, dy):
    return row < dy.shape[2] and column < dy.shape[3]


@cuda.jit(device=True)
def clamped(row, column, dy):
    return True


def gradient(inside=both_ends, zero=ZERO, shift=0, **more):
    own_tap, own_group, whole, guarded, before, after, halo = (
        more.get(name, True) for name in ("own_tap", "own_group", "whole", "guarded", "before", "after", "halo")
    )

    @cuda.jit
    def kernel(dy, w, dx, padding, groups):
        patch = cuda.shared.array((SIDE, SIDE), np.float32)
        totals = cuda.local.array((2, 2), np.float32)
        tx, ty, plane = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
        n, c = plane // dx.shape[1], plane % dx.shape[1]
        filters, taps_down, taps_across = dy.shape[1] // groups, w.shape[2], w.shape[3]
        group = c // w.shape[1] if own_group else 0
        top, left = -((taps_down - 1 - padding[0]) // 2), -((taps_across - 1 - padding[1]) // 2)
        down, across = padding[0] - 2 * top, padding[1] - 2 * left  # the taps that the first place meets there
        reach_down, reach_across = (down + 1) // 2 + 1, (across + 1) // 2 + 1
        i, j = cuda.blockIdx.y * T, cuda.blockIdx.x * T
        for a in range(2):
            for b in range(2):
                totals[a, b] = 0
        for k in range(filters if whole else filters // 2 * 2):
            f = group * filters + k
            if before:
                cuda.syncthreads()
            for y in range(ty, T + reach_down - 1 if halo else T, T):
                for x in range(tx, T + reach_across - 1 if halo else T, T):
                    p, q = i + top + y + shift, j + left + x
                    if inside(p, q, dy):
                        p, q = min(max(p, 0), dy.shape[2] - 1), min(max(q, 0), dy.shape[3] - 1)
                        patch[y, x] = dy[n, f, p, q]
                    else:
                        patch[y, x] = 0
            if after:
                cuda.syncthreads()
            for a in range(2):
                for b in range(2):
                    total = zero
                    for y in range(reach_down):
                        for x in range(reach_across):
                            r, s = (a if own_tap else 1 - a) + down - 2 * y, b + across - 2 * x
                            if 0 <= r < taps_down and 0 <= s < taps_across:
                                total += patch[ty + y, tx + x] * w[f, c % w.shape[1], r, s]
                    totals[a, b] += total
        for a in range(2):
            for b in range(2):
                row, column = 2 * (i + ty) + a, 2 * (j + tx) + b
                if not guarded or (row < dx.shape[2] and column < dx.shape[3]):
                    dx[n, c, row, column] = totals[a, b]

    def rung(dy, w, shape, stride, padding=0, dilation=1, groups=1):
        p = arguments(dy, w, shape, stride, padding, dilation, groups)
        a = p.layer
        grid = -(-a.w // (2 * T)), -(-a.h // (2 * T)), a.n * a.c
        kernel[grid, (T, T)](p.dy, p.w, p.result, a.padding, a.groups)
        return p.result

    return rung


def named(name, **parts):
    rung = gradient(**parts)
    rung.__name__ = name
    return rung


RIGHT = named("right")
RUNGS = (
    WrongRung(named("no_barrier_before_the_next_filter", before=False), "race"),
    WrongRung(named("no_barrier_after_loading", after=False), "race"),
    WrongRung(named("a_tile_without_its_halo", halo=False), "uninitialised read"),
    WrongRung(named("stores_beyond_the_image", guarded=False), "out of bounds"),
    WrongRung(named("repeats_the_edge_of_dy", inside=clamped), "wrong result"),
    WrongRung(named("repeats_its_first_rows", inside=not_before_the_start), "wrong result"),
    WrongRung(named("the_taps_of_the_other_class", own_tap=False), "wrong result"),
    WrongRung(named("a_row_of_dy_too_far_down", shift=1), "wrong result"),
    WrongRung(named("the_first_groups_filters", own_group=False), "wrong result"),
    WrongRung(named("forgets_an_odd_filter", whole=False), "wrong result"),
    WrongRung(named("a_float64_total", zero=0.0), "float64"),
)
