"""What is measured of ``over_axes``: rows and columns, short and long ones, several axes, and other operators."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.reduction import over_axes
from pmpp.lab.measure.arrays import chunks, normal, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.dtypes import known, rounding

F32 = np.dtype(np.float32)
MAPS = (256, 64, 112, 112)  # feature maps of a network
DESIGN = [  # a family, an operator, a shape, axes
    ("rows", "sum", (65536, 1024), 1),
    ("columns", "sum", (65536, 1024), 0),
    ("channels", "sum", MAPS, (0, 2, 3)),
    ("short rows", "sum", (2**24, 7), 1),
    ("narrow columns", "sum", (2**22, 3), 0),
]
OTHERS = [
    ("mean", (64, 1000, 1024), 1),
    ("mean", (8192, 20000), 1),
    ("max", (65535, 1001), 1),
    ("max", (65536, 1000), 0),
    ("max", (2**25, 4), 1),
    ("max", (2, 2**25), 1),
    ("argmax", (65536, 1024), 1),
    ("argmax", (65536, 1024), 0),
    ("var", (65536, 1024), 1),
    ("var", (65536, 1024), 0),
    ("any", (65536, 1024), 1),
]
SWEEP = [2**k for k in range(2, 23, 4)]  # elements of a row, of 2^26 in all
MANY = tuple(rung for rung in over_axes.LADDER if rung is not over_axes.thread_per_result)
FEW = MANY[1:]  # three threads that walk along columns of four million elements take seconds
EXACT = ("max", "min", "any", "all", "count_nonzero", "argmax", "argmin")


def verify(
    result: typing.Any, x: typing.Any, axis: typing.Any, op: str, dtype: typing.Any = np.float32
) -> tuple[float, float]:
    """Every result: exactly where there is nothing to round, else against float64.

    The bound of `over_axes.error_bound` grows with n: there are n - 1 additions, and each rounds by half an ulp at
    most. Roundings of both signs add up to the root of n of them. Of millions of sums the worst is further out, at four
    times that: so 4 n^(1/2) roundings of the sum of the sizes are allowed, and never more than n - 1. A mean is rounded
    once more, and a step of a variance four times; a result of 16 bits, ``dtype``, once more. It does not see one lost
    term of a long sum; the tests of the room do, on whole numbers.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    if op in EXACT:
        expected = getattr(xp(), op)(x, axis=axis)
        wrong = (result != expected) if result.shape == expected.shape else xp().ones(1)
        return float(wrong.sum()), 0.0
    total, size, square = _sums(x, axes)
    if result.shape != total.shape:
        return float("inf"), 0.0
    n = x.size // max(total.size, 1)
    roundings = min(n - 1, 4 * math.sqrt(n))
    if op == "sum":
        allowed = 2.0**-24 * roundings * size
        if np.dtype(dtype).itemsize == 2:
            allowed = allowed + rounding(abs(total) + allowed, dtype)
        return worst(abs(result - total), allowed)
    if op == "mean":
        return worst(abs(result - total / n), 2.0**-24 * (roundings + 1) * size / n)
    return worst(abs(result - (square / n - (total / n) ** 2)), 2.0**-24 * 4 * (roundings + 1) * square / n)


def _sums(x: typing.Any, axes: tuple[int, ...]) -> list[typing.Any]:
    """Of the elements, of their sizes and of their squares, in float64, a part of the first dimension at a time."""
    parts = list(chunks(x.shape[0], max(1, 2**25 // max(1, math.prod(x.shape[1:])))))
    wide = (x[part].astype(np.float64) for part in parts)
    found = [[each.sum(axis=axes) for each in (part, abs(part), part * part)] for part in wide]
    if 0 in axes:
        return [sum(column) for column in zip(*found, strict=True)]
    return [xp().concatenate(column) for column in zip(*found, strict=True)]


def along(rung: typing.Any, axis: typing.Any, op: str) -> Callable:
    """The rung as a contender of its name that is called with the array alone."""

    def call(x: typing.Any) -> typing.Any:
        return rung(x, axis, op)

    call.__name__ = rung.name
    return call


def libraries(axis: typing.Any, op: str) -> dict[str, Callable]:
    """PyTorch's and CuPy's functions of the same values."""
    theirs = {"max": "amax", "min": "amin"}.get(op, op)
    more = {"unbiased": False} if op == "var" else {}
    return {
        f"torch.{theirs}": lambda torch, x: getattr(torch, theirs)(x, dim=axis, **more),
        f"cupy.{op}": lambda cupy, x: getattr(cupy, op)(x, axis=axis),
    }


def _workload(
    family: str, op: str, shape: tuple, axis: typing.Any, rungs: tuple, dtype: typing.Any = F32, **more: typing.Any
) -> Workload:
    axes = axis if isinstance(axis, tuple) else (axis,)
    results = math.prod(extent for d, extent in enumerate(shape) if d not in axes)
    named = "x".join(map(str, shape))
    return Workload(
        family=family,
        name=f"{op} {named} over {', '.join(map(str, axes))}",
        sizes={"n": math.prod(shape) // results, "results": results},
        cost=over_axes.cost(math.prod(shape), results, dtype.itemsize),
        make=lambda seed: (normal(shape, seed, dtype),),
        rungs=tuple(along(rung, axis, op) for rung in rungs),
        libraries={name: call for name, call in libraries(axis, op).items() if dtype == F32 or "torch" in name},
        verify=lambda result, x: verify(result, x, axis, op, dtype),
        **more,
    )


WORKLOADS = [
    *(
        _workload(family, op, shape, axis, FEW if "narrow" in family else over_axes.LADDER, design=True, quick=True)
        for family, op, shape, axis in DESIGN
    ),
    *(
        _workload(f"rows, {dtype}", "sum", DESIGN[0][2], 1, over_axes.LADDER[-1:], dtype, design=True, quick=True)
        for dtype in known(over_axes.OF_16_BITS)
    ),
    *(
        _workload("sweep", "sum", (2**26 // n, n), 1, MANY, host={"numpy.sum": lambda x: np.sum(x, axis=1)})
        for n in SWEEP
    ),
    *(_workload("other shapes", op, shape, axis, over_axes.LADDER[-1:]) for op, shape, axis in OTHERS),
]
