"""Products of 16 bits with operands in any order: against NumPy's in float64, on shapes that are no tiles."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpp.kernels import matmul
from pmpp.kernels.matmul import mixed, mixed_warpgroups, tensor_cores
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.views import strided

DTYPES = known(mixed.DTYPES)
ORDERS = list(itertools.product((False, True), (False, True)))


def drawn(rng, shape, dtype):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def on_device(x, by_columns):
    """The array on the device, its matrices by rows or by columns."""
    if not by_columns:
        return device.to_device(x)
    turned = device.to_device(np.ascontiguousarray(x.swapaxes(-1, -2)))
    steps = [stride // x.dtype.itemsize for stride in np.empty(turned.shape, x.dtype).strides]
    return strided(turned, x.shape, (*steps[:-2], steps[-1], steps[-2]))


def agrees(a, b, turned=(False, False), bias=None, alpha=1.0, dtype=None):
    """Multiply, and compare with the exact product: the error of the sums in float32, and of rounding once."""
    found = mixed.multiply(*map(on_device, (a, b), turned), bias, alpha=alpha, dtype=dtype)
    wide = [x.astype(np.float64) for x in (a, b)]
    exact = alpha * (wide[0] @ wide[1]) + (0 if bias is None else bias.astype(np.float64))
    assert found.dtype == (a.dtype if dtype is None else np.float32)
    assert found.shape == exact.shape
    steps = -(-a.shape[-1] // tensor_cores.MMA_K) + 1
    sums = 17 * steps * 2.0**-23 * (abs(alpha) * (abs(wide[0]) @ abs(wide[1])) + 1)
    error = abs(device.to_host(found).astype(np.float64) - exact)
    assert (error <= sums + rounding(abs(exact) + sums, found.dtype)).all()


@pytest.mark.parametrize("turned", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_order_of_the_operands(dtype, turned):
    rng = np.random.default_rng(1)
    agrees(drawn(rng, (24, 40), dtype), drawn(rng, (40, 72), dtype), turned)


@settings(max_examples=8, deadline=None, database=None)
@given(
    st.integers(0, 70), st.integers(0, 70), st.integers(0, 70), st.sampled_from(ORDERS), st.booleans(), st.booleans()
)
def test_every_shape(m, n, k, turned, biased, wide):
    rng = np.random.default_rng(m + 71 * n + k)
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    agrees(a, b, turned, drawn(rng, n, np.float16) if biased else None, -0.5, "float32" if wide else None)


@pytest.mark.parametrize("tile", mixed.TILES, ids=str)
@pytest.mark.parametrize("turned", [(True, False), (False, True)])
def test_several_tiles_of_each_size(tile, turned):
    rng = np.random.default_rng(2)
    with mock.patch.object(mixed, "cut_for", return_value=(tile, 1)):
        a, b = drawn(rng, (tile.m + 8, 40), np.float16), drawn(rng, (40, tile.n + 2), np.float16)
        agrees(a, b, turned)


@pytest.mark.parametrize(
    ("dtype", "turned"),
    [*((dtype, (left, False)) for dtype in DTYPES for left in (False, True)), (DTYPES[0], (False, True))],
    ids=str,
)
def test_warpgroups_multiply_what_is_large(dtype, turned):
    """More than a tile each way, three steps of K and a bit, so that each stage is used again; a bias, and edges."""
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    rng = np.random.default_rng(5)
    a, b, bias = (drawn(rng, shape, dtype) for shape in ((130, 264), (264, 136), 136))
    with mock.patch.object(mixed, "by_warpgroups", return_value=True):
        agrees(a, b, turned, bias, 0.5)
        a, b = (np.ascontiguousarray(x) for x in (a[:70, :9], b[:9, :130]))
        agrees(a, b, turned, None, 1.0, "float32")


def test_warpgroups_multiply_parts_of_a_long_sum():
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    rng = np.random.default_rng(7)
    a, b = drawn(rng, (24, 160), np.float16), drawn(rng, (160, 40), np.float16)
    with (
        mock.patch.object(mixed, "by_warpgroups", return_value=True),
        mock.patch.object(mixed, "parts_for", return_value=2),
    ):
        agrees(a, b, (True, False), drawn(rng, 40, np.float16), 2.0)


def test_warpgroups_multiply_several():
    if device.limits()["compute_capability"] != mixed_warpgroups.CAPABILITY:
        pytest.skip("no GPU of compute capability 9.0")
    rng = np.random.default_rng(6)
    with mock.patch.object(mixed, "by_warpgroups", return_value=True):
        agrees(drawn(rng, (2, 2, 9, 24), np.float16), drawn(rng, (2, 24, 8), np.float16))


def test_warpgroups_multiply_one_matrix_with_leading_dimensions():
    """Its columns are contiguous, so it is turned first, whatever its rank."""
    rng = np.random.default_rng(7)
    with mock.patch.object(mixed, "by_warpgroups", return_value=True):
        for leading in ((), (1,), (1, 1)):
            agrees(drawn(rng, (*leading, 9, 24), np.float16), drawn(rng, (*leading, 24, 8), np.float16), (False, True))


def test_batches_are_broadcast_and_may_be_padded():
    rng = np.random.default_rng(3)
    agrees(drawn(rng, (2, 3, 9, 16), np.float16), drawn(rng, (3, 16, 8), np.float16), (True, False))
    agrees(drawn(rng, (2, 1, 9, 5), np.float16), drawn(rng, (3, 5, 7), np.float16))


def test_a_long_sum_is_cut_and_added_up_the_same_way_each_time():
    rng = np.random.default_rng(4)
    a, b, bias = drawn(rng, (16, 96), np.float16), drawn(rng, (96, 8), np.float16), drawn(rng, 8, np.float16)
    with mock.patch.object(mixed, "SHORTEST", 16):
        for cached in (mixed.parts_for, mixed.cut_for):
            cached.cache_clear()
        assert mixed.cut_for(1, 16, 8, 96, 132) == (mixed.TILES[-1], 4)
        agrees(a, b, (True, False), bias, 2.0)
    for cached in (mixed.parts_for, mixed.cut_for):
        cached.cache_clear()


@pytest.mark.parametrize("parts", [1, 4])
def test_into_columns_of_a_wider_matrix(parts):
    """As the gradients of queries, keys and values have theirs in one array: what lies between is not touched."""
    rng = np.random.default_rng(8)
    a, b = drawn(rng, (16, 96), np.float16), drawn(rng, (96, 8), np.float16)
    wide = device.to_device(np.full((16, 24), 7, np.float16))
    with mock.patch.object(mixed, "cut_for", return_value=(mixed.TILES[-1], parts)):
        into = strided(wide, (16, 8), (24, 1), 8)
        mixed.into(device.to_device(a), device.to_device(b), None, into, np.float32(1), device.as_stream(0))
    found = device.to_host(wide)
    np.testing.assert_allclose(found[:, 8:16], a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=1e-2)
    assert (found[:, :8] == 7).all()
    assert (found[:, 16:] == 7).all()


def test_rounding_happens_once_and_sums_are_float32():
    ones = np.ones((1, 4096), np.float16)
    assert device.to_host(mixed.multiply(ones, ones.T)).item() == 4096  # in float16 it would stop at 2048
    big = np.full((1, 8), 60000, np.float16)
    assert np.isposinf(device.to_host(mixed.multiply(big, big.T)).item())


def test_what_is_wrong_with_16_bits_is_named():
    a, b = np.ones((4, 8), np.float16), np.ones((8, 4), np.float16)
    with pytest.raises(TypeError, match=r"^a must be float16 or bfloat16"):
        mixed.multiply(a.astype(np.float64), b)
    with pytest.raises(ValueError, match=r"^b must have 8 rows"):
        mixed.multiply(a, a)
    with pytest.raises(ValueError, match="leading dimensions"):
        mixed.multiply(np.stack([a, a]), np.stack([b, b, b]))
    with pytest.raises(TypeError, match=r"^dtype must be None, float16 or float32"):
        mixed.multiply(a, b, dtype="int8")
    with pytest.raises(ValueError, match="bias"):
        mixed.multiply(a, b, np.ones(3, np.float16))
    square = device.to_device(np.ones((8, 8), np.float16))
    with pytest.raises(ValueError, match=r"^a must have strides that are not negative"):
        mixed.multiply(square[::-1], square)
    with pytest.raises(ValueError, match=r"^b must have strides that are not negative"):
        mixed.multiply(square, square[:, ::-1])
    with pytest.raises(ValueError, match="out"):
        mixed.multiply(square, square, out=square)


@pytest.mark.gpu
def test_the_plain_product_takes_16_bits_of_torch():
    torch = pytest.importorskip("torch")
    a, b = np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 1]])
    found = device.to_host(matmul.matmul(*(torch.from_numpy(x).cuda() for x in (a, b))))
    assert found.dtype == np.float16
    assert found.tolist() == [[3, 2], [7, 4]]


def test_the_plain_product_takes_16_bits():
    a, b = np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 1]])
    found = device.to_host(matmul.matmul(a, b, np.float16([10, 20]), alpha=2.0))
    assert found.dtype == np.float16
    assert found.tolist() == [[16, 24], [24, 28]]
    with pytest.raises(TypeError, match=r"^activation must be None"):
        matmul.matmul(a, b, activation="relu")
    with pytest.raises(TypeError, match=r"^beta must be a number, was 'x'"):
        matmul.matmul(a, b, beta="x")
