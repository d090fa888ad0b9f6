"""FFT of any length: results against NumPy in float64, plans, tables, arguments, and counters done by hand."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels.fft import any_length as room
from pmpp.kernels.fft import any_length_planes as planes
from pmpp.kernels.fft import any_length_real as real
from pmpp.kernels.fft import passes
from pmpp.kernels.fft.chirps import exact_chirp, exact_spectrum, gain
from pmpp.kernels.fft.radices import BUTTERFLIES
from pmpp.runtime import device
from tests.kernels.fft import lines
from tests.kernels.fft.lines import between_words, noise, off
from tests.kernels.fft.wrong_any_length import RIGHT
from tests.kernels.fft.wrong_any_length import RUNGS as WRONG
from tests.support.wrong import name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
fast_rung = pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
C64 = np.complex64
right = functools.partial(lines.right, room)
faults = functools.partial(lines.faults, room)
counted = functools.partial(lines.counted, room)
OTHERS = {room.mixed_radix: False, room.fused: True}  # whether it hands the lengths that fit a block over


# -------------------------------------------------------------------------------------------------------------- results


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, {"6 points", "17 points", "30 points", "37 points", "no lines", "impulses"}) == []


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_numpys(name):
    lines.check_the_reference(room, name)


@each_rung
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_every_length_up_to_64(rung, first, monkeypatch):
    """Without checks: what the lengths do in memory, the inputs of the room do, too.

    Each length where a rung does not hand over to another: `mixed_radix` has some, and `fused` has the others.
    """
    monkeypatch.setenv("PMPP_CHECK", "")
    lengths = [n for n in range(first, 65, 4) if rung not in OTHERS or passes.fits(n) != OTHERS[rung]]
    for n in lengths:
        x, inverse, norm = noise(2, n), n % 3 == 0, room.NORMS[n % 5 % 3]
        assert right(device.to_host(rung(x, inverse, norm)), x, inverse, norm), n


@fast_rung
@hypothesis.given(
    batch=st.integers(0, 5), n=st.integers(65, 700), inverse=st.booleans(), norm=st.sampled_from(room.NORMS)
)
@hypothesis.settings(max_examples=4)
def test_any_length(rung, batch, n, inverse, norm):
    x = noise(batch, n)
    assert right(device.to_host(rung(x, inverse, norm)), x, inverse, norm)


# Each takes another way: a block's longest lines by radices and by convolution, and matrices in two and in three trips.
LARGE = {
    "one trip": ((2, 4095), ["mixed_radix_kernel"]),
    "two trips": ((2, 6561), ["matrix_columns_kernel"] * 2),
    "one trip of a convolution": ((2, 1009), ["convolved_lines_kernel"]),
    "three trips": ((1, 3089), ["matrix_columns_kernel", "convolved_rows_kernel", "matrix_columns_kernel"]),
}


@interpreter_only
@pytest.mark.parametrize("name", LARGE)
def test_each_way_is_taken(name):
    shape, kernels = LARGE[name]
    x = noise(*shape)
    with simt.record() as reports:
        result = device.to_host(room.fused(x, True, "ortho"))
    assert right(result, x, True, "ortho")
    assert [report.kernel for report in reports] == kernels


@each_rung
def test_a_sum_of_lines_has_the_sum_of_their_transforms(rung):
    lines.check_a_sum_of_lines(room, rung, 45)


@each_rung
@pytest.mark.parametrize("norm", room.NORMS)
def test_forward_and_back(rung, norm):
    lines.check_forward_and_back(room, rung, 39, norm)


@each_rung
@pytest.mark.parametrize("n", [11, 35, 37])
def test_an_infinity_spoils_its_own_line_only(rung, n):
    lines.check_what_is_not_finite(room, rung, n)


@each_rung
@pytest.mark.parametrize("n", [21, 23])
def test_output_stream_and_alignment(rung, n):
    lines.check_output_stream_and_alignment(room, rung, n)


# ----------------------------------------------------------------------------------------------------------- real input


def half(n):
    """The bound of a half spectrum: taking spectra apart and joining them are two stages more; less than half is left.

    The whole spectrum has at most twice the squares of the half.
    """
    return 2**0.5 * (room.relative_error(n) + 4 * room.ladder.relative_error(2))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 14, 25, 50, 48, 147, 17, 34])
def test_half_spectra(n):
    norm = room.NORMS[n % 3]
    x = np.random.default_rng(n).standard_normal((2, 3, n), dtype=np.float32)
    spectrum, expected = real.rfft(x, norm), np.fft.rfft(x.astype(np.float64), norm=norm)
    result = device.to_host(spectrum)
    assert (result.dtype, result.shape) == (C64, expected.shape)
    assert np.linalg.norm(result - expected) <= half(n) * np.linalg.norm(expected)
    back = device.to_host(real.irfft(spectrum, n, norm))
    assert back.dtype == np.float32
    assert np.linalg.norm(back - x) <= 2 * half(n) * np.linalg.norm(x)


@pytest.mark.parametrize("n", [8, 9, 36, 45])
def test_a_half_spectrum_that_no_real_numbers_have(n):
    x = noise(3, n // 2 + 1)
    expected = np.fft.irfft(x.astype(np.complex128), n)
    assert np.linalg.norm(device.to_host(real.irfft(x, n)) - expected) <= half(n) * np.linalg.norm(x)


@pytest.mark.parametrize("n", [2, 8, 9, 14, 22, 24, 26, 32, 34, 36, 46])
def test_imaginary_parts_that_no_half_spectrum_has_are_ignored(n):
    """That of the first value, and for an even n that of the last one."""
    x = noise(3, n // 2 + 1)
    given, expected = x.copy(), np.fft.irfft(x.astype(np.complex128), n)
    given.imag[:, 0] = np.nan
    if n % 2 == 0:
        given.imag[:, -1] = np.inf
    assert np.linalg.norm(device.to_host(real.irfft(given, n)) - expected) <= half(n) * np.linalg.norm(x)


@pytest.mark.parametrize("n", [9, 25, 36])
def test_half_spectra_of_infinities_and_off_alignment(n):
    x = np.random.default_rng(n).standard_normal((20, n), dtype=np.float32)
    x[3, 2], x[11, 0] = np.inf, np.nan
    given = device.to_device(np.concatenate([np.zeros(1, np.float32), x.reshape(-1)]))[1:].reshape(x.shape)
    result = device.to_host(real.rfft(given))
    spoilt = ~np.isfinite(result).all(axis=1)
    assert spoilt.nonzero()[0].tolist() == [3, 11]
    expected = np.fft.rfft(x[~spoilt].astype(np.float64))
    assert np.linalg.norm(result[~spoilt] - expected) <= half(n) * np.linalg.norm(expected)


def test_half_spectra_of_no_lines():
    assert real.rfft(np.ones((0, 6), np.float32)).shape == (0, 4)
    assert real.irfft(np.ones((0, 4), C64)).shape == (0, 6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: real.rfft(np.ones((2, 0), np.float32)), "the last axis of x must have 1 to 67108864 values, had 0"),
        (lambda: real.irfft(noise(3, 0)), "the last axis of x must have 1 to 33554433 values, had 0"),
        (lambda: real.rfft(np.ones(4, np.float32), "none"), 'norm must be "backward", "ortho" or "forward"'),
        (lambda: real.irfft(noise(3, 5), 7), "n must be 8 or 9 for a half spectrum of 5 values, was 7"),
        (lambda: real.irfft(noise(3, 1)), "n must be 1 for a half spectrum of 1 values, was 0"),
        (lambda: real.irfft(noise(3, 5), True), "n must be 8 or 9 for a half spectrum of 5 values, was True"),
    ],
)
def test_half_spectra_refuse(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_half_spectra_that_are_too_long_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(real, "MOST", 8)
    with pytest.raises(ValueError, match="the last axis of x must have 1 to 8 values, had 9"):
        real.rfft(np.ones(9, np.float32))
    with pytest.raises(ValueError, match="the last axis of x must have 1 to 5 values, had 6"):
        real.irfft(noise(6))
    with pytest.raises(ValueError, match="n must be at most 8, was 9"):
        real.irfft(noise(5), 9)
    assert real.irfft(noise(5), 8).shape == (8,)
    monkeypatch.setattr(real, "LINES", 3)
    with pytest.raises(ValueError, match=r"x must have fewer than 2\^31 lines, had shape \(3, 4\)"):
        real.rfft(np.ones((3, 4), np.float32))


@interpreter_only
def test_half_spectra_are_one_trip():
    """Lines of 1000 real numbers to 501 complex ones: 4 bytes a number in, 8 bytes a value out, 32 bytes a sector."""
    _, (report,) = observe(real.rfft, np.ones((4, 1000), np.float32))
    assert 4 * 501 * 8 // 32 <= report.counters["global_store_sectors"] <= 1.1 * 4 * 501 * 8 / 32


# --------------------------------------------------------------------------------------------------------- several axes


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((6, 7), None), ((3, 20, 21), (1, 2)), ((20, 17, 9), (0, 1)), ((5, 1, 8), None), ((33, 35), (-2,)), ((15,), (0,))],
)
@pytest.mark.parametrize("inverse", [False, True])
def test_several_axes(shape, axes, inverse):
    x, norm = noise(*shape), "backward" if inverse else "ortho"
    expected = (np.fft.ifftn if inverse else np.fft.fftn)(x.astype(np.complex128), axes=axes, norm=norm)
    result = device.to_host(planes.fftn(x, axes, inverse, norm))
    bound = sum(room.relative_error(shape[axis]) for axis in axes or range(len(shape)))
    assert (result.dtype, result.shape) == (C64, shape)
    assert np.linalg.norm(result - expected) <= bound * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("x", "axes", "error", "words"),
    [
        (noise(3, 4), (0, -2), ValueError, "axes must name each axis once"),
        (noise(3, 4), (2,), ValueError, "axes must be from -2 to 1, was 2"),
        (noise(3, 4), (), ValueError, "axes must be a tuple of axes, or None for all"),
        (noise(3, 4), 1, ValueError, "axes must be a tuple of axes, or None for all"),
        (noise(3, 0), None, ValueError, "each transformed axis of x must have 1 to .* points"),
        (noise(3, 4).real.copy(), None, TypeError, "x must be complex64, was float32"),
    ],
)
def test_several_axes_refuse(x, axes, error, words):
    with pytest.raises(error, match=words):
        planes.fftn(x, axes)


def test_too_many_lines_of_several_axes_are_refused_by_name(monkeypatch):
    """Before anything is computed, and with the shape that was given."""
    monkeypatch.setattr(planes, "LINES", 12)
    words = r"x must have fewer than 2\^31 lines along each transformed axis, had shape \(3, 4, 2\)"
    for axes in (None, (2,), (0, 2)):
        with pytest.raises(ValueError, match=words):
            planes.fftn(noise(3, 4, 2), axes)
    assert planes.fftn(noise(3, 4, 2), (0, 1)).shape == (3, 4, 2)


def test_several_axes_of_nothing():
    assert planes.fftn(np.ones((0, 3, 4), C64), (1, 2)).shape == (0, 3, 4)


# ----------------------------------------------------------------------------------------------------- plans and tables


def test_radices_make_the_length():
    for n in range(1, 3000):
        radices = passes.radices_of(n)
        assert (radices is None) == (max(room.primes_of(n), default=1) > 13)
        assert radices is None or (np.prod(radices) == n and set(radices) <= set(BUTTERFLIES))


@pytest.mark.parametrize("n", [1, 7, 16, 35, 100, 243, 1000, 1001, 2197, 4095, 6000])
def test_a_plan_fits_a_block(n):
    plan = passes.rows(n)
    assert plan.n == n
    assert plan.words <= passes.WORDS
    assert plan.threads <= 1024
    assert sorted(place for place in places_of(plan)) == sorted(set(places_of(plan)))
    assert max(places_of(plan)) < plan.size


def places_of(plan):
    """Where the results of a line lie after the last pass, one after the other."""
    found = []
    for number in range(plan.n):
        place, rest = 0, number
        for i, r in enumerate(plan.radices):
            place += rest % r * int(plan.step(i))
            rest //= r
        found.append(place)
    return found


def test_the_table_of_twiddles():
    radices = 3, 5, 2
    table, at, n = device.to_host(passes.twiddles(radices)).view(C64), 0, 30
    for r in radices[:-1]:
        left = n // r
        for k in range(r):
            angles = np.exp(-2j * np.pi * k * np.arange(left) / n)
            np.testing.assert_allclose(table[at : at + left], angles, rtol=0, atol=2**-23.5)
            at += left
        n = left
    assert at == len(table) - 1


@pytest.mark.parametrize("n", [1, 2, 7, 46341, 10**6 + 3])
def test_the_chirp_is_exact(n):
    k = np.unique(np.linspace(0, n - 1, 50).astype(int))
    angles = [int(j) ** 2 % (2 * n) / n for j in k]
    np.testing.assert_allclose(exact_chirp(n)[k], np.exp(-1j * np.pi * np.array(angles)), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (7, 13), (7, 16), (12, 30)])
def test_the_convolution_is_the_transform(n, m):
    x, chirp = noise(n).astype(np.complex128), exact_chirp(n)
    results = np.fft.ifft(np.fft.fft(x * chirp, m) * exact_spectrum(n, m))[:n] * chirp
    np.testing.assert_allclose(results, np.fft.fft(x), rtol=0, atol=1e-12 * n)


def test_the_tolerance_grows_slowly():
    assert room.error_of_radices(8) == pytest.approx(3 * room.ladder.relative_error(2), rel=1e-4)
    assert room.error_of_radices(1001) < 8e-6
    assert 1 < gain(1009, 2048) < 2.2
    assert room.relative_error(1009) < 3e-5


@interpreter_only
@pytest.mark.parametrize("n", [64, 243, 1000, 1001])
def test_smooth_lengths_keep_to_the_bound_of_their_radices(n):
    x = noise(3, n)
    assert off(device.to_host(room.mixed_radix(x)), x) <= room.error_of_radices(n) + 2 * room.U


# ------------------------------------------------------------------------------------------------------------ bad input


BAD = lines.bad(15)


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    lines.check_bad_input(rung, *BAD[name])


@each_rung
def test_a_bad_output(rung):
    lines.check_a_bad_output(rung, 15)


@each_rung
def test_what_begins_between_two_words_is_refused_by_name(rung):
    lines.check_arrays_between_words(rung, 15)


@pytest.mark.parametrize("transform", [real.irfft, planes.fftn])
def test_half_spectra_and_planes_between_two_words_are_refused_by_name(transform):
    with pytest.raises(ValueError, match="x must begin at a multiple of 8 bytes, began 4 bytes behind one"):
        transform(between_words(3, 8))


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_one_trip_through_device_memory():
    """8 lines of 1000 points of 8 bytes, and sectors of 32: a store each. The convolution of 1009 points as well."""
    assert total(counted(room.mixed_radix, noise(8, 1000)), "global_store_sectors") == 8 * 1000 * 8 // 32
    (report,) = counted(room.fused, noise(1, 1009))
    assert 1009 * 8 // 32 < report.counters["global_store_sectors"] < 1.1 * 1009 * 8 // 32  # runs may begin in a sector


@interpreter_only
def test_an_exchange_and_a_barrier_between_two_passes():
    """Three passes of 1000 points are two exchanges and two barriers; a word of a point is stored in each once."""
    (report,) = counted(room.mixed_radix, noise(2, 1000))
    plan = passes.rows(1000)
    warps, blocks = plan.threads // 32, report.grid[0]
    assert plan.radices == (10, 10, 10)
    assert report.counters["barriers"] == 2 * blocks
    butterflies = -(-plan.lines * 100 // 32)  # warps that have some
    assert report.counters["shared_store_requests"] == 2 * 10 * butterflies * blocks
    assert butterflies <= warps


@interpreter_only
def test_a_convolution_is_twice_as_many_passes_less_one():
    """2048 points in three passes there and three back, of which two are one: four exchanges, four barriers."""
    (report,) = counted(room.fused, noise(1, 1009))
    assert np.prod(passes.rows(room.circle(1009)).radices) == 2048
    assert report.counters["barriers"] == 4
    assert report.counters["shared_store_requests"] == 4 * 2048 // 32


@interpreter_only
def test_an_odd_pitch_keeps_the_banks_apart():
    """32 words of 8 bytes are 2 wavefronts of 128 bytes at best. With a pitch of 16 the last pass would need 16."""
    (report,) = counted(room.mixed_radix, noise(4, 256))
    assert (passes.rows(256).radices, passes.rows(256).pitch) == ((16, 16), 17)
    for kind in ("load", "store"):
        assert report.counters[f"shared_{kind}_wavefronts"] == 2 * report.counters[f"shared_{kind}_requests"] > 0


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@fast_rung
@pytest.mark.parametrize(("shape", "inverse"), [((77, 1000), True), ((3, 2, 1009), False), ((5, 10007), True)])
def test_cupy_agrees(rung, shape, inverse):
    lines.check_cupy_agrees(room, rung, shape, inverse)
