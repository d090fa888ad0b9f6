"""What a reduction combines: operators for `pmpp.kernels.reduction.over_axes`, as device functions.

An operator makes a *state* of each element (``load``), makes one state of two (``combine``), and makes the result of
the last state (``finish``). A state is a tuple of one, two or three numbers: a sum needs one, the place of a maximum
two (the value and its index), a variance three (the count, the mean, and the sum of squared deviations from it).
``combine`` must be associative and commutative, up to rounding: threads take elements in turns. ``identity`` is the
state that changes no other. Chapter: notebooks/33_reduction_over_axes.ipynb.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.runtime.vector import widened

# Literals such as 1.0 are float64, and make a float64 of what they meet.
f0, f1 = np.float32(0), np.float32(1)
NOWHERE = np.int64(2**63 - 1)  # the place of no element: behind all others

OF_16_BITS = ("float16", "bfloat16")  # states of these are float32
FLOATS = ("float32", *OF_16_BITS)
NUMBERS = (*FLOATS, "int32")
ALL = (*NUMBERS, "bool")


class Operator(typing.NamedTuple):
    """How to reduce.

    Attributes:
        name: for messages.
        load: ``load(element, place) -> state``; the place counts along the reduced axis, from 0.
        combine: ``combine(state, state) -> state``.
        finish: ``finish(state, divisor) -> result``; see ``divisor``.
        identity: ``identity(dtype of x) -> state`` of NumPy scalars, which say the dtypes that states have.
        result: ``result(dtype of x) -> dtype``.
        dtypes: names of the dtypes of x that it takes.
        nothing: the result for no elements, as NumPy has it; None if there is none.
        divisor: ``divisor(n, ddof) -> float``, computed once on the host; for operators that divide.
        whole: whether it needs all reduced elements in one row, because places in it are the result.
    """

    name: str
    load: Callable
    combine: Callable
    finish: Callable
    identity: Callable[[np.dtype], tuple]
    result: Callable[[np.dtype], np.dtype]
    dtypes: tuple[str, ...]
    nothing: typing.Any = None
    divisor: Callable[[int, int], float] = lambda n, ddof: 1.0
    whole: bool = False


# ------------------------------------------------------------------------------------------- how an element is loaded


@cuda.jit(device=True)
def as_float(value, place):
    return (widened(value),)


@cuda.jit(device=True)
def as_long(value, place):
    return (np.int64(value),)


@cuda.jit(device=True)
def as_int(value, place):
    return (np.int32(value),)


@cuda.jit(device=True)
def is_set(value, place):
    """1 for what is not 0. NaN is not 0."""
    return (np.int32(widened(value) != 0),)


@cuda.jit(device=True)
def counted(value, place):
    return (np.int64(widened(value) != 0),)


@cuda.jit(device=True)
def float_size(value, place):
    return (abs(widened(value)),)


@cuda.jit(device=True)
def float_square(value, place):
    return (widened(value) * widened(value),)


@cuda.jit(device=True)
def float_and_place(value, place):
    return widened(value), np.int64(place)


@cuda.jit(device=True)
def int_and_place(value, place):
    return np.int32(value), np.int64(place)


@cuda.jit(device=True)
def one_moment(value, place):
    """Of a single value: the count is 1, the mean is the value, and nothing deviates from it."""
    return f1, widened(value), f0


# ----------------------------------------------------------------------------------------------- how two states are one


@cuda.jit(device=True)
def added(a, b):
    return (a[0] + b[0],)


@cuda.jit(device=True)
def multiplied(a, b):
    return (a[0] * b[0],)


@cuda.jit(device=True)
def larger(a, b):
    """The larger one; NaN if either is. ``a != a`` is how a NaN is known."""
    return (a[0] if a[0] > b[0] or a[0] != a[0] else b[0],)


@cuda.jit(device=True)
def smaller(a, b):
    return (a[0] if a[0] < b[0] or a[0] != a[0] else b[0],)


@cuda.jit(device=True)
def either(a, b):
    return (a[0] | b[0],)


@cuda.jit(device=True)
def both(a, b):
    return (a[0] & b[0],)


@cuda.jit(device=True)
def place_of_larger(a, b):
    """The pair of the larger value; of equal values, and of NaNs, the pair that comes first."""
    a_nan, b_nan = a[0] != a[0], b[0] != b[0]
    tied = (a[0] == b[0]) | (a_nan & b_nan)  # `or` and `and` would be branches
    first = (a[0] > b[0]) | (a_nan > b_nan) | (tied & (a[1] < b[1]))
    return (a[0] if first else b[0]), (a[1] if first else b[1])


@cuda.jit(device=True)
def place_of_smaller(a, b):
    a_nan, b_nan = a[0] != a[0], b[0] != b[0]
    tied = (a[0] == b[0]) | (a_nan & b_nan)
    first = (a[0] < b[0]) | (a_nan > b_nan) | (tied & (a[1] < b[1]))
    return (a[0] if first else b[0]), (a[1] if first else b[1])


@cuda.jit(device=True)
def joined_moments(a, b):
    """Counts, means and sums of squared deviations of two sets of values, of both sets together.

    Source: T. Chan, G. Golub, R. LeVeque, Algorithms for computing the sample variance (1983). With b of one value it
    is Welford's update.
    """
    count = a[0] + b[0]
    share = b[0] / max(count, f1)  # two empty sets have count 0
    step = b[1] - a[1]
    mean = a[1] + step * share
    return count, mean, a[2] + b[2] + step * (step * share * a[0])  # step * step may overflow where nothing else does


# ---------------------------------------------------------------------------------------------------- what is returned


@cuda.jit(device=True)
def as_it_is(state, divisor):
    return state[0]


@cuda.jit(device=True)
def divided(state, divisor):
    return state[0] / divisor


@cuda.jit(device=True)
def is_nonzero(state, divisor):
    return state[0] != 0


@cuda.jit(device=True)
def root(state, divisor):
    return math.sqrt(state[0])


@cuda.jit(device=True)
def its_place(state, divisor):
    return state[1]


@cuda.jit(device=True)
def deviation(state, divisor):
    """NaN if an element was not finite. The mean says so in any order; the sum of squares is infinite in some."""
    return state[2] / divisor + (state[1] - state[1])


# ------------------------------------------------------------------------------------------------------------ operators


def _same(dtype: np.dtype) -> np.dtype:
    return dtype


def _wide(dtype: np.dtype) -> np.dtype:
    """A sum of int32 is an int64, as in NumPy."""
    return np.dtype(np.int64) if dtype.kind == "i" else dtype


def _always(kind: type) -> Callable:
    return lambda dtype: np.dtype(kind)


def _value(value: float) -> Callable:
    """A state of one number: float32 for floats, int64 for int32."""
    return lambda dtype: ((np.int64 if dtype.kind == "i" else np.float32)(value),)


def _extreme(sign: int) -> Callable:
    """The least number there is for sign = -1, the greatest for 1."""

    def identity(dtype: np.dtype) -> tuple:
        if dtype.kind == "i":
            return (np.int32(np.iinfo(np.int32).max if sign > 0 else np.iinfo(np.int32).min),)
        return (np.float32(sign * np.inf),)

    return identity


def _extreme_and_place(sign: int) -> Callable:
    return lambda dtype: (*_extreme(sign)(dtype), NOWHERE)


def _numbers(n: int, ddof: int) -> float:
    return n


def _degrees(n: int, ddof: int) -> float:
    return max(n - ddof, 0)


class Loads(typing.NamedTuple):
    """Two ways to load, by what x has."""

    floats: Callable
    integers: Callable


_SUM, _OWN, _PLACE = Loads(as_float, as_long), Loads(as_float, as_int), Loads(float_and_place, int_and_place)
_TABLE = (
    Operator("sum", _SUM, added, as_it_is, _value(0), _wide, NUMBERS, 0),
    Operator("prod", _SUM, multiplied, as_it_is, _value(1), _wide, NUMBERS, 1),
    Operator("max", _OWN, larger, as_it_is, _extreme(-1), _same, NUMBERS),
    Operator("min", _OWN, smaller, as_it_is, _extreme(1), _same, NUMBERS),
    Operator("mean", _SUM, added, divided, _value(0), _same, FLOATS, np.nan, _numbers),
    Operator("var", one_moment, joined_moments, deviation, lambda _: (f0, f0, f0), _same, FLOATS, np.nan, _degrees),
    Operator("norm1", float_size, added, as_it_is, _value(0), _same, FLOATS, 0),
    Operator("norm2", float_square, added, root, _value(0), _same, FLOATS, 0),
    Operator("norm_inf", float_size, larger, as_it_is, _value(0), _same, FLOATS),
    Operator("any", is_set, either, is_nonzero, lambda _: (np.int32(0),), _always(np.bool_), ALL, False),
    Operator("all", is_set, both, is_nonzero, lambda _: (np.int32(1),), _always(np.bool_), ALL, True),
    Operator("count_nonzero", counted, added, as_it_is, lambda _: (np.int64(0),), _always(np.int64), ALL, 0),
    Operator(
        "argmax", _PLACE, place_of_larger, its_place, _extreme_and_place(-1), _always(np.int64), NUMBERS, whole=True
    ),
    Operator(
        "argmin", _PLACE, place_of_smaller, its_place, _extreme_and_place(1), _always(np.int64), NUMBERS, whole=True
    ),
)
OPERATORS = {operator.name: operator for operator in _TABLE}


def operator_of(combine: Callable, identity: np.number) -> Operator:
    """An operator of two numbers, which is associative and commutative.

    Args:
        combine: a device function of two float32 or two int32 that returns one.
        identity: an np.float32 or np.int32 that changes nothing: ``combine(identity, a) == a``. Arrays must have its
            dtype, or be float16 or bfloat16 if it is a float32.

    >>> @cuda.jit(device=True)
    ... def common(a, b):
    ...     return a & b
    >>> operator_of(common, np.int32(-1)).dtypes
    ('int32',)
    """
    if not isinstance(identity, np.float32 | np.int32):
        raise TypeError(f"identity must be an np.float32 or an np.int32, was {identity!r}")
    if not hasattr(combine, "py_func"):
        raise TypeError(f"combine must be a device function, made by cuda.jit(device=True), was {combine!r}")
    return _operator_of(combine, identity.dtype, identity.tobytes())


@functools.lru_cache(64)  # kernels are kept by operator: one that was asked for again must be the same
def _operator_of(combine: Callable, dtype: np.dtype, identity: bytes) -> Operator:
    """The identity comes as its bits: 0 and 0.0 are equal as keys, and so are 0.0 and -0.0."""
    start = np.frombuffer(identity, dtype)[0]

    @cuda.jit(device=True)
    def combined(a, b):
        return (combine(a[0], b[0]),)

    floats = dtype.kind == "f"
    name = getattr(combine.py_func, "__name__", "combine")
    load, dtypes = (as_float, FLOATS) if floats else (as_int, ("int32",))
    return Operator(name, load, combined, as_it_is, lambda dtype: (start,), _same, dtypes, start)


def load_of(operator: Operator, dtype: np.dtype) -> Callable:
    """How the operator loads elements of a dtype."""
    load = operator.load
    return (load.integers if dtype.kind == "i" else load.floats) if isinstance(load, Loads) else load
