"""What is measured of ``weight_only``: one vector and up to 64 at once, by matrices in 4 and in 8 bits.

The libraries multiply by the same matrix in float16, which is what the weights replace. Their bytes are four times, or
twice, as many: GB/s are those of the quantised matrix for all.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.common import blocks
from pmpp.kernels.quantisation import weight_only
from pmpp.lab.measure.arrays import normal, on_device, view, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, on_gpu, to_host

DESIGN = (8192, 28672)  # N and K: a layer of a model of 70 billion weights
SIDES = [512, 1024, 2048, 4096, 8192, 16384]
BATCHES = [1, 2, 4, 8, 16, 32, 64]
OTHER = [(28672, 8192), (4096, 11008), (1024, 65536), (65536, 1024), (1001, 1001), (50257, 768)]
COLD = 20_000_000  # bytes: a third of the L2 cache. A smaller matrix is there when the next word asks for it again
ROWS = 256  # of W that are compared in float64


def drawn(m: int, n: int, k: int, bits: int, dtype: str, seed: int) -> tuple:
    """Rows of x, and whole numbers and scales at random: what a matrix was quantised from does not matter here."""
    groups, library = blocks(k, weight_only.GROUP), xp()
    x = view(normal((m, k), seed)).astype(dtype)
    low, high, kind = (0, 256, np.uint8) if bits == 4 else (-128, 128, np.int8)
    shape = n, groups * weight_only.GROUP * bits // 8
    if on_gpu() and library is not np:
        numbers = library.random.RandomState(seed + 1).randint(low, high, shape, dtype=np.int32).astype(kind)
    else:
        numbers = np.random.default_rng(seed + 1).integers(low, high, shape).astype(kind)
    scales = abs(view(normal((n, groups), seed + 2))) * np.float32(0.01) + np.float32(0.001)
    return tuple(map(on_device, (x, numbers, scales)))


def verify(result: typing.Any, x: typing.Any, w: typing.Any, scales: typing.Any) -> tuple[float, float]:
    """Against float64: every column of the result, or of a large one 256 that are drawn anew each time.

    The sum of K terms, and `weight_only.tolerance` with sqrt(K) for K and for the number of instructions, since
    rounding errors have random signs: four times the expected size is allowed. A library that has W in float16 rounds
    each weight, and its result, to 2^-11.
    """
    m, k = x.shape
    if result.shape != (m, w.shape[0]):
        return float("inf"), 0.0
    n = np.arange(w.shape[0])
    if n.size > 2 * ROWS:
        n = np.unique(np.r_[0, n.size - 1, np.random.default_rng().integers(0, n.size, ROWS)])
    rows, library = xp().asarray(n), xp()
    numbers = w[rows]
    if w.dtype == np.uint8:
        numbers = library.stack([numbers & 15, numbers >> 4], axis=-1).reshape(n.size, -1).astype(np.float64) - 8
    matrix = (numbers * library.repeat(scales[rows].astype(np.float64), weight_only.GROUP, axis=1))[:, :k]
    x64 = x.astype(np.float64)
    exact, sizes = x64 @ matrix.T, library.sqrt((x64**2) @ (matrix**2).T)
    most = library.repeat(scales[rows].astype(np.float64), weight_only.GROUP, axis=1)[:, :k]
    # A partial sum is of the size of `sizes`; a term may be off by 2^-24 of the largest weight that there can be.
    raised = library.sqrt((x64**2) @ (most**2).T) * (16 if w.dtype == np.uint8 else 256)
    allowed = 4 * 2.0**-23 * (np.sqrt(k) * sizes + 17 * raised) + 1e-30
    if result.dtype == np.float16:
        allowed = 4 * 2.0**-11 * sizes + 2.0**-10 * abs(exact) + 1e-7
    return worst(abs(result[:, rows] - exact), allowed)


def matrix_in_half(torch: typing.Any, w: typing.Any, scales: typing.Any, k: int) -> typing.Any:
    """The weights as float16."""
    numbers = w
    if w.dtype == torch.uint8:
        numbers = torch.stack([w & 15, w >> 4], dim=-1).reshape(w.shape[0], -1).to(torch.int8) - 8
    matrix = torch.empty((w.shape[0], k), dtype=torch.float16, device=w.device)
    for first in range(0, w.shape[0], 1024):  # so that no whole matrix of float32 is needed
        some = slice(first, first + 1024)
        wide = numbers[some].float() * scales[some].repeat_interleave(weight_only.GROUP, dim=1)
        matrix[some] = wide[:, :k].half()
    return matrix


def in_half(torch: typing.Any, x: typing.Any, w: typing.Any, scales: typing.Any, out: typing.Any) -> typing.Any:
    """PyTorch's product with the same weights in float16. They are made at the first call, and kept with ``w``."""
    if not hasattr(w, "in_half"):
        w.in_half = matrix_in_half(torch, w, scales, x.shape[1])
    return torch.nn.functional.linear(x, w.in_half)


def of_numpy(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return x @ matrix.T


def host_args(x: typing.Any, w: typing.Any, scales: typing.Any) -> tuple:
    """x, and the weights as float32: NumPy has no product for fewer bits."""
    k = x.shape[1]
    numbers = weight_only.whole(to_host(w)).astype(np.float32)
    matrix = numbers * np.repeat(to_host(scales), weight_only.GROUP, axis=1)
    return to_host(x).astype(np.float32), np.ascontiguousarray(matrix[:, :k])


def _product(
    family: str, m: int, n: int, k: int, bits: int = 4, dtype: str = "float16", **more: typing.Any
) -> Workload:
    cost = weight_only.cost(m, n, k, bits, np.dtype(dtype).itemsize)
    more = {"rungs": weight_only.LADDER[-2:], "libraries": {"torch.linear": in_half}} | more
    return Workload(
        family=family,
        name=f"{m} x {k} to {n}",
        cost=cost,
        make=lambda seed: drawn(m, n, k, bits, dtype, seed),
        output=lambda: empty((m, n), np.float32),
        verify=verify,
        cache="cold" if cost.bytes > COLD else "warm",
        **more,
    )


def _square(side: int) -> Workload:
    return _product(
        "4 bits, square",
        *(1, side, side),
        sizes={"n": side},
        rungs=weight_only.LADDER,
        host={"numpy.matmul": of_numpy} if side <= 4096 else {},
        host_args=host_args,
        end_to_end=side <= 4096,
        quick=side in (512, 4096),
    )


FLOAT32 = (weight_only.vectorised,)  # the rungs behind it multiply by this one, too
WORKLOADS = [
    _product("4 bits", 1, *DESIGN, sizes={"k": DESIGN[1]}, rungs=weight_only.LADDER, design=True, quick=True),
    _product(
        "8 bits",
        1,
        *DESIGN,
        8,
        sizes={"k": DESIGN[1]},
        rungs=weight_only.LADDER[:-1],
        design=True,
        quick=True,
    ),
    _product(
        "4 bits, float32",
        1,
        *DESIGN,
        4,
        "float32",
        sizes={"k": DESIGN[1]},
        rungs=FLOAT32,
        libraries={},
    ),
    *map(_square, SIDES),
    *(_product("rows of x", m, *DESIGN, sizes={"m": m}, rungs=weight_only.LADDER[-1:]) for m in BATCHES),
    *(_product("other shapes", 1, n, k, sizes={"k": k, "n": n}) for n, k in OTHER),
]
