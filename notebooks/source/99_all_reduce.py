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
# # 99. All-reduce
#
# *Several GPUs: ranks, messages, the alpha-beta model, six algorithms for one sum, deadlocks, kernels that reach other
# GPUs. You need chapters 30, 34 and 89; it takes 85 minutes. PMPP 4e: chapter 20; 5e: chapter 23. The code is
# [pmpp/parallel/all_reduce.py](../pmpp/parallel/all_reduce.py),
# [pmpp/kernels/common/peers.py](../pmpp/kernels/common/peers.py) and
# [pmpp/parallel/exercises/all_reduce.py](../pmpp/parallel/exercises/all_reduce.py).*
#
# Eight GPUs train one network. Each has its own part of the batch, and computes gradients of that part. Before the
# optimiser can step, every GPU needs the sum of all eight. This operation is called *all-reduce*: everybody has an
# array, and afterwards everybody has the sum of all arrays.
#
# **The question of this chapter: GPUs have no memory in common, and can only send messages. Which messages make this
# sum in the least time?** The answer depends on how long the arrays are. You find out without a GPU, let alone eight.

# %%
import time
from functools import partial

import numpy as np

from pmpp import parallel, predict
from pmpp.kernels.common import peers
from pmpp.kernels.common.ranks import Ranks
from pmpp.lab.draw import knobs, plots
from pmpp.lab.teach.source import show
from pmpp.parallel import Links, all_reduce, figures
from pmpp.parallel.all_reduce import LADDER, critical_path
from pmpp.parallel.exercises import check, exercise
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## Ranks
#
# A program for several GPUs is one function that runs several times. Each run is a *rank*: it has a number from 0 on,
# and usually a GPU of its own. A rank is given a *group*. That knows `group.rank` and `group.size`, and carries
# messages: `group.send(x, to)` and `group.recv(box, source)`.
#
# `parallel.ranks(4, function)` runs four ranks in this process, and returns a list of what they returned. One rank runs
# at a time, so the program does the same in every run. What one rank makes is not there for another one, as on GPUs.
# (Ranks are threads. In the browser edition there are none, so this chapter runs only on a computer's own Python.)


# %%
def hello(group):
    box = device.empty(1, np.float32)
    if group.rank == 0:
        group.send(np.float32([42]), to=1)
        return "rank 0 has sent"
    if group.rank == 1:
        return f"rank 1 has received {group.recv(box, source=0).copy_to_host()}"
    return f"rank {group.rank} of {group.size} has done nothing"


found = parallel.ranks(4, hello)
found

# %% [markdown]
# What was sent is counted, for each pair of ranks. The counts are exact, since every byte has really moved from one
# rank to another.

# %%
found.report

# %% [markdown]
# ## What a message costs
#
# Time is another matter: four ranks in one process say nothing about four GPUs. So it comes from a model. A message of
# n bytes takes *alpha* seconds, however short it is, and *beta* seconds for each byte:
#
# $$t = \alpha + \beta n$$
#
# Alpha is what it takes to begin: a call of the driver, a kernel that is launched, a packet that crosses a switch.
# Beta is the inverse of the bandwidth. `Links(latency, bandwidth)` has both, and each rank has a clock. A message
# begins when both of its ranks are ready, and both go on when it has arrived. A rank may send one and receive one at
# the same time.
#
# Our links take 2 microseconds a message and 10 GB/s. That is a network between machines of a cluster. Between GPUs of
# one machine both numbers are better.
#
# **Predict, then run.** How many bytes does a message have of whose time one half is alpha?

# %%
guess = None  # bytes

links = Links(latency=2e-6, bandwidth=10e9)
half = links.latency * links.bandwidth
predict(guess, half, unit="bytes")

# %% [markdown]
# Shorter messages cost about the same however short they are. For longer ones the bytes count. This number divides the
# arrays of this chapter into short and long ones.

# %%
for nbytes in (8, 20_000, 1_000_000_000):
    print(f"{nbytes:13,} bytes: {1e6 * links.seconds(nbytes):12,.3f} microseconds")

# %% [markdown]
# ## Two bounds
#
# How fast can any algorithm be, with p ranks and arrays of n bytes?
#
# *Messages.* A rank's sum has to contain something of all p arrays. At the beginning a rank knows its own. With each
# message it learns at most what another rank knows by then, so the number of arrays that it knows about at most
# doubles. That makes at least $\log_2 p$ messages in a row.
#
# *Bytes.* Of each element, p - 1 ranks have to send something that contains their part, and p - 1 have to be told the
# sum. For all elements that is at least $2 n (p - 1)$ bytes. If the p ranks share them evenly, each sends
# $2 n (p - 1) / p$.
#
# So the time is at least about $\alpha \log_2 p$ for short arrays, and $2 \beta n (p - 1) / p$ for long ones.
#
# ## Through one rank
#
# The first idea is that rank 0 does it. Each line below is executed by all ranks, and the rank decides what it does.

# %%
show(all_reduce.through_one)

# %% [markdown]
# `begin` copies the rank's array into `total`, and makes an empty `box`. `add` is a kernel that you know from
# [chapter 88](88_a_tape.ipynb). We run it with eight ranks, and compare with NumPy.


# %%
def run(algorithm, size, length):
    """Every rank has random numbers. Returns what the ranks got, and the sum by NumPy in float64."""
    parts = np.random.default_rng(0).normal(size=(size, length)).astype(np.float32)

    def function(group):
        return algorithm(group, parts[group.rank]).copy_to_host()

    return parallel.ranks(size, function, links=links), parts.sum(axis=0, dtype=np.float64)


found, wanted = run(all_reduce.through_one, 8, 16_384)
print("the largest error:", max(abs(result - wanted).max() for result in found))

# %% [markdown]
# Each array has 64 KiB. Rank 0 receives seven of them, one after the other, and sends seven.
#
# **Predict, then run.** How many microseconds does it take? A message of 64 KiB takes 8.6.

# %%
guess = None  # microseconds

predict(guess, 1e6 * max(found.report.seconds), unit="microseconds")

# %%
found.report

# %% [markdown]
# Fourteen messages follow one another. The report shows who is to blame: every byte goes through rank 0. The clocks of
# the other ranks differ, because rank 0 sends the sum to rank 1 first and to rank 7 last.
#
# ## A tree
#
# While rank 0 receives from rank 1, ranks 2 and 3 could add their arrays, too, and so could 4 and 5, and 6 and 7. Then
# rank 0 receives from rank 2, which has the sum of two. It is the tree of [chapter 30](30_reduction.ipynb), with ranks
# in the place of threads.

# %%
show(all_reduce.tree)

# %% [markdown]
# Three messages in a row lead up to rank 0, and three down.
#
# **Predict, then run.** With 1,000 ranks, how many messages follow one another?

# %%
guess = None  # messages

predict(guess, critical_path(all_reduce.tree, 1000)[0], unit="messages")

# %% [markdown]
# `critical_path` has the formula: $2 \lceil \log_2 p \rceil$. Through one rank it would be 1,998.
#
# ### Exercise: a ring of ranks
#
# Soon every rank will send to its right neighbour, and receive from the left one. This program should do it.


# %%
def all_send_first(group):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.send(np.float32([group.rank]), to=right)
    return group.recv(device.empty(1, np.float32), source=left)


try:
    parallel.ranks(4, all_send_first)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# This is a *deadlock*. `send` returns when the other rank has received, and nobody comes to receive. Here it is found
# when the last rank calls, and named with ranks and lines. On real machines such a program hangs, or worse: many
# libraries copy short messages and go on. Then it works until the arrays become longer.

# %%
exercise("all_reduce/pass_right")


# %%
def pass_right(group, x):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.empty(x.shape, x.dtype)
    group.send(x, right)
    group.recv(box, left)
    return box


check("all_reduce/pass_right", pass_right)

# %% [markdown]
# From here on we use `group.send_recv(x, to, box, source)`, which does both at the same time. Every library has
# something like it.
#
# ## Everybody to everybody
#
# In a tree most ranks wait. If all of them work all the time, nobody has to be told the sum: each can make it.

# %%
show(all_reduce.gather_and_sum)

# %% [markdown]
# In step 1 every rank sends to its neighbour, in step 2 to the next but one. These are p - 1 messages in a row, half as
# many as through one rank. But each rank receives p - 1 whole arrays, and keeps them. There is a better way to keep all
# ranks busy: what a rank sends should be a sum already.
#
# ## Recursive doubling
#
# In step 0 the ranks exchange arrays in pairs, and both add. Now each has the sum of two. In step 1 they exchange
# *these* with the rank at distance 2, and each has the sum of four.

# %%
show(all_reduce.doubling)

# %% [markdown]
# The partner is `group.rank ^ distance`: the two numbers differ in one bit.
#
# **Predict, then run.** Eight ranks have arrays of 8 bytes. After how many microseconds have all of them the sum?

# %%
guess = None  # microseconds

found, wanted = run(all_reduce.doubling, 8, 2)
predict(guess, 1e6 * max(found.report.seconds), unit="microseconds")

# %% [markdown]
# Three messages, and the bound for short arrays is reached. For long ones it is far from the other bound: each of its
# three messages has all n bytes, where 1.75 n would do.
#
# ## The ring
#
# A rank should send a part at a time. Cut the array into p pieces. Each piece goes once around the ring of ranks: every
# rank adds its own part, and passes the sum on. All pieces travel at the same time, each one rank ahead of the next, so
# all links are busy. After p - 1 steps each rank has the sum of one piece. Then these go around once more.

# %%
show(all_reduce.ring)

# %% [markdown]
# **Predict, then run.** Eight ranks have arrays of 64 KiB. How many KiB does each of them send in all?

# %%
guess = None  # KiB

found, wanted = run(all_reduce.ring, 8, 16_384)
predict(guess, max(found.report.nbytes.values()) / 1024, unit="KiB")

# %% [markdown]
# That is $2 n (p - 1) / p$, the bound. It hardly grows with the number of ranks: a thousand of them send 128 KiB each.
# This is why rings are used for the gradients of large networks.
#
# ### Exercise: a step of the ring

# %%
exercise("all_reduce/ring_step")


# %%
def ring_step(group, pieces, step):
    pass  # your code


check("all_reduce/ring_step", ring_step)

# %% [markdown]
# ## Halves
#
# The ring needs 2 (p - 1) messages in a row. Can the bytes of the ring come in the steps of a tree? A rank and its
# partner divide the work: one is responsible for the first half of the array, the other for the second. Each sends the
# half that is not its own, of n/2 bytes, and adds. In the next step they divide their half with another partner. When
# each has the sum of n/p bytes, the same steps backwards tell everybody.

# %%
show(all_reduce.halving)

# %% [markdown]
# Its halves add up to $n (1/2 + 1/4 + \ldots + 1/p) = n (p - 1) / p$ for each direction, as in the ring.
#
# Now we look at who sends to whom. A square is one run with eight ranks and arrays of 64 KiB. A row is a rank that
# sends, and a column one that receives.

# %%
shown = (all_reduce.through_one, all_reduce.ring, all_reduce.doubling, all_reduce.halving)
figures.busy_links({one.__name__: run(one, 8, 16_384)[0].report for one in shown})

# %% [markdown]
# Through one rank, a row and a column are busy and the rest is idle. The ring uses eight links, and all of them alike:
# a machine whose GPUs are wired to two neighbours is enough. Doubling sends the whole array three times, over three
# links a rank. Halving sends much to the rank at distance 4 and little to the neighbour. In a cluster, rank 4 may well
# be in another machine, where links are slower. The alpha-beta model with one kind of link does not see that.
#
# ## Which one?
#
# We run all six with arrays from 8 bytes to 256 KiB. Besides, NumPy adds eight arrays that lie in one memory, on this
# machine's CPU: no message at all, but one processor does all the additions.

# %%
lengths = [8 << (3 * k) for k in range(6)]
clocks = {one.__name__: [] for one in LADDER}
for nbytes in lengths:
    for one in LADDER:
        clocks[one.__name__].append((nbytes, max(run(one, 8, nbytes // 4)[0].report.seconds)))

on_cpu = []
for nbytes in lengths:
    parts = np.ones((8, nbytes // 4), np.float32)
    took = []
    for _ in range(20):
        begin = time.perf_counter()
        parts.sum(axis=0)
        took.append(time.perf_counter() - begin)
    on_cpu.append((nbytes, min(took)))

# %% [markdown]
# **Predict, then run.** By the clocks, from which of these lengths on is halving faster than doubling? They are 8, 64,
# 512, 4,096, 32,768 and 262,144 bytes.

# %%
guess = None  # bytes

faster = [n for (n, a), (_, b) in zip(clocks["halving"], clocks["doubling"], strict=True) if a < b]
predict(guess, faster[0], unit="bytes")

# %%
grid = [8 << k for k in range(24)]
figures.times(8, links, grid, clocks | {"NumPy, in one memory": on_cpu})

# %% [markdown]
# Lines are the model's, and marks are what the clocks of the ranks showed. They agree, since the clocks use the same
# alpha and beta: what the marks confirm is the number of messages in a row, and their bytes.
#
# On the left all lines are flat. There messages count, and the order is that of the messages in a row: doubling with
# 3, tree and halving with 6, everybody to everybody with 7, ring and one rank with 14. On the right the lines rise
# with the bytes. Halving and the ring meet there, since both send 1.75 n. For long arrays the ring's 14 messages no
# longer matter, and it has the simpler links.
#
# NumPy's line lies below all others on the left: whoever has short arrays in one memory should not send them anywhere.
# On the right one processor adds all eight arrays, and its line rises as the others do. The additions of the ranks are
# not in the model. Eight GPUs do them at a small part of the time of the messages.
#
# So no algorithm is the best, and libraries choose by the length. NCCL does it with a table of measured alphas and
# betas for each algorithm, and MPI libraries do it, too.
#
# Turn the knobs: more ranks, slower messages, faster links.

# %%
size, latency_us, gigabytes = 64, 2, 10


def draw(size, latency_us, gigabytes):
    return figures.times(size, Links(1e-6 * latency_us, 1e9 * gigabytes), [8 << k for k in range(28)])


knobs.turn(
    draw,
    size=(size, (2, 3, 4, 8, 16, 64, 256, 1024)),
    latency_us=(latency_us, (1, 2, 5, 10, 30)),
    gigabytes=(gigabytes, (1, 10, 25, 50, 450)),
)

# %% [markdown]
# With 64 ranks the ring has 126 messages in a row, and doubling 6: short arrays should never go around a ring.
#
# ### Exercise: choose

# %%
exercise("all_reduce/choose")


# %%
def choose(size, nbytes, latency, bandwidth):
    return "ring"  # your code


check("all_reduce/choose", choose)

# %% [markdown]
# ## More ranks
#
# A network has 10⁸ parameters, and its gradients 400 MB. We go from 8 ranks to 1,024.
#
# **Predict, then run.** How many times as long does the ring take then?

# %%
guess = None  # times as long

gradients, ring_time = 400_000_000, partial(all_reduce.seconds, all_reduce.ring)
factor = ring_time(1024, gradients, links) / ring_time(8, gradients, links)
predict(guess, factor, unit="times as long")

# %%
long_ones = (all_reduce.tree, all_reduce.doubling, all_reduce.ring, all_reduce.halving)
figures.scaling(links, gradients, [2**k for k in range(1, 13)], long_ones)

# %% [markdown]
# The bytes of a rank approach 2 n and stay there. What grows are the ring's messages. At 4,096 ranks 16 ms of its time
# are alphas, and halving has only 48 microseconds of these. Tree and doubling send the whole array in each step, so
# they rise with the logarithm.
#
# From eight ranks on an array of 400 MB takes 70 ms and more, whatever we do. A training step of a GPU may take no
# longer than that. Then one half of the time is lost, unless the sum is made *while* gradients are still computed.

# %% [markdown]
# ## Kernels that reach other GPUs
#
# Each message above was a call of the host. GPUs of one machine are often wired to each other, and then a kernel can do
# more: it loads from the memory of another GPU and stores to it, as if it were its own. Nobody calls `send`. But now
# the kernel has to find out by itself whether a number is there yet. GPUs do not start at the same time.
#
# For short arrays the quickest way is to let each number say it. A word of 64 bits has room for a float32 and for the
# number of the *round*: all-reduces are counted. A GPU writes the two together, and reads them together. So whoever
# sees the right round in a word has the right number.

# %%
show(peers.packets_kernel)

# %% [markdown]
# `boxes` has the address of a box in each GPU's memory. A thread stores its word in the boxes of all others, and then
# looks at its own box until their words have come. `store_relaxed_system` and `load_relaxed_system` are a store and a
# load that go past the caches. The loop is bounded. Without a bound, one rank that never comes would make all others
# hang, and a GPU that hangs cannot be asked why.
#
# The kernel runs here, too. `Ranks(3)` has the memory of three ranks and launches them in one grid: block (b, k) is
# block b of rank k. Blocks take turns, so waiting works as it does between GPUs.

# %%
three = Ranks(3)
three.packets(np.float32([[1, 2, 3], [10, 20, 30], [100, 200, 300]]))

# %% [markdown]
# However many ranks there are, a number waits for one store and one load. What does that cost in bytes?
#
# **Predict, then run.** Eight ranks have arrays of 64 KiB. How many KiB does each of them store in the boxes of others?

# %%
guess = None  # KiB

others, words = 8 - 1, 64 * 1024 // np.dtype(np.float32).itemsize
predict(guess, others * words * np.dtype(np.int64).itemsize / 1024, unit="KiB")

# %% [markdown]
# A word is twice as long as its number, and each rank sends its whole array to seven others. The ring sends 112 KiB. So
# this kernel is for short arrays.
#
# Long arrays go in pieces, with one signal for each piece instead of each number. The signal has to promise more: who
# has seen it also has to see what was written *before* it. A store that promises this is called a *release*, and a load
# that relies on it an *acquire*. Both are in the device function by which a block meets the same block of all ranks:

# %%
show(peers.meet)

# %% [markdown]
# One thread speaks for its block, after a barrier, and the block goes on after another one. Leave out either, and some
# threads use numbers that are not there. On a GPU that works most of the time. The interpreter names the race.
#
# ### Exercise: in boxes
#
# Ranks in this process reach each other's arrays, too: by a *window*. `window.write`, `window.signal`, `window.wait`
# and `window.rows` do what the kernel does with stores and loads. A read that no signal orders behind its write is an
# error, whatever number it would have got.

# %%
exercise("all_reduce/in_boxes")


# %%
def in_boxes(group, window, x, number):
    pass  # your code


check("all_reduce/in_boxes", in_boxes)

# %% [markdown]
# Why do the halves of a box take turns? With one half a rank could write its next number before a slow one has read the
# last. With two it writes into the other half, and comes back a round later. By then it has heard from all others in
# the round between, and these had read by then.
#
# Between two ranks, each stores a piece in a box of the other one, meets it, and adds what lies in its own box. More
# ranks would send too much that way. There every rank adds its own part of all arrays and stores the result to all, so
# bytes are those of the ring. The kernels are `sent_kernel` and `two_shot_kernel` in
# [pmpp/kernels/common/peers.py](../pmpp/kernels/common/peers.py).
#
# A kernel that carries numbers takes room on the SMs while it waits for the link. That is a loss if something else can
# be computed meanwhile, as the backward pass of [chapter 100](100_data_parallelism.ipynb). A GPU has engines that only
# copy ([chapter 04](04_vector_add.ipynb)), to the memory of another GPU, too, and they need no SM. Two ranks let these
# engines carry what is summed beside other work, and the longest arrays: a piece is copied into a slot of the other
# rank, one block of a kernel meets that rank, and one more kernel adds. The kernel that meets needs nothing but what
# you have seen:

# %%
show(peers.meet_kernel)

# %% [markdown]
# A stream does one after another: the copy, the meeting, the sum. So who has met the other rank behind its copy knows
# that the other's copy is here. Two streams take turns with the pieces. While one of them meets and adds, the other one
# copies, and the link is never idle.
#
# A group uses these kernels if each rank has a GPU: `parallel.init("peer")`, or `run --backend peer`. With "nccl" it is
# NVIDIA's library that moves the arrays. `python -m pmpp.parallel.measure` times both. The figure shows what it has
# recorded.

# %%
plots.drawn(figures.on_gpus)

# %% [markdown]
# Marks are measured: those of short arrays in a CUDA graph, without the host's part of a call. A line is
# $\alpha + \beta n$, with the two numbers that fit the marks best, which stand in the legend. Between two ranks each
# byte crosses the link once, so $\beta$ says what bandwidth of the link an all-reduce gets. The longest arrays get more
# than that: their marks lie below the line. Where marks leave their line, the model is too simple: kernels and
# libraries change their way at some length.
#
# Calls that are queued one by one take longer for short arrays, ours several times as long. The GPU is done before the
# host has launched the next kernel ([chapter 22](22_launches.ipynb)), so what is measured is the host's part of a call.
# That differs little between a kernel of ours and a call of the library, and a faster kernel gains little. A training
# step that is recorded as a CUDA graph has no such part.
#
# Now four GPUs. Before you look: by which factor should an all-reduce of a long array take longer than between two?

# %%
plots.drawn(figures.on_gpus, 4)

# %% [markdown]
# Each of two ranks sends $n$ bytes, and each of four sends $2 \cdot \frac{3}{4} n = 1.5 n$. Divide the two bandwidths
# of the legends: for our kernels the factor is more than 1.5. NCCL's is less, since it was not as fast between two.
# Short arrays pay latency instead, and it has grown, too: each rank now waits for three others.
#
# The kernels are not the same. What copy engines and `sent_kernel` carry between two ranks is the work of
# `two_shot_kernel` between four, in arrays that all ranks share. For the longest arrays it is slower than NCCL, as the
# two bandwidths say. So a group of more than two leaves long arrays to NCCL, unless they are shared.

# %% [markdown]
# ## The same bits?
#
# Sums of floats depend on their order ([chapter 38](38_numerics.ipynb)). Each of these algorithms adds in its own
# order. If two ranks had different bits, their networks would drift apart, step by step, and nobody would notice.

# %%
results = {}
for one in LADDER:
    found, wanted = run(one, 8, 1000)
    assert all((result == found[0]).all() for result in found), "ranks have different sums"
    results[one.__name__] = found[0]
different = {name: int((result != results["ring"]).sum()) for name, result in results.items()}
for name, count in different.items():
    print(f"{name:15} differs from the ring in {count:4} of 1000 elements; all its ranks agree")

# %% [markdown]
# Within an algorithm all ranks agree to the bit. In doubling that is no accident: both partners add the same two
# numbers, and a + b is b + a. Between algorithms many elements differ in the last bit. So a library that chooses by
# the length, or by the number of ranks, changes the bits of a training. For runs that have to be repeated exactly the
# algorithm is fixed.
#
# ## What to take along
#
# - Ranks have no memory in common. They send messages, and a message costs alpha, and beta for each byte.
# - What counts is the longest chain of messages. Short arrays want few messages in a row, long arrays few bytes.
# - Doubling needs $\log_2 p$ messages, the ring $2 (p - 1) / p$ times n bytes. Neither can be beaten at that.
# - Halving has the bytes of the ring in twice the messages of doubling, and needs links between all ranks.
# - Two ranks that send first wait for ever, unless a library copies short messages. `send_recv` does both at once.
# - A kernel that reaches other GPUs needs no messages, but signals: a release after what was written, an acquire before
#   what is read, and a bound for the wait.
# - All ranks must get the same bits. Different algorithms give different ones.
#
# ## Exercises
#
# Besides the four above, without a check:
#
# 1. *Two levels.* Eight ranks are two machines of four. Within a machine a message takes 1 µs and 100 GB/s, between
#    them 5 µs and 10 GB/s. Sum within each machine, then between the machines, then tell all. Write down the time with
#    `critical_path`, and compare it with a ring of eight whose slowest link decides.
# 2. *Its own path.* Why does `gather_and_sum` give the bits of a loop over the ranks, and `doubling` does not?
#
# ## Answers

# %% [markdown]
# *all_reduce/pass_right:* the ranks with an odd number receive first. A single rank is its own neighbour.


# %% jupyter={"source_hidden": true} tags=["answer"]
def pass_right_answer(group, x):
    if group.size == 1:
        return x
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.empty(x.shape, x.dtype)
    if group.rank % 2:
        group.recv(box, left)
        group.send(x, right)
    else:
        group.send(x, right)
        group.recv(box, left)
    return box


check("all_reduce/pass_right", pass_right_answer)

# %% [markdown]
# *all_reduce/ring_step:* what a rank receives in one step it sends in the next.

# %% jupyter={"source_hidden": true} tags=["answer"]
from pmpp.kernels import elementwise


def ring_step_answer(group, pieces, step):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sent, summed = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
    box = device.empty(summed.shape, np.float32)
    group.send_recv(sent, right, box, left)
    elementwise.add(summed, box, out=summed)


check("all_reduce/ring_step", ring_step_answer)

# %% [markdown]
# *all_reduce/choose:* compare the two times.


# %% jupyter={"source_hidden": true} tags=["answer"]
def choose_answer(size, nbytes, latency, bandwidth):
    steps = size.bit_length() - 1
    doubling = steps * (latency + nbytes / bandwidth)
    ring = 2 * (size - 1) * (latency + nbytes / size / bandwidth)
    return "doubling" if doubling <= ring else "ring"


check("all_reduce/choose", choose_answer)

# %% [markdown]
# *all_reduce/in_boxes:* each write is followed by its signal, and all signals are waited for before anything is read.


# %% jupyter={"source_hidden": true} tags=["answer"]
def in_boxes_answer(group, window, x, number):
    half = number % 2 * group.size
    others = [rank for rank in range(group.size) if rank != group.rank]
    for peer in others:
        window.write(x, to=peer, at=half + group.rank)
        window.signal(to=peer)
    for peer in others:
        window.wait(source=peer)
    rows = device.to_host(window.rows(half, group.size))
    return float(device.to_host(x)[0] + sum(rows[peer] for peer in others))


check("all_reduce/in_boxes", in_boxes_answer)

# %% [markdown]
# *Two levels.* Within a machine ring or halving for the bytes; between them each of the four ranks sums its quarter
# with the rank of the same number in the other machine.

# %% jupyter={"source_hidden": true} tags=["answer"]
inside, between = Links(1e-6, 100e9), Links(5e-6, 10e9)
for nbytes in (1_000, 1_000_000, 1_000_000_000):
    flat = all_reduce.seconds(all_reduce.ring, 8, nbytes, between)
    levels = all_reduce.seconds(all_reduce.ring, 4, nbytes, inside)
    levels += all_reduce.seconds(all_reduce.doubling, 2, nbytes // 4, between)
    print(f"{nbytes:13,} bytes: one ring {1e6 * flat:12,.1f} µs, two levels {1e6 * levels:12,.1f} µs")

# %% [markdown]
# *Its own path.* `gather_and_sum` adds part 1 to part 0, then part 2, and so on, on every rank. `doubling` adds
# neighbours first, then sums of two, then sums of four. Its error is smaller, too: see the tree sums of chapter 38.
#
# Go on with [chapter 100](100_data_parallelism.ipynb): several ranks train one network. The tests in `tests/parallel`
# have more programs of several ranks, right and wrong.
