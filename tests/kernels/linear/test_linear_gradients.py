"""Gradients of a linear layer: against finite differences, PyTorch and float64; and the same bits twice."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import linear
from pmpp.kernels.linear import ladder
from pmpp.kernels.linear import linear_gradients as room
from pmpp.runtime import device
from tests.kernels.linear.wrong_linear_gradients import RIGHT
from tests.kernels.linear.wrong_linear_gradients import RUNGS as WRONG
from tests.support.judge import judge, right
from tests.support.wrong import misaligned, name_of, observe, total

F32 = np.float32
INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_gradient = pytest.mark.parametrize("of", room.GRADIENTS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(seed, rows, features, outputs, dtype=F32):
    rng = np.random.default_rng(seed)
    shapes = (rows, outputs), (rows, features), (outputs, features)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def is_right(result, dy, x, weight, of):
    dy64, x64, weight64 = (one.astype(np.float64) for one in (dy, x, weight))
    with np.errstate(all="ignore"):
        expected = {"x": dy64 @ weight64, "weight": dy64.T @ x64, "bias": dy64.sum(axis=0)}[of]
    return right(result, expected, room.tolerance(dy, x, weight, of))


# -------------------------------------------------------------------------------------------------------- the reference


@each_gradient
def test_the_reference_is_the_slope_of_the_layer(of):
    """Central differences of L = sum of dy y, with a random dy. L is linear in each argument: only rounding is left."""
    dy, x, weight = drawn(1, 4, 5, 3, np.float64)
    given = {"x": x, "weight": weight, "bias": np.random.default_rng(2).standard_normal(3)}
    step, slope = 2.0**-10, np.zeros(given[of].shape)
    for at in np.ndindex(slope.shape):
        ends = []
        for sign in (1, -1):
            moved = {name: array.copy() for name, array in given.items()}
            moved[of][at] += sign * step
            ends.append((dy * ladder.reference(moved["x"], moved["weight"], moved["bias"])).sum())
        slope[at] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(room.reference(dy, x, weight, of), slope, rtol=0, atol=1e-10)


def test_the_gradients_are_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dy, x, weight = (torch.from_numpy(one) for one in drawn(3, 9, 7, 6, np.float64))
    bias = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    x.requires_grad_(), weight.requires_grad_()
    torch.nn.functional.linear(x, weight, bias).backward(dy)
    arrays = dy.numpy(), x.detach().numpy(), weight.detach().numpy()
    for of, theirs in (("x", x.grad), ("weight", weight.grad), ("bias", bias.grad)):
        np.testing.assert_allclose(room.reference(*arrays, of), theirs.numpy(), rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------------------------- results

SOME = ["a tile and one, x", "a tile and one, weight", "a tile and one, bias", "one row, weight"]


def faults(gradient, names):
    """All that is wrong with a gradient, worst first."""
    for name in names:
        arguments = INPUTS[name]
        judged = judge(gradient, arguments, lambda result, arguments=arguments: is_right(result, *arguments))
        found = judged.faults + ["atomics"] * (total(judged.reports, "atomic_requests") > 0)
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT, SOME) == []


@each_rung
@each_gradient
@hypothesis.given(
    shape=st.tuples(st.integers(1, 24), st.integers(1, 40), st.integers(1, 24)),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
)
@hypothesis.settings(max_examples=2)
def test_any_shape_and_alignment(rung, of, shape, offsets):
    dy, x, weight = drawn(sum(shape), *shape)
    given = [misaligned(one, offset) for one, offset in zip((dy, x, weight), offsets, strict=True)]
    assert is_right(device.to_host(rung(*given, of)), dy, x, weight, of)


@each_rung
@each_gradient
def test_the_same_call_gives_the_same_bits(rung, of):
    given = drawn(4, 36, 8, 12)
    first, second = (device.to_host(rung(*given, of)) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_a_long_sum_of_columns_is_split(monkeypatch):
    dy, x, weight = drawn(5, 700, 1, 40)
    result, reports = observe(room.by_shape, dy, x, weight, "bias")
    assert [report.kernel for report in reports] == ["column_sums_kernel", "add_kernel"] or device.on_gpu()
    assert is_right(result, dy, x, weight, "bias")


# --------------------------------------------------------------------------------------------------- the plain function

NEEDS = [need for count in range(4) for need in itertools.combinations(room.GRADIENTS, count)]


@pytest.mark.parametrize("need", NEEDS, ids="+".join)
@pytest.mark.parametrize("shape", [(12, 8, 10), (9, 5, 7)], ids=["fours", "odd"])
def test_the_plain_function_gives_what_is_needed(need, shape):
    dy, x, weight = drawn(6, *shape)
    given = x if "weight" in need else None, weight if "x" in need else None
    results = linear.linear_backward(dy, *given, need=need)
    for of, result in zip(room.GRADIENTS, results, strict=True):
        assert (result is None) == (of not in need)
        assert result is None or is_right(result.copy_to_host(), dy, x, weight, of)


def test_the_sums_of_the_bias_cost_no_launch_of_their_own():
    _, reports = observe(lambda *given: linear.linear_backward(*given)[1], *drawn(7, 12, 8, 10))
    if not device.on_gpu():
        assert [report.kernel for report in reports] == ["product_kernel", "product_kernel"]


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (3, 4, 0), (0, 0, 0)])
def test_extents_of_nothing(shape):
    for result, of in zip(linear.linear_backward(*drawn(8, *shape)), room.GRADIENTS, strict=True):
        assert is_right(result.copy_to_host(), *drawn(8, *shape), of)


# ------------------------------------------------------------------------------------------------------------ bad input

DY, X, W = np.zeros((3, 5), F32), np.zeros((3, 4), F32), np.zeros((5, 4), F32)
BAD = {
    "float64": ((DY.astype(np.float64), X, W), TypeError, "dy must be float32, was float64"),
    "a vector": ((DY, X[0], W), ValueError, "x must have 2 dimensions, had 1"),
    "other rows": ((DY, X[:2].copy(), W), ValueError, r"x must have shape \(3, any\), had \(2, 4\)"),
    "weight transposed": ((DY, X, W.T.copy()), ValueError, r"weight must have shape \(5, 4\), had \(4, 5\)"),
    "dy of the inputs": ((X, X, W), ValueError, r"weight must have shape \(4, 4\), had \(5, 4\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, error, words = BAD[name]
    for function in (*room.LADDER, linear.linear_backward):
        with pytest.raises(error, match=words):
            function(*arguments)


def test_what_is_not_known_to_be_a_gradient_is_refused():
    with pytest.raises(ValueError, match="of must be 'x', 'weight' or 'bias', was 'weights'"):
        room.naive(DY, X, W, "weights")
    with pytest.raises(ValueError, match=r"need must be a tuple of .*, was \('weights',\)"):
        linear.linear_backward(DY, X, W, need=("weights",))
    with pytest.raises(TypeError, match=r"need must be a tuple of .*, was 'weight'"):
        linear.linear_backward(DY, X, W, need="weight")
    with pytest.raises(TypeError, match=r"x must be .*, was None"):
        linear.linear_backward(DY, None, W)


def test_a_bad_output():
    with pytest.raises(ValueError, match=r"out must have shape \(3, 4\), had \(5, 4\)"):
        room.naive(DY, X, W, "x", out=device.empty((5, 4), F32))
