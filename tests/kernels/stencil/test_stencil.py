"""Stencil: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import stencil as subject
from pmpp.kernels.stencil import ladder as room
from pmpp.kernels.stencil import walks, workloads
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from tests.kernels.stencil.wrong import RIGHT
from tests.kernels.stencil.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
WEIGHTS = workloads.WEIGHTS
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of a grid that begins between multiples of 16 bytes."""
    x, coefficients = normal(18, 132), WEIGHTS[:3]
    for offset in (1, 2):
        given = misaligned(x, offset), coefficients, 3
        if found := judge.faults(function, given, lambda result: right(result, x, coefficients, 3)):
            return found
    return []


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """Beyond the room's inputs, on which tests/contract/test_rooms.py checks every rung."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def test_the_kernel_that_the_wrong_ones_were_made_of_is_right():
    assert faults(RIGHT[0]) == []


@hypothesis.settings(max_examples=8, deadline=None, database=None)
@hypothesis.given(st.data())
def test_any_shape_order_and_number_of_steps(data):
    ndim = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(0, 12 if ndim == 3 else 40)) for _ in range(ndim))
    order, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal(shape, dtype=np.float32)
    for rung in room.LADDER:
        assert right(device.to_host(rung(x, WEIGHTS[: order + 1], steps)), x, WEIGHTS[: order + 1], steps)


@pytest.mark.parametrize(("shape", "order"), [((9, 14), 1), ((12, 13), 4), ((7, 6, 8), 2)])
def test_the_reference_agrees_with_scipy(shape, order):
    ndimage = pytest.importorskip("scipy.ndimage")
    x = normal(*shape)
    inner = (slice(order, -order),) * x.ndim
    expected = x.astype(np.float64)
    mask = workloads.mask_of(x.ndim, order).astype(np.float64)
    expected[inner] = ndimage.correlate(expected, mask)[inner]
    np.testing.assert_allclose(room.reference(x, WEIGHTS[: order + 1]), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 4])
def test_what_verifies_measurements_agrees_with_the_reference(steps):
    x, weights = normal(20, 21), tuple(float(np.float32(c)) for c in WEIGHTS[:3])
    np.testing.assert_allclose(workloads.stepped(x, weights, 2, steps), room.reference(x, weights, steps), rtol=1e-12)
    result = room.basic(x, WEIGHTS[:3], steps)
    error, allowed = workloads._verify(2, steps)(view(result), view(device.to_device(x)))
    assert error <= allowed


def test_numpys_version_agrees():
    x = normal(20, 21)
    np.testing.assert_allclose(workloads.sliced(x), room.reference(x, WEIGHTS[:2]), atol=1e-5)


@pytest.mark.parametrize("rung", [room.basic, room.temporal], ids=lambda rung: rung.name)
def test_a_field_without_sources_settles(rung):
    """Fixed borders of 0 and 1, and the mean of four neighbours: after many steps the field is a straight line."""
    x = np.zeros((5, 9), np.float32)
    x[:] = np.linspace(0, 1, 9, dtype=np.float32)
    x[1:-1, 1:-1] = 0
    result = device.to_host(rung(x, (0.0, 0.25), 42))
    np.testing.assert_allclose(result[2], np.linspace(0, 1, 9), atol=1e-3)


def test_the_plain_function_and_what_out_returns():
    x, out = normal(6, 8), device.empty((6, 8), np.float32)
    assert subject.sweep(x, (1, 0.5), 3, out=out) is out
    assert right(out.copy_to_host(), x, (1, 0.5), 3)


# ------------------------------------------------------------------------------------------------------------ arguments

X = normal(4, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((X.astype(np.float64), (1, 1)), TypeError, "x must .*float64"),
        ((X[0], (1, 1)), ValueError, "x must .*1"),
        ((X.T, (1, 1)), ValueError, "x must .*contiguous"),
        ((X, (1,)), TypeError, r"coefficients must be .* 2 to 5 numbers.*was \(1,\)"),
        ((X, (1,) * 6), TypeError, "coefficients must be .* 2 to 5 numbers"),
        ((X, 0.5), TypeError, "coefficients must be .*was 0.5"),
        ((X, (1, "a")), TypeError, r"coefficients\[1\] must be a number, was 'a'"),
        ((X, (1, float("nan"))), ValueError, r"coefficients\[1\] must be a finite number, was nan"),
        ((X, (1, 1), 0), ValueError, "steps must be .*was 0"),
        ((X, (1, 1), 1.5), TypeError, "steps must be an integer, was 1.5"),
    ],
)
def test_a_bad_argument_is_named(arguments, error, words):
    with pytest.raises(error, match=words):
        room.basic(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


def loads(rung, shape, order, steps=1):
    """Bytes loaded from global memory for each cell and step."""
    x = normal(*shape)
    _, reports = observe(rung, x, WEIGHTS[: order + 1], steps)
    return total(reports, "global_load_bytes") / x.size / steps / 4, reports


@interpreter_only
def test_loads_of_basic_are_counted_by_hand():
    (h, w), order = (16, 40), 2
    found, reports = loads(room.basic, (h, w), order)
    inner = (h - 2 * order) * (w - 2 * order)
    assert found * h * w == h * w + 4 * order * inner
    # The centre's product, then for each distance three additions, and a multiply-add.
    assert total(reports, "flops") == room.cost(h, w, order=order).flops == inner * (1 + 5 * order)


@interpreter_only
def test_loads_of_tiled_and_coarsened_are_a_tile_with_its_halo():
    _, reports = loads(room.tiled, (8, 8, 8), 1)
    assert total(reports, "global_load_bytes") == 4 * 8**3  # what is outside the grid is not read
    _, reports = loads(room.coarsened, (20, 16, 32), 2)
    assert total(reports, "global_load_bytes") == 4 * 20 * 16 * 32
    assert total(reports, "barriers") == 2 * 20


@interpreter_only
def test_register_tiled_loads_its_cells_and_a_halo_by_vectors():
    _, reports = loads(room.register_tiled, (10, 32, 64), 2)
    # All is one block: of the halo nothing lies inside the grid, and each cell is loaded once.
    assert total(reports, "global_load_bytes") == 4 * 10 * 32 * 64
    assert total(reports, "global_store_bytes") == 4 * 10 * 32 * 64
    assert total(reports, "barriers") == 10


@interpreter_only
def test_in_flight_loads_patches_with_rows_of_others_around():
    _, reports = loads(room.in_flight, (32, 256), 1)
    # Blocks have 16 rows and 128 columns. Each thread loads its four rows and one above and below, and each block the
    # four columns on either side of its rows. Where these are outside the grid, it loads the nearest.
    assert total(reports, "global_load_bytes") == 4 * 256 * 8 * 6 + 4 * 2 * 16 * 16
    assert total(reports, "barriers") == 0


@interpreter_only
def test_in_flight_copies_each_plane_once():
    _, reports = loads(room.in_flight, (10, 16, 64), 2)
    # One block: of its halo, and of the planes in front of its walk, nothing that is outside the grid is loaded.
    assert total(reports, "global_load_bytes") == 4 * 10 * 16 * 64
    assert total(reports, "global_store_bytes") == 4 * 10 * 16 * 64
    assert total(reports, "barriers") == 1 + 6 / 2  # one when the ring is empty, and one for two inner planes


@pytest.mark.parametrize(("shape", "order", "deep"), [((27, 34, 72), 1, 25), ((30, 33, 68), 4, 11), ((4, 5, 8), 2, 1)])
def test_a_walk_of_any_length_is_right(shape, order, deep, monkeypatch):
    """Of two turns and a half; of two blocks, whose last pair is a single plane; and a grid without inner planes."""
    monkeypatch.setattr(room, "walk_planes", lambda shape, order: deep)
    x, weights = normal(*shape), WEIGHTS[: order + 1]
    assert right(device.to_host(room.in_flight(x, weights)), x, weights)


@interpreter_only
def test_where_ten_planes_have_no_room_the_rung_before_does_the_work(monkeypatch):
    small = {**device.limits(), "max_shared_memory_per_multiprocessor": 100 * 1024}  # of compute capability 8.6 and 8.9
    monkeypatch.setattr(device, "limits", lambda: small)
    assert [walks.can_walk(order) for order in (1, 2, 3, 4)] == [True, False, False, False]
    _, walked = loads(room.in_flight, (10, 16, 64), 1)
    _, instead = loads(room.in_flight, (10, 16, 64), 2)
    _, before = loads(room.register_tiled, (10, 16, 64), 2)
    assert walked[0].kernel != instead[0].kernel == before[0].kernel


def test_a_walk_is_so_long_that_rounds_of_blocks_are_full():
    many, wide = walks.TOGETHER * device.limits()["multiprocessors"], 4 * walks.LANES
    assert walks.walk_planes((520, walks.TALL, wide * many), 4) == 512  # all blocks at once, and no plane twice
    assert walks.walk_planes((520, walks.TALL, wide * many // 2), 4) == 256
    assert walks.walk_planes((14, 5, 5), 2) == 10  # with two blocks, either one would load its four planes for five
    assert walks.walk_planes((3, 5, 5), 1) == 1


@interpreter_only
def test_temporal_reads_the_grid_once_for_four_steps():
    shape = (24, 120)
    once, reports = loads(room.temporal, shape, 1, 4)
    every, _ = loads(room.register_tiled, shape, 1, 4)
    assert len(reports) == 1
    assert total(reports, "global_store_bytes") == 4 * 24 * 120
    assert every == 1
    # One warp's strip has all 120 columns. The next warp, which writes nothing, loads 4 columns of halo.
    assert once == (120 + 4) / 120 / 4


@pytest.mark.gpu
@each_rung
def test_another_library_agrees(rung):
    cupy = pytest.importorskip("cupy")
    for shape, order in (((300, 401), 1), ((64, 65, 66), 4)):
        x = cupy.asarray(normal(*shape))
        expected = workloads._cupy(order)(cupy, x, cupy.empty_like(x))
        found = cupy.asarray(rung(x, WEIGHTS[: order + 1]))
        assert float(abs(found - expected).max()) < 1e-4
