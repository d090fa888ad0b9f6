"""Transforms of drawn shapes: `fft.fft`, `fft.rfft` and `fft.irfft`, along the last axis."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels import fft
from pmpp.kernels.fft.ladder import relative_error
from pmpp.kernels.fft.workloads import noise
from pmpp.kernels.instruments.shapes import contenders
from pmpp.lab.measure.arrays import chunks, normal, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """Lines of n points, beside cuFFT by PyTorch and by CuPy."""
    lines, n, kind = (shape.sizes[key] for key in ("lines", "n", "kind"))
    if kind == "fft":
        return _complex(shape, (lines, n))
    if kind == "rfft":
        return contenders.workload(
            shape,
            "fft.rfft",
            fft.rfft,
            {"torch.rfft": lambda torch, x: torch.fft.rfft(x), "cupy.rfft": lambda cupy, x: cupy.fft.rfft(x)},
            make=lambda seed: (normal((lines, n), seed),),
            verify=verifier((lines, n // 2 + 1), n, lambda library, x: library.fft.rfft(x)),
        )
    return contenders.workload(
        shape,
        "fft.irfft",
        # Who asks for an odd number of points has to say so; an even one is what all three take by default.
        fft.irfft if n % 2 == 0 else (lambda x: fft.irfft(x, n=n)),
        {
            "torch.irfft": lambda torch, x: torch.fft.irfft(x, n=n),
            "cupy.irfft": lambda cupy, x: cupy.fft.irfft(x, n=n),
        },
        make=lambda seed: (spectrum((lines, n // 2 + 1), n, seed),),
        verify=verifier((lines, n), n, lambda library, x: library.fft.irfft(x, n=n)),
    )


def _complex(shape: Shape, extents: tuple[int, int]) -> Workload:
    return contenders.workload(
        shape,
        "fft.fft",
        fft.fft,
        {"torch.fft": lambda torch, x, out: torch.fft.fft(x, out=out), "cupy.cufft": _cufft},
        make=lambda seed: (noise(extents, seed),),
        verify=verifier(extents, extents[1], lambda library, x: library.fft.fft(x)),
        output=lambda: device.empty(extents, np.complex64),
    )


@functools.lru_cache(1)  # a plan has a workspace as large as what it transforms
def _plan(extents: tuple[int, int]) -> typing.Any:
    import cupy
    from cupyx.scipy.fft import get_fft_plan

    return get_fft_plan(cupy.empty(extents, np.complex64), axes=(1,))


def _cufft(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    """cuFFT by a plan that is kept: neither planning nor allocation is timed."""
    _plan(tuple(x.shape)).fft(x, out, cupy.cuda.cufft.CUFFT_FORWARD)
    return out


def spectrum(extents: tuple[int, int], n: int, seed: int) -> typing.Any:
    """Half spectra of real numbers: random, and without an imaginary part where such a spectrum has none."""
    lines = normal((extents[0], 2 * extents[1]), seed).view(np.complex64)
    given = view(lines) if xp() is not np else device.to_host(lines)
    given[:, 0].imag[...] = 0  # CuPy does not copy a part of an array onto the whole of it, as in `a[:] = a.real`
    if n % 2 == 0:
        given[:, -1].imag[...] = 0
    return lines if xp() is not np else device.to_device(given)


def verifier(extents: tuple[int, int], n: int, exact: Callable) -> Callable[..., tuple[float, float]]:
    """Each line's error in the 2-norm against a transform of n points in float64, ``exact(library, x)``.

    `relative_error` counts levels of radix 2. A real transform has one more than the complex one of half the length. A
    prime length takes three transforms of less than four times the points (Bluestein, 1970): so much is allowed to
    every length that is no power of two.
    """
    allowed = relative_error(2 * n) if n & (n - 1) == 0 else 3 * relative_error(4 * n)

    def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        if xp() is not np:
            xp().fft.config.get_plan_cache().set_size(4)  # of 16, each with a workspace of its own
        if result.shape != extents:
            return float("inf"), 0.0
        found = [(0.0, 1.0)]
        for part in chunks(len(x), max(1, 2**25 // n)):
            wide = x[part].astype(np.complex128 if x.dtype.kind == "c" else np.float64)
            expected = exact(xp(), wide)
            error = xp().sqrt((abs(result[part] - expected) ** 2).sum(1))
            share = error / (allowed * xp().sqrt((abs(expected) ** 2).sum(1)))
            found.append((float("inf") if bool(xp().isnan(share).any()) else float(share.max()), 1.0))
        return max(found)

    return verify
