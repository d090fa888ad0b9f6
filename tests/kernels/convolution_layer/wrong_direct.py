"""Wrong direct convolutions, and wrong answers to the exercises about them."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import finish
from tests.support.wrong import WrongAnswer, WrongRung

BLOCK = 64
SIDE = 32  # elements of a staged row
f0 = np.float32(0)


def convolver(name, **parts):
    """A direct convolution, one thread per output, with some of its parts exchanged."""
    guard, edge = parts.get("guard", True), parts.get("edge", True)
    flipped, crosswise = parts.get("flipped", False), parts.get("crosswise", False)
    one_group, early = parts.get("one_group", False), parts.get("early", False)
    writes, inward = parts.get("writes", False), parts.get("inward", False)
    thinned, loose = parts.get("thinned", True), parts.get("loose", False)

    @cuda.jit
    def kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
        i = cuda.grid(1)
        if not guard or i < out.size:
            q, p = i % out.shape[3], i // out.shape[3] % out.shape[2]
            k, n = i // out.shape[3] // out.shape[2] % out.shape[1], i // out.shape[3] // out.shape[2] // out.shape[1]
            first = 0 if one_group else k // (out.shape[1] // groups) * w.shape[1]
            total = f0
            for c in range(w.shape[1]):
                for r in range(w.shape[2]):
                    for s in range(w.shape[3]):
                        y, z = (s, r) if crosswise else (r, s)
                        row = p * (stride[0] if thinned else 1) + y * dilation[0]
                        column = q * (stride[1] if thinned else 1) + z * dilation[1]
                        row += padding[0] if inward else -padding[0]
                        column += padding[1] if inward else -padding[1]
                        inside = row >= 0 and column >= 0 and row < x.shape[2]
                        if inside and (not edge or column < x.shape[3] + (1 if loose else 0)):
                            if flipped:
                                y, z = w.shape[2] - 1 - r, w.shape[3] - 1 - s
                            else:
                                y, z = r, s
                            total += x[n, first + c, row, column] * w[k, c, y, z]
            if early and relu:
                total = finish(max(total, f0), bias, k, False)
            else:
                total = finish(total, bias, k, relu)
            out[n, k, p, q] = total
            if writes:
                x[n, 0, 0, 0] = f0

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = definition.arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[-(-p.result.size // BLOCK), BLOCK](p.x, p.w, p.bias, p.result, p.relu, *geometry)
        return p.result

    convolve.__name__ = name
    return convolve


def staged(name, first_barrier=True, second_barrier=True, filled=True):
    """One block for each row of outputs; it stages a row of x for all its threads, and waits or does not."""

    @cuda.jit
    def kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
        stage = cuda.shared.array(SIDE, np.float32)
        p = cuda.blockIdx.x % out.shape[2]
        k = cuda.blockIdx.x // out.shape[2] % out.shape[1]
        n, q = cuda.blockIdx.x // out.shape[2] // out.shape[1], cuda.threadIdx.x
        first = k // (out.shape[1] // groups) * w.shape[1]
        total = f0
        for c in range(w.shape[1]):
            for r in range(w.shape[2]):
                row = p * stride[0] + r * dilation[0] - padding[0]
                column = q - padding[1]  # place q of the stage
                if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                    stage[q] = x[n, first + c, row, column]
                elif filled:
                    stage[q] = f0
                if first_barrier:
                    cuda.syncthreads()
                if q < out.shape[3]:
                    for s in range(w.shape[3]):
                        total += stage[q * stride[1] + s * dilation[1]] * w[k, c, r, s]
                if second_barrier:
                    cuda.syncthreads()
        if q < out.shape[3]:
            out[n, k, p, q] = finish(total, bias, k, relu)

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = definition.arguments(x, w, bias, stride, padding, dilation, groups, relu)
        a = p.layer
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[a.n * a.k * a.p, SIDE](p.x, p.w, p.bias, p.result, p.relu, *geometry)
        return p.result

    convolve.__name__ = name
    return convolve


right, right_in_stages = convolver("right"), staged("right_in_stages")
RUNGS = (
    WrongRung(convolver("no_guard", guard=False), "out of bounds"),
    WrongRung(convolver("no_right_edge", edge=False), "out of bounds"),
    WrongRung(convolver("one_column_too_many", loose=True), "out of bounds"),
    WrongRung(convolver("flipped_kernel", flipped=True), "wrong result"),
    WrongRung(convolver("rows_for_columns", crosswise=True), "wrong result"),
    WrongRung(convolver("padding_the_other_way", inward=True), "wrong result"),
    WrongRung(convolver("no_stride", thinned=False), "wrong result"),
    WrongRung(convolver("first_group_for_all", one_group=True), "wrong result"),
    WrongRung(convolver("relu_before_the_bias", early=True), "wrong result"),
    WrongRung(convolver("in_x_as_well", writes=True), "input changed"),
    WrongRung(staged("read_before_all_is_staged", first_barrier=False), "race"),
    WrongRung(staged("staged_anew_too_soon", second_barrier=False), "race"),
    WrongRung(staged("nothing_around_the_image", filled=False), "uninitialised read"),
)


# ------------------------------------------------------------------------------------------------ answers: depthwise


def depthwise_with(name, **parts):
    """A depthwise layer with some of its parts exchanged."""
    guard, low, high = parts.get("guard", True), parts.get("low", 0), parts.get("high", 0)
    turned, first, slow = parts.get("turned", False), parts.get("first", False), parts.get("slow", False)
    start = parts.get("start", f0)

    @cuda.jit
    def depthwise(x, w, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            height, width = x.shape[1], x.shape[2]
            c, p, q = i // width // height, i // width % height, i % width
            if slow:
                p, q = i % height, i // height % width
            total = start
            for r in range(3):
                for s in range(3):
                    y, z = p + r - 1, q + s - 1
                    if y + low >= 0 and y < height and z + low >= 0 and z < width + high:
                        if turned:
                            total += x[c, y, z] * w[c, 2 - r, 2 - s]
                        else:
                            total += x[c, y, z] * w[0 if first else c, r, s]
            out[c, p, q] = total

    depthwise.py_func.__name__ = name
    return depthwise


# -------------------------------------------------------------------------------------------------- answers: filters


def filters_with(name, **parts):
    """Several filters at once with some of their parts exchanged."""
    guard, again, one_channel = parts.get("guard", True), parts.get("again", False), parts.get("one_channel", False)
    start, few, crosswise = parts.get("start", f0), parts.get("few", False), parts.get("crosswise", False)

    @cuda.jit
    def filters(x, w, out):
        i = cuda.grid(1)
        rows, columns = out.shape[1], out.shape[2]
        if not guard or i < rows * columns:
            p, q = i // columns, i % columns
            a, b, c, d = start, start, start, start
            for channel in range(1 if one_channel else x.shape[0]):
                for r in range(3):
                    for s in range(3):
                        value = x[channel, p + r, q + s]
                        y, z = (s, r) if crosswise else (r, s)
                        a += value * w[0, channel, y, z]
                        b += (x[channel, p + r, q + s] if again else value) * w[1, channel, y, z]
                        c += (x[channel, p + r, q + s] if again else value) * w[2, channel, y, z]
                        d += (x[channel, p + r, q + s] if again else value) * w[3, channel, y, z]
            out[0, p, q] = a
            out[1, p, q] = b
            out[2, p, q] = c
            if not few:
                out[3, p, q] = d

    filters.py_func.__name__ = name
    return filters


DEPTHWISE, FILTERS = "direct/depthwise", "direct/filters"
ANSWERS = (
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_without_guard", guard=False), "missing guard"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_from_minus_one", low=1), "negative index"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_one_too_far", high=1), "index out of bounds"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_turned", turned=True), "kernel turned round"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_by_the_first_filter", first=True), "one filter for all"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_down_the_columns", slow=True), "uncoalesced"),
    WrongAnswer(DEPTHWISE, depthwise_with("depthwise_in_float64", start=0.0), "accidental float64"),
    WrongAnswer(FILTERS, filters_with("filters_without_guard", guard=False), "missing guard"),
    WrongAnswer(FILTERS, filters_with("filters_load_again", again=True), "too much traffic"),
    WrongAnswer(FILTERS, filters_with("filters_of_one_channel", one_channel=True), "only one channel"),
    WrongAnswer(FILTERS, filters_with("filters_in_float64", start=0.0), "accidental float64"),
    WrongAnswer(FILTERS, filters_with("filters_but_three", few=True), "output not written"),
    WrongAnswer(FILTERS, filters_with("filters_crosswise", crosswise=True), "wrong result"),
)
