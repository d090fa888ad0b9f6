"""What a kernel computes does not depend on what ran before in the process.

The interpreter keeps what it finds out about types (front/inference.py), and compiled functions are shared between the
kernels that call them.  Here a kernel runs after something else that shares a function with it, and its result has the
type that Numba gives it.  A type is seen by what arithmetic does: 1.3 / 3 has more digits in float64, int64 wraps.
Each test makes its functions anew, so that nobody has asked about them before.
"""

import functools
from typing import NamedTuple

import numpy as np
import pytest

from pmpp.simt import cuda
from pmpp.simt.front.compiler import compile_function

NARROW, WIDE = np.float32(1.3), np.float64(1.3)
THREE = np.uint8(3)
IN_FLOAT64 = np.float64(NARROW) / 3
IN_FLOAT32 = np.float64(NARROW / np.float32(3))


def run(kernel, *args, grid=1, block=32):
    """Runs a kernel that writes one float64 a thread, and returns the different ones."""
    out = np.zeros(grid * block)
    kernel[grid, block](*args, out)
    return sorted(set(out.tolist()))


def a_function_with_three_returns():
    @cuda.jit(device=True)
    def chosen(a, b, n):
        if n == 1:
            return a
        if n == 2:
            return b
        return a

    @cuda.jit
    def alone(a, b, n, out):
        i = cuda.grid(1)
        out[i] = chosen(a, b, n) / THREE

    @cuda.jit
    def in_a_loop(a, b, n, out):
        i = cuda.grid(1)
        v = a
        for _ in range(1):
            v = chosen(a, b, n)
        out[i] = v / THREE

    return alone, in_a_loop


@pytest.mark.parametrize("first", [0, 1], ids=["alone first", "in a loop first"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_return_that_is_met_again_still_counts(first, n):
    kernels = a_function_with_three_returns()
    for kernel in (kernels[first], kernels[1 - first]):
        assert run(kernel, NARROW, WIDE, n) == [IN_FLOAT64]


def test_a_return_of_a_narrower_type_does_not_make_a_result_narrow():
    @cuda.jit(device=True)
    def of_vector(v, n):  # as a sum over 16 bits, made float32 in one branch
        if n == 4:
            return v
        if n == 8:
            return np.float32(v) + np.float32(1e-4)
        return v

    @cuda.jit
    def kernel(v, n, out):
        i = cuda.grid(1)
        total = np.float32(0)
        for _ in range(2):
            total = of_vector(v[i], n)
        out[i] = total

    assert run(kernel, np.ones(32, np.float16), 8) == [np.float64(np.float32(1) + np.float32(1e-4))]


def test_a_break_that_no_lane_takes_still_counts():
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        v = x[i]
        for _ in range(2):
            if x[i] < 0:
                v = 0.25
                break
        out[i] = v / THREE

    assert run(kernel, np.full(32, NARROW)) == [IN_FLOAT64]


def test_a_statement_that_was_first_met_in_calls_too_deep_to_follow():
    @cuda.jit(device=True)
    def widely(x):
        return np.float64(x)

    @cuda.jit(device=True)
    def inner(x, wide):
        v = x
        if wide:
            v = widely(x)
        return v / THREE

    @cuda.jit(device=True)
    def second(x, wide):
        return inner(x, wide)

    @cuda.jit(device=True)
    def third(x, wide):
        return second(x, wide)

    @cuda.jit(device=True)
    def fourth(x, wide):
        return third(x, wide)

    @cuda.jit(device=True)
    def fifth(x, wide):
        return fourth(x, wide)

    @cuda.jit(device=True)
    def sixth(x, wide):
        return fifth(x, wide)

    @cuda.jit
    def deep(x, wide, out):
        i = cuda.grid(1)
        v = np.float32(0)
        if i < 0:
            v = sixth(x, wide)
        out[i] = v

    @cuda.jit
    def direct(x, wide, out):
        i = cuda.grid(1)
        out[i] = inner(x, wide)

    run(deep, NARROW, False)
    assert run(direct, NARROW, False) == [IN_FLOAT64]


def a_function_inside_a_kernel():
    @cuda.jit
    def kernel(x, n, out):
        i = cuda.grid(1)
        c = x[i]

        def of_around(split):
            v = np.float32(1.3)
            if i - cuda.threadIdx.x < split:
                v = c
            return v / THREE

        out[i] = of_around(n)

    return kernel


def test_the_types_of_variables_around_a_function_count():
    kernel = a_function_inside_a_kernel()
    narrow, wide = np.full(64, NARROW), np.full(64, WIDE)
    assert run(kernel, narrow, 0) == [IN_FLOAT32]
    assert run(kernel, wide, 0) == [IN_FLOAT64]
    assert run(kernel, narrow, 0) == [IN_FLOAT32]


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (2, 32), (1, 64), (3, 33)])
def test_the_shape_of_a_launch_does_not_matter_where_a_function_reads_variables_around_it(grid, block):
    assert run(a_function_inside_a_kernel(), np.full(99, WIDE), 0, grid=grid, block=block) == [IN_FLOAT64]


def test_which_function_was_passed_counts():
    @cuda.jit(device=True)
    def narrow(x):
        return np.float32(x)

    @cuda.jit(device=True)
    def wide(x):
        return np.float64(x)

    @cuda.jit(device=True)
    def applied(function, x, asked):
        v = x
        if asked:
            v = function(x)
        return v / THREE

    @cuda.jit
    def with_narrow(x, out):
        i = cuda.grid(1)
        out[i] = applied(narrow, x[i], i < 0)

    @cuda.jit
    def with_wide(x, out):
        i = cuda.grid(1)
        out[i] = applied(wide, x[i], i < 0)

    x = np.full(32, NARROW)
    for kernel, expected in ((with_narrow, IN_FLOAT32), (with_wide, IN_FLOAT64), (with_narrow, IN_FLOAT32)):
        assert run(kernel, x) == [expected]


def test_which_type_was_passed_counts():
    @cuda.jit(device=True)
    def converted(x, kind, asked):
        v = x
        if asked:
            v = kind(1)
        return v / THREE

    @cuda.jit
    def to_narrow(x, out):
        i = cuda.grid(1)
        out[i] = converted(x[i], np.float32, i < 0)

    @cuda.jit
    def to_wide(x, out):
        i = cuda.grid(1)
        out[i] = converted(x[i], np.float64, i < 0)

    x = np.full(32, NARROW)
    for kernel, expected in ((to_narrow, IN_FLOAT32), (to_wide, IN_FLOAT64), (to_narrow, IN_FLOAT32)):
        assert run(kernel, x) == [expected]


class Narrow(NamedTuple):
    """Two numbers whose `a` is the first."""

    a: np.float32
    b: np.float64


class Wide(NamedTuple):
    """Two numbers whose `a` is the second."""

    b: np.float32
    a: np.float64


def test_the_names_of_a_tuple_s_fields_count():
    @cuda.jit
    def kernel(pair, x, out):
        i = cuda.grid(1)
        v = x[i]
        if i < 0:
            v = pair.a
        out[i] = v / THREE

    x = np.full(32, NARROW)
    for pair, expected in ((Narrow(NARROW, WIDE), IN_FLOAT32), (Wide(NARROW, WIDE), IN_FLOAT64)):
        assert run(kernel, pair, x) == [expected]


def test_the_type_of_a_range_counts():
    @cuda.jit
    def kernel(n, out):
        i = cuda.grid(1)
        rounds = range(n)
        last = 0
        for k in rounds:
            last = k
        out[i] = last + 2**62 + 2**62  # of int64 and uint64 Numba makes float64, which does not wrap

    for n, expected in ((np.int64(0), -(2.0**63)), (np.uint64(0), 2.0**63)):
        assert run(kernel, n) == [expected]


def test_a_parameter_that_is_a_constant_of_the_caller_counts():
    @cuda.jit(device=True)
    def through_memory(x, size, asked):
        kept = cuda.local.array(size, np.float64)
        kept[0] = x
        if asked:
            return kept[0]
        return x

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = through_memory(x[i], 2, i < 0) / THREE

    assert run(kernel, np.full(32, NARROW)) == [IN_FLOAT64]


def test_a_function_has_shared_memory_for_each_size_that_its_callers_say():
    @cuda.jit(device=True)
    def last_of(size, i):
        kept = cuda.shared.array(size, np.int64)
        if i < size:
            kept[i] = size
        cuda.syncthreads()
        return kept[size - 1]

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i] = last_of(8, i) + last_of(16, i)

    assert run(kernel) == [24.0]


def test_how_many_other_functions_were_compiled_does_not_matter(monkeypatch):
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[i] = changing  # noqa: F821

    monkeypatch.setitem(globals(), "changing", 1)
    assert run(kernel) == [1.0]
    monkeypatch.setitem(globals(), "changing", 2)
    for _ in range(1100):

        @cuda.jit
        def another(out):
            out[0] = 0

        compile_function(another.py_func)
    assert run(kernel) == [1.0]  # Numba, too, has compiled the global's value in


def test_a_function_that_has_the_attributes_of_another_one_is_compiled_by_itself():
    def one(out):
        out[cuda.grid(1)] = 1

    assert run(cuda.jit(one)) == [1.0]

    @functools.wraps(one)
    def two(out):
        out[cuda.grid(1)] = 2

    del two.__wrapped__  # by which Python would find the source of the other one
    assert run(cuda.jit(two)) == [2.0]
    assert run(cuda.jit(one)) == [1.0]
