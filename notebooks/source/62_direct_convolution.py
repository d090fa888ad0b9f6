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
# # 62. Direct convolution
#
# *Seven loops, padding, stride, dilation, groups, the bound of a network, sums in registers, a window that slides. Read
# chapters [12](12_matmul.ipynb) and [24](24_convolution.ipynb) before. 65 minutes. PMPP 4e: chapter 7, sections 16.2
# and 16.3; 5e: chapters 7 and 19. The code is
# [pmpp/kernels/convolution_layer/direct.py](../pmpp/kernels/convolution_layer/direct.py).*
#
# A network that looks at pictures does nearly all of its arithmetic in one formula: the *convolution layer*. There are
# five well-known ways to compute it. All give the same numbers, up to rounding. They differ in how many
# multiplications they do, in how many bytes they move, in how much memory they want besides the result, and in how
# large the rounding is.
#
# Six chapters belong together. This one says what a layer is and what it must cost, and computes it in the plain way.
# Then come [im2col](64_im2col.ipynb), [implicit GEMM](66_implicit_gemm.ipynb), [Winograd's
# algorithm](68_winograd.ipynb) and [the FFT](70_convolution_by_fft.ipynb). The last of the six compares all five, and
# [chooses](72_choosing_a_convolution.ipynb).
#
# **The question of this chapter: how fast can a layer be if every multiplication of its definition is done, one after
# the other?**
#
# It builds on the tiles of [chapter 12](12_matmul.ipynb), and on the convolution of one image with one mask in [chapter
# 24](24_convolution.ipynb).

# %%
import functools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from pmpp import cuda, lab, predict
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.results import compared, recorded, traffic
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import definition, direct, direct_tiles
from pmpp.kernels.convolution_layer import direct_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, POINTWISE, sums

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
SHADES = ListedColormap(["white", palette.LIGHT, palette.OWN])  # padding, image, window


# %%
def window(ax, layer, title):
    """The image with its padding, the window at its first place, and a dot wherever its first corner goes."""
    (a, b), (u, v), (d, e) = layer.padding, layer.stride, layer.dilation
    cells = np.pad(np.ones((layer.h, layer.w)), ((a, a), (b, b)))
    cells[: layer.r * d : d, : layer.s * e : e] = 2
    edges = np.arange(cells.shape[1] + 1) - b - 0.5, np.arange(cells.shape[0] + 1) - a - 0.5
    ax.pcolormesh(*edges, cells, cmap=SHADES, vmin=0, vmax=2, edgecolors=palette.FAINT, linewidth=0.5)
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
    ax.pcolormesh(joined, cmap="Purples", vmin=0, vmax=1.5, edgecolors=palette.EDGE, linewidth=0.5)
    ax.set(title=f"groups={groups}", aspect="equal", xlabel="channel", xticks=[], yticks=[])
    ax.invert_yaxis()
label = axes[0].set_ylabel("filter")

# %% [markdown]
# **Predict, then run.** The first layer of the network ResNet-50 has images of 224 x 224, filters of 7 x 7, stride 2
# and padding 3. How many rows has its output?

# %%
guess = None  # rows

first = DESIGN[0]
predict(guess, first.p, unit="rows")

# %%
print(f"{first}: {first.p} rows, {first.q} columns")
print(f"(224 + 2 * 3 - 7) // 2 + 1 = {(224 + 2 * 3 - 7) // 2 + 1}")

# %% [markdown]
# With its padding an image has 230 rows. The window's upper edge can stand at rows 0, 2, 4 and so on up to 222, since
# below that it would hang over. (Here a layer is written in one line, and it will be so from now on: `n` images, `c`
# channels, `h` rows of an image, `k` filters, the window, and then stride `s`, padding `p`, dilation `d` and groups
# `g`, where they are not the usual ones. If an image is not square, its columns stand after its rows.)
#
# ## The bound: a network as data
#
# ResNet-50 (He et al., 2016) has 53 convolution layers, and is what convolution is measured by. Its list comes with the
# package. Every layer has a cost: 2 N K P Q C R S operations, since a multiply-add is two, and the bytes of image,
# weights and output, each moved once.
#
# **Predict, then run.** The first layer has K = 64 filters and C = 3 channels. How many million multiplications does it
# do for one photograph?

# %%
guess = None  # million multiplications

predict(guess, first.cost.flops / 2 / first.n / 1e6, unit="million multiplications")

# %%
network = definition.resnet50(images=32)
multiplications = sum(times * layer.cost.flops for layer, times in network.items()) / 2 / 32
print(f"{sum(network.values())} layers of {len(network)} shapes; {multiplications / 1e6:,.0f} million multiplications")
for kernel in (7, 3, 1):
    some = {layer: times for layer, times in network.items() if layer.r == kernel}
    share = sum(times * layer.cost.flops for layer, times in some.items()) / 2 / 32 / multiplications
    print(f"{kernel} x {kernel}: {sum(some.values()):2} layers, {share:4.0%} of the multiplications")

# %% [markdown]
# That is for one image, all layers together. The first layer is the only one with a window of 7 x 7, and has 3 % of
# the work. Half of all layers' work is in windows of 1 x 1, which only mix channels.
#
# Where do these layers lie on the roofline? To the right of the ridge arithmetic is the bound, to the left memory. How
# often is each number used? A number of x is used by K filters, in R S windows at most. A weight is used at N P Q
# places. An output takes part in C R S products. So the intensity is low where all numbers are used by few others.

# %%
ceilings = roofline.ceilings()
print(f"{ceilings.bandwidth / 1e12:.2f} TB/s, {ceilings.fma_f32 / 1e12:.1f} TFLOP/s: {ceilings.source}")
print(f"the ridge is at {ceilings.ridge:.1f} FLOP/byte")

# %% [markdown]
# **Predict, then run.** A layer has a window of 1 x 1, 64 channels and 64 filters, and images of 56 x 56. For 32 images
# its weights are few beside the numbers of x and of the output. What is its intensity? (Count the operations and the
# bytes for one pixel.)

# %%
guess = None  # FLOP/byte

predict(guess, POINTWISE.cost.intensity, unit="FLOP/byte")

# %% [markdown]
# A pixel takes 2 x 64 x 64 operations, and 64 numbers of 4 bytes go in and 64 come out. That is just above the ridge.
# It is a layer of ResNet-50, the one with the fewest uses of its numbers. Where are the others, with 32 photographs at
# once, and with a single one?

# %%
for images in (32, 1):
    layers = definition.resnet50(images)
    left = sum(times for layer, times in layers.items() if layer.cost.intensity < ceilings.ridge)
    least = sum(times * roofline.bound(layer.cost, ceilings).seconds for layer, times in layers.items())
    print(f"{images:2} images: {left} layers left of the ridge; at least {least * 1e3:.2f} ms for all 53")

# %%
figure, ax = chart(3.2)
looks = {n: (f"{n} x {n}", *look) for n, *look in zip((1, 3, 7), "osD", palette.COLOURS, strict=False)}
for images, face in ((32, True), (1, False)):
    for place, layer in enumerate(definition.resnet50(images)):
        name, marker, colour = looks[layer.r]
        left = place - 0.2 if face else place + 0.2  # side by side, so that none is hidden
        ax.plot(left, layer.cost.intensity, marker, color=colour, mfc=colour if face else "white", ms=6, zorder=3)
ax.axhline(ceilings.ridge, color=palette.INK)
ax.text(22, ceilings.ridge * 0.93, "the ridge: below it memory is the bound", ha="right", va="top", fontsize=9)
ax.set(yscale="log", ylim=(7, 900), xlabel="23 shapes of layers, in the order of the network", ylabel="FLOP/byte")
for name, marker, colour in looks.values():
    ax.plot([], [], marker, color=colour, label=name)
ax.plot([], [], "o", color=palette.NOTE, mfc="white", label="one image")
figure.legend(loc="outside right upper", title="32 images")
plt.setp(ax.yaxis, major_formatter="{x:g}")
figure

# %% [markdown]
# None lies below the line, in either case. With one image the later layers come down, as there are few pixels to share
# a weight: there the weights are most of the bytes. A convolution layer is like a large matrix product: each number is
# used many times, and a perfect kernel would be bound by arithmetic. (Layers whose sums are short are different. We
# meet them further down.)
#
# Keep one thing in mind about this bound. It counts the multiplications *of the definition*. Two of the five ways do
# fewer of them, and may lie above the roof.
#
# These seven layers go with us through the six chapters: six of ResNet-50's, from large images with few channels to
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
# The first counts. `lab.count` runs the kernels of a rung in the interpreter, on a machine with a GPU, too. We give it
# a toy layer, compare the result with float64, and add up what the hardware would have to do. `asked` are bytes in
# sectors of global memory that were asked for, and `wavefronts` the passes that loads from shared memory take, for each
# multiply-add of the definition, of a whole warp. A warp can do four multiply-adds in the time of one wavefront
# ([chapter 12](12_matmul.ipynb)): above 0.25 shared memory is slower than the arithmetic.

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
# The second remembers. Times are from a record: measured on a named GPU, in one run with cuDNN, NVIDIA's library for
# such layers, which PyTorch calls. It was allowed to try its own algorithms and to keep the fastest.
#
# ## The rungs
#
# How fast can the definition be, if nothing is fetched twice that need not be? The first layer of the network is our
# example, with its 3 channels, 64 filters of 7 x 7, and stride 2.
#
# **Predict, then run.** How often is a number of x used, on average, in the middle of an image?

# %%
guess = None  # times

predict(guess, first.k * first.r * first.s // (first.stride[0] * first.stride[1]), unit="times")

# %%
print(f"a number of x: {first.k} * {first.r} * {first.s} / 4 = {first.k * first.r * first.s / 4:.0f} times")
print(f"a weight: {first.n} * {first.p} * {first.q} = {first.n * first.p * first.q:,} times")

# %% [markdown]
# Each of the 64 filters uses it, at a quarter of the 49 places on average, since the window moves two pixels at a time.
# All rungs do the same multiplications. They differ in where the numbers come from.
#
# ### `naive`: a thread for each output
#
# The outer four loops become threads, the inner three stay.

# %%
show(direct.naive_kernel)

# %% [markdown]
# **Predict, then run.** Neighbouring threads have neighbouring q. For one multiply-add a warp loads 32 numbers of x and
# one weight, the same for all of its threads. How many bytes does it ask for, in whole sectors of 32 bytes?

# %%
guess = None  # bytes

found = counted(direct.naive).counters
sectors = found["global_load_sectors"] + found["global_store_sectors"]
predict(guess, 32 * sectors / (toy.cost.flops / 64), unit="bytes")

# %%
count(direct.naive)

# %% [markdown]
# The rows of the toy have 16 numbers, so a warp covers two rows: two sectors in each, and another one for the weight.
# That is 160 bytes. (Some products are missing, where the window hangs over the edge, and the results are stored.) A
# warp's multiply-add is 64 operations for some 160 bytes, far to the left of the ridge, and what it asks for twice a
# cache has to answer.
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
# The interpreter counts instructions of the source, and hardly sees a difference. The hardware does. This kernel also
# keeps its indices in 32 bits, and an index of 64 bits takes several instructions for each operation.
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
# **Predict, then run.** A thread does ten loads for 64 multiply-adds. All lanes of a warp have the same filters, and a
# vector of 16 bytes is served to sixteen lanes at a time ([chapter 12](12_matmul.ipynb)): two wavefronts. A load of one
# number of x is a single wavefront. How many wavefronts is that for a multiply-add?

# %%
guess = None  # wavefronts

wavefronts = counted(direct.register_tiled).counters["shared_load_wavefronts"]
predict(guess, wavefronts / (toy.cost.flops / 64), unit="wavefronts")

# %%
count(direct.tiled, direct.register_tiled)
recorded(direct, "7x7 c3 h224", only=("tiled", "register_tiled"))

# %% [markdown]
# Two vectors are four wavefronts, and the eight numbers of x are eight more: 12 for 64 multiply-adds, and so less than
# the quarter that could be afforded. The instructions fall, too, since ten loads and their indices now serve 64
# multiply-adds.
#
# ### Exercise: four filters at a time
#
# Now take the first half of this step yourself, without shared memory. `check` runs your kernel in the interpreter,
# with every access checked, and says what it found. The answers to all exercises are at the end, folded away.

# %%
exercise("direct/filters")


# %%
@cuda.jit
def filters_of_four(x, w, out):
    pass  # your code


check("direct/filters", filters_of_four)

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
show(direct_tiles.segment)

# %% [markdown]
# With stride 2, neighbouring outputs lie two pixels apart. There the patch is stored with the even columns first and
# then the odd ones. Even places of the window see even columns, side by side, odd places see odd ones, and each half
# slides as before.
#
# A thread makes two such pieces of four outputs, for eight filters: 64 sums as before. To see what it loads, the toy
# will not do: its rows fill half of a tile of 32 columns. We count a part of the first layer.

# %%
part = Layer(1, 3, 32, 64, 64, 7, 7, (2, 2), (3, 3))
part_x = rng.standard_normal((part.n, part.c, part.h, part.w), dtype=np.float32)
part_w = rng.standard_normal((part.k, part.c, part.r, part.s), dtype=np.float32)
part_sums = sums(part_x, part_w, part)
print(f"{part}: an output of {part.p} x {part.q}")


# %%
@functools.cache
def counted_part(rung):
    """A part of the first layer by a rung: its counters and its result."""
    return lab.count(rung, part_x, part_w, None, part.stride, part.padding)


def products_per_load(rung):
    """How many multiply-adds of a warp there are for each of its loads from shared memory."""
    return part.cost.flops / 64 / counted_part(rung).counters["shared_load_requests"]


print(f"register_tiled: {products_per_load(direct.register_tiled):.1f} multiply-adds for each load")

# %% [markdown]
# These are the 64 multiply-adds for ten loads. With `sliding`, a row of the window of 7 x 7 has four even places and
# three odd ones.
#
# **Predict, then run.** For such a row, `sliding` loads two vectors of weights for each place. For each of its two
# pieces it loads two vectors of x for the even places, and two for the odd ones. How many multiply-adds is that for
# each load?

# %%
guess = None  # multiply-adds

predict(guess, products_per_load(direct.sliding), unit="multiply-adds")

# %%
for rung in (direct.register_tiled, direct.sliding):
    error = abs(counted_part(rung).result - part_sums).max()
    print(f"{rung.name:15}{products_per_load(rung):5.1f} multiply-adds a load; for a multiply-add:")
    print(f"{'':15}{traffic(counted_part(rung), part.cost.flops)}; error {error:.0e}")

# %% [markdown]
# A row is 7 x 64 multiply-adds for 14 vectors of weights and 8 of x. So a load serves three times as many as before.
# The wavefronts tell more. With stride 2 the lanes of `register_tiled` use every second bank, so a load of x takes two
# wavefronts. That makes more than 0.25 for a multiply-add, so there shared memory is slower than the arithmetic.
# `sliding` has less than 0.25.
#
# **Predict, then run.** Then how many times as fast as `register_tiled` is `sliding` on the first layer, as measured?

# %%
guess = None  # times as fast


def faster():
    entries = record.load(room="direct").design("direct", "7x7 c3 h224")
    times = {entry.contender: entry.seconds for entry in entries}
    return times["register_tiled"] / times["sliding"]


predict(guess, faster, unit="times as fast", within=0.25)

# %%
recorded(direct, "7x7 c3 h224", "3x3 c64 h56", "3x3 c256 h14", only=("register_tiled", "sliding"))

# %% [markdown]
# It is less than the loads promise, and about what the wavefronts do. They fall by more than half, but below 0.25 the
# arithmetic is the slower of the two: from 0.312 to 0.25 is a factor of 1.25. Both rungs stay far from the bound.
# Staging takes its part: the patch is few loads, but for each of them a thread has to work out where it is in x and
# where in shared memory.
#
# For the first layer this way does well: what neighbouring windows share is nearly all that can be shared. With 256
# channels on images of 14 x 14 there is more, and the next ways will find it.
#
# ### When memory is the bound
#
# The channels decide which side of the ridge a layer is on. Take 32 images of 56 x 56, 64 filters of 3 x 3 with padding
# 1, and C channels. A pixel takes 2 x 64 x 9 x C operations. C numbers of 4 bytes go in for it, and 64 come out. The
# weights are few.
#
# **Predict, then run.** What is the smallest C for which arithmetic is the bound, and not memory? (The ridge was
# printed at the beginning of the chapter.)

# %%
guess = None  # channels


def least(c):
    """The bound of the layer with that many channels."""
    return roofline.bound(Layer(32, c, 56, 56, 64, 3, 3, padding=(1, 1)).cost, ceilings)


predict(guess, next(c for c in range(1, 999) if least(c).side == "compute"), unit="channels")

# %%
print(f"{'sliding':>43}")
compared(direct, "few channels", "sliding", "torch.conv2d")


# %%
def by_channels():
    """Measured times over the number of channels, and the bounds of memory and of arithmetic."""
    kept, (figure, ax), c = record.load(room="direct"), chart(3.6), np.array([1, 2, 4, 8, 16, 32, 64])
    ax.plot(c, [1e6 * least(n).memory_seconds for n in c], ":", color=palette.INK, label="memory: at least")
    ax.plot(c, [1e6 * least(n).compute_seconds for n in c], "-", color=palette.INK, label="arithmetic: at least")
    entries = [*kept.entries("direct", family="few channels"), *kept.design("direct", "3x3 c64 h56")]
    for name, look in (("sliding", {"marker": "o"}), ("torch.conv2d", {"marker": "s", "mfc": "none"})):
        found = [(each.sizes["channels"], 1e3 * each.median_ms) for each in entries if each.contender == name]
        ax.plot(*zip(*found, strict=True), color=palette.COLOURS[0], linestyle="", **look, label=name)
    ax.set(xscale="log", yscale="log", xlabel="channels, with 64 filters of 3 x 3", ylabel="time (us)", xticks=c)
    plt.setp((ax.xaxis, ax.yaxis), major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("direct"))
    return figure


# %%
plots.drawn(by_channels)

# %% [markdown]
# Both lines are bounds, and a layer takes at least the higher one. With one channel the bytes are the bound, nearly all
# of them the output's 64 channels. More channels hardly add bytes, and each adds as much arithmetic as the first. So
# from 4 channels on arithmetic is the bound, and with 64 it takes many times as long as the bytes. The measured times
# lie above both bounds. From 16 channels on they rise nearly as steeply as the arithmetic.
#
# ### `depthwise`: one filter per group
#
# If each channel has a filter of its own, there is no second filter to share x with, and 8 filters per thread would be
# 7 too many. There are only R S multiply-adds for each number of x, so memory is the bound again, and shared memory is
# a detour. A thread of the last rung makes four outputs in a column, and asks for all that they see at once. Its
# neighbours ask for nearly the same, and the first-level cache answers.

# %%
print(f"{'depthwise':>43}")
for other in ("sliding", "torch.conv2d"):
    compared(direct, "depthwise", "depthwise", other)

# %% [markdown]
# It gains two to four times against `sliding`, by doing less: nothing is staged, and no thread computes filters that a
# group does not have. (`g` in the line of a layer is the number of groups, here as many as channels.)
#
# A small layer has another need for such threads. A thread of `sliding` makes 64 outputs, and small images have too few
# of them for the lanes of the GPU. Here is what the model that chooses the tile expects, for LeNet-5's second layer.

# %%
small = Layer(64, 6, 14, 14, 16, 5, 5)
for name, style in (("8 filters a thread", direct.NEIGHBOURS), ("1 filter a thread", direct.SINGLE)):
    cycles = direct_tiles.time_of(small, style, direct_tiles.tile_of(small, style))
    print(f"{name:18} {cycles:9,.0f} cycles expected")

# %% [markdown]
# The last rung takes one filter for each thread where the model expects less than half the time.

# %%
print(f"{'depthwise':>43}")
for other in ("sliding", "torch.conv2d"):
    compared(direct, "small layers", "depthwise", other)

# %% [markdown]
# ### Exercise: a filter for each channel

# %%
exercise("direct/depthwise")


# %%
@cuda.jit
def filter_of_its_own(x, w, out):
    pass  # your code


check("direct/depthwise", filter_of_its_own)

# %% [markdown]
# ## All rungs
#
# The first layer of the network, with the bound and with cuDNN (`torch.conv2d`):

# %%
plots.drawn(plots.ladder, "direct", family="7x7 c3 h224")

# %%
plots.drawn(plots.roofline, "direct", family="7x7 c3 h224")

# %% [markdown]
# The whole ladder stands at one place of the axis, since all rungs do the same work. It lies to the right of the ridge:
# what is missing to the roof is arithmetic that waits for something else.
#
# ## What to take along
#
# - A convolution layer is a sum of C R S products for each of its N K P Q outputs. Each number is used many times, so
#   the bound is arithmetic, except where sums are short: in depthwise layers, or with a few channels under a small
#   window.
# - What neighbouring windows share is worth a patch in shared memory. What filters and neighbouring pixels share is
#   worth registers.
# - An index costs instructions, too. Whatever does not change inside a loop is worked out before it.
# - This way never wants memory besides the result. It does well with up to four channels, and is far from the bound
#   with many.
#
# ## Exercises
#
# Two more, to be worked out on paper or in a few lines of Python. `check` cannot see them.
#
# - A depthwise layer of 3 x 3 lies far to the left of the ridge. A layer of 64 channels, 64 filters and 56 x 56 pixels
#   is cut into groups. From how many channels per group on does it lie on the right of the ridge?
# - The patch of a tile of 8 x 32 outputs has a rim that belongs to neighbouring tiles, too. For a window of 3 x 3, of
#   7 x 7 and of 15 x 15 with stride 1, how many numbers does the patch have for each output?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.filters_answer)
assert check("direct/filters", solutions.filters_answer)

# %% [markdown]
# *Four filters at a time.* The load of x stands outside of the loop over the filters. That is the first half of
# `add_tap`. The other half are several pixels, so that the weights are loaded less often, too.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.depthwise_answer)
assert check("direct/depthwise", solutions.depthwise_answer)

# %% [markdown]
# *A filter for each channel.* There is no sum over channels. A thread reads nine elements of x for nine multiply-adds,
# and its neighbours read most of them again.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
for channels in (1, 2, 4, 8, 16, 32, 64):
    grouped = Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1), groups=64 // channels)
    side = "right" if grouped.cost.intensity > ceilings.ridge else "left"
    print(f"{channels:2} channels per group: {grouped.cost.intensity:6.2f} FLOP/byte, {side} of the ridge")
for r in (3, 7, 15):
    print(f"{r:2} x {r:2}: {(8 + r - 1) * (32 + r - 1) / (8 * 32):.2f} numbers of the patch for each output")

# %% [markdown]
# *Groups.* With few channels per group, few filters share a number of x, and an output is a short sum. The intensity
# grows with the channels of a group, until the weights and the arrays themselves are what counts.
#
# *Rim.* With a large window most of the patch is rim. It costs little time, since it is loaded once for many filters.
# But it fills the shared memory.
#
# Go on with [chapter 64](64_im2col.ipynb), which makes a matrix product of the layer.
