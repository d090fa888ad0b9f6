"""Gradients by the input: finite differences, any layer, classes, which kernels run, the same bits twice."""

import hypothesis
import numpy as np
import pytest

from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer import input_gradients as room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.gradient_classes import axes_of, classes_of, covers
from pmpp.kernels.convolution_layer.measured_gradients import input_sums
from pmpp.runtime import device
from tests.kernels.convolution_layer.gradients import LAYERS, differences, drawn, layers, losses
from tests.kernels.convolution_layer.wrong_input_gradients import RIGHT
from tests.kernels.convolution_layer.wrong_input_gradients import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
INPUTS = room.inputs()


def options_of(a):
    return (a.n, a.c, a.h, a.w), a.stride, a.padding, a.dilation, a.groups


# ------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_is_the_gradient_of_the_forward_reference(name):
    a, dy, x, w, loss = losses(name)
    exact = differences(lambda x: loss(x, w), x)
    np.testing.assert_allclose(room.reference(dy, w, *options_of(a)), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_and_every_rung_agree_with_pytorch(name):
    torch = pytest.importorskip("torch")
    a, dy, x, w, _ = losses(name)
    x = torch.tensor(x, requires_grad=True)
    out = torch.nn.functional.conv2d(x, torch.tensor(w), None, a.stride, a.padding, a.dilation, a.groups)
    out.backward(torch.tensor(dy))
    np.testing.assert_allclose(room.reference(dy, w, *options_of(a)), x.grad.numpy(), rtol=1e-11, atol=1e-11)


# -------------------------------------------------------------------------------------------------------------- results


def is_right(result, dy, w, a):
    exact, size = input_sums(dy, w, a), input_sums(abs(dy), abs(w), a)
    return judge.right(device.to_host(result), exact, (a.k // a.groups * a.r * a.s + 2) * 2.0**-24 * size + 2.0**-149)


@hypothesis.given(a=layers(), rung=hypothesis.strategies.sampled_from(room.LADDER))
@hypothesis.settings(max_examples=8)
def test_any_layer(a, rung):
    dy, _, w = drawn(a)
    assert is_right(rung(dy, w, *options_of(a)), dy, w, a)


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda rung: rung.name)
def test_arrays_need_not_begin_at_a_multiple_of_16_bytes(rung):
    a = Layer(1, 18, 4, 4, 8, 2, 2, (2, 2))
    dy, _, w = drawn(a)
    out = misaligned(np.full((1, 18, 4, 4), np.nan, F32), 1)
    assert rung(misaligned(dy, 1), misaligned(w, 2), *options_of(a), out=out) is out
    assert is_right(out, dy, w, a)


@pytest.mark.parametrize("groups", [1, 2])
def test_weights_are_turned_beyond_a_square_and_beyond_the_taps_of_a_block(groups):
    a = Layer(1, 34 * groups, 2, 3, 33 * groups, 2, 2, padding=(1, 1), groups=groups)
    dy, _, w = drawn(a)
    assert is_right(room.by_class(dy, w, *options_of(a)), dy, w, a)


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=lambda rung: rung.name)
@pytest.mark.parametrize("stride", [1, 2])
def test_two_runs_give_the_same_bits(rung, stride):
    a = definition.layer_of((1, 17, 3, 4), (3, 17, 2, 2), stride)
    dy, _, w = drawn(a)
    once, again = (device.to_host(rung(dy, w, *options_of(a))) for _ in range(2))
    assert once.tobytes() == again.tobytes()


def faults(rung):
    """All that is wrong with a gradient on the first input where anything is, worst first."""
    for name in ("3x3 p1", "3x2 s2x3 p1x0 d1x2, 18 channels", "two groups, s2", "rows that no filter reaches", "shift"):
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


# -------------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 5])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_classes_hold_each_pair_of_a_place_and_a_tap_once(stride, dilation, padding, kernel):
    extent = 13
    found = [
        (axis.start + i * stride, axis.first + j * axis.step, axis.begin + i + (axis.taps - 1 - j) * axis.apart)
        for axis in axes_of(extent, kernel, stride, padding, dilation)
        for i in range(axis.count)
        for j in range(axis.taps)
    ]
    meant = [
        (h, r, (h + padding - r * dilation) // stride)
        for h in range(extent)
        for r in range(kernel)
        if (h + padding - r * dilation) % stride == 0
    ]
    assert sorted(found) == sorted(meant)


def test_a_stride_beyond_all_taps_makes_no_more_classes_than_there_are_taps():
    a = Layer(1, 1, 100, 100, 1, 3, 2, (2**31 - 1, 50))
    assert len(classes_of(a)) == 6
    assert not covers(a)
    assert covers(Layer(1, 1, 8, 8, 1, 3, 3, (2, 2), (1, 1)))


# --------------------------------------------------------------------------------------- which kernels run, and counts


def reports_of(rung, a):
    dy, _, w = drawn(a)
    result, reports = observe(rung, dy, w, *options_of(a))
    assert is_right(result, dy, w, a)
    return reports


def kernels_of(rung, a):
    return [report.kernel for report in reports_of(rung, a)]


@interpreter_only
def test_each_kernel_runs_where_it_can():
    strided = {"stride": (2, 2), "padding": (1, 1)}
    assert kernels_of(room.in_place, Layer(1, 17, 4, 4, 8, 3, 3, **strided)) == [
        "lay_out_kernel",
        "in_place_by_filters_kernel",
    ]
    assert kernels_of(room.in_place, Layer(1, 17, 4, 4, 7, 3, 3, **strided)) == ["lay_out_kernel", "in_place_kernel"]
    unused = kernels_of(room.in_place, Layer(1, 17, 4, 4, 7, 1, 1, (2, 2)))
    assert unused == ["zero_kernel", "lay_out_kernel", "in_place_kernel"]
    assert kernels_of(room.in_place, Layer(1, 16, 4, 4, 2, 2, 2, (2, 2))).count("turn_kernel") == 4
    one = kernels_of(room.in_place, Layer(1, 17, 4, 4, 2, 2, 2, padding=(1, 1)))
    assert one[0] == "turn_kernel"
    assert "place_kernel" not in one


@interpreter_only
def test_no_class_multiplies_by_the_zeros_of_a_stride():
    """Of the 4 x 4 places of a stride of 4 only one meets a 1 x 1 filter: as many products as the layer itself has."""
    a = Layer(1, 20, 8, 8, 8, 1, 1, (4, 4))
    assert total(reports_of(room.gathered, a), "flops") == 2 * a.n * a.k * a.p * a.q * a.terms
    tile = 2 * 64 * 128 * 8  # FLOP of a block's only step: 20 channels, 4 places and 8 filters fill no tile
    assert total(reports_of(room.in_place, a), "flops") == tile


@interpreter_only
def test_the_scatter_adds_once_for_each_product():
    a = Layer(1, 2, 5, 5, 3, 3, 3, padding=(1, 1))
    inside = 2 * 3 * 13 * 13  # of 5 outputs and 3 taps along an axis 13 pairs meet in the image
    assert total(reports_of(room.scattered, a), "atomic_lanes") == inside


# ------------------------------------------------------------------------------------------------------------ arguments


def test_the_plain_function_is_the_last_rung():
    assert convolution_layer.input_gradient is room.LADDER[-1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shape": (1, 2, 9, 9)}, r"dy must have shape \(1, 3, 9, 9\) for shape=\(1, 2, 9, 9\), stride=1"),
        ({"shape": (1, 2, 8)}, "shape must be four integers from 0 on"),
        ({"shape": (1, 2, 8, -8)}, "shape must be four integers from 0 on"),
        ({"shape": (1, 3, 8, 8)}, "shape must have 2 channels"),
        ({"shape": (1, 2, 0, 8)}, "shape must have room for a kernel"),
        ({"stride": 2}, r"dy must have shape \(1, 3, 4, 4\).*stride=2"),
        ({"groups": 2}, "groups must divide the 3 filters of w, was 2"),
        ({"dy": np.ones((1, 3, 8, 8))}, "dy must be float32, was float64"),
        ({"w": np.ones((3, 2, 3), F32)}, "w must have 4 dimensions"),
    ],
)
def test_bad_arguments_are_named(changed, said):
    right = {"dy": np.ones((1, 3, 8, 8), F32), "w": np.ones((3, 2, 3, 3), F32), "shape": (1, 2, 8, 8), "padding": 1}
    room.gathered(**right)
    with pytest.raises((TypeError, ValueError), match=said):
        room.gathered(**right | changed)
