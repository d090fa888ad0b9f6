"""What is measured of ``sparsity``: square products, and shallow ones, in which memory is the bound.

The libraries are cuBLAS by way of PyTorch, which multiplies the same matrix with its zeros, and PyTorch's own product
with 2:4 sparsity. Both store float16. FLOP/s are those of the numbers that are stored, for all: half of a dense
product's.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.sparsity import compressed, ladder
from pmpp.lab.measure.arrays import normal, on_device, torch_tensor, view, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host

DESIGN = 4096
SWEEP = [256, 512, 1024, 2048, 4096, 8192]
LONG, DEEP, COLUMNS = 8192, 28672, [1, 2, 4, 8, 16, 32, 64]  # M and K of a layer of a large model; few columns of x
COLD = 4000
ROWS = 512  # of a large product that are compared in float64


def halves(shape: tuple[int, int], seed: int) -> typing.Any:
    """A device array of normally distributed float16."""
    return on_device(view(normal(shape, seed)).astype(np.float16))


def made(m: int, n: int, k: int, seed: int) -> tuple[typing.Any, typing.Any, typing.Any]:
    """What is stored of a random matrix of which half was pruned, and x."""
    return *compressed.prune(halves((m, k), seed)), halves((k, n), seed + 1000)


def with_zeros(values: typing.Any, metadata: typing.Any, k: int) -> typing.Any:
    """The dense matrix, as an array of ``xp()``."""
    return view(compressed.decompress(values, metadata, k))


def verify(result: typing.Any, values: typing.Any, metadata: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Against float64: every element, or for large products 512 rows that are drawn anew each time.

    As for products without zeros (`pmpp.kernels.matmul.tensor_cores_workloads`): four times the expected size of an
    error that grows like sqrt(k) is allowed. A library rounds to float16 besides.
    """
    m, (k, n) = values.shape[0], x.shape
    if result.shape != (m, n):
        return float("inf"), 0.0
    rows = slice(None)
    if m > 2 * ROWS:
        rows = xp().asarray(np.unique(np.r_[0, m - 1, np.random.default_rng().integers(0, m, ROWS)]))
    w64, x64 = with_zeros(values, metadata, k)[rows].astype(np.float64), x.astype(np.float64)
    exact = w64 @ x64
    allowed = 4 * math.sqrt(k + 16) * float(np.finfo(np.float32).eps) * (abs(w64) @ abs(x64))
    if result.dtype == np.float16:
        allowed = allowed + abs(exact) * float(np.finfo(np.float16).eps)
    return worst(abs(result[rows] - exact), allowed)


def kept_with(torch: typing.Any, values: typing.Any, metadata: typing.Any, x: typing.Any) -> typing.Any:
    """The dense matrix as a tensor. It is made at the first call, and kept with ``values``."""
    if not hasattr(values, "with_zeros"):
        words = view(metadata.view(torch.int32)).view(np.uint32)
        values.with_zeros = torch_tensor(torch, compressed.decompress(view(values), words, x.shape[0]))
    return values.with_zeros


def dense(torch: typing.Any, values: typing.Any, metadata: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
    """cuBLAS, which multiplies the zeros, too."""
    return torch.mm(kept_with(torch, values, metadata, x), x)


def semi_structured(
    torch: typing.Any, values: typing.Any, metadata: typing.Any, x: typing.Any, out: typing.Any
) -> typing.Any:
    """PyTorch's product with 2:4 sparsity, by whichever of its libraries it chooses."""
    if not hasattr(values, "semi_structured"):
        values.semi_structured = torch.sparse.to_sparse_semi_structured(kept_with(torch, values, metadata, x))
    return torch.mm(values.semi_structured, x)


LIBRARIES = {"torch.mm of the dense matrix": dense, "torch.mm with 2:4 sparsity": semi_structured}


def host_args(values: typing.Any, metadata: typing.Any, x: typing.Any) -> tuple:
    """The dense matrix and x as float32: NumPy knows no other."""
    w = compressed.decompress(values, metadata, x.shape[0])
    return to_host(w).astype(np.float32), to_host(x).astype(np.float32)


def _workload(
    family: str, m: int, n: int, k: int, name: str, sizes: dict, rungs: tuple, **more: typing.Any
) -> Workload:
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=ladder.cost(m, n, k),
        make=lambda seed: made(m, n, k, seed),
        output=lambda: empty((m, n), np.float32),
        rungs=rungs,
        libraries=LIBRARIES,
        verify=verify,
        **more,
    )


def _square(n: int) -> Workload:
    return _workload(
        "sparsity",
        *(n, n, n),
        str(n),
        {"n": n},
        ladder.LADDER if n <= DESIGN else ladder.LADDER[2:],
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.matmul": lambda w, x: w @ x} if n <= DESIGN else {},
        host_args=host_args,
        quick=n in (256, DESIGN),
    )


def _few(n: int) -> Workload:
    """A layer of a large model with few columns of x: what is stored of w is most of the bytes."""
    return _workload("few columns", LONG, n, DEEP, f"{n} columns", {"n": n}, (ladder.shared_k, ladder.overlapped))


WORKLOADS = [*map(_square, SWEEP), *map(_few, COLUMNS)]
