"""Tensor cores for float64 and floats of 8 bits: what Numba emits, and results that both backends must have."""

import re
import subprocess
import sys

import numpy as np
import pytest

from pmpp import cuda, simt
from pmpp.runtime import device, matrix_f64_f8
from pmpp.runtime.matrix_f64_f8 import mma_e4m3, mma_e5m2, mma_f64
from pmpp.simt.values import tensor_cores
from tests.runtime.test_matrix import numba_error

HOPPER = (9, 0)


def double(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_f64((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


def four_of_exponent(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_e4m3((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


def five_of_exponent(a, b, c, out):
    t = cuda.threadIdx.x
    d = mma_e5m2((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d


KERNELS = {"mma_f64": double, "mma_e4m3": four_of_exponent, "mma_e5m2": five_of_exponent}
OLDEST = {"mma_f64": (8, 0), "mma_e4m3": (8, 9), "mma_e5m2": (8, 9)}


def arrays(name):
    """Registers of a, b, c and the result, of zeros."""
    operand, number = (np.float64,) * 2 if name == "mma_f64" else (np.uint32, np.float32)
    return [np.zeros((32, n), kind) for n, kind in ((4, operand), (2, operand), (4, number), (4, number))]


def instructions(text):
    """The multiply-adds in a PTX text, without their operands."""
    return re.findall(r"^\s*(mma[\w.:]*)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "cc", "instruction"),
    [
        ("mma_f64", (9, 0), "m16n8k8.row.col.f64.f64.f64.f64"),
        ("mma_f64", (10, 0), "m16n8k8.row.col.f64.f64.f64.f64"),
        ("mma_e4m3", (8, 9), "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        ("mma_e4m3", (9, 0), "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        ("mma_e5m2", (8, 9), "m16n8k32.row.col.f32.e5m2.e5m2.f32"),
        ("mma_e5m2", (9, 0), "m16n8k32.row.col.f32.e5m2.e5m2.f32"),
    ],
)
def test_a_multiply_add_is_the_instruction_of_its_type(ptx, name, cc, instruction):
    assert instructions(ptx(KERNELS[name], *arrays(name), cc=cc)) == [f"mma.sync.aligned.{instruction}"]


def test_an_older_gpu_multiplies_float64_by_four_smaller_instructions(ptx):
    small = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    text = ptx(double, *arrays("mma_f64"), cc=(8, 0))
    assert instructions(text.replace(f"; {small}", f";\n{small}")) == [small] * 4


@pytest.mark.parametrize(("name", "cc"), [("mma_f64", (7, 5)), ("mma_e4m3", (8, 6)), ("mma_e5m2", (8, 0))])
def test_an_older_gpu_is_refused_by_name(ptx, name, cc):
    needed, has = (".".join(map(str, each)) for each in (OLDEST[name], cc))
    sentence = f"{name} needs a GPU of compute capability {needed} or more, and compiles for {has}"
    assert sentence in numba_error(ptx, KERNELS[name], *arrays(name), cc=cc)


def accumulate(a, b, out, n):
    t = cuda.threadIdx.x
    zero = np.float64(0)
    c = (zero, zero, zero, zero)
    for k in range(n):
        c = mma_f64((a[k, t], a[k, t], a[k, t], a[k, t]), (b[k, t], b[k, t]), c)
    out[t] = c[0] + c[1] + c[2] + c[3]


def test_the_sum_stays_in_registers_over_a_loop(ptx):
    x = np.zeros((8, 32))
    text = ptx(accumulate, x, x, np.zeros(32), 8, cc=HOPPER)
    assert "local" not in text
    found = re.findall(r"mma\.sync\S+\s+\{(.*?)\}, .*\{(.*?)\};", text)
    assert found
    assert all(result == summand for result, summand in found[-1:])


def double_only(a, b, c):
    mma_f64(a, b, c)


def eight_only(a, b, c):
    mma_e4m3(a, b, c)


WORD, FLOAT, DOUBLE = np.uint32(0), np.float32(0), np.float64(0)


@pytest.mark.parametrize(
    ("kernel", "arguments", "sentence"),
    [
        (double_only, ((WORD,) * 4, (DOUBLE,) * 2, (DOUBLE,) * 4), r"mma_f64: a must be a tuple of 4 float64, was"),
        (double_only, ((DOUBLE,) * 4, (DOUBLE,) * 4, (DOUBLE,) * 4), r"mma_f64: b must be a tuple of 2 float64, was"),
        (double_only, ((DOUBLE,) * 4, (DOUBLE,) * 2, (FLOAT,) * 4), r"mma_f64: c must be .* 4 float64, was .*float32"),
        (double_only, (DOUBLE, (DOUBLE,) * 2, (DOUBLE,) * 4), r"mma_f64: a must be a tuple of 4 float64, was float64"),
        (eight_only, ((DOUBLE,) * 4, (WORD,) * 2, (FLOAT,) * 4), r"mma_e4m3: a must be a tuple of 4 uint32, was"),
        (eight_only, ((WORD,) * 4, (WORD,) * 2, (DOUBLE,) * 4), r"mma_e4m3: c must be a tuple of 4 float32, was"),
    ],
)
def test_what_cannot_work_is_a_typing_error(ptx, kernel, arguments, sentence):
    assert re.search(sentence, numba_error(ptx, kernel, *arguments, cc=HOPPER))


# ------------------------------------------------------------------------------------------ results, either backend


def numbers(name, rng, shape):
    """Small integers, which each of these types has: as numbers, and as what an instruction takes for them."""
    values = rng.integers(-8, 9, shape)
    if name == "mma_f64":
        return values, values.astype(np.float64)
    table = tensor_cores.values_of_8_bits(name.removeprefix("mma_"))
    return values, np.array([np.flatnonzero(table == v)[0] for v in values.flat], np.uint8).reshape(shape)


def registers(name, letter, numbers):
    """The registers of 32 lanes, put together number by number as `simt.fragment` says."""
    of_bytes = numbers.dtype == np.uint8
    out = np.zeros((32, 2 if letter == "b" else 4), np.uint32 if of_bytes else numbers.dtype)
    for lane, register in np.ndindex(out.shape):
        for k, place in enumerate(simt.fragment(name, letter, lane, register)):
            out[lane, register] += np.uint32(numbers[place]) << np.uint32(8 * k) if of_bytes else numbers[place]
    return out


@pytest.mark.parametrize("name", KERNELS)
def test_fragments_lie_as_the_layout_says(rng, name):
    if device.limits()["compute_capability"] < OLDEST[name]:
        pytest.skip(f"{name} needs compute capability {OLDEST[name]}")
    depth = tensor_cores.KINDS[name].depth
    (a, a_bits), (b, b_bits) = (numbers(name, rng, shape) for shape in ((16, depth), (depth, 8)))
    c = rng.integers(-100, 100, (16, 8)).astype(np.float64 if name == "mma_f64" else np.float32)
    given = [registers(name, letter, x) for letter, x in (("a", a_bits), ("b", b_bits), ("c", c))]
    out = device.empty((32, 4), c.dtype)
    cuda.jit(KERNELS[name])[1, 32](*map(device.to_device, given), out)
    np.testing.assert_array_equal(device.to_host(out), registers(name, "c", (a @ b + c).astype(c.dtype)))


# ------------------------------------------------------------------------------------------------------ the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime import matrix_f64_f8 as ours; from pmpp import cuda\n"
        "assert all(getattr(ours, name) is getattr(cuda, name) for name in ours.NAMES)\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    made = matrix_f64_f8.numba_intrinsics()
    assert {name: one._name for name, one in made.items()} == {name: name for name in matrix_f64_f8.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="mma_f16"):
        matrix_f64_f8.mma_f16  # noqa: B018
