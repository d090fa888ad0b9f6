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
# # 68. Winograd's algorithm
#
# *Fewer multiplications, polynomials and points, tiles of two and of four, transforms in registers, rounding. Read
# chapter [66](66_implicit_gemm.ipynb) before. 40 minutes. PMPP 4e: section 16.5; 5e: chapter 19. The code is
# [pmpp/kernels/convolution_layer/winograd.py](../pmpp/kernels/convolution_layer/winograd.py).*
#
# In ResNet-50 the 16 layers with a window of 3 x 3 do nearly half of the multiplications. [Direct
# convolution](62_direct_convolution.ipynb), [im2col](64_im2col.ipynb) and [implicit GEMM](66_implicit_gemm.ipynb) all
# do the nine multiplications that its definition asks for, and the best of them wait for arithmetic. The definition is
# no law, though. The same numbers can be had with fewer multiplications.
#
# **The question of this chapter: how many multiplications does an output need, and what has to be paid for the
# others?**

# %%
import functools
from fractions import Fraction

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from pmpp import cuda, lab, predict, simt
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
from pmpp.kernels.convolution_layer import direct, winograd, winograd_transforms
from pmpp.kernels.convolution_layer import winograd_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, sums
from pmpp.kernels.convolution_layer.winograd_transforms import POINTS, bound, cook_toom

# %% [markdown]
# ## The bound, and a way under it
#
# These are the layers of 3 x 3 among the seven that the chapters on convolution are judged by, with the least time that
# the multiplications of the definition take:

# %%
ceilings = roofline.ceilings()
for layer in DESIGN[2:6]:
    least = roofline.bound(layer.cost, ceilings)
    print(f"{layer!s:27} {layer.cost.flops / 1e9:5.2f} GFLOP, at least {least.seconds * 1e3:.3f} ms ({least.side})")

network = resnet50(32)  # {layer: how often}
work = {True: 0, False: 0}  # FLOP of the layers of 3 x 3, and of the others
for layer, times in network.items():
    work[layer.r == 3] += layer.cost.flops * times
several = sum(times for layer, times in network.items() if layer.r == 3)
share = work[True] / sum(work.values())
print(f"ResNet-50: {several} of {sum(network.values())} layers are 3 x 3, with {share:.0%} of all FLOP")

# %% [markdown]
# This bound counts the definition's operations. A way that does fewer may beat it. A layer's bytes are its other bound,
# and nobody gets under that one.
#
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
    """Print what rungs asked for on the toy layer, for each multiply-add of a warp, and their largest error."""
    for rung in rungs:
        error = abs(counted(rung).result - exact).max()
        print(f"{rung.name:15}{traffic(counted(rung), toy.cost.flops)}; error {error:.0e}")


# %% [markdown]
# ## Two outputs for four multiplications
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
# ## Where such formulas come from
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
for name, matrix in zip(("A^T", "G", "B^T"), cook_toom(2), strict=True):
    rows = ("  ".join(f"{value!s:>4}" for value in row) for row in matrix)
    print(f"{name:4}", "\n     ".join(rows))

# %% [markdown]
# The rows of $G$ take the values of $g$ at 0, 1, -1 and infinity. Each row is divided by a number that belongs to the
# putting together. In $G$ this is done once for a filter. In $B^T$ it would be done for every tile. The room computes
# these matrices from the points, with Python's `Fraction`, so no coefficient is typed by hand.

# %%
show(cook_toom)

# %% [markdown]
# ### Exercise: two outputs, four multiplications
#
# `check` runs your kernel in the interpreter, with every access checked, and says what it found. The answers to all
# exercises are at the end, folded away.

# %%
exercise("winograd/row")


# %%
@cuda.jit
def row(x, u, out):
    pass  # your code


check("winograd/row", row)

# %% [markdown]
# ## Two dimensions
#
# An image has rows and columns, and the trick works along both: transform the columns of a tile, then its rows.
#
# $$Y = A^T \left[ (G\, g\, G^T) * (B^T d\, B) \right] A$$
#
# A tile of $m \times m$ outputs takes $(m + 2)^2$ multiplications, where the definition takes $9 m^2$.
#
# **Predict, then run.** How many times fewer is that for m = 2, and for m = 4?

# %%
guess = {"m = 2": None, "m = 4": None}  # times fewer


def fewer(m):
    """Products of the definition for a tile, over those of F(m x m, 3 x 3): G has a row for each point."""
    points = len(cook_toom(m)[1])
    return 9 * m * m / points**2


predict(guess, {f"m = {m}": fewer(m) for m in (2, 4)}, unit="times fewer")

# %%
for m in (1, 2, 4, 6, 100):
    print(
        f"F({m} x {m}, 3 x 3): {(m + 2) ** 2:6,} instead of {9 * m * m:7,}: {9 * m * m / (m + 2) ** 2:.2f} times fewer"
    )

# %% [markdown]
# With larger m the factor comes near 9: a tile has little more than one point for each output. Nobody takes m = 100,
# though. The reason is further down, under *Why not larger tiles*. First, is the output of two dimensions right?


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
# ## The layer
#
# Transforming a tile back is linear. So the sum over channels can be done *before* it, once for all channels, and
# nothing of a product is transformed but the sum. What is left in the middle is, for each of the $(m + 2)^2$ elements
# of a tile, a sum over channels of weight times image, for every filter and every tile: a matrix product. There are 16
# or 36 of them. For each tile, the work of the transforms grows with C + K, and that of the products with C K. The
# weights are transformed once for all tiles. So the transforms are paid for where there are many channels.
#
# Tiles of the output lie side by side. Tiles of the image overlap by two rows and columns, since the window reaches
# beyond the output's tile.

# %%
figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.4), layout="constrained")
for ax, side, name in zip(axes, (6, 4), ("padded image", "output"), strict=True):
    extent = 14 if side == 6 else 12
    ax.pcolormesh(np.zeros((extent, extent)), cmap=ListedColormap(["white"]), edgecolors=palette.EDGE, linewidth=0.5)
    for (top, left), colour in zip(((0, 0), (0, 4), (4, 4)), palette.COLOURS[:3], strict=True):
        ax.add_patch(plt.Rectangle((left, top), side, side, color=colour, alpha=0.4))
    ax.set(title=f"{name}: tiles of {side} x {side}", aspect="equal", xticks=[], yticks=[])
    ax.invert_yaxis()

# %% [markdown]
# Three tiles of each, in the same colours. What is read twice is where two colours mix. The kernel takes one tile of
# the image to a thread: here for m = 2, where it is 4 x 4.

# %%
show(winograd.small_image_kernel)
show(winograd_transforms.image_four)

# %% [markdown]
# The kernel for the output goes the same way back, and `product_kernel` between them is a thread for each sum. Let us
# count its operations for the toy layer, and those of the transforms. A rung launches four kernels: weights, images,
# products, output.

# %%
transformed = {}  # FLOP of the transforms of weights, images and output, by m
for m, rung in ((2, winograd.batched), (4, winograd.large_tiles)):
    elements, tiles = (m + 2) ** 2, toy.n * (toy.p // m) * (toy.q // m)
    u, v, s = (np.zeros(elements * n, np.float32) for n in (toy.k * toy.c, toy.c * tiles, toy.k * tiles))
    sizes = elements, elements, toy.k, tiles, toy.c
    report = simt.profile(winograd.product_kernel, -(-s.size // 128), 128, (u, v, s, sizes))
    products = report.counters["flops"]
    found = counted(rung).reports
    transformed[m] = [found[place].counters["flops"] for place in (0, 1, 3)]
    both = products + sum(transformed[m])
    print(f"F({m} x {m}, 3 x 3): products {products:,} FLOP, {toy.cost.flops / products:.2f} times fewer;", end=" ")
    print(f"transforms {sum(transformed[m]):,}; together {toy.cost.flops / both:.2f} times fewer")

# %% [markdown]
# 2.25 and 4 times fewer, as calculated. The toy has only 8 channels, so the transforms weigh much. Here is the layer
# with 512 channels, scaled up from the toy's counts for m = 4:

# %%
wide = DESIGN[5]
many = wide.n * -(-wide.p // m) * -(-wide.q // m)
scales = wide.k * wide.c / (toy.k * toy.c), wide.c * many / (toy.c * tiles), wide.k * many / (toy.k * tiles)
flops = sum(count * scale for count, scale in zip(transformed[4], scales, strict=True))
print(f"{wide}: transforms {flops / (2 * elements * wide.k * wide.c * many):.1%} of the products")

# %% [markdown]
# There they hardly count in operations. In bytes they are more: see below.
#
# ## The rungs
#
# `small_tiles` is F(2 x 2, 3 x 3), with the simple product. `batched` gives the 16 products to the batched matrix
# product of [chapter 64](64_im2col.ipynb).
# `large_tiles` is F(4 x 4, 3 x 3), and `vectorised` reads and writes rows of a tile as vectors.
#
# **Predict, then run.** `small_tiles` and `batched` do the same multiplications. What falls by the largest factor from
# one to the other: the bytes asked for, the wavefronts of loads from shared memory, or the instructions?

# %%
guess = None  # "bytes", "wavefronts" or "instructions"

totals = []
for rung in (winograd.small_tiles, winograd.batched):
    found = counted(rung).counters
    sectors = found["global_load_sectors"] + found["global_store_sectors"]
    totals.append((sectors, found["shared_load_wavefronts"], found["warp_instructions"]))
falls = np.divide(*totals)  # each number of small_tiles over that of batched
numbers = "bytes", "wavefronts", "instructions"

predict(guess, numbers[falls.argmax()], choices=numbers)

# %%
count(winograd.small_tiles, winograd.batched)

# %% [markdown]
# In `small_tiles` a thread loads two numbers from global memory for each multiply-add. The batched product loads tiles
# into shared memory, and all threads of a block use them: a quarter of the bytes is left. Wavefronts are what it pays.
# `small_tiles` has none, as it has no shared memory.
#
# ### Exercise: the weights, transformed

# %%
exercise("winograd/weights")


# %%
@cuda.jit
def weights(w, u):
    pass  # your code


check("winograd/weights", weights)

# %% [markdown]
# ### Tiles of four
#
# The next two rungs make tiles of 4 x 4. `large_tiles` does fewer multiplications, and `vectorised` moves rows of a
# tile as vectors.

# %%
count(winograd.large_tiles, winograd.vectorised)

# %% [markdown]
# Bytes and instructions fall again. The error has grown: we come back to it. These are the measured times of all four,
# with TFLOP/s by the definition's count:

# %%
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
# So the bytes cost about as much as the multiplications that are left, and with 64 channels more. These four layers
# have the same FLOP by the definition. Their channels decide what bounds Winograd's way. Here are both bounds, and the
# times that were measured.


# %%
def by_channels():
    """Times of the last rung and of cuDNN over the channels, and the least times of what has to be done."""
    kept, (figure, ax), layers = record.load(room="winograd"), chart(3.6), DESIGN[2:6]
    entries = [entry for layer in layers for entry in kept.design("winograd", f"3x3 c{layer.c} h{layer.h}")]
    for name, marker in (("vectorised", "o-"), ("torch.conv2d", "s--")):
        times = [entry.median_ms for entry in entries if entry.contender == name]
        ax.plot([layer.c for layer in layers], times, marker, label=name)
    roofs = kept.ceilings("winograd")
    least = {
        "multiplications of the definition": [layer.cost.flops / roofs.fma_f32 for layer in layers],
        "arithmetic of Winograd's way": [winograd.own_cost(layer).flops / roofs.fma_f32 for layer in layers],
        "transformed arrays, through memory": [2 * winograd.workspace_bytes(a) / roofs.bandwidth for a in layers],
    }
    return figure, ax, layers, least, kept.footer("winograd")


def against_its_bounds():
    figure, ax, layers, least, footer = by_channels()
    for style, (name, seconds) in zip(("-", "--", ":"), least.items(), strict=True):
        ax.plot([layer.c for layer in layers], [1e3 * each for each in seconds], style, color=palette.INK, label=name)
    ax.set(xscale="log", ylim=(0, None), xlabel="channels and filters, and below them the image", ylabel="time (ms)")
    ax.set_xticks([layer.c for layer in layers], [f"{layer.c}\n{layer.h} x {layer.w}" for layer in layers])
    ax.set_title("32 images, windows of 3 x 3")
    ax.minorticks_off()
    figure.legend(loc="outside right upper")
    foot(figure, footer)
    return figure


# %%
plots.drawn(against_its_bounds)

# %% [markdown]
# The two lower lines cross. With 64 channels on large images the transformed arrays take longer than the arithmetic, so
# memory is the bound. With 256 and more it is the arithmetic. The rung lies above both: it does one after the other, in
# four kernels, so it cannot take less than the sum of the two. How far is it from that?


# %%
def times_the_sum():
    """Print the last rung's time, and how many times the two lower lines together it is."""
    (_, _, layers, least, _), kept = by_channels(), record.load(room="winograd")
    _, arithmetic, arrays = least.values()
    for layer, one, other in zip(layers, arithmetic, arrays, strict=True):
        entries = {entry.contender: entry for entry in kept.design("winograd", f"3x3 c{layer.c} h{layer.h}")}
        taken = entries["vectorised"].seconds
        print(f"{layer!s:27} {taken * 1e3:.3f} ms, {taken / (one + other):.2f} times the sum")


plots.drawn(times_the_sum)

# %% [markdown]
# Four launches are part of the difference. With small images there are also few tiles, and few blocks to fill the GPU.

# %%
plots.drawn(plots.ladder, "winograd", family="3x3 c64 h56")

# %%
plots.drawn(plots.roofline, "winograd", family="3x3 c64 h56")

# %% [markdown]
# The bars count the definition's operations. Where one comes near the roof or passes it, the kernel is not faster than
# the hardware. It has done less. The roofline has each rung twice: hollow by the definition's count, and filled by the
# algorithm's own, `own_cost`. This is the least work of transforms and products, with the bytes of image, weights and
# output alone. What lies between a filled mark and the roof is for the most part the way of the transformed arrays
# through memory.
#
# ## Why not larger tiles
#
# In exact arithmetic any points will do. In float32 it matters: large powers of a point make large numbers that cancel
# in the end, and their rounding errors do not. To try other points, here are the same matrices again, in float64 and
# for any points: $A^T$ holds powers of the points. $G$ holds the same powers, divided. $B^T$ holds the coefficients of
# polynomials that are 0 at all other points.


# %%
def matrices(points):
    """A^T, G and B^T of F(m, 3) at m + 1 points and infinity."""
    points = np.array([float(point) for point in points])
    m = len(points) - 1
    others = [np.delete(points, i) for i in range(m + 1)]
    a = np.vstack([np.vander(points, m, increasing=True), np.eye(m)[-1]])
    scales = np.array([[np.prod(point - rest)] for point, rest in zip(points, others, strict=True)])
    g = np.vstack([np.vander(points, 3, increasing=True) / scales, [0, 0, 1]])
    b = np.vstack([[*np.poly(rest)[::-1], 0] for rest in others] + [np.poly(points)[::-1]])
    return a.T, g, b


same = [np.allclose(a, b.astype(float)) for a, b in zip(matrices(POINTS[4]), cook_toom(4), strict=True)]
print("at the room's points they are the room's matrices:", same)

# %% [markdown]
# How much can an error grow? Put absolute values everywhere, so that nothing cancels, and all inputs to 1: the
# definition gives 3, in each dimension.


# %%
def growth(points):
    """The largest of |A^T| [(|G| 1) * (|B^T| 1)] over 3, squared for two dimensions."""
    a, g, b = (abs(matrix) for matrix in matrices(points))
    return max(a @ (g.sum(axis=1) * b.sum(axis=1))) ** 2 / 9


others = (0, 1, -1, 2, -2, Fraction(1, 2), -Fraction(1, 2))
for m, points in ((2, POINTS[2]), (4, others[:5]), (4, POINTS[4]), (6, others)):
    named = ", ".join(str(point) for point in points)
    print(f"F({m} x {m}) at {named:28} and infinity: numbers up to {growth(points):6.1f} times as large")

# %% [markdown]
# The points 0, 5/8, -5/8, 3/2, -3/2 are the room's. With 1 and 2 the transforms need hardly a multiplication, but
# errors can become several times larger. Beyond m = 4 it gets worse still, while less and less is saved. Measured on
# the toy layer:

# %%
for rung, m in ((direct.naive, 0), (winograd.batched, 2), (winograd.vectorised, 4)):
    off = abs(lab.count(rung, x, w, None, toy.stride, toy.padding).result - exact)
    allowed = bound(x, w, toy, m) if m else (toy.terms + 2) * 2.0**-24 * sums(abs(x), abs(w), toy)
    named = f"F({m} x {m}, 3 x 3)" if m else "direct"
    print(f"{named:15} largest error {off.max():.1e}, mean {off.mean():.1e}; {(off / allowed).max():.0%} of its bound")

# %% [markdown]
# F(4 x 4) is a few times less exact than a sum of products. A network does not notice. A program that compares results
# to the last digit does. (The bounds hold for the worst case, and roundings cancel, so all stay far below.)
#
# ## What to take along
#
# - To beat the roof, do less. Winograd's algorithm knows a polynomial by its values at a few points, and needs one
#   multiplication for each of them.
# - What is saved in multiplications is paid in additions, in bytes and workspace for the transformed arrays, and in
#   rounding. The transforms are worth it where there are many channels.
# - Larger tiles save more, and round worse. Good points are part of the algorithm.
#
# To read on: A. Lavin and S. Gray, *Fast algorithms for convolutional neural networks* (2016); B. Barabasz et al.
# (2020) on its errors.
#
# ## Exercises
#
# Two more, on paper. `check` cannot see them.
#
# - Winograd's way takes m + R - 1 points for m outputs and a window of R. How many multiplications does F(4 x 4, 5 x 5)
#   take for an output? How many points does it have along a row? Which other F(m x m, R x R) needs the same, and so the
#   same transform of the image?
# - `refuses` of Winograd's room sends depthwise layers elsewhere. Count multiplications and bytes of a depthwise layer
#   of 3 x 3: what would be saved, and what is the bound?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.row_answer)
assert check("winograd/row", solutions.row_answer)

# %% [markdown]
# *Two outputs.* Four products, one with each of `u[0]` to `u[3]`. The two in the middle serve both outputs: that is
# where the saving is.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.weights_answer)
assert check("winograd/weights", solutions.weights_answer)

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
# *Other windows.* F(4 x 4, 5 x 5), F(6 x 6, 3 x 3) and F(2 x 2, 7 x 7) have eight points per row. The transform of
# the image depends on the points alone, so one kernel would serve all three. But eight points round worse than six.
#
# *Depthwise.* It is far to the left of the ridge. Multiplications cost nothing there, and Winograd's arrays are more
# bytes.
#
# Go on with [chapter 70](70_convolution_by_fft.ipynb), which has points for windows of any size.
