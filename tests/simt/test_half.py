"""16-bit floats: `cuda.fp16`, `cuda.bf16`, operators and `math` on float16, conversions to integers."""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.api.bfloat16 import BF16
from pmpp.simt.api.float16 import FP16, FUNCTIONS, ROUTINES
from pmpp.simt.api.intrinsics import device_path
from pmpp.simt.values import dtypes, maths, operators
from tests.support.seen_types import REFUSED, numba_context, numba_result

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "complex64", "complex128"]  # fmt: skip
needs_bfloat16 = pytest.mark.skipif(not dtypes.HAS_BFLOAT16, reason="ml_dtypes is not installed")


def ours(function, *operands):
    try:
        with np.errstate(all="ignore"):
            found = function(*operands)
    except (TypeError, ValueError):
        return REFUSED
    return str(found.dtype)


# ------------------------------------------------------------------------------------------------------------ typing

BINARY = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "Lt": operator.lt, "Eq": operator.eq,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BINARY))
def test_operators_with_float16_and_complex_have_numbas_types(name):
    context, types = numba_context(TYPES)
    function = (operators.BINARY | operators.COMPARE)[name]
    wrong = {}
    for a in TYPES:
        for b in TYPES:
            if not {a, b} & {"float16", "complex64", "complex128"}:
                continue  # test_typing.py has those
            expected = numba_result(context, BINARY[name], (types[a], types[b]))
            got = ours(function, np.dtype(a).type(1), np.dtype(b).type(1))
            if got != expected:
                wrong[a, b] = (got, expected)
    assert wrong == {}


UNARY = {operator.neg: operators.negate, operator.pos: operators.positive, abs: maths.absolute, int: maths.to_int,
         float: maths.to_float, round: maths.round_half_even, complex: maths.to_complex}  # fmt: skip
UNARY_TYPES = ["float16", "float32", "float64", "complex64", "complex128", "int32", "bool"]


def test_unary_operators_and_builtins_have_numbas_types():
    context, types = numba_context(TYPES)
    wrong = {}
    for python, function in UNARY.items():
        for a in UNARY_TYPES:
            expected = numba_result(context, python, (types[a],))
            got = ours(function, np.dtype(a).type(1))
            if got != expected:
                wrong[python.__name__, a] = (got, expected)
    assert wrong == {}


MATH_UNARY = [n for n in maths.MATH if n not in ("atan2", "hypot", "fmod", "copysign", "nextafter", "remainder",
                                                  "pow", "ldexp", "frexp", "modf")]  # fmt: skip


def test_math_functions_of_every_type_have_numbas_types():
    context, types = numba_context(TYPES)
    wrong = {}
    for name in MATH_UNARY:
        for a in TYPES:
            expected = numba_result(context, getattr(math, name), (types[a],))
            got = ours(maths.MATH[name], np.dtype(a).type(1))
            if got != expected:
                wrong[name, a] = (got, expected)
    assert wrong == {}


@pytest.mark.parametrize("name", ["atan2", "hypot", "fmod", "copysign", "nextafter", "remainder", "pow", "ldexp"])
def test_math_functions_of_two_have_numbas_types(name):
    context, types = numba_context(TYPES)
    wrong = {}
    for a in TYPES[:12]:
        for b in TYPES[:12]:
            expected = numba_result(context, getattr(math, name), (types[a], types[b]))
            got = ours(maths.MATH[name], np.dtype(a).type(1), np.dtype(b).type(1))
            if got != expected:
                wrong[a, b] = (got, expected)
    assert wrong == {}


def cases(function):
    """The signatures that Numba has for one of its device functions, as (arguments, result)."""
    context, _ = numba_context(TYPES)
    found = context._lookup_global(function)
    return {
        (tuple(map(str, case.args)), str(case.return_type))
        for template in found.templates
        for case in getattr(template, "cases", ())
    }


def test_every_fp16_function_of_numba_is_here_with_its_types():
    numba_context(TYPES)
    from numba.cuda import fp16

    missing, wrong = set(), {}
    for name, thing in vars(fp16).items():
        path = device_path(thing) if callable(thing) else None
        if path is None or not path.startswith("fp16.") or name == "atomicAdd":
            continue
        if path not in FP16 or f"fp16.{name}" not in FP16:
            missing.add(name)
            continue
        routine = ROUTINES[path.removeprefix("fp16.").removeprefix("__")]
        mine = {(tuple(map(str, routine.arguments)), str(routine.result[0]))}
        if cases(thing) != mine:
            wrong[name] = (mine, cases(thing))
    assert (missing, wrong) == (set(), {})


def test_every_bf16_function_of_numba_is_here():
    numba_context(TYPES)
    from numba.cuda import bf16

    named = {
        name: device_path(thing)
        for name, thing in vars(bf16).items()
        if callable(thing) and getattr(thing, "__module__", "").endswith("_internal.cuda_bf16")
    }
    assert len(named) > 150
    assert {n for n, path in named.items() if path not in BF16 or f"bf16.{n}" not in BF16} == set()


# ------------------------------------------------------------------------------------------------------------ values


@cuda.jit
def arithmetic(a, b, c, out):
    t = cuda.grid(1)
    out[0, t] = cuda.fp16.hadd(a[t], b[t])
    out[1, t] = cuda.fp16.hsub(a[t], b[t])
    out[2, t] = cuda.fp16.hmul(a[t], b[t])
    out[3, t] = cuda.fp16.hdiv(a[t], b[t])
    out[4, t] = cuda.fp16.hfma(a[t], b[t], c[t])
    out[5, t] = a[t] + b[t]
    out[6, t] = a[t] * b[t] - c[t]
    out[7, t] = a[t] / b[t]


def nearest_half(exact):
    """A fraction rounded once to float16, ties to even."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = math.floor(math.log2(size))
    unit = Fraction(2) ** max(exponent - 10, -24)
    value = float(round(size / unit) * unit)
    return math.copysign(value if value < 65520 else math.inf, exact)


def test_arithmetic_is_rounded_once(rng, ptx):
    bits = rng.integers(0, 0x7C00, (3, 800)).astype(np.uint16) | (rng.integers(0, 2, (3, 800)) << 15).astype(np.uint16)
    a, b, c = np.where(rng.random((3, 800)) < 0.5, rng.integers(-99, 99, (3, 800)) / 8, bits.view(np.float16)).astype(
        np.float16
    )
    b[b == 0] = 3
    out = np.zeros((8, 800), np.float16)
    arithmetic[1, 800](a, b, c, out)
    for j, row in enumerate(zip(a, b, c, strict=True)):
        x, y, z = (Fraction(float(v)) for v in row)
        expected = [nearest_half(e) for e in (x + y, x - y, x * y, x / y, x * y + z, x + y)]
        assert out[:6, j].tolist() == expected
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out[6], a * b - c)
    np.testing.assert_array_equal(out[7], out[3])
    assert ".entry" in ptx(arithmetic, a, b, c, out)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_are_those_of_float64_rounded(name, rng):
    oracle = {"hrcp": lambda x: 1 / x, "hrsqrt": lambda x: x**-0.5, "hrint": round, "htanh_approx": math.tanh,
              "hexp10": lambda x: 10.0**x}.get(name) or getattr(math, name.removeprefix("h"))  # fmt: skip
    x = rng.uniform(0.1, 4, 100).astype(np.float16)
    expected = np.array([oracle(float(v)) for v in x]).astype(np.float16)
    np.testing.assert_array_equal(ROUTINES[name](x), expected)


@pytest.mark.filterwarnings("ignore:overflow")
def test_edges():
    nan, inf = np.nan, np.inf
    one = ROUTINES
    h = lambda *values: np.array(values, np.float16)  # noqa: E731
    np.testing.assert_array_equal(one["hmax"](h(nan, 1, -0.0), h(2, nan, 0.0)), [2, 1, 0])
    assert not np.signbit(one["hmax"](h(-0.0), h(0.0)))[0]
    assert np.signbit(one["hmin"](h(-0.0), h(0.0)))[0]
    np.testing.assert_array_equal(one["hmax_nan"](h(nan, 1), h(2, 3)), [nan, 3])
    assert one["hne"](h(nan), h(1)).tolist() == [False]
    assert one["hneu"](h(nan), h(1)).tolist() == [True]
    assert one["hltu"](h(nan, 3), h(1, 1)).tolist() == [True, False]
    assert one["hisinf"](h(inf, -inf, 1, nan)).tolist() == [1, -1, 0, 0]
    assert one["hadd_sat"](h(0.75, -3, nan), h(0.75, 1, 1)).tolist() == [1, 0, 0]
    np.testing.assert_array_equal(one["hfma_relu"](h(2, -2, nan), h(1, 1, 1), h(0, 0, 0)), [2, 0, nan])
    assert one["int2half_rz"](np.array([70000, 2049], np.int32)).tolist() == [65504, 2048]
    assert one["int2half_ru"](np.array([70000, 2049], np.int32)).tolist() == [inf, 2050]
    assert one["ll2half_rn"](np.array([2**11 + 1, -(2**62)])).tolist() == [2048, -inf]
    assert one["float2half_rd"](np.array([1 + 2.0**-20, -1 - 2.0**-20], np.float32)).tolist() == [1, -1 - 2.0**-10]
    assert one["half2int_rd"](h(-2.5, 2.5)).tolist() == [-3, 2]
    assert one["half2uchar_rz"](h(300, -1, nan)).tolist() == [255, 0, 0]
    assert one["half2char_rz"](h(300, -300, -1.9)).tolist() == [127, -128, -1]


@cuda.jit
def convert(h, f, d, out):
    t = cuda.grid(1)
    out[0, t] = np.int32(h[t])
    out[1, t] = np.int64(h[t])
    out[2, t] = np.int8(f[t])
    out[3, t] = np.uint8(d[t])
    out[4, t] = np.int32(f[t])
    out[5, t] = np.int64(f[t])
    out[6, t] = np.int32(d[t])


def test_conversions_to_integers_are_the_ones_measured_on_an_h200():
    values = [1.62, 2.5, -1.5, 300.7, -5.9, np.nan]
    out = np.zeros((7, 6), np.int64)
    convert[1, 6](*(np.array(values, dtype) for dtype in (np.float16, np.float32, np.float64)), out)
    lowest = -(2**63)
    assert out.tolist() == [
        [2, 2, -2, 301, -6, 0],  # Numba rounds a float16 to nearest
        [2, 2, -2, 301, -6, lowest],
        [1, 2, -1, 44, -5, 0],  # an 8-bit integer is the lower half of a 16-bit one
        [1, 2, 0, 44, 0, 0],
        [1, 2, -1, 300, -5, 0],
        [1, 2, -1, 300, -5, lowest],
        [1, 2, -1, 300, -5, -(2**31)],
    ]


# ---------------------------------------------------------------------------------------------------------- bfloat16


@cuda.jit
def brain_sum(x, out):
    t = cuda.grid(1)
    a = cuda.bf16.float32_to_bfloat16(x[t])
    out[0, t] = cuda.bf16.bfloat16_to_float32(a)
    out[1, t] = cuda.bf16.bfloat16_to_float32(cuda.bf16.hadd(a, a * a))
    out[2, t] = cuda.bf16.bfloat16_to_float32(cuda.bf16.hfma(a, a, a))
    out[3, t] = a + 1
    out[4, t] = math.sqrt(a)
    out[5, t] = cuda.bf16.bfloat16_to_float32(cuda.bf16.float32_to_bfloat16_ru(x[t]))


def nearest_brain(exact, up=False):
    """A fraction rounded once to bfloat16: 8 bits."""
    unit = Fraction(2) ** (math.floor(math.log2(abs(exact))) - 7)
    return float((math.ceil(exact / unit) if up else round(exact / unit)) * unit)


@needs_bfloat16
def test_bfloat16(rng):
    x = rng.uniform(0.1, 100, 300).astype(np.float32)
    out = np.zeros((6, 300), np.float32)
    brain_sum[1, 300](x, out)
    for j, value in enumerate(x):
        a = Fraction(nearest_brain(Fraction(float(value))))
        square = Fraction(nearest_brain(a * a))
        expected = [float(a), nearest_brain(a + square), nearest_brain(a * a + a), float(a + 1),
                    nearest_brain(Fraction(math.sqrt(a))), nearest_brain(Fraction(float(value)), up=True)]  # fmt: skip
        np.testing.assert_allclose(out[:, j], expected, rtol=1e-7)


@needs_bfloat16
def test_bfloat16_arrays_and_types():
    from ml_dtypes import bfloat16

    one = np.ones(1, bfloat16)[0]
    assert operators.BINARY["Add"](one, one).dtype == bfloat16
    assert operators.BINARY["Add"](one, np.float16(1)).dtype == np.float32
    assert operators.BINARY["Mult"](one, np.int64(1)).dtype == np.float64
    assert operators.BINARY["Mod"](one, one).dtype == np.float32
    assert maths.MATH["log2"](one).dtype == np.float32
    assert maths.MATH["log"](one).dtype == bfloat16
    exact = 1 + 2.0**-8 + 2.0**-40  # float32 in between would make it a tie
    assert float(dtypes.cast(np.float64(exact), np.dtype(bfloat16))) == 1 + 2.0**-7


def test_the_kernel_of_bfloat16_compiles(ptx):
    assert ".entry" in ptx(brain_sum, np.ones(4, np.float32), np.ones((6, 4), np.float32))


@pytest.mark.skipif(dtypes.HAS_BFLOAT16, reason="ml_dtypes is installed")
def test_without_its_package_bfloat16_is_refused_with_the_line():
    with pytest.raises(simt.UnsupportedError, match=r"test_half.py:\d+: .*needs bfloat16.*ml_dtypes"):
        brain_sum[1, 4](np.ones(4, np.float32), np.ones((6, 4), np.float32))
    with pytest.raises(simt.UnsupportedError, match="ml_dtypes"):
        cuda.bfloat16(1)
    assert not cuda.is_bfloat16_supported()
