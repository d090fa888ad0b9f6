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
# # 30. Reduction
#
# *Reduction trees, divergence, barriers and races, shared memory, coarsening, shuffles, the order of float additions.
# Read chapters [4](04_vector_add.ipynb), [12](12_matmul.ipynb) and [16](16_transpose.ipynb) before. 90 minutes. PMPP
# 4e: chapter 10, sections 4.3 and 4.5; 5e: chapter 10, sections 4.3 and 4.5.*
#
# To find how bright a photograph is, add up its pixels and divide by how many there are. One processor adds them one
# after another. A GPU has hundreds of thousands of threads under way at once, and each of them can add. But in the end
# there must be one number, so threads have to hand their values to each other, and wait for each other, until one value
# is left.
#
# **The question of this chapter: how do thousands of threads agree on one number, and what does agreeing cost?** A
# sum, a maximum or a minimum of many values is a *reduction*. We make one fast in six steps, and repeatable in a
# seventh. The code is the room [pmpp/kernels/reduction/ladder.py](../pmpp/kernels/reduction/ladder.py). What we need
# from earlier chapters is said again in a sentence where we need it.

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import reduction
from pmpp.kernels.reduction import BLOCK, COARSE, SUM
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The question, on a photograph
#
# The input is a portrait of Grace Hopper, who wrote one of the first compilers. The brightness of a pixel is a
# weighted sum of its red, green and blue. As a vector the photograph is long enough for many blocks, and short enough
# for the interpreter.

# %%
image = (data.photograph() @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
pixels = image.ravel()

figure, ax = plt.subplots(figsize=(3.4, 3.8), layout="constrained")
ax.imshow(image, cmap="gray", vmin=0, vmax=255)
ax.set_title(f"{image.shape[0]} x {image.shape[1]} pixels, each from 0 to 255")
ax.set_axis_off()

# %% [markdown]
# ## The bound
#
# What is the least that any sum must do? It reads each of $n$ numbers once, 4 bytes each, and does $n-1$ additions.
# That is a quarter of an operation for every byte: the *arithmetic intensity*. The *ridge* of a GPU is the intensity
# above which its arithmetic becomes the limit. A sum lies far to the left of it, so it is *memory-bound*: the best
# that a kernel can do is to read the vector at the full rate of the memory, and to do everything else in the
# meantime.


# %%
def bound(n):
    """The cost of a sum of n float32, and the least time for it on this GPU, or the recorded one."""
    cost = reduction.cost(n)
    print(f"{n:,} numbers: {cost.flops:,} FLOP, {cost.bytes:,} bytes, {cost.intensity:.2f} FLOP/byte")
    try:
        ceilings = roofline.ceilings("reduction")
        least = roofline.bound(cost, ceilings)
        print(f"    ridge: {ceilings.ridge:.1f} FLOP/byte; at least {least.seconds * 1e6:.3g} us, set by {least.side}")
        print(f"    a kernel without work: {ceilings.empty_kernel * 1e6:.3g} us")
    except record.RecordError as missing:
        print(missing)


bound(pixels.size)
bound(2**28)

# %% [markdown]
# The first line is the photograph. The second is the size at which the room's rungs are compared: a gibibyte, which no
# cache holds. The photograph is too small to time: its bound is shorter than it takes to launch a kernel at all.
#
# ## The reference
#
# This is the sum as one processor does it. It is slow, obvious, and in float64, because it is the judge of all that
# follows.

# %%
show(reduction.reference)
total = reduction.reference(pixels)
print(f"sum {total:.3f}, mean brightness {total / pixels.size:.3f}")

# %% [markdown]
# Every addition waits for the one before it. With a thousand threads that would be a queue, not a team. The way out is
# a *reduction tree* (PMPP 10.2): add neighbours in pairs, all pairs at once, then pairs of pairs. Here it is on
# sixteen numbers. Each line is one level.

# %%
level = np.arange(1, 17)
while level.size > 1:
    print(level)
    level = level[0::2] + level[1::2]
print(level)

# %% [markdown]
# Fifteen additions, as in the loop: 8, 4, 2 and 1. But they take four steps instead of fifteen, if there are eight
# hands. For $n$ numbers it is $\log_2 n$ steps.
#
# The tree puts the brackets elsewhere: $(1+2)+(3+4)$ instead of $((1+2)+3)+4$. That is allowed because addition is
# *associative*. Addition of floats is not quite, and the end of this chapter is about what follows from that.
#
# ## Rung 1: `interleaved`
#
# The first kernel is that picture in code. A thread owns one element. At the first level every second thread adds its
# right neighbour's value to its own, at the next level every fourth thread, two places further, and so on: `stride`
# is 1, 2, 4... The sums are written to `work`, a copy of `x` that the kernel makes, for `x` belongs to the caller.

# %%
show(reduction.interleaved_kernel)

# %% [markdown]
# Three lines need a word.
#
# `cuda.syncthreads()` is a *barrier*: no thread of the block goes on before all of them have arrived. A thread adds
# what another thread has just written, so between two levels everybody waits. Barriers work within a block only. That
# is why a block of 1024 threads makes one value of its 1024 elements, and no more (PMPP 10.7).
#
# `combine_into` is how blocks agree: an *atomic* addition reads `out[0]`, adds and writes it back as one step that no
# other thread can interrupt. `combine` is `+` here. With `op` the same kernel finds a maximum or a minimum.


# %%
def brightness(rung):
    result = float(device.to_host(rung(device.to_device(pixels)))[0])
    print(f"{rung.name:14} sum {result:14.3f}, off by {result - total:+.3f}; mean {result / pixels.size:.3f}")


brightness(reduction.interleaved)

# %% [markdown]
# The mean is right. The sum is off by a little: float32 has about seven digits. We come back to that.
#
# ### Who works, and who waits
#
# The 32 threads of a *warp* (its *lanes*) share one instruction stream. At a branch where some lanes go one way and
# some the other, the warp must walk both ways, and lanes are idle on the way that is not theirs. This is *control
# divergence* (PMPP 4.5). Its price is not the idle lane, but the warp that stays busy for the others.
#
# **Predict, then run.** A block has 1024 threads, so 32 warps. At the fifth level `stride` is 16, and every 32nd
# thread adds. In how many of the 32 warps do lanes go different ways?

# %%
guess = None  # warps

thread, strides = np.arange(BLOCK), 2 ** np.arange(10)
neighbours = np.array([thread % (2 * stride) == 0 for stride in strides])  # who works: a level a row


def divergent(works):
    """For each level: the number of warps in which some lanes work and others do not."""
    lanes = works.reshape(len(works), -1, 32).sum(axis=2)
    return ((lanes > 0) & (lanes < 32)).sum(axis=1)


predict(guess, divergent(neighbours)[4], unit="warps")

# %%
for stride, works, warps in zip(strides, neighbours, divergent(neighbours), strict=True):
    print(f"stride {stride:3}: {works.sum():3} threads work, in {warps:2} divergent warps")

# %% [markdown]
# All 32, for a single lane each. Threads halve from level to level, but for five levels not one warp is let go. We can
# watch it. With `trace=True` the interpreter keeps which lanes execute which statement. The picture shows the first
# eight warps of a block, and below them the line that they are at.


# %%
def watch(kernel):
    """Eight warps of one block, statement by statement."""
    x, work, out = (np.ones(n, np.float32) for n in (BLOCK, BLOCK, 1))
    return plots.divergence(simt.profile(kernel, 1, BLOCK, (x, work, out, SUM), trace=True), warp=range(8))


watch(reduction.interleaved_kernel)

# %% [markdown]
# Time runs to the right, and each level is one step of the pattern. In the first five levels every warp has a lane that
# works (a blue stripe), and the others of the warp wait for it (light red). From the sixth level on whole warps rest
# (white), half of those that are left at each level. Below, a cross marks the branches that diverge.
#
# ### What the interpreter counts
#
# The interpreter runs a kernel's Python source warp by warp and counts what a profiler would count on a GPU. To keep
# the numbers round, we profile the top 32 rows of the photograph: 16,384 pixels, 16 blocks.
#
# The columns: `instr.` is the number of instructions that warps issue on a line; `lanes`, how many of 32 lanes take
# part on average; `sect/req`, how many *sectors* of 32 bytes a warp's access to global memory touches; `diverg.`, how
# many branches split a warp. `wave/req` is about shared memory, which this kernel does not use. Lines above the
# kernel belong to `combine`, which it calls.

# %%
rows = pixels[: BLOCK * COARSE].copy()
work, out = np.empty_like(rows), np.zeros(1, np.float32)

reports = {}
reports["interleaved"] = simt.profile(reduction.interleaved_kernel, 16, BLOCK, (rows, work, out, SUM))
reports["interleaved"]

# %% [markdown]
# Look at the line that adds: of 32 lanes only about five take part. The line with the `if` says why: its `diverg.`,
# shared among 16 blocks, is 191 for each block, as many as the divergent warps of all levels above add up to. The
# `if` after the loop splits one more.
#
# Instructions are counted in the source. A compiler merges some of them, so compare those counts with each other and
# not with a profiler. Divergence, sectors, barriers and atomics are what the hardware sees.
#
# And on a real GPU? This helper asks the record: measurements that are kept with the project, made by `make bench`.


# %%
def recorded(name, before=None):
    """What the record says of a rung at the room's design size."""
    try:
        kept = record.load()
        entries = {entry.contender: entry for entry in kept.design("reduction")}
        entry = entries[name]
        share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("reduction"))
        print(f"{name}, {entry.workload} numbers, {kept.gpu}: {entry.median_ms:.3g} ms, {share:.1%} of the roof")
        if before:
            print(f"    {entries[before].median_ms / entry.median_ms:.2f} times as fast as {before}")
    except record.RecordError as missing:
        print(missing)


recorded("interleaved")

# %% [markdown]
# The roof is the bound from the beginning, the memory at full rate. We are far below it.
#
# ## A bug that hides
#
# Before we make the kernel fast: are all those barriers needed? Here is the same tree in one block, over 1024 ones,
# and without them.


# %%
@cuda.jit
def hasty_kernel(work, out):
    thread, stride = cuda.threadIdx.x, 1
    while stride < work.size:
        if thread % (2 * stride) == 0:
            work[thread] += work[thread + stride]
        stride *= 2
    if thread == 0:
        out[0] = work[0]


# %% [markdown]
# **Predict, then run.** The sum of 1024 ones is 1024. Will the interpreter find it, without a barrier?

# %%
guess = None  # True or False


def ones():
    return np.ones(1024, np.float32)


result = np.zeros(1, np.float32)
simt.profile(hasty_kernel, 1, 1024, (ones(), result), level="run")
predict(guess, result[0] == 1024)

# %%
print(f"in the interpreter: {result[0]}")
if device.on_gpu():
    there = device.to_device(result)
    hasty_kernel[1, 1024](device.to_device(ones()), there)
    print(f"on this GPU: {device.to_host(there)[0]}")

# %% [markdown]
# The bug is there, and the sum is right. The interpreter runs all warps in *lockstep*, one statement after another, so
# nobody is ever late. On a GPU each warp goes at its own pace. Warp 0 may read `work[512]` before warp 16 has finished
# with it. It may also come out right a thousand times, and wrong on the day of the demonstration.
#
# This is a *race*: two threads touch one element, one of them writes, and nothing puts them in order. A right result
# proves nothing here. So the interpreter has a level, `"check"`, that does not look at results. It remembers who
# touched each element last, and what has put them in order since.

# %%
checked = simt.profile(hasty_kernel, 1, 1024, (ones(), result), level="check", collect=True)
for hazard in checked.hazards:
    print(f"{hazard.kind}: {hazard.message}")

# %% [markdown]
# It names the first pair that it met. These two threads belong to one warp, and even so nothing promises their order:
# since 2017 the lanes of a warp may drift apart between barriers (PMPP 4.5).
#
# There is a second way to get it wrong. Barriers are for all threads of a block. If the barrier is put inside the
# `if`, some threads wait for others that never come. What a GPU does then is undefined (PMPP 4.3): it may hang, or go
# on with wrong values.


# %%
@cuda.jit
def stuck_kernel(work, out):
    thread, stride = cuda.threadIdx.x, 1
    while stride < work.size:
        if thread % (2 * stride) == 0:
            work[thread] += work[thread + stride]
            cuda.syncthreads()
        stride *= 2
    out[0] = work[0]


stuck = simt.profile(stuck_kernel, 1, 1024, (ones(), result), level="check", collect=True)
print(f"{stuck.hazards[0].kind}: {stuck.hazards[0].message}")

# %% [markdown]
# [Chapter 18](18_when_a_kernel_is_wrong.ipynb) has more bugs of this kind, and what a GPU does with them. The tests
# of this project run with `PMPP_CHECK=1` in the environment, which makes every launch in the interpreter a checked
# one.
#
# ## Rung 2: `sequential`
#
# Back to speed. Nothing says that neighbours must be added. Let the *first half* of the threads work instead: thread 0
# adds element 512 to its own, thread 1 element 513, and so on; then the first quarter. Workers stand side by side, so
# warps work whole or rest whole (PMPP 10.4).

# %%
show(reduction.sequential_kernel)

# %% [markdown]
# The tree now adds numbers that lie far apart. That is allowed if addition is *commutative* too: the order of the
# operands does not matter. For a sum or a maximum that holds.
#
# **Predict, then run.** At `interleaved`'s `if`s, 192 branches a block split a warp. How many do now? Count the levels
# at which fewer than 32 threads work, and do not forget the last `if` of the kernel.

# %%
guess = None  # branches that split a warp, in one block

reports["sequential"] = simt.profile(reduction.sequential_kernel, 16, BLOCK, (rows, work, out, SUM))
predict(guess, reports["sequential"].counters["divergent_branches"] // 16, unit="branches")

# %%
watch(reduction.sequential_kernel)

# %% [markdown]
# The light red is gone but for the last levels of warp 0. Warps leave the tree as a whole, one half of them after the
# other, until five levels are left: 16, 8, 4, 2 and 1 threads at work. With the last `if` that makes six branches.


# %%
def compare(*counters):
    """The counters of all rungs so far, for the same 16,384 pixels."""
    widths = [max(len(name), 9) for name in counters]
    print(" " * 14, *(name.rjust(width) for name, width in zip(counters, widths, strict=True)), sep="  ")
    for name, report in reports.items():
        cells = (f"{report.counters[c]:,}".rjust(width) for c, width in zip(counters, widths, strict=True))
        print(name.ljust(14), *cells, sep="  ")


compare("divergent_branches", "warp_instructions", "global_load_requests", "global_load_sectors")

# %% [markdown]
# The other columns fell as well. Active lanes now read neighbouring addresses, so a warp's request is *coalesced*: 32
# float32 are four sectors, and nothing that is moved is wasted (PMPP 10.5). Only in the last levels, where fewer than
# eight threads work, is a sector used in part.

# %%
recorded("sequential", before="interleaved")

# %% [markdown]
# ## Rung 3: `shared_tree`
#
# What is still wrong: each level goes out to global memory and comes back, and the kernel needs `work`, a copy of all
# of `x`. But nobody outside the block ever reads those values. *Shared memory* is for this: a small memory beside the
# processor that the threads of one block share ([chapter 12](12_matmul.ipynb)). A thread reads its element once, and
# the tree stays inside (PMPP 10.6).

# %%
show(reduction.shared_tree_kernel)

# %% [markdown]
# One more thing changed. A thread beyond the end of `x` brings the *identity* of the operator: the value that changes
# nothing, 0 for a sum, minus infinity for a maximum. So the tree needs no test for the end any more.

# %%
identity = np.float32(0)
reports["shared_tree"] = simt.profile(reduction.shared_tree_kernel, 16, BLOCK, (rows, out, SUM, identity))
compare("global_load_sectors", "global_store_sectors", "shared_load_requests", "shared_load_wavefronts")
print("sectors in", rows.size, "pixels:", rows.nbytes // 32)

# %% [markdown]
# `global_load_sectors` is now exactly the size of the input: nothing is read twice. Nothing is stored either; the
# blocks' results leave by atomics, which are counted apart. A *wavefront* is one pass through the banks of shared
# memory. Each of the tree's requests needs one, because neighbouring threads use neighbouring banks
# ([chapter 16](16_transpose.ipynb)).

# %%
recorded("shared_tree", before="sequential")

# %% [markdown]
# ## Rung 4: `coarsened`
#
# The traffic is as small as it can be, and still the kernel is far from the roof. Now the threads are the problem. To
# add 1024 elements, a block starts 1024 threads, which load one value each, wait at eleven barriers, and mostly watch.
# While they wait they ask the memory for nothing.
#
# *Thread coarsening* (PMPP 10.8): each thread first adds 16 elements by itself, in a register, with nobody to wait
# for. Only then comes the tree.

# %%
show(reduction.coarsened_kernel)

# %% [markdown]
# In the loop neighbouring threads still read neighbouring elements: thread 0 takes elements 0, 1024, 2048... If it
# took 0, 1, 2... instead, the 32 lanes of a warp would read from 32 places at once.
#
# **Predict, then run.** For all 307,200 pixels of the photograph `shared_tree` has 300 blocks, and a block passes 11
# barriers. How many barriers do all blocks of `coarsened` pass together?

# %%
guess = None  # barriers

predict(guess, lab.count(reduction.coarsened, pixels).counters["barriers"], unit="barriers")

# %% [markdown]
# `lab.count` runs a rung in the interpreter and adds up the counters of all its blocks and launches. A block passes
# as many barriers as before, and takes 16 times as many pixels. There are 300 / 16 blocks, rounded up, for the last
# of them is not full. The 16,384 pixels of our table are the work of one block.

# %%
reports["coarsened"] = simt.profile(reduction.coarsened_kernel, 1, BLOCK, (rows, out, SUM, identity))
compare("barriers", "atomic_requests", "shared_load_wavefronts", "warp_instructions", "global_load_sectors")
recorded("coarsened", before="shared_tree")

# %% [markdown]
# One block has one tree, with its eleven barriers, and one atomic.
#
# ## Rung 5: `shuffle`
#
# The tree that is left has ten levels, and the block waits at each of them. But lanes of one warp need no barrier
# between them, and no shared memory either: with a *shuffle* a lane reads a register of another lane of its warp. The
# book's chapter stops before this; the source is the CUDA C++ Programming Guide, "Warp shuffle functions".
#
# `shfl_down_sync(mask, value, distance)` gives lane $i$ the `value` of lane $i$ + `distance`. The mask names the lanes
# that take part: `0xFFFFFFFF` is all 32. If there is no lane $i$ + `distance`, lane $i$ gets its own `value` back.
#
# **Predict, then run.** Each lane holds its own number, and the distance is 16. Lane 3 gets 19. What do the lanes 14,
# 15, 16 and 17 get?

# %%
guess = None  # a list of four numbers


@cuda.jit
def pass_down_kernel(out, distance):
    lane = cuda.laneid
    out[lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, distance)


received = np.zeros(32, np.int32)
simt.profile(pass_down_kernel, 1, 32, (received, 16))
predict(guess, received[14:18])

# %%
print(received)

# %% [markdown]
# Lane 15 is the last that has a partner. What the upper half gets does not matter: after adding with distances 16, 8,
# 4, 2 and 1, lane 0 holds the sum of all 32, and what the others hold is not used.

# %%
show(reduction.warp_combine)
show(reduction.block_combine)

# %% [markdown]
# **Predict, then run.** `shuffle` is `coarsened` with `block_combine` in the place of the tree. The last table shows
# how many wavefronts `coarsened` needs to load from shared memory. How many does `shuffle` need?

# %%
guess = None  # wavefronts

reports["shuffle"] = simt.profile(reduction.shuffle_kernel, 1, BLOCK, (rows, out, SUM, identity))
predict(guess, reports["shuffle"].counters["shared_load_wavefronts"], unit="wavefronts")

# %% [markdown]
# A block is 32 warps. Each makes its 32 values one, by five shuffles. Lane 0 writes it to shared memory: 32 values.
# After one barrier the first warp loads these, with one request, and makes them one in the same way. All 1024 threads
# shuffle in the first round, and all 32 lanes of a warp in the second, because a value from a lane that does not take
# part is undefined.

# %%
compare("barriers", "shared_load_wavefronts", "shared_store_wavefronts", "warp_instructions")
recorded("shuffle", before="coarsened")

# %% [markdown]
# ## Rung 6: `vectorised`
#
# Now the loads. A thread fetches its 64 bytes by sixteen instructions of 4 bytes, each with an address and a test of
# its own. `load128` ([chapter 4](04_vector_add.ipynb)) fetches 16 bytes by one. Four of them are under
# way before the first is used.

# %%
show(reduction.combine_tile)

# %% [markdown]
# `combine_vector` combines the elements of one vector, and `LOADS` is 4. `head` and `tail` bound the part of `x` that
# consists of whole 16-byte vectors. The few elements before and after it are block 0's.

# %%
span = (0, rows.size, 4)  # head, tail, elements in 16 bytes
reports["vectorised"] = simt.profile(reduction.vectorised_kernel, 1, BLOCK, (rows, out, SUM, identity, *span))
compare("global_load_requests", "global_load_sectors", "warp_instructions", "barriers", "atomic_requests")
recorded("vectorised", before="shuffle")

# %% [markdown]
# A quarter of the requests for the same sectors.
#
# A share of more than 100 % of the roof is possible, because the ceiling is measured by a copy, which writes as much
# as it reads. Memory that is only read does not have to turn between reading and writing, and is some per cent
# faster.
#
# ## The order of additions
#
# Every rung adds the same numbers. Do they get the same sum?

# %%
for rung in reduction.LADDER:
    brightness(rung)

# %% [markdown]
# They do not. Each rung adds in another order, and float addition rounds after every step, so brackets matter. A
# float32 keeps 24 binary digits: from 16,777,216 = $2^{24}$ on its neighbours are 2 apart, and each sum is rounded to
# one of them.

# %%
big, one = np.float32(2**24), np.float32(1)
print(f"big: {big:,.0f}   (big + 1) + 1: {(big + one) + one:,.0f}   big + (1 + 1): {big + (one + one):,.0f}")

# %% [markdown]
# **Predict, then run.** A loop in float32 adds 20 million twos, from left to right. What does it get? (From $2^{25}$ on
# float32's neighbours are 4 apart.)

# %%
guess = None  # you may write it as a power, 2**10

twos = np.full(20_000_000, 2, np.float32)
result = twos.cumsum(dtype=np.float32)[-1]
predict(guess, int(result))

# %%
print(f"loop:          {result:,.0f}")
print(f"deterministic: {device.to_host(reduction.deterministic(device.to_device(twos)))[0]:,.0f}")

# %% [markdown]
# At $2^{25}$ the loop stands still: every further 2 is rounded away, as the 1 was from $2^{24}$ on. The exact sum,
# $2^{25} + 2$, lies in the middle between two float32. Of two that are equally near, rounding takes the one whose
# last binary digit is 0, and here that is $2^{25}$. A tree does not run into that wall, because it adds values of
# about the same size. It also rounds a value less often: in the loop a term passes through up to $n-1$ roundings, in
# a tree through $\log_2 n$. So the error is at most about $n u$ for the loop and $u \log_2 n$ for the tree, times the
# sum of the absolute values, where $u = 2^{-24}$ is the error of one rounding.
#
# Here are both on the photograph, repeated until it has enough pixels, against a sum in float64. NumPy's own `sum` is
# a tree of short loops (*pairwise summation*).


# %%
def tree(x):
    while x.size > 1:
        x = x[0::2] + x[1::2]
    return x[0]


many = np.tile(pixels, 55)[: 2**24]
exact, loop = many.cumsum(dtype=np.float64), many.cumsum(dtype=np.float32)
on_device = {n: device.to_device(many[:n]) for n in 2 ** np.arange(10, 23, 2)}
orders = {
    "loop": lambda n: loop[n - 1],
    "tree of neighbours": lambda n: tree(many[:n]),
    "NumPy, pairwise": lambda n: many[:n].sum(),
    "vectorised": lambda n: device.to_host(reduction.vectorised(on_device[n]))[0],
    "deterministic": lambda n: device.to_host(reduction.deterministic(on_device[n]))[0],
}
print(f"the loop ends at {loop[-1]:,.0f}; the next float32 is {np.spacing(loop[-1]):.0f} away")

# %%
figure, ax = chart(4.2)
looks = zip((palette.INK, palette.GREY, palette.FAINT, *palette.COLOURS[5:7]), "xsDP<", strict=True)
for (name, order), (colour, marker) in zip(orders.items(), looks, strict=True):
    used = [n for n in 2 ** np.arange(10, 25, 2) if n in on_device or name in list(orders)[:3]]
    errors = [abs(float(order(n)) - exact[n - 1]) / exact[n - 1] for n in used]
    ax.plot(used, errors, color=colour, marker=marker, label=name)
sizes = 2.0 ** np.arange(10, 25, 2)
ax.plot(sizes, sizes * 2.0**-24, "--", color=palette.COLOURS[3], label="loop: at most n u")
ax.plot(sizes, np.log2(sizes) * 2.0**-24, ":", color=palette.COLOURS[3], label="tree: at most u log2 n")
ax.set(xscale="log", yscale="log", xlabel="size n (pixels)", ylabel="relative error of the sum")
ax.set_xticks(sizes, [f"$2^{{{k}}}$" for k in range(10, 25, 2)])
ax.set_title("float32 sums of the repeated photograph against float64")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# The loop is never better than the trees, and at the last size it is wrong by several per cent. Its sum is so large
# there that the next float32 is farther away than most pixels are bright. The trees stay about as good as one
# rounding, 6e-8, at every size. From $2^{18}$ on `vectorised` is the worst of them: inside a block it is a tree, but
# the blocks' results go into `out[0]` one after another, and that is a loop. (The rungs stop at $2^{22}$ because the
# interpreter is slow. The dashed line and the dotted one are the worst case. Roundings go up and down, and mostly
# cancel.)
#
# So trees are not only fast, they are accurate.
#
# ### When the terms cancel
#
# Now let the sum be small although the terms are not. Subtract the mean from each pixel: what is left adds up to
# almost nothing.

# %%
deviation = pixels - np.float32(pixels.mean(dtype=np.float64))
truth, size = deviation.sum(dtype=np.float64), np.abs(deviation).sum(dtype=np.float64)
print(f"float64: {truth:.4f}; sum of the absolute values: {size:,.0f}")
for rung in reduction.LADDER:
    result = float(device.to_host(rung(device.to_device(deviation)))[0])
    print(f"{rung.name:14} {result:8.4f}, off by {abs(result - truth) / size:.1e} of the sum of absolute values")

# %% [markdown]
# The results do not even agree in their first digit. But as a share of the absolute values that were added up, each is
# off by about one rounding, as before. That is all that a float sum can promise. Judge it against the sum of the
# absolute terms, as the tests of this project do, and never against the result alone.
#
# ### The same sum, run after run
#
# There is one order that no rung so far controls. Blocks finish when they finish, and each then adds its value to
# `out[0]`. So the last additions may come in another order on every run. Let us play that: the deviations make 19
# blocks, and we try a thousand orders in which those might finish.


# %%
def partial_sums(x):
    """What each block of the last two rungs finds, before the blocks agree."""
    partials, wide = np.zeros(-(-x.size // (BLOCK * COARSE)), np.float32), np.empty(0, np.float32)
    arguments = (x, partials, wide, SUM, identity, 0, x.size, 4)  # of wide only the dtype counts
    simt.profile(reduction.deterministic_kernel, partials.size, BLOCK, arguments, level="run")
    return partials


partials, rng = partial_sums(deviation), np.random.default_rng(0)
ends = [rng.permutation(partials).cumsum(dtype=np.float32)[-1] for _ in range(1000)]

figure, ax = chart(2.8)
ax.hist(ends, bins=60, color=palette.COLOURS[5])
ax.axvline(truth, color="black", label="float64")
ax.set(
    xlabel="the sum (grey levels)",
    ylabel="number of orders",
    title=f"{len(set(ends))} different sums of the same {partials.size} values",
)
ax.legend()
figure

# %% [markdown]
# Nothing here is a bug, and no sum is wrong by more than rounding. But it makes life hard: a test that compares bits
# fails now and then, a training run cannot be repeated, and when the result of a simulation changes you cannot tell
# whether your last edit did it.
#
# ## Rung 7: `deterministic`
#
# The way out: blocks do not add, they write. Each puts its value in its own place in `partials`, and then the same
# kernel reduces those, with one block or again with several. Every addition has its place in one fixed tree, so it
# does not matter who comes first.

# %%
show(reduction.deterministic)

# %%
copies = 200 if device.on_gpu() else 1  # on a GPU, enough blocks to finish in any order
vector = device.to_device(np.tile(deviation, copies))
for rung in (reduction.vectorised, reduction.deterministic):
    results = {device.to_host(rung(vector)).tobytes() for _ in range(20)}
    print(f"{rung.name:14} 20 runs, {len(results)} different results")
print("On this GPU blocks finish in any order." if device.on_gpu() else "In the interpreter blocks finish in order.")

# %% [markdown]
# On a GPU expect more than 1 in the first line; the second says 1 everywhere. In the interpreter both say 1, and the
# picture above must serve.
#
# What does it cost? A second launch for the partial sums, if there is more than one block. And it saves one: the
# result need not be set to zero beforehand, because nothing is added to it. Here are the launches for 1024 numbers and
# for all pixels.

# %%
for rung in (reduction.vectorised, reduction.deterministic):
    for x in (pixels[:1024], pixels):
        launches = lab.count(rung, x).reports
        said = (f"{run.kernel} ({run.grid[0]} block{'s' * (run.grid[0] > 1)})" for run in launches)
        print(f"{rung.name:14} {x.size:7,} numbers:", *said)
recorded("deterministic", before="vectorised")

# %% [markdown]
# `deterministic` stands last although it is not meant to be faster at this size: it has a second launch, and the line
# above says what that costs. It is the exception in a ladder that is otherwise ordered by time, for what it mends is
# not time.
#
# ## The whole ladder
#
# First what the interpreter counted on 16,384 pixels. Read it downwards: each rung pushes down the column that its
# predecessor's docstring complains of under `Leaves`. Is there a column that goes up again, and why?

# %%
partials, wide = np.zeros(1, np.float32), np.empty(0, np.float32)
arguments = (rows, partials, wide, SUM, identity, *span)
reports["deterministic"] = simt.profile(reduction.deterministic_kernel, 1, BLOCK, arguments)

compare("divergent_branches", "global_load_sectors", "shared_load_wavefronts", "barriers", "atomic_requests")
compare("warp_instructions", "global_load_requests")
for rung in reduction.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# Two columns do. The wavefronts of shared memory rise from 0 at `shared_tree`, where the tree moves in: they replace
# sectors of global memory, which cost far more. The divergent branches go up at `shuffle`: lane 0 of each of the 32
# warps writes down its warp's value. 32 short detours are a fair price for ten barriers.
#
# And then time. Without a GPU of your own these are recorded measurements, and each figure says at its bottom of which
# GPU. With one, `make bench` measures yours. The bars are shares of the roof at the design size; the dashed line is
# the best library, and the last row is NumPy on the CPU.


# %%
plots.drawn(plots.ladder, "reduction")

# %% [markdown]
# Two steps are large. From `interleaved` to `sequential` warps are let go. From `shared_tree` to `coarsened` threads
# stop watching each other and keep the memory busy. The steps after that are small, because there is little left to
# gain: the vector has to be read, and the bars have reached the rate of the memory.
#
# In the roofline all rungs stand above one another: they do the same work on the same bytes, so they have the same
# intensity, and only the time differs.

# %%
plots.drawn(plots.roofline, "reduction")

# %% [markdown]
# Is the design size typical? On few numbers a kernel is over almost before it began.
#
# **Predict, then run.** Which of `vectorised` and `deterministic` is faster on $2^{10}$ numbers, and which on $2^{20}$?
# Count their launches.

# %%
guess = {"2^10": None, "2^20": None}  # "vectorised" or "deterministic"


def faster(size):
    times = {entry.contender: entry.seconds for entry in record.load().entries("reduction", workload=size)}
    return min(("vectorised", "deterministic"), key=times.get)


predict(guess, lambda: {size: faster(size) for size in ("2^10", "2^20")}, choices=("vectorised", "deterministic"))

# %% [markdown]
# Here is the rate over the size, for the rungs of the second half and the libraries.

# %%
chosen = ("coarsened", "shuffle", "vectorised", "deterministic", "torch.sum", "cupy.sum")
plots.drawn(plots.sweep, "reduction", only=chosen)

# %% [markdown]
# The dashed line is the time of an empty kernel on the left, and the memory's bandwidth on the right, as in [chapter
# 4](04_vector_add.ipynb). On the left all are *launch-bound*: the lines rise in proportion to the size, so the time
# is the same for all sizes, that of launching. The ladder means little there, and the number of launches everything.
# Follow `deterministic`: up to $2^{14}$ numbers it is one block and one launch. Beyond that it has two, as the other
# rungs have at every size. Their extra launch only sets one number to zero, but the second of `deterministic` has
# partial sums to add, so it falls behind `vectorised`. On the right only the memory counts, and the lines lie flat.

# %% [markdown]
# A block of 1024 threads is more than a short vector needs: 1024 numbers are 256 vectors, four for each of 64 threads.
# So the one block of `deterministic` has only as many threads as have four vectors each. Then little is left but the
# launch, and steps that wait for one another, and a kernel with fewer instructions is faster. For the sum of float32
# that fit one block `reduction.sum` has kernels of its own. The number of threads is a constant of each, no vector is
# loaded behind a branch, and there is one barrier instead of two. For others of that size it calls `deterministic`.

# %%
show(reduction.few.few_kernel)

# %% [markdown]
# ### Sixteen bits
#
# If only the bytes count, numbers of 16 bits should take half the time of float32. A vector of 16 bytes has eight of
# them. They are stored in 16 bits and added up in 32: `widened` makes a float32 of each when it has arrived, and only
# the sum is rounded to 16 bits, once. What would become of a sum *in* 16 bits? A float16 has 11 bits.
#
# **Predict, then run.** You add 5000 ones, one after another, in float16. What is the sum?

# %%
guess = None  # the sum

halves, total = np.ones(5000, np.float16), np.float16(0)
for one in halves:
    total = total + one
predict(guess, float(total), unit="")

# %%
print(f"added up in float16 {total}, by reduction.sum {device.to_host(reduction.sum(halves))}")
plots.drawn(plots.by_dtype, "reduction", family="sum")

# %% [markdown]
# From 2048 on the next float16 is 2 further, and 2048 + 1 is rounded back to 2048. In float32 each of these sums is
# exact, and 5000 is a float16 again. The dashed line of the figure is half the time of float32. What lies beyond it is
# what a block costs however few bytes it reads.

# %%
plots.drawn(plots.cpu_gpu, "reduction")

# %% [markdown]
# The last figure is a warning. The dashed line includes sending the vector to the GPU. That takes so much longer than
# the sum that NumPy on one core of the CPU, which has the vector at hand, is faster for short vectors and about as
# fast for long ones. A reduction on a GPU pays where the data are already, at the end of other work: the solid line.
#
# ## What to take along
#
# A tree turns $n-1$ steps in a row into $\log_2 n$ side by side. On a GPU its price is agreement: barriers, idle
# lanes, trips to memory. The ladder pays that price ever more rarely: whole warps rest, the tree moves closer to the
# registers, and most of the work is done before anybody has to agree. The same pattern, much work alone and then
# little together, returns in nearly every chapter that follows.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter, on several sizes, with every access checked, and compares its counters
# with a budget. Then it says what it found. Replace `pass` by your code. Each task comes with hints to unfold.
#
# ### 1. A dot product
#
# The simplest kernel that needs everything: products, a tree, and an atomic.

# %%
exercise("reduction/dot")


# %%
@cuda.jit
def dot(x, y, out):
    pass  # your code


check("reduction/dot", dot)

# %% [markdown]
# ### 2. A barrier too few
#
# This kernel grows two trees in one shared array: one finds the largest element, and the other the smallest, as the
# largest of the negated values. `largest` is in order. The results are right too, in lockstep.

# %%
exercise("reduction/barrier")

# %%
from pmpp.kernels.reduction.exercises import largest

show(largest)


# %%
@cuda.jit
def spread(x, out):
    partial = cuda.shared.array(256, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


check("reduction/barrier", spread)

# %% [markdown]
# ### 3. A block's sum by shuffles
#
# `block_combine` leans on blocks of exactly 32 warps. Yours has to work for any number of them.

# %%
exercise("reduction/warps")


# %%
@cuda.jit
def block_sums(x, out):
    pass  # your code


check("reduction/warps", block_sums)

# %% [markdown]
# ### 4. Where is the brightest pixel?
#
# Now a pair travels through the tree: a value, and where it was found.

# %%
exercise("reduction/argmax")


# %%
@cuda.jit
def argmax(x, out):
    pass  # your code


check("reduction/argmax", argmax)

# %% [markdown]
# ### More, without a check
#
# - `interleaved` keeps neighbours together and `sequential` does not. For which operators does that matter?
# - Move the tree of `interleaved` into shared memory, with thread $t$ at work on element $2 t$ `stride` instead of
#   $t$. Predict its divergent branches and its wavefronts, then profile it. What was gained, and what was lost?
# - The exercises of PMPP ch. 10 ask how many warps diverge. Answer them with `simt.profile`.
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def dot_answer(x, y, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), 128
    partial = cuda.shared.array(256, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else np.float32(0)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


assert check("reduction/dot", dot_answer)

# %% [markdown]
# *Dot product.* A thread beyond the end brings 0 and takes part in every barrier. Had it returned, its place in
# `partial` would hold what was left there by others. With `0.0` instead of `np.float32(0)` the choice between it and
# the product would be a float64, converted back when it is stored. `check` lets that pass, for no addition is done in
# float64, but on a GPU it is two conversions for nothing.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def spread_answer(x, out):
    partial = cuda.shared.array(256, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncthreads()  # until all have read partial[0], nobody may write it
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


assert check("reduction/barrier", spread_answer)

# %% [markdown]
# *Barrier.* All threads read `partial[0]` when `largest` returns. A warp that is ahead goes on and overwrites it with
# the first value of the second tree, while a warp that is behind has not read it yet. Shared memory that is used twice
# needs a barrier before its second use. A second array would do as well, and costs a kilobyte.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def warp_sum(value):
    """In lane 0, the sum of the warp's 32 values."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
    return value


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def block_sums_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else np.float32(0))
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:  # the whole first warp: every lane has to take part in a shuffle
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else np.float32(0))
        if thread == 0:
            out[cuda.blockIdx.x] = value


assert check("reduction/warps", block_sums_answer)

# %% [markdown]
# *Shuffles.* The condition `thread < 32` is the same for a whole warp, so all 32 lanes shuffle. Lanes that have no
# warp's sum to read bring a 0, as threads beyond the end do. With `thread < cuda.blockDim.x // 32` around the shuffles
# some lanes would stay out, and what is read from those is undefined.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def beats(value, index, i, j):
    """Whether the pair at place j of the two arrays wins against the one at place i."""
    return value[j] > value[i] or (value[j] == value[i] and index[j] < index[i])


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def argmax_answer(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), 128
    value, index = cuda.shared.array(256, np.float32), cuda.shared.array(256, np.int64)
    value[thread] = x[i] if i < x.size else np.float32(-np.inf)
    index[thread] = i
    while stride > 0:
        cuda.syncthreads()
        if thread < stride and beats(value, index, thread, thread + stride):
            value[thread], index[thread] = value[thread + stride], index[thread + stride]
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = index[0]


assert check("reduction/argmax", argmax_answer)

# %% [markdown]
# *Argmax.* A thread beyond the end brings minus infinity and its own index, which is larger than that of any element:
# it loses even against an element that is minus infinity. Ties go to the smaller index whatever the order of the tree.
# That is another way to get the same result on every run: not to fix the order, but to leave no ties.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def join_kernel(neighbours, digits):
    thread, length = cuda.threadIdx.x, 1
    while length < 8:
        distance = length if neighbours else 4 // length
        if (neighbours and thread % (2 * length) == 0) or (not neighbours and thread < distance):
            digits[thread] = digits[thread] * 10**length + digits[thread + distance]
        cuda.syncthreads()
        length *= 2


for name, neighbours in (("interleaved", True), ("sequential", False)):
    digits = np.arange(1, 9)
    simt.profile(join_kernel, 1, 8, (neighbours, digits))
    print(f"{name:12} joins 1 to 8 to {digits[0]}")

# %% [markdown]
# *Operators.* Both trees need one that is associative. For one that is not commutative only `interleaved` is right: it
# joins what stands side by side, left before right. Joining digits is such an operator, and so are the product of
# matrices and "the first that is not zero".


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def packed_kernel(x, out):
    thread, stride, partial = cuda.threadIdx.x, 1, cuda.shared.array(1024, np.float32)
    partial[thread] = x[cuda.grid(1)]
    while stride < 1024:
        cuda.syncthreads()
        if 2 * thread * stride < 1024:
            partial[2 * thread * stride] += partial[2 * thread * stride + stride]
        stride *= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


reports["packed"] = simt.profile(packed_kernel, 16, BLOCK, (rows, out))
compare("divergent_branches", "shared_load_requests", "shared_load_wavefronts")

# %% [markdown]
# *Packed.* The threads at work stand side by side again, so as few branches diverge as in `sequential`. But the
# elements that they work on lie 2 `stride` apart, and so in ever fewer banks: 16 at first, then 8, 4, 2 and 1. What is
# gained in divergence is lost in bank conflicts. `shared_tree` has no conflicts, and the same divergence.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def simple_level(x, stride):
    if cuda.threadIdx.x % stride == 0:
        x[2 * cuda.threadIdx.x] += x[2 * cuda.threadIdx.x + stride]


@cuda.jit
def convergent_level(x, stride):
    if cuda.threadIdx.x < stride:
        x[cuda.threadIdx.x] += x[cuda.threadIdx.x + stride]


for level, stride in ((simple_level, 16), (convergent_level, 32)):  # the fifth from 1 up, and from 512 down
    print(simt.profile(level, 1, 512, (ones(), stride)).counters["divergent_branches"], "divergent warps")

# %% [markdown]
# *The book's questions.* They are about the fifth iteration on 1024 elements. The book starts 512 threads for these, so
# 16 warps. In its simple kernel every 16th thread works, two in each warp, and all warps diverge. In its convergent one
# the 32 threads that work are just one warp, and none does.
#
# Go on with [chapter 32](32_matrix_vector.ipynb), where each row of a matrix is a sum of its own.
