"""Shortest paths: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import wavefront as subject
from pmpp.kernels.wavefront import roofs, shortest_paths_workloads
from pmpp.kernels.wavefront import shortest_paths as room
from pmpp.runtime import device
from tests.kernels.wavefront.wrong_shortest_paths import RIGHT
from tests.kernels.wavefront.wrong_shortest_paths import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS, SIDE, STEP, WIDE = room.inputs(), room.SIDE, room.STEP, room.WIDE
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")
DECISIVE = ("two, one way", "a tile and one", "weights below 0", "loops, NaN, and overflow", "a path")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, weights):
    return judge.right(result, room.reference(weights), room.tolerance(weights))


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for name in DECISIVE:
        [weights] = INPUTS[name]
        if found := judge.faults(function, (weights,), lambda result, weights=weights: right(result, weights)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("no vertex", "loops, NaN, and overflow")])
def test_the_reference_is_scipys(name):
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    [weights] = INPUTS[name]
    expected = csgraph.shortest_path(csgraph.csgraph_from_dense(weights.astype(np.float64), np.inf), "FW")
    np.testing.assert_allclose(room.reference(weights), expected, rtol=1e-12, atol=1e-12)


@each_rung
@hypothesis.given(
    n=st.sampled_from([3, SIDE + 2, STEP, STEP + 1, 2 * SIDE + 5]),
    edges=st.sampled_from([0.5, 2, 30]),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=2)
def test_any_graph(rung, n, edges, offset, seed):
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random((n, n)) < edges / n, rng.random((n, n)), np.inf).astype(np.float32)
    assert right(device.to_host(rung(misaligned(weights, offset))), weights)


def beyond_a_tile():
    """A graph for two tiles of 128, of which the last has one row and one column."""
    rng = np.random.default_rng(1)
    weights = np.where(rng.random((WIDE + 1, WIDE + 1)) < 0.03, rng.random((WIDE + 1, WIDE + 1)), np.inf)
    return weights.astype(np.float32)


@each_rung
def test_a_cycle_below_0_is_seen_on_the_diagonal(rung):
    weights = np.full((40, 40), np.inf, np.float32)
    weights[3, 35], weights[35, 3] = 1, -2
    diagonal = device.to_host(rung(weights)).diagonal()
    assert (diagonal < 0).nonzero()[0].tolist() == [3, 35]


@each_rung
def test_out_and_stream(rung):
    [weights] = INPUTS["a tile and one"]
    out, stream = device.to_device(np.full(weights.shape, np.nan, np.float32)), cuda.stream()
    assert rung(device.to_device(weights), out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), weights)


# ------------------------------------------------------------------------------------------------------------ bad input

W = np.zeros((3, 3), np.float32)
BAD = {
    "weights of float64": ((W.astype(float),), {}, TypeError, "weights must be float32, was float64"),
    "a vector": ((W[0],), {}, ValueError, "weights must have 2 dimensions, had 1"),
    "more columns": ((W[:2],), {}, ValueError, r"weights must have as many columns as rows, had shape \(2, 3\)"),
    "out of another shape": ((W,), {"out": device.empty(3, np.float32)}, ValueError, r"out must have shape \(3, 3\)"),
    "an unknown word": ((W,), {"weight": W}, TypeError, "did you mean 'weights'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.in_pieces(*arguments, **options)


def test_out_where_the_weights_are():
    weights = device.to_device(W)
    with pytest.raises(ValueError, match="out must share no memory with weights"):
        room.by_vertex(weights, out=weights)


# ------------------------------------------------------------------------------------------------------------- counters


def counters_of(rung, n):
    rng = np.random.default_rng(4)
    weights = rng.random((n, n), dtype=np.float32)
    result, reports = observe(rung, weights)
    assert right(result, weights)
    return [report for report in reports if report.kernel != "edges_kernel"]


@interpreter_only
def test_counters_of_by_vertex():
    n = 20
    reports = counters_of(room.by_vertex, n)
    assert len(reports) == n
    elements = n * (n - 1) ** 2  # in each launch all but a row and a column
    assert total(reports, "global_load_bytes") == 3 * 4 * elements
    assert total(reports, "global_store_bytes") == 4 * elements


@interpreter_only
def test_counters_of_blocked():
    n = 2 * SIDE
    reports = counters_of(room.blocked, n)
    assert [report.kernel for report in reports] == ["pivot_kernel", "panels_kernel", "rest_kernel"] * 2
    # In each round the tile on the diagonal, a tile of its row, one of its column, and one of the rest.
    assert total(reports, "global_store_bytes") == 2 * 4 * 4 * SIDE**2
    rest = [report for report in reports if report.kernel == "rest_kernel"]
    assert total(rest, "global_load_bytes") == 2 * 3 * 4 * SIDE**2
    assert total(rest, "shared_load_requests") == 2 * 2 * SIDE * SIDE**2 // 32  # two loads for each addition
    assert total(rest, "flops") >= 2 * SIDE**3


@interpreter_only
def test_counters_of_in_pieces():
    """Two tiles of 128 a side, and three rounds: of 64 vertices, of 64, and of one."""
    weights = beyond_a_tile()
    result, reports = observe(room.in_pieces, weights)
    assert right(result, weights)
    kernels = ["wide_pivot_kernel", "wide_panels_kernel", "wide_rest_kernel"]
    assert [report.kernel for report in reports] == ["edges_kernel", *kernels * 3]
    rest = [report for report in reports if report.kernel == "wide_rest_kernel"]
    loads = 2 * room.WIDE_EACH * STEP * room.THREADS**2 // 32  # eight from each side for 64 additions
    assert total(rest, "shared_load_requests") == 3 * 4 * loads
    stored = [(WIDE + 1 - pivots) ** 2 for pivots in (STEP, STEP, 1)]  # the pivot's rows and columns are complete
    assert total(rest, "global_store_bytes") == 4 * sum(stored)


@interpreter_only
@pytest.mark.parametrize(
    ("n", "first"), [(32, "pivot"), (33, "wide_pivot"), (64, "wide_pivot"), (65, "whole_pivot"), (129, "pivot")]
)
def test_the_plain_function_takes_the_tile_that_fits(n, first):
    weights = np.random.default_rng(n).random((n, n), dtype=np.float32)
    result, reports = observe(subject.distances, weights)
    assert right(result, weights)
    assert reports[1].kernel == f"{first}_kernel"


@interpreter_only
def test_counters_of_by_fours():
    """Two tiles a side: in each of two rounds the pivot, a tile of its row, one of its column, and one of the rest."""
    weights = beyond_a_tile()
    result, reports = observe(room.by_fours, weights)
    assert right(result, weights)
    kernels = ["whole_pivot_kernel", "by_fours_kernel", "by_fours_kernel"]
    assert [report.kernel for report in reports] == ["edges_kernel", *kernels, *kernels, "cut_kernel"]
    tiles = [report for report in reports if report.kernel == "by_fours_kernel"]
    loads = 4 * WIDE * 256 // 32  # two of four numbers from each side, for each vertex, of 256 threads
    assert total(tiles, "shared_load_requests") == 2 * 3 * loads
    assert total(tiles, "global_store_bytes") == 2 * 3 * 4 * WIDE**2
    assert total(tiles, "global_load_bytes") == 2 * 3 * 3 * 4 * WIDE**2  # itself and both sides


def test_an_out_that_begins_anywhere_is_filled_from_scratch_memory():
    """Loads of four numbers need an address that is a multiple of 16: the matrix is made elsewhere, and copied."""
    weights = np.random.default_rng(2).random((WIDE, WIDE), dtype=np.float32)
    out = device.empty(WIDE * WIDE + 1, np.float32)[1:].reshape(WIDE, WIDE)
    assert device.address(out) % 16
    assert room.by_fours(weights, out=out) is out
    assert right(device.to_host(out), weights)


# --------------------------------------------------------------------------------------------------------- the measured


def test_the_roof_computes_what_it_says():
    made = device.to_device(np.zeros((roofs.CHAINS, 32), np.float32))
    roofs.add_min_kernel[1, 32](made, roofs.ADD_MIN[0], np.float32(100), 3)
    start = np.arange(256).reshape(32, roofs.CHAINS).T
    np.testing.assert_array_equal(device.to_host(made), np.minimum(start + 3 * roofs.UNROLLED, 100))


def test_the_workloads_are_verified_by_another_way():
    [weights] = INPUTS["two parts"]
    [found] = {shortest_paths_workloads.distances_from(weights, start).tobytes() for start in (3,)}
    np.testing.assert_allclose(np.frombuffer(found), room.reference(weights)[3], rtol=1e-12)


@pytest.mark.gpu
@each_rung
def test_torch_agrees(rung):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    n = 1000
    weights = shortest_paths_workloads.drawn(n, 1)
    expected = shortest_paths_workloads.by_torch(
        torch, torch.as_tensor(weights, device="cuda"), torch.empty((n, n), device="cuda")
    )
    found, expected = cupy.asarray(rung(weights)), cupy.asarray(expected)
    assert bool((cupy.isinf(found) == cupy.isinf(expected)).all())
    finite = cupy.isfinite(expected)
    assert float(abs(found[finite] - expected[finite]).max()) <= 2 * n * 2.0**-24 * float(expected[finite].max())
