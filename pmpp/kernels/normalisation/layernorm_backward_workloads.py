"""What is measured of ``layernorm_backward``: 2^26 elements in rows of every length, and shapes that suit nothing.

The moments of the forward pass are given, as in training. Verified is the gradient of the matrix.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.normalisation import gradients, layernorm, layernorm_backward
from pmpp.kernels.normalisation.layernorm_workloads import BATCHES, DESIGN, F32, in_dtype_of, parameter
from pmpp.kernels.normalisation.moments import once_more
from pmpp.lab.measure.arrays import chunks, normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

EPS = 1e-5
SWEEP = [(2**26 // columns, columns) for columns in (16, 64, 256, 1024, 4096, 16384)]
# Odd widths, very short rows, those of language models, few rows, a long row.
OTHER = [
    *[(65536, 1023), (16384, 4095), (1_000_003, 63), (16_777_216, 3), (4096, 17), (65536, 768), (131072, 512)],
    *[(8192, 4096), (8192, 8192), (2048, 5120), (128, 1000), (32, 50_000), (7, 7)],
]


def verify(
    result: typing.Any,
    dy: typing.Any,
    x: typing.Any,
    weight: typing.Any,
    mean: typing.Any,
    invstd: typing.Any,
    dtype: np.dtype = F32,
) -> tuple[float, float]:
    """Every element against float64; the tolerance is that of the room. ``dtype``: as in `layernorm_workloads`."""
    if result.shape != x.shape:
        return float("inf"), 0.0
    found = []
    for part in chunks(x.shape[0], max(1, 2**24 // x.shape[1])):
        expected = gradients.of_rows(dy[part], x[part], weight, EPS)[0]
        allowed = gradients.tolerances(dy[part], x[part], weight, EPS)[0]
        found.append(worst(abs(result[part] - expected), allowed + once_more(abs(expected) + allowed, dtype)))
    return worst_of(found)


def on_cpu(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, invstd: np.ndarray) -> np.ndarray:
    """The gradient of the matrix by NumPy on the CPU, in the dtype of ``x``."""
    normalised, given = (x - mean[:, None]) * invstd[:, None], dy * weight
    slope = (given * normalised).mean(axis=1, keepdims=True)
    return (given - given.mean(axis=1, keepdims=True) - normalised * slope) * invstd[:, None]


def _make(shape: tuple[int, int], dtype: np.dtype) -> typing.Callable[[int], tuple]:
    def make(seed: int) -> tuple:
        x, weight = normal(shape, seed, dtype), parameter(shape[1], seed + 1000, dtype)
        _, mean, invstd = layernorm.vectorised(x, weight, weight, EPS, return_moments=True)
        return normal(shape, seed + 2000, dtype), x, weight, mean, invstd

    return make


def _torch(torch, dy, x, weight, mean, invstd, out):
    column, weight = (x.shape[0], 1), in_dtype_of(weight, x.dtype)
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[1]], mean.view(column), invstd.view(column), weight, torch.zeros_like(weight), [True] * 3
    )[0]


def _given(rung: typing.Any) -> typing.Callable:
    def call(dy, x, weight, mean, invstd, *, out=None):
        return rung(dy, x, weight, eps=EPS, mean=mean, invstd=invstd, out=out)

    call.__name__ = rung.name
    return call


def _workload(shape: tuple[int, int], rungs: tuple, family: str, dtype: np.dtype = F32, **more: typing.Any) -> Workload:
    rows, columns = shape
    return Workload(
        family=family,
        name=f"{rows}x{columns}",
        sizes={"n": rows * columns, "rows": rows, "columns": columns},
        cost=layernorm_backward.cost(rows, columns, dtype.itemsize),
        make=_make(shape, dtype),
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(map(_given, rungs)),
        libraries={"torch.native_layer_norm_backward": _torch},
        verify=lambda *arrays: verify(*arrays, dtype=dtype),
        design=shape == DESIGN and family.startswith("gradients"),
        quick=shape in (DESIGN, OTHER[0]),
        **more,
    )


WORKLOADS = [
    *(_workload(shape, layernorm_backward.LADDER, "gradients") for shape in SWEEP),
    *(
        _workload(DESIGN, layernorm_backward.LADDER[-1:], f"gradients, {dtype}", dtype)
        for dtype in known(layernorm.DTYPES[1:])
    ),
    *(
        _workload((rows, DESIGN[1]), layernorm_backward.LADDER[-1:], "batches", host={"numpy": on_cpu}, end_to_end=True)
        for rows in BATCHES
    ),
    *(_workload(shape, layernorm_backward.LADDER[-1:], "other shapes") for shape in OTHER),
]
