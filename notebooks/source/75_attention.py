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
# # 75. Attention
#
# *Queries, keys and values, scores in memory, a softmax in one pass, tiles of keys, tiles in registers, causal masks
# and windows, heads that share keys, a cache of keys and values, pages. Read chapters [12](12_matmul.ipynb),
# [30](30_reduction.ipynb), [40](40_tensor_cores.ipynb), [50](50_softmax.ipynb) and [64](64_im2col.ipynb) before.
# 75 minutes. PMPP 4e: none; 5e: sections 20.3 to 20.7.*
#
# Language models, and many models of images, are made of two kinds of layers. One is the linear layer of
# [chapter 74](74_linear.ipynb). The other lets the words of a text look at each other, and is called *attention*. It
# has a softmax between two products of matrices, and we have fast kernels for all three.
#
# **The question of this chapter: three fast kernels one after another are not a fast attention. What is lost between
# them, and how does one kernel keep it?** The code is two rooms:
# [pmpp/kernels/attention](../pmpp/kernels/attention/ladder.py), and
# [pmpp/kernels/attention/decode.py](../pmpp/kernels/attention/decode.py) for a single query.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import attention
from pmpp.kernels.attention import decode
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)
rng = np.random.default_rng(75)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A table that is looked up softly
#
# A dictionary finds the value of the one key that is equal to what you ask for. Attention finds a mean of the values of
# *all* keys, and a key counts more the more it is like the *query*. Queries, keys and values are vectors. For a query
# $q$, keys $k_j$ and values $v_j$ of $d$ elements
#
# $$s_j = \frac{q \cdot k_j}{\sqrt d}, \qquad w_j = \frac{e^{s_j}}{\sum_i e^{s_i}}, \qquad o = \sum_j w_j v_j .$$
#
# The $s_j$ are the *scores*. The weights $w_j$ are their softmax: positive, and 1 together. In a language model all
# three vectors are computed from words. Here we take something that can be seen. The keys are 400 images of digits,
# with 64 pixels each. A value says which digit the image shows: a 1 in its place, and else zeros. The queries are other
# images.

# %%
digits, labels = data.digits()
pixels = digits.reshape(-1, 64).astype(np.float32)
pixels = pixels - pixels.mean(axis=1, keepdims=True)
pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
known, asked = slice(0, 400), slice(400, 432)
q, k = (pixels[part].reshape(1, 1, -1, 64) for part in (asked, known))  # (batch, heads, rows, elements)
v = np.zeros((1, 1, 400, 64), np.float32)
v[0, 0, np.arange(400), labels[known]] = 1
out = device.to_host(attention.tiled(q, k, v, scale=20.0))[0, 0, :, :10]
print("shapes:", q.shape, k.shape, v.shape)
print(f"right: {np.mean(out.argmax(axis=1) == labels[asked]):.0%} of {len(out)} digits")

# %%
weights = np.exp(20 * (q @ k.swapaxes(2, 3))[0, 0])
weights /= weights.sum(axis=1, keepdims=True)
figure, axes = plt.subplots(3, 8, figsize=(8, 3.6), layout="constrained")
for row, number in zip(axes, (0, 5, 9), strict=True):
    nearest = np.argsort(-weights[number])[:6]
    for ax, image, title in zip(
        row, [pixels[asked][number], *pixels[known][nearest]], ["query", *weights[number, nearest]], strict=False
    ):
        ax.imshow(image.reshape(8, 8), cmap="gray_r")
        ax.set_title(title if isinstance(title, str) else f"{title:.3f}", fontsize=9)
        ax.set_axis_off()
    row[-1].bar(range(10), out[number], color=palette.COLOURS[0])
    row[-1].set(yticks=[], xticks=range(0, 10, 3))

# %% [markdown]
# On the left is a query, beside it the six keys with the largest weights, and on the right the result: how much of each
# digit there is in the mean. Nothing was trained. The factor 20 takes the place of $1/\sqrt d$, and says how softly the
# table is looked up: with 0 every image counts the same, and with a very large one the nearest alone.
#
# ## The bound
#
# A layer has many *heads*, each with queries, keys and values of its own, and a *batch* of texts. For $n$ queries and
# $n$ keys a head needs two products of $2 n^2 d$ FLOP each. Its arrays together have $4 n d$ elements.


# %%
def bound(batch, heads, n, size):
    """The least work of a layer, and the least time."""
    cost = attention.cost(batch, heads, heads, n, n, size)
    try:
        least = roofline.bound(cost, roofline.ceilings("matmul"))
        print(
            f"{n:6,} keys of {size}: {cost.intensity:6.0f} FLOP a byte, {1e3 * least.seconds:7.4f} ms, by {least.side}"
        )
    except record.RecordError as missing:
        print(missing)


for n in (16, 64, 256, 1024, 2048, 8192):
    bound(8, 16, n, 64)

# %% [markdown]
# A quarter of $n$ FLOP a byte: for all but short texts arithmetic is the bound, as in a product of matrices. But that
# counts only what goes in and what comes out. Between the products are the scores, and there is one for each query and
# key.
#
# **Predict, then run.** A batch of 8 texts with 2,048 words, 16 heads of 64 elements, float32. The scores take how many
# times as many bytes as q, k, v and the result together?

# %%
guess = None  # times as many

batch, heads, n, size = 8, 16, 2048, 64
predict(guess, 4 * batch * heads * n * n / attention.cost(batch, heads, heads, n, n, size).bytes, unit="times as many")

# %% [markdown]
# That is $n / (4d)$. And they do not travel once. The first product writes them, the softmax reads them and writes
# weights, and the second product reads those: four times.


# %%
def bounds():
    """The two bounds over the number of keys, with the scores in memory and without."""
    figure, ax = chart(3.6)
    ceilings, lengths = roofline.ceilings("matmul"), 2 ** np.arange(4, 15)
    costs = [attention.cost(8, 16, 16, int(n), int(n), 64) for n in lengths]
    moved, scores = np.array([cost.bytes for cost in costs]), 16.0 * 8 * 16 * lengths**2
    lines = {"arithmetic": np.array([cost.flops for cost in costs]) / ceilings.fma_f32}
    lines |= {
        "inputs and result": moved / ceilings.bandwidth,
        "inputs, result and scores": (moved + scores) / ceilings.bandwidth,
    }
    for (name, times), colour, marker in zip(lines.items(), palette.COLOURS, "os^", strict=False):
        ax.plot(lengths, 1e3 * times, "--" if marker == "o" else "-", color=colour, marker=marker, label=name)
    ax.set(xscale="log", yscale="log", xlabel="queries and keys", ylabel="least time (ms)")
    ax.legend(title="8 texts, 16 heads of 64")
    return figure


plots.drawn(bounds)

# %% [markdown]
# Without the scores, memory is the bound only on the far left. For long texts the line with the scores lies on that of
# arithmetic: moving a score four times takes about as long as all the arithmetic for it. A kernel that does one after
# the other takes the sum of both. In float16, on matrix units, arithmetic is more than ten times as fast, and the
# scores decide.
#
# ## The reference
#
# The judge takes one query after another, and leaves out the keys that it does not see. Masks come later in this
# chapter.

# %%
show(attention.reference)

# %% [markdown]
# ## Rung 1: `materialised`
#
# The three steps as they stand in the formula. The products are those of [chapter 64](64_im2col.ipynb), for many
# matrices at a time, and the softmax has a block for each query.

# %%
show(attention.materialised.launch)
show(attention.weights_kernel)

# %% [markdown]
# Two details. The exponentials are powers of 2, because that is what the hardware computes: $e^s = 2^{s \log_2 e}$, and
# the factor is multiplied into the scale. And `finite_base` guards against a row in which every score is $-\infty$.
# Its maximum is $-\infty$, and $-\infty - (-\infty)$ is NaN.
#
# We count the bytes that the rung's kernels load and store, for one head of 16 elements and three numbers of queries
# and keys.


# %%
def moved(rung, n, size=16):
    """The bytes that the kernels of a rung load from global memory and store there."""
    given = (rng.standard_normal((1, 1, n, size), dtype=np.float32) for _ in range(3))
    counters = lab.count(rung, *given).counters
    return counters["global_load_bytes"] + counters["global_store_bytes"]


lengths = (32, 64, 96)
counts = {"materialised": [moved(attention.materialised, n) for n in lengths]}
print(dict(zip(lengths, counts["materialised"], strict=True)))

# %% [markdown]
# Three times as many queries and keys, and more than six times as many bytes. The inputs are three times as many, and
# the scores nine times.
#
# ## Rung 2: `online`
#
# Why write them? Because a weight needs the sum of all exponentials, and these need the maximum of all scores. So it
# seems that nothing can be added up before the last score is known.
#
# [Chapter 50](50_softmax.ipynb) has shown the way out for the sum. Keep the highest score so far, $m$, and the sum
# relative to it. If a score is higher, $m'$, everything that was added is too large by the same factor $e^{m' - m}$:
# scale it down. The same works for the weighted sum of the values.

# %%
highest, total, added = -np.inf, 0.0, 0.0
for score, value in ((1, 10), (3, 20), (2, 30), (5, 40)):
    top = max(highest, score)
    keep, weight = np.exp(highest - top), np.exp(score - top)
    total, added, highest = total * keep + weight, added * keep + weight * value, top
    print(f"score {score}: highest {highest}, what was there counts {keep:.3f}, mean so far {added / total:.3f}")
shares = np.exp([1, 3, 2, 5]) / np.exp([1, 3, 2, 5]).sum()
print(f"by the definition: {shares @ [10, 20, 30, 40]:.3f}")

# %% [markdown]
# At every moment the quotient is the result for the keys so far. That is the *online softmax*. In this rung a warp has
# a query. A lane keeps a few of its elements, and the lanes add up each score by shuffles.

# %%
show(attention.online_kernel)

# %% [markdown]
# **Predict, then run.** Nothing is written but the result. How many times as many bytes as `materialised` does this
# rung load and store? Take one head of 16 elements, 96 queries and 96 keys. The count for `materialised` is printed
# above.

# %%
guess = None  # times as many bytes as materialised

counts["online"] = [moved(attention.online, n) for n in lengths]
predict(guess, counts["online"][-1] / counts["materialised"][-1], unit="times as many bytes as materialised")

# %% [markdown]
# Each query reads all keys and all values. The caches answer most of these loads. But each load brings only four bytes
# to a lane, and each score needs five shuffles. So this rung is slow, and still it is the one with the idea.
#
# ## Rung 3: `tiled`
#
# What helps is what helped in [chapter 12](12_matmul.ipynb): a tile of keys in shared memory, for many queries. A warp
# has a query's scores for 32 keys, a lane for each, so it looks at the maximum once for 32 keys.

# %%
show(attention.tiled_kernel)

# %%
counts["tiled"] = [moved(attention.tiled, n) for n in lengths]


def traffic():
    """Counted bytes, over the number of keys."""
    figure, ax = chart(3.4)
    for (name, found), colour, marker in zip(counts.items(), palette.COLOURS, "os^D", strict=False):
        ax.plot(lengths, np.array(found) / 1024, color=colour, marker=marker, label=name)
    ax.plot(lengths, [4 * 4 * n * 16 / 1024 for n in lengths], ":", color=palette.INK, label="inputs and result, once")
    ax.set(yscale="log", xlabel="queries and keys", ylabel="KiB loaded and stored", xticks=lengths)
    ax.legend()
    return figure


traffic()

# %% [markdown]
# For 96 keys `tiled` asks for less than a twentieth of what `online` asks for, since 32 queries share each load of a
# key or value. All lines but the dotted one grow with the square of $n$ in the end: keys are read once for each *block*
# of queries. But there is a difference that this figure does not show. The blocks of a head run at about the same time,
# and find its keys and values in the second cache. `materialised` writes the scores of all heads before it reads the
# first again. For the batch above these do not fit into any cache.
#
# ## Rung 4: `register_tiled`
#
# What is wrong now is known from chapter 12, too. In `tiled` a multiply-add has its operands in shared memory, and each
# has to be loaded. There the cure was a tile in registers: with 8 elements of each operand a thread does 64
# multiply-adds. Here are two products, and they need tiles that fit together.
#
# - A block has 64 queries and two warps. A warp has 32 *whole* rows of scores. So no other warp needs its weights.
# - In both products a thread has eight of these rows: 8 x 8 scores first, then 8 x $d/8$ elements of the result.
# - Between the two the weights go through shared memory, because a thread that has the weights of keys 0, 8, 16 and so
#   on needs those of all keys.
# - Keys, and then values, are in one place in shared memory, one after the other.

# %%
show(attention.kernel_for)

# %% [markdown]
# It is long, and each of its device functions has one job. `fill` brings a tile into shared memory, `add_scores` and
# `add_values` are the two products, and `update` is the online softmax for eight rows. Here is what a block takes.

# %%
for tile in attention.TILES:
    kib = tile.shared_bytes / 1024
    words = f"{tile.columns} sums and {tile.keys} scores in registers, {kib:.1f} KiB"
    room = min(228 // (kib + 1), 65536 // (64 * tile.registers))
    print(f"d = {tile.columns:3}: {words}: {room:.0f} blocks")

# %% [markdown]
# The last column is how many blocks of 64 threads an H200 has room for on a multiprocessor. It has 228 KiB, of which
# each block takes 1 KiB more than its own, and 65,536 registers. While one of the blocks waits at a barrier for its
# keys, others compute. For $d = 128$ the sums alone are 128 registers, so a tile has fewer keys there.
#
# **Predict, then run.** A load of 128 bits brings four elements from shared memory. For $d = 64$: how many
# multiply-adds are there for each such load, in both products together?

# %%
guess = None  # multiply-adds for each load

given = [rng.standard_normal((1, 1, 64, 64), dtype=np.float32) for _ in range(3)]
counters = lab.count(attention.register_tiled, *given).counters
products = 2 * 64 * 64 * 64 / 32  # multiply-adds, of a warp's 32 lanes at a time
predict(guess, products / counters["shared_load_requests"], unit="multiply-adds for each load")

# %% [markdown]
# For four columns a thread loads four elements of 8 queries and of 8 keys, 16 loads, and does 4 x 64 multiply-adds with
# them. The second product does the same with 4 keys of 8 rows of weights and 8 columns of values. In `tiled` there was
# less than one multiply-add for each load.
#
# And the online softmax itself? For 64 keys a thread does 8,192 multiply-adds. Scaling its 64 sums down is 64
# multiplications more. So it hardly matters for the arithmetic how often the maximum grows.
#
# ## Masks
#
# A model that writes text must not look at words that come after. A *causal mask* hides them: query $i$ sees keys up to
# its own place. If there are more keys than queries, the text began earlier, and the last query stands at the last key.
# A *sliding window* hides what is too far away as well. Both say, for each query, from where to where it sees. So a
# mask is two numbers here, and no array.

# %%
show(attention.limits)


# %%
def masks(queries=160, keys=224, tile=64):
    """What queries see, and the tiles that are computed for it."""
    _, axes = plt.subplots(1, 3, figsize=(8, 2.6), layout="constrained")
    cases = {"all": (False, None), "causal": (True, None), "causal, window of 80": (True, 80)}
    away = np.arange(keys)[None] - np.arange(queries)[:, None]
    for ax, (name, mask) in zip(axes, cases.items(), strict=True):
        low, high = attention.limits(queries, keys, *mask)
        seen = (low <= away) & (away < high)
        ax.imshow(
            seen, cmap=plt.matplotlib.colors.ListedColormap(["white", palette.COLOURS[0]]), alpha=0.6, vmin=0, vmax=1
        )
        ax.set(title=name, xlabel="key", xticks=range(0, keys, tile), yticks=range(0, queries, tile))
        ax.grid(color=palette.INK, linewidth=0.6)
        used = [seen[a : a + tile, b : b + tile].any() for a in range(0, queries, tile) for b in range(0, keys, tile)]
        print(f"{name}: {seen.mean():.0%} of the pairs, {sum(used)} of {len(used)} tiles")
    axes[0].set_ylabel("query")


masks()

# %% [markdown]
# Blue is what is seen, and the lines are the borders of tiles. Here queries begin 64 keys behind the first one. A
# kernel that computes every tile and then hides what is not seen gives the right result, and does all the work. The
# rungs so far compute every score. `online` alone leaves out the values of keys that are not seen.
#
# ## Rung 5: `skipping`
#
# A block knows its first query and its last. The first reaches furthest back, the last furthest ahead. All other tiles
# need not even be loaded. And of those that are left, only the ones that a border cuts need a test for each element.
#
# **Predict, then run.** 2,048 queries and as many keys, a causal mask, tiles of 64 x 64. Which share of the tiles is
# computed?

# %%
guess = None  # percent

tiles = 2048 // 64
predict(guess, 100 * sum(t + 1 for t in range(tiles)) / tiles**2, unit="percent")

# %% [markdown]
# Of the $t \times t$ tiles it is a triangle with its diagonal, $(t + 1) / (2t)$. Half of each tile on the
# diagonal is computed for nothing. The interpreter counts a smaller case: 66 queries and keys, a causal mask.

# %%
given = [rng.standard_normal((1, 1, 66, 8), dtype=np.float32) for _ in range(3)]
for rung in (attention.register_tiled, attention.skipping):
    found = lab.count(rung, *given, True).counters
    print(f"{rung.name:15} {found['flops']:12,} FLOP, {found['global_load_bytes']:8,} bytes loaded")

# %% [markdown]
# Here are two blocks of queries and two tiles of keys, and one tile of the four is left out. It holds only two keys, so
# less than a quarter of the work goes.
#
# Blocks do not end together now: the last queries have the most keys. So they begin first, and the short ones fill what
# is left at the end.
#
# ## Rung 6: `streamed`
#
# A profiler (Nsight Compute) says of `skipping` on an H200: in about every third cycle a scheduler has no warp that can
# go on. Warps wait for shared memory, and for the keys and values that they have just asked for. There are only ten
# warps on a multiprocessor, for $d = 128$ eight, and more registers are not to be had.
#
# The last kernel of [chapter 12](12_matmul.ipynb) has as few warps, and is faster. It asks for the next tile before it
# multiplies this one. The same works here, and the asynchronous copies of [chapter 40](40_tensor_cores.ipynb) do it
# without a register for what is on its way.
#
# - Keys arrive in chunks of some columns, values in chunks of some rows. Shared memory has two stages. While a block
#   reads one, the copies fill the other.
# - With the last chunk of a tile's keys, the first chunk of its values is on the way. With the last chunk of values,
#   the first chunk of the next keys is. So only the very first chunk is waited for from its beginning.
# - There is one barrier for each chunk. It says two things at once: the next chunk is there, and everyone has read the
#   one before, whose place can be filled.
# - Weights lie turned in shared memory. So the second product adds outer products: for one key a thread needs 8 weights
#   and its elements of the value.
# - In both products the loads of a step stand before the multiply-adds of the step before it. That holds for the last
#   step of a loop, too: it loads for the next round. The compiler itself moves no load over the end of a loop.
# - Weights are relative to a *base* of their row. It is the maximum of the first tile, and it stays as long as no score
#   is more than 4 above it. A weight is then at most $2^4$, and its relative error is that of smaller ones. If a score
#   is farther above, the bases become the maxima so far. So most tiles need one vote of the threads. The lanes of a row
#   do not look for their common maximum, which takes three shuffles one after another, and no sum is scaled.
# - A multiply-add reads three registers. They come out of two banks: registers with even numbers, and with odd ones. If
#   all three are in one bank, it takes longer. Four columns of a query are loaded into four registers in a row, and
#   four of a key, too. Column for column both would be in the same bank. So the queries lie in shared memory with
#   neighbouring columns exchanged.

# %%
show(attention.stream_kernel)

# %% [markdown]
# **Predict, then run.** Take $d = 64$. A tile has 64 keys, which arrive in chunks of 32 columns, and a thread has 8
# queries and 8 of the keys. How many multiply-adds does it do on the last chunk of keys, while the first chunk of
# values travels?

# %%
guess = None  # multiply-adds

tile = next(tile for tile in attention.STREAMS if tile.columns == 64)
predict(guess, tile.depth * 8 * tile.keys // (8 * tile.warps_x), unit="multiply-adds")

# %% [markdown]
# A scheduler starts one instruction a cycle, and a chunk needs fewer than a thousand cycles to travel. So it is there
# long before it is needed.
#
# Loads from shared memory are only a few more than before, sixteen for 256 multiply-adds: the first of each chunk are
# loaded once more, and every query once, to be scaled.

# %%
given = [rng.standard_normal((1, 1, 128, 64), dtype=np.float32) for _ in range(3)]
for rung in (attention.skipping, attention.streamed):
    found = lab.count(rung, *given).counters
    print(f"{rung.name:10} {found['shared_load_requests']:6,} loads from shared memory")

# %% [markdown]
# ## Heads that share keys
#
# Many models have more heads of queries than of keys: 32 and 8, say. Each head of keys serves a group of four. That is
# *grouped-query attention*, and for our kernels it is one division: head $h$ of q uses head $h$ // 4 of k and v.

# %%
q, k, v = (rng.standard_normal((1, heads, 5, 8), dtype=np.float32) for heads in (4, 2, 2))
ours = device.to_host(attention.attention(q, k, v, causal=True))
repeated = device.to_host(attention.attention(q, k.repeat(2, 1), v.repeat(2, 1), causal=True))
print("the same as with keys and values repeated:", np.array_equal(ours, repeated))

# %% [markdown]
# The arithmetic is that of four heads, and the keys are read from memory once for all of them. For many queries that
# hardly matters. For one it is all that counts.
#
# ## One query at a time
#
# A model that writes a text adds one word, looks at all words so far, and adds the next. Their keys and values do not
# change, so they are kept, in a *KV cache*. Each step then has one query a head.

# %%
for shared in (1, 4, 8):
    cost = decode.cost(64, 32, 32 // shared, 8192, 128)
    least = roofline.bound(cost, roofline.ceilings("matmul"))
    print(
        f"heads that share a key: {shared}; {cost.intensity:4.2f} FLOP a byte, {1e3 * least.seconds:6.2f} ms, "
        f"by {least.side}"
    )

# %% [markdown]
# A key is used once for each head that shares it, and so is a value. So memory is the bound, and tiles have nothing to
# keep. This is the product of a matrix and a vector once more ([chapter 32](32_matrix_vector.ipynb)), and the same
# things count: bytes under way, and enough blocks.
#
# In the room [decode](../pmpp/kernels/attention/decode.py) eight lanes have a key, so a warp has four keys at a time. A
# lane has 16 elements of the key and of the value, and asks for all of them before it uses one. Each team of eight
# keeps an online softmax of its own. In the end the teams put together what they found, and so do the warps.

# %%
show(decode.part_kernel)

# %% [markdown]
# In `head_by_head` a block has one head of q. In `grouped` it has up to four that share their keys.
# A block has 16 teams, and each team loads the queries of the block's heads for itself.
#
# **Predict, then run.** Eight heads share one head of keys. There are 64 keys of 32 elements. How many times as many
# bytes as `grouped` does `head_by_head` load?

# %%
guess = None  # times as many bytes

q = rng.standard_normal((1, 8, 32), dtype=np.float32)
k, v = (rng.standard_normal((1, 1, 64, 32), dtype=np.float32) for _ in range(2))
lengths = np.array([64], np.int32)
loads = [
    lab.count(rung, q, k, v, lengths).counters["global_load_bytes"] for rung in (decode.head_by_head, decode.grouped)
]
predict(guess, loads[0] / loads[1], unit="times as many bytes")

# %%
print(f"{loads[0]:,} bytes head by head, {loads[1]:,} in groups of four; keys and values are {k.nbytes + v.nbytes:,}")

# %% [markdown]
# In `grouped` two blocks share the eight heads, so keys are still read twice, the second time from the cache. With many
# keys `head_by_head` would load four times as many bytes. Here keys are few, and the queries and the table of pages
# (see below) count as well.
#
# ### Parts of the keys
#
# 64 texts with 8 heads of keys are 512 blocks. One text has 8, and most of a large GPU would be idle. So `split` cuts
# the keys into parts, each for a block of its own. A part leaves three things for each query: its highest score, the
# sum of its weights, and their mean of the values. A second kernel puts them together. A part counts as much as its sum
# would be, had it been computed with the highest score of all. There are as many parts as give each multiprocessor four
# blocks, but no more than leave 128 keys to a part.

# %%
show(decode.combine_kernel)

# %% [markdown]
# A block joins the parts of a row of the result: its warps take them in turns, always the same ones. So the result has
# the same bits in every run.
#
# ### Keys on their way
#
# `split` has the fault that `skipping` had: a warp asks for keys and values, and waits until they are there. Its
# registers are full of queries and sums, so there is no room to ask for more. In `ahead` a thread copies what it will
# need into shared memory, by asynchronous copies. No other thread reads these bytes. So there is no barrier: a thread
# only waits for its own copies.
#
# A team takes two keys at a time from there. It looks for one new maximum for both, and scales its sums once.

# %%
show(decode.ahead_kernel)

# %% [markdown]
# **Predict, then run.** A block has 64 KB of shared memory for this, and keys of 128 elements of 16 bits. How many keys
# have room there, together with their values?

# %%
guess = None  # keys

predict(guess, decode.RING // (2 * 128 * 2), unit="keys")

# %% [markdown]
# Half of them or more are always on their way. `split` has 16 keys of a block on their way to registers, and none while
# it computes.
#
# With so much under way, one block or two keep a multiprocessor busy. So `ahead` and the next rung make fewer parts
# than `split`: as few as leave hardly a multiprocessor without work until the end. A part less is one less to begin and
# to put together. If there is a single part, the second kernel is not launched at all.
#
# ### Heads as rows of a matrix
#
# In 16 bits a key has half the bytes, and as many multiply-adds as before. Now these become the bound: for each key and
# head, every lane multiplies, shuffles, and scales its sums. But four heads that share keys are the rows of a matrix,
# and their scores for sixteen keys are a product of matrices. Tensor cores ([chapter 40](40_tensor_cores.ipynb)) do
# that. The fragment has 16 rows, so even eight heads leave half of it empty. Tensor cores have that much to spare: with
# half of them wasted, the products still take less time than the keys need to come from memory.
#
# The weights must have 16 bits for the second product. A weight that is rounded to float16 loses what `split` keeps. So
# it becomes a sum of two: its first bits, and the rest. The product is done for both.

# %%
weight = np.float32(0.7)
first = np.float16(weight)
rest = np.float16(weight - np.float32(first))
print(f"rounded once: off by {abs(float(first) - float(weight)):.1e}")
print(f"as a sum of two: off by {abs(float(first) + float(rest) - float(weight)):.1e}")

# %% [markdown]
# Each warp of `as_matrices` has keys of its own, and a ring of its own in shared memory. So no warp waits for another.

# %%
show(decode.matrix_kernel)

# %% [markdown]
# ### An engine that does not stop
#
# A block of `as_matrices` ends, and the next one begins: it looks up where its keys are, asks for them, and waits. All
# warps spend instructions on copies, too. On Hopper, `fed` leaves them to the copy engine of
# [chapter 43](43_warpgroups.ipynb). Each multiprocessor has one block, and a counter in memory says which text and
# group is next. Who is done takes one, since multiprocessors do not get their bytes equally fast.
#
# One thread asks for tiles of 128 keys. It goes on to the block's next text while the eight other warps still put
# together what they have found. So bytes are on their way all the time. For keys of 128 elements the ring has two
# tiles of keys and two of values.
#
# In `as_matrices` half of the fragment's rows were empty. Here the rest of each weight is in them, so that one product
# does for both.

# %%
show(decode.fed_kernel)

# %% [markdown]
# ### Pages
#
# A text grows, and nobody knows how far. A cache with room for the longest text wastes most of its memory on the short
# ones. A *paged* cache is cut into pages of some keys each. A table says which page has the next keys of a text, as an
# operating system does it for programs.

# %%
table = np.array([[5, 0, 3], [2, 4, 0]], np.int32)  # pages of each text, in order
lengths = np.array([40, 20], np.int32)
q = rng.standard_normal((2, 4, 8), dtype=np.float32)
k, v = (rng.standard_normal((6, 2, 16, 8), dtype=np.float32) for _ in range(2))  # six pages of 16 keys
paged = device.to_host(decode.split(q, k, v, lengths, table))
side_by_side = [x[table].transpose(0, 2, 1, 3, 4).reshape(2, 2, 48, 8) for x in (k, v)]
plain = device.to_host(decode.split(q, *side_by_side, lengths))
print("the same as side by side:", np.array_equal(paged, plain))

# %% [markdown]
# The first text has 40 keys, so of its third page only 8 are read. The third entry of the second text is never looked
# at.
#
# ## The whole ladder
#
# These are shares of the roof at the design sizes, without a mask.

# %%
plots.drawn(plots.ladder, "attention", family="heads of 64")

# %%
plots.drawn(plots.ladder, "attention", family="heads of 128")

# %%
plots.drawn(plots.roofline, "attention")

# %% [markdown]
# Look at `materialised` first: both of its products are fast, and the scores between them go through memory. `online`
# has the idea that saves these bytes, and is the slowest of all, since each thread multiplies what it has just loaded.
# Tiles in shared memory bring a part of that back. Only with tiles in registers is a kernel without scores in memory
# faster than the one with them. `skipping` takes as long as `register_tiled`, since without a mask it skips nothing.
# `streamed` passes PyTorch's kernel for heads of 64, and stays behind it for heads of 128.
#
# The roofline has the intensity of the definition, far to the right of the ridge. So the ceiling of all rungs is that
# of arithmetic, and the distance from it is what a rung loses.

# %%
plots.drawn(plots.sweep, "attention", family="sweep")

# %% [markdown]
# A short text has few blocks of queries. With up to 512 queries a large GPU is mostly idle, and PyTorch's kernel is
# ahead there.
#
# Beside the best rung, this is NumPy on the CPU, with the scores in memory.

# %%
plots.drawn(plots.cpu_gpu, "attention", family="sweep")

# %% [markdown]
# At every size NumPy takes many times as long as the kernel alone. With the call and the transfers the GPU is ahead as
# well, by little for the shortest texts.
#
# For a single query the ceiling is that of memory. First many texts in float32, then the same in float16, then one text
# with more and more keys:

# %%
plots.drawn(plots.ladder, "decode", family="many texts")

# %%
plots.drawn(plots.ladder, "decode", family="many texts, float16")

# %%
plots.drawn(plots.sweep, "decode", family="one text")

# %% [markdown]
# For many texts `grouped` takes little more than half the time of `head_by_head`. `split` adds nothing, since there are
# blocks enough. `ahead` reaches the ceiling, since bytes are under way while it computes. A share above 100 % is
# possible: the ceiling was measured with a copy, and this kernel hardly writes ([chapter 4](04_vector_add.ipynb)). For
# one text it is the fastest at every length. The rate of `grouped` stays low however many keys there are: it has a
# block for each head of keys. `split` and `ahead` come nearer to the ceiling as the text grows, because a longer text
# has more parts, and then longer ones.
#
# In float16 half the bytes do not help `grouped` and `split`: arithmetic is their bound. `as_matrices` is well ahead of
# `ahead`, and `fed` is level with PyTorch's function. In float32 that function is far below all rungs for many texts.
# For one text it is below `split`, and farther for longer texts.
#
# ## What to take along
#
# - Between two fast kernels lies memory. What one writes and the next reads can cost as much as both compute.
# - A softmax and a weighted sum can be computed in one pass, in any order of the keys, and parts can be joined: keep
#   the maximum, the sum relative to it, and the weighted sum.
# - The bytes that are saved are those of the scores. Keys and values are read once for each block of queries, and come
#   from the cache.
# - Two products in one kernel need tiles that fit together: here a warp has whole rows of the weights.
# - A mask that can be said in two numbers can be skipped by tiles.
# - One query is bound by memory. Keys are read once for all heads that share them, and are cut into parts so that the
#   whole GPU is busy.
#
# ## Exercises
#
# ### 1. Attention in one pass

# %%
exercise("attention/online")


# %%
@cuda.jit
def online(q, k, v, out):
    pass  # your code


check("attention/online", online)

# %% [markdown]
# ### 2. Parts of the keys
#
# Write what the second kernel of `split` does, for results of one element.

# %%
exercise("attention/combine")


# %%
@cuda.jit
def combine(highest, total, mean, out):
    pass  # your code


check("attention/combine", combine)

# %% [markdown]
# ### 3. Tiles that a block sees

# %%
exercise("attention/tiles")


# %%
@cuda.jit
def tiles_of(queries, keys, window, first, last):
    pass  # your code


check("attention/tiles", tiles_of)

# %% [markdown]
# ### More, without a check
#
# - Up to how many keys do the scores take no more bytes than the inputs and the result? What speaks against
#   `materialised` even there?
# - A tile has 64 queries. With 128, keys and values would be read half as often. Which of the two limits, registers or
#   shared memory, stands in the way?
# - Take the digits again, with `window=1` and as many queries as keys. What comes out, and why?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def online_answer(q, k, v, out):
    i = cuda.grid(1)
    if i < out.size:
        own, highest, total, added = q[i], np.float32(-np.inf), np.float32(0), np.float32(0)
        for j in range(k.size):
            score = own * k[j]
            top = max(highest, score)
            keep, weight = math.exp(highest - top), math.exp(score - top)
            total = total * keep + weight
            added = added * keep + weight * v[j]
            highest = top
        out[i] = added / total


assert check("attention/online", online_answer)

# %% [markdown]
# *In one pass.* For the first key `keep` is $e^{-\infty} = 0$, so nothing special has to be done for it.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def combine_answer(highest, total, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        top, weights, added = np.float32(-np.inf), np.float32(0), np.float32(0)
        for part in range(highest.shape[0]):
            top = max(top, highest[part, i])
        if top > np.float32(-np.inf):
            for part in range(highest.shape[0]):
                weight = total[part, i] * math.exp(highest[part, i] - top)
                weights += weight
                added += weight * mean[part, i]
            added /= weights
        out[i] = added


assert check("attention/combine", combine_answer)

# %% [markdown]
# *Parts.* A part counts what its total would be with the common maximum. A part without a key counts
# $0 \cdot e^{-\infty} = 0$, unless no part has one.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def tiles_answer(queries, keys, window, first, last):
    t = cuda.grid(1)
    if t < first.size:
        ahead = keys - queries
        end = min((t + 1) * 64, queries) + ahead  # behind the last key of the block's last query
        begin = max(t * 64 + ahead - window + 1, 0)  # the first key of its first query
        first[t], last[t] = 0, 0
        if end > 0:
            first[t], last[t] = begin // 64, (end + 63) // 64


assert check("attention/tiles", tiles_answer)

# %% [markdown]
# *Tiles.* Without the test for `end`, blocks of queries before the first key would get negative tiles.

# %% jupyter={"source_hidden": true} tags=["answer"]
few = [n for n in range(1, 1000) if 4 * n * n <= attention.cost(1, 1, 1, n, n, 64).bytes]
tall = 4 * (128 * 68 + 64 * 68 + 128 * 40)
print(f"up to {few[-1]} keys of 64; 128 queries would take {tall / 1024:.0f} KiB of shared memory, and 48 are allowed")

# %% [markdown]
# *Few keys.* Up to $4d$ keys the scores are the smaller part. Even there `materialised` has four launches, and the
# others one.
#
# *128 queries.* With 128 threads, each would have as many sums and scores as now. But queries and weights in shared
# memory would double. With the keys they are more than the 48 KiB that a block has without asking for more.
#
# *A window of one.* Each query sees the key at its own place alone. Its weight is 1, whatever the score is, so the
# result is the value of that key.
#
# Go on with [chapter 76](76_convolution_gradients.ipynb): what a convolution layer sends back.
