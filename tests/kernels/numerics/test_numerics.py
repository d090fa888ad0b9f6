"""Numerics: results, each rung's own bound, same bits, arguments, and the counters against counts done by hand."""

import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import numerics
from pmpp.kernels.numerics import ladder as room
from pmpp.runtime import device
from tests.kernels.numerics.wrong import CLAIMS, RIGHT
from tests.kernels.numerics.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

BLOCK = room.BLOCK
INPUTS = {name: x for name, (x,) in room.inputs().items()}
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")

U = 2.0**-24  # the largest relative error of one rounding


# -------------------------------------------------------------------------------------------------------------- results


def nearest(x):
    """The float32 next to the exact sum of finite ``x``, a tie to the even one: in fractions, without any rounding."""
    whole = sum(map(Fraction, x.tolist())) * 2**149
    assert whole.denominator == 1
    shift = max(0, abs(whole.numerator).bit_length() - 24)
    rounded = round(Fraction(whole.numerator, 2**shift))  # Python's round takes a tie to the even one
    if abs(rounded) * 2**shift >= 2 ** (128 + 149):
        return np.float32(math.copysign(math.inf, rounded))
    return np.float32(math.ldexp(rounded, shift - 149))


def bound(name, x, grid=None):
    """The largest error of the rung ``name``, on finite ``x``, from the additions that a term goes through."""
    size = float(np.abs(x[np.isfinite(x)]).sum(dtype=np.float64))
    last = U * abs(math.fsum(x)) if np.isfinite(x).all() else 0.0  # of the one rounding that is left
    depth = room.additions(x.size, grid)
    if name == "one_after_another":
        return depth * U * size
    if name == "tree":
        # Of a vector, of four vectors, the edges, a warp and its block; from 2^14 elements on, twice.
        return (2 + 2 + 2 + 5 + 5) * (2 if x.size > 2**14 else 1) * U * size
    if name == "compensated":
        # What is lost adds up to at most depth u sum |x|, and adding it up makes an error of at most 2 depth u of that
        # (Ogita, Rump and Oishi 2005, theorem 4.5, for a sum in order).
        return last + 2 * (depth * U) ** 2 * size
    if name == "wider":
        return last + depth * 2.0**-53 * size
    return 0.0


def right(name, result, x, grid=None):
    expected = np.full(1, room.reference(x))
    allowed = bound(name, x, grid)
    if name == "exact" and np.isfinite(x).all():
        if x.size > 2**16:  # fractions are slow: a correctly rounded sum is within one rounding of the reference
            allowed = U * (1 + 2 * U) * abs(expected[0])
        else:
            expected = np.full(1, nearest(x), np.float64)
    return judge.right(result, expected, allowed)


EXTRA = {
    # Halfway between two float32, and just above and below: 1 is even, and 1 + 2^-23 is odd.
    "a tie above an even one": np.float32([1, U]),
    "a tie above an odd one": np.float32([1 + 2 * U, U]),
    "a hair above a tie": np.float32([1, U, 2.0**-149]),
    "a hair below a tie": np.float32([-1, -U, 2.0**-149]),
    # float64 rounds 1 + 2^-24 + 2^-80 to 1 + 2^-24, and that to 1: two roundings are not one.
    "rounded twice": np.float32([1, U, 2.0**-80]),
    "just below infinity": np.float32([np.finfo(np.float32).max, 2.0**102, 2.0**102]),
    "half of the last bit is infinity": np.float32([np.finfo(np.float32).max, 2.0**103]),
    "more digits than float64": np.float32([1e30, 1e-30, -1e30]),
    "larger after smaller": np.tile(np.float32([1, 1e8, 1, -1e8]), (64, 1)).T.ravel(),
}
TOO_MUCH = {"beyond float32 on the way": np.float32([3e38] * 5 + [-3e38] * 5)}


def faults(name, function, inputs):
    """All that is wrong with a function offered as the rung ``name``, on the first of the inputs where anything is."""
    for x in inputs:
        found = judge.faults(function, (x,), lambda result, x=x: right(name, result, x))
        if name in ("wider", "exact"):  # they say float64; `exact` in its one rounding
            found = [fault for fault in found if fault != "float64"]
        if found:
            return found
    return []


@each_rung
@pytest.mark.parametrize("name", [*INPUTS, *EXTRA])
def test_a_rung_keeps_its_own_bound(rung, name):
    x = (INPUTS | EXTRA)[name]
    if name == "just below infinity" and rung.name in ("one_after_another", "tree", "compensated"):
        pytest.skip("a partial sum may be rounded to infinity")
    assert faults(rung.name, rung, [x]) == []


SOME = ["subnormal", "all positive", "of all sizes", "infinity", "both infinities", "NaN"]  # for slow kernels


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    inputs = [*EXTRA.values(), *map(INPUTS.get, SOME)]
    assert faults(CLAIMS[wrong.function.__name__], wrong.function, inputs)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    inputs = [x for name, x in EXTRA.items() if name != "just below infinity"] + list(map(INPUTS.get, SOME))
    assert faults(CLAIMS[function.__name__], function, inputs) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_that_of_numpy(name):
    x = INPUTS[name]
    with np.errstate(all="ignore"):
        expected = x.sum(dtype=np.longdouble)
    result = room.reference(x)
    if np.isfinite(result):
        # A longdouble may be no more than a float64.
        allowed = x.size * 2.0**-53 * float(np.abs(x).sum(dtype=np.float64))
        np.testing.assert_allclose(float(expected), result, rtol=0, atol=allowed)
        assert np.float32(result) == nearest(x) or name == "one and many too small"
    else:
        np.testing.assert_equal(np.float32(result), np.float32(float(expected)) if np.isnan(result) else result)


@pytest.mark.parametrize("rung", [room.wider, room.exact], ids=lambda rung: rung.name)
@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_partial_sum_may_be_larger_than_a_float32(rung, name):
    x = TOO_MUCH[name]
    assert right(rung.name, device.to_host(rung(x)), x)


@each_rung
@hypothesis.given(
    n=st.one_of(st.integers(0, 100), st.integers(1, 9 * BLOCK)),
    grid=st.one_of(st.none(), st.integers(1, 9)),
    offset=st.integers(0, 3),
    spread=st.sampled_from([0, 10, 120]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_length_grid_and_alignment(rung, n, grid, offset, spread, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread // 2 + 1, n)).astype(np.float32)
    result = device.to_host(rung(misaligned(x, offset), grid))
    assert right(rung.name, result, x, grid), f"{result[0]!r}, not {room.reference(x)!r}"


# ------------------------------------------------------------------------------------------------------------ same bits


@pytest.fixture(scope="module")
def scattered():
    """Numbers of many sizes and both signs, most of whose sum cancels."""
    rng = np.random.default_rng(1)
    half = (rng.standard_normal(5001) * 2.0 ** rng.integers(-10, 10, 5001)).astype(np.float32)
    return rng.permutation(np.concatenate([half, -half, rng.standard_normal(3, dtype=np.float32)]))


def bits(rung, x, grid=None):
    return device.to_host(rung(x, grid)).tobytes()


def test_exact_has_the_same_bits_in_every_order_on_every_grid(scattered):
    rng = np.random.default_rng(2)
    found = {bits(room.exact, rng.permutation(scattered)) for _ in range(4)}
    found |= {bits(room.exact, misaligned(scattered, offset), grid) for offset, grid in ((0, 1), (1, 2), (3, 7))}
    assert found == {np.full(1, nearest(scattered)).tobytes()}


def test_the_order_and_the_grid_decide_over_other_sums(scattered):
    """If not, the chapter would have nothing to say."""
    rng = np.random.default_rng(3)
    orders = [rng.permutation(scattered) for _ in range(4)]
    for rung in (room.one_after_another, room.tree):
        assert len({bits(rung, x) for x in orders}) > 1
    assert len({bits(room.one_after_another, scattered, grid) for grid in (1, 2, 3, 7)}) > 1


def test_a_tree_does_not_depend_on_the_grid(scattered):
    assert len({bits(room.tree, scattered, grid) for grid in (None, 1, 2, 7)}) == 1


def test_without_atomics_a_sum_repeats(scattered):
    for rung in (room.tree, room.compensated, room.wider):
        _, reports = observe(rung, scattered, 7)
        assert total(reports, "atomic_requests") == 0
    if device.on_gpu():
        for rung in (room.tree, room.compensated, room.wider, room.exact):
            assert len({bits(rung, scattered, 7) for _ in range(50)}) == 1


def test_no_bin_overflows():
    """A block has at most `MOST` elements and a few more: at each grid stride all of its threads take a vector."""
    largest = (2**24 - 1) << 15
    assert (room.MOST + 4 * BLOCK + 6) * largest < 2**63
    digits = 16 * room.DIGITS + room.LOWEST  # the bit above the last digit
    assert digits >= 128 + 40 + 1


@pytest.mark.parametrize(("n", "grid", "launched"), [(2**23, 1, 1), (2**23 + 1, 1, 2), (2**25, 2, 4), (2**25, 9, 9)])
def test_exact_has_blocks_enough(n, grid, launched, monkeypatch):
    seen = []

    class Spied:
        def __getitem__(self, configuration):
            seen.append(configuration[0])
            return lambda *arguments: None

    monkeypatch.setattr(room, "exact_kernel", Spied())
    room.exact(device.empty(n, np.float32), grid)
    assert seen == [launched]


def test_the_grid_fills_the_gpu():
    many = device.limits()["multiprocessors"]
    assert [room.grid_for(n) for n in (1, 4 * BLOCK, 4 * BLOCK + 1, 2**30)] == [1, 1, 2, 8 * many]
    assert device.limits()["max_threads_per_multiprocessor"] == room.RESIDENT * BLOCK or device.on_gpu()
    assert room.RESIDENT_BINS * (room.BINS * BLOCK * 8 + 1024 + 128) <= 228 * 1024


def error_kernel(a, b, out):
    total = a[0] + b[0]
    of_b = total - a[0]
    of_a = total - of_b
    out[0] = (a[0] - of_a) + (b[0] - of_b)


def test_the_compiler_does_no_algebra(ptx):
    """Of `two_sum` nothing would be left. There is no product that it could join with an addition, either."""
    x = np.zeros(8, np.float32)
    made = ptx(room.compensated_kernel, x, x, x, 0, 8)
    assert "fma" not in made
    assert made.count("sub.f32") >= 4 * 4  # four in a `two_sum`, for four elements of a vector
    flushed = ptx(cuda.jit(fastmath=True)(error_kernel), x, x, x)
    assert flushed.count("sub.ftz.f32") == 4, "fastmath flushes subnormals, and the order stays"


def test_the_plain_function_is_the_exact_rung():
    assert numerics.accurate_sum is room.exact


@each_rung
def test_streams(rung):
    x = INPUTS["a block's vectors +1"]
    stream = cuda.stream()
    result = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(rung.name, result.copy_to_host(), x)


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR = np.ones(5, np.float32)
BAD = {
    "another dtype": ((VECTOR.astype(np.float64),), TypeError, "x must be float32, was float64"),
    "integers": ((VECTOR.astype(np.int32),), TypeError, "x must be float32, was int32"),
    "a matrix": ((np.ones((2, 3), np.float32),), ValueError, "x must have 1 dimension, had 2"),
    "every other": ((np.ones(10, np.float32)[::2],), ValueError, "x must be contiguous"),
    "no block": ((VECTOR, 0), ValueError, "grid must be from 1 to 65535, was 0"),
    "too many blocks": ((VECTOR, 65536), ValueError, "grid must be from 1 to 65535, was 65536"),
    "half a block": ((VECTOR, 0.5), TypeError, "grid must be an integer, was 0.5"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters
#
# One block and two vectors a thread. A warp's request for 32 vectors is 16 sectors. Sums over a warp and over warps
# have five steps each, in which every lane of the block adds.

N = 2 * 4 * BLOCK
TREES = 2 * 5 * BLOCK


def counters_of(rung, x=None):
    result, reports = observe(rung, np.ones(N, np.float32) if x is None else x, 1)
    (report,) = [report for report in reports if report.kernel == f"{rung.name}_kernel"]
    if x is None:
        assert result[0] == N
    return report.counters


@interpreter_only
@pytest.mark.parametrize(
    ("rung", "flops"),
    [
        (room.one_after_another, N + BLOCK + TREES),  # one an element, one for the edges
        (room.compensated, 7 * N + 6 * BLOCK + 8 * TREES),  # `two_sum` has 6, and `join` 8
        (room.wider, N + BLOCK + TREES),
        (room.exact, TREES),  # what is not finite
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_counters(rung, flops):
    found = counters_of(rung)
    assert found["global_load_requests"] == N // 4 // 32
    assert (found["global_load_bytes"], found["global_load_sectors"]) == (4 * N, N // 8)
    assert found["flops"] == flops
    assert found["flops_f64"] == (flops if rung is room.wider else 0)
    assert found["barriers"] == 1
    assert found["atomic_requests"] == {"one_after_another": 1, "exact": 2 * room.BINS}.get(rung.name, 0)


@interpreter_only
@pytest.mark.parametrize("name", ["ones", "of all sizes"])
def test_bins_have_no_bank_conflicts_whatever_the_numbers(name):
    x = np.ones(2000, np.float32) if name == "ones" else np.resize(INPUTS[name], 2000)
    found = counters_of(room.exact, x)
    # A request of 32 int64 is two wavefronts; those of the float32 in `block_sum` are one each: 8 stores and 8 loads.
    assert found["shared_store_wavefronts"] - 8 == 2 * (found["shared_store_requests"] - 8)
    assert found["shared_load_wavefronts"] - 8 == 2 * (found["shared_load_requests"] - 8)


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    for name, x in INPUTS.items():
        if library == "cupy":
            expected = module.asnumpy(module.asarray(x).sum(dtype=np.float64))
        else:
            expected = module.from_numpy(x).cuda().sum(dtype=module.float64).cpu().numpy()
        if np.isfinite(room.reference(x)):
            # As far from the exact sum as either may be. CuPy takes subnormal numbers for zeros.
            allowed = bound(rung.name, x) + bound("wider", x) + U * abs(expected)
            allowed += np.abs(x[np.abs(x) < 2.0**-126].astype(np.float64)).sum() if library == "cupy" else 0
            np.testing.assert_allclose(device.to_host(rung(x))[0], expected, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.gpu
@each_rung
def test_a_large_sum_on_the_gpu(rung):
    cupy = pytest.importorskip("cupy")
    x = cupy.random.RandomState(0).standard_normal(2**21 + 3, dtype=cupy.float32)
    host = cupy.asnumpy(x)
    results = {bits(rung, x, grid) for grid in (None, 1, 3)}
    for result in results:
        assert right(rung.name, np.frombuffer(result, np.float32), host, 1)
    if rung.name in ("tree", "exact"):
        assert len(results) == 1
