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
# *Columns, a product of many small matrices at once, workspace, layers that are products already. PMPP 4e: section
# 16.4; 5e: chapter 19. The code is
# [pmpp/kernels/convolution_layer/im2col.py](../pmpp/kernels/convolution_layer/im2col.py).*
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

from pmpp import cuda, lab
from pmpp.lab.draw import plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
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
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, sums

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
# **Predict, then run.** This kernel writes the columns. Our toy layer's x is 1024 sectors. How many does the kernel
# store?

# %%
prediction = None  # sectors

# %%
show(im2col.columns_kernel)

# %%
made = lab.count(im2col.batched, x, w, None, toy.stride, toy.padding).reports[0]
stored, asked = (made.counters[f"global_{way}_sectors"] for way in ("store", "load"))
print(f"{made.kernel}: {stored:,} sectors stored, {asked:,} asked for; you said {prediction}")

# %% [markdown]
# R S = 9 times as many as x has. Nothing is wrong with the access, there is just so much of it. For the seven layers:

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
# There are three: the columns of an image at a time, and a product for each; the columns of many images, and all their
# products in one launch; and no columns where none are needed. The second needs a product of many small matrices at
# once, which is [pmpp/kernels/matmul/batched.py](../pmpp/kernels/matmul/batched.py), with the kernel of chapter 12
# inside.

# %%
for rung in im2col.LADDER:
    print(f"{rung.name}: {rung.idea}\n     Still wrong: {rung.leaves or 'nothing that a matrix product could mend.'}")

# %% [markdown]
# **Predict, then look.** On the first layer of ResNet-50, how many times as fast is it to go through all images at once
# as to go image by image?

# %%
prediction = None  # a factor

# %%
count(im2col.batched)
recorded(im2col, "7x7 c3 h224", "3x3 c64 h56")

# %% [markdown]
# `cupy.matmul` are our columns too, multiplied by cuBLAS: another product changes little, and the columns are paid for
# in both. The first rung shows what it costs to go image by image: two launches for each of 32, and products that are
# small for a large GPU.
#
# ## All rungs
#
# Here is the layer where the window is 1 x 1. The first two rungs copy x all the same.

# %%
plots.drawn(plots.ladder, "im2col", family="1x1 c64 h56")

# %%
plots.drawn(plots.roofline, "im2col", family="1x1 c64 h56")

# %% [markdown]
# This layer lies close to the ridge: a copy of x more, and memory would be the bound.
#
# ## What to take along
#
# - A convolution layer is a matrix product in disguise. A layer of 1 x 1 without stride does not even wear the
#   disguise.
# - im2col shows the disguise and pays for it in memory: R S times the image, written once and read again.
# - Many small products are one launch. The GPU fills up with blocks of all of them.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter, with every access checked, and says what it found. The answers are at the
# end, folded away.
#
# ### 1. The columns

# %%
exercise("im2col/columns")


# %%
@cuda.jit
def columns_of(x, columns):
    pass  # your code


check("im2col/columns", columns_of)

# %% [markdown]
# ### 2. The way back
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
# ### More, without a check
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
