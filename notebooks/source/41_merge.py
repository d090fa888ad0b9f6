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
# # 41. Merge
#
# *Co-ranks, tiles, a circular buffer, the merge path, merging in registers, 128-bit accesses of what begins anywhere.
# Read chapters [16](16_transpose.ipynb), [28](28_histogram.ipynb), [34](34_scan.ipynb) and [35](35_filter.ipynb)
# before. 75 minutes. PMPP 4e: chapter 12; 5e: chapter 13. The code is
# [pmpp/kernels/merge/ladder.py](../pmpp/kernels/merge/ladder.py).*
#
# Two halves of a photograph have been sorted by brightness, each by itself. Now we want the order of the whole picture.
# To sort again would waste what is known. A *merge* takes two sorted vectors and makes one: a log of events joins
# another one, an index gets new entries, and a sort that goes from small runs to large ones does nothing else.
#
# On paper it is a loop: compare the two first elements that are left, take the smaller one, go on. What comes next
# depends on all that was taken before. **The question of this chapter: how do thousands of threads share a loop whose
# every step depends on the one before?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import merge
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
bright = (1000 * (data.photograph() @ np.array([0.299, 0.587, 0.114]))).astype(np.int32)
middle = bright.shape[1] // 2
left, right = np.sort(bright[:, :middle].ravel()), np.sort(bright[:, middle:].ravel())
print(f"left: {left.size:,} pixels, {left[0]} to {left[-1]}; right: {right.size:,} pixels, {right[0]} to {right[-1]}")

# %% [markdown]
# ## The bound
#
# Each element is read once and written once. Each output needs one comparison. So memory is the bound, as long as the
# instructions around that comparison do not become too many.
#
# The design size is $2^{27}$ and $2^{27}$ int32, which makes $2^{28}$ outputs. The GPU is an H200, with its published
# bandwidth.
#
# **Predict, then run.** How many milliseconds does memory need for this merge, at least?

# %%
guess = None  # ms, to two places behind the point

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
design = merge.cost(2**27, 2**27)
predict(guess, round(design.bytes / h200.bandwidth * 1e3, 2), unit="ms")

# %% [markdown]
# Four bytes are read for each output, and four are written. How much else can be done in that time? A multiprocessor
# starts four instructions a cycle, each for the 32 lanes of a warp.
#
# **Predict, then run.** How many instructions may a thread spend on an output before they, and not the memory, are the
# bound?

# %%
guess = None  # instructions

a_second = h200.sms * 4 * 32 * h200.clock  # instructions of lanes
predict(guess, round(8 / h200.bandwidth * a_second), unit="instructions")

# %% [markdown]
# That is room for a comparison, two additions, a load and a store, and for some searching. It is not room for a binary
# search of 28 steps for each output, with ten instructions a step.
#
# ## The reference
#
# Take the smaller one of the two first elements. If they are equal, take `a`'s: then a merge is *stable*. Whole numbers
# that are equal look alike, but -0 and 0 are equal, too, and can be told apart. A NaN comes last, as NumPy sorts it.

# %%
show(merge.reference)
few_left, few_right = left[::4000], right[::3000]
both = np.sort(np.concatenate([few_left, few_right]), kind="stable")
print("the same as NumPy:", np.array_equal(merge.reference(few_left, few_right), both))

# %% [markdown]
# ## Beginning in the middle
#
# Let a thread make the outputs from number *k* on. Of the first *k* outputs, *i* come from `a`, and the other *k* - *i*
# from `b`. If the thread knew this *i*, it could begin at `a[i]` and `b[k - i]` at once. The number *i* is called the
# *co-rank* of *k*.
#
# The picture has the elements of `a` in its columns, and those of `b` in its rows. To take an element of `a` is a step
# to the right, to take one of `b` a step down. The merge is a path from the upper left to the lower right: the *merge
# path*. After *k* steps it crosses the diagonal of all places with *i* + *j* = *k*.
#
# **Predict, then run.** With a = 1 3 3 8 and b = 2 3 5 9, how many of the first four outputs come from `a`?

# %%
guess = None  # elements

few_a, few_b = np.int32([1, 3, 3, 8]), np.int32([2, 3, 5, 9])


def path_of(a, b):
    """How many elements of a have been taken after 0, 1, 2, ... outputs of a stable merge."""
    order = np.argsort(np.concatenate([a, b]), kind="stable")
    return np.append(0, np.cumsum(order < a.size))


predict(guess, int(path_of(few_a, few_b)[4]), unit="elements")

# %%
k = 4


def grid(k):
    i = path_of(few_a, few_b)
    j = np.arange(i.size) - i
    figure, ax = chart(3.8)
    ax.plot(i, j, color=palette.COLOURS[5], marker="o", label="merge path")
    ends = np.array([max(0, k - few_b.size), min(k, few_a.size)])
    ax.plot(ends, k - ends, color=palette.INK, ls="--", label=f"i + j = {k}")
    ax.plot(i[k], k - i[k], color=palette.COLOURS[3], marker="s", ms=12, ls="", label=f"co-rank {i[k]}")
    ax.set(xticks=np.arange(4) + 0.5, xticklabels=few_a, yticks=np.arange(4) + 0.5, yticklabels=few_b)
    ax.set(ylim=(4.2, -0.2), xlabel="a", ylabel="b", title="A step to the right takes from a, a step down from b")
    figure.legend(loc="outside right upper")
    return figure


knobs.turn(grid, k=(k, tuple(range(9))))

# %% [markdown]
# The path never goes back, so it meets a diagonal in one place, and a binary search along the diagonal finds it. At a
# place *i*, ask whether `b[k - 1 - i]` comes before `a[i]`. If so, at least *k* elements come before `a[i]`: those of
# `a` with a smaller index, and *k* - *i* of `b`. So `a[i]` is not among the first *k*, and the co-rank is at most *i*.
# If not, `a[i]` is among them, and the co-rank is more than *i*.

# %%
show(merge.goes_first)
show(merge.co_rank_between)
show(merge.co_rank)

# %% [markdown]
# ### Exercise: every co-rank
#
# Write the search yourself, for whole numbers. `check` runs your kernel in the interpreter, on several inputs, with
# every access checked. Replace `pass`.

# %%
exercise("merge/co_rank")


# %%
@cuda.jit
def co_rank(a, b, out):
    pass  # your code


check("merge/co_rank", co_rank)

# %% [markdown]
# ## Rung 1: `co_ranked`
#
# A thread takes eight outputs. It searches for its co-rank in the whole vectors, and merges from there.

# %%
show(merge.merge_piece)
show(merge.co_ranked_kernel)


# %%
def counted(rung, a, b, *names):
    """Counters of a rung in the interpreter, over its launches. The result is compared with NumPy's."""
    found = lab.count(rung, a, b)
    assert np.array_equal(found.result, np.sort(np.concatenate([a, b])))
    return [found.counters[name] for name in names]


noise = np.random.default_rng(0)
size = merge.SECTION  # of each vector: two sections of the output
random_a, random_b = (np.sort(noise.integers(0, 2**30, size, dtype=np.int32)) for _ in range(2))
print(f"{2 * size:,} outputs are the same as NumPy's:", counted(merge.co_ranked, random_a, random_b) == [])

# %% [markdown]
# **Predict, then run.** A sector has 32 bytes, so eight int32. If neighbouring lanes wrote neighbouring elements, a
# warp's store would touch 4 sectors. How many does a store of `co_ranked` touch?

# %%
guess = None  # sectors a request

names = ("global_store_sectors", "global_store_requests")
sectors, requests = counted(merge.co_ranked, random_a, random_b, *names)
predict(guess, round(sectors / requests), unit="sectors")

# %% [markdown]
# A thread's eight outputs are just one sector, so each lane writes to a sector of its own. But it is not 32 in one
# store: the `if` parts the warp. Lanes that take from `a` store in one request, and those that take from `b` in another
# one, about half of the warp each. For 32 outputs that makes two requests with 32 sectors together, where 4 would do.


# %%
def recorded(*names):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load()
        entries = [entry for entry in kept.design("merge") if entry.contender in names]
        for entry in entries:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("merge"))
            print(f"{entry.contender:15} {entry.workload} {entry.median_ms:8.4g} ms, {share:6.1%} of the roof")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("co_ranked", "torch.sort", "cupy.sort")

# %% [markdown]
# PyTorch and CuPy have no merge of two vectors. What stands beside our rungs is the way that their users go: put the
# vectors one behind the other, and sort. That is more work, so a merge has to be faster.
#
# ## Rung 2: `tiled`
#
# The search of a whole vector is the same for a block as for a thread, so a block does it once: for a *section* of its
# own, 16,384 outputs. Then it goes through the section in rounds of 2,048 outputs. A round loads a *tile* of each
# vector into shared memory, side by side, and its threads search and merge there.
#
# How much must a tile hold? Nobody knows how many of the next 2,048 outputs come from `a`: maybe all. So a round loads
# 2,048 elements of `a` and 2,048 of `b`.

# %%
show(merge.section_of)
show(merge.tiled_kernel)

# %% [markdown]
# `co_rank` and `merge_piece` are the functions of the first rung: a slice of a shared array is an array, too.
#
# **Predict, then run.** How many bytes does `tiled` load for each output? (Four would be enough.)

# %%
guess = None  # bytes

(loaded,) = counted(merge.tiled, random_a, random_b, "global_load_bytes")
predict(guess, round(loaded / (2 * size), 1), unit="bytes")

# %% [markdown]
# Of 4,096 elements a round uses 2,048. The others are loaded again in the next round. Only the end of a section has
# fewer elements left than a tile has room for, so it is a little less than eight bytes.

# %%
recorded("tiled")

# %% [markdown]
# ## Rung 3: `circular_buffer`
#
# What a round has not used is already in shared memory. It only stands in the wrong place: behind what was used. To
# move it to the front would take a load and a store for each element. So the front moves instead. Element *i* of `a`
# has the place *i* modulo 2,048, from the beginning to the end, and what comes in overwrites what was used: a *circular
# buffer*.

# %%
show(merge.co_rank_in_rings)
show(merge.circular_buffer_kernel)

# %% [markdown]
# 2,048 is a power of two, so the remainder is a mask of the last eleven bits.

# %%
for rung in merge.LADDER[:3]:
    loaded, sectors = counted(rung, random_a, random_b, "global_load_bytes", "global_load_sectors")
    print(f"{rung.name:16} {loaded / (2 * size):6.2f} bytes, {sectors * 32 / (2 * size):6.2f} in whole sectors")
recorded("tiled", "circular_buffer")

# %% [markdown]
# The bytes are those of the bound. What has been saved in traffic is paid in instructions: each access now computes a
# remainder, and each step of the search does so twice. Whether that is a gain depends on the GPU, and the record says
# it where there is one.
#
# ## Rung 4: `partitioned`
#
# The reason for loading too much was that a round did not know its share of `a` before it had merged. But that share
# is the difference of two co-ranks. So let a first kernel find the co-ranks of *all* tiles: one thread a tile, one
# search each. The second kernel gives a tile to each block, and the block loads exactly what it will merge: *n*
# elements of `a` and 3,840 - *n* of `b`. No round follows, and no ring is needed.
#
# At the design size these are 70,000 searches with 28 steps. If each looked at places of its own, the memory would have
# to fetch millions of sectors for one element each. So all of them begin with the same places, multiples of 3,840: then
# `a[i]` is one of 35,000 elements, and so is `b[k - 1 - i]`, since *k* is a multiple of 3,840, too. These few stay in
# the second-level cache. Only the last steps look elsewhere, thirteen at most.

# %%
show(merge.borders_kernel)

# %%
show(merge.tile_of)
show(merge.load_tile)
show(merge.partitioned_kernel)

# %% [markdown]
# A thread merges fifteen outputs. It keeps the next element of `a` and the next of `b` in registers, and after each
# step it loads the one that follows what it took: one access to shared memory for an output. The outputs stay in
# registers until all threads have read the tile. Then they go back to shared memory, and from there to `out`, side by
# side. The last tile is filled up with the largest element, so that no thread needs to ask where the end is.

# %%
show(merge.merge_items)

# %% [markdown]
# The outputs of thread *t* go to places 15 *t* to 15 *t* + 14 of the tile. In one store the lanes write places that are
# 15 apart.
#
# **Predict, then run.** In how many wavefronts does such a store of a warp go to the 32 banks? And if a thread had
# sixteen outputs? Guess the second number.

# %%
guess = None  # wavefronts with sixteen outputs a thread


def wavefronts(outputs):
    """The largest number of lanes that meet in one bank: each has a place of its own."""
    return int(np.bincount(np.arange(32) * outputs % 32).max())


predict(guess, wavefronts(16), unit="wavefronts")

# %%
print("wavefronts with 13 to 17 outputs a thread:", {outputs: wavefronts(outputs) for outputs in range(13, 18)})
for rung in merge.LADDER[:4]:
    sectors, requests = counted(rung, random_a, random_b, *names)
    print(f"{rung.name:16} {sectors / requests:5.2f} sectors a store")
recorded("partitioned")

# %% [markdown]
# An odd number has no factor in common with 32, so the lanes use 32 banks. And a warp's store to `out` touches 4
# sectors, as it should.
#
# ### Exercise: a place for every element
#
# There is a way without any merging loop. The place of `a[t]` is *t*, and as many more as elements of `b` come before
# it. It costs a binary search for each element.

# %%
exercise("merge/ranks")


# %%
@cuda.jit
def ranks(a, b, out):
    pass  # your code


check("merge/ranks", ranks)

# %% [markdown]
# ## Rung 5: `vectorised`
#
# A 128-bit access moves four elements, and its address must be a multiple of 16 bytes. But a tile begins anywhere: at
# whatever co-rank the search found. So the vectors begin up to three elements early, and end up to three late. What
# does not belong to the tile lies in shared memory, and nobody asks for it: the merge begins behind it. A thread's four
# loads go to registers first, so that all are under way before the first is needed. Where `a` or `b` ends in the middle
# of a vector, the tile is loaded element by element.
#
# A multiprocessor has 65,536 registers and room for 2,048 threads. So a thread gets 32 registers and no more.

# %%
show(merge.places_of)
show(merge.load_vectors)
show(merge.vectorised_kernel)

# %% [markdown]
# **Predict, then run.** A tile has 3,840 outputs. How many elements does its block load for it, at most?

# %%
guess = None  # elements


def rounded(n):
    return -(-n // 4) * 4


loads = [rounded(i + n) + rounded(-i % 4 + 3840 - n) for i in range(4) for n in range(1, 3840)]
predict(guess, max(loads), unit="elements")

# %%
for rung in merge.LADDER[3:]:
    loads, stores = counted(rung, random_a, random_b, "global_load_requests", "global_store_requests")
    print(
        f"{rung.name:16} {loads / (2 * size / 32):5.2f} loads and {stores / (2 * size / 32):5.2f} stores a warp's row"
    )
recorded("partitioned", "vectorised", "torch.sort", "cupy.sort")

# %% [markdown]
# Eight elements more, and not twelve: a tile's first output has a multiple of four as its number, and so the two places
# where its parts begin add up to one. If one part begins three elements late, the other begins one late.
#
# A row is 32 outputs. The counts include those of the first kernel, of the borders that every warp loads, and of the
# last tile, which is loaded and stored element by element.
#
# Arrays that do not begin at a multiple of 16 bytes go to `partitioned`. `merge.join` is the name for daily use. Here
# are the two halves of the photograph:

# %%
whole = device.to_host(merge.join(left, right))
print("the pixels of the whole picture, sorted:", np.array_equal(whole, np.sort(bright.ravel())))

# %% [markdown]
# ## The whole ladder
#
# The bars are shares of the roof at the design size. The dashed line is the best library, which sorts.

# %%
plots.drawn(plots.ladder, "merge")

# %% [markdown]
# The first three rungs store piece by piece. The last two store side by side, and load every element once. What each
# rung left for the next one:

# %%
for rung in merge.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## When is memory the bound?
#
# Global memory moves sectors, and shared memory serves a wavefront a cycle on each multiprocessor. Both can be counted
# in the interpreter. The figure turns the counts into times, by the published numbers of the H200. The longer bar of a
# rung says which of the two bounds it, if neither waits for the other. Instructions and latencies are not in it, and
# neither is `co_ranked`: a cache answers most of what its threads ask for again and again.
#
# Shared memory depends on the data: which elements the lanes look at decides which banks they meet in. The knob chooses
# the data: random numbers, 0 2 4 and 1 3 5, or all of `a` before all of `b`.
#
# **Predict, then run.** For random numbers, is global or shared memory the bound of `vectorised`? Guess how many
# wavefronts it needs for 32 outputs: the two take the same time at about 14.

# %%
guess = None  # wavefronts for 32 outputs

SHARED = ("shared_load_wavefronts", "shared_store_wavefronts")
in_all = sum(counted(merge.vectorised, random_a, random_b, *SHARED))
predict(guess, round(in_all / (2 * size / 32), 1), unit="wavefronts")

# %%
every = np.arange(2 * size, dtype=np.int32)
ARRANGED = {
    "random": (random_a, random_b),
    "0 2 4 and 1 3 5": (np.ascontiguousarray(every[::2]), np.ascontiguousarray(every[1::2])),
    "one before the other": (every[:size], every[size:]),
}
SECTORS = ("global_load_sectors", "global_store_sectors")


# %%
arrangement = "random"


def bounds(arrangement):
    a, b = ARRANGED[arrangement]
    counts = [counted(rung, a, b, *SECTORS, *SHARED) for rung in merge.LADDER[1:]]
    moving = [32 * (loads + stores) / h200.bandwidth / every.size * 1e12 for loads, stores, *_ in counts]
    serving = [sum(waves) / (h200.sms * h200.clock) / every.size * 1e12 for _, _, *waves in counts]
    figure, ax = chart(3.6)
    places = np.arange(len(counts))
    ax.barh(places - 0.2, moving, 0.36, color=palette.COLOURS[5], label="sectors of global memory")
    ax.barh(places + 0.2, serving, 0.36, color=palette.COLOURS[3], hatch="//", label="wavefronts of shared memory")
    ax.axvline(8 / h200.bandwidth * 1e12, color=palette.INK, ls="--", label="8 bytes an output")
    ax.set(yticks=places, yticklabels=[rung.name for rung in merge.LADDER[1:]])
    ax.set(xlabel="time for an output (ps)", title=f"{arrangement}, by the published numbers of an H200")
    ax.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


knobs.turn(bounds, arrangement=(arrangement, tuple(ARRANGED)))

# %% [markdown]
# `tiled` and `circular_buffer` ask for eight times as many sectors as they have to write: each store of a thread goes
# to its sector again. The second-level cache may join these stores before they reach memory, so their bars are an upper
# limit. In the last two rungs the bar of global memory is at the dashed line, but for the searches and the odd ends of
# tiles. There memory is the bound, whatever the data. Shared memory comes next: its bar is the longest for random
# numbers, where lanes meet in banks, and the shortest where all of `a` comes first.
#
# And NumPy on one core of the CPU, which sorts the two vectors one behind the other:

# %%
plots.drawn(plots.cpu_gpu, "merge")

# %% [markdown]
# For short vectors the launches, and the waiting of the searches, take longer than to move the elements: two kernels
# follow one another, and the first is a chain of loads that depend on one another. Only for long ones memory is the
# bound.
#
# ## What to take along
#
# A loop whose steps depend on one another can be shared if its state at any step can be found by itself. For a merge
# the state is one number, the co-rank, and a binary search finds it. First it was found for each thread, in memory.
# Then for a section, then for all tiles at once, and again for each thread, in shared memory. Each level makes the
# search of the next one short. Who knows the exact part of a tile loads nothing twice. And a comparison decides what
# stable means: of equal elements `a`'s come first, in the search and in the merge alike.
#
# ## Exercises
#
# Two stand above, after the path and after rung 4.
#
# ### More, without a check
#
# - Why does `co_rank` begin with `max(0, k - b.size)`, and not with 0?
# - What would happen if the search compared by *less or equal*, and the merge by *less*?
# - How do you merge in descending order, without another kernel?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def co_rank_answer(a, b, out):
    k = cuda.grid(1)
    if k < out.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


assert check("merge/co_rank", co_rank_answer)

# %% [markdown]
# *Every co-rank.* At `i` between `low` and `high` both elements exist: `i` is less than `high`, so less than `k` and
# than `a.size`, and `k - 1 - i` is at least 0 and less than `b.size`.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def before(value, x, equal):
    """How many elements of x are less than the value, or equal to it if these count."""
    low, high = 0, x.size
    while low < high:
        middle = (low + high) // 2
        if x[middle] < value or (equal and x[middle] == value):
            low = middle + 1
        else:
            high = middle
    return low


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def ranks_answer(a, b, out):
    t = cuda.grid(1)
    if t < a.size:
        out[t + before(a[t], b, False)] = a[t]
    elif t < out.size:
        j = t - a.size
        out[j + before(b[j], a, True)] = b[j]


assert check("merge/ranks", ranks_answer)

# %% [markdown]
# *A place for every element.* One of the two searches counts equal elements, and the other does not. If both counted
# them, an `a[t]` and a `b[j]` that are equal would leave a place free; if none did, they would get the same one.
#
# *The lower end.* If *k* is more than the length of `b`, at least *k* - `b.size` of the first *k* outputs come from
# `a`. A smaller *i* would look at an element behind the end of `b`.
#
# *Two comparisons.* A thread that begins among equal elements would begin at another place of the path than where the
# thread before it ends. Then some elements come twice, and others that are equal to them not at all. Of whole numbers
# nobody sees it. Of -0 and 0, or of keys with values that belong to them, it is a wrong result.
#
# *Descending.* Merge the negated numbers, `~x` for whole ones, as -x of the smallest int32 is no int32. Equal elements
# keep their order then. Or merge both vectors turned around, `b` first, and turn the result around.
#
# Go on with [chapter 42](42_sorting.ipynb), which sorts: by merging first, and then without comparing at all.
