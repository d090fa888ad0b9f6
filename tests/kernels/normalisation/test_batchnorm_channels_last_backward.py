"""Gradients of batch normalisation with channels last: results, arguments, and what each rung reads and launches."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import normalisation
from pmpp.kernels.normalisation import batchnorm_channels_last as forward
from pmpp.kernels.normalisation import batchnorm_channels_last_backward as room
from pmpp.kernels.normalisation import gradients, moments
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.normalisation.wrong_batchnorm_channels_last_backward import RIGHT
from tests.kernels.normalisation.wrong_batchnorm_channels_last_backward import RUNGS as WRONG
from tests.support.normalised import Gradients, parameters
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total

GRADIENTS = Gradients(room, axis=-1)
INPUTS, right, wrong_parameters = GRADIENTS.inputs, GRADIENTS.right, GRADIENTS.wrong_parameters
F32 = np.float32
DTYPES = known(room.DTYPES)
SOME = ["N x C", "whole vectors", "many rows", "groups of vectors", "large mean"]
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert GRADIENTS.faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("rung", [RIGHT, *room.LADDER], ids=lambda rung: getattr(rung, "name", "right"))
def test_a_rung_and_what_the_wrong_ones_are_made_from_have_no_fault(rung):
    assert GRADIENTS.faults(rung, SOME if rung is RIGHT else [name for name in INPUTS if INPUTS[name][1].size]) == []


def test_the_reference_is_the_slope_of_the_forward_reference(rng):
    GRADIENTS.compare_with_differences(forward.reference, (3, 2, 2, 4), rng)


@each_rung
@hypothesis.given(
    places=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    channels=st.integers(1, 40),
    offset=st.integers(0, 1),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=12)
def test_any_shape_dtype_and_alignment(rung, places, channels, offset, dtype, seed):
    hypothesis.assume(np.prod(places) > 1)
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal((*places, channels)).astype(dtype) for _ in range(2))
    weight, outputs = rng.uniform(-2, 2, channels).astype(F32), parameters(channels)
    assert right(device.to_host(rung(misaligned(dy, offset), x, weight, **outputs)), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [4, 8, 12, 24, 136, 256, 264, 520])
def test_all_numbers_of_vectors(channels, dtype):
    """Blocks of 1 to 32 vectors, several of them, and lanes beyond the last vector."""
    rng = np.random.default_rng(channels)
    dy, x = (rng.standard_normal((3, 11, channels)).astype(dtype) for _ in range(2))
    weight, outputs = rng.uniform(-2, 2, channels).astype(F32), parameters(channels)
    assert right(device.to_host(room.vectorised(dy, x, weight, **outputs)), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []


@each_rung
@pytest.mark.parametrize("name", ["whole vectors", "three channels", "many rows"])
def test_moments_that_are_given_are_used(rung, name):
    dy, x, weight = INPUTS[name]
    _, mean, invstd = forward.vectorised(x, weight, weight, return_moments=True)
    outputs = parameters(x.shape[-1])
    assert right(device.to_host(rung(dy, x, weight, mean=mean, invstd=invstd, **outputs)), dy, x, weight)
    assert wrong_parameters(**outputs, dy=dy, x=x) == []
    twice = device.to_device(2 * invstd.copy_to_host())
    assert not right(device.to_host(rung(dy, x, weight, mean=mean, invstd=twice)), dy, x, weight)


@pytest.mark.parametrize("name", ["many rows", "very many rows", "groups of vectors"])
def test_the_same_call_gives_the_same_bits(name):
    GRADIENTS.call_twice(room.vectorised, name)


@each_rung
def test_output_and_stream(rung):
    dy, x, weight = INPUTS["a volume"]
    out, stream = device.to_device(np.full(x.shape, np.nan, F32)), cuda.stream()
    assert rung(dy, x, weight, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), dy, x, weight)


def test_the_plain_function_takes_a_layout():
    dy, x, weight = INPUTS["whole vectors"]
    _, mean, invstd = normalisation.batch_norm(x, weight, 0 * weight, return_moments=True, layout="NHWC")
    for kept in ({}, {"mean": mean, "invstd": invstd}):
        dx, dweight, dbias = normalisation.batch_norm_backward(dy, x, weight, **kept, layout="NHWC")
        assert right(device.to_host(dx), dy, x, weight)
        assert wrong_parameters(dweight, dbias, dy, x) == []
    with pytest.raises(ValueError, match="layout must be 'NCHW' or 'NHWC', was 'nhwc'"):
        normalisation.batch_norm_backward(dy, x, weight, layout="nhwc")


X, C = np.ones((4, 3, 5), F32), np.ones(5, F32)
BAD = {
    "another dtype": ((X, X.astype(np.float64), C), {}, TypeError, "x must be float32, .* or bfloat16, was float64"),
    "another dy": ((X[:3].copy(), X, C), {}, ValueError, r"dy must have shape \(4, 3, 5\), had \(3, 3, 5\)"),
    "channels first in memory": (2 * (forward.channels_to(-1, X),) + (C,), {}, ValueError, "contiguous in C order"),
    "a weight for axis 1": ((X, X, np.ones(3, F32)), {}, ValueError, r"weight must have shape \(5,\), had \(3,\)"),
    "half of the moments": ((X, X, C), {"mean": C}, ValueError, "mean and invstd must be given together, invstd was"),
    "one value a channel": (2 * (X[:1, 0].copy(),) + (C,), {}, ValueError, r"two values .* had shape \(1, 5\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.vectorised(*arguments, **options)


# ------------------------------------------------------------------------------------------- what is launched, and read


@interpreter_only
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_arrays_are_read_twice_by_128_bits(dtype):
    """2 x 32 x 32 places with 64 channels: requests and sectors, by hand."""
    rng = np.random.default_rng(8)
    dy, x = (rng.standard_normal((2, 32, 32, 64)).astype(dtype) for _ in range(2))
    weight = rng.uniform(-2, 2, 64).astype(F32)
    _, mean, invstd = forward.vectorised(x, weight, weight, return_moments=True)
    result, reports = observe(room.vectorised, dy, x, weight, mean=mean, invstd=invstd)
    assert right(result, dy, x, weight)
    assert [report.kernel for report in reports] == ["sums_kernel", "add_kernel", "vectorised_kernel"]
    last = reports[-1].counters
    assert last["global_store_requests"] == x.nbytes // 512
    assert last["global_store_sectors"] == x.nbytes // 32
    for report in (reports[0], reports[-1]):  # and what blocks read of the moments and sums
        assert 2 * x.nbytes // 32 <= report.counters["global_load_sectors"] < 2.8 * x.nbytes // 32
    assert total(reports, "flops_f64") == total(reports, "flops_f16") == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_stay_in_registers(ptx, dtype):
    x, c, like = np.zeros(64, dtype), np.zeros(8, F32), moments.LIKE[16 // dtype.itemsize]
    sizes = moments.Shape(8, 8, 1), like, np.int32(1), 1
    kept, sums = gradients.Moments(c, c), gradients.Sums(c, c)
    texts = [
        ptx(room.sums_kernel, x, x, *sizes, kept, np.zeros((8, 1, 2), F32), cc=(9, 0)),
        ptx(room.vectorised_kernel, x, x, *sizes, c, kept, sums, x, cc=(9, 0)),
    ]
    for text in texts:
        assert ".extern" not in text
        assert ".local" not in text
        assert text.count("ld.global.v4") == 2 * room.PAIRS // len(like)
    assert texts[1].count("st.global.v4") == room.PAIRS // len(like)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", [name for name, case in INPUTS.items() if case[1].size and "non-finite" not in name])
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    dy, x, weight = INPUTS[name]
    given, values, w = tensor_of(torch, dy), tensor_of(torch, x).requires_grad_(), torch.from_numpy(weight).cuda()
    y = torch.nn.functional.batch_norm(values.movedim(-1, 1), None, None, w, 0 * w, training=True).movedim(1, -1)
    y.backward(given)
    found = (array_of(torch, values.grad.contiguous()), device.to_host(rung(given, values.detach(), w)))
    apart = np.abs(np.subtract(*(one.astype(np.float64) for one in found)))
    assert (apart <= 2 * room.tolerance(dy, x, weight)).all()
