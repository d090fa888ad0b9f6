"""Wrong columns: convolutions by a right matrix product of them."""

import numpy as np

from pmpp import convolution_layer, cuda
from pmpp.convolution_layer import finish
from pmpp.lab import device
from wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


@cuda.jit
def product_kernel(w, columns, bias, out, relu, groups):
    """out[n, k] = the row of w times the columns of its image and group, a thread an output."""
    i = cuda.grid(1)
    if i < out.size:
        pixels = out.shape[2] * out.shape[3]
        pixel, k, n = i % pixels, i // pixels % out.shape[1], i // pixels // out.shape[1]
        terms = w.shape[1] * w.shape[2] * w.shape[3]
        first = k // (out.shape[1] // groups) * terms
        total = f0
        for t in range(terms):
            c, r, s = t // w.shape[3] // w.shape[2], t // w.shape[3] % w.shape[2], t % w.shape[3]
            total += w[k, c, r, s] * columns[n, first + t, pixel]
        out[n, k, pixel // out.shape[3], pixel % out.shape[3]] = finish(total, bias, k, relu)


def columns_with(name, **parts):
    """Convolution by columns, with some of their parts exchanged: a thread for each channel and pixel."""
    guard, zeros = parts.get("guard", True), parts.get("zeros", True)
    crosswise, turned = parts.get("crosswise", False), parts.get("turned", False)
    channels_last, first_image = parts.get("channels_last", False), parts.get("first_image", False)
    wrapped, few = parts.get("wrapped", False), parts.get("few", False)

    @cuda.jit
    def kernel(x, columns, stride, padding, dilation, places, taps):
        i = cuda.grid(1)
        pixels = places[0] * places[1]
        if not guard or i < x.shape[0] * x.shape[1] * pixels:
            pixel, c, n = i % pixels, i // pixels % x.shape[1], i // pixels // x.shape[1]
            p, q = pixel // places[1], pixel % places[1]
            if turned:
                p, q = pixel % places[0], pixel // places[0]
            for r in range(taps[0]):
                for s in range(taps[1] - 1 if few else taps[1]):
                    row = p * stride[0] + r * dilation[0] - padding[0]
                    column = q * stride[1] + s * dilation[1] - padding[1]
                    at = r * taps[1] + s
                    if crosswise:
                        at = s * taps[0] + r
                    if channels_last:
                        at = at * x.shape[1] + c
                    else:
                        at = c * taps[0] * taps[1] + at
                    if wrapped:
                        row, column = (row + x.shape[2]) % x.shape[2], (column + x.shape[3]) % x.shape[3]
                    if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                        columns[n, at, pixel] = x[0 if first_image else n, c, row, column]
                    elif zeros:
                        columns[n, at, pixel] = f0

    def convolve(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        p = convolution_layer.problem_of(x, w, bias, stride, padding, dilation, groups, relu, None, 0)
        a = p.layer
        columns = device.to_device(np.full((a.n, a.groups * a.terms, a.p * a.q), np.nan, np.float32))
        blocks = -(-a.n * a.c * a.p * a.q // BLOCK)
        kernel[blocks, BLOCK](p.x, columns, a.stride, a.padding, a.dilation, (a.p, a.q), (a.r, a.s))
        product_kernel[-(-p.out.size // BLOCK), BLOCK](p.w, columns, p.bias, p.out, p.relu, a.groups)
        return p.out

    convolve.__name__ = name
    return convolve


right = columns_with("right")
RUNGS = (
    WrongRung(columns_with("no_guard", guard=False), "out of bounds"),
    WrongRung(columns_with("nothing_around_the_image", zeros=False), "wrong result"),
    WrongRung(columns_with("rows_for_columns_of_the_kernel", crosswise=True), "wrong result"),
    WrongRung(columns_with("rows_for_columns_of_the_output", turned=True), "wrong result"),
    WrongRung(columns_with("taps_before_channels", channels_last=True), "wrong result"),
    WrongRung(columns_with("first_image_for_all", first_image=True), "wrong result"),
    WrongRung(columns_with("wrapped_around", wrapped=True), "wrong result"),
    WrongRung(columns_with("last_tap_left_out", few=True), "wrong result"),
)
