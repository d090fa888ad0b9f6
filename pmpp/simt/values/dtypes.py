"""Numba's typing, which is not NumPy's.

Numba widens: `int32 + int32` is int64, `uint8 * uint8` is uint64, `float32 * int32` is float64.  A kernel that is
right or fast under NumPy's rules may be wrong or slow under these, so the interpreter follows them to the letter.
Literals and plain Python scalars are int64 and float64.  tests/simt/test_typing.py asks Numba itself about every
pair.

Nothing may depend on NumPy's default integer, which has 32 bits on some platforms (a browser): in all of `pmpp.simt`
each dtype is said, and indices are handed to NumPy by `as_intp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BOOL, INT32, UINT32 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.uint32)
INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
INTP = np.dtype(np.intp)
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
COMPLEX64, COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)

try:
    from ml_dtypes import bfloat16

    BFLOAT16, HAS_BFLOAT16 = np.dtype(bfloat16), True
except ImportError:  # NumPy has bfloat16 from that package only; here is a type that no value has
    BFLOAT16, HAS_BFLOAT16 = np.dtype("V2"), False

SHORT_FLOATS = (FLOAT16, BFLOAT16)

Value = np.ndarray | np.generic

#: Integers that Numba converts to float32, not to float64, when the other operand is float32.
SMALL = frozenset(map(np.dtype, (np.bool_, np.int8, np.int16, np.uint8)))
#: What a complex64 stays complex64 with.
_SHORT = SMALL | {FLOAT16, FLOAT32, COMPLEX64}


def is_number(value: Any) -> bool:
    """A typed scalar or lane array, not an array reference, tuple or type."""
    return isinstance(value, (np.generic, np.ndarray))


def is_int(dtype: np.dtype) -> bool:
    """Integers and booleans."""
    return dtype.kind in "iub"


def is_float(dtype: np.dtype) -> bool:
    """float16, float32, float64."""
    return dtype.kind == "f"


def arithmetic(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type in which `a + b`, `a - b` and `a * b` are computed."""
    if is_int(a) and is_int(b):
        return UINT64 if a.kind == b.kind == "u" else INT64
    if a != b:  # with anything but itself, bfloat16 is a float32
        a, b = no_brain(a), no_brain(b)
    if a == b or (is_float(a) and is_float(b)):
        return np.promote_types(a, b)
    if "c" in (a.kind, b.kind):
        return COMPLEX64 if all(x in _SHORT for x in (a, b)) else COMPLEX128
    floating, integer = (a, b) if is_float(a) else (b, a)
    if floating == FLOAT16:
        return FLOAT16 if integer in (BOOL, np.int8) else FLOAT32 if integer in SMALL else FLOAT64
    return floating if floating != FLOAT32 or integer in SMALL else FLOAT64


def no_brain(dtype: np.dtype) -> np.dtype:
    return FLOAT32 if dtype == BFLOAT16 else dtype


def division(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a / b`."""
    return FLOAT64 if is_int(a) and is_int(b) else arithmetic(a, b)


def whole_division(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a // b` and `a % b`: two float16 give a float32."""
    no_complex(a, b)
    dtype = arithmetic(no_brain(a), no_brain(b))
    return FLOAT32 if dtype == FLOAT16 else dtype


def divmod_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of both results of `divmod(a, b)`, which for integers is not that of `a // b`."""
    if not (is_int(a) and is_int(b)):
        return whole_division(a, b)
    if unify(a, b) == FLOAT64:  # uint64 and a signed integer
        return FLOAT64
    return INT64 if "i" in (a.kind, b.kind) or a == b == BOOL else UINT64


def comparison(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type in which `a < b` and its like are computed."""
    return unify(a, b) if is_int(a) and is_int(b) else arithmetic(a, b)


def no_complex(*found: np.dtype) -> None:
    if any(dtype.kind == "c" for dtype in found):
        raise TypeError("a complex number has no order and no integer part")


def power(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a ** b`; a float base keeps its width under an integer exponent."""
    if a == BOOL and b == INT32:
        return FLOAT32  # a quirk of Numba's overload table
    a, b = no_brain(a), no_brain(b)
    dtype = a if is_float(a) and is_int(b) else arithmetic(a, b)
    return FLOAT32 if dtype == FLOAT16 else dtype


def shift(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a << b` and `a >> b`: the left operand decides the sign."""
    _integers_only(a, b)
    return UINT64 if a.kind == "u" else INT64


def bitwise(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a & b`, `a | b`, `a ^ b`."""
    _integers_only(a, b)
    return BOOL if a == b == BOOL else arithmetic(a, b)


def _integers_only(a: np.dtype, b: np.dtype) -> None:
    if not (is_int(a) and is_int(b)):
        raise TypeError(f"this operator takes integers, not {a} and {b}")


def unify(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of a variable that is assigned an `a` on one path and a `b` on another; also of `min` and `max`."""
    return a if a == b else np.promote_types(a, b)


def cast(value: Value, dtype: np.dtype) -> Value:
    """Convert as the device does (measured on an H200).

    Integers wrap.  Floats truncate towards zero and saturate, but a float16 is rounded to nearest, because Numba uses
    that instruction; 8-bit integers are made of a saturated 16-bit one by dropping its upper half.  NaN becomes 0, or
    the integer whose only set bit is the highest where either side has 64 bits (PTX ISA, cvt).
    """
    if value.dtype == dtype:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "iu" and dtype.kind in "iu":
        return dtype.type(value)  # a third of the work of `astype`
    if value.dtype == BFLOAT16:
        return cast(value.astype(FLOAT32), dtype)
    if dtype == BFLOAT16:
        return _to_brain(value)
    if value.dtype.kind == "c" and dtype.kind not in "cb":
        raise TypeError(f"a complex number is no {dtype}: take its .real, its .imag or abs()")
    if value.dtype.kind == "f" and dtype.kind in "iu":
        return _to_int(value, dtype)
    if dtype == BOOL:
        return truth(value)
    return value.astype(dtype)


def _to_int(value: Value, dtype: np.dtype) -> Value:
    if dtype.itemsize == 1 and value.dtype != FLOAT16:  # the device has no such conversion: by way of 16 bits
        return _to_int(value, np.dtype(f"{dtype.kind}2")).astype(dtype)
    info = np.iinfo(dtype)
    wide = value.astype(FLOAT64)
    wide = np.rint(wide) if value.dtype == FLOAT16 else np.trunc(wide)
    # The largest float64 below 2**63 is exact; the bound itself is not, hence `>=` on the float side.
    low, high = wide <= float(info.min), wide >= float(info.max)
    nan = np.isnan(wide)
    if not (low.any() or high.any() or nan.any()):
        return wide.astype(dtype)
    inside = np.where(low | high | nan, 0.0, wide).astype(dtype)
    result = np.where(high, dtype.type(info.max), np.where(low, dtype.type(info.min), inside))
    if value.dtype.itemsize == 8 or dtype.itemsize == 8:
        top = info.min if dtype.kind == "i" else info.max // 2 + 1
        result = np.where(nan, dtype.type(top), result)
    return result if result.ndim else result[()]


def _to_brain(value: Value) -> Value:
    """One rounding, by way of a float32 that is rounded to odd."""
    if value.dtype.kind in "iu" and value.dtype.itemsize == 8:
        exact = value.astype(FLOAT64)
        low = value - cast(exact, value.dtype)  # what float64 lost, as an integer that may wrap: its sign is right
        value = _odd(exact, np.sign(low.astype(np.int64)), np.uint64)
    wide = value.astype(FLOAT64)
    short = wide.astype(FLOAT32)
    lost = np.where(np.isfinite(short), wide - short, 0.0)
    brain = _odd(short, lost, np.uint32).astype(BFLOAT16)
    if np.isnan(short).any():  # the device has one NaN (PTX ISA, cvt)
        brain = np.where(np.isnan(short), np.uint16(0x7FFF), brain.view(np.uint16)).view(BFLOAT16)
    return brain[()]


def _odd(value: Value, lost: Value, bits: type) -> Value:
    value = np.asarray(value)
    even = value.view(bits) & bits(1) == 0
    up, down = (np.nextafter(value, value.dtype.type(end)) for end in (np.inf, -np.inf))
    return np.where(even & (lost != 0), np.where(lost > 0, up, down), value)


def as_intp(places: Value) -> Value:
    """Integers in the type that NumPy's take, bincount, repeat and choose want: 32 bits wide in a browser."""
    return places if places.dtype == INTP else places.astype(INTP)


def truth(a: Value) -> Value:
    """The value as a condition."""
    if a.dtype == FLOAT16:
        raise TypeError("a float16 is no condition, for Numba cannot compile it: write x != 0")
    return a if a.dtype == BOOL else a != a.dtype.type(0)


def as_dtype(thing: object) -> np.dtype | None:
    """The NumPy dtype that `thing` names (a NumPy, Numba or interpreter type), or None if it names none."""
    if isinstance(thing, np.dtype):
        return thing
    if isinstance(thing, type) and issubclass(thing, np.generic):
        return np.dtype(thing)
    inner = getattr(thing, "dtype", None)
    if isinstance(inner, np.dtype) and type(thing).__name__ == "ScalarType":
        return inner
    if type(thing).__module__.startswith(("numba.core.types", "numba.cuda.types")):
        name = getattr(thing, "name", "")
        try:
            return BFLOAT16 if "bfloat16" in name else np.dtype({"boolean": "bool"}.get(name, name))
        except (TypeError, ValueError):
            return inner if isinstance(inner, np.dtype) else None  # a record
    return {bool: BOOL, int: INT64, float: FLOAT64}.get(thing) if isinstance(thing, type) else None


def constant(thing: object) -> Value | None:
    """A Python or NumPy scalar as a typed value: ints are int64 (uint64 above its range), floats float64."""
    if isinstance(thing, np.void):
        return None
    if isinstance(thing, np.generic):
        return thing
    if isinstance(thing, bool):
        return np.bool_(thing)
    if isinstance(thing, int):
        if -(1 << 63) <= thing < 1 << 63:
            return np.int64(thing)
        return np.uint64(thing) if thing < 1 << 64 and thing > 0 else None
    if isinstance(thing, float):
        return np.float64(thing)
    if isinstance(thing, complex):
        return np.complex128(thing)
    return None
