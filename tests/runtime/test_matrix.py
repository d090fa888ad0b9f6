"""The instructions of tensor cores: what Numba emits, and results that both backends must have."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, matrix
from pmpp.runtime.matrix import (
    commit_copies,
    copy_async,
    ldmatrix,
    ldmatrix_transposed,
    load32,
    mma_bf16,
    mma_f16,
    mma_s8,
    mma_tf32,
    pack_halves,
    wait_copies,
)

AMPERE = [(8, 0), (9, 0)]
HALF = np.zeros(512, np.float16)


def multiply(x, y, out):
    """Each block a product of 16 x 16 and 16 x 8 float16."""
    a_tile, b_tile = cuda.shared.array((16, 16), np.float16), cuda.shared.array((16, 8), np.float16)
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    copy_async(a_tile, 8 * t, x, 256 * block + 8 * t, 8)
    if t < 16:
        copy_async(b_tile, 8 * t, y, 128 * block + 8 * t, 8)
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    a = ldmatrix(a_tile, 16 * (t % 16) + 8 * (t // 16))
    b = ldmatrix_transposed(b_tile, 8 * (t % 16))
    zero = np.float32(0)
    c = mma_f16(a, (b[0], b[1]), (zero, zero, zero, zero))
    row, column = t // 4, 2 * (t % 4)
    out[block, row, column], out[block, row, column + 1] = c[0], c[1]
    out[block, row + 8, column], out[block, row + 8, column + 1] = c[2], c[3]


def brain(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_bf16((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


def half(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_f16((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


def short(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_tf32((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


def byte(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_s8((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


KERNELS = {"mma_f16": half, "mma_bf16": brain, "mma_tf32": short, "mma_s8": byte}
DEPTHS = {"mma_f16": 16, "mma_bf16": 16, "mma_tf32": 8, "mma_s8": 32}


def instructions(text):
    """The instructions of this chapter in a PTX text, in order and without their operands."""
    return re.findall(r"^\s*((?:mma|ldmatrix|cp\.async)[\w.:]*)", text, re.MULTILINE)


@pytest.mark.parametrize("cc", AMPERE)
def test_each_name_is_one_instruction(ptx, cc):
    text = ptx(multiply, HALF, HALF, np.zeros((1, 16, 8), np.float32), cc=cc)
    assert instructions(text) == [
        "cp.async.cg.shared.global", "cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    ]  # fmt: skip
    assert re.search(r"cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+\], 16, %r\d+;", text)


@pytest.mark.parametrize("cc", AMPERE)
@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("mma_f16", "m16n8k16.row.col.f32.f16.f16.f32"),
        ("mma_bf16", "m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("mma_tf32", "m16n8k8.row.col.f32.tf32.tf32.f32"),
        ("mma_s8", "m16n8k32.row.col.s32.s8.s8.s32"),
    ],
)
def test_a_multiply_add_is_the_instruction_of_its_type(ptx, name, instruction, cc):
    bits, c = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.int32 if name == "mma_s8" else np.float32)
    assert instructions(ptx(KERNELS[name], bits, bits, c, c, cc=cc)) == [f"mma.sync.aligned.{instruction}"]


def accumulate(a, b, out, n):
    t = cuda.threadIdx.x
    zero = np.float32(0)
    c = (zero, zero, zero, zero)
    for k in range(n):
        c = mma_f16((a[k, t], a[k, t], a[k, t], a[k, t]), (b[k, t], b[k, t]), c)
    out[t] = c[0] + c[1] + c[2] + c[3]


def test_the_sum_stays_in_registers_over_a_loop(ptx):
    bits = np.zeros((8, 32), np.uint32)
    text = ptx(accumulate, bits, bits, np.zeros(32, np.float32), 8, cc=(9, 0))
    assert "local" not in text
    found = re.findall(r"mma\.sync\S+\s+\{(.*?)\}, .*\{(.*?)\};", text)
    assert found
    assert all(result == summand for result, summand in found[-1:])


def only_copies(x):
    commit_copies()
    wait_copies(1)


def only_loads(x, out):
    s = cuda.shared.array(512, np.float16)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    out[t] = ldmatrix(s, 8 * t)[0]


def numba_error(ptx, kernel, *arguments, cc=(8, 0)):
    while_typing, later = (pytest.importorskip(f"{name}.core.errors") for name in ("numba", "numba.cuda"))
    with pytest.raises((while_typing.TypingError, later.TypingError)) as caught:
        ptx(kernel, *arguments, cc=cc)
    return str(caught.value)


def test_an_older_gpu_is_refused_by_name(ptx):
    bits, c = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.float32)
    sentence = "mma_f16 needs a GPU of compute capability 8.0 or more, and compiles for 7.5"
    assert sentence in numba_error(ptx, half, bits, bits, c, c, cc=(7, 5))
    assert "commit_copies needs" in numba_error(ptx, only_copies, c, cc=(7, 5))
    assert "ldmatrix needs" in numba_error(ptx, only_loads, HALF, np.zeros(32, np.uint32), cc=(7, 0))
    assert instructions(ptx(only_loads, HALF, np.zeros(32, np.uint32), cc=(7, 5)))


def multiply_only(a, b, c):
    mma_f16(a, b, c)


def bytes_only(a, b, c):
    mma_s8(a, b, c)


def load_only(x, i):
    ldmatrix(x, i)


def transposed_only(x, i):
    ldmatrix_transposed(x, i)


def word_only(x, i):
    load32(x, i)


def pack_only(lo, hi):
    pack_halves(lo, hi)


def copy_only(shared, i, x, j, count):
    copy_async(shared, i, x, j, count)


def wait_only(n):
    wait_copies(n)


def wait_for_a_negative_number(n):
    wait_copies(-1)


WORD, FLOAT, INT = np.uint32(0), np.float32(0), np.int32(0)


@pytest.mark.parametrize(
    ("kernel", "arguments", "sentence"),
    [
        (multiply_only, ((WORD,) * 3, (WORD,) * 2, (FLOAT,) * 4), r"mma_f16: a must be a tuple of 4 uint32, was"),
        (multiply_only, ((1,) * 4, (WORD,) * 2, (FLOAT,) * 4), r"mma_f16: a must be a tuple of 4 uint32, was .*int64"),
        (multiply_only, ((WORD,) * 4, WORD, (FLOAT,) * 4), r"mma_f16: b must be a tuple of 2 uint32, was uint32"),
        (multiply_only, ((WORD,) * 4, (WORD,) * 2, (0.5,) * 4), r"mma_f16: c must be a tuple of 4 float32, was"),
        (bytes_only, ((WORD,) * 4, (WORD,) * 2, (FLOAT,) * 4), r"mma_s8: c must be a tuple of 4 int32, was .*float32"),
        (load_only, (FLOAT, 0), r"ldmatrix: x must be an array, was float32"),
        (load_only, (np.zeros(8), 0), r"ldmatrix: the dtype of x must be one of int8, .*, was float64"),
        (load_only, (HALF[::2], 0), r"ldmatrix: x must be contiguous \(C or F order\)"),
        (load_only, (HALF, 0.5), r"ldmatrix: i must be one integer, was float64"),
        (transposed_only, (np.zeros(8, np.int8), 0), r"ldmatrix_transposed: the dtype of x must be one of flo.* int8"),
        (word_only, (np.zeros(8, np.int64), 0), r"load32: the dtype of x must be one of"),
        (pack_only, (FLOAT, FLOAT), r"pack_halves: lo must be one of float16, int16, uint16, was float32"),
        (copy_only, (HALF, 0, FLOAT, 0, 8), r"copy_async: x must be an array, was float32"),
        (copy_only, (HALF, 0, np.zeros(8, np.int16), 0, 8), r"copy_async: shared and x must have one dtype"),
        (copy_only, (HALF, 0, HALF, 0, 8.0), r"copy_async: count must be one integer, was float64"),
        (wait_only, (1,), r"wait_copies: n must be a literal, an integer from 0 on, was int64"),
        (wait_for_a_negative_number, (1,), r"wait_copies: n must be a literal, an integer from 0 on, was -1"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_a_typing_error(ptx, kernel, arguments, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *arguments))


# ------------------------------------------------------------------------------------------ results, either backend


def test_a_product_of_small_integers_is_exact(rng):
    x, y = (rng.integers(-8, 9, shape).astype(np.float16) for shape in ((3, 16, 16), (3, 16, 8)))
    out = device.empty((3, 16, 8), np.float32)
    cuda.jit(multiply)[3, 32](device.to_device(x.reshape(-1)), device.to_device(y.reshape(-1)), out)
    np.testing.assert_array_equal(device.to_host(out), x.astype(np.float32) @ y.astype(np.float32))


def numbers(name, rng, shape):
    """Small integers: as numbers, and as the bits that an instruction takes for them."""
    values = rng.integers(-8, 9, shape)
    if name == "mma_s8":
        return values, values.astype(np.int8).view(np.uint8)
    if name == "mma_f16":
        return values, values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    return values, (bits >> 16).astype(np.uint16) if name == "mma_bf16" else bits


def registers(name, letter, bits):
    """The registers of 32 lanes, put together number by number as `simt.fragment` says."""
    count = 2 if letter == "b" else 4
    out = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for register in range(count):
            for k, (row, column) in enumerate(simt.fragment(name, letter, lane, register)):
                out[lane, register] |= np.uint32(int(bits[row, column]) << k * 8 * bits.itemsize)
    return out


@pytest.mark.parametrize("name", KERNELS)
def test_fragments_lie_as_the_layout_says(rng, name):
    (a, a_bits), (b, b_bits) = (numbers(name, rng, shape) for shape in ((16, DEPTHS[name]), (DEPTHS[name], 8)))
    c = rng.integers(-100, 100, (16, 8)).astype(np.int32 if name == "mma_s8" else np.float32)
    given = [
        registers(name, "a", a_bits),
        registers(name, "b", b_bits),
        registers(name, "c", c.view(np.uint32)).view(c.dtype),
    ]
    out = device.empty((32, 4), c.dtype)
    cuda.jit(KERNELS[name])[1, 32](*map(device.to_device, given), out)
    expected = registers(name, "c", (a @ b + c).astype(c.dtype).view(np.uint32)).view(c.dtype)
    np.testing.assert_array_equal(device.to_host(out), expected)


def test_int8_sums_wrap():
    a, b = np.full((32, 4), 0x7F7F7F7F, np.uint32), np.full((32, 2), 0x7F7F7F7F, np.uint32)
    c, out = np.full((32, 4), 2**31 - 1, np.int32), device.empty((32, 4), np.int32)
    cuda.jit(byte)[1, 32](*map(device.to_device, (a, b, c)), out)
    np.testing.assert_array_equal(device.to_host(out), np.int32(32 * 127**2 - 1 - 2**31))


def loaded(x, out):
    s = cuda.shared.array((32, 8), np.uint16)
    t = cuda.threadIdx.x
    for k in range(8):
        s[t, k] = x[t, k]
    cuda.syncthreads()
    plain, transposed = ldmatrix(s, 8 * t), ldmatrix_transposed(s, 8 * t)
    for k in range(4):
        out[0, k, t], out[1, k, t] = plain[k], transposed[k]


def test_ldmatrix_gives_each_lane_its_word_of_each_matrix(rng):
    x = rng.integers(0, 2**16, (32, 8)).astype(np.uint16)
    out = device.empty((2, 4, 32), np.uint32)
    cuda.jit(loaded)[1, 32](device.to_device(x), out)
    matrices = x.reshape(4, 8, 8)
    plain, transposed = device.to_host(out).view(np.uint16).reshape(2, 4, 8, 8)
    np.testing.assert_array_equal(plain, matrices)
    np.testing.assert_array_equal(transposed, matrices.swapaxes(1, 2))


def words(x, y, out):
    t = cuda.threadIdx.x
    out[t, 0], out[t, 1] = load32(x, 2 * t), pack_halves(x[2 * t], x[2 * t + 1])
    out[t, 2] = load32(y, t)


def test_words_and_pairs(rng):
    x, y = rng.random(64).astype(np.float16), rng.random(32).astype(np.float32)
    out = device.empty((32, 3), np.uint32)
    cuda.jit(words)[1, 32](device.to_device(x), device.to_device(y), out)
    found = device.to_host(out)
    np.testing.assert_array_equal(found[:, 0], x.view(np.uint32))
    np.testing.assert_array_equal(found[:, 1], x.view(np.uint32))
    np.testing.assert_array_equal(found[:, 2], y.view(np.uint32))


def part(x, out, n):
    s = cuda.shared.array((2, 32, 4), np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, min(4, max(0, n - 4 * t)))
    commit_copies()
    copy_async(s, 128 + 4 * t, x, 4 * t, 4)
    commit_copies()
    wait_copies(1)
    for k in range(4):
        out[0, t, k] = s[0, t, k]
    wait_copies(0)
    for k in range(4):
        out[1, t, k] = s[1, t, k]


@pytest.mark.parametrize("n", [0, 1, 50, 128])
def test_a_copy_of_few_elements_is_filled_up_with_zeros(rng, n):
    x = rng.random(128).astype(np.float32)
    out = device.empty((2, 32, 4), np.float32)
    cuda.jit(part)[1, 32](device.to_device(x), out, n)
    first, second = device.to_host(out).reshape(2, 128)
    np.testing.assert_array_equal(first, np.where(np.arange(128) < n, x, 0))
    np.testing.assert_array_equal(second, x)


# ------------------------------------------------------------------------------------------------------ the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import matrix; from pmpp import cuda\n"
        "assert all(getattr(matrix, name) is getattr(cuda, name) for name in matrix.NAMES)\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    assert {name: made._name for name, made in matrix.numba_intrinsics().items()} == {n: n for n in matrix.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="mma_f64"):
        matrix.mma_f64  # noqa: B018
