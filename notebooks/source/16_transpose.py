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
# # 16. Coalescing
#
# *Sectors, requests, strides, misalignment, arrays of structures, shared-memory banks, padding, swizzling, coarsening.
# Read chapters [4](04_vector_add.ipynb) and [12](12_matmul.ipynb) before. 75 minutes. PMPP 4e: sections 6.1 to 6.3; 5e:
# chapter 6. The code is [pmpp/kernels/transpose/ladder.py](../pmpp/kernels/transpose/ladder.py).*
#
# Turn a photograph on its side: what was a row becomes a column. Nothing is computed. Every number is read once and
# written once, and it only lands in another place. A copy of the photograph moves exactly as many bytes.
#
# **The question of this chapter: must a transpose be slower than a copy, and if it is, what is it waiting for?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, predict, simt
from pmpp.kernels import transpose
from pmpp.kernels.transpose.exercises import planes_start, rotate_start, swizzle_start
from pmpp.lab.draw import knobs, plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
print(device.describe().splitlines()[0])

# %%
grey = data.photograph().mean(axis=2).astype(np.float32)
figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
for ax, (title, picture) in zip(axes, {"x": grey, "its transpose": grey.T}.items(), strict=True):
    ax.imshow(picture, cmap="gray")
    ax.set_title(f"{title}: {picture.shape[0]} x {picture.shape[1]}")
    ax.axis("off")

# %% [markdown]
# ## The bound
#
# There is no arithmetic, so the roofline has nothing to say: its horizontal axis is FLOP a byte, and here that is
# zero. What is left is its slope, the bandwidth. All bytes of the matrix must come in once and go out once, and the
# time of that is the bound. It is the time of a copy.

# %%
ceilings = roofline.ceilings("transpose")
print(f"memory: {ceilings.bandwidth / 1e12:.2f} TB/s ({ceilings.source})")

# %% [markdown]
# **Predict, then run.** How many microseconds does the transpose of a matrix of 16384 x 16384 float32 take at the very
# least?

# %%
guess = None  # microseconds

cost = transpose.cost(16384, 16384)
predict(guess, roofline.bound(cost, ceilings).seconds * 1e6, unit="us")

# %%
print(f"{cost.flops} FLOP; {cost.bytes / 2e9:.2f} GB come in, and as many go out")

# %% [markdown]
# Times in this chapter come from a record: measurements on a named GPU, checked and repeated, with the libraries in
# the same run. The next cell has a helper that prints them. The share of the roof is the bound divided by the time.


# %%
def measured(*names):
    """Print recorded times at the design size, 16384 x 16384 float32."""
    try:
        store = record.load()
        for entry in store.entries("transpose", workload="16384"):
            if entry.contender in names and entry.family in ("transpose", "copy"):
                rate = entry.bytes / entry.seconds
                share = f"{rate / store.ceilings('transpose').bandwidth:7.0%} of the roof"
                print(f"{entry.contender:24}{entry.median_ms:8.3f} ms{rate / 1e12:7.2f} TB/s{share}")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


measured("torch.contiguous", "cupy.ascontiguousarray")

# %% [markdown]
# Two libraries, on the GPU of the record. They are far from the roof. There is something to find.
#
# ## The reference

# %%
show(transpose.reference)

# %%
corner = np.ascontiguousarray(grey[:40, :50])
print("equal to NumPy:", np.array_equal(transpose.reference(corner), corner.T))

# %% [markdown]
# ## The microscope
#
# Chapter 4 said it in short: the 32 lanes of a *warp* execute one load together. That is one *request*, and memory
# answers it in *sectors* of 32 bytes. Whoever needs one byte of a sector gets all of it. We look at this closely now,
# one warp at a time.
#
# Our instrument is the interpreter. With `trace=True` it keeps not only counts but every access of one block: which
# lane asked for which address. In this kernel lane `i` loads element `place[i]`.


# %%
@cuda.jit
def probe(memory, place, seen):
    lane = cuda.threadIdx.x
    seen[lane] = memory[place[lane]]


lane, memory, seen = np.arange(32), np.zeros(2048, np.int32), np.zeros(32, np.int32)


def warp(place):
    """The report on one warp whose lanes load the elements of memory at these places."""
    return simt.profile(probe, 1, 32, (memory, place, seen), trace=True)


def sectors(report, array, kind="load"):
    """How many sectors the traced warp touched in its first access of this kind to the array."""
    return len(report.trace.accesses(array, kind=kind)[0].sectors)


# %% [markdown]
# **Predict, then run.** Elements have 4 bytes, and element 0 begins a sector. How many sectors does the warp touch if
# lane `i` loads element `i + 4`? Element `31 - i`? Element `i // 2`?

# %%
guess = {"i + 4": None, "31 - i": None, "i // 2": None}  # sectors

places = {"i": lane, "i + 4": lane + 4, "2 i": 2 * lane, "31 - i": 31 - lane, "i // 2": lane // 2}
warps = {name: warp(place) for name, place in places.items()}
asked = ("i + 4", "31 - i", "i // 2")
predict(guess, {name: sectors(warps[name], "memory") for name in asked}, unit="sectors")

# %%
plots.access({f"element {name}": report for name, report in warps.items()}, "memory")

# %% [markdown]
# Each line runs from a lane to the bytes that it loads. Boxes are sectors, and what is white in a box travels for
# nothing. Five things are to be seen.
#
# - Neighbours from a boundary on need 4 sectors, the least for 128 bytes. Such an access is *coalesced* (PMPP 6.1).
# - Shifted by half a sector they need a fifth. *Misalignment* costs a fraction, and a warp that follows in the next
#   128 bytes will probably find the fifth in the cache.
# - A stride of 2 doubles the sectors, and half of every sector travels for nothing.
# - The order does not matter. What counts is the set of sectors, not which lane asks for which.
# - Lanes that want the same element share it, and its sector.
#
# The stride is what hurts. Here is how far it goes, and what is left of each sector.

# %%
print("stride   sectors   bytes asked for   bytes moved   of use")
for stride in (0, 1, 2, 4, 8, 16, 32):
    (load,) = warp(stride * lane).trace.accesses("memory")
    moved, asked = 32 * len(load.sectors), 4 * np.unique(load.addresses).size
    print(f"{stride:6} {len(load.sectors):9} {asked:17} {moved:13} {asked / moved:8.1%}")

# %% [markdown]
# From a stride of 8 on, every lane has a sector to itself. It cannot get worse: 32 sectors for 32 lanes, as if each
# had asked alone. (A stride of 0 is the other end. All lanes want the same element, and one sector serves them all, a
# *broadcast*.)
#
# Stride and misalignment can come together.
#
# **Predict, then run.** Lane `i` loads element `5 i + first`. How many sectors does the warp touch if `first` is 0, and
# how many at worst, for any `first` from 0 to 7?

# %%
guess = {"first is 0": None, "at worst": None}  # sectors

at = {first: sectors(warp(5 * lane + first), "memory") for first in range(8)}
predict(guess, {"first is 0": at[0], "at worst": max(at.values())}, unit="sectors")

# %% [markdown]
# Turn both numbers. Where ipywidgets are installed, as by `make lab`, each number has a slider above the figure.
# Without them, write other numbers into the first line of the cell, and run it again.

# %%
stride, first = 5, 5  # other numbers here, or the sliders


def strided(stride, first):
    """The sectors of a warp whose lane i loads element stride i + first."""
    return plots.access({f"element {stride} i + {first}": warp(stride * lane + first)}, "memory")


knobs.turn(strided, stride=(stride, range(33)), first=(first, range(8)))

# %% [markdown]
# The stride decides: up to 8 each step of it adds four sectors. The first element adds one at most, where the last lane
# is pushed over a boundary. From a stride of 8 on it changes nothing, since each lane has a sector to itself wherever
# the warp begins.
#
# ## Arrays of structures
#
# Strides come from how data are laid out. Take points in space with x, y and z. One may store point after point, an
# *array of structures*: x0 y0 z0 x1 y1 z1 and so on. Or one stores all x, then all y, then all z, a *structure of
# arrays*. In Python the difference is a shape: `(n, 3)` or `(3, n)`. This kernel moves the points in x.


# %%
@cuda.jit
def move_structures(points, by):
    i = cuda.grid(1)
    if i < points.shape[0]:
        points[i, 0] += by


@cuda.jit
def move_arrays(points, by):
    i = cuda.grid(1)
    if i < points.shape[1]:
        points[0, i] += by


# %% [markdown]
# **Predict, then run.** The coordinates are float32. How many sectors does a warp's load of x touch in each layout?

# %%
guess = {"structures": None, "arrays": None}  # sectors

n, by = 4096, np.float32(1)
layouts = {"structures": (move_structures, (n, 3)), "arrays": (move_arrays, (3, n))}
moves = {
    name: simt.profile(kernel, n // 256, 256, (np.zeros(shape, np.float32), by), trace=True)
    for name, (kernel, shape) in layouts.items()
}
predict(guess, {name: sectors(report, "points") for name, report in moves.items()}, unit="sectors")

# %%
plots.access(moves, "points", kind="load")

# %% [markdown]
# With structures a lane lies 12 bytes from its neighbour. The white stripes are y and z, which nobody asked for: two
# thirds of what travels.
#
# If a kernel uses x, y and z of each point, the rest of a sector is not lost: it waits in a cache for the next line,
# if it is not driven out before. With arrays nothing depends on such luck. This is why libraries for GPUs keep their
# data in arrays, one for each field.
#
# ## The first rung, `naive`: no tile
#
# Now the transpose. A matrix in C order has the neighbours of a row side by side. Neighbours in a column are a whole
# row apart. Here is the plain kernel, one thread for each element. A block takes a square of 32 x 32 elements, its
# *tile*, and `corner` says where that begins. (`z` goes on where `y` is full: a grid has at most 65,535 blocks along
# `y`, and this room promises any number of columns.)

# %%
show(transpose.naive_kernel)

# %%
show(transpose.corner)

# %% [markdown]
# `row` and `column` are a thread's place in `x`, and lanes differ in `column`. So in `x[row, column]` the lanes lie
# side by side. In `out[column, row]` they do not.
#
# **Predict, then run.** How many sectors a request for the load, and how many for the store?

# %%
guess = {"load": None, "store": None}  # sectors a request

x = np.ascontiguousarray(grey[:512, :512])
grid = 512 // 32, 512 // 32
naive = simt.profile(transpose.naive_kernel, grid, (32, 32), (x, np.empty_like(x)), trace=True)
predict(guess, {"load": sectors(naive, "x"), "store": sectors(naive, "out", "store")}, unit="sectors")

# %%
naive

# %% [markdown]
# The line with both accesses shows the mean of the two, (4 + 32) / 2. Here they are apart, for the first warp.

# %%
plots.access(naive, ["x", "out"])

# %% [markdown]
# The load is as good as can be, and the store as bad as can be. What does it cost?

# %%
measured("naive", "torch.contiguous")

# %% [markdown]
# Could we turn it round, and let lanes differ in the row? Then the store is coalesced, and the load is scattered. A
# warp can also be a rectangle. If a block has 16 threads along `x`, a warp is two rows of 16. This kernel takes any
# block.


# %%
@cuda.jit
def plain(x, out):
    column, row = cuda.grid(2)
    out[column, row] = x[row, column]


def rectangle(across):
    """The report on warps of so many columns."""
    blocks = 512 // across, 512 * across // 256
    return simt.profile(plain, blocks, (across, 256 // across), (x, np.empty_like(x)), trace=True)


# %% [markdown]
# **Predict, then run.** A block of 8 x 32 threads makes each warp a rectangle of 8 x 4. How many sectors does it touch
# on each side?

# %%
guess = {"load": None, "store": None}  # sectors a request

of_eight = rectangle(8)
predict(guess, {"load": sectors(of_eight, "x"), "store": sectors(of_eight, "out", "store")}, unit="sectors")

# %%
print("warp      load   store   sectors a request")
for across in (32, 16, 8, 4, 2, 1):
    report = rectangle(across)
    print(f"{across:2} x {32 // across:<2} {sectors(report, 'x'):7} {sectors(report, 'out', 'store'):7}")

# %% [markdown]
# A rectangle shares the damage, but no shape of a warp gets down to 4 on both sides. Eight neighbours in a row of `x`
# share a sector there, and lie in eight rows of `out`.
#
# ## The second rung, `tiled`: turn the corner in shared memory
#
# Shared memory has no sectors. So let a block fetch a tile of 32 x 32 elements along the rows of `x`, put it there,
# wait until it is whole, and write it along the rows of `out`. PMPP calls this *corner turning*.
#
# Follow the indices. When the tile is filled, lane `tx` of warp `ty` takes row `ty` and column `tx` of the tile, and
# neighbouring lanes read neighbouring elements of `x`. When it is emptied, the same lane takes row `tx` and column
# `ty`: the roles have changed. In `out` it writes row `left + ty` and column `top + tx`, so neighbouring lanes again
# write neighbouring elements. The thread that stores an element is not the one that loaded it, hence the barrier.
# Notice the two guards, too. A tile at the edge is cut off on different sides in `x` and in `out`.

# %%
show(transpose.tiled_kernel)

# %%
tiled = simt.profile(transpose.tiled_kernel, grid, (32, 32), (x, np.empty_like(x)), trace=True)
tiled

# %%
plots.access({"naive": naive, "tiled": tiled}, "out")

# %% [markdown]
# The column *sect/req* is 4 on both sides now, and in the store nothing is white: every sector is moved once. The
# traffic is that of a copy.

# %%
measured("naive", "tiled")

# %% [markdown]
# Better, and still nothing like a copy. Before we look for the second fault, try the first remedy yourself.
#
# **Your turn.** `planes_start` reads points that lie one after another, as `move_structures` did. In shared memory a
# stride costs no sectors. `check` runs your kernel on awkward sizes, watches every access, and tells you what it saw.
# Hints are there to open when you want one. An answer is at the end of the chapter.

# %%
exercise("transpose/planes")

# %%
simt.profile(planes_start, 4, 256, (np.zeros(3072, np.float32), np.empty((3, 1024), np.float32)))


# %%
@cuda.jit
def planes(x, out):
    pass  # your code


check("transpose/planes", planes)

# %% [markdown]
# ## Banks
#
# Sectors were one fault of the transpose, and there is another. The report on `tiled` has one more number that stands
# out: *wave/req* in the last line.
#
# Shared memory is divided into 32 *banks*. The word (4 bytes) at address `a` belongs to bank `a / 4 % 32`, and in one
# pass, a *wavefront*, each bank serves one word. If the lanes of a warp want 32 words in 32 banks, one wavefront is
# enough. If they want different words of one bank, they wait for one another: a *bank conflict*. (Several lanes that
# want the same word do not; it is broadcast.)
#
# This kernel fills a tile row by row and reads its first column. The rows are `pitch` words apart. `cuda.syncwarp()`
# is a barrier for the lanes of one warp only: what they wrote before it, they all can read after it.

# %%
MOST = 32 * 64


@cuda.jit
def first_column(pitch, out):
    tile = cuda.shared.array(MOST, np.int32)
    lane = cuda.threadIdx.x
    for row in range(32):
        tile[row * pitch + lane] = lane
    cuda.syncwarp()
    out[lane] = tile[lane * pitch]


# %% [markdown]
# **Predict, then run.** A column of a tile whose rows are 32 words apart takes 32 wavefronts, and if they are 33 apart
# it takes one ([chapter 12](12_matmul.ipynb)). How many are there at 34, 36 and 40?

# %%
guess = {"pitch 34": None, "pitch 36": None, "pitch 40": None}  # wavefronts

columns, reads = {}, {}
for pitch in (32, 33, 34, 36, 40):
    report = simt.profile(first_column, 1, 32, (pitch, np.empty(32, np.int32)), trace=True)
    columns[f"pitch {pitch}"] = report
    (reads[f"pitch {pitch}"],) = report.trace.accesses("tile", kind="load")
predict(guess, {f"pitch {n}": reads[f"pitch {n}"].wavefronts for n in (34, 36, 40)}, unit="wavefronts")

# %%
for name, load in reads.items():
    banks = np.unique(load.addresses // 4 % 32).size
    print(f"{name}: {load.wavefronts:2} wavefronts, the column lies in {banks:2} banks")

# %% [markdown]
# An odd number is best. The banks of a column are 0, pitch, 2 pitch and so on, modulo 32, and they come back to bank
# 0 the later, the less pitch has in common with 32. In the picture a row is 128 bytes of shared memory, one word for
# each bank. Coloured are the words that the lanes ask for, and the bars count them for each bank.

# %%
plots.banks({name: columns[name] for name in ("pitch 32", "pitch 33")}, "tile", kind="load")

# %% [markdown]
# On the left all elements of the column lie in one bank, which must be asked 32 times. On the right every row of the
# tile begins one bank further on, and the column runs through all of them. A row of the tile does so in both, so
# filling the tile was never the trouble.
#
# **Predict, then run.** Of all pitches from 33 to 63, which one takes the most wavefronts, and how many are they?

# %%
guess = {"pitch": None, "wavefronts": None}  # of the worst pitch


def column(pitch):
    """The report on a warp that reads the first column of a tile of this pitch."""
    return simt.profile(first_column, 1, 32, (pitch, np.empty(32, np.int32)), trace=True)


each = {n: column(n).trace.accesses("tile", kind="load")[0].wavefronts for n in range(33, 64)}
predict(guess, {"pitch": max(each, key=each.get), "wavefronts": max(each.values())})

# %%
pitch = 48  # another number here, or the slider

knobs.turn(
    lambda pitch: plots.banks({f"pitch {pitch}": column(pitch)}, "tile", kind="load"),
    pitch=(pitch, range(32, 65)),
)

# %% [markdown]
# Turn the pitch by one, and the column moves to other banks in each row. The number of wavefronts is the largest power
# of two that divides both the pitch and 32: one for all odd numbers, and half of 32 in the middle between 32 and 64.
#
# ## The third rung, `padded`: one column more
#
# The remedy is one column that nobody uses.

# %%
show(transpose.padded_kernel)

# %%
padded = simt.profile(transpose.padded_kernel, grid, (32, 32), (x, np.empty_like(x)))
for name, report in {"tiled": tiled, "padded": padded}.items():
    count = report.counters
    print(f"{name:8} wavefronts a load: {count['shared_load_wavefronts'] / count['shared_load_requests']:.0f}")
measured("tiled", "padded")

# %% [markdown]
# Nothing else is wrong with the access: each sector moves once, each request to shared memory is one wavefront. A
# count of traffic finds no more to complain about. And the time is still not that of a copy.
#
# ## The fourth rung, `coarsened`: more to do for each thread
#
# Chapter 4 met the same riddle: the bytes are right, and there are too few *under way*. In `padded` a thread asks for
# one element of 4 bytes and waits. Then it waits again, at the barrier, for the slowest of 1,024 threads. All that
# time it could have had more loads on the road. Other blocks on the same multiprocessor could fill the gap, but there
# is not room for many blocks of 1,024 threads: 2,048 threads are all that it holds.
#
# So give each thread more elements: a *coarser* thread (PMPP 6.3). The block shrinks to 32 x 4 threads, and each
# moves eight elements of a column of the tile. Look at the order: first all loads, into registers, then all stores.

# %%
show(transpose.coarsened_kernel)

# %% [markdown]
# Why not load and store in one loop? The guard would be a branch around both, and the compiler keeps what is in it
# together: each load would be waited for, and stored, before the next is asked for. Here there is no branch: `min`
# keeps every index inside the matrix. (`np.uint32(cuda.threadIdx.x)` makes the index unsigned, so that no code is
# spent on negative ones.)
#
# **Predict, then run.** In `padded` the 2,048 threads of a multiprocessor have 4 bytes each under way, 8,192 bytes at
# most. How many can it be in `coarsened`?

# %%
guess = None  # bytes


def under_way(threads, elements):
    """The most bytes that the loads of an H200's multiprocessor can have under way, with float32 tiles."""
    fit = simt.occupancy(threads, 4 * transpose.TILE * transpose.PITCH, gpu="H200")
    return fit.blocks * threads * elements * 4


predict(guess, under_way(32 * transpose.STEP, transpose.EACH), unit="bytes")

# %%
coarsened = simt.profile(transpose.coarsened_kernel, grid, (32, transpose.STEP), (x, np.empty_like(x)))
for name in ("global_load_requests", "global_load_sectors", "shared_load_wavefronts", "barriers"):
    print(f"{name:24} padded {padded.counters[name]:8,}   coarsened {coarsened.counters[name]:8,}")
for name, most in {"padded": under_way(32 * 32, 1), "coarsened": under_way(32 * 4, transpose.EACH)}.items():
    print(f"{name}: at most {most:,} bytes under way")
measured("padded", "coarsened")

# %% [markdown]
# As many threads fit as before, and each has eight loads under way in place of one. The traffic is the same to the last
# sector. The memory was not asked for too much; it was asked too late. Counters tell how much work there is. They do
# not tell when it is done.
#
# **Your turn.** `coarsened` has 4 rows of threads, and each thread moves eight elements. Write a transpose with 8 rows
# of threads, whose threads move four.

# %%
exercise("transpose/coarsen")


# %%
@cuda.jit
def coarsen(x, out):
    pass  # your code


check("transpose/coarsen", coarsen)

# %% [markdown]
# ## The fifth rung, `vectorised`: 128 bits at a time
#
# One thing is left from chapter 4: a lane can move 16 bytes with one instruction. For a transpose that seems of no
# use. Four neighbours in a row of `x` belong to four different rows of `out`.
#
# But take four rows of four. A thread loads a square of 4 x 4 elements with four wide loads, one for each row. Now it
# holds in registers four pieces of rows *of the result*, and each piece is again 16 bytes long. These go through
# shared memory, so that a warp can store along a row of `out`. Compare the tuples: `a` to `d` are rows, and
# `(a[0], b[0], c[0], d[0])` is a column. `load128` and `store128` count elements from the start of an array of any
# shape, row after row, so row and column become one *flat* index, `row * n + column`.

# %%
show(transpose.quads_kernel)

# %% [markdown]
# Padding by one element is impossible here: 16-byte accesses need addresses that are multiples of 16. (Hence also
# `alignment=16`: the tile itself must begin at one.) So the tile is *swizzled*: every piece stays in its row, but moves
# to another place in it, `v ^ (r // 4 % 8)` for piece `v` of row `r`. (`^` is the exclusive or of the bits.) A swizzle
# costs no memory. It loses nothing either: for a given row, `v ^ s` with a fixed `s` takes every place once. And who
# knows the row finds the piece again by the same formula.
#
# Each request is now for 32 x 16 bytes. In shared memory eight lanes are served at a time, as 8 x 16 bytes fill all 32
# banks.
#
# **Predict, then run.** How many sectors is a request to global memory, and how many wavefronts does one to shared
# memory take at least?

# %%
guess = {"sectors": None, "wavefronts": None}  # a request

wide = 512 // 64, 512 // 64  # the tile is 64 x 64 now, for 16 x 16 threads
quads = simt.profile(transpose.quads_kernel, wide, (16, 16), (x, np.empty_like(x)), trace=True)
wavefronts = quads.counters["shared_load_wavefronts"] // quads.counters["shared_load_requests"]
predict(guess, {"sectors": sectors(quads, "x"), "wavefronts": wavefronts})

# %%
for space, what in (("global", "sectors"), ("shared", "wavefronts")):
    for way in ("load", "store"):
        requests, units = quads.counters[f"{space}_{way}_requests"], quads.counters[f"{space}_{way}_{what}"]
        print(f"{space} {way:5} {requests:6,} requests, {units / requests:4.0f} {what} each")
plots.access(quads, "x")

# %% [markdown]
# 512 bytes are 16 sectors, and four times eight lanes are four wavefronts: none is wasted on either side. The swizzle
# is the reason. When the tile is filled, eight neighbouring lanes write the same piece of every fourth row. This kernel
# only fills the tile, with or without the swizzle, and the picture shows those eight lanes.


# %%
@cuda.jit
def fill(swizzled):
    tile, zero = cuda.shared.array((64, 64), np.float32, alignment=16), np.float32(0)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    piece = ty ^ tx % 8 if swizzled else ty
    store128(tile, 4 * tx * 64 + 4 * piece, (zero, zero, zero, zero))


fills = {
    name: simt.profile(fill, 1, (16, 16), (swizzled,), trace=True)
    for name, swizzled in {"as it comes": False, "swizzled": True}.items()
}
plots.banks(fills, "tile")

# %% [markdown]
# As they come, the eight pieces lie in four banks. Swizzled, they lie in all 32.

# %%
measured("coarsened", "vectorised")

# %% [markdown]
# A quarter of the requests, the same sectors, and no conflict. If rows do not begin at multiples of 16 bytes, because
# the number of rows or columns is odd, say, `vectorised` falls back to the fourth rung. For elements of 8 bytes the
# room has a second kernel, `pairs_kernel`: 16 bytes are two of them, and the square in the registers is 2 x 2. Of 16
# bits they are eight, and `octets_kernel` has a square of 8 x 8 in 32 registers, since a register holds two.
#
# ## The ladder
#
# All rungs and the libraries on one page. The solid line is the bandwidth that a copy reaches.

# %%
plots.drawn(plots.ladder, "transpose", family="transpose")

# %% [markdown]
# There is no roofline to draw, since nothing is computed: at any size a transpose waits for memory, never for
# arithmetic. The bars *are* the roofline, the share of its slope. The two large steps are the tile with its padding,
# which mends the traffic, and `coarsened`, which mends the waiting.
#
# Must a transpose be slower than a copy? The roof is itself the rate of a copy, of 2 GiB, that was measured in the same
# run. Where the record has them, the next cell also prints two copies of as many bytes as this matrix has: by the copy
# kernel of the room `vector_add`, and by the driver (`cuda.memcpy`).

# %%
measured("vectorised", "copy", "cuda.memcpy")

# %% [markdown]
# Hardly: the last rung is within a few per cent of the roof, and so of a copy.
#
# From small to large. On the left the launch sets the pace, and the rungs differ little. In the middle both matrices
# fit in the L2 cache, which is faster than the memory. On the right the memory rules, and the ladder stands upright.

# %%
plots.drawn(plots.sweep, "transpose", family="transpose")

# %% [markdown]
# A matrix of float16 or bfloat16 has half the bytes. Nothing is computed with them here: their bits are moved. So the
# time should halve, if the kernel keeps the memory as busy.

# %%
plots.drawn(plots.by_dtype, "transpose", "transpose")

# %% [markdown]
# And the CPU? NumPy copies the transposed view into a matrix in C order, on one core.

# %%
plots.drawn(plots.cpu_gpu, "transpose", family="transpose")

# %% [markdown]
# Small matrices NumPy transposes before a GPU could have been sent them. Large ones it does not: then even the dashed
# line, with both transfers, lies below the CPU's. For an addition it did not ([chapter 4](04_vector_add.ipynb)). A CPU
# has caches with lines of several numbers, and it too uses one number of each line in the direction that is scattered.
#
# ## What to take along
#
# 1. Let lanes differ in the last index. Count sectors a request, not bytes.
# 2. If one side must be scattered, do the turn in shared memory.
# 3. There, count wavefronts a request. Pad by one, or swizzle where padding would break alignment.
# 4. Right counters are not enough. Keep bytes under way: several independent loads a thread, as wide as they come.
#
# ## Exercises
#
# These two are as those above: `check` runs your kernel, and says what it saw.

# %%
exercise("transpose/rotate")

# %%
simt.profile(rotate_start, (3, 2), (32, 32), (x[:64, :96].copy(), np.empty((96, 64), np.float32)))


# %%
@cuda.jit
def rotate(x, out):
    pass  # your code


check("transpose/rotate", rotate)

# %%
exercise("transpose/swizzle")

# %%
show(swizzle_start)


# %%
@cuda.jit
def swizzle(x, out):
    pass  # your code


check("transpose/swizzle", swizzle)

# %% [markdown]
# **Without a check.** `move_structures` has a stride of 3. Is a structure of four floats better or worse than one of
# three? Count, then explain why libraries pad points to four numbers all the same. (Think of `load128`.)
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rotate_answer(x, out):
    tile = cuda.shared.array((32, 33), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]  # lanes run backwards: the sectors are the same


assert check("transpose/rotate", rotate_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def planes_answer(x, out):
    part = cuda.shared.array(768, np.float32)
    thread, first, i = cuda.threadIdx.x, cuda.blockIdx.x * 768, cuda.grid(1)
    for j in range(thread, 768, 256):  # as they lie in memory, whatever they are
        if first + j < x.size:
            part[j] = x[first + j]
    cuda.syncthreads()
    for k in range(3):
        if i < out.shape[1]:
            out[k, i] = part[3 * thread + k]  # a stride of 3 words: odd, so 32 banks


assert check("transpose/planes", planes_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def swizzle_answer(x, out):
    tile = cuda.shared.array(0, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * 32 + (tx ^ ty)] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * 32 + (ty ^ tx)]


assert check("transpose/swizzle", swizzle_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def coarsen_answer(x, out):
    tile = cuda.shared.array((32, 33), np.float32)
    tx, ty, top, left = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for i in range(0, 32, 8):
        if top + ty + i < x.shape[0] and left + tx < x.shape[1]:
            tile[ty + i, tx] = x[top + ty + i, left + tx]
    cuda.syncthreads()
    for i in range(0, 32, 8):
        if left + ty + i < out.shape[0] and top + tx < out.shape[1]:
            out[left + ty + i, top + tx] = tile[tx, ty + i]


assert check("transpose/coarsen", coarsen_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def move_quads(points, by):
    i = cuda.grid(1)
    if i < points.shape[0]:
        x, y, z, unused = load128(points, 4 * i)  # the flat index of points[i, 0]
        store128(points, 4 * i, (x + by, y, z, unused))


for name, kernel, fields in (("3, x", move_structures, 3), ("4, x", move_structures, 4), ("4, load128", move_quads, 4)):
    count = simt.profile(kernel, n // 256, 256, (np.zeros((n, fields), np.float32), by)).counters
    requests, sectors = count["global_load_requests"], count["global_load_sectors"]
    print(f"floats: {name:11} {requests:4} requests, {sectors / requests:3.0f} sectors each")

# %% [markdown]
# *Four floats.* To get x alone, four are worse: the lanes lie 16 bytes apart, and a warp touches 16 sectors instead of
# 12, and uses a quarter of them instead of a third. But with four every point begins at a multiple of 16 bytes. So
# `load128` fetches a whole point with one request, for the same 16 sectors, while points of three floats need a request
# for each field. The price is a number in four that nobody uses, in memory and on the way.
#
# Go on with [chapter 18](18_when_a_kernel_is_wrong.ipynb), which finds out what is wrong with a kernel.
