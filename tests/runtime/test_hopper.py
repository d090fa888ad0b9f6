"""Hopper's matrix instructions: what Numba emits, what is refused, and results that both backends must have."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device, hopper
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    stmatrix,
    tensor_map,
    tile_descriptor,
    wait_stores,
    wgmma_bf16,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.simt.values import tensor_cores

HOPPER = (9, 0)
hopper_only = pytest.mark.skipif(device.limits()["compute_capability"] != HOPPER, reason="needs compute capability 9.0")
f0 = np.float32(0)
NOTHING = {64: (f0,) * 32, 128: (f0,) * 64, 192: (f0,) * 96, 256: (f0,) * 128}


@cuda.jit(device=True)
def bring(a_map, b_map, maps, tiles, full, rows, panels):
    """A block has a box of 64 rows in shared memory and, from ``tiles[4096]`` on, so many boxes of ``rows`` rows.

    A row of a box has 128 bytes. The boxes of b stand side by side in its matrix.
    """
    if cuda.threadIdx.x == 0:
        mbarrier_init(full, 0, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 128 * (64 + rows * panels))
        bulk_tile(tiles, 0, maps, 0, 0, 0, full, 0)
        for panel in range(panels):
            bulk_tile(tiles, 4096 + 64 * rows * panel, maps, 16, 0, 64 * panel, full, 0)
    mbarrier_wait(full, 0, 0)


def kernel_of(columns, multiply):
    """A block of four warps that adds 64 x 64 times 64 x ``columns`` to the sums that it is given."""
    nothing, count, panels = NOTHING[columns], columns // 2, columns // 64

    @cuda.jit
    def kernel(a_map, b_map, maps, c):
        tiles, full = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t, sums = cuda.threadIdx.x, nothing
        bring(a_map, b_map, maps, tiles, full, 64, panels)
        wgmma_fence()
        for k in range(4):
            sums = multiply(tile_descriptor(tiles, 16 * k, 0), tile_descriptor(tiles, 4096 + 1024 * k, 4096), sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        for i in range(count):
            c[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]

    return kernel


def product(a, b, multiply):
    """Of 16-bit numbers, 64 x 64 and 64 x n."""
    a, b = device.to_device(a), device.to_device(b)
    c, maps = device.empty((64, b.shape[1]), np.float32), device.empty(32, np.uint64)
    kernel = kernel_of(b.shape[1], multiply)
    kernel[1, 128, 0, 2 * 64 * (64 + b.shape[1])](tensor_map(a, 64, 64), tensor_map(b, 64, 64), maps, c)
    return device.to_host(c)


def modelled(name, a, b):
    """The same by the arithmetic that the interpreter has."""
    rows = []
    for first in range(0, 64, 16):
        sums = np.zeros((16, b.shape[1]), np.float32)
        for k in range(0, 64, 16):
            sums = tensor_cores.multiply_tiles(name, a[first : first + 16, k : k + 16], b[k : k + 16], sums)
        rows.append(sums)
    return np.vstack(rows)


def halves(rng, shape, spread):
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
    return x.astype(np.float16).view(np.uint16)


def brains(rng, shape, spread):
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@hopper_only
@pytest.mark.parametrize("columns", [64, 128, 192, 256])
@pytest.mark.parametrize(
    ("name", "multiply", "draw"), [("wgmma_f16", wgmma_f16, halves), ("wgmma_bf16", wgmma_bf16, brains)]
)
def test_a_product_has_the_bits_of_the_model(rng, columns, name, multiply, draw):
    """An H100 gave these bits on 2026-11-27, in 18 products with up to 64 k: on a GPU this asks it again."""
    for spread in (0, 12) if columns == 64 else (3,):
        a, b = draw(rng, (64, 64), spread), draw(rng, (64, columns), spread)
        found = product(a, b, multiply)
        np.testing.assert_array_equal(found.view(np.uint32), modelled(name, a, b).view(np.uint32))


@hopper_only
def test_what_is_not_finite_comes_through():
    a, b = np.zeros((64, 64), np.float16), np.ones((64, 64), np.float16)
    a[1, 2], a[3, 4], a[5, 6], a[5, 7] = np.inf, np.nan, np.inf, -np.inf
    c = product(a.view(np.uint16), b.view(np.uint16), wgmma_f16)
    assert np.isposinf(c[1]).all()
    assert np.isnan(c[[3, 5]]).all()
    assert (c[[0, 2, 4, 6]] == 0).all()


# ---------------------------------------------------------------------------------------------------- what Numba emits


def instructions(text):
    """The instructions of this module in a PTX text, in order and without their operands."""
    pattern = r"((?:wgmma|mbarrier|cp\.async\.bulk|fence\.proxy)\.[\w.:]*)"
    return [found for line in text.splitlines() for found in re.findall(pattern, line)]


MAP = tuple(np.uint64(0) for _ in range(16))


@pytest.mark.parametrize(("multiply", "kind"), [(wgmma_f16, "f16"), (wgmma_bf16, "bf16")])
def test_each_name_is_one_instruction(ptx, multiply, kind):
    kernel = kernel_of(64, multiply)
    text = ptx(kernel, MAP, MAP, np.zeros(32, np.uint64), np.zeros((64, 64), np.float32), cc=HOPPER)
    assert list(dict.fromkeys(instructions(text))) == [
        "mbarrier.init.shared::cta.b64", "fence.proxy.async.shared::cta", "fence.proxy.tensormap::generic.release.gpu",
        "fence.proxy.tensormap::generic.acquire.gpu", "mbarrier.arrive.expect_tx.shared::cta.b64",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
        "mbarrier.try_wait.parity.shared::cta.b64", "wgmma.fence.sync.aligned",
        f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{kind}.{kind}", "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned",
    ]  # fmt: skip
    assert not re.search(r"\.local\b", text)  # the sums stay in registers


def test_a_wait_comes_to_an_end(ptx):
    """Whatever a kernel does wrong: after so many attempts it traps, and the GPU does not hang."""

    def waits(out):
        full = cuda.shared.array(1, np.uint64)
        mbarrier_wait(full, 0, 0)
        mbarrier_arrive(full, 0)
        copies_visible()

    text = ptx(waits, np.zeros(1, np.float32), cc=HOPPER)
    assert re.search(r"add\.u32 n, n, 1; setp\.lt\.u32 p, n, \d+; @p bra TRY_\d+; trap;", text)


def test_what_stores_tiles_is_one_instruction_each(ptx):
    def stores(maps, c_map, w):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        place_map(maps, 0, c_map)
        stmatrix(shared, 0, (w, w, w, w))
        bulk_store(maps, 0, 16, 64, shared, 0)
        commit_stores()
        wait_stores(1)

    text = ptx(stores, np.zeros(16, np.uint64), MAP, np.uint32(0), cc=HOPPER)
    assert "stmatrix.sync.aligned.m8n8.x4.shared.b16" in text
    assert "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group" in text
    assert instructions(text)[-2:] == ["cp.async.bulk.commit_group", "cp.async.bulk.wait_group.read"]


def numba_error(ptx, kernel, *arguments, cc=HOPPER):
    while_typing, later = (pytest.importorskip(f"{name}.core.errors") for name in ("numba", "numba.cuda"))
    with pytest.raises((while_typing.TypingError, later.TypingError)) as caught:
        ptx(kernel, *arguments, cc=cc)
    return str(caught.value)


def fence_only(x):
    wgmma_fence()


def multiply_only(a, b, c):
    wgmma_f16(a, b, c)


def descriptor_only(x, i, apart):
    tile_descriptor(x, i, apart)


def wait_only(n, sums):
    wgmma_wait(n, sums)


def wait_for_too_many(sums):
    wgmma_wait(8, sums)


def arrive_only(x, b):
    mbarrier_arrive(x, b)


def init_only(x, b, count):
    mbarrier_init(x, b, count)


def place_only(maps, j, words):
    place_map(maps, j, words)


def bulk_only(x, i, maps, j, row, column, barriers, b):
    bulk_tile(x, i, maps, j, row, column, barriers, b)


def store_only(maps, j, row, column, x, i):
    bulk_store(maps, j, row, column, x, i)


def wait_for_stores(n):
    wait_stores(n)


def stmatrix_only(x, i, words):
    stmatrix(x, i, words)


@pytest.mark.parametrize("cc", [(8, 0), (10, 0)])
def test_another_gpu_is_refused_by_name(ptx, cc):
    said = f"wgmma_fence needs a GPU of compute capability 9.0, and compiles for {'.'.join(map(str, cc))}"
    assert said in numba_error(ptx, fence_only, np.zeros(1), cc=cc)


LONG, SUMS, HALF, LONGS = np.uint64(0), NOTHING[64], np.zeros(64, np.uint16), np.zeros(32, np.uint64)


@pytest.mark.parametrize(
    ("kernel", "arguments", "sentence"),
    [
        (multiply_only, (1, LONG, SUMS), r"wgmma_f16: a must be a descriptor \(uint64\), was int64"),
        (multiply_only, (LONG, LONG, SUMS[:4]), r"wgmma_f16: c must be a tuple of 32, 64, 96 or 128 float32, was"),
        (multiply_only, (LONG, LONG, (0.5,) * 32), r"wgmma_f16: c must be a tuple of 32, 64, 96 or 128 float32, was"),
        (descriptor_only, (LONGS, 0, 0), r"tile_descriptor: the dtype of shared must be one of float16, .* was uint64"),
        (descriptor_only, (HALF[::2], 0, 0), r"tile_descriptor: shared must be contiguous"),
        (descriptor_only, (HALF, 0.5, 0), r"tile_descriptor: i must be one integer, was float64"),
        (wait_only, (1, SUMS), r"wgmma_wait: n must be a literal, an integer from 0 to 7, was int64"),
        (wait_for_too_many, (SUMS,), r"wgmma_wait: n must be a literal, an integer from 0 to 7, was 8"),
        (arrive_only, (HALF, 0), r"mbarrier_arrive: the dtype of barriers must be one of uint64, was uint16"),
        (arrive_only, (LONGS, 0.5), r"mbarrier_arrive: b must be one integer, was float64"),
        (init_only, (LONGS, 0, 0.5), r"mbarrier_init: count must be one integer, was float64"),
        (place_only, (LONGS, 0, MAP[:4]), r"place_map: words must be a tuple of 16 uint64, was"),
        (bulk_only, (HALF, 0, HALF, 0, 0, 0, LONGS, 0), r"bulk_tile: the dtype of maps must be one of uint64"),
        (bulk_only, (HALF, 0, LONGS, 0, 0.5, 0, LONGS, 0), r"bulk_tile: row must be one integer, was float64"),
        (store_only, (HALF, 0, 0, 0, HALF, 0), r"bulk_store: the dtype of maps must be one of uint64"),
        (store_only, (LONGS, 0, 0, 0, LONGS, 0), r"bulk_store: the dtype of shared must be one of float16"),
        (store_only, (LONGS, 0, 0, 0.5, HALF, 0), r"bulk_store: column must be one integer, was float64"),
        (wait_for_stores, (1,), r"wait_stores: n must be a literal, an integer from 0 to 7, was int64"),
        (stmatrix_only, (HALF, 0, (1,) * 4), r"stmatrix: words must be a tuple of 4 uint32, was UniTuple\(int64"),
        (stmatrix_only, (LONGS, 0, (np.uint32(0),) * 4), r"stmatrix: the dtype of shared must be one of float16"),
    ],
)
def test_what_cannot_work_is_a_typing_error(ptx, kernel, arguments, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *arguments))


# ----------------------------------------------------------------------------------------------------------- the module


def test_a_map_is_kept_and_what_cannot_be_mapped_is_named():
    x = device.to_device(np.zeros((16, 64), np.uint16))
    if device.limits()["compute_capability"] == HOPPER:
        assert len(tensor_map(x, 8, 64)) == 16
        assert tensor_map(x, 8, 64) is tensor_map(x, 8, 64)
    for wrong, box, sentence in (
        (np.zeros((16, 64), np.float32), (8, 64), "x must be a matrix of 16-bit numbers, was an array of float32"),
        (np.zeros(64, np.uint16), (8, 64), r"x must be a matrix of 16-bit numbers, was .* of shape \(64,\)"),
        (np.zeros((16, 60), np.uint16), (8, 64), "its rows must begin at multiples of 16 bytes"),
        (np.zeros((16, 64), np.uint16), (257, 64), "not 257 and 64"),
        (np.zeros((16, 64), np.uint16), (8, 128), "a box has 1 to 256 rows and 8, 16, ... 64 columns, not 8 and 128"),
    ):
        with pytest.raises(ValueError, match=sentence):
            tensor_map(device.to_device(wrong), *box)


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import hopper; from pmpp import cuda\n"
        "assert all(getattr(hopper, name) is getattr(cuda, name) for name in hopper.NAMES)\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    assert {name: made._name for name, made in hopper.numba_intrinsics().items()} == {n: n for n in hopper.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="wgmma_f64"):
        hopper.wgmma_f64  # noqa: B018
