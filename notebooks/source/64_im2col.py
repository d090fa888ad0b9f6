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
# # 64. Convolution as a matrix product: im2col
#
# *Columns, a product of many small matrices at once, workspace, layers that are products already. Read chapters
# [12](12_matmul.ipynb) and [62](62_direct_convolution.ipynb) before. 35 minutes. PMPP 4e: section 16.4; 5e: chapter 19.
# The code is [pmpp/kernels/convolution_layer/im2col.py](../pmpp/kernels/convolution_layer/im2col.py).*
#
# [Chapter 62](62_direct_convolution.ipynb) computed a convolution layer with kernels of its own, and they stayed far
# from the bound where there are many channels. Meanwhile there is a kernel that comes near the bound of arithmetic: the
# matrix product of [chapter 12](12_matmul.ipynb). It has been tuned for decades, in every library.
#
# **The question of this chapter: can a convolution layer be given to a matrix product, and what does it cost to write
# it down as one?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.lab.draw import plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.results import recorded, traffic
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import definition, im2col
from pmpp.kernels.convolution_layer import im2col_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, POINTWISE, sums

# %% [markdown]
# ## The bound
#
# The bound is that of the definition, as before: 2 N K P Q C R S operations, and each array moved once. A layer is
# written in one line: images, channels, rows and columns of an image, filters, window, and what is unusual of stride
# and padding. Here are the seven layers that the six chapters on convolution are judged by.

# %%
ceilings = roofline.ceilings()
for layer in DESIGN:
    least = roofline.bound(layer.cost, ceilings)
    print(f"{layer!s:27} {layer.cost.flops / 1e9:7.2f} GFLOP, at least {least.seconds * 1e3:.3f} ms ({least.side})")

# %% [markdown]
# And here are a toy layer for the interpreter, its output in float64, and what prints the counts of a rung: bytes in
# sectors that were asked for, passes through shared memory and instructions, for each multiply-add of a whole warp.

# %%
toy = Layer(4, 8, 16, 16, 64, 3, 3, padding=(1, 1))
rng = np.random.default_rng(16)
x = rng.standard_normal((toy.n, toy.c, toy.h, toy.w), dtype=np.float32)
w = rng.standard_normal((toy.k, toy.c, toy.r, toy.s), dtype=np.float32)
exact = sums(x, w, toy)
print(f"{toy}: {toy.cost.flops:,} FLOP, {toy.cost.bytes:,} bytes")


# %%
def count(*rungs):
    """Count rungs on the toy layer, and print what they asked for, for each multiply-add of a warp."""
    for rung in rungs:
        counted = lab.count(rung, x, w, None, toy.stride, toy.padding)
        error = abs(counted.result - exact).max()
        print(f"{rung.name:15}{traffic(counted, toy.cost.flops)}; error {error:.0e}")


# %% [markdown]
# ## A layer is a matrix product
#
# Take what the window sees at one place, C R S numbers, and write it down as a column. Do so for every place. The
# filters, written as rows, times these columns are the output. The name of this is *im2col*: image to columns. Here it
# is in NumPy, which serves as the reference.

# %%
patches = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
columns = patches.transpose(0, 1, 4, 5, 2, 3).reshape(toy.n, toy.terms, toy.p * toy.q)
product = w.reshape(toy.k, toy.terms) @ columns
print(f"weights {(toy.k, toy.terms)} times columns {columns.shape}: {product.shape}")
print("equal to the layer:", np.allclose(product.reshape(toy.shape), exact, atol=1e-4))

# %% [markdown]
# And here is a picture of it: a handwritten digit, and the columns that a window of 3 x 3 makes of it. Read down a
# column, and it is what the window sees at one place. Read along a row, and it is the image itself, shifted by (r, s).
# That is also how a kernel makes the matrix: neighbouring threads have neighbouring pixels.

# %%
digit = np.pad(data.digits()[0][0], 1)
seen = np.lib.stride_tricks.sliding_window_view(digit, (3, 3)).transpose(2, 3, 0, 1).reshape(9, 64)
figure, axes = plt.subplots(1, 2, figsize=(7.8, 1.9), layout="constrained", width_ratios=(1, 5))
axes[0].imshow(digit[1:-1, 1:-1], cmap="Purples")
axes[1].imshow(seen, cmap="Purples", aspect="auto")
axes[0].set(title="8 x 8", xticks=[], yticks=[])
axes[1].set(
    title=f"its columns: 9 x 64, {seen.size / 64:.0f} times the pixels", xlabel="place of the window", yticks=[]
)
hidden, label = plt.setp(axes, xticks=[]), axes[1].set_ylabel("r and s")

# %% [markdown]
# This kernel writes the columns.

# %%
show(im2col.columns_kernel)
print(f"The toy layer's x is {x.nbytes // 32:,} sectors of 32 bytes.")

# %% [markdown]
# **Predict, then run.** All its stores are coalesced. How many sectors does the kernel store for the toy layer?

# %%
guess = None  # sectors

made = lab.count(im2col.batched, x, w, None, toy.stride, toy.padding).reports[0]
predict(guess, made.counters["global_store_sectors"], unit="sectors")

# %%
stored, asked = (made.counters[f"global_{way}_sectors"] for way in ("store", "load"))
print(f"{made.kernel}: {stored:,} sectors stored, {asked:,} asked for")

# %% [markdown]
# R S = 9 times as many as x has. Nothing is wrong with the access, there is just so much of it. (It asks for fewer than
# it stores, as the zeros around the image are not loaded.)
#
# ### Exercise: the columns
#
# The kernel above can do every layer. Write one for the plainest case, a window of 3 x 3 with stride 1. `check` runs
# your kernel in the interpreter, with every access checked, and says what it found. The answers to all exercises are at
# the end, folded away.

# %%
exercise("im2col/columns")


# %%
@cuda.jit
def columns_of(x, columns):
    pass  # your code


check("im2col/columns", columns_of)

# %% [markdown]
# ### The price
#
# Here are the sizes for the seven layers.

# %%
for layer in DESIGN:
    least, wanted = layer.cost, 4 * layer.n * layer.terms * layer.p * layer.q
    whole = "x itself" if im2col.is_product(layer) else f"{wanted / 2**20:9,.0f} MiB"
    both = 0 if im2col.is_product(layer) else 2 * wanted / ceilings.bandwidth
    space = im2col.workspace_bytes(layer) / 2**20
    print(f"{layer!s:27} x {4 * layer.n * layer.c * layer.h * layer.w / 2**20:6.1f} MiB, columns {whole:>13},", end=" ")
    print(f"workspace {space:5.0f} MiB; to write and read them {both * 1e3:5.2f} ms")
network = definition.resnet50(images=32)
plain = sum(times for layer, times in network.items() if im2col.is_product(layer))
print(f"ResNet-50: in {plain} of {sum(network.values())} layers the columns are x itself")

# %% [markdown]
# The last number of a line is what the columns cost at the full speed of the memory. Compare it with the least times
# above: for some layers it is nearly as much as all the arithmetic. *Workspace* is what a call takes from device memory
# and gives back. The room never holds more than a gigabyte of columns (unless one image has more): it makes those of
# some images, multiplies, and goes on. Rows of zeros fill the columns up to whole tiles, so it may be a little more
# than their size.
#
# With more filters the product grows and the columns do not: this way is for layers with many filters. And where the
# window is 1 x 1, without stride, the columns are x. Nothing is to be copied, and the layer is a plain product. That is
# so for most of ResNet-50's layers.
#
# ## The rungs
#
# There are four: the columns of an image at a time, and a product for each; the columns of many images, and all their
# products in one launch; no columns where none are needed; and a product that takes any shape as it is. The second
# needs a product of many small matrices at once, which is
# [pmpp/kernels/matmul/batched.py](../pmpp/kernels/matmul/batched.py), with the kernel of chapter 12 inside. The last
# one has that of [chapter 39](39_fused_and_batched_products.ipynb).

# %%
for rung in im2col.LADDER:
    print(f"{rung.name}: {rung.idea}\n     Still wrong: {rung.leaves or 'nothing that a matrix product could mend.'}")

# %% [markdown]
# How much does it gain to go through all images at once? Here is a small image under the filters of ResNet-50's first
# layer, and which kernels the rungs launch for it.

# %%
one = Layer(1, 3, 16, 16, 64, 7, 7, (2, 2), (3, 3))
one_x = rng.standard_normal((one.n, one.c, one.h, one.w), dtype=np.float32)
one_w = rng.standard_normal((one.k, one.c, one.r, one.s), dtype=np.float32)
for rung in (im2col.per_image, im2col.batched):
    kernels = [report.kernel for report in lab.count(rung, one_x, one_w, None, one.stride, one.padding).reports]
    print(f"{rung.name}: {len(kernels)} launches:", *kernels)

# %% [markdown]
# A sum of 3 x 7 x 7 = 147 products is no multiple of 8, the depth of a tile. So `matmul.prefetched` works on copies,
# with zeros around, and `per_image` has it make them for each image. `batched` lays out the weights once, and
# writes its rows of zeros with the columns. (Its product is called `kernel`.)
#
# The layer has 32 images. Each gives a product with an output of 64 x 12,544 numbers. The blocks of
# `matmul.prefetched` make tiles of 128 x 128. That is 98 blocks for a GPU of 132 multiprocessors, and half of each tile
# is empty.
#
# **Predict, then run.** How many times as fast as `per_image` is `batched` on the first layer, as measured?

# %%
guess = None  # times as fast


def faster():
    entries = record.load(room="im2col").design("im2col", "7x7 c3 h224")
    times = {entry.contender: entry.seconds for entry in entries}
    return times["per_image"] / times["batched"]


predict(guess, faster, unit="times as fast", factor=2)

# %%
count(im2col.batched)
recorded(im2col, "7x7 c3 h224", "3x3 c64 h56")

# %% [markdown]
# `cupy.matmul` are our columns too, multiplied by cuBLAS: another product changes little, and the columns are paid for
# in both. The first rung shows what it costs to go image by image: five launches for each of 32 images, each of which
# waits for the one before, copies of matrices, and products that are small for a large GPU.
#
# ### Exercise: the way back
#
# Training needs each layer backwards, too.

# %%
exercise("im2col/back")


# %%
@cuda.jit
def back(g, slope):
    pass  # your code


check("im2col/back", back)

# %% [markdown]
# ### `without_copies`, and what a copy costs
#
# The third rung is for windows of 1 x 1. The first two copy x all the same: the copy is written once, and read once.

# %%
moved = POINTWISE.cost.bytes
print(f"{POINTWISE}: {POINTWISE.cost.flops / 1e6:.0f} million FLOP, {moved / 1e6:.1f} MB")
print(f"of which x is {4 * POINTWISE.n * POINTWISE.c * POINTWISE.h * POINTWISE.w / 1e6:.1f} MB")
print(f"{POINTWISE.cost.intensity:.1f} FLOP/byte; the ridge is at {ceilings.ridge:.1f}")

# %% [markdown]
# **Predict, then run.** With the bytes of the copy, written and read, what is the intensity?

# %%
guess = None  # FLOP/byte

copied = 2 * 4 * POINTWISE.n * POINTWISE.c * POINTWISE.h * POINTWISE.w
predict(guess, POINTWISE.cost.flops / (moved + copied), unit="FLOP/byte")

# %%
arithmetic, with_copy = POINTWISE.cost.flops / ceilings.fma_f32, (moved + copied) / ceilings.bandwidth
print(f"at the speed of the hardware: arithmetic {arithmetic * 1e6:.1f} us,", end=" ")
print(f"memory {moved / ceilings.bandwidth * 1e6:.1f} us, and with the copy {with_copy * 1e6:.1f} us")

# %% [markdown]
# The copy doubles the bytes and halves the intensity. The layer moves from one side of the ridge to the other: without
# the copy arithmetic is the bound, if only just, and with it memory is.
#
# ### `fitted`, and images of odd sizes
#
# An image of 56 x 56 has 3136 numbers, a multiple of four. One of 31 x 31 has 961, so that only every fourth row of the
# output begins at a multiple of 16 bytes. There the product of `without_copies` gives up its vectors, and a thread
# stores its four neighbours one after the other. Each of these stores has 32 threads, and their numbers are four apart.
# `fitted` brings the sums through shared memory first, so that a warp's threads store neighbours.
#
# **Predict, then run.** How many times as many sectors do the stores of `without_copies` touch, for this layer?

# %%
guess = None  # times as many

odd = Layer(2, 8, 31, 31, 20, 1, 1)
odd_x = rng.standard_normal((odd.n, odd.c, odd.h, odd.w), dtype=np.float32)
odd_w = rng.standard_normal((odd.k, odd.c, 1, 1), dtype=np.float32)
stores = {}
for rung in (im2col.without_copies, im2col.fitted):
    counters = lab.count(rung, odd_x, odd_w).counters
    stores[rung.name] = counters["global_store_sectors"], counters["global_store_requests"]
predict(guess, stores["without_copies"][0] / stores["fitted"][0], unit="times as many")

# %%
for name, (sectors, requests) in stores.items():
    print(f"{name:14} {sectors:6,} sectors in {requests:5,} requests, {sectors / requests:.1f} for each")
print(f"the output has {4 * np.prod(odd.shape) / 32:,.0f} sectors of 32 bytes")

# %% [markdown]
# 32 numbers side by side are 128 bytes: four sectors, or five where the first begins in the middle of one. Four apart
# they are spread over 16, less where the output ends. The bytes reach the memory once in either case, because the cache
# collects them. But each request occupies it for as long as it has sectors.
#
# `fitted` also chooses the tile by the shape, as in [chapter 36](36_products_of_any_shape.ipynb). Here it has 20
# filters, and a tile of 64 x 64 is mostly empty. And it needs neither rows of zeros nor copies of the filters: a stride
# of 0 repeats them for all images, and another one repeats a filter's bias along its row.
#
# ## All rungs
#
# Here they are on this layer. The bound and the intensity are those of the definition, without a copy.

# %%
plots.drawn(plots.ladder, "im2col", family="1x1 c64 h56")

# %%
plots.drawn(plots.roofline, "im2col", family="1x1 c64 h56")

# %% [markdown]
# To leave out the copy makes this layer more than twice as fast, and nothing else was done to it. `fitted` is no faster
# here: 56 x 56 is a multiple of four, so `without_copies` stores vectors as well.
#
# ## What to take along
#
# - A convolution layer is a matrix product: filters times columns. For a layer of 1 x 1 without stride, x itself is the
#   matrix of columns.
# - im2col writes the columns down, and pays for that in memory: R S times the image, written once and read again.
# - Bytes that only an algorithm needs can move work from one side of the ridge to the other.
# - Do many small products in one launch. The GPU fills up with blocks of all of them.
# - Neighbouring threads should store neighbouring numbers, whatever the width of a row.
#
# ## Exercises
#
# One more, to be worked out on paper or in a few lines of Python. `check` cannot see it.
#
# - With how many filters would the columns of the 3 x 3 layer with 64 channels on images of 56 x 56 take a tenth of the
#   product's time, if both ran at the speed of the hardware?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.columns_answer)
assert check("im2col/columns", solutions.columns_answer)

# %% [markdown]
# *Columns.* What is outside of the image is written like everything else. Otherwise the product would meet whatever the
# workspace held before.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.back_answer)
assert check("im2col/back", solutions.back_answer)

# %% [markdown]
# *Back.* The thread owns the result and gathers, instead of owning a column and scattering. So no two threads add to
# one place, and no atomics are needed. (Turned round once more, it is a convolution with the filters turned by 180
# degrees.)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
layer = DESIGN[2]
moved = 2 * 4 * layer.n * layer.terms * layer.p * layer.q / ceilings.bandwidth  # written, then read
a_filter = layer.cost.flops / layer.k / ceilings.fma_f32
print(f"{layer}: the columns take {moved * 1e3:.2f} ms, one filter {a_filter * 1e6:.1f} us of arithmetic:")
print(f"with {10 * moved / a_filter:,.0f} filters the columns are a tenth")

# %% [markdown]
# *Filters.* The columns do not depend on the filters, so their share falls as filters are added. Most layers
# have fewer than that. The next chapter keeps the product and does without the columns.
#
# Go on with [chapter 66](66_implicit_gemm.ipynb).
