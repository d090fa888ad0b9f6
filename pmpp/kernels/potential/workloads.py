"""What is measured of ``potential``: grids and slices of many sizes, few atoms and many, beside the roof of roots.

The libraries have no function for this. They are given whole arrays: differences, squares and roots of all pairs of
some atoms with all points, and then a product of the charges with this matrix.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.potential import ladder as room
from pmpp.kernels.potential import roots_alone
from pmpp.lab.measure.arrays import worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.device import to_device

SPACING, SOFTENING = 0.5, 1e-3
EDGES = [16, 32, 64, 128, 256]  # of a cube of points
ATOMS = [64, 1024, 16_384]  # over a slice
FEW = 1024  # atoms, over cubes
PAIRS = 2**27  # of points and atoms, for which a library has an array at a time
CHECKED = 2**12  # points that are checked, if there are more


def _atoms(n: int, shape: tuple[int, int, int], seed: int) -> tuple:
    size = tuple(SPACING * edge for edge in reversed(shape))
    return (to_device(room.atoms_in_box(n, size, np.random.default_rng(seed))),)


def _coordinates(n: int) -> typing.Any:
    return xp().asarray(room.coordinates(n, SPACING).astype(np.float64))


def checked_points(shape: tuple[int, int, int]) -> tuple[typing.Any, tuple]:
    """Some points of a grid, first, middle and last among them: their places in the result, and x, y and z."""
    size = shape[0] * shape[1] * shape[2]
    points = xp().unique(xp().linspace(0, size - 1, min(size, CHECKED)).astype(np.int64))
    points = xp().concatenate([points, xp().asarray([size // 2])])
    indices = points % shape[2], points // shape[2] % shape[1], points // (shape[1] * shape[2])
    return points, tuple(_coordinates(n)[i] for n, i in zip(reversed(shape), indices, strict=True))


def verify(
    shape: tuple[int, int, int], result: typing.Any, atoms: typing.Any, cutoff: float = np.inf
) -> tuple[float, float]:
    """Error and tolerance of the worst of some points, in float64. All must be finite numbers.

    Charges are random, of both signs: with s the root of the sum of all squared terms, the sum of the first few is
    hardly ever beyond 2 s. Each of n additions rounds it, independently of the others, so they add up as sqrt(n)
    (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). The terms are off by some halves
    of an eps themselves. Eight times what is to be expected is allowed.
    """
    if tuple(result.shape) != shape or not bool(xp().isfinite(result).all()):
        return float("inf"), 0.0
    points, (x, y, z) = checked_points(shape)
    exact, squared, count = xp().zeros(points.size), xp().zeros(points.size), xp().zeros(points.size)
    for first in range(0, atoms.shape[0], 512):
        ax, ay, az, q = atoms[first : first + 512].astype(np.float64).T[:, :, np.newaxis]
        squares = (x - ax) ** 2 + (y - ay) ** 2 + (z - az) ** 2
        terms = q / xp().sqrt(squares + SOFTENING**2) * (squares < cutoff**2)
        exact += (terms * (1 - squares / cutoff**2) ** 2).sum(axis=0)
        squared += (terms * terms).sum(axis=0)
        count += (squares < cutoff**2).sum(axis=0)
    halves = 4 if cutoff == np.inf else 16
    allowed = 8 * np.finfo(np.float32).eps / 2 * (halves + 2 * xp().sqrt(count)) * xp().sqrt(squared)
    return worst(xp().abs(result.reshape(-1)[points].astype(np.float64) - exact), allowed)


def _by_arrays(module: typing.Any, rsqrt: typing.Callable, atoms: typing.Any, out: typing.Any, axes: tuple) -> None:
    """The potential by whole arrays of NumPy, CuPy or PyTorch: so many atoms at a time as there is memory for."""
    x, y, z = axes
    flat = out.reshape(-1)
    step = max(1, PAIRS // flat.shape[0])
    flat[...] = 0
    for first in range(0, atoms.shape[0], step):
        some = atoms[first : first + step]
        ax, ay, az = some[:, 0, None], some[:, 1, None], some[:, 2, None]
        of_plane = ((z - az) ** 2 + SOFTENING**2)[:, :, None] + ((y - ay) ** 2)[:, None, :]
        squares = of_plane[:, :, :, None] + ((x - ax) ** 2)[:, None, None, :]
        flat += module.matmul(some[:, 3], rsqrt(squares).reshape(some.shape[0], -1))


def _cupy(cupy: typing.Any, atoms: typing.Any, out: typing.Any) -> typing.Any:
    from cupyx import rsqrt

    nz, ny, nx = out.shape
    axes = tuple(cupy.arange(n, dtype=np.float32) * np.float32(SPACING) for n in (nx, ny, nz))
    _by_arrays(cupy, lambda squares: rsqrt(squares, out=squares), atoms, out, axes)
    return out


def _torch(torch: typing.Any, atoms: typing.Any, out: typing.Any) -> typing.Any:
    nz, ny, nx = out.shape
    axes = tuple(torch.arange(n, dtype=torch.float32, device=out.device) * SPACING for n in (nx, ny, nz))
    _by_arrays(torch, lambda squares: squares.rsqrt_(), atoms, out, axes)
    return out


def _numpy(shape: tuple[int, int, int], atoms: np.ndarray) -> np.ndarray:
    out = np.empty(shape, np.float32)
    axes = tuple(room.coordinates(n, SPACING) for n in reversed(shape))
    _by_arrays(np, lambda squares: np.reciprocal(np.sqrt(squares, out=squares), out=squares), atoms, out, axes)
    return out


def _call(rung: typing.Any, shape: tuple[int, int, int]) -> typing.Callable:
    def call(atoms: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(atoms, shape, SPACING, SOFTENING, out=out)

    call.__name__, call.kernels = rung.name, rung.kernels
    return call


def _workload(family: str, name: str, shape: tuple[int, int, int], atoms: int, first: str, **options) -> Workload:
    points = shape[0] * shape[1] * shape[2]
    sizes = {"points": points, "atoms": atoms}
    return Workload(
        family=family,
        name=name,
        sizes={first: sizes[first], **sizes},
        cost=room.cost(atoms, points),
        make=functools.partial(_atoms, atoms, shape),
        output=lambda: device.empty(shape, np.float32),
        rungs=tuple(_call(rung, shape) for rung in room.LADDER),
        libraries={"cupy.rsqrt": _cupy, "torch.rsqrt": _torch},
        verify=functools.partial(verify, shape),
        cache="warm",  # atoms are read again and again, and the result is written once
        **options,
    )


def _cube(edge: int) -> Workload:
    """A cube of points. NumPy takes part up to 64^3."""
    shape = (edge, edge, edge)
    host = {"numpy.sqrt": functools.partial(_numpy, shape)} if edge <= 64 else {}
    design, quick = edge == 256, edge in (64, 256)
    return _workload("cube", f"{edge}^3", shape, FEW, "points", host=host, design=design, quick=quick)


def _slice(atoms: int) -> Workload:
    """A slice of points through a box full of atoms, as in PMPP."""
    return _workload("slice", f"{atoms} atoms", (1, 1024, 1024), atoms, "atoms")


# ----------------------------------------------------------------------------------------------------------- the roof


def _with_start(atoms: int, shape: tuple[int, int, int], seed: int) -> tuple:
    """Atoms, and a number for each thread that does nothing but roots."""
    threads = roots_alone.turns_of(1)[0] * roots_alone.BLOCK
    start = 1 + np.random.default_rng(seed).random(threads, dtype=np.float32)
    return *_atoms(atoms, shape, seed), to_device(start)


def _beside_the_roof(rung: typing.Any, shape: tuple[int, int, int]) -> typing.Callable:
    def call(atoms: typing.Any, start: typing.Any) -> typing.Any:
        return rung(atoms, shape, SPACING, SOFTENING)

    call.__name__, call.kernels = rung.name, rung.kernels
    return call


def _verify_either(shape: tuple, result: typing.Any, atoms: typing.Any, start: typing.Any) -> tuple[float, float]:
    """A potential as `verify` does it. Roots of roots of roots come to 1: each sum of eight is 8, to 2^-20."""
    if result.ndim == 3:
        return verify(shape, result, atoms)
    if result.shape != start.shape:
        return float("inf"), 0.0
    return float(xp().abs(result.astype(np.float64) - 8).max()), 8 * 2.0**-20


def _roof(edge: int) -> Workload:
    """The better rungs beside as many reciprocal square roots as there are pairs, and nothing else."""
    shape, pairs = (edge, edge, edge), FEW * edge**3
    return Workload(
        family="roof of roots",
        name=f"{edge}^3",
        sizes={"points": edge**3, "atoms": FEW},
        cost=room.cost(FEW, edge**3),
        make=functools.partial(_with_start, FEW, shape),
        rungs=tuple(_beside_the_roof(rung, shape) for rung in room.LADDER[1:]),
        libraries={"cuda.roots_alone": lambda cuda, atoms, start: roots_alone.roots_alone(start, pairs)},
        verify=functools.partial(_verify_either, shape),
        design=True,
        cache="warm",
        quick=True,
    )


WORKLOADS = [
    _cube(256),
    _roof(256),
    *(_cube(edge) for edge in EDGES if edge != 256),
    *(_slice(atoms) for atoms in ATOMS),
]
