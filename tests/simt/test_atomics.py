"""Atomics: contended updates of every kind and type give old values that some serial order explains."""

from collections import Counter

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.values.dtypes import as_intp

NUMBERS = ["int32", "uint32", "int64", "uint64", "float32", "float64"]
INTEGERS = NUMBERS[:4]
UNSIGNED = ["uint32", "uint64"]
NAN = float("nan")


@cuda.jit
def add(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.add(a, i % a.size, values[i])


@cuda.jit
def sub(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.sub(a, i % a.size, values[i])


@cuda.jit
def maximum(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.max(a, i % a.size, values[i])


@cuda.jit
def minimum(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.min(a, i % a.size, values[i])


@cuda.jit
def nanmax(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.nanmax(a, i % a.size, values[i])


@cuda.jit
def nanmin(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.nanmin(a, i % a.size, values[i])


@cuda.jit
def bit_and(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.and_(a, i % a.size, values[i])


@cuda.jit
def bit_or(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.or_(a, i % a.size, values[i])


@cuda.jit
def bit_xor(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.xor(a, i % a.size, values[i])


@cuda.jit
def exchange(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.exch(a, i % a.size, values[i])


@cuda.jit
def increment(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.inc(a, i % a.size, values[i])


@cuda.jit
def decrement(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.dec(a, i % a.size, values[i])


@cuda.jit
def compare_swap(a, values, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.cas(a, i % a.size, values[i], values[i] + 1)


OPERATIONS = {
    "add": (add, NUMBERS, lambda old, v: old + v),
    "sub": (sub, NUMBERS, lambda old, v: old - v),
    "max": (maximum, NUMBERS, max),
    "min": (minimum, NUMBERS, min),
    "nanmax": (nanmax, NUMBERS, max),
    "nanmin": (nanmin, NUMBERS, min),
    "and": (bit_and, INTEGERS, lambda old, v: old & v),
    "or": (bit_or, INTEGERS, lambda old, v: old | v),
    "xor": (bit_xor, INTEGERS, lambda old, v: old ^ v),
    "exch": (exchange, INTEGERS, lambda old, v: v),
    "inc": (increment, UNSIGNED, lambda old, v: 0 if old >= v else old + 1),
    "dec": (decrement, UNSIGNED, lambda old, v: v if old == 0 or old > v else old - 1),
    "cas": (compare_swap, INTEGERS, lambda old, v: v + 1 if old == v else old),
}


def serialisable(initial, final, steps):
    """Whether the steps (old, new) can be put in one order that leads from initial to final."""
    balance = Counter({initial: 1})
    balance[final] -= 1
    neighbours = {}
    for old, new in steps:
        balance[old] -= 1
        balance[new] += 1
        neighbours.setdefault(old, set()).add(new)
    reached, todo = {initial}, [initial]
    while todo:
        for new in neighbours.get(todo.pop(), ()):
            if new not in reached:
                reached.add(new)
                todo.append(new)
    # an Eulerian path: every value is entered as often as it is left, and all of them hang together
    return not any(balance.values()) and all(old in reached for old, _ in steps)


CASES = [(name, dtype) for name, (_, dtypes, _) in OPERATIONS.items() for dtype in dtypes]


@pytest.mark.parametrize("name, dtype", CASES, ids=[f"{name}-{dtype}" for name, dtype in CASES])
def test_contended_atomics_serialise(name, dtype):
    kernel, _, step = OPERATIONS[name]
    rng = np.random.default_rng(len(name))
    low = -9 if dtype[0] in "if" else 0
    values = rng.integers(low, 10, 120).astype(dtype)
    if name == "and":
        values |= 0b1110000
    start = np.array([200, 5, 7] if name in ("sub", "and") else [5, 0, 7], dtype)
    if dtype[0] == "u" and name == "sub":
        start += 1000
    a, olds = start.copy(), np.zeros(120, dtype)
    kernel[3, 40](a, values, olds)
    for bin_ in range(3):
        steps = [(old, step(old, v)) for old, v in zip(olds[bin_::3].tolist(), values[bin_::3].tolist(), strict=True)]
        assert serialisable(start[bin_].item(), a[bin_].item(), steps)


@cuda.jit
def compare_and_swap_first(a, olds):
    i = cuda.grid(1)
    olds[i] = cuda.atomic.compare_and_swap(a[i:], 0, i + 1)


def test_compare_and_swap_works_on_the_first_element_of_its_array():
    a, olds = np.array([0, 5, 0, 7], np.int32), np.full(4, -1, np.int32)
    compare_and_swap_first[1, 4](a, olds)
    assert a.tolist() == [1, 5, 3, 7]
    assert olds.tolist() == [0, 5, 0, 7]


@cuda.jit
def election(flag, winners):
    i = cuda.grid(1)
    if cuda.atomic.cas(flag, 0, 0, 1) == 0:
        cuda.atomic.add(winners, 0, 1)
        winners[1] = i


def test_compare_and_swap_has_one_winner():
    flag, winners = np.zeros(1, np.int32), np.zeros(2, np.int32)
    election[4, 64](flag, winners)
    assert (flag[0], winners[0]) == (1, 1)
    assert 0 <= winners[1] < 256


@cuda.jit
def nan_updates(a, values):
    cuda.atomic.max(a, 0, values[0])
    cuda.atomic.min(a, 1, values[0])
    cuda.atomic.nanmax(a, 2, values[0])
    cuda.atomic.nanmin(a, 3, values[0])


@pytest.mark.parametrize(
    "start, value, expected",
    [
        (1.0, NAN, [1, 1, 1, 1]),  # a NaN never replaces a number
        (NAN, 1.0, [NAN, NAN, 1, 1]),  # a NaN in place stays, unless the operation skips NaN
        (1.0, 2.0, [2, 1, 2, 1]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_in_atomic_min_and_max(start, value, expected, dtype):
    a = np.full(4, start, dtype)
    nan_updates[1, 1](a, np.array([value], dtype))
    np.testing.assert_array_equal(a, expected)


@cuda.jit
def atomics_in_2d_and_shared(x, out):
    s = cuda.shared.array((2, 4), np.int32)
    t = cuda.threadIdx.x
    if t < 8:
        s[t // 4, t % 4] = 0
    cuda.syncthreads()
    v = x[cuda.grid(1)]
    cuda.atomic.add(s, (v // 4, v % 4), 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(out, (t // 4, t % 4), s[t // 4, t % 4])


def test_atomics_on_two_dimensions_in_shared_and_global_memory():
    x = np.random.default_rng(0).integers(0, 8, 300).astype(np.int64)
    out = np.zeros((2, 4), np.int32)
    atomics_in_2d_and_shared[3, 100](x, out)
    np.testing.assert_array_equal(out.ravel(), np.bincount(as_intp(x), minlength=8))


@cuda.jit
def half_of_the_lanes(a, olds):
    i = cuda.grid(1)
    if i % 2 == 0:
        olds[i] = cuda.atomic.add(a, 0, 1)


def test_inactive_lanes_take_no_part():
    a, olds = np.zeros(1, np.int32), np.full(64, -1, np.int32)
    half_of_the_lanes[1, 64](a, olds)
    assert a[0] == 32
    assert sorted(olds[::2]) == list(range(32))
    assert (olds[1::2] == -1).all()


@cuda.jit
def sum_of_tenths(a):
    cuda.atomic.add(a, 0, 0.1)


def test_float_atomics_round_after_every_addition():
    a = np.zeros(1, np.float32)
    sum_of_tenths[10, 100](a)
    total = np.float32(0)
    for _ in range(1000):
        total = np.float32(total + np.float32(0.1))
    assert a[0] == total


@cuda.jit
def wrap_around(a):
    cuda.atomic.add(a, 0, 1)


def test_integer_atomics_wrap():
    a = np.array([2**31 - 1], np.int32)
    wrap_around[1, 1](a)
    assert a[0] == -(2**31)


@pytest.mark.parametrize(
    "kernel, dtype",
    [
        (add, "int8"),
        (add, "bool"),
        (add, "float16"),
        (maximum, "int16"),
        (exchange, "float32"),
        (bit_and, "float64"),
        (increment, "int32"),
        (decrement, "float32"),
        (compare_swap, "float32"),
    ],
    ids=lambda v: getattr(getattr(v, "py_func", None), "__name__", v),
)
def test_types_that_numba_has_no_atomic_for_are_refused(kernel, dtype):
    x = np.ones(3, dtype)
    with pytest.raises((simt.SimtError, TypeError)):
        kernel[1, 3](x, x.copy(), x.copy())


@cuda.jit
def spin_lock_one_lane_a_block(lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


def test_a_lock_between_blocks_makes_progress_or_is_refused():
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    try:
        spin_lock_one_lane_a_block[8, 32](lock, total)
        refused = False
    except simt.SimtError:
        refused = True
    assert refused or (total[0], lock[0]) == (8, 0)


def test_an_addition_is_seen_through_another_view_of_the_same_memory():
    @cuda.jit
    def kernel(x, bits, out):
        i = cuda.grid(1)
        cuda.atomic.add(x, i, 1.5)
        out[i] = bits[i]

    x, out = cuda.to_device(np.zeros(4, np.float32)), np.zeros(4, np.int32)
    kernel[1, 4](x, x.view(np.int32), out)
    np.testing.assert_array_equal(out.view(np.float32), 1.5)


def test_additions_through_views_of_two_types_follow_one_another():
    @cuda.jit
    def kernel(x, halves):
        cuda.atomic.add(x, 0, 1)
        cuda.atomic.add(halves, 0, 1)
        cuda.atomic.add(x, 0, 1)

    x, expected = cuda.to_device(np.zeros(1)), np.ones(1)
    kernel[1, 1](x, x.view(np.float32))
    expected.view(np.float32)[0] += 1
    assert x.copy_to_host()[0] == expected[0] + 1


def test_an_addition_is_over_before_another_atomic_of_the_same_thread():
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 5)
        cuda.atomic.max(x, 0, 3)

    x = np.zeros(1, np.float32)
    kernel[1, 1](x)
    assert x[0] == 5
