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
# # 32. Matrix times vector
#
# *The bound of a product with one vector, rows and columns in memory, sums that threads share, bytes in flight, wide
# loads and odd rows, few rows and many, an order of additions that stays. Read chapters [8](08_warps.ipynb),
# [12](12_matmul.ipynb) and [30](30_reduction.ipynb) before. 75 minutes. PMPP 4e: sections 3.4 and 6.1, chapter 10; 5e:
# sections 3.4, 6.1 and 6.3, chapter 10.*
#
# A language model writes one word at a time. For each word it multiplies all its matrices by one vector: the state of
# the text so far. Chapter 12 multiplied matrices by matrices, and found a kernel that keeps the arithmetic of the GPU
# busy. Each of its blocks computes a tile of $C$ with many columns. If $B$ is a single vector, $C$ has one column, and
# nearly all of each tile is computed for nothing.
#
# **The question of this chapter: what makes the product $y = A x$ so different from $C = A B$, and how does one kernel
# serve matrices of every shape?** The code is the room
# [pmpp/kernels/matmul/matvec.py](../pmpp/kernels/matmul/matvec.py).

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import matmul
from pmpp.kernels.common import blocks
from pmpp.kernels.common.arrivals import is_last_block
from pmpp.kernels.matmul import matvec
from pmpp.lab.draw import knobs, palette, plots
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
# ## The question, on digits
#
# Here is a product that can be seen. Each row of $A$ is the image of a handwritten digit, 64 pixels, scaled to length
# 1. The vector $x$ is one such image. Then an element of $y$ is the cosine of the angle between two images: 1 if they
# are alike, and less if not.

# %%
images, labels = data.digits()
digits = images.reshape(len(images), -1)
digits = (digits / np.linalg.norm(digits, axis=1, keepdims=True)).astype(np.float32)
likeness = device.to_host(matvec.split(digits[1:], digits[0]))
nearest = 1 + np.argsort(-likeness)[:7]

figure, axes = plt.subplots(1, 8, figsize=(8, 1.5), layout="constrained")
for ax, number in zip(axes, [0, *nearest], strict=True):
    ax.imshow(images[number], cmap="gray_r")
    ax.set_title("x" if not number else f"{likeness[number - 1]:.3f}", fontsize=9)
    ax.set_axis_off()

# %% [markdown]
# On the left is $x$, and beside it are the digits most like it. That is all it takes to search a collection of images,
# or of texts, once each is a row of numbers: a product of a matrix and a vector.
#
# ## The bound
#
# $A$ has $M$ rows and $N$ columns. Each of its elements takes part in one multiply-add. A product of two matrices uses
# it once for each column of $B$.


# %%
def bound(words, cost):
    """The least time for a cost on this GPU, or on the recorded one."""
    print(f"{words}: {cost.flops:,} FLOP, {cost.bytes:,} bytes, {cost.intensity:.3g} FLOP/byte")
    try:
        least = roofline.bound(cost, roofline.ceilings("matmul"))
        print(f"    at least {least.seconds * 1e6:,.4g} us, set by {least.side}")
    except record.RecordError as missing:
        print(missing)


bound("a matrix of 16384 x 16384 times a vector", matvec.cost(16384, 16384))
bound("the same matrix times another such matrix", matmul.cost(16384, 16384, 16384))

# %% [markdown]
# Half an operation for each byte: memory is the bound, by far. A tile in shared memory would gain nothing, since no
# element of $A$ is used twice. Only $x$ is, by every row.
#
# That gives the speed of the language model, before any kernel is written.
#
# **Predict, then run.** A model has 7 billion weights of 4 bytes. For each word it writes, it reads all of them once.
# How many words can it write in a second, at most, on a GPU that reads 4.2 TB/s?

# %%
guess = None  # words a second

weights, bandwidth = 7e9, 4.2e12
predict(guess, bandwidth / (4 * weights), unit="words a second")

# %% [markdown]
# The arithmetic, 14 GFLOP a word, would allow thousands. So for a single reader most of the GPU waits. What if the
# model writes for many readers at once? Then the weights, read once, meet several vectors: a product of two matrices
# again, of which the second is narrow.
#
# **Predict, then run.** From how many vectors on is arithmetic the bound? A matrix of 8192 x 8192 is multiplied by $R$
# vectors, on the recorded GPU.

# %%
guess = None  # vectors


def least():
    """The bound for each number of vectors from 1 to 256."""
    ceilings = roofline.ceilings("matmul")
    return {r: roofline.bound(matmul.cost(8192, r, 8192), ceilings) for r in range(1, 257)}


predict(guess, lambda: next(r for r, one in least().items() if one.side == "compute"), unit="vectors")


# %%
def bounds():
    """The two bounds over the number of vectors."""
    vectors, found = 2 ** np.arange(9), least()
    figure, ax = chart(3.4)
    for name, marker, side in (("memory", "o", "memory_seconds"), ("arithmetic", "s", "compute_seconds")):
        times = [1e6 * getattr(found[r], side) for r in vectors]
        ax.plot(vectors, times, color=palette.COLOURS[0 if name == "memory" else 1], marker=marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="vectors", ylabel="least time (us)", title="8192 x 8192 times R vectors")
    ax.set_xticks(vectors, [str(r) for r in vectors])
    ax.legend()
    return figure


plots.drawn(bounds)

# %% [markdown]
# On the left the line of memory is flat: one vector costs as much as sixteen. On the right time grows with the number
# of vectors, and the kernels of chapter 12 are at home. This chapter is about the left end.
#
# ## The reference, and a thread a row
#
# The judge is a loop in float64.

# %%
show(matvec.reference)

# %% [markdown]
# The obvious kernel gives each row to a thread (PMPP 3.4).

# %%
show(matvec.thread_kernel)

# %% [markdown]
# A warp is 32 neighbouring threads. A *sector* is 32 bytes, the least that the memory delivers. $A$ lies in *C order*:
# row after row.
#
# **Predict, then run.** The matrix has 256 rows and 512 columns. When a warp reads `a[row, k]`, how many sectors does
# its request touch?

# %%
guess = None  # sectors

rng = np.random.default_rng(32)
a, x = rng.standard_normal((256, 512), dtype=np.float32), rng.standard_normal(512, dtype=np.float32)
counts = {"thread a row": lab.count(matvec.thread_per_row, a, x).counters}
steps = 256 // 32 * 512  # of all warps; at each there is a request for A, and one of a single sector for x
predict(guess, counts["thread a row"]["global_load_sectors"] / steps - 1, unit="sectors")

# %% [markdown]
# One for each lane: neighbouring threads have neighbouring rows, which lie 2 KiB apart, and of each sector 4 of 32
# bytes are used. The rest may still be in the cache when the thread comes to it, in its next seven steps. Or it may
# not.
#
# ### The same matrix, by columns
#
# Nothing says that a matrix has to lie row after row. In *Fortran order* it lies column after column. It is also what a
# transposed view is: `a.T` of a matrix in C order is a matrix in Fortran order, and nothing has moved. So the product
# from the other side, $x A = A^T x$, needs no kernel of its own.

# %%
small = np.arange(6, dtype=np.float32).reshape(2, 3)
print(small)
print("C order:       in memory", small.ravel("K"), " steps in bytes", small.strides)
print("a.T, the same: in memory", small.T.ravel("K"), " steps in bytes", small.T.strides)

# %% [markdown]
# **Predict, then run.** Now the matrix with 256 rows and 512 columns lies in Fortran order. How many sectors does the
# same request of the same kernel touch?

# %%
guess = None  # sectors

by_columns = np.asfortranarray(a)
counts["thread a row, by columns"] = lab.count(matvec.thread_per_row, by_columns, x).counters
predict(guess, counts["thread a row, by columns"]["global_load_sectors"] / steps - 1, unit="sectors")


# %%
def compare(*names):
    """The counters so far, for 256 x 512."""
    print(" " * 26, *(name.rjust(20) for name in names))
    for who, found in counts.items():
        print(f"{who:26}", *(f"{found[name]:20,}" for name in names))


compare("global_load_sectors", "global_load_requests")
print("sectors in the matrix:", a.nbytes // 32)

# %% [markdown]
# By columns the kernel is *coalesced*: the 32 rows of a warp are neighbours, four sectors. (The rest of the sectors are
# those of $x$, one a request, since all lanes read the same element.) **What is right depends on the order:
# neighbouring threads have to read what lies side by side.** In Fortran order these are the elements of different sums,
# so a thread can have a sum for itself. In C order they are terms of the same sum, so threads have to share it.
#
# ## Rung 2: `coalesced`
#
# A warp a row: lane 0 takes columns 0, 32, 64 and so on. At the end the 32 lanes add up their sums by shuffles, as in
# [chapter 30](30_reduction.ipynb). Matrices in Fortran order keep the kernel that they have.

# %%
show(matvec.warp_kernel)

# %%
orders = ("by rows", "by columns")
counts["warp a row"] = lab.count(matvec.coalesced, a, x).counters
compare("global_load_sectors", "global_load_requests")

# %% [markdown]
# A quarter of the sectors, and half of these are $x$: now each row reads $x$ as a whole, 2 KiB for 2 KiB of $A$. It
# comes from the cache, but the cache has to deliver it, too. (A warp that takes four rows at a time would load $x$ once
# for all four.)


# %%
def recorded(name, before=None, family="by rows"):
    """What the record says of a rung at the design size of a family."""
    try:
        kept = record.load()
        entries = {entry.contender: entry for entry in kept.design("matvec", family)}
        entry = entries[name]
        share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("matvec"))
        print(f"{name}, {entry.workload} {family}, {kept.gpu}: {entry.median_ms:.3g} ms, {share:.1%} of the roof")
        if before:
            print(f"    {entries[before].median_ms / entry.median_ms:.2f} times as fast as {before}")
    except record.RecordError as missing:
        print(missing)


for family in orders:
    recorded("thread_per_row", family=family)
    recorded("coalesced", "thread_per_row", family)

# %% [markdown]
# By columns nothing has changed, and there is a surprise in these lines: the kernel that is coalesced takes twice as
# long as the same kernel by rows, where it is not. Both have 16,384 threads, 124 on a multiprocessor, which is few. By
# rows a warp asks for 32 sectors at once, and may find the next seven elements of each in the cache. By columns it asks
# for four, and waits at every step. So it wastes nothing, and has an eighth of the bytes on their way.
#
# ## Rung 3: `vectorised`
#
# What is still wrong: a thread asks for 4 bytes of $A$, and waits. By *Little's law* ([chapter 8](08_warps.ipynb)) the
# bytes in flight are the bandwidth times the latency.
#
# **Predict, then run.** A byte of this memory is under way for about 700 ns under load, and the GPU has 132
# multiprocessors. How many KiB must each have in flight, so that the memory delivers 4.2 TB/s?

# %%
guess = None  # KiB on a multiprocessor

latency, multiprocessors = 700e-9, 132
predict(guess, bandwidth * latency / multiprocessors / 1024, unit="KiB")

# %%
warps, nbytes, latency_cycles = 64, 4, 1200  # other numbers here, or the sliders

knobs.turn(
    knobs.under_way,
    warps=(warps, range(1, 65)),
    nbytes=(nbytes, [2**k for k in range(8)]),
    latency=(latency_cycles, range(300, 2001, 100)),
)

# %% [markdown]
# (The figure has the latency in cycles of the clock: 1,200 are about 600 ns, so a little less is needed than above.)
#
# A multiprocessor holds 2048 threads. With 4 bytes each they have 8 KiB in flight, well below half of what it takes.
# (`coalesced` is faster than that by rows, because the compiler has unrolled its loop: a thread then asks for a few
# elements before it waits.) So a thread should ask for more, and we should not leave it to the compiler: 64 bytes, by
# four loads of 128 bits. Then a sixth of the threads would do.

# %%
show(matvec.add_round)
show(matvec.four)

# %% [markdown]
# A *round* is sixteen products. Its four loads of $A$ come first, and the first product needs the last of them. That
# order matters. A compiler may move a product up between the loads, and then the thread waits for one load before it
# has asked for the next. It cannot do that here.
#
# The flag `guarded` is for the end of a row. Each call is compiled with the values of its flags, so the loop over whole
# rounds has no test in it.
#
# ### Rows that begin anywhere
#
# `load128` wants an address that is a multiple of 16 bytes. Where do rows begin?

# %%
for n in (8, 6, 5):
    starts = [4 * n * row % 16 for row in range(8)]
    print(f"rows of {n}: they begin at {starts} bytes behind a multiple of 16")

# %% [markdown]
# If the length is a multiple of four, every row begins well. If it is odd, one row in four does. In the others, four
# elements of $A$ that could be loaded together belong to four elements of $x$ that could not. So this rung gives wide
# loads up for such rows, and keeps what matters: sixteen elements in flight. `four` loads them one by one, as far apart
# as there are threads side by side, so each load of a warp is still 128 bytes in a row.
#
# **Predict, then run.** Both matrices have 256 rows, one 512 columns and the other 513. How many times as many load
# requests does the second one need?

# %%
guess = None  # times as many

odd = rng.standard_normal((256, 513), dtype=np.float32)
counts["vectorised"] = lab.count(matvec.vectorised, a, x).counters
counts["vectorised, 513 columns"] = lab.count(matvec.vectorised, odd, np.append(x, x[:1])).counters
requests = [counts[name]["global_load_requests"] for name in ("vectorised", "vectorised, 513 columns")]
predict(guess, requests[1] / requests[0], unit="times as many")

# %%
compare("global_load_sectors", "global_load_requests")

# %% [markdown]
# Four times as many, and a few for the last column: it costs each row a round of its own. The sectors grow by an
# eighth, since a row that begins in the middle of a sector touches one more at each step. A GPU can issue so many
# requests; what it cannot do is deliver more bytes. So the odd matrix should be almost as fast. Near the end of the
# chapter both kinds stand beside the libraries.
#
# ### Columns that begin anywhere
#
# In Fortran order a thread has four rows, and asks for eight columns at a time, or four where there are few. Threads
# along `y` take different columns, and at the end they add up in shared memory what they have. Again wide loads need
# columns that begin at multiples of 16 bytes. But here nothing else has to fit: all elements of a column meet the same
# $x_k$. So a thread may begin at the multiple *before* its column, as long as it remembers which rows its sums belong
# to.
#
# How far before? With five rows, column $k$ begins $5 k$ elements behind the start. Here is the number modulo 4.

# %%
for m in (8, 6, 5):
    print(f"columns of {m}: they begin", *(m * k % 4 for k in range(12)), "elements behind a multiple of 16 bytes")

# %% [markdown]
# It comes again after four columns, whatever the length. And a block reads a multiple of four columns at a time, so
# **all columns of a thread are shifted alike**: its sums always belong to the same four rows, and one shift at the end
# puts them right. Only the first and the last column need care, where such a vector could begin before the matrix or
# end behind it.

# %%
show(matvec.columns_kernel)

# %% [markdown]
# **Predict, then run.** A matrix in Fortran order has 1024 rows and 64 columns, and another one 1023 rows. How many
# times as many load requests does the second one need now? It was four times as many for odd rows.

# %%
guess = None  # times as many

tall, tall_x = rng.standard_normal((1024, 64), dtype=np.float32), x[:64]
requests = [
    lab.count(matvec.vectorised, np.asfortranarray(one), tall_x).counters["global_load_requests"]
    for one in (tall, tall[1:])
]
predict(guess, requests[1] / requests[0], unit="times as many")

# %%
print(f"{requests[0]:,} requests for 1024 rows, {requests[1]:,} for 1023")

# %% [markdown]
# A few more: blocks overlap by one vector, and the two outer columns are read element by element.

# %%
for family in orders:
    recorded("vectorised", "coalesced", family)

# %% [markdown]
# ## Rung 4: `fitted`
#
# A warp a row suits a matrix of many long rows. Other matrices are other problems. The digits are rows of 64: of a
# warp, which takes 512 elements a round, half of the lanes have nothing to do. A matrix of 16 rows is 16 warps, on a
# GPU that holds 8448. So how many threads should share a row?
#
# - *No more than have something to do*: each should have its 64 bytes.
# - *As many as keep the memory busy*: fewer rows, more threads for each.
#
# The first is a limit, and the second is what we want. It follows from Little's law: 512 threads with 64 bytes each are
# 32 KiB on a multiprocessor. Where both leave a choice, a thread gets four rounds, so that it has some work of its own
# before it must agree with others. Rows that begin anywhere are an exception: their loads are of 4 bytes, and there a
# warp a row was the fastest of all that we tried.

# %%
show(matvec.rows_plan)
show(matvec.columns_plan)

# %%
sms = 132  # multiprocessors of an H200
for m, n in ((2**20, 4), (16384, 16), (1797, 64), (1000, 1000), (4096, 4096), (16384, 16384), (16, 16384)):
    plan = matvec.plan_of(m, n, True, n % 4 == 0, sms, 1)
    print(f"{m:9,} x {n:6,} by rows: {plan.across:4} threads a row, {plan.along:3} rows a block")

# %% [markdown]
# For columns the numbers are those of threads along a column and of columns at a time. Eight threads are the least
# where there are enough rows: their 128 bytes fill a line of the cache. Wider blocks read longer pieces, and where
# columns begin anywhere fewer of them overlap. But wider blocks are fewer.
#
# Their number matters at both ends. A thread has up to 128 bytes under way here, so that 256 threads on each
# multiprocessor keep the memory busy. With fewer blocks than that takes it waits. At the other end a GPU with 132
# multiprocessors holds 264 blocks of 512 threads. With 265 all but one are done after the first turn, and the last one
# runs alone: the memory waits again. `columns_time` counts both in bytes that the memory could have delivered. It adds
# 16 bytes for each piece of a column, since the memory loses time when it begins another one. `columns_plan` takes the
# least.

# %%
show(matvec.columns_time)

# %%
for m, n in ((2**20, 4), (16384, 16), (1797, 64), (1000, 1000), (4096, 4096), (16384, 16384), (16, 16384)):
    plan = matvec.plan_of(m, n, False, m % 4 == 0, sms, 1)
    print(f"{m:9,} x {n:6,} by columns: {plan.across:4} threads along a column, {plan.along:3} columns at a time")

# %% [markdown]
# ## Rung 5: `split`
#
# One fault is left. A vector of $2^{24}$ elements times another is a matrix with one row. At most 1024 threads can
# share it, since a block cannot be larger: one multiprocessor works, and 131 rest. So the row is cut into parts, each
# for a block of its own.
#
# In chapter 30 blocks put their sums together in one of two ways: by atomics, in the order in which they finish, or by
# a second launch, in an order that is fixed. Here it is the second. What the parts leave is itself a matrix, with a row
# for each row of $A$ and a column for each part. The sum of its columns is its product with a vector of ones. So the
# second launch runs the same kernel.

# %%
show(matvec.launch)

# %% [markdown]
# A second launch is not free. It begins when the first has ended, and takes about two microseconds: the smallest
# matrices of the last figures take hardly longer. So a sum is cut only if that saves more. With a tenth of the threads
# that keep the memory busy, a round takes as long as with all of them, but there are ten times as many rounds as it
# would take. `rows_plan` counts how many would be saved, and cuts the sum if there are at least 8. Then there are as
# many parts as keep the memory busy, but each has a round at least. By columns `columns_time` counts the two
# microseconds as 8 MiB, which the memory could have delivered meanwhile. Parts give enough blocks, so these may be as
# wide as possible.

# %%
show(matvec.plan_of)

# %% [markdown]
# **Predict, then run.** 16 rows of 16,384 elements: one block for each row, or several? And for 16 rows of 1,048,576?

# %%
guess = {"16384": None, "1048576": None}  # parts of each row


def parts(m, n, by_rows=True):
    return matvec.plan_of(m, n, by_rows, True, sms, matvec.PARTS).parts


predict(guess, {str(n): parts(16, n) for n in (16384, 2**20)}, unit="parts")

# %%
for m, n in ((4, 2**22), (16, 2**20), (16, 16384), (16384, 16384), (2**20, 16)):
    plans = [matvec.plan_of(m, n, by_rows, True, sms, matvec.PARTS) for by_rows in (True, False)]
    found = [f"{plan.parts:4} parts, blocks of {plan.across} x {plan.along}" for plan in plans]
    print(f"{m:9,} x {n:10,}   by rows: {found[0]:32}   by columns: {found[1]}")

# %% [markdown]
# In Fortran order a part is some of the columns.
#
# Does the result depend on who finishes first? It cannot: each addition has its place. The plan depends on the shape
# and the GPU, and on where the arrays begin. Here is the same product twenty times.

# %%
long = rng.standard_normal((2, 300_000), dtype=np.float32)
long_x = rng.standard_normal(300_000, dtype=np.float32)
on_device = device.to_device(long), device.to_device(long_x)
print(len({device.to_host(matvec.split(*on_device)).tobytes() for _ in range(20)}), "different results in 20 runs")

# %% [markdown]
# ## Rung 6: `shifted`
#
# Rows that begin anywhere were left behind: their loads are of 4 bytes. A thread needs 128 registers to have sixteen of
# them under way, so that a multiprocessor holds 512 threads. Where rows are few it holds fewer, and has too few bytes
# under way.
#
# For columns we found a way: begin at a multiple of 16 bytes, and remember how far that is. Does it not work for rows?
# The vectors of a row can begin at the first multiple of 16 bytes in it. The elements before it, three at most, and
# those behind the last vector are loaded one by one. But then a vector of $A$ meets four elements of $x$ that do not
# begin at a multiple of 16 bytes. They take four loads, and nothing is gained: there are as many loads of $x$ as there
# were of both.
#
# Unless a load of $x$ serves two rows. Row $r$ begins $r n$ elements behind the start, and $4 n$ is a multiple of
# four, whatever $n$ is. So **every fourth row begins alike**, and its vectors meet the same elements of $x$. A team of
# threads takes two such rows.

# %%
show(matvec.pair_sums)

# %% [markdown]
# **Predict, then run.** The matrix of 256 rows with 513 columns again. What share of the requests of `vectorised` does
# `shifted` need?

# %%
guess = None  # %

odd_x = np.append(x, x[:1])
counts["shifted, 513 columns"] = lab.count(matvec.shifted, odd, odd_x).counters
requests = [counts[name]["global_load_requests"] for name in ("vectorised, 513 columns", "shifted, 513 columns")]
predict(guess, 100 * requests[1] / requests[0], unit="%")

# %% [markdown]
# There are a quarter as many loads of $A$, and half as many of $x$. (There are more sectors. Four loads of neighbouring
# elements of $x$ each touch all sectors that one wide load would touch, but they come from the cache.) What matters
# more is that a thread has 64 bytes under way with half of the registers. How many threads share a pair of rows,
# `shifted_plan` says. It goes by what an H200 showed.

# %%
show(matvec.shifted_plan)

# %% [markdown]
# ## Rung 7: `last_block`
#
# By columns a sum is cut where rows are few. A second launch then adds up the parts. It has hardly anything to do, and
# the memory is idle until it has begun. Could a block of the first launch add up the parts?
#
# Only one that is behind all others can, since before that a part is missing. Nobody knows beforehand which one it will
# be. So **the blocks of a tile count themselves**. A block stores its part, and then adds 1 to a count by an atomic,
# which tells it what the count was before. The block that finds all others counted is the last one. It reads what all
# have stored, and adds it up in an order that is fixed. So the bits do not depend on which block it is.
#
# One thing is easy to get wrong, and hardly ever shows in a test. A block may see the count of another one, and not yet
# its part, unless a *fence* stands between the two writes. `cuda.threadfence()` is one: whoever sees a write behind it
# also sees those before it. [Chapter 34](34_scan.ipynb) has more of them.

# %%
show(is_last_block)

# %% [markdown]
# `atomic.inc` begins at 0 again when it has counted all parts. So the next launch finds zeros, and nobody has to write
# them. The first half of the kernel is `columns_kernel`.

# %%
show(matvec.last_block_kernel)
show(matvec.parts_sum)

# %%
plan = matvec.last_block_plan(130, 9001, 2, matvec.multiprocessors(), matvec.PARTS)
print(f"130 x 9,001 by columns: {plan.across} x {plan.along} threads a block, {plan.parts} parts")

# %% [markdown]
# **Predict, then run.** A matrix has 130 rows and 9,001 columns, and lies by columns. The rows of a tile are four for
# each thread along a column, without the two that it shares with the next tile. How many atomic operations does the
# product take?

# %%
guess = None  # atomic operations

few_rows, their_x = rng.standard_normal((9001, 130), dtype=np.float32).T, rng.standard_normal(9001, dtype=np.float32)
predict(guess, lab.count(matvec.last_block, few_rows, their_x).counters["atomic_requests"], unit="atomic operations")

# %% [markdown]
# One for each block. A tile has 4 x 8 - 2 = 30 rows, so five tiles cover 130 rows, and each has 26 parts. That there
# are as many blocks as rows is a coincidence. A block does its atomic operation once, at its end.
#
# One thing more has changed. Blocks that add up have more numbers to keep, and where a thread had only 64 registers the
# compiler put some of its loads behind the first products. So a thread has 128 here. Then half as many threads fit on a
# multiprocessor, and for the same bytes under way each asks for sixteen columns before it waits.

# %%
show(matvec.add_sixteen)
show(matvec.add_columns)

# %% [markdown]
# How wide should a tile be, and how many parts are best? `last_block_time` knows three bounds. The memory has to
# deliver every byte, and it does less where some multiprocessors have fewer blocks than others. A multiprocessor takes
# in less than twice its share of the bandwidth, even if the others have nothing to do: so a small matrix needs many
# narrow tiles. And a thread waits for each round of its loads. To the longest of these times it adds what threads and
# blocks take to add up what they have. A sum is cut if the cut saves more than that. Where columns begin anywhere,
# tiles share as few rows as they must: two of them if all columns begin at even elements, and else three.

# %%
show(matvec.last_block_plan)
show(matvec.last_block_time)

# %%
for m, n in ((16384, 16384), (4096, 4096), (2868, 10776), (1266, 15683), (16, 16384), (2**20, 16)):
    spare = 2 if m % 4 else 0  # each m is even
    plan = matvec.last_block_plan(m, n, spare, sms, matvec.PARTS)
    tiles = blocks(m, 4 * plan.across - spare)
    print(f"{m:9,} x {n:6,} by columns: {tiles:4} tiles, {plan.parts:3} parts, {tiles * plan.parts:4} blocks")

# %% [markdown]
# ## Rung 8: `undivided`
#
# By columns, all rungs since the third let several threads share a sum. Is that always right? Take $2^{20}$ rows and 16
# columns. Threads that share so few have less under way than they could. Then they meet at a barrier, add up what they
# have, and meet once more. A block that waits at a barrier asks for nothing.
#
# One thread alone can have sixteen elements under way: all columns of a row. It has nobody to wait for. If there are
# fewer columns it takes two rows or four, and has sixteen again. So **where a thread asks for whole rows at once,
# sharing makes nothing faster**. With more columns it needs several rounds, one after another. How many rounds make
# sharing worth its barriers? This room takes four rounds, which are 64 columns: sharing these would save three rounds,
# and cost two barriers.

# %%
show(matvec.rows_of_a_thread)

# %% [markdown]
# The new kernel is that of the first rung, which was coalesced by columns all along, with more bytes in flight. Its
# loads are of 4 bytes, and a warp's are 128 bytes side by side. It does not matter where a column begins: no vector
# reaches beyond an edge, and no tile overlaps the next.

# %%
show(matvec.whole_rows_kernel)

# %% [markdown]
# **Predict, then run.** A matrix has 1,024 rows and 7 columns. A thread has two of the rows. How many load requests do
# all warps make, for $A$ and for $x$?

# %%
guess = None  # requests

tall = rng.standard_normal((7, 1024), dtype=np.float32).T
own, shared = (lab.count(rung, tall, x[:7]).counters for rung in (matvec.undivided, matvec.last_block))
predict(guess, own["global_load_requests"], unit="requests")

# %%
for name, found in (("undivided", own), ("last_block", shared)):
    print(f"{name:10}: {found['global_load_requests']} load requests, {found['barriers']} barriers")

# %% [markdown]
# A warp has 64 rows, so there are 16 warps. For each column it makes a request for each row of its threads, and one for
# the element of $x$, which serves both. These are more requests than 128-bit loads need, and no barrier is left.

# %% [markdown]
# ## The whole ladder
#
# Shares of the roof at the design size, by rows and by columns.

# %%
plots.drawn(plots.ladder, "matvec", family="by rows")

# %%
plots.drawn(plots.ladder, "matvec", family="by columns")

# %% [markdown]
# By rows the large steps are the first two: sectors that are used as a whole, and enough bytes in flight. Then the bars
# stand at the roof. (More than 100 % is possible: the ceiling is that of a copy, and memory that is only read is
# faster, as in chapter 30.)
#
# By columns there is no first step, since the obvious kernel is coalesced. But 16,384 rows are 16,384 threads there,
# 124 on a multiprocessor. `vectorised` starts no more of them, and each has up to 128 bytes in flight. `fitted` has
# 65,536 threads, in 128 blocks. At this size no sum needs to be cut, and every column begins at a multiple of 16 bytes.
# So `split` and `shifted` do what `fitted` does. `last_block` loads sixteen columns at a time, and gains nothing by
# that here. The columns are far from few, so `undivided` does what `last_block` does.
#
# In the roofline all rungs stand above one another. They do the same work on the same bytes.

# %%
plots.drawn(plots.roofline, "matvec")

# %% [markdown]
# Smaller matrices: on the left the launch is the bound, and all kernels but the first take about the same time. On the
# right it is the memory. There `coalesced` falls behind, too, and the rungs after it stay together.

# %%
plots.drawn(plots.sweep, "matvec", family="by rows")

# %% [markdown]
# And NumPy on the CPU. The product is so cheap that sending the matrix takes far longer than multiplying it. The dashed
# line has both in it, and the solid line is for a matrix that stays on the GPU, as the weights of a network do. In this
# record NumPy's line has a jump and then is flat, though the matrix grows by a factor of 16. So what it shows there is
# not the time of reading a matrix. The likely reason is that NumPy's library divides larger products among many
# threads, and that these wait for each other. Compare the small sizes: there NumPy is done long before a matrix could
# be sent.

# %%
plots.drawn(plots.cpu_gpu, "matvec")


# %% [markdown]
# ## Every shape
#
# The design size is one shape. Here are the others: the time of the best library over that of the last rung. To the
# right of the line ours is faster. Products by rows are circles, those by columns squares.


# %%
def ratios():
    """Of each shape the family, the name, and the time of the best library over that of the last rung."""
    found = {}
    for entry in record.load().entries("matvec"):
        found.setdefault((entry.family, entry.workload), {})[entry.contender] = entry.seconds
    last = matvec.LADDER[-1].name
    both = {key: one for key, one in found.items() if {last, "torch.mv"} <= one.keys()}
    if not both:
        raise record.RecordError(f"nothing is recorded of {last}")
    return [(*key, min(one["torch.mv"], one.get("cupy.matmul", np.inf)) / one[last]) for key, one in both.items()]


# %%
def shapes():
    """A mark for each shape."""
    places, (families, names, times) = -np.arange(len(ratios())), zip(*ratios(), strict=True)
    figure, ax = chart(0.22 * len(places) + 1.2)
    for order, marker in (("by rows", "o"), ("by columns", "s")):
        here = np.array([family.startswith(order) for family in families])
        ax.plot(np.array(times)[here], places[here], marker, label=order)
    ax.axvline(1, color=palette.INK, linewidth=1.2)
    ax.set_yticks(places, names, fontsize=7)
    ax.set(xlabel="time of the best library / ours", xlim=(0, None), title="right of 1: ours is faster")
    ax.legend()
    return figure


plots.drawn(shapes)

# %% [markdown]
# Look at the marks that stand left of the line. Is it the order, the size, or a number that is not a multiple of four?


# %%
def left_of_the_line():
    """Of each order, the shapes of which the library's time is the shorter one."""
    for order in orders:
        of_order = [(name, ratio) for family, name, ratio in ratios() if family.startswith(order)]
        slower = [name for name, ratio in of_order if ratio < 1]
        print(f"{order}: {len(slower)} of {len(of_order)}", *slower, sep=", ")


try:
    left_of_the_line()
except record.RecordError as missing:
    print(missing)

# %% [markdown]
# Compare both lists. Odd sizes alone are not the reason, since most of them stand right of the line. The order matters
# more: by rows only few shapes stand left of it, and these only just. By rows a sum needs no barrier, or only one in
# its block. By columns it takes tiles, blocks of many threads, and now and then a count. Where a product takes a few
# microseconds, that and the launch are most of it. That does not explain the shapes of about 4096 x 4096 by columns,
# which take several times as long. There the library is simply better, and we do not know by what.
#
# ## What to take along
#
# - A product with one vector does half an operation a byte. The time is that of reading the matrix.
# - How a matrix lies in memory decides who works together. Where neighbours belong to one sum, threads share the sum;
#   where they belong to different sums, each thread has its own.
# - Bandwidth takes bytes in flight. Ask for all that a thread needs before the first use of any.
# - The shape decides how many threads a sum gets: one for a row of 16, many blocks for a row of millions. The form of
#   the rule comes from the machine: how many bytes must be under way, and how long a launch takes. Its numbers were
#   chosen by measurements on one GPU.
#
# You need not choose: `matmul.matmul` takes the last rung of this chapter if an operand is a row or a column.
#
# ## Exercises
#
# `check` runs your kernel on several shapes, with every access checked. Replace `pass` by your code.
#
# ### 1. A warp a row

# %%
exercise("matvec/rows")


# %%
@cuda.jit
def rows(a, x, out):
    pass  # your code


check("matvec/rows", rows)

# %% [markdown]
# ### 2. The vector on the left
#
# $x A$, for a matrix in C order. Which threads read neighbours now?

# %%
exercise("matvec/columns")


# %%
@cuda.jit
def columns(a, x, out):
    pass  # your code


check("matvec/columns", columns)

# %% [markdown]
# ### More, without a check
#
# - The digits are rows of 64. How many threads share a row in `vectorised`, and how many in `fitted`? How many lanes
#   have nothing to do in each?
# - Two vectors at a time, $A$ times a matrix with two columns: which loads serve both, and how many sums must a thread
#   keep? How many vectors can one kernel serve before it runs out of registers?
# - A block of eight warps, a row for each, loads $x$ eight times from the cache. Would it help to copy it to shared
#   memory first?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rows_answer(a, x, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    total = np.float32(0)
    if row < out.size:
        for k in range(lane, x.size, 32):
            total += a[row, k] * x[k]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


assert check("matvec/rows", rows_answer)

# %% [markdown]
# *A warp a row.* A warp whose row does not exist brings zeros and takes part in the shuffles. Here it could stay out of
# them, since a row is either there for all lanes of a warp or for none. It may not once several rows share a warp.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def columns_answer(a, x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.size):
            total += x[row] * a[row, column]
        out[column] = total


assert check("matvec/columns", columns_answer)

# %% [markdown]
# *The vector on the left.* Neighbouring threads have neighbouring columns, which are neighbours in memory. It is the
# kernel of rung 1, with the matrix turned around: what was slow for $A x$ is right for $x A$.

# %% jupyter={"source_hidden": true} tags=["answer"]
fitted = matvec.plan_of(*digits.shape, True, True, sms, 1)
print(f"vectorised: 32 threads a row, {64 // 4} of them load; fitted: {fitted.across} threads, all of them load")

# %% [markdown]
# *Digits.* A row of 64 is 16 vectors of four elements. In `vectorised` 16 of 32 lanes load one each, and 16 have
# nothing to do. In `fitted` the few lanes that share a row load several each, and a warp has several rows.

# %% [markdown]
# *Two vectors.* A load of $A$ serves both, and each vector needs loads of its own. A thread keeps a sum for each
# vector, beside 16 elements of $A$ and 16 of each vector if all are to be in flight. A thread has 64 registers here, so
# two vectors fit, and four only if their elements are loaded later than those of $A$. With 32 the tiles of chapter 12
# begin to pay: they keep elements in shared memory.
#
# *Shared memory.* The block would read $x$ once from the cache. But each multiply-add would still load its element from
# shared memory, and on this GPU shared memory and the first cache are the same memory. Little is gained, and it takes a
# barrier.
#
# Go on with [chapter 33](33_reduction_over_axes.ipynb): sums over any axes of an array.
