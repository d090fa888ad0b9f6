"""What is measured of ``pmpp.softmax``: four shapes from short to very long rows, shapes that suit no vector, columns."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping

import numpy as np

from pmpp import softmax
from pmpp.lab.bench import Workload
from pmpp.lab.device import empty
from pmpp.workloads import chunks, normal, worst, xp

DESIGN = (65536, 1024)
SHAPES = [(2**20, 64), DESIGN, (8192, 32768), (1024, 262144)]
ROWS = [(2**26 // n, n) for n in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 2**18, 2**20, 2**24)]
ODD = [
    *((2**20, n) for n in (1, 2, 3, 5, 7, 9, 10, 12, 31, 33, 63, 100)),
    *((65536, n) for n in (127, 257, 511, 1000, 1023, 1025)),
    *((4096, n) for n in (2047, 5001, 10_007, 32_767, 32_769, 50_257)),
    *((1, n) for n in (10, 1000, 4096, 32_768, 50_257, 2**20, 2**24 + 1)),
    *((m, n) for m in (4, 32) for n in (10, 1000, 50_257, 2**20 + 3)),
    (128, 128_256),
]
COLUMNS = [((64, 1000, 1024), 1), ((256, 64, 4096), 1), ((16384, 4096), 0), ((1024, 32, 33), 1), ((65536, 8, 3), 1), ((2**20, 3), 0)]


def verify(result: typing.Any, x: typing.Any, axis: int = -1) -> tuple[float, float]:
    """Against float64, every element; the tolerance is derived in `softmax.tolerance`, and no input is infinite here."""
    if result.shape != x.shape:
        return float("inf"), 0.0
    x, result = (xp().moveaxis(a, axis, -1).reshape(-1, x.shape[axis]) for a in (x, result))
    found = [(0.0, 0.0)]
    rows = max(1, 2**26 // x.shape[1])
    for part in chunks(x.shape[0], rows):
        below = x[part].astype(np.float64)
        below -= below.max(axis=1, keepdims=True)
        shares = xp().exp(below)
        shares /= shares.sum(axis=1, keepdims=True)
        growth = 14 + 24 * math.sqrt(x.shape[1] / 8 + 16) - below - (shares * below).sum(axis=1, keepdims=True)
        tolerance = shares * growth * (np.finfo(np.float32).eps / 2) + 4 * 2.0**-149
        found.append(worst(abs(result[part] - shares), tolerance))
    return max(found, key=lambda pair: float("inf") if math.isnan(pair[0]) else pair[0] / max(pair[1], 1e-300))


def _torch(torch: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    return torch.softmax(x, -1, out=out)


def _cupy(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    from cupyx.scipy.special import softmax as other

    return other(x, axis=-1)


def _rows(m: int, n: int, family: str, rungs: tuple, cache: str = "cold", **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=softmax.cost(m, n),
        make=lambda seed: (normal((m, n), seed),),
        output=lambda: empty((m, n), np.float32),
        rungs=rungs,
        libraries={"torch.softmax": _torch, **({"cupy.softmax": _cupy} if family == "rows" else {})},
        verify=verify,
        cache=cache,
        **more,
    )
