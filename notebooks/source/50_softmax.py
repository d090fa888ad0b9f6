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
# # 50. Softmax
#
# *Overflow and how to avoid it, passes over memory, a sum that rescales itself, rows in registers, lengths known to the
# compiler, blocks that wait for each other. Read chapter [30](30_reduction.ipynb) before. 90 minutes. PMPP 4e: chapters
# 10 and 16; 5e: chapters 10 and 20.*
#
# A classifier gives every class a score. Softmax makes probabilities of them: of a row of numbers $x$ it makes
#
# $$y_i = \frac{e^{x_i}}{\sum_j e^{x_j}},$$
#
# which are positive and add up to 1. It is the last layer of nearly every classifier, and it stands in the middle of
# every attention layer, where the rows are as long as the text.
#
# **The question of this chapter: nothing of a row can be written before all of it has been read. Where does the row
# wait in the meantime?** The answers are memory, a cache, the registers of a warp, of a block, and of several blocks.
# The code is the room `pmpp/kernels/softmax/ladder.py`. It builds on the trees and shuffles of [chapter
# 30](30_reduction.ipynb).

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import common, softmax
from pmpp.kernels.softmax import BLOCK
from pmpp.kernels.softmax.workloads import on_cpu
from pmpp.lab.draw import plots
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
# ## Scores of handwritten digits
#
# Our rows are the scores of a simple classifier. It takes the mean image of each digit, and scores an image by how well
# it fits each mean: if pixels vary around the mean with variance $\sigma^2$, the logarithm of the likelihood is
# $-|x - \mu|^2 / 2\sigma^2$. The part $-|x|^2 / 2\sigma^2$ is the same for all ten classes, so we leave it out.

# %%
images, labels = data.digits()
pixels = images.reshape(len(images), -1)
means = np.stack([pixels[labels == digit].mean(axis=0) for digit in range(10)])
variance = np.mean((pixels - means[labels]) ** 2)
scores = ((pixels @ means.T - (means**2).sum(axis=1) / 2) / variance).astype(np.float32)
print("scores of shape", scores.shape, "from", scores.min(), "to", scores.max())
print(f"the largest score is the right digit for {np.mean(scores.argmax(axis=1) == labels):.1%} of the images")

# %% [markdown]
# Now the formula above, in float32 as it stands. Its exponentials must be float32, too.

# %%
print("the largest float32:", np.finfo(np.float32).max)

# %% [markdown]
# **Predict, then run.** From about which $x$ on is $e^x$ larger than any float32? (A factor of 10 takes 2.3 in $x$.)

# %%
guess = None  # x

predict(guess, float(np.log(np.finfo(np.float32).max)))

# %%
with np.errstate(all="ignore"):
    naive = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
for x in np.float32([88, 89, scores.max()]):
    with np.errstate(over="ignore"):
        print(f"exp({x:5.1f}) = {np.exp(x):.4g}")
print("rows without a NaN:", np.isfinite(naive).all(axis=1).sum(), "of", len(naive))

# %% [markdown]
# Beyond that $e^x$ becomes infinite. Then the quotient is $\infty / \infty$, which is NaN. Scores of a hundred are
# nothing unusual, so for most of the images there are no probabilities.
#
# The way out is in the formula. Numerator and denominator may be multiplied by the same factor $e^{-m}$:
#
# $$y_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}.$$
#
# That holds for every $m$: softmax does not change if the whole row is shifted. With $m = \max_j x_j$ no exponent is
# above 0, so nothing overflows. The largest element gives $e^0 = 1$, so the sum is at least 1. What underflows to 0
# is too small to matter. This is also why we could leave $|x|^2$ out.

# %%
show(softmax.reference)
shares = softmax.reference(scores)
print("rows without a NaN:", np.isfinite(shares).all(axis=1).sum(), "of", len(shares))

# %%
doubtful = np.argsort(shares.max(axis=1))[:3]
figure, axes = plt.subplots(2, 3, figsize=(7.2, 3.6), layout="constrained", height_ratios=(1.4, 1))
for column, image in enumerate(doubtful):
    axes[0, column].imshow(images[image], cmap="gray_r")
    axes[0, column].set_title(f"a {labels[image]}")
    axes[0, column].set_axis_off()
    axes[1, column].bar(range(10), shares[image], color=plots.COLOURS[0])
    axes[1, column].set(xticks=range(10), ylim=(0, 1), xlabel="digit")
axes[1, 0].set_ylabel("share")
title = figure.suptitle("The three images of which the classifier is least sure")

# %% [markdown]
# ### What is not finite
#
# Masks are made with $-\infty$: an element that must not count gets a share of 0. What should a row be in which
# nothing counts? There is no answer: $0/0$. This room says NaN, as PyTorch does, and so it says for rows with a NaN or
# a $+\infty$ in them.

# %%
inf = np.float32(np.inf)
odd = np.float32([[0, 0, -inf], [-inf, -inf, -inf], [0, 0, inf], [0, 0, np.nan]])
for row, result in zip(odd, device.to_host(softmax.vectorised(odd)), strict=True):
    print(f"{row!s:18} becomes {result}")

# %% [markdown]
# ## The bound
#
# How fast can it be? An element is read once and written once: 8 bytes. In between it is compared, subtracted from,
# raised, added and divided: five operations.


# %%
def bound(m, n):
    """The least time for m rows of n, and where it comes from."""
    cost = softmax.cost(m, n)
    try:
        ceilings = roofline.ceilings("softmax")
        least = roofline.bound(cost, ceilings)
        print(f"{m:9,} rows of {n:7,}: at least {least.seconds * 1e3:.3f} ms, set by {least.side};", end=" ")
        print(f"{cost.intensity:.2f} FLOP/byte, ridge at {ceilings.ridge:.0f}")
    except record.RecordError as missing:
        print(missing)


SHAPES = [(2**20, 64), (65536, 1024), (8192, 32768), (1024, 262144)]
for shape in SHAPES:
    bound(*shape)

# %% [markdown]
# Far to the left of the ridge: the memory is the limit, if every element is read only once. These four shapes go with
# us through the chapter. They range from tiny rows (a head of attention, a classifier) to rows of a megabyte.
#
# ## Rung 1: `three_kernels`
#
# The definition asks for three passes, so the first version is three kernels: a maximum, a sum, and the quotient. Each
# gives a row to a block. `block_sum` is the tree of chapter 30 with one change: its shuffles cross (`shfl_xor_sync`),
# so that at the end *every* thread has the result.

# %%
show(softmax.total_kernel)
show(common.warp_sum)
show(common.sum_across_warps)

# %% [markdown]
# A detail: `none` is what no elements make, a pair of the lowest finite number and a sum of 0. Why does the maximum not
# begin at $-\infty$? A thread may have seen only $-\infty$ so far. Then $x - m$ would be $\infty - \infty$, NaN.
# From the lowest finite number it is $-\infty$, and its exponential is the 0 that it should be.
#
# Now we count what the rungs do with 64 rows of 1024.

# %%
rows = np.random.default_rng(0).standard_normal((64, 1024, 1)).astype(np.float32)
out, highest, total = np.empty_like(rows), np.empty(64, np.float32), np.empty(64, np.float32)
none = softmax.Part(np.float32(np.finfo(np.float32).min), np.float32(0))
reports = {}


def count(name, *launches):
    """Run a rung's kernels in the interpreter, and keep what it counted."""
    reports[name] = [simt.profile(kernel, grid, block, arguments) for kernel, grid, block, arguments in launches]


def compare(*counters):
    print(" " * 14, *(name.rjust(22) for name in counters))
    for name, parts in reports.items():
        print(name.ljust(14), *(f"{sum(part.counters[one] for part in parts):22,}" for one in counters))


# %% [markdown]
# **Predict, then run.** The interpreter counts *sectors* of 32 bytes. 64 rows of 1024 float32 are 8192 sectors. How
# many does this rung load?

# %%
guess = None  # sectors

count(
    "three_kernels",
    (softmax.highest_kernel, 64, BLOCK, (rows, highest, none)),
    (softmax.total_kernel, 64, BLOCK, (rows, highest, total, none)),
    (softmax.normalise_kernel, 64, BLOCK, (rows, highest, total, out, False)),
)
loaded = sum(part.counters["global_load_sectors"] for part in reports["three_kernels"])
predict(guess, loaded, unit="sectors", within=0.1)

# %%
compare("global_load_sectors", "global_store_sectors", "barriers")

# %% [markdown]
# Three times 8192, and a little for the maxima and sums. On a GPU, when the second kernel begins, the first rows have
# long been pushed out of every cache by the last ones. So memory moves 16 bytes an element, where 8 would do.
#
# What does the record say? This helper prints a rung's time at the four shapes, and its share of the bound.


# %%
def recorded(name, before=None):
    try:
        kept = record.load()
        for m, n in SHAPES:
            found = {entry.contender: entry for entry in kept.design("softmax", f"rows of {n}")}
            entry = found[name]
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("softmax"))
            faster = f"; {found[before].median_ms / entry.median_ms:.2f} times as fast as {before}" if before else ""
            print(f"{m:9,} x {n:7,}: {entry.median_ms:6.3f} ms, {share:5.1%} of the roof{faster}")
    except record.RecordError as missing:
        print(missing)


recorded("three_kernels")

# %% [markdown]
# 16 bytes an element would still allow half of the roof. The rest is not traffic, it is time in which too few bytes are
# asked for: a thread has one load of four bytes under way, waits for it, and then for all others at a barrier. Worst is
# the first line, the tiny rows: of 256 threads, three quarters have no element at all. The later rungs mend both.
#
# ## Rung 2: `fused`
#
# One kernel can do all three passes over a row before the block turns to the next row. Then the second and third pass
# find the row where the first one left it: in a cache, if it fits.

# %%
show(softmax.fused_kernel)
count("fused", (softmax.fused_kernel, 64, BLOCK, (rows, out, none, False, rows)))
compare("global_load_sectors", "global_store_sectors", "barriers")

# %% [markdown]
# The interpreter counts requests to the memory system. It does not know which of them a cache answers, so it sees no
# difference. A multiprocessor of an H200 has 256 KB for its first-level cache and its shared memory. The whole GPU has
# a second-level cache of 60 MB. Eight of these blocks are at work on each of 132 multiprocessors, each with a row.
#
# **Predict, then run.** At which of the four shapes is `fused` faster than `three_kernels` by more than a tenth?

# %%
guess = {"rows of 64": None, "rows of 1024": None, "rows of 32768": None, "rows of 262144": None}  # True or False


def gains():
    """For each shape, whether the record says so."""
    ms = {(e.family, e.contender): e.median_ms for e in record.load().entries("softmax", design=True)}
    families = [f"rows of {n}" for _, n in SHAPES]
    return {family: ms[family, "three_kernels"] / ms[family, "fused"] > 1.1 for family in families}


predict(guess, gains)

# %%
recorded("fused", before="three_kernels")

# %% [markdown]
# A row of 1024 is 4 KB and stays close. A row of 32,768 is 128 KB: times eight blocks, times 132 multiprocessors, that
# is more than 60 MB, so it comes from memory three times, fused or not. Rows of 64 stay close, and their 2^20 blocks
# begin once, not three times. Yet they remain far from the roof: what they lack is threads with something to do.
#
# ### Exercise: the logarithm
#
# A loss function wants $\log y_i$. It can be had without the quotient, and where $y_i$ underflows it must be. `check`
# runs your kernel in the interpreter, with every access checked, and says what it found. Our answers to all exercises
# are at the end of the chapter.

# %%
exercise("softmax/log")

# %%
from pmpp.kernels.softmax.exercises import LOWEST, ZERO, row_max, row_sum


@cuda.jit
def log_softmax(x, out):
    pass  # your code


check("softmax/log", log_softmax)

# %% [markdown]
# ## Rung 3: `online`
#
# Two of the passes only read, one for the maximum and one for the sum. Can one pass find both? The sum needs the
# maximum, which is known at the end. But look at what happens when the maximum grows from $m$ to $m'$. The sum so far
# is relative to $m$, and
#
# $$\sum_j e^{x_j - m'} = e^{m - m'} \sum_j e^{x_j - m}.$$
#
# One factor repairs the whole sum, without looking at any element again (Milakov and Gimelshein, 2018). In the code,
# `append` adds an element to a pair of maximum and sum, and `join` makes one pair of two. Write the second one first;
# the next cell but one has ours.

# %%
exercise("softmax/join")


# %%
@cuda.jit
def join(m1, s1, m2, s2, m, s):
    pass  # your code


check("softmax/join", join)

# %%
show(softmax.append)
show(softmax.join)

# %% [markdown]
# Here `append` is at work, on eight elements in a row. The column on the right is what the sum is worth, the logarithm
# of $\sum_j e^{x_j}$ over the elements seen. It never falls, although the sum beside it does.

# %%
with np.errstate(all="ignore"):
    m, s = none
    for seen, value in enumerate(np.float32([1, 3, 2, 90, 89, 95, 0, 95]), 1):
        top = max(m, value)
        m, s = top, s * np.exp(m - top) + np.exp(value - top)
        whole = m + np.log(s)
        print(f"{seen} seen, the last {value:3.0f}: maximum {m:3.0f}, sum {s:.6f}, log of the whole {whole:.6f}")

# %% [markdown]
# `join` does not care in which order it meets the parts of a row: it is associative and commutative, so a tree may
# apply it. A part that has seen nothing is `none`, and changes nothing. One tree of pairs takes the place of two trees,
# which also saves a barrier.

# %%
show(softmax.online_kernel)
count("online", (softmax.online_kernel, 64, BLOCK, (rows, out, none, False, rows)))
compare("global_load_sectors", "barriers", "thread_inst_special")
recorded("online", before="fused")

# %% [markdown]
# A third of the loads is gone. The last column is the price. `append` takes two exponentials for an element, the last
# pass one more and a division: four, where `fused` had three. The rest, more than half, is the tree: `join` takes two
# in every thread at each of ten steps, for a row of only four elements a thread. Exponentials are not free: compare
# `online` with `fused` at the short rows. We will come back to them.
#
# ## Rung 4: `warp_per_row`
#
# Now the tiny rows. A warp has 32 lanes, and lanes agree by shuffles alone. So give a short row to a warp, and eight
# rows to a block. There is no barrier and no shared memory any more.

# %%
show(softmax.warp_per_row_kernel)
count("warp_per_row", (softmax.warp_per_row_kernel, 8, BLOCK, (rows, out, none, False)))
compare("global_load_sectors", "barriers", "shared_store_requests", "warp_instructions")
recorded("warp_per_row", before="online")

# %% [markdown]
# The `return` at the top lets whole warps go, never single lanes: that is why the shuffles below it are safe.
#
# ### Exercise: no look ahead
#
# In a language model, a word may look at the words before it and at itself. Change the ends of the loops.

# %%
exercise("softmax/causal")

# %%
from pmpp.kernels.softmax.exercises import WARPS, lane_max, lane_sum


@cuda.jit
def causal(x, out):
    pass  # your code


check("softmax/causal", causal)

# %% [markdown]
# ## Rung 5: `split_row`
#
# The other end of the scale: a single row of a million elements. So far it is one block's work, and the other
# multiprocessors watch. `join` knows the way out. Several blocks take a part of the row each and write down their pair.
# A second kernel joins the pairs, and writes the result.

# %%
show(softmax.whole_kernel)


# %%
def listed(family, *names, least=1):
    """The recorded times of a family, for rows of `least` elements or more."""
    try:
        for entry in record.load().entries("softmax", family=family):
            if entry.contender in names and entry.sizes["n"] >= least:
                print(f"{entry.workload:26} {entry.contender:14} {entry.median_ms:7.3f} ms")
    except record.RecordError as missing:
        print(missing)


listed("sweep", "online", "split_row", "torch.softmax", least=2**16)

# %% [markdown]
# All three shapes have the same number of elements. The fewer the rows, the longer `online` takes, since a row is work
# for one multiprocessor. `split_row` does not care how many rows there are.
#
# ## Rung 6: `columns`
#
# All rungs take an `axis`. They see every array as three-dimensional, (outer, n, inner), and softmax runs along the n.
# If the axis is not the last one, neighbours in a row lie `inner` elements apart.
#
# **Predict, then run.** Scores of shape (4, 64, 256), softmax along the axis of 64. A warp of `warp_per_row` reads 32
# elements of one row. How many sectors does it touch?

# %%
guess = None  # sectors


def sectors_each(report):
    """Sectors that a request to load touches."""
    return report.counters["global_load_sectors"] // report.counters["global_load_requests"]


cube = rows.reshape(4, 64, 256)
strided = simt.profile(softmax.warp_per_row_kernel, 128, BLOCK, (cube, np.empty_like(cube), none, False))
predict(guess, sectors_each(strided), unit="sectors")

# %% [markdown]
# 32 sectors for 32 elements, an eighth of each used. `columns` turns the warp by a right angle: its lanes stand side by
# side across 32 rows, and walk down together. Eight such warps divide the rows among them, and join in shared memory.

# %%
show(softmax.columns_kernel)

# %%
across = simt.profile(softmax.columns_kernel, 32, (32, 8), (cube, np.empty_like(cube), none, False, cube))
for name, report in {"warp_per_row": strided, "columns": across}.items():
    requests, sectors = report.counters["global_load_requests"], report.counters["global_load_sectors"]
    print(f"{name:14} {sectors:7,} sectors in {requests:6,} requests: {sectors_each(report)} each")
listed("another axis", "split_row", "vectorised", "torch.softmax")

# %% [markdown]
# The record has the last rung of this chapter, `vectorised`, instead of `columns`. Along other axes it is `columns`
# with one thing changed, which we will see there. (The last shape has only three rows, too few for either. It goes to
# `split_row` in both.)
#
# ### Exercise: columns, a thread each
#
# With many columns there is an even simpler way.

# %%
exercise("softmax/columns")


# %%
@cuda.jit
def columns(x, out):
    pass  # your code


check("softmax/columns", columns)

# %% [markdown]
# ## Rung 7: `vectorised`
#
# What is still wrong along the last axis? A row is read twice, four bytes a lane, each load is waited for before the
# next one is asked for, and each element costs three exponentials. One idea mends all of it: **read the row once, and
# keep it in registers**. A thread asks for eight vectors of 16 bytes at once. Then it finds the maximum, *then* the
# exponentials, one for each element, which it keeps, and multiplies at the end.
#
# How large a register file do we have? 256 KB on each multiprocessor, as much as its first-level cache and its shared
# memory together. 32 lanes with 8 vectors hold a row of 1024. A block of 1024 threads holds 32,768.

# %%
show(softmax.block_kernel)

# %%
from pmpp.kernels.softmax import rows as softmax_parts

show(softmax_parts.hold)
show(softmax_parts.total_of)

# %% [markdown]
# Only constants may index an array that lives in registers. So the loops have a constant end, HELD, and the compiler
# writes them out. `k < held` skips what a shorter row does not need. The test is the same in all threads, so no warp
# diverges.
#
# Rows of an odd length do not begin at multiples of 16 bytes. A thread therefore holds one element more: of the few
# before the first whole vector and after the last, each goes to one thread.
#
# Here are the rungs so far, with the requests that their warps make to load.

# %%
compare("global_load_sectors", "global_load_requests", "thread_inst_special")

# %% [markdown]
# **Predict, then run.** How many requests to load do the warps of the last rung make, for the same 64 rows of 1024?

# %%
guess = None  # requests

flat = rows.reshape(-1)
vector, eight = (0, 0, 0, 0), (0,) * 8
arguments = (flat, np.empty_like(flat), 1024, 8, 0, vector, eight, flat, flat, none, False)
count("vectorised", (softmax.lanes_kernel, 8, (32, 8), arguments))
predict(guess, reports["vectorised"][0].counters["global_load_requests"], unit="requests")

# %%
compare("global_load_sectors", "global_load_requests", "thread_inst_special")
recorded("vectorised", before="columns")

# %% [markdown]
# Every sector once, and an eighth of `online`'s requests: half as many reads, each four times as wide. There is hardly
# more than one special function for each of the 65,536 elements. The exponentials are those of the hardware
# (`fast_expf`): one instruction for $2^x$, after a multiplication, where `math.exp` takes several more. The price is an
# error of up to $2 + 1.173\,|x - m|$ ulp, where an ulp is the distance from a float32 to the next. For an element that
# counts, $|x - m|$ is small; where it is 80, the share is $10^{-35}$, and has lost two digits of seven.
#
# ### Shorter than a warp
#
# A row of 4 is one vector. `lanes_kernel` gives it to one lane, and then finds out, while it runs, how many vectors a
# lane holds, where its row begins between two vectors, and which element is its one more. All that for four elements.
# The next kernel knows it when it is compiled: the length of a row is the length of a tuple, so that each length makes
# a kernel of its own, without a loop.

# %%
show(softmax_parts.rows_kernel)

# %% [markdown]
# A thread takes as many vectors as it needs to have only whole rows: one vector for four rows of 1, two of 2 or one of
# 4, three vectors for four rows of 3. No lane depends on another. The `else` is for the thread at the very end, where a
# vector would reach beyond the array. And a row of 1? It is always 1. Yet it must be read, for a NaN or an infinity in
# it makes it NaN.
#
# **Predict, then run.** How many vectors does a thread take for rows of 6?

# %%
guess = None  # vectors

how = softmax.plan(4096, 6, 4, 0, True, 132, 132 * 2048)  # 4096 rows of 6 float32, on a GPU of 132 multiprocessors
predict(guess, len(how.sizes[1]), unit="vectors")

# %% [markdown]
# Three: they hold 12 elements, which are two rows. What does it save to know the length? We count both kernels on 4096
# rows of 4.

# %%
tiny = np.random.default_rng(2).standard_normal(4 * 4096).astype(np.float32)
answer = np.empty_like(tiny)
general = (tiny, answer, 4, 1, 0, vector, eight, tiny, tiny, none, False)
known = (tiny, answer, (0,) * 4, (0,), vector, tiny, none, False)
spent = {
    "lanes_kernel": simt.profile(softmax_parts.lanes_kernel, 16, (1, 256), general).counters["warp_instructions"],
    "rows_kernel": simt.profile(softmax_parts.rows_kernel, 16, 256, known).counters["warp_instructions"],
}
for name, instructions in spent.items():
    print(f"{name:14} {instructions:8,} instructions of warps, {instructions / 128:.0f} for 32 rows")
print(f"a factor of {spent['lanes_kernel'] / spent['rows_kernel']:.1f}")

# %% [markdown]
# These are the interpreter's instructions. The compiler's are others, but a load and a store of 16 bytes do not hide
# that many of them either.
#
# Rows of 5, 7 or 10 do not fill a few vectors. They get a lane for each element. A group of 8, 16 or 32 lanes has a
# row, and the height of the tree over it is again known when the kernel is compiled.

# %%
show(softmax_parts.elements_kernel)

# %% [markdown]
# With few rows nothing counts but the way from the first load to the last store: a launch, one load, two trees, an
# exponential, a quotient, one store. A lane for each element makes that short, where a thread alone would take the
# elements one after another. With many rows, more than the GPU has room for at a time, a lane takes an element from
# each of four rows. The four loads are under way at once, and while one tree waits for its shuffle, the next one goes
# on. The price is idle lanes: a row of 17 needs a group of 32.
#
# ### Longer than a block
#
# A row of 262,144 fits no block. It fits eight, or 32 smaller ones, and each must know what the others found. So they
# have to *wait for each other*, which blocks of an ordinary launch may not do: nobody promises that all of them run
# at the same time. This kernel makes sure by itself.

# %%
show(softmax_parts.blocks_kernel)

# %% [markdown]
# - *Who begins first?* A block takes a ticket when it begins, from a counter in memory, and the ticket says which part
#   of which row it gets. So parts are taken row by row, in the order in which blocks really begin.
# - *Does it end?* Suppose that all blocks on the GPU wait. Look at the first row that is not finished: some part of it
#   has not been taken. Then all blocks on the GPU have parts of this row, and they are fewer than the row has parts.
#   The host never launches that: rows of more parts than the GPU has multiprocessors go to `split_row`.
# - *What is passed on?* A maximum and a sum, 64 bits together. They travel as one word, by one atomic exchange. A block
#   that reads a word other than EMPTY has both halves, and no fence is needed.
#
# The interpreter lets blocks wait for each other too, and checks it. Try `chunk` smaller, and there are more parts.

# %%
long = np.random.default_rng(1).standard_normal(3 * 16_384).astype(np.float32)
parts, answer = 8, np.empty_like(long)
slots = np.full(1 + 3 * parts, softmax_parts.EMPTY, np.int64)
slots[0] = 0  # the next ticket
arguments = (long, answer, 16_384, 16_384 // parts, parts, 2, 0, vector, eight, long, long, none, False, slots)
report = simt.profile(softmax_parts.blocks_kernel, 3 * parts, 256, arguments, level="check")
error = np.abs(answer.reshape(3, -1) - softmax.reference(long.reshape(3, -1))).max()
print(f"{report.grid[0]} blocks, {slots[0]} tickets, {len(report.hazards)} hazards, largest error {error:.1e}")

# %% [markdown]
# ### Along another axis
#
# `columns` reads everything twice, and takes two exponentials to append an element. Here, too, the elements can wait in
# registers. The threads of a column hold up to 16 of its elements each, or 32. They find the maximum first, then the
# exponentials, and neighbours write beside each other, as they have read.

# %%
show(softmax_parts.held_columns_kernel)

# %% [markdown]
# **Predict, then run.** How many sectors does it load for the shares of `cube` along the axis of 64? `columns` loads
# two times 8192.

# %%
guess = None  # sectors

held = lab.count(softmax.vectorised, cube, 1)
predict(guess, held.counters["global_load_sectors"], unit="sectors")

# %%
for name, report in {"columns": across, "vectorised": held}.items():
    print(f"{name:12}", *(f"{report.counters[c]:9,} {c}" for c in ("global_load_sectors", "thread_inst_special")))

# %% [markdown]
# Each element is loaded once, and costs one exponential. The other special functions are divisions, one in each thread,
# which holds four elements here. A column of more than 1024 elements does not fit, and is left to `columns`.
#
# ### Sixteen bits
#
# A softmax of float16 or bfloat16 moves half the bytes. `widened` makes float32 of what was loaded, all is computed in
# float32, and a share is rounded once, when it is stored. How much is lost if everything is computed in 16 bits?

# %%
halves = (3 * rows[:, :, 0]).astype(np.float16)
exact = softmax.reference(halves)
for name, found in {"in float16": on_cpu(halves), "vectorised": device.to_host(softmax.vectorised(halves))}.items():
    off = np.abs(found - exact) / np.maximum(exact * 2.0**-11, 2.0**-25)
    print(f"{name:12} off by {off.max():5.2f} half distances of float16 at most, {off.mean():4.2f} on average")
plots.drawn(plots.by_dtype, "softmax", family="rows of 1024")

# %% [markdown]
# Rounding once is off by half a distance at most, which is 1 here. In float16 each of a thousand additions and every
# exponential is rounded.
#
# The dashed line of the figure is half the time of float32. An element still costs its exponential, its comparison and
# its share of two trees, and half the bytes hide half as much of that. What is gained depends on the length of the rows
# and on the type. For rows of 32,768 float16 gains as much as for rows of 1024, and bfloat16 hardly anything:

# %%
plots.drawn(plots.by_dtype, "softmax", family="rows of 32768")

# %% [markdown]
# ## All rungs
#
# Here are the four shapes, one figure each, with the libraries. Each figure says at its bottom where it was measured.


# %%
plots.drawn(plots.ladder, "softmax", family="rows of 64")

# %%
plots.drawn(plots.ladder, "softmax", family="rows of 1024")

# %%
plots.drawn(plots.ladder, "softmax", family="rows of 32768")

# %%
plots.drawn(plots.ladder, "softmax", family="rows of 262144")

# %% [markdown]
# Not every rung is a step forward at every shape, and none was meant to be. `warp_per_row` is the same as `online` for
# long rows, and `columns` is the same as `split_row` along the last axis. `split_row` is even slower than `online` at
# 32,768: there are enough rows for all multiprocessors, so a second kernel and its launch buy nothing.
#
# In the roofline all rungs stand above one another: the work is the same, only the time differs.

# %%
plots.drawn(plots.roofline, "softmax", family="rows of 1024")

# %% [markdown]
# And over the length of a row, with $2^{26}$ elements in all:

# %%
words = {"xlabel": "elements in a row", "title": "Rows of all lengths, 2^26 elements in all"}
plots.drawn(plots.sweep, "softmax", family="sweep", **words)

# %% [markdown]
# All shapes are on the side of the memory: softmax does five operations for 8 bytes, whatever its rows are, and no
# shape moves it to the other side. `online` is best in the middle. Its blocks lack elements on the left, and on the
# right the multiprocessors lack rows. `warp_per_row` lifts the left end, and `split_row` the right one. `vectorised`
# stays nearer to the ceiling than all of them, at either end.
#
# Is the GPU worth the journey? The next figure has NumPy on the CPU, for up to 65,536 rows of 1024; the kernel alone;
# and the kernel with the call and both transfers. (If the record has no times of the CPU, the cell says so.)

# %%
figure = plots.drawn(plots.cpu_gpu, "softmax", family="batches")
if figure:
    figure.axes[0].set_title("softmax of rows on the CPU and on the GPU", loc="left")
    figure.axes[0].set_xlabel("rows of 1024 elements")
figure

# %% [markdown]
# With the call and both transfers, the GPU is ahead of NumPy at the last size only. For a few rows a call costs as much
# as for one. For many rows the transfers take far longer than the kernel: they go over the bus, and the kernel's bytes
# come from the GPU's own memory. In a network the scores are on the GPU already, where a matrix product has left them.
#
# Is the last rung ahead everywhere? Here is everything else that was measured, against PyTorch: lengths that fit no
# vector, few rows, and other axes.


# %%
def against_torch(family):
    try:
        entries = record.load().entries("softmax", family=family)
    except record.RecordError as missing:
        entries = print(missing) or ()
    torch = {entry.workload: entry for entry in entries if entry.contender == "torch.softmax"}
    for entry in entries:
        if entry.contender == "vectorised" and entry.workload in torch:
            ratio = torch[entry.workload].median_ms / entry.median_ms
            mark = "  a loss" * (ratio < 1)
            print(f"{entry.workload:28} {entry.median_ms * 1e3:9.1f} us, torch / ours {ratio:5.2f}{mark}")


for family in ("odd rows", "few rows", "another axis"):
    print(f"-- {family}")
    against_torch(family)

# %% [markdown]
# A number below 1 is a loss. All of them are short rows that are over in some microseconds. These take about as long as
# a launch and the chain of steps behind it; there, every step that waits for another counts.
#
# Other axes win by far. A column that does not fit into registers still reaches only a part of the roof: `columns`
# reads it twice. That is left to you.
#
# ## What to take along
#
# - Softmax does not change if a row is shifted. Subtract the maximum, and nothing overflows.
# - Its result needs the whole row. So ask where the row waits: each trip to memory that is saved shows in the time.
# - A partial result that can be rescaled when more is known makes one pass of two, and lets several threads or blocks
#   share a row. It is the heart of FlashAttention, where the row never exists at all.
# - How many threads share a row depends on its length: one, some lanes, a warp, a block, or several blocks.
# - Blocks may wait for each other, if each waits only for blocks that have begun.
#
# ## Exercises
#
# ### A loss in one pass
#
# To train the classifier one needs $-\log y_i$ for the right digit $i$ of each image, and nothing else of the row. No
# share is written, so one pass over the scores is enough.

# %%
exercise("softmax/loss")


# %%
@cuda.jit
def loss(x, labels, out):
    pass  # your code


check("softmax/loss", loss)

# %% [markdown]
# ### More, without a check
#
# - Divide the scores of the digits by a *temperature* $T$ before the softmax. What do the bars become for large and for
#   small $T$? Why does the subtraction of the maximum make every $T > 0$ safe?
# - The sum of `online` has to be rescaled only when the maximum grows. How often is that, for a row in random order?
#   And in ascending order?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
import math


@cuda.jit
def log_answer(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, 128):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, 128):
        total += math.exp(x[row, i] - best)
    total = math.log(row_sum(total))
    for i in range(cuda.threadIdx.x, n, 128):
        out[row, i] = x[row, i] - best - total


assert check("softmax/log", log_answer)

# %% [markdown]
# *Log.* The logarithm of the sum is taken once a row, and no exponential in the last pass. A share of $10^{-50}$ is 0
# in float32, and its logarithm $-\infty$; $x - m - \log s$ is about $-115$, as it should be.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def join_answer(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        top = max(m1[i], m2[i])
        m[i] = top
        s[i] = s1[i] * math.exp(m1[i] - top) + s2[i] * math.exp(m2[i] - top)


assert check("softmax/join", join_answer)

# %% [markdown]
# *Join.* One of the two factors is $e^0 = 1$, the other is at most 1. A part of no elements, with the lowest number and
# a sum of 0, adds 0 whatever its factor is.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def causal_answer(x, out):
    row, n = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0]
    if row < n:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, row + 1, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, row + 1, 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


assert check("softmax/causal", causal_answer)

# %% [markdown]
# *Causal.* The mask costs nothing here: the loops simply end earlier. `if row < n` is the same for a whole warp, so all
# its lanes meet in `lane_max`.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def columns_answer(x, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        best, total = LOWEST, ZERO
        for i in range(x.shape[0]):
            best = max(best, x[i, column])
        for i in range(x.shape[0]):
            total += math.exp(x[i, column] - best)
        for i in range(x.shape[0]):
            out[i, column] = math.exp(x[i, column] - best) / total


assert check("softmax/columns", columns_answer)

# %% [markdown]
# *Columns.* The lanes of a warp stand side by side, so each request is coalesced. Threads are as many as columns, and
# that is the limit: with few columns and many rows most of the GPU would have nothing to do. There `columns` divides a
# column among up to 32 threads.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def loss_answer(x, labels, out):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, x.shape[1], 32):
            value = x[row, i]
            top = max(best, value)
            total, best = total * math.exp(best - top) + math.exp(value - top), top
        whole = lane_max(best)
        total = lane_sum(total * math.exp(best - whole))
        if cuda.laneid == 0:
            out[row] = math.log(total) - (x[row, labels[row]] - whole)


assert check("softmax/loss", loss_answer)

# %% [markdown]
# *Loss.* A lane that has seen nothing has a sum of 0, so it adds 0. For the digits it gives this:

# %% jupyter={"source_hidden": true} tags=["answer"]
losses = np.empty(len(scores), np.float32)
simt.profile(loss_answer, -(-len(scores) // WARPS), 128, (scores, labels.astype(np.int64), losses))
print(f"mean loss {losses.mean():.3f}; without knowing anything it would be log 10 = {np.log(10):.3f}")


# %% jupyter={"source_hidden": true} tags=["answer"]
figure, ax = chart(2.6)
for place, temperature in enumerate((0.2, 1, 5)):
    ax.bar(np.arange(10) + 0.27 * (place - 1), softmax.reference(scores[doubtful[0]] / temperature), width=0.25)
ax.set(xticks=range(10), xlabel="digit", ylabel="share", title="One image at T = 0.2, 1 and 5, from left to right")
rng, n = np.random.default_rng(0), 1000
growths = [np.unique(np.maximum.accumulate(rng.permutation(n))).size for _ in range(500)]
print(f"the maximum of {n} grows {np.mean(growths):.2f} times in random order; 1 + 1/2 + ... + 1/n = ", end="")
print(f"{(1 / np.arange(1, n + 1)).sum():.2f}; in ascending order {n} times")

# %% [markdown]
# *Temperature.* A small $T$ pulls the scores apart, and the largest takes all. A large $T$ makes all equal. No $T$ can
# make $x - m$ positive.
#
# *Growing maxima.* The $k$-th element is the largest so far with probability $1/k$. That adds up to about $\ln n$. So
# the rescaling is rarely needed, and yet `append` computes its factor each time: a branch would let lanes diverge.
#
# Go on with [chapter 51](51_game_of_life.ipynb), a project: cells that live and die, 32 of them in a word.
