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
# # 42. Sorting
#
# *Sorting networks, merge sort, radix sort by bits and by bytes, ranks within a warp, one sweep, pairs, selection,
# segments. Read chapters [8](08_warps.ipynb), [28](28_histogram.ipynb), [34](34_scan.ipynb), [35](35_filter.ipynb) and
# [41](41_merge.ipynb) before. 100 minutes. PMPP 4e: chapter 13; 5e: chapter 14. The code is
# [pmpp/kernels/sort/ladder.py](../pmpp/kernels/sort/ladder.py), [digits.py](../pmpp/kernels/sort/digits.py),
# [tile.py](../pmpp/kernels/sort/tile.py), [look_back.py](../pmpp/kernels/sort/look_back.py),
# [pairs.py](../pmpp/kernels/sort/pairs.py), [selection.py](../pmpp/kernels/sort/selection.py) and
# [segments.py](../pmpp/kernels/sort/segments.py).*
#
# What is the median brightness of a photograph? Which of its pixels are the brightest hundredth? Both questions are
# simple once the pixels are in order. So are many others: which words occur twice, which particles share a cell, which
# customers bought most. The numbers that are put in order are called *keys*.
#
# Where a key belongs depends on all other keys. A kernel that reads a key cannot write it to its place, because it does
# not know the place. So keys go through memory several times. **The question of this chapter: in how few trips through
# memory can a GPU sort?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import sort
from pmpp.kernels.sort import digits, look_back, pairs, segments, selection, tile
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

# %%
image = (data.photograph() @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
pixels = image[::8, ::8].ravel() if not device.on_gpu() else image.ravel()
print(f"{pixels.size:,} pixels, the darkest {pixels.min():.1f} and the brightest {pixels.max():.1f}")

# %% [markdown]
# ## The bound
#
# Every sort reads each key and writes it, once at least. The design size is $2^{28}$ int32, on an H200 with its
# published bandwidth.
#
# **Predict, then run.** How many milliseconds does memory need to read and write the keys once?

# %%
guess = None  # ms, to two places behind the point

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
design = sort.cost(2**28)
predict(guess, round(design.bytes / h200.bandwidth * 1e3, 2), unit="ms")

# %% [markdown]
# No sort of this chapter comes near to that. What each of them has to move is its own bound, and we shall count it rung
# by rung.
#
# ## The reference
#
# One key after another is put behind all those that do not come after it. Keys that are equal keep their order: it is a
# *stable sort*. Of whole numbers nobody sees that. But -0 and 0 are equal, too, and a key may have a value that belongs
# to it. A NaN comes last, as NumPy sorts.

# %%
show(sort.reference)
few = np.float32([2, -0.0, np.nan, 0.0, -1])
print(sort.reference(few), np.sort(few, kind="stable"))

# %% [markdown]
# ## Rung 1: `bitonic`
#
# Compare two keys, and put the lesser one first. A *sorting network* does nothing else, and always with the same
# places, whatever the keys are: so thousands of threads know in advance what they will compare.
#
# Two sorted runs of equal length become one like this. Compare the first key of the one with the last key of the other,
# the second with the last but one, and so on. After that no key of the first half is greater than any of the second
# half. Then compare keys half as far apart, and a quarter, until neighbours have been compared. So runs of 1 become
# runs of 2, 4, 8, and so on.


# %%
def network(n):
    """The comparisons of a network for n keys, a step after another: pairs of places."""
    half, steps = 1, []
    while half < n:
        distance = half
        while distance > 0:
            first = np.arange(n // 2) // distance * 2 * distance
            i = np.arange(n // 2) % distance
            other = first + 2 * distance - 1 - i if distance == half else first + distance + i
            steps.append(list(zip(first + i, other, strict=True)))
            distance //= 2
        half *= 2
    return steps


print("8 keys:", [len(step) for step in network(8)])

# %%
n = 8


def wires(n):
    figure, ax = chart(3.4)
    at = 0.0
    for step in network(n):
        for low, high in step:
            ax.plot([at, at], [low, high], color=palette.COLOURS[5], marker="o", ms=4)
            at += 0.25
        at += 0.75
    ax.hlines(range(n), -0.5, at, color=palette.INK, lw=0.6, zorder=0)
    ax.set(xticks=[], yticks=range(n), ylabel="place", title=f"Sorts {n} keys: a dot at both keys that are compared")
    ax.invert_yaxis()
    return figure


knobs.turn(wires, n=(n, (2, 4, 8, 16)))

# %% [markdown]
# Time goes from left to right, and each vertical line is a comparison. Groups of lines are steps: the comparisons of a
# step touch different places, so they can be done at the same time. Places beyond the last key are skipped, as if
# larger keys stood there. So any number of keys can be sorted.

# %%
show(sort.compare_exchange)
show(sort.pair_of)
show(sort.bitonic_kernel)

# %% [markdown]
# A step may begin only when the one before has ended everywhere. In device memory that needs a launch for each.
#
# **Predict, then run.** How many launches sort $2^{28}$ keys?

# %%
guess = None  # launches

stages = range(1, 29)
predict(guess, sum(stages), unit="launches")


# %%
def recorded(*names, room="sort"):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load(room="sort")
        entries = [entry for entry in kept.design(room) if entry.contender in names]
        for entry in entries:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings(room))
            print(f"{entry.contender:15} {entry.workload} {entry.median_ms:8.4g} ms, {share:6.1%} of the roof")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


recorded("bitonic", "torch.sort", "cupy.sort")

# %% [markdown]
# To make runs of $2^k$ keys takes $k$ steps, so it is 1 + 2 + ... + 28. Each reads and writes all keys: 8 bytes a key
# and step.
#
# ## Rung 2: `bitonic_shared`
#
# Most steps compare keys that are not far apart. A block takes 2,048 keys into shared memory, and makes there all steps
# that stay among them, with a barrier after each. Only the others are launches.

# %%
show(sort.step_in_shared)
show(sort.bitonic_section_kernel)
show(sort.bitonic_shared.launch)


# %%
def counted(rung, x, *names):
    """Counters of a rung in the interpreter, over its launches. The result is compared with NumPy's."""
    found = lab.count(rung, x)
    assert np.array_equal(found.result, np.sort(x))
    return [found.counters[name] for name in names]


noise = np.random.default_rng(0)
random_keys = noise.integers(-(2**31), 2**31, tile.TILE, dtype=np.int32)
two_tiles = np.concatenate([random_keys, noise.permutation(random_keys)])
STORED = "global_store_bytes"

# %% [markdown]
# **Predict, then run.** For 8,064 keys, which $2^{13}$ places have room for, the network has 91 steps. How often does
# `bitonic_shared` write each key to device memory? A section has $2^{11}$ keys.

# %%
guess = None  # times

(in_shared,) = counted(sort.bitonic_shared, random_keys, STORED)
predict(guess, round(in_shared / 4 / random_keys.size), unit="times")

# %%
print(f"bitonic: {sum(range(1, 14))} times, bitonic_shared: {in_shared / 4 / random_keys.size:.0f}")
recorded("bitonic", "bitonic_shared")

# %% [markdown]
# One launch sorts the sections. To double them twice takes 1 and 2 steps in memory, and each time one more launch for
# what is left. The number still grows with the square of the logarithm.
#
# ## Rung 3: `merge_sort`
#
# A network compares more than it needs to. Chapter 41 merged two sorted runs with one comparison for each output, in
# one trip through memory. So sort sections of 2,048 keys in shared memory, and merge them in pairs: each pass doubles
# the runs, and all blocks are busy in each of them.
#
# A section is sorted by merging, too. Each thread begins with eight keys in registers. It compares neighbours at even
# places and at odd ones in turn, which is the simplest network there is: *odd-even transposition sort*.

# %%
show(sort.sort_piece)
show(sort.merge_runs)
show(sort.merge_kernel)

# %% [markdown]
# `section_of`, `co_rank` and `merge_piece` are those of chapter 41. What is new is that a block looks up which pair of
# runs its section of the result belongs to.
#
# **Predict, then run.** How many times does merge sort read and write all keys, for $2^{28}$ of them?

# %%
guess = None  # times

section = int(np.log2(sort.SECTION))
predict(guess, 1 + 28 - section, unit="times")

# %%
recorded("bitonic_shared", "merge_sort", "cupy.sort")

# %% [markdown]
# A sort that merges pairs of runs has to double them, pass after pass. To double more often in one trip, a block would
# need room for all that it merges. There is another way.
#
# ## Looking at digits
#
# Take three-digit numbers on cards. Put them on ten piles by their *last* digit, and put the piles together, those with
# a lower digit first. Do the same with the middle digit, and then with the first one. The cards are sorted. No two of
# them were ever compared: this is a *radix sort*.
#
# It works because each pass is stable. Cards with the same first digit keep the order that the passes before gave them.

# %%
cards = np.array([538, 347, 137, 533, 463, 338, 173])
for place in (1, 10, 100):
    cards = cards[np.argsort(cards // place % 10, kind="stable")]
    print(f"by the digit of {place:3}:", *cards)

# %% [markdown]
# **Predict, then run.** And if the first digit came first, then the middle, and the last digit at the end? How many of
# the seven cards would then stand at their right place?

# %%
guess = None  # cards

turned = np.array([538, 347, 137, 533, 463, 338, 173])
for place in (100, 10, 1):
    turned = turned[np.argsort(turned // place % 10, kind="stable")]
predict(guess, int((turned == np.sort(turned)).sum()), unit="cards")

# %%
print("first digit first:", *turned)

# %% [markdown]
# The last pass decides, so the most important digit must come last. The card 538 is at its place by chance.
#
# Keys of a computer are bits. Those of a uint32 are ordered as the numbers are. An int32 has its sign in the first bit,
# and the sign is 1 for numbers that come *before* the others, so that bit is turned over. A float32 has its sign there,
# too, then an exponent, then digits. Of positive numbers a greater one has greater bits. Of negative ones it is the
# other way round, so all their other bits are turned over as well.

# %%
show(digits.as_digits)
show(digits.turn_of)
show(digits.ordered)

# %% [markdown]
# `as_digits` gives whole numbers to a kernel as uint32. Then the same function serves all types: a uint32 is never less
# than 0 and never a NaN, and the compiler leaves out what cannot happen. To sort in descending order, turn over all
# bits once more.
#
# ## Rung 4: `one_bit`
#
# The smallest digit is one bit. A pass puts keys with a 0 before those with a 1, and keeps the order within both. A key
# with a 1 goes behind all zeros and behind the ones before it. A key with a 0 goes forward by the number of ones before
# it. So all that a pass needs is the number of ones before each key: a scan.

# %%
show(sort.bit_kernel)
show(sort.split_kernel)
show(sort.by_passes)

# %% [markdown]
# ### Exercise: split by a bit
#
# Write the pass yourself, for the keys of each block alone. `check` runs your kernel in the interpreter, on several
# inputs, with every access checked. Replace `pass`.

# %%
exercise("sort/split")


# %%
@cuda.jit
def split(x, bit, out):
    pass  # your code


check("sort/split", split)

# %% [markdown]
# A pass computes the bits: 4 bytes are read for a key, and 4 are written. The scan reads 4 and writes 4. To move the
# key, 12 are read, namely the key, its bit and what the scan says, and 4 are written.
#
# **Predict, then run.** How many bytes does that make for a key, over all passes?

# %%
guess = None  # bytes

a_pass = np.dtype(np.int32).itemsize * (2 + 2 + 4)
predict(guess, 32 * a_pass, unit="bytes")

# %%
recorded("merge_sort", "one_bit")

# %% [markdown]
# That is slower than to merge: `merge_sort` moves eight bytes for a key, 18 times.
#
# ## Rung 5: `local`
#
# A digit of four bits needs eight passes. But there are sixteen values now, and neighbouring threads have keys for
# sixteen different parts of the result. If each thread wrote its key there, a warp's store would touch up to sixteen
# places.
#
# So a block first sorts its 2,048 keys by the digit in shared memory: four splits by one bit. Then keys with the same
# digit lie side by side. They go to neighbouring places of the result, too, and a warp's store touches few sectors. A
# table has the count of each digit in each section, digit by digit. Its scan says where each run goes.

# %%
show(sort.split_section)
show(sort.local_kernel)
show(sort.runs_to_places_kernel)

# %% [markdown]
# **Predict, then run.** How many sectors does a store of `runs_to_places_kernel` touch, for random keys? (Four are the
# least for 32 keys.)

# %%
guess = None  # sectors a request, to one place behind the point


def of_kernel(rung, name, x, *counters):
    """Counters of those launches of a rung whose kernel has a name."""
    reports = [report for report in lab.count(rung, x).reports if name in report.kernel]
    return [sum(report.counters[counter] for report in reports) for counter in counters]


names = ("global_store_sectors", "global_store_requests")
sectors, requests = of_kernel(sort.local, "runs_to_places", random_keys, *names)
predict(guess, round(sectors / requests, 1), unit="sectors")

# %%
recorded("one_bit", "local")

# %% [markdown]
# A digit's run in a section has 128 keys on average. So a warp's 32 keys lie in one run or in two, and a run rarely
# begins at a multiple of eight keys.
#
# ## Rung 6: `ranked`
#
# Digits of eight bits need only four passes. A split for each bit would now take eight splits with their barriers. But
# why move keys at all before their place is known? What a key needs is its *rank*: how many keys of the tile come
# before it, if the tile is sorted by this digit. That is
#
# - the keys with a lesser digit, plus
# - the keys with the same digit in warps before, plus
# - the keys with the same digit before it in its own warp.
#
# The first two come from counters: one for each digit in each warp, and a scan. The third one is the difficult part. An
# atomic on the warp's counter would give every lane a different number, but in any order, and a radix sort must be
# stable. Which lanes have the same digit as I do? Eight ballots say it.

# %%
show(tile.peers_of)

# %% [markdown]
# A lane's *peers* are those that voted as it did each time. The number of peers in lanes below is the key's rank among
# them.
#
# ### Exercise: the rank within a warp

# %%
exercise("sort/rank")


# %%
@cuda.jit
def rank(x, out):
    pass  # your code


check("sort/rank", rank)

# %% [markdown]
# **Predict, then run.** 32 lanes have random keys. How many different digits of eight bits do they have, on average?

# %%
guess = None  # digits, to one place behind the point

predict(guess, round(256 * (1 - (255 / 256) ** 32), 1), unit="digits")

# %% [markdown]
# Nearly every lane has its own. So a loop over the digits that occur would run about thirty times. Eight ballots always
# suffice. (A GPU has an instruction that finds the peers at once, `match_any_sync`. The record does not compare it.)
#
# A warp takes 32 keys at a time, 21 times. Its counters begin as the places of its first keys of each digit, and move
# on. The lanes of one digit read their counter, then the highest of them writes what the next keys begin with.

# %%
show(tile.count_in_warps)
show(tile.places_of)

# %%
show(tile.rank_and_gather)
show(tile.write)

# %% [markdown]
# Keys go to shared memory by rank, as in `local`, and from there to the result: neighbours to neighbours. The last tile
# is filled up with copies of its last key, which are left out again.

# %%
show(tile.leave_out_copies)
show(sort.ranked_kernel)

# %%
print(f"local:  {sectors / requests:5.2f} sectors a store, and 8 passes")
sectors, requests = of_kernel(sort.ranked, "ranked_kernel", two_tiles, *names)
print(f"ranked: {sectors / requests:5.2f} sectors a store, and 4 passes")
recorded("local", "ranked", "cupy.sort")

# %% [markdown]
# A digit's run has 8,064 / 256 = 31.5 keys on average. A warp's store touches two runs or three, and more sectors than
# with four bits. But there are half as many passes.
#
# ## Rung 7: `one_sweep`
#
# A pass of `ranked` reads the keys twice: once to count the digits of each tile, and once to sort it. Between the two
# stands a scan of all counts. Chapter 34 got rid of such a scan: tiles published what they knew, and looked back at the
# tiles before them. Here a tile has 256 numbers to publish, one for each digit, and 256 threads look back, each for its
# own.

# %%
show(look_back.publish_bin)
show(look_back.look_back_bins)

# %% [markdown]
# A tile also needs to know where its digit begins in the result: how many keys have a lesser one. That is the histogram
# of all keys, summed up. Sorting does not change how often a digit occurs. So *one* kernel counts all four digits of
# all keys before the first pass, with chapter 28's copies of counters.

# %%
show(sort.count_digits)
show(sort.all_digits_kernel)
show(sort.one_sweep_kernel)

# %% [markdown]
# **Predict, then run.** How many bytes of keys does `one_sweep` read and write for each key, in all?

# %%
guess = None  # bytes

predict(guess, sort.own_cost(2**28).bytes / 2**28, unit="bytes")

# %%
own = sort.own_cost(2**28).bytes / h200.bandwidth * 1e3
print(f"{own:.3g} ms for 2^28 keys at the published bandwidth of an H200")
loaded, stored = of_kernel(sort.one_sweep, "", random_keys, "global_load_bytes", STORED)
print(f"counted in the interpreter: {(loaded + stored) / random_keys.size:.1f} bytes a key")
recorded("ranked", "one_sweep", "cupy.sort", "torch.sort")

# %% [markdown]
# Four bytes to count, and four times eight to sort: no rung that sorts by bytes can move less. What is counted besides
# are small numbers that each tile reads, such as the places where digits begin. They are the same for all tiles, and
# come from a cache.
#
# `sort.sort` is the function for daily use. Here is the question of the beginning:

# %%
in_order = device.to_host(sort.sort(pixels))
print(f"the median pixel is {in_order[pixels.size // 2]:.1f}; NumPy says {np.sort(pixels)[pixels.size // 2]:.1f}")
print(f"the brightest hundredth begins at {in_order[-pixels.size // 100]:.1f}")

# %% [markdown]
# ## Pairs
#
# A key rarely comes alone. *Where* are the brightest pixels? Then each key has a value beside it, here the number of
# its pixel, and the value moves with the key. In a tile it takes the same way: to the same place in shared memory, and
# from there behind the keys of the same digit.

# %%
show(pairs.rank_and_keep)
show(pairs.one_sweep_pairs_kernel)

# %%
where = device.to_host(sort.argsort(pixels, descending=True))
print("the brightest pixels:", where[:5], "with", pixels[where[:5]])
print("the same as NumPy's:", np.array_equal(pixels[where], np.sort(pixels)[::-1]))

# %% [markdown]
# If the values are the numbers 0, 1, 2, ..., the sorted values are the order itself: `argsort`. And as equal keys keep
# their order, a table is sorted by two columns like this: first by the less important one.

# %%
bright, column = pixels.astype(np.int32) // 64, np.arange(pixels.size, dtype=np.int32) % 10
by_column = device.to_host(sort.argsort(column))
both = by_column[device.to_host(sort.argsort(np.ascontiguousarray(bright[by_column])))]
print("the same as NumPy's lexsort:", np.array_equal(both, np.lexsort((column, bright))))

# %% [markdown]
# ## The greatest few
#
# Who wants the brightest hundred need not sort the rest. A *selection* looks at the *first* digit first. Its counts say
# which value of it the hundredth key has. Keys with a greater one are chosen, keys with a lesser one are out, and only
# those with this value are in doubt.
#
# **Predict, then run.** Of $2^{28}$ random int32 we want the greatest 1,000. How many keys are left, chosen or in
# doubt, when eight bits of each have been looked at?

# %%
guess = None  # keys

predict(guess, 2**28 // digits.BINS, unit="keys")

# %% [markdown]
# One in 256, as all 1,000 have the greatest first digit. The others are never looked at again. So nearly all of the
# work is to read the keys twice: to count, and to choose. What goes on is counted by its next digits, until all digits
# of the 1,000th key are known. How many keys go on is known to the GPU alone: `state` keeps it, and no kernel waits for
# the host.

# %%
show(selection.narrow_kernel)
show(selection.choose_kernel)

# %%
brightest, where = map(device.to_host, sort.top_k(pixels, 5))
print("the brightest pixels:", where, "with", brightest)

# %% [markdown]
# ## Many short vectors
#
# Let each row of the photograph be sorted by itself, or the neighbours of each vertex of a graph. Such *segments* lie
# one behind the other, and `starts` says where each begins. A launch for each would take longer than the sort.
#
# One way is known: a radix sort of everything, with the number of the segment as the highest digits. The last digits
# come first, so all keys are sorted, and then sorted once more by the segment that they are in. It works for segments
# of any length, and it is what `by_digits` does.
#
# **Predict, then run.** There are 200 segments. How many times does a key, with the number of its place, go through
# memory in both sorts?

# %%
guess = None  # times

some = np.random.default_rng(0).integers(-99, 99, 4000).astype(np.int32)
ends = np.arange(0, 4001, 20, dtype=np.int32)
sweeps = sum("one_sweep" in one.kernel for one in lab.count(segments.by_digits, some, ends).reports)
predict(guess, sweeps, unit="times")

# %% [markdown]
# Four times by the digits of the key, and once more, as 200 numbers have one digit of eight bits.

# %%
show(segments.number_kernel)
show(segments.take_kernel)
show(segments.by_digits.launch)

# %% [markdown]
# But twenty keys fit into a warp, and two thousand into the shared memory of a block. There a sorting network is at its
# best: rung 2 was slow because of the steps that left the block, and here none does. The network takes no account of
# the order of equal keys. So it compares words of 64 bits, the key's ordered bits above and its place in the segment
# below. No two of these are equal, and a value follows its key by the place.

# %%
show(segments.with_place)
show(segments.sort_in_warp)
show(segments.in_warps_kernel)

# %% [markdown]
# A segment of up to 32 keys belongs to a warp, a key a lane. It needs neither shared memory nor a barrier. With eight
# keys a lane a warp has up to 256: some steps are between lanes, and some between the registers of a lane. A longer
# segment is put on a list, and blocks take segments from the list in turns. How long the list is, only the GPU knows.
# And a caller may have named too small a length for the longest segment. Then there may be no room to sort it, and
# `keep` copies it as it is. Otherwise the kernel would write beyond the list, or beyond shared memory.

# %%
show(segments.sort_rows)
show(segments.listed_kernel)

# %%
for rung in segments.LADDER:
    found = lab.count(rung, some, ends, longest=20)
    right = np.array_equal(found.result.reshape(-1, 20), np.sort(some.reshape(-1, 20), axis=1))
    moved = found.counters["global_load_bytes"] + found.counters["global_store_bytes"]
    print(
        f"{rung.name:10} {moved / some.size:6.1f} bytes a key, {found.counters['barriers']:5} barriers, right: {right}"
    )

# %% [markdown]
# A block for twenty keys has 256 threads that read where the segment begins and ends. That is most of what `in_blocks`
# loads. And a block meets at a barrier after each step, while a warp goes on.

# %%
recorded("by_digits", "in_blocks", "in_warps", "torch.sort", "cupy.sort", room="segments")

# %% [markdown]
# ### Exercise: a warp in order
#
# A network of comparisons in registers: 32 keys, a lane each.

# %%
exercise("sort/warp")


# %%
@cuda.jit
def warp_in_order(x, out):
    pass  # your code


check("sort/warp", warp_in_order)

# %% [markdown]
# ## The whole ladder
#
# The bars are shares of the roof at the design size: 8 bytes a key, which no rung can reach. The dashed line is the
# best library.

# %%
plots.drawn(plots.ladder, "sort")

# %% [markdown]
# What each rung left for the next one:

# %%
for rung in sort.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## When is memory the bound?
#
# `one_sweep` reads and writes little. Is memory still its bound? In a cycle, a multiprocessor of an H200 does an
# instruction on whole numbers or bits for 64 lanes, half as many as for floats. To rank a key takes eight ballots, and
# four or five such instructions around each.
#
# **Predict, then run.** How many such instructions can a thread spend on a key *in one pass* before they take longer
# than the pass's 8 bytes?

# %%
guess = None  # instructions

a_second = h200.sms * 64 * h200.clock
predict(guess, round(8 / h200.bandwidth * a_second), unit="instructions")

# %% [markdown]
# The eight ballots and what is around them take more than that. So here, unlike in a scan, instructions are a bound as
# well as memory. The figure shows for each rung how long the sectors take that it moves, and how long its wavefronts of
# shared memory take, by the published numbers of an H200. The knob chooses the keys.

# %%
KEYS = {
    "random": two_tiles,
    "sorted": np.sort(two_tiles),
    "all equal": np.full_like(two_tiles, 7),
}
SECTORS = ("global_load_sectors", "global_store_sectors")
SHARED = ("shared_load_wavefronts", "shared_store_wavefronts")
SHOWN = (sort.merge_sort, sort.ranked, sort.one_sweep)

# %%
kind = "random"


def bounds(kind):
    counts = [counted(rung, KEYS[kind], *SECTORS, *SHARED) for rung in SHOWN]
    size = two_tiles.size
    moving = [32 * (loads + stores) / h200.bandwidth / size * 1e12 for loads, stores, *_ in counts]
    serving = [sum(waves) / (h200.sms * h200.clock) / size * 1e12 for _, _, *waves in counts]
    figure, ax = chart(3.4)
    places = np.arange(len(counts))
    ax.barh(places - 0.2, moving, 0.36, color=palette.COLOURS[5], label="sectors of global memory")
    ax.barh(places + 0.2, serving, 0.36, color=palette.COLOURS[3], hatch="//", label="wavefronts of shared memory")
    ax.axvline(36 / h200.bandwidth * 1e12, color=palette.INK, ls="--", label="36 bytes a key")
    ax.set(yticks=places, yticklabels=[rung.name for rung in SHOWN])
    ax.set(xlabel="time for a key (ps)", title=f"{kind} keys, by the published numbers of an H200")
    ax.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


knobs.turn(bounds, kind=(kind, tuple(KEYS)))

# %% [markdown]
# The 16,128 keys of two tiles are only four trips through memory for merge sort, and $2^{28}$ keys are eighteen: then
# its bar of global memory is more than four times as long. That of shared memory grows less, because most of it is the
# sorting of sections, which is done once. Shared memory is its bound all the same, since each thread merges eight
# neighbours, and the lanes of a warp meet in a few banks. The bars of the radix sorts stay as they are, whatever the
# number of keys. For random ones global memory takes a third longer than shared memory in `one_sweep`, and twice as
# long in `ranked`, and the instructions around the ballots come on top: none of the three can be left out of the
# account. (Atomics in shared memory are not in the bars.)
#
# And NumPy on one core of the CPU:

# %%
plots.drawn(plots.cpu_gpu, "sort")

# %% [markdown]
# For few keys the launches are the bound, so up to 2,048 keys are sorted by one block, in one launch.
#
# ## What to take along
#
# A sort that merges goes through memory once for each doubling of its runs. A radix sort goes through it once for each
# digit, and compares nothing. Its passes must be stable, so the place of a key is computed and never asked of a
# counter. What makes it fast is what earlier chapters taught: a scan finds places, shared memory turns scattered writes
# into runs, ballots replace atomics within a warp, copies keep lanes from meeting, and tiles look back instead of
# waiting for a launch. Each trip through memory that was saved has made it faster.
#
# ## Exercises
#
# Three stand above: after rung 4, in rung 6, and where a warp sorts a segment.
#
# ### More, without a check
#
# - Why may a radix sort begin with the last digit, and a person who sorts letters by hand begin with the first letter?
# - `one_sweep` waits for tiles before it. Why can it not wait forever, even if the GPU runs only one block at a time?
# - How would you sort the rows of a matrix, each by itself, with `argsort`?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def split_answer(x, bit, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    ones = cuda.shared.array(256, np.int32)
    one = x[i] >> bit & 1 if i < x.size else 0
    ones[thread] = one
    cuda.syncthreads()
    for step in range(8):  # a scan of 256 numbers
        earlier = ones[thread - (1 << step)] if thread >= 1 << step else 0
        cuda.syncthreads()
        ones[thread] += earlier
        cuda.syncthreads()
    if i < x.size:
        zeros = min(256, x.size - (i - thread)) - ones[255]
        before = ones[thread] - one
        out[i - thread + zeros + before if one else i - before] = x[i]


# %% jupyter={"source_hidden": true} tags=["answer"]
assert check("sort/split", split_answer)

# %% [markdown]
# *Split by a bit.* A thread without a key brings a zero to the scan. That changes nothing for the others, as it comes
# behind them. But it must not be counted among the block's zeros.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def rank_answer(x, out):
    i = cuda.grid(1)
    digit = x[i] & 15 if i < x.size else 0
    peers = cuda.ballot_sync(0xFFFFFFFF, i < x.size)
    for bit in range(4):
        mine = digit >> bit & 1
        ones = cuda.ballot_sync(0xFFFFFFFF, mine)
        peers &= ones if mine else ~ones
    if i < x.size:
        out[i] = cuda.popc(np.uint32(peers & (1 << cuda.laneid) - 1))


assert check("sort/rank", rank_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def warp_answer(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    key = x[i] if i < x.size else np.int32(2**31 - 1)  # a lane without a key comes last
    run = 2
    while run <= 32:
        distance = run // 2
        while distance > 0:
            other = cuda.shfl_xor_sync(0xFFFFFFFF, key, distance)
            lesser = (lane & distance == 0) == (lane & run == 0)
            key = min(key, other) if lesser else max(key, other)
            distance //= 2
        run *= 2
    if i < x.size:
        out[i] = key


assert check("sort/warp", warp_answer)

# %% [markdown]
# *A warp in order.* The lower one of two lanes keeps the lesser key where the run rises, and the greater one where it
# falls. For a run of 32 no lane has the bit `run`, so it rises in all of them.
#
# *The rank within a warp.* The first ballot leaves only lanes that have a key. `ones if mine else ~ones` are the lanes
# that voted as this one did.
#
# *Last digit first.* Who begins with the first letter has to keep 26 piles apart until each is sorted. The machine
# would have to sort every pile by itself, in smaller and smaller pieces. From the last digit on there is never more
# than one pile, because each pass keeps what the earlier ones did.
#
# *Waiting.* Tiles are numbered in the order in which their blocks begin. The earliest tile that is not finished waits
# for none, so it goes on, and then the next one does.
#
# *Rows of a matrix.* Sort all elements by value, with the number of each as its value. Then sort stably by row. The
# second sort keeps the order within each row.
#
# Go on with [chapter 43](43_warpgroups.ipynb): products once more, on the tensor cores of Hopper.
