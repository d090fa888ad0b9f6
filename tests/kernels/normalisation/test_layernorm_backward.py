"""Gradients of layer normalisation: against finite differences, arguments, and what each rung reads and launches."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import normalisation
from pmpp.kernels.normalisation import layernorm
from pmpp.kernels.normalisation import layernorm_backward as room
from pmpp.runtime import device
from tests.kernels.normalisation.wrong_layernorm_backward import RIGHT
from tests.kernels.normalisation.wrong_layernorm_backward import RUNGS as WRONG
from tests.support.normalised import Gradients, parameters
from tests.support.wrong import name_of, observe, total

GRADIENTS = Gradients(room)
INPUTS, right, wrong_parameters = GRADIENTS.inputs, GRADIENTS.right, GRADIENTS.wrong_parameters
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


SOME = ["a few vectors", "a row", "odd", "large mean", "non-finite", "constant"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert GRADIENTS.faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert GRADIENTS.faults(rung, SOME if rung is RIGHT else INPUTS) == []


# -------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("shape", [(1, 5), (4, 3), (3, 8)])
def test_the_reference_is_the_slope_of_the_forward_reference(shape, rng):
    GRADIENTS.compare_with_differences(layernorm.reference, shape, rng)


@pytest.mark.parametrize("name", [name for name in INPUTS if np.isfinite(INPUTS[name][1]).all()])
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    dy, x, weight = INPUTS[name]
    given = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in (x, weight, 0 * weight)]
    torch.nn.functional.layer_norm(given[0], x.shape[1:], *given[1:], eps=1e-3).backward(
        torch.from_numpy(dy.astype(np.float64))
    )
    found = room.reference(dy, x, weight, 1e-3), *room.reference_parameters(dy, x, 1e-3)
    for got, expected in zip(found, given, strict=True):
        size = max(1, np.abs(dy).max(initial=0)) * max(1, x.size)
        np.testing.assert_allclose(got, expected.grad.numpy(), rtol=1e-7, atol=1e-10 * size)


# --------------------------------------------------------------------------------------------------------- the results


@each_rung
@hypothesis.given(
    rows=st.integers(0, 20),
    columns=st.one_of(st.integers(1, 40), st.integers(1, 1200)),
    whole=st.booleans(),
    offsets=st.tuples(*[st.integers(0, 4)] * 4),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_shape_and_alignment(rung, rows, columns, whole, offsets, seed):
    if whole:
        columns, offsets = 4 * columns, tuple(4 * (offset // 4) for offset in offsets)
    rng = np.random.default_rng(seed)

    def made(offset, *shape):
        flat = rng.standard_normal(offset + math.prod(shape), dtype=F32)
        if not math.prod(shape):
            return np.zeros(shape, F32), device.to_device(np.zeros(shape, F32))
        return flat[offset:].reshape(shape), device.to_device(flat)[offset:].reshape(shape)

    (dy, given), (x, values) = made(offsets[0], rows, columns), made(offsets[1], rows, columns)
    (weight, w), (_, out), outputs = made(offsets[2], columns), made(offsets[3], rows, columns), parameters(columns)
    rung(given, values, w, out=out, **outputs)
    assert right(out.copy_to_host(), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []


def moments_of(x, eps=1e-5):
    rows = x.astype(np.float64)
    return rows.mean(axis=1).astype(F32), (1 / np.sqrt(rows.var(axis=1) + eps)).astype(F32)


@each_rung
@pytest.mark.parametrize("name", ["odd", "a few vectors", "the longest row kept +1"])
def test_moments_that_are_given_are_used(rung, name):
    dy, x, weight = INPUTS[name]
    mean, invstd = moments_of(x)
    assert right(device.to_host(rung(dy, x, weight, mean=mean, invstd=invstd)), dy, x, weight)
    assert not right(device.to_host(rung(dy, x, weight, mean=mean, invstd=2 * invstd)), dy, x, weight)


@pytest.mark.parametrize("name", ["odd", "many rows", "several long rows"])
def test_the_same_call_gives_the_same_bits(name):
    for rung in room.LADDER:
        GRADIENTS.call_twice(rung, name)


@each_rung
def test_output_and_stream(rung):
    dy, x, weight = INPUTS["odd"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(dy, x, weight, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), dy, x, weight)


def test_the_plain_function_takes_what_the_forward_pass_returns():
    dy, x, weight = INPUTS["odd"]
    _, mean, invstd = normalisation.layer_norm(x, weight, 0 * weight, return_moments=True)
    for moments in ({}, {"mean": mean, "invstd": invstd}):
        dx, dweight, dbias = normalisation.layer_norm_backward(dy, x, weight, **moments)
        assert right(device.to_host(dx), dy, x, weight)
        assert wrong_parameters(dweight, dbias, dy, x) == []


def test_of_no_rows_the_sums_are_zero():
    dx, dweight, dbias = normalisation.layer_norm_backward(*INPUTS["no rows"])
    assert dx.shape == (0, 5)
    assert not dweight.copy_to_host().any()
    assert not dbias.copy_to_host().any()


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones((4, 5), F32), np.ones(5, F32)
BAD = {
    "another dtype": (
        (X, X.astype(np.float64), C),
        {},
        TypeError,
        "x must be float32, float16 or bfloat16, was float64",
    ),
    "another dy": ((X[:3].copy(), X, C), {}, ValueError, r"dy must have shape \(4, 5\), had \(3, 5\)"),
    "a vector": ((C, C, C), {}, ValueError, "x must have 2 dimensions, had 1"),
    "every other": ((X[::2], X[::2], C), {}, ValueError, "x must be contiguous in C order"),
    "no columns": ((X[:, :0].copy(), X[:, :0].copy(), C[:0]), {}, ValueError, "x must have a column"),
    "another weight": ((X, X, C[:2]), {}, ValueError, r"weight must have shape \(5,\), had \(2,\)"),
    "eps": ((X, X, C), {"eps": -1e-5}, ValueError, "eps must not be negative, was -1e-05"),
    "half of the moments": (
        (X, X, C),
        {"invstd": X[:, 0].copy()},
        ValueError,
        "mean and invstd must be given together, mean was",
    ),
    "moments of columns": ((X, X, C), {"mean": C, "invstd": C}, ValueError, r"mean must have shape \(4,\), had \(5,\)"),
    "dbias on the host": ((X, X, C), {"dbias": C}, TypeError, "dbias must be a device array, was a NumPy array"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_more_columns_than_32_bits_count_are_refused(monkeypatch):
    monkeypatch.setattr(layernorm, "MOST", 4)
    with pytest.raises(ValueError, match=r"x must have at most 4 columns, had shape \(4, 5\)"):
        room.vectorised(X, X, C)


# ------------------------------------------------------------------------------------------- what is launched, and read


def launched(rung, rows, columns):
    """Reports of the launches with moments that are given, once the results have been found right."""
    rng = np.random.default_rng(3)
    dy, x = rng.standard_normal((2, rows, columns), dtype=F32)
    weight, (mean, invstd), outputs = rng.uniform(0.5, 2, columns).astype(F32), moments_of(x), parameters(columns)
    result, reports = observe(rung, dy, x, weight, mean=mean, invstd=invstd, **outputs)
    assert right(result, dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []
    return reports


@interpreter_only
def test_what_each_rung_mends(monkeypatch):
    """How often dy and x are read together, and how often a block waits for each row that it has."""
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 2})
    rows, columns = 256, 512
    found = {rung.name: launched(rung, rows, columns) for rung in room.LADDER}
    # Beside each read of the two stand numbers of a row or a column: weight, moments, sums.
    reads = {name: total(reports, "global_load_sectors") * 8 / (2 * rows * columns) for name, reports in found.items()}
    assert min(reads["three_kernels"], reads["block_per_row"]) > 3
    few, many = (
        math.prod((*found[name][at].grid, *found[name][at].block))
        for name, at in (("three_kernels", 2), ("block_per_row", 1))
    )  # threads that go down columns
    assert few == columns < many / 16
    # Two multiprocessors hold 32 blocks of 64 threads (`resident`). Each block reads weight, and what it has
    # added up for the columns is read once more; each of a row's two warps reads two moments.
    grid = found["vectorised"][0].grid[0]
    assert grid == 32
    others = (1 + 2) * grid * columns / 8 + 2 * 2 * rows
    assert reads["vectorised"] == 1 + others * 8 / (2 * rows * columns)
    assert 1 < reads["one_read"] < 2
    walk = {name: found[name][0] for name in ("one_read", "vectorised")}
    waits = {name: report.counters["barriers"] for name, report in walk.items()}
    assert waits["one_read"] == 2 * rows
    assert waits["vectorised"] == rows
    sums = 2 * grid * columns / 32  # stored one by one in both
    stores = {name: report.counters["global_store_requests"] - sums for name, report in walk.items()}
    assert stores == {"one_read": rows * columns / 32, "vectorised": rows * columns / 128}


@interpreter_only
@pytest.mark.parametrize(
    "rows, columns, kernels",
    [
        (4, 64, ["vectorised_kernel", "add_kernel"]),
        (5, 128, ["vectorised_kernel", "add_kernel"]),
        (3, 132, ["wide_rows_kernel", "add_kernel"]),
        (5, 1024, ["wide_rows_kernel", "add_kernel"]),
        (2, 8192, ["wide_rows_kernel", "add_kernel"]),
        (2, 8196, ["block_per_row_kernel", "column_parts_kernel", "add_kernel"]),
    ],
)
def test_the_way_that_a_row_takes(rows, columns, kernels):
    assert [report.kernel for report in launched(room.vectorised, rows, columns)] == kernels


@pytest.mark.gpu
@each_rung
def test_torch_agrees_on_the_gpu(rung):
    torch = pytest.importorskip("torch")
    for name, (dy, x, weight) in INPUTS.items():
        if x.size and x.dtype == F32 and np.isfinite(x).all():  # of 16 bits libraries round in other places
            given = [torch.from_numpy(array).cuda() for array in (dy, x, weight)]
            values = given[1].clone().requires_grad_()
            torch.nn.functional.layer_norm(values, x.shape[1:], given[2]).backward(given[0])
            result = device.to_host(rung(*given))
            expected = values.grad.cpu().numpy()
            assert (np.abs(result - expected) <= 2 * room.tolerance(dy, x, weight)).all(), name
