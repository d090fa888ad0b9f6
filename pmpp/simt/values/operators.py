"""Operators: the type that each computes in, and what it computes there."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from pmpp.simt.values import arithmetic, complexes, dtypes
from pmpp.simt.values.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    UINT32,
    UINT64,
    Value,
    bitwise,
    cast,
    division,
    is_float,
    is_int,
    no_complex,
    power,
    shift,
    truth,
    unify,
    whole_division,
)
from pmpp.simt.values.quick import any_of


def _floor_divide(a: Value, b: Value) -> Value:
    if a.dtype.kind == "f":
        return arithmetic.float_whole_quotient(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype == INT64 and any_of(b == -1):  # -2**63 // -1 does not fit; Numba gives 0
        quotient = np.where((b == -1) & (a == np.iinfo(INT64).min), INT64.type(0), quotient)[()]
    return quotient


def _shift_amount(b: Value) -> Value:
    return np.asarray(b).astype(INT64)


def _shift_left(a: Value, b: Value) -> Value:
    # The device looks at the lower 32 bits of the amount, as an unsigned number (PTX ISA, shl and shr).  By 64 or more
    # nothing is left, where C (and NumPy on some CPUs) wraps around.
    n = b.astype(UINT32)
    shifted = np.left_shift(a, (n & UINT32.type(63)).astype(a.dtype))
    return np.where(n > 63, a.dtype.type(0), shifted)[()]


def _shift_right(a: Value, b: Value) -> Value:
    n = b.astype(UINT32)
    if a.dtype.kind == "i":  # of a negative number ones are left
        return np.right_shift(a, np.minimum(n, UINT32.type(63)).astype(a.dtype))
    shifted = np.right_shift(a, (n & UINT32.type(63)).astype(a.dtype))
    return np.where(n > 63, a.dtype.type(0), shifted)[()]


def _power(a: Value, b: Value) -> Value:
    return complexes.power(a, b) if a.dtype.kind == "c" else arithmetic.real_power(a, b)


def _remainder(a: Value, b: Value) -> Value:
    return arithmetic.float_remainder(a, b) if a.dtype.kind == "f" else np.remainder(a, b)


class Binary:
    """A binary operator: the type it computes in, and the NumPy function that does it.

    complex   the function for complex numbers, if it is another one
    scalar    Python's operator: of two numbers that are the same in every lane it is a tenth of NumPy's work
    """

    __slots__ = ("complex", "flop", "function", "known", "rule", "scalar")

    def __init__(
        self,
        rule: Callable[[np.dtype, np.dtype], np.dtype],
        function: Callable,
        *,
        flop: bool = False,
        complex: Callable | None = None,
        scalar: Callable | None = None,
    ) -> None:
        self.rule, self.function, self.flop = rule, function, flop
        self.complex, self.scalar = complex or function, scalar or function
        #: By the types of the operands: the type it is computed in, how each is converted or None, both functions.
        self.known: dict[tuple[np.dtype, np.dtype], tuple] = {}

    def __call__(self, a: Value, b: Value) -> Value:
        kinds = (a.dtype, b.dtype)
        known = self.known.get(kinds)
        if known is None:
            known = self.known[kinds] = self._of(*kinds)
        dtype, convert_a, convert_b, function, scalar = known
        if a.ndim == 0 == b.ndim:
            return scalar(convert_a(a) if convert_a else a, convert_b(b) if convert_b else b)
        return function(a.astype(dtype) if convert_a else a, b.astype(dtype) if convert_b else b)

    def _of(self, a: np.dtype, b: np.dtype) -> tuple[np.dtype, Callable | None, Callable | None, Callable, Callable]:
        dtype = self.rule(a, b)
        function = self.complex if dtype.kind == "c" else self.function
        scalar = self.scalar if dtype.kind in "iuf" else function
        return dtype, _conversion(a, dtype), _conversion(b, dtype), function, scalar


def _conversion(given: np.dtype, dtype: np.dtype) -> Callable | None:
    """What makes a number of a type one of another; None if it is one."""
    if given == dtype:
        return None
    if given.kind in "iu" and dtype.kind in "iu":
        return dtype.type  # of a single number a third of the work of `astype`
    return lambda number: number.astype(dtype)


class Power(Binary):
    """`a ** b`: an integer exponent has a way of its own, and keeps its sign."""

    __slots__ = ()

    def __call__(self, a: Value, b: Value) -> Value:
        dtype = self.rule(a.dtype, b.dtype)
        if dtype.kind == "f" and is_int(b.dtype) and (is_float(a.dtype) or a.dtype == BOOL):
            return arithmetic.float_power(cast(a, dtype), b)
        if dtype.kind in "iu":
            return arithmetic.integer_power(cast(a, dtype), cast(b, UINT64 if b.dtype.kind == "u" else INT64))
        return super().__call__(a, b)


def raises(name: str, a: Value, b: Value) -> tuple[Value, str] | None:
    """The lanes in which Numba raises an exception, and which.  A GPU ends such a thread, and says so in debug only."""
    if name == "Div" and "c" in (a.dtype.kind, b.dtype.kind):
        return b == 0, "ZeroDivisionError: complex division by zero"
    if name == "Pow" and a.dtype.kind in "iubf" and is_int(b.dtype):
        return arithmetic.too_negative(a, b), "OverflowError: the exponent is the least integer"
    return None


class Compare(Binary):
    """A comparison: the type it is computed in, and the NumPy function that does it."""

    __slots__ = ()

    def __init__(self, function: Callable, scalar: Callable) -> None:
        rule = dtypes.comparison if function in (np.equal, np.not_equal) else _ordering
        super().__init__(rule, function, scalar=scalar)


def _ordering(a: np.dtype, b: np.dtype) -> np.dtype:
    no_complex(a, b)
    return dtypes.comparison(a, b)


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "Add": Binary(dtypes.arithmetic, np.add, flop=True, scalar=operator.add),
    "Sub": Binary(dtypes.arithmetic, np.subtract, flop=True, scalar=operator.sub),
    "Mult": Binary(dtypes.arithmetic, np.multiply, flop=True, complex=complexes.multiply, scalar=operator.mul),
    "Div": Binary(division, np.true_divide, flop=True, complex=complexes.divide, scalar=operator.truediv),
    "FloorDiv": Binary(whole_division, _floor_divide),
    "Mod": Binary(whole_division, _remainder),
    "Pow": Power(power, _power),
    "LShift": Binary(shift, _shift_left),
    "RShift": Binary(shift, _shift_right),
    "BitAnd": Binary(bitwise, np.bitwise_and),
    "BitOr": Binary(bitwise, np.bitwise_or),
    "BitXor": Binary(bitwise, np.bitwise_xor),
}

COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "Lt": Compare(np.less, operator.lt),
    "LtE": Compare(np.less_equal, operator.le),
    "Gt": Compare(np.greater, operator.gt),
    "GtE": Compare(np.greater_equal, operator.ge),
    "Eq": Compare(np.equal, operator.eq),
    "NotEq": Compare(np.not_equal, operator.ne),
}


def negate(a: Value) -> Value:
    """`-a`: in its own type, then widened to 64 bits, so that minus a uint8 of 1 is 255; a bool is widened first."""
    widened = dtypes.arithmetic(a.dtype, a.dtype)
    return -cast(a, widened) if a.dtype == BOOL else cast(-a, widened)


def positive(a: Value) -> Value:
    """`+a`: integers widen to 64 bits."""
    return cast(a, dtypes.arithmetic(a.dtype, a.dtype))


def invert(a: Value) -> Value:
    """`~a`: in its own type, then widened to 64 bits, so that ~ of a uint8 of 0 is 255; booleans stay."""
    return cast(~a, bitwise(a.dtype, a.dtype))


UNARY: dict[str, Callable[[Value], Value]] = {
    "USub": negate,
    "UAdd": positive,
    "Invert": invert,
    "Not": lambda a: np.logical_not(truth(cast(a, FLOAT32) if a.dtype == FLOAT16 else a)),
}


def divide_with_remainder(a: Value, b: Value) -> tuple[Value, Value]:
    """`divmod(a, b)`."""
    dtype = dtypes.divmod_type(a.dtype, b.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    return _floor_divide(a, b), _remainder(a, b)


def _extreme(better: Callable, of_two_floats: Callable) -> Callable:
    def choose(*values: Value, two: bool) -> Value:
        bools = [value.dtype == BOOL for value in values]
        if any(bools) and not (all(bools) and two):
            given = " and ".join(str(value.dtype) for value in values)
            raise TypeError(f"min and max take two bools, or numbers: not {given}")
        no_complex(*(value.dtype for value in values))
        floats = two and all(value.dtype in (FLOAT32, FLOAT64) for value in values)
        result = values[0]
        for value in values[1:]:
            dtype = unify(result.dtype, value.dtype)
            a, b = cast(result, dtype), cast(value, dtype)
            result = of_two_floats(a, b) if floats else np.where(better(b, a), b, a)[()]
        return result

    return choose


# Of two float32 or float64 the device's fmin and fmax; otherwise Python's own way, in which a NaN may stay.
minimum, maximum = _extreme(np.less, arithmetic.fmin), _extreme(np.greater, arithmetic.fmax)
