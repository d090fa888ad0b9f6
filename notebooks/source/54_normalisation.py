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
# # 54. Normalisation
#
# *Mean and variance in one pass, how float32 gets a variance wrong, merging partial results, fusing, keeping a row in
# registers. Read chapter [30](30_reduction.ipynb) before. 90 minutes. PMPP 4e: chapter 10; 5e: chapter 10. The book has
# the reductions that this builds on; the numerics are from the papers named below.*
#
# A neural network learns badly when the numbers in it drift: one channel has values around 200, another around 0.01,
# and a step that suits one is absurd for the other. So most networks *normalise* between their layers: they shift what
# belongs together to mean 0, and scale it to variance 1. What belongs together is the only difference between the many
# kinds. In *batch normalisation* it is a channel, over all images of a batch. In *layer normalisation* it is one row.
#
# **The question of this chapter: what does it cost to bring every number into shape, when no number can be touched
# before all of its kind have been seen?** The code is in the rooms `pmpp/kernels/normalisation/batchnorm.py`,
# `pmpp/kernels/normalisation/batchnorm_channels_last.py` and `pmpp/kernels/normalisation/layernorm.py`. From
# [chapter 30](30_reduction.ipynb) we need trees, shuffles and what it means to agree.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import common
from pmpp.kernels.normalisation import batchnorm, batchnorm_channels_last, layernorm, moments, ragged
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A batch of real images
#
# We cut two photographs into patches of 64 x 64 pixels and take sixteen of them. In memory an image is three *planes*,
# red, green and blue, one after the other: images x channels x height x width, which is what PyTorch calls NCHW.

# %%
pictures = np.concatenate([picture[:384] for picture in data.photographs()])  # 768 x 640 x 3
patches = pictures.reshape(12, 64, 10, 64, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 64, 64)
batch = np.ascontiguousarray(patches[::7][:16]).astype(np.float32)
ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
print("images x channels x height x width:", batch.shape)

# %% [markdown]
# The channels differ: each has its own brightness and its own contrast. The reference subtracts the mean of a channel
# and divides by the root of its variance. Then it multiplies by a `weight` and adds a `bias`, one of each per channel,
# that the network learns: it may undo the normalisation where that is better. A small `eps` keeps a constant channel
# from being divided by 0.

# %%
show(batchnorm.reference)

# %%
normalised = batchnorm.reference(batch, ones, zeros)
figure, axes = plt.subplots(1, 2, figsize=(7.8, 2.6), layout="constrained", sharey=True)
for ax, values, title in ((axes[0], batch, "before"), (axes[1], normalised, "after")):
    for c, colour in enumerate((palette.COLOURS[1], palette.COLOURS[2], palette.COLOURS[0])):
        ax.hist(values[:, c].ravel(), bins=60, histtype="step", color=colour, label=("red", "green", "blue")[c])
    ax.set(title=f"{title} batch normalisation", xlabel="value", ylabel="pixels" if ax is axes[0] else "")
_ = axes[1].legend()

# %% [markdown]
# ## The bound
#
# In training there are some nine operations for each element, in inference four, and at least eight bytes: read once,
# written once. That is one operation per byte or less, far to the left of the ridge of any GPU. Normalising is
# *memory-bound*, like everything in this part.
#
# But can a batch be read only once? In *inference* it can: the mean and the variance are kept from training. In
# *training* they come from the batch itself. Until the last image has been read, the first cannot be written. If the
# batch does not fit into the GPU's registers and caches, it has to be read again.
#
# Our case is an early layer of a ResNet: 256 images, 64 channels, 112 x 112 pixels.

# %%
size = 256 * 64 * 112 * 112
costs = {
    "inference: read and write": batchnorm.cost(256, 64, 112 * 112, training=False),
    "training: read twice, and write": Cost(flops=9 * size, bytes=12 * size),
}


def bound(what):
    """The least time on this GPU, or on the recorded one."""
    return roofline.bound(costs[what], roofline.ceilings("batchnorm")).seconds


def say(text, value):
    """Print a number that comes from the record, where it is known."""
    try:
        print(text.format(*np.atleast_1d(value())))
    except record.RecordError as missing:
        print(f"not measured yet: {missing}")


once, twice = costs
print(f"{once}: {costs[once].bytes / 1e9:.2f} GB, {costs[once].intensity:.2f} FLOP/byte")

# %% [markdown]
# **Predict, then run.** How many times as long is the least time of training, with its second read, as that of
# inference?

# %%
guess = None  # times as long

predict(guess, lambda: bound(twice) / bound(once), unit="times as long", within=0.05)

# %%
for what, cost in costs.items():
    text = f"{what:32} {cost.bytes / 1e9:5.2f} GB, {cost.intensity:.2f} FLOP/byte: {{:.3f}} ms"
    say(text, lambda what=what: 1e3 * bound(what))

# %% [markdown]
# It is half as long again: twelve bytes for each element instead of eight. We shall judge training by this second
# bound. The record and its figures use the first, which no version can pass on any machine. So in them the best that
# training can reach at this size is two thirds of the roof.
#
# ## One pass too few
#
# The variance is the mean of the squared distances from the mean. That asks for two passes: one for the mean, one for
# the distances. Every textbook has a way out: the variance is also the mean of the squares less the square of the mean,
#
# $$\frac1n \sum (x_i - \bar x)^2 = \frac1n \sum x_i^2 - \bar x^2,$$
#
# and both sums can be had in one pass. On paper. Here it is as a kernel of one block.

# %%
f0 = np.float32(0)


@cuda.jit
def hasty_kernel(x, out):
    partial = cuda.shared.array((2, 32), np.float32)
    total, squares = f0, f0
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        total += x[i]
        squares += x[i] * x[i]
    mean = common.block_sum(total, partial[0]) / np.float32(x.size)
    out[0] = common.block_sum(squares, partial[1]) / np.float32(x.size) - mean * mean


# %% [markdown]
# We try it on what a camera's sensor delivers: the brightness of a pixel on top of a constant, the *black level*.
# Adding a constant changes no variance, so every answer should be the same. The pixels are those of a calm patch. They
# are whole numbers up to 255, and so are the levels: float32 holds every sum of the two exactly. A float32 has about
# seven digits. Beside each variance stands how many of its digits are right, and how many are lost.

# %%
sky = patches[7, 1].ravel().astype(np.float32)
exact = sky.astype(np.float64).var()


def hasty(x):
    """The variance by the hasty formula."""
    out = np.zeros(1, np.float32)
    simt.profile(hasty_kernel, 1, 256, (x.ravel(), out), level="run")
    return float(out[0])


def digits(level):
    variance = hasty(sky + np.float32(level))
    right = max(0, -np.log10(abs(variance / exact - 1)))
    squared = np.float32(level + sky.mean()) ** 2  # about what the formula subtracts
    lost = -np.log10(2.0**-24) - right  # of all that a float32 has
    print(f"black level {level:6}: variance {variance:10.4f}, {right:.1f} digits right, {lost:.1f} lost;", end="")
    print(f" neighbouring float32 at {squared:.2g} are {np.spacing(squared):.3g} apart")


print(f"the variance is {exact:.4f}, the mean {sky.mean():.0f}")
for level in (0, 256, 1024, 4096):
    digits(level)

# %% [markdown]
# With nothing added only three digits are right, since the sky is bright: its mean is far larger than its variance.
# From there to 1024 more are lost. (At 4096 it is luck that the answer is not worse.) Neighbours of $65536^2 = 2^{32}$
# are 512 apart.
#
# **Predict, then run.** How far from the right variance is the answer with 65536 added? The power of ten will do.

# %%
guess = None  # the error of the variance

predict(guess, abs(hasty(sky + np.float32(65536)) - exact), factor=10)

# %%
digits(65536)

# %% [markdown]
# The answer is nonsense. Both terms are right to about seven digits, and these are the same in both: the difference is
# what rounding left over, a few times the distance between two neighbours. This is *cancellation*. The result can even
# be negative, as it is here, and the root of that is NaN.
#
# It takes no sensor. A bias before the normalisation, or a channel that hardly varies, does the same. What matters is
# the ratio of the mean to the *standard deviation*, the root of the variance: the square of that ratio, times the
# rounding error of a float32, is what the hasty formula may lose.
#
# ## Rung 1: `two_pass`
#
# So we take two passes, and pay for them. A block takes a channel. Its threads walk over all values of it, in steps of
# a block: `i // inner` is the image, `i % inner` the place in the plane. `block_sum` is chapter 30's tree of shuffles,
# and gives every thread the sum. Then the block walks once more, for the squared distances from the mean.

# %%
show(batchnorm.two_pass_kernel)

# %% [markdown]
# A second kernel normalises: one element per thread, with the mean and variance of its channel.

# %%
show(batchnorm.normalise_kernel)

# %% [markdown]
# And `keep`? For the time after training PyTorch keeps *running* moments, a slow average over the batches: each batch
# enters with the weight `momentum`. There is a trap in it. The batch is normalised by the *biased* variance, divided by
# $n$. What is kept is the *unbiased* one, divided by $n-1$, because it is to speak for images not yet seen. (If
# they are asked for, the moments of the batch itself are stored as well:
# [chapter 84](84_gradients_of_normalisation.ipynb) needs them.)

# %%
show(moments.keep)

# %%
running = device.to_device(zeros), device.to_device(ones)
for step in range(1, 31):
    batchnorm.two_pass(patches[(np.arange(8) * 15 + 4 * step) % 120].astype(np.float32), ones, zeros, *running)
    if step in (1, 3, 10, 30):
        mean, var = (array.copy_to_host() for array in running)
        print(f"after {step:2} batches of 8: mean {np.round(mean, 1)}, standard deviation {np.round(var**0.5, 1)}")
whole = patches.astype(np.float64)
print("of all 120 patches:     mean", whole.mean(axis=(0, 2, 3)).round(1), ", std", whole.std(axis=(0, 2, 3)).round(1))

# %% [markdown]
# With momentum 0.1 the first batch takes the running mean a tenth of the way, from 0. It takes the running variance a
# tenth of the way, too, and what is printed is its root: the root of a tenth is about a third. It needs some thirty
# batches to forget the start. (PyTorch's `momentum=None` is a plain average of
# all batches: pass `1 / k` for batch `k` = 1, 2, ...)
#
# Is the result right? And how far is it from the bound? This helper asks the record: measurements that are kept with
# the project, made by `make bench`.


# %%
def recorded(room, name, before=None, family=None, per_element=8):
    """A rung's time at the design size, and at which share of the memory's rate that moves the bytes it needs."""
    try:
        kept = record.load()
        entries = {entry.contender: entry for entry in kept.design(room, family)}
        mine = entries[name]
        share = per_element * mine.sizes["n"] / kept.ceilings(room).bandwidth / mine.seconds
        print(f"{name}, {mine.family} {mine.workload}: {mine.median_ms:.3f} ms, {share:.1%} of the memory's rate")
        if before:
            print(f"    {entries[before].median_ms / mine.median_ms:.2f} times as fast as {before}")
    except (record.RecordError, KeyError) as missing:
        print(f"not measured yet: {missing}")


result = device.to_host(batchnorm.two_pass(batch, ones, zeros))
print(f"largest error on the patches: {np.abs(result - normalised).max():.1e}")
recorded("batchnorm", "two_pass", family="training", per_element=12)

# %% [markdown]
# Right, and slow. (The rate is that of the bytes that we counted, 12 for an element, whatever the kernel moves.) One
# reason is that the batch is read three times. The third rung shows another.
#
# ## Rung 2: `welford`
#
# Can one pass be *right*? The trouble was to sum squares that are large beside what they differ by. B. P. Welford
# (1962) keeps the count, the mean *so far*, and $M_2$, the sum of squared distances from it. A new value $x$ pulls the
# mean a little towards itself, and $M_2$ grows by a product of two small numbers:
#
# $$\delta = x - \bar x_{n-1}, \qquad \bar x_n = \bar x_{n-1} + \frac{\delta}{n}, \qquad
# M_{2,n} = M_{2,n-1} + \delta\,(x - \bar x_n).$$
#
# Why is that product right? The distances of the old values grow because the mean moves away from them, by $\delta/n$:
# that adds $(n-1)(\delta/n)^2$. The new value's own distance adds $(\delta - \delta/n)^2$. Together that is
# $\delta^2 (n-1)/n$, and that is the product. Nothing large is ever squared.

# %%
show(moments.welford_step)

# %% [markdown]
# A thread can do that for its own values. But 256 threads have 256 counts, means and $M_2$, and these have to become
# one. T. Chan, G. Golub and R. LeVeque (1983) merge two sets in the same spirit:
#
# $$\delta = \bar x_b - \bar x_a, \qquad \bar x = \bar x_a + \delta \frac{n_b}{n}, \qquad
# M_2 = M_{2,a} + M_{2,b} + \delta^2 \frac{n_a n_b}{n}.$$
#
# The two $M_2$ are not enough: sets that lie apart are spread out *because* they lie apart. That is the last term.
#
# **Predict, then run.** One thread has seen 1 and 3, another 11 and 13. Each has $M_2 = 2$. What is it for all four?

# %%
guess = None  # M2 of 1, 3, 11 and 13


@cuda.jit
def merge_two_kernel(out):
    two, m2 = np.float32(2), np.float32(2)
    out[0], out[1], out[2] = moments.merge(two, np.float32(2), m2, two, np.float32(12), m2)


out = np.zeros(3, np.float32)
simt.profile(merge_two_kernel, 1, 1, (out,))
predict(guess, float(out[2]), exact=True)

# %%
show(moments.merge)
four = np.array([1, 3, 11, 13])
print("merged: count, mean, M2 =", out)
print("by the definition:       ", np.array([4, four.mean(), ((four - four.mean()) ** 2).sum()]))

# %% [markdown]
# Merging is associative, up to rounding, and commutative. So it is an operator for a tree, like addition: the shuffles
# of chapter 30, with three numbers instead of one.

# %%
show(moments.warp_merge)
show(batchnorm.welford_kernel)

# %% [markdown]
# How good is it? We raise the black level step by step and compare, on the same pixels, the hasty formula, two passes,
# Welford's method, and what the last rung will do.


# %%
def kept_by(rung):
    """The variance that a rung finds: with momentum 1 it is all that is kept, but for the factor n / (n - 1)."""

    def variance(x):
        running = device.to_device(zeros[:1]), device.to_device(zeros[:1])
        rung(x, ones[:1], zeros[:1], *running, momentum=1.0)
        return float(running[1].copy_to_host()[0]) * (1 - 1 / x.size)

    return variance


# %%
ways = {"sum of squares": hasty}
ways |= {name: kept_by(getattr(batchnorm, name)) for name in ("two_pass", "welford", "vectorised")}
levels = 2.0 ** np.arange(0, 23, 2)
figure, ax = chart(3.8)
for (name, way), colour, marker in zip(ways.items(), (palette.GREY, *palette.COLOURS), "xosP", strict=False):
    errors = []
    for level in levels:
        x = sky.reshape(1, 1, 64, 64) + np.float32(level)
        errors.append(max(abs(float(way(x)) / x.astype(np.float64).var() - 1), 1e-9))
    ax.plot(levels, errors, color=colour, marker=marker, label=name)
ax.axhline(1, color=palette.INK, linewidth=1)
ax.set(xscale="log", yscale="log", xlabel="black level", ylabel="relative error of the variance")
ax.set_title("The variance of the same pixels, on top of a constant, in float32 (0 is drawn at 1e-9)")
ax.legend()
figure

# %% [markdown]
# Once the level outweighs the pixels, the hasty formula's error grows about with the *square* of the level, and above
# the solid line no digit is right. (At the last level it says 0, which is an error of 1.) The others lose far less:
# what they lose comes from a mean that is rounded to the nearest float32. At the right end neighbouring float32 are
# half a grey level apart, and a patch that varies by little more than one can hardly be told from a constant.
#
# Pixels and levels are whole numbers, and sums of these are often exact: that flatters `two_pass`. The tests of this
# project use numbers that are not whole.

# %%
recorded("batchnorm", "welford", before="two_pass", family="training", per_element=12)

# %% [markdown]
# ### Exercise: what is kept
#
# Write `keep` of rung 1 as a kernel, with a thread for each channel. `check` runs your kernel in the interpreter, on
# several sizes, with every access checked, and says what it found. Our answer is at the end of the chapter, as for all
# exercises.

# %%
exercise("batchnorm/running")


# %%
@cuda.jit
def keep(mean, var, count, momentum, running_mean, running_var):
    pass  # your code


check("batchnorm/running", keep)

# %% [markdown]
# ## Rung 3: `split`
#
# There are 64 channels at the design size, so 64 blocks. The H200 has 132 multiprocessors, each with room for eight
# blocks of 256 threads. Most of the GPU has nothing to do.
#
# Several blocks must share a channel. Each writes the three numbers of its *part*, and a second small kernel merges
# the parts. Unlike chapter 30's atomics, that gives the same bits on every run.

# %%
show(batchnorm.split_kernel)
show(moments.merge_parts)

# %% [markdown]
# Our small batch has 16 images, 3 channels and 64 x 64 pixels. A block shall have at least 256 values.
#
# **Predict, then run.** How many blocks does `split_kernel` have, for all channels together? Before, it was 3.

# %%
guess = None  # blocks

rungs = [getattr(batchnorm, name) for name in ("two_pass", "welford", "split")]
reports = {rung.name: lab.count(rung, batch, ones, zeros).reports for rung in rungs}
predict(guess, math.prod(reports["split"][0].grid), unit="blocks")

# %%
for name, runs in reports.items():
    for run in runs:
        print(f"{name:10} {run.kernel:17} {math.prod(run.grid):4} blocks of {run.block[0]:3}: {run.grid}")
recorded("batchnorm", "split", before="welford", family="training", per_element=12)

# %% [markdown]
# ## Rung 4: `fused`
#
# Many small costs are left. A third launch to merge a few numbers. And `normalise_kernel`, for every element: two
# divisions to find out which channel it is in, a root, another division, and four numbers fetched.
#
# All of that is the same for a whole channel. So a block of the last kernel stays in one channel. Its threads merge the
# parts by themselves, take one root and divide once. From then on an element is a division by `inner` to find its
# place, a subtraction and a multiply-add.

# %%
show(moments.centre_and_scale)
show(batchnorm.fused_kernel)

# %% [markdown]
# Note `(x - mean) * scale + bias`. One could fold `bias - mean * scale` into one constant, and save the subtraction.
# With a large mean that would subtract two large numbers at the end: the cancellation of before, through the back door.
# In a memory-bound kernel the subtraction costs nothing.

# %%
recorded("batchnorm", "fused", before="split", family="training", per_element=12)
recorded("batchnorm", "fused", before="split", family="inference")

# %% [markdown]
# ### Exercise: merge
#
# Every block of `split` left a count, a mean and an $M_2$. Merge them, one thread per channel.

# %%
exercise("batchnorm/merge")


# %%
@cuda.jit
def merge_parts(counts, means, m2s, out):
    pass  # your code


check("batchnorm/merge", merge_parts)

# %% [markdown]
# ### A ReLU for free
#
# In a network a ReLU follows: negative numbers become 0. As a kernel of its own it reads and writes the whole batch
# again, eight bytes per element. Inside the kernel that has the number in a register anyway, it is one comparison. The
# times below are those of the last rung, `vectorised`, which does it in the same place.
#
# **Predict, then run.** In training normalising moves 12 bytes per element. How many times as long does it take with
# the ReLU apart as with the ReLU inside?

# %%
guess = None  # times as long


def with_relu(family):
    """The times with the ReLU inside and apart, and the library's, in ms."""
    entries = record.load().design("batchnorm", family)
    times = {entry.contender: entry.median_ms for entry in entries}
    library = min(entry.median_ms for entry in entries if entry.kind == "library")
    return times["relu inside"], times["relu apart"], library


predict(guess, lambda: np.divide(*with_relu("training with ReLU")[1::-1]), unit="times as long", within=0.15)

# %%
for family in ("training with ReLU", "inference with ReLU"):
    text = f"{family:20} inside {{0:.3f}} ms, apart {{1:.3f}} ms: a factor of {{3:.2f}}; PyTorch {{2:.3f}} ms"
    say(text, lambda family=family: (*(times := with_relu(family)), times[1] / times[0]))

# %% [markdown]
# The bytes say 20 / 12 = 1.67 for training, and 16 / 8 = 2 for inference. This is what frameworks mean by *fusing*, and
# why they compile networks: not to compute less, but to carry less.
#
# ## Rung 5: `vectorised`
#
# Now the loads. In `fused` a thread asks for four bytes, waits, and asks for the next four. `load_chunk` asks for 32
# values before it looks at the first, by eight 128-bit loads ([chapter 4](04_vector_add.ipynb)) where the planes allow
# it.

# %%
show(moments.load_chunk)

# %% [markdown]
# `like` is a tuple as long as a load has values: four, or one where they cannot be loaded together. Its length is known
# when the kernel is compiled, so the branch that is not needed is not there.
#
# A plane of 15 x 15 has 225 values, no multiple of four. So only every fourth plane begins at a multiple of 16 bytes,
# where a 128-bit load may begin. In training `load_ragged` reads such a plane all the same: from the multiple before it
# up to the one behind it. The first and the last vector have values of other channels, too. A bit for each value says
# whether it counts, and vectors that have both kinds are stored value by value.

# %%
show(ragged.load_ragged)

# %% [markdown]
# With 32 values *in registers* something changes. A second pass over them is free. So the chunk's moments are found in
# two passes, with no division for each value, and chunks are merged. This is Welford's idea with 32 values per step: as
# accurate, and a fraction of the arithmetic.

# %%
show(moments.chunk_moments)

# %% [markdown]
# If a whole channel fits into the registers of one block, up to 1024 threads of 32 values, then the batch is read
# *once*, and one launch does it all. That is most of the layers at the end of a network.

# %%
show(batchnorm.channel_kernel)

# %% [markdown]
# Our patches have 65,536 values per channel, too many. A batch of eight patches has 32,768 values per channel, and
# fits.
#
# How many sectors of 32 bytes do the rungs load for eight patches? One read of the patches is 12,288 sectors. In
# `normalise_kernel` a warp loads 32 elements of a channel, and also the channel's mean, variance, weight and bias: each
# of these four is one sector.
#
# **Predict, then run.** How many sectors does `welford` load, in both of its kernels together?

# %%
guess = None  # sectors

eight = batch[:8].copy()
counted = {rung.name: lab.count(rung, eight, ones, zeros) for rung in batchnorm.LADDER}
predict(guess, counted["welford"].counters["global_load_sectors"], unit="sectors", within=0.02)

# %%
for name, count in counted.items():
    loaded, requests = (count.counters[f"global_load_{what}"] for what in ("sectors", "requests"))
    print(f"{name:12} {len(count.reports)} launches, {loaded:7,} sectors by {requests:6,} requests")
print(f"one read:    {eight.nbytes // 32:19,} sectors")

# %% [markdown]
# In the rungs with `normalise_kernel` many sectors are the same few, weights and moments, over and over: those come
# from the cache. In `fused` each block reads the moments of 128 parts to merge them, which weighs in so small a batch.
# `vectorised` reads the patches once, and by far fewer requests.
#
# Larger channels are read twice. The second time the kernel goes *backwards*, block by block: what was read last is
# still in the L2 cache, and is used before it is pushed out. How much of one of three passes can that save at the
# design size? It costs a few minus signs.

# %%
text = "the batch has {0:.0f} MB, and the cache holds {1:.0f}: {2:.0%} of a pass at most"
say(text, lambda: (4 * size / 1e6, (cache := record.load().l2_bytes) / 1e6, cache / (4 * size)))
recorded("batchnorm", "vectorised", before="fused", family="training", per_element=12)
recorded("batchnorm", "vectorised", before="fused", family="inference")


# %%
plots.drawn(plots.ladder, "batchnorm", family="training")

# %%
plots.drawn(plots.ladder, "batchnorm", family="inference")

# %% [markdown]
# In inference the first three rungs are the same kernel, since there are no moments to find. In training remember that
# two thirds are all there is. The roofline shows how little arithmetic has to do with it: all points stand above one
# another at about one operation per byte.

# %%
plots.drawn(plots.roofline, "batchnorm", family="training")

# %%
plots.drawn(plots.sweep, "batchnorm", family="training", xlabel="elements of the batch")

# %% [markdown]
# At the very left a batch is one image, and a channel fits into the registers of one block: `vectorised` reads it
# once, in one launch, and is a little behind PyTorch. The number of launches alone does not decide: there `split`,
# with three, is ahead of `fused`, with two. Larger channels are read twice, and still the rate of `vectorised` grows
# to the right, towards the two thirds that it can reach. PyTorch's hardly changes any more.
#
# ### The CPU
#
# The next figure has NumPy on one core of the CPU, and the kernel alone on the GPU, without the call and the
# transfers. NumPy was measured for the smallest batches only.

# %%
plots.drawn(plots.cpu_gpu, "batchnorm", xlabel="elements of the batch")

# %% [markdown]
# ### Sixteen bits
#
# A batch of float16 or bfloat16 has half the bytes, and a load of 128 bits brings eight values. All is computed in
# float32: the moments, the weight and the bias stay float32, and each result is rounded once. Why not the moments in 16
# bits, too? Here is the mean of 4096 values near 100, the sum rounded to float16 after each addition:

# %%
near = (100 + np.random.default_rng(3).standard_normal(4096)).astype(np.float16)
total = np.float16(0)
with np.errstate(over="ignore"):
    for value in near:
        total = total + value
weight = np.ones(4096, np.float32)
_, mean, _ = layernorm.vectorised(near.reshape(1, -1), weight, weight, return_moments=True)
print(f"float64 {near.mean(dtype=np.float64):.4f}, float32 {device.to_host(mean)[0]:.4f}, float16 {total / 4096}")

# %% [markdown]
# 65,504 is the largest float16, and the sum has long passed it. (A bfloat16 reaches as far as a float32, but has 8
# bits: its sum stops growing when it is 256 times as large as what is added.)

# %%
plots.drawn(plots.by_dtype, "batchnorm", family="training")

# %%
plots.drawn(plots.by_dtype, "batchnorm", family="inference")

# %% [markdown]
# The dashed lines are half of the time of float32. In training a channel is read twice, by eight values a load, and
# little else is done. In inference every four values look for their channel, with two divisions, and that does not
# become less with the bytes.
#
# ### Shapes that suit nobody
#
# A kernel that is fast at one size is a demonstration. Here are others: planes of 7 x 7, odd planes, rows without a
# plane, three channels, four numbers. The last column is PyTorch's time over ours: above 1 we are faster.


# %%
def other_shapes(room, families):
    """A line for each shape: our time, PyTorch's, and how many times as fast we are."""
    try:
        kept = [entry for entry in record.load().entries(room) if entry.family in families]
        kept = [entry for entry in kept if entry.kind == "library" or entry.contender == "vectorised"]
    except record.RecordError as missing:
        kept = []
        print(missing)
    theirs = {}
    for entry in (entry for entry in kept if entry.kind == "library"):
        key = entry.family, entry.workload
        theirs[key] = min(entry.median_ms, theirs.get(key, np.inf))
    for entry in (entry for entry in kept if entry.kind == "rung"):
        rival = theirs.get((entry.family, entry.workload), np.nan)
        times = f"{entry.median_ms:9.4f} {rival:9.4f} {rival / entry.median_ms:7.2f}"
        print(f"{entry.family:24} {entry.workload:16} {times}")


print(f"{'':24} {'':16} {'ours, ms':>9} {'torch, ms':>9} {'gain':>6}")
other_shapes("batchnorm", ("training, other shapes", "inference, other shapes"))

# %% [markdown]
# Below 1 we lose, and only in training: with some shapes that have no planes or small ones, as in 256x2048x7x7 and
# 1000001x5, and where there is little work, as in 128x1000 and 2x2. But 256x512x14x14 and 32x256x56x56 are neither, and
# lose a few per cent all the same: what is lost there, these numbers do not tell.
#
# ### Channels last
#
# So far each channel was a plane. Images can also be stored with the *channels last*, (N, H, W, C), as many libraries
# do for tensor cores. Then the batch is a matrix: it has a row for each place of each image, and a channel is a column.
# The values of a channel lie far apart, and those of neighbouring channels lie together. The room for such batches is
# [batchnorm_channels_last](../pmpp/kernels/normalisation/batchnorm_channels_last.py).
#
# Its first rung, `channel_each`, gives each lane of a warp a column. The lanes read 32 neighbours, so no sector is
# wasted, and no block has to walk through planes. But a lane loads 4 bytes at a time, or 2 of 16 bits.
#
# In `vectorised` a lane takes 128 bits of a row: four columns, or eight of 16 bits. So it keeps the moments of four or
# eight channels at once. They all have the same count, and one division serves them all.

# %%
show(batchnorm_channels_last.parts_kernel)

# %% [markdown]
# The sums go around the mean that the thread has so far, and at first around its first value. This is one pass, and
# what cancels is small: $\sum (x - c)^2$ is only a little larger than $M_2$ if $c$ is near the mean.
#
# **Predict, then run.** A batch of float16, 3 x 32 x 32 places with 64 channels. How many times as many requests does
# the last kernel of `channel_each` make to store the result, as that of `vectorised`?

# %%
guess = None  # times as many

places = np.random.default_rng(5).standard_normal((3, 32, 32, 64)).astype(np.float16)
many, stores = np.ones(64, np.float32), {}
for rung in batchnorm_channels_last.LADDER:
    last = lab.count(rung, places, many, 0 * many).reports[-1]
    stores[rung.name] = last.counters["global_store_requests"]
predict(guess, stores["channel_each"] / stores["vectorised"], unit="times")

# %% [markdown]
# A request of `vectorised` has eight values for each of 32 lanes: 512 bytes. With loads it is the same, but for what
# blocks read of the moments.

# %%
plots.drawn(plots.ladder, "batchnorm_channels_last", family="training")

# %%
plots.drawn(plots.by_dtype, "batchnorm_channels_last", family="training")

# %% [markdown]
# Here are the layers of a ResNet-50 with 32 images. PyTorch gets the same memory, as channels-last tensors. The last
# column is the time of its faster way, with cuDNN or without it, over ours.

# %%
print(f"{'':24} {'':16} {'ours, ms':>9} {'torch, ms':>9} {'gain':>6}")
other_shapes("batchnorm_channels_last", ("training", "training, float16", "inference", "inference, float16"))

# %% [markdown]
# `normalisation.batch_norm` takes either order: `layout="NHWC"` says that the channels come last.
#
# ## Layer normalisation
#
# Now turn the question around. In a transformer a *row* is normalised by itself: the features of one word. A row lies
# together in memory, and it is short, some thousand numbers. Nobody has to wait for other rows. So a row can be read
# once, *kept* while its moments are found, and written: eight bytes per element, in training too. The rungs differ in
# where they keep it.
#
# ### Rungs 1 to 3: in memory, in the cache
#
# `two_kernels` does what we did before: one kernel for the statistics, one to normalise. If the matrix is larger than
# the caches, the second kernel must read each row from memory again.
#
# `block_per_row` needs no new idea, only a better order. The block that has found a row's moments normalises it *now*,
# while the row is in the cache. One launch, one read from memory.

# %%
show(layernorm.block_per_row_kernel)
recorded("layernorm", "two_kernels")
recorded("layernorm", "block_per_row", before="two_kernels")

# %% [markdown]
# `welford` replaces the two passes for the moments by one. It reads the row twice instead of three times, and what it
# saves is a read from the cache. In return it divides once for each element.
#
# **Predict, then run.** Is `welford` faster than `block_per_row`?

# %%
guess = None  # True or False


def layernorm_ms(name, columns=1024):
    """The recorded time for 2^26 elements in rows of this length."""
    for entry in record.load().entries("layernorm", family="layernorm", contender=name):
        if entry.sizes["columns"] == columns:
            return entry.median_ms
    raise record.RecordError(f"{name} has no time for rows of {columns}")


predict(guess, lambda: layernorm_ms("welford") < layernorm_ms("block_per_row"))

# %%
recorded("layernorm", "block_per_row")
recorded("layernorm", "welford", before="block_per_row")

# %% [markdown]
# It is not. A read from the L1 cache costs little, and a division for each element costs a lot. What was right for a
# channel of three million values that come from memory is wrong for a row of a thousand that lies at hand. Measure, and
# look back. The rung stays in the ladder because the next one shows what *was* worth doing.
#
# ### Rung 4: `warp_per_row`
#
# A row of 1024 floats is 32 for each lane of a warp. They fit into registers. Then the row is read once, the variance
# is found around the mean in a second pass that costs no memory access at all, and a warp needs no barrier.

# %%
show(layernorm.warp_per_row_kernel)
recorded("layernorm", "warp_per_row", before="welford")

# %% [markdown]
# Two passes, and no division for each element: with the data at hand the plain definition is the faster one.

# %% [markdown]
# ### Exercise: RMS normalisation
#
# Many language models leave the mean out (B. Zhang and R. Sennrich, 2019). Write it with a warp for each row.
# `warp_sum` gives every lane the sum.

# %%
show(common.warp_sum)
exercise("layernorm/rms")


# %%
@cuda.jit
def rms_norm(x, weight, eps, out):
    pass  # your code


check("layernorm/rms", rms_norm)

# %% [markdown]
# ### Rung 5: `vectorised`
#
# Two things are left. A lane asks for four bytes at a time. And every row gets 32 lanes with 32 loads each, whether it
# has three elements or a thousand; and longer rows are not kept.
#
# The last rung loads 128 bits at a time, and gives a row as many threads as it needs: a few lanes, a warp, or a block
# of up to 1024. The sums go over a group of `lanes` neighbours. With more threads a row is done sooner. But a
# multiprocessor has registers for a limited number of threads. Where it has several rows, a thread takes more of each,
# so that no row must wait until another has ended.

# %%
show(layernorm.group_sum)
show(layernorm.keep_row)

# %% [markdown]
# **Predict, then run.** A row has 64 floats, and a lane holds four vectors of four floats. How many rows does a warp
# hold?

# %%
guess = None  # rows

lanes = layernorm.lanes_for(64 // 4, 4)  # vectors of a row, vectors of a lane
predict(guess, 32 // lanes, unit="rows")

# %%
for columns in (3, 64, 1000, 1024, 4096, 32768, 40000):
    x = np.ones((1100 if columns < 2000 else 2, columns), np.float32)
    for run in lab.count(layernorm.vectorised, x, x[0], x[0]).reports:
        blocks = f"{run.grid[0]:4} x {run.grid[1]} blocks of {run.block[0]}"
        print(f"{x.shape[0]:5} rows of {columns:6}: {run.kernel:18} {blocks}")
print(f"lanes for a row of 64: {lanes}, rows in a warp: {32 // lanes}")

# %% [markdown]
# Rows beyond 32,768 are not kept: they are read twice. Where there are few of them, as here, several blocks share one,
# and merge what they have as in batch normalisation.

# %%
recorded("layernorm", "vectorised", before="warp_per_row")
plots.drawn(plots.ladder, "layernorm")

# %% [markdown]
# Now the same number of elements, $2^{26}$, in rows of every length. Rows of 16 are 64 times as many as rows of 1024.
#
# **Predict, then run.** How many times as long does `warp_per_row` take for rows of 16 as for rows of 1024?

# %%
guess = None  # times as long

predict(guess, lambda: layernorm_ms("warp_per_row", 16) / layernorm_ms("warp_per_row"), unit="times as long", factor=3)


# %%
def by_length():
    """Rate over the length of a row, for every contender."""
    kept = record.load()
    figure, ax = chart(4.2)
    for name, (colour, marker) in plots.colours(kept, "layernorm").items():
        mine = kept.entries("layernorm", family="layernorm", contender=name)
        mine = sorted(mine, key=lambda entry: entry.sizes["columns"])
        rates = [e.bytes / e.seconds / 1e12 for e in mine]
        if mine:  # NumPy was not asked for 2^26 elements
            ax.plot([e.sizes["columns"] for e in mine], rates, color=colour, marker=marker, label=name)
    ax.axhline(kept.ceilings("layernorm").bandwidth / 1e12, color=palette.INK, linestyle="--", label="memory")
    ax.set(xscale="log", yscale="log", xlabel="elements in a row; 2^26 in all", ylabel="rate (TB/s)")
    ax.set_title("layernorm: rows of any length")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("layernorm"))
    return figure


for name in ("warp_per_row", "vectorised"):
    text = f"{name:12} rows of 16: {{:.3f}} ms, rows of 1024: {{:.3f}} ms"
    say(text, lambda name=name: (layernorm_ms(name, 16), layernorm_ms(name)))
plots.drawn(by_length)

# %% [markdown]
# A warp does about the same work for every row up to 1024: of a row of 16 half of its lanes are idle, and most of its
# loads fetch nothing new. There are 64 times as many rows. The time grows by less than that, since a load that
# fetches nothing new takes less time. A block for each row is worse still. Beyond 1024 `warp_per_row` launches the
# kernel of `welford`, so their curves meet there. From 64 on `vectorised` nearly holds its rate until rows no longer
# fit.
#
# The same in 16 bits, beside float32:

# %%
plots.drawn(plots.by_dtype, "layernorm", family="layernorm")

# %% [markdown]
# And the shapes that suit nobody:

# %%
print(f"{'':24} {'':16} {'ours, ms':>9} {'torch, ms':>9} {'gain':>6}")
other_shapes("layernorm", ("other shapes",))

# %% [markdown]
# Odd widths keep us from 128-bit loads, since rows then begin anywhere: compare 1023 with the 1024 of the ladder.
#
# And on the CPU, for rows of 1024:

# %%
plots.drawn(plots.cpu_gpu, "layernorm", family="batches", xlabel="rows")

# %% [markdown]
# The kernel alone is ahead from one row on. With the call and both transfers it takes some hundred rows until the GPU
# pays: below that NumPy is done before the data has come and gone.
#
# ## What to take along
#
# - A formula that is right on paper can be worthless in float32. Ask what cancels.
# - Count, mean and $M_2$ merge like sums do. So everything known about reductions applies.
# - A memory-bound kernel is fast when bytes move once. Keep what you will need again: in registers, or by order in a
#   cache. Fuse what would read it again.
# - With the data in registers the plainest algorithm is the best one.
#
# ## Exercises
#
# Three stand in the text above.
#
# ### Group normalisation
#
# Between the two rooms: some channels of one image together (Y. Wu and K. He, 2018). With one group it is the layer
# normalisation of an image; with as many groups as channels it is called *instance normalisation*.

# %%
exercise("layernorm/group")


# %%
@cuda.jit
def group_norm(x, weight, bias, groups, eps, out):
    pass  # your code


check("layernorm/group", group_norm)

# %% [markdown]
# ### More, without a check
#
# - A cheaper cure for cancellation: subtract any value near the mean first, such as the channel's first value, and use
#   the hasty formula on the rest. Try it on `sky`. Then put an outlier first.
# - Count the bytes of a layer normalisation that also adds a *residual*: `out = layernorm(x + y)`, with the sum kept
#   for later. What does fusing the addition gain?
# - In inference `weight / sqrt(var + eps)` is a constant for each channel. A convolution before it can swallow it
#   whole: multiply its filters. What is left of the normalisation then?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def merge_answer(counts, means, m2s, out):
    c = cuda.grid(1)
    if c < out.shape[1]:
        count, mean, m2 = counts[0, c], means[0, c], m2s[0, c]
        for part in range(1, counts.shape[0]):
            share = counts[part, c] / (count + counts[part, c])
            delta = means[part, c] - mean
            mean += delta * share
            m2 += m2s[part, c] + delta * delta * count * share
            count += counts[part, c]
        out[0, c], out[1, c] = mean, m2 / count


assert check("batchnorm/merge", merge_answer)

# %% [markdown]
# *Merge.* The loads are coalesced: neighbouring threads have neighbouring channels. One thread per channel is one
# long chain, and `merge_parts` of the room lets a block do it as a tree. Going back to sums of squares passes the first
# cases and fails at the one around 1000.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def running_answer(mean, var, count, momentum, running_mean, running_var):
    c = cuda.grid(1)
    if c < mean.size:
        old = np.float32(1) - momentum
        unbiased = var[c] * np.float32(count) / np.float32(count - 1)
        running_mean[c] = old * running_mean[c] + momentum * mean[c]
        running_var[c] = old * running_var[c] + momentum * unbiased


assert check("batchnorm/running", running_answer)

# %% [markdown]
# *What is kept.* With two values per channel the biased and the unbiased variance differ by a factor of two. That is
# one reason why a network trained on tiny batches behaves differently when it is evaluated. The other is that moments
# of so few values scatter widely around the running ones.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rms_answer(x, weight, eps, out):
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:  # the same for a whole warp
        squares = np.float32(0)
        for i in range(lane, columns, 32):
            squares += x[row, i] * x[row, i]
        scale = np.float32(1) / (common.warp_sum(squares) / np.float32(columns) + eps) ** np.float32(0.5)
        for i in range(lane, columns, 32):
            out[row, i] = x[row, i] * scale * weight[i]


assert check("layernorm/rms", rms_answer)

# %% [markdown]
# *RMS.* One sum instead of two, and no cancellation to fear: nothing is subtracted. Whole warps leave at `row < rows`,
# so all lanes that are left shuffle.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def group_sum(x, first, values, mean, power, partial):
    """The sum over a group of (x - mean) or its square, in all threads."""
    total = f0
    for i in range(cuda.threadIdx.x, values, 128):
        total += (x[cuda.blockIdx.x, first + i // x.shape[2], i % x.shape[2]] - mean) ** power
    return common.block_sum(total, partial)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def group_answer(x, weight, bias, groups, eps, out):
    image, channels, inner = cuda.blockIdx.x, x.shape[1] // groups, x.shape[2]
    first, values = cuda.blockIdx.y * channels, channels * inner
    partial, count = cuda.shared.array((2, 32), np.float32), np.float32(values)
    mean = group_sum(x, first, values, f0, 1, partial[0]) / count
    scale = (group_sum(x, first, values, mean, 2, partial[1]) / count + eps) ** np.float32(-0.5)
    for i in range(cuda.threadIdx.x, values, 128):
        c = first + i // inner
        out[image, c, i % inner] = (x[image, c, i % inner] - mean) * scale * weight[c] + bias[c]


assert check("layernorm/group", group_answer)

# %% [markdown]
# *Group.* A group's values lie together, so the walk is coalesced, and only `weight` and `bias` need to know the
# channel. The two sums need two rows of `partial`: with one, a warp that is ahead writes the second sum while another
# still reads the first.


# %% jupyter={"source_hidden": true} tags=["answer"]
def shifted(x):
    """The hasty formula on x - x[0], in float32."""
    y = x - x[0]
    return (y * y).mean(dtype=np.float32) - y.mean(dtype=np.float32) ** 2


raised = sky + np.float32(65536)
outlier_first = np.concatenate([[np.float32(0)], raised])
for name, x in (("raised", raised), ("an outlier first", outlier_first)):
    print(f"{name:17} off by {abs(float(shifted(x)) / x.astype(np.float64).var() - 1):.1e} of the variance")

# %% [markdown]
# *Shifted.* Any pixel is near enough to the mean, and here all digits survive. With an outlier in front, far more is
# lost: the cure trusts one value. Welford's method trusts none.
#
# Go on with [chapter 56](56_clusters.ipynb): rows that are too long for one block, and blocks that share them.
