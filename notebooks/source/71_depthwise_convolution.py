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
# # 71. Depthwise and grouped convolution
#
# *A filter for each channel, layers bound by memory, windows that slide in registers, planes too small for a block,
# groups. Read chapters [46](46_pooling_and_activations.ipynb) and [62](62_direct_convolution.ipynb) before. 60 minutes.
# PMPP 4e: sections 7.4 and 16.3; 5e: chapter 19. The code is
# [pmpp/kernels/convolution_layer/depthwise.py](../pmpp/kernels/convolution_layer/depthwise.py).*
#
# In the layers of the last chapters every filter sees every channel. A *depthwise* layer has one filter for each
# channel, and the filter sees only that channel. Networks for phones are built of such layers: MobileNet has one in
# front of each 1 x 1 layer, EfficientNet and ConvNeXt have them with windows of 5 x 5 and 7 x 7. With 128 channels a
# depthwise layer does 1/128 of the multiplications of an ordinary one.
#
# **The question of this chapter: does it also take 1/128 of the time?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.results import compared, recorded
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import depthwise as room
from pmpp.kernels.convolution_layer import depthwise_channels_last
from pmpp.kernels.convolution_layer import depthwise_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.direct_workloads import depthwise

ceilings = roofline.ceilings()
ordinary = Layer(32, 128, 56, 56, 128, 3, 3, padding=(1, 1))
for layer in (ordinary, depthwise(32, 128, 56)):
    print(f"{layer!s:38}{layer.cost.flops / 1e9:7.2f} GFLOP{layer.cost.bytes / 1e6:7.1f} MB", end="")
    print(f"{layer.cost.intensity:8.1f} FLOP a byte")

# %% [markdown]
# ## The bound
#
# The GFLOP differ by a factor of 128. The bytes hardly differ: both layers read the same images and write as many
# outputs, and only the filters are fewer. A kernel can do no better than the larger of two times: that of the
# arithmetic at its peak, and that of the bytes at the speed of the memory.
#
# **Predict, then run.** By these two bounds, how many times as long must the ordinary layer take at least?

# %%
guess = None  # times as long


def least(layer):
    """The time that no kernel by the definition can beat, in seconds."""
    return roofline.bound(layer.cost, ceilings).seconds


predict(guess, least(ordinary) / least(depthwise(32, 128, 56)), unit="times as long")

# %%
for layer in (ordinary, depthwise(32, 128, 56)):
    arithmetic, memory = layer.cost.flops / ceilings.fma_f32, layer.cost.bytes / ceilings.bandwidth
    print(f"{layer!s:38} arithmetic {arithmetic * 1e6:6.1f} us, memory {memory * 1e6:5.1f} us")

# %% [markdown]
# The ordinary layer is bound by arithmetic, and the depthwise one by memory. Fewer multiplications do not change the
# bound of the memory: both layers have it. In the figure both get more channels. The arithmetic of the ordinary layer
# grows with the square of their number, and the bytes of both with the number itself.


# %%
def by_channels():
    """The least times of both layers over the number of channels."""
    figure, ax = chart(3.2)
    counts = 2 ** np.arange(2, 11)
    pairs = [(Layer(32, c, 56, 56, c, 3, 3, padding=(1, 1)), depthwise(32, c, 56)) for c in map(int, counts)]
    for name, marker, place in (("ordinary, 3 x 3", "o-", 0), ("depthwise, 3 x 3", "s-", 1)):
        ax.plot(counts, [1e6 * least(pair[place]) for pair in pairs], marker, label=name)
    memory = [1e6 * pair[0].cost.bytes / ceilings.bandwidth for pair in pairs]
    ax.plot(counts, memory, "--", color=palette.INK, label="bytes of the ordinary one alone")
    ax.set(xscale="log", yscale="log", xlabel="channels", ylabel="least time (us)", xticks=counts, xticklabels=counts)
    ax.set_title("32 images of 56 x 56, by the ceilings of the GPU shown")
    ax.legend()
    return figure


by_channels()

# %% [markdown]
# With few channels both lie on the line of the bytes, and there is no difference. From about 8 channels on the
# ordinary layer leaves it. The depthwise layer stays on it: with $K$ channels it has $1/K$ of the operations, and takes
# the time of the bytes.
#
# Up to which window is memory the bound? An output takes a multiply-add for each element of its window, and with stride
# 1 eight bytes: an element read, an element written.
#
# **Predict, then run.** Windows of networks are odd. What is the smallest odd R for which arithmetic is the bound of a
# depthwise layer with a window of R x R?

# %%
guess = None  # rows of the window, R


def arithmetic_is_the_bound(r):
    cost = depthwise(32, 96, 56, 1, r).cost
    return cost.flops / ceilings.fma_f32 > cost.bytes / ceilings.bandwidth


predict(guess, next(r for r in range(1, 32, 2) if arithmetic_is_the_bound(r)), unit="rows")

# %%
for r in (3, 5, 7, 9, 11):
    cost = depthwise(32, 96, 56, 1, r).cost
    share = (cost.flops / ceilings.fma_f32) / (cost.bytes / ceilings.bandwidth)
    print(
        f"{r:2} x {r:<2} {cost.intensity:5.1f} FLOP a byte; the arithmetic takes {share:4.0%} of the time of the bytes"
    )

# %% [markdown]
# For 3 x 3 the arithmetic is a small part of the time. For the 7 x 7 of ConvNeXt it is most of it, and the loads,
# addresses and tests of a kernel must fit into what is left. So there are two ways to miss the bound. A kernel may
# move too many bytes, or spend too many instructions beside the multiply-adds.
#
# ## Counting
#
# The caches hold an image easily. What goes wrong in a depthwise layer lies between the caches and the registers, and
# there the interpreter counts. Here is a layer for it, and what is counted for each output: bytes in sectors that loads
# and stores ask for, and how many loads a thread makes, from global and from shared memory.

# %%
toy = depthwise(2, 64, 32)
rng = np.random.default_rng(71)


def arrays(layer):
    """Images and filters for a layer, and the options of a call."""
    x = rng.standard_normal((layer.n, layer.c, layer.h, layer.w), dtype=np.float32)
    w = rng.standard_normal((layer.k, layer.c // layer.groups, layer.r, layer.s), dtype=np.float32)
    return x, w, None, layer.stride, layer.padding, layer.dilation, layer.groups


toy_arrays = arrays(toy)
print(f"{toy}: {np.prod(toy.shape):,} outputs, at least {toy.cost.bytes / np.prod(toy.shape):.2f} bytes for each")


# %%
def count(function, given=toy_arrays, **options):
    """Bytes loaded and stored, and loads from global and from shared memory: a thread's, for each output."""
    counted = lab.count(function, *given, **options)
    found, outputs = counted.counters, counted.result.size
    sectors = [found[f"global_{what}_sectors"] / outputs for what in ("load", "store")]
    loads = [found[f"{kind}_load_requests"] / outputs for kind in ("global", "shared")]
    return [32 * number for number in (*sectors, *loads)]


def report(*names, given=toy_arrays, **options):
    """Print the counts of rungs, or of strips or packs that `options` describe."""
    for name in names:
        chosen = room.by_packs if "planes" in options else room.by_strips
        loaded, stored, loads, shared = count(chosen if options else getattr(room, name), given, **options)
        print(f"{name:11}{loaded:6.1f} bytes loaded{stored:5.1f} stored;", end="")
        print(f"{loads:6.2f} loads and {shared:5.2f} from shared memory")


# %% [markdown]
# ## Rung 1: `naive`
#
# [Chapter 62](62_direct_convolution.ipynb) began with a thread for each output, which fetches both numbers of each
# product. It computes depthwise layers, too.
#
# **Predict, then run.** An output should have 4 bytes loaded. How many bytes does `naive` ask the first cache for, for
# each output, in sectors of 32 bytes?

# %%
guess = None  # bytes for each output

predict(guess, count(room.naive)[0], unit="bytes for each output")

# %%
report("naive")

# %% [markdown]
# A window has nine elements of 4 bytes, so 36 would be expected. It is more because the weight is fetched again for
# each product. The whole warp reads one number, but it is a sector all the same: 32 bytes for 32 outputs, nine times.
# Rows outside of the image are not loaded, so the sum is a little less than 45. Wider images need more: there the 32
# neighbours of a warp may begin one element beside a sector, and then they lie in five sectors, not in four.
#
# Nearly all of this comes out of the first cache, so the memory sees little of it. What remains are 18 loads for nine
# multiply-adds. How many may there be? An H200 has 132 multiprocessors. In a cycle, at about 1.7 GHz, each of them
# issues four instructions, each for a warp, and carries out one load of 4 bytes a lane.

# %%
cycles = 132 * 1.7e9 * 32  # in a second: lanes that have a load carried out
outputs = ceilings.bandwidth / 8  # in a second, at the speed of the memory, with stride 1
print(f"for each output: {cycles / outputs:.1f} loads, and {4 * cycles / outputs:.0f} instructions")

# %% [markdown]
# That is the budget, if the memory is to be the bound. `naive` exceeds it by its loads alone.
#
# ## Rung 2: `tiled`
#
# The remedy of [chapter 24](24_convolution.ipynb) is a tile in shared memory, with its halo. A block has 8 x 32 outputs
# and stages 10 x 34 elements. Each is loaded from global memory once, instead of nine times.

# %%
show(room.tiled_kernel)

# %%
report("naive", "tiled")

# %% [markdown]
# The bytes have gone down. The loads have moved: there are still two for each product, one from shared memory and one
# of the weight, and those that fill the tile come on top. In pooling, [chapter 46](46_pooling_and_activations.ipynb),
# the same step made things slower, because first cache and shared memory are the same memory. What we want is fewer
# loads.
#
# ## Rung 3: `sliding`
#
# An element of a column belongs to three windows, one below the other. A thread that computes all three has it in a
# register. So a thread computes a strip, several outputs one below the other. It keeps the rows that its window covers,
# and for the next row of taps it needs only one row more.
#
# **Predict, then run.** A strip has eight outputs, and the window is 3 x 3. How many elements of x does the thread load
# for each output?

# %%
guess = None  # elements for each output

strip = room.form_of(room.arguments(*arrays(depthwise(32, 256, 32))), 1, 1)._replace(rows=8)
predict(guess, strip.reach.rows * strip.reach.columns / strip.rows, unit="elements for each output")

# %% [markdown]
# Registers have no addresses: the compiler must know which register is meant wherever one is used. So the kernel is
# made for one window, stride and dilation, and all loops are unrolled. `window_for` makes the part that adds a channel
# to a thread's sums.

# %%
show(room.window_for)

# %% [markdown]
# Look at two things. An address that lies outside of the image is moved inside, and what was loaded from there is
# replaced by a zero. So no load stands in a branch, and the compiler may send off all of them before the first product.
# And `up` and `down` say which rows are there already. With stride 1 each row of taps finds all but the last, from the
# second row of taps on. With stride 2 the second row of taps meets rows that no other has met, and the third finds all
# but the last.

# %%
report("naive", "tiled")
report("sliding", rows=8)

# %% [markdown]
# The strip's loads are those of x, which you have predicted, and nine weights for eight outputs.
#
# `by_strips` is called like a rung, and told how long a strip is. The rung decides by itself: strips are long where
# there is enough to do.

# %%
show(room.rows_of)

# %%
for n in (1, 4, 32):
    for c, extent in ((32, 112), (512, 14)):
        form = room._form_of(depthwise(n, c, extent), 1, 1, True, True, 132)
        threads = int(room.strips_of(depthwise(n, c, extent), form).threads)
        print(f"{depthwise(n, c, extent)!s:34} {form.rows} outputs a thread, {threads:9,} threads", end="")
        print(f"; its bytes take {least(depthwise(n, c, extent)) * 1e6:5.1f} us")

# %% [markdown]
# An H200 has 132 multiprocessors, and the rule asks for 512 threads on each. One image has few outputs for them, and
# the smaller its planes, the shorter the strips: with 14 x 14 a thread computes one output, although it loads more for
# it. Multiprocessors without work would be the larger loss. The bytes of one image take less time than a launch does,
# so there the time is that of the launch and of a few waits for the memory, one after another. The toy would get short
# strips, too, so here we choose their length.
#
# ## Rung 4: `vectorised`
#
# Four outputs side by side share columns as those below one another share rows. And four elements are what a load can
# bring at once. A window of 3 x 3 needs six columns for four outputs: a vector, and one element on either side.
#
# **Predict, then run.** A thread computes four rows of four outputs. How many loads of x does it make for each output?

# %%
guess = None  # loads for each output

square = room.form_of(room.arguments(*arrays(depthwise(32, 256, 32))), 4, 1)._replace(rows=4)
predict(guess, square.reach.rows * square.loads / (square.rows * square.columns), unit="loads for each output")

# %%
report("naive", "tiled")
report("sliding", rows=8)
report("vectorised", rows=4, columns=4)

# %% [markdown]
# From eighteen loads to less than two, weights included. They are not all alike: a warp's load of vectors, or of every
# fourth element, spans four lines of the cache and takes the time of four. By time it is as if there were about five
# loads for each output, well within the budget. What must a thread hold for it? Rows of x that are in use, sums, and a
# row of taps:

# %%
for r in (3, 5, 7):
    form = room._form_of(depthwise(32, 96, 56, 1, r), 4, 1, True, True, 132)
    kept = form.rows * form.reach.columns, form.rows * form.columns, r
    print(f"{r} x {r}: {kept[0]:2} elements of x, {kept[1]} sums, {kept[2]} taps;", end=" ")
    print(f"{form.reach.rows * form.loads:2} loads of x, {r * r * form.rows * form.columns:3} multiply-adds")

# %% [markdown]
# A thread may have 128 registers here, so that 512 threads fit on a multiprocessor. The largest windows leave few of
# them for addresses. That is why windows of more than 7 x 7 stay with `tiled`.
#
# ### Exercise: strips
#
# Write the strip yourself, for a window of 3 x 3. `check` runs your kernel in the interpreter, with every access
# checked, and counts its loads. The answers are at the end, folded away.

# %%
exercise("depthwise/strips")


# %%
@cuda.jit
def strips(x, w, out):
    pass  # your code


check("depthwise/strips", strips)

# %% [markdown]
# ## Rung 5: `packed`
#
# The last layers of a network have planes of 14 x 14 and of 7 x 7. Their rows are short, and no multiple of four wide.
#
# **Predict, then run.** Planes of 7 x 7 lie one behind the other. What share of them begins at a multiple of 16 bytes,
# where a vector can be loaded?

# %%
guess = None  # percent

starts = 4 * 49 * np.arange(1024)  # where each plane begins, in bytes
predict(guess, 100 * np.mean(starts % 16 == 0), unit="percent")

# %% [markdown]
# One plane in four. But all planes together are one long array. So a block takes eight planes at a time, or a multiple
# of eight, and copies them to shared memory by vectors, wherever a row begins. Eight planes are whole sectors of 32
# bytes, too. The outputs go the same way back.

# %%
show(room.copy)
show(room.packs_kernel)

# %%
small_arrays = arrays(depthwise(8, 128, 7))
report("naive", "tiled", given=small_arrays)
report("sliding", given=small_arrays, rows=7)
report("packed", given=small_arrays, planes=40, rows=7)

# %% [markdown]
# A tile of 8 x 32 outputs is a bad fit for 7 x 7: it loads much, and most of its threads have no output. With strips,
# 32 lanes have columns of five planes, and what they load and store at a time is cut into short rows, each with sectors
# of its own. In `packed` all stores are whole sectors. Of the bytes loaded 4 are of x. The others are weights, nine for
# each strip, which the first cache has. Between the copies a thread has a strip of a column, as in `sliding`, and reads
# it from shared memory.
#
# ## Rung 6: `grouped`
#
# Depthwise is the extreme of *groups*. In general, channels and filters are divided into groups, and a filter sees the
# channels of its group. ResNeXt has groups of four channels and four filters. A *channel multiplier* of two is a group
# of one channel and two filters. Then what a thread has loaded serves several filters, and a thread computes up to
# four.

# %%
show(room.strips_kernel)

# %%
double_arrays = arrays(Layer(2, 32, 32, 32, 64, 3, 3, padding=(1, 1), groups=32))
report("naive", given=double_arrays)
report("vectorised", given=double_arrays, rows=2, columns=4)
report("grouped", given=double_arrays, rows=2, columns=4, filters=2)

# %% [markdown]
# With two filters a thread loads each element of x once for both: half as many loads of x, and about half the bytes.
# For each output the loads of weights stay as many.
#
# ### Exercise: groups

# %%
exercise("depthwise/groups")


# %%
@cuda.jit
def groups(x, w, out):
    pass  # your code


check("depthwise/groups", groups)

# %% [markdown]
# ## Bytes and loads of all ways
#
# Here are the bytes that each way asks for, and its loads, for the toy and for planes of 7 x 7. The line at the bytes
# is the least: every element of x and of the output once. The line at the loads is the budget from above.

# %%
WAYS = {
    "naive": (room.naive, {}),
    "tiled": (room.tiled, {}),
    "sliding, 8 rows": (room.by_strips, {"rows": 8}),
    "vectorised, 4 x 4": (room.by_strips, {"rows": 4, "columns": 4}),
    "sliding, 7 rows": (room.by_strips, {"rows": 7}),
    "packed, 7 rows": (room.by_packs, {"planes": 40, "rows": 7}),
}


# %%
def bars(axes, ways, given):
    """Bars of bytes and of loads for each output, by way."""
    found = [count(WAYS[way][0], given, **WAYS[way][1]) for way in ways]
    for ax, kinds, names in zip(axes, ((0, 1), (2, 3)), (("loaded", "stored"), ("global", "shared")), strict=True):
        one, other = ([row[kind] for row in found] for kind in kinds)
        ax.barh(ways, one, color=palette.COLOURS[0], label=names[0])
        ax.barh(ways, other, left=one, color=palette.COLOURS[1], hatch="//", label=names[1])
        ax.invert_yaxis()
    axes[0].axvline(8, color=palette.INK, linewidth=1.2, label="least")
    axes[1].axvline(cycles / outputs, color=palette.INK, linewidth=1.2, linestyle="--", label="budget")


# %%
_, axes = plt.subplots(2, 2, figsize=(7.2, 4.0), layout="constrained")
bars(axes[0], tuple(WAYS)[:4], toy_arrays)
bars(axes[1], ("naive", "sliding, 7 rows", "packed, 7 rows"), small_arrays)
for row, name in zip(axes, ("32 x 32", "7 x 7"), strict=True):
    row[0].set(title=f"{name}: bytes for each output")
    row[1].set(title=f"{name}: loads for each output", yticklabels=[])
for ax in axes[0]:
    ax.legend(loc="lower right", fontsize=8)

# %% [markdown]
# In the upper row a tile, strips and vectors all ask for less than half of the bytes of `naive`. The loads part them:
# the tile has more than `naive`, and strips and vectors are well below the budget. In the lower row vectors have no
# place, and copies of whole planes help. What is left above the least are rows that neighbouring strips load as well,
# sectors of which only an element is used, and weights. Most of that the first cache answers, so that the memory moves
# little more than the least.
#
# ## The time
#
# These are the recorded times of the design sizes, beside cuDNN (`torch.conv2d`):

# %%
recorded(room, "3x3 c32 h112", "3x3 c1024 h7", "7x7 c96 h56", "two filters a channel")

# %%
plots.drawn(plots.ladder, "depthwise", family="3x3 c32 h112")

# %%
plots.drawn(plots.ladder, "depthwise", family="7x7 c96 h56")

# %% [markdown]
# `tiled` gains hardly anything on `naive`: it has no fewer loads. Strips make the great step, vectors the next one, and
# both are ahead of cuDNN. The share of the roof is smaller for 7 x 7, where the multiply-adds alone take most of the
# time of the bytes. In planes of 7 x 7 `tiled` is far slower than `naive`, as the counts have shown, and `packed` gains
# a little on `vectorised`. With two filters a channel `grouped` is the fastest.
#
# The roofline shows which of the two bounds is near. All rungs have the same intensity, that of the definition: 3 x 3
# far to the left of the ridge.

# %%
plots.drawn(plots.roofline, "depthwise", family="3x3 c32 h112")

# %% [markdown]
# NumPy on the CPU computes the same layer by shifting the images, once for each tap:

# %%
plots.drawn(plots.cpu_gpu, "depthwise")

# %% [markdown]
# NumPy takes several thousand times as long as the kernel.
#
# And these are more layers of networks, for 32 images. Layers for one image and layers of groups follow, where the
# record has their times:

# %%
for family in ("networks", "one image", "groups"):
    compared(room, family, "grouped", "torch.conv2d")

# %% [markdown]
# ## Channels last
#
# Strips, vectors and packs were about where a window lies in its row. With the *channels last*, images as
# (N, H, W, C), the neighbours of an element are its other channels. Lanes take neighbouring channels of one place, and
# 128 bits are four of them wherever the window lies. The room is
# [depthwise_channels_last](../pmpp/kernels/convolution_layer/depthwise_channels_last.py).

# %%
show(depthwise_channels_last.vectorised_kernel)

# %% [markdown]
# A thread has four channels of four neighbouring places. A block keeps the weights of up to 128 channels in shared
# memory, and a load of four of them serves the four places.
#
# **Predict, then run.** Two images of 8 x 16 with 128 channels, 3 x 3. How many times as many requests to store does
# `output_each`, with a thread for each output, make as `vectorised`?

# %%
guess = None  # times as many

seen, windows = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 8, 16, 128), (128, 3, 3, 1)))
ways = {rung.name: lab.count(rung, seen, windows, None, 1, 1, 1, 128) for rung in depthwise_channels_last.LADDER}
stores = {name: count.counters["global_store_requests"] for name, count in ways.items()}
predict(guess, stores["output_each"] / stores["vectorised"], unit="times")

# %%
for name, count in ways.items():
    loads, unique = (count.counters[what] for what in ("global_load_sectors", "unique_load_sectors"))
    print(f"{name:12} {loads:7,} sectors loaded, {loads / unique:4.1f} times each; {stores[name]:5,} requests to store")

# %% [markdown]
# What no vector changes is how often an element is asked for: once for each of the nine taps. The caches answer most of
# these requests. The third rung, `sliding`, makes half as many: four places of a row need six columns, and a thread
# loads each of these once. Windows of 3, 5 or 7 columns have a kernel each, in which all loops are unrolled.

# %%
plots.drawn(plots.ladder, "depthwise_channels_last", family="3x3")

# %%
for family in ("3x3", "other layers"):
    compared(depthwise_channels_last, family, "sliding", "torch.conv2d")

# %% [markdown]
# With the channels last cuDNN is faster on every layer of this list but that of 7 x 7.
#
# ## What to take along
#
# - A depthwise layer has $1/K$ of the operations of an ordinary one, and nearly the same bytes. The time falls from
#   that of the arithmetic to that of the bytes, and no further.
# - Where memory is the bound, the caches and the instructions decide who reaches it. Count loads for each output, and
#   instructions for each output, and compare with what the machine can do in the time of eight bytes.
# - Neighbouring windows share elements. Outputs below one another share rows, outputs side by side share columns, and
#   filters of a group share all of it. Each sharing is a loop inside a thread, and costs registers.
# - Small planes are rows in one long array. Copy that by vectors, and look for rows afterwards.
# - You need not choose: `convolution_layer.convolution` takes these strips where groups are of at most eight channels
#   and eight filters. [Chapter 72](72_choosing_a_convolution.ipynb) is about how it chooses.
#
# To read on: A. Howard and others, *MobileNets* (2017); S. Xie and others, *Aggregated residual transformations for
# deep neural networks* (2017), on groups.
#
# ## Exercises
#
# Two more, on paper.
#
# - MobileNet puts a 1 x 1 layer behind each depthwise one. For 128 channels at 56 x 56 and 32 images, what is the least
#   time of both together, beside that of one ordinary layer of 3 x 3? What would be saved if the depthwise outputs
#   never went to memory?
# - With stride 2 a depthwise layer of 3 x 3 has a quarter of the outputs. By how much does its least time fall?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.strips_answer)
assert check("depthwise/strips", solutions.strips_answer)

# %% [markdown]
# *Strips.* The loop goes through the rows of x, not through the outputs. Row y meets output j by row y - j of the taps,
# so an element is multiplied with up to three taps of its column and added to three sums.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.groups_answer)
assert check("depthwise/groups", solutions.groups_answer)

# %% [markdown]
# *Groups.* The thread has the three sums of its group. An element of x is loaded once, in the loop over channels and
# taps, and the loop over the filters stands inside.

# %% jupyter={"source_hidden": true} tags=["answer"]
pointwise, deep = Layer(32, 128, 56, 56, 128, 1, 1), depthwise(32, 128, 56)
both, between = least(deep) + least(pointwise), 4 * np.prod(deep.shape) / ceilings.bandwidth
print(f"ordinary {least(ordinary) * 1e6:.0f} us; depthwise and 1 x 1 {both * 1e6:.0f} us, of which")
print(f"{between * 1e6:.0f} us are for what the first one writes; the second one reads that while it computes")
halved = least(depthwise(32, 128, 56, 2)) / least(deep)
print(f"with stride 2: {halved:.0%} of the time of stride 1")

# %% [markdown]
# *MobileNet.* The pair is several times as fast as the ordinary layer by these bounds, not a hundred times. A kernel
# that does both layers, and keeps the depthwise outputs in shared memory, neither writes nor reads them. It would be
# bound by arithmetic, and the bytes that are left would travel meanwhile: it saves most of the depthwise layer's time.
# (The 1 x 1 layer alone is bound by arithmetic, too. So its reading is no part of the sum.)
#
# *Stride 2.* The outputs are a quarter, but all of x is read. So it is five eighths of the bytes.
#
# Go on with [chapter 72](72_choosing_a_convolution.ipynb), where the five ways meet.
