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
# # 40. Tensor cores
#
# *Products of float16 with one instruction for 4096 operations: fragments, ldmatrix, swizzled tiles, and copies that
# run ahead. Read chapters [8](08_warps.ipynb), [12](12_matmul.ipynb), [16](16_transpose.ipynb) and
# [38](38_numerics.ipynb) before. 80 minutes. PMPP 4e: chapter 6; 5e: section 15.9.
# The code is [pmpp/kernels/matmul/tensor_cores.py](../pmpp/kernels/matmul/tensor_cores.py).*
#
# [Chapter 12](12_matmul.ipynb) brought a float32 product close to what the multiply-add units of a GPU can do. The same
# GPU has other units: *tensor cores*, which multiply small matrices of 16-bit numbers. Nearly all networks are trained
# and run on them.
#
# **The question of this chapter: a tensor core computes more than ten times as fast as the other units of its
# multiprocessor. What has to change around it, so that it is not left waiting for its operands?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.matmul import tensor_cores
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.matrix_f64_f8 import mma_f64

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# The datasheet of an H200 gives its tensor cores 989 TFLOP/s for float16, and its other units 67 TFLOP/s for float32.
# Its memory moves 4.8 TB/s, whoever computes.
#
# **Predict, then run.** How many operations for each byte does a kernel have to do on the tensor cores before
# arithmetic is its bound?

# %%
guess = None  # FLOP/byte

rates, bandwidth = {"float32": 67e12, "float16 on tensor cores": 989e12}, 4.8e12  # the datasheet of an H200
predict(guess, rates["float16 on tensor cores"] / bandwidth, unit="FLOP/byte", within=0.1)

# %% [markdown]
# The ridge has moved from 14 FLOP/byte to 206. A product of *n* x *n* matrices has 2 *n*^3 operations. With operands of
# 2 bytes and a result of 4 it moves at least 8 *n*^2 bytes, which makes *n* / 4 FLOP/byte. The figure has the highest
# rate that such products can reach, for both kinds of units.


# %%
def bounds():
    (figure, ax), sides = chart(3.4), np.array([2**i for i in range(5, 14)])
    for (name, rate), bytes_each, style in zip(rates.items(), (4, 2), ("o-", "s--"), strict=True):
        moved = sides**2 * (2 * bytes_each + 4) / bandwidth
        computed = 2 * sides.astype(float) ** 3 / rate
        ax.plot(sides, 2 * sides.astype(float) ** 3 / np.maximum(moved, computed) / 1e12, style, label=name)
        first = next(int(side) for side, m, c in zip(sides, moved, computed, strict=True) if c > m)
        print(f"{name}: arithmetic is the bound from n = {first} on")
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="TFLOP/s at best", title="products of n x n matrices")
    figure.legend(loc="outside right upper")
    foot(figure, "By the datasheet of an H200")
    return figure


bounds()

# %% [markdown]
# Where a curve rises, memory is the bound, and where it is flat, arithmetic. On tensor cores a product must have sides
# of about a thousand to be bound by arithmetic. And this counts only device memory. The same holds one level below:
# what a block fetches from the cache, and a warp from shared memory, must be used more often than before.
#
# ## The reference, and float16
#
# float16 has 11 binary digits, and its largest number is 65,504 ([chapter 38](38_numerics.ipynb)). What about the sums?
# A product of two float16 has at most 22 digits, so float32 holds it exactly. Tensor cores add these products in
# float32. The other way would be to add in float16. NumPy does that on the CPU if one asks for it.

# %%
show(tensor_cores.reference)


# %%
def errors(k, seed=40):
    """The largest error of a sum of k products, relative to the sum of the absolute products: for three ways to add."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0, 1, (16, k)).astype(np.float16), rng.uniform(0, 1, (k, 8)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    in_halves = np.zeros((16, 8), np.float16)
    for i in range(k):
        in_halves += np.outer(a[:, i], b[i])
    ways = {"NumPy, sums in float16": in_halves, "NumPy, sums in float32": a.astype(np.float32) @ b.astype(np.float32)}
    ways["tensor cores, sums in float32"] = device.to_host(tensor_cores.fragments(a, b))
    return {name: (abs(c.astype(np.float64) - exact) / exact).max() for name, c in ways.items()}


# %%
def draw_errors():
    (figure, ax), depths = chart(3.4), [2**i for i in range(4, 11)]
    found = [errors(k) for k in depths]
    for name, style in zip(found[0], ("o-", "s--", "D:"), strict=True):
        ax.plot(depths, [max(one[name], 1e-9) for one in found], style, label=name)
    ax.axhline(2.0**-11, color=palette.INK, lw=1)
    ax.set(xscale="log", yscale="log", xlabel="K", ylabel="relative error", title="sums of K products of float16")
    figure.legend(loc="outside right upper")
    return figure


draw_errors()

# %% [markdown]
# The thin line is half a step of float16: what storing the exact result in float16 would cost. Sums in float16 lose
# more than that, and far more if they are long. At some point what is added is below half a step of the sum, and the
# sum stays where it is. Sums in float32 stay well below the line. So the result of this room is float32, and whoever
# wants float16 can round once, at the end.
#
# The two float32 curves differ. A tensor core does not round after each addition. It shifts 16 products and the sum to
# a common exponent, and cuts off what is below the last place. All terms here are positive, so all these errors have
# one direction, and they add up. Rounding errors have both, and partly cancel. The room's `tolerance` allows for the
# worse.
#
# ## The first rung, `fragments`: a warp multiplies
#
# The instruction is called `mma.sync.m16n8k16`. All 32 lanes of a warp execute it together. It takes a 16 x 16 matrix
# *A*, a 16 x 8 matrix *B* and a 16 x 8 matrix *C* of sums, and returns *A B + C*. No lane has a whole matrix. Each
# holds a *fragment* of it: four registers of *A*, two of *B* and four of *C*. A register has 32 bits, which is two
# elements of *A* or *B*, or one sum.
#
# Which elements are whose is fixed by the hardware. The figure asks the interpreter, which has the same table.


# %%
def layout(name, shape, registers, ax):
    lanes, words = np.zeros(shape), np.zeros(shape, int)
    for lane in range(32):
        for register in range(registers):
            for row, column in simt.fragment("mma_f16", name, lane, register):
                lanes[row, column], words[row, column] = lane, register
    ax.imshow(lanes // 4 % 2 + lanes % 4, cmap="Pastel1", vmin=0, vmax=8)
    for row, column in np.ndindex(shape):
        said = f"{int(lanes[row, column])}\n{name}{words[row, column]}"
        ax.text(column, row, said, ha="center", va="center", fontsize=5)
    ax.set(title=f"{name.upper()}: {shape[0]} x {shape[1]}", xticks=[], yticks=[])


# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 5.4), width_ratios=(2, 1, 1), layout="constrained")
for name, shape, registers, ax in zip("abc", ((16, 16), (16, 8), (16, 8)), (4, 2, 4), axes, strict=True):
    layout(name, shape, registers, ax)

# %% [markdown]
# Each field names the lane, and below it the register. Take lane 5. In *A* it has neighbours in row 1 and in row 9,
# columns 2 and 3, and 10 and 11. In *B* it has neighbours in a *column*, since that is the direction in which *k* runs
# there. Of *C* it has two neighbours in row 1, and two in row 9.
#
# **Your turn.** Write down what each lane holds of *A*.

# %%
exercise("tensor_cores/fragment")


# %%
@cuda.jit
def fragment(a, out):
    pass  # your code


check("tensor_cores/fragment", fragment)

# %% [markdown]
# The first rung gives every 16 x 8 tile of *C* to a warp, and each lane loads its elements from device memory. The
# kernel computes nothing with an element itself. So it sees float16 as uint16, and `pack_halves` puts two of them into
# a register. Beyond the edges of the matrices elements are 0, which adds nothing.

# %%
show(tensor_cores.fragments_kernel)

# %% [markdown]
# **Predict, then run.** For one instruction, of 4096 operations, a warp loads 16 x 16 elements of *A* and 16 x 8 of
# *B*. How many operations does it do for each byte?

# %%
guess = None  # FLOP/byte

m, n, k = tensor_cores.MMA_M, tensor_cores.MMA_N, tensor_cores.MMA_K
predict(guess, 2 * m * n * k / (2 * (m * k + k * n)), unit="FLOP/byte", within=0.02)

# %%
rng = np.random.default_rng(40)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (64, 128)))
counted = {rung.name: lab.count(rung, a, b) for rung in tensor_cores.LADDER}
for one in counted.values():
    error = abs(device.to_host(one.result) - a.astype(np.float64) @ b.astype(np.float64)).max()
    assert (error <= tensor_cores.tolerance(a, b)).all()
first = counted["fragments"].counters
print(f"{first['global_load_requests']} requests for {first['global_load_bytes'] // 2} elements of 2 bytes")

# %% [markdown]
# Each of these requests of a warp fetches 64 bytes at most. (All rungs of this room have just computed the same
# product, and each was within the tolerance.)
#
# ## The second rung, `shared`: a tile for a block
#
# As in chapter 12, a block has to fetch a tile once and use it often.
#
# **Predict, then run.** A block computes 128 x 128 elements of *C*. For each *k* it fetches 128 elements of *A* and 128
# of *B*. How many operations does it do for each byte?

# %%
guess = None  # FLOP/byte

side = tensor_cores.SIDE
predict(guess, 2 * side * side / (2 * (side + side)), unit="FLOP/byte", exact=True)

# %% [markdown]
# That is less than the ridge of 206. But many blocks read the same rows of *A* and the same columns of *B*, and all but
# the first find them in the L2 cache, which is faster than device memory.
#
# The block has 8 warps. Each computes 64 x 32 elements of *C*, which is 4 x 4 fragments. So it loads four fragments of
# *A* and four of *B* for 16 instructions: a fragment is used four times.
#
# `copy_async` brings 16 bytes from device memory into shared memory without a register in between. The thread does not
# wait for it. `wait_copies(0)` does, and the barrier behind it makes sure that the copies of all other threads have
# arrived, too.

# %%
show(tensor_cores.tiled_kernel(False, False))

# %% [markdown]
# Rows must begin at multiples of 16 bytes for that. Where they do not, the room copies the matrices into padded ones
# first. These copies are cheap beside a large product, and no shape is refused.
#
# **Predict, then run.** A warp gathers the operands of 16 instructions from shared memory: four fragments of *A* with
# four registers each, and four of *B* with two. A register of *A* is one load, since its two elements are neighbours in
# a row. The two elements of a register of *B* lie in different rows, so they are two loads. How many loads is that for
# a lane?

# %%
guess = None  # loads

loads = counted["shared"].counters["shared_load_requests"]
predict(guess, loads / (8 * 64 / 16), unit="loads", exact=True)  # 8 warps, 64 / 16 steps of k

# %% [markdown]
# ## The third rung, `matrices`: ldmatrix
#
# There is an instruction for exactly this. `ldmatrix` loads four matrices of 8 x 8 elements at once. Lane 8 *m* + *r*
# says where row *r* of matrix *m* begins, and every lane gets one register of each matrix, in the order of a fragment.
# `ldmatrix_transposed` hands out the transposed matrices. That is what *B* needs: in memory its neighbours are those of
# a row, and the instruction wants those of a column.

# %%
show(tensor_cores.by_matrices)

# %%
print("rung        requests  wavefronts  bank conflicts")
for name in ("shared", "matrices"):
    counters = counted[name].counters
    conflicts = counters.get("shared_load_bank_conflicts", 0)
    print(f"{name:10}{counters['shared_load_requests']:10}{counters['shared_load_wavefronts']:12}{conflicts:16}")

# %% [markdown]
# The requests have become far fewer, and the *wavefronts* have not. A wavefront moves up to 128 bytes, one word from
# each of the 32 banks. `ldmatrix` moves 512 bytes, so it needs four: one for each matrix.
#
# **Predict, then run.** A row of the tile of *B* has 128 elements. The 8 rows of a matrix begin below each other. How
# many wavefronts does a matrix of *B* take?

# %%
guess = None  # wavefronts

begins = np.arange(8) * 128 * 2  # in bytes
banks = (begins[:, None] // 4 + np.arange(4)) % 32  # of the four words of each row
predict(guess, np.bincount(banks.reshape(-1)).max(), unit="wavefronts", exact=True)

# %% [markdown]
# A row has 256 bytes, which is a multiple of 128. So all 8 rows begin in the same bank, and each has to wait for the
# others. A row of *A*'s tile has 64 bytes, so only every second row begins in the same bank.
#
# ## The fourth rung, `swizzled`: chunks change places
#
# Chapter 12 used padding against that. Here a row may only move by 16 bytes, so that it stays aligned, and padding
# would cost memory that is needed for more tiles. [Chapter 16](16_transpose.ipynb) has a better way, a *swizzle*. We
# cut a row into *chunks* of 16 bytes. Chunk *c* of row *r* goes to place *c* XOR (*r* mod 8). For every row this only
# exchanges the chunks of that row. But a column of chunks, which is what `ldmatrix` reads, is spread over 8 places:
# over all banks.

# %%
show(tensor_cores.swizzled_place)


# %%
def chunks_of(ax, title, place):
    rows, chunks = np.mgrid[:8, :8]
    where = np.zeros((8, 8), int)
    where[rows, place(rows, chunks)] = chunks
    ax.imshow(where == 2, cmap="Wistia", vmin=0, vmax=3)
    for row, at in np.ndindex(8, 8):
        ax.text(at, row, str(where[row, at]), ha="center", va="center")
    ax.set(title=title, ylabel="row", xlabel="place: banks 4 p to 4 p + 3", xticks=range(8), yticks=range(8))


# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
chunks_of(axes[0], "row after row", lambda row, chunk: chunk)
chunks_of(axes[1], "swizzled", lambda row, chunk: chunk ^ row)

# %% [markdown]
# The numbers are those of the chunks. Chunk 2 of each row is marked: on the left one place, so the same four banks, and
# on the right eight places.
#
# **Your turn.**

# %%
exercise("tensor_cores/swizzle")


# %%
@cuda.jit
def swizzle(x, out):
    pass  # your code


check("tensor_cores/swizzle", swizzle)

# %% [markdown]
# **Predict, then run.** In this product 8 warps do 4 steps, and each reads four fragments of *A* and four of *B*: 6
# `ldmatrix` a step. How many wavefronts are left, if there are no conflicts?

# %%
guess = None  # wavefronts

predict(guess, counted["swizzled"].counters["shared_load_wavefronts"], unit="wavefronts", exact=True)

# %%
names = ["shared", "matrices", "swizzled"]
figure, ax = chart(2.6)
for shift, counter, colour in (
    (-0.2, "shared_load_requests", plots.COLOURS[0]),
    (0.2, "shared_load_wavefronts", plots.COLOURS[1]),
):
    values = [counted[name].counters[counter] for name in names]
    bars = ax.barh(np.arange(3) + shift, values, 0.4, color=colour, label=counter.replace("_", " "))
    ax.bar_label(bars, padding=3)
ax.set(yticks=range(3), yticklabels=names, xlabel="in a product of 128 x 64 x 128", xlim=(0, 5000))
ax.invert_yaxis()
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# ldmatrix has made the requests few, and the swizzle the wavefronts. Each alone would have left the other.
#
# ## The fifth rung, `pipelined`: copies that run ahead
#
# What is still wrong? In each step the block waits until its tiles have arrived. Meanwhile no tensor core works, unless
# another block is there. Chapter 12 mended that by loading the next tile into registers. With `copy_async` no registers
# are needed, only room in shared memory. So we can be further ahead, and have several *pipeline stages*.
#
# `commit_copies` closes a group of copies, and `wait_copies(n)` waits until at most *n* groups are still under way.
# Copies arrive in the order of their groups. With three stages, a step waits for the older of two groups.

# %%
show(tensor_cores.pipelined_kernel(tensor_cores.PIPELINED, 1))

# %% [markdown]
# One barrier a step is enough for two things. Behind it, the tiles of this step have arrived for all threads. And
# everyone has finished the step before, so its slot is free.
#
# **Your turn.** Plan the slots.

# %%
exercise("tensor_cores/stages")


# %%
@cuda.jit
def stages(stages, out):
    pass  # your code


check("tensor_cores/stages", stages)

# %% [markdown]
# **Predict, then run.** How many KiB of shared memory do three stages take, for tiles of 128 x 32 and 32 x 128?

# %%
guess = None  # KiB

predict(guess, tensor_cores.PIPELINED.shared / 1024, unit="KiB", exact=True)

# %% [markdown]
# That is what every block may have without asking the driver for more. The size is given at the launch, behind the
# stream: the kernel declares an array of length 0, and takes what there is.
#
# ## The sixth rung, `wide`: more from each fragment
#
# Shared memory has become the narrow place. A warp with 64 x 32 of *C* loads 6 times for 16 instructions. With 64 x 64
# it loads 8 times for 32. It then has 128 sums in registers, besides its fragments, so fewer warps fit on a
# multiprocessor. That does no harm: each of them has 32 independent instructions to issue.
#
# And a second thing. Blocks start in the order of their numbers. If neighbours lie along a row of 64 tiles, then 132 of
# them read three rows of tiles of *A*, and all 64 columns of *B*. If they fill a more compact patch, they read fewer
# tiles in all, and the L2 cache serves more of them.


# %%
def tiles_read(group, blocks=132, across=64):
    """The tiles of A and B that the first blocks read, of a product of 64 x 64 tiles."""
    rows, columns = set(), set()
    for block in range(blocks):
        first, within = block // (group * across) * group, block % (group * across)
        rows.add(first + within % group)
        columns.add(within // group)
    return len(rows) + len(columns)


# %% [markdown]
# **Predict, then run.** How many tiles do the first 132 blocks read for each *k* if they go down columns of 8 tiles?

# %%
guess = None  # tiles

predict(guess, tiles_read(8), unit="tiles", within=0.1)

# %%
for group in (1, 2, 4, 8, 16, 32):
    print(f"columns of {group:2} tiles: {tiles_read(group):3} tiles of A and B")

# %% [markdown]
# A square patch reads the least. The room takes columns of 8.
#
# ## The seventh rung, `overlapped`: fragments run ahead, too
#
# What is still wrong? Look at what a warp of `wide` does behind its barrier. It computes where to copy from and to, and
# begins its copies. Then it loads its first fragments, and waits for them. All that time it multiplies nothing. Its 244
# registers a thread leave room for eight warps on a multiprocessor, so each of the four schedulers has only one other
# warp that might.
#
# Tiles already run ahead of the fragments. Now fragments run ahead of the instructions. A warp has two sets of them: it
# loads those of the next step, and then multiplies those of this one, which have arrived. The loads arrive while 32
# instructions are issued. This goes on across the barrier: it stands *before* the last step of a tile, when all of its
# fragments are in registers. Behind it, 32 instructions have their operands while the first fragments of the next tile
# are on their way.


# %%
def timeline(ax, title, rows):
    """What is under way in each step: rows of (name, first step, length, colour)."""
    for name, first, length, colour in rows:
        place = ["copies", "ldmatrix", "mma.sync"].index(name)
        ax.barh(place, length, left=first, color=colour, edgecolor="white")
    ax.axvline(4, color=palette.INK, linewidth=2)
    ax.text(4.05, -0.75, "barrier", va="center")
    ax.set(title=title, yticks=range(3), yticklabels=["copies", "ldmatrix", "mma.sync"], xticks=[], xlabel="time")
    ax.set_ylim(2.6, -1.1)


# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 2.8), layout="constrained")
now, after = plots.COLOURS[0], plots.COLOURS[1]
waits = [("mma.sync", 0, 4, now), ("copies", 4, 1, after), ("ldmatrix", 5, 1, after), ("mma.sync", 6, 2, after)]
timeline(axes[0], "wide", waits)
runs = [("mma.sync", 0, 5, now), ("copies", 5, 2, after), ("ldmatrix", 4, 1, after), ("mma.sync", 5, 3, after)]
timeline(axes[1], "overlapped", runs)

# %% [markdown]
# Blue belongs to one tile, and orange to what follows behind the barrier: copies, which are for a later tile, and the
# fragments and instructions of the next one. On the left the tensor cores wait behind the barrier, and on the right
# they do not.
#
# Two more changes serve the same end. What does not change from step to step is computed before the loop: a lane knows
# where it reads in each step, and a thread where its chunks lie. And a tile is 64 deep now.
#
# **Predict, then run.** A warp computes 64 x 64 elements of *C*. How many times does it issue `mma.sync` between two
# barriers?

# %%
guess = None  # instructions

steps, fragments_of_warp = tensor_cores.SLICE // tensor_cores.MMA_K, (64 // 16) * (64 // 8)
predict(guess, steps * fragments_of_warp, unit="instructions", exact=True)

# %%
show(tensor_cores.overlapped_kernel(tensor_cores.AHEAD[0], tensor_cores.GROUP))

# %% [markdown]
# A block of the largest tile has 144 KiB of shared memory, and is alone on its multiprocessor. That is no loss: its
# eight warps are as many as two blocks of `wide` had, and it copies less for each instruction. Where 128 x 256 would
# give too few tiles, or shared memory is smaller, the rung takes smaller ones.
#
# Could a block also go on with its next tile of *C*, and copy the first part of it while it stores the sums? We tried
# that on an H200, and with this kernel it gained nothing.
#
# ## The eighth rung, `fed`: others copy
#
# What is still wrong? All eight warps meet at a barrier in each step of 64 *k*. Whoever comes first waits for the last
# one. Yet a warp does not need the others. It needs its tiles, and someone must know that it has used them. And each
# warp issues copies and computes their addresses, which are instructions between those that multiply.
#
# A GPU of compute capability 9.0 has an engine that copies whole tiles. One thread asks for a tile by its row and
# column. The engine brings it into shared memory, exchanges the chunks of its rows, and puts zeros where the matrix
# ends. Next to it come *mbarriers*: counters in shared memory for which a thread can wait. Each stage has two of them.

# %% [markdown]
# - `full` counts the bytes that the engine has brought. A warp waits for it before it loads fragments of the stage.
# - `empty` counts the warps that have their fragments of the stage in registers. Whoever asks for tiles waits for it
#   before the stage is overwritten.
#
# So the warps have two kinds of work. A producer waits for empty stages and asks for tiles. Eight consumers wait for
# full ones and multiply. No barrier of all is left in the loop, and a fast warp can be some stages ahead of a slow one.
# [Chapter 43](43_warpgroups.ipynb) is about the engine and about mbarriers, step by step.
#
# **Predict, then run.** A stage has 128 x 64 elements of *A* and 64 x 256 of *B*. How many KiB of shared memory do four
# stages take?

# %%
guess = None  # KiB

predict(guess, tensor_cores.FED.shared // 1024, unit="KiB", exact=True)

# %% [markdown]
# Registers are the rest of the matter. A consumer needs about 200, and the producer a few. A kernel gives the same
# number to all of its threads. With four warps beside the eight, of which only one thread has work, that would be 168
# each. `fewer_registers` and `more_registers` let groups of four warps give some away, and take them.

# %%
show(tensor_cores.fed_kernel(tensor_cores.FED, tensor_cores.GROUP))

# %% [markdown]
# A block computes one tile of *C* after the other. The producer does not stop at the end of a tile: it asks for the
# operands of the next one while the consumers store their sums. The consumers do nothing for it.
#
# On other GPUs, and where there are fewer tiles of 128 x 256 than multiprocessors, `fed` is `overlapped`. So it was in
# the small product above, and so it is in the figure below up to *n* = 2048.
#
# ## All rungs
#
# The design size is a product of 4096 x 4096 matrices. The comparison is with cuBLAS by way of PyTorch, with sums in
# float32: once with a result in float16, and once in float32, as the rungs have it. The solid line is the measured
# ceiling of float32 multiply-adds, which tensor cores can pass by far. NumPy multiplies the same values in float32.


# %%
def rates_of_all():
    """The rate of each rung and library at the design size."""
    kept = record.load()
    entries = kept.design("tensor_cores")
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of tensor_cores")
    figure, ax = chart(4)
    look = plots.colours(kept, "tensor_cores")
    for place, entry in enumerate(entries):
        fill = look[entry.contender][0] if entry.kind == "rung" else "white"
        bar = ax.barh(place, entry.flops / entry.seconds / 1e12, color=fill, edgecolor=look[entry.contender][0])
        ax.bar_label(bar, [f"{entry.median_ms:.3g} ms"], padding=4, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    ax.axvline(kept.ceilings("tensor_cores").fma_f32 / 1e12, color=palette.INK, zorder=0)
    ax.set_yticks(range(len(entries)), [entry.contender for entry in entries])
    ax.set(xlabel="rate (TFLOP/s)", title="products of 4096 x 4096 matrices of float16")
    ax.invert_yaxis()
    ax.margins(x=0.12)
    foot(figure, kept.footer("tensor_cores"))
    return figure


plots.drawn(rates_of_all)

# %%
title = "products of n x n matrices of float16"
plots.drawn(plots.sweep, "tensor_cores", family="tensor_cores", xlabel="n", title=title)

# %% [markdown]
# Tiles in shared memory bring a factor of eight, and the swizzle nearly three. In between, `matrices` gains nothing: it
# makes fewer requests, and as many wavefronts. The rungs behind the swizzle double the rate once more. Small products
# leave most multiprocessors without a tile, whoever computes them.
#
# On Hopper even a perfect kernel of this kind stays behind cuBLAS. Its tensor cores have an instruction of their own,
# `wgmma`: four warps multiply together, and the operands come straight from shared memory. `mma.sync` still works
# there, as on every GPU since compute capability 8.0, but it does not reach the full rate.
# [Chapter 43](43_warpgroups.ipynb) is about `wgmma`.
#
# ## Other numbers
#
# `mma.sync` exists for other numbers, too. Lanes hold their fragments in the same way: a register of *A* or *B* has
# neighbours along *k*, as many as fit into its 32 bits. A float64 has 64 bits, and takes two registers, which count as
# one in the table. *A* always has 16 rows, and *B* 8 columns.
#
# | Name | *A* and *B* | *k* | A register holds | *C* | Compute capability |
# |---|---|---|---|---|---|
# | `mma_f16`, `mma_bf16` | float16, bfloat16 | 16 | 2 numbers | float32 | 8.0 |
# | `mma_tf32` | float32, of which 19 bits count | 8 | 1 number | float32 | 8.0 |
# | `mma_s8` | int8 | 32 | 4 numbers | int32 | 8.0 |
# | `mma_e4m3`, `mma_e5m2` | floats of 8 bits | 32 | 4 numbers | float32 | 8.9 |
# | `mma_f64` | float64 | 8 | 1 number | float64 | 8.0 |
#
# The last three are in [a file of their own](../pmpp/runtime/matrix_f64_f8.py), the others
# [here](../pmpp/runtime/matrix.py). Some of them are not one instruction of the hardware. On Hopper, NVIDIA's compiler
# makes float16 of the floats of 8 bits, and multiplies twice: they gain nothing there, unlike with `wgmma`. Before
# Hopper, `mma_f64` is four smaller instructions. By the datasheet, the tensor cores of an H200 do 67 TFLOP/s of
# float64, twice what its other units do. A form that leaves zeros out is the subject of
# [chapter 79](79_sparsity.ipynb).
#
# Below, a warp multiplies a matrix of 16 x 8 float64 by one of 8 x 8.


# %%
@cuda.jit
def doubles(a, b, out):
    t = cuda.threadIdx.x
    row, k, zero = t // 4, t % 4, np.float64(0)
    of_a = (a[row, k], a[row + 8, k], a[row, k + 4], a[row + 8, k + 4])
    c = mma_f64(of_a, (b[k, row], b[k + 4, row]), (zero, zero, zero, zero))
    out[row, 2 * k], out[row, 2 * k + 1] = c[0], c[1]
    out[row + 8, 2 * k], out[row + 8, 2 * k + 1] = c[2], c[3]


def product_of_doubles(a, b):
    out = device.empty((16, 8), np.float64)
    doubles[1, 32](device.to_device(a), device.to_device(b), out)
    return device.to_host(out)


# %% [markdown]
# A product of two float16 fits into a float32. A product of two float64 has up to 106 binary digits, more than any type
# of a GPU holds. So `mma_f64` adds one product after another, as a loop of `cuda.fma` does: eight fused multiply-adds
# in the order of *k*, each rounded once, to the nearest number. If two are equally near, in a *tie*, it is the even
# one.
#
# **Predict, then run.** In the first row of *A* stands 1, then seven times 2^-53, which is half a step of float64 at 1.
# In the second row the same numbers stand in the opposite order. *B* is full of ones, so an element of *C* is the sum
# of a row of *A*. By how many steps is the second sum larger than the first?

# %%
guess = None  # steps of float64 at 1

a = np.zeros((16, 8))
a[0], a[1] = [1] + [2.0**-53] * 7, [2.0**-53] * 7 + [1]
first, second = product_of_doubles(a, np.ones((8, 8)))[:2, 0]
predict(guess, (second - first) / np.spacing(1.0), unit="steps", exact=True)

# %% [markdown]
# In the first row, 1 and half a step are a tie between 1 and the next number, and 1 is the even one. So the sum is 1
# again, seven times. In the second row, the half steps have become 3.5 steps before the 1 arrives. 1 and 3.5 steps are
# a tie between 3 and 4 steps, and 4 is even. For float16 the order within an instruction makes no difference: all 16
# products are shifted to one exponent, and added at once.
#
# ## What to take along
#
# - A tensor core multiplies small matrices that the lanes of a warp hold together, in *fragments* of a fixed layout.
# - Faster arithmetic moves the ridge. Every level must use what it fetches more often: blocks, warps and registers.
# - float16 for the operands, float32 for the sums. Long sums in float16 are worthless.
# - ldmatrix makes few requests, and a swizzle makes them free of bank conflicts. It exchanges whole chunks of a row.
# - Asynchronous copies need no registers. With *s* stages, copies run *s* - 1 steps ahead, with one barrier a step.
# - Fragments can run ahead, too: load those of the next step before you multiply those of this one, also across the
#   barrier.
# - A barrier of all makes each warp wait for the slowest. Where one warp brings what others use, two counters a stage
#   are enough: full and empty.
#
# To read on: PTX ISA, sections on `mma`, `ldmatrix` and `cp.async`. NVIDIA, *CUTLASS: efficient GEMM in CUDA*. M. Fasi,
# N. Higham, M. Mikaitis and S. Pranesh, *Numerical behavior of NVIDIA tensor cores* (2021).
#
# ## Exercises
#
# The three exercises with a check stand above. More to try, without a check:
#
# 1. Write `by_elements` so that a register of *B* is one load. How would the tile of *B* have to lie in shared memory?
# 2. What does `swizzled_place` do for rows of 4 chunks? Draw the figure of the chunks for it.
# 3. A sum that was rounded to float16 after each instruction, not after each addition: how large would its error be?
#
# ## Answers
#
# **fragment.** The lane's number divided by 4 is the row, and the rest is the pair of columns. The two bits of the
# word's number say whether it is below, and whether it is to the right.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.matmul import tensor_cores_exercises as answers

show(answers.fragment_answer)
assert check("tensor_cores/fragment", answers.fragment_answer)

# %% [markdown]
# **swizzle.** Only the chunk's place changes. The exclusive or with the same number leads back, too, so a reader of the
# tile uses the same formula.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.swizzle_answer)
assert check("tensor_cores/swizzle", answers.swizzle_answer)

# %% [markdown]
# **stages.** Behind the barrier of step *s*, nobody reads the slot of step *s* - 1 any more. The next step that uses
# this slot is *s* - 1 plus the number of stages.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.stages_answer)
assert check("tensor_cores/stages", answers.stages_answer)

# %% [markdown]
# *One load for a register of B.* The two elements must be neighbours in memory, so the tile would have to be stored
# transposed. Then the copies, which move 16 bytes of a row, could no longer write it.
#
# *Rows of 4 chunks.* Two rows share the 128 bytes of all banks, so they exchange their chunks in the same way, and the
# next two in another one.
#
# *Rounding after each instruction.* The sum would be rounded once for 16 products, with half a step of float16 each
# time. For *K* = 4096 these are 256 roundings. That is better than 4096, and still far worse than one.
#
# Go on with [chapter 41](41_merge.ipynb): two sorted vectors become one.
