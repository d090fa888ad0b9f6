# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 48. Electrostatic potential
#
# *All pairs of atoms and points, scattering and gathering, several points a thread, the roof of reciprocal square
# roots, work shared by two units, a cutoff with bins, n bodies. Read chapters [12](12_matmul.ipynb),
# [20](20_memory_or_compute.ipynb), [28](28_histogram.ipynb), [34](34_scan.ipynb) and [42](42_sorting.ipynb) before.
# 80 minutes. PMPP 4e: chapter 18; 5e: chapter 21. The code is
# [pmpp/kernels/potential/ladder.py](../pmpp/kernels/potential/ladder.py) and
# [cutoff.py](../pmpp/kernels/potential/cutoff.py).*
#
# An atom with a charge acts on its surroundings, and its potential falls as 1 over the distance. Whoever wants to know
# where an ion fits into a protein needs the potential of all its atoms, at all points of a grid. 1,024 atoms and 256^3
# points are seventeen billion pairs.
#
# Hardly anything is read, so memory is not the bound. It is arithmetic, and for each pair there is a square root and a
# division. **The question of this chapter: which arithmetic is the bound, and what can be done if it is not the one
# that the GPU is famous for?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import potential
from pmpp.kernels.potential import cutoff, cutoff_workloads, roots_alone
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A crystal
#
# Salt is a crystal: ions of sodium and chlorine, with charges 1 and -1 in turn, on the places of a cube. We need no
# file for it, and we shall meet a number that is known to many digits. Atoms are rows of four float32: x, y, z and the
# charge.

# %%
salt = potential.rock_salt(6)
salt[:, :2] += 1
plane = device.to_host(potential.of_charges(salt, (1, 64, 64), spacing=7 / 63, softening=0.1))[0]
figure, ax = chart(3.6)
picture = ax.imshow(plane, cmap="RdBu_r", vmin=-3, vmax=3, extent=(0, 7, 7, 0))
figure.colorbar(picture, label="potential")
ax.set(xlabel="x", ylabel="y", title="A slice through 216 ions, z = 0")
figure

# %% [markdown]
# Red is positive. The potential at a point is the sum over all atoms of q / distance. Where an atom lies exactly on a
# point, that would be infinite, so a little is added: sqrt(distance^2 + softening^2). A softening of 0.1 is much; it
# changes only what lies close to an ion. By default it is a millionth.
#
# ## The bound
#
# The points of a row share y and z. So for a pair a kernel must compute the difference in x, add its square to what the
# row knows already, take the reciprocal square root, and add the product with the charge. With two multiply-adds that
# is three instructions and one root.

# %%
show(potential.cost)

# %% [markdown]
# A multiprocessor of an H200 has 128 lanes for multiply-adds. Roots are made by another unit, the *special function
# unit*, and there are 16 lanes of these.
#
# **Predict, then run.** There are 1,024 atoms and 256^3 points. How long does an H200 need at least for the three
# instructions of each pair, and how long for its root? It has 132 multiprocessors at 1.98 GHz.

# %%
guess = {"multiply-adds": None, "roots": None}  # ms

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
pairs, lanes = 1024 * 256**3, h200.sms * h200.clock
least = {"multiply-adds": 3 * pairs / (h200.architecture.fp32 * lanes), "roots": pairs / (16 * lanes)}
predict(guess, {name: 1e3 * seconds for name, seconds in least.items()}, factor=1.2, unit="ms")

# %% [markdown]
# Roots take nearly three times as long. The roofline of earlier chapters knows nothing of them: it counts a root as one
# of six FLOP. So this chapter has a roof of its own, and measures it: a kernel that does nothing but roots.

# %%
show(roots_alone.roots_alone_kernel)

# %% [markdown]
# ## The reference

# %%
show(potential.reference)

# %% [markdown]
# ## Rung 1: `scattered`
#
# The reference goes through the atoms, and so may threads: each takes an atom, and adds what it does to every point.
# That is called *scattering*. Threads meet at the points, so each addition is an atomic.

# %%
show(potential.scattered_kernel)

# %% [markdown]
# The loops begin at the first point for all threads, so all lanes of a warp add to the same address at the same time.
#
# **Predict, then run.** 128 atoms and 1,024 points: how many additions by an atomic are these, counted by lane?

# %%
guess = None  # additions

atoms = potential.atoms_in_box(128, (32, 4, 8), np.random.default_rng(0))
GRID = (8, 4, 32)
counted = {rung.name: lab.count(rung, atoms, GRID).counters for rung in potential.LADDER}
predict(guess, counted["scattered"]["atomic_lanes"], unit="additions")


# %%
def recorded(*names, room="potential", family="cube"):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load(room=room)
        for entry in kept.design(room, family):
            if entry.contender in names:
                share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings(room))
                print(f"{entry.contender:14} {entry.median_ms:9.4g} ms, {share:6.1%} of the roof of multiply-adds")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("scattered", "cupy.rsqrt", "torch.rsqrt")

# %% [markdown]
# The libraries have no function for this, but they have arrays. They make one of all pairs of some atoms with all
# points, take its roots, and multiply it by the charges. Every step of that goes through memory.
#
# ## Rung 2: `gathered`
#
# Turn it around. A thread takes a point, goes through all atoms, and adds up in a register. That is *gathering*: a
# thread reads much and writes one thing, and nobody else writes it. Whenever you have the choice, gather.

# %%
show(potential.gathered_kernel)

# %% [markdown]
# An atom has four numbers, and all lanes of a warp want the same one.
#
# **Predict, then run.** For the same 128 atoms and 1,024 points, how many loads do warps make?

# %%
guess = None  # loads of a warp

predict(guess, counted["gathered"]["global_load_requests"], unit="loads")

# %% [markdown]
# A load for which all lanes have the same address is one sector. The first-level cache has it, and memory hears nothing
# of it. But there are four loads to eleven operations, and a load takes longer than an addition.

# %%
recorded("scattered", "gathered", "cupy.rsqrt")

# %% [markdown]
# ### Exercise: the field
#
# The *field* is the slope of the potential: it has a direction at each point, and it says where a charge would be
# pushed. It is gathered in the same way. `check` runs your kernel in the interpreter. Replace `pass`.

# %%
exercise("potential/field")


# %%
@cuda.jit
def field(atoms, spacing, square, field):
    pass  # your code


check("potential/field", field)

# %% [markdown]
# ## Rung 3: `in_tiles`
#
# PMPP puts the atoms into *constant memory*, which hands one value to all lanes of a warp at once. A program copies
# some thousands of atoms there, launches, copies the next. Numba's constant memory holds only what is known when the
# kernel is compiled, and atoms are not. Shared memory does the same: where all lanes read one address, it is one
# access. And `load128` brings all four numbers of an atom.

# %%
show(potential.bring)
show(potential.in_tiles_kernel)

# %% [markdown]
# The guard stands at the end. A thread without a point helps to bring atoms, and takes part in the barriers.

# %%
recorded("gathered", "in_tiles")

# %% [markdown]
# ## Rung 4: `coarsened`
#
# There is still a load for each pair. And the differences in y and z, and their squares, are the same for all points of
# a row. So a thread takes eight neighbours of a row, has eight sums in registers, and does once for all of them what
# they share.

# %%
show(potential.coarsened_kernel)

# %% [markdown]
# `gathered` has 11 FLOP for each pair, the root apart.
#
# **Predict, then run.** How many has this kernel for each pair, on average?

# %%
guess = None  # FLOP for each pair

PAIRS = atoms.shape[0] * np.prod(GRID)
predict(guess, counted["coarsened"]["flops"] / PAIRS, factor=1.1, unit="FLOP for each pair")

# %%
for name, counters in counted.items():
    each = counters["flops"] / PAIRS, 32 * counters["warp_instructions"] / PAIRS
    print(f"{name:14} {each[0]:5.2f} FLOP, {each[1]:5.2f} instructions for each pair")
recorded("in_tiles", "coarsened")

# %% [markdown]
# The interpreter counts each operation as an instruction; the compiler needs fewer, since it joins a multiplication and
# an addition.
#
# ## Rung 5: `coalesced`
#
# When the eight sums are written, neighbouring threads write eight points apart.
#
# **Predict, then run.** How many sectors of 32 bytes do the stores of the 1,024 points ask for, added up store by
# store?

# %%
guess = None  # sectors

predict(guess, counted["coarsened"]["global_store_sectors"], unit="sectors")

# %% [markdown]
# One for each number, eight times as many as needed. It is little beside a thousand atoms, and much beside few. The
# cure: the eight points of a thread lie along z, and the lanes of a warp along x. Then x and y are shared, and the
# difference in z is each point's own. And where the grid is a slice with one z? Then along y. The kernel looks at the
# grid with its axes in another order, and calls them u, v and w.

# %%
show(potential.axes_of)
show(potential.coalesced_kernel)

# %%
for shape in ((256, 256, 256), (1, 1024, 1024), (1, 1, 4096), (9, 100, 128)):
    print(f"{shape!s:16} w is {'xyz'[potential.axes_of(shape).w]}")

# %% [markdown]
# One word is new: `fastmath`. The instruction for a reciprocal root takes numbers below 2^-126 for 0. By default the
# compiler guards it: it compares each number, multiplies small ones by 2^24, and the result by 2^12 then. With
# `fastmath` such numbers count as 0. A sum of squares and the softening, which is at least 10^-15, is never so small.

# %%
recorded("coarsened", "coalesced")


# %%
def beside_the_roof(*names):
    """The record's times beside the same number of roots and nothing else."""
    kept = record.load(room="potential")
    entries = kept.design("potential", "roof of roots")
    roof = next(entry for entry in entries if entry.contender == "cuda.roots_alone")
    print(f"{1024 * 256**3 / roof.seconds / 1e12:.2f} million million roots in a second")
    for entry in entries:
        if entry.contender in names:
            print(f"{entry.contender:17} {entry.median_ms:8.4g} ms, {roof.seconds / entry.seconds:6.1%} of the roof")


plots.drawn(beside_the_roof, "gathered", "in_tiles", "coarsened", "coalesced")

# %% [markdown]
# ## Rung 6: `on_both_units`
#
# At the roof, the special function unit is busy all the time. A warp of 32 lanes keeps it busy for two cycles of the
# multiprocessor. In these, four schedulers could issue eight instructions, and a pair has fewer than five. So the other
# units wait two fifths of the time. Could they make roots?
#
# They can, with an old trick. Look at the bits of a float32: first come the sign and the exponent, and then the
# fraction. To halve the bits is to halve the exponent, so that is nearly a square root. To subtract them from a
# constant turns the sign of the exponent around, and so it is nearly the reciprocal.


# %%
@cuda.jit
def first_guess(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = cuda.libdevice.int_as_float(np.int32(0x5F374800 - (cuda.libdevice.float_as_int(x[i]) >> 1)))


@cuda.jit
def by_hand(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = potential.root_by_hand(x[i])


x = np.geomspace(1, 16, 2048).astype(np.float32)
guessed, made = (device.to_device(np.empty_like(x)) for _ in range(2))
first_guess[16, 128](x, guessed)
by_hand[16, 128](x, made)

# %% [markdown]
# **Predict, then run.** By how many percent is this first guess wrong, at most?

# %%
guess = None  # percent


def error_of(result):
    return device.to_host(result) * np.sqrt(x.astype(np.float64)) - 1


predict(guess, 100 * np.abs(error_of(guessed)).max(), factor=1.3, unit="percent")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(x, 100 * error_of(guessed), color=palette.COLOURS[1])
left.set(xscale="log", xlabel="x", ylabel="error (%)", title="half the bits, from a constant")
right.plot(x, error_of(made) * 2**24, ".", ms=2, color=palette.COLOURS[0])
_ = right.set(xscale="log", xlabel="x", ylabel="error (2^-24)", title="and a polynomial")

# %% [markdown]
# The rest is a polynomial. If y is the guess and e = 1 - x y^2, the exact result is y / sqrt(1 - e). e is small, so a
# polynomial of degree 4 will do, with coefficients whose largest error is the least. On the right, the error is below
# 2^-23; the special function unit is promised to 2^-22.9.

# %%
show(potential.root_by_hand)

# %% [markdown]
# That is seven multiply-adds and multiplications, and two instructions for the bits: nine, where the other unit needs
# one. So it pays for some of the points only. How many?
#
# **Predict, then run.** A thread has eight points, and each takes three instructions for the pair, besides its root.
# Six more are shared by all eight. The four schedulers issue four warps' instructions a cycle, and the special function
# unit takes two cycles for a warp's root. If *h* of the eight roots are made by hand, which *h* is best by this count?

# %%
guess = None  # roots by hand


def cycles(h, each=8):
    """Of a multiprocessor, for a warp's pairs with one atom: of the schedulers, and of the special function unit."""
    shared = 6  # a load, what the points share, and the loop
    return (3 * each + (each - h) + 9 * h + shared) / 4, 2 * (each - h)


predict(guess, min(range(9), key=lambda h: max(cycles(h))), unit="roots by hand")

# %%
each = 8


def shared_work(each):
    figure, ax = chart(3.2)
    by_hand = np.arange(each + 1)
    issued, special = (np.array([cycles(h, each)[k] for h in by_hand]) / each for k in (0, 1))
    ax.plot(by_hand, issued, "o-", color=palette.COLOURS[0], label="schedulers")
    ax.plot(by_hand, special, "s--", color=palette.COLOURS[1], label="special function unit")
    ax.set(xlabel=f"roots by hand, of {each}", ylabel="cycles of a warp for a pair", ylim=(0, None))
    ax.set_title("the slower of the two decides")
    figure.legend(loc="outside right upper")
    return figure


knobs.turn(shared_work, each=(each, (4, 8, 16)))

# %% [markdown]
# Two, by this count: 13.5 cycles for eight pairs. One is nearly as good, with 14, and the kernel takes one. A root by
# hand is a chain of instructions that wait for each other, and the count knows nothing of that. The same thought serves
# exponentials in attention, where tensor cores are so fast that the special function unit is the bound.

# %%
show(potential.on_both_units_kernel)

# %%
plots.drawn(beside_the_roof, "coalesced", "on_both_units")

# %% [markdown]
# The roof is 16 cycles for eight pairs, so by the count this kernel could pass it, with 14. What it needs beyond these
# is time in which warps wait: the schedulers have 11.5 cycles of work, so both units are nearly full, and a warp that
# waits for one of them leaves the other idle.

# %%
plots.drawn(plots.ladder, "potential", family="cube")

# %% [markdown]
# What each rung left for the next one:

# %%
for rung in potential.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# With few points there are few threads, and with few atoms the stores count. The sizes, for cubes of points with 1,024
# atoms, and for a slice of 1,024 x 1,024 points:

# %%
plots.drawn(plots.sweep, "potential", family="cube", xlabel="points of the cube")

# %%
plots.drawn(plots.sweep, "potential", family="slice", xlabel="atoms")

# %% [markdown]
# ## A known number
#
# How strongly is an ion of salt bound? By the potential of all others at its place. In an endless crystal that is
# -1.7475646, *Madelung's constant*, if neighbours are at distance 1. It should be easy: all ions within a sphere around
# one, and larger and larger spheres.


# %%
def others(n, cube):
    """All ions but the middle one, around it: within the sphere in a cube of edge n, or in that cube made neutral."""
    ions = potential.rock_salt(n)
    ions[:, :3] -= n // 2
    ions[:, 3] *= (-1) ** (n // 2 * 3)  # the middle one has charge 1
    distance = np.sqrt((ions[:, :3] ** 2).sum(axis=1))
    if cube:
        ions[:, 3] *= 0.5 ** (np.abs(ions[:, :3]) == n // 2).sum(axis=1)
    return ions[(distance > 0) & (cube | (distance <= n // 2))]


EDGES = (3, 5, 7, 9, 11, 13, 15)
found = {
    cube: [float(device.to_host(potential.of_charges(others(n, cube), (1, 1, 1)))[0, 0, 0]) for n in EDGES]
    for cube in (False, True)
}

# %% [markdown]
# **Predict, then run.** By how much is the sum over the largest sphere, with a radius of 7 neighbours, wrong?

# %%
guess = None  # of a potential of -1.7476

predict(guess, abs(found[False][-1] + 1.7475646), factor=2, unit="wrong")

# %%
figure, ax = chart(3.2)
ax.axhline(-1.7475646, color=palette.GREY, lw=0.8)
for number, (cube, name) in enumerate(((False, "spheres"), (True, "neutral cubes"))):
    ax.plot(EDGES, found[cube], palette.MARKERS[number] + "-", color=palette.COLOURS[number], label=name)
ax.set(xlabel="ions along an edge", ylabel="potential at the middle", title="Madelung's constant")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# Spheres do not come to rest: a larger one takes in dozens of ions of one sign at once, and at radius 7 its charge is
# -53. Cubes in which ions of a face count half, of an edge a quarter and of a corner an eighth have no charge as a
# whole, and after a few cells four digits are right:

# %%
print([round(v, 4) for v in found[True]])

# %% [markdown]
# The potential falls so slowly that far charges may only be left out if they cancel.
#
# ## A cutoff
#
# With the volume, points and atoms both grow: eight times the volume is 64 times the pairs. Methods for large systems
# split the potential into a part that fades within a *cutoff*, and a smooth rest that is computed on a coarse grid, by
# an FFT for example. We do the first part: an atom at distance r adds q / r (1 - r^2 / c^2)^2, and beyond c nothing.
# The second factor takes care that the potential has no step at c.

# %%
show(cutoff.reference)

# %% [markdown]
# The plain way asks all atoms, and tests the square of the distance, before any root is taken.

# %%
show(cutoff.all_asked_kernel)

# %% [markdown]
# Take one atom to 10 units of volume, as in water with angstroms, a cutoff of 8, and a cube with an edge of 128.
#
# **Predict, then run.** Of a million pairs of points and atoms, about how many are within the cutoff?

# %%
guess = None  # of a million

edge = 256  # points, half a unit apart
of_all = cutoff_workloads.atoms_of(edge) * edge**3
predict(guess, 1e6 * cutoff_workloads.pairs_of(edge) / of_all, factor=1.5, unit="of a million")

# %% [markdown]
# ### Bins
#
# So space is divided into *bins*, cubes a quarter of a cutoff wide, and the atoms are sorted by them. It is one pass of
# the radix sort of [chapter 42](42_sorting.ipynb), a *counting sort*: count the atoms of each bin by atomics, where the
# counter also says how many came before; scan the counts; and write each atom to its place.

# %%
show(cutoff.count_kernel)
show(cutoff.sort_into_bins)

# %% [markdown]
# PMPP gives each bin room for eight atoms, and leaves what is too many to the CPU. A crowded bin is then a matter of
# luck. After a sort, a bin has as many atoms as it has.
#
# ### Exercise: count the atoms of bins

# %%
exercise("potential/bins")


# %%
@cuda.jit
def count_bins(atoms, start, side, counts):
    pass  # your code


check("potential/bins", count_bins)

# %% [markdown]
# ### `binned` and `by_box`
#
# A point asks the bins that its cutoff reaches. Along x they lie side by side, so a line of bins is one range of atoms.

# %%
show(cutoff.binned_kernel)

# %% [markdown]
# Two things are wasted. A cube of bins has corners far outside the sphere. And neighbouring lanes begin at different
# atoms, so a warp reads many sectors in each step. The last kernel gives a warp a box of 8 x 4 x 8 points, eight to a
# lane. All lanes go through the same atoms, and lines of bins that do not come near the box are left out.

# %%
show(cutoff.by_box_kernel)

# %%
crowd = potential.atoms_in_box(cutoff_workloads.atoms_of(32) // 4, (16, 16, 4), np.random.default_rng(1))
near = {rung.name: lab.count(rung, crowd, (8, 32, 32), 4.0, 0.5).counters for rung in cutoff.LADDER}
for name, counters in near.items():
    print(f"{name:10} {counters['flops'] / 1e6:6.2f} million FLOP, {counters['warp_instructions']:9,} instructions, "
          f"{counters['global_load_sectors']:9,} sectors")  # fmt: skip

# %% [markdown]
# `by_box` has more FLOP than `binned`, since each lane works out which bins come near its box. But a warp does that for
# eight times as many points, so there are fewer instructions. And far fewer sectors: all lanes want the same atom.

# %%
plots.drawn(plots.ladder, "cutoff", family="cutoff")

# %%
plots.drawn(plots.sweep, "cutoff", family="cutoff", xlabel="points of the cube")

# %% [markdown]
# From size to size the edge doubles, so the volume is eight times as large. The rate counts only pairs within the
# cutoff. A version whose work grows as the volume can keep its rate. One that asks all atoms cannot, once the GPU is
# full: for each pair that counts, it asks several times as many as before.
#
# ## Bodies that move
#
# Stars attract each other as charges do, and all pairs count. Each body gathers the pull of all others, then its
# velocity changes, and then its place. Physicists call the order symplectic Euler; with velocities half a step earlier
# it is *leapfrog*. It seems a detail.

# %%
exercise("potential/step")


# %%
@cuda.jit
def move(bodies, velocities, step, square, new_bodies, new_velocities):
    pass  # your code


check("potential/step", move)

# %% [markdown]
# Here is a cluster of 24 bodies, moved for 200 steps: once as the task says, and once with the *old* velocity for the
# new place. Energy is never made nor lost, so its sum over all bodies shows what goes wrong.


# %%
def energy(bodies, velocities, square):
    """Of motion, and of all pairs."""
    away = bodies[:, np.newaxis, :3] - bodies[:, :3]
    pairs = bodies[:, 3] * bodies[:, 3, np.newaxis] / np.sqrt((away**2).sum(axis=2) + square)
    motion = 0.5 * bodies[:, 3] @ (velocities**2).sum(axis=1)
    return motion - (pairs.sum() - np.trace(pairs)) / 2


def history(early, steps=200, step=0.02, square=0.01):
    """The energy after each step. ``early``: bodies move before their velocities change."""
    rng, kept = np.random.default_rng(3), []
    bodies, velocities = rng.standard_normal((24, 4)), 0.3 * rng.standard_normal((24, 3))
    bodies[:, 3] = 1 / 24
    for _ in range(steps):
        away = bodies[:, :3] - bodies[:, np.newaxis, :3]
        near = ((away**2).sum(axis=2) + square) ** -1.5
        faster = velocities + step * ((bodies[:, 3] * near)[:, :, np.newaxis] * away).sum(axis=1)
        bodies[:, :3] += step * (velocities if early else faster)
        velocities = faster
        kept.append(energy(bodies, velocities, square))
    return np.array(kept)


told = {"new velocity": history(early=False), "old velocity": history(early=True)}

# %% [markdown]
# **Predict, then run.** By how many percent has the energy changed after 200 steps with the old velocity?

# %%
guess = None  # percent


def drift(kept):
    return 100 * (kept - kept[0]) / abs(kept[0])


predict(guess, abs(drift(told["old velocity"])[-1]), factor=2, unit="percent")

# %%
figure, ax = chart(3.0)
for number, (name, kept) in enumerate(told.items()):
    ax.plot(drift(kept), palette.LINES[number], color=palette.COLOURS[number], label=name)
ax.set(xlabel="step", ylabel="change of the energy (%)", title="24 bodies")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# With the old velocity the energy drifts upwards, as if the bodies were pushed. With the new one it sways and comes
# back. Both cost the same.
#
# ## Memory or arithmetic?
#
# A potential reads 16 bytes for each atom and writes 4 for each point. With a thousand atoms there are a thousand times
# six FLOP to these 4 bytes.

# %%
atoms_beside = np.array([1, 4, 16, 64, 256, 1024])
figure, ax = chart(3.0)
intensity = [potential.cost(int(n), 256**3).intensity for n in atoms_beside]
ax.plot(atoms_beside, intensity, "o-", color=palette.COLOURS[0], label="potential")
ax.axhline(h200.fp32 / h200.bandwidth, color=palette.GREY, ls="--", label="ridge of multiply-adds, H200")
ax.axhline(6 * 16 * lanes / h200.bandwidth, color=palette.INK, ls=":", label="ridge of roots, H200")
ax.set(xscale="log", yscale="log", xlabel="atoms", ylabel="FLOP for each byte", title="from memory to arithmetic")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# With three atoms or less the stores of the points are the bound. From four on it is roots, since their ridge is the
# lower one; if there were no roots, ten atoms would be needed until arithmetic is the bound.
#
# The record's roofline counts a root as one FLOP, as the other figures of this workbook do. NumPy on the CPU follows.

# %%
plots.drawn(plots.roofline, "potential", family="cube")

# %%
plots.drawn(plots.cpu_gpu, "potential", family="cube", xlabel="points of the cube")

# %% [markdown]
# ## What to take along
#
# Gather where you can, and scatter where you must. What several results share is computed once, if one thread has them.
# A GPU has several units, and each has a roof: count the instructions of each kind before you say what is the bound.
# Where a slow unit is the bound and a fast one waits, the fast one can take over a part. And on a large grid, a kernel
# that knows which pairs do not matter has far less to do than one that asks all.
#
# ## Exercises
#
# Three stand above. More, without a check:
#
# - The eight points of a thread take eight registers for their places in w. Could they do without?
# - What is the roof of a field, in multiply-adds and in roots?
# - Why are bins a quarter of a cutoff wide, and not a tenth?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
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


assert check("potential/field", field_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def bins_answer(atoms, start, side, counts):
    a = cuda.grid(1)
    if a < atoms.shape[0]:
        x, y, z = (atoms[a, 0] - start) / side, (atoms[a, 1] - start) / side, (atoms[a, 2] - start) / side
        if 0 <= x < counts.shape[2] and 0 <= y < counts.shape[1] and 0 <= z < counts.shape[0]:
            cuda.atomic.add(counts, (np.int32(z), np.int32(y), np.int32(x)), 1)


assert check("potential/bins", bins_answer)

# %% [markdown]
# *Bins.* The test comes before the conversion, since an integer made of -0.5 is 0.


# %% jupyter={"source_hidden": true} tags=["answer"]
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


assert check("potential/step", step_answer)

# %% [markdown]
# *A step.* A body that asks itself finds d = 0, and adds nothing: the softening keeps the root finite. A test in every
# turn would cost more than that one pair.
#
# *Places.* Neighbours in w are a fixed step apart, so a difference could be made from the one before by an addition,
# and that is as many instructions as a subtraction. The square could be made from the one before as well, but errors
# would add up.
#
# *The field.* A root for each pair, as before. Two more multiplications for its third power, and three multiply-adds
# for three components: seven or eight instructions to a root. So both units are busy for about the same time, and
# nothing is left to do by hand.
#
# *Bins.* Narrower bins follow the sphere more closely, so fewer atoms are asked in vain. But there are more of them:
# with a tenth of a cutoff, a bin would hold a twentieth of an atom, and a point would look up hundreds of lines of bins
# for its 200 atoms.
#
# Go on with [chapter 49](49_mri.ipynb): an image from a scanner, where sines and cosines are the bound.
