"""Heads apart and together again: to the bit, for sizes of whole chunks and others."""

import numpy as np
import pytest

from pmpp.kernels.attention import heads
from pmpp.runtime import device
from pmpp.runtime.dtypes import known


@pytest.mark.parametrize("dtype", known(heads.DTYPES), ids=str)
@pytest.mark.parametrize("size", [1, 5, 8, 24])
def test_each_element_is_moved_to_its_head_and_back(dtype, size):
    texts, length, parts, count = 2, 5, 3, 3
    rows = np.arange(texts * length * parts * count * size, dtype=np.uint16).view(dtype)
    rows = rows.reshape(texts, length, parts * count * size)
    made = heads.apart(rows, count)
    wanted = rows.reshape(texts, length, parts, count, size).transpose(2, 0, 3, 1, 4)
    for found, one in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(device.to_host(found).view(np.uint16), np.ascontiguousarray(one).view(np.uint16))
    np.testing.assert_array_equal(device.to_host(heads.together(made)).view(np.uint16), rows.view(np.uint16))


def test_what_is_empty_stays_empty():
    assert [x.shape for x in heads.apart(np.empty((0, 4, 6), np.float16), 2)] == [(0, 2, 4, 1)] * 3
    assert heads.together([np.empty((2, 3, 0, 4), np.float16)]).shape == (2, 0, 12)


def test_what_is_wrong_is_named():
    rows = np.zeros((1, 2, 12), np.float16)
    with pytest.raises(ValueError, match=r"^rows must be cut evenly by heads=5 and parts=3"):
        heads.apart(rows, 5)
    with pytest.raises(TypeError, match=r"^rows must be float16 or bfloat16"):
        heads.apart(rows.astype(np.float32), 2)
    with pytest.raises((TypeError, ValueError), match=r"^heads must be"):
        heads.apart(rows, 0)
    with pytest.raises((TypeError, ValueError), match=r"^parts must be"):
        heads.apart(rows, 2, parts="3")
    one = np.zeros((1, 2, 3, 4), np.float16)
    with pytest.raises(ValueError, match=r"^matrices must have"):
        heads.together([one, one[:, :1]])
    with pytest.raises(TypeError, match="at least one"):
        heads.together([])
