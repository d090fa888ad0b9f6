"""Integer convolution: every rung gives the bits of the definition, for any layer; arguments, tiles, and counters."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import quantisation
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.quantisation import integer_convolution as room
from pmpp.kernels.quantisation import integer_convolution_workloads as workloads
from pmpp.runtime import device
from tests.kernels.quantisation.wrong_integer_convolution import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
hopper_only = pytest.mark.skipif(
    device.limits()["compute_capability"] != (9, 0), reason="warpgroups need compute capability 9.0"
)
F32 = np.float32
INPUTS = room.inputs()
SOME = ["a zero point, three channels", "a zero point", "three channels, 3x2 s2x1 p1x0", "four channels, 1x1 s2"]


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0, np.int8)


def drawn(x, w, seed=3):
    rng = np.random.default_rng(seed)
    numbers = [rng.integers(-128, 128, shape).astype(np.int8) for shape in (x, w)]
    factors = (rng.uniform(0.3, 1, w[0]) * 60 / (5500 * math.prod(w[1:]) ** 0.5)).astype(F32)
    return *numbers, factors, rng.integers(-5000, 5000, w[0]).astype(np.int32)


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first."""
    for arguments in (INPUTS[name] for name in names):
        found = judge.faults(function, arguments, lambda result, a=arguments: right(result, *a))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


def test_the_reference_is_that_of_floats_and_a_sum_by_hand():
    x, w, factors, bias, *options = INPUTS["three channels, 3x2 s2x1 p1x0"]
    layer = Layer(1, 3, 9, 8, 5, 3, 2, (2, 1), (1, 0))
    exact = np.clip(np.rint(workloads.sums(x, w, layer).astype(F32) * factors), -128, 127)
    np.testing.assert_array_equal(room.reference(x, w, factors, bias, *options), exact)
    x, w = np.zeros((1, 3, 3, 2), np.int8), np.zeros((1, 2, 2, 2), np.int8)
    x[0, 1, 2, 1], w[0, 1, 0, 1] = 5, 7  # one product: row 1 is 0 + 1, and column 2 is 2 + 0
    assert room.reference(x, w, F32([1]), padding=1)[0, 1, 3, 0] == 35
    around = np.ones((1, 2, 2, 2), np.int8)
    assert room.reference(x, around, F32([1]), padding=1, zero=3)[0, 0, 0, 0] == 3 * 3 * 2  # three of four are outside


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@hypothesis.given(
    rung=st.sampled_from(room.LADDER),
    n=st.integers(1, 3),
    channels=st.sampled_from([1, 3, 4, 16, 48]),
    filters=st.sampled_from([1, 6, 16, 66]),
    extent=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.sampled_from([(1, 1), (2, 3), (3, 1), (3, 3)]),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    zero=st.sampled_from([0, -128, 5]),
    options=st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1, 4])),
)
@hypothesis.settings(max_examples=24)
def test_any_layer(rung, n, channels, filters, extent, kernel, stride, padding, zero, options):
    biased, relu, shifted = options
    x, w, factors, bias = drawn((n, *extent, channels), (filters, *kernel, channels))
    arguments = w, factors, bias if biased else None, stride, padding, relu, zero
    result = rung(misaligned(x, shifted) if shifted else x, *arguments)
    assert right(device.to_host(result), x, *arguments)


@hopper_only
@pytest.mark.parametrize("tile", room.TILES, ids=lambda tile: f"{tile.places} x {tile.filters}")
@pytest.mark.parametrize(("zero", "parts"), [(0, 1), (9, 1), (0, 3)])
def test_tiles_that_meet(tile, zero, parts):
    """More than one tile in both directions, more steps than there are stages, and filters that end within a tile."""
    x, w, factors, bias = drawn((3, 9, 7, 80), (144, 3, 3, 80))
    p = room.arguments(x, w, factors, bias, 1, 1, True, zero)
    for _ in range(min(parts, 2)):  # with several parts the counts of arrivals are used again
        p.result.copy_to_device(np.full(p.result.shape, 99, np.int8))
        room.by_warpgroups(p, tile, parts)
        assert right(p.result.copy_to_host(), x, w, factors, bias, 1, 1, True, zero)


@each_rung
def test_output_and_stream(rung):
    x, w, factors, bias = drawn((2, 5, 4, 16), (4, 3, 3, 16))
    out, stream = device.to_device(np.full((2, 5, 4, 4), 99, np.int8)), cuda.stream()
    assert rung(x, w, factors, bias, 1, 1, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, w, factors, bias, 1, 1)


def test_an_affine_layer_of_floats_becomes_one_of_integers():
    """x has no negative numbers, so its zero point is far from 0. The border stands for 0.0 all the same."""
    rng = np.random.default_rng(9)
    x, w = rng.random((2, 6, 6, 16), dtype=F32), rng.standard_normal((8, 3, 3, 16), dtype=F32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    exact = np.tensordot(windows, w, axes=([4, 5, 3], [1, 2, 3]))
    x_scale, x_zero = quantisation.calibrate(x, affine=True)
    w_scales, _ = quantisation.calibrate(w, per_channel=True)
    y_scale, _ = quantisation.calibrate(exact.astype(F32))
    whole_x, whole_w = quantisation.quantise(x, x_scale, x_zero), quantisation.quantise(w, w_scales)
    taken_off = -int(x_zero[0]) * device.to_host(whole_w).astype(np.int32).sum(axis=(1, 2, 3))
    given = whole_x, whole_w, x_scale * w_scales / y_scale, taken_off.astype(np.int32)
    y = quantisation.convolution(*given, padding=1, zero=x_zero[0])
    back = device.to_host(quantisation.dequantise(y, y_scale))
    assert x_zero[0] == -128
    assert np.sqrt(np.mean((back - exact) ** 2)) < 0.02 * np.sqrt(np.mean(exact**2))


# -------------------------------------------------------------------------------------------------------- the arguments

X, W, FACTORS, BIAS = drawn((2, 4, 5, 6), (3, 2, 2, 6))
BAD = {
    "another dtype": ((X.view(np.uint8), W, FACTORS), TypeError, "x must be int8, was uint8"),
    "three dimensions": ((X[0], W, FACTORS), ValueError, "x must have 4 dimensions, had 3"),
    "channels first": ((X, W.transpose(0, 3, 1, 2).copy(), FACTORS), ValueError, "x must have 2 channels"),
    "no filters": ((X, W[:0], FACTORS[:0]), ValueError, r"w must have no extent of 0, had shape \(0, 2, 2, 6\)"),
    "too few factors": ((X, W, FACTORS[:2]), ValueError, r"factors must have shape \(3,\), had \(2,\)"),
    "factors in float64": ((X, W, FACTORS.astype(np.float64)), TypeError, "factors must be float32, was float64"),
    "a bias of floats": ((X, W, FACTORS, BIAS.astype(F32)), TypeError, "bias must be int32, was float32"),
    "no stride": ((X, W, FACTORS, BIAS, 0), ValueError, "stride must be an integer of at least 1"),
    "padding": ((X, W, FACTORS, BIAS, 1, (0, 1, 2)), ValueError, "padding must be an integer of at least 0"),
    "far away": (
        (X, W, FACTORS, BIAS, 2**30, 2**30),
        ValueError,
        r"padding must leave an image at most 2147483136 rows",
    ),
    "a flag": ((X, W, FACTORS, BIAS, 1, 0, 1), TypeError, "relu must be True or False, was 1"),
    "a zero point": ((X, W, FACTORS, BIAS, 1, 0, False, 128), ValueError, "zero must be from -128 to 127, was 128"),
    "part of a number": ((X, W, FACTORS, BIAS, 1, 0, False, 0.5), TypeError, "zero must be an integer, was 0.5"),
    "no room": ((X, np.ones((3, 5, 2, 6), np.int8), FACTORS), ValueError, "x must have room for a kernel"),
}


@pytest.mark.parametrize("name", BAD)
@each_rung
def test_bad_arguments_are_refused_by_name(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_what_does_not_fit_is_refused(monkeypatch):
    many = np.zeros((1, 1, 1, room.MOST_K + 1), np.int8)
    with pytest.raises(ValueError, match="w must have filters of at most 131071 elements, had 131072"):
        room.fragments(many, many, F32([1]))
    monkeypatch.setattr(room, "MOST", 100)
    with pytest.raises(ValueError, match=r"x must have at most 100 elements, has shape \(2, 4, 5, 6\)"):
        room.fragments(X, W, FACTORS)


def test_an_old_gpu_is_refused_by_name_and_one_without_warpgroups_is_not(monkeypatch):
    limits = device.limits()
    monkeypatch.setattr(device, "limits", lambda: {**limits, "compute_capability": (7, 5)})
    with pytest.raises(RuntimeError, match=r"needs a GPU of compute capability 8.0 or higher, this one has 7.5"):
        room.fragments(X, W, FACTORS)
    monkeypatch.setattr(device, "limits", lambda: {**limits, "compute_capability": (8, 0)})
    monkeypatch.setattr(room, "by_warpgroups", None)
    x, w, factors, bias = drawn((1, 3, 4, 16), (9, 2, 2, 16))
    for rung in (room.warpgroups, room.divided):
        assert right(device.to_host(rung(x, w, factors, bias)), x, w, factors, bias)


# --------------------------------------------------------------------------------------------------------- the counters


@interpreter_only
def test_places_are_gathered_by_16_bytes():
    """128 places and 64 filters of a 1 x 1 layer with 128 channels: one step of one tile, and its copies alone."""
    x, w, factors, _ = drawn((1, 8, 16, 128), (64, 1, 1, 128))
    p = room.arguments(x, w, factors)
    with simt.record("check", collect=True) as reports:
        room.by_warpgroups(p, room.Tile(2, 64, 4, 2))
    assert right(p.result.copy_to_host(), x, w, factors)
    assert total(reports, "tensor_flops") == 2 * 128 * 64 * 128
    assert total(reports, "shared_store_bank_conflicts") == 0
    assert total(reports, "global_store_requests") == 128 * 64 / 16 / 32
    assert total(reports, "global_store_sectors") == 128 * 64 / 32


@hopper_only
@pytest.mark.parametrize("rung", [room.warpgroups, room.divided], ids=lambda rung: rung.name)
def test_few_filters_with_few_terms_are_left_to_fragments(rung, monkeypatch):
    x, w, factors, bias = drawn((2, 9, 8, 1), (6, 5, 5, 1))
    monkeypatch.setattr(room, "by_warpgroups", None)
    assert right(device.to_host(rung(x, w, factors, bias, 1, 2)), x, w, factors, bias, 1, 2)


@interpreter_only
def test_which_kernels_run():
    x, w, factors, _ = drawn((1, 6, 6, 16), (8, 3, 3, 16))
    _, reports = observe(room.tiled, x, w, factors)
    assert len(reports) == 1
    _, reports = observe(room.tiled, x[..., :3].copy(), w[..., :3].copy(), factors)
    assert [len(reports), reports[0].kernel] == [2, "pad_kernel"]  # filters of 27 bytes


def test_products_stay_in_registers_and_copies_are_asynchronous(ptx):
    halves, words = np.zeros(64, np.uint16), np.zeros(64, np.uint32)
    g = room.places_of(Layer(1, 16, 4, 4, 16, 3, 3, padding=(1, 1)), "pairs", 128)
    given = halves, halves, halves.reshape(4, 16), np.zeros(4, F32), np.zeros(4, np.int32), np.int32(0), words, g
    given = *given, np.int64(1), np.zeros(4, np.int32), words
    for tile in room.TILES:
        text = ptx(room.warpgroups_kernel(tile, "chunks", True), *given, cc=(9, 0))
        assert ".local" not in text
        assert text.count(f"wgmma.mma_async.sync.aligned.m64n{tile.filters}k32.s32.s8.s8") == 4
        assert "st.global.u8" not in text
        assert "st.global.v4" in text
