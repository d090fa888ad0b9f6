"""The rules of arithmetic at the edges: remainders, powers, complex numbers, lengths, special functions.

Oracles are fractions and integers.  tests/simt/test_edges_gpu.py has what a GPU gave.
"""

import cmath
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.values import arithmetic, complexes, dtypes, operators, rounding, special

# -- remainders ------------------------------------------------------------------------------------------------------


def _nearest(exact, dtype):
    """A fraction rounded to nearest: Python rounds correctly to float64; float32 is chosen among three neighbours."""
    if dtype == np.float64:
        return float(exact)
    near = np.float32(float(exact))
    several = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(several, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))


def _remainder(x, y, dtype):
    """PTX of frem, in fractions: |x| - floor(fl(|x| / |y|)) |y|, rounded once; then Python's sign."""
    size = abs(Fraction(y))
    quotient = math.floor(Fraction(float(_nearest(abs(Fraction(x)) / size, dtype))))
    rest = float(_nearest(abs(Fraction(x)) - quotient * size, dtype)) * (-1 if x < 0 else 1)
    if rest == 0:
        return math.copysign(0.0, y)
    return rest if (y < 0) == (rest < 0) else float(_nearest(Fraction(rest) + Fraction(y), dtype))


numbers = st.floats(0.125, 2.0**30, width=32) | st.floats(-(2.0**30), -0.125, width=32)


@settings(max_examples=200, deadline=None)
@given(numbers, numbers, st.sampled_from([np.float32, np.float64]))
def test_remainder_is_a_rounded_quotient_and_a_fused_product(x, y, dtype):
    with np.errstate(all="ignore"):
        found = operators.BINARY["Mod"](dtype(x), dtype(y))
    assert found.dtype == dtype
    assert found == _remainder(x, y, np.dtype(dtype))


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**20), 2**20), st.integers(-1000, 1000).filter(bool))
def test_floats_with_small_quotients_divide_as_python_does(x, y):
    for dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            whole, rest = (operators.BINARY[name](dtype(x), dtype(y)) for name in ("FloorDiv", "Mod"))
        assert (whole, rest) == divmod(float(x), float(y))
        assert np.signbit(rest) == np.signbit(np.float64(x) % np.float64(y))


# -- powers ----------------------------------------------------------------------------------------------------------


def _wrapped(value, dtype):
    bits = np.iinfo(dtype).bits
    value %= 2**bits
    return value - 2**bits if dtype.kind == "i" and value >= 2 ** (bits - 1) else value


def _as_float64(value, dtype):
    """An integer made a float64 and an integer again, as the device does it."""
    return min(int(float(value)), np.iinfo(dtype).max)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-4, 4), st.integers(0, 200) | st.just(65536))
def test_integer_powers_wrap_and_then_keep_53_bits(a, n):
    with np.errstate(over="ignore"):
        signed = arithmetic.integer_power(np.int64(a), np.int64(n)), arithmetic.integer_power(np.int64(a), np.uint64(n))
        unsigned = arithmetic.integer_power(np.uint64(a % 2**64), np.uint64(n))
    expected = _as_float64(_wrapped(pow(a, n, 2**64), np.dtype(np.int64)), np.int64)
    assert signed == (expected, expected)
    assert unsigned == _as_float64(pow(a % 2**64, n, 2**64), np.uint64)


@pytest.mark.parametrize(
    "a, n, expected",
    [
        (0, -3, -(2**63)),  # a fraction that does not exist
        (1, -3, 1),
        (-1, -3, -1),
        (-1, -(2**40), 1),
        (7, -1, 0),
        (3, 65537, 2**63 - 1),  # beyond 65,536: pow in float64, which saturates
        (-3, 65537, -(2**63)),
        (2, 65537, 2**63 - 1),
    ],
)
def test_integer_powers_that_are_no_product(a, n, expected):
    with np.errstate(all="ignore"):
        assert arithmetic.integer_power(np.int64(a), np.int64(n)) == expected


@settings(max_examples=100, deadline=None)
@given(st.floats(0.125, 100, width=32), st.integers(-12, 12), st.sampled_from([np.float32, np.float64]))
def test_an_integer_exponent_is_multiplied_out_and_rounded_at_every_step(x, n, dtype):
    result, square, left = Fraction(1), Fraction(x), abs(n)
    while left:
        if left & 1:
            result = Fraction(float(_nearest(result * square, np.dtype(dtype))))
        square, left = Fraction(float(_nearest(square * square, np.dtype(dtype)))), left >> 1
    expected = result if n >= 0 else Fraction(float(_nearest(1 / result, np.dtype(dtype))))
    for found in (arithmetic.float_power(dtype(x), np.int32(n)), arithmetic.powi(dtype(x), np.int32(n))):
        assert found.dtype == dtype
        assert Fraction(float(found)) == expected


CUBE = 3


@cuda.jit
def powers(x, n, out):
    i = cuda.grid(1)
    k = 2
    out[0, i] = x[i] ** CUBE
    out[1, i] = x[i] ** k
    out[2, i] = x[i] ** -1
    out[3, i] = x[i]
    out[3, i] **= 2
    out[4, i] = x[i] ** n[i]


def test_powers_in_a_kernel():
    """A literal exponent is no other than one that a thread reads: the product is a float64 for a moment."""
    x = np.array([2**62 + 3, -5, 0, 1], np.int64)
    out = np.zeros((5, 4), np.int64)
    powers[1, 4](x, np.array([3, 27, -1, -7]), out)
    exact = [[_as_float64(_wrapped(int(v) ** k, x.dtype), x.dtype) for v in x] for k in (3, 2)]
    assert out[:2].tolist() == exact
    assert exact[0][0] != _wrapped((2**62 + 3) ** 3, x.dtype)
    assert out[2].tolist() == [0, 0, -(2**63), 1]
    assert out[3].tolist() == exact[1]
    assert out[4].tolist() == [exact[0][0], int(float(-(5**27))), -(2**63), 1]


@cuda.jit
def cubes(x, out):
    i = cuda.grid(1)
    out[i] = x[i] ** 3


def test_the_ptx_of_an_integer_power_has_a_float64_in_it(ptx):
    text = ptx(cubes, np.zeros(1, np.int64), np.zeros(1, np.int64))
    if "f64" not in text:
        pytest.skip("this version of NVVM takes the way through float64 to be none")
    assert "cvt.rn.f64.s64" in text
    assert "cvt.rzi.s64.f64" in text


@cuda.jit
def exponents_of_another_sign(x, n, out):
    i = cuda.grid(1)
    out[i] = x[i] ** n[i]


def test_an_unsigned_exponent_is_never_negative():
    x, n, out = np.array([-1, 2, 1]), np.array([2**64 - 1, 2**63, 2**64 - 2], np.uint64), np.zeros(3, np.int64)
    exponents_of_another_sign[1, 3](x, n, out)
    assert out.tolist() == [1, 2**63 - 1, 1]  # beyond 65,536 by way of float64, to which 2**64 - 1 is even


# -- what Numba raises -----------------------------------------------------------------------------------------------


@cuda.jit
def quotient(a, b, out):
    i = cuda.grid(1)
    if b[i] != 0:
        out[i] = a[i] / b[i]


@cuda.jit
def unguarded(a, b, out):
    i = cuda.grid(1)
    out[i] = a[i] / b[i]


@cuda.jit
def power_of(a, b, out):
    i = cuda.grid(1)
    out[i] = a[i] ** b[i]


@cuda.jit
def unguarded_by_name(a, b, out):
    i = cuda.grid(1)
    out[i] = operator.truediv(a[i], b[i])


@cuda.jit
def logarithm(a, b, out):
    i = cuda.grid(1)
    out[i] = cmath.log(a[i], b[i])


def test_a_thread_that_numba_ends_is_an_error_here():
    a, b = np.ones(40, np.complex64), np.ones(40, np.complex64)
    b[33] = 0
    out = np.zeros_like(a)
    quotient[1, 40](a, b, out)
    assert out.sum() == 39
    for kernel in (unguarded, unguarded_by_name):
        with pytest.raises(simt.SimtError, match=r"complex division by zero in thread \(33, 0, 0\)"):
            kernel[1, 40](a, b, out)
    with pytest.raises(simt.SimtError, match="complex division by zero"):
        logarithm[1, 40](a, np.ones_like(a), out)  # log(1) is 0
    logarithm[1, 40](a * 8, np.full_like(a, 2), out)
    assert out == pytest.approx(np.full(40, 3), rel=1e-6)
    n = np.full(40, 2, np.int32)
    n[7] = -(2**31)
    with pytest.raises(simt.SimtError, match=r"OverflowError.* in thread \(7, 0, 0\)"):
        power_of[1, 40](np.ones(40), n, np.zeros(40))
    n[7] += 1
    power_of[1, 40](np.ones(40), n, np.zeros(40))


# -- complex numbers -------------------------------------------------------------------------------------------------

parts = st.floats(-1000, 1000, width=32)


@settings(max_examples=100, deadline=None)
@given(parts, parts, parts, parts, st.sampled_from([np.float32, np.float64]))
def test_complex_products_are_fused(a, b, c, d, dtype):
    kind = np.dtype(dtype)

    def fused(p, q, r):
        return _nearest(Fraction(p) * Fraction(q) + r, kind)

    rounded = [Fraction(float(_nearest(Fraction(p) * Fraction(q), kind))) for p, q in ((b, d), (a, d))]
    both = np.result_type(dtype, np.complex64)
    found = complexes.multiply(both.type(complex(a, b)), both.type(complex(c, d)))
    assert found.dtype == both
    assert (found.real, found.imag) == (fused(a, c, -rounded[0]), fused(b, c, rounded[1]))


def test_a_quotient_has_the_sign_of_its_zero():
    i = np.complex64(1j)
    found = complexes.divide(i, i)
    assert (found.real, found.imag, np.signbit(found.imag)) == (1, 0, False)


def test_fma_keeps_the_sign_of_a_zero():
    for dtype, fma in ((np.float32, rounding.fma32), (np.float64, rounding.fma64)):
        for a, b, c in ((1.5, -0.0, -0.0), (-1.5, 0.0, -0.0), (1.5, 0.0, -0.0), (0.0, -2.0, 0.0)):
            found = fma(dtype(a), dtype(b), dtype(c))
            assert found == 0
            assert np.signbit(found) == np.signbit(a * b + c)


def test_fma_of_an_infinite_sum_is_infinite():
    """The product of finite numbers is finite, even where it is no float64."""
    big = np.float64(1e300)
    with np.errstate(all="ignore"):
        assert rounding.fma64(big, big, np.float64(-np.inf)) == -np.inf
        assert np.isnan(rounding.fma64(np.float64(np.inf), big, np.float64(-np.inf)))


@cuda.jit
def views(z, parts, sums):
    i = cuda.grid(1)
    tile = cuda.shared.array(64, np.complex64)
    tile[cuda.threadIdx.x] = z[i]
    cuda.syncthreads()
    parts[0, i] = z.real[i]
    parts[1, i] = tile.imag[63 - cuda.threadIdx.x]
    z.imag[i] = 1
    cuda.atomic.add(sums.real, 0, z.imag[i])


@pytest.mark.parametrize("level", ["run", "check"])
def test_the_parts_of_an_array_are_views(level):
    z = (np.arange(64) - 1j * np.arange(64)).astype(np.complex64)
    parts, sums = np.zeros((2, 64), np.float32), np.zeros(2, np.complex128)
    simt.profile(views, 1, 64, (z, parts, sums), level=level)
    assert parts.tolist() == [list(range(64)), [-x for x in reversed(range(64))]]
    assert (z == np.arange(64) + 1j).all()
    assert sums.tolist() == [64, 0]


@cuda.jit
def both_write(z):
    z.real[0] = cuda.grid(1)


def test_a_race_on_a_part_is_a_race():
    report = simt.profile(both_write, 1, 64, (np.zeros(4, np.complex64),), level="check")
    assert [(h.kind, h.variable) for h in report.hazards] == [("race", "z.real")]


# -- lengths and special functions -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_hypot_is_right_to_two_units(x, y):
    with np.errstate(all="ignore"):
        for dtype in (np.float32, np.float64):
            a, b = dtype(x), dtype(y)
            if not (np.isfinite(a) and np.isfinite(b)):
                continue
            exact = math.isqrt(int((Fraction(float(a)) ** 2 + Fraction(float(b)) ** 2) * 2**4400))
            length = arithmetic.hypot(a, b)
            found = Fraction(float(length)) * 2**2200 if np.isfinite(length) else None
            # np.spacing looks upwards, and above the largest number there is only infinity.
            unit = np.spacing(np.minimum(length, np.nextafter(np.finfo(dtype).max, dtype(0))))
            unit = Fraction(float(unit)) * 2**2200
            if found is None:
                assert exact > 2**2200 * Fraction(float(np.finfo(dtype).max)) - 2 * unit
            else:
                assert abs(found - exact) <= 2 * unit


@pytest.mark.parametrize("x", [2.0e4, 1e8, 3.7e11, 1e17, 2.5e200])
@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_far_bessel_functions_have_their_wronskian(n, x):
    """J of n+1 times Y of n, less J of n times Y of n+1, is 2 / (pi x) (DLMF 10.5.2): wrong phases would not cancel."""
    k, x = np.arange(n, n + 2, dtype=np.int32), np.float64(x)
    j, y = special.jn(k, x), special.yn(k, x)
    assert (j[1] * y[0] - j[0] * y[1]) * np.pi * x / 2 == pytest.approx(1, rel=1e-13)


def test_bessel_functions_join_where_the_formula_changes():
    for n in range(4):
        below, above = (special.jn(np.int32(n), np.float64(v)) for v in (1e4 - 2.0**-30, 1e4 + 2.0**-30))
        assert below == pytest.approx(above, abs=3e-11)


@settings(max_examples=50, deadline=None)
@given(st.floats(-38, -1))
def test_normcdf_far_out(x):
    """Against Mills' ratio as a continued fraction, in fractions of integers."""
    ratio = Fraction(-x)
    for k in range(400, 0, -1):
        ratio = Fraction(-x) + Fraction(k) / Fraction(float(ratio))
    whole = round(x * 64) / 64  # exp of a rounded square would not do
    density = math.exp(-whole * whole / 2) * math.exp(-(x - whole) * (x + whole) / 2)
    expected = density / math.sqrt(2 * math.pi) / float(ratio)
    assert special.normcdf(np.float64(x)) == pytest.approx(expected, rel=8 * np.finfo(np.float64).eps, abs=1e-320)


def test_the_device_has_one_bfloat16_nan():
    if not dtypes.HAS_BFLOAT16:
        pytest.skip("ml_dtypes is not installed")
    found = dtypes.cast(np.array([np.nan, -np.nan, 1.0], np.float32), dtypes.BFLOAT16)
    assert found.view(np.uint16).tolist() == [0x7FFF, 0x7FFF, 0x3F80]
