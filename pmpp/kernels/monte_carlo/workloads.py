"""What is measured of ``monte_carlo``: sixteen options with ever more samples, and both generators.

A library draws its normal numbers into memory, and computes with them there: CuPy by cuRAND, PyTorch by its own Philox.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.monte_carlo import ladder as room
from pmpp.lab.measure.arrays import view, worst
from pmpp.lab.measure.bench import Workload, WrongResult
from pmpp.runtime import device
from pmpp.runtime.device import to_device

OPTIONS, DESIGN = 16, 2**24
SWEEP = [2**k for k in range(10, 24, 2)]
ON_CPU = 2**16, 2**20
COMPARED = 2**14  # up to so many samples are compared with the reference's
PROBED = 5000  # and so many of what has more


@functools.lru_cache(maxsize=4)
def _contracts(seed: int) -> np.ndarray:
    return room.drawn(OPTIONS, np.random.default_rng(seed))


def spread_of_payoffs(contracts: np.ndarray) -> np.ndarray:
    """The standard deviation of what each option pays, discounted, (n,): by its first and second moment."""
    made = []
    for spot, strike, rate, volatility, years in contracts.astype(np.float64):
        spread, discount = volatility * math.sqrt(years), math.exp(-rate * years)
        d = (math.log(spot / strike) + rate * years) / spread + spread / 2
        twice, once, none = (0.5 * math.erfc(-x / math.sqrt(2)) for x in (d + spread, d, d - spread))
        price = spot * once - strike * discount * none
        square = spot**2 * math.exp(spread**2) * twice - 2 * strike * discount * spot * once
        made.append(math.sqrt(square + (strike * discount) ** 2 * none - price**2))
    return np.array(made)


@functools.lru_cache(maxsize=4)
def _samples_of_ours(contracts: bytes, samples: int, generator: str) -> tuple[np.ndarray, np.ndarray]:
    given = np.frombuffer(contracts, np.float32).reshape(-1, 5), samples, 1, generator
    return room.reference(*given), room.tolerance(*given)


def verify(result: typing.Any, contracts: typing.Any, *, samples: int, generator: str) -> tuple[float, float]:
    """Of few samples ours must give what the reference gives of the same; ``probe`` sees to that for many.

    Whoever draws other samples is judged by the formula. Prices must be within six standard errors of it. What is said
    of the error must be that of so many samples: a few payoffs are much larger than all others, so that an estimate of
    the spread has an error itself, of some multiples of 1 / sqrt(N).
    """
    if tuple(result.shape) != (OPTIONS, 2):
        return float("inf"), 0.0
    given, found = device.to_host(contracts), np.asarray(device.to_host(result), np.float64)
    if samples <= COMPARED:
        expected, allowed = _samples_of_ours(given.tobytes(), samples, generator)
        if (abs(found - expected) <= allowed).mean() > 0.5:
            return worst(view(abs(found - expected)), view(allowed))
    error = spread_of_payoffs(given) / math.sqrt(samples)
    off = abs(found - np.stack([room.formula(given), error], axis=1))
    rounded = 1e-5 * room.formula(given)[:, None]
    return worst(view(off), view(error[:, None] * [6, 0.002 + 60 / math.sqrt(samples)] + rounded * [1, 1e-3]))


def probe_of(generator: str) -> typing.Callable[[typing.Callable], None]:
    """Fewer samples, whose mean must be that of the reference."""

    def probe(call: typing.Callable) -> None:
        contracts = _contracts(3)[:2]
        expected = room.reference(contracts, PROBED, 1, generator)
        found = device.to_host(call(to_device(contracts), PROBED))
        if not (abs(found - expected) <= room.tolerance(contracts, PROBED, 1, generator)).all():
            raise WrongResult(f"of {PROBED} samples the prices and errors are {found}, not {expected}")

    return probe


def _call(rung: typing.Any, samples: int, generator: str) -> typing.Callable:
    given = samples

    def call(contracts: typing.Any, samples: int = given, *, out: typing.Any = None) -> typing.Any:
        return rung(contracts, samples, 1, generator, out=out)

    call.__name__ = rung.name
    return call


def _by_library(module: typing.Any, contracts: typing.Any, z: typing.Any) -> typing.Any:
    """Price and standard error from normal numbers (n, samples) in memory, by NumPy, CuPy or PyTorch."""
    spot, strike, rate, volatility, years = (contracts[:, k : k + 1] for k in range(5))
    drift, spread = (rate - volatility * volatility / 2) * years, volatility * module.sqrt(years)
    paid = spot * module.exp(drift + spread * z) - strike
    paid = paid.clip(0) * module.exp(-rate * years)
    mean, deviation = paid.mean(1), paid.std(1)
    return module.stack([mean, deviation / math.sqrt(z.shape[1])], 1)


@functools.cache
def _curand(cupy: typing.Any) -> typing.Any:
    return cupy.random.RandomState(1)


def _cupy(samples: int) -> typing.Callable:
    def call(cupy: typing.Any, contracts: typing.Any) -> typing.Any:
        z = _curand(cupy).standard_normal((OPTIONS, samples), dtype=np.float32)
        return _by_library(cupy, contracts, z)

    return call


def _torch(samples: int) -> typing.Callable:
    def call(torch: typing.Any, contracts: typing.Any) -> typing.Any:
        return _by_library(torch, contracts, torch.randn(OPTIONS, samples, device=contracts.device))

    return call


def _numpy(samples: int) -> typing.Callable:
    def call(contracts: np.ndarray) -> np.ndarray:
        z = np.random.default_rng(1).standard_normal((OPTIONS, samples), dtype=np.float32)
        return _by_library(np, contracts, z)

    return call


def _prices(generator: str, samples: int) -> Workload:
    return Workload(
        family="prices" if generator == "philox" else f"prices, {generator}",
        name=f"2^{samples.bit_length() - 1} samples",
        sizes={"n": OPTIONS * samples, "samples": samples, "options": OPTIONS},
        cost=room.cost(OPTIONS, samples),
        make=lambda seed: (to_device(_contracts(seed)),),
        rungs=tuple(_call(rung, samples, generator) for rung in room.LADDER),
        libraries={"cupy.standard_normal": _cupy(samples), "torch.randn": _torch(samples)},
        verify=functools.partial(verify, samples=samples, generator=generator),
        probe=probe_of(generator),
        design=samples == DESIGN and generator == "philox",
        cache="warm",
        host={"numpy": _numpy(samples)} if ON_CPU[0] <= samples <= ON_CPU[1] else {},
        quick=samples in (2**10, 2**16, DESIGN),
    )


WORKLOADS = [
    _prices("philox", DESIGN),
    *(_prices("philox", samples) for samples in SWEEP),
    *(_prices("xorwow", samples) for samples in (2**16, DESIGN)),
]
