"""`input_gradients.few_channels`: any strided layer, edges, what it leaves to others, counts, sums in registers."""

import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.common import SHARED_LIMIT
from pmpp.kernels.convolution_layer import input_gradients as room
from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.kernels.convolution_layer.few_channels import CHANNELS, FILTERS, LEAST, PARTS, Sizes, kernel_for, plan_of
from pmpp.kernels.convolution_layer.measured_gradients import input_sums
from pmpp.runtime import device
from tests.kernels.convolution_layer.gradients import drawn
from tests.kernels.convolution_layer.wrong_few_channels import RIGHT
from tests.kernels.convolution_layer.wrong_few_channels import RUNGS as WRONG
from tests.support import judge
from tests.support.compiled import compile_ptx
from tests.support.wrong import misaligned, name_of, observe, total

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
FIRST = next(iter(resnet50()))  # the layer that the kernel was made for
S2P1 = {"stride": (2, 2), "padding": (1, 1)}


def options_of(a):
    return (a.n, a.c, a.h, a.w), a.stride, a.padding, a.dilation, a.groups


def is_right(result, dy, w, a):
    exact, size = input_sums(dy, w, a), input_sums(abs(dy), abs(w), a)
    return judge.right(device.to_host(result), exact, (a.k // a.groups * a.r * a.s + 2) * 2.0**-24 * size + 2.0**-149)


def reports_of(a):
    dy, _, w = drawn(a)
    result, reports = observe(room.few_channels, dy, w, *options_of(a))
    assert is_right(result, dy, w, a)
    return reports


# -------------------------------------------------------------------------------------------------------------- results


@st.composite
def layers(draw):
    stride = draw(st.sampled_from([(2, 2), (1, 2), (2, 1), (3, 2), (1, 4)]))
    groups, channels = draw(st.integers(1, 2)), draw(st.integers(1, CHANNELS))
    kernel, extent = (draw(st.tuples(st.integers(1, most), st.integers(1, most))) for most in (7, 40))
    padding = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, kernel, strict=True)))
    k = groups * draw(st.integers(1, FILTERS + 1))
    return Layer(draw(st.integers(1, 2)), groups * channels, *extent, k, *kernel, stride, padding, (1, 1), groups)


@hypothesis.given(a=layers())
@hypothesis.settings(max_examples=6)
def test_any_strided_layer(a):
    hypothesis.assume(plan_of(a, True))
    dy, _, w = drawn(a)
    assert is_right(room.few_channels(dy, w, *options_of(a)), dy, w, a)


LAYERS = {
    "several tiles and blocks, in whole vectors": Layer(2, 1, 40, 72, 2, 3, 3, **S2P1),
    "the same, not in vectors": Layer(2, 1, 39, 70, 2, 3, 3, **S2P1),
    "rows of dy are vectors, and of dx are not": Layer(1, 2, 5, 7, 3, 3, 3, **S2P1),
    "one filter more than are staged at once": Layer(1, 1, 6, 8, FILTERS + 1, 3, 3, **S2P1),
    "several warps for a tile": Layer(1, 1, 6, 8, 4 * LEAST + 3, 3, 3, **S2P1),
    "groups": Layer(1, 6, 6, 8, 9, 3, 3, groups=3, **S2P1),
    "depthwise": Layer(1, 3, 6, 8, 3, 3, 3, groups=3, **S2P1),
    "four channels": Layer(1, 4, 6, 8, 2, 3, 3, **S2P1),
    "seven taps, the other way to pad": Layer(1, 3, 9, 8, 2, 7, 7, (2, 2), (2, 2)),
    "places without a tap": Layer(1, 2, 7, 9, 2, 1, 1, (2, 2)),
    "first places without a tap": Layer(1, 2, 7, 9, 2, 1, 1, **S2P1),
    "padding beyond the kernel": Layer(1, 1, 3, 4, 2, 2, 2, (2, 2), (5, 4)),
    "a stride of the rows alone": Layer(1, 3, 9, 8, 2, 3, 3, (2, 1), (1, 1)),
    "as many sums as fit": Layer(1, 2, 7, 9, 2, 5, 4, (4, 3), (1, 1)),
    "as many taps as fit": Layer(1, 1, 9, 11, 2, 15, 8, (2, 1), (7, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_edges(name):
    a = LAYERS[name]
    assert plan_of(a, True)
    dy, _, w = drawn(a)
    assert is_right(room.few_channels(dy, w, *options_of(a)), dy, w, a)


@pytest.mark.parametrize(("dy_offset", "out_offset"), [(0, 1), (1, 0), (3, 2)])
def test_arrays_need_not_begin_at_a_multiple_of_16_bytes(dy_offset, out_offset):
    a = Layer(1, 2, 8, 8, 3, 3, 3, **S2P1)  # all rows are whole vectors, if the arrays begin where vectors do
    dy, _, w = drawn(a)
    out = misaligned(np.full((1, 2, 8, 8), np.nan, F32), out_offset)
    assert room.few_channels(misaligned(dy, dy_offset), misaligned(w, 1), *options_of(a), out=out) is out
    assert is_right(out, dy, w, a)


def test_an_infinite_gradient_reaches_only_what_its_output_was_made_of():
    a = Layer(1, 1, 8, 8, FILTERS + 1, 3, 3, **S2P1)
    dy, w = np.zeros(a.shape, F32), np.ones((a.k, 1, 3, 3), F32)
    dy[0, -1, 1, 2] = np.inf
    expected = np.zeros((1, 1, 8, 8), F32)
    expected[0, 0, 1:4, 3:6] = np.inf
    np.testing.assert_array_equal(device.to_host(room.few_channels(dy, w, *options_of(a))), expected)


def test_two_runs_give_the_same_bits():
    a = Layer(1, 3, 9, 8, 3, 3, 3, **S2P1)
    dy, _, w = drawn(a)
    once, again = (device.to_host(room.few_channels(dy, w, *options_of(a))) for _ in range(2))
    assert once.tobytes() == again.tobytes()


# ------------------------------------------------------------------------------------- which kernels run, and how often

OTHERS = {
    "no stride": Layer(1, 3, 6, 6, 2, 3, 3, padding=(1, 1)),
    "dilation": Layer(1, 3, 6, 6, 2, 2, 2, (2, 2), dilation=(2, 1)),
    "five channels": Layer(1, 5, 6, 6, 2, 3, 3, **S2P1),
    "a long stride": Layer(1, 1, 6, 6, 2, 3, 3, (1, 5), (1, 1)),
    "too many sums": Layer(1, 3, 6, 6, 2, 3, 3, (3, 3), (1, 1)),
    "too many taps": Layer(1, 1, 20, 6, 2, 17, 3, (2, 2), (8, 1)),
}


@interpreter_only
@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_left_to_in_place(name):
    assert "few_channels_kernel" not in [report.kernel for report in reports_of(OTHERS[name])]


def test_what_32_bits_cannot_count_is_left_to_in_place():
    assert plan_of(Layer(1, 1, 8, 8, 2**26, 7, 7, (2, 2), (3, 3)), True) is None
    assert plan_of(Layer(1, 1, 8, 8, 2, 7, 7, (2, 2), (2**31 - 9, 3)), True) is None


@interpreter_only
def test_full_tiles_compute_the_products_of_the_definition_and_no_more():
    a = Layer(2, 3, 32, 32, 2, 7, 7, (2, 2), (3, 3))  # an image is a tile
    reports = reports_of(a)
    assert [report.kernel for report in reports] == ["spread_kernel", "few_channels_kernel"]
    assert total(reports, "flops") == a.cost.flops
    assert total(reports[1:], "shared_load_bank_conflicts") == 0


def test_warps_share_a_tile_only_where_tiles_are_few():
    one = dataclasses.replace(FIRST, n=1)
    assert plan_of(FIRST, True).form.parts == 1
    assert plan_of(one, True).form.parts > 1
    assert plan_of(dataclasses.replace(one, k=LEAST), True).form.parts == 1  # too few filters to divide


@pytest.mark.parametrize("taps", range(1, 16))
@pytest.mark.parametrize("stride", [(1, 2), (2, 1), (2, 2), (3, 2), (1, 4), (3, 4), (4, 4)])
def test_every_form_fits_in_shared_memory(taps, stride):
    for channels, filters, extent, images in itertools.product((1, 3, 4), (1, 9, 64), (30, 200), (1, 32)):
        a = Layer(images, channels, extent, extent + 1, filters, taps, taps, stride, (taps // 2, taps // 3))
        if plan := plan_of(a, True):
            assert plan.form.filters
            assert plan.form.shared <= SHARED_LIMIT


@pytest.mark.parametrize("across", [2, 4, 8, 16])
@pytest.mark.parametrize("down", [1, 2])
@pytest.mark.parametrize("taps", [1, 3, 7])
def test_a_load_from_shared_memory_takes_one_pass_for_eight_lanes(across, down, taps):
    form = plan_of(Layer(1, 3, 32, 32, 2, taps, taps, (2, 2), (taps // 2, taps // 2)), True).form
    form = form._replace(across=across, down=down)
    assert form.passes(form.pitch) == 1


def test_sums_are_in_registers_and_the_compiler_leaves_out_products_that_no_place_needs():
    form = plan_of(FIRST, True).form._replace(parts=PARTS, filters=2)  # all code that there is
    array, sizes = np.ones(4, F32), Sizes(*[np.uint32(1)] * len(Sizes._fields))
    text = compile_ptx(kernel_for(form), array, array, array, sizes, True)
    assert ".local" not in text
    cells = form.down * 4
    assert text.count("fma.rn.f32") == cells * FIRST.r * FIRST.s * FIRST.c


# -------------------------------------------------------------------------------------------------------- wrong kernels


def faults(rung):
    """All that is wrong with a gradient for stride 2 on the first layer where anything is, worst first."""
    for a in (LAYERS["groups"], Layer(1, 1, 17, 18, 3, 7, 7, (2, 2), (3, 3))):
        dy, _, w = drawn(a)
        if found := judge.faults(rung, (dy, w, *options_of(a)), lambda r, dy=dy, w=w, a=a: is_right(r, dy, w, a)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


@interpreter_only
def test_the_rung_has_no_fault():
    assert faults(room.few_channels) == []
