"""What the exercises expect: a gradient against differences, and the bytes of views against NumPy's."""

import numpy as np
import pytest

from pmpp.kernels.interop.exercises import EPS, _gradient, _rms, extent_answer


def test_the_gradient_is_that_of_the_forward_pass():
    rng = np.random.default_rng(0)
    (dy, x), weight, h = rng.standard_normal((2, 3, 5)), rng.uniform(0.5, 2, 5), 1e-5
    inverse = 1 / np.sqrt((x * x).mean(axis=1) + EPS)
    found = _gradient(dy, x, weight, inverse)[4]
    for index in np.ndindex(x.shape):
        change = np.zeros(x.shape)
        change[index] = h
        slope = ((_rms(x + change, weight) - _rms(x - change, weight)) * dy).sum() / (2 * h)
        assert found[index] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("cut", [np.s_[:], np.s_[::-2, 1:], np.s_[2, ::-1], np.s_[:, 3:1], np.s_[1:2, 4:]], ids=str)
def test_the_bytes_of_a_view_are_numpys(cut):
    view = np.zeros((4, 6), np.float32)[cut]
    found = extent_answer(view.__array_interface__["data"][0], view.shape, view.strides, view.itemsize)
    if view.size:
        np.testing.assert_array_equal(found, np.lib.array_utils.byte_bounds(view))
    else:
        assert found[0] == found[1]
