"""What the tests of a normalisation's gradients share: dx, and those of weight and bias, judged on a room's inputs."""

import functools
import types

import numpy as np

from pmpp.runtime import device
from pmpp.runtime.rung import Rung
from tests.support import judge

F32 = np.float32


def parameters(channels):
    """Where the gradients of weight and bias go."""
    return {name: device.to_device(np.full(channels, 7, F32)) for name in ("dweight", "dbias")}


def by_differences(loss, array, step=1e-5):
    """The gradient of a function of one array, by central differences in float64."""
    result = np.zeros(array.shape)
    for at in np.ndindex(array.shape):
        moved = []
        for way in (step, -step):
            other = array.copy()
            other[at] += way
            moved.append(loss(other))
        result[at] = (moved[0] - moved[1]) / (2 * step)
    return result


class Gradients:
    """The gradients of a room: ``reference`` and ``tolerance`` of dx, ``..._parameters`` of weight and bias."""

    def __init__(self, room: types.ModuleType, axis: int = 1) -> None:
        """``axis``: that of the channels."""
        self.room, self.axis, self.inputs = room, axis, room.inputs()

    def right(self, result, dy, x, weight, eps=1e-5):
        """Whether dx is right."""
        with np.errstate(all="ignore"):
            expected, allowed = (made(dy, x, weight, eps) for made in (self.room.reference, self.room.tolerance))
        return judge.right(result, expected, allowed, x.dtype)

    def wrong_parameters(self, dweight, dbias, dy, x, eps=1e-5):
        """Which of the two is wrong, in words."""
        of_both = zip(
            ("weight", "bias"),
            (dweight, dbias),
            self.room.reference_parameters(dy, x, eps),
            self.room.tolerance_parameters(dy, x, eps),
            strict=True,
        )
        return [
            f"wrong gradient of {name}"
            for name, got, expected, allowed in of_both
            if not judge.right(got.copy_to_host(), expected, allowed)
        ]

    def faults(self, backward, names):
        """All that is wrong with a version on the first input where anything is, worst first."""
        for name in names:
            dy, x, weight = self.inputs[name]
            outputs = parameters(x.shape[self.axis])
            is_right = functools.partial(self.right, dy=dy, x=x, weight=weight, eps=1e-3)
            found = judge.faults(backward, (dy, x, weight), is_right, eps=1e-3, **outputs)
            found += [] if found else self.wrong_parameters(**outputs, dy=dy, x=x, eps=1e-3)
            if found:
                return found
        return []

    def compare_with_differences(self, forward, shape, rng):
        """The references beside the slope of the forward reference.

        With a random upstream gradient: of all ones nothing would be left but rounding.
        """
        dy, x = rng.standard_normal((2, *shape))
        weight, bias = rng.standard_normal((2, shape[self.axis]))

        def loss(x=x, weight=weight, bias=bias):
            return (forward(x, weight, bias, eps=0.01) * dy).sum()

        found = self.room.reference(dy, x, weight, 0.01), *self.room.reference_parameters(dy, x, 0.01)
        for name, array, got in zip(("x", "weight", "bias"), (x, weight, bias), found, strict=True):
            expected = by_differences(lambda moved, name=name: loss(**{name: moved}), array)
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)

    def call_twice(self, rung: Rung, name: str):
        """Two calls of a rung on an input must give the same bits, all three results of them."""
        dy, x, weight = self.inputs[name]
        outputs = [parameters(x.shape[self.axis]) for _ in range(2)]
        first, second = (device.to_host(rung(dy, x, weight, **given)) for given in outputs)
        assert first.tobytes() == second.tobytes()
        for key in ("dweight", "dbias"):
            assert outputs[0][key].copy_to_host().tobytes() == outputs[1][key].copy_to_host().tobytes()
