"""The gradient of softmax and of its logarithm."""

import numpy as np
import pytest

from pmpp.kernels import softmax
from pmpp.kernels.softmax import gradients
from pmpp.kernels.softmax import ladder as forward
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.support import judge

CASES = {
    f"{shape}, axis {axis}": (shape, axis) for shape, axis in [((1,), 0), ((7, 10), 1), ((9, 33), -1), ((3, 1024), 1)]
}
CASES |= {f"{shape}, axis {axis}": (shape, axis) for shape, axis in [((2, 1025), 1), ((2, 5000), 1), ((6, 5, 40), 1)]}
CASES |= {
    f"{shape}, axis {axis}": (shape, axis) for shape, axis in [((33, 3), 0), ((2, 70, 2), -2), ((0, 4), 1), ((4, 0), 1)]
}
each_log = pytest.mark.parametrize("log", [False, True], ids=["", "log"])


def made(shape, axis, log, dtype=np.float32, seed=1):
    rng = np.random.default_rng(seed)
    y = forward.reference(rng.standard_normal(shape), axis, log).astype(dtype)
    return rng.standard_normal(shape).astype(dtype), y


@each_log
@pytest.mark.parametrize("axis", [0, 1])
def test_the_reference_is_what_finite_differences_say(axis, log):
    rng, step = np.random.default_rng(0), 1e-5
    x, dy = rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    expected = np.empty(x.shape)
    for at in np.ndindex(x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        more, less = (forward.reference(one, axis, log) for one in moved)
        expected[at] = (dy * (more - less)).sum() / (2 * step)
    found = gradients.reference(dy, forward.reference(x, axis, log), axis, log)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@each_log
@pytest.mark.parametrize("dtype", known(gradients.DTYPES), ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_path(name, dtype, log):
    shape, axis = CASES[name]
    dy, y = made(shape, axis, log, dtype)
    expected, allowed = gradients.reference(dy, y, axis, log), gradients.tolerance(dy, y, axis, log)
    found = judge.faults(
        softmax.backward, (dy, y, axis, log), lambda result: judge.right(result, expected, allowed, dtype)
    )
    assert found == []
    given = device.to_device(dy)
    assert softmax.backward(given, y, axis, log, out=given) is given
    assert judge.right(given.copy_to_host(), expected, allowed, dtype)


@each_log
def test_pytorchs(log):
    torch = pytest.importorskip("torch")
    dy, y = made((9, 33), 1, log)
    aten = torch.ops.aten
    back = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    expected = back(torch.tensor(dy).double(), torch.tensor(y).double(), 1, torch.float64).numpy()
    np.testing.assert_allclose(gradients.reference(dy, y, 1, log), expected, rtol=0, atol=1e-12)


BAD = {
    "another shape": (
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)),
        ValueError,
        r"dy must have shape \(3, 2\)",
    ),
    "another dtype": ((np.ones(3), np.ones(3, np.float32)), TypeError, "dy must be float32, was float64"),
    "an axis too far": ((*made((2, 3), 1, False), 2), ValueError, "axis must be from -2 to 1 for y of shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        softmax.backward(*arguments)
