"""Products of any shape: every tile and form at awkward edges, splits, the choice of a plan, and the arguments."""

import functools
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted as room
from pmpp.runtime import device
from tests.kernels.matmul.wrong_fitted import RIGHT
from tests.kernels.matmul.wrong_fitted import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, total, watch

INPUTS = room.inputs()
F32 = np.float32
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(seed, m, n, k, orders="CC"):
    rng = np.random.default_rng(seed)
    shapes = (m, k), (k, n)
    return tuple(np.asarray(rng.standard_normal(x, dtype=F32), order=o) for x, o in zip(shapes, orders, strict=True))


def is_right(result, a, b):
    return judge.right(result, a.astype(np.float64) @ b.astype(np.float64), room.tolerance(a, b))


def by_plan(a, b, plan, **options):
    p = room.arguments(a, b, **options)
    room.launch(p, plan)
    return p.result


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("tile", room.TILES, ids=str)
def test_every_tile_at_its_edges(tile):
    """A row, a column and an element of K more than whole tiles have; and four of each, read four at a time.

    C order of both makes A deep and B wide, Fortran order the other way round.
    """
    cases = [("CC", 1, 2), ("FF", 4, 1)]
    if tile.m * tile.n <= 1024:
        cases += [("FF", 1, 1), ("CC", 4, 2)]
    for orders, extra, parts in cases:
        k = tile.depth * (parts + 1) + extra
        a, b = drawn(extra, tile.m + extra, tile.n + extra, k, orders)
        given = device.to_device(a), device.to_device(b)
        with few_counters():
            result, reports = observe(by_plan, *given, room.plan_of(tile, k, parts))
        assert is_right(result, a, b)
        assert len(reports) == parts * (not device.on_gpu())
        assert total(reports, "flops_f64") == total(reports, "atomic_requests") == 0


@hypothesis.given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(0, 90)),
    fortran=st.tuples(st.booleans(), st.booleans()),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    tile=st.sampled_from(room.TILES[4:]),
    parts=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_shape_layout_and_alignment(shape, fortran, offsets, tile, parts, seed):
    a, b = drawn(seed, *shape)
    out = laid_out(np.full(shape[:2], np.nan, F32), False, offsets[2])
    given = laid_out(a, fortran[0], offsets[0]), laid_out(b, fortran[1], offsets[1])
    result = by_plan(*given, room.plan_of(tile, shape[2], parts), out=out)
    assert result is out
    assert is_right(device.to_host(out), a, b)


def laid_out(x, fortran, offset):
    """A device array with the values of ``x``, in that order, ``offset`` elements behind a 16-byte boundary."""
    if not x.size:
        return device.to_device(np.asarray(x, order="F" if fortran else "C"))
    flat = np.concatenate([np.full(offset, np.nan, F32), x.ravel(order="F" if fortran else "C")])
    array = device.to_device(flat)[offset:]
    if not fortran:
        return array.reshape(*x.shape)
    # .T of a device array is a copy in C order.
    pointer, strides = array.__cuda_array_interface__["data"][0], (4, 4 * x.shape[0])
    interface = {"shape": x.shape, "strides": strides, "typestr": "<f4", "data": (pointer, False), "version": 3}
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=interface, owner=array))


def test_what_is_not_finite_stays_in_its_row_and_column():
    """Beyond the edge a load gives 0, or reads what is inside again: neither may reach a sum that is stored."""
    for n, k in ((36, 36), (35, 33)):
        a, b = drawn(5, 34, n, k)
        a[-1, 3], a[4, -1], b[2, -1], b[-1, 5] = np.nan, np.inf, np.nan, -np.inf
        for tile, parts in ((room.SMALL, 1), (room.FEW_ROWS, 2), (room.FEW_COLUMNS, 1)):
            result = device.to_host(by_plan(a, b, room.plan_of(tile, k, parts)))
            assert np.isfinite(result[np.ix_(np.r_[:4, 5:33], np.r_[:5, 6 : n - 1])]).all()
            with np.errstate(invalid="ignore"):
                assert is_right(result, a, b)


def test_the_same_call_gives_the_same_bits():
    a, b = drawn(6, 19, 21, 700)
    plan = room.plan_of(room.SMALL, 700, 9)
    first, second = (device.to_host(by_plan(a, b, plan)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_parts_are_added_in_the_order_that_the_source_says():
    """Bit for bit: teams of threads each add every 8th part, and their sums are added in the teams' order."""
    parts, m, n = 21, 3, 5
    partials = np.random.default_rng(7).standard_normal((parts, m, 8), dtype=F32)
    c = device.empty(m * n, F32)
    grid = blocks(m * 8, room.ADDERS)
    room.sum_kernel[grid, room.SUMS // 4](device.to_device(partials.reshape(-1)), c, m, n, 8, parts)
    teams = [functools.reduce(np.add, partials[team :: room.TEAMS]) for team in range(room.TEAMS)]
    np.testing.assert_array_equal(c.copy_to_host().reshape(m, n), functools.reduce(np.add, teams)[:, :n])


@few_counters()
def faults(multiply, names):
    """All that is wrong with a matrix product, worst first. The ladder has none; each in wrong_fitted.py has one."""
    found = []
    for name in names:
        a, b = INPUTS[name]
        result, reports = watch(multiply, device.to_device(a), device.to_device(b))
        found += hazards(reports)
        if found:
            return found
        found += ["wrong result"] * (not is_right(result, a, b))
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        found += ["atomics"] * (total(reports, "atomic_requests") > 0)
    return found


SOME = ["whole steps", "a tile and one", "both transposed, odd", "three columns"]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT, SOME) == []


# ----------------------------------------------------------------------------------------------------------- the choice

SHAPES = [(1, 1, 1), (2, 8192, 8192), (8192, 3, 9000), (64, 64, 64), (333, 1111, 777), (512, 512, 32768), (16384,) * 3]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("multiprocessors", [1, 30, 132])
def test_a_plan_covers_k_and_no_part_is_empty(shape, multiprocessors):
    m, n, k = shape
    plan = room.plan_for(m, n, k, multiprocessors)
    assert plan.length % plan.tile.depth == 0
    assert plan.length * (plan.parts - 1) < k <= plan.length * plan.parts
    unsplit = (room.cycles(room.plan_of(tile, k, 1), m, n, k, multiprocessors) for tile in room.TILES)
    assert room.cycles(plan, m, n, k, multiprocessors) <= min(unsplit)


def test_the_choice_follows_the_shape():
    def chosen(m, n, k):
        return room.plan_for(m, n, k, 132)

    assert chosen(8192, 8192, 8192).tile == room.LARGE
    assert chosen(8192, 8, 8192).tile == room.FEW_COLUMNS
    assert chosen(8, 8192, 8192).tile == room.FEW_ROWS
    assert chosen(8192, 8192, 8192).parts == 1
    assert chosen(512, 512, 32768).parts > 1
    assert room.plan_for(1024, 1024, 256, 1).parts == 1  # nobody waits whom a split could employ


def test_every_tile_fits_a_block():
    for tile in room.TILES:
        for deep in (False, True):
            pitches = tile.m + tile.n + 8 * deep
            assert 2 * tile.depth * pitches * 4 <= 48 * 1024
        assert tile.threads % 32 == 0
        assert tile.resident >= 2
        # What goes through shared memory at the end: a row of each thread of every group.
        assert tile.groups * tile.m // tile.thread_m * tile.n <= 2 * tile.depth * (tile.m + tile.n)
        for side in (tile.m, tile.n):
            assert side * tile.depth % tile.threads == 0
            assert tile.threads % side == 0


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_each_element_is_loaded_once_for_each_tile_that_needs_it():
    m, n, k, tile = 96, 64, 64, room.SMALL
    a, b = drawn(8, m, n, k)
    for plan in (room.plan_of(tile, k, 1), room.plan_of(tile, k, 2)):
        _, reports = observe(by_plan, device.to_device(a), device.to_device(b), plan)
        loaded = reports[0].counters["global_load_sectors"]
        assert loaded == (m * k * n // tile.n + k * n * m // tile.m) * 4 // 32
        assert reports[0].counters["flops"] >= 2 * m * n * k


@interpreter_only
@pytest.mark.parametrize("tile", [room.MIDDLE, room.SMALL], ids=str)
def test_tiles_are_read_without_bank_conflicts(tile):
    a, b = drawn(9, tile.m, tile.n, 2 * tile.depth)
    _, reports = observe(by_plan, device.to_device(a), device.to_device(b), room.plan_of(tile, 2 * tile.depth, 1))
    assert reports[0].counters["shared_load_bank_conflicts"] == 0


@interpreter_only
def test_neighbours_write_neighbours_where_rows_are_not_aligned():
    a, b = drawn(10, 32, 33, 5)
    _, reports = observe(by_plan, device.to_device(a), device.to_device(b), room.plan_of(room.SMALL, 5, 1))
    counted = reports[0].counters
    assert counted["global_store_sectors"] <= 32 * (2 * 5 + 2)  # a row of 33 in two tiles


# ------------------------------------------------------------------------------------------------------------ arguments


def test_an_operand_with_too_many_elements_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(room, "MOST_ELEMENTS", 30)
    a, b = drawn(11, 4, 4, 9)
    with pytest.raises(ValueError, match=r"a must have at most 30 elements, had 36: its shape is \(4, 9\)"):
        room.split_k(a, b)
    with pytest.raises(ValueError, match=r"b must have at most 30 elements, had 36: its shape is \(9, 4\)"):
        room.split_k(a[:2], b)
