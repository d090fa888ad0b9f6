"""What is measured of ``transpose``: square matrices of float32, sizes that suit no tile, float64, and a copy."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import vector_add
from pmpp.kernels.transpose import ladder as transpose
from pmpp.kernels.vector_add.workloads import verify_copy
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost

DESIGN = 16384
SWEEP = [2**k for k in range(8, 15)]
ODD = [4095, 16383]  # no multiple of a vector, nor of a tile
IN_16_BITS = [64, 1024, 4095, 4096, DESIGN]
COLD = 8192  # from here on nothing stays in a cache from one launch to the next


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Every element must be the very same: nothing is computed."""
    if result.shape != x.shape[::-1]:
        return float("inf"), 0.0
    return worst_of(worst(abs(result[:, rows] - x[rows].T), 0 * x[rows].T) for rows in chunks(x.shape[0], 2048))


LIBRARIES = {
    "torch.contiguous": lambda torch, x, out: x.t().contiguous(),
    "torch.copy_": lambda torch, x, out: out.copy_(x.t()),
    "cupy.ascontiguousarray": lambda cupy, x, out: cupy.ascontiguousarray(x.T),
}


def _in_16_bits(n: int, dtype: np.dtype) -> Workload:
    return Workload(
        family=f"odd sizes, {dtype}" if n in ODD else f"transpose, {dtype}",
        name=str(n),
        sizes={"n": n},
        cost=transpose.cost(n, n, 2),
        make=lambda seed: (normal((n, n), seed, dtype),),
        output=lambda: empty((n, n), dtype),
        rungs=transpose.LADDER[-1:],
        libraries={name: call for name, call in LIBRARIES.items() if "torch" in name or dtype == np.float16},
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD or n in ODD else "warm",
        quick=n == DESIGN,
    )


def _transpose(n: int) -> Workload:
    return Workload(
        family="odd sizes" if n in ODD else "transpose",
        name=str(n),
        sizes={"n": n},
        cost=transpose.cost(n, n),
        make=lambda seed: (normal((n, n), seed),),
        output=lambda: empty((n, n), np.float32),
        rungs=transpose.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD or n in ODD else "warm",
        host={"numpy.copyto": lambda x, out: (np.copyto(out, x.T), out)[1]} if n <= 4096 and n not in ODD else {},
        host_args=lambda x: (to_host(x), np.zeros((n, n), np.float32)),
        end_to_end=n not in ODD,
        quick=n in (256, 1024, 4095, DESIGN),
    )


def _copy(n: int) -> Workload:
    """The yardstick: as many bytes, in the order in which they lie."""

    def memcpy(cuda: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        out.copy_to_device(x)
        return out

    return Workload(
        family="copy",
        name=str(n),
        sizes={"n": n},
        cost=Cost(flops=0, bytes=8 * n * n),
        make=lambda seed: (normal(n * n, seed),),
        output=lambda: empty(n * n, np.float32),
        rungs=(vector_add.copy,),
        libraries={"cuda.memcpy": memcpy},
        verify=verify_copy,
        cache="cold",
        quick=True,
    )


WORKLOADS = [
    *(_transpose(n) for n in (*SWEEP, *ODD)),
    *(_in_16_bits(n, dtype) for dtype in known(transpose.SHORT) for n in IN_16_BITS),
    _copy(DESIGN),
]
