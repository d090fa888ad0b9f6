"""Depthwise convolution with channels last: any layer, which kernels run, and counters against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer import depthwise_channels_last as room
from pmpp.kernels.convolution_layer.definition import Layer, window_of
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_depthwise_channels_last import RIGHT
from tests.kernels.convolution_layer.wrong_depthwise_channels_last import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe

F32 = np.float32
INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(x, w, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x, dtype=F32), rng.standard_normal(w, dtype=F32)


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(rung):
    """All that is wrong with a convolution on the first input where anything is, worst first."""
    for name in ("3x3 p1, bias, ReLU", "3x3 s2 p1", "3x2 s2x1 p1x0 d1x2"):
        arguments = INPUTS[name]
        if found := judge.faults(rung, arguments, lambda result, a=arguments: right(result, *a)):
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
    n=st.integers(1, 2),
    channels=st.sampled_from([1, 3, 4, 8, 20]),
    extent=st.tuples(st.integers(3, 7), st.integers(3, 9)),
    kernel=st.sampled_from([(1, 1), (2, 3), (3, 3), (2, 5), (3, 7)]),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.sampled_from([1, 1, 2])),
    options=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@hypothesis.settings(max_examples=20)
def test_any_layer(rung, n, channels, extent, kernel, stride, padding, dilation, options):
    biased, relu, shifted = options
    x, w = drawn((n, *extent, channels), (channels, *kernel, 1))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    bias = np.linspace(-1, 1, channels, dtype=F32) if biased else None
    how = stride, padding, dilation, channels, relu
    result = rung(misaligned(x, 1) if shifted else x, w, bias, *how)
    assert right(device.to_host(result), x, w, bias, *how)


@each_rung
def test_output_and_stream(rung):
    x, w = drawn((2, 5, 4, 8), (8, 3, 3, 1))
    out, stream = device.to_device(np.full((2, 5, 4, 8), np.nan, F32)), cuda.stream()
    assert rung(x, w, None, 1, 1, 1, 8, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, w, None, 1, 1, 1, 8)


def test_a_value_that_is_not_finite_stays_in_its_windows():
    x, w = drawn((1, 4, 5, 4), (4, 3, 3, 1))
    x[0, 0, 0, 1] = np.inf  # what is loaded in place of padding is the first of a row
    exact = room.reference(x, w, None, 1, 1, 1, 4)
    for rung in room.LADDER:
        result = device.to_host(rung(x, w, None, 1, 1, 1, 4))
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(exact))


def test_the_plain_function_takes_this_way():
    for name in ("3x3 p1", "two filters a channel", "two channels a group"):
        for algorithm in ("auto", "depthwise", "implicit"):
            x, w, *options = INPUTS[name]
            result = convolution_layer.convolution(x, w, *options, layout="NHWC", algorithm=algorithm)
            assert right(device.to_host(result), *INPUTS[name])


@interpreter_only
def test_which_kernels_run():
    found = {name: observe(room.vectorised, *case)[1][0].kernel for name, case in INPUTS.items() if case[0].size}
    others = {"one", "9x9, beyond the shared memory", "five channels", "two filters a channel"}
    others |= {"two channels a group", "one group"}
    assert {name for name, kernel in found.items() if kernel == "output_each_kernel"} == others
    x, w, *options = INPUTS["3x3 p1"]
    _, (report,) = observe(room.vectorised, misaligned(x, 1), w, *options)
    assert report.kernel == "output_each_kernel"
    slides = {"3x3 p1", "3x3 p1, bias, ReLU", "3x3 s2 p1", "5x5 p2, two groups of vectors", "no images"}
    for name, case in INPUTS.items():
        if case[0].size:
            _, (report,) = observe(room.sliding, *case)
            assert (report.kernel == "kernel") == (name in slides)


@interpreter_only
def test_requests_by_hand():
    """8 x 16 places with 128 channels, 3 x 3: a load of 512 bytes for each tap of each place."""
    x, w = drawn((1, 8, 16, 128), (128, 3, 3, 1))
    how = None, 1, 1, 1, 128
    result, (report,) = observe(room.vectorised, x, w, *how)
    assert right(result, x, w, *how)
    weights = 4 * w.size // 32  # four blocks load all of them: 32 strips of four places, 8 in a block
    assert report.counters["global_load_requests"] == 9 * 8 * 16 + weights
    assert report.counters["global_store_requests"] == 8 * 16
    assert report.counters["unique_load_sectors"] == (x.nbytes + w.nbytes) // 32
    _, (fewer,) = observe(room.sliding, x, w, *how)  # six columns of three rows for four places
    assert fewer.counters["global_load_requests"] == 6 * 3 * 8 * 16 // 4 + weights
    _, (narrow,) = observe(room.output_each, x, w, *how)
    assert narrow.counters["global_store_requests"] == 4 * 8 * 16


def test_totals_stay_in_registers(ptx):
    x, layer = np.zeros(64, F32), Layer(1, 8, 4, 4, 8, 3, 3, padding=(1, 1), groups=8)
    sizes = room.sizes_of(layer), window_of(layer), room.strips_of(layer)[0]
    text = ptx(room.vectorised_kernel, x, x, x, x, True, *sizes, cc=(9, 0))
    assert ".local" not in text
    assert text.count("ld.global.v4.f32") == room.STRIP
    for taps, stride in room.SLIDES:
        text = ptx(room.sliding_kernel(taps, stride), x, x, x, x, True, *sizes, cc=(9, 0))
        assert ".local" not in text
        assert text.count("ld.global.v4.f32") == 3 * stride + taps  # the columns of four places


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
