"""Wrong depthwise convolutions: of strips that slide down a column, and of planes that a block stages together."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import finish
from tests.support.wrong import WrongRung

BLOCK, ROWS = 64, 3
PLANES = 2  # of a block
STAGE = 128  # elements that it stages at most
f0 = np.float32(0)


def strips(name, **parts):
    """Three outputs one below the other a thread, of a layer of any groups, with some of its parts exchanged."""
    guard, last, bottom = parts.get("guard", True), parts.get("last", True), parts.get("bottom", True)
    down, spaced, thinned = parts.get("down", 1), parts.get("spaced", True), parts.get("thinned", True)
    own, shared, wrapped = parts.get("own", True), parts.get("shared", False), parts.get("wrapped", False)
    start, right = parts.get("start", f0), parts.get("right", True)

    @cuda.jit
    def kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
        rows = (out.shape[2] + ROWS - 1) // ROWS
        i = cuda.grid(1)
        q, line = i % out.shape[3], i // out.shape[3]
        p, plane = line % rows * ROWS, line // rows
        if guard and plane >= out.shape[0] * out.shape[1]:
            return
        k, n = plane % out.shape[1], plane // out.shape[1]
        filters = out.shape[1] // groups
        first = (k if shared else k // filters) * w.shape[1] if own else 0
        for y in range(ROWS):
            if not last or p + y < out.shape[2]:
                total = start
                for c in range(w.shape[1]):
                    for r in range(w.shape[2]):
                        for s in range(w.shape[3]):
                            row = (p + down * y) * (stride[0] if thinned else 1) - padding[0]
                            row += r * (dilation[0] if spaced else 1)
                            column = q * stride[1] + s * dilation[1] - padding[1]
                            above = row >= 0 and column >= 0
                            inside = (row < x.shape[2] or not bottom) and (column < x.shape[3] or not right)
                            if wrapped:
                                row, column = row % x.shape[2], column % x.shape[3]
                            if wrapped or (above and inside):
                                total += x[n, (first + c) % x.shape[1], row, column] * w[k, c, r, s]
                out[n, k, p + y, q] = finish(np.float32(total), bias, k, relu)

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = definition.arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        threads = a.n * a.k * -(-a.p // ROWS) * a.q
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[-(-threads // BLOCK), BLOCK](p.x, p.w, p.bias, p.result, p.relu, *geometry)
        return p.result

    convolve.__name__ = name
    return convolve


def packs(name, barrier=True, rest=True, whole=True):
    """A block stages two channels of an image, one behind the other, and computes the outputs of both."""

    @cuda.jit
    def kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
        stage = cuda.shared.array(STAGE, np.float32)
        area, outputs = x.shape[2] * x.shape[3], out.shape[2] * out.shape[3]
        first, planes = cuda.blockIdx.x * PLANES, x.shape[0] * x.shape[1]
        staged = PLANES * area if whole else PLANES * area // 4 * 4
        for i in range(cuda.threadIdx.x, staged, BLOCK):
            plane = first + i // area
            if plane < planes:
                stage[i] = x[plane // x.shape[1], plane % x.shape[1], i % area // x.shape[3], i % x.shape[3]]
        if barrier:
            cuda.syncthreads()
        for i in range(cuda.threadIdx.x, PLANES * outputs, BLOCK):
            plane, p, q = first + i // outputs, i % outputs // out.shape[3], i % outputs % out.shape[3]
            if plane < planes or not rest:
                k, total = plane % x.shape[1], f0
                for r in range(w.shape[2]):
                    for s in range(w.shape[3]):
                        row = p * stride[0] + r * dilation[0] - padding[0]
                        column = q * stride[1] + s * dilation[1] - padding[1]
                        if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                            total += stage[i // outputs * area + row * x.shape[3] + column] * w[k, 0, r, s]
                out[plane // x.shape[1], k, p, q] = finish(total, bias, k, relu)

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = definition.arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        if not (a.c == a.k == a.groups) or PLANES * a.h * a.w > STAGE:
            return direct(x, w, bias, stride, padding, dilation, groups, relu)
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[-(-a.n * a.c // PLANES), BLOCK](p.x, p.w, p.bias, p.result, p.relu, *geometry)
        return p.result

    convolve.__name__ = name
    return convolve


direct, right_in_packs = strips("right"), packs("right_in_packs")
RUNGS = (
    WrongRung(strips("strips_without_guard", guard=False), "out of bounds"),
    WrongRung(strips("strips_beyond_the_last_row", last=False), "out of bounds"),
    WrongRung(strips("strips_below_the_image", bottom=False), "out of bounds"),
    WrongRung(strips("strips_right_of_the_image", right=False), "out of bounds"),
    WrongRung(strips("the_same_row_three_times", down=0), "wrong result"),
    WrongRung(strips("taps_side_by_side", spaced=False), "wrong result"),
    WrongRung(strips("no_stride_down", thinned=False), "wrong result"),
    WrongRung(strips("first_channel_for_all", own=False), "wrong result"),
    WrongRung(strips("a_channel_for_each_filter", shared=True), "wrong result"),
    WrongRung(strips("an_image_that_wraps", wrapped=True), "wrong result"),
    WrongRung(strips("sums_in_float64", start=0.0), "float64"),
    WrongRung(packs("packs_without_a_barrier", barrier=False), "race"),
    WrongRung(packs("outputs_of_planes_that_are_not_there", rest=False), "out of bounds"),
    WrongRung(packs("vectors_without_the_rest", whole=False), "uninitialised read"),
)
