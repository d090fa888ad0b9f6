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
# # 58. The fast Fourier transform
#
# *Roots of unity, stages and butterflies, Stockham's order, trips through memory, three stages in registers, padding,
# columns, rounding errors, half spectra. Read chapters [16](16_transpose.ipynb) and [20](20_memory_or_compute.ipynb)
# before. 60 minutes. PMPP 4e: section 16.5; 5e: chapter 19. The book only names it. This chapter prepares
# [chapter 70](70_convolution_by_fft.ipynb). The code is [pmpp/kernels/fft/ladder.py](../pmpp/kernels/fft/ladder.py).*
#
# The *discrete Fourier transform* says how much of each frequency is in a row of n numbers:
#
# $$X_k = \sum_{j=0}^{n-1} x_j \, e^{-2 \pi i j k / n}.$$
#
# That is n products for each of n results. There is a way to do it with about log n for each, and it is one of the
# most used algorithms there are. On a GPU even that is not the end of the story: for a thousand points there are ten
# stages, and if each of them goes through memory, nothing of the arithmetic matters.
#
# **The question of this chapter: how many times must the numbers travel, and how far?**

# %%
import linecache

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import fft
from pmpp.kernels.fft import real
from pmpp.kernels.fft.butterflies import butterfly4, butterfly8, padded
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.vector import store128

plt.rcParams.update(STYLE | {"axes.grid": False})
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A photograph through a blind
#
# What is it good for? Here is a photograph with stripes over it, as from a scanner. In the picture every pixel is
# spoilt. But a stripe is a wave, and a wave is one frequency, so in the spectrum only a few numbers are.

# %%
grey = data.photograph().mean(axis=2)[:512:2, :512:2]
y, x = np.mgrid[:256, :256]
striped = (grey + 40 * np.sin(2 * np.pi * (20 * y + 31 * x) / 256)).astype(np.complex64)
spectrum = device.to_host(fft.vectorised(striped, axes=2))
peaks = np.argwhere(np.abs(spectrum) > 1e6)
print("values above a million, at (row, column):", [tuple(map(int, p)) for p in peaks])

# %% [markdown]
# The first is the mean of the picture, frequency 0. The other two are the wave: a real wave is a sum of two complex
# ones that turn in opposite directions. We set these two to 0 and transform back.

# %%
cleaned = spectrum.copy()
for row, column in peaks[1:]:
    cleaned[row, column] = 0
restored = device.to_host(fft.vectorised(cleaned, True, 2)).real
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
sizes = np.log(np.abs(np.fft.fftshift(spectrum)))
shown = {"striped": striped.real, "its spectrum (log)": sizes, "restored": restored}
for ax, (title, picture) in zip(axes, shown.items(), strict=True):
    ax.imshow(picture, cmap="gray")
    ax.set_title(title)
    ax.axis("off")
axes[1].plot(*(peaks[1:, ::-1].T + 128) % 256, "o", ms=12, mfc="none", color=palette.OWN)
for name, picture in {"with stripes": striped.real, "restored": restored}.items():
    print(f"mean error {name}: {np.abs(picture - grey).mean():.1f}")

# %% [markdown]
# `fftshift` only moves frequency 0 to the middle of the picture. The two points in the circles are the stripes.
#
# ## The bound
#
# A fast transform takes about $5 n \log_2 n$ operations: we shall count them. It reads n complex numbers of 8 bytes
# and writes as many. In two dimensions it does all rows, then all columns, which is one more trip for every number.
#
# Our case is 65,536 lines of 1,024 points.
#
# **Predict, then run.** How many operations does it have for each byte?

# %%
guess = None  # FLOP/byte

predict(guess, fft.cost(65536, 1024).intensity, unit="FLOP/byte")

# %%
ceilings = roofline.ceilings("fft")
for what, cost in {
    "65536 lines of 1024": fft.cost(65536, 1024),
    "64 planes of 1024 x 1024": fft.cost(64, 1024, 1024),
    "1 line of 2^32": fft.cost(1, 2**32),
}.items():
    bound = roofline.bound(cost, ceilings)
    print(f"{what}: {cost.intensity:.2f} FLOP a byte, bound by {bound.side}, {bound.seconds * 1e3:.3f} ms at least")
print(f"The ridge of this GPU is at {ceilings.fma_f32 / ceilings.bandwidth:.0f} FLOP a byte.")

# %% [markdown]
# About three operations a byte are far below the ridge, so the memory is the bound. The operations for a byte grow with
# $\log_2 n$ alone: even one line of $2^{32}$ points, 34 GB, stays below the ridge. So a transform should take the
# time of a copy. Times in this chapter come from a record of a named GPU, with NVIDIA's library cuFFT in the same run,
# planned beforehand.


# %%
def measured(*names, family="lines"):
    """Print recorded times at the design size."""
    try:
        store = record.load()
        for entry in store.design("fft", family):
            if entry.contender in names:
                share = entry.bytes / entry.seconds / store.ceilings("fft").bandwidth
                print(f"{family:8}{entry.contender:16}{entry.median_ms:9.3f} ms{share:8.1%} of the roof", end="")
                print(f"{1 / share:8.1f} times the bound")
    except record.RecordError as missing:
        print("There are no times to show:", missing)


measured("cupy.cufft", "torch.fft")

# %% [markdown]
# (PyTorch calls cuFFT, too, and takes longer. We have not looked why. We compare with the faster of the two.)
#
# ## The reference, and the first rung
#
# The definition, in float64. The factors $e^{-2 \pi i m / n}$ are the *n-th roots of unity*: n points on a circle, and
# m counts round it, so only `m % n` matters.

# %%
show(fft.reference)

# %%
show(fft.naive_dft_kernel)

# %% [markdown]
# A thread takes one result. The roots come from a table that the host computes in float64 and rounds once. `inner` is
# how far apart the points of a line lie: 1 in a row, and the length of a row in a column. So one kernel serves both
# axes. `j * k & n - 1` is `j * k % n`, because n is a power of two.
#
# **Predict, then run.** How many times the bound does that take, for our lines of 1,024 points? The power of ten will
# do.

# %%
guess = None  # times the bound


def seconds(name, family="lines"):
    """The recorded time at the design size."""
    return next(entry.seconds for entry in record.load().design("fft", family) if entry.contender == name)


least = roofline.bound(fft.cost(65536, 1024), ceilings).seconds
predict(guess, lambda: seconds("naive_dft") / least, unit="times the bound", factor=5)

# %%
measured("naive_dft", "cupy.cufft")

# %% [markdown]
# ## Two halves make the whole
#
# Sort the points into even and odd ones. With $w = e^{-2 \pi i / n}$ the sum falls into two,
#
# $$X_k = \sum_j x_{2j} \, w^{2jk} + w^k \sum_j x_{2j+1} \, w^{2jk} = E_k + w^k O_k,$$
#
# and since $w^2$ is a root for n / 2 points, E and O are transforms of half the length. They repeat after n / 2, and
# $w^{k + n/2} = -w^k$. So one product serves two results:
#
# $$X_k = E_k + w^k O_k, \qquad X_{k+n/2} = E_k - w^k O_k.$$
#
# This pair is a *butterfly*. There are n / 2 of them in a *stage*, and log2 n stages from single points to the whole
# (Cooley and Tukey 1965; Gauss had it in 1805).
#
# A butterfly is a complex product (6 operations) and two complex sums (2 each). The definition has a product and a sum,
# 8 operations, for each of n terms of n results.
#
# **Predict, then run.** How many times as many operations has the definition, for 1,024 points?

# %%
guess = None  # times as many

n = 1024
by_butterflies, by_definition = n // 2 * int(np.log2(n)) * 10, 8 * n * n
predict(guess, by_definition / by_butterflies, unit="times as many")

# %%
print(f"by butterflies {by_butterflies:,}, which is 5 n log2 n; by the definition {by_definition:,}")
print(f"The definition has {by_definition / by_butterflies:.0f} times as many.")

# %% [markdown]
# Here is the $5 n \log_2 n$ of the bound. The time need not fall by the same factor: we shall see.
#
# ## Where do the results go?
#
# Most textbooks write the results of a butterfly to where its points were. Then no second array is needed, and the
# price is that all results come out in the order of their *reversed bits*: number 6 = 110 lies at place 3 = 011. To
# put them right is a permutation in which neighbours never stay neighbours. After chapter 16 we know what that costs.
#
# *Stockham's* order writes elsewhere, and ends in order. Let the array hold spectra of s points, one behind the other.
# Spectrum m is that of the points m, m + n / s, m + 2 n / s and so on. The partner of spectrum m, which has the points
# in between, begins exactly half an array further on. So butterfly t reads places t and t + n / 2, in every stage, and
# writes a spectrum of 2 s points to where it belongs.

# %%
n, s = 8, 1
while s <= n:
    spectra = [" ".join(str(point) for point in range(m, n, n // s)) for m in range(n // s)]
    print(f"spectra of length {s}:  " + "  |  ".join(spectra))
    s *= 2

# %%
show(fft.stage_kernel)

# %% [markdown]
# `j` is the frequency in its spectrum, and `2 * t - j` is `2 * s * (t // s) + j`: the beginning of the pair's result,
# and then frequency j. Loads are side by side in every stage. Stores are in runs of s.
#
# A launch a stage, for lines of 1,024 points. If each store of a warp filled the sectors that it touches, a stage would
# touch as many as one trip of the array has. A sector of 32 bytes holds four points.
#
# **Predict, then run.** In how many of the ten stages do the stores touch more sectors than that?

# %%
guess = None  # stages


def noise(*shape):
    rng = np.random.default_rng(16)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


lines = noise(8, 1024)
stages = lab.count(fft.radix2_global, lines).reports
trips = [report.counters["global_store_sectors"] / (lines.nbytes // 32) for report in stages]
predict(guess, sum(trip > 1 for trip in trips), unit="stages")

# %%
print("sectors of each stage's stores, in trips:", *trips)
print("all stages together:", sum(trips))
measured("naive_dft", "radix2_global")

# %%
try:
    print(f"operations: {by_definition / by_butterflies:.0f} times fewer than by the definition", end=", ")
    print(f"time: {seconds('naive_dft') / seconds('radix2_global'):.0f} times less")
except record.RecordError as missing:
    print("There are no times to show:", missing)

# %% [markdown]
# The first two stages scatter: with s = 1 the sums go to every second place, and with s = 2 to two places of every
# four. From s = 4 on a run fills a sector. So ten stages store twelve trips. The time has fallen by a far smaller
# factor than the operations: now the bytes are what counts.
#
# ### Exercise: a stage
#
# Before we go on, write a stage yourself, for one line. `check` runs your kernel on awkward sizes, watches every
# access, and tells you what it saw. Our answer is at the end of the chapter, as for all exercises.

# %%
exercise("fft/stage")


# %%
@cuda.jit
def stage(x, roots, s, out):
    pass  # your code


check("fft/stage", stage)

# %% [markdown]
# ## One trip: `shared`
#
# 1,024 points are 8 KB. A block can keep that in shared memory from the first stage to the last. Each thread holds two
# points in registers; a stage is a product, two sums, and an exchange.

# %%
show(fft.shared_kernel)

# %% [markdown]
# Two barriers a stage: one so that nobody reads too early, one so that nobody overwrites what is still to be read.
# The last stage needs no exchange. Its results go to device memory, side by side.
#
# `place_of` says who does what, and in it lies the answer to a question that two dimensions ask: how are columns
# loaded? Not column by column. If a block takes several neighbouring columns, and neighbouring *threads* take
# neighbouring *columns*, each row that it loads is a piece of some neighbours, and sectors are used whole.

# %%
show(fft.place_of)

# %%
one_trip = lab.count(fft.shared, lines).reports
for name, reports in {"radix2_global": stages, "shared": one_trip}.items():
    moved = sum(report.counters["global_store_sectors"] + report.counters["global_load_sectors"] for report in reports)
    print(f"{name:16}{len(reports):3} launches, {32 * moved / (2 * lines.nbytes):5.1f} bytes moved for each that must")
measured("radix2_global", "shared")

# %%
for line, counts in one_trip[0].by_line.items():
    if moved := counts["global_store_sectors"] + counts["global_load_sectors"]:
        print(f"{32 * moved / lines.nbytes:5.1f} trips: {linecache.getline(one_trip[0].file, line).strip()}")
print(one_trip[0].counters["barriers"] // one_trip[0].grid[0], "barriers a block")

# %% [markdown]
# *x* and *out* travel once. The rest is roots, from a table so small that it stays in the caches. So the traffic to
# memory is what it should be, and the time is not. What is the kernel doing? Count what happens inside for each point:
# shared memory is written and read nine times, with eighteen barriers.
#
# ## Three stages in registers: `registers`
#
# A stage needs two points at a time because its spectra double. Three stages make one spectrum of 8 s points from
# eight of s. If a thread holds *eight* points, it can do all three without asking anyone. Such a pass is a transform of
# 8 points, and its roots are so simple that it needs hardly any multiplication: $-i$ only exchanges the two parts, and
# the eighth root has equal parts, $\sqrt{1/2}$.

# %%
show(butterfly4)

# %%
show(butterfly8)

# %% [markdown]
# Between passes each point is turned by its own root, a *twiddle factor*: seven products for eight points. In the
# table of these factors the j-th of all threads lie side by side, so that neighbours load neighbours.
#
# 512 points are 9 stages, or 3 passes. After each but the last the points are exchanged through shared memory.
#
# **Predict, then run.** Of the stores to shared memory in `shared`, how many per cent are left in `registers`?

# %%
guess = None  # %

lines = noise(8, 512)
counts = {}
for rung in (fft.shared, fft.registers):
    reports = lab.count(rung, lines).reports
    counts[rung.name] = reports[0].counters | {"blocks": reports[0].grid[0]}
stores = {name: count["shared_store_requests"] for name, count in counts.items()}
predict(guess, 100 * stores["registers"] / stores["shared"], unit="%")

# %%
for name, count in counts.items():
    print(f"{name:10}{count['shared_store_requests']:6,} stores of warps to shared memory", end="")
    print(f"{count['barriers'] // count['blocks']:4} barriers a block")
measured("shared", "registers")

# %% [markdown]
# A quarter of the exchanges: two instead of eight. (Lengths whose logarithm is no multiple of 3 begin with a pass of
# radix 2 or 4, which has no twiddle factors, four or two butterflies a thread.) Here is the kernel. `scaled8` with a
# `sign` makes an inverse of it: conjugate, transform, conjugate.

# %%
show(fft.registers_kernel)

# %% [markdown]
# ### Exercise: a line in one launch
#
# Put all stages of a line into one kernel, as `shared` does. Mind the barriers.

# %%
exercise("fft/line")


# %%
@cuda.jit
def line(x, roots, out):
    pass  # your code


check("fft/line", line)

# %% [markdown]
# ## Sixteen bytes: `vectorised`
#
# What is still wrong is the size of the pieces. Numba loads a complex number as two float32: two instructions, each of
# which uses half of every sector and every other bank. Two complex numbers are 16 bytes, one access of `load128`. So
# let a thread do the work of two neighbours: along a row these are two points of one line, along columns the same
# point of two lines.
#
# In shared memory 16-byte accesses are served eight lanes at a time, and these eight want eight different eighths of
# the 128 bytes that all banks hold. After a first pass of radix 8 a lane writes 16 numbers, 128 bytes, in a row:
# the same place modulo 128 as its neighbour. As in chapter 16, the remedy is padding, 16 unused bytes after each 128.

# %%
show(padded)


# %%
@cuda.jit
def first_store(pad):
    points, zero = cuda.shared.array(1200, np.float32, alignment=16), np.float32(0)
    store128(points, 2 * padded(16 * cuda.threadIdx.x, pad), (zero, zero, zero, zero))


stores = {
    name: simt.profile(first_store, 1, 32, (pad,), trace=True) for name, pad in {"plain": False, "padded": True}.items()
}
plots.banks(stores, "points")

# %% [markdown]
# The picture has eight lanes of the warp, which are served together. Plain, they all want the same four banks.
#
# Does one padding suit every pass? Lanes store 2, 4 or 8 pairs apart in the first one, and in runs of s afterwards.
# This is worth a count rather than an argument.

# %%
for n in (16, 64, 128, 256, 1024, 4096):
    count = lab.count(fft.vectorised, noise(4096 // n, n)).reports[0].counters
    per = [count[f"shared_{way}_wavefronts"] / count[f"shared_{way}_requests"] for way in ("store", "load")]
    print(f"n = {n:4}: {per[0]:.2f} wavefronts a store, {per[1]:.2f} a load; 4 is the least for 32 x 16 bytes")

# %%
show(fft.rows_kernel)

# %%
measured("registers", "vectorised", "cupy.cufft")

# %% [markdown]
# ## Columns
#
# The second axis. A block's 4,096 points are four columns of 1,024 rows: it would ask for 32 bytes of each row, one
# sector. That is no waste in the counters. But memory likes to be asked for more in one place.
#
# Eight columns of 1,024 are 64 KB, and a block has 48. So the two columns of a thread go through shared memory one
# after the other. It costs twice the barriers, and the block is twice as wide. For this, a complex number moves as one
# *word* of 8 bytes: Numba loads an `int64` with one instruction, and its two halves are the two float32.

# %%
show(fft.columns_kernel)

# %%
for rows in (256, 512, 1024, 2048, 4096):
    columns = 2 * fft.LONG // rows
    print(f"{rows:4} rows: {columns:2} columns a block, {8 * columns:3} bytes of each row")
measured("registers", "vectorised", "cupy.cufft", family="planes")

# %% [markdown]
# Here `vectorised` stays behind cuFFT. We have not found out what cuFFT does better.
#
# Lines longer than 4,096 do not fit into a block at all. The room makes matrices of them: `four_step.py` does columns,
# multiplies by roots, turns the matrix, and does columns again. That is three trips, whatever the length.
#
# ## How exact is it?
#
# A sum of n products in float32 rounds n times. A fast transform rounds each number a few times in each of log2 n
# stages. So but for the shortest lines the fast way is also the more exact one (Gentleman and Sande 1966). In the
# 2-norm, with $u = 2^{-24}$ and $\mu$ for the errors of the roots,
#
# $$\frac{\|\hat X - X\|}{\|X\|} \le \frac{t \eta}{1 - t \eta}, \qquad t = \log_2 n, \quad
# \eta = \mu + \frac{4 u}{1 - 4 u} (\sqrt 2 + \mu)$$
#
# (Higham, *Accuracy and Stability of Numerical Algorithms*, Theorem 24.2). The room's tests hold every rung to this.

# %%
sizes, errors, sums = [2**k for k in range(1, 13)], [], []
for n in sizes:
    x = noise(n)
    exact, k = np.fft.fft(x.astype(np.complex128)), np.arange(n)
    errors.append(np.linalg.norm(device.to_host(fft.vectorised(x)) - exact) / np.linalg.norm(exact))
    roots, total = np.exp(-2j * np.pi * k / n).astype(np.complex64), np.zeros(n, np.complex64)
    for j in range(n):
        total += x[j] * roots[j * k % n]  # the definition, in float32
    sums.append(np.linalg.norm(total - exact) / np.linalg.norm(exact))

# %%
figure, ax = chart()
ax.plot(sizes, [fft.relative_error(n) for n in sizes], "k--", label="the bound for the fast transform")
ax.plot(sizes, sums, "s-", color=palette.COLOURS[1], label="the definition, float32")
ax.plot(sizes, errors, "o-", color=palette.COLOURS[0], label="vectorised")
ax.set(xscale="log", yscale="log", xlabel="points", ylabel="relative error (2-norm)", title="Rounding errors")
ax.legend()
figure

# %% [markdown]
# ## Real numbers: half a spectrum
#
# A photograph is real, and half of its spectrum is the mirror image of the other: $X_{n-k} = \bar X_k$. To transform
# it as complex numbers wastes half of the memory and of the time. The way out: read two neighbours as *one* complex
# number. The transform of these n / 2 contains the spectra of the even and of the odd points, which can be taken
# apart, and one more stage joins them (`pmpp/kernels/fft/real.py`).

# %%
show(real.apart_kernel)

# %%
half = real.rfft(grey.astype(np.float32), 2)
again = device.to_host(real.irfft(half, 2))
print(
    f"{grey.shape} real numbers, half spectrum {half.shape}, and back with an error of {np.abs(again - grey).max():.1e}"
)

# %% [markdown]
# ### Exercise: two real lines at once
#
# Two real lines can also share one complex transform: one is the real part, the other the imaginary part.

# %%
exercise("fft/two")


# %%
@cuda.jit
def two(z, a, b):
    pass  # your code


check("fft/two", two)

# %% [markdown]
# ## The ladder
#
# All rungs and cuFFT on one page, along rows and then in two dimensions. The solid line is what a copy reaches.

# %%
plots.drawn(plots.ladder, "fft", family="lines")

# %%
plots.drawn(plots.ladder, "fft", family="planes")

# %% [markdown]
# On the roofline all rungs have the same intensity, since what a transform must do is the same for all. They differ in
# what they do beside it.

# %%
plots.drawn(plots.roofline, "fft", family="lines")

# %% [markdown]
# And for other lengths, with as many points in all. At the left end a thread has a whole line of 16 points to itself,
# and neighbouring threads are 128 bytes apart, so that half of each sector must wait in a cache. At the right end lines
# do not fit in a block, and take three trips instead of one.

# %%
words = {"xlabel": "points of a line", "title": "Lines of all lengths, $2^{26}$ points in all"}
plots.drawn(plots.sweep, "fft", family="lines", **words)

# %% [markdown]
# Is the journey to the GPU worth it? The next figure has NumPy on one core of the CPU, the kernel alone, and the kernel
# with the call and both transfers, for lines of 1,024 points. (If the record has no CPU in it, the cell says so.)

# %%
plots.drawn(plots.cpu_gpu, "fft", family="batches", xlabel="lines")

# %% [markdown]
# ## What to take along
#
# 1. Count trips before operations. Ten stages in one trip beat ten trips.
# 2. Then count the trips one level below. Radix 8 does for shared memory what shared memory did for device memory.
# 3. An algorithm that ends in order needs no permutation. Stockham's second array costs nothing where data move anyway.
# 4. Columns: let neighbouring threads take neighbouring columns, as many as fit.
# 5. Fewer operations need not make the error larger: here they make it smaller.
#
# ## Exercises
#
# Three stand in the text above. One is left.
#
# **Without a check.** A pass of radix 16 would do four stages in registers. How many exchanges would 4,096 points need
# then, and what stands against it? (Count the registers of a thread with two lines.)
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def stage_answer(x, roots, s, out):
    t, half = cuda.grid(1), x.size // 2
    if t < half:
        j = t % s
        a, b = x[t], x[t + half] * roots[j * (half // s)]  # exp(-pi i j / s) is root number j n / (2 s)
        out[2 * t - j], out[2 * t - j + s] = a + b, a - b


assert check("fft/stage", stage_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def line_answer(x, roots, out):
    points = cuda.shared.array(1024, np.complex64)
    row, t, half, s = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x, 1
    a, b = x[row, t], x[row, t + half]
    while s < x.shape[1]:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[row, t], out[row, t + half] = a, b


assert check("fft/line", line_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def two_answer(z, a, b):
    i, half = cuda.grid(1), np.float32(0.5)
    if i < z.size:
        n = z.shape[1]
        line, k = i // n, i % n
        mirror = z[line, (n - k) % n].conjugate()  # A[k] - i B[k]
        p, q = z[line, k] + mirror, z[line, k] - mirror
        a[line, k] = complex(half * p.real, half * p.imag)
        b[line, k] = complex(half * q.imag, -half * q.real)


assert check("fft/two", two_answer)

# %% [markdown]
# *Radix 16.* 4,096 = 16 x 16 x 16: three passes and two exchanges, instead of four and three. But a thread then holds
# 16 points of each line, with two lines 64 numbers, and needs at least as many registers as it may have if two blocks
# of 512 threads are to be on a multiprocessor. With one line a thread it fits, and its accesses are 8 bytes wide again.
#
# Go on with [chapter 60](60_fft_of_any_length.ipynb): transforms of any length.
