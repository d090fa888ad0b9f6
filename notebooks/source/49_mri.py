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
# # 49. An image from a scanner
#
# *A sum of waves, loop interchange and loop fission, samples in shared memory, fast trigonometry and what it costs in
# digits, several voxels a thread, conjugate gradients, samples laid on a grid. Read chapters
# [28](28_histogram.ipynb), [38](38_numerics.ipynb), [44](44_sparse.ipynb) and [48](48_electrostatic_potential.ipynb)
# before. 60 minutes. PMPP 4e: chapter 17; 5e: none. The code is
# [pmpp/kernels/mri/ladder.py](../pmpp/kernels/mri/ladder.py).*
#
# A magnetic resonance scanner does not take pictures. It measures waves: at each moment one number, which says how much
# of one spatial frequency there is in the body. An image has to be computed. If the scanner walks through the
# frequencies row by row, an inverse FFT does it. But a spiral is faster, and the patient has to keep still for less
# time. Its samples lie on no grid, and an FFT does not fit.
#
# What always fits is the sum itself: each voxel adds up the waves of all samples. **The question of this chapter: how
# fast can a GPU make sines, and how many digits must they have?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import mri
from pmpp.kernels.mri.phantom import phantom, spiral, voxels_of
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A head and a path
#
# Everybody who writes such programs tests them on the same head. It consists of ten ellipses (L. Shepp and B. Logan,
# 1974). The path goes in a spiral from frequency 0 outwards, until it has passed the finest pattern that voxels show.

# %%
SIDE = 96 if device.on_gpu() else 16
head, voxels = phantom(SIDE), voxels_of((1, SIDE, SIDE))
SAMPLES = 3 * SIDE**2
k = spiral(SAMPLES, SIDE / 2**0.5)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.2), layout="constrained")
left.imshow(phantom(256), cmap="gray")
left.set(xticks=[], yticks=[], title="a head of ellipses")
right.plot(k[:, 0], k[:, 1], ".-", ms=2, lw=0.5, color=palette.COLOURS[0])
_ = right.set(aspect="equal", xlabel="frequency along x", ylabel="along y", title=f"{SAMPLES:,} samples")

# %% [markdown]
# At frequency k the scanner measures d(k), the sum over all voxels of their brightness times exp(-2 pi i k . x). The
# way back starts with the *adjoint*: each voxel gets the sum over all samples of d(k) exp(+2 pi i k . x). PMPP calls it
# F^H d. A voxel is no point but has a shape, and that multiplies each sample by a number phi, whose conjugate comes
# into the sum as well.

# %%
show(mri.reference)

# %% [markdown]
# ## The bound
#
# A pair of a sample and a voxel needs three multiplications for k . x, a sine, a cosine, and a product of complex
# numbers with its sum. As in [chapter 48](48_electrostatic_potential.ipynb), two units are at work: a multiprocessor
# does 128 multiply-adds in a cycle, and 16 sines or cosines.

# %%
show(mri.cost)

# %% [markdown]
# **Predict, then run.** There are 64^3 voxels and 2^15 samples. How long does an H200 need at least for the sines and
# cosines? It has 132 multiprocessors at 1.98 GHz.

# %%
guess = None  # ms

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
pairs = 2**15 * 64**3
predict(guess, 1e3 * 2 * pairs / (16 * h200.sms * h200.clock), factor=1.2, unit="ms")


# %%
def recorded(*names):
    """What the record says of contenders at the design size, beside two cosines for each pair and nothing else."""
    kept = record.load(room="mri")
    roof = next(e for e in kept.design("mri", "roof of cosines") if e.contender == "cuda.cosines_alone")
    for entry in kept.design("mri", "cube"):
        if entry.contender in names:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("mri"))
            print(f"{entry.contender:18} {entry.median_ms:9.4g} ms, {roof.seconds / entry.seconds:6.1%} of the roof of "
                  f"cosines, {share:6.1%} of that of multiply-adds")  # fmt: skip


# %% [markdown]
# ## Rung 1: `scattered`
#
# The C program that the method came with has two loops, over samples outside and voxels inside. A thread may take one
# turn of the outer loop.

# %%
show(mri.scattered_kernel)

# %% [markdown]
# **Predict, then run.** How many additions by an atomic are that, for 128 samples and 1,024 voxels?

# %%
guess = None  # additions

samples = mri.samples_of(128, np.random.default_rng(0))
PLAIN = *samples, voxels_of((4, 8, 32))
counted = {rung.name: lab.count(rung, *PLAIN).counters for rung in mri.LADDER}
predict(guess, counted["scattered"]["atomic_lanes"], unit="additions")

# %%
plots.drawn(recorded, "scattered", "cupy.exp", "torch.polar")

# %% [markdown]
# ## Rungs 2 and 3: `interchanged` and `fissioned`
#
# Both loops can change places, since the turns do not depend on each other: *loop interchange*. Then a thread takes a
# voxel, has its sums in registers, and there is no atomic.

# %%
show(mri.interchanged_kernel)

# %% [markdown]
# Now each thread computes conj(phi) d of every sample, though it depends on the sample alone. In the first version it
# stood outside of the inner loop. *Loop fission* cuts the loop over samples in two: one makes the products, and the
# other uses them. The first kernel also lays side by side what voxels need of a sample. It also multiplies k by 2 pi,
# which `interchanged` does to both angles of each pair.
#
# **Predict, then run.** `interchanged` has 21 FLOP for each pair, sine and cosine apart. How many has `fissioned`?

# %%
guess = None  # FLOP for each pair

PAIRS = 128 * 1024
predict(guess, counted["fissioned"]["flops"] / PAIRS, factor=1.05, unit="FLOP for each pair")

# %%
show(mri.pack_kernel)
show(mri.fissioned_kernel)

# %%
plots.drawn(recorded, "scattered", "interchanged", "fissioned")

# %% [markdown]
# ### Exercise: what a scanner measures
#
# The other direction, from an image to samples. `check` runs your kernel in the interpreter. Replace `pass`.

# %%
exercise("mri/forward")


# %%
@cuda.jit
def forward_kernel(k, image, places, out):
    pass  # your code


check("mri/forward", forward_kernel)

# %% [markdown]
# ## Rung 4: `in_tiles`
#
# All threads want the same sample at about the same time. PMPP has them in constant memory, and launches the kernel
# again for each 64 KB of samples. In Numba constant memory is filled when a kernel is compiled, so we take shared
# memory, as in chapter 48.

# %%
show(mri.in_tiles_kernel)

# %%
plots.drawn(recorded, "fissioned", "in_tiles")

# %% [markdown]
# ## Rung 5: `fast_trigonometry`
#
# `math.sin` is right to the last place or two, for every angle. The compiler makes dozens of instructions of it: the
# angle is brought into a quarter of a turn, with more digits than a float32 has if it is large, and a polynomial is
# evaluated. The special function unit has a sine in one instruction. It is promised to be right to 2^-20.5 for angles
# up to a turn, and to less and less beyond.
#
# Whole turns do not matter, so the kernel takes them off. To count them it adds a number so large that no place after
# the point is left, and takes it away again: what remains is the nearest whole number.

# %%
show(mri.wave)

# %% [markdown]
# How many digits do we lose? The interpreter computes both sines exactly, so its figures would show nothing. We know
# the bound of the instruction, and can compare it with what the angle itself has lost: k . x is a float32.
#
# **Predict, then run.** At 48 turns, held as a float32 number of turns, how large is half of the last place, as an
# angle in radians, in units of the fast sine's error of 2^-20.5?

# %%
guess = None  # times the error of the fast sine

predict(guess, 2 * np.pi * np.spacing(np.float32(48)) / 2 / 2**-20.5, factor=1.5, unit="times the fast sine's error")

# %%
turns = 2.0 ** np.arange(-3, 13)
lost = 2 * np.pi * np.spacing(turns.astype(np.float32)).astype(float) / 2
figure, ax = chart(3.0)
ax.plot(turns, lost, "o-", color=palette.COLOURS[0], label="rounding of the angle")
ax.axhline(2**-20.5, color=palette.COLOURS[1], ls="--", label="the fast sine")
ax.set(xscale="log", yscale="log", xlabel="turns of the wave at the voxel", ylabel="error of a sine")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# From a few turns on, the rounding of the angle is the larger error. A sine that is right to the last place is then
# right for an angle that is not. And a scanner has noise of a per cent. So nothing is lost that anybody could see.

# %%
plots.drawn(recorded, "in_tiles", "fast_trigonometry")

# %% [markdown]
# ## Rung 6: `several_voxels`
#
# For each pair there are still two loads from shared memory. A thread that has four voxels needs them once for four
# pairs. The voxels are as many apart as there are threads, so neighbours read and write neighbours.
#
# **Predict, then run.** For 128 samples and 1,024 voxels, how many loads from shared memory do the warps make?

# %%
guess = None  # loads of a warp

predict(guess, counted["several_voxels"]["shared_load_requests"], unit="loads")

# %%
show(mri.several_voxels_kernel)

# %%
for name, counters in counted.items():
    each = [factor * counters[what] / PAIRS for what, factor in (("flops", 1), ("warp_instructions", 32))]
    print(f"{name:18} {each[0]:5.2f} FLOP, {each[1]:5.2f} instructions for each pair")
plots.drawn(recorded, "fast_trigonometry", "several_voxels")

# %% [markdown]
# There are fewer instructions now, and fewer threads as well, a quarter as many: 64^3 voxels make 512 blocks. In the
# H200's record it is no faster for that.
#
# ## Rung 7: `in_parts`
#
# A slice of an image has few voxels, and many samples. Four voxels a thread and 128 threads a block make 512 voxels a
# block: an image of 64 x 64 is eight blocks, and an H200 has 132 multiprocessors. So the samples are cut into parts,
# and the grid gets a second axis for them. Each part has its own sums, and a last kernel adds these up, always in the
# same order.

# %%
show(mri.share_of)
show(mri.sum_parts_kernel)
show(mri.launch_parts)

# %% [markdown]
# **Predict, then run.** For 64 x 64 voxels and 2^15 samples, how many blocks does this rung launch on a GPU with 132
# multiprocessors? It would like 32 for each, but no part has fewer samples than a tile of 128.

# %%
guess = None  # blocks

of_image, wanted = 64 * 64 // 512, 132 * mri.RESIDENT
tiles = 2**15 // 128
parts = -(-tiles // -(-tiles // -(-wanted // of_image)))
predict(guess, of_image * parts, factor=1.1, unit="blocks")

# %% [markdown]
# By the same rule 64^3 voxels, 512 blocks, get nine parts. That helps, too: of 512 blocks some multiprocessors get
# three and others four, and those with four are the last. Of 4,608 smaller ones each gets about as many.
#
# ## Rung 8: `unreduced`
#
# Of the instructions for a pair, three take whole turns off the angle. Are they needed? In machine code the fast sine
# is two instructions. The first multiplies the angle by 1 / (2 pi) and rounds towards zero, which gives turns. The
# special function unit takes these, and drops the whole ones without an error. So what a large angle loses is the
# rounding of that product, as much as each other product with the angle has cost already.
#
# NVIDIA promises 2^-14.7 for angles of up to 100 pi, which are 50 turns. Is that more than two causes explain? One is
# the last place of the number of turns. The other is 1 / (2 pi) as a float32, which is too small by 4e-8 of itself.
#
# **Predict, then run.** How large are both together at 50 turns, as an angle in radians, in units of 2^-14.7?

# %%
guess = None  # times the promised error

too_small = 1 - float(np.float32(1 / (2 * np.pi))) * 2 * np.pi
both = 2 * np.pi * (np.spacing(np.float32(50)) + 50 * too_small)
predict(guess, both / 2**-14.7, factor=1.5, unit="times the promised error")

# %% [markdown]
# So the two causes explain the whole promise. Beyond 50 turns nothing is promised, but a test of this room asks your
# GPU, up to 2^22 radians: on an H200 the error goes on as arithmetic says. And our k was multiplied by 2 pi as a
# float32, which is too large by 3e-8 of itself, so most of the second cause cancels.

# %%
show(mri.unreduced_kernel)

# %% [markdown]
# **Predict, then run.** `several_voxels` has 18 FLOP for each pair, sine and cosine apart. How many are left?

# %%
guess = None  # FLOP for each pair

predict(guess, counted["unreduced"]["flops"] / PAIRS, factor=1.05, unit="FLOP for each pair")

# %%
plots.drawn(recorded, "fast_trigonometry", "several_voxels", "in_parts", "unreduced")

# %%
plots.drawn(plots.sweep, "mri", family="cube", xlabel="voxels")

# %%
plots.drawn(plots.ladder, "mri", family="cube")

# %% [markdown]
# The bars are shares of the roof of multiply-adds, as everywhere in this workbook. That of cosines is half as high, and
# `recorded` prints shares of it. (In the figure of sizes a mark is a measurement, and a line between marks is none: not
# every rung was measured at every size.) Could other units help here, as they did in chapter 48? A sine and a cosine
# take the special function units of a multiprocessor for four cycles, in which its four schedulers could issue sixteen
# instructions. In machine code a pair has thirteen in `several_voxels`: three for the angle, three to take off turns,
# one more that the compiler adds, four for product and sum, and the two themselves. Loads and the loop are two more. So
# there seems to be room, and yet a profiler sees the special function units of an H200 busy for about three quarters of
# the time.
#
# A trial shows why. A kernel that does nothing but two special functions and some multiply-adds keeps these units busy
# as long as there are up to eight others. Beyond that it takes longer with each further one, just as if a special
# function took four places in the schedule and not one. Two of them take eight places of sixteen then. `unreduced` has
# eight others, and no place is left: nothing can be handed over to multiply-adds. What it has not reached is the price
# of its loads and its loop.
#
# What each rung left for the next one:

# %%
for rung in mri.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## An image
#
# Now the head is scanned. The transform from image to samples is the same kernel with samples and voxels exchanged: the
# sign of the angle is turned around by conjugating before and after.


# %%
def forward(image):
    """What is measured of an image."""
    ones = np.ones(len(voxels), np.complex64)
    return device.to_host(mri.adjoint(voxels, image.astype(np.complex64), ones, k)).conj()


def back(data):
    return device.to_host(mri.adjoint(k, np.ones(len(k), np.complex64), data.astype(np.complex64), voxels))


rng = np.random.default_rng(0)
data = forward(head.ravel())
noise = 0.01 * np.abs(data).std() * (rng.standard_normal(SAMPLES) + 1j * rng.standard_normal(SAMPLES))
data = data + noise.astype(np.complex64)


# %% [markdown]
# The adjoint is no inverse. Where samples lie close together, their frequencies count too much. What we want is the
# image whose measurement comes nearest to the data, and it solves F^H F x = F^H d. That system has a row for each
# voxel, and nobody stores it: a product with F^H F is a `forward` and a `back`. Conjugate gradients ask for nothing
# else, as in [chapter 44](44_sparse.ipynb).


# %%
def solve(data, steps):
    """The image after each step of conjugate gradients."""
    x = np.zeros(len(voxels), np.complex64)
    r = p = back(data)
    kept = []
    for _ in range(steps):
        q = back(forward(p))
        length = float(np.vdot(r, r).real)
        step = length / float(np.vdot(p, q).real)
        x, r = x + step * p, r - step * q
        p = r + float(np.vdot(r, r).real) / length * p
        kept.append(x)
    return kept


images = solve(data, 8)


def error(image):
    return np.linalg.norm(image - head.ravel()) / np.linalg.norm(head)


# %% [markdown]
# The first step is the adjoint itself, times the best factor.
#
# **Predict, then run.** Its error is about three quarters of the image's size, or a little more. By what factor is it
# smaller after eight steps?

# %%
guess = None  # times smaller

predict(guess, error(images[0]) / error(images[-1]), factor=1.5, unit="times smaller")

# %%
figure, axes = plt.subplots(1, 4, figsize=(7.8, 2.4), layout="constrained")
for ax, step in zip(axes, (0, 1, 3, 7), strict=True):
    ax.imshow(images[step].real.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], title=f"{step + 1} step{'s' * (step > 0)}: {error(images[step]):.0%}")

# %%
figure, ax = chart(2.8)
ax.plot(range(1, 9), [100 * error(image) for image in images], "o-", color=palette.COLOURS[0])
ax.set(xlabel="steps of conjugate gradients", ylabel="error (%)", ylim=(0, None), title="the image comes nearer")
figure

# %% [markdown]
# Each step costs two sums over all pairs: eight steps and the beginning are 17. That is why this sum was worth a
# ladder. Programs for clinics save most of it: F^H F is a convolution, and its kernel can be computed once; then a step
# is two FFTs.
#
# ## Laid on a grid
#
# The other way is older. Lay each sample on the cells of a grid around it, and let an inverse FFT do the rest. That is
# *gridding*. It is scattering, by atomics, but each sample has only a few cells, so the work grows as samples and no
# longer as pairs. What it costs is exactness: the window by which samples are spread multiplies the image, and what
# lies outside folds back. Good windows and a finer grid keep that small.
#
# Here is the roughest way: each sample goes to the nearest cell alone. Samples lie closer together in the middle, so
# they are weighted by their distance from it. A finer grid has cells at fractions of a frequency.


# %%
weighted = data * np.hypot(k[:, 0], k[:, 1])


def by_nearest_cell(finer):
    """The image by a grid with so many cells to a frequency, and an inverse FFT."""
    n = finer * SIDE
    columns, rows = np.rint(finer * k[:, :2]).astype(np.int64).T % n
    first = 0.5 / SIDE - 0.5  # where the first voxel lies, on both axes
    laid = np.zeros((n, n), np.complex128)
    np.add.at(laid, (rows, columns), weighted * np.exp(2j * np.pi * k[:, :2].sum(axis=1) * first))
    return np.fft.ifft2(laid)[:SIDE, :SIDE].ravel()


# %% [markdown]
# Here real parts are shown, each scaled to fit best.

# %%
shown = {"all waves": back(weighted), "a grid": by_nearest_cell(1), "thrice as fine": by_nearest_cell(3)}
shown["8 steps"] = images[-1]
figure, axes = plt.subplots(1, 4, figsize=(7.8, 2.4), layout="constrained")
for ax, (name, image) in zip(axes, shown.items(), strict=True):
    scaled = image.real * (image.real @ head.ravel()) / (image.real @ image.real)
    ax.imshow(scaled.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], title=f"{name}: {error(scaled):.0%}")

# %% [markdown]
# With weights, one sum of all waves is a fair image at once. A grid of the image's own size spoils it, and a finer grid
# nearly reaches it. On a finer grid it is better to share a sample between four cells than to take the nearest:

# %%
exercise("mri/grid")


# %%
@cuda.jit
def lay_on_grid(samples, values, grid):
    pass  # your code


check("mri/grid", lay_on_grid)

# %% [markdown]
# ## Memory or arithmetic?
#
# A sample has 28 bytes and a voxel 20, and there are fifteen FLOP for each pair of them.

# %%
counts = 2.0 ** np.arange(0, 16, 3)
figure, ax = chart(3.0)
intensity = [mri.cost(int(m), 64**3).intensity for m in counts]
ax.plot(counts, intensity, "o-", color=palette.COLOURS[0], label="image of 64^3 voxels")
ax.axhline(h200.fp32 / h200.bandwidth, color=palette.GREY, ls="--", label="ridge of multiply-adds, H200")
of_cosines = 15 / 2 * 16 * h200.sms * h200.clock / h200.bandwidth
ax.axhline(of_cosines, color=palette.INK, ls=":", label="ridge of cosines, H200")
ax.set(xscale="log", yscale="log", xlabel="samples", ylabel="FLOP for each byte")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# With eight samples or less memory is the bound. A scan has thousands, and is far to the right. The record's
# roofline, and NumPy beside it on the CPU:

# %%
plots.drawn(plots.roofline, "mri", family="cube")

# %%
plots.drawn(plots.cpu_gpu, "mri", family="cube", xlabel="voxels")

# %% [markdown]
# ## What to take along
#
# Loops whose turns do not depend on each other can change places, and then a thread owns what it writes. What depends
# on one loop alone belongs into a loop of its own. Before you pay for digits, ask which digits the input has. And a
# system that is too large to store can be solved by whoever can multiply by it.
#
# ## Exercises
#
# Two stand above. More, without a check:
#
# - On a regular grid the angle grows by the same amount from voxel to voxel. How could a thread with four neighbours
#   get by with fewer sines?
# - For which bodies and which samples is F^H d real, and what could be saved then?
# - Why does `solve` keep its vectors on the host, and what would it take to leave them on the GPU?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def forward_answer(k, image, places, out):
    m = cuda.grid(1)
    if m < k.shape[0]:
        kx, ky = k[m, 0], k[m, 1]
        real, imaginary = np.float32(0), np.float32(0)
        for n in range(image.size):
            angle = np.float32(2 * np.pi) * (kx * places[n, 0] + ky * places[n, 1])
            real += image[n] * cuda.libdevice.cosf(angle)
            imaginary -= image[n] * cuda.libdevice.sinf(angle)
        out[m, 0], out[m, 1] = real, imaginary


assert check("mri/forward", forward_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def grid_answer(samples, values, grid):
    m = cuda.grid(1)
    if m < samples.shape[0]:
        i, j = np.int32(samples[m, 0]), np.int32(samples[m, 1])
        x, y = samples[m, 0] - np.float32(i), samples[m, 1] - np.float32(j)
        for below in range(2):
            for right in range(2):
                weight = (x if right == 1 else np.float32(1) - x) * (y if below == 1 else np.float32(1) - y)
                row, column = (j + below) % grid.shape[0], (i + right) % grid.shape[1]
                cuda.atomic.add(grid, (row, column, 0), weight * values[m, 0])
                cuda.atomic.add(grid, (row, column, 1), weight * values[m, 1])


assert check("mri/grid", grid_answer)

# %% [markdown]
# *Fewer sines.* The wave at the next voxel is this one times exp(2 pi i kx h), where h is the distance of voxels. That
# number is the same for all voxels of a row, so it is computed once for each sample, and a product of complex numbers
# takes four multiply-adds. Then one sine and one cosine serve four voxels, and multiply-adds are the bound.
#
# *Real.* If the image is real, the sample at -k is the conjugate of that at k. Only where both are among the samples is
# F^H d real, which is not so on a spiral. Then one of each two need not be measured, and a voxel needs only real parts.
#
# *On the host.* It is shorter to read. The vectors are small beside the work, but each step waits for two sums of
# products. The solver of chapter 44 leaves those on the GPU, in the next kernel's first lines.
#
# Go on with [chapter 50](50_softmax.ipynb): softmax, where a whole row must be read before any of it can be written.
