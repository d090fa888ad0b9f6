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
# # 38. Numerics
#
# *Formats and their bits, spacing, rounding, fused multiply-adds, the order of a sum, conditioning, compensation, wider
# accumulators, sums that are the same everywhere, mixed precision. Read chapters [20](20_memory_or_compute.ipynb) and
# [30](30_reduction.ipynb) before. 90 minutes. PMPP 4e: sections 5.1 and 10.2; 5e: sections 5.1 and 10.2. In both
# editions appendix A is on numerics, too. The code is
# [pmpp/kernels/numerics/ladder.py](../pmpp/kernels/numerics/ladder.py).*
#
# - **Objectives:** say what a floating-point format can hold; bound the error of a sum before it runs; tell a bad
#   method from a hard problem; choose a way to add, and say what it costs; make a result that is the same everywhere.
# - **Prerequisites:** chapters [20](20_memory_or_compute.ipynb) and [30](30_reduction.ipynb).
# - **Minutes:** 90 with the exercises.
#
# You run a program twice and the sums differ in the last digits. On a colleague's GPU they differ again. Nobody changed
# anything, and no test is red.
#
# **The question of this chapter: why do two runs, two GPUs or two grids give different sums, and which one is
# right?** We need to know what a float is, and how it is rounded. Then we climb a ladder in which each rung is nearer
# to the true sum than the one before, and see what that costs.

# %%
import math
import timeit

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import numerics
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The same numbers, many sums
#
# The numbers are those of chapter [30](30_reduction.ipynb): the brightness of each pixel of a photograph, less the
# mean. We add them up with the same kernel on grids of different sizes. Each thread adds its elements one after
# another, and a larger grid has more threads, so each of them has fewer elements.

# %%
pixels = (data.photograph() @ np.array([0.299, 0.587, 0.114])).astype(np.float32).ravel()
deviation = pixels - np.float32(pixels.mean(dtype=np.float64))


def total(rung, x, grid=None):
    """The sum of ``x`` by a rung, as a float32 on the host."""
    return device.to_host(rung(device.to_device(x), grid))[0]


for grid in (1, 2, 4, 8, 16):
    print(f"{grid:2} blocks: {total(numerics.one_after_another, deviation, grid):.7f}")

# %% [markdown]
# Not even the first digit is certain. A program that picks its grid by the number of multiprocessors, as most fast ones
# do, has another sum on another GPU. To see why, we begin with a single number.
#
# ## What a float is
#
# A float has three fields: a *sign*, an *exponent* and a *fraction*. A normal number is $\pm\, 1.f \times 2^{e}$. The
# 1 before the point is not stored, since it is always there: the *hidden bit*. The exponent is stored with a bias, so
# that 1.0 has a field half-way up.


# %%
def fields(x):
    """Sign, exponent and fraction of a float32, as bits."""
    word = f"{np.float32(x).view(np.uint32):032b}"
    return f"{word[0]} {word[1:9]} {word[9:]}"


for x in (1, -2, 0.5, 0.1, 2**24 + 1, 1e-45, 0, -0.0, np.inf, np.nan):
    print(f"{x!r:>10} is kept as {fields(x)}: {np.float32(x):.12g}")

# %% [markdown]
# Three lines need a word. 0.1 has no end in binary, so the nearest float32 is kept. 16,777,217 needs 25 digits, and a
# float32 has 24 with the hidden one: the last is lost. And 1e-45 has an exponent field of zeros, which stands for
# numbers without the hidden bit: *subnormal* ones. A field of ones is infinity, or NaN if the fraction is not 0.
#
# Formats differ in how many bits the two fields have. All that matters follows from that.

# %%
FORMATS = {"float16": (5, 10), "bfloat16": (8, 7), "tf32": (8, 10), "float32": (8, 23), "float64": (11, 52)}

print(
    f"{'format':9}{'exponent':>9}{'fraction':>9}{'epsilon':>10}{'largest':>10}{'smallest':>10}{'subnormal':>11}  digits"
)
for name, (exponent, fraction) in FORMATS.items():
    top = 2 ** (exponent - 1) - 1  # the largest exponent, and the bias
    largest, smallest = (2 - 2.0**-fraction) * 2.0**top, 2.0 ** (1 - top)
    digits = (fraction + 1) * math.log10(2)
    print(f"{name:9}{exponent:9}{fraction:9}{2.0**-fraction:10.2g}{largest:10.2g}{smallest:10.2g}"
          f"{smallest * 2.0**-fraction:11.2g}{digits:8.1f}")  # fmt: skip

# %% [markdown]
# - *Epsilon* is the distance from 1 to the next number. `smallest` is the smallest normal number.
# - bfloat16 is float32 with the lower half cut off: the same range, and between two and three digits.
# - float16 has more digits, and ends at 65,504. A gradient of a network is soon below its smallest number.
# - tf32 is no format of memory. Tensor cores read float32, and use this much of it.
#
# **Predict, then run.** Between 1 and 2 there are $2^{23}$ steps from one float32 to the next. How many are there
# between 1024 and 2048?

# %%
guess = None  # steps; you may write it as a power, 2**10

low, high = np.float32([1024, 2048]).view(np.int32)
predict(guess, int(high - low), unit="steps")

# %% [markdown]
# As many: each power of two has the same number of fractions above it. (The bits of positive floats, read as an
# integer, count them one by one. That is why the difference of two such integers is a number of steps.) So the steps
# double in size at each power of two.
#
# **Predict, then run.** How far is the next float32 above 1000?

# %%
guess = None  # a distance; you may write it as a power, 2**-10

predict(guess, float(np.spacing(np.float32(1000))), within=0.01)

# %% [markdown]
# 1000 lies between $2^9$ and $2^{10}$, and that stretch has $2^{23}$ steps: each is $2^{9-23}$. The distance to the
# next number is called a *unit in the last place*, or *ulp*. Here it is over the size of the number, for four of the
# formats.

# %%
figure, ax = chart(4.2)
sizes = 2.0 ** np.arange(-30, 31)
for name, style in zip(("float16", "bfloat16", "float32", "float64"), palette.LINES, strict=False):
    exponent, fraction = FORMATS[name]
    top = 2 ** (exponent - 1) - 1
    within = sizes[np.log2(sizes) <= top]
    steps = 2.0 ** (np.maximum(np.log2(within), 1 - top) - fraction)
    ax.step(within, steps, where="post", linestyle=style, label=name)
ax.set(xscale="log", yscale="log", xlabel="size of the number", ylabel="distance to the next one")
ax.plot(sizes, sizes, color=palette.FAINT, linewidth=1, label="as large as the number")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# Each format is a staircase that rises with the number: the *relative* distance stays about the same. A longer fraction
# is a lower staircase. float16 ends on the right, where the next number is infinity, and becomes flat on the left. The
# flat part is its subnormal numbers, which fill the gap around 0 with steps of one size.
#
# What that gap is like shows in a toy format with three exponent bits and two fraction bits.

# %%
normal = [(1 + f / 4) * 2.0**e for e in range(-2, 1) for f in range(4)]
subnormal = [f / 4 * 2.0**-2 for f in range(4)]

figure, ax = chart(1.9)
for height, numbers in ((1, subnormal + normal), (0, [0, *normal])):
    ax.hlines(height, 0, 1.75, color=palette.LIGHT)
    ax.plot(numbers, [height] * len(numbers), "|", markersize=16, color=palette.COLOURS[0])
ax.plot(subnormal, [1] * 4, "|", markersize=16, color=palette.COLOURS[1])
ax.set(yticks=[0, 1], yticklabels=["flushed to zero", "with subnormals"], ylim=(-0.6, 1.6), xlabel="number")
ax.grid(False)
figure

# %% [markdown]
# In the upper row the orange marks are subnormal, and the steps around 0 are as small as those of the smallest normal
# numbers. In the lower row they are missing. Then two numbers can differ although their difference is 0. GPUs compute
# with subnormals at full speed. They flush them only if they are told to, which is a part of `fastmath`.
#
# ## Rounding
#
# The rule of IEEE 754 for `+`, `-`, `*`, `/` and the root is short: compute the exact result, and take the float *next*
# to it. If two are equally near, take the one whose last bit is 0 (*to nearest, ties to even*). So one operation has a
# relative error of at most half an epsilon, $u = 2^{-24}$ in float32.
#
# **Predict, then run.** From $2^{24}$ = 16,777,216 on, the float32 are 2 apart. What are $2^{24} + 1$ and $2^{24} + 3$?

# %%
guess = (None, None)  # two numbers

big = np.float32(2**24)
predict(guess, (int(big + np.float32(1)), int(big + np.float32(3))))

# %% [markdown]
# Both are ties. The first goes down and the second up, each to a fraction that ends in 0. If ties always went up, long
# sums would drift upwards.
#
# A number too large for the format becomes infinity, and an operation without an answer becomes NaN: infinity less
# infinity, or 0 times infinity. NaN stays NaN, and is not even equal to itself. So a NaN in a result says that
# somewhere on the way something had no answer.
#
# ### One rounding or two
#
# A *fused multiply-add* computes `a * b + c` and rounds once, at the end. `a * b` is not rounded in between. GPUs have
# an instruction for it, `cuda.fma(a, b, c)`. For `a * b + c` the compiler uses the same, unasked, since it takes the
# time of one operation and its error is smaller. Our interpreter, as NumPy, does one operation after the other.


# %%
@cuda.jit
def once_kernel(a, b, c, out):
    out[0] = cuda.fma(a[0], b[0], c[0])


def fused(a, b, c):
    """a * b + c in float32, rounded once."""
    out = device.to_device(np.zeros(1, np.float32))
    once_kernel[1, 1](*(device.to_device(np.float32([one])) for one in (a, b, c)), out)
    return device.to_host(out)[0]


# %% [markdown]
# **Predict, then run.** `a` is $1 + 2^{-12}$, so its square is $1 + 2^{-11} + 2^{-24}$. Rounded to float32 it is $1 +
# 2^{-11}$. What do `a * a - p` and `fma(a, a, -p)` give, if `p` is that rounded product?

# %%
guess = {"a * a - p": None, "fma(a, a, -p)": None}  # numbers; you may write a power, 2**-10

a = np.float32(1 + 2**-12)
p = a * a
predict(guess, {"a * a - p": float(a * a - p), "fma(a, a, -p)": float(fused(a, a, -p))})

# %% [markdown]
# The first is 0. The second is what the rounding took away, exactly. It is always a float32, and an exercise will use
# it. It also explains why a kernel on a GPU and the same formula in NumPy can differ in the last bit, or in all of them
# where numbers cancel. Neither is a bug. A test that compares them has to allow for it.
#
# ## Sums, and what they lose
#
# A small number that is added to a large one loses its lower digits. If it is less than half an ulp, all of it is lost.
#
# **Predict, then run.** A loop in float16 adds 4096 ones. What does it get? (Its fraction has 10 bits.)

# %%
guess = None  # the sum

ones = np.ones(4096, np.float16)
predict(guess, int(ones.cumsum(dtype=np.float16)[-1]))

# %% [markdown]
# From 2048 on the float16 are 2 apart. 2048 + 1 is a tie, which goes to the even 2048, and there the loop stays. That
# is why no library adds up float16 in float16. The numbers lie in memory with 16 bits, and the sum is kept in 32:
# *mixed precision*. Here are ways to add 50,000 random numbers that have been rounded to float16.

# %%
source = np.random.default_rng(0).random(50_000)
values = source.astype(np.float16)
true = math.fsum(values)

print(f"rounding the numbers to float16 changes their sum by {abs(true / math.fsum(source) - 1):.1e} of itself")
for kept in (np.float16, np.float32, np.float64):
    loop = float(values.cumsum(dtype=kept)[-1])
    print(f"a loop that keeps the sum in {kept.__name__}: {loop:10.3f}, off by {abs(loop - true) / true:.1e}")

# %% [markdown]
# The numbers have only three digits each, and yet it pays to keep their sum in float32: their own roundings mostly
# cancel, and what a sum in float16 loses does not. The sum is worth more bits than the numbers. A rung below has the
# same idea, one format higher up.
#
# ## The bound
#
# Each number is read once: 4 bytes. What is done with it meanwhile is free, as long as the memory takes longer
# (chapter [20](20_memory_or_compute.ipynb)). One addition is a quarter of an operation a byte. How many could there be?


# %%
def room_to_spare():
    """How many float32 operations an element the GPU can do while it reads it."""
    ceilings = roofline.ceilings("reduction")
    return 4 * ceilings.ridge


def say(text, value):
    """Print a number that comes from the record, where it is known."""
    try:
        print(text.format(value()))
    except record.RecordError as missing:
        print(f"not measured yet: {missing}")


say("while it reads one float32, the GPU can do {:.0f} operations", room_to_spare)

# %% [markdown]
# That counts a multiply-add as two operations. A sum has additions only, so the number for it is half as large. It is
# still far more than one: there is room for better sums.
#
# ## The reference
#
# The judge has to be better than all rungs. `math.fsum` keeps every digit, and rounds once at the end.

# %%
show(numerics.reference)
print(f"the true sum of the deviations: {numerics.reference(deviation):.7f}")

# %% [markdown]
# ## Rung 1: `one_after_another`
#
# The rung that we began with. A thread reads four numbers at once and adds them to its own total. The totals of a block
# are added by shuffles, and then each block adds its sum to the result by an atomic.

# %%
show(numerics.one_after_another_kernel)

# %% [markdown]
# Follow one element. It is rounded when it is added, and again with each later addition to the same total. So the error
# is at most the number of additions that an element goes through, its *depth*, times $u$, times $\sum |x|$, which no
# partial sum exceeds. With $t$ threads the depth is $n / t$ in the loop, ten in the block, and one for each block.
#
# Two things are not in our hands. The grid decides how long the loops are. And blocks finish in some order, which
# decides over the last additions: atomics are safe, and come in any order. The interpreter always has the same order.
# Instead we shuffle the numbers, which a GPU's scheduler does to the blocks' sums.


# %%
def compare(*rungs, x=deviation):
    """The error of each rung, and how many different sums it has for ``x``, in 12 orders and on 6 grids."""
    orders = [np.random.default_rng(seed).permutation(x) for seed in range(12)]
    exact, size = numerics.reference(x), np.abs(x).sum(dtype=np.float64)
    for rung in rungs:
        error = abs(total(rung, x) - exact)
        in_orders = {total(rung, ordered).tobytes() for ordered in orders}
        on_grids = {total(rung, x, grid).tobytes() for grid in (1, 2, 3, 5, 8, 13)}
        print(f"{rung.name:18} off by {error:7.1e}, which is {error / size:.1e} of sum |x|;", end=" ")
        print(f"different sums: {len(in_orders):2} in 12 orders, {len(on_grids)} on 6 grids")


compare(numerics.one_after_another)

# %% [markdown]
# Measured against $\sum |x|$ the error is tiny. Measured against the sum it is large. More on that below.
#
# ## Rung 2: `tree`
#
# Chapter [30](30_reduction.ipynb) ended with a tree that is the same on every GPU: tiles of $2^{14}$ elements, whose
# sums are put down and added in the same way. It is imported, and given no grid.

# %%
show(numerics.tree)
compare(numerics.tree)

# %% [markdown]
# The depth is now about $\log_2 n$ at every size, and the grid has no say. Two runs give the same bits, and so do two
# GPUs. That is *determinism*, and for many purposes it is enough. But in another order of the numbers there is another
# sum, and none of them is exact. A sum that repeats is not a sum that is right.
#
# ### Whose fault is an error?
#
# The sum of the deviations is small, and its terms are not. Their ratio is the *condition number* of a sum:
#
# $$\kappa = \frac{\sum |x|}{\left|\sum x\right|}$$
#
# Change each number in its last bit, and the relative change of the sum is up to $\kappa u$. That holds for any
# way to add: it belongs to the *problem*. A method is called *stable* if it makes no larger an error than such a change
# would. Both rungs are stable. With $\kappa$ near $1 / u$ no digit need be right all the same.

# %%
for name, x in {"the pixels": pixels, "their deviations": deviation}.items():
    kappa = np.abs(x).sum(dtype=np.float64) / abs(numerics.reference(x))
    print(f"{name:17}: kappa {kappa:9.3g}, and kappa times u is {kappa * 2.0**-24:.1g}")

# %% [markdown]
# If the numbers themselves are measurements with an error of their own, nothing is to be gained here by a better sum.
# If they are exact, it pays. The next rungs are for that.
#
# There is a third case: a hard step that the method brings along, into a problem that is not hard. The best known is
# the variance as the mean of the squares less the square of the mean. Here it is for some pixels, with a constant added
# to each. That changes no variance.


# %%
def in_one_pass(x):
    """The mean of the squares less the square of the mean, in float32."""
    return (x * x).mean(dtype=np.float32) - x.mean(dtype=np.float32) ** 2


for level in (0, 100, 1000, 10_000, 100_000):
    x = pixels[:4096] + np.float32(level)
    about, wide = in_one_pass(x), x.astype(np.float64)
    print(f"{level:7} added: {about:12.4f} in one pass, {((wide - wide.mean()) ** 2).mean():10.4f} in truth")

# %% [markdown]
# Both terms are good to seven digits. When the square of the mean is $1/u$ times as large as the variance, their
# difference has none of these left: *catastrophic cancellation*. The subtraction is exact. It only shows what was
# rounded away before. Chapter [54](54_normalisation.ipynb) meets this in a network.
#
# ### Exercise: a variance that survives

# %%
exercise("numerics/variance")


# %%
@cuda.jit
def variance(x, out):
    pass  # your code


check("numerics/variance", variance)

# %% [markdown]
# ## Rung 3: `compensated`
#
# What does a rounding take away? It can be computed, by the same float32 operations (D. Knuth; W. Kahan had the idea of
# using it in 1965). Of `a + b` we know the rounded sum. Subtract `a` from it, and compare what is left with `b`.

# %%
show(numerics.two_sum)

# %% [markdown]
# In algebra the second number is always 0. In floating point it is the error of the first, without an error of its own.
#
# **Predict, then run.** What are the two numbers for `a` = $2^{24}$ and `b` = 3? (The sum was in a question above.)

# %%
guess = (None, None)  # the rounded sum, and what the rounding took away

total_of, of_b = big + np.float32(3), (big + np.float32(3)) - big
lost = (big - (total_of - of_b)) + (np.float32(3) - of_b)
predict(guess, (int(total_of), int(lost)))

# %% [markdown]
# The rounded sum is one too large, so the second number is -1, and the two add up to $2^{24} + 3$.
#
# The kernel keeps two numbers for each thread: the total, and the sum of all that was lost. Lanes and blocks exchange
# both. At the end they are added.

# %%
show(numerics.compensated_kernel)
compare(numerics.compensated)

# %% [markdown]
# No error is left. (The true sum happens to be a float32 here. Else the last rounding would remain.) What is lost is
# of the size of $u$, and is added up with relative errors of $u$ again. So the bound has $u^2$ in it: as if the sum
# had been computed with twice as many digits, and then rounded.
#
# May a compiler simplify `(a + b) - a` to `b`? By the rules of floats it may not, and Numba's compiler does not. C
# compilers have an option for it, `-ffast-math`, and with that the compensation is gone. There is no product here that
# could be fused with an addition either, so a GPU computes the same bits as the interpreter.
#
# ## Rung 4: `wider`
#
# The other way to have more digits is a format that has them. The numbers stay float32 in memory, and only the total
# is a float64. It takes one operation an element in the place of seven.

# %%
show(numerics.wider_kernel)
compare(numerics.wider)

# %% [markdown]
# What float64 costs depends on the GPU. The interpreter has a table of GPUs, with the rates of their data sheets. An
# addition takes as long as a multiply-add, which these rates count as two operations. And each number is converted to
# float64 first. The CUDA programming guide has a table of what a multiprocessor does in a cycle: 16 such conversions,
# or as many as it does float64 additions if those are fewer.


# %%
def wide_seconds(gpu):
    """The time of one float64 addition and one conversion, if the whole GPU does nothing else."""
    additions = gpu.fp64 / 2
    conversions = additions * min(16, gpu.architecture.fp64) / gpu.architecture.fp64
    return 1 / additions + 1 / conversions


chosen = [gpu for gpu in simt.GPUS if gpu.name in ("T4", "L4", "RTX 4090", "A100 80GB", "H200")]
print("          bandwidth   float64 additions   float32 is faster by")
for gpu in chosen:
    print(f"{gpu.name:10}{gpu.bandwidth / 1e12:4.2f} TB/s", end="")
    print(f"{gpu.fp64 / 2e12:16.2f} T/s{gpu.fp32 / gpu.fp64:17.0f} times")

# %% [markdown]
# **Predict, then run.** On which of these GPUs do the float64 additions and conversions of a sum take longer than
# reading the float32 numbers?

# %%
guess = {"T4": None, "L4": None, "RTX 4090": None, "A100 80GB": None, "H200": None}  # True or False

predict(guess, {gpu.name: wide_seconds(gpu) > 4 / gpu.bandwidth for gpu in chosen})

# %% [markdown]
# On one of them only. Even where float64 is 64 times slower it keeps up with the memory, if it is asked for one
# conversion and one addition for each number. The figure has the time of the arithmetic for each rung, as a multiple
# of the time to read. First we count the operations of the rungs.

# %%
rng = np.random.default_rng(1)
some, size = rng.random(2**15, dtype=np.float32), 2**15
work = {}
for rung in (numerics.one_after_another, numerics.compensated, numerics.wider):
    counters = lab.count(rung, some, 1).counters
    wide = counters["flops_f64"]
    work[rung.name] = (counters["flops"] - wide) / size, wide / size
    print(
        f"{rung.name:18} {work[rung.name][0]:5.2f} float32 and {work[rung.name][1]:.2f} float64 operations an element"
    )

# %%
figure, ax = chart(3.6)
for k, (name, (narrow, wide)) in enumerate(work.items()):
    reading = np.array([4 / gpu.bandwidth for gpu in chosen])
    computing = np.array([2 * narrow / gpu.fp32 + wide * wide_seconds(gpu) for gpu in chosen])
    places = np.arange(len(chosen)) + 0.27 * (k - 1)
    ax.bar(places, computing / reading, width=0.24, label=name, hatch=("", "//", "..")[k], edgecolor="white")
ax.axhline(1, color=palette.INK, linestyle="--", label="as long as reading")
ax.set_yscale("log")
ax.set_xticks(range(len(chosen)), [gpu.name for gpu in chosen])
ax.set(ylabel="time of the arithmetic, in times\nof reading the numbers")
ax.grid(False, axis="x")
figure.legend(loc="outside upper center", ncols=4)
foot(figure, "Computed: operations counted by the interpreter, rates and bandwidths from data sheets")
figure

# %% [markdown]
# A bar below the dashed line is arithmetic that nobody waits for: memory is the bound. `one_after_another` is far below
# it everywhere, and `compensated` is below it as well. `wider` is above it on the T4, and near it on the other GPUs for
# graphics. There compensation is the cheaper way. On the GPUs for computing centres the two cost about the same, and
# `wider` is simpler. (These are bounds. They leave out the instructions that load, count and exchange.)
#
# ### Exercise: a compensated dot product
#
# In a dot product the products are rounded, too. You need `two_sum` and `cuda.fma`.

# %%
exercise("numerics/dot")

# %%
from pmpp.kernels.numerics import two_sum


@cuda.jit
def dot(x, y, out):
    pass  # your code


check("numerics/dot", dot)

# %% [markdown]
# ## How the error grows
#
# A clock adds 0.1 seconds in each step. What does it show after n steps? Equal numbers are the worst case for a sum:
# for long stretches each addition is rounded in the same direction. Here are all rungs but the last, with a grid of
# one block, and beside them two sums of NumPy's on the CPU: a loop, and `sum`, which adds in pairs of short loops.

# %%
lengths = [3**k for k in range(6, 14)]
tenth = np.full(lengths[-1], 0.1, np.float32)
ways = {"NumPy, a loop": lambda x: x.cumsum(dtype=np.float32)[-1], "NumPy, sum": np.sum}
ways |= {rung.name: lambda x, rung=rung: total(rung, x, 1) for rung in numerics.LADDER[:4]}

figure, ax = chart(4.2)
looks = zip((palette.INK, palette.GREY, *palette.COLOURS[:4]), "xPosD^", strict=True)
for (name, way), (colour, marker) in zip(ways.items(), looks, strict=True):
    found = [abs(float(way(tenth[:n])) / (n * float(tenth[0])) - 1) for n in lengths]
    ax.plot(lengths, np.maximum(found, 1e-10), color=colour, marker=marker, label=name)

# %%
sizes = np.array(lengths)
ax.plot(sizes, sizes * 2.0**-24, "--", color=palette.FAINT, label="n u: the bound of a loop")
ax.plot(sizes, sizes / 256 * 2.0**-24, "-.", color=palette.FAINT, label="n u / 256")
ax.axhline(2.0**-24, color=palette.FAINT, linestyle=":", label="u: one rounding")
ax.set(xscale="log", yscale="log", xlabel="numbers n", ylabel="relative error of the sum")
ax.set_xticks(lengths, [f"$3^{{{k}}}$" for k in range(6, 14)])
ax.minorticks_off()
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# The loop goes wrong as it grows longer, and stays below its bound, the dashed line. `one_after_another` has 256 loops,
# each 256 times shorter, and the same fate later. `tree` and NumPy's `sum` stay near one rounding at every length. For
# the two better rungs nothing but the rounding of the result is left, and whether that is near $u$ or far below it is
# chance.
#
# So for numbers of one sign a tree is good enough. The difference between the last rungs shows where numbers cancel.
#
# ## How the error grows with the condition
#
# Now 4096 numbers whose sum is about as large as one of the smallest. Half of them come with their negative. The
# larger these are, the larger is $\kappa$.

# %%
large, small = rng.standard_normal(2040), rng.standard_normal(16)


def cancelling(power):
    """4096 numbers in any order: 2040 of about 2^power, their negatives, and 16 of about 1."""
    big = np.ldexp(large, power)
    return np.random.default_rng(power).permutation(np.concatenate([big, -big, small])).astype(np.float32)


figure, ax = chart(4.4)
sums = [cancelling(power) for power in range(0, 61, 5)]
kappas = [np.abs(x).sum(dtype=np.float64) / abs(numerics.reference(x)) for x in sums]
for rung, marker in zip(numerics.LADDER, palette.MARKERS, strict=False):
    found = [abs(float(total(rung, x)) / numerics.reference(x) - 1) for x in sums]
    ax.plot(kappas, np.clip(found, 1e-9, 10), marker=marker, label=rung.name)

# %%
ax.axhline(2.0**-24, color=palette.FAINT, linestyle=":", label="u: one rounding")
ax.set(xscale="log", yscale="log", xlabel="condition number", ylabel="relative error (10 and more is drawn at 10)")
ax.set_ylim(5e-10, 30)
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# This is the picture to remember. The first two rungs lose a digit for each power of ten in $\kappa$, until from
# about $10^9$ on none is right. `compensated` and `wider` have all digits right for longer. Then they rise in the
# same way, and in the end they have lost everything, too. More digits move the wall. They do not remove it.
#
# The last line does not rise at all.
#
# ## Rung 5: `exact`
#
# Integers are added without rounding, and in any order. Can a float32 be taken as an integer? Each one is a whole
# number times a power of two, and a whole multiple of $2^{-149}$, the smallest of all. A sum of them is one very long
# integer. It has at most some 320 bits (U. Kulisch built computers on that idea).
#
# So we keep *digits*. A thread has 16 bins, each an int64, and each for 16 neighbouring exponents. A number's exponent
# chooses the bin. Its 24 bits are shifted to their place, and added as an integer.

# %%
show(numerics.collect)

# %% [markdown]
# **Predict, then run.** A bin receives integers of at most 24 + 15 bits, plus a sign. How many of the largest can it
# take before an int64 overflows?

# %%
guess = None  # numbers; you may write it as a power, 2**10

largest = (2**24 - 1) << 15
predict(guess, (2**63 - 1) // largest, factor=1.01)

# %% [markdown]
# $2^{63-39} = 2^{24}$. The rung gives no block more than half of that, and the blocks' sums are cut into two pieces of
# 32 bits before they are added to the result's digits by integer atomics. Those come in any order, and it does not
# matter.

# %%
show(numerics.exact_kernel)
compare(*numerics.LADDER, x=cancelling(25))

# %% [markdown]
# These numbers have a condition number of some $10^{11}$. `exact` has one sum in all orders and on all grids: it is
# *reproducible*. It is also *correctly rounded*, the float32 next to the true sum. The other rungs without atomics
# are reproducible only as long as nobody changes the order or the grid.
#
# In memory a bin of a thread is beside the same bin of the next thread. A thread uses its own column only, so it needs
# no atomic. Lane $t$ of a warp is always at the same two banks, whichever bin it chooses. So there are no bank
# conflicts, and the time does not depend on the numbers. The counters agree. An access of 32 lanes to 8 bytes each is
# two wavefronts, and the few to 4 bytes are one.

# %%
for name, x in {"all ones": np.ones(8192, np.float32), "of all sizes": cancelling(60)}.items():
    counters = lab.count(numerics.exact, x, 1).counters
    requests, wavefronts = counters["shared_load_requests"], counters["shared_load_wavefronts"]
    print(f"{name:13} {requests:5} loads from shared memory, {wavefronts / requests:.2f} wavefronts each")

# %% [markdown]
# What is left is to make a float32 of the digits. One thread carries, finds the leading ones, and rounds once. A last
# detail: what was cut off below must still break ties, so one bit says whether there is anything.

# %%
show(numerics.round_kernel)

# %% [markdown]
# ### Exercise: a sum in integers
#
# Often you know more of the numbers: amounts of money, pixels, probabilities. Then a single integer is enough.

# %%
exercise("numerics/fixed")


# %%
@cuda.jit
def fixed(x, out):
    pass  # your code


check("numerics/fixed", fixed)

# %% [markdown]
# ## What accuracy costs
#
# First on the CPU. The same four ways exist in NumPy and Python. `math.fsum` is exact, as the last rung, and gets its
# numbers one by one, so its time is that of Python, too. Times are the fastest of three.

# %%
million = rng.standard_normal(2**20, dtype=np.float32)
on_cpu, ways = (
    {},
    {
        "float32 loop (cumsum)": lambda x: x.cumsum(dtype=np.float32)[-1],
        "NumPy sum": np.sum,
        "NumPy sum in float64": lambda x: x.sum(dtype=np.float64),
        "math.fsum": math.fsum,
    },
)
true, size = math.fsum(million), float(np.abs(million).sum(dtype=np.float64))
for name, way in ways.items():
    seconds = min(timeit.repeat(lambda way=way: way(million), number=1, repeat=3))
    on_cpu[name] = seconds / million.size * 1e9, abs(float(way(million)) - true) / size

# %%
figure, ax = chart(3.4)
for (name, (nanoseconds, error)), marker in zip(on_cpu.items(), palette.MARKERS, strict=False):
    ax.plot(nanoseconds, max(error, 1e-13), marker, markersize=8, label=name)
ax.set(xscale="log", yscale="log", xlabel="nanoseconds a number", ylabel="error, as a share of sum |x|")
ax.axhline(2.0**-24, color=palette.FAINT, linestyle=":", label="u of float32")
figure.legend(loc="outside right upper")
foot(figure, "Measured on this computer's CPU when this notebook was executed; an error of 0 is drawn at 1e-13")
figure

# %% [markdown]
# On the CPU a pairwise sum is both faster and better than a loop, and in float64 it is still faster than that. `fsum`
# pays for exactness with a multiple of the time. Your computer's times will differ.
#
# Then the GPU. The bars are shares of the roof at the design size, beside libraries that add in float32 and in float64.

# %%
plots.drawn(plots.ladder, "numerics")

# %% [markdown]
# All rungs have the same roof: the time to read the vector. Read the bars as the price of accuracy: where a bar is as
# long as that of the first rung, its accuracy is free. The roofline has the same times, each rung above the intensity
# of one addition for four bytes.

# %%
plots.drawn(plots.roofline, "numerics")

# %% [markdown]
# The points stand above one another, since all are counted as one addition an element. What a rung does beyond that is
# its own affair, and shows only where it lies lower.

# %%
plots.drawn(plots.cpu_gpu, "numerics")

# %% [markdown]
# The last of these figures has NumPy in it, over the size. As in chapter 30 a sum on the GPU pays where the numbers are
# there already.
#
# ## What to take along
#
# | You need | Take | It costs |
# |---|---|---|
# | a sum of numbers of one sign | a tree in float32 | nothing |
# | the same bits in each run | a fixed order: put down the blocks' sums, and add them in a second launch | a launch |
# | a sum of float16 or bfloat16 numbers | a total in float32 | nothing |
# | digits although numbers cancel | a total in float64, or compensation where float64 is slow | arithmetic |
# | the same bits for every order, grid and GPU | integers: fixed point if you know the range, else `exact` | the most |
#
# - A rounding is at most $u$ of its result. A sum is off by at most its depth times $u$ times $\sum |x|$: a tree has
#   the smallest depth.
# - The error relative to the sum has the condition number as a factor. That one belongs to the problem.
# - Determinism, reproducibility and accuracy are three things. A sum can repeat and be wrong, or be right in each run
#   and differ in the last bit.
# - Where memory is the bound, arithmetic is free, and better sums are arithmetic.
#
# ### More, without a check
#
# - Sort the numbers by size before you add them in a loop. Is the sum of `million` better? And that of its absolute
#   values?
# - `compensated` on two grids: find numbers for which its sums differ.
# - How many bins would a float64 need? How many bytes would a block of 256 threads take?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def variance_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        mean, squares = np.float32(0), np.float32(0)
        for k in range(x.shape[0]):
            before = x[k, i] - mean
            mean += before / np.float32(k + 1)
            squares += before * (x[k, i] - mean)
        out[i] = squares / np.float32(x.shape[0])


assert check("numerics/variance", variance_answer)

# %% [markdown]
# *Variance.* Welford's recurrence never has a large number: it adds products of distances from the mean. Two passes are
# as good, and read the column twice.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def dot_answer(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total, rest = np.float32(0), np.float32(0)
        for k in range(x.shape[0]):
            product = x[k, i] * y[k, i]
            below = cuda.fma(x[k, i], y[k, i], -product)
            total, lost = two_sum(total, product)
            rest += lost + below
        out[i] = total + rest


assert check("numerics/dot", dot_answer)

# %% [markdown]
# *Dot product.* Two errors for each element: that of the product and that of the sum. Both go to the same place.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def fixed_answer(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), 128
    partial = cuda.shared.array(256, np.int64)
    partial[thread] = np.int64(x[i] * np.float32(2**20)) if i < x.size else np.int64(0)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


assert check("numerics/fixed", fixed_answer)

# %% [markdown]
# *Integers.* A multiplication by a power of two changes only the exponent, so nothing is rounded before the conversion.

# %% jupyter={"source_hidden": true} tags=["answer"]
for name, x in {"million": million, "absolute values": np.abs(million)}.items():
    exact, size = math.fsum(x), np.abs(x).sum(dtype=np.float64)
    for said, ordered in {"as it is": x, "sorted by size": x[np.argsort(np.abs(x))]}.items():
        loop = float(ordered.cumsum(dtype=np.float32)[-1])
        print(f"{name:15} {said:15} off by {abs(loop - exact) / size:.1e} of sum |x|")
bins = -(-(2**11) // 16)
print(f"a float64 has {bins} bins for 16 exponents each: {bins * 8 * 256 / 1024:.0f} KiB for 256 threads")

# %% [markdown]
# *Sorted.* That makes the bound smaller, since the partial sums stay small for longer. The error is about what it
# was: the bound is about the worst case, and neither order is near it.
#
# *Bins.* A fraction of 53 bits leaves hardly room for a sum in an int64, either. It would be cut into two pieces first.
#
# Go on with [chapter 39](39_fused_and_batched_products.ipynb): many products at once, and what stands around them.
