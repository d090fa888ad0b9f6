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
# # 80. Random numbers
#
# *Counters instead of states, products of 32 bits, uniform and normal numbers, accuracy in ulp, initial weights,
# dropout without a mask. You need chapters 4 and 20; it takes 50 minutes. PMPP 4e: chapter 6; 5e: chapter 6. The code
# is [pmpp/kernels/random/ladder.py](../pmpp/kernels/random/ladder.py),
# [pmpp/kernels/random/generator.py](../pmpp/kernels/random/generator.py) and
# [pmpp/kernels/dropout/ladder.py](../pmpp/kernels/dropout/ladder.py).*
#
# Training begins with random weights, and in every step dropout throws elements away at random. A network of today
# needs billions of such numbers. The classical way to make them has a *state*: each number is computed from the one
# before. That is a chain, and all the many thousand threads of a GPU would have to wait for it.
#
# **The questions of this chapter: how can every thread draw its own number without asking anybody? And how can a
# program give the very same numbers on a laptop and on any GPU?**

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import dropout, random
from pmpp.kernels.random import generator
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A function instead of a chain
#
# The trick is to have no state. Take a function that scrambles its argument so thoroughly that its values look random,
# and apply it to 0, 1, 2, 3, ... The argument is a *counter*, and number one million is as easy to get as number zero.
# *Philox* is such a function: from a counter of 128 bits and a *key* of 64 it makes four numbers of 32 bits. It takes
# ten rounds. A round multiplies two of four words by constants, and mixes the upper and lower halves of the products
# with the other two words and with the key.

# %%
show(generator.product)
show(generator.philox)

# %% [markdown]
# The seed is the key. Element i of a result is word i % 4 of counter i // 4, so it depends on the seed and on i alone.
# It does not matter how many threads there are, nor which of them draws it. Its inventors publish known answers, and
# the tests of this room hold it to them.

# %%
whole = random.bits(12, seed=1).copy_to_host()
print("0 to 11:", *(f"{word:08x}" for word in whole))
print("5 to 8: ", *(f"{word:08x}" for word in random.bits(4, seed=1, offset=5).copy_to_host()))

# %% [markdown]
# ## The bound
#
# Nothing is read, and 4 bytes are written for a number. So the least time is that of writing. But the ten rounds are
# arithmetic, on integers: twenty products for a counter, of each of which both halves are wanted.
#
# **Predict, then run.** How many integers of 32 bits does a thread multiply for *one* number, if it computes a whole
# counter and uses one of the four words? Count each product once, whether one half of it is used or both.

# %%
guess = None  # products

predict(guess, 2 * generator.ROUNDS, unit="products")

# %%
n = 2**28
ceilings = roofline.ceilings("vector_add")
print(f"{n:,} numbers: {random.cost(n).bytes / 1e6:.0f} MB,", end=" ")
print(f"at least {random.cost(n).bytes / ceilings.bandwidth * 1e6:.0f} us ({ceilings.source})")

# %% [markdown]
# Twenty products for each 4 bytes, or five where all four words are used: this is where the ladder begins.
#
# ## The first rung, `one_each`: a thread for each number

# %%
show(random.one_of)
show(random.one_each_kernel)

# %% [markdown]
# `numbers_of` makes four numbers of four words. It is compiled into the kernel, one kernel for each distribution. For
# bits it does nothing, and for *uniform* numbers it takes the upper 24 bits of each word.

# %%
show(generator.unit)

# %% [markdown]
# Why 24 bits and not 32? A float32 has 24 bits of precision. The largest word, 2^32 - 1, would be rounded to 2^32, and
# the number would be 1.

# %%
largest = np.uint32(2**32 - 1)
print("32 bits:", np.float32(largest) * np.float32(2.0**-32))
print("24 bits:", np.float32(largest >> 8) * np.float32(2.0**-24))

# %% [markdown]
# A number that should be less than 1 and now and then is 1 breaks programs: `log(1 - u)` is infinite, and an index
# `int(n * u)` is out of bounds. With one in 2^25 words it happens within a second on a GPU.
#
# ## The second rung, `four_each`: a thread for each counter
#
# Four neighbouring threads of `one_each` compute the same counter. Let one of them do it, and store all four words.

# %%
show(random.four_each_kernel)

# %% [markdown]
# **Predict, then run.** A warp of `four_each` stores 128 numbers by four stores. They lie in 16 sectors of 32 bytes.
# How many sectors does *each* of the four stores touch?

# %%
guess = None  # sectors a store

like = np.zeros(4096, np.float32)
counts = {rung.name: lab.count(rung, like, "uniform", 1).counters for rung in random.LADDER}
four = counts["four_each"]
predict(guess, four["global_store_sectors"] // four["global_store_requests"], unit="sectors a store")

# %% [markdown]
# All sixteen. A store writes 8 of the 32 bytes of each: 4 in the first half, and 4 in the second. That is the price of
# giving neighbouring elements to one thread.
#
# ## The third rung, `vectorised`: a counter is a vector
#
# Four words of 32 bits are what one store of 128 bits takes. Philox could have been made for it.

# %%
show(random.vectorised_kernel)

# %%
for name, found in counts.items():
    stores, sectors = found["global_store_requests"], found["global_store_sectors"]
    print(f"{name:12}{stores:5} stores of warps,{sectors:6} sectors,{found['warp_instructions']:7,} instructions")

# %% [markdown]
# `vectorised` has a quarter of the instructions of `one_each` and no more sectors than there are. If the offset is no
# multiple of four, a counter lies across a boundary of 16 bytes, and its words are stored one by one.

# %%
plots.drawn(plots.ladder, "random", family="uniform")

# %%
plots.drawn(plots.cpu_gpu, "random", family="uniform", xlabel="numbers")

# %% [markdown]
# From `one_each` to `four_each` the arithmetic becomes a quarter, and the time nearly as little: arithmetic was the
# bound. `vectorised` gains what the stores with gaps had cost. NumPy, on one core of the CPU, takes more than a
# thousand times as long.
#
# ### Exercise: dice

# %%
exercise("random/dice")


# %%
@cuda.jit
def dice(seed, faces, out):
    pass  # your code


check("random/dice", dice)

# %% [markdown]
# ## Normal numbers
#
# Weights want a bell. Box and Muller found a short way: a point of the plane whose two coordinates are independent
# normal numbers has a random direction, and its squared distance from 0 is $-2\ln u$. So two uniform numbers make two
# normal ones,
#
# $$x = \sqrt{-2\ln u_1}\,\cos 2\pi u_2,\qquad y = \sqrt{-2\ln u_1}\,\sin 2\pi u_2 .$$

# %%
z = random.normal(20000, seed=3).copy_to_host()
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
axes[0].scatter(z[0:4000:2], z[1:4000:2], s=2, color=palette.COLOURS[0])
axes[0].set(xlabel="x", ylabel="y", aspect="equal", title="pairs")
axes[1].hist(z, bins=60, density=True, color=palette.COLOURS[0])
grid = np.linspace(-4, 4, 200)
axes[1].plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=palette.COLOURS[1], linestyle="--")
axes[1].set(xlabel="z", ylabel="density", title="20,000 numbers and the bell")
None

# %% [markdown]
# On the left every direction is as likely as any other. On the right the histogram follows the dashed curve. The
# farthest point that is possible is at $\sqrt{-2\ln 2^{-24}} \approx 5.77$, since the smallest $u_1$ is $2^{-24}$.
#
# ## Two ulp
#
# An *ulp* is the distance from a number to the next one that float32 can hold. The textbook's formula in float32 loses
# many of them. Near a multiple of a quarter turn a sine or cosine is nearly 0, and $2\pi u_2$ was rounded before: the
# error of the angle, small as it is, is large beside such a result.
#
# **Predict, then run.** By how many ulp is the worst of some ten thousand numbers wrong, if NumPy computes the formula
# in float32? The power of ten is enough.

# %%
guess = None  # ulp

u1 = random.uniform(2**14, seed=5).copy_to_host() + np.float32(2.0**-24)
u2 = random.uniform(2**14, seed=6).copy_to_host()
exact = np.sqrt(-2 * np.log(u1.astype(float))) * np.cos(2 * np.pi * u2.astype(float))
naive = np.sqrt(np.float32(-2) * np.log(u1)) * np.cos(np.float32(2 * np.pi) * u2)
predict(guess, np.max(np.abs(naive - exact) / np.spacing(np.abs(exact).astype(np.float32))), unit="ulp", factor=3)

# %%
bits = np.zeros(2**14, np.float32)
ours, reference = device.to_host(random.vectorised(bits, "normal", 7)), random.reference(bits, "normal", 7)
worst = np.max(np.abs(ours - reference) / np.spacing(np.abs(reference).astype(np.float32)))
print(f"the room's normal numbers: at most {worst:.2f} ulp")

# %% [markdown]
# What the room does differently: it never rounds the angle. The quarter of the turn and what is left of it are bits of
# a whole number, so they are exact. Polynomials of the rest follow. And where one rounding would be too many, the
# result stays a pair of numbers, the second being what the first has lost.

# %%
show(generator.radius)

# %%
show(generator.normals)

# %% [markdown]
# Look at `cuda.fma(-root, root, a)`. A product and a sum are rounded together, once. So this is exactly what the root,
# when it was rounded, is short of. Spelling out every rounding has a second use. A compiler may join a product and a
# sum, or not, and libraries have logarithms of their own. Here nothing is left to them, and all machines give the same
# bits.

# %%
print("uniform, seed 1:", *(f"{w:08x}" for w in random.uniform(4, seed=1).copy_to_host().view(np.uint32)))
print("normal, seed 1: ", *(f"{w:08x}" for w in random.normal(4, seed=1).copy_to_host().view(np.uint32)))

# %%
plots.drawn(plots.ladder, "random", family="normal")

# %% [markdown]
# The bytes are those of uniform numbers, and the share of the roof is less than half: here arithmetic is the bound for
# every rung. PyTorch's kernel is the fastest. Ours also computes what each rounding has lost, which is the price of two
# ulp and of the same bits everywhere.
#
# ### Exercise: waiting times

# %%
exercise("random/waiting")


# %%
@cuda.jit
def waiting(seed, mean, out):
    pass  # your code


check("random/waiting", waiting)

# %% [markdown]
# ## Weights to begin with
#
# A layer adds up as many products as it has inputs, its *fan-in*. The variances of these add up, too. If each weight
# has variance 1 / fan-in, what comes out varies as much as what went in; with larger weights signals grow from layer
# to layer, with smaller ones they die. ReLU halves the mean square, and weights of variance 2 / fan-in make up for it:
# that is what `kaiming_normal` does. We send a batch through twenty layers of 128.


# %%
def spread_after(scale, layers=20, width=128):
    """How far the numbers spread after each layer, with weights of this times He's size."""
    x, found = random.normal((64, width), seed=99).copy_to_host(), []
    for layer in range(layers):
        options = {"nonlinearity": "relu", "seed": 1, "offset": layer * width * width}
        x = np.maximum(x @ (scale * random.kaiming_normal((width, width), **options).copy_to_host()).T, 0)
        found.append(np.sqrt(np.mean(x**2)))
    return found


figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for scale, line in zip((1.25, 1.0, 0.7), palette.LINES, strict=False):
    ax.semilogy(range(1, 21), spread_after(scale), linestyle=line, label=f"{scale} times He's weights")
ax.set(xlabel="layer", ylabel="root mean square", xticks=range(2, 21, 2))
ax.legend()
None

# %% [markdown]
# With He's weights the signal keeps its size. With weights that are a quarter larger it is some ninety times as large
# after twenty layers, for 1.25 to the power of 20 is 87. The offset gives each layer a part of the sequence of its
# own. `xavier_uniform`, `xavier_normal` and `kaiming_uniform` have PyTorch's names and bounds.
#
# ## Dropout
#
# *Dropout* sets each element of a layer to 0 with probability p, and divides the others by 1 - p so that the mean
# stays. No neuron can rely on a single other one. On the way back the gradient passes where the element passed:
#
# $$y_i = \frac{k_i\,x_i}{1-p}\quad\Rightarrow\quad
# \frac{\partial L}{\partial x_i} = \frac{k_i}{1-p}\,\frac{\partial L}{\partial y_i},\qquad k_i \in \{0, 1\}.$$
#
# The way back is the way forward with the gradient in place of x, and the *same* k. The obvious way stores them.

# %%
show(dropout.mask_kernel)
show(dropout.apply_kernel)

# %% [markdown]
# **Predict, then run.** `stored_mask` writes numbers of 4 bytes, reads them, writes a mask of one byte, reads it with
# x, and writes the result. How many times the bytes is that of a kernel that reads x and writes y?

# %%
guess = None  # times the bytes

stored = lab.count(dropout.stored_mask, np.ones(4096, np.float32), 0.0).counters  # p = 0: all of x is read
asked_for = stored["global_load_bytes"] + stored["global_store_bytes"]
predict(guess, asked_for / dropout.cost(4096).bytes, unit="times the bytes", within=0.05)

# %% [markdown]
# Four bytes for a number written and four for it read, one for the mask written and one for it read, four for x and
# four for the result: 18 in the place of 8.
#
# And the mask is kept until the way back: a byte for each element of each layer, for as long as the whole forward pass
# takes. But k is a function of a seed and of i. Why keep what can be drawn again?

# %%
show(dropout.kept)
show(dropout.redrawn_kernel)

# %% [markdown]
# A seed and an offset are all that the two ways have to agree on: sixteen bytes a layer. The last rung uses all four
# words of a counter, for the four elements of a load.

# %%
show(dropout.vectorised_kernel)

# %%
x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
y = dropout.dropout(x, 0.5, seed=11).copy_to_host()
dx = dropout.backward(np.ones_like(x), 0.5, seed=11).copy_to_host()
print(f"dropped {np.mean(y == 0):.3f}; the same elements on the way back: {np.array_equal(y == 0, dx == 0)}")
for rung in dropout.LADDER:
    found = lab.count(rung, x, 0.5, 11).counters
    moved = 32 * (found["global_load_sectors"] + found["global_store_sectors"]) / x.size
    print(
        f"{rung.name:12}{moved:5.1f} bytes an element in sectors, {found['warp_instructions']:7,} instructions of warps"
    )

# %% [markdown]
# `stored_mask` draws its numbers by `four_each`, whose stores have gaps: in sectors these are 16 of its bytes, where 4
# were asked for. `redrawn` moves the least that is possible, and `vectorised` no less: it computes less. Is that worth
# anything, if memory is the bound? The measurement decides.

# %%
plots.drawn(plots.ladder, "dropout", family="dropout")

# %%
plots.drawn(plots.sweep, "dropout", family="dropout", xlabel="elements")

# %% [markdown]
# It is worth a lot. `redrawn` computes a whole counter for each element, and that takes longer than its bytes: only
# `vectorised` is bound by memory. The second figure also has small arrays. There each launch costs about the same, and
# `stored_mask` has three.
#
# Dropping the same elements again, to the last bit, makes training repeatable as well: the same seed gives the same
# network. And it lets memory be saved in a larger way. *Checkpointing* computes a layer a second time on the way back,
# which is right only if its dropout does the same.
#
# ### Exercises: channels, and a residual connection

# %%
exercise("dropout/channels")


# %%
@cuda.jit
def channels(x, p, seed, out):
    pass  # your code


check("dropout/channels", channels)

# %%
exercise("dropout/residual")


# %%
@cuda.jit
def residual(x, skip, p, seed, out):
    pass  # your code


check("dropout/residual", residual)

# %% [markdown]
# ## What to take along
#
# 1. A generator without a state suits a GPU: number i is a function of a seed and of i.
# 2. What can be computed again for less than a byte costs need not be stored.
# 3. Say which bits become a float. One rounding too many, and a number that must be below 1 is 1.
# 4. Results that are the same everywhere need every rounding said: `fma`, exact reductions, polynomials of one's own.
#
# ## Exercises
#
# Four stand in the text above. One is left.
#
# **Without a check.** Two layers have n elements each, and both are given seed 7 and offset 0. What is wrong with the
# network? Which offsets would be right, and which in the next step of the training?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def dice_answer(seed, faces, out):
    i = cuda.grid(1)
    if i < out.size:
        bits = random.word_of(seed, np.uint64(i))
        out[i] = np.uint64(bits) * np.uint64(faces) >> np.uint64(32)


assert check("random/dice", dice_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def waiting_answer(seed, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = -mean * math.log(np.float32(1) - random.unit(random.word_of(seed, np.uint64(i))))


assert check("random/waiting", waiting_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def channels_answer(x, p, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        c, k = i // x.shape[1], i % x.shape[1]
        keep = random.unit(random.word_of(seed, np.uint64(c))) >= p
        out[c, k] = x[c, k] / (np.float32(1) - p) if keep else np.float32(0)


assert check("dropout/channels", channels_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def residual_answer(x, skip, p, seed, out):
    i = cuda.grid(1)
    if i < out.size:
        value = skip[i]
        if random.unit(random.word_of(seed, np.uint64(i))) >= p:
            value += x[i] / (np.float32(1) - p)
        out[i] = value


assert check("dropout/residual", residual_answer)

# %% [markdown]
# *Offsets.* Both layers drop the same elements, in every step: neurons of one are tied to those of the other. The
# second layer begins at n, and the next step at 2n. A program that keeps a count of all numbers that it has drawn
# never uses one twice.
#
# Go on with [chapter 81](81_monte_carlo.ipynb), in which a mean of many random numbers is the price of an option.
