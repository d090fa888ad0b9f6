"""Dot products of 16-bit weights and bytes: the same sums in the interpreter and on a GPU, and what is refused."""

import itertools

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, dots
from pmpp.runtime.dots import dot_high, dot_low
from pmpp.simt import cuda as interpreted
from pmpp.simt.values.errors import UnsupportedError

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")

#: Numbers that fill their bits, or whose highest bit is a sign in a signed type.
HALVES, BYTES = (0, 1, 255, 256, 32767, 32768, 65535), (0, 1, 127, 128, 255)
TOTALS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)


@cuda.jit
def both(weights, values, totals, low, high):
    i = cuda.grid(1)
    if i < low.size:
        low[i] = dot_low(weights[i], values[i], totals[i])
        high[i] = dot_high(weights[i], values[i], totals[i])


def sums(weights, values, totals):
    """What the kernel is to store, in Python's integers."""
    for weight, value, total in zip(*(map(int, given) for given in (weights, values, totals)), strict=True):
        v = value.to_bytes(4, "little")
        yield [(total + (weight & 65535) * v[i] + (weight >> 16) * v[i + 1]) % 2**32 for i in (0, 2)]


def edges():
    """Every pair of edges as weights with bytes of every edge, in both halves of a word."""
    weights = [low | high << 16 for low, high in itertools.product(HALVES, HALVES)]
    values = [int.from_bytes(bytes(four), "little") for four in itertools.product(BYTES, (0, 255), (1, 128), BYTES)]
    given = list(itertools.product(weights, values[::7], TOTALS[::2])) + list(
        itertools.product(weights[::9], values, TOTALS)
    )
    return np.ascontiguousarray(np.array(given, np.uint32).T)


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
@pytest.mark.parametrize("given", ["edges", "random"])
def test_the_sums(rng, given, dtype):
    given = edges() if given == "edges" else rng.integers(0, 2**32, (3, 1000), dtype=np.uint32)
    low, high = (device.empty(given.shape[1], np.uint32) for _ in range(2))
    # The 32 bits of a signed number count, and not its sign.
    both[-(-given.shape[1] // 128), 128](*(device.to_device(one.view(dtype)) for one in given), low, high)
    expected = np.array(list(sums(*given)), np.uint32)
    np.testing.assert_array_equal(low.copy_to_host(), expected[:, 0])
    np.testing.assert_array_equal(high.copy_to_host(), expected[:, 1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_fewer_bits_are_extended(dtype):
    """A negative number of 16 bits has the bits above set, as in every conversion to 32 bits."""
    given = np.array([[1, -1, -2, 5], [3, -1, 7, -128], [2, -3, 4, 0]]).astype(dtype)
    low, high = (device.empty(4, np.uint32) for _ in range(2))
    both[1, 32](*(device.to_device(one) for one in given), low, high)
    words = given.astype(np.int64).astype(np.uint32)
    np.testing.assert_array_equal(np.transpose([low.copy_to_host(), high.copy_to_host()]), list(sums(*words)))


@interpreter_only
def test_a_product_is_one_instruction():
    given, results = np.ones((3, 64), np.uint32), np.zeros((2, 64), np.uint32)
    counters = simt.profile(both, 2, 32, (*given, *results)).counters

    @cuda.jit
    def without(weights, values, totals, low, high):
        i = cuda.grid(1)
        if i < low.size:
            low[i] = weights[i]
            high[i] = weights[i]

    fewer = simt.profile(without, 2, 32, (*given, *results)).counters
    assert counters["inst_integer"] - fewer["inst_integer"] == 2 * 2  # two warps


@interpreter_only
@pytest.mark.parametrize("place", ["weights", "values", "total"])
@pytest.mark.parametrize(
    ("wrong", "said"), [(1.0, "float64"), (np.float32(1), "float32"), (np.int64(1), "int64"), (True, "bool")]
)
def test_what_is_refused(place, wrong, said):
    given = [wrong if place == name else np.uint32(1) for name in ("weights", "values", "total")]

    @interpreted.jit
    def kernel(a, b, c, out):
        out[0] = dot_low(a, b, c)

    with pytest.raises(UnsupportedError, match=f"dot_low: {place} must be an integer of at most 32 bits, was .*{said}"):
        kernel[1, 1](*given, np.zeros(1, np.uint32))


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="dot_middle"):
        dots.dot_middle  # noqa: B018
