"""What is measured of ``one_trip``: lines of 2^13, 2^20 and 16 points, and all from 2 to 2^24, 2^26 points in all."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace

from pmpp.kernels.fft import one_trip
from pmpp.kernels.fft.any_length_workloads import cufft
from pmpp.kernels.fft.workloads import noise, on_cpu, verifier
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

POINTS = 2**26
BLOCK, MATRIX, SHORT = 2**13, 2**20, 16  # the design sizes
BATCHES = (1, 16, 256, 1024)  # numbers of lines of BLOCK points


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
        cost=one_trip.cost(lines, n),
        make=lambda seed: (noise(shape, seed),),
        output=lambda: device.empty(shape, "complex64"),
        rungs=tuple(map(_with, rungs)),
        libraries={"cupy.cufft": cufft, "torch.fft": lambda torch, x, out: torch.fft.fft(x, out=out)},
        verify=verifier(False, 1),
        **more,
    )


def _batch(lines: int) -> Workload:
    """Lines by their number, beside NumPy, and from host to host."""
    more = {"host": {"numpy.fft": on_cpu}, "end_to_end": True}
    workload = _workload("batches", lines, BLOCK, one_trip.LADDER[-1:], **more)
    return replace(workload, sizes={"lines": lines} | workload.sizes)


def _of(family: str, n: int, rungs: tuple, **more: typing.Any) -> Workload:
    return _workload(family, POINTS // n, n, rungs, **more)


WORKLOADS = [
    _of("a block", BLOCK, one_trip.LADDER[:3], design=True, quick=True),
    _of("a matrix", MATRIX, one_trip.LADDER[:2], design=True, quick=True),
    _of("short", SHORT, (one_trip.trip_a_pass, one_trip.short_lines), design=True, quick=True),
    _of("rounds", 2 * BLOCK, (one_trip.two_trips, one_trip.in_rounds)),
    *(_of("lengths", 1 << bits, one_trip.LADDER[-1:]) for bits in range(1, 25)),
    *(_batch(lines) for lines in BATCHES),
]
