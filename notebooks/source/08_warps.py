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
# # 8. Warps
#
# *Multiprocessors, warps and lanes, divergence, the order of warps, latency, Little's law, occupancy. Read chapter
# [4](04_vector_add.ipynb) before. 120 minutes. PMPP 4e: chapter 4; 5e: chapter 4. The code is
# [pmpp/kernels/warps/ladder.py](../pmpp/kernels/warps/ladder.py).*
#
# Chapter 4 launched a thread for every element of a vector, more than two hundred million of them, and the GPU did not
# mind. A CPU with that many threads would come to a halt. And the hardware did not take them one by one, but in groups
# of 32.
#
# **The question of this chapter: why does a GPU want thousands of threads, and why in groups of 32?** The second half
# has a short answer and a price, and the first half has an answer that is mostly about waiting.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import matmul
from pmpp.kernels.warps import ladder as two_ways
from pmpp.kernels.warps.exercises import branch_start, ragged_start, renumber_start
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import agreement, record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Inside a GPU
#
# A GPU is an array of *multiprocessors*, SM for short (PMPP 4.1). Each has arithmetic units, registers, and shared
# memory of its own, and takes whole blocks: all threads of a block run on one SM, from the first instruction to the
# last (PMPP 4.2). `simt.GPUS` is a table of GPUs with their published figures. What belongs to a multiprocessor depends
# on the *compute capability*, the version number of the architecture. (Your own GPU tells by `device.limits()`, PMPP
# 4.8.)

# %%
print("                 SMs  capability  an SM: threads   blocks   registers   shared memory   multiply-adds a cycle")
for gpu in simt.GPUS:
    one, (major, minor) = gpu.architecture, gpu.compute_capability
    limits = f"{one.threads:17,} {one.blocks:8} {one.registers:11,} {one.shared // 1024:11} KiB {one.fp32:23}"
    print(f"{gpu.name:15} {gpu.sms:4} {major:9}.{minor} {limits}")

# %% [markdown]
# The limits in the middle come back at the end of the chapter. The last column says how many float32 multiply-adds an
# SM can start in each cycle of its clock. Compare it with the number of threads that an SM can hold at the same time.
# To *hold* a thread means that its registers are there, and that it could go on in the next cycle.
#
# **Predict, then run.** How many threads can an H200 hold for each multiply-add that it can start in a cycle?

# %%
guess = None  # threads for each multiply-add

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
arch = h200.architecture
predict(guess, arch.threads // arch.fp32, unit="threads")

# %%
print(f"{h200.sms} SMs x {arch.threads:,} threads = {h200.sms * arch.threads:,} threads")
print(f"{h200.sms} SMs x {arch.fp32} multiply-adds = {h200.sms * arch.fp32:,} in a cycle")

# %% [markdown]
# Far more threads than could compute at once. Even if every instruction were a multiply-add, a thread would get its
# turn only once in so many cycles. So most of them must be doing something else, and that is what this chapter is
# about. But first the groups of 32.
#
# ## How a block is cut into warps
#
# The hardware numbers the threads of a block, and cuts the row of numbers into pieces of 32 (PMPP 4.4). Such a piece is
# a *warp*, and a thread's place in it is its *lane*. In a block of two or three dimensions `threadIdx.x` counts
# fastest, then y, then z. Let the threads write it down:


# %%
@cuda.jit
def places(warps):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    number = y * cuda.blockDim.x + x
    warps[y, x] = number // 32


# %%
figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.7), layout="constrained")
for ax, (across, down) in zip(axes, ((32, 8), (16, 16), (10, 8)), strict=True):
    warps = np.zeros((down, across), np.int32)
    simt.profile(places, 1, (across, down), (warps,))
    ax.imshow(warps, cmap=ListedColormap(plots.COLOURS[:8]), vmin=-0.5, vmax=7.5, aspect="auto")
    ax.set(title=f"{across} x {down} threads", xlabel="threadIdx.x", xticks=(0, across - 1), yticks=(0, down - 1))
    ax.grid(visible=False)
label = axes[0].set_ylabel("threadIdx.y")

# %% [markdown]
# Each colour is a warp. If the block is 32 wide, a warp is a row. If it is 16 wide, a warp is two rows, and its lanes
# do not lie side by side any more: what that costs in memory is the subject of [chapter 16](16_transpose.ipynb). If the
# width does not divide 32, a warp ends somewhere in the middle of a row.
#
# **Your turn.** `places` knows two dimensions and one block. Write the kernel for three dimensions and several blocks:
# it takes three or four lines. `check` runs your kernel on awkward sizes, watches every access, and tells you what it
# saw. Hints are there to open when you want one. An answer is at the end of the chapter.

# %%
exercise("warps/number")


# %%
@cuda.jit
def number(out):
    pass  # your code


check("warps/number", number)

# %% [markdown]
# Warps are cut from one block at a time. No warp has threads of two blocks, so the last one may not be full.
#
# **Predict, then run.** A block has 40 threads. How many warps is that, and how many of the 32 lanes work on average?

# %%
guess = {"warps": None, "lanes": None}  # of the block; that work in a warp, on average


@cuda.jit
def touch(out):
    out[cuda.grid(1)] = 1


def touched(threads):
    count = simt.profile(touch, 1, threads, (np.zeros(threads, np.int32),)).counters
    return {"warps": count["global_store_requests"], "lanes": count["thread_inst_memory"] / count["inst_memory"]}


predict(guess, touched(40))

# %%
for threads in (32, 40, 64, 96, 100, 1000, 1024):
    print("{:5} threads: {warps:3} warps, {lanes:5.1f} lanes on average".format(threads, **touched(threads)))

# %% [markdown]
# Lanes that do not exist still take a seat: the warp's instruction is issued for all 32. Make the number of threads a
# multiple of 32, unless you have a reason.
#
# ## One instruction for 32 lanes
#
# Why groups at all? To execute an instruction, a processor has to fetch it, decode it, see whether its operands are
# there, and choose it among others. A GPU does this once for 32 threads, and spends the area that it saves on
# arithmetic. That is the short answer. NVIDIA calls it *SIMT*: single instruction, multiple threads. To the programmer
# each lane still is a thread, with an index, registers and an `if` of its own.
#
# The price is due when threads of a warp want different instructions. We take a kernel with two ways. Every thread goes
# one of them, and `period` says how many neighbours go together.

# %%
cases = {case.name: case for case in agreement.cases()}
long_branch = cases["branch by lane, long"].kernel
show(long_branch)

# %% [markdown]
# With a period of 1, lanes go left and right by turns. With a period of 32, warps do. Each thread executes the same in
# both. A branch *diverges* if it sends lanes of one warp different ways.
#
# **Predict, then run.** Two warps run this kernel, with 3 rounds. How many branches diverge with a period of 1, and how
# many with a period of 32? (Each time that a warp comes to an `if` or to the test of a `while` counts as a branch.)

# %%
guess = {"lane": None, "warp": None}  # divergent branches: with a period of 1, of 32

x, rounds = np.ones(64, np.float32), 3
by = {
    name: simt.profile(long_branch, 1, 64, (x, np.zeros_like(x), rounds, period), trace=True)
    for name, period in (("lane", 1), ("warp", 32))
}
predict(guess, {name: report.counters["divergent_branches"] for name, report in by.items()}, unit="branches")

# %%
plots.divergence(by["lane"], warp=[0, 1])

# %%
plots.divergence(by["warp"], warp=[0, 1])

# %% [markdown]
# Time runs to the right. Dark lanes work, light red ones wait for the others of their warp. Above, both warps go both
# ways, one after the other, and half the lanes wait in each. This is *divergence* (PMPP 4.5). The loops do not diverge,
# since the lanes that are in one leave it together. Below, each warp goes one way, and no lane waits. (White: the
# interpreter takes the lines one by one, and this warp skips them. On a GPU it would be further on by then.) Two warps
# may well do different things. Only within a warp do different things take turns. Here are the counts. (The average in
# the title of a figure is over the lines it draws; this one is over instructions, and a line may be several.)

# %%
print("branch by   divergent branches   instructions of warps   of threads   lanes active")
for name, report in by.items():
    count = report.counters
    warp, thread = count["warp_instructions"], count["thread_instructions"]
    print(f"{name:12} {count['divergent_branches']:17} {warp:23} {thread:12} {thread / warp:14.1f}")

# %% [markdown]
# A thread does the same work in both. The warp does not, and the warp is what takes time. Is that so on a real GPU? The
# workbook's record has both launches under NVIDIA's profiler, with more warps, and beside them the vector addition of
# chapter 4. Its guard `if i < n` sends some lanes of the last warp another way.

# %%
runs, launches = agreement.recorded()
print(f"{next(iter(runs.values()))['gpu']['name']:30} divergent   instructions of warps   of threads   lanes active")
for name in ("branch by lane, long", "branch by warp", "vector_add: one_thread_each"):
    values = launches[name].values
    warp, thread = values["smsp__inst_executed.sum"], values["smsp__thread_inst_executed.sum"]
    split = values["smsp__sass_branch_targets_threads_divergent.sum"]
    print(f"{name:30} {split:9,.0f} {warp:23,.0f} {thread:12,.0f} {thread / warp:14.1f}")

# %% [markdown]
# The same number of instructions for the threads, and more for the warps. (The machine code has other instructions
# around the two ways than our source, so that the number of lanes is not the same. The pattern is.)
#
# The last line shows something else: no divergent branch. What a branch costs depends on what is in it. Where there is
# little, the compiler may do without a branch. Then every lane gets the instruction, and a *predicate*, one bit a lane,
# decides where it counts. Here the lanes beyond the end leave by an exit with a predicate. A guard is nothing to worry
# about. Branches in an inner loop may be.
#
# In `long_branch` half the lanes wait, because the ways are equally long and equally popular. How bad is it if only one
# lane goes astray?


# %%
@cuda.jit
def some_lanes(x, few):
    i = cuda.grid(1)
    value = x[i]
    if i % 32 < few:
        for _ in range(10):
            value = value * value
    x[i] = value


def entering(few):
    """The counters of a warp of which some lanes enter the `if`."""
    return simt.profile(some_lanes, 1, 32, (np.ones(32, np.float32), few)).counters


print(f"no lane enters:   {entering(0)['warp_instructions']} instructions of the warp")
print(f"one lane enters: {entering(1)['warp_instructions']} instructions of the warp")

# %% [markdown]
# **Predict, then run.** How many instructions does the warp execute if all 32 lanes enter?

# %%
guess = None  # instructions of the warp

predict(guess, entering(32)["warp_instructions"], unit="instructions")

# %%
for few in (0, 1, 2, 16, 31, 32):
    warp, thread = (entering(few)[f"{kind}_instructions"] for kind in ("warp", "thread"))
    print(f"{few:2} lanes: {warp:2} instructions of the warp, {thread / warp:4.1f} lanes active")

# %% [markdown]
# One lane costs as much as 32. A warp's time is the sum of all the ways that any lane of it takes. So the average
# number of active lanes is a bill: 8 of 32 lanes means that a quarter of the warp's instructions could have done the
# same work.
#
# **And since Volta?** Up to 2017 a warp had a single program counter, and lanes on the other side of a branch could not
# move until this side was done. A lane that waited there for one of them waited for ever. Since Volta (compute
# capability 7.0) each lane has a program counter of its own, and the hardware may change between the sides. So such a
# program ends now. It is not faster: in any one cycle the warp still issues one instruction, for the lanes that stand
# at that place. And nobody promises when lanes come together again. If lanes need each other, say so with
# `cuda.syncwarp()`, or with the mask of a shuffle ([chapter 30](30_reduction.ipynb)).
#
# **Your turn.** In `branch_start` every warp computes both a root and a square. The report shows where it diverges.

# %%
exercise("warps/branch")

# %%
simt.profile(branch_start, 2, 256, (np.ones(256, np.float32), np.empty((2, 256), np.float32)))


# %%
@cuda.jit
def branch(x, out):
    pass  # your code


check("warps/branch", branch)

# %% [markdown]
# ## What divergence costs in time
#
# Instructions are not yet time. The room of this chapter measures it. Even elements go through `rounds` rounds of
# *v* = *v* / 2 + *x*, odd ones through as many of *v* = *x* - *v* / 4. Here is a branch by lane, and then the idea of
# each rung of the ladder.

# %%
show(two_ways.by_lane_kernel)

# %%
for rung in two_ways.LADDER:
    print(f"{rung.name}: {rung.idea}")

# %% [markdown]
# There are three ways out. `by_data` does without the branch: the two ways differ in a factor alone, 1/2 or -1/4, so
# each lane chooses its factor before the loop. `by_warp` keeps the branch, and numbers the threads anew, so that a warp
# wants one of the ways. And a thread that takes four neighbours has two of each kind. It does both, like every other
# thread, and nothing is left to choose. Here are the first and the last.

# %%
show(two_ways.by_data_kernel)

# %%
show(two_ways.one_round)
show(two_ways.four_each_kernel)

# %% [markdown]
# `in_pairs` puts an even element first, in case that the vectors begin at an odd one. Here is what the interpreter
# counts for 1,024 elements and 64 rounds. The last column is the sectors that loads touch, of which 32 elements need
# four.

# %%
numbers = np.random.default_rng(8).standard_normal(1024, dtype=np.float32)
print("rung       divergent branches   instructions of warps   lanes active   sectors for 32 elements")
for rung in two_ways.LADDER:
    count = lab.count(rung, numbers, 64).counters
    warp, thread = count["warp_instructions"], count["thread_instructions"]
    sectors = count["global_load_sectors"] / (numbers.size / 32)
    print(f"{rung.name:10} {count['divergent_branches']:18} {warp:23,} {thread / warp:14.1f} {sectors:25.0f}")

# %% [markdown]
# All of them mend the divergence. Renumbering has a price of its own, in the last column: lanes of a warp now use every
# second element. By these counts `by_data` is the better of the two, and yet `by_warp` is the later rung. We come to
# that when we have measured. `four_each` has whole sectors, and it computes an index for four elements. `unrolled`
# writes sixteen rounds out in each turn of its loop, since counting rounds and testing for the end are instructions,
# too.
#
# Whether any of this matters depends on what the kernel waits for. An element is 8 bytes, in and out, and 2 FLOP a
# round. Below the *ridge*, the FLOP for each byte that the GPU can do in the time that the byte takes, memory is the
# bound.

# %%
recorded = record.load("nvidia-h200")  # the GPU of this chapter, whatever is here
ceilings = recorded.ceilings("vector_add")
print(f"H200: memory {ceilings.bandwidth / 1e12:.2f} TB/s, multiply-add {ceilings.fma_f32 / 1e12:.1f} TFLOP/s")
print(f"ridge: {ceilings.ridge:.1f} FLOP/byte")

# %% [markdown]
# **Predict, then run.** From how many rounds on does this kernel wait for arithmetic?

# %%
guess = None  # rounds

costs = {rounds: two_ways.cost(2**23, rounds) for rounds in range(1, 1025)}
border = min(rounds for rounds, cost in costs.items() if roofline.bound(cost, ceilings).side == "compute")
predict(guess, border, within=0.1)

# %% [markdown]
# *r* rounds are *r* / 4 FLOP a byte. Here are measurements from one round to many.

# %%
title = "even and odd elements: more and more rounds for the same bytes"
plots.drawn(plots.sweep, "warps", record=recorded, xlabel="rounds for each element", title=title)

# %% [markdown]
# On the left the time hardly grows while the rounds double, so the rate does: the bytes decide. The more rounds there
# are, the more the second way of `by_lane` costs, and on the right, where the kernels wait for their instructions, it
# is the slowest by far. The dashed line counts multiply-adds alone. A kernel has other instructions as well, so it
# leaves the slope earlier.
#
# What does a round cost? From 64 rounds to 256 nothing is added but rounds, so we divide the time that is added by
# them. An SM has four schedulers. Each issues one instruction of a warp in a cycle, at best.
#
# **Predict, then run.** In `by_data` a round of a warp is one multiply-add, and a little of the loop around it. How
# many cycles of a scheduler does it take?

# %%
guess = None  # cycles of a scheduler for a round of a warp

entries, cycles = recorded.entries("warps", kind="rung"), {}
for name in dict.fromkeys(entry.contender for entry in entries):
    time = {entry.sizes["rounds"]: entry.seconds for entry in entries if entry.contender == name}
    per_round = (time[256] - time[64]) / 192 / (entries[0].sizes["n"] / 32)
    cycles[name] = per_round * h200.clock * h200.sms * arch.fp32 / 32  # 32 lanes of multiply-adds for a scheduler
predict(guess, cycles["by_data"], unit="cycles", within=0.1)

# %%
for name, count in cycles.items():
    print(f"{name:10} {count:5.2f} cycles of a scheduler for a round of 32 elements")
print(recorded.footer("warps"))

# %% [markdown]
# `by_data` takes two, and `by_warp` little more than one. The count of instructions cannot tell them apart, but the
# machine can. In `by_warp` the factor is a constant, and a constant is part of the instruction. The multiply-add then
# reads two registers, the value and *x*. In `by_data` the factor is a third. The registers of a scheduler lie in two
# banks, and on an Ampere GPU R. Huerta and others measured that a bank gives one operand of a warp in a cycle
# (*Analyzing Modern NVIDIA GPU Cores*, 2025, arXiv:2503.20481, section 5.3). Two of three registers share a bank, and
# that is two cycles. The record of this GPU shows the two cycles; that the banks are the reason is our reading of it.
#
# `by_lane` has constants, too, and goes two ways. What is left above one cycle is the loop. The compiler had written
# out rounds already: in the machine code for this GPU a turn of each loop is sixteen multiply-adds, and a count and a
# test for all of them. In `by_warp` these are sixteen rounds, and in `four_each` four rounds of four elements. So the
# loops of these two cost about the same, and the counts of the source made it seem otherwise. What `four_each` saves
# lies outside the loop: one index, one test and one load for four elements. `unrolled` has 64 multiply-adds in a turn.
#
# NumPy, on one core of the CPU, goes through memory once for each operation of each round:

# %%
figure = plots.drawn(plots.cpu_gpu, "warps", record=recorded)
if figure:
    figure.axes[0].set_xlabel("rounds for each element")
figure

# %% [markdown]
# Its time grows with the rounds from the first one on. The kernel's hardly grows as long as memory is its bound. Work
# on what has been fetched already is cheap, on a GPU above all.
#
# ## Loops of different length
#
# An `if` is the smaller evil. A loop diverges if lanes go round it a different number of times, and then everyone waits
# for the slowest. A well-known case is the Mandelbrot set. For each point c of a picture one computes z = z * z + c
# again and again, from z = c on, and counts the rounds until z is 2 or more from the origin. All are complex numbers.
# Some points leave at once, some never do.

# %%
FOUR = np.float32(4)


@cuda.jit
def escape(xs, ys, counts, most):
    column, row = cuda.grid(2)
    if row < counts.shape[0] and column < counts.shape[1]:
        cx, cy = xs[column], ys[row]
        x, y, n = cx, cy, 0
        while n < most and x * x + y * y < FOUR:
            x, y = x * x - y * y + cx, x * y + x * y + cy
            n += 1
        counts[row, column] = n


# %%
height, width, most = 256, 384, 100
xs, ys = np.linspace(-2.2, 0.8, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)

# %% [markdown]
# We run it in blocks of 256 threads with four different shapes. A warp is then a row of 32 points, two rows of 16, four
# rows of 8, or a column of 32.
#
# **Predict, then run.** Which shape leaves most lanes active?

# %%
guess = None  # "32 x 1", "16 x 2", "8 x 4" or "1 x 32"

counts, pictures, active = np.zeros((height, width), np.int32), {}, {}
for across in (32, 16, 8, 1):
    block = across, 256 // across
    grid = width // block[0], -(-height // block[1])
    report = pictures[across] = simt.profile(escape, grid, block, (xs, ys, counts, most))
    count = report.counters
    active[f"{across} x {32 // across}"] = count["thread_instructions"] / count["warp_instructions"]
predict(guess, max(active, key=active.get), choices=tuple(active))

# %%
print("warp       instructions of warps   lanes active")
for report, (shape, lanes) in zip(pictures.values(), active.items(), strict=True):
    print(f"{shape:8} {report.counters['warp_instructions']:24,} {lanes:14.1f}")

# %% [markdown]
# The more compact the warp, the more alike are its points. Nothing but the shape of the block has changed, and each
# thread does exactly what it did before. On the left is the picture. The others show for each warp how many lanes were
# active in its loop: the rounds of all lanes, divided by those of the slowest. White warps have no rounds to do.

# %%
figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.5), layout="constrained")
axes[0].imshow(np.log1p(counts), cmap="magma")
axes[0].set_title("rounds (logarithm)")
for ax, across in zip(axes[1:], (32, 8), strict=True):
    down = 32 // across
    tiles = counts.reshape(height // down, down, width // across, across)
    slowest = tiles.max(axis=(1, 3))
    lanes = np.ma.masked_where(slowest == 0, tiles.sum(axis=(1, 3)) / np.maximum(1, slowest))
    shown = ax.imshow(lanes, cmap="viridis", vmin=0, vmax=32, extent=(0, width, height, 0), interpolation="none")
    ax.set_title(f"warps of {across} x {down}")
for ax in axes:
    ax.set(xticks=[], yticks=[])
bar = figure.colorbar(shown, ax=axes, label="lanes active", ticks=(0, 8, 16, 24, 32), shrink=0.8)

# %% [markdown]
# Inside the set and far outside all is well. Lanes are lost along the border, where a point that never leaves sits in
# one warp with some that leave early. There the time goes. Here is the warp whose lanes differ most, from a run of at
# most 12 rounds:

# %%
rounds = np.sort(np.minimum(counts, 12).reshape(height, width // 32, 32), axis=2)
different = (np.diff(rounds, axis=2) > 0).sum(axis=2)  # for each warp of 32 x 1
row, column = np.unravel_index(different.argmax(), different.shape)
at = simt.Tracing(blocks=[(int(column), int(row) // 8)], warps=int(row) % 8)
few = simt.profile(escape, (width // 32, height // 8), (32, 8), (xs, ys, np.zeros_like(counts), 12), trace=at)
plots.divergence(few)

# %% [markdown]
# Round by round lanes drop out, and each test that loses some diverges. The warp goes on until the last lane is done.
# `report.mix()` shows it for each kind of instruction, here for the whole picture in warps of 32 x 1:

# %%
pictures[32].mix()

# %% [markdown]
# What would that mean on a GPU? `report.bound` adds up what each part of the machine has to do. For a kernel without
# much memory traffic that is arithmetic, and the *issue* of instructions, which is where idle lanes are paid for.

# %%
for across in (32, 8):
    print(f"warps of {across} x {32 // across}\n{pictures[across].bound('H200')}\n")

# %% [markdown]
# *At least* knows nothing of warps: the operations are the same in both, and so is this time. *As written* takes each
# instruction that was counted for one of the machine. That is rough, but it is rough in the same way in both, and the
# time of issue follows the active lanes. (The picture is so small that a launch would take longer than all of this.
# Look at the ratio.)
#
# What can one do about loops of different length? Give a warp work that is alike: neighbours in a picture, rows sorted
# by length. Or give a long piece of work to a whole warp, whose lanes share it.
#
# **Your turn.** `ragged_start` gives a row of its own to each lane, and rows are of different length. Let the lanes of
# a warp share a row.

# %%
exercise("warps/ragged")

# %%
rng = np.random.default_rng(4)
lengths = rng.integers(0, 60, 64)
starts = np.concatenate([[0], np.cumsum(lengths)])
values, scale = np.ones(starts[-1], np.float32), np.ones(64, np.float32)
rows = simt.profile(ragged_start, 1, 64, (values, starts, scale, np.empty_like(values)), trace=True)
plots.divergence(rows, warp=[0, 1])


# %%
@cuda.jit
def ragged(x, starts, scale, out):
    pass  # your code


check("warps/ragged", ragged)

# %% [markdown]
# ## In any order
#
# The threads of a block are all on their SM from the beginning, so they can wait for each other. Blocks cannot: one
# that has not begun may be waiting for a place that this one holds. And warps of a block run when they can. No order is
# promised, of warps or of blocks, and none should be assumed. Let each warp sign a list when it comes by.
# `cuda.atomic.add` hands out the places, so that no two warps get the same. The interpreter runs warps in an order
# drawn at random if it is asked for `schedule="shuffled"`, and the same seed gives the same order again.


# %%
@cuda.jit
def sign(turn, signed):
    if cuda.laneid == 0:
        place = cuda.atomic.add(turn, 0, 1)
        signed[place] = cuda.threadIdx.x // 32


for seed in range(4):
    signed = np.zeros(8, np.int32)
    simt.profile(sign, 1, 256, (np.zeros(1, np.int32), signed), schedule="shuffled", seed=seed)
    print(f"seed {seed}: warps came in the order", *signed)

# %% [markdown]
# So what one warp writes, another must not simply read. This kernel turns the numbers of a block round through shared
# memory, and a barrier is missing: nobody has made sure that the number is there yet.


# %%
@cuda.jit
def turned(x, out):
    tile = cuda.shared.array(256, np.int32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    out[i] = tile[255 - i]


@cuda.jit
def turned_with_barrier(x, out):
    tile = cuda.shared.array(256, np.int32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()  # no thread goes on before all of its block are here
    out[i] = tile[255 - i]


# %% [markdown]
# **Predict, then run.** In how many of ten random orders does `turned`, without a barrier, come out right? (Each of the
# eight warps needs what another one has written.)

# %%
guess = None  # of ten orders


def is_right(kernel, schedule, seed=0):
    numbers = np.arange(1, 257, dtype=np.int32)
    out = np.zeros_like(numbers)
    simt.profile(kernel, 1, 256, (numbers, out), schedule=schedule, seed=seed)
    return np.array_equal(out, numbers[::-1])


predict(guess, sum(is_right(turned, "shuffled", seed) for seed in range(10)), unit="orders")

# %%
for kernel in (turned, turned_with_barrier):
    right = sum(is_right(kernel, "shuffled", seed) for seed in range(10))
    in_step = "right" if is_right(kernel, "lockstep") else "wrong"
    print(f"{kernel.py_func.__name__:20} right in {right:2} of 10 random orders; with all warps in step: {in_step}")

# %% [markdown]
# The last column is the trap. If all warps happen to move in step, the wrong kernel is right, and a GPU may do nearly
# that on the day of the test. Only a barrier makes it sure (PMPP 4.3). (`level="check"` finds the race in any order:
# try it on `turned`.)
#
# ## Latency, and how to live with it
#
# Now for the thousands. A load from memory takes hundreds of cycles from request to answer, the *latency* (PMPP 4.6). A
# CPU fights latency with large caches and by guessing ahead. A GPU lets the warp wait, and issues another one. An SM
# has four *schedulers*. Each has a quarter of the SM's warps, and in every cycle picks one that is ready. The change
# costs nothing, since the registers of all resident warps are there all the time; nothing is saved or fetched.
#
# A model of one scheduler: each warp has a few instructions to issue, then waits for its load, again and again.


# %%
def one_scheduler(warps, work, latency, cycles=100):
    """What each warp does in each cycle: 0 waits for its load, 1 could be issued but is not, 2 is issued."""
    state, ready, left = np.zeros((warps, cycles), int), np.zeros(warps, int), np.full(warps, work)
    for cycle in range(cycles):
        able = np.flatnonzero(ready <= cycle)
        state[able, cycle] = 1
        if able.size:
            warp = able[np.argmin(ready[able])]  # who has been ready for longest
            state[warp, cycle] = 2
            left[warp] -= 1
            if left[warp] == 0:
                left[warp], ready[warp] = work, cycle + 1 + latency
    return state


# %% [markdown]
# **Predict, then run.** Four instructions, then 40 cycles of waiting. One warp keeps the scheduler busy for 4 of 44
# cycles. How many warps are needed to keep it busy all the time?

# %%
guess = None  # warps


def busy(warps):
    """The share of cycles in which the scheduler issues something, in a whole period after all warps have begun."""
    return (one_scheduler(warps, work=4, latency=40) == 2).any(axis=0)[44:88].mean()


predict(guess, next(warps for warps in range(1, 44) if busy(warps) == 1), unit="warps")

# %%
colours = ListedColormap(["white", palette.WAITING, palette.COLOURS[0]])
figure, axes = plt.subplots(3, 1, figsize=(7.8, 4.6), layout="constrained", height_ratios=(1, 2, 4))
for ax, warps in zip(axes, (1, 4, 11), strict=True):
    state = one_scheduler(warps, work=4, latency=40)
    ax.imshow(state, cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="none")
    ax.set_title(f"{warps} warp{'s' * (warps > 1)}: the scheduler is busy for {busy(warps):.0%} of the time")
    ax.set(yticks=range(0, warps, 5), ylabel="warp")
    ax.grid(visible=False)
label = axes[-1].set_xlabel("cycle (a model: 4 instructions, then a load that takes 40 cycles)")

# %% [markdown]
# Dark is an instruction, white is waiting for memory, light red is ready and waiting for its turn (here only at the
# start, where all are ready at once). A warp comes back every 4 + 40 cycles and issues for 4 of them, so 44 / 4 warps
# fill the time. No single warp has become faster. The same 44 cycles pass for each, but there is
# always one with something to do. This is the trade of the GPU: it does not make waiting shorter, it fills it. It needs
# warps for that, and they need to be *there*.
#
# The model had 40 cycles to make a small picture. How long does a load really take? Our record has a hint, an upper
# bound for a load that finds its data in the cache: an addition of a few numbers takes longer than a kernel that does
# nothing at all, by one load, one store and some change. A load from memory takes longer than one from the cache; for
# that we take a published figure.

# %%
LATENCY = 700  # cycles; github.com/markdewing/AI_kernels, latency/data/h100sxm.dat
small = next(e for e in recorded.entries("vector_add", contender="one_thread_each") if e.workload == "2^10")
beyond = small.seconds - ceilings.empty_kernel
print(f"{small.workload} elements take {beyond * 1e9:.0f} ns more than nothing: {beyond * h200.clock:.0f} cycles")
print(f"published for the memory of an idle H100: {LATENCY} cycles, at our clock {LATENCY / h200.clock * 1e9:.0f} ns")
print(recorded.footer("vector_add"))

# %% [markdown]
# M. Dewing measured the published figure by a chain of loads, each of which needs the result of the one before, through
# up to 1.5 GB of an H100. Where the chain fits into the L2 cache, he has less than half of it. Other chains give other
# figures, and an H200 is not an H100, but we only need the size of it.
#
# **Predict, then run.** Suppose a warp issues 10 instructions and then waits for a load, of that many cycles. How many
# warps does a scheduler need to be busy all the time?

# %%
guess = None  # warps

predict(guess, (10 + LATENCY) / 10, unit="warps")

# %% [markdown]
# And how many can it have? An SM has four schedulers, and places for the threads of the table at the beginning.

# %%
possible = arch.warps // 4
for loads in (1, 2, 4, 8):
    work = 10 * loads
    needed = (work + LATENCY) / work
    print(f"loads at once: {loads}, {work:2} instructions, then wait: {needed:4.1f} warps needed, {possible} possible")

# %% [markdown]
# So warps alone cannot hide this latency. The other lines show the second means, and it is in your hands. If a thread
# starts several loads before it needs the first, they travel together, and it waits once for all of them. That is
# parallelism *within* a thread (ILP, instruction-level parallelism), and it does the same as more threads would. Many
# tricks of other chapters come down to it: several elements a thread, 128-bit loads, loading the next tile while this
# one is used.
#
# ## Little's law
#
# For a kernel that is bound by memory, as many are, busy schedulers are not even the point. The memory has to be busy.
# There is a law for this, of queues in general: what is under way = rate x time under way (J. Little, 1961). If so many
# bytes are to come in a second, and each is under way for so many nanoseconds, a certain number of bytes must be under
# way at any moment. If there are fewer, the rate is lower. That is all.

# %%
seconds = LATENCY / h200.clock
print(f"H200: {ceilings.bandwidth / 1e12:.2f} TB/s and {h200.sms * arch.threads:,} threads")
print(f"a byte is under way for {seconds * 1e9:.0f} ns")

# %% [markdown]
# **Predict, then run.** How many bytes must be under way for each thread that the H200 can hold, to keep its memory
# busy? (A TB is 10^12 bytes, and a ns 10^-9 seconds.)

# %%
guess = None  # bytes for each thread

under_way = ceilings.bandwidth * seconds
an_sm = under_way / h200.sms
predict(guess, an_sm / arch.threads, unit="bytes")

# %%
print(f"{ceilings.bandwidth / 1e12:.2f} TB/s x {seconds * 1e9:.0f} ns = {under_way / 1e6:.2f} MB under way")
print(f"{an_sm:,.0f} bytes an SM, {an_sm / arch.threads:.1f} for each of its {arch.threads:,} threads")

# %% [markdown]
# Between one float and two for each thread, if every place for a thread is taken, and every thread is always waiting
# for its loads. Now we see what the thousands are for: they are there to wait. In the vector addition of chapter 4
# each thread loads two floats. That should do. Does it?

# %%
plots.ladder("vector_add", record=recorded)

# %% [markdown]
# It does not. `one_thread_each` has two loads a thread, and takes so few registers that an SM holds all the threads it
# can. Still it falls short of the roof. We use the law backwards. What the threads can have under way, divided by the
# rate of loads that was measured, gives how long a byte's place was taken.

# %%
design, measured = recorded.design("vector_add"), {}
a_thread = {"one_thread_each": 8, "grid_stride": 8, "vectorised": 32}  # bytes of loads
for entry in design[:3]:
    most_bytes = h200.sms * arch.threads * a_thread[entry.contender]
    measured[entry.contender] = rate = entry.bytes * 2 / 3 / entry.seconds  # two of three bytes are loaded
    taken = most_bytes / rate
    print(f"{entry.contender:16} at most {most_bytes / 1e6:.2f} MB under way, {rate / 1e12:.2f} TB/s of loads:", end="")
    print(f"{taken * 1e9:5.0f} ns a byte, {taken / seconds:4.1f} times the latency")

# %% [markdown]
# In `one_thread_each` a place turns over far more slowly than the bare latency. There are two reasons, and the record
# cannot tell them apart. A thread is not always waiting for a load: it is started, computes its index, adds,
# stores, and leaves; only then can another take its place. And latency grows under load, because requests queue. The
# rungs show what helps. `grid_stride` keeps its threads, so places turn over faster. `vectorised` has four times as
# much under way in each place, and now there is more than the memory can take: the bytes wait in the queue, at the
# roof.
#
# What if there were fewer warps? Take the time of a place in `one_thread_each` for granted; then Little's law draws
# this map.

# %%
turnover = h200.sms * arch.threads * 8 / measured["one_thread_each"]
warps, roof = np.arange(0, arch.warps + 1), ceilings.bandwidth * 2 / 3 / 1e12
figure, ax = chart(3.6)
for each, colour, line in zip((4, 8, 16, 32, 64), palette.COLOURS, palette.LINES, strict=False):
    rate = h200.sms * 32 * warps * each / turnover / 1e12
    ax.plot(warps, np.minimum(rate, roof), color=colour, linestyle=line, label=f"{each} bytes a thread")
for name, mark in (("one_thread_each", "o"), ("vectorised", "D")):
    ax.plot(arch.warps, measured[name] / 1e12, mark, color=palette.INK, label=f"measured: {name}", clip_on=False)
ax.set(xlabel="warps on an SM", ylabel="loads (TB/s)", xlim=(0, arch.warps), ylim=(0, None), xticks=range(0, 65, 8))
figure.legend(loc="outside right upper")
foot(figure, f"Lines: a model (Little's law), not measured. {recorded.footer('vector_add')}")
figure

# %% [markdown]
# The line of 8 bytes goes through the circle because it was made to; the others are what the law makes of it, and the
# diamond says that 32 bytes do reach the roof. (It lies a little above it: the ceiling was measured with a copy, which
# writes a byte for each that it reads. An addition reads two, and [chapter 4](04_vector_add.ipynb) has more.) Each line
# rises until the memory is full. More bytes a thread or more threads, it is their product that counts. A quarter of the
# warps with 32 bytes each are as good as all of them with 8. Remember this when you read the next section.
#
# Now go back to the bare latency, and suppose that all warps always wait for their loads. The law then says how many
# warps it takes.
#
# **Predict, then run.** Each thread waits for 16 bytes at a time. How many warps must be on each SM to keep the memory
# busy? And how many if the latency doubles, because requests queue?

# %%
guess = {"700 cycles": None, "1,400 cycles": None}  # warps on an SM

needed = {f"{cycles:,} cycles": math.ceil(an_sm * cycles / LATENCY / (32 * 16)) for cycles in (LATENCY, 2 * LATENCY)}
predict(guess, needed, unit="warps")

# %% [markdown]
# Turn the three numbers yourself. Where ipywidgets are installed, as by `make lab`, each number has a slider above the
# figure. Without them, write other numbers into the first line of the cell, and run it again.

# %%
on_an_sm, nbytes, latency = 16, 16, LATENCY  # other numbers here, or the sliders

knobs.turn(
    knobs.under_way,
    warps=(on_an_sm, range(1, 65)),
    nbytes=(nbytes, (4, 8, 16, 32, 64)),
    latency=(latency, range(300, 1501, 50)),
)

# %% [markdown]
# The slope of the line is the bytes of a warp, divided by the latency. To the right of the dotted line more warps bring
# nothing, since the memory has no more to give. Twice the latency takes twice the warps, or twice the bytes of each
# thread. With 4 bytes a thread even all 64 warps are too few.
#
# ## Occupancy
#
# How many warps are on an SM? *Occupancy* is their number, over the most that it can hold (PMPP 4.7). A block brings
# all its warps, and it needs room for all that it takes: places for threads, a place for a block, registers, shared
# memory. Whatever runs out first sets the limit. `simt.occupancy` knows the rules.

# %%
for threads in (32, 256, 768, 1024):
    print(simt.occupancy(threads))

# %% [markdown]
# The second line of each says what a block takes, the third how many blocks each resource would allow. Small blocks run
# out of places for blocks. Large ones may not divide the number of threads. (Shared memory limits even a block that
# asks for none, because the system takes 1 KiB for itself with each.) Only whole blocks count: if three quarters of one
# would still fit, that room stays empty.
#
# **Predict, then run.** An RTX 4090 holds 1,536 threads an SM. What is its occupancy with blocks of 1,024?

# %%
guess = None  # %

predict(guess, 100 * simt.occupancy(1024, gpu="RTX 4090").occupancy, unit="%")

# %%
figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.0), sharey=True, layout="constrained")
for name, style in (("H200", "-"), ("RTX 4090", "--")):
    sizes = np.arange(32, 1025, 32)
    axes[0].plot(sizes, [100 * simt.occupancy(int(n), gpu=name).occupancy for n in sizes], f".{style}", label=name)
    block = next(gpu for gpu in simt.GPUS if gpu.name == name).architecture.shared_block
    shared = np.arange(0, block + 1, 256)
    shares = [100 * simt.occupancy(256, int(s), gpu=name).occupancy for s in shared]
    axes[1].plot(shared / 1024, shares, style, label=name)
axes[0].set(xlabel="threads a block", ylabel="occupancy (%)", ylim=(0, 105), xticks=(32, 256, 512, 768, 1024))
axes[1].set(xlabel="shared memory a block of 256 threads (KiB)")
both = axes[1].legend()

# %%
print("threads:   " + "".join(f"{n:6,}" for n in (64, 128, 256, 512, 1024)))
for name in ("H200", "RTX 4090"):
    found = [simt.occupancy(n, gpu=name).occupancy for n in (64, 128, 256, 512, 1024)]
    print(f"{name:11}" + "".join(f"{share:6.0%}" for share in found))

# %% [markdown]
# Powers of two up to 512 suit both. A block that takes a little more than half of an SM leaves almost half of it empty.
# On the right each step down is one block fewer.
#
# **Registers.** The compiler decides how many registers a thread needs, and an SM has only so many. They are given to
# whole warps in units of 256.
#
# **Predict, then run.** An H200 has 65,536 registers an SM. A block has 256 threads. What occupancy does it reach with
# 64 registers a thread, and with 65?

# %%
guess = {"64 registers": None, "65 registers": None}  # %

taken = {f"{n} registers": 100 * simt.occupancy(256, registers=n).occupancy for n in (64, 65)}
predict(guess, taken, unit="%")

# %%
print("registers   blocks   warps   occupancy   limited by")
for registers in (16, 32, 33, 40, 64, 65, 96, 128, 168, 255):
    found = simt.occupancy(256, registers=registers)
    print(f"{registers:9} {found.blocks:8} {found.warps:7} {found.occupancy:11.1%}   {found.limiter}")

# %% [markdown]
# A cliff: one register more and a whole block no longer fits. On a GPU, `kernel.get_regs_per_thread()` says how many a
# kernel takes, and `@cuda.jit(max_registers=64)` makes the compiler do with fewer. What it then cannot keep it puts
# into memory, and that may cost more than the occupancy gains.
#
# Most kernels take some of everything. Here is a block of 256 threads with 40 registers each, and 40 KiB of shared
# memory.
#
# **Predict, then run.** How many of its warps does an SM of the H200 hold? And how many if the compiler makes do with
# 32 registers?

# %%
guess = {"40 registers": None, "32 registers": None}  # warps on an SM

held = {f"{n} registers": simt.occupancy(256, 40 * 1024, n).warps for n in (40, 32)}
predict(guess, held, unit="warps")

# %%
threads, registers, shared_kib, name = 256, 40, 40, "H200"  # other numbers here, or the sliders

knobs.turn(
    knobs.occupancy,
    threads=(threads, range(32, 1025, 32)),
    registers=(registers, range(16, 256)),
    shared_kib=(shared_kib, range(228)),
    gpu=(name, [gpu.name for gpu in simt.GPUS]),
)

# %% [markdown]
# The bars are the blocks that each resource would allow by itself, and the shortest of them decides. So it is only the
# scarcest that is worth saving: fewer registers gain nothing here, and a few KiB less of shared memory gain a block.
# Then both are scarce, and the next block needs less of both. Each curve leaves the other numbers as they are, and
# has steps where a whole block is won or lost.
#
# **Your turn.** Compute it yourself, for many kernels at once.

# %%
exercise("warps/resident")


# %%
def resident(threads, registers):
    pass  # your code


check("warps/resident", resident)

# %% [markdown]
# ## Full occupancy is not the goal
#
# It is tempting to take occupancy for a grade. Look at the matrix products of [chapter 12](12_matmul.ipynb): how many
# registers each rung takes, the occupancy that follows, and how fast it was measured to be.

# %%
small, ladder, rates = np.ones((128, 16), np.float32), {}, {}
for entry in recorded.design("matmul"):
    if entry.registers:
        name, rates[entry.contender] = entry.contender, entry.flops / entry.seconds / 1e12
        block = lab.count(getattr(matmul, name), small, small.T.copy()).reports[-1].block
        ladder[name] = simt.occupancy(math.prod(block), entry.shared_bytes, entry.registers, "H200")

print("rung              registers   warps   occupancy   limited by          measured")
for name, found in ladder.items():
    print(f"{name:16} {found.registers:10} {found.warps:7} {found.occupancy:11.1%}   {found.limiter:13}", end="")
    print(f" {rates[name]:7.1f} TFLOP/s")
if not ladder:
    print(f"{recorded.where} has no registers of matmul yet; on a GPU run: make bench ROOMS=matmul")

# %%
figure, ax = chart(3.6)
look = plots.colours(recorded, "matmul")
for name, found in ladder.items():
    ax.plot(100 * found.occupancy, rates[name], look[name][1], color=look[name][0], label=name, markersize=8)
ax.set(xlabel="occupancy (%)", ylabel="measured (TFLOP/s)", xlim=(0, 104), yscale="log")
ax.yaxis.set_major_formatter("{x:g}")
if ladder:
    figure.legend(loc="outside right upper")
foot(figure, f"{recorded.footer('matmul')}; products of 4096 x 4096")
figure if ladder else None

# %% [markdown]
# No rung has fewer warps than the fastest, and the slow ones have all that fit. The registers bought something else:
# numbers that need not be loaded again. Nor does the rung lack work to hide latency with. It has it within the thread:
# each of its sums is a chain of multiply-adds of its own. (A multiply-add can use the result of another after four
# cycles, says NVIDIA's tuning guide for Volta. We take it that this still holds.)

# %%
totals = matmul.THREAD_M * matmul.THREAD_N
print(f"{totals} sums a thread, none of which needs another: {totals} multiply-adds can follow one another")
for name in ladder.keys() & {"prefetched"}:
    each = ladder[name].warps // 4  # warps of a scheduler
    print(f"{each} warps a scheduler: {each * totals} independent multiply-adds; a latency of 4 cycles needs 4")

# %% [markdown]
# V. Volkov made this point in a talk that is still worth reading, *Better Performance at Lower Occupancy* (GTC 2010).
# Little's law holds for arithmetic as well: rate times latency is the number of operations that must be under way, and
# the law does not ask whose they are. Threads are one way to have enough. More work in each thread is another, and
# often the cheaper one, since what a thread holds in registers is shared by all its work.
#
# So when is occupancy worth looking at? When a kernel waits, each thread has little under way, and something silly,
# such as a block of 32 threads, keeps warps out. Then it is free speed. Otherwise measure.
#
# ## What to take along
#
# 1. A warp executes one instruction for 32 lanes. Its time is the sum of all the ways that its lanes take, so let whole
#    warps go one way, and let the lanes of a warp have loops of equal length.
# 2. Divergence costs time where the kernel waits for its instructions. Where it waits for memory, look there first.
# 3. Warps run in any order. Only barriers and atomics order what they do to each other.
# 4. Latency is not shortened but filled: with other warps, or with more independent work in each.
# 5. For memory, count bytes under way: threads that wait, times the bytes that each waits for.
# 6. Occupancy says how many threads could wait. It is a means.
#
# ## Exercises
#
# These two are as those above.

# %%
exercise("warps/renumber")

# %%
ones = np.ones((16, 64), np.float32)
simt.profile(renumber_start, (2, 2), (4, 64), (ones, np.empty_like(ones)))


# %%
@cuda.jit
def renumber(x, out):
    pass  # your code


check("warps/renumber", renumber)

# %%
exercise("warps/active_lanes")


# %%
def active_lanes(trips, block):
    pass  # your code


check("warps/active_lanes", active_lanes)

# %% [markdown]
# **Without a check.** A kernel takes 40 registers and 20 KiB of shared memory for a block of 192 threads. What limits
# it on an H200, and what on an RTX 4090? What would you change first?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def number_answer(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    thread = (z * cuda.blockDim.y + y) * cuda.blockDim.x + x  # as the hardware counts
    out[cuda.blockIdx.x, z, y, x] = thread // 32


assert check("warps/number", number_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def branch_answer(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * 128 + thread % 128
    if k < x.size:
        if thread < 128:  # the first four warps of the block
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


assert check("warps/branch", branch_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def renumber_answer(x, out):
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x  # as the hardware counts
    row, column = cuda.blockIdx.y * 8 + thread // 32, cuda.blockIdx.x * 32 + thread % 32
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


assert check("warps/renumber", renumber_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def ragged_answer(x, starts, scale, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], 32):
            out[j] = scale[row] * x[j]


assert check("warps/ragged", ragged_answer)
shared_rows = simt.profile(ragged_answer, 8, 256, (values, starts, scale, np.empty_like(values)), trace=True)
plots.divergence(shared_rows, warp=[0, 1])

# %% [markdown]
# *ragged.* Lanes share a row, so their loops differ by one round at most: the last one, if the length is no multiple of
# 32. Short rows still leave lanes idle. For rows of ten elements one would give a row to 8 or 16 lanes.


# %% jupyter={"source_hidden": true} tags=["answer"]
def resident_answer(threads, registers):
    warps = -(-threads // 32)
    a_warp = -(-registers * 32 // 256) * 256  # registers that a warp takes
    by_registers = 16384 // a_warp * 4 // warps
    return np.minimum(np.minimum(64 // warps, 32), by_registers)


assert check("warps/resident", resident_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def active_lanes_answer(trips, block):
    active = executed = 0
    for first in range(0, trips.size, block):
        threads = trips[first : first + block]
        for lane in range(0, block, 32):
            warp = threads[lane : lane + 32]
            active += warp.sum()
            executed += warp.max()
    return active / executed


assert check("warps/active_lanes", active_lanes_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
for name in ("H200", "RTX 4090"):
    print(simt.occupancy(192, 20 * 1024, 40, name))
    print("  without shared memory:", f"{simt.occupancy(192, 0, 40, name).occupancy:.0%}", end="; ")
    print(f"256 threads instead: {simt.occupancy(256, 20 * 1024, 40, name).occupancy:.0%}")

# %% [markdown]
# *Limits.* The cell prints what runs out first on each, and what two changes would do. Neither tells you whether the
# kernel would be faster: that depends on what it waits for.
#
# Go on with [chapter 10](10_images.ipynb): images, whose threads come in two dimensions.
