"""Vector types, cache hints, complex numbers and `cmath` in kernels."""

import cmath
import inspect

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.api import cache_hints, vectors
from pmpp.simt.api.intrinsics import device_path
from pmpp.simt.values import complexes, maths

ALIASES = {
    "char": "int8", "short": "int16", "int": "int32", "longlong": "int64", "uchar": "uint8", "ushort": "uint16",
    "uint": "uint32", "ulonglong": "uint64", "float": "float32", "double": "float64",
}  # fmt: skip


def refused(kernel, *arguments, match):
    """The kernel is refused in its last line, for that reason."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    with pytest.raises(simt.UnsupportedError, match=rf"test_vectors.py:{first + len(lines) - 1}: .*{match}"):
        kernel[1, 1](*arguments)


# ----------------------------------------------------------------------------------------------------------- vectors


@cuda.jit(device=True)
def swapped(v):
    return cuda.float2(v.y, v.x)


@cuda.jit
def build(x, out):
    t = cuda.grid(1)
    v = cuda.float32x4(cuda.float2(x[t], 2), cuda.float1(3), 4.5)
    if t > 3:
        v = cuda.float4(7, cuda.float3(8, 9, x[t]))
    w = swapped(cuda.float2(v.x, v.w))
    i = cuda.int32x3(x[t], 2.9, -1)
    out[t, 0] = w.x
    out[t, 1] = w.y
    out[t, 2] = v.y + v.z
    out[t, 3] = i.x + i.y + i.z


def test_vectors_are_built_from_numbers_and_vectors(ptx):
    x = np.arange(8, dtype=np.float32) + 0.5
    out = np.zeros((8, 4), np.float32)
    build[1, 8](x, out)
    low = np.arange(8) < 4
    expected = [np.where(low, 4.5, x), np.where(low, x, 7), np.where(low, 5, 17), np.arange(8) + 1]
    np.testing.assert_array_equal(out.T, expected)
    assert ".entry" in ptx(build, x, out)


def test_every_vector_type_of_numba_is_here():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba.cuda import stubs

    wrong = set()
    for stub in stubs._vector_type_stubs:
        names = [stub.__name__, *stub.aliases]
        wrong |= {name for name in names if name not in vectors.VECTORS or not hasattr(cuda, name)}
        assert device_path(stub) == stub.__name__
    assert wrong == set()


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_the_elements_of_an_alias(alias):
    vector = vectors.VECTORS[f"{alias}2"](None, None, np.int64(1), np.float64(2.75))
    assert vector.dtype == ALIASES[alias]
    assert vector.kind == f"{ALIASES[alias]}x2"


def test_what_numba_refuses_of_vectors_is_refused():
    x = np.ones(4, np.float32)

    @cuda.jit
    def member_assigned(x):
        v = cuda.float2(1, 2)
        v.x = 3

    refused(member_assigned, x, match="cannot assign to v.x")

    @cuda.jit
    def no_such_member(x):
        x[0] = cuda.float2(1, 2).z

    refused(no_such_member, x, match="a float32x2 vector has no attribute z")

    @cuda.jit
    def indexed(x):
        v = cuda.float2(1, 2)
        x[0] = v[0]

    refused(indexed, x, match="cannot be indexed")

    @cuda.jit
    def added(x):
        v = cuda.float2(1, 2)
        v = v + v

    refused(added, x, match=r"\+ does not take a float32x2 vector")

    @cuda.jit
    def unpacked(x):
        _a, _b = cuda.float2(1, 2)

    refused(unpacked, x, match="cannot unpack")

    @cuda.jit
    def too_few(x):
        cuda.float3(1, 2)

    refused(too_few, x, match="takes 3 numbers in all, not 2")

    @cuda.jit
    def other_elements(x):
        cuda.float2(cuda.int2(1, 2))

    refused(other_elements, x, match="takes vectors of float32, not int32x2")

    @cuda.jit
    def stored(x):
        x[0] = cuda.float2(1, 2)

    refused(stored, x, match="cannot store a float32x2 vector")

    @cuda.jit
    def array_of_vectors(x):
        cuda.local.array(4, cuda.float4)

    refused(array_of_vectors, x, match="the dtype is")


# ------------------------------------------------------------------------------------------------------- cache hints


@cuda.jit
def hinted(x, y, z):
    t = cuda.grid(1)
    total = cuda.ldca(x, t) + cuda.ldcg(x, t) + cuda.ldcs(x, t) + cuda.ldlu(x, t) + cuda.ldcv(x, t)
    cuda.stcg(y, (0, t), total)
    cuda.stcs(y, (1, t), 2.9)
    cuda.stwb(z, t, cuda.ldcg(y, (0, t)))
    cuda.stwt(y, (2, t), -t)


def test_cache_hints_load_and_store(ptx):
    x, y, z = np.arange(64, dtype=np.int32), np.zeros((3, 64), np.float32), np.zeros(64, np.int16)
    report = simt.profile(hinted, 1, 64, (x, y, z), level="check")
    assert report.hazards == []
    np.testing.assert_array_equal(z, 5 * x)
    assert report.counters["global_load_requests"] == 2 * 6
    assert report.counters["global_store_requests"] == 2 * 4
    text = ptx(hinted, x, y, z)
    for operator in ("ld.global.ca", "ld.global.cg", "ld.global.cs", "ld.global.lu", "ld.global.cv", "st.global.cg",
                     "st.global.cs", "st.global.wb", "st.global.wt"):  # fmt: skip
        assert operator in text


def test_hints_are_for_global_memory_numbers_and_indices_of_one_type():
    x = np.ones((4, 4), np.float32)
    assert set(cache_hints.HINTS) == {*cache_hints.LOADS, *cache_hints.STORES}

    @cuda.jit
    def shared(x):
        s = cuda.shared.array(4, cuda.float32)
        x[0, 0] = cuda.ldca(s, 0)

    refused(shared, x, match="ldca is for global memory; s is in shared memory")

    @cuda.jit
    def complex_array(x):
        cuda.ldcg(x, 0)

    refused(complex_array, np.ones(4, np.complex64), match="integers or floats, not of complex64")

    @cuda.jit
    def one_index(x):
        cuda.ldcg(x, 0)

    refused(one_index, x, match="2 axes and the index has 1")

    @cuda.jit
    def two_types(x):
        cuda.stcg(x, (np.int32(0), 1), 1)

    refused(two_types, x, match="the indices have different types, int32 and int64")


def test_hints_are_checked_for_bounds():
    @cuda.jit
    def outside(x):
        cuda.stcs(x, cuda.grid(1), 1)

    with pytest.raises(simt.OutOfBoundsError, match="x"):
        outside[1, 32](np.zeros(31, np.float32))


# --------------------------------------------------------------------------------------------------- complex numbers


@cuda.jit
def complex_kernel(a, b, out, real):
    t = cuda.grid(1)
    x, y = a[t], b[t]
    out[0, t] = x + y * x - y / x
    out[1, t] = -x.conjugate() + complex(x.real, y.imag) * 2j
    out[2, t] = x**2
    out[3, t] = cmath.exp(x) + cmath.sqrt(y) + cmath.log(x) + cmath.rect(y.real, x.imag)
    out[4, t] = np.complex64(1.5) if x == y else x
    real[0, t] = abs(x) + x.real - y.imag + cmath.phase(x)
    r, phi = cmath.polar(y)
    real[1, t] = r * phi
    out[5, t] += x
    out[5, t] *= y


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_arithmetic(dtype, rng, ptx):
    a, b = (rng.normal(size=50) + 1j * rng.normal(size=50) for _ in range(2))
    a, b = a.astype(dtype), b.astype(dtype)
    out, real = np.zeros((6, 50), dtype), np.zeros((2, 50), a.real.dtype)
    complex_kernel[1, 50](a, b, out, real)
    tolerance = 64 * np.finfo(dtype).eps
    for j, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        expected = [x + y * x - y / x, -x.conjugate() + complex(x.real, y.imag) * 2j, x * x,
                    cmath.exp(x) + cmath.sqrt(y) + cmath.log(x) + cmath.rect(y.real, x.imag), x, x * y]  # fmt: skip
        np.testing.assert_allclose(out[:, j], expected, rtol=tolerance, atol=tolerance)
        r, phi = cmath.polar(y)
        np.testing.assert_allclose(
            real[:, j], [abs(x) + x.real - y.imag + cmath.phase(x), r * phi], rtol=tolerance, atol=tolerance
        )
    assert ".entry" in ptx(complex_kernel, a, b, out, real)


_MOST = {"complex64": "complex64", "complex128": "complex128", "float32": "complex64", "bool": "complex64",
         "int64": "complex128", "float16": "complex64"}  # fmt: skip
_KEPT = {"complex64": "complex64", "complex128": "complex128", "float32": None}
_WIDENED = {"complex64": "complex128", "complex128": "complex128", "float64": None}
_TESTS = {"complex64": "bool", "complex128": "bool", "float32": "bool"}
#: Result types by type of argument, which numba-cuda 0.30.4 gave for a device function each; None is refused.
CMATH_TYPES = {
    "acos": _MOST, "asin": _MOST, "asinh": _MOST, "atan": _MOST, "atanh": _MOST, "cos": _MOST, "exp": _MOST,
    "log": _MOST, "sin": _MOST, "sqrt": _MOST, "tan": _MOST, "cosh": _KEPT, "sinh": _KEPT, "acosh": _WIDENED,
    "log10": _WIDENED, "tanh": _WIDENED, "isnan": _TESTS, "isinf": _TESTS, "isfinite": _TESTS,
    "phase": {"complex64": "float32", "complex128": "float64", "float64": None},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CMATH_TYPES))
def test_types_of_cmath(name):
    for given, expected in CMATH_TYPES[name].items():
        value = np.dtype(given).type(1)
        if expected is None:
            with pytest.raises(TypeError, match="complex numbers only"):
                complexes.CMATH[name](value)
        else:
            with np.errstate(all="ignore"):
                assert complexes.CMATH[name](value).dtype == expected


@pytest.mark.parametrize("name", [n for n in sorted(CMATH_TYPES) if not n.startswith("is") and n != "phase"])
def test_values_of_cmath(name, rng):
    z = rng.normal(size=100) + 1j * rng.normal(size=100)
    expected = [getattr(cmath, name)(v) for v in z.tolist()]
    np.testing.assert_allclose(complexes.CMATH[name](z), expected, rtol=1e-13)


@pytest.mark.parametrize("given, expected", [("float32", "complex64"), ("float64", "complex128"),
                                             ("int64", "complex128")])  # fmt: skip
def test_complex_of_a_number(given, expected):
    assert maths.to_complex(np.dtype(given).type(2)).dtype == expected
    assert maths.to_complex(np.dtype(given).type(2), np.dtype(given).type(3)) == 2 + 3j


def test_what_numba_refuses_of_complex_numbers_is_refused():
    z = np.ones(4, np.complex64)

    @cuda.jit
    def ordered(z):
        z[0] = 1 if z[1] < z[2] else 2

    refused(ordered, z, match="< does not take complex64 and complex64")

    @cuda.jit
    def floored(z):
        z[0] = z[1] // z[2]

    refused(floored, z, match="// does not take")

    @cuda.jit
    def truncated(z):
        z[0] = int(z[1])

    refused(truncated, z, match="a complex number is no int64")

    @cuda.jit
    def smallest(z):
        z[0] = min(z[1], z[2])

    refused(smallest, z, match="no order")

    @cuda.jit
    def stored(z, x):
        x[0] = z[0]

    refused(stored, z, np.ones(1), match="cannot store complex64 in x, an array of float64")


# ------------------------------------------------------------------------------------------------------ small things


@cuda.jit
def counted(x, out):
    t = cuda.grid(1)
    out[t] = x[t].bit_count()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
def test_bit_count_counts_the_bits_of_the_pattern(dtype, ptx):
    x = np.array([0, 1, 5, 127, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    out = np.zeros(6, np.int32)
    counted[1, 6](x, out)
    mask = (1 << 8 * x.itemsize) - 1
    assert out.tolist() == [(int(v) & mask).bit_count() for v in x]
    if dtype == "int32":
        assert "popc" in ptx(counted, x, out)


@cuda.jit
def cubes(x, out):
    s = cuda.shared.array((2, 3, 4), cuda.float32)
    mine = cuda.local.array((2, 2, 2), cuda.int32)
    t = cuda.threadIdx.x
    k, j, i = t // 12, t // 4 % 3, t % 4
    s[k, j, i] = x[t]
    for a in range(2):
        for b in range(2):
            for c in range(2):
                mine[a, b, c] = t * (4 * a + 2 * b + c)
    cuda.syncthreads()
    out[t] = s[1 - k, 2 - j, 3 - i] + mine[1, 0, 1] + mine[0, 1, 0]


def test_shared_and_local_arrays_of_three_axes(ptx):
    x, out = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    cubes[1, 24](x, out)
    np.testing.assert_array_equal(out, x[::-1] + 7 * np.arange(24))
    assert ".shared" in ptx(cubes, x, out)


@cuda.jit
def two_views(x, out):
    both = cuda.shared.array(0, cuda.float32)
    left, right = both[:32], both[32:64]
    t = cuda.threadIdx.x
    left[t], right[t] = x[t], 2 * x[t]
    cuda.syncthreads()
    out[t] = left[31 - t] + right[t]


def test_slices_of_dynamic_shared_memory_are_several_arrays(ptx):
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    two_views[1, 32, 0, 64 * 4](x, out)
    np.testing.assert_array_equal(out, 31 + x)
    assert ".shared" in ptx(two_views, x, out)


def test_fma_is_one_rounding_even_where_float64_is_not_enough():
    """a * b + c in float64 and then float32 would round twice."""

    @cuda.jit
    def fused(out, a, b, c):
        out[0] = cuda.fma(a, b, c)

    out = np.zeros(1, np.float32)
    a, b = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12)  # their product ends in a tie of float32
    c = np.float32(2.0**-70)
    fused[1, 1](out, a, b, c)
    assert out[0] == np.float32(1 + 2.0**-11 + 2.0**-23)
