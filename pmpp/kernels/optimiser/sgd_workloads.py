"""What is measured of ``sgd``: gradient descent with and without momentum, in place, for the networks of ``adam``."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.optimiser import sgd as room
from pmpp.kernels.optimiser.adam_workloads import DESIGN, NETWORKS, in_place, joined, ours, state, torch_contender
from pmpp.lab.measure.arrays import chunks, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.rung import Problem

LR, MOMENTUM, DECAY = 0.1, 0.9, 1e-4


def verify(result: typing.Any, p: typing.Any, g: typing.Any, *sums: typing.Any) -> tuple[float, float]:
    """The parameters after one step, every element against float64."""
    if result.shape != p.shape:
        return float("inf"), 0.0
    found = []
    for part in chunks(p.size):
        old, grad = (x[part].astype(np.float64) for x in (p, g))
        total = grad + DECAY * old
        if sums:
            total = MOMENTUM * sums[0][part] + total
        allowed = 10 * 2.0**-24 * (abs(old) + LR * (abs(total) + abs(grad)))
        found.append(worst(abs(result[part] - (old - LR * total)), allowed))
    return worst_of(found)


def step_of(rung: typing.Any) -> Callable:
    """A step of a rung, in place."""

    def begin(p: list, g: list, *sums: list) -> Callable:
        p, g, *sums = (tuple(one) for one in (p, g, *sums))
        arrays = room.all_of((p, g, *sums), (p, *sums))
        numbers = room.hyper(LR, MOMENTUM if sums else 0.0, 0.0, DECAY, False, None, sums or None)
        return lambda: rung.run(Problem(None, **arrays, hyper=numbers))

    return begin


def fused(torch: typing.Any, p: list, g: list, *sums: list) -> Callable:
    """PyTorch's fused gradient descent, without the Python around it."""
    options = {"weight_decay": DECAY, "momentum": MOMENTUM if sums else 0.0, "lr": LR, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    return lambda: torch._fused_sgd_(p, g, sums[0] if sums else [], **options, **flags)


def _workload(name: str, sizes: tuple[int, ...], momentum: bool) -> Workload:
    n = sum(sizes)
    return Workload(
        family="momentum" if momentum else "plain",
        name=name,
        sizes={"n": n, "tensors": len(sizes)},
        cost=room.cost(n, momentum),
        make=state(3 if momentum else 2, n),
        rungs=tuple(in_place(rung.name, sizes, step_of(rung), ours, joined) for rung in room.LADDER),
        libraries={"torch.fused_sgd": torch_contender("fused", sizes, fused)},
        verify=verify,
        design=name == DESIGN,
        cache="cold" if n > 2**20 else "warm",
        quick=name == DESIGN and momentum,
    )


WORKLOADS = [_workload(name, sizes, momentum) for momentum in (True, False) for name, sizes in NETWORKS.items()]
