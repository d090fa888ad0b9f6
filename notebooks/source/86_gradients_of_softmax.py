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
# # 86. Gradients of softmax, cross-entropy and embeddings
#
# *A loss and its gradient in one pass, one label a row, labels that do not count, a mean whose divisor only the GPU
# knows, a table's gradient with the same bits twice. PMPP 4e: chapters 9, 10 and 13; 5e: chapters 9, 10 and 14. The
# code is [pmpp/kernels/softmax/cross_entropy_loss.py](../pmpp/kernels/softmax/cross_entropy_loss.py),
# [pmpp/kernels/softmax/gradients.py](../pmpp/kernels/softmax/gradients.py) and
# [pmpp/kernels/embedding](../pmpp/kernels/embedding). Read [chapter 50](50_softmax.ipynb) first. About 75 minutes.*
#
# A language model begins with a table and ends with a softmax. The table has a row for each of, say, 50,257 tokens. The
# softmax has a logit for each of them, at every place of the text. Both ends are as large as the vocabulary, and in
# training both are mostly traffic.
#
# After this chapter you can derive the gradient of the loss, compute it in the pass that computes the loss, and add up
# the gradient of a table so that two runs agree in every bit.
#
# **The question of this chapter: how often must a logit be moved, from the scores to the gradient?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import embedding, softmax
from pmpp.kernels.embedding import embedding_backward
from pmpp.kernels.embedding.workloads import zipf
from pmpp.kernels.softmax import cross_entropy_loss, gradients
from pmpp.lab.draw import plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The loss, and its gradient by hand
#
# A row has logits $x_j$ and a label $t$. Softmax makes shares of the logits, $y_j = e^{x_j} / \sum_k e^{x_k}$, and the
# loss is what the share of the label lacks:
#
# $$L = -\log y_t = \log \sum_k e^{x_k} - x_t.$$
#
# Now take the derivative with respect to one logit, $x_i$. The first part gives $e^{x_i} / \sum_k e^{x_k}$, which is
# $y_i$ again. The second part gives 1 if $i$ is the label, and 0 otherwise:
#
# $$\frac{\partial L}{\partial x_i} = y_i - [i = t].$$
#
# That is all. Every logit is pushed down by its share, and the label's is pushed up by what it lacks to 1. The elements
# of a row's gradient add up to 0. For the mean over the rows, everything is divided by their number.

# %%
show(cross_entropy_loss.reference)

# %% [markdown]
# Two further parts of PyTorch's definition are in there. A row whose label is `ignore_index`, usually -100, does not
# count: its loss and its gradient are 0, and it is no part of the mean's divisor. *Label smoothing* spreads a part
# $\varepsilon$ of the label evenly: the label should have $1 - \varepsilon + \varepsilon / n$, and each other class
# $\varepsilon / n$. The gradient is the share less what it should be, as before.
#
# Is it right? A gradient says how much the loss moves when one logit moves a little. So we move each one.

# %%
rng = np.random.default_rng(0)
logits, labels, step = rng.standard_normal((4, 6)), np.array([2, 5, -100, 0]), 1e-5
slopes = np.empty(logits.shape)
for at in np.ndindex(logits.shape):
    change = np.zeros(logits.shape)
    change[at] = step
    more, less = (
        cross_entropy_loss.loss_reference(moved, labels, -100, 0.1) for moved in (logits + change, logits - change)
    )
    slopes[at] = (more - less) / (2 * step)
error = abs(slopes - cross_entropy_loss.reference(logits, labels, -100, 0.1)).max()
print(f"largest difference to central differences: {error:.1e}")

# %% [markdown]
# ### Not the logarithm of a softmax
#
# The formula begins with a softmax and goes on with a logarithm. In float32 these two steps must not be taken one after
# the other. A share can be smaller than any float32.
#
# **Predict, then run.** From about how far below the largest logit on is the loss of a row of two infinite, if one
# takes the logarithm of the softmax? (The smallest float32 above 0 is $1.4 \cdot 10^{-45}$.)

# %%
guess = None  # below the largest

distances = np.arange(1, 200, dtype=np.float32)
rows = np.stack([np.zeros_like(distances), -distances], axis=1)
with np.errstate(divide="ignore"):
    careless = -np.log(device.to_host(softmax.softmax(rows))[:, 1])
predict(guess, float(distances[np.isinf(careless)][0]))

# %%
careful, _ = softmax.cross_entropy(rows, np.ones(len(rows), np.int64), reduction="none")
careful = device.to_host(careful)
for i in (86, 98, 102, 103, 150):
    print(f"{distances[i]:4.0f} below: log of softmax {careless[i]:8.3f}, cross-entropy {careful[i]:8.3f}")

# %% [markdown]
# The loss of a row that is wrong and sure of it is where learning begins, and it is no infinity. So the logarithm is
# taken of the sum, and the label's logit is subtracted from it: $\log \sum_k e^{x_k - m} + (m - x_t)$.
#
# ## The bound
#
# Loss and gradient together need each logit once, and write one number for it. Our case is 8,192 places of a text with
# a vocabulary of 50,257.

# %%
m, n = 8192, 50_257
cost = cross_entropy_loss.cost(m, n)
ceilings = roofline.ceilings("softmax")
least = roofline.bound(cost, ceilings)
print(f"{cost.bytes / 1e9:.2f} GB, {cost.intensity:.2f} FLOP/byte, ridge at {ceilings.ridge:.0f}")
print(f"at least {least.seconds * 1e3:.2f} ms, set by {least.side}")

# %% [markdown]
# ## Rung 1: `separate`
#
# The definition, a kernel for each part. Three kernels of chapter 50 make the logarithms of the shares. The next one
# picks the label's, which is the loss of a row. The last one makes the gradient from the logarithms.

# %%
show(cross_entropy_loss.pick_kernel)
show(cross_entropy_loss.gradient_kernel)

# %% [markdown]
# **Predict, then run.** The interpreter counts sectors of 32 bytes. 16 rows of 1024 logits are 2,048 sectors. How many
# does this rung move, loads and stores together, per sector of logits?

# %%
guess = None  # times the logits

logits = rng.standard_normal((16, 1024), dtype=np.float32)
labels = rng.integers(0, 1024, 16)
counted = {rung.name: lab.count(rung, logits, labels).counters for rung in cross_entropy_loss.LADDER}
moved = {name: c["global_load_sectors"] + c["global_store_sectors"] for name, c in counted.items()}
predict(guess, moved["separate"] / 2048, within=0.1)

# %%
for name, sectors in moved.items():
    c = counted[name]
    print(f"{name:9} {sectors / 2048:5.2f} times the logits; {c['global_load_requests']:6,} loads by a warp", end="")
    print(f", {c['barriers']:3} barriers, {c['thread_inst_special']:8,} exponentials and the like")

# %% [markdown]
# Three reads for the logarithms and a write, then a read and a write for the gradient: six, and a little for labels and
# for the numbers of each row. Two would do. PyTorch works in this way, too: `cross_entropy` is `log_softmax` and then
# `nll_loss`, and backwards there are a kernel for each of them and one that writes zeros.
#
# ## Rung 2: `fused`
#
# All that the gradient needs of a row, beside the row, are its maximum and its sum, and the loss needs no more. So a
# block that knows both can write both. It finds them in one pass, as `online` does in chapter 50.

# %%
show(cross_entropy_loss.fused_kernel)

# %% [markdown]
# In the table above it moves half the bytes of `separate`, and has more than twice the exponentials: one pass takes two
# of them for each logit, and each join of two threads takes two more. Where memory is the bound, the bytes decide.
#
# Two details. The label is one number a row, so each thread compares its index with it. And `live` *chooses* 0 for
# an ignored row. Multiplied by 0, a NaN in such a row would stay NaN, and would spoil the weights of the whole network.
#
# ### The mean's divisor
#
# `weight` is $1 / N$ for a mean, where $N$ is the number of rows that count. Labels are on the device, so the host does
# not know $N$, and it should not wait for it: then no CUDA graph could record the step. A small kernel counts the
# labels beforehand. Each block of the next kernel adds up at most 32 counts.

# %%
show(cross_entropy_loss.count_kernel)
show(cross_entropy_loss.weight_of_a_row)

# %% [markdown]
# The losses of the rows are added up at the end, by one block for 8,192 of them. A thread adds every 1024th of them,
# and then a tree joins the threads. That order depends on the number of rows alone, so the same input gives the same
# bits. An atomic addition by each block would not: float32 sums depend on their order.
#
# ### Labels that are no class
#
# A kernel cannot raise an error. What should it do with a label of 50,257, when 50,256 is the last? Reading there would
# be out of bounds. Ignoring it would hide it. Here the loss and the gradient of this row become NaN, and labels that
# come from NumPy are checked on the host, before they are on their way.

# %%
three = np.zeros((2, 3), np.float32)
try:
    softmax.cross_entropy(three, np.array([0, 3]))
except ValueError as error:
    print("NumPy: ", error)
on_device = device.to_device(np.array([0, 3]))
loss, dlogits = softmax.cross_entropy(three, on_device, reduction="none")
print("device:", device.to_host(loss), "and the gradient", device.to_host(dlogits).astype(float).round(3).tolist())
try:
    softmax.check_labels(on_device, 3)
except ValueError as error:
    print("check: ", error)

# %% [markdown]
# ### Exercise: the gradient from labels
#
# `check` runs your kernel in the interpreter, with every access checked, and says what it found. Our answers to all
# exercises are at the end of the chapter.

# %%
exercise("cross_entropy_loss/gradient")

# %%
from pmpp.kernels.softmax.cross_entropy_loss_exercises import IGNORED
from pmpp.kernels.softmax.exercises import BLOCK, LOWEST, WARPS, ZERO, lane_sum, row_max, row_sum


@cuda.jit
def gradient(x, labels, dx):
    pass  # your code


check("cross_entropy_loss/gradient", gradient)

# %% [markdown]
# ## Rung 3: `held`
#
# `fused` reads a row twice. A row of 50,257 logits has 201 KB, and there are hundreds of blocks at work: when a block
# comes back to the beginning of its row, that is no longer in a cache.
#
# Chapter 50 has the answer: the row stays in registers, 128 bits at a time, in up to 32 lanes or in a block. We take
# its functions `hold`, `highest_of` and `total_of` as they are. What is new is the end.

# %%
show(cross_entropy_loss.finish)

# %% [markdown]
# An element is multiplied by `scale`, and `low` is taken off: that is one fused multiply-add. The label is one element
# of thousands, and to compare each index with it would cost as much as that. So a thread compares only the numbers of
# its vectors. The one that has stored the label's vector then stores this one element again. It is the same thread, so
# its two stores come in order, without a barrier.
#
# ## Rung 4: `split`
#
# A block of 1024 threads holds 32,768 logits. A vocabulary is larger. Several blocks hold such a row, and tell each
# other what they found, as in chapter 50. While the first warp waits for the words of the others, its loads of the
# label's logit and of the counts are under way, too. One thread then computes the four numbers that all need.

# %%
show(cross_entropy_loss.row_in_blocks_kernel)

# %% [markdown]
# Blocks of a row whose label is ignored do not wait for each other, and do not even load. All of them see the same
# label, so they leave together.
#
# **Predict, then run.** Four rows of 40,000 logits, of which the first two are ignored. How many sectors does `split`
# load, per sector of all logits?

# %%
guess = None  # times the logits

logits = rng.standard_normal((4, 40_000), dtype=np.float32)
labels = np.array([-100, -100, 7, 39_999])
long = lab.count(cross_entropy_loss.split, logits, labels).counters
predict(guess, long["global_load_sectors"] / (logits.nbytes // 32), within=0.05)

# %%
for counter in ("global_load_sectors", "global_store_sectors", "atomic_requests"):
    print(f"{counter:22}{long[counter]:8,}")
print(f"{'sectors of logits':22}{logits.nbytes // 32:8,}")

# %% [markdown]
# What is ignored is written, since the gradient must be 0 there, but it is not read. In a batch of texts of unequal
# length that is a good part of the places.
#
# ## All rungs
#
# Here is what was measured, with PyTorch's forward and backward pass together. Each figure says at its bottom where.

# %%
plots.drawn(plots.ladder, "cross_entropy_loss", family="50257 classes")

# %%
plots.drawn(plots.ladder, "cross_entropy_loss", family="1000 classes")

# %%
plots.drawn(plots.roofline, "cross_entropy_loss", family="50257 classes")

# %% [markdown]
# All rungs stand on the side of the memory: five operations for 8 bytes. A step from one rung to the next is a step in
# how often a logit is moved. `held` and `fused` are the same for 50,257 classes, and `split` and `held` for 1,000.
#
# ## A classifier learns
#
# Now the loss does its work. The classifier is a matrix: 64 pixels of a digit, and a 1, times 65 x 10 weights give ten
# logits. The gradient of the weights is the images, transposed, times the gradient of the logits. NumPy multiplies, and
# our kernel does the rest.

# %%
images, digits = data.digits()
pixels = images.reshape(len(images), -1).astype(np.float32)
pixels = np.hstack([pixels / pixels.max(), np.ones((len(pixels), 1), np.float32)])
weights, losses = np.zeros((65, 10), np.float32), []
for _ in range(60):
    loss, dlogits = softmax.cross_entropy(pixels[:1437] @ weights, digits[:1437].astype(np.int64))
    losses.append(float(device.to_host(loss)[0]))
    weights -= np.float32(2) * (pixels[:1437].T @ device.to_host(dlogits))
right = np.mean((pixels[1437:] @ weights).argmax(axis=1) == digits[1437:])
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after 60 steps; {right:.1%} of 360 other digits are right")

# %%
figure, ax = chart(2.8)
ax.plot(losses, color=plots.COLOURS[0], label="loss")
ax.axhline(np.log(10), color=plots.COLOURS[1], linestyle="--", label="log 10: nothing known")
ax.set(xlabel="step", ylabel="mean loss", ylim=(0, None), title="A softmax classifier on 1,437 digits")
ax.legend()
figure

# %% [markdown]
# It begins at $\log 10$: with all weights 0, each digit has a share of a tenth. Then it falls quickly, and more and
# more slowly. Rows that are right already have a small gradient, $1 - y_t$, and what is left are the doubtful ones.
#
# ## Softmax in the middle of a network
#
# In an attention layer a softmax has no label behind it. Its gradient comes from the layer above: some `dy` for each
# share. A share depends on all logits of its row, and $\partial y_j / \partial x_i = y_j ([i = j] - y_i)$. So
#
# $$\frac{\partial L}{\partial x_i} = \sum_j dy_j \, y_j ([i = j] - y_i) = y_i \Big(dy_i - \sum_j dy_j \, y_j\Big).$$
#
# One sum for each row, then one pass. `softmax.backward` does it along any axis, and with `log=True` for log-softmax.

# %%
show(gradients.rows_backward_kernel)

# %%
exercise("cross_entropy_loss/softmax")


# %%
@cuda.jit
def softmax_gradient(dy, y, dx):
    pass  # your code


check("cross_entropy_loss/softmax", softmax_gradient)

# %% [markdown]
# ## The other end: an embedding
#
# The first layer of a language model looks up a row of a table for each token. There is nothing to compute. With 128
# bits a thread, and the index read once for four elements, it is a copy of scattered rows.

# %%
show(embedding.vectors_kernel)
plots.drawn(plots.ladder, "embedding", family="zipf")

# %% [markdown]
# Both rungs copy the same bytes. `elementwise` reads the index for each element, and `vectorised` for four of them.
# PyTorch's lookup is the fastest here. The roof counts each token's row as one to read. Frequent rows are read once and
# then come from the cache, so a share of a little more than 100 % is no error.
#
# Backwards each row of the table gets the sum of what its tokens bring:
#
# $$\frac{\partial L}{\partial T_r} = \sum_{i : \, \mathrm{token}_i = r} dy_i.$$
#
# Most rows get nothing, and their 0 must be written. A few get very much: the frequency of the $k$-th word of a text is
# about $1/k$ of the first one's (Zipf).

# %%
tokens = zipf(50_257, 8192, 0)
sizes = np.sort(np.bincount(tokens, minlength=50_257))[::-1]
print(f"{np.count_nonzero(sizes):,} of 50,257 rows occur; the most frequent ones {sizes[:6].tolist()} times")
cost = embedding_backward.cost(8192, 768, 50_257)
least = roofline.bound(cost, ceilings)
print(f"{cost.bytes / 1e6:.0f} MB: at least {least.seconds * 1e6:.0f} us, set by {least.side}")

# %% [markdown]
# ### Rung 1: `atomic`
#
# A thread for each element of `dy` adds it to its row, atomically. The sum has every term, in the order in which the
# threads happened to come.

# %%
show(embedding_backward.atomic_kernel)
dy = rng.standard_normal((sizes[0], 1), dtype=np.float32)
for order in (np.arange(len(dy)), rng.permutation(len(dy)), rng.permutation(len(dy))):
    print(f"the sum of the same {len(dy)} numbers, one after another: {np.cumsum(dy[order], dtype=np.float32)[-1]:.9f}")

# %% [markdown]
# The last digits differ. Nothing is wrong with any of these sums. But two runs of a training drift apart from there,
# and an error that shows in one run may not show in the next. Who looks for one wants the same bits.
#
# ### Rung 2: `search`
#
# Turn it around, from scatter to gather: each row looks for its tokens. A warp reads 32 indices at a time, the vote
# `ballot_sync` tells every lane which of them are its own, and they are added in their order. It needs no atomics.

# %%
show(embedding_backward.search_kernel)

# %% [markdown]
# **Predict, then run.** 50,257 rows, a warp for each, and 8,192 indices of 8 bytes. How many GB of indices do all warps
# read, from whatever cache has them?

# %%
guess = None  # GB

predict(guess, len(sizes) * tokens.nbytes / 1e9, unit="GB")

# %% [markdown]
# That is more than 18 times the bytes of the bound, and nearly all of it finds nothing. What it gives is an order.
#
# ### Rung 3: `grouped`
#
# Group the tokens by row first. That is a counting sort, as in PMPP's chapter on sorting: count, make room, place. Each
# step is a kernel of a few lines, with integer atomics. Integer sums do not depend on their order, but the *places*
# that the atomics hand out do. So a token looks for its rank afterwards, the number of earlier tokens in its group.

# %%
show(embedding_backward.room_kernel)
show(embedding_backward.rank_kernel)

# %% [markdown]
# **Predict, then run.** To find the ranks, each token is compared with all tokens of its group. How many comparisons is
# that, for these 8,192 tokens?

# %%
guess = None  # comparisons

predict(guess, int((sizes.astype(np.int64) ** 2).sum()), unit="comparisons", factor=2)

# %% [markdown]
# That is little: `dy` has several times as many elements, and each of those must be loaded and added. It holds while
# groups are small. If half of a million tokens are padding, give `padding_idx`: then they are in no group at all.
#
# Now the sums. The block of a group's first token adds the group up, every eighth token in the same warp, and then the
# eight sums in their order. All other rows have been cleared before.

# %%
show(embedding_backward.sum_vectors_kernel)
small = rng.standard_normal((96, 32), dtype=np.float32), np.arange(96) % 3, 64
for rung in embedding_backward.LADDER:
    counted = lab.count(rung, *small)
    c, error = counted.counters, abs(counted.result - embedding_backward.reference(*small)).max()
    print(f"{rung.name:8} {len(counted.reports)} launches, {c['global_load_sectors']:6,} sectors loaded", end=", ")
    print(f"{c['global_store_sectors']:4} stored, {c['atomic_requests']:4} atomics, largest error {error:.1e}")

# %%
plots.drawn(plots.ladder, "embedding_backward", family="zipf")

# %%
plots.drawn(plots.roofline, "embedding_backward", family="zipf")

# %% [markdown]
# `atomic` is the fastest, though it is the first rung: most rows get few tokens, so its atomics seldom meet. `search`
# is by far the slowest. `grouped` has several launches, and more to read for each token. That is the price of its
# order. PyTorch's kernel is in the same place. `embedding.backward` takes `grouped`, and `atomic` where the caller says
# `deterministic=False`.
#
# Is the GPU worth the journey? The next figure has NumPy on the CPU beside it. (If the record has no times of the CPU,
# the cell says so.)

# %%
plots.drawn(plots.cpu_gpu, "embedding_backward", family="zipf", xlabel="tokens")

# %% [markdown]
# ### Exercises: ranks, and places in a text

# %%
exercise("embedding_backward/rank")


# %%
@cuda.jit
def rank(tokens, rank):
    pass  # your code


check("embedding_backward/rank", rank)

# %%
exercise("embedding/positions")


# %%
@cuda.jit
def positions(table, positions, tokens, out):
    pass  # your code


check("embedding/positions", positions)

# %% [markdown]
# ## What to take along
#
# - The gradient of a softmax's loss is the softmax, less 1 at the label. Loss and gradient need one pass over a row
#   that waits in registers.
# - Never take the logarithm of a softmax. Subtract the logarithm of the sum.
# - What only the device knows, such as a mean's divisor, stays there. Then nobody waits, and a graph can record it.
# - Choose 0 where something must not count. Do not multiply by it.
# - A gather has one owner for each result, so it needs no atomics, and its sums have an order. Where a scatter must
#   become a gather, sort.
#
# ## Exercises
#
# ### More, without a check
#
# - Where is the largest element of a row's gradient, and how large can it become? What does label smoothing change?
# - `search` reads every index for every row. From how many rows on does it load more than `grouped`?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
import math


@cuda.jit
def gradient_answer(x, labels, dx):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        wanted = np.float32(1) if i == labels[row] else ZERO
        share = math.exp(x[row, i] - best) / total
        dx[row, i] = ZERO if labels[row] == IGNORED else share - wanted


assert check("cross_entropy_loss/gradient", gradient_answer)

# %% [markdown]
# *Gradient.* Both choices cost no branch: the compiler makes a selection of each.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def softmax_answer(dy, y, dx):
    row, n, total = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, y.shape[1], ZERO
    if row < y.shape[0]:
        for i in range(cuda.laneid, n, 32):
            total += dy[row, i] * y[row, i]
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            dx[row, i] = y[row, i] * (dy[row, i] - total)


assert check("cross_entropy_loss/softmax", softmax_answer)

# %% [markdown]
# *Softmax.* The row is read twice, and the second time it is still in the cache of the multiprocessor.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rank_answer(tokens, rank):
    i = cuda.grid(1)
    if i < tokens.size:
        count = 0
        for k in range(i):
            count += 1 if tokens[k] == tokens[i] else 0
        rank[i] = count


assert check("embedding_backward/rank", rank_answer)

# %% [markdown]
# *Rank.* All lanes of a warp read the same `tokens[k]`, which is one sector. Over all tokens it is half the square of
# their number, where `rank_kernel` needs the squares of the groups.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def positions_answer(table, positions, tokens, out):
    i = cuda.grid(1)
    if i < out.size:
        token, column = i // out.shape[1], i % out.shape[1]
        out[token, column] = table[tokens[token], column] + positions[token % positions.shape[0], column]


assert check("embedding/positions", positions_answer)

# %% [markdown]
# *Positions.* The gradient of `positions` is a sum over the texts, at the same place of each. No sorting is needed: the
# tokens of a place lie `positions.shape[0]` rows apart.

# %% jupyter={"source_hidden": true} tags=["answer"]
row = np.float32([[0, 0, 0, 12]])
for smoothing in (0.0, 0.1):
    _, dlogits = softmax.cross_entropy(row, np.array([0]), label_smoothing=smoothing)
    print(f"smoothing {smoothing}: {device.to_host(dlogits)[0].astype(float).round(4).tolist()}")
for table_rows in (32, 128, 512):
    case = np.ones((64, 32), np.float32), rng.integers(0, table_rows, 64), table_rows
    rungs = embedding_backward.search, embedding_backward.grouped
    loads = {rung.name: lab.count(rung, *case).counters["global_load_sectors"] for rung in rungs}
    print(f"sectors loaded for 64 tokens of {table_rows:3} rows: {loads}")

# %% [markdown]
# *The largest element.* It is the label's, or that of the class that wrongly has nearly all. Neither can pass 1 in
# size, before the mean divides it. So the gradient of a cross-entropy never explodes at its beginning. Smoothing takes
# a little off each, and keeps the logits from growing without end: at $y_t = 1 - \varepsilon + \varepsilon / n$ the
# label pushes no more.
#
# *Search and group.* `search` loads a sector for each four indices and row, so it grows with the table. `grouped` loads
# some dozens of sectors for each token, most of them for counts and places, and does not see how many rows there are.
# They meet between 128 and 512 rows.
#
# Go on with [chapter 87](87_attention_on_tensor_cores.ipynb), on attention in 16 bits.
