"""The dtypes of 16 bits: float16, which NumPy has, and bfloat16, which it has from the package ``ml_dtypes``.

A bfloat16 is the upper half of a float32: the same exponent, and 8 bits of precision instead of 24. The package is
optional, as it is for Numba: without it there are no arrays of bfloat16, and everything else works.
"""

from __future__ import annotations

import typing

import numpy as np

__all__ = ["BFLOAT16", "dtype_of", "held", "is_bfloat16", "known", "rounding"]

try:
    from ml_dtypes import bfloat16

    BFLOAT16: np.dtype | None = np.dtype(bfloat16)
except ImportError:
    BFLOAT16 = None


def dtype_of(dtype: typing.Any) -> np.dtype:
    """``numpy.dtype(dtype)``, which also knows "bfloat16", or says what it takes to know it.

    >>> dtype_of("float16")
    dtype('float16')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        if BFLOAT16 is None:
            raise TypeError("bfloat16 needs the package ml_dtypes, from which NumPy has it: pip install ml_dtypes")
        return BFLOAT16
    return np.dtype(dtype)


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether a dtype is bfloat16.

    >>> is_bfloat16(np.dtype(np.float16))
    False
    """
    return BFLOAT16 is not None and dtype == BFLOAT16


def known(names: typing.Iterable[str]) -> list[np.dtype]:
    """The dtypes of these names that NumPy has here: all, or all but bfloat16.

    >>> known(("float32", "float16"))
    [dtype('float32'), dtype('float16')]
    """
    return [dtype_of(name) for name in names if name != "bfloat16" or BFLOAT16 is not None]


# By dtype: the largest relative error of rounding to it, and the largest error where numbers are too small for that.
_ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134), "float32": (2.0**-24, 2.0**-150)}


def rounding(exact: typing.Any, dtype: typing.Any) -> typing.Any:
    """The largest error of rounding numbers to float16, bfloat16 or float32 once, to the nearest: an array of float64.

    It is half the distance of two neighbours: that of 1.0 and the next number for each element of the same size, and
    half the smallest number above 0 for the smallest.

    >>> rounding(np.array([1.0, 1000.0, 0.0]), "float16") == np.array([2**-11, 1000 * 2**-11, 2**-25])
    array([ True,  True,  True])
    """
    relative, least = _ROUNDING[dtype_of(dtype).name]
    return np.maximum(abs(exact.astype(np.float64)) * relative, least)


def held(exact: np.ndarray, dtype: typing.Any) -> np.ndarray:
    """Exact numbers in float64 as a dtype can hold them: what rounding makes infinite is infinite, the rest exact.

    >>> held(np.array([65504.0, 1e5]), "float16")
    array([65504.,    inf])
    """
    with np.errstate(over="ignore"):
        return np.where(np.isinf(exact.astype(dtype_of(dtype))), np.copysign(np.inf, exact), exact)
