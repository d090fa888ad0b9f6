"""Halo exchange: the bits of one rank for every way, mesh and width; messages, bytes and clocks by their formulas."""

import numpy as np
import pytest

from pmpp import parallel
from pmpp.parallel import halo, simulated
from pmpp.parallel.halo import LADDER, Part, both_ways, one_sided, overlapped, reference, solve, whole, wide

pytestmark = [pytest.mark.native("threads"), pytest.mark.usefixtures("unchecked")]

PLATE = np.random.default_rng(1).standard_normal((15, 11)).astype(np.float32)
LINKS = parallel.Links(latency=5.0, bandwidth=10.0)


def run(size, step, grid=PLATE, links=None, **options):
    return parallel.ranks(size, lambda group: solve(group, grid, step, **options), links=links)


@pytest.mark.parametrize("mesh", [(1, 1), (2, 1), (5, 1), (1, 3), (2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("step", LADDER, ids=lambda one: one.__name__)
def test_the_bits_are_those_of_one_rank(step, mesh):
    if step is one_sided and mesh[1] > 1:
        pytest.skip("its windows have rows")
    found = run(mesh[0] * mesh[1], step, most=5, every=2, mesh=mesh)
    np.testing.assert_array_equal(whole(PLATE, found), reference(PLATE, 5))
    before, after = reference(PLATE, 3), reference(PLATE, 4)
    assert {(one.steps, one.change) for one in found} == {(5, abs(after - before).max())}


@pytest.mark.parametrize("mesh, width, most", [((3, 1), 4, 9), ((1, 2), 2, 4), ((2, 2), 3, 7), ((3, 3), 3, 6)])
def test_a_wide_halo_brings_its_corners_along(mesh, width, most):
    found = run(mesh[0] * mesh[1], wide, most=most, mesh=mesh, halo=width, every=100)
    np.testing.assert_array_equal(whole(PLATE, found), reference(PLATE, most))


@pytest.mark.parametrize("shape, size", [((3, 3), 1), ((4, 3), 2), ((5, 40), 3), ((9, 70), 2)])
def test_parts_of_a_single_row(shape, size):
    grid = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for step in LADDER:
        np.testing.assert_array_equal(whole(grid, run(size, step, grid, most=3, every=9)), reference(grid, 3))


@pytest.mark.parametrize("mesh, width", [((1, 1), 1), ((3, 1), 1), ((1, 2), 1), ((2, 2), 2)])
def test_the_bits_are_those_of_one_rank_in_space(mesh, width):
    grid = np.random.default_rng(5).standard_normal((9, 7, 6)).astype(np.float32)
    for step in LADDER if width == 1 else (wide,):
        if step is one_sided and mesh[1] > 1:
            continue
        found = run(mesh[0] * mesh[1], step, grid, most=3, mesh=mesh, halo=width)
        np.testing.assert_array_equal(whole(grid, found), reference(grid, 3))
        assert found[0].change == abs(reference(grid, 3) - reference(grid, 2)).max()


def test_the_reference_is_the_stencil_in_float64_to_rounding():
    exact = PLATE.astype(np.float64)
    for _ in range(6):
        near = exact[:-2, 1:-1] + exact[2:, 1:-1] + exact[1:-1, :-2] + exact[1:-1, 2:]
        exact[1:-1, 1:-1] = near / 4
    # Each step rounds three sums, of at most 4 times the largest cell, and divides: 2 u of it; errors do not grow.
    bound = 6 * 2 * 2.0**-24 * abs(PLATE).max()
    assert abs(reference(PLATE, 6) - exact).max() <= bound


def test_a_harmonic_function_is_reached():
    """x^2 - y^2 is its own mean of four on a grid, too. Its distance follows from the change: see chapter 103."""
    y, x = np.mgrid[:12, :9].astype(np.float32)
    exact = x**2 - y**2
    grid = exact.copy()
    grid[1:-1, 1:-1] = 0
    tolerance, span = 3e-3, min(grid.shape) - 1
    found = run(4, both_ways, grid, tolerance=tolerance, every=20, mesh=(2, 2))
    assert found[0].change <= tolerance
    assert found[0].steps % 20 == 0
    bound = span**2 / 2 * (found[0].change + 2 * 2.0**-24 * abs(exact).max())
    assert abs(whole(grid, found) - exact).max() <= bound


# ------------------------------------------------------------------------------------------------- messages and clocks


def times(size, step, links=LINKS, cell=1.0, most=4, grid=None, **options):
    grid = np.zeros((14, 8), np.float32) if grid is None else grid
    found = run(size, step, grid, links, most=most, every=1000, cell=cell, **options)
    return max(found.report.seconds) / most, found


@pytest.mark.parametrize("size", [2, 3, 6])
def test_messages_in_a_row(size):
    message = LINKS.seconds(4 * 8)
    for step, count in ((halo.even_odd, 4 if size > 2 else 2), (both_ways, 2)):
        assert times(size, step)[0] == pytest.approx(12 // size * 6 + count * message)
    assert times(size, halo.one_after_another, most=1)[0] == pytest.approx(12 // size * 6 + 2 * (size - 1) * message)


@pytest.mark.parametrize("mesh, width", [((3, 1), 1), ((3, 1), 2), ((3, 1), 4), ((3, 3), 1), ((3, 3), 3)])
def test_clocks_and_bytes_are_those_of_the_model(mesh, width):
    grid, size = np.zeros((14, 14), np.float32), mesh[0] * mesh[1]
    per_step, found = times(size, wide, grid=grid, most=2 * width, mesh=mesh, halo=width)
    assert per_step == pytest.approx(halo.seconds(12, 12, mesh, LINKS, 1.0, width))
    middle = size // 2  # has neighbours on all sides
    sent = sum(nbytes for (source, _), nbytes in found.report.nbytes.items() if source == middle)
    assert sent == 2 * halo.halo_bytes(12, 12, mesh, width)


def test_clocks_and_bytes_in_space():
    grid = np.zeros((14, 14, 6), np.float32)
    for mesh in ((3, 1), (3, 3)):
        per_step, found = times(mesh[0] * mesh[1], both_ways, grid=grid, most=1, mesh=mesh)
        assert per_step == pytest.approx(halo.seconds(12, 12, mesh, LINKS, 1.0, depth=4))
        sent = sum(nbytes for (source, _), nbytes in found.report.nbytes.items() if source == mesh[0] * mesh[1] // 2)
        assert sent == halo.halo_bytes(12, 12, mesh, depth=4)


@pytest.mark.parametrize("cell", [0.1, 10.0])
@pytest.mark.parametrize("mesh", [(3, 1), (3, 3)])
def test_overlapped_clocks_are_those_of_the_model(mesh, cell):
    grid = np.zeros((14, 14), np.float32)
    per_step, _ = times(mesh[0] * mesh[1], overlapped, grid=grid, cell=cell, mesh=mesh)
    assert per_step == pytest.approx(halo.seconds(12, 12, mesh, LINKS, cell, overlap=True))


def test_spans_show_that_the_border_travels_while_the_rest_is_computed():
    _, found = times(3, overlapped, cell=2.0, most=1)
    border, exchanged, inside = found[1].spans
    assert (border.kind, exchanged.kind, inside.kind) == ("border", "exchange", "inside")
    assert border.end == inside.begin == exchanged.begin
    assert inside.end == border.end + 2.0 * 2 * 6
    _, found = times(3, both_ways, cell=2.0, most=1)
    inside, exchanged = found[1].spans
    assert inside.end == exchanged.begin


def test_one_sided_puts_and_signals():
    report = times(3, one_sided, most=4)[1].report
    assert report.kinds["write"][:2] == (16, 16)
    assert report.kinds["signal"][1] == 16
    assert "send" not in report.kinds


def test_until_never_puts_a_clock_back():
    def step(group):
        parallel.work(2.0)
        simulated.until(1.0)
        return simulated.clock()

    assert parallel.ranks(1, step, links=LINKS) == [2.0]
    assert simulated.clock() == 0.0


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "options, said",
    [
        ({"mesh": (3, 1)}, r"mesh must have a place for each of the 2 ranks, was \(3, 1\)"),
        ({"halo": 7, "step": wide}, "halo must be at most as wide as the smallest part, 6 cells, was 7"),
        ({"halo": 2}, "halo must be 1 for both_ways"),
        ({"step": print}, "step must be one of one_after_another, even_odd"),
        ({"step": one_sided, "mesh": (1, 2)}, r"mesh must have one column for one_sided.*was \(1, 2\)"),
        (
            {"grid": np.zeros((2, 5), np.float32)},
            r"grid must have at least 3 cells along each axis, had.* \(2, 5\)",
        ),
        ({"grid": np.zeros((5, 5))}, "grid must be a NumPy array of float32 with 2 or 3 dimensions, was float64"),
        ({"grid": np.full((5, 5), np.nan, np.float32)}, "grid must have finite numbers of at most"),
        ({"grid": np.full((5, 5), 3e38, np.float32)}, "grid must have finite numbers of at most"),
        ({"every": 0}, "every must be"),
        ({"tolerance": -1.0}, "tolerance must not be negative, was -1.0"),
        ({"cell": -1.0}, "cell must not be negative, was -1.0"),
    ],
    ids=lambda one: str(one)[:40] if isinstance(one, str) else "",
)
def test_refused(options, said):
    grid, step = options.pop("grid", PLATE), options.pop("step", both_ways)
    with pytest.raises((ValueError, TypeError), match=said):
        run(2, step, grid, most=2, **options)


def test_more_ranks_than_rows_are_refused():
    with pytest.raises(ValueError, match="halo must be at most as wide as the smallest part, 0 cells, was 1"):
        run(3, both_ways, np.zeros((4, 9), np.float32))


def test_a_part_knows_its_place():
    def step(group):
        part = Part(group, PLATE, (2, 2), 2)
        return part.place, (part.rows, part.columns), part.pad, part.peers

    assert parallel.ranks(4, step)[3] == ((7, 5), (7, 5), (2, 1, 2, 1), (1, None, 2, None))
