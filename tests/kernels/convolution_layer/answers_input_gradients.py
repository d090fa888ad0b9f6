"""More answers to the exercise on the gradient by the input: right in another way, or wrong."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.input_gradients_exercises import ZERO
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ROW = "input_gradients/row"


@right(ROW)
@cuda.jit
def row_by_outputs(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        n, place = i // dx.shape[1], i % dx.shape[1] + padding
        first = max(0, (place - w.size + stride) // stride)  # the first output whose last tap reaches so far
        total = ZERO
        for q in range(first, min(place // stride + 1, dy.shape[1])):
            total += w[place - q * stride] * dy[n, q]
        dx[n, i % dx.shape[1]] = total


@right(ROW)
@cuda.jit
def row_by_its_class(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i >= dx.size:
        return
    n, column = i // dx.shape[1], i % dx.shape[1]
    s, q = (column + padding) % stride, (column + padding) // stride
    total = ZERO
    while s < w.size and q >= 0:
        if q < dy.shape[1]:
            total += dy[n, q] * w[s]
        s, q = s + stride, q - 1
    dx[n, column] = total


def row(sign=1, whole=True, pads=True, below=True, beyond=True):
    @cuda.jit
    def kernel(dy, w, stride, padding, dx):
        i = cuda.grid(1)
        if i < dx.size:
            n, column = i // dx.shape[1], i % dx.shape[1]
            total = ZERO
            for s in range(w.size):
                right = column + (padding if pads else 0) - (s if sign > 0 else w.size - 1 - s)
                meets = (not whole or right % stride == 0) and (not below or right >= 0)
                if meets and (not beyond or right // stride < dy.shape[1]):
                    total += dy[n, right // stride] * w[s]
            dx[n, column] = total

    return kernel


def add(name, mistake, said="", **parts):
    kernel = row(**parts)
    kernel.__name__ = name
    wrong(ROW, mistake, said)(kernel)


add("row_not_turned", "not turned", "changes on the way back", sign=-1)
add("row_rounded_down", "rounded down", "no q is whole", whole=False)
add("row_without_padding", "padding forgotten", pads=False)
add("row_beyond_the_outputs", "missing guard", beyond=False)


@wrong(ROW, "missing atomic", "Gather")
@cuda.jit
def row_scattered(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        dx[i // dx.shape[1], i % dx.shape[1]] = 0
    if i < dy.size:
        n, q = i // dy.shape[1], i % dy.shape[1]
        for s in range(w.size):
            column = q * stride + s - padding
            if 0 <= column < dx.shape[1]:
                dx[n, column] += dy[n, q] * w[s]


@wrong(ROW, "wrong result")
@cuda.jit
def row_of_the_first_tap(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        right = i % dx.shape[1] + padding
        inside = right % stride == 0 and right // stride < dy.shape[1]
        dx[i // dx.shape[1], i % dx.shape[1]] = (
            dy[i // dx.shape[1], right // stride] * w[0] if inside else np.float32(0)
        )


def scattered(barrier, name):
    """Each output adds its products to the elements that it was made of, atomically, after a 0."""

    @cuda.jit
    def kernel(dy, w, stride, padding, dx):
        i = cuda.grid(1)
        if i < dx.size:
            dx[i // dx.shape[1], i % dx.shape[1]] = 0
        if barrier:
            cuda.syncthreads()
        if i < dy.size:
            n, q = i // dy.shape[1], i % dy.shape[1]
            for s in range(w.size):
                column = q * stride + s - padding
                if 0 <= column < dx.shape[1]:
                    cuda.atomic.add(dx, (n, column), dy[n, q] * w[s])

    kernel.__name__ = name
    return kernel


wrong(ROW, "missing barrier", "Gather")(scattered(False, "row_scattered_without_a_barrier"))
wrong(ROW, "race between blocks", "Gather")(scattered(True, "row_scattered_over_zeros_of_other_blocks"))


@wrong(ROW, "not turned", "Padding and s change sign")
@cuda.jit
def row_by_the_way_there(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        n, column = i // dx.shape[1], i % dx.shape[1]
        total = ZERO
        for s in range(w.size):
            place = column - padding + s
            if place >= 0 and place % stride == 0 and place // stride < dy.shape[1]:
                total += dy[n, place // stride] * w[s]
        dx[n, column] = total
