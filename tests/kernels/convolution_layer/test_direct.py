"""Direct convolution: any layer, chunks and tiles of every kind, which kernel does what, and counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels.convolution_layer import direct as room
from pmpp.kernels.convolution_layer import direct_tiles as parts
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_direct import RUNGS as WRONG
from tests.kernels.convolution_layer.wrong_direct import right as direct
from tests.kernels.convolution_layer.wrong_direct import right_in_stages
from tests.support.convolve import F32, faults, misaligned, right
from tests.support.wrong import name_of, observe, total

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def layer_inputs(x, w, *options, seed=0, bias=False):
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(shape, dtype=F32) for shape in (x, w)]
    return *values, rng.standard_normal(w[0], dtype=F32) if bias else None, *options


@pytest.fixture
def small_stage(monkeypatch):
    """``small_stage(elements)``: so much shared memory, and no layout remembered from before or for later."""
    yield lambda elements: (monkeypatch.setattr(parts, "STAGE", elements), parts.tile_of.cache_clear())
    parts.tile_of.cache_clear()


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(direct) == faults(right_in_stages) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("rung", [room.hoisted, room.register_tiled, room.depthwise], ids=lambda rung: rung.name)
@hypothesis.given(
    n=st.integers(1, 2),
    group=st.integers(1, 2),
    filters=st.integers(1, 3),
    groups=st.integers(1, 3),
    extent=st.tuples(st.integers(1, 9), st.integers(1, 13)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 9)),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 4)),
    dilation=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
    biased=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_layer(rung, n, group, filters, groups, extent, kernel, stride, padding, dilation, biased, relu, seed):
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    shapes = (n, group * groups, *extent), (filters * groups, group, *kernel)
    arguments = layer_inputs(*shapes, stride, padding, dilation, groups, relu, seed=seed, bias=biased)
    assert right(device.to_host(rung(*arguments)), arguments)


@pytest.mark.parametrize(("stride", "extent"), [(1, (6, 9)), (2, (11, 12)), (2, (9, 7))])
def test_depthwise_strips(stride, extent):
    arguments = layer_inputs((2, 3, *extent), (6, 1, 3, 3), stride, 1, 1, 3, True, bias=True)
    assert right(device.to_host(room.depthwise(*arguments)), arguments)


@pytest.mark.parametrize(
    ("rung", "stage"),
    [(room.tiled, 220), (room.register_tiled, 330), (room.sliding, 220)],
    ids=lambda value: getattr(value, "name", None),
)
def test_chunks_of_channels_and_of_kernel_rows(rung, stage, small_stage):
    small_stage(stage)
    arguments = layer_inputs((1, 5, 9, 8), (10, 5, 4, 3), 1, 1)
    a = Layer(1, 5, 9, 8, 10, 4, 3, padding=(1, 1))
    tile = parts.tile_of(a, {"tiled": room.ONE, "register_tiled": room.SPREAD}.get(rung.name, room.NEIGHBOURS))
    assert tile.channels < 5
    assert tile.staged(a) <= stage
    result, reports = observe(rung, *arguments)
    assert right(result, arguments)
    assert all(report.kernel != "hoisted_kernel" for report in reports)


def test_some_rows_of_a_kernel_at_a_time(small_stage):
    small_stage(240)
    a = Layer(1, 1, 12, 9, 8, 9, 5)
    assert 0 < parts.tile_of(a, room.NEIGHBOURS).kernel_rows < 9
    arguments = layer_inputs((1, 1, 12, 9), (8, 1, 9, 5))
    assert right(device.to_host(room.sliding(*arguments)), arguments)


@interpreter_only
def test_a_row_of_taps_that_does_not_fit(small_stage):
    small_stage(16)
    for rung in room.LADDER[2:]:
        arguments = layer_inputs((1, 2, 3, 9), (9, 2, 2, 4))
        result, reports = observe(rung, *arguments)
        assert [report.kernel for report in reports] == ["hoisted_kernel"]
        assert right(result, arguments)


def test_nan_and_infinity():
    x, w, *_ = layer_inputs((1, 2, 5, 8), (3, 2, 3, 3))
    x[0, 0, 2, 2], x[0, 1, 4, 7] = np.nan, np.inf
    for rung in room.LADDER:
        assert right(device.to_host(rung(x, w, None, 1, 1)), (x, w, None, 1, 1))


@pytest.mark.parametrize("rung", room.LADDER[3:], ids=lambda rung: rung.name)
def test_a_misaligned_output(rung):
    arguments = layer_inputs((1, 2, 4, 8), (3, 2, 3, 3), 1, 1)
    out = misaligned((1, 3, 4, 8))
    assert rung(*arguments, out=out) is out
    assert right(device.to_host(out), arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("1x1", "sliding_kernel"),
        ("3x3 p1", "single_kernel"),
        ("nine taps a row, s1x2", "sliding_by_two_kernel"),
        ("dilated", "register_tiled_kernel"),
        ("depthwise, ReLU", "strip_kernel"),
        ("depthwise s2", "strip_by_two_kernel"),
        ("depthwise 5x5", "single_kernel"),
    ],
)
def test_which_kernel_does_it(name, kernel):
    _, reports = observe(room.depthwise, *room.inputs()[name])
    assert [report.kernel for report in reports] == [kernel]


@interpreter_only
def test_loads_of_the_four_ways_to_the_same_products():
    """8 filters of 3 x 3 on 4 channels, 8 x 32 outputs without padding: 8 warps of outputs for each filter."""
    arguments = layer_inputs((1, 4, 10, 34), (8, 4, 3, 3))
    products, found = 8 * 8 * 36, {}
    for rung in (room.hoisted, room.tiled, room.register_tiled, room.sliding):
        with simt.record() as reports:
            rung(*arguments)
        assert total(reports, "flops_f64") == 0
        found[rung.name] = total(reports, "global_load_requests"), total(reports, "shared_load_requests")
    assert found["hoisted"] == (2 * products, 0)
    assert found["tiled"][1] == 2 * products
    # One warp has 8 pixels of each lane for all 8 filters: a tap is 8 loads of x and two of 4 weights.
    assert found["register_tiled"][1] == 36 * (8 + 2)
    # A row of three taps is two vectors of each piece of x and two of weights for each tap.
    assert found["sliding"][1] == 12 * (4 + 3 * 2)
    staged = 4 * (10 * 34 + 8 * 9) / 32
    assert staged <= found["register_tiled"][0] < 3 * staged


@interpreter_only
def test_a_layer_wants_no_workspace(monkeypatch):
    made = []
    empty = device.empty
    monkeypatch.setattr(device, "empty", lambda *a, **more: made.append(a[0]) or empty(*a, **more))
    room.depthwise(*room.inputs()["3x3 p1"])
    assert made == [(2, 4, 8, 8)]
    a = Layer(2, 3, 8, 8, 4, 3, 3, padding=(1, 1))
    assert room.workspace_bytes(a) == 0
    assert room.refuses(a) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    "layer", [Layer(2, 70, 20, 37, 70, 3, 3, padding=(1, 1)), Layer(1, 3, 65, 64, 9, 7, 7, (2, 2))], ids=str
)
def test_larger_layers_on_the_gpu(rung, layer):
    from pmpp.kernels.convolution_layer.measured_layers import verifier, with_layer
    from pmpp.lab.measure.arrays import view

    x, w, _ = layer_inputs((layer.n, layer.c, layer.h, layer.w), (layer.k, layer.c, layer.r, layer.s))
    error, allowed = verifier(layer)(view(with_layer(rung, layer)(x, w)), view(x), view(w))
    assert error <= allowed
