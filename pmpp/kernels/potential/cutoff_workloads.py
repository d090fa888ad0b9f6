"""What is measured of ``cutoff``: cubes of one density, from small to large.

There is one atom to 10 units of volume, as in water if a unit is an angstrom, and the cutoff is 8. So about 214 atoms
are near a point, however large the cube is.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp.kernels.potential import cutoff as room
from pmpp.kernels.potential import ladder
from pmpp.kernels.potential.workloads import PAIRS, SOFTENING, SPACING, verify
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.device import to_device

CUTOFF, DENSITY = 8.0, 0.1
EDGES = [16, 32, 64, 128, 256]  # of a cube of points
ALL_ASKED = 128  # the largest edge for which every atom is asked


def atoms_of(edge: int) -> int:
    return round(DENSITY * (SPACING * edge) ** 3)


def pairs_of(edge: int) -> int:
    """About so many pairs are within the cutoff: of two places drawn at random from a cube, by its geometry.

    The probability that two places in a cube of edge 1 are nearer than r <= 1 is pi (4/3 r^3 - 3/2 r^4) + 8/5 r^5 -
    r^6/6 (the distribution of distances in a cube). Beyond that the number is that of all pairs.
    """
    r = CUTOFF / (SPACING * edge)
    share = math.pi * (4 / 3 * r**3 - 3 / 2 * r**4) + 8 / 5 * r**5 - r**6 / 6 if r <= 1 else 1.0
    return round(share * atoms_of(edge) * edge**3)


def _make(edge: int, seed: int) -> tuple:
    size = (SPACING * edge,) * 3
    return (to_device(ladder.atoms_in_box(atoms_of(edge), size, np.random.default_rng(seed))),)


def _by_arrays(module: typing.Any, atoms: typing.Any, out: typing.Any) -> typing.Any:
    """All pairs, by whole arrays of NumPy or CuPy: so many atoms at a time as there is memory for."""
    x, y, z = (module.arange(n, dtype=np.float32) * np.float32(SPACING) for n in reversed(out.shape))
    flat = out.reshape(-1)
    step = max(1, PAIRS // 4 // flat.shape[0])
    flat[...] = 0
    for first in range(0, atoms.shape[0], step):
        some = atoms[first : first + step]
        ax, ay, az = some[:, 0, None], some[:, 1, None], some[:, 2, None]
        of_plane = ((z - az) ** 2)[:, :, None] + ((y - ay) ** 2)[:, None, :]
        squares = of_plane[:, :, :, None] + ((x - ax) ** 2)[:, None, None, :]
        near = module.maximum(1 - squares * np.float32(CUTOFF**-2), 0)
        terms = near * near / module.sqrt(squares + np.float32(SOFTENING**2))
        flat += module.matmul(some[:, 3], terms.reshape(some.shape[0], -1))
    return out


def _numpy(shape: tuple[int, int, int], atoms: np.ndarray) -> np.ndarray:
    return _by_arrays(np, atoms, np.empty(shape, np.float32))


def _call(rung: typing.Any, shape: tuple[int, int, int]) -> typing.Callable:
    def call(atoms: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(atoms, shape, CUTOFF, SPACING, SOFTENING, out=out)

    call.__name__, call.kernels = rung.name, rung.kernels
    return call


def _workload(edge: int) -> Workload:
    shape, whole = (edge, edge, edge), edge <= ALL_ASKED
    return Workload(
        family="cutoff",
        name=f"{edge}^3",
        sizes={"points": edge**3, "atoms": atoms_of(edge)},
        cost=room.cost(pairs_of(edge), atoms_of(edge), edge**3),
        make=functools.partial(_make, edge),
        output=lambda: device.empty(shape, np.float32),
        rungs=tuple(_call(rung, shape) for rung in room.LADDER[0 if whole else 1 :]),
        libraries={"cupy.sqrt": _by_arrays} if whole else {},
        verify=functools.partial(verify, shape, cutoff=CUTOFF),
        design=edge == 128,
        cache="warm",
        host={"numpy.sqrt": functools.partial(_numpy, shape)} if edge <= 64 else {},
        quick=edge in (64, 128),
    )


WORKLOADS = [_workload(128), *(_workload(edge) for edge in EDGES if edge != 128)]
