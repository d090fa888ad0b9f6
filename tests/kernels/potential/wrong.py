"""Wrong versions of `potential` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.potential import ladder as room
from pmpp.kernels.potential.ladder import BLOCK, EACH, NUMBERS, bring, bring_in_order
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def launched(kernel, threads, name="", cleared=False):
    """``kernel(atoms, spacing, square, out)`` as a rung is called; ``threads(p)``: how many there are."""

    def potential(atoms, shape, spacing=1.0, softening=1e-6):
        p = room.arguments(atoms, shape, spacing, softening)
        if not p.done:
            if cleared:
                room.clear(p)
            kernel[blocks(threads(p), BLOCK), BLOCK](p.atoms, p.spacing, p.square, p.result)
        return p.result

    potential.__name__ = name or kernel.py_func.__name__
    return potential


def of_atoms(p):
    return p.atoms.shape[0]


def of_points(p):
    return p.result.size


# ---------------------------------------------------------------------------------------------------------- scattered


@cuda.jit
def no_atomic(atoms, spacing, square, out):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        for k in range(out.shape[0]):
            for j in range(out.shape[1]):
                for i in range(out.shape[2]):
                    dx = np.float32(i) * spacing - atoms[a, 0]
                    dy, dz = np.float32(j) * spacing - atoms[a, 1], np.float32(k) * spacing - atoms[a, 2]
                    out[k, j, i] += atoms[a, 3] * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))


# ----------------------------------------------------------------------------------------------------------- gathered


def gathered(term, guard=True, order=(2, 1, 0), name=""):
    """`gathered` with another term for a pair, ``term(dx, dy, dz, q, square)``, and what else is to be wrong."""
    of_x, of_y, of_z = order

    @cuda.jit
    def kernel(atoms, spacing, square, out):
        point = cuda.grid(1)
        if not guard or point < out.size:
            index = (point // (out.shape[1] * out.shape[2]), point // out.shape[2] % out.shape[1], point % out.shape[2])
            x, y, z = np.float32(index[of_x]), np.float32(index[of_y]), np.float32(index[of_z])
            total = f0
            for a in range(atoms.shape[0]):
                dx, dy, dz = x * spacing - atoms[a, 0], y * spacing - atoms[a, 1], z * spacing - atoms[a, 2]
                total += term(dx, dy, dz, atoms[a, 3], square)
            out[index[0], index[1], index[2]] = total

    return launched(kernel, of_points, name)


@cuda.jit(device=True)
def right_term(dx, dy, dz, q, square):
    return q * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))


@cuda.jit(device=True)
def without_a_root(dx, dy, dz, q, square):
    return q / (dx * dx + (dy * dy + (dz * dz + square)))


@cuda.jit(device=True)
def without_softening(dx, dy, dz, q, square):
    return q * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + dz * dz))


@cuda.jit(device=True)
def without_the_charge(dx, dy, dz, q, square):
    return cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))


@cuda.jit(device=True)
def in_float64(dx, dy, dz, q, square):
    return q / (dx * dx + dy * dy + dz * dz + square) ** 0.5


# -------------------------------------------------------------------------------------------------------------- tiles


def in_tiles(before=True, after=True, rest=True, name=""):
    """`in_tiles` without one of its barriers, or as if every tile were full."""

    @cuda.jit
    def kernel(atoms, spacing, square, out):
        tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
        point = cuda.grid(1)
        row, i = point // out.shape[2], point % out.shape[2]
        k, j = row // out.shape[1], row % out.shape[1]
        x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
        total = f0
        for first in range(0, atoms.shape[0], BLOCK):
            count = bring(atoms, first, tile)
            if before:
                cuda.syncthreads()
            for a in range(count if rest else BLOCK):
                ax, ay, az, q = load128(tile, 4 * a)
                dx, dy, dz = x - ax, y - ay, z - az
                total += q * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))
            if after:
                cuda.syncthreads()
        if point < out.size:
            out[k, j, i] = total

    return launched(kernel, of_points, name)


@cuda.jit
def guard_before_the_barrier(atoms, spacing, square, out):
    """Threads without a point leave at once, and take neither their part of a tile nor its barrier with them."""
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    point = cuda.grid(1)
    if point >= out.size:
        return
    row, i = point // out.shape[2], point % out.shape[2]
    x = np.float32(i) * spacing
    y, z = np.float32(row % out.shape[1]) * spacing, np.float32(row // out.shape[1]) * spacing
    total = f0
    for first in range(0, atoms.shape[0], BLOCK):
        count = bring(atoms, first, tile)
        cuda.syncthreads()
        for a in range(count):
            ax, ay, az, q = load128(tile, 4 * a)
            total += right_term(x - ax, y - ay, z - az, q, square)
        cuda.syncthreads()
    out[row // out.shape[1], row % out.shape[1], i] = total


# -------------------------------------------------------------------------------------------------- several points


def along(permuted=True, guard=True, name=""):
    """`coalesced` with an atom's numbers in the order of x, y and z, whatever the axes, or without its last guard."""

    @cuda.jit
    def kernel(atoms, axes, spacing, square, out):
        tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
        groups = (out.shape[0] + EACH - 1) // EACH
        row, i = cuda.grid(1) // out.shape[2], cuda.grid(1) % out.shape[2]
        k, j = row // out.shape[1], row % out.shape[1]
        u, v = np.float32(i) * spacing, np.float32(j) * spacing
        totals = cuda.local.array(EACH, np.float32)
        for e in range(EACH):
            totals[e] = f0
        for first in range(0, atoms.shape[0], BLOCK):
            count = bring_in_order(atoms, axes, first, tile) if permuted else bring(atoms, first, tile)
            cuda.syncthreads()
            for a in range(count):
                au, av, aw, q = load128(tile, 4 * a)
                for e in range(EACH):
                    totals[e] += right_term(u - au, v - av, np.float32(k + e * groups) * spacing - aw, q, square)
            cuda.syncthreads()
        if k < groups:
            for e in range(EACH):
                if not guard or k + e * groups < out.shape[0]:
                    out[k + e * groups, j, i] = totals[e]

    def potential(atoms, shape, spacing=1.0, softening=1e-6):
        p = room.arguments(atoms, shape, spacing, softening)
        if not p.done:
            room.launch_along(kernel, p)
        return p.result

    potential.__name__ = name
    return potential


RUNGS = (
    WrongRung(launched(no_atomic, of_atoms, cleared=True), "race"),
    WrongRung(launched(room.scattered_kernel, of_atoms, "sums_not_cleared"), "uninitialised read"),
    WrongRung(gathered(right_term, guard=False, name="no_guard"), "out of bounds"),
    WrongRung(gathered(right_term, order=(0, 1, 2), name="x_and_z_exchanged"), "wrong result"),
    WrongRung(gathered(without_a_root, name="square_of_the_distance"), "wrong result"),
    WrongRung(gathered(without_softening, name="softening_forgotten"), "wrong result"),
    WrongRung(gathered(without_the_charge, name="charge_forgotten"), "wrong result"),
    WrongRung(gathered(in_float64, name="power_in_float64"), "float64"),
    WrongRung(in_tiles(before=False, name="tile_read_too_early"), "race"),
    WrongRung(in_tiles(after=False, name="tile_overwritten_too_early"), "race"),
    WrongRung(in_tiles(rest=False, name="leftovers_of_the_last_tile"), "uninitialised read"),
    WrongRung(launched(guard_before_the_barrier, of_points), "uninitialised read"),
    WrongRung(along(permuted=False, name="axes_of_atoms_not_exchanged"), "wrong result"),
    WrongRung(along(guard=False, name="last_group_unguarded"), "out of bounds"),
)
RIGHT = (
    gathered(right_term, name="gathered_right"),
    in_tiles(name="in_tiles_right"),
    along(name="along_right"),
)
