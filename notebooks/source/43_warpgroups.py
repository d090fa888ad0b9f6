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
# # 43. Warpgroups
#
# *Products by four warps on Hopper: operands in shared memory, products and copies that are under way, producers and
# consumers, numbers of 8 bits. Read chapters [8](08_warps.ipynb), [16](16_transpose.ipynb),
# [18](18_when_a_kernel_is_wrong.ipynb), [36](36_products_of_any_shape.ipynb) and [40](40_tensor_cores.ipynb) before.
# 60 minutes. PMPP 4e: chapter 6; 5e: section 15.9. The code is
# [pmpp/kernels/matmul/warpgroups.py](../pmpp/kernels/matmul/warpgroups.py).*
#
# [Chapter 40](40_tensor_cores.ipynb) ended at about two thirds of what cuBLAS does. Its matrix instruction runs on
# every GPU since Ampere. But a GPU of the Hopper generation has one that no GPU before it had, and none after it has:
# *wgmma*. Next to it stands the engine that copies whole tiles.
#
# **The question of this chapter: what remains for the threads of a block to do when one unit multiplies and another one
# copies, and how do they tell one another that something is ready?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.matmul import products, tensor_cores, warpgroups
from pmpp.lab.draw import knobs, palette, plots, shapes
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record
from pmpp.lab.measure.shapes import running
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    commit_stores,
    copies_visible,
    place_map,
    tensor_map,
    tile_descriptor,
    wait_stores,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_s8,
    wgmma_wait,
)
from pmpp.simt.values.tensor_cores import values_of_8_bits

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# In chapter 40 a warp computed 64 x 64 elements of *C*. For every 16 columns of *A* it loaded four fragments of *A* and
# eight of *B* from shared memory into registers, and multiplied them by 32 instructions.
#
# **Predict, then run.** How many operations does a warp do there for each byte that it loads from shared memory?

# %%
guess = None  # FLOP/byte

side, step = 64, 16
predict(guess, 2 * side * side * step / (2 * step * (side + side)), unit="FLOP/byte", exact=True)

# %% [markdown]
# Shared memory delivers 128 bytes in a cycle. So it feeds 4096 operations in a cycle, and the tensor cores of an H200's
# multiprocessor can do exactly as many. Both would have to work without a gap, while each warp issues loads besides.
# The way out is a tile that is larger, and that is not loaded into registers at all. The figure has the operations for
# each byte that a block fetches, for tiles of several sizes, and the ridge of device memory.


# %%
def operations_a_byte():
    rate, memory = 989e12, 4.8e12  # the datasheet of an H200
    shapes = [(64, 64), (128, 128), (128, 256), (256, 256)]
    (figure, ax), each = chart(3.2), [m * n / (m + n) for m, n in shapes]
    bars = ax.barh(range(len(shapes)), each, 0.6, color=plots.COLOURS[0])
    ax.bar_label(bars, [f"{value:.0f} FLOP/byte" for value in each], padding=4)
    ax.axvline(rate / memory, color=palette.INK, lw=1)
    ax.text(rate / memory, -0.75, "device memory", ha="center", va="bottom", fontsize=8)
    ax.set(yticks=range(len(shapes)), yticklabels=[f"{m} x {n}" for m, n in shapes], xlim=(0, 240))
    ax.set(xlabel="operations for each byte that a block fetches")
    ax.invert_yaxis()
    foot(figure, "By the datasheet of an H200")
    return figure


operations_a_byte()

# %% [markdown]
# Left of the line, memory would be the bound if every block fetched its tiles from device memory. Blocks that are
# neighbours in time share tiles, and then the L2 cache delivers most of them. It delivers more than device memory, but
# not without end. So this chapter's tile is 128 x 256: 32,768 sums, in the registers of 256 threads.
#
# ## The reference
#
# The reference and the cost are those of chapter 40. Operands are float16 or bfloat16, and sums float32. All that a
# kernel does besides multiplying moves 16 bits, so one and the same kernel text serves both.

# %%
show(warpgroups.reference)

# %% [markdown]
# ## The first rung, `warpgroup`: four warps multiply
#
# A *warpgroup* is four neighbouring warps of a block. Its 128 threads execute `wgmma` together. It multiplies 64 x 16
# elements of *A* by 16 x *n* of *B*, and *n* may be 256. Both operands stay in shared memory. The sums are in
# registers: each warp has 16 of the 64 rows, and each lane *n* / 2 of the sums.
#
# **Predict, then run.** How many operations is one `wgmma` with *n* = 256?

# %%
guess = None  # operations

rng = np.random.default_rng(43)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 128), (128, 256)))
first = lab.count(warpgroups.warpgroup, a, b).counters
predict(guess, first["tensor_flops"] / (first["inst_tensor"] / 4), unit="operations", exact=True)

# %% [markdown]
# It takes 128 instructions of `mma.sync` to do the same. And a warp loads nothing for it: in the whole product the
# counters have no load from shared memory.

# %%
print(f"{first['inst_tensor']} instructions of a warp, {first['shared_load_requests']} loads from shared memory")
wide = lab.count(tensor_cores.wide, a, b).counters
print(f"wide: {wide['inst_tensor']} instructions of a warp, {wide['shared_load_requests']} loads")

# %% [markdown]
# How do the tensor cores know where a tile lies? They are told by a *descriptor*, a number of 64 bits: where the tile
# begins, how far its parts are from each other, and in which order the chunks of a row are. The order is the swizzle of
# chapter 40. Rows have 128 bytes, which is 64 elements or 8 chunks, and chunk *c* of row *r* is in place *c* XOR
# (*r* mod 8). An instruction takes 16 elements of *k* of each row of *A*: two chunks. The figure has the places of the
# chunks of 8 rows, coloured by the instruction that reads them.


# %%
def places(title, ax, of):
    rows, chunks = np.mgrid[:8, :8]
    where, colour = np.zeros((8, 8), int), np.zeros((8, 8), int)
    where[rows, chunks ^ rows], colour[rows, chunks ^ rows] = chunks, of(rows, chunks)
    ax.imshow(colour, cmap="Pastel1", vmin=0, vmax=8)
    for row, place in np.ndindex(8, 8):
        ax.text(place, row, str(where[row, place]), ha="center", va="center")
    ax.set(title=title, xlabel="place", ylabel="row", xticks=range(8), yticks=range(8))


# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
places("A: two chunks of k for each of 4 instructions", axes[0], lambda row, chunk: chunk // 2)
places("B: all chunks of 8 rows for one", axes[1], lambda row, chunk: 0 * chunk)

# %% [markdown]
# On the left, the first instruction reads chunks 0 and 1 of each row, wherever they are. The descriptor of the second
# one begins 32 bytes further on, at chunk 2 of row 0. The hardware exchanges the chunks by the address, so nobody has
# to think of it again. On the right, a row is one *k*, and 64 columns of *B* are a *panel*. An instruction reads 16
# rows, and the next one begins 16 rows further down. A tile of 256 columns has four panels, one behind the other.

# %%
show(warpgroups.multiplier(warpgroups.TILE))

# %% [markdown]
# The four products of a step are started one after the other, and each adds to the same sums. `wgmma_fence` says that
# the registers with the sums may be used from now on, and `wgmma_commit` makes a group of the four.
#
# **Your turn.** Put a tile of *B* where `wgmma` reads it.

# %%
exercise("warpgroups/panels")


# %%
@cuda.jit
def panels(b, out):
    pass  # your code


check("warpgroups/panels", panels)

# %% [markdown]
# In the first rung the threads copy the tiles by `copy_async`, as in chapter 40. One line is new, `copies_visible`.
# Threads and engines reach shared memory in different ways, which NVIDIA calls *proxies*. A barrier orders what threads
# do. An engine sees what a thread has written only after a fence as well, and `copies_visible` is that fence.

# %%
show(warpgroups.copied_kernel(warpgroups.TILE, 8, 0))

# %% [markdown]
# ## The second rung, `in_flight`: nobody waits at once
#
# `wgmma` does not wait for its result. In the first rung each step ends with `wgmma_wait(0)`, so the tensor cores have
# nothing to do until the next step begins. With `wgmma_wait(1)` the newest group stays under way, and the next step's
# products queue up behind it.
#
# What is under way must be left alone: the registers with the sums, and the tiles. Nothing stops a kernel from touching
# them. On a GPU it gets whatever is there. The interpreter says so.


# %%
NOTHING = (np.float32(0),) * 32  # a lane's sums of 64 columns


@cuda.jit
def multiplied(a, b, out, waits):
    tiles, t = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.threadIdx.x
    for i in range(t, 4096, 128):
        place = i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)
        tiles[place], tiles[4096 + place] = a[i], b[i]
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = wgmma_f16(tile_descriptor(tiles, 0, 0), tile_descriptor(tiles, 4096, 4096), NOTHING)
    wgmma_commit()
    if waits:
        sums = wgmma_wait(0, sums)
    out[t] = sums[0]


# %%
tile = rng.standard_normal(4096).astype(np.float16).view(np.uint16)
for waits in (False, True):
    report = simt.profile(multiplied, 1, 128, (tile, tile, np.zeros(128, np.float32), waits), level="check")
    print(f"{waits=}:", report.hazards[0].message if report.hazards else "no hazard")

# %% [markdown]
# The same is true of tiles. A barrier does not wait for products, so a tile may be overwritten only behind the wait.
#
# **Predict, then run.** A ring of 4 stages is filled as far ahead as it can be. In the first rung, three stages can be
# on their way while one is multiplied. In this one the products of the step before may still read their stage. How many
# stages can be on their way then?

# %%
guess = None  # stages

stages, multiplied, still_read = warpgroups.TILE.stages, 1, 1
predict(guess, stages - multiplied - still_read, unit="stages", exact=True)

# %% [markdown]
# ## The third rung, `bulk`: an engine copies tiles
#
# For each stage, 256 threads compute an address for every 16 bytes, and issue a copy.
#
# **Predict, then run.** A stage has 128 x 64 elements of *A* and 64 x 256 of *B*. How many copies of 16 bytes is that?

# %%
guess = None  # copies

predict(guess, 2 * warpgroups.TILE.stage / 16, unit="copies", exact=True)

# %% [markdown]
# Hopper has an engine for that, the *tensor memory accelerator*. The host describes a matrix to it in a *tensor map*:
# its address, its extents, and the box that one copy moves. Then a single thread asks for a box by its row and column.
# The engine computes all addresses, exchanges the chunks, and fills with zeros what lies beyond the edges. A box of *B*
# is as wide as a panel. So a stage takes five requests, one of *A* and four of *B*.

# %%
show(warpgroups.fetcher(warpgroups.TILE))

# %%
for rung in (warpgroups.in_flight, warpgroups.bulk):
    counters = lab.count(rung, a, b).counters
    print(f"{rung.name:10} {counters['global_load_requests']:4} requests, {counters['global_load_sectors']} sectors")

# %% [markdown]
# The product has two steps. The sectors are the same, since the same bytes are moved.
#
# How does a thread learn that a tile has arrived? By an *mbarrier*, 64 bits in shared memory that count. It is told how
# many arrivals end a phase, and here that is one: `expect_bytes` arrives, and says how many bytes will come. The engine
# counts them down. When nothing is left to count, the phase ends, and the barrier begins to count the next one.
# `mbarrier_wait` waits for the end of a phase. A barrier knows of its phases only whether the one under way is even or
# odd. So whoever waits names the *parity* of a phase: 0 for the first, 1 for the second, 0 for the third. The wait is
# over when the phase under way has the other parity.

# %%
show(warpgroups.bulk_kernel(warpgroups.TILE, 8))

# %% [markdown]
# ## The fourth rung, `specialised`: a warp for the copies
#
# One thing is odd in that kernel. All 256 threads meet at a barrier in every step, and only the first of them does
# something behind it: it asks for the next tiles. In the fourth rung nobody meets. A warp of its own asks for tiles,
# the *producer*. Eight warps multiply, the *consumers*. Each stage has two mbarriers:
#
# - `full` ends a phase when the bytes of the stage have arrived. Consumers wait for it.
# - `empty` ends a phase when all eight consumers have used the stage. The producer waits for it.
#
# In the beginning all stages are empty, and nobody has said so. The producer begins by waiting for parity 1. The phase
# under way is the first one, of parity 0, so this wait is over at once.

# %%
show(warpgroups.specialised_kernel(warpgroups.TILE, 8))

# %% [markdown]
# The figure follows a model of these steps. A copy takes a while until it arrives, and the engine starts one every so
# often. A step's products take a fixed time.


# %%
def timeline(stages, latency, steps=9, products=2.0, interval=1.0):
    """When each step's tiles are copied, and when they are multiplied: a bar for each."""
    copied, multiplied = np.zeros((steps, 2)), np.zeros((steps, 2))
    for s in range(steps):
        free = multiplied[s - stages, 1] if s >= stages else 0  # the consumers have used the stage
        begin = max(free, copied[s - 1, 0] + interval if s else 0)
        copied[s] = begin, begin + latency
        begin = max(copied[s, 1], multiplied[s - 1, 1] if s else 0)
        multiplied[s] = begin, begin + products
    return copied, multiplied


# %%
def draw(stages, latency):
    (figure, ax), bars = chart(2.8), timeline(stages, latency)
    for s, (copy, product) in enumerate(zip(*bars, strict=True)):
        colour = plots.COLOURS[s % stages]
        ax.barh(1 + 0.8 * (s % stages) / stages, np.ptp(copy), 0.7 / stages, copy[0], color=colour, alpha=0.5)
        ax.barh(0.3, np.ptp(product), 0.6, product[0], color=colour, edgecolor="white")
        ax.text(product.mean(), 0.3, str(s), ha="center", va="center", color="white")
    ax.set(yticks=(0.3, 1.4), yticklabels=("products", "copies"), xlabel="time", xlim=(0, 34))
    ax.set(title=f"{stages} stages: {bars[1][-1, 1]:.0f} units of time for 9 steps")
    return figure


# %% [markdown]
# **Predict, then run.** A copy takes 6 units, and the products of a step 2. How many stages does it take until the
# products follow each other without a gap?

# %%
guess = None  # stages

busy = {stages: timeline(stages, 6)[1] for stages in range(1, 9)}
gapless = [stages for stages, bars in busy.items() if np.allclose(bars[1:, 0], bars[:-1, 1])]
predict(guess, min(gapless), unit="stages", exact=True)

# %%
stages, latency = 4, 6
knobs.turn(draw, stages=(stages, range(1, 7)), latency=(latency, range(1, 13)))

# %% [markdown]
# A stage is taken for as long as its copy travels and its products last: 8 units. The tensor cores can use up a stage
# every 2. So four stages keep them busy, and with more of them nothing is gained. Turn the number of stages to 2: the
# products then wait in every second step.
#
# How much room do stages take? One of this tile has 48 KiB, so four have 192 KiB. A block of an H200 can have 227 KiB,
# if the launch asks for more than 48.
#
# **Your turn.** Write down which phases are waited for.

# %%
exercise("warpgroups/phases")


# %%
@cuda.jit
def phases(stages, out):
    pass  # your code


check("warpgroups/phases", phases)

# %% [markdown]
# ## The fifth rung, `persistent`: blocks that go on
#
# A block of this size fills a multiprocessor. While it stores its 128 KiB of *C*, nothing is multiplied there, and the
# next block begins with empty stages. If there are only as many blocks as multiprocessors, and each computes one tile
# after the other, then the producer fetches the first stages of the next tile while the consumers still store.
#
# **Predict, then run.** A product of 4096 x 4096 has 512 tiles of 128 x 256, and an H200 has 132 multiprocessors. Each
# computes tiles one after the other. What share of the multiprocessors' time is used?

# %%
guess = None  # %

tiles, multiprocessors = (4096 // 128) * (4096 // 256), 132
rounds = -(-tiles // multiprocessors)
predict(guess, 100 * tiles / (rounds * multiprocessors), unit="%", within=0.02)

# %% [markdown]
# That is as in [chapter 36](36_products_of_any_shape.ipynb): four rounds, the last one nearly full. For 2048 x 2048 it
# would be one round with 128 tiles. For smaller products the room takes smaller tiles.

# %%
for n in (512, 1024, 2048, 4096, 8192):
    tile = warpgroups.tile_for(n, n, multiprocessors)
    tiles = -(-n // tile.m) * -(-n // tile.n)
    print(f"{n:5} x {n:<5} {tiles:5} tiles of {tile}")

# %% [markdown]
# ## The sixth rung, `stored`: the engine also stores
#
# One thing is left that threads do by hand: they store *C*. In all rungs so far a lane stores 16 bytes at a time. A
# warp's store covers 32 bytes in each of 16 rows, and meanwhile its tensor core has nothing to do.
#
# The engine can also copy the other way. A warp writes a *box* of *C* into shared memory, 16 rows of 128 bytes, and one
# of its threads asks for the box to be stored. While the engine reads it, the warp fills a second buffer.
#
# **Predict, then run.** A tile of *C* has 128 x 256 float32. How many boxes does a block ask the engine to store?

# %%
guess = None  # boxes

box = 16 * 128
predict(guess, 128 * 256 * 4 / box, unit="boxes", exact=True)

# %% [markdown]
# By threads it takes four times as many instructions of a warp, with an address and a test for the edges in each lane.

# %%
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (64, 256)))
for rung, maps in ((warpgroups.persistent, 2), (warpgroups.stored, 0)):
    words = 4 * maps * 16  # of the tensor maps, which the threads of 4 blocks store besides
    print(f"{rung.name:10} {lab.count(rung, a, b).counters['global_store_requests'] - words:4} requests")

# %% [markdown]
# This product is small, so the room takes tiles of 64 x 128, and a block has four warps that multiply.
#
# The blocks of this rung store no tensor maps. Those of the rungs before copy theirs into global memory, and wait until
# the engine can see them there, before the first tile is on its way. But a kernel's parameters are in memory, too.
# `maps_of_launch` says where they are, and the engine reads the maps there.
#
# The kernel below is the code of one warp. Three lines of it deserve a look. `wait_stores(1)` waits until the engine
# has read all boxes of this thread but the newest one: then the other buffer is free. `copies_visible` shows the sums
# to the engine, as it did for operands. And the barrier behind it makes sure that all 32 lanes have done so before one
# of them asks for the store.

# %%
show(warpgroups.engine_storer(16, "float32"))

# %% [markdown]
# Here, too, a barrier does not wait for the engine. This kernel stores a box, and then uses its buffer again.


# %%
@cuda.jit
def reused(x, c_map, maps, waits):
    box, t = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.threadIdx.x
    for i in range(t, 1024, 32):
        box[i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)] = x[i]
    copies_visible()
    cuda.syncwarp()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, box, 0)
        commit_stores()
        if waits:
            wait_stores(0)
    cuda.syncwarp()
    box[t] = 0


# %%
x, maps, c = np.arange(1024, dtype=np.uint16), np.zeros(16, np.uint64), device.empty((16, 64), np.uint16)
for waits in (False, True):
    if device.on_gpu():  # its maps are not the interpreter's
        print(f"{waits=}: the interpreter is asked where there is no GPU")
        continue
    report = simt.profile(reused, 1, 32, (x, tensor_map(c, 16, 64), maps, waits), level="check")
    print(f"{waits=}:", report.hazards[0].message if report.hazards else "no hazard")

# %% [markdown]
# How do the sums come into shared memory? As float32, a lane has two neighbours in a row, which it stores as one number
# of 64 bits. Rounded to float16, they are half as long, and one instruction stores four matrices of 8 x 8 of them:
# `stmatrix`, which is `ldmatrix` the other way round.
#
# What is gained? In a product of 4096 x 4096 a tile has 64 steps, and to store it takes as long as a few of them. So
# some per cent can be gained there. In a product of 8192 x 256 by 256 x 8192 a tile has four steps, and then the stores
# decide.


# %%
def times_of_a_shallow_product():
    kept = record.load(room="warpgroups")
    found = kept.entries("warpgroups", family="shapes", workload="8192 x 256 x 8192", kind="rung")
    if not found:
        raise record.RecordError(f"{kept.where} has no product of 8192 x 256 by 256 x 8192")
    for entry in found:
        print(f"{entry.contender:12} {1000 * entry.median_ms:6.1f} us")
    print(kept.footer("warpgroups"))


plots.drawn(times_of_a_shallow_product)

# %% [markdown]
# ## Other numbers
#
# The tensor cores also multiply float32, of which they see 19 bits (*tf32*), and numbers of 8 bits: int8, and *e4m3*,
# which has a sign, 4 bits of exponent and 3 bits of fraction. Each instruction takes 32 bytes of every row of *A*: 8
# float32, 16 float16 or 32 numbers of 8 bits. So with 8 bits it does twice as many operations. The sums of int8 are
# int32, and exact. All other sums are float32.
#
# For float16, *B* could lie row by row, because the tensor cores transpose 16-bit numbers on the way. They do not for
# the others. A row of *B* in shared memory must be a column of the matrix, and lie like a row of *A*. The
# descriptors of both operands then move on by the same 32 bytes. The kernel below multiplies 64 rows of 128 int8 by 64
# columns. It moves two of them as one number of 16 bits, since to move them it need not know what they are.

# %%
ZEROS = (np.int32(0),) * 32


@cuda.jit(device=True)
def store_sums(out, t, sums):
    for i in range(32):
        out[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = sums[i]


# %%
@cuda.jit
def whole_numbers(a, b, out):
    tiles, t = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.threadIdx.x
    for i in range(t, 4096, 128):
        place = i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)
        tiles[place], tiles[4096 + place] = a[i], b[i]
    copies_visible()
    cuda.syncthreads()
    sums = ZEROS
    wgmma_fence()
    for k in range(4):
        sums = wgmma_s8(tile_descriptor(tiles, 16 * k, 0), tile_descriptor(tiles, 4096 + 16 * k, 0), sums)
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    store_sums(out, t, sums)


# %%
a8, b8 = (rng.integers(-128, 128, (64, 128)).astype(np.int8) for _ in "ab")
out = np.zeros((64, 64), np.int32)
whole_numbers[1, 128](a8.view(np.uint16).reshape(-1), b8.view(np.uint16).reshape(-1), out)
np.testing.assert_array_equal(out, a8.astype(np.int64) @ b8.astype(np.int64).T)
print("4096 sums of 128 products each, all exact")

# %% [markdown]
# `products.product` takes all five types. It launches the kernel of the last rung.

# %%
c8 = products.product(a8, b8.T)  # the second matrix lies column by column
np.testing.assert_array_equal(device.to_host(c8), out)
print(c8.dtype, c8.shape)

# %% [markdown]
# What do sums of e4m3 lose? A tensor core shifts the products of a step to the largest exponent among them and the sum
# so far, and cuts off what is then far behind the point. For float16 it keeps 25 bits there, which is more than a
# float32 has. For numbers of 8 bits it keeps 13.
#
# **Predict, then run.** The first step makes a sum of 32 x 32 = 1024. The second one adds 32 products of 1/4 x 1/4,
# which is 2. By how much does the sum grow?

# %%
guess = None  # what is added

to_bits = {float(value): bits for bits, value in enumerate(values_of_8_bits("e4m3")) if value == value}
row = np.zeros((1, 64), np.uint8)
row[0, 0], row[0, 32:] = to_bits[32.0], to_bits[0.25]
total = device.to_host(products.product(row, row.T))[0, 0]
predict(guess, total - 1024, unit="added", within=0.01)

# %% [markdown]
# 1024 is 2 to the power of 10, and with 13 bits behind the point of that the smallest part is 1/8. Each product of 1/16
# is cut off by itself, before they are added. Networks that compute in 8 bits therefore add long sums in parts, and the
# parts in float32.
#
# The figure has the error of long sums in units of their size. The numbers are random, of one sign, so that a sum grows
# all the time.


# %%
def errors_of_long_sums():
    rng, depths = np.random.default_rng(8), [32, 128, 512, 2048]
    (figure, ax), values = chart(3), values_of_8_bits("e4m3")
    kinds = {"e4m3": [], "float16": []}
    for depth in depths:
        bits = rng.integers(0x30, 0x40, (2, 16, depth)).astype(np.uint8)
        x, y = values[bits]
        exact = x @ y.T
        for kind, worst in kinds.items():
            p, q = bits if kind == "e4m3" else (x.astype(kind), y.astype(kind))
            got = device.to_host(products.product(p, q.T if kind == "e4m3" else np.ascontiguousarray(q.T)))
            worst.append(np.abs(got / exact - 1).max())
    return figure, ax, depths, kinds


# %%
figure, ax, depths, kinds = errors_of_long_sums()
for (kind, worst), mark, colour in zip(kinds.items(), "os", plots.COLOURS, strict=False):
    ax.loglog(depths, np.maximum(worst, 2.0**-24), marker=mark, color=colour, label=kind)
ax.axhline(2.0**-13, color=palette.INK, lw=1, ls="--", label="13 bits")
ax.set(xlabel="products in a sum", ylabel="largest error of a sum, relative to it", xticks=depths)
ax.set_xticklabels(depths)
ax.minorticks_off()
ax.legend(fontsize=8)
foot(figure, "The same numbers as e4m3 and as float16, which holds them exactly")
figure

# %% [markdown]
# In each step, each of 32 products may lose a part of the last of 13 bits, always towards 0. So the error grows with
# the number of steps.
# With 2048 products it is smaller again: `products.product` gives parts of so long a sum to several blocks, as the next
# section says, and adds the parts in float32. With float16 the error stays below what a float32 can show.
#
# ## Any shape
#
# `products.product` also takes any shape. A product with few tiles leaves most multiprocessors idle. Then smaller tiles
# are better, and where *K* is long, several blocks share the sums of a tile, as in
# [chapter 36](36_products_of_any_shape.ipynb): each adds up a part of *K*. There a second kernel adds the parts. Here a
# warp stores its sums, and then counts itself with an atomic. The last one to arrive knows that all parts are there,
# and adds them. It adds them in their order, its own among them, so that the bits do not depend on who comes last.
# With 200 tiles, 132 are computed in a round as whole tiles, and only the other 68 are shared.

# %%
for m, k, n in ((4096, 4096, 4096), (2560, 16384, 2560), (256, 16384, 256), (12288, 16, 6144)):
    cut = products.plan_for(m, n, 2 * k, "float16", 4, multiprocessors)
    tiles = -(-m // cut.tile.m) * -(-n // cut.tile.n)
    rest = f", and {tiles - cut.whole} in {cut.parts} parts each" if cut.whole < tiles else ""
    print(f"{m:5} x {k:5} x {n:5}: tiles of {cut.tile}: {cut.whole} whole{rest}")

# %% [markdown]
# The choice is made by a model of the time: how long the tensor cores, the copies and the stores of a unit take, and
# how many units a multiprocessor gets. The next figure has 50 shapes that nobody chose. Each dot is the time of cuBLAS
# over ours. Below 1 cuBLAS is faster, and that is where most dots are.


# %%
def drawn_shapes():
    kept = running.load()
    if not kept["measured"].get("warpgroups", {}).get("rows"):
        raise record.RecordError("the record of drawn shapes has no products of float16")
    return shapes.ratios(kept, room="warpgroups")


plots.drawn(drawn_shapes)

# %% [markdown]
# ## All rungs
#
# The design size is that of chapter 40, products of 4096 x 4096 matrices. The first bar is its sixth rung, `wide`.
# Chapter 40 has two faster ones behind it, in its own figure. The bars named `torch` are cuBLAS, which PyTorch calls.
# Behind them is NumPy, which multiplies the same values in float32 on the CPU. The second figure has other sizes.


# %%
def rates_of_all():
    """The rate of each rung and library at the design size."""
    kept = record.load(room="warpgroups")
    entries = kept.design("warpgroups")
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of warpgroups")
    figure, ax = chart(4)
    look = plots.colours(kept, "warpgroups")
    for place, entry in enumerate(entries):
        fill = look[entry.contender][0] if entry.kind == "rung" else "white"
        bar = ax.barh(place, entry.flops / entry.seconds / 1e12, color=fill, edgecolor=look[entry.contender][0])
        ax.bar_label(bar, [f"{entry.median_ms:.3g} ms"], padding=4, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    ax.set_yticks(range(len(entries)), [entry.contender for entry in entries])
    ax.set(xlabel="rate (TFLOP/s)", title="products of 4096 x 4096 matrices of float16")
    ax.invert_yaxis()
    ax.margins(x=0.12)
    foot(figure, kept.footer("warpgroups"))
    return figure


plots.drawn(rates_of_all)

# %%
title = "products of n x n matrices of float16"
plots.drawn(plots.sweep, "warpgroups", family="warpgroups", xlabel="n", title=title)

# %% [markdown]
# The smallest products take about as long as a launch, and the next ones have too few tiles for all multiprocessors.
# For large ones arithmetic is the bound, and the last rungs come near cuBLAS. `specialised` alone is a little slower
# than `bulk` at every size: it is worth while for what comes after it. `persistent` gains where products are small, and
# there it also takes smaller tiles; at *n* = 2048 it gains nothing, and at 8192 it loses a hundredth. `stored` is the
# fastest rung at every size.
#
# The next figure has products of 8192 x 8192 of every type, ours and the fastest of the library's. A number of half the
# length is multiplied about twice as fast, but for the library's int8, which gains only a quarter over its float16.


# %%
def found_by_type():
    """Rates of ours and of the library, by type; 0 where nothing was measured."""
    kept, found = record.load(room="warpgroups"), {}
    for family in ("tf32", "bfloat16", "warpgroups", "int8", "e4m3"):
        entries = [e for e in kept.entries("warpgroups", family=family) if e.sizes == {"n": 8192}]
        rates = [[e.flops / e.seconds / 1e12 for e in entries if e.kind == kind] for kind in ("rung", "library")]
        found["float16" if family == "warpgroups" else family] = [max(one, default=0) for one in rates]
    if not any(map(any, found.values())):
        raise record.RecordError(f"{kept.where} has no products of 8192 x 8192")
    return found, kept.footer("warpgroups")


# %%
def rates_by_type():
    (found, words), (figure, ax) = found_by_type(), chart(3.4)
    for shift, who, colour, fill in ((-0.2, 0, plots.COLOURS[0], True), (0.2, 1, palette.INK, False)):
        rates, places = [one[who] for one in found.values()], np.arange(len(found)) + shift
        bars = ax.barh(places, rates, 0.38, color=colour if fill else "white", edgecolor=colour)
        ax.bar_label(bars, [f"{rate:.0f}" if rate else "not measured" for rate in rates], padding=3)
    ax.set_yticks(range(len(found)), found)
    ax.set(xlabel="rate (10^12 operations a second): ours filled, the library's empty")
    ax.invert_yaxis()
    foot(figure, words)
    return figure


# %%
plots.drawn(rates_by_type)

# %% [markdown]
# One more thing is worth a check. Do the tensor cores add in another way if four warps multiply? The bits say no.

# %%
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 48), (48, 56)))
pair = (device.to_host(rung(a, b)) for rung in (tensor_cores.wide, warpgroups.persistent))
np.testing.assert_array_equal(*pair)
print("mma.sync and wgmma give the same bits")

# %% [markdown]
# ## What to take along
#
# - `wgmma` is executed by four warps together. Operands are in shared memory, where a *descriptor* says, and sums in
#   registers.
# - Products and copies are under way until somebody waits: `wgmma_wait` for sums and for tiles that are read, an
#   *mbarrier* for tiles that are filled.
# - A *tensor map* lets one thread ask for a whole tile, with swizzle and edges.
# - A *producer* and its *consumers* need no barrier of the block: a stage is full, or it is empty.
# - The engine stores, too. A buffer is free again when `wait_stores` says that it was read.
# - Numbers of 8 bits are multiplied about twice as fast as float16, and their sums keep 13 bits.
# - As many stages as a stage's time divided by a step's time keep the tensor cores busy.
#
# To read on: PTX ISA, sections on `wgmma`, `cp.async.bulk.tensor` and `mbarrier`. NVIDIA, *CUTLASS: efficient GEMM in
# CUDA*, on warp specialization and persistent kernels.
#
# ## Exercises
#
# The two exercises with a check stand above. More to try, without a check:
#
# 1. Why does each consumer warp arrive at `empty`, and not one thread for all of them?
# 2. What happens if the producer expects too few bytes? And if it expects too many?
# 3. The producer's warp has 31 threads with nothing to do. Could they share its work?
# 4. Why does a warp have two buffers for its boxes, and what would a third one gain?
#
# ## Answers
#
# **panels.** Column // 64 is the panel. The rest is as in chapter 40: rows of 8 chunks, which are exchanged by the
# number of the row.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.matmul import warpgroups_exercises as answers

show(answers.panels_answer)
assert check("warpgroups/panels", answers.panels_answer)

# %% [markdown]
# **phases.** Step // stages says how often the stage has been used. Consumers wait for the phase of this use, and the
# producer for the one before.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.phases_answer)
assert check("warpgroups/phases", answers.phases_answer)

# %% [markdown]
# *Each warp arrives.* `wgmma_wait` waits for the products of the warp that executes it. Of the other warps' products a
# thread knows nothing, unless they meet.
#
# *Bytes.* With too few, the phase ends while a tile is still on its way, and the consumers multiply what is not there.
# With too many it never ends. Then the wait ends the kernel with an error after some seconds, and the interpreter says
# at once that nobody will end it.
#
# *The other threads.* They could each ask for one of the five boxes. The engine works on them one after the other in
# any case, so there is little to gain.
#
# *Two buffers.* While the engine reads one, the warp writes the other. A third one would help only if the engine needed
# longer for a box than the warp for the next one. It takes shared memory that stages could have.
#
# The same product in Triton, with its speed and what a call costs, stands on a
# [page for practitioners](../docs/practitioners/README.md).
#
# Go on with [chapter 44](44_sparse.ipynb), on matrices of which nearly all is zero.
