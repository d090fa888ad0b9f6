"""`cuda.libdevice`: names and types are Numba's, values agree with oracles that are computed another way."""

import functools
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.api import libdevice
from pmpp.simt.api.intrinsics import device_path
from pmpp.simt.values import rounding

ROUTINES = libdevice.ROUTINES
SPECIAL = {
    np.float32: [0.0, -0.0, 1.0, -1.0, 3.4028235e38, -3.4028235e38, 1e-45, -1e-45, 1.1754944e-38, 1.5, 2.0**24 + 2],
    np.float64: [0.0, -0.0, 1.0, -1.0, 1.7976931348623157e308, -1.5e308, 5e-324, -5e-324, 2.0**-1022, 3.0],
}  # fmt: skip


def apply(name, *values):
    """The function of that name, in a kernel, over arrays."""
    function = functools.reduce(getattr, name.split("."), cuda.libdevice)

    @cuda.jit
    def one(x, out):
        out[cuda.grid(1)] = function(x[cuda.grid(1)])

    @cuda.jit
    def two(x, y, out):
        out[cuda.grid(1)] = function(x[cuda.grid(1)], y[cuda.grid(1)])

    @cuda.jit
    def three(x, y, z, out):
        out[cuda.grid(1)] = function(x[cuda.grid(1)], y[cuda.grid(1)], z[cuda.grid(1)])

    @cuda.jit
    def one_to_two(x, out, more):
        out[cuda.grid(1)], more[cuda.grid(1)] = function(x[cuda.grid(1)])

    @cuda.jit
    def two_to_two(x, y, out, more):
        out[cuda.grid(1)], more[cuda.grid(1)] = function(x[cuda.grid(1)], y[cuda.grid(1)])

    routine = ROUTINES[name]
    values = [np.ascontiguousarray(v) for v in values]
    outs = [np.zeros(values[0].size, dtype) for dtype in routine.result]
    kernel = {(1, 1): one, (2, 1): two, (3, 1): three, (1, 2): one_to_two, (2, 2): two_to_two}[len(values), len(outs)]
    kernel[1, values[0].size](*values, *outs)
    return outs[0] if len(outs) == 1 else outs


def samples(dtype, count, rng):
    """Moderate numbers, any bit patterns, and the numbers at the edges."""
    patterns = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), count, dtype=f"u{np.dtype(dtype).itemsize}")
    moderate = rng.integers(-4096, 4096, count) * 2.0 ** rng.integers(-20, 20, count)
    with np.errstate(all="ignore"):
        x = np.where(rng.random(count) < 0.6, moderate, patterns.view(dtype)).astype(dtype)
    x = np.where(rng.random(count) < 0.2, rng.choice(SPECIAL[dtype], count), x).astype(dtype)
    return np.where(np.isfinite(x), x, dtype(1))


# -------------------------------------------------------------------------------------------------- names and types


def test_every_function_of_numba_is_here_with_its_types():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba.cuda import libdevicefuncs

    expected = {}
    for name, (result, arguments) in libdevicefuncs.functions.items():
        results = [] if str(result) == "none" else [str(result)]
        results += [str(a.ty) for a in arguments if a.is_ptr]
        expected[name[len("__nv_") :]] = ([str(a.ty) for a in arguments if not a.is_ptr], results)
    assert {n: ([*map(str, r.arguments)], [*map(str, r.result)]) for n, r in ROUTINES.items()} == expected


def test_numbas_own_functions_are_recognised():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba.cuda import libdevice as numbas

    assert {device_path(getattr(numbas, name)) for name in ROUTINES} == {f"libdevice.{name}" for name in ROUTINES}


@pytest.mark.parametrize("name", sorted(ROUTINES))
def test_every_function_gives_numbers_of_its_type(name):
    routine = ROUTINES[name]
    with np.errstate(all="ignore"):
        found = routine(*(np.full(3, 2, dtype) for dtype in routine.arguments))
        scalar = routine(*(dtype.type(2) for dtype in routine.arguments))
    found = found if isinstance(found, tuple) else (found,)
    assert [(f.dtype, f.shape) for f in found] == [(dtype, (3,)) for dtype in routine.result]
    scalar = scalar if isinstance(scalar, tuple) else (scalar,)
    assert all(isinstance(v, np.generic) for v in scalar)
    np.testing.assert_array_equal(scalar, [f[0] for f in found])


@cuda.jit
def many(f, d, i, n, out):
    t = cuda.grid(1)
    x, y, k, m = f[t], d[t], i[t], n[t]
    s, c = cuda.libdevice.sincosf(x)
    fraction, exponent = cuda.libdevice.frexp(y)
    remainder, quotient = cuda.libdevice.remquo(y, 0.75)
    out[t] = s + c + fraction + exponent + remainder + quotient + cuda.libdevice.fast_expf(x)
    out[t] += cuda.libdevice.dadd_rd(y, x) + cuda.libdevice.float2int_ru(x) + cuda.libdevice.popc(k)
    out[t] += cuda.libdevice.mul64hi(m, m) + cuda.libdevice.erfinv(x) + cuda.libdevice.jn(k, y)
    out[t] += cuda.libdevice.hiloint2double(k, k) + cuda.libdevice.float2half_rn(x) + cuda.libdevice.sinf(m)


def test_a_kernel_of_many_functions_compiles_and_runs(ptx):
    arguments = (np.linspace(0, 0.9, 32, dtype=np.float32), np.linspace(1, 2, 32), np.arange(32, dtype=np.int32),
                 np.arange(32), np.zeros(32))  # fmt: skip
    many[1, 32](*arguments)
    assert np.isfinite(arguments[-1]).all()
    assert ".visible .entry" in ptx(many, *arguments)


def test_a_function_that_does_not_exist_is_named_with_its_line():
    @cuda.jit
    def wrong(x):
        x[0] = cuda.libdevice.sinq(x[0])

    line = inspect.getsourcelines(wrong.py_func)[1] + 2
    with pytest.raises(simt.UnsupportedError, match=rf"test_libdevice.py:{line}: .*libdevice.sinq"):
        wrong[1, 1](np.zeros(1))


def test_a_wrong_number_of_arguments_is_named():
    @cuda.jit
    def wrong(x):
        x[0] = cuda.libdevice.powf(x[0])

    with pytest.raises(simt.UnsupportedError, match=r"libdevice.powf takes \(float32, float32\), not 1 argument"):
        wrong[1, 1](np.zeros(1))


def test_a_complex_argument_is_refused():
    @cuda.jit
    def wrong(x):
        cuda.libdevice.sinf(x[0] + 1j)

    with pytest.raises(simt.UnsupportedError, match="no real number"):
        wrong[1, 1](np.zeros(1))


def test_a_function_counts_as_one_special_instruction():
    @cuda.jit
    def exponential(x):
        x[cuda.grid(1)] = cuda.libdevice.fast_expf(x[cuda.grid(1)])

    counters = simt.profile(exponential, 1, 64, (np.ones(64, np.float32),)).counters
    assert counters["flops"] == 0
    assert {name: n for name, n in counters.items() if "special" in name} == {
        "inst_special": 2, "thread_inst_special": 64,
    }  # fmt: skip


def test_rounded_operations_count_as_flops():
    @cuda.jit
    def fused(x):
        x[cuda.grid(1)] = cuda.libdevice.fmaf_rz(x[cuda.grid(1)], x[cuda.grid(1)], x[cuda.grid(1)])

    assert simt.profile(fused, 1, 64, (np.ones(64, np.float32),)).counters["flops"] == 128


# ---------------------------------------------------------------------------------------------- elementary functions

ELEMENTARY = {
    "acos": (math.acos, -1, 1), "acosh": (math.acosh, 1, 50), "asin": (math.asin, -1, 1),
    "asinh": (math.asinh, -50, 50), "atan": (math.atan, -50, 50), "atanh": (math.atanh, -0.99, 0.99),
    "cbrt": (math.cbrt, -50, 50), "ceil": (math.ceil, -9, 9), "cos": (math.cos, -50, 50), "cosh": (math.cosh, -9, 9),
    "erf": (math.erf, -4, 4), "erfc": (math.erfc, -4, 20), "exp": (math.exp, -50, 50), "exp2": (math.exp2, -50, 50),
    "exp10": (lambda x: 10.0**x, -20, 20), "expm1": (math.expm1, -2, 2), "fabs": (math.fabs, -9, 9),
    "floor": (math.floor, -9, 9), "lgamma": (math.lgamma, 0.5, 40), "log": (math.log, 1e-5, 1e5),
    "log10": (math.log10, 1e-5, 1e5), "log1p": (math.log1p, -0.9, 9), "log2": (math.log2, 1e-5, 1e5),
    "normcdf": (lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), -9, 9), "rcbrt": (lambda x: 1 / math.cbrt(x), 0.1, 50),
    "rint": (round, -9, 9), "nearbyint": (round, -9, 9), "rsqrt": (lambda x: 1 / math.sqrt(x), 0.1, 50),
    "sin": (math.sin, -50, 50), "sinh": (math.sinh, -9, 9), "sqrt": (math.sqrt, 0, 50), "tan": (math.tan, -50, 50),
    "tanh": (math.tanh, -9, 9), "tgamma": (math.gamma, 0.1, 30), "trunc": (math.trunc, -9, 9),
    "sinpi": (lambda x: math.sin(math.pi * x), 0.1, 0.9), "cospi": (lambda x: math.cos(math.pi * x), -0.4, 0.4),
    "logb": (lambda x: math.frexp(x)[1] - 1, 0.1, 50),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ELEMENTARY))
def test_elementary_function(name, rng):
    oracle, low, high = ELEMENTARY[name]
    x = rng.uniform(low, high, 200)
    expected = np.array([oracle(v) for v in x], np.float64)
    near = np.abs(expected) + 1e-3 * (name in ("lgamma", "log", "log2", "log10", "sin", "cos", "tan"))
    assert (np.abs(apply(name, x) - expected) <= 4e-14 * near).all()  # about 200 units in the last place
    narrow = x.astype(np.float32)
    expected = np.array([oracle(float(v)) for v in narrow], np.float64)
    assert (
        np.abs(apply(name + "f", narrow) - expected) <= 0.51 * np.spacing(np.abs(expected).astype(np.float32))
    ).mean() > 0.99
    np.testing.assert_allclose(apply(name + "f", narrow), expected, rtol=2.0**-23, atol=1e-45)


@pytest.mark.parametrize("name", ["cosf", "exp10f", "expf", "log10f", "log2f", "logf", "sinf", "tanf"])
def test_fast_functions_are_computed_accurately(name, rng):
    x = rng.uniform(0.1, 9, 50).astype(np.float32)
    np.testing.assert_array_equal(apply(f"fast_{name}", x), apply(name, x))


def test_edges_of_elementary_functions():
    inf, nan = np.inf, np.nan
    assert apply("round", np.array([0.5, -0.5, 2.5, -2.5, 0.49999999999999994, 1e300])).tolist() == [
        1, -1, 3, -3, 0, 1e300,
    ]  # fmt: skip
    assert apply("ilogb", np.array([0, nan, inf, 8, 5e-324])).tolist() == [-(2**31), -(2**31), 2**31 - 1, 3, -1074]
    np.testing.assert_array_equal(apply("logb", np.array([0, nan, -inf, 8])), [-inf, nan, inf, 3])
    np.testing.assert_array_equal(apply("fdim", np.array([3, 1, nan, inf]), np.array([1.0, 3, 1, inf])), [2, 0, nan, 0])
    np.testing.assert_array_equal(apply("fmax", np.array([nan, 1]), np.array([2, nan])), [2, 1])
    assert apply("sinpi", np.array([1.0, 1e15, 0.5, 1.5])).tolist() == [0, 0, 1, -1]
    assert apply("cospi", np.array([0.5, 1e15, 1.0, 2.5])).tolist() == [0, 1, -1, 0]
    assert apply("saturatef", np.array([-1, 0.5, 2, nan], np.float32)).tolist() == [0, 0.5, 1, 0]
    np.testing.assert_allclose(apply("tgamma", np.array([-1.0, 0.0, -0.5])), [nan, inf, math.gamma(-0.5)], rtol=1e-15)
    assert apply("llround", np.array([2.5, -2.5, 1e300])).tolist() == [3, -3, 2**63 - 1]
    assert apply("llrint", np.array([2.5, -2.5, 3.5])).tolist() == [2, -2, 4]
    assert apply("nextafterf", np.ones(1, np.float32), np.full(1, 2, np.float32)).tolist() == [1 + 2.0**-23]
    assert apply("powi", np.array([2.0, -2]), np.array([-3, 3], np.int32)).tolist() == [0.125, -8]


def test_tuples():
    x = np.array([0.0, 1.25, -7.5])
    np.testing.assert_allclose(apply("sincos", x), [np.sin(x), np.cos(x)], rtol=1e-15)
    np.testing.assert_array_equal(apply("sincospi", np.array([0.5, 1.0])), [[1, 0], [0, -1]])
    np.testing.assert_array_equal(apply("modf", x), [[0, 0.25, -0.5], [0, 1, -7]])
    np.testing.assert_array_equal(apply("frexp", x), [[0, 0.625, -0.9375], [0, 1, 3]])


def test_remainders_are_exact(rng):
    x, y = samples(np.float64, 500, rng), samples(np.float64, 500, rng)
    y[y == 0] = 3
    remainder, quotient = apply("remquo", x, y)
    np.testing.assert_array_equal(apply("remainder", x, y), [math.remainder(*pair) for pair in zip(x, y, strict=True)])
    np.testing.assert_array_equal(remainder, apply("remainder", x, y))
    whole = [round(Fraction(a) / Fraction(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    expected = [(abs(n) & 7) * (-1 if a * math.copysign(1, b) < 0 else 1) for n, a, b in zip(whole, x, y, strict=True)]
    assert quotient.tolist() == expected
    np.testing.assert_array_equal(apply("fmod", x, y), [math.fmod(*pair) for pair in zip(x, y, strict=True)])


# -------------------------------------------------------------------------------------------------- special functions


def test_inverse_error_functions(rng):
    y = rng.uniform(-0.999, 0.999, 100)
    x = apply("erfinv", y)
    assert all(abs(math.erf(a) - b) <= 4e-16 * (1 + abs(a) * 2) for a, b in zip(x, y, strict=True))
    tail = 10.0 ** -rng.uniform(0.1, 200, 100)
    np.testing.assert_allclose([math.erfc(a) for a in apply("erfcinv", tail)], tail, rtol=1e-12)
    below = [0.5 * math.erfc(-a / math.sqrt(2)) for a in apply("normcdfinv", tail)]
    np.testing.assert_allclose(below, tail, rtol=1e-12)
    x = rng.uniform(-2, 5, 50)
    np.testing.assert_allclose(apply("erfcx", x), [math.exp(a * a) * math.erfc(a) for a in x], rtol=1e-13)


def bessel_j(n, x):
    """Bessel's integral by the trapezoidal rule, which converges exponentially for periodic functions."""
    t = np.arange(256) * (2 * np.pi / 256)
    return np.mean(np.cos(n * t - x[:, None] * np.sin(t)), axis=1)


def test_bessel_functions(rng):
    x = rng.uniform(0.1, 30, 100)
    for n in (0, 1):
        np.testing.assert_allclose(apply(f"j{n}", x), bessel_j(n, x), atol=1e-15)
    for n in (0, 2, 5, 11):
        order = np.full(100, n, np.int32)
        np.testing.assert_allclose(apply("jn", order, x), bessel_j(n, x), atol=2e-15)
        # The Wronskian ties Y to J.
        cross = apply("jn", order + 1, x) * apply("yn", order, x) - apply("jn", order, x) * apply("yn", order + 1, x)
        np.testing.assert_allclose(cross, 2 / (np.pi * x), rtol=1e-12)
    np.testing.assert_allclose(apply("y1", x), apply("yn", np.ones(100, np.int32), x), rtol=1e-12)
    np.testing.assert_allclose(apply("y0", x), apply("yn", np.zeros(100, np.int32), x), rtol=1e-12)
    assert np.isnan(apply("jn", np.array([-1], np.int32), np.ones(1))).all()
    assert np.isneginf(apply("y0", np.zeros(1))).all()


# ---------------------------------------------------------------------------------------------------------- rounding


def rightly_rounded(exact, got, mode):
    """Whether `got` is the rounding of a non-zero fraction: no float lies between them on the wrong side."""
    dtype, value = type(got), float(got)
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(got, dtype(side)) for side in (-np.inf, np.inf))
    if mode == "rz":
        mode = "rd" if exact > 0 else "ru"
    if mode == "rd":
        return (value == -np.inf or Fraction(value) <= exact) and (np.isinf(above) or exact < Fraction(float(above)))
    if mode == "ru":
        return (value == np.inf or Fraction(value) >= exact) and (np.isinf(below) or exact > Fraction(float(below)))
    if np.isinf(got):
        return abs(exact) >= Fraction(float(np.finfo(dtype).max))
    distance = abs(exact - Fraction(value))
    others = [abs(exact - Fraction(float(v))) for v in (below, above) if np.isfinite(v)]
    even = int(np.asarray(got).view(f"u{got.itemsize}")) % 2 == 0
    return all(distance < other or (distance == other and even) for other in others)


OPERATIONS = {
    **dict.fromkeys(("fadd", "dadd"), lambda a, b: a + b), **dict.fromkeys(("fmul", "dmul"), lambda a, b: a * b),
    **dict.fromkeys(("fdiv", "ddiv"), lambda a, b: a / b), **dict.fromkeys(("frcp", "drcp"), lambda a: 1 / a),
    **dict.fromkeys(("fmaf", "fma"), lambda a, b, c: a * b + c), "fsub": lambda a, b: a - b,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@pytest.mark.parametrize("mode", rounding.MODES)
def test_arithmetic_is_rounded_once(name, mode, rng):
    exactly, dtype = OPERATIONS[name], ROUTINES[f"{name}_{mode}"].result[0].type
    operands = [samples(dtype, 400, rng) for _ in ROUTINES[f"{name}_{mode}"].arguments]
    if name in ("fma", "fmaf"):
        with np.errstate(all="ignore"):
            product = (operands[0] * operands[1]).astype(dtype)
        operands[2] = np.where((rng.random(400) < 0.4) & np.isfinite(product), -product, operands[2])
    if name.endswith(("div", "rcp")):
        operands[-1][operands[-1] == 0] = 3
    got = apply(f"{name}_{mode}", *operands)
    for *row, found in zip(*operands, got, strict=True):
        exact = exactly(*(Fraction(float(v)) for v in row))
        assert found == 0 if exact == 0 else rightly_rounded(exact, found, mode), (row, found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", rounding.MODES)
def test_square_root_is_rounded_once(mode, dtype, rng):
    x = np.abs(samples(dtype, 400, rng))
    for value, found in zip(x, apply(f"{'f' if dtype == np.float32 else 'd'}sqrt_{mode}", x), strict=True):
        exact, root = Fraction(float(value)), Fraction(float(found))
        below, above = (
            Fraction(float(v)) for v in (np.nextafter(found, dtype(-1)), np.nextafter(found, dtype(np.inf)))
        )
        if mode == "rn":
            assert ((below + root) / 2) ** 2 * (root > 0) <= exact <= ((above + root) / 2) ** 2
        elif mode == "ru":
            assert root**2 >= exact
            assert root == 0 or below**2 < exact
        else:
            assert root**2 <= exact < above**2


def test_the_sign_of_zero_depends_on_the_mode():
    one = np.ones(1)
    assert np.signbit([apply(f"dadd_{mode}", one, -one)[0] for mode in rounding.MODES]).tolist() == [0, 0, 0, 1]
    assert np.signbit([apply(f"fadd_{mode}", np.float32(one), np.float32(-one))[0] for mode in rounding.MODES]).tolist() == [0, 0, 0, 1]  # noqa: E501  # fmt: skip
    assert not np.signbit(apply("dadd_rd", 0 * one, 0 * one)[0])


def test_overflow_depends_on_the_mode():
    big = np.full(1, np.finfo(np.float64).max)
    assert [apply(f"dmul_{mode}", big, big)[0] == big[0] for mode in rounding.MODES] == [False, True, False, True]
    assert [apply(f"double2float_{mode}", big)[0] == np.finfo(np.float32).max for mode in rounding.MODES] == [
        False, True, False, True,
    ]  # fmt: skip


def test_frsqrt_is_rounded_once(rng):
    x = rng.uniform(1, 4, 1000).astype(np.float32)
    for value, found in zip(x, apply("frsqrt_rn", x), strict=True):
        exact, got = Fraction(float(value)), Fraction(float(found))
        half = Fraction(float(np.spacing(found))) / 2
        assert (got - half) ** 2 * exact <= 1 <= (got + half) ** 2 * exact


# ------------------------------------------------------------------------------------------------------- conversions

WHOLE = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}
RANGES = {"int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1), "ll": (-(2**63), 2**63 - 1), "ull": (0, 2**64 - 1)}


@pytest.mark.parametrize("kind", sorted(RANGES))
@pytest.mark.parametrize("mode", rounding.MODES)
@pytest.mark.parametrize("source, dtype", [("float", np.float32), ("double", np.float64)])
def test_float_to_integer(source, dtype, mode, kind, rng):
    x = np.concatenate([samples(dtype, 200, rng), rng.uniform(-9, 9, 100), [0.5, 1.5, 2.5, -0.5]]).astype(dtype)
    low, high = RANGES[kind]
    got = apply(f"{source}2{kind}_{mode}", x)
    unsigned = got.view(f"u{got.itemsize}") if low == 0 else got  # handed on as the signed type of the same bits
    expected = [min(max(WHOLE[mode](Fraction(float(v))), low), high) for v in x]
    assert unsigned.tolist() == expected


def test_nan_to_integer():
    """PTX ISA, cvt: 0 if both sides have at most 32 bits, else the highest bit alone."""
    f, d = np.full(1, np.nan, np.float32), np.full(1, np.nan)
    assert [apply(f"float2{kind}_rn", f)[0] for kind in ("int", "uint", "ll", "ull")] == [0, 0, -(2**63), -(2**63)]
    assert [apply(f"double2{kind}_rn", d)[0] for kind in ("int", "uint", "ll", "ull")] == [
        -(2**31), -(2**31), -(2**63), -(2**63),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", rounding.MODES)
@pytest.mark.parametrize("kind", sorted(RANGES))
def test_integer_to_float(kind, mode, rng):
    seen = np.int32 if "int" in kind else np.int64
    info = np.iinfo(seen)
    n = np.concatenate([rng.integers(info.min, info.max, 200, dtype=seen), [0, 1, -1, info.min, info.max]]).astype(seen)
    truth = n.view(f"u{n.itemsize}") if kind.startswith("u") else n
    for target in ("float", "double"):
        if f"{kind}2{target}_{mode}" not in ROUTINES:
            continue
        for value, found in zip(truth.tolist(), apply(f"{kind}2{target}_{mode}", n), strict=True):
            assert found == 0 if value == 0 else rightly_rounded(Fraction(value), found, mode), (value, found)


# -------------------------------------------------------------------------------------------------- integers and bits


def wrap(value, bits=32):
    """As a signed number of so many bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


U32, U64 = 2**32 - 1, 2**64 - 1


def low24(x):
    return x & 0xFFFFFF


def signed24(x):
    return wrap(x, 24)


def byte_perm(x, y, s):
    pool = (x & U32) | (y & U32) << 32
    return wrap(sum((pool >> 8 * (s >> 4 * i & 7) & 255) << 8 * i for i in range(4)))


INTEGERS = {
    "abs": lambda a: wrap(abs(a)), "brev": lambda a: wrap(int(f"{a & U32:032b}"[::-1], 2)),
    "clz": lambda a: 32 - (a & U32).bit_length(), "ffs": lambda a: (a & -a).bit_length(),
    "popc": lambda a: (a & U32).bit_count(), "max": max, "min": min,
    "umax": lambda a, b: wrap(max(a & U32, b & U32)), "umin": lambda a, b: wrap(min(a & U32, b & U32)),
    "hadd": lambda a, b: (a + b) >> 1, "rhadd": lambda a, b: (a + b + 1) >> 1,
    "uhadd": lambda a, b: wrap(((a & U32) + (b & U32)) >> 1),
    "urhadd": lambda a, b: wrap(((a & U32) + (b & U32) + 1) >> 1),
    "mulhi": lambda a, b: (a * b) >> 32, "umulhi": lambda a, b: wrap(((a & U32) * (b & U32)) >> 32),
    "mul24": lambda a, b: wrap(signed24(a) * signed24(b)), "umul24": lambda a, b: wrap(low24(a) * low24(b)),
    "sad": lambda a, b, c: wrap(abs(a - b) + c), "usad": lambda a, b, c: wrap(abs((a & U32) - (b & U32)) + c),
    "byte_perm": byte_perm,
    "llabs": lambda a: wrap(abs(a), 64), "brevll": lambda a: wrap(int(f"{a & U64:064b}"[::-1], 2), 64),
    "clzll": lambda a: 64 - (a & U64).bit_length(), "ffsll": lambda a: (a & -a).bit_length(),
    "popcll": lambda a: (a & U64).bit_count(), "llmax": max, "llmin": min,
    "ullmax": lambda a, b: wrap(max(a & U64, b & U64), 64), "ullmin": lambda a, b: wrap(min(a & U64, b & U64), 64),
    "mul64hi": lambda a, b: (a * b) >> 64, "umul64hi": lambda a, b: wrap(((a & U64) * (b & U64)) >> 64, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_integer_function(name, rng):
    dtypes = ROUTINES[name].arguments
    info = np.iinfo(dtypes[0])
    edges = np.array([0, 1, -1, info.min, info.max, 12], dtypes[0])
    columns = [
        np.concatenate([rng.integers(info.min, info.max, 100, dtype=dtypes[0]), rng.choice(edges, 60)]) for _ in dtypes
    ]
    expected = [INTEGERS[name](*(int(v) for v in row)) for row in zip(*columns, strict=True)]
    assert apply(name, *columns).tolist() == expected


def test_bit_casts(rng):
    d = samples(np.float64, 50, rng)
    np.testing.assert_array_equal(apply("double_as_longlong", d), d.view(np.int64))
    np.testing.assert_array_equal(apply("longlong_as_double", d.view(np.int64)), d)
    np.testing.assert_array_equal(apply("hiloint2double", apply("double2hiint", d), apply("double2loint", d)), d)
    f = samples(np.float32, 50, rng)
    np.testing.assert_array_equal(apply("int_as_float", apply("float_as_int", f)), f)
    h = rng.integers(0, 0x7C00, 50).astype(np.int16)
    np.testing.assert_array_equal(apply("float2half_rn", apply("half2float", h)), h)
    assert apply("signbitd", np.array([-0.0, 0.0, -np.inf])).tolist() == [1, 0, 1]
    assert apply("finitef", np.array([np.inf, 1, np.nan], np.float32)).tolist() == [0, 1, 0]
