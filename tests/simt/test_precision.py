"""Accidental float64 is told, with its line and its cause; float64 on purpose is not."""

import inspect
import math

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

float32, float64 = np.float32, np.float64
SCALE = 0.3
HALF = 0.5
TABLE = np.array([1.0, 2.0])


@cuda.jit(device=True)
def times(value, factor):
    return value * factor


@cuda.jit(device=True)
def plus(a, b):
    return a + b


@cuda.jit(device=True)
def widened(value):
    return float64(value)


@cuda.jit
def literal(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * 0.5  # here


@cuda.jit
def global_float(x, out):
    i = cuda.grid(1)
    out[i] = x[i] - SCALE  # here


@cuda.jit
def pi(x, out):
    i = cuda.grid(1)
    out[i] = math.pi * x[i]  # here


@cuda.jit
def integer(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * i  # here


@cuda.jit
def integer_literal(x, out):
    i = cuda.grid(1)
    out[i] = 2 * x[i]  # here


@cuda.jit
def quotient(x, out):
    i = cuda.grid(1)
    out[i] = i / x.size  # here


@cuda.jit
def reciprocal(x, out):
    i = cuda.grid(1)
    out[i] = 1.0 / x.size * x[i]  # here


@cuda.jit
def float_total(x, out):
    total = 0.0
    for k in range(3):
        total += x[k]  # here
    out[cuda.grid(1)] = total


@cuda.jit
def integer_total(x, out):
    total = 0
    for k in range(3):
        total = total + x[k]  # here
    out[cuda.grid(1)] = total


@cuda.jit
def copied_constant(x, out):
    factor = 0.25
    other = factor
    i = cuda.grid(1)
    out[i] = x[i] * other  # here


@cuda.jit
def unpacked_constant(x, out):
    a, b = 0.25, float32(1)
    i = cuda.grid(1)
    out[i] = x[i] * b + a  # here


@cuda.jit
def into_a_function(x, out):
    i = cuda.grid(1)
    out[i] = times(x[i], 0.5)


@cuda.jit
def total_in_a_function(x, out):
    total = 0.0
    for k in range(3):
        total = plus(total, x[k])
    out[cuda.grid(1)] = total


@cuda.jit
def choice(x, out):
    i = cuda.grid(1)
    out[i] = x[i] if i < 5 else 0.0  # here


@cuda.jit
def maximum(x, out):
    i = cuda.grid(1)
    out[i] = max(x[i], 0.0)  # here


@cuda.jit
def root_of_an_integer(x, out):
    i = cuda.grid(1)
    out[i] = x[i] + float32(math.sqrt(i))  # here


@cuda.jit
def power(x, out):
    i = cuda.grid(1)
    out[i] = x[i] ** 0.5  # here


@cuda.jit
def comparison(x, out):
    i = cuda.grid(1)
    if x[i] > 0.1:  # here
        out[i] = 1


@cuda.jit
def augmented(x, out):
    i = cuda.grid(1)
    out[i] *= 1.5  # here


@cuda.jit
def nested(x, out):
    factor = 0.5

    def scaled(v):
        return v * factor  # here

    i = cuda.grid(1)
    out[i] = scaled(x[i])


ACCIDENTS = [
    (literal, "float32 * float64 literal 0.5 gives float64: write np.float32(0.5)"),
    (global_float, "float32 - float64 SCALE gives float64; SCALE is a Python float: write np.float32(SCALE)"),
    (pi, "float64 math.pi * float32 gives float64; math.pi is a Python float: write np.float32(math.pi)"),
    (integer, "float32 * int64 i gives float64: write np.float32(i)"),
    (integer_literal, "int64 literal 2 * float32 gives float64: write np.float32(2)"),
    (quotient, "int64 i / int64 x.size gives float64: write np.float32(i) and np.float32(x.size)"),
    (reciprocal, "float64 literal 1.0 / int64 x.size gives float64: write np.float32(1.0) and np.float32(x.size)"),
    (float_total, "total is float64 because of 0.0 on line {-2}: write np.float32(0.0) there"),
    (integer_total, "total is float64 because of 0 on line {-2}: write np.float32(0) there"),
    (copied_constant, "other is float64 because of factor on line {-2}: write np.float32(0.25) there"),
    (unpacked_constant, "a is float64 because of 0.25 on line {-2}: write np.float32(0.25) there"),
    (choice, "float32 or float64 literal 0.0 gives float64: write np.float32(0.0)"),
    (maximum, "max(float32, float64 literal 0.0) gives float64: write np.float32(0.0)"),
    (root_of_an_integer, "sqrt(int64 i) gives float64: write np.float32(i)"),
    (power, "float32 ** float64 literal 0.5 gives float64: write np.float32(0.5)"),
    (comparison, "float32 > float64 literal 0.1 compares in float64: write np.float32(0.1)"),
    (augmented, "float32 * float64 literal 1.5 gives float64: write np.float32(1.5)"),
    (nested, "factor is float64 because of 0.5 on line {-3}: write np.float32(0.5) there"),
]


def warnings(kernel, dtype=np.float32, *more):
    """The warnings of a launch over 32 elements."""
    return simt.profile(kernel, 1, 32, (np.ones(32, dtype), *more, np.zeros(32, dtype))).warnings


def line_of(function, mark="# here"):
    lines, first = inspect.getsourcelines(function.py_func)
    return first + next(k for k, text in enumerate(lines) if mark in text)


def names(kernel):
    return kernel.py_func.__name__


@pytest.mark.parametrize("kernel, said", ACCIDENTS, ids=[names(kernel) for kernel, _ in ACCIDENTS])
def test_an_accident_is_told_once_with_its_line_and_its_cause(kernel, said):
    (found,) = warnings(kernel)
    line = line_of(kernel)
    assert (found.kind, found.line) == ("float64", line)
    assert found.message.startswith(f"line {line}: ")
    for back in (-2, -3):
        said = said.replace(f"{{{back}}}", str(line + back))
    assert said in found.message


@pytest.mark.parametrize("kernel", [kernel for kernel, _ in ACCIDENTS], ids=names)
def test_float64_data_makes_it_no_accident(kernel):
    assert warnings(kernel, np.float64) == []


@pytest.mark.parametrize(
    "kernel, function, said",
    [
        (into_a_function, times, "factor is float64 because of 0.5 on line {}: write np.float32(0.5) there"),
        (total_in_a_function, plus, "a is float64 because of total on line {}: write np.float32(0.0) there"),
    ],
    ids=["an argument", "a total"],
)
def test_the_cause_is_traced_through_calls(kernel, function, said):
    (found,) = warnings(kernel)
    assert found.line == line_of(function, "return")
    assert said.format(line_of(kernel, f"{names(function)}(")) in found.message


@cuda.jit
def mixed_with(x, other, out):
    i = cuda.grid(1)
    total = 0.0
    total += other[i]
    total += x[i]
    out[i] = total


@cuda.jit
def mixed_with_a_cast(x, out):
    i = cuda.grid(1)
    total = 0.0
    total += widened(x[i])
    total += x[i]
    out[i] = total


# -- what is none ----------------------------------------------------------------------------------------------------


@cuda.jit
def cast_total(x, out):
    total = float64(0)
    for k in range(3):
        total += x[k] * x[k]
    out[cuda.grid(1)] = total / 3


@cuda.jit
def cast_operand(x, out):
    i = cuda.grid(1)
    out[i] = float64(x[i]) * x[i] + 0.5


@cuda.jit
def cast_in_a_function(x, out):
    i = cuda.grid(1)
    wide = widened(x[i])
    out[i] = wide * x[i]


@cuda.jit
def cast_constants(x, out):
    i = cuda.grid(1)
    if i < 20:
        out[i] = x[i] * float32(0.5) + float32(SCALE) * float32(i)


@cuda.jit
def float64_table(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * TABLE[i % 2]


@cuda.jit
def float64_scratch(x, out):
    tile = cuda.shared.array(32, np.float64)
    i = cuda.grid(1)
    tile[i] = x[i]
    cuda.syncthreads()
    out[i] = tile[31 - i] * x[i]


@cuda.jit
def compares_with_what_float32_holds(x, out):
    i = cuda.grid(1)
    if x[i] > 0 and x[i] > 0.5 and x[i] < HALF + 1 and x[i] != -2:
        out[i] = 1


@cuda.jit
def small_integers(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * np.int16(i) + x[i] ** 2


@cuda.jit
def integers_only(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * 2 + i // 3


@pytest.mark.parametrize(
    "kernel",
    [cast_total, cast_operand, cast_in_a_function, cast_constants, float64_table, float64_scratch, small_integers],
    ids=names,
)
def test_float64_on_purpose_is_left_alone(kernel):
    assert warnings(kernel) == []


def test_what_starts_from_a_literal_may_still_collect_float64_on_purpose():
    assert len(warnings(mixed_with, np.float32, np.ones(32, np.float32))) == 2  # both additions widen
    assert warnings(mixed_with, np.float32, np.ones(32, np.float64)) == []
    assert warnings(mixed_with_a_cast) == []


def test_a_compiler_compares_in_float32_where_it_can():
    (found,) = warnings(compares_with_what_float32_holds)  # HALF + 1 is computed, and no literal
    assert "float64 HALF" not in found.message
    assert "compares in float64" in found.message


def test_integers_are_no_floats():
    assert simt.profile(integers_only, 1, 32, (np.ones(32, np.int32), np.zeros(32, np.int32))).warnings == []


@cuda.jit
def scaled(x, factor, out):
    i = cuda.grid(1)
    out[i] = x[i] * factor


@pytest.mark.parametrize("factor, told", [(np.float32(2), 0), (np.float64(2), 0), (2.0, 0), (2, 1), (np.int32(2), 1)])
def test_an_argument_of_float64_is_asked_for_and_an_integer_is_not(factor, told):
    assert len(warnings(scaled, np.float32, factor)) == told


@cuda.jit
def spreads(x, out):
    i = cuda.grid(1)
    y = x[i] * 0.5  # here
    z = y * x[i] + x[i]
    out[i] = z - x[i] * y


def test_what_follows_from_an_accident_is_not_told_again():
    (found,) = warnings(spreads)
    assert found.line == line_of(spreads)


def test_it_is_shown_beside_the_line_and_counted_in_flops():
    report = simt.profile(literal, 1, 32, (np.ones(32, np.float32), np.zeros(32, np.float32)))
    assert report.counters["flops_f64"] == report.counters["thread_inst_fp64"] == 32
    said = "float32 * float64 literal 0.5 gives float64"
    assert said in str(report)
    assert said in report._repr_html_()
    assert simt.profile(literal, 1, 32, (np.ones(32, np.float32),) * 2, level="run").warnings == []


def test_it_does_not_depend_on_the_batch():
    args = np.ones(1024, np.float32), np.zeros(1024, np.float32)
    for lanes in (32, 1 << 20):
        with simt.batch_lanes(lanes):
            assert len(simt.profile(float_total, 32, 32, args).warnings) == 1
