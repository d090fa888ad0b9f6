"""Wrong answers to the exercises of notebooks/20_memory_or_compute.ipynb."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.memory_or_compute.exercises import moments_start
from tests.support.wrong import WrongAnswer


@cuda.jit
def powers_one_by_one(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        total = c[0]
        power = value
        for k in range(1, c.size):
            total += c[k] * power
            power *= value
        out[i] = total


@cuda.jit
def loads_each_time(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        total = c[c.size - 1]
        for k in range(c.size - 2, -1, -1):
            total = total * x[i] + c[k]
        out[i] = total


@cuda.jit
def horner_in_float64(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        total = 0.0
        for k in range(c.size - 1, -1, -1):
            total = total * value + c[k]
        out[i] = total


@cuda.jit
def coefficients_backwards(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        total = c[0]
        for k in range(1, c.size):
            total = total * value + c[k]
        out[i] = total


@cuda.jit
def forgets_the_constant(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        total = c[c.size - 1]
        for k in range(c.size - 2, 0, -1):
            total = total * value + c[k]
        out[i] = total * value


@cuda.jit
def horner_no_guard(x, c, out):
    i = cuda.grid(1)
    value = x[i]
    total = c[c.size - 1]
    for k in range(c.size - 2, -1, -1):
        total = total * value + c[k]
    out[i] = total


@cuda.jit
def reads_back(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value
        cube[i] = square[i] * value


@cuda.jit
def cube_in_float64(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value
        cube[i] = 1.0 * value * value * value


@cuda.jit
def square_only(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value


@cuda.jit
def fourth_power(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value
        cube[i] = value * value * value * value


@cuda.jit
def one_too_few(x, square, cube):
    i = cuda.grid(1)
    if i < x.size - 1:
        value = x[i]
        square[i] = value * value
        cube[i] = value * value * value


@cuda.jit
def strided_pairs(x, square, cube):
    first = np.int64(2) * cuda.grid(1)
    for i in range(first, first + 2):
        if i < x.size:
            value = x[i]
            square[i] = value * value
            cube[i] = value * value * value


@cuda.jit
def slope_after_the_value(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], c[0], np.float32(0)
        for k in range(1, c.size):
            total = total * at + c[k]
            rise = rise * at + total
        value[i], slope[i] = total, rise


@cuda.jit
def slope_in_a_second_loop(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], c[0], np.float32(0)
        for k in range(1, c.size):
            total = total * at + c[k]
        again = c[0]
        for k in range(1, c.size):
            rise = rise * at + again
            again = again * at + c[k]
        value[i], slope[i] = total, rise


@cuda.jit
def slope_by_its_coefficients(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], np.float32(0), np.float32(0)
        for k in range(c.size):
            coefficient, power = c[k], c.size - 1 - k
            total = total * at + coefficient
            if power > 0:
                rise = rise * at + np.float32(power) * coefficient
        value[i], slope[i] = total, rise


@cuda.jit
def slope_in_float64(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], c[0], 0.0
        for k in range(1, c.size):
            rise = rise * at + total
            total = total * at + c[k]
        value[i], slope[i] = total, rise


@cuda.jit
def slope_without_guard(x, c, value, slope):
    i = cuda.grid(1)
    at, total, rise = x[i], c[0], np.float32(0)
    for k in range(1, c.size):
        rise = rise * at + total
        total = total * at + c[k]
    value[i], slope[i] = total, rise


@cuda.jit
def slope_left_out(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total = x[i], c[0]
        for k in range(1, c.size):
            total = total * at + c[k]
        value[i] = total


def powers_by_the_operator(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for k in range(c.size):
            total += c[k] * x[i] ** k
        out[i] = total


@cuda.jit
def sum_in_out(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        out[i] = c[c.size - 1]
        for k in range(c.size - 2, -1, -1):
            out[i] = out[i] * value + c[k]


@cuda.jit
def for_three_coefficients(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = c[0] + x[i] * (c[1] + x[i] * c[2])


@cuda.jit
def every_other_thread(x, square, cube):
    first = cuda.grid(1)
    if first % 2 == 0:
        for i in range(first, min(first + 2, x.size)):
            value = x[i]
            square[i] = value * value
            cube[i] = value * value * value


@cuda.jit
def counted_from_the_end(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value, total = x[i], c[-1]
        for k in range(2, c.size + 1):
            total = total * value + c[-k]
        out[i] = total


@cuda.jit
def coefficients_in_shared_memory(x, c, out):
    mine, i = cuda.shared.array(32, np.float32), cuda.grid(1)
    if cuda.threadIdx.x < c.size:
        mine[cuda.threadIdx.x] = c[cuda.threadIdx.x]
    cuda.syncthreads()
    if i < out.size:
        value, total = x[i], np.float32(0)
        for k in range(c.size - 1, -1, -1):
            total = mine[k] + value * total
        out[i] = total


@cuda.jit
def by_constant_powers(x, square, cube):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value = x[i]
        square[i], cube[i] = value**2, value**3


@cuda.jit
def cube_before_square(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i], cube[i] = value * value * value, value * value


@cuda.jit
def slope_before_value(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], np.float32(0), np.float32(0)
        for k in range(c.size):
            rise = rise * at + total
            total = total * at + c[k]
        value[i], slope[i] = rise, total


POLYNOMIAL, MOMENTS = "memory_or_compute/polynomial", "memory_or_compute/moments"
DERIVATIVE = "memory_or_compute/derivative"

ANSWERS = (
    WrongAnswer(MOMENTS, cube_before_square, "outputs exchanged", "square holds what belongs into cube"),
    WrongAnswer(DERIVATIVE, slope_before_value, "outputs exchanged", "value holds what belongs into slope"),
    WrongAnswer(POLYNOMIAL, powers_one_by_one, "too much work", "Begin with the last coefficient"),
    WrongAnswer(POLYNOMIAL, loads_each_time, "too much traffic", "for x alone .* Keep x.i. and the sum"),
    WrongAnswer(POLYNOMIAL, horner_in_float64, "accidental float64"),
    WrongAnswer(POLYNOMIAL, coefficients_backwards, "wrong result"),
    WrongAnswer(POLYNOMIAL, forgets_the_constant, "wrong result"),
    WrongAnswer(POLYNOMIAL, horner_no_guard, "missing guard"),
    WrongAnswer(MOMENTS, moments_start, "too much traffic", "need not come from memory again"),
    WrongAnswer(MOMENTS, reads_back, "too much traffic"),
    WrongAnswer(MOMENTS, cube_in_float64, "accidental float64"),
    WrongAnswer(MOMENTS, square_only, "output not written", "never uses cube"),
    WrongAnswer(MOMENTS, fourth_power, "wrong result"),
    WrongAnswer(MOMENTS, one_too_few, "output not written"),
    WrongAnswer(MOMENTS, strided_pairs, "uncoalesced", "Let neighbouring threads"),
    WrongAnswer(DERIVATIVE, slope_after_the_value, "updated too early", "the value from before the step"),
    WrongAnswer(DERIVATIVE, slope_in_a_second_loop, "too much work", "Two multiply-adds a coefficient"),
    WrongAnswer(DERIVATIVE, slope_by_its_coefficients, "too much work"),
    WrongAnswer(DERIVATIVE, slope_in_float64, "accidental float64"),
    WrongAnswer(DERIVATIVE, slope_without_guard, "missing guard"),
    WrongAnswer(DERIVATIVE, slope_left_out, "output not written", "never uses slope"),
    WrongAnswer(POLYNOMIAL, powers_by_the_operator, "too much work", "powers or the like where 0 will do"),
    WrongAnswer(POLYNOMIAL, sum_in_out, "too much traffic", "for out alone .* the sum in variables"),
    WrongAnswer(POLYNOMIAL, for_three_coefficients, "index out of bounds", r"reads c\[1\], .* last element is c\[0\]"),
    WrongAnswer(MOMENTS, every_other_thread, "too much traffic", "Let neighbouring threads"),
)

ALSO_RIGHT = (
    (POLYNOMIAL, counted_from_the_end),
    (POLYNOMIAL, coefficients_in_shared_memory),
    (MOMENTS, by_constant_powers),
)
