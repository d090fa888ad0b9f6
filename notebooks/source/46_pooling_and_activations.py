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
# # 46. Pooling and activations
#
# *Windows, padding, ties, 32-bit indices, what a cache does unasked, wide loads, shuffles at edges, epilogues. Read
# chapters [24](24_convolution.ipynb) and [30](30_reduction.ipynb) before. 75 minutes. PMPP 4e: sections 16.1 and 16.2;
# 5e: chapter 19. The code is [pmpp/kernels/pooling/ladder.py](../pmpp/kernels/pooling/ladder.py),
# [pmpp/kernels/pooling/channels_last.py](../pmpp/kernels/pooling/channels_last.py) and
# [pmpp/kernels/activation/ladder.py](../pmpp/kernels/activation/ladder.py).*
#
# Between the layers of a network that multiply stand layers that hardly compute. *Pooling* makes one number of each
# small window of an image, the largest or the mean. An *activation* changes every number by itself. And yet they take a
# good part of the time of a convolutional network, because each of them reads and writes everything once more.
#
# **The questions of this chapter: how near does such a layer come to the time that its bytes need? And when can its
# bytes be saved altogether?**

# %%
import functools

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import activation, pooling
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
print(device.describe().splitlines()[0])

# %%
grey = data.photograph().mean(axis=2).astype(np.float32)[:, :512]
photo = grey.reshape(1, 1, *grey.shape)  # images, channels, rows, columns
pictures = {
    "x": photo,
    "max 8x8": pooling.reference(photo, "max", 8),
    "average 8x8": pooling.reference(photo, "average", 8),
}
figure, axes = plt.subplots(1, 3, figsize=(8, 3.2), layout="constrained")
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture[0, 0], cmap="gray")
    ax.set_title(f"{title}: {picture.shape[2]} x {picture.shape[3]}")
    ax.axis("off")

# %% [markdown]
# The mean blurs. The maximum keeps whatever is brightest, and does not care where in the window it stood. That is what
# a network wants from it: a feature that moves by a pixel is still the same feature.
#
# ## The bound of pooling
#
# Our case is an early layer of a large network: 256 images, 64 channels, 112 x 112 pixels. Windows of 2 x 2 lie side by
# side, the *stride* is 2. Every element is needed once, and there is one result for four.

# %%
ceilings = roofline.ceilings("pooling")
costs = {"2x2": pooling.cost(256 * 64, 112, 112, 2), "3x3 s2 p1": pooling.cost(256 * 64, 112, 112, 3, 2, 1)}


def bound(name):
    """Print the least bytes for a window, and the time that the memory needs for them."""
    cost, microseconds = costs[name], costs[name].bytes / ceilings.bandwidth * 1e6
    print(f"{name:10} {cost.intensity:.2f} FLOP per byte, {cost.bytes / 1e6:.0f} MB: at least {microseconds:.0f} us")


bound("2x2")
print(f"with {ceilings.bandwidth / 1e12:.2f} TB/s ({ceilings.source})")

# %% [markdown]
# Now take windows of 3 x 3, also with stride 2, and a border of one element (*padding*) so that there are as many
# results as before. These windows overlap: an element belongs to up to four of them.
#
# **Predict, then run.** How many times as long is the bound for windows of 3 x 3 as for those of 2 x 2?

# %%
guess = None  # times as long

predict(guess, costs["3x3 s2 p1"].bytes / costs["2x2"].bytes, within=0.05)

# %%
for name in costs:
    bound(name)

# %% [markdown]
# It is the same. The bound counts each element of the input once, however many windows contain it. Far below one FLOP
# per byte, both lie on the slope of any roofline.
#
# Times in this chapter come from a record of a named GPU, checked and repeated, with PyTorch in the same run.


# %%
@functools.cache
def kept():
    """The record, which is read once. Raises RecordError if there is none."""
    return record.load()


def measured(room, family, *names):
    """Print recorded times of a family at the design size, of the library and of the rungs that are named."""
    try:
        store = kept()
        for entry in store.design(room, family):
            if entry.contender in names or entry.kind == "library":
                share = entry.bytes / entry.seconds / store.ceilings(room).bandwidth
                print(f"{family:16}{entry.contender:28}{entry.median_ms:8.3f} ms{share:7.0%} of the roof")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


def seconds(room, family, name):
    """The recorded time of a rung at the design size."""
    return next(entry.seconds for entry in kept().design(room, family) if entry.contender == name)


def say(text, ratio):
    """Print a ratio of recorded times, where they are known."""
    try:
        print(text.format(ratio()))
    except record.RecordError as missing:
        print("There are no times to show:", missing)


# %%
measured("pooling", "max 2x2")
measured("pooling", "max 3x3")

# %% [markdown]
# PyTorch's kernel always stores the index of each maximum, in 64 bits, since training needs it. That is 8 bytes more
# for each result. It explains a part of the distance, and not the most of it.
#
# ## The reference, and what it settles
#
# A definition has corners, and most bugs in pooling live there. This room takes PyTorch's.

# %%
show(pooling.reference_with_indices)

# %% [markdown]
# - *Padding* lies around the input. It never wins a maximum. A mean counts it as zeros, or does not count it at all.
# - In *ceil mode* a last window may hang over the edge, if it begins inside the input or in the padding on the left.
# - Of equal elements the *first* is the one that is reported. A NaN beats everything, so that it is not lost.
#
# **Predict, then run.** An image of 3 x 3 is all ones. We take means over windows of 2 x 2, stride 2, padding 1, so
# there are four. What are they, row by row, if the padding counts?

# %%
guess = [None, None, None, None]  # the four means

ones = np.ones((1, 1, 3, 3), np.float32)
predict(guess, pooling.reference(ones, "average", 2, 2, 1, False, True).reshape(-1), exact=True)

# %%
for counted in (True, False):
    print(f"count_include_pad={counted!s:6}", pooling.reference(ones, "average", 2, 2, 1, False, counted).reshape(-1))

# %% [markdown]
# With padding counted, the edges of every image turn darker. Whoever blurs a picture wants the second line.
#
# ## The first rung, `naive`: one thread for each result
#
# `i` counts through all results of all planes. A division takes a row out of it, another the plane.

# %%
show(pooling.naive_kernel)

# %%
show(pooling.span)
show(pooling.walk)

# %% [markdown]
# We count on small maps.


# %%
def reports_of(rung, *arguments, **options):
    """What the interpreter saw of the last kernel that a rung launched."""
    return lab.count(rung, *arguments, trace=True, **options).reports[-1]


maps = np.random.default_rng(0).standard_normal((2, 4, 32, 64), dtype=np.float32)
print(f"maps: {maps.shape}, {maps.nbytes // 32:,} sectors of 32 bytes")

# %% [markdown]
# The lanes of a warp make neighbouring results, so their windows lie two columns apart. `walk` reads the first element
# of a window twice: once to begin with, and once in its loop.
#
# **Predict, then run.** For windows of 2 x 2, how many sectors do all loads of `naive` touch, as a multiple of the
# sectors of *maps*? A sector counts once for each load of a warp that touches it.

# %%
guess = None  # times the sectors of maps

naive = reports_of(pooling.naive, maps, "max", 2)
predict(guess, naive.counters["global_load_sectors"] / (maps.nbytes // 32), unit="times the sectors of maps")

# %%
sectors, requests = (naive.counters[f"global_load_{what}"] for what in ("sectors", "requests"))
print(f"{sectors:,} sectors by {requests} loads of warps: {sectors / requests:.0f} sectors a load")
plots.access(naive, "x", kind="load")

# %% [markdown]
# A load has a stride of two. It touches eight sectors and takes every second element of them. The other half is what
# the same thread asks for next, so each sector is asked for twice, and half of them a third time, by the load that
# `walk` begins with. But from the second time on the sectors lie in the L1 cache. The traffic to device memory is
# right. Is the time right, too?

# %%
measured("pooling", "max 2x2", "naive")

# %% [markdown]
# ## The second rung, `narrow`: cheaper indices
#
# A GPU has no instruction for dividing integers. The compiler writes out some twenty instructions for 32 bits, and
# several times as many for 64 bits. `naive` divides five times, by `//` and `%`, and in 64 bits, since that is what
# Numba makes of `cuda.grid(1)` and of a size. The compiler is clever enough to test first whether 32 bits would do. The
# tests remain, and so does the care for negative numbers, which Python rounds downwards. All of that is for a window of
# four elements.

# %%
show(pooling.narrow_kernel)

# %% [markdown]
# The number of a result fits in 32 bits (if it does not, the rung falls back), and it is unsigned, so that nothing is
# negative. A remainder is what is left when the product is taken away. Two divisions are left.

# %%
measured("pooling", "max 2x2", "naive", "narrow")

# %% [markdown]
# It helps, and that it helps says what the kernel is bound by: instructions, not bytes.
#
# ### Exercise: a mean at the edges
#
# Before we go on, write a kernel of this kind yourself: windows with stride 1, of which those at an edge have fewer
# elements. `check` runs your kernel on awkward sizes, watches every access, and tells you what it saw. Our answer is at
# the end of the chapter, as for all exercises.

# %%
exercise("pooling/edges")


# %%
@cuda.jit
def edges(x, out):
    pass  # your code


check("pooling/edges", edges)

# %% [markdown]
# ## The third rung, `shared`: does it pay?
#
# With 3 x 3 windows and stride 2, nine loads fetch four new elements. The textbook's answer is a tile in shared memory
# with a halo (PMPP 7.4): a block loads the inputs of its windows, each once, waits, and reads the windows from there.

# %%
show(pooling.shared_kernel)

# %%
print("            global: loads  sectors   shared: loads  wavefronts")
for rung in (pooling.narrow, pooling.shared):
    count = reports_of(rung, maps, "max", 3, 2, 1).counters
    device_memory = f"{count['global_load_requests']:13}{count['global_load_sectors']:9}"
    print(f"{rung.name:12}{device_memory}{count['shared_load_requests']:16}{count['shared_load_wavefronts']:12}")

# %% [markdown]
# `shared` asks for far fewer sectors of device memory. In their place it has loads from shared memory.
#
# **Predict, then run.** Which of the two is faster on the GPU, at the design size?

# %%
guess = None  # "narrow" or "shared"


def faster():
    return min(("narrow", "shared"), key=lambda name: seconds("pooling", "max 3x3", name))


predict(guess, faster, choices=("narrow", "shared"))

# %%
measured("pooling", "max 3x3", "narrow", "shared")

# %% [markdown]
# `shared` loses. Shared memory pays where it replaces traffic to device memory, or turns a scattered access into a
# coalesced one. Here neither is the case. The overlap is small and close together in time, so the L1 cache, which is
# the same silicon, had caught it already. What the tile adds is a barrier, another store and load for each element,
# and more index arithmetic, in a kernel that was bound by its instructions. For 2 x 2 windows there is not even an
# overlap. Large windows with stride 1, as in convolutions, have much more of it: we come back to them.
#
# ## The fourth rung, `vectorised`: four results per thread
#
# So: fewer instructions for each byte, and more bytes in flight. A thread takes two rows of eight neighbours with four
# 128-bit loads, and has four results, one 128-bit store. It divides once, for four results. That needs rows that are a
# multiple of eight long, so it is a kernel for this shape, and the rung looks at the shape before it launches.
#
# `width128(x)` is how many elements of `x` are 16 bytes, a constant when the kernel is compiled: 4 of float32. Of
# float16 and bfloat16 it is 8. Then a thread takes two rows of sixteen, has eight results, and `widened` makes float32
# of what it loads ([chapter 4](04_vector_add.ipynb)).

# %%
show(pooling.pairs)
show(pooling.pooled_pairs)
show(pooling.max_pairs_kernel)

# %%
pairs = reports_of(pooling.vectorised, maps, "max", 2)
for name, report in {"naive": naive, "vectorised": pairs}.items():
    count = report.counters
    print(f"{name:12}{count['global_load_requests']:5} loads and {count['global_store_requests']:4} stores by warps")
plots.access(pairs, "x")

# %% [markdown]
# Each panel is the first of two loads from a row: 16 bytes per lane, and lanes stand 32 bytes apart. So a request
# touches 32 sectors and takes the left half of each. The second load takes the halves that are white here, and finds
# them in the L1 cache, as in the picture before. Eight lanes cover a row of 64; the next eight go on two rows below.
#
# Windows of 3 x 3 with stride 2 and padding 1 need a ninth column on the left. The lane on the left has it in a
# register. So each thread first takes the maximum of its three rows, column by column, and then one *shuffle* hands the
# last column to the right. Lane 0 has no such neighbour in its warp, and loads the column. At the left edge of a row
# and at the top and bottom of a plane an element inside the window is read instead of one outside: an element seen
# twice does not change a maximum. (It changes a mean, so the room has no such kernel for means.)

# %%
show(pooling.max_threes_kernel)
show(pooling.threes_of_four)

# %%
measured("pooling", "max 2x2", "narrow", "vectorised")
measured("pooling", "max 3x3", "narrow", "vectorised")
measured("pooling", "average 2x2", "narrow", "vectorised")

# %% [markdown]
# A share above 100 % is no error. The ceiling is measured by a copy, which writes as much as it reads. Memory likes
# reading better, and pooling writes only a quarter of what it reads.
#
# Other windows, and rows of other lengths, have no such kernel. There a thread has one window, as in `narrow`. But
# `narrow` walks: it waits for an element, compares, and asks for the next. In `gather` the numbers of rows and columns
# are lengths of tuples, known when the kernel is compiled. So the loops are unrolled, and up to 16 loads of a window
# are under way before the first is needed.

# %%
show(pooling.gather)

# %% [markdown]
# ### Exercise: the way back
#
# In training each gradient goes back to the element that won. Write it so that each thread has one element of the
# result: then nothing is added, and nothing has to be 0 beforehand.

# %%
exercise("pooling/back")


# %%
@cuda.jit
def back(gradient, indices, out):
    pass  # your code


check("pooling/back", back)

# %% [markdown]
# ## The last rung, `whole_planes`: a window as large as its plane
#
# Many networks end with a *global* average: each plane becomes its mean. By the letter that is pooling, with a window
# of 112 x 112. Let `narrow` do it first, for 32 planes of 32 x 64: one warp, and a thread for each plane.
#
# **Predict, then run.** How many sectors does each load of the warp touch? Where does the neighbour of a lane read?

# %%
guess = None  # sectors a load

whole = maps.shape[2:]
planes = reports_of(pooling.narrow, np.ones((8, 4, *whole), np.float32), "average", whole)
predict(guess, planes.counters["global_load_sectors"] // planes.counters["global_load_requests"], unit="sectors")

# %%
plots.access(planes, "x", kind="load")

# %% [markdown]
# Each lane walks through a plane of its own, and a warp touches 32 sectors for 32 numbers. And there are only as many
# threads as planes. This is [chapter 30](30_reduction.ipynb)'s problem, many times over, and chapter 30's device
# functions solve it: a block for each plane, four 128-bit loads in flight in each thread, `block_combine` at the end.

# %%
show(pooling.planes_kernel)

# %%
measured("pooling", "global average", "narrow", "whole_planes")

# %% [markdown]
# With few and large planes, one block for each would leave most of the GPU idle. Then each plane is cut into parts. A
# block reduces each part, and the results are reduced in the same way. The block of a small plane would mostly wait at
# its barriers, so one warp reduces it.
#
# ## All rungs of pooling


# %%
plots.drawn(plots.ladder, "pooling", family="max 2x2")

# %%
plots.drawn(plots.ladder, "pooling", family="max 3x3")

# %% [markdown]
# On the roofline all of them stand at the same place from left to right: the work and its least bytes are the same.
# What differs is the height.

# %%
plots.drawn(plots.roofline, "pooling", family="max 3x3")

# %%
plots.drawn(plots.sweep, "pooling", family="max 2x2", xlabel="elements of the input")

# %% [markdown]
# Only `vectorised` reaches the ceiling, and only from about $2^{26}$ elements on. With fewer, the launch weighs more.
#
# Is the journey to the GPU worth it? The next figure has NumPy on one core of the CPU, the kernel alone, and the kernel
# with the call and both transfers. (If the record has no CPU in it, the cell says so.)

# %%
plots.drawn(plots.cpu_gpu, "pooling", xlabel="elements of the input")

# %% [markdown]
# Maps of 16 bits are half the bytes. A maximum of them is exact; a mean is computed in float32, and rounded once. The
# dashed line is half the time of float32. (`whole_planes` leaves windows that are smaller than their plane to
# `vectorised`.)

# %%
plots.drawn(plots.by_dtype, "pooling", "max 2x2")

# %% [markdown]
# ## Channels last
#
# Much of this chapter was about where a window lies in its row: the width of a row, the ninth column, the left edge. It
# need not be so. Maps can be stored with the *channels last*, (N, H, W, C), as many libraries do for tensor cores. Then
# the neighbours of an element are its other channels, and neighbouring lanes take neighbouring channels of one window.

# %%
show(pooling.channels_last.vectorised_kernel)

# %% [markdown]
# The walk through the window is that of `naive`, with 128 bits of channels at each step. It takes every window, stride
# and padding. What must fit is the number of channels: a multiple of four, or of eight in 16 bits.
#
# **Predict, then run.** Windows of 3 x 3, stride 3, in maps of 9 x 48 with 64 channels. How many sectors does one of
# its requests touch?

# %%
guess = None  # sectors

last = np.random.default_rng(3).standard_normal((1, 9, 48, 64), dtype=np.float32)
count = lab.count(pooling.channels_last.vectorised, last, "max", 3).counters
predict(guess, count["global_load_sectors"] / count["global_load_requests"], unit="sectors")

# %%
first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))  # the same maps with channels first
narrow = lab.count(pooling.narrow, first, "max", 3).counters
for name, one in {"channels last": count, "channels first": narrow}.items():
    requests, sectors = one["global_load_requests"], one["global_load_sectors"]
    moved = 32 * sectors / last.nbytes
    print(f"{name:15}{requests:6,} requests, {sectors / requests:4.1f} sectors each: {moved:.1f} times the bytes")

# %% [markdown]
# Sixteen sectors are 512 bytes: nothing is fetched in vain, although the windows suit no vector of a row. With channels
# first the same windows are for `narrow`, which loads 4 bytes at a time, and lanes stand three elements apart. Its
# repeated sectors come from the cache, but it makes more than four times as many requests.

# %%
plots.drawn(plots.ladder, "channels_last", family="max 3x3")

# %%
plots.drawn(plots.by_dtype, "channels_last", "max 3x3")

# %% [markdown]
# In 16 bits this kernel gains less than `vectorised` does with channels first. A step through the window has the same
# instructions as before, its indices and its conversions, and half the bytes to hide them behind.

# %% [markdown]
# ## When arithmetic is the bound
#
# With stride 1 there are as many windows as elements. By the definition a mean over k x k elements takes $k^2 - 1$
# additions for the same eight bytes, so the side of the window moves the work from the memory to the arithmetic.

# %%
sides = (3, 5, 9, 17, 33)
least = {k: roofline.bound(pooling.cost(16 * 64, 112, 112, k, 1, k // 2), ceilings) for k in sides}
for k, side in least.items():
    memory, arithmetic = side.memory_seconds * 1e6, side.compute_seconds * 1e6
    print(f"{k:2} x {k:<2} memory {memory:4.0f} us, arithmetic {arithmetic:6.1f} us: {side.side}-bound")


# %%
def by_side(name):
    """{side of the window: recorded milliseconds} of a rung or a library."""
    entries = kept().entries("pooling", family="window sizes", contender=name)
    return dict(sorted((entry.sizes["side"], entry.median_ms) for entry in entries))


try:
    print("sides of windows that were measured:", *by_side("narrow") or ["none"])
except record.RecordError as missing:
    print("There are no times to show:", missing)


# %%
def draw_sides():
    if not by_side("narrow"):
        raise record.RecordError("means over windows of several sides have not been measured: make bench ROOMS=pooling")
    store, (figure, ax) = record.load(), chart(4.4)
    ax.plot(sides, [least[k].memory_seconds * 1e3 for k in sides], "k--", label="at least, for the bytes")
    ax.plot(sides, [least[k].compute_seconds * 1e3 for k in sides], "k:", label="at least, for the arithmetic")
    for name, (colour, marker) in plots.colours(store, "pooling").items():
        if points := by_side(name):
            ax.plot(*zip(*points.items(), strict=True), color=colour, marker=marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="side of the window (elements)", ylabel="time (ms)")
    ax.set(title="Means with stride 1 over 16 x 64 planes of 112 x 112", xticks=sides)
    ax.xaxis.set(major_formatter="{x:g}", minor_locator=plt.NullLocator())
    figure.legend(loc="outside right upper")
    foot(figure, store.footer("pooling"))
    return figure


# %%
plots.drawn(draw_sides)

# %% [markdown]
# The upper of the two bounds counts: for the bytes, a larger window costs no more, and the arithmetic grows with the
# number of elements in a window. How far above it are the kernels?


# %%
def above_the_bound(*names):
    """Print the times, and how many times the larger bound they are."""
    times = {name: by_side(name) for name in names}
    for k in times[names[0]]:
        found = {name: ms[k] for name, ms in times.items() if k in ms}
        said = (f"{name} {ms:6.3f} ms, {ms / least[k].seconds / 1e3:4.1f} x" for name, ms in found.items())
        print(f"{k:2} x {k:<2} {'   '.join(said)}")


plots.drawn(lambda: above_the_bound("narrow", "shared", "torch.avg_pool2d"))

# %% [markdown]
# None is near, at any size. Even the smallest windows take several times what their bytes take, so memory is not what
# the kernels wait for. Nor is it the arithmetic alone. Each element of a window is an addition, and it is a load and a
# step of a loop as well. (Additions alone reach half of the ceiling at best, since it counts a multiply-add as two
# operations.) A load from shared memory is a load, too. So the tile does not help where the loads themselves are the
# bound. Loading it costs time that weighs less in larger windows, and the two kernels come together. To gain, a thread
# must use what it has loaded for several results, as in [chapter 20](20_memory_or_compute.ipynb), or add less. (Adding
# the columns first, and then their sums, takes $2 (k - 1)$ additions. The bound above is that of a method, not of the
# problem.)

# %% [markdown]
# And shapes that suit no kernel: odd widths, few images, one row, single large planes. Here is how the last rung does
# beside PyTorch. Below 1 the library is faster.


# %%
def against_the_library(room, family):
    """Print the library's time over the last rung's for each workload of a family."""
    known = record.load().rooms() if record.available() else ()
    entries = record.load().entries(room, family=family) if room in known else ()
    for workload in dict.fromkeys(entry.workload for entry in entries):
        times = {entry.kind: entry.median_ms for entry in entries if entry.workload == workload}
        print(f"{workload:36}{times['rung']:8.4f} ms{times['library'] / times['rung']:7.2f} x")


against_the_library("pooling", "other shapes")

# %% [markdown]
# This room has kernels with 128-bit loads for what networks use most, and loads of 4 bytes for the rest. Whole planes
# with an odd number of elements, 7 x 7, are among the rest. They cannot simply be read by 128-bit loads: only every
# fourth plane begins at a multiple of 16 bytes.
#
# ## Activations
#
# Now to the functions. A network needs something that is not linear between its layers, or all of them together would
# be one matrix.

# %%
v = np.linspace(-4, 4, 401, dtype=np.float32)
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for name, line in zip(("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "silu"), palette.LINES, strict=False):
    ax.plot(v, activation.reference(v, name, slope=0.1), linestyle=line, label=name)
ax.set_ylim(-1.2, 3)
ax.set(xlabel="x", ylabel="activation of x")
ax.legend(fontsize="small")
None

# %% [markdown]
# ReLU is a comparison. GELU is $x\,\Phi(x)$ with the normal distribution $\Phi$, so it needs the error function: some
# thirty instructions for each element.
#
# Two rungs apply them. `elementwise` has one thread for each element, and `vectorised` one for each four, with loads of
# 128 bits, as in [chapter 4](04_vector_add.ipynb). Both read an element once and write it once.
#
# **Predict, then run.** How many times as long as ReLU does GELU take, at the design size with `vectorised`?

# %%
guess = None  # times as long


def over_relu(name):
    """The time of an activation, in times of ReLU's."""
    return seconds("activation", name, "vectorised") / seconds("activation", "relu", "vectorised")


predict(guess, lambda: over_relu("gelu"), unit="times as long")

# %%
for name in ("relu", "tanh", "gelu", "silu"):
    measured("activation", name, "elementwise", "vectorised")
for name in ("tanh", "gelu", "silu"):
    say(f"{name} takes {{:.2f}} times as long as relu, in vectorised", lambda name=name: over_relu(name))

# %% [markdown]
# Little longer, in `vectorised` and in PyTorch's kernels. Eight bytes per element take so long that the arithmetic fits
# beside them. That is what *memory-bound* means: arithmetic is free, up to a point. A GPU with the same arithmetic and
# less bandwidth would have room for still more arithmetic.
#
# ## Right at the ends
#
# Small formulas hide large numbers. SiLU is $x / (1 + e^{-x})$.

# %%
extremes = np.array([-1000, -100, -np.inf, np.inf, np.nan], np.float32)
with np.errstate(all="ignore"):
    print("by the book:", extremes / (1 + np.exp(-extremes)))
print("this room:  ", device.to_host(activation.fused(extremes, "silu")))

# %% [markdown]
# Minus infinity over infinity is NaN, where the limit is 0. (PyTorch has NaN there.) And the exponential of 1000
# overflows, which happens to end well here, and in $e^x / (1 + e^x)$ does not. The cure is never to take the
# exponential of a positive number.

# %%
show(activation.logistic)
show(activation.activate)

# %% [markdown]
# `function` is the same in all threads, so no warp diverges over it. Look at ReLU: `zero if v <= zero else v` gives NaN
# for NaN, since no comparison with NaN is true. `v if v > zero else zero` would be 0, and a network full of NaN would
# look healthy.
#
# ## Elementwise, and 128 bits wide
#
# There is not much to see in these two rungs after chapter 4: one thread for each element, then one for each four.

# %%
show(activation.vectorised_kernel)

# %%
plots.drawn(plots.ladder, "activation", family="relu")

# %%
plots.drawn(plots.sweep, "activation", family="relu", xlabel="elements")

# %%
plots.drawn(plots.cpu_gpu, "activation", family="relu", xlabel="elements")

# %% [markdown]
# There is next to nothing left to gain in this kernel. From some million elements on `vectorised` keeps to what the
# ceilings allow. With few elements only the launch counts, and the two rungs are alike. The last figure has NumPy on
# one core of the CPU beside it. (If the record has no CPU in it, the cell says so.)
#
# ### Exercise: a gate

# %%
exercise("activation/gated")


# %%
@cuda.jit
def gated(x, out):
    pass  # your code


check("activation/gated", gated)

# %% [markdown]
# ## `fused`: the bytes that need not move
#
# An activation rarely comes alone. The layer before it adds a *bias*, a number for each channel. In `vectorised` that
# is a kernel of its own. It writes its sums to memory, and the next kernel reads them back. In `fused` the bias is
# added in registers, on the way to the function.

# %%
show(activation.fused_kernel)

# %% [markdown]
# Which channel is it? Elements i to i + 3 mostly lie in one plane, and one division finds it. Where planes are no
# multiple of four, the four may belong to two channels or more, and `add_bias` goes from one to the next.
#
# **Predict, then run.** How many times as long does `vectorised` take as `fused`, for a bias and a ReLU? Count the
# bytes that each moves for an element.

# %%
guess = None  # times as long


def gain(family):
    return seconds("activation", family, "vectorised") / seconds("activation", family, "fused")


predict(guess, lambda: gain("bias and relu"), unit="times as long")

# %%
bias = np.arange(4, dtype=np.float32)
for rung in (activation.vectorised, activation.fused):
    counted = lab.count(rung, maps, "relu", bias)
    sectors = sum(counted.counters[f"global_{way}_sectors"] for way in ("load", "store"))
    kernels = f"{len(counted.reports)} kernel{'s' * (len(counted.reports) > 1)}"
    print(f"{rung.name:12}{kernels:10}{32 * sectors / maps.size:5.1f} bytes per element in sectors")
measured("activation", "bias and relu", "elementwise", "vectorised", "fused")
say("vectorised takes {:.2f} times as long as fused", lambda: gain("bias and relu"))

# %% [markdown]
# Sixteen bytes against eight, and twice the time. (The interpreter counts a sector of the bias for each request. These
# come from a cache.) No tuning of either of the two kernels could have gained as much. One step further, the function
# is applied by the kernel that made the numbers, a matrix product or a convolution, in the registers that hold its
# results. Then the activation moves no byte of its own. This is called an *epilogue*, and it is why compilers for
# networks spend their effort on fusing.

# %%
plots.drawn(plots.ladder, "activation", family="bias and relu")

# %% [markdown]
# Bytes can also be halved. In float16 and bfloat16 a thread has eight numbers in 128 bits, and computes with them in
# float32. The sum with a bias is not rounded on its way to the function, since it never leaves the registers.

# %%
plots.drawn(plots.by_dtype, "activation", "relu")

# %% [markdown]
# Fusing has a limit, and it is arithmetic. Bias and GELU together are many instructions for eight bytes. Do they still
# fit beside them? And after that, other shapes of ReLU with a bias, beside PyTorch's two kernels:

# %%
measured("activation", "bias and gelu", "vectorised", "fused")
say("vectorised takes {:.2f} times as long as fused", lambda: gain("bias and gelu"))
against_the_library("activation", "bias and relu, other shapes")

# %% [markdown]
# Not quite: with GELU the fused kernel reaches three quarters of the roof, where with ReLU it reaches all of it. It is
# still much faster than two kernels.
#
# ### Exercise: bias and leaky ReLU

# %%
exercise("activation/bias")


# %%
@cuda.jit
def biased(x, bias, slope, out):
    pass  # your code


check("activation/bias", biased)

# %% [markdown]
# ## What to take along
#
# 1. Write down the corners first: edges, ties, NaN, infinities. They are half of the definition.
# 2. Bytes that are right are not enough. Count instructions for each byte, divisions above all.
# 3. A cache does what shared memory would do, if the reuse is close by. Measure before you build a tile.
# 4. A special shape may deserve a special kernel. Ask for the shape, and keep one that takes all.
# 5. The fastest byte is the one that does not move: fuse, and store 16 bits.
# 6. With channels last every window is coalesced.
#
# ## Exercises
#
# Four stand in the text above. One is left.
#
# **Without a check.** `pooling.vectorised` has no wide kernel when indices are wanted. How many bytes must move for
# 2 x 2 windows with 64-bit indices, and with 8-bit ones that say which of the four it was? What is the bound for each?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def edges_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = x.shape[1], x.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total, count = np.float32(0), 0
        for y in range(max(row - 1, 0), min(row + 2, h)):
            for z in range(max(column - 1, 0), min(column + 2, w)):
                total += x[plane, y, z]
                count += 1
        out[plane, row, column] = total / np.float32(count)  # float32 / int would be float64


assert check("pooling/edges", edges_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def back_answer(gradient, indices, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        y, z, value = row // 2, column // 2, np.float32(0)
        if y < gradient.shape[1] and z < gradient.shape[2] and indices[plane, y, z] == row * w + column:
            value = gradient[plane, y, z]
        out[plane, row, column] = value  # every thread writes, so out need not be set to 0 before


assert check("pooling/back", back_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def bias_answer(x, bias, slope, out):
    i = cuda.grid(1)
    if i < out.size:
        c, inner = x.shape[1], x.shape[2]
        image, channel, place = i // inner // c, i // inner % c, i % inner
        value = x[image, channel, place] + bias[channel]
        out[image, channel, place] = value if value > np.float32(0) else value * slope


assert check("activation/bias", bias_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def gated_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        n = out.shape[1]
        row, column = i // n, i % n
        gate = x[row, column]
        out[row, column] = gate * activation.logistic(gate) * x[row, n + column]


assert check("activation/gated", gated_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
elements = 256 * 64 * 112 * 112
for name, size in (("no indices", 0), ("64-bit indices", 8), ("8-bit indices", 1)):
    moved = 4 * elements + (4 + size) * elements // 4
    print(f"{name:15}{moved / 1e6:6.0f} MB, at least {moved / ceilings.bandwidth * 1e6:4.0f} us")

# %% [markdown]
# *Indices.* In 64 bits they are twice as many bytes as the results themselves, and make the bound two fifths longer.
# One byte says as much, which of the four it was. Backpropagation knows the window, so it can work out the rest.
#
# Go on with [chapter 47](47_wavefronts.ipynb), on tables in which each cell waits for its neighbours.
