"""128-bit access: the instructions that Numba emits, and what the interpreter's twins do."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device, vector
from pmpp.runtime.vector import load128, store128

FOUR = ["float32", "int32", "uint32"]
TWO = ["float64", "int64"]


def copy4(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        a, b, c, d = load128(x, i)
        store128(out, i, (a, b, c, d))


def copy2(x, out):
    i = 2 * cuda.grid(1)
    if i < x.size:
        store128(out, i, load128(x, i))


def copy_32_bit_index(x, out):
    i = np.int32(4 * cuda.threadIdx.x)
    store128(out, i, load128(x, i))


def swap_in_shared(x, out):
    tile = cuda.shared.array((8, 16), np.float32)
    i = 4 * cuda.threadIdx.x
    store128(tile, i, load128(x, i))
    cuda.syncthreads()
    store128(out, i, load128(tile, i ^ 4))


def scaled(x, out):
    i = 4 * cuda.grid(1)
    a, b, c, _ = load128(x, i)
    store128(out, i, (a * 0.5, b * 2, c, 1))  # float64, float64, float32, int64: converted as by x[i] = value


def accesses(text):
    """The vector accesses of a PTX text in order: ``["ld.global.v4.f32", ...]``."""
    return re.findall(r"^\s*((?:ld|st)\.\w+\.v\d\.\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("dtype", FOUR)
def test_four_32_bit_elements_are_one_instruction(ptx, dtype):
    kind = "f32" if dtype == "float32" else "u32"
    x = np.zeros(8, dtype)
    assert accesses(ptx(copy4, x, x)) == [f"ld.global.v4.{kind}", f"st.global.v4.{kind}"]


@pytest.mark.parametrize("dtype", TWO)
def test_two_64_bit_elements_are_one_instruction(ptx, dtype):
    kind = "f64" if dtype == "float64" else "u64"
    x = np.zeros(8, dtype)
    assert accesses(ptx(copy2, x, x)) == [f"ld.global.v2.{kind}", f"st.global.v2.{kind}"]


@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0)])
def test_shared_memory_is_addressed_as_such(ptx, cc):
    x = np.zeros(128, np.float32)
    text = ptx(swap_in_shared, x, x, cc=cc)
    assert accesses(text) == ["ld.global.v4.f32", "st.shared.v4.f32", "ld.shared.v4.f32", "st.global.v4.f32"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_index_may_be_32_bit_and_an_array_of_any_rank(ptx, order):
    x = np.zeros((4, 8), np.float32, order=order)
    text = ptx(copy_32_bit_index, x, x)
    assert accesses(text) == ["ld.global.v4.f32", "st.global.v4.f32"]


def test_offsets_are_64_bit(ptx):
    text = ptx(copy4, np.zeros(8, np.float32), np.zeros(8, np.float32))
    assert re.search(r"shl\.b64|mul\.wide\.\w32|mad\.wide\.\w32|mul\.lo\.s64", text)
    assert "add.s64" in text


def typing_error(ptx, kernel, *arguments):
    numba_errors = pytest.importorskip("numba.core.errors")
    with pytest.raises(numba_errors.TypingError) as caught:
        ptx(kernel, *arguments)
    return str(caught.value)


def load_only(x, i):
    load128(x, i)


def store_only(x, values):
    store128(x, 0, values)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.zeros(8, np.int8), 0), r"load128: the array's dtype must be one of float32, .*, was int8"),
        ((np.zeros(16, np.float32)[::2], 0), r"load128: the array must be contiguous \(C or F order\)"),
        ((np.float32(1), 0), r"load128: the first argument must be an array, was float32"),
        ((np.zeros(8, np.float32), 1.5), r"load128: the index must be one integer, an element index, was float64"),
        ((np.zeros((4, 4), np.float32), (0, 0)), r"load128: the index must be one integer, .* was UniTuple"),
    ],
    ids=["dtype", "layout", "no array", "index", "tuple index"],
)
def test_a_load_that_cannot_work_is_a_typing_error(ptx, arguments, sentence):
    assert re.search(sentence, typing_error(ptx, load_only, *arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.zeros(8, np.float32), (1.0, 2.0)), r"store128: the values must be a tuple of 4 for float32"),
        ((np.zeros(8, np.float32), 1.0), r"store128: the values must be a tuple of 4 for float32, was float64"),
        ((np.zeros(8, np.float32), (1.0, 2.0, 3.0, np.zeros(1))), r"store128: each value must be a number"),
    ],
    ids=["count", "no tuple", "an array among them"],
)
def test_a_store_that_cannot_work_is_a_typing_error(ptx, arguments, sentence):
    assert re.search(sentence, typing_error(ptx, store_only, *arguments))


def test_a_store_to_a_read_only_array_is_a_typing_error(ptx):
    types = pytest.importorskip("numba.cuda.types")
    read_only = types.Array(types.float32, 1, "C", readonly=True)
    values = types.UniTuple(types.float32, 4)
    assert "store128: the array must be writable" in typing_error(ptx, store_only, read_only, values)


# ------------------------------------------------------------------------------------------ results, either backend


@pytest.mark.parametrize("dtype", FOUR + TWO)
def test_a_copy_copies(rng, dtype):
    x = (100 * rng.random(96)).astype(dtype)
    out = device.empty(96, dtype)
    kernel = cuda.jit(copy4 if dtype in FOUR else copy2)
    kernel[2, 32](device.to_device(x), out)
    np.testing.assert_array_equal(device.to_host(out), x)


def test_shared_memory_round_trip(rng):
    x = rng.random(128, np.float32)
    out = device.empty(128, np.float32)
    cuda.jit(swap_in_shared)[1, 32](device.to_device(x), out)
    np.testing.assert_array_equal(device.to_host(out), x.reshape(-1, 2, 4)[:, ::-1].ravel())


def test_values_are_converted_as_by_an_assignment(rng):
    x = rng.random(128, np.float32)
    out = device.empty(128, np.float32)
    cuda.jit(scaled)[1, 32](device.to_device(x), out)
    expected = np.ones((32, 4), np.float32)
    expected[:, :3] = x.reshape(32, 4)[:, :3] * np.array([0.5, 2, 1])
    np.testing.assert_array_equal(device.to_host(out).reshape(32, 4), expected)


# ------------------------------------------------------------------------------------------------------ the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime.vector import load128, store128; from pmpp import cuda\n"
        "assert load128 is cuda.load128 and store128 is cuda.store128\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    assert [intrinsic._name for intrinsic in vector.numba_intrinsics()] == ["load128", "store128"]


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="load256"):
        vector.load256  # noqa: B018
