"""What is measured of ``warpgroups``: products of float16 and bfloat16, square ones and others, on a Hopper GPU.

The roof of the figures is that of float32 multiply-adds, which tensor cores pass by far. What counts is the comparison
with cuBLAS, which has these instructions as well, and with the best product by mma.sync.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.matmul import tensor_cores, warpgroups
from pmpp.kernels.matmul.tensor_cores_workloads import LIBRARIES, halves, probe_of, stored_as_float32, verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host
from pmpp.runtime.dtypes import BFLOAT16

DESIGN = 4096
SWEEP = [512, 1024, 2048, 4096, 8192]
ODD = [4095, 4104]  # rows that do not begin at multiples of 16 bytes; no multiple of a tile
SHAPES = [(8192, 8192, 256), (256, 8192, 4096), (8192, 256, 4096), (1024, 4096, 8192)]
COLD = 4000


def _workload(family: str, name: str, m: int, n: int, k: int, sizes: dict, **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=warpgroups.cost(m, n, k),
        make=lambda seed: (halves((m, k), seed), halves((k, n), seed + 1000)),
        output=lambda: empty((m, n), np.float32),
        rungs=(tensor_cores.wide, *warpgroups.LADDER),
        libraries=LIBRARIES,
        verify=verify,
        **more,
    )


def _product(n: int) -> Workload:
    return _workload(
        "odd sizes" if n in ODD else "warpgroups",
        str(n),
        *(n, n, n),
        {"n": n},
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.matmul": lambda a, b, out: np.matmul(a, b, out=out)} if n <= DESIGN and n in SWEEP else {},
        host_args=lambda a, b: (to_host(a).astype("f4"), to_host(b).astype("f4"), np.zeros((n, n), np.float32)),
        quick=n in (1024, DESIGN),
    )


def _shape(m: int, n: int, k: int) -> Workload:
    return _workload("shapes", f"{m} x {k} x {n}", m, n, k, {"m": m, "n": n, "k": k})


def _of_bfloat16(n: int) -> Workload:
    """The last rung with the other dtype, and cuBLAS with a result in float32, as the rung has it."""
    return Workload(
        family="bfloat16",
        name=f"{n}, bfloat16",
        sizes={"n": n},
        cost=warpgroups.cost(n, n, n),
        make=lambda seed: (normal((n, n), seed, BFLOAT16), normal((n, n), seed + 1000, BFLOAT16)),
        output=lambda: empty((n, n), np.float32),
        rungs=warpgroups.LADDER[-1:],
        libraries={"torch.mm to float32": stored_as_float32},
        verify=verify,
        cache="cold" if n >= COLD else "warm",
    )


WORKLOADS = [*(_product(n) for n in (*SWEEP, *ODD)), *(_shape(*shape) for shape in SHAPES)]
WORKLOADS += [_of_bfloat16(n) for n in (1024, 4096, 8192) if BFLOAT16 is not None]
