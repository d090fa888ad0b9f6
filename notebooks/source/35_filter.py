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
# # 35. Filter
#
# *Stream compaction: one counter for all, ballots, private counters, places by a scan, tiles, one pass over memory;
# partition and run lengths. Read chapters [8](08_warps.ipynb), [28](28_histogram.ipynb) and [34](34_scan.ipynb) before.
# 90 minutes. PMPP 4e: chapter 11; 5e: chapter 12. The code is
# [pmpp/kernels/filter/ladder.py](../pmpp/kernels/filter/ladder.py), and what a block does with its tile is in
# [tile.py](../pmpp/kernels/filter/tile.py). [partition.py](../pmpp/kernels/filter/partition.py),
# [runs.py](../pmpp/kernels/filter/runs.py) and [repeat.py](../pmpp/kernels/filter/repeat.py) are made of the same
# parts.*
#
# From a photograph we want the bright pixels only, one behind the other. In NumPy, CuPy and PyTorch this is
# `x[x > threshold]`. It is called a *filter*, or *stream compaction*: what is kept moves together. Particles that have
# left the box, rays that hit nothing, and rows of a table that a query does not want are thrown out in this way.
#
# [Chapter 34](34_scan.ipynb) ended with such a filter as an application of scan. Here it is the subject. There are two
# ways to find the place of a kept element: ask a counter, or compute it. **The question of this chapter: which of them
# is faster, and what does it cost to keep the order?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import filter
from pmpp.kernels.filter import partition as parting
from pmpp.kernels.filter import repeat, tile
from pmpp.kernels.filter import runs as of_equals
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %%
image = (data.photograph() @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
pixels, threshold = image.ravel(), 100
print(f"{(pixels > threshold).sum():,} of {pixels.size:,} pixels are above {threshold}")

# %% [markdown]
# ## The bound
#
# Each element is read once, and each kept one is written once. To compare two numbers is next to no work, and counts as
# none here. So memory is the bound, and the bytes depend on the share that is kept.
#
# The design size is $2^{28}$ float32, of which half are kept. The GPU is an H200, whose published bandwidth is in the
# interpreter's table of GPUs.
#
# **Predict, then run.** How many milliseconds does the memory need for it, at least?

# %%
guess = None  # ms, to two places behind the point

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
design = filter.cost(2**28)
predict(guess, round(design.bytes / h200.bandwidth * 1e3, 2), unit="ms")

# %% [markdown]
# Four bytes are read for each element, and two are written on average. A GPU does not reach its published bandwidth. On
# the one of the record a copy is somewhat slower, and that is the bound that we hold rungs to.

# %%
try:
    least = roofline.bound(design, roofline.ceilings("filter")).seconds
    print(f"at least {least * 1e3:.3g} ms at the bandwidth of a copy")
except record.RecordError as missing:
    print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)

# %% [markdown]
# ## The reference
#
# One element after another. A comparison with a NaN is false, so a NaN is never kept.

# %%
show(filter.reference)
exact = pixels[pixels > threshold]
print(
    "the same as NumPy:",
    np.array_equal(filter.reference(pixels[:5000], threshold), exact[: (pixels[:5000] > threshold).sum()]),
)

# %% [markdown]
# ## What is returned
#
# How long the result is depends on the values. So the host cannot know it before the GPU is done, and who asks for it
# has to wait. `x[x > 0]` of CuPy and PyTorch waits inside. Our rungs do not. They return two arrays: `values`, as long
# as the input, and `count`, which has one element. Only the first `count[0]` values mean something.

# %%
values, count = filter.single_pass(pixels, threshold)
print(f"values: {values.size:,}; of these are kept: {count.copy_to_host()[0]:,}")
print("trimmed, which waits:", filter.single_pass(pixels, threshold).copy_to_host().size)

# %% [markdown]
# `filter.compact(x, threshold)` is the function for daily use: it waits, and returns the kept elements alone. What goes
# on with other kernels can pass `count` on, and never wait.
#
# ## Rung 1: `atomic`
#
# A thread takes one element. If it keeps it, it needs a place that no other thread has. `cuda.atomic.add` returns what
# the counter was before: every thread gets another number.

# %%
show(filter.atomic_kernel)


# %%
def counted(rung, x, *names, ordered=False):
    """Counters of a rung in the interpreter, whose result is compared with NumPy's: as multisets, or in order too."""
    found = lab.count(rung, x, threshold)
    result, right = found.result, x[x > threshold]
    assert np.array_equal(result, right) if ordered else np.array_equal(np.sort(result), np.sort(right))
    return [found.counters[name] for name in names]


print("the same values as NumPy:", counted(filter.atomic, pixels, "atomic_requests")[0] > 0)

# %% [markdown]
# The result is compared as a *multiset*: sorted. Which thread comes first is not determined, so neither is the order.
#
# There is an addition for each kept element, and all of them go to one counter. At the design size that is $2^{27}$.
# Suppose that additions to one place follow one another, one in each cycle of the GPU's clock.
#
# **Predict, then run.** How many milliseconds would they take on an H200? (The bytes alone take a third of one.)

# %%
guess = None  # ms

predict(guess, round(2**27 / h200.clock * 1e3), unit="ms")

# %%
requests, additions = counted(filter.atomic, pixels, "atomic_requests", "atomic_lanes")
print(f"the photograph: {additions:,} additions in {requests:,} requests")

# %% [markdown]
# Two hundred times the bound, if the supposition holds. It is the worst case of [chapter 28](28_histogram.ipynb), a
# histogram with one bin. Here is what the record says, if it has this room.


# %%
def recorded(*names, room="filter"):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load()
        entries = [entry for entry in kept.design(room) if entry.contender in names]
        for entry in entries:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings(room))
            print(f"{entry.contender:15} {entry.workload} {entry.median_ms:8.4g} ms, {share:6.1%} of the roof")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("atomic", "torch.index")

# %% [markdown]
# ## Rung 2: `warp_aggregated`
#
# Let one lane ask for all 32. `cuda.ballot_sync` gives every lane a mask with a bit for each lane that keeps its
# element. `cuda.popc` counts bits: of the whole mask for the request, and of the lanes below for a lane's own place.

# %%
show(filter.rank_of)
show(filter.warp_aggregated_kernel)

# %% [markdown]
# **Predict, then run.** The photograph is 9,600 warps of pixels. In how many of them is no pixel kept, so that nobody
# asks?

# %%
guess = None  # warps

predict(guess, pixels.size // 32 - counted(filter.warp_aggregated, pixels, "atomic_lanes")[0], unit="warps")

# %% [markdown]
# Neighbours are alike, so whole warps are dark. In random data with half of it kept this never happens.

# %%
for rung in (filter.atomic, filter.warp_aggregated):
    print(f"{rung.name:15} {counted(rung, pixels, 'atomic_lanes')[0]:7,} additions to the counter")
recorded("warp_aggregated")

# %% [markdown]
# Some compilers make this step by themselves, where they see additions of 1 to one place. The record tells whether ours
# did: compare the times of the two rungs. On an H200 they are the same, so it did. That is also why `atomic` is faster
# than we supposed.
#
# ### Exercise: a warp parted in two
#
# A *partition* keeps everything: first what a condition holds for, then the rest. With a ballot a warp can do it by
# itself. `check` runs your kernel in the interpreter, on several inputs, with every access checked. Replace `pass`.

# %%
exercise("filter/partition")


# %%
@cuda.jit
def partition(x, out):
    pass  # your code


check("filter/partition", partition)

# %% [markdown]
# ## Rung 3: `privatised`
#
# A block has a counter of its own in shared memory. Its warps ask that one, and the block asks the counter of all
# blocks once. It is the private copy of chapter 28, with a difference: an element's place is known only when the block
# has its answer, so the threads wait for it at a barrier.

# %%
show(filter.privatised_kernel)

# %%
for rung in (filter.warp_aggregated, filter.privatised):
    sectors = counted(rung, pixels, "global_atomic_sectors")[0]
    print(f"{rung.name:15} {sectors:6,} requests to the counter in global memory")
recorded("privatised")

# %% [markdown]
# ### The order is lost
#
# Blocks come in any order. The interpreter usually runs them one after another, and then nothing shows. It can also
# shuffle them, as a GPU does in its own way.

# %%
rising = np.arange(1, 20_001, dtype=np.float32)
for seed in range(3):
    with simt.schedule("shuffled", seed):
        result = device.to_host(filter.privatised(rising))
    print(f"seed {seed}: begins with {result[:4]}, and every number is there: {np.unique(result).size == rising.size}")

# %% [markdown]
# All numbers are there, and each time in another order. Sometimes that does not matter. But a sorted vector is no
# longer sorted. Two columns of a table that are filtered by the same condition no longer belong together. And who runs
# it twice gets two results, which makes a fault hard to find. A filter that keeps the order is called *stable*.
#
# ## Rung 4: `by_scan`
#
# The place of a kept element is the number of elements kept before it. That is an exclusive scan of flags, which are 1
# for what is kept. No thread asks anybody, and the order is that of the input.

# %%
few = pixels[::30_000][:10].round()
flags = (few > threshold).astype(int)
print("pixels", few.astype(int), "flags ", flags, "places", np.cumsum(flags) - flags, sep="\n")

# %%
show(filter.flags_kernel)
show(filter.scatter_kernel)

# %% [markdown]
# Three launches: write the flags, scan them, scatter the elements. Flags and places are int32.
#
# **Predict, then run.** How many bytes does this move for each element if all are kept? The scan reads a flag and
# writes a place, and the scatter also reads the flag. (At best it would be 8: read an element, write it.)

# %%
guess = None  # bytes

first, scanned, scattered = 4 + 4, 4 + 4, 4 + 4 + 4 + 4  # x, flag; flag, place; flag, place, x, out
predict(guess, first + scanned + scattered, unit="bytes")

# %%
recorded("by_scan")

# %% [markdown]
# The order costs four times the bytes of the bound. It need not.
#
# ### Exercise: a block that keeps its order
#
# Flags of 32 lanes fit into one mask, so they need not go to memory at all. Let a block find the places of its elements
# by ballots. What blocks keep before it is given.

# %%
exercise("filter/block")


# %%
@cuda.jit
def block(x, starts, out):
    pass  # your code


check("filter/block", block)

# %% [markdown]
# ## Rung 5: `tiled`
#
# A block takes a *tile* of 4,096 elements, and writes down only how many it keeps: one number instead of 4,096 flags.
# The counts are scanned. Then each block looks at its tile again, and knows where its part begins.
#
# A warp has 512 elements of the tile, sixteen rows of 32 neighbours, and loads all of them before it looks at the
# first. Sixteen loads of a thread are in flight at the same time.

# %%
show(tile.load_rows)
show(filter.ABOVE.counts)

# %% [markdown]
# A ballot tells all lanes what is kept of a row. So the place of a kept element is known at once: behind what the warp
# keeps of earlier rows, and behind the lanes below that keep theirs in this row. No thread counts for itself. The
# elements are *gathered* there, in the warp's part of shared memory. Then the warps tell each other how many they have,
# and each writes its own to `out`, side by side. `kernels_for` makes the kernels for a condition `keep`, which may be
# any device function.

# %%
show(filter.ABOVE.gather)
show(filter.ABOVE.compact)

# %% [markdown]
# **Predict, then run.** For random numbers of which half are kept, how many sectors of 32 bytes does a kept element
# cost `tiled` in stores? (A sector has 8 elements. The answer for the whole tile is close to what you expect.)

# %%
guess = None  # sectors for each kept element

noise = np.random.default_rng(0).uniform(0, 2 * threshold, 8 * tile.TILE).astype(np.float32)
(sectors,) = counted(filter.tiled, noise, "global_store_sectors", ordered=True)
predict(guess, round(sectors / (noise > threshold).sum(), 3), unit="sectors")

# %%
for rung in filter.LADDER:
    stores, loads = counted(rung, noise, "global_store_sectors", "global_load_bytes")
    stores, loads = stores / (noise > threshold).sum(), loads / noise.size
    print(f"{rung.name:15} {stores:6.3f} sectors stored for a kept element, {loads:5.2f} bytes loaded for each")
recorded("tiled")

# %% [markdown]
# A warp's store of 32 neighbours covers 4 sectors if it begins with one. A warp's part of `out` begins anywhere, so
# most stores touch 5: that is 5 / 32, or 0.16.
# `by_scan` has its flags and places in both columns. `tiled` loads every element twice, and its counts besides. The
# first three rungs name `x[i]` a second time for what they keep. On a GPU that is still in a cache, or in a register.
#
# ## Rung 6: `single_pass`
#
# The second reading goes away if a tile learns its start while it has its elements in shared memory. That is the
# *decoupled look-back* of [chapter 34](34_scan.ipynb): a tile publishes its own count at once, looks back over the
# tiles before it, and publishes the count up to its own end as soon as it knows it.

# %%
show(tile.publish_count)
show(tile.look_back_counts)

# %% [markdown]
# State and count share one word of 64 bits: two bits for the state, and 60 for the count. A reader gets both by one
# access, or neither, so no fence stands between them. As we look for counts and not for sums of floats, the order of
# additions does not matter, and the result is the same in every run.
#
# Does every tile come to an end? A block that waits occupies its multiprocessor. If the tile it waits for had not
# begun, and no room were left, all would wait for ever. So a block does not take the tile of its own number. It takes
# the *next* tile, from a counter (`next_tile`). Then all earlier tiles belong to blocks that run already. The earliest
# unfinished tile waits for nobody, so it ends, and then the next one is the earliest. This holds however few blocks the
# GPU runs at a time, and in whatever order it starts them.

# %%
show(tile.start_of_warp)
show(filter.ABOVE.single_pass)

# %%
for schedule in ("lockstep", "blocks", "shuffled"):
    with simt.schedule(schedule):
        result = device.to_host(filter.single_pass(pixels, threshold))
    print(f"{schedule:9} the same as NumPy, in order: {np.array_equal(result, exact)}")

# %%
loads, atomics = counted(filter.single_pass, noise, "global_load_bytes", "atomic_lanes", ordered=True)
print(f"{loads / noise.size:.3f} bytes loaded an element, and {atomics / noise.size:.4f} atomics")
recorded("single_pass", "torch.index", "cupy.index")

# %% [markdown]
# Each element is loaded once, and the tiles' conversation is a few atomics for 4,096 elements.
#
# ## Both parts: `partition`
#
# A filter throws away. A *partition* puts what is kept first and all others behind it, both in their order. It is one
# step of a quicksort. A kept element goes where a filter puts it. The others are as many as there are elements, less
# the kept ones, so the scan tells their number, too. But they begin behind the *last* kept element, and in one pass no
# tile knows how many are kept in all.
#
# The end of the array is known. So the others are put there, from behind: the first one last. Then they lie turned
# around, and a second launch exchanges the first of them with the last, the second with the last but one, and so on.

# %%
show(parting.single_pass_kernel)
show(parting.turn_around_kernel)

# %% [markdown]
# **Predict, then run.** Half of the elements are kept. How many bytes do both launches move for each element?

# %%
guess = None  # bytes

signs = np.where(np.arange(2 * tile.TILE) % 2, 1, -1).astype(np.float32)
found = lab.count(parting.single_pass, signs)
moved = found.counters["global_load_bytes"] + found.counters["global_store_bytes"]
predict(guess, round(moved / signs.size, 1), unit="bytes")

# %% [markdown]
# Eight for the pass, and of the half that is not kept each element is read and written once more: that is twelve. The
# other four are the count of the kept ones, which every thread of the second launch reads; in sectors a warp reads it
# once. The rung `by_scan` moves more than twice as much.

# %%
bright, dark = map(device.to_host, filter.parted(pixels, threshold))
print(f"{bright.size:,} bright pixels, then {dark.size:,} dark ones, in order:", np.array_equal(bright, exact))
recorded("by_scan", "single_pass", "torch.cat", "cupy.concatenate", room="partition")

# %% [markdown]
# ## Equal neighbours: `runs`
#
# A *run* is a stretch of equal neighbours. To keep only the first of each is a filter, too, whose condition looks at
# two elements. A thread loads the one before its own, too: a neighbour's load has brought it to the cache. In a sorted
# vector this finds all different values: `unique`. With the lengths of the runs it is *run-length encoding*, which
# stores long runs in little memory.

# %%
show(of_equals.single_pass_kernel)
show(of_equals.lengths_kernel)

# %% [markdown]
# Beside each value the kernel writes where its run starts, and a length is the start of the next run less its own. A
# tile cannot know where the run of its last value ends: maybe ten tiles later.
#
# **Predict, then run.** Let the photograph have eight shades of grey. How many pixels has a run on average?

# %%
guess = None  # pixels

shades = (pixels // 32).astype(np.int32)
values, lengths = map(device.to_host, filter.run_lengths(shades))
predict(guess, round(shades.size / values.size, 1), unit="pixels")

# %%
print(f"{values.size:,} runs, the longest has {lengths.max():,} pixels")
print("the shades there are:", device.to_host(filter.unique(np.sort(shades))))
recorded("by_scan", "single_pass", "torch.unique_consecutive", room="runs")

# %% [markdown]
# ### And back: `repeat`
#
# `repeat` writes each value as often as its length says. A scan of the lengths says where each run ends. With a thread
# for each run, one long run would keep the others waiting, so each element of the result needs to find its run.
# `by_search` lets each element search among the ends. `by_tiles` searches twice for a block: for its first element and
# for its last one. The runs that begin between them leave their numbers in shared memory, each at its first element.
# The greatest number up to an element is that of its run, which is a scan once more.

# %%
show(repeat.by_tiles_kernel)

# %%
for rung in repeat.LADDER:
    found = lab.count(rung, values, lengths, shades.size)
    loaded = found.counters["global_load_bytes"] / shades.size
    print(f"{rung.name:10} {loaded:6.1f} bytes loaded a pixel, the same: {np.array_equal(found.result, shades)}")
recorded("by_search", "by_tiles", "torch.repeat_interleave", room="repeat")

# %% [markdown]
# ### Exercise: find your run
#
# The ends of the runs are given. Let each element find the run that it is in.

# %%
exercise("filter/repeat")


# %%
@cuda.jit
def find_run(values, ends, out):
    pass  # your code


check("filter/repeat", find_run)

# %% [markdown]
# ## The whole ladder
#
# The bars are shares of the roof at the design size, and the dashed line is the best library.

# %%
plots.drawn(plots.ladder, "filter")

# %% [markdown]
# The unordered rungs and the stable ones are two ladders in one. `by_scan` pays for the order with traffic. `tiled` and
# `single_pass` have it for little. What each rung left for the next one:

# %%
for rung in filter.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## When is memory the bound?
#
# To compare with a threshold is no work. A condition may take more: whether a point lies in a body, or whether a row
# fits a pattern. Let it take `steps` multiply-adds for each element. The next figure has two bounds, from the published
# numbers of the H200: the time for the bytes, and that for the arithmetic. Its knob is the share that is kept.
#
# **Predict, then run.** If half is kept, from how many multiply-adds an element on is arithmetic the bound?

# %%
guess = None  # multiply-adds

bandwidth, peak = h200.bandwidth, h200.sms * 128 * h200.clock  # bytes, and multiply-adds, a second
predict(guess, round((4 + 2) / bandwidth * peak), unit="multiply-adds")

# %%
share = 50


def bounds(share):
    steps = 2 ** np.arange(11)
    figure, ax = chart(3.4)
    looks = ((0, palette.INK, "o"), (share, palette.COLOURS[5], "s"), (100, palette.COLOURS[3], "^"))
    for percent, colour, marker in looks:
        moving = (4 + 4 * percent / 100) * 2**28 / bandwidth
        times = 1e3 * np.maximum(moving, steps * 2**28 / peak)
        ax.plot(steps, times, color=colour, marker=marker, label=f"{percent} % kept")
    ax.set(xscale="log", yscale="log", title="2^28 elements, by the published numbers of an H200")
    ax.set(xlabel="multiply-adds an element", ylabel="least time (ms)")
    ax.legend()
    return figure


knobs.turn(bounds, share=(share, (10, 25, 50, 75)))

# %% [markdown]
# Where a line is flat, memory is the bound, and more arithmetic is free. There the share that is kept moves the line: 8
# bytes for an element that is kept, and 4 for one that is not. Where the lines rise, arithmetic is the bound. There
# they are one line, since the condition is computed for every element, kept or not.
#
# And measured, with `single_pass` and a condition of so many steps:


# %%
def costly():
    kept = record.load()
    entries = sorted(kept.entries("filter", family="costly condition"), key=lambda entry: entry.sizes["steps"])
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of costly conditions")
    figure, ax = chart(3.4)
    steps, times = zip(*((max(entry.sizes["steps"], 1), entry.median_ms) for entry in entries), strict=True)
    costs = [Cost(entry.flops, entry.bytes) for entry in entries]
    least = [roofline.bound(cost, kept.ceilings("filter")).seconds * 1e3 for cost in costs]
    ax.plot(steps, times, color=palette.COLOURS[5], marker="o", label="single_pass")
    ax.plot(steps, least, color=palette.INK, ls="--", marker="s", label="bound")
    ax.set(xscale="log", yscale="log", xlabel="multiply-adds an element", ylabel="time (ms)", title="2^26 elements")
    ax.legend()
    return figure


plots.drawn(costly)

# %% [markdown]
# Up to 16 multiply-adds the time grows slowly, although the bound is flat. At 64 the rung is well above it: loads and
# arithmetic overlap only in part. At 256 it takes many times its bound. There the compiler unrolls neither the whole
# loop of the condition nor that over the rows. Its PTX then has an addition, a comparison and a selection of 64 bits
# for each multiply-add, to count the steps, and a thread's elements lie in local memory. The bound knows the
# multiply-adds alone.
#
# The share that is kept, measured for all rungs:


# %%
def shares():
    kept = record.load()
    entries = kept.entries("filter", family="share kept")
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of the share kept")
    figure, ax = chart(3.8)
    names = (*(rung.name for rung in filter.LADDER), "torch.index")
    for name, colour, marker in zip(names, palette.COLOURS, "osvD^x*", strict=False):
        points = [(entry.sizes["percent"], entry.median_ms) for entry in entries if entry.contender == name]
        ax.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    ax.set(yscale="log", xlabel="share kept (%)", ylabel="time (ms)", title="2^26 elements")
    figure.legend(loc="outside right upper")
    return figure


plots.drawn(shares)

# %% [markdown]
# `single_pass` and `tiled` rise slowly, by the bytes that they write. `atomic` and `warp_aggregated` jump: at 10 %
# nearly every warp already has an element to keep, and asks the counter.
#
# And NumPy, on one core of the CPU:

# %%
plots.drawn(plots.cpu_gpu, "filter")

# %% [markdown]
# ## What to take along
#
# A place in the output is a number of elements kept before, or a ticket from a counter. Tickets are simple, and fast if
# few ask: a warp or a block for all of its threads. But they come in any order. A scan keeps the order. It is cheap if
# what is scanned stays small: a bit for each element, a count for each tile. And with look-back the data are read once.
# The length of the result is a result, too: who needs it on the host waits for the GPU.
#
# ## Exercises
#
# Three stand above, after rungs 2 and 4 and behind `repeat`. The fourth one is another use of the same places.
#
# ### Runs
#
# The kernel of `runs`, step by step: the places of the runs are given, and one thread looks at one element.

# %%
exercise("filter/runs")


# %%
@cuda.jit
def runs(x, places, values, starts):
    pass  # your code


check("filter/runs", runs)

# %% [markdown]
# ### More, without a check
#
# - `filter.compact` takes a condition of your own: a device function `keep(value, threshold)`. Keep the pixels that are
#   within 10 of the threshold.
# - How many tiles before it must tile 70 look at, at least and at most?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def partition_answer(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i] if i < x.size else 0
    kept = cuda.ballot_sync(0xFFFFFFFF, value > 0)
    below = cuda.popc(np.uint32(kept & (1 << lane) - 1))  # kept elements of lower lanes
    if i < x.size:
        if value > 0:
            out[i - lane + below] = value
        else:
            out[i - lane + cuda.popc(kept) + lane - below] = value


assert check("filter/partition", partition_answer)

# %% [markdown]
# *Partition.* Of the `lane` lanes below, `below` are kept. The others, `lane - below`, stand before this element in the
# second part, which begins behind all kept ones.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def block_answer(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)  # of each warp
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(0xFFFFFFFF, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x] + cuda.popc(np.uint32(lanes & (1 << cuda.laneid) - 1))
    for earlier in range(warp):
        place += counts[earlier]
    if kept:
        out[place] = x[i]


assert check("filter/block", block_answer)

# %% [markdown]
# *Block.* Three parts of a place: what earlier blocks keep, what earlier warps keep, what lower lanes keep.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def repeat_answer(values, ends, out):
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size - 1
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > i:  # the run, or one behind it
                high = middle
            else:
                low = middle + 1
        out[i] = values[low]


assert check("filter/repeat", repeat_answer)

# %% [markdown]
# *Repeat.* What is looked for is the first run that ends behind the element. Runs of length 0 end where the one before
# them ends, so the search never stops at them.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def runs_answer(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and (i == 0 or x[i] != x[i - 1]):
        values[places[i]] = x[i]
        starts[places[i]] = i


assert check("filter/runs", runs_answer)

# %% [markdown]
# *Runs.* The length of a run is the start of the next one less its own, and the last run ends at `x.size`.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def near(value, middle):
    return abs(value - middle) < 10


kept = device.to_host(filter.compact(pixels, threshold, near))
print(f"{kept.size:,} pixels from {kept.min():.1f} to {kept.max():.1f}")

# %% [markdown]
# *Look-back.* At least 32, since a warp looks at 32 at a time, and if one of these is complete that is the end. At most
# all 70, in three rounds.
#
# Go on with [chapter 36](36_products_of_any_shape.ipynb): what shape does to a matrix product.
