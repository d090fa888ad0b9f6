"""128-bit access: the instructions that Numba emits, and what the interpreter's twins do."""

import ctypes
import os
import re
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime import device, dtypes, vector
from pmpp.runtime.vector import load128, store128, widened, width128

FOUR = ["float32", "int32", "uint32"]
TWO = ["float64", "int64"]
EIGHT = ["float16", "bfloat16"]


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


# --------------------------------------------------------------------------------------------------------- 16 bits


def zeros(n, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return np.zeros(n, dtypes.dtype_of(dtype))


def copy8(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        store128(out, i, load128(x, i))


def halved(x, out):
    i = 8 * cuda.grid(1)
    a, b, c, d, e, f, g, h = widened(load128(x, i))
    k = np.float32(0.5)
    store128(out, i, (k * a, k * b, k * c, k * d, k * e, k * f, k * g, k * h))


def plus_one(x, out):
    i = cuda.grid(1)
    out[i] = widened(x[i]) + np.float32(1)


def assigned(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


def of_float32(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = np.float32(x[i])


def widened_only(x, out):
    out[0] = widened(x)


def its_width(x, out):
    out[0] = width128(x)


@pytest.mark.parametrize("dtype", FOUR + TWO + EIGHT)
def test_the_width_is_a_constant(ptx, dtype):
    x, out = zeros(16, dtype), np.zeros(1, np.int32)
    text = ptx(its_width, x, out)
    assert re.search(rf"mov\.u32 \s*%r\d+, {vector.width_of(x.dtype)};", text)
    found = device.empty(1, np.int32)
    cuda.jit(its_width)[1, 1](device.to_device(x), found)
    assert device.to_host(found)[0] == vector.width_of(x.dtype)


@pytest.mark.parametrize("cc", [(7, 5), (9, 0)])
@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_16_bit_elements_are_one_instruction(ptx, dtype, cc):
    x = zeros(16, dtype)
    for kernel in (copy8, halved):
        text = ptx(kernel, x, x, cc=cc)
        assert accesses(text) == ["ld.global.v4.u32", "st.global.v4.u32"]
        assert ".extern" not in text  # nothing that a linker would have to find in NVIDIA's header
        assert "local" not in text


@pytest.mark.parametrize("dtype", EIGHT)
def test_16_bits_are_converted_in_place(ptx, dtype):
    x, wide = zeros(16, dtype), np.zeros(16, np.float32)
    for kernel, arguments in (
        (plus_one, (x, x)),
        (assigned, (x, wide)),
        (assigned, (wide, x)),
        (of_float32, (x, wide)),
    ):
        text = ptx(kernel, *arguments, cc=(9, 0))
        assert ".extern" not in text
        assert text.count("add.f32") == (kernel is plus_one)
        rounds = "cvt.rn.f16.f32" if dtype == "float16" else "cvt.rn.bf16.f32"
        assert text.count(rounds) == (arguments[1] is x)


def without_parameters(text):
    return re.sub(r"_ZN\w+|\.visible.*|//.*", "", text)


@pytest.mark.parametrize("dtype", FOUR + TWO)
def test_other_numbers_stay_what_they_are(ptx, dtype):
    def as_it_is(x, out):
        i = cuda.grid(1)
        out[i] = x[i] + x[i]

    def with_widened(x, out):
        i = cuda.grid(1)
        out[i] = widened(x[i]) + widened(x[i])

    x = np.zeros(8, dtype)
    assert without_parameters(ptx(with_widened, x, x)) == without_parameters(ptx(as_it_is, x, x))


def test_widened_takes_numbers_only(ptx):
    x = np.zeros(8, np.float32)
    said = typing_error(ptx, widened_only, x, x)
    assert "widened: the value must be a number or a tuple of numbers, was array" in said
    if not device.on_gpu():
        with pytest.raises(Exception, match=r"widened\(x\): it takes a number or a tuple of numbers, not"):
            cuda.jit(widened_only)[1, 1](device.to_device(x), device.to_device(x))


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_number_of_16_bits(dtype):
    """All 65,536: copied bit for bit, made a float32, and halved, which rounds the smallest."""
    dtype = zeros(1, dtype).dtype
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    given, out, wide = device.to_device(x), device.empty(x.size, dtype), device.empty(x.size, np.float32)
    cuda.jit(copy8)[32, 256](given, out)
    np.testing.assert_array_equal(device.to_host(out).view(np.uint16), x.view(np.uint16))
    exact = x.astype(np.float32)
    for kernel in (assigned, of_float32):
        cuda.jit(kernel)[256, 256](given, wide)
        np.testing.assert_array_equal(device.to_host(wide), exact)
    cuda.jit(halved)[32, 256](given, out)
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        expected = (np.float32(0.5) * exact).astype(dtype)
    np.testing.assert_array_equal(device.to_host(out).astype(np.float32), expected.astype(np.float32))


def hard_to_round(dtype):
    """float32 at, just below and just above what lies half way between two neighbours of 16 bits; and the extremes."""
    largest = np.asarray(np.inf, dtype).view(np.uint16) - 1
    narrow = np.append(np.arange(0, largest - 1, 7), largest - 1).astype(np.uint16)
    low, high = (bits.view(dtype).astype(np.float64) for bits in (narrow, narrow + np.uint16(1)))
    middle = ((low + high) / 2).astype(np.float32)
    values = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    edges = [65504, 65519.996, 65520, 65536, 3.3895e38, 3.3961e38, 3.4028e38, np.inf, np.nan, 0, 1e-45, 2.9e-8, 3e-8]
    values = np.concatenate([*values, np.float32(edges)])
    return np.concatenate([values, -values])


@pytest.mark.parametrize("dtype", EIGHT)
def test_a_float32_is_rounded_once_to_the_nearest(dtype):
    dtype = zeros(1, dtype).dtype
    x = hard_to_round(dtype)
    out = device.empty(x.size, dtype)
    cuda.jit(assigned)[-(-x.size // 128), 128](device.to_device(x), out)
    result = device.to_host(out)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    # The sign and the bits of a NaN apart, which hardware and NumPy choose.
    number = ~np.isnan(x)
    assert np.isnan(result[~number].astype(np.float32)).all()
    np.testing.assert_array_equal(result.view(np.uint16)[number], expected.view(np.uint16)[number])


def test_rounding_on_the_oldest_gpus():
    """Before compute capability 8.0 no instruction rounds to bfloat16. What Numba is given instead, run on the CPU."""
    pytest.importorskip("numba_cuda")
    dtype = zeros(1, "bfloat16").dtype
    binding = pytest.importorskip("llvmlite.binding")
    from llvmlite import ir

    from pmpp.runtime import bfloat16

    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.IntType(16), [ir.FloatType()]), "round")
    builder = ir.IRBuilder(function.append_basic_block())
    with mock.patch("numba.cuda.core.targetconfig.ConfigStack") as stack:
        stack.return_value.top.return_value.compute_capability = (7, 5)
        builder.ret(bfloat16._round(None, builder, None, None, function.args[0]))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    with binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine) as engine:
        engine.finalize_object()
        rounded = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_float)(engine.get_function_address("round"))
        x = hard_to_round(dtype)[::3]
        result = np.array([rounded(value) for value in x], np.uint16)
    number = ~np.isnan(x)
    assert (result[~number] == 0x7FFF).all()
    np.testing.assert_array_equal(result[number], x.astype(dtype).view(np.uint16)[number])


def test_everything_else_works_without_ml_dtypes():
    script = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy as np\n"
        "from pmpp.kernels import vector_add\n"
        "from pmpp.runtime import device\n"
        "x = np.ones(9, np.float32)\n"
        "assert (vector_add.add(x, x).copy_to_host() == 2).all()\n"
        "try: device.empty(1, 'bfloat16')\n"
        "except TypeError as error: assert 'bfloat16 needs the package ml_dtypes' in str(error), error\n"
        "else: raise AssertionError\n"
        "try: device.as_input('x', x, dtypes=('float16', 'bfloat16'))\n"
        "except TypeError as error: assert str(error) == 'x must be float16 or bfloat16, was float32', error\n"
        "else: raise AssertionError\n"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EIGHT)
def test_tensors_of_16_bits_are_taken_where_they_are(dtype):
    torch = pytest.importorskip("torch")
    x = zeros(0, dtype)
    given = torch.arange(24, device="cuda").to(getattr(torch, dtype))
    for tensor in (given, given.reshape(4, 6), given[:0]):
        taken = device.as_input("x", tensor, dtypes=tuple(EIGHT))
        assert (taken.dtype, taken.shape) == (x.dtype, tuple(tensor.shape))
        assert not taken.size or device.address(taken) == tensor.data_ptr()
    out = torch.empty_like(given)
    cuda.jit(copy8)[1, 3](given, out)
    assert torch.equal(out, given)
    with pytest.raises(TypeError, match=r"pass x\.detach"):
        device.as_input("x", given.clone().requires_grad_(), dtypes=dtype)


# ------------------------------------------------------------------------------------------------------ the module


def test_the_interpreter_needs_no_numba():
    script = (
        "import sys; from pmpp.runtime.vector import load128, store128, widened; from pmpp import cuda\n"
        "assert load128 is cuda.load128 and store128 is cuda.store128 and widened is cuda.widened\n"
        "assert not {'numba', 'llvmlite', 'numba_cuda'} & set(sys.modules), 'Numba was imported'"
    )
    environment = {"PMPP_BACKEND": "simt", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)


def test_the_intrinsics_are_known_by_name():
    pytest.importorskip("numba_cuda")
    # The interpreter, profiling a kernel that was written for the GPU, finds the twins by these names.
    made = vector.numba_intrinsics()
    assert {name: intrinsic._name for name, intrinsic in made.items()} == {name: name for name in vector.NAMES}


def test_no_other_name_is_made():
    with pytest.raises(AttributeError, match="load256"):
        vector.load256  # noqa: B018
