"""Half spectra of powers of two: results against NumPy in float64, on every path, and what is refused."""

import numpy as np
import pytest

from pmpp.kernels import fft
from pmpp.kernels.fft import any_length
from pmpp.kernels.fft import one_trip_real as real
from pmpp.kernels.fft.exchanges import form_of
from pmpp.kernels.fft.one_trip import columns_of, relative_error
from pmpp.runtime import device
from tests.kernels.fft.lines import noise
from tests.support.wrong import observe, total

C64 = np.complex64
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def numbers(*shape):
    return noise(*shape).real.copy()


def allowed(n):
    """Relative to the 2-norm: of n / 2 complex numbers, and of the stage that joins them."""
    return 2**0.5 * (relative_error(n) + relative_error(4))


def close(result, expected, n):
    return np.linalg.norm(device.to_host(result) - expected) <= allowed(n) * np.linalg.norm(expected)


def check_both_ways(lines, n, norm):
    x = numbers(lines, n)
    spectrum, expected = real.rfft(x, norm), np.fft.rfft(x.astype(np.float64), norm=norm)
    assert spectrum.shape == expected.shape
    assert close(spectrum, expected, n)
    given = expected.astype(C64)
    back = real.irfft(given, norm)
    assert back.shape == x.shape
    assert close(back, np.fft.irfft(given.astype(np.complex128), norm=norm), n)


@pytest.mark.parametrize("lines", [1, 3, 33])
@pytest.mark.parametrize("bits", range(1, 7))
def test_short_lines(bits, lines):
    """2 to 32 numbers are a thread's, and 64 a block's. 33 lines are more than a warp of the longest has."""
    check_both_ways(lines, 1 << bits, any_length.NORMS[bits % 3])


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_more_lines_than_a_block_has(n):
    check_both_ways(128 * max(1, 32 // n) + 5, n, "ortho")


@pytest.mark.parametrize("norm", any_length.NORMS)
@pytest.mark.parametrize(("lines", "n"), [(3, 64), (1, 128), (2, 512)])
def test_long_lines(monkeypatch, lines, n, norm):
    """The path of long lines, with lines that the interpreter transforms in a second."""
    monkeypatch.setattr(real, "IN_BLOCK", 16)
    monkeypatch.setattr(real, "BACK_IN_BLOCK", 16)
    monkeypatch.setattr(real, "ROWS", 2)
    check_both_ways(lines, n, norm)


@pytest.mark.parametrize(("n", "lines"), [(128, 33), (256, 9), (1024, 5), (2048, 3), (4096, 2), (16384, 1)])
def test_lines_that_a_block_holds_there(n, lines):
    """Rows of 8, 16 and 32 points a thread, two passes and three, and a last block that is not full."""
    x = numbers(lines, n)
    assert close(real.rfft(x, "ortho"), np.fft.rfft(x.astype(np.float64), norm="ortho"), n)


@pytest.mark.parametrize(("n", "lines"), [(128, 9), (1024, 5), (4096, 2)])
def test_a_line_that_goes_to_its_mirror_images_in_parts(monkeypatch, n, lines):
    monkeypatch.setattr(real, "STAGED", 16)
    x = numbers(lines, n)
    assert close(real.rfft(x), np.fft.rfft(x.astype(np.float64)), n)


@pytest.mark.parametrize(("b", "points", "lines"), [(256, 8192, 2), (256, 4096, 1), (512, 8192, 1)])
def test_a_line_that_is_a_matrix(monkeypatch, b, points, lines):
    """Mirrored columns, with columns 0 and h / 2, which have no other one; and exchanges in two rounds."""
    forms = columns_of(64, turned=True), form_of(b, points, columns=True, rounds=1 + (points < 8192))
    monkeypatch.setattr(real, "sides", lambda h: forms)
    x = numbers(lines, 128 * b)
    result, reports = observe(real.rfft, x)
    assert close(result, np.fft.rfft(x.astype(np.float64)), 128 * b)
    assert device.to_host(result)[:, [0, -1]].imag.tolist() == [[0, 0]] * lines
    kernels = [] if device.on_gpu() else ["turned_columns_kernel", "columns_to_half_spectra_kernel"]
    assert [report.kernel for report in reports] == kernels


def test_which_lines_are_matrices():
    assert [real.sides(1 << bits) is not None for bits in range(13, 25)] == [False] + 9 * [True] + 2 * [False]
    for bits in range(14, 23):
        down, along = real.sides(1 << bits)
        assert down.n * along.n == 1 << bits
        assert along.radices[-1] >= 16  # so half of a thread's rows are in one half of a column
        assert (down.n % along.lines, along.n % down.lines) == (0, 0)
        assert 4 * (along.n // 2 + 1) * along.lines <= 48 * 1024
        assert 4 * along.words <= 48 * 1024
        assert along.threads <= 1024


@pytest.mark.parametrize("n", [2, 4, 16, 32, 64])
def test_a_half_spectrum_that_no_real_numbers_have(monkeypatch, n):
    """As in NumPy, the imaginary parts of the first and the last value do not count."""
    x = noise(3, n // 2 + 1)
    expected = np.fft.irfft(x.astype(np.complex128))
    assert close(real.irfft(x), expected, n)
    monkeypatch.setattr(real, "IN_BLOCK", 16)
    assert close(real.irfft(x), expected, n)


@pytest.mark.parametrize("n", [4, 16, 32, 128])
def test_a_nan_stays_in_its_line(n):
    x = numbers(40, n)
    x[7, n // 2] = np.nan
    spoilt = np.isnan(device.to_host(real.rfft(x))).any(axis=1)
    assert spoilt.tolist() == [line == 7 for line in range(40)]
    spectra = noise(40, n // 2 + 1)
    spectra[7, 1] = np.nan
    spoilt = np.isnan(device.to_host(real.irfft(spectra))).any(axis=1)
    assert spoilt.tolist() == [line == 7 for line in range(40)]


@pytest.mark.parametrize("n", [8, 64])
def test_numbers_from_an_odd_multiple_of_4_bytes_on(n):
    x = numbers(5, n)
    odd = device.to_device(np.concatenate([np.float32([0]), x.reshape(-1)]))[1:].reshape(5, n)
    assert device.address(odd) % 8 == 4
    assert close(real.rfft(odd), np.fft.rfft(x.astype(np.float64)), n)


def test_no_lines_and_one_number():
    assert real.rfft(np.ones((0, 8), np.float32)).shape == (0, 5)
    assert real.irfft(np.ones((0, 5), C64)).shape == (0, 8)
    assert device.to_host(real.rfft(np.float32([[3]]))).tolist() == [[3]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: real.rfft(np.ones(12, np.float32)), "the last axis of x"),
        (lambda: real.irfft(noise(3, 7)), "the last axis of x, less one,"),
        (lambda: real.irfft(noise(3, 1)), "the last axis of x, less one,"),
        (lambda: real.rfft(np.ones((2, 0), np.float32)), "the last axis of x must have 1 to 67108864 values, had 0"),
        (lambda: real.rfft(np.ones(4, np.float32), "none"), 'norm must be "backward", "ortho" or "forward"'),
        (lambda: real.irfft(noise(5), "none"), 'norm must be "backward", "ortho" or "forward"'),
    ],
)
def test_what_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("n", [16, 128])
def test_the_plain_functions_use_it(n):
    x = numbers(3, n)
    assert np.array_equal(device.to_host(fft.rfft(x)), device.to_host(real.rfft(x)))
    half = np.fft.rfft(x).astype(C64)
    assert np.array_equal(device.to_host(fft.irfft(half)), device.to_host(real.irfft(half)))


@interpreter_only
@pytest.mark.parametrize("n", [512, 8192])
def test_what_a_block_holds_takes_one_trip(n):
    """A line in, its half spectrum out: 4 and 8 bytes each, and a sector more for a line that begins in one."""
    _, reports = observe(real.rfft, np.ones((2, n), np.float32))
    assert len(reports) == 1
    assert total(reports, "global_store_sectors") <= 2 * (n // 2 * 8 // 32 * 1.25 + 2)


@interpreter_only
def test_short_lines_take_one_trip():
    """128 lines of 16 numbers in, of 9 values out: 4 and 8 bytes each, 32 bytes a sector."""
    _, reports = observe(real.rfft, np.ones((128, 16), np.float32))
    assert len(reports) == 1
    assert total(reports, "global_store_sectors") == 128 * 9 * 8 / 32
