"""The dtypes of 16 bits: float16, which NumPy has, and bfloat16, which it has from the package ``ml_dtypes``.

A bfloat16 is the upper half of a float32: the same exponent, and 8 bits of precision instead of 24. The package is
optional, as it is for Numba: without it there are no arrays of bfloat16, and everything else works.
"""

from __future__ import annotations

import typing

import numpy as np

__all__ = ["BFLOAT16", "dtype_of"]

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
