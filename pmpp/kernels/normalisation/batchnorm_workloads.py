"""What is measured of ``batchnorm``: training and inference, with and without ReLU, awkward shapes, and 16 bits."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.normalisation import batchnorm, moments
from pmpp.lab.measure.arrays import normal, with_options, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.vector import load128, store128

F32 = np.dtype(np.float32)
DESIGN = (256, 64, 112, 112)
SWEEP = [(images, 64, 112, 112) for images in (1, 4, 16, 64)]
ON_CPU = 4  # images, at most: NumPy gets these, too
# Odd planes, late layers of a ResNet, planes of nine and of one, few channels, few values.
OTHER = [
    *[(64, 64, 111, 111), (256, 512, 14, 14), (256, 2048, 7, 7), (32, 256, 56, 56), (256, 512, 3, 3), (32, 512, 7, 7)],
    *[(65536, 1024), (4096, 256), (128, 1000), (1_000_001, 5), (64, 2048, 1, 1), (1, 3, 1000, 1001), (64, 3, 224, 224)],
    (2, 2),
]
MOMENTUM, EPS = 0.1, 1e-5


def verifier(training: bool, relu: bool = False, dtype: np.dtype = F32) -> Callable[..., tuple[float, float]]:
    """Every element against float64, some channels at a time; the tolerance is that of `moments`.

    ``dtype``: that of the result, which may come as a float32 with the same numbers.
    """

    def verify(
        result: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, mean: typing.Any, var: typing.Any
    ) -> tuple[float, float]:
        if result.shape != x.shape:
            return float("inf"), 0.0
        step = max(1, 2**25 * x.shape[1] // x.size)
        arrays = result, x, weight, bias, mean, var
        more = training, relu, dtype
        return worst_of(_channels(slice(c, c + step), *arrays, *more) for c in range(0, x.shape[1], step))

    return verify


def _channels(part, result, x, weight, bias, mean, var, training, relu, dtype) -> tuple[float, float]:
    rows = x[:, part].swapaxes(0, 1)
    rows = rows.reshape(len(rows), -1).astype(np.float64)
    got = result[:, part].swapaxes(0, 1).reshape(rows.shape)
    weight, bias, mean, var = (array[part, None].astype(np.float64) for array in (weight, bias, mean, var))
    if training:
        allowed = moments.tolerance(rows, weight, bias, EPS)
        mean, var = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
    else:
        # Six roundings (var + eps, the root, the quotient, the difference, the product, the sum), each by at most 2^-24
        # of this size. 8 leaves room for terms of second order.
        allowed = 8 * 2.0**-24 * (abs(weight) * (abs(rows) + abs(mean)) / (var + EPS) ** 0.5 + abs(bias))
    expected = (rows - mean) / (var + EPS) ** 0.5 * weight + bias
    allowed = allowed + moments.once_more(abs(expected) + allowed, dtype)
    return worst(abs(got - expected.clip(0) if relu else got - expected), allowed)


def on_cpu(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *_: np.ndarray) -> np.ndarray:
    """Batch normalisation in training by NumPy on the CPU, in the dtype of ``x``. It keeps no running moments."""
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    result = x - x.mean(axis=axes, keepdims=True)
    var = np.square(result).mean(axis=axes, keepdims=True)
    result *= weight.reshape(shape) / np.sqrt(var + x.dtype.type(EPS))
    result += bias.reshape(shape)
    return result


def _make(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[int], tuple]:
    def make(seed: int) -> tuple:
        c = shape[1]
        running_var = 0.5 + np.random.default_rng(seed).random(c, dtype=np.float32)
        parameters = normal(c, seed + 1000), normal(c, seed + 2000), normal(c, seed + 3000)
        return normal(shape, seed, dtype), *parameters, device.to_device(running_var)

    return make


def _named(name: str, function: Callable) -> Callable:
    function.__name__ = name
    return function


def _torch(training: bool, relu: bool = False) -> dict[str, Callable]:
    def batch_norm(torch, x, weight, bias, mean, var, out):
        f = torch.nn.functional
        result = f.batch_norm(x, mean, var, weight, bias, training=training, momentum=MOMENTUM, eps=EPS)
        return f.relu(result, inplace=True) if relu else result

    return {"torch.relu(batch_norm)" if relu else "torch.batch_norm": batch_norm}


@cuda.jit
def relu_kernel(x):
    """ReLU in a launch of its own, to measure what fusing it saves."""
    i = 4 * cuda.grid(1)
    if i < x.size:
        a, b, c, d = load128(x, i)
        f0 = np.float32(0)
        store128(x, i, (a if a > f0 else f0, b if b > f0 else f0, c if c > f0 else f0, d if d > f0 else f0))


def _apart(training: bool) -> Callable:
    def apart(*args: typing.Any, out: typing.Any = None) -> typing.Any:
        result = batchnorm.vectorised(*args, out=out, training=training)
        relu_kernel[blocks(result.size, 1024), 256](result)
        return result

    return _named("relu apart", apart)


def _workload(
    shape: tuple[int, ...],
    training: bool,
    rungs: tuple,
    *,
    family: str,
    relu: bool = False,
    dtype: np.dtype = F32,
    **more: typing.Any,
) -> Workload:
    n, c, inner = *shape[:2], math.prod(shape[2:])
    return Workload(
        family=family,
        name="x".join(map(str, shape)),
        sizes={"n": n * c * inner, "images": n, "channels": c, "inner": inner},
        cost=batchnorm.cost(n, c, inner, training, dtype.itemsize),
        make=_make(shape, dtype),
        output=lambda: device.empty(shape, dtype),
        rungs=rungs,
        libraries=_torch(training, relu),
        verify=verifier(training, relu, dtype),
        design=shape == DESIGN,
        quick=shape in (DESIGN, OTHER[0]),
        **more,
    )


def in_training(shape: tuple[int, ...]) -> Workload:
    """Every rung in training; of few enough images also NumPy, and the last rung from host to host."""
    more = {"host": {"numpy": on_cpu}, "end_to_end": True, "state": 2} if shape[0] <= ON_CPU else {}
    return _workload(shape, True, _ladder(True), family="training", **more)


def _ladder(training: bool) -> tuple:
    return tuple(with_options(rung, training=training) for rung in batchnorm.LADDER)


def _fused(training: bool) -> tuple:
    return _named("relu inside", with_options(batchnorm.vectorised, training=training, relu=True)), _apart(training)


WORKLOADS = [
    *(in_training(shape) for shape in (*SWEEP, DESIGN)),
    *(_workload(shape, False, _ladder(False), family="inference") for shape in (*SWEEP, DESIGN)),
    *(
        _workload(DESIGN, training, _ladder(training)[-1:], family=f"{family}, {dtype}", dtype=dtype)
        for dtype in known(batchnorm.DTYPES[1:])
        for family, training in (("training", True), ("inference", False))
    ),
    _workload(DESIGN, True, _fused(True), family="training with ReLU", relu=True),
    _workload(DESIGN, False, _fused(False), family="inference with ReLU", relu=True),
    *(_workload(shape, True, _ladder(True)[-1:], family="training, other shapes") for shape in OTHER),
    *(_workload(shape, False, _ladder(False)[-1:], family="inference, other shapes") for shape in OTHER),
]
