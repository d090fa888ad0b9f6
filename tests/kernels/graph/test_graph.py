"""Graph: levels, arguments, every path of each rung, and its counters against counts done by hand."""

import itertools
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import graph as subject
from pmpp.kernels.graph import graphs, sets, workloads
from pmpp.kernels.graph import ladder as room
from pmpp.kernels.graph.by_launches import levels_by_launches
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from tests.kernels.graph.wrong import RIGHT
from tests.kernels.graph.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import hazards, misaligned, name_of, observe, watch

BLOCK, TILE, INPUTS = room.BLOCK, room.TILE, room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0, np.dtype(np.int32))


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        if found := judge.faults(function, arguments, lambda result, given=arguments: right(result, *given)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_scipys(name):
    sparse = pytest.importorskip("scipy.sparse")
    starts, neighbours, *more = INPUTS[name]
    matrix = sparse.csr_array((np.ones(neighbours.size), neighbours, starts), shape=(starts.size - 1, starts.size - 1))
    far = sparse.csgraph.dijkstra(matrix, unweighted=True, indices=more[0] if more else 0)
    np.testing.assert_array_equal(room.reference(*INPUTS[name]), np.where(np.isinf(far), -1, far))


@each_rung
@hypothesis.given(
    vertices=st.sampled_from([1, 2, 31, 33, 256, 300]),
    edges=st.sampled_from([0, 1, 40, 400, 1300]),
    one_way=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=5)
def test_any_graph(rung, vertices, edges, one_way, wide, seed):
    rng = np.random.default_rng(seed)
    tails, heads = rng.integers(0, vertices, (2, edges))
    source, dtype = int(rng.integers(vertices)), np.int64 if wide else np.int32
    if one_way:
        arguments = graphs.directed(tails, heads, vertices, source, dtype)
    else:
        arguments = *graphs.both_ways(tails, heads, vertices, dtype), source
    assert right(device.to_host(rung(*arguments)), *arguments)


@each_rung
def test_arrays_may_begin_anywhere(rung):
    starts, neighbours, source, in_starts, in_neighbours = arguments = INPUTS["one way, by chance"]
    given = [misaligned(x, offset) for x, offset in ((starts, 1), (neighbours, 3), (in_starts, 2), (in_neighbours, 1))]
    out = misaligned(np.zeros(700, np.int32), 1)
    assert rung(given[0], given[1], source, given[2], given[3], out=out) is out
    assert right(device.to_host(out), *arguments)


# --------------------------------------------------------------------------------------- every path, on every grid


@pytest.mark.parametrize("grid", [1, 3])
def test_other_grids(grid, monkeypatch):
    """One block has several tiles, and its list overflows; three blocks meet wherever there would be one or many."""
    monkeypatch.setattr(room, "grid_for", lambda *_: grid)
    hub = *graphs.both_ways(np.zeros(5000, np.int32), np.arange(1, 5001), 5001), 7
    for arguments in (hub, INPUTS["one way, by chance"], INPUTS["edges fill a tile +1"], INPUTS["a path one way"]):
        for rung in (room.balanced, room.marked, room.direction_optimising):
            assert right(device.to_host(rung(*arguments)), *arguments)


def test_a_block_of_privatised_whose_list_is_full():
    hub = graphs.compressed(np.zeros(room.HELD + 60, np.int32), np.arange(1, room.HELD + 61), room.HELD + 61)
    assert right(device.to_host(room.privatised(*hub)), *hub)


LISTS, SETS, PULLS = (0, 0, 0), (10**9, 10**9, 0), (10**9, 10**9, 10**9)  # of OF_LEFT, OF_VERTICES and OF_PULLED


def turn(monkeypatch, turns):
    for name, value in zip(("OF_LEFT", "OF_VERTICES", "OF_PULLED"), turns, strict=True):
        monkeypatch.setattr(room, name, value)


@pytest.mark.parametrize("turns", [LISTS, SETS, PULLS, (10**9, 1, 0)], ids=["lists", "sets", "pulls", "to and fro"])
def test_whenever_it_turns(turns, monkeypatch):
    turn(monkeypatch, turns)
    names = ("one way, by chance", "a hub, from a leaf", "two parts", "a path one way", "power law, starts of 64 bits")
    for arguments in map(INPUTS.get, names):
        result, reports = watch(room.direction_optimising, *arguments)
        assert hazards(reports) == []
        assert right(device.to_host(result), *arguments)


@pytest.mark.parametrize("behind", [-15, -14, 0, 1, 2, 33])
def test_a_parent_at_the_end_of_a_long_list(behind, monkeypatch):
    """The source has the largest number, so it comes last in the list of its one neighbour."""
    turn(monkeypatch, PULLS)
    n = 1 + sets.FEW + behind
    arguments = *graphs.both_ways(np.zeros(n, np.int32), np.arange(1, n + 1), n + 1), n
    assert right(device.to_host(room.direction_optimising(*arguments)), *arguments)


@pytest.mark.parametrize("degree", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("turns", [LISTS, SETS], ids=["lists", "sets"])
def test_a_piece_of_a_warp_ends_anywhere(degree, turns, monkeypatch):
    """The source leads to 300 vertices, and each of these to a few behind. A warp's piece has whole lists and parts."""
    monkeypatch.setattr(room, "grid_for", lambda *_: 1)
    turn(monkeypatch, turns)
    tails = np.append(np.zeros(300, np.int64), np.repeat(np.arange(1, 301), degree))
    heads = np.append(np.arange(1, 301), 301 + np.arange(300 * degree) * 7 % 900)
    arguments = graphs.directed(tails, heads, 1201)
    assert right(device.to_host(room.direction_optimising(*arguments)), *arguments)


def test_who_has_no_edge_coming_in_is_no_parent(monkeypatch):
    """Nobody finds vertex 0, which leads to all others. Who pulls must not take it for one that has a level."""
    turn(monkeypatch, PULLS)
    tails, heads = np.append(np.zeros(70, np.int64), np.arange(1, 8)), np.append(np.arange(1, 71), np.arange(2, 9))
    arguments = graphs.directed(tails, heads, 71, source=1)
    assert right(device.to_host(room.direction_optimising(*arguments)), *arguments)


def test_the_plain_function():
    arguments = INPUTS["one way, by chance"]
    assert right(device.to_host(subject.levels(*arguments)), *arguments)


@each_rung
def test_out_and_stream(rung):
    arguments, stream = INPUTS["a hub, from a leaf"], cuda.stream()
    out = device.to_device(np.full(301, 77, np.int32))
    sent = *map(device.to_device, arguments[:2]), arguments[2]
    assert rung(*sent, out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), *arguments)


def test_a_grid_is_no_larger_than_a_gpu_holds():
    limits = device.limits()
    most = limits["multiprocessors"] * limits["max_threads_per_multiprocessor"] // BLOCK
    assert room.grid_for(10**6) == min(most, limits["multiprocessors"] * room.RESIDENT)
    assert room.grid_for(10**6, limits["max_shared_memory_per_multiprocessor"] // 2) == limits["multiprocessors"]
    assert (room.grid_for(0), room.grid_for(5)) == (1, 5)


def test_by_launches():
    for name in ("one vertex", "no edges", "a path, from its end", "two parts", "a block of vertices +1"):
        assert right(device.to_host(levels_by_launches(*INPUTS[name])), *INPUTS[name]), name
    stream = cuda.stream()
    arguments = INPUTS["everyone knows everyone"]
    assert right(device.to_host(levels_by_launches(*arguments, stream=stream)), *arguments)


# ------------------------------------------------------------------------------------------------------------ bad input

S, N = np.int32([0, 1, 2]), np.int32([1, 0])
BAD = {
    "starts of float32": ((S.astype(np.float32), N), {}, TypeError, "starts must be int32 or int64, was float32"),
    "starts of one element": ((S[:1], N), {}, ValueError, "starts must have at least 2 elements, .* had 1"),
    "starts in a matrix": ((S[None], N), {}, ValueError, "starts must have 1 dimension, had 2"),
    "neighbours of int64": ((S, N.astype(np.int64)), {}, TypeError, "neighbours must be int32, was int64"),
    "every other neighbour": ((S, np.int32([1, 0, 1, 0])[::2]), {}, ValueError, "neighbours must be contiguous"),
    "a source behind the last vertex": ((S, N, 2), {}, ValueError, "source must be from 0 to 1, was 2"),
    "a source of float": ((S, N, 1.0), {}, TypeError, "source must be an integer, was 1.0"),
    "in_starts alone": ((S, N, 0, S), {}, TypeError, "in_starts must be given together with in_neighb.*, had"),
    "in_neighbours alone": (
        (S, N),
        {"in_neighbours": N},
        TypeError,
        r"in_neighbours must be given together with in_starts, had \(2,\)",
    ),
    "in_starts of another dtype": (
        (S, N, 0, S.astype(np.int64), N),
        {},
        TypeError,
        "in_starts must be int32, was int64",
    ),
    "in_starts of other vertices": ((S, N, 0, S[:2], N), {}, ValueError, r"in_starts must have shape \(3,\)"),
    "other edges come in": ((S, N, 0, S, N[:1]), {}, ValueError, r"in_neighbours must have shape \(2,\), had \(1,\)"),
    "a neighbour behind the last vertex": (
        (S, np.int32([1, 7])),
        {},
        ValueError,
        "neighbours must be from 0 to 1, for 2 vertices, was 7 at 1",
    ),
    "a neighbour before the first vertex": ((S, N, 0, S, -N), {}, ValueError, "^in_neighbours must be .*, was -1 at 0"),
    "starts that fall": ((np.int32([0, 2, 1, 2]), N), {}, ValueError, "^starts must never fall, was 2 at 1 and then 1"),
    "starts of more edges": (
        (S, N, 0, S + 1, N),
        {},
        ValueError,
        "^in_starts must be from 0 to 2, the length of in_neighbours, was from 1 to 3",
    ),
    "out on the host": ((S, N), {"out": np.zeros(2, np.int32)}, TypeError, "out must be a device array"),
    "no stream": ((S, N), {"stream": "x"}, TypeError, "stream must be"),
    "an unknown word": ((S, N), {"sources": 0}, TypeError, "did you mean 'source'"),
}


@pytest.mark.parametrize(
    ("tails", "heads", "error", "words"),
    [
        ([0, 1], [5, 0], ValueError, "heads must be from 0 to 2, for vertices=3, was 5 at 0"),
        ([3, 0], [0, 0], ValueError, "tails must be from 0 to 2, for vertices=3, was 3 at 0"),
        ([0, -1], [0, 0], ValueError, "tails must be from 0 to 2, for vertices=3, was -1 at 1"),
        ([0.5], [1], TypeError, "tails must be integers, were float64"),
        ([0, 1], [1], ValueError, r"heads must have the shape of tails, \(2,\), had \(1,\)"),
        ([[0, 1]], [[1, 0]], ValueError, r"tails must have one dimension, had shape \(1, 2\)"),
        (0, 1, ValueError, r"tails must have one dimension, had shape \(\)"),
    ],
)
@pytest.mark.parametrize("make", [graphs.compressed, graphs.both_ways])
def test_edges_of_no_graph(make, tails, heads, error, words):
    with pytest.raises(error, match=words):
        make(tails, heads, 3)


@pytest.mark.parametrize("make", [graphs.compressed, graphs.both_ways])
def test_vertices_and_starts_of_another_kind(make):
    with pytest.raises(TypeError, match=r"vertices must be an integer, was 2\.5"):
        make([0], [1], 2.5)
    with pytest.raises(ValueError, match="vertices must be from 0 to 2147483647, was -1"):
        make([], [], -1)
    with pytest.raises(TypeError, match=r"dtype must be int32 or int64, was .*uint8"):
        make([0], [1], 2, np.uint8)


def test_starts_of_int32_for_too_many_edges():
    """As with CuPy: what the ends hold is not looked at, so 2^31 of them need no memory here."""
    many = types.SimpleNamespace(size=2**31, ndim=1, shape=(2**31,), dtype=np.dtype(np.int32))
    with pytest.raises(ValueError, match=r"dtype must be int64 for 2\^31 edges or more, was int32 for 2147483648"):
        graphs.compressed(many, many, 1, arrays=types.SimpleNamespace(asarray=lambda ends: ends))


@pytest.mark.parametrize("make", [graphs.compressed, graphs.both_ways])
def test_no_edges(make):
    assert [part.tolist() for part in make([], [], 2)] == [[0, 0, 0], []]


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.frontier(*arguments, **options)


def test_out_of_another_kind_or_where_neighbours_are():
    with pytest.raises(ValueError, match=r"out must have shape \(2,\), had \(3,\)"):
        room.frontier(S, N, out=device.empty(3, np.int32))
    with pytest.raises(TypeError, match="out must be int32, was int64"):
        room.frontier(S, N, out=device.empty(2, np.int64))
    neighbours = device.to_device(N)
    with pytest.raises(ValueError, match=r"out .* neighbours"):
        room.frontier(S, neighbours, out=neighbours)
    with pytest.raises(ValueError, match=r"out .* in_neighbours"):
        room.frontier(S, N, 0, S, neighbours, out=neighbours)


@interpreter_only
def test_a_neighbour_outside_is_found_in_the_interpreter():
    for wrong in (2, -1):
        _, reports = watch(room.balanced, S, device.to_device(np.int32([1, wrong])))  # NumPy's would be checked
        assert "out of bounds" in hazards(reports) or wrong == -1


# ------------------------------------------------------------------------------------------------------------- counters
#
# A vertex in the middle of 255 others, from which the search begins: 510 edges. In level 0 the thread of the middle
# finds all, and in level 1 the others look back at the middle in vain.

STAR = graphs.both_ways(np.zeros(255, np.int32), np.arange(1, 256), 256)
EDGES, VERTICES = 510, 256
MEET = 8 * BLOCK  # bytes of the count that each thread reads when the grid has met


def counters_of(rung, arguments=STAR):
    result, reports = observe(rung, *arguments)
    assert right(result, *arguments)
    launches = {
        room.by_edge: 3,
        room.balanced: 1,
        room.marked: 1,
        room.direction_optimising: 1,
    }  # others: to begin, and all levels
    assert len(reports) == launches.get(rung, 2)
    return reports[-1].counters


@interpreter_only
def test_counters_of_by_vertex():
    found = counters_of(room.by_vertex)
    own = 2 * 4 * VERTICES  # each looks at its level, in both rounds
    assert found["global_load_bytes"] == own + 8 * VERTICES + 8 * EDGES + 2 * MEET
    assert found["atomic_lanes"] == 255 + 1  # one tells that something was found


@interpreter_only
def test_counters_of_pulled():
    found = counters_of(room.pulled)
    # In the first round the others read where their lists start, their one neighbour and its level.
    assert found["global_load_bytes"] == 2 * 4 * VERTICES + 255 * (8 + 8) + 2 * MEET
    assert found["atomic_lanes"] == 255 + 1


@interpreter_only
def test_counters_of_by_edge():
    found = counters_of(room.by_edge)
    # In both rounds each edge's tail and its level; and once for each edge its head and its level.
    assert found["global_load_bytes"] == 2 * 8 * EDGES + 8 * EDGES + 2 * MEET
    assert found["atomic_lanes"] == 255 + 1


@interpreter_only
def test_counters_of_frontier_and_privatised():
    read = (4 + 8) * VERTICES + 8 * EDGES + 2 * MEET  # each vertex and where its list starts; each edge and a level
    found = counters_of(room.frontier)
    assert found["global_load_bytes"] == read
    assert found["atomic_lanes"] == 2 * 255  # for a level, and for a place
    found = counters_of(room.privatised)
    assert found["global_load_bytes"] == read
    assert found["atomic_lanes"] == 2 * 255 + 2  # the places in shared memory; a place in the list in each level
    assert found["shared_store_requests"] >= 255  # one after another, by the thread of the middle


@interpreter_only
def test_counters_of_balanced():
    found = counters_of(room.balanced)
    # The 255 edges of the middle are eight requests of a warp, and not 255 of one lane.
    assert found["global_load_requests"] < 0.6 * counters_of(room.frontier)["global_load_requests"]
    assert found["atomic_lanes"] == 2 * 255 + 1  # for a level and for a place in shared memory; a place for all


@interpreter_only
def test_counters_of_marked_and_of_who_pulls():
    # A bit for each of those that are found. They are 32 edges of eight warps, and each of these takes places once.
    assert counters_of(room.marked)["atomic_lanes"] == 255 + 8
    # The middle has all edges that lead on, so the others pull at once. Nobody writes what another one does.
    assert counters_of(room.direction_optimising)["atomic_lanes"] == 1  # what the block has found


@interpreter_only
def test_who_pulls_reads_less():
    """Everybody knows everybody: 48 lists of 47, of which the first is enough."""
    arguments = INPUTS["everyone knows everyone"]
    pushed, both = counters_of(room.balanced, arguments), counters_of(room.direction_optimising, arguments)
    assert both["global_load_bytes"] < 0.7 * pushed["global_load_bytes"]


# -------------------------------------------------------------------------------------------- graphs, and the measured


def test_compressed_rows_are_scipys():
    sparse = pytest.importorskip("scipy.sparse")
    tails, heads = np.random.default_rng(3).integers(0, 30, (2, 200))
    starts, neighbours = graphs.compressed(tails, heads, 30)
    expected = sparse.csr_array((np.ones(200), (tails, heads)), shape=(30, 30))
    found = sparse.csr_array((np.ones(200), neighbours, starts), shape=(30, 30))
    np.testing.assert_array_equal(found.toarray(), expected.toarray())
    assert all((np.diff(neighbours[a:b]) >= 0).all() for a, b in itertools.pairwise(starts))


def test_rmat_draws_what_it_should():
    tails, heads = graphs.edges_rmat(12, 16)
    assert (tails.dtype, heads.dtype, tails.size) == (np.int32, np.int32, 16 * 2**12)
    again, other = graphs.edges_rmat(12, 16), graphs.edges_rmat(12, 16, seed=46)
    np.testing.assert_array_equal(tails, again[0])
    assert (tails != other[0]).any()
    # Before vertices get new numbers, the quarter that an edge lies in is drawn with the probabilities of the model.
    renamed = np.argsort(np.argsort(graphs.mixed(np.arange(2**12, dtype=np.uint64), 45_999)))
    number = np.empty(2**12, np.int64)
    number[np.argsort(graphs.mixed(np.arange(2**12, dtype=np.uint64), 45_999))] = np.arange(2**12)
    assert renamed.size == number.size
    first = (number[tails] >> 11) * 2 + (number[heads] >> 11)
    share = np.bincount(first, minlength=4) / tails.size
    np.testing.assert_allclose(share, [0.57, 0.19, 0.19, 0.05], atol=4 * 0.5 / np.sqrt(tails.size))


def test_the_library_imports_what_it_imports():
    names, tails, heads = graphs.imports()
    edges = {(names[a], names[b]) for a, b in zip(tails, heads, strict=True)}
    assert {("tempfile", "os"), ("random", "math"), ("json", "codecs")} <= edges
    assert all(a != b for a, b in edges)


def test_the_workloads_are_verified_by_another_way():
    for make in (lambda: workloads.rmat(8, 1), lambda: workloads.grid(9, 1), lambda: workloads.hub(300, 1)):
        inputs = make()
        result = device.to_host(room.frontier(*inputs))
        given = [view(one) for one in inputs]
        assert workloads.verify(result, *given) == (0, 0)
        np.testing.assert_array_equal(workloads.searched_by_scipy(*workloads.on_host(*inputs)), result)
        for v in np.flatnonzero(result >= 0)[:3]:
            for wrong in (result[v] + 1, result[v] - 1, -1):
                other = result.copy()
                other[v] = wrong
                assert workloads.verify(other, *given)[0] > 0


def test_costs_name_the_graphs_that_are_measured():
    sizes = {"path": workloads.path(workloads.LENGTH, 1), "R-MAT": workloads.rmat(10, 1)}
    for one in workloads.WORKLOADS:
        if one.family == "path" or one.name == "scale 10":
            starts, neighbours, _ = sizes[one.family]
            assert one.sizes == {"vertices": starts.size - 1, "edges": neighbours.size}


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [room.by_edge, *room.LADDER[-3:]], ids=lambda rung: rung.name)
def test_more_edges_than_31_bits_count(rung):
    """A vertex with 2^31 loops, and behind them an edge to another one."""
    cupy = pytest.importorskip("cupy")
    loops = 2**31
    if cupy.cuda.runtime.memGetInfo()[0] < 12 * loops:
        pytest.skip("too little memory")
    neighbours = cupy.zeros(loops + 1, np.int32)
    neighbours[-1] = 1
    starts = cupy.asarray([0, loops + 1, loops + 1, loops + 1], np.int64)
    turned = cupy.asarray([0, loops, loops + 1, loops + 1], np.int64), cupy.zeros(loops + 1, np.int32)
    assert device.to_host(rung(starts, neighbours, 0, *turned)).tolist() == [0, 1, -1]
