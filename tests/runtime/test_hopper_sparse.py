"""Products of tiles with 2:4 sparsity: bits, what Numba emits, and what is refused."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, hopper_sparse
from pmpp.runtime.hopper import (
    copies_visible,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_sparse import wgmma_sp_bf16, wgmma_sp_f16
from pmpp.simt.api import intrinsics
from pmpp.simt.values import sparse_tiles
from pmpp.simt.values.errors import SimtError, UnsupportedError
from pmpp.simt.values.sparse_tensor_cores import ORDERED
from tests.runtime.test_hopper import HOPPER, MAP, NOTHING, brains, bring, halves, hopper_only, numba_error

COLUMNS = (64, 128, 192, 256)
KINDS = [("wgmma_sp_f16", wgmma_sp_f16, halves), ("wgmma_sp_bf16", wgmma_sp_bf16, brains)]


def kernel_of(columns, multiply):
    """A block of four warps multiplies 64 x 128, of which 64 x 64 are stored, by 128 x ``columns``.

    Metadata: (4, 2, 32), of each warp a word of its lanes for the first 64 columns, and one for the others.
    """
    nothing, count, panels = NOTHING[columns], columns // 2, columns // 64

    @cuda.jit
    def kernel(a_map, b_map, maps, metadata, c):
        tiles, full = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t, sums = cuda.threadIdx.x, nothing
        bring(a_map, b_map, maps, tiles, full, 128, panels)
        wgmma_fence()
        for both in range(2):
            a, b, word = 32 * both, 4096 + 4096 * both, metadata[t // 32, both, t % 32]
            sums = multiply(tile_descriptor(tiles, a, 0), tile_descriptor(tiles, b, 8192), sums, word, 0)
            sums = multiply(tile_descriptor(tiles, a + 16, 0), tile_descriptor(tiles, b + 2048, 8192), sums, word, 1)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        for i in range(count):
            c[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]

    return kernel


def random_metadata(rng):
    fours = rng.choice(np.array(ORDERED, np.uint32), (4, 2, 32, 8))
    return (fours << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)


def product(a, b, metadata, multiply):
    """Of 16-bit numbers, 64 x 64 that are stored and 128 x n."""
    a, b, metadata = map(device.to_device, (a, b, metadata))
    c, maps = device.empty((64, b.shape[1]), np.float32), device.empty(32, np.uint64)
    kernel = kernel_of(b.shape[1], multiply)
    shared = 2 * (64 * 64 + 128 * b.shape[1])
    kernel[1, 128, 0, shared](tensor_map(a, 64, 64), tensor_map(b, 128, 64), maps, metadata, c)
    return device.to_host(c)


def modelled(name, a, b, metadata):
    """The same by the arithmetic that the interpreter has."""
    rows = []
    for warp in range(4):
        sums = np.zeros((16, b.shape[1]), np.float32)
        for step in range(4):
            left, right = a[16 * warp : 16 * warp + 16, 16 * step : 16 * step + 16], b[32 * step : 32 * step + 32]
            sums = sparse_tiles.multiply(name, left, right, sums, metadata[warp, step // 2], step % 2)
        rows.append(sums)
    return np.vstack(rows)


def with_zeros(a, metadata):
    """The 64 x 128 matrix, element by element, as the documentation says where each belongs."""
    full = np.zeros((64, 128), a.dtype)
    for row in range(64):
        for four in range(32):
            step, within = divmod(four, 8)
            lane = 4 * (row % 8) + 2 * (step % 2) + within // 4
            word = int(metadata[row // 16, step // 2, lane])
            bits = word >> (4 * (within % 4) + 16 * (row % 16 // 8)) & 15
            full[row, 4 * four + (bits & 3)] = a[row, 2 * four]
            full[row, 4 * four + (bits >> 2)] = a[row, 2 * four + 1]
    return full


def test_stored_numbers_belong_where_the_metadata_says(rng):
    """Of small whole numbers every sum is exact: this is the layout, on both backends."""
    a, b = rng.integers(-9, 10, (64, 64)).astype(np.float16), rng.integers(-9, 10, (128, 64)).astype(np.float16)
    metadata = random_metadata(rng)
    found = product(a.view(np.uint16), b.view(np.uint16), metadata, wgmma_sp_f16)
    np.testing.assert_array_equal(found, with_zeros(a.astype(float), metadata) @ b.astype(float))


@hopper_only
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("name", "multiply", "draw"), KINDS)
def test_a_product_has_the_bits_of_the_model(rng, columns, name, multiply, draw):
    for spread in (0, 12) if columns == 64 else (3,):
        a, b, metadata = draw(rng, (64, 64), spread), draw(rng, (128, columns), spread), random_metadata(rng)
        found = product(a, b, metadata, multiply)
        np.testing.assert_array_equal(found.view(np.uint32), modelled(name, a, b, metadata).view(np.uint32))


@hopper_only
def test_what_is_not_finite_meets_only_what_is_stored():
    """Of each four numbers of a row the first two are stored: rows 2 and 3 of each four rows of b are never seen."""
    a, b = np.ones((64, 64), np.float16), np.ones((128, 64), np.float16)
    b[2::4], b[3::4], a[5, 6] = np.nan, np.inf, np.inf
    found = product(a.view(np.uint16), b.view(np.uint16), np.full((4, 2, 32), FIRST_TWO), wgmma_sp_f16)
    assert np.isposinf(found[5]).all()
    assert (np.delete(found, 5, axis=0) == 64).all()


# ---------------------------------------------------------------------------------------------------- what Numba emits

FIRST_TWO = np.uint32(0x44444444)
LONG, SUMS, WORD = np.uint64(0), NOTHING[64], np.uint32(0)
ARGUMENTS = MAP, MAP, np.zeros(32, np.uint64), np.zeros((4, 2, 32), np.uint32), np.zeros((64, 64), np.float32)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("multiply", "kind"), [(wgmma_sp_f16, "f16"), (wgmma_sp_bf16, "bf16")])
def test_each_name_is_one_instruction_with_its_selector(ptx, columns, multiply, kind):
    text = ptx(kernel_of(columns, multiply), *ARGUMENTS, cc=HOPPER)
    found = re.findall(r"(wgmma\.mma_async\S*)\s[^;]*, (\d), (p(?:, \d)+);", text)
    name = f"wgmma.mma_async.sp.sync.aligned.m64n{columns}k32.f32.{kind}.{kind}"
    assert found == [(name, selector, "p, 1, 1, 0, 1") for selector in "0101"]
    assert not re.search(r"\.local\b", text)  # the sums stay in registers


def multiply_only(a, b, c, e):
    wgmma_sp_f16(a, b, c, e, 0)


def selected(a, b, c, e, selector):
    wgmma_sp_f16(a, b, c, e, selector)


def third_selector(a, b, c, e):
    wgmma_sp_bf16(a, b, c, e, 2)


@pytest.mark.parametrize("cc", [(8, 0), (10, 0)])
def test_another_gpu_is_refused_by_name(ptx, cc):
    said = f"wgmma_sp_f16 needs a GPU of compute capability 9.0, and compiles for {'.'.join(map(str, cc))}"
    assert said in numba_error(ptx, multiply_only, LONG, LONG, SUMS, WORD, cc=cc)


REFUSED = [
    (multiply_only, (1, LONG, SUMS, WORD), r"wgmma_sp_f16: a must be a descriptor \(uint64\), was int64"),
    (multiply_only, (LONG, 0.5, SUMS, WORD), r"wgmma_sp_f16: b must be a descriptor \(uint64\), was float64"),
    (multiply_only, (LONG, LONG, SUMS[:4], WORD), r"wgmma_sp_f16: c must be a tuple of 32, 64, 96 or 128 float32, was"),
    (multiply_only, (LONG, LONG, SUMS, np.int32(0)), r"wgmma_sp_f16: metadata must be a uint32, was int32"),
    (selected, (LONG, LONG, SUMS, WORD, 0), r"wgmma_sp_f16: selector must be a literal, from 0 to 1, was"),
    (third_selector, (LONG, LONG, SUMS, WORD), r"wgmma_sp_bf16: selector must be a literal, from 0 to 1, was 2"),
]


@pytest.mark.parametrize(("kernel", "arguments", "sentence"), REFUSED)
def test_what_cannot_work_is_a_typing_error(ptx, kernel, arguments, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *arguments))


# ------------------------------------------------------------------------------------------------------ the interpreter


@pytest.mark.parametrize(("kernel", "arguments", "sentence"), REFUSED)
def test_the_interpreter_refuses_the_same(kernel, arguments, sentence):
    with pytest.raises(UnsupportedError, match=sentence):
        simt.cuda.jit(kernel)[1, 128](*arguments)


def watched(kernel, metadata):
    """What the interpreter says of a launch with 64 columns."""
    a, b = simt.cuda.to_device(np.zeros((64, 64), np.uint16)), simt.cuda.to_device(np.zeros((128, 64), np.uint16))
    c = simt.cuda.to_device(np.zeros((64, 64), np.float32))
    with simt.record("check", collect=True) as reports:
        kernel[1, 128, 0, 2 * (64 * 64 + 128 * 64)](a, b, simt.cuda.to_device(metadata), c)
    return reports[0]


def filled_kernel(early=False, fences=True, begin=4096):
    """A product of zeros that the threads put into shared memory, with one thing exchanged."""
    nothing = NOTHING[64]

    @simt.cuda.jit
    def kernel(a, b, metadata, c):
        tiles, t = simt.cuda.shared.array(0, np.uint16, alignment=1024), simt.cuda.threadIdx.x
        for i in range(t, a.size + b.size, 128):
            tiles[i] = 0
        copies_visible()
        simt.cuda.syncthreads()
        sums, word = nothing, metadata[t // 32, 0, t % 32]
        if fences:
            wgmma_fence()
        sums = wgmma_sp_f16(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, begin, 8192), sums, word, 0)
        wgmma_commit()
        if early:
            c[t // 32 * 16 + t % 32 // 4, t % 4 * 2] = sums[0]
        sums = wgmma_wait(0, sums)
        c[t // 32 * 16 + t % 32 // 4, t % 4 * 2] = sums[0]

    return kernel


RANDOM = random_metadata(np.random.default_rng(0))


def test_a_right_product_is_clean_and_counts_what_is_stored():
    report = watched(filled_kernel(), RANDOM)
    assert report.counters["tensor_flops"] == 2 * 64 * 64 * 16
    assert not report.hazards


def test_sums_under_way_are_not_read():
    (found, *_) = watched(filled_kernel(early=True), RANDOM).hazards
    assert "reads sums" in str(found)
    assert "while its product is under way" in str(found)


def test_a_fence_comes_first():
    (found, *_) = watched(filled_kernel(fences=False), RANDOM).hazards
    assert "no wgmma_fence()" in str(found)


def test_metadata_out_of_order_is_refused_where_it_is_looked_at():
    ignored, wrong = RANDOM.copy(), RANDOM.copy()
    ignored[0, 0, 2] = 0  # lane 2 has that of selector 1
    assert not watched(filled_kernel(), ignored).hazards
    wrong[1, 0, 5] = 0x44440444
    with pytest.raises(SimtError, match=r"thread 37 .* has metadata with 0b0000, for the numbers 0 and 0 of four"):
        watched(filled_kernel(), wrong)


def test_a_product_that_reaches_beyond_shared_memory_is_reported():
    (found, *_) = watched(filled_kernel(begin=11264), RANDOM).hazards
    assert "multiplies a tile up to byte 26624 of tiles, which has 24576" in str(found)


# ----------------------------------------------------------------------------------------------------------- the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import hopper_sparse\n"
        "assert all(repr(getattr(hopper_sparse, name)) == f'<cuda.{name}>' for name in hopper_sparse.NAMES)\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    """The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names."""
    pytest.importorskip("numba_cuda")
    for name, made in hopper_sparse.numba_intrinsics().items():
        assert made._name == intrinsics.device_path(made) == name
    assert tuple(hopper_sparse.numba_intrinsics()) == hopper_sparse.NAMES == tuple(sparse_tiles.KINDS)


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="wgmma_sp_s8"):
        hopper_sparse.wgmma_sp_s8  # noqa: B018
