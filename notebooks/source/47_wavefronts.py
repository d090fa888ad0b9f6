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
# # 47. Wavefronts
#
# *Anti-diagonals, tiles that wait for tiles, a table in registers, words that say whether they are ready, shortest
# paths in three phases. Read chapters [12](12_matmul.ipynb), [16](16_transpose.ipynb), [30](30_reduction.ipynb) and
# [34](34_scan.ipynb) before. 80 minutes. PMPP 4e: none; 5e: chapter 16. The code is
# [pmpp/kernels/wavefront/alignment.py](../pmpp/kernels/wavefront/alignment.py) and
# [pmpp/kernels/wavefront/shortest_paths.py](../pmpp/kernels/wavefront/shortest_paths.py).*
#
# How alike are two texts? A biologist asks that of two strands of DNA, and a programmer of two versions of a file. How
# far is it from each town to each other? Both questions are answered by *dynamic programming*: a table is filled, in
# which each cell is made of others. So far, all elements of a result could be computed at the same time. Here each cell
# waits for its neighbours.
#
# **The questions of this chapter: what can be done at the same time if everything waits? And when it can, what is the
# bound?**

# %%
import difflib
import inspect
import textwrap

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.wavefront import align, alignment, distances, roofs, shortest_paths
from pmpp.kernels.wavefront.traceback import table_of
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Two texts
#
# An *alignment* puts two texts one above the other, with gaps where that makes more letters equal. It gets 2 points for
# two equal letters, -1 for two different ones, and -1 for a letter above or below a gap. A *local* alignment takes the
# best piece of each text.


# %%
def drawn(found, first, second):
    """The two rows of an alignment."""
    for places, text in ((found.a, first), (found.b, second)):
        print(" ".join(text[place] if place >= 0 else "-" for place in places))


def letters(text):
    return np.frombuffer(text.encode(), np.uint8)


drawn(align(letters("wavefront"), letters("a waterfront")), "wavefront", "a waterfront")

# %% [markdown]
# **Predict, then run.** What is the score of this alignment?

# %%
guess = None  # points

best = align(letters("wavefront"), letters("a waterfront"))
predict(guess, best.score, unit="points")

# %% [markdown]
# Eight letters are equal, one pair is not, and one letter has no partner.
#
# A letter need not be a letter. The standard library has two functions that resemble each other, and each of their
# lines can be a letter. The alignment says what the two have in common, and in which order.


# %%
def lines_of(function):
    return textwrap.dedent(inspect.getsource(function).partition('"""')[2].partition('"""')[2]).splitlines()


texts = [[line for line in lines_of(f) if line.strip()] for f in (difflib.unified_diff, difflib.context_diff)]
kinds = {line: kind for kind, line in enumerate(dict.fromkeys(texts[0] + texts[1]))}
numbers = [np.array([kinds[line] for line in text], np.uint8) for text in texts]
common = align(*numbers, 2, -1, -1, False)
both = [(i, j) for i, j in zip(common.a, common.b, strict=True) if i >= 0 and j >= 0 and texts[0][i] == texts[1][j]]
print(f"{len(texts[0])} and {len(texts[1])} lines, {len(both)} of them side by side and equal:")
print(*(texts[0][i] for i, _ in both[:6]), sep="\n")

# %% [markdown]
# ## The table
#
# The best score of the first *i* letters of one text and the first *j* of the other is made of three neighbours. Either
# the last two letters stand side by side, and the cell up and to the left counts. Or one of them has a gap, and the
# cell above or the cell on the left counts. In a local alignment no cell is less than 0: a piece may begin anywhere.

# %%
show(alignment.reference)

# %%
table = table_of(letters("wavefront"), letters("a waterfront")).copy_to_host()
figure, ax = chart(3.6)
ax.imshow(table, cmap="Blues")
for (i, j), score in np.ndenumerate(table):
    ax.text(j, i, score, ha="center", va="center", fontsize=8, color="white" if score > 8 else "black")
path = [(i + 1, j + 1) for i, j in zip(best.a, best.b, strict=True) if i >= 0 and j >= 0]
ax.plot([j for _, j in path], [i for i, _ in path], "o", mfc="none", ms=14, color=palette.COLOURS[3])
ax.set_xticks(range(1, 13), "a waterfront")
ax.set_yticks(range(1, 10), "wavefront")
ax.set_title("the table of two words, and the letters of the best alignment")
figure

# %% [markdown]
# Chapter 34 had a chain as well, a running sum, and an associative operator broke it. Here a cell takes the greatest of
# three, of which two are not known before. But look at cells that lie on one *anti-diagonal*, where *i + j* is the
# same: none of them needs another. Their neighbours are on the two anti-diagonals before. So the work runs through the
# table as a wave, from the upper left to the lower right.
#
# **Predict, then run.** Two texts have 4,096 letters each. If a step computes all cells of one anti-diagonal, how many
# cells does the mean step compute?

# %%
guess = None  # cells

m = n = 4096
predict(guess, m * n / (m + n - 1), factor=1.1, unit="cells")

# %% [markdown]
# An H200 has 132 multiprocessors that work on 128 lanes each, 16,896 together, and wants several threads for each lane
# to hide waiting. A mean step of such a pair fills an eighth of the lanes. This is no fault of a kernel: the definition
# is so.
#
# ## The bound
#
# A cell takes three additions and three maxima, and one more maximum for the best score. The texts are short, and
# nobody asks for the table. So arithmetic is the bound, and it is no floating point.

# %%
show(alignment.cost)

# %% [markdown]
# **Predict, then run.** How many integer operations are there for each byte that must be moved, for two texts of 256
# letters?

# %%
guess = None  # operations a byte

predict(guess, alignment.cost(256, 256).intensity, factor=1.2, unit="operations a byte")

# %% [markdown]
# How fast is the GPU at this? The rate of multiply-adds says nothing of integers. We measure it: eight chains a thread,
# each an addition and a maximum again and again, and nothing else. Hopper GPUs have one instruction for the two, made
# for tables like ours.

# %%
show(roofs.max_add_kernel)


# %%
def recorded(room, family, workload):
    """What the record says of a workload, beside the roof that was measured with it."""
    try:
        entries = record.load(room=room).entries(room, family=family, workload=workload)
        roof = next(entry for entry in entries if entry.contender.startswith("cuda."))
        for entry in (one for one in entries if one.kind != "numpy"):
            print(f"{entry.contender:14} {entry.median_ms:9.4g} ms, {roof.seconds / entry.seconds:6.1%} of the roof")
    except (record.RecordError, StopIteration) as missing:
        said = str(missing).partition(" has ")[2].partition(";")[0] or str(missing)
        print("not measured yet:", said or "this workload")


recorded("alignment", "pairs", "100,000 x 256^2")

# %% [markdown]
# The line `cuda.max_add` is the roof: as many additions and maxima as the definition has, without a table.
#
# ## Rung 1: `by_diagonal`
#
# A launch computes one anti-diagonal, and a thread one cell. A launch begins when the one before has ended, and that is
# all the order that we need. Of the table only three diagonals are kept.

# %%
show(alignment.by_diagonal_kernel)

# %% [markdown]
# **Predict, then run.** How many launches does a pair of 4,096 x 4,096 take, with the borders of the table?

# %%
guess = None  # launches

predict(guess, m + n + 1, unit="launches")

# %% [markdown]
# A launch takes some microseconds, even if there is one cell to compute. And each cell is written to memory, read three
# times, and forgotten.
#
# ### Exercise: the edit distance
#
# The distance of two texts by letters put in, taken out and changed is the same table with other numbers.

# %%
exercise("wavefront/diagonal")


# %%
@cuda.jit
def diagonal(a, b, before, last, now, number):
    pass  # your code


check("wavefront/diagonal", diagonal)

# %% [markdown]
# ## Rung 2: `tiled`
#
# Cut the table into tiles of 64 x 64 cells. A tile needs the row above it, the column on its left, and a corner: so
# tiles wait for one another exactly as cells do. A launch computes all tiles on one diagonal. Inside, a block goes
# through the anti-diagonals of its tile in shared memory, with a barrier after each.

# %%
tile = 4


def waves(tile):
    cells = np.add.outer(np.arange(16) // tile, np.arange(20) // tile)
    figure, ax = chart(2.8)
    ax.imshow(cells, cmap="viridis")
    for (i, j), number in np.ndenumerate(cells):
        ax.text(j, i, number, ha="center", va="center", fontsize=7, color="white" if number < 5 else "black")
    ax.set(xticks=[], yticks=[], title=f"in which launch a cell is computed, with tiles of {tile} x {tile}")
    return figure


knobs.turn(waves, tile=(tile, (1, 2, 4)))

# %%
show(alignment.tiled_kernel)

# %% [markdown]
# Rows of the tile are 66 words apart. Two neighbours on an anti-diagonal are then 65 words apart, an odd number, so a
# warp's accesses lie in 32 different banks. With rows of 65 words, which is enough for the cells, they would be 64
# apart and meet in one bank: the pitch that helps columns in [chapter 16](16_transpose.ipynb) is the wrong one here.
#
# **Predict, then run.** A tile takes 127 steps of 64 threads. In which share of them does a thread have a cell?

# %%
guess = None  # percent

side = alignment.TILE
predict(guess, 100 * side * side / ((2 * side - 1) * side), unit="percent")

# %% [markdown]
# Half of the threads wait on average, for the wave must run in and out of every tile. And each step ends at a barrier.
#
# ### Exercise: a whole table in a block
#
# The longest common subsequence of two texts is a table, too. Here a block computes it alone.

# %%
exercise("wavefront/subsequence")


# %%
@cuda.jit
def subsequence(a, b, out):
    pass  # your code


check("wavefront/subsequence", subsequence)

# %% [markdown]
# ## Rung 3: `in_registers`
#
# Who needs a cell? The thread of the row below, one step later, and the same thread, for its next column. The second
# need is met by a register. For the first, a warp has shuffles, which need no barrier and no memory. The thread below
# also keeps the cell for one more step, as the corner of its next column.
#
# So a warp takes a *strip* of the table, and a lane eight rows of it. In each step a lane computes its eight cells of
# one column, one column behind the lane above. Only its last cell goes to the lane below.

# %%
show(alignment.column_of)

# %% [markdown]
# The order inside a column matters. A cell waits for the one above it, and that chain is as long as the lane has rows.
# So all that does not depend on the cell above comes first, and the chain is one addition and one maximum a cell, a
# single instruction. All others can run beside it.
#
# The steps of a warp need some care at the border. Lane 0 has no lane above it: it takes what the strip above has left.

# %%
show(alignment.next_columns)

# %% [markdown]
# Why the mask? It would be natural to write `if lane == 0`. But whether a lane is lane 0 never changes in this loop, so
# the compiler makes two loops of it: one for lane 0 and one for the others. Each has its own shuffle instructions, and
# lanes that are at different instructions exchange nothing. We have seen this in the compiler's output. A number that
# came out of a shuffle is unknown to the compiler, and a calculation with it is no branch.
#
# **Predict, then run.** A warp computes a tile of 256 x 256 cells, in groups of 32 steps. In which share of its steps
# does a lane have a column?

# %%
guess = None  # percent

steps = 32 * -(-(256 + 31) // 32)
predict(guess, 100 * 256 / steps, unit="percent")

# %% [markdown]
# How much is done for a cell? We count instructions of warps in the interpreter, for two texts of 256 and 200 letters.
#
# **Predict, then run.** How many instructions of a lane does a cell take, in `tiled` and in `in_registers`?

# %%
guess = {"tiled": None, "in_registers": None}  # instructions

rng = np.random.default_rng(47)
a, b = (rng.integers(0, 4, size).astype(np.uint8) for size in (256, 200))
counted = {rung.name: lab.count(rung, a, b) for rung in (alignment.tiled, alignment.in_registers)}
needed = {name: 32 * found.counters["warp_instructions"] / (256 * 200) for name, found in counted.items()}
predict(guess, needed, factor=1.5, unit="instructions")

# %%
for name, found in counted.items():
    shown = ("barriers", "shared_load_requests", "inst_shuffle")
    print(f"{name:13}", *(f"{counter} {found.counters[counter]:,}" for counter in shown), sep="  ")

# %% [markdown]
# No barrier is left, and nothing goes through shared memory.
#
# ## Rung 4: `one_launch`
#
# A diagonal of tiles still takes a launch, and a tile still begins with a wave that runs in. Let a warp keep its strip
# to the last column, then there is one beginning for each strip. The strip below may start as soon as some columns are
# ready. It only has to know when.
#
# [Chapter 34](34_scan.ipynb) has the means. A word of 64 bits holds a number and, in its other half, which strip has
# written it. Who reads the word sees both or neither. A reader that finds an older strip's name asks again. As soon as
# it has read the word, its own strip's number can take the place: so one word for each column is enough.

# %%
show(alignment.one_launch_kernel)

# %% [markdown]
# Warps take their strips by a ticket, in the order in which they begin to run. So a strip waits only for a warp that is
# running already. If blocks took strips by their block number, all multiprocessors might be full of warps that wait for
# one that has no place.
#
# All strips of a pair ask for the same words, and atomics at one place are done one after another. A short text beside
# one of a million letters makes thousands of strips, and the next in turn would get its answer after all the others. So
# a strip that sees how many strips are before it sleeps first, the longer the more there are, and asks again then.
#
# **Predict, then run.** Two texts have 65,536 letters each. How many warps work at the same time, at most?

# %%
guess = None  # warps

predict(guess, 65536 // alignment.STRIP, unit="warps")

# %% [markdown]
# That is two for each multiprocessor, and a multiprocessor can have 64. A single pair of texts is not enough, not even
# of this length. Many pairs are: a text of up to 256 letters is one strip, so a warp takes a pair and waits for nobody.
# That is how such tables are used, a new sequence against a hundred thousand known ones.
#
# ## Rung 5: `many_pairs`
#
# With 256 columns a strip is soon over, and a ninth of its steps was for the wave to run in. The wave is as long as a
# warp has lanes. So let half a warp take a pair, and a lane 16 rows: the strip is as high as before, and the wave half
# as long. What a step costs beside its cells, four shuffles and the choice of the first lane, now serves twice as many.
# For texts of up to 64 letters four lanes are enough, so a warp computes eight pairs.

# %%
show(alignment.many_pairs_kernel)

# %% [markdown]
# **Predict, then run.** In which share of its steps does a lane have a column now, for texts of 256 letters? Steps come
# in groups of 16.

# %%
guess = None  # percent

half = alignment.team_for(256)
predict(guess, 100 * 256 / (half * -(-(256 + half - 1) // half)), factor=1.02, unit="percent")

# %%
plots.drawn(plots.ladder, "alignment", family="pairs")

# %% [markdown]
# The bars stand on the roof of multiply-adds, which does not count here. The one that counts is the line of
# `cuda.max_add`. Two steps are great. With tiles the table stays out of memory, and with registers there is no barrier,
# and no load for a cell.
#
# What is left of that roof? We have read the machine code of `many_pairs` for an H200, which `kernel.inspect_sass()`
# prints. It has five and a half instructions for a cell, and some more for a step of 16 cells. The interpreter counts
# more for a cell, since it counts every operation of the source. Three of the instructions are additions with a
# maximum. Half a one is for the best score, since one instruction takes the greatest of three. The other two compare
# two letters and choose the score, which the definition does not count. So no kernel of this kind comes beyond 3.5 of
# 5.5 parts of the roof, which are 64 %. How much of it `many_pairs` reaches is printed above.
#
# One pair of texts alone uses little of the GPU, but more of it the longer the texts are:

# %%
plots.drawn(plots.sweep, "alignment", family="one pair", xlabel="letters of each text")

# %%
for pairs in ("100,000 x 256^2", "10,000 x 1000^2", "1,000,000 x 32^2"):
    print(pairs)
    recorded("alignment", "pairs", pairs)

# %% [markdown]
# What each rung left for the next one:

# %%
for rung in alignment.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# One way to go on is left out here. Hopper GPUs add and compare *two* numbers of 16 bits in one instruction, and a
# score of two short texts fits into 16 bits. Numba has no type for such a pair, so it would take instructions of PTX,
# as tensor cores did in [chapter 40](40_tensor_cores.ipynb).
#
# ## Shortest paths
#
# The second table has no diagonal. A graph is given by the length of the edge from each vertex to each other, infinity
# where there is none. In the beginning a path may have no stop. Then vertex 0 is allowed as a stop, then vertex 1, and
# so on: when *k* is allowed, a path from *i* to *j* either does not stop there, or it goes to *k* and on. This is the
# algorithm of Floyd and Warshall.

# %%
show(shortest_paths.reference)

# %% [markdown]
# Here is a graph that everybody with scikit-learn has. Its vertices are handwritten digits, 8 x 8 pixels each. Each is
# joined to the five that are most like it, and the length of an edge is how much they differ. A path is a way to turn
# one digit into another in small steps.

# %%
images, labels = data.digits()
images, labels = images[:96], labels[:96]
apart = np.sqrt(((images[:, None] - images) ** 2).sum(axis=(2, 3))).astype(np.float32)
near = np.argsort(apart, axis=1)[:, 1:6]
weights = np.full(apart.shape, np.inf, np.float32)
rows = np.repeat(np.arange(96), 5)
weights[rows, near.ravel()] = weights[near.ravel(), rows] = apart[rows, near.ravel()]
d = device.to_host(distances(weights))
print(f"{np.isfinite(weights).sum()} edges; {np.isfinite(d).mean():.0%} of all pairs are joined by a path")


# %%
def stops(start, end):
    """The vertices of a shortest path, found from its end: the one before makes up for the rest of the way."""
    path = [end]
    while path[-1] != start:
        here = path[-1]
        rest = np.where(np.arange(96) == here, np.inf, d[start] + weights[:, here])
        path.append(int(rest.argmin()))
    return path[::-1]


ones = np.flatnonzero(labels == 1)
far = np.where(np.isfinite(d[ones[0]]), d[ones[0]], -1).argmax()
found = stops(ones[0], far)
figure, axes = plt.subplots(1, len(found), figsize=(0.9 * len(found), 1.2), layout="constrained")
for ax, vertex in zip(axes, found, strict=True):
    ax.imshow(images[vertex], cmap="gray_r")
    ax.set(xticks=[], yticks=[], title=labels[vertex])

# %% [markdown]
# The picture is the longest of the shortest paths that begin at the first 1: small changes that lead to another digit.
#
# With *k* as a stop, row *k* and column *k* of the table are read by everybody, and they do not change: the way from
# *k* to *k* is 0. All other elements may change in a step, in any order. So a step can work in place, if nobody writes
# that row and column.
#
# ### Exercise: one more stop

# %%
exercise("wavefront/stop")


# %%
@cuda.jit
def stop(d, row, k):
    pass  # your code


check("wavefront/stop", stop)

# %% [markdown]
# ## Rung 1: `by_vertex`

# %%
show(shortest_paths.by_vertex_kernel)

# %% [markdown]
# **Predict, then run.** For 8,192 vertices the matrix has 256 MiB, more than any cache. A launch reads and writes it
# once. How many milliseconds do 8,192 launches take at least, with the H200's published bandwidth?

# %%
guess = None  # ms

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
predict(guess, 8192 * 2 * 4 * 8192**2 / h200.bandwidth * 1e3, factor=1.2, unit="ms")

# %% [markdown]
# In that time the H200 could do the $2 n^3$ additions and minima many times over. So memory is the bound of this rung.
# It need not be that of the problem, which has no more than $8 n^2$ bytes to move.
#
# ## Rung 2: `blocked`
#
# To pass over the matrix less often, 32 stops must be allowed in one pass. That is not as easy as it sounds: a path may
# wander among the 32. So the 32 are completed first, in three phases.

# %%
number = 2


def phases(number):
    which = np.full((6, 6), 3)
    which[number], which[:, number], which[number, number] = 2, 2, 1
    figure, ax = chart(2.8)
    ax.imshow(which, cmap="viridis_r")
    for (i, j), phase in np.ndenumerate(which):
        ax.text(j, i, phase, ha="center", va="center", color="white" if phase > 1 else "black")
    ax.set(xticks=[], yticks=[], title=f"tiles of 32 x 32, and the phase of each, when the stops of tile {number} come")
    return figure


knobs.turn(phases, number=(number, (0, 2, 5)))

# %% [markdown]
# 1. The tile on the diagonal: all paths that stay among the 32. Here the stops come one after another.
# 2. Its row and its column: paths that begin or end among the 32. The part among them is complete, so all 32 stops can
#    be tried at once, on the tile as it was.
# 3. All other tiles: a path goes to one of the 32, along a column tile, and on along a row tile. Both are complete.

# %%
show(shortest_paths.through)
show(shortest_paths.panels_kernel)
show(shortest_paths.rest_kernel)

# %% [markdown]
# The third phase is nearly all of the work, and it looks like a product of matrices: sums in place of products, and
# minima in place of sums.
#
# **Predict, then run.** With 2,048 vertices, which share of all tiles is in the third phase?

# %%
guess = None  # percent

across = 2048 // shortest_paths.SIDE
predict(guess, 100 * (across - 1) ** 2 / across**2, factor=1.02, unit="percent")

# %% [markdown]
# ## Rung 3: `in_pieces`
#
# What comes next is known from [chapter 12](12_matmul.ipynb). A thread that computes one element loads two numbers from
# shared memory for each addition. With 8 x 8 elements in registers, 16 loads serve 64 additions. And 64 stops at a time
# halve the trips of the matrix through memory once more.

# %%
show(shortest_paths.wide_rest_kernel)

# %% [markdown]
# **Predict, then run.** For 128 vertices, how many requests of a warp to shared memory does `blocked` make in its third
# phase, as a multiple of those of `in_pieces`? A round of the first has 9 of 16 tiles in that phase, and one of the
# second all of them.

# %%
guess = None  # times

full = rng.random((128, 128), dtype=np.float32)


def requests(rung, kernel):
    reports = lab.count(rung, full).reports
    return sum(one.counters["shared_load_requests"] for one in reports if one.kernel == kernel)


many = requests(shortest_paths.blocked, "rest_kernel")
few = requests(shortest_paths.in_pieces, "wide_rest_kernel")
predict(guess, many / few, factor=1.3, unit="times")

# %% [markdown]
# ## Rung 4: `by_fours`
#
# An addition and a minimum are two instructions, and a scheduler issues one in a cycle. Minima are done at half the
# rate of additions: a minimum in every second cycle, an addition between, and no cycle is left. So whatever else a
# kernel does, it does instead. In the machine code of `in_pieces` 16 loads and 8 instructions around them stand beside
# 64 pairs of an addition and a minimum. Another 270 bring the numbers for 16 vertices to shared memory. Most of these
# compute addresses and test for borders.
#
# If a thread's rows and columns lie in fours, side by side, one load of 128 bits brings four numbers. For that each row
# of the matrix must begin at a multiple of 16 bytes. Why not give the matrix as many more vertices, without edges, as
# its last tiles have room for? Then no element needs a test either. And 128 vertices come together, which halves the
# trips of the matrix through memory, and makes all tiles of one size: one kernel serves for two phases.

# %%
show(shortest_paths.allow)
show(shortest_paths.by_fours_kernel)

# %% [markdown]
# **Predict, then run.** How many requests to shared memory has a tile of 128 x 128, for 64 vertices, in `by_fours` for
# every hundred in `in_pieces`?

# %%
guess = None  # of a hundred

larger = rng.random((129, 129), dtype=np.float32)  # a tile more in each direction
tiles = 2 * 3  # in two rounds: one of the pivot's row, one of its column, and one of the rest
of_fours = sum(one.counters["shared_load_requests"] for one in lab.count(shortest_paths.by_fours, larger).reports
               if one.kernel == "by_fours_kernel") / tiles / 2  # for 64 of 128 vertices  # fmt: skip
predict(guess, 100 * of_fours / (few / 2), factor=1.2, unit="of a hundred")

# %%
recorded("shortest_paths", "random graph", "8192")
recorded("shortest_paths", "random graph", "1024")

# %%
plots.drawn(plots.ladder, "shortest_paths")

# %% [markdown]
# The line `cuda.add_min` is the roof here: as many additions and minima of float32, in registers. A multiprocessor does
# half as many minima a cycle as additions, so this roof is lower than that of multiply-adds, on which the bars of the
# figure stand.
#
# With 1,024 vertices the three rungs with tiles are close together, and reach a tenth of the roof or less. The first
# phase is a single block, in which the vertices of a tile come one after another. That makes 1,024 steps in all,
# however large the tiles are. And what larger tiles gain for each addition, `in_pieces` and `by_fours` lose here: this
# matrix has only 64 tiles of 128 x 128, for 132 multiprocessors.
#
# ## Memory or arithmetic?

# %%
plots.drawn(plots.roofline, "shortest_paths")

# %% [markdown]
# By the least work of the definition all rungs stand at the same intensity, far to the right. What the algorithm of
# `by_vertex` moves is far more: its bound is memory, and so it lies far below the roof. The bound of the blocked ones
# is arithmetic. `blocked` stays far below that roof, since it loads two numbers from shared memory for each addition.
# The two with tiles in registers reach more than half of what `cuda.add_min` does, and about a third or less of the
# roof in the figure, which is that of multiply-adds.
#
# The CPU has the same table to fill. SciPy does it in compiled code, cell by cell. NumPy takes one vertex after another
# as a stop, and computes the whole table for it with two calls. It needs less time than SciPy.

# %%
plots.drawn(plots.cpu_gpu, "shortest_paths", xlabel="vertices")

# %% [markdown]
# For an alignment NumPy computes one anti-diagonal after another, each with a few calls. The GPU's times leave out the
# copies between CPU and GPU.

# %%
plots.drawn(plots.cpu_gpu, "alignment", family="one pair", xlabel="letters of each text")

# %% [markdown]
# ## What to take along
#
# A table in which cells wait is computed along the front of those that wait no longer. The length of a front is how
# much can be done at the same time, and the number of fronts is the number of steps. Tiles wait as cells do, so the
# same wave runs through tiles, with fewer steps that cost something. What neighbours tell each other belongs into
# registers and shuffles, and what strips tell each other into words that say whether they are ready. If one table has
# too little to do, compute many.
#
# An order that the definition gives can often be loosened: up to 128 stops are allowed at once, if the few elements
# that everything depends on are completed first.
#
# ## Exercises
#
# The three stand above.
#
# ### More, without a check
#
# - Why does a lane have eight rows, and not one or sixty-four?
# - How would you find where the best local alignment ends, without keeping the table?
# - What does the diagonal of the result say about a graph with weights below 0?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def diagonal_answer(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            aside = before[i - 1] + (a[i - 1] != b[j - 1])
            now[i] = min(aside, min(last[i - 1], last[i]) + 1)


assert check("wavefront/diagonal", diagonal_answer)

# %% [markdown]
# *The edit distance.* A minimum takes the place of the maximum, and the borders count letters. What waits for what is
# as before.


# %% jupyter={"source_hidden": true} tags=["answer"]
BUFFERS, WIDTH = 3, 64


@cuda.jit
def subsequence_answer(a, b, out):
    lengths = cuda.shared.array((BUFFERS, WIDTH), np.int32)
    pair, i, m, n = cuda.blockIdx.x, cuda.threadIdx.x, a.shape[1], b.shape[1]
    for step in range(m + n + 1):
        j = step - i
        if i <= m and 0 <= j <= n:
            length, last = 0, (step + 2) % BUFFERS
            if i > 0 and j > 0:
                same = a[pair, i - 1] == b[pair, j - 1]
                longer = lengths[(step + 1) % BUFFERS, i - 1] + 1
                length = longer if same else max(lengths[last, i - 1], lengths[last, i])
            lengths[step % BUFFERS, i] = length
            if i == m and j == n:
                out[pair] = length
        cuda.syncthreads()


assert check("wavefront/subsequence", subsequence_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def stop_answer(d, row, k):
    j, i = cuda.grid(2)
    if j < d.shape[1] and j != k:
        d[i, j] = min(d[i, j], d[i, k] + row[j])


assert check("wavefront/stop", stop_answer)

# %% [markdown]
# *One more stop.* Vertex *k* is left out. Its distance would not change, but to write what is there already is a write,
# and others read at the same time.
#
# *Eight rows.* A step has some work that does not depend on the rows: four shuffles and the choice of lane 0. With one
# row it is more than the cell itself. With many rows there are fewer warps for one pair, each step is a longer chain,
# and the cells need more registers. For many pairs the first does not matter, and so `many_pairs` takes 16.
#
# *The end.* Compute the score first, and then the table again: the first cell with that score is the end. A warp that
# keeps the number of the column beside its best score finds it in one pass, for one more comparison a step.
#
# *The diagonal.* The way from a vertex to itself is 0 in the beginning. It becomes less only if there is a cycle whose
# length is below 0. Then no path is the shortest: it can always go around once more.
#
# Go on with [chapter 48](48_electrostatic_potential.ipynb): the potential of many charges, where roots are the bound.
