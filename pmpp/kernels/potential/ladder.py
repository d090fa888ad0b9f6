"""Potential: the electric potential of point charges, at every point of a regular grid.

Chapter: notebooks/48_electrostatic_potential.ipynb.  PMPP 4e ch. 18; 5e ch. 21.

Every atom acts on every point: q / distance, with one reciprocal square root for each pair. Little is read, so
arithmetic is the bound. It is not the bound of multiply-adds, though: a multiprocessor does 128 of these in a cycle,
but only 16 reciprocal square roots.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128
from pmpp.runtime.views import strided

DTYPES = ("float32",)
BLOCK = 128  # threads a block, and atoms that a block brings to shared memory at a time
NUMBERS = 4 * BLOCK  # x, y, z and q of these atoms
EACH = 8  # points of a thread
BY_HAND = 1  # of them, how many take their reciprocal roots from multiply-adds
f0 = np.float32(0)


def coordinates(n: int, spacing: float) -> np.ndarray:
    """Where the points of an axis lie: i * spacing in float32, as kernels compute it."""
    return np.arange(n).astype(np.float32) * np.float32(spacing)


def reference(
    atoms: np.ndarray, shape: tuple[int, int, int], spacing: float = 1.0, softening: float = 1e-6
) -> np.ndarray:
    """Atom by atom: q / sqrt(distance^2 + softening^2), at all points."""
    z, y, x = np.meshgrid(*(coordinates(n, spacing).astype(np.float64) for n in shape), indexing="ij")
    out = np.zeros(shape)
    with np.errstate(all="ignore"):
        for ax, ay, az, q in atoms.astype(np.float64):
            out += q / np.sqrt((x - ax) ** 2 + (y - ay) ** 2 + (z - az) ** 2 + softening**2)
        return out.astype(np.float32)


def atoms_in_box(n: int, size: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """So many atoms at random places of a box from 0 to size (x, y, z), with charges of both signs: (n, 4) float32."""
    drawn = rng.random((n, 3)) * size, rng.standard_normal((n, 1))
    return np.ascontiguousarray(np.concatenate(drawn, axis=1), np.float32)


def rock_salt(cells: int) -> np.ndarray:
    """A crystal of NaCl with so many ions along each edge, at distance 1: charges 1 and -1 in turn, (cells^3, 4).

    >>> rock_salt(2)[:3]
    array([[ 0.,  0.,  0.,  1.],
           [ 0.,  0.,  1., -1.],
           [ 0.,  1.,  0., -1.]], dtype=float32)
    """
    places = np.indices((cells, cells, cells)).reshape(3, -1).T
    charges = 1 - 2 * (places.sum(axis=1, keepdims=True) % 2)
    return np.ascontiguousarray(np.concatenate([places, charges], axis=1), np.float32)


def inputs() -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(48)

    def case(n: int, shape: tuple[int, int, int], spacing: float = 1.0, softening: float = 1e-6) -> tuple:
        size = tuple(max(edge - 1, 1) * spacing for edge in reversed(shape))
        return atoms_in_box(n, size, rng), shape, spacing, softening

    made = {
        "no atom": case(0, (2, 3, 4)),
        "no point": case(5, (3, 0, 4)),
        "one atom, one point": case(1, (1, 1, 1)),
        "one point": case(300, (1, 1, 1)),
        "a line along x": case(3, (1, 1, 37), 0.5),
        "a line along z": case(3, (19, 1, 1)),
        "a slice": case(9, (1, 13, 21), 0.25),
        "an odd grid": case(20, (7, 9, 11), 0.7, 0.3),
        "deep": case(4, (2 * EACH + 1, 3, 5)),
    }
    made |= {f"a tile of atoms {d:+}": case(BLOCK + d, (2, 3, 5)) for d in (-1, 0, 1)}
    made |= {f"a block of points {d:+}": case(2, (EACH, 1, BLOCK + d)) for d in (-1, 0, 1)}
    on_points = case(6, (3, 4, 5))
    on_points[0][:, :3] = np.rint(on_points[0][:, :3])
    on_points[0][2, :3], on_points[0][3, :3], on_points[0][4, 3] = on_points[0][0, :3], 1, 0
    made["atoms on points, two in one place, one without charge"] = on_points
    made["far away"] = np.float32([[1e6, -2e6, 3e6, 5], [-1e17, 0, 1e17, 1e10]]), (2, 2, 9), 1.0, 1e-6
    salt = rock_salt(4)
    salt[:, :3] += np.float32(0.5)
    made["a crystal between the points"] = salt, (5, 5, 5), 1.0, 1e-6
    lost = case(5, (2, 3, 4))
    lost[0][3, 1], lost[0][1, 3] = np.nan, np.inf
    made["a place that is no number"] = lost
    endless = case(5, (2, 3, 4))
    endless[0][1, 3], endless[0][2, 3] = np.inf, 1e38
    made["an infinite charge"] = endless
    made["wide points"] = case(7, (2, 3, 4), 1e6, 1e5)
    return made


def cost(atoms: int, points: int) -> Cost:
    """Six FLOP for a pair: y and z of a row of points are the same, so a point adds x - ax, its square, root, product.

    The square is added as it is made, and the product, too: two multiply-adds. Atoms are read once.
    """
    return Cost(flops=6 * atoms * points, bytes=16 * atoms + 4 * points)


def tolerance(
    atoms: np.ndarray, shape: tuple[int, int, int], spacing: float = 1.0, softening: float = 1e-6
) -> np.ndarray:
    """How far from the exact sum a right one may be, for each point.

    In units of half an eps: a difference is rounded by 1, so its square is off by 3, sums of three squares and the
    softening's by 6 at most; the root halves that. A reciprocal root by the special function unit is off by 2.2 (PTX
    ISA, "rsqrt": 2^-22.9), the product rounds once, and each of n additions rounds the sum (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1). Numbers below 2^-126 count as 0.
    """
    sizes = atoms.copy()
    sizes[:, 3] = np.where(np.isfinite(sizes).all(axis=1), np.abs(sizes[:, 3]), 0)
    sizes[~np.isfinite(sizes)] = 0
    largest = reference(sizes, shape, spacing, softening).astype(np.float64)
    return (len(atoms) + 8) * (np.finfo(np.float32).eps / 2 * largest + 2.0**-126)


def as_shape(shape: typing.Any) -> tuple[int, int, int]:
    """``shape`` as three integers, none below 0 or above 2^31 - 1. Raises TypeError or ValueError that names it."""
    accepted = "three integers (nz, ny, nx), each from 0 to 2^31 - 1"
    if not isinstance(shape, tuple | list):
        raise TypeError(f"shape must be {accepted}, was {shape!r}")
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in shape)
    if len(shape) != 3 or not whole or not all(0 <= n < 2**31 for n in shape):
        raise ValueError(f"shape must be {accepted}, was {shape!r}")
    return tuple(int(n) for n in shape)


def arguments(atoms, shape, spacing=1.0, softening=1e-6, *, out=None, stream=0) -> Problem:
    """The potential of point charges at the points of a regular grid, without units: q / distance.

    Args:
        atoms: a contiguous array (n, 4) of float32, n >= 0: x, y, z and charge of each. Places are less than 1e18 in
            size, or NaN: that is not checked. A charge may be anything.
        shape: how many points there are: three integers (nz, ny, nx). Point [k, j, i] of the result lies at
            x = i * spacing, y = j * spacing, z = k * spacing.
        spacing: the distance of neighbouring points, from 1e-15 to 1e15. The grid ends before 1e18.
        softening: what is added to a distance, as sqrt(distance^2 + softening^2), from 1e-15 to 1e15. It defines the
            potential where an atom lies on a point: q / softening.
        out: a device array of that shape, of float32, apart from ``atoms`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. The same call gives the same bits on the same GPU, but for
    the rung `scattered`, whose additions come in any order.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 18.1; Stone and others, "Accelerating molecular modeling applications with graphics
    processors" (2007).

    >>> from pmpp.kernels import potential
    >>> potential.coalesced(np.float32([[0, 0, 0, 1], [1, 0, 0, -1]]), (1, 1, 4), 0.5).copy_to_host().round(3)
    array([[[ 9.99999e+05,  0.00000e+00, -9.99999e+05, -1.33300e+00]]],
          dtype=float32)
    """
    stream = device.as_stream(stream)
    atoms = device.as_input("atoms", atoms, dtypes=DTYPES, shape=(None, 4), stream=stream)
    shape = as_shape(shape)
    given, spacing = spacing, as_number("spacing", spacing, 1e-15, 1e15)
    if max(shape) * float(spacing) > 1e18:
        raise ValueError(f"spacing must end the grid before 1e18, was {given} with shape={shape}")
    softening = as_number("softening", softening, 1e-15, 1e15)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart={"atoms": atoms}, stream=stream)
    square = softening * softening
    p = Problem(out, stream=stream, begin=clear, atoms=atoms, spacing=spacing, square=square)
    if not atoms.shape[0] and out.size:
        clear(p)
        p.done = True
    return p


@cuda.jit
def clear_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0


def clear(p):
    """Every potential is 0 at the beginning."""
    clear_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.result.reshape(p.result.size))


# ------------------------------------------------------------------------------------------------- threads and atoms


@cuda.jit
def scattered_kernel(atoms, spacing, square, out):
    i = cuda.grid(1)
    if i < atoms.shape[0]:
        ax, ay, az, q = atoms[i, 0], atoms[i, 1], atoms[i, 2], atoms[i, 3]
        for k in range(out.shape[0]):
            dz = np.float32(k) * spacing - az
            for j in range(out.shape[1]):
                dy = np.float32(j) * spacing - ay
                row = dy * dy + (dz * dz + square)
                for x in range(out.shape[2]):
                    dx = np.float32(x) * spacing - ax
                    cuda.atomic.add(out, (k, j, x), q * cuda.libdevice.rsqrtf(dx * dx + row))


@rung(clear_kernel, scattered_kernel)
def scattered(p):
    """A thread takes an atom, and adds what it does to every point.

    Source: PMPP 4e section 18.2; 5e chapter 21.

    Leaves: all threads of a warp add to the same point at the same time, and each addition is an atomic one.
    """
    scattered_kernel[blocks(p.atoms.shape[0], BLOCK), BLOCK, p.stream](p.atoms, p.spacing, p.square, p.result)


# ------------------------------------------------------------------------------------------------ threads and points


@cuda.jit
def gathered_kernel(atoms, spacing, square, out):
    point = cuda.grid(1)
    if point < out.size:
        row, i = divmod(point, out.shape[2])
        k, j = divmod(row, out.shape[1])
        x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
        total = f0
        for a in range(atoms.shape[0]):
            dx, dy, dz = x - atoms[a, 0], y - atoms[a, 1], z - atoms[a, 2]
            total += atoms[a, 3] * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))
        out[k, j, i] = total


@rung(gathered_kernel, begin=False)
def gathered(p):
    """A thread takes a point, and asks every atom: the sum stays in a register, and is written once.

    Source: PMPP 4e section 18.2; 5e chapter 21.

    Leaves: four loads for each pair, all of which the caches must answer, though all threads want the same atom.
    """
    gathered_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.atoms, p.spacing, p.square, p.result)


# ------------------------------------------------------------------------------------------------------ shared memory


@cuda.jit(device=True)
def bring(atoms, first, tile):
    """Up to BLOCK atoms from ``first`` on into shared memory, a number a thread at a time; how many there are."""
    count = min(BLOCK, atoms.shape[0] - first)
    for i in range(cuda.threadIdx.x, 4 * count, BLOCK):
        tile[i] = atoms[first + i // 4, i % 4]
    return np.uint32(count)


@cuda.jit
def in_tiles_kernel(atoms, spacing, square, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    point = cuda.grid(1)
    row, i = divmod(point, out.shape[2])
    k, j = divmod(row, out.shape[1])
    x, y, z = np.float32(i) * spacing, np.float32(j) * spacing, np.float32(k) * spacing
    total = f0
    for first in range(0, atoms.shape[0], BLOCK):
        count = bring(atoms, first, tile)
        cuda.syncthreads()
        a = np.uint32(0)
        while a < count:
            ax, ay, az, q = load128(tile, 4 * a)
            dx, dy, dz = x - ax, y - ay, z - az
            total += q * cuda.libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + square)))
            a = np.uint32(a + 1)
        cuda.syncthreads()
    if point < out.size:
        out[k, j, i] = total


@rung(in_tiles_kernel, begin=False)
def in_tiles(p):
    """A block brings 128 atoms to shared memory; then one load of 128 bits hands an atom to all lanes of a warp.

    PMPP keeps the atoms in constant memory, and copies the next ones there before each launch. In Numba, constant
    memory holds only what is known when a kernel is compiled.

    Source: PMPP 4e sections 5.4 and 18.2; 5e chapter 21.

    Leaves: for each pair a load, and differences in y and z that are the same along a whole row of points.
    """
    in_tiles_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.atoms, p.spacing, p.square, p.result)


# ------------------------------------------------------------------------------------------------ several points each


@cuda.jit
def coarsened_kernel(atoms, spacing, square, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    row, part = divmod(cuda.grid(1), (out.shape[2] + EACH - 1) // EACH)
    k, j = divmod(row, out.shape[1])
    i = EACH * part
    y, z = np.float32(j) * spacing, np.float32(k) * spacing
    x, totals = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        x[e], totals[e] = np.float32(i + e) * spacing, f0
    for first in range(0, atoms.shape[0], BLOCK):
        count = bring(atoms, first, tile)
        cuda.syncthreads()
        a = np.uint32(0)
        while a < count:
            ax, ay, az, q = load128(tile, 4 * a)
            dy, dz = y - ay, z - az
            of_row = dy * dy + (dz * dz + square)
            for e in range(EACH):
                dx = x[e] - ax
                totals[e] += q * cuda.libdevice.rsqrtf(dx * dx + of_row)
            a = np.uint32(a + 1)
        cuda.syncthreads()
    if k < out.shape[0]:
        for e in range(EACH):
            if i + e < out.shape[2]:
                out[k, j, i + e] = totals[e]


@rung(coarsened_kernel, begin=False)
def coarsened(p):
    """A thread takes eight neighbours in a row of points: one load, and one part of the distance, for all eight.

    Source: PMPP 4e section 18.3; 5e chapter 21.

    Leaves: neighbouring threads write eight points apart, and a row of few points leaves threads with less than eight.
    """
    nz, ny, nx = p.result.shape
    grid = blocks(nz * ny * blocks(nx, EACH), BLOCK)
    coarsened_kernel[grid, BLOCK, p.stream](p.atoms, p.spacing, p.square, p.result)


# ---------------------------------------------------------------------------------------------------- stores in order
# The eight points of a thread may lie along any axis. So the grid is looked at with its axes in another order: w along
# the points of a thread, u along the lanes of a warp. An atom's numbers change places when they are brought.


class Axes(typing.NamedTuple):
    """Which of x, y, z (0, 1, 2) each axis of the view [w, v, u] is."""

    u: int
    v: int
    w: int


def axes_of(shape: tuple[int, int, int]) -> Axes:
    """The axis along which the fewest places of groups of EACH stay empty is w; if several do, the slowest in memory.

    x has to be much better than the others, since lanes would no longer lie along it.

    >>> axes_of((64, 64, 64)), axes_of((1, 64, 64)), axes_of((1, 1, 64))
    (Axes(u=0, v=1, w=2), Axes(u=0, v=2, w=1), Axes(u=1, v=2, w=0))
    """

    def empty(axis: int) -> float:
        return blocks(shape[2 - axis], EACH) * EACH / shape[2 - axis] + (0.5 if axis == 0 else 0)

    w = min((2, 1, 0), key=empty)
    return Axes(*(axis for axis in (0, 1, 2) if axis != w), w)


def seen_along(out, axes: Axes):
    """The same memory as ``out`` as an array [w, v, u]."""
    nz, ny, nx = out.shape
    extents, steps = (nx, ny, nz), (1, nx, nx * ny)  # of x, y and z
    order = axes.w, axes.v, axes.u
    return strided(out, tuple(extents[i] for i in order), tuple(steps[i] for i in order))


@cuda.jit(device=True)
def bring_in_order(atoms, axes, first, tile):
    """As `bring`, with an atom's numbers in the order u, v, w, q."""
    count = min(BLOCK, atoms.shape[0] - first)
    if cuda.threadIdx.x < count:
        a, at = first + cuda.threadIdx.x, 4 * cuda.threadIdx.x
        tile[at], tile[at + 1] = atoms[a, axes.u], atoms[a, axes.v]
        tile[at + 2], tile[at + 3] = atoms[a, axes.w], atoms[a, 3]
    return np.uint32(count)


@cuda.jit(fastmath=True)
def coalesced_kernel(atoms, axes, spacing, square, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    groups = (out.shape[0] + EACH - 1) // EACH
    row, i = divmod(cuda.grid(1), out.shape[2])
    k, j = divmod(row, out.shape[1])
    u, v = np.float32(i) * spacing, np.float32(j) * spacing
    w, totals = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        w[e], totals[e] = np.float32(k + e * groups) * spacing, f0
    for first in range(0, atoms.shape[0], BLOCK):
        count = bring_in_order(atoms, axes, first, tile)
        cuda.syncthreads()
        a = np.uint32(0)
        while a < count:
            au, av, aw, q = load128(tile, 4 * a)
            du, dv = u - au, v - av
            of_column = du * du + (dv * dv + square)
            for e in range(EACH):
                dw = w[e] - aw
                totals[e] += q * cuda.libdevice.rsqrtf(dw * dw + of_column)
            a = np.uint32(a + 1)
        cuda.syncthreads()
    if k < groups:
        for e in range(EACH):
            if k + e * groups < out.shape[0]:
                out[k + e * groups, j, i] = totals[e]


def launch_along(kernel, p):
    """A thread for each group of EACH points along the axis that suits the shape."""
    axes = axes_of(p.result.shape)
    out = seen_along(p.result, axes)
    grid = blocks(blocks(out.shape[0], EACH) * out.shape[1] * out.shape[2], BLOCK)
    kernel[grid, BLOCK, p.stream](p.atoms, axes, p.spacing, p.square, out)


@rung(coalesced_kernel, begin=False)
def coalesced(p):
    """The eight points of a thread lie apart, along z, or along y in a slice: neighbouring threads write neighbours.

    And numbers below 2^-126 count as 0 (``fastmath``), which saves a comparison and two multiplications for each pair.

    Source: PMPP 4e section 18.4; 5e chapter 21.

    Leaves: the special function unit has all to do, and the units for multiply-adds wait two fifths of the time.
    """
    launch_along(coalesced_kernel, p)


# --------------------------------------------------------------------------------------- reciprocal roots by both units


@cuda.jit(device=True)
def root_by_hand(x):
    """1 / sqrt(x) of a positive float32, right to 2^-23.3: multiply-adds, and no special function.

    Half of the bits, taken from a constant, halve the exponent with its sign changed: that is right to 3.5 %. With
    e = 1 - x y^2 the exact result is y / sqrt(1 - e), and |e| < 0.0682. There a polynomial of degree 4 stands for
    1 / sqrt(1 - e), with the coefficients whose largest error is the least.
    """
    y = cuda.libdevice.int_as_float(np.int32(0x5F374800 - (cuda.libdevice.float_as_int(x) >> 1)))
    e = np.float32(1) - (x * y) * y
    series = (np.float32(0.27491368) * e + np.float32(0.31393054)) * e + np.float32(0.37499781)
    return y + (y * e) * (series * e + np.float32(0.49999835))


@cuda.jit(fastmath=True)
def on_both_units_kernel(atoms, axes, spacing, square, out):
    tile = cuda.shared.array(NUMBERS, np.float32, alignment=16)
    groups = (out.shape[0] + EACH - 1) // EACH
    row, i = divmod(cuda.grid(1), out.shape[2])
    k, j = divmod(row, out.shape[1])
    u, v = np.float32(i) * spacing, np.float32(j) * spacing
    w, totals = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    for e in range(EACH):
        w[e], totals[e] = np.float32(k + e * groups) * spacing, f0
    for first in range(0, atoms.shape[0], BLOCK):
        count = bring_in_order(atoms, axes, first, tile)
        cuda.syncthreads()
        a = np.uint32(0)
        while a < count:
            au, av, aw, q = load128(tile, 4 * a)
            du, dv = u - au, v - av
            of_column = du * du + (dv * dv + square)
            for e in range(EACH):
                dw = w[e] - aw
                if e < BY_HAND:
                    totals[e] += q * root_by_hand(dw * dw + of_column)
                else:
                    totals[e] += q * cuda.libdevice.rsqrtf(dw * dw + of_column)
            a = np.uint32(a + 1)
        cuda.syncthreads()
    if k < groups:
        for e in range(EACH):
            if k + e * groups < out.shape[0]:
                out[k + e * groups, j, i] = totals[e]


@rung(on_both_units_kernel, begin=False)
def on_both_units(p):
    """Of a thread's eight points one takes its reciprocal root from multiply-adds, while the other seven wait.

    Source: Blinn, "Floating-point tricks" (1997), for the bits; Shah and others, "FlashAttention-3" (2024), and its
    successor, for the thought that units which wait can stand in for the one that is the bound.
    """
    launch_along(on_both_units_kernel, p)


LADDER = (scattered, gathered, in_tiles, coarsened, coalesced, on_both_units)
