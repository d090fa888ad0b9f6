"""Cutoff: the potential of the charges that are near a point, for work that grows as the volume and not as its square.

Chapter: notebooks/48_electrostatic_potential.ipynb.  PMPP 4e ch. 18; 5e ch. 21.

With a thousand times the volume, at the same density, all pairs are a million times the work. Far charges hardly
matter, or are summed up in another way, so only those within a cutoff are wanted. Then finding them must cost less than
asking all: atoms are sorted into bins, and a point looks at the bins around it.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import blocks
from pmpp.kernels.potential import ladder
from pmpp.kernels.potential.ladder import Axes, axes_of, coordinates, seen_along
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

DTYPES = ("float32",)
BLOCK = 128  # threads a block
EACH = 8  # points of a thread, along w
LANES_U, LANES_V = 8, 4  # lanes of a warp, along u and v: with EACH a box of 8 x 4 x 8 points
PARTS = 4  # bins to a cutoff
MOST_BINS = 2**20
f0, f1 = np.float32(0), np.float32(1)


def reference(
    atoms: np.ndarray, shape: tuple[int, int, int], cutoff: float, spacing: float = 1.0, softening: float = 1e-6
) -> np.ndarray:
    """Atom by atom, at points nearer than the cutoff c: q / sqrt(r^2 + softening^2) * (1 - r^2 / c^2)^2."""
    return _summed(atoms, shape, cutoff, spacing, softening, 2).astype(np.float32)


def _summed(atoms, shape, cutoff, spacing, softening, power):
    """The sum with another power of what fades towards the cutoff; 0 leaves the fading out."""
    z, y, x = np.meshgrid(*(coordinates(n, spacing).astype(np.float64) for n in shape), indexing="ij")
    out = np.zeros(shape)
    with np.errstate(all="ignore"):
        for ax, ay, az, q in atoms.astype(np.float64):
            squares = (x - ax) ** 2 + (y - ay) ** 2 + (z - az) ** 2
            fading = (1 - squares / cutoff**2) ** power
            out += np.where(squares < cutoff**2, q / np.sqrt(squares + softening**2) * fading, 0)
        return out


def inputs() -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(49)

    def case(n: int, shape: tuple[int, int, int], cutoff: float, spacing: float = 1.0, softening: float = 1e-6):
        size = tuple(max(edge - 1, 1) * spacing for edge in reversed(shape))
        return ladder.atoms_in_box(n, size, rng), shape, cutoff, spacing, softening

    made = {
        "no atom": case(0, (2, 3, 4), 2),
        "no point": case(5, (3, 0, 4), 2),
        "one atom, one point": case(1, (1, 1, 1), 3),
        "a line along x": case(9, (1, 1, 37), 2.5),
        "a slice": case(40, (1, 13, 21), 1.5, 0.5),
        "an odd grid": case(60, (5, 7, 11), 2.2, 0.7, 0.3),
        "a box of a warp and one more": case(60, (EACH + 1, LANES_V + 1, LANES_U + 1), 2),
        "many in reach": case(300, (2, 3, 4), 2),
        "a cutoff beyond the box": case(50, (5, 6, 7), 40.0),
        "a cutoff below the spacing": case(60, (2, 3, 4), 0.6),
    }
    crowd = case(50, (4, 5, 6), 2.5)
    crowd[0][:, :3] = crowd[0][:, :3] / 32 + 2
    made["all atoms in one bin"] = crowd
    outside = case(50, (4, 5, 6), 2.5)
    outside[0][:, :3] = 5 * outside[0][:, :3] - 10
    outside[0][3, 0], outside[0][4, 1], outside[0][5, 2] = 1e9, -1e17, np.nan
    made["most atoms outside, one nowhere"] = outside
    charged = case(30, (3, 4, 5), 2)
    charged[0][4, 3], charged[0][7, 3], charged[0][2, 3] = 0, np.nan, 1e30
    made["charges that are zero, huge and no number"] = charged
    on_points = case(8, (3, 4, 5), 2)
    on_points[0][:, :3] = np.rint(on_points[0][:, :3])
    made["atoms on points, and on the cutoff of others"] = on_points
    return made


def cost(pairs: int, atoms: int, points: int) -> Cost:
    """Ten FLOP for each pair within the cutoff: the six of all pairs, and four for what fades towards the cutoff."""
    return Cost(flops=10 * pairs, bytes=16 * atoms + 4 * points)


def tolerance(
    atoms: np.ndarray, shape: tuple[int, int, int], cutoff: float, spacing: float = 1.0, softening: float = 1e-6
) -> np.ndarray:
    """How far from the exact sum a right one may be, for each point: as for all pairs, of the atoms within the cutoff.

    What fades is 1 less a square that is off by 7 halves of an eps, and enters twice: 14 more, of the term without it.
    An atom so near to the cutoff that rounding decides whether it counts adds nothing that could be seen.
    """
    sizes = atoms.copy()
    known = np.isfinite(sizes).all(axis=1)
    sizes[:, 3] = np.where(known, np.abs(sizes[:, 3]), 0)
    sizes[~np.isfinite(sizes)] = 0
    largest = _summed(sizes, shape, cutoff * (1 + 1e-6), spacing, softening, 0)
    return (len(atoms) + 24) * (np.finfo(np.float32).eps / 2 * largest + 2.0**-126)


class Bins(typing.NamedTuple):
    """Cubes that cover all places within the cutoff of any point, in order [w, v, u] as the points are.

    There are ``nu``, ``nv`` and ``nw`` of them along these axes, and on each axis they begin at ``start``.
    """

    nu: int
    nv: int
    nw: int
    start: np.float32
    side: np.float32
    inverse: np.float32  # of the side
    reach: np.float32  # the cutoff, and a little more, so that no rounding leaves an atom out


def bins_of(extents: tuple[int, int, int], spacing: float, cutoff: float) -> Bins:
    """Bins for points along (u, v, w): a quarter of a cutoff wide, and wider where they would be more than a million.

    If the spacing is longer than the cutoff, they are a quarter of that: a warp walks through all bins between its own
    points, and of smaller ones there would be ever more.

    >>> bins_of((65, 65, 1), 0.5, 8)[:3]
    (26, 26, 10)
    """
    lengths = [max(n - 1, 0) * float(spacing) for n in extents]
    reach = np.float32(cutoff * (1 + 2.0**-19) + max(lengths) * 2.0**-19)
    side = max(cutoff, spacing) / PARTS

    def counts() -> list[int]:
        return [int((length + 2 * float(reach)) / side) + 2 for length in lengths]

    while math.prod(counts()) > MOST_BINS:
        side *= 1.25
    return Bins(*counts(), -reach, np.float32(side), np.float32(1 / side), reach)


def arguments(atoms, shape, cutoff, spacing=1.0, softening=1e-6, *, out=None, stream=0) -> Problem:
    """The potential of the point charges within a cutoff, at the points of a regular grid, without units.

    An atom at a distance r less than the cutoff c adds q / sqrt(r^2 + softening^2) * (1 - r^2 / c^2)^2. The last factor
    fades to 0 at the cutoff: without it the potential would jump where an atom comes into reach.

    Args:
        atoms: a contiguous array (n, 4) of float32, 0 <= n < 2^31: x, y, z and charge of each. Places are less than
            1e18 in size: that is not checked. An atom whose place is NaN is within no cutoff.
        shape: how many points there are: three integers (nz, ny, nx). Point [k, j, i] of the result lies at
            x = i * spacing, y = j * spacing, z = k * spacing.
        cutoff: from 1e-15 to 1e15.
        spacing: the distance of neighbouring points, from 1e-15 to 1e15. The grid ends before 1e18.
        softening: as for all pairs, from 1e-15 to 1e15.
        out: a device array of that shape, of float32, apart from ``atoms`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. With bins, atoms of a bin come in any order, so on a GPU
    two calls may differ in the last bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 18.5; Rodrigues and others, "GPU acceleration of cutoff pair potentials for molecular
    modeling applications" (2008).

    >>> from pmpp.kernels.potential import cutoff
    >>> cutoff.by_box(np.float32([[0, 0, 0, 1]]), (1, 1, 5), 2.0, 0.5, 0.1).copy_to_host().round(3)
    array([[[10.   ,  1.724,  0.56 ,  0.127,  0.   ]]], dtype=float32)
    """
    cutoff = as_number("cutoff", cutoff, 1e-15, 1e15)  # first: without atoms the next line writes the result
    p = ladder.arguments(atoms, shape, spacing, softening, out=out, stream=stream)
    if p.atoms.shape[0] >= 2**31:
        raise ValueError(f"atoms must be fewer than 2^31, had {p.atoms.shape[0]}")
    return p.replace(cutoff=cutoff, fade=np.float32(1 / float(cutoff) ** 2))


# ------------------------------------------------------------------------------------------------------- all are asked


@cuda.jit
def all_asked_kernel(atoms, fade, spacing, square, out):
    point = cuda.grid(1)
    if point < out.size:
        row, i = divmod(point, out.shape[2])
        k, j = divmod(row, out.shape[1])
        x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
        total = f0
        for a in range(atoms.shape[0]):
            dx, dy, dz = x - atoms[a, 0], y - atoms[a, 1], z - atoms[a, 2]
            distance = dx * dx + (dy * dy + dz * dz)  # its square
            near = f1 - distance * fade
            if near > 0:
                total += atoms[a, 3] * cuda.libdevice.rsqrtf(distance + square) * (near * near)
        out[k, j, i] = total


@rung(all_asked_kernel, begin=False)
def all_asked(p):
    """A thread takes a point, and asks each atom whether it is near: by the square of its distance, without a root.

    Source: PMPP 4e section 18.5; 5e chapter 21.

    Leaves: nearly all answers are no. With the volume, points and atoms both grow.
    """
    given = p.atoms, p.fade, p.spacing, p.square, p.result
    all_asked_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](*given)


# ---------------------------------------------------------------------------------------------------------------- bins


@cuda.jit
def count_kernel(atoms, axes, bins, numbers, ranks, counts):
    """The bin of each atom, -1 for an atom in none; and how many came before it to that bin."""
    i = cuda.grid(1)
    if i < atoms.shape[0]:
        u = (atoms[i, axes.u] - bins.start) * bins.inverse
        v = (atoms[i, axes.v] - bins.start) * bins.inverse
        w = (atoms[i, axes.w] - bins.start) * bins.inverse
        number = np.int32(-1)
        if 0 <= u < bins.nu and 0 <= v < bins.nv and 0 <= w < bins.nw:
            number = np.int32((np.int32(w) * bins.nv + np.int32(v)) * bins.nu + np.int32(u))
            ranks[i] = cuda.atomic.add(counts, number, 1)
        numbers[i] = number


@cuda.jit
def fill_kernel(atoms, axes, numbers, ranks, starts, sorted_atoms):
    """Each atom to its place, with its numbers in the order u, v, w, q."""
    i = cuda.grid(1)
    if i < atoms.shape[0] and numbers[i] >= 0:
        at = starts[numbers[i]] + ranks[i]
        sorted_atoms[at, 0], sorted_atoms[at, 1] = atoms[i, axes.u], atoms[i, axes.v]
        sorted_atoms[at, 2], sorted_atoms[at, 3] = atoms[i, axes.w], atoms[i, 3]


@cuda.jit
def clear_counts_kernel(counts):
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0


def sort_into_bins(p, axes: Axes, bins: Bins):
    """The atoms, bin by bin, and where each bin starts: a counting sort, as in chapter 42."""
    n, count = p.atoms.shape[0], bins.nu * bins.nv * bins.nw + 1
    numbers, ranks = (device.empty(n, np.int32, stream=p.stream) for _ in range(2))
    counts = device.empty(count, np.int32, stream=p.stream)
    clear_counts_kernel[blocks(count, BLOCK), BLOCK, p.stream](counts)
    count_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.atoms, axes, bins, numbers, ranks, counts)
    starts = scan.vectorised(counts, exclusive=True, stream=p.stream)
    sorted_atoms = device.empty((n, 4), np.float32, stream=p.stream)
    fill_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.atoms, axes, numbers, ranks, starts, sorted_atoms)
    return sorted_atoms, starts


@cuda.jit(device=True)
def first_bin(place, bins):
    """The first bin of an axis that may have something at ``place`` or behind."""
    return max(np.int32(0), np.int32((place - bins.start) * bins.inverse))


@cuda.jit(device=True)
def last_bin(place, bins, count):
    """The last one of ``count`` that may have something at ``place`` or before."""
    return min(np.int32(count - 1), np.int32((place - bins.start) * bins.inverse))


@cuda.jit
def binned_kernel(sorted_atoms, starts, bins, fade, spacing, square, out):
    point = cuda.grid(1)
    if point < out.size:
        row, i = divmod(point, out.shape[2])
        k, j = divmod(row, out.shape[1])
        x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
        left, right = first_bin(x - bins.reach, bins), last_bin(x + bins.reach, bins, bins.nu)
        total = f0
        for bz in range(first_bin(z - bins.reach, bins), last_bin(z + bins.reach, bins, bins.nw) + 1):
            for by in range(first_bin(y - bins.reach, bins), last_bin(y + bins.reach, bins, bins.nv) + 1):
                line = (bz * bins.nv + by) * bins.nu
                for a in range(starts[line + left], starts[line + right + 1]):
                    dx, dy, dz = x - sorted_atoms[a, 0], y - sorted_atoms[a, 1], z - sorted_atoms[a, 2]
                    distance = dx * dx + (dy * dy + dz * dz)
                    near = f1 - distance * fade
                    if near > 0:
                        total += sorted_atoms[a, 3] * cuda.libdevice.rsqrtf(distance + square) * (near * near)
        out[k, j, i] = total


@rung(clear_counts_kernel, count_kernel, fill_kernel, binned_kernel, begin=False)
def binned(p):
    """Atoms are sorted into bins, and a point asks those in the bins around it.

    Bins along x lie side by side in memory, so a line of them is one range of atoms.

    Source: PMPP 4e section 18.5; 5e chapter 21. PMPP gives each bin room for a fixed number of atoms, and leaves what
    is too many to the CPU. A counting sort needs no such number.

    Leaves: lanes of a warp go to different bins, and a corner of the cube of bins is far outside the cutoff.
    """
    nz, ny, nx = p.result.shape
    bins = bins_of((nx, ny, nz), p.spacing, p.cutoff)
    given = *sort_into_bins(p, Axes(0, 1, 2), bins), bins, p.fade, p.spacing, p.square, p.result
    binned_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](*given)


# ------------------------------------------------------------------------------------------------------ a warp together


@cuda.jit(device=True)
def gap(low, high, start, end):
    """How far apart two intervals lie, 0 if they touch."""
    return max(f0, start - high, low - end)


@cuda.jit(fastmath=True)
def by_box_kernel(sorted_atoms, starts, bins, fade, spacing, square, out):
    warp, lane = np.int64(cuda.grid(1)) // 32, cuda.laneid
    line, iu = divmod(warp, (out.shape[2] + LANES_U - 1) // LANES_U)
    iw, iv = divmod(line, (out.shape[1] + LANES_V - 1) // LANES_V)
    i, j, k = iu * LANES_U, iv * LANES_V, iw * EACH  # the box begins here
    if k >= out.shape[0]:
        return
    u_low, v_low, w_low = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
    u_high = np.float32(i + LANES_U - 1) * spacing
    v_high, w_high = np.float32(j + LANES_V - 1) * spacing, np.float32(k + EACH - 1) * spacing
    i, j = i + lane % LANES_U, j + lane // LANES_U  # and this is the lane's point
    u, v = np.float32(i) * spacing, np.float32(j) * spacing
    w, totals = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        w[e], totals[e] = np.float32(k + e) * spacing, f0
    for bw in range(first_bin(w_low - bins.reach, bins), last_bin(w_high + bins.reach, bins, bins.nw) + 1):
        edge = bins.start + np.float32(bw) * bins.side
        far_w = gap(w_low, w_high, edge, edge + bins.side)
        for bv in range(first_bin(v_low - bins.reach, bins), last_bin(v_high + bins.reach, bins, bins.nv) + 1):
            edge = bins.start + np.float32(bv) * bins.side
            far_v = gap(v_low, v_high, edge, edge + bins.side)
            rest = bins.reach * bins.reach - (far_w * far_w + far_v * far_v)
            if rest > 0:  # the line of bins comes near enough, and so far it reaches along u
                half = cuda.libdevice.sqrtf(rest)
                before = (bw * bins.nv + bv) * bins.nu
                first = starts[before + first_bin(u_low - half, bins)]
                end = starts[before + last_bin(u_high + half, bins, bins.nu) + 1]
                for a in range(first, end):
                    au, av, aw, q = load128(sorted_atoms, 4 * np.int64(a))
                    du, dv = u - au, v - av
                    of_column = du * du + dv * dv
                    for e in range(EACH):
                        dw = w[e] - aw
                        distance = dw * dw + of_column
                        near = f1 - distance * fade
                        if near > 0:
                            totals[e] += q * cuda.libdevice.rsqrtf(distance + square) * (near * near)
    if i < out.shape[2] and j < out.shape[1]:
        for e in range(EACH):
            if k + e < out.shape[0]:
                out[k + e, j, i] = totals[e]


@rung(clear_counts_kernel, count_kernel, fill_kernel, by_box_kernel, begin=False)
def by_box(p):
    """A warp takes a box of 8 x 4 x 8 points, and goes through the bins that come near the box: all lanes together.

    A lane has eight points, as before. Lines of bins that are too far from the box are left out, and a line that is
    nearly too far is shortened.

    Source: PMPP 4e section 18.5; Rodrigues and others (2008).
    """
    axes = axes_of(p.result.shape)
    out = seen_along(p.result, axes)
    nw, nv, nu = out.shape
    bins = bins_of((nu, nv, nw), p.spacing, p.cutoff)
    warps = blocks(nw, EACH) * blocks(nv, LANES_V) * blocks(nu, LANES_U)
    given = *sort_into_bins(p, axes, bins), bins, p.fade, p.spacing, p.square, out
    by_box_kernel[blocks(warps, BLOCK // 32), BLOCK, p.stream](*given)


LADDER = (all_asked, binned, by_box)
