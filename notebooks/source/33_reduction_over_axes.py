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
# # 33. Reduction over axes
#
# *Axes and strides, which threads may share a result, states of more than one number, variance in one pass, the place
# of a maximum, kernels made for an operator, a plan from the shape. Read chapters [16](16_transpose.ipynb),
# [22](22_launches.ipynb) and [30](30_reduction.ipynb) before. 70 minutes. PMPP 4e: chapter 10, section 6.1; 5e:
# chapter 10, sections 6.1 and 6.3.*
#
# [Chapter 30](30_reduction.ipynb) made one number of a vector. Programs ask for more: the mean of each colour of a
# photograph, the best class for each image of a batch, the variance of each channel. The array has several axes, some
# of them are reduced, and the others stay.
#
# **The question of this chapter: what do the axes change?** Each element is still read once, and used once. So the
# bound is the same whatever is reduced. But the elements that belong to one result may be neighbours in memory, or a
# million places apart; and there may be one result or a hundred million. The code is the room
# [pmpp/kernels/reduction/over_axes.py](../pmpp/kernels/reduction/over_axes.py), with its operators in
# [pmpp/kernels/reduction/operators.py](../pmpp/kernels/reduction/operators.py).

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels.reduction import operators, over_axes, states
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The question, on a photograph
#
# A photograph has the axes *height*, *width* and *colour*. In memory the three colours of a pixel are neighbours.
# Three reductions of it ask for three different orders of reading.

# %%
photograph = data.photograph().astype(np.float32)
small = np.ascontiguousarray(photograph[100:228, 150:310])  # a part that the interpreter reads quickly
print("the photograph:", photograph.shape, " the part:", small.shape)
for axis, meaning in ((2, "the brightness of each pixel"), (1, "the colours of each row"), ((0, 1), "one colour")):
    result = device.to_host(over_axes.planned(small, axis, "mean"))
    print(f"mean over axis {axis!s:6}: shape {result.shape!s:10} {meaning}")

# %% [markdown]
# ## The bound
#
# Whatever the axes are, $n$ elements are read and $r$ results are written. The sum does $n - r$ additions. That is at
# most a quarter of an operation for each byte, far below the ridge of any GPU: the memory is the limit.


# %%
def bound(shape, axis):
    results = np.empty(shape, np.bool_).any(axis=axis).size
    cost = over_axes.cost(int(np.prod(shape)), results)
    print(f"{shape!s:22} over {axis!s:9}: {cost.flops:11,} FLOP, {cost.bytes:12,} bytes", end="")
    try:
        least = roofline.bound(cost, roofline.ceilings("reduction"))
        print(f", at least {least.seconds * 1e6:.3g} us, set by {least.side}")
    except record.RecordError as missing:
        print(f"; {missing}")


bound((65536, 1024), 1)
bound((65536, 1024), 0)
bound((256, 64, 112, 112), (0, 2, 3))

# %% [markdown]
# ## The reference
#
# The reference moves the reduced axes to the end, makes a matrix of the array, and reduces each row in float64. It is
# slow because it copies the array first. A kernel should leave the array where it is, and only read in another order.

# %%
show(over_axes.reference)

# %% [markdown]
# ## Every shape is three numbers
#
# Eight axes look like many cases. There are few. Two neighbouring axes that are both reduced are one axis of the
# product of their extents, since in C order one continues where the other ends. The same holds for two neighbours that
# both stay. An axis of one element joins either. What is left alternates: stay, reduce, stay. So one reduced axis is
# always the middle of an array *(outer, n, inner)*: there are `outer * inner` results, each of n elements, and these
# lie `inner` apart. The room calls this a *fold*.

# %%
for shape, axes in (
    ((600, 512, 3), (2,)),
    ((600, 512, 3), (1,)),
    ((600, 512, 3), (0, 1)),
    ((256, 64, 112, 112), (0, 2, 3)),
):
    print(f"{shape!s:20} over {axes!s:10}", *over_axes.folds_of(shape, axes))

# %% [markdown]
# The last line has two folds: reduced axes with one between them that stays. They are done one after another. The
# longest comes first, so that the second has little left to read.
#
# **Predict, then run.** How many folds does the sum of an array (8, 1, 5, 3, 2, 7) over the axes 0, 2, 3 and 5 need?

# %%
guess = None  # folds

predict(guess, len(over_axes.folds_of((8, 1, 5, 3, 2, 7), (0, 2, 3, 5))), unit="folds")

# %% [markdown]
# Axis 1 has one element, and so it separates nothing: the axes 0 to 3 are one axis of 120 elements. Axis 4 stays, axis
# 5 is reduced.
#
# ## Rung 1: `thread_per_result`
#
# A thread computes one result. From its number i it finds $a$ = `i // inner` and $b$ = `i % inner`, and then walks
# along the axis in steps of `inner`. The kernel stands in a function, for a reason that comes below: read `combine` as
# an addition, and `fetch` as `x[...]`.

# %%
show(over_axes.thread_kernel)

# %% [markdown]
# Is this slow? That depends on who reads what at the same moment. A warp's load is served in sectors of 32 bytes
# ([chapter 16](16_transpose.ipynb)). With `inner` = 1, the rows, lane 0 reads element 0 and lane 1 element n.
#
# **Predict, then run.** The array has 512 rows of 16 float32. How many sectors does one load of a warp touch when rows
# are summed (axis 1), and how many when columns are (axis 0)?

# %%
guess = {"axis 1": None, "axis 0": None}  # sectors for each load of a warp

matrix = np.ones((512, 16), np.float32)
naive = {f"axis {axis}": lab.count(over_axes.thread_per_result, matrix, axis).counters for axis in (1, 0)}
each = {name: count["global_load_sectors"] // count["global_load_requests"] for name, count in naive.items()}
predict(guess, each, unit="sectors")

# %% [markdown]
# Along the rows every lane has a sector of its own, of which it uses 4 bytes of 32. Along the columns the lanes read
# neighbours: 16 columns are 64 bytes, two sectors, and half of the warp has nothing to do.
#
# So there are two directions, and each wants other threads to share a result:
#
# | | rows: `inner` = 1 | columns: `inner` > 1 |
# |---|---|---|
# | neighbours in memory belong to | the same result | different results |
# | neighbouring lanes take | elements of one result | one result each |
# | and in the end | must agree: shuffles | have nothing to agree on |
#
# ## What is combined: a state
#
# Before the threads share results, what is it that they share? For a sum, a number. For the *place* of the largest
# element, two: the value, and where it was. For a variance, three. Let us call what a thread carries the *state*. An
# operator then is three device functions: `load` makes a state of an element, `combine` makes one state of two, and
# `finish` makes the result of the last state. Beside them stands the identity, the state that changes no other.

# %%
for name in ("sum", "argmax", "var"):
    operator = operators.OPERATORS[name]
    print(
        f"{name:7} identity {operator.identity(np.dtype(np.float32))}, result {operator.result(np.dtype(np.float32))}"
    )
show(operators.larger)
show(operators.place_of_larger)

# %% [markdown]
# Two rules of NumPy are in these lines. If an element is NaN, the maximum is NaN. A comparison with NaN is false, so
# `a != a` asks for it. And of equal elements the *first* has its place returned. Threads meet the elements in any
# order, so `place_of_larger` compares the places where the values are the same. Then the order does not matter.
#
# `combine` must be *associative* and *commutative*: lanes take elements in turns, so neither the brackets nor the order
# are those of the array. A sum of floats is associative only up to rounding, and so its last bits depend on the
# brackets.
#
# ### A variance in one pass
#
# The variance is the mean of $(x - \bar{x})^2$. That seems to need two passes over the memory, one for the mean and
# one for the squares. There is the formula $\overline{x^2} - \bar{x}^2$, which needs one. The next figure has its
# error in float32 for 400 values with a variance of 1, at a growing distance from 0.


# %%
def squares_less_square(x):
    return np.float32((x * x).mean(dtype=np.float32)) - np.float32(x.mean(dtype=np.float32)) ** 2


rng = np.random.default_rng(33)
values, distances = rng.standard_normal((6, 400)), 10.0 ** np.arange(6)
moved = (values + distances[:, None]).astype(np.float32)
exact = moved.astype(np.float64).var(axis=1)
formula = np.array([squares_less_square(row) for row in moved])
joined = device.to_host(over_axes.planned(moved, 1, "var"))

# %%
figure, ax = chart(3.6)
tiny = 1e-9  # so that an error of 0 has a place on a logarithmic axis
for label, found, k in (("mean of squares - square of mean", formula, 1), ("joined moments", joined, 0)):
    error = np.maximum(abs(found - exact) / exact, tiny)
    ax.loglog(distances, error, color=palette.COLOURS[k], marker=palette.MARKERS[k], ls=palette.LINES[k], label=label)
ax.set(xlabel="mean of the values", ylabel="relative error of the variance")
ax.legend()
figure

# %% [markdown]
# At a mean of $10^4$ the formula has no right digit: two numbers near $10^8$ are subtracted, and float32 has seven
# digits. The other line stays below $10^{-3}$ even at $10^5$, where float32 that are neighbours lie 0.008 apart, and
# every mean on the way is rounded to one of them. What does it do? Its state is the count, the mean, and M2, the sum
# of squared deviations from that mean. For two sets of values these can be *joined* exactly: if the means differ by a
# step d, then both sets are further from the common mean than from their own, and M2 grows by $d^2 n_a n_b / (n_a +
# n_b)$ (Chan, Golub and LeVeque, 1983). With one value in the second set it is Welford's method.

# %%
show(operators.joined_moments)

# %% [markdown]
# A division for each element would be expensive. But the kernels below combine the elements of four loads in a tree
# before they join them with the rest. In the tree the two sets always have the same count, so `share` is 1/2, and the
# compiler knows it. One division is left for four elements, or for sixteen where a load has four.
#
# ### A kernel for an operator
#
# Numba compiles device functions into the kernel that calls them. A kernel cannot be given one at launch. So each
# kernel of the room is made by a function that takes the operator, and is kept: the first call compiles, which takes a
# second, and the next ones find it. How states are stored is separate from what they mean. `len(state)` is known when
# the kernel is compiled, so only one branch is left of this function:

# %%
show(states.from_lane)

# %% [markdown]
# Operators of your own need no more than a device function and an identity. Here are the bits that all elements of a
# column have in common.


# %%
@cuda.jit(device=True)
def common_bits(a, b):
    return a & b


words = rng.integers(0, 2**20, (200, 3), dtype=np.int32) | np.int32(0b1001)
common = operators.operator_of(common_bits, np.int32(-1))
print("by the room:", device.to_host(over_axes.planned(words, 0, common)))
print("by NumPy:   ", np.bitwise_and.reduce(words, axis=0))

# %% [markdown]
# ## Rung 2: `coalesced`
#
# A row gets a warp. Its lanes read neighbours, and at the end they combine their states by shuffles, as in
# [chapter 30](30_reduction.ipynb). Columns keep a thread each: there, neighbouring threads read neighbours already.

# %%
show(over_axes.warp_kernel)

# %%
for rung in over_axes.LADDER[:2]:
    counters = lab.count(rung, matrix, 1).counters
    print(f"{rung.name:18} {counters['global_load_requests']:4} requests, {counters['global_load_sectors']:5} sectors")

# %% [markdown]
# Now the 8,192 elements are read in 1,024 sectors, which is all that there are. There are twice as many requests,
# though: a row of 16 keeps only half of its warp busy.
#
# What is left? A million results are enough threads for any GPU. But the mean of each colour of a photograph is three
# threads, and a sum over everything is one warp.
#
# ## Rung 3: `block_per_result`
#
# A block shares a row. Its warps make a state each, and these are combined through shared memory. For columns a block
# takes a tile of 32, and its eight warps take every eighth element. So a column has eight states in the end. They are
# combined in a tree in shared memory, half of the rows of the tile at a time.

# %%
show(over_axes.rows_kernel)

# %% [markdown]
# This kernel serves all rungs from here on, so it can do more than this one needs: `width` is 1 here, a row has one
# part, and a team is the whole block. Two things in it are worth a look.
#
# The team walks in steps of four loads. A load takes hundreds of cycles to arrive. Four that are under way at the same
# time take hardly longer than one. At the end of a row there may be less than four left. The obvious loop makes them
# one by one, and pays the latency up to three times. `three` makes all three nevertheless, of a place that exists, and
# replaces what does not belong by the identity.

# %%
show(states.row_loads)

# %% [markdown]
# The shuffles stop at the size of the team: `distance` begins at half of its lanes. A team of eight that began at 16
# would combine rows with each other.
#
# ## Rung 4: `vectorised`
#
# The same with `width` = 4: a load of 128 bits has four neighbours ([chapter 4](04_vector_add.ipynb)). For columns
# they are four results, and a thread has four states. For rows they are four elements of one result.
#
# **Predict, then run.** 16 rows of 4,096 float32, and 256 threads for each of them. How many load requests do the
# eight warps make for a row with single elements, and how many with 128 bits?

# %%
guess = {"block_per_result": None, "vectorised": None}  # load requests for a row

long = np.ones((16, 4096), np.float32)
two = {rung.name: lab.count(rung, long, 1).counters for rung in over_axes.LADDER[2:4]}
predict(guess, {name: counters["global_load_requests"] // 16 for name, counters in two.items()}, unit="requests")

# %%
for columns in (4096, 1022):
    for rung in over_axes.LADDER[2:4]:
        counters = lab.count(rung, np.ones((16, columns), np.float32), 1).counters
        requests, sectors = (counters[f"global_load_{name}"] / 16 for name in ("requests", "sectors"))
        print(f"a row of {columns}: {rung.name:17} {requests:5.0f} requests, {sectors:6.1f} sectors")

# %% [markdown]
# With 4,096 elements a quarter of the requests is left, for the same sectors. With 1,022 elements wide loads even lose:
# there are more requests than before, and more sectors. Why? Such a row does not end at a multiple of 16 bytes, and the
# next one begins in the middle of a load. So the full loads begin at the first multiple in the row. On either side are
# up to three elements, which are read by single lanes. All threads of the block take part in every load, needed or not:
# 256 threads with three full loads could read 3,072 elements. A block is too much for such a row, and that is a fault
# that is still open.
#
# ## Rung 5: `split`
#
# One row of a hundred million elements is one block, and three columns are one block, too. The others of the GPU's
# multiprocessors wait. So several blocks share a result. Each leaves its state, and a second launch combines these.
# Atomics would need no second launch. But they add in the order in which blocks end, and there is no atomic for a
# state of three numbers.
#
# How many parts? The memory has to be kept busy: bytes on their way = bandwidth x latency. For 4 TB/s and a
# microsecond these are 4 MB. A block of 256 threads with four loads of 16 bytes has 16 KB on the way, so 256 blocks
# would do if they were always loading. The room asks for twice that.

# %%
show(over_axes.parts_of)
print(over_axes.WANTED, "blocks,", over_axes.WANTED * 256 * 64 / 2**20, "MiB on the way")

# %% [markdown]
# The number depends on the shape alone, and not on the GPU. So do the brackets of a sum, as long as the array begins at
# a multiple of 16 bytes: elsewhere, wide loads begin elsewhere, too. The same call has the same bits in every run, and
# more multiprocessors do not change them. Here is the variance of 40,000 values, by one block and by several:

# %%
many = (rng.standard_normal(40_000) + 3).astype(np.float32)
for rung in (over_axes.vectorised, over_axes.split):
    counted = lab.count(rung, many, None, "var")
    launches = ", ".join(f"{run.kernel} with {run.grid[0]} blocks" for run in counted.reports)
    print(f"{rung.name:10} {float(counted.result):.9f}  {launches}")
print(f"float64    {many.astype(np.float64).var():.9f}")

# %% [markdown]
# ## Rung 6: `planned`
#
# The last rung has as many threads for a result as there is work for. It has three cases more.
#
# **Teams.** A row of 36 elements has nine loads, and four lanes for them. A longer row gets more lanes, so that none
# has more than 16 loads, up to a warp. More than a warp share a row only where the rows are too few to keep the GPU
# busy.
#
# **Narrow columns.** Three columns leave 29 lanes of a warp idle. But an array of three columns is one long row, too.
# A block reads whole rows side by side, as many as make full loads. The number of elements that it reads at a time is
# a multiple of three, so each thread meets the same columns again at every step.

# %%
tall = small[:40].reshape(-1, 3)
for rung in over_axes.LADDER[3:]:
    counters = lab.count(rung, tall, 0).counters
    lanes = counters["global_load_bytes"] / counters["global_load_requests"]
    print(f"{rung.name:10} {counters['global_load_requests']:6} requests of {lanes:5.1f} bytes on average")

# %% [markdown]
# Each request has to be issued and waited for, however few bytes it asks for. Side by side, fewer than a thirtieth of
# the requests bring the same elements.
#
# **Short rows.** A row of 7 elements is less than two loads, and begins anywhere. Here a thread takes a whole row, but
# the block first copies all its rows to shared memory by loads of 128 bits, which neighbours make of neighbours. Then
# each thread reads its row there: strides do no harm in shared memory, unless they cause bank conflicts.

# %%
show(over_axes.short_kernel)

# %% [markdown]
# **Predict, then run.** A thread reads its row from shared memory element by element, so neighbouring lanes are n
# words apart. There are 32 banks. How many wavefronts does one load of a warp take for n = 7, and for n = 6?

# %%
guess = {"n = 7": None, "n = 6": None}  # wavefronts for each load from shared memory

counted = {f"n = {n}": lab.count(over_axes.planned, np.ones((1024, n), np.float32), 1).counters for n in (7, 6)}
conflicts = {name: c["shared_load_wavefronts"] // c["shared_load_requests"] for name, c in counted.items()}
predict(guess, conflicts, unit="wavefronts")

# %% [markdown]
# An odd stride visits all 32 banks before it comes back. With 6, lanes 0 and 16 are 96 words apart, a multiple of 32:
# they meet in a bank, and so do all other lanes that are 16 apart. Strides of 4, 8 and 16 would be worse: 16 words make
# 16 wavefronts. But such rows begin at multiples of 16 bytes, so `short_loads` reads them by 128 bits there, too. The
# length is known when the kernel is compiled, and so no loop over a row is left.
#
# ## The whole ladder
#
# Each of the next figures has one shape: rows, columns, the channels of feature maps, short rows, and three columns.
# The bars are shares of the roof, and the dashed line is the best library. (A share of a little more than 100 % is
# possible: see [chapter 30](30_reduction.ipynb).) The last figure leaves the first two rungs out, since three threads
# that walk down four million rows take too long to be measured.

# %%
plots.drawn(plots.ladder, "over_axes", family="rows")

# %%
plots.drawn(plots.ladder, "over_axes", family="columns")

# %%
plots.drawn(plots.ladder, "over_axes", family="channels")

# %%
plots.drawn(plots.ladder, "over_axes", family="short rows")

# %%
plots.drawn(plots.ladder, "over_axes", family="narrow columns")

# %% [markdown]
# Read them beside each other: each rung has a shape for which it is there.
#
# - *Rows* of 1,024 elements: a warp is good. The three rungs with a block are slower than that. Such a row is 16 bytes
#   for each of 256 threads, and then all of them wait for shuffles and a barrier. `planned` takes a few lanes again,
#   with many loads each.
# - *Columns:* 1,024 of them are few threads, and few blocks, too. Wide loads make even fewer. Only `split` fills the
#   GPU.
# - *Channels:* the first fold has 16,384 rows of 12,544 elements. Each rung gains something here, but for `split`:
#   there are blocks enough.
# - *Short rows:* a block for seven elements is the worst choice of all. The first rung does better than the four that
#   follow. Its lanes read 28 bytes apart, so the rows of a warp lie in 28 sectors, which it reads seven times: from the
#   cache, but for the first. `planned` reads them once, neighbours by neighbours.
# - *Three columns:* one block reads everything until `split` comes. `planned` reads side by side. What keeps it from
#   the roof is time that does not depend on the size: the work is only some microseconds, and the second launch takes
#   some, too.
#
# No single kernel is the fastest for all, and so a library needs a plan.
#
# How does the length of the rows change the picture? All of the next have $2^{26}$ elements.

# %%
shown = ("coalesced", "split", "planned", "torch.sum", "cupy.sum")
plots.drawn(plots.sweep, "over_axes", family="sweep", only=shown, xlabel="elements of a row")

# %% [markdown]
# A warp for a row is good in the middle: it is too much for short rows, and long rows are too few. `split` begins
# where a block has enough to do. `planned` stays near the roof from rows of four elements to rows of four million.
# Each of the libraries has lengths that its kernels were not made for.
#
# The next figure is the roofline for the first shape.

# %%
plots.drawn(plots.roofline, "over_axes", family="rows")

# %% [markdown]
# All stand above one another: the work and the bytes are the same, only the time differs. The memory is the bound for
# every operator of the room. It would not be for one whose `combine` takes a hundred operations: such a point would
# lie on the right of the ridge.
#
# Fewer bytes are less time, then. float16 and bfloat16 are combined in float32, and rounded once: `as_float` widens
# what it is given. A load of 128 bits brings eight elements of a row.

# %%
plots.drawn(plots.by_dtype, "over_axes", family="rows")

# %% [markdown]
# The dashed line is half of the time of float32. Along columns a thread would have eight states from one load, each
# with its registers. There it takes one element a load, and so 16 bits gain less.
#
# And NumPy, on the CPU?

# %%
plots.drawn(plots.cpu_gpu, "over_axes", xlabel="elements of a row")

# %% [markdown]
# NumPy has a loop for each row, and so rows of four elements cost it several times as much as long ones. The kernel's
# time hardly depends on how the same elements are divided into rows.
#
# ## What to take along
#
# Axes reduce to three numbers: *(outer, n, inner)*. `inner` says which threads may share a result, `n` how many
# should, and `outer * inner` whether that is enough for the GPU. What is combined is a state, and a state may have
# several numbers: then a variance needs one pass, and a place is found with its value. Parts that are combined by a
# second launch give the same bits every time.
#
# The functions of `pmpp.kernels.reduction` have NumPy's names and are the last rung of this chapter:
# `reduction.mean(x, axis=0)`, `reduction.argmax(x, axis=1, keepdims=True)`, `reduction.reduce(x, your_operator)`.
#
# ## Exercises
#
# ### 1. An axis in the middle

# %%
exercise("over_axes/middle")


# %%
@cuda.jit
def middle(x, out, outer, n, inner):
    pass  # your code


check("over_axes/middle", middle)

# %% [markdown]
# ### 2. What several blocks have left

# %%
exercise("over_axes/merge")


# %%
@cuda.jit
def merge(count, mean, square, out):
    pass  # your code


check("over_axes/merge", merge)

# %% [markdown]
# ### More, without a check
#
# - `common_bits` was combined in any order. Which of these operators may the room be given: the smaller one, the
#   difference, the average of two, the last one?
# - An array (4096, 4096) is reduced over both axes, and another time over one axis and then over the other. Which of
#   the two ways reads less? Use `over_axes.folds_of`.
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def middle_answer(x, out, outer, n, inner):
    i = cuda.grid(1)
    if i < out.size:
        a, b = i // inner, i % inner
        best = np.float32(-np.inf)
        for k in range(n):
            value = x[(a * n + k) * inner + b]
            if best == best and (value > best or value != value):  # once NaN, always NaN
                best = value
        out[i] = best


assert check("over_axes/middle", middle_answer)

# %% [markdown]
# *Middle.* Element k of result (a, b) is element `(a * n + k) * inner + b` of the vector. To take element
# `(a * inner + b) * n + k` instead is a mistake that hides well: every element would still be read once, none out of
# bounds, and where n or `inner` is 1 the results would be right.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def merge_answer(count, mean, square, out):
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = np.float32(0), np.float32(0), np.float32(0)
        for part in range(count.shape[1]):
            total = n + count[row, part]
            step, share = mean[row, part] - m, count[row, part] / total
            s += square[row, part] + step * step * n * share
            m += step * share
            n = total
        out[row] = s / n


assert check("over_axes/merge", merge_answer)

# %% [markdown]
# *Merge.* The first part is joined with an empty set: its count is 0, so the step counts for nothing. A mean of the
# parts' variances would be wrong twice: the parts have different counts, and their means are apart. The mean of the
# squares less the square of the mean can be had from the same three numbers. Near 0 it would be right, and `check` has
# one case that is not near 0.
#
# *Operators.* The smaller one is associative and commutative. The difference is neither, and the average of two is
# not associative: the average of 1, 2 and 6 would depend on the brackets. The last one is associative, and it is not
# commutative: with lanes that take turns the last lane need not have the last element. Give it the place as well, as
# `argmax` has it, and it becomes "the one with the largest place".


# %% jupyter={"source_hidden": true} tags=["answer"]
for axes in ((0, 1), (0,), (1,)):
    print(axes, *over_axes.folds_of((4096, 4096), axes))

# %% [markdown]
# *Two axes.* Both at once are one fold of 16,777,216 elements, which is read once. One after the other also reads what
# the first has left: 4,096 elements more, next to nothing. What they cost is another launch.
#
# Go on with [chapter 34](34_scan.ipynb), where all sums on the way are wanted, too.
