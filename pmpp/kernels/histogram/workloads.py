"""What is measured of ``histogram``: bytes, uniform and not; float32 in a range; more bins than shared memory has."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.histogram import ladder as histogram
from pmpp.lab.measure.arrays import chunks, integers, uniform, view, with_options, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**28  # from here on nothing stays in a cache from one launch to the next
MANY = 2**20  # bins
SHARES = (0, 20, 40, 60, 80, 100)  # of equal bytes, in percent


def verify(result: typing.Any, x: typing.Any, bins: int = 256, range: tuple | None = None) -> tuple[float, float]:
    """The number of wrong counts, by NumPy's or CuPy's bincount of the bin numbers: it has to be 0."""
    if result.shape != (bins,):
        return float("inf"), 0.0
    library, exact = xp(), 0
    for part in chunks(x.size):
        at = x[part]
        if range is not None:
            low, _, scale = histogram.edges_of(x.dtype, bins, range)
            at = library.minimum(((at - low) * scale).astype(np.int32), bins - 1)
        exact = exact + library.bincount(at, minlength=bins)
    return float((library.asarray(result) != exact).sum()), 0.0


def bytes_of(n: int, share: int) -> Callable[[int], tuple]:
    """A seed to n bytes: ``share`` percent of them are 77, and the others are uniform over 255 values."""

    def make(seed: int) -> tuple:
        x = integers(n, seed, largest=127, dtype=np.uint8)
        if share == 0:
            return (x,)
        values = view(x)  # with CuPy this is the same memory
        values[view(uniform(n, seed + 1000)) < share / 50 - 1] = 77
        return (x if xp() is not np else to_device(values),)

    return make


def sorted_bytes(seed: int) -> tuple:
    return (to_device(np.repeat(np.arange(256, dtype=np.uint8), DESIGN // 256)),)


def whole_numbers(n: int, bins: int, kind: str) -> Callable[[int], tuple]:
    """A seed to n int32 from 0 to bins - 1: "uniform", "equal" or "sorted"."""

    def make(seed: int) -> tuple:
        if kind == "uniform":
            return (to_device(np.random.default_rng(seed).integers(0, bins, n, dtype=np.int32)),)
        if kind == "sorted":
            return (to_device(np.repeat(np.arange(bins, dtype=np.int32), n // bins)),)
        return (to_device(np.full(n, bins // 3, np.int32)),)

    return make


LIBRARIES = {
    "torch.bincount": lambda torch, x: torch.bincount(x, minlength=256),
    "cupy.histogram": lambda cupy, x: cupy.histogram(x, bins=256, range=(0, 256))[0],
}


def _bytes(n: int) -> Workload:
    return Workload(
        family="bytes",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=histogram.cost(n),
        make=bytes_of(n, 0),
        rungs=histogram.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.bincount": lambda x: np.bincount(x, minlength=256)} if n <= 2**26 else {},
        end_to_end=n <= 2**26,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _others(name: str, make: Callable[[int], tuple]) -> Workload:
    return Workload(
        family="bytes that meet",
        name=name,
        sizes={"n": DESIGN},
        cost=histogram.cost(DESIGN),
        make=make,
        rungs=histogram.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        quick=True,
    )


def _share(percent: int) -> Workload:
    n = 2**26
    return Workload(
        family="share of equal bytes",
        name=f"{percent} %",
        sizes={"percent": percent, "n": n},
        cost=histogram.cost(n),
        make=bytes_of(n, percent),
        rungs=histogram.LADDER,
        libraries={"torch.bincount": LIBRARIES["torch.bincount"]},
        verify=verify,
        quick=percent in (0, 40, 100),
    )


def _floats() -> Workload:
    n, range = 2**28, (-1.0, 1.0)
    return Workload(
        family="float32",
        name="2^28",
        sizes={"n": n, "bins": 256},
        cost=histogram.cost(n, itemsize=4),
        make=lambda seed: (uniform(n, seed),),
        rungs=tuple(with_options(rung, 256, range) for rung in histogram.LADDER[:5]),
        libraries={
            "torch.histc": lambda torch, x: torch.histc(x, 256, *range),
            "cupy.histogram": lambda cupy, x: cupy.histogram(x, bins=256, range=range)[0],
        },
        verify=functools.partial(verify, bins=256, range=range),
        quick=True,
    )


def _many(kind: str) -> Workload:
    n = 2**26
    return Workload(
        family="2^20 bins",
        name=kind,
        sizes={"n": n, "bins": MANY},
        cost=histogram.cost(n, MANY, itemsize=4),
        make=whole_numbers(n, MANY, kind),
        rungs=tuple(with_options(rung, MANY) for rung in (histogram.global_atomics, histogram.aggregated)),
        libraries={
            "torch.bincount": lambda torch, x: torch.bincount(x, minlength=MANY),
        },
        verify=functools.partial(verify, bins=MANY),
        quick=True,
    )


WORKLOADS = [
    _bytes(DESIGN),
    _others("all equal", bytes_of(DESIGN, 100)),
    _others("sorted", sorted_bytes),
    *(_share(percent) for percent in SHARES),
    _floats(),
    *(_many(kind) for kind in ("uniform", "equal", "sorted")),
    *(_bytes(n) for n in SWEEP if n != DESIGN),
]
