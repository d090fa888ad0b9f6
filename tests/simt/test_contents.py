"""What memory holds while a launch runs: changes written out by hand, and a trace that keeps them changes nothing."""

import gc
import weakref

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit
def reverse(x, out):
    part = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = part[31 - t]


@cuda.jit
def total(x, sums):
    i = cuda.grid(1)
    cuda.atomic.add(sums, 0, x[i])
    if i % 2 == 0:
        cuda.atomic.add(sums, 1, x[i])


@cuda.jit
def two_views(x, out):
    floats = cuda.shared.array(0, np.float32)
    words = cuda.shared.array(0, np.int32)
    t = cuda.threadIdx.x
    words[t] = 0
    floats[t] = x[t]
    cuda.syncthreads()
    out[t] = words[t]


@cuda.jit
def leaves(x):
    i = cuda.grid(1)
    if i >= x.size:
        return
    x[i] += 1


@cuda.jit
def neighbour(x):
    i = cuda.grid(1)
    x[i] = x[i + 1]


def floats(n):
    return np.arange(n, dtype=np.float32)


def kept(kernel, grid, block, *args, contents=1024, **options):
    tracing = simt.Tracing(blocks=range(grid), contents=contents)
    return simt.profile(kernel, grid, block, args, level="check", collect=True, trace=tracing, **options)


def changes(contents):
    """Each change as (name, block, {element: value})."""
    for change in contents.changes:
        held = contents.arrays[change.array]
        yield held.name, held.block, dict(zip(change.elements.tolist(), change.values.tolist(), strict=True))


@pytest.mark.parametrize("schedule", [None, "warps"])
def test_a_tile_of_two_blocks(schedule):
    x, out = floats(64), np.full(64, -1, np.float32)
    contents = kept(reverse, 2, 32, x, out, schedule=schedule).trace.contents
    names = [(held.name, held.space, held.block) for held in contents.arrays]
    assert names == [("x", "global", None), ("out", "global", None), ("part", "shared", 0), ("part", "shared", 1)]
    assert [int(held.unset.sum()) for held in contents.arrays] == [0, 0, 32, 32]
    np.testing.assert_array_equal(contents.arrays[1].start, np.full(64, -1))
    found = list(changes(contents))
    for block in range(2):
        (tile,) = [values for name, b, values in found if (name, b) == ("part", block)]
        assert tile == {t: 32.0 * block + t for t in range(32)}
    stored = {e: v for name, _, values in found if name == "out" for e, v in values.items()}
    assert stored == {32 * b + t: 32.0 * b + 31 - t for b in range(2) for t in range(32)}
    assert not [name for name, _, _ in found if name == "x"]


def test_each_request_knows_its_array():
    trace = kept(reverse, 2, 32, floats(64), floats(64)).trace
    places = [(touch.access.variable, touch.access.block, touch.array) for touch in trace.touches()]
    tiles = [("part", 0, 2), ("part", 1, 3)]
    assert places == [("x", 0, 0), ("x", 1, 0), *tiles, *tiles, ("out", 0, 1), ("out", 1, 1)]
    assert [touch.access.sequence for touch in trace.touches()] == [a.sequence for a in trace.accesses()]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_atomics_that_the_machine_postpones_are_seen_at_once(dtype):
    x, sums = np.arange(8, dtype=dtype), np.zeros(3, dtype)
    contents = kept(total, 1, 8, x, sums).trace.contents
    assert list(changes(contents)) == [("sums", None, {0: 28}), ("sums", None, {1: 12})]
    assert sums.tolist() == [28, 12, 0]


def test_shared_memory_through_two_types():
    x, out = floats(4) + 1, np.zeros(4, np.int32)
    contents = kept(two_views, 1, 4, x, out, sharedmem=16).trace.contents
    bits = dict(enumerate(x.view(np.int32).tolist()))
    found = {}
    for name, _, values in changes(contents):
        found.setdefault(name, {}).update(values)
    assert found["floats"] == dict(enumerate(x.tolist()))
    assert found["words"] == bits
    assert found["out"] == bits
    unset = {held.name: int(held.unset.sum()) for held in contents.arrays}
    assert unset == {"x": 0, "out": 0, "words": 4, "floats": 0}  # by the second name it has been written


def test_views_of_one_array():
    whole = cuda.to_device(floats(24).reshape(4, 6))

    @cuda.jit
    def move(a, b):
        i = cuda.threadIdx.x
        a[i, 1] = b[i, 0]

    trace = kept(move, 1, 3, whole[1:, ::2], whole[:3, 3:]).trace
    assert [held.start.shape for held in trace.contents.arrays] == [(3, 3), (3, 3)]
    np.testing.assert_array_equal(trace.contents.arrays[1].start, floats(24).reshape(4, 6)[:3, 3:])
    (load, first, one), (store, second, two) = trace.touches()
    assert one == two  # one allocation
    assert (load.kind, first, store.kind, second) == ("load", 1, "store", 0)
    held = trace.contents.arrays
    assert held[1].elements(load.addresses[load.active], 4).ravel().tolist() == [0, 3, 6]
    assert held[0].elements(store.addresses[store.active], 4).ravel().tolist() == [1, 4, 7]
    assert list(changes(trace.contents)) == [("a", None, {1: 3, 4: 9, 7: 15})]


def test_the_same_view_twice_is_one_array():
    x = cuda.to_device(floats(32))
    assert [held.name for held in kept(reverse, 1, 32, x, x).trace.contents.arrays] == ["x", "part"]


def test_memory_that_nobody_has_set():
    out = cuda.device_array(32, np.float32)
    contents = kept(reverse, 1, 32, floats(32), out).trace.contents
    assert {held.name: bool(held.unset.all()) for held in contents.arrays} == {"x": False, "out": True, "part": True}


def test_who_has_returned():
    contents = kept(leaves, 2, 32, np.zeros(40, np.int32)).trace.contents
    ((_, rows),) = contents.returned
    assert {block: np.flatnonzero(bits).tolist() for block, bits in rows.items()} == {0: [], 1: list(range(8, 32))}


def test_hazards_have_their_moment():
    trace = kept(neighbour, 1, 64, floats(64)).trace
    at = {hazard.kind: sequence for sequence, hazard in trace.contents.hazards}
    load, store = (next(a.sequence for a in trace.accesses() if a.kind == kind) for kind in ("load", "store"))
    assert at == {"out_of_bounds": load - 1, "race": store}  # the index is tested before the access is made


def test_arrays_that_are_too_large_are_named():
    x, out = floats(64), floats(64)
    trace = kept(reverse, 2, 32, x, out, contents=32).trace
    assert trace.contents.omitted == ["x", "out"]
    assert [held.name for held in trace.contents.arrays] == ["part", "part"]
    assert {touch.array for touch in trace.touches() if touch.access.space == "global"} == {None}
    assert kept(reverse, 1, 32, x, out, contents=16).trace.contents.omitted == ["x", "out", "part"]


def test_no_contents_unless_asked():
    assert simt.profile(reverse, 1, 32, (floats(32), floats(32)), trace=True).trace.contents is None


@pytest.mark.parametrize("schedule", [None, "shuffled"])
def test_results_and_counters_do_not_depend_on_it(schedule):
    for kernel, x, out in (
        (reverse, floats(64), np.zeros(64, np.float32)),
        (total, np.random.default_rng(1).random(64, np.float32), np.zeros(2, np.float32)),
    ):
        one, two = out.copy(), out.copy()
        plain = simt.profile(kernel, 2, 32, (x, one), level="check", schedule=schedule)
        traced = kept(kernel, 2, 32, x, two, schedule=schedule)
        assert plain.by_line == traced.by_line
        assert plain.hazards == traced.hazards
        np.testing.assert_array_equal(one, two)


def test_it_counts_towards_the_limit():
    needs = [kept(reverse, 1, 32, floats(32), np.zeros(32, np.float32), contents=n).trace.nbytes for n in (0, 1024)]
    assert needs[0] + (32 + 31) * (8 + 4) <= needs[1]  # an index and a value; out[31] was 0 and is 0
    tracing = simt.Tracing(contents=1024, limit=sum(needs) // 2)
    with pytest.raises(simt.TraceError, match="the trace takes more than its limit"):
        simt.profile(reverse, 1, 32, (floats(32), np.zeros(32, np.float32)), level="check", trace=tracing)


def test_it_lets_go_of_the_launch():
    trace = kept(reverse, 1, 32, floats(32), floats(32)).trace
    assert trace.contents._m is None
    x = floats(32)
    gone = weakref.ref(x)
    trace = kept(reverse, 1, 32, x, floats(32)).trace
    del x
    gc.collect()
    assert gone() is None
    assert trace.contents.arrays[0].start[31] == 31
