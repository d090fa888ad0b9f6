"""Arithmetic that is rounded once, in the direction that is asked for.

NumPy rounds to nearest only.  The device also rounds down (rd), up (ru) and towards zero (rz), and fuses a product
with a sum.  Two tools do all of it:

    a result and the sign of what its rounding lost (error-free transformations: Dekker, Knuth) tell which neighbour
    the other modes give;

    a float64 rounded to odd keeps enough to be rounded once more, to float32, in any mode, as if it were exact
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
    IEEE Transactions on Computers 57(4), 2008).

Where float64 could overflow or underflow on the way, lanes are computed one by one with Python's fractions.  Only a
multiply-add to nearest, which every product of complex numbers needs, has no such lanes: it scales its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import FLOAT32, FLOAT64, Value, as_intp
from pmpp.simt.values.quick import all_of, any_of

#: The modes, and how each rounds to an integer.  rn: to nearest, ties to even; rz: towards zero; ru: up; rd: down.
WHOLE = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}
MODES = tuple(WHOLE)

_SMALL, _LARGE = 2.0**-200, 2.0**200


# -- error-free transformations --------------------------------------------------------------------------------------


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b as a float64 and what its rounding lost (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b as a float64 and what its rounding lost (Dekker); neither may be near overflow or underflow."""
    p = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def halves(x: Value) -> tuple[Value, Value]:
    """A float64 as two numbers of half as many bits; not near overflow."""
    t = 134217729.0 * x  # 2**27 + 1 splits a float64 into two halves whose products are exact
    high = t - x
    if not isinstance(t, np.ndarray):
        high = t - high
        return high, x - high
    return np.subtract(t, high, out=high), np.subtract(x, high, out=t)


def to_odd(value: Value, lost: Value) -> Value:
    """value + lost rounded to odd: where it is inexact, the neighbour whose last bit is 1."""
    value = np.asarray(value, np.float64)
    even = value.view(np.uint64) & np.uint64(1) == 0
    away = np.nextafter(value, np.copysign(np.inf, lost))
    return np.where(even & (lost != 0) & np.isfinite(value), away, value)


# -- one rounding ----------------------------------------------------------------------------------------------------


def toward(value: Value, lost: Value, mode: str) -> Value:
    """The rounding of value + lost in a mode, `value` being that sum rounded to nearest and `lost` of the right sign.

    Infinity that came of finite operands has lost something negative; give lost = 0 where it is exact.
    """
    if mode == "rn":
        return value
    down = np.nextafter(value, value.dtype.type(-np.inf))
    up = np.nextafter(value, value.dtype.type(np.inf))
    if mode == "rd":
        return np.where(lost < 0, down, value)
    if mode == "ru":
        return np.where(lost > 0, up, value)
    shrink = np.where(value > 0, lost < 0, lost > 0) & (value != 0)
    return np.where(shrink, np.where(value > 0, down, up), value)


def narrow(value: Value, mode: str, dtype: np.dtype = FLOAT32) -> Value:
    """A float64 (exact, or rounded to odd) rounded to a shorter type."""
    value = np.asarray(value, np.float64)
    short = dtypes.cast(value, dtype)
    lost = np.where(np.isinf(value) | np.isnan(value), 0.0, value - short.astype(np.float64))
    return toward(short, lost, mode)


def _zero_sign(result: Value, a: Value, b: Value, mode: str) -> Value:
    """x - x is +0, and -0 when rounding down."""
    if mode != "rd":
        return result
    cancelled = (result == 0) & ~((a == 0) & ~np.signbit(a) & (b == 0) & ~np.signbit(b))
    return np.where(cancelled, np.negative(np.zeros_like(result)), result)


# -- float32: everything is exact, or rounded to odd, in float64 -----------------------------------------------------


def add32(a: Value, b: Value, mode: str = "rn") -> Value:
    """a + b of float32."""
    if mode == "rn":
        return a + b
    wide, lost = two_sum(a.astype(np.float64), b.astype(np.float64))
    return _zero_sign(narrow(to_odd(wide, np.where(np.isfinite(wide), lost, 0.0)), mode), a, b, mode)


def mul32(a: Value, b: Value, mode: str = "rn") -> Value:
    """a * b of float32: a product of 24-bit numbers is exact in float64."""
    return a * b if mode == "rn" else narrow(a.astype(np.float64) * b.astype(np.float64), mode)


def div32(a: Value, b: Value, mode: str = "rn") -> Value:
    """a / b of float32: a quotient of 24-bit numbers is a float32, or no closer than 2**-49 to one."""
    return a / b if mode == "rn" else _keep(np.isinf(a) | (b == 0), a / b, narrow(a.astype(np.float64) / b, mode))


def sqrt32(a: Value, mode: str = "rn") -> Value:
    """Square root of float32, by the same argument."""
    return np.sqrt(a) if mode == "rn" else narrow(np.sqrt(a.astype(np.float64)), mode)


def fma32(a: Value, b: Value, c: Value, mode: str = "rn", dtype: np.dtype = FLOAT32) -> Value:
    """a * b + c of float32, or of a shorter type, in one rounding: the product is exact, the sum is rounded to odd."""
    product, c64 = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    if mode == "rn" and dtype == FLOAT32 and not any_of(_may_round_twice(total := np.asarray(product + c64))):
        return total.astype(FLOAT32)[()]
    wide, lost = two_sum(product, c64)
    result = narrow(to_odd(wide, np.where(np.isfinite(wide), lost, 0.0)), mode, dtype)
    return _zero_sign(result, product, c64, mode)


def _may_round_twice(wide: np.ndarray) -> Value:
    """Where a float64 lies halfway between two float32, or may: rounding it again could differ from rounding once."""
    halfway = wide.view(np.uint64) & np.uint64((1 << 29) - 1) == np.uint64(1 << 28)
    return halfway | ((np.abs(wide) < 2.0**-125) & (wide != 0))


def rsqrt32(a: Value) -> Value:
    """1 / sqrt(a) of float32, to nearest."""
    return (1.0 / np.sqrt(a.astype(np.float64))).astype(np.float32)


# -- float64 ---------------------------------------------------------------------------------------------------------


def _easy(*operands: Value) -> Value:
    """Lanes in which no step can overflow or underflow."""
    result: Value = np.True_
    for x in operands:
        size = np.abs(x)
        result = result & ((size == 0) | ((size > _SMALL) & (size < _LARGE)))
    return result


def _keep(where: Value, special: Value, result: Value) -> Value:
    return np.where(where, special, result) if np.any(where) else result


def _rest(easy: Value, result: Value, slow: Callable[..., float], *operands: Value) -> Value:
    """`result` in the easy lanes, the others one by one."""
    if np.all(easy):
        return result
    shape = np.broadcast_shapes(*(np.shape(x) for x in operands))
    result = np.array(np.broadcast_to(result, shape))
    flat, hard = result.reshape(-1), np.flatnonzero(~np.broadcast_to(easy, shape))
    columns = [np.broadcast_to(x, shape).reshape(-1)[hard].tolist() for x in operands]
    flat[hard] = [slow(*row) for row in zip(*columns, strict=True)]
    return result


def add64(a: Value, b: Value, mode: str = "rn") -> Value:
    """a + b of float64."""
    if mode == "rn":
        return a + b
    total, lost = two_sum(a, b)
    result = _zero_sign(toward(total, lost, mode), a, b, mode)
    return _rest(_easy(a, b), result, lambda x, y: _exactly(lambda p, q: p + q, mode, x + y, x, y), a, b)


def mul64(a: Value, b: Value, mode: str = "rn") -> Value:
    """a * b of float64."""
    if mode == "rn":
        return a * b
    result = toward(*two_product(a, b), mode)
    return _rest(_easy(a, b), result, lambda x, y: _exactly(lambda p, q: p * q, mode, x * y, x, y), a, b)


def div64(a: Value, b: Value, mode: str = "rn") -> Value:
    """a / b of float64."""
    if mode == "rn":
        return a / b
    quotient = a / b
    p, e = two_product(quotient, b)
    result = toward(quotient, ((a - p) - e) * np.sign(b), mode)

    def slow(x: float, y: float) -> float:
        nearest = float(np.float64(x) / np.float64(y))
        return nearest if y == 0 else _exactly(lambda p, q: p / q, mode, nearest, x, y)

    return _rest(_easy(a, b) & (a != 0) & (b != 0), result, slow, a, b)


def sqrt64(a: Value, mode: str = "rn") -> Value:
    """Square root of float64."""
    root = np.sqrt(a)
    if mode == "rn":
        return root
    p, e = two_product(root, root)
    result = toward(root, (a - p) - e, mode)
    return _rest(_easy(a) & (a > 0), result, lambda x: _sqrt_exactly(x, mode), a)


def fma64(a: Value, b: Value, c: Value, mode: str = "rn") -> Value:
    """a * b + c of float64 in one rounding (Boldo and Melquiond, figure 5)."""
    if mode == "rn":
        return _fma64_to_nearest(a, b, c)
    uh, ul = two_product(a, b)
    th, tl = two_sum(c, ul)
    vh, vl = two_sum(uh, th)
    z = to_odd(*two_sum(tl, vl))
    result, lost = two_sum(vh, z)
    nothing = (a == 0) | (b == 0)  # the steps above lose the sign of a zero product
    result = _zero_sign(_keep(nothing, a * b + c, toward(result, lost, mode)), uh, c, mode)

    def slow(x: float, y: float, w: float) -> float:
        if math.isinf(w) and math.isfinite(x) and math.isfinite(y):  # the product is finite, even if it is no float64
            return w
        return _exactly(lambda p, q, r: p * q + r, mode, x * y + w, x, y, w)

    return _rest(_easy(a, b, c), result, slow, a, b, c)


#: Elements that are computed together, so that some dozen arrays of them stay in the CPU's cache.
CHUNK = 1 << 13


def _fma64_to_nearest(a: Value, b: Value, c: Value) -> Value:
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    a, b, c = (np.ascontiguousarray(x, np.float64) for x in (a, b, c))
    if math.prod(shape) <= CHUNK:
        return nearest_fma64(a, b, c, halves(a), halves(b)).reshape(shape)[()]
    flat = [np.broadcast_to(x, shape).reshape(-1) for x in (a, b, c)]
    result = np.empty(flat[0].size, np.float64)
    for start in range(0, result.size, CHUNK):
        part = slice(start, start + CHUNK)
        x, y, z = (each[part] for each in flat)
        result[part] = nearest_fma64(x, y, z, halves(x), halves(y))
    return result.reshape(shape)


def nearest_fma64(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, a_parts: tuple[Value, Value], b_parts: tuple[Value, Value]
) -> np.ndarray:
    """a * b + c, to nearest, of contiguous arrays of at most CHUNK numbers; the factors also come as `halves`.

    The product and its error, the sum and its error; then one rounding of the sum with what both have lost.  That is
    itself rounded.  The result is right if it would be the same for all that this rounding can have been (Ziv's test),
    and nearly always it is.  The few other lanes are computed as figure 5 has it.
    """
    product = a * b
    (ah, al), (bh, bl) = a_parts, b_parts
    low = ah * bh  # with few arrays, which stay in the CPU's cache: ((ah bh - product) + ah bl + al bh) + al bl
    low -= product
    part = ah * bl
    low += part
    low += part if a is b else np.multiply(al, bh, out=part)
    low += np.multiply(al, bl, out=part)
    total = product + c  # and what its rounding lost, as `two_sum`
    part = total - product
    lost = total - part
    np.subtract(product, lost, out=lost)
    lost += np.subtract(c, part, out=part)
    lost += low
    result = total + lost
    np.multiply(lost, 1 + 2.0**-51, out=part)
    part += total
    lost *= 1 - 2.0**-51
    lost += total
    fine = part == lost  # which no NaN is, nor what came of a sum that is infinite
    size = np.abs(product, out=product)
    if not (size.min() > 2.0**-900 and size.max() < 2.0**900):
        fine &= (size > 2.0**-900) & (size < 2.0**900)
    if all_of(fine):
        return result
    some = as_intp(np.flatnonzero(~fine))
    a, b, c, total, low, size = (
        np.broadcast_to(x, result.shape).reshape(-1).take(some) for x in (a, b, c, total, low, size)
    )
    # The sum is rounded once already, and has the right sign if it is zero, where the product is exact.
    exact = (a == 0) | (b == 0) | ((low == 0) & (size > 2.0**-900) & (size < 2.0**900))
    exact &= np.isfinite(total)
    flat, rest = result.reshape(-1), ~exact
    flat[some[exact]] = total[exact]
    if any_of(rest):
        operands = [x[rest] for x in (a, b, c)]
        few = _fma64_of_few(*operands) if operands[0].size <= FEW else None
        flat[some[rest]] = _fma64_of_any_size(*operands) if few is None else few
    return result


#: So many multiply-adds take less time one by one than as arrays.
FEW = 16


def _fma64_of_few(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[float] | None:
    """By Python's integers, whose quotient is rounded once.  None if one is infinite, NaN or exactly 0."""
    found = []
    for each in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        if not all(map(math.isfinite, each)):
            return None
        (x, over_x), (y, over_y), (z, over_z) = (number.as_integer_ratio() for number in each)
        over = x * y * over_z + z * over_x * over_y
        if over == 0:
            return None
        try:
            found.append(over / (over_x * over_y * over_z))
        except OverflowError:
            found.append(math.inf if over > 0 else -math.inf)
    return found


def _fma64_of_any_size(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """By figure 5, on operands that are scaled by powers of two so that nothing overflows or is lost on the way."""
    plain = a * b + c
    finite = np.isfinite(a) & np.isfinite(b)
    plain = np.where(finite & np.isinf(c), c, plain)  # the product is finite, even if it is no float64
    scaled = finite & np.isfinite(c) & (a != 0) & (b != 0)
    (a, i), (b, j), (c, k) = (np.frexp(np.where(scaled, x, 1.0)) for x in (a, b, c))
    top = np.maximum(i + j, np.where(c == 0, i + j, k))
    # What is 2**-300 of the other operand decides where that one lies halfway, and by its sign alone.
    up, down = np.maximum(i + j - top, -300), np.maximum(k - top, -300)
    uh, ul = (np.ldexp(x, up) for x in two_product(a, b))
    th, tl = two_sum(np.ldexp(c, down), ul)
    vh, vl = two_sum(uh, th)
    result, rest = two_sum(vh, to_odd(*two_sum(tl, vl)))
    # A result below the least normal number is a multiple of 2**-1074.
    _, exponent = np.frexp(result)
    small = (exponent + top < -1021) & (result != 0)
    unit = np.where(small, -1074 - top, 0)
    whole = np.ldexp(result, -unit)
    nearest = np.rint(whole)
    part = whole - nearest
    nearest = nearest + ((part == 0.5) & (rest > 0)) - ((part == -0.5) & (rest < 0))
    nearest = np.where(nearest == 0, np.copysign(0.0, result), nearest)
    return np.where(scaled, np.where(small, np.ldexp(nearest, -1074), np.ldexp(result, top)), plain)


def from_int(value: Value, dtype: np.dtype, mode: str = "rn") -> Value:
    """An integer of up to 64 bits as a float."""
    if mode == "rn" and dtype.itemsize > 2:  # NumPy goes to 16 bits by way of float32, which would round twice
        return value.astype(dtype)
    wide = value.astype(np.uint64 if value.dtype.kind == "u" else np.int64)
    high = (wide >> wide.dtype.type(32)).astype(np.float64) * 2.0**32
    low = (wide & wide.dtype.type(0xFFFFFFFF)).astype(np.float64)
    total, lost = two_sum(high, low)
    return toward(total, lost, mode) if dtype == FLOAT64 else narrow(to_odd(total, lost), mode, dtype)


# -- one lane at a time, exactly -------------------------------------------------------------------------------------


def _exactly(operation: Callable[..., Fraction], mode: str, nearest: float, *operands: float) -> float:
    """An operation on fractions, rounded; `nearest` is the answer where an operand is no finite number."""
    if not all(map(math.isfinite, operands)):
        return nearest
    exact = operation(*map(Fraction, operands))
    if exact == 0:  # the sign of a zero is that of plain arithmetic, but for x - x rounded down
        if mode == "rd" and math.copysign(1.0, nearest) > 0 and any(operands[-1:]):
            return -0.0
        return nearest
    return round_fraction(exact, mode)


def round_fraction(exact: Fraction, mode: str) -> float:
    """A fraction other than zero as a float64."""
    size = abs(exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), -1022)
    unit = Fraction(2) ** (exponent - 52)
    while size >= unit * 2**53:
        unit *= 2
    while size < unit * 2**52 and unit > Fraction(2) ** -1074:
        unit /= 2
    count, rest = divmod(size, unit)
    negative = exact < 0
    up = {"rn": rest * 2 > unit or (rest * 2 == unit and count % 2 == 1), "rz": False,
          "ru": rest > 0 and not negative, "rd": rest > 0 and negative}[mode]  # fmt: skip
    size = (int(count) + up) * unit
    try:
        result = float(size)
    except OverflowError:
        result = math.inf
    if result == math.inf and (mode == "rz" or (mode == "rd" and not negative) or (mode == "ru" and negative)):
        result = float(np.finfo(np.float64).max)
    return -result if negative else result


def _sqrt_exactly(x: float, mode: str) -> float:
    if not (math.isfinite(x) and x > 0):
        return float(np.sqrt(np.float64(x)))
    shift = 2 * (540 - math.frexp(x)[1] // 2)
    scaled = Fraction(x) * Fraction(2) ** shift  # about 2**1080: its root has far more bits than are wanted
    root = math.isqrt(int(scaled))
    exact = Fraction(root) if root * root == scaled else Fraction(2 * root + 1, 2)  # between two integers: sticky
    return round_fraction(exact / Fraction(2) ** (shift // 2), mode)
