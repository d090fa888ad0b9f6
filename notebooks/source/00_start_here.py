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
# # 0. Start here
#
# *What a GPU is for, the two ceilings of every machine, how to read a roofline, and how this workbook works. 30
# minutes. PMPP 4e: chapter 1 and section 5.1; 5e: chapter 1 and section 5.1.*
#
# In this workbook you learn to program GPUs by reading, running, changing and measuring kernels in Python. It
# follows the book *Programming Massively Parallel Processors* by Hwu, Kirk and El Hajj, called PMPP from here
# on. You do not need a GPU.
#
# Let us run something first. Run each cell with Shift and Enter, from the top down.

# %%
import os

import matplotlib.pyplot as plt

from pmpp import cuda, predict, simt
from pmpp.kernels import matmul, reduction, vector_add
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.publish import notebooks
from pmpp.lab.rooms import chapter_of, rooms
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look

# %% [markdown]
# ## Your first kernel
#
# A *kernel* is a function that a GPU runs many times at once. Each run is a *thread*. The one below makes a
# photograph into its negative, and it says what happens to one single pixel. There is no loop over the
# picture: each thread asks `cuda.grid(2)` where it stands, and changes the pixel in that place. Threads are started
# in *blocks*, groups of equal size, and the square brackets in the last line say how many, and of what size.


# %%
@cuda.jit
def negative(picture):
    column, row = cuda.grid(2)
    if row < picture.shape[0] and column < picture.shape[1]:
        for colour in range(3):
            picture[row, column, colour] = 255 - picture[row, column, colour]


photograph = data.photograph()
picture = device.to_device(photograph)
negative[(16, 19), (32, 32)](picture)  # 16 x 19 blocks of 32 x 32 threads: a thread for every pixel

# %%
figure, axes = plt.subplots(1, 2, figsize=(5, 2.9), layout="constrained")
for ax, image, title in zip(axes, (photograph, device.to_host(picture)), ("before", "after"), strict=True):
    ax.imshow(image)
    ax.set_title(title)
    ax.axis("off")
print(f"{16 * 19 * 32 * 32:,} threads for {photograph.shape[0] * photograph.shape[1]:,} pixels")

# %% [markdown]
# (The photograph shows Grace Hopper, who wrote one of the first compilers.) What was this run on? Ask the
# workbook:

# %%
print(device.describe())

# %% [markdown]
# With a usable NVIDIA GPU, kernels are compiled by Numba and run on it. On every other machine the workbook's
# own *interpreter* runs them: the same kernels, the same results, and, as you will see, more to look at.
# `python -m pmpp` prints the same in a terminal.
#
# ## What a GPU is for
#
# A CPU has a few cores, each built to finish its one task as soon as possible. A GPU is built to finish a
# great number of equal tasks as soon as possible, and it does not matter when any single one is done. It has many more
# threads under way than can compute in the same moment: while some wait for memory, others compute. The same area of
# silicon holds one fast core or many slow ones (PMPP 1.1).

# %%
limits = device.limits()
processors, each = limits["multiprocessors"], limits["max_threads_per_multiprocessor"]
print(f"this computer's CPU: {os.cpu_count()} cores")
print(f"{limits['name']}: {processors} multiprocessors x {each:,} threads = {processors * each:,} threads under way")

# %% [markdown]
# So a GPU is for work that falls into very many parts, of which each can be done without waiting for the
# others. Pictures, matrices, neural networks, simulations are of this kind. A long chain of steps, each of
# which needs the last, is not.
#
# How much faster is it? The workbook ships with measurements made on a real GPU, called the *record*. Figures
# drawn from it say so at the bottom. If you have a GPU, `make bench` records yours.
#
# The example is the addition of two vectors of 2^28 numbers. For each sum two numbers are read and one is written, so
# most of the work is moving them. The record has the time of NumPy on one core of that machine's CPU, for NumPy uses
# no more here.

# %%
recorded = record.load()


def one(contender):
    """The record of one contender in the addition of 2^28 numbers."""
    return next(entry for entry in recorded.entries("vector_add", contender=contender) if entry.workload == "2^28")


cpu, gpu = one("numpy.add"), one("vectorised")
print(recorded.footer("vector_add"))
print(f"NumPy took {cpu.median_ms:.0f} ms and moved {cpu.bytes / cpu.seconds / 1e9:.1f} GB in a second.")
print(f"The memory of the GPU can move {recorded.ceilings('vector_add').bandwidth / 1e9:,.0f} GB in a second.")

# %% [markdown]
# Before many results the workbook asks what you expect. Such a question stands in bold, and the cell below it begins
# with `guess = None`. Write your guess in the place of `None`, and run the cell. It computes the answer, and `predict`
# says how far off you were. The comment behind the guess says what is asked for. Counts must be exact. What is measured
# need not be, and the output says how near is near enough.
#
# As long as the guess is `None`, nothing is given away. If you do not want to guess, *Show the answer* unfolds it. But
# a wrong guess is worth more than a number that you only read. Here is the first question.
#
# **Predict, then run.** The vectors lie in the memory of the GPU, and its addition comes near to the rate of that
# memory. How many times as fast as NumPy is it?

# %%
guess = None  # times as fast as NumPy

predict(guess, cpu.median_ms / gpu.median_ms, unit="times as fast", within=0.25)

# %% [markdown]
# The answer is about the quotient of the two rates. Moving the numbers is what both of them spend their time on.
#
# Usually the vectors do not lie in the GPU's memory. They are NumPy's, and NumPy is to have the result. The third bar
# includes the way there and back.

# %%
rows = {
    "NumPy on one core": cpu.median_ms,
    "kernel on the GPU": gpu.median_ms,
    "kernel and transfers": gpu.end_to_end_ms,
}
figure, ax = chart(2.4)
ax.barh([*rows], [*rows.values()], color=[palette.GREY, *palette.COLOURS[:2]])
for row, ms in enumerate(rows.values()):
    ax.text(ms, row, f" {ms:.3g} ms" + (f", {cpu.median_ms / ms:.3g} times as fast" if row else ""), va="center")
ax.set(xscale="log", xlabel="time (ms) to add 2^28 numbers; each line is ten times the last", xlim=(0.1, 1e5))
ax.xaxis.set_major_formatter("{x:g}")
ax.invert_yaxis()
ax.grid(visible=False, axis="y")
foot(figure, f"{recorded.footer('vector_add')}. CPU: {recorded.run('vector_add')['cpu']}")
figure

# %% [markdown]
# The two bars of the GPU are both right. With the vectors in its own memory the GPU is far ahead. If they have to be
# sent there first, and the result back, it is slower than NumPy on this machine: the journey takes longer than the
# work. [Chapter 4](04_vector_add.ipynb) is about this. Whoever says how fast a GPU is must say from where to where.
#
# ## Two ceilings
#
# How fast *could* a kernel be? Whatever it computes, it moves bytes between memory and the arithmetic units,
# and it does arithmetic. Each has a ceiling that no program can pass. *Bandwidth* is the number of bytes a
# second that the memory can move. The other is the number of floating-point operations (*FLOP*) a second. The
# fastest way to do them is the fused multiply-add, `a * b + c` in one instruction, which counts as two.

# %%
ceilings = roofline.ceilings()
print(f"memory:       {ceilings.bandwidth / 1e12:6.2f} TB/s     (10^12 bytes a second)")
print(f"multiply-add: {ceilings.fma_f32 / 1e12:6.2f} TFLOP/s  (10^12 operations a second)")
print(f"{ceilings.source}")

# %% [markdown]
# These figures are from no data sheet. They were measured: the first by a copy, which only moves bytes, and the second
# by a kernel that only multiplies and adds.
#
# A float32 has 4 bytes. In the time in which one of them comes from memory the GPU can do this many
# operations:

# %%
print(f"{4 * ceilings.fma_f32 / ceilings.bandwidth:.0f} operations for each float32 loaded")

# %% [markdown]
# A kernel that does less with each number that it loads waits for memory. That is the case for many of the kernels in
# this workbook.
#
# ## Arithmetic intensity
#
# Which ceiling will a kernel hit? Count what the work needs at the very least: its operations, and its bytes,
# each input read once and each output written once. In the workbook this is a `Cost`. Operations divided by
# bytes is the *arithmetic intensity*. Here it is for three kinds of work that have chapters of their own.

# %%
works = {
    "add two vectors of 2^28": vector_add.cost(2**28),
    "sum a vector of 2^28": reduction.cost(2**28),
    "multiply 4096 x 4096 matrices": matmul.cost(4096, 4096, 4096),
}
print(f"{'':30} {'FLOP':>15} {'bytes':>14} {'FLOP/byte':>10}   least time")
for name, cost in works.items():
    least = roofline.bound(cost, ceilings)
    counts = f"{cost.flops:15,} {cost.bytes:14,} {cost.intensity:10.3f}"
    print(f"{name:30} {counts}   {least.seconds * 1e3:.3f} ms ({least.side})")

# %% [markdown]
# The last column is the *bound*: the time that the bytes take at full bandwidth, or the time that the
# operations take at the full rate, whichever is longer. Moving and computing overlap, so they do not add up.
# The side in brackets is the one that sets it. Work is *memory-bound* or *compute-bound*.
#
# **Predict, then run.** Two n x n matrices multiplied are 2 n^3 operations on 12 n^2 bytes, so the intensity
# grows with n. From which n on is the product compute-bound on this GPU? (How many operations it does for each float32
# is printed above.)

# %%
guess = None  # n

n = next(n for n in range(1, 10_000) if matmul.cost(n, n, n).intensity > ceilings.ridge)
predict(guess, n, within=0.1)

# %%
print(f"the ceilings meet at {ceilings.ridge:.4f} FLOP/byte")
for size in (n - 1, n):
    print(f"n = {size}: {matmul.cost(size, size, size).intensity:.4f} FLOP/byte")

# %% [markdown]
# ## The roofline
#
# One picture holds all of this, the *roofline* (Williams, Waterman and Patterson 2009; PMPP 5.1). Arithmetic
# intensity runs to the right, operations a second run up, and both axes are logarithmic. A dot is a kernel
# that was measured.

# %%
plots.roofline()

# %% [markdown]
# Read it from the roof down.
#
# - The flat part on the right is the rate of float32 multiply-adds. No kernel does these faster.
# - The slope on the left is the bandwidth. At intensity I, memory delivers enough for I times the bandwidth
#   operations a second and no more.
# - They meet at the *ridge*. A kernel to the left of it is memory-bound: only moving fewer bytes, or moving
#   them better, helps. To the right it is compute-bound.
# - A dot's distance from the roof above it is all that can be gained. The *share of the roof* that it reaches
#   is the bound divided by its time.
# - Small dots are the earlier, slower versions of the same kernel. A chapter climbs from the lowest to the
#   highest.
#
# A share a little above 100 % is possible, because the bandwidth was measured by a copy, and work that writes less than
# it reads is easier on the memory. `winograd` and `by_fft` need less arithmetic than the definition of what they
# compute (chapters 68 and 70). They are drawn at their own count. A dotted line leads to where the definition's count
# would put them, on the roof or above it. The gradients of a convolution (chapter 76) also save arithmetic in this way,
# and stand at the definition's count, a little above the roof.
#
# The dashed lines are the roofs of other units, the *tensor cores* (from chapter 40 on). These multiply numbers of 16
# bits, or of 8. The share of a kernel that runs on them is that of their roof.
#
# A low dot is no bad kernel if the roof above it is low. Vector addition does very few operations a second, and is as
# fast as it can be.
#
# ## How the workbook works
#
# Each chapter asks one question and answers it with a ladder of kernels. The order is always the same: what does the
# hardware allow (the bound); what is the plain, slow, obviously right way (the reference); then kernel after kernel,
# each with a measurement. A kernel names the fault that it leaves, and as a rule the next one mends it. Where the next
# one is there for another reason, or is even slower, the chapter says so. At the end come the roofline of them all,
# exercises, and answers.
#
# The kernels live in the package, in files called *rooms*. Many chapters have one room, some have several, and some
# have none. A kernel in a room with the function that launches it is a *rung* of the ladder. `show` displays either:

# %%
show(vector_add.one_thread_each_kernel)

# %% [markdown]
# **The microscope.** `simt.profile` runs a kernel in the interpreter, with a GPU or without, and reports what
# each line did. Here is your negative:

# %%
report = simt.profile(negative, (16, 19), (32, 32), (photograph.copy(),))
report

# %% [markdown]
# Chapter 4 explains the columns. For a taste: the hardware executes 32 threads together, a *warp*, and
# *instr.* counts what the warps executed. Memory moves in pieces of 32 bytes, called sectors, and *sect/req*
# says how many a warp needed for one access. Here it is 3: one colour of 32 neighbouring pixels is 32 bytes,
# but they lie scattered over 96, between the bytes of the other colours. A real GPU has such counters as
# well, and NVIDIA's profiler, Nsight Compute, reads them.
#
# **What the interpreter cannot tell is time.** It counts what a GPU would have to do, and checks it, but
# takes its own time doing it. Times in this workbook come from a GPU: yours, or the recorded one.
#
# ## What to take along
#
# - A GPU has very many threads under way. It suits work that falls into parts which need not wait for each other.
# - A time belongs to a way: the kernel alone, or from the host and back. In the figure above these two lie on different
#   sides of NumPy.
# - Every machine has two ceilings, bytes a second and operations a second. The arithmetic intensity says which of them
#   a kernel meets, and the ridge is where they meet each other.
# - In a roofline, what can be gained is the distance to the roof straight above a dot. Its height alone says little.
# - The interpreter counts what a kernel does, and does not time it. Times come from a GPU.
#
# ## Exercises
#
# `check` judges your kernel. It tries sizes that you may not have thought of, watches every access, and says what it
# saw. Suppose you were asked for `out = a * x + y`, a classic called saxpy, and forgot something:


# %%
@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    out[i] = a * x[i] + y[i]


check("vector_add/saxpy", saxpy)

# %% [markdown]
# A block is always launched whole, so some threads have an index beyond the end of the vectors. Add the
# guard, as you saw it in `one_thread_each_kernel`, and run the cell again. You may find that `check` has one
# thing more to say. Solving it is part of chapter 4.
#
# ## The chapters

# %%
by_chapter = {}
for room in rooms():
    by_chapter.setdefault(chapter_of(room), []).append(room)
lines = []
for stem, title in notebooks.titles().items():
    lines.append(f"- [{title}]({stem}.ipynb)")
    for room in by_chapter.get(f"notebooks/{stem}.ipynb", ()):
        ladder = " → ".join(f"`{rung.name}`" for rung in room.LADDER)
        lines.append(f"    - `{room.__name__}`: {ladder}")
notebooks.Markdown("\n".join(lines))

# %% [markdown]
# Chapters without kernels listed have no room of their own. `98_instruments` is an appendix on the interpreter: read it
# when you want to know what its numbers mean, and how far they can be trusted.
#
# The numbers of chapters leave room for more to come. Go on with [chapter 4](04_vector_add.ipynb), on
# vector addition.
