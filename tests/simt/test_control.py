"""Control flow: every lane takes its own path, and what each finds is what plain Python finds for that lane."""

import types

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

N = 100
SCALE = 3
OFFSETS = (10, 20, 30)


def by_lane(function):
    return [function(i) for i in range(N)]


@cuda.jit
def early_return(out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    out[i] = 1
    if i % 3 == 0:
        return
    out[i] = 2


@cuda.jit
def break_and_continue(out):
    i = cuda.grid(1)
    if i < out.size:
        s = 0
        for k in range(20):
            if k == i % 13:
                break
            if k % 2 == i % 2:
                continue
            s += k
        out[i] = s


def break_and_continue_oracle(i):
    return sum(k for k in range(min(20, i % 13)) if k % 2 != i % 2)


@cuda.jit
def while_else(out):
    i = cuda.grid(1)
    if i < out.size:
        k = 0
        while k < i % 7:
            if k == 4:
                out[i] = -1
                break
            k += 1
        else:
            out[i] = k


@cuda.jit
def for_else(out):
    i = cuda.grid(1)
    if i < out.size:
        for k in range(2, i):
            if i % k == 0:
                out[i] = k
                break
        else:
            out[i] = i


def smallest_divisor(i):
    return next((k for k in range(2, i) if i % k == 0), i)


@cuda.jit
def nested_loops(out):
    i = cuda.grid(1)
    if i < out.size:
        s = 0
        for a in range(i % 5):
            b = a
            while b < i % 7:
                b += 1
                if b == 3:
                    continue
                for c in range(b):
                    if c == a + 2:
                        break
                    s += 1
                if s > 40:
                    break
            s += 100
        out[i] = s


def nested_loops_oracle(i):
    s = 0
    for a in range(i % 5):
        b = a
        while b < i % 7:
            b += 1
            if b == 3:
                continue
            for c in range(b):
                if c == a + 2:
                    break
                s += 1
            if s > 40:
                break
        s += 100
    return s


@cuda.jit
def return_inside_a_loop(out):
    i = cuda.grid(1)
    if i < out.size:
        for k in range(10):
            out[i] = k
            if k == i % 11:
                return
        out[i] = 99


@cuda.jit
def short_circuit(x, out):
    i = cuda.grid(1)
    if i < out.size and x[i] != 5:
        out[i] = 1
    if i >= out.size or x[i] == 7:
        return
    out[i] += 2


def test_and_or_evaluate_their_right_side_only_in_the_lanes_that_need_it():
    x, out = np.arange(N) % 10, np.zeros(N, np.int32)
    report = simt.profile(short_circuit, 4, 32, (x, out), level="check", collect=True)
    assert report.hazards == []  # lanes beyond the end did not read x
    expected = [(v != 5) + (0 if v == 7 else 2) for v in x]
    assert out.tolist() == expected


@cuda.jit
def conditional_expression(x, out):
    i = cuda.grid(1)
    out[i] = x[i - 1] if i > 0 else (x[i] if i == 0 and x.size > 1 else 0)


def test_conditional_expressions_evaluate_one_side_a_lane():
    x, out = np.arange(64, dtype=np.int32) * 2, np.zeros(64, np.int32)
    report = simt.profile(conditional_expression, 2, 32, (x, out), level="check", collect=True)
    assert report.hazards == []
    assert out.tolist() == [0, *x[:-1].tolist()]


@cuda.jit(device=True)
def classify(v):
    if v < 3:
        return 1
    if v < 6:
        for k in range(10):
            if k == v:
                return k * 10
    elif v == 8:
        return -1
    v += 100
    return v


def classify_oracle(i):
    v = i % 10
    return 1 if v < 3 else v * 10 if v < 6 else -1 if v == 8 else v + 100


@cuda.jit
def several_returns(out):
    i = cuda.grid(1)
    if i < out.size:
        v = i % 10
        out[i] = classify(v)
        if v != i % 10:  # the callee changed its own copy
            out[i] = -100


@cuda.jit(device=True)
def minmax(a, b):
    if a < b:
        return a, b
    return b, a


@cuda.jit
def tuple_results(out):
    i = cuda.grid(1)
    if i < out.size:
        low, high = minmax(i % 7, i % 5)
        low, high = high, low
        pair = (low, high + 1)
        out[i] = pair[0] * 100 + pair[1] + len(pair)


@cuda.jit(device=True)
def store_twice(array, index, value):
    array[index] = value
    array[index] += value


@cuda.jit
def procedure_call(out):
    i = cuda.grid(1)
    if i < out.size:
        store_twice(out, i, i)


@cuda.jit
def keyword_and_default(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = weighted(i, weight=5) + weighted(i)


@cuda.jit(device=True)
def weighted(value, weight=2):
    return value * weight


def make_closure(factor):
    @cuda.jit(device=True)
    def times(v):
        return v * factor

    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = times(i) + factor + SCALE

    return kernel


@cuda.jit
def globals_and_tuples(out):
    i = cuda.grid(1)
    if i < out.size:
        s = 0
        for v in OFFSETS:
            s += v
        for k, v in enumerate(OFFSETS):
            s += k * v
        for a, b in zip(OFFSETS, (1, 2, 3)):  # noqa: B905
            s += a * b
        out[i] = s + OFFSETS[1] * SCALE + (i in (3, 5, 7))


@cuda.jit
def augmented(out):
    i = cuda.grid(1)
    if i < out.size:
        v = i
        v += 7
        v *= 3
        v -= 1
        v //= 2
        v %= 50
        v <<= 2
        v |= 1
        v ^= 6
        v &= 0xFE
        v >>= 1
        v **= 2
        out[i] = v
        out[i] -= 1


def augmented_oracle(i):
    return (((((((i + 7) * 3 - 1) // 2 % 50) << 2 | 1) ^ 6) & 0xFE) >> 1) ** 2 - 1


@cuda.jit
def grid_stride(out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = i * 2 + 1


@cuda.jit
def downwards(out):
    i = cuda.grid(1)
    if i < out.size:
        s = 0
        for k in range(i, 0, -3):
            s = s * 2 + k
        out[i] = s % 1000


def downwards_oracle(i):
    s = 0
    for k in range(i, 0, -3):
        s = s * 2 + k
    return s % 1000


@cuda.jit
def variable_after_loop(out):
    i = cuda.grid(1)
    if i < out.size:
        k = -1
        for k in range(i % 6):  # noqa: B007
            pass
        out[i] = k


@cuda.jit
def chained_and_elif(out):
    i = cuda.grid(1)
    if i < out.size:
        if 10 <= i < 20:
            out[i] = 1
        elif not i % 3 and i != 30:
            out[i] = 2
        elif i == 1 or i == 2 or i > 90:  # noqa: PLR1714
            out[i] = 3
        else:
            out[i] = 4


def chained_oracle(i):
    return 1 if 10 <= i < 20 else 2 if not i % 3 and i != 30 else 3 if i in (1, 2) or i > 90 else 4


@cuda.jit
def assert_and_pass(out):
    i = cuda.grid(1)
    if i >= out.size:
        pass
    else:
        a = b = i
        assert a == b
        out[i] = a + b


@cuda.jit
def local_function(out):
    i = cuda.grid(1)

    def double(v):
        return v * 2

    if i < out.size:
        out[i] = double(i)


FOLLOWED = {
    "early return": (early_return, lambda i: 1 if i % 3 == 0 else 2),
    "break and continue": (break_and_continue, break_and_continue_oracle),
    "while-else": (while_else, lambda i: -1 if i % 7 > 4 else i % 7),
    "for-else": (for_else, smallest_divisor),
    "nested loops": (nested_loops, nested_loops_oracle),
    "return inside a loop": (return_inside_a_loop, lambda i: min(i % 11, 99) if i % 11 < 10 else 99),
    "several returns": (several_returns, classify_oracle),
    "tuple results": (tuple_results, lambda i: max(i % 7, i % 5) * 100 + min(i % 7, i % 5) + 1 + 2),
    "procedure call": (procedure_call, lambda i: 2 * i),
    "keyword and default": (keyword_and_default, lambda i: 7 * i),
    "closure of 4": (make_closure(4), lambda i: 4 * i + 4 + 3),
    "closure of 5": (make_closure(5), lambda i: 5 * i + 5 + 3),
    "globals and tuples": (globals_and_tuples, lambda i: 60 + 80 + 140 + 60 + (i in (3, 5, 7))),
    "augmented assignment": (augmented, augmented_oracle),
    "grid-stride loop": (grid_stride, lambda i: 2 * i + 1),
    "downward range": (downwards, downwards_oracle),
    "variable after its loop": (variable_after_loop, lambda i: i % 6 - 1),
    "chained comparison and elif": (chained_and_elif, chained_oracle),
    "assert and pass": (assert_and_pass, lambda i: 2 * i),
    "local function": (local_function, lambda i: 2 * i),
}


@pytest.mark.parametrize("kernel, oracle", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_every_lane_takes_its_own_path(kernel, oracle):
    out = np.zeros(N, np.int64)
    kernel[4, 32](out)
    assert out.tolist() == by_lane(oracle)


@pytest.mark.parametrize("lanes", [1, 40, 64, 1000])
@pytest.mark.parametrize("name", ["nested loops", "several returns", "grid-stride loop"])
def test_the_batch_size_changes_no_result(name, lanes):
    kernel, oracle = FOLLOWED[name]
    out = np.zeros(N, np.int64)
    with simt.batch_lanes(lanes):
        kernel[4, 32](out)
    assert out.tolist() == by_lane(oracle)


@cuda.jit
def module_global(out):
    out[0] = SCALE


def test_a_device_function_and_a_kernel_use_the_globals_of_their_own_module():
    other = types.ModuleType("other")
    other.SCALE = 11
    kernel = cuda.jit(types.FunctionType(module_global.py_func.__code__, vars(other) | {"cuda": cuda}))
    out = np.zeros(2, np.int64)
    kernel[1, 1](out[:1])
    module_global[1, 1](out[1:])
    assert out.tolist() == [11, 3]


@cuda.jit
def iterate_array(x, out):
    s = 0.0
    for v in x:
        s += v
    for k, v in enumerate(x):
        s += k * v
    out[0] = s


def test_a_kernel_may_iterate_over_an_array():
    x, out = np.arange(5, dtype=np.float32), np.zeros(1, np.float32)
    iterate_array[1, 1](x, out)
    assert out[0] == 10 + 30


def test_the_order_of_calls_between_batches_is_not_visible_without_a_grid_barrier():
    out = np.zeros(4 * 256, np.int64)
    with simt.batch_lanes(32):
        grid_stride[4, 32](out)
    assert out.tolist() == [2 * i + 1 for i in range(out.size)]
