"""Correct kernels that look like bugs: level "check" reports nothing, and the result is right."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit
def tree_reduction(x, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        cuda.atomic.add(out, 0, s[0])


@cuda.jit
def shared_histogram(x, out):
    s = cuda.shared.array(8, np.int32)
    t = cuda.threadIdx.x
    if t < 8:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, x[cuda.grid(1)] % 8, 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(out, t, s[t])


@cuda.jit
def all_write_the_same_value(x, out):
    found = cuda.shared.array(1, np.int32)
    if cuda.threadIdx.x == 0:
        found[0] = 0
    cuda.syncthreads()
    if x[cuda.grid(1)] >= 0:
        found[0] = 1
    cuda.syncthreads()
    out[cuda.grid(1)] = found[0]


@cuda.jit
def blocks_write_the_same_value(x, out):
    if x[cuda.grid(1)] >= 0:
        out[0] = 1


@cuda.jit
def warp_synchronous(x, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    lane = t % 32
    s[t] = x[cuda.grid(1)]
    cuda.syncwarp()
    offset = 16
    while offset > 0:
        if lane < offset:
            s[t] += s[t + offset]
        cuda.syncwarp()
        offset //= 2
    if lane == 0:
        out[cuda.grid(1) // 32] = s[t]


@cuda.jit
def warp_reads_through_shared(x, out):
    s = cuda.shared.array((2, 32), np.int32)
    t = cuda.threadIdx.x
    s[t // 32, t % 32] = x[cuda.grid(1)]
    cuda.syncwarp()
    out[cuda.grid(1)] = s[t // 32, 31 - t % 32]


@cuda.jit
def double_buffered(x, out):
    buffers = cuda.shared.array((2, 64), np.int32)
    t = cuda.threadIdx.x
    buffers[0, t] = x[t]
    cuda.syncthreads()
    total = 0
    for k in range(1, 4):
        buffers[k % 2, t] = x[64 * k + t]
        total += buffers[1 - k % 2, 63 - t]
        cuda.syncthreads()
    out[t] = total + buffers[1, 63 - t]


@cuda.jit
def last_block(x, partial, ticket, out):
    s = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x * 64]
        cuda.threadfence()
        s[0] = cuda.atomic.add(ticket, 0, 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1 and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])


@cuda.jit
def grid_sync(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    out[i] = x[i]
    grid.sync()
    value = out[(i + 64) % out.size]
    grid.sync()
    out[i] = value


@cuda.jit
def barrier_in_a_loop_of_one_length(x, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    for _ in range(x.size // 64):
        cuda.syncthreads()
        value = s[(t + 1) % 64]
        cuda.syncthreads()
        s[t] = value
    out[cuda.grid(1)] = s[t]


@cuda.jit
def whole_blocks_return_early(x, out):
    if cuda.blockIdx.x >= 2:
        return
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]


@cuda.jit
def guard_kept_out_of_the_barrier(x, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size - 10 else 0
    cuda.syncthreads()
    if i < x.size - 10:
        out[i] = s[63 - t]


@cuda.jit
def in_place_own_element(x, out):
    i = cuda.grid(1)
    x[i] += 1
    x[i] = x[i] * 2
    out[i] = x[i]


@cuda.jit
def many_read_one_element(x, out):
    out[cuda.grid(1)] = x[0] + x[5]


@cuda.jit
def zeroed_then_used_local(x, out):
    a = cuda.local.array(4, np.int32)
    for k in range(4):
        a[k] = 0
    for k in range(8):
        a[k % 4] += k
    out[cuda.grid(1)] = a[cuda.grid(1) % 4]


@cuda.jit
def predicated_read(x, out):
    i = cuda.grid(1)
    if i + 1 < x.size and x[i + 1] >= 0:
        out[i] = x[i + 1]


@cuda.jit
def counting_barrier_orders_memory(x, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    n = cuda.syncthreads_count(s[t])
    out[cuda.grid(1)] = s[63 - t] + n


@cuda.jit
def shuffles_need_no_memory(x, out):
    value = x[cuda.grid(1)]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = value


@cuda.jit
def blocks_own_disjoint_rows(x, out):
    for k in range(cuda.threadIdx.x, 64, cuda.blockDim.x):
        out[cuda.blockIdx.x * 64 + k] = x[(cuda.blockIdx.x * 64 + 64 - k) % x.size]


@cuda.jit
def neighbouring_bytes(x, out):
    """Neighbouring small elements share a word, not an element."""
    s = cuda.shared.array(64, np.int8)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]


X = np.arange(256, dtype=np.int32)
BLOCKS = X.reshape(4, 64)
REVERSED = BLOCKS[:, ::-1].ravel()
T = np.tile(np.arange(64), 4)


def padded(values):
    return np.concatenate([np.asarray(values), np.zeros(256 - len(values), int)])


SILENT = {
    tree_reduction: padded([X.sum()]),
    shared_histogram: padded([32] * 8),
    all_write_the_same_value: np.ones(256),
    blocks_write_the_same_value: padded([1]),
    warp_synchronous: padded(X.reshape(8, 32).sum(1)),
    warp_reads_through_shared: X.reshape(8, 32)[:, ::-1].ravel(),
    double_buffered: None,  # one block
    grid_sync: np.roll(X, -64),
    barrier_in_a_loop_of_one_length: (T + 4) % 64,
    whole_blocks_return_early: padded(REVERSED[:128]),
    guard_kept_out_of_the_barrier: None,
    in_place_own_element: (X + 1) * 2,
    many_read_one_element: np.full(256, 5),
    zeroed_then_used_local: np.tile([4, 6, 8, 10], 64),
    predicated_read: np.append(X[1:], 0),
    counting_barrier_orders_memory: REVERSED + np.repeat([63, 64, 64, 64], 64),
    shuffles_need_no_memory: padded(X.reshape(8, 32).sum(1)),
    blocks_own_disjoint_rows: None,
    neighbouring_bytes: 63 - T,
}


@pytest.mark.parametrize("kernel", SILENT, ids=[k.py_func.__name__ for k in SILENT])
@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_a_correct_kernel_is_silent(kernel, lanes):
    x, out = X.copy(), np.zeros(256, np.int32)
    grid, block = (1, 64) if kernel is double_buffered else (4, 32) if kernel is blocks_own_disjoint_rows else (4, 64)
    with simt.batch_lanes(lanes):
        report = simt.profile(kernel, grid, block, (x, out), level="check", collect=True)
    assert [h.message for h in report.hazards] == []
    expected = SILENT[kernel]
    if kernel is double_buffered:
        expected = padded(BLOCKS[:, ::-1].sum(0))
    elif kernel is guard_kept_out_of_the_barrier:
        expected = REVERSED.copy()
        expected[192:202] = 0  # the last 10 of x were not loaded, so the first 10 of that block read the zeros
        expected[246:] = 0
    elif kernel is blocks_own_disjoint_rows:
        expected = [(b * 64 + 64 - k) % 256 for b in range(4) for k in range(64)]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_the_last_block_pattern_with_threadfence_is_silent(lanes):
    partial, ticket, out = cuda.device_array(4, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    with simt.batch_lanes(lanes):
        report = simt.profile(last_block, 4, 64, (X.copy(), partial, ticket, out), level="check", collect=True)
    assert [h.message for h in report.hazards] == []
    assert out[0] == BLOCKS[:, 0].sum()


@cuda.jit
def last_block_resets_the_ticket(x, partial, ticket, out):
    s = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x * 64]
        cuda.threadfence()
        s[0] = cuda.atomic.add(ticket, 0, 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1:
        if t < cuda.gridDim.x:
            cuda.atomic.add(out, 0, partial[t])
        if t == 0:
            ticket[0] = 0


@pytest.mark.parametrize("lanes", [1, 1 << 20])
def test_the_last_block_may_reset_the_ticket_by_a_plain_store(lanes):
    ticket, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    args = X.copy(), cuda.device_array(4, np.int32), ticket, out
    with simt.batch_lanes(lanes):
        report = simt.profile(last_block_resets_the_ticket, 4, 64, args, level="check", collect=True)
    assert [h.message for h in report.hazards] == []
    assert (ticket[0], out[0]) == (0, BLOCKS[:, 0].sum())


@cuda.jit
def read_all(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


@pytest.mark.parametrize(
    "fill",
    [
        lambda x: x.copy_to_device(np.ones(64, np.float32)),
        lambda x: x[:].copy_to_device(np.ones(64, np.float32)),
        lambda x: x.__setitem__(slice(None), 1),
        lambda x: x.reshape(8, 8).__setitem__(slice(None), 1),  # not .T, which is a copy
        lambda x: [x[k : k + 16].copy_to_device(np.ones(16, np.float32)) for k in range(0, 64, 16)],
        lambda x: [x.__setitem__(k, 1) for k in range(64)],
        lambda x: x.view(np.int64).copy_to_device(np.ones(32, np.int64)),
        lambda x: x.view(np.uint8).__setitem__(slice(None, None, -1), 1),
        lambda x: simt.profile(fill_pairs, 1, 32, (x.view(np.int64),), level="check"),
        lambda x: simt.profile(fill_pairs, 1, 32, (x.view(np.int64),), level="run"),
    ],
    ids=["array", "view", "setitem", "reshaped", "parts", "elements", "wider", "bytes", "kernel", "run"],
)
def test_memory_filled_in_any_way_is_filled(fill):
    x, out = cuda.device_array(64, np.float32), np.zeros(64, np.float32)
    assert simt.profile(read_all, 1, 64, (x, out), level="check", collect=True).hazards
    fill(x)
    assert simt.profile(read_all, 1, 64, (x, out), level="check", collect=True).hazards == []


@cuda.jit
def fill_pairs(x):
    x[cuda.grid(1)] = 1


@cuda.jit
def dynamic_memory_of_three_types(x, out):
    t = cuda.threadIdx.x
    words = cuda.shared.array(0, np.int32)
    words[2 * t] = x[t]
    words[2 * t + 1] = 0
    cuda.syncthreads()
    pairs = cuda.shared.array(0, np.int64)
    total = pairs[63 - t]
    cuda.syncthreads()
    small = cuda.shared.array(0, np.uint8)
    small[8 * t] = 1
    cuda.syncthreads()
    out[t] = total + small[8 * (63 - t)] + pairs[63 - t] * 0


def test_dynamic_memory_seen_as_three_types_is_tracked_byte_by_byte():
    x, out = X[:64].copy(), np.zeros(64, np.int32)
    report = simt.profile(dynamic_memory_of_three_types, 1, 64, (x, out), level="check", collect=True, sharedmem=512)
    assert [h.message for h in report.hazards] == []
    np.testing.assert_array_equal(out, x[::-1] + 1)


def test_results_do_not_depend_on_the_level():
    results = []
    for level in ("run", "count", "check"):
        out = np.zeros(256, np.int32)
        simt.profile(tree_reduction, 4, 64, (X.copy(), out), level=level)
        results.append(out.tolist())
    assert results[0] == results[1] == results[2]
