"""What is measured of ``scan``: running sums of float32 at every size, of integers, and of numbers of 16 bits."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pmpp.kernels.scan import ladder as scan
from pmpp.lab.measure.arrays import chunks, integers, normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.timing import WrongResult
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.rung import Rung

DESIGN = 2**28
LARGE = 2**30
SWEEP = [2**k for k in range(10, 28, 2)]
ODD = [1_000_003, 2**26 + 1]  # no multiple of a tile, nor of four
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
FAST = scan.LADDER[-3:]  # the slow rungs are timed at the design size only
ON_CPU = (2**14, 2**20, DESIGN)


def verify(result: typing.Any, x: typing.Any, dtype: typing.Any = np.float32) -> tuple[float, float]:
    """Against sums in float64, piece by piece. Each element is off by at most a share of the sum of |x| up to it.

    ``dtype``: that of the result, which may come as a float32 with the same numbers.

    An element goes through so many ``additions`` at most, and each rounds by eps / 2. tests/kernels/scan/test_scan.py
    has the derivation. ``probe`` is the sharp check.
    """
    # Two runs of COARSE: of elements, and of totals of tiles. A tree of log2 n levels, up and down. 8 for the joins
    # between runs, warps, blocks and tiles. One for each tile in a chain of tiles.
    additions = 2 * scan.COARSE + 2 * math.log2(x.size + 1) + 8 + x.size / scan.TILE
    before = size = 0.0
    pieces = []
    for part in chunks(x.size):
        exact = before + xp().cumsum(x[part], dtype=np.float64)
        bound = size + xp().cumsum(abs(x[part]), dtype=np.float64)
        allowed = additions * float(np.finfo(np.float32).eps) / 2 * bound
        if np.dtype(dtype).itemsize == 2:
            allowed = allowed + rounding(abs(exact) + allowed, dtype)
        pieces.append(worst(abs(result[part] - exact), allowed))
        before, size = float(exact[-1]), float(bound[-1])
    return worst_of(pieces)


def probe_of(n: int) -> Callable[[Callable], None]:
    """Whole numbers from -4 to 4 at random: their signs cancel, so running sums stay far below 2^24 and are exact."""

    def probe(call: Callable) -> None:
        x = integers(n, seed=n % 2**31 + 11, largest=4)
        result, given = view(call(x)), view(x)
        before = 0.0
        for part in chunks(n):
            expected = before + xp().cumsum(given[part], dtype=np.float64)
            before = float(expected[-1])
            wrong = xp().flatnonzero(result[part] != expected)
            if wrong.size:
                i = int(wrong[0])
                got, want = float(result[part][i]), float(expected[i])
                raise WrongResult(f"of {n} whole numbers, element {part.start + i} is {got:.9g}, not {want:.9g}")

    return probe


def _scan(n: int, rungs: Sequence[Rung] = FAST) -> Workload:
    return Workload(
        family="cumsum",
        name=f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else f"{n:,}",
        sizes={"n": n},
        cost=scan.cost(n),
        make=lambda seed: (normal(n, seed),),
        rungs=rungs,
        libraries={
            "torch.cumsum": lambda torch, x: torch.cumsum(x, 0),
            "cupy.cumsum": lambda cupy, x: cupy.cumsum(x),
        },
        verify=verify,
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.cumsum": np.cumsum} if n in ON_CPU else {},
        end_to_end=n in ON_CPU,
        quick=n in (2**10, 2**20, DESIGN, LARGE),
    )


def _integers(dtype: str, n: int = 2**26) -> Workload:
    """Sums of integers, which wrap: exact in every order. torch would add int32 up in int64 unless told otherwise."""

    def verify_integers(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        return float((result != xp().cumsum(x, dtype=x.dtype)).sum()), 0.0

    return Workload(
        family=f"cumsum {dtype}",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=scan.cost(n, np.dtype(dtype).itemsize),
        make=lambda seed: (integers(n, seed, largest=2**20, dtype=dtype),),
        rungs=FAST,
        libraries={
            "torch.cumsum": lambda torch, x: torch.cumsum(x, 0, dtype=x.dtype),
            "cupy.cumsum": lambda cupy, x: cupy.cumsum(x, dtype=x.dtype),
        },
        verify=verify_integers,
    )


def _in_16_bits(dtype: np.dtype) -> Workload:
    """PyTorch, too, is told to add up in float32, and then writes float32.

    Without that it rounds each sum to the 16 bits. In bfloat16 that is off by more than `verify` allows.
    """
    plain = {} if dtype.name == "bfloat16" else {"torch.cumsum": lambda torch, x: torch.cumsum(x, 0)}
    return replace(
        _scan(DESIGN, FAST),
        family=f"cumsum, {dtype}",
        cost=scan.cost(DESIGN, dtype.itemsize),
        make=lambda seed: (normal(DESIGN, seed, dtype),),
        libraries={
            **plain,
            "torch.cumsum to float32": lambda torch, x: torch.cumsum(x, 0, dtype=torch.float32),
        },
        verify=lambda result, x: verify(result, x, dtype),
        probe=None,
        host={},
        end_to_end=False,
    )


WORKLOADS = [
    _scan(DESIGN, scan.LADDER),
    *(_in_16_bits(dtype) for dtype in known(scan.SHORT)),
    *(_scan(n) for n in (*SWEEP, *ODD, LARGE)),
    _integers("int32"),
    _integers("int64"),
]
