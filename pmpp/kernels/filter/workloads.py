"""What is measured of ``filter``: half kept, at many lengths; any share; sorted and alternating; costly conditions.

Libraries give back the kept elements alone, so they wait for the count. The rungs leave it on the GPU.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.filter import ladder as filtering
from pmpp.lab.measure.arrays import on_device, uniform, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device
from pmpp.runtime.rung import Cost

DESIGN = 2**28
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
SHARES = (0, 10, 25, 50, 75, 90, 100)  # of what is kept, in percent
STEPS = (0, 16, 64, 256)  # multiply-adds that a condition takes


def verify(result: typing.Any, x: typing.Any, threshold: float = 0) -> tuple[float, float]:
    """The number of wrong elements, which has to be 0. The order is that of the tests: here all rungs are sorted."""
    exact = x[x > threshold]
    if result.shape != exact.shape:
        return float("inf"), 0.0
    return float((xp().sort(xp().asarray(result)) != xp().sort(exact)).sum()), 0.0


def share_of(n: int, percent: int) -> Callable[[int], tuple]:
    """A seed to n float32 from -1 to 1, of which about ``percent`` percent are above 0, at random places."""

    def make(seed: int) -> tuple:
        x = uniform(n, seed)
        if percent == 50:
            return (x,)
        values = view(x)
        values += np.float32(percent / 50 - 1)
        if percent in (0, 100):  # uniform numbers include the ends
            xp().abs(values, out=values)
            values += np.float32(1e-3)
            values *= np.float32(1 if percent else -1)
        return (x if xp() is not np else to_device(values),)

    return make


def arranged(n: int, kind: str) -> Callable[[int], tuple]:
    """A seed to n float32, half of them above 0: "sorted", or "alternating" from element to element."""

    def make(seed: int) -> tuple:
        x = abs(view(uniform(n, seed))) + np.float32(0.5)
        if kind == "sorted":
            x[: n // 2] *= -1
            x.sort()
        else:
            x[::2] *= -1
        return (on_device(x),)

    return make


LIBRARIES = {
    "torch.index": lambda torch, x: x[x > 0],
    "cupy.index": lambda cupy, x: x[x > 0],
}


def _half(n: int) -> Workload:
    return Workload(
        family="half kept",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=filtering.cost(n),
        make=share_of(n, 50),
        rungs=filtering.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.index": lambda x: x[x > 0]} if n <= 2**26 else {},
        end_to_end=n <= 2**26,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _share(percent: int) -> Workload:
    n = 2**26
    return Workload(
        family="share kept",
        name=f"{percent} %",
        sizes={"percent": percent, "n": n},
        cost=filtering.cost(n, n * percent // 100),
        make=share_of(n, percent),
        rungs=filtering.LADDER,
        libraries={"torch.index": LIBRARIES["torch.index"]},
        verify=verify,
        quick=percent in (0, 50, 100),
    )


def _arranged(kind: str) -> Workload:
    n = 2**26
    return Workload(
        family="arranged",
        name=kind,
        sizes={"n": n},
        cost=filtering.cost(n),
        make=arranged(n, kind),
        rungs=filtering.LADDER,
        libraries={"torch.index": LIBRARIES["torch.index"]},
        verify=verify,
        quick=True,
    )


def condition(steps: int) -> typing.Any:
    """A device function that keeps what is above a threshold, and takes ``steps`` multiply-adds to find out.

    With y = 1 and z = -0 each step leaves the value as it is, to the last bit, and no compiler knows y and z.
    """

    @cuda.jit(device=True)
    def after_steps(value, threshold):
        one, nothing = threshold + np.float32(1), -threshold
        for _ in range(steps):
            value = value * one + nothing
        return value > threshold

    return after_steps


def _costly(steps: int) -> Workload:
    n = 2**26
    keep = condition(steps)

    def single_pass(x: typing.Any) -> typing.Any:
        p = filtering.arguments(x, 0)
        p.keep = keep
        return filtering.single_pass.run(p)

    return Workload(
        family="costly condition",
        name=f"{steps} steps",
        sizes={"steps": steps, "n": n},
        cost=Cost(flops=2 * steps * n, bytes=filtering.cost(n).bytes),
        make=share_of(n, 50),
        rungs=(single_pass,),
        verify=verify,
        quick=steps in (0, 64),
    )


WORKLOADS = [
    _half(DESIGN),
    *(_share(percent) for percent in SHARES),
    *(_arranged(kind) for kind in ("sorted", "alternating")),
    *(_costly(steps) for steps in STEPS),
    *(_half(n) for n in SWEEP if n != DESIGN),
]
