"""What is measured of ``merge``: two vectors of one length, at many lengths; shares of a; values; float32.

PyTorch and CuPy have no merge of two vectors. They sort the two that were put one behind the other, which is more work.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.merge import ladder as room
from pmpp.lab.measure.arrays import chunks, integers, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28  # outputs
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
SHARES = (1, 10, 25, 50)  # of the outputs that come from a, in percent
KINDS = ("interleaved", "one after the other", "few values")


def verify(result: typing.Any, a: typing.Any, b: typing.Any) -> tuple[float, float]:
    """The number of wrong elements, which has to be 0."""
    library, wrong = xp(), 0
    if result.shape != (a.size + b.size,):
        return float("inf"), 0.0
    exact = library.sort(library.concatenate([library.asarray(a), library.asarray(b)]))
    for part in chunks(result.size):
        wrong += int((library.asarray(result[part]) != exact[part]).sum())
    return float(wrong), 0.0


def _sorted(n: int, seed: int, dtype: typing.Any, largest: int) -> typing.Any:
    x = integers(n, seed, largest, dtype)
    values = view(x)
    values.sort()
    return x if xp() is not np else to_device(values)


def pair(n: int, m: int, dtype: typing.Any = np.int32, largest: int = 2**30) -> Callable[[int], tuple]:
    """A seed to n and m random whole numbers in [-largest, largest], each vector sorted."""
    return lambda seed: (_sorted(n, seed, dtype, largest), _sorted(m, seed + 1000, dtype, largest))


def arranged(n: int, kind: str) -> Callable[[int], tuple]:
    """A seed to n / 2 and n / 2 int32: "interleaved" 0, 2, 4 and 1, 3, 5; "one after the other"; or "few values"."""

    def make(seed: int) -> tuple:
        if kind == "few values":
            return pair(n // 2, n // 2, largest=8)(seed)
        every = np.arange(n, dtype=np.int32)
        halves = (every[::2], every[1::2]) if kind == "interleaved" else (every[: n // 2], every[n // 2 :])
        return tuple(to_device(np.ascontiguousarray(half)) for half in halves)

    return make


LIBRARIES = {
    "torch.sort": lambda torch, a, b: torch.sort(torch.cat([a, b])).values,
    "cupy.sort": lambda cupy, a, b: cupy.sort(cupy.concatenate([a, b])),
}


def _halves(n: int) -> Workload:
    return Workload(
        family="two halves",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n // 2, n // 2),
        make=pair(n // 2, n // 2),
        rungs=room.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.sort": lambda a, b: np.sort(np.concatenate([a, b]), kind="stable")} if n <= 2**24 else {},
        end_to_end=n <= 2**24,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _more(family: str, name: str, sizes: dict, made: Callable[[int], tuple]) -> Workload:
    n = 2**26
    return Workload(
        family=family,
        name=name,
        sizes={**sizes, "n": n},
        cost=room.cost(n, 0),
        make=made,
        rungs=room.LADDER,
        libraries={},
        verify=verify,
        quick=True,
    )


def _share(percent: int) -> Workload:
    n = 2**26 * percent // 100
    return _more("share of a", f"{percent} %", {"percent": percent}, pair(n, 2**26 - n))


WORKLOADS = [
    _halves(DESIGN),
    *(_share(percent) for percent in SHARES),
    *(_more("values", kind, {}, arranged(2**26, kind)) for kind in KINDS),
    _more("dtype", "float32", {}, pair(2**25, 2**25, np.float32)),
    *(_halves(n) for n in SWEEP if n != DESIGN),
]
