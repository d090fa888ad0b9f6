"""Layer normalisation: results, arguments, and what each rung reads and launches."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.normalisation import layernorm as room
from pmpp.kernels.normalisation import moments
from pmpp.runtime import device
from tests.kernels.normalisation.wrong_layernorm import RIGHT
from tests.kernels.normalisation.wrong_layernorm import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

INPUTS = room.inputs()
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, weight, bias, eps=1e-5):
    with np.errstate(all="ignore"):
        expected, allowed = room.reference(x, weight, bias, eps), room.tolerance(x, weight, bias, eps)
    return judge.right(result, expected, allowed, x.dtype)


def faults(normalise, names):
    """All that is wrong with a layer normalisation on the first input where anything is, worst first.

    With another eps than that of the contract of every room.
    """
    for name in names:
        x, weight, bias = INPUTS[name]
        arguments = x, weight, bias, 1e-3
        judged = judge.judge(normalise, arguments, lambda result, arguments=arguments: right(result, *arguments))
        found = judged.faults
        found += ["traffic"] * (total(judged.reports, "global_store_bytes") > 2 * x.nbytes + 1024)
        if found:
            return found
    return []


SOME = ["a row", "half a warp of vectors", "odd", "large mean", "a few vectors", "non-finite", "constant"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert faults(rung, SOME) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, weight, bias = INPUTS[name]
    if not np.isfinite(x).all():
        pytest.skip("nothing to compare")
    given = (torch.from_numpy(array.astype(np.float64)) for array in (x, weight, bias))
    x64, *affine = given
    expected = torch.nn.functional.layer_norm(x64, x.shape[1:], *affine, eps=1e-3)
    np.testing.assert_allclose(room.reference(x, weight, bias, 1e-3), expected, rtol=1e-10, atol=1e-10)


def test_the_reference_by_hand():
    out = room.reference(np.array([[1, 3], [5, 5]], F32), np.array([2, 3], F32), np.array([0, 1], F32), eps=1e-12)
    np.testing.assert_allclose(out, [[-2, 4], [0, 1]], atol=1e-9)


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

    (x, given), (weight, w), (bias, b) = (
        made(offsets[0], rows, columns),
        made(offsets[1], columns),
        made(offsets[2], columns),
    )
    out = made(offsets[3], rows, columns)[1]
    rung(given, w, b, out=out)
    assert right(out.copy_to_host(), x, weight, bias)


def test_a_large_mean_costs_no_more_than_the_rounding_of_the_mean(rng):
    """Where a sum of squares would have lost everything: a variance of 1 beside a squared mean of 1e8."""
    x = (1e4 + rng.standard_normal((7, 500))).astype(F32)
    ones = np.ones(500, F32)
    for rung in room.LADDER:
        result = device.to_host(rung(x, ones, 0 * ones))
        np.testing.assert_allclose(result, room.reference(x, ones, 0 * ones), atol=5e-3)


@each_rung
@pytest.mark.parametrize("name", ["odd", "half a warp of vectors", "several long rows", "a column"])
def test_the_moments_of_the_rows_are_returned_if_asked_for(rung, name):
    x, weight, bias = INPUTS[name]
    out, mean, invstd = rung(x, weight, bias, 1e-3, return_moments=True)
    assert right(device.to_host(out), x, weight, bias, 1e-3)
    rows = x.astype(np.float64)
    mean_error, var_error = (error[:, 0] for error in moments.moment_errors(rows))
    square = rows.var(axis=1) + 1e-3
    assert judge.right(device.to_host(mean), rows.mean(axis=1), mean_error)
    assert judge.right(device.to_host(invstd), square**-0.5, square**-0.5 * (var_error / square + 4 * 2.0**-24))


@each_rung
def test_output_and_stream(rung):
    x, weight, bias = INPUTS["odd"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(x, weight, bias, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, weight, bias)


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones((4, 5), F32), np.ones(5, F32)
BAD = {
    "another dtype": (
        (X.astype(np.float64), C, C),
        {},
        TypeError,
        "x must be float32, float16 or bfloat16, was float64",
    ),
    "a vector": ((C, C, C), {}, ValueError, "x must have 2 dimensions, had 1"),
    "every other": ((X[::2], C, C), {}, ValueError, "x must be contiguous in C order"),
    "no columns": ((X[:, :0].copy(), C[:0], C[:0]), {}, ValueError, r"x must have a column, had shape \(4, 0\)"),
    "another weight": ((X, C[:2], C), {}, ValueError, r"weight must have shape \(5,\), had \(2,\)"),
    "another bias": ((X, C, C.astype(np.float16)), {}, TypeError, "bias must be float32, was float16"),
    "eps": ((X, C, C, -1e-5), {}, ValueError, "eps must not be negative, was -1e-05"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_more_columns_than_32_bits_count_are_refused(monkeypatch):
    monkeypatch.setattr(room, "MOST", 4)
    for rung in room.LADDER:
        with pytest.raises(ValueError, match=r"x must have at most 4 columns, had shape \(4, 5\)"):
            rung(X, C, C)


# ------------------------------------------------------------------------------------------- what is launched, and read


def launched(rung, rows, columns):
    """Reports of the launches, once the result has been found right."""
    rng = np.random.default_rng(3)
    x, weight, bias = (rng.standard_normal(shape, dtype=F32) for shape in ((rows, columns), columns, columns))
    result, reports = observe(rung, x, weight, bias)
    assert right(result, x, weight, bias)
    return reports


# The last column: how often weight and bias are read for each row. Two rows share a warp of the last rung; and the rung
# before makes 32 loads per lane, here 24 of them of the row's last element.
@interpreter_only
@pytest.mark.parametrize(
    "name, times, barriers, beside",
    [("block_per_row", 3, 2, 2), ("welford", 2, 1, 2), ("warp_per_row", 1, 0, 2 + 24 / 32), ("vectorised", 1, 0, 1)],
)
def test_how_often_a_row_is_read_and_how_often_a_block_waits(name, times, barriers, beside):
    rows, columns = 1056, 256  # rows enough for a crowd
    (report,) = launched(getattr(room, name), rows, columns)
    assert report.counters["global_load_sectors"] * 8 == pytest.approx((times + beside) * rows * columns, rel=0.01)
    assert report.counters["barriers"] == barriers * report.grid[0]


@interpreter_only
@pytest.mark.parametrize(
    "rows, columns, kernels",
    [
        (4, 64, ["vectorised_kernel"]),
        (3, 4096, ["vectorised_kernel"]),  # few rows: many threads for each
        (1100, 64, ["vectorised_kernel"]),
        (1100, 520, ["wide_rows_kernel"]),
        (3, 32768, ["wide_rows_kernel"]),
        (3, 32772, ["parts_kernel", "long_rows_kernel"]),
        (1, 32769, ["parts_kernel", "long_rows_kernel"]),
    ],
)
def test_the_way_that_a_row_takes(rows, columns, kernels):
    assert [report.kernel for report in launched(room.vectorised, rows, columns)] == kernels


@interpreter_only
def test_a_block_takes_a_whole_long_row_where_there_are_rows_for_all_multiprocessors(monkeypatch):
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 2})
    (report,) = launched(room.vectorised, 2, 32772)
    assert (report.kernel, report.grid, report.block[0]) == ("long_rows_kernel", (2, 1, 1), 1024)


def test_threads_for_a_row():
    """A power of two that shares a warp, or whole warps."""
    assert [room.lanes_for(units, 4) for units in (1, 4, 5, 16, 17, 128)] == [1, 1, 2, 4, 8, 32]
    assert [room.lanes_for(units, 4) for units in (129, 256, 257, 4096)] == [64, 64, 96, 1024]


@interpreter_only
def test_whole_vectors_take_a_quarter_of_the_requests():
    (wide,), (odd,) = (launched(room.vectorised, 4, columns) for columns in (1024, 1023))
    assert wide.counters["global_store_requests"] == 4 * 1024 / 4 / 32
    assert odd.counters["global_store_requests"] >= 4 * 1023 / 32


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
def test_torch_agrees_on_the_gpu(rung):
    torch = pytest.importorskip("torch")
    for name, (x, weight, bias) in INPUTS.items():
        if x.size and x.dtype == F32 and np.isfinite(x).all():  # of 16 bits libraries round in other places
            given = [torch.from_numpy(array).cuda() for array in (x, weight, bias)]
            expected = torch.nn.functional.layer_norm(given[0], x.shape[1:], *given[1:]).cpu().numpy()
            result = device.to_host(rung(*given))
            assert (np.abs(result - expected) <= 2 * room.tolerance(x, weight, bias)).all(), name
