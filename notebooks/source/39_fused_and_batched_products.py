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
# # 39. Fused and batched products
#
# *What surrounds a matrix product in a network: biases, activations and residuals, and hundreds of small products at
# once. When fusing them pays off, and when batching does. Read chapters [20](20_memory_or_compute.ipynb),
# [22](22_launches.ipynb) and [36](36_products_of_any_shape.ipynb) before. 70 minutes.
# PMPP 4e: chapter 6; 5e: chapter 15. The code is [pmpp/kernels/matmul/fused.py](../pmpp/kernels/matmul/fused.py).*
#
# A product alone is rare. A layer of a network adds a bias to it and applies an activation; a block of a transformer
# adds what went in, which is called a *residual*; attention scales the product and masks it. And attention multiplies
# one small pair of matrices for each head of each sentence. [Chapter 36](36_products_of_any_shape.ipynb) gave every
# shape a fast product. Here we look at what stands around it.
#
# **The question of this chapter: what does the rest of a layer cost beside its product, and what do many small products
# cost beside a large one? Which of these costs can be avoided?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul import fitted, fused
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.views import strided

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# Times come from a record, where there is one. The counts of bytes and instructions come from the interpreter, so they
# are the same everywhere.

# %%
try:
    store = record.load()
    entries = store.entries("fused")
    ceilings, source = store.ceilings("fused"), store.footer("fused")
except record.RecordError:  # nothing measured yet: what the vendor promises for an H200
    entries, ceilings = (), roofline.Ceilings(4.8e12, 67e12, "datasheet of an H200", empty_kernel=2e-6, launch=1e-5)
    source = "The ceilings are from the datasheet of an H200"
    print("No times were recorded for this room yet.")
times = {(entry.family, entry.workload, entry.contender): entry for entry in entries}
ridge = ceilings.ridge
print(f"the ridge: {ridge:.1f} FLOP/byte")

# %% [markdown]
# ## The bound
#
# All that this chapter computes is one formula, for as many pairs of matrices as there are:
#
# $$C = f(\alpha A B + \beta R + b)$$
#
# *R* is the residual, *b* has a number for each column, and *f* is applied to each element. What is done to *A B*
# besides multiplying is called the *epilogue*. It has a few operations for each element of *C*, and a product has 2 *K*
# of them. So the epilogue's arithmetic is nothing. Its bytes are another matter. If a step of it is a kernel of its
# own, which we call a *pass*, it reads each element of *C* and writes it: 8 bytes for an operation or two.
#
# How long is that, compared with the product? A product of *M* x *N* takes at least 2 *M N K* / *F* seconds on a GPU of
# *F* FLOP a second, if arithmetic is its bound. A pass takes 8 *M N* / *B*, if memory moves *B* bytes a second. *M* and
# *N* cancel: a pass costs 4 *F* / (*B K*) of the product, which is four times the ridge divided by *K*.
#
# **Predict, then run.** The ridge is printed above. From which *K* on does a pass cost at most a tenth of the product?

# %%
guess = None  # K

predict(guess, 40 * ridge, unit="K", within=0.1)

# %%
for name, m, k, n, passes in (
    ("attention's scores", 128, 64, 128, 2),
    ("a layer of BERT, first half", 8192, 768, 3072, 2),
    ("a layer of BERT, second half", 8192, 3072, 768, 2),
):
    product = 2 * m * n * k / ceilings.fma_f32
    extra = passes * 8 * m * n / ceilings.bandwidth
    print(f"{name:30} K = {k:4}: {passes} passes take {extra / product:5.0%} of the product's time")

# %% [markdown]
# So the answer depends on *K* alone. For a deep product fusing saves some per cent. For attention's scores the passes
# take longer than the product. And *F* is the rate of float32 units: where tensor cores multiply ten times as fast, the
# ridge is ten times as high, and so is the share.
#
# ## The reference
#
# It takes any leading dimensions, and broadcasts them as `numpy.matmul` does.

# %%
show(fused.reference)

# %% [markdown]
# ## The first rung, `separate`: a launch for each thing
#
# Begin as one would with a library that has only products of two matrices: a launch for each product, and then a pass
# over all of *C* for each step of the epilogue. The product's kernel is that of
# chapter 36, up to what we change below. A pass is this one, made for one step:

# %%
show(fused.pass_kernel)

# %% [markdown]
# As an example we take attention's scores. For each head, the queries of a sentence (a row for each token) are
# multiplied by its keys (a column for each token). The product is scaled, and a mask is added, the same for all rows.

# %%
rng = np.random.default_rng(39)
heads, tokens, width = 12, 20, 16  # BERT: 12, up to 512, 64
queries = rng.standard_normal((heads, tokens, width), dtype=np.float32)
keys = rng.standard_normal((heads, width, tokens), dtype=np.float32)
mask = np.where(np.arange(tokens) < 15, 0, -1e9).astype(np.float32)
scores = queries, keys, None, mask, None, width**-0.5
counted = {"separate": lab.count(fused.separate, *scores)}
print("off by at most", abs(device.to_host(counted["separate"].result) - fused.reference(*scores))[..., :15].max())

# %% [markdown]
# **Predict, then run.** How many kernels did this launch?

# %%
guess = None  # launches

predict(guess, len(counted["separate"].reports), unit="launches", exact=True)

# %% [markdown]
# A launch for each head, one to scale, one for the mask. On a GPU each costs about a microsecond even in a graph
# ([chapter 22](22_launches.ipynb)), and there is a worse cost. For a product of 128 x 64 x 128 the model of chapter 36
# chooses tiles of 32 x 32, which are sixteen. So sixteen multiprocessors of 132 have a block, and the next product
# waits until they are done.

# %%
print("Still wrong:", fused.separate.leaves)

# %% [markdown]
# ## The second rung, `batched`: one grid for all products
#
# The products do not depend on each other, so one launch can have the blocks of all. A block finds its tile as before,
# and the number of its product besides. What it needs then is where that product's matrices begin.
#
# *Strides* say that, for matrices as they say it for elements: the number of elements from one matrix to the next. Each
# operand has its own, and nothing demands that matrices lie one behind the other:
#
# - A stride of 0 repeats a matrix. That is how one weight serves a whole batch: broadcasting costs no byte.
# - A transposed view only exchanges the strides of rows and columns. Chapter 36 has a reader for that order.
# - A slice of a larger array has the strides of that array.
#
# This function runs once in each thread. `steps` has the strides of the leading dimensions, the innermost first.

# %%
show(fused.begins)

# %% [markdown]
# Real layers are full of such views. A transformer computes the queries, keys and values of all heads with one product.
# So they lie side by side in one array of shape (sentences, tokens, 3, heads, width). The queries of a head are a
# matrix in it with a row for each token.
#
# **Predict, then run.** BERT has 12 heads of width 64. How many elements lie between the beginnings of two rows that
# follow each other in the matrix of one head's queries?

# %%
guess = None  # elements

everything = np.empty((1, 128, 3, 12, 64), np.float32)  # a sentence of 128 tokens
predict(guess, everything.strides[1] // everything.itemsize, unit="elements", exact=True)

# %% [markdown]
# Only 64 of them belong to the matrix. A library that wants matrices without gaps would copy first, and the copy would
# read and write all that the product reads. Here the kernel reads them where they lie: the keys, transposed, as well.

# %%
sentences = 2
everything = rng.standard_normal((sentences, tokens, 3, heads, width), dtype=np.float32)
memory, step = device.to_device(everything), [stride // 4 for stride in everything.strides]
rows = strided(memory, (sentences, heads, tokens, width), (step[0], step[3], step[1], step[4]))
columns = strided(memory, (sentences, heads, width, tokens), (step[0], step[3], step[4], step[1]), first=step[2])
found = device.to_host(fused.batched(rows, columns))
expected = np.einsum("bihw,bjhw->bhij", everything[:, :, 0], everything[:, :, 1])
print(found.shape, "off by at most", abs(found - expected).max())

# %% [markdown]
# Two things are done before the launch, on shapes alone. Leading dimensions that follow each other in all operands are
# merged into one, so that a block divides less. And if one *B* serves all, and the rows of *A* simply go on from a
# matrix to the next, there is no batch at all: it is one product with more rows.

# %%
x, weight = np.ones((8, 128, 768), np.float32), np.ones((768, 64), np.float32)
shape = fused.arguments(x, weight).shape
print(f"{x.shape} @ {weight.shape}: {shape.count} product of {shape.m} x {shape.k} x {shape.n}")
shape = fused.arguments(rows, columns).shape
print(f"{rows.shape} @ {columns.shape}: {shape.count} products, steps {shape.steps}")

# %% [markdown]
# When does batching win? When one product alone does not fill the GPU. The figure divides the time that the cost model
# of chapter 36 expects for one launch each by that for one launch for all. Turn the side of the matrices.


# %%
def gain(side, count, multiprocessors=132):
    """How many times as long the model expects separate launches to take; at least so many as keep it busy."""

    def cycles(products):
        shape = fused.Shape(products, side, side, side, (side, 1), (side, 1), (0, 0), None)
        plan = fused.plan_for(shape, multiprocessors, (1,), fitted.TILES)
        rows = products * blocks(side, plan.tile.m) * plan.tile.m
        return fitted.cycles(plan, rows, side, side, multiprocessors)

    return count * cycles(1) / cycles(count)


# %%
def draw(side):
    (figure, ax), counts = chart(3.2), [2**i for i in range(13)]
    ax.plot(counts, [gain(side, count) for count in counts], "o-", color=palette.OWN)
    ax.set(xscale="log", yscale="log", xlabel="products", ylabel="time of separate launches / of one", ylim=(0.8, 1000))
    ax.set_title(f"products of {side} x {side} x {side}, 132 multiprocessors, by the model", loc="left")
    return figure


# %%
side = 128  # another number here, or the slider

knobs.turn(draw, side=(side, (16, 32, 64, 128, 256, 512, 1024, 2048)))

# %% [markdown]
# For one product there is nothing to gain. Then the gain rises with the number of products, as long as multiprocessors
# are idle, and becomes flat when all of them have all blocks that they can hold. For products of 2048 x 2048, each of
# which fills the GPU, it stays near 1. The model leaves out what the launches cost, which comes on top. It also takes
# launches to follow each other one by one, as they do in a stream.
#
# ## The third rung, `one_pass`: steps that share a pass
#
# Now the epilogue. Scaling, residual, bias and activation each were a pass. But what a pass does to an element needs no
# other element. So one pass can do all steps while the element is in a register.
#
# **Predict, then run.** A layer has an *M* x *N* result, a scale, a residual, a bias and a GELU. How many times as many
# bytes does `batched` write as a kernel that writes *C* once?

# %%
guess = None  # times

a, b = rng.standard_normal((64, 32), dtype=np.float32), rng.standard_normal((32, 96), dtype=np.float32)
bias, residual = rng.standard_normal(96, dtype=np.float32), rng.standard_normal((64, 96), dtype=np.float32)
layer = a, b, bias, residual, "gelu", 0.5
written = lab.count(fused.batched, *layer).counters["global_store_bytes"]
predict(guess, written / residual.nbytes, unit="times", exact=True)  # the residual is as large as C

# %%
for rung in (fused.batched, fused.one_pass):
    counted = lab.count(rung, *layer)
    sectors = {name: counted.counters[f"global_{name}_sectors"] for name in ("load", "store")}
    print(f"{rung.name:9} {len(counted.reports)} launches, sectors of 32 bytes: {sectors}")
print(f"C has {64 * 96 * 4 // 32} sectors, A and B together {(64 + 96) * 32 * 4 // 32}")

# %% [markdown]
# The passes of this epilogue are steps of one program, and the program is chosen when the kernel is made. The factory
# takes a description of the epilogue, and what is not wanted leaves no instruction behind. The activation is a device
# function, and may be your own.

# %%
show(fused.finisher)


# %%
@cuda.jit(device=True)
def squared_relu(value):
    return value * value if value > 0 else value - value  # a NaN stays one


y = device.to_host(fused.one_pass(a, b, bias, activation=squared_relu))
print("off by at most", abs(y - np.maximum(a.astype(np.float64) @ b + bias, 0) ** 2).max())

# %% [markdown]
# ## The fourth rung, `epilogue`: finish in the product's kernel
#
# One pass is left, and it should not be there: before the product's kernel wrote an element of *C*, it had the element
# in a register. So let it finish the element there. This is what the formula's bound allows: *C* is written once, and
# never read.
#
# The kernel of chapter 36 takes its sums through shared memory, so that neighbours write neighbours. At that point a
# thread has four elements of a row. It reads the four of the residual, and the bias of its columns, which stays the
# same for all rows that it writes.

# %%
form = fused.Form(
    fused.Operand(True, 4, False), fused.Operand(False, 4, False), fused.Epilogue(True, 4, 4, fused.gelu), 1
)
kernel = fused.product_kernel(fitted.SMALL, form)
show(kernel)

# %% [markdown]
# **Predict, then run.** Beyond *A* and *B*, as often as the tiles need them, what does this kernel read? Count in units
# of the size of *C*, and leave out the bias, which is small.

# %%
guess = None  # sizes of C

plain, fused_one = lab.count(fused.batched, a, b), lab.count(fused.epilogue, a, b, None, residual, "gelu", 0.5)
more = fused_one.counters["global_load_sectors"] - plain.counters["global_load_sectors"]
predict(guess, more * 32 / (4 * 64 * 96), unit="sizes of C", exact=True)

# %%
for rung in (fused.batched, fused.one_pass, fused.epilogue):
    counted = lab.count(rung, *layer).counters
    bytes_moved = 32 * (counted["global_load_sectors"] + counted["global_store_sectors"])
    print(f"{rung.name:9} {bytes_moved / (4 * 64 * 96):5.2f} sizes of C")

# %% [markdown]
# The residual alone: it has to be read by somebody. The counts of all three rungs have the bias in them, too.
#
# The next figure puts numbers on it for every *K*. A line is the time that passes take, as a share of the product's, by
# the formula at the beginning. Where the record has times, marks are what fusing really saved: the time of `batched`
# and of `one_pass` beyond that of `epilogue`, divided by the product's bound.


# %%
def saved():
    (figure, ax), depths = chart(3.6), np.array([2**i for i in range(4, 13)])
    marks = {"batched": (2, "o", "-"), "one_pass": (1, "s", "--")}  # passes of a bias and a GELU
    for (name, (passes, mark, line)), colour in zip(marks.items(), plots.COLOURS, strict=False):
        ax.plot(depths, passes * 4 * ridge / depths, line, color=colour, label=f"{name}, formula")
        for (family, _, who), entry in times.items():
            if (family, who) == ("depth", name):
                least = times[family, entry.workload, "epilogue"].seconds
                share = (entry.seconds - least) / (entry.flops / ceilings.fma_f32)
                ax.plot(entry.sizes["k"], share, mark, color=colour, label=f"{name}, measured")
    ax.set(xscale="log", yscale="log", xlabel="K", ylabel="time of the passes / of the product")
    ax.axhline(0.1, color=palette.INK, lw=1)
    handles = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))  # one for all marks of a rung
    figure.legend(handles.values(), handles, loc="outside right upper")
    foot(figure, source)
    return figure


saved()

# %% [markdown]
# Both lines fall as 1 / *K*. The thin line is a tenth. Left of the crossing, fusing is most of what one can gain; far
# to the right, a better tile is worth more. The marks lie below their lines: fusing saves less than the formula says.
# Two things can be the cause. A pass finds a part of *C* still in the cache. And `epilogue` has to finish the elements,
# too, which takes some time in its own kernel. Where *K* is large, the difference is small beside the product. A mark
# is missing where `epilogue` even took longer than the rung with passes.
#
# ### Adding to what is there
#
# `accumulate=True` adds to what `out` held, as gradients do. It costs no more than a residual. Two rules of the BLAS
# deserve to be kept. With `beta = 0` the old content is not read: 0 times NaN would be NaN, and memory that nobody has
# written may well hold one. And a residual may not overlap `out` in any other way, since another block may have written
# there already.

# %%
out = device.to_device(np.full((64, 96), np.nan, np.float32))
fused.epilogue(a, b, beta=0, accumulate=True, out=out)
fused.epilogue(a, b, alpha=-1, accumulate=True, out=out)
print("A B - A B, added in two calls:", abs(device.to_host(out)).max())

# %% [markdown]
# ## The fifth rung, `split_k`: finish what was split
#
# The fourth rung has lost something. Chapter 36 split a long sum over several blocks. Now no block has a whole sum, and
# a part cannot be finished.
#
# **Predict, then run.** A sum is split into two parts, -3 and 5. The bias is 1, and the activation a ReLU. By how much
# is the result too large if each part is finished by its block, and the results are added?

# %%
guess = None  # too large by

parts, one_bias = np.array([-3.0, 5.0]), 1.0
predict(guess, np.maximum(parts + one_bias, 0).sum() - max(parts.sum() + one_bias, 0), exact=True)

# %% [markdown]
# A bias in each part is added twice, and the ReLU has hidden what the first part would have taken off. The second
# launch, which adds the parts, is the first to have whole sums. So the epilogue belongs there.
#
# **Your turn.**

# %%
exercise("fused/finish_once")


# %%
@cuda.jit
def finish_once(partials, bias, residual, alpha, out):
    pass  # your code


check("fused/finish_once", finish_once)

# %% [markdown]
# The room's kernel is the one that adds parts in chapter 36, with the same call of `finished` in its last line as in
# the product's kernel. The product's kernel is made without an epilogue then.

# %%
long = rng.standard_normal((6, 600), dtype=np.float32), rng.standard_normal((600, 8), dtype=np.float32)
counted = lab.count(fused.split_k, *long, bias[:8], None, "relu")
print([report.kernel for report in counted.reports], [report.grid[0] for report in counted.reports])
error = abs(device.to_host(counted.result) - fused.reference(*long, bias[:8], None, "relu"))
print("off by at most", error.max(), "allowed", fused.tolerance(*long, bias[:8], None, "relu").max())

# %% [markdown]
# ## The sixth rung, `packed`: several products a block
#
# What is still wrong? Products that are smaller than the smallest tile. That has 32 x 32 elements and a depth of 32,
# and a block of 256 threads.
#
# **Predict, then run.** A product of 16 x 16 x 16 is computed with that tile. How many per cent of the multiply-adds
# are of use?

# %%
guess = None  # %

tile = fitted.SMALL
predict(guess, 100 * 16**3 / (tile.m * tile.n * tile.depth), unit="%", exact=True)

# %% [markdown]
# The rest multiplies zeros and rows that are read twice. And the threads: 16 x 16 elements, at 4 x 4 for each, are 16
# threads, half a warp. A block of so few threads would leave most places of a multiprocessor empty, because it holds
# only 32 blocks.
#
# So a block gets several products. `threadIdx.y` counts *teams*, and each team has a product, tiles in shared memory of
# its own, and as many threads as its tile needs. All teams do the same number of steps, because all products have the
# same *K*. So they can share the barriers.
#
# **Your turn**, with the smallest of tiles. Mind the last block.

# %%
exercise("fused/several_a_block")


# %%
@cuda.jit
def several_a_block(a, b, c, step_a, step_b):
    pass  # your code


check("fused/several_a_block", several_a_block)

# %% [markdown]
# The small tiles need no new kernel: the factory takes them as it takes the others, and the readers of chapter 36 work
# for a team as for a block, since they only ask for `threadIdx.x`.

# %%
print("tile      threads  products a block  shared memory of a block")
for tile in fused.PACKED:
    shared = fused.teams_of(tile) * 2 * tile.depth * (tile.m + 4 + tile.n) * 4
    print(f"{tile!s:10}{tile.threads:7}{fused.teams_of(tile):18}{shared / 1024:20.1f} KiB")


# %%
def instructions(side, tile):
    """Instructions of threads for one product of side x side x side, of 16 that are computed together."""
    p = fused.arguments(*(np.ones((16, side, side), np.float32) for _ in "ab"))
    made = fused.launch_of(fitted.plan_of(tile, side, 1), p.shape, fused.PLAIN, (True,) * 5)
    nothing, scale = np.zeros(1, np.float32), fused.Scale(np.float32(1), np.float32(0))
    a = np.ones(16 * side * side, np.float32)
    given = a, a, np.zeros_like(a), nothing, nothing, scale, made.sizes, p.shape.steps
    return simt.profile(made.kernel, made.grid, made.block, given).counters["thread_instructions"] / 16


# %%
sides = (4, 8, 16, 32)
table = {str(tile): [instructions(side, tile) for side in sides if side <= tile.m] for tile in fused.PACKED}
table["32 x 32, 256 threads"] = [instructions(side, fitted.SMALL) for side in sides]

# %%
figure, ax = chart(3.2)
for (name, values), colour, marker in zip(table.items(), plots.COLOURS, plots.MARKERS, strict=False):
    ax.plot(sides[: len(values)], values, marker + "-", color=colour, label=name)
ax.plot(sides, [side**3 for side in sides], ":", color=palette.INK, label="multiply-adds")
ax.set(xscale="log", yscale="log", xlabel="side of the matrices", ylabel="instructions of threads for a product")
ax.set_xticks(sides, sides)
ax.minorticks_off()
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# The interpreter counts operations of the source, so only the comparison means something. With the block's tile a
# product costs the same whatever its size: everything is computed, and most is thrown away. A team with a small tile
# that fits does several times less. The dotted line is what has to be computed at least.
#
# For these sizes memory is the bound: a product of *n* x *n* has 2 *n*^3 operations for 12 *n*^2 bytes, so *n* / 6
# FLOP a byte. The instructions only have to be few enough not to stand in its way.

# %%
print("n     FLOP/byte   the bound")
for n in (8, 16, 32, 64, 128, 256):
    least = roofline.bound(fused.cost(65536, n, n, n), ceilings)
    print(f"{n:4}{n / 6:10.1f}    {least.side}")

# %% [markdown]
# ## All rungs
#
# The design size is attention's scores in BERT: 64 sentences of 128 tokens with 12 heads each, scaled and masked. NumPy
# on the CPU of the same machine is beside them.

# %%
plots.drawn(plots.ladder, "fused")

# %% [markdown]
# One grid for all products is by far the largest step. Each pass that is left out gains again, and `epilogue` is ahead
# of PyTorch. The last two rungs change nothing here: *K* is short, and no product is smaller than a tile.
#
# Then a layer of 4096 x 4096 outputs with bias and GELU, from *K* = 16 to 4096: memory is the bound on the left, and
# arithmetic on the right. The difference between the rungs is the passes over *C*.

# %%
plots.drawn(plots.sweep, "fused", family="depth", xlabel="K", title="4096 x K times K x 4096, bias and GELU")

# %% [markdown]
# On the left the rungs lie apart, and those without a pass are the fastest. On the right they meet, since there the
# product takes nearly all of the time, and PyTorch's product is some per cent faster.
#
# And small products: as many of each size as have the same bytes.

# %%
plots.drawn(plots.sweep, "fused", family="small", xlabel="side n", title="many products of n x n x n")

# %% [markdown]
# `packed` is ahead of the tiles of `split_k` everywhere, and of the library. The smaller the matrices are, the further
# all three stay below the memory's rate.
#
# ## What to take along
#
# - A pass over *C* costs four times the ridge, divided by *K*, of the product's time. That says whether fusing pays off
#   before anything is written.
# - A fused epilogue moves nothing but what it reads besides: finish a value while you have it in a register.
# - The epilogue of a split sum runs once, where the parts are added. Only what is linear may be done to parts.
# - Batching wins where one product leaves multiprocessors idle. Strides describe the batch: 0 repeats, gaps are slices,
#   and exchanged strides are a transpose, all without a copy.
# - A tile that is larger than the matrix computes mostly nothing. Give a block several products.
# - You need not choose: `matmul.matmul` takes all of this, vectors too, and hands it to the room that is made for it.
#
# To read on: the documentation of `cublasSgemmStridedBatched` and of cuBLASLt's epilogues, and Abdelfattah et al.,
# *Performance, design, and autotuning of batched GEMM for GPUs* (ISC 2016).
#
# ## Exercises
#
# The two exercises with a check stand above. More to try, without a check:
#
# 1. The softmax behind attention's scores needs whole rows of *C*. What would a tile need to be to fuse it?
# 2. Let the tile of 8 x 8 compute products of 12 x 12, and count its instructions. Why does `plan_for` not choose this
#    tile for them?
# 3. A gradient of the bias is the sum over the rows of *C*. Could an epilogue compute it? What about the order of its
#    additions?
#
# ## Answers
#
# **finish_once.** The loop over the parts comes first, and everything else once. *alpha* may be multiplied with the
# parts as well, because that is linear; nothing else may.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.matmul import fused_exercises as answers

show(answers.finish_answer)
assert check("fused/finish_once", answers.finish_answer)

# %% [markdown]
# **several_a_block.** The product's number is that of the block times the teams of a block, and the team's. The guard
# is about products: rows and columns always fit.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.teams_answer)
assert check("fused/several_a_block", answers.teams_answer)

# %% [markdown]
# *Softmax.* A block would need whole rows: its tile as wide as *C*. For 128 tokens that is possible, for 4096 not. What
# then helps is to keep a running maximum and a running sum over tiles, which is how FlashAttention goes on.
#
# *12 x 12 in tiles of 8 x 8.* The kernel would compute them: a team can have a tile of a larger product. But a product
# of four tiles reads its operands twice, and the larger tile does it in one.
#
# *Sums over rows.* Each block has the sums over its rows, and those of several blocks have to be added: by atomics in
# any order, or in a second launch in a fixed one. It is no function of one element, so it is no epilogue of this room.
#
# Go on with [chapter 40](40_tensor_cores.ipynb), on units that multiply whole matrices.
