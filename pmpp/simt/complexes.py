"""Complex numbers: `cmath` in a kernel, with Numba's types.

Arithmetic needs nothing here: NumPy's complex operators are the device's, and dtypes.py has Numba's types for them.
Functions of complex64 are computed in complex128 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.simt import dtypes
from pmpp.simt.dtypes import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, Value


def _function(compute: Callable, *, real: bool = True, wide: bool = False) -> Callable:
    """`real`: takes real numbers too; `wide`: Numba gives complex128 even for complex64."""

    def apply(a: Value) -> Value:
        if not real and a.dtype.kind != "c":
            raise TypeError(f"Numba has this for complex numbers only, not for {a.dtype}")
        dtype = COMPLEX128 if wide else dtypes.arithmetic(a.dtype, COMPLEX64)
        return compute(dtypes.cast(a, COMPLEX128)).astype(dtype)

    return apply


def _test(compute: Callable) -> Callable:
    return lambda a: compute(dtypes.cast(a, COMPLEX128))


def _parts_type(a: Value) -> np.dtype:
    if a.dtype.kind != "c":
        raise TypeError(f"Numba has this for complex numbers only, not for {a.dtype}")
    return FLOAT32 if a.dtype == COMPLEX64 else FLOAT64


def _phase(a: Value) -> Value:
    return np.arctan2(a.imag.astype(np.float64), a.real.astype(np.float64)).astype(_parts_type(a))


def _polar(a: Value) -> tuple[Value, Value]:
    return np.abs(a), _phase(a)


def _rect(r: Value, phi: Value) -> Value:
    if r.dtype.kind != "f" or phi.dtype.kind != "f":
        raise TypeError(f"cmath.rect takes two floats, not {r.dtype} and {phi.dtype}")
    dtype = COMPLEX64 if r.dtype == phi.dtype == FLOAT32 else COMPLEX128
    r, phi = dtypes.cast(r, FLOAT64), dtypes.cast(phi, FLOAT64)
    return (r * np.cos(phi) + 1j * (r * np.sin(phi))).astype(dtype)


def _log(a: Value, base: Value | None = None) -> Value:
    if base is None:
        return _function(np.log)(a)
    dtype = dtypes.arithmetic(dtypes.arithmetic(a.dtype, COMPLEX64), base.dtype)
    return (np.log(dtypes.cast(a, COMPLEX128)) / np.log(dtypes.cast(base, COMPLEX128))).astype(dtype)


_UNARY = {"acos": np.arccos, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
          "cos": np.cos, "exp": np.exp, "sin": np.sin, "sqrt": np.sqrt, "tan": np.tan}  # fmt: skip

#: `cmath.<name>` in a kernel.
CMATH: dict[str, Callable] = {name: _function(compute) for name, compute in _UNARY.items()}
CMATH |= {"cosh": _function(np.cosh, real=False), "sinh": _function(np.sinh, real=False)}
CMATH |= {
    "acosh": _function(np.arccosh, real=False, wide=True), "log10": _function(np.log10, real=False, wide=True),
    "tanh": _function(np.tanh, real=False, wide=True), "log": _log, "phase": _phase, "polar": _polar, "rect": _rect,
    "isfinite": _test(np.isfinite), "isinf": _test(np.isinf), "isnan": _test(np.isnan),
}  # fmt: skip
