"""Counters equal counts made by hand from the rules: a request is one warp executing one access, a sector is 32 bytes,
bases are 256-byte aligned, a wavefront is the worst bank of a request (32 banks of 4 bytes), a branch is one executed
if, while or for test of one warp, flops are of every precision and flops_f64 the double ones among them.
"""

import inspect

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

ACCESS = (
    "global_load_requests",
    "global_load_sectors",
    "global_load_bytes",
    "global_store_requests",
    "global_store_sectors",
    "global_store_bytes",
)
SHARED = ("shared_load_requests", "shared_load_wavefronts", "shared_store_requests", "shared_store_wavefronts")
NAMES = (
    ACCESS
    + SHARED
    + (
        "atomic_requests",
        "branches",
        "divergent_branches",
        "warp_instructions",
        "thread_instructions",
        "flops",
        "flops_f64",
        "barriers",
    )
)


def count(kernel, grid, block, *args, **options):
    return simt.profile(kernel, grid, block, args, level="count", **options).counters


def pick(counters, *names):
    return tuple(counters[name] for name in names)


def floats(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


@cuda.jit
def strided_read(x, out, stride, offset):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i * stride + offset]


@cuda.jit
def strided_write(x, out, stride, offset):
    i = cuda.grid(1)
    if i < x.size:
        out[i * stride + offset] = x[i]


# 1,024 elements, 4 blocks of 256 threads: 32 warps, so 32 requests a side. A warp's lanes touch 32 * stride * itemsize
# bytes; its sectors are the distinct multiples of 32 bytes that hold one of them.
STRIDES = {
    "coalesced": (np.float32, 1, 0, 4),  # 128 bytes
    "every second": (np.float32, 2, 0, 8),  # 256 bytes, every sector half used
    "every fourth": (np.float32, 4, 0, 16),  # 512 bytes
    "every eighth": (np.float32, 8, 0, 32),  # one lane a sector
    "every 32nd": (np.float32, 32, 0, 32),  # cannot be worse than one sector a lane
    "misaligned by one": (np.float32, 1, 1, 5),  # bytes 4 to 131 of a 128-byte aligned window
    "misaligned by eight": (np.float32, 1, 8, 4),  # whole sectors again
    "reversed": (np.float32, -1, 1023, 4),  # order inside a warp costs nothing
    "broadcast": (np.float32, 0, 5, 1),  # one address
    "float64": (np.float64, 1, 0, 8),  # 256 bytes
    "float64 every second": (np.float64, 2, 0, 16),
    "int8": (np.int8, 1, 0, 1),  # 32 bytes
    "int16 misaligned by one": (np.int16, 1, 1, 3),  # bytes 2 to 65
}


@pytest.mark.parametrize("dtype, stride, offset, sectors", STRIDES.values(), ids=STRIDES.keys())
def test_sectors_of_a_strided_read(dtype, stride, offset, sectors):
    x = np.zeros(1024 * max(stride, 1) + abs(offset), dtype)
    counters = count(strided_read, 4, 256, x, np.zeros(1024, dtype), stride, offset)
    aligned = 32 * x.itemsize // 32
    assert pick(counters, *ACCESS[:2]) == (32, 32 * sectors)
    assert pick(counters, *ACCESS[3:]) == (32, 32 * aligned, 1024 * x.itemsize)
    if stride:  # what a broadcast moves is a matter of definition
        assert counters["global_load_bytes"] == 1024 * x.itemsize


@pytest.mark.parametrize("name", [name for name in STRIDES if name != "broadcast"])
def test_sectors_of_a_strided_write(name):
    dtype, stride, offset, sectors = STRIDES[name]
    out = np.zeros(1024 * max(stride, 1) + abs(offset), dtype)
    counters = count(strided_write, 4, 256, np.zeros(1024, dtype), out, stride, offset)
    assert pick(counters, *ACCESS[3:]) == (32, 32 * sectors, 1024 * out.itemsize)


@pytest.mark.parametrize(
    "n, grid, block, requests, sectors, divergent",
    [
        # 31 full warps (124 sectors), then 8 lanes = 32 bytes; the guard splits that one warp
        (1000, 4, 256, 32, 125, 1),
        # the guard keeps the 32nd warp out as a whole: it tests, and reads nothing
        (992, 4, 256, 31, 124, 0),
        # blocks of 3 full warps and one of 4 lanes. Block 0 (bytes 0..399): 4 + 4 + 4 + 1 sectors; block 1 starts at
        # byte 400, in the middle of sector 12: 5 + 5 + 5 + 1
        (200, 2, 100, 8, 29, 0),
        # one lane
        (1, 1, 32, 1, 1, 1),
        # a block smaller than a warp has no idle lanes that could diverge
        (7, 1, 7, 1, 1, 0),
    ],
)
def test_guard_and_partial_warps(n, grid, block, requests, sectors, divergent):
    counters = count(strided_read, grid, block, floats(n), np.zeros(n, np.float32), 1, 0)
    assert pick(counters, *ACCESS) == (requests, sectors, 4 * n) * 2
    warps = grid * -(-block // 32)
    assert pick(counters, "branches", "divergent_branches") == (warps, divergent)


@cuda.jit
def copy_2d(x, out):
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]


@pytest.mark.parametrize(
    "block, sectors_a_warp",
    [
        ((32, 8), 4),  # a warp is a row of 128 bytes
        ((16, 16), 4),  # two rows of 64 bytes
        ((8, 8), 4),  # four rows of 32 bytes: still whole sectors
        ((4, 8), 8),  # eight rows of 16 bytes: half of each sector
        ((1, 32), 32),  # a column
    ],
)
def test_lanes_run_along_x_first(block, sectors_a_warp):
    grid = (64 // block[0], 64 // block[1])
    counters = count(copy_2d, grid, block, floats(64, 64), np.zeros((64, 64), np.float32))
    assert pick(counters, *ACCESS) == (128, 128 * sectors_a_warp, 4 * 4096) * 2


@cuda.jit
def naive_transpose(x, out):
    j, i = cuda.grid(2)
    out[j, i] = x[i, j]


def tiled_transpose(width, rows):
    """Tiles of 32 x 32 held in rows of `width` floats, moved by blocks of 32 x `rows` threads."""

    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array((32, width), np.float32)
        i = cuda.blockIdx.y * 32 + cuda.threadIdx.y
        j = cuda.blockIdx.x * 32 + cuda.threadIdx.x
        for k in range(0, 32, rows):
            tile[cuda.threadIdx.y + k, cuda.threadIdx.x] = x[i + k, j]
        cuda.syncthreads()
        i = cuda.blockIdx.x * 32 + cuda.threadIdx.y
        j = cuda.blockIdx.y * 32 + cuda.threadIdx.x
        for k in range(0, 32, rows):
            out[i + k, j] = tile[cuda.threadIdx.x, cuda.threadIdx.y + k]

    return kernel


# 64 x 64 floats: 4,096 elements = 128 warp accesses a side whatever the block. Rows cost 4 sectors a request, columns
# 32 (64 floats between lanes). Reading a column of the tile puts all 32 lanes in one bank: 32 wavefronts, or 1 with
# rows of 33.
TRANSPOSES = {
    "naive": (naive_transpose, 32, 128 * 32, 0, 0, 0),
    "naive with 8 rows": (naive_transpose, 8, 128 * 32, 0, 0, 0),
    "tiled": (tiled_transpose(32, 32), 32, 128 * 4, 128, 128 * 32, 4),
    "tiled with 8 rows": (tiled_transpose(32, 8), 8, 128 * 4, 128, 128 * 32, 4),
    "padded": (tiled_transpose(33, 32), 32, 128 * 4, 128, 128, 4),
    "padded with 8 rows": (tiled_transpose(33, 8), 8, 128 * 4, 128, 128, 4),
}


@pytest.mark.parametrize(
    "kernel, rows, store_sectors, shared, wavefronts, barriers", TRANSPOSES.values(), ids=TRANSPOSES
)
def test_transposes(kernel, rows, store_sectors, shared, wavefronts, barriers):
    x, out = floats(64, 64), np.zeros((64, 64), np.float32)
    grid = (2, 64 // rows if kernel is naive_transpose else 2)
    counters = count(kernel, grid, (32, rows), x, out)
    assert pick(counters, *ACCESS) == (128, 128 * 4, 4 * 4096, 128, store_sectors, 4 * 4096)
    assert pick(counters, *SHARED) == (shared, wavefronts, shared, shared)
    assert counters["barriers"] == barriers
    assert pick(counters, "flops", "flops_f64", "atomic_requests", "divergent_branches") == (0, 0, 0, 0)
    np.testing.assert_array_equal(out, x.T)


def shared_read(dtype, stride, offset=0):
    size = 32 * max(stride, 1) + offset

    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(size, dtype)
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            s[i] = i % 7
        cuda.syncthreads()
        out[cuda.threadIdx.x] = s[cuda.threadIdx.x * stride + offset]

    return kernel


@pytest.mark.parametrize(
    "dtype, stride, wavefronts",
    [
        (np.float32, 1, 1),
        (np.float32, 2, 2),
        (np.float32, 3, 1),
        (np.float32, 4, 4),
        (np.float32, 8, 8),
        (np.float32, 16, 16),
        (np.float32, 32, 32),
        (np.float32, 33, 1),
        (np.float32, 0, 1),  # a broadcast
        (np.int8, 1, 1),
        (np.int8, 4, 1),
        (np.int16, 1, 1),  # several lanes in one 4-byte word are no conflict
        (np.int8, 128, 32),
        (np.int16, 4, 2),
        (np.float64, 1, 2),  # 256 bytes need two passes over 32 banks
        (np.float64, 2, 4),
    ],
    ids=str,
)
def test_bank_conflicts_of_a_shared_read(dtype, stride, wavefronts):
    counters = count(shared_read(dtype, stride), 1, 32, np.zeros(32, dtype))
    assert pick(counters, *SHARED[:2]) == (1, wavefronts)


LANE = np.arange(32)
PAIRS, SQUARES = LANE // 2, LANE // 4 * 2 + LANE % 2


@pytest.mark.parametrize(
    "order, of_8_bytes, of_16_bytes",
    [
        # wavefronts and bank conflicts; without sharing two groups of 16 lanes, or four of 8
        (LANE, (2, 0), (4, 0)),
        (0 * LANE, (1, 0), (2, 0)),  # neighbours share: one group of 32 lanes, or two of 16
        (PAIRS, (1, 0), (2, 0)),
        (SQUARES, (1, 0), (2, 0)),
        (LANE // 4, (1, 0), (2, 0)),
        (8 * PAIRS, (8, 7), (16, 14)),  # 16 elements, all in one bank of 16 bytes, in two banks of 8 bytes
        (LANE % 16, (2, 0), (4, 0)),  # lanes share, but not with a neighbour
        (np.where(LANE < 16, PAIRS, LANE), (2, 0), (4, 0)),  # all lanes must
        (np.where(LANE < 16, PAIRS, SQUARES), (2, 0), (4, 0)),  # and in one way
        (np.where(LANE == 5, -1, PAIRS), (1, 0), (2, 0)),  # who is not active agrees
        (np.where(LANE % 2, -1, LANE), (2, 1), (4, 2)),  # and there is no choice: these 16 are one group, in conflict
        (np.where(LANE < 16, LANE, -1), (1, 0), (2, 0)),
        (np.where(LANE == 9, LANE, -1), (1, 0), (1, 0)),
    ],
    ids=["each", "one", "pairs", "squares", "fours", "conflict", "halves", "half", "both ways", "lane 5 off", "even",
         "lower half", "lane 9"],
)  # fmt: skip
def test_wide_shared_loads_in_which_neighbours_share(order, of_8_bytes, of_16_bytes):
    @cuda.jit
    def loads(order, out, out_4):
        wide, wider = cuda.shared.array(256, np.float64), cuda.shared.array(1024, np.float32, alignment=16)
        for i in range(cuda.threadIdx.x, 256, 32):
            wide[i] = 0
            cuda.store128(wider, 4 * i, (np.float32(0), np.float32(0), np.float32(0), np.float32(0)))
        cuda.syncthreads()
        k = order[cuda.threadIdx.x]
        if k >= 0:
            out[cuda.threadIdx.x] = wide[k]
            cuda.store128(out_4, 4 * cuda.threadIdx.x, cuda.load128(wider, 4 * k))

    report = simt.profile(loads, 1, 32, (order, np.zeros(32), np.zeros(128, np.float32)), trace=True)
    lines, first = inspect.getsourcelines(loads.py_func)
    for text, expected in (("wide[k]", of_8_bytes), ("load128(wider", of_16_bytes)):
        found = report.by_line[first + next(i for i, line in enumerate(lines) if text in line)]
        assert pick(found, "shared_load_wavefronts", "shared_load_bank_conflicts") == expected
    traced = [report.trace.accesses(name, kind="load")[0].wavefronts for name in ("wide", "wider")]
    assert traced == [of_8_bytes[0], of_16_bytes[0]]


def test_wide_shared_stores_share_nothing():
    @cuda.jit
    def stores(x):
        wide = cuda.shared.array(32, np.float64)
        if cuda.threadIdx.x % 2 == 0:
            wide[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    counters = count(stores, 1, 32, np.zeros(32))
    assert pick(counters, "shared_store_wavefronts", "shared_store_bank_conflicts") == (2, 0)


@cuda.jit
def copy_128(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        cuda.store128(out, i, cuda.load128(x, i))


def test_a_128_bit_copy_makes_a_quarter_of_the_requests():
    # 1,024 floats by 256 threads: 8 warps, each one request of 512 bytes = 16 sectors
    counters = count(copy_128, 2, 128, floats(1024), np.zeros(1024, np.float32))
    assert pick(counters, *ACCESS) == (8, 8 * 16, 4096) * 2


@cuda.jit
def diverge(out):
    t = cuda.threadIdx.x
    if t % 2 == 0:
        out[t] = 1
    else:
        out[t] = 2


@cuda.jit
def split_by_warp(out):
    t = cuda.threadIdx.x
    if t < 32:
        out[t] = 1
    else:
        out[t] = 2


@cuda.jit
def nested(out):
    t = cuda.threadIdx.x
    if t < 16:
        if t < 8:
            out[t] = 1
        elif t < 12:
            out[t] = 2


@cuda.jit
def uniform_for(out):
    s = 0
    for k in range(5):
        s += k
    out[cuda.threadIdx.x] = s


@cuda.jit
def divergent_for(out):
    s = 0
    for k in range(cuda.threadIdx.x % 4):
        s += k
    out[cuda.threadIdx.x] = s


@cuda.jit
def divergent_while(out):
    k = 0
    while k < cuda.threadIdx.x % 4:
        k += 1
    out[cuda.threadIdx.x] = k


@cuda.jit
def empty_for(out):
    for k in range(out.size - out.size):
        out[k] = 1


@pytest.mark.parametrize(
    "kernel, branches, divergent, store_requests",
    [
        (diverge, 2, 2, 4),  # both warps test once and split; each store is executed by both warps
        (split_by_warp, 2, 0, 2),  # each warp goes one way
        (
            nested,
            4,
            3,
            2,
        ),  # warp 0: t<16 splits, t<8 splits, t<12 is tested by lanes 8-15 and splits; warp 1: t<16 only
        (uniform_for, 12, 0, 2),  # 5 iterations are 6 tests, twice
        # trip counts 0, 1, 2, 3: four tests; the first three let some lanes go and keep others, at the last all leave
        (divergent_for, 8, 6, 2),
        (divergent_while, 8, 6, 2),
        (empty_for, 2, 0, 0),
    ],
    ids=lambda v: getattr(getattr(v, "py_func", None), "__name__", None),
)
def test_branches(kernel, branches, divergent, store_requests):
    counters = count(kernel, 1, 64, np.zeros(64, np.int32))
    assert pick(counters, "branches", "divergent_branches") == (branches, divergent)
    assert counters["global_store_requests"] == store_requests


@cuda.jit
def axpy(a, b, c, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * b[i] + c[i]


@cuda.jit
def fused(a, b, c, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = cuda.fma(a[i], b[i], c[i])


@cuda.jit
def accumulate(a, b, c, out):
    i = cuda.grid(1)
    if i < out.size:
        s = c[i]
        for _ in range(3):
            s += a[i] * b[i]
            s -= c[i]
        out[i] = s


@cuda.jit
def add_complex(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@cuda.jit
def multiply_complex(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * b[i]


@cuda.jit
def divide_complex(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] / b[i]


@pytest.mark.parametrize("kernel, flops", [(add_complex, 2), (multiply_complex, 6), (divide_complex, 9)])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_flops_of_complex_numbers_are_those_of_their_parts(kernel, flops, dtype):
    ones = np.ones(1000, dtype)
    counters = count(kernel, 8, 128, ones, ones, np.zeros_like(ones))
    assert pick(counters, "flops", "flops_f64") == (1000 * flops, 1000 * flops if dtype == np.complex128 else 0)


@pytest.mark.parametrize("kernel, flops", [(axpy, 2), (fused, 2), (accumulate, 9)], ids=["a*b+c", "fma", "loop"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32], ids=lambda t: t.__name__)
def test_flops_are_counted_for_active_lanes_by_precision(kernel, flops, dtype):
    if dtype is np.int32 and kernel is fused:
        pytest.skip("fma of int32 is computed in float64")
    a = np.ones(1000, dtype)
    counters = count(kernel, 4, 256, a, a, a, np.zeros(1000, dtype))
    expected = {np.float32: (1000 * flops, 0), np.float64: (1000 * flops, 1000 * flops), np.int32: (0, 0)}[dtype]
    assert pick(counters, "flops", "flops_f64") == expected


@cuda.jit
def literal_makes_it_double(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * 2.0


def test_accidental_float64_shows_in_the_counters():
    assert pick(count(literal_makes_it_double, 1, 32, floats(32), floats(32)), "flops", "flops_f64") == (32, 32)


@cuda.jit
def barriers_in_a_loop(out):
    for _ in range(3):
        cuda.syncthreads()
    out[cuda.grid(1)] = cuda.syncthreads_count(1)
    cuda.syncwarp()


def test_barriers_are_counted_once_a_block():
    assert count(barriers_in_a_loop, 5, 96, np.zeros(480, np.int32))["barriers"] == 5 * 4


@cuda.jit
def histogram(x, bins):
    local = cuda.shared.array(8, np.int32)
    if cuda.threadIdx.x < 8:
        local[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(local, x[i], 1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 8:
        cuda.atomic.add(bins, cuda.threadIdx.x, local[cuda.threadIdx.x])


def test_atomics():
    # 4 blocks of 8 warps over 1,000 elements: 32 warps add in shared memory, then one warp a block adds 8 bins
    x, bins = (floats(1000) % 8).astype(np.int32), np.zeros(8, np.int32)
    counters = count(histogram, 4, 256, x, bins)
    assert counters["atomic_requests"] == 32 + 4
    assert counters["global_load_requests"] == 32
    assert counters["global_store_requests"] == 0
    assert bins.tolist() == [125] * 8


@cuda.jit
def naive_matmul(a, b, c):
    j, i = cuda.grid(2)
    s = np.float32(0)
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


def test_naive_matmul():
    # 32^3 with blocks of 16 x 16: a warp is two rows of 16 columns. A step reads a at 2 addresses of 2 rows (2 sectors)
    # and 16 floats of one row of b (2 sectors); 32 warps, 32 steps. c: two rows of 64 bytes a warp.
    a, b, c = floats(32, 32), floats(32, 32), np.zeros((32, 32), np.float32)
    counters = count(naive_matmul, (2, 2), (16, 16), a, b, c)
    assert pick(counters, *ACCESS[:2]) == (32 * 32 * 2, 32 * 32 * 4)
    assert pick(counters, *ACCESS[3:]) == (32, 32 * 4, 4096)
    assert counters["flops"] == 2 * 32**3
    assert counters["branches"] == 32 * 33


@pytest.mark.parametrize(
    "kernel, grid, block, make_args",
    [
        (tiled_transpose(32, 8), (2, 2), (32, 8), lambda: (floats(64, 64), np.zeros((64, 64), np.float32))),
        (histogram, 8, 128, lambda: ((floats(1000) % 8).astype(np.int32), np.zeros(8, np.int32))),
        (divergent_while, 1, 100, lambda: (np.zeros(100, np.int32),)),
        (accumulate, 4, 256, lambda: (floats(1000),) * 3 + (np.zeros(1000, np.float32),)),
    ],
    ids=["transpose", "histogram", "while", "accumulate"],
)
def test_lines_add_up_and_the_batch_size_changes_nothing(kernel, grid, block, make_args):
    report = simt.profile(kernel, grid, block, make_args())
    assert set(NAMES) <= set(report.counters)
    assert all(isinstance(value, int) for value in report.counters.values())
    for name in NAMES:
        assert sum(line.get(name, 0) for line in report.by_line.values()) == report.counters[name], name
    for lanes in (1, 256, 1 << 20):
        with simt.batch_lanes(lanes):
            assert simt.profile(kernel, grid, block, make_args()).counters == report.counters


def test_by_line_points_at_the_source():
    lines, first = inspect.getsourcelines(axpy.py_func)
    number = first + next(k for k, text in enumerate(lines) if "a[i] * b[i]" in text)
    report = simt.profile(axpy, 1, 64, (floats(64),) * 3 + (floats(64),))
    assert pick(report.by_line[number], "global_load_requests", "global_store_requests", "flops") == (6, 2, 128)


def test_instruction_counts_follow_the_active_lanes():
    full = count(axpy, 1, 64, floats(64), floats(64), floats(64), floats(64))
    assert full["thread_instructions"] == 32 * full["warp_instructions"] > 0
    half = count(nested, 1, 64, np.zeros(64, np.int32))
    assert 0 < half["thread_instructions"] < 32 * half["warp_instructions"]


QUARTER = 0.25


@cuda.jit
def casts_of_constants(out):
    i = cuda.grid(1)
    a = np.float32(QUARTER)  # one conversion each, though the result is known before
    b = np.float32(-0.5)
    c = np.float32(-QUARTER)  # and an instruction for the sign
    d = np.float32(np.int32(3))  # two conversions
    out[i] = a + b + c + d


def test_a_cast_of_a_constant_is_counted_as_any_other():
    out = np.zeros(32, np.float32)
    counters = simt.profile(casts_of_constants, 1, 32, (out,)).counters
    assert (out == 2.5).all()
    assert counters["inst_conversion"] == 5
    assert counters["inst_fp32"] == 3
    assert counters["inst_fp64"] == 1
