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
# # 72. Choosing a convolution
#
# *Five ways side by side: time, workspace and rounding, a map of layers, measuring and predicting. Read chapter
# [70](70_convolution_by_fft.ipynb) before. 35 minutes. PMPP 4e: section 16.5, chapter 19; 5e: chapters 19 and 22. The
# code is [pmpp/kernels/convolution_layer/dispatch.py](../pmpp/kernels/convolution_layer/dispatch.py).*
#
# The last five chapters computed a convolution layer in five ways: [direct](62_direct_convolution.ipynb), by
# [im2col](64_im2col.ipynb), by [implicit GEMM](66_implicit_gemm.ipynb), by [Winograd's algorithm](68_winograd.ipynb)
# and by the [FFT](70_convolution_by_fft.ipynb). For groups of few channels there is a sixth,
# [strips](71_depthwise_convolution.ipynb). A program that has a network to run wants none of this: it wants the layer,
# soon.
#
# **The question of this chapter: which way is the fastest for which layer, and can the shape of a layer tell?**

# %%
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

from pmpp import predict
from pmpp.lab.draw import palette, plots, winners
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels.convolution_layer import by_fft, cost_model, definition, dispatch, find
from pmpp.kernels.convolution_layer import survey as measured
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import DESIGN, sums

WAYS = tuple(name for name in dispatch.ROOMS if name != "depthwise")  # which no layer below has groups for
COLOURS = dict(zip(WAYS, palette.COLOURS, strict=False)) | {"cudnn": palette.INK}
WITH_NUMPY = COLOURS | {"numpy": palette.INK}
ceilings = roofline.ceilings()
network = definition.resnet50(images=32)  # {layer: how often}

# %% [markdown]
# ## The bound
#
# The definition's multiplications and the bytes of a layer set a bound, and two of the five ways get under it, since
# they multiply less. So the least time of a layer is known only when all ways have been tried. Here are the seven
# layers that we compare them on, the ways that can compute each of them, and why Winograd's cannot always.

# %%
for layer in DESIGN:
    least = roofline.bound(layer.cost, ceilings)
    can = [name for name in WAYS if not dispatch.refuses(name, layer)]
    print(f"{layer!s:27} at least {least.seconds * 1e3:.3f} ms; {', '.join(can)}")
print("winograd:", dispatch.refuses("winograd", DESIGN[0]))

# %% [markdown]
# ## The same numbers?
#
# Sums in another order round differently, and transforms have roundings of their own. We shall see by how much. There
# is one more difference, which no tolerance shows.
#
# Put one NaN into an image of 32 x 32 with a padding of 1, in row 14 and column 14, where 0 is the first. With a window
# of 3 x 3 it is seen from 9 places, the outputs in rows and columns 13 to 15. Winograd's last rung makes tiles of 4 x 4
# outputs from tiles of 6 x 6. The FFT cuts this layer as follows.

# %%
spoilt_layer = Layer(1, 8, 32, 32, 64, 3, 3, padding=(1, 1))
tiling = by_fft.tiling_of(spoilt_layer)
print(f"tiles of {tiling.side} x {tiling.side}, each for {tiling.valid.rows} x {tiling.valid.columns} outputs")

# %% [markdown]
# **Predict, then run.** How many outputs of a filter become NaN with implicit GEMM, with Winograd's algorithm, and by
# the FFT?

# %%
guess = {"implicit": None, "winograd": None, "fft": None}  # outputs

rng = np.random.default_rng(16)
w = rng.standard_normal((64, 8, 3, 3), dtype=np.float32)
spoilt = rng.standard_normal((1, 8, 32, 32), dtype=np.float32)
spoilt[0, 5, 14, 14] = np.nan
broken = {}
for name, room in dispatch.ROOMS.items():
    out = device.to_host(room.LADDER[-1](spoilt, w, None, 1, 1))
    broken[name] = int(np.isnan(out[0, 0]).sum())

predict(guess, {name: broken[name] for name in ("implicit", "winograd", "fft")}, unit="outputs")

# %%
print("   ".join(f"{name} {outputs}" for name, outputs in broken.items()))
five = np.ascontiguousarray(spoilt[:, 1:6]), np.ascontiguousarray(w[:, 1:6])  # now the NaN is in the last channel
out = device.to_host(by_fft.LADDER[-1](*five, None, 1, 1))
print(f"fft of five of the eight channels {np.isnan(out[0, 0]).sum()}")

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


def cpu():
    """A second line, on whose CPU NumPy ran."""
    run = measured.load()[0]["run"]
    return f"\nCPU: {run['cpu']}; NumPy {run['versions']['numpy']} (on one core, but for products of matrices)"


# %%
design, grid = rows_of("design"), rows_of("grid")
for row in design:
    times = "  ".join(f"{name} {row.ms[name]:.3f}" if name in row.ms else f"{name}     -" for name in COLOURS)
    print(f"{row.layer!s:27} {times} ms; {row.best}: {row.ms['cudnn'] / row.ours[row.best]:.2f} x cudnn's speed")


# %%
def all_on_the_roof(ax, rows):
    """A column of marks is a layer, under its part of the roof. Filled: ours. Hollow: cuDNN. Crosses: NumPy."""
    costs = [row.layer.cost for row in rows]
    for column, cost in enumerate(costs):
        ax.hlines(roofline.attainable(cost.intensity, ceilings) / 1e12, column - 0.4, column + 0.4, color=palette.INK)
    for place, ((name, colour), marker) in enumerate(zip(WITH_NUMPY.items(), "os^DvPx", strict=True)):
        done = [(column, row) for column, row in enumerate(rows) if name in row.ms]
        aside = 0 if name == "numpy" else 0.13 * (place - 2.5)  # side by side: equal times hide nobody
        rates = [row.layer.cost.flops / row.ms[name] / 1e9 for _, row in done]
        label = "numpy, CPU" if name == "numpy" else name
        look = {"color": colour, "mfc": "white" if name == "cudnn" else colour, "ms": 7, "label": label}
        if done:
            ax.plot([column + aside for column, _ in done], rates, marker, **look)
    names = [f"{row.layer.r} x {row.layer.s}\nc{row.layer.c}\n{row.layer.cost.intensity:.0f}" for row in rows]
    ax.set_xticks(range(len(rows)), names)


# %%
if design:
    figure, ax = chart(6.2)
    all_on_the_roof(ax, sorted(design, key=lambda row: row.layer.cost.intensity))
    ax.set(xlabel="window, channels, FLOP/byte of the layer", ylabel="TFLOP/s, by the definition's count")
    ax.set(yscale="log", title="Seven layers, five ways, and the roof above each layer")
    ax.grid(visible=False, axis="x")
    ax.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, source() + (cpu() if any("numpy" in row.ms for row in design) else ""))
figure if design else "Nothing to draw yet."

# %% [markdown]
# Each column of marks is a layer. What lies above the roof does fewer multiplications than the definition. What lies
# under it either does them all, and is held up by them, by memory, or by having too few blocks. Or it does fewer and
# loses as much elsewhere, as the FFT does on windows of 3 x 3 and 7 x 7.
#
# The survey has NumPy compute six of the layers, too, on the CPU: it makes the columns of one image after another, and
# the product of the filters with them. The seventh would take it many seconds.

# %%
by_numpy = [row for row in design if "numpy" in row.ms]
for row in by_numpy:
    times = row.ms["numpy"] / row.ours[row.best]
    print(f"{row.layer!s:27} numpy {row.ms['numpy']:.0f} ms: {times:,.0f} times as long as {row.best}")
if not by_numpy:
    print("NumPy was not measured in this record's run.")

# %% [markdown]
# NumPy takes hundreds of times as long, and the factor is largest for the window of 1 x 1. The layers of 3 x 3 all have
# the same number of multiplications, and NumPy's time falls as filters become more. It makes the columns on one core,
# and only the product runs on all: with more filters, more multiplications follow for each number that was copied.
# Winograd's algorithm is about at the roof with 64 filters as well as with 512.
#
# All seven are on the right of the ridge, the first one just so, and arithmetic is their bound. With a window of 1 x 1
# the channels decide on which side a layer is: with as many filters as channels, the FLOP for each byte grow with them.
# Here are layers from 4 to 256 channels, from a larger set that we come to below.


# %%
def one_by_one(roofs):
    """The rates of all ways on 1 x 1 layers with images of 224 x 224, from memory to arithmetic."""
    rows = [row for row in grid if (row.layer.r, row.layer.h) == (1, 224)]
    if not rows:
        raise record.RecordError("no layers of 1 x 1 have been measured")
    figure, ax = chart(4.0)
    along = 0.7, roofs.ridge, 100
    ax.plot(along, [roofline.attainable(x, roofs) / 1e12 for x in along], color=palette.INK, label="the roof")
    for (name, colour), marker in zip(COLOURS.items(), "os^DvP", strict=True):
        done = [(row.layer.cost, row.ms[name]) for row in rows if name in row.ms]
        found = [(cost.intensity, cost.flops / ms / 1e9) for cost, ms in done]
        face = "white" if name == "cudnn" else colour
        if found:
            ax.plot(*zip(*found, strict=True), marker, color=colour, mfc=face, ms=7, label=name)
    return figure, ax


# %%
def from_memory_to_arithmetic():
    figure, ax = one_by_one(ceilings)
    ax.set(xscale="log", yscale="log", ylabel="rate (TFLOP/s)", xlabel="intensity of the layer (FLOP/byte)")
    ax.set_title("1 x 1 with 4, 16, 64 and 256 channels, images of 224 x 224")
    plt.setp((ax.xaxis, ax.yaxis), major_formatter="{x:g}")
    figure.legend(loc="outside right upper")
    foot(figure, source())
    return figure


plots.drawn(from_memory_to_arithmetic)

# %% [markdown]
# With 4 and 16 channels memory is the bound, with 256 the arithmetic. With 64 the layer is at the ridge. With 4
# channels the direct way is the nearest to the roof, since at least half of a matrix product's tile would be empty. To
# the right the matrix products come near the roof, and the direct way falls behind.
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
# along each axis. Where the last rungs of im2col and of implicit GEMM divide their sums, they have the same advantage
# over one long sum.
#
# ## The map
#
# Seven layers are seven points of a large space. Here is a larger piece of it: 144 layers, with as many filters as
# channels, stride 1, and padding that keeps the size. There are 32 images, or fewer in the layers with most work. From
# panel to panel the window grows. In a panel channels grow to the right and images grow upwards. The colour is the
# fastest of our five, the number says how many times as fast as cuDNN it is, and where cuDNN is faster the colour is
# pale.
#
# You know now what each of the five is good at. Each window comes with each number of channels on six sizes of images.
#
# **Predict, then run.** Which of the five is the fastest of ours on most of these six, with 4 channels and a window of
# 3 x 3, with 256 channels and 7 x 7, and with 4 channels and 15 x 15?

# %%
guess = {"c4 3x3": None, "c256 7x7": None, "c4 15x15": None}  # one of WAYS


def favourite_of(channels, window):
    winners = [row.best for row in grid if (row.layer.c, row.layer.r) == (channels, window)]
    if not winners:
        raise record.RecordError("no layers of the map have been measured")
    return Counter(winners).most_common(1)[0][0]


asked = {"c4 3x3": (4, 3), "c256 7x7": (256, 7), "c4 15x15": (4, 15)}
predict(guess, lambda: {name: favourite_of(*place) for name, place in asked.items()}, choices=WAYS)

# %%
panels = {}
for row in grid:
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
behind = [row for row in grid if row.ms.get("cudnn", np.inf) < row.ours[row.best]]
if behind:
    low = sum(row.layer.h <= 28 for row in behind)
    print(f"cuDNN is faster on {len(behind)}, of which {low} have images of at most 28 x 28.", end=" ")
    print(f"Half of them take it less than {np.median([row.ms['cudnn'] for row in behind]):.3f} ms")

# %% [markdown]
# Which way is ahead, then, on most of the six sizes of images?

# %%
channels = sorted({row.layer.c for row in grid})
print("window  " + "".join(f"{f'{c} channels':>19}" for c in channels))
for name, panel in panels.items():
    first = [Counter(panel[place][0] for place in panel if place[0] == c).most_common(1)[0] for c in channels]
    print(f"{name:8}" + "".join(f"{f'{winner} {wins} of 6':>19}" for winner, wins in first))

# %% [markdown]
# Where several ways win equally often, the table names one of them. The map shows the others.
#
# Read both with what each way pays.
#
# - **1 x 1: a matrix product.** There is no window, so im2col copies nothing, and im2col and implicit GEMM do the same
#   work. Their tiles differ. The last rung of im2col takes a tile that fits the product. That of implicit GEMM has
#   tiles for 64 filters, also where a layer has 4. This is the likely reason why im2col is the faster of the two with 4
#   or 16 channels. With more channels and large images implicit GEMM is, by little. With 4 channels and large images
#   the direct way is ahead of both.
# - **3 x 3: Winograd,** where there are channels enough. A transform of an image serves all filters, and that of a
#   filter all images, so with many of both they are paid for, and a quarter of the multiplications is left.
# - **Larger windows: FFT.** Its price hardly depends on the window, that of the definition grows with its square. On
#   the smallest images most of a tile would be padding, and there a matrix product can be ahead.
# - **Few channels, and a small window: direct.** All others make matrix products, with sums over channels, for many
#   filters at a time. With 4 of each the sums are short, and at least half of a tile is empty. When the window grows,
#   the FFT takes over here, too.
# - **im2col** has cells of its own with larger windows, too, where images are small and channels are not many. Implicit
#   GEMM is the same product without the columns. Yet with few filters im2col is mostly the faster of the two, whatever
#   the size of the images: there the tile that fits is worth more than the columns cost. On larger images another way
#   is faster still.
#
# And where is cuDNN ahead? Mostly in the lower rows. Half of these layers take hundredths of a millisecond or less.
# There time goes into launches: some of our ways need four. It also goes into waiting: there are too few blocks to fill
# the GPU. A library has special kernels for such cases. Two more likely reasons, with large windows: our products of
# spectra are made in tiles of 32 filters, and with 16 half of each is empty. And with 256 channels and as many filters
# there are 65,536 windows to transform, each of which becomes as large as a tile, for small images that are soon done.
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
# hand, and ranks them by time. It costs some runs, once, and is then right, on any GPU. `find` itself changes no later
# call: these are given the name of the fastest. cuDNN's search, which PyTorch calls `benchmark`, measures in the same
# way, but PyTorch uses what it found by itself, wherever such a layer comes again. (In the interpreter the times are
# the interpreter's. They rank nothing.)

# %%
ranking = find.find(small, banks, padding=2)
for one in sorted(ranking.candidates, key=lambda one: dispatch.ALGORITHMS.index(one.algorithm)):
    print(f"{one.algorithm:9}", one.note or f"workspace {one.workspace:9,} bytes, error {one.error:.0e}")
out = dispatch.convolution(small, banks, padding=2, relu=True, algorithm=ranking.best.algorithm)
print("the fastest is right to 1e-4:", abs(device.to_host(out) - right).max() < 1e-4)

# %% [markdown]
# The other is to *predict* from the shape. What does a way do for a layer? It launches a few kernels, one after the
# other. What bounds a kernel is memory, or what the busiest multiprocessor has to do. So its time is the larger of two:
# the bytes that it moves over the bandwidth, and the cycles of that multiprocessor over the clock. This is the
# roofline, told of each kernel. The rooms know their tiles, and the driver knows the GPU's bandwidth, its clock and how
# many multiprocessors it has. The smallest sum is the choice. Here is Winograd's:
#
# - *launches*: what passes from the end of a kernel to the work of the next one.
# - *transforms*: images, filters and sums go to memory and come back, each in its transformed form. Memory is the
#   bound.
# - *products*: each of 36 products is cut into tiles. A multiprocessor gets so many of them, and has room for a few at
#   a time. In each step it is busy with its multiply-adds, and waits where nobody else is busy meanwhile.

# %%
show(cost_model.winograd)
show(cost_model.busiest)

# %% [markdown]
# Here is what becomes of it for the layer of 3 x 3 with 64 channels, on this GPU, and on one with the same
# multiprocessors and two thirds of the bandwidth. That is about how an H200 and an H100 differ.

# %%
layer, gpu = DESIGN[2], cost_model.rates()
slower = gpu._replace(bandwidth=gpu.bandwidth * 2 / 3)
print(f"{layer}; {gpu.multiprocessors} multiprocessors at {gpu.clock / 1e9:.2f} GHz, {gpu.bandwidth / 1e12:.2f} TB/s")
other = cost_model.winograd(layer, slower)
for name, seconds in cost_model.winograd(layer, gpu).items():
    print(f"   {name:11} {seconds * 1e3:.4f} ms, with less bandwidth {other[name] * 1e3:.4f} ms")
guessed = dispatch.expected_times(layer)
print("all ways:", ", ".join(f"{name} {ms:.3f} ms" for name, ms in guessed.items()))
print(
    "measured:", ", ".join(f"{name} {row.ms[name]:.3f} ms" for row in design[2:3] for name in guessed if name in row.ms)
)

# %% [markdown]
# Is that good enough? The figures of how a multiprocessor works are round numbers, the same for all GPUs. They were set
# by hand with a record of these layers in view, so new layers may fare a little worse than these. The choice is judged
# on the layers of ResNet-50, three shapes of which are also in the map, and on forty other random layers, with strides,
# groups and odd sizes. A choice counts as good if it takes at most 10 % longer than the best. A way whose kernels have
# changed since the measurement takes no part. Then all 53 layers, one after the other, with each way and with the
# choice.

# %%
if rows_of("judge"):
    print("take part:", ", ".join(way for way in WAYS if way in measured.as_measured()))
for name in ("resnet50", "judge"):
    rows = rows_of(name)
    times = {row.layer: network.get(row.layer, 1) for row in rows}
    found = np.repeat(measured.losses(rows), list(times.values())) if rows else np.array([])
    if len(found):
        print(f"{name:9}{len(found):3} layers: within 10 % of the best on {np.mean(found <= 1.1):.0%},", end=" ")
        print(f"{found.mean():.3f} times the best time on average, {found.max():.2f} at most")

# %%
rows = rows_of("resnet50")
print("ResNet-50 with 32 images, all 53 convolution layers: the sum of their times" if rows else "")
for name in COLOURS if rows else ():
    ran = {row.layer: row.ms[name] for row in rows if name in row.ms}
    whole = sum(ms * network[layer] for layer, ms in ran.items())
    few = sum(network[layer] for layer in ran)
    print(f"{name:9} {whole:7.2f} ms" if few == 53 else f"{name:9} can do {few} of 53 layers")
if rows:
    known = measured.as_measured()
    best = [min(row.ours[name] for name in row.ours if name in known) * network[row.layer] for row in rows]
    chosen = sum(loss * ms for loss, ms in zip(measured.losses(rows), best, strict=True))
    least = sum(roofline.bound(row.layer.cost, ceilings).seconds * network[row.layer] for row in rows)
    print(f"chosen by predict {chosen:.2f} ms, the best of ours each time {sum(best):.2f} ms", end="")
    print(f"; by the definition's multiplications at least {least * 1e3:.2f} ms")

# %% [markdown]
# On ResNet-50 the prediction takes the best of these ways for every layer, or one that takes hardly longer. So it beats
# each way alone, and cuDNN. Of the forty other layers it misses one by more than a tenth, and that one by far.
#
# A search wants the kernels and some seconds, a prediction only a shape. A program that runs a network many times
# searches. One that sees a layer once predicts. And where memory is short, both skip what wants too much:
# `workspace_limit=` is in bytes, and with 0 there is still the direct way, which never wants any.
#
# ## What to take along
#
# - No way is the best for all layers. 1 x 1, 3 x 3, large windows, few channels: each has its own. A library is fast
#   because it has several and knows when to take which.
# - A choice has three prices: time, workspace and rounding.
# - Measure where the same layer comes again and again, predict where it comes once.
# - Whoever compares two programs bit by bit should know which way each has taken.
#
# To read on: S. Chetlur et al., *cuDNN: efficient primitives for deep learning* (2014), for implicit GEMM and choosing;
# K. Chellapilla, S. Puri and P. Simard (2006) for im2col.
#
# ## Exercises
#
# There is no kernel to write in this chapter. Answer with a few lines of Python, from `dispatch`, `network` and
# `DESIGN`.
#
# - Which way is predicted for each of the seven layers if there is no memory for a workspace? And if there are 64 MiB?
# - A network that runs once a day on one photograph, and a server that runs it a thousand times a second on 32: which
#   of them should search, and which predict?
# - For how many of ResNet-50's layers does the prediction change when the network gets one image instead of 32?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
for layer in DESIGN:
    guessed = dispatch.expected_times(layer)
    ranked = sorted(guessed, key=guessed.get)
    choice = {}
    for limit in (0, 64, None):
        fits = [name for name in ranked if limit is None or dispatch.workspace_bytes(name, layer) <= limit * 2**20]
        choice["any" if limit is None else f"{limit} MiB"] = fits[0]
    print(f"{layer!s:27}", ", ".join(f"{limit}: {name}" for limit, name in choice.items()))

# %% [markdown]
# *Memory.* Without workspace there are the direct way and, for layers of 1 x 1, the product that needs no columns.
# (Implicit GEMM's 0 MiB, in the list of prices above, are rounded for the other windows: it keeps its filters in
# another order.)
#
# *Once a day.* The server searches: some seconds, once, are soon won back. The other predicts, since its search would
# take longer than all that it could save.


# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
def favourite(layer):
    guessed = dispatch.expected_times(layer)
    return min(guessed, key=guessed.get)


pairs = zip(definition.resnet50(32).items(), definition.resnet50(1), strict=True)
changed = sum(times for (many, times), one in pairs if favourite(many) != favourite(one))
print(f"{changed} of 53 layers")

# %% [markdown]
# *One image.* A layer of one image has few tiles, so what a launch costs and how well the GPU is filled weigh more than
# the arithmetic.
#
# This is the last of the chapters on convolution forwards. Go on with [chapter 74](74_linear.ipynb),
# where the gradients begin: with a linear layer.
