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
# # 12. Matrix multiplication
#
# *From memory-bound to compute-bound by tiling: coalescing, shared memory, barriers, bank conflicts, register tiles,
# 128-bit access. Read chapter [4](04_vector_add.ipynb) before. 120 minutes. PMPP 4e: section 3.4, chapters 5 and 6; 5e:
# section 3.4, chapters 5, 6 and 15. The code is [pmpp/kernels/matmul/ladder.py](../pmpp/kernels/matmul/ladder.py).*
#
# Two programs multiply the same two matrices on the same chip. One is the obvious kernel of ten lines. The other is
# the vendor's library. Both do the same multiplications and additions, and yet one of them takes many times as long.
#
# **The question of this chapter: where does the time of the obvious kernel go, and how much of it can we win back in
# Python?**

# %%
import functools

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import matmul
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# Times in this chapter come from a *record*: measurements made on a named GPU, with the library in the same run. You
# can measure your own GPU, if you have one, near the end. The *design size* is the one at which the ladder of kernels
# is judged.

# %%
try:
    store = record.load()
    measured = store.entries("matmul", design=True)
    ceilings = store.ceilings("matmul")
    source = store.footer("matmul")
    print(f"{source}; design size n = {measured[0].workload}, float32")
except record.RecordError as missing:  # nothing measured yet: what the vendor promises for an H200
    measured, ceilings = (), roofline.Ceilings(4.8e12, 67e12, "datasheet of an H200", empty_kernel=2e-6, launch=1e-5)
    source = "The ceilings are from the datasheet of an H200"
    print("There are no times to show:", missing)


# %%
def times(*names):
    """Print recorded times at the design size, and how each compares with the one before it."""
    before = None
    found = {entry.contender: entry for entry in measured}
    for entry in (found[name] for name in names if name in found):
        rate = f"{entry.flops / entry.seconds / 1e12:6.2f} TFLOP/s"
        gain = f"   {before / entry.seconds:5.2f} times as fast" if before else ""
        print(f"{entry.contender:15}{entry.median_ms:9.2f} ms {rate}{gain}")
        before = entry.seconds


times("naive", "cupy.matmul")

# %% [markdown]
# The library on the second line is cuBLAS, NVIDIA's own, called through CuPy. TFLOP/s are 10^12 floating-point
# operations a second.
#
# ## The bound
#
# What does the work itself ask for? Take a matrix *A* of *M* rows and *K* columns and a matrix *B* of *K* rows and *N*
# columns. Each of the *M N* elements of *C* = *A B* is a sum of *K* products. A *multiply-add* is one multiplication
# and one addition, so the product takes 2 *M N K* operations.
#
# The least number of bytes is just as easy. Each matrix must move once: 4 (*M K* + *K N* + *M N*) bytes in float32.
# Their ratio is the *arithmetic intensity*, FLOP for each byte moved. For square matrices it is 2 *n*³ / 12 *n*² = *n*
# / 6.

# %%
print(f"memory       {ceilings.bandwidth / 1e12:5.2f} TB/s")
print(f"multiply-add {ceilings.fma_f32 / 1e12:5.2f} TFLOP/s")
print(f"ridge        {ceilings.ridge:5.2f} FLOP/byte ({ceilings.source})")

# %% [markdown]
# These are the two ceilings of the GPU in the record. The *ridge* is where they cross. Work with fewer FLOP a byte
# than the ridge has to wait for memory; work with more has to wait for arithmetic.
#
# **Predict, then run.** From which *n* on does the product of two *n* x *n* matrices wait for arithmetic?

# %%
guess = None  # n

sizes = range(1, 4096)
border = next(n for n in sizes if roofline.bound(matmul.cost(n, n, n), ceilings).side == "compute")
predict(guess, border, within=0.1)

# %%
for n in (16, 64, 128, 1024, 4096):
    cost = matmul.cost(n, n, n)
    least = roofline.bound(cost, ceilings)
    counts = f"{cost.flops:15,} FLOP, {cost.bytes:11,} bytes, {cost.intensity:6.1f} FLOP/byte"
    print(f"n = {n:4}: {counts}, at least {least.seconds * 1e6:8.2f} us: {least.side}")
print(f"The border is n = 6 x ridge = {6 * ceilings.ridge:.0f}.")

# %% [markdown]
# A large product should keep the arithmetic busy, and memory should be idle most of the time. The obvious kernel is
# nowhere near that. It will turn out that it moves far more than the least number of bytes. The way up is to move
# less, first from device memory, then from the memories that are nearer to the arithmetic.
#
# ## The reference
#
# First, code that is slow and plainly right: three loops, with sums in float64.

# %%
show(matmul.reference)

# %%
left, right = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4)
print(matmul.reference(left, right))
print("equal to NumPy:", np.array_equal(matmul.reference(left, right), left @ right))

# %% [markdown]
# ## The first rung, `naive`: one thread for each element
#
# The *M N* sums do not depend on each other, so each can have a thread of its own. `cuda.grid(2)` gives the thread its
# place in a two-dimensional grid. The guard keeps threads beyond the edge of *C* from doing anything (PMPP 4e section
# 3.4).

# %%
show(matmul.naive_kernel)

# %% [markdown]
# Let us use it on something real. A photograph is a matrix with a row for each pixel and three columns: red, green and
# blue. A product with a 3 x 3 matrix mixes the colours. This one gives the brown of an old print: each new colour is a
# weighted sum of the three old ones.

# %%
photograph = data.photographs()[0][::2, ::2]
pixels = (photograph.reshape(-1, 3) / 255).astype(np.float32)
mix = np.array([[0.393, 0.349, 0.272], [0.769, 0.686, 0.534], [0.189, 0.168, 0.131]], np.float32)
brown = device.to_host(matmul.naive(pixels, mix)).reshape(photograph.shape)

figure, axes = plt.subplots(1, 2, figsize=(7.8, 2.7), layout="constrained")
for ax, picture, title in zip(axes, (photograph, brown.clip(0, 1)), ("pixels", "pixels @ mix"), strict=True):
    ax.imshow(picture)
    ax.set_title(title, loc="left")
    ax.axis("off")
print(f"{pixels.shape} @ {mix.shape}: {matmul.cost(len(pixels), 3, 3).intensity:.2f} FLOP/byte")

# %% [markdown]
# It works, and for this product nothing in this chapter would help: with *K* = *N* = 3 its intensity is far to the
# left of the ridge, whatever the kernel. Only large products have something to win. From here on we look at square
# ones.
#
# ## Under the microscope
#
# The interpreter runs a kernel and counts what the hardware would have to do. Threads run in groups of 32, the
# *warps*. When a warp executes a load, that is one *request*. Memory answers in *sectors* of 32 bytes, which hold 8
# float32. If 32 threads want 32 neighbours, 4 sectors do. If they want 32 places far apart, each costs a sector of its
# own.

# %%
N, K, T = 256, 128, 16  # toy matrices: N x K times K x N; T is the side of small tiles, in kernels of our own
a = np.random.default_rng(5).standard_normal((N, K), dtype=np.float32)
b = np.random.default_rng(6).standard_normal((K, N), dtype=np.float32)
reports = {}
assert matmul.BLOCK == matmul.TILE == 32  # the text counts on it
print(f"{N} x {K} times {K} x {N}: {matmul.cost(N, N, K).intensity:.1f} FLOP/byte, were each matrix moved once")

# %% [markdown]
# `lab.count` calls a rung and looks over its shoulder: what the rung launches is run by the interpreter, which counts
# (on a machine with a GPU, too). The result is compared with NumPy's, so that we only count kernels that are right.


# %%
middle = simt.Tracing(blocks=[(1, 1)])  # for pictures of what this block does


def count(rung, trace=False):
    """The report on the kernel that a rung launches for the toy matrices; kept in reports."""
    counted = lab.count(rung, a, b, trace=trace)
    np.testing.assert_allclose(counted.result, a @ b, rtol=0, atol=1e-3)
    reports[rung.name] = counted.reports[0]
    return reports[rung.name]


# %% [markdown]
# **Predict, then run.** Look at the kernel again. It runs in blocks of 32 x 32 threads, and `threadIdx.x` counts
# fastest: a warp is 32 threads with one y, and x from 0 to 31. `row` follows x. When a warp reads `a[row, k]`, all its
# threads at the same `k`, how many sectors does it touch? And when it reads `b[k, column]`?

# %%
guess = {"a[row, k]": None, "b[k, column]": None}  # sectors

trace = count(matmul.naive, trace=middle).trace
loads = {"a[row, k]": trace.accesses("a")[0], "b[k, column]": trace.accesses("b")[0]}
predict(guess, {name: len(load.sectors) for name, load in loads.items()}, unit="sectors")

# %%
reports["naive"]

# %% [markdown]
# The table is the kernel's source with counts beside each line: how many instructions the warps executed, how many of
# their 32 threads took part, and, under *sect/req*, sectors a request. The line with the multiply-add has two loads,
# and its figure is their mean.
#
# The load of *A* touches 32 rows. They are a whole row apart in memory, so each is a sector of its own: 128 bytes are
# wanted, and 1,024 are moved. The load of *B* wants one and the same element for all threads, which is one sector. The
# mean is (32 + 1) / 2. The store is the same story as the load of *A*: 32 rows of *C*, 32 sectors.
#
# The picture shows it, and beside it what we shall do about it. Coloured is what one warp reads of *A* and *B* at one
# step of *k*, here *k* = 5, and which elements of *C* it is working on. *B* stands above *C* and *A* to its left, so
# that an element of *C* is where its row of *A* meets its column of *B*. Vertical lines are borders between sectors.


# %%
def product_picture(axes, in_a, in_b, in_c, title):
    """A at the bottom left, B above C, with what is marked in each. Lines part sectors of 8 elements."""
    for ax, name, marked in zip(axes.flat, ("", "B", "A", "C"), (None, in_b, in_a, in_c), strict=True):
        if marked is None:
            ax.axis("off")
            ax.text(0.5, 0.5, title, ha="center", va="center")
            continue
        ax.pcolormesh(marked, cmap="Oranges", vmin=0, vmax=1.3)
        ax.set(xticks=range(0, marked.shape[1] + 1, 8), yticks=[], aspect="equal")
        ax.set_ylabel(name, rotation=0, labelpad=12)
        ax.invert_yaxis()
        ax.tick_params(bottom=False, labelbottom=False)
        ax.set_axisbelow(False)
        ax.grid(axis="x", color=palette.FAINT)
        ax.spines[:].set_visible(True)


# %%
def marks(rows, columns):
    marked = np.zeros((32, 32))
    marked[rows, columns] = 1
    return marked


lane, k = np.arange(32), 5
fast, slow = lane % matmul.BLOCK, lane // matmul.BLOCK  # threadIdx.x and threadIdx.y of the first warp

figure = plt.figure(figsize=(7.8, 3.9), layout="constrained")
places = {"naive:\nrow = x": (fast, slow), "coalesced:\ncolumn = x": (slow, fast)}
for part, (title, (row, column)) in zip(figure.subfigures(1, 2), places.items(), strict=True):
    product_picture(part.subplots(2, 2), marks(row, k), marks(k, column), marks(row, column), title)

# %% [markdown]
# ## The second rung, `coalesced`: let neighbours read neighbours
#
# The cure costs one line: let x, the fast index of a thread, run along a row of *C*. Threads that differ by one in x
# sit side by side in a warp. So the warp now wants neighbours of *B* and writes neighbours of *C*. Such access is
# called *coalesced* (PMPP 4e section 6.1).

# %%
show(matmul.coalesced_kernel)

# %%
count(matmul.coalesced, trace=middle)

# %% [markdown]
# Now the warp reads one element of *A* for all its threads, and 32 neighbours in *B*, which are four sectors. The mean
# is 2.5 where it was 16.5, and the store takes 4 where it took 32. The work is the same, and so is the order of the
# matrices in memory. Only who does what has changed. The record says what that is worth:

# %%
times("naive", "coalesced", "cupy.matmul")

# %% [markdown]
# Part of this gain is special to powers of two such as *n* = 4096: see *Edges*, below.
#
# What is still wrong? We divide the operations by the bytes that were *asked for*, 32 for each sector counted. That is
# the intensity that a kernel really has, as far as the first cache sees it.


# %%
def facts(*names):
    """For each rung: FLOP for a byte asked of global memory, and shared memory's passes for a warp's multiply-add."""
    for name in names:
        counted = reports[name].counters
        multiply_adds = counted["flops"] / 64  # of whole warps: 2 FLOP for each of 32 threads
        asked = counted["global_load_sectors"] / counted["global_load_requests"]
        shared = counted["shared_load_wavefronts"] / multiply_adds
        print(f"{name:15}{plots.counted_intensity(reports[name]):7.2f} FLOP/byte", end=" ")
        print(f"{asked:7.1f} sectors a load {shared:7.3f} shared wavefronts a multiply-add")


facts("naive", "coalesced")
print(f"{'at least':15}{matmul.cost(N, N, K).intensity:7.2f} FLOP/byte, were each matrix moved once")

# %% [markdown]
# (The last column is for later.) Even when it is coalesced, the kernel asks for five sectors, 160 bytes, for the 64
# operations of a warp's multiply-add. Let us put both rungs on the roofline, at the intensity that was counted.


# %%
def on_the_roof(*names):
    """The recorded rate of each rung over its counted intensity; dotted: from there to the roof."""
    (figure, ax), x = chart(4.8), (0.03, ceilings.ridge, 200)
    ax.loglog(x, [roofline.attainable(i, ceilings) / 1e12 for i in x], color=palette.INK, label="the roof")
    recorded = {entry.contender: entry.flops / entry.seconds / 1e12 for entry in measured}
    for name, colour, marker in zip(names, plots.COLOURS, plots.MARKERS, strict=False):
        intensity = plots.counted_intensity(reports[name])
        roof = roofline.attainable(intensity, ceilings) / 1e12
        ax.plot([intensity] * 2, [recorded.get(name, roof), roof], ":", color=palette.INK, lw=1)
        ax.plot(intensity, recorded.get(name, roof), marker, color=colour, label=name, ms=7)
    ax.set(xlabel="intensity counted on the toy matrices (FLOP/byte asked of global memory)", ylabel="rate (TFLOP/s)")
    ax.set_ylim(top=150)
    plt.setp((ax.xaxis, ax.yaxis), major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, source)
    return figure


# %%
on_the_roof("naive", "coalesced")

# %% [markdown]
# The roof is what device memory alone would allow. The marks, recorded rates, lie above it. That is no mistake: much of
# what the kernels ask for is answered by a cache on the way, which kept it from an earlier request. But a cache keeps
# what it happens to keep. We know which elements will be used again. So we can do on purpose what the cache does by
# luck.
#
# **Your turn.** Before the kernels get longer, change this one. Let *a* and *b* be tables of distances, put a sum in
# the place of the product, and a minimum in the place of the sum. `check` tries awkward sizes, watches every access and
# names the mistake. Hints are there to open when you want one. An answer is at the end of the chapter.

# %%
exercise("matmul/shortest_paths")


# %%
@cuda.jit
def shortest_paths(a, b, c):
    pass  # your code


check("matmul/shortest_paths", shortest_paths)

# %% [markdown]
# ## The third rung, `tiled`: tiles in shared memory
#
# A block of 32 x 32 threads computes a square of *C*. Its threads need 32 rows of *A* and 32 columns of *B*. Here is
# how often they asked for each element, in the second block of the second row of blocks. (`count` kept a trace of it.)

# %%
plots.heat(reports["coalesced"], ["a", "b", "c"], block=(1, 1))

# %% [markdown]
# The threads of a block read the same elements over and over.
#
# A GPU consists of many *multiprocessors*, and each has a small fast memory on the chip that a program manages itself:
# *shared memory*. A block runs on one multiprocessor, and all its threads see the same shared memory. So let the block
# fetch each element once, put it there, and let all threads use it. 32 long rows do not fit, so we go along *K* in
# steps. In each step the block loads one square of *A* and one of *B*, the *tiles*, and every thread adds the products
# that these two tiles give to its sum (PMPP 4e sections 5.3 and 5.4).
#
# The tile's side is `TILE`, and a block has `TILE` x `TILE` threads, one for each place in a tile. In the step that
# begins at `k0`, thread (x, y) loads one element of *A*, in its own row, and one of *B*, in its own column. Then it
# does `TILE` multiply-adds, with elements that other threads have loaded. The loads are coalesced: x runs along a row
# of both matrices. (`element` gives zeros beyond the edge; we come to it later.)
#
# `np.uint32` makes an index unsigned: it then needs no test for negative values, which Numba would otherwise add.
#
# Two lines are new, `cuda.syncthreads()`. Each is a *barrier*: no thread of the block goes on before all have arrived.

# %%
show(matmul.tiled_kernel)

# %% [markdown]
# **Predict, then run.** In a step, a block loads two tiles of 32 x 32 elements with 4 bytes each. It does 32
# multiply-adds for each of its 32 x 32 threads. How many FLOP is that for each byte that it loads?

# %%
guess = None  # FLOP/byte

counted = count(matmul.tiled, trace=middle).counters
predict(guess, counted["flops"] / (32 * counted["global_load_sectors"]), unit="FLOP/byte", exact=True)

# %%
facts("coalesced", "tiled")

# %% [markdown]
# 2 `TILE`³ operations for 8 `TILE`² bytes are `TILE` / 4 FLOP a byte. The table has a little less, because *C* must be
# stored as well; in a small product that weighs more. The larger the tile, the fewer bytes: twice the side, twice the
# intensity. And the same block as before now asks for each element once, in the order of the tiles:

# %%
plots.heat(reports["tiled"], ["a", "b", "c"], block=(1, 1))

# %%
plots.heat(reports["tiled"], ["a", "b"], block=(1, 1), by="order")

# %%
on_the_roof("naive", "coalesced", "tiled")

# %% [markdown]
# ### Why two barriers
#
# The first barrier stands between writing the tiles and reading them. The second stands between reading them and
# overwriting them in the next step. What happens if one is missing? Here is a small tiled kernel from which we can
# leave out either.


# %%
@cuda.jit
def small_tiled(a, b, c, first, second):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = a[cuda.blockIdx.y * T + y, k0 + x]
        b_tile[y, x] = b[k0 + y, cuda.blockIdx.x * T + x]
        if first:
            cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        if second:
            cuda.syncthreads()
    c[cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x] = total


# %% [markdown]
# At level `"check"` the interpreter watches who touches which element between two barriers. If one thread writes it
# and another reads or writes it, that is a *race*: the result depends on who comes first.

# %%
small = a[:64, :64].copy(), b[:64, :64].copy()
for first, second in ((True, True), (False, True), (True, False)):
    c = np.zeros((64, 64), np.float32)
    found = simt.profile(small_tiled, (4, 4), (T, T), (*small, c, first, second), level="check", collect=True)
    error = abs(c - small[0] @ small[1]).max()
    print(f"first barrier {first}, second {second}: largest difference from NumPy {error:.0e}")
    for hazard in found.hazards:
        print(f"   {hazard.kind}: {hazard.message}")

# %% [markdown]
# Look at the differences first: every kernel gave the right result here. The interpreter runs all threads in step, and
# a GPU may do nearly so for a long time. Then one day a warp is late. **A right result does not show that there is no
# race.** The check does not look at results; it looks at accesses, and names the two that nothing keeps in order.
#
# Without the first barrier, a thread may read a place of the tile that its owner has not written yet. Without the
# second, a fast warp puts the next tile over one that a slow warp still reads. Each barrier guards one direction, so
# both are needed.

# %% [markdown]
# ### Bank conflicts
#
# Shared memory has 32 *banks*, each 4 bytes wide: word *i* lies in bank *i* mod 32. In one pass, a *wavefront*, each
# bank gives one word. If the threads of a warp want different words of one bank, they queue: that is a *bank
# conflict*.
#
# The kernels up to here have none, since they read along rows, or all the same word. But the next rungs will store a
# tile *transposed*, down a column, and you will want to in the exercises. What does that cost?
#
# Here is a kernel that does nothing else. How many places a row of its tile has is left open.


# %%
def turn(places: int):
    """The report on a kernel whose warps write down the columns of a tile with rows of so many places."""

    @cuda.jit
    def turn_kernel(source, out):
        tile, x, y = cuda.shared.array((32, places), np.float32), cuda.threadIdx.x, cuda.threadIdx.y
        tile[x, y] = source[y, x]  # a warp has one y
        cuda.syncthreads()
        out[y, x] = tile[y, x]

    return simt.profile(turn_kernel, 1, (32, 32), (a[:32, :32].copy(), np.zeros((32, 32), np.float32)))


# %% [markdown]
# **Predict, then run.** A warp writes one column of the tile. How many wavefronts does that take if a row has 32
# places? And if it has 33, one of them unused?

# %%
guess = {"32 places": None, "33 places": None}  # wavefronts

stores = {n: turn(n).counters for n in (32, 33)}
waves = {n: count["shared_store_wavefronts"] // count["shared_store_requests"] for n, count in stores.items()}
predict(guess, {f"{n} places": wavefronts for n, wavefronts in waves.items()}, unit="wavefronts")

# %% [markdown]
# The picture shows why. The colour of a place is its bank, and one column is framed. With 32 columns, going down one
# row is going 32 words further: the same bank again, and 32 stores queue. With 33, each row begins one bank further
# on, so a column visits all banks. This is called *padding*. It costs 32 words that nobody uses.

# %%
figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.9), layout="constrained")
for ax, columns in zip(axes, (32, 33), strict=True):
    banks = np.arange(32 * columns).reshape(32, columns) % 32
    image = ax.imshow(banks, cmap="viridis", aspect="auto")
    ax.add_patch(plt.Rectangle((4.5, -0.5), 1, 32, fill=False, edgecolor=palette.WRONG, linewidth=2))
    ax.set_title(f"{columns} columns; banks in column 5: {len(set(banks[:, 5]))}")
    ax.set(xlabel="column of the tile", ylabel="row of the tile")
    ax.grid(visible=False)
colours = figure.colorbar(image, ax=axes, label="bank")

# %% [markdown]
# ### What is still wrong
#
# The tiles have moved the kernel to the right by a factor of more than ten. Has it become that much faster?

# %%
times("naive", "coalesced", "tiled", "cupy.matmul")
print("Still wrong:", matmul.tiled.leaves)

# %% [markdown]
# It has not, and device memory is no longer to blame: on the roofline its mark is well *below* the roof. So something
# else is the bound.
#
# Count what happens inside a multiprocessor. In each cycle it can start multiply-adds for 4 warps, 128 threads. In the
# same cycle, shared memory answers one wavefront. (NVIDIA, *CUDA C++ Programming Guide*, throughput of arithmetic
# instructions, compute capability 9.0.) So a warp may need no more than a quarter of a wavefront for each of its
# multiply-adds, or the arithmetic has to wait.


# %%
def shared_roof(*names):
    """The share of the arithmetic that shared memory can feed, and the share that was recorded."""
    for name in names:
        counted = reports[name].counters
        wavefronts = counted["shared_load_wavefronts"] / (counted["flops"] / 64)
        print(f"{name:15}{wavefronts:6.3f} wavefronts a multiply-add:", end=" ")
        print(f"by the source, at most {min(1, 0.25 / wavefronts):4.0%}", end="")
        shares = [e.flops / e.seconds / ceilings.fma_f32 for e in measured if e.contender == name]
        print("".join(f", recorded {share:4.0%}" for share in shares), "of the multiply-add ceiling")


shared_roof("tiled")

# %% [markdown]
# The kernel loads twice for each multiply-add, one element of each tile, and it could afford a quarter of a load. It
# is memory-bound again, one level nearer to the arithmetic. The cure is the same as before: fetch once, use often.
# This time from shared memory into *registers*, the few hundred places that belong to one thread alone and need no
# load at all.
#
# (The estimate takes the source at its word. A compiler may join loads of neighbours, and then a record can lie above
# it.)
#
# ## The fourth rung, `coarsened`: more work for each thread
#
# Give a thread more than one element of *C*. If they are in one column, they all need the same element of *B* at the
# same step. It is loaded once, kept in a register, and used for all of them. There are fewer threads, and each does
# more: this is *thread coarsening* (PMPP 4e section 6.3). Compare with `tiled_kernel`: the tiles and the barriers are
# the same, and the sum has become an array of sums.

# %%
print("COARSENING =", matmul.COARSENING)
show(matmul.coarsened_kernel)

# %% [markdown]
# `cuda.local.array` makes an array that is private to a thread. If it is small, and its indices are known when the
# kernel is compiled, the compiler keeps its elements in registers. That is why the inner loop has a fixed number of
# turns.
#
# **Predict, then run.** A thread now loads one element of *B*'s tile and `COARSENING` elements of *A*'s for as many
# multiply-adds. How many wavefronts a multiply-add is that?

# %%
guess = None  # wavefronts a multiply-add

counted = count(matmul.coarsened).counters
predict(guess, counted["shared_load_wavefronts"] / (counted["flops"] / 64), exact=True)

# %%
shared_roof("tiled", "coarsened")
times("tiled", "coarsened", "cupy.matmul")
print("Still wrong:", matmul.coarsened.leaves)

# %% [markdown]
# Nearly half of the loads are gone, and the estimate has nearly doubled. The record lies above it again, because the
# compiler joins loads: [chapter 98](98_instruments.ipynb) has what a GPU executed of both kernels.
#
# **Your turn.** Take the smallest step in this direction: a tiled kernel whose threads compute two elements each, side
# by side and not one above the other. Which of the two loads does that save?

# %%
exercise("matmul/two_columns")


# %%
@cuda.jit
def two_columns(a, b, c):
    pass  # your code


check("matmul/two_columns", two_columns)

# %% [markdown]
# ## The fifth rung, `register_tiled`: a tile in registers
#
# Using each value of *B* many times took away one of two loads. To take away the other, each value of *A* must be used
# many times as well. So let a thread compute a rectangle of *p* x *q* elements of *C*. In each step of *k* it loads
# *p* values of *A* and *q* values of *B* and multiplies each with each. That is an *outer product*: *p q*
# multiply-adds for *p* + *q* loads.

# %%
registers = device.limits().get("max_registers_per_block", 65536)  # as many as a multiprocessor has
for p, q in ((1, 1), (matmul.COARSENING, 1), (4, 4), (8, 8), (matmul.THREAD_M, matmul.THREAD_N), (16, 16)):
    taken = p * q + p + q
    print(f"{p:2} x {q:2}: {p + q:2} loads for {p * q:3} multiply-adds, {(p + q) / (p * q):5.3f} each;", end=" ")
    print(f"{taken:3} registers for them, enough for {min(registers // taken, 2048):5,} threads")

# %% [markdown]
# The two ends of each line pull in opposite directions. A multiprocessor has 65,536 registers for all its threads, and
# room for 2,048 threads. The more registers each takes, the fewer threads there are, and it is other threads that fill
# the time while one waits (PMPP 4e sections 4.6, 4.7 and 5.6). Also, no thread can have more than 255: the last line
# is out of reach. The room takes the line before it.
#
# The block's tile has grown too, and the tiles of *A* and *B* are no longer square: `SIDE` rows or columns, `DEPTH`
# steps. Below, one thread's share is dark and that of its warp is light; the steps of *k* are drawn wider than rows and
# columns. A thread's elements are spread over the whole tile, so that the threads of a warp read neighbours of *B*'s
# tile and have no bank conflicts.

# %%
side, depth = matmul.SIDE, matmul.DEPTH
in_a, in_b, in_c = np.zeros((side, depth)), np.zeros((depth, side)), np.zeros((side, side))
for thread in range(31, -1, -1):  # the first warp; its first thread last, and darkest
    x, y = thread % matmul.THREADS_N, thread // matmul.THREADS_N
    rows = y + np.arange(matmul.THREAD_M) * matmul.THREADS_M
    columns = x + np.arange(matmul.THREAD_N) * matmul.THREADS_N
    in_a[rows, 0] = in_b[0, columns] = in_c[np.ix_(rows, columns)] = 0.35 if thread else 1.3
print(f"{matmul.THREADS} threads for {side} x {side} elements of C: {(in_c > 1).sum()} a thread")

figure = plt.figure(figsize=(5.6, 5.2), layout="constrained")
axes = figure.subplots(2, 2, width_ratios=(6 * depth, side), height_ratios=(6 * depth, side))
product_picture(axes, in_a, in_b, in_c, "k = 0")
axes[0, 1].set_aspect(6)  # steps of k wider than rows and columns, or they could not be seen
axes[1, 0].set_aspect(1 / 6)

# %%
show(matmul.register_tiled_kernel)

# %% [markdown]
# Two things to notice in the code. *A*'s tile lies transposed in shared memory, so that the values that are needed in
# one step lie in one row. And its rows have `PITCH` places, a few more than they need: the padding from above, since
# it is stored down its columns.

# %%
count(matmul.register_tiled)
facts("tiled", "coarsened", "register_tiled")
shared_roof("tiled", "coarsened", "register_tiled")

# %% [markdown]
# Shared memory could now feed the arithmetic in full. And the larger tile has pushed the intensity past the ridge: a
# block that computes `SIDE` x `SIDE` elements does `SIDE` / 4 = 32 FLOP for each byte of *A* and *B* that it asks for.
# In a product as small as ours the stores of *C* weigh more, and the count is lower.

# %%
times("coarsened", "register_tiled", "cupy.matmul")
on_the_roof("naive", "coalesced", "tiled", "coarsened", "register_tiled")

# %% [markdown]
# The last mark has arrived under the flat part of the roof: neither memory is the bound any more. What lies between it
# and the roof is not traffic. It is *instructions*: a multiprocessor starts at most four in a cycle, one for
# each of four warps, and whoever starts a load or computes an address does not start a multiply-add. And it is
# *waiting*, for loads that have been started and not come back yet. The remaining rungs deal with one after the other.

# %%
print("Still wrong:", matmul.register_tiled.leaves)

# %% [markdown]
# ## The sixth rung, `vectorised`: four elements an instruction
#
# One instruction can load 16 bytes, four float32, if the address is a multiple of 16. [Chapter 4](04_vector_add.ipynb)
# introduced `load128` and `store128`. Here they are used on both memories. This is the step that all threads do for
# each *k*, once the tiles are there: load *p* values and *q* values, four at a time, then multiply each with each.

# %%
show(matmul.multiply_step)

# %%
count(matmul.vectorised)
for name in ("register_tiled", "vectorised"):
    counted = reports[name].counters
    for space, moved in (("global", "sectors"), ("shared", "wavefronts")):
        requests, passes = counted[f"{space}_load_requests"], counted[f"{space}_load_{moved}"]
        print(f"{name:15} {space} loads: {requests:7,} requests, {passes:7,} {moved}")
times("register_tiled", "vectorised", "cupy.matmul")

# %% [markdown]
# As many sectors, and a quarter of the requests: the bytes are the same, and it takes fewer instructions to ask for
# them. The wavefronts are half as many. Lanes of a warp lie in squares of 2 x 2, so neighbours ask for the same vector,
# and shared memory then serves sixteen lanes at a time instead of eight ([chapter 98](98_instruments.ipynb) has more).
# 128-bit access wants rows that begin at multiples of 16 bytes. Where that is not so, the rung works on padded copies.
#
# **Your turn.** One step of *k*, by itself: the outer product of a column *x* and a row *y*, with a square of 4 x 4 in
# the registers of each thread, and 16 bytes for each access.

# %%
exercise("matmul/outer_product")


# %%
@cuda.jit
def outer_product(x, y, c):
    a, b = load128(x, 0), load128(y, 0)  # which elements?
    store128(c, 0, (a[0] * b[0], a[0] * b[1], a[0] * b[2], a[0] * b[3]))  # one row of four


check("matmul/outer_product", outer_product)

# %% [markdown]
# ## To the top: load while you multiply
#
# So far a block loads, waits, multiplies, waits, loads again. The time from a request to its answer is its *latency*:
# some tens of cycles for shared memory, hundreds for device memory. While a thread waits, other warps can fill the gap
# (PMPP 4e section 4.6), but with so many registers for each thread there are few other warps. So a thread must help
# itself, and ask for its next operands before it works on the present ones. The picture is a sketch, not to scale.

# %%
figure, axes = plt.subplots(2, 1, figsize=(7.8, 2.4), layout="constrained", sharex=True)
steps = range(4)
axes[0].broken_barh([(5 * i, 1.9) for i in steps], (1, 0.8), color=palette.COLOURS[0], label="load tiles")
axes[0].broken_barh([(5 * i + 2, 2.9) for i in steps], (0, 0.8), color=palette.OWN, label="multiply")
axes[1].broken_barh([(0, 1.9), *((2 + 3 * i, 1.9) for i in range(3))], (1, 0.8), color=palette.COLOURS[0])
axes[1].broken_barh([(2 + 3 * i, 2.9) for i in steps], (0, 0.8), color=palette.OWN)
for ax, title in zip(axes, ("one after the other", "the next tiles are loaded during the multiplication"), strict=True):
    ax.set(yticks=[], xticks=[], title=title)
    ax.spines[:].set_visible(False)
axes[1].set_xlabel("time")
legend = figure.legend(loc="outside right upper")

# %% [markdown]
# What comes after `vectorised` in the ladder does this. In the room's own words:

# %%
names = [rung.name for rung in matmul.LADDER]
last = matmul.LADDER[names.index("vectorised") + 1 :]
for rung in last:
    print(f"{rung.name}: {rung.idea}\n   Still wrong: {rung.leaves}")

# %% [markdown]
# **Predict, then run.** We count `prefetched` as before, and compare it with `vectorised`. Does it load fewer sectors?
# Does it take fewer wavefronts?

# %%
guess = {"sectors": None, "wavefronts": None}  # True if there are fewer

before, after = reports["vectorised"].counters, count(matmul.prefetched).counters
counters = {"sectors": "global_load_sectors", "wavefronts": "shared_load_wavefronts"}
predict(guess, {what: after[counter] < before[counter] for what, counter in counters.items()})

# %%
facts("vectorised", *(rung.name for rung in last))
times("vectorised", *(rung.name for rung in last), "cupy.matmul")

# %% [markdown]
# The traffic is the same. The interpreter counts work; it does not know *when* things happen, and here little else has
# changed than the order. That has to be measured. It is worth remembering in both directions: counters tell you what
# can be saved, and a clock tells you whether it was.
#
# ## All rungs
#
# Now the whole way at once, by the traffic that each rung asks for. The first rungs go to the right, along the slope
# of the roof: they move less. The last ones go up, under its flat part: they wait less.

# %%
on_the_roof(*names)

# %% [markdown]
# And by the share of the roof that the work itself has, counted with the least bytes. The length of a bar is the share.
# The last row is NumPy, on the CPU of the same machine.


# %%
plots.drawn(plots.ladder, "matmul")

# %%
found = {entry.contender: entry for entry in measured}
if names[0] in found and names[-1] in found:
    first, final = found[names[0]], found[names[-1]]
    library = min((entry for entry in measured if entry.kind == "library"), key=lambda entry: entry.seconds)
    print(f"{final.contender}: {first.seconds / final.seconds:.0f} times as fast as {first.contender},")
    print(f"{library.seconds / final.seconds:.0%} of the speed of {library.contender},")
    print(f"{final.flops / final.seconds / ceilings.fma_f32:.0%} of the multiply-add ceiling")

# %% [markdown]
# The first of these figures rests partly on a bad case of `naive` that is special to powers of two such as *n* = 4096:
# see *Edges*, below.
#
# ## From small to large
#
# A ladder has an order for one size. Over all sizes it looks different.

# %%
plots.drawn(plots.sweep, "matmul", family="matmul")

# %% [markdown]
# On the left the middle of the ladder leads: `tiled` and `coarsened` are ahead of the last three rungs. A product of 64
# x 64 is less than one block of these, so one multiprocessor works and all others look on. With small tiles there are
# more blocks to share out. (The shading is for a kernel at the ceilings: there an empty launch would take longer than
# the work. The slow rungs on the left are limited by too few blocks.) On the right there is enough work for all, and
# what counts is how few bytes and instructions each multiply-add takes. A library has many kernels and chooses among
# them by size. The choice is a part of what makes it good.
#
# And the CPU?

# %%
plots.drawn(plots.cpu_gpu, "matmul", family="matmul")

# %% [markdown]
# Small products NumPy has done, on all cores of the CPU, before a GPU has been sent the matrices. Large ones are worth
# the journey, transfers included: a matrix of *n* x *n* is sent once, and each of its numbers is used *n* times. The
# addition of [chapter 4](04_vector_add.ipynb) used each number once.
#
# ## Memory or compute
#
# Large squares wait for arithmetic. A large product need not: if *K* is small, *C* is large for the work that it takes.
# Let *M* = *N* = 8192.
#
# **Predict, then run.** From which *K* on does a product of 8192 x *K* and *K* x 8192 wait for arithmetic? (*C* has far
# more bytes than *A* and *B* then. The ridge stands above.)

# %%
guess = None  # K

depths = range(1, 8192)
border = next(k for k in depths if roofline.bound(matmul.cost(8192, 8192, k), ceilings).side == "compute")
predict(guess, border, within=0.1)

# %% [markdown]
# 2 *M N K* operations for 4 *M N* bytes are *K* / 2 FLOP a byte. *A* and *B* add a few bytes, so the border lies a
# little above twice the ridge. The next figure has measurements on both sides of it.

# %%
title = "matmul: 8192 x K times K x 8192"
plots.drawn(plots.sweep, "matmul", family="depth", xlabel="depth K (M = N = 8192)", title=title)

# %% [markdown]
# The dashed line is what the ceilings allow. On its slope memory is the bound: the rate grows with *K*, because the
# time is that of storing *C*, whatever the work. On its flat part arithmetic is, and the time grows with *K*. (At *K* =
# 2 and 4 the last rung works on padded copies of all three matrices, for its tiles are 8 deep.)
#
# ## Edges
#
# The extents of a matrix are rarely multiples of a tile. Three rules make the kernels right for any size (PMPP 4e
# section 5.5). A load beyond an edge gives zero, which adds nothing to a sum. A store beyond an edge is not done. And
# no thread leaves early: one that has no element of *C* still has places in the tiles to fill.

# %%
show(matmul.element)

# %%
odd = np.random.default_rng(6).standard_normal((37, 29), dtype=np.float32)
other = np.random.default_rng(7).standard_normal((29, 41), dtype=np.float32)
allowed = 30 * 2**-24 * (abs(odd).astype(float) @ abs(other)).max()  # each product and each sum rounds once
for rung in (matmul.naive, matmul.tiled, matmul.register_tiled, matmul.LADDER[-1]):
    error = abs(device.to_host(rung(odd, other)) - matmul.reference(odd, other)).max()
    print(f"{rung.name:15} 37 x 29 times 29 x 41: largest error {error:.1e}, allowed {allowed:.1e}")

# %% [markdown]
# What is allowed is not chosen to fit. Each of the 29 products is rounded once, and so is each addition, by at most
# 2⁻²⁴ of the sum of the absolute values.
#
# The record also has sizes that fit no tile. The first figure is the design size.

# %%
for name in names if measured else ():
    entries = sorted(store.entries("matmul", contender=name), key=lambda entry: abs(entry.x - 4096))
    near = [entry for entry in entries if abs(entry.x - 4096) < 2]
    print(f"{name:15}", *(f"n = {entry.x}: {entry.median_ms:7.2f} ms  " for entry in near))

# %% [markdown]
# For most rungs the guards cost next to nothing. The last rungs pay, since at 4095 most rows do not begin at a multiple
# of 16 bytes: they first make padded copies. At 4097 they pay more. Part of it may be the extra row and column of
# tiles: 33 x 33 blocks of `SIDE` x `SIDE`, where 4095 and 4096 take 32 x 32. But `register_tiled` has as many blocks
# and loses little, so this cannot be all.
#
# The first rung does the opposite: it is much faster at 4095 than at 4096. A likely reason: at 4096 the rows of *A* lie
# 16,384 bytes apart, a cache finds the place for a line by its address, and addresses that differ by a power of two
# have to share few places. A warp of `naive` wants 32 such rows at a time. `register_tiled` is faster at 4095 as well,
# though not by much. Its warps load from several rows of *A* at a time, so a likely reason is the same.
#
# **Your turn.** Give this kernel with tiles of 16 x 16 its three guards. (The shape of a shared array has to be made of
# constants, such as `(T, T)` or `(32, 33)`: Numba wants to know it when it compiles the kernel.)

# %%
exercise("matmul/any_size")


# %%
@cuda.jit
def any_size(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = a[row, k0 + x]
        b_tile[y, x] = b[k0 + y, column]
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    c[row, column] = total


# %%
check("matmul/any_size", any_size)

# %% [markdown]
# ## Digits
#
# One more real input, of an awkward shape. We have images of handwritten digits, 8 x 8 pixels. The mean of all sevens
# is a blurred seven, a *template*. To read a new image *x*, look for the template *t* that is nearest. The distance is
# |*x* − *t*|² = |*x*|² − 2 *x*·*t* + |*t*|², and |*x*|² is the same for all templates. So we need *x*·*t* for every
# image and every template: the matrix of images times the transposed matrix of templates.

# %%
images, labels = data.digits()
vectors = images.reshape(-1, 64)
known, new = slice(0, 900), slice(900, None)
templates = np.stack([vectors[known][labels[known] == digit].mean(axis=0) for digit in range(10)])
products = device.to_host(matmul.LADDER[-1](vectors[new], templates.T))
guesses = np.argmax(products - (templates**2).sum(axis=1) / 2, axis=1)
print(f"{vectors[new].shape} @ {templates.T.shape}")
print(f"{(guesses == labels[new]).mean():.1%} of the digits are right")

figure, axes = plt.subplots(1, 10, figsize=(7.8, 1.0), layout="constrained")
for ax, template in zip(axes, templates, strict=True):
    ax.imshow(template.reshape(8, 8), cmap="Greys")
    ax.axis("off")

# %% [markdown]
# `templates.T` is a view in Fortran order: nothing was moved to transpose it, and the rungs accept it as it is.
#
# But is the last rung the right one here?
#
# **Predict, then run.** There are 897 images and 10 templates. A block of the last rung computes 128 x 128 elements.
# What share of all elements that its blocks compute is in *C*?

# %%
guess = None  # % of the elements

m, n = products.shape
blocks = -(-m // matmul.SIDE) * -(-n // matmul.SIDE)
predict(guess, 100 * m * n / (blocks * matmul.SIDE**2), unit="%", factor=1.25)

# %%
for rung, tile in ((matmul.tiled, matmul.TILE), (matmul.LADDER[-1], matmul.SIDE)):
    blocks = -(-m // tile) * -(-n // tile)
    print(f"{rung.name:12} {blocks:3} blocks of {tile} x {tile}, {m * n / (blocks * tile**2):5.1%} of it in C")

# %% [markdown]
# Most of what the last rung computes is thrown away, and only a handful of multiprocessors has a block at all. The
# best rung for large squares is a poor one for this shape. (It is quick all the same: there is little to do.)
#
# ## On your GPU
#
# If kernels run on a GPU here, this cell measures rungs on it; put others into the list, and each takes a second or two
# to compile. In the interpreter the cell says that it cannot measure.

# %%
n = 2048
chosen = matmul.coalesced, matmul.tiled, matmul.register_tiled, matmul.LADDER[-1]
if device.on_gpu():
    from pmpp.lab.measure import timing

    operands = [device.to_device(np.random.default_rng(i).standard_normal((n, n), dtype=np.float32)) for i in range(2)]
    out = device.empty((n, n), np.float32)
    for rung in chosen:
        call = functools.partial(rung, out=out)
        taken = timing.measure(call, [tuple(operands)], cache="warm", max_seconds=0.25)
        rate = matmul.cost(n, n, n).flops / taken.median / 1e12
        print(f"{rung.name:15}{taken.median * 1e3:9.3f} ms {rate:6.2f} TFLOP/s")
else:
    print("No GPU here: the interpreter counts, it does not time. The recorded times are above.")

# %% [markdown]
# ## What to take along
#
# - Count operations and bytes first. A large product has *n* / 6 FLOP a byte: it ought to be compute-bound.
# - A kernel has the intensity of what it *asks for*. Coalescing, tiles in shared memory and tiles in registers each
#   raise it, at one level of the memory after the other.
# - A barrier goes between writing and reading shared data, and another between reading and writing it anew.
# - Word *i* of shared memory is in bank *i* mod 32. Padding moves columns to different banks.
# - When traffic is no longer the bound, instructions are, and then waiting is. Counters show the first two. Only a
#   clock shows the third.
#
# Not used here: *tensor cores*, units that multiply small tiles in one instruction, in lower precision.
# [Chapter 40](40_tensor_cores.ipynb) is about them. The record's library ran in float32 throughout, like our rungs.
#
# To read on: PMPP 4e section 6.4 has all of these as a checklist. S. Boehm, *How to optimize a CUDA matmul kernel*
# (2022), walks a similar ladder in C. NVIDIA's *CUTLASS: efficient GEMM in CUDA* describes what comes after it.
#
# ## Exercises
#
# Write the kernel, run the cell, and let `check` look at it, as above. The answers are at the end, folded away.
#
# A layer of a neural network is often stored with a row of weights for each output, and then needs *A* *B*ᵀ. So did
# the digits.

# %%
exercise("matmul/transposed")


# %%
@cuda.jit
def transposed(a, b, c):
    pass  # your code


check("matmul/transposed", transposed)

# %% [markdown]
# A matrix times a vector uses each element of the matrix once, so there is nothing to reuse, and no tile can raise its
# intensity above half a FLOP a byte. A tile is still good for something.

# %%
exercise("matmul/gemv")


# %%
@cuda.jit
def gemv(a, x, y):
    pass  # your code


check("matmul/gemv", gemv)

# %% [markdown]
# More to try, without a check:
#
# 1. `tiled` with `TILE` = 16: what do `facts` and `shared_roof` say? Which of the two gets worse, and why only that
#    one?
# 2. Leave out the padding: what would `PITCH = SIDE` cost in `register_tiled`? Count it.
# 3. From the table of rectangles: what is the largest square rectangle that fits in 255 registers?
#
# ## Answers
#
# The answers are kernels of the package, shown and checked here. Unfold a cell to see one.
#
# **any_size.** Three guards, and each is different: *A*'s load is bounded by *A*'s rows and by *K*, *B*'s by *K* and
# by *B*'s columns, the store by *C*. A guard around everything would be wrong: threads without an element of *C* would
# not fill their places in the tiles, and would be missing at the barriers.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.matmul import exercises as answers

show(answers.any_size_answer)
assert check("matmul/any_size", answers.any_size_answer)

# %% [markdown]
# **transposed.** *B*'s tile is loaded like *A*'s, with x along *k*: a row of the tile is a row of *B*, which is a
# column of *B*ᵀ. The multiplication then reads down a column of the tile, so it has one place more in each row. One
# could also turn the tile over while storing it; then the store goes down a column, and the padding is needed there.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.transposed_answer)
assert check("matmul/transposed", answers.transposed_answer)

# %% [markdown]
# **two_columns.** Three loads for two multiply-adds: the load of *A*'s tile is shared. A compiler often finds out by
# itself that `a_tile[y, k]` has been loaded already; a variable of your own does not depend on it.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.two_columns_answer)
assert check("matmul/two_columns", answers.two_columns_answer)

# %% [markdown]
# **shortest_paths.** The sum becomes a minimum, and the product a sum. Only the first value differs: a minimum begins
# with infinity. So this is a matrix product with other operations, and all that the chapter does to one could be done
# to it.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.shortest_paths_answer)
assert check("matmul/shortest_paths", answers.shortest_paths_answer)

# %% [markdown]
# **outer_product.** Two loads and four stores for 16 multiplications, all of 16 bytes. One guard is enough, since no
# square is cut in two.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.outer_product_answer)
assert check("matmul/outer_product", answers.outer_product_answer)

# %% [markdown]
# **gemv.** The warp reads a row of the tile together, 32 times. Then each thread sums along its own row. To the warp
# that is a column: hence 33 columns. The product stays memory-bound, but each sector of *A* is asked for once.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.gemv_answer)
assert check("matmul/gemv", answers.gemv_answer)

# %% [markdown]
# **Without a check.** (1) With `TILE` = 16 the intensity halves, because each element from global memory serves half
# as many threads. The wavefronts stay at two a multiply-add: a smaller tile does not change how often a thread reads
# shared memory. (2) The cell below counts it for the first warp, whose threads store `DEPTH` elements down each
# column. (3) *p*² + 2 *p* ≤ 255 gives *p* = 15, and no register is left for an address.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
thread = np.arange(32)
for pitch in (matmul.SIDE, matmul.PITCH):
    banks = (thread % matmul.DEPTH * pitch + thread // matmul.DEPTH) % 32
    print(f"a pitch of {pitch}: {np.bincount(banks).max()} wavefronts for a store into A's tile")

# %% [markdown]
# Go on with [chapter 16](16_transpose.ipynb): how threads should ask memory for what they need.
