"""The dtypes of 16 bits, and how exact they are."""

import numpy as np
import pytest

from pmpp.runtime import dtypes
from pmpp.runtime.dtypes import rounding

NARROW = ["float16", "bfloat16", "float32"]


def of(name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return dtypes.dtype_of(name)


@pytest.mark.parametrize("name", NARROW)
def test_no_number_is_rounded_by_more(name, rng):
    dtype = of(name)
    exact = rng.standard_normal(4000) * 2.0 ** rng.uniform(-160, 14, 4000)
    error = abs(exact.astype(dtype).astype(np.float64) - exact)
    allowed = rounding(exact, name)
    assert allowed.dtype == np.float64
    assert (error <= allowed).all()
    # And some are rounded by nearly as much, the smallest as well as the others.
    small = allowed == allowed.min()
    assert (error / allowed)[small].max() > 0.9
    assert (error / allowed)[~small].max() > 0.9


def test_a_name_is_a_dtype():
    assert dtypes.dtype_of("float16") == np.float16
    assert dtypes.dtype_of(np.float32) == np.float32
    assert of("bfloat16") == dtypes.BFLOAT16
