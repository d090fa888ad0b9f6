"""Gradients of batch normalisation: against finite differences, arguments, and what each rung reads and launches."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import normalisation
from pmpp.kernels.normalisation import batchnorm
from pmpp.kernels.normalisation import batchnorm_backward as room
from pmpp.runtime import device
from tests.kernels.normalisation.wrong_batchnorm_backward import RIGHT
from tests.kernels.normalisation.wrong_batchnorm_backward import RUNGS as WRONG
from tests.support.normalised import Gradients, parameters
from tests.support.wrong import name_of, observe, total

GRADIENTS = Gradients(room)
INPUTS, right, wrong_parameters = GRADIENTS.inputs, GRADIENTS.right, GRADIENTS.wrong_parameters
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


SOME = ["odd plane", "a block +1", "large mean", "plane of whole vectors", "non-finite", "constant"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert GRADIENTS.faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert GRADIENTS.faults(rung, SOME if rung is RIGHT else [name for name in INPUTS if INPUTS[name][1].size]) == []


# -------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("shape", [(5, 2), (3, 2, 4), (2, 3, 2, 2)])
def test_the_reference_is_the_slope_of_the_forward_reference(shape, rng):
    GRADIENTS.compare_with_differences(batchnorm.reference, shape, rng)


def test_of_ones_nothing_is_left(rng):
    """A sum over a normalised channel does not change with x, so its gradient is 0."""
    x = rng.standard_normal((4, 3, 5))
    assert np.abs(room.reference(np.ones_like(x), x, np.ones(3))).max() < 1e-12


@pytest.mark.parametrize("name", [name for name in INPUTS if INPUTS[name][1].dtype == F32 and "non-finite" not in name])
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    dy, x, weight = INPUTS[name]
    if not x.size:
        pytest.skip("nothing to compare")
    given = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in (x, weight, 0 * weight)]
    y = torch.nn.functional.batch_norm(given[0], None, None, *given[1:], training=True, eps=1e-3)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    found = room.reference(dy, x, weight, 1e-3), *room.reference_parameters(dy, x, 1e-3)
    for got, expected in zip(found, given, strict=True):
        size = max(1, np.abs(dy).max()) * x.size
        np.testing.assert_allclose(got, expected.grad.numpy(), rtol=1e-7, atol=1e-10 * size)


# --------------------------------------------------------------------------------------------------------- the results


@each_rung
@hypothesis.given(
    n=st.integers(1, 40),
    c=st.integers(1, 9),
    plane=st.lists(st.integers(1, 9), max_size=3),
    offsets=st.tuples(*[st.integers(0, 4)] * 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_shape_and_alignment(rung, n, c, plane, offsets, seed):
    shape, size = (n, c, *plane), n * c * math.prod(plane)
    hypothesis.assume(n * math.prod(plane) > 1)
    rng = np.random.default_rng(seed)
    flat = [rng.standard_normal(offset + size, dtype=F32) for offset in offsets]
    dy, x, _ = (array[offset:].reshape(shape) for array, offset in zip(flat, offsets, strict=True))
    given, values, out = (
        device.to_device(array)[offset:].reshape(shape) for array, offset in zip(flat, offsets, strict=True)
    )
    weight, outputs = rng.uniform(-2, 2, c).astype(F32), parameters(c)
    rung(given, values, weight, out=out, **outputs)
    assert right(out.copy_to_host(), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []


def moments_of(x, eps=1e-5):
    rows = room.rows_of(x).astype(np.float64)
    return rows.mean(axis=1).astype(F32), (1 / np.sqrt(rows.var(axis=1) + eps)).astype(F32)


@each_rung
@pytest.mark.parametrize("name", ["odd plane", "N x C", "large N x C", "long channels"])
def test_moments_that_are_given_are_used_and_x_is_read_once_less(rung, name):
    dy, x, weight = INPUTS[name]
    mean, invstd = moments_of(x)
    outputs = parameters(x.shape[1])
    assert right(device.to_host(rung(dy, x, weight, mean=mean, invstd=invstd, **outputs)), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []
    twice = device.to_host(rung(dy, x, weight, mean=mean, invstd=2 * invstd))
    assert not right(twice, dy, x, weight)


@pytest.mark.parametrize("name", ["odd plane", "large N x C", "long channels", "long odd channels"])
def test_the_same_call_gives_the_same_bits(name):
    for rung in room.LADDER:
        GRADIENTS.call_twice(rung, name)


@each_rung
def test_output_and_stream(rung):
    dy, x, weight = INPUTS["a volume"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(dy, x, weight, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), dy, x, weight)


def test_the_plain_function_takes_what_the_forward_pass_returns():
    dy, x, weight = INPUTS["odd plane"]
    _, mean, invstd = normalisation.batch_norm(x, weight, 0 * weight, return_moments=True)
    for moments in ({}, {"mean": mean, "invstd": invstd}):
        dx, dweight, dbias = normalisation.batch_norm_backward(dy, x, weight, **moments)
        assert right(device.to_host(dx), dy, x, weight)
        assert wrong_parameters(dweight, dbias, dy, x) == []
    assert [one.shape for one in normalisation.batch_norm_backward(*INPUTS["no channels"])] == [(4, 0), (0,), (0,)]


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones((4, 3, 5), F32), np.ones(3, F32)
BAD = {
    "another dtype": (
        (X, X.astype(np.float64), C),
        {},
        TypeError,
        "x must be float32, float16 or bfloat16, was float64",
    ),
    "another dy": ((X[:3].copy(), X, C), {}, ValueError, r"dy must have shape \(4, 3, 5\), had \(3, 3, 5\)"),
    "a vector": ((C, C, C), {}, ValueError, "x must have 2, 3, 4 or 5 dimensions, had 1"),
    "every other": ((X[::2], X[::2], C), {}, ValueError, "x must be contiguous in C order"),
    "another weight": ((X, X, C[:2]), {}, ValueError, r"weight must have shape \(3,\), had \(2,\)"),
    "eps": ((X, X, C), {"eps": -1e-5}, ValueError, "eps must not be negative, was -1e-05"),
    "half of the moments": ((X, X, C), {"mean": C}, ValueError, "mean and invstd must be given together, invstd was"),
    "other moments": ((X, X, C), {"mean": C, "invstd": X}, ValueError, r"invstd must have shape \(3,\)"),
    "dweight on the host": ((X, X, C), {"dweight": C}, TypeError, "dweight must be a device array, was a NumPy array"),
    "one value a channel": (2 * (X[:1, :, 0].copy(),) + (C,), {}, ValueError, r"two values .* had shape \(1, 3\)"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


def test_what_is_written_lies_apart_from_all_else():
    memory = device.to_device(np.ones(80, F32))
    one, other, batch = memory[:3], memory[2:5], memory[20:].reshape(X.shape)
    for options, words in (
        ({"dweight": one, "dbias": other}, "dbias must share no memory with dweight"),
        ({"dbias": memory[19:22], "out": batch}, "out must share no memory with dbias"),
        ({"dweight": one, "mean": one, "invstd": C}, "dweight must share no memory with mean"),
    ):
        with pytest.raises(ValueError, match=words):
            room.arguments(X, X, C, **options)


# ------------------------------------------------------------------------------------------- what is launched, and read


def launched(rung, shape):
    """Reports of the launches with moments that are given, once the results have been found right."""
    rng = np.random.default_rng(3)
    dy, x = rng.standard_normal((2, *shape), dtype=F32)
    weight, (mean, invstd) = rng.uniform(0.5, 2, shape[1]).astype(F32), moments_of(x)
    outputs = parameters(shape[1])
    result, reports = observe(rung, dy, x, weight, mean=mean, invstd=invstd, **outputs)
    assert right(result, dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []
    return reports


PATHS = {
    "a channel in registers": ((8, 3, 16, 16), ["channel_kernel"], 1),
    "a channel in registers, odd": ((64, 3, 9, 9), ["channel_kernel"], 1),
    "large": ((5, 1, 64, 64), ["parts_kernel", "vectorised_kernel"], 2),
    "large and odd": ((2, 2, 101, 103), ["odd_parts_kernel", "odd_kernel"], 2),
    "wide rows": ((1800, 37), ["column_sums_kernel", "add_kernel", "columns_kernel"], 2),
    "narrow rows": ((33_000, 2), ["column_sums_kernel", "add_kernel", "gradient_kernel"], 2),
}


@interpreter_only
@pytest.mark.parametrize("name", PATHS)
def test_the_way_that_a_shape_takes(name):
    shape, kernels, times = PATHS[name]
    reports = launched(room.vectorised, shape)
    assert [report.kernel for report in reports] == kernels
    size = math.prod(shape)
    reads = total(reports, "global_load_sectors") * 8 / size
    if name != "narrow rows":  # there five numbers of a channel are read for each element
        # What is loaded in place of what lies beyond an end, the sums of parts, and rows that begin nowhere in
        # particular cost up to three quarters as much again.
        assert 2 * times <= reads < 3.5 * times
    assert 4 * size <= total(reports, "global_store_bytes") < 4.2 * size


@interpreter_only
def test_what_each_rung_mends():
    """Of four channels: how many blocks make the sums, how many launches there are, and loads for an element."""
    shape = (8, 4, 32, 32)
    found = {rung.name: launched(rung, shape) for rung in room.LADDER}
    assert found["block_per_channel"][0].grid[:2] == (4, 1)
    assert found["split"][0].grid[:2] == (4, 32)
    assert {name: len(reports) for name, reports in found.items()} == {
        "block_per_channel": 2, "split": 3, "fused": 2, "vectorised": 1,
    }  # fmt: skip
    requests = {name: total(reports, "global_load_requests") for name, reports in found.items()}
    assert requests["vectorised"] < requests["fused"] / 6  # a read of four, where there were two of one each


@pytest.mark.gpu
@each_rung
def test_torch_agrees_on_the_gpu(rung):
    torch = pytest.importorskip("torch")
    for name, (dy, x, weight) in INPUTS.items():
        if x.size and x.dtype == F32 and np.isfinite(x).all():  # of 16 bits libraries round in other places
            given = [torch.from_numpy(array).cuda() for array in (dy, x, weight)]
            values = given[1].clone().requires_grad_()
            y = torch.nn.functional.batch_norm(values, None, None, given[2], 0 * given[2], training=True)
            y.backward(given[0])
            result = device.to_host(rung(*given))
            expected = values.grad.cpu().numpy()
            assert (np.abs(result - expected) <= 2 * room.tolerance(dy, x, weight)).all(), name
