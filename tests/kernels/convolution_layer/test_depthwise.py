"""Depthwise and grouped convolution: layers of every kind, plans, alignment, and counters against counts by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import depthwise as room
from pmpp.kernels.convolution_layer.definition import Layer, Pair
from pmpp.kernels.convolution_layer.depthwise_workloads import DESIGN, GROUPS, depthwise_on_cpu
from pmpp.kernels.convolution_layer.direct_workloads import depthwise
from pmpp.runtime import device
from tests.kernels.convolution_layer import wrong_depthwise
from tests.support import judge, wrong
from tests.support.convolve import F32, right
from tests.support.convolve import misaligned as unwritten_misaligned
from tests.support.wrong import name_of, observe, result_of, total

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
INPUTS = room.inputs()
TOLD_APART = (  # small layers, each of which some plausible mistake gets wrong
    "one",
    "3x3 p1, bias, ReLU",
    "3x3 s2 p1, odd",
    "planes of 7x7",
    "3x2 s2x1 p1x0 d1x2",
    "dilated, padding 5x6",
    "two filters a channel",
    "shift",
)
H200 = 132  # multiprocessors


def layer_inputs(x, w, *options, seed=0, bias=False):
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(shape, dtype=F32) for shape in (x, w)]
    return *values, rng.standard_normal(w[0], dtype=F32) if bias else None, *options


def faults(convolve):
    """All that is wrong with a convolution on the first input where anything is, worst first."""
    for name in TOLD_APART:
        arguments = INPUTS[name]
        if found := judge.faults(convolve, arguments, lambda result, arguments=arguments: right(result, arguments)):
            return found
    return []


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(wrong_depthwise.direct) == faults(wrong_depthwise.right_in_packs) == []


@interpreter_only
@pytest.mark.parametrize("wrong", wrong_depthwise.RUNGS, ids=map(name_of, wrong_depthwise.RUNGS))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


# What the inputs of the room have one by one: several images, many filters a group, strides, paddings, dilations.
TOGETHER = {
    "five filters a channel, s3x2 p1x5 d3x2": ((2, 3, 9, 13), (15, 1, 2, 4), (3, 2), (1, 5), (3, 2), 3, True),
    "nine filters for two channels, s1x3 p2x0": ((1, 4, 7, 12), (18, 2, 3, 5), (1, 3), (2, 0), 1, 2),
    "s5x1 p0x4 d1x9": ((2, 5, 6, 3), (5, 1, 5, 2), (5, 1), (0, 4), (1, 9), 5),
}


@pytest.mark.parametrize("rung", [room.tiled, room.sliding, room.grouped], ids=lambda rung: rung.name)
@pytest.mark.parametrize("name", TOGETHER)
def test_filters_strides_and_dilations_together(rung, name):
    arguments = layer_inputs(*TOGETHER[name], bias=True)
    result = result_of(rung, *arguments)
    assert right(result, arguments)


@pytest.mark.parametrize(
    ("rows", "stride", "dilation"), [(2, 1, 1), (4, 2, 1), (3, 1, 2), (4, 2, 3), (3, 3, 2), (2, 4, 1), (4, 2, 4)]
)
def test_strips_of_any_length(rows, stride, dilation):
    """Which rows of x a thread has loaded before depends on stride and dilation: see ``up`` and ``down``."""
    arguments = layer_inputs((1, 1, 27, 4), (1, 1, 4, 2), (stride, 1), 1, (dilation, 1))
    result = result_of(room.by_strips, *arguments, rows=rows)
    assert right(result, arguments)


def test_strips_of_a_window_that_registers_do_not_hold():
    with pytest.raises(ValueError, match="w must have at most 7 x 7 taps"):
        room.by_strips(*INPUTS["9x9, beyond the registers"], rows=2)
    with pytest.raises(ValueError, match="x must have small planes"):
        room.by_packs(*INPUTS["two filters a channel"], planes=8, rows=2)


@pytest.mark.parametrize(("planes", "rows"), [(8, 7), (40, 2)])
def test_packs_of_any_size(planes, rows):
    arguments = layer_inputs((2, 13, 7, 7), (13, 1, 3, 3), 1, 1, 1, 13)
    result = result_of(room.by_packs, *arguments, planes=planes, rows=rows)
    assert right(result, arguments)


@pytest.mark.parametrize("rung", room.LADDER[2:], ids=lambda rung: rung.name)
@pytest.mark.parametrize("name", ["3x3 p1, whole vectors", "planes of 7x7", "two filters a channel"])
def test_arrays_that_begin_elsewhere(rung, name):
    x, w, bias, *options = INPUTS[name]
    expected = room.reference(*INPUTS[name])
    for of_x, of_out in ((1, False), (0, True), (2, True)):
        out = unwritten_misaligned(expected.shape) if of_out else None
        result = rung(wrong.misaligned(x, of_x), w, bias, *options, out=out)
        assert out is None or result is out
        assert right(device.to_host(result), INPUTS[name])


def test_nan_and_infinity_stay_where_they_are_seen():
    """What lies outside of the image is 0, although a thread has loaded an element of the image in its place."""
    x, w, *_ = layer_inputs((1, 2, 5, 8), (2, 1, 3, 3))
    x[0, 0, 4, 7], x[0, 1, 0, 0] = np.nan, np.inf
    for shaped in (x, np.ascontiguousarray(x[..., :7]), np.ascontiguousarray(x[..., 1:])):
        for rung in room.LADDER:
            arguments = shaped, w, None, 1, 2, 1, 2
            assert right(device.to_host(rung(*arguments)), arguments)


def test_the_layer_by_numpy():
    x, w, _, *options = INPUTS["5x5 p2"]
    assert right(depthwise_on_cpu(x, w), (x, w, None, *options))


# ---------------------------------------------------------------------------------------------------------------- plans


def form(layer, columns=4, filters=1, aligned=True, sms=H200):
    return room._form_of(layer, columns, filters, aligned, aligned, sms)


def test_forms_of_the_networks_layers():
    large, small, wide = (form(layer) for layer in DESIGN)
    assert (large.rows, large.columns, large.skip, large.wide) == (4, 4, 3, True)
    assert (small.columns, small.skip, small.wide) == (1, 0, False)
    assert (wide.reach, wide.skip, wide.loads) == (Pair(wide.rows + 6, 10), 1, 3)
    assert form(depthwise(32, 128, 56, 2)).reach.columns == 9
    assert form(Layer(32, 64, 56, 56, 128, 3, 3, padding=(1, 1), groups=64), filters=4).filters == 2
    assert form(Layer(1, 1, 9, 9, 1, 9, 9)) is None
    assert form(Layer(1, 1, 99, 99, 1, 3, 3, dilation=(20, 1))) is None


def test_one_image_gets_more_threads():
    """An H200 has room for more threads than a single image has strips of four rows: a thread computes fewer."""
    layer = depthwise(1, 32, 112)
    assert (form(layer).rows, form(layer, sms=4).rows) == (1, 4)
    assert int(room.strips_of(layer, form(layer)).threads) == 32 * 112 * 28


def test_packs_of_the_networks_layers():
    last, first = (room._pack_of(layer, True, True, H200) for layer in (depthwise(32, 1024, 7), depthwise(1, 1024, 7)))
    assert (last.pack.planes, last.form.rows, last.blocks) == (40, 7, blocks(32768, 40))
    assert (first.pack.planes, first.blocks) == (8, 128)
    assert room._pack_of(depthwise(32, 64, 56), True, True, H200) is None
    assert room._pack_of(Layer(1, 2, 7, 7, 4, 3, 3, groups=2), True, True, H200) is None


@hypothesis.given(
    extent=st.integers(1, 22),
    n=st.integers(1, 300),
    c=st.integers(1, 3000),
    stride=st.integers(1, 3),
    sms=st.sampled_from([1, 114, 132]),
)
def test_a_pack_fits(extent, n, c, stride, sms):
    layer = depthwise(n, c, extent, stride)
    plan = room._pack_of(layer, True, True, sms)
    planes = int(plan.pack.planes)
    assert planes % 8 == 0
    assert plan.shared <= 16 * room.STAGE + 16
    assert 32 <= plan.threads <= room.WORKERS
    assert plan.threads % 32 == 0
    assert (plan.blocks - 1) * planes < n * c <= plan.blocks * planes
    assert int(plan.pack.items) == planes * layer.q * blocks(layer.p, plan.form.rows)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("3x3 p1, whole vectors", "strips_of_outputs"),
        ("planes of 7x7", "packs_of_planes"),
        ("9x9, beyond the registers", "tiled_kernel"),
        ("two filters a channel", "strips_of_outputs"),
    ],
)
def test_which_kernel_does_it(name, kernel):
    _, reports = observe(room.grouped, *INPUTS[name])
    assert [report.kernel for report in reports] == [kernel]


def counts(rung, arguments, **options):
    with simt.record() as reports:
        rung(*arguments, **options)
    assert total(reports, "flops_f64") == 0
    return {name: total(reports, f"global_{name}") for name in ("load_requests", "load_sectors", "store_sectors")}


@interpreter_only
def test_bytes_of_the_ways_to_the_same_layer():
    """16 channels of 32 x 32: each rung's loads by hand, all multiples of a warp. Weights are a sector or two each."""
    arguments = layer_inputs((1, 16, 32, 32), (16, 1, 3, 3), 1, 1, 1, 16)
    x = arguments[0]
    ways = {"naive": {}, "tiled": {}, "sliding": {"rows": 8}, "vectorised": {"rows": 4, "columns": 4}}
    found = {
        name: counts(room.by_strips if options else getattr(room, name), arguments, **options)
        for name, options in ways.items()
    }
    assert all(one["store_sectors"] == x.nbytes // 32 for one in found.values())
    warps = x.size // 32
    # Nine taps less those outside: a warp is a row, of which the upper and lower ones lack three taps.
    naive = warps * 9 - 2 * 16 * 3
    assert found["naive"]["load_requests"] == 2 * naive
    # A tile has 10 rows of 34: two requests each, by a warp of its own, less the rows above and below the image.
    assert found["tiled"]["load_requests"] == 2 * (4 * 10 - 2) * 16 + 9 * warps
    # Eight outputs take 10 rows of three loads, and nine weights.
    assert found["sliding"]["load_requests"] == warps // 8 * (30 + 9)
    # Four rows of four outputs take 6 rows of three loads, and nine weights.
    assert found["vectorised"]["load_requests"] == warps // 16 * (18 + 9)


@interpreter_only
def test_a_pack_moves_each_element_once():
    arguments = layer_inputs((2, 12, 7, 7), (12, 1, 3, 3), 1, 1, 1, 12)
    x, plan = arguments[0], room.pack_of(room.arguments(*arguments))
    found, by_strips = counts(room.packed, arguments), counts(room.by_strips, arguments, rows=7)
    assert (plan.blocks, int(plan.pack.planes)) == (3, 8)
    assert found["store_sectors"] == x.nbytes // 32 < by_strips["store_sectors"]
    # Eight planes are 98 vectors, and four vectors a thread are for four warps: all of it is asked for in one round.
    # The other loads are of the nine weights, by each warp for each of its strips.
    rounds = plan.blocks * blocks(int(plan.pack.items), plan.threads) * (plan.threads // 32)
    assert found["load_requests"] <= plan.blocks * plan.threads // 32 * room.TOGETHER + 9 * rounds
    assert found["load_sectors"] < by_strips["load_sectors"]


@interpreter_only
def test_filters_of_a_group_share_what_is_loaded():
    """Four warps take 3 rows of three loads, and four times nine weights; alone four times as many take nine."""
    arguments = layer_inputs((1, 2, 8, 32), (8, 1, 3, 3), 1, 1, 1, 2)
    alone, together = (counts(rung, arguments)["load_requests"] for rung in (room.vectorised, room.grouped))
    assert (alone, together) == (16 * (9 + 9), 4 * (9 + 4 * 9))


def test_which_layers_it_is_made_for():
    assert all(map(room.suits, (*DESIGN, *GROUPS)))
    assert not room.suits(Layer(1, 1, 9, 9, 1, 3, 3))
    assert not room.suits(Layer(1, 32, 9, 9, 16, 3, 3, groups=2))
    assert not room.suits(depthwise(1, 4, 9, 1, 9))


@interpreter_only
def test_a_layer_wants_no_workspace(monkeypatch):
    made = []
    empty = device.empty
    monkeypatch.setattr(device, "empty", lambda *a, **more: made.append(a[0]) or empty(*a, **more))
    room.grouped(*INPUTS["planes of 7x7"])
    assert made == [(1, 5, 7, 7)]
    assert room.workspace_bytes(DESIGN[0]) == 0
    assert room.refuses(DESIGN[0]) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
@pytest.mark.parametrize(
    "layer",
    [depthwise(3, 70, 57), depthwise(2, 333, 14), depthwise(5, 1001, 7), depthwise(2, 33, 56, 1, 7)],
    ids=str,
)
def test_larger_layers_on_the_gpu(rung, layer):
    from pmpp.kernels.convolution_layer.measured_layers import verifier, with_layer
    from pmpp.lab.measure.arrays import view

    x, w, _ = layer_inputs((layer.n, layer.c, layer.h, layer.w), (layer.k, 1, layer.r, layer.s))
    error, allowed = verifier(layer)(view(with_layer(rung, layer)(x, w)), view(x), view(w))
    assert error <= allowed
