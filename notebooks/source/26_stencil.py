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
# # 26. Stencil
#
# *Grids in two and three dimensions, fixed borders, tiles with halo, planes in shared memory and in registers, loads
# under way, several steps in one trip through memory. Read chapters [16](16_transpose.ipynb),
# [20](20_memory_or_compute.ipynb) and [24](24_convolution.ipynb) before. 45 minutes. PMPP 4e: chapter 8; 5e: chapter 8.
# The code is [pmpp/kernels/stencil/ladder.py](../pmpp/kernels/stencil/ladder.py).*
#
# Heat spreads. In a short time a place takes on a little of the temperature of the places beside it. On a grid this is
# a *stencil*: each cell becomes a weighted sum of itself and its neighbours along the axes. Weather, waves in the
# ground and fields around an antenna are computed so, step after step, on grids of billions of cells.
#
# A step is a convolution with a mask that is nearly empty: a star. But a simulation makes thousands of steps.
# **The question of this chapter: how fast can a step be, and can many steps be faster than one after another?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import check, cuda, lab, predict, show, simt
from pmpp.kernels import stencil
from pmpp.kernels.stencil import walks
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import exercise
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Heat in a photograph
#
# Let the brightness of a photograph be a temperature. In each step a pixel keeps 40 % of its own, and takes 15 % of
# that of each neighbour. The outermost pixels keep their values: this is a fixed border, named after *Dirichlet*.

# %%
image = (data.photograph()[::6, ::6] @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
heat = (0.4, 0.15)  # of the cell itself, and of each neighbour at distance 1

figure, panels = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
for ax, steps in zip(panels, (0, 4, 16), strict=True):
    shown = device.to_host(stencil.sweep(image, heat, steps)) if steps else image
    ax.imshow(shown, cmap="gray", vmin=0, vmax=255)
    ax.set(title=f"after {steps} steps", xticks=[], yticks=[])

# %% [markdown]
# The picture blurs: what is bright loses, what is dark gains, and after more steps the differences that are left are
# wide ones. All our sums have this form, where $R$ is the *order*:
#
# $$y = c_0 x + \sum_{d = 1}^{R} c_d \cdot (\text{sum of all } x \text{ at distance } d \text{ along an axis})$$
#
# The outermost $R$ cells on each side are copied. Higher orders approximate a derivative better.
#
# ## The bound
#
# At distance $d$ there are 4 neighbours in two dimensions, and 6 in three. They are added up, and multiplied by $c_d$:
# as many FLOP as neighbours, and one more. Each cell is read and written once in a step: 8 bytes.
#
# **Predict, then run.** How many FLOP a byte is that in three dimensions at order 4?

# %%
guess = None  # FLOP a byte

order, neighbours = 4, 6
predict(guess, (order * (neighbours + 1) + 1) / 8, unit="FLOP a byte")

# %% [markdown]
# A large GPU does more than ten FLOP in the time of a byte. So *memory is the bound of a single step*, at every order
# of this room. The time should not depend on the order at all. Now let the order grow, and let a kernel make several
# steps before it writes the grid back. The knob is the number of dimensions.

# %%
axes = 3
h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
ridge = h200.sms * 256 * h200.clock / h200.bandwidth  # FLOP in the time of a byte


def intensities(axes):
    figure, ax = chart(3.4)
    orders = np.arange(1, 9)
    for steps, colour, marker in ((1, palette.INK, "o"), (4, palette.COLOURS[5], "s"), (8, palette.COLOURS[3], "^")):
        flops = steps * (orders * (2 * axes + 1) + 1) / 8
        ax.plot(orders, flops, color=colour, marker=marker, label=f"{steps} step{'s' * (steps > 1)} a trip")
    ax.axhline(ridge, color=palette.INK, ls="--", label="H200: what it does in the time of a byte")
    ax.set(yscale="log", xlabel="order", ylabel="FLOP a byte", title=f"{axes} dimensions")
    ax.legend()
    return figure


knobs.turn(intensities, axes=(axes, (2, 3)))

# %% [markdown]
# Below the dashed line memory is the bound, and above it arithmetic. The line comes from the published numbers of an
# H200. One step stays below it up to order 8. A kernel that makes four or eight steps a trip through memory comes
# nearer, and at high order crosses it: then there is nothing more to win from memory.
#
# ## The reference
#
# It shifts the whole grid by each distance along each axis, in float64. Nothing in it can be in the wrong place.

# %%
show(stencil.reference)

# %% [markdown]
# ## Rung 1: `basic`
#
# A thread for each cell reads all that its sum needs. The kernels see every grid as planes, rows and columns; a grid of
# two dimensions has planes of a single row. The order is a constant of the kernel, so that the compiler unrolls the
# loop. A function makes the kernel for each order, and keeps it.

# %%
show(stencil.basic_for)

# %% [markdown]
# **Predict, then run.** A grid in three dimensions, and order 4. How many bytes does `basic` ask global memory for, for
# each inner cell?

# %%
guess = None  # bytes

predict(guess, 4 * (1 + order * neighbours), unit="bytes")

# %% [markdown]
# A cell is read for its own sum and for 24 others. Caches catch most of that. But they have to be asked, and what they
# keep depends on the size of a plane.
#
# ## Rung 2: `tiled`
#
# The idea is that of chapter 24: a block loads a *tile* with its halo into shared memory. In three dimensions it has
# a fault. A block of 8 x 8 x 8 threads needs 16 x 16 x 16 cells at order 4.

# %%
show(stencil.tiled_for)


# %%
def loaded(rung, x, coefficients, steps=1):
    """Bytes loaded from global memory for each cell, in all steps."""
    return lab.count(rung, x, coefficients, steps).counters["global_load_bytes"] / x.size


wide = (0.4, 0.05, 0.02, 0.02, 0.01)
cube = np.random.default_rng(0).standard_normal((16, 40, 72), dtype=np.float32)
for rung in (stencil.basic, stencil.tiled):
    print(f"{rung.name:15} {loaded(rung, cube, wide):6.1f} bytes loaded for each cell")

# %% [markdown]
# `basic` is below 100 bytes since the border is only copied. `tiled` loads less, and still several times the 4 bytes
# that would do. A larger cube would be better, but a block has at most 1024 threads.
#
# ## Rung 3: `coarsened`
#
# A block need not hold a cube. It holds 2 R + 1 *planes* of a column, and walks along the first axis. A new plane is
# loaded, one sum is made for each thread, and the oldest plane gives its place to the next one: a *ring*.

# %%
show(stencil.coarsened_for)

# %% [markdown]
# Now the halo is only on four sides, and each block makes 64 planes. This is thread coarsening: the same threads do
# more, since what they have loaded serves them again.
#
# ## Rung 4: `register_tiled`
#
# Of the planes before and behind, a thread reads only the cells of its own column. Nobody else needs its copies of
# them. So they can be in *registers*, and shared memory holds a single plane. The walk shifts them by one place in each
# step; the loops over them are unrolled, so that a shift is no more than another name for a register.
#
# Two habits of fast kernels are in it besides. A thread has four cells of a row, and moves 128 bits at a time. And it
# loads what the next plane needs before it computes this one, so that the memory is busy meanwhile.

# %%
show(stencil.register_tiled_for)

# %% [markdown]
# **Predict, then run.** A block has planes of 32 x 64 cells. At order 4 it also loads halo: 4 rows above and 4 below,
# and 4 columns on each side, no corners. How many bytes does it load for each cell, if the walk is long?

# %%
guess = None  # bytes

rows, columns = 32, 64
predict(guess, 4 * (1 + 2 * order / rows + 2 * order / columns), unit="bytes")

# %%
for rung in stencil.LADDER[:4]:
    print(f"{rung.name:15} {loaded(rung, cube, wide):6.1f} bytes loaded for each cell")

# %% [markdown]
# Half of the halo of this small grid lies outside it, and is not loaded. But each block first loads planes in front of
# its walk, and 16 planes are few. What a walk loads twice is a smaller and smaller share as it gets longer.
#
# ### Exercise: a rod
#
# Now you: one step in one dimension.

# %%
exercise("stencil/rod")


# %%
@cuda.jit
def rod(x, out):
    pass  # your code


check("stencil/rod", rod)

# %% [markdown]
# ## Rung 5: `in_flight`
#
# `register_tiled` moves few bytes, but does it keep the memory busy? By Little's law ([chapter 8](08_warps.ipynb)) the
# bytes in flight, which have been asked for and have not come yet, must be the bandwidth times the latency. And a load
# takes several hundred cycles to come.
#
# **Predict, then run.** In three dimensions, at order 4, a multiprocessor has room for one block of `register_tiled`,
# of 16 x 32 threads, and each asks for one vector of four cells ahead. Of the next rung it has room for one block of as
# many threads, and each asks for its four cells of each of four planes ahead. How many bytes are in flight, at most?

# %%
guess = {"register_tiled": None, "in_flight": None}  # bytes for a multiprocessor, without halo

vector = 4 * 4
threads = walks.LANES * walks.TALL
ahead = walks.TOGETHER * threads * walks.AHEAD * vector
predict(guess, {"register_tiled": 16 * 32 * vector, "in_flight": ahead}, unit="bytes")

# %% [markdown]
# [Chapter 8](08_warps.ipynb) found how many bytes an H200 needs under way on each multiprocessor. `register_tiled`
# stays below that number, and this rung is above it.
#
# Registers cannot hold what is four planes away: the queue has taken most of them. So the planes come by *asynchronous
# copies*: an instruction that asks for 16 bytes, and has them put into shared memory when they arrive. They pass no
# register. A ring of ten planes has room for those that are on their way, and for those that the sums still need.
#
# The rung also spends fewer instructions. A turn of its loop makes ten planes, as many as the ring has, and the code of
# each is written out. Each plane then has its fixed place in the ring and its fixed registers. No place is worked out,
# and the queue never moves. Planes come two by two, so that two share a barrier. That kernel is `walk_for` in
# [walks.py](../pmpp/kernels/stencil/walks.py).
#
# The size of a block matters in a way that is easy to miss. Neighbouring blocks read the same halo. While both are on
# about the same plane, memory is asked for it once, and the second block finds it in the cache. A block that gets ahead
# by tens of planes finds nothing there. With blocks of half the size, most multiprocessors of an H200 would have two of
# them for a cube of 512 x 512 x 512, and a few would have one, which may get ahead. So a block is so large that each
# multiprocessor has room for a single one.
#
# In two dimensions things are simpler. The walk is given up. A thread takes a *patch*, four rows of four cells, and
# loads all of them, and the rows around them, before it adds anything. Nothing is shared between warps, so there is no
# barrier at which all would wait.

# %%
show(stencil.patch_for)

# %% [markdown]
# At order 1 a patch asks for six rows to make four. That does not cost six rows from memory: the threads above and
# below belong to the same block or to one that runs at the same time, so that these rows are in a cache.

# %%
for rung in stencil.LADDER[:5]:
    print(f"{rung.name:15} {loaded(rung, cube, wide):6.1f} bytes loaded for each cell")

# %% [markdown]
# In space the blocks of `in_flight` are as large as those of `register_tiled`, and a plane has as much halo. It asks
# for less here because it walks inner planes only: of the sixteen planes eight are border, and need no halo.
#
# ## Rung 6: `temporal`
#
# Most of the halo is in a cache. From memory `in_flight` reads a cell little more than once in each step, and writes it
# once. No kernel for one step can do less than once. But the next step reads what this one has written. If it takes it
# while it is on the chip, a trip through memory serves two steps, or six: *temporal blocking*. It goes below the bytes
# that one step after another must move, so it can be faster than the roof of single steps. No law is broken, since the
# bound of *several* steps is again one read and one write.
#
# It works as a pipeline. A warp walks down the rows. The first step has the row that has just come. The second has the
# first step's results, which are R rows behind. Each step keeps its last 2 R + 1 rows in registers.

# %%
show(stencil.stage_for)
show(stencil.temporal_for)

# %% [markdown]
# What does it cost? Cells at the side of a warp's strip lack a neighbour, and their sum is wrong after the first step.
# After the second one, their neighbours' is wrong, too. So a warp loads 128 columns and writes fewer. Lanes get
# neighbours from each other by shuffles, and no thread waits for another warp.
#
# **Predict, then run.** Four steps of order 1. How many of its 128 columns can a warp write?

# %%
guess = None  # columns

predict(guess, stencil.useful_columns(1, 4), unit="columns")

# %%
plane = np.random.default_rng(0).standard_normal((128, 240), dtype=np.float32)
for rung in (stencil.register_tiled, stencil.temporal):
    print(f"{rung.name:15} {loaded(rung, plane, heat, 8) / 8:5.2f} bytes loaded for each cell and step")

# %% [markdown]
# Eight steps are two trips, of six and of two. `temporal` loads a quarter and a little more: its strips overlap at
# their sides, and where one walk ends and the next begins. In three dimensions a pipeline would need planes in place of
# rows, more than the registers hold. There `temporal` hands each step to `in_flight`, and it does so for a single step,
# too.
#
# Is the result the same? All rungs add in the same order, as nearly as rounding lets us see.

# %%
exact = stencil.reference(image, heat, 16)
for rung in stencil.LADDER:
    error = abs(device.to_host(rung(image, heat, 16)) - exact).max()
    print(f"{rung.name:15} differs from the reference by at most {error:.1e} of 255")

# %% [markdown]
# ## The whole ladder
#
# Each bar is a share of the roof at a design size, and libraries stand beside them. They know a stencil only as a dense
# mask, and multiply by its zeros, too. The first figure is in two dimensions at order 1, the second one in three at
# order 4.

# %%
plots.drawn(plots.ladder, "stencil", family="orders")

# %%
plots.drawn(plots.ladder, "stencil", family="orders, in space")

# %% [markdown]
# Where it says that something is not measured, there is no record yet. Look at `tiled` beside `basic`: on an H200 the
# tile is the slower of the two. The caches already hold what a sum reads again, and a tile takes instructions of its
# own to find each cell. The rung is there since the next two are made of it. What each rung left for the next one:

# %%
for rung in stencil.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")


# %% [markdown]
# ## When is memory the bound?
#
# If memory is the bound, the order must not matter. This is the time of one step by `basic`, by `register_tiled` and by
# `in_flight`, for the four orders; a point that is missing was not measured.


# %%
def orders(family):
    kept = record.load()
    entries = kept.entries("stencil", family=family)
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of stencils of several orders")
    figure, ax = chart(3.4)
    names = ("basic", "register_tiled", "in_flight")
    for name, colour, marker in zip(names, palette.COLOURS[3:6], "s^o", strict=True):
        points = [(e.sizes["order"], e.median_ms) for e in entries if e.contender == name]
        ax.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    ax.set(ylim=(0, None), xlabel="order", ylabel="time (ms)", title=family)
    ax.legend()
    return figure


plots.drawn(orders, "orders, in space")

# %% [markdown]
# A flat line says that memory is the bound. A line that rises with the order says that something else counts: requests
# to the caches, instructions, or halo. On an H200 `register_tiled` rises, too: at order 4 it needs so many registers
# that a multiprocessor has room for a single block, and while that waits at a barrier nothing else runs. `in_flight`
# does not rise: its four times are nearly the same. It has a single block, too, and its threads wait at barriers as
# well. But the next planes, which they have asked for, come meanwhile. And several steps, by `in_flight` one after
# another and by `temporal`:


# %%
def steps_at_a_time():
    kept = record.load()
    entries = kept.entries("stencil", family="steps")
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of several steps")
    figure, ax = chart(3.4)
    for name, colour, marker in (("in_flight", palette.COLOURS[5], "o"), ("temporal", palette.COLOURS[3], "s")):
        points = [(e.sizes["steps"], e.median_ms / e.sizes["steps"]) for e in entries if e.contender == name]
        ax.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    least = roofline.bound(stencil.cost(8192, 8192), kept.ceilings("stencil")).seconds
    ax.axhline(1e3 * least, color=palette.INK, ls="--", label="bound of one step")
    ax.set(xscale="log", ylim=(0, None), xlabel="steps", ylabel="time of a step (ms)", title="8192 x 8192, order 1")
    ax.legend()
    return figure


plots.drawn(steps_at_a_time)

# %% [markdown]
# The dashed line is the bound of a single step. `in_flight` stays above it, as it must: one after another, a step costs
# about the same however many there are. `temporal` goes below. A step gets cheaper until a trip makes six. And NumPy,
# on one core of the CPU, adds slices of the grid:

# %%
plots.drawn(plots.cpu_gpu, "stencil")

# %% [markdown]
# The figure compares one step on squares of three sizes, with the data on the GPU already. The way there and back is in
# it only if the record has a dashed line for it. For a step of so few FLOP a byte it takes far longer than the kernel,
# as for the addition of [chapter 4](04_vector_add.ipynb). A simulation copies once, and makes thousands of steps: then
# the line of the kernel alone counts.
#
# That line is nearly flat at its beginning: a small grid has too few blocks for all multiprocessors, and most of its
# time is what a kernel takes to start and to end.
#
# ## All rungs under the roof

# %%
plots.drawn(plots.roofline, "stencil")

# %% [markdown]
# A single step stands at the left, below the slope of the memory: its FLOP are free as long as the bytes take longer.
# All rungs are at the same place from left to right, since they do the same work. Six steps in one trip would stand six
# times as far to the right, because their bytes are one read and one write for all of them.
#
# ## What to take along
#
# A stencil does few FLOP for a byte, so a kernel is as good as its use of memory. In space a cube of shared memory
# wastes most of what it loads on halo. Walking makes the halo small, and what only one thread needs belongs into its
# registers. One step has a roof. Several steps together have a higher one, and it is paid for with cells that are
# computed twice.
#
# ## Exercises
#
# One stands above, after rung 4. The second one is temporal blocking in one dimension.

# %%
exercise("stencil/twice")


# %%
@cuda.jit
def twice(x, out):
    pass  # your code


check("stencil/twice", twice)

# %% [markdown]
# ### More, without a check
#
# - Two steps of order 1 inside a grid are one step of another star, or are they? Make two steps from a single hot cell,
#   and look at the result.
# - How many columns could a warp write after two steps of order 4?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rod_answer(x, out):
    i = cuda.grid(1)
    if i < x.size:
        if i == 0 or i == x.size - 1:
            out[i] = x[i]
        else:
            out[i] = np.float32(0.5) * x[i] + np.float32(0.25) * (x[i - 1] + x[i + 1])


assert check("stencil/rod", rod_answer)

# %% [markdown]
# *A rod.* The test for the ends comes before the neighbours are read.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def stepped(x, tile, k, i):
    """The step of cell i, which is at place k of the tile."""
    near = tile[k - 1] + tile[k + 1]
    return np.float32(0.5) * tile[k] + np.float32(0.25) * near if 0 < i < x.size - 1 else tile[k]


@cuda.jit
def twice_answer(x, out):
    first, once = cuda.shared.array(260, np.float32), cuda.shared.array(260, np.float32)
    start, t = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x
    for k in range(t, 260, 256):
        first[k] = x[start + k] if 0 <= start + k < x.size else np.float32(0)
    cuda.syncthreads()
    for k in range(t + 1, 259, 256):
        once[k] = stepped(x, first, k, start + k)
    cuda.syncthreads()
    if start + t + 2 < x.size:
        out[start + t + 2] = stepped(x, once, t + 2, start + t + 2)


assert check("stencil/twice", twice_answer)

# %% [markdown]
# *Twice.* A block makes 258 cells of the first step, two of them for its neighbours' sake: they make them, too.

# %% jupyter={"source_hidden": true} tags=["answer"]
spot = np.zeros((7, 7), np.float32)
spot[3, 3] = 100
print(device.to_host(stencil.sweep(spot, heat, 2)).round(1))
print(f"two steps of order 4: {stencil.useful_columns(4, 2)} columns")

# %% [markdown]
# *A star twice.* It is a diamond: cells beside the axes get heat on two ways. So it is no star, but a convolution with
# a mask of 5 x 5.
#
# Go on with [chapter 28](28_histogram.ipynb): what it costs when many threads write to one place.
