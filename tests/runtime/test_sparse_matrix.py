"""The instructions for 2:4 sparsity: what Numba emits, and results that both backends must have."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, sparse_matrix
from pmpp.runtime.sparse_matrix import mma_sp_bf16, mma_sp_f16, mma_sp_s8
from pmpp.simt.values import sparse_tensor_cores
from tests.simt.test_sparse_tensor_cores import registers_of, words

AMPERE = [(8, 0), (9, 0)]


def half(a, b, c, e, out):
    t = cuda.threadIdx.x
    a_words, b_words = (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1], b[t, 2], b[t, 3])
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = mma_sp_f16(
        a_words, b_words, (c[t, 0], c[t, 1], c[t, 2], c[t, 3]), e[t], 0
    )


def lower_half(a, b, c, e, out):
    t = cuda.threadIdx.x
    a_words, b_words = (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1], b[t, 2], b[t, 3])
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = mma_sp_f16(
        a_words, b_words, (c[t, 0], c[t, 1], c[t, 2], c[t, 3]), e[t], 1
    )


def brain(a, b, c, e, out):
    t = cuda.threadIdx.x
    a_words, b_words = (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1], b[t, 2], b[t, 3])
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = mma_sp_bf16(
        a_words, b_words, (c[t, 0], c[t, 1], c[t, 2], c[t, 3]), e[t], 0
    )


def byte(a, b, c, e, out):
    t = cuda.threadIdx.x
    a_words, b_words = (a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1], b[t, 2], b[t, 3])
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = mma_sp_s8(
        a_words, b_words, (c[t, 0], c[t, 1], c[t, 2], c[t, 3]), e[t], 0
    )


KERNELS = [
    ("mma_sp_f16", 0, half, "m16n8k32.row.col.f32.f16.f16.f32"),
    ("mma_sp_f16", 1, lower_half, "m16n8k32.row.col.f32.f16.f16.f32"),
    ("mma_sp_bf16", 0, brain, "m16n8k32.row.col.f32.bf16.bf16.f32"),
    ("mma_sp_s8", 0, byte, "m16n8k64.row.col.s32.s8.s8.s32"),
]
each_kernel = pytest.mark.parametrize(("name", "selector", "kernel", "shape"), KERNELS)


def dummies(name):
    bits, c = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.int32 if name == "mma_sp_s8" else np.float32)
    return bits, bits, c, np.zeros(32, np.uint32), c


@pytest.mark.parametrize("cc", AMPERE)
@each_kernel
def test_each_name_is_one_instruction(ptx, name, selector, kernel, shape, cc):
    found = re.findall(r"(mma\.sp\S*)\s.*, (\d);", ptx(kernel, *dummies(name), cc=cc))
    assert found == [(f"mma.sp::ordered_metadata.sync.aligned.{shape}", str(selector))]


def numba_error(ptx, kernel, *arguments, cc=(8, 0)):
    while_typing, later = (pytest.importorskip(f"{name}.core.errors") for name in ("numba", "numba.cuda"))
    with pytest.raises((while_typing.TypingError, later.TypingError)) as caught:
        ptx(kernel, *arguments, cc=cc)
    return str(caught.value)


def test_an_older_gpu_is_refused_by_name(ptx):
    sentence = "mma_sp_f16 needs a GPU of compute capability 8.0 or more, and compiles for 7.5"
    assert sentence in numba_error(ptx, half, *dummies("mma_sp_f16"), cc=(7, 5))


def multiply_only(a, b, c, e):
    mma_sp_f16(a, b, c, e, 0)


def bytes_only(a, b, c, e):
    mma_sp_s8(a, b, c, e, 0)


def selected(a, b, c, e, selector):
    mma_sp_f16(a, b, c, e, selector)


def third_selector(a, b, c, e):
    mma_sp_f16(a, b, c, e, 2)


def selector_of_bytes(a, b, c, e):
    mma_sp_s8(a, b, c, e, 1)


WORD, FLOAT, INT = np.uint32(0), np.float32(0), np.int32(0)


@pytest.mark.parametrize(
    ("kernel", "arguments", "sentence"),
    [
        (multiply_only, ((WORD,) * 2, (WORD,) * 4, (FLOAT,) * 4, WORD), r"mma_sp_f16: a must be a tuple of 4 uint32"),
        (multiply_only, ((WORD,) * 4, (WORD,) * 2, (FLOAT,) * 4, WORD), r"mma_sp_f16: b must be a tuple of 4 uint32"),
        (multiply_only, ((WORD,) * 4, (WORD,) * 4, (0.5,) * 4, WORD), r"mma_sp_f16: c must be a tuple of 4 float32"),
        (multiply_only, ((WORD,) * 4, (WORD,) * 4, (FLOAT,) * 4, INT), r"mma_sp_f16: metadata must be a uint32, was"),
        (bytes_only, ((WORD,) * 4, (WORD,) * 4, (FLOAT,) * 4, WORD), r"mma_sp_s8: c must be a tuple of 4 int32, was"),
        (selected, ((WORD,) * 4, (WORD,) * 4, (FLOAT,) * 4, WORD, 0), r"selector must be a literal, from 0 to 1, was"),
        (third_selector, ((WORD,) * 4, (WORD,) * 4, (FLOAT,) * 4, WORD), r"a literal, from 0 to 1, was 2"),
        (selector_of_bytes, ((WORD,) * 4, (WORD,) * 4, (INT,) * 4, WORD), r"selector must be a literal, 0, was 1"),
    ],
)
def test_what_cannot_work_is_a_typing_error(ptx, kernel, arguments, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *arguments))


# ------------------------------------------------------------------------------------------ results, either backend


@each_kernel
def test_a_product_of_small_integers_is_exact(rng, name, selector, kernel, shape):
    """What is stored, put where the metadata says, and multiplied as matrices."""
    depth = sparse_tensor_cores.KINDS[name].depth
    stored, b, c = (rng.integers(-8, 9, extents) for extents in ((16, depth // 2), (depth, 8), (16, 8)))
    e, wide = words(name, rng, selector)[0], np.zeros((16, depth), np.int64)
    for lane in range(32):
        for four, (row, column) in enumerate(sparse_tensor_cores.metadata(name, lane, selector)):
            bits = int(e[lane]) >> 4 * four & 15
            wide[row, column + (bits & 3)] = stored[row, column // 2]
            wide[row, column + (bits >> 2)] = stored[row, column // 2 + 1]
    given = [registers_of(name, letter, matrix)[0] for letter, matrix in (("a", stored), ("b", b), ("c", c))]
    out = device.empty((32, 4), given[2].dtype)
    cuda.jit(kernel)[1, 32](*map(device.to_device, (*given, e)), out)
    np.testing.assert_array_equal(device.to_host(out), registers_of(name, "c", wide @ b + c)[0])


def test_int8_sums_wrap():
    a, c = np.full((32, 4), 0x7F7F7F7F, np.uint32), np.full((32, 4), 2**31 - 1, np.int32)
    e, out = np.full(32, 0x44444444, np.uint32), device.empty((32, 4), np.int32)
    cuda.jit(byte)[1, 32](*map(device.to_device, (a, a, c, e)), out)
    np.testing.assert_array_equal(device.to_host(out), np.int32(32 * 127**2 - 1 - 2**31))


# ------------------------------------------------------------------------------------------------------ the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import sparse_matrix; from pmpp import cuda\n"
        "assert all(getattr(sparse_matrix, name) is getattr(cuda, name) for name in sparse_matrix.NAMES)\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    made = {name: made._name for name, made in sparse_matrix.numba_intrinsics().items()}
    assert made == {name: name for name in sparse_matrix.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="mma_sp_tf32"):
        sparse_matrix.mma_sp_tf32  # noqa: B018


def test_the_twins_have_these_names():
    assert tuple(sparse_tensor_cores.KINDS) == sparse_matrix.NAMES
    assert all(simt.fragment(name, "a", 0, 0)[0] == (0, 0) for name in sparse_matrix.NAMES)
