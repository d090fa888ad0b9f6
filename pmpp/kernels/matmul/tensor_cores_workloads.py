"""What is measured of ``tensor_cores``: products of float16, square ones, such of any size, and shallow ones.

The roof of the figures is that of float32 multiply-adds, which tensor cores pass by far. What counts is the comparison
with cuBLAS: ``torch.mm`` with sums in float32 that it stores as float16, and the same with a result in float32.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.matmul import tensor_cores
from pmpp.lab.measure.arrays import integers, normal, on_device, view, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.timing import WrongResult
from pmpp.runtime.device import empty, to_host

DESIGN = 4096
SWEEP = [64, 256, 512, 1024, 2048, 4096, 8192]
ODD = [4095, 4104]  # rows that do not begin at multiples of 16 bytes; no multiple of a tile
LONG, DEPTHS = 8192, [16, 64, 256, 1024]  # M = N, and K: memory is the bound of a shallow product
COLD = 4000
ROWS = 512  # of a large product that are compared in float64


def as_half(x: typing.Any) -> typing.Any:
    """A device array in float16 with the values of a device array."""
    return on_device(view(x).astype(np.float16))


def halves(shape: tuple[int, int], seed: int) -> typing.Any:
    """A device array of normally distributed float16."""
    return as_half(normal(shape, seed))


def verify(result: typing.Any, a: typing.Any, b: typing.Any) -> tuple[float, float]:
    """Against float64: every element, or for large products 512 rows that are drawn anew each time.

    A tensor core cuts off where float32 would round, so the errors of an instruction's terms have a direction. But the
    terms have random signs here, so the error of a sum still grows like sqrt(k): four times its expected size is
    allowed, as for float32, and an eps counts in full. cuBLAS rounds to float16 besides, if that is the result's dtype.
    """
    (m, k), n = a.shape, b.shape[1]
    if result.shape != (m, n):
        return float("inf"), 0.0
    rows = slice(None)
    if m > 2 * ROWS:
        rows = xp().asarray(np.unique(np.r_[0, m - 1, np.random.default_rng().integers(0, m, ROWS)]))
    a64, b64 = a[rows].astype(np.float64), b.astype(np.float64)
    exact = a64 @ b64
    allowed = 4 * math.sqrt(k + 16) * float(np.finfo(np.float32).eps) * (abs(a64) @ abs(b64))
    if result.dtype == np.float16:
        allowed = allowed + abs(exact) * float(np.finfo(np.float16).eps)
    return worst(abs(result[rows] - exact), allowed)


def probe_of(n: int) -> Callable[[Callable], None]:
    """Whole numbers from -4 to 4: every sum is exact in float32, so each row of the product must be, too."""

    def probe(call: Callable) -> None:
        a, b = as_half(integers((n, n), n, 4)), as_half(integers((n, n), n + 1, 4))
        got = view(call(a, b)).astype(np.float64)
        a64, b64 = view(a).astype(np.float64), view(b).astype(np.float64)
        for _ in range(2):
            # Whole weights up to 2^20 keep all of this exact in float64, and none is 0: every element counts.
            v = xp().asarray(np.random.default_rng().integers(1, 2**20, n).astype(np.float64))
            wrong = int((got @ v != a64 @ (b64 @ v)).sum())
            if wrong:
                raise WrongResult(f"{wrong} of {n} rows of a product of whole numbers are wrong")

    return probe


def stored_as_float16(torch: typing.Any, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """cuBLAS with sums in float32, as networks use it."""
    return torch.matmul(a, b)


def stored_as_float32(torch: typing.Any, a: typing.Any, b: typing.Any, out: typing.Any) -> typing.Any:
    """cuBLAS with the same result as the rungs have."""
    return torch.mm(a, b, out_dtype=torch.float32)


LIBRARIES = {"torch.matmul": stored_as_float16, "torch.mm to float32": stored_as_float32}


def _workload(
    family: str, name: str, m: int, n: int, k: int, sizes: dict, rungs: tuple, **more: typing.Any
) -> Workload:
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=tensor_cores.cost(m, n, k),
        make=lambda seed: (halves((m, k), seed), halves((k, n), seed + 1000)),
        output=lambda: empty((m, n), np.float32),
        rungs=rungs,
        libraries=LIBRARIES,
        verify=verify,
        **more,
    )


def _product(n: int) -> Workload:
    return _workload(
        "odd sizes" if n in ODD else "tensor_cores",
        str(n),
        *(n, n, n),
        {"n": n},
        tensor_cores.LADDER if n <= DESIGN else tensor_cores.LADDER[1:],
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.matmul": lambda a, b, out: np.matmul(a, b, out=out)} if n in SWEEP and n <= DESIGN else {},
        host_args=lambda a, b: (to_host(a).astype("f4"), to_host(b).astype("f4"), np.zeros((n, n), np.float32)),
        quick=n in (64, 1024, DESIGN, 4095),
    )


def _deep(k: int) -> Workload:
    """A product of LONG x ``k`` and ``k`` x LONG."""
    rungs = tensor_cores.LADDER[-2:]
    return _workload("depth", f"{LONG} x {k} x {LONG}", LONG, LONG, k, {"k": k, "n": LONG}, rungs)


WORKLOADS = [*(_product(n) for n in (*SWEEP, *ODD)), *map(_deep, DEPTHS)]
