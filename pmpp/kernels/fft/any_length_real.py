"""Half spectra of any length: transforms of real numbers, as ``numpy.fft.rfft`` and ``irfft`` have them.

The spectrum X of n real numbers is symmetric, X[n - k] = conj X[k], so that its first n // 2 + 1 values tell all.

- An even n: two neighbours are read as one complex number, and a block transforms h = n / 2 of them. The spectra of the
  even and of the odd numbers come apart in shared memory, and are joined on their way out: see
  `pmpp.kernels.fft.real`, which does that in a trip of its own. Back, they are joined on their way in.
- An odd n: the numbers are the real parts of n complex ones. Only half of the results are written. That is twice the
  arithmetic, and still one trip.
- What no block can do by radices, or too few points: complex numbers in device memory, and `any_length.fused`.

Source: G. D. Bergland, A fast Fourier transform algorithm for real-valued series (1968).
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft.any_length import BLOCK, KERNELS, MOST, NORMS, REGISTERS, arguments, factor, fused, in_words
from pmpp.kernels.fft.butterflies import LINES, TABLES, exact_roots, number_of, scaled, turned, word_of
from pmpp.kernels.fft.passes import (  # fmt: skip
    Plan,
    Route,
    first_pass,
    fits,
    last_pass,
    last_pass_in_place,
    one_after_the_other,
    pass_in_place,
    place_of_result,
    radices_of,
    rows,
    twiddles,
)
from pmpp.kernels.fft.radices import conjugate, read, write_conjugate
from pmpp.runtime import device

__all__ = ["irfft", "rfft"]

HALF = np.float32(0.5)


@device.cached(TABLES)
def half_roots(n: int) -> typing.Any:
    """exp(-2 pi i k / n) for k up to n / 2, as words."""
    return device.to_device(exact_roots(np.arange(n // 2 + 1), n).view(np.int64))


# ------------------------------------------------------------------------------------------------ an even n, in a block


@functools.lru_cache(KERNELS)
def pairs_kernel(plan: Plan) -> typing.Any:
    """Lines of 2 plan.n real numbers to their half spectra."""
    h, lines, words, last = plan.n, np.int64(plan.lines), plan.words, len(plan.radices) - 1
    middle = (pass_in_place(plan, i) for i in range(1, last))
    way = one_after_the_other(first_pass(plan, Route(h), read), *middle, last_pass_in_place(plan))
    wide, threads, half, place_of = np.uint32(h + 1), np.uint32(plan.threads), np.uint32(h), place_of_result(plan)

    @cuda.jit(max_registers=REGISTERS)
    def real_pairs_kernel(x, out, table, roots, total, scale):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * h :], points, scale, table, np.uint32(0), count)
        cuda.syncthreads()
        mine, u = out[first * wide :], np.uint32(cuda.threadIdx.x)
        while u < count * wide:
            line = np.uint32(u // wide)
            k = np.uint32(u - line * wide)
            a = number_of(points[place_of(line, k if k < half else np.uint32(0))])
            b = conjugate(number_of(points[place_of(line, np.uint32(half - k) if k else np.uint32(0))]))
            joined = a + b + turned(a - b) * number_of(roots[k])
            mine[u] = word_of(scaled(joined, scale, scale))
            u = np.uint32(u + threads)

    return real_pairs_kernel


@functools.lru_cache(KERNELS)
def read_together(h: int) -> typing.Any:
    """A device function: value k of the spectrum of h complex numbers, even real numbers and odd ones, conjugated."""

    @cuda.jit(device=True)
    def read_both(x, place, roots, k):
        a, b = number_of(x[place]), conjugate(number_of(x[place + h - 2 * k]))
        if k == 0:  # two sums of real numbers: what a caller left in their imaginary parts does not count
            a, b = complex(a.real, np.float32(0)), complex(b.real, np.float32(0))
        odd = (a - b) * conjugate(number_of(roots[k]))
        return conjugate(a + b - turned(odd))

    return read_both


@functools.lru_cache(KERNELS)
def together_kernel(plan: Plan) -> typing.Any:
    """Half spectra of plan.n + 1 values to lines of 2 plan.n real numbers."""
    h, lines, words, last = plan.n, np.int64(plan.lines), plan.words, len(plan.radices) - 1
    middle = (pass_in_place(plan, i) for i in range(1, last))
    way = one_after_the_other(first_pass(plan, Route(h + 1), read_together(h)), *middle)
    end = last_pass(plan, Route(h), write_conjugate)

    @cuda.jit(max_registers=REGISTERS)
    def half_spectra_kernel(x, out, table, roots, total, scale):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * (h + 1) :], points, roots, table, np.uint32(0), count)
        cuda.syncthreads()
        end(out[first * h :], points, scale, table, np.uint32(0), count)

    return half_spectra_kernel


# ------------------------------------------------------------------------------------------------- an odd n, in a block


@cuda.jit(device=True)
def read_real(x, place, factors, where):
    return complex(x[place], np.float32(0))


@cuda.jit(device=True)
def write_real(x, place, z, factors, where):
    x[place] = z.real * factors


@functools.lru_cache(KERNELS)
def write_half(n: int) -> typing.Any:
    """A device function: only the first n // 2 + 1 results are written."""

    @cuda.jit(device=True)
    def write_first(x, place, z, factors, where):
        if where <= n // 2:
            x[place] = word_of(scaled(z, factors, factors))

    return write_first


@functools.lru_cache(KERNELS)
def read_mirrored(n: int) -> typing.Any:
    """A device function: the conjugate of value ``where`` of a spectrum of which only half is there."""

    @cuda.jit(device=True)
    def read_half(x, place, factors, where):
        if where <= n // 2:
            z = conjugate(number_of(x[place]))
        else:
            z = number_of(x[place + n - 2 * where])
        return complex(z.real, np.float32(0)) if where == 0 or 2 * where == n else z

    return read_half


@functools.lru_cache(KERNELS)
def whole_kernel(plan: Plan, inverse: bool) -> typing.Any:
    """Lines of an odd number of real numbers to their half spectra, or back."""
    n, lines, words, last = plan.n, np.int64(plan.lines), plan.words, len(plan.radices) - 1
    wide = n // 2 + 1
    here, there = (wide, n) if inverse else (n, wide)
    load, store = (read_mirrored(n), write_real) if inverse else (read_real, write_half(n))
    middle = (pass_in_place(plan, i) for i in range(1, last))
    way, end = one_after_the_other(first_pass(plan, Route(here), load), *middle), last_pass(plan, Route(there), store)

    @cuda.jit(max_registers=REGISTERS)
    def real_lines_kernel(x, out, table, total, scale):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * here :], points, scale, table, np.uint32(0), count)
        cuda.syncthreads()
        end(out[first * there :], points, scale, table, np.uint32(0), count)

    return real_lines_kernel


# --------------------------------------------------------------------------------------------------------- in memory


@cuda.jit
def widen_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = complex(x[i], np.float32(0))


@cuda.jit
def first_half_kernel(x, out, n):
    i = cuda.grid(1)
    if i < out.size:
        line = i // (n // 2 + 1)
        out[i] = x[line * n + i - line * (n // 2 + 1)]


@cuda.jit
def mirror_kernel(x, out, n):
    i = cuda.grid(1)
    if i < out.size:
        line = i // n
        k, begin = i - line * n, line * (n // 2 + 1)
        z = x[begin + k] if 2 * k <= n else conjugate(x[begin + n - k])
        out[i] = complex(z.real, np.float32(0)) if k == 0 or 2 * k == n else z


@cuda.jit
def real_part_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i].real


# ------------------------------------------------------------------------------------------------------- what is called


def in_block(n: int) -> bool:
    """Whether a block does lines of n complex numbers in several passes."""
    return fits(n) and len(radices_of(n) or ()) > 1


def checked(x: typing.Any, most: int, norm: str) -> None:
    """Raises ValueError unless ``norm`` is one, and ``x`` has lines of 1 to ``most`` values, and not too many lines."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise ValueError(f'norm must be "backward", "ortho" or "forward", was {norm!r}')
    if not 1 <= x.shape[-1] <= most:
        raise ValueError(f"the last axis of x must have 1 to {most} values, had {x.shape[-1]}")
    if x.size // x.shape[-1] >= LINES:
        raise ValueError(f"x must have fewer than 2^31 lines, had shape {x.shape}")


def rfft(x, norm="backward", *, stream=0):
    """The half spectra of lines of real numbers, of any length.

    Args:
        x: float32, contiguous, of shape (..., n).
        norm: as in `any_length.fused`.
        stream: the stream to work on.

    Returns a complex64 device array of shape (..., n // 2 + 1), as ``numpy.fft.rfft``, without waiting for the work to
    be done. Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> rfft(np.float32([1, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j], dtype=complex64)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, stream=stream)
    checked(x, MOST, norm)
    n = x.shape[-1]
    out = device.empty((*x.shape[:-1], n // 2 + 1), np.complex64, stream=stream)
    lines, flat, words, scale = x.size // n, x.reshape(-1), out.reshape(-1).view(np.int64), factor(n, False, norm)
    if not lines:
        return out
    if n % 2 == 0 and in_block(n // 2) and device.address(x) % 8 == 0:
        plan = rows(n // 2)
        launch = pairs_kernel(plan)[blocks(lines, plan.lines), plan.threads, stream]
        launch(flat.view(np.int64), words, twiddles(plan.radices), half_roots(n), lines, np.float32(scale / 2))
    elif in_block(n):
        plan = rows(n)
        launch = whole_kernel(plan, False)[blocks(lines, plan.lines), plan.threads, stream]
        launch(flat, words, twiddles(plan.radices), lines, np.float32(scale))
    else:
        wide, whole = (device.empty((lines, n), np.complex64, stream=stream) for _ in range(2))
        widen_kernel[blocks(x.size, BLOCK), BLOCK, stream](flat, wide.reshape(-1))
        fused.launch(arguments(wide, False, norm, out=whole, stream=stream))
        first_half_kernel[blocks(out.size, BLOCK), BLOCK, stream](whole.reshape(-1), out.reshape(-1), n)
    return out


def irfft(x, n=None, norm="backward", *, stream=0):
    """Lines of n real numbers from their half spectra: `rfft` undone.

    Args:
        x: complex64, contiguous, of shape (..., n // 2 + 1), from a multiple of 8 bytes on.
        n: how many real numbers a line has; by default the even number, 2 (x.shape[-1] - 1).
        norm, stream: as in `rfft`.

    Returns a float32 device array of shape (..., n), without waiting for the work to be done. The first value of a
    spectrum of real numbers has no imaginary part, nor has the last one if n is even: one that is there is ignored, as
    by ``numpy.fft.irfft``. Raises as `rfft`.

    >>> irfft(np.complex64([1, 1]), 3).copy_to_host()
    array([1., 0., 0.], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = in_words("x", device.as_input("x", x, dtypes=np.complex64, stream=stream))
    checked(x, MOST // 2 + 1, norm)
    wide = x.shape[-1]
    n = 2 * (wide - 1) if n is None else n
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 or n // 2 + 1 != wide:
        accepted = f"{2 * wide - 2} or {2 * wide - 1}" if wide > 1 else "1"
        raise ValueError(f"n must be {accepted} for a half spectrum of {wide} values, was {n!r}")
    n = int(n)
    if n > MOST:
        raise ValueError(f"n must be at most {MOST}, was {n}")
    out = device.empty((*x.shape[:-1], n), np.float32, stream=stream)
    lines, flat, scale = out.size // n, x.reshape(-1), factor(n, True, norm)
    if not lines:
        return out
    words = flat.view(np.int64)
    if n % 2 == 0 and in_block(n // 2):
        plan = rows(n // 2)
        launch = together_kernel(plan)[blocks(lines, plan.lines), plan.threads, stream]
        target = out.reshape(-1).view(np.int64)
        launch(words, target, twiddles(plan.radices), half_roots(n), lines, np.float32(scale))
    elif in_block(n):
        plan = rows(n)
        launch = whole_kernel(plan, True)[blocks(lines, plan.lines), plan.threads, stream]
        launch(words, out.reshape(-1), twiddles(plan.radices), lines, np.float32(scale))
    else:
        whole, back = (device.empty((lines, n), np.complex64, stream=stream) for _ in range(2))
        mirror_kernel[blocks(out.size, BLOCK), BLOCK, stream](flat, whole.reshape(-1), n)
        fused.launch(arguments(whole, True, norm, out=back, stream=stream))
        real_part_kernel[blocks(out.size, BLOCK), BLOCK, stream](back.reshape(-1), out.reshape(-1))
    return out
