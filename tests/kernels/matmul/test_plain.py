"""`matmul.matmul`: what a program asks for, of any shape and strides, with an epilogue, without a copy."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import matmul
from pmpp.kernels.matmul import fused, plans
from pmpp.runtime import device
from pmpp.runtime.views import strided
from tests.support.wrong import misaligned

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter launches")


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=F32)


def close(result, expected, a, b, more=0.0):
    """Within the tolerance of `fused`, of which K products and at most seven roundings more are allowed."""
    terms = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + more
    got = device.to_host(result)
    return got.shape == expected.shape and bool((np.abs(got - expected) <= (a.shape[-1] + 7) * 2.0**-24 * terms).all())


@st.composite
def operands(draw):
    """Two shapes that ``numpy.matmul`` takes, one of them perhaps a vector."""
    m, n, k = (draw(st.integers(1, 6)) for _ in "mnk")
    leading = draw(st.lists(st.integers(1, 3), max_size=2))
    few = [extent if draw(st.booleans()) else 1 for extent in leading]
    kind = draw(st.sampled_from(["matrices", "matrices", "row", "column"]))
    a = (k,) if kind == "row" else (*few, m, k)
    b = (k,) if kind == "column" else (*leading[draw(st.integers(0, len(leading))) :], k, n)
    return a, b


@hypothesis.given(shapes=operands(), seed=st.integers(0, 99))
def test_shapes_are_those_of_numpy(shapes, seed):
    a, b = array(*shapes[0], seed=seed), array(*shapes[1], seed=seed + 1)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    result = matmul.matmul(a, b)
    assert result.shape == expected.shape
    terms = np.matmul(np.abs(a), np.abs(b))
    assert (np.abs(device.to_host(result) - expected) <= (shapes[0][-1] + 1) * 2.0**-24 * terms + 1e-45).all()


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_two_matrices_in_order_have_the_bits_of_the_room_for_them(orders):
    a, b = (device.to_device(np.asarray(x, order=o)) for x, o in zip((array(9, 20), array(20, 7)), orders, strict=True))
    assert np.array_equal(device.to_host(matmul.matmul(a, b)), device.to_host(plans.product(a, b)))


@interpreter_only
def test_views_are_read_where_they_are():
    """A slice, a transposed batch, and a matrix that is repeated: one launch each, and nothing is copied before it."""
    big, batch = device.to_device(array(12, 20)), device.to_device(array(3, 5, 8))
    repeated = strided(device.to_device(array(8, 4)), (3, 8, 4), (0, 4, 1))
    turned = strided(batch, (3, 8, 5), (40, 1, 8))
    for a, b in ((big[::2, 4:12], big[:8, 3:]), (batch, repeated), (turned, batch)):
        with simt.record() as reports:
            result = matmul.matmul(a, b)
        x, y = device.to_host(a), device.to_host(b)
        assert close(result, np.matmul(x.astype(np.float64), y), x, y)
        assert [report.kernel for report in reports] == ["product_and_finish"]


@cuda.jit(device=True)
def halved(value):
    return value * F32(0.5)


@pytest.mark.parametrize("leading", [(), (3,)])
@pytest.mark.parametrize("activation", [None, "relu", halved])
def test_the_epilogue(leading, activation):
    a, b, bias, residual = array(*leading, 5, 12), array(12, 8, seed=1), array(8, seed=2), array(5, 1, seed=3)
    sums = -2.0 * np.matmul(a.astype(np.float64), b) + 3.0 * residual + bias
    expected = {None: sums, "relu": np.maximum(sums, 0), halved: sums / 2}[activation]
    result = matmul.matmul(a, b, bias, residual, activation, -2.0, 3.0)
    assert close(result, expected, 2 * a, b, 3 * np.abs(residual) + np.abs(bias))


def test_products_are_added_to_what_is_there():
    a, b, before = array(4, 6), array(6, 8, seed=1), array(4, 8, seed=2)
    out = device.to_device(before)
    assert matmul.matmul(a, b, beta=0.5, accumulate=True, out=out) is out
    assert close(out, a.astype(np.float64) @ b + 0.5 * before, a, b, np.abs(before))


@pytest.mark.parametrize("row", [False, True])
def test_a_vector_with_an_epilogue(row):
    """alpha A x + beta y, as BLAS has it: y is the residual, or what ``out`` holds."""
    a, b = (array(7), array(2, 7, 5)) if row else (array(2, 5, 7), array(7))
    y = array(2, 5, seed=3)
    expected = 2.0 * np.matmul(a.astype(np.float64), b) - y
    terms = 2 * np.matmul(np.abs(a), np.abs(b)) + np.abs(y)
    out = device.to_device(y)
    found = [
        matmul.matmul(a, b, None, y, None, 2.0, -1.0),
        matmul.matmul(a, b, beta=-1, alpha=2, accumulate=True, out=out),
    ]
    assert found[1] is out
    for result in found:
        assert (np.abs(device.to_host(result) - expected) <= 14 * 2.0**-24 * terms).all()


def test_a_row_may_have_a_bias():
    a, b, bias = array(6), array(6, 4), array(4, seed=2)
    expected = np.maximum(a.astype(np.float64) @ b + bias, 0)
    assert close(matmul.matmul(a, b, bias, activation="relu"), expected, a, b, np.abs(bias))
    out = device.empty(4, np.float32)
    assert matmul.matmul(a, b, bias, activation="relu", out=out) is out
    assert close(out, expected, a, b, np.abs(bias))


@pytest.mark.parametrize(
    "shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3, 0), (0, 4)), ((0,), (0, 3)), ((2, 0), (0,))]
)
def test_nothing_to_add_up_gives_zeros_and_no_rows_give_none(shapes):
    a, b = (np.ones(shape, F32) for shape in shapes)
    assert np.array_equal(device.to_host(matmul.matmul(a, b)), np.matmul(a, b))


def test_without_depth_the_epilogue_is_left():
    assert (
        device.to_host(matmul.matmul(np.ones((2, 0), F32), np.ones((0, 3), F32), F32([1, -2, 3]))).tolist()
        == [[1, -2, 3]] * 2
    )


def test_a_result_that_begins_anywhere():
    a, b = array(2, 8, 8), array(8, 4, seed=1)
    out = misaligned(np.zeros((2, 8, 4), F32), 1)
    assert matmul.matmul(a, b, out=out) is out
    assert close(out, np.matmul(a.astype(np.float64), b), a, b)


BAD = {
    "b must have 3 rows, as many as a has columns, had 4": lambda: matmul.matmul(
        np.ones((2, 2, 3), F32), np.ones((4, 2), F32)
    ),
    r"b must have shape \(3, any\), had \(4, 2\)": lambda: matmul.matmul(np.ones((2, 3), F32), np.ones((4, 2), F32)),
    r"b must have shape \(3,\), had \(4,\)": lambda: matmul.matmul(np.ones((2, 3), F32), np.ones(4, F32)),
    "b must have at least 2 dimensions where a has 1, had 1": lambda: matmul.matmul(np.ones(3, F32), np.ones(3, F32)),
    "b must have 3 rows": lambda: matmul.matmul(np.ones(3, F32), np.ones((2, 4, 5), F32)),
    "bias must be None where b is a vector": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones(3, F32), np.ones(2, F32)
    ),
    r"residual must have a shape that broadcasts to \(2,\), had \(3,\)": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones(3, F32), None, np.ones(3, F32)
    ),
    r"bias must have shape \(4,\), had \(3,\)": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones((3, 4), F32), np.ones(3, F32)
    ),
    "activation must be None, 'relu', 'gelu' or a device function": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones((3, 4), F32), activation="tanh"
    ),
    "out must be an array with accumulate=True, was None": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones(3, F32), accumulate=True
    ),
    r"out must have shape \(2,\), had \(2, 1\)": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones(3, F32), out=device.empty((2, 1), F32)
    ),
    r"residual must be None with accumulate=True, had shape \(2,\)": lambda: matmul.matmul(
        np.ones((2, 3), F32), np.ones(3, F32), None, np.ones(2, F32), accumulate=True, out=device.empty(2, F32)
    ),
    "alpha must be .*finite": lambda: matmul.matmul(np.ones((2, 3), F32), np.ones((3, 4), F32), alpha=np.nan),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_argument_is_named(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


@pytest.mark.parametrize("name", ["a", "b"])
def test_another_dtype_is_refused_by_name(name):
    given = {"a": np.ones((2, 3), F32), "b": np.ones((3, 2), F32)}
    with pytest.raises(TypeError, match=f"{name} must be float32, was float64"):
        matmul.matmul(**(given | {name: np.ones((3, 3))}))


def test_a_result_over_an_operand_is_refused():
    x, square = device.to_device(array(4)), device.to_device(array(4, 4))
    with pytest.raises(ValueError, match=r"out must .*b"):
        matmul.matmul(square, x, out=x)
    with pytest.raises(ValueError, match=r"out must .*a"):
        matmul.matmul(square, square, np.ones(4, F32), out=square)


def test_the_room_for_the_rest_is_the_last_rung():
    assert fused.LADDER[-1] is fused.packed
