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
# # 62. Convolution layers
#
# *Seven loops, the bound of a network, sums in registers, im2col, implicit GEMM, Winograd's transforms, spectra,
# workspace, rounding, and choosing. PMPP 4e ch. 7 and 16.*
#
# A network that looks at pictures does nearly all of its arithmetic in one formula: the *convolution layer*. There are
# five well-known ways to compute it. All give the same numbers, up to rounding. They differ in how many
# multiplications they do, in how many bytes they move, in how much memory they want besides the result, and in how
# large the rounding is.
#
# **The question of this chapter: which way is the fastest for which layer, and can the shape of a layer tell?**
#
# Each way is a room: [direct](../pmpp/kernels/convolution_layer/direct.py),
# [im2col](../pmpp/kernels/convolution_layer/im2col.py), [implicit](../pmpp/kernels/convolution_layer/implicit.py),
# [winograd](../pmpp/kernels/convolution_layer/winograd.py) and [fft](../pmpp/kernels/convolution_layer/by_fft.py). They
# build on the tiles of [chapter 12](12_matmul.ipynb), on the convolution of one image with one mask in [chapter
# 24](24_convolution.ipynb), and on the transforms of [chapter 58](58_fft.ipynb).

# %%
from collections import Counter
from fractions import Fraction
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, simt
from pmpp.lab.draw import plots, winners
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import by_fft, definition, direct, dispatch, im2col, implicit, winograd
from pmpp.kernels.convolution_layer import survey as measured
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, sums

WAYS = ("direct", "im2col", "implicit", "winograd", "fft")
COLOURS = dict(zip(WAYS, ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE"), strict=True)) | {"cudnn": "#444444"}

# %% [markdown]
# ## A picture goes through a layer
#
# A layer takes an image as a stack of *channels*: for a photograph red, green and blue. A *filter* is a small stack of
# weights, one for each channel and each place of a window. Lay it on the image, multiply each weight by the number
# under it, and add everything up, over the window and over all channels. That is one number of the output. Then move
# the window on by one pixel. Each filter makes one channel of the output.
#
# In a network the weights are learnt. Here are four that we can read: a mean, two that answer to edges, and one that
# looks at a single pixel and takes blue away from red.

# %%
photo = np.ascontiguousarray(data.photograph()[::4, ::4].transpose(2, 0, 1)[None] / 255, np.float32)
step = np.outer([1, 2, 1], [-1, 0, 1]) / 8
filters = np.zeros((4, 3, 3, 3), np.float32)
filters[0], filters[1], filters[2] = 1 / 27, step / 3, step.T / 3
filters[3, 0, 1, 1], filters[3, 2, 1, 1] = 1, -1
answers = device.to_host(direct.naive(photo, filters, None, 1, 1))
print(f"image {photo.shape}, filters {filters.shape}, output {answers.shape}")

# %%
figure, axes = plt.subplots(1, 5, figsize=(7.8, 2.1), layout="constrained")
axes[0].imshow(photo[0].transpose(1, 2, 0))
for ax, channel in zip(axes[1:], answers[0], strict=True):
    ax.imshow(channel, cmap="gray")
for ax, title in zip(axes, ("3 channels in", "mean", "left to right", "top to bottom", "red - blue"), strict=True):
    ax.set_title(title, fontsize=10)
    ax.axis("off")

# %% [markdown]
# Four channels out. The next layer takes them as its input, with filters of four channels each.
#
# ### Seven loops
#
# With several images at once, the definition has seven loops. Here it is, slow and plainly right, with sums in float64.
# It is the reference for all five ways. (What we call the window is called the *kernel* in the code, as everywhere in
# the field. In the text a kernel stays a function on a GPU.)

# %%
show(definition.reference)

# %% [markdown]
# | letter | counts |
# |---|---|
# | N | images |
# | C, H, W | channels of an image, its rows, its columns |
# | K | filters, hence channels of the output |
# | R, S | rows and columns of a filter's window |
# | P, Q | rows and columns of an output channel |
#
# Four of the loops say *which* number of the output: n, k, p, q. Three say what is *added up* for it: c, r, s. (The
# field calls it a convolution. To be exact it is a *correlation*: a convolution would turn the filter round first.)
#
# ### Where the window goes
#
# The remaining letters in the code say where the window is laid. *Padding* puts zeros around the image, so that the
# window can stand at its edges, too (white in the picture). A *stride* of 2 moves the window two pixels at a time, so
# that the output has half the rows and columns. *Dilation* pulls the window apart: its places are 2 pixels from each
# other, with gaps between. Orange is the window at its first place, and a dot is wherever its first corner goes.


# %%
from matplotlib.colors import ListedColormap

SHADES = ListedColormap(["#FFFFFF", "#D9D9D9", "#EE7733"])  # padding, image, window


# %%
def window(ax, layer, title):
    """The image with its padding, the window at its first place, and a dot wherever its first corner goes."""
    (a, b), (u, v), (d, e) = layer.padding, layer.stride, layer.dilation
    cells = np.pad(np.ones((layer.h, layer.w)), ((a, a), (b, b)))
    cells[: layer.r * d : d, : layer.s * e : e] = 2
    edges = np.arange(cells.shape[1] + 1) - b - 0.5, np.arange(cells.shape[0] + 1) - a - 0.5
    ax.pcolormesh(*edges, cells, cmap=SHADES, vmin=0, vmax=2, edgecolors="#999999", linewidth=0.5)
    p, q = np.mgrid[: layer.p, : layer.q]
    ax.plot(q * v - b, p * u - a, ".", color="black", markersize=5)
    ax.set(aspect="equal", xlim=(-1.7, 7.7), ylim=(7.7, -1.7))
    ax.set_title(f"{title}: {layer.p} x {layer.q} out", fontsize=10)
    ax.axis("off")


# %%
figure, axes = plt.subplots(1, 4, figsize=(7.8, 2.2), layout="constrained")
for ax, (name, number) in zip(axes, (("plain", 1), ("padding", 1), ("stride", 2), ("dilation", 2)), strict=True):
    options = {} if name == "plain" else {name: (number, number)}
    window(ax, Layer(1, 1, 7, 7, 1, 3, 3, **options), f"{name} {number}" if options else name)

# %% [markdown]
# *Groups* deal the channels and the filters out to separate layers side by side: a filter then sees the channels of its
# own group only. In the extreme each channel is a group of its own, which is called *depthwise*. Filled is where a
# filter (a row) has weights for a channel (a column).

# %%
figure, axes = plt.subplots(1, 3, figsize=(5.4, 2.0), layout="constrained")
for ax, groups in zip(axes, (1, 2, 8), strict=True):
    joined = np.kron(np.eye(groups), np.ones((8 // groups, 8 // groups)))
    ax.pcolormesh(joined, cmap="Purples", vmin=0, vmax=1.5, edgecolors="#CCCCCC", linewidth=0.5)
    ax.set(title=f"groups={groups}", aspect="equal", xlabel="channel", xticks=[], yticks=[])
    ax.invert_yaxis()
label = axes[0].set_ylabel("filter")

# %% [markdown]
# **Predict, then run.** The first layer of the network ResNet-50 has images of 224 x 224, filters of 7 x 7, stride 2
# and padding 3. How many rows has its output? (A layer is written in one line: images, channels, rows and columns of an
# image, filters, window, and what is unusual of stride, padding, dilation and groups.)

# %%
prediction = None  # rows

# %%
first = DESIGN[0]
print(f"{first}: {first.p} rows, {first.q} columns; you said {prediction}")
print(f"(224 + 2 * 3 - 7) // 2 + 1 = {(224 + 2 * 3 - 7) // 2 + 1}")

# %% [markdown]
# ## The bound: a network as data
#
# ResNet-50 (He et al., 2016) has 53 convolution layers, and is what convolution is measured by. Its list comes with the
# package. Every layer has a cost: 2 N K P Q C R S operations, since a multiply-add is two, and the bytes of image,
# weights and output, each moved once.
#
# **Predict, then run.** How many multiplications does the network do for one photograph?

# %%
prediction = None  # millions of multiplications

# %%
network = definition.resnet50(images=32)
multiplications = sum(times * layer.cost.flops for layer, times in network.items()) / 2 / 32
print(f"{sum(network.values())} layers of {len(network)} shapes; {multiplications / 1e6:,.0f} million multiplications")
print(f"an image; you said {prediction}")
for kernel in (7, 3, 1):
    some = {layer: times for layer, times in network.items() if layer.r == kernel}
    share = sum(times * layer.cost.flops for layer, times in some.items()) / 2 / 32 / multiplications
    print(f"{kernel} x {kernel}: {sum(some.values()):2} layers, {share:4.0%} of the multiplications")

# %% [markdown]
# Where do these layers lie on the roofline? To the right of the ridge arithmetic is the bound, to the left memory. How
# often is each number used? A number of x by K filters, from R S windows at most. A weight at N P Q places. And an
# output is a sum of C R S products. Whichever of the three is used least decides the intensity.
#
# **Predict, then run.** Of the 53 layers, how many are left of the ridge when the network gets 32 photographs at once?
# And when it gets one?

# %%
prediction = None, None  # layers left of the ridge: of 32 images, of one

# %%
try:
    ceilings = roofline.ceilings()
except record.RecordError:  # nothing measured yet: what the vendor promises for an H200
    ceilings = roofline.Ceilings(4.8e12, 67e12, "datasheet of an H200", empty_kernel=2e-6, launch=1e-5)
print(f"{ceilings.bandwidth / 1e12:.2f} TB/s, {ceilings.fma_f32 / 1e12:.1f} TFLOP/s: {ceilings.source}")
print(f"the ridge is at {ceilings.ridge:.1f} FLOP/byte")
for images in (32, 1):
    layers = definition.resnet50(images)
    left = sum(times for layer, times in layers.items() if layer.cost.intensity < ceilings.ridge)
    least = sum(times * roofline.bound(layer.cost, ceilings).seconds for layer, times in layers.items())
    print(f"{images:2} images: {left} layers left of the ridge; at least {least * 1e3:.2f} ms for all 53")
print("you said", prediction)

# %%
figure, ax = chart(3.2)
looks = {1: ("1 x 1", "o", "#44AA99"), 3: ("3 x 3", "s", "#AA4499"), 7: ("7 x 7", "D", "#999933")}
for images, face in ((32, True), (1, False)):
    for place, layer in enumerate(definition.resnet50(images)):
        name, marker, colour = looks[layer.r]
        ax.plot(place, layer.cost.intensity, marker, color=colour, mfc=colour if face else "white", ms=7, zorder=3)
ax.axhline(ceilings.ridge, color="#333333")
ax.text(22, ceilings.ridge * 0.93, "the ridge: below it memory is the bound", ha="right", va="top", fontsize=9)
ax.set(yscale="log", ylim=(7, 900), xlabel="23 shapes of layers, in the order of the network", ylabel="FLOP/byte")
for name, marker, colour in looks.values():
    ax.plot([], [], marker, color=colour, label=name)
ax.plot([], [], "o", color="#666666", mfc="white", label="one image")
figure.legend(loc="outside right upper", title="32 images")
plt.setp(ax.yaxis, major_formatter="{x:g}")
figure

# %% [markdown]
# None, in either case. A convolution layer is like a large matrix product: each number is used many times, and a
# perfect kernel would be bound by arithmetic. (Depthwise layers are not, nor those with a handful of channels. A
# depthwise layer of 3 x 3 has 2.25 FLOP/byte.)
#
# Keep one thing in mind about this bound. It counts the multiplications *of the definition*. Two of the five ways do
# fewer of them, and may lie above the roof.
#
# These seven layers go with us through the chapter: six of ResNet-50's, from large images with few channels to
# small images with many, and one with a large window.

# %%
for layer in DESIGN:
    least = roofline.bound(layer.cost, ceilings)
    figures = (
        f"{layer.cost.flops / 1e9:7.2f} GFLOP {layer.cost.bytes / 1e6:6.1f} MB {layer.cost.intensity:7.1f} FLOP/byte"
    )
    print(f"{layer!s:27}{figures}; at least {least.seconds * 1e3:.3f} ms, set by {least.side}")

# %% [markdown]
# ### Two instruments
#
# The first counts. The interpreter runs the kernels of a rung on a toy layer, compares the result with float64, and
# adds up what the hardware would have to do. `asked` are bytes in sectors of global memory that were asked for, and
# `wavefronts` the passes that loads from shared memory take, for each multiply-add of the definition, of a whole warp.
# A warp can do four multiply-adds in the time of one wavefront ([chapter 12](12_matmul.ipynb)): above 0.25 shared
# memory is slower than the arithmetic.

# %%
toy = Layer(4, 8, 16, 16, 64, 3, 3, padding=(1, 1))
rng = np.random.default_rng(16)
x = rng.standard_normal((toy.n, toy.c, toy.h, toy.w), dtype=np.float32)
w = rng.standard_normal((toy.k, toy.c, toy.r, toy.s), dtype=np.float32)
exact = sums(x, w, toy)
print(f"{toy}: {toy.cost.flops:,} FLOP, {toy.cost.bytes:,} bytes")


# %%
def profiled(rung):
    """Run a rung in the interpreter: a report for each of its kernels, in order, and the output."""

    def instead(kernel, launch):
        shared = {"sharedmem": launch[3]} if len(launch) > 3 else {}
        return lambda *given: found.append((kernel, simt.profile(kernel, *launch[:2], given, **shared)))

    found = []
    with mock.patch.object(type(rung.kernels[0]), "__getitem__", instead):
        out = device.to_host(rung(x, w, None, toy.stride, toy.padding))
    return found, out


# %%
def count(*rungs):
    """Count rungs, and print what they asked for, for each multiply-add of a warp."""
    for rung in rungs:
        found, out = profiled(rung)
        total = sum((Counter(report.counters) for _, report in found), Counter())
        warp_adds = toy.cost.flops / 64
        sectors = total["global_load_sectors"] + total["global_store_sectors"]
        print(f"{rung.name:15}{32 * sectors / warp_adds:7.1f} bytes asked", end="")
        print(f"{total['shared_load_wavefronts'] / warp_adds:7.3f} wavefronts", end="")
        print(f"{total['warp_instructions'] / warp_adds:7.1f} instructions; error {abs(out - exact).max():.0e}")


# %% [markdown]
# The second remembers. Times are from a record: measured on a named GPU, in one run with cuDNN, NVIDIA's library for
# such layers, which PyTorch calls. It was allowed to try its own algorithms and to keep the fastest.


# %%
def recorded(room, *families, only=()):
    """Recorded times of a room's rungs, and of the libraries, on some of the seven layers."""
    name = room.__name__.rpartition(".")[2]
    try:
        kept = record.load()
        for family in families:
            entries = kept.design(name, family)
            for entry in [one for one in entries if one.kind == "library" or not only or one.contender in only]:
                rate = f"{entry.flops / entry.seconds / 1e12:6.1f} TFLOP/s"
                print(f"{entry.workload:27}{entry.contender:16}{entry.median_ms:8.3f} ms {rate}")
    except record.RecordError:
        print(f"No times to show: no record of {name} yet.")


# %% [markdown]
# ## First way: direct
#
# How fast can the definition be, if nothing is fetched twice that need not be? The first layer of the network is our
# example, with its 3 channels, 64 filters of 7 x 7, and stride 2.
#
# **Predict, then run.** How often is a number of x used, in the middle of an image? And how often a weight?

# %%
prediction = None  # (uses of a number of x, uses of a weight)

# %%
uses = first.k * first.r * first.s / (first.stride[0] * first.stride[1])
print(f"a number of x {uses:.0f} times, a weight {first.n * first.p * first.q:,} times; you said {prediction}")

# %% [markdown]
# By every filter, and by a quarter of the 49 places of the window, since it moves two pixels at a time. All rungs do
# the same multiplications. They differ in where the numbers come from.
#
# ### `naive`: a thread for each output
#
# The outer four loops become threads, the inner three stay.

# %%
show(direct.naive_kernel)

# %% [markdown]
# **Predict, then run.** Neighbouring threads have neighbouring q. For one multiply-add a warp loads 32 numbers of x and
# one weight, the same for all of its threads. How many bytes does it ask for?

# %%
prediction = None  # bytes, in sectors of 32

# %%
count(direct.naive)
print("you said", prediction)

# %% [markdown]
# 32 neighbours in a row are 4 sectors, or 5 if they do not begin at a multiple of 32 bytes, and the weight is another.
# (Some products are missing, where the window hangs over the edge.) That is 64 operations for some 150 bytes, far to
# the left of the ridge, and what it asks for twice a cache has to answer.
#
# And look at the instructions. The multiply-add itself is one of them. The others work out four indices, in 64 bits,
# and compare two of them with the edges of the image.
#
# ### `hoisted`: find the edges once
#
# Which rows and columns of the window lie inside the image depends on p and q alone, not on the channel. So the loops
# can begin and end at the right place, and need no comparison inside.

# %%
show(direct.within)
show(direct.hoisted_kernel)

# %%
count(direct.hoisted)
recorded(direct, "7x7 c3 h224", only=("naive", "hoisted"))

# %% [markdown]
# The interpreter counts instructions of the source, and hardly sees a difference. A compiler does: an index of 64 bits
# takes several instructions for each operation.
#
# ### `tiled`: windows overlap
#
# A pixel is seen by up to R S windows, and by all K filters. A block that makes a rectangle of outputs, for several
# filters, needs only the *patch* of x under its windows, and its filters. It puts both into shared memory, some
# channels at a time, as chapter 24 does with a tile and its halo and chapter 12 with its two tiles.

# %%
show(direct.tiled_kernel)
show(direct.add_chunk)

# %%
count(direct.tiled)

# %% [markdown]
# The bytes are down by a factor of ten and more, and have moved to shared memory: two loads for each multiply-add, and
# so two wavefronts, where a quarter could be afforded. It is the situation of `tiled` in chapter 12, and so is the
# cure.
#
# ### `register_tiled`: 8 filters times 8 pixels
#
# A thread keeps 64 sums in registers. For each place of the window it loads 8 weights, as two vectors of 16 bytes, and
# 8 numbers of x, and multiplies each with each. (The sums must *stay* in registers, and a register has no address:
# every index of `totals` must be known when the kernel is compiled. One loop that the compiler does not write out, and
# all 64 move to memory.)

# %%
show(direct.add_tap)

# %% [markdown]
# **Predict, then run.** Ten loads for 64 multiply-adds. All lanes of a warp have the same filters, and a vector of 16
# bytes is served to sixteen lanes at a time ([chapter 12](12_matmul.ipynb)): two wavefronts. How many wavefronts is
# that for a multiply-add?

# %%
prediction = None  # wavefronts a multiply-add

# %%
count(direct.register_tiled)
print("you said", prediction)
recorded(direct, "7x7 c3 h224", only=("tiled", "register_tiled"))

# %% [markdown]
# ### `sliding`: neighbours see the same pixels
#
# Up to here a thread's pixels lay apart. Let them be neighbours in a row. Then pixel j sees at place s of the window
# what pixel j + 1 saw at place s - 1. Four outputs and four places of the window need only seven numbers of x, two
# vectors, and those stay in registers while the window slides over them.

# %%
figure, ax = plt.subplots(figsize=(5.6, 1.9), layout="constrained")
style = {"ha": "center", "va": "center"}
for output, place in np.ndindex(4, 4):
    ax.add_patch(plt.Rectangle((output + place, -output), 0.94, 0.9, color=plots.COLOURS[place]))
    ink = "black" if place == 3 else "white"
    ax.text(output + place + 0.47, 0.45 - output, f"s={place}", color=ink, **style)
ax.set(xlim=(-0.1, 8.1), ylim=(-3.1, 1.1), xticks=np.arange(8) + 0.47, xticklabels=[f"x[{i}]" for i in range(8)])
ax.set_yticks(0.45 - np.arange(4), [f"output {j}" for j in range(4)])
ax.set_title("Which place of the window sees which pixel: two vectors hold them all")
ax.grid(visible=False)
ax.tick_params(length=0)
ax.spines[:].set_visible(False)

# %%
from pmpp.kernels.convolution_layer import direct_tiles

show(direct_tiles.segment)

# %% [markdown]
# With stride 2, neighbouring outputs lie two pixels apart. There the patch is stored with the even columns first and
# then the odd ones. Even places of the window see even columns, side by side, odd places see odd ones, and each half
# slides as before.
#
# **Predict, then look.** For the first layer, a row of the window is 22 loads for 448 multiply-adds: 20 for each load,
# where `register_tiled` had 6.4. How many times as fast is that?

# %%
prediction = None  # a factor

# %%
recorded(direct, "7x7 c3 h224", "3x3 c64 h56", "3x3 c256 h14", only=("register_tiled", "sliding"))

# %% [markdown]
# Less than the loads promise. By now most of what is executed are multiply-adds, and much of the rest is staging: the
# patch is few loads, but for each of them a thread has to work out where it is in x and where in shared memory. (It
# once took divisions. Now `after` steps from one place to the next by additions.)
#
# For the first layer this way does well: what neighbouring windows share is nearly all that can be shared. With 256
# channels on images of 14 x 14 there is more, and the next ways will find it.
#
# ### `depthwise`: one filter a group
#
# If each channel has a filter of its own, there is no second filter to share x with, and 8 filters a thread would be 7
# too many. There are only R S multiply-adds for each number of x, so memory is the bound again, and shared memory is a
# detour. A thread of the last rung makes four outputs in a column, and asks for all that they see at once. Its
# neighbours ask for nearly the same, and the first-level cache answers.


# %%
def compared(room, family, contender):
    """Everything recorded in a family of workloads, against cuDNN."""
    name = room.__name__.rpartition(".")[2]
    try:
        entries = record.load().entries(name, family=family)
    except record.RecordError:
        entries = print(f"No times to show: no record of {name} yet.") or ()
    library = {one.workload: one for one in entries if one.contender == "torch.conv2d"}
    for one in [one for one in entries if one.contender == contender and one.workload in library]:
        rival, rate = library[one.workload], f"{one.flops / one.seconds / 1e12:6.1f} TFLOP/s"
        print(f"{one.workload:33}{one.median_ms:7.3f} ms {rate} {one.bytes / one.seconds / 1e12:5.2f} TB/s;", end=" ")
        print(f"cuDNN {rival.median_ms:7.3f} ms, {rival.seconds / one.seconds:5.2f} x")


# %%
compared(direct, "few channels", "sliding")
compared(direct, "depthwise", "depthwise")

# %%
plots.drawn(plots.ladder, "direct", family="7x7 c3 h224")

# %% [markdown]
# ## Second way: im2col
#
# Why invent the tiles of chapter 12 again? A convolution layer *is* a matrix product. Take what the window sees at one
# place, C R S numbers, and write it down as a column. Do so for every place. The filters, written as rows, times these
# columns are the output. The name of this is *im2col*: image to columns. Here it is in NumPy.

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
found, _ = profiled(im2col.batched)
report = found[0][1]
print(
    f"{report.counters['global_store_sectors']:,} sectors stored, {report.counters['global_load_sectors']:,} asked for;"
)
print(f"you said {prediction}")

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
# The three rungs: the columns of an image at a time, and a product for each; the columns of many images, and all their
# products in one launch; and no columns where none are needed. The second needs a product of many small matrices at
# once, which is [matmul_batched](../pmpp/kernels/matmul/batched.py), with the kernel of chapter 12 inside.

# %%
count(im2col.batched)
recorded(im2col, "7x7 c3 h224", "3x3 c64 h56")

# %% [markdown]
# `cupy.matmul` are our columns too, multiplied by cuBLAS: another product changes little, and the columns are paid for
# in both. The first rung shows what it costs to go image by image: two launches for each of 32, and products that are
# small for a large GPU. And here is the layer without columns:

# %%
plots.drawn(plots.ladder, "im2col", family="1x1 c64 h56")

# %% [markdown]
# ## Third way: implicit GEMM
#
# (GEMM is the name of the matrix product in the oldest of its libraries.) The columns are a matrix that nobody wants to
# see. A block of the product needs a tile of it in shared memory, and no more. So it gathers this tile from x itself:
# row k of the matrix is a channel c and a place (r, s), column j is a place (p, q) in an image n, and where such an
# element lies in x is arithmetic. The columns never touch memory. Nothing else changes: it is the kernel of chapter 12
# with another way to fetch one of its two tiles.

# %%
show(implicit.element)
show(implicit.tiled_kernel)

# %% [markdown]
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
# **Predict, then run.** The columns' matrix has 9 times the elements of x. With implicit GEMM every element of the
# matrix is still fetched from x once for each tile of filters. Are fewer bytes asked for than with im2col?

# %%
prediction = None  # yes or no

# %%
count(implicit.tiled, implicit.register_tiled, implicit.by_channels)
count(im2col.batched)
print("you said", prediction)

# %% [markdown]
# (The 64 filters of our toy are one tile of the later rungs.) The columns are asked for once, straight from x. With
# im2col they are asked for, written, and asked for again. And most of what is asked for comes from a cache: the same
# pixels for nine rows of a tile.
#
# How does one thread gather? Here is the code of all the later rungs. `mode` is known when a kernel is compiled:
# `CHANNELS` is the case of eight channels. `VECTORS` is for windows of 1 x 1, where neighbouring columns are neighbours
# in memory, and nothing is to be checked.

# %%
from pmpp.kernels.convolution_layer import implicit_gather

show(implicit_gather.fetch)

# %%
print("workspace in MiB:", " " * 11, "im2col  implicit")
for layer in DESIGN:
    both = (room.workspace_bytes(layer) / 2**20 for room in (im2col, implicit))
    print(f"{layer!s:27}", *(f"{size:8.2f}" for size in both))
recorded(implicit, "3x3 c64 h56", "7x7 c3 h224", only=("tiled", "register_tiled", "divided"))

# %% [markdown]
# The last rung, `divided`, is for layers with few tiles. With 512 filters on images of 7 x 7 there are fewer blocks
# than the GPU has places for: four on each of 132 multiprocessors. But each sum is long. So several blocks share one
# tile, each adds up a part of the sum, and a second kernel adds the parts. It does so always in the same order: atomic
# additions would need no second kernel, and would give another result on each run.

# %%
for layer in DESIGN[2:6]:
    mode = implicit_gather.mode_of(layer)
    once, shared = (implicit_gather.plan_of(layer, mode, way) for way in (False, True))
    print(f"{layer!s:27} {once.blocks:4} tiles, sums of {layer.terms:4} products;", end=" ")
    print(f"divided: {shared.blocks:4} blocks, {shared.parts} for a tile")

# %%
recorded(implicit, "3x3 c512 h7", only=("by_channels", "divided"))

# %%
plots.drawn(plots.ladder, "implicit", family="3x3 c64 h56")

# %% [markdown]
# This is as far as the multiplications of the definition go: a matrix product, as fast as we can make one. To be faster
# we must multiply less.
#
# ## Fourth way: Winograd
#
# ### Two outputs for four multiplications
#
# A window of three weights slides over a row. Two neighbouring outputs see four inputs:
#
# $$y_0 = d_0 g_0 + d_1 g_1 + d_2 g_2, \qquad y_1 = d_1 g_0 + d_2 g_1 + d_3 g_2.$$
#
# That is six multiplications. Four are enough:
#
# $$m_0 = (d_2 - d_0)(-g_0), \quad m_1 = (d_1 + d_2)\,\tfrac{g_0 + g_1 + g_2}{2}, \quad
# m_2 = (d_2 - d_1)\,\tfrac{g_0 - g_1 + g_2}{2}, \quad m_3 = (d_3 - d_1)\,g_2,$$
#
# $$y_0 = m_0 + m_1 + m_2, \qquad y_1 = m_1 - m_2 + m_3.$$
#
# What has to be done to the weights alone is done once. Check it with numbers that do not round:

# %%
d0, d1, d2, d3, g0, g1, g2 = (Fraction(int(value)) for value in rng.integers(-9, 9, 7))
m0, m1 = (d2 - d0) * -g0, (d1 + d2) * (g0 + g1 + g2) / 2
m2, m3 = (d2 - d1) * (g0 - g1 + g2) / 2, (d3 - d1) * g2
print("by four multiplications:", m0 + m1 + m2, "and", m1 - m2 + m3)
print("by the definition:      ", d0 * g0 + d1 * g1 + d2 * g2, "and", d1 * g0 + d2 * g1 + d3 * g2)

# %% [markdown]
# ### Where such formulas come from
#
# Multiply two polynomials, $g(t)$ with three coefficients and $e(t)$ with two. The product $s(t)$ has four, and a
# polynomial with four coefficients is known by its values at four points. Now $s(t) = g(t)\,e(t)$ at each point, which
# is *one* multiplication. So: take the values of $g$ and $e$ at four points (additions, if the points are simple),
# multiply four times, and put $s$ together again (additions). The four points are 0, 1, -1 and "infinity", where a
# polynomial's value is its last coefficient.
#
# In matrices: with $E$ and $G$ for taking values and $I$ for putting together, $s = I\,[(G g) * (E e)]$, where $*$
# multiplies element by element. For given $g$ that is a matrix times $e$, namely $M = I \operatorname{diag}(G g)\, E$,
# with $g$ going down its columns, one place lower in each. *Transposed*, the matrix has $g$ along its rows, one place
# further in each, and that times four inputs $d$ is our sliding window:
#
# $$y = M^T d = E^T\,[(G g) * (I^T d)].$$
#
# The names in use are $A^T = E^T$ and $B^T = I^T$. This is the whole trick, and it works for any number of outputs *m*
# and as many points as it takes, m + 2. It is written F(m, 3).

# %%
from pmpp.kernels.convolution_layer.winograd_transforms import POINTS, bound, cook_toom

for name, matrix in zip(("A^T", "G", "B^T"), cook_toom(2), strict=True):
    rows = ("  ".join(f"{value!s:>4}" for value in row) for row in matrix)
    print(f"{name:4}", "\n     ".join(rows))

# %% [markdown]
# The rows of $G$ take the values of $g$ at 0, 1, -1 and infinity. The denominators in them belong to the putting
# together, but there they would be divided by again and again. The room computes these matrices from the points, with
# Python's `Fraction`, so no coefficient is typed by hand.

# %%
show(cook_toom)

# %% [markdown]
# ### Two dimensions
#
# An image has rows and columns, and the trick works along both: transform the columns of a tile, then its rows.
#
# $$Y = A^T \left[ (G\, g\, G^T) * (B^T d\, B) \right] A$$
#
# A tile of $m \times m$ outputs takes $(m + 2)^2$ multiplications, where the definition takes $9 m^2$.
#
# **Predict, then run.** How many times fewer is that for m = 2, and for m = 4? And what keeps us from m = 100?

# %%
prediction = None, None  # factors

# %%
for m in (1, 2, 4, 6, 100):
    print(
        f"F({m} x {m}, 3 x 3): {(m + 2) ** 2:6,} instead of {9 * m * m:7,}: {9 * m * m / (m + 2) ** 2:.2f} times fewer"
    )
print("you said", prediction)


# %%
def tile_exactly(m):
    """A random tile by F(m x m, 3 x 3) and by the definition, in fractions: are they equal?"""
    a, g, b = cook_toom(m)
    d = np.array([[Fraction(int(v)) for v in row] for row in rng.integers(-9, 9, (m + 2, m + 2))])
    weights = np.array([[Fraction(int(v)) for v in row] for row in rng.integers(-9, 9, (3, 3))])
    tile = a @ ((g @ weights @ g.T) * (b @ d @ b.T)) @ a.T
    plain = [[(d[p : p + 3, q : q + 3] * weights).sum() for q in range(m)] for p in range(m)]
    return np.array_equal(tile, plain)


print("exactly equal:", tile_exactly(2), tile_exactly(4))

# %% [markdown]
# ### The layer
#
# Transforming a tile back is linear. So the sum over channels can be done *before* it, once for all channels, and
# nothing of a product is transformed but the sum. What is left in the middle is, for each of the $(m + 2)^2$ elements
# of a tile, a sum over channels of weight times image, for every filter and every tile: a matrix product. There are 16
# or 36 of them. A transform's work grows with C + K, that of the products with C K. So the transforms are paid for
# where there are many channels.
#
# Tiles of the output lie side by side. Tiles of the image overlap by two rows and columns, since the window reaches
# beyond the output's tile.

# %%
figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.4), layout="constrained")
for ax, side, name in zip(axes, (6, 4), ("image, with padding: 6 x 6", "output: 4 x 4"), strict=True):
    extent = 14 if side == 6 else 12
    ax.pcolormesh(np.zeros((extent, extent)), cmap=SHADES, vmin=0, vmax=2, edgecolors="#CCCCCC", linewidth=0.5)
    for (top, left), colour in zip(((0, 0), (0, 4), (4, 4)), (COLOURS["winograd"], "#44AA99", "#332288"), strict=True):
        ax.add_patch(plt.Rectangle((left, top), side, side, color=colour, alpha=0.4))
    ax.set(title=name, aspect="equal", xticks=[], yticks=[])
    ax.invert_yaxis()

# %%
from pmpp.kernels.convolution_layer import winograd_transforms

show(winograd.small_image_kernel)
show(winograd_transforms.image_four)

# %% [markdown]
# The kernel for the output goes the same way back, and `product_kernel` between them is a thread for each sum. Let us
# count its operations for the toy layer, and those of the transforms. A rung launches four kernels: weights, images,
# products, output.

# %%
for m in (2, 4):
    elements, tiles = (m + 2) ** 2, toy.n * (toy.p // m) * (toy.q // m)
    u, v, s = (np.zeros(elements * n, np.float32) for n in (toy.k * toy.c, toy.c * tiles, toy.k * tiles))
    sizes = elements, elements, toy.k, tiles, toy.c
    report = simt.profile(winograd.product_kernel, -(-s.size // 128), 128, (u, v, s, sizes))
    products = report.counters["flops"]
    found, _ = profiled({2: winograd.batched, 4: winograd.large_tiles}[m])
    transforms = sum(found[place][1].counters["flops"] for place in (0, 1, 3))
    print(f"F({m} x {m}, 3 x 3): products {products:,} FLOP, {toy.cost.flops / products:.2f} times fewer;", end=" ")
    print(f"transforms {transforms:,}; together {toy.cost.flops / (products + transforms):.2f} times fewer")
wide = DESIGN[5]  # 512 channels, scaled up from the toy's counts for m = 4
many = wide.n * -(-wide.p // m) * -(-wide.q // m)
scales = wide.k * wide.c / (toy.k * toy.c), wide.c * many / (toy.c * tiles), wide.k * many / (toy.k * tiles)
flops = sum(found[place][1].counters["flops"] * scale for place, scale in zip((0, 1, 3), scales, strict=True))
print(f"{wide}: transforms {flops / (2 * elements * wide.k * wide.c * many):.1%} of the products")

# %% [markdown]
# 2.25 and 4 times fewer, as calculated. The toy has only 8 channels, so the transforms weigh much. With 512 they hardly
# count in operations (the last line). In bytes they are more: see below.
#
# ### The rungs
#
# `small_tiles` is F(2 x 2, 3 x 3), with the simple product. `batched` gives the 16 products to `matmul_batched`.
# `large_tiles` is F(4 x 4, 3 x 3), and `vectorised` reads and writes rows of a tile as vectors.

# %%
count(*winograd.LADDER)
recorded(winograd, "3x3 c64 h56")

# %% [markdown]
# What is paid in memory? The transformed image has $(m + 2)^2$ numbers for each $m^2$ pixels: 4 times as many for m =
# 2, 2.25 times for m = 4. It is written and read again, and so are the sums. The larger tile saves on both sides.

# %%
for layer in DESIGN[2:6]:
    space, extra = winograd.workspace_bytes(layer), roofline.bound(layer.cost, ceilings).seconds / 4
    moved = 2 * space / ceilings.bandwidth
    print(f"{layer!s:27} workspace {space / 2**20:6.1f} MiB, written and read in {moved * 1e3:.3f} ms;", end=" ")
    print(f"a quarter of the arithmetic takes {extra * 1e3:.3f} ms")

# %% [markdown]
# So the bytes cost about as much as the multiplications that are left, and with 64 channels more.

# %%
plots.drawn(plots.ladder, "winograd", family="3x3 c64 h56")

# %% [markdown]
# ### Why not larger tiles
#
# In exact arithmetic any points will do. In float32 it matters: large powers of a point make large numbers that cancel
# in the end, and their rounding errors do not. How much can an error grow? Put absolute values everywhere, so that
# nothing cancels, and all inputs to 1: the definition gives 3, in each dimension.


# %%
def growth(m, points):
    """The largest of |A^T| [(|G| 1) * (|B^T| 1)] over 3, squared for two dimensions."""
    with mock.patch.dict(POINTS, {m: points}):
        a, g, b = (abs(matrix) for matrix in cook_toom.__wrapped__(m))
    return float(max(a @ (g.sum(axis=1) * b.sum(axis=1)))) ** 2 / 9


others = (0, 1, -1, 2, -2, Fraction(1, 2), -Fraction(1, 2))
for m, points in ((2, POINTS[2]), (4, others[:5]), (4, POINTS[4]), (6, others)):
    named = ", ".join(str(point) for point in points)
    print(f"F({m} x {m}) at {named:28} and infinity: numbers up to {growth(m, points):6.1f} times as large")

# %% [markdown]
# The points 0, 5/8, -5/8, 3/2, -3/2 are the room's. With 1 and 2 the transforms need hardly a multiplication, but
# errors can become several times larger. Beyond m = 4 it gets worse still, while less and less is saved. Measured on
# the toy layer:

# %%
for rung in (direct.naive, winograd.batched, winograd.vectorised):
    off = abs(profiled(rung)[1] - exact)
    m = {"naive": 0, "batched": 2, "vectorised": 4}[rung.name]
    allowed = bound(x, w, toy, m) if m else (toy.terms + 2) * 2.0**-24 * sums(abs(x), abs(w), toy)
    named = f"F({m} x {m}, 3 x 3)" if m else "direct"
    print(f"{named:15} largest error {off.max():.1e}, mean {off.mean():.1e}; {(off / allowed).max():.0%} of its bound")

# %% [markdown]
# F(4 x 4) is a few times less exact than a sum of products. A network does not notice. A program that compares results
# to the last digit does. (The bounds hold for the worst case, and roundings cancel, so all stay far below.)
#
# ## Fifth way: FFT
#
# Winograd multiplies polynomials by their values at a few points. There is a set of points for which the transform is
# cheap however many there are: the roots of unity. Values at these are the *spectrum*, and the way there and back is
# the FFT. A correlation becomes a product of spectra, one multiplication of complex numbers for each frequency:
#
# $$\operatorname{spectrum}(y) = \operatorname{spectrum}(x) \cdot \overline{\operatorname{spectrum}(w)}.$$
#
# The size of the window does not occur in it. Here it is in NumPy, for a window of 15 x 15 in a tile of 64 x 64.

# %%
tile = photo[0, 0, 10:74, 40:104].astype(float)
bell = np.exp(-((np.arange(15) - 7) ** 2) / 18)
mask = np.outer(bell, bell) / bell.sum() ** 2
blurred = np.fft.irfft2(np.fft.rfft2(tile) * np.conj(np.fft.rfft2(mask, tile.shape)))
windows = np.lib.stride_tricks.sliding_window_view(tile, (15, 15))
wanted = np.einsum("pqrs,rs", windows, mask)
print(f"tile {tile.shape}, {wanted.shape} places of the window")
print(f"largest difference at these places: {abs(blurred[:50, :50] - wanted).max():.0e}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.5), layout="constrained")
whole = np.einsum("pqrs,rs", np.lib.stride_tricks.sliding_window_view(photo[0, 0, 10:88, 40:118], (15, 15)), mask)
pictures = {
    "a tile of the photograph": tile,
    "by spectra": blurred,
    "wrong (dark)": 1.0 * (abs(blurred - whole) > 1e-6),
}
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture, cmap="gray_r" if "wrong" in title else "gray")
    ax.set(title=title, xticks=[], yticks=[])
    ax.grid(visible=False)

# %% [markdown]
# On the right and at the bottom it is wrong. Spectra know no edge: what is beyond the right edge is the left one, and
# the window has wrapped around. A tile of n x n gives (n - R + 1) x (n - S + 1) good outputs. So tiles overlap by R - 1
# rows and S - 1 columns, and of each only the good part is kept (*overlap-save*).
#
# **Predict, then run.** A real tile of n x n has n (n / 2 + 1) different frequencies, each of which takes four real
# multiplications for a pair of channel and filter. From which window on does a tile of 32 x 32 multiply less than the
# definition?

# %%
prediction = None  # rows and columns of the window


# %%
def by_spectra(n, r):
    """Multiplications for one output, for a channel and a filter, without the transforms."""
    return 4 * n * (n / 2 + 1) / (n - r + 1) ** 2


print("window   definition  ", *(f"tiles of {n:2}  " for n in (16, 32, 64)))
for r in (1, 2, 3, 5, 7, 11, 15, 31):
    spectra = (f"{by_spectra(n, r):11.2f}" if r <= n // 2 else " " * 11 for n in (16, 32, 64))
    print(f"{r:2} x {r:<2} {r * r:11}", *spectra)
print("you said", prediction)

# %% [markdown]
# From 2 x 2 on. A large tile takes few multiplications for an output, whatever the window. For 3 x 3 that is about the
# 2.25 of F(4 x 4, 3 x 3), but for 15 x 15 it is dozens of times fewer than the definition. What spectra cost is not in
# this table: the transforms, and bytes. All spectra are written to memory and read again, and each filter becomes as
# large as a tile. (In the next picture, and in those after it that compare the five ways, a colour is a way. In the
# ladders a colour is a rung, as in all chapters.)

# %%
figure, ax = chart(3.0)
r = np.arange(1, 32)
ax.plot(r, r * r, color=COLOURS["direct"], label="definition: direct, im2col, implicit")
for style, n in zip((":", "--", "-"), (16, 32, 64), strict=True):
    fits = r[r <= n // 2]
    ax.plot(fits, by_spectra(n, fits), style, color=COLOURS["fft"], label=f"spectra, tiles of {n}")
for m, marker in ((2, "s"), (4, "D")):
    ax.plot(3, (m + 2) ** 2 / m**2, marker, color=COLOURS["winograd"], label=f"Winograd, m = {m}", zorder=4)
ax.set(yscale="log", xlabel="rows and columns of the window", ylabel="multiplications an output")
ax.set_title("Multiplications for an output, a channel and a filter")
plt.setp(ax.yaxis, major_formatter="{x:g}")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# ### The rungs
#
# `whole_image` pads images and filters to one power of two, and uses the transforms of [chapter 58](58_fft.ipynb)
# as they are. `tiles` cuts images into tiles of 16, 32 or 64, each of which a block transforms in shared memory, both
# axes in one kernel. In `register_tiled` the sums over channels are what they were for Winograd: a matrix product for
# each frequency, of complex numbers, in registers.

# %%
show(by_fft.tiling_of)

# %%
count(*by_fft.LADDER)
recorded(by_fft, "layer")

# %% [markdown]
# Our toy is not what this way is for: 3 x 3, and few channels. Note the bytes. Here are windows from 3 x 3 to 31 x 31,
# on one and the same layer. **Predict, then look.** By what factor does the time grow, from the smallest to the
# largest?

# %%
prediction = None  # a factor

# %%
compared(by_fft, "masks", "register_tiled")

# %%
plots.drawn(plots.ladder, "by_fft", family="layer")

# %% [markdown]
# The definition's multiplications grow by (31 / 3)², more than a hundredfold. The time grows little beside that, and
# cuDNN's not at all from some size on: it seems to have an FFT of its own. A share of more than 100 % of the roof is no
# mistake. The bound counts the multiplications of the definition, and these are not done.
#
# ## The same numbers?
#
# Sums in another order round differently, and transforms have roundings of their own. The next section has figures.
# There is one more difference, which no tolerance shows.
#
# **Predict, then run.** Put one NaN into an image of 32 x 32. With a window of 3 x 3 it is seen from 9 places. How many
# outputs of a filter become NaN with each way?

# %%
prediction = None  # direct, im2col, implicit, winograd, fft

# %%
spoilt = rng.standard_normal((1, 8, 32, 32), dtype=np.float32)
spoilt[0, 5, 14, 14] = np.nan
print(f"you said {prediction}; ", end="")
for name, room in dispatch.ROOMS.items():
    out = device.to_host(room.LADDER[-1](spoilt, w, None, 1, 1))
    print(f"{name} {np.isnan(out[0, 0]).sum()}", end="   ")
five = np.ascontiguousarray(spoilt[:, 1:6]), np.ascontiguousarray(w[:, 1:6])  # now the NaN is in the last channel
out = device.to_host(by_fft.LADDER[-1](*five, None, 1, 1))
print(f"\nfft of five of the eight channels {np.isnan(out[0, 0]).sum()}")

# %% [markdown]
# A transform mixes all numbers of a tile, and a NaN is in all outputs of the tile afterwards. Winograd's tiles make 4 x
# 4 outputs, and here one of them sees the NaN. The FFT takes tiles of 16 for this layer, each for 14 x 14 outputs, and
# four of them see it. (Two planes of real numbers share a transform, as one of complex ones: two channels, whose sum is
# spoilt anyway. With an odd number of channels the last one shares with the next tile, even with another image's, and
# that tile is spoilt, too. It is the second line.)
#
# Whoever looks for the origin of a NaN should know which way was taken.
#
# ## All five
#
# Now all five on the seven layers, measured in one run, in turn, with cuDNN. Every output was compared with float64. A
# room's last rung stands for it.


# %%
def rows_of(name):
    """A set of the record's layers, or none and a sentence."""
    try:
        return [row for row in measured.load()[1] if row.set == name]
    except (OSError, record.RecordError):
        print("All five have not been measured together yet.")
        return []


def source():
    about = measured.load()[0]
    return f"Recorded on {about['gpu']['name']}, {about['run']['date'][:10]}, revision {about['run']['revision']}"


# %%
design = rows_of("design")
for row in design:
    times = "  ".join(f"{name} {row.ms[name]:.3f}" if name in row.ms else f"{name}     -" for name in COLOURS)
    print(f"{row.layer!s:27} {times} ms; {row.best}: {row.ms['cudnn'] / row.ours[row.best]:.2f} x cudnn's speed")


# %%
def all_on_the_roof(rows):
    """A column of marks is a layer. Filled: ours. Hollow: cuDNN."""
    (figure, ax), reach = chart(4.6), np.array([8, ceilings.ridge, 9000])
    ax.loglog(reach, [roofline.attainable(i, ceilings) / 1e12 for i in reach], color="#333333")
    for (name, colour), marker in zip(COLOURS.items(), "os^DvP", strict=True):
        some = [(row.layer.cost.intensity, row.layer.cost.flops / row.ms[name] / 1e9) for row in rows if name in row.ms]
        face = "white" if name == "cudnn" else colour
        ax.plot(*np.array(some).T, marker, color=colour, mfc=face, ms=8, label=name, linestyle="none", zorder=4)
    for row in rows:
        aside = {"c512": -0.04, "c256": 0.04}.get(f"c{row.layer.c}", 0)  # these two nearly meet
        at = row.layer.cost.intensity * 10**aside, 0.02
        name = f"{row.layer.r} x {row.layer.s}, {row.layer.c} channels"
        ax.annotate(name, at, xycoords=("data", "axes fraction"), rotation=90, fontsize=8, color="#666666", ha="center")
    return figure, ax


# %%
if design:
    figure, ax = all_on_the_roof(design)
    ax.set(
        xlabel="FLOP/byte of the layer", ylabel="TFLOP/s, by the definition's count", title="Seven layers, five ways"
    )
    ax.set_ylim(ax.get_ylim()[0] / 12, None)  # room for the names of the layers
    plt.setp((ax.xaxis, ax.yaxis), major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, source())
figure if design else "Nothing to draw yet."

# %% [markdown]
# Each column of marks is a layer. What lies above the roof does fewer multiplications than the definition. What lies
# under it either does them all, and is held up by them, by memory, or by having too few blocks. Or it does fewer and
# loses as much elsewhere, as the FFT does on windows of 3 x 3 and 7 x 7.
#
# Time is one of three prices. The others are workspace and error. The error is that of the worst of some hundred
# outputs, as a fraction of the sum of the sizes of its terms.

# %%
for row in design:
    prices = (f"{name} {row.workspace[name] / 2**20:.0f} MiB, {row.error[name]:.0e}" for name in row.ours)
    print(f"{row.layer!s:27}", "; ".join(prices))

# %% [markdown]
# Winograd's errors are the largest, as they had to be. But look at the FFT's: they are often the smallest. A sum of
# thousands of products, one after the other, rounds thousands of times, and a transform of 64 points only six times
# along each axis. `divided` has the same advantage over one long sum.
#
# ## The map
#
# Seven layers are seven points of a large space. Here is a larger piece of it: 144 layers, with as many filters as
# channels, stride 1, and padding that keeps the size. There are 32 images, or fewer in the layers with most work. From
# panel to panel the window grows. In a panel channels grow to the right and images grow upwards. The colour is the
# fastest of our five, the number says how many times as fast as cuDNN it is, and where cuDNN is faster the colour is
# pale.
#
# **Predict, then look.** You know now what each of the five is good at. Which colour will be where?

# %%
prediction = None  # left, right, bottom, top; small windows and large ones

# %%
panels = {}
for row in rows_of("grid"):
    factor = row.ms["cudnn"] / row.ours[row.best] if "cudnn" in row.ms else None
    place = row.layer.c, row.layer.h
    panels.setdefault(f"{row.layer.r} x {row.layer.s}", {})[place] = row.best, factor
words = {"across": "channels and filters", "down": "rows and columns", "rival": "cuDNN"}
title = "The fastest of five, and how many times as fast as cuDNN"
winners.winners(panels, COLOURS, **words, title=title, footer=source()) if panels else "Nothing to draw yet."

# %%
for name, panel in panels.items():
    wins = Counter(winner for winner, _ in panel.values())
    ahead = [factor for _, factor in panel.values() if factor is not None]
    mine = ", ".join(f"{algorithm} {wins[algorithm]}" for algorithm in WAYS if wins[algorithm])
    print(f"{name:8} {mine}; faster than cuDNN in {sum(factor > 1 for factor in ahead)} of {len(ahead)}")
behind = [row for row in (rows_of("grid") if panels else ()) if row.ms.get("cudnn", np.inf) < row.ours[row.best]]
if behind:
    low = sum(row.layer.h <= 28 for row in behind)
    print(f"cuDNN is faster on {len(behind)}, of which {low} have images of at most 28 x 28.", end=" ")
    print(f"Half of them take it less than {np.median([row.ms['cudnn'] for row in behind]):.3f} ms")

# %% [markdown]
# Read it with what each way pays.
#
# - **1 x 1: a matrix product.** There is no window, so im2col copies nothing, and im2col and implicit GEMM do the same
#   work. Which of the two colours a cell has means little.
# - **3 x 3: Winograd,** from 64 channels on, and on smaller images from 16. The transforms are paid for, and a quarter
#   of the multiplications is left.
# - **Larger windows: FFT.** Its price hardly depends on the window, that of the definition grows with its square. Only
#   on the smallest images most of a tile would be padding, and there implicit GEMM is often ahead.
# - **Few channels, and not too large a window: direct,** mostly. All others make matrix products, with sums over
#   channels, for many filters at a time. With 4 of each the sums are short, and a tile is mostly empty. When the window
#   grows, the FFT takes over here, too.
# - **im2col** has no cell of its own where there are columns to be written. Implicit GEMM is the same product without
#   them. As an idea it is behind three of the five.
#
# And where is cuDNN ahead? Mostly in the lower rows. Half of these layers take a few hundredths of a millisecond at
# most. There time goes into launches, of which some of our ways need four, and into waiting, with too few blocks to
# fill a large GPU, and a library's many small special kernels count. Two more likely reasons, with large windows: our
# products of spectra are made in tiles of 32 filters, and with 16 half of each is empty. And with 256 channels and as
# many filters there are 65,536 windows to transform, each of which becomes as large as a tile, for small images that
# are soon done.
#
# ## Choosing
#
# A program does not want five functions. `convolution` takes the layer, and an algorithm by name, or `"auto"`.

# %%
small = rng.standard_normal((2, 3, 24, 24), dtype=np.float32)
banks = rng.standard_normal((8, 3, 5, 5), dtype=np.float32)
right = sums(small, banks, Layer(2, 3, 24, 24, 8, 5, 5, padding=(2, 2))).clip(0)
for name in (*dispatch.ALGORITHMS, "auto"):
    try:
        out = dispatch.convolution(small, banks, padding=2, relu=True, algorithm=name)
        print(f"{name:9} largest error {abs(device.to_host(out) - right).max():.0e}")
    except ValueError as refused:
        print(f"{name:9} {refused}")

# %% [markdown]
# There are two ways to choose, and libraries have both. One is to *measure*: `find` runs all candidates on the layer at
# hand, ranks them by time, and remembers. It costs some runs, once, and is then right, on any GPU. cuDNN's search,
# which PyTorch calls `benchmark`, is the same. (In the interpreter the times are the interpreter's. They rank nothing.)

# %%
from pmpp.kernels.convolution_layer.find import find

ranking = find(small, banks, padding=2)
for one in sorted(ranking.candidates, key=lambda one: WAYS.index(one.algorithm)):
    print(f"{one.algorithm:9}", one.note or f"workspace {one.workspace:9,} bytes, error {one.error:.0e}")

# %% [markdown]
# The other is to *predict* from the shape. What does a way do for a layer? It launches kernels, reads and writes
# arrays, and makes steps of products, on the multiprocessor that has most of them. Such amounts can be counted without
# running anything. Each has a price, in milliseconds for a unit, and the prices are fitted to measurements. The
# smallest sum is the choice. Here are Winograd's amounts:

# %%
from pmpp.kernels.convolution_layer import cost_model

show(cost_model.winograd)
show(cost_model.guess)

# %%
layer = DESIGN[2]
prices = cost_model.prices()["winograd"]
print(layer)
for name, amount in cost_model.winograd(layer).items():
    print(f"   {name:15} {amount:8.4f} units at {prices[name]:7.4f} ms: {amount * prices[name]:.4f} ms")
guessed = dispatch.expected_times(layer)
print("all ways:", ", ".join(f"{name} {ms:.3f} ms" for name, ms in guessed.items()))
print("measured:", ", ".join(f"{name} {row.ms[name]:.3f} ms" for row in design[2:3] for name in guessed))

# %% [markdown]
# Is that good enough? It was fitted to the layers of the map and to random ones. Here it is judged on others: the
# layers of ResNet-50, and forty more random layers, with strides, groups and odd sizes. A choice counts as good if it
# takes at most 10 % longer than the best. Then all 53 layers, one after the other, with each way and with the choice.

# %%
for name in ("resnet50", "judge"):
    rows = rows_of(name)
    times = {row.layer: network.get(row.layer, 1) for row in rows}
    found = np.repeat(measured.losses(rows), list(times.values())) if rows else np.array([])
    if len(found):
        print(f"{name:9}{len(found):3} layers: within 10 % of the best on {np.mean(found <= 1.1):.0%},", end=" ")
        print(f"{found.mean():.3f} times the best time on average, {found.max():.2f} at most")

# %%
rows = rows_of("resnet50")
for name in COLOURS if rows else ():
    ran = {row.layer: row.ms[name] for row in rows if name in row.ms}
    whole = sum(ms * network[layer] for layer, ms in ran.items())
    few = sum(network[layer] for layer in ran)
    print(f"{name:9} {whole:7.2f} ms" if few == 53 else f"{name:9} can do {few} of 53 layers")
if rows:
    best = [row.ours[row.best] * network[row.layer] for row in rows]
    chosen = sum(loss * ms for loss, ms in zip(measured.losses(rows), best, strict=True))
    least = sum(roofline.bound(row.layer.cost, ceilings).seconds * network[row.layer] for row in rows)
    print(f"chosen by the prediction {chosen:.2f} ms, the best of ours each time {sum(best):.2f} ms", end="")
    print(f"; by the definition's multiplications at least {least * 1e3:.2f} ms")

# %% [markdown]
# The prediction is near the best on most layers, and far off on a few. A search wants the kernels and some seconds, a
# prediction only a shape. A program that runs a network many times searches. One that sees a layer once predicts. And
# where memory is short, both skip what wants too much: `workspace_limit=` is in bytes, and with 0 there is still the
# direct way, which never wants any.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter, with every access checked, and says what it found. The answers are at the
# end, folded away.
#
# ### 1. Four filters at a time

# %%
exercise("direct/filters")


# %%
@cuda.jit
def filters_of_four(x, w, out):
    pass  # your code


check("direct/filters", filters_of_four)

# %% [markdown]
# ### 2. The columns

# %%
exercise("im2col/columns")


# %%
@cuda.jit
def columns_of(x, columns):
    pass  # your code


check("im2col/columns", columns_of)

# %% [markdown]
# ### 3. The way back
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
# ### 4. A row by implicit GEMM

# %%
exercise("implicit/row")

# %%
from pmpp.kernels.convolution_layer.implicit_exercises import ZERO, T


@cuda.jit
def gathered(x, w, padding, out):
    f, q = cuda.blockIdx.y * T + cuda.threadIdx.y, cuda.blockIdx.x * T + cuda.threadIdx.x
    total = ZERO  # your sum
    if f < out.shape[0] and q < out.shape[1]:
        out[f, q] = total


check("implicit/row", gathered)

# %% [markdown]
# ### 5. Two outputs, four multiplications

# %%
exercise("winograd/row")


# %%
@cuda.jit
def row(x, u, out):
    pass  # your code


check("winograd/row", row)

# %% [markdown]
# ### 6. The weights, transformed

# %%
exercise("winograd/weights")


# %%
@cuda.jit
def weights(w, u):
    pass  # your code


check("winograd/weights", weights)

# %% [markdown]
# ### More, without a check
#
# - Winograd's way takes m + R - 1 points for m outputs and a window of R. How many multiplications an output takes
#   F(4 x 4, 5 x 5)? And how many points is that in a row: which other F(m x m, R x R) needs the same, and so the same
#   transform of the image?
# - `refuses` of Winograd's room sends depthwise layers elsewhere. Count multiplications and bytes of a depthwise layer
#   of 3 x 3: what would be saved, and what is the bound?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.convolution_layer import direct_exercises as on_direct

show(on_direct.filters_answer)
assert check("direct/filters", on_direct.filters_answer)

# %% [markdown]
# *Filters.* The load of x stands outside of the loop over the filters. That is the first half of `add_tap`. The other
# half are several pixels, so that the weights are loaded less often, too.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.convolution_layer import im2col_exercises as on_im2col

show(on_im2col.columns_answer)
assert check("im2col/columns", on_im2col.columns_answer)

# %% [markdown]
# *Columns.* What is outside of the image is written like everything else. Otherwise the product would meet whatever the
# workspace held before.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(on_im2col.back_answer)
assert check("im2col/back", on_im2col.back_answer)

# %% [markdown]
# *Back.* The thread owns the result and gathers, instead of owning a column and scattering. So no two threads add to
# one place, and no atomics are needed. (Turned round once more, it is a convolution with the filters turned by 180
# degrees.)

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.convolution_layer import implicit_exercises as on_implicit

show(on_implicit.row_answer)
assert check("implicit/row", on_implicit.row_answer)

# %% [markdown]
# *Row by implicit GEMM.* It is `tiled` of chapter 12. One load has been replaced, and its guard looks at both ends of
# the row.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.convolution_layer import winograd_exercises as on_winograd

show(on_winograd.row_answer)
assert check("winograd/row", on_winograd.row_answer)

# %% [markdown]
# *Two outputs.* Four products, one with each of `u[0]` to `u[3]`. The two in the middle serve both outputs: that is
# where the saving is.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(on_winograd.weights_answer)
assert check("winograd/weights", on_winograd.weights_answer)

# %% [markdown]
# *Weights.* One dimension after the other. Each of the 16 planes is written by neighbouring threads side by side, as
# the matrix products want to read it.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
for m, r in ((4, 5), (6, 3), (2, 7)):
    points = m + r - 1
    print(f"F({m} x {m}, {r} x {r}): {points} points, {points**2 / m**2:.2f} multiplications instead of {r * r}")
alone = Layer(32, 144, 56, 56, 144, 3, 3, padding=(1, 1), groups=144)
print(f"{alone}: {alone.cost.intensity:.2f} FLOP/byte, the ridge is at {ceilings.ridge:.0f}")

# %% [markdown]
# *Other windows.* F(4 x 4, 5 x 5), F(6 x 6, 3 x 3) and F(2 x 2, 7 x 7) have eight points a row each. The transform of
# the image depends on the points alone, so one kernel would serve all three. But eight points round worse than six.
#
# *Depthwise.* It is far to the left of the ridge. Multiplications cost nothing there, and Winograd's arrays are more
# bytes.
#
# ## What to take along
#
# - A convolution layer is a matrix product in disguise, and usually bound by arithmetic. Its three kinds of reuse are
#   filters, places and channels.
# - im2col shows the disguise and pays for it in memory. Implicit GEMM computes the same product, with a way to fetch
#   instead of a matrix.
# - To beat the roof, do less. Winograd and FFT know a polynomial by its values, and pay in bytes, workspace and
#   rounding.
# - No way is the best for all layers. 1 x 1, 3 x 3, large windows, few channels: each has its own. A library is fast
#   because it has several and knows when to take which.
# - Whoever compares two programs bit by bit should know which way each has taken.
#
# To read on: K. Chellapilla, S. Puri and P. Simard (2006) for im2col; S. Chetlur et al., *cuDNN: efficient primitives
# for deep learning* (2014) for implicit GEMM and choosing; A. Lavin and S. Gray, *Fast algorithms for convolutional
# neural networks* (2016); B. Barabasz et al. (2020) on its errors; M. Mathieu, M. Henaff and Y. LeCun (2014) for FFT.
