"""What is measured of ``spmm``: Poisson's matrix and a power law, with 2^20 rows each, times 8 to 128 columns.

The libraries call cuSPARSE. PyTorch gives it the dense matrix row by row, as it lies. CuPy wants it column by column: a
copy in that order is made once, and not in each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.kernels.sparse import spmm as room
from pmpp.kernels.sparse import workloads as vectors
from pmpp.lab.measure.arrays import normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload

COLUMNS = [8, 32, 128]  # of the dense matrix
SIDE = 1024  # of the grid
ROWS = 2**20  # of the power law


def _with_matrix(make: Callable[[int], tuple], k: int, seed: int) -> tuple:
    values, columns, starts, x = make(seed)
    return values, columns, starts, normal((x.size, k), seed + 2000)


def verify(result: Any, values: Any, columns: Any, starts: Any, b: Any) -> tuple:
    """Error and tolerance of the worst element: each column of the result as a product with a vector."""
    found = view(result)
    pairs = (
        vectors.verify(xp().ascontiguousarray(found[:, c]), values, columns, starts, xp().ascontiguousarray(b[:, c]))
        for c in {0, 1, found.shape[1] // 2, found.shape[1] - 1}
    )
    return worst_of([*pairs, _all_columns(found, values, columns, starts, b)])


def _all_columns(found: Any, values: Any, columns: Any, starts: Any, b: Any) -> tuple:
    """The sum of each row of the result is the product with the vector of the sums of ``b``'s rows."""
    k = b.shape[1]
    sums, largest = b.sum(axis=1, dtype=np.float64), xp().abs(b).sum(axis=1, dtype=np.float64)

    def by_row(each: Any) -> Any:
        before = xp().concatenate([xp().zeros(1), xp().cumsum(each)])
        return before[starts[1:]] - before[starts[:-1]]

    lengths = (starts[1:] - starts[:-1]).astype(np.float64)
    terms = xp().abs(values).astype(np.float64) * largest[columns]
    tolerance = (lengths + 1) * (np.finfo(np.float32).eps / 2 * by_row(terms) + k * 2.0**-126)
    tolerance = tolerance + 2.0**-50 * float(terms.sum())
    error = found.sum(axis=1, dtype=np.float64) - by_row(values.astype(np.float64) * sums[columns])
    return worst(xp().abs(error), tolerance)


def _torch(torch: Any, values: Any, columns: Any, starts: Any, b: Any) -> Any:
    return torch.sparse.mm(vectors.torch_matrix(torch, values, columns, starts, b.shape[0]), b)


def _cupy(cupy: Any, values: Any, columns: Any, starts: Any, b: Any) -> Any:
    matrix = vectors.cupy_matrix(values, columns, starts, b.shape[0])
    return matrix @ vectors.once("cupy, by columns", lambda: cupy.asfortranarray(b), b)


def _scipy(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, b: np.ndarray) -> np.ndarray:
    from scipy import sparse

    return sparse.csr_array((values, columns, starts), shape=(starts.size - 1, b.shape[0])) @ b


def _workload(family: str, of: Workload, k: int) -> Workload:
    rows, stored = of.sizes["rows"], of.sizes["stored"]
    cost = room.cost(rows, rows, stored, k)
    return Workload(
        family=family,
        name=f"{of.name}, {k} columns",
        sizes={"k": k, "rows": rows, "stored": stored},
        cost=cost,
        make=functools.partial(_with_matrix, of.make, k),
        output=None,
        rungs=room.LADDER,
        libraries={"torch.sparse.mm": _torch, "cupy.csr_matrix": _cupy},
        verify=verify,
        design=k == 32,
        cache="cold",
        host={"scipy.csr_array": _scipy} if k == 8 else {},
        end_to_end=False,
        quick=k == 32,
    )


_GRID, _POWER = vectors.grid(SIDE), vectors.power(ROWS)
WORKLOADS = [_workload("poisson", _GRID, k) for k in COLUMNS] + [_workload("power law", _POWER, k) for k in COLUMNS]
