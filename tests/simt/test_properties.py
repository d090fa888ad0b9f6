"""Properties over random shapes, programs and data, against NumPy or plain Python.

The draws are the same on every run.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.values.dtypes import as_intp

FEW = settings(max_examples=30, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.one_of(st.sampled_from([0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129]), st.integers(0, 300))
BLOCKS = st.sampled_from([1, 7, 32, 33, 64, 100, 128])
BATCHES = st.sampled_from([1, 64, 100, 1 << 20])


@cuda.jit
def fused_grid_stride(a, b, c, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] * b[i] - c[i]


@FEW
@given(SEEDS, SIZES, st.integers(1, 9), BLOCKS, st.sampled_from(["i4", "i8", "f4", "f8", "u1"]), BATCHES)
def test_elementwise_over_any_size_and_launch(seed, n, grid, block, dtype, lanes):
    rng = np.random.default_rng(seed)
    a, b, c = (rng.integers(0, 100, n).astype(dtype) for _ in range(3))
    out = np.zeros(n, dtype)
    with simt.batch_lanes(lanes):
        fused_grid_stride[grid, block](a, b, c, out)
    np.testing.assert_array_equal(out, a * b - c)


@cuda.jit
def fused_3d(x, y, out):
    k, j, i = cuda.grid(3)
    if i < out.shape[0] and j < out.shape[1] and k < out.shape[2]:
        out[i, j, k] = x[i, j, k] - y[k, i]


@FEW
@given(st.tuples(*[st.integers(1, 6)] * 3), st.tuples(*[st.integers(1, 4)] * 3), st.booleans())
def test_elementwise_over_any_three_dimensional_shape_and_block(shape, block, fortran):
    x = np.array(np.arange(np.prod(shape), dtype=np.float64).reshape(shape), order="F" if fortran else "C")
    y = np.arange(shape[2] * shape[0], dtype=np.float64).reshape(shape[2], shape[0])
    out = np.zeros(shape)
    fused_3d[tuple(-(-n // b) for n, b in zip(shape[::-1], block, strict=True)), block](x, y, out)
    np.testing.assert_array_equal(out, x - y.T[:, None, :])


PUSH, ADD, SUB, MUL, AND, XOR, FLOORDIV, MOD, MIN, SHIFT, LESS = range(11)


@cuda.jit(device=True)
def apply(op, a, b):
    if op == ADD:
        return a + b
    if op == SUB:
        return a - b
    if op == MUL:
        return a * b
    if op == AND:
        return a & b
    if op == XOR:
        return a ^ b
    if op == FLOORDIV:
        return a // b
    if op == MOD:
        return a % b
    if op == MIN:
        return min(a, b)
    if op == SHIFT:
        return a << (b & 7)
    return 1 if a < b else 0


@cuda.jit
def stack_machine(programs, operands, out):
    """Every thread runs its own postfix program over int64."""
    i = cuda.grid(1)
    if i >= out.size:
        return
    stack = cuda.local.array(16, np.int64)
    top = 0
    for step in range(programs.shape[1]):
        op = programs[i, step]
        if op < 0:
            break
        if op == PUSH:
            stack[top] = operands[i, step]
            top += 1
            continue
        top -= 1
        stack[top - 1] = apply(op, stack[top - 1], stack[top])
    out[i] = stack[0]


def wrap(v):
    return (v + 2**63) % 2**64 - 2**63


def run_program(program, operands):
    stack = []
    for op, operand in zip(program.tolist(), operands.tolist(), strict=True):
        if op < 0:
            break
        if op == PUSH:
            stack.append(operand)
            continue
        b, a = stack.pop(), stack.pop()
        stack.append(
            wrap(
                a + b
                if op == ADD
                else a - b
                if op == SUB
                else a * b
                if op == MUL
                else a & b
                if op == AND
                else a ^ b
                if op == XOR
                else (a // b if b else 0)
                if op == FLOORDIV
                else (a % b if b else 0)
                if op == MOD
                else min(a, b)
                if op == MIN
                else a << (b & 7)
                if op == SHIFT
                else int(a < b)
            )
        )
    return stack[0]


def random_program(rng, length=15):
    program, depth = [PUSH], 1
    while len(program) < length - depth:
        op = PUSH if depth < 2 or rng.random() < 0.4 else int(rng.integers(ADD, LESS + 1))
        program.append(op)
        depth += 1 if op == PUSH else -1
    program += [int(rng.integers(ADD, LESS + 1)) for _ in range(depth - 1)]
    return program + [-1] * (length - len(program))


@FEW
@given(SEEDS, st.integers(1, 80), BLOCKS, BATCHES)
def test_every_lane_may_run_its_own_program(seed, n, block, lanes):
    rng = np.random.default_rng(seed)
    programs = np.array([random_program(rng) for _ in range(n)], np.int32)
    operands = rng.integers(-20, 20, programs.shape) * rng.choice([1, 1, 1, 2**40], programs.shape)
    out = np.zeros(n, np.int64)
    with simt.batch_lanes(lanes):
        stack_machine[-(-n // block), block](programs, operands, out)
    expected = [run_program(p, v) for p, v in zip(programs, operands, strict=True)]
    assert out.tolist() == expected


@cuda.jit
def gather_and_scatter(p, x, gathered, scattered):
    i = cuda.grid(1)
    if i < x.size:
        gathered[i] = x[p[i]]
        scattered[p[i]] = x[i]


def distinct(groups):
    return sum(len(set(group.tolist())) for group in groups)


def warps(values, block):
    """The values in the order of threads, cut into warps of the blocks they belong to."""
    blocks = [values[b : b + block] for b in range(0, len(values), block)]
    return [threads[w : w + 32] for threads in blocks for w in range(0, len(threads), 32)]


@FEW
@given(SEEDS, SIZES, BLOCKS, BATCHES)
def test_gather_and_scatter_by_a_permutation_and_their_sectors(seed, n, block, lanes):
    rng = np.random.default_rng(seed)
    p, x = rng.permutation(n).astype(np.int64), rng.random(n).astype(np.float32)
    gathered, scattered = np.zeros(n, np.float32), np.zeros(n, np.float32)
    grid = max(1, -(-n // block))
    with simt.batch_lanes(lanes):
        report = simt.profile(gather_and_scatter, grid, block, (p, x, gathered, scattered), level="check")
    assert report.hazards == []
    np.testing.assert_array_equal(gathered, x[p])
    np.testing.assert_array_equal(scattered[p], x)
    threads = np.arange(n)
    random, straight = distinct(warps(p // 8, block)), distinct(warps(threads // 8, block))
    indices = distinct(warps(threads // 4, block))  # p is int64; it is read twice
    assert report.counters["global_load_sectors"] == 2 * indices + random + straight
    assert report.counters["global_store_sectors"] == straight + random
    assert report.counters["global_load_requests"] == 4 * len(warps(threads, block))


@cuda.jit
def shared_gather(p, out):
    s = cuda.shared.array(256, np.int32)
    t = cuda.threadIdx.x
    for k in range(t, 256, cuda.blockDim.x):
        s[k] = k
    cuda.syncthreads()
    out[t] = s[p[t]]


@FEW
@given(SEEDS, BLOCKS)
def test_wavefronts_of_a_shared_gather(seed, block):
    p = np.random.default_rng(seed).integers(0, 256, block)
    out = np.zeros(block, np.int32)
    counters = simt.profile(shared_gather, 1, block, (p, out)).counters
    np.testing.assert_array_equal(out, p)
    expected = sum(np.bincount(as_intp(np.unique(warp) % 32)).max() for warp in warps(p, block))
    assert counters["shared_load_wavefronts"] == expected


@cuda.jit
def atomics(keys, values, count, total, top, bottom):
    i = cuda.grid(1)
    if i < keys.size:
        cuda.atomic.add(count, keys[i], 1)
        cuda.atomic.add(total, keys[i], values[i])
        cuda.atomic.max(top, keys[i], values[i])
        cuda.atomic.min(bottom, keys[i], values[i])


@FEW
@given(SEEDS, SIZES, BLOCKS, st.integers(1, 40), BATCHES)
def test_random_atomics(seed, n, block, bins, lanes):
    rng = np.random.default_rng(seed)
    keys, values = rng.integers(0, bins, n), rng.integers(-1000, 1000, n).astype(np.float64)
    count, total = np.zeros(bins, np.int32), np.zeros(bins)
    top, bottom = np.full(bins, -2000.0), np.full(bins, 2000.0)
    with simt.batch_lanes(lanes):
        atomics[max(1, -(-n // block)), block](keys, values, count, total, top, bottom)
    np.testing.assert_array_equal(count, np.bincount(as_intp(keys), minlength=bins))
    np.testing.assert_array_equal(total, np.bincount(as_intp(keys), values, minlength=bins))
    expected_top, expected_bottom = np.full(bins, -2000.0), np.full(bins, 2000.0)
    np.maximum.at(expected_top, keys, values)
    np.minimum.at(expected_bottom, keys, values)
    np.testing.assert_array_equal(top, expected_top)
    np.testing.assert_array_equal(bottom, expected_bottom)


@cuda.jit
def scan_block(x, out):
    s = cuda.shared.array((2, 128), np.int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[0, t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    side = 0
    distance = 1
    while distance < cuda.blockDim.x:
        if t >= distance:
            s[1 - side, t] = s[side, t] + s[side, t - distance]
        else:
            s[1 - side, t] = s[side, t]
        side = 1 - side
        distance *= 2
        cuda.syncthreads()
    if i < x.size:
        out[i] = s[side, t]


@FEW
@given(SEEDS, SIZES, BLOCKS, BATCHES)
def test_block_scan_is_a_cumulative_sum_without_hazards_and_its_counters_are_those_of_one_batch(seed, n, block, lanes):
    x = np.random.default_rng(seed).integers(-100, 100, n)
    grid = max(1, -(-n // block))
    out, again = np.zeros(n, np.int64), np.zeros(n, np.int64)
    report = simt.profile(scan_block, grid, block, (x, out), level="check")
    with simt.batch_lanes(lanes):
        in_batches = simt.profile(scan_block, grid, block, (x, again), level="check")
    assert report.hazards == in_batches.hazards == []
    assert report.counters == in_batches.counters
    assert report.by_line == in_batches.by_line
    expected = np.concatenate([np.cumsum(x[b : b + block]) for b in range(0, max(n, 1), block)])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(again, expected)


@cuda.jit
def permute_lanes(x, source, out):
    i = cuda.grid(1)
    out[i] = cuda.shfl_sync(0xFFFFFFFF, x[i], source[i])


@FEW
@given(SEEDS, st.integers(1, 4), st.integers(1, 3))
def test_shuffle_by_random_lanes(seed, warps_a_block, grid):
    rng = np.random.default_rng(seed)
    n = 32 * warps_a_block * grid
    x, source = rng.random(n), rng.integers(0, 64, n)
    out = np.zeros(n)
    permute_lanes[grid, 32 * warps_a_block](x, source, out)
    np.testing.assert_array_equal(out, x[np.arange(n) // 32 * 32 + source % 32])


@cuda.jit
def tiled_transpose(x, out):
    tile = cuda.shared.array((8, 9), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    i = cuda.blockIdx.y * 8 + ty
    j = cuda.blockIdx.x * 8 + tx
    if i < x.shape[0] and j < x.shape[1]:
        tile[ty, tx] = x[i, j]
    cuda.syncthreads()
    i = cuda.blockIdx.x * 8 + ty
    j = cuda.blockIdx.y * 8 + tx
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = tile[tx, ty]


@FEW
@given(st.integers(1, 30), st.integers(1, 30), BATCHES)
def test_tiled_transpose_of_any_shape(rows, columns, lanes):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    out = np.zeros((columns, rows), np.float32)
    with simt.batch_lanes(lanes):
        report = simt.profile(tiled_transpose, (-(-columns // 8), -(-rows // 8)), (8, 8), (x, out), level="check")
    assert report.hazards == []
    np.testing.assert_array_equal(out, x.T)
