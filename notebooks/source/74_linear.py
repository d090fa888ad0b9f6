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
# # 74. Linear layers and their gradients
#
# *A product with its epilogue, thin products, sums split in a fixed order, gradients by the chain rule, the first
# network that learns. PMPP 4e: chapters 5, 6 and 16; 5e: chapters 5, 6 and 19. Allow 75 minutes.*
#
# You will be able to derive the gradients of a layer, to say which of its products a GPU can be filled with, and to
# split a sum so that the same call gives the same bits. From [chapter 12](12_matmul.ipynb) we need tiles in registers,
# from [chapter 30](30_reduction.ipynb) the sum over a warp.
#
# So far this workbook has computed what a network *answers*. From here on it learns. Learning asks each layer a second
# question: if the result should change a little, how must what went in change? The answer is the *gradient*, and for a
# linear layer it consists of two more matrix products and a sum.
#
# **The question of this chapter: why do products that are so small, or so thin, keep a large GPU waiting, and how can
# they be spread over it?** The code is in the rooms `pmpp/kernels/linear/ladder.py` and
# `pmpp/kernels/linear/linear_gradients.py`, and the product behind both in `pmpp/kernels/linear/products.py`.

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import linear
from pmpp.kernels.linear import linear_gradients, products
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
SMS = 132  # multiprocessors of an H200, for which this chapter plans
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A layer
#
# A linear layer takes a row of numbers, the *features*, to another row, the *outputs*. Each output is a weighted sum of
# all features plus a *bias*. PyTorch keeps the weights of an output in a row of *W*, so *W* has the shape (out, in),
# and a batch *x* of *N* examples gives *y* = *x* *W*ᵀ + *b*. Often a ReLU follows: negative outputs become 0.

# %%
show(linear.reference)

# %%
images, labels = data.digits()
x = np.ascontiguousarray(images.reshape(-1, 64) / 16, np.float32)
target = np.eye(10, dtype=np.float32)[labels]
print(f"{len(x)} digits of 8 x 8 pixels: x has shape {x.shape}; one number for each of ten classes: {target.shape}")

# %% [markdown]
# ## The bound
#
# A layer has a multiply-add for each weight and each example. It must read *x*, *W* and *b* and write *y*. So all
# depends on the shape. These are layers of a small network for images (LeNet-5), of a larger perceptron, and of a
# language model that writes one word at a time.
#
# **Predict, then run.** A single row goes through a layer of 4096 x 4096. How many FLOP are there for each byte?

# %%
guess = None  # FLOP/byte

predict(guess, linear.cost(1, 4096, 4096).intensity, unit="FLOP/byte", within=0.1)

# %%
SHAPES = {
    "LeNet-5, first": (256, 400, 120),
    "LeNet-5, third": (256, 84, 10),
    "perceptron": (512, 1024, 1024),
    "one row": (1, 4096, 4096),
    "16 rows": (16, 4096, 11008),
    "square": (4096, 4096, 4096),
}
ceilings = roofline.ceilings()
for name, shape in SHAPES.items():
    cost = linear.cost(*shape)
    least = roofline.bound(cost, ceilings)
    print(f"{name:15} {cost.intensity:7.1f} FLOP/byte, at least {least.seconds * 1e6:8.2f} us: {least.side}")

# %% [markdown]
# Each weight is used once for each row. With one row that is two operations for four bytes, half a FLOP a byte, and
# memory is the bound: the layer takes as long as reading *W*. The LeNet layers are a different matter. Their bound is a
# fraction of a microsecond, which is less than a launch takes. What counts for them is how long a kernel *waits*.
#
# ## Rung 1: `naive`
#
# One thread for each output. It is the definition, with the epilogue at the end: bias and ReLU are applied to a number
# that the thread still holds. As kernels of their own they would read and write all of *y* again.

# %%
show(linear.naive_kernel)

# %% [markdown]
# Threads that lie side by side have neighbouring outputs.
#
# **Predict, then run.** When a warp reads `weight[output, k]`, 32 outputs at the same `k`, of a layer with 64 features:
# how many sectors does it touch?

# %%
guess = None  # sectors

counted = lab.count(linear.naive, x[:32], np.ones((32, 64), np.float32)).reports[0].counters
requests = 32 * 64  # of each operand: a warp has one row of x, and there are 64 steps
predict(guess, counted["global_load_sectors"] / requests - 1, unit="sectors")  # the element of x is the other one

# %% [markdown]
# Rows of *W* lie 256 bytes apart, so each lane reads from a sector of its own. In chapter 12 the second operand lay the
# other way, and the same kernel was coalesced.
#
# ## Rung 2: `tiled`
#
# A block loads squares of both operands into shared memory along their rows, as they lie, and reads the square of *W*
# down its columns. The padding of [chapter 16](16_transpose.ipynb) keeps these reads free of bank conflicts.

# %%
show(linear.tiled_kernel)

# %%
toy = x[:64], np.ones((64, 64), np.float32)
for rung in (linear.naive, linear.tiled):
    c = lab.count(rung, *toy).reports[0].counters
    print(f"{rung.name:7} {c['global_load_sectors']:7,} sectors loaded, {c['shared_load_requests']:6,} shared loads")

# %% [markdown]
# ## Rung 3: `register_tiled`
#
# The last rungs of chapter 12 keep a tile of the result in registers, load 128 bits at a time, and fetch the next tiles
# while these are multiplied. We take that kernel, with one change. It was written for operands that lie in one way.
# Here three products are wanted, and their operands lie in different ways.
#
# Call the extent that is summed over *k*. An operand is *deep* if *k* runs along memory, *wide* if it does not. In *x*
# *W*ᵀ both are deep. A function makes the device functions that read an operand of either kind:

# %%
show(products.reader_of)

# %% [markdown]
# In shared memory both kinds look alike: a row of the tile is one *k*. A wide operand's vector is stored there as it
# is. A deep operand's vector has four values of *k*, and goes down a column. `deep` is a constant when the kernel is
# compiled, so nothing is left of the choice.
#
# How well does that fill a GPU? A block computes 64 x 64 outputs.
#
# **Predict, then run.** How many of the 132 multiprocessors of an H200 have anything to do for the first layer of
# LeNet-5, 256 x 120 outputs?

# %%
guess = None  # multiprocessors

rows, features, outputs = SHAPES["LeNet-5, first"]
tile = products.MIDDLE
predict(guess, -(-rows // tile.m) * -(-outputs // tile.n), unit="multiprocessors")

# %% [markdown]
# Eight of 132. Each of them takes 50 steps of 8 features, one after the other, and each step waits for memory. Smaller
# tiles would help a little. But look at the sums: 400 products for each output, and they are all added by one thread.
#
# ## Rung 4: `split`
#
# A sum can be cut. Let a block sum over a *slice* of *k*, write what it has, its *partial* result, and let a second
# kernel add the slices. There are as many times more blocks as slices, and each has as many times fewer steps.

# %%
show(products.sum_of_slices)
show(products.add_kernel)

# %% [markdown]
# Three things in it are worth a look. Eight slices are loaded before the first is added: otherwise each addition would
# wait for its own load. The bias and the ReLU moved here, since only here is the sum complete. And the slices are added
# in their order, by one thread.
#
# Atomics would need no second kernel. But atomics add in the order in which blocks happen to finish, and float32
# addition depends on the order:

# %%
rng = np.random.default_rng(74)
partials = rng.standard_normal(8, dtype=np.float32)
orders = [rng.permutation(8) for _ in range(1000)]
results = {float(np.cumsum(partials[order], dtype=np.float32)[-1]) for order in orders}
print(f"8 numbers added in 1000 random orders: {len(results)} different results")
print(f"from {min(results):.9g} to {max(results):.9g}")

# %% [markdown]
# Each of them is as right as the others. But a training run that cannot be repeated cannot be debugged. So we keep a
# fixed order everywhere, and the tests call each rung twice and compare all bits.
#
# What does splitting cost? The partial results are written and read once more, and there is a second launch. So there
# should be as few slices as fill the GPU. This is what our estimate says, from a count of steps and rounds that stands
# in `products.cycles`. Its constants are not fitted to measurements.

# %%
show(products.cycles)

# %%
figure, ax = plt.subplots(figsize=(7.8, 3.2), layout="constrained")
slices = np.arange(1, 33)
lines = {"LeNet-5, first": (256, 120, 400), "long batch, dW": (512, 512, 32768), "square": (4096, 4096, 4096)}
for (name, shape), colour, marker in zip(lines.items(), palette.COLOURS, "osD", strict=False):
    plans = [products.slices_of(products.MIDDLE, shape[2], int(s)) for s in slices]
    estimate = np.array([products.cycles(plan, *shape, SMS) for plan in plans])
    ax.plot(slices, estimate / estimate[0], marker=marker, ms=4, color=colour, label=name)
ax.set(xlabel="slices asked for", ylabel="estimated time, relative", ylim=0)
ax.set_title("splitting the sum, in tiles of 64 x 64; 1 is the time without slices")
_ = ax.legend()

# %% [markdown]
# The blue line is the small layer. The first few slices gain most. Further ones gain little, since the second launch is
# then most of what is left. The green line is a product of square matrices, which has enough tiles as it is: more
# slices only add traffic. The orange line is a gradient with a sum over 32,768 examples. It will come up below.
#
# **Your turn.** Write the second kernel yourself.

# %%
exercise("linear/finish")


# %%
@cuda.jit
def finish(partials, bias, y):
    pass  # your code


check("linear/finish", finish)

# %% [markdown]
# ## Rung 5: `by_shape`
#
# The last rung lets the shape decide. There are tiles of 128 x 128 for what is large, of 16 x 128 and 128 x 16 for what
# is thin, of 32 x 32 and 16 x 32 for what is small, and those of 64 x 64 from before. And a block may have several
# *groups* of warps for one tile, each with a part of *k*: they put their sums together in shared memory, in the order
# of the groups. So what is small is split and still takes one launch.

# %%
for name, (rows, features, outputs) in SHAPES.items():
    plan = products.plan_for(rows, outputs, features, True, SMS)
    tile, tiles = plan.tile, -(-rows // plan.tile.m) * -(-outputs // plan.tile.n)
    split = f"{plan.slices} slices x {tile.groups} groups of {plan.length}"
    print(f"{name:15} {tiles:4} tiles of {tile.m:3} x {tile.n:3}, {split}: {tiles * plan.slices:4} blocks")

# %% [markdown]
# One row or two do not need tiles at all. Each weight is needed once, so a warp reads rows of *W* from end to end, 128
# bits at a time. A lane has eight such loads on their way before it uses the first: for one row that is all that
# matters. (In the table, *one row* shows the tiles that it would get.)

# %%
show(products.few_rows_kernel_for)

# %%
weight, bias = target[:500].T @ x[:500] / 50, np.zeros(10, np.float32)
for name, rows in (("one row", 1), ("two rows", 2), ("three rows", 3)):
    report = lab.count(linear.by_shape, x[:rows], weight, bias).reports[0]
    print(f"{name:10} {report.kernel:16} {report.counters['global_load_sectors']:5} sectors loaded")
print(f"W alone has {weight.size * 4 // 32} sectors")

# %% [markdown]
# Each weight is read once. What is more than that is mostly *x*: each warp asks for all its rows again, and finds them
# in the cache. (A sector for each output and row is the bias.) With three the tiles take over, which load *x* once for
# many outputs. The limit is a compromise: from three rows on the loads of *x*, which every warp makes for all rows,
# cost more than tiles do, on most shapes that we tried.
#
# **Your turn.** Write the kernel for one row, without vectors.

# %%
exercise("linear/one_row")


# %%
@cuda.jit
def one_row(x, weight, bias, y):
    pass  # your code


check("linear/one_row", one_row)

# %% [markdown]
# ## The gradients
#
# Somewhere behind the layer stands a number, the *loss* *L*, that says how wrong the network is. It depends on *y*, and
# we are given how: *dy*, with an element *dy*ᵢₒ = ∂*L*/∂*y*ᵢₒ for each of *y*. What we want is the same for *x*, *W*
# and *b*. The layer says
#
# $$y_{io} = \sum_k x_{ik} W_{ok} + b_o.$$
#
# Take one weight, $W_{ok}$. It takes part in output $o$ of *every* example $i$, with the factor $x_{ik}$. The chain
# rule adds over all ways in which it reaches the loss, and the same for one feature and one bias:
#
# $$\frac{\partial L}{\partial W_{ok}} = \sum_i dy_{io}\, x_{ik}, \qquad
# \frac{\partial L}{\partial x_{ik}} = \sum_o dy_{io}\, W_{ok}, \qquad
# \frac{\partial L}{\partial b_o} = \sum_i dy_{io}.$$
#
# In matrices: *dW* = *dy*ᵀ *x*, *dx* = *dy* *W*, and *db* is the sum of *dy*'s rows. Read the indices, and no rule
# about transposing needs to be remembered.

# %%
show(linear_gradients.reference)

# %% [markdown]
# Is that right? Move one weight by a little, to both sides, and look at the loss. As *L* we take the sum of *dy* times
# *y* with a random *dy*. Had we chosen *dy* = 1 everywhere, a mistake that mixes up outputs could hide.

# %%
small, w = x[:5, :6].astype(float), rng.standard_normal((3, 6))
dy = rng.standard_normal((5, 3))
step, slope = 2.0**-10, np.zeros((3, 6))
for at in np.ndindex(3, 6):
    moved = np.zeros((3, 6))
    moved[at] = step
    ends = [(dy * linear.reference(small, w + sign * moved)).sum() for sign in (1, -1)]
    slope[at] = (ends[0] - ends[1]) / (2 * step)
difference = np.abs(slope - linear_gradients.reference(dy, small, w, "weight")).max()
print(f"largest difference of the slope from dW: {difference:.0e}")

# %% [markdown]
# The ladder is the same: `naive`, `tiled`, `register_tiled`, `split`, `by_shape`. The operands are not. In *dx* = *dy*
# *W* the sum runs over the outputs: *dy* is deep and *W* wide. In *dW* = *dy*ᵀ *x* it runs over the examples, across
# the memory of both. Nothing is transposed: the kernel reads each operand as it lies.

# %%
show(linear_gradients.operands)
show(linear_gradients.tiled_kernel)

# %% [markdown]
# The weights' gradient is where splitting matters most. Its result is as small as *W*, and its sum as long as the
# batch.
#
# **Predict, then run.** A layer of 512 x 512 has seen 32,768 examples. How many tiles of 64 x 64 has *dW*?

# %%
guess = None  # tiles

predict(guess, (512 // products.MIDDLE.m) * (512 // products.MIDDLE.n), unit="tiles")

# %%
for rows in (256, 2048, 32768):
    plan = products.plan_for(512, 512, rows, True, SMS)
    tiles = (512 // plan.tile.m) * (512 // plan.tile.n)
    how = f"{tiles} tiles of {plan.tile.m} x {plan.tile.n}, {plan.slices} slices: {tiles * plan.slices} blocks"
    print(f"{rows:6} examples: {how}")

# %% [markdown]
# However long the batch, there are 64 such tiles, for 132 multiprocessors. A short batch gets smaller tiles. A long one
# gets larger tiles, which multiply faster, and is cut.
#
# The gradient of the bias needs each element of *dy* once, and so does *dW*: a block that loads a tile of *dy* has in
# its registers what the bias needs. So the plain function adds it up on the way. Each thread's vectors have the same
# four columns in every step, so it keeps four sums, and the threads put these together at the end, in their order.

# %%
show(linear.linear_backward)

# %%
weight = rng.standard_normal((10, 64), dtype=np.float32)
call = lab.count(linear.linear_backward, target[:64], x[:64], weight)
print("three gradients:", ", ".join(f"{report.kernel} of {report.grid[0]} blocks" for report in call.reports))

# %% [markdown]
# **Your turn**, twice: the sums of columns with a fixed order, and *dW* in tiles.

# %%
exercise("linear_gradients/bias")


# %%
@cuda.jit
def bias_gradient(dy, dbias):
    pass  # your code


check("linear_gradients/bias", bias_gradient)

# %%
exercise("linear_gradients/weight")


# %%
@cuda.jit
def weight_gradient(dy, x, dweight):
    pass  # your code


check("linear_gradients/weight", weight_gradient)

# %% [markdown]
# ## It learns
#
# With these two functions a layer can learn to read digits. It has ten outputs. The one of the right class should be 1,
# all others 0, and the loss is the mean over the examples of the squared distance. Its gradient is *dy* = 2 (*y* −
# *target*) / *N*. A step moves the weights against their gradient. A quarter of the digits stays unseen.

# %%
known, new = np.arange(len(x)) % 4 != 0, np.arange(len(x)) % 4 == 0
weight, bias, losses = np.zeros((10, 64), np.float32), np.zeros(10, np.float32), []
for turn in range(40):
    batch = np.flatnonzero(known)[turn % 5 :: 5]
    y = device.to_host(linear.linear(x[batch], weight, bias))
    losses.append(float(np.square(y - target[batch]).sum(axis=1).mean()))
    dy = (2 / len(batch)) * (y - target[batch])
    _, dweight, dbias = linear.linear_backward(dy, x[batch], weight, need=("weight", "bias"))
    weight -= np.float32(0.04) * device.to_host(dweight)
    bias -= np.float32(0.04) * device.to_host(dbias)
answers = device.to_host(linear.linear(x[new], weight, bias)).argmax(axis=1)
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")
print(f"{(answers == labels[new]).mean():.1%} of {new.sum()} unseen digits are right")

# %%
figure, axes = plt.subplots(1, 11, figsize=(7.8, 1.6), width_ratios=[4, *[1] * 10], layout="constrained")
axes[0].plot(losses, color=palette.COLOURS[0])
axes[0].set(xlabel="step", ylabel="loss", ylim=0)
for digit, ax in enumerate(axes[1:]):
    ax.imshow(weight[digit].reshape(8, 8), cmap="RdBu", vmin=-abs(weight).max(), vmax=abs(weight).max())
    ax.set_title(str(digit))
    ax.axis("off")

# %% [markdown]
# Beside the loss stand the weights of each digit, blue where ink speaks for it and red where it speaks against it. A
# single layer cannot do much more than compare with such a picture. Chapters to come put several behind one another,
# and then *dx* is needed, too: it is the *dy* of the layer before.
#
# ## Measured
#
# The first figure has the ladder for the first layer of LeNet-5, the second that of *dW* for a long batch. The dashed
# line is PyTorch, which calls cuBLAS.

# %%
plots.drawn(plots.ladder, "linear")

# %%
plots.drawn(plots.ladder, "linear_gradients", family="weight")

# %% [markdown]
# The roofline has all rungs of the long sum. All have the same intensity: what must be done is the same.

# %%
plots.drawn(plots.roofline, "linear_gradients", family="weight")

# %% [markdown]
# From the left, where reading *W* is the bound, to the right, where arithmetic is: a layer of 1024 x 1024 for more and
# more rows. (To read this *W* takes about a microsecond, less than a launch: the figure calls the left launch-bound.)
# The figure after it has NumPy on the CPU.

# %%
plots.drawn(plots.sweep, "linear", family="batches", xlabel="rows")

# %%
plots.drawn(plots.cpu_gpu, "linear", family="batches", xlabel="rows")

# %% [markdown]
# NumPy's time has a step between one row and two. For one row NumPy calls a function of its library that multiplies a
# matrix by a vector, and for more rows one that multiplies two matrices. The second function takes ten times as long
# for two rows, and no longer for 16 than for two. With the call and the transfers, that of *W* among them, the GPU is
# ahead of NumPy only from about a thousand rows on.
#
# ## What to take along
#
# - Count tiles before you count FLOP. A product with fewer tiles than the GPU has multiprocessors leaves them idle.
# - A long sum is parallel work as well: cut it, and add the parts in a fixed order.
# - For one row memory is the bound. Read each weight once, in long vectors, with several loads on their way.
# - The epilogue belongs to where the sum is complete, and costs no pass of its own there.
# - A gradient is a sum over all ways in which a number reaches the loss. Write the indices, and the products follow.
#
# ## Exercises
#
# Four stand in the text above. More, without a check:
#
# 1. A layer of 4096 x 4096 gets 16 rows. How long do reading *W* and the multiply-adds take at least, on the GPU of the
#    record? With how many rows do both take the same time?
# 2. `linear_backward` reads *dy* twice, once for *dx* and once for *dW*. What would one kernel for both have to keep,
#    and where?
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.linear import exercises as answers_forward
from pmpp.kernels.linear import linear_gradients_exercises as answers_backward

show(answers_forward.finish_answer)
assert check("linear/finish", answers_forward.finish_answer)

# %% [markdown]
# *Finish.* One thread adds all slices of an output, so the order is that of the loop. The comparison `total < 0` is
# false for a NaN, which is thus kept.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers_forward.one_row_answer)
assert check("linear/one_row", answers_forward.one_row_answer)

# %% [markdown]
# *One row.* All lanes of a warp have the same output, so they leave together at the guard, and all that are left take
# part in the sum.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers_backward.bias_answer)
assert check("linear_gradients/bias", answers_backward.bias_answer)

# %% [markdown]
# *Bias.* The guard is around the loop, not around the barrier. A block sums all rows of 32 columns; for a long batch
# the room's kernel cuts the rows as well.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers_backward.weight_answer)
assert check("linear_gradients/weight", answers_backward.weight_answer)

# %% [markdown]
# *Weight.* A thread needs column `j` of one tile and column `i` of the other. In a warp `j` has two values and `i` has
# 16, so neither read has a bank conflict, and no padding is needed.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
for rows in (1, 16, 64):
    cost = linear.cost(rows, 4096, 4096)
    memory, arithmetic = cost.bytes / ceilings.bandwidth, cost.flops / ceilings.fma_f32
    print(f"{rows:3} rows: bytes {memory * 1e6:5.1f} us, multiply-adds {arithmetic * 1e6:5.1f} us")
equal = next(n for n in range(1, 4096) if linear.cost(n, 4096, 4096).intensity >= ceilings.ridge)
print(f"both take the same time from {equal} rows on")

# %% [markdown]
# *Sixteen rows.* Up to the number of rows that is printed last each weight, once loaded, has too little to do, and time
# hardly grows with the rows: a batch is cheaper than its rows one by one.
#
# *Both in one.* A tile of *dy* serves tiles of *dx* along its rows and of *dW* along its columns. A block that keeps it
# would add to all of them, and they do not fit into registers. Added to memory by atomics, they would have no fixed
# order. *dy* is usually the smallest of the operands, and stays in the cache from one product to the next.
#
# Go on with [chapter 75](75_attention.ipynb): a layer in which the rows of its input look at each other.
