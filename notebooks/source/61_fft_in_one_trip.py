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
# # 61. The FFT in one trip
#
# *Trips through memory as a measure of time, lines as matrices in two trips, 32 points a thread, an exchange in two
# parts, padding that is found, rounds, registers, short lines. Read chapters [16](16_transpose.ipynb),
# [58](58_fft.ipynb) and [60](60_fft_of_any_length.ipynb) before. 50 minutes. PMPP 4e: sections 5.6 and 16.5; 5e:
# section 5.6 and chapter 19. The book only names the FFT. The code is
# [pmpp/kernels/fft/one_trip.py](../pmpp/kernels/fft/one_trip.py), with
# [pmpp/kernels/fft/exchanges.py](../pmpp/kernels/fft/exchanges.py) below it.*
#
# [Chapter 58](58_fft.ipynb) ended with one trip through memory for lines of 16 to 4,096 points. Longer lines took three
# trips, and very short ones were slow although they took one. A trip reads each point once and writes it once. Here are
# lines of 2 points and of 16 million, and of all powers of two in between.
#
# **The question of this chapter: is the time of a transform the number of its trips, and how few can there be?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels.fft import exchanges, one_trip
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# A transform of n points counts as $5 n \log_2 n$ operations, and moves 16 n bytes if each point is read once and each
# result written once. So the operations a byte grow with the logarithm of the length, and very slowly. The roofline's
# ridge is where arithmetic becomes the bound.
#
# **Predict, then run.** How many points would a line need to have before arithmetic is its bound? Take the measured
# ceilings of the GPU whose record this is, and answer with the logarithm to base 2.

# %%
guess = None  # log2 of the points

ceilings = roofline.ceilings("fft")
predict(guess, 16 * ceilings.fma_f32 / ceilings.bandwidth / 5, unit="log2 of the points")

# %%
for n in (16, 2**10, 2**13, 2**20, 2**24):
    cost = one_trip.cost(2**26 // n, n)
    bound = roofline.bound(cost, ceilings)
    print(f"{n:9,} points: {cost.intensity:.2f} FLOP a byte, {bound.seconds * 1e3:.3f} ms at least, by {bound.side}")

# %% [markdown]
# No line that fits into a GPU is that long. All of these transforms should take the time of a copy. Here is what the
# last rung of chapter 58 and cuFFT reach. The dashed line is one half of a copy's rate, and the dotted one a third.
# That is what is left of it for two trips and for three.


# %%
def trips(ax, bandwidth):
    """The rates of one, two and three trips."""
    for count in (1, 2, 3):
        style = {1: "-", 2: "--", 3: ":"}[count]
        label = f"{count} trip{'s' * (count > 1)}"
        ax.axhline(bandwidth / count / 1e12, color=palette.INK, ls=style, label=label)


def by_length(room, family, contenders):
    """Recorded rates of lines, 16 bytes a point."""
    store = record.load(room=room)
    figure, ax = chart(4)
    for i, name in enumerate(contenders):
        some = sorted(store.entries(room, family=family, contender=name), key=lambda entry: entry.sizes["n"])
        if not some:
            raise record.RecordError(f"{store.where} has no lines of many lengths by {name!r} of room {room!r}")
        xs, ys = [e.sizes["n"] for e in some], [e.bytes / e.seconds / 1e12 for e in some]
        ax.plot(xs, ys, "o^"[i] + "-", color=palette.COLOURS[3 * i], label=name)
    trips(ax, store.ceilings(room).bandwidth)
    ax.set_xscale("log", base=2)
    ax.set(xlabel="points of a line", ylabel="TB/s, 16 bytes a point", ylim=(0, 6))
    ax.legend(fontsize=8, loc="upper right", ncols=3)
    ax.set_title("Lines of many lengths, $2^{26}$ points in all")
    foot(figure, store.footer(room))
    return figure


# %%
plots.drawn(by_length, "fft", "lines", ("vectorised", "cupy.cufft"))

# %% [markdown]
# From 64 to 4,096 points both are near the line of one trip. Beyond, the rung of chapter 58 is below the line of three
# trips, which it takes. cuFFT is between one trip and two at $2^{14}$ points, and between two and three at $2^{20}$. At
# 16 points ours is below half a copy's rate, with one trip. So trips explain most of it, but not the left end.
#
# ## First rung: a trip a pass
#
# We begin without shared memory. A thread does a butterfly of up to 16 points in registers, and each pass reads and
# writes all points in device memory. It is Stockham's form again: butterfly u of a pass of radix r takes points
# $u, u + n/r, \ldots$, and joins spectra of s points.

# %%
show(one_trip.pass_kernel)


# %%
def noise(*shape):
    rng = np.random.default_rng(61)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def sectors(reports, points):
    """Sectors of 32 bytes of each kernel and way, as multiples of the least."""
    for one in reports:
        found = (one.counters[f"global_{way}_sectors"] * 32 / (8 * points) for way in ("load", "store"))
        print(f"{one.kernel:26} loads {next(found):5.2f}, stores {next(found):5.2f} times the points' sectors")


passes = lab.count(one_trip.trip_a_pass, noise(2, 1024)).reports

# %% [markdown]
# **Predict, then run.** A line of 1,024 points has passes of radix 16, 8 and 8. In the first pass s is 1, so the
# results of a butterfly lie side by side, and neighbouring threads store 16 places apart. A place has 8 bytes, and a
# sector has 32 bytes. How many times the least number of sectors does the first pass store?

# %%
guess = None  # times the least

predict(guess, passes[0].counters["global_store_sectors"] * 32 / (8 * 2048), unit="times the least")

# %%
sectors(passes, 2048)

# %% [markdown]
# Each store has a sector of its own for one result. Where s is 16 or more, neighbours store side by side, and nothing
# is lost. Loads above 1 are the twiddle factors: neighbours share them, and they come from a cache.
#
# A line of $2^{13}$ points takes four trips so, and one of $2^{20}$ points five.
#
# ## Two trips
#
# [Chapter 60](60_fft_of_any_length.ipynb) wrote a line of $a b$ points as a matrix: columns of a points, factors, and
# columns of b points of the matrix on its side. A block does some columns in shared memory. It needs no whole matrix,
# so even lines of millions of points take two trips. Each trip has to read and write well:
#
# - A column's points lie b places apart. So a block takes 16 columns side by side, and a row of its tile is 128 bytes.
#   Of long columns fewer fit: 8, and 4 in the longest lines.
# - The first trip writes each column as a row, where its results are neighbours. Threads change places for it in the
#   last exchange, which would be there anyway.
# - The second trip reads columns, and result k of a column belongs to where its point k was. So it works in place, and
#   no third array is needed.
#
# In between, result k of column j is turned by $e^{-2 \pi i j k / n}$. A table of all n roots would be as long as the
# line, and reading it half a trip more.
#
# **Predict, then run.** The last pass of a column has radix r, and makes results $k = u + s m$, with $s = a / r$ and
# $m < r$. So the root for j k is the root for j u, times the root for j s m: one table for all j and u, and one for all
# j and m. How many KiB do these two tables have together for $n = 2^{20}$, with $a = b = 1024$ and $r = 32$? An entry
# has 8 bytes.

# %%
guess = None  # KiB

down, along = one_trip.sides(2**20)
tables = one_trip.turns(down.n, along.n, down.radices[-1])
predict(guess, sum(table.size for table in tables) * 8 / 1024, unit="KiB")

# %%
print(
    f"all roots of 2^20: {2**20 * 8 / 2**10:,.0f} KiB; two tables: {[table.size * 8 // 1024 for table in tables]} KiB"
)
print(f"down:  {down}")
print(f"along: {along}")

# %%
show(one_trip.turned_kernel)

# %%
sectors(lab.count(one_trip.two_trips, noise(1, 2**15)).reports, 2**15)

# %% [markdown]
# Both kernels store each sector once. Loads above 1 are tables, which come from a cache. In the forms printed above,
# `lines` is how many columns a block has, and a thread holds eight points for each of its `rows`.
#
# ### Exercise: columns turned
#
# Write the end of the first trip: results of columns are turned, and go out as rows.

# %%
exercise("one_trip/turn")


# %%
@cuda.jit
def turn(x, roots, out):
    pass  # your code


check("one_trip/turn", turn)

# %% [markdown]
# ## How much does a block hold?
#
# A line of $2^{13}$ points has 64 KiB, and one of $2^{14}$ has 128. A kernel as in chapter 58 keeps its line in shared
# memory, and without asking the driver a block may have 48 KiB. But where are the points while a thread works on them?
# In registers. A multiprocessor has 65,536 of them, 256 KiB: more than its shared memory.
#
# So the line lives in registers, and shared memory is only the way from one thread to another. A thread holds 8, 16
# or 32 points. With 32 it does a butterfly of radix 32, five stages, between two exchanges.

# %%
for bits in range(6, 15):
    form = one_trip.lines_of(1 << bits)
    block = f"{form.lines:2} a block of {form.threads} threads, {8 * form.rows:2} points each"
    print(f"{form.n:6,} points = {' x '.join(map(str, form.radices)):13}{block}")

# %% [markdown]
# $2^{13}$ points are 32 x 16 x 16: three passes, and two exchanges. In an exchange every point passes through shared
# memory, but not all of it must be there at once. Real parts go first: everyone writes them, waits, reads the ones that
# it needs, and waits. Then imaginary parts take the same places.

# %%
show(exchanges.exchange)

# %% [markdown]
# **Predict, then run.** So a block needs 4 bytes of shared memory for each of its $2^{13}$ points, and some padding.
# How many barriers does each thread pass? The last exchange leaves out its last barrier, since nobody writes after it.

# %%
guess = None  # barriers

(whole,) = lab.count(one_trip.parts_in_turn, noise(1, 2**13)).reports
predict(guess, whole.counters["barriers"], unit="barriers")

# %%
print(f"{whole.shared_bytes:,} bytes of shared memory, {whole.counters['barriers']} barriers a block")
sectors([whole], 2**13)

# %% [markdown]
# Loads above 1 are twiddle factors again: the second pass and the third read one for nearly each point. All lines have
# the same factors, so a cache has them.
#
# Whole points would need two barriers an exchange, or one in the last. So half the memory costs about twice the
# barriers, and a barrier costs little if other blocks work meanwhile. What it buys is one trip less.
#
# ### Padding that is found
#
# After the first pass, results of a thread lie side by side, so neighbours write 32 places apart: one bank. In the
# next pass they read side by side. One unused word after each 32 serves both. But with other radices, or with columns,
# the distances are others, and so is the best padding. `padding` tries a few dozen of them on the lanes of one warp,
# when a kernel is made.

# %%
show(exchanges.padding)

# %% [markdown]
# **Predict, then run.** How many wavefronts does a warp's store after the first pass take without padding? Neighbours
# write 32 places apart, a place has 4 bytes, and a bank serves one word in a wavefront.


# %%
guess = None  # wavefronts

places = 32 * np.arange(32)
predict(guess, int(np.bincount(places % 32).max()), unit="wavefronts")

# %%
for bits in (6, 8, 10, 13):
    form = one_trip.lines_of(1 << bits)
    ways = [f"{way.amount} after {1 << way.shift}" for i in range(len(form.radices) - 1)
            for way in [exchanges.padding(form, i)]]  # fmt: skip
    print(f"{form.n:6,} points: unused words in each exchange: {', '.join(ways)}")
for way in ("load", "store"):
    wavefronts, requests = (whole.counters[f"shared_{way}_{what}"] for what in ("wavefronts", "requests"))
    print(f"shared {way}s of 2^13 points: {wavefronts / requests:.2f} wavefronts a request")

# %% [markdown]
# All 32 lanes met in one bank. Now each of them has a bank of its own. The second exchange of $2^{13}$ points needs no
# padding at all. The offsets from a thread's first place are constants of the kernel, so padding costs no instruction
# there.
#
# ### Exercise: an exchange in two parts

# %%
exercise("one_trip/parts")


# %%
@cuda.jit
def parts(x, out):
    pass  # your code


check("one_trip/parts", parts)

# %% [markdown]
# ## In rounds: $2^{14}$ points
#
# The real parts of $2^{14}$ points have 64 KiB. A kernel may ask the driver for that. But the same thought works once
# more: half of the real parts at a time. In round one the threads whose results belong into the first half of the line
# write, and all threads read half of what they need. With radix 32 and one butterfly a thread, the highest bit of the
# thread's number says which round is its own.
#
# What else limits a block? A point in a register takes two, so 32 points take 64 of a thread's registers. We allow
# 128 a thread, and the compiler keeps to it without using local memory. Shared memory counts, too: a multiprocessor
# of an H200 has 228 KiB for its blocks, and each takes 1 KiB beside what it asks for.
#
# **Predict, then run.** How many blocks of $2^{14}$ points fit on a multiprocessor with 65,536 registers, if each of
# their threads has 128?

# %%
guess = None  # blocks

long = one_trip.lines_of(2**14)
predict(guess, 65536 // (long.threads * one_trip.registers(long)), unit="blocks")

# %%
for bits in (10, 12, 13, 14):
    form = one_trip.lines_of(1 << bits)
    registers = form.threads * one_trip.registers(form)
    held = min(65536 // registers, 228 * 1024 // (4 * form.words + 1024))
    print(f"2^{bits}: {registers:6,} registers and {4 * form.words:6,} bytes a block: {held} block{'s' * (held > 1)}")

# %% [markdown]
# One block has the multiprocessor for itself. While it waits for its line, nobody computes, and while it computes,
# nobody loads. Other multiprocessors do use the memory meanwhile, since their blocks do not stay in step. So one trip
# should beat two, but it will not reach the rate of a copy. We expect that before we have measured it.

# %%
(rounds,) = lab.count(one_trip.in_rounds, noise(1, 2**14)).reports
print(f"{rounds.shared_bytes:,} bytes of shared memory, {rounds.counters['barriers']} barriers a block")
sectors([rounds], 2**14)

# %% [markdown]
# Two rounds take no more shared memory than a line of $2^{13}$ points does, and about twice its barriers.
#
# ## Short lines
#
# A line of 16 points fits into the registers of one thread: one butterfly, and no exchange. But look at how such
# threads would read. Neighbours have neighbouring lines, 128 bytes apart.


# %%
@cuda.jit
def straight(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for k in range(16):
            out[i, k] = x[i, k]


# %% [markdown]
# **Predict, then run.** This kernel only copies its lines, one a thread. Its loads move how many times the sectors that
# the points have? A number has 8 bytes, and a warp asks for one number of each of its 32 lines at a time.

# %%
guess = None  # times the sectors

lines = noise(128, 16)
alone = simt.profile(straight, 1, 128, (lines, np.empty_like(lines)))
predict(guess, alone.counters["global_load_sectors"] * 32 / lines.nbytes, unit="times the sectors")

# %%
sectors([alone], lines.size)
sectors(lab.count(one_trip.short_lines, lines).reports, lines.size)

# %% [markdown]
# Each number is in a sector of its own, so a request has 32 sectors where 8 would do. A cache may still have a sector
# when its next number is asked for, but the requests have to be served. So `short_lines` has a warp load the lines of
# its threads side by side, 256 bytes at a time. They go into shared memory, an odd number of words from line to line,
# and each thread takes its own. Nobody else needs them, so no thread waits for its block: `syncwarp` is enough.

# %%
show(one_trip.short_kernel)

# %% [markdown]
# Lines of fewer than 16 points go the same way, several a thread.
#
# ### Exercise: four points
#
# Write a transform that is one thread's. Its lines have four points: 32 bytes, which are one sector.

# %%
exercise("one_trip/fours")


# %%
@cuda.jit
def fours(x, out):
    pass  # your code


check("one_trip/fours", fours)

# %% [markdown]
# ## How exact is it?
#
# A pass of radix 32 is five stages, and rounds no more often than five would. Lines as matrices have two more products.
# So the bound grows with the logarithm of the length, as in chapter 58.

# %%
sizes, errors = [2**bits for bits in (1, 3, 4, 5, 6, 7, 9, 11, 13, 14)], []
for n in sizes:
    x = noise(1, n)
    exact = np.fft.fft(x.astype(np.complex128))
    errors.append(np.linalg.norm(device.to_host(one_trip.short_lines(x)) - exact) / np.linalg.norm(exact))

# %%
figure, ax = chart(3.2)
ax.plot(sizes, errors, "o", color=palette.COLOURS[0], label="error")
ax.plot(sizes, [one_trip.relative_error(n) for n in sizes], "^", mfc="none", color=palette.INK, label="the bound")
ax.set_xscale("log", base=2)
ax.set(yscale="log", xlabel="points", ylabel="relative error (2-norm)", title="Rounding errors")
ax.legend()
figure

# %% [markdown]
# A single rounding is off by up to $6 \cdot 10^{-8}$. The errors grow slowly to a little more than twice that. The
# bounds lie far above: they add up the largest error of every step, and real errors mostly cancel.
#
# ## The ladder
#
# Lines of $2^{13}$ points, which fit into a block, lines of $2^{20}$, which do not, and lines of 16, which fit into a
# thread.

# %%
plots.drawn(plots.ladder, "one_trip", family="a block")

# %%
plots.drawn(plots.ladder, "one_trip", family="a matrix")

# %%
plots.drawn(plots.ladder, "one_trip", family="short")

# %% [markdown]
# The second rung is near one half of a copy's rate, as its two trips say, for lines of $2^{13}$ points. For lines of
# $2^{20}$ it stays further below. One trip takes lines of $2^{13}$ points most of the way to a copy: cuFFT comes a
# little closer. For lines of 16 points `short_lines` nearly is a copy, and ahead of cuFFT; for lines of $2^{20}$
# `two_trips` is slightly ahead of it.
#
# The first rung does not fit the count. It takes four trips for $2^{13}$ points, five for $2^{20}$ and one for 16, and
# each time more than twice what these would take. So trips alone give a least time. Sectors that are used in part, and
# loads of factors, come on top of it.
#
# Here are all lengths with the last rung, and again the lines of one, two and three trips. The claim of this chapter is
# that a length lies at the line of its trips. Compare: one trip up to $2^{14}$ points, and two beyond.

# %%
plots.drawn(by_length, "one_trip", "lengths", ("short_lines", "cupy.cufft"))

# %% [markdown]
# Up to $2^{12}$ points the last rung stays at the line of one trip. $2^{14}$ points lie between the lines. They take
# one trip, but a multiprocessor has registers for one such line only, so nothing is loaded while it computes and waits
# at its barriers. From $2^{15}$ to $2^{18}$ the points lie a little below the line of two trips. Longer lines still
# take two, but their columns are longer, a block has fewer of them, and the rows of its tiles are shorter. There the
# rate falls, in the end below the line of three trips. That of cuFFT falls likewise.

# %%
plots.drawn(plots.roofline, "one_trip", family="a block")

# %% [markdown]
# The roofline has the operations and bytes of the definition, so all rungs stand at the same intensity, where memory is
# the bound. And here is NumPy on the CPU, beside the kernel and the whole journey, for lines of $2^{13}$ points.

# %%
plots.drawn(plots.cpu_gpu, "one_trip", family="batches", xlabel="lines")

# %% [markdown]
# ## What to take along
#
# 1. Where memory is the bound, count trips first, and then the sectors of each trip. Instructions matter only when they
#    no longer fit behind a trip.
# 2. A multiprocessor's registers are its largest memory. Keep the data there, and use shared memory to pass them on.
# 3. An exchange need not hold everything at once. Parts and rounds trade barriers for memory.
# 4. Longer lines take two trips as matrices. The first one also turns the results, and the second works in place.
# 5. A table for pairs can be a product of two small ones.
# 6. Work of a thread's own still has to be loaded by its warp together.
#
# `fft.fft` and `fft.ifft` transform lines of a power of two with the last rung of this chapter.
#
# ### Questions to think about
#
# - The second trip of a line of $2^{20}$ points, 8 MiB, might find it in the cache, which has 60 MB. How would you
#   launch the two kernels for 64 such lines, so that it does?
# - Registers have room for two lines of $2^{13}$ points on a multiprocessor. Why should a point take less time there
#   than in one line of $2^{14}$?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
TILE, PITCH = 32, 33


@cuda.jit
def turn_answer(x, roots, out):
    tile = cuda.shared.array((TILE, PITCH), np.complex64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx] * roots[(top + ty) * (left + tx)]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


assert check("one_trip/turn", turn_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
EACH, BLOCK, ROW = 8, 128, 9


@cuda.jit
def parts_answer(x, out):
    points, real = cuda.shared.array((BLOCK, ROW), np.float32), cuda.local.array(EACH, np.float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    for part in range(2):
        for k in range(EACH):
            z = x[b, BLOCK * k + t]
            points[t, k] = z.imag if part else z.real
        cuda.syncthreads()
        for k in range(EACH):
            value = points[(BLOCK * k + t) // EACH, t % EACH]
            if part:
                out[b, BLOCK * k + t] = complex(real[k], value)
            real[k] = value
        cuda.syncthreads()


assert check("one_trip/parts", parts_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def fours_answer(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        s, t, u, v = a + c, a - c, b + d, b - d
        v = complex(v.imag, -v.real)  # times -i
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = s + u, t + v, s - u, t - v


assert check("one_trip/fours", fours_answer)

# %% [markdown]
# *The cache.* Launch both kernels for one or two lines, then for the next ones, and not the first kernel for all lines
# and then the second. A launch then has few blocks, and its end leaves multiprocessors idle. Whether it pays has to be
# measured.
#
# *Two lines or one.* With two blocks, one may load or store while the other computes. With one, these take turns.
#
# Go on with [chapter 62](62_direct_convolution.ipynb): the convolution layer, computed by its definition.
