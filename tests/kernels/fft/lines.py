"""What the tests of `any_length` and `one_trip` share: both rooms transform lines, by one definition.

A function that begins with `check_` is the body of a test. It takes the room whose bound holds, or none if there is
nothing to bound; ``n`` is a length that the room takes.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device
from tests.support import judge
from tests.support.wrong import observe

C64 = np.complex64


def noise(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(C64)


def exact(x, inverse=False, norm="backward"):
    """NumPy's transform in float64."""
    return (np.fft.ifft if inverse else np.fft.fft)(x.astype(np.complex128), norm=norm)


def off(result, x, inverse=False, norm="backward"):
    """The largest error of a line in the 2-norm, relative to the line."""
    expected = exact(x, inverse, norm)
    error, size = (np.linalg.norm(v, axis=-1) for v in (result - expected, expected))
    return (error / np.maximum(size, 2.0**-100)).max(initial=0)


def right(room, result, x, inverse=False, norm="backward"):
    """As the bound for the slowest of all rungs has it."""
    if result.dtype != C64 or result.shape != x.shape:
        return False
    return bool(off(result, x, inverse, norm) <= room.relative_error(x.shape[-1]))


def faults(room, transform, names=None, longest=math.inf):
    """All that is wrong with a transform on the first input where anything is, worst first.

    Of the room's inputs those are taken that are lines of at most ``longest`` points, and have one of these names.
    """
    for name, (x, inverse, norm) in room.inputs().items():
        if x.ndim == 2 and x.shape[1] <= longest and (names is None or name in names):
            is_right = lambda result, x=x, inverse=inverse, norm=norm: right(room, result, x, inverse, norm)  # noqa: E731
            if found := judge.faults(transform, (x, inverse, norm), is_right):
                return found
    return []


def counted(room, rung, x):
    result, reports = observe(rung, x)
    assert right(room, result, x)
    return reports


def check_the_reference(room, name):
    x, inverse, norm = room.inputs()[name]
    expected = exact(x, inverse, norm)
    result = room.reference(x, inverse, norm)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10 * abs(expected).max(initial=0))


def check_a_sum_of_lines(room, rung, n):
    x, y = noise(3, n), noise(3, n, seed=1)
    both = (x + 2j * y).astype(C64)
    a, b, c = (device.to_host(rung(one)).astype(np.complex128) for one in (x, y, both))
    allowed = room.relative_error(n) * (np.linalg.norm(a) + 2 * np.linalg.norm(b) + np.linalg.norm(c))
    assert np.linalg.norm(a + 2j * b - c) <= allowed + 2.0**-23 * np.linalg.norm(c)  # and `both` is rounded


def check_forward_and_back(room, rung, n, norm):
    x = noise(4, n)
    again = device.to_host(rung(rung(x, False, norm), True, norm))
    assert np.linalg.norm(again - x) <= 2 * room.relative_error(n) * np.linalg.norm(x)


def check_what_is_not_finite(room, rung, n):
    x = noise(40, n)
    x[7, 3], x[20, 0] = np.inf, np.nan
    result = device.to_host(rung(x))
    spoilt = ~np.isfinite(result).all(axis=1)
    assert spoilt.nonzero()[0].tolist() == [7, 20]
    assert right(room, result[~spoilt], x[~spoilt])


def check_output_stream_and_alignment(room, rung, n):
    x = noise(2, 3, n)
    out = device.to_device(np.full(1 + x.size, np.nan, C64))[1:].reshape(x.shape)  # begins off 16 bytes
    stream = cuda.stream()
    assert rung(x, out=out, stream=stream) is out
    stream.synchronize()
    assert right(room, out.copy_to_host(), x)
    given = device.to_device(np.concatenate([noise(1), x.reshape(-1)]))[1:].reshape(x.shape)
    assert right(room, device.to_host(rung(given, True, "forward")), x, True, "forward")


# ------------------------------------------------------------------------------------------------------------ bad input


def bad(n):
    """What every rung refuses, by name: x, further arguments, the error, its words."""
    x, norms = noise(3, n), 'norm must be "backward", "ortho" or "forward", was'
    return {
        "another dtype": (x.astype(np.complex128), (), TypeError, "x must be complex64, was complex128"),
        "real": (x.real.copy(), (), TypeError, "x must be complex64, was float32"),
        "no points": (noise(2, 0), (), ValueError, "the last axis of x must have 1 to 67108864 points, had 0"),
        "a number": (np.array(1, C64), (), ValueError, "x must have at least 1 dimension, had none"),
        "no direction": (x, (1,), TypeError, "inverse must be True or False, was 1"),
        "another norm": (x, (False, "unitary"), ValueError, f"{norms} 'unitary'"),
        "no norm": (x, (False, None), ValueError, f"{norms} None"),
        "every other": (noise(3, 2 * n)[:, ::2], (), ValueError, "x must be contiguous in C order"),
    }


def check_bad_input(rung, x, options, error, words):
    with pytest.raises(error, match=words):
        rung(x, *options)


def check_a_bad_output(rung, n):
    with pytest.raises(ValueError, match=rf"out must have shape \(3, {n}\), had \({n}, 3\)"):
        rung(noise(3, n), out=device.empty((n, 3), C64))


def between_words(*shape):
    """A complex64 array 4 bytes behind a multiple of 8, as a view of CuPy's float32 memory can be."""
    memory = device.to_device(np.zeros(2 * int(np.prod(shape)) + 1, np.float32))
    begin = memory.__cuda_array_interface__["data"][0] + 4
    interface = {"shape": shape, "typestr": "<c8", "data": (begin, False), "version": 3}
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=interface, owner=memory))


def check_arrays_between_words(rung, n):
    words = "must begin at a multiple of 8 bytes, began 4 bytes behind one: copy it first"
    with pytest.raises(ValueError, match=f"x {words}"):
        rung(between_words(2, n))
    with pytest.raises(ValueError, match=f"out {words}"):
        rung(noise(3, n), out=between_words(3, n))


# --------------------------------------------------------------------------------------------------- other libraries


def check_cupy_agrees(room, rung, shape, inverse):
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(noise(*shape))
    stream = cupy.cuda.Stream()
    with stream:
        ours = cupy.asarray(rung(x, inverse, "ortho", stream=stream))
        theirs = (cupy.fft.ifft if inverse else cupy.fft.fft)(x, norm="ortho")
    stream.synchronize()
    error = float(cupy.linalg.norm((ours - theirs).ravel()) / cupy.linalg.norm(theirs.ravel()))
    assert error <= 2 * room.relative_error(shape[-1])
