"""Views with strides of their own: what they show, whose memory they are, and what is refused."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.views import span, strided


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]


@pytest.mark.parametrize(
    ("shape", "strides", "first"),
    [
        ((4, 3), (1, 4), 0),
        ((2, 6), (6, 1), 0),
        ((3, 4), (0, 1), 8),
        ((2, 2, 3), (6, 1, 2), 0),
        ((12,), (1,), 0),
        ((1, 1), (1, 1), 11),
        ((), (), 5),
        ((0, 3), (3, 1), 0),
        ((3,), (5,), 1),
    ],
    ids=str,
)
def test_a_view_shows_what_numpys_does(shape, strides, first):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = np.lib.stride_tricks.as_strided(x.reshape(-1)[first:], shape, [4 * step for step in strides])
    view = strided(device.to_device(x), shape, strides, first)
    assert view.shape == shape
    assert view.dtype == np.float32
    np.testing.assert_array_equal(device.to_host(view), expected)


def test_a_view_is_the_same_memory():
    x = device.to_device(np.arange(12, dtype=np.float32))
    memory = span(strided(x, (3, 2), (4, 1), 1))
    assert memory.shape == (10,)  # from element 1 to element 10
    double[1, 32](memory)
    expected = np.arange(12, dtype=np.float32)
    expected[1:11] *= 2
    np.testing.assert_array_equal(x.copy_to_host(), expected)


@pytest.mark.parametrize(
    ("shape", "strides", "first", "last"),
    [((4, 4), (4, 1), 0, 15), ((3,), (5,), 2, 12), ((2,), (-1,), 1, 0), ((2,), (1,), -1, 0), ((1,), (1,), 12, 12)],
)
def test_a_view_that_reaches_beyond_is_refused(shape, strides, first, last):
    x = device.to_device(np.arange(12, dtype=np.float32))
    with pytest.raises(ValueError, match=f"within the 12 elements of x, reaches from {first} to {last}"):
        strided(x, shape, strides, first)


def test_as_many_strides_as_dimensions():
    with pytest.raises(ValueError, match="argument"):
        strided(device.to_device(np.zeros(4, np.float32)), (2, 2), (1,))


@pytest.mark.parametrize("index", [np.s_[:], np.s_[1:], np.s_[:, 1], np.s_[::2, 1:3], np.s_[2, 3], np.s_[:0]], ids=str)
def test_a_span_reaches_from_the_first_element_to_the_last(index):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    seen = x[index]
    expected = np.arange(seen.min(), seen.max() + 1) if seen.size else []
    view = device.to_device(x)[index]
    if hasattr(view, "copy_to_host"):  # an index of one element gives a number
        np.testing.assert_array_equal(span(view).copy_to_host(), expected)


def test_a_view_of_other_dtypes():
    x = device.to_device(np.arange(6, dtype=np.int64))
    np.testing.assert_array_equal(strided(x, (3, 2), (1, 3)).copy_to_host(), np.arange(6).reshape(2, 3).T)
    assert span(strided(x, (2,), (3,))).copy_to_host().tolist() == [0, 1, 2, 3]


def test_a_span_of_what_runs_backwards_is_refused():
    x = device.to_device(np.arange(6, dtype=np.float32))
    backwards = x[::-1]
    if backwards.strides[0] < 0:  # not every backend slices backwards
        with pytest.raises(ValueError, match="x must have strides that are not negative"):
            span(backwards)


def test_a_view_keeps_its_memory():
    """The memory lives as long as the view, though nobody else holds the array."""
    view = strided(device.to_device(np.arange(4, dtype=np.float32)), (2, 2), (1, 2))
    others = [device.to_device(np.zeros(4, np.float32)) for _ in range(20)]
    assert device.to_host(view).tolist() == [[0, 2], [1, 3]]
    assert len(others) == 20
