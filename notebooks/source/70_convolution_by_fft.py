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
# # 70. Convolution by FFT
#
# *Spectra, windows that wrap around, overlapping tiles, products of complex numbers, windows of any size. Read chapters
# [58](58_fft.ipynb) and [68](68_winograd.ipynb) before. 35 minutes. PMPP 4e: section 16.5; 5e: chapter 19. The code is
# [pmpp/kernels/convolution_layer/by_fft.py](../pmpp/kernels/convolution_layer/by_fft.py).*
#
# [Winograd's algorithm](68_winograd.ipynb) multiplies polynomials by their values at a few points. It stops at windows
# of 3 x 3 and tiles of 4 x 4: with more points its rounding errors grow. There is a set of points that round well, and
# for which the transform is cheap however many there are: the roots of unity. Values at these are the *spectrum*, and
# the way there and back is the FFT of [chapter 58](58_fft.ipynb).
#
# **The question of this chapter: from which size of the window on is it worth to go by spectra?**

# %%
import matplotlib.pyplot as plt
import numpy as np

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
from pmpp.kernels.convolution_layer import by_fft, implicit
from pmpp.kernels.convolution_layer import by_fft_exercises as solutions
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, sums

WAYS = "direct", "im2col", "implicit", "winograd", "fft"
COLOURS = dict(zip(WAYS, palette.COLOURS, strict=False))  # of ways; in a ladder a colour is a rung

# %% [markdown]
# ## The bound
#
# The definition's multiplications grow with the square of the window, and the bytes of a layer hardly grow at all. So
# the larger the window, the more there is to be saved. Here is the layer of the seven that has a large window, and the
# same layer with other windows:

# %%
ceilings, large = roofline.ceilings(), DESIGN[6]


def with_window(r):
    """The large layer with another window."""
    return Layer(large.n, large.c, large.h, large.w, large.k, r, r, padding=(r // 2, r // 2))


for r in (3, 7, 15, 31):
    layer = with_window(r)
    least, for_bytes = roofline.bound(layer.cost, ceilings).seconds, layer.cost.bytes / ceilings.bandwidth
    print(f"{layer!s:27} definition {least * 1e3:7.3f} ms, bytes alone {for_bytes * 1e3:.3f} ms")

# %% [markdown]
# ## A correlation is a product of spectra
#
# A correlation becomes a product of spectra, one multiplication of complex numbers for each frequency:
#
# $$\operatorname{spectrum}(y) = \operatorname{spectrum}(x) \cdot \overline{\operatorname{spectrum}(w)}.$$
#
# The size of the window does not occur in it. Here it is in NumPy, for a window of 15 x 15 in a tile of 64 x 64.

# %%
photo = np.ascontiguousarray(data.photograph()[::4, ::4].transpose(2, 0, 1)[None] / 255, np.float32)
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
    "dark: wrong": 1.0 * (abs(blurred - whole) > 1e-6),
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
# A real tile of n x n has n (n / 2 + 1) different frequencies, each of which takes four real multiplications for a
# pair of channel and filter. The definition takes R x R for each output.
#
# **Predict, then run.** Which is the smallest window of R x R for which a tile of 32 x 32 multiplies less than the
# definition?

# %%
guess = None  # rows of the window, R


def by_spectra(n, r):
    """Multiplications for one output, for a channel and a filter, without the transforms."""
    return 4 * n * (n / 2 + 1) / (n - r + 1) ** 2


predict(guess, min(r for r in range(1, 33) if by_spectra(32, r) < r * r), unit="rows")

# %%
print("window   definition  ", *(f"tiles of {n:2}  " for n in (16, 32, 64)))
for r in (1, 2, 3, 5, 7, 11, 15, 31):
    spectra = (f"{by_spectra(n, r):11.2f}" if r <= n // 2 else " " * 11 for n in (16, 32, 64))
    print(f"{r:2} x {r:<2} {r * r:11}", *spectra)

# %% [markdown]
# From 2 x 2 on. A large tile takes few multiplications for an output, whatever the window. For 3 x 3 that is about the
# 2.25 of Winograd's F(4 x 4, 3 x 3), but for 15 x 15 it is dozens of times fewer than the definition. What spectra cost
# is not in this table: the transforms, and bytes. All spectra are written to memory and read again, and each filter
# becomes as large as a tile.

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
# ### Exercise: overlap-save
#
# Correlate a row of any length with a window, by tiles of 64 points and their spectra. The cell says whether you are
# right.

# %%
row, bell_of_9 = np.random.default_rng(70).standard_normal(1000), np.hanning(11)[1:-1]


def by_tiles(row, window, n=64):
    """The correlation where the whole window fits: len(row) - len(window) + 1 numbers."""
    return np.zeros(len(row) - len(window) + 1)  # your tiles


print("right:", np.allclose(by_tiles(row, bell_of_9), np.correlate(row, bell_of_9, "valid")))

# %% [markdown]
# ## The rungs
#
# `whole_image` pads images and filters to one power of two, and uses the transforms of [chapter 58](58_fft.ipynb)
# as they are. `tiles` cuts images into tiles of 16, 32 or 64, each of which a block transforms in shared memory, both
# axes in one kernel. In `register_tiled` the sums over channels are what they were for Winograd: a matrix product for
# each frequency, of complex numbers, in registers. How large the tiles are depends on the layer:

# %%
show(by_fft.tiling_of)

# %% [markdown]
# Here are a toy layer for the interpreter, its output in float64, and what prints the counts of a rung: bytes in
# sectors that were asked for, passes through shared memory and instructions, for each multiply-add of a whole warp.

# %%
toy = Layer(4, 8, 16, 16, 64, 3, 3, padding=(1, 1))
rng = np.random.default_rng(16)
x = rng.standard_normal((toy.n, toy.c, toy.h, toy.w), dtype=np.float32)
w = rng.standard_normal((toy.k, toy.c, toy.r, toy.s), dtype=np.float32)
exact = sums(x, w, toy)
side = by_fft.tiling_of(toy).side
print(f"{toy}: {toy.cost.flops:,} FLOP, {toy.cost.bytes:,} bytes, of which {w.nbytes:,} are filters")
print(f"the room takes tiles of {side} x {side} for it")


# %%
def count(*rungs):
    """Count rungs on the toy layer, and print what they asked for, for each multiply-add of a warp."""
    for rung in rungs:
        counted = lab.count(rung, x, w, None, toy.stride, toy.padding)
        error = abs(counted.result - exact).max()
        print(f"{rung.name:15}{traffic(counted, toy.cost.flops)}; error {error:.0e}")


# %% [markdown]
# The toy has a window of 3 x 3. Its filters have to become spectra, too, with a complex64 of 8 bytes for each of the
# n (n / 2 + 1) frequencies.
#
# **Predict, then run.** How many times as many bytes are the spectra of the filters as the filters themselves?

# %%
guess = None  # times as many

spectra = np.fft.rfft2(w, (side, side)).astype(np.complex64)

predict(guess, spectra.nbytes // w.nbytes, unit="times as many")

# %% [markdown]
# So the toy is no layer for this way. Here are the counts, with those of implicit GEMM below them:

# %%
count(*by_fft.LADDER)
print("implicit GEMM:")
count(implicit.register_tiled)

# %% [markdown]
# Implicit GEMM asks for a fraction of the bytes, and takes a fraction of the instructions. With larger images the
# filters weigh less, and with larger windows the definition's multiplications weigh more.
#
# ### Exercise: products of spectra
#
# The first two rungs have the simplest product: a thread for each sum. `check` runs your kernel in the interpreter,
# with every access checked, and says what it found. The answers are at the end, folded away.

# %%
exercise("by_fft/products")


# %%
@cuda.jit
def products(image, masks, out):
    pass  # your code


check("by_fft/products", products)

# %% [markdown]
# ## The time
#
# These are the times of the layer with a window of 15 x 15, with TFLOP/s by the definition's count:

# %%
recorded(by_fft, "layer")

# %% [markdown]
# Now windows from 3 x 3 to 31 x 31, on one and the same layer. The definition's multiplications grow by (31 / 3)², more
# than a hundredfold.
#
# **Predict, then run.** How many times as long does `register_tiled` take for 31 x 31 as for 3 x 3?

# %%
guess = None  # times as long


def growth():
    entries = record.load(room="by_fft").entries("by_fft", family="masks")
    times = {entry.workload: entry.seconds for entry in entries if entry.contender == "register_tiled"}
    return times[str(with_window(31))] / times[str(with_window(3))]


predict(guess, growth, unit="times as long", factor=1.5)

# %%
compared(by_fft, "masks", "register_tiled", "torch.conv2d")

# %% [markdown]
# The time of spectra grows little. That of cuDNN (`torch.conv2d`) hardly grows from 7 x 7 on: it seems to have an FFT
# of its own. Here are both beside what bounds them.


# %%
WINDOWS = 3, 7, 11, 15, 31


def by_window(ax, kept):
    """The measured times of the last rung and of cuDNN over the window."""
    entries = [*kept.entries("by_fft", family="masks"), *kept.design("by_fft", "layer")]
    for name, marker in (("register_tiled", "o-"), ("torch.conv2d", "s--")):
        times = {entry.workload: entry.median_ms for entry in entries if entry.contender == name}
        found = [(r, times[str(with_window(r))]) for r in WINDOWS if str(with_window(r)) in times]
        ax.plot(*zip(*found, strict=True), marker, label=name)


def least_times(roofs):
    """Seconds that each window takes at least, by what has to be done."""
    layers = [with_window(r) for r in WINDOWS]
    return {
        "multiplications of the definition": [a.cost.flops / roofs.fma_f32 for a in layers],
        "arithmetic of spectra": [by_fft.own_cost(a).flops / roofs.fma_f32 for a in layers],
        "spectra, through memory": [2 * by_fft.workspace_bytes(a) / roofs.bandwidth for a in layers],
        "image, filters and output alone": [a.cost.bytes / roofs.bandwidth for a in layers],
    }


# %%
def against_its_bounds():
    kept, (figure, ax) = record.load(room="by_fft"), chart(4.0)
    by_window(ax, kept)
    least = least_times(kept.ceilings("by_fft"))
    for style, (name, seconds) in zip(("-", "--", ":", "-."), least.items(), strict=True):
        ax.plot(WINDOWS, [1e3 * each for each in seconds], style, color=palette.INK, label=name)
    ax.set(yscale="log", xlabel="rows and columns of the window", ylabel="time (ms)", xticks=WINDOWS)
    ax.set_title("8 images of 128 x 128, 64 channels and filters")
    plt.setp(ax.yaxis, major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("by_fft"))
    return figure


# %%
plots.drawn(against_its_bounds)

# %%
for r in WINDOWS:
    layer, tiling = with_window(r), by_fft.tiling_of(with_window(r))
    good = tiling.valid.rows * tiling.valid.columns / tiling.side**2
    print(f"{r:2} x {r:<2} tiles of {tiling.side}, of which {good:.0%} are good;", end=" ")
    print(f"{by_fft.own_cost(layer).flops / 1e9:4.1f} GFLOP instead of {layer.cost.flops / 1e9:6.1f}")

# %% [markdown]
# The definition is bound by arithmetic, and the more so the larger the window. Spectra have two bounds that lie close
# together, and that rise slowly: their arithmetic, and the way of their arrays through memory. They rise because less
# of a tile is good with a larger window, until a larger tile is taken.
#
# Now the answer to the question can be read off, for this layer:


# %%
def how_many_times():
    """Print how many times as fast as cuDNN the last rung is, and as the definition's multiplications alone."""
    kept = record.load(room="by_fft")
    entries = [*kept.entries("by_fft", family="masks"), *kept.design("by_fft", "layer")]
    for r in WINDOWS:
        times = {entry.contender: entry.seconds for entry in entries if entry.workload == str(with_window(r))}
        alone = with_window(r).cost.flops / kept.ceilings("by_fft").fma_f32
        rival, mine = times["torch.conv2d"], times["register_tiled"]
        print(f"{r:2} x {r:<2} {rival / mine:6.2f} x cuDNN's speed, {alone / mine:6.2f} x that of the multiplications")


plots.drawn(how_many_times)

# %% [markdown]
# This way is worth it from the window on where the first factor passes 1. Where the second one does, no kernel that
# does the definition's multiplications could keep up, however good. Both depend on the layer: on its channels, and on
# how its images fit into tiles. [Chapter 72](72_choosing_a_convolution.ipynb) has a map.
#
# ## All rungs

# %%
plots.drawn(plots.ladder, "by_fft", family="layer")

# %%
plots.drawn(plots.roofline, "by_fft", family="layer")

# %% [markdown]
# A bar of more than 100 % is no mistake. The bars count the multiplications of the definition, and these are not done.
# The roofline has each rung twice: hollow by the definition's count, and filled by the algorithm's own, `own_cost`.
# This is the least work of transforms and products, with the bytes of image, filters and output alone. By that count
# much is left to gain. A part of it is the way of all spectra through memory.
#
# ## What to take along
#
# - A correlation is a product of spectra. Its price hardly depends on the window: it is made of transforms, and of
#   bytes for the spectra of images, filters and outputs.
# - Spectra know no edge. Tiles overlap by what the window reaches beyond, and only the good part is kept.
# - In the middle stands a matrix product again, over channels, one for each frequency.
#
# To read on: M. Mathieu, M. Henaff and Y. LeCun, *Fast training of convolutional networks through FFTs* (2014).
#
# ## Exercises
#
# Two more, on paper. The kernels of the FFT have their exercises in [chapter 58](58_fft.ipynb).
#
# - Count the transforms, too: one of a real tile takes about 5 n² log n operations (the logarithm to base 2), and a
#   product of complex numbers that is added up takes 8. With 64 channels and 64 filters, which tile takes the fewest
#   operations for windows of 3 x 3, 7 x 7 and 15 x 15?
# - Why is the spectrum of a real image only half as long as that of a complex one? And how can two planes of real
#   numbers share one complex transform?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(solutions.products_answer)
assert check("by_fft/products", solutions.products_answer)

# %% [markdown]
# *Products.* A multiply-add of complex numbers is four of real ones, and each number of the masks is used once for each
# tile. `register_tiled` computes many tiles at a time, so that it loads a number of the masks once for all of them.


# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
def by_tiles_answer(row, window, n=64):
    good = n - len(window) + 1
    out = np.zeros(len(row) - len(window) + 1)
    spectrum = np.conj(np.fft.rfft(window, n))
    for start in range(0, len(out), good):
        tile = np.zeros(n)
        part = row[start : start + n]
        tile[: len(part)] = part
        here = np.fft.irfft(np.fft.rfft(tile) * spectrum)[:good]
        out[start : start + good] = here[: len(out) - start]
    return out


assert np.allclose(by_tiles_answer(row, bell_of_9), np.correlate(row, bell_of_9, "valid"))

# %% [markdown]
# *Overlap-save.* Tiles begin `good` points apart and are `n` long, so they overlap by what the window reaches beyond.
# The last tile is filled up with zeros.


# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
def operations(n, r, channels=64, filters=64):
    """Operations for one output, for a channel and a filter: products, and the transforms of images and outputs."""
    products = 8 * n * (n / 2 + 1)
    transforms = (channels + filters) * 5 * n * n * np.log2(n) / (channels * filters)
    return (products + transforms) / (n - r + 1) ** 2


for r in (3, 7, 15):
    tiles = ", ".join(f"{n}: {operations(n, r):.1f}" for n in (16, 32, 64, 128) if n > r)
    print(f"{r:2} x {r:<2} by the definition {2 * r * r:3}, by tiles of {tiles}")

# %% [markdown]
# *Tiles.* A larger tile wastes a smaller part of it on the rim. That weighs more than the further stages of its
# transform: by little for 3 x 3, by much for 15 x 15. What speaks against large tiles is shared memory: a block must
# hold one.
#
# *Halves.* The spectrum of a real row at -f is the conjugate of that at f, so one half says all. And a complex
# transform has room for two real planes, one as the real part and one as the imaginary part. Their spectra can be told
# apart afterwards, by the same symmetry.
#
# Go on with [chapter 71](71_depthwise_convolution.ipynb): layers whose channels hardly meet.
