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
# # 56. Clusters
#
# *Blocks that run at the same time and use one another's shared memory, the two barriers that this needs, rows that no
# single block can keep, clusters that take one row after another. Read chapters [40](40_tensor_cores.ipynb) and
# [54](54_normalisation.ipynb) before. 60 minutes. PMPP 4e: chapter 10; 5e: chapter 10. The book has the reductions that
# this builds on. The code is [pmpp/kernels/clusters/ladder.py](../pmpp/kernels/clusters/ladder.py), and the
# instructions are in [pmpp/runtime/clusters.py](../pmpp/runtime/clusters.py).*
#
# [Chapter 54](54_normalisation.ipynb) normalised rows that fit into the registers of a block. Some rows are longer. The
# activations of an image, taken as one row, are hundreds of thousands of numbers, and so are the scores of all words of
# a vocabulary. Mean and variance are known only when the whole row has been read. Then every element is needed again.
#
# **The question of this chapter: where can a row of 131,072 or more numbers be kept, until its first element may be
# written?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import clusters
from pmpp.kernels.common import block_max
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.clusters import (
    cluster_rank,
    cluster_size,
    cluster_sync,
    in_clusters,
    map_shared_rank,
    resident_clusters,
)
from pmpp.runtime.rung import Cost

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# The room has the same function as `layernorm`: `(x - mean) / sqrt(var + eps) * weight + bias` for each row. The least
# work is also the same. Each element is read once and written once, and there are eight operations for it.
#
# We compare all versions on $2^{28}$ float32. At the *design size* they are 2048 rows of 131,072.

# %%
ROWS, COLUMNS = 2048, 2**17
once = clusters.cost(ROWS, COLUMNS)
twice = Cost(flops=once.flops, bytes=once.bytes + 4 * ROWS * COLUMNS)  # a second read of x
WAYS = {"one read, one write": once, "two reads, one write": twice}
for what, cost in WAYS.items():
    print(f"{what:20} {cost.bytes / 1e9:.2f} GB, {cost.intensity:.2f} FLOP/byte")

# %% [markdown]
# How long does that take at least? The rate of the memory is a measured number, and so it comes from the record.


# %%
def least(cost):
    """The least time for so much work in ms, on this GPU or on the recorded one."""
    return 1e3 * roofline.bound(cost, roofline.ceilings("clusters")).seconds


def say(text, value):
    """Print a number that comes from the record, where it is known."""
    try:
        print(text.format(*np.atleast_1d(value())))
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


for what, cost in WAYS.items():
    say(f"{what:20} at least {{:.3f}} ms", lambda cost=cost: least(cost))

# %% [markdown]
# One operation for a byte is far to the left of the ridge, so memory is the bound. A second read of all elements from
# memory makes the least time half as long again. That much can be gained by keeping a row, and no more.
#
# ## What one block can keep
#
# A row of 131,072 float32 has 512 KiB. A block runs on one multiprocessor. There it has registers, and shared memory.
#
# **Predict, then run.** Take one multiprocessor's registers and its shared memory together, and use them for nothing
# else. Is there room for this row?

# %%
guess = None  # True or False

limits = device.limits()
registers = 4 * limits["max_registers_per_block"]  # bytes
shared = limits["max_shared_memory_per_multiprocessor"]
predict(guess, registers + shared >= 4 * COLUMNS)

# %%
print(f"registers     {registers / 1024:4.0f} KiB")
print(f"shared memory {shared / 1024:4.0f} KiB")
print(f"a row         {4 * COLUMNS / 1024:4.0f} KiB")

# %% [markdown]
# It is not enough, if only by a little. In practice much less can be kept. A thread needs registers for addresses and
# sums, too. With 1024 threads there are 64 registers for each, and half of them can hold values of the row: that makes
# 32,768. On an H200 a block can have 227 KiB of shared memory, for 58,112 float32.
#
# ## The reference, and rung 1: `read_twice`
#
# The reference is that of chapter 54, in float64 and with plain NumPy.

# %%
show(clusters.reference)

# %% [markdown]
# The first rung is the last one of chapter 54, `vectorised`. It gives a long row to one block, or to several if rows
# are few. The row is read for its moments, and then it is read again.

# %%
show(clusters.layernorm.long_rows_kernel)
show(clusters.layernorm.normalise_part)

# %% [markdown]
# The second read goes backwards. What was read last is the most likely to be still in a cache. How much of all rows can
# the L2 cache hold, which all multiprocessors share?
#
# **Predict, then run.** A block of 1024 threads with 64 registers each fills a multiprocessor of an H200, which has 132
# of them. Each block has a row of 131,072 float32. How many MiB are the rows under way at one time?

# %%
guess = None  # MiB

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
predict(guess, h200.sms * 4 * COLUMNS / 2**20, unit="MiB")

# %%
print(f"rows under way: {h200.sms * 4 * COLUMNS / 2**20:.0f} MiB; L2 cache of an H200: {h200.l2 / 2**20:.0f} MiB")

# %% [markdown]
# That is a little more than the cache has. The results, which are written meanwhile, want room there as well. So the
# cache can serve a part of the second read, and not all of it. What does the record say? This helper asks it for a
# rung's time in the family `rows`, which has $2^{28}$ elements in rows of several lengths.


# %%
def ms(name, columns=COLUMNS, rows=None, family="rows"):
    """The recorded time of a contender for rows of this length; 2^28 float32 in all, unless it is said otherwise."""
    for entry in record.load(room="clusters").entries("clusters", family=family, contender=name):
        if entry.sizes["columns"] == columns and rows in (None, entry.sizes["rows"]):
            return entry.median_ms
    raise record.RecordError(f"{name} has no time for rows of {columns}")


def recorded(*names):
    """Times at the design size, and the least time beside them."""
    for name in names:
        text = f"{name:17} {{:.3f}} ms, {{:.2f}} times the least time"
        say(text, lambda name=name: (ms(name), ms(name) / least(once)))


recorded("read_twice", "torch.layer_norm")

# %% [markdown]
# If nothing but bytes counted, two reads would take one and a half times the least time. On an H200 `read_twice` takes
# longer than that, so the memory cannot be busy all the time. A block first reads, then agrees on its sums, and then
# writes, and no second block fits beside it that would work meanwhile.
#
# ## Blocks that belong together
#
# Four blocks would have registers for the row, and so would three with shared memory. But blocks of a grid know nothing
# of each other. One may end before another begins, and shared memory belongs to one block alone.
#
# A *cluster* is a group of neighbouring blocks for which both is different. All blocks of a cluster get their places at
# the same time, and run at the same time on multiprocessors that are near each other. And each of them can use the
# shared memory of the others: it can load from it, store to it, and do atomics in it. NVIDIA calls this *distributed
# shared memory*. It takes a GPU of compute capability 9.0 or more. There a cluster has up to 8 blocks, and up to 16 on
# an H100 or H200.
#
# In the following figure each bar is a place to keep a row in.


# %%
def places():
    block = {"registers": 4 * 1024 * clusters.DEEP, "shared memory": 227 * 1024}
    kept = {f"{name}, {n} block{'s' * (n > 1)}": n * size for n in (1, 4, 16) for name, size in block.items()}
    kept["L2 cache"] = h200.l2
    figure, ax = chart(3.2)
    colours = [*palette.COLOURS[:2] * 3, palette.GREY]
    ax.barh([*kept], [size / 1024 for size in kept.values()], color=colours)
    ax.axvline(4 * COLUMNS / 1024, color=palette.INK, linestyle="--", label="a row of 131,072 float32")
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="room for a row (KiB)", title="Where a row can be kept on an H200")
    ax.set_xticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
    ax.legend()
    return figure


places()

# %% [markdown]
# The row of 512 KiB, the dashed line, is too long for one block, and just fits into the registers of four. Sixteen
# blocks keep half a million numbers in registers, and more in shared memory. The L2 cache is larger than all of these.
# But all rows under way share it, and a kernel does not decide what stays in it.
#
# ## A ring
#
# First a small kernel that needs no arithmetic. Each block puts 32 numbers into its shared memory, and then stores
# those of its right neighbour. The last block of a cluster takes those of the first, so that they form a ring.


# %%
@cuda.jit
def ring(x, out):
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = x[cuda.grid(1)]
    cluster_sync()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[cuda.threadIdx.x]
    cluster_sync()


x = device.to_device(np.arange(8 * 32, dtype=np.float32))
out = device.to_device(np.zeros(8 * 32, np.float32))
in_clusters(ring, 4)[8, 32](x, out)
print("block 0 has stored", out.copy_to_host()[:4], "...")

# %% [markdown]
# Four names are new in the kernel.
#
# - `cluster_rank()` is the number of this block in its cluster: 0, 1, 2 or 3 here.
# - `cluster_size()` is how many blocks the cluster has.
# - `cluster_sync()` is a barrier for all threads of the cluster, as `syncthreads` is for those of a block. It does the
#   work of `syncthreads` as well.
# - `map_shared_rank(mine, rank)` is the array `mine` of the block with that rank. It is used like any other array.
#
# The launch is new as well: `in_clusters(ring, 4)[8, 32]` has eight blocks of 32 threads, in two clusters of four.
# Blocks 0 to 3 are the first cluster.
#
# **Predict, then run.** Thread 0 of each block has put `x[0]`, `x[32]`, `x[64]`, ... into shared memory. Which number
# does thread 0 of block 7 store, the last block of the second cluster?

# %%
guess = None  # the number

predict(guess, float(out.copy_to_host()[7 * 32]), exact=True)

# %%
print("thread 0 of each block stores", out.copy_to_host()[::32])

# %% [markdown]
# The neighbour of block 7 is block 4, which is rank 0 of the same cluster. A cluster cannot reach into another one.
#
# The interpreter counts what goes to another block's memory: requests of warps, and the bytes that their active lanes
# load or store.

# %%
numbers = np.arange(8 * 32, dtype=np.float32)
report = simt.profile(ring, 8, 32, (numbers, np.zeros_like(numbers)), cluster=4)
print({name: report.counters[name] for name in ("cluster_requests", "cluster_bytes", "barriers")})

# %% [markdown]
# Eight blocks of one warp make one request each, with 128 bytes. Sixteen barriers are two for each block.
#
# ## Why two barriers?
#
# The ring waits twice. Is the first barrier needed, if each block only wants to know its neighbour's numbers? Here it
# is left out. The interpreter's check looks at every access to another block's memory, and asks whether that block must
# have begun by then.


# %%
@cuda.jit
def hasty_ring(x, out):
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = x[cuda.grid(1)]
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[cuda.threadIdx.x]
    cluster_sync()


def hazards(kernel):
    args = numbers[:128], np.zeros(128, np.float32)
    for found in simt.profile(kernel, 4, 32, args, level="check", collect=True, cluster=4).hazards:
        print(f"{found.kind}: {found.message}")


hazards(hasty_ring)

# %% [markdown]
# The neighbour may not have begun. The blocks of a cluster have their places at the same time, but they do not start at
# the same instant: one may be at its third line when another has not reached its first. Even if the other has begun,
# nothing says that it has written its numbers. `cluster_sync` says both. What a thread did before it, all threads of
# the cluster see after it.
#
# And the last barrier? Nothing comes after it.


# %%
@cuda.jit
def careless_ring(x, out):
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = x[cuda.grid(1)]
    cluster_sync()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[cuda.threadIdx.x]


hazards(careless_ring)

# %% [markdown]
# Shared memory lives as long as its block. If block 0 is done first, it ends, and its multiprocessor may give its
# shared memory to another block while block 3 still reads. The other pairs of neighbours have the same fault, and the
# check names one of them. So a block waits until nobody uses its memory any more.
#
# On a GPU both faults are hard to find. Most of the time the blocks are about equally fast, and the result is right.
#
# ## Rung 2: `in_shared_memory`
#
# Now the rows. A cluster has a row, and each of its blocks keeps a part of it in shared memory. The mean needs the sum
# over all blocks. Each block computes its own sum, puts it where the others can see it, and after a barrier every
# thread adds up the sums of all ranks.

# %%
show(clusters.cluster_sum)

# %% [markdown]
# The kernel reads its part once, and keeps it. With the mean it goes over the part in shared memory, for the squares.
# With the variance it goes over it a third time, and stores.

# %%
show(clusters.in_shared_memory_kernel)

# %% [markdown]
# There are three barriers of the cluster: one in each sum, and one at the end. `sums` has a place for each of the two
# sums. With one place for both, a block that is ahead would overwrite the first sum while a slower block still reads
# it.
#
# How long should a part be? With parts of 64 KiB a multiprocessor has room for three blocks, so that one can load while
# another waits. A row of 131,072 then has eight blocks. Each has 512 threads.
#
# **Predict, then run.** Every thread of the cluster loads the sums of all eight ranks, 4 bytes each, and does so for
# both sums. How many bytes do these loads of all lanes add up to?

# %%
guess = None  # bytes

rng = np.random.default_rng(56)
row = rng.standard_normal((1, COLUMNS), dtype=np.float32)
weight, bias = rng.uniform(0.5, 2, (2, COLUMNS)).astype(np.float32)
pulled = lab.count(clusters.in_shared_memory, row, weight, bias)
predict(guess, pulled.counters["cluster_bytes"], unit="bytes")

# %%
NAMES = ("cluster_requests", "cluster_bytes", "global_load_requests", "shared_load_requests", "barriers")


def compared(*names):
    """Counters of rungs for one row, whose result is compared with the reference."""
    for name in names:
        found = lab.count(getattr(clusters, name), row, weight, bias)
        assert np.allclose(found.result, clusters.reference(row, weight, bias, 1e-5), atol=1e-5)
        print(name + ":", ", ".join(f"{found.counters[key]:,} {key.replace('_', ' ')}" for key in NAMES))


compared("read_twice", "in_shared_memory")

# %% [markdown]
# That is half as many bytes as the row has, to pass on sixteen numbers. (In each request all lanes ask for the same
# number. So what the network between the multiprocessors carries is likely less.) The requests to global memory are
# three times as many as those of `read_twice`, although the row is read once: a request brings 4 bytes to each lane,
# and not 16.
#
# Bytes from memory are what the bound counts, and of these a third is saved.
#
# **Predict, then run.** Is `in_shared_memory` faster than `read_twice` on an H200, at the design size?

# %%
guess = None  # True or False

predict(guess, lambda: ms("in_shared_memory") < ms("read_twice"))

# %%
recorded("read_twice", "in_shared_memory")

# %% [markdown]
# It is slower, by far. Keeping the row in a cluster does save bytes from memory, and still the rung loses. Three things
# cost time.
#
# - A load brings 4 bytes to a lane. `read_twice` brings 16 by one instruction, and needs a quarter of the requests.
# - Each element goes through shared memory, by one store and two loads.
# - All blocks of a cluster wait for each other three times. Then none of them loads, until the last one has come.
#
# And the second read is cheaper than it looks, since the L2 cache serves a part of it. So distributed shared memory by
# itself gains nothing here. But it carries sums from block to block, and then the row itself may lie in *registers*.
#
# ### Exercise: a row the other way round
#
# Before that, a task in which blocks *write* into each other's memory. Our answer is at the end of the chapter, as for
# all exercises.

# %%
exercise("clusters/reversed")


# %%
@cuda.jit
def reverse(x):
    pass  # your code


check("clusters/reversed", reverse)

# %% [markdown]
# ## Rung 3: `in_registers`
#
# A thread keeps up to 32 values in registers, loaded 128 bits at a time, as in `vectorised`. A block has 512 threads,
# so that two blocks share a multiprocessor. Nothing of the row passes through shared memory. Only the sums do.
#
# The sums take another way, too. In `cluster_sum` a block *pulls* the others' sums, and so it may not end before its
# readers. In `told_sum` it *pushes* its own sum into the memory of every block.

# %%
show(clusters.told_sum)
show(clusters.in_registers_kernel)

# %% [markdown]
# Thread $r$ of a block writes the block's sum to rank $r$. After the barrier everything that a block needs lies in its
# own memory, and a shuffle adds it up. After the last barrier no block touches another's memory any more. So the kernel
# needs no barrier at its end, and a block that is done can leave.
#
# At the beginning it needs one, because a block must have begun before it is written to. It costs little: the loads of
# the row are under way meanwhile.
#
# **Predict, then run.** The row has eight blocks again. How many bytes do they write into each other's memory for both
# sums, if a block's message to itself counts as well?

# %%
guess = None  # bytes

pushed = lab.count(clusters.in_registers, row, weight, bias)
predict(guess, pushed.counters["cluster_bytes"], unit="bytes")

# %%
compared("in_shared_memory", "in_registers")
recorded("read_twice", "in_shared_memory", "in_registers")

# %% [markdown]
# Eight blocks tell eight blocks one number of 4 bytes, twice. For that 16 requests are enough, in the place of 2,048.
# The requests to global memory are a quarter of those before, and few to shared memory are left. The barriers are as
# many as before: the one at the end has become one at the beginning, and there the loads are under way.
#
# Now one read pays, if only by a little. The rung is still far from the roof. Nsight Compute was asked about rows of
# 262,144 on an H200. The memory is busy for half of the time, and the L2 cache for more than that. Of all accesses to
# it more than two thirds are hits. Weight and bias explain a large part of that: they come from the cache again for
# each row, and they are as many bytes as row and result together. And a warp waits about twenty cycles from one of its
# instructions to the next: there are too few warps to hide that.
#
# One more reason is in the launch. A cluster loads, waits, and stores. When it is done, the next one begins only when
# all of its blocks have found room. At such times nothing is on its way.
#
# ## Rung 4: `pipelined`
#
# A *persistent kernel* has as many blocks as the GPU holds, and each takes one piece of work after another:
# [chapter 43](43_warpgroups.ipynb) has one. Here it is clusters that stay. A cluster takes row after row, and this
# mends both faults.
#
# - While a row is being summed and stored, the next one is copied into shared memory. `copy_async` of
#   [chapter 40](40_tensor_cores.ipynb) does that. A thread copies what it alone will load, so no barrier is needed for
#   it.
# - A thread has the same columns in every row. So weight and bias are loaded once, and stay in shared memory.

# %%
show(clusters.fetch)
show(clusters.pipelined_kernel)

# %% [markdown]
# `ahead` and `shared` are the same memory: all dynamic shared arrays begin at its first byte. The copies come first,
# then weight and bias. `told` has a place for each of the two sums of a row. A block that is ahead may push its next
# sum while a slow one still reads the last. But the sums take turns, so there is always a barrier between a read and
# the next write to the same place. With one place for both sums there would be none.
#
# A thread keeps 16 values instead of 32, since the copy, weight and bias take three times the shared memory of a row.
# So a row of 131,072 is shared out to 16 blocks of 512 threads, and a row of 262,144 to 16 blocks of 1024.
#
# How many clusters shall there be? For the longer rows the shared memory of a block is so large that it has a
# multiprocessor to itself.
#
# **Predict, then run.** An H200 has 132 multiprocessors, and a cluster needs 16. How many clusters run at a time, if
# any multiprocessors may form one?

# %%
guess = None  # clusters

predict(guess, h200.sms // 16, unit="clusters")

# %%
how = clusters.plan(2**18, width=4, values=clusters.FEW, most=16)
bytes_kept = 16 * how.threads * 3 * how.depth  # of the row that is being copied, of weight and of bias
print(how, f"with {bytes_kept / 1024:.0f} KiB of shared memory a block")
print(f"resident_clusters says {resident_clusters(how.size, how.threads, bytes_kept)}")

# %% [markdown]
# The interpreter lets any multiprocessors form a cluster. A GPU does not: the blocks of a cluster must lie in one group
# of multiprocessors, which NVIDIA calls a GPC, and what is left over in a group stays idle. The driver of an H200
# answers 7 clusters of 16 blocks. They fill 112 of the 132 multiprocessors, and the others have nothing to do. So for
# rows of 262,144 Nsight Compute finds the memory a little less busy than in `in_registers`.
#
# **Predict, then run.** How many times as fast is `pipelined` as `read_twice`, at the design size?

# %%
guess = None  # times as fast

predict(guess, lambda: ms("read_twice") / ms("pipelined"), unit="times as fast", within=0.05)

# %%
compared("in_registers", "pipelined")
recorded("read_twice", "in_shared_memory", "in_registers", "pipelined", "torch.layer_norm")

# %% [markdown]
# The record says how small the gain is for all this work. (The counters are of a single row, so they show the price
# alone: weight and bias are used once, and there are twice as many blocks, which write four times as many bytes into
# each other's memory.)
#
# ## The whole ladder
#
# The bars are shares of the roof at the design size, and the dashed line is PyTorch.

# %%
plots.drawn(plots.ladder, "clusters")

# %% [markdown]
# The second rung is a step down, and the third makes up for it. A row is then read once, by wide loads, and only sums
# pass between the blocks. The last rung keeps weight and bias and copies ahead, which is a further small step. None of
# them comes near to the roof.

# %%
for rung in clusters.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## Rows of other lengths
#
# The design size is one length of several. The next figure has the same $2^{28}$ elements in rows of 32,768 to 524,288.
#
# **Predict, then run.** How many times as long as `read_twice` does `in_shared_memory` take for the longest of them?

# %%
guess = None  # times as long

LENGTHS = [2**k for k in range(15, 20)]
longest = LENGTHS[-1]
predict(guess, lambda: ms("in_shared_memory", longest) / ms("read_twice", longest), unit="times as long", factor=1.25)


# %%
def by_length():
    """Share of the roof over the length of a row, for every contender."""
    kept = record.load(room="clusters")
    figure, ax = chart(4.0)
    for name, (colour, marker) in plots.colours(kept, "clusters").items():
        mine = kept.entries("clusters", family="rows", contender=name)
        mine = sorted(mine, key=lambda entry: entry.sizes["columns"])
        shares = [100 * roofline.share(e.cost, e.seconds, kept.ceilings("clusters")) for e in mine]
        if mine:
            ax.plot([e.sizes["columns"] for e in mine], shares, color=colour, marker=marker, label=name)
    ax.set(xscale="log", ylim=(0, 100), xlabel="elements in a row; 2^28 in all", ylabel="share of the roof (%)")
    ax.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS])
    ax.minorticks_off()
    ax.set_title("clusters: long rows of float32")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("clusters"))
    return figure


plots.drawn(by_length)

# %% [markdown]
# On an H200 clusters pay in the middle. A row of 32,768 fits into the registers of one block. So `read_twice` reads it
# once as well, and nobody waits for another block: it is ahead. Longer rows it reads twice. At 65,536 and 131,072 the
# last two rungs are faster, and at 131,072 `pipelined` is ahead. A cluster has at most 16 blocks, so for longer rows
# the blocks must grow. At 262,144 nothing is left of the gain: a block of `pipelined` then fills a multiprocessor, so
# that nobody works beside it while it waits, and 20 multiprocessors have no work. At 524,288 `pipelined` has no room to
# copy ahead and launches `in_registers`, which is far slower than `read_twice` there. PyTorch's function is as fast as
# `read_twice` at 65,536, and slower elsewhere.
#
# `in_shared_memory` is the slowest rung everywhere, and most of all for the longest rows. A part of these has 128 KiB,
# so a multiprocessor has room for one block. When that waits, nothing else is done.
#
# ## Few rows
#
# So far there were enough rows to keep all multiprocessors busy. If there are few, `read_twice` lets several blocks
# share a row. It needs two launches then: one for the moments of the parts, and one that merges these and normalises.
# Between the two launches all blocks must end. A cluster only waits at a barrier.
#
# **Predict, then run.** One single row of 131,072: how many times as fast as `read_twice` is `pipelined`?

# %%
guess = None  # times as fast


def few(name, rows, columns):
    """The recorded time of a few rows."""
    return ms(name, columns, rows, "few rows")


predict(guess, lambda: few("read_twice", 1, COLUMNS) / few("pipelined", 1, COLUMNS), unit="times as fast", within=0.2)

# %%
SHOWN = ("read_twice", "in_registers", "pipelined", "torch.layer_norm")
print(" " * 13, *(f"{name:>16}" for name in SHOWN))
for rows, columns in ((1, 2**17), (8, 2**18), (32, 50_000), (128, 2**17)):
    text = f"{rows:3} x {columns:<7,} " + 4 * " {:13.1f} us"
    say(text, lambda shape=(rows, columns): [1e3 * few(name, *shape) for name in SHOWN])

# %% [markdown]
# Here clusters are worth most. `in_registers` is well ahead of `read_twice` in every line. `pipelined` has few next
# rows to copy ahead, or none, and which of the two is better depends on the shape. PyTorch's function takes far longer.
# Its time goes with the length of a row and hardly with the number of rows, as if one block had each row.
#
# The function `layer_norm` of the room goes by the figure and by this table. For few rows it takes `in_registers`,
# which is ahead of `read_twice` in every line, though not always of `pipelined`.

# %%
show(clusters.layer_norm)

# %% [markdown]
# ## In 16 bits, and on the CPU
#
# What about 16 bits? A row has half the bytes, and the sums pass between the blocks as before. Again it is $2^{28}$
# elements, in rows of 131,072.
#
# **Predict, then run.** How many times as fast as in float32 is `pipelined` in float16?

# %%
guess = None  # times as fast

predict(guess, lambda: ms("pipelined") / ms("pipelined", family="rows, float16"), unit="times as fast")

# %%
print(" " * 9, *(f"{name:>16}" for name in SHOWN))
for dtype in ("float32", "float16", "bfloat16"):
    family = "rows" if dtype == "float32" else f"rows, {dtype}"
    text = f"{dtype:9}" + 4 * " {:13.3f} ms"
    say(text, lambda family=family: [ms(name, family=family) for name in SHOWN])

# %% [markdown]
# Half the bytes do not take half the time. A cluster waits as long as before, and it still has as much arithmetic. In
# `read_twice` the rows under way are half as large, so that more of their elements are still in the L2 cache at the
# second read. In 16 bits it is the fastest. (Rows of bfloat16 go from `pipelined` to `in_registers`, since Numba has no
# shared arrays of that type.)
#
# And on the CPU? The next figure has rows of 131,072 in NumPy and in the last rung.

# %%
plots.drawn(plots.cpu_gpu, "clusters", family="beside NumPy", xlabel="rows of 131,072")

# %% [markdown]
# For one row NumPy is done before the data has come and gone: the dashed line has the call and both transfers in it.
# For sixteen rows the GPU is ahead even so. The kernel alone takes far less than sixteen times as long for sixteen rows
# as for one, since one row leaves most of the GPU without work.
#
# ## The roofline
#
# All rungs have the same least work, so they stand above one another, at one operation for a byte.

# %%
plots.drawn(plots.roofline, "clusters")

# %% [markdown]
# All lie under the slope of the memory, far to the left of the ridge. Arithmetic bounds none of them. What separates
# them from the slope is time in which too little is on its way, and for `read_twice` the second read.
#
# ## What to take along
#
# - A cluster is a group of blocks that run at the same time and use one another's shared memory. It can keep what one
#   block cannot.
# - Two barriers belong to it: nobody uses the memory of a block that has not begun, or of one that has ended. A
#   block that pushes its data has one before the writes and one after them, and none at its end.
# - Fewer bytes from memory are not always a gain. Narrow loads and waiting in step can cost more than a second read
#   that a large cache serves in part.
# - With registers, wide loads and copies ahead, a cluster gains a little for many rows of some lengths. For others, and
#   in 16 bits, the plainer kernel is faster: measure both.
# - Where rows are few, a cluster is the faster way to share one. Its barrier costs less than a second launch.
#
# ## Exercises
#
# One stands in the text above.
#
# ### The largest element of each row
#
# A reduction by a cluster, with one result. `block_max` gives the largest value of a block to all of its threads.

# %%
exercise("clusters/largest")


# %%
@cuda.jit
def largest(x, out):
    pass  # your code


check("clusters/largest", largest)

# %% [markdown]
# ### More, without a check
#
# - Let the ring go the other way: each block takes the numbers of its *left* neighbour. What does `hazards` say if you
#   write `cluster_rank() - 1` and forget the remainder?
# - A histogram with more bins than one block's shared memory holds could spread them over the blocks of a cluster. Each
#   element is then an atomic in the memory of some block. When can this be faster than atomics in global memory, and
#   when not?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def reversed_answer(x):
    mine = cuda.shared.array(128, np.float32)
    row, rank, thread = cuda.blockIdx.x // cluster_size(), cluster_rank(), cuda.threadIdx.x
    cluster_sync()  # the other block has begun
    there = map_shared_rank(mine, cluster_size() - 1 - rank)
    there[127 - thread] = x[row, rank * 128 + thread]
    cluster_sync()  # all have written
    x[row, rank * 128 + thread] = mine[thread]


assert check("clusters/reversed", reversed_answer)

# %% [markdown]
# *Reversed.* What rank 0 has read belongs to the last rank, and its first element there to the last place. After the
# second barrier a block reads its own memory alone, so it may end when it likes. (Into another array each element could
# be stored straight to its new place. In place it would overwrite what another block has not read yet.)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def largest_answer(x, out):
    partial, told = cuda.shared.array(32, np.float32), cuda.shared.array(4, np.float32)
    row, rank, size = cuda.blockIdx.x // cluster_size(), cluster_rank(), cluster_size()
    most = np.float32(-np.inf)
    for i in range(rank * 128 + cuda.threadIdx.x, x.shape[1], size * 128):
        most = max(most, x[row, i])
    most = block_max(most, partial)
    cluster_sync()  # rank 0 has begun
    if cuda.threadIdx.x == 0:
        map_shared_rank(told, 0)[rank] = most
    cluster_sync()  # all have told it
    if rank == 0 and cuda.threadIdx.x == 0:
        for other in range(size):
            most = max(most, told[other])
        out[row] = most


# %% jupyter={"source_hidden": true} tags=["answer"]
assert check("clusters/largest", largest_answer)

# %% [markdown]
# *Largest.* All blocks push their result to rank 0, and none of them needs a barrier at the end. If rank 0 pulled the
# results instead, the first barrier could go, and one at the end would be needed: two in any case.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def left_ring(x, out):
    mine = cuda.shared.array(32, np.float32)
    mine[cuda.threadIdx.x] = x[cuda.grid(1)]
    cluster_sync()
    theirs = map_shared_rank(mine, cluster_rank() - 1)  # -1 for rank 0
    out[cuda.grid(1)] = theirs[cuda.threadIdx.x]
    cluster_sync()


hazards(left_ring)

# %% [markdown]
# *To the left.* Rank 0 asks for rank -1, which no cluster has. `(cluster_rank() - 1) % cluster_size()` is right: in
# Python a remainder has the sign of the divisor. In CUDA C++ it would be -1.
#
# *A histogram.* Where values are uniform, few elements meet in a bin. Then the L2 cache does the atomics of global
# memory at a good rate, and in an experiment of ours on an H200 the cluster was the slower one. Where most elements
# meet in a few bins, these wait for each other in global memory, and there the cluster was faster. Counters of the
# block's own are better than both, as long as they fit: see [chapter 28](28_histogram.ipynb).
#
# Go on with [chapter 58](58_fft.ipynb): the Fourier transform, and how often its numbers travel.
