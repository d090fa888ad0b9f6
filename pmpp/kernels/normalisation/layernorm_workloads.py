"""What is measured of ``layernorm``: 2^26 elements in rows of every length, odd shapes, and numbers of 16 bits."""

from __future__ import annotations

import functools
import typing
from dataclasses import replace

import numpy as np

from pmpp.kernels.normalisation import layernorm
from pmpp.kernels.normalisation.moments import once_more
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_device, to_host
from pmpp.runtime.dtypes import known

F32 = np.dtype(np.float32)
DESIGN = (65536, 1024)
SWEEP = [(2**26 // columns, columns) for columns in (16, 64, 256, 1024, 4096, 16384, 65536)]
BATCHES = [1, 16, 256, 4096]  # numbers of rows, of 1024 elements each
# Odd widths, one row, very long rows, very short rows, few rows.
OTHER = [
    *[(65536, 1023), (16384, 4095), (1_000_003, 63), (16_777_216, 3), (4096, 17), (65536, 768), (131072, 512)],
    *[(1, 64), (128, 1000), (1, 2**20), (32, 50_000), (8192, 32768), (1024, 262_144), (7, 7)],
]


def verify(
    result: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, dtype: np.dtype = F32
) -> tuple[float, float]:
    """Every element against float64; the tolerance is that of `pmpp.kernels.normalisation.moments`.

    ``dtype``: that of the result, which may come as a float32 with the same numbers.
    """
    if result.shape != x.shape:
        return float("inf"), 0.0
    found = []
    for part in chunks(x.shape[0], max(1, 2**25 // x.shape[1])):
        rows = x[part].astype(np.float64)
        mean, var = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
        expected = (rows - mean) / (var + 1e-5) ** 0.5 * weight + bias
        allowed = layernorm.tolerance(rows, weight, bias)
        found.append(worst(abs(result[part] - expected), allowed + once_more(abs(expected) + allowed, dtype)))
    return worst_of(found)


def on_cpu(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Layer normalisation by NumPy on the CPU, in the dtype of ``x``."""
    result = x - x.mean(axis=1, keepdims=True)
    var = np.square(result).mean(axis=1, keepdims=True)
    result /= np.sqrt(var + x.dtype.type(1e-5))
    result *= weight
    result += bias
    return result


def parameter(columns: int, seed: int, dtype: np.dtype) -> typing.Any:
    """A float32 array of numbers that the dtype holds: PyTorch gets them in that dtype, and may not lose by it."""
    return to_device(to_host(normal(columns, seed)).astype(dtype).astype(F32))


@functools.lru_cache(16)
def in_dtype_of(parameter: typing.Any, x_dtype: typing.Any) -> typing.Any:
    """A tensor in the dtype that PyTorch asks for: that of x. It is made once, outside of what is timed."""
    return parameter.to(x_dtype)


def _torch(torch: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, out: typing.Any) -> typing.Any:
    weight, bias = in_dtype_of(weight, x.dtype), in_dtype_of(bias, x.dtype)
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def _workload(shape: tuple[int, int], rungs: tuple, family: str, dtype: np.dtype = F32, **more: typing.Any) -> Workload:
    rows, columns = shape
    return Workload(
        family=family,
        name=f"{rows}x{columns}",
        sizes={"n": rows * columns, "rows": rows, "columns": columns},
        cost=layernorm.cost(rows, columns, dtype.itemsize),
        make=lambda seed: (
            normal(shape, seed, dtype),
            parameter(columns, seed + 1000, dtype),
            parameter(columns, seed + 2000, dtype),
        ),
        output=lambda: empty(shape, dtype),
        rungs=rungs,
        libraries={"torch.layer_norm": _torch},
        verify=lambda *arrays: verify(*arrays, dtype=dtype),
        design=shape == DESIGN,
        quick=shape in (DESIGN, OTHER[0]),
        **more,
    )


def _batch(rows: int) -> Workload:
    """Rows by their number, beside NumPy, and from host to host."""
    more = {"host": {"numpy": on_cpu}, "end_to_end": True}
    workload = _workload((rows, DESIGN[1]), layernorm.LADDER[-1:], "batches", **more)
    return replace(workload, sizes={"rows": rows, "columns": DESIGN[1]})


WORKLOADS = [
    *(_workload(shape, layernorm.LADDER, "layernorm") for shape in SWEEP),
    *(_workload(DESIGN, layernorm.LADDER[-1:], f"layernorm, {dtype}", dtype) for dtype in known(layernorm.DTYPES[1:])),
    *(_batch(rows) for rows in BATCHES),
    *(_workload(shape, layernorm.LADDER[-1:], "other shapes") for shape in OTHER),
]
