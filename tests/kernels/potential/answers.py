"""Answers to the exercises of chapter 48: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- field


def field(power=3, sign=1, guard=True, whole=True, start=0):
    """A field with another power of the root, another sign, or what else is wrong."""
    sign = np.float32(sign)

    @cuda.jit
    def kernel(atoms, spacing, square, field):
        i, j = cuda.grid(2)
        if not guard or (i < field.shape[1] and j < field.shape[0]):
            x, y = np.float32(i) * spacing, np.float32(j) * spacing
            along_x, along_y = np.float32(0), np.float32(0)
            for a in range(start, atoms.shape[0]):
                dx, dy, dz = sign * (x - atoms[a, 0]), sign * (y - atoms[a, 1]), atoms[a, 2]
                distance = dx * dx + dy * dy + dz * dz + square
                strength = atoms[a, 3] * cuda.libdevice.rsqrtf(distance)
                for _ in range(power - 1):
                    strength *= cuda.libdevice.rsqrtf(distance)
                along_x += strength * dx
                along_y += strength * dy
            field[j, i, 0] = along_x
            if whole:
                field[j, i, 1] = along_y

    return kernel


right("potential/field")(field())
wrong("potential/field", "distance to the wrong power")(field(power=2))
wrong("potential/field", "distance to the wrong power")(field(power=1))
wrong("potential/field", "field towards the charge")(field(sign=-1))
wrong("potential/field", "missing guard")(field(guard=False))
wrong("potential/field", "output not written")(field(whole=False))
wrong("potential/field", "wrong result")(field(start=1))


@wrong("potential/field", "accidental float64")
@cuda.jit
def field_in_float64(atoms, spacing, square, field):
    i, j = cuda.grid(2)
    if i < field.shape[1] and j < field.shape[0]:
        along_x, along_y = 0.0, 0.0
        for a in range(atoms.shape[0]):
            dx, dy, dz = i * spacing - atoms[a, 0], j * spacing - atoms[a, 1], atoms[a, 2]
            strength = atoms[a, 3] / (dx * dx + dy * dy + dz * dz + square) ** 1.5
            along_x += strength * dx
            along_y += strength * dy
        field[j, i, 0], field[j, i, 1] = along_x, along_y


# -- bins


@right("potential/bins")
@cuda.jit
def bins_rounded_down(atoms, start, side, counts):
    """Rounded down, and not towards zero: then whole numbers can be tested."""
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        i = np.int32(math.floor((atoms[a, 0] - start) / side))
        j = np.int32(math.floor((atoms[a, 1] - start) / side))
        k = np.int32(math.floor((atoms[a, 2] - start) / side))
        if 0 <= i < counts.shape[2] and 0 <= j < counts.shape[1] and 0 <= k < counts.shape[0]:
            cuda.atomic.add(counts, (k, j, i), 1)


@wrong("potential/bins", "rounded towards zero")
@cuda.jit
def bins_rounded_first(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        i = np.int32((atoms[a, 0] - start) / side)
        j, k = np.int32((atoms[a, 1] - start) / side), np.int32((atoms[a, 2] - start) / side)
        if 0 <= i < counts.shape[2] and 0 <= j < counts.shape[1] and 0 <= k < counts.shape[0]:
            cuda.atomic.add(counts, (k, j, i), 1)


@wrong("potential/bins", "argument ignored", "never uses start")
@cuda.jit
def bins_from_zero(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = atoms[a, 0] / side, atoms[a, 1] / side, atoms[a, 2] / side
        if 0 <= x < counts.shape[2] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[0]:
            cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


@wrong("potential/bins", "axes exchanged", "The first index is that of z")
@cuda.jit
def bins_by_x_first(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if 0 <= x < counts.shape[0] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[2]:
            cuda.atomic.add(counts, (np.int32(x), np.int32(y), np.int32(z)), 1)


@wrong("potential/bins", "outside atoms counted")
@cuda.jit
def bins_clamped(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        i = np.int32(math.floor((atoms[a, 0] - start) / side))
        j = np.int32(math.floor((atoms[a, 1] - start) / side))
        k = np.int32(math.floor((atoms[a, 2] - start) / side))
        i, j = max(0, min(i, counts.shape[2] - 1)), max(0, min(j, counts.shape[1] - 1))
        cuda.atomic.add(counts, (max(0, min(k, counts.shape[0] - 1)), j, i), 1)


@wrong("potential/bins", "missing atomic")
@cuda.jit
def bins_without_an_atomic(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if 0 <= x < counts.shape[2] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[0]:
            counts[np.int32(z), np.int32(y), np.int32(x)] += 1


@wrong("potential/bins", "missing guard")
@cuda.jit
def bins_of_too_many(atoms, start, side, counts):
    a = cuda.grid(1)
    x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
    if 0 <= x < counts.shape[2] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[0]:
        cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


@wrong("potential/bins", "missing guard")
@cuda.jit
def bins_of_all_atoms(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if x >= 0 and y >= 0 and z >= 0:
            cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


@wrong("potential/bins", "output not written")
@cuda.jit
def bins_without_their_lower_edges(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if 0 < x < counts.shape[2] and 0 < y < counts.shape[1] and 0 < z < counts.shape[0]:
            cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


# -- step


def step(early=False, sign=1, guard=True, masses=True, own=False, others=True, in_place=False):
    """A step with the old velocity, another sign, or what else is wrong."""
    sign = np.float32(sign)

    @cuda.jit
    def kernel(bodies, velocities, step, square, new_bodies, new_velocities):
        i = cuda.grid(1)
        if not guard or i < bodies.shape[0]:
            here, total = cuda.local.array(3, np.float32), cuda.local.array(3, np.float32)
            for axis in range(3):
                here[axis], total[axis] = bodies[i, axis], 0
            for j in range(bodies.shape[0]):
                distance = square
                for axis in range(3):
                    distance += (bodies[j, axis] - here[axis]) * (bodies[j, axis] - here[axis])
                root = cuda.libdevice.rsqrtf(distance)
                pull = sign * root * root * root
                if own:
                    pull *= bodies[i, 3]
                if others:
                    pull *= bodies[j, 3]
                for axis in range(3):
                    total[axis] += pull * (bodies[j, axis] - here[axis])
            for axis in range(3):
                faster = velocities[i, axis] + step * total[axis]
                new_velocities[i, axis] = faster
                moved = here[axis] + step * (velocities[i, axis] if early else faster)
                new_bodies[i, axis] = moved
                if in_place:
                    bodies[i, axis] = moved
            if masses:
                new_bodies[i, 3] = bodies[i, 3]

    return kernel


right("potential/step")(step())
wrong("potential/step", "moved by the old velocity")(step(early=True))
wrong("potential/step", "pushed away")(step(sign=-1))
wrong("potential/step", "missing guard")(step(guard=False))
wrong("potential/step", "output not written")(step(masses=False))
wrong("potential/step", "mass of the wrong body", "with 2 bodies")(step(own=True, others=False))
wrong("potential/step", "force for acceleration", "with 2 bodies")(step(own=True))
wrong("potential/step", "wrong result", "with 2 bodies")(step(others=False))
wrong("potential/step", "input changed")(step(in_place=True))
