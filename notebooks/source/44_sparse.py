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
# # 44. Sparse matrices
#
# *Compressed rows, a thread a value, a row or a part of one, products through shared memory, equal work by the merge
# path, other formats, tiles, many vectors, conjugate gradients. Read chapters [16](16_transpose.ipynb),
# [28](28_histogram.ipynb), [30](30_reduction.ipynb), [34](34_scan.ipynb), [41](41_merge.ipynb) and
# [42](42_sorting.ipynb) before. 105 minutes. PMPP 4e: chapter 14; 5e: chapter 17. The code is
# [pmpp/kernels/sparse/ladder.py](../pmpp/kernels/sparse/ladder.py).*
#
# The heat of a plate, the links of the web, the words of a language: whoever writes down which thing acts on which
# other gets a matrix with millions of rows, and nearly all of it is zero. A plate of 2048 x 2048 points has four
# million rows and as many columns, and five numbers in a row that are not zero.
#
# Only these are stored, and only these are multiplied. That is little arithmetic, and it would be simple if rows were
# alike. **The question of this chapter: who works on what, if the data decide how long each row is?**

# %%
import collections
import inspect
import itertools
import re

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import sparse
from pmpp.kernels.sparse import conjugate_gradient, formats, gathers_alone, propagation_blocking, spmm
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
# ## Two matrices
#
# The first is *Poisson's matrix*, from physics. Each point of a grid has a row. In it are 4 for the point itself, and
# -1 for each of its neighbours above, below, left and right. All rows have nearly the same length.
#
# A matrix by *compressed rows* (CSR) is three vectors: the `values` row by row, the `columns` they stand in, and where
# each row `starts`. Here is a grid of 3 x 3 points.

# %%
values, columns, starts = sparse.poisson(3)
for name, vector in (("values", values.astype(int)), ("columns", columns), ("starts", starts)):
    print(f"{name:8}", *(f"{number:2}" for number in vector))

# %% [markdown]
# Row 0 has the values from place 0 up to `starts[1]`, which is 3: the corner of the grid has two neighbours. The last
# number says where a further row would start, so it is the number of all values.
#
# **Predict, then run.** As a full matrix of float32, how many times the memory of these three vectors does a grid of
# 2048 x 2048 points take? Values are float32, columns and starts int32.

# %%
guess = None  # times

side = 2048
rows, stored = side**2, 5 * side**2 - 4 * side
predict(guess, 4 * rows**2 / (4 * stored + 4 * stored + 4 * (rows + 1)), factor=1.2, unit="times")

# %% [markdown]
# The full matrix would need 70 terabytes.
#
# The second matrix comes from language. Its rows and columns are words, and row *a* has a value for each word that was
# seen behind *a*: how often it was, as a share. We take the words of a module that every Python has.

# %%
words = re.findall(r"[A-Za-z_]+", inspect.getsource(inspect))
index = {word: i for i, word in enumerate(dict.fromkeys(words))}
pairs = sorted(collections.Counter((index[a], index[b]) for a, b in itertools.pairwise(words)).items())
row, column = np.array([pair for pair, _ in pairs], np.int32).T
lengths = np.bincount(row, minlength=len(index))
often = np.array([count for _, count in pairs], np.float32)
language = often / np.bincount(row, often)[row].astype(np.float32), column.copy(), np.append(0, np.cumsum(lengths))
language = *language[:2], language[2].astype(np.int32)
print(f"{len(words):,} words, {len(index):,} of them different, {row.size:,} pairs")

# %% [markdown]
# **Predict, then run.** How long is the longest row, as a multiple of the mean?

# %%
guess = None  # times the mean

predict(guess, lengths.max() / lengths.mean(), factor=1.3, unit="times")

# %%
figure, ax = chart(3.2)
ordered = np.sort(lengths)[::-1]
ax.plot(np.arange(1, ordered.size + 1), ordered, color=palette.COLOURS[5], label="words")
grid_rows = np.sort(np.diff(sparse.poisson(30)[2]))[::-1]
ax.plot(np.arange(1, grid_rows.size + 1), grid_rows, "--", color=palette.COLOURS[3], label="points of a grid")
ax.set(xscale="log", yscale="log", xlabel="rows, the longest first", ylabel="values in the row")
ax.set_title("How long rows are")
ax.legend()
figure

# %% [markdown]
# On logarithmic axes the words lie near a straight line: a *power law*. A few words are followed by many others, and
# most words by one or two. Links of web pages, friends of people and routes of airlines look like this as well.
#
# ## The bound
#
# A value is read once and takes part in one multiplication and one addition, 2 FLOP for the 8 bytes of value and
# column. So memory is the bound, by far.

# %%
show(sparse.cost)

# %% [markdown]
# **Predict, then run.** Poisson's matrix of 2048 x 2048 points, on an H200 with its published bandwidth: how many
# microseconds does it take at least?

# %%
guess = None  # us

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
design = sparse.cost(rows, rows, stored)
predict(guess, design.bytes / h200.bandwidth * 1e6, factor=1.15, unit="us")

# %% [markdown]
# ## The reference

# %%
show(sparse.reference)

# %% [markdown]
# ## Rung 1: `by_element`
#
# As many threads as values. Each has to know its row. We can store it with each value, which is the format COO
# (*coordinates*). Or the thread searches for it: its row is the last one that starts at its place or before.

# %%
show(sparse.row_of)
show(sparse.by_element_kernel)

# %% [markdown]
# Rows without values make this a little delicate. Two of them that start at one place are no trouble if we take the
# *last* row that starts there: those before it are empty.
#
# **Predict, then run.** The grid has $2^{22}$ rows. How many steps does the search of one thread take?

# %%
guess = None  # steps

predict(guess, int(np.log2(rows)), unit="steps")


# %%
def recorded(*names, family="poisson"):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load(room="sparse")
        entries = [entry for entry in kept.design("sparse", family) if entry.contender in names]
        for entry in entries:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("sparse"))
            print(f"{entry.contender:13} {entry.median_ms * 1e3:8.4g} us, {share:6.1%} of the roof")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("by_element", "cupy.spmv", "torch.mv")

# %% [markdown]
# Neighbours take nearly the same way through `starts`, so caches answer most of these loads. But each step waits for
# the one before. And all values of a row are added to one place in memory, by atomics, in whatever order they come: two
# runs need not give the same bits.
#
# ### Exercise: where rows start
#
# The other direction: make `starts` of the row of each value. `check` runs your kernel in the interpreter. Replace
# `pass`.

# %%
exercise("sparse/starts")


# %%
@cuda.jit
def find_starts(row, starts):
    pass  # your code


check("sparse/starts", find_starts)

# %% [markdown]
# ## Rung 2: `by_row`
#
# A thread takes a row. It knows where the row starts and ends, adds up in a register, and writes once. There is no
# search, and no atomic.

# %%
show(sparse.by_row_kernel)

# %% [markdown]
# Think of the 32 threads of a warp in their first step. Each reads the first value of its row.
#
# **Predict, then run.** In rows of 5 values, how many sectors of 32 bytes do these 32 loads touch?

# %%
guess = None  # sectors

first_values = np.arange(32) * 5 * 4  # where they lie, in bytes
predict(guess, np.unique(first_values // 32).size, unit="sectors")

# %% [markdown]
# Four sectors hold 32 neighbours. So the warp asks for 20, and uses a fifth of each. In the next step it asks for
# the same ones again. The first-level cache still has most of them, so memory does not notice. But the cache has five
# times as much to do.

# %%
recorded("by_element", "by_row")

# %% [markdown]
# For the words it is the length that hurts. A warp goes on until its longest row has ended, and lanes whose rows were
# shorter wait.
#
# **Predict, then run.** What share of its lanes is at work, over all steps of all warps, if a thread takes a word?

# %%
guess = None  # percent


def busy(lengths, team):
    """The share of lanes that have something to add if ``team`` lanes take a row."""
    steps = -(-lengths // team)
    warps = np.pad(steps, (0, -steps.size % (32 // team))).reshape(-1, 32 // team).max(axis=1)
    return lengths.sum() / (32 * warps.sum())


predict(guess, 100 * busy(lengths, 1), unit="percent")

# %% [markdown]
# ### Exercise: rows of equal width
#
# An older cure for both troubles is the format ELL: all rows get the length of the longest, and values are stored
# column by column, so that neighbouring threads read neighbours. For Poisson's matrix hardly a place is filled up. For
# the words it would store the longest row's length for every word. Hybrid formats put only the first few values of each
# row into ELL, and the others into COO; JDS sorts rows by their lengths, so that neighbours are alike.

# %%
exercise("sparse/ell")


# %%
@cuda.jit
def ell(values, columns, x, out):
    pass  # your code


check("sparse/ell", ell)

# %% [markdown]
# ## Rung 3: `batched`
#
# Follow one thread of `by_row`. It asks for a column, and waits. With the column it asks for an element of `x`, and
# waits again. Only then comes the next column. Memory answers after several hundred cycles, and the first-level cache
# after some dozens, so nearly all of a thread's time is waiting. Other warps fill most of it, but not all.
#
# But the columns of a row do not depend on each other. A thread can ask for five at once, and then for five elements of
# `x`.

# %%
show(sparse.batched_kernel)

# %% [markdown]
# Five is what a row of the grid has. Longer rows take several turns, and at the end of a row the last value is read
# again in place of those that are not there. A condition would save these loads, but then the compiler lets one load
# wait for another, which can be seen in the machine code. What counts is how much a thread has on its way. A block has
# only 64 threads: it keeps its place until its last warp has ended, so with small blocks less of a multiprocessor
# stands idle.
#
# **Predict, then run.** A thread that has found its row asks and waits, again and again. How many times does it wait
# for a row of 5 values, by `by_row` and by `batched`?

# %%
guess = {"by_row": None, "batched": None}  # times

predict(guess, {"by_row": 2 * 5, "batched": 2 * -(-5 // sparse.BATCH)}, unit="times")

# %% [markdown]
# By `by_row` it waits twice for each value. By `batched` it waits once for all values and columns together, and once
# more for the elements of `x`.

# %%
recorded("by_row", "batched", "cupy.spmv", "torch.mv")

# %% [markdown]
# ## Rungs 4 and 5: `warp_per_row` and `team_per_row`
#
# A whole warp takes a row. Its lanes read 32 neighbours, and add up their sums by shuffles, as in
# [chapter 30](30_reduction.ipynb).

# %%
show(sparse.team_kernel)

# %% [markdown]
# **Predict, then run.** For Poisson's matrix, what share of the lanes is at work now?

# %%
guess = None  # percent

grid_lengths = np.diff(sparse.poisson(64)[2])
predict(guess, 100 * busy(grid_lengths, 32), factor=1.1, unit="percent")

# %% [markdown]
# The kernel has a parameter for this: so many `lanes` take a row. The best number depends on how long rows are, and
# that depends on the matrix. `team_per_row` takes the power of two that is next above the mean.

# %%
show(sparse.lanes_for)
print(
    "for the grid:",
    sparse.lanes_for(rows, stored),
    "lanes a row; for the words:",
    sparse.lanes_for(len(index), row.size),
)

# %%
matrix = "words"


def lanes_at_work(matrix):
    each = {"words": lengths, "grid": grid_lengths}[matrix]
    figure, ax = chart(3.0)
    teams = (1, 2, 4, 8, 16, 32)
    ax.bar(range(len(teams)), [100 * busy(each, team) for team in teams], color=palette.COLOURS[5])
    ax.set(xticks=range(len(teams)), xticklabels=teams, ylim=(0, 100))
    ax.set(xlabel="lanes that take a row", ylabel="lanes at work (%)", title=f"the {matrix}")
    return figure


knobs.turn(lanes_at_work, matrix=(matrix, ("words", "grid")))

# %% [markdown]
# There is no good number for the words: with few lanes the long rows hold up their warps, and with many lanes the short
# rows leave them idle. For the grid, one lane is best by this count, but then neighbours read far apart. Both are
# wanted: neighbours that read neighbours, and nobody who waits.
#
# The words are too few to keep a GPU busy. So the record has a larger matrix in their place, with lengths like theirs:
# a power law. It has $2^{20}$ rows, 16 values in a row in the mean, and columns drawn by chance. Below stand the times
# of three rungs for the grid, and then those of the same three for the power law.

# %%
recorded("by_row", "warp_per_row", "team_per_row")
recorded("by_row", "warp_per_row", "team_per_row", family="power law")

# %% [markdown]
# For the grid both are far slower than `by_row`, although their lanes read neighbours. In a step a warp of `by_row`
# asks for 32 values. With a warp to a row it asks for five, and with eight lanes to a row for twenty, and sums have to
# be passed on by shuffles besides. For the power law both are faster than `by_row`: there the longest rows decide, and
# 32 lanes share one best.
#
# ## Rung 6: `staged`
#
# Reading need not follow the rows. The values of 256 rows lie side by side. So all threads of a block bring them to
# shared memory, each already multiplied, as if there were no rows. After a barrier each thread adds up a row from
# there.

# %%
show(sparse.bring_products)
show(sparse.staged_kernel)

# %% [markdown]
# **Predict, then run.** All loads of all warps together ask for sectors of 32 bytes. For the grid, how many bytes are
# that for each value? For `by_row` they are about 47. A value and its column have 8, and `x` is asked for as well.

# %%
guess = None  # bytes for each value


def asked_for(rung, matrix, x):
    found = lab.count(rung, *matrix, x)
    assert np.allclose(found.result, sparse.reference(*matrix, x), atol=1e-4)
    return 32 * found.counters["global_load_sectors"] / matrix[0].size


small = sparse.poisson(64)
x = np.random.default_rng(0).standard_normal(64**2, dtype=np.float32)
predict(guess, asked_for(sparse.staged, small, x), factor=1.2, unit="bytes for each value")

# %%
for rung in sparse.LADDER:
    print(f"{rung.name:13} {asked_for(rung, small, x):6.1f} bytes asked for, for each value")
recorded("team_per_row", "staged", "cupy.spmv", "torch.mv")

# %% [markdown]
# So a third of the bytes are asked for. And yet the grid is not faster than by `by_row`: its rows are so short that the
# first-level cache still has a sector when the next step asks for it, and so the cache does what shared memory does
# here. For longer rows that is harder: no two lanes share a sector then, and each sector has to stay in the cache for
# eight steps, beside those of all other warps.
#
# What about the words? A block takes 256 rows, whatever they hold.
#
# **Predict, then run.** How many times the work of the mean block does the busiest block have?

# %%
guess = None  # times

work = np.add.reduceat(lengths, np.arange(0, lengths.size, sparse.BLOCK))
predict(guess, work.max() / work.mean(), factor=1.2, unit="times")

# %% [markdown]
# Words that came early in the text are those that come often. With a few thousand rows that is a small evil. In a graph
# of a million rows one row may have a fifth of a million values: then one thread adds them up, and all others wait.

# %%
recorded("team_per_row", "staged", family="power law")

# %% [markdown]
# ## Rung 7: `merged`
#
# What is equal work? To add a product takes a step. To finish a row, which is to write its sum and begin with the next
# one, takes a step, too: otherwise a million empty rows would be no work. So there are as many steps as values and rows
# together, and every block shall take equally many.
#
# Draw the rows downwards and the values to the right. To add is a step to the right, and to finish a row is a step
# down. The result is a path, and it is the merge path of [chapter 41](41_merge.ipynb): what is merged are the numbers
# of the values 0, 1, 2, ... and the ends of the rows.

# %%
each, seed = 7, 0


def path(each, seed):
    drawn = np.random.default_rng(seed).choice([0, 1, 2, 2, 3, 4, 13], 9)
    figure, ax = chart(4.0)
    ends, at = np.cumsum(drawn), [(0, 0)]
    for i, end in enumerate(ends):
        at += [(j, i) for j in range(at[-1][0] + 1, end + 1)] + [(end, i + 1)]
    ax.plot(*zip(*at, strict=True), color=palette.COLOURS[5], lw=2)
    for step in range(0, len(at) - 1, each):
        ax.plot(*at[step], "o", color=palette.COLOURS[3])
        ax.axline(at[step], slope=-1, color=palette.GREY, lw=0.8, ls=":")
    ax.set(xlabel="values", ylabel="rows", yticks=range(10), xlim=(-0.5, ends[-1] + 0.5), ylim=(9.4, -0.4))
    ax.set_title(f"rows of {', '.join(map(str, drawn))}: {-(-(len(at) - 1) // each)} pieces of {each} steps")
    return figure


knobs.turn(path, each=(each, (3, 5, 7)), seed=(seed, (0, 1, 2)))

# %% [markdown]
# A dot is where a piece begins. The dotted lines are diagonals: on each of them all places have the same number of
# steps behind them, and the path crosses it once. Where it does is found by a binary search, as in chapter 41.
#
# A block takes a piece: 1,792 steps at least, and more if there would be more blocks than fit on the GPU.
#
# **Predict, then run.** A row of 2,000 values, 500 empty rows, and 1,084 rows of one value: how many pieces of 1,792
# steps are that?

# %%
guess = None  # pieces

steps = (2000 + 1084) + (1 + 500 + 1084)
predict(guess, -(-steps // sparse.TILE), unit="pieces")

# %% [markdown]
# A search in memory waits at each step, 22 times here. But 32 lanes can ask 32 questions at a time, and then a fifth of
# the steps is enough. In each block a warp searches where the piece begins, and another one where it ends.

# %%
show(sparse.rows_before)

# %% [markdown]
# A block brings the products of its piece to shared memory as `staged` does, up to 1,792 at a time. Call these a
# *tile*. Then a thread takes a row and adds up what the tile has of it. How many rows end in a tile, nobody knows
# before: 1,792 if they have one value, any number if they are empty. So after each round all threads are asked whether
# their row has ended. If all 256 have, there is another round.
#
# A thread takes up to 32 values of a row. Longer rows are noted down, and a warp takes each of them after the rounds.
# What the last row has in the tile, if it goes on, is carried to the next tile.
#
# A piece begins anywhere. So its first tile begins with the line of 128 bytes where its first value is, and leaves out
# what is not its own: a warp's 32 values are one line then, and not parts of two.

# %%
show(sparse.merged_kernel)

# %% [markdown]
# A thread asks where its row begins and ends before it asks for columns and values: so it waits for all of them
# together. And a piece without a value is a piece of empty rows. Its bounds say so, and no other start is read.
#
# What is open at the end of a piece is left in memory, and a last kernel adds it. A single row of all values is left
# open by every block, so a whole block adds up what is left of a row. Nothing here depends on who comes first, but for
# the order of the list of long rows, and that changes no sum. So the same call gives the same bits.
#
# How well is the work shared? We count the instructions of the words' matrix, and of one with as many rows, of 4 values
# each; in both for each value and row.
#
# **Predict, then run.** How many times as many instructions of warps for each value and row do the words take as the
# even rows, for `by_row` and for `merged`?

# %%
guess = {"by_row": None, "merged": None}  # times

mean = row.size // len(index)
x = np.ones(len(index), np.float32)
even = sparse.rows_of([mean] * len(index), len(index), np.random.default_rng(0))


def instructions(rung, matrix):
    """Of warps, for each value and row."""
    return lab.count(rung, *matrix, x).counters["warp_instructions"] / (matrix[0].size + len(index))


chosen = {"by_row": sparse.by_row, "merged": sparse.merged}
times = {name: instructions(rung, language) / instructions(rung, even) for name, rung in chosen.items()}
predict(guess, times, factor=1.3, unit="times")

# %% [markdown]
# For `by_row` it is five times, for `merged` a third more: the lengths of rows hardly decide any longer.

# %%
plots.drawn(plots.ladder, "sparse", family="poisson")

# %%
plots.drawn(plots.ladder, "sparse", family="power law")

# %% [markdown]
# The bars are shares of the roof. The dashed line is the faster library: both call cuSPARSE. For the grid the simple
# rungs `batched` and `by_row` are the fastest, `staged` is next to them, and `merged` pays for its search, and for a
# second launch that adds what pieces leave open. For the power law `by_row` is hopeless, and `merged` comes near to the
# library.
#
# What is in the way there? Columns are drawn by chance, so nearly every value asks for a sector of `x` that no other
# lane of its warp wants. The first-level cache of an H200 has at most 256 KB, a sixteenth of `x`. So for 15 values of
# 16 the second-level cache has to answer. How fast can that be at best? A kernel that reads the same, and adds up
# whatever comes, whatever row it is of, says so.

# %%
show(gathers_alone.gathers_alone_kernel)


# %%
def beside_gathers():
    kept = record.load(room="sparse")
    entries = kept.entries("sparse", family="gathers")
    if not entries:
        raise record.RecordError(f"{kept.where} has no gathers alone in room 'sparse'")
    print(", ".join(f"{e.contender} {e.median_ms * 1e3:.4g} us" for e in entries))


plots.drawn(beside_gathers)

# %% [markdown]
# That is several times what the bytes of the matrix take. Nsight Compute says why: the second-level cache takes a
# request in nearly every cycle then. A request brings up to 128 bytes, but of a sector of `x` only four are used. So no
# kernel that gathers `x` by these columns can be much faster than this one, the library's included. One that does not
# gather comes further down, under *Tiles*.
#
# What each rung left for the next one:

# %%
for rung in sparse.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## Lengths, and what is hard
#
# Now rows of one length, from 1 to 256, with 8,192 values in all. We count the instructions of warps.

# %%
LENGTHS = (1, 4, 16, 64, 256)
wide = np.ones(64, np.float32)
figure, ax = chart(3.4)
shown = (sparse.by_row, sparse.warp_per_row, sparse.team_per_row, sparse.merged)
for number, rung in enumerate(shown):
    found = []
    for length in LENGTHS:
        rows_alike = sparse.rows_of([length] * (8192 // length), 64, np.random.default_rng(0))
        found.append(32 * lab.count(rung, *rows_alike, wide).counters["warp_instructions"] / 8192)
    ax.plot(LENGTHS, found, palette.MARKERS[number], ls="-", color=palette.COLOURS[number], label=rung.name)
ax.set(xscale="log", yscale="log", xlabel="values in a row", ylabel="instructions of a lane for each value")
ax.set_xticks(LENGTHS, LENGTHS, minor=False)
ax.set_title("instructions by the length of rows")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# A warp for a row is a waste for short rows, and for long ones it takes about twice what a thread for a row takes.
# Instructions are not all: a thread for a row has few of them at any length, but it reads far apart from its
# neighbours. On a GPU the rates are these, with $2^{24}$ values and columns drawn by chance. There are as many columns
# as rows, so the longer the rows, the smaller is `x`: with 1,024 values in a row it fits the first-level cache.

# %%
plots.drawn(plots.sweep, "sparse", family="equal rows", xlabel="values in a row")

# %% [markdown]
# Three more matrices are hard on purpose: one where a single row has half of all values, one where 15 rows of 16 are
# empty, and one where all rows but one are.


# %%
def hard():
    kept = record.load(room="sparse")
    for name in ("one hub", "nearly empty", "one value"):
        entries = [e for e in kept.entries("sparse", family="hard", workload=name) if e.kind != "numpy"]
        if not entries:
            raise record.RecordError(f"{kept.where} has no matrix with {name} in room 'sparse'")
        print(f"{name}:", ", ".join(f"{e.contender} {e.median_ms * 1e3:.4g} us" for e in entries))


plots.drawn(hard)

# %% [markdown]
# With the hub only `merged` and cuSPARSE are fast. Where most rows are empty, `by_element` is the fastest: its threads
# go by values, and an empty row has none.
#
# ## Other formats
#
# So far the values lay row by row, and threads had to come to terms with that. The other way round is possible as well:
# choose how threads work, and let the values lie in the order in which they are read. That is what formats are about.
# [formats.py](../pmpp/kernels/sparse/formats.py) makes five of them on the GPU, by sorting and scanning:
#
# - *Coordinates* (COO): row by row, with the row of each value beside it, in place of the search.
# - *Compressed columns* (CSC): column by column. An element of `x` is read once, and each product is for another row.
# - *Padded rows* (ELL): the first values of all rows, then the second ones. Short rows are filled up.
# - *Hybrid*: the first few values of each row padded, the others by coordinates.
# - *Jagged diagonals* (JDS): as padded rows, with the rows in the order of their lengths. Nothing is filled up.
#
# The loop of a thread is nearly the same as in `by_row`. Only its neighbours now read neighbours.

# %%
show(formats.jagged_kernel)


# %%
def product(make, given, width):
    """The counters of a product in the format that ``make`` makes."""
    made, ones = make(*given, width), np.ones(width, np.float32)
    found = lab.count(formats.multiply, made, ones)
    assert np.allclose(found.result, sparse.reference(*given, ones), atol=1e-4)
    return found.counters


def at_work(counters):
    """The share of lanes that take part, over all instructions of all warps."""
    return counters["thread_instructions"] / (32 * counters["warp_instructions"])


# %% [markdown]
# **Predict, then run.** In which share of lanes is there work for the words, by padded and by jagged rows? All
# instructions of all warps count.

# %%
guess = {"padded": None, "jagged": None}  # percent

rows_of_words = {"padded": formats.to_padded, "jagged": formats.to_jagged}
share = {name: 100 * at_work(product(make, language, len(index))) for name, make in rows_of_words.items()}
predict(guess, share, within=0.1, unit="%")

# %% [markdown]
# Now the bytes that a warp asks for, as above, and the share of lanes at work, for each format of both matrices.

# %%
MAKERS = {
    "coordinates": formats.to_coordinates,
    "columns": formats.to_columns,
    "padded": formats.to_padded,
    "hybrid": formats.to_hybrid,
    "jagged": formats.to_jagged,
}
for name, given, width in (("grid", small, 64**2), ("words", language, len(index))):
    print(name)
    for format_name, make in MAKERS.items():
        counters = product(make, given, width)
        loads, atomics = 32 * counters["global_load_sectors"] / given[0].size, counters["atomic_lanes"]
        lanes = f"{at_work(counters):4.0%} of the lanes at work"
        print(f"  {format_name:12}{loads:6.1f} bytes a value, {lanes}, {atomics:7,} atomics")

# %% [markdown]
# For the grid, padded rows need neither staging nor searching, and hardly a place is filled up. For the words they
# would be a waste of memory and of lanes. Jagged diagonals keep more of them busy: only the longest rows are still much
# longer than the others in their warp. Hybrid rows hand just these over to atomics.
#
# On a GPU, with the grid of 2048 x 2048 points and the power law of $2^{20}$ rows:


# %%
def in_formats():
    kept = record.load(room="sparse")
    names = "poisson 2048^2", "power law 2^20 rows"
    found = {name: kept.entries("sparse", family="formats", workload=name) for name in names}
    if not any(found.values()):
        raise record.RecordError(f"{kept.where} has no other formats in room 'sparse'")
    for name, entries in found.items():
        shown = [e for e in entries if e.kind != "numpy" and e.contender != "tiled"]  # tiles come below
        times = ", ".join(f"{e.contender} {e.median_ms * 1e3:.4g} us" for e in shown)
        print(f"{name}:", times or "not measured yet", sep="\n  ")


plots.drawn(in_formats)

# %% [markdown]
# On the grid none of them is ahead of `merged`, and above, `by_row` and `batched` took less time than any of them:
# there the first-level cache already does what the order of the values is for. For the power law coordinates and hybrid
# rows come near to `merged`. Jagged diagonals are hopeless, since the longest row is still the work of one thread.
# Padded rows are missing: all of them would be as long as that one.
#
# A format must be made before it is used, with sorts and scans. That pays only over many products: a solver that
# multiplies by one matrix thousands of times can afford it. And there is a way back: `to_rows` makes compressed rows of
# each of them, `from_coordinates` of values in any order, and `from_dense` of a full matrix.
#
# ## Tiles
#
# All these formats read `x` wherever the columns say. For the power law the second-level cache runs out of requests
# then, long before memory runs out of bytes: `gathers_alone` above is nothing but these requests, and not much faster
# than `merged`. **How can a product be faster than the gathers of `x` alone?**
#
# It must not gather from memory at all. Shared memory answers 32 lanes wherever they ask, and is only slower where
# banks meet ([chapter 16](16_transpose.ipynb)). But `x` is too large for it, and so are all products. So both are cut.
#
# - A *slice* is a part of the columns, up to 32,768. The elements of `x` for it fit shared memory.
# - A *piece* is a part of the values, row by row, up to 8,192. Its products fit shared memory.
# - A *tile* has the values that a slice and a piece have in common.
#
# Values are stored slice by slice, and in a slice piece by piece. The picture has a small matrix with slices of 6
# columns and pieces of 18 values. A number says where a value is stored, and a colour of which piece it is.

# %%
SMALL_SLICE, SMALL_PIECE = 6, 18
rng, few = np.random.default_rng(4), [3, 2, 9, 0, 4, 2, 3, 11, 1, 3, 2, 4]
few_columns = np.concatenate([np.sort(rng.permutation(18)[:length]) for length in few])
few_rows = np.repeat(np.arange(12), few)
of_piece = np.arange(few_rows.size) // SMALL_PIECE
stored_at = np.argsort(np.lexsort((of_piece, few_columns // SMALL_SLICE)))

figure, ax = chart(4.2)
for place, row_, column_, piece in zip(stored_at, few_rows, few_columns, of_piece, strict=True):
    ax.text(column_, row_, str(place), ha="center", va="center", color=palette.COLOURS[(5, 3, 0)[piece]])
for border in range(SMALL_SLICE, 18, SMALL_SLICE):
    ax.axvline(border - 0.5, color=palette.GREY, lw=0.8)
ax.set(xlim=(-0.5, 17.5), ylim=(11.5, -0.5), xlabel="columns", ylabel="rows", xticks=range(0, 18, SMALL_SLICE))
ax.set(yticks=range(0, 12, 2), title="where values are stored: slice by slice, in a slice piece by piece")
ax.grid(False)
figure

# %% [markdown]
# A product has two steps, a kernel each. (A small third kernel finishes rows that go on beyond a piece.)
#
# 1. *Multiply.* A block has a share of the values of a slice, and shares are about equally large. It brings the
#    elements of `x` for the slice to shared memory. Then its threads read values and columns side by side, four of
#    each, and look up `x` in shared memory. A column in its slice needs 16 bits. Products are written where values were
#    read.
# 2. *Add.* A block takes a piece. In each slice the products of the piece are neighbours. So the block brings them to
#    shared memory, tile behind tile. They are not in the order of rows there. But for each value, row by row, 16 bits
#    say where its product is, and shared memory answers wherever one asks.
#
# Tiles are filled up to groups of four, so that a thread can load four at a time: the last value is repeated.
#
# What comes to shared memory comes by `copy_async`, as in [chapter 40](40_tensor_cores.ipynb): it needs no registers,
# and a thread does not wait for it. Meanwhile it loads what it needs next. In the first step that is its first values
# and columns, in the second one the places of its values. In the kernels `bring` starts such a copy of up to four
# numbers, and `wait` waits for all that a thread has started. (A GPU before compute capability 8.0 has no such copies.
# There `bring` loads and stores.) `quarter` takes one of the four columns of 16 bits out of a word.

# %%
show(propagation_blocking.ask)
show(propagation_blocking.multiply_kernel_for)

# %% [markdown]
# In the second step no thread has a row. Each adds up a *run* of 32 values, whatever rows they are of, so all have
# equally much to do. A word of 32 bits says which of them are the last of their rows. There the sum is left in the
# place of the last product, and a new one begins. What a thread adds up after its last row end belongs to a row that
# ends in the run of a later thread: the sums by segments of [chapter 34](34_scan.ipynb), across the block. At last the
# sums of the rows are written side by side. A row that is still open at the end of the piece is finished by the last
# kernel of `merged`.
#
# A thread loads the places of eight values at a time, 128 bits. The first eights of all runs stand side by side, then
# the second ones: so lanes load neighbours.

# %%
show(propagation_blocking.add_eight)
show(propagation_blocking.from_before)
show(propagation_blocking.add_kernel_for)

# %% [markdown]
# Products travel to memory and back, which no other version needs. So this must be more bytes.
#
# **Predict, then run.** For a value and its column, compressed rows have 8 bytes. How many bytes for each value do the
# two steps together read and write, `x`, the ends of rows and the sums left out?

# %%
guess = None  # bytes

read_and_written = {"value": 4, "column": 2, "product": 4 + 4, "place": 2}
predict(guess, sum(read_and_written.values()), factor=1.1, unit="bytes")

# %% [markdown]
# That is twice as much. But a warp that gathers asks for 32 elements of `x` in as many sectors, and uses an eighth of
# each.
#
# **Predict, then run.** A matrix has 1,024 rows of 16 values and 8,192 columns, drawn by chance. How many bytes do all
# loads from global memory ask for, for each value, by `merged` and in tiles? A slice has 4,096 columns.

# %%
guess = {"merged": None, "tiled": None}  # bytes for each value

scattered = sparse.rows_of([16] * 1024, 8192, np.random.default_rng(0))
ones = np.ones(8192, np.float32)
in_tiles = formats.to_tiled(*scattered, 8192, width_of_slice=4096)
found = lab.count(formats.multiply, in_tiles, ones)
assert np.allclose(found.result, sparse.reference(*scattered, ones), atol=1e-4)
asked = {
    "merged": asked_for(sparse.merged, scattered, ones),
    "tiled": 32 * found.counters["global_load_sectors"] / scattered[0].size,
}
predict(guess, asked, factor=1.3, unit="bytes for each value")

# %% [markdown]
# Twice the bytes of memory, and half of what is asked for; and on so small a matrix several blocks bring the same slice
# of `x`, which is counted, too. Whether bytes or requests decide, a measurement must say. Compare `tiled` with `merged`
# and with cuSPARSE, for each matrix:


# %%
def with_tiles():
    kept = record.load(room="sparse")
    found = [e for e in kept.entries("sparse", family="tiles") if e.kind != "numpy"]
    if not found:
        raise record.RecordError(f"{kept.where} has no tiles in room 'sparse'")
    for name in dict.fromkeys(entry.workload for entry in found):
        times = ", ".join(f"{e.contender} {e.median_ms * 1e3:.4g} us" for e in found if e.workload == name)
        print(f"{name}:", times, sep="\n  ")


plots.drawn(with_tiles)

# %% [markdown]
# The comparison is fair only if one says what tiles cost. cuSPARSE takes compressed rows as they are, and so does
# `merged`. Tiles must be made first: a sort of all values by their slices, and scans. The record has formats that are
# made anew for each product. What they take more than a product alone is the making. The host waits for the GPU in
# between, so the host's time is in it. They pay when they have made up for it, beside the best by compressed rows.


# %%
def until_it_pays():
    kept = record.load(room="sparse")
    for name in ("poisson 2048^2", "power law 2^20 rows"):
        times = {}
        for family in ("formats", "formats, made anew"):
            for entry in kept.entries("sparse", family=family, workload=name):
                times[family, entry.contender] = entry.median_ms
        if ("formats, made anew", "tiled") not in times:
            raise record.RecordError(f"{kept.where} has no format that is made anew for {name} in room 'sparse'")
        product = times["formats", "tiled"]
        by_rows = [times["formats", name] for name in ("merged", "torch.mv", "cupy.spmv") if ("formats", name) in times]
        making, gain = times["formats, made anew", "tiled"] - product, min(by_rows) - product
        pays = f"it pays from {making / gain:.0f} products on" if gain > 0 else "it never pays"
        print(f"{name}: to make tiles takes {making:.3g} ms, as long as {making / product:.0f} products; {pays}")


plots.drawn(until_it_pays)

# %% [markdown]
# Tiles can only pay where columns lie scattered, where `x` does not fit the first-level cache, and where the same
# matrix comes back. *Propagation blocking*, as this is called, was found for such a case: a search engine ranks the
# pages of the web by many products with one matrix. For the grid, neighbouring rows read neighbouring elements of `x`,
# so the caches answer, and the additional bytes are a loss. A small matrix has little to gain: a product in tiles takes
# one launch more, and there is work for few blocks. And where tiles have only some values, filling them up to groups of
# four makes them large.
#
# ## Many vectors at once
#
# Often the same matrix multiplies many vectors: the features of all nodes of a graph, or a batch of inputs. Side by
# side these vectors are a full matrix B with `k` columns. The BLAS for sparse matrices calls this product *SpMM*, and
# the product with one vector *SpMV*.
#
# A value and its column are 8 bytes, and now they serve `k` multiply-adds. What else is read are rows of B.

# %%
show(spmm.cost)

# %% [markdown]
# **Predict, then run.** The product of the grid's matrix with one vector has 0.19 FLOP for each byte. With 32 vectors,
# how many FLOP a byte are there?

# %%
guess = None  # FLOP a byte

predict(guess, spmm.cost(rows, rows, stored, 32).intensity, factor=1.2, unit="FLOP/B")

# %%
figure, ax = chart(3.2)
widths = 2 ** np.arange(11)
for number, (name, each) in enumerate((("grid, 5 a row", 5), ("power law, 16 a row", 16), ("100 a row", 100))):
    intensity = [spmm.cost(2**20, 2**20, each * 2**20, int(k)).intensity for k in widths]
    ax.plot(widths, intensity, palette.MARKERS[number], ls="-", color=palette.COLOURS[number], label=name)
ridge = h200.fp32 / h200.bandwidth
ax.axhline(ridge, color=palette.COLOURS[5], ls="--", label="ridge of an H200")
ax.set(xscale="log", yscale="log", xlabel="columns of B", ylabel="FLOP a byte")
ax.set_title("Arithmetic for each byte, if each byte is read once")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# The curves bend where reading B and writing the result become most of the work. In the limit a row of `n` values gives
# 2 `n` FLOP for 8 bytes, four of an element of B and four of the result, and columns no longer count. So a sparse
# product stays bound by memory for any number of vectors, unless rows are long.
#
# This counts each row of B once. A row of B is asked for by as many values as there are in its column, and caches may
# have lost it in between: then more is read.
#
# ### Who takes which element
#
# There are now two directions for neighbours: neighbouring rows, or neighbouring columns. The first is the product with
# a vector, for each column.

# %%
show(spmm.column_by_column_kernel)

# %% [markdown]
# **Predict, then run.** `across_lanes` lets neighbouring threads take neighbouring columns of one row. For the grid and
# 32 columns, how many times as many sectors does `column_by_column` load?

# %%
guess = None  # times

b = np.random.default_rng(0).standard_normal((32**2, 32), dtype=np.float32)
points = sparse.poisson(32)
loaded = {
    rung.name: lab.count(rung, *points, b).counters["global_load_sectors"]
    for rung in (spmm.column_by_column, spmm.across_lanes)
}
predict(guess, loaded["column_by_column"] / loaded["across_lanes"], factor=1.3, unit="times")

# %% [markdown]
# In B the rows of neighbouring points lie 128 bytes apart, so 32 lanes ask for 32 sectors, and use an eighth of each.
# Their values and columns of A lie five apart, which is another 20 sectors for each of the two. With neighbouring
# columns a warp asks for four sectors of B. All lanes need the same value of A and the same column: one sector each.
# That is 72 against 6.
#
# ### Exercise: neighbours take columns

# %%
exercise("sparse/dense")


# %%
@cuda.jit
def dense(values, columns, starts, b, out):
    pass  # your code


check("sparse/dense", dense)

# %% [markdown]
# Still a lane has three loads for one multiply-add. `vectorised` gives it four columns, in a vector of 128 bits: three
# loads for four. A *team* of lanes has a row, 8 lanes for 32 columns, and a warp has four teams.

# %%
show(spmm.vectorised_kernel)

# %% [markdown]
# For the words this is as unfair as `by_row` was: a team with a long row still works when all others have ended. So
# `balanced` cuts rows and values into equal pieces, as `merged` does, and a warp takes a piece. A kernel of its own
# searches for all of them. Of the rows that end in its 128 values each team takes one. The row that is still open is
# shared by all teams, each with every fourth of its values, and what they have is added across the teams when it ends.
# If B has a single column, it is a vector, and `balanced` leaves it to `merged`.

# %%
plots.drawn(plots.ladder, "spmm", family="poisson")

# %%
plots.drawn(plots.ladder, "spmm", family="power law")

# %% [markdown]
# The bars are for 32 columns. For the grid `vectorised` is the fastest, and `balanced` pays for its search. For the
# power law only `balanced` is ahead of the library. The next figures show rates over the number of columns: the least
# bytes, divided by the time.

# %%
plots.drawn(plots.sweep, "spmm", family="poisson", xlabel="columns of B")

# %%
plots.drawn(plots.sweep, "spmm", family="power law", xlabel="columns of B")

# %% [markdown]
# ## What such a product is for
#
# Two spots of a plate are heated and cooled, and its border is kept at 0. The temperatures `t` fulfil A t = b, where A
# is Poisson's matrix and b the heat. Nobody inverts A: its inverse is full of numbers. Instead one goes step by step
# along *conjugate* directions, and each step is a product with A and some sums and updates of vectors
# (`solve` in [conjugate_gradient.py](../pmpp/kernels/sparse/conjugate_gradient.py)).
#
# How far to go in a step is the quotient of two sums over all points. If it came back to the host, the GPU would wait
# in each step. So a kernel leaves a sum for each of its 256 blocks, and every block of the next kernel adds these 256
# up for itself.

# %%
show(conjugate_gradient.advance_kernel)


# %%
def plate(side):
    heat = np.zeros((side, side), np.float32)
    heat[side // 4, side // 4], heat[side // 2, 3 * side // 4] = 1, -1
    return sparse.poisson(side), heat


steps_of = {}
for side in (6, 12):
    matrix, heat = plate(side)
    steps_of[side] = conjugate_gradient.solve(*matrix, heat.ravel(), tolerance=1e-4, every=1).steps
print(*(f"{side} x {side}: {steps} steps" for side, steps in steps_of.items()), sep="\n")

# %% [markdown]
# **Predict, then run.** How many steps does a plate of 48 x 48 take?

# %%
guess = None  # steps

matrix, heat = plate(48)
solved = conjugate_gradient.solve(*matrix, heat.ravel(), tolerance=1e-4, every=1)
predict(guess, solved.steps, factor=1.2, unit="steps")

# %%
figure, ax = chart(3.6)
picture = ax.imshow(device.to_host(solved.x).reshape(heat.shape), cmap="RdBu_r")
figure.colorbar(picture, label="temperature")
ax.set(xticks=[], yticks=[], title=f"48 x 48, error {solved.error:.1e} after {solved.steps} steps")
figure

# %% [markdown]
# Heat is red and cold is blue, and both fade towards the border. The steps grow with the side of the plate: in one step
# a point learns of its neighbours alone, so news from one border needs as many steps as there are points to the other.
# Multigrid methods and preconditioners are about that.
#
# ## Memory or arithmetic?

# %%
plots.drawn(plots.roofline, "sparse", family="poisson")

# %% [markdown]
# All versions lie at the same 0.2 FLOP a byte, far to the left of the ridge: an H200 could do nearly eighty times as
# much arithmetic with each byte. So what counts is bytes, and whether they are asked for in time. SciPy, on one core of
# the CPU, has the same bound with another bandwidth:

# %%
plots.drawn(plots.cpu_gpu, "sparse", family="poisson", xlabel="rows of the matrix")

# %% [markdown]
# ## What to take along
#
# A sparse product is bound by memory, and how well it reads decides. Whoever gives threads whole rows lets the data
# decide how long each thread works. Reading and adding can be separated: bring what lies side by side to shared memory,
# whatever row it is of, and look at rows there. And if steps of both kinds count as work, adding and finishing, the
# work can be cut into equal pieces anywhere. A cut goes through rows, so the pieces must be put together again, in an
# order that does not depend on chance.
#
# ## Exercises
#
# Three stand above. The fourth is the product with the transposed matrix, which no one has stored.

# %%
exercise("sparse/transposed")


# %%
@cuda.jit
def transposed(values, columns, starts, x, out):
    pass  # your code


check("sparse/transposed", transposed)

# %% [markdown]
# ### More, without a check
#
# - With how many values in a row would a product with very many vectors no longer be bound by memory?
# - Why are products, and not values, brought to shared memory?
# - When is it worth while to sort the rows by length once, before thousands of products?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def starts_answer(row, starts):
    j = cuda.grid(1)
    if j <= row.size:
        first = row[j - 1] + 1 if j > 0 else 0
        last = row[j] if j < row.size else starts.size - 1
        for r in range(first, last + 1):
            starts[r] = j


assert check("sparse/starts", starts_answer)

# %% [markdown]
# *Where rows start.* Thread *j* writes all rows that start at *j*: those behind the row of the value before, up to its
# own row. Most threads write none or one. The last thread has no value, and writes the rows behind the last one that
# has some.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def ell_answer(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            column = columns[k, row]
            if column >= 0:
                total += values[k, row] * x[column]
        out[row] = total


assert check("sparse/ell", ell_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def dense_answer(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


assert check("sparse/dense", dense_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def transposed_answer(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[row])


assert check("sparse/transposed", transposed_answer)

# %% [markdown]
# *The transposed product.* Its rows are the columns here, and they lie scattered. So each product is added to its place
# by an atomic. Who needs this product often stores the matrix by compressed columns as well (CSC).
#
# *Very many vectors.* In the limit `n` values in a row are 2 `n` FLOP for 8 bytes. An H200 has about 15 FLOP for each
# byte, so 60 values in a row are enough, if every row of B is read once only. Where the columns are drawn by chance it
# is read for each value anew, and then there are 2 FLOP for 4 bytes, whatever the rows.
#
# *Products.* A product needs the value and the column, which are read side by side. If values were brought alone, the
# thread that adds up a row would have to look at `columns` and `x` by itself, far from its neighbours again.
#
# *Sorting.* Sorted rows make neighbours alike, so a warp of `by_row` no longer waits for one long row. The order must
# be found once, and the result has to be put back in each product. A solver that multiplies by one matrix thousands of
# times can afford it.
#
# Go on with [chapter 45](45_graphs.ipynb), on searches whose steps decide what the next ones do.
