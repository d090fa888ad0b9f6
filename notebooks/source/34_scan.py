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
# # 34. Scan
#
# *Running sums in parallel: work against steps, coarsening, shuffles, many blocks, tiles that talk to each other, and
# stream compaction. Read chapter [30](30_reduction.ipynb) before. 100 minutes. PMPP 4e: chapter 11; 5e: chapters 11 and
# 12.*
#
# From a photograph we want the bright pixels only, one behind the other, in their order. With one processor it is
# simple: walk through the pixels, and append each bright one to a list. A GPU looks at all pixels at once. Then each
# bright pixel has to know its place in the list *before* the others have been appended: the number of bright pixels
# that stand before it.
#
# Those numbers are running sums of ones and zeros. **The question of this chapter: how do thousands of threads compute
# running sums, where each needs all that came before it?** The operation is called *scan*, or *prefix sum*. Sorting,
# sparse matrices and the parallel parts of many algorithms are built from it. The code is the room
# `pmpp/kernels/scan/ladder.py`.

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, predict, simt
from pmpp.kernels import scan
from pmpp.kernels.reduction import SUM
from pmpp.kernels.scan import BLOCK, TILE, VECTOR_BLOCK, VECTOR_TILE, segmented
from pmpp.kernels.scan import eights as scan_eights
from pmpp.kernels.scan import tile as scan_tile
from pmpp.kernels.scan.look_back import look_back, next_tile, publish, publish_word
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# An *inclusive* scan counts the element itself, an *exclusive* one stops before it. For places in a list we want the
# exclusive one: the first bright pixel goes to place 0.

# %%
image = (data.photograph() @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
pixels = image.ravel()
few = pixels[40_000:40_012].round()
bright = few > np.median(few)
print("pixels   ", few.astype(int))
print("bright?  ", bright.astype(int))
print("inclusive", np.cumsum(bright))
print("exclusive", np.cumsum(bright) - bright)

# %% [markdown]
# ## The bound
#
# A scan of $n$ numbers reads each once and writes as many. One addition for 8 bytes: it lies far on the memory-bound
# side, and the best that it can be is as fast as a copy.


# %%
def bound(n):
    """The cost of a scan of n float32, and the least time for it on this GPU, or the recorded one."""
    cost = scan.cost(n)
    print(f"{n:,} numbers: {cost.flops:,} FLOP, {cost.bytes:,} bytes, {cost.intensity:.3f} FLOP/byte")
    try:
        ceilings = roofline.ceilings("scan")
        least = roofline.bound(cost, ceilings)
        print(f"    ridge: {ceilings.ridge:.1f} FLOP/byte; at least {least.seconds * 1e6:.3g} us, set by {least.side}")
    except record.RecordError as missing:
        print(missing)


bound(pixels.size)
bound(2**28)

# %% [markdown]
# ## The reference

# %%
show(scan.reference)
exact = scan.reference(pixels)
print("the last running sum:", exact[-1])

# %% [markdown]
# This looks hopeless for a parallel machine: each step needs the result of the step before it. A reduction
# ([chapter 30](30_reduction.ipynb)) can use a tree, since only the last of these numbers is wanted. Here all of them
# are.
#
# ## Rung 1: `kogge_stone`
#
# Let each element add the one before it. Then each is a sum of two. Now add the one two places before: a sum of four.
# Then four places before, and so on. After $\log_2 n$ steps every element has reached the beginning.

# %%
values, distance = np.arange(1, 17), 1
while distance < 16:
    print(values)
    values = values + np.r_[np.zeros(distance, int), values[:-distance]]
    distance *= 2
print(values)

# %% [markdown]
# In the kernel a block scans as many elements as it has threads, in shared memory.

# %%
show(scan.kogge_stone_kernel)

# %% [markdown]
# A block knows nothing of the blocks before it. So a scan takes three launches (PMPP 11.6): every block scans its own
# *tile* of elements and writes down its total; the totals are scanned, with the same code; and a third kernel adds to
# each tile what came before it.

# %%
show(scan.add_kernel)


# %%
def right(rung, n=pixels.size):
    """How far a rung is from the running sums of n pixels in float64, as a share of the last one."""
    result = device.to_host(rung(device.to_device(pixels[:n])))
    print(f"{rung.name:13} off by {np.abs(result - exact[:n]).max() / exact[n - 1]:.1e} of the sum at most")


right(scan.kogge_stone)

# %% [markdown]
# ### Two barriers
#
# Look at the loop again. It has two barriers per step, and the first one looks superfluous. If all threads ran in
# lockstep, it would be. Here is the kernel without it.


# %%
@cuda.jit
def hasty_kernel(x, out):
    thread, distance = cuda.threadIdx.x, 1
    scanned = cuda.shared.array(256, np.float32)
    scanned[thread] = x[thread]
    cuda.syncthreads()
    while distance < 256:
        if thread >= distance:
            scanned[thread] += scanned[thread - distance]
        cuda.syncthreads()
        distance *= 2
    out[thread] = scanned[thread]


# %% [markdown]
# Let all elements be ones. After the first step, at distance 1, element 4 should be 2.
#
# **Predict, then run.** Suppose that the threads are not in lockstep: in the first step each does its addition before
# the next one begins, thread 0 first. What is element 4 after that step?

# %%
guess = None  # a whole number

late = np.ones(256, int)
for thread in range(1, 256):  # one after another, as a GPU may run them
    late[thread] += late[thread - 1]
predict(guess, late[4])

# %%
result = np.empty(256, np.float32)
checked = simt.profile(hasty_kernel, 1, 256, (np.ones(256, np.float32), result), level="check", collect=True)
print("one after another, elements 0 to 7 after the first step:", late[:8])
print("all sums right in the interpreter, in lockstep:", np.array_equal(result, np.arange(1, 257)))
for hazard in checked.hazards:
    print(f"{hazard.kind}: {hazard.message}")

# %% [markdown]
# One after another, each thread finds a sum that its neighbour has already changed. The interpreter runs in lockstep,
# so its sums are right, and its check names the race all the same. A thread overwrites its element while its neighbour
# may not have read it yet. All must have read before any writes: hence the first barrier.
#
# ### Work and steps
#
# To compare rungs we count on the top of the photograph: 172,032 pixels, a number that all tiles of this chapter
# divide.

# %%
rows = pixels[: 21 * 8192].copy()
zero, reports = np.float32(0), {}


def count(name, kernel, tile, block, *between, after=(), trace=False):
    """Profile the kernel of a rung that scans ``rows``, inclusively."""
    arguments = (rows, np.empty_like(rows), *between, SUM, zero, False, *after)
    reports[name] = simt.profile(kernel, rows.size // tile, block, arguments, trace=trace)


def compare(*counters):
    """Counters of all rungs so far, divided by the number of pixels."""
    print("per element:".ljust(14), *(name.rjust(24) for name in counters))
    for name, report in reports.items():
        print(name.ljust(14), *(f"{report.counters[c] / rows.size:24.4f}" for c in counters))


# %% [markdown]
# **Predict, then run.** The reference does one addition per element. How many does `kogge_stone` do, in a block of 256?

# %%
guess = None  # additions per element

count("kogge_stone", scan.kogge_stone_kernel, BLOCK, BLOCK, np.empty(rows.size // BLOCK, np.float32))
predict(guess, reports["kogge_stone"].counters["flops"] / rows.size, unit="additions")

# %% [markdown]
# Eight steps, less those elements that have already arrived: at distance $d$ the first $d$ threads add nothing. For $n$
# elements it is about $n \log_2 n$ additions instead of $n$.

# %%
compare("flops", "barriers", "shared_load_wavefronts")

# %% [markdown]
# A GPU has additions to spare, but each also reads and writes shared memory, between two barriers.


# %%
def recorded(name, before=None):
    """What the record says of a rung at the room's design size."""
    try:
        kept = record.load()
        entries = {entry.contender: entry for entry in kept.design("scan")}
        entry = entries[name]
        share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("scan"))
        print(f"{name}, {entry.workload} numbers, {kept.gpu}: {entry.median_ms:.3g} ms, {share:.1%} of the roof")
        if before:
            print(f"    {entries[before].median_ms / entry.median_ms:.2f} times as fast as {before}")
    except record.RecordError as missing:
        print(missing)


recorded("kogge_stone")

# %% [markdown]
# ## Rung 2: `brent_kung`
#
# Fewer additions are possible (PMPP 11.4). First a reduction tree, upwards: it leaves the sum of all at the end, and
# sums of halves, quarters, eighths at some other places. Then the tree is walked down again, and each of those sums is
# handed to the elements after it that lack it.

# %%
show(scan.brent_kung_kernel)

# %% [markdown]
# The way up takes $n - 1$ additions for $n$ elements, and the way down a little less. A step is a round of one of the
# two loops, and ends at a barrier.
#
# **Predict, then run.** A block of 256 threads has 512 elements. How many steps does it take, up and down together?

# %%
guess = None  # steps

blocks = rows.size // scan.TWICE
totals, traced = np.empty(blocks, np.float32), simt.Tracing(blocks=(0,))
count("brent_kung", scan.brent_kung_kernel, scan.TWICE, BLOCK, totals, trace=traced)
steps = reports["brent_kung"].counters["barriers"] // blocks - 1  # a barrier comes before the first step
predict(guess, steps, unit="steps")

# %%
print(f"brent_kung:  {steps} steps for {scan.TWICE} elements")
print(f"kogge_stone:  {BLOCK.bit_length() - 1} steps for {BLOCK} elements")
compare("flops", "barriers", "shared_load_wavefronts")

# %% [markdown]
# Nine steps lead up, at distances from 1 to 256, and eight lead down, from 128 to 1. The additions are under two per
# element. The barriers have become fewer too, because a thread now has two elements and a step has one barrier. But
# there are about twice as many steps, and look who works in them. Here is the first warp of a block.

# %%
plots.divergence(reports["brent_kung"], warp=0)

# %% [markdown]
# The warp is whole at first, then fewer and fewer of its lanes work, then one, and on the way down more and more. Other
# warps have nothing to add by then, but go through each test and each barrier all the same. (The stripes are the
# additions. The lines between them are for all lanes.) Besides, the elements that are added lie 2, 4, 8... apart. The
# next picture has shared memory in rows of 32 banks, and the words that the warp stores to in the fourth step. A word
# has the colour of its lane.


# %%
plots.banks(reports["brent_kung"], "scanned", line="scanned[last] = ", kind="store", nth=3)

# %% [markdown]
# The lanes ask the same two banks for different words, and have to wait for one another: a *bank conflict*
# ([chapter 16](16_transpose.ipynb)). Less work in more and worse steps: which of the two wins?

# %%
recorded("brent_kung", before="kogge_stone")

# %% [markdown]
# On this GPU less work wins, though not by much.
#
# ### Exercise: an exclusive scan
#
# `check` runs your kernel in the interpreter on several sizes, with every access checked. Replace `pass` by your code.
# For this exercise there is a device function that scans a block, by the loop of `kogge_stone`. Our answers to all
# exercises are at the end of the chapter.

# %%
from pmpp.kernels.scan.exercises import block_scan

show(block_scan)

# %%
exercise("scan/exclusive")


# %%
@cuda.jit
def exclusive(x, out):
    pass  # your code


check("scan/exclusive", exclusive)

# %% [markdown]
# ## Rung 3: `coarsened`
#
# Both rungs parallelise everything. But a GPU has far fewer processors than we have elements, so the additions are done
# one after another anyway, only with barriers between them. *Thread coarsening* (PMPP 11.5): each thread scans 21
# neighbouring elements by itself, as the reference does. The block then scans 256 totals, and each thread adds what
# came before its own. Only one element in 21 is scanned in parallel.

# %%
show(scan.coarsened_kernel)
show(scan_tile.scan_run)

# %% [markdown]
# A thread needs neighbouring elements, but neighbouring *lanes* must read neighbouring addresses, or the loads are not
# coalesced. So the tile goes through shared memory: loaded in one order, used in the other.

# %%
show(scan_tile.load_tile)

# %% [markdown]
# In `scan_run` lane $t$ works on element $21 t + k$, with the same $k$ in all lanes. Why runs of 21, and not of 16 or
# 32? Element $i$ of a shared array of float32 lies in bank $i$ mod 32. In one wavefront each bank serves one element.


# %%
@cuda.jit
def runs_kernel(run, out):
    shared = cuda.shared.array(1024, np.float32)
    shared[run * cuda.threadIdx.x] = 1
    out[cuda.threadIdx.x] = shared[run * cuda.threadIdx.x]


# %% [markdown]
# **Predict, then run.** A warp runs this kernel. How many wavefronts does its store to shared memory take?

# %%
guess = {"runs of 16": None, "runs of 21": None, "runs of 32": None}  # wavefronts

out = np.empty(32, np.float32)
runs = {f"runs of {run}": simt.profile(runs_kernel, 1, 32, (run, out), trace=True) for run in (16, 21, 32)}
predict(guess, {name: run.counters["shared_store_wavefronts"] for name, run in runs.items()}, unit="wavefronts")

# %%
plots.banks(runs, "shared", line="] = 1", kind="store")

# %% [markdown]
# 21 is odd, so 32 lanes fall into 32 different banks. With runs of 16 they fall into two, and with runs of 32 all into
# one. The next table has the wavefronts of `coarsened`, and what else has changed.

# %%
count("coarsened", scan.coarsened_kernel, TILE, BLOCK, np.empty(rows.size // TILE, np.float32))
compare("flops", "barriers", "shared_load_wavefronts")
recorded("coarsened", before="brent_kung")

# %% [markdown]
# There are a few more additions than in `brent_kung`, and about a tenth of its barriers.

# %% [markdown]
# ## Rung 4: `shuffle`
#
# What is left of the parallel part is 256 totals: eight steps, two barriers each. Lanes of a warp can hand values to
# each other without shared memory, by *shuffles* ([chapter 30](30_reduction.ipynb)). It is Kogge and Stone's scan
# again. Within a warp it now needs no barrier at all, for the 32 lanes shuffle together. Each warp stores one total. To
# scan these totals the block needs two barriers.

# %%
show(scan_tile.warp_scan)
show(scan_tile.scan_warps)

# %%
count("shuffle", scan.shuffle_kernel, TILE, BLOCK, np.empty(rows.size // TILE, np.float32))
compare("flops", "barriers", "shared_load_wavefronts")
recorded("shuffle", before="coarsened")

# %% [markdown]
# ### Exercise: a running maximum in a warp
#
# Change one place of `warp_scan`, and see what else changes with it.

# %%
exercise("scan/highest")


# %%
@cuda.jit
def highest(x, out):
    pass  # your code


check("scan/highest", highest)

# %% [markdown]
# ## Rung 5: `hierarchical`
#
# Inside the tile there is not much left to gain. What is wrong lies outside: how often does an element travel? A tile
# is read and written by `shuffle_kernel`, and read and written again by `add_kernel`. The bound has two trips.


# %%
def trips(*launches):
    """How often an element travels between the memory and the GPU, in these reports."""
    moved = sum(run.counters["global_load_sectors"] + run.counters["global_store_sectors"] for run in launches)
    return 32 * moved / rows.nbytes


tiles = rows.size // TILE
out, totals = np.empty_like(rows), np.empty(tiles, np.float32)
added = simt.profile(scan.add_kernel, tiles, BLOCK, (out, out, totals, SUM, TILE))
print(f"shuffle: {trips(reports['shuffle'], added):.2f} trips")

# %% [markdown]
# `hierarchical` first only *adds up* the tiles. When these totals have been scanned, the tiles are scanned with what
# came before them at hand.

# %%
show(scan.scan_from_kernel)

# %% [markdown]
# **Predict, then run.** How many trips does an element make now, in the launch that adds up and in the one that scans?

# %%
guess = None  # trips

summed = simt.profile(scan.totals_kernel, tiles, BLOCK, (rows, totals, SUM, zero))
count("hierarchical", scan.scan_from_kernel, TILE, BLOCK, totals)
predict(guess, trips(summed, reports["hierarchical"]), unit="trips")

# %%
print(f"totals_kernel: {trips(summed):.2f} trips, scan_from_kernel: {trips(reports['hierarchical']):.2f}")
recorded("hierarchical", before="shuffle")

# %% [markdown]
# Adding up reads every element and writes next to nothing.

# %% [markdown]
# ## Rung 6: `single_pass`
#
# Two trips are only possible if a tile learns what came before it *while it sits in shared memory*: before its block
# ends, from blocks that run at the same time. That is new. So far blocks were strangers, and a launch was the only
# thing that put them in order.
#
# The simplest way would be a chain: each tile waits for the end of the one before it, adds its own total, and passes it
# on. It is right, and slow, since the tiles are then finished one by one. *Decoupled look-back* (Merrill and Garland,
# 2016) makes the wait short. A tile publishes twice: first its own total, as soon as it has it (`PARTIAL`), and later
# the total up to its end (`COMPLETE`). A tile that wants to know what came before it walks back: it adds partial totals
# until it meets a complete one.


# %%
def look(states, totals):
    """What the tile behind the last of these would add up, from right to left."""
    taken, nearest = [], len(totals) - 1
    while states[nearest] != "complete":
        taken.append(f"total of {nearest}")
        nearest -= 1
    return " + ".join([*taken, f"everything up to {nearest}"])


print(look(["complete"] * 3 + ["partial"] * 3, range(6)))
print(look(["complete"] * 6, range(6)))

# %% [markdown]
# A whole warp looks back, 32 tiles at a time.

# %%
show(look_back)

# %% [markdown]
# Three things in it are easy to get wrong, and none of them shows in a quick test.
#
# **The order of two writes.** A tile writes its total, and then the state which says that it is there. Another block
# may see the second write without the first, unless a *fence* stands between them.

# %%
show(publish)

# %% [markdown]
# The interpreter knows of it. Here is a chain of tiles without the fence.


# %%
@cuda.jit
def unfenced_kernel(states, totals):
    tile = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        before = 0
        if tile > 0:
            while cuda.atomic.add(states, tile - 1, 0) == 0:
                pass
            before = totals[tile - 1]
        totals[tile] = before + 1
        cuda.atomic.exch(states, tile, 1)


arrays = np.zeros(9, np.int64), np.zeros(9, np.int64)
unfenced = simt.profile(unfenced_kernel, 9, 32, arrays, level="check")
print(arrays[1], "ran by", unfenced.schedule)
print(unfenced.hazards[0].kind, "-", unfenced.hazards[0].message)

# %% [markdown]
# **Reading again and again.** The waiting loop asks by an atomic addition of 0. A plain `states[...]` in a loop may be
# read once and kept in a register, since the compiler sees nobody who would change it.
#
# **Who waits for whom.** A GPU runs as many blocks as fit, and starts another when one ends. Nobody promises in which
# order. If tile 7 is held by a running block, and tile 6 by one that has not begun because there is no room, then 7
# waits for ever, and 6 never begins. So tiles are not numbered by `blockIdx`. A block asks for a number when it *runs*:

# %%
show(next_tile)

# %% [markdown]
# Now whoever holds tile $t$ knows that the holders of all earlier tiles have begun. A tile waits for earlier ones only,
# and the earliest unfinished tile waits for nobody. So it ends, then the next one is the earliest, and all come to an
# end: *forward progress*, on every GPU, with any number of blocks.
#
# The next kernel does without such numbers. Its tiles are counted from the end of the grid, so the first blocks hold
# the last tiles. Each tile waits for tile 0.


# %%
@cuda.jit
def backwards_kernel(states):
    tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while tile > 0 and cuda.atomic.add(states, 0, 0) == 0:
            pass
        cuda.atomic.exch(states, tile, 1)


# %%
def backwards(tiles):
    """How many of so many tiles come to an end, blocks beginning in order, and what the interpreter says."""
    states = np.zeros(tiles, np.int64)
    try:
        simt.profile(backwards_kernel, tiles, 1024, (states,), level="run", schedule="blocks")
        return int(states.sum()), ""
    except simt.SimtError as refusal:
        return int(states.sum()), str(refusal)


# %% [markdown]
# A block has 1024 threads, so the GPU that the interpreter imagines (132 multiprocessors of 2048 threads) has room for
# 264 blocks at a time.
#
# **Predict, then run.** We launch 264 tiles, and then 265. How many of them come to an end?

# %%
guess = {"264 tiles": None, "265 tiles": None}  # tiles that come to an end

ended = {tiles: backwards(tiles) for tiles in (264, 265)}
predict(guess, {f"{tiles} tiles": done for tiles, (done, _) in ended.items()}, unit="tiles")

# %%
for tiles, (done, said) in ended.items():
    print(f"{tiles} tiles: {done} come to an end. {said}")

# %% [markdown]
# With 265 tiles the block that holds tile 0 is the last of the grid, and finds no room. On a GPU the launch would hang.
# The interpreter sees that nothing can go on, and says who waits for what.
#
# So here is the kernel, one read and one write.

# %%
show(scan.single_pass_kernel)

# %%
tiles = rows.size // TILE
states, values = np.zeros(tiles + 1, np.int64), np.zeros((2, tiles), np.float32)
count("single_pass", scan.single_pass_kernel, TILE, BLOCK, states, values)
print(f"{trips(reports['single_pass']):.2f} trips")
for order in (0, 1):
    with simt.schedule("shuffled", order):
        right(scan.single_pass, 12 * TILE)
recorded("single_pass", before="hierarchical")

# %% [markdown]
# `schedule("shuffled")` runs warps of several blocks in a random order, so tiles find their predecessors partial,
# complete, or not there. (That takes the interpreter some time, so it gets 12 tiles here.) It may change how the sums
# are put together, and with that their last digits, but nothing else. (On a GPU the hardware's own order counts, and
# `schedule` is without effect.)
#
# ### Exercise: a chain of tiles
#
# The simple way first: mend the chain without a fence.

# %%
exercise("scan/chain")


# %%
@cuda.jit
def chain(totals, states, out):
    pass  # your code


check("scan/chain", chain)

# %% [markdown]
# ## Rung 7: `vectorised`
#
# Two trips, and still not the speed of a copy. What is left is the number of bytes in flight. A load brings only 4
# bytes to a thread, which writes them to shared memory before it asks for more. To pass on one number, the writer and
# the reader each need a fence and two memory accesses, for the state and the value.
#
# In the last rung a thread loads 16 bytes per instruction. Four such loads are in flight before the first is used, and
# what they bring stays in registers. A warp scans a row of 128 elements by shuffles, four rows one after another.

# %%
show(scan_tile.load_four_rows)
show(scan_tile.scan_four)

# %% [markdown]
# And a tile publishes state and value as *one* word of 64 bits. A word is written whole or not at all, so whoever sees
# the state has the value, and no fence is needed.

# %%
show(publish_word)

# %%
show(scan.scan_rows)

# %% [markdown]
# In `single_pass` a warp makes two requests to global memory for 32 elements, a load and a store: eight for 128.
#
# **Predict, then run.** How many requests does a warp make for 128 elements now?

# %%
guess = None  # requests for 128 elements

words = np.zeros(rows.size // VECTOR_TILE + 1, np.int64)
count("vectorised", scan.vectorised_kernel, VECTOR_TILE, VECTOR_BLOCK, words, after=(True,))
requests = [reports["vectorised"].counters[f"global_{way}_requests"] for way in ("load", "store")]
predict(guess, 128 * sum(requests) / rows.size, unit="requests")

# %%
compare("global_load_requests", "global_store_requests", "barriers")
recorded("vectorised", before="single_pass")

# %% [markdown]
# One load and one store, each of 16 bytes a lane: a quarter of the requests. Float64 and int64 leave no room for a
# state in the word. A tile publishes each of them as two words: a half of the number and the state, twice. A reader
# that sees one state in both words has two halves of the same number.
#
# ## How exact is a running sum?
#
# Floats round, and a running sum has every chance to go astray: an error made early is in all later sums. The judge is
# float64, and the contender an addition after the other in float32, as a processor would do it.
#
# **Predict, then run.** At the end of 262,144 pixels, which is nearer to float64: additions one by one, or the scan of
# the last rung? Or are they about alike?

# %%
guess = None  # "one by one", "the last rung" or "alike": within a factor of 3

many = pixels[: 2**18]
truth = np.cumsum(many, dtype=np.float64)
sums = {"one by one": np.cumsum(many, dtype=np.float32)}
for rung in (scan.kogge_stone, scan.single_pass, scan.vectorised):
    sums[rung.name] = device.to_host(rung(device.to_device(many)))
loop, tree = (abs(sums[name][-1] - truth[-1]) for name in ("one by one", "vectorised"))
nearer = "the last rung" if loop > 3 * tree else "one by one" if tree > 3 * loop else "alike"
predict(guess, nearer, choices=("one by one", "the last rung", "alike"))

# %%
figure, ax = chart(3.6)
looks = zip((palette.INK, *palette.COLOURS[:3]), palette.LINES, strict=False)
for (name, found), (colour, line) in zip(sums.items(), looks, strict=True):
    error = np.abs(found - truth) / truth
    ends = np.arange(4096, many.size + 1, 4096)
    ax.plot(ends, np.maximum.reduceat(error, ends - 4096), color=colour, linestyle=line, label=name)
ax.set(yscale="log", xlabel="element", ylabel="relative error (worst of 4096)", title="running sums against float64")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# In the loop every element passes through as many roundings as there are elements after it; in the rungs through a tree
# and, from tile to tile, a short chain. The bound for $k$ additions in a row is $k u \sum |x|$ with $u = 2^{-24}$
# (N. Higham, *Accuracy and Stability of Numerical Algorithms*, section 4.2): $k = n$ for the loop, about $2 \log_2 n$
# for the first rungs, and a run of 21 or a row, plus the number of tiles, for those that look back. The tests have
# one bound for all rungs, in which all of these are added up.
#
# Two consequences. A running sum of numbers that are not negative may *fall* by a rounding from one element to the
# next, because neighbours in the runs of two threads are put together in different ways:

# %%
for name, found in sums.items():
    steps = np.diff(found.astype(np.float64))
    print(f"{name:13} smallest step {steps.min():8.3f}; the smallest pixel is {many.min():.3f}")

# %% [markdown]
# And `single_pass` and `vectorised` need not give the same bits twice on a GPU: which totals were partial when a tile
# looked back depends on who was faster. Sums of integers are exact in every order. For places in a list we use those.
#
# ## Stream compaction
#
# Back to the bright pixels. Three steps: a flag for each pixel, an exclusive scan of the flags, and a kernel in which
# each bright pixel goes to its place.


# %%
@cuda.jit
def flag_kernel(x, least, flags):
    i = cuda.grid(1)
    if i < x.size:
        flags[i] = 1 if x[i] >= least else 0


@cuda.jit
def compact_kernel(x, flags, before, values, where):
    i = cuda.grid(1)
    if i < x.size and flags[i]:
        values[before[i]] = x[i]
        where[before[i]] = i


# %%
n, blocks = pixels.size, -(-pixels.size // BLOCK)
there, flags = device.to_device(pixels), device.to_device(np.zeros(n, np.int32))
flag_kernel[blocks, BLOCK](there, np.float32(200), flags)
before = scan.vectorised(flags, exclusive=True)
kept = int(device.to_host(before)[-1] + device.to_host(flags)[-1])
values, where = device.to_device(np.zeros(kept, np.float32)), device.to_device(np.zeros(kept, np.int32))
compact_kernel[blocks, BLOCK](there, flags, before, values, where)
values, where = device.to_host(values), device.to_host(where)
print(f"{kept:,} of {n:,} pixels; as NumPy finds them: {np.array_equal(values, pixels[pixels >= 200])}")

# %%
picture = np.zeros(n, np.float32)
picture[where] = values
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.8), layout="constrained")
titles = ("the photograph", f"the {kept:,} pixels that were kept, put back")
for ax, what, title in zip(axes, (image, picture.reshape(image.shape)), titles, strict=True):
    ax.imshow(what, cmap="gray", vmin=0, vmax=255)
    ax.set_title(title)
    ax.set_axis_off()

# %% [markdown]
# Atomics could hand out the places, too. But then the order of the list would be that of chance, and all bright pixels
# would queue for one counter. The scan keeps the order, and nobody queues.
#
# ## Many scans in one: segments
#
# Often there are many short vectors, one behind the other: the rows of an image, of a sparse matrix, the words of a
# text. A *segmented* scan begins afresh at each *head*. It is not a new algorithm, only a new operator on pairs of a
# flag and a value, and because that operator is associative, all that we have built still works.

# %%
show(segmented.follow)

# %% [markdown]
# One thing even gets easier. A tile with a head in it knows the total up to its end without asking anybody, for what
# came before the head does not matter. It publishes `COMPLETE` at once, and nobody looks back past it. Here the running
# sums of each row of the photograph, whose last column are the sums of the rows.

# %%
heads = np.zeros(image.shape, np.bool_)
heads[:, 0] = True
running = device.to_host(segmented.segmented_scan(device.to_device(pixels), device.to_device(heads.ravel())))
error = np.abs(running.reshape(image.shape)[:, -1] - image.sum(axis=1, dtype=np.float64))
print(f"{image.shape[0]} rows in one launch; off by {error.max():.3f} in sums of {image.sum(axis=1).mean():,.0f}")

# %% [markdown]
# ## The whole ladder
#
# What the interpreter counted per element, in the kernel that scans. Read it downwards.

# %%
compare("flops", "barriers", "divergent_branches")
compare("shared_load_wavefronts", "global_load_requests", "warp_instructions")
for rung in scan.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")


# %%
plots.drawn(plots.ladder, "scan")

# %% [markdown]
# The trips of an element, four, three and two, set how far a rung can get; the bytes in flight decide whether it gets
# there. The last rung moves no byte less than the one before it. It asks for more of them at once, leaves shared memory
# almost alone, and needs no fence. The record cannot say how much each of these helped. Arithmetic was not what it
# waited for: it does twice as many additions.

# %%
plots.drawn(plots.roofline, "scan")

# %% [markdown]
# All rungs stand above one another, far to the left: a scan is as memory-bound as a copy, whatever its size and its
# type. No change to the task moves it to the other side of the ridge.
#
# ### Sixteen bits
#
# So half the bytes should be half the time. For float16 and bfloat16 the last rung has a kernel of its own. A load of
# 128 bits brings eight numbers, which become float32 in registers, so a tile has twice as many of them. What tiles
# pass on is float32, too, and each result is rounded once, when it is stored.

# %%
show(scan_eights.scan_eights)
ones = np.ones(5000, np.float16)
ends = {"added up in float16": np.cumsum(ones, dtype=np.float16), "vectorised": device.to_host(scan.vectorised(ones))}
for name, sums in ends.items():
    print(f"{name:20} of 5000 ones: {sums[2046:2051]} ... {sums[-1]}")
plots.drawn(plots.by_dtype, "scan", family="cumsum")

# %% [markdown]
# The first line stays at 2048, for there the next float16 is 2 further. The second has the float16 next to each exact
# sum. In the figure the dashed line is half the time of float32, and the scan is far from it: it gains hardly anything.
# A likely reason: a number needs nearly as many additions as before, while it brings half the bytes. The bytes no
# longer hide them.
#
# Is the design size typical? On few numbers a kernel is over almost before it began.
#
# **Predict, then run.** $2^{16}$ numbers are 64 times as many as $2^{10}$. How many times as long does `vectorised`
# take?

# %%
guess = None  # times as long


def growth():
    entries = record.load().entries("scan", family="cumsum", contender="vectorised")
    ms = {entry.x: entry.median_ms for entry in entries}
    return ms[2**16] / ms[2**10]


predict(guess, growth, unit="times as long", factor=2)

# %%
chosen = ("hierarchical", "single_pass", "vectorised", "torch.cumsum", "cupy.cumsum")
plots.drawn(plots.sweep, "scan", only=chosen)

# %% [markdown]
# On the left the time hardly grows with the size, so the rate does: the launch is what one pays for, and `vectorised`
# and PyTorch are close to each other. In the middle, where all fits into the cache, they are so again, far above
# `single_pass`. Only where the data come from memory does `vectorised` leave PyTorch behind.

# %%
plots.drawn(plots.cpu_gpu, "scan")

# %% [markdown]
# The dashed line has the call and both transfers in it. For a long vector the transfers alone take far longer than the
# scan: a scan belongs in the middle of work that is on the GPU already, as it was in the compaction.
#
# ## What to take along
#
# - A scan looks sequential and is not. Any associative operator will do: a sum, a maximum, a sum that begins afresh.
# - The fewest additions are not the least time. The fastest rung does more than twice as many as `brent_kung`.
# - First count how often the data travel: four times, three, two. Then see that enough bytes are in flight.
# - Tiles may talk to each other while they run, if each waits only for tiles whose blocks have begun.
# - With a scan, threads that produce any number of results, or none, know where to put them. Compaction is the first
#   use; sorting and sparse matrices are others.
#
# ## Exercises
#
# ### 1. From right to left
#
# `block_scan` from the first exercise is all that you need.

# %%
exercise("scan/reverse")


# %%
@cuda.jit
def reverse(x, out):
    pass  # your code


check("scan/reverse", reverse)

# %% [markdown]
# ### 2. Segments

# %%
exercise("scan/segmented")


# %%
@cuda.jit
def segmented(x, heads, out):
    pass  # your code


check("scan/segmented", segmented)

# %% [markdown]
# ### 3. Compaction

# %%
exercise("scan/compact")


# %%
@cuda.jit
def compact(x, before, out):
    pass  # your code


check("scan/compact", compact)

# %% [markdown]
# ### More, without a check
#
# - How many additions does `kogge_stone` do for $n$ elements in one block, exactly? Compare with `reports`.
# - Which is the smallest number of tiles at which `look_back` needs a second round of 32?
# - A running maximum needs no addition. Which of the chapter's remarks on rounding still hold for it?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def exclusive_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(256, np.float32)
    scanned[thread] = x[i] if i < x.size else np.float32(0)
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else np.float32(0)


assert check("scan/exclusive", exclusive_answer)

# %% [markdown]
# *Exclusive.* The inclusive sum less the element itself would pass here, too, because whole numbers are exact. For a
# maximum there is nothing to subtract, and with an infinity among the elements the difference is no number.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def highest_answer(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else np.float32(-np.inf)
    for distance in (1, 2, 4, 8, 16):
        value = max(value, cuda.shfl_up_sync(0xFFFFFFFF, value, distance))
    if i < x.size:
        out[i] = value


assert check("scan/highest", highest_answer)

# %% [markdown]
# *Running maximum.* The test of `warp_scan`, `cuda.laneid >= distance`, is gone. A lane without a partner gets its own
# value back. Added to itself it would count twice, but the maximum of a value and itself is that value.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def chain_answer(totals, states, out):
    tile = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        before = 0
        if tile > 0:
            while cuda.atomic.add(states, tile - 1, 0) == 0:
                pass
            cuda.threadfence()
            before = out[tile - 1]
        out[tile] = before + totals[tile]
        cuda.threadfence()
        cuda.atomic.exch(states, tile, 1)


assert check("scan/chain", chain_answer)

# %% [markdown]
# *Chain.* The second fence puts the sum before its announcement. The first one keeps the read of `out` behind the wait.
# The interpreter asks for the fence of the writer only, and a GPU needs both, as in `look_back`.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def reverse_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(256, np.float32)
    scanned[255 - thread] = x[i] if i < x.size else np.float32(0)
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[255 - thread]


assert check("scan/reverse", reverse_answer)

# %% [markdown]
# *Reverse.* Mirrored on the way in and on the way out. In the last block the zeros of threads beyond the end stand
# first in the mirror, where they do no harm.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def segmented_answer(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(256, np.float32), cuda.shared.array(256, np.uint8)
    scanned[thread], head[thread] = np.float32(0), 1
    if i < x.size:
        scanned[thread], head[thread] = x[i], heads[i]
    cuda.syncthreads()
    while distance < 256:
        value, seen = scanned[thread], head[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
            seen = head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


assert check("scan/segmented", segmented_answer)

# %% [markdown]
# *Segments.* The flag has to travel with the value. A thread that looked only at its own head would stop at it, but one
# place further on it would add, in the next step, a sum that has gone past that head.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def compact_answer(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[before[i]] = x[i]


assert check("scan/compact", compact_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
steps = [256 - 2**k for k in range(8)]
counted = reports["kogge_stone"].counters["flops"] // (rows.size // BLOCK)
print("additions in a block of 256:", sum(steps), "- and counted:", counted)

# %% [markdown]
# *Additions.* At distance $d$ all but the first $d$ threads add: $n \log_2 n - (n - 1)$ in all.
#
# *Look-back.* Tile 33 has 33 tiles before it, so 34 tiles are the fewest at which one may need a second round. Whether
# it does depends on who is complete by then.
#
# *Maximum.* None. A maximum is one of the elements, so it is exact, never falls, and comes out the same in every order.
#
# Go on with [chapter 35](35_filter.ipynb): keep some elements of a vector, and move them together.
