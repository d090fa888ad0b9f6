"""Special functions of libdevice: Bessel, error and gamma functions, of float64 arrays.

SciPy computes most of them and is imported when a kernel first calls one.  Where it leaves the device's range (phases
of large arguments, results among the subnormal numbers) a formula of the same function takes its place.  So all are at
least as accurate as the device's, whose Bessel functions have an absolute error of some 1e-12 (float32: 1e-6) beyond
x = 8 and lose more of their phase as x grows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.simt.values import maths, rounding
from pmpp.simt.values.dtypes import FLOAT32, INT64, Value, as_intp

#: From here on Hankel's expansion needs eleven terms, and a phase rounded to float64 would be wrong.
_FAR = 1e4


def _scipy(name: str) -> Callable:
    def function(*values: Value) -> Value:
        try:
            from scipy import special
        except ImportError as error:
            raise TypeError(f"the interpreter computes this with SciPy, which is not installed ({error})") from error
        return getattr(special, name)(*values)

    return function


# -- Bessel functions ------------------------------------------------------------------------------------------------


def _far(n: Value, x: Value, second: bool) -> Value:
    """Hankel's expansion (DLMF 10.17.3 and 10.17.4); the phase is subtracted by the addition theorem, exactly."""
    mu, p, q, term = 4.0 * n * n, 1.0, 0.0, 1.0
    for k in range(1, 12):
        term = term * (mu - (2 * k - 1) ** 2) / (k * 8 * x)
        if k % 2:
            q = q + (term if k % 4 == 1 else -term)
        else:
            p = p + (term if k % 4 == 0 else -term)
    s, c = np.sin(x), np.cos(x)
    turns = as_intp(n.astype(INT64) % 4)[()]  # the phase is x - (2 n + 1) pi / 4
    cosine = np.choose(turns, [c + s, s - c, -c - s, c - s])
    sine = np.choose(turns, [s - c, -s - c, c - s, s + c])
    wave = p * sine + q * cosine if second else p * cosine - q * sine
    return wave / np.sqrt(np.pi) / np.sqrt(x)


def _bessel(near: Callable, *, second: bool = False) -> Callable:
    """J (or Y, the second kind) of order n: 0 at infinity, J of negative arguments by symmetry."""

    def function(n: Value, x: Value) -> Value:
        n, x = np.broadcast_arrays(np.asarray(n, np.float64), x)
        far = (np.abs(x) > np.maximum(_FAR, 10 * n * n)) & np.isfinite(x)
        result = near(n, np.where(far | np.isinf(x), 1.0, x))
        if np.any(far):
            large = np.where(far, np.abs(x), _FAR)
            wave = _far(np.where(far, n, 0.0), large, second)
            wave = np.where((x < 0) & (n % 2 == 1), -wave, wave)
            result = np.where(far, np.where(second & (x < 0), np.nan, wave), result)
        return np.where(np.isinf(x), np.where(second & (x < 0), np.nan, 0.0), result)

    return function


def _fixed(order: int, name: str, *, second: bool = False) -> Callable:
    near = _scipy(name)
    function = _bessel(lambda n, x: near(x), second=second)
    return lambda x: function(order, x)


j0, j1 = _fixed(0, "j0"), _fixed(1, "j1")
y0, y1 = _fixed(0, "y0", second=True), _fixed(1, "y1", second=True)
_jn, _yn = _bessel(_scipy("jv")), _bessel(_scipy("yv"), second=True)


def jn(n: Value, x: Value) -> Value:
    """J of order n; NaN for n < 0, and where the device's backward recurrence overflows: for tiny x from n = 2 on."""
    wide = x.astype(np.float64)
    result = np.where(n == 0, j0(wide), np.where(n == 1, j1(wide), _jn(np.maximum(n, 0), wide)))
    small = (n >= 2) & (np.abs(x) < 1e-10)
    if np.any(small):
        result = np.where(
            small & _overflows(np.where(small, n, 2), np.where(small, x, x.dtype.type(1))), np.nan, result
        )
    return np.where(n < 0, np.nan, result)


def _overflows(n: Value, x: Value) -> Value:
    """Whether libdevice's recurrence from far above n downwards ends in infinity over infinity.

    Its terms grow by 2 j / x a step and are scaled down once a step, by 1e-15: too little for tiny x.  (As its PTX has
    it: it starts at n + sqrt(60 n), for float32 at n + sqrt(40 n), rounded down to an even number.)
    """
    kind, count = x.dtype.type, np.minimum(n, 4096)
    start = (count + np.sqrt((40.0 if x.dtype == FLOAT32 else 60.0) * count).astype(np.int64)) & -2
    above, here, total, found = kind(0), kind(1), kind(0), kind(0)
    slope = kind(2) / x
    for j in range(int(start.max()), 0, -1):
        on = j <= start
        below = slope * kind(j) * here - above
        large = np.abs(below) > kind(1e15)
        scale = np.where(large, kind(1e-15), kind(1))
        below, moved, total, found = below * scale, here * scale, total * scale, found * scale
        total = np.where(on & (j % 2 == 1), total + kind(2) * below, total)
        found = np.where(on & (j - 1 == count), below, found)
        above, here = np.where(on, moved, kind(0)), np.where(on, below, kind(1))
    return np.isnan(found / (total - here))


def yn(n: Value, x: Value) -> Value:
    """Y of order n; NaN for n < 0 and for x < 0.  (In float64 an H200 has +infinity at -0 from n = 2 on.)"""
    result = np.where(n == 0, y0(x), np.where(n == 1, y1(x), _yn(np.maximum(n, 0), x)))
    result = np.where((n > 1) & (x == 0) & np.signbit(x), np.inf, result)
    return np.where((n < 0) | (x < 0), np.nan, result)


# -- error functions -------------------------------------------------------------------------------------------------

erf, erfc = maths.MATH["erf"], maths.MATH["erfc"]
erfcx, erfinv, normcdfinv = _scipy("erfcx"), _scipy("erfinv"), _scipy("ndtri")
_erfcinv, _log_quantile = _scipy("erfcinv"), _scipy("ndtri_exp")

_HIGH, _LOW = np.float64(0.7071067811865476), np.float64(-4.833646656726457e-17)  # 1 / sqrt(2)


def erfcinv(x: Value) -> Value:
    """The inverse of erfc, down to the least subnormal number."""
    result = _erfcinv(x)
    tiny = (x > 0) & (x < 1e-300)
    if np.any(tiny):
        log = np.log(np.where(tiny, x, 1.0)) - np.log(2.0)
        result = np.where(tiny, -_log_quantile(log) * _HIGH, result)
    return result


def normcdf(x: Value) -> Value:
    """erfc(-x / sqrt(2)) / 2, with the rounding of its argument made good: far out, erfc is that steep."""
    argument, lost = rounding.two_product(-x, _HIGH)
    lost = np.where(np.abs(x) < 40, lost - x * _LOW, 0.0)
    slope = np.exp(-np.minimum(argument * argument, 750)) * (2 / np.sqrt(np.pi))
    return 0.5 * (erfc(np.where(np.abs(x) < 1e100, argument, -x)) - np.where(np.isnan(lost), 0.0, lost) * slope)


# -- gamma functions -------------------------------------------------------------------------------------------------

_gammaln = _scipy("gammaln")


def lgamma(x: Value) -> Value:
    """The logarithm of |gamma|.  Near its zeros below -2 it has few digits, here as on the device."""
    size = np.abs(x)
    return np.where(np.isinf(x), np.inf, np.where(size < 1e-300, -np.log(size), _gammaln(x)))


tgamma = maths.MATH["gamma"]
