"""Wrong direct convolutions."""

import numpy as np

from pmpp import convolution_layer, cuda
from pmpp.convolution_layer import finish
from wrong import WrongRung

BLOCK = 64
SIDE = 32  # elements of a staged row
f0 = np.float32(0)


def convolver(name, **parts):
    """A direct convolution, a thread an output, with some of its parts exchanged."""
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
        p = convolution_layer.problem_of(x, w, bias, stride, padding, dilation, groups, relu, None, 0)
        a = p.layer
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[-(-p.out.size // BLOCK), BLOCK](p.x, p.w, p.bias, p.out, p.relu, *geometry)
        return p.out

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
        p = convolution_layer.problem_of(x, w, bias, stride, padding, dilation, groups, relu, None, 0)
        a = p.layer
        geometry = a.stride, a.padding, a.dilation, a.groups
        kernel[a.n * a.k * a.p, SIDE](p.x, p.w, p.bias, p.out, p.relu, *geometry)
        return p.out

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
