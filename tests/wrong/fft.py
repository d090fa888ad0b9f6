"""Wrong transforms, and wrong answers to the exercises of the chapter on the FFT."""

import numpy as np

from pmpp import cuda
from pmpp.fft_parts import roots, scaled
from pmpp.lab import device
from wrong import WrongRung

POINTS = 1024  # the longest line here: a block does one, two points a thread


def transformer(kernel):
    """``kernel`` as a function of x and inverse, launched with a block for each line."""

    def transform(x, inverse=False):
        x = device.to_device(x)
        out = device.empty(x.shape, np.complex64)
        n = x.shape[-1]
        if n == 1:
            out.copy_to_device(x)
        elif x.size:
            factor = np.float32(1 / n if inverse else 1)
            kernel[x.size // n, n // 2](x.reshape(-1), out.reshape(-1), roots(n, inverse), n, factor)
        return out

    transform.__name__ = kernel.py_func.__name__
    return transform


@cuda.jit
def no_barrier_after_writing(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first, s = cuda.threadIdx.x, cuda.blockIdx.x * n, 1
    a, b = x[first + t], x[first + t + n // 2]
    while s < n:
        j = t % s
        b = b * roots[j * (n // (2 * s))]
        cuda.syncthreads()
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        a, b = points[t], points[t + n // 2]
        s *= 2
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(b, scale, scale)


@cuda.jit
def no_barrier_after_reading(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first, s = cuda.threadIdx.x, cuda.blockIdx.x * n, 1
    a, b = x[first + t], x[first + t + n // 2]
    while s < n:
        j = t % s
        b = b * roots[j * (n // (2 * s))]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + n // 2]
        s *= 2
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(b, scale, scale)


@cuda.jit(device=True)
def stages(x, first, roots, n, t, points, wrong_root, in_place):
    s, a, b = 1, x[first + t], x[first + t + n // 2]
    while s < n:
        j = t % s
        b = b * roots[j * (1 if wrong_root else n // (2 * s))]
        place = t if in_place else 2 * t - j
        apart = n // 2 if in_place else s
        cuda.syncthreads()
        points[place], points[place + apart] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + n // 2]
        s *= 2
    return a, b


@cuda.jit
def roots_of_the_last_stage(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * n
    a, b = stages(x, first, roots, n, t, points, True, False)
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(b, scale, scale)


@cuda.jit
def results_where_the_points_were(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * n
    a, b = stages(x, first, roots, n, t, points, False, True)
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(b, scale, scale)


@cuda.jit
def inverse_without_its_factor(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * n
    a, b = stages(x, first, roots, n, t, points, False, False)
    out[first + t], out[first + t + n // 2] = a, b


@cuda.jit
def sums_for_differences(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first = cuda.threadIdx.x, cuda.blockIdx.x * n
    a, b = stages(x, first, roots, n, t, points, False, False)
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(a, scale, scale)


@cuda.jit
def one_line_too_far(x, out, roots, n, scale):
    points = cuda.shared.array(POINTS, np.complex64)
    t, first = cuda.threadIdx.x, (cuda.blockIdx.x + 1) * n
    a, b = stages(x, first, roots, n, t, points, False, False)
    out[first + t], out[first + t + n // 2] = scaled(a, scale, scale), scaled(b, scale, scale)


RUNGS = [
    WrongRung(transformer(no_barrier_after_writing), "race"),
    WrongRung(transformer(no_barrier_after_reading), "race"),
    WrongRung(transformer(roots_of_the_last_stage), "wrong result"),
    WrongRung(transformer(results_where_the_points_were), "wrong result"),
    WrongRung(transformer(inverse_without_its_factor), "wrong result"),
    WrongRung(transformer(sums_for_differences), "wrong result"),
    WrongRung(transformer(one_line_too_far), "out of bounds"),
]
ANSWERS: list = []
