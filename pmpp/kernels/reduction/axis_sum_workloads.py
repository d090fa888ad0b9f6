"""What is measured of ``axis_sum``: channels of feature maps, rows and columns, narrow ones and short ones."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.reduction import axis_sum
from pmpp.kernels.reduction.over_axes_workloads import verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload

MAPS = (256, 64, 112, 112)  # feature maps of a network
DESIGN = [(MAPS, (0, 2, 3)), ((65536, 1024), 0), ((65536, 1024), 1), ((2**24, 4), 0)]
OTHERS = [
    ((2**24, 3), 0),
    ((2**24, 3), 1),
    ((2**20, 64), 1),
    ((2**20, 7), 0),
    ((64, 1000, 1024), 1),
    ((65536, 1000), 0),
    ((65535, 1001), 1),
    ((2, 2**25), 0),
    ((2**28,), 0),
    ((256, 120), 0),
]
SWEEP = [2**k for k in range(4, 21, 4)]  # rows of 1024, added up


def along(rung: typing.Any, axis: typing.Any) -> Callable:
    """The rung as a contender of its name that is called with the array alone."""

    def call(x: typing.Any) -> typing.Any:
        return rung(x, axis)

    call.__name__ = rung.name
    return call


def _workload(shape: tuple, axis: typing.Any, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    axes = axis if isinstance(axis, tuple) else (axis,)
    sums = math.prod(extent for d, extent in enumerate(shape) if d not in axes)
    name = f"{'x'.join(map(str, shape))} over {', '.join(map(str, axes))}"
    return Workload(
        family=family,
        name=name,
        sizes={"n": math.prod(shape) // sums, "sums": sums},
        cost=axis_sum.cost(math.prod(shape), sums),
        make=lambda seed: (normal(shape, seed),),
        rungs=tuple(along(rung, axis) for rung in rungs),
        libraries={
            "torch.sum": lambda torch, x: torch.sum(x, dim=axis),
            "cupy.sum": lambda cupy, x: cupy.sum(x, axis=axis),
        },
        verify=lambda result, x: verify(result, x, axis, "sum"),
        **more,
    )


def _family(shape: tuple, axis: typing.Any) -> str:
    return "channels" if shape == MAPS else "long columns" if shape[1] < 32 else "rows" if axis else "columns"


WORKLOADS = [
    *(_workload(shape, axis, axis_sum.LADDER, _family(shape, axis), design=True, quick=True) for shape, axis in DESIGN),
    *(
        _workload((n, 1024), 0, axis_sum.LADDER, "sweep", cache="warm", host={"numpy.sum": lambda x: np.sum(x, axis=0)})
        for n in SWEEP[:-1]
    ),
    *(_workload(shape, axis, axis_sum.LADDER[-2:], "other shapes") for shape, axis in OTHERS),
]
