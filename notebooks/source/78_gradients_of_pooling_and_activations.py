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
# # 78. Gradients of pooling and activations
#
# *The chain rule with indices, scatter and gather, atomics and the same bits twice, what a forward pass should keep,
# windows that overlap, slopes without cancellation, a sum on the way. PMPP 4e: section 16.2; 5e: chapter 19. The code
# is [pmpp/kernels/pooling/pooling_backward.py](../pmpp/kernels/pooling/pooling_backward.py) and
# [pmpp/kernels/activation/activation_backward.py](../pmpp/kernels/activation/activation_backward.py). Read
# [chapter 46](46_pooling_and_activations.ipynb) first. About 75 minutes.*
#
# Training runs a network forwards and then backwards. On the way back each layer is given the gradient of the loss with
# respect to its result, and makes of it the gradient with respect to its input. After this chapter you can derive such
# a gradient, turn a scatter with atomics into a gather without, and say which bytes a forward pass should leave behind.
#
# **The questions of this chapter: what must a layer remember of its forward pass, and how near does the way back come
# to the time that its bytes need?**

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import activation, pooling
from pmpp.kernels.activation import activation_backward
from pmpp.kernels.common import block_sum
from pmpp.kernels.pooling import pooling_backward, windows
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The chain rule, with indices
#
# Let $L$ be the loss, $x_e$ the elements of the input, and $y_w$ the result of window $w$. The loss depends on $x_e$
# only through the windows that contain $e$. So
#
# $$\frac{\partial L}{\partial x_e} = \sum_{w \ni e} \frac{\partial L}{\partial y_w} \,
# \frac{\partial y_w}{\partial x_e}.$$
#
# The first factor is given, and we call it `dy`. The second one is the layer's own. If $y_w$ is a maximum and $x_e$ is
# the largest of the window, a small step of $x_e$ moves $y_w$ by as much: the factor is 1. For all other elements it is
# 0. If $y_w$ is the mean of $k$ elements, it is $1/k$ for each of them.
#
# Here is a digit of 8 x 8, pooled by windows of 2 x 2. Every result gets the gradient 1.

# %%
digit = data.digits()[0][0].reshape(1, 1, 8, 8).astype(np.float32)
ones = np.ones((1, 1, 4, 4), np.float32)
pictures = {"x": digit, "y = max of 2x2": pooling.reference(digit, "max", 2)}
pictures |= {f"dx of the {op}": pooling_backward.reference(ones, digit, op, 2) for op in ("max", "average")}
figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1 if title.startswith("dx") else None)
    ax.set_title(title)
    ax.axis("off")

# %% [markdown]
# The maximum hands the gradient of a window to one pixel, the brightest. In a window that is black all over every pixel
# is the largest, and the first one gets it: that is the rule of the forward pass, and of PyTorch. The mean gives each
# pixel a quarter.

# %%
show(pooling_backward.reference)

# %% [markdown]
# Is it right? A gradient says how much the loss moves when one element moves a little. So we move it, and look. The
# upstream gradient is random: with ones alone a gradient that goes to the wrong window would not show.

# %%
rng = np.random.default_rng(0)
x = rng.permutation(30).reshape(1, 1, 5, 6).astype(np.float64)  # far apart, so that no step changes a winner
dy = rng.standard_normal((1, 1, 3, 3))
slopes = np.empty(x.shape)
for at in np.ndindex(x.shape):
    step = np.zeros(x.shape)
    step[at] = 0.25
    change = pooling.reference(x + step, "max", 3, 2, 1) - pooling.reference(x - step, "max", 3, 2, 1)
    slopes[at] = (dy * change).sum() / 0.5
error = abs(slopes - pooling_backward.reference(dy, x, "max", 3, 2, 1)).max()
print(f"largest difference to central differences: {error:.1e}")

# %% [markdown]
# ## What must be remembered, and what it costs
#
# The way back has to know who won. There are three ways. The forward pass can store the *index* of each maximum in its
# plane, as PyTorch does, in 64 bits. It can store the *position* in the window: with 3 x 3 elements a number from 0 to
# 8, one byte. Or it stores nothing, and the input is read again to find the winners.
#
# Our case is the one of chapter 46: 256 images of 64 channels, 112 x 112, windows of 3 x 3 with stride 2 and padding 1.
# `dy` has one number for four of `dx`.
#
# **Predict, then run.** How many times the bytes of the way with positions does the way with 64-bit indices move? Count
# `dy`, what tells the winners, and `dx`.

# %%
guess = None  # times the bytes

case = 256 * 64, 112, 112, 3, 2, 1
by_position, by_index = (pooling_backward.cost(*case, told=told).bytes for told in (1, 8))
predict(guess, by_index / by_position, within=0.05)

# %%
ceilings = roofline.ceilings("pooling")
read_again = pooling_backward.cost(*case, told=0).bytes + 4 * 256 * 64 * 112 * 112
for name, moved in {"positions": by_position, "64-bit indices": by_index, "x again": read_again}.items():
    print(f"{name:15}{moved / 1e6:6.0f} MB: at least {moved / ceilings.bandwidth * 1e6:4.0f} us")
print(f"with {ceilings.bandwidth / 1e12:.2f} TB/s ({ceilings.source})")

# %% [markdown]
# A byte for each window is the cheapest of the three. The forward pass writes it: `max_pool2d` does so when it is asked
# for `return_positions=True`. It also saves memory. To read the input again, the input must be kept until then:
# four bytes for each of four elements. With positions the way back needs only the shape of the input:
# `pooling.backward(dy, x.shape, "max", 3, 2, 1, positions=positions)`.
#
# Chapter 46 showed where a maximum lies. Now its kernel for 3 x 3 windows tells it, too. It goes through a window in
# the order of its elements, so that the first of equal ones wins.

# %%
show(pooling.later)
show(pooling.winner_of_nine)

# %%
maps = np.random.default_rng(0).standard_normal((2, 4, 32, 64), dtype=np.float32)
y, positions = map(device.to_host, pooling.max_pool2d(maps, 3, 2, 1, return_positions=True))
gradient = np.random.default_rng(1).standard_normal(y.shape, dtype=np.float32)
print(f"y: {y.shape}, {y.dtype}; positions: {positions.dtype}, the first four {positions[0, 0, 0, :4]}")

# %% [markdown]
# ## The first rung, `scatter`: each window gives
#
# The definition reads like a program for windows: a thread for each window finds the winner, and adds the gradient to
# it. The result is set to 0 before. With stride 2, windows of 3 x 3 share their edges, so two threads may add to the
# same element at the same time. The addition must be *atomic*.

# %%
show(pooling_backward.scatter_kernel)


# %%
def counts(rung, **options):
    """The counters of all launches of a rung on *maps*, added up."""
    reports = lab.count(rung, gradient, maps, "max", 3, 2, 1, **options).reports
    return {name: sum(report.counters[name] for report in reports) for name in reports[0].counters}


scattered = counts(pooling_backward.scatter, positions=positions)
print(f"{scattered['atomic_lanes']:,} atomic additions, for {gradient.size:,} windows")
print(f"{scattered['global_store_sectors']:,} sectors of zeros stored before; the result has {maps.nbytes // 32:,}")

# %% [markdown]
# Two things are wrong with this. The result is written as zeros, and then a part of it is read and written again by the
# atomic units. And the additions come in the order in which the threads happen to run. Floating-point addition is not
# associative, so the sum depends on that order.
#
# **Predict, then run.** Four windows give 1, 10⁸, -10⁸ and 1 to an element, in float32. How many different sums can
# come out, over all orders?

# %%
guess = None  # different sums


def summed(values):
    total = np.float32(0)
    for value in values:
        total += np.float32(value)
    return float(total)


sums = {summed(order) for order in itertools.permutations((1, 1e8, -1e8, 1))}
predict(guess, len(sums), exact=True)

# %%
print(*sorted(sums))

# %% [markdown]
# Real gradients differ less. But the last bits of a training run then differ from run to run, and a fault that shows
# once in a week cannot be run again. So we look for a way without atomics.
#
# ## The second rung, `gather`: each element takes
#
# The formula has a sum over windows for each element. Read it as a program for elements: a thread has one element, asks
# the windows that contain it, and adds what they give. Nobody else writes there.
#
# Which windows are they? Window $j$ begins at $j s - p$ and has $k$ elements. It contains column $c$ if
# $j s - p \le c < j s - p + k$, and so $j$ runs from the first whole number above $(c + p - k) / s$ to
# $\lfloor (c + p) / s \rfloor$.

# %%
show(windows.covering)
show(pooling_backward.given_by)
show(pooling_backward.gather_kernel)

# %% [markdown]
# **Predict, then run.** With windows of 3 x 3 and stride 2, in how many windows does an element lie on average, far
# from the edges?

# %%
guess = None  # windows an element

axis = windows.Axis(extent=112, places=56, window=3, stride=2, padding=1)
covered = [windows.covering.py_func(np.int64(place), axis) for place in (10, 11)]
predict(guess, (sum(end - first for first, end in covered) / 2) ** 2, within=0.02)

# %% [markdown]
# Columns take turns: an even one lies in one window, an odd one in two. In two dimensions that is 1, 2, 2 or 4.

# %%
everywhere = [[windows.covering.py_func(np.int64(place), axis) for place in range(8)]] * 2
rows_of, columns_of = ([end - first for first, end in side] for side in everywhere)
figure, ax = plt.subplots(figsize=(3.6, 3.2), layout="constrained")
ax.imshow(np.outer(rows_of, columns_of), cmap="Blues", vmin=0, vmax=6)
for row, column in np.ndindex(8, 8):
    ax.text(column, row, rows_of[row] * columns_of[column], ha="center", va="center")
ax.set(title="windows of 3 x 3, stride 2, padding 1,\nthat contain an element", xlabel="column", ylabel="row")
None

# %% [markdown]
# Each of the nine elements of a window asks for its winner. If the winner is not known, each of them reads the window
# to find out.

# %%
from_x, told = counts(pooling_backward.gather), counts(pooling_backward.gather, positions=positions)
for name, count in {"from x": from_x, "with positions": told}.items():
    each = count["global_load_requests"] * 32 / maps.size
    print(f"{name:15}{each:6.1f} loads by warps for 32 elements, {count['atomic_lanes']} atomic additions")

# %% [markdown]
# ## The third rung, `once`: each winner found once
#
# If there are no positions, a kernel of its own makes them first. It reads the input once, and writes one byte for each
# window. Then `gather` reads bytes.

# %%
show(pooling_backward.winners_kernel)
show(pooling_backward.with_positions)

# %%
once = counts(pooling_backward.once)
print(f"{once['global_load_requests'] * 32 / maps.size:.1f} loads by warps for 32 elements, both kernels together")


# %%
def measured(room, family, *names):
    """Print recorded times of a family at the design size, of the library and of the rungs that are named."""
    try:
        store = record.load()
        entries = [one for one in store.design(room, family) if one.contender in names or one.kind == "library"]
        for entry in entries:
            share = entry.bytes / entry.seconds / store.ceilings(room).bandwidth
            print(f"{family:16}{entry.contender:40}{entry.median_ms:8.3f} ms{share:7.0%} of the roof")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


measured("pooling_backward", "max 3x3 from x", "scatter", "gather", "once", "patches")
measured("pooling_backward", "max 3x3", "scatter", "gather")

# %% [markdown]
# In the first family the winners have to be found in the input. In the second one they are known from the forward pass,
# and each of these rungs is faster than in the first. (`patches` is the last rung, and comes below.)
#
# `gather` is far slower than `scatter` in both. It needs no atomics and gives the same bits each time, and it pays for
# that: each element divides to find its windows, and loads what each of them says. The next two rungs keep the order
# and mend the rest.
#
# ### Exercise: overlapping maxima

# %%
exercise("pooling_backward/positions")


# %%
@cuda.jit
def from_positions(gradient, positions, out):
    pass  # your code


check("pooling_backward/positions", from_positions)

# %% [markdown]
# ## The fourth rung, `four_wide`: four neighbours for a thread
#
# `gather` divides five times in 64 bits for one element, and stores 4 bytes. Chapter 46 knows the cure: a thread takes
# four neighbours in a row, and divides for all of them in 32 bits. There is more to gain on the way back. Four
# neighbours lie in nearly the same windows. With stride 2 they lie in three windows of a row, where four threads would
# ask six times.

# %%
show(pooling_backward.quads)
show(pooling_backward.add_to_four)

# %% [markdown]
# For each window the kernel computes where its winner stands, counted from the first of the four. Then four comparisons
# decide who takes the gradient. Means need the same loop: there a window gives to a range of the four. (In 16 bits a
# thread has eight neighbours, and `add_to` asks `add_to_four` twice.)

# %%
wide = counts(pooling_backward.four_wide, positions=positions)
for name, count in {"gather": told, "four_wide": wide}.items():
    loads = count["global_load_requests"] * 32 / maps.size
    each = count["thread_instructions"] / maps.size
    print(f"{name:10}{each:6.1f} instructions for an element, {loads:.2f} loads by warps for 32")

# %% [markdown]
# ## The last rung, `patches`: no loop is left
#
# The picture above repeats every two rows and two columns. So a patch of two rows by four columns looks the same
# everywhere: it lies in three windows of one row of windows, and in the three below. Which element stands at which
# position of which window can be written into the kernel. Six gradients and six positions are loaded, all at once. What
# is left are comparisons with constants, and two 128-bit stores.

# %%
show(pooling_backward.six_windows)
show(pooling_backward.threes_back_kernel)

# %% [markdown]
# Look at the last element of the odd row. It lies in four windows: at position 8 of one, the lower right corner, at 6
# of its neighbour, and at 2 and 0 of the two below.
#
# **Predict, then run.** How many instructions does `patches` need for each element, as a share of those of `four_wide`?

# %%
guess = None  # of the instructions, between 0 and 1

patch = counts(pooling_backward.patches, positions=positions)
predict(guess, patch["thread_instructions"] / wide["thread_instructions"], within=0.1)

# %%
for name, count in {"gather": told, "four_wide": wide, "patches": patch}.items():
    stores = count["global_store_requests"] * 32 / maps.size
    each = count["thread_instructions"] / maps.size
    print(f"{name:10}{each:6.1f} instructions for an element, {stores:.2f} stores by warps for 32")

# %% [markdown]
# The interpreter counts operations of the source, not machine instructions, so the ratios are a hint. The times decide.
# PyTorch's function for this way back is in the same figure; it is given 64-bit indices.

# %%
plots.drawn(plots.ladder, "pooling_backward", family="max 3x3")

# %%
measured("pooling_backward", "max 3x3", "scatter", "gather", "four_wide", "patches")
measured("pooling_backward", "max 2x2", "scatter", "gather", "four_wide", "patches")
measured("pooling_backward", "average 2x2", "scatter", "gather", "four_wide", "patches")

# %% [markdown]
# `four_wide` is about as fast as `scatter` now, and has the fixed order besides. `patches` leaves all of them behind.
#
# ### Exercise: overlapping means

# %%
exercise("pooling_backward/means")


# %%
@cuda.jit
def means(gradient, out):
    pass  # your code


check("pooling_backward/means", means)

# %% [markdown]
# ## The same bits twice
#
# In all rungs after the first an element's windows are asked in the order of the rows. That order does not depend on
# which thread runs first. So two runs give the same bits, and so do two rungs.

# %%
options = "max", 3, 2, 1
runs = [device.to_host(pooling_backward.patches(gradient, maps, *options)) for _ in range(2)]
gathered = device.to_host(pooling_backward.gather(gradient, maps, *options))
print("twice the same bits:", runs[0].tobytes() == runs[1].tobytes())
print("equal to gather:    ", np.array_equal(runs[0], gathered))

# %% [markdown]
# ## All rungs under one roof
#
# The roofline has the bytes of the definition: `dy`, one byte for each window, and `dx`.

# %%
plots.drawn(plots.roofline, "pooling_backward", family="max 3x3")

# %%
plots.drawn(plots.sweep, "pooling_backward", family="max 3x3", xlabel="elements of the input")

# %%
plots.drawn(plots.cpu_gpu, "pooling_backward", xlabel="elements of the input")

# %% [markdown]
# Gradients are stored in 16 bits as well, and added up in float32. The positions keep their byte each, so a little more
# than half of the bytes remain.

# %%
plots.drawn(plots.by_dtype, "pooling_backward", "max 2x2")

# %%
plots.drawn(plots.by_dtype, "pooling_backward", "max 3x3")

# %% [markdown]
# Windows side by side come near to twice the speed. Overlapping ones gain less: each element still asks up to four
# windows, and these comparisons begin to show where the bytes are fewer.

# %% [markdown]
# The figure before those in 16 bits has NumPy on one core of the CPU, the kernel alone, and the kernel with the call
# and all transfers. (A figure whose times are not in the record says so.)
#
# When is arithmetic the bound? Take means with stride 1. Every element lies in $k^2$ windows, and takes a share from
# each, while the bytes stay the same.

# %%
sides = (3, 5, 9, 17, 33)
costs = {k: pooling_backward.cost(16 * 64, 112, 112, k, 1, k // 2, told=0) for k in sides}
least = {k: roofline.bound(cost, ceilings) for k, cost in costs.items()}
for k, side in least.items():
    memory, arithmetic = side.memory_seconds * 1e6, side.compute_seconds * 1e6
    print(f"{k:2} x {k:<2} memory {memory:4.0f} us, arithmetic {arithmetic:6.1f} us: {side.side}-bound")


# %%
def by_side(name):
    """{side of the window: recorded milliseconds} of a rung or a library."""
    entries = record.load().entries("pooling_backward", family="window sizes", contender=name)
    return dict(sorted((entry.sizes["side"], entry.median_ms) for entry in entries))


# %%
def draw_sides():
    store, (figure, ax) = record.load(), chart(4.4)
    ax.plot(sides, [least[k].memory_seconds * 1e3 for k in sides], "k--", label="at least, for the bytes")
    ax.plot(sides, [least[k].compute_seconds * 1e3 for k in sides], "k:", label="at least, for the arithmetic")
    for name, (colour, marker) in plots.colours(store, "pooling_backward").items():
        if points := by_side(name):
            ax.plot(*zip(*points.items(), strict=True), color=colour, marker=marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="side of the window (elements)", ylabel="time (ms)")
    ax.set(title="Gradients of means with stride 1, 16 x 64 planes of 112 x 112", xticks=sides)
    ax.xaxis.set(major_formatter="{x:g}", minor_locator=plt.NullLocator())
    figure.legend(loc="outside right upper")
    foot(figure, store.footer("pooling_backward"))
    return figure


# %%
plots.drawn(draw_sides)

# %% [markdown]
# These are the bounds: to the left of the crossing a larger window costs no more bytes, and to the right the time grows
# with its elements. The kernels are far above both lines, and their times grow from the smallest window on. `gather`
# and `four_wide` ask each window one by one, and that takes longer than the bytes do.
#
# ## Activations: a product with a slope
#
# An activation has one input for each result, and the sum of the chain rule has one term:
# $\partial L / \partial x_i = \partial L / \partial y_i \cdot f'(x_i)$. Here are the slopes.

# %%
v = np.linspace(-4, 4, 401, dtype=np.float32)
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for name, line in zip(("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "silu"), palette.LINES, strict=False):
    ax.plot(v, activation_backward.reference(np.ones_like(v), v, name, slope=0.1), linestyle=line, label=name)
ax.set(xlabel="x", ylabel="slope of the activation at x")
ax.legend(fontsize="small")
None

# %% [markdown]
# ReLU lets the gradient through or not. At 0 it has no slope, and everybody takes 0. The sigmoid's slope is at most a
# quarter: that is why deep networks of sigmoids hardly learned. For $f(x) = x\,g(x)$, as in SiLU and GELU, the product
# rule gives $f'(x) = g(x) + x\,g'(x)$.
#
# ## A slope that does not vanish too early
#
# The textbook has the slope of tanh from its result: $1 - y^2$. That is cheap, and it needs no `x`. But $y$ is rounded.
#
# **Predict, then run.** From which whole number x on is $1 - \tanh^2 x$ exactly 0, in float32?

# %%
guess = None  # x

numbers = np.arange(1, 20, dtype=np.float32)
rounded = np.tanh(numbers.astype(np.float64)).astype(np.float32)  # the best that float32 can hold
textbook = np.float32(1) - rounded * rounded
predict(guess, int(numbers[textbook == 0][0]), exact=True)

# %%
ours = device.to_host(activation_backward.vectorised(np.ones_like(numbers), numbers, "tanh"))
exact = activation_backward.reference(np.ones_like(numbers), numbers, "tanh")
for place in (1, 4, 7, 8, 9, 10):
    print(
        f"x = {numbers[place]:2.0f}   1 - y^2 {textbook[place]:.3e}   ours {ours[place]:.3e}   exact {exact[place]:.3e}"
    )

# %% [markdown]
# Below 1 a float32 has steps of $6 \cdot 10^{-8}$, so what is left of the small difference is rounding.
# The slope of the sigmoid, $s (1 - s)$, has the same fault. With $e = e^{-|x|}$ it is $e / (1 + e)^2$, where nothing is
# subtracted. And $\tanh' x$ is four times the slope of the sigmoid at $2x$.

# %%
show(activation_backward.bell)
show(activation_backward.back)

# %% [markdown]
# So this room takes `x`, not the result. ReLU alone may be given either: both are positive at the same places.
#
# ## `elementwise` and `vectorised`
#
# The least bytes are 12 for each element: two arrays are read, one is written. The two rungs are those of chapter 46,
# with one more load.

# %%
show(activation_backward.vectorised_kernel)

# %%
plots.drawn(plots.ladder, "activation_backward", family="relu")

# %%
for name in ("relu", "gelu", "silu"):
    measured("activation_backward", name, "elementwise", "vectorised")

# %%
plots.drawn(plots.sweep, "activation_backward", family="relu", xlabel="elements")

# %% [markdown]
# ### Exercise: a gate, backwards

# %%
exercise("activation_backward/gated")


# %%
@cuda.jit
def gated(dy, x, dx):
    pass  # your code


check("activation_backward/gated", gated)

# %% [markdown]
# ## `fused`: the gradient of the bias on the way
#
# Before many an activation stands a bias, one number $b_c$ for each channel: $y = f(x + b_c)$. All elements of the
# channel depend on it, in all images, and each with slope 1. So its gradient is the sum of their gradients.
#
# `elementwise` adds with atomics, millions of them into a few numbers. `vectorised` reads what it has written, and adds
# it up as [chapter 30](30_reduction.ipynb) does: each block a share, and a last kernel the sums of the shares, always
# in the same order. `fused` adds the numbers while they are still in registers.
#
# **Predict, then run.** How many times the bytes of `fused` does `vectorised` move, gradient of the bias included?

# %%
guess = None  # times the bytes


def sectors(rung):
    """What a rung loads and stores for a gradient of maps and of a bias, in sectors."""
    reports = lab.count(rung, maps, maps, "relu", return_bias_gradient=True).reports
    return sum(report.counters[f"global_{way}_sectors"] for report in reports for way in ("load", "store"))


predict(guess, sectors(activation_backward.vectorised) / sectors(activation_backward.fused), within=0.05)

# %%
for rung in (activation_backward.vectorised, activation_backward.fused):
    print(f"{rung.name:12}{32 * sectors(rung) / maps.size:6.2f} bytes for each element, in sectors")
measured("activation_backward", "relu and bias", "elementwise", "vectorised", "fused")

# %%
show(activation_backward.channel_share)

# %% [markdown]
# `makes` is a constant where the kernels call this, so each kernel keeps one of the branches. A channel's elements are
# neighbours within a plane only. With a layer of shape (rows, columns) a channel is a column, and its elements are a
# row apart: there the lanes of a warp take 32 columns, and the rows of a block are added in shared memory.

# %%
show(activation_backward.column_share)

# %%
plots.drawn(plots.ladder, "activation_backward", family="relu and bias")

# %% [markdown]
# And in 16 bits? The sum for the bias is kept in float32 until the end, and rounded once.

# %%
plots.drawn(plots.by_dtype, "activation_backward", "relu and bias")

# %% [markdown]
# ### Exercise: the gradient of a bias

# %%
exercise("activation_backward/bias")


# %%
@cuda.jit
def bias(dy, x, dbias):
    pass  # your code


check("activation_backward/bias", bias)

# %% [markdown]
# ## What to take along
#
# 1. The chain rule with indices is a program. Read it by results, and it scatters; read it by inputs, and it gathers.
# 2. A gather needs no atomics, no zeros, and gives the same bits twice.
# 3. The forward pass knows things that are dear to find again. Keep them as small as they are: one byte, not eight.
# 4. Where a pattern repeats, let a thread take a whole period of it. Then the indices are constants.
# 5. Write a slope so that nothing cancels.
# 6. Sum what is in registers, in an order that does not depend on time.
#
# ## Exercises
#
# Four stand in the text above. One is left.
#
# **Without a check.** ReLU needs one bit of each element on the way back: was it positive? How many bytes must move for
# an element if the forward pass keeps 32 of these bits in a number of 32 bits, and how much shorter is the bound?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def positions_answer(gradient, positions, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total = np.float32(0)
        for y in range(max(row - 1, 0), min(row + 2, h)):
            for z in range(max(column - 1, 0), min(column + 2, w)):
                if positions[plane, y, z] == 3 * (row - y + 1) + column - z + 1:
                    total += gradient[plane, y, z]
        out[plane, row, column] = total


assert check("pooling_backward/positions", positions_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def means_answer(gradient, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total = np.float32(0)
        for y in range(max((row - 1) // 2, 0), min(row // 2 + 1, gradient.shape[1])):
            for z in range(max((column - 1) // 2, 0), min(column // 2 + 1, gradient.shape[2])):
                total += gradient[plane, y, z]
        out[plane, row, column] = total / np.float32(9)


assert check("pooling_backward/means", means_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def gated_answer(dy, x, dx):
    i = cuda.grid(1)
    if i < dy.size:
        n = dy.shape[1]
        row, column = i // n, i % n
        gate, value, given = x[row, column], x[row, n + column], dy[row, column]
        sigmoid = activation.logistic(gate)
        dx[row, column] = given * value * sigmoid * (np.float32(1) + gate * (np.float32(1) - sigmoid))
        dx[row, n + column] = given * gate * sigmoid


assert check("activation_backward/gated", gated_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def bias_answer(dy, x, dbias):
    images, inner, channel = x.shape[0], x.shape[2], cuda.blockIdx.x
    total, shared = np.float32(0), cuda.shared.array(32, np.float32)
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        if x[i // inner, channel, i % inner] > np.float32(0):
            total += dy[i // inner, channel, i % inner]
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        dbias[channel] = total


assert check("activation_backward/bias", bias_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
with_x, with_bits = 4 + 4 + 4, 4 + 1 / 8 + 4
print(f"{with_x} bytes for each element with x, {with_bits} with bits: {with_bits / with_x:.0%} of the time")

# %% [markdown]
# *One bit.* It is also a thirty-second of the memory that is kept from the forward pass to the way back.
#
# Go on with [chapter 79](79_sparsity.ipynb): half of the weights are left out, and tensor cores know it.
