"""Products of two operands by rows, and of one in registers: results, counts, hazards, and what is refused."""

import re

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    copies_visible,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_registers import (
    fewer_registers,
    more_registers,
    wgmma_bf16_first,
    wgmma_bf16_kept,
    wgmma_bf16_rows,
    wgmma_f16_first,
    wgmma_f16_kept,
    wgmma_f16_rows,
)
from pmpp.runtime.matrix import load32
from pmpp.simt.values import tensor_cores
from pmpp.simt.values.errors import SimtError
from tests.runtime.test_hopper import HOPPER, MAP, bring, hopper_only, numba_error

interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")
KINDS = {
    "f16": (wgmma_f16_first, wgmma_f16_rows, wgmma_f16_kept),
    "bf16": (wgmma_bf16_first, wgmma_bf16_rows, wgmma_bf16_kept),
}
FLOATS = (np.float32(0),) * 32


def kernel_of(form, kind, *, fence=True, waits=True):
    """A block of four warps multiplies 64 x 64 by 64 x 64: b by rows, or a out of registers and b by columns."""
    first, rows, kept = KINDS[kind]
    by_rows, with_first = form != "kept", form == "first"

    @cuda.jit
    def kernel(a_map, b_map, maps, a, c):
        tiles, full = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        own, t = cuda.local.array((4, 4), np.uint32), cuda.threadIdx.x
        bring(a_map, b_map, maps, tiles, full, 64, 1)
        for k in range(4):
            for e in range(4):  # as mma_f16 has its first operand
                row, column = t // 32 * 16 + t % 32 // 4 + e % 2 * 8, 16 * k + t % 4 * 2 + e // 2 * 8
                own[k, e] = load32(a, row * 64 + column)
        sums = FLOATS
        if fence:
            wgmma_fence()
        if by_rows:
            if with_first:
                sums = first(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, 4096, 0), sums)
            else:
                sums = rows(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, 4096, 0), sums)
            for k in range(1, 4):
                sums = rows(tile_descriptor(tiles, 16 * k, 0), tile_descriptor(tiles, 4096 + 16 * k, 0), sums)
        else:
            for k in range(4):
                words = own[k, 0], own[k, 1], own[k, 2], own[k, 3]
                sums = kept(words, tile_descriptor(tiles, 4096 + 1024 * k, 0), sums)
        wgmma_commit()
        if waits:
            sums = wgmma_wait(0, sums)
        for i in range(32):
            c[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]

    return kernel


def bits(x, kind):
    """float32 as numbers of 16 bits."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # of short numbers: exact


def product(form, kind, a, b, **more):
    a, b = (device.to_device(bits(x, kind)) for x in (a, b))
    c, maps = device.empty((64, 64), np.float32), device.empty(32, np.uint64)
    kernel_of(form, kind, **more)[1, 128](tensor_map(a, 64, 64), tensor_map(b, 64, 64), maps, a, c)
    return device.to_host(c)


@hopper_only
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["first", "rows", "kept"])
def test_whole_numbers_are_multiplied_exactly(rng, form, kind):
    a, b = (rng.integers(-9, 10, (64, 64)).astype(np.float32) for _ in "ab")
    np.testing.assert_array_equal(product(form, kind, a, b), a @ b if form == "kept" else a @ b.T)


@hopper_only
@pytest.mark.parametrize("form", ["first", "kept"])
def test_it_has_the_bits_of_the_model(rng, form):
    """float16 that cancel and differ in size: sums of 16 products at a time, as by `wgmma_f16`."""
    a, b = ((rng.standard_normal((64, 64)) * np.exp2(rng.integers(-6, 7, (64, 64)))).astype(np.float16) for _ in "ab")
    right, expected = b if form == "kept" else b.T, np.zeros((64, 64), np.float32)
    for first in range(0, 64, 16):
        for k in range(0, 64, 16):
            left, part = a[first : first + 16, k : k + 16].view(np.uint16), expected[first : first + 16]
            below = np.ascontiguousarray(right[k : k + 16]).view(np.uint16)
            part[...] = tensor_cores.multiply_tiles("wgmma_f16", left, below, part)
    found = product(form, "f16", a, b)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@interpreter_only
def test_a_first_operand_in_registers_is_read_as_it_is_written_for_mma():
    words = np.arange(32 * 4 * 2, dtype=np.uint16).reshape(1, 32, 8).view(np.uint32)
    matrix = tensor_cores.words_of_a(words)[0]
    for lane, register in ((0, 0), (6, 1), (17, 2), (31, 3)):
        places = tensor_cores.fragment("mma_f16", "a", lane, register)
        assert [matrix[place] for place in places] == [8 * lane + 2 * register, 8 * lane + 2 * register + 1]


@interpreter_only
@pytest.mark.parametrize("form", ["first", "kept"])
def test_what_is_counted(form):
    """Four instructions of four warps, and what they multiply."""
    ones = np.ones((64, 64), np.float32)
    with simt.record(level="count") as reports:
        product(form, "f16", ones, ones)
    assert reports[0].counters["inst_tensor"] == 4 * 4
    assert reports[0].counters["tensor_flops"] == 2 * 64**3


@interpreter_only
@pytest.mark.parametrize("form", ["first", "rows", "kept"])
@pytest.mark.parametrize(("mistake", "sentence"), [
    ("waits", "while its product is under way"), ("fence", "no wgmma_fence"),
])  # fmt: skip
def test_a_planted_mistake_is_found(form, mistake, sentence):
    ones = np.ones((64, 64), np.float32)
    with simt.record(level="check") as reports:
        product(form, "f16", ones, ones, **{mistake: False})
    assert sentence in reports[0].hazards[0].message


@interpreter_only
def test_sums_that_are_under_way_for_long_are_kept():
    """A product whose sums nobody asks for while its warp starts three hundred others."""

    @cuda.jit
    def kernel(out):
        tiles = cuda.shared.array(8192, np.uint16, alignment=1024)
        for i in range(cuda.threadIdx.x, 8192, 128):
            tiles[i] = np.uint16(0x3C00) if i % 4096 == 0 else np.uint16(0)  # 1.0
        copies_visible()
        cuda.syncthreads()
        wgmma_fence()
        slow = wgmma_f16_first(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, 4096, 0), FLOATS)
        wgmma_commit()
        fast = FLOATS
        for _ in range(300):
            fast = wgmma_f16_rows(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, 4096, 0), fast)
        wgmma_commit()
        slow, fast = wgmma_wait(0, slow), wgmma_wait(0, fast)
        out[cuda.threadIdx.x] = slow[0] + fast[0]

    out = np.zeros(128, np.float32)
    kernel[1, 128](out)
    assert out[0] == 301
    assert not out[1:].any()


# ---------------------------------------------------------------------------------------------------- what Numba emits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["first", "rows", "kept"])
def test_each_name_is_one_instruction(ptx, form, kind):
    halves = np.zeros((64, 64), np.uint16)
    text = ptx(
        kernel_of(form, kind), MAP, MAP, np.zeros(32, np.uint64), halves, np.zeros((64, 64), np.float32), cc=HOPPER
    )
    found = [line for line in text.splitlines() if "wgmma.mma_async" in line]
    assert all(f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{kind}.{kind}" in line for line in found)
    begins = ["setp.ne.b32 p, 0, 0" in line for line in found]
    assert sum(begins) == (form == "first")
    assert not re.search(r"\.local\b", text)  # sums and operands stay in registers


def changed_registers(out):
    if cuda.threadIdx.x < 128:
        fewer_registers(24)
    else:
        more_registers(240)
    out[cuda.threadIdx.x] = 1


def test_registers_are_handed_over(ptx):
    text = ptx(changed_registers, np.zeros(256, np.int32), cc=HOPPER)
    assert "setmaxnreg.dec.sync.aligned.u32 24;" in text
    assert "setmaxnreg.inc.sync.aligned.u32 240;" in text
    if not device.on_gpu():
        out = np.zeros(256, np.int32)
        cuda.jit(changed_registers)[1, 256](out)
        assert out.all()


def of_words(a, b, c):
    wgmma_f16_kept(a, b, c)


def of_rows(a, b, c):
    wgmma_bf16_rows(a, b, c)


def of_nothing(a, b, c):
    wgmma_f16_first(a, b, c)


def odd(n):
    more_registers(100)


def unknown(n):
    fewer_registers(n)


WORDS, PLACE = (np.uint32(0),) * 4, np.uint64(0)
REFUSED = [
    (of_words, (PLACE, PLACE, FLOATS), "wgmma_f16_kept: a must be a tuple of 4 uint32, was"),
    (of_words, (WORDS, np.int32(1), FLOATS), r"wgmma_f16_kept: b must be a descriptor \(uint64\), was int32"),
    (of_rows, (WORDS, PLACE, FLOATS), r"wgmma_bf16_rows: a must be a descriptor \(uint64\), was"),
    (of_rows, (PLACE, PLACE, FLOATS[:8]), "wgmma_bf16_rows: c must be a tuple of 32, 64, 96 or 128 float32, was"),
    (of_nothing, (PLACE, PLACE, FLOATS[:8]), "wgmma_f16_first: like must be a tuple of 32, 64, 96 or 128 float32, was"),
    (odd, (np.int32(24),), "more_registers: n must be a literal, a multiple of 8 from 24 to 256, was 100"),
    (unknown, (np.int32(24),), "fewer_registers: n must be a literal, a multiple of 8 from 24 to 256"),
]


@pytest.mark.parametrize(("kernel", "given", "sentence"), REFUSED, ids=[text.split(",")[0] for *_, text in REFUSED])
def test_what_is_refused(ptx, kernel, given, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *given))
    if not device.on_gpu():
        with pytest.raises(SimtError, match=sentence):
            cuda.jit(kernel)[1, 128](*given)
