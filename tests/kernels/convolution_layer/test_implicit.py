"""Implicit GEMM: any layer, the gathers and when they run, workspace, refusals, and counters counted by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer import implicit as room
from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.kernels.convolution_layer.measured_layers import sums
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_implicit import RIGHT
from tests.kernels.convolution_layer.wrong_implicit import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe

F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
INPUTS = room.inputs()


def drawn(x, w, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(x, dtype=F32), rng.standard_normal(w, dtype=F32)


def expected(x, w, bias, layer, relu=False):
    """The result and how far from it a right one may be, in float64 and fast."""
    shift = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    exact = sums(x, w, layer) + shift[:, None, None]
    size = sums(abs(x), abs(w), layer) + abs(shift)[:, None, None]
    return np.maximum(exact, 0) if relu else exact, (layer.terms + 2) * 2.0**-24 * size + 2.0**-149


def misaligned(x):
    """A device array with the values of ``x`` that begins one element behind a 16-byte boundary."""
    return device.to_device(np.concatenate([np.zeros(1, F32), x.reshape(-1)]))[1:].reshape(x.shape)


# -------------------------------------------------------------------------------------------------------------- results

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@hypothesis.given(
    rung=st.sampled_from(room.LADDER),
    n=st.integers(1, 3),
    channels=st.sampled_from([1, 3, 8]),
    filters=st.sampled_from([1, 9, 66]),
    groups=st.integers(1, 2),
    extent=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.sampled_from([(1, 1), (1, 1), (2, 3), (3, 1)]),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    options=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@hypothesis.settings(max_examples=15)
def test_any_layer(rung, n, channels, filters, groups, extent, kernel, stride, padding, dilation, options):
    biased, relu, shifted = options
    stride = (1, 1) if shifted else stride
    x, w = drawn((n, channels * groups, *extent), (filters * groups, channels, *kernel))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    hypothesis.assume(all(e + 2 * p >= r for e, p, r in zip(extent, padding, reach, strict=True)))
    bias = np.linspace(-1, 1, len(w), dtype=F32) if biased else None
    layer = definition.layer_of(x.shape, w.shape, stride, padding, dilation, groups)
    out = misaligned(np.full(layer.shape, np.nan, F32)) if shifted else None
    result = rung(x, w, bias, stride, padding, dilation, groups, relu, out=out)
    assert out is None or result is out
    exact, allowed = expected(x, w, bias, layer, relu)
    assert (abs(device.to_host(result) - exact) <= allowed).all()


def faults(rung):
    """All that is wrong with an implicit GEMM on the first input where anything is, worst first."""
    for name in ("3x3 p1, odd, bias, ReLU", "3x2 s2x1 p1x0 d1x2", "two groups", "shift"):
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


@pytest.mark.parametrize("rung", room.LADDER[2:], ids=lambda rung: rung.name)
def test_a_value_that_is_not_finite_stays_in_its_windows(rung):
    """What fills a tile up, rows beyond the last product and columns beyond the last place, must not spread it."""
    x, w = drawn((1, 1, 4, 5), (3, 1, 3, 3))
    x[0, 0, 3, 4] = np.inf
    result = device.to_host(rung(x, w, None, 1, 1))[0]
    exact = room.reference(x, w, None, 1, 1)[0]
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(exact))
    np.testing.assert_array_equal(result[:, 2:, 3:], exact[:, 2:, 3:].astype(F32))


# --------------------------------------------------------------------------------------- which kernels run, and where


def observed(rung, x, w, bias=None, *options, **more):
    """Reports of the launches, once the result has been found right."""
    result, reports = observe(rung, x, w, bias, *options, **more)
    x, w = (device.to_host(array) for array in (x, w))
    layer = definition.layer_of(x.shape, w.shape, *options[:4])
    exact, allowed = expected(x, w, bias, layer, *options[4:])
    assert (abs(result - exact) <= allowed).all()
    return reports


def kernels_of(rung, *arguments, **options):
    reports = observed(rung, *arguments, **options)
    return [report.kernel for report in reports]


@interpreter_only
def test_each_gather_runs_where_it_can():
    fits = drawn((2, 8, 2, 4), (4, 8, 1, 1))
    x, w = map(device.to_device, fits)
    prepared = ["prepare_kernel", "by_channels_kernel"]
    assert kernels_of(room.by_channels, x, w) == ["by_vectors_kernel"]
    assert kernels_of(room.by_channels, x, w, None, 1, 1) == prepared
    assert kernels_of(room.by_channels, x, w, None, 2) == prepared
    assert kernels_of(room.by_channels, misaligned(fits[0]), w) == prepared
    assert kernels_of(room.by_channels, x, misaligned(fits[1])) == prepared
    assert kernels_of(room.by_channels, *drawn((1, 8, 3, 3), (4, 8, 1, 1))) == prepared  # 9 pixels: no whole vectors
    assert kernels_of(room.by_channels, *drawn((1, 8, 3, 3), (4, 8, 2, 2))) == prepared
    assert kernels_of(room.by_channels, *drawn((1, 7, 2, 2), (4, 7, 1, 1)))[1] == "prefetched_kernel"


@pytest.mark.parametrize("where", ["x", "w", "out"])
def test_one_misaligned_array_of_a_shape_that_fits(where):
    x, w = drawn((2, 8, 2, 4), (4, 8, 1, 1))
    out = np.full((2, 4, 2, 4), np.nan, F32)
    given = {"x": x, "w": w, "out": out}
    given = {name: misaligned(a) if name == where else device.to_device(a) for name, a in given.items()}
    exact, allowed = expected(x, w, None, Layer(2, 8, 2, 4, 4, 1, 1))
    assert (abs(device.to_host(room.divided(**given)) - exact) <= allowed).all()


@interpreter_only
@pytest.mark.parametrize("layer", [Layer(1, 19, 4, 5, 6, 3, 3, padding=(1, 1)), Layer(1, 128, 3, 3, 2, 1, 1)], ids=str)
def test_a_sum_is_divided_and_comes_out_right(layer):
    x, w = drawn((1, layer.c, layer.h, layer.w), (layer.k, layer.c, layer.r, layer.s))
    bias = np.linspace(-3, 3, layer.k, dtype=F32)
    given = x, w, bias, layer.stride, layer.padding, 1, 1, True
    result, reports = observe(room.divided, *given)
    _, main, added = reports
    assert (main.grid[0], added.kernel) == (
        2,
        "sum_kernel",
    )  # 171 or 128 products: 22 or 16 steps, 8 at least in a part
    exact, allowed = expected(x, w, bias, layer, True)
    assert (abs(result - exact) <= allowed).all()
    assert main.counters["flops"] == 2 * 2 * 64 * 128 * 8 * (11 if layer.c == 19 else 8)


def test_large_layers_are_not_divided_and_small_ones_are(monkeypatch):
    monkeypatch.setattr(device, "limits", lambda: {"multiprocessors": 132})
    parts = {str(a): room.plan_of(a, room.mode_of(a), True).parts for a in resnet50()}
    assert parts["n32 c64 h56 k64 3x3 p1"] == parts["n32 c3 h224 k64 7x7 s2 p3"] == 1
    assert parts["n32 c512 h7 k512 3x3 p1"] > parts["n32 c256 h14 k256 3x3 p1"] > 1
    for a in resnet50(1):
        plan = room.plan_of(a, room.mode_of(a), True)
        steps = int(plan.matrix.steps)
        assert (plan.parts - 1) * steps * room.DEPTH < plan.depth <= plan.parts * steps * room.DEPTH  # all, none twice


# ------------------------------------------------------------------------------------------------ workspace, refusals


@pytest.mark.parametrize("name", ["two groups", "a divided sum", "a tile", "eight channels, 3x2", "no images"])
def test_the_workspace_is_what_is_said(name, monkeypatch):
    x, w, bias, *options = INPUTS[name]
    taken = []

    def workspace(what, shape, **more):
        taken.append(definition.workspace(what, shape, **more))
        return taken[-1]

    monkeypatch.setattr(room, "workspace", workspace)
    room.divided(x, w, bias, *options)
    layer = definition.layer_of(x.shape, w.shape, *options[:4])
    assert sum(a.nbytes for a in taken) == room.workspace_bytes(layer)


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_without_room_for_the_workspace_nothing_is_written(fails, monkeypatch):
    x, w = drawn((1, 128, 3, 3), (2, 128, 1, 1))
    out, asked = device.to_device(np.full((1, 2, 3, 3), 7, F32)), []

    def workspace(what, shape, **more):
        asked.append(what)
        if len(asked) == fails:
            raise MemoryError(f"no room for {what}")
        return definition.workspace(what, shape, **more)

    monkeypatch.setattr(room, "workspace", workspace)
    with pytest.raises(MemoryError, match="no room for the"):
        room.divided(x, w, out=out)
    assert (out.copy_to_host() == 7).all()


def test_what_32_bits_cannot_count_is_refused():
    assert all(room.refuses(layer) is None for layer in resnet50())
    wide = Layer(1, 1, 5, 5, 1, 1, 1, stride=(2**31 - 1, 1), padding=(2**30, 0))
    assert room.refuses(wide) == "padding must leave an image at most 2^31 - 1 rows, makes them 2147483653"
    with pytest.raises(ValueError, match="padding must leave an image at most"):
        room.divided(*drawn((1, 1, 5, 5), (1, 1, 1, 1)), None, wide.stride, wide.padding)
    assert "stride and dilation must be below" in room.refuses(Layer(1, 1, 5, 5, 1, 1, 1, stride=(2**31, 1)))
    assert "w must have at most 2^31 - 1 elements when padded" in room.refuses(
        Layer(1, 2**23, 1, 1, 2**23, 1, 1, groups=2**23)
    )


def test_too_many_filters_for_a_grid_are_refused():
    with pytest.raises(ValueError, match="w must make at most 65535 tiles of 32 filters for this rung, makes 65536"):
        room.tiled(np.ones((1, 65536, 1, 1), F32), np.ones((65536, 1, 1, 1), F32), groups=65536)


# ------------------------------------------------------------------------------------------------------------- counters
#
# One tile: 64 filters, 128 columns of two images, eight channels, so one step. 4 warps.


def counters_of(rung, x=(2, 8, 8, 8), w=(64, 8, 1, 1)):
    reports = observed(rung, *map(device.to_device, drawn(x, w)))
    return reports[-1].counters


@interpreter_only
def test_counters_of_the_gathers():
    work = Layer(2, 8, 8, 8, 64, 1, 1).cost.flops
    scalar, table = counters_of(room.register_tiled), counters_of(room.prefetched)
    channels = counters_of(room.by_channels)
    assert scalar["flops"] == table["flops"] == channels["flops"] == work
    # A warp's 32 neighbours of a row are 4 sectors; 8 rows. The weights: 8 products of 64 filters, a sector each.
    assert scalar["global_load_requests"] == 4 * (8 + 4)
    assert scalar["global_load_sectors"] == 4 * 8 * 4 + 64
    # With a table: an entry for each row, of 16 bytes, and a vector of prepared weights per thread.
    assert table["global_load_requests"] == 4 * (8 + 8 + 1)
    assert table["global_load_sectors"] == 4 * 8 * (4 + 1) + 64
    # In vectors: a row of 128 columns is a request.
    assert channels["global_load_requests"] == 4 * (2 + 1)
    assert channels["global_load_sectors"] == 8 * 128 // 8 + 64
    # Shared memory: 16 loads for the 64 multiply-adds of a k, or 4 of 16 bytes in two passes each.
    assert scalar["shared_load_requests"] == 4 * 8 * 16
    assert table["shared_load_requests"] == 4 * 8 * 4
    assert table["shared_load_wavefronts"] == 4 * 8 * 4 * 2
    assert table["shared_load_bank_conflicts"] == channels["shared_store_bank_conflicts"] == 0
    assert table["global_store_requests"] == 4 * 16 == scalar["global_store_requests"] // 4


@interpreter_only
def test_a_step_of_eight_channels_needs_one_entry_of_the_table():
    shapes = (1, 8, 5, 5), (64, 8, 3, 3)
    table, channels = counters_of(room.prefetched, *shapes), counters_of(room.by_channels, *shapes)
    assert table["flops"] == channels["flops"]
    saved = table["global_load_requests"] - channels["global_load_requests"]
    assert saved == 4 * 9 * 7  # warps, steps, entries
