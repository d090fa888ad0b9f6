"""Wrong transforms, and wrong answers to the exercises of the chapter on the FFT."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.butterflies import roots, scaled
from pmpp.runtime import device
from tests.support.wrong import WrongAnswer, WrongRung

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
    a, _ = stages(x, first, roots, n, t, points, False, False)
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


# ------------------------------------------------------------------------------------------------------------- answers


@cuda.jit
def stage_without_a_guard(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    j = t % s
    a, b = x[t], x[t + half] * roots[j * (half // s)]
    out[2 * t - j], out[2 * t - j + s] = a + b, a - b


@cuda.jit
def stage_without_roots(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    if t < half:
        j = t % s
        out[2 * t - j], out[2 * t - j + s] = x[t] + x[t + half], x[t] - x[t + half]


@cuda.jit
def stage_in_place(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    if t < half:
        b = x[t + half] * roots[t % s * (half // s)]
        out[t], out[t + half] = x[t] + b, x[t] - b


def stage_with(name, turned):
    @cuda.jit
    def stage(x, roots, s, out):
        t = cuda.grid(1)
        half = x.size // 2
        if t < half:
            j = t % s
            out[2 * t - j], out[2 * t - j + s] = turned(x[t], x[t + half], roots, j, s, half)

    stage.py_func.__name__ = name
    return stage


@cuda.jit(device=True)
def by_root_j(a, b, roots, j, s, half):
    return a + b * roots[j], a - b * roots[j]


@cuda.jit(device=True)
def by_twice_the_angle(a, b, roots, j, s, half):
    return a + b * roots[j * (2 * half // s)], a - b * roots[j * (2 * half // s)]


@cuda.jit(device=True)
def only_the_difference(a, b, roots, j, s, half):
    return a + b, (a - b) * roots[j * (half // s)]


@cuda.jit
def stage_of_every_second_point(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    if t < half:
        j = t % s
        a, b = x[2 * t], x[2 * t + 1] * roots[j * (half // s)]
        out[2 * t - j], out[2 * t - j + s] = a + b, a - b


@cuda.jit
def line_without_its_first_barrier(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@cuda.jit
def line_backwards(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)].conjugate()
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@cuda.jit
def line_with_reversed_bits(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, half = cuda.threadIdx.x, cuda.blockDim.x
    points[t], points[t + half] = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    s = half
    while s > 0:  # decimation in frequency, in place: what comes first ends where its bits are reversed
        cuda.syncthreads()
        j = t % s
        a, b = points[2 * t - j], points[2 * t - j + s]
        cuda.syncthreads()
        points[2 * t - j], points[2 * t - j + s] = a + b, (a - b) * roots[j * (half // s)]
        s //= 2
    cuda.syncthreads()
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = points[t], points[t + half]


@cuda.jit
def line_in_place(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, half, s = cuda.threadIdx.x, cuda.blockDim.x, 1
    points[t], points[t + half] = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while s <= half:  # the textbook's stages, and nobody has put the input in the order of reversed bits
        cuda.syncthreads()
        j = t % s
        a, b = points[2 * t - j], points[2 * t - j + s] * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        s *= 2
    cuda.syncthreads()
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = points[t], points[t + half]


@cuda.jit
def line_without_its_last_stage(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while 2 * s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@cuda.jit
def line_in_device_memory(x, roots, out):
    row, t, n, half, s = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[row, t], x[row, t + half]
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        out[row, 2 * t - j], out[row, 2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = out[row, t], out[row, t + half]
        cuda.syncthreads()
        s *= 2


@cuda.jit
def two_of_real_and_imaginary_parts(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n = z.shape[1]
        a[i // n, i % n] = complex(z[i // n, i % n].real, np.float32(0))
        b[i // n, i % n] = complex(z[i // n, i % n].imag, np.float32(0))


@cuda.jit
def two_without_conjugation(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n = z.shape[1]
        line, k, half = i // n, i % n, np.float32(0.5)
        mirror = z[line, (n - k) % n]
        p, q = z[line, k] + mirror, z[line, k] - mirror
        a[line, k] = complex(half * p.real, half * p.imag)
        b[line, k] = complex(half * q.imag, -half * q.real)


@cuda.jit
def two_with_a_mirror_image_beyond_the_end(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n = z.shape[1]
        line, k, half = i // n, i % n, np.float32(0.5)
        mirror = z[line, n - k].conjugate()
        p, q = z[line, k] + mirror, z[line, k] - mirror
        a[line, k] = complex(half * p.real, half * p.imag)
        b[line, k] = complex(half * q.imag, -half * q.real)


@cuda.jit
def two_without_a_guard(z, a, b):
    i = cuda.grid(1)
    n = z.shape[1]
    line, k, half = i // n, i % n, np.float32(0.5)
    mirror = z[line, (n - k) % n].conjugate()
    p, q = z[line, k] + mirror, z[line, k] - mirror
    a[line, k] = complex(half * p.real, half * p.imag)
    b[line, k] = complex(half * q.imag, -half * q.real)


@cuda.jit
def stage_with_difference_before_sum(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    if t < half:
        j = t % s
        a, b = x[t], x[t + half] * roots[j * (half // s)]
        out[2 * t - j], out[2 * t - j + s] = a - b, a + b


@cuda.jit
def line_of_the_first_block(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[0, t], x[0, t + half]
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@cuda.jit
def line_with_a_barrier_for_some(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        if t < s:
            cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@cuda.jit
def two_without_halves(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n = z.shape[1]
        line, k = i // n, i % n
        mirror = z[line, (n - k) % n].conjugate()
        p, q = z[line, k] + mirror, z[line, k] - mirror
        a[line, k], b[line, k] = p, complex(q.imag, -q.real)


def two_with(name, of_the_difference):
    @cuda.jit
    def two(z, a, b):
        i = cuda.grid(1)
        if i < z.size:
            n = z.shape[1]
            line, k, half = i // n, i % n, np.float32(0.5)
            mirror = z[line, (n - k) % n].conjugate()
            p, q = z[line, k] + mirror, z[line, k] - mirror
            a[line, k] = complex(half * p.real, half * p.imag)
            b[line, k] = of_the_difference(half * q.real, half * q.imag)

    two.py_func.__name__ = name
    return two


@cuda.jit(device=True)
def as_it_is(real, imag):
    return complex(real, imag)


@cuda.jit(device=True)
def times_i(real, imag):
    return complex(-imag, real)


ANSWERS = [
    WrongAnswer("fft/stage", stage_with("stage_by_root_j", by_root_j), "root number j"),
    WrongAnswer("fft/stage", stage_with("stage_by_twice_the_angle", by_twice_the_angle), "twice the angle"),
    WrongAnswer("fft/stage", stage_with("stage_turns_only_the_difference", only_the_difference), "sum not turned"),
    WrongAnswer("fft/line", line_in_place, "input not reversed"),
    WrongAnswer("fft/line", line_without_its_last_stage, "last stage missing"),
    WrongAnswer("fft/line", line_in_device_memory, "too much traffic", "keep the stages in shared memory"),
    WrongAnswer("fft/two", two_with("two_not_divided_by_i", as_it_is), "not divided by i"),
    WrongAnswer("fft/two", two_with("two_times_i", times_i), "times i"),
    WrongAnswer("fft/stage", stage_without_a_guard, "missing guard"),
    WrongAnswer("fft/stage", stage_without_roots, "not turned"),
    WrongAnswer("fft/stage", stage_in_place, "in place"),
    WrongAnswer("fft/stage", stage_of_every_second_point, "wrong result"),
    WrongAnswer("fft/stage", stage_with_difference_before_sum, "wrong result"),
    WrongAnswer("fft/line", line_without_its_first_barrier, "missing barrier"),
    WrongAnswer("fft/line", line_backwards, "backwards"),
    WrongAnswer("fft/line", line_with_reversed_bits, "bits reversed"),
    WrongAnswer("fft/line", line_of_the_first_block, "only right for one block"),
    WrongAnswer("fft/line", line_with_a_barrier_for_some, "divergent barrier"),
    WrongAnswer("fft/two", two_without_halves, "half forgotten"),
    WrongAnswer("fft/two", two_of_real_and_imaginary_parts, "real and imaginary parts"),
    WrongAnswer("fft/two", two_without_conjugation, "not conjugated"),
    WrongAnswer("fft/two", two_with_a_mirror_image_beyond_the_end, "index out of bounds"),
    WrongAnswer("fft/two", two_without_a_guard, "missing guard"),
]
