"""What is measured of ``mri``: cubes of voxels, and 2^15 samples on a spiral, beside the roof of special functions.

The libraries are given whole arrays: the waves of some samples at all voxels, as a matrix, times a vector.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.mri import cosines_alone
from pmpp.kernels.mri import ladder as room
from pmpp.kernels.mri.phantom import spiral, voxels_of
from pmpp.lab.measure.arrays import worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.device import to_device

EDGES = [8, 16, 32, 64]  # of a cube of voxels
SAMPLES = 2**15
PAIRS = 2**26  # of samples and voxels, for which a library has an array at a time
CHECKED = 1024  # voxels that are checked, if there are more


def _make(edge: int, samples: int, seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    _, phi, data = room.samples_of(samples, rng)
    return tuple(map(to_device, (spiral(samples, edge / 2), phi, data, voxels_of((edge, edge, edge)))))


def verify(result: typing.Any, k: typing.Any, phi: typing.Any, data: typing.Any, voxels: typing.Any) -> tuple:
    """Error and tolerance of the worst of some voxels, in complex128. All must be finite numbers.

    Samples have random phases, so errors of the m terms are independent, and add up as sqrt(m). Each is off by its
    angle, by the fast sine, and by the rounding of the sum, which is hardly ever beyond twice the root of all squares
    (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). Six times that is allowed.
    """
    n, half = voxels.shape[0], np.finfo(np.float32).eps / 2
    if tuple(result.shape) != (n,) or not bool(xp().isfinite(result).all()):
        return float("inf"), 0.0
    chosen = xp().unique(xp().linspace(0, n - 1, min(n, CHECKED)).astype(np.int64))
    chosen = xp().concatenate([chosen, xp().asarray([n // 2])])
    places, exact, squared = voxels[chosen].astype(np.float64), xp().zeros(chosen.size, np.complex128), 0.0
    for first in range(0, k.shape[0], 2048):
        some = slice(first, first + 2048)
        mu = xp().conj(phi[some].astype(np.complex128)) * data[some]
        turns = places @ k[some].astype(np.float64).T
        exact += xp().exp(2j * np.pi * turns) @ mu
        each = 2 * np.pi * 4 * half * (xp().abs(places) @ xp().abs(k[some].astype(np.float64)).T) + 2.0**-21
        squared = squared + (each + 2 * half * k.shape[0] ** 0.5) ** 2 @ (xp().abs(mu) ** 2)
    return worst(xp().abs(result[chosen] - exact), 6 * xp().sqrt(squared))


def _by_arrays(module: typing.Any, wave: typing.Callable, out: typing.Any, k, mu, voxels) -> typing.Any:
    """The sum by whole arrays of NumPy, CuPy or PyTorch: so many samples at a time as there is memory for."""
    step = max(1, PAIRS // voxels.shape[0])
    out[...] = 0
    for first in range(0, k.shape[0], step):
        some = slice(first, first + step)
        out += module.matmul(wave(module.matmul(voxels, k[some].T)), mu[some])
    return out


def _cupy(cupy: typing.Any, k, phi, data, voxels, out) -> typing.Any:
    def wave(turns):
        return cupy.exp(turns * np.complex64(2j * np.pi))

    return _by_arrays(cupy, wave, out, k, phi.conj() * data, voxels)


def _torch(torch: typing.Any, k, phi, data, voxels, out) -> typing.Any:
    def wave(turns):
        return torch.polar(torch.ones((), device=turns.device).expand_as(turns), turns.mul_(2 * np.pi))

    return _by_arrays(torch, wave, out, k, phi.conj() * data, voxels)


def _numpy(k: np.ndarray, phi: np.ndarray, data: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    def wave(turns):
        return np.exp(turns * np.complex64(2j * np.pi))

    return _by_arrays(np, wave, np.empty(len(voxels), np.complex64), k, phi.conj() * data, voxels)


def _workload(edge: int, samples: int = SAMPLES) -> Workload:
    n = edge**3
    return Workload(
        family="cube",
        name=f"{edge}^3",
        sizes={"voxels": n, "samples": samples},
        cost=room.cost(samples, n),
        make=functools.partial(_make, edge, samples),
        output=lambda: device.empty(n, np.complex64),
        rungs=room.LADDER,
        libraries={"cupy.exp": _cupy, "torch.polar": _torch},
        verify=verify,
        design=edge == 64,
        cache="warm",
        host={"numpy.exp": _numpy} if edge <= 16 else {},
        quick=edge in (16, 64),
    )


# ----------------------------------------------------------------------------------------------------------- the roof


def _with_start(edge: int, samples: int, seed: int) -> tuple:
    """What the rungs take, and a number for each thread that does nothing but cosines."""
    threads = cosines_alone.turns_of(1)[0] * cosines_alone.BLOCK
    start = np.random.default_rng(seed).random(threads, dtype=np.float32)
    return *_make(edge, samples, seed), to_device(start)


def _beside_the_roof(rung: typing.Any) -> typing.Callable:
    def call(k: typing.Any, phi: typing.Any, data: typing.Any, voxels: typing.Any, start: typing.Any) -> typing.Any:
        return rung(k, phi, data, voxels)

    call.__name__, call.kernels = rung.name, rung.kernels
    return call


def _verify_either(result: typing.Any, k, phi, data, voxels, start) -> tuple[float, float]:
    """An image as `verify` does it. Cosines of cosines come to 0.739085."""
    if result.dtype == np.complex64:
        return verify(result, k, phi, data, voxels)
    if result.shape != start.shape:
        return float("inf"), 0.0
    return float(xp().abs(result.astype(np.float64) - 8 * 0.7390851332).max()), 1e-4


def _roof(edge: int, samples: int = SAMPLES) -> Workload:
    """The better rungs beside two cosines for each pair, and nothing else."""

    def alone(cuda: typing.Any, *given: typing.Any) -> typing.Any:
        return cosines_alone.cosines_alone(given[-1], 2 * samples * edge**3)

    return Workload(
        family="roof of cosines",
        name=f"{edge}^3",
        sizes={"voxels": edge**3, "samples": samples},
        cost=room.cost(samples, edge**3),
        make=functools.partial(_with_start, edge, samples),
        rungs=tuple(_beside_the_roof(rung) for rung in room.LADDER[1:]),
        libraries={"cuda.cosines_alone": alone},
        verify=_verify_either,
        design=True,
        cache="warm",
        quick=True,
    )


WORKLOADS = [_workload(64), _roof(64), *(_workload(edge) for edge in EDGES if edge != 64)]
