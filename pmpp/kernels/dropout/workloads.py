"""What is measured of ``dropout``: half of the elements, many and few; and the way back."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.dropout import ladder as room
from pmpp.kernels.random import uniform
from pmpp.lab.measure.arrays import chunks, normal, view, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

DESIGN = 2**27
SWEEP = [2**k for k in range(10, 27, 4)]
P, SEED = 0.5, 9


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Every element is 0 or ``x / (1 - p)``: of ours the right one of the two, of a library's the right share."""
    if result.shape != x.shape:
        return float("inf"), 0.0
    number = view(uniform(x.size, seed=SEED))
    same, found, kept = 0.0, [], 0.0
    for part in chunks(x.size):
        got, scaled = result[part].astype(np.float64), x[part].astype(np.float64) / (1 - P)
        expected = scaled * (number[part] >= np.float32(P))
        same += float(((got == 0) == (expected == 0)).sum())
        kept += float((got != 0).sum())
        found.append((worst(abs(got - expected), 3 * 2.0**-24 * abs(expected)), got, scaled))
    if same > 0.9 * x.size:
        return worst_of(one for one, *_ in found)
    either = [worst(abs(got - scaled) * (got != 0), 3 * 2.0**-24 * abs(scaled)) for _, got, scaled in found]
    share = abs(kept / x.size - (1 - P)) / (P * (1 - P) / x.size) ** 0.5
    return max(worst_of(either), (share, 6.0), key=lambda one: one[0] - one[1])


def dropout_on_cpu(x: np.ndarray) -> np.ndarray:
    """Dropout by NumPy on the CPU."""
    return x * ((np.random.default_rng(1).random(x.size, dtype=np.float32) >= P) * np.float32(1 / (1 - P)))


def _call(rung: typing.Any) -> Callable:
    def call(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(x, P, SEED, out=out)

    call.__name__ = rung.name
    return call


def _workload(n: int) -> Workload:
    return Workload(
        family="dropout",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        make=lambda seed: (normal(n, seed),),
        output=lambda: device.empty(n, np.float32),
        rungs=tuple(map(_call, room.LADDER)),
        libraries={
            "torch.native_dropout": lambda torch, x, out: torch.native_dropout(x, P, True)[0],
            "torch.dropout": lambda torch, x, out: torch.nn.functional.dropout(x, P),
        },
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= 2**24 else "warm",
        host={"numpy": dropout_on_cpu} if 2**22 <= n < DESIGN else {},
        quick=n == DESIGN,
    )


WORKLOADS = [_workload(n) for n in (DESIGN, *SWEEP)]
