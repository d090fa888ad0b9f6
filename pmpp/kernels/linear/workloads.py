"""What is measured of ``linear``: layers of a small network, of a perceptron and of a language model, by shape."""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.linear import ladder as linear
from pmpp.lab.measure.arrays import normal, with_options, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty, to_host

DESIGN = (256, 400, 120)  # rows, features, outputs: the first linear layer of LeNet-5
LENET = {"LeNet-5, first": DESIGN, "LeNet-5, second": (256, 120, 84), "LeNet-5, third": (256, 84, 10)}
LAYERS = LENET | {
    "head": (128, 512, 10),
    "perceptron": (512, 1024, 1024),
    "one row": (1, 4096, 4096),
    "16 rows": (16, 4096, 11008),
    "square": (4096, 4096, 4096),
}
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096]  # rows of a layer of WIDTH x WIDTH
WIDTH = 1024
ODD = [(255, 401, 121), (3, 4095, 4097)]
SMALL = (3, 20, 6)  # for the tests of this file: large enough for a mistake


def verify(result: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any) -> tuple[float, float]:
    """Every element of relu(x Wᵀ + b) against float64.

    An element is a sum of ``in`` products. Its rounding error grows like sqrt(in) (Higham and Mary 2019): with four
    times the expected size allowed, |error| <= 2 sqrt(in) eps (sum |x w| + |b|).
    """
    if result.shape != (x.shape[0], weight.shape[0]):
        return float("inf"), 0.0
    x64, weight64 = x.astype(np.float64), weight.astype(np.float64)
    expected = x64 @ weight64.T + bias
    expected = expected * (expected > 0)
    growth = 2 * math.sqrt(x.shape[1] + 1) * float(np.finfo(np.float32).eps)
    return worst(abs(result - expected), growth * (abs(x64) @ abs(weight64).T + abs(bias)))


LIBRARIES = {
    # Two kernels: cuBLAS adds the bias, and the ReLU works in place.
    "torch.addmm+relu_": lambda torch, x, weight, bias, out: torch.addmm(bias, x, weight.t(), out=out).relu_(),
}


def _workload(name: str, shape: tuple[int, int, int], family: str, rungs: tuple, **more: typing.Any) -> Workload:
    rows, features, outputs = shape
    return Workload(
        family=family,
        name=name,
        sizes={"rows": rows, "features": features, "outputs": outputs},
        cost=linear.cost(*shape),
        make=lambda seed: (
            normal((rows, features), seed),
            normal((outputs, features), seed + 1000),
            normal(outputs, seed + 2000),
        ),
        output=lambda: empty((rows, outputs), np.float32),
        rungs=[with_options(rung, "relu") for rung in rungs],
        libraries=LIBRARIES,
        verify=verify,
        design=shape == DESIGN,
        quick=shape in (DESIGN, LAYERS["one row"]),
        **more,
    )


def on_cpu(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The layer by NumPy on the CPU."""
    y = x @ weight.T + bias
    return np.maximum(y, 0, out=y)


def _batch(rows: int) -> Workload:
    """Rows by their number, beside NumPy and from host to host."""
    return _workload(
        f"{rows} rows",
        (rows, WIDTH, WIDTH),
        "batches",
        linear.LADDER,
        cache="warm",
        host={"numpy": lambda x, weight, bias, out: on_cpu(x, weight, bias)},
        host_args=lambda x, weight, bias: (to_host(x), to_host(weight), to_host(bias), None),
        end_to_end=True,
    )


WORKLOADS = [
    # A small layer's operands come from the layer before, and lie in the cache.
    *(
        _workload(name, shape, "linear", linear.LADDER, cache="warm" if math.prod(shape) < 2**30 else "cold")
        for name, shape in LAYERS.items()
    ),
    *(_batch(rows) for rows in BATCHES),
    *(_workload("x".join(map(str, shape)), shape, "other shapes", linear.LADDER[-1:]) for shape in (*ODD, SMALL)),
]
