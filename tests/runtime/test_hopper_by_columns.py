"""Products of float32 (as tf32), int8 and numbers of 8 bits by wgmma: operands by columns, bits, what is refused."""

import re

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_e4m3,
    wgmma_e5m2,
    wgmma_f16,
    wgmma_fence,
    wgmma_s8,
    wgmma_tf32,
    wgmma_wait,
)
from pmpp.simt.values import tensor_cores
from pmpp.simt.values.errors import SimtError
from tests.runtime.test_hopper import HOPPER, MAP, bring, hopper_only, numba_error

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")
MULTIPLY = {"wgmma_tf32": wgmma_tf32, "wgmma_s8": wgmma_s8, "wgmma_e4m3": wgmma_e4m3, "wgmma_e5m2": wgmma_e5m2}
NUMBERS = {
    "wgmma_tf32": (np.float32, np.float32),
    "wgmma_s8": (np.int8, np.int32),
    "wgmma_e4m3": (np.uint8, np.float32),
    "wgmma_e5m2": (np.uint8, np.float32),
}
EIGHT = {"wgmma_e4m3": "e4m3", "wgmma_e5m2": "e5m2"}


def kernel_of(name, columns, *, along=16, waits=True):
    """A block of four warps that multiplies 64 rows of a by ``columns`` rows of b, of 128 bytes each."""
    multiply, zero = MULTIPLY[name], NUMBERS[name][1](0)
    nothing, count = (zero,) * (columns // 2), columns // 2

    @cuda.jit
    def kernel(a_map, b_map, maps, c):
        tiles, full = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t, sums = cuda.threadIdx.x, nothing
        bring(a_map, b_map, maps, tiles, full, columns, 1)
        wgmma_fence()
        for k in range(4):
            sums = multiply(tile_descriptor(tiles, along * k, 0), tile_descriptor(tiles, 4096 + 16 * k, 0), sums)
        wgmma_commit()
        if waits:
            sums = wgmma_wait(0, sums)
        for i in range(count):
            c[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]

    return kernel


def product(name, a, b, **more):
    """Of 64 and n rows of 128 bytes."""
    a, b = (device.to_device(x.view(np.uint16)) for x in (a, b))
    c, maps = device.empty((64, b.shape[0]), NUMBERS[name][1]), device.empty(32, np.uint64)
    kernel = kernel_of(name, b.shape[0], **more)
    kernel[1, 128, 0, 128 * (64 + b.shape[0])](tensor_map(a, 64, 64), tensor_map(b, b.shape[0], 64), maps, c)
    return device.to_host(c)


def floats(rng, rows, spread):
    return (rng.standard_normal((rows, 32)) * np.exp2(rng.integers(-spread, spread + 1, (rows, 32)))).astype(np.float32)


def modelled(name, a, b):
    """The same by the arithmetic that the interpreter has."""
    sums, word = np.zeros((64, len(b)), np.float32), tensor_cores.TILE_WORDS[tensor_cores.TILES[name]]
    a, b = a.view(word), b.view(word)
    depth = 32 // a.itemsize
    for first in range(0, 64, 16):
        for k in range(0, a.shape[1], depth):
            part = sums[first : first + 16]
            part[...] = tensor_cores.multiply_tiles(
                name, a[first : first + 16, k : k + depth], b[:, k : k + depth].T, part
            )
    return sums


@hopper_only
@pytest.mark.parametrize(("columns", "spread"), [(64, 0), (64, 12), (256, 3)])
def test_tf32_has_the_bits_of_the_model(rng, columns, spread):
    a, b = floats(rng, 64, spread), floats(rng, columns, spread)
    np.testing.assert_array_equal(
        product("wgmma_tf32", a, b).view(np.uint32), modelled("wgmma_tf32", a, b).view(np.uint32)
    )


@hopper_only
def test_tf32_is_right_and_sees_19_bits(rng):
    a, b = floats(rng, 64, 0), floats(rng, 64, 0)
    exact, size = a.astype(np.float64) @ b.astype(np.float64).T, np.abs(a).astype(np.float64) @ np.abs(b).T
    error = np.abs(product("wgmma_tf32", a, b) - exact) / size
    assert error.max() < 2 * 2.0**-10 + 32 * 2.0**-23  # both numbers are cut off after 10 bits
    assert error.max() > 2.0**-13  # and float32 would be far closer
    whole = np.trunc(a * 8).astype(np.float32), np.trunc(b * 8).astype(np.float32)
    np.testing.assert_array_equal(product("wgmma_tf32", *whole), whole[0] @ whole[1].T)


def of_8_bits(rng, rows, kind, exponents):
    """Numbers whose exponents, as they are stored, are from the first up to below the last."""
    wide = 3 if kind == "e4m3" else 2
    x = rng.integers(*exponents, (rows, 128)) << wide | rng.integers(0, 1 << wide, (rows, 128))
    return (x | rng.integers(0, 2, (rows, 128)) << 7).astype(np.uint8)


@hopper_only
@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("exponents", ["near", "any", "subnormal"])
def test_numbers_of_8_bits_have_the_bits_of_the_model(rng, name, exponents):
    """An H200 gave the bits of this model for 4096 sums of each type in November 2026: on a GPU this asks it again."""
    kind = EIGHT[name]
    bias = 7 if kind == "e4m3" else 15
    span = {"near": (bias - 2, bias + 3), "any": (0, 2 * bias + 1), "subnormal": (0, bias + 2)}[exponents]
    a, b = (of_8_bits(rng, 64, kind, span) for _ in "ab")
    found, expected = product(name, a, b), modelled(name, a, b)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert not (found.view(np.uint32) & 0x3FF).any()  # 13 bits behind the point, and no more


@hopper_only
@pytest.mark.parametrize("name", EIGHT)
def test_numbers_of_8_bits_that_are_not_finite(name):
    nan, one = (0x7F, 0x38) if name == "wgmma_e4m3" else (0x7E, 0x3C)
    a, b = np.zeros((64, 128), np.uint8), np.full((64, 128), one, np.uint8)
    a[3, 40], a[5, 1] = nan, one
    found = product(name, a, b)
    assert np.isnan(found[3]).all()
    assert (found[5] == 1).all()
    assert (np.delete(found, (3, 5), axis=0) == 0).all()


@hopper_only
@pytest.mark.parametrize("columns", [64, 128])
def test_int8_is_exact(rng, columns):
    a, b = (rng.integers(-128, 128, (rows, 128)).astype(np.int8) for rows in (64, columns))
    a[3], b[5] = -128, -128  # the largest sum
    found = product("wgmma_s8", a, b)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64).T)
    assert found[3, 5] == 128 * 2**14


@interpreter_only
@pytest.mark.parametrize("name", MULTIPLY)
def test_what_is_counted(name):
    """Four wgmmas of four warps, and each multiplies 32 bytes of a row."""
    numbers, sums = NUMBERS[name]
    a = np.ones((64, 128 // np.dtype(numbers).itemsize), numbers)
    with simt.record(level="count") as reports:
        product(name, a, a)
    counters = reports[0].counters
    assert counters["inst_tensor"] == 4 * 4
    assert counters["tensor_flops"] == 2 * 64 * 64 * a.shape[1]
    assert sums(0).itemsize == 4


@interpreter_only
@pytest.mark.parametrize("name", MULTIPLY)
def test_sums_under_way_are_not_read(name):
    a = np.ones((64, 128 // np.dtype(NUMBERS[name][0]).itemsize), NUMBERS[name][0])
    with simt.record(level="check") as reports:
        product(name, a, a, waits=False)
    assert "while its product is under way" in reports[0].hazards[0].message


@hopper_only
def test_the_next_k_is_32_bytes_further(rng):
    """A planted mistake: the same 32 bytes of a in all four products."""
    a, b = (rng.integers(-9, 9, (64, 128)).astype(np.int8) for _ in "ab")
    expected = np.tile(a[:, :32], 4).astype(np.int64) @ b.astype(np.int64).T
    np.testing.assert_array_equal(product("wgmma_s8", a, b, along=0), expected)


# ---------------------------------------------------------------------------------------------------- what Numba emits


@pytest.mark.parametrize(("name", "instruction"), [
    ("wgmma_tf32", "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32"),
    ("wgmma_s8", "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8"),
    ("wgmma_e4m3", "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"),
    ("wgmma_e5m2", "wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e5m2"),
])  # fmt: skip
def test_each_name_is_one_instruction(ptx, name, instruction):
    c = np.zeros((64, 64), NUMBERS[name][1])
    text = ptx(kernel_of(name, 64), MAP, MAP, np.zeros(32, np.uint64), c, cc=HOPPER)
    found = [line for line in text.splitlines() if "wgmma.mma_async" in line]
    assert found
    assert all(instruction in line for line in found)
    assert not re.search(r"\.local\b", text)  # the sums stay in registers


def of_int8(a, b, c):
    wgmma_s8(a, b, c)


def of_float16(a, b, c):
    wgmma_f16(a, b, c)


FLOATS, WHOLE = (np.float32(0),) * 32, (np.int32(0),) * 32


@pytest.mark.parametrize(("kernel", "sums", "sentence"), [
    (of_int8, FLOATS, r"wgmma_s8: c must be a tuple of 32, 64, 96 or 128 int32, was"),
    (of_float16, WHOLE, r"wgmma_f16: c must be a tuple of 32, 64, 96 or 128 float32, was"),
])  # fmt: skip
def test_sums_of_another_dtype_are_refused(ptx, kernel, sums, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, np.uint64(0), np.uint64(0), sums))
    if not device.on_gpu():
        with pytest.raises(SimtError, match=sentence):
            cuda.jit(kernel)[1, 128](np.uint64(0), np.uint64(0), sums)
