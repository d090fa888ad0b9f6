"""FFT: results against NumPy in float64, lengths, arguments, real input, exercises, and counters done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import fft
from pmpp.kernels.fft import ladder as room
from pmpp.kernels.fft import real
from pmpp.kernels.fft.butterflies import LONGEST, first_radix, twiddles
from pmpp.runtime import device
from tests.kernels.fft.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
fast_rung = pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
C64, F32 = np.complex64, np.float32


# -------------------------------------------------------------------------------------------------------------- results


def noise(shape, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(C64)


def exact(x, inverse=False, axes=1):
    """NumPy's transform in float64."""
    return (np.fft.ifftn if inverse else np.fft.fftn)(x.astype(np.complex128), axes=tuple(range(-axes, 0)))


def right(result, x, inverse=False, axes=1):
    """The error of each transform in the 2-norm, as the theorem bounds it."""
    if result.dtype != C64 or result.shape != x.shape:
        return False
    last, expected = tuple(range(-axes, 0)), exact(x, inverse, axes)
    error, size = (np.sqrt((np.abs(v) ** 2).sum(last)) for v in (result - expected, expected))
    return bool((error <= room.relative_error(int(np.prod(x.shape[-axes:]))) * size + 2.0**-140).all())


def faults(transform):
    """All that is wrong with a transform on the first input where anything is, worst first."""
    for x, inverse, axes in room.inputs().values():
        if axes == 1 and x.ndim < 3:
            is_right = lambda result, x=x, inverse=inverse: right(result, x, inverse)  # noqa: E731
            if found := judge.faults(transform, (x, inverse), is_right):
                return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_numpys(name):
    x, inverse, axes = room.inputs()[name]
    expected = exact(x, inverse, axes)
    np.testing.assert_allclose(
        room.reference(x, inverse, axes), expected, rtol=1e-10, atol=1e-10 * abs(expected).max(initial=0)
    )


@fast_rung
@hypothesis.given(
    batch=st.integers(0, 5), h=st.integers(0, 6), w=st.integers(0, 8), inverse=st.booleans(), axes=st.integers(1, 2),
    seed=st.integers(0, 99),
)  # fmt: skip
@hypothesis.settings(max_examples=15)
def test_any_shape(rung, batch, h, w, inverse, axes, seed):
    x = noise((batch, 1 << h, 1 << w), seed)
    assert right(device.to_host(rung(x, inverse, axes)), x, inverse, axes)


# Each takes another way: one block's longest line, more than that, columns of each kernel and beyond, an odd batch.
LARGE = {
    "a block's longest row": ((2, 4096), 1),
    "longer than a block": ((8192,), 1),
    "longest columns of pairs": ((1, 2048, 4), 2),
    "columns longer than that": ((1, 4096, 2), 2),
    "wide": ((1, 8, 4096), 2),
}


@interpreter_only
@pytest.mark.parametrize("rung", room.LADDER[2:], ids=[rung.name for rung in room.LADDER[2:]])
@pytest.mark.parametrize("name", LARGE)
def test_large(rung, name):
    shape, axes = LARGE[name]
    x = noise(shape)
    assert right(device.to_host(rung(x, False, axes)), x, False, axes)


@interpreter_only
@pytest.mark.parametrize(("shape", "inverse"), [((8192,), False), ((3, 8192), True), ((16384,), False)])
def test_long_lines_are_matrices(shape, inverse):
    x = noise(shape)
    with simt.record() as reports:
        result = device.to_host(room.vectorised(x, inverse))
    assert right(result, x, inverse)
    assert [report.kernel for report in reports] == ["columns_kernel", "turn_kernel", "columns_kernel"]


@each_rung
def test_forward_and_back(rung):
    x = noise((2, 16, 32))
    again = device.to_host(rung(rung(x, False, 2), True, 2))
    assert np.linalg.norm(again - x) <= 2 * room.relative_error(512) * np.linalg.norm(x)


@each_rung
def test_an_infinity_spoils_its_own_line_only(rung):
    x = noise((40, 32))
    x[7, 3], x[20, 0] = np.inf, np.nan
    result = device.to_host(rung(x))
    spoilt = ~np.isfinite(result).all(axis=1)
    assert spoilt.nonzero()[0].tolist() == [7, 20]
    assert right(result[~spoilt], x[~spoilt])


@each_rung
def test_output_stream_and_alignment(rung):
    x = noise((2, 16, 32))
    out = device.to_device(np.full(1 + x.size, np.nan, C64))[1:].reshape(x.shape)  # begins off 16 bytes
    stream = cuda.stream()
    assert rung(x, False, 2, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x, False, 2)
    given = device.to_device(np.concatenate([noise(1), x.reshape(-1)]))[1:].reshape(x.shape)
    assert right(device.to_host(rung(given, True, 2)), x, True, 2)


def test_the_tolerance_is_small_and_grows_slowly():
    assert room.relative_error(1) == 0
    assert room.relative_error(1024) == pytest.approx(10 * (1 + 4 * 2**0.5) * 2**-24, rel=1e-5)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 128, 1024])
def test_the_table_of_twiddles_is_full(n):
    table, s = device.to_host(twiddles(n)), first_radix(n)
    while s < n:
        for k in range(1, 8):
            angles = -2j * np.pi * k * np.arange(s) / (8 * s)
            np.testing.assert_allclose(table[k * s : (k + 1) * s], np.exp(angles), rtol=0, atol=2**-23.5)
        s *= 8
    assert s == max(n, s)


# ----------------------------------------------------------------------------------------------------------- real input


@hypothesis.given(
    batch=st.integers(0, 4), h=st.integers(0, 5), w=st.integers(1, 8), axes=st.integers(1, 2), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=20)
def test_half_spectra_of_real_input(batch, h, w, axes, seed):
    x = np.random.default_rng(seed).standard_normal((batch, 1 << h, 1 << w), dtype=F32)
    last, n = tuple(range(-axes, 0)), int(np.prod(x.shape[-axes:]))
    spectrum = real.rfft(x, axes)
    expected = np.fft.rfftn(x.astype(np.float64), axes=last)
    # Taking the spectra apart and joining them are two stages more; the whole spectrum is less than twice the half.
    bound = room.relative_error(4 * n) * 2**0.5
    error, size = (np.sqrt((np.abs(v) ** 2).sum(last)) for v in (device.to_host(spectrum) - expected, expected))
    assert spectrum.dtype == C64
    assert (error <= bound * size).all()
    back = device.to_host(real.irfft(spectrum, axes))
    error, size = (np.sqrt((v.astype(np.float64) ** 2).sum(last)) for v in (back - x, x))
    assert back.dtype == F32
    assert (error <= 2 * bound * size).all()


def test_a_half_spectrum_that_no_real_numbers_have():
    x = noise((3, 9))
    expected = np.fft.irfft(x.astype(np.complex128))
    np.testing.assert_allclose(device.to_host(real.irfft(x)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "x", "words"),
    [
        (real.rfft, np.ones((2, 12), F32), "each transformed axis of x must be a power of two, was 12"),
        (real.rfft, np.ones((2, 1), F32), "the last axis of x must have at least 2 elements, had 1"),
        (real.irfft, noise((2, 8)), "the last axis of x, less one, must be a power of two, was 7"),
        (real.irfft, noise((2, 1)), "the last axis of x, less one, must be a power of two, was 0"),
    ],
)
def test_half_spectra_refuse_other_lengths(call, x, words):
    with pytest.raises(ValueError, match=words):
        call(x)


# -------------------------------------------------------------------------------------------------- the plain functions

SHAPES = [(1,), (2,), (8,), (3, 5), (2, 8), (4, 6), (6, 4), (2, 3, 8), (3, 5, 7), (2, 16, 1), (0, 2, 5), (0, 2, 8)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_norm = pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])


def close(result, expected, dtype):
    """Within some roundings of the largest value: which room was asked is the question here, and rooms have tests."""
    assert result.dtype == dtype
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * abs(expected).max(initial=1e-6))


@each_norm
@each_shape
def test_the_plain_functions_take_any_length(shape, norm):
    x = noise(shape)
    for axes in range(1, min(len(shape), 2) + 1):
        last = tuple(range(-axes, 0))
        close(device.to_host(fft.fft(x, axes, norm=norm)), np.fft.fftn(x, axes=last, norm=norm), C64)
        close(device.to_host(fft.ifft(x, axes, norm=norm)), np.fft.ifftn(x, axes=last, norm=norm), C64)


@each_norm
@each_shape
def test_the_plain_functions_of_real_numbers_take_any_length(shape, norm):
    x = np.random.default_rng(3).standard_normal(shape, dtype=F32)
    for axes in range(1, min(len(shape), 2) + 1):
        last, n = tuple(range(-axes, 0)), shape[-1]
        half = np.fft.rfftn(x, axes=last, norm=norm)
        spectrum = fft.rfft(x, axes, norm=norm)
        close(device.to_host(spectrum), half, C64)
        close(device.to_host(fft.irfft(spectrum, axes, n=n, norm=norm)), x, F32)
        if n > 1:
            even = np.fft.irfftn(half, axes=last, norm=norm)
            close(device.to_host(fft.irfft(half.astype(C64), axes, norm=norm)), even, F32)


@interpreter_only
@pytest.mark.parametrize(("n", "kernel"), [(4, "short_lines_kernel"), (64, "lines_in_a_block_kernel")])
@each_norm
def test_lines_of_a_power_of_two_take_one_trip(n, kernel, norm):
    with simt.record() as reports:
        fft.fft(noise((2, n)), norm=norm)
    assert [report.kernel for report in reports] == [kernel]


def test_an_output_of_the_plain_functions():
    for n in (8, 6):
        x, out = noise((3, n)), device.empty((3, n), C64)
        assert fft.fft(x, out=out) is out
        close(device.to_host(out), np.fft.fft(x), C64)
    x, out = noise((4, 8)), device.empty((4, 8), C64)
    assert fft.ifft(x, 2, out=out) is out
    close(device.to_host(out), np.fft.ifft2(x), C64)
    with pytest.raises(ValueError, match=r"^out must be None for two axes"):
        fft.fft(noise((4, 6)), 2, out=device.empty((4, 6), C64))
    with pytest.raises(ValueError, match=r"^out must be None for two axes"):
        fft.fft(x, 2, norm="ortho", out=out)


@pytest.mark.parametrize(
    ("call", "x", "options", "words"),
    [
        (fft.fft, noise((2, 0)), {}, "axis of x must .* 0"),
        (fft.fft, noise((2, 3)), {"norm": "both"}, 'norm must be "backward", "ortho" or "forward", was \'both\''),
        (fft.fft, noise((2, 4)), {"norm": None}, 'norm must be "backward", "ortho" or "forward", was None'),
        (fft.ifft, noise((2, 3)), {"axes": 3}, "axes must be 1 .* was 3"),
        (fft.rfft, np.ones((2, 0), F32), {}, "axis of x must .* 0|lines must .* had 0"),
        (fft.irfft, noise((2, 3)), {"n": 3}, "n must be 4 or 5 for a half spectrum of 3 values, was 3"),
        (fft.irfft, noise((2, 1)), {}, "n must be 1 for a half spectrum of 1 values, was 0"),
    ],
)
def test_what_the_plain_functions_refuse(call, x, options, words):
    with pytest.raises(ValueError, match=words):
        call(x, **options)


# ------------------------------------------------------------------------------------------------------------ bad input


LINES = noise((3, 8))
BAD = {
    "another dtype": (LINES.astype(np.complex128), (), TypeError, "x must be complex64, was complex128"),
    "real": (LINES.real.copy(), (), TypeError, "x must be complex64, was float32"),
    "a length of 12": (noise((2, 12)), (), ValueError, "axis of x must be a power of two, was 12: pad .* to 16"),
    "a length of 0": (noise((2, 0)), (), ValueError, "axis of x must be a power of two, was 0"),
    "12 columns": (noise((12, 8)), (False, 2), ValueError, "axis of x must be a power of two, was 12"),
    "three axes": (LINES, (False, 3), ValueError, r"axes must be 1 \(the last\) or 2 \(the last two\), was 3"),
    "too few axes": (LINES[0], (False, 2), ValueError, r"x must have at least 2 dimensions for axes=2, .*\(8,\)"),
    "every other": (noise((3, 16))[:, ::2], (), ValueError, "x must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    x, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(x, *options)


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(3, 8\), had \(8, 3\)"):
        rung(LINES, out=device.empty((8, 3), C64))


def test_too_long_is_refused_before_anything_is_done():
    from pmpp.kernels.fft.butterflies import checked_length

    with pytest.raises(ValueError, match=f"n must be at most {LONGEST}, was {2 * LONGEST}"):
        checked_length("n", 2 * LONGEST)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, x, axes=1):
    result, reports = observe(rung, x, False, axes)
    assert right(result, x, False, axes)
    return reports


@interpreter_only
def test_trips_through_device_memory():
    """8 lines of 512 points: 9 stages are 9 trips, and one trip in shared memory. A point is 8 bytes, a sector 32."""
    x = noise((8, 512))
    assert total(counted(room.radix2_global, x), "global_store_sectors") == (9 + 2) * 1024  # the first two scatter
    for rung in room.LADDER[2:]:
        assert total(counted(rung, x), "global_store_sectors") == 1024


@interpreter_only
def test_trips_through_shared_memory():
    """9 stages have 8 exchanges of 4096 points; three passes of three stages have 2."""
    x = noise((8, 512))
    requests = [total(counted(rung, x), "shared_store_requests") for rung in room.LADDER[2:5]]
    assert requests == [8 * 4096 // 32, 2 * 4096 // 32, 2 * 4096 // 64]


@interpreter_only
@pytest.mark.parametrize("n", [16, 64, 256, 512, 1024])
def test_padding_keeps_the_banks_apart(n):
    """16 bytes for each of 32 lanes are 4 wavefronts of 128 bytes at best."""
    (report,) = counted(room.vectorised, noise((4096 // n, n)))
    for kind in ("load", "store"):
        assert report.counters[f"shared_{kind}_wavefronts"] == 4 * report.counters[f"shared_{kind}_requests"] > 0


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@fast_rung
@pytest.mark.parametrize(
    ("shape", "inverse", "axes"), [((77, 1024), True, 1), ((3, 512, 2048), False, 2), ((2**20,), False, 1)]
)
def test_cupy_agrees(rung, shape, inverse, axes):
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(noise(shape))
    stream = cupy.cuda.Stream()
    with stream:
        ours = cupy.asarray(rung(x, inverse, axes, stream=stream))
        theirs = (cupy.fft.ifftn if inverse else cupy.fft.fftn)(x, axes=tuple(range(-axes, 0)))
    stream.synchronize()
    error = float(cupy.linalg.norm((ours - theirs).ravel()) / cupy.linalg.norm(theirs.ravel()))
    assert error <= 2 * room.relative_error(int(np.prod(shape[-axes:])))
