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
# # 60. The FFT of any length
#
# *Lengths that are no power of two, butterflies of 3, 5, 7, 11 and 13 points, lines as matrices, reversed digits, odd
# pitches, chirps, convolution around a circle, primes. Read chapter [58](58_fft.ipynb) before. 60 minutes. PMPP 4e:
# section 16.5; 5e: chapter 19. The book only names the FFT. The code is
# [pmpp/kernels/fft/any_length.py](../pmpp/kernels/fft/any_length.py).*
#
# [Chapter 58](58_fft.ipynb) transforms lines of 1,024 points. Many things have another length: our photograph has 600
# rows, a year has 365 days, and a second of sound has 44,100 values. The transforms of chapter 58 refuse
# them all, with the advice to pad with zeros. We shall see why that is another question.
#
# **The question of this chapter: why does a fast transform like powers of two, and what does a prime cost?**

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.fft import any_length, any_length_planes, ladder, passes, radices
from pmpp.kernels.fft.chirps import exact_chirp
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Why not pad?
#
# Here are 364 days, 52 weeks, of a number that rises and falls with the week. In a spectrum of 364 values a week is
# frequency 52: one value. We pad with zeros to 512 and look again.

# %%
days = np.arange(364)
week = np.exp(2j * np.pi * days / 7).astype(np.complex64)
exactly = np.abs(device.to_host(any_length.fused(week)))
padded = np.abs(device.to_host(ladder.vectorised(np.pad(week, (0, 148)))))
figure, ax = chart(3.2)
ax.plot(np.arange(512) / 512, padded, ".-", color=palette.COLOURS[1], label="padded to 512")
ax.plot(days / 364, exactly, "o", mfc="none", color=palette.COLOURS[0], label="364 values")
ax.set(xlim=(0.1, 0.19), xlabel="turns a day", ylabel="size", title="A week, in 364 values and in 512")
ax.legend()
figure

# %% [markdown]
# With 364 values, all are zero but one, at 1/7 of a turn a day. With 512 there is no value at 1/7, since 512 is no
# multiple of 7, and so the wave is smeared over all values near it. The padded spectrum is the right answer to another
# question: what is in 364 days of a wave, followed by 148 days of nothing? So the length belongs to the question.
#
# ## The bound
#
# It is that of chapter 58. A transform reads 8 bytes a point and writes as many, and by convention it is said to have
# $5 n \log_2 n$ operations, whatever n is. We take 1,000 points, and 1,009, which is a prime.

# %%
ceilings = roofline.ceilings("any_length")
for n in (1000, 1009, 1024):
    cost = any_length.cost(2**26 // n, n)
    bound = roofline.bound(cost, ceilings)
    print(
        f"{n:5} points: {cost.intensity:.2f} FLOP a byte, bound by {bound.side}, {bound.seconds * 1e3:.3f} ms at least"
    )

# %% [markdown]
# All three should take the time of a copy. Times come from a record, with cuFFT in the same run.


# %%
def measured(*names, family):
    """Print recorded times at the design size."""
    try:
        store = record.load()
        for entry in store.design("any_length", family):
            if entry.contender in names:
                share = entry.bytes / entry.seconds / store.ceilings("any_length").bandwidth
                n = entry.sizes["n"]
                print(f"{n:5} points  {entry.contender:14}{entry.median_ms:9.3f} ms{share:8.1%} of the roof")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


measured("cupy.cufft", family="smooth")
measured("cupy.cufft", family="prime")

# %% [markdown]
# NVIDIA's library needs several times as long for nine points more. That is the price of a prime there. Does it have to
# be so high?
#
# ## The reference, and the first rung
#
# The definition does not ask what n is, so `naive` is almost the first rung of chapter 58. Only the remainder of j k
# modulo n needs another way. For a power of two it was the low bits. Here `turn` advances by k at each step, and n is
# subtracted when it gets too large.

# %%
show(any_length.naive_kernel)

# %% [markdown]
# ## A convolution
#
# *Bluestein's algorithm* (1968) uses the transforms that we have for *every* length. It begins with a formula:
#
# $$j k = \frac{j^2 + k^2 - (k - j)^2}{2}.$$
#
# We put it into the definition. The *chirp* is $c_k = e^{-i \pi k^2 / n}$: a wave that turns faster and faster. With
# it, the transform becomes
#
# $$X_k = \sum_j x_j \, e^{-2 \pi i j k / n} = c_k \sum_j (x_j c_j) \, \bar c_{k - j}.$$
#
# In words: multiply the line by the chirp. Slide the conjugate chirp along it and sum the products, which is a
# convolution. Multiply by the chirp once more.

# %%
n, m = 24, 64
chirp, around = exact_chirp(n), np.zeros(m)
around[:n], around[m - n + 1 :] = chirp.real, chirp.real[:0:-1]
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
axes[0].plot(np.linspace(0, n, 999), np.cos(np.pi * np.linspace(0, n, 999) ** 2 / n), color="lightgrey")
axes[0].plot(chirp.real, "o", color=palette.COLOURS[0])
axes[0].set(title="the chirp of 24 points, real part", xlabel="k")
axes[1].plot(around, "o", color=palette.COLOURS[1])
axes[1].axvspan(n - 0.5, m - n + 0.5, color=palette.INK, alpha=0.15)
_ = axes[1].set(title="its conjugate, around a circle of 64 points", xlabel="k - j, modulo 64")
# %% [markdown]
# On the left, the grey line is the wave, and the points are the values that we use. In the second half it turns by more
# than half a turn from one point to the next, so the points no longer look like a wave. On the right, the chirp stands
# at the place of each difference k - j. Differences go from -23 to 23. Negative ones lie at the end, since a transform
# of m points convolves *around a circle*. The gap, shaded grey, holds zeros and may be of any width. But if the circle
# has fewer than 2 n - 1 points, two differences meet in one place.
#
# So m can be any length from 2 n - 1 on. We take the smallest power of two. The spectrum of the chirp is a table,
# computed once. What is left is a transform of m points, a product with the table, and a transform back.
#
# **Predict, then run.** For n = 1,009, these two transforms have how many times the operations of one transform of
# 1,024 points? Count $5 m \log_2 m$ for each, and leave out the products.

# %%
guess = None  # times as many

m = any_length.power_of_two(1009)
predict(guess, 2 * m * math.log2(m) / (1024 * math.log2(1024)), unit="times as many")

# %%
print(f"m = {m}: two transforms of {5 * m * math.log2(m):,.0f} operations, against {5 * 1024 * 10:,}")

# %% [markdown]
# A little over four times: two transforms, each of twice the points. If 2 n - 1 is just above a power of two, it is
# twice that again. Here are the three small kernels around the transforms.

# %%
show(any_length.chirp_kernel)

# %%
show(any_length.product_kernel)


# %%
def noise(*shape):
    rng = np.random.default_rng(60)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def moved(reports):
    """Bytes of all sectors that kernels asked device memory for."""
    return 32 * sum(one.counters[f"global_{way}_sectors"] for one in reports for way in ("load", "store"))


show(any_length.cut_kernel)

# %% [markdown]
# The way back is a forward transform, too: conjugate, transform, conjugate. `product_kernel` does the first of these,
# and `cut_kernel` the last.
#
# That makes five kernels, and each reads and writes all of its lines.
#
# **Predict, then run.** All five together ask device memory for how many times the bytes of one trip, if lines have
# 1,009 points? One trip is 16 bytes a point. A sector of 32 bytes counts each time that a kernel asks for it, and the
# tables count, too.

# %%
guess = None  # times the bytes

lines = noise(4, 1009)
by_trips = lab.count(any_length.bluestein, lines).reports
predict(guess, moved(by_trips) / (2 * lines.nbytes), unit="times the bytes")

# %%
for report in by_trips:
    print(f"{report.kernel:16}{moved([report]) / (2 * lines.nbytes):6.2f} times the bytes of one trip")
measured("naive", "bluestein", "cupy.cufft", family="prime")

# %% [markdown]
# Between the first kernel and the last, lines have 2,048 points, so a trip alone is two trips of ours. What a kernel
# has beyond that is tables: chirps, the spectrum and twiddle factors. They are small, and most of their sectors come
# from a cache. So the recorded time is shorter than a copy of all these bytes would be.
#
# ### Exercise: the chirp
#
# Write the first of the three kernels. Mind where the angle repeats.

# %%
exercise("any_length/chirp")


# %%
@cuda.jit
def chirp_kernel(x, turns, out):
    pass  # your code


check("any_length/chirp", chirp_kernel)

# %% [markdown]
# ## A line is a matrix
#
# For n = 1,000 a convolution is a detour. Chapter 58 made the whole of two halves. If $n = a b$, it can be made of $a$
# parts in the same way. Write point $j = j_1 b + j_2$ into row $j_1$ and column $j_2$ of a matrix of $a$ rows and $b$
# columns, and number the results $k = k_1 + a k_2$. Then
#
# $$X_{k_1 + a k_2} = \sum_{j_2} e^{-2 \pi i j_2 k_2 / b} \; \Big[ e^{-2 \pi i j_2 k_1 / n}
# \sum_{j_1} x_{j_1 b + j_2} \, e^{-2 \pi i j_1 k_1 / a} \Big].$$
#
# Read it from the inside. Each column is transformed: $a$ points that lie $b$ apart. Its result $k_1$ is turned by a
# root of unity. Then each row is transformed: $b$ points side by side. Here it is for 15 points.

# %%
a, b = 3, 5
x = noise(a * b).astype(np.complex128)
rows, columns = np.arange(a)[:, None], np.arange(b)
matrix = np.fft.fft(x.reshape(a, b), axis=0)  # all columns
matrix *= np.exp(-2j * np.pi * rows * columns / (a * b))
matrix = np.fft.fft(matrix, axis=1)  # all rows
places = [int(np.abs(np.fft.fft(x) - value).argmin()) for value in matrix.reshape(-1)]
print("which point is where:  ", np.arange(a * b).reshape(a, b).tolist())
print("which result is where: ", np.reshape(places, (a, b)).tolist())

# %% [markdown]
# Results 0, 1 and 2 stand in a column. That is $k = k_1 + 3 k_2$: the digit that is lowest in a result's number is
# highest in the number of its place. With three factors all three digits are reversed.
#
# If a row is long, it is a matrix again. So there is a pass for each factor of n, and a pass of radix r consists of
# transforms of r points. That is an FFT of *mixed radix*. Powers of two are nothing special here: 2, 4 and 8 were only
# the first radices that we had.
#
# ## Butterflies
#
# A thread does a transform of r points in registers. For r = 3 or 5 we could write out the definition. It is better to
# pair the points first. Points k and p - k of a prime p meet the same cosine, and opposite sines:

# %%
show(radices.butterfly5)

# %%
show(radices.pair5)

# %% [markdown]
# Results m and p - m share all products, and all products are with real numbers. Radices 6, 10, 12 and 15 are made of
# two smaller ones whose remainders number the points, so that no factors stand in between (Good 1958).
#
# What does a point cost? We count the operations of each butterfly. A radix of 16 does the work of four passes of
# radix 2, so a fair comparison divides by $\log_2 r$.


# %%
def operations(r):
    """FLOP of a butterfly of r points, for each point."""
    turn = passes.transform(r)

    @cuda.jit
    def one_butterfly(x):
        v = cuda.local.array(16, np.complex64)
        for k in range(r):
            v[k] = x[k]
        turn(v)
        for k in range(r):
            x[k] = v[k]

    return simt.profile(one_butterfly, 1, 1, (noise(16),)).counters["flops"] / r


# %%
figure, ax = chart(3.4)
work = {r: operations(r) / math.log2(r) for r in radices.BUTTERFLIES if r > 1}
ax.plot(work.keys(), work.values(), "o", color=palette.COLOURS[0])
ax.axhline(work[2], color=palette.INK, linestyle="--", label="radix 2: a complex sum a point")
for r, height in work.items():
    ax.annotate(str(r), (r, height), textcoords="offset points", xytext=(4, 4))
ax.set(xlabel="radix", ylabel="operations a point and halving", title="Butterflies: what a point costs", ylim=(0, None))
ax.legend()
figure

# %% [markdown]
# Here is the first part of the answer. Powers of two are cheap, because many of their roots are 1, -1, i and -i, and a
# product with these is no multiplication. Products of 4 gain from it, too: radix 12 is as cheap as 16. Among the primes
# the price grows, and radix 13 takes three and a half times as much as radix 2 for the same progress. But this is
# arithmetic, and arithmetic is not the bound: whatever the prime, the pass moves the same bytes.
#
# ## All passes in a block: `mixed_radix`
#
# The passes follow one another in shared memory. Here is one in the middle. It is made for one plan, in which all sizes
# are constants. So the compiler turns each division into a multiplication, and unrolls each loop over k.

# %%
show(passes.pass_in_place)

# %% [markdown]
# A butterfly writes to where it has read. So no other butterfly is in its way, and one barrier a pass is enough. A
# thread may also do several butterflies in turn: 1,001 points are 77 butterflies of 13, 143 of 7 or 91 of 11, and the
# block has 96 threads for each of these passes. Chapter 58 wrote each pass to other places, so that results end in
# order. Here only the last pass, which writes to device memory anyway, puts them in order:


# %%
@cuda.jit
def apart(step, out):
    points = cuda.shared.array(4096, np.int64)
    t = cuda.threadIdx.x
    points[t * step] = t
    out[t] = points[t * step]


show(passes.last_pass)

# %% [markdown]
# Neighbouring threads write neighbouring results t, so stores to device memory are side by side. The price is paid
# where they *read*: the lowest digit of t is the highest of its place. So neighbours read n / r1 places apart, and a
# place has 8 bytes. For 256 = 16 x 16 points that is 16 places.
#
# **Predict, then run.** A warp loads one place for each lane, and neighbours are 16 places apart. In how many
# wavefronts is the load served? In a wavefront the banks serve 128 bytes, 4 from each bank.

# %%
guess = None  # wavefronts


def wavefronts(step):
    return simt.profile(apart, 1, 32, (step, np.zeros(32, np.int64))).counters["shared_load_wavefronts"]


predict(guess, wavefronts(16), unit="wavefronts")

# %%
for step in (1, 7, 10, 16, 17, 91, 100, 101):
    print(f"{step:4} place{'s' * (step > 1)} apart: {wavefronts(step):3} wavefronts; 2 is the least for 32 x 8 bytes")

# %% [markdown]
# A step of 16 places is 128 bytes, so all lanes want the same two banks, and each waits for all others. Every odd step
# is free of conflicts. So each run of n / r1 places gets one unused place behind it, if n / r1 is even. That is `pitch`
# in a `Plan`:

# %%
for n in (100, 243, 1000, 1001, 4095):
    plan = passes.rows(n)
    used = f"{plan.lines} line{'s' * (plan.lines > 1)} a block, {plan.threads} threads, pitch {plan.pitch}"
    print(f"{n:5} = {' x '.join(map(str, plan.radices)):16}{used}")

# %%
show(any_length.lines_kernel)

# %%
measured("naive", "bluestein", "mixed_radix", "cupy.cufft", family="smooth")

# %% [markdown]
# It is one trip, as for 1,024 points, and the time is a little behind that of cuFFT.
#
# A line that no block can hold is a matrix in device memory. One kernel transforms its columns, and a second one the
# columns of the matrix turned on its side. The first writes its columns as rows, so that turning costs nothing. These
# are two trips.
#
# ### Exercise: a pass of radix 3

# %%
exercise("any_length/thirds")


# %%
@cuda.jit
def thirds(x, roots, out):
    pass  # your code


check("any_length/thirds", thirds)

# %% [markdown]
# ### Exercise: digits in order

# %%
exercise("any_length/digits")


# %%
@cuda.jit
def digits(x, a, b, c, out):
    pass  # your code


check("any_length/digits", digits)

# %% [markdown]
# ## What does a prime cost? `fused`
#
# A butterfly of 1,009 points would be the definition again, with a million products. So a large prime is a convolution
# after all. But now we can do a transform inside a block, and the convolution is two transforms and three products. All
# of it fits into one kernel.
#
# Two things make it cheap. The first is the length: around the circle any length from 2,017 on will do, and the plan
# takes the product of radices with the least work. The second is the order. The transform there leaves its results in
# reversed digits, and that does no harm: each result is multiplied by the value of the chirp's spectrum that belongs to
# it, and the way back starts from where the results are. So the last pass there and the first pass back are done in the
# same registers:

# %%
show(passes.turn_round)

# %%
show(any_length.convolution_kernel)

# %% [markdown]
# `read_chirped` reads a point and multiplies it by the chirp, and gives 0 beyond the end of the line.
#
# **Predict, then run.** We count again what is asked of device memory for our lines of 1,009 points, tables included.
# How many per cent of the bytes of `bluestein` are those of `fused`?

# %%
guess = None  # %

in_a_block = lab.count(any_length.fused, lines).reports
predict(guess, 100 * moved(in_a_block) / moved(by_trips), unit="%")

# %%
plan = passes.rows(any_length.circle(1009))
counts = in_a_block[0].counters
print(f"{len(by_trips)} kernels became {len(in_a_block)}; {plan.n} points around the circle, radices {plan.radices}")
print(f"{counts['barriers'] // in_a_block[0].grid[0]} barriers a block")
for way in ("load", "store"):
    print(
        f"{32 * counts[f'global_{way}_sectors'] / lines.nbytes:5.2f} times the points' bytes in sectors of each {way}"
    )

# %%
measured("naive", "bluestein", "mixed_radix", "fused", "cupy.cufft", family="prime")

# %% [markdown]
# For 1,009 points the least work is that of 2,048 after all. Each point is stored about once. The loads are many times
# as much, and most of them are tables: chirp, spectrum and twiddle factors, which all blocks share. Even so the kernel
# is twice as fast as cuFFT. It stays below half of the roof, so what bounds it is no longer one trip through device
# memory, but the work in the block. Each point of a line stands for two around the circle, and each of these goes four
# times through shared memory, and through six butterflies.
#
# A convolution that no block can hold, as for 10,007 points, is a matrix as well: columns, rows there and back,
# columns. That is three trips, and the order of the digits does not matter there either.
#
# ## A map of all lengths
#
# What does each length cost? Here is the number of instructions a point that the plans count on, for all n up to 1,500.

# %%
lengths = np.arange(2, 1501)
direct = np.array([passes.work_of(n) / n for n in lengths])
around = np.array([2 * passes.work_of(any_length.circle(n)) / n for n in lengths])
figure, ax = chart(3.8)
ax.plot(lengths, np.where(np.isfinite(direct), np.nan, around), ",", color=palette.COLOURS[1])
ax.plot(lengths, np.where(np.isfinite(direct), np.nan, around), ".", ms=2, color=palette.COLOURS[1], label="convolved")
ax.plot(lengths, direct, "o", ms=3, color=palette.COLOURS[0], label="butterflies for all factors")
ax.set(xlabel="points", ylabel="instructions a point", title="The work of a point", ylim=(0, None))
ax.legend()
print(f"{np.isfinite(direct).mean():.0%} of these lengths have butterflies for all their factors")

# %%
figure

# %% [markdown]
# There are two bands. From 100 points on, lengths whose prime factors are at most 13 need 50 to 100 instructions a
# point. All others need three to four times that. They need not be prime: 1,007 = 19 x 53 is no better than 1,009. In
# the upper band each falling stroke has one circle, which serves longer and longer lines until it is too short.
#
# Here are measured rates. A mark is a length, filled for us and open for cuFFT.


# %%
def by_length():
    """The rate of each measured length, of `fused` and of cuFFT."""
    store = record.load(room="any_length")
    figure, ax = chart(4.2)
    entries = [entry for entry in store.entries("any_length", family="lengths") if entry.kind in ("rung", "library")]
    for (name, own), colour in {("fused", True): 0, ("cupy.cufft", False): 3}.items():
        for smooth, mark in ((True, "o"), (False, "^")):
            some = [
                e for e in entries if e.contender == name and (passes.radices_of(e.sizes["n"]) is not None) == smooth
            ]
            face = {} if own else {"mfc": "white"}
            label = f"{name}, {'small factors' if smooth else 'a large prime factor'}"
            xs, ys = [e.sizes["n"] for e in some], [e.bytes / e.seconds / 1e12 for e in some]
            ax.plot(xs, ys, mark, color=palette.COLOURS[colour], label=label, **face)
    ax.axhline(store.ceilings("any_length").bandwidth / 1e12, color=palette.INK, label="a copy")
    ax.set(xscale="log", xlabel="points of a line", ylabel="TB/s, 16 bytes a point", ylim=(0, 6))
    ax.set_title("Lines of many lengths, $2^{26}$ points in all")
    ax.legend(fontsize=8, loc="upper right", ncols=3)
    foot(figure, store.footer("any_length"))
    return figure


plots.drawn(by_length)

# %% [markdown]
# Read the circles first. Lengths with small factors reach nearly the rate of a copy, up to about a thousand points.
# Beyond that our rate falls, and we have not found out why. That of cuFFT falls at some of these lengths, too, and
# there further than ours. At 10,000 points our one trip turns into two, and cuFFT is well ahead.
#
# The triangles are lengths with a large prime factor. From 127 points on the convolution in a block is ahead, and so is
# the matrix for 10,007 points. At 31 points it is not: cuFFT hardly slows down for this prime. A butterfly of 31 points
# should serve us better there than a circle.
#
# ## Real numbers, and planes
#
# Real numbers have half spectra for every length, too (`pmpp/kernels/fft/any_length_real.py`). For an even n neighbours
# are paired, as in chapter 58, and the spectra come apart on their way out of shared memory. For an odd n there are no
# pairs. Then a block transforms complex numbers whose imaginary parts are 0, and writes half of the results.
#
# Along several axes there is a pass for each (`pmpp/kernels/fft/any_length_planes.py`). Chapter 58 cut its photograph
# to 512 pixels a side before it took stripes off. Now any size will do: here is every fourth pixel of 596 rows.

# %%
grey = data.photograph().mean(axis=2)[:596:4, ::4]
y, x = np.mgrid[: grey.shape[0], : grey.shape[1]]
striped = (grey + 80 * np.sin(2 * np.pi * (9 * y / grey.shape[0] + 31 * x / grey.shape[1]))).astype(np.complex64)
spectrum = device.to_host(any_length_planes.fftn(striped))
peaks = np.argwhere(np.abs(spectrum) > 0.9 * 40 * grey.size)
for row, column in peaks[1:]:
    spectrum[row, column] = 0
restored = device.to_host(any_length_planes.fftn(spectrum, inverse=True)).real
print(f"{grey.shape[0]} rows, a prime, of {grey.shape[1]} pixels; peaks at", [tuple(map(int, p)) for p in peaks])
for name, picture in {"with stripes": striped.real, "restored": restored}.items():
    print(f"mean error {name}: {np.abs(picture - grey).mean():.2f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
for ax, (title, picture) in zip(axes, {"striped": striped.real, "restored": restored}.items(), strict=True):
    ax.imshow(picture, cmap="gray")
    ax.set_title(title)
    ax.axis("off")

# %% [markdown]
# The stripes turn a whole number of times over the picture, 9 times down and 31 times across. So they are two values of
# its spectrum; the third peak is frequency 0, the mean brightness. We put 0 in the place of the two. What the picture
# itself had there goes, too, and that is the small error which is left.
#
# ## How exact is it?
#
# A convolution does two transforms where one was asked for, of lines twice as long. And the chirp's spectrum is not
# flat: its largest value is about twice $\sqrt n$, so errors can grow by a factor of two. The bound that the room
# derives, `error_of_convolution`, has both in it.

# %%
sizes, errors = [16, 100, 243, 1000, 1001, 17, 101, 251, 509, 1009], []
for n in sizes:
    x = noise(4, n)
    exact = np.fft.fft(x.astype(np.complex128))
    errors.append(np.linalg.norm(device.to_host(any_length.fused(x)) - exact) / np.linalg.norm(exact))

# %%
figure, ax = chart(3.6)
convolved = [passes.radices_of(n) is None for n in sizes]
for is_prime, mark, name in ((False, "o", "by radices"), (True, "^", "convolved")):
    some = [i for i, c in enumerate(convolved) if c == is_prime]
    ax.plot([sizes[i] for i in some], [errors[i] for i in some], mark, color=palette.COLOURS[is_prime], label=name)
    bounds = [any_length.error_of_convolution(sizes[i], any_length.circle(sizes[i])) if is_prime
              else any_length.error_of_radices(sizes[i]) for i in some]  # fmt: skip
    ax.plot([sizes[i] for i in some], bounds, mark, mfc="none", color=palette.INK, label=f"the bound, {name}")
ax.set(xscale="log", yscale="log", xlabel="points", ylabel="relative error (2-norm)", title="Rounding errors")
ax.legend(fontsize=8)
figure

# %% [markdown]
# All errors are between once and about three times that of a single rounding, $6 \cdot 10^{-8}$. A convolution is off
# by up to twice as much as radices of about the same length. The bounds lie far above the errors: they add up the
# largest error of every step, and real errors have either sign and mostly cancel.
#
# ## The ladder
#
# First 1,000 points, then 1,009. The solid line is what a copy reaches.

# %%
plots.drawn(plots.ladder, "any_length", family="smooth")

# %%
plots.drawn(plots.ladder, "any_length", family="prime")

# %%
plots.drawn(plots.roofline, "any_length", family="prime")

# %% [markdown]
# With 1,000 points `mixed_radix` comes close to a copy. With 1,009 it has no radices, hands over to `bluestein`, and
# takes the same time. Only `fused` keeps the convolution in the block, and it is twice as fast as the libraries.
#
# The roofline has the operations and bytes that we counted at the beginning, whatever a rung does. So all marks stand
# at the same intensity, left of the ridge, where memory is the bound. The distance of the last rung from the roof is
# the work that the convolution adds.
#
# Is the journey to the GPU worth it? Here are NumPy on one core of the CPU, the kernel alone, and the kernel with the
# call and both transfers, for lines of 1,009 points.

# %%
plots.drawn(plots.cpu_gpu, "any_length", family="batches", xlabel="lines")

# %% [markdown]
# One line is faster on the CPU. With 16 lines the GPU is a little faster, transfers included, and with more the journey
# pays. The kernel alone takes about the same time for one line as for 1,024: so few lines do not fill the GPU.
#
# ## What to take along
#
# 1. A fast transform needs factors, and no particular ones. Powers of two have cheap butterflies, and that is all.
# 2. Whatever the radix, a pass moves the same bytes. So up to 13 the price is arithmetic, which is not the bound.
# 3. A large prime is a convolution, twice as long and there and back: about four times the work.
# 4. Passes in place need one barrier and no second array. Their results are in reversed digits: let the pass that
#    writes elsewhere anyway put them in order, or let nobody mind.
# 5. An odd pitch keeps the banks apart.
# 6. Sizes that are constants cost little to divide by.
#
# `fft.fft`, `ifft`, `rfft` and `irfft` take any length, and all that are no powers of two by what this chapter built.
#
# ## Exercises
#
# Three stand in the text above. Two are left.
#
# **Rader's way, without a check.** 1,008 = 1,009 - 1 has small factors only. Rader (1968) turns a transform of 1,009
# points into a convolution of exactly 1,008: the numbers 1 to 1,008 are the powers of one of them, modulo 1,009. What
# would that save against a circle of 2,048 points, and what would it cost?
#
# **Orders of passes, without a check.** 364 points are 4 x 7 x 13. A block does several lines, and what a warp reads or
# writes in device memory should be long runs of neighbours. In which order would you do the passes?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def chirp_answer(x, turns, out):
    i = cuda.grid(1)
    if i < out.size:
        m, n = out.shape[1], x.shape[1]
        line, j = i // m, i % m
        out[line, j] = x[line, j] * turns[j * j % (2 * n)] if j < n else np.complex64(0)


assert check("any_length/chirp", chirp_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def thirds_answer(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m], x[t + 2 * m]
        w, w2 = roots[m], roots[2 * m]  # the third roots of unity
        out[t] = a + b + c
        out[t + m] = (a + b * w + c * w2) * roots[t]
        out[t + 2 * m] = (a + b * w2 + c * w) * roots[2 * t]


assert check("any_length/thirds", thirds_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def digits_answer(x, a, b, c, out):
    i = cuda.grid(1)
    if i < out.size:
        k1, k2, k3 = i % a, i // a % b, i // (a * b)
        out[i] = x[(k1 * b + k2) * c + k3]


assert check("any_length/digits", digits_answer)

# %% [markdown]
# *Rader.* Two transforms of 1,008 points instead of two of 2,048 have about half of the arithmetic and of the
# exchanges. In return the points are read, and the results written, in the order of the powers, and neighbours in that
# order are no neighbours in memory. So both go through shared memory once more, by a table of places. Each prime p
# needs a number whose powers reach all others, and p - 1 must have small factors itself.
#
# *364 points.* In the first pass neighbours in memory are runs of 364 / r1 points, and in the last pass of 364 / r3.
# With 13 in the middle the runs have 52 and 91 points, or 91 and 52. The room's plans do the opposite: the largest
# radices come first and last. These passes wait for memory, and a thread has as many points on their way as its radix
# says.
#
# Go on with [chapter 61](61_fft_in_one_trip.ipynb): longer lines in fewer trips through memory.
