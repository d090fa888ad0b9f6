"""Answers to the exercises of chapter 60: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
THIRDS, DIGITS, CHIRP = "any_length/thirds", "any_length/digits", "any_length/chirp"


# -- thirds


@right(THIRDS)
@cuda.jit
def thirds_by_sums_and_differences(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t >= m:
        return
    a, s, d = x[t], x[t + m] + x[t + 2 * m], x[t + m] - x[t + 2 * m]
    half, sine = np.float32(0.5), np.float32(0.75**0.5)
    even = complex(a.real - half * s.real, a.imag - half * s.imag)
    odd = complex(sine * d.imag, -sine * d.real)
    out[t], out[t + m], out[t + 2 * m] = a + s, (even + odd) * roots[t], (even - odd) * roots[2 * t]


def thirds(first=1, second=2, turn=1, twice=2, guard=True, name="thirds"):
    """The answer to thirds with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, roots, out):
        t, m = cuda.grid(1), x.size // 3
        if t < m or not guard:
            a, b, c = x[t], x[t + m], x[t + 2 * m]
            w, w2 = roots[first * m], roots[second * m]
            out[t] = a + b + c
            out[t + m] = (a + b * w + c * w2) * roots[turn * t]
            out[t + 2 * m] = (a + b * w2 + c * w) * roots[twice * t]

    kernel.py_func.__name__ = name
    return kernel


wrong(THIRDS, "turned the other way", r"exp\(\+2 pi i / 3\)")(thirds(2, 1, name="thirds_turned_the_other_way"))
wrong(THIRDS, "not turned")(thirds(turn=0, twice=0, name="thirds_not_turned"))
wrong(THIRDS, "one turn for both", "twice the angle")(thirds(twice=1, name="thirds_with_one_turn"))
wrong(THIRDS, "missing guard")(thirds(guard=False, name="thirds_without_a_guard"))


@wrong(THIRDS, "wrong result")
@cuda.jit
def thirds_of_a_power_too_high(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m], x[t + 2 * m]
        w, w2 = roots[m], roots[2 * m]
        out[t] = a + b + c
        out[t + m] = (a + b * w + c * w2) * roots[t]
        out[t + 2 * m] = (a + b * w2 + c) * roots[2 * t]  # w^4 is w, and not 1


@wrong(THIRDS, "accidental float64")
@cuda.jit
def thirds_with_a_python_number(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, s, d = x[t], x[t + m] + x[t + 2 * m], x[t + m] - x[t + 2 * m]
        even, odd = a - s * 0.5, d * (-(0.75**0.5) * 1j)
        out[t], out[t + m], out[t + 2 * m] = a + s, (even + odd) * roots[t], (even - odd) * roots[2 * t]


@wrong(THIRDS, "neighbours", "no neighbours")
@cuda.jit
def thirds_of_neighbours(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[3 * t], x[3 * t + 1], x[3 * t + 2]
        w, w2 = roots[m], roots[2 * m]
        out[3 * t] = a + b + c
        out[3 * t + 1] = (a + b * w + c * w2) * roots[t]
        out[3 * t + 2] = (a + b * w2 + c * w) * roots[2 * t]


@wrong(THIRDS, "turned first", "not the points")
@cuda.jit
def thirds_turned_first(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m] * roots[t], x[t + 2 * m] * roots[2 * t]
        w, w2 = roots[m], roots[2 * m]
        out[t], out[t + m], out[t + 2 * m] = a + b + c, a + b * w + c * w2, a + b * w2 + c * w


@wrong(THIRDS, "turned back")
@cuda.jit
def thirds_turned_back(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m], x[t + 2 * m]
        w, w2, once, twice = roots[m], roots[2 * m], roots[t], roots[2 * t]
        out[t] = a + b + c
        out[t + m] = (a + b * w + c * w2) * complex(once.real, -once.imag)
        out[t + 2 * m] = (a + b * w2 + c * w) * complex(twice.real, -twice.imag)


@wrong(THIRDS, "side by side", "m apart")
@cuda.jit
def thirds_side_by_side(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m], x[t + 2 * m]
        w, w2 = roots[m], roots[2 * m]
        out[3 * t] = a + b + c
        out[3 * t + 1] = (a + b * w + c * w2) * roots[t]
        out[3 * t + 2] = (a + b * w2 + c * w) * roots[2 * t]


@right(THIRDS)
@cuda.jit
def thirds_with_the_turns_in_the_products(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c, once, twice = x[t], x[t + m], x[t + 2 * m], roots[t], roots[2 * t]
        out[t] = a + b + c
        out[t + m] = a * once + b * roots[t + m] + c * roots[t + 2 * m]
        out[t + 2 * m] = a * twice + b * roots[(2 * t + 2 * m) % x.size] + c * roots[(2 * t + m) % x.size]


# -- digits


@right(DIGITS)
@cuda.jit
def digits_from_places(x, a, b, c, out):
    i = cuda.grid(1)
    if i < x.size:
        k3, rest = i % c, i // c
        out[rest // b + a * (rest % b) + a * b * k3] = x[i]


def digits(place, guard=True, name="digits"):
    """The answer to digits with result i taken from ``place(i, a, b, c)``."""

    @cuda.jit
    def kernel(x, a, b, c, out):
        i = cuda.grid(1)
        if i < out.size or not guard:
            out[i] = x[place(i, a, b, c)]

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def reversed_place(i, a, b, c):
    return (i % a * b + i // a % b) * c + i // (a * b)


@cuda.jit(device=True)
def same_place(i, a, b, c):
    return i


@cuda.jit(device=True)
def backwards_place(i, a, b, c):
    return i // (b * c) + a * (i // c % b) + a * b * (i % c)


@cuda.jit(device=True)
def place_with_one_base(i, a, b, c):
    return (i % a * b + i // a % a) * c + i // (a * b)


@cuda.jit(device=True)
def place_of_two_in_one(i, a, b, c):
    return i % (a * b) * c + i // (a * b)


@cuda.jit(device=True)
def place_of_two_only(i, a, b, c):
    return (i // c % a * b + i // (a * c)) * c + i % c


@cuda.jit(device=True)
def place_of_the_first_only(i, a, b, c):
    return i % a * (b * c) + i // a


wrong(DIGITS, "one digit only")(digits(place_of_the_first_only, name="digits_first_only"))
wrong(DIGITS, "two digits in one")(digits(place_of_two_in_one, name="digits_two_in_one"))
wrong(DIGITS, "two digits only")(digits(place_of_two_only, name="digits_two_only"))
wrong(DIGITS, "not moved")(digits(same_place, name="digits_not_moved"))
wrong(DIGITS, "the other way round")(digits(backwards_place, name="digits_the_other_way_round"))
wrong(DIGITS, "missing guard")(digits(reversed_place, guard=False, name="digits_without_a_guard"))
wrong(DIGITS, "index out of bounds")(digits(place_with_one_base, name="digits_with_one_base"))


# -- chirp


@right(CHIRP)
@cuda.jit
def chirp_by_lines(x, turns, out):
    i = cuda.grid(1)
    line, j = divmod(i, out.shape[1])
    n = x.shape[1]
    if line < x.shape[0]:
        out[line, j] = np.complex64(0)
        if j < n:
            out[line, j] = turns[(j % (2 * n)) * j % (2 * n)] * x[line, j]


def chirp(turn, guard=True, zeros=True, name="chirp"):
    """The answer to chirp with point j turned by root number ``turn(j, n)``."""

    @cuda.jit
    def kernel(x, turns, out):
        i = cuda.grid(1)
        if i < out.size or not guard:
            m, n = out.shape[1], x.shape[1]
            line, j = i // m, i % m
            if j < n:
                out[line, j] = x[line, j] * turns[turn(j, n)]
            elif zeros:
                out[line, j] = np.complex64(0)

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def square(j, n):
    return j * j % (2 * n)


@cuda.jit(device=True)
def square_modulo_n(j, n):
    return j * j % n


@cuda.jit(device=True)
def no_square(j, n):
    return j


@cuda.jit(device=True)
def twice_the_square(j, n):
    return 2 * j * j % (2 * n)


@cuda.jit(device=True)
def the_other_way(j, n):
    return -(j * j) % (2 * n)


@cuda.jit(device=True)
def none(j, n):
    return 0


wrong(CHIRP, "half a turn")(chirp(square_modulo_n, name="chirp_modulo_n"))
wrong(CHIRP, "j without its square")(chirp(no_square, name="chirp_without_a_square"))
wrong(CHIRP, "twice the angle")(chirp(twice_the_square, name="chirp_of_twice_the_angle"))
wrong(CHIRP, "turned the other way")(chirp(the_other_way, name="chirp_turned_the_other_way"))
wrong(CHIRP, "not turned")(chirp(none, name="chirp_not_turned"))
wrong(CHIRP, "missing guard")(chirp(square, guard=False, name="chirp_without_a_guard"))
wrong(CHIRP, "output not written")(chirp(square, zeros=False, name="chirp_without_zeros"))


@wrong(CHIRP, "repeated", "not the line once more")
@cuda.jit
def chirp_repeated(x, turns, out):
    i = cuda.grid(1)
    if i < out.size:
        n = x.shape[1]
        line, j = i // out.shape[1], i % out.shape[1] % n
        out[line, i % out.shape[1]] = x[line, j] * turns[j * j % (2 * n)]


@wrong(CHIRP, "index out of bounds")
@cuda.jit
def chirp_beyond_its_table(x, turns, out):
    i = cuda.grid(1)
    if i < out.size:
        line, j = i // out.shape[1], i % out.shape[1]
        out[line, j] = x[line, j] * turns[j * j] if j < x.shape[1] else np.complex64(0)
