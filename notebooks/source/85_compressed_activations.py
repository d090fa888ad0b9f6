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
# # 85. Compressed activations
#
# *What a layer keeps for its gradient in 8, 4 or 2 bits a number; rounding that leaves expectations as they are; a
# warp's range by shuffles; codes packed in registers; and a bit a number for ReLU. Read chapters
# [30](30_reduction.ipynb), [77](77_quantisation.ipynb), [78](78_gradients_of_pooling_and_activations.ipynb) and
# [80](80_random_numbers.ipynb) before. 45 minutes. PMPP 4e: chapter 16; 5e: chapter 19. The code is
# [pmpp/kernels/compression/ladder.py](../pmpp/kernels/compression/ladder.py) and
# [pmpp/kernels/compression/restore.py](../pmpp/kernels/compression/restore.py).*
#
# The gradient of a layer's weights is made of the layer's input. So a training keeps the input of each layer, from the
# forward pass until the backward pass comes back to it. These inputs are called *activations*, and they grow with the
# batch. In the training of a convolutional network they take most of the memory.
#
# [Chapter 77](77_quantisation.ipynb) replaced weights by whole numbers of few bits. An activation can be replaced as
# well, for the time in which nobody needs it.
#
# **The questions of this chapter: what does a gradient lose if a layer keeps a quarter, an eighth or a sixteenth of its
# input? And can a kernel compress as fast as memory delivers?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import compression, random
from pmpp.kernels.compression import restore
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# Numbers that lie beside each other in memory share a range: 256 of them are a *group*. A group keeps its least value
# and a step, 4 bytes each. Of each number a *code* is kept, which says how many steps it lies above the least value.
# The step is such that the last code stands for the largest value of the group.
#
# **Predict, then run.** Codes have 2 bits. Which share of the bytes of float32 is left?

# %%
guess = None  # percent

n = 2**28
predict(guess, 100 * 4 * compression.words_of(n, 2) / (4 * n), unit="percent", within=0.02)

# %%
for bits in compression.BITS:
    cost = compression.cost(n, bits)
    print(f"{bits} bits: {4 * compression.words_of(n, bits) / 2**20:6.0f} MiB for {4 * n / 2**20:.0f};", end=" ")
    try:
        bound = roofline.bound(cost, roofline.ceilings("compression"))
        print(f"{cost.bytes / 1e9:.2f} GB are moved, in {bound.seconds * 1e6:.0f} us at the rate of a copy")
    except RecordError:
        print(f"{cost.bytes / 1e9:.2f} GB are moved")

# %% [markdown]
# A code of 2 bits and the group's share of 64 bits make 2.25 bits for each 32. All numbers are read, and little is
# written, so the least time depends little on the bits.
#
# ## What rounding must not do
#
# Here are real activations: the pixels of 256 digits, sent through a layer with random weights and ReLU. And here is
# the gradient of the next layer's weights. With $h$ for the activations and $\partial y$ for the gradient of what that
# layer returns, it is the product $\partial W = \partial y^T h$. Random numbers stand for $\partial y$ here.

# %%
images, _ = data.digits()
weights = random.kaiming_normal((128, 64), nonlinearity="relu", seed=1).copy_to_host()
h = np.maximum(images[:256].reshape(256, -1) / 16 @ weights.T, 0).astype(np.float32)
dy = np.random.default_rng(1).standard_normal((256, 10), dtype=np.float32)
exact = dy.T @ h
print(f"h: {h.shape}, {np.mean(h == 0):.0%} of it 0; the gradient: {exact.shape}")


# %%
def kept(h, bits, seed):
    """Activations as they come back. Without a seed each is rounded to the nearest code."""
    words = compression.compress(h, bits, seed)
    return compression.decompress(words, h.shape, bits).copy_to_host()


def off_by(found):
    """How far a gradient is from the exact one, as a share of its length."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


# %% [markdown]
# **Predict, then run.** With 2 bits there are four codes, and the largest activation of a group sets the step. Which
# share of the activations that are positive becomes 0, if each is rounded to the nearest code?

# %%
guess = None  # percent

nearest = kept(h, 2, None)
predict(guess, 100 * np.mean(nearest[h > 0] == 0), unit="percent", within=0.1)

# %% [markdown]
# Each group here has a 0, which is its least value. So all that is less than half a step becomes 0, in this training
# step and in each that follows. A weight whose input is always that small never learns. The error of such a rounding
# is a function of the number: it is the same each time, and no mean of many gradients makes it less. This is a *bias*.
#
# *Stochastic rounding* has none. A number that lies a share $p$ of a step above a code becomes the next code with
# probability $p$, and stays at the lower one with probability $1 - p$. Its expectation is the number itself. And since
# $\partial W$ is linear in $h$, the expectation of the gradient is the gradient.

# %%
exercise("compression/round")


# %%
@cuda.jit
def rounded(x, seed, out):
    pass  # your code


check("compression/round", rounded)

# %% [markdown]
# Stochastic rounding has its price. A number is never more than half a step away from the nearest code. From the code
# that is drawn it can be nearly a whole step away.
#
# **Predict, then run.** Numbers lie anywhere between two codes. How many times as large is the root of the mean squared
# error of stochastic rounding as that of rounding to the nearest?

# %%
guess = None  # times as large

spread = np.random.default_rng(85).uniform(0, 100, 2**15).astype(np.float32)
errors = [np.sqrt(np.mean((kept(spread, 4, seed) - spread) ** 2)) for seed in (7, None)]
predict(guess, float(errors[0] / errors[1]), unit="times as large", within=0.05)

# %% [markdown]
# The square root of 2. The mean square of an error to the nearest is 1/12 of a squared step. A number at $p$ has the
# variance $p\,(1 - p)$, and the mean of that over all $p$ is 1/6. So a single gradient is worse. A training takes
# thousands of them.


# %%
def over_steps(counts=(1, 4, 16, 64)):
    """How far the mean of so many gradients is from the exact one, each made of activations that are rounded anew."""
    figure, ax = chart(3.4)
    for bits, colour, marker in zip(compression.BITS, palette.COLOURS, "os^", strict=False):
        each = [dy.T @ kept(h, bits, seed) for seed in range(counts[-1])]
        means = [off_by(np.mean(each[:k], axis=0)) for k in counts]
        ax.plot(counts, means, color=colour, marker=marker, label=f"{bits} bits")
        ax.axhline(off_by(dy.T @ kept(h, bits, None)), color=colour, linestyle=":")
    ax.set(xscale="log", yscale="log", xlabel="gradients in the mean", ylabel="off by, share", xticks=counts)
    ax.set(xticklabels=counts, title="stochastic rounding, and to the nearest (dotted)")
    ax.legend()
    return figure


over_steps()

# %% [markdown]
# With stochastic rounding the error of the mean falls as one over the square root of how many gradients there are. The
# dotted lines are the errors of rounding to the nearest, which no mean changes. For one gradient they are lower, and
# from four on they are higher.
#
# ## The definition
#
# Rounding is such that every backend gives the same bits. The *place* of a number is how many steps it lies above the
# least value, as a whole number of 2^-15 steps. To twice the place 16 random bits are added. If they bring it to the
# next whole step, the code is the upper one.

# %%
show(compression.place)

# %% [markdown]
# `WHOLE` is 2^23. A float32 from there to 2^24 has no bits behind the point, so the sum of the `fma` is rounded to a
# whole number, and its lowest 23 bits are that number: no instruction has to convert it. A rounding might also put the
# largest value beyond the last code, and each number would need a comparison to prevent that. Instead the quotient
# `per_step` is made a little too small, so that no number gets there.

# %%
show(compression.range_of)

# %% [markdown]
# A group that has NaN or an infinity in it comes back as NaN throughout: a training that has gone wrong should show it.
# The kernels find such numbers by `check = fma(value, 0, check)`, which stays 0 as long as all values are finite.
#
# ## The first rung, `thread_per_group`
#
# A thread has a group. It reads it twice: first for the range, and then for the codes.

# %%
show(compression.thread_kernel)

# %% [markdown]
# **Predict, then run.** The lanes of a warp read at a distance of 256 numbers. How many sectors does one of the warp's
# loads touch?

# %%
guess = None  # sectors a load

some = h[:64].reshape(-1).copy()  # 32 groups
counts = {rung.name: lab.count(rung, some, 8, 1).counters for rung in compression.LADDER}
first = counts["thread_per_group"]
predict(guess, round(first["global_load_sectors"] / first["global_load_requests"]), unit="sectors a load")

# %% [markdown]
# Each lane has a sector of its own, and uses 4 of its 32 bytes at a time. It comes back for the other 28 later. If they
# are no longer in a cache by then, the sector is read from memory once more.
#
# ## The second rung, `warp_per_group`
#
# A warp has a group, and a lane eight of its numbers, 32 apart. So the lanes of a load read neighbours. The numbers
# stay in registers, and the range is found by shuffles, as the sum of a warp is in [chapter 30](30_reduction.ipynb).

# %%
show(compression.warp_range)
show(compression.warp_kernel)

# %% [markdown]
# A counter of Philox gives 128 random bits, which is enough for eight neighbours
# ([chapter 80](80_random_numbers.ipynb)). These neighbours are in eight lanes. So each lane computes one counter, for
# eight others, and gets the bits for its own numbers by shuffles.

# %%
show(compression.half_from)

# %% [markdown]
# The codes of four neighbouring lanes, or of eight or sixteen, make a word. They are put together by shuffles, too.
#
# ## The third rung, `vectorised`
#
# What if a lane has eight *neighbours*? Then its counter is for its own numbers. Two loads of 128 bits bring them. And
# their codes come together in a register, without any shuffle: they make a number of 64, 32 or 16 bits.

# %%
show(compression.group_of)
show(compression.vector_kernel)

# %% [markdown]
# The code is in byte 2 of the word that `place` returns. `byte_perm` makes a word of any four bytes of two others, in
# one instruction. So three of them put four codes together. Codes of 4 bits need a shift and an OR besides:

# %%
show(compression.bytes_of)
show(compression.in_halves)

# %% [markdown]
# **Predict, then run.** How many times as many instructions does `warp_per_group` have as `vectorised`?

# %%
guess = None  # times as many

instructions = {name: found["warp_instructions"] for name, found in counts.items()}
predict(guess, instructions["warp_per_group"] / instructions["vectorised"], unit="times as many", factor=1.5)

# %%
names = ("load_requests", "load_sectors", "store_requests", "store_sectors")
print(" " * 18, *(name.rjust(15) for name in names), "instructions".rjust(15))
for who, found in counts.items():
    print(f"{who:18}", *(f"{found[f'global_{name}']:15,}" for name in names), f"{found['warp_instructions']:15,}")

# %% [markdown]
# `vectorised` touches each sector of x twice, once with each of its two loads: lanes begin 32 bytes apart, and a load
# takes half of that. The second load finds the sector in the L1 cache, so memory is asked once.
#
# `warp_per_group` has more instructions than `thread_per_group`: each number needs several shuffles. But its loads
# touch about a 32nd of the sectors.
#
# ## The fourth rung, `paired`
#
# A warp loads, and then computes: a range, random numbers, codes. While it computes, none of its loads is under way.
# But all the warps of an SM together must keep the memory busy. If each asks for two groups before it computes the
# first, twice as many bytes are under way, and the computations of the two groups can overlap.

# %%
show(compression.paired_kernel)

# %% [markdown]
# It has nearly as many instructions as `vectorised`, and the same sectors. What differs is when it asks. The kernel
# takes whole pairs of groups only. A rest goes to the kernel of `vectorised`.

# %%
plots.drawn(plots.ladder, "compression", family="8 bits")

# %%
plots.drawn(plots.ladder, "compression", family="2 bits")

# %% [markdown]
# The two figures have 8 and 2 bits. The library's contender is the definition in steps of PyTorch. Most of the steps
# read and write an array of float32 as large as x.
#
# `thread_per_group` gains most from fewer bits. Its lanes store their words at a distance, too, each in a sector of its
# own, and with 2 bits there are a quarter as many words. The other rungs take nearly the same time with 2 bits as with
# 8, though they write less. So their share of the roof is smaller.
#
# Is memory the bound of `paired`, then, or the instructions? More than half of these make random numbers: compare
# `lab.count(compression.paired, some, 8, 1)` with `lab.count(compression.paired, some, 8, None)`. So here is `paired`
# once more without random numbers. Without a seed it rounds to the nearest code.

# %%
try:
    runs = record.load(room="compression")
    for bits in compression.BITS:
        for family in (f"{bits} bits", f"{bits} bits, to the nearest"):
            for entry in runs.entries("compression", family=family, contender="paired"):
                if entry.x == n:
                    print(f"{family:25} {1e6 * entry.seconds:7.1f} us, {entry.bytes / entry.seconds / 1e12:.2f} TB/s")
except RecordError as missing:
    print(missing)

# %% [markdown]
# The bytes of the two are the same, so the difference of their times is what the random numbers cost. With them the
# time hardly depends on the bits: it is not memory alone that bounds `paired`. Without them 8 bits take even less than
# the bound that stands above. That bound has the rate of a copy, which writes as much as it reads, and reading is some
# per cent faster ([chapter 30](30_reduction.ipynb)).

# %%
plots.drawn(plots.sweep, "compression", family="8 bits", xlabel="numbers")

# %% [markdown]
# On the left an array fits into the cache, and a launch takes longer than its work. On the right the line of `paired`
# comes close to what the ceilings allow. `warp_per_group` moves the same bytes and lies below: its bound is the
# instructions. The line of `thread_per_group` falls at the right end, where the array is far larger than the L2 cache,
# and a lane comes back for sectors that are gone.
#
# So a kernel can compress nearly as fast as memory delivers, with 8 bits. With fewer bits there are fewer bytes, and
# the instructions stay.
#
# And the CPU, with NumPy's passes over memory. Activations are on the GPU already, so here the line of the kernel alone
# counts:

# %%
plots.drawn(plots.cpu_gpu, "compression", family="8 bits", xlabel="numbers")

# %% [markdown]
# ## The way back
#
# A number with the code $q$ comes back as $\mathit{low} + q\,\mathit{step}$, by one `fma`. A thread takes four
# neighbours at a time: it reads their codes as a number of 32, 16 or 8 bits, and stores 128 bits. The lanes' stores
# lie side by side.

# %%
show(restore.four_kernel)

# %%
for bits in compression.BITS:
    ranges = compression.compress(h, bits, 3).copy_to_host()[-2 * h.size // compression.GROUP :].view(np.float32)
    whole, steps = (h.max() - h.min()) / (2**bits - 1), ranges[1::2]
    off = np.abs(kept(h, bits, 3) - h).reshape(-1, compression.GROUP).max(axis=1)
    print(f"{bits} bits: a number is off by {np.max(off / steps):.3f} steps of its group at most;", end=" ")
    print(f"a step has {np.mean(steps) / whole:.2f} of the length that one for all would have, in the mean")

# %% [markdown]
# No number is off by a whole step of its group. And a group's step is shorter, in the mean, than one step for all
# numbers would be: that is what groups are for.
#
# ## A bit for ReLU
#
# The gradient of ReLU hands on $\partial y$ where the input was positive, and 0 elsewhere. It asks one thing of each
# number, so a bit is enough. Nothing is rounded, and the gradient is exact. `ballot_sync` gives all lanes a word with a
# bit of each lane.

# %%
show(restore.signs_kernel)

# %% [markdown]
# **Predict, then run.** How many times as many bytes has the input of ReLU as its bits?

# %%
guess = None  # times as many

words = compression.signs(h)
predict(guess, h.nbytes / words.nbytes, unit="times as many", within=0.01)

# %%
back = compression.masked(np.ones_like(h), words).copy_to_host()
print("the same as h > 0:", np.array_equal(back, (h > 0).astype(np.float32)))
show(restore.masked_kernel)

# %% [markdown]
# The gradient reads less, too: an eighth of a byte where the usual kernel reads the 4 bytes of the input once more. The
# figure is about `signs`, the kernel that makes the bits:

# %%
plots.drawn(plots.ladder, "compression", family="signs")

# %% [markdown]
# The bar ends beyond 100 %, since the ceiling is the rate of a copy and `signs` does little but read.
#
# This is the gradient. `masked` reads $\partial y$ and a bit for each number. PyTorch reads all of x in the place of
# the bit:

# %%
plots.drawn(plots.ladder, "compression", family="ReLU's gradient")

# %% [markdown]
# Of 12 bytes for each number a little more than 8 are left, since $\partial y$ and the result are as long as before.
#
# ### Exercise: a bit for each number

# %%
exercise("compression/signs")


# %%
@cuda.jit
def signs(x, words):
    pass  # your code


check("compression/signs", signs)

# %% [markdown]
# ## What to take along
#
# - What is kept between the two passes can have fewer bits than what is computed with.
# - An error that is the same each time is a bias, and no number of steps takes it away. Stochastic rounding makes noise
#   of it, which the mean of many steps makes less.
# - Its mean squared error is twice that of rounding to the nearest.
# - A range for each group makes short steps where numbers are small.
# - Neighbours in one thread share a counter of random numbers, a load and a store.
# - Ask what a gradient needs. ReLU's needs a bit.
#
# Does a network learn with that? [Chapter 93](93_memory.ipynb) trains a small one.
#
# ## Exercises
#
# Two stand in the text above. Two are left.
#
# 1. *Groups.* Groups of 64 numbers would have shorter steps. What would they cost with 2 bits?
# 2. *The other factor.* The gradient of the layer's *input* is $\partial y\,W$. Does it change if $h$ is compressed?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rounded_answer(x, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        below = cuda.libdevice.floorf(x[i])
        number = random.unit(random.word_of(seed, np.uint64(i)))
        out[i] = np.int32(below) + np.int32(number < x[i] - below)


assert check("compression/round", rounded_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def signs_answer(x, words):
    i, positive = cuda.grid(1), False
    if i < x.size:
        positive = x[i] > np.float32(0)
    votes = cuda.ballot_sync(0xFFFFFFFF, positive)
    if i < x.size and cuda.laneid == 0:
        words[i // 32] = votes


assert check("compression/signs", signs_answer)

# %% [markdown]
# *Groups.* A group of 64 shares 64 bits, so each number has one bit more than its code: 3 bits in the place of 2.25.
# With these 3 bits, groups of 256 could have codes of 2.75 bits, which are 6 codes in the place of 4. The range would
# have 5 steps in the place of 3. So groups of 64 pay only if they have less than 3/5 of the range of groups of 256.
#
# *The other factor.* No. It is made of the weights and of $\partial y$, and both are kept as they are. So the error of
# one gradient of weights does not travel to the layers before it.
#
# Go on with [chapter 86](86_gradients_of_softmax.ipynb): softmax, the loss, and their gradients.
