"""`cuda.random` beside Numba's own, which runs on the CPU."""

import numpy as np
import pytest

from pmpp.simt import ArgumentError, cuda

random = cuda.random


@pytest.fixture(scope="module")
def numba_random():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    return pytest.importorskip("numba.cuda.random")


@pytest.mark.parametrize("seed, n, start", [(1, 1, 0), (0, 40, 3), (2**63, 5, 1), (2**64 - 1, 2, 0), (7, 0, 0)])
def test_states_are_numbas(numba_random, seed, n, start):
    ours, theirs = (np.empty(n, random.xoroshiro128p_dtype) for _ in range(2))
    random.init_xoroshiro128p_states_cpu(ours, seed, start)
    numba_random.init_xoroshiro128p_states_cpu(theirs, np.uint64(seed), start)
    np.testing.assert_array_equal(ours, theirs)
    device = random.create_xoroshiro128p_states(n, seed, start) if n else cuda.to_device(ours)
    np.testing.assert_array_equal(device.copy_to_host(), theirs)


DRAWS = ("uniform_float32", "uniform_float64", "normal_float32", "normal_float64")


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_are_numbas(numba_random, draw):
    name = "xoroshiro128p_" + draw
    dtype = np.float32 if draw.endswith("32") else np.float64
    function = getattr(random, name)

    @cuda.jit
    def kernel(states, out):
        i = cuda.grid(1)
        for k in range(out.shape[1]):
            out[i, k] = function(states, i)

    states, out = random.create_xoroshiro128p_states(32, seed=5), np.zeros((32, 20), dtype)
    kernel[1, 32](states, out)
    theirs = np.empty(32, random.xoroshiro128p_dtype)
    numba_random.init_xoroshiro128p_states_cpu(theirs, np.uint64(5), 0)
    expected = np.array([[getattr(numba_random, name)(theirs, i) for _ in range(20)] for i in range(32)], dtype)
    np.testing.assert_array_equal(states.copy_to_host(), theirs)
    if "uniform" in draw:
        np.testing.assert_array_equal(out, expected)
    else:  # log, of float32 in both, and cos differ in their last bits; near cos = 0 only the absolute error is small
        eps = np.finfo(np.float32).eps
        np.testing.assert_allclose(out, expected, rtol=8 * eps, atol=16 * eps)


def test_states_are_refused_where_they_are_none():
    with pytest.raises(ArgumentError, match="xoroshiro128p_dtype"):
        random.init_xoroshiro128p_states_cpu(np.zeros(3), 1)
