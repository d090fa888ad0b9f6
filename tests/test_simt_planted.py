"""More planted bugs, each with the fix that silences it: level "check" tells the two apart.

A bug and its fix are one kernel: the keyword-like argument `mended` chooses. The line of the bug is marked `# HERE`.
"""

import inspect

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit
def exchange_in_global_memory(x, out, mended):
    t = cuda.threadIdx.x
    x[t] = t  # HERE
    if mended:
        cuda.syncthreads()
    out[t] = x[63 - t]  # HERE


@cuda.jit
def stencil_halo(x, out, mended):
    s = cuda.shared.array(66, np.float32)
    t = cuda.threadIdx.x
    s[t + 1] = x[t]  # HERE
    if t == 0:
        s[0] = 0
        s[65] = 0  # HERE
    if mended:
        cuda.syncthreads()
    out[t] = s[t] + s[t + 1] + s[t + 2]  # HERE


@cuda.jit
def warp_tail_of_a_reduction(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    offset = 32
    while offset > 0:
        if t < offset:
            s[t] += s[t + offset]  # HERE
        if mended:
            cuda.syncwarp()
        offset //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def histogram(x, out, mended):
    bin_ = int(x[cuda.grid(1)]) % 4
    if mended:
        cuda.atomic.add(out, bin_, 1)
    else:
        out[bin_] += 1  # HERE


@cuda.jit
def read_beside_an_atomic(x, out, mended):
    s = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    if t < 32:
        cuda.atomic.add(s, 0, 1)  # HERE
    if mended:
        cuda.syncthreads()
    if t >= 32:
        out[t] = s[0]  # HERE


@cuda.jit
def flag_read_too_early(x, out, mended):
    found = cuda.shared.array(1, np.int32)
    found[0] = 0
    cuda.syncthreads()
    if x[cuda.threadIdx.x] > 10:
        found[0] = 1  # HERE
    if mended:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = found[0]  # HERE


@cuda.jit
def sweep_in_place(x, out, mended):
    i = cuda.grid(1)
    for _ in range(2):
        if not mended:
            if i > 0:
                x[i] = x[i - 1] + 1  # HERE
        else:
            out[i] = x[i] + 1


RACES = {
    exchange_in_global_memory: (1, 64, "global", "x"),
    stencil_halo: (1, 64, "shared", "s"),
    warp_tail_of_a_reduction: (1, 64, "shared", "s"),
    histogram: (2, 64, "global", "out"),
    read_beside_an_atomic: (1, 64, "shared", "s"),
    flag_read_too_early: (1, 64, "shared", "found"),
    sweep_in_place: (2, 64, "global", "x"),
}


@cuda.jit
def vector_past_the_end(x, out, mended):
    t = cuda.threadIdx.x
    if not mended or 4 * t + 3 < x.size:
        cuda.store128(out, 4 * t, cuda.load128(x, 4 * t))  # HERE


@cuda.jit
def left_neighbour(x, out, mended):
    i = cuda.grid(1)
    if not mended or i > 0:
        out[i] = x[i - 1]  # HERE


@cuda.jit
def guard_by_the_wrong_axis(x, out, mended):
    j, i = cuda.grid(2)
    if not mended:
        if i < x.shape[1] and j < x.shape[0]:
            out[i] = x[i, j]  # HERE
    elif i < x.shape[0] and j < x.shape[1]:
        cuda.atomic.add(out, i, x[i, j])


@cuda.jit
def one_iteration_too_many(x, out, mended):
    i = cuda.grid(1)
    total = 0.0
    for k in range(x.size + (0 if mended else 1)):
        total += x[k]  # HERE
    out[i] = total


@cuda.jit
def stride_beyond_the_end(x, out, mended):
    i = cuda.grid(1)
    while i < out.size:
        if not mended or i + 32 < x.size:
            out[i] = x[i + 32]  # HERE
        i += cuda.gridsize(1)


@cuda.jit
def tile_larger_than_its_array(x, out, mended):
    s = cuda.shared.array((8, 8), np.float32)
    t = cuda.threadIdx.x
    if not mended or t < 64:
        s[t // 8, t % 8] = 1  # HERE
    cuda.syncthreads()
    out[t] = s[0, 0]


BOUNDS = {
    vector_past_the_end: (1, 8, "global", "x", (30,)),
    left_neighbour: (1, 32, "global", "x", (64,)),
    guard_by_the_wrong_axis: (1, (8, 8), "global", "x", (4, 8)),
    one_iteration_too_many: (1, 32, "global", "x", (10,)),
    stride_beyond_the_end: (1, 32, "global", "x", (256,)),
    tile_larger_than_its_array: (1, 72, "shared", "s", (1,)),
}


@cuda.jit
def vector_of_unset_elements(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t < 30 or mended:
        s[t] = t
    cuda.syncthreads()
    if t < 16:
        cuda.store128(out, 4 * t, cuda.load128(s, 4 * t))  # HERE


@cuda.jit
def unset_padding(x, out, mended):
    s = cuda.shared.array((8, 9), np.float32)
    tx = cuda.threadIdx.x % 8
    ty = cuda.threadIdx.x // 8
    s[ty, tx] = x[0]
    if mended and tx == 0:
        s[ty, 8] = 0
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[ty, tx + 1]  # HERE


@cuda.jit
def maximum_without_a_start(x, out, mended):
    best = cuda.shared.array(1, np.float32)
    if mended and cuda.threadIdx.x == 0:
        best[0] = 0
    cuda.syncthreads()
    cuda.atomic.max(best, 0, x[cuda.threadIdx.x])  # HERE
    cuda.syncthreads()
    out[cuda.threadIdx.x] = best[0]  # HERE


@cuda.jit
def zeroed_up_to_the_last(x, out, mended):
    a = cuda.local.array(8, np.float32)
    for k in range(8 if mended else 7):
        a[k] = 0
    for k in range(8):
        a[k] += k  # HERE
    out[cuda.threadIdx.x] = a[cuda.threadIdx.x % 8]


UNSET = {
    vector_of_unset_elements: (1, 64, "shared", "s"),
    unset_padding: (1, 64, "shared", "s"),
    maximum_without_a_start: (1, 64, "shared", "best"),
    zeroed_up_to_the_last: (1, 64, "local", "a"),
}


@cuda.jit
def counting_barrier_in_a_branch(x, out, mended):
    t = cuda.threadIdx.x
    if t < 40 or mended:
        out[t] = cuda.syncthreads_count(1)  # HERE


@cuda.jit
def barrier_behind_a_data_dependent_break(x, out, mended):
    t = cuda.threadIdx.x
    for k in range(4):
        if not mended and k > t % 4:
            break
        cuda.syncthreads()  # HERE
    out[t] = t


@cuda.jit
def barrier_in_a_function_called_by_some(x, out, mended):
    t = cuda.threadIdx.x
    if mended or t % 2 == 0:
        wait()
    out[t] = t


@cuda.jit(device=True)
def wait():
    cuda.syncthreads()  # HERE


@cuda.jit
def grid_barrier_of_one_block(x, out, mended):
    grid = cuda.cg.this_grid()
    if mended or cuda.blockIdx.x == 0:
        grid.sync()  # HERE
    out[cuda.grid(1)] = 1


DIVERGENT = {
    counting_barrier_in_a_branch: (1, 64, counting_barrier_in_a_branch),
    barrier_behind_a_data_dependent_break: (1, 64, barrier_behind_a_data_dependent_break),
    barrier_in_a_function_called_by_some: (1, 64, wait),
    grid_barrier_of_one_block: (2, 32, grid_barrier_of_one_block),
}

CASES = [
    *(
        (kernel, "race", grid, block, space, name, (256,), kernel)
        for kernel, (grid, block, space, name) in RACES.items()
    ),
    *((kernel, "out_of_bounds", *row[:4], row[4], kernel) for kernel, row in BOUNDS.items()),
    *((kernel, "uninitialised_read", *row, (256,), kernel) for kernel, row in UNSET.items()),
    *(
        (kernel, "divergent_barrier", grid, block, None, None, (256,), at)
        for kernel, (grid, block, at) in DIVERGENT.items()
    ),
]
IDS = [case[0].py_func.__name__ for case in CASES]


def hazards_of(kernel, grid, block, shape, mended, lanes=1 << 20):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with simt.batch_lanes(lanes):
        report = simt.profile(kernel, grid, block, (x, np.zeros(256, np.float32), mended), level="check", collect=True)
    return report.hazards


@pytest.mark.parametrize("lanes", [1, 1 << 20])
@pytest.mark.parametrize("kernel, kind, grid, block, space, name, shape, at", CASES, ids=IDS)
def test_planted_bug_is_named(kernel, kind, grid, block, space, name, shape, at, lanes):
    hazards = hazards_of(kernel, grid, block, shape, False, lanes)
    assert kind in {h.kind for h in hazards}
    found = [h for h in hazards if h.kind == kind]
    lines, first = inspect.getsourcelines(at.py_func)
    assert {h.line for h in found} <= {first + k for k, text in enumerate(lines) if "# HERE" in text}
    if space:
        assert {(h.space, h.variable) for h in found} == {(space, name)}


@pytest.mark.parametrize("kernel, kind, grid, block, space, name, shape, at", CASES, ids=IDS)
def test_the_mended_kernel_is_silent(kernel, kind, grid, block, space, name, shape, at):
    assert [h.message for h in hazards_of(kernel, grid, block, shape, True)] == []


@cuda.jit
def first_half(x):
    i = cuda.grid(1)
    if i < 32:
        x[i] = i


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


def test_what_an_earlier_kernel_left_unset_is_found_by_a_later_one():
    x, out = cuda.device_array(64, np.float32), np.zeros(64, np.float32)
    assert simt.profile(first_half, 1, 64, (x,), level="check").hazards == []
    assert simt.profile(copy, 1, 32, (x, out), level="check").hazards == []
    (hazard,) = simt.profile(copy, 1, 64, (x, out), level="check", collect=True).hazards
    assert (hazard.kind, hazard.variable, hazard.thread[0]) == ("uninitialised_read", "x", 32)
    x.copy_to_device(np.zeros(64, np.float32))
    assert simt.profile(copy, 1, 64, (x, out), level="check").hazards == []


@cuda.jit
def last_block_without_a_fence(x, partial, ticket, out, mended):
    is_last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        if mended:
            cuda.threadfence()
        is_last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])


@pytest.mark.parametrize("mended, kinds", [(False, {"race"}), (True, set())])
def test_the_last_block_pattern_needs_its_fence(mended, kinds):
    x, partial = np.ones(4, np.int32), np.zeros(4, np.int32)
    args = (x, partial, np.zeros(1, np.int32), np.zeros(1, np.int32), mended)
    report = simt.profile(last_block_without_a_fence, 4, 32, args, level="check", collect=True)
    assert {h.kind for h in report.hazards} == kinds
    assert {h.variable for h in report.hazards} <= {"partial"}
