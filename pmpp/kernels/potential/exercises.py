"""Exercises of notebooks/48_electrostatic_potential.ipynb: the field in a slice, counts of bins, a step of n bodies."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
ACROSS, DOWN = 32, 4  # of a block with two axes
EPS = float(np.finfo(np.float32).eps)


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)  # rounded up


def _pull(targets: np.ndarray, sources: np.ndarray, square: float, power: float = 1.5) -> np.ndarray:
    """For each target (m, 3), the terms q (target - source) / (r^2 + square)^power of all sources (n, 4): (m, n, 3)."""
    away = targets[:, np.newaxis].astype(np.float64) - sources[:, :3].astype(np.float64)
    nearness = ((away**2).sum(axis=2) + square) ** -power
    return sources[:, 3, np.newaxis] * away * nearness[:, :, np.newaxis]


# ----------------------------------------------------------------------------------------------------- potential/field


def _slice(shape: tuple[int, int], spacing: float) -> np.ndarray:
    j, i = np.indices(shape).reshape(2, -1)
    return np.stack([i, j, np.zeros_like(i)], axis=1).astype(np.float32) * np.float32(spacing)


def _field(
    atoms: np.ndarray, spacing: float, square: float, field: np.ndarray, power: float = 1.5, sign: int = 1
) -> dict[int, np.ndarray]:
    terms = _pull(_slice(field.shape[:2], spacing), atoms, square, power)
    return {3: sign * terms.sum(axis=1)[:, :2].reshape(field.shape)}


def _field_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, shape in ((1, (1, 2)), (3, (2, 5)), (20, (DOWN, 2 * ACROSS)), (40, (9, 37)), (7, (17, 33))):
        spacing, square = np.float32(0.5), np.float32(0.25)
        size = np.array([shape[1], shape[0], 2]) * 0.5
        atoms = np.concatenate([rng.random((n, 3)) * size, rng.choice([-1.0, 1.0, 2.0], (n, 1))], axis=1)
        atoms = np.ascontiguousarray(atoms, np.float32)
        field = unwritten((*shape, 2), np.float32)
        # Differences, squares, a root, three products and a quotient: some ten roundings of each term, and n additions.
        largest = np.abs(_pull(_slice(shape, spacing), atoms, square)).sum(axis=1)[:, :2]
        tolerance = (n + 20) * EPS / 2 * largest.reshape(field.shape)
        args, grid = (atoms, spacing, square, field), (_blocks(shape[1], ACROSS), _blocks(shape[0], DOWN))
        name = f"{n} atom{'s' * (n > 1)} and {shape[0]} x {shape[1]} points"
        cases.append(Case(name, args, grid, (ACROSS, DOWN), _field(*args), {3: tolerance}))
    return cases


@cuda.jit
def field_answer(atoms, spacing, square, field):
    i, j = cuda.grid(2)
    if i < field.shape[1] and j < field.shape[0]:
        x, y = np.float32(i) * spacing, np.float32(j) * spacing
        along_x, along_y = np.float32(0), np.float32(0)
        for a in range(atoms.shape[0]):
            dx, dy, dz = x - atoms[a, 0], y - atoms[a, 1], atoms[a, 2]
            root = cuda.libdevice.rsqrtf(dx * dx + dy * dy + dz * dz + square)
            strength = atoms[a, 3] * root * root * root
            along_x += strength * dx
            along_y += strength * dy
        field[j, i, 0], field[j, i, 1] = along_x, along_y


# ------------------------------------------------------------------------------------------------------ potential/bins


def _counted(
    atoms: np.ndarray,
    start: float,
    side: float,
    counts: np.ndarray,
    round_: typing.Callable = np.floor,
    clamped: bool = False,
) -> dict[int, np.ndarray]:
    bins = round_((atoms[:, 2::-1].astype(np.float64) - start) / side).astype(np.int64)
    if clamped:
        bins = bins.clip(0, np.array(counts.shape) - 1)
    inside = ((bins >= 0) & (bins < counts.shape)).all(axis=1)
    found = counts.copy()
    np.add.at(found, tuple(bins[inside].T), 1)
    return {3: found}


def _bins_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, shape in ((1, (1, 1, 2)), (50, (2, 3, 4)), (BLOCK, (1, 1, 1)), (300, (3, 2, 5)), (700, (4, 3, 2))):
        start, side = np.float32(-0.5), np.float32(0.5)  # without start, some atoms are in a bin still
        # In eighths, so that nothing is rounded; a bin's width beyond the bins on every side.
        size = np.array(shape[::-1]) * 4 + 8
        places = (rng.integers(0, size, (n, 3)) - 4) / 8 + start
        places[0] = start  # in the first bin
        atoms = np.ascontiguousarray(np.concatenate([places, np.ones((n, 1))], axis=1), np.float32)
        args = atoms, start, side, np.zeros(shape, np.int32)
        name = f"{n} atom{'s' * (n > 1)} and {shape[0]} x {shape[1]} x {shape[2]} bins"
        cases.append(Case(name, args, _blocks(n), BLOCK, _counted(*args)))
    return cases


@cuda.jit
def bins_answer(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if 0 <= x < counts.shape[2] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[0]:
            cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


# ------------------------------------------------------------------------------------------------------ potential/step


def _stepped(
    bodies, velocities, step, square, new_bodies, new_velocities, sign=1, early=False, own=0, others=1
) -> dict[int, np.ndarray]:
    """``own`` and ``others``: the powers of a body's own mass and of the others' in its acceleration."""
    sources = bodies.astype(np.float64)
    sources[:, 3] **= others
    pulled = -_pull(bodies[:, :3], sources, square).sum(axis=1) * bodies[:, 3:].astype(np.float64) ** own
    faster = velocities + sign * float(step) * pulled
    moved = bodies.astype(np.float64)
    moved[:, :3] += float(step) * (velocities if early else faster)
    return {4: moved, 5: faster}


def _step_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (2, 3, 31, BLOCK, BLOCK + 1, 200):
        step, square = np.float32(0.125), np.float32(0.0625)
        mass = rng.choice([0.5, 1.0, 3.0], (n, 1))
        mass[:2] = [[0.5], [3.0]]  # unlike, so that the smallest case shows whose mass is taken
        bodies = np.ascontiguousarray(np.concatenate([rng.standard_normal((n, 3)), mass], axis=1), np.float32)
        velocities = rng.standard_normal((n, 3)).astype(np.float32)
        args = bodies, velocities, step, square, unwritten((n, 4), np.float32), unwritten((n, 3), np.float32)
        largest = np.abs(_pull(bodies[:, :3], bodies, square)).sum(axis=1)
        faster = EPS / 2 * ((n + 20) * step * largest + 2 * np.abs(velocities))
        moved = np.zeros((n, 4))
        moved[:, :3] = step * faster + EPS * (np.abs(bodies[:, :3]) + step * (np.abs(velocities) + step * largest))
        name = f"{n} bodies"
        cases.append(Case(name, args, _blocks(n), BLOCK, _stepped(*args), {4: moved, 5: faster}))
    return cases


@cuda.jit
def step_answer(bodies, velocities, step, square, new_bodies, new_velocities):
    i = cuda.grid(1)
    if i < bodies.shape[0]:
        x, y, z = bodies[i, 0], bodies[i, 1], bodies[i, 2]
        ax, ay, az = np.float32(0), np.float32(0), np.float32(0)
        for j in range(bodies.shape[0]):
            dx, dy, dz = bodies[j, 0] - x, bodies[j, 1] - y, bodies[j, 2] - z
            root = cuda.libdevice.rsqrtf(dx * dx + dy * dy + dz * dz + square)
            pull = bodies[j, 3] * root * root * root
            ax, ay, az = ax + pull * dx, ay + pull * dy, az + pull * dz
        vx, vy, vz = velocities[i, 0] + step * ax, velocities[i, 1] + step * ay, velocities[i, 2] + step * az
        new_velocities[i, 0], new_velocities[i, 1], new_velocities[i, 2] = vx, vy, vz
        new_bodies[i, 0], new_bodies[i, 1], new_bodies[i, 2] = x + step * vx, y + step * vy, z + step * vz
        new_bodies[i, 3] = bodies[i, 3]


EXERCISES = (
    Exercise(
        "potential/field",
        task="Compute the electric field in the slice z = 0: its x and y component at each point. An atom with charge "
        "q at a distance d = (dx, dy, dz), from the atom to the point, adds q * dx / (dx^2 + dy^2 + dz^2 + square)^1.5 "
        "to field[j, i, 0], and the same with dy to field[j, i, 1]. Point [j, i] lies at x = i * spacing and "
        f"y = j * spacing. The launch has blocks of {ACROSS} x {DOWN} threads, and cuda.grid(2) gives i and j.",
        parameters="atoms, spacing, square, field",
        cases=_field_cases,
        answer=field_answer,
        hints=(
            "A thread takes a point, goes through all atoms, and has two sums in registers.",
            "cuda.libdevice.rsqrtf(x) is 1 / sqrt(x) of a float32. Its third power is what you need.",
            "The z of a point is 0, and only the square of dz is needed.",
        ),
        traps=(
            Trap(
                "field towards the charge",
                "A positive charge pushes away: the direction is the point less the atom.",
                lambda *args: _field(*args, sign=-1),
            ),
            Trap(
                "distance to the wrong power",
                "The distance vector has the length r, so it is divided by r^3 for a strength of 1 / r^2.",
                lambda *args: _field(*args, power=1.0),
            ),
            Trap(
                "distance to the wrong power",
                "The distance vector has the length r, so it is divided by r^3 for a strength of 1 / r^2.",
                lambda *args: _field(*args, power=0.5),
            ),
        ),
    ),
    Exercise(
        "potential/bins",
        task="Count the atoms in each bin. Bin [k, j, i] holds the atoms whose x is from start + i * side up to, and "
        "without, start + (i + 1) * side, and y and z by j and k likewise. Atoms outside of all bins are not counted. "
        f"counts is int32, and 0 at the beginning. A thread takes an atom; the launch has {BLOCK} threads a block.",
        parameters="atoms, start, side, counts",
        cases=_bins_cases,
        answer=bins_answer,
        hints=(
            "(x - start) / side says how many bins from the first one an atom is. The part before the point counts.",
            "Making an integer of -0.5 gives 0, so test what is below 0 before you make an integer of it.",
            "cuda.atomic.add(counts, (k, j, i), 1): the first index is that of z.",
        ),
        traps=(
            Trap(
                "rounded towards zero",
                "An atom half a bin before the first one is in none, but int(-0.5) is 0.",
                lambda *args: _counted(*args, round_=np.trunc),
            ),
            Trap(
                "outside atoms counted",
                "An atom outside of all bins is in none: the nearest bin does not count it.",
                lambda *args: _counted(*args, clamped=True),
            ),
        ),
        advice={"axes exchanged": "The first index is that of z, the last that of x."},
    ),
    Exercise(
        "potential/step",
        task="Move bodies that attract each other by one step. Each has x, y, z and a mass in bodies, and a velocity. "
        "Body j gives body i the acceleration m_j * d / (|d|^2 + square)^1.5 with d = the place of j less that of i. "
        "Add step * the sum of accelerations to the velocity, and then step * the new velocity to the place. Write "
        f"both, and the masses, to the new arrays. A thread takes a body; the launch has {BLOCK} threads a block.",
        parameters="bodies, velocities, step, square, new_bodies, new_velocities",
        cases=_step_cases,
        answer=step_answer,
        hints=(
            "This is the field once more, with masses for charges, three components and the other sign.",
            "A body may be among those that it asks: d is 0 then, and adds nothing. So no test is needed.",
            "Write to the new arrays only: other threads still read the old places.",
        ),
        traps=(
            Trap(
                "moved by the old velocity",
                "The velocity changes first, and the new one moves the body: otherwise the energy drifts upwards.",
                lambda *args: _stepped(*args, early=True),
            ),
            Trap(
                "pushed away",
                "Masses attract: d points from body i to body j.",
                lambda *args: _stepped(*args, sign=-1),
            ),
            Trap(
                "mass of the wrong body",
                "Body i is pulled by the masses of the others: take bodies[j, 3].",
                lambda *args: _stepped(*args, own=1, others=0),
            ),
            Trap(
                "force for acceleration",
                "The force has both masses. The acceleration of body i is that divided by m_i: only m_j is left.",
                lambda *args: _stepped(*args, own=1),
            ),
        ),
    ),
)
