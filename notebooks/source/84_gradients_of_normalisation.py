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
# # 84. Gradients of normalisation
#
# *A chain rule in which every value depends on every other, sums before gradients, what a forward pass should save, the
# same bits twice, rows and columns added up in one read. PMPP 4e: chapter 10; 5e: chapter 10. The code is
# [pmpp/kernels/normalisation/batchnorm_backward.py](../pmpp/kernels/normalisation/batchnorm_backward.py) and
# [pmpp/kernels/normalisation/layernorm_backward.py](../pmpp/kernels/normalisation/layernorm_backward.py). Read
# [chapter 54](54_normalisation.ipynb) first. About 60 minutes.*
#
# In [chapter 54](54_normalisation.ipynb) a channel was shifted to mean 0 and scaled to variance 1. Training needs the
# way back: from the gradient of the result to that of the input. After this chapter you can derive it by hand, count
# the bytes that it must move, and add up rows and columns of a matrix in a single read.
#
# **The question of this chapter: each value of a channel has moved the mean and the variance of all others. What does
# it cost to take that into account?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import common, normalisation
from pmpp.kernels.normalisation import (
    batchnorm,
    batchnorm_backward,
    batchnorm_channels_last_backward,
    gradients,
    layernorm_backward,
)
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
# ## The chain rule, when all depends on all
#
# A channel has the values $x_1, \dots, x_n$. With $s = 1 / \sqrt{\mathrm{var} + \epsilon}$ it is normalised to
# $h_i = (x_i - \bar x)\, s$, and the result is $y_i = w\, h_i + b$. The loss $L$ hands us `dy`: $d_i = \partial L /
# \partial y_i$. Two gradients are easy, since $w$ and $b$ take part in every value of the channel:
#
# $$\frac{\partial L}{\partial b} = \sum_i d_i, \qquad \frac{\partial L}{\partial w} = \sum_i d_i\, h_i.$$
#
# For the third, move one value $x_j$ by a little, $\delta$. Three things happen to the $h_i$:
#
# 1. $h_j$ itself moves by $s\,\delta$.
# 2. The mean moves by $\delta / n$, so *every* $h_i$ moves by $-s\,\delta / n$.
# 3. The variance is the mean of the squared distances. It moves by $2 (x_j - \bar x)\, \delta / n$. (That the mean
#    moves, too, adds nothing: the distances from the mean add up to 0.) Then $s$ moves by
#    $-\tfrac12 s^3$ times that, which is $-s^2 h_j\, \delta / n$. So every $h_i$ moves by $-s\, h_i h_j\, \delta / n$.
#
# Each $h_i$ counts $w\, d_i$ in the loss. Add up all three, and divide by $\delta$:
#
# $$\frac{\partial L}{\partial x_j} = w\,s \Big( d_j - \frac1n \sum_i d_i - h_j\, \frac1n \sum_i d_i\, h_i \Big).$$
#
# The sums are the gradients of $b$ and $w$. So a channel needs two sums, and the gradient of each value follows from
# them. The reference is this formula in float64.

# %%
show(gradients.of_rows)

# %% [markdown]
# Is it right? We take small patches of a photograph for `x`, and random numbers for `dy`. Then we move single values
# by a little in both directions, normalise with the reference of chapter 54, and look how the loss changes.

# %%
rng = np.random.default_rng(0)
picture = data.photographs()[0][128:192, 256:320].astype(np.float64)
x = picture.reshape(4, 16, 4, 16, 3).transpose(0, 2, 4, 1, 3).reshape(16, 3, 16, 16)  # 16 patches, 3 colours
dy = rng.standard_normal(x.shape)
weight, bias = np.array([1.0, 2, -1]), np.zeros(3)


def slope_at(place, dy, step=1e-5):
    moved = np.zeros(x.shape)
    moved[place] = step
    both = [(batchnorm.reference(x + way * moved, weight, bias) * dy).sum() for way in (1, -1)]
    return (both[0] - both[1]) / (2 * step)


dx = batchnorm_backward.reference(dy, x, weight)
for place in ((0, 0, 3, 4), (5, 1, 9, 9), (15, 2, 0, 15)):
    print(f"x{list(place)}: by moving it {slope_at(place, dy):.5e}, by the formula {dx[place]:.5e}")

# %% [markdown]
# **Predict, then run.** Now the loss is the plain sum of all results: every element of `dy` is 1. How large is the
# largest gradient of `x`, to one digit?

# %%
guess = None  # the largest gradient

largest = abs(batchnorm_backward.reference(np.ones(x.shape), x, weight)).max()
predict(guess, round(float(largest), 6), exact=True)

# %%
print(f"largest gradient of a sum of results: {largest:.1e}, of a random loss: {abs(dx).max():.1e}")

# %% [markdown]
# Nothing is left but rounding. A normalised channel has the sum 0 whatever `x` is, so no value can change it. For the
# same reason a test of this gradient with ones for `dy` tests nothing: a kernel that stores zeros passes. The tests of
# these rooms use random numbers.
#
# The pictures show the red channel of one patch, and what the formula does to a `dy` that favours bright pixels. What
# is constant in `dy` is taken out, and what is proportional to the normalised `x` as well: neither can change the loss.

# %%
one = np.ascontiguousarray(x[6:7])
favours = (one / 255) ** 2
pictures = {"x": one, "dy, grows as x squared": favours, "dx": batchnorm_backward.reference(favours, one, np.ones(3))}
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6), layout="constrained")
for ax, (title, shown) in zip(axes, pictures.items(), strict=True):
    image = ax.imshow(shown[0, 0], cmap="cividis")
    figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set_title(title, fontsize="medium")
    ax.axis("off")

# %% [markdown]
# ## The bound
#
# No gradient can be written before both sums of its channel are known. A batch that fits into no cache is read for the
# sums, and read again for the gradients: `dy` and `x` twice, and `dx` written once. If a channel fits into the
# registers of a block, one read is enough.
#
# **Predict, then run.** How many times the bytes of one read does the way with two reads move?

# %%
guess = None  # times the bytes

size = 256 * 64 * 112 * 112
once = batchnorm_backward.cost(256, 64, 112 * 112)
twice = Cost(flops=once.flops, bytes=once.bytes + 8 * size)
predict(guess, twice.bytes / once.bytes, within=0.02)

# %%
ceilings = roofline.ceilings("batchnorm")
for name, cost in {"one read": once, "two reads": twice}.items():
    least = roofline.bound(cost, ceilings)
    print(f"{name:10}{cost.bytes / 1e9:5.2f} GB, {cost.intensity:.2f} FLOP/byte: at least {least.seconds * 1e3:.2f} ms")
print(f"with {ceilings.bandwidth / 1e12:.2f} TB/s ({ceilings.source})")

# %% [markdown]
# There are 9 operations for an element, and 12 or 20 bytes: this is memory-bound on every GPU. We judge it by two
# reads, while the recorded figures count one. So in them the best at this size is three fifths of the roof.
#
# The mean and $s$ are needed as well. To find them again would be a third read of `x`. The forward pass knows them, and
# they are two numbers for a channel: it returns them when it is asked to.

# %%
batch = x.astype(np.float32)
ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
y, mean, invstd = normalisation.batch_norm(batch, ones, zeros, return_moments=True)
print("mean", mean.copy_to_host(), "invstd", invstd.copy_to_host())
upstream = dy.astype(np.float32)
kept = {"mean": mean, "invstd": invstd}
parts = normalisation.batch_norm_backward(upstream, batch, ones, **kept)
for name, part in zip(("dx", "dweight", "dbias"), parts, strict=True):
    print(f"{name:8} shape {part.shape}")

# %% [markdown]
# `batch_norm` can also apply a ReLU. This function has no gradient for that. A network takes `relu=True` in inference,
# and in training a ReLU of its own behind the normalisation; an exercise below joins the two.
#
# ## Rung 1: `block_per_channel`
#
# As in chapter 54, a block takes a channel, and adds up both sums. A second kernel has a thread for each element.

# %%
show(batchnorm_backward.sums_kernel)
show(batchnorm_backward.gradient_kernel)

# %% [markdown]
# The sum of $d_i (x_i - \bar x)$ is multiplied by $s$ once, at the end. The mean is subtracted before the product, and
# not after the sum: $\sum d_i x_i - \bar x \sum d_i$ would be the difference of two large numbers, as with the hasty
# variance of chapter 54.
#
# ## Rungs 2 and 3: `split` and `fused`
#
# 64 channels are 64 blocks, and most of the GPU has nothing to do. So several blocks share a channel. Each stores two
# partial sums, and they are added in the order of their numbers, by a kernel of their own, or by every block of the
# kernel that needs them. A thread then computes three numbers for its channel, and no division for an element.

# %%
show(gradients.add_parts)
show(batchnorm_backward.of_sums)
show(batchnorm_backward.fused_kernel)


# %%
def counted(rung, *arrays, **options):
    """A line for each launch of a rung."""
    for run in lab.count(rung, *arrays, **options).reports:
        print(f"{rung.name:18}{run.kernel:20}{run.grid[0]:4} x {run.grid[1]:3} blocks of {run.block[0]}")


for rung in batchnorm_backward.LADDER[:3]:
    counted(rung, upstream, batch, ones, **kept)

# %% [markdown]
# ### The same bits twice
#
# There is a shorter way: each block adds its partial sums to `dweight` by an atomic addition. But blocks finish in any
# order, and the order of float32 additions changes the last bits. Here are the partial sums of a channel, added in a
# thousand random orders.
#
# **Predict, then run.** How many different results are there?

# %%
guess = None  # different sums

partials = (upstream[:, 0] * batch[:, 0]).reshape(32, -1).sum(axis=1, dtype=np.float32)
orders = [rng.permutation(partials) for _ in range(1000)]
sums = {float(np.add.accumulate(order)[-1]) for order in orders}
predict(guess, len(sums), factor=3)

# %%
print(f"{len(sums)} different sums, from {min(sums):.7g} to {max(sums):.7g}")
same = [batchnorm_backward.vectorised(upstream, batch, ones).copy_to_host().tobytes() for _ in range(2)]
print("the same bits twice:", same[0] == same[1])

# %% [markdown]
# A training run with atomics cannot be repeated. A fault that shows in one run of many can then hardly be found. An
# order that depends on the shape alone costs a small array, and adding it up.
#
# ### Exercise: the two sums

# %%
exercise("batchnorm_backward/sums")


# %%
@cuda.jit
def both_sums(dy, x, mean, invstd, out):
    pass  # your code


check("batchnorm_backward/sums", both_sums)

# %% [markdown]
# ## Rung 4: `vectorised`
#
# The last rung loads 128 bits at a time, four vectors of `dy` and four of `x` before it needs the first. One walk along
# the channel serves both arrays.

# %%
show(gradients.load_both)
show(batchnorm_backward.sums_of_part)

# %% [markdown]
# `like` is a tuple as long as a load has values: four of float32, eight of 16 bits, or one. Its length is known when
# the kernel is compiled, so the compiler keeps one branch. A kernel that decided while it runs would need registers for
# both ways: sixteen narrow loads have sixteen addresses, and these would push values out to memory.
#
# A channel of up to 16,384 values stays in the registers of one block, and is read once.

# %%
show(batchnorm_backward.channel_kernel)

# %% [markdown]
# **Predict, then run.** How many bytes does this rung load for each element of our batch of patches? A channel has
# 4,096 values.

# %%
guess = None  # bytes

reports = lab.count(batchnorm_backward.vectorised, upstream, batch, ones, **kept).reports
loaded = 32 * sum(report.counters["global_load_sectors"] for report in reports) / batch.size
predict(guess, loaded, unit="bytes", within=0.1)

# %%
for images in (16, 80):  # a channel of 4,096 values, and one of 20,480
    more = np.concatenate([batch] * (images // 16)), np.concatenate([upstream] * (images // 16))
    counted(batchnorm_backward.vectorised, more[1], more[0], ones, **kept)

# %% [markdown]
# Layers behind the first few of a network have small planes. For those the gradient is one launch and one read.
#
# Now the measurement, at the design size: 256 images, 64 channels, 112 x 112.


# %%
def measured(room):
    """Print the recorded times of a room at its design size, with those of the library."""
    try:
        store = record.load()
        for entry in store.design(room):
            share = entry.bytes / entry.seconds / store.ceilings(room).bandwidth
            print(f"{entry.contender:36}{entry.median_ms:8.3f} ms{share:7.0%} of the roof")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


measured("batchnorm_backward")

# %%
plots.drawn(plots.ladder, "batchnorm_backward")

# %%
plots.drawn(plots.roofline, "batchnorm_backward")

# %% [markdown]
# The first figure has the rungs and the libraries. `vectorised` takes about the least time of two reads, which we
# computed above: what lies between it and the roof is the second read. The second figure shows how far to the left of
# the ridge all of them are: arithmetic is no bound here. (A figure whose times are not in the record says so.)
#
# In mixed precision `dy` and `x` have 16 bits. They are widened in registers, the sums and the gradients of weight and
# bias are float32, and the gradient of the batch is rounded once. These are half the bytes:

# %%
plots.drawn(plots.by_dtype, "batchnorm_backward", family="gradients")

# %% [markdown]
# The dashed line is half of the time of float32.
#
# ### Channels last
#
# With the channels last, as in (N, H, W, C), a batch is a matrix and a channel is one of its columns. In
# [batchnorm_channels_last_backward](../pmpp/kernels/normalisation/batchnorm_channels_last_backward.py) a lane takes 128
# bits of a row of `dy`, and the same of `x`. So it has two sums for each of four columns, or eight of 16 bits. A block
# adds the sums of its rows in shared memory. Blocks leave theirs in a table, and a second kernel adds these in one
# order: the same call gives the same bits.

# %%
show(batchnorm_channels_last_backward.sums_kernel)

# %% [markdown]
# **Predict, then run.** 3 x 32 x 32 places with 64 channels, in float32. How many bytes does all of `vectorised` store
# for each byte of the result, with the gradients of weight and bias, and with its tables?

# %%
guess = None  # bytes

columns = rng.standard_normal((3, 32, 32, 64)).astype(np.float32)
many = np.ones(64, np.float32)
stored = lab.count(batchnorm_channels_last_backward.vectorised, columns, columns, many).counters["global_store_bytes"]
predict(guess, stored / columns.nbytes, unit="bytes")

# %% [markdown]
# There are two tables here, for the moments were not given, and they are small beside the batch. A large batch has no
# more parts than the GPU has blocks at once, and there the tables are next to nothing.

# %%
plots.drawn(plots.ladder, "batchnorm_channels_last_backward", family="gradients")

# %% [markdown]
# `batch_norm_backward(..., layout="NHWC")` takes this way.
#
# ### Exercise: a ReLU behind it

# %%
exercise("batchnorm_backward/relu")


# %%
@cuda.jit
def through_relu(dy, y, x, weight, mean, invstd, out):
    pass  # your code


check("batchnorm_backward/relu", through_relu)

# %% [markdown]
# ## Layer normalisation
#
# The derivation is the same, with a row in place of a channel. One thing differs: each column $j$ has its own weight
# $w_j$. So the weight cannot stand in front of the brackets. With $g_j = d_j w_j$,
#
# $$\frac{\partial L}{\partial x_j} = s \Big( g_j - \frac1n \sum_i g_i - h_j\, \frac1n \sum_i g_i\, h_i \Big).$$
#
# And the gradients of $w_j$ and $b_j$ are sums over the rows, down a column: $\sum d\,h$ and $\sum d$. Sums along the
# rows and sums down the columns, of the same two matrices. The obvious way is one kernel for each.

# %%
show(layernorm_backward.row_sums)
show(layernorm_backward.columns_kernel)

# %% [markdown]
# `three_kernels` reads `dy` and `x` three times. `block_per_row` writes the gradient in the block that found the sums,
# while the row is in the cache, and adds the columns with more blocks: two reads from memory.
#
# **Predict, then run.** For a matrix that fits into no cache, how many times the least bytes does `block_per_row` move,
# if a row is found in the cache again? The least is to read both once, and to write `dx`.

# %%
guess = None  # times the bytes

rows, columns = 65536, 1024
least = layernorm_backward.cost(rows, columns)
predict(guess, (least.bytes + 8 * rows * columns) / least.bytes, within=0.03)

# %% [markdown]
# ## `one_read`: rows and columns at once
#
# Let a block take not one row but many, one after another. Thread $t$ always has the same columns. So what it adds up
# for a column can stay in a register from the first row to the last. The row stays in other registers, from its load
# to the gradient.

# %%
show(layernorm_backward.one_read_kernel)

# %% [markdown]
# At the end each block stores its sums of all columns, and `add_kernel` adds those of all blocks, in order. There are
# as many blocks as the GPU can hold at once, so these sums are few.

# %%
matrix, given = rng.standard_normal((2, 128, 512), dtype=np.float32)
wide_ones = np.ones(512, np.float32)
_, row_mean, row_invstd = normalisation.layer_norm(matrix, wide_ones, 0 * wide_ones, return_moments=True)
for rung in layernorm_backward.LADDER:
    reports = lab.count(rung, given, matrix, wide_ones, mean=row_mean, invstd=row_invstd).reports
    names = ", ".join(f"{run.kernel} ({run.grid[0]} x {run.grid[1]})" for run in reports)
    barriers = sum(run.counters["barriers"] for run in reports)
    print(f"{rung.name:14}{barriers:6} barriers: {names}")

# %% [markdown]
# (In so small a matrix each block of `one_read` has one row. At the design size it has more than a hundred.)
#
# ## `vectorised`: one barrier for a row, and none for a short one
#
# Every row costs `one_read` two barriers, and a thread that waits loads nothing. The last rung adds up both sums of a
# row together, with one barrier. The warps write their sums into one half of `partial`, and for the next row into the
# other half. So nobody has to wait until the slowest has read. And a load moves 128 bits.

# %%
show(layernorm_backward.sum_in_group)
show(layernorm_backward.walk)

# %% [markdown]
# Rows of up to 128 elements share a warp. A group of `lanes` threads has a row, and they exchange their sums by
# shuffles, without any barrier. A thread keeps four elements of a row, and each group has two rows at once, so that
# more loads are in flight. Several groups add the same columns: at the end their sums are added in shared memory, in
# the order of the groups.
#
# A longer row has a block to itself, and a thread keeps eight of its elements. These are as many registers as two
# short rows need, so a block takes one row after the other.

# %%
measured("layernorm_backward")

# %%
plots.drawn(plots.ladder, "layernorm_backward")


# %%
def over_columns():
    """The rate over the length of a row, for matrices of one size."""
    kept = record.load()
    entries = sorted(kept.entries("layernorm_backward", family="gradients"), key=lambda entry: entry.sizes["columns"])
    if len({entry.sizes["columns"] for entry in entries}) < 2:
        raise record.RecordError(f"{kept.where} has too few rows of different lengths")
    figure, ax = chart(4.2)
    for name, (colour, marker) in plots.colours(kept, "layernorm_backward").items():
        mine = [entry for entry in entries if entry.contender == name]
        if not mine:
            continue
        rates = [entry.bytes / entry.seconds / 1e12 for entry in mine]
        ax.plot([entry.sizes["columns"] for entry in mine], rates, color=colour, marker=marker, label=name)
    roof = kept.ceilings("layernorm_backward").bandwidth / 1e12
    ax.axhline(roof, color=palette.INK, linestyle="--", label="the memory ceiling")
    ax.set(xlabel="elements of a row", ylabel="rate (TB/s)", yscale="log", title=f"{entries[0].sizes['n']:,} elements")
    ax.set_xscale("log", base=2)
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("layernorm_backward"))
    return figure


plots.drawn(over_columns)

# %%
plots.drawn(plots.roofline, "layernorm_backward")

# %% [markdown]
# `vectorised` and `one_read` read dy and x once, in blocks of the same size. `vectorised` has one barrier for a row
# instead of two, loads of 128 bits instead of 32, and the weights in registers. The first rung is far behind all
# others: its last kernel has a thread for a column, and a thousand threads leave most of the GPU idle.
#
# In the middle figure all matrices have the same number of elements, with rows of different lengths. Up to 4,096
# elements the line of `vectorised` stays near the top: short rows cost it nothing. The others fall far below their best
# there, and so does PyTorch. A block for a short row has threads without work. For rows of 16,384 elements `vectorised`
# is no faster than `block_per_row`, and PyTorch is ahead.
#
# In 16 bits a vector has eight elements, so that 32 lanes are enough for a row of 256:

# %%
plots.drawn(plots.by_dtype, "layernorm_backward", family="gradients")

# %% [markdown]
# A row of 1024 has a barrier, and the block waits there for one row at a time. That takes as long as in float32, and so
# the bars stay behind the dashed line, half of the time of float32.
#
# And beside NumPy on the CPU, for rows of 1024, where the record has these times:

# %%
plots.drawn(plots.cpu_gpu, "layernorm_backward", family="batches", xlabel="elements")

# %% [markdown]
# ## How exact is it?
#
# `dx` is the difference of three terms. If `dy` is nearly a multiple of the normalised `x`, they cancel, and what is
# left is rounding. So the tolerance of these rooms counts the size of the terms, not of the result. Here the errors are
# drawn over the share of `dy` that survives.

# %%
shares, errors, sizes = np.logspace(-7, 0, 8), [], []
normalised = gradients.of_rows(dy[:, 0].reshape(1, -1), x[:, 0].reshape(1, -1), np.ones((1, 1)), 0)[2]
flat, noise = np.ascontiguousarray(x[:, :1]), rng.standard_normal((16, 1, 16, 16))
for share in shares:
    d = (normalised.reshape(flat.shape) + share * noise).astype(np.float32)
    expected = batchnorm_backward.reference(d, flat.astype(np.float32), ones[:1], 0)
    found = batchnorm_backward.vectorised(d, flat.astype(np.float32), ones[:1], eps=0).copy_to_host()
    errors.append(abs(found - expected).max())
    sizes.append(abs(expected).max())
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.loglog(shares, sizes, marker="o", color=palette.COLOURS[0], label="largest gradient")
ax.loglog(shares, errors, marker="s", color=palette.COLOURS[1], label="largest error")
ax.set(xlabel="noise in dy, beside the normalised x", ylabel="size")
_ = ax.legend()

# %% [markdown]
# The error hardly shrinks with the gradient: it belongs to the terms. At the left end not even the first digit is
# certain.
#
# ## What to take along
#
# 1. To derive a gradient, move one input and list all that moves with it.
# 2. A normalisation takes two directions out of `dy`: the constant one, and that of the normalised `x`.
# 3. What the forward pass knows in a few numbers, it should return.
# 4. Sums come before gradients, and the sums are themselves gradients, those of weight and bias.
# 5. A block that walks over many rows can add up columns in registers, and rows at the same time.
# 6. What the compiler does not know costs registers. Make it a constant where you can.
#
# ## Exercises
#
# Two stand in the text above.
#
# ### RMS normalisation, backwards

# %%
exercise("layernorm_backward/rms")


# %%
@cuda.jit
def rms_backward(dy, x, weight, invrms, out):
    pass  # your code


check("layernorm_backward/rms", rms_backward)

# %% [markdown]
# ### Down the columns

# %%
exercise("layernorm_backward/columns")


# %%
@cuda.jit
def down_the_columns(dy, x, mean, invstd, out):
    pass  # your code


check("layernorm_backward/columns", down_the_columns)

# %% [markdown]
# ### More, without a check
#
# - `dy` and `x` of one channel of the design size fit together into the second-level cache of an H200. If the GPU
#   finished one channel before it began the next, the second read could come from the cache. How many bytes would come
#   from memory then? What would the blocks have to wait for?
# - In inference `batch_norm` uses running moments, which are constants. What is the gradient of `x` then, and how many
#   reads does it take?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def sums_answer(dy, x, mean, invstd, out):
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted = np.float32(0), np.float32(0)
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        given = dy[i // inner, c, i % inner]
        plain += given
        weighted += given * (x[i // inner, c, i % inner] - mean[c])
    plain = common.block_sum(plain, partial[0])
    weighted = common.block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        out[0, c], out[1, c] = weighted * invstd[c], plain


assert check("batchnorm_backward/sums", sums_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def rectified(dy, y, image, c, r):
    """What comes through the ReLU."""
    return dy[image, c, r] if y[image, c, r] > np.float32(0) else np.float32(0)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit(device=True)
def channel_mean(dy, y, x, mean, power, partial):
    """The mean of what comes through, times the distance of x from the mean to the power 0 or 1."""
    images, _, inner = x.shape
    total, c = np.float32(0), cuda.blockIdx.x
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        image, r = i // inner, i % inner
        total += rectified(dy, y, image, c, r) * (x[image, c, r] - mean[c] if power else np.float32(1))
    return common.block_sum(total, partial) / np.float32(images * inner)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def relu_answer(dy, y, x, weight, mean, invstd, out):
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain = channel_mean(dy, y, x, mean, 0, partial[0])
    slope = channel_mean(dy, y, x, mean, 1, partial[1]) * invstd[c] * invstd[c]
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        image, r = i // inner, i % inner
        own = rectified(dy, y, image, c, r) - plain - (x[image, c, r] - mean[c]) * slope
        out[image, c, r] = weight[c] * invstd[c] * own


assert check("batchnorm_backward/relu", relu_answer)

# %% [markdown]
# *ReLU.* A value that the ReLU cut off has no `dy`, but it is still part of the mean and of the variance. So its
# gradient is not 0.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rms_answer(dy, x, weight, invrms, out):
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:  # the same for a whole warp
        slope = np.float32(0)
        for i in range(lane, columns, 32):
            slope += dy[row, i] * weight[i] * x[row, i] * invrms[row]
        slope = common.warp_sum(slope) / np.float32(columns)
        for i in range(lane, columns, 32):
            out[row, i] = (dy[row, i] * weight[i] - x[row, i] * invrms[row] * slope) * invrms[row]


assert check("layernorm_backward/rms", rms_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def columns_answer(dy, x, mean, invstd, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        plain, weighted = np.float32(0), np.float32(0)
        for row in range(x.shape[0]):
            plain += dy[row, column]
            weighted += dy[row, column] * ((x[row, column] - mean[row]) * invstd[row])
        out[0, column], out[1, column] = weighted, plain


assert check("layernorm_backward/columns", columns_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
channel = 8 * 256 * 112 * 112
print(f"dy and x of one channel: {channel / 1e6:.1f} MB")
print(f"with the second read from the cache {once.bytes / 1e9:.2f} GB from memory, else {twice.bytes / 1e9:.2f} GB")

# %% [markdown]
# *One channel after another.* All blocks would have to wait until the sums of the channel are known, once for each
# channel. Two channels at a time would keep the GPU busy, but hardly fit into the cache.
#
# *Inference.* With constant moments $\partial L / \partial x_j = w\,s\,d_j$: one read of `dy`, and `x` is not needed.
#
# Go on with [chapter 85](85_compressed_activations.ipynb): what a layer keeps for its gradient, in few bits.
