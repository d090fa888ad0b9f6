"""More answers to the exercises of chapter 58: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
STAGE, LINE, TWO = "fft/stage", "fft/line", "fft/two"
POINTS = 1024


# -- stage


@right(STAGE)
@cuda.jit
def stage_in_real_numbers(x, roots, s, out):
    t, half = cuda.grid(1), x.size // 2
    if t >= half:
        return
    group, j = t // s, t % s
    root, a, b = roots[j * half // s], x[t], x[t + half]
    real, imaginary = b.real * root.real - b.imag * root.imag, b.real * root.imag + b.imag * root.real
    out[2 * s * group + j] = complex(a.real + real, a.imag + imaginary)
    out[2 * s * group + j + s] = complex(a.real - real, a.imag - imaginary)


def stage(conjugated=False, sum_only=False, places=True, name="stage"):
    """The answer to stage with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, roots, s, out):
        t, half = cuda.grid(1), x.size // 2
        if t < half:
            j = t % s
            root = roots[j * (half // s)].conjugate() if conjugated else roots[j * (half // s)]
            turned = x[t + half] * root
            first, second = (2 * t - j, 2 * t - j + s) if places else (2 * t, 2 * t + 1)
            out[first] = x[t] + turned
            out[second] = x[t] - (x[t + half] if sum_only else turned)

    kernel.py_func.__name__ = name
    return kernel


wrong(STAGE, "turned the other way", "the sign of the angle")(stage(conjugated=True, name="stage_turned_the_other_way"))
wrong(STAGE, "difference not turned")(stage(sum_only=True, name="stage_turns_only_the_sum"))
wrong(STAGE, "wrong result", "n = 8, s = 4")(stage(places=False, name="stage_into_neighbours"))


# -- line


@right(LINE)
@cuda.jit
def line_in_place_from_reversed_bits(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    for k in range(t, n, half):
        place, bit = 0, 1
        while bit < n:
            place = 2 * place + (k // bit) % 2
            bit *= 2
        points[place] = x[cuda.blockIdx.x, k]
    while s < n:
        cuda.syncthreads()
        j = t % s
        a, b = points[2 * t - j], points[2 * t - j + s] * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        s *= 2
    cuda.syncthreads()
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = points[t], points[t + half]


@wrong(LINE, "wrong result", "3 of 8 points")
@cuda.jit
def line_by_the_first_roots(x, roots, out):
    points = cuda.shared.array(POINTS, np.complex64)
    t, n, half, s = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x, 1
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    while s < n:
        j = t % s
        b = b * roots[j]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


@wrong(LINE, "too much work", "far less than the sum of the definition")
@cuda.jit
def line_by_the_definition(x, roots, out):
    points, turns = cuda.shared.array(POINTS, np.complex64), cuda.shared.array(POINTS, np.complex64)
    line, t, n = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    for i in range(t, n, cuda.blockDim.x):
        points[i], turns[i] = x[line, i], roots[i]
    cuda.syncthreads()
    for k in range(t, n, cuda.blockDim.x):
        total = np.complex64(0)
        for i in range(n):
            total += points[i] * turns[i * k % n]
        out[line, k] = total


# -- two


def two(place, exchanged=False, name="two"):
    """The answer to two, with the mirror image of element k of a line at ``place(k, n)``."""

    @cuda.jit
    def kernel(z, a, b):
        i = cuda.grid(1)
        if i < z.size:
            line, k = divmod(i, z.shape[1])
            p, q = z[line, k], z[line, place(k, z.shape[1])].conjugate()
            plus, minus = (p + q) * np.float32(0.5), (p - q) * np.complex64(-0.5j)
            a[line, k] = minus if exchanged else plus
            b[line, k] = plus if exchanged else minus

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def modulo(k, n):
    return (n - k) % n


@cuda.jit(device=True)
def from_the_end(k, n):
    return -k


@cuda.jit(device=True)
def turned_round(k, n):
    return n - 1 - k


right(TWO)(two(from_the_end, name="two_counted_from_the_end"))
wrong(TWO, "exchanged", "belongs into a")(two(modulo, exchanged=True, name="two_exchanged"))
wrong(TWO, "wrong result", "1 of 8 points")(two(turned_round, name="two_turned_round"))


@wrong(TWO, "wrong result", "It is right with 1 of 1 points, 1 of 8 points")  # and not only right for one block
@cuda.jit
def two_with_the_mirror_image_of_all_lines(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n, mirror = z.shape[1], (z.size - i) % z.size
        p, q = z[i // n, i % n], z[mirror // n, mirror % n].conjugate()
        a[i // n, i % n] = (p + q) * np.float32(0.5)
        b[i // n, i % n] = (p - q) * np.complex64(-0.5j)


@wrong(STAGE, "deliberate float64", r"line \d+ asks for complex128; .* write np.complex64")
@cuda.jit
def stage_in_complex128(x, roots, s, out):
    t, half = cuda.grid(1), x.size // 2
    if t < half:
        j = t % s
        turned = np.complex128(x[t + half]) * roots[j * (half // s)]
        out[2 * t - j], out[2 * t - j + s] = x[t] + turned, x[t] - turned


@wrong(TWO, "accidental float64", "A complex64 with a Python number is complex128")
@cuda.jit
def two_divided_by_an_integer(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        line, k = i // z.shape[1], i % z.shape[1]
        mirror = z[line, (z.shape[1] - k) % z.shape[1]].conjugate()
        a[line, k] = (z[line, k] + mirror) / 2
        b[line, k] = (z[line, k] - mirror) / 2j
