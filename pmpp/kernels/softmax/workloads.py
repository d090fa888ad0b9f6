"""What is measured of ``softmax``: short to very long rows, odd and few ones, another axis, and numbers of 16 bits."""

from __future__ import annotations

import math
import typing
from dataclasses import replace

import numpy as np

from pmpp.kernels.softmax import ladder as softmax
from pmpp.lab.measure.arrays import chunks, normal, with_options, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty
from pmpp.runtime.dtypes import known, rounding

F32 = np.dtype(np.float32)
DESIGN = [(65536, 1024), (2**20, 64), (8192, 32768), (1024, 262_144)]
SWEEP = [2**k for k in range(4, 21, 2)]  # lengths of a row, of 2^26 elements in all
BATCHES = [2**k for k in range(0, 17, 4)]  # numbers of rows, of 1024 elements each
ODD = [
    *((2**20, n) for n in (1, 2, 3, 4, 5, 7, 8, 10, 17, 31, 33)),
    *((65536, n) for n in (127, 257, 1000, 1023, 1025)),
    *((4096, n) for n in (5001, 32_769, 50_257)),
    (128, 128_256),
]
FEW = [
    *((1, n) for n in (1, 10, 32, 1000, 8192, 50_257, 2**20, 2**24 + 1)),
    *((1000, 10), (10_000, 31), (8, 8192), (32, 1000), (32, 50_257)),
]
COLUMNS = [((64, 1000, 1024), 1), ((16384, 4096), 0), ((1024, 32, 33), 1), ((65536, 8, 3), 1), ((2**20, 3), 0)]


def verify(result: typing.Any, x: typing.Any, axis: int = -1, dtype: typing.Any = np.float32) -> tuple[float, float]:
    """Against float64, every element. The tolerance is that of `softmax.tolerance`; no input is infinite here.

    ``dtype``: that of the result, which may come as a float32 with the same numbers.
    """
    if result.shape != x.shape:
        return float("inf"), 0.0
    x, result = (xp().moveaxis(a, axis, -1).reshape(-1, x.shape[axis]) for a in (x, result))
    found = []
    rows = max(1, 2**26 // x.shape[1])
    for part in chunks(x.shape[0], rows):
        below = x[part].astype(np.float64)
        below -= below.max(axis=1, keepdims=True)
        shares = xp().exp(below)
        shares /= shares.sum(axis=1, keepdims=True)
        growth = 14 + 24 * math.sqrt(x.shape[1] / 8 + 16)
        growth = growth - 3.35 * (below + (shares * below).sum(axis=1, keepdims=True))
        tolerance = shares * growth * (np.finfo(np.float32).eps / 2) + 4 * 2.0**-149
        if np.dtype(dtype).itemsize == 2:
            tolerance = tolerance + rounding(shares + tolerance, dtype)
        found.append(worst(abs(result[part] - shares), tolerance))
    return worst_of(found)


def on_cpu(x: np.ndarray) -> np.ndarray:
    """Softmax of each row by NumPy on the CPU, in the dtype of ``x``."""
    shares = x - x.max(axis=-1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def _cupy(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    from cupyx.scipy.special import softmax as theirs

    return theirs(x, axis=-1)


def _last_axis(
    family: str, m: int, n: int, rungs: tuple, cupy: bool = False, dtype: typing.Any = F32, **more: typing.Any
) -> Workload:
    libraries = {"torch.softmax": lambda torch, x, out: torch.softmax(x, -1, out=out)}
    return Workload(
        family=family,
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=softmax.cost(m, n, dtype.itemsize),
        make=lambda seed: (normal((m, n), seed, dtype),),
        output=lambda: empty((m, n), dtype),
        rungs=rungs,
        libraries=libraries | ({"cupy.softmax": _cupy} if cupy else {}),
        verify=lambda result, x: verify(result, x, dtype=dtype),
        **more,
    )


def _in_16_bits(m: int, n: int, dtype: np.dtype) -> Workload:
    return _last_axis(f"rows of {n}, {dtype}", m, n, LAST, dtype=dtype, design=(m, n) in DESIGN, quick=True)


def _batch(m: int, n: int = 1024) -> Workload:
    """Rows by their number, beside NumPy, and from host to host."""
    more = {"design": m == BATCHES[-1], "host": {"numpy": on_cpu}, "end_to_end": True}
    return replace(_last_axis("batches", m, n, LAST, **more), sizes={"m": m, "n": n})


def _columns(shape: tuple[int, ...], axis: int) -> Workload:
    size = math.prod(shape)
    return Workload(
        family="another axis",
        name=f"{' x '.join(map(str, shape))}, axis {axis}",
        sizes={"n": shape[axis], "m": size // shape[axis]},
        cost=softmax.cost(size // shape[axis], shape[axis]),
        make=lambda seed: (normal(shape, seed),),
        output=lambda: empty(shape, np.float32),
        rungs=tuple(with_options(rung, axis) for rung in (softmax.split_row, softmax.vectorised)),
        libraries={"torch.softmax": lambda torch, x, out: torch.softmax(x, axis, out=out)},
        verify=lambda result, x: verify(result, x, axis),
    )


LAST = softmax.LADDER[-1:]
WORKLOADS = [
    *(_last_axis(f"rows of {n}", m, n, softmax.LADDER, cupy=True, design=True, quick=True) for m, n in DESIGN),
    *(_in_16_bits(m, n, dtype) for dtype in known(softmax.SHORT_DTYPES) for m, n in DESIGN),
    *(_last_axis("sweep", 2**26 // n, n, (*softmax.LADDER[1:5], *LAST)) for n in SWEEP),
    *(_batch(m) for m in BATCHES),
    *(_last_axis("odd rows", m, n, LAST) for m, n in ODD),
    *(_last_axis("few rows", m, n, LAST) for m, n in FEW),
    *(_columns(shape, axis) for shape, axis in COLUMNS),
]
