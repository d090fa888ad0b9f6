"""The trace against addresses, sectors and masks written out by hand, and against the counters."""

import gc
import sys

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime.vector import load128
from pmpp.simt import cuda
from tests.corpus import judge, pairs

LANE = np.arange(32)


@cuda.jit
def copy(x, out, stride, offset):
    i = cuda.grid(1)
    out[i] = x[i * stride + offset]


@cuda.jit
def copy_matrix(x, out):
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]


@cuda.jit
def copy_wide(x, out):
    i = cuda.grid(1)
    a, b, c, d = load128(x, 4 * i)
    out[i] = a + b + c + d


@cuda.jit
def transpose_naive(x, out):
    j, i = cuda.grid(2)
    out[j, i] = x[i, j]


@cuda.jit
def transpose_tile(x, out):
    tile = cuda.shared.array((32, 32), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx]
    cuda.syncthreads()
    out[ty, tx] = tile[tx, ty]


@cuda.jit
def transpose_padded(x, out):
    tile = cuda.shared.array((32, 33), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx]
    cuda.syncthreads()
    out[ty, tx] = tile[tx, ty]


@cuda.jit
def halves(x, out):
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = x[i]
    else:
        out[i] = -x[i]
    k = 0
    while k < i % 3:
        k += 1


@cuda.jit
def tally(x, bins):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i] % 4, 1)


def first_line(kernel):
    return kernel.py_func.__code__.co_firstlineno


def run(kernel, grid, block, *args, trace=True, **options):
    return simt.profile(kernel, grid, block, args, trace=trace, **options)


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# What lane 0 to 31 of warp 1 of block 1 (threads 32 to 63 of 64) read, in bytes from the start of x.
COPIES = {
    "coalesced": (1, 0, 4 * (96 + LANE), 4),
    "strided": (3, 0, 12 * (96 + LANE), 12),  # bytes 1152 to 1527: sectors 36 to 47
    "misaligned": (1, 1, 4 * (97 + LANE), 5),
    "broadcast": (0, 7, np.full(32, 28), 1),
    "reversed": (-1, 127, 4 * (31 - LANE), 4),
}


@pytest.mark.parametrize("name", COPIES)
def test_addresses_of_a_copy(name):
    stride, offset, addresses, sectors = COPIES[name]
    x, out = floats(512), np.zeros(128, np.float32)
    trace = run(copy, 2, 64, x, out, stride, offset, trace=simt.Tracing(blocks=1)).trace
    (load,) = trace.accesses("x", warp=1)
    np.testing.assert_array_equal(load.addresses, addresses)
    assert (load.line, load.kind, load.space, load.variable) == (first_line(copy) + 3, "load", "global", "x")
    assert (load.block, load.warp, load.width, load.active.all()) == (1, 1, 4, True)
    assert len(load.sectors) == sectors
    assert load.sectors[0] == addresses.min() // 32
    (store,) = trace.accesses("out", warp=1)
    np.testing.assert_array_equal(store.addresses, 4 * (96 + LANE))
    assert store.kind == "store"
    assert store.sequence > load.sequence


def test_addresses_of_a_matrix():
    # Blocks of 8 x 8: a warp is four rows of eight. Block (1, 2) begins at row 16, column 8 of rows of 20 elements.
    x = floats(20, 20)
    trace = run(copy_matrix, (3, 3), (8, 8), x, np.zeros_like(x), trace=simt.Tracing(blocks=[(1, 2)])).trace
    (first,) = trace.accesses(x)  # warp 0; warp 1 has rows 20 to 23, which do not exist
    rows, columns = 16 + LANE // 8, 8 + LANE % 8
    np.testing.assert_array_equal(first.addresses, 4 * (20 * rows + columns))
    assert trace.blocks == (7,)
    assert first.active.all()
    assert (first.block, first.warp) == (7, 0)
    assert not trace.accesses(x, block=(1, 2), warp=1)


def test_lanes_beyond_the_edge_take_no_part():
    x = floats(20, 20)
    trace = run(copy_matrix, (3, 3), (8, 8), x, np.zeros_like(x), trace=simt.Tracing(blocks=[2], warps=[0])).trace
    (load,) = trace.accesses("x")
    np.testing.assert_array_equal(load.active, LANE % 8 < 4)  # columns 16 to 19 of 16 to 23
    assert len(load.sectors) == 4  # a row is 80 bytes, and columns 16 to 19 are its bytes 64 to 79: one sector each


def test_a_tuple_is_one_block():
    x = np.zeros((24, 24), np.float32)
    trace = run(copy_matrix, (3, 3), (8, 8), x, np.zeros_like(x), trace=simt.Tracing(blocks=(1, 2))).trace
    assert trace.blocks == (7,)


def test_wide_access():
    x, out = floats(256), np.zeros(64, np.float32)
    trace = run(copy_wide, 1, 64, x, out).trace
    (load,) = trace.accesses("x", warp=1)
    assert load.width == 16
    np.testing.assert_array_equal(load.addresses, 16 * (32 + LANE))
    np.testing.assert_array_equal(load.sectors, np.arange(16, 32))
    assert trace.heat("x").reads.tolist() == [1] * 256


def test_elements_that_lie_in_two_sectors_or_share_a_word():
    def access(width, addresses, lanes=32):
        return simt.Access(1, 1, "load", "global", "x", 0, 0, width, addresses, np.arange(32) < lanes)

    assert access(8, np.full(32, 28)).sectors.tolist() == [0, 1]
    assert access(16, 24 + 16 * LANE, lanes=2).sectors.tolist() == [0, 1]
    assert access(16, 24 + 64 * LANE, lanes=2).sectors.tolist() == [0, 1, 2, 3]
    assert access(1, LANE).wavefronts == 1  # four bytes of one word
    assert access(8, 8 * LANE).wavefronts == 2  # half a warp at a time
    assert access(16, 16 * LANE).wavefronts == 4
    assert access(16, 128 * LANE).wavefronts == 32
    assert access(16, 128 * LANE, lanes=9).wavefronts == 9
    assert [len(group) for group in access(16, LANE, lanes=9).groups()] == [8, 1, 0, 0]


def test_transposes():
    x = floats(64, 64)
    trace = run(transpose_naive, (2, 2), (32, 32), x, np.zeros_like(x), trace=simt.Tracing(blocks=3, warps=5)).trace
    (load,), (store,) = trace.accesses("x"), trace.accesses("out")
    np.testing.assert_array_equal(load.addresses, 4 * (64 * 37 + 32 + LANE))
    np.testing.assert_array_equal(store.addresses, 4 * (64 * (32 + LANE) + 37))
    assert (len(load.sectors), len(store.sectors)) == (4, 32)


@pytest.mark.parametrize(("kernel", "pitch", "wavefronts"), [(transpose_tile, 32, 32), (transpose_padded, 33, 1)])
def test_tiles(kernel, pitch, wavefronts):
    x = floats(32, 32)
    trace = run(kernel, 1, (32, 32), x, np.zeros_like(x)).trace
    (store,) = trace.accesses("tile", kind="store", warp=3)
    np.testing.assert_array_equal(store.addresses, 4 * (pitch * 3 + LANE))
    (load,) = trace.accesses("tile", kind="load", warp=3)
    np.testing.assert_array_equal(load.addresses, 4 * (pitch * LANE + 3))
    assert (store.space, store.wavefronts, load.wavefronts) == ("shared", 1, wavefronts)


ALL = {
    "copy": (copy, 2, 64, (floats(512), np.zeros(128, np.float32), 3, 1)),
    "matrix": (copy_matrix, (3, 3), (8, 8), (floats(20, 20), np.zeros((20, 20), np.float32))),
    "wide": (copy_wide, 1, 64, (floats(256), np.zeros(64, np.float32))),
    "naive transpose": (transpose_naive, (2, 2), (32, 32), (floats(64, 64), np.zeros((64, 64), np.float32))),
    "tile": (transpose_tile, 1, (32, 32), (floats(32, 32), np.zeros((32, 32), np.float32))),
    "padded": (transpose_padded, 1, (32, 32), (floats(32, 32), np.zeros((32, 32), np.float32))),
    "divergent": (halves, 2, 40, (floats(80), np.zeros(80, np.float32))),
    "atomic": (tally, 2, 64, (np.arange(100), np.zeros(4, np.int64))),
}


@pytest.mark.parametrize("lanes", [64, 1 << 16])
@pytest.mark.parametrize("name", ALL)
def test_the_whole_trace_adds_up_to_the_counters(name, lanes):
    kernel, grid, block, args = ALL[name]
    blocks = range(int(np.prod(grid)))
    with simt.batch_lanes(lanes):
        report = run(kernel, grid, block, *(a.copy() if hasattr(a, "copy") else a for a in args),
                     trace=simt.Tracing(blocks=blocks))  # fmt: skip
    counters, trace = report.counters, report.trace
    for kind in ("load", "store"):
        for space in ("global", "shared"):
            found = [one for one in trace.accesses(kind=kind) if one.space == space]
            assert len(found) == counters[f"{space}_{kind}_requests"]
            if space == "global":
                assert sum(len(one.sectors) for one in found) == counters[f"global_{kind}_sectors"]
                assert sum(one.width * one.active.sum() for one in found) == counters[f"global_{kind}_bytes"]
            else:
                assert sum(one.wavefronts for one in found) == counters[f"shared_{kind}_wavefronts"]
    assert len(trace.accesses(kind="atomic")) == counters["atomic_requests"]
    branches = [step for step in trace.steps() if step.taken is not None]
    assert len(branches) == counters["branches"]
    assert sum(step.diverges for step in branches) == counters["divergent_branches"]
    heat = [trace.heat(i) for i, a in zip(trace.names(), args, strict=False) if isinstance(a, np.ndarray)]
    assert sum(h.reads.sum() for h in heat) == sum(
        one.active.sum() * (one.width // 4 if one.width == 16 else 1)
        for one in trace.accesses() if one.space == "global" and one.kind != "store"
    )  # fmt: skip


def test_masks():
    trace = run(halves, 1, 40, floats(40), np.zeros(40, np.float32)).trace
    start, even, odd = first_line(halves), LANE % 2 == 0, LANE % 2 == 1
    steps = trace.steps(warp=0)
    assert [step.line - start for step in steps[:4]] == [2, 3, 4, 6]
    assert steps[0].taken is None
    np.testing.assert_array_equal(steps[1].taken, even)
    assert steps[1].active.all()
    assert steps[1].diverges
    np.testing.assert_array_equal(steps[2].active, even)
    np.testing.assert_array_equal(steps[3].active, odd)
    tests = [step for step in steps if step.line - start == 8]  # k < i % 3: a lane does i % 3 rounds
    np.testing.assert_array_equal([t.active.sum() for t in tests], [32, 21, 10])
    np.testing.assert_array_equal(tests[1].taken, LANE % 3 == 2)
    np.testing.assert_array_equal(tests[2].active, LANE % 3 == 2)
    assert not tests[2].taken.any()
    assert [s.sequence for s in steps] == sorted({s.sequence for s in steps})
    (last,) = [s for s in trace.steps(warp=1) if s.line - start == 2]
    np.testing.assert_array_equal(last.active, LANE < 8)  # 40 threads: the second warp has eight


@pytest.mark.parametrize("schedule", ["shuffled", "warps", "blocks"])
@pytest.mark.parametrize("name", ["padded", "divergent", "matrix"])
def test_a_warp_does_the_same_under_every_schedule(name, schedule):
    kernel, grid, block, args = ALL[name]
    traces = [
        run(
            kernel, grid, block, *(a.copy() for a in args), trace=simt.Tracing(blocks=range(np.prod(grid))), **options
        ).trace
        for options in ({}, {"schedule": schedule, "seed": 3})
    ]
    for b, w in np.ndindex(int(np.prod(grid)), len(traces[0].warps)):
        for one, two in zip(*(t.accesses(block=b, warp=w) for t in traces), strict=True):
            assert (one.line, one.kind, one.variable) == (two.line, two.kind, two.variable)
            np.testing.assert_array_equal(one.active, two.active)
            np.testing.assert_array_equal(one.addresses[one.active], two.addresses[two.active])
        for one, two in zip(*(t.steps(block=b, warp=w) for t in traces), strict=True):
            assert one.line == two.line
            np.testing.assert_array_equal(one.active, two.active)
            np.testing.assert_array_equal(one.taken, two.taken)
    for array in traces[0].names()[:2]:
        np.testing.assert_array_equal(traces[0].heat(array).reads, traces[1].heat(array).reads)


def test_heat():
    x = floats(64, 64)
    trace = run(transpose_naive, (2, 2), (32, 32), x, np.zeros_like(x)).trace
    assert (trace.heat("x").reads == 1).all()
    assert (trace.heat("x").writes == 0).all()
    assert (trace.heat("x").writer == -1).all()
    blocks = np.kron([[0, 2], [1, 3]], np.ones((32, 32), int))  # block (1, 0), number 1, writes below
    np.testing.assert_array_equal(trace.heat("out").writer, blocks)
    bins = np.zeros(4, np.int64)
    heat = run(tally, 2, 64, np.arange(100), bins).trace.heat(bins)
    np.testing.assert_array_equal(heat.writes, [25] * 4)
    np.testing.assert_array_equal(heat.reads, [25] * 4)
    # Lane i reads element 3 i + 1; what it leaves out was never touched.
    reads = run(copy, 1, 32, floats(96), np.zeros(32, np.float32), 3, 1).trace.heat("x").reads
    np.testing.assert_array_equal(reads, np.arange(96) % 3 == 1)


@cuda.jit
def few_addresses(x, out, most):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    total = x[0] + x[8 + b] + x[16 + t]
    if t < most:
        total += x[1] + x[10 + b]
    if b == 1:
        total += x[2] + x[80 + t]
    out[b * 64 + t] = total


@pytest.mark.parametrize("n", [144, 1 << 16])
@pytest.mark.parametrize("lanes", [64, 1 << 16])
def test_heat_counts_every_lane_where_many_share_an_address(n, lanes):
    with simt.batch_lanes(lanes):
        trace = run(few_addresses, 2, 64, floats(n), np.zeros(128, np.float32), 5).trace
    expected = np.zeros(n, int)
    expected[[0, 1, 2]] = 128, 10, 64
    expected[[8, 9, 10, 11]] = 64, 64, 5, 5
    expected[16:80] = 2
    expected[80:144] = 1
    np.testing.assert_array_equal(trace.heat("x").reads, expected)
    np.testing.assert_array_equal(trace.heat("out").writer, np.arange(128) // 64)


def test_heat_of_a_view():
    whole = cuda.to_device(floats(8, 64))
    view = whole[2:5, 8:40]
    trace = run(copy_matrix, 1, (32, 4), view, cuda.device_array((3, 32), np.float32)).trace
    assert trace.heat(view).reads.shape == (3, 32)
    assert (trace.heat("x").reads == 1).all()
    assert trace.accesses("x", warp=1)[0].addresses[0] == 4 * (3 * 64 + 8)


def test_touched_by_one_block():
    x = floats(64, 64)
    trace = run(transpose_naive, (2, 2), (32, 32), x, np.zeros_like(x), trace=simt.Tracing(blocks=[1])).trace
    reads, writes, order = trace.touched("out", block=1)
    inside = np.zeros((64, 64), bool)
    inside[32:, :32] = True  # block (1, 0) reads columns 32 to 63 of rows 0 to 31
    np.testing.assert_array_equal(writes, inside)
    assert not reads.any()
    np.testing.assert_array_equal(order[32:, :32], np.broadcast_to(np.arange(32), (32, 32)))  # a warp a column
    assert (order[~inside] == -1).all()


@cuda.jit(device=True)
def put(target, i, value):
    target[i] = value


@cuda.jit
def by_another_name(x, out):
    i = cuda.grid(1)
    put(out, i, x[i])


def test_an_argument_keeps_its_name_inside_a_device_function():
    trace = run(by_another_name, 1, 32, floats(32), np.zeros(32, np.float32)).trace
    (store,) = trace.accesses("out")
    assert store.variable == "target"
    assert trace.names() == ["x", "out", "target"]
    assert trace.accesses("target")[0].sequence == store.sequence


def test_lines_by_their_source():
    x = floats(32, 32)
    trace = run(transpose_padded, 1, (32, 32), x, np.zeros_like(x)).trace
    start = first_line(transpose_padded)
    assert trace.lines("tile") == [start + 4, start + 6]
    assert trace.line_number("tile[tx, ty]") == start + 6
    assert len(trace.accesses("tile", line="out[ty, tx]")) == 32
    assert trace.source(start + 5) == "cuda.syncthreads()"


def test_a_function_of_another_file_is_charged_to_the_line_that_calls_it():
    from pmpp.kernels import transpose

    @cuda.jit
    def places(out):
        top, left = transpose.corner(32)
        out[cuda.threadIdx.x] = top + left

    trace = run(places, 1, 32, np.zeros(32, np.int64)).trace
    assert {step.line - first_line(places) for step in trace.steps()} == {2, 3}


# ----------------------------------------------------------------------------------------------- what it will not do


def test_no_trace_unless_asked():
    assert simt.profile(copy, 1, 32, (floats(32), np.zeros(32, np.float32), 1, 0)).trace is None


def test_record_keeps_traces():
    x, out = cuda.to_device(floats(32)), cuda.device_array(32, np.float32)
    with simt.record(trace=simt.Tracing(warps=0)) as reports:
        copy[1, 32](x, out, 1, 0)
    assert reports[0].trace.name_of(x) == "x"
    with simt.record() as reports:
        copy[1, 32](x, out, 1, 0)
    assert reports[0].trace is None


def test_results_and_counters_do_not_depend_on_it():
    for kernel, grid, block, args in ALL.values():
        one, two = ([a.copy() if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
        plain = simt.profile(kernel, grid, block, tuple(one), level="check")
        traced = simt.profile(kernel, grid, block, tuple(two), level="check", trace=True)
        assert plain.by_line == traced.by_line
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_memory_has_a_limit():
    x, out = floats(4096), np.zeros(4096, np.float32)
    with pytest.raises(
        simt.TraceError, match=r"in copy: the trace takes more than its limit of 0.03125 MiB: .* \(now 32\)"
    ):
        run(copy, 4, 1024, x, out, 1, 0, trace=simt.Tracing(limit=1 << 15))
    trace = run(copy, 4, 1024, x, out, 1, 0, trace=simt.Tracing(warps=[0])).trace
    assert 0 < trace.nbytes <= trace.limit
    # What it says it takes is what it takes: two heats of 3 x 4096 x 4 bytes, four entries of one warp.
    assert 98_304 < trace.nbytes < 98_304 + 4 * 1024


def test_arrays_do_not_live_on_in_a_trace():
    x = floats(32)
    trace = run(copy, 1, 32, x, np.zeros(32, np.float32), 1, 0).trace
    assert trace.name_of(x) == "x"
    before = sys.getrefcount(x)
    gc.collect()
    assert sys.getrefcount(x) == before
    assert not any(referrer is trace.__dict__ for referrer in gc.get_referrers(x))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: t.accesses("tyle"), "has no array named 'tyle'; there are x, out, tile"),
        (lambda t: t.accesses(np.zeros(3)), "has no array that is this ndarray; there are x, out, tile"),
        (lambda t: t.heat("tile"), "heat is kept for arguments, and tile is not one; there are x, out"),
        (lambda t: t.touched("tile"), "tile is not one; there are x, out"),
        (lambda t: t.accesses("x", kind="write"), "kind is 'write'; it must be 'load', 'store' or 'atomic'"),
        (lambda t: t.accesses("x", line="tile"), "'tile' is on lines"),
        (lambda t: t.accesses("x", line="nowhere"), "'nowhere' is on no line that transpose_padded executed"),
        (lambda t: t.accesses(block=1), r"there is no block 1 in a grid of \(1, 1, 1\)"),
        (lambda t: t.accesses(block=(0, 1)), r"there is no block \(0, 1\)"),
        (lambda t: t.accesses(warp=32), "warp 32 was not traced, only 0, 1, 2, 3, ..., 31"),
        (lambda t: t.steps(warp="a"), "warp 'a' was not traced"),
    ],
)  # fmt: skip
def test_errors_say_what_there_is(ask, says):
    x = floats(32, 32)
    trace = run(transpose_padded, 1, (32, 32), x, np.zeros_like(x)).trace
    with pytest.raises(simt.TraceError, match=says):
        ask(trace)


def test_a_line_without_access_names_those_with():
    x = floats(32, 32)
    trace = run(transpose_padded, 1, (32, 32), x, np.zeros_like(x)).trace
    start = first_line(transpose_padded)
    says = f"line {start + 6} of transpose_padded has no access of x; lines with one are {start + 4}"
    with pytest.raises(simt.TraceError, match=says):
        trace.accesses("x", line=start + 6)
    with pytest.raises(simt.TraceError, match="has no load of out; the traced warps have none"):
        trace.accesses("out", line=start + 6, kind="load")


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (simt.Tracing(blocks=9), r"there is no block 9 in a grid of \(2, 1, 1\): 2 blocks"),
        (simt.Tracing(blocks=[(0, 1)]), r"there is no block \(0, 1\)"),
        (simt.Tracing(blocks=["a"]), "there is no block 'a'"),
        (simt.Tracing(warps=2), "has warps 0 to 1; there is no warp 2 to trace"),
        ("yes", "trace is 'yes'; it must be True, False or a simt.Tracing"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced(trace, says):
    with pytest.raises(simt.SimtError, match=says):
        run(copy, 2, 64, floats(128), np.zeros(128, np.float32), 1, 0, trace=trace)


def test_level_run_looks_at_nothing():
    with pytest.raises(simt.LaunchError, match="a trace is kept at level 'count' or 'check'"):
        run(copy, 1, 32, floats(32), np.zeros(32, np.float32), 1, 0, level="run")


def test_a_copy_that_reads_less_than_its_16_bytes_is_counted_as_far_as_it_goes():
    pair = next(pair for pair in pairs() if pair.name == "a_copy_past_the_end")
    report, args = judge.run(pair, True, trace=True)
    assert report.hazards == []
    loads = report.trace.heat(args[0]).reads
    np.testing.assert_array_equal(loads, 1)
