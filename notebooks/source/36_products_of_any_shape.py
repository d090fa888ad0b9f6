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
# # 36. Products of any shape
#
# *What shape does to a matrix product: tails and waste, tiles of other shapes, a sum that several blocks share, and how
# to choose. Read chapters [12](12_matmul.ipynb) and [20](20_memory_or_compute.ipynb) before. 75 minutes. PMPP 4e:
# sections 4.4 and 6.3; 5e: sections 4.4 and 8.6. The code is
# [pmpp/kernels/matmul/fitted.py](../pmpp/kernels/matmul/fitted.py).*
#
# The last kernel of [chapter 12](12_matmul.ipynb) multiplies large square matrices about as fast as NVIDIA's library.
# Networks rarely ask for these. A batch of 16 rows meets a wide layer; a gradient is a sum over thousands of rows and
# has few columns; and the extents of data are no multiples of 8.
#
# **The question of this chapter: why is a kernel that is fast for 4096 x 4096 slow for most other shapes, and what has
# to follow the shape so that it is fast for all?**

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# Times come from a record, as in chapter 12. The room's first rung, `fixed`, has the tile of that kernel: a block
# computes 128 x 128 of *C*, whatever the shape. (It needs no padded copies any more. We come to that.)

# %%
try:
    store = record.load()
    entries = store.entries("fitted")
    ceilings, source = store.ceilings("fitted"), store.footer("fitted")
except record.RecordError as missing:  # nothing measured yet: what the vendor promises for an H200
    entries, ceilings = (), roofline.Ceilings(4.8e12, 67e12, "datasheet of an H200", empty_kernel=2e-6, launch=1e-5)
    source = "The ceilings are from the datasheet of an H200"
    print("There are no times to show:", missing)
times = {(entry.family, entry.workload, entry.contender): entry for entry in entries}
LIBRARY = "torch.matmul"


# %%
def against_library(rung, family="named"):
    """Print the recorded rate of a rung for each shape of a family, and its speed as a share of the library's."""
    for (kind, shape, who), entry in times.items():
        if (kind, who) == (family, rung):
            library = times[kind, shape, LIBRARY]
            rate = f"{entry.flops / entry.seconds / 1e12:6.1f} TFLOP/s"
            print(f"{shape:32}{entry.median_ms:9.3f} ms {rate}, {library.seconds / entry.seconds:4.2f} x the library")


against_library("fixed")

# %% [markdown]
# Where all extents are large, this kernel has most of the library's speed. For the other shapes it has between a third
# and a twelfth.
#
# ## The bound
#
# The least work is that of chapter 12: 2 *M N K* operations, and 4 (*M K* + *K N* + *M N*) bytes. If all extents are
# large, arithmetic is the bound. If one of them is small enough, memory is: each element of the large matrix is then
# used only a few times.

# %%
for m, k, n in ((4096, 4096, 4096), (16, 4096, 11008), (8192, 8192, 64), (512, 32768, 512), (8192, 4, 8192)):
    cost = fitted.cost(m, n, k)
    least = roofline.bound(cost, ceilings)
    said = f"{cost.intensity:6.1f} FLOP/byte, at least {least.seconds * 1e6:7.1f} us: {least.side}"
    print(f"{m:5} x {k:5} x {n:5}: {said}")
print(f"the ridge: {ceilings.ridge:.1f} FLOP/byte")

# %% [markdown]
# So 16 rows are few enough for memory to be the bound, and 64 columns are not. For the long sum the least time is a
# fraction of a millisecond, and `fixed` took several.
#
# ## The reference
#
# It is that of chapter 12, and so are some of the inputs. New are few rows, few columns and a long sum.

# %%
show(fitted.reference)

# %%
print(*(f"{name}: {a.shape} @ {b.shape}" for name, (a, b) in fitted.inputs().items()), sep="\n")

# %% [markdown]
# ## The first rung, `fixed`: count the blocks
#
# Where does the time go? Begin with a long sum: 512 x 32768 times 32768 x 512. It has as much arithmetic as a product
# of 2048 x 2048, and its intensity is high.
#
# **Predict, then run.** Each block computes 128 x 128 elements of *C*. An H200 has 132 multiprocessors. How many of
# them have a block to work on?

# %%
guess = None  # multiprocessors

tile, multiprocessors = fitted.LARGE, 132
predict(guess, min(multiprocessors, blocks(512, tile.m) * blocks(512, tile.n)), unit="multiprocessors", exact=True)

# %% [markdown]
# *C* has 4 x 4 such tiles. All other multiprocessors are idle from the beginning to the end. The number of blocks
# depends on *M* and *N* alone. A longer *K* makes these few blocks slower, and keeps no other multiprocessor busy.
#
# Now the opposite: there are more blocks than multiprocessors, but not many times as many. If every multiprocessor
# takes one block at a time, the blocks run in *waves*. The last wave is rarely full, and the time in which some
# multiprocessors have no block left is called the *tail*. Tiles also reach beyond the edges of *C*: the elements that
# lie outside are computed in vain.
#
# **Predict, then run.** A product of 3000 x 3000 is computed in tiles of 128 x 128, on 132 multiprocessors that take
# one block at a time. Each spends a part of its time on elements of *C*. The rest goes into elements outside, and into
# waiting in the last wave. How many per cent of the time, of all multiprocessors together, are spent on *C*?

# %%
guess = None  # %

waves = blocks(blocks(3000, 128) ** 2, 132)
predict(guess, 100 * 3000**2 / (waves * 132 * 128**2), unit="%", factor=1.1)

# %%
grid = blocks(3000, 128) ** 2
print(f"{grid} blocks in {waves} waves: {grid / (waves * 132):.0%} of the places are taken,")
print(f"and {3000**2 / (grid * 128**2):.0%} of what the blocks compute is in C")


# %% [markdown]
# The two shares multiply to the answer. The figure shows it for square products of every size. Each tooth is a wave
# that is just full, and falls where one block more begins another wave. Turn the tile's side: a smaller tile has a
# finer grain, so its waves are fuller. The teeth become smaller, and on the left the share rises earlier.


# %%
def useful(n, side, multiprocessors):
    """The share of the multiprocessors' time in which elements of C are computed, for a product of n x n."""
    return n * n / (blocks(blocks(n, side) ** 2, multiprocessors) * multiprocessors * side**2)


def draw(side, multiprocessors):
    (figure, ax), sizes = chart(3.2), range(32, 4097, 8)
    ax.plot(sizes, [useful(n, side, multiprocessors) for n in sizes], color=palette.OWN, lw=1)
    ax.set(xlabel="n, for a product of n x n", ylabel="useful share of the time", ylim=(0, 1.02))
    ax.set_title(f"tiles of {side} x {side}, {multiprocessors} multiprocessors", loc="left")
    return figure


# %%
side, multiprocessors = 128, 132  # other numbers here, or the sliders

knobs.turn(draw, side=(side, (32, 64, 128)), multiprocessors=(multiprocessors, (16, 48, 80, 132)))

# %% [markdown]
# Why not always small tiles, then? Chapter 12 has shown why. For each *k* a tile of *m* x *n* loads *m* + *n* values
# and does *m n* multiply-adds with them. So small tiles ask for more bytes.
#
# **Predict, then run.** How many FLOP a byte does a block with a tile of 128 x 128 do? And one with 32 x 32?

# %%
guess = {"128 x 128": None, "32 x 32": None}  # FLOP/byte

intensity = {str(tile): 2 * tile.m * tile.n / (4 * (tile.m + tile.n)) for tile in fitted.TILES}
asked = {name: intensity[name] for name in ("128 x 128", "32 x 32")}
predict(guess, asked, unit="FLOP/byte", exact=True)

# %% [markdown]
# ## A factory of kernels
#
# So no tile is best for all shapes, and we need several kernels that differ in their tile. Writing each by hand would
# be tedious. Nor can one kernel take the sizes as arguments: they have to be known when it is compiled, because
# registers have no index that changes at run time.
#
# In Python a function can make a function. `product_kernel(tile, form)` is a *factory*: it returns a kernel, compiled
# for the numbers of this tile, and it remembers it, so that each is compiled once. The numbers travel in a named tuple.

# %%
print(fitted.Tile.__doc__)
print("\n".join(f"{name:10} {number}" for name, number in fitted.LARGE._asdict().items()))

# %%
print("tile         threads  warps  FLOP/byte  loads from shared memory for a multiply-add")
for tile in fitted.TILES:
    loads = (tile.thread_m + tile.thread_n) / (tile.thread_m * tile.thread_n)
    print(f"{tile!s:12}{tile.threads:8}{tile.threads // 32:7}{intensity[str(tile)]:11.1f}{loads:10.3f}")

# %% [markdown]
# The nine tiles fall into four kinds. The first has the highest intensity. The next five have a finer grain. 32 x 32
# is for products that are small altogether, and the last two are for a *C* of few columns or few rows.
#
# A small tile has little work for its threads: 32 x 32 elements are 64 threads of 4 x 4, two warps. Two warps cannot
# hide how long a load takes. So this tile has four *groups* of threads. All load together, and each group multiplies
# for a quarter of the *k* that are in shared memory. At the end the groups' sums are added, in shared memory.
#
# This is the kernel that the factory makes. What it calls is made for the tile, too.

# %%
form = fitted.Form(fitted.Operand(True, 4), fitted.Operand(False, 4))
show(fitted.product_kernel(fitted.SMALL, form))

# %% [markdown]
# Compared with the last kernel of chapter 12, a turn of the loop has one barrier where there were two. Each tile has
# two *places* in shared memory. While one is read, the next tile is put into the other. That was read in the turn
# before, and all threads had finished with it when they passed the last barrier. So nobody has to wait a second time.
# This is called *double buffering*.
#
# ### Edges without tests
#
# Chapter 12 padded its matrices if *K* was no multiple of 8 or a row did not begin at a multiple of 16 bytes. For the
# shapes of this chapter the copies could take longer than the product. Here nothing is copied:
#
# - Rows below the last row are read as the last row, and columns likewise. Their sums are not stored.
# - *K* does need zeros beyond its end. So a block's *first* tiles, which it loads before the loop, take what *K* leaves
#   beyond whole tiles, with a test at each load. All others are whole and need no test: the loop has none.
# - If rows cannot be read 16 bytes at a time, elements are read one by one. That is another kernel from the factory,
#   which the launch chooses. No thread asks.
#
# **Predict, then run.** A tile is `depth` steps of *k* deep. The small one is 32 steps deep, and *K* is 100. How many
# steps do the first tiles take?

# %%
guess = None  # steps

depth, K = fitted.SMALL.depth, 100
predict(guess, (K - 1) % depth + 1, unit="steps", exact=True)

# %%
show(fitted.deep_reader)

# %% [markdown]
# This reads a *deep* operand, one whose *k* runs along memory: *A* in C order, or *B* in Fortran order. `start` clamps
# the row, once. `fetch` has the test, which the compiler removes where `steps` is the whole depth. `keep` turns the
# tile over on its way into shared memory. A second reader does the same for operands that lie the other way. So there
# are four combinations of orders, and none needs a copy.

# %%
rng = np.random.default_rng(36)
a, b = rng.standard_normal((70, 100), dtype=np.float32), rng.standard_normal((100, 45), dtype=np.float32)
allowed = fitted.tolerance(a, b).max()
for order_a in "CF":
    for order_b in "CF":
        c = fitted.by_shape(np.asarray(a, order=order_a), np.asarray(b, order=order_b))
        error = abs(device.to_host(c) - a.astype(np.float64) @ b).max()
        print(f"A in {order_a} order, B in {order_b}: largest error {error:.1e}, allowed {allowed:.1e}")

# %% [markdown]
# ### Neighbours write neighbours
#
# A thread's sums are a block of 8 x 8 or so, and a warp's stores would go to 8 rows at a time. If a row does not begin
# at a multiple of 16 bytes, each of these stores is for 4 bytes, and the same sector of memory is written in pieces. So
# the sums go through shared memory once more: threads put them there as they have them, and take them out along rows.
# The interpreter counts the sectors that are written for 33 columns, which are two tiles side by side.

# %%
counted = lab.count(fitted.by_shape, a[:64, :33].copy(), b[:33, :33].copy()).reports[0].counters
print(f"{counted['global_store_sectors']} sectors written for 64 rows of 33 elements; at least {64 * 33 * 4 // 32}")

# %% [markdown]
# Little is written twice. A row has 132 bytes and touches five sectors of 32, wherever it begins. That is 320 for all
# rows. The 33rd column belongs to another block, which in most rows writes into a sector that the first has written,
# too.
#
# ## The second rung, `by_shape`: which tile?
#
# Now there is a choice, and somebody has to make it. Two numbers decide most of it. How many tiles does the busiest
# multiprocessor get? And how long does one take? The second follows from what a multiprocessor does in a cycle: 128
# instructions of threads, and some bytes from the cache. Each turn of the loop also has a wait, which other blocks on
# the same multiprocessor fill.

# %%
show(fitted.cycles)

# %% [markdown]
# This is a *cost model*: arithmetic on the shape, and no measurement. It does not forecast times well. It leaves out
# what memory moves, for instance, and its constants are rounded. But all candidates have the same matrices to move, and
# only their order counts. So a model like this is judged by what its choice loses against the best candidate. To find
# that out, one has to measure all candidates, for shapes that were not used to think of the model.
#
# **Predict, then run.** For which of these products does the model choose the large tile?

# %%
guess = {"8192 x 8192 x 8192": None, "1024 x 1024 x 1024": None, "16 x 4096 x 11008": None}  # True or False

shapes = (8192, 8192, 8192), (1024, 1024, 1024), (16, 4096, 11008)
h200 = 132  # multiprocessors
tiles = {f"{m} x {k} x {n}": fitted.plan_for(m, n, k, h200, (1,)).tile for m, k, n in shapes}
predict(guess, {shape: tile == fitted.LARGE for shape, tile in tiles.items()})

# %%
for m, k, n in ((16, 4096, 11008), (8192, 8192, 64), (333, 777, 1111), (1024, 1024, 1024), (64, 64, 64)):
    plan = fitted.plan_for(m, n, k, h200, (1,))
    grid = blocks(m, plan.tile.m) * blocks(n, plan.tile.n)
    print(f"{m:5} x {k:5} x {n:5}: tile {plan.tile!s:9} {grid:5} blocks")

# %%
against_library("by_shape")

# %% [markdown]
# Every shape has gained. The 16 rows, for which tiles of 8 rows waste nothing, are now ahead of the library. What is
# still wrong? The long sum reaches little more than half of the library's speed, and the few columns stay behind. Only
# small tiles give enough blocks there, and small tiles are slow. With larger ones most multiprocessors are idle,
# because a tile's block has all of *K* to itself.

# %%
print("Still wrong:", fitted.by_shape.leaves)

# %% [markdown]
# ## The third rung, `split_k`: share the sum
#
# If *M* and *N* do not give enough blocks, *K* has to. Let several blocks compute the same tile of *C*, each from its
# own part of *K*. This is called *split K*. Each leaves a partial sum, and somebody has to add them.
#
# **Your turn.** First the parts. Mind what *K* leaves over, and parts for which nothing is left.

# %%
exercise("fitted/partial_products")


# %%
@cuda.jit
def partial_products(a, b, partials):
    pass  # your code


check("fitted/partial_products", partial_products)

# %% [markdown]
# How are the parts added? The shortest way would be `cuda.atomic.add` into *C*. It has two faults. *C* has to be zero
# beforehand, and blocks add in the order in which they happen to finish. A float32 sum depends on its order
# ([chapter 38](38_numerics.ipynb) says why), so the same call would give other bits from time to time. How often? We
# add the same eight numbers in two orders, a thousand times.

# %%
parts = rng.standard_normal((8, 1000)).astype(np.float32)
one, other = parts[0], parts[3]
for part in parts[1:]:
    one = one + part
for part in parts[[7, 0, 5, 1, 6, 2, 4]]:
    other = other + part
print(f"{(one != other).mean():.0%} of 1,000 sums of 8 numbers differ between two orders")

# %% [markdown]
# So each part has a place of its own, and a second kernel adds them in a fixed order. It costs a launch, and each
# partial sum is written and read once. That is why a split is for a small *C* only. In this kernel eight teams of
# threads add every eighth part each, with four loads in flight, and then the teams' sums are added in their order.

# %%
show(fitted.sum_kernel)

# %%
a, b = rng.standard_normal((20, 3000), dtype=np.float32), rng.standard_normal((3000, 10), dtype=np.float32)
first, second = (device.to_host(fitted.split_k(a, b)) for _ in range(2))
print("the same bits twice:", np.array_equal(first, second))
plan = fitted.plan_for(20, 10, 3000, device.limits()["multiprocessors"])
print(f"{plan.parts} parts of {plan.length} of K, the last of {3000 - (plan.parts - 1) * plan.length}")

# %% [markdown]
# How many parts? More parts make more blocks, and shorter ones. But the second kernel has more to add, and the first
# has more tiles to store. The model knows both.
#
# **Predict, then run.** The long sum is computed in tiles of 128 x 128, and *K* is split into 1 to 64 parts. With how
# many parts does the model expect the least time, on 132 multiprocessors?

# %%
guess = None  # parts

m, k, n = 512, 32768, 512
by_parts = {parts: fitted.cycles(fitted.plan_of(fitted.LARGE, k, parts), m, n, k, h200) for parts in range(1, 65)}
predict(guess, min(by_parts, key=by_parts.get), unit="parts", factor=1.5)

# %%
figure, ax = chart(3.2)
for tile, colour, style in zip(
    (fitted.LARGE, fitted.MIDDLE, fitted.SMALL), plots.COLOURS, ("-", "--", ":"), strict=False
):
    plans = {fitted.plan_of(tile, k, parts) for parts in range(1, 65)}
    points = sorted((plan.parts, fitted.cycles(plan, m, n, k, h200)) for plan in plans)
    ax.plot(*zip(*points, strict=True), style, color=colour, label=f"tile {tile}")
ax.set(xscale="log", yscale="log", xlabel="parts of K", ylabel="cycles, by the model")
ax.set_title(f"{m} x {k} times {k} x {n}", loc="left")
ax.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# The curves of the larger tiles fall as long as multiprocessors are idle. Then they have teeth: the waves again. The 16
# tiles of 128 x 128 become 256 blocks with 16 parts, which is just below two for each multiprocessor; one part more
# begins a third. The small tile has enough blocks from the beginning, so parts gain nothing. But it needs more loads
# for each multiply-add, and its least time is about twice that of the others.

# %%
against_library("split_k")

# %% [markdown]
# The long sum and the few columns are now close to the library, and the 16 rows gain once more. For the last two
# products the model keeps one part, so nothing has changed.
#
# ## All rungs
#
# At the design size, the long sum, with NumPy on the CPU of the same machine:

# %%
plots.drawn(plots.ladder, "fitted")

# %% [markdown]
# The tile makes `by_shape` several times as fast as `fixed`, and the parts add half as much again. The library is a
# tenth faster still.
#
# From few columns to many: a matrix of 4096 x 4096 times one of 4096 x *n*. If *n* is small, memory is the bound, and
# the time is that of reading the large matrix. If it is large, arithmetic is.
#
# **Predict, then run.** From which *n* on is a product of 4096 x 4096 and 4096 x *n* bound by arithmetic? (The ridge,
# in FLOP a byte, stands above. Nearly all bytes are those of the large matrix.)

# %%
guess = None  # columns

border = next(n for n in range(1, 4096) if roofline.bound(fitted.cost(4096, n, 4096), ceilings).side == "compute")
predict(guess, border, within=0.15)

# %%
title = "4096 x 4096 times 4096 x n"
plots.drawn(plots.sweep, "fitted", family="columns", xlabel="columns n", title=title)

# %% [markdown]
# The border lies a little above twice the ridge: an element of the large matrix has 4 bytes, and takes part in 2 *n*
# operations.
#
# On the left `fixed` computes 128 columns and throws most of them away. The tile of 8 columns wastes little, and parts
# of *K* give every multiprocessor something to read. With 16 columns and fewer that is faster than the library, and
# from 64 on a little slower.

# %% [markdown]
# ## Shapes that nobody chose
#
# Whoever writes a kernel tries it on shapes that he thought of. The next figure has shapes that were drawn: each extent
# is odd, and log-uniform from 3 to 16,383. So no tile fits, and three rows of four do not begin at a multiple of 16
# bytes. Each mark is a rung on one shape. Its height is the rung's speed, compared with the library.


# %%
def over_the_work(*rungs):
    figure, ax = chart(3.6)
    for rung, colour, marker in zip(rungs, plots.COLOURS, plots.MARKERS, strict=False):
        shapes = [(shape, entry) for (family, shape, who), entry in times.items() if (family, who) == ("drawn", rung)]
        work = [entry.flops for _, entry in shapes]
        ratio = [times["drawn", shape, LIBRARY].seconds / entry.seconds for shape, entry in shapes]
        mean = f", mean {math.exp(np.log(ratio).mean()):.2f}" if ratio else ""
        ax.plot(work, ratio, marker, color=colour, label=rung + mean)
    ax.axhline(1, color=palette.INK, lw=1)
    ax.set(xscale="log", yscale="log", xlabel="work (FLOP)", ylabel="speed, as a multiple of the library's")
    ax.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, source)
    return figure


over_the_work("fixed", "by_shape", "split_k") if entries else print("Not measured yet.")

# %%
for rung in ("fixed", "by_shape", "split_k") if entries else ():
    found = [
        (times["drawn", shape, LIBRARY].seconds / entry.seconds, shape)
        for (family, shape, who), entry in times.items()
        if (family, who) == ("drawn", rung)
    ]
    print(f"{rung:9} slowest against the library: {min(found)[0]:.2f} x, for {min(found)[1]}")

# %% [markdown]
# The means are geometric. For the first rung the marks lie far apart: shape decides, not work. The choice of the tile
# lifts the lowest marks, and the split lifts those that had too few blocks whatever the tile. What is left are shapes
# like the last one in the list. The model gives its 43 columns a tile of 64, so about a third of what is computed lies
# outside of *C*; a tile of 8 columns would waste less, and has a quarter of the intensity.
#
# **Your turn.** The extreme of few rows: four. If a thread computes a whole column, no two threads need the same
# element of *B*. Then a tile in shared memory gains nothing.

# %%
exercise("fitted/four_rows")


# %%
@cuda.jit
def four_rows(a, b, c):
    pass  # your code


check("fitted/four_rows", four_rows)

# %% [markdown]
# ## What to take along
#
# - Count blocks before you count instructions: a GPU with 132 multiprocessors wants hundreds of them.
# - Blocks run in waves, the last one is rarely full, and tiles reach beyond the edge. Smaller tiles lose less to both,
#   and ask for more bytes.
# - A factory makes a kernel for each tile. What is known when it is compiled costs nothing when it runs.
# - Put what does not fit whole tiles at the beginning, and the loop needs no tests.
# - If a result is small and its sum is long, split the sum. Add the parts in a fixed order.
# - A model of the time that knows the limits of the GPU can choose, if it is wrong in the same way for all candidates.
#
# `matmul.matmul` is the last rung of this chapter, but for a row or a column, which chapter 32 is about.
#
# To read on: NVIDIA's *CUTLASS: efficient GEMM in CUDA* on split K, and Osama et al., *Stream-K* (PPoPP 2023), which
# gives every multiprocessor the same share of all steps.
#
# ## Exercises
#
# The two exercises with a check stand above. More to try, without a check:
#
# 1. In `useful`, let a multiprocessor have two blocks at a time, each at half the speed. What happens to the teeth?
# 2. A tile of 256 x 128 would have a higher intensity. How many sums would a thread of a block of 256 threads have?
# 3. Turn off the clamp in `deep_reader`. Which input of the room finds it, and what does the interpreter say?
#
# ## Answers
#
# **partial_products.** Only the bounds of the loop are new. The length is rounded up, so the last part is the shorter
# one. With a length that is rounded down, what *K* leaves would be in no part.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.matmul import fitted_exercises as answers

show(answers.partial_answer)
assert check("fitted/partial_products", answers.partial_answer)

# %% [markdown]
# **four_rows.** One load from *B* for four multiply-adds. The loads from *A* are the same for all threads of a warp,
# and a request for one element is one sector.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.rows_answer)
assert check("fitted/four_rows", answers.rows_answer)

# %% [markdown]
# *Two blocks at a time.* The teeth become wider: a wave has twice the places and takes twice as long, so more can be
# empty at the end. What two blocks do help with is waiting: one computes while the other waits.
#
# *256 x 128.* A thread would have 128 sums, as many as one of the large tile. But eight warps of such threads need all
# registers of a multiprocessor for one block, and nothing else could run beside it.
#
# *The clamp.* Rows beyond the last one are read from whatever lies behind *A*. The interpreter says that an access is
# out of bounds, for the first input whose rows fill no tile. The result would be right all the same, since these sums
# are not stored.
#
# Go on with [chapter 37](37_autotuning.ipynb): how to find the numbers of a tile, instead of choosing them.
