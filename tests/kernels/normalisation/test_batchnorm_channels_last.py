"""Batch normalisation with channels last: results, running moments, arguments, and what is launched and read."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import normalisation
from pmpp.kernels.normalisation import batchnorm as channels_first
from pmpp.kernels.normalisation import batchnorm_channels_last as room
from pmpp.kernels.normalisation import moments
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.normalisation.wrong_batchnorm_channels_last import RIGHT
from tests.kernels.normalisation.wrong_batchnorm_channels_last import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
F32 = np.float32
DTYPES = known(room.DTYPES)
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def right(result, x, weight, bias, eps=1e-5, relu=False):
    with np.errstate(all="ignore"):
        expected = room.reference(x, weight, bias, eps=eps, relu=relu)
    return judge.right(result, expected, room.tolerance(x, weight, bias, eps), x.dtype)


def right_inference(result, x, weight, bias, mean, var, relu=False):
    """Eight roundings: of the difference, the root, the quotient, the products and the sum; 16 bits once more."""
    expected = room.reference(x, weight, bias, mean, var, training=False, relu=relu)
    allowed = 8 * 2.0**-24 * (np.abs(weight) * (np.abs(x.astype(F32)) + np.abs(mean)) / np.sqrt(var + 1e-5) + abs(bias))
    return judge.right(result, expected, allowed + moments.once_more(np.abs(expected) + allowed, x.dtype), x.dtype)


def running_of(x, seed=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x.shape[-1], dtype=F32), rng.uniform(0.5, 2, x.shape[-1]).astype(F32)


def parameters_of(x, seed=7):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 2, x.shape[-1]).astype(F32), rng.standard_normal(x.shape[-1], dtype=F32)


SOME = ["N x C", "whole vectors", "many rows", "groups of vectors", "a volume"]


def faults(normalise):
    """All that is wrong with a normalisation on the first input where anything is, worst first."""
    for name in SOME:
        found = judge.faults(normalise, INPUTS[name], lambda result, name=name: right(result, *INPUTS[name]))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert faults(rung) == []


@each_rung
@hypothesis.given(
    places=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    channels=st.integers(1, 40),
    training=st.booleans(),
    relu=st.booleans(),
    offset=st.integers(0, 1),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=12)
def test_any_shape_dtype_and_alignment(rung, places, channels, training, relu, offset, dtype, seed):
    hypothesis.assume(np.prod(places) > 1)
    x = np.random.default_rng(seed).standard_normal((*places, channels)).astype(dtype)
    given, affine, kept = misaligned(x, offset), parameters_of(x), running_of(x)
    if training:
        assert right(device.to_host(rung(given, *affine, relu=relu)), x, *affine, relu=relu)
    else:
        result = rung(given, *affine, *kept, training=False, relu=relu)
        assert right_inference(device.to_host(result), x, *affine, *kept, relu=relu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [4, 8, 12, 24, 136, 256, 264, 520])
def test_all_numbers_of_vectors(channels, dtype):
    """Blocks of 1 to 32 vectors, several of them, and lanes beyond the last vector; one row more than a tile has."""
    x = np.random.default_rng(channels).standard_normal((3, 11, channels)).astype(dtype)
    affine, before = parameters_of(x), running_of(x)
    kept = tuple(map(device.to_device, before))
    assert right(device.to_host(room.vectorised(x, *affine, *kept, momentum=0.25)), x, *affine)
    for got, new in zip(kept, channels_first.reference_running(room.channels_to(1, x), *before, 0.25), strict=True):
        np.testing.assert_allclose(got.copy_to_host(), new, rtol=1e-4, atol=1e-4)


def test_the_reference_is_that_of_channels_first():
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5))
    weight, bias = np.arange(1.0, 6), np.arange(5.0)
    first = channels_first.reference(np.moveaxis(x, -1, 1), weight, bias)
    np.testing.assert_array_equal(room.reference(x, weight, bias), np.moveaxis(first, 1, -1))
    by_hand = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5) * weight + bias
    np.testing.assert_allclose(room.reference(x, weight, bias), by_hand, rtol=1e-12)


@each_rung
@pytest.mark.parametrize("name", ["whole vectors", "three channels", "many rows", "large mean"])
def test_the_moments_of_the_batch_are_kept_and_returned(rung, name):
    x, weight, bias = INPUTS[name]
    before = running_of(x)
    kept = tuple(map(device.to_device, before))
    out, mean, invstd = rung(x, weight, bias, *kept, momentum=0.25, eps=1e-3, return_moments=True)
    assert right(device.to_host(out), x, weight, bias, eps=1e-3)
    rows = x.reshape(-1, x.shape[-1]).T.astype(np.float64)
    mean_error, var_error = (error[:, 0] for error in moments.moment_errors(rows))
    square = rows.var(axis=1) + 1e-3
    assert judge.right(device.to_host(mean), rows.mean(axis=1), mean_error)
    assert judge.right(device.to_host(invstd), square**-0.5, square**-0.5 * (var_error / square + 4 * 2.0**-24))
    more = rows.shape[1] / (rows.shape[1] - 1)
    expected = channels_first.reference_running(room.channels_to(1, x), *before, 0.25)
    for got, new, error in zip(kept, expected, (mean_error, more * var_error), strict=True):
        assert judge.right(got.copy_to_host(), new, 0.25 * error + 4 * 2.0**-24 * (np.abs(new) + 1))


def test_a_first_value_far_from_the_mean_costs_nothing(rng):
    """A thread's sums begin around its first value. Here that is an outlier, in every thread that there may be."""
    x = rng.standard_normal((40, 40, 8)).astype(F32)
    x[0] += 1e4
    affine = parameters_of(x)
    assert right(device.to_host(room.vectorised(x, *affine)), x, *affine)


@pytest.mark.parametrize("name", ["many rows", "very many rows", "groups of vectors"])
def test_the_same_call_gives_the_same_bits(name):
    first, second = (device.to_host(room.vectorised(*INPUTS[name])) for _ in range(2))
    assert first.tobytes() == second.tobytes()


@each_rung
def test_output_and_stream(rung):
    x, weight, bias = INPUTS["a volume"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(x, weight, bias, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, weight, bias)


def test_the_plain_function_takes_a_layout():
    x, weight, bias = INPUTS["whole vectors"]
    assert right(normalisation.batch_norm(x, weight, bias, layout="NHWC").copy_to_host(), x, weight, bias)
    first = np.ascontiguousarray(room.channels_to(1, x))
    for options in ({}, {"layout": "NCHW"}):
        result = normalisation.batch_norm(first, weight, bias, **options).copy_to_host()
        assert right(room.channels_to(-1, result), x, weight, bias)
    for layout in ("NHCW", None, 1):
        with pytest.raises(ValueError, match=f"layout must be 'NCHW' or 'NHWC', was {layout!r}"):
            normalisation.batch_norm(x, weight, bias, layout=layout)


X, C = np.ones((4, 3, 5), F32), np.ones(5, F32)
BAD = {
    "another dtype": ((X.astype(np.float64), C, C), {}, TypeError, "x must be float32, .* or bfloat16, was float64"),
    "a vector": ((C, C, C), {}, ValueError, "x must have 2, 3, 4 or 5 dimensions, had 1"),
    "channels first in memory": ((room.channels_to(-1, X), C, C), {}, ValueError, "x must be contiguous in C order"),
    "a weight for axis 1": ((X, np.ones(3, F32), C), {}, ValueError, r"weight must have shape \(5,\), had \(3,\)"),
    "no running moments": ((X, C, C), {"training": False}, ValueError, "must be given for training=False, were None"),
    "running moments on the host": ((X, C, C, C, C), {}, TypeError, r"pass pmpp.*to_device\(running_mean\)"),
    "one value a channel": ((X[:1, 0].copy(), C, C), {}, ValueError, r"two values a channel .* had shape \(1, 5\)"),
    "another result": ((X, C, C), {"out": device.empty((4, 5, 3), F32)}, ValueError, "out must have shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.vectorised(*arguments, **options)


# ------------------------------------------------------------------------------------------- what is launched, and read


@interpreter_only
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_batch_is_read_twice_by_128_bits(dtype):
    """2 x 32 x 32 places with 64 channels: requests and sectors of each kernel, by hand."""
    x = np.random.default_rng(8).standard_normal((2, 32, 32, 64)).astype(dtype)
    affine = parameters_of(x)
    warps = x.nbytes // 512
    result, reports = observe(room.vectorised, x, *affine)
    assert right(result, x, *affine)
    assert [report.kernel for report in reports] == ["parts_kernel", "merge_kernel", "vectorised_kernel"]
    parts, _, last = (report.counters for report in reports)
    assert parts["global_load_requests"] == warps
    assert parts["global_load_sectors"] == x.nbytes // 32
    assert last["global_store_requests"] == warps
    assert last["global_store_sectors"] == x.nbytes // 32
    assert x.nbytes // 32 <= last["global_load_sectors"] < 1.2 * x.nbytes // 32
    assert total(reports, "flops_f64") == total(reports, "flops_f16") == 0
    if dtype == F32:
        _, narrow = observe(room.channel_each, x, *affine)
        assert narrow[0].counters["global_load_requests"] == x.size // 32
        assert narrow[-1].counters["global_store_requests"] == x.size // 32 == 4 * warps


@interpreter_only
def test_what_is_no_whole_vectors_goes_another_way():
    for x, offset in ((INPUTS["N x C"][0], 0), (INPUTS["many rows"][0], 1)):
        _, reports = observe(room.vectorised, misaligned(x, offset), *parameters_of(x))
        assert reports[0].kernel == "column_parts_kernel"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_stay_in_registers(ptx, dtype):
    x, c, like = np.zeros(64, dtype), np.zeros(8, F32), moments.LIKE[16 // dtype.itemsize]
    shape, kept = moments.Shape(8, 8, 1), (moments.Affine(c, c), moments.Moments(c, c), moments.Epilogue(F32(0), True))
    sizes = shape, like, np.int32(1), 1
    texts = [
        ptx(room.parts_kernel, x, *sizes, np.zeros((8, 1, 4), F32), cc=(9, 0)),
        ptx(room.vectorised_kernel, x, *sizes, *kept, x, cc=(9, 0)),
    ]
    for text in texts:
        assert ".extern" not in text
        assert ".local" not in text
        assert text.count("ld.global.v4") >= room.ROWS
    assert texts[1].count("st.global.v4") == room.ROWS


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", [name for name, case in INPUTS.items() if case[0].size])
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, weight, bias = INPUTS[name]
    if not np.isfinite(x.astype(F32)).all():
        pytest.skip("libraries differ in what is not finite")
    given, w, b = tensor_of(torch, x), torch.from_numpy(weight).cuda(), torch.from_numpy(bias).cuda()
    expected = torch.nn.functional.batch_norm(given.movedim(-1, 1), None, None, w, b, training=True).movedim(1, -1)
    result = rung(given, w, b)
    allowed = 2 * room.tolerance(x, weight, bias)
    apart = np.abs(
        array_of(torch, expected.contiguous()).astype(np.float64) - device.to_host(result).astype(np.float64)
    )
    assert (apart <= allowed).all()
