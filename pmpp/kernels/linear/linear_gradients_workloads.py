"""What is measured of ``linear_gradients``: each gradient by itself, and long sums."""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.linear import linear_gradients
from pmpp.kernels.linear.workloads import LAYERS, SMALL
from pmpp.lab.measure.arrays import normal, with_options, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty

DESIGN = (32768, 512, 512)  # rows, features, outputs: a long sum for a small matrix
SHAPES = LAYERS | {"long batch": DESIGN}
LENGTHS = [2**k for k in range(5, 17)]  # rows of a layer of 512 x 512: how long the sums of dW are

LIBRARIES = {
    "x": {"torch.mm": lambda torch, dy, x, weight, out: torch.mm(dy, weight, out=out)},
    "weight": {"torch.mm": lambda torch, dy, x, weight, out: torch.mm(dy.t(), x, out=out)},
    "bias": {"torch.sum": lambda torch, dy, x, weight, out: torch.sum(dy, 0, out=out)},
}


def expected_of(dy: typing.Any, x: typing.Any, weight: typing.Any, of: str) -> tuple[typing.Any, typing.Any]:
    """The gradient in float64, and the sums of the absolute values of its terms."""
    dy, x, weight = (one.astype(np.float64) for one in (dy, x, weight))
    if of == "x":
        return dy @ weight, abs(dy) @ abs(weight)
    return (dy.T @ x, abs(dy).T @ abs(x)) if of == "weight" else (dy.sum(axis=0), abs(dy).sum(axis=0))


def verify(result: typing.Any, dy: typing.Any, x: typing.Any, weight: typing.Any, *, of: str) -> tuple[float, float]:
    """Every element against float64; for sums of n terms |error| <= 2 sqrt(n) eps sum |terms|, as for ``linear``."""
    expected, terms = expected_of(dy, x, weight, of)
    if result.shape != expected.shape:
        return float("inf"), 0.0
    length = dy.shape[1] if of == "x" else dy.shape[0]
    return worst(abs(result - expected), 2 * math.sqrt(length + 1) * float(np.finfo(np.float32).eps) * terms)


def _made(shape: tuple[int, int, int]) -> typing.Any:
    rows, features, outputs = shape
    return lambda seed: (
        normal((rows, outputs), seed),
        normal((rows, features), seed + 1000),
        normal((outputs, features), seed + 2000),
    )


def _workload(name: str, shape: tuple[int, int, int], of: str, family: str, rungs: tuple) -> Workload:
    rows, features, outputs = shape
    result = {"x": (rows, features), "weight": (outputs, features), "bias": (outputs,)}[of]
    return Workload(
        family=family,
        name=name,
        sizes={"rows": rows, "features": features, "outputs": outputs},
        cost=linear_gradients.cost(*shape, of),
        make=_made(shape),
        output=lambda: empty(result, np.float32),
        rungs=[with_options(rung, of) for rung in rungs],
        libraries=LIBRARIES[of],
        verify=functools.partial(verify, of=of),
        design=shape == DESIGN and of == "weight" and family == "weight",
        cache="warm" if math.prod(shape) < 2**30 else "cold",
        quick=shape == DESIGN and of == "weight",
    )


WORKLOADS = [
    *(
        _workload(name, shape, of, of, linear_gradients.LADDER)
        for of in ("weight", "x", "bias")
        for name, shape in SHAPES.items()
    ),
    *(_workload(f"{rows} rows", (rows, 512, 512), "weight", "length", linear_gradients.LADDER[1:]) for rows in LENGTHS),
    *(
        _workload("x".join(map(str, SMALL)), SMALL, of, "other shapes", linear_gradients.LADDER[-1:])
        for of in ("weight",)
    ),
]
