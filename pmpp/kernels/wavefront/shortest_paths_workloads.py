"""What is measured of ``shortest_paths``: random graphs with 16 edges from each vertex, 64 to 8,192 vertices.

PyTorch and CuPy have no such function. What they offer is a loop over the vertices, each a sum and a minimum of whole
matrices. Beside it stands the roof: as many additions and minima, and nothing else (`pmpp.kernels.wavefront.roofs`).
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.wavefront import roofs
from pmpp.kernels.wavefront import shortest_paths as room
from pmpp.lab.measure.arrays import library_of, on_device, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty

VERTICES = [64, 256, 512, 1024, 2048, 4096, 8192]
DESIGN = 8192
EDGES = 16  # from each vertex, in the mean
ALL_CHECKED, CHECKED = 256, 8  # up to so many vertices all distances are checked, beyond it those of so many vertices
LOOPED, ON_CPU = 4096, 512  # vertices up to which PyTorch, and SciPy and NumPy, are given the graph


def drawn(n: int, seed: int) -> typing.Any:
    """A device array of weights from 0 to 1, and infinity where there is no edge."""
    library = xp()
    rng = library.random.RandomState(seed)
    weights = library.full((n, n), np.inf, np.float32)
    for row in range(0, n, 1024):  # a part at a time: random numbers are made in float64
        part = weights[row : row + 1024]
        there = rng.random_sample(part.shape) < EDGES / n
        part[there] = rng.random_sample(int(there.sum())).astype(np.float32)
    return on_device(weights)


def distances_from(weights: typing.Any, start: int) -> typing.Any:
    """From one vertex to all, in float64: all edges again and again, until nothing changes (Bellman and Ford)."""
    library = library_of(weights)
    found = weights[start].astype(np.float64)
    found[start] = 0
    while True:
        better = library.minimum(found, (found[:, None] + weights).min(axis=0))
        if bool((better == found).all()):
            return found
        found = better


def verify(result: typing.Any, weights: typing.Any) -> tuple[float, float]:
    """Error and tolerance of the worst distance. Of the roof: how far its chains are from where they must end."""
    n = weights.shape[0]
    if result.ndim == 3:
        return roofs.wrong(result, room.cost(n).flops)
    if result.shape != weights.shape:
        return float("inf"), 0.0
    library = library_of(weights)
    chosen = range(n) if n <= ALL_CHECKED else np.random.default_rng(n).choice(n, CHECKED, replace=False).tolist()
    expected = library.stack([distances_from(weights, start) for start in chosen])
    found = result[list(chosen)].astype(np.float64)
    nowhere = library.isinf(expected)
    error = library.where(nowhere & (found == expected), 0, abs(found - library.where(nowhere, 0, expected)))
    share = 1.01 * n * np.finfo(np.float32).eps / 2
    return worst(error, share * library.where(nowhere, 0, expected))


def by_torch(torch: typing.Any, weights: typing.Any, out: typing.Any) -> typing.Any:
    """A vertex after another: a matrix of sums, and the lesser of it and the distances."""
    out.copy_(weights)
    out.fill_diagonal_(0)
    for k in range(out.shape[0]):
        torch.minimum(out, out[:, k, None] + out[k], out=out)
    return out


def by_numpy(weights: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The same with NumPy."""
    out[...] = weights
    np.fill_diagonal(out, 0)
    for k in range(out.shape[0]):
        np.minimum(out, out[:, k, None] + out[k], out=out)
    return out


def by_scipy(weights: np.ndarray, out: np.ndarray) -> np.ndarray:
    """SciPy's own Floyd-Warshall, in compiled code and float64."""
    from scipy.sparse.csgraph import shortest_path

    out[...] = shortest_path(weights, "FW")
    return out


def _workload(n: int) -> Workload:
    operations = room.cost(n).flops
    libraries: dict = {"cuda.add_min": lambda cuda, weights, out: roofs.add_min(operations)}
    if n <= LOOPED:
        libraries["torch.minimum"] = by_torch
    return Workload(
        family="random graph",
        name=f"{n}",
        sizes={"n": n},
        cost=room.cost(n),
        make=lambda seed: (drawn(n, seed),),
        output=lambda: empty((n, n), np.float32),
        rungs=room.LADDER,
        libraries=libraries,
        verify=verify,
        design=n == DESIGN,
        cache="warm",
        host={"numpy.minimum": by_numpy, "scipy.shortest_path": by_scipy} if n <= ON_CPU else {},
        host_args=lambda weights: (weights.copy_to_host(), np.empty((n, n), np.float32)),
        end_to_end=False,
        quick=n in (64, 1024, DESIGN),
    )


WORKLOADS = [_workload(DESIGN), *(_workload(n) for n in VERTICES if n != DESIGN)]
