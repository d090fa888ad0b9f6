"""Level "check" names planted bugs by kind, space, variable, line, block and thread.

A bug is marked in its source by the comment `# HERE`; a race may be reported at either of its two accesses.
"""

import html
import inspect

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


def marked(kernel):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return [first + k for k, text in enumerate(lines) if "# HERE" in text]


def check(kernel, grid, block, *args, **options):
    return simt.profile(kernel, grid, block, args, level="check", collect=True, **options).hazards


@cuda.jit
def reduction_without_barrier(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = 64
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]  # HERE
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def read_before_barrier(x, out):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]  # HERE
    out[cuda.grid(1)] = s[63 - t]  # HERE


@cuda.jit
def tile_reused_too_early(x, out):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(2):
        s[t] = x[k * 64 + t]  # HERE
        cuda.syncthreads()
        total += s[63 - t]  # HERE
    out[t] = total


@cuda.jit
def two_warps_write_one_place(out):
    s = cuda.shared.array(1, np.int32)
    s[0] = cuda.threadIdx.x  # HERE
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[0]


@cuda.jit
def blocks_write_one_place(x, out):
    if cuda.threadIdx.x == 0:
        out[0] = cuda.blockIdx.x  # HERE


@cuda.jit
def blocks_add_without_atomic(x, out):
    if cuda.threadIdx.x == 0:
        out[0] += x[cuda.blockIdx.x]  # HERE


@cuda.jit
def neighbour_block_reads(x, out):
    i = cuda.grid(1)
    x[i] = i  # HERE
    out[i] = x[(i + 64) % x.size]  # HERE


@cuda.jit
def barrier_does_not_order_blocks(x, out):
    i = cuda.grid(1)
    x[i] = i  # HERE
    cuda.syncthreads()
    out[i] = x[(i + 64) % x.size]  # HERE


@cuda.jit
def atomic_beside_a_plain_store(x, out):
    cuda.atomic.add(out, 0, 1)  # HERE
    if cuda.grid(1) == 100:
        out[0] = 7  # HERE


@cuda.jit
def lane_reads_what_another_lane_wrote(x, out):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # HERE
    out[t] = s[31 - t]  # HERE


RACES = [
    (reduction_without_barrier, "shared", "s", 2, 128),
    (read_before_barrier, "shared", "s", 2, 64),
    (tile_reused_too_early, "shared", "s", 1, 64),
    (two_warps_write_one_place, "shared", "s", 1, 64),
    (blocks_write_one_place, "global", "out", 4, 32),
    (blocks_add_without_atomic, "global", "out", 4, 32),
    (neighbour_block_reads, "global", "x", 2, 64),
    (barrier_does_not_order_blocks, "global", "x", 2, 64),
    (atomic_beside_a_plain_store, "global", "out", 4, 64),
]


@pytest.mark.parametrize("kernel, space, variable, grid, block", RACES, ids=[row[0].py_func.__name__ for row in RACES])
@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_race(kernel, space, variable, grid, block, lanes):
    x = np.arange(grid * block, dtype=np.float32) if kernel is not tile_reused_too_early else np.zeros(128, np.float32)
    out = np.zeros(grid * block, np.int32)
    args = (out,) if kernel is two_warps_write_one_place else (x, out)
    with simt.batch_lanes(lanes):
        hazards = check(kernel, grid, block, *args)
    assert hazards
    assert {h.kind for h in hazards} == {"race"}
    assert {h.space for h in hazards} == {space}
    assert {h.variable for h in hazards} == {variable}
    assert {h.line for h in hazards} <= set(marked(kernel))
    first = hazards[0]
    assert len(first.block) == len(first.thread) == 3
    assert 0 <= first.block[0] < grid
    assert 0 <= first.thread[0] < block
    assert variable in first.message
    assert str(first.line) in first.message


def test_race_inside_a_warp_without_syncwarp():
    hazards = check(lane_reads_what_another_lane_wrote, 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32))
    assert [h.kind for h in hazards[:1]] == ["race"]


def test_a_race_is_reported_once_a_line_not_once_a_thread():
    hazards = check(read_before_barrier, 8, 64, np.zeros(512, np.float32), np.zeros(512, np.float32))
    assert len(hazards) <= 4


@cuda.jit
def no_guard(x, out):
    i = cuda.grid(1)
    out[i] = x[i]  # HERE


@cuda.jit
def guard_off_by_one(x, out):
    i = cuda.grid(1)
    if i <= x.size:
        out[i % out.size] = x[i]  # HERE


@cuda.jit
def first_axis(x, out):
    j, i = cuda.grid(2)
    if j < x.shape[1]:
        out[0] = x[i, j]  # HERE


@cuda.jit
def second_axis(x, out):
    j, i = cuda.grid(2)
    if i < x.shape[0]:
        out[0] = x[i, j]  # HERE


@cuda.jit
def before_the_start(x, out):
    i = cuda.grid(1)
    out[0] = x[i - 2 * x.size]  # HERE


@cuda.jit
def store_past_the_end(x, out):
    out[cuda.grid(1) + 1] = 1  # HERE


@cuda.jit
def shared_past_the_end(x, out):
    s = cuda.shared.array(32, np.int32)
    s[cuda.threadIdx.x] = 1  # HERE
    cuda.syncthreads()
    out[0] = s[0]


@cuda.jit
def local_past_the_end(x, out):
    a = cuda.local.array(4, np.int32)
    for k in range(5):
        a[k] = k  # HERE
    out[0] = a[0]


@cuda.jit
def atomic_past_the_end(x, out):
    cuda.atomic.add(out, cuda.grid(1), 1)  # HERE


# kernel, launch, x, elements of out, space, variable, block and thread of the first bad access
BOUNDS = [
    (no_guard, (2, 32), (40,), 64, "global", "x", 1, (8, 0, 0)),
    (guard_off_by_one, (2, 32), (40,), 64, "global", "x", 1, (8, 0, 0)),
    (first_axis, (1, (4, 4)), (3, 4), 1, "global", "x", 0, (0, 3, 0)),
    (second_axis, (1, (4, 4)), (4, 3), 1, "global", "x", 0, (3, 0, 0)),
    (before_the_start, (1, 1), (8,), 1, "global", "x", 0, (0, 0, 0)),
    (store_past_the_end, (1, 32), (1,), 32, "global", "out", 0, (31, 0, 0)),
    (shared_past_the_end, (1, 40), (1,), 1, "shared", "s", 0, (32, 0, 0)),
    (local_past_the_end, (1, 1), (1,), 1, "local", "a", 0, (0, 0, 0)),
    (atomic_past_the_end, (1, 33), (1,), 32, "global", "out", 0, (32, 0, 0)),
]
BOUNDS_IDS = [row[0].py_func.__name__ for row in BOUNDS]


@pytest.mark.parametrize("kernel, launch, shape, size, space, variable, block, thread", BOUNDS, ids=BOUNDS_IDS)
def test_out_of_bounds(kernel, launch, shape, size, space, variable, block, thread):
    x, out = np.zeros(shape, np.int32), np.zeros(size, np.int32)
    hazards = [h for h in check(kernel, *launch, x, out) if h.kind != "race"]
    assert {(h.kind, h.space, h.variable) for h in hazards} == {("out_of_bounds", space, variable)}
    assert {h.line for h in hazards} == set(marked(kernel))
    assert (tuple(hazards[0].block), tuple(hazards[0].thread)) == ((block, 0, 0), thread)


@pytest.mark.parametrize("kernel, launch, shape, size, space, variable, block, thread", BOUNDS, ids=BOUNDS_IDS)
def test_out_of_bounds_raises_unless_told_to_collect(kernel, launch, shape, size, space, variable, block, thread):
    x, out = np.zeros(shape, np.int32), np.zeros(size, np.int32)
    with pytest.raises(simt.HazardError) as caught:
        simt.profile(kernel, *launch, (x, out), level="check")
    hazard = caught.value.hazard
    assert (hazard.kind, hazard.variable, hazard.line) == ("out_of_bounds", variable, marked(kernel)[0])
    assert variable in str(caught.value)


def test_other_hazards_are_reported_and_raise_nothing():
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    report = simt.profile(read_before_barrier, 1, 64, (x, out), level="check")
    assert {hazard.kind for hazard in report.hazards} == {"race"}


def test_an_access_out_of_bounds_touches_nothing_when_collected():
    x, out = np.arange(40, dtype=np.int32), np.full(40, -1, np.int32)
    check(no_guard, 2, 32, x, out)
    np.testing.assert_array_equal(out, x)


@cuda.jit
def reads_unset_shared(out):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t < 40:
        s[t] = t
    cuda.syncthreads()
    out[cuda.grid(1)] = s[t]  # HERE


@cuda.jit
def reads_unset_local(out):
    a = cuda.local.array(4, np.float32)
    for k in range(3):
        a[k] = k
    out[cuda.grid(1)] = a[cuda.grid(1) % 4]  # HERE


@cuda.jit
def accumulates_into(out):
    out[cuda.grid(1)] += 1  # HERE


@cuda.jit
def atomically_adds_to_unset_shared(out):
    s = cuda.shared.array(1, np.float32)
    cuda.atomic.add(s, 0, 1)  # HERE
    cuda.syncthreads()
    out[cuda.grid(1)] = s[0]  # HERE


@pytest.mark.parametrize(
    "kernel, make, grid, block, space, variable, where",
    [
        (reads_unset_shared, lambda: np.zeros(128, np.float32), 2, 64, "shared", "s", (0, 40)),
        (reads_unset_local, lambda: np.zeros(64, np.float32), 1, 64, "local", "a", (0, 3)),
        (accumulates_into, lambda: cuda.device_array(64, np.float32), 2, 32, "global", "out", (0, 0)),
        (atomically_adds_to_unset_shared, lambda: np.zeros(64, np.float32), 1, 64, "shared", "s", (0, 0)),
    ],
    ids=lambda v: getattr(getattr(v, "py_func", None), "__name__", None),
)
def test_uninitialised_read(kernel, make, grid, block, space, variable, where):
    hazards = check(kernel, grid, block, make())
    assert {(h.kind, h.space, h.variable) for h in hazards} == {("uninitialised_read", space, variable)}
    assert {h.line for h in hazards} <= set(marked(kernel))
    assert (hazards[0].block[0], hazards[0].thread[0]) == where


@cuda.jit
def barrier_in_a_divergent_branch(out):
    t = cuda.threadIdx.x
    if t < 40:
        cuda.syncthreads()  # HERE
    out[t] = t


@cuda.jit
def barrier_in_a_divergent_loop(out):
    t = cuda.threadIdx.x
    for _ in range(t % 3):
        cuda.syncthreads()  # HERE
    out[t] = t


@cuda.jit
def two_barriers_for_two_halves(out):
    t = cuda.threadIdx.x
    if t < 32:
        cuda.syncthreads()  # HERE
    else:
        cuda.syncthreads()  # HERE
    out[t] = t


DIVERGENT = [barrier_in_a_divergent_branch, barrier_in_a_divergent_loop, two_barriers_for_two_halves]


@pytest.mark.parametrize("kernel", DIVERGENT, ids=[k.py_func.__name__ for k in DIVERGENT])
def test_divergent_barrier(kernel):
    hazards = check(kernel, 1, 64, np.zeros(64, np.int32))
    assert {h.kind for h in hazards} == {"divergent_barrier"}
    assert {h.line for h in hazards} <= set(marked(kernel))
    assert hazards[0].block[0] == 0
    assert 0 <= hazards[0].thread[0] < 64
    assert hazards[0].message


@cuda.jit
def bug_in_a_device_function(out):
    store(out, cuda.grid(1) + 1)


@cuda.jit(device=True)
def store(array, i):
    array[i] = 1  # HERE


def test_a_hazard_inside_a_device_function_has_the_line_of_the_access():
    hazards = check(bug_in_a_device_function, 1, 32, np.zeros(32, np.int32))
    assert [(h.kind, h.line) for h in hazards] == [("out_of_bounds", marked(store)[0])]


@pytest.mark.parametrize(
    "kernel, args, kind",
    [
        (no_guard, lambda: (np.zeros(40, np.int32), np.zeros(64, np.int32)), "out_of_bounds"),
        (blocks_write_one_place, lambda: (np.zeros(1), np.zeros(1)), "race"),
        (reads_unset_shared, lambda: (np.zeros(128, np.float32),), "uninitialised_read"),
        (barrier_in_a_divergent_branch, lambda: (np.zeros(64, np.int32),), "divergent_barrier"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_pmpp_check_turns_hazards_of_plain_launches_into_errors(monkeypatch, kernel, args, kind):
    monkeypatch.setenv("PMPP_CHECK", "1")
    block = 64 if kind in ("uninitialised_read", "divergent_barrier") else 32
    with pytest.raises(simt.HazardError) as caught:
        kernel[2, block](*args())
    assert caught.value.hazard.kind == kind
    assert isinstance(caught.value, simt.SimtError)
    assert str(caught.value.hazard.line) in str(caught.value)


def test_record_collects_what_plain_launches_do(monkeypatch):
    monkeypatch.setenv("PMPP_CHECK", "1")
    out = np.zeros(64, np.int32)
    with simt.record(level="check", collect=True) as reports:
        no_guard[2, 32](np.zeros(40, np.int32), out)
        no_guard[1, 32](np.zeros(40, np.int32), out)
    assert [len(report.hazards) > 0 for report in reports] == [True, False]
    assert [(report.grid[0], report.block[0]) for report in reports] == [(2, 32), (1, 32)]
    assert reports[1].counters["global_load_requests"] == 1


def test_report_show_prints_the_annotated_source(capsys):
    args = np.zeros(40, np.int32), np.zeros(64, np.int32)
    report = simt.profile(no_guard, 2, 32, args, level="check", collect=True)
    text = report.show()
    printed = capsys.readouterr().out + (text or "")
    assert "out[i] = x[i]" in printed
    assert "out_of_bounds" in printed or "out of bounds" in printed
    shown = report._repr_html_()
    assert "out[i] = x[i]" in shown
    assert "<" in shown


@cuda.jit(device=True)
def third(x, out, i):
    out[i] = x[i] / 3.0


@cuda.jit
def twice_wrong(x, y, out):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] + y[i]  # both may be too short
    out[i] = tile[63 - t] * 0.5  # no barrier, and a float64 literal


def test_the_html_shows_every_finding_of_a_line():
    args = np.zeros(40, np.float32), np.zeros(50, np.float32), np.zeros(64, np.float32)
    report = simt.profile(twice_wrong, 1, 64, args, level="check", collect=True)
    found = [*report.hazards, *report.warnings]
    assert len({(each.kind, each.line) for each in found}) < len(found)  # two of one kind on one line
    assert len({each.kind for each in found if each.line == found[-1].line}) > 1  # and two kinds on another
    shown = report._repr_html_()
    for each in found:
        assert shown.count(f"{each.kind}: {html.escape(each.message)}") == 1
    assert shown.count("background:") == len({each.line for each in found})


def test_the_html_shows_findings_in_a_device_function_at_every_level():
    @cuda.jit
    def kernel(x, out):
        third(x, out, cuda.grid(1))

    report = simt.profile(kernel, 1, 64, (np.zeros(40), np.zeros(64)), level="run", collect=True)
    (found,) = report.hazards
    assert f"{found.kind}: {html.escape(found.message)}" in report._repr_html_()
    assert "out[i] = x[i] / 3.0" in report._repr_html_()


@cuda.jit
def set_in_a_branch(x, out):
    t = cuda.threadIdx.x
    for k in range(x.size):
        if x[k] > 10:
            found = x[k]
    out[t] = found  # HERE


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_variable_that_no_thread_has_set_is_reported_and_holds_poison_of_its_type(dtype):
    out = np.zeros(40, dtype)
    (hazard,) = check(set_in_a_branch, 1, 40, np.ones(8, dtype), out)
    assert (hazard.kind, hazard.variable, [hazard.line]) == (
        "uninitialised_read", "found", marked(set_in_a_branch)
    )  # fmt: skip
    assert (np.isnan(out) if dtype == np.float32 else out == -1).all()
    assert check(set_in_a_branch, 1, 40, np.arange(20).astype(dtype), out) == []
    with pytest.raises(simt.HazardError, match="reads found, which it never assigned"):
        set_in_a_branch[1, 40](np.ones(8, dtype), out)


@cuda.jit
def set_below(x, out):
    for k in range(2):
        if k > 5:
            out[0] = later  # noqa: F821  (that is the point)
        if x[k] < 5:
            out[1] = later  # noqa: F821
    later = x[0]  # noqa: F841


def test_a_variable_that_is_set_on_no_line_above_is_refused_as_numba_refuses_it():
    with pytest.raises(simt.UnsupportedError, match="the variable 'later' is read before it is assigned"):
        set_below[1, 32](np.ones(2), np.zeros(2))


@cuda.jit
def passed_on(x, out, asked, kept):
    lane = cuda.laneid
    if lane % 4 == 0:
        base = x[lane]
    if kept:
        value = cuda.shfl_sync(0xFFFFFFFF, base, asked[lane])
        if lane != 9:
            out[lane] = value  # HERE
    else:
        out[lane] = cuda.shfl_sync(0xFFFFFFFF, base, asked[lane])  # HERE


@pytest.mark.parametrize("kept", [True, False])
def test_a_shuffle_may_be_given_a_variable_that_only_the_asked_lanes_have(kept):
    x, out, asked = np.arange(32) + 5.0, np.zeros(32), np.arange(32) // 4 * 4
    assert check(passed_on, 1, 32, x, out, asked, kept) == []
    assert np.array_equal(out, np.where(kept & (np.arange(32) == 9), 0, x[asked]))
    asked[9] = 10
    found = check(passed_on, 1, 32, x, out, asked, kept)
    assert [(h.kind, h.variable, h.thread[0]) for h in found] == ([] if kept else [("uninitialised_read", "base", 9)])
    asked[20] = 21
    found = check(passed_on, 1, 32, x, out, asked, kept)
    variable, thread = ("value", 20) if kept else ("base", 9)
    assert [(h.variable, h.thread[0], h.line) for h in found] == [(variable, thread, marked(passed_on)[not kept])]
    assert "a lane that never assigned base" in found[0].message
    assert np.isnan(out[20])
