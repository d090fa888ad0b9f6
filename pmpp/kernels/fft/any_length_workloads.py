"""What is measured of ``any_length``: lines of 1000 and of 1009, and many other lengths, 2^26 points in all."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pmpp.kernels.fft import any_length
from pmpp.kernels.fft.workloads import noise, on_cpu
from pmpp.lab.measure.arrays import xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

POINTS = 2**26
SMOOTH, PRIME = 1000, 1009  # the design sizes
LENGTHS = (100, 121, 169, 243, 1001, 1331, 2197, 4095, 31, 127, 509, 2039, 10007, 10000)  # of other lines
BATCHES = (1, 16, 256, 1024)  # numbers of lines of PRIME points


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Each line's error in the 2-norm against float64, as a share of what the room allows."""
    n, worst = x.shape[-1], 0.0
    step = max(1, 2**24 // n)
    for first in range(0, len(x), step):
        exact = xp().fft.fft(x[first : first + step].astype(np.complex128))
        error = xp().sqrt((abs(result[first : first + step] - exact) ** 2).sum(-1))
        share = error / (any_length.relative_error(n) * xp().sqrt((abs(exact) ** 2).sum(-1)))
        worst = max(worst, float("inf") if bool(xp().isnan(share).any()) else float(share.max()))
    return worst, 1.0


@functools.lru_cache(4)
def _plan(shape: tuple[int, ...]) -> typing.Any:
    import cupy
    from cupyx.scipy.fft import get_fft_plan

    return get_fft_plan(cupy.empty(shape, np.complex64), axes=(-1,))


def cufft(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    """cuFFT by a plan that is kept: neither planning nor allocation is timed."""
    _plan(x.shape).fft(x, out, cupy.cuda.cufft.CUFFT_FORWARD)
    return out


def _with(rung: typing.Any) -> Callable:
    def call(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(x, out=out)

    call.__name__ = rung.name
    return call


def _workload(family: str, lines: int, n: int, rungs: tuple, **more: typing.Any) -> Workload:
    shape = lines, n
    return Workload(
        family=family,
        name=f"{lines}x{n}",
        sizes={"n": n, "points": lines * n},
        cost=any_length.cost(lines, n),
        make=lambda seed: (noise(shape, seed),),
        output=lambda: device.empty(shape, np.complex64),
        rungs=tuple(map(_with, rungs)),
        libraries={"cupy.cufft": cufft, "torch.fft": lambda torch, x, out: torch.fft.fft(x, out=out)},
        verify=verify,
        **more,
    )


def _batch(lines: int) -> Workload:
    """Lines by their number, beside NumPy, and from host to host."""
    more = {"host": {"numpy.fft": on_cpu}, "end_to_end": True}
    workload = _workload("batches", lines, PRIME, any_length.LADDER[-1:], **more)
    return replace(workload, sizes={"lines": lines} | workload.sizes)


def _of(family: str, n: int, rungs: tuple, **more: typing.Any) -> Workload:
    return _workload(family, POINTS // n, n, rungs, **more)


WORKLOADS = [
    _of("smooth", SMOOTH, any_length.LADDER[:3], design=True, quick=True),
    _of("prime", PRIME, any_length.LADDER, design=True, quick=True),
    *(_of("lengths", n, any_length.LADDER[-1:]) for n in (SMOOTH, PRIME, *LENGTHS)),
    *(_batch(lines) for lines in BATCHES),
]
