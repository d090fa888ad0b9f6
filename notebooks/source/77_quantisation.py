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
# # 77. Quantisation
#
# *Whole numbers for floats: scales and zero points, what to cut off, the error for each bit, matrices in 4 bits that
# meet a vector in float16, how few instructions a weight may take, and layers of integers. Read chapters
# [28](28_histogram.ipynb), [32](32_matrix_vector.ipynb), [38](38_numerics.ipynb), [40](40_tensor_cores.ipynb),
# [43](43_warpgroups.ipynb) and [66](66_implicit_gemm.ipynb) before. 115 minutes. PMPP 4e: none; 5e: chapter 20. The
# code is [pmpp/kernels/quantisation/ladder.py](../pmpp/kernels/quantisation/ladder.py),
# [pmpp/kernels/quantisation/weight_only.py](../pmpp/kernels/quantisation/weight_only.py),
# [pmpp/kernels/quantisation/integer_linear.py](../pmpp/kernels/quantisation/integer_linear.py) and
# [pmpp/kernels/quantisation/integer_convolution.py](../pmpp/kernels/quantisation/integer_convolution.py).*
#
# A language model reads all its weights for each word that it writes. [Chapter 32](32_matrix_vector.ipynb) made that as
# fast as the memory is, and ended there: the time is that of the bytes. So there is one way left to be faster, and that
# is fewer bytes. A weight in float32 has 32 bits, and most of them say little. *Quantisation* replaces it by a whole
# number of 8 bits, or of 4.
#
# **The questions of this chapter: how large is the error of so few bits, and does a product with 4 bits a weight take a
# quarter of the time of one with 16?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import quantisation
from pmpp.kernels.quantisation import calibration, integer_convolution, integer_linear, weight_only
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.nn.measure import recorded
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# Weights of 4 bits need something beside them. A whole number says how many steps a weight is, and somebody has to say
# how long a step is: the *scale*. Here 128 neighbouring weights of a row share a scale of 4 bytes.
#
# **Predict, then run.** A model has 70 billion weights of 4 bits, and a scale in float32 for each 128 of them. How many
# words a second can it write at most, on a GPU that reads 4.2 TB/s?

# %%
guess = None  # words a second

weights, bandwidth = 70e9, 4.2e12
bits = {"float16": 16, "8 bits": 8 + 32 / 128, "4 bits": 4 + 32 / 128}
predict(guess, bandwidth / (weights * bits["4 bits"] / 8), unit="words a second", within=0.05)

# %%
for name, each in bits.items():
    nbytes = weights * each / 8
    print(
        f"{name:8} {each:6.2f} bits a weight: {nbytes / 1e9:6.1f} GB a word, {bandwidth / nbytes:5.1f} words a second"
    )

# %% [markdown]
# That is the whole gain, and it is worth having. It also decides on how many GPUs the model fits: 140 GB do not fit
# into the 80 GB of an H100, and 37 GB do.
#
# ## From float32 to whole numbers
#
# The definition has three steps. Divide by the scale. Round to the nearest whole number, and halfway to the even one,
# so that errors have no direction. Then *saturate*: what is beyond the largest whole number becomes the largest.

# %%
x = np.float32([0.24, 0.25, 0.75, 1.25, -3.1, 70, np.nan])
q = quantisation.reference(x, np.float32([0.5]))
print("x      ", x)
print("x / 0.5", x / np.float32(0.5))
print("q      ", q)
print("q * 0.5", q * 0.5)

# %% [markdown]
# 0.25 is half a step and becomes 0 steps, and 0.75 is one step and a half and becomes 2. NaN has no nearest number, so
# the room says what it becomes: 0.
#
# **Predict, then run.** Numbers lie anywhere between two steps, one place as likely as another. How large is the root
# of the mean squared error, in steps?

# %%
guess = None  # steps

spread = np.random.default_rng(77).uniform(-100, 100, 100_000)
predict(guess, float(np.sqrt(np.mean((np.rint(spread) - spread) ** 2))), unit="steps", within=0.05)

# %% [markdown]
# The error is anywhere from minus half a step to half a step. The mean square of that is 1/12, and its root 0.29. So
# whoever knows the step knows the error. A range from $-a$ to $a$ has a step of $2 a / 2^b$ with $b$ bits: **each bit
# halves the error.**
#
# ## The ladder of float32 to int8
#
# The bound is easy: an element is read as 4 bytes and written as 1. The reference is what the rungs must equal, in
# every element, since each step of the definition has one right result.

# %%
show(quantisation.reference)

# %% [markdown]
# A *channel* is all that has one first index: a row of a matrix, or all pixels that one filter made. Scales are either
# one for all channels, or one for each. The first rung finds the channel by a division.

# %%
show(quantisation.whole)
show(quantisation.thread_kernel)

# %% [markdown]
# `float2int_rn` is one instruction. It rounds to even, and an infinity becomes the largest int32.
#
# **Predict, then run.** A warp of this kernel stores a byte for each of its lanes. A sector is 32 bytes, and a line of
# the cache is 128. How many requests to store does the kernel make for 4096 elements, and how many would do if each
# were a line?

# %%
guess = {"as it is": None, "by lines": None}  # requests

rng = np.random.default_rng(7)
block, one = rng.standard_normal(4096, dtype=np.float32), np.float32([0.05])
counts = {rung.name: lab.count(rung, block, one).counters for rung in quantisation.LADDER}
found = counts["thread_per_element"]["global_store_requests"]
predict(guess, {"as it is": found, "by lines": 4096 // 128}, unit="requests")

# %% [markdown]
# Four times as many as it takes, and the loads are small as well: a thread asks for 4 bytes, and waits. The second rung
# gives a thread sixteen elements, and asks for all of them before it computes the first.

# %%
show(quantisation.strided_kernel)

# %% [markdown]
# **Your turn.** Here is the definition as an exercise: a matrix, with a scale for each row.

# %%
exercise("quantisation/quantise")


# %%
@cuda.jit
def quantise(x, scales, out):
    pass  # your code


check("quantisation/quantise", quantise)

# %% [markdown]
# The last rung loads four neighbours by 128 bits, and puts their four bytes into one word. A warp then loads 512 bytes
# and stores 128, a whole line.

# %%
show(quantisation.vector_kernel)

# %%
names = ("load_requests", "store_requests", "store_sectors")
print(" " * 18, *(name.rjust(15) for name in names))
for who, counters in counts.items():
    print(f"{who:18}", *(f"{counters[f'global_{name}']:15,}" for name in names))

# %% [markdown]
# The requests for x, the scale and the zero point are a quarter each, and so are those to store. The sectors are the
# same. Whether that is faster, the clock has to say.

# %%
plots.drawn(plots.ladder, "quantisation", family="one scale")

# %% [markdown]
# And the CPU. NumPy needs four passes over memory for it. With the call and both transfers the GPU takes longer
# than NumPy up to 2^18 elements, and half as long for 2^20.

# %%
plots.drawn(plots.cpu_gpu, "quantisation", family="one scale")

# %% [markdown]
# ## Which scale?
#
# The kernel is done, and the question is what to give it. Here are real numbers: 500 images of digits, 64 pixels each,
# from 0 to 16. Each pixel is a channel. Pixels at the edge are nearly always 0, those in the middle are not.

# %%
images, labels = data.digits()
pixels = np.ascontiguousarray(images[:500].reshape(500, -1).T)


def error(numbers, how="range", bits=8, **more):
    """The root of the mean squared error, there and back, for scales that `calibrate` chooses."""
    scales, zeros = quantisation.calibrate(numbers, how, bits, **more)
    q = quantisation.reference(numbers, scales, zeros, bits).astype(np.float32)  # what every rung gives, too
    form = (-1, *(1,) * (numbers.ndim - 1))
    back = (q - (0 if zeros is None else zeros.reshape(form))) * scales.reshape(form)
    return float(np.sqrt(np.mean((back - numbers) ** 2)))


# %% [markdown]
# No number is negative here, so a symmetric range wastes half of the whole numbers. An *affine* one has a *zero point*:
# the whole number that stands for 0.0. Zero is always among the numbers that have no error, since so many numbers are
# zero: pixels, padding, what an activation has cut off.
#
# **Predict, then run.** All pixels share a range, of 8 bits. How many times as large is the error of the symmetric one
# as that of the affine one?

# %%
guess = None  # times as large

symmetric, affine = error(pixels), error(pixels, affine=True)
predict(guess, symmetric / affine, unit="times as large", within=0.1)

# %%
for affine in (False, True):
    for per_channel in (False, True):
        found = [error(pixels, bits=bits, affine=affine, per_channel=per_channel) for bits in (8, 4)]
        words = f"{'affine' if affine else 'symmetric'}, {'a range a pixel' if per_channel else 'one range'}"
        print(f"{words:30} 8 bits {found[0]:.4f}   4 bits {found[1]:.4f}")

# %% [markdown]
# Half the step, half the error: the zero point is worth a bit here. For weights it is worth little, since they lie
# about 0. Without it a product needs no further term, and so nearly everybody quantises weights symmetrically.
#
# A range for each pixel gains little here. Most pixels come to 15 or 16 in some image, so that their own range is the
# common one. The others are nearly always 0, and 0 has no error anyway. The rows of a matrix of weights differ more,
# and so do parts of a row: below, each 128 weights have a range of their own.
#
# ## What to cut off
#
# A single large number makes the range wide, and every other number pays for it with longer steps. So it may be better
# to cut it off. That is what *calibration* is about: looking at the numbers before one chooses a range.
#
# **Predict, then run.** Here are 20,000 normally distributed numbers, and the range has 4 bits. With how much of the
# whole range is the mean squared error least?

# %%
guess = None  # percent of the whole range

normal = rng.standard_normal(20_000, dtype=np.float32)
scales = {how: quantisation.calibrate(normal, how, 4)[0][0] for how in calibration.WAYS}
predict(guess, float(100 * scales["error"] / scales["range"]), unit="percent", within=0.1)


# %%
def cut_off():
    """The error for each share of the range, by bits; and where the three ways of calibration end."""
    (figure, ax), shares, widest = chart(3.4), np.linspace(0.05, 1, 39), float(abs(normal).max())
    for bits, marker in ((8, "o"), (4, "s"), (3, "^")):
        errors = []
        for share in shares:
            step, _ = calibration.numbers_of(np.array([-widest * share]), np.array([widest * share]), bits, False)
            back = quantisation.reference(normal, step, None, bits) * step
            errors.append(np.sqrt(np.mean((back - normal) ** 2)))
        ax.plot(100 * shares, errors, marker=marker, markevery=4, label=f"{bits} bits")
        best = quantisation.calibrate(normal, "error", bits)[0] / quantisation.calibrate(normal, "range", bits)[0]
        ax.axvline(100 * float(best[0]), color=palette.FAINT, lw=1)
    ax.set(
        yscale="log", xlabel="percent of the whole range", ylabel="error", title="a narrower range for normal numbers"
    )
    ax.legend()
    return figure


cut_off()

# %% [markdown]
# On the left too much is cut off, and on the right the steps are too long. The thin lines are the ranges that
# `how="error"` has found, and they stand below the lowest points: from right to left for 8, 4 and 3 bits. With 8 bits
# the steps are so short that hardly anything should be cut off. With 3 it is more than half of the range.
#
# How does `calibrate` find them without trying all numbers a hundred times? It counts them once, by the
# [histogram](28_histogram.ipynb) of 4096 bins, and tries the ranges on the bins.

# %%
show(calibration.narrowed)

# %% [markdown]
# ### The error for each bit
#
# Now ten of the numbers are large, as they are in real networks, and the three ways are compared.


# %%
def by_bits():
    numbers, places = normal.copy(), np.arange(2, 9)
    numbers[:10] = 25
    figure, ax = chart(3.4)
    for how, marker in zip(calibration.WAYS, "os^", strict=True):
        ax.plot(places, [error(numbers, how, bits=int(bits)) for bits in places], marker=marker, label=how)
    ax.plot(places, 0.6 * 2.0**-places, color=palette.FAINT, lw=1, label="half for each bit")
    ax.set(yscale="log", xlabel="bits", ylabel="error", title="normal numbers, and ten of 25")
    ax.legend()
    return figure


by_bits()

# %% [markdown]
# The whole range halves its error with each bit, as it should, but only from 4 bits on. With fewer its step is so long
# that all but the ten become 0. The percentile cuts the ten off,
# whatever that costs: from some bit on their error is all that is left. The least error chooses between the two, for
# each number of bits anew.
#
# And this is what it looks like, with the numbers of a photograph.

# %%
grey = data.photograph().mean(axis=2).astype(np.float32)[60:360:2, 120:400:2].copy()
figure, axes = plt.subplots(1, 4, figsize=(9, 2.7), layout="constrained")
for ax, bits in zip(axes, (8, 4, 3, 2), strict=True):
    scales, zeros = quantisation.calibrate(grey, bits=bits, affine=True)
    back = quantisation.dequantise(quantisation.quantise(grey, scales, zeros, bits), scales, zeros)
    ax.imshow(device.to_host(back), cmap="gray", vmin=0, vmax=255)
    ax.set_title(f"{bits} bits", fontsize=9)
    ax.set_axis_off()

# %% [markdown]
# ## A matrix in 4 bits
#
# Now the product. $y = x W^T$ has a row of $W$ for each element of $y$. `quantise_weights` cuts each row into groups of
# 128, and gives each group the scale with which its largest weight just fits. Two weights share a byte. So that a half
# byte needs no sign, 8 is added to each.

# %%
show(weight_only.packed)

# %%
w = rng.standard_normal((96, 1024), dtype=np.float32)
packed, w_scales = quantisation.quantise_weights(w, 4)
print(f"W: {w.shape} float32, {w.nbytes:,} bytes; as float16 {w.nbytes // 2:,}")
print(f"packed: {packed.shape} {packed.dtype}, scales: {w_scales.shape}; {packed.nbytes + w_scales.nbytes:,} bytes")

# %% [markdown]
# The vector stays in float16, and so nothing is lost of it. This is called *weight-only* quantisation: the weights are
# what is read, and there is one vector for all of them. The multiply-adds are the same as before, and memory is the
# bound.


# %%
def bound(words, cost):
    """The least time for a cost on this GPU, or on the recorded one."""
    print(f"{words}: {cost.bytes / 1e6:,.1f} MB, {cost.intensity:.3g} FLOP/byte")
    try:
        print(f"    at least {roofline.bound(cost, roofline.ceilings('matmul')).seconds * 1e6:,.4g} us")
    except record.RecordError as missing:
        print(missing)


n, k = 8192, 28672  # a layer of a model of 70 billion weights
bound("4 bits", weight_only.cost(1, n, k, 4))
bound("8 bits", weight_only.cost(1, n, k, 8))
bound("float16", Cost(2 * n * k, 2 * (n * k + n + k)))

# %% [markdown]
# The first two rungs are those of chapter 32: a thread for a row, and a warp for a row.

# %%
show(weight_only.weight_of_half)
show(weight_only.warp_kernel(4))

# %% [markdown]
# **Predict, then run.** $W$ has 96 rows of 1024 weights of 4 bits. When a warp of the first rung reads its byte of each
# row, how many sectors does it touch? And how many when a warp of the second rung reads its 32 bytes?

# %%
guess = {"thread_per_row": None, "coalesced": None}  # sectors

v = rng.standard_normal((1, 1024)).astype(np.float16)
products = {rung.name: lab.count(rung, v, packed, w_scales) for rung in weight_only.LADDER}
pitch = packed.shape[1]  # bytes of a row
addresses = {"thread_per_row": np.arange(32) * pitch, "coalesced": np.arange(32)}
touched = {name: len(np.unique(places // 32)) for name, places in addresses.items()}
predict(guess, touched, unit="sectors", exact=True)

# %%
print(f"{'':16}{'load requests':>16}{'load sectors':>16}{'largest error':>16}")
exact = weight_only.reference(v, packed, w_scales)
for name, one in products.items():
    found = abs(device.to_host(one.result) - exact).max()
    counters = one.counters
    print(f"{name:16}{counters['global_load_requests']:16,}{counters['global_load_sectors']:16,}{found:16.1e}")

# %% [markdown]
# **Your turn.** Unpack the weights yourself.

# %%
exercise("quantisation/warps")


# %%
@cuda.jit
def warps(x, w, scales, out):
    pass  # your code


check("quantisation/warps", warps)

# %% [markdown]
# ## How many instructions may a weight take?
#
# In chapter 32 the next step was wide loads, and that was all. Here it is not. A byte has two weights, and each has to
# be cut out, made a float, and multiplied.
#
# **Predict, then run.** The GPU has 132 multiprocessors with 128 lanes each, at 1.755 GHz, and reads 4.2 TB/s. While
# the memory delivers a weight of 4 bits, how many instructions can be issued for it?

# %%
guess = None  # instructions

predict(guess, 132 * 128 * 1.755e9 / (2 * bandwidth), unit="instructions", within=0.05)

# %% [markdown]
# That is little. Shifts and masks are worse off still: a multiprocessor has 64 lanes for them. And a conversion from an
# integer to a float runs on 16 lanes, so by that alone the time would double.
#
# ## Rung 3: `vectorised`, a float by its bits
#
# A float32 of $2^{23}$ or more has no place behind the point: its last bits count in ones. So take the bits of $2^{23}$
# and put a whole number into the last ones.

# %%
for number in (0, 5, 15):
    made = np.uint32(number | int(weight_only.MAGIC)).view(np.float32)
    print(f"{number | int(weight_only.MAGIC):032b} is {made:.0f}, less {2**23 + 8}: {made - np.float32(2**23 + 8):.0f}")

# %% [markdown]
# A shift and a mask, which the hardware joins with the "or", then a subtraction that also takes the 8 away, and the
# multiply-add: four instructions for a weight. A warp has four rows at a time, so that what is done for x counts for
# all of them.

# %%
show(weight_only.vector_kernel(4, "float16"))

# %% [markdown]
# ## Rung 4: `tensor`, a float that is already there
#
# Four is still more than there is time for. What if a weight were a float as it is? A float16 has a sign, five bits of
# exponent and ten more. If the exponent bits are all 0, the number is a *subnormal* ([chapter 38](38_numerics.ipynb)):
# its ten bits count in steps of $2^{-24}$.
#
# **Predict, then run.** A weight of 4 bits, 9, lies in bits 6 to 9 of a float16, and all other bits are 0. Which
# multiple of $2^{-18}$ is that?

# %%
guess = None  # times 2^-18

predict(guess, float(np.uint16(9 << 6).view(np.float16)) / 2.0**-18, unit="times 2^-18", exact=True)

# %% [markdown]
# It is the weight itself, times a constant that can go into the scale. A word holds two float16, so **a shift and a
# mask make two weights at once**: one instruction for a weight. No subtraction, no conversion.

# %%
show(weight_only.pairs_of_four)

# %% [markdown]
# Who multiplies float16 and adds in float32? A tensor core, and it takes subnormals at full speed. It wants a matrix of
# 16 x 16 and one of 16 x 8 ([chapter 40](40_tensor_cores.ipynb)). The first are weights, and the second is x, of which
# seven of eight columns stay empty for a single vector. They cost nothing: the instruction is issued once for 256
# weights.
#
# Which k a lane holds does not matter, as long as it holds the same ones of W and of x. So a lane loads 128 bits of a
# row as they lie in memory, and `lows` and `highs` put the elements of x into the order in which the weights come out.

# %%
show(weight_only.lows)
show(weight_only.pairs_of_eight)

# %% [markdown]
# The 8 that was added to each weight is taken away by a further instruction, whose matrix is -8 everywhere. Its sums
# are kept apart, so that neither instruction has to wait for the other.
#
# Here is the whole kernel. The warps of a block have the same 16 rows, and take turns at the groups of 128. While a
# group is multiplied, the next one is on its way.

# %%
show(weight_only.tensor_kernel(4, True, 1, 1))

# %% [markdown]
# A subnormal has one price. The tensor core takes the exponent of a subnormal for $2^{-14}$, and cuts off what is 24
# bits below the largest exponent. For a weight of 4 bits in bits 6 to 9 that leaves 20 bits, more than the 11 that x
# has. In bits 0 to 3 it would be 14. The table above has the errors of all rungs.
#
# What does a weight take? The interpreter counts the instructions as the source has them. A compiler joins and removes
# many, so compare these numbers with one another, and not with the budget.

# %%
for name, one in list(products.items())[:4]:  # the rungs so far
    issued = 32 * one.counters["warp_instructions"]
    print(f"{name:16}{issued / w.size:8.2f} instructions of a lane for a weight")

# %% [markdown]
# ## Rung 5: `staged`, more groups on their way
#
# Now the instructions are few enough, and memory is still not busy. How many bytes have to be on their way for that? As
# many as arrive while one waits: the bandwidth times the latency. A load from device memory takes about 800 ns when
# many others are under way.
#
# **Predict, then run.** At 4.2 TB/s, how many KiB must each of 132 multiprocessors have asked for at any time?

# %%
guess = None  # KiB

bandwidth, latency, multiprocessors = 4.2e12, 800e-9, 132
predict(guess, bandwidth * latency / multiprocessors / 1024, unit="KiB", within=0.1)

# %% [markdown]
# A warp of `tensor` asks for one group of 16 rows, which is 1 KiB, and 32 warps have room. That would be enough if all
# of them had asked at all times. But a warp asks, multiplies a group, and waits until its next group is there. Only
# then does it ask again. And in between it waits for x: all of x is in the L2 cache, but a warp asks for its part of it
# only when it needs it, four times a group.
#
# Registers for more groups would leave room for fewer warps. `copy_async` of chapter 40 needs none. It brings groups
# into shared memory, those of x beside those of W, and a warp has slots for several. The others are on their way while
# it multiplies one. A lane reads what other lanes have copied. So `wait_copies`, which is about a lane's own copies, is
# followed by `syncwarp`: a barrier for one warp, which costs next to nothing.
#
# A block has up to 64 rows of W now, and not 16. Then the elements of x are put in order a quarter as often, and what
# is taken away for the 8 that was added is computed once for 64 rows. So it is about instructions again, too.

# %%
show(weight_only.staged_kernel(4, 1, 4, 12, 3))

# %% [markdown]
# ## Rung 6: `queued`, no lane waits for another
#
# What does `staged` still do more often than it has to? A warp puts x in order again for each group, and multiplies by
# -8 for what was added to the weights. It loads a scale and applies it for each row and group. And its lanes wait for
# one another, since each reads what others have copied.
#
# All that depends on x alone is the same for all rows of W. With one vector it fits into shared memory: a block copies
# x, puts it in order, and adds up each group of it. That sum, times -8, is what the raised weights of the group add too
# much, in every row.
#
# No weight is read by two lanes: a lane of the tensor core wants 128 bits of a row as they lie in memory. So it copies
# its own weights into a queue of its own, and reads its own copies. `wait_copies` is about a lane's own copies, so no
# barrier is needed. The lanes share nothing here: shared memory serves them as further registers would.
#
# A copy of a warp is 64 bytes of each of eight rows, half a line of the L2 cache, and the next copy is the other half.
# `copy_async_once` tells the cache so: it fetches the whole line at once, and memory gets fewer and longer requests. It
# also says that each weight is read once. The cache is to drop such lines before all others, and so to keep what is
# read again: x, which every block reads. `cuda.ldcs` says the same of the scales.
#
# And the columns: the second matrix has eight, and one vector fills one. Let the first of eight groups fill the first
# column, with zeros in the others, the second group the second column, and so on. All are added to the same registers,
# and at the end the sums of eight groups stand side by side. A lane has two of the columns, for two rows: so it loads
# the scales of two groups, and applies them once for eight.

# %%
show(weight_only.queued_kernel(4))

# %% [markdown]
# **Predict, then run.** A block has 16 warps, and each has four places in its queues, of 2 KiB. While one place is
# read, three are on their way. How many KiB is that for a multiprocessor that has one block?

# %%
guess = None  # KiB

predict(guess, weight_only.QUEUE_WARPS * (weight_only.TURNS - 1) * weight_only.PLACE * 4 / 1024, unit="KiB", exact=True)

# %% [markdown]
# `staged` has as much on its way. What is saved is instructions, and waiting. The price is that a multiprocessor has
# room for one block, since x and the queues fill its shared memory. So `shares` chooses how many rows a block has: 64
# for 8192 rows on 132 multiprocessors. Where $W$ is too small for that, the rung launches `staged`.

# %% [markdown]
# ## The whole ladder
#
# At the size of a real layer, with one vector, and with nothing in the cache.

# %%
plots.drawn(plots.ladder, "weight_only", family="4 bits")

# %% [markdown]
# `torch.linear` multiplies by the same weights in float16. Its share is that of the bytes that 4 bits need. These are
# 4.25 bits a weight with the scales, and PyTorch reads 16: its share cannot be more than 27 %.

# %%
plots.drawn(plots.ladder, "weight_only", family="8 bits")

# %%
plots.drawn(plots.roofline, "weight_only")

# %% [markdown]
# Up to 4096 the matrices stay in the cache, and much of the time is the launch. So 4 bits gain less there: at 4096 the
# product takes 0.6 of the time of float16, and at 16,384 a third.

# %%
plots.drawn(plots.sweep, "weight_only", family="4 bits, square")

# %% [markdown]
# And NumPy, which has no product for 4 bits: its weights are float32.

# %%
plots.drawn(plots.cpu_gpu, "weight_only", family="4 bits, square")

# %% [markdown]
# ## One word, or 64
#
# A server writes for many readers at once. Then the weights, read once, meet several vectors, and there are eight
# columns for them. When does arithmetic become the bound?


# %%
def rows_of_x():
    """The time of one product, over the number of vectors that it serves."""
    kept = record.load(room="weight_only")
    entries = [entry for entry in kept.entries("weight_only") if entry.family == "rows of x"]
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of weight_only")
    figure, ax = chart(3.4)
    for kind, label, marker in (("rung", "4 bits", "o"), ("library", "float16, torch", "s")):
        own = sorted((entry.sizes["m"], entry.median_ms) for entry in entries if entry.kind == kind)
        ax.plot(*zip(*own, strict=True), marker=marker, label=label)
    ax.set(xscale="log", yscale="log", xlabel="rows of x", ylabel="ms", title=f"{k} to {n}, {kept.gpu}")
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    ax.legend()
    return figure


plots.drawn(rows_of_x)

# %% [markdown]
# Where a line is flat, memory is the bound. In float16, 64 vectors cost what one costs. Where a line rises, arithmetic
# is the bound, with one exception: 4 bits step up from one vector to two, because another kernel takes over. `queued`
# is for one vector, `staged` for up to eight. With more than eight the line rises steadily, for two reasons. There are
# fewer bytes to wait for than in float16, and each weight still has to be unpacked and multiplied. So 4 bits are for
# few readers. With 32 and more the product in float16 is faster, and simpler.
#
# ## Does it still know its digits?
#
# An error of a number is not yet an error of an answer. Here a digit is recognised by the image that is most like it, a
# product as in chapter 32. The images that it is compared with are the weights.
#
# The first 1,500 images are known, and 297 are asked for.

# %%
flat = images.reshape(len(images), -1)
flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
known, asked = flat[:1500].copy(), flat[1500:].copy()


def share_right(weights):
    """Of the digits asked for, those whose nearest image has their label, in percent."""
    return 100 * np.mean(labels[np.argmax(asked @ weights.T, axis=1)] == labels[1500:])


# %% [markdown]
# **Predict, then run.** With float32 most of the 297 are named right. How many percentage points are lost with 4 bits?

# %%
guess = None  # percentage points


def in_bits(bits):
    scales, _ = quantisation.calibrate(known, bits=bits, per_channel=True)
    return quantisation.reference(known, scales, None, bits) * scales[:, None]


rights = {"float32": share_right(known)} | {f"{bits} bits": share_right(in_bits(bits)) for bits in (8, 4, 3, 2)}
predict(guess, rights["float32"] - rights["4 bits"], unit="percentage points")

# %%
for name, found in rights.items():
    print(f"{name:8} {found:6.2f} % right")
numbers, known_scales = quantisation.quantise_weights(known[:96], 4)
y = device.to_host(quantisation.multiply(asked[:1].astype(np.float16), numbers, known_scales))
print("the nearest of 96, float32 and 4 bits:", np.argmax(asked[0] @ known[:96].T), np.argmax(y))

# %% [markdown]
# One digit is a third of a point. What decides is which product is largest, and that is rarely close. Networks forgive
# as well, down to some number of bits. It has to be measured for each, on data that it has not seen.
#
# ## Many rows: integers all the way
#
# With many rows of x arithmetic is the bound, and fewer bytes of W gain nothing. But tensor cores multiply int8 by int8
# at twice the rate of float16, and add in int32. Then x has to be int8 as well. If x has the scale $s_x$, and row $n$
# of W the scale $s_n$, a sum of products stands for itself times $s_x s_n$: **a scale that does not depend on k can
# wait until the sum is done.** So there is one for each row of W here, and none for each 128 of its weights.
#
# **Predict, then run.** An int32 ends at $2^{31} - 1$. How many products of two int8 fit into it, whatever they are?

# %%
guess = None  # products

largest = int(np.iinfo(np.int8).min) ** 2  # of all products
predict(guess, np.iinfo(np.int32).max // largest, unit="products", within=0.001)

# %% [markdown]
# That is the room's limit for K. Below it every sum is exact, in any order, and all rungs give the same bits.
#
# The next layer wants int8 again, with a scale $s_y$ of its own. In its steps the sum is $s_x s_n / s_y$ times itself:
# one factor for each column, known beforehand. Multiplying by it, rounding and cutting off is *requantisation*. It is
# done while the sum is in a register. Stored as int32 first, y would be written as four bytes, read again, and written
# once more.

# %%
show(integer_linear.requantised)

# %% [markdown]
# ReLU comes for nothing: the lower limit is then 0. The instruction has a fragment of 16 x 32 of x and one of 32 x 8 of
# the transposed W. A register holds four neighbours along k, and k runs along the rows of both in memory. So a word is
# loaded as it lies there.

# %%
show(integer_linear.fragments_kernel(True))

# %% [markdown]
# The last rung is the pipeline of chapter 40. Two int8 travel as one of its 16-bit elements, and `ldmatrix` hands out
# the same words.
#
# Here is a layer that was not made up. It is the matrix that says best, in the sense of least squares, which digit an
# image is. It has learned from 1,500 images, and is asked about the others.

# %%
targets = np.eye(10, dtype=np.float32)[labels[:1500]] - np.float32(0.1)
layer = np.linalg.lstsq(known, targets, rcond=1e-3)[0].T.astype(np.float32).copy()
y = asked @ layer.T
x_scale, w_scales = quantisation.calibrate(known)[0], quantisation.calibrate(layer, per_channel=True)[0]
y_scale = quantisation.calibrate(known @ layer.T)[0]
given = quantisation.quantise(asked, x_scale), quantisation.quantise(layer, w_scales), x_scale * w_scales / y_scale
whole_y = device.to_host(integer_linear.fragments(*given))
print("int8 results of the first image:", whole_y[0])
print("float32, in the same steps:     ", np.round(y[0] / y_scale, 1))
for name, found in (("float32", y), ("int8", whole_y)):
    print(f"{name:8} {100 * np.mean(found.argmax(axis=1) == labels[1500:]):.2f} % right")

# %% [markdown]
# The whole numbers are those of the float layer but for two steps or so, since x and W were rounded before. The scale
# of y comes from the images that the layer has learned from, as it must: the others are not known yet.
#
# And this is what it is worth on a GPU. `torch._int_mm` stores int32, and leaves the rest to others.

# %%
plots.drawn(plots.ladder, "integer_linear", family="square")

# %% [markdown]
# The roof of that figure is that of tensor cores for int8. Neither the library nor our last rung is near it. `tiled`
# multiplies by mma.sync, an instruction of a single warp. The product of int8 by four warps together, in
# [chapter 43](43_warpgroups.ipynb), comes nearer.
#
# ## Convolutions of integers
#
# A convolution layer is such a product, too. It has a row of numbers of x for each place of the filters, and a column
# for each filter. The rows overlap: with filters of 3 x 3 a number of x stands in nine of them. So
# [chapter 66](66_implicit_gemm.ipynb) did not write them to memory. It computed where their numbers lie.
#
# The same is done here with bytes. A place has a corner, the pixel under the first element of the filters. A term of
# the sum has a row, a column and a channel of the filter. The two together lead to a number of x.

# %%
show(integer_convolution.found)
show(integer_convolution.copy_chunk)

# %% [markdown]
# If the channels are last and come in sixteens, 16 bytes that begin at a term are of one pixel. One asynchronous copy
# moves them, and where no pixel is it writes zeros by itself. A thread keeps its places for the whole sum, so it finds
# their corners once, by divisions. Its term only moves on, by additions.

# %%
show(integer_convolution.further)

# %% [markdown]
# The border is new. Around the image x is 0.0, and the whole number for that is the zero point. After a ReLU no number
# is negative. Then an affine range begins at 0, and its zero point is -128.
#
# **Predict, then run.** An image of 14 x 14 has the zero point -128. A layer has filters of 3 x 3 and a padding of 1,
# and somebody leaves zeros around the image. About one in ten of the results that this touches is rounded to the right
# number nevertheless. What percentage of the results is wrong?

# %%
guess = None  # percent

small = [rng.integers(-128, 128, shape).astype(np.int8) for shape in ((1, 14, 14, 16), (8, 3, 3, 16))]
few_steps = np.full(8, 1e-4, np.float32)
ones = [
    device.to_host(integer_convolution.fragments(*small, few_steps, padding=1, zero=zero)).astype(int)
    for zero in (0, -128)
]
predict(guess, float(100 * np.mean(ones[0] != ones[1])), unit="percent", within=0.15)

# %%
print("wrong in a row of places, of the first filter:")
for row in (0, 1, 13):
    print(f"row {row:2}: ", *("x" if wrong else "." for wrong in (ones[0] != ones[1])[0, row, :, 0]))

# %% [markdown]
# It is the edge, 52 places of 196 or 27 %, apart from a few where both numbers are rounded to the same. So a kernel for
# affine numbers fills the border. Where no pixel is, it copies 16 bytes of the zero point from a small array.

# %%
show(integer_convolution.copy_filled)

# %% [markdown]
# Something else comes out right only with this border. A number q of x stands for q less the zero point, so each sum is
# too large by the zero point times the sum of the filter. If the border takes part, that is the same for all places.
# Then it is subtracted from the bias once, before the network is used, and costs nothing.
#
# **Your turn.** This is the layer as an exercise, with a thread for each output.

# %%
exercise("quantisation/convolution")


# %%
@cuda.jit
def convolution(x, w, factors, zero, out):
    pass  # your code


check("quantisation/convolution", convolution)

# %% [markdown]
# After a thread for each output comes `fragments`, a warp that loads words of x straight into the registers of a tensor
# core's instruction. `tiled` brings them to shared memory first, by the copies that you have seen. The rung
# `warpgroups` multiplies as in [chapter 43](43_warpgroups.ipynb): 128 bytes of each sum at a time, from shared memory.
# Its int8 go through shared memory as well, so that a warp stores whole rows. The last rung, `divided`, is for layers
# of few places, which have too few tiles for all multiprocessors. Several blocks share a tile, and each adds up a part
# of the sums. With floats the result would depend on who adds what. Sums of integers are exact, and the bits are the
# same.
#
# PyTorch has no convolution of int8 on a GPU. So there are two others to compare with. cuDNN convolves float16, which
# is what such a layer replaces. And PyTorch can write the rows as a matrix of int8, and multiply that. Its sums stay
# int32.

# %%
plots.drawn(plots.ladder, "integer_convolution", family="3x3")

# %% [markdown]
# The roof is again that for int8. For float16, cuDNN's type here, it is half as high. This layer has tiles enough, so
# the last two rungs launch the same kernel. They are faster than cuDNN with float16. The way by a matrix of rows takes
# the longest: the rows are written, and read again. It is not like that in every layer: the record also has filters of
# 1 x 1, which have nothing to gather, and in some of these layers cuDNN is faster.
#
# A whole network is quantised in the same way, layer by layer, after it was trained: *post-training quantisation*. When
# you have met the networks of chapter 89, run `python -m pmpp.nn.examples.int8`. It trains a small one for digits, and
# says how many it knows in float32 and in int8.
#
# `python -m pmpp.nn.measure.int8` does that on a GPU, with LeNet-5 and handwritten digits of MNIST, of which 1,000 are
# asked for. The network is trained from five seeds, and each time its activations' ranges are chosen in three ways.
#
# **Predict, then run.** LeNet-5 knows nearly all of the 1,000 digits in float32. How many does it lose in int8, in the
# mean of the seeds and ways?

# %%
guess = None  # one of the choices


def lost_digits():
    """The group in which the digits lie that LeNet-5 loses by int8."""
    row = recorded("int8")["networks"]["LeNet-5 on MNIST"]
    lost = np.mean(list(row["lost"].values())) / 100 * row["digits"]
    return groups[np.searchsorted([2, 10, 50], lost)]


groups = ["fewer than 2", "2 to 10", "10 to 50", "more than 50"]
predict(guess, lost_digits, choices=groups)

# %%
try:
    kept = recorded("int8")
    print(kept["about"]["gpu"]["name"], kept["about"]["run"]["date"][:10])
except record.RecordError as missing:
    kept = {"networks": {}}
    print(missing)
for name, row in kept["networks"].items():
    sizes = row["bytes"]
    print(f"\n{name}: {sizes['float32']:,} bytes of parameters, in int8 {sizes['int8']:,}")
    heading = f"of {row['digits']:,} digits known"
    print(f"{heading:21}" + "".join(f"{way:>12}" for way in ("float32", *row["lost"])))
    for seed, found in enumerate(row["seeds"]):
        shares = [found["float32"], *found["int8"].values()]
        counts = "".join(f"{round(share * row['digits']):12}" for share in shares)
        print(f"{f'seed {seed}':21}" + counts)

# %% [markdown]
# ## What to take along
#
# - A whole number and a scale stand for a float. The error is 0.29 steps, and each bit halves the step.
# - A zero point is for numbers that lie on one side of 0. A scale for each channel, or for each group, is for channels
#   that differ.
# - A wide range has long steps, and a narrow one cuts off. The best one depends on the bits and on the numbers.
# - A product with one vector takes as long as its bytes. With 4 bits it is the instructions that have to be few:
#   3.5 for a weight.
# - A bit pattern can be a number already. Look for the format in which it is one.
# - Sums of int8 products are exact in int32, and become int8 again by one factor before they are stored.
# - A convolution of int8 is such a product, whose rows are gathered by address. Its border is the zero point.
# - Of LeNet-5 a quarter of the bytes is left in int8. Compare the table's lines with each other, and then the numbers
#   within a line: another seed changes more digits than int8 does, and some networks even gain some, by chance. So one
#   network is not enough to judge by.
#
# `quantisation.quantise`, `calibrate`, `quantise_weights`, `multiply`, `linear` and `convolution` are the functions to
# use.
#
# ## Exercises
#
# Three are above. `check` runs your kernel on several inputs, with every access checked.
#
# ### Two of four
#
# Fewer bits are one way to fewer bytes, and fewer weights are another. Tensor cores can skip half of the products, if
# of each four neighbouring weights two are 0: *2:4 sparsity*. Then two weights are stored, and 2 bits for each say
# which of the four they are. The first step is to choose the two that stay.
# [Chapter 79](79_sparsity.ipynb) has the product.

# %%
exercise("quantisation/two_of_four")


# %%
@cuda.jit
def two_of_four(w, out):
    pass  # your code


check("quantisation/two_of_four", two_of_four)

# %% [markdown]
# ### More, without a check
#
# - How many bits does a weight take with 2:4 sparsity and 4 bits for those that stay, scales left out?
# - A group of 32 in place of 128: how many bits is a weight then, with its share of the scale? What is gained?
# - x in float32 could be two float16, one for the first 11 bits and one for the next. Which part of the instruction has
#   room for the second one?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def quantise_answer(x, scales, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = i // x.shape[1], i % x.shape[1]
        q = cuda.libdevice.float2int_rn(x[row, column] / scales[row])
        out[row, column] = min(max(q, -128), 127)


assert check("quantisation/quantise", quantise_answer)

# %% [markdown]
# *Quantise.* The order matters: round, then cut off, then store. int8 keeps the last 8 bits of what it is given, so 128
# would become -128.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def warps_answer(x, w, scales, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    total = np.float32(0)
    if row < out.size:
        for b in range(lane, w.shape[1], 32):
            byte = np.int32(w[row, b])
            pair = np.float32((byte & 15) - 8) * x[2 * b] + np.float32((byte >> 4) - 8) * x[2 * b + 1]
            total += scales[row, 2 * b // 32] * pair
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


assert check("quantisation/warps", warps_answer)

# %% [markdown]
# *A warp a row.* A byte has two neighbours, which belong to one group. So the scale is multiplied once for both.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def convolution_answer(x, w, factors, zero, out):
    i = cuda.grid(1)
    if i < out.size:
        k, q, row = i % out.shape[3], i // out.shape[3] % out.shape[2], i // (out.shape[3] * out.shape[2])
        n, p, total = row // out.shape[1], row % out.shape[1], np.int32(0)
        for tap in range(9):
            r, s = tap // 3, tap % 3
            inside = 0 < p + r <= x.shape[1] and 0 < q + s <= x.shape[2]
            for c in range(x.shape[3]):
                number = np.int32(x[n, p + r - 1, q + s - 1, c]) if inside else zero
                total = np.int32(total + number * np.int32(w[k, r, s, c]))
        out[n, p, q, k] = min(max(cuda.libdevice.float2int_rn(np.float32(total) * factors[k]), -128), 127)


assert check("quantisation/convolution", convolution_answer)

# %% [markdown]
# *A convolution.* The zero point is multiplied like any number of x. The sum stays in int32 until it is complete, and
# is requantised once.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def two_answer(w, out):
    first = 4 * cuda.grid(1)
    if first < w.size:
        for i in range(4):
            own, before = w[first + i], 0
            for j in range(4):
                other = w[first + j]
                if abs(other) > abs(own) or (abs(other) == abs(own) and j < i):
                    before += 1
            out[first + i] = own if before < 2 else np.float32(0)


assert check("quantisation/two_of_four", two_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
print(f"two of four: {(2 * 4 + 2 * 2) / 4} bits a weight; groups of 32: {4 + 32 / 32} bits, and of 128: {4 + 32 / 128}")
for group in (128, 32):
    cut = w.reshape(-1, group)
    back = (
        quantisation.reference(cut, s := calibration.calibrate(cut, bits=4, per_channel=True)[0], None, 4) * s[:, None]
    )
    print(f"groups of {group}: error {np.sqrt(np.mean((back - cut) ** 2)):.4f}")

# %% [markdown]
# *Two of four.* Counting who comes before is free of branches that depend on one another, and it settles ties: an
# element of equal size counts only if it stands further left. Two weights of 4 bits and two places of 2 bits are 12
# bits for four weights.
#
# *Groups.* A scale for 32 is a whole bit for each weight. The largest of 32 normal numbers is smaller than that of 128,
# by a fifth or so, and so is the error. A bit spent on the weight itself would halve it.
#
# *Two float16.* The second matrix has eight columns, and one vector fills one of them. The other part of x can be the
# next column. Then the instruction is the same, and the two results are added.
#
# Go on with [chapter 78](78_gradients_of_pooling_and_activations.ipynb): the gradients of pooling and activations.
