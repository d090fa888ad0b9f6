"""Convolution by im2col: any layer, the columns themselves, batches within a budget, and what is allocated."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels.convolution_layer import im2col as room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_im2col import RUNGS as WRONG
from tests.kernels.convolution_layer.wrong_im2col import right as by_columns
from tests.support.convolve import F32, faults, misaligned, right
from tests.support.wrong import name_of, observe, total

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
pairs = st.tuples(st.integers(1, 2), st.integers(1, 3))


def layer_inputs(layer, seed=0, bias=False):
    """``(x, w, bias)`` for a layer."""
    rng = np.random.default_rng(seed)
    x, w = (layer.n, layer.c, layer.h, layer.w), (layer.k, layer.c // layer.groups, layer.r, layer.s)
    values = [rng.standard_normal(shape, dtype=F32) for shape in (x, w)]
    return *values, rng.standard_normal(layer.k, dtype=F32) if bias else None


def options(layer):
    return layer.stride, layer.padding, layer.dilation, layer.groups


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(by_columns) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def expected_columns(x, layer, depth):
    """Element by element, from the definition."""
    columns = np.zeros((layer.n, layer.groups, depth, layer.p, layer.q), F32)
    group = layer.c // layer.groups
    for n, g, c, r, s, p, q in np.ndindex(layer.n, layer.groups, group, layer.r, layer.s, layer.p, layer.q):
        row = p * layer.stride[0] + r * layer.dilation[0] - layer.padding[0]
        column = q * layer.stride[1] + s * layer.dilation[1] - layer.padding[1]
        if 0 <= row < layer.h and 0 <= column < layer.w:
            columns[n, g, (c * layer.r + r) * layer.s + s, p, q] = x[n, g * group + c, row, column]
    return columns.reshape(layer.n, layer.groups * depth, layer.p * layer.q)


@hypothesis.given(
    n=st.integers(1, 2),
    group=st.integers(1, 2),
    groups=st.integers(1, 2),
    extent=st.tuples(st.integers(1, 6), st.integers(1, 7)),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    more=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_any_columns(n, group, groups, extent, kernel, stride, padding, dilation, more, seed):
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    a = Layer(n, group * groups, *extent, groups, *kernel, stride, padding, dilation, groups)
    x, _, _ = layer_inputs(a, seed)
    columns = device.to_device(np.full((n, groups * (a.terms + more), a.p * a.q), np.nan, F32))
    room.fill(device.to_device(x), columns, 0, a, a.terms + more)
    np.testing.assert_array_equal(columns.copy_to_host(), expected_columns(x, a, a.terms + more))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("images", [1, 2])
def test_more_images_than_the_budget_holds(groups, images, monkeypatch):
    a = Layer(3, 4, 3, 4, 2, 3, 2, padding=(1, 1), groups=groups)  # of two groups each has 12 rows, and 4 of zeros
    monkeypatch.setattr(room, "BUDGET", 4 * images * (24 if groups == 1 else 32) * a.p * a.q)
    assert room.images_at_a_time(a) == images
    x, w, bias = layer_inputs(a, bias=True)
    arguments = x, w, bias, *options(a), True
    assert right(device.to_host(room.batched(*arguments)), arguments)
    monkeypatch.setattr(room, "BUDGET", 4 * images * 24 * a.p * a.q)  # `fitted` has no rows of zeros
    assert right(device.to_host(room.fitted(*arguments)), arguments)


def test_a_misaligned_output():
    arguments = room.inputs()["1x1, whole tiles"]
    for rung in room.LADDER[2:]:
        out = misaligned((2, 9, 4, 6))
        assert rung(*arguments, out=out) is out
        assert right(device.to_host(out), arguments)


# ------------------------------------------------------------------------------------------------------------ workspace


@pytest.mark.parametrize(
    "layer",
    [
        Layer(2, 8, 4, 4, 3, 1, 1),
        Layer(2, 8, 4, 4, 4, 1, 1, groups=2),
        Layer(2, 3, 5, 5, 4, 3, 3, padding=(1, 1)),
        Layer(3, 2, 5, 4, 4, 3, 3, groups=2),
        Layer(2, 8, 5, 5, 3, 1, 1, (2, 2)),
        Layer(1, 700, 3, 3, 2, 1, 1),  # few sums, each of which is long: several blocks share it
    ],
    ids=str,
)
def test_the_workspace_is_what_is_said(layer, monkeypatch):
    inputs, out, asked, empty = layer_inputs(layer), device.empty(layer.shape, F32), [], device.empty

    def counted(shape, dtype, **more):
        asked.append(np.dtype(dtype).itemsize * math.prod(shape if isinstance(shape, tuple) else (shape,)))
        return empty(shape, dtype, **more)

    room.fitted(*inputs, *options(layer), out=out)  # what is made once and kept is there
    monkeypatch.setattr(device, "empty", counted)
    room.fitted(*inputs, *options(layer), out=out)
    assert sum(asked) == room.workspace_bytes(layer)


def test_columns_of_nine_taps_take_nine_times_the_memory_and_a_pointwise_layer_none():
    x = 4 * 32 * 64 * 56 * 56
    assert room.workspace_bytes(Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1))) == 9 * x
    assert room.workspace_bytes(Layer(32, 64, 56, 56, 64, 1, 1)) == 0
    large = Layer(8, 64, 128, 128, 64, 15, 15, padding=(7, 7))
    assert room.images_at_a_time(large) == 1
    parts = room.plan_of(large, 1).parts
    assert room.workspace_bytes(large) == 225 * 4 * 64 * 128 * 128 + (parts > 1) * parts * 4 * 64 * 128 * 128


@pytest.mark.parametrize("rung", [*room.LADDER[:2], room.fitted], ids=lambda rung: rung.name)
def test_without_memory_for_the_columns_nothing_is_written(rung, monkeypatch):
    x, w, bias, *others = room.inputs()["3x3 p1, odd, bias, ReLU"]
    arguments = *map(device.to_device, (x, w, bias)), *others
    rung(*arguments)  # what is made once and kept is there
    out = device.to_device(np.full((1, 6, 7, 9), 7, F32))

    def refuse(*_, **__):
        raise MemoryError("some allocator's words")

    with monkeypatch.context() as change:
        change.setattr(device, "empty", refuse)
        with pytest.raises(MemoryError, match=r"no room for the columns.*bytes of workspace were wanted"):
            rung(*arguments, out=out)
    assert (out.copy_to_host() == 7).all()


def test_columns_beyond_32_bits_are_refused(monkeypatch):
    a = Layer(1, 4, 5, 6, 6, 3, 3)
    monkeypatch.setattr(room, "MOST", 40 * 12 - 1)
    assert room.refuses(a) == "the columns of one image would have 480 elements, beyond 2^31 - 1"
    with pytest.raises(ValueError, match="x is too large for im2col: the columns of one image would have 480"):
        room.batched(*layer_inputs(a))
    monkeypatch.setattr(room, "MOST", 40 * 12)
    assert room.refuses(a) is None


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_sectors_of_columns():
    """16 rows of 64 elements: each of nine rows of columns has 4 KiB, and a row of x is read three times as often."""
    a = Layer(1, 1, 16, 64, 1, 3, 3, padding=(1, 1))
    x, _, _ = layer_inputs(a)
    x, columns = device.to_device(x), device.empty((1, 9, 16 * 64), F32)
    with simt.record() as reports:
        room.fill(x, columns, 0, a, 9)
    np.testing.assert_array_equal(columns.copy_to_host(), expected_columns(x.copy_to_host(), a, 9))
    warps = 16 * 64 // 32
    assert total(reports, "global_store_requests") == 9 * warps
    assert total(reports, "global_store_sectors") == 9 * 4 * warps  # 32 lanes side by side, and no gap
    # A load that begins at no multiple of 32 bytes touches one sector more, and at the left or right end one less.
    middle, beside, rows = 4 * warps, 4 * warps + warps // 2, [15 / 16, 1, 15 / 16]
    assert total(reports, "global_load_sectors") == sum(share * (middle + 2 * beside) for share in rows)


@interpreter_only
def test_a_pointwise_layer_is_one_launch():
    def kernels(rung, layer):
        arguments = *layer_inputs(layer), *options(layer)
        result, reports = observe(rung, *arguments)
        assert right(result, arguments)
        return [report.kernel for report in reports]

    pointwise = Layer(2, 8, 4, 4, 3, 1, 1)
    assert kernels(room.without_copies, pointwise) == ["kernel"]
    assert kernels(room.batched, pointwise) == ["columns_kernel", "kernel"]
    assert kernels(room.without_copies, Layer(2, 8, 4, 4, 4, 1, 1, groups=2)) == ["lay_out_kernel", "kernel"]
    assert kernels(room.without_copies, Layer(1, 3, 4, 4, 3, 2, 2)) == ["lay_out_kernel", "columns_kernel", "kernel"]
    assert kernels(room.fitted, pointwise) == ["product_and_finish"]
    assert kernels(room.fitted, Layer(2, 8, 4, 4, 4, 1, 1, groups=2)) == ["product_and_finish"]
    assert kernels(room.fitted, Layer(1, 3, 4, 4, 3, 2, 2)) == ["columns_kernel", "product_and_finish"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "layer", [Layer(3, 40, 20, 37, 70, 3, 3, padding=(1, 1)), Layer(5, 64, 28, 28, 33, 1, 1)], ids=str
)
def test_larger_layers_on_the_gpu(layer):
    from pmpp.kernels.convolution_layer.measured_layers import verifier, with_layer
    from pmpp.lab.measure.arrays import view

    x, w, _ = layer_inputs(layer)
    for rung in room.LADDER:
        error, allowed = verifier(layer)(view(with_layer(rung, layer)(x, w)), view(x), view(w))
        assert error <= allowed
