"""Winograd's algorithm: results, its error against its bound, counts of multiplications, passes and workspace."""

import re
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import definition as shared
from pmpp.kernels.convolution_layer import winograd as room
from pmpp.kernels.convolution_layer import winograd_transforms as parts
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.matmul import batched
from pmpp.runtime import device
from tests.kernels.convolution_layer.wrong_winograd import OF_SIX, RIGHT
from tests.kernels.convolution_layer.wrong_winograd import RUNGS as WRONG
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, misaligned, name_of, observe, total, watch

F32 = np.float32
INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_m = pytest.mark.parametrize("m", [2, 4])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def m_of(rung):
    return 2 if rung in (room.small_tiles, room.batched) else 4


def exact(x, w, bias=None, padding=0, groups=1, relu=False):
    """The output in float64, a kernel's element at a time: faster than `reference`, which tests compare it with."""
    a, b = (padding, padding) if isinstance(padding, int) else padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (a, a), (b, b)))
    p, q = padded.shape[2] - 2, padded.shape[3] - 2
    out, c, k = np.zeros((x.shape[0], w.shape[0], p, q)), w.shape[1], w.shape[0] // groups
    for g in range(groups):
        for r, s in np.ndindex(3, 3):
            part = padded[:, g * c : (g + 1) * c, r : r + p, s : s + q]
            out[:, g * k : (g + 1) * k] += np.einsum("kc,ncpq->nkpq", w[g * k : (g + 1) * k, :, r, s], part)
    out += 0 if bias is None else bias[:, None, None].astype(np.float64)
    return np.maximum(out, 0) if relu else out


def right(result, m, x, w, bias=None, padding=0, groups=1, relu=False):
    expected = exact(x, w, bias, padding, groups, relu)
    allowed = room.tolerance(x, w, bias, 1, padding, 1, groups, relu, m=m)
    return result.shape == expected.shape and bool((abs(result - expected) <= allowed).all())


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=F32) for shape in shapes]


# -------------------------------------------------------------------------------------------------------------- results


@hypothesis.given(
    rung=st.sampled_from(room.LADDER),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 10), st.integers(1, 13), st.integers(1, 13)),
    filters=st.integers(1, 9),
    groups=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    offsets=st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 2])),
    bias=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=12)
def test_any_layer(rung, shape, filters, groups, padding, offsets, bias, relu, seed):
    n, c, h, w = shape
    hypothesis.assume(h + 2 * padding[0] >= 3 and w + 2 * padding[1] >= 3)
    c, k = (c + 1) * groups, filters * groups
    x, weights, values = drawn(seed, (n, c, h, w), (k, c // groups, 3, 3), k)
    values = values if bias else None
    expected = exact(x, weights, values, padding, groups, relu)
    out = misaligned(np.full(expected.shape, np.nan, F32), offsets[1])
    result = rung(misaligned(x, offsets[0]), weights, values, 1, padding, 1, groups, relu, out=out)
    assert result is out
    assert right(out.copy_to_host(), m_of(rung), x, weights, values, padding, groups, relu)


def test_the_other_oracle_is_the_reference():
    for x, w, bias, *options in INPUTS.values():
        _, padding, _, groups, relu = (*options, *(1, 0, 1, 1, False)[len(options) :])
        np.testing.assert_allclose(
            exact(x, w, bias, padding, groups, relu), room.reference(x, w, bias, *options), rtol=1e-13, atol=1e-13
        )


TOLD_APART = ("3x3 p1", "3x3 p1, odd, bias, ReLU", "two groups", "a tile and one")


@few_counters()
def faults(convolve, m):
    """All that is wrong with a layer, worst first. The ladder has none; those in wrong_winograd.py have one each."""
    found = []
    for name in TOLD_APART:
        x, w, bias, *options = INPUTS[name]
        given = device.to_device(x)
        result, reports = watch(convolve, given, w, bias, *options)
        found += hazards(reports)
        if found:
            return found
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        allowed = room.tolerance(x, w, bias, *options, m=m)
        found += ["wrong result"] * (not (abs(result - room.reference(x, w, bias, *options)) <= allowed).all())
        found += ["input changed"] * (not np.array_equal(given.copy_to_host(), x))
    return found + further_faults(convolve, m)


@few_counters()
def further_faults(convolve, m):
    """Of an image that begins between multiples of 16 bytes."""
    x, w = drawn(1, (1, 2, 4, 8), (3, 2, 3, 3))
    try:
        result, _ = watch(convolve, misaligned(x, 1), w, None, 1, 1)
    except simt.SimtError as error:
        return ["misaligned" if "misaligned" in str(error) else str(error)]
    return ["wrong result"] * (not right(result, m, x, w, None, 1))


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """Beyond the room's inputs, on which tests/contract/test_rooms.py checks every rung."""
    assert further_faults(rung, m_of(rung)) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    m = 4 if wrong.function in OF_SIX else 2
    assert faults(wrong.function, m)[:1] == [wrong.reason]


@interpreter_only
def test_the_frame_of_the_wrong_kernels_is_right():
    assert faults(RIGHT, 2) == []


def test_what_is_not_finite_spreads_over_the_tiles_that_read_it_and_no_further():
    x, w = drawn(2, (2, 2, 12, 12), (3, 2, 3, 3))
    expected = device.to_host(room.vectorised(x, w, None, 1, 1))
    x[0, 1, 6, 6] = np.inf
    result = device.to_host(room.vectorised(x, w, None, 1, 1))
    assert not np.isfinite(result[0, :, 5:8, 5:8]).any(), "what it enters"
    result[0, :, 4:8, 4:8] = expected[0, :, 4:8, 4:8]  # its tile: rows 3 to 8 are read for outputs 4 to 7
    np.testing.assert_array_equal(result, expected)


# ---------------------------------------------------------------------------------- transforms, errors, multiplications


@each_m
def test_the_matrices_are_a_correlation_in_exact_arithmetic(m):
    a, g, b = parts.cook_toom(m)
    rng = np.random.default_rng(3)
    d, w = ([Fraction(int(v), 7) for v in rng.integers(-99, 99, n)] for n in (m + 2, 3))
    expected = [sum(d[i + r] * w[r] for r in range(3)) for i in range(m)]
    assert list(a @ ((g @ w) * (b @ d))) == expected


def test_the_classical_points_give_the_classical_matrix(monkeypatch):
    monkeypatch.setitem(parts.POINTS, 4, (0, 1, -1, 2, -2))
    a, g, b = parts.cook_toom.__wrapped__(4)
    assert b.tolist()[0] == [4, 0, -5, 0, 1, 0]
    assert b.tolist()[3] == [0, -2, -1, 2, 1, 0]
    assert g.tolist()[1] == [Fraction(-1, 6)] * 3
    assert a.tolist()[3] == [0, 1, -1, 8, -8, 1]


@cuda.jit
def transforms_kernel(units, image, weights, output, m):
    """Row i of each result: the transform of unit vector i of ``units``."""
    i = cuda.threadIdx.x
    d, g, u = cuda.local.array(6, np.float32), cuda.local.array(3, np.float32), cuda.local.array(6, np.float32)
    for j in range(m + 2):
        d[j] = units[i, j]
    for j in range(3):
        g[j] = units[i, j]
    if m == 2:
        parts.image_four(d, 0, 1)
        parts.weights_four(g, 0, 1, u, 0, 1)
    else:
        parts.image_six(d, 0, 1)
        parts.weights_six(g, 0, 1, u, 0, 1)
    for j in range(m + 2):
        image[i, j], weights[i, j] = d[j], u[j]
        d[j] = units[i, j]
    if m == 2:
        parts.output_four(d, 0, 1)
    else:
        parts.output_six(d, 0, 1)
    for j in range(m):
        output[i, j] = d[j]


@interpreter_only
@each_m
def test_the_sums_written_out_are_the_matrices(m):
    image, weights = np.zeros((6, 6), F32), np.zeros((6, 6), F32)
    output = np.zeros((6, 6), F32)
    transforms_kernel[1, m + 2](np.eye(6, dtype=F32), image, weights, output, m)
    a, g, b = (matrix.astype(np.float64) for matrix in parts.cook_toom(m))
    np.testing.assert_array_equal(image[: m + 2, : m + 2].T, b)  # a coefficient of B and A is a float32
    np.testing.assert_array_equal(output[: m + 2, :m].T, a)
    np.testing.assert_allclose(weights[:3, : m + 2].T, g, rtol=2.0**-24)


@each_m
def test_the_bound_is_the_formula(m):
    """On one tile and two channels: |A^T| (sum of |U| |V|) |A|, straight from the matrices."""
    x, w = drawn(4, (1, 2, m + 2, m + 2), (1, 2, 3, 3))
    a, g, b = (abs(matrix).astype(np.float64) for matrix in parts.cook_toom(m))
    u, v = g @ abs(w[0].astype(np.float64)) @ g.T, b @ abs(x[0].astype(np.float64)) @ b.T
    size = a @ (u * v).sum(0) @ a.T
    roundings = 2 * sum(parts.ROUNDINGS[m]) + 2 + 2
    np.testing.assert_allclose(room.tolerance(x, w, m=m)[0, 0], roundings * 2.0**-24 * size, rtol=1e-12)


@each_m
def test_the_error_is_within_a_factor_of_100_of_the_bound(m):
    """The bound is for the worst signs of all roundings; those of numbers at random cancel, the more the more they are.

    Beside it, a coefficient that is wrong by 1 in 1000 is found out (wrong_winograd.py).
    """
    x, w = drawn(5, (2, 1, 34, 34), (4, 1, 3, 3))
    rung = room.large_tiles if m == 4 else room.small_tiles
    error = abs(device.to_host(rung(x, w)) - exact(x, w))
    assert 1 / 100 < (error / room.tolerance(x, w, m=m)).max() <= 1


def test_larger_tiles_are_less_exact_and_these_points_more_exact_than_one_and_two(monkeypatch):
    x, w = drawn(6, (1, 4, 14, 14), (2, 4, 3, 3))
    small, large = (room.tolerance(x, w, m=m) for m in (2, 4))
    assert 3 < (large / small).mean() < 15
    monkeypatch.setitem(parts.POINTS, 4, (0, 1, -1, 2, -2))
    monkeypatch.setattr(parts, "cook_toom", parts.cook_toom.__wrapped__)
    assert (room.tolerance(x, w, m=4) / large).mean() > 2


@interpreter_only
def test_there_are_2_25_and_4_times_fewer_multiplications(monkeypatch):
    x, w = drawn(7, (1, 8, 8, 16), (3, 8, 3, 3))
    direct = shared.cost(1, 8, 8, 16, 3, padding=1).flops
    monkeypatch.setattr(room, "batched_product", room.product)
    for rung, fewer in ((room.small_tiles, 2.25), (room.large_tiles, 4)):
        result, reports = observe(rung, x, w, None, 1, 1)
        assert right(result, m_of(rung), x, w, None, 1)
        products = [r.counters["flops"] for r in reports if r.kernel == "product_kernel"]
        assert products == [direct / fewer]


@interpreter_only
@pytest.mark.parametrize("shapes", [((1, 8, 8, 16), (3, 8, 3, 3)), ((2, 16, 8, 8), (5, 16, 3, 3))])
def test_its_own_cost_is_what_is_computed(monkeypatch, shapes):
    """Of layers that need no zeros to fill up channels or tiles."""
    x, w = drawn(10, *shapes)
    layer = shared.layer_of(x.shape, w.shape, 1, 1)
    monkeypatch.setattr(room, "batched_product", room.product)
    rungs = room.small_tiles, room.large_tiles
    counted = {m_of(rung): total(observe(rung, x, w, None, 1, 1)[1], "flops") for rung in rungs}
    assert counted == {m: parts.arithmetic(layer, m) for m in (2, 4)}
    assert room.own_cost(layer).flops == min(counted.values())
    assert room.own_cost(layer).bytes == layer.cost.bytes


@interpreter_only
def test_the_batched_product_does_no_more(monkeypatch):
    """With 64 filters and 64 tiles its blocks are full: the same multiplications, and far fewer loads."""
    x, w = drawn(8, (1, 8, 16, 16), (64, 8, 3, 3))
    monkeypatch.setattr(batched, "tile_for", lambda *_: batched.TILES[-1])
    counts = []
    for rung in (room.small_tiles, room.batched):
        result, reports = observe(rung, x, w, None, 1, 1)
        assert right(result, m_of(rung), x, w, None, 1)
        product = next(r for r in reports if r.kernel in ("product_kernel", "kernel"))
        counts.append((product.counters["flops"], product.counters["global_load_requests"]))
    assert counts[0][0] == shared.cost(1, 8, 16, 16, 64, padding=1).flops / 2.25
    assert counts[1][0] == counts[0][0] + 16 * 64 * 64  # the bias of nought
    assert counts[1][1] * 20 < counts[0][1]


# ------------------------------------------------------------------------------------------- passes, paths, workspace


def test_passes_do_not_show(monkeypatch):
    x, w, bias = drawn(9, (5, 3, 7, 8), (4, 3, 3, 3), 4)
    expected = device.to_host(room.vectorised(x, w, bias, 1, 1))
    layer = Layer(5, 3, 7, 8, 4, 3, 3, padding=(1, 1))
    seen = []
    for at_once in (1, 36 * 8 * 8, 36 * 8 * 4 * 4):
        monkeypatch.setattr(room, "AT_ONCE", at_once)
        seen.append(room._images_at_once(layer, 4))
        np.testing.assert_array_equal(device.to_host(room.vectorised(x, w, bias, 1, 1)), expected)
    assert seen == [1, 2, 3]  # of 5 images: 1 each, 2 + 2 + 1, and 3 + 2


def test_wide_kernels_run_where_they_can(spy):
    image, sums = spy(room.wide_image_kernel), spy(room.wide_sums_kernel)
    for shape, padding, offset, ran in (
        ((1, 2, 5, 8), 1, 0, (1, 1)),
        ((1, 2, 5, 8), 1, 1, (0, 1)),  # x begins elsewhere
        ((1, 2, 5, 10), 0, 0, (0, 1)),
        ((1, 2, 5, 8), (1, 2), 0, (0, 0)),  # rows of 10
        ((1, 2, 5, 7), 1, 0, (0, 0)),
    ):
        image.launches.clear()
        sums.launches.clear()
        x, w = drawn(10, shape, (2, 2, 3, 3))
        result = device.to_host(room.vectorised(misaligned(x, offset), w, None, 1, padding))
        assert (len(image.launches), len(sums.launches)) == ran
        assert right(result, 4, x, w, None, padding)


@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (1, 16, 4, 4), (0, 3, 4, 4)])
def test_the_workspace_is_what_is_said(shape, monkeypatch):
    taken = []
    workspaces = room.workspaces
    monkeypatch.setattr(room, "workspaces", lambda *args, **kw: (taken.extend(workspaces(*args, **kw)), taken)[1])
    x, w = drawn(11, shape, (5, shape[1], 3, 3))
    room.LADDER[-1](x, w, None, 1, 1)
    layer = Layer(*shape, 5, 3, 3, padding=(1, 1))
    assert room.workspace_bytes(layer) == sum(512 * blocks(array.size, 128) for array in taken)


@each_rung
def test_without_room_nothing_is_written(rung, monkeypatch):
    def full(shape, dtype, *, stream=0):
        if shape and len(tried) == before:  # an empty array stands for no bias
            raise MemoryError("full")
        tried.extend([shape] * bool(shape))
        return device.empty(shape, dtype, stream=stream)

    tried, before = [], 0 if device.on_gpu() else 2  # on a GPU all three are parts of one
    x, w = drawn(12, (1, 2, 4, 4), (3, 2, 3, 3))
    out = device.to_device(np.full((1, 3, 4, 4), 7, F32))
    monkeypatch.setattr(shared, "device", type("", (), {**vars(device), "empty": staticmethod(full)}))
    with pytest.raises(
        MemoryError, match=r"no room for the transformed .* sums: [\d,]+ bytes of workspace were wanted"
    ):
        rung(x, w, None, 1, 1, out=out)
    assert (out.copy_to_host() == 7).all()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(1, 2, 9, 9, 2, 5, 5), "w must have kernels of 3 x 3 .*, had 5 x 5"),
        (Layer(1, 2, 9, 9, 2, 3, 3, stride=(2, 2)), r"stride and dilation must be 1.*were \(2, 2\)"),
        (Layer(1, 2, 9, 9, 2, 3, 3, dilation=(1, 2)), r"stride and dilation must be 1.*\(1, 2\)"),
        (Layer(1, 4, 9, 9, 4, 3, 3, groups=4), "groups must have 2 channels or more"),
    ],
    ids=str,
)
def test_what_the_algorithm_cannot_do_is_refused_by_name(layer, words):
    assert room.workspace_bytes(layer) == 0
    x, w = drawn(13, (1, layer.c, 9, 9), (layer.k, layer.c // layer.groups, layer.r, layer.s))
    for rung in room.LADDER:
        with pytest.raises(ValueError, match=words):
            rung(x, w, None, layer.stride, 0, layer.dilation, layer.groups)


def test_what_can_be_done_is_not_refused():
    assert room.refuses(Layer(256, 512, 224, 224, 512, 3, 3, padding=(1, 1))) is None
    assert room.refuses(Layer(1, 1, 3, 3, 1, 3, 3)) is None
    assert room.refuses(Layer(1, 7000, 4, 4, 7000, 3, 3)) is None
    assert room.workspace_bytes(Layer(256, 512, 224, 224, 512, 3, 3, padding=(1, 1))) < 2**30


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(1, 64, 20000, 20000, 64, 3, 3), "x must have smaller images or fewer channels: .* tiles of 2 x 2"),
        (Layer(1, 12000, 4, 4, 12000, 3, 3), "w must have fewer filters or channels: .* 2,304,000,000 .* of 2 x 2"),
        (Layer(1, 9000, 4, 4, 9000, 3, 3), "w must have fewer filters or channels: .* 2,916,000,000 .* of 4 x 4"),
        (Layer(1, 1, 8000, 8000, 64, 3, 3), "w must have fewer filters, or x smaller images: the sums"),
    ],
    ids=str,
)
def test_what_is_too_large_is_refused_by_the_name_of_what_is_at_fault(layer, words):
    assert re.match(words, room.refuses(layer))
    assert room.workspace_bytes(layer) == 0


def test_an_array_of_the_larger_tiles_may_be_the_one_that_is_too_large(monkeypatch):
    """For 2 x 2 the weights have 16 x 3 x 8 elements and the image 16 x 8 x 4, for 4 x 4 the weights 36 x 3 x 8."""
    x, w = drawn(14, (1, 2, 4, 4), (3, 2, 3, 3))
    monkeypatch.setattr(shared, "MOST", 36 * 3 * 8 - 1)
    for rung in room.LADDER:
        with pytest.raises(ValueError, match=r"w must have fewer filters or .* 864 elements for tiles of 4 x 4"):
            rung(x, w, None, 1, 1)
