"""What is measured of ``clusters``: layer normalisation of 2^28 elements in rows of every length, and few long rows."""

from __future__ import annotations

import typing
from dataclasses import replace

import numpy as np

from pmpp.kernels.clusters import ladder as clusters
from pmpp.kernels.normalisation.layernorm_workloads import in_dtype_of, on_cpu, parameter, verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty
from pmpp.runtime.dtypes import known

F32 = np.dtype(np.float32)
ALL = 2**28  # elements
SWEEP = [2**k for k in (15, 16, 17, 18, 19)]  # columns
DESIGN = 2**17  # the middle of the sweep
FEW = [(1, 2**17), (8, 2**18), (32, 50_000), (128, 2**17)]


def _torch(torch: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, out: typing.Any) -> typing.Any:
    weight, bias = in_dtype_of(weight, x.dtype), in_dtype_of(bias, x.dtype)
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def _workload(
    shape: tuple[int, int], family: str, dtype: np.dtype = F32, rungs: tuple = clusters.LADDER, *, design: bool = False
) -> Workload:
    rows, columns = shape
    return Workload(
        family=family,
        name=f"{rows}x{columns}",
        sizes={"n": rows * columns, "rows": rows, "columns": columns},
        cost=clusters.cost(rows, columns, dtype.itemsize),
        make=lambda seed: (
            normal(shape, seed, dtype),
            parameter(columns, seed + 1000, dtype),
            parameter(columns, seed + 2000, dtype),
        ),
        output=lambda: empty(shape, dtype),
        rungs=rungs,
        libraries={"torch.layer_norm": _torch},
        verify=lambda *arrays: verify(*arrays, dtype=dtype),
        design=design,
        quick=design,
    )


def _on_host(rows: int) -> Workload:
    """The same rows beside NumPy, and from host to host."""
    workload = _workload((rows, DESIGN), "beside NumPy", rungs=clusters.LADDER[-1:])
    return replace(workload, sizes={"rows": rows, "columns": DESIGN}, host={"numpy": on_cpu}, end_to_end=True)


WORKLOADS = [
    *(_workload((ALL // columns, columns), "rows", design=columns == DESIGN) for columns in SWEEP),
    *(_workload((ALL // DESIGN, DESIGN), f"rows, {dtype}", dtype) for dtype in known(clusters.DTYPES[1:])),
    *(_workload(shape, "few rows") for shape in FEW),
    *(_on_host(rows) for rows in (1, 16, 128)),
]
