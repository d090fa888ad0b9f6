"""Numba's typing, which is not NumPy's.

Numba widens: `int32 + int32` is int64, `uint8 * uint8` is uint64, `float32 * int32` is float64.  A kernel that is
right or fast under NumPy's rules may be wrong or slow under these, so the interpreter follows them to the letter.
Literals and plain Python scalars are int64 and float64.  tests/test_simt_typing.py asks Numba itself about every
pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BOOL, INT32, UINT32 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.uint32)
INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
COMPLEX64, COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)

try:
    from ml_dtypes import bfloat16

    BFLOAT16, HAS_BFLOAT16 = np.dtype(bfloat16), True
except ImportError:  # NumPy has bfloat16 from that package only; here is a type that no value has
    BFLOAT16, HAS_BFLOAT16 = np.dtype("V2"), False

Value = np.ndarray | np.generic

#: Integers that Numba converts to float32, not to float64, when the other operand is float32.
_SMALL = frozenset(map(np.dtype, (np.bool_, np.int8, np.int16, np.uint8)))
#: What a complex64 stays complex64 with.
_SHORT = _SMALL | {FLOAT16, FLOAT32, COMPLEX64}


def is_int(dtype: np.dtype) -> bool:
    """Integers and booleans."""
    return dtype.kind in "iub"


def is_float(dtype: np.dtype) -> bool:
    """float16, float32, float64."""
    return dtype.kind == "f"


def arithmetic(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type in which `a + b`, `a - b`, `a * b` and a comparison are computed."""
    if is_int(a) and is_int(b):
        return UINT64 if a.kind == b.kind == "u" else INT64
    if a != b:  # with anything but itself, bfloat16 is a float32
        a, b = _no_brain(a), _no_brain(b)
    if a == b or (is_float(a) and is_float(b)):
        return np.promote_types(a, b)
    if "c" in (a.kind, b.kind):
        return COMPLEX64 if all(x in _SHORT for x in (a, b)) else COMPLEX128
    floating, integer = (a, b) if is_float(a) else (b, a)
    if floating == FLOAT16:
        return FLOAT16 if integer in (BOOL, np.int8) else FLOAT32 if integer in _SMALL else FLOAT64
    return floating if floating != FLOAT32 or integer in _SMALL else FLOAT64


def _no_brain(dtype: np.dtype) -> np.dtype:
    return FLOAT32 if dtype == BFLOAT16 else dtype


def division(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a / b`."""
    return FLOAT64 if is_int(a) and is_int(b) else arithmetic(a, b)


def whole_division(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a // b` and `a % b`: two float16 give a float32."""
    _no_complex(a, b)
    dtype = arithmetic(_no_brain(a), _no_brain(b))
    return FLOAT32 if dtype == FLOAT16 else dtype


def _no_complex(*found: np.dtype) -> None:
    if any(dtype.kind == "c" for dtype in found):
        raise TypeError("a complex number has no order and no integer part")


def power(a: np.dtype, b: np.dtype) -> np.dtype:
    """Type of `a ** b`; a float base keeps its width under an integer exponent."""
    if a == BOOL and b == INT32:
        return FLOAT32  # a quirk of Numba's overload table
    a, b = _no_brain(a), _no_brain(b)
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
    if value.dtype == BFLOAT16:
        return cast(value.astype(FLOAT32), dtype)
    if dtype == BFLOAT16:
        return _to_brain(value)
    if value.dtype.kind == "c" and dtype.kind not in "cb":
        raise TypeError(f"a complex number is no {dtype}: take its .real, its .imag or abs()")
    if value.dtype.kind == "f" and dtype.kind in "iu":
        return _to_int(value, dtype)
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
    return _odd(short, lost, np.uint32).astype(BFLOAT16)[()]


def _odd(value: Value, lost: Value, bits: type) -> Value:
    value = np.asarray(value)
    even = value.view(bits) & bits(1) == 0
    up, down = (np.nextafter(value, value.dtype.type(end)) for end in (np.inf, -np.inf))
    return np.where(even & (lost != 0), np.where(lost > 0, up, down), value)


def _floor_divide(a: Value, b: Value) -> Value:
    quotient = np.floor_divide(a, b)
    if a.dtype == INT64 and (b == -1).any():  # -2**63 // -1 does not fit; Numba gives 0
        quotient = np.where((b == -1) & (a == np.iinfo(INT64).min), INT64.type(0), quotient)[()]
    return quotient


def _shift_amount(b: Value) -> Value:
    return np.asarray(b).astype(INT64)


def _shift_left(a: Value, b: Value) -> Value:
    # The device shifts by the amount it is given; 64 or more leaves nothing, where C (and NumPy on some CPUs) wraps
    # around.
    n = _shift_amount(b)
    kept = np.left_shift(a, np.clip(n, 0, 63).astype(a.dtype))
    return np.where((n < 0) | (n > 63), a.dtype.type(0), kept)[()]


def _shift_right(a: Value, b: Value) -> Value:
    n = _shift_amount(b)
    kept = np.right_shift(a, np.clip(n, 0, 63).astype(a.dtype))
    gone = np.where(a < 0, -1, 0).astype(a.dtype) if a.dtype.kind == "i" else a.dtype.type(0)
    return np.where((n < 0) | (n > 63), gone, kept)[()]


def _power(a: Value, b: Value) -> Value:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    negative = b < 0 if b.dtype.kind == "i" else np.False_
    if not np.any(negative):
        return np.power(a, b)
    # NumPy refuses negative integer powers; on the device 1/a**n truncates to 0 except for a = 1 and -1.
    flipped = np.where(negative, -b, b)
    whole = np.power(a, flipped)
    return np.where(negative, np.where(np.abs(whole) == 1, whole, 0), whole)[()].astype(a.dtype)


class Binary:
    """A binary operator: the type it computes in, and the NumPy function that does it."""

    __slots__ = ("flop", "function", "rule", "types")

    def __init__(
        self, rule: Callable[[np.dtype, np.dtype], np.dtype], function: Callable, *, flop: bool = False
    ) -> None:
        self.rule, self.function, self.flop = rule, function, flop
        self.types: dict[tuple[np.dtype, np.dtype], np.dtype] = {}

    def __call__(self, a: Value, b: Value) -> Value:
        key = (a.dtype, b.dtype)
        dtype = self.types.get(key)
        if dtype is None:
            dtype = self.types[key] = self.rule(*key)
        if key[0] is not dtype and key[0] != dtype:
            a = a.astype(dtype)
        if key[1] is not dtype and key[1] != dtype:
            b = b.astype(dtype)
        return self.function(a, b)


def _compare(function: Callable) -> Callable:
    ordering = function not in (np.equal, np.not_equal)

    def compare(a: Value, b: Value) -> Value:
        if ordering:
            _no_complex(a.dtype, b.dtype)
        if {a.dtype, b.dtype} == _SIGN_MIX:
            # NumPy compares these exactly; Numba converts both to float64 first.
            return function(a.astype(FLOAT64), b.astype(FLOAT64))
        if a.dtype == b.dtype:
            return function(a, b)
        dtype = arithmetic(a.dtype, b.dtype)
        return function(a.astype(dtype), b.astype(dtype))

    return compare


_SIGN_MIX = {INT64, UINT64}
BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "Add": Binary(arithmetic, np.add, flop=True),
    "Sub": Binary(arithmetic, np.subtract, flop=True),
    "Mult": Binary(arithmetic, np.multiply, flop=True),
    "Div": Binary(division, np.true_divide, flop=True),
    "FloorDiv": Binary(whole_division, _floor_divide),
    "Mod": Binary(whole_division, np.remainder),
    "Pow": Binary(power, _power),
    "LShift": Binary(shift, _shift_left),
    "RShift": Binary(shift, _shift_right),
    "BitAnd": Binary(bitwise, np.bitwise_and),
    "BitOr": Binary(bitwise, np.bitwise_or),
    "BitXor": Binary(bitwise, np.bitwise_xor),
}

COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "Lt": _compare(np.less),
    "LtE": _compare(np.less_equal),
    "Gt": _compare(np.greater),
    "GtE": _compare(np.greater_equal),
    "Eq": _compare(np.equal),
    "NotEq": _compare(np.not_equal),
}


def negate(a: Value) -> Value:
    """`-a`: integers widen to 64 bits."""
    return np.negative(cast(a, arithmetic(a.dtype, a.dtype)))


def positive(a: Value) -> Value:
    """`+a`: integers widen to 64 bits."""
    return cast(a, arithmetic(a.dtype, a.dtype))


def invert(a: Value) -> Value:
    """`~a`: integers widen to 64 bits, booleans stay."""
    return np.invert(cast(a, bitwise(a.dtype, a.dtype)))


def truth(a: Value) -> Value:
    """The value as a condition."""
    return a if a.dtype == BOOL else a != a.dtype.type(0)


UNARY: dict[str, Callable[[Value], Value]] = {
    "USub": negate,
    "UAdd": positive,
    "Invert": invert,
    "Not": lambda a: np.logical_not(truth(a)),
}


def _pick(better: Callable) -> Callable:
    def pick(a: Value, b: Value) -> Value:
        if (a.dtype == BOOL) != (b.dtype == BOOL):
            raise TypeError(f"min and max do not mix bool with numbers: {a.dtype} and {b.dtype}")
        _no_complex(a.dtype, b.dtype)
        dtype = unify(a.dtype, b.dtype)
        return better(cast(a, dtype), cast(b, dtype))

    return pick


# On the device these are fmin and fmax: a NaN gives way to a number.
minimum, maximum = _pick(np.fmin), _pick(np.fmax)


def absolute(a: Value) -> Value:
    """`abs(a)` keeps the type."""
    return np.abs(a.astype(_no_brain(a.dtype))) if a.dtype != BOOL else a.astype(np.int8)


def to_int(a: Value) -> Value:
    """`int(a)`: floats truncate to int64, integers keep their type."""
    if a.dtype == BFLOAT16:
        raise TypeError("int() does not take a bfloat16: write np.int32(x)")
    return cast(a, INT64) if a.dtype.kind in "fbc" else a


def to_float(a: Value) -> Value:
    """`float(a)`: integers become float64, floats keep their type; bool has none in Numba."""
    if a.dtype == BFLOAT16:
        raise TypeError("float() does not take a bfloat16: write np.float32(x)")
    if a.dtype == BOOL:
        raise TypeError("float() does not take a bool in a kernel: write 1.0 if x else 0.0")
    return a if a.dtype.kind == "f" else cast(a, FLOAT64)


def to_complex(a: Value, b: Value | None = None) -> Value:
    """`complex(a, b)`: complex64 of float32, else complex128; Numba has none of bool and float16."""
    parts = [a] if b is None else [a, b]
    if any(x.dtype in (BOOL, FLOAT16) or (x.dtype.kind == "c" and b is not None) for x in parts):
        raise TypeError(f"complex() does not take {' and '.join(str(x.dtype) for x in parts)}")
    dtype = COMPLEX64 if all(x.dtype == FLOAT32 for x in parts) else COMPLEX128
    if b is None:
        return cast(a, dtype)
    made = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), dtype)
    made.real, made.imag = a, b
    return made[()]


def round_half_even(a: Value, digits: Value | None = None) -> Value:
    """`round(a)` is int64; `round(a, digits)` keeps the type."""
    if digits is None:
        return cast(np.rint(_floating(a)), INT64)
    scale = np.power(10.0, cast(digits, FLOAT64))
    scaled = cast(a, FLOAT64) * scale
    rounded = np.where(np.isfinite(scaled), np.rint(scaled) / scale, a)  # too large to scale: nothing to round away
    return cast(rounded[()], small_floating(a).dtype)


def _floating(a: Value, keeps: tuple = ()) -> Value:
    if a.dtype in (FLOAT16, BFLOAT16):
        return a if a.dtype in keeps else a.astype(FLOAT32)
    return a if a.dtype == FLOAT32 else cast(a, FLOAT64)


def unary_math(function: Callable, *, keeps: tuple = ()) -> Callable[[Value], Value]:
    """Wrap a NumPy function: float32 stays, 16-bit floats do or become float32, the rest becomes float64."""
    return lambda a: function(_floating(a, keeps))


_FLOATS = (FLOAT32, FLOAT16)


def binary_math(function: Callable, *, both_small: bool = False) -> Callable[[Value, Value], Value]:
    """Wrap a NumPy function of two arguments: float32 if both are, or one is and the other is a small integer."""

    def apply(a: Value, b: Value) -> Value:
        a, b = (x.astype(_no_brain(x.dtype)) for x in (a, b))
        narrow = all(x.dtype in _FLOATS or x.dtype in _SMALL for x in (a, b))
        dtype = FLOAT32 if narrow and (both_small or a.dtype in _FLOATS or b.dtype in _FLOATS) else FLOAT64
        return function(cast(a, dtype), cast(b, dtype))

    return apply


def _scalarwise(function: Callable[[float], float], pole: Callable[[float], float]) -> Callable[[Value], Value]:
    """A maths function that NumPy lacks, element by element through Python's own."""

    def safe(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.copysign(math.inf, x) if function is math.gamma else math.inf  # gamma(x) is 1 / x near 0
        except ValueError:
            return pole(x)

    vectorised = np.vectorize(safe, otypes=[np.float64])

    def apply(a: Value) -> Value:
        a = _floating(a)
        out = vectorised(a).astype(a.dtype)
        return out if out.ndim else out[()]

    return apply


def ieee_remainder(a: Value, b: Value) -> Value:
    """a - n b with n the integer nearest to a / b, exactly: each step below is."""
    y = np.abs(b)
    t = np.fmod(np.abs(a), 2 * y)
    u = t - y
    r = np.where(t <= y - t, t, np.where(u < y - u, u, u - y))
    r = np.where(np.isinf(y) & np.isfinite(a), np.abs(a), r)
    return np.where(np.signbit(a), -r, r)[()]


_pow = binary_math(np.power, both_small=True)


def _math_pow(a: Value, b: Value) -> Value:
    if (a.dtype == FLOAT32 and b.dtype == np.uint16) or (
        (a.dtype in _FLOATS or a.dtype in _SMALL) and b.dtype == INT32
    ):
        return np.power(cast(a, FLOAT32), cast(b, FLOAT32))
    return _pow(a, b)


def small_floating(a: Value) -> Value:
    """float32 for float16, float32 and the small integers, else float64."""
    return cast(a, FLOAT32 if a.dtype in _FLOATS or a.dtype in _SMALL else FLOAT64)


def _frexp(a: Value) -> tuple[Value, Value]:
    mantissa, exponent = np.frexp(small_floating(a))
    return mantissa, cast(exponent, INT32)


def _modf(a: Value) -> tuple[Value, Value]:
    fraction, whole = np.modf(cast(a, FLOAT64) if a.dtype == FLOAT16 else _floating(a))
    return fraction, whole


_UNARY_MATH = {
    "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1, "exp2": np.exp2, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "fabs": np.fabs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "degrees": np.degrees, "radians": np.radians, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip

#: Functions that Numba has for float16 itself; for the others it is converted to float32.
_HALF_MATH = {"ceil", "cos", "exp", "exp2", "fabs", "floor", "log", "log10", "log2", "sin", "sqrt", "trunc"}
#: Likewise for bfloat16.
_BRAIN_MATH = _HALF_MATH - {"fabs", "log2"} | {"tanh"}


def _kept(name: str) -> tuple:
    return (FLOAT16,) * (name in _HALF_MATH) + (BFLOAT16,) * (name in _BRAIN_MATH)


#: `math.<name>` in a kernel.
MATH: dict[str, Callable] = {name: unary_math(f, keeps=_kept(name)) for name, f in _UNARY_MATH.items()}
MATH |= {name: _scalarwise(getattr(math, name), lambda x: math.nan) for name in ("erf", "erfc")}
MATH |= {
    "gamma": _scalarwise(math.gamma, lambda x: math.copysign(math.inf, x) if x == 0 else math.nan),
    "lgamma": _scalarwise(math.lgamma, lambda x: math.inf),
}
MATH |= {
    "atan2": binary_math(np.arctan2),
    "hypot": binary_math(np.hypot),
    "fmod": binary_math(np.fmod, both_small=True),
    "copysign": binary_math(np.copysign, both_small=True),
    "nextafter": binary_math(np.nextafter, both_small=True),
    "remainder": binary_math(ieee_remainder, both_small=True),
    "pow": _math_pow,
    "ldexp": lambda a, n: np.ldexp(small_floating(a), cast(n, INT32)),
    "frexp": _frexp,
    "modf": _modf,
}


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
