"""A multiply-add is rounded once: numbers near one, subnormal and huge ones, and those that lie halfway."""

from fractions import Fraction

import numpy as np
import pytest

from pmpp.simt.values import complexes, rounding

SPECIAL_NUMBERS = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, 3e-310, 1.7e308, 1e200]


def factors(kind, n, rng):
    """Three operands: of any size, whose sum cancels, lies halfway, is subnormal, overflows, or is a special case."""
    a, b, c = rng.integers(1 << 52, 1 << 53, (3, n)) * rng.choice([-1.0, 1.0], (3, n))
    exponents = {"any": (-1125, 970), "overflow": (430, 470)}.get(kind, (-60, -45))
    a, b, c = np.ldexp([a, b, c], rng.integers(*exponents, (3, n)))
    if kind == "cancels":
        c = -(a * b) * (1 + rng.integers(-2, 3, n) * 2.0**-52)
    elif kind == "halfway":
        a, b = rng.integers(1 << 26, 1 << 27, n) / 64.0, 1 + np.ldexp(1.0, -rng.integers(20, 60, n))
        c = np.ldexp(rng.choice([-1.0, 1.0, 3.0], n), rng.integers(-120, -40, n))
    elif kind == "subnormal":
        a, b = np.ldexp([a, b], rng.integers(-540, -530, (2, n)))
        c = np.ldexp(c, rng.integers(-1075, -1040, n))
    elif kind == "tiny sum":
        a = np.ldexp(a, -950)
        c = np.where(rng.random(n) < 0.5, -(a * b), -(a * b) * (1 + 2.0**-52))
    elif kind == "overflow":
        c = np.ldexp(c, rng.integers(470, 500, n))
    elif kind == "special":
        a, b, c = rng.choice(SPECIAL_NUMBERS, (3, n))
    return a, b, c


def fused(a, b, c):
    """One number: exactly, then rounded once."""
    if all(map(np.isfinite, (a, b, c))):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        return a * b + c if exact == 0 else rounding.round_fraction(exact, "rn")
    return c if np.isinf(c) and np.isfinite(a) and np.isfinite(b) else a * b + c


@pytest.mark.parametrize(
    "kind", ["near one", "any", "cancels", "halfway", "subnormal", "tiny sum", "overflow", "special"]
)
@pytest.mark.parametrize("n", [1, 3000, 2 * rounding.CHUNK + 5])
def test_a_multiply_add_rounds_once_in_every_range(kind, n):
    with np.errstate(all="ignore"):
        a, b, c = factors(kind, n, np.random.default_rng(n))
        found = np.broadcast_to(rounding.fma64(a, b, c), n)
        some = np.random.default_rng(0).permutation(n)[:1500]
        expected = np.array([fused(*row) for row in zip(a[some], b[some], c[some], strict=True)])
    same = (found[some].view(np.int64) == expected.view(np.int64)) | (np.isnan(found[some]) & np.isnan(expected))
    assert same.all()


@pytest.mark.parametrize("scale", [1.0, 1e-22, 1e-30, 1e19])
def test_a_float32_multiply_add_rounds_once(scale):
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(1, 1 << 20, (3, 20_000)) * rng.choice([-1.0, 1.0], (3, 20_000)) * scale).astype(np.float32)
    with np.errstate(all="ignore"):
        c *= np.float32(scale)
        found = rounding.fma32(a, b, c)
        wide, lost = rounding.two_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
        expected = rounding.narrow(rounding.to_odd(wide, np.where(np.isfinite(wide), lost, 0.0)), "rn")
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def test_a_complex_product_is_that_of_its_parts():
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((2, 2, rounding.CHUNK + 3)) + 1j * rng.standard_normal((2, 2, rounding.CHUNK + 3))
    for x, y in ((a, b), (a, a), (a, b[0, 7]), (a[:, :1], b[:1])):
        found = complexes.multiply(x, y)
        assert found.shape == np.broadcast_shapes(np.shape(x), np.shape(y))
        np.testing.assert_array_equal(found.real, rounding.fma64(x.real, y.real, -(x.imag * y.imag)))
        np.testing.assert_array_equal(found.imag, rounding.fma64(x.imag, y.real, x.real * y.imag))


def test_a_square_is_the_product_of_two_equal_numbers():
    """It has a way of its own.  Numbers of all sizes, subnormal ones, and those whose products lie half-way."""
    rng = np.random.default_rng(5)
    sizes = np.concatenate([rng.uniform(-545, -505, 4000), rng.uniform(-5, 5, 4000), rng.uniform(505, 520, 2000)])
    real, imag = (rng.choice([-1, 1], sizes.size) * (1 + rng.random(sizes.size)) * 2.0 ** np.rint(sizes + shift)
                  for shift in (0, rng.integers(-20, 20, sizes.size)))  # fmt: skip
    few_bits = rng.random(sizes.size) < 0.5
    imag = np.where(
        few_bits, np.copysign(2.0 ** np.rint(np.log2(np.abs(imag))) * rng.integers(1, 8, sizes.size), imag), imag
    )
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        -5e-324,
        1.5,
        1.7976931348623157e308,
        2.2250738585072014e-308,
    ]
    real = np.concatenate([real, np.repeat(special, len(special))])
    imag = np.concatenate([imag, np.tile(special, len(special))])
    z = np.empty(real.size, np.complex128)
    z.real, z.imag = real, imag
    with np.errstate(all="ignore"):
        square, product = complexes.multiply(z, z), complexes.multiply(z, z.copy())
    for one, other in ((square.real, product.real), (square.imag, product.imag)):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one) & ~np.isnan(one), np.signbit(other) & ~np.isnan(other))
