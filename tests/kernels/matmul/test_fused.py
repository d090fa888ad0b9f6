"""Fused and batched products: epilogues, strides of every kind, small tiles, splits, launches, and the arguments."""

import functools
import math

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted
from pmpp.kernels.matmul import fused as room
from pmpp.runtime import device
from pmpp.runtime.views import strided
from tests.kernels.matmul.wrong_fused import RIGHT
from tests.kernels.matmul.wrong_fused import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, result_of, total, watch

INPUTS = room.inputs()
F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=F32) for shape in shapes]


def exact(a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0):
    """By NumPy's matmul, in float64."""
    y = alpha * np.matmul(a.astype(np.float64), b.astype(np.float64))
    y = y + (0 if residual is None else beta * residual.astype(np.float64)) + (0 if bias is None else bias)
    if activation == "gelu":
        return y * np.vectorize(math.erfc)(-y / math.sqrt(2)) / 2
    return np.maximum(y, 0) if activation == "relu" else y


def is_right(result, *arguments, **options):
    return judge.right(result, exact(*arguments, **options), room.tolerance(*arguments, **options))


def by_plan(plan, *arguments, **options):
    p = room.arguments(*arguments, **options)
    room.launch(p, plan, room.epilogue_of(p), p.result)
    return p.result


def laid_out(x, axes=None, step=1, gap=0, offset=0):
    """A device array with the values of ``x``, whose ``axes`` lie in that order in memory, outermost first.

    Its innermost neighbours are ``step`` elements apart, ``gap`` elements follow each run of the others, and its first
    element lies ``offset`` behind a 16-byte boundary. What lies between is NaN.
    """
    strides, apart = [0] * x.ndim, step
    for axis in reversed(axes or range(x.ndim)):
        strides[axis] = apart
        apart = apart * x.shape[axis] + gap
    flat = np.full(offset + max(apart, 1), np.nan, F32)
    np.lib.stride_tricks.as_strided(flat[offset:], x.shape, [4 * one for one in strides])[...] = x
    return strided(device.to_device(flat), x.shape, tuple(strides), offset)


def repeated(x, shape):
    """A device array with the values of ``x``, repeated to a shape by strides of 0."""
    view = np.broadcast_to(x, shape)
    return strided(device.to_device(np.ascontiguousarray(x)), shape, tuple(one // 4 for one in view.strides))


# ------------------------------------------------------------------------------------------------------------ reference


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "non-finite"])
def test_the_reference_is_numpys_matmul(name):
    np.testing.assert_allclose(room.reference(*INPUTS[name]), exact(*INPUTS[name]), rtol=1e-12, atol=1e-12)


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("tile", room.PACKED, ids=str)
def test_small_tiles_at_their_edges_with_more_products_than_a_block_has_room_for(tile):
    teams = room.teams_of(tile)
    assert teams > 1
    for extra in (-1,) if tile.m == 32 else (-1, 0):  # each is a kernel of its own; 32 x 32 with whole vectors is below
        m, n, k = tile.m + extra, tile.n + extra, tile.depth + 4 + extra
        a, b = normal(extra + 1, (teams + 1, m, k), (teams + 1, k, n))
        plan = fitted.plan_of(tile, k, 1)
        assert is_right(result_of(by_plan, plan, a, b), a, b)
    if tile.m == 8:  # K across memory in A, and along it in B
        given = laid_out(a, (0, 2, 1)), laid_out(b, (0, 2, 1))
        assert is_right(result_of(by_plan, plan, *given), a, b)


# tile, parts, (products, m, n, k), and for a, b and the residual: order of the axes, step, gap, offset as in `laid_out`
VIEWS = {
    "in parts": (fitted.SMALL, 3, (2, 33, 40, 70), ((0, 2, 1), 1, 0, 0), ((0, 2, 1), 1, 1, 1), ((1, 0, 2), 2, 0, 2)),
    "whole": (fitted.SMALL, 1, (3, 40, 17, 5), ((2, 1, 0), 1, 3, 4), ((1, 2, 0), 2, 0, 0), ((2, 0, 1), 1, 4, 0)),
    "small": (room.PACKED[0], 1, (2, 32, 40, 36), ((0, 1, 2), 1, 0, 0), ((0, 1, 2), 1, 4, 4), ((0, 2, 1), 1, 0, 1)),
    "small, odd": (room.PACKED[0], 1, (3, 40, 9, 70), ((1, 0, 2), 2, 2, 1), ((2, 0, 1), 1, 0, 2), ((1, 2, 0), 2, 1, 0)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_strides_and_alignment(name):
    tile, parts, (count, m, n, k), *layouts = VIEWS[name]
    hosts = normal(2, (count, m, k), (count, k, n), (count, m, n))
    a, b, residual = (laid_out(x, *how) for x, how in zip(hosts, layouts, strict=True))
    if tile in room.PACKED:  # at most 32 rows and columns
        a, b, residual = a[:, :32], b[:, :, :32], residual[:, :32, :32]
        hosts = hosts[0][:, :32], hosts[1][:, :, :32], hosts[2][:, :32, :32]
    result = by_plan(fitted.plan_of(tile, k, parts), a, b, None, residual, "relu", 0.5, -2.0)
    assert is_right(device.to_host(result), *hosts[:2], None, hosts[2], "relu", 0.5, -2.0)


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_residual"),
    [((2, 1), (1, 3), (2, 1)), ((), (2, 3), (3,)), ((2, 3), (3,), ()), ((3, 1, 2), (2, 1), (3, 2, 2))],
    ids=str,
)
def test_leading_dimensions_are_broadcast_and_not_copied(of_a, of_b, of_residual):
    a, b, residual = normal(3, (*of_a, 5, 6), (*of_b, 6, 7), (*of_residual, 5, 1))
    leading = np.broadcast_shapes(of_a, of_b)
    result = result_of(room.packed, a, b, None, residual)
    assert is_right(result, a, b, None, residual)
    views = repeated(a, (*leading, 5, 6)), repeated(b, (*leading, 6, 7)), repeated(residual, (*leading, 5, 7))
    again = result_of(room.packed, views[0], views[1], None, views[2])
    np.testing.assert_array_equal(again, result)


def test_slices_of_a_larger_tensor_are_not_copied():
    """The queries and keys of four heads, side by side in one array, as a transformer has them."""
    tokens, heads, width = 9, 4, 8
    both = normal(4, (2, tokens, 2, heads, width))[0]
    memory, apart = device.to_device(both), [one // 4 for one in both.strides]
    size = (2, heads, tokens, width)
    queries = strided(memory, size, (apart[0], apart[3], apart[1], apart[4]))
    keys = strided(memory, (*size[:2], width, tokens), (apart[0], apart[3], apart[4], apart[1]), apart[2])
    result = result_of(room.packed, queries, keys, alpha=width**-0.5)
    a, b = both[:, :, 0].transpose(0, 2, 1, 3), both[:, :, 1].transpose(0, 2, 3, 1)
    assert is_right(result, a, b, alpha=width**-0.5)


@pytest.mark.parametrize("rung", room.LADDER, ids=lambda one: one.name)
def test_out_is_added_to(rung):
    a, b, old = normal(5, (2, 5, 6), (2, 6, 7), (2, 5, 7))
    out = device.to_device(old)
    assert rung(a, b, None, None, "relu", 2.0, -0.5, accumulate=True, out=out) is out
    assert is_right(device.to_host(out), a, b, None, old, "relu", 2.0, -0.5)


def test_a_beta_of_zero_reads_neither_a_residual_nor_out():
    a, b = normal(6, (3, 4), (4, 5))
    nothing = np.full((3, 5), np.nan, F32)
    for options in ({"residual": nothing}, {"accumulate": True, "out": device.to_device(nothing)}):
        result = result_of(room.packed, a, b, beta=0, **options)
        assert is_right(result, a, b)


@cuda.jit(device=True)
def squared(value):
    return value * value


def test_an_activation_may_be_a_device_function():
    a, b, bias = np.full((3, 4), 2, F32), np.full((4, 5), 3, F32), np.arange(5, dtype=F32)
    for rung in (room.one_pass, room.packed):
        result = result_of(rung, a, b, bias, activation=squared)
        np.testing.assert_array_equal(result, np.broadcast_to((24 + bias) ** 2, (3, 5)))


def test_a_split_sum_is_finished_once():
    """Each part is negative or positive by itself: a ReLU of parts, or a bias in each, would show."""
    a, b, bias, residual = normal(7, (2, 6, 131), (2, 131, 9), (9,), (2, 6, 9))
    arguments = a, b, bias, residual, "relu", -1.5, 0.5
    for parts in (1, 4):
        result, reports = observe(by_plan, fitted.plan_of(fitted.SMALL, 131, parts), *arguments)
        assert is_right(result, *arguments)
        assert len(reports) == (1 + (parts > 1)) * (not device.on_gpu())


def test_the_same_call_gives_the_same_bits_and_parts_are_added_as_in_fitted():
    a, b = normal(8, (5, 301), (301, 7))
    plan = fitted.plan_of(fitted.SMALL, 301, 9)
    first, second = (device.to_host(by_plan(plan, a, b)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    p = fitted.arguments(a, b)
    fitted.launch(p, plan)
    np.testing.assert_array_equal(first, device.to_host(p.result))


def test_what_is_not_finite_stays_in_its_row_and_product():
    a, b = normal(9, (20, 7, 9), (20, 9, 6))
    a[3, 2, 4], b[11, 8, 5] = np.nan, np.inf
    for plan in (fitted.plan_of(room.PACKED[2], 9, 1), fitted.plan_of(fitted.SMALL, 9, 1)):
        result = device.to_host(by_plan(plan, a, b))
        wrong = np.argwhere(~np.isfinite(result))
        assert {tuple(at) for at in wrong} == {(3, 2, j) for j in range(6)} | {(11, i, 5) for i in range(7)}


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)], ids=str)
def test_extents_of_zero(shape):
    count, m, n, k = shape
    a, b, bias = np.ones((count, m, k), F32), np.ones((count, k, n), F32), np.ones(n, F32)
    for rung in (room.separate, room.packed):
        result = device.to_host(rung(a, b, bias))
        np.testing.assert_array_equal(result, np.full((count, m, n), k + 1, F32))


@few_counters()
def faults(multiply, names):
    """All that is wrong with a product, worst first. The ladder has none; each in wrong_fused.py has one."""
    found = []
    for name in names:
        arguments = [device.to_device(x) if isinstance(x, np.ndarray) else x for x in INPUTS[name]]
        result, reports = watch(multiply, *arguments)
        found += hazards(reports)
        if found:
            return found
        found += ["wrong result"] * (not is_right(result, *INPUTS[name]))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
    return found


SOME = ["one weight for all", "tiny and odd"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: one.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(right):
    assert faults(right, SOME) == []


# ----------------------------------------------------------------------------------------------------- shapes and plans


def shape_of(a, b, residual=None):
    return room.arguments(a, b, None, residual).shape


def test_leading_dimensions_that_follow_each_other_are_one():
    a, b = np.ones((3, 4, 5, 6), F32), np.ones((3, 4, 6, 7), F32)
    assert shape_of(a, b).steps == ((12,), (30,), (42,), (0,))
    assert shape_of(a, b, np.ones((5, 7), F32)).steps == ((12,), (30,), (42,), (0,))
    assert shape_of(a, b, np.ones((4, 5, 7), F32)).steps == ((4, 3), (30, 120), (42, 168), (35, 0))
    assert shape_of(a, np.ones((4, 6, 7), F32)).steps == ((4, 3), (30, 120), (42, 0), (0, 0))


def test_matrices_that_share_b_are_one_with_many_rows():
    a, b = np.ones((3, 4, 5, 6), F32), np.ones((6, 7), F32)
    assert shape_of(a, b)[:4] == (1, 60, 7, 6)
    assert shape_of(a, b, np.ones((3, 4, 5, 7), F32))[:4] == (1, 60, 7, 6)
    assert shape_of(a, b, np.ones((3, 1, 5, 7), F32))[:2] == (12, 5)  # a step of its own
    assert shape_of(a, b, np.ones(7, F32))[:2] == (1, 60)
    assert shape_of(a, np.ones((3, 1, 6, 7), F32))[:2] == (3, 20)
    assert shape_of(np.ones((8, 1, 6), F32), b)[:2] == (1, 8)
    assert shape_of(np.ones((8, 1, 6), F32), b, np.ones((8, 1, 1), F32))[:2] == (1, 8)


def test_rows_that_were_joined_are_right():
    a, b, bias = normal(10, (6, 3, 7), (7, 5), (5,))
    view = laid_out(a, (1, 0, 2))  # these do not follow each other
    for given in (a, view):
        assert is_right(result_of(room.packed, given, b, None, bias), a, b, None, bias)
    residual = np.arange(6, dtype=F32).reshape(6, 1, 1)
    row = a[:, :1].copy()
    assert is_right(result_of(room.packed, row, b, None, residual), row, b, None, residual)


def test_the_choice_follows_the_shape():
    def chosen(count, m, n, k):
        shape = room.Shape(count, m, n, k, (k, 1), (n, 1), (0, 0), room.Steps((count,), (m * k,), (k * n,), (0,)))
        return room.plan_for(shape, 132, fitted.SPLITS, (*fitted.TILES, *room.PACKED))

    assert chosen(1, 4096, 4096, 4096).tile == fitted.LARGE
    assert chosen(1, 512, 512, 32768).parts > 1
    assert chosen(1024, 16, 16, 16).tile == room.PACKED[1]
    assert chosen(65536, 8, 8, 8).tile == room.PACKED[2]
    assert chosen(64, 128, 128, 64).parts == 1  # so many matrices need no split
    for count, m, n, k in ((1, 1, 1, 1), (3, 8, 9, 10000), (500, 17, 3, 2), (1, 8192, 3, 9000)):
        plan = chosen(count, m, n, k)
        assert plan.length * (plan.parts - 1) < k <= plan.length * plan.parts
        assert plan.parts == 1 or plan.tile not in room.PACKED


def test_every_small_tile_fits_a_block():
    for tile in room.PACKED:
        assert room.teams_of(tile) * tile.threads <= room.PACK
        pitches = tile.m + tile.n + 8
        assert room.teams_of(tile) * 2 * tile.depth * pitches * 4 <= 48 * 1024
        assert tile.groups * 2 * tile.m // tile.thread_m * tile.n <= 2 * tile.depth * (tile.m + tile.n)
        for side in (tile.m, tile.n):
            assert side * tile.depth % tile.threads == 0
            assert tile.threads % side == 0


# ------------------------------------------------------------------------------------------------------------- counters


@functools.cache
def layer():
    """What the rungs do with a linear layer: its reports by the rung's name. 64 x 96 outputs, all aligned."""
    a, b, bias, residual = normal(11, (64, 32), (32, 96), (96,), (64, 96))
    given = [device.to_device(x) for x in (a, b, bias, residual)]
    rungs = (room.batched, room.one_pass, room.epilogue)
    return {rung.name: observe(rung, *given, "gelu", 0.5)[1] for rung in rungs}


@interpreter_only
def test_each_step_of_an_epilogue_is_a_pass_over_c_until_it_is_fused():
    c, reports = 64 * 96 * 4 // 32, layer()  # sectors of C
    stored = {name: total(found, "global_store_sectors") for name, found in reports.items()}
    assert stored == {"batched": 5 * c, "one_pass": 2 * c, "epilogue": c}
    assert [len(found) for found in reports.values()] == [5, 2, 1]
    product, *passes = (report.counters["global_load_sectors"] for report in reports["batched"])
    assert passes == [c, 2 * c, passes[2], c]  # scaling, residual, bias, activation
    assert c < passes[2] < 2 * c  # a row of the bias for each row of C, from the cache
    (fused,) = (report.counters["global_load_sectors"] for report in reports["epilogue"])
    assert product + c < fused < product + 2 * c  # the residual, and a little of the bias
    for found in reports.values():
        assert total(found, "flops_f64") == total(found, "atomic_requests") == 0


@interpreter_only
def test_a_launch_each_or_one_for_all():
    a, b = normal(12, (7, 5, 4), (7, 4, 6))
    counts = {rung.name: len(observe(rung, a, b)[1]) for rung in (room.separate, room.batched, room.packed)}
    assert counts == {"separate": 7, "batched": 1, "packed": 1}


@interpreter_only
def test_several_small_products_a_block_take_few_instructions():
    a, b = normal(13, (16, 16, 16), (16, 16, 16))
    given = device.to_device(a), device.to_device(b)
    took = {}
    for tile in (fitted.SMALL, room.PACKED[1]):
        _, (report,) = observe(by_plan, fitted.plan_of(tile, 16, 1), *given)
        took[tile] = report.counters
        assert report.counters["global_store_sectors"] == 16 * 16 * 16 * 4 // 32
    assert took[room.PACKED[1]]["global_load_sectors"] == 2 * 16 * 16 * 16 * 4 // 32
    assert 5 * took[room.PACKED[1]]["thread_instructions"] < took[fitted.SMALL]["thread_instructions"]


@interpreter_only
@pytest.mark.parametrize(("axes", "step"), [((0, 2, 1), 1), ((0, 1, 2), 2)], ids=["transposed", "every second"])
def test_a_view_is_read_where_it_lies(axes, step):
    a, b = normal(14, (2, 32, 32), (2, 32, 32))
    result, (report,) = observe(
        by_plan, fitted.plan_of(fitted.SMALL, 32, 1), laid_out(a, axes, step), device.to_device(b)
    )
    assert is_right(result, a, b)
    assert report.counters["global_load_sectors"] == (2 * 32 * 32 * step + 2 * 32 * 32) * 4 // 32


# ------------------------------------------------------------------------------------------------------------ arguments


def test_bad_arguments_are_named():
    a, b = np.ones((2, 3, 4), F32), np.ones((2, 4, 5), F32)
    cases = [
        (r"a must have at least 2 dimensions, had 1: its shape was \(4,\)", (a[0, 0], b)),
        (r"b must have 4 rows, as many as a has columns, had 5: its shape was \(2, 5, 4\)", (a, b.reshape(2, 5, 4))),
        (
            r"b must have leading dimensions that broadcast with those of a, \(2,\), had \(3,\)",
            (a, np.ones((3, 4, 5), F32)),
        ),
        (r"bias must have shape \(5,\), had \(3,\)", (a, b, np.ones(3, F32))),
        (r"residual must have a shape that broadcasts to \(2, 3, 5\), had \(3,\)", (a, b, None, np.ones(3, F32))),
        (r"residual must have a shape that broadcasts .* had \(1, 2, 3, 5\)", (a, b, None, np.ones((1, 2, 3, 5), F32))),
        (r"activation must be None, 'relu', 'gelu' or .*, was 'tanh'", (a, b, None, None, "tanh")),
        (r"alpha must be a finite number, was nan", (a, b, None, None, None, math.nan)),
    ]
    for words, arguments in cases:
        with pytest.raises(ValueError, match=words):
            room.packed(*arguments)
    with pytest.raises(ValueError, match=r"residual must be None with accumulate=True, had shape \(5,\)"):
        room.packed(a, b, None, np.ones(5, F32), accumulate=True)
    with pytest.raises(ValueError, match="out must be an array with accumulate=True, was None"):
        room.packed(a, b, accumulate=True)


def test_an_out_that_shares_memory_with_a_view_is_refused():
    memory = device.to_device(np.ones(64, F32))
    a, b = strided(memory, (3, 4), (16, 1)), np.ones((4, 4), F32)
    for first in (0, 20, 35):
        with pytest.raises(ValueError, match="out must share no memory with a, had 48 bytes"):
            room.packed(a, b, out=memory[first : first + 12].reshape(3, 4))
    room.packed(a, b, out=memory[36:48].reshape(3, 4))  # behind the last element of a


def test_memory_that_32_bits_cannot_address_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(room, "MOST_ELEMENTS", 30)
    a = strided(device.to_device(np.ones(60, F32)), (3, 4), (14, 1))
    with pytest.raises(ValueError, match=r"a must span at most 30 elements, spanned 32: its shape is \(3, 4\)"):
        room.packed(a, np.ones((4, 2), F32))


def test_too_many_tiles_are_refused(monkeypatch):
    monkeypatch.setattr(room, "MOST_BLOCKS", 3)
    room.launch_of.cache_clear()
    with pytest.raises(ValueError, match=r"the product must have at most .* tiles of .*, had 4: 4 x 3 x 3"):
        by_plan(fitted.plan_of(fitted.SMALL, 3, 1), np.ones((4, 3, 3), F32), np.ones((4, 3, 3), F32))
    room.launch_of.cache_clear()


def test_a_grid_has_a_block_for_each_tile_part_and_team():
    p = room.arguments(np.ones((20, 16, 40), F32), np.ones((20, 40, 16), F32))
    for plan in (fitted.plan_of(fitted.SMALL, 40, 2), fitted.plan_of(room.PACKED[1], 40, 1)):
        made = room.launch_of(plan, p.shape, room.PLAIN, (True,) * 5)
        assert made.grid == blocks(20, room.teams_of(plan.tile)) * plan.parts
