"""A variable has the type that its own path gave it, whoever runs beside it in the warp; where paths meet, one for all.

Numba renames a variable at each assignment and unifies only where control flow joins. The interpreter keeps the lanes
of both paths in one array, so this is where a value could change with the company it keeps.
"""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit
def another_type_in_the_sibling(n, f, exact, quotient, split):
    i = cuda.grid(1)
    m = n[i]
    c = f[i]
    if i < split:
        m = 0.5
        c = 0.5
    else:
        exact[i] = m
        quotient[i] = c / np.uint8(3)


@cuda.jit
def another_type_on_a_path_that_returns(n, f, exact, quotient, split):
    i = cuda.grid(1)
    m = n[i]
    c = f[i]
    if i < split:
        m = 0.5
        c = 0.5
        return
    exact[i] = m
    quotient[i] = c / np.uint8(3)


@pytest.mark.parametrize("split", [0, 1, 31])
@pytest.mark.parametrize("kernel", [another_type_in_the_sibling, another_type_on_a_path_that_returns])
def test_a_sibling_branch_does_not_change_the_type_of_a_variable(kernel, split):
    n, f = np.full(32, 2**53 + 1), np.full(32, 1.3, np.float32)
    exact, quotient = np.zeros(32, np.int64), np.zeros(32)
    kernel[1, 32](n, f, exact, quotient, split)
    assert exact[split:].tolist() == [2**53 + 1] * (32 - split)  # float64 would lose the 1
    assert (quotient[split:] == np.float64(np.float32(1.3) / np.float32(3))).all()  # a float32 division


@cuda.jit
def loop_in_the_sibling(f, n, quotient, split):
    i = cuda.grid(1)
    c = f[i]
    if i < split:
        for _ in range(n[i]):
            c = c + 0.5
    else:
        quotient[i] = c / np.uint8(3)


@cuda.jit
def while_in_the_sibling(f, n, quotient, split):
    i = cuda.grid(1)
    c = f[i]
    if i < split:
        m = n[i]
        while m > 0:
            m -= 1
            c = c + 0.5
    else:
        quotient[i] = c / np.uint8(3)


@cuda.jit
def if_in_the_sibling(f, n, quotient, split):
    i = cuda.grid(1)
    c = f[i]
    if i < split:
        if n[i] > 0:
            c = c + 0.5
    else:
        quotient[i] = c / np.uint8(3)


@pytest.mark.parametrize("trips", [0, 1, 2, None])
@pytest.mark.parametrize("kernel", [loop_in_the_sibling, while_in_the_sibling, if_in_the_sibling])
def test_a_loop_in_a_sibling_branch_does_not_change_the_type_of_a_variable(kernel, trips):
    n = np.arange(32) % 3 if trips is None else np.full(32, trips)
    f, quotient = np.full(32, 1.3, np.float32), np.zeros(32)
    kernel[1, 32](f, n, quotient, 7)
    assert (quotient[7:] == np.float64(np.float32(1.3) / np.float32(3))).all()


@cuda.jit
def break_with_another_type(f, n, quotient, out):
    i = cuda.grid(1)
    c = f[i]
    for k in range(4):
        if k == n[i]:
            c = 0.25
            break
        quotient[i] = c / np.uint8(3)
    out[i] = c / np.uint8(3)


def test_a_path_that_breaks_joins_only_behind_the_loop():
    n = np.arange(32) % 5
    f, quotient, out = np.full(32, 1.3, np.float32), np.zeros(32), np.zeros(32)
    break_with_another_type[1, 32](f, n, quotient, out)
    single, double = np.float64(np.float32(1.3) / np.float32(3)), np.float64(np.float32(1.3)) / 3
    assert (quotient[n > 0] == single).all()
    # behind the loop c is float64 in every lane: 0.25 on one path, the widened float32 on the other
    assert (out[n < 4] == 0.25 / 3).all()
    assert (out[n == 4] == double).all()


@cuda.jit
def meets_behind_the_if(f, out, split):
    i = cuda.grid(1)
    c = f[i]
    if i < split:
        c = 0.25
    out[i] = c / np.uint8(3)


@pytest.mark.parametrize("split", [0, 1, 32])
@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_where_paths_meet_the_type_is_one_for_all_even_if_no_lane_took_one_of_them(split, lanes):
    f, out = np.full(64, 1.3, np.float32), np.zeros(64)
    with simt.batch_lanes(lanes):
        meets_behind_the_if[2, 32](f, out, split)
    assert (out[split:] == np.float64(np.float32(1.3)) / 3).all()


@cuda.jit(device=True)
def either(c, first):
    if first:
        return c
    return 0.25


@cuda.jit
def function_of_two_types(f, out, split):
    i = cuda.grid(1)
    out[i] = either(f[i], i < split) / np.uint8(3)


@pytest.mark.parametrize("split", [0, 1, 64])
def test_a_function_s_result_has_one_type_whichever_return_is_taken(split):
    f, out = np.full(64, 1.3, np.float32), np.zeros(64)
    function_of_two_types[2, 32](f, out, split)
    assert (out[:split] == np.float64(np.float32(1.3)) / 3).all()
    assert (out[split:] == 0.25 / 3).all()


@cuda.jit
def local_function_reads_a_variable_of_two_types(f, out):
    i = cuda.grid(1)
    c = f[i]

    def third():
        return c / np.uint8(3)

    if i < 7:
        c = 0.25
    else:
        out[i] = third()


def test_a_local_function_reads_the_type_of_its_callers_branch():
    f, out = np.full(32, 1.3, np.float32), np.zeros(32)
    local_function_reads_a_variable_of_two_types[1, 32](f, out)
    assert (out[7:] == np.float64(np.float32(1.3) / np.float32(3))).all()
