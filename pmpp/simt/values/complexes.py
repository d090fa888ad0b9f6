"""Complex numbers: operators and `cmath` in a kernel, by Numba's formulas and with its types.

Numba computes complex functions from real ones (numba_cuda.numba.cuda.cpython.cmathimpl, after CPython's cmath, and
cpython.numbers).  Where a number is infinite or huge the result depends on the formula: exp(inf + 0j) is NaN in its
imaginary part, and every division looks at the divisor first.  The same formulas are used here.  What Numba computes
in float32 is rounded to float32 at the same steps; where a float64 literal is in the formula, it is float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.simt.values import arithmetic, dtypes, rounding
from pmpp.simt.values.dtypes import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, Value

#: A float64 that, unlike Python's float, makes a float64 of a float32.
_D = np.float64
_MAX32, _MIN32 = _D(np.finfo(FLOAT32).max), _D(np.finfo(FLOAT32).tiny)
#: Beyond this the inverse functions use logarithms, for complex128 too.
_LARGE = _MAX32 / 4


def _real(function: Callable) -> Callable:
    """A real function, computed in float64 and rounded to the type of its arguments; NaN has no sign on the device."""

    def apply(*values: Value) -> Value:
        dtype = np.result_type(*values)
        found = function(*(np.asarray(v, FLOAT64) for v in values))
        return np.where(np.isnan(found), np.nan, found).astype(dtype)

    return apply


_sin, _cos, _tan, _exp, _log = map(_real, (np.sin, np.cos, np.tan, np.exp, np.log))
_sinh, _cosh, _tanh, _asinh = map(_real, (np.sinh, np.cosh, np.tanh, np.arcsinh))
_atan2, _sqrt, _log1p, _pow = map(_real, (np.arctan2, np.sqrt, np.log1p, np.power))


def _hypot(x: Value, y: Value) -> Value:
    dtype = np.result_type(x, y)
    return arithmetic.hypot(np.asarray(x, dtype), np.asarray(y, dtype))


def _complex(x: Value, y: Value) -> Value:
    x, y = np.broadcast_arrays(x, y)
    made = np.empty(x.shape, COMPLEX64 if np.result_type(x, y) == FLOAT32 else COMPLEX128)
    made.real, made.imag = x, y
    return made[()]


def _choose(condition: Value, yes: tuple[Value, Value], no: tuple[Value, Value]) -> tuple[Value, Value]:
    return np.where(condition, yes[0], no[0]), np.where(condition, yes[1], no[1])


# -- operators -------------------------------------------------------------------------------------------------------


def _fma(a: Value, b: Value, c: Value) -> Value:
    return (rounding.fma32 if a.dtype == FLOAT32 else rounding.fma64)(a, b, c)


def multiply(a: Value, b: Value) -> Value:
    """`a * b` of two complex numbers of one type: the second product of each part is fused with the sum."""
    if a.dtype == COMPLEX128:
        return _multiply128(a, b)
    return _complex(_fma(a.real, b.real, -(a.imag * b.imag)), _fma(a.imag, b.real, a.real * b.imag))


def _multiply128(a: Value, b: Value) -> Value:
    """The same in pieces that stay in the CPU's cache."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    x = np.broadcast_to(a, shape).reshape(-1)
    y = x if a is b else np.broadcast_to(b, shape).reshape(-1)
    result = np.empty(x.size, COMPLEX128)
    for start in range(0, x.size, rounding.CHUNK):
        part = slice(start, start + rounding.CHUNK)
        p, q = (np.ascontiguousarray(each) for each in (x.real[part], x.imag[part]))
        p_parts = rounding.halves(p)
        if y is x:
            square = q * q
            result.real[part] = rounding.nearest_fma64(p, p, np.negative(square, out=square), p_parts, p_parts)
            # p * q is r + e, e at most half a unit of r's last place: 2r + e is never nearer to a neighbour of 2r, and
            # where it is half-way 2r is the even one.
            product = p * q
            np.add(product, product, out=result.imag[part])
            continue
        u, v = (np.ascontiguousarray(each) for each in (y.real[part], y.imag[part]))
        u_parts = rounding.halves(u)
        result.real[part] = rounding.nearest_fma64(p, u, -(q * v), p_parts, u_parts)
        result.imag[part] = rounding.nearest_fma64(q, u, p * v, rounding.halves(q), u_parts)
    return result.reshape(shape)[()]


def divide(a: Value, b: Value) -> Value:
    """`a / b` of two complex numbers of one type; by 0 it is NaN here, but Numba raises."""
    by_real = np.abs(b.real) >= np.abs(b.imag)
    large, small = np.where(by_real, b.real, b.imag), np.where(by_real, b.imag, b.real)
    one, other = np.where(by_real, a.real, a.imag), np.where(by_real, a.imag, a.real)
    ratio = small / large
    scale = _fma(small, ratio, large)
    sign = np.where(by_real, scale.dtype.type(1), scale.dtype.type(-1))
    return _complex(_fma(other, ratio, one) / scale, _fma(-sign * one, ratio, sign * other) / scale)


def power(a: Value, b: Value) -> Value:
    """`a ** b` of two complex numbers of one type.  If neither has a real part it is 0, though a is not."""
    length = _hypot(a.real, a.imag)
    size, angle = _pow(length, b.real), _atan2(a.imag, a.real)
    turns = b.imag != 0
    phase = angle * b.real + np.where(turns, b.imag * _log(length), 0).astype(length.dtype)
    size = np.where(turns, size / _exp(angle * b.imag), size)
    x, y, zero = _cos(phase), _sin(phase), size.dtype.type(0)
    result = size * x - zero * y, size * y + zero * x
    result = _choose((a.real == 0) & (b.real == 0), (zero, zero), result)
    return _complex(*_choose(b == 0, (zero + 1, zero), result))


# -- functions of the two parts --------------------------------------------------------------------------------------


def _exp_of(x: Value, y: Value) -> tuple[Value, Value]:
    c, s, r = _cos(y), _sin(y), _exp(x)
    lost = np.full_like(x, np.nan)
    fine = _choose(np.isfinite(y), (r * c, r * s), (lost, lost))
    nan = x, np.where(y != 0, x, y)
    up = _choose(np.isfinite(y), (np.where(c != 0, c * x, c), np.where(s != 0, s * x, s)), (x, lost))
    down = _choose(np.isfinite(y), (r * c, r * s), (np.zeros_like(x), np.zeros_like(x)))
    infinite = _choose(np.isnan(x), nan, _choose(x > 0, up, down))
    return _choose(np.isfinite(x), fine, infinite)


def _log_of(x: Value, y: Value) -> tuple[Value, Value]:
    return _log(_hypot(x, y)), _atan2(y, x)


def _log10_of(x: Value, y: Value) -> tuple[Value, Value]:
    x, y = _log_of(x, y)
    return x / _D(np.log(10.0)), y / _D(np.log(10.0))


def _cosh_of(x: Value, y: Value) -> tuple[Value, Value]:
    straight = np.isnan(y) | (y == 0)
    far = _choose(straight, (np.abs(x), y), (np.copysign(x, _cos(y)), np.copysign(x, _sin(y))))
    far = far[0], np.where(x < 0, -far[1], far[1])
    return _choose(np.isinf(x), far, (_cos(y) * _cosh(x), _sin(y) * _sinh(x)))


def _sinh_of(x: Value, y: Value) -> tuple[Value, Value]:
    c, s = _cos(y), _sin(y)
    far = np.where(c != 0, c * x, c), np.where(s != 0, s * np.abs(x), s)
    far = _choose(np.isnan(y), (x, y), far)
    return _choose(np.isinf(x), far, (c * _sinh(x), s * _cosh(x)))


def _tanh_of(x: Value, y: Value) -> tuple[Value, Value]:
    far = np.copysign(_D(1), x), np.where(np.isinf(y), 0.0, np.copysign(_D(0), _sin(_D(2) * y)))
    tx, ty, cx = _tanh(x), _tan(y), _D(1) / _cosh(x)
    product = tx * ty
    scale = _D(1) + product * product
    return _choose(np.isinf(x), far, (tx * (_D(1) + ty * ty) / scale, ((ty / scale) * cx) * cx))


def _sqrt_of(x: Value, y: Value) -> tuple[Value, Value]:
    # Numba scales what could overflow, and forgets to scale the imaginary part back: it is half of what it should be.
    limit = _D(np.finfo(x.dtype).max) / (1 + np.sqrt(2.0))
    scaled = (np.abs(x) >= limit) | (np.abs(y) >= limit)
    a, b = np.where(scaled, x * _D(0.25), _D(1) * x), np.where(scaled, y * _D(0.25), _D(1) * y)
    t = _sqrt((np.abs(a) + _hypot(a, b)) * 0.5)
    fine = _choose(a >= 0, (t, b / (2 * t)), (np.abs(b) / (2 * t), np.copysign(t, b)))
    fine = np.where(scaled, fine[0] * 2, fine[0]), fine[1]
    level = _choose(x < 0, (np.abs(y - y), np.copysign(x, y)), (x, np.copysign(y - y, y)))
    result = _choose(np.isinf(x), level, fine)
    result = _choose(np.isnan(x), (x, x), result)
    return _choose(np.isinf(y) | ((x == 0) & (y == 0)), (np.abs(y), y), result)


def _large_log(x: Value, y: Value) -> Value:
    return _log(_hypot(x * _D(0.5), y * _D(0.5))) + np.log(4.0)


def _is_large(x: Value, y: Value) -> Value:
    return (np.abs(x) > _LARGE) | (np.abs(y) > _LARGE)


def _acos_of(x: Value, y: Value) -> tuple[Value, Value]:
    (a, b), (c, d) = _sqrt_of(_D(1) - x, _D(-1) * y), _sqrt_of(_D(1) + x, _D(1) * y)
    far = _atan2(np.abs(y), x), np.copysign(_large_log(x, y), -y)
    return _choose(_is_large(x, y), far, (2 * _atan2(a, c), _asinh(c * b - d * a)))


def _acosh_of(x: Value, y: Value) -> tuple[Value, Value]:
    (a, b), (c, d) = _sqrt_of(x - _D(1), _D(1) * y), _sqrt_of(x + _D(1), _D(1) * y)
    far = _large_log(x, y), _atan2(y, x)
    return _choose(_is_large(x, y), far, (_asinh(a * c + b * d), 2 * _atan2(b, c)))


def _asinh_of(x: Value, y: Value) -> tuple[Value, Value]:
    (a, b), (c, d) = _sqrt_of(_D(1) + y, _D(-1) * x), _sqrt_of(_D(1) - y, _D(1) * x)
    far = np.copysign(_large_log(x, y), x), _atan2(y, np.abs(x))
    return _choose(_is_large(x, y), far, (_asinh(a * d - c * b), _atan2(_D(1) * y, a * c - b * d)))


def _atanh_of(x: Value, y: Value) -> tuple[Value, Value]:
    negative = x < 0
    x, y = np.where(negative, -x, x), np.where(negative, -y, y)
    ay = np.abs(y)
    h = _hypot(x * _D(0.5), y * _D(0.5))
    quarter = np.where(np.isinf(y), np.copysign(_D(0), x), np.where(np.isinf(x), 0.0, x / _D(4) / h / h))
    far = quarter, -np.copysign(_D(np.pi / 2), -y)
    pole = -_log(_sqrt(ay) / _sqrt(_hypot(ay, _D(2)))), np.copysign(_atan2(_D(2), _D(-1) * ay) / 2, y)
    pole = _choose(ay == 0, (_D(np.inf), y), pole)
    square, rest = ay * ay, _D(1) - x
    near = (_log1p(_D(4) * x / (rest * rest + square)) * 0.25,
            _atan2(_D(-2) * y, rest * (_D(1) + x) - square) * -0.5)  # fmt: skip
    limit = np.sqrt(_LARGE)
    result = _choose((x == 1) & (ay < np.sqrt(_MIN32)), pole, near)
    result = _choose(np.isnan(x) | (x > limit) | (ay > limit), far, result)
    result = result[0], np.where(np.isnan(y), np.nan, result[1])
    return _choose(negative, (-result[0], -result[1]), result)


def _turned(function: Callable) -> Callable:
    """f(z) = -i g(i z): the circular functions by the hyperbolic ones."""

    def apply(x: Value, y: Value) -> tuple[Value, Value]:
        u, v = function(-y, x)
        return v, -u

    return apply


def _atan_of(x: Value, y: Value) -> tuple[Value, Value]:
    u, v = _atanh_of(-y, x)
    return v, np.where(np.isinf(x) & np.isnan(y), u, -u)


# -- cmath -----------------------------------------------------------------------------------------------------------


def _complex_only(a: Value) -> None:
    if a.dtype.kind != "c":
        raise TypeError(f"Numba has this for complex numbers only, not for {a.dtype}")


def _function(compute: Callable, *, real: bool = True, wide: bool = False) -> Callable:
    """`real`: takes real numbers too; `wide`: Numba gives complex128 even for complex64."""

    def apply(a: Value) -> Value:
        if not real:
            _complex_only(a)
        dtype = dtypes.arithmetic(a.dtype, COMPLEX64)
        z = dtypes.cast(a, dtype)
        return _complex(*compute(z.real, z.imag)).astype(COMPLEX128 if wide else dtype)[()]

    return apply


def _test(compute: Callable) -> Callable:
    return lambda a: compute(dtypes.cast(a, COMPLEX128))


def _phase(a: Value) -> Value:
    _complex_only(a)
    return _atan2(a.imag, a.real)[()]


def _polar(a: Value) -> tuple[Value, Value]:
    return _hypot(a.real, a.imag), _phase(a)


def _rect(r: Value, phi: Value) -> Value:
    if r.dtype.kind != "f" or phi.dtype.kind != "f":
        raise TypeError(f"cmath.rect takes two floats, not {r.dtype} and {phi.dtype}")
    dtype = COMPLEX64 if r.dtype == phi.dtype == FLOAT32 else COMPLEX128
    c, s = _cos(phi), _sin(phi)
    # At an infinite distance 0 stays 0 and takes the sign of the product.
    parts = tuple(np.where((part == 0) & np.isinf(r), part / r, part * r) for part in (c, s))
    odd = ~np.isfinite(phi)
    parts = _choose(odd & np.isinf(r), (r, phi), parts)
    return _complex(*_choose(odd & (r == 0), (np.abs(r), np.zeros_like(r)), parts)).astype(dtype)[()]


def logarithms(a: Value, base: Value) -> tuple[Value, Value]:
    """log(a) and log(base), whose quotient `cmath.log(a, base)` is."""
    dtype = dtypes.arithmetic(dtypes.arithmetic(a.dtype, COMPLEX64), base.dtype)
    return tuple(CMATH["log"](dtypes.cast(z, dtype)) for z in (a, base))


_PARTS = {"acos": _acos_of, "asin": _turned(_asinh_of), "asinh": _asinh_of, "atan": _atan_of, "atanh": _atanh_of,
          "cos": lambda x, y: _cosh_of(-y, x), "exp": _exp_of, "log": _log_of, "sin": _turned(_sinh_of),
          "sqrt": _sqrt_of, "tan": _turned(_tanh_of)}  # fmt: skip

#: `cmath.<name>` in a kernel; `log` of one argument.
CMATH: dict[str, Callable] = {name: _function(compute) for name, compute in _PARTS.items()}
CMATH |= {"cosh": _function(_cosh_of, real=False), "sinh": _function(_sinh_of, real=False)}
CMATH |= {
    "acosh": _function(_acosh_of, real=False, wide=True), "log10": _function(_log10_of, real=False, wide=True),
    "tanh": _function(_tanh_of, real=False, wide=True), "phase": _phase, "polar": _polar, "rect": _rect,
    "isfinite": _test(np.isfinite), "isinf": _test(np.isinf), "isnan": _test(np.isnan),
}  # fmt: skip
