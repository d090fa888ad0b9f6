"""Wrong versions of `cutoff` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.potential import cutoff as room
from pmpp.kernels.potential.cutoff import BLOCK, Axes, f0, f1, first_bin, last_bin
from pmpp.runtime import device
from tests.support.wrong import WrongRung


def all_asked(near_of, guard=True, name=""):
    """`all_asked` with another measure of how near an atom is, ``near_of(distance, fade)``, or without its guard."""

    @cuda.jit
    def kernel(atoms, fade, spacing, square, out):
        point = cuda.grid(1)
        if not guard or point < out.size:
            row, i = point // out.shape[2], point % out.shape[2]
            k, j = row // out.shape[1], row % out.shape[1]
            x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
            total = f0
            for a in range(atoms.shape[0]):
                dx, dy, dz = x - atoms[a, 0], y - atoms[a, 1], z - atoms[a, 2]
                distance = dx * dx + (dy * dy + dz * dz)
                near = near_of(distance, fade)
                if near > 0:
                    total += atoms[a, 3] * cuda.libdevice.rsqrtf(distance + square) * (near * near)
            out[k, j, i] = total

    def potential(atoms, shape, cutoff, spacing=1.0, softening=1e-6):
        p = room.arguments(atoms, shape, cutoff, spacing, softening)
        if not p.done:
            kernel[blocks(p.result.size, BLOCK), BLOCK](p.atoms, p.fade, p.spacing, p.square, p.result)
        return p.result

    potential.__name__ = name
    return potential


@cuda.jit(device=True)
def near(distance, fade):
    return f1 - distance * fade


@cuda.jit(device=True)
def not_squared(distance, fade):
    """The square of the distance is compared with the cutoff, and not with its square."""
    return f1 - distance * cuda.libdevice.sqrtf(fade)


@cuda.jit(device=True)
def hard(distance, fade):
    """Without what fades."""
    return f1 if distance * fade < f1 else f0


@cuda.jit(device=True)
def not_tested(distance, fade):
    """The square of what is below 0 is above 0 again."""
    return abs(f1 - distance * fade)


@cuda.jit
def count_unranked_kernel(atoms, axes, bins, numbers, ranks, counts):
    """The count is read and written in two steps."""
    i = cuda.grid(1)
    if i < atoms.shape[0]:
        u = (atoms[i, axes.u] - bins.start) * bins.inverse
        v = (atoms[i, axes.v] - bins.start) * bins.inverse
        w = (atoms[i, axes.w] - bins.start) * bins.inverse
        number = np.int32(-1)
        if 0 <= u < bins.nu and 0 <= v < bins.nv and 0 <= w < bins.nw:
            number = np.int32((np.int32(w) * bins.nv + np.int32(v)) * bins.nu + np.int32(u))
            ranks[i] = counts[number]
            counts[number] = ranks[i] + 1
        numbers[i] = number


@cuda.jit
def count_anywhere_kernel(atoms, axes, bins, numbers, ranks, counts):
    """Nothing is asked about atoms that lie outside of all bins."""
    i = cuda.grid(1)
    if i < atoms.shape[0]:
        u = np.int32((atoms[i, axes.u] - bins.start) * bins.inverse)
        v = np.int32((atoms[i, axes.v] - bins.start) * bins.inverse)
        w = np.int32((atoms[i, axes.w] - bins.start) * bins.inverse)
        number = np.int32((w * bins.nv + v) * bins.nu + u)
        ranks[i] = cuda.atomic.add(counts, number, 1)
        numbers[i] = number


@cuda.jit
def fill_with_room_kernel(atoms, axes, numbers, ranks, starts, sorted_atoms):
    """A bin has room for eight atoms, and what is more is dropped: there the place of a missing one is far away."""
    i = cuda.grid(1)
    if i < atoms.shape[0] and numbers[i] >= 0:
        at = starts[numbers[i]] + ranks[i]
        there = ranks[i] < 8
        sorted_atoms[at, 0] = atoms[i, axes.u] if there else np.float32(1e9)
        sorted_atoms[at, 1] = atoms[i, axes.v]
        sorted_atoms[at, 2], sorted_atoms[at, 3] = atoms[i, axes.w], atoms[i, 3]


def reach_kernel(half, end):
    """A point asks the bins up to so many cutoffs away, and up to the bin number ``right + end``."""

    @cuda.jit
    def kernel(sorted_atoms, starts, bins, fade, spacing, square, out):
        point = cuda.grid(1)
        if point < out.size:
            row, i = point // out.shape[2], point % out.shape[2]
            k, j = row // out.shape[1], row % out.shape[1]
            x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
            reach = bins.reach * np.float32(half)
            left, right = first_bin(x - reach, bins), last_bin(x + reach, bins, bins.nu)
            total = f0
            for bz in range(first_bin(z - reach, bins), last_bin(z + reach, bins, bins.nw) + 1):
                for by in range(first_bin(y - reach, bins), last_bin(y + reach, bins, bins.nv) + 1):
                    line = (bz * bins.nv + by) * bins.nu
                    for a in range(starts[line + left], starts[line + right + end]):
                        dx, dy, dz = x - sorted_atoms[a, 0], y - sorted_atoms[a, 1], z - sorted_atoms[a, 2]
                        distance = dx * dx + (dy * dy + dz * dz)
                        near = f1 - distance * fade
                        if near > 0:
                            total += sorted_atoms[a, 3] * cuda.libdevice.rsqrtf(distance + square) * (near * near)
            out[k, j, i] = total

    return kernel


def binned(name, count=room.count_kernel, fill=room.fill_kernel, ask=room.binned_kernel, cleared=True):
    """`binned` with other kernels."""

    def potential(atoms, shape, cutoff, spacing=1.0, softening=1e-6):
        p = room.arguments(atoms, shape, cutoff, spacing, softening)
        if p.done:
            return p.result
        nz, ny, nx = p.result.shape
        bins, axes, n = room.bins_of((nx, ny, nz), p.spacing, p.cutoff), Axes(0, 1, 2), p.atoms.shape[0]
        numbers, ranks = device.empty(n, np.int32), device.empty(n, np.int32)
        counts = device.empty(bins.nu * bins.nv * bins.nw + 1, np.int32)
        if cleared:
            room.clear_counts_kernel[blocks(counts.size, BLOCK), BLOCK](counts)
        count[blocks(n, BLOCK), BLOCK](p.atoms, axes, bins, numbers, ranks, counts)
        starts = room.scan.vectorised(counts, exclusive=True)
        sorted_atoms = device.empty((n, 4), np.float32)
        fill[blocks(n, BLOCK), BLOCK](p.atoms, axes, numbers, ranks, starts, sorted_atoms)
        given = sorted_atoms, starts, bins, p.fade, p.spacing, p.square, p.result
        ask[blocks(p.result.size, BLOCK), BLOCK](*given)
        return p.result

    potential.__name__ = name
    return potential


RUNGS = (
    WrongRung(all_asked(near, guard=False, name="no_guard"), "out of bounds"),
    WrongRung(all_asked(not_squared, name="square_compared_with_the_cutoff"), "wrong result"),
    WrongRung(all_asked(hard, name="nothing_fades"), "wrong result"),
    WrongRung(all_asked(not_tested, name="beyond_the_cutoff_not_left_out"), "wrong result"),
    WrongRung(binned("ranks_without_an_atomic", count=count_unranked_kernel), "race"),
    WrongRung(binned("counts_not_cleared", cleared=False), "out of bounds"),
    WrongRung(binned("atoms_outside_counted", count=count_anywhere_kernel), "out of bounds"),
    WrongRung(binned("full_bins_drop_atoms", fill=fill_with_room_kernel), "wrong result"),
    WrongRung(binned("reach_of_half_a_cutoff", ask=reach_kernel(0.5, 1)), "wrong result"),
    WrongRung(binned("last_bin_left_out", ask=reach_kernel(1.0, 0)), "wrong result"),
)
RIGHT = (all_asked(near, name="all_asked_right"), binned("binned_right", ask=reach_kernel(1.0, 1)))
