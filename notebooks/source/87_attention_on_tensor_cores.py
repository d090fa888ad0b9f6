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
# # 87. Attention on tensor cores
#
# *Two products of a warp with a softmax between them: scores that stay in registers, weights in 16 bits, tiles that
# are on their way, 32 queries a warp, warpgroups, gradients. Read chapters [40](40_tensor_cores.ipynb),
# [43](43_warpgroups.ipynb), [75](75_attention.ipynb) and [86](86_gradients_of_softmax.ipynb) before. 40 minutes. PMPP
# 4e: none; 5e: sections 20.3 to 20.7. The code is
# [pmpp/kernels/attention/on_tensor_cores.py](../pmpp/kernels/attention/on_tensor_cores.py), for gradients
# [pmpp/kernels/attention/attention_gradients.py](../pmpp/kernels/attention/attention_gradients.py), and for Hopper
# [on_warpgroups.py](../pmpp/kernels/attention/on_warpgroups.py) and
# [gradients_on_warpgroups.py](../pmpp/kernels/attention/gradients_on_warpgroups.py) beside them.*
#
# [Chapter 75](75_attention.ipynb) never writes a score to memory. But its kernels multiply in float32, and between
# their two products the weights pass through shared memory. In float16 and bfloat16 the products can be done by tensor
# cores, as in [chapter 40](40_tensor_cores.ipynb).
#
# **The question of this chapter: products become sixteen times as fast, and the softmax between them does not. What has
# to disappear between the two products, so that they still decide how long it takes?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.attention import attention_gradients, gradients_on_warpgroups, on_tensor_cores, on_warpgroups
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)
rng = np.random.default_rng(87)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# A score of a head with $d$ elements takes $4d$ operations in the two products. It also takes one exponential. In a
# cycle a multiprocessor of an H200 does 4096 operations on its tensor cores, and 16 exponentials in the units for
# special functions.
#
# **Predict, then run.** For $d = 64$: how many scores would the tensor cores finish in the time that 16 exponentials
# take?

# %%
guess = None  # scores in a cycle

size, tensor_operations = 64, 4096
predict(guess, tensor_operations / (4 * size), unit="scores in a cycle")


# %%
def cycles():
    """What each unit needs for a score, over the elements of a head."""
    figure, ax = chart(3.4)
    sizes = np.array([16, 32, 64, 96, 128, 192, 256])
    lines = {"tensor cores": 4 * sizes / 4096, "float32 units": 4 * sizes / 256}
    lines["exponentials"] = np.full(len(sizes), 1 / 16)
    for (name, found), colour, marker in zip(lines.items(), palette.COLOURS, "os^", strict=False):
        ax.plot(sizes, found, color=colour, marker=marker, label=name)
    ax.set(yscale="log", xlabel="elements of a head", ylabel="cycles for a score")
    ax.legend()
    return figure


cycles()

# %% [markdown]
# In float32 the products of a score take far longer than its exponential. On tensor cores the two are equal at 64
# elements. Besides, each score is scaled, compared, added to a sum and rounded, by the float32 units. All that has to
# go on *while* the tensor cores multiply. There is no time left for a score to travel.
#
# ## Where a score is
#
# `mma.sync` adds a 16 x 16 times a 16 x 8 matrix. For the scores the first operand are 16 queries, and the second one
# are 8 keys. Two such products give the scores of 16 queries and 16 keys. For the second product the *weights* are the
# first operand, and it is 16 x 16 as well. So where are the sums, and where must the operand be?

# %%
lane = 6
left, right = ([simt.fragment("mma_f16", "c", lane, r)[0] for r in range(4)] for _ in range(2))
right = [(row, column + 8) for row, column in right]
print("sums of the left and the right product:", left, right, sep="\n  ")
for register in range(4):
    print("operand, register", register, ":", simt.fragment("mma_f16", "a", lane, register))

# %% [markdown]
# The same eight places. A lane has computed exactly those scores that it needs as weights. So weights need no shared
# memory, no shuffle and no barrier. Each pair is rounded to 16 bits, which `rounded_f16` does with one instruction, and
# the register is an operand.
#
# The row of a score also stays with four lanes. The maximum of a row takes two shuffles, where 32 keys in 32 lanes took
# five.
#
# ### An exercise in between
#
# Write down where each weight goes.

# %%
exercise("on_tensor_cores/operand")


# %%
@cuda.jit
def operand(w, out):
    pass  # your code


check("on_tensor_cores/operand", operand)

# %% [markdown]
# ## Rung 1: `registers`
#
# The reference is that of chapter 75, in float64, of what 16 bits hold. Here is the kernel. A warp has 16 queries, and
# loads them into registers once. A block of four warps copies tiles of 64 keys and 64 values to shared memory, with
# exchanged chunks as in chapter 40.

# %%
show(on_tensor_cores.registers_kernel)

# %% [markdown]
# Three device functions are the body of the loop. `add_scores` multiplies, `update` is the online softmax, and
# `add_values` multiplies again. Keys are read by `ldmatrix` as they lie, since a key's elements are a column of the
# second operand. Values are read by its transposed form, since there the keys are.
#
# Two details save instructions. The scale is multiplied into the exponent, in the same multiply-add that takes off the
# maximum. And the kernel is compiled with `fastmath`, so that an exponential is one instruction: results below
# $2^{-126}$ become 0, which changes no weight that counts.
#
# We check it, and count what it stores.

# %%
q, k, v = (rng.standard_normal((1, 2, 64, 64)).astype(np.float16) for _ in range(3))
expected = on_tensor_cores.reference(q, k, v, True)
found = device.to_host(on_tensor_cores.registers(q, k, v, True))
print("largest error:", np.abs(found - expected).max(), "of", np.abs(expected).max())
counters = lab.count(on_tensor_cores.registers, q, k, v, True).counters
print(f"stored: {counters['global_store_bytes']:,} bytes; the result has {found.nbytes:,}")

# %% [markdown]
# ## Three roundings
#
# Queries, keys and values come in 16 bits. Their products are exact in float32. Then the weights are rounded to 16
# bits, and so is the result. How much does each of the two change? We do the same in NumPy, and leave one out.


# %%
def errors(dtype, keys=512):
    """The mean error of results whose weights are rounded, and of results that are."""
    weights = np.exp(rng.standard_normal((64, keys)))
    weights /= weights.sum(axis=1, keepdims=True)
    values = rng.standard_normal((keys, 64))
    exact = weights @ values
    rounded = (weights / weights.max()).astype(np.float32).astype(dtype).astype(np.float64) * weights.max()
    at_end = exact.astype(np.float32).astype(dtype).astype(np.float64)
    return [float(np.sqrt(np.mean((x - exact) ** 2)) / np.std(exact)) for x in (rounded @ values, at_end)]


for dtype in map(np.dtype, ("float16", "float32")):
    print(f"{dtype}: weights {errors(dtype)[0]:.1e}, result {errors(dtype)[1]:.1e}, of the result's size")

# %% [markdown]
# Both are of one size, and small: a weight's rounding error has a random sign, and there are many weights. The scores
# are not rounded. An error of a score is a factor for its weight, so it would count much more.
#
# ## Rung 2: `overlapped`
#
# `registers` copies a tile, waits for it, and multiplies. With two tiles of keys and of values in shared memory the
# next ones are on their way meanwhile, as in chapter 40. The kernel is the same, for a tile with two stages.

# %%
show(on_tensor_cores.overlapped.launch)

# %% [markdown]
# ## Rung 3: `wide`
#
# A warp reads each tile of keys and values whole, for its 16 queries. That is an `ldmatrix` for every two products of
# 16 x 8. If a warp has 32 queries, each operand that it has loaded serves twice as many products.
#
# **Predict, then run.** One head, 128 queries, 64 keys, $d = 64$. How many times does `wide` execute `ldmatrix`, in all
# warps together? With 16 queries a warp it is 256 times.

# %%
guess = None  # times

given = [rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (128, 64, 64)]
found = {rung.name: lab.count(rung, *given).counters for rung in (on_tensor_cores.overlapped, on_tensor_cores.wide)}
predict(guess, found["wide"]["shared_load_requests"], unit="times", exact=True)

# %%
for name, counters in found.items():
    print(
        f"{name:10} {counters['shared_load_requests']:4} loads, {counters['shared_load_wavefronts']:5} wavefronts, "
        f"{counters['shared_load_bank_conflicts']} bank conflicts"
    )

# %% [markdown]
# A request of `ldmatrix` has 512 bytes, four wavefronts. Half the loads for the same products. The price are registers:
# a lane has twice as many scores and sums. For heads of 128 elements they are too many, so these stay at 16 queries a
# warp.
#
# Tiles that no query of a block sees are skipped, as in chapter 75: two numbers say what a query sees.

# %%
given = [rng.standard_normal((1, 1, 192, 64)).astype(np.float16) for _ in range(3)]
for causal in (False, True):
    counters = lab.count(on_tensor_cores.overlapped, *given, causal).counters
    print(f"causal={causal}: {counters['shared_load_requests']:,} loads from shared memory")

# %% [markdown]
# Three blocks of queries see three tiles each, or one, two and three with the mask.
#
# ## The whole ladder
#
# The figures compare with FlashAttention and with cuDNN, as PyTorch calls them. The roof is that of
# float16 on this GPU's tensor cores.

# %%
plots.drawn(plots.ladder, "on_tensor_cores", family="heads of 64")

# %%
plots.drawn(plots.ladder, "on_tensor_cores", family="heads of 128")

# %%
plots.drawn(plots.roofline, "on_tensor_cores")

# %% [markdown]
# NumPy on the CPU, in float32, beside the best rung:

# %%
plots.drawn(plots.cpu_gpu, "on_tensor_cores", family="sweep")

# %% [markdown]
# ## Warpgroups
#
# cuDNN's kernel uses `wgmma` ([chapter 43](43_warpgroups.ipynb)), and `mma.sync` reaches about two thirds of what that
# instruction can do. So a kernel with `mma.sync` cannot reach cuDNN's where products decide, with heads of 128. On a
# Hopper GPU we can use `wgmma` as well.
#
# Four warps have 64 queries. Queries, keys and values lie in shared memory, where the copy engine puts them, and a warp
# of its own asks for them. For the scores, a row of keys is a *column* of the second operand. `wgmma_f16_rows` takes it
# as it lies. The scores of a lane are sums of `wgmma`, and these lie as those of `mma.sync`, eight columns after the
# other. So the weights are a first operand again, where they are: `wgmma_f16_kept` takes it from registers, and the
# values from shared memory.

# %%
show(on_warpgroups.products)

# %% [markdown]
# What does a thread hold for heads of 128 and tiles of 128 keys? Of 64 x 128 scores each of 128 threads has 64, and of
# the sums as many. The weights are two in a register: 32 more. With indices and addresses it takes about 200 registers.
#
# A multiprocessor has 65,536 registers. A block has two warpgroups that multiply, and one that asks for copies, 384
# threads. So each of them gets 168. But whoever asks for copies needs few. With `fewer_registers` a warpgroup gives
# registers back, and with `more_registers` the others take them.
#
# **Predict, then run.** The warpgroup of the copies keeps 24 registers a thread. How many can the 256 others have? The
# number is a multiple of 8.

# %%
guess = None  # registers a thread

registers, few = 65_536, 24
predict(guess, (registers - 128 * few) // 256 // 8 * 8, unit="registers a thread", exact=True)

# %% [markdown]
# Without that the compiler would keep some sums in memory, and would let each product wait for the one before.
#
# `warpgroup` does one thing after the other: it multiplies, waits, makes weights, multiplies, and waits. While one
# warpgroup makes weights, the tensor cores have only the other one. Each product of `wgmma` is under way until somebody
# waits. So the next rung, `overlapped`, only changes the order: it starts the scores of the *next* tile and then the
# product of weights and values of *this* tile. It waits for the scores, and makes weights of them, while the values are
# multiplied.

# %%
show(on_warpgroups.both_at_once)

# %% [markdown]
# The order of a loop's steps is what has changed, and one line. The exponentials do not depend on the wait for the
# product of the values. So a compiler may put the wait first, and then nothing overlaps. The machine code of a first
# version showed that it does. `after` puts a branch between the two, whose condition needs the sum of the weights.
#
# We check both rungs, and count what a warp loads from shared memory.

# %%
for rung in on_warpgroups.LADDER:
    found = device.to_host(rung(q, k, v, True))
    counters = lab.count(rung, q, k, v, True).counters
    loads, operations = counters["shared_load_requests"], counters["tensor_flops"]
    print(f"{rung.name:10} off by {np.abs(found - expected).max():.5f}, {loads} loads, {operations:,} operations")

# %% [markdown]
# No operand of a product is loaded into a register. The operations are six times what these 64 queries and 64 keys
# need: for heads of 64 a block has three warpgroups, 192 queries, and a tile has 128 keys. Most of them are not there.
# Short inputs are the price of large tiles.
#
# A causal mask leaves the last queries the most keys. As many blocks as fit on the GPU go through all queries of all
# heads, the longest first, and in every second turn backwards. Before the launch the host counts what each block would
# get, and chooses how many heads take turns so that the shares come out nearly equal. Within a block each warpgroup
# hands back the tiles that its own 64 queries do not see, and hides scores only in tiles that some of them see in part.

# %%
plots.drawn(plots.ladder, "on_warpgroups", family="heads of 64")

# %%
plots.drawn(plots.ladder, "on_warpgroups", family="heads of 128")

# %% [markdown]
# `wide` is the last rung with `mma.sync`. With heads of 128 the other order gains a little, and `overlapped` comes near
# to cuDNN. With heads of 64 exponentials weigh twice as much beside the products, and the other order gains nothing.
#
# ## Gradients
#
# A network that learns needs the gradients of its loss by q, k and v. Let $g$ be the gradient by the results. The
# results are $o = w v$, with weights $w$ that are the softmax of the scores $s$. Its gradient is that of
# [chapter 86](86_gradients_of_softmax.ipynb):
#
# $$dv = w^T g, \qquad dw = g v^T, \qquad ds = w \circ (dw - \delta), \qquad dq = \tfrac{1}{\sqrt d}\, ds\, k, \qquad
# dk = \tfrac{1}{\sqrt d}\, ds^T q,$$
#
# where $\delta_i$, for a query, is the sum of $w_{ij}\, dw_{ij}$ over its keys. That is the sum of $g_i$ times $o_i$,
# element by element, so it needs no weight: `deltas_kernel` computes it from two rows.
#
# The weights are as many as the scores, and nobody has kept them. So they are computed again. What it takes is one
# number a query that the forward pass leaves, $L_i$, the logarithm of its sum: $w_{ij} = 2^{s_{ij} - L_i}$, with no
# maximum and no second pass.
#
# The gradients by keys and values are sums over queries, and that by queries is one over keys. Whoever goes over all
# pairs once has to add one of them to memory, by atomics. We go twice instead: `keys_kernel` has a block for 64 keys,
# and `queries_kernel` one for 64 queries.

# %%
show(attention_gradients.keys_kernel)

# %% [markdown]
# Here keys are the rows of the first two products, and queries the columns. So the sums of a lane are again where the
# first operand of the next two products must be: weights of 16 keys, and gradients by their scores.
#
# **Predict, then run.** The definition has five products of queries x keys x $d$ multiply-adds: for $s$, $dw$, $dv$,
# $dq$ and $dk$. How many do the two kernels do together?

# %%
guess = None  # products

given = [rng.standard_normal((1, 1, 64, 64)).astype(np.float16) for _ in range(4)]
result, logs = on_tensor_cores.forward(*given[1:])
operations = lab.count(attention_gradients.overlapped, *given, result=result, logs=logs).counters["tensor_flops"]
predict(guess, operations / (2 * 64**3), unit="products", exact=True)

# %% [markdown]
# Both compute $s$ and $dw$. That is the price for sums that nobody else adds to: they stay in registers, and the same
# call gives the same bits. With atomics, five products are enough, but gradients by queries are added up in memory, in
# an order that changes. FlashAttention does that.
#
# Are they right? A gradient says how the loss changes when an input does. We move the values a little along a direction
# and compare.

# %%
gradient, q, k, v = (x.astype(np.float64) for x in given)
by_q, by_k, by_v = (device.to_host(x).astype(np.float64) for x in attention_gradients.overlapped(*given))
for name, by, place in (("q", by_q, 0), ("k", by_k, 1), ("v", by_v, 2)):
    direction, moved = rng.standard_normal(by.shape), [[q, k, v], [q, k, v]]
    for sign, inputs in zip((1, -1), moved, strict=True):
        inputs[place] = inputs[place] + sign * 1e-4 * direction
    losses = [(on_tensor_cores.reference(*inputs) * gradient).sum() for inputs in moved]
    print(f"by {name}: slope {(losses[0] - losses[1]) / 2e-4:9.4f}, gradient {(by * direction).sum():9.4f}")

# %%
plots.drawn(plots.ladder, "attention_gradients", family="heads of 64")

# %%
plots.drawn(plots.ladder, "attention_gradients", family="heads of 128")

# %% [markdown]
# ### Gradients by warpgroups
#
# With `wgmma` the two kernels stay what they are. A warpgroup has 64 keys in shared memory, and goes over tiles of 64
# queries and their gradients. Each tile serves twice: row by row for $s$ and $dw$, and then, with weights and $ds$ in
# registers, for $dv$ and $dk$. The two numbers of a query, $L_i$ and $\delta_i$, belong to a *column* now. The warp
# that asks for copies puts them into shared memory beside the tile.

# %%
show(gradients_on_warpgroups.keys_kernel)

# %%
found = gradients_on_warpgroups.in_flight(*given)
before = attention_gradients.overlapped(*given)
for name, one, other in zip("qkv", found, before, strict=True):
    one, other = (device.to_host(x).astype(np.float32) for x in (one, other))
    print(f"by {name}: {np.abs(one - other).max():.5f} apart, of {np.abs(other).max():.2f}")

# %% [markdown]
# In the rung `in_flight` the last products of a tile are under way while the next tile's scores begin. For heads of 128
# the gradients by keys and values take 128 registers of a thread. Then none are left for operands of products that are
# under way, and only the kernel of the queries does it.

# %%
plots.drawn(plots.ladder, "gradients_on_warpgroups", family="heads of 64")

# %%
plots.drawn(plots.ladder, "gradients_on_warpgroups", family="heads of 128")

# %% [markdown]
# Here `overlapped` is the last rung with `mma.sync`: it takes about three times as long. What is under way in
# `in_flight` is a small gain with heads of 64, and none with heads of 128, where one kernel of two has it.
#
# ## What to take along
#
# - On tensor cores an exponential takes as long as the products of its score if heads have 64 elements, and half as
#   long with 128. So everything between two products counts.
# - The sums of `mma.sync` are where its first operand must be. So the result of one product is the operand of the next
#   without leaving the registers.
# - Scores and sums stay in float32. Weights are between 0 and 1, and can be rounded to 16 bits.
# - An operand that was loaded should serve several products: 32 queries a warp halve the loads.
# - On Hopper a warpgroup starts a product and goes on without waiting for it. The order in which it starts and awaits
#   products decides what happens at the same time, and registers decide how much can be under way.
# - Gradients compute the weights again, from one number a query. Two kernels, each with sums of its own, need seven
#   products, and no atomics.
#
# To read on: Dao, *FlashAttention-2*, 2023; Shah and others, *FlashAttention-3*, 2024, for what Hopper adds: two
# warpgroups that take turns on purpose, and numbers of 8 bits.
#
# ## Exercises
#
# The exercise with a check stands above. More to try, without a check:
#
# 1. How many registers of a lane hold queries, scores, weights and sums with 32 queries a warp, 64 keys a tile and
#    $d = 64$? And with $d = 128$?
# 2. A row is spread over four lanes. What would change if the keys were the rows of the first product, and the queries
#    its columns?
# 3. Why is a negative scale handled before the kernel, by a copy of the queries?
#
# ## Answers
#
# **operand.** The number of the register says the row by its lowest bit and the half of the columns by the next.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.attention import on_tensor_cores_exercises as answers

show(answers.operand_answer)
assert check("on_tensor_cores/operand", answers.operand_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
for d in (64, 128):
    words = {"queries": 32 * d / 2 / 32, "scores": 32 * 64 / 32, "weights": 32 * 64 / 2 / 32, "sums": 32 * d / 32}
    print(f"d = {d}: {words}, together {sum(words.values()):.0f}")

# %% [markdown]
# *Registers.* With 128 elements they are more than the 255 that a thread can have.
#
# *Keys as rows.* Then a query's scores are in a column, which eight lanes and several registers share, and its maximum
# takes three shuffles. The weights would be the second operand: keys are the depth of the second product, and its
# columns the queries.
#
# *A negative scale.* The kernel takes the largest score before it scales. With a negative scale the smallest one would
# be the maximum.
#
# Go on with [chapter 88](88_a_tape.ipynb), on how gradients are put together.
