"""Arithmetic that Numba or the device does in its own way, not in NumPy's: remainders, powers, extremes, lengths.

The rules are those of Numba's lowering (numba_cuda.numba.cuda.cpython.numbers: real_divmod, int_power_impl)
and of the PTX that NVIDIA's compiler makes of frem, libdevice's powi and hypot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.simt.values import dtypes, rounding
from pmpp.simt.values.dtypes import FLOAT32, FLOAT64, INT32, INT64, Value

#: Numba multiplies out integer exponents up to this one; beyond it, it calls pow in float64.
LARGEST_EXPONENT = 0x10000


# -- remainder and whole quotient of floats --------------------------------------------------------------------------


def _truncated_remainder(x: Value, y: Value) -> Value:
    """LLVM's frem as PTX: |x| - floor(|x| / |y|) * |y|, the quotient rounded, the rest fused; then the sign of x.

    So it is not C's fmod: it is wrong, even in sign, once the quotient has more digits than a float, and NaN where y
    is infinite (0 times infinity).
    """
    size = np.abs(y)
    fma = rounding.fma32 if x.dtype == FLOAT32 else rounding.fma64
    rest = fma(-np.floor(np.abs(x) / size), size, np.abs(x))
    return np.where(x < 0, -rest, rest)


def _divmod(x: Value, y: Value) -> tuple[Value, Value, Value]:
    rest = _truncated_remainder(x, y)
    quotient = (x - rest) / y
    other_side = (rest != 0) & ((y < 0) != (rest < 0))
    return rest, quotient, other_side


def float_remainder(x: Value, y: Value) -> Value:
    """`x % y` of two floats of one type: Python's rule on top of the device's remainder."""
    rest, _, other_side = _divmod(x, y)
    shifted = np.where(other_side, rest + y, np.where(rest != 0, rest, np.where(y < 0, -0.0, 0.0)))
    return np.where(y == 0, rest, shifted).astype(x.dtype)[()]


def float_whole_quotient(x: Value, y: Value) -> Value:
    """`x // y` of two floats of one type."""
    _, quotient, other_side = _divmod(x, y)
    quotient = np.where(other_side, quotient - 1, quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    zero = quotient * quotient * x / y  # keeps the sign
    return np.where(y == 0, x / y, np.where(quotient != 0, whole, zero)).astype(x.dtype)[()]


# -- powers ----------------------------------------------------------------------------------------------------------


def real_power(a: Value, b: Value) -> Value:
    """C's pow of two floats of one type.  NumPy takes the square root for it if the exponent is 0.5, which is not the
    same of -infinity and -0."""
    result = np.power(a, b)
    half = (b == 0.5) & ((a == 0) | np.isinf(a))
    return np.where(half, np.abs(a), result)[()] if half.any() else result


def multiply_out(a: Value, exponent: Value) -> Value:
    """a to a power of at least 0, by squaring, in the type of a: integers wrap, floats round at every step."""
    left = np.asarray(exponent).astype(np.uint64)
    result, square = a.dtype.type(1), a
    while True:
        result = np.where(left & np.uint64(1), square * result, result)
        left = left >> np.uint64(1)
        if not left.any():
            return result.astype(a.dtype)[()]
        square = square * square


def integer_power(a: Value, b: Value) -> Value:
    """`a ** b` of two integers.

    The product wraps.  Numba has it as float64, since a negative exponent gives a fraction, and converts it back: of a
    product beyond 2**53 the last digits are lost.  0 to a negative power is the least integer.  An exponent that is not
    multiplied out gives the nearest integer there is.
    """
    negative = b < 0
    size = np.where(negative, -b, b)
    large = size > LARGEST_EXPONENT
    result = multiply_out(a, np.where(large, 0, size)).astype(FLOAT64)
    if np.any(large):
        result = np.where(large, real_power(a.astype(FLOAT64), b.astype(FLOAT64)), result)
    result = dtypes.cast(result[()], a.dtype)
    if np.any(negative):
        zero = np.where(a == 0, a.dtype.type(np.iinfo(a.dtype).min), a.dtype.type(0))
        result = np.where(negative & (a != 1) & (a != -1), zero, result)
    return result.astype(a.dtype)[()]


def float_power(a: Value, b: Value) -> Value:
    """`a ** b` of a float and an integer."""
    negative = b < 0
    size = np.where(negative, -b.astype(INT64), b)
    large = size > LARGEST_EXPONENT
    result = multiply_out(a, np.where(large, 0, size))
    if np.any(negative):
        result = np.where(negative, 1 / result, result)
    if np.any(large):
        result = np.where(large, real_power(a.astype(FLOAT64), b.astype(FLOAT64)), result)
    return result.astype(a.dtype)[()]


def too_negative(a: Value, b: Value) -> Value:
    """Where Numba raises an OverflowError: `-b` of the least integer is negative still."""
    dtype = b.dtype if dtypes.power(a.dtype, b.dtype).kind == "f" else INT64
    if b.dtype.kind != "i" or dtype not in (INT32, INT64):
        return np.False_
    return b.astype(dtype) == np.iinfo(dtype).min


def powi(a: Value, n: Value) -> Value:
    """libdevice's powi, which is `math.pow(float, int32)`: multiplied out whatever the exponent, then inverted."""
    product = multiply_out(a, np.abs(n.astype(INT64)))
    return np.where(n < 0, 1 / product, product).astype(a.dtype)[()]


# -- the larger and the smaller of two floats --------------------------------------------------------------------------


def _tied(a: Value, b: Value, result: Value, combine: Callable) -> Value:
    """`result` with the bits of equal numbers combined: NumPy may take either zero."""
    tied = a == b
    if not tied.any():
        return result
    bits = np.dtype(f"i{result.dtype.itemsize}")
    return np.where(tied, combine(a.view(bits), b.view(bits)).view(result.dtype), result)[()]


def fmax(a: Value, b: Value) -> Value:
    """The larger of two floats of one type: a NaN gives way to a number, and -0 to 0."""
    return _tied(a, b, np.fmax(a, b), np.bitwise_and)


def fmin(a: Value, b: Value) -> Value:
    """The smaller of two floats of one type: a NaN gives way to a number, and 0 to -0."""
    return _tied(a, b, np.fmin(a, b), np.bitwise_or)


# -- length of a vector ----------------------------------------------------------------------------------------------


def hypot(x: Value, y: Value) -> Value:
    """libdevice's hypot of two floats of one type.

    Scaled by a power of two, so that squares fit; but the root is rounded before it is scaled back, and for float64 it
    is h * (1 / sqrt(h)), rounded twice: what lies within a few units of the largest number may overflow.
    """
    x, y = np.broadcast_arrays(np.abs(x), np.abs(y))
    low, high = np.minimum(x, y), np.maximum(x, y)
    plain = ~np.isfinite(high) | (low == 0)
    safe = np.where(plain, x.dtype.type(1), high)
    low = np.where(plain, x.dtype.type(1), low)
    root, back = (_length32 if x.dtype == FLOAT32 else _length64)(low, safe)
    infinite = np.isinf(x) | np.isinf(y)
    return np.where(infinite, np.inf, np.where(plain, high, root * back)).astype(x.dtype)[()]


def _length32(low: Value, high: Value) -> tuple[Value, Value]:
    exponent = high.view(np.int32) & np.int32(-0x2000000)
    scale = (np.int32(0x7E800000) - exponent).view(FLOAT32)
    low, high = low * scale, high * scale
    return np.sqrt(rounding.fma32(high, high, low * low)), (exponent | np.int32(0x800000)).view(FLOAT32)


def _length64(low: Value, high: Value) -> tuple[Value, Value]:
    exponent = (high.view(np.int64) >> np.int64(32)) & np.int64(-0x400000)
    scale = ((np.int64(0x7FD00000) - exponent) << np.int64(32)).view(FLOAT64)
    low, high = low * scale, high * scale
    square, lost = rounding.two_product(high, high)
    square = square + (low * low + lost)
    return square * (1 / np.sqrt(square)), ((exponent | np.int64(0x100000)) << np.int64(32)).view(FLOAT64)
