"""What is measured of ``random``: bits, uniform and normal numbers, many and few."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.random import ladder as room
from pmpp.kernels.random.on_host import philox_words
from pmpp.lab.measure.arrays import view, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

DESIGN = 2**28
SWEEP = [2**k for k in range(10, 27, 4)]
CHECKED = 2**12  # numbers at either end that are compared with the reference, one by one


def _words(n: int, offset: int) -> np.ndarray:
    """Numbers ``offset`` to ``offset + n - 1`` of the sequence of seed 1."""
    counters = np.arange(offset // 4, (offset + n + 3) // 4, dtype=np.uint64)
    return np.stack(philox_words(counters, 0, 1), axis=1).astype(np.uint32).reshape(-1)[offset % 4 :][:n]


def _of_another_sequence(result: typing.Any, distribution: str) -> tuple[float, float]:
    """What a library draws has another order: mean and variance of all, in standard deviations of such a sample."""
    x, n = result.astype(np.float64), result.size
    centre, variance, fourth = (0.5, 1 / 12, 1 / 180) if distribution == "uniform" else (0.0, 1.0, 2.0)
    apart = [(float(x.mean()) - centre) / (variance / n) ** 0.5, (float(x.var()) - variance) / (fourth / n) ** 0.5]
    return max(map(abs, apart)), 6.0


def verifier(distribution: str) -> typing.Callable:
    """Compares numbers at both ends with the reference. Those of another sequence are judged by their moments."""

    def verify(result: typing.Any, like: typing.Any) -> tuple[float, float]:
        if result.shape != like.shape:
            return float("inf"), 0.0
        n, found, same = result.size, [], []
        for begin in sorted({0, n // 2 // 4 * 4, max(0, n - CHECKED) // 4 * 4}):
            part = np.zeros(min(CHECKED, n - begin), room.DISTRIBUTIONS[distribution])
            if distribution == "normal":
                exact, allowed = (f(part, distribution, 1, begin) for f in (room.reference, room.tolerance))
            else:
                exact, allowed = _words(part.size, begin), np.zeros(part.size)
                exact = exact if distribution == "bits" else (exact >> 8) * 2.0**-24
            error = abs(result[begin : begin + part.size].astype(np.float64) - view(exact.astype(np.float64)))
            same.append(float((error <= view(allowed)).mean()))
            found.append(worst(error, view(allowed)))
        if max(same) < 0.5 and distribution != "bits":
            return _of_another_sequence(result, distribution)
        return max(found, key=lambda one: (one[0] != one[0], one[0] - one[1]))

    return verify


def _call(rung: typing.Any, distribution: str) -> typing.Callable:
    def call(like: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(like, distribution, 1, out=out)

    call.__name__ = rung.name
    return call


def uniform_on_cpu(like: np.ndarray) -> np.ndarray:
    """Uniform numbers by NumPy on the CPU."""
    return np.random.default_rng(1).random(like.size, dtype=np.float32)


def normal_on_cpu(like: np.ndarray) -> np.ndarray:
    """Normal numbers by NumPy on the CPU."""
    return np.random.default_rng(1).standard_normal(like.size, dtype=np.float32)


ON_CPU = {"uniform": {"numpy": uniform_on_cpu}, "normal": {"numpy": normal_on_cpu}}


@functools.cache
def _curand(cupy: typing.Any) -> typing.Any:
    """cuRAND's generator, through CuPy: XORWOW, if nothing else is asked for."""
    return cupy.random.RandomState(1)


LIBRARIES = {
    "uniform": {
        "torch.uniform_": lambda torch, like, out: out.uniform_(),
        "cupy.random_sample": lambda cupy, like, out: _curand(cupy).random_sample(like.shape, dtype=np.float32),
    },
    "normal": {
        "torch.normal_": lambda torch, like, out: out.normal_(),
        "cupy.standard_normal": lambda cupy, like, out: _curand(cupy).standard_normal(like.shape, dtype=np.float32),
    },
}


def _workload(distribution: str, n: int) -> Workload:
    dtype = room.DISTRIBUTIONS[distribution]
    return Workload(
        family=distribution,
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        make=lambda seed: (device.empty(n, dtype),),  # nobody reads it
        output=lambda: device.empty(n, dtype),
        rungs=tuple(_call(rung, distribution) for rung in room.LADDER),
        libraries=LIBRARIES.get(distribution, {}),
        verify=verifier(distribution),
        design=n == DESIGN and distribution != "bits",
        cache="cold" if n >= 2**24 else "warm",
        host=ON_CPU.get(distribution, {}) if 2**22 <= n < DESIGN else {},
        quick=n == DESIGN,
    )


WORKLOADS = [_workload(distribution, n) for distribution in ("uniform", "normal") for n in (DESIGN, *SWEEP)]
WORKLOADS += [_workload("bits", DESIGN)]
