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
# # 97. Choosing a GPU
#
# *Cores, bandwidth, memory, power and price of fourteen GPUs, each with its source; the step of a network computed from
# shapes; how far that is wrong; the cheapest GPU that fits. You need chapters 20, 82 and 88; it takes 50 minutes.
# PMPP 4e: sections 5.1 and 16.2; 5e: sections 5.1 and 19.1. The code is
# [pmpp/nn/examples/choosing.py](../pmpp/nn/examples/choosing.py) with the table
# [pmpp/nn/examples/gpus.json](../pmpp/nn/examples/gpus.json).*
#
# You want to train a network, and have money for one GPU, or for some hours of one. Datasheets have dozens of numbers.
# Chapter [20](20_memory_or_compute.ipynb) says that two of them decide how fast a kernel can be, and a third says
# whether the network fits at all.
#
# **The question of this chapter: which GPU for which network, and how far can you trust an answer that is computed
# before anything runs?**

# %%
import math
import statistics

import matplotlib.pyplot as plt
import numpy as np

from pmpp import check, predict
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record
from pmpp.lab.teach.exercise import exercise
from pmpp.lab.teach.source import show
from pmpp.nn.examples import choosing
from pmpp.nn.examples.networks import LeNet, ResNet18
from pmpp.nn.measure import recorded
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The table
#
# Each row has its documents, with their addresses. A figure that none of them states is missing. The float32 rate
# is 2 operations x cores x clock, where cores and clock are known. The rates of tensor cores are the dense ones, with
# sums in float32. Brochures like to print the rate "with sparsity", which is twice as high and which training seldom
# reaches. The prices are those of lists on one day.

# %%
gpus = choosing.gpus()


def number(value, unit, form):
    """A figure of the table, or nothing if no document states it."""
    return "" if value is None else format(value / unit, form)


print(f"{'GPU':24}{'class':13}{'cores':>6}{'TFLOP/s':>9}{'TF32':>6}{'TB/s':>7}{'GB':>5}{'W':>6}{'$/h':>7}{'new, $':>8}")
for gpu in gpus.values():
    print(f"{gpu.name:24}{gpu.kind:13}{number(gpu.cores, 1, '6.0f'):>6}{gpu.f32 / 1e12:9.1f}"
          f"{number(gpu.tf32, 1e12, '6.0f'):>6}{gpu.bandwidth / 1e12:7.2f}{gpu.memory / 1e9:5.0f}{gpu.watts:6.0f}"
          f"{number(gpu.hour, 1, '7.2f'):>7}{number(gpu.launch, 1, '8.0f'):>8}")  # fmt: skip
for name, prices in choosing.prices().items():
    print(f"{name}: {prices['address']}, {prices['day']}")

# %% [markdown]
# Prices age within weeks, and differ from shop to shop: in this table an A100 with 80 GB costs less than one with 40,
# since the two are from different lists. A rented hour has a computer, electricity and cooling in it; a price "starting
# at" may be sold out. Put in your own before you decide: the file is JSON.
#
# GPUs of AMD and Apple are missing because `numba.cuda` does not run on them. That is a limit of this workbook, and
# says nothing about the GPUs. The two counts of a network below are as good for them.
#
# A core in one row is no core in another: it is a lane that does a multiply-add a cycle. What a memory-bound kernel
# waits for is another column.

# %%
figure, ax = chart(4.6)
for kind, marker in zip(("laptop", "desktop", "workstation", "server"), "v^sD", strict=True):
    chosen = [gpu for gpu in gpus.values() if gpu.kind == kind]
    ax.loglog([gpu.bandwidth / 1e12 for gpu in chosen], [gpu.f32 / 1e12 for gpu in chosen], marker, label=kind)
for gpu in gpus.values():
    under = gpu.name in ("A100 80GB", "L4", "RTX 5090", "T4")
    ax.annotate(gpu.name, (gpu.bandwidth / 1e12, gpu.f32 / 1e12), (0, -13 if under else 6), fontsize=8, ha="center",
                textcoords="offset points")  # fmt: skip
span = np.array([0.16, 12.0])
for ridge, at in ((10, 0.42), (30, 2.2), (100, 0.36)):
    ax.plot(span, ridge * span, ":", color=palette.INK, linewidth=0.8)
    ax.text(at, at * ridge * 1.06, f"ridge at {ridge} FLOP/byte", fontsize=8, rotation=27, rotation_mode="anchor")
ax.set(xlim=(0.16, 12), ylim=(3, 200), xlabel="bandwidth (TB/s)", ylabel="float32, no tensor cores (TFLOP/s)")
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter("{x:g}")
ax.legend(loc="lower right")
foot(figure, "Datasheets and other documents, as pmpp/nn/examples/gpus.json names them")
figure

# %% [markdown]
# Along a dotted line the ridge is the same: the intensity above which arithmetic is what one waits for. GPUs for
# graphics lie high and to the left. They have much arithmetic for each byte of memory traffic. Large GPUs for servers,
# from the A100 on, lie further to the right, because their memory is stacked beside the chip. The T4, the L4 and the
# A10 are for servers as well, and have the memory of graphics cards. They are built for little power.
#
# ## What a network needs
#
# `operations` sends a *shape* through the network's own `forward`. No kernel runs. Each operation is written down with
# the floating-point operations that it must do and the bytes that it must move, forward and backward.

# %%
resnet = ResNet18()
parameters = choosing.count(resnet)
found = choosing.operations(resnet, (128, 3, 32, 32))
print(f"ResNet-18 for 32 x 32, batch 128: {parameters:,} parameters, {len(found)} operations")
for op in found[:6]:
    print(f"{op.layer:16}{op.name:12} forward {op.flops / 1e9:6.2f} GFLOP, {op.moved / 1e6:6.1f} MB, "
          f"{op.flops / op.moved:6.1f} FLOP a byte; backward {op.flops_back / 1e9:6.2f} GFLOP")  # fmt: skip

# %% [markdown]
# A convolution of 3 x 3 with 64 channels has a high intensity. What stands between two convolutions has hardly any: a
# batch normalisation reads its input twice and writes it once. A layer costs twice as much backward as forward, since
# both its input and its weights have a gradient. The first layer costs less: nobody asks for the gradient of an image.
#
# ## Does it fit?
#
# A step keeps parameters, a gradient for each, what the optimiser remembers of each, and the activations that the
# backward pass will need. Chapter [88](88_a_tape.ipynb) tells which those are.
#
# **Predict, then run.** ResNet-18 has 11 million parameters. It is trained with momentum, in float32, on batches of 128
# images of 32 x 32. How many megabytes does a step keep?

# %%
guess = None  # MB

kept = choosing.memory(found, parameters)
predict(guess, sum(kept.values()) / 1e6, unit="MB", within=0.2)

# %%
for name, size in kept.items():
    print(f"{name:12}{size / 1e6:8.1f} MB")
for optimiser in choosing.OPTIMISERS:
    fixed = sum(choosing.memory([], parameters, optimiser).values())
    each = kept["activations"] / 128
    print(f"{optimiser:18} {fixed / 1e6:6.0f} MB whatever the batch, {each / 1e6:.1f} MB an image: "
          f"{(8e9 - fixed) / each:6.0f} images in 8 GB")  # fmt: skip

# %% [markdown]
# The activations are most of it, and they alone grow with the batch. That holds for images. In a language model with
# billions of parameters it is the other way round: with Adam, 16 bytes for each parameter are there before the first
# example comes. The count is the least. A library's workspace, the context of the driver and holes in the pool of
# memory come on top: leave a gigabyte or two.
#
# A small exercise before we go on.

# %%
exercise("choosing/largest_batch")


# %%
def largest_batch(parameters, states, kept, memory):
    pass  # your code


check("choosing/largest_batch", largest_batch)

# %% [markdown]
# ## How long does a step take?
#
# Kernels run one after the other. Within one of them arithmetic and memory overlap, so the longer of the two times
# counts. Then the times are added.

# %%
show(choosing.step)

# %% [markdown]
# **Predict, then run.** An H200 has 1.43 times the bandwidth of an H100, and the same arithmetic. How many times as
# fast is the step of ResNet-18 on it, by this model?

# %%
guess = None  # times as fast

on = {name: choosing.step(found, parameters, gpu) for name, gpu in gpus.items()}
predict(guess, on["H100"].seconds / on["H200"].seconds, unit="times as fast", within=0.05)

# %%
names = sorted(on, key=lambda name: -on[name].seconds)
figure, ax = chart(4.6)
memory_ms, compute_ms = ([getattr(on[name], part) * 1e3 for name in names] for part in ("memory", "compute"))
ax.barh(names, memory_ms, label="operations that wait for memory")
ax.barh(names, compute_ms, left=memory_ms, hatch="//", label="operations that wait for arithmetic")
ax.set_xlabel("least time of a step (ms): ResNet-18, batch 128, float32 without tensor cores")
ax.legend(loc="upper right")
foot(figure, "Computed from shapes and datasheets, not measured")
figure

# %% [markdown]
# The H200 gains little, because most of the time of this network is arithmetic in float32, of which it has no more.
# The A100, a GPU for servers, is behind an RTX 3090 here. Its strength is in the tensor cores, which this step does not
# use. The next part of the chapter asks how much of this picture is true.
#
# ## How far is the model wrong?
#
# The rooms of this workbook were measured on two GPUs. For each room and each kind of work we compare its fastest rung
# with the bound of the datasheet. The share of the bound that is reached says what the model leaves out.


# %%
def best(kept, room, family):
    """The fastest rung at the design size, or None if there is no arithmetic."""
    entries = [one for one in kept.entries(room, family=family, kind="rung", design=True) if one.flops]
    return min(entries, key=lambda one: one.seconds, default=None)


measured = {}
for slug, name in (("nvidia-h200", "H200"), ("nvidia-h100-80gb-hbm3", "H100")):
    kept = record.load(slug)
    for room in kept.rooms():
        for family in kept.families(room):
            if entry := best(kept, room, family):
                measured.setdefault((room, family), {})[name] = entry
print(f"{len(measured)} kinds of work, {sum(len(one) == 2 for one in measured.values())} of them measured on both GPUs")


# %%
def sides(entry, gpu):
    """The seconds that memory and arithmetic need by the datasheet."""
    return entry.cost.bytes / gpu.bandwidth, entry.cost.flops / gpu.f32


shares = {"memory": [], "compute": []}
for one in measured.values():
    if "H200" in one:
        moving, computing = sides(one["H200"], gpus["H200"])
        side = "memory" if moving > computing else "compute"
        shares[side].append(max(moving, computing) / one["H200"].seconds)
for side, found_shares in shares.items():
    low, middle, high = np.quantile(found_shares, (0.1, 0.5, 0.9))
    print(f"H200, {side:8}{len(found_shares):3} kinds of work: the median reaches {middle:.0%} of the bound, "
          f"a tenth less than {low:.0%}, a tenth more than {high:.0%}")  # fmt: skip

# %% [markdown]
# Memory is easier to predict: most kernels reach more than half of the datasheet's bandwidth. With arithmetic the
# spread is wider. A product of matrices reaches most of the peak, and a convolution of an unlucky shape a tenth of it.
# Two kinds of kernels pass the bound. Some do fewer operations than the definition, as Winograd's algorithm does.
# Others run on tensor cores, and the bound here is that of float32 without them. For all other kernels a time from
# datasheets is a *least* time, and the real one is often twice as long.
#
# But a choice needs no times. It needs ratios. Take each time on the H200 and multiply it by the ratio of the two
# bandwidths, or of the two peaks, whichever is the side of this work: that predicts the time on the H100.

# %%
errors = {"memory": [], "compute": []}
for one in measured.values():
    if len(one) == 2:
        moving, computing = sides(one["H200"], gpus["H200"])
        ratio = max(sides(one["H100"], gpus["H100"])) / max(moving, computing)
        error = one["H200"].seconds * ratio / one["H100"].seconds - 1
        errors["memory" if moving > computing else "compute"].append(error)
for side, off in errors.items():
    worst = max(off, key=abs)
    print(f"{side:8}{len(off):3} kinds of work: typically {statistics.median(map(abs, off)):.1%} off, "
          f"at worst {worst:+.1%}")  # fmt: skip

# %%
figure, ax = chart(4)
for (side, off), marker in zip(errors.items(), "os", strict=True):
    ax.plot(np.sort(off) * 100, np.linspace(0, 1, len(off)), marker=marker, label=f"bound by {side}")
ax.axvline(0, color=palette.INK, linewidth=0.8)
ax.set(xlabel="predicted from the H200 over measured on the H100, less 1 (%)", ylabel="share of the kinds of work")
ax.legend(loc="upper left")
foot(figure, "Recorded on an NVIDIA H200 and on an NVIDIA H100 80GB HBM3, the fastest rung of each room")
figure

# %% [markdown]
# The ratio is much better than the time, because what the model leaves out is about the same on both. Most points of
# the memory-bound work lie some per cent to the right of zero: the H200 reaches a slightly smaller share of its
# bandwidth. The points of memory-bound work far to the right are kernels that the datasheet calls memory-bound, and
# that wait for something else: on a GPU with more bandwidth they are no faster. And this is a mild test, since the two
# GPUs have the same multiprocessors. Between a T4 and a B200 caches, clocks under load and the tuning of the kernels
# differ as well, and nobody has measured this workbook there. Expect larger errors.
#
# What about a whole step? The record of chapter [96](96_cpu_against_gpu.ipynb) has LeNet-5 at several batch sizes. The
# model gets one more number, from the same GPU: no kernel is shorter than an empty one. After the model's times stand
# the measured ones, if there are any. The copy of the batch is in them, and ours is given once more alone.

# %%
floor = record.load("nvidia-h200").ceilings().empty_kernel
small = LeNet()
lenet = {n: choosing.operations(small, (n, 1, 28, 28)) for n in (1, 8, 64, 256, 1024, 4096)}


def modelled(n, shortest=0.0):
    """Milliseconds of LeNet-5's step on an H200."""
    return choosing.step(lenet[n], choosing.count(small), gpus["H200"], floor=shortest).seconds * 1e3


try:
    network = recorded("cpu_gpu")["networks"]["LeNet-5"]
    timed = network["ms"] | {"GPU, our copy": network["transfer ms"]}
except record.RecordError as error:
    timed = {}
    print(error)
for n in lenet:
    own = "".join(f"; {name[5:]} {ms[str(n)]:.3f}" for name, ms in timed.items() if "GPU" in name and str(n) in ms)
    print(f"batch {n:4}: without a floor {modelled(n):.4f} ms, with it {modelled(n, floor):.4f}{own}")

# %% [markdown]
# With a small batch each kernel of LeNet-5 would be shorter than an empty one, so the model's time with the floor is
# their number times the floor, whatever the batch. What was measured is several times the model's time, and without a
# graph a small batch takes tens of times as long. For small batches most of it is launches and the copy, and a graph
# takes the launches away. With large batches the kernels reach a small part of the bound. No column of the datasheet
# has any of that. For such a network a faster GPU is hardly faster, and chapter [22](22_launches.ipynb) is the one to
# read.
#
# ## When does bandwidth decide?
#
# Two GPUs for rent: an A100 with 80 GB has 2.0 TB/s and 19.5 TFLOP/s, an RTX 4090 1.0 TB/s and 83 TFLOP/s. Which is
# better depends on the layer. Here is the knob: one linear layer of 4096 x 4096, and the batch grows.
#
# **Predict, then run.** From which batch on is the RTX 4090 the faster one for the forward pass of this layer, in
# float32 without tensor cores?

# %%
guess = None  # examples


def layer(n, gpu):
    """Seconds of the forward pass."""
    return max(2 * n * 4096**2 / gpu.f32, 4 * (4096**2 + 2 * 4096 * n) / gpu.bandwidth)


pair = gpus["A100 80GB"], gpus["RTX 4090"]
predict(guess, next(n for n in range(1, 5000) if layer(n, pair[1]) < layer(n, pair[0])), unit="examples", within=0.2)

# %%
batches = 2 ** np.arange(13)
figure, ax = chart(4)
for gpu, marker in zip((*pair, gpus["H200"]), "os^", strict=True):
    ax.loglog(batches, [layer(n, gpu) * 1e3 for n in batches], marker=marker, label=gpu.name)
ax.set(xlabel="examples in a batch", ylabel="least time (ms) of a linear layer, 4096 x 4096")
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter("{x:g}")
ax.legend(loc="upper left")
foot(figure, "Computed from shapes and datasheets, not measured")
figure

# %% [markdown]
# On the left the weights have to come from memory, and the lines are flat: memory-bound, and the A100 wins. On the
# right arithmetic takes longer, and the RTX 4090 wins. Serving a language model to one reader is the left end. Training
# with large batches is the right one. With TF32 the A100's line would go on to the right before it rises, since its
# tensor cores have eight times the rate.
#
# ## What does it cost?
#
# A job is its time times the price of time, on a GPU that has the memory. We take ResNet-18 again, a million steps
# of 128 images, and leave 2 GB for what the count does not know.


# %%
def offers(net, shape, precision, steps=1_000_000, spare=2e9):
    """(dollars, hours, GPU) of each GPU that has a price and fits, the cheapest first."""
    ops, size = choosing.operations(net, shape), choosing.count(net)
    needed = sum(choosing.memory(ops, size).values()) + spare
    rows = []
    for gpu in gpus.values():
        if gpu.hour and gpu.memory >= needed and gpu.peak(precision):
            hours = choosing.step(ops, size, gpu, precision=precision, floor=floor).seconds * steps / 3600
            rows.append((hours * gpu.hour, hours, gpu.name))
    return needed, sorted(rows)


# %% [markdown]
# **Predict, then run.** Which of these GPUs does the job for the least money, in float32 without tensor cores?

# %%
guess = None  # a name

needed, plain = offers(resnet, (128, 3, 32, 32), "f32")
predict(guess, plain[0][2], choices=tuple(gpus))

# %%
for precision, batch in (("f32", 128), ("tf32", 128), ("tf32", 4096)):
    needed, rows = offers(resnet, (batch, 3, 32, 32), precision, steps=128_000_000 // batch)
    print(f"{precision}, batch {batch}, {needed / 1e9:.1f} GB needed; hours and dollars for 128 million images")
    for dollars, hours, name in rows[:5]:
        print(f"    {name:24}{hours:7.2f} h {dollars:7.2f} $")
    fastest = min(rows, key=lambda row: row[1])
    print(f"    the fastest: {fastest[2]}, {fastest[1]:.2f} h, {fastest[0]:.2f} $")

# %% [markdown]
# In plain float32 GPUs for games are the cheapest by far, as long as the network fits. With TF32 GPUs for servers come
# near, although an hour of them costs many times as much: their tensor cores do the products in a fraction of the time.
# A row without a rate is left out, so the RTX 5090 is missing there: an empty cell is no zero. With batches of 4096 the
# smaller memories fall away.
#
# Such a ranking is as good as its weakest number, and that is the price. How much would the second have to be cheaper
# to become the first?

# %%
for precision in ("f32", "tf32"):
    (first, _, name), (second, _, other) = offers(resnet, (128, 3, 32, 32), precision)[1][:2]
    print(f"{precision}: {other} would need {1 - first / second:.0%} off its price to be level with {name}")

# %% [markdown]
# ## What to take along
#
# - Ask first whether it fits: parameters times (2 + what the optimiser keeps), and activations times the batch.
# - Then which side the network is on. Arithmetic and bandwidth are two columns, and a network that waits for one gains
#   nothing from the other.
# - Times from datasheets are least times. Ratios between two GPUs are better, as long as they are alike.
# - Compare precisions that you will use. The rate with sparsity is for no training that you know.
# - For a small network none of the columns counts: launches and copies do, and they are not in a datasheet.
# - Prices age. Keep the rule, and look up the numbers again.
#
# ## Exercises
#
# `check` calls your function on small awkward inputs and names the mistake it finds. The first exercise stands in the
# text. Here are two more.

# %%
exercise("choosing/step_time")


# %%
def step_time(flops, moved, peak, bandwidth, floor):
    pass  # your code


check("choosing/step_time", step_time)

# %%
exercise("choosing/cheapest")


# %%
def cheapest(seconds, hour, memory, needed):
    pass  # your code


check("choosing/cheapest", cheapest)

# %% [markdown]
# On paper: a network is bound by memory in all its operations. Which column of the table, divided by which, ranks the
# GPUs by the work for a dollar? Print the first three.
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
def largest_batch_answer(parameters, states, kept, memory):
    fixed = 4 * int(parameters.sum()) * (2 + states)  # the parameter itself, its gradient, the optimiser's
    return max(0, (memory - fixed) // (4 * int(kept.sum())))


assert check("choosing/largest_batch", largest_batch_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def step_time_answer(flops, moved, peak, bandwidth, floor):
    return float(np.maximum(np.maximum(flops / peak, moved / bandwidth), floor).sum())


assert check("choosing/step_time", step_time_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def cheapest_answer(seconds, hour, memory, needed):
    best, least = -1, math.inf
    for i in range(len(seconds)):
        if memory[i] >= needed and seconds[i] * hour[i] < least:  # False for NaN
            best, least = i, seconds[i] * hour[i]
    return best


assert check("choosing/cheapest", cheapest_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
known = [gpu for gpu in gpus.values() if gpu.hour]
for gpu in sorted(known, key=lambda gpu: gpu.hour / gpu.bandwidth)[:3]:
    print(f"{gpu.name:12}{gpu.bandwidth * 3600 / gpu.hour / 1e15:7.1f} PB for a dollar: bandwidth over price")

# %% [markdown]
# Go on with [chapter 98](98_instruments.ipynb), the appendix on what the interpreter counts and how far it can be
# trusted.
