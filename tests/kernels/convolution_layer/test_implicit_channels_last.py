"""Implicit GEMM with channels last: any layer, the kernels and when they run, workspace, errors, and counters."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer import implicit_channels_last as room
from pmpp.kernels.convolution_layer.definition import Layer, layer_of
from pmpp.kernels.convolution_layer.measured_layers import sums
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_implicit_channels_last import RIGHT
from tests.kernels.convolution_layer.wrong_implicit_channels_last import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe

F32 = np.float32
INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(x, w, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x, dtype=F32), rng.standard_normal(w, dtype=F32)


def right(result, x, w, bias=None, *options, relu=False):
    """Whether a result is right: by the definition in float64, fast."""
    layer = layer_of(room.first_shape(x.shape), room.first_shape(w.shape), *options)
    shift = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    exact = room.last(sums(room.first(x), room.first(w), layer)) + shift
    size = room.last(sums(room.first(abs(x)), room.first(abs(w)), layer)) + abs(shift)
    return judge.right(result, np.maximum(exact, 0) if relu else exact, (layer.terms + 2) * 2.0**-24 * size + 2.0**-149)


SOME = (
    "3x3 p1, three channels, bias, ReLU",
    "3x2 s2x1 p1x0 d1x2, sixteen channels",
    "3x2 s2x1 p1x0 d1x2",
    "two groups",
    "padding beyond the kernel",
)


def faults(rung):
    """All that is wrong with a convolution on the first input where anything is, worst first."""
    for name in SOME:
        arguments = INPUTS[name]
        exact, allowed = room.reference(*arguments), room.tolerance(*arguments)
        if found := judge.faults(rung, arguments, lambda result, e=exact, a=allowed: judge.right(result, e, a)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@hypothesis.given(
    rung=st.sampled_from(room.LADDER),
    n=st.integers(1, 3),
    channels=st.sampled_from([1, 3, 8, 16]),
    filters=st.sampled_from([1, 8, 66]),
    groups=st.integers(1, 2),
    extent=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.sampled_from([(1, 1), (2, 3), (3, 1)]),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    options=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@hypothesis.settings(max_examples=12)
def test_any_layer(rung, n, channels, filters, groups, extent, kernel, stride, padding, dilation, options):
    biased, relu, shifted = options
    x, w = drawn((n, *extent, channels * groups), (filters * groups, *kernel, channels))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    bias = np.linspace(-1, 1, len(w), dtype=F32) if biased else None
    how = stride, padding, dilation, groups
    result = rung(misaligned(x, 1) if shifted else x, w, bias, *how, relu)
    assert right(device.to_host(result), x, w, bias, *how, relu=relu)


def test_the_reference_is_that_of_channels_first():
    x, w, _, *options = INPUTS["3x2 s2x1 p1x0 d1x2, sixteen channels"]
    layer = layer_of(room.first_shape(x.shape), room.first_shape(w.shape), *options)
    exact = room.last(sums(room.first(x), room.first(w), layer))
    np.testing.assert_allclose(room.reference(x, w, None, *options), exact, rtol=1e-10, atol=1e-12)
    x, w = np.zeros((1, 3, 3, 2)), np.zeros((1, 2, 2, 2))
    x[0, 1, 2, 1], w[0, 1, 0, 1] = 5, 7  # one product, by hand: row 1 is 0 + 1, and column 2 is 2 + 0
    assert room.reference(x, w, padding=1)[0, 1, 3, 0] == 35


@each_rung
def test_output_and_stream(rung):
    x, w = drawn((2, 5, 4, 8), (4, 3, 3, 8))
    out, stream = device.to_device(np.full((2, 5, 4, 4), np.nan, F32)), cuda.stream()
    assert rung(x, w, None, 1, 1, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, w, None, 1, 1)


@pytest.mark.parametrize("channels", [3, 8])
def test_a_value_that_is_not_finite_stays_in_its_windows(channels):
    """What fills a tile up, terms beyond the last and places beyond the last one, must not spread it."""
    x, w = drawn((1, 4, 5, channels), (3, 3, 3, channels))
    x[0, 3, 4, -1] = np.inf
    exact = room.reference(x, w, None, 1, 1)
    for rung in room.LADDER:
        result = device.to_host(rung(x, w, None, 1, 1))
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(exact))


def test_the_plain_function_takes_a_layout():
    x, w, bias, *options = INPUTS["3x2 s2x1 p1x0 d1x2, sixteen channels"]
    for more in ({}, {"algorithm": "implicit"}, {"workspace_limit": 0}):
        result = convolution_layer.convolution(x, w, bias, *options, layout="NHWC", **more)
        assert right(device.to_host(result), x, w, bias, *options)
    first = [np.ascontiguousarray(room.first(array)) for array in (x, w)]
    result = device.to_host(convolution_layer.convolution(*first, bias, *options, layout="NCHW", algorithm="direct"))
    assert right(room.last(result), x, w, bias, *options)
    with pytest.raises(ValueError, match="layout must be 'NCHW' or 'NHWC', was 'KRSC'"):
        convolution_layer.convolution(x, w, layout="KRSC")
    with pytest.raises(ValueError, match=r"algorithm must be 'auto', 'implicit' or 'depthwise' for .*, was 'fft'"):
        convolution_layer.convolution(x, w, layout="NHWC", algorithm="fft")
    with pytest.raises(ValueError, match="workspace_limit must be None or bytes"):
        convolution_layer.convolution(x, w, layout="NHWC", workspace_limit=-1)


X, W = np.ones((2, 4, 5, 6), F32), np.ones((3, 2, 2, 6), F32)
BAD = {
    "another dtype": ((X.astype(np.float16), W), {}, TypeError, "x must be float32, was float16"),
    "three dimensions": ((X[0], W), {}, ValueError, "x must have 4 dimensions, had 3"),
    "channels first in memory": ((room.last(X), W), {}, ValueError, "x must be contiguous in C order"),
    "filters with channels first": ((X, np.ones((3, 6, 2, 2), F32)), {}, ValueError, "x must have 2 channels"),
    "no filters": ((X, W[:0]), {}, ValueError, r"w must have no extent of 0, had shape \(0, 2, 2, 6\)"),
    "groups": ((X, W, None, 1, 0, 1, 2), {}, ValueError, "groups must divide the 3 filters of w, was 2"),
    "a bias": ((X, W, np.ones(2, F32)), {}, ValueError, r"bias must have shape \(3,\), had \(2,\)"),
    "no room": ((X, np.ones((3, 5, 2, 6), F32)), {}, ValueError, "x must have room for a kernel that spans"),
    "another result": ((X, W), {"out": device.empty((2, 3, 3, 4), F32)}, ValueError, "out must have shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.divided(*arguments, **options)


# ------------------------------------------------------------------------------------- which kernels run, and what for


@interpreter_only
def test_which_kernels_run():
    x, w = drawn((1, 6, 6, 8), (8, 3, 3, 8))
    _, (report,) = observe(room.vectorised, x, w)
    assert report.kernel == "vectorised_kernel"
    _, (report,) = observe(room.vectorised, misaligned(x, 1), w)
    assert report.kernel == "element_each_kernel"
    _, (report,) = observe(room.vectorised, x[..., :3].copy(), w[..., :3].copy())
    assert report.kernel == "element_each_kernel"
    x, w, *options = INPUTS["a divided sum, 3x3"]
    _, reports = observe(room.divided, x, w, *options)
    assert [report.kernel for report in reports] == ["vectorised_kernel", "sum_kernel"]


@interpreter_only
def test_places_and_filters_are_read_by_128_bits():
    """128 places and 64 filters of a 1 x 1 layer with 16 channels: one block, two steps."""
    x, w = drawn((1, 8, 16, 16), (64, 1, 1, 16))
    result, (report,) = observe(room.vectorised, x, w)
    assert right(result, x, w)
    counters = report.counters
    assert counters["global_load_requests"] == (x.size + w.size) / 4 / 32
    assert counters["global_store_requests"] == result.size / 4 / 32
    assert counters["global_store_sectors"] == result.nbytes / 32
    _, (narrow,) = observe(room.element_each, x, w)
    assert narrow.counters["global_load_requests"] == (x.size + w.size) / 32


def test_workspace_is_for_parts_of_sums_alone():
    few, many = Layer(1, 512, 7, 7, 512, 3, 3, padding=(1, 1)), Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1))
    fit = device.limits()["multiprocessors"] * 4
    steps = -(-512 * 9 // 8 // max(1, min(fit // 8, 512 * 9 // 8 // 8)))  # of each part, if 8 tiles share the GPU
    parts = -(-512 * 9 // 8 // steps)
    assert (room.plan_of(few, True).parts, room.plan_of(few).parts) == (parts, 1)
    assert room.workspace_bytes(few) == (4 * parts * 512 * 49 if parts > 1 else 0)
    assert room.workspace_bytes(many) == 0 or fit > room.plan_of(many).blocks


def test_totals_stay_in_registers(ptx):
    x = np.zeros(64, F32)
    plan = room.plan_of(Layer(1, 8, 4, 4, 8, 3, 3, padding=(1, 1)))
    sizes = plan.image, plan.walk, plan.matrix, np.uint32(4), True, True
    for kernel in (room.vectorised_kernel, room.element_each_kernel):
        text = ptx(kernel, x, x, x, x, *sizes, cc=(9, 0))
        assert ".local" not in text
        assert text.count("st.global.v4.f32") == 16
    assert text.count("ld.global.v4") == 0


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", [name for name, case in INPUTS.items() if case[0].size])
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, w, *rest = INPUTS[name]
    bias, stride, padding, dilation, groups, relu = (*rest, *(None, 1, 0, 1, 1, False)[len(rest) :])
    given = [None if array is None else torch.from_numpy(array).cuda() for array in (x, w, bias)]
    maps, kernels = (array.permute(0, 3, 1, 2) for array in given[:2])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = torch.nn.functional.conv2d(maps, kernels, given[2], stride, padding, dilation, groups)
    expected = expected.relu() if relu else expected
    result = rung(*given, stride, padding, dilation, groups, relu)
    apart = abs(device.to_host(result) - expected.permute(0, 2, 3, 1).cpu().numpy())
    assert (apart <= 2 * room.tolerance(x, w, *rest)).all()
