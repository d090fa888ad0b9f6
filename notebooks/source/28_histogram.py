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
# # 28. Histogram
#
# *Atomics, contention, private copies, coarsening, runs, bank conflicts between atomics, counters of one byte. Read
# chapters [4](04_vector_add.ipynb), [8](08_warps.ipynb) and [16](16_transpose.ipynb) before. 90 minutes. PMPP 4e:
# chapter 9; 5e: chapter 9. The code is
# [pmpp/kernels/histogram/ladder.py](../pmpp/kernels/histogram/ladder.py) and
# [many_bins.py](../pmpp/kernels/histogram/many_bins.py).*
#
# How is the light distributed in a photograph? How often does each letter occur in a text? Each answer is a
# *histogram*: a counter for each *bin*, and every element adds 1 to the counter of the bin that it falls into. In the
# chapters so far a thread could say beforehand where its result belongs, and no other thread wrote there. Here the data
# say where, and any number of threads may want the same place at the same time.
#
# **The question of this chapter: what does it cost if many threads write to one place, and how do they avoid it?**

# %%
import contextlib
import importlib
import io

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import histogram
from pmpp.kernels.histogram import many_bins
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The question, on a photograph
#
# The portrait of Grace Hopper has 307,200 pixels. The brightness of each is a byte, so there are 256 bins, and the
# value of a pixel is the number of its bin.

# %%
image = (data.photograph() @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)
pixels = image.ravel()
exact = np.bincount(pixels, minlength=256)

figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.2), width_ratios=(1, 2.4), layout="constrained")
left.imshow(image, cmap="gray", vmin=0, vmax=255)
left.set_axis_off()
right.bar(np.arange(256), exact, width=1, color=palette.COLOURS[5])
right.set(xlabel="brightness (0 is black)", ylabel="pixels")
title = right.set_title(f"{pixels.size:,} pixels in {np.count_nonzero(exact)} of 256 bins")

# %% [markdown]
# Dark pixels are frequent: the highest peak belongs to the dark uniform. Real data are like this. Some bins are
# popular, and neighbours are similar. Both will matter.
#
# ## The bound
#
# A histogram reads each element once and writes its bins once. Adding 1 to an integer is no floating-point operation.
# So the least time is the time to read the vector.


# %%
def bound(n):
    """The cost of a histogram of n bytes, and the least time for it on this GPU, or on the recorded one."""
    cost = histogram.cost(n)
    print(f"{n:,} bytes: {cost.flops} FLOP, {cost.bytes:,} bytes moved")
    try:
        ceilings = roofline.ceilings("histogram")
        print(f"    at least {roofline.bound(cost, ceilings).seconds * 1e6:.3g} us to read them")
    except record.RecordError as missing:
        print(missing)


bound(pixels.size)
bound(2**28)

# %% [markdown]
# The second line is the size at which the rungs are compared. The GPU of the record is an H200, which has 132
# multiprocessors (SM). If they are to count $2^{28}$ bytes within that time, how much must each SM do in a cycle of its
# clock? The interpreter's table of GPUs has the published clock.
#
# **Predict, then run.** How many bytes must an SM count in each cycle, to keep up with the memory?

# %%
guess = None  # bytes a cycle

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
cycles = 2**28 / h200.bandwidth * h200.clock  # while the memory delivers 2^28 bytes
predict(guess, 2**28 / h200.sms / cycles, unit="bytes")

# %% [markdown]
# Eighteen. An SM has four schedulers, and each starts one instruction of a warp, of 32 lanes, in a cycle. That makes
# 128 lanes at work, and so seven instructions for each byte. To take a byte out of a word, to compute an address and to
# add already take four or five of these. So the bound is in reach, but a byte must not cost much, and it must not wait.
#
# ## The reference
#
# One element after another. A range, such as -1 to 1, is cut into bins of equal width. Without one the elements are bin
# numbers. What lies outside is not counted, and neither is a NaN, which is in no interval.

# %%
show(histogram.reference)
print(
    "the same as NumPy:", np.array_equal(histogram.reference(pixels[:5000]), np.bincount(pixels[:5000], minlength=256))
)

# %% [markdown]
# ## Three steps that must be one
#
# A first kernel writes itself: each thread takes one element and adds 1 to its bin.


# %%
@cuda.jit
def hasty_kernel(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[x[i]] += 1


# %% [markdown]
# `out[x[i]] += 1` is three steps: read the counter, add 1, write it back. In a warp all 32 lanes do each step together.
#
# **Predict, then run.** The 32 threads of one warp each have the same element, 7. What is in `out[7]` afterwards?

# %%
guess = None  # the count

sevens, out = np.full(32, 7, np.uint8), np.zeros(256, np.int64)
simt.profile(hasty_kernel, 1, 32, (sevens, out), level="run")
predict(guess, int(out[7]))

# %% [markdown]
# All lanes read 0, all add 1, and all write 1. On a GPU warps also come between each other: one reads the counter,
# another one writes it, and then the first writes an old value plus 1. Counts get lost, and how many depends on who was
# when where. The interpreter's check does not look at the result. It looks at who touched which element, and whether
# anything has put them in order.

# %%
checked = simt.profile(hasty_kernel, 1, 32, (sevens, out), level="check", collect=True)
for hazard in checked.hazards:
    print(f"{hazard.kind}: {hazard.message}")

# %% [markdown]
# ## Rung 1: `global_atomics`
#
# An *atomic* operation does the three steps as one, and nobody gets between (PMPP 9.2). `cuda.atomic.add(out, at, 1)`
# is an atomic addition. In global memory the L2 cache executes it, which all multiprocessors share.

# %%
show(histogram.bin_of)
show(histogram.count)
show(histogram.global_atomics_kernel)

# %% [markdown]
# Without a range `scale` is 1 and `low` is 0, and the bin is the value. `weights` is an empty array unless each element
# shall count as its weight.


# %%
def counted(rung, x, *names):
    """Counters of a rung in the interpreter, whose result is compared with NumPy's."""
    found = lab.count(rung, x)
    assert np.array_equal(found.result, np.bincount(x, minlength=256))
    return [found.counters[name] for name in names]


print(counted(histogram.global_atomics, pixels, "atomic_requests", "atomic_lanes"))

# %% [markdown]
# Right, and 9,600 requests: one for each warp of 32 pixels. But lanes of one request that want the same counter take
# *turns*: their additions happen one after another. This is *contention*. `atomic_passes` counts the turns: for each
# request as many as lanes want its most wanted counter.
#
# **Predict, then run.** How many turns do the 9,600 requests take if all 307,200 pixels are black?

# %%
guess = None  # turns

black = np.zeros_like(pixels)
predict(guess, counted(histogram.global_atomics, black, "atomic_passes")[0], unit="turns")

# %% [markdown]
# Every lane waits for all others of its warp. And all warps of the whole GPU want that one counter as well. Here is the
# photograph between two extremes: black, and noise in which each value is as likely as any other.

# %%
noise = np.random.default_rng(0).integers(0, 256, pixels.size).astype(np.uint8)
pictures = {"noise": noise, "photograph": pixels, "sorted": np.sort(pixels), "black": black}

for name, x in pictures.items():
    requests, passes = counted(histogram.global_atomics, x, "atomic_requests", "atomic_passes")
    print(f"{name:11} {passes / requests:5.2f} turns a request; most wanted: {np.bincount(x).max():7,} times")

# %% [markdown]
# The photograph lies in between, because neighbouring pixels are alike. So what this kernel has to do depends on the
# *values*, and not on their number alone.
#
# ### What a measurement says
#
# This helper asks the record: measurements that are kept with the project, made by `make bench`.


# %%
def recorded(*names, family="bytes that meet"):
    """What the record says of contenders: on uniform bytes, and on those of a family."""
    try:
        kept = record.load()
        for name in names:
            found = [*kept.design("histogram"), *kept.entries("histogram", family=family)]
            for entry in (one for one in found if one.contender == name):
                rate = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("histogram"))
                print(
                    f"{name:15} {entry.family}, {entry.workload:10} {entry.median_ms:8.4g} ms, {rate:6.1%} of the roof"
                )
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("global_atomics", "torch.bincount")

# %% [markdown]
# ## Rung 2: `privatised`
#
# Fewer threads should meet in a counter. So give each block counters of its own, in shared memory, where only its
# threads meet, and where an atomic is near (PMPP 9.4). In the end the block adds this *private copy* to the result: one
# global atomic for each bin that is not empty, rather than one for each element.

# %%
show(histogram.privatised_kernel)
show(histogram.clear_shared)
show(histogram.flush)

# %% [markdown]
# There are two barriers, one behind the clearing and one before the flush. Without the first a thread counts in a cell
# that another clears afterwards. Without the second the flush takes counts that are not yet complete.
#
# `cuda.shared.array(0, ...)` is *dynamic* shared memory: the launch says how many bytes it has, here 4 for each bin. A
# block can have 48 KiB without asking the driver for more. These are 12,288 bins. For more bins this rung is the one
# before.

# %%
for rung in (histogram.global_atomics, histogram.privatised):
    sectors, lanes = counted(rung, pixels, "global_atomic_sectors", "atomic_lanes")
    print(f"{rung.name:15} {lanes:7,} additions by atomics; those in global memory touch {sectors:6,} sectors")

# %% [markdown]
# The traffic in the L2 cache falls to less than a third. It is still much: a block has 512 threads for 512 pixels, and
# then up to 256 bins to add.
#
# ## Rung 3: `coarsened`
#
# As in `grid_stride` of [chapter 4](04_vector_add.ipynb), launch as many blocks as the GPU holds at once, and let each
# thread take many elements (PMPP 9.5). Then the number of flushes does not grow with the vector. An H200 holds 4 blocks
# of 512 threads in each of 132 SMs, which makes 528.
#
# **Predict, then run.** For $2^{28}$ bytes of noise `privatised` has 524,288 blocks. How many times fewer additions to
# global memory does `coarsened` do?

# %%
guess = None  # times fewer

predict(guess, (2**28 / 512) / (4 * h200.sms), unit="times")

# %%
show(histogram.coarsened_kernel)
recorded("privatised", "coarsened")

# %% [markdown]
# ## Where lanes meet in shared memory
#
# Now the additions of 32 lanes to shared memory remain. Two things can make them wait. Lanes that want the same counter
# take turns. And lanes that want different counters of one *bank* follow one another, too: shared memory has 32 banks,
# and counter $b$ is in bank $b$ modulo 32 ([chapter 16](16_transpose.ipynb)).
#
# So let a warp draw 32 values, a share of which is one popular value, and count how many lanes want the most wanted
# bank. This is the number of steps that the warp needs, if each addition is a step of its own: a model, which we
# compare with the record in the end.
#
# **Predict, then run.** With uniform bytes, without a popular value, how many steps does a warp need on average? (If
# lanes shared the banks out evenly among them, it would be 1.)

# %%
guess = None  # steps, to one place behind the point

rng = np.random.default_rng(1)


def steps(share, copies, warps=4000):
    """How many lanes of a warp want the most wanted bank, on average, if so many copies are interleaved."""
    values = rng.integers(0, 256, (warps, 32))
    values[rng.random((warps, 32)) < share] = 77
    banks = (values * copies + np.arange(32) % copies) % 32
    return np.mean([np.bincount(row).max() for row in banks])


predict(guess, round(steps(0, 1), 1), unit="steps")

# %% [markdown]
# Throw 32 balls into 32 bins, and the fullest has three or four. In this model even noise costs three to four times
# what it could, and a popular value costs up to 32 times.
#
# The next figure has a knob: how many copies of the counters there are in a block. Lane $l$ uses copy $l$ modulo
# `copies`, and counter $b$ of a copy is at place $b$ `copies` + copy, so that copies are *interleaved*.
#
# **Predict, then run.** With 32 copies, how many steps does a warp need if half of the bytes are equal?

# %%
guess = None  # steps

predict(guess, steps(0.5, 32), unit="steps")


# %%
copies = 4


def meeting(copies):
    shares = np.linspace(0, 1, 11)
    figure, ax = chart(3.4)
    looks = ((1, palette.INK, "o"), (copies, palette.COLOURS[5], "s"), (32, palette.COLOURS[3], "^"))
    for many, colour, marker in dict.fromkeys(looks):
        label = f"{many} {'copies' if many > 1 else 'copy'}"
        ax.plot(100 * shares, [steps(s, many, 500) for s in shares], color=colour, marker=marker, label=label)
    ax.set(
        xlabel="share of equal bytes (%)", ylabel="steps a warp", ylim=(0, 33), title="32 additions to shared memory"
    )
    ax.legend()
    return figure


knobs.turn(meeting, copies=(copies, (2, 4, 8, 16)))

# %% [markdown]
# With one copy the steps rise from 3.5 to 32 as more bytes are equal. With four copies they end at 8, since eight lanes
# share each copy. With 32 copies each lane has a bank of its own, and the line lies flat at 1, whatever the data are.
# We come to that rung soon. First the book's way.
#
# ## Rung 4: `aggregated`
#
# If a thread comes by the same bin several times in a row, it can add up the run in a register, and do one atomic for
# all of it (PMPP 9.6). Black pictures and sorted vectors consist of runs.

# %%
show(histogram.count_runs)

# %% [markdown]
# The elements that a thread takes one after another are not neighbours in the vector: they lie a whole grid apart, so
# that the lanes of a warp read side by side. So the runs are those of every 270,336th element. To see runs in the
# interpreter let there be one multiprocessor, with four blocks.

# %%
for name, x in pictures.items():
    for kernel in (histogram.coarsened_kernel, histogram.aggregated_kernel):
        out, one = np.zeros(256, np.int64), (1,) if kernel is histogram.aggregated_kernel else ()
        args = x, np.zeros(0, np.int32), out, 0, 255, 1, 256, *one
        report = simt.profile(kernel, 4, 512, args, sharedmem=1024)
        assert np.array_equal(out, np.bincount(x, minlength=256))
        print(f"{name:11} {report.kernel:18} {report.counters['atomic_passes']:8,} turns")
recorded("aggregated")

# %% [markdown]
# On black pixels nearly nothing is left to do: each thread has one run. On noise there are no runs, and the turns are
# the same as before, with a test for the end of a run on top. The photograph gains a little. And the sorted vector,
# which consists of runs? A value comes 1,200 times on average, and a thread goes on by 2,048 elements here, or by
# 270,336 on an H200. So most runs are over before the thread comes by again. Aggregation helps where it is worst.
#
# The record has `aggregated` ahead of `coarsened` on noise, too. The turns do not explain that: they are the same.
#
# ## Rung 5: `copies`
#
# The flat line of the figure, as a kernel: up to 32 interleaved copies for each block, and so a bank for each lane.
# With 256 bins they take 32 KiB of shared memory. The flush adds up the copies of a bin. Each lane begins with another
# copy, or else all lanes would read from one bank.

# %%
show(histogram.copies_kernel)
show(histogram.flush_copies)

# %%
for name, x in pictures.items():
    before = counted(histogram.coarsened, x, "atomic_passes", "atomic_requests")
    after = counted(histogram.copies, x, "atomic_passes", "atomic_requests")
    print(f"{name:11} turns a request: {before[0] / before[1]:5.2f} in coarsened, {after[0] / after[1]:5.2f} in copies")
recorded("copies")

# %% [markdown]
# One turn for each request, for every picture. The interpreter counts turns of one counter. That no two lanes meet in a
# bank either follows from the place: `at * copies + lane` is in bank `lane`.
#
# The record has `copies` little ahead of `coarsened`, and behind `aggregated`, even where all bytes are equal. So the
# turns are not what these kernels wait for on an H200. We come back to that at the end of the ladder.
#
# More copies are not always better. With 1,024 bins 32 copies would take 128 KiB. The rung takes as many as fit, here
# eight, and beyond 12,288 bins not even one fits. Then it joins runs and goes to global memory, where the L2 cache has
# room for millions of counters. Many bins also means that few threads meet in one, unless some bins are frequent. That
# case has a section of its own further down.
#
# ## Rung 6: `per_thread`
#
# Do we need atomics at all? Not if each *thread* has counters of its own. 256 counters of 4 bytes for each of 128
# threads are 128 KiB. With one byte each they are 32 KiB. But a byte counts to 255 at most, so the block has to flush
# its counters before any thread has seen 256 bytes: after 15 vectors of 16 bytes, which are 240.
#
# For bytes two things come with it. `load128` ([chapter 4](04_vector_add.ipynb)) loads sixteen by one instruction. And
# the bin of a byte needs no arithmetic: count the 256 *values*, and ask for their bins in the end, 256 times rather
# than $2^{28}$ times.

# %%
show(histogram.per_thread_kernel)
show(histogram.count_word_alone)
show(histogram.sum_of_row)

# %% [markdown]
# `counts` and `rows` are the same memory: all dynamic shared arrays begin at its first byte. As bytes it counts, and as
# words of four bytes the flush reads it. Thread $t$ has column 4 ($t$ mod 32) + $t$ / 32. So the lanes of a warp are in
# 32 different words, and in 32 banks.
#
# **Predict, then run.** `copies` asks for the photograph with 9,600 requests to global memory. How many does
# `per_thread` take?

# %%
guess = None  # requests

predict(guess, counted(histogram.per_thread, pixels, "global_load_requests")[0], unit="requests")

# %%
recorded("per_thread")

# %% [markdown]
# Atomics remain for the flush alone. In their place each byte takes a load, an addition and a store, and each of them
# waits for the one before. Every 240 bytes of a thread, all 256 counters are summed.
#
# ## Rung 7: `wide_bytes`
#
# Was it right to avoid atomics? What is slow about them is that lanes meet, and in `copies` they do not. So take its
# counters, and the loads of `per_thread`. Nobody asks for the old value, so a thread does not wait for its atomic: it
# starts one, and goes on.

# %%
show(histogram.wide_bytes_kernel)
show(histogram.count_word)

# %%
names = ("atomic_requests", "shared_load_wavefronts", "shared_store_wavefronts", "barriers")
for rung in (histogram.coarsened, histogram.copies, histogram.per_thread, histogram.wide_bytes):
    cells = zip(names, counted(rung, noise, *names), strict=True)
    print(f"{rung.name:11}", ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in cells))
recorded("wide_bytes")

# %% [markdown]
# In this small picture the flush outweighs the rest. For long vectors a byte costs `per_thread` two accesses to shared
# memory, and `wide_bytes` one. The hardware's atomic is not the problem, as long as nobody has to wait for it.
#
# ## The whole ladder
#
# The bars are shares of the roof at the design size, $2^{28}$ uniform bytes, and the dashed line is the best library.

# %%
plots.drawn(plots.ladder, "histogram")

# %% [markdown]
# Each of the first steps makes the kernel several times as fast: from global to shared memory, and from a block for 512
# elements to as many blocks as the GPU holds. Runs and copies change less, and `copies` is slower than the rung before
# it. The last two steps are large again: sixteen bytes come by one load, and then nobody waits for an atomic.
# Each rung says under `Leaves` what the next one mends.

# %%
for rung in histogram.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# All rungs do the same work on the same bytes, and no floating-point operation. So in a roofline they would stand above
# one another at intensity 0, which a logarithmic axis does not have. What tells them apart is not the bytes, but who
# waits for whom. The next figure shows that. Its knob is the share of equal bytes, as in the figure of the steps.

# %%
shown = ("global_atomics", "coarsened", "aggregated", "per_thread", "wide_bytes", "torch.bincount")


def shares():
    kept = record.load()
    entries = kept.entries("histogram", family="share of equal bytes")
    if not entries:
        raise record.RecordError(f"{kept.where} has no measurements of the share of equal bytes")
    figure, ax = chart(3.8)
    for name, colour, marker in zip(shown, palette.COLOURS, "osvD^x", strict=False):
        points = [(entry.sizes["percent"], entry.median_ms) for entry in entries if entry.contender == name]
        ax.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=name)
    ax.axhline(roofline.bound(histogram.cost(2**26), kept.ceilings("histogram")).seconds * 1e3, ls="--", label="bound")
    ax.set(yscale="log", xlabel="share of equal bytes (%)", ylabel="time (ms)", title="2^26 bytes, 256 bins")
    figure.legend(loc="outside right upper")
    return figure


plots.drawn(shares)

# %% [markdown]
# Where a line lies flat near the dashed bound, memory is the bound, and the values do not matter. Where a line rises
# with the share, *contention* is the bound: the same bytes are read, and more of the additions wait for each other. On
# an H200 `global_atomics` rises, and so does PyTorch's function.
#
# The rungs that count in shared memory lie flat, most of them far above the bound. Not even `coarsened` takes longer
# where all bytes are equal, and for it the model foresaw nine times as many steps. So the model is not what this GPU
# does. A likely reason is an instruction that NVIDIA's profiler has found in `coarsened` and `copies`: `ATOMS.POPC.INC`
# (`agreement.json` in the record, of [chapter 98](98_instruments.ipynb)). POPC counts bits. We take it that it counts
# the lanes with the same counter, and adds their number at once. It can only add ones. Weights in float32 are added to
# shared memory by a loop of compare-and-swap, in which lanes with the same counter do wait for each other.
#
# And NumPy, on one core of the CPU:

# %%
plots.drawn(plots.cpu_gpu, "histogram")

# %% [markdown]
# The dashed line has the transfer of the bytes to the GPU in it.
#
# ## Tens of thousands of bins
#
# The words of a text are numbers, too, and a vocabulary has tens of thousands of them: that of the language model GPT-2
# has 50,257. For so many bins all rungs above go back to global memory. What does that cost?
#
# Words are not equally frequent. In most texts the second most frequent word comes about half as often as the first,
# the third a third as often, and so on: this is *Zipf's law*. Here are made-up texts, one with that law, and one whose
# words are all equally frequent.

# %%
WORDS = 50_257
draws = np.random.default_rng(1).random(300_000, dtype=np.float32)
texts = {
    "uniform": (draws * WORDS).astype(np.int32),
    "words": (np.exp(draws * np.log(np.float32(WORDS + 1))) - 1).astype(np.int32),
}
for kind, text in texts.items():
    found = lab.count(many_bins.in_global_memory, text, WORDS)
    assert np.array_equal(found.result, np.bincount(text, minlength=WORDS))
    turns = found.counters["atomic_passes"] / found.counters["atomic_requests"]
    print(f"{kind:8} the most frequent word: {np.bincount(text).max() / text.size:6.2%}; turns a request: {turns:.2f}")

# %% [markdown]
# A few turns for a request look harmless. But the L2 cache executes the atomics of *all* warps, and one word in sixteen
# is the same one. The words of such texts are counted in the room `many_bins`, and this helper asks for its record.


# %%
def ms(name, kind):
    """The recorded time of a contender for 2^26 words of the vocabulary."""
    for entry in record.load(room="many_bins").entries("many_bins", family=kind, contender=name):
        if entry.sizes["bins"] == WORDS:
            return entry.median_ms
    raise record.RecordError(f"{name} has no time for {WORDS:,} bins")


# %% [markdown]
# **Predict, then run.** $2^{26}$ words on an H200: how many times as long do atomics in global memory take with the law
# as with equally frequent words?

# %%
guess = None  # times as long

predict(
    guess,
    lambda: ms("in_global_memory", "words") / ms("in_global_memory", "uniform"),
    unit="times as long",
    factor=2,
)

# %% [markdown]
# We have seen that shared memory minds such data far less. A block has 48 KiB of it without asking, and that is 12,288
# counters. But it may ask the driver for more: on an H200 for 227 KiB.
#
# **Predict, then run.** How many counters of 32 bits is that? Does the vocabulary fit, and do the 65,536 values of 16
# bits?

# %%
guess = None  # counters

most = 227 * 1024  # bytes
predict(guess, most // np.dtype(np.int32).itemsize)

# %% [markdown]
# The vocabulary fits, and the values of 16 bits do not, if only by a little. So blocks share them out: one counts the
# first half of the bins, and another one the second half. Both read all elements, and each leaves out what is not its
# own. In the second rung of the room `many_bins` a block has all bins, and in the third they are cut into up to four
# parts. The kernel is the same.

# %%
show(many_bins.counts_kernel)
show(many_bins.launch)

# %% [markdown]
# `blockIdx.y` is the number of the part. Often a multiprocessor has room for a single block, so this has 1,024 threads,
# and each has four loads under way at once.
#
# **Predict, then run.** How many times as fast as atomics in global memory is `in_shared_memory` for the words?

# %%
guess = None  # times as fast

predict(
    guess,
    lambda: ms("in_global_memory", "words") / ms("in_shared_memory", "words"),
    unit="times as fast",
    factor=2,
)

# %%
shown = (*(rung.name for rung in many_bins.LADDER), "torch.bincount", "cupy.bincount")


def by_bins():
    kept = record.load(room="many_bins")
    look = plots.colours(kept, "many_bins")
    least = 1e3 * roofline.bound(many_bins.cost(2**26, itemsize=4), kept.ceilings("many_bins")).seconds
    figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.8), sharey=True, layout="constrained")
    for ax, kind in zip(axes, ("uniform", "words"), strict=True):
        for name in shown:
            entries = kept.entries("many_bins", family=kind, contender=name)
            points = sorted((entry.sizes["bins"], entry.median_ms) for entry in entries)
            if points:
                colour, marker = look[name]
                ax.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
        ax.axhline(least, color=palette.INK, linestyle="--", label="bound")
        ax.set(xscale="log", yscale="log", xlabel="bins", title=f"{kind}: 2^26 elements")
        ax.set_xticks([2**14, 2**16, 2**18], ["2^14", "2^16", "2^18"])
        ax.minorticks_off()
    axes[0].set_ylabel("time (ms)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


plots.drawn(by_bins)

# %% [markdown]
# For 50,257 bins of uniform elements, atomics in global memory take six times as long as those in shared memory, and
# for words nearly eighty times. PyTorch's function is as slow or slower. Shared memory takes the same time in both
# panels. A second part makes it longer by more than half, and each further one adds about as much, since every part
# reads all elements. (Up to 50,257 bins there is one part, and the last two rungs are the same.) With four parts words
# still take a twentieth of the time, and uniform elements two thirds. 262,144 bins would be five parts. The rung leaves
# them to global memory.
#
# The bound is not reached: the shortest time is more than twice as long. There a multiprocessor has room for two
# blocks, and for 50,257 bins for one, which changes little.
#
# ## What to take along
#
# `+=` on a place that threads share is three steps, and loses counts. An atomic makes them one, and then the price is
# contention: it depends on the values, and no counter of bytes or operations shows it. The remedies have one idea in
# common: *let fewer meet*. A private copy for each block, then for each lane, then for each thread; a register for a
# run. Each level asks for more memory and for a flush in the end, and coarsening pays for the flush. Where one block
# has no room for all counters, several blocks share them out.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter, on several inputs, with every access checked, and compares its counters
# with a budget. Then it says what it found. Replace `pass` by your code. Each task comes with hints to unfold.
#
# ### 1. The letters of a text
#
# A private histogram with 26 bins for each block, in which capitals count as well.

# %%
exercise("histogram/letters")


# %%
@cuda.jit
def letters(text, counts):
    pass  # your code


check("histogram/letters", letters)

# %% [markdown]
# ### 2. The edges of a range
#
# Which bin has a number that lies on an edge, and which has a NaN?

# %%
exercise("histogram/range")


# %%
@cuda.jit
def in_bins(x, low, high, out):
    pass  # your code


check("histogram/range", in_bins)

# %% [markdown]
# ### 3. Equal lanes, one atomic
#
# Aggregation across the lanes of a warp, without shared memory.

# %%
exercise("histogram/match")


# %%
@cuda.jit
def matched(x, out):
    pass  # your code


check("histogram/match", matched)

# %% [markdown]
# ### More, without a check
#
# - `copies` has one copy for each lane. Would one for each *warp* of the block help as much? Change `banks` in `steps`.
# - A histogram equalises a picture: replace each brightness by the share of pixels that are at most as bright. Do it to
#   the portrait, with `np.cumsum`.
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def letters_answer(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(26, np.int32)
    if thread < 26:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        letter = (text[i] | 32) - 97  # a small letter is its capital with bit 5 set
        if 0 <= letter < 26:
            cuda.atomic.add(mine, letter, 1)
    cuda.syncthreads()
    if thread < 26:
        counts[cuda.blockIdx.x, thread] = mine[thread]


assert check("histogram/letters", letters_answer)

# %% [markdown]
# *Letters.* Clear, barrier, count, barrier, write. Here it is at work, on the verses that come with Python.

# %% jupyter={"source_hidden": true} tags=["answer"]
with contextlib.redirect_stdout(io.StringIO()) as verses:
    importlib.import_module("this")  # prints them
text = np.frombuffer(verses.getvalue().encode(), np.uint8)
rows = np.zeros((-(-text.size // 256), 26), np.int32)
simt.profile(letters_answer, len(rows), 256, (text, rows))
counts = rows.sum(axis=0)
order = np.argsort(-counts, kind="stable")
print(" ".join(f"{chr(97 + letter)}:{counts[letter]}" for letter in order))


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def range_answer(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        if low <= value <= high:  # a NaN is neither
            at = int((value - low) / (high - low) * np.float32(out.size))
            cuda.atomic.add(out, min(at, out.size - 1), 1)


assert check("histogram/range", range_answer)

# %% [markdown]
# *Range.* Every comparison with a NaN is false, so the test keeps it out, and infinities as well. For `value == high`
# the quotient is 1, and the bin would be one too many: `min` puts it into the last.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def match_answer(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1  # all lanes must take part
    same = cuda.match_any_sync(0xFFFFFFFF, value)
    if value >= 0 and cuda.ffs(same) - 1 == cuda.laneid:
        cuda.atomic.add(out, value, cuda.popc(same))


assert check("histogram/match", match_answer)

# %% [markdown]
# *Match.* Each group of lanes with one value has a lowest lane, and that one adds for all. Lanes beyond the end form a
# group of their own, whose value no element has.


# %% jupyter={"source_hidden": true} tags=["answer"]
def of_warps(share):
    """One copy a warp: within a warp the lanes use the same copy, so it is as with one copy."""
    return steps(share, 1)


print(f"a copy for each warp: {of_warps(0):.1f} steps for noise, {of_warps(1):.0f} if all bytes are equal")

# %% [markdown]
# *A copy for each warp.* It keeps warps apart, and not the lanes of a warp: its steps are those of one copy.

# %% jupyter={"source_hidden": true} tags=["answer"]
share = np.cumsum(exact) / pixels.size
figure, axes = plt.subplots(1, 2, figsize=(5, 3), layout="constrained")
for ax, picture, name in zip(axes, (image, 255 * share[image]), ("before", "equalised"), strict=True):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=255)
    ax.set_title(name)
    ax.set_axis_off()

# %% [markdown]
# *Equalised.* Every level of brightness is now about as frequent as any other, and details show in the dark uniform.
# The sum over the bins is a scan, which [chapter 34](34_scan.ipynb) does on the GPU.
#
# Go on with [chapter 30](30_reduction.ipynb): how thousands of threads agree on one number.
