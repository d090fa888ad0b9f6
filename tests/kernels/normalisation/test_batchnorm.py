"""Batch normalisation: results, running statistics, arguments, and what each rung reads and launches."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.normalisation import batchnorm as room
from pmpp.kernels.normalisation import batchnorm_workloads, moments
from pmpp.lab.measure import bench
from pmpp.runtime import device
from tests.kernels.normalisation.wrong_batchnorm import RIGHT
from tests.kernels.normalisation.wrong_batchnorm import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, total, watch

INPUTS = room.inputs()
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, weight, bias, eps=1e-5, relu=False):
    with np.errstate(all="ignore"):
        expected = room.reference(x, weight, bias, eps=eps, relu=relu)
    return judge.right(result, expected, room.tolerance(x, weight, bias, eps), x.dtype)


def running_of(x, seed=5):
    """A running mean and a running variance from before this batch."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x.shape[1], dtype=F32), rng.uniform(0.5, 2, x.shape[1]).astype(F32)


def right_running(got, x, before, momentum):
    """Both as PyTorch defines them. A product and a sum more are 4 roundings."""
    channels = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    mean_error, var_error = moments.moment_errors(channels)
    more = channels.shape[1] / (channels.shape[1] - 1)
    for after, expected, error in zip(
        got, room.reference_running(x, *before, momentum), (mean_error, more * var_error), strict=True
    ):
        allowed = momentum * error[:, 0] + 4 * 2.0**-24 * (np.abs(expected) + 1)
        if not (np.abs(after - expected) <= allowed).all():
            return False
    return True


def right_inference(result, x, weight, bias, mean, var, eps=1e-5):
    """Eight roundings: of the difference, the root, the quotient, the products and the sum."""
    expected = room.reference(x, weight, bias, mean, var, training=False, eps=eps)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    w, b, m, v = (array.reshape(shape) for array in (weight, bias, mean, var))
    return judge.right(
        result, expected, 8 * 2.0**-24 * (np.abs(w) * (np.abs(x) + np.abs(m)) / np.sqrt(v + eps) + np.abs(b))
    )


@few_counters()
def faults(normalise, names=INPUTS):
    """All that is wrong with a normalisation, worst first. The ladder has none; each in wrong_batchnorm.py has one."""
    found = []
    for name in names:
        x, weight, bias = INPUTS[name]
        given, before = device.to_device(x), running_of(x)
        kept = tuple(device.to_device(array) for array in before)
        result, reports = watch(normalise, given, weight, bias, *kept, momentum=0.25, eps=1e-3, relu=True)
        found += hazards(reports)
        if not found and x.size:
            found += ["wrong result"] * (not right(result, x, weight, bias, 1e-3, relu=True))
            if np.isfinite(x).all():
                after = [array.copy_to_host() for array in kept]
                found += ["wrong running moments"] * (not right_running(after, x, before, 0.25))
            used = watch(normalise, given, weight, bias, *before, training=False)[0]
            if np.isfinite(x).all():
                found += ["wrong inference"] * (not right_inference(used, x, weight, bias, *before))
            found += ["input changed"] * (not np.array_equal(given.copy_to_host(), x, equal_nan=True))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        if found:
            return found
    return found


SOME = ["two values a channel", "odd plane", "many rows", "large mean", "plane of whole vectors", "non-finite"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    """All inputs, without running moments and in training, are those of the contract of every room."""
    assert faults(rung, SOME) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, weight, bias = INPUTS[name]
    if not x.size or not np.isfinite(x).all():
        pytest.skip("nothing to compare")
    mean, var = running_of(x)
    given = [torch.from_numpy(array.astype(np.float64)) for array in (x, mean, var, weight, bias)]
    expected = torch.nn.functional.batch_norm(*given, training=True, momentum=0.3, eps=1e-3)
    np.testing.assert_allclose(room.reference(x, weight, bias, eps=1e-3), expected, rtol=1e-10, atol=1e-10)
    after = room.reference_running(x, mean, var, 0.3)
    for got, expected in zip(after, given[1:3], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    given[1:3] = (torch.from_numpy(array.astype(np.float64)) for array in (mean, var))
    expected = torch.nn.functional.batch_norm(*given, training=False, eps=1e-3)
    np.testing.assert_allclose(
        room.reference(x, weight, bias, mean, var, training=False, eps=1e-3), expected, rtol=1e-10, atol=1e-10
    )


def test_momentum_none_of_pytorch_is_one_over_the_number_of_the_batch(rng):
    torch = pytest.importorskip("torch")
    module = torch.nn.BatchNorm1d(3, momentum=None, affine=False)
    mean, var = device.to_device(np.zeros(3, F32)), device.to_device(np.ones(3, F32))
    for k in range(1, 4):
        x = rng.standard_normal((10, 3), dtype=F32)
        module(torch.from_numpy(x))
        room.vectorised(x, np.ones(3, F32), np.zeros(3, F32), mean, var, momentum=1 / k)
    np.testing.assert_allclose(mean.copy_to_host(), module.running_mean, atol=1e-6)
    np.testing.assert_allclose(var.copy_to_host(), module.running_var, atol=1e-6)


def test_the_reference_by_hand():
    x = np.array([[1, 10], [3, 10]], F32)
    out = room.reference(x, np.array([2, 3], F32), np.array([5, -7], F32), eps=0.0 + 1e-12)
    np.testing.assert_allclose(out, [[3, -7], [7, -7]], atol=1e-9)
    mean, var = room.reference_running(x, np.zeros(2), np.ones(2), 0.5)
    np.testing.assert_allclose([mean, var], [[1, 5], [1.5, 0.5]])  # the variance of 1 and 3: 1, unbiased 2


@each_rung
@hypothesis.given(
    n=st.integers(1, 40),
    c=st.integers(1, 9),
    plane=st.lists(st.integers(1, 9), max_size=3),
    training=st.booleans(),
    relu=st.booleans(),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_shape_and_alignment(rung, n, c, plane, training, relu, offsets, seed):
    shape = (n, c, *plane)
    inner = math.prod(plane)
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(offsets[0] + n * c * inner, dtype=F32)
    x = base[offsets[0] :].reshape(shape)
    weight, bias = rng.uniform(-2, 2, c).astype(F32), rng.standard_normal(c, dtype=F32)
    given = device.to_device(base)[offsets[0] :].reshape(shape)
    out = device.to_device(np.full(offsets[1] + x.size, np.nan, F32))[offsets[1] :].reshape(shape)
    mean, var = running_of(x)
    if training:
        hypothesis.assume(n * inner > 1)
        rung(given, weight, bias, relu=relu, out=out)
        assert right(out.copy_to_host(), x, weight, bias, relu=relu)
    else:
        rung(given, weight, bias, mean, var, training=False, out=out)
        assert right_inference(out.copy_to_host(), x, weight, bias, mean, var)


@pytest.mark.parametrize("offsets", [(0, 0), (1, 1), (3, 3), (1, 2), (0, 1)])
@pytest.mark.parametrize("shape", [(2, 1, 182, 182), (3, 1, 11_001)], ids=["whole vectors", "odd"])
def test_a_large_batch_anywhere(offsets, shape, rng):
    """What lies before the first whole vector and after the last is normalised too, once."""
    base = rng.standard_normal(offsets[0] + math.prod(shape), dtype=F32)
    x, given = base[offsets[0] :].reshape(shape), device.to_device(base)[offsets[0] :].reshape(shape)
    out = device.to_device(np.full(offsets[1] + x.size, np.nan, F32))[offsets[1] :].reshape(shape)
    weight, bias, mean, var = (np.array([value], F32) for value in (1.5, -0.5, 0.25, 2))
    room.vectorised(given, weight, bias, mean, var, training=False, out=out)
    assert right_inference(out.copy_to_host(), x, weight, bias, mean, var)
    room.vectorised(given, weight, bias, out=out)
    assert right(out.copy_to_host(), x, weight, bias)


def test_a_large_mean_costs_no_more_than_the_rounding_of_the_mean(rng):
    """Where a sum of squares would have lost everything: a variance of 1 beside a squared mean of 1e8."""
    x = (1e4 + rng.standard_normal((64, 2, 31))).astype(F32)
    before = device.to_device(np.zeros(2, F32)), device.to_device(np.zeros(2, F32))
    for rung in room.LADDER:
        rung(x, np.ones(2, F32), np.zeros(2, F32), *before, momentum=1.0)
        exact = np.moveaxis(x, 1, 0).reshape(2, -1).astype(np.float64).var(axis=1, ddof=1)
        np.testing.assert_allclose(before[1].copy_to_host(), exact, rtol=1e-3)


@each_rung
def test_moments_are_kept_only_if_asked_for(rung):
    x, weight, bias = INPUTS["odd plane"]
    mean, var = running_of(x)
    kept = device.to_device(mean), device.to_device(var)
    rung(x, weight, bias, *kept, momentum=0)
    assert np.array_equal(kept[0].copy_to_host(), mean)
    rung(x, weight, bias, *kept, training=False)
    assert np.array_equal(kept[1].copy_to_host(), var)


@each_rung
@pytest.mark.parametrize("name", ["odd plane", "N x C", "large N x C", "long channels", "long odd channels"])
def test_the_moments_of_the_batch_are_returned_if_asked_for(rung, name):
    x, weight, bias = INPUTS[name]
    out, mean, invstd = rung(x, weight, bias, eps=1e-3, return_moments=True)
    assert right(device.to_host(out), x, weight, bias, eps=1e-3)
    rows = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)
    mean_error, var_error = (error[:, 0] for error in moments.moment_errors(rows))
    square = rows.var(axis=1) + 1e-3
    assert judge.right(device.to_host(mean), rows.mean(axis=1), mean_error)
    assert judge.right(device.to_host(invstd), square**-0.5, square**-0.5 * (var_error / square + 4 * 2.0**-24))


@each_rung
def test_output_and_stream(rung):
    x, weight, bias = INPUTS["a volume"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(x, weight, bias, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, weight, bias)


# ------------------------------------------------------------------------------------------------------------ bad input

X, C = np.ones((4, 3, 5), F32), np.ones(3, F32)
BAD = {
    "another dtype": (
        (X.astype(np.float64), C, C),
        {},
        TypeError,
        "x must be float32, float16 or bfloat16, was float64",
    ),
    "a vector": ((C, C, C), {}, ValueError, "x must have 2, 3, 4 or 5 dimensions, had 1"),
    "every other": ((X[::2], C, C), {}, ValueError, "x must be contiguous in C order"),
    "another weight": ((X, C[:2], C), {}, ValueError, r"weight must have shape \(3,\), had \(2,\)"),
    "another bias": ((X, C, C.astype(np.float16)), {}, TypeError, "bias must be float32, was float16"),
    "half of the running moments": ((X, C, C, device.to_device(C)), {}, ValueError, "together, running_var was None"),
    "no running moments": ((X, C, C), {"training": False}, ValueError, "must be given for training=False, were None"),
    "running moments on the host": ((X, C, C, C, C), {}, TypeError, r"pass pmpp.*to_device\(running_mean\)"),
    "a momentum": ((X, C, C), {"momentum": 1.5}, ValueError, "momentum must be from 0 to 1, was 1.5"),
    "eps": ((X, C, C), {"eps": -1e-5}, ValueError, "eps must not be negative, was -1e-05"),
    "moments that are given": (
        (X, C, C, C, C),
        {"training": False, "return_moments": True},
        ValueError,
        "must be False",
    ),
    "one value a channel": ((X[:1, :, 0].copy(), C, C), {}, ValueError, r"two values a channel .* had shape \(1, 3\)"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


MEMORY = device.to_device(np.ones(80, F32))
SCALE, MEAN, VAR, BATCH = MEMORY[:3], MEMORY[3:6], MEMORY[6:9], MEMORY[20:].reshape(X.shape)


@pytest.mark.parametrize(
    ("arguments", "begin", "training", "words"),
    [
        (
            (X, SCALE, C, MEMORY[1:4], VAR),
            9,
            True,
            "running_mean must share no memory with weight, had 12 bytes, shared 8",
        ),
        ((X, C, SCALE, MEAN, MEMORY[2:5]), 9, True, "running_var must share no memory with bias"),
        ((BATCH, C, C, MEAN, MEMORY[19:22]), 9, True, "running_var must share no memory with x"),
        ((X, C, C, MEAN, MEAN), 9, True, "running_var must share no memory with running_mean"),
        ((X, C, C, MEAN, VAR), 8, True, "out must share no memory with running_var"),
        ((X, C, C, MEAN, VAR), 5, False, "out must share no memory with running_mean"),
        ((X, SCALE, C), 2, True, "out must share no memory with weight"),
    ],
)
def test_what_is_written_lies_apart_from_all_else(arguments, begin, training, words):
    out = MEMORY[begin : begin + X.size].reshape(X.shape)
    with pytest.raises(ValueError, match=words):
        room.arguments(*arguments, training=training, out=out)


def test_what_is_only_read_may_overlap():
    room.arguments(BATCH, SCALE, SCALE, MEAN, MEAN, training=False)
    room.arguments(X, C, C, MEAN, VAR, out=MEMORY[9:69].reshape(X.shape))  # side by side


# ------------------------------------------------------------------------------------------- what is launched, and read


def launched(rung, shape, *, training=True):
    """Reports of the launches, once the result has been found right: each path has its own ends and tails."""
    x, affine = drawn(shape)
    before = running_of(x)
    kept = tuple(map(device.to_device, before))
    result, reports = observe(rung, device.to_device(x), *affine, *kept, training=training, momentum=0.25)
    if training:
        assert right(result, x, *affine)
        assert right_running([array.copy_to_host() for array in kept], x, before, 0.25)
    else:
        assert right_inference(result, x, *affine, *before)
    return reports


def drawn(shape, seed=3):
    """``(x, (weight, bias))``, each channel with its own numbers."""
    rng = np.random.default_rng(seed)
    c = shape[1]
    affine = rng.uniform(0.5, 2, c).astype(F32), rng.standard_normal(c, dtype=F32)
    return rng.standard_normal(shape, dtype=F32), affine


def reads(reports, size):
    """How often x is read, by sectors of 8 values."""
    return total(reports, "global_load_sectors") * 8 / size


@interpreter_only
@pytest.mark.parametrize("name, times", [("two_pass", 2), ("welford", 1), ("split", 1), ("fused", 2)])
def test_how_often_the_batch_is_read(name, times):
    """By all kernels but `normalise_kernel`, which reads it once more, and four numbers beside for each element.

    In so small a batch the moments of 128 parts, that every block of the last kernel reads, are about as much again.
    """
    reports = launched(getattr(room, name), (8, 2, 64, 64))
    assert (reports[-1].kernel == "normalise_kernel") == (name != "fused")
    reports = [report for report in reports if report.kernel != "normalise_kernel"]
    beside = 256 * (3 * 128 + 8 * 2 * 8) / (8 * 2 * 64 * 64) if name == "fused" else 0  # and weight and bias per warp
    assert reads(reports, 8 * 2 * 64 * 64) == pytest.approx(times + beside, abs=0.3)


PATHS = {
    "a channel in registers": ((8, 3, 16, 16), {}, ["channel_kernel"], 1),
    "a channel in registers, odd": ((64, 3, 9, 9), {}, ["ragged_channel_kernel"], 1),
    "large": ((9, 1, 64, 64), {}, ["parts_kernel", "vectorised_kernel"], 2),
    "large and odd": ((3, 2, 181, 181), {}, ["ragged_parts_kernel", "ragged_kernel"], 2),
    "wide rows": ((1800, 37), {}, ["column_parts_kernel", "merge_kernel", "columns_kernel"], 2),
    "narrow rows": ((33_000, 2), {}, ["column_parts_kernel", "merge_kernel", "flat_kernel"], 2),
    "inference": ((3, 2, 181, 181), {"training": False}, ["flat_kernel"], 1),
    "inference of odd planes": ((9, 6, 37, 37), {"training": False}, ["flat_kernel"], 1),
    "inference of rows": ((1800, 37), {"training": False}, ["columns_kernel"], 1),
    "inference of little": ((18, 37), {"training": False}, ["normalise_kernel"], 1),
}


@interpreter_only
@pytest.mark.parametrize("name", PATHS)
def test_the_way_that_a_shape_takes(name):
    shape, options, kernels, times = PATHS[name]
    reports = launched(room.vectorised, shape, **options)
    assert [report.kernel for report in reports] == kernels
    size = math.prod(shape)
    if name != "inference of little":  # four numbers beside for each element
        # Rows that begin nowhere in particular, and what is loaded in place of what lies beyond an end, cost up to half
        # as much again. Another read of x would cost as much again.
        assert times <= reads(reports, size) < 1.8 * times
    assert 4 * size <= total(reports, "global_store_bytes") < 4.2 * size


@interpreter_only
def test_vectors_take_a_quarter_of_the_requests():
    """Of planes that begin anywhere, the first and the last vector may be stored value by value: six more requests."""
    (wide,), (odd,) = (launched(room.vectorised, shape) for shape in ((32, 3, 32, 32), (32, 3, 31, 31)))
    assert wide.counters["global_store_requests"] == 32 * 3 * 32 * 32 / 4 / 32 + 2 * 3  # and what is kept
    assert 32 * 3 * 31 * 31 / 4 / 32 < odd.counters["global_store_requests"] < 32 * 3 * (31 * 31 / 4 / 32 + 2 + 6)


@interpreter_only
def test_a_batch_that_ends_within_a_vector():
    """Its last vector is read value by value: a load of 128 bits would leave the array."""
    for shape in ((3, 5, 3, 3), (1, 1, 9, 9), (2, 3, 181, 181)):
        launched(room.vectorised, shape)


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
def test_torch_agrees_on_the_gpu(rung):
    torch = pytest.importorskip("torch")
    for name, (x, weight, bias) in INPUTS.items():
        if x.size and x.dtype == F32 and np.isfinite(x).all():  # of 16 bits libraries round in other places
            given = [torch.from_numpy(array).cuda() for array in (x, weight, bias)]
            expected = torch.nn.functional.batch_norm(given[0], None, None, *given[1:], training=True).cpu().numpy()
            result = device.to_host(rung(*given))
            assert (np.abs(result - expected) <= 2 * room.tolerance(x, weight, bias)).all(), name


def test_from_host_to_host_the_running_moments_stay_on_the_device():
    workload = batchnorm_workloads.in_training((2, 3, 4, 5))
    inputs = workload.make(1)
    args = bench.end_to_end_args(workload, inputs)
    assert [isinstance(x, np.ndarray) for x in args] == [True, True, True, False, False]
    before = device.to_host(args[3]).copy()
    result = device.to_host(workload.rungs[-1](*args))
    error, tolerance = bench._check(workload, result, inputs)
    assert error <= tolerance
    assert (device.to_host(args[3]) != before).any()
