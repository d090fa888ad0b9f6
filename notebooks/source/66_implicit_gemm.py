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
# # 66. Implicit GEMM
#
# *A matrix that is never written, where its elements lie, a table of places, eight channels at a time, sums that are
# shared. Read chapter [64](64_im2col.ipynb) before. 35 minutes. PMPP 4e: sections 16.4 and 16.5; 5e: chapter 19. The
# code is [pmpp/kernels/convolution_layer/implicit.py](../pmpp/kernels/convolution_layer/implicit.py).*
#
# A convolution layer is a matrix product: filters times columns, where a column is what the window sees at one place.
# [Chapter 64](64_im2col.ipynb) wrote these columns to memory, R S times the size of the image, and read them again.
# For some layers that costs nearly as much as all their arithmetic.
#
# But the columns are a matrix that nobody wants to see. A block of the product needs a tile of it in shared memory, and
# no more. So it can gather this tile from the image itself. (GEMM is the name of the matrix product in the oldest of
# its libraries. The name *implicit GEMM* says that one of its matrices is only thought of.)
#
# **The question of this chapter: what does it cost to find an element of a matrix that is nowhere?**

# %%
import functools

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.results import recorded, traffic
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import im2col, implicit, implicit_channels_last, implicit_gather
from pmpp.kernels.convolution_layer import implicit_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.implicit_exercises import ZERO, T
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, POINTWISE, sums

# %% [markdown]
# ## The bound
#
# The multiplications are those of the definition, and the bound is that of [chapter 62](62_direct_convolution.ipynb).
# The columns would come on top of it. This is the time to write and read them, at the full speed of the memory:

# %%
ceilings = roofline.ceilings()
for layer in DESIGN:
    least = roofline.bound(layer.cost, ceilings).seconds
    columns = 0 if im2col.is_product(layer) else 2 * 4 * layer.n * layer.terms * layer.p * layer.q / ceilings.bandwidth
    print(f"{layer!s:27} at least {least * 1e3:.3f} ms; columns {columns * 1e3:6.3f} ms more")

# %% [markdown]
# Here are a toy layer for the interpreter, its output in float64, and what prints the counts of a rung: bytes in
# sectors that were asked for, passes through shared memory and instructions, for each multiply-add of a whole warp.

# %%
toy = Layer(4, 8, 16, 16, 64, 3, 3, padding=(1, 1))
rng = np.random.default_rng(16)
x = rng.standard_normal((toy.n, toy.c, toy.h, toy.w), dtype=np.float32)
w = rng.standard_normal((toy.k, toy.c, toy.r, toy.s), dtype=np.float32)
exact = sums(x, w, toy)
print(f"{toy}: {toy.cost.flops:,} FLOP, {toy.cost.bytes:,} bytes")


# %%
@functools.cache
def counted(rung):
    """The toy layer by a rung: its counters and its result."""
    return lab.count(rung, x, w, None, toy.stride, toy.padding)


def count(*rungs):
    """Count rungs on the toy layer, and print what they asked for, for each multiply-add of a warp."""
    for rung in rungs:
        error = abs(counted(rung).result - exact).max()
        print(f"{rung.name:15}{traffic(counted(rung), toy.cost.flops)}; error {error:.0e}")


# %% [markdown]
# ## Gathering a tile
#
# Row k of the matrix is a channel c and a place (r, s) of the window. Column j is a place (p, q) in an image n. Where
# such an element lies in x is arithmetic. The columns never touch memory. Nothing else changes: it is the kernel of
# [chapter 12](12_matmul.ipynb) with another way to fetch one of its two tiles.
#
# In NumPy it takes a few lines to say which element of x stands where. Zeros stand for the padding.

# %%
j, k = np.arange(toy.p * toy.q), np.arange(toy.terms)
(c, r, s), (p, q) = np.unravel_index(k, (toy.c, toy.r, toy.s)), np.unravel_index(j, (toy.p, toy.q))
row, column = p + r[:, None] - toy.padding[0], q + s[:, None] - toy.padding[1]
inside = (row >= 0) & (row < toy.h) & (column >= 0) & (column < toy.w)
columns = np.where(inside, x[0, c[:, None], row.clip(0, toy.h - 1), column.clip(0, toy.w - 1)], 0)
product = w.reshape(toy.k, toy.terms) @ columns
print(f"a matrix of {columns.shape}, {1 - inside.mean():.1%} of it padding")
print("equal to the first image's output:", np.allclose(product.reshape(toy.shape[1:]), exact[0], atol=1e-4))

# %% [markdown]
# ### The first rung, `tiled`

# %%
show(implicit.element)
show(implicit.tiled_kernel)

# %% [markdown]
# ### Exercise: a row by implicit GEMM
#
# Gather a tile yourself, where it is simplest: the image is one row. `check` runs your kernel in the interpreter, with
# every access checked, and says what it found. The answers to all exercises are at the end, folded away.

# %%
exercise("implicit/row")


# %%
@cuda.jit
def gathered(x, w, padding, out):
    f, q = cuda.blockIdx.y * T + cuda.threadIdx.y, cuda.blockIdx.x * T + cuda.threadIdx.x
    total = ZERO  # your sum
    if f < out.shape[0] and q < out.shape[1]:
        out[f, q] = total


check("implicit/row", gathered)

# %% [markdown]
# ## Cheaper ways to find an element
#
# Where an element lies is a sum of two parts. One depends on the column alone: where in x the window's corner lies. The
# other depends on the row alone: how far from the corner the element is. And whether it lies inside the image takes two
# comparisons instead of four, since as an unsigned number a negative one is huge.
#
# The price is in `element`: divisions and remainders, two for (n, p, q) and four for (c, r, s). Each takes some twenty
# instructions, and the element that is found takes part in 32 multiply-adds, one for each filter of the tile. Three
# ideas make the gather cheap.
#
# - A thread keeps *one column* through the whole sum, so its (n, p, q) is worked out once (`register_tiled`). Its tile
#   is 64 x 128, and so an element takes part in 64 multiply-adds. Why not 128 x 128, as in chapter 12? The early layers
#   have 64 filters.
# - What depends on the row alone is the same for all threads of all blocks. A small kernel writes it into *a table*,
#   once (`vectorised`).
# - With a table *any* order of the products will do. Take one that is cheap: eight channels at the same (r, s) are the
#   same place in eight images, and one comparison serves eight loads (`by_channels`).

# %%
for rung in implicit.LADDER:
    print(f"{rung.name}: {rung.idea}\n     Still wrong: {rung.leaves or 'nothing that we know how to mend.'}")

# %% [markdown]
# The columns' matrix has 9 times the elements of x. With implicit GEMM every element of the matrix is still fetched
# from x, once for each tile of filters. How many bytes does that save? Here is what im2col asks for on the toy, in
# sectors of 32 bytes. Its first kernel makes the columns, and its second, called `kernel`, multiplies.

# %%
for report in counted(im2col.batched).reports:
    loaded, stored = (report.counters[f"global_{way}_sectors"] for way in ("load", "store"))
    print(f"{report.kernel:15}{loaded:7,} sectors loaded, {stored:6,} stored")
print(f"the columns are {4 * toy.n * toy.terms * toy.p * toy.q // 32:,} sectors,", end=" ")
print(f"the weights {w.nbytes // 32}, the output {4 * exact.size // 32:,}")

# %% [markdown]
# The other half of what `kernel` loads are weights, once for each of its 16 tiles of columns. The toy has 64 filters. A
# tile of `register_tiled` is 64 filters x 128 columns, so it has 8 tiles, and each loads the weights, too.
#
# **Predict, then run.** How many sectors does `register_tiled` load and store, all in all?

# %%
guess = None  # sectors


def sectors(rung):
    return sum(counted(rung).counters[f"global_{way}_sectors"] for way in ("load", "store"))


predict(guess, sectors(implicit.register_tiled), unit="sectors", within=0.15)

# %%
for rung in (im2col.batched, implicit.tiled, implicit.register_tiled):
    print(f"{rung.name:15}{sectors(rung):7,} sectors")
count(im2col.batched, implicit.tiled, implicit.register_tiled, implicit.by_channels)

# %% [markdown]
# The elements of the columns are loaded from x once, in 8,832 sectors as by `columns_kernel`, the weights 8 times, and
# the output is stored. With im2col the columns are loaded, written, and loaded again, so it takes twice as many sectors
# in all. `tiled` has tiles of 32 filters. It fetches every element twice, and so it asks for hardly less than im2col.
#
# How does one thread gather? Here is the code of all the later rungs. `mode` is known when a kernel is compiled:
# `CHANNELS` is the case of eight channels. `VECTORS` is for windows of 1 x 1, where neighbouring columns are neighbours
# in memory, and nothing is to be checked.

# %%
show(implicit_gather.fetch)

# %%
print("workspace in MiB:", " " * 11, "im2col  implicit")
for layer in DESIGN:
    both = (room.workspace_bytes(layer) / 2**20 for room in (im2col, implicit))
    print(f"{layer!s:27}", *(f"{size:8.2f}" for size in both))

# %% [markdown]
# What is left of the workspace is the weights in the order of the table, the table, and for small images parts of sums.
# With 512 channels that is two thirds of what im2col takes.
#
# ### Exercise: the table

# %%
exercise("implicit/table")


# %%
@cuda.jit
def places(table, window, dilation, image):
    pass  # your code


check("implicit/table", places)

# %% [markdown]
# ### The time
#
# Now the time. The table of counts above has two hints: `register_tiled` takes half the instructions of `tiled` for a
# multiply-add. And its wavefronts are at 0.25, where shared memory and the arithmetic are equally fast
# ([chapter 12](12_matmul.ipynb)), while `tiled` is at ten times that.
#
# **Predict, then run.** How many times as fast as `tiled` is `register_tiled`, as measured on the layer with 64
# channels?

# %%
guess = None  # times as fast


def faster():
    entries = record.load(room="implicit").design("implicit", "3x3 c64 h56")
    times = {entry.contender: entry.seconds for entry in entries}
    return times["tiled"] / times["register_tiled"]


predict(guess, faster, unit="times as fast", factor=2)

# %%
recorded(implicit, "3x3 c64 h56", "7x7 c3 h224", only=("tiled", "register_tiled", "divided"))

# %% [markdown]
# It lies between the two: the instructions have halved, and of the wavefronts a tenth is left. What the later rungs
# change, `divided` at the end, gains another factor of two on the first of these layers.
#
# ### The last rung, `divided`
#
# It is for layers with few tiles. With 512 filters on images of 7 x 7 there are fewer blocks than the GPU has places
# for: four on each of 132 multiprocessors. But each sum is long. So several blocks share one tile, each adds up a part
# of the sum, and a second kernel adds the parts. It does so always in the same order: atomic additions would need no
# second kernel, and could give another result on each run.

# %%
for layer in DESIGN[2:6]:
    mode = implicit_gather.mode_of(layer)
    once, shared = (implicit_gather.plan_of(layer, mode, way) for way in (False, True))
    print(f"{layer!s:27} {once.blocks:4} tiles, sums of {layer.terms:4} products;", end=" ")
    print(f"divided: {shared.blocks:4} blocks, {shared.parts} for a tile")

# %%
recorded(implicit, "3x3 c512 h7", only=("by_channels", "divided"))

# %% [markdown]
# ## Memory or arithmetic
#
# The layers so far are all on the right of the ridge. Here is the last rung on every layer that was measured, each at
# its intensity. The line is the roof.


# %%
def all_layers():
    """The rate of the last rung over the intensity of each layer, beside cuDNN, under the roof."""
    kept, (figure, ax) = record.load(room="implicit"), chart(3.8)
    roofs = kept.ceilings("implicit")
    along = 1, roofs.ridge, 5000
    ax.plot(along, [roofline.attainable(x, roofs) / 1e12 for x in along], color=palette.INK, label="the roof")
    for name, look in (("divided", {"marker": "o"}), ("torch.conv2d", {"marker": "s", "mfc": "none"})):
        found = [each for each in kept.entries("implicit") if each.contender == name]
        points = [(each.cost.intensity, each.flops / each.seconds / 1e12) for each in found]
        ax.plot(*zip(*points, strict=True), color=palette.COLOURS[0], linestyle="", **look, label=name)
    ax.set(xscale="log", yscale="log", xlabel="intensity of a layer (FLOP/byte)", ylabel="rate (TFLOP/s)")
    plt.setp((ax.xaxis, ax.yaxis), major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("implicit"))
    return figure


# %%
plots.drawn(all_layers)

# %%
one_channel = Layer(32, 1, 224, 224, 3, 5, 5)
depthwise = Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1), groups=64)
for layer in (depthwise, Layer(32, 64, 57, 57, 5, 1, 1), one_channel, POINTWISE, DESIGN[2]):
    print(f"{layer!s:27}{layer.cost.intensity:7.1f} FLOP/byte, bound by {roofline.bound(layer.cost, ceilings).side}")

# %% [markdown]
# With 1 x 1 and 64 channels, the filters make the difference: an element of x takes part in as many products as there
# are filters. With 5 of them memory is the bound, with 64 the arithmetic, just so. The other two layers on the left
# have short sums: a depthwise one, and one with a single channel and 3 filters. All three are far below the roof, as
# most of a tile of 64 filters is empty. For depthwise layers [chapter 62](62_direct_convolution.ipynb) knows better.
#
# On the right the last rung comes to two thirds of the roof at best, and to less than a tenth at worst. One square lies
# above the roof: cuDNN computes the layer of 15 x 15 with fewer multiplications than the definition has.
#
# ## All rungs

# %%
plots.drawn(plots.ladder, "implicit", family="3x3 c64 h56")

# %%
plots.drawn(plots.roofline, "implicit", family="3x3 c64 h56")

# %% [markdown]
# This is as far as we can go with the multiplications of the definition. To get above the roof we must multiply less.
#
# ## Channels last
#
# Most of the ladder was about finding elements. That is easier if images are stored with the *channels last*, as
# (N, H, W, C), and filters as (K, R, S, C). The room for such layers is
# [implicit_channels_last](../pmpp/kernels/convolution_layer/implicit_channels_last.py). The sums go over (r, s, c),
# with c the fastest: eight terms of a sum are eight channels of one place, and they lie side by side. A thread gathers
# them by two loads of 128 bits, after one check.

# %%
show(implicit_channels_last.fetch)

# %% [markdown]
# No table is needed, since a step goes eight channels on, or to the next place of the kernel. A filter's weights lie in
# memory in the order of the sum, so they are read as they are. A 1 x 1 layer is a product of two matrices that stand in
# memory already.
#
# **Predict, then run.** 64 filters of 3 x 3 on an image of 8 x 16 with 64 channels. With channels first, `by_channels`
# gathers eight channels of a place by eight loads. How many times as many requests to load does it make, in both of its
# kernels, as `vectorised` with channels last?

# %%
guess = None  # times as many

seen, filters = (rng.standard_normal(shape, dtype=np.float32) for shape in ((1, 8, 16, 64), (64, 3, 3, 64)))
turned = [np.ascontiguousarray(implicit_channels_last.first(array)) for array in (seen, filters)]
ways = {
    "channels first, by_channels": lab.count(implicit.by_channels, *turned, None, 1, 1),
    "channels last, vectorised": lab.count(implicit_channels_last.vectorised, seen, filters, None, 1, 1),
}
requests = {name: count.counters["global_load_requests"] for name, count in ways.items()}
predict(guess, requests["channels first, by_channels"] / requests["channels last, vectorised"], unit="times")

# %%
for name, count in ways.items():
    launches, instructions = len(count.reports), count.counters["warp_instructions"]
    print(f"{name:28} {launches} launches, {requests[name]:5,} requests to load, {instructions:8,} instructions")

# %% [markdown]
# The arithmetic is the same in both, and it is the bound of these layers. So the time changes less than the requests.

# %%
plots.drawn(plots.ladder, "implicit_channels_last", family="3x3 c64 h56")

# %%
plots.drawn(plots.ladder, "implicit_channels_last", family="1x1 c64 h56")

# %% [markdown]
# The library is cuDNN with PyTorch's channels-last tensors, without TF32. `convolution_layer.convolution` takes
# `layout="NHWC"`. The gradients in this order are those of `convolution_layer.channels_last_gradients`.
#
# ## What to take along
#
# - Implicit GEMM computes the same product as im2col, with a way to fetch instead of a matrix.
# - An index that is worked out for every element costs more than the multiply-adds. Work it out once for a thread, once
#   for the whole launch in a table, or choose an order in which it hardly changes.
# - Too few tiles for the GPU, and long sums: divide the sums. Add the parts in a fixed order, and the result stays the
#   same from run to run.
#
# ## Exercises
#
# One more, to be written in NumPy. `check` cannot see it.
#
# - The order of the products in `by_channels` is: all channels at one place of the window, then the next place. Write
#   the NumPy cell above in this order. What has to be done to the weights?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.row_answer)
assert check("implicit/row", solutions.row_answer)

# %% [markdown]
# *Row by implicit GEMM.* It is `tiled` of chapter 12. One load has been replaced, and its guard looks at both ends of
# the row.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.table_answer)
assert check("implicit/table", solutions.table_answer)

# %% [markdown]
# *Table.* Two divisions and two remainders for each row of the columns matrix, once for the whole launch. What they
# give is the same for every output.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
order = np.lexsort((c, s, r))  # by r, then s, then c
again = w.reshape(toy.k, toy.terms)[:, order] @ columns[order]
print("still equal:", np.allclose(again.reshape(toy.shape[1:]), exact[0], atol=1e-4))

# %% [markdown]
# *Order.* Rows of the columns and columns of the weights change places together. A sum does not depend on the order of
# its terms, up to rounding. So a kernel may choose the order that is cheap to find.
#
# Go on with [chapter 68](68_winograd.ipynb), which multiplies less.
