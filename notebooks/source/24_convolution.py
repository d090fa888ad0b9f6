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
# # 24. Convolution
#
# *Masks, borders, constant memory, tiles with a halo, caches, separable masks, register tiles. Read chapters
# [16](16_transpose.ipynb) and [20](20_memory_or_compute.ipynb) before. 90 minutes. PMPP 4e: chapter 7; 5e: chapter 7.
# The code is [pmpp/kernels/convolution/ladder.py](../pmpp/kernels/convolution/ladder.py).*
#
# Blur a photograph. Sharpen it. Find its edges. Each of these replaces every pixel by a weighted sum of its
# neighbours, and they differ only in the weights. The same sum is the heart of the networks that tell what is on the
# photograph.
#
# A photograph of 4096 x 4096 pixels and 31 x 31 weights make 32 billion operations, which is little for a large GPU,
# and the photograph is small beside its memory. Even so the vendor's own library takes several milliseconds.
#
# **The question of this chapter: what is the least time for such a sum, and what stands between it and the obvious
# kernel?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import convolution
from pmpp.kernels.convolution.borders import BORDERS, element, factors, load_patch, load_vectors, source
from pmpp.kernels.convolution.dimensions import tiled_1d, tiled_3d
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## What is computed
#
# The weights are a *mask* (PMPP says *filter*) of R rows and S columns. It is laid over the image with its middle on a
# pixel. What lies on top of each other is multiplied, all products are added, and the sum is the new pixel. Then the
# mask moves on to the next.

# %%
grey = np.ascontiguousarray(data.photographs()[0].mean(axis=2).astype(np.float32)[60:380:2, 120:600:2])
bell = np.exp(-(np.arange(-3, 4) ** 2) / 4).astype(np.float32)
bell /= bell.sum()
blur = np.outer(bell, bell)
sharpen = np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]], np.float32)
across = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
down = np.ascontiguousarray(across.T)


def convolve(mask, border="edge"):
    """The photograph under a mask, on the host."""
    return device.to_host(convolution.vectorised(grey, mask, border))


# %%
edges = np.hypot(convolve(across), convolve(down))
pictures = {"the photograph": grey, "blurred": convolve(blur), "sharpened": convolve(sharpen), "edges": 255 - edges}
figure, axes = plt.subplots(1, 4, figsize=(11, 2.1), layout="constrained")
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=255)
    ax.set_title(title)
    ax.axis("off")

# %% [markdown]
# The blur is a bell of 7 x 7 weights that add up to one. The sharpening mask takes five times a pixel less its four
# neighbours: what differs from its surroundings comes to differ more. The edges are the length of a slope, whose two
# parts are differences across and down. (The library of this chapter computed all four. We look inside soon.)
#
# Two conventions need care, and most wrong results come from one of them. The first is the direction of the mask.
#
# **Predict, then run.** An image of 5 x 5 pixels is 0, except for a 1 in the middle. The mask is 1 2 3 / 4 5 6 / 7 8 9.
# What are the nine pixels in the middle after the convolution?

# %%
guess = None  # three rows, [[top], [middle], [bottom]], of three numbers each

impulse = np.zeros((5, 5), np.float32)
impulse[2, 2] = 1
nine = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
predict(guess, convolution.reference(impulse, nine)[1:4, 1:4].astype(int))

# %%
print(convolution.reference(impulse, nine).astype(int))

# %% [markdown]
# It is the mask, turned by half a circle: the pixel to the left of the 1 has it on its right, under the weight 6.
# Mathematicians turn the mask over beforehand, so that it would come out as it is, and they call only that a
# convolution. What we compute they call a *correlation*. PMPP, cuDNN and PyTorch all leave the mask as it is and say
# convolution. So do we. If you need the other, turn the mask: `mask[::-1, ::-1]`.
#
# The second convention is what lies beyond the border. Three are common, and people call them by different names.

# %%
numbers = np.arange(1, 6, dtype=np.float32)
left, right = np.eye(1, 5, 0, dtype=np.float32)[0], np.eye(1, 5, 4, dtype=np.float32)[0]
for border, elsewhere in {
    "zero": "numpy.pad: constant; scipy.ndimage: constant",
    "reflect": "numpy.pad: reflect;  scipy.ndimage: mirror",
    "edge": "numpy.pad: edge;     scipy.ndimage: nearest",
}.items():
    before, behind = (device.to_host(tiled_1d(numbers, mask, border)).astype(int) for mask in (left, right))
    print(f"{border:8} {before[:2]} | 1 2 3 4 5 | {behind[-2:]}   {elsewhere}")

# %% [markdown]
# A mask with a single 1 moves the image, and so shows what comes in from outside. Last, an even mask has no middle:
# its centre is the element behind it, number R // 2 of R, as in `scipy.ndimage.correlate`.
#
# ## The bound
#
# Each of H W pixels takes R S multiply-adds: 2 H W R S operations. The image must come in once and go out once: 8 H W
# bytes in float32. So the arithmetic intensity is R S / 4 FLOP a byte, whatever the size of the image. The *ridge*
# ([chapter 20](20_memory_or_compute.ipynb)) is the intensity at which memory and arithmetic need the same time.

# %%
ceilings = roofline.ceilings("convolution")
print(f"ridge {ceilings.ridge:.1f} FLOP/byte ({ceilings.source})")


def least(k):
    """The bound for a mask of k x k on an image of 4096 x 4096."""
    return roofline.bound(convolution.cost(4096, 4096, k, k), ceilings)


# %% [markdown]
# **Predict, then run.** A square mask shall have an odd side. What is the smallest side at which arithmetic sets the
# bound, and not the memory?

# %%
guess = None  # elements along a side

predict(guess, next(k for k in range(1, 99, 2) if least(k).side == "compute"))

# %%
for k in (3, 5, 7, 9, 15, 31):
    intensity = convolution.cost(4096, 4096, k, k).intensity
    print(f"{k:2} x {k:<2} {intensity:6.1f} FLOP/byte, at least {least(k).seconds * 1e6:5.0f} us: {least(k).side}")

# %% [markdown]
# A mask of 7 x 7 sits near the ridge, and one of 31 x 31 is far beyond it. We follow these two. The record has what
# the libraries need for them: PyTorch calls cuDNN, which tries its algorithms and keeps the fastest, in float32 proper;
# CuPy has a kernel of its own for images.


# %%
def measured(*names, families=("7x7", "31x31")):
    """Print recorded times at 4096 x 4096."""
    try:
        store = record.load()
        entries = [entry for family in families for entry in store.design("convolution", family)]
    except record.RecordError as missing:
        entries = []
        print("There are no times to show:", missing)
    for entry in (entry for entry in entries if entry.contender in names):
        share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, ceilings)
        print(f"{entry.family:16}{entry.contender:26}{entry.median_ms:8.3f} ms", end="")
        print(f"{entry.flops / entry.seconds / 1e12:7.2f} TFLOP/s{share:7.1%} of the roof")


measured("torch.conv2d", "cupy.ndimage.correlate")

# %% [markdown]
# cuDNN was made for layers with dozens of channels, where a convolution is nearly a matrix multiplication. One channel
# is not what it is good at, and there is much to win.
#
# ## The reference
#
# Slow and plainly right: pad the image, shift it once for each weight, add up in float64.

# %%
show(convolution.reference)

# %% [markdown]
# ## The first rung, `basic`: a thread for each pixel
#
# Threads know nothing of each other. Each walks over the mask, and asks for every element what the border says.

# %%
show(convolution.basic_kernel)

# %%
show(element)
show(source)

# %% [markdown]
# (`corner` finds a block's first pixel. Blocks are numbered in one dimension, since a grid has at most 65,535 along
# `y`, and an image may have any number of rows.)
#
# Now under the microscope. `lab.count` runs what a rung launches in the interpreter, on a machine with a GPU, too, and
# counts what the hardware would have to do. The next cells also check the result.

# %%
x = np.random.default_rng(7).standard_normal((256, 256), dtype=np.float32)
five = np.random.default_rng(8).standard_normal((5, 5), dtype=np.float32)
reports = {}
print(f"an image of {x.shape}, a mask of {five.shape}, the border is the edge")


# %%
def count(rung, mask=five, **options):
    """The report on the kernel that a rung launches for x; those for the mask of 5 x 5 are kept."""
    counted = lab.count(rung, x, mask, "edge", **options)
    print(f"{rung.name}: largest error {abs(counted.result - convolution.reference(x, mask, 'edge')).max():.0e}")
    if mask is five:
        reports[rung.name] = counted.reports[0]
    return counted.reports[0]


# %%
count(convolution.basic)

# %% [markdown]
# Nearly all instructions are on the line with the multiply-add. (What a device function does counts where it is
# called.) The next table says how many, for each multiply-add of a warp. Two of them are loads: one of *x*, and one of
# the mask, which for a warp is a single number. The rest is mostly the question about the border, asked 25 times a
# pixel, though the answer is nearly always that there is none. The last column is the intensity by the sectors that the
# kernel asks for, and the last line the most that it could be.


# %%
def facts(*names):
    """What the rungs need for each multiply-add of a warp, and the FLOP for each byte asked of global memory."""
    print(f"{'a multiply-add takes':22}instructions  global loads  shared wavefronts  FLOP/byte")
    adds = convolution.cost(*x.shape, 5, 5).flops / 64
    for name in names:
        each = {counter: count / adds for counter, count in reports[name].counters.items()}
        print(f"{name:22}{each['warp_instructions']:12.2f}{each['global_load_requests']:14.2f}", end="")
        print(f"{each['shared_load_wavefronts']:19.2f}{plots.counted_intensity(reports[name]):11.2f}")


facts("basic")
print(f"{'at best':67}{convolution.cost(*x.shape, 5, 5).intensity:11.2f}")

# %% [markdown]
# (The interpreter counts operations of the Python source. The compiler makes several instructions of some, and none
# of others. The proportion is what to look at.)
#
# ## The second rung, `constant_memory`: one number for all
#
# The mask is small, it does not change while the kernel runs, and all lanes want the same element at the same time. For
# just that there is *constant memory*: 64 KB behind a cache that hands one number to all lanes of a warp at once. A
# multiply-add can take its weight from there directly, with no load at all (PMPP 7.3).

# %%
show(convolution.kernel_with)

# %% [markdown]
# This is a function that makes a kernel. It has to be. In CUDA C++ one declares a constant array, compiles once, and
# copies a new mask into it with `cudaMemcpyToSymbol` before a launch. Numba has no such call. `cuda.const.array_like`
# copies the values *when the kernel is compiled*, and they are part of it from then on. So there is a kernel for each
# mask. `functools.lru_cache` keeps the last 32.
#
# That has a good side. The compiler knows all extents, so it can write a small mask's loops out, with each weight at a
# known place. And it has a bad one: a new mask costs a compilation.
#
# **Predict, then run.** The rung passes the mask's shape and its bytes to this function. We call the rung with a mask,
# double all weights in place, in the same array, and call it again. Which result does the second call give?

# %%
guess = None  # "the old one" or "the new one"

changing = np.ones((3, 3), np.float32)
before = device.to_host(convolution.constant_memory(x, changing))[5, 5]
changing *= 2
after = device.to_host(convolution.constant_memory(x, changing))[5, 5]
predict(guess, "the old one" if before == after else "the new one", choices=("the old one", "the new one"))

# %%
print(f"{before:.4f}, then {after:.4f}; kernels made: {convolution.kernel_with.cache_info().misses}")

# %% [markdown]
# The rung asks for a kernel by the mask's *values*, so it is right, and it has compiled twice. A cache by shape would
# have given the old result (it is among the wrong kernels of our tests).
#
# When is a kernel for each mask worth it? For a blur that runs over a million photographs. Not for weights that a
# network changes at each step of its training. There is a third way, used for a few numbers: arguments of a kernel lie
# in constant memory, too, and a tuple of floats is an argument. But a kernel may index a tuple only by numbers that
# are known when it is compiled, so all loops must be written out.

# %%
count(convolution.constant_memory)
facts("basic", "constant_memory")

# %%
measured("basic", "constant_memory")

# %% [markdown]
# Half of the loads are gone, those of the mask. The rest is as it was: all those questions, and 25 loads of *x* for
# each pixel, though neighbouring pixels see nearly the same elements.
#
# ### Exercise: an image without a border
#
# Before we go on, change a kernel yourself. A texture in a game repeats itself: behind its right edge comes its left
# one. `check` runs your kernel on awkward sizes, watches every access, and tells you what it saw. Our answer is at the
# end of the chapter, as for all exercises.

# %%
exercise("convolution/wrap")


# %%
@cuda.jit
def wrap(x, mask, out):
    pass  # your code


check("convolution/wrap", wrap)

# %% [markdown]
# ## The third rung, `tiled`: a tile with its halo
#
# A block makes 32 x 32 pixels. Together they see 32 + S − 1 columns of 32 + R − 1 rows: the tile, and a *halo* around
# it (PMPP 7.4). The block loads all that once into shared memory.

# %%
figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
for ax, k in zip(axes, (3, 7, 31), strict=True):
    side, reach = convolution.TILE + k - 1, k // 2
    area = np.zeros((side, side))
    area[reach : reach + 32, reach : reach + 32] = 1
    ax.pcolormesh(area, cmap="Oranges", vmin=-0.5, vmax=1.5)
    ax.set(aspect="equal", xticks=[], yticks=[], title=f"{k} x {k}: {side**2 / 32**2:.2f} loads a pixel")
note = figure.supxlabel("dark: the 32 x 32 outputs; light: their halo", fontsize=9)

# %%
show(convolution.tiled_kernel)

# %%
show(load_patch)
show(convolution.weighted_sum)

# %% [markdown]
# Three things are new besides the tile. The mask lies in shared memory as well: when all lanes read one word there,
# it is broadcast, in one wavefront. And it is an argument like any other again, so nothing is compiled for it.
#
# Blocks whose tile lies inside the image do not ask about the border. All threads of a block take the same branch, so
# it costs one comparison each.
#
# Indices are unsigned. That is Numba's doing. An index that may be negative counts from the end, as in Python, which
# takes a comparison and a selection for each access, and keeps the compiler from unrolling the loop. For loops over
# shared memory this matters more than anything else in the kernel.
#
# How much does a tile save? For T x T outputs and a mask of R x R the block does 2 T² R² operations. It loads 4 (T + R
# − 1)² bytes of *x*. So the intensity, as far as global loads go, is
#
# $$\frac{2\,T^2 R^2}{4\,(T + R - 1)^2} = \frac{R^2}{2}\left(\frac{T}{T + R - 1}\right)^2.$$
#
# The factor R²/2 is the best possible. The rest is what the halo costs (PMPP 7.4).
#
# **Predict, then run.** For a mask of 5 x 5 the best is 12.5 FLOP a byte. How much of it is left for T = 8, and how
# much for T = 32?

# %%
guess = {"T = 8": None, "T = 32": None}  # FLOP a byte


def tile_intensity(side):
    """FLOP for each byte of x that blocks of side x side threads load, as counted."""
    grid, shared = (256 // side) ** 2, 4 * (25 + (side + 4) ** 2)
    args = x, five, np.empty_like(x), BORDERS["edge"]
    counted = simt.profile(convolution.tiled_kernel, grid, (side, side), args, sharedmem=shared).counters
    return counted["flops"] / (counted["global_load_bytes"] - grid * 4 * five.size)  # without the mask


predict(guess, {f"T = {side}": tile_intensity(side) for side in (8, 32)}, unit="FLOP/byte")

# %%
for side in (8, 16, 32):
    formula = 5**2 / 2 * (side / (side + 4)) ** 2
    print(f"5 x 5, T = {side:2}: counted {tile_intensity(side):6.3f} FLOP/byte, by the formula {formula:6.3f}")
formula = 31**2 / 2 * (32 / (32 + 30)) ** 2
print(f"31 x 31, T = 32: by the formula {formula:.0f} FLOP/byte, {formula / (31**2 / 2):.0%} of the best")

# %% [markdown]
# Count and formula agree. A block of 32 x 32 threads is the largest there is. Under 31 x 31 weights its halo leaves
# about a quarter of the best intensity. That is still hundreds of times what `basic` has.
#
# So is the largest tile always best? It reuses most. But tiles are cut off at the edges of an image, and the threads
# beyond an edge have no output.
#
# **Predict, then run.** An image has 100 x 100 pixels. What share of all threads has no output with tiles of 8 x 8, and
# what share with 32 x 32?

# %%
guess = {"T = 8": None, "T = 32": None}  # %


def wasted(side, image=100):
    """The share of threads without an output, in per cent."""
    blocks = -(-image // side)
    return 100 * (1 - image**2 / (blocks * side) ** 2)


predict(guess, {f"T = {side}": wasted(side) for side in (8, 32)}, unit="%", factor=1.2)

# %% [markdown]
# Turn the sides of tile, mask and image. Where ipywidgets are installed, as by `make lab`, each has a slider above the
# figure. Without them, write other numbers into the first line of the cell, and run it again.

# %%
tile, mask, image = 32, 5, 100  # other numbers here, or the sliders

knobs.turn(
    knobs.tiles,
    tile=(tile, knobs.TILES),
    mask=(mask, range(1, 32, 2)),
    image=(image, range(64, 161)),
)

# %% [markdown]
# A larger tile has less halo for each output, and the upper curve rises towards the dashed line. The larger the mask,
# the slower it rises. The lower curve has teeth. A tile whose side divides that of the image wastes no thread. With a
# side that is a little smaller there is another row and another column of blocks, and these are nearly empty. On a
# large image they are few among many, and the largest tile is the best.
#
# (In the next table the intensity is lower than by the formula, since there the mask and the result count, too, and
# whole sectors.)

# %%
count(convolution.tiled)
facts("basic", "constant_memory", "tiled")
measured("basic", "constant_memory", "tiled")

# %% [markdown]
# What limits it now? Each multiply-add of a warp reads shared memory twice, once for the weight and once for the pixel.
# A multiprocessor could start four multiply-adds of warps in a cycle, and shared memory serves one wavefront. And the
# loads want addresses, which are further instructions.
#
# ## The fourth rung, `cached_halo`: why load the halo at all?
#
# The halo of a block is the tile of its neighbours. They run at about the same time, so these elements are likely in
# the L2 cache, or even in L1. So load only the block's own elements into shared memory, and take the others from the
# cache when they are needed (PMPP 7.5). The tile becomes a plain 32 x 32 square, and a mask of any size fits.

# %%
show(convolution.cached_halo_kernel)

# %%
count(convolution.cached_halo)
facts("tiled", "cached_halo")
measured("tiled", "cached_halo")
for k in (5, 31):
    inside = abs(np.arange(32)[:, None] + np.arange(k) - k // 2 - 15.5) < 16  # 32 pixels of a row, k elements each
    print(f"{k:2} x {k:<2} weights: {1 - inside.mean() ** 2:.0%} of the elements that a pixel sees are halo")

# %% [markdown]
# It is slower, by far. For each multiply-add the kernel has to find out where the element is: the instructions double.
# Near the edge of a tile lanes of one warp disagree, so both ways are gone one after the other. And under a large mask
# much of what a pixel sees is halo. The idea is sound, and its price is paid in the wrong place: in the inner loop.
#
# `basic` has the same caches behind it. Nearly every element that it asks for has been asked for before, by a
# neighbour, so most of its loads never reach the device memory. What a tile saves is above all instructions, and time
# in which a thread waits for a cache.
#
# ## One dimension, and three
#
# The tile with a halo works in any number of dimensions. In one it smooths a signal, here a row of the photograph.

# %%
row = np.ascontiguousarray(grey[80])
smooth = device.to_host(tiled_1d(row, np.full(15, 1 / 15, np.float32), "reflect"))
figure, ax = plt.subplots(figsize=(7.8, 1.9), layout="constrained")
ax.plot(row, color=palette.EDGE, label="row 80")
ax.plot(smooth, color=palette.OWN, label="mean of 15")
ax.set(xlabel="column", ylabel="brightness")
legend = ax.legend(loc="lower center")

# %% [markdown]
# And in three? Let the mask reach one element to each side. Here is the share of what a block loads that is halo, in
# one dimension and in two.


# %%
def halo_share(dimensions, side):
    """The share of halo in a tile of `side` outputs along each axis, under a mask of three along each."""
    return 100 * (1 - (side / (side + 2)) ** dimensions)


print(f"1 dimension,  256 outputs:     {halo_share(1, 256):5.1f} %")
print(f"2 dimensions, 32 x 32 outputs: {halo_share(2, 32):5.1f} %")

# %% [markdown]
# **Predict, then run.** In three dimensions a block of `tiled_3d` has 512 threads, and makes 8 x 8 x 8 outputs. What
# share of what it loads is halo?

# %%
guess = None  # per cent

predict(guess, halo_share(3, 8), unit="%")

# %%
print(f"3 dimensions, 8 x 8 x 8 outputs: {8**3} outputs, {10**3} elements loaded")
volume = np.random.default_rng(9).standard_normal((20, 21, 22), dtype=np.float32)
cube = np.ones((3, 3, 3), np.float32) / 27
error = abs(device.to_host(tiled_3d(volume, cube)) - convolution.reference(volume, cube)).max()
print(f"the mean of 27 neighbours by tiled_3d: largest error {error:.0e}")

# %% [markdown]
# The number of outputs hardly changed, and the halo grew from next to nothing to nearly half. In three dimensions one
# therefore marches a tile through the volume, and keeps two or three layers in registers. PMPP treats that with
# stencils, in chapter 8.
#
# ### Exercise: a halo in one dimension
#
# Write the tile of `tiled_1d` yourself, for a mask of five.

# %%
exercise("convolution/halo")

# %%
T, HALO = 128, 132  # the shape of a shared array must be a constant


@cuda.jit
def halo(x, mask, out):
    pass  # your code


check("convolution/halo", halo)

# %% [markdown]
# ## The fifth rung, `separable`: fewer multiplications
#
# All rungs so far do R S multiply-adds a pixel. Some masks need fewer. The bell above is a column times a row: weight
# (r, s) is `bell[r] * bell[s]`. Then the sum over r and s falls apart,
#
# $$\sum_r \sum_s c_r\, d_s\, x_{i+r,\,j+s} = \sum_r c_r \Big(\sum_s d_s\, x_{i+r,\,j+s}\Big),$$
#
# into sums along the rows, and then sums of these down the columns. R + S multiply-adds are enough. Such a mask has
# *rank* 1 as a matrix. Here are three more masks: two that we used above, and the mean of 3 x 3 pixels.

# %%
others = {"sharpen": sharpen, "across": across, "mean": np.full((3, 3), 1 / 9, np.float32)}
for name, mask in others.items():
    print(name, mask.round(3), sep="\n")

# %% [markdown]
# **Predict, then run.** Which of the three are a column times a row?

# %%
guess = {"sharpen": None, "across": None, "mean": None}  # True or False

predict(guess, {name: bool(np.linalg.matrix_rank(mask) == 1) for name, mask in others.items()})

# %% [markdown]
# A column times a row has rows that are multiples of each other. Those of the sharpening mask are not. The rung looks
# for the two vectors by itself:

# %%
show(factors)
for name, mask in {"blur": blur, **others}.items():
    pair = factors(mask)
    found = "no column times a row" if pair is None else f"{pair[0].round(3)} times {pair[1].round(3)}"
    print(f"{name:8} {found}")

# %%
show(convolution.separable_kernel)

# %% [markdown]
# `factors` takes the row and the column of the largest weight. If their product gives the mask within rounding, that is
# it. Otherwise the rung leaves the mask to `cached_halo`. You can also hand it the two vectors.
#
# In the kernel a tile with its halo is loaded as before. The first sums are needed for the halo's rows too, since the
# second sums read them. Both kinds stay in shared memory; nothing but the image touches device memory.

# %%
for rung in (convolution.tiled, convolution.separable):
    print(f"    {count(rung, blur).counters['flops'] / x.size:.1f} operations a pixel under 7 x 7 weights")
measured("separable", "torch.conv2d", "cupy.ndimage.correlate1d", families=("separable 7x7", "separable 31x31"))
measured("tiled")

# %% [markdown]
# (The rates of the first lines count R + S multiply-adds, as all contenders there apply two vectors.) Compare the times
# of `separable` and `tiled`. The gain grows with the mask, and it is less than R S / (R + S), which is 3.5 for 7 x 7
# and 15.5 for 31 x 31. Loading the tile costs what it did, there are sums for the halo, and each thread still takes a
# word of shared memory, and its address, for each multiply-add. For 7 x 7 it is not even enough to be faster than CuPy,
# which goes over the image twice. Fewer operations need not be less time. The next rung does all R S of them again.
#
# ## The sixth rung, `vectorised`: a window that slides through registers
#
# Registers are the one memory that keeps up with the arithmetic. So make as much of every element as can be made once
# it is there. A thread of this kernel makes 4 x 8 pixels. Look at one row of the tile. It holds the elements that the
# thread needs for one row of the mask, and for eight pixels side by side:


# %%
def window_picture(ax, s, title):
    """Which of 20 elements are in registers when the weights s to s + 3 are applied, and what comes next."""
    ax.bar(np.arange(20), 1, width=0.92, color=palette.LIGHT)
    ax.bar(np.arange(s, s + 12), 1, width=0.92, color=palette.OWN)
    ax.bar(np.arange(s + 8, s + 12), 1, width=0.92, color=palette.COLOURS[0])
    ax.set(yticks=[], xticks=range(0, 20, 4), title=title)
    ax.spines[:].set_visible(False)


figure, axes = plt.subplots(2, 1, figsize=(7.8, 1.9), layout="constrained", sharex=True)
window_picture(axes[0], 0, "weights 0 to 3: twelve elements in registers, the last four just loaded")
window_picture(axes[1], 4, "weights 4 to 7: the window slid on by four; one load of 128 bits")
label = axes[1].set_xlabel("element of a row of the tile")

# %% [markdown]
# For four weights and eight pixels the window is 8 + 3 = 11 elements, 12 with one to spare. The next four weights want
# a window four places on: two thirds of it are there already. One load of 128 bits brings the rest.
#
# The same elements serve four rows of pixels, with four rows of the mask. So one vector of the tile and four vectors
# of weights make 4 x 4 x 8 = 128 multiply-adds. `tiled` needs 256 loads for them, and this kernel 5.

# %%
show(convolution.add_products)

# %%
show(convolution.multiply_part)

# %% [markdown]
# The loops of `add_products` have constant lengths, so the compiler writes them out, and `totals` and `window` are
# registers. (Were one index not known when it compiles, they would be in memory.) At the edges of the mask not all
# four weights exist, or not for all four rows. There the kernel asks; everywhere else it does not.
#
# Why ask? One could surround the mask by zeros and never ask. Many kernels do. But 0 times infinity is not 0, and an
# image with an infinity or a NaN in it would have it spread to pixels that do not see it.
#
# The tile must suit loads of 128 bits: each of its rows has to begin at a multiple of 16 bytes in the image. The
# halo's first column is S // 2 to the left, which seldom is such a place. So the tile begins up to three columns
# early, and `lead` says how many. The mask in shared memory is moved by as much, and so the sums come out the same.

# %%
show(convolution.vectorised_kernel)

# %%
show(load_vectors)

# %% [markdown]
# Four loads are under way before the first is stored: while they travel the thread waits once, not four times. A mask
# of more than 32 rows or columns is applied in parts that fit, so there is no largest mask.
#
# How often does a thread load from shared memory? Under our 5 x 5 weights `lead` is 2, so a row of the mask takes two
# vectors there: 2 + 5 weights in 8 places. The thread's 4 rows of pixels see 8 rows of the tile. For the same 32 pixels
# `tiled` makes 2 x 25 x 32 = 1600 loads, each of a single number.
#
# **Predict, then run.** How many loads of 128 bits does the thread make, from the tile and from the mask together?

# %%
guess = None  # loads of a thread

loads = lab.count(convolution.vectorised, x, five, "edge").counters["shared_load_requests"]  # of all warps
threads = x.size // 32  # each makes 32 pixels
predict(guess, loads * 32 // threads, unit="loads", factor=1.5)

# %%
count(convolution.vectorised)
facts("tiled", "vectorised")

# %% [markdown]
# From each of 8 rows of the tile come 4 vectors: two to begin with, and one for each vector of the mask. Each of the 5
# rows of the mask is applied to 4 rows of pixels, and is loaded for each of them: 5 x 4 x 2 = 40 vectors. That makes
# 72.
#
# A load of 128 bits takes more wavefronts than one of 32. A warp that loads 512 bytes from shared memory takes at least
# four wavefronts, and here it takes eight: neighbouring lanes begin 8 elements apart, so two of them meet in each bank.
# A vector of weights, the same for all lanes, takes two: of 16 bytes a lane, the banks serve 16 lanes at a time where
# neighbours ask for the same, and 8 elsewhere (so we measured it). So the five loads are 16 wavefronts, and as many
# cycles, and the 128 multiply-adds that follow occupy the multiprocessor for 32.
#
# That is an eighth of a wavefront for each, inside a large mask. Under 5 x 5 the 72 loads are 8 x 4 x 8 + 40 x 2 = 336
# wavefronts for 800 multiply-adds, as counted. A bank conflict is only a fault where shared memory is what one waits
# for.
#
# (The instructions are many because most tiles of so small an image lie at its border, and are loaded element by
# element. In a large image few do. The intensity is no better than that of `tiled` because lanes store 32 bytes apart:
# each of two stores touches half of every sector, and the L2 cache puts the halves together.)

# %%
measured("basic", "constant_memory", "tiled", "cached_halo", "vectorised", "torch.conv2d")

# %% [markdown]
# ### Exercise: a strip in registers
#
# The same idea on a small scale: one row of pixels for a thread, and no shared memory.

# %%
exercise("convolution/strip")

# %%
STRIP, WINDOW = 4, 6  # the shape of a local array must be a constant


@cuda.jit
def strip(x, mask, out):
    pass  # your code


check("convolution/strip", strip)

# %% [markdown]
# ## The ladder
#
# For 7 x 7 the roof is the memory, though only just. For 31 x 31 it is the arithmetic.

# %%
plots.drawn(plots.ladder, "convolution", family="7x7")

# %%
plots.drawn(plots.ladder, "convolution", family="31x31")

# %%
plots.drawn(plots.roofline, "convolution", family="31x31")

# %% [markdown]
# With 31 x 31 weights more than half of the roof is reached. What is missing is in the loop: for each 128 multiply-adds
# there are five loads, eight moves of the window from register to register, and instructions that count and compare.
#
# With 7 x 7 weights the loop is short. Only four of the ten rows that a thread reads serve all four rows of its pixels.
# The others are the edge of the mask, where the kernel asks. And a block that loads its tile computes nothing
# meanwhile; only other blocks on the same multiprocessor can fill the gap.
#
# ## From memory to arithmetic
#
# The side of the mask decides which of the two is the bound. The record has square masks from 3 x 3 to 31 x 31, all on
# an image of 4096 x 4096.


# %%
def by_mask(store, name):
    """{side of the mask: recorded milliseconds} of a rung or a library."""
    entries = store.entries("convolution", family="masks", contender=name)
    return dict(sorted((entry.sizes["mask"], entry.median_ms) for entry in entries))


# %% [markdown]
# **Predict, then run.** A mask of 31 x 31 has 107 times as many weights as one of 3 x 3. How many times as long does
# `vectorised` take for it? The bounds of both stand near the beginning of this chapter.

# %%
guess = None  # times as long


def growth():
    ms = by_mask(record.load(), "vectorised")
    return ms[31] / ms[3]


predict(guess, growth, unit="times as long", factor=2)

# %% [markdown]
# Here are the times, and the two bounds: the bytes by the bandwidth, and the multiply-adds by their own rate.


# %%
def draw_masks():
    store, (figure, ax) = record.load(), chart(4.4)
    sides = range(3, 32)
    ax.plot(sides, [least(k).memory_seconds * 1e3 for k in sides], "k--", label="at least, for the bytes")
    ax.plot(sides, [least(k).compute_seconds * 1e3 for k in sides], "k:", label="at least, for the arithmetic")
    for name, (colour, marker) in plots.colours(store, "convolution").items():
        if points := by_mask(store, name):
            ax.plot(*zip(*points.items(), strict=True), color=colour, marker=marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="side of the mask (elements)", ylabel="time (ms)")
    ax.set(title="Square masks on an image of 4096 x 4096", xticks=[3, 5, 7, 11, 15, 31])
    ax.xaxis.set(major_formatter="{x:g}", minor_locator=plt.NullLocator())
    ax.yaxis.set(major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, store.footer("convolution"))
    return figure


plots.drawn(draw_masks)

# %%
try:
    for k, ms in by_mask(record.load(), "vectorised").items():
        print(f"{k:2} x {k:<2} {ms:.3f} ms, {least(k).seconds * 1e3 / ms:4.0%} of the roof, which is {least(k).side}")
except record.RecordError as missing:
    print(missing)

# %% [markdown]
# The upper of the two bounds counts, and they change places where they cross. To the left memory is the bound, and a
# larger mask costs little: the bytes stay what they are. To the right arithmetic is the bound, and the time grows with
# the number of weights. `vectorised` follows this bend, at some distance. `tiled` rises from the beginning. It takes
# two words of shared memory for each multiply-add, so neither of the two bounds is what it waits for.
#
# ## Images of all sizes, and the CPU

# %%
words = {"xlabel": "side of the image (pixels)", "title": "Square images under a mask of 7 x 7"}
plots.drawn(plots.sweep, "convolution", family="images", **words)

# %% [markdown]
# The mask is 7 x 7, and the image grows. On the left there are only a few tiles: an image of 64 x 64 pixels is a single
# block for `vectorised`, so smaller tiles do better there.
#
# Is the journey to the GPU worth it? The next figure has NumPy on the CPU, which adds up shifted images as the
# reference does, but in float32; the kernel alone; and the kernel with the call and both transfers. (If the record has
# no times of the CPU, the cell says so.)

# %%
figure = plots.drawn(plots.cpu_gpu, "convolution", family="images")
if figure:
    figure.axes[0].set_title("Square images under a mask of 7 x 7 on the CPU and on the GPU", loc="left")
    figure.axes[0].set_xlabel("side of the image (pixels)")
figure

# %% [markdown]
# In [chapter 4](04_vector_add.ipynb) NumPy had added two vectors before the GPU, from NumPy arrays to a NumPy array,
# was done. Here it goes over the image twice for each of 49 weights, while the transfers still move it once in and once
# out. The more arithmetic there is for a byte, the sooner the journey pays.
#
# Shapes that fit nothing:

# %%
try:
    for entry in record.load().entries("convolution", family="other shapes"):
        print(f"{entry.workload:26} {entry.contender:24}{entry.median_ms:9.3f} ms")
except record.RecordError as missing:
    print(missing)

# %% [markdown]
# Where rows do not begin at multiples of 16 bytes, `vectorised` loads element by element. It shows under 7 x 7, and
# hardly where arithmetic rules. An image of a few rows or columns would leave most of a 64 x 64 tile empty, so
# `vectorised` hands it to `tiled`, whose blocks then become long and thin. And the last two images are too small. Even
# 427 x 640 pixels are only 70 tiles, for 132 multiprocessors.
#
# ## On your GPU
#
# If kernels run on a GPU here, this cell measures all rungs on it.

# %%
if device.on_gpu():
    from pmpp.lab.measure import timing

    image = device.to_device(np.random.default_rng(1).standard_normal((2048, 2048), dtype=np.float32))
    seven, out = np.outer(bell, bell), device.empty((2048, 2048), np.float32)
    for rung in convolution.LADDER:
        given = (
            seven if rung is convolution.constant_memory else (bell, bell) if rung is convolution.separable else None
        )
        given = device.to_device(seven) if given is None else given
        taken = timing.measure(lambda x, rung=rung, mask=given: rung(x, mask, out=out), [(image,)])
        print(f"{rung.name:16}{taken.median * 1e3:9.3f} ms")
else:
    print("No GPU here: the interpreter counts, it does not time. The recorded times are above.")

# %% [markdown]
# ## What to take along
#
# - Say which way the mask lies, where its centre is, and what is beyond the border. Test with a mask that is not
#   symmetric and has even sides, and with an image that is not square.
# - Constant memory is for what all lanes read together. In Numba its values belong to the compiled kernel.
# - A tile with a halo turns R S loads of a pixel into one to four. Take the questions about borders out of the inner
#   loop, and indices that may be negative, too.
# - A mask of rank 1 takes R + S multiply-adds, not R S.
# - When shared memory is the limit, keep a window in registers and slide it. Count multiply-adds for each load.
# - The same kernel can be bound by memory or by arithmetic. Here the side of the mask decides.
#
# The work of all rungs here grows with R S. For large masks a Fourier transform does less, and with many channels a
# convolution is nearly a matrix multiplication. Both come from [chapter 62](62_direct_convolution.ipynb) on.
#
# ## Exercises
#
# The edges at the top of this chapter took two convolutions and a pass over both results. One kernel can do it all.

# %%
exercise("convolution/edges")


# %%
@cuda.jit
def find_edges(x, out):
    pass  # your code


check("convolution/edges", find_edges)

# %% [markdown]
# **Without a check.**
#
# 1. A mask of R x R, R odd, is applied in a tile of T x T outputs. How large must T be for at most half of the loads to
#    be halo? What does that say about 31 x 31?
# 2. The mean of the nearest k x k pixels is separable, so it takes 2 k additions a pixel. Find a way that takes four,
#    whatever k is. (Chapter 34 has the tool.)
# 3. Blurring twice with 7 x 7 weights is blurring once with a larger mask. How large is it, and which is cheaper?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.convolution import exercises as answers

show(answers.wrap_answer)
assert check("convolution/wrap", answers.wrap_answer)

# %% [markdown]
# *No border.* In Python `-1 % h` is `h - 1`, and in Numba, too: the remainder of a division by a positive number is
# never negative. In CUDA C++ it would be -1, and the index would lie before the image.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def halo_answer(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * T
    for k in range(thread, HALO, T):
        i = first + k - 2
        tile[k] = x[i] if i >= 0 and i < x.size else np.float32(0)
    cuda.syncthreads()
    total = np.float32(0)
    for s in range(5):
        total += mask[s] * tile[thread + s]
    if first + thread < x.size:
        out[first + thread] = total


assert check("convolution/halo", halo_answer)

# %% [markdown]
# *Halo.* Four of the 128 threads load a second element. A thread whose output does not exist loads as well: its
# neighbours need what it brings.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.edges_answer)
assert check("convolution/edges", answers.edges_answer)

# %% [markdown]
# *Edges.* The eight neighbours are loaded once each, and both sums share them. Compilers find such things as long as
# the code is straight: written as two loops over two masks it would be twelve loads.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.strip_answer)
assert check("convolution/strip", answers.strip_answer)

# %% [markdown]
# *Strip.* 18 loads of *x* for 36 multiply-adds, where a pixel alone takes 9 for 9. The longer the strip, the nearer one
# comes to a third of that. Registers and the number of threads set the end.
#
# *Without a check.* (1) The halo is (T + R − 1)² − T² of (T + R − 1)², so T ≥ (R − 1) / (√2 − 1), about 2.4 (R − 1).
# For R = 31 that is 73, more than the 64 of `vectorised`.
#
# (2) Sums of a prefix: with s[i] = x[0] + ... + x[i] the sum of k neighbours is a difference of two, s[i] − s[i − k].
# That is one addition for the prefix and one for the difference, and along both axes it is four. A *summed-area table*
# is a scan along the rows and then one down the columns; a sum takes four of its elements, in all five additions. In
# float32 large images lose digits, since the differences are of large numbers.
#
# (3) It is 13 x 13. Applied as such it takes 169 multiply-adds, and twice 7 x 7 is 98. But these masks are separable,
# which makes it 26 against 28, and one pass over memory instead of two.

# %% jupyter={"source_hidden": true} tags=["answer"]
twice = convolution.reference(convolution.reference(x, blur), blur)
wide = np.convolve(bell, bell)
once = convolution.reference(x, np.outer(wide, wide))
print(f"once with {wide.size} x {wide.size}: equal inside, within {abs(twice - once)[6:-6, 6:-6].max():.0e}")
for r in (3, 31):
    t = int(np.ceil((r - 1) / (2**0.5 - 1)))
    print(f"R = {r}: from T = {t} on, {1 - (t / (t + r - 1)) ** 2:.1%} of the loads are halo")

# %% [markdown]
# Go on with [chapter 26](26_stencil.ipynb): masks that are stars, applied step after step.
