"""A sum of float32 and of 16 bits: to the bit, for whole vectors and others, and from any address."""

import numpy as np
import pytest

from pmpp.kernels.elementwise import widening
from pmpp.runtime import device
from pmpp.runtime.dtypes import known


@pytest.mark.parametrize("dtype", known(widening.SHORT), ids=str)
@pytest.mark.parametrize("shape", [(0,), (), (1,), (8,), (3, 7), (2, 5, 8)])
def test_each_sum_is_rounded_once(dtype, shape):
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.standard_normal(shape), np.float32) for _ in range(2))
    b = b.astype(dtype)
    found = device.to_host(widening.add_widened(a, b))
    assert found.shape == shape
    np.testing.assert_array_equal(found, a + b.astype(np.float32))


@pytest.mark.parametrize("first", [1, 2, 8])
def test_arrays_may_begin_anywhere(first):
    a, b = device.to_device(np.arange(40, dtype=np.float32)), device.to_device(np.arange(40, dtype=np.float16))
    found = device.to_host(widening.add_widened(a[first:], b[first:]))
    np.testing.assert_array_equal(found, 2 * np.arange(first, 40, dtype=np.float32))


def test_what_is_wrong_is_named():
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"^a must be float32"):
        widening.add_widened(a.astype(np.float16), a.astype(np.float16))
    with pytest.raises(TypeError, match=r"^b must be float16 or bfloat16"):
        widening.add_widened(a, a)
    with pytest.raises(ValueError, match=r"^b must have"):
        widening.add_widened(a, np.zeros(6, np.float16))
