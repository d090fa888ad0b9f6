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
# # 79. Sparsity
#
# *Two of each four weights: pruning, metadata, tensor cores that leave zeros out, and what then becomes the bound. Read
# chapters [40](40_tensor_cores.ipynb) and [77](77_quantisation.ipynb) before. 75 minutes. PMPP 4e: none; 5e:
# chapter 17. The code is [pmpp/kernels/sparsity/ladder.py](../pmpp/kernels/sparsity/ladder.py).*
#
# Many weights of a trained network are nearly 0, and the network hardly changes if they are exactly 0. Setting them to
# 0 is called *pruning*. [Chapter 44](44_sparse.ipynb) has formats for matrices that are mostly zeros, and products that
# skip them. But a pruned layer is half zeros, not 99 percent, and its rival is a product on tensor cores.
#
# So the hardware has a pattern of its own, *2:4 sparsity*: of each four neighbours in a row, two are stored, and two
# are 0. The tensor cores of every GPU since compute capability 8.0 multiply what is stored, and leave the zeros out.
#
# **The question of this chapter: half of the weights are gone. Who gets faster by that, and why is it not twice as
# fast?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import sparsity
from pmpp.kernels.matmul import tensor_cores
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# A product $y = w x$ has a matrix of weights *w* and a matrix *x* of activations, both in float16. Of each four weights
# two are stored, with 16 bits each. And somebody must know where they belong: their places among the four, with two
# bits for each. That is the *metadata*.
#
# **Predict, then run.** If the time is that of the bytes of *w*, how many times as fast is the product with sparsity?

# %%
guess = None  # times as fast

stored, places = 2 * 16, 2 * 2  # bits for four weights
predict(guess, 4 * 16 / (stored + places), unit="times as fast", within=0.02)

# %% [markdown]
# That is for one column of *x*, as when a model writes a word. With many columns the time is that of the arithmetic,
# and of that half is gone. In between lies the ridge. The figure has both bounds for a layer of a large model, by the
# datasheet of an H200, with 989 TFLOP/s and 4.8 TB/s.


# %%
def bounds(rate=989e12, bandwidth=4.8e12, m=8192, k=28672):
    """The least time over the columns of x, with zeros and without them."""
    (figure, ax), columns = chart(3.4), np.array([2**i for i in range(13)])
    for name, cost, style in (("dense", tensor_cores.cost, "o-"), ("2:4", sparsity.cost, "s--")):
        costs = [cost(m, int(n), k) for n in columns]
        moved = np.array([one.bytes for one in costs]) / bandwidth
        computed = np.array([one.flops for one in costs]) / rate
        ax.plot(columns, 1e3 * np.maximum(moved, computed), style, label=name)
        print(f"{name}: arithmetic is the bound from {columns[np.argmax(computed > moved)]} columns on")
    ax.set(xscale="log", yscale="log", xlabel="columns of x", ylabel="ms at least", title="8192 x 28672 weights")
    ax.legend()
    foot(figure, "By the datasheet of an H200")
    return figure


bounds()

# %% [markdown]
# On the left memory is the bound, and the gain is 16/9. On the right arithmetic is the bound, and the gain is 2. The
# ridge hardly moves, since bytes and arithmetic have both become less, by nearly the same factor.
#
# These are bounds. The rest of the chapter is about what is left of 16/9 and of 2 in a kernel.
#
# ## The format
#
# `prune` keeps the two of each four that are largest without their signs. Of equal ones the first stay, so the result
# is the same on every GPU. It returns the stored values and the metadata. Zeros at the end of each row fill up the last
# tile, so only the first four values are printed here. `decompress` puts the values back into their places.

# %%
w = np.float16([[0.3, -2, 0.1, 1.5, 0, 0, 7, 0], [1, 1, 1, 1, -1, 2, -3, 4]])
values, metadata = map(device.to_host, sparsity.prune(w))
print(values[:, :4])
print(device.to_host(sparsity.decompress(values, metadata, 8)))

# %% [markdown]
# Two of four places, from left to right, can be chosen in six ways. Each choice is written as a *code* of four bits,
# with the first place in the lower two. The hardware relies on the order. The other ten codes, such as those with the
# same place twice, have no meaning: a GPU may do anything with them, and the interpreter refuses them.


# %%
def pairs_of_places():
    (figure, ax), pairs = chart(1.9), [(i, j) for i in range(4) for j in range(i + 1, 4)]
    for number, (first, second) in enumerate(pairs):
        for place in range(4):
            kept = place in (first, second)
            colour = plots.COLOURS[0] if kept else palette.FAINT
            ax.add_patch(plt.Rectangle((5 * number + place, 0), 1, 1, facecolor=colour, edgecolor="white"))
        ax.text(5 * number + 2, -0.6, f"{first | second << 2:04b}", ha="center")
    ax.set(xlim=(-0.5, 29.5), ylim=(-1, 1.3), title="the six ways to keep two of four", aspect="equal")
    ax.set_axis_off()
    return figure


pairs_of_places()

# %% [markdown]
# The blue squares stay. Read the bits from the right: 1101 is place 01, and then place 11.
#
# **Your turn.** Compress a matrix yourself.

# %%
exercise("sparsity/compress")


# %%
@cuda.jit
def compress(w, values, bits):
    pass  # your code


check("sparsity/compress", compress)

# %% [markdown]
# ## What does it cost?
#
# How many right answers are lost? [Chapter 77](77_quantisation.ipynb) has a layer that says which digit an image of
# 8 x 8 pixels is: the matrix of 10 x 64 weights that fits 1,500 images best, in the sense of least squares. The other
# 297 images are the test.

# %%
images, labels = data.digits()
flat = images.reshape(len(images), -1)
flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
known, asked = flat[:1500], flat[1500:]
targets = np.eye(10, dtype=np.float32)[labels[:1500]] - np.float32(0.1)
layer = np.linalg.lstsq(known, targets, rcond=1e-3)[0].T


def share_right(weights):
    """Of the digits that the layer has not seen, those that it names right, in percent."""
    return 100 * np.mean((asked @ weights.T).argmax(axis=1) == labels[1500:])


def with_two_of_four(weights):
    halves = np.ascontiguousarray(weights, np.float16)
    return device.to_host(sparsity.decompress(*sparsity.prune(halves), weights.shape[1])).astype(np.float32)


# %% [markdown]
# **Predict, then run.** How many percentage points are lost when half of the weights become 0?

# %%
guess = None  # percentage points

pruned = with_two_of_four(layer)
predict(guess, share_right(layer) - share_right(pruned), unit="percentage points")

# %% [markdown]
# In chapter 77 the same layer lost less than one point with int8. Here the weights that are left were chosen when the
# others were still there. So let them be chosen anew: the same fit, with zeros where they are now. For a network that
# is further training, with the pattern held fixed.

# %%
fitted = np.zeros_like(pruned)
for digit, kept in enumerate(pruned != 0):
    fitted[digit, kept] = np.linalg.lstsq(known[:, kept], targets[:, digit], rcond=1e-3)[0]
anywhere = np.where(abs(layer) > np.median(abs(layer)), layer, 0)
found = {"all weights": layer, "the larger half of all": anywhere, "two of four": pruned, "two of four, fitted": fitted}
for name, weights in found.items():
    print(f"{name:24}{100 * np.mean(weights == 0):5.0f} % zeros{share_right(weights):8.1f} % right")

# %% [markdown]
# Most of what was lost has come back. The second line has the larger half of all weights, wherever they stand. It loses
# less than two of each four do before the new fit: the pattern is there for the hardware, and costs right answers. So
# pruning is a step of training. Quantisation can come after training.
#
# ## The reference
#
# The room multiplies what is stored, and nothing else. A dense product would multiply the zeros as well, and 0 times
# infinity is NaN.

# %%
show(sparsity.reference)

# %% [markdown]
# ## The first rung, `gathered`
#
# A thread computes an element of *y*. It reads a stored weight and its place, and then the element of *x* in the row
# that the place leads to. That is the idea of all sparse products.

# %%
show(sparsity.gathered_kernel)

# %% [markdown]
# A place is one of four, so the rows of *x* that a thread reads follow each other closely. And in a large product a
# warp has 32 columns of the same row of *y*. So all of its lanes have the same place, and read neighbours.
#
# What this rung lacks is the tensor core.
#
# ## The second rung, `fragments`: mma.sp
#
# The instruction is called `mma.sp.m16n8k32`. Beside `mma.sync.m16n8k16` of chapter 40 it looks like this:
#
# | | mma.sync | mma.sp |
# |---|---|---|
# | first matrix | 16 x 16 | 16 x 32, of which 16 x 16 is stored |
# | second matrix | 16 x 8 | 32 x 8 |
# | sums | 16 x 8 | 16 x 8 |
# | registers of a lane | 4, 2 and 4 | 4, 4 and 4, and one of metadata |
# | multiply-adds | 2048 | 2048, which stand for 4096 |
#
# So the lanes hold the stored numbers as they would hold a dense matrix. Each number meets one of four rows of *x*, and
# its place says which. The metadata of 16 rows and 32 columns is 128 codes of four bits. Sixteen lanes have them, with
# eight codes in a register of 32 bits, which is called a *word*. A number in the instruction, the *selector*, says
# which sixteen lanes. The figure asks the interpreter. Each of its fields is a code, and names the lane that has it.


# %%
def lanes_of_metadata(ax, selector):
    owner = np.zeros((16, 8), int)
    for lane in range(32):
        for row, column in simt.metadata("mma_sp_f16", lane, selector):
            owner[row, column // 4] = lane
    ax.imshow(owner // 4 % 2 * 2 + owner % 2, cmap="Pastel1", vmin=0, vmax=8, aspect=0.5)
    for row, four in np.ndindex(16, 8):
        ax.text(four, row, f"lane {owner[row, four]}", ha="center", va="center", fontsize=6)
    ax.set(title=f"selector {selector}", xlabel="columns of w", ylabel="row of w", yticks=range(16))
    ax.set_xticks(np.arange(9) - 0.5, 4 * np.arange(9))


figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for selector, ax in enumerate(axes):
    lanes_of_metadata(ax, selector)

# %% [markdown]
# Lane 4 on the left has row 1 and row 9, for the left 16 columns, and lane 5 has the right ones. With selector 1 it is
# lanes 6 and 7. **So the 32 lanes hold the metadata of two instructions in one register**, of 32 rows of *w*. The
# format of this room has these 32 words side by side, and a warp loads them at once.
#
# **Predict, then run.** A word has 32 bits, and lane 4 has the metadata of row 1 in its lower half. Row 1 keeps places
# 0 and 2 of its first four columns, and 0 and 1 of all others. What is that lower half, as a number?

# %%
guess = None  # of 16 bits

w = np.zeros((16, 32), np.float16)
w[1, [0, 2]] = 5, 7
_, metadata = map(device.to_host, sparsity.prune(w))
predict(guess, int(metadata[0, 0, 4]) & 0xFFFF, unit="of 16 bits", exact=True)

# %%
print(f"{metadata[0, 0, 4]:032b}")

# %% [markdown]
# Read from the right. Places 0 and 2 of the first four columns are 1000. Then comes 0100 three times, for places 0 and
# 1. The upper half belongs to row 9, which is full of zeros: of four equal numbers the first two stay, so it has 0100
# four times.
#
# **Your turn.** Write down the words of all lanes.

# %%
exercise("sparsity/words")


# %%
@cuda.jit
def words(four, out):
    pass  # your code


check("sparsity/words", words)

# %% [markdown]
# The kernel gives a warp 32 x 8 elements of *y*: one word of a lane serves two instructions, with selectors 0 and 1. It
# loads everything from device memory, the elements one by one, as the first rung of chapter 40 does.

# %%
show(sparsity.stored_fragment)
show(sparsity.fragments_kernel)

# %%
rng = np.random.default_rng(79)
w, x = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 256), (256, 128)))
pruned = tuple(map(device.to_host, sparsity.prune(w)))
counted = {rung.name: lab.count(rung, *pruned, x) for rung in sparsity.LADDER}
for one in counted.values():
    error = abs(device.to_host(one.result) - sparsity.reference(*pruned, x)).max()
    assert error <= sparsity.tolerance(*pruned, x).max()
dense = lab.count(tensor_cores.fragments, w, x).counters
print(f"dense: {dense['tensor_flops']:,} operations, 2:4: {counted['fragments'].counters['tensor_flops']:,}")

# %% [markdown]
# The tensor cores do half of the operations. (All rungs have just computed this product, and none was off by more than
# the tolerance.)
#
# ## The third rung, `shared_k`: few columns
#
# When a model writes a text for one reader, *x* has one column, and for several readers a few. Then an instruction uses
# a weight for all columns at once, and no weight is needed again. The time is that of the bytes of *w*. What counts is
# how many of them are under way at a time, as in chapter 77. Here is a rung for that. A block has 32 rows of *w*, and
# its 16 warps share *k*. A step is 32 columns of *w*: each warp takes every sixteenth pair of steps, and at the end
# they add up. So many warps ask for weights, and each asks for all that it needs in two steps before it waits.
#
# **Predict, then run.** A layer has 8192 x 28672 weights, so two blocks for most of the 132 multiprocessors. A warp
# asks for 32 rows by 64 columns: what is stored of them, and the metadata. How many KiB has a multiprocessor asked for?

# %%
guess = None  # KiB

of_a_warp = 32 * 64 * 9 // 8  # bytes
predict(guess, 2 * sparsity.PARTS * of_a_warp / 1024, unit="KiB", exact=True)

# %%
show(sparsity.shared_k_kernel)

# %% [markdown]
# By the estimate of chapter 77, 25 KiB are enough if they are under way at all times. The instruction has eight
# columns, and with one column seven of them stay empty. That costs nothing here, since the tensor cores have time. And
# *x* is transposed first, so that two neighbours along *k* are one load. It is small, and each block reads it.
#
# The figure has rates of bytes. A flat line means that the time stays the same.

# %%
weights = "8192 x 28672 weights"
plots.drawn(plots.sweep, "sparsity", family="few columns", xlabel="columns of x", title=weights)

# %% [markdown]
# `shared_k` reads all weights once for each eight columns. So up to eight columns its time stays the same, and from
# there on it grows with the columns. The rung `overlapped` of a later section reads them once for all columns of the
# figure, and its time hardly changes. Up to eight columns it takes about twice as long as `shared_k`, and so does
# PyTorch's product with 2:4 sparsity. (All rates count the bytes of a product with sparsity, also for the dense one,
# which reads more.)
#
# Is the gain 16/9 at one column? No: `shared_k` and cuBLAS nearly coincide there. cuBLAS reads 16 bits for each weight,
# zeros among them, and the rung reads 9. But cuBLAS keeps the memory busy with one column, and this rung does not. That
# cannot be for lack of bytes to ask for. A warp asks, waits, multiplies, and only then asks again, as the rung `tensor`
# of chapter 77 did. That is the likely reason, and `staged` there shows what to do about it. At two and four columns
# `shared_k` is clearly ahead, and from 16 columns on cuBLAS is.
#
# ## The fourth rung, `tiled`: shared memory
#
# With many columns each weight is used often, and arithmetic is the bound.
#
# What has to come from shared memory? A warp computes 64 x 64 elements of *y*, with 32 instructions a step. For them it
# reads 64 rows of *w* and 64 columns of *x*, which are 16 deep without sparsity, and 32 deep with it.
#
# **Predict, then run.** How many KiB does a warp read from shared memory for 32 instructions: without sparsity, and
# with it?

# %%
guess = {"dense": None, "2:4": None}  # KiB

read = {"dense": 64 * 16 * 2 + 16 * 64 * 2, "2:4": 64 * 32 // 2 * 2 + 32 * 64 * 2}
predict(guess, {name: nbytes / 1024 for name, nbytes in read.items()}, unit="KiB", exact=True)

# %% [markdown]
# That is half as much again for each instruction. The stored part of *w* is as many bytes as before, and *x* is twice
# as many. **Sparsity saves arithmetic and bytes of *w*, and no bytes of *x*.** The whole product takes half as many
# instructions, so a warp reads 3/4 of the bytes in all: the tensor cores have half of their work left, and shared
# memory has three quarters of its own.
#
# The shared memory of a multiprocessor moves 128 bytes a cycle, and the tiles have to be written into it besides. A
# later table adds that up.

# %%
show(sparsity.read_stored)
show(sparsity.read_of_x)
show(sparsity.tiled_kernel)

# %% [markdown]
# One `ldmatrix` reads what an instruction needs of *x*: 32 rows of 8 columns. Each lane says where one of these rows
# is.
#
# **Predict, then run.** In a product of 128 x 128 by 256 *k*, four warps make 8 steps of 32 *k*, and read 12 fragments
# in each. How many wavefronts is that, if there are no bank conflicts?

# %%
guess = None  # wavefronts

predict(guess, counted["tiled"].counters["shared_load_wavefronts"], unit="wavefronts", exact=True)

# %% [markdown]
# A fragment has 512 bytes, which are four wavefronts. The chunks of a row are exchanged as in chapter 40, so there are
# no bank conflicts, and no more are needed.
#
# ## The fifth rung, `overlapped`: what runs ahead
#
# The rest is known from chapter 40. Tiles of the next steps travel while this one is multiplied, and fragments are read
# before they are needed. Two things are new.
#
# The fragments of a step take 48 registers of a lane here: 16 for *w* and 32 for *x*. Two sets of them and 128 sums are
# 224, and with metadata and addresses they do not fit into the 255 that a thread can have. So a warp reads *x* for 32
# columns while it multiplies the other 32.
#
# And the tile is higher than it is wide, 256 x 128. For the same depth, a column of *x* has twice the bytes of what is
# stored of a row of *w*.
#
# **Predict, then run.** A block copies tiles for 64 *k*. How many KiB are copied for 256 x 128 elements of *y*, and how
# many for 128 x 256? Leave the metadata out.

# %%
guess = {"256 x 128": None, "128 x 256": None}  # KiB

copied = {f"{m} x {n}": (m * 64 // 2 * 2 + 64 * n * 2) / 1024 for m, n in ((256, 128), (128, 256))}
predict(guess, copied, unit="KiB", exact=True)

# %%
show(sparsity.overlapped_kernel(sparsity.TILES[0], tensor_cores.GROUP))

# %% [markdown]
# ## The sixth rung, `fed`: others copy
#
# As in chapter 40, a copy engine of Hopper brings the tiles, a warp of its own asks for them, and two mbarriers a stage
# say when it is full and when it is empty. The metadata is one more matrix for the engine: 32 words are a row of 128
# bytes. On other GPUs, and where there are fewer tiles than multiprocessors, this is `overlapped`.

# %%
show(sparsity.fed_kernel(sparsity.FED, tensor_cores.GROUP))

# %% [markdown]
# ## The seventh rung, `warpgroups`: no fragments
#
# A warp of `fed` reads its own fragments. So four warps, one below the other, read the same 64 columns of *x*, each for
# itself. On Hopper four warps multiply together ([chapter 43](43_warpgroups.ipynb)), and take both matrices from shared
# memory: *x* is read once for 64 rows of *w* and all columns of the tile. That instruction has a sparse form, too:
#
# | | wgmma | wgmma with sparsity |
# |---|---|---|
# | first matrix | 64 x 16 | 64 x 32, of which 64 x 16 is stored |
# | second matrix | 16 x n | 32 x n |
# | sums | 64 x n | 64 x n |
# | registers of a lane | n / 2 for sums | n / 2 for sums, and one of metadata |
#
# The stored numbers lie like a dense matrix that is half as wide, so nothing about the engine or the order of the
# chunks is new. New is the metadata: it is the one operand that comes from registers, and somebody has to load it.
#
# Each warp has the metadata of 16 of the 64 rows, in the same lanes as in the second rung: selector 0 looks at lanes
# 4g and 4g + 1, and selector 1 at lanes 4g + 2 and 4g + 3. There the two selectors were for rows 0 to 15 and 16 to 31.
# Here the second instruction of a warp has the same rows, and the next 32 columns of *w*. So the lanes of a warp load
# half of the words of two groups, in the format of `prune`.


# %%
def words_of_warp(warp):
    """Which of the words for 32 rows and 64 columns the lanes of a warp load."""
    (figure, ax), lanes = chart(1.9), np.arange(32)
    word, later = lanes // 4 * 4 + warp % 2 * 2 + lanes % 2, lanes % 4 // 2
    for group, place in np.ndindex(2, 32):
        mine = lanes[(later == group) & (word == place)]
        colour = plots.COLOURS[0] if mine.size else palette.FAINT
        ax.add_patch(plt.Rectangle((place, -group), 0.95, 0.8, facecolor=colour))
        for lane in mine:
            ax.text(place + 0.5, 0.4 - group, lane, ha="center", va="center", color="white", fontsize=7)
    ax.set(xlim=(0, 32), ylim=(-1.1, 0.9), xlabel="word of 32 x 32 numbers", title=f"lanes of warp {warp}")
    ax.set_yticks([0.4, -0.6], ["columns 0 to 31", "columns 32 to 63"])
    return figure


words_of_warp(0)

# %% [markdown]
# The blue words are of rows 0 to 15, and the number in each is that of the lane. Warp 1 has the grey ones, of rows 16
# to 31.
#
# **Predict, then run.** A stage has 128 columns of *w*. How many words does a lane load for it, and how many KiB do all
# 16 warps of a block load?

# %%
guess = {"words": None, "KiB": None}  # words of a lane, and KiB of a block

of_a_lane = 128 // 64
predict(guess, {"words": of_a_lane, "KiB": of_a_lane * 4 * 32 * 16 / 1024}, unit="", exact=True)

# %% [markdown]
# That is little beside the 64 KiB of a stage. So a lane loads its words from device memory straight into registers, a
# stage ahead. Neither the engine nor shared memory has to do with them.
#
# One rule is new. A product that is under way may still read its registers. So NVIDIA's compiler wants all of them
# filled before the first product of a group begins. Sums may pass from one product to the next. But where metadata is
# loaded while a product is under way, the compiler makes each product wait for the one before. So a warpgroup of this
# rung waits for its products at the end of each stage. The tensor cores need not be idle meanwhile: there are three
# other warpgroups. (Small products have tiles of 128 x 64, so that there are more of them, and two warpgroups a block.)

# %%
show(sparsity.warpgroups_kernel(sparsity.WARPGROUP_TILES[0], tensor_cores.GROUP))

# %% [markdown]
# ## What has become less
#
# Count everything that moves in a product of 4096 x 4096 matrices: in the dense rung `fed` of chapter 40, whose tiles
# are 128 x 256, and in the last two rungs of this chapter, whose tiles are 256 x 128. All tiles come out of the L2
# cache, and each block fetches its own. They are written into shared memory, and read from there, several times.
#
# **Predict, then run.** For each *k*, a dense tile takes 128 + 256 numbers of two bytes. A tile with sparsity takes 256
# weights of 9 bits, on average, and 128 numbers of *x*. How many times fewer bytes come out of the L2 cache?

# %%
guess = None  # times fewer

each_k = {"dense": 2 * (128 + 256), "fed": 256 * 9 / 8 + 128 * 2}  # bytes, for 128 x 256 or 256 x 128 sums
predict(guess, each_k["dense"] / each_k["fed"], unit="times fewer", within=0.02)

# %%
products, side = 4096**3, 4096 * 4096
each_k["warpgroups"] = each_k["fed"]
cache = {name: products * nbytes / (128 * 256) for name, nbytes in each_k.items()}
written = cache | {"warpgroups": products * (256 + 128 * 2) / (128 * 256)}  # no metadata
reads = {
    "dense": products / (64 * 64 * 16) * read["dense"],
    "fed": products / (64 * 64 * 32) * (read["2:4"] + 256),
    "warpgroups": products / (64 * 128 * 32) * (64 * 16 * 2 + 32 * 128 * 2),
}
counts = {
    "multiply-adds": [products, products / 2, products / 2],
    "bytes into and out of shared memory": [written[name] + reads[name] for name in reads],
    "bytes out of the L2 cache": [cache[name] for name in reads],
    "bytes of device memory": [side * (each + 2 + 4) for each in (2, 9 / 8, 9 / 8)],
}
print(" " * 36 + "".join(f"{name:>12}" for name in reads))
for what, found in counts.items():
    print(f"{what:36}" + "".join(f"{count / 1e9:12.3f}" for count in found) + " x 10^9")

# %% [markdown]
# Here is an answer to the question of this chapter. **Only the multiply-adds are halved. All that brings their operands
# is left with more than half of its work.**
#
# Of the three memories, shared memory has the most to move. It takes 128 bytes a cycle in each of the 132
# multiprocessors of an H200 at most. Divide the second line by that: the dense product needs shared memory for about
# 350,000 cycles, `fed` for 266,000, and `warpgroups` for 222,000.
#
# And the tensor cores? By the datasheet, those of a multiprocessor make 2048 multiply-adds a cycle, also of what is
# stored. That is 127,000 cycles for a product with sparsity. **So by this count shared memory is the bound, in both
# rungs**, and not the arithmetic.
#
# ## All rungs
#
# The design size is a product of 4096 x 4096 matrices. Beside the rungs stand two libraries: cuBLAS by way of PyTorch,
# which multiplies the matrix with its zeros, and PyTorch's own product with 2:4 sparsity.

# %%
plots.drawn(plots.ladder, "sparsity", family="sparsity")

# %% [markdown]
# A bar says how much of the roof a contender reaches. The roof is that of dense products on tensor cores. The rates
# count the operations with stored numbers, for all: cuBLAS really does twice as many. So compare the times.
#
# Who gets faster? The dense product is the one to beat, and `fed` does not beat it: it takes a little longer than
# cuBLAS does for all numbers and zeros. `warpgroups` and PyTorch's product with 2:4 sparsity are faster than cuBLAS,
# and far from twice as fast.

# %%
title = "w of n x n with 2:4 sparsity, x of n x n"
plots.drawn(plots.sweep, "sparsity", family="sparsity", xlabel="n", title=title)

# %% [markdown]
# PyTorch's product with 2:4 sparsity is ahead of cuBLAS from 2048 on, and behind it below, and so is `warpgroups`.
# `fed` comes close to cuBLAS at 8192. Up to 2048 it is `overlapped`, so the two lines are one.
#
# cuBLAS multiplies by `wgmma`, and `fed` does not. What does sparsity alone gain? Compare two kernels of the same kind:
# the figure has the time of the dense rung `fed` of chapter 40, divided by the time of `fed` with sparsity. At 4096 and
# 8192 both have the same engine, and the same two counters a stage. Below, both are `overlapped`. The dense times are
# those of chapter 40, from another run.


# %%
def gains():
    """How many times as fast as the dense rung, by the size of the matrices."""
    times = {}
    for room in ("tensor_cores", "sparsity"):
        kept = record.load(room=room)
        of_room = [entry for entry in kept.entries(room) if entry.family == room and entry.contender == "fed"]
        if not of_room:
            raise record.RecordError(f"{kept.where} has no measurements of {room}")
        times[room] = {entry.sizes["n"]: entry.median_ms for entry in of_room}
    (figure, ax), sides = chart(3.2), sorted(times["tensor_cores"].keys() & times["sparsity"].keys())
    ax.plot(sides, [times["tensor_cores"][n] / times["sparsity"][n] for n in sides], "o-")
    ax.axhline(2, color=palette.INK, lw=1)
    ax.set(xscale="log", xlabel="n", ylabel="times as fast", title="products of n x n matrices", ylim=(0, 2.2))
    ax.set_xticks(sides, sides)
    ax.set_xticks([], minor=True)
    foot(figure, kept.footer("sparsity"))
    return figure


plots.drawn(gains)

# %% [markdown]
# The thin line is what the count of multiply-adds promises, and no size reaches it. The gain of large products is
# nearer to that of the table's second line, 5.906 / 4.496 = 1.31, than to 2. The table is a reason for that, and need
# not be the only one.
#
# Small products are not bound by arithmetic. Up to 1024 the one with sparsity is even slower. At 256 its smallest tile
# of 128 x 128 leaves work for four blocks. The dense rung has tiles of 64 x 64, and 16 blocks.
#
# NumPy has no product with 2:4 sparsity. On the CPU it multiplies the zeros, too, in float32.

# %%
plots.drawn(plots.cpu_gpu, "sparsity", family="sparsity")

# %%
plots.drawn(plots.roofline, "sparsity")

# %% [markdown]
# In the first figure the GPU's time leaves out all copies between CPU and GPU.
#
# The second figure has the design size. All contenders have the same operations and bytes by definition, so they stand
# one above the other, to the right of the ridge. A product with few columns would stand on the left of it, where memory
# is the bound.
#
# ## What to take along
#
# - 2:4 sparsity stores two of each four neighbours, and four bits that say which. That is 9 bits a weight instead of
#   16.
# - The tensor cores do half of the arithmetic. The bytes of *w* shrink by 16/9, and those of *x* do not shrink.
# - So the gain of a large product stays well below 2: shared memory keeps most of its work.
# - On Hopper four warps multiply together, and only the metadata comes from registers. It has to be there early.
# - With few columns the bytes of *w* are the bound. A gain of 16/9 needs a kernel that keeps the memory busy.
# - The metadata of two instructions is in one register of a warp's lanes. The selector chooses.
# - Pruning costs right answers. In our layer, a new fit with the pattern won most of them back.
#
# To read on: A. Mishra et al., *Accelerating sparse deep neural networks* (2021). PTX ISA, sections on `mma.sp` and
# `wgmma.mma_async.sp`. J. Pool and C. Yu, *Channel permutations for N:M sparsity* (2021).
#
# ## Exercises
#
# The two exercises with a check stand above. More to try, without a check:
#
# 1. How many multiply-adds would a block do for each byte that it fetches, if its tile were 256 x 256, and how many
#    with 256 x 128? Why has no rung the larger tile?
# 2. Let the second matrix of a product be the sparse one, $y = x w$. Which of the two matrices does `mma.sp` take as
#    the sparse one? What would have to be transposed, and along which direction of *w* would two of four be kept?
# 3. The order of the columns of *w* is free, if the rows of *x* are exchanged in the same way. Write a loop that
#    exchanges two columns whenever the sum of the sizes that are kept grows by it. How much does it win for random
#    numbers?
#
# ## Answers
#
# **compress.** A number stays if fewer than two others come before it. From left to right, the numbers that stay are
# the first and the second.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.sparsity import exercises as answers

show(answers.compress_answer)
assert check("sparsity/compress", answers.compress_answer)

# %% [markdown]
# **words.** The number of a code in its word has three bits: the upper one says which of the two rows it belongs to,
# and the other two which group of four columns.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.words_answer)
assert check("sparsity/words", answers.words_answer)

# %% [markdown]
# *A larger tile.* For each *k* it takes 288 bytes of *w* and 512 of *x*, for 256 x 256 / 2 multiply-adds. That makes 41
# multiply-adds a byte, and with 256 x 128 it is 30. But it has 65,536 sums, as many as a multiprocessor has registers.
#
# *The second matrix.* `mma.sp` takes the first matrix as the sparse one, and of four neighbours along *k* two are kept.
# So compute the transposed product, $y^T = w^T x^T$. Then $w^T$ is the first. Its rows are the columns of $w$, so two
# of four along a column of $w$ are kept.
#
# *Exchanged columns.* What is kept grows, as large numbers leave groups in which others are large, too. It grows little
# here: an exchange moves the numbers of all 64 rows, and what helps one row harms another.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
numbers, order, draw = abs(rng.standard_normal((64, 32))), np.arange(32), np.random.default_rng(1)


def sizes_kept(order):
    return np.sort(numbers[:, order].reshape(-1, 4), axis=1)[:, 2:].sum()


before = sizes_kept(order)
for _ in range(2000):
    i, j = draw.integers(0, 32, 2)
    other = order.copy()
    other[[i, j]] = order[[j, i]]
    order = other if sizes_kept(other) > sizes_kept(order) else order
print(f"kept of all sizes: {before / numbers.sum():.1%}, and {sizes_kept(order) / numbers.sum():.1%} afterwards")

# %% [markdown]
# Go on with [chapter 80](80_random_numbers.ipynb): random numbers that every thread can find by itself.
