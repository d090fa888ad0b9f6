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
# # 90. Feeding the GPU
#
# *Pageable and pinned memory, copies beside kernels, streams and events, races between them, loaders that work ahead,
# a timeline of host, copies and kernels, a training step as one graph. You need chapters 20, 22 and 88; it takes 90
# minutes. PMPP 4e: sections 20.3 to 20.5 and 22.2; 5e: chapter 23. The code is
# [pmpp/nn/utils/data.py](../pmpp/nn/utils/data.py) and [pmpp/nn/capture.py](../pmpp/nn/capture.py), the model of
# streams [pmpp/kernels/feeding/streams.py](../pmpp/kernels/feeding/streams.py), and the measurements are those of
# [pmpp/nn/measure/feeding.py](../pmpp/nn/measure/feeding.py).*
#
# The kernels of a training step are as fast as the last chapters could make them. But a kernel computes with a batch
# that must be there, and it begins when somebody has launched it. Both are the work of the host. A GPU that waits for
# its host does nothing, and no better kernel changes that.
#
# **The questions of this chapter: what does it take to bring a batch to the GPU, how can that happen while the GPU
# computes, and when is the host with its launches still the slower one?**

# %%
from collections import Counter
from importlib.util import find_spec

import numpy as np

from pmpp import nn, predict, simt
from pmpp.kernels.feeding.exercises import pieces_report
from pmpp.kernels.feeding.streams import Program, describe
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn import replay
from pmpp.nn.examples.digits import Net, datasets
from pmpp.nn.measure import feeding, recorded
from pmpp.nn.measure import feeding_figures as figures
from pmpp.nn.tape import Tensor
from pmpp.nn.utils import data
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## What is recorded, and what is computed here
#
# The interpreter has no copies that take time, no streams that run beside each other, and no clock of a GPU. So times
# come from a record, which one command made on a GPU. The next cell says which GPU that was. Everything else is
# computed here: the order of batches, the races, and the schedules. A schedule is computed by a model, which is given
# the times of its parts.

# %%
kept = figures.record()
print(figures.source(kept))
for question in ("copies", "timelines", "loading", "chunks", "steps"):
    print(f"{question:10}{len(figures.rows(kept, question)):4} rows")

# %% [markdown]
# ## Where a batch comes from
#
# The memory of the host and that of the GPU are joined by a bus, PCI Express. What kernels shall read must first come
# across. The bound is the bandwidth of this bus, a small part of that of the GPU's own memory.
#
# Take the LeNet of the last chapters: 256 images of 28 x 28 float32. We count with 50 GB a second for the bus, a round
# number of the right size for PCI Express 5.0 with 16 lanes (its wires carry 63 GB/s in each direction).
#
# **Predict, then run.** How long is the batch on its way?

# %%
guess = None  # us

bus = 50e9  # bytes a second
batch = np.zeros((256, 1, 28, 28), np.float32)
predict(guess, batch.nbytes / bus * 1e6, unit="us")

# %% [markdown]
# Is that much? The next cell prints what a captured step of this LeNet takes with a batch that is on the GPU already.
# And the bus is only one part of the way: somebody has to gather the 256 images of the batch from the dataset, too.

# %%
for row in figures.rows(kept, "loading", batch=256, way="there already"):
    print(f"a captured step on a batch that is there: {1e6 * row['batch'] / row['images_s']:.0f} us")

# %% [markdown]
# ### Pageable and pinned
#
# Memory that NumPy allocates is *pageable*: the operating system may move its pages, or write them to a disk. The GPU
# reads the host's memory by itself, without the CPU (*direct memory access*, DMA), and it must be sure that a page is
# where it was. So the driver first copies pageable memory, piece by piece, into a buffer of its own whose pages do not
# move. That memory is called *pinned*, or page-locked. Two things follow for a copy from pageable memory.
#
# - It goes through the memory of the host twice.
# - The CPU takes part in it: the host cannot do anything else meanwhile.
#
# With `cuda.pinned_array(shape, dtype)` a program has pinned memory of its own, and the GPU reads it directly. The call
# only queues the copy, as a launch only queues a kernel. Pinned memory is slow to allocate, and takes memory from
# everybody else. So one allocates a little of it, once, and uses it again and again.
#
# The figure has both, in both directions. A copy begins when the GPU is idle and ends when it is known to be done. The
# grey line is NumPy on the computer that executes this notebook: it copies from one place in the host's memory to
# another.


# %%
def copied_by_numpy(nbytes):
    """Gigabytes a second of a copy by NumPy, here: the median of a few."""
    a, b = np.ones((2, nbytes), np.uint8)
    return nbytes / (1e3 * feeding.median_us(lambda: np.copyto(b, a), 0.002))


figures.bandwidths(kept, {nbytes: copied_by_numpy(nbytes) for nbytes in feeding.SIZES if nbytes <= 2**26})

# %% [markdown]
# Every curve rises first. There a copy costs the same whatever it moves: the call from Python, queueing, and waiting
# take their time, and the bus has hardly anything to do. On the right the bus is the bound (or the memory of the
# host). A batch should come as one large copy, not as 256 small ones.

# %%
for nbytes in (2**20, 2**28):
    for row in figures.rows(kept, "copies", bytes=nbytes, direction="to the GPU"):
        print(f"{nbytes >> 20:3} MiB from {row['memory']:8} memory: done after {row['us']:8.1f} us,", end=" ")
        print(f"the call returned after {row['returns_us']:8.1f} us: {nbytes / row['us'] / 1e3:5.1f} GB/s")

# %% [markdown]
# From pageable memory the call returns about when the copy is done. (The two times of a row were measured one after
# the other, so the second may even be the longer one.) From pinned memory the call returns when the copy is queued.
# For the large copy that is a small part of the time. For the small one it is most of the time, because the call
# itself goes through Python.

# %% [markdown]
# ## Two queues and their events
#
# A copy from pinned memory is queued on a *stream*. The operations of one stream run one after another (chapter
# [22](22_launches.ipynb)). If copies and kernels stand in different streams, the GPU can do both at a time, because
# copies have engines of their own.
#
# Between two streams there is no order at all, unless somebody asks for it. This is done with an *event*:
#
# - `event.record(stream)` puts a mark behind all that was queued on a stream so far;
# - `event.wait(other)` lets another stream wait for the mark: the host goes on at once, and the GPU keeps the order;
# - `event.synchronize()` lets the *host* wait for it.
#
# `Program` is a model of that. It is told what the host does, in order, and what each operation reads and writes. It
# runs nothing. It works out what must come before what, and how long it takes. These methods have most of it:

# %%
show(Program.wait)
show(Program.synchronize)
show(Program.races)

# %% [markdown]
# Here a host fills a pinned buffer, has it copied, launches a kernel on another stream, and fills the buffer with the
# next batch. It waits for nothing.

# %%
program = Program()
for batch_number in range(2):
    program.fill("pinned", batch_number, us=5)
    program.copy("pinned", "there", "copies", us=4)
    program.kernel("there", "compute", us=6)

# %% [markdown]
# Two operations *race* if they use the same memory, one of them writes it, and neither must wait for the other.
#
# **Predict, then run.** How many pairs of operations race?

# %%
guess = None  # pairs

predict(guess, len(program.races()), unit="pairs", exact=True)

# %%
for race in program.races():
    print(describe(program, race))

# %% [markdown]
# There are three kinds of races.
#
# - **Filled too early.** The host writes batch 1 into the buffer while the copy of batch 0 still reads it. The network
#   is then trained on a mixture of both.
# - **Used too early.** The kernel reads memory that the copy has not written yet. It sees the batch before.
# - **Overwritten too early.** The copy of batch 1 writes memory that the kernel of batch 0 still reads.
#
# None of them is an error that anybody reports. A loss comes out, it falls, and the accuracy is a little lower than it
# could be. The race depends on how busy the GPU is, so it may be gone as soon as you print something.
#
# Each kind needs a wait of its own. The waits stand in a different place each: the host waits before it fills, the
# stream that computes before it reads, the stream that copies before it overwrites.

# %%
program = Program()
copied, used = program.record("copies"), program.record("compute")  # nothing was queued yet: nobody has to wait
for batch_number in range(2):
    program.synchronize(copied)  # the host: not filled too early
    program.fill("pinned", batch_number, us=5)
    program.wait("copies", used)  # the stream of copies: not overwritten too early
    program.copy("pinned", "there", "copies", us=4)
    copied = program.record("copies")
    program.wait("compute", copied)  # the stream of kernels: not used too early
    program.kernel("there", "compute", us=6)
    used = program.record("compute")
print(len(program.races()), "races; done after", program.us, "us")

# %% [markdown]
# The first exercise asks for the check itself: a list of operations, and the pair for which a wait is missing.

# %%
exercise("feeding/missing_wait")


# %%
def missing_wait(what, stream, name):
    pass  # your code


check("feeding/missing_wait", missing_wait)

# %% [markdown]
# ### The default stream is not like the others
#
# One trap is left, and our own loader fell into it. A kernel that names no stream goes to the *default stream*. An
# ordinary stream, as `cuda.stream()` makes it, waits for the default stream, and the default stream waits for it, in
# the order in which the host queues. So a copy on an ordinary stream and a kernel on the default stream never overlap.
# The results are right, and all the waits are there. It is only as slow as before. The cure is a stream that was made
# as *non-blocking*:

# %%
show(data._non_blocking_stream)

# %% [markdown]
# ## What a loader does
#
# A `DataLoader` turns a dataset into batches on the GPU. Before anything is copied it decides on an order. With
# `shuffle=True` each epoch has another one, drawn from the seed and the number of the epoch, so that a run can be
# repeated. The last batch may be smaller; `drop_last=True` leaves it out, which a captured step needs.

# %%
numbers = TensorDataset(np.arange(10, dtype=np.int64))
for name, options in {
    "in order": {},
    "shuffled": {"shuffle": True},
    "dropped": {"shuffle": True, "drop_last": True},
}.items():
    loader = DataLoader(numbers, 4, seed=1, **options)
    for epoch in range(2):
        print(f"{name:9} epoch {epoch}:", *(batch.numpy() for (batch,) in loader))

# %% [markdown]
# A dataset may also be anything that has a length and gives examples. This one writes down which examples are asked
# for.


# %%
class Watched:
    """Numbers, and a list of those that were read."""

    def __init__(self, n):
        self.n, self.read = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read.append(i)
        return (np.float32(i),)


# %% [markdown]
# The loader below makes batches of 4 from 40 examples, and works 2 batches ahead.
#
# **Predict, then run.** How many examples have been read when the program gets its first batch? And how many when it
# gets the third?

# %%
guess = {"first": None, "third": None}  # examples

watched = Watched(40)
batches, read = iter(DataLoader(watched, 4, prefetch=2)), []
for _ in range(3):
    next(batches)
    read.append(len(watched.read))
predict(guess, {"first": read[0], "third": read[2]}, unit="examples", exact=True)

# %%
print("examples read at batches 1, 2, 3:", read)

# %% [markdown]
# The first batch comes late, because two more are made before it is handed out. From then on each `next` makes the
# batch after the next one. The GPU meanwhile computes what was launched. That is all that *prefetching* means: the work
# is the same, but it is done before it is needed.
#
# The loader keeps `prefetch + 1` sets of pinned buffers. This is what it does with one of them; the three waits are
# those of above, and they are the reason for the events.

# %%
show(data._Slot.send)

# %% [markdown]
# Where is each of the waits? `allocated` stands for the third one. The memory for a batch comes from a pool, and a
# kernel that is queued may still use it, so the copy waits for all that was queued when it was allocated. `done` is
# recorded behind the copy. The loader lets the stream that computes wait for it before it hands a batch out, and the
# host before the buffer is filled again.
#
# A loop may end early, by `break` or by an error. Then batches were copied ahead that nobody takes. Their memory goes
# back to the pool while the copies still run, so at its end the loader lets the stream that computes wait for all of
# them. The tests have a GPU in Python whose copies run as late, or as early, as their order allows, and each wait that
# is taken out makes some of them fail: [tests/nn/test_feeding.py](../tests/nn/test_feeding.py).
#
# ## A schedule, computed
#
# How much is won? That depends on three times: to *load* a batch (the host gathers it), to *copy* it, and to *compute*.
# The function queues a training of several batches. With `ahead=0` the host makes a batch when it is needed, the copy
# goes to the stream of the kernels, and the host waits for it, as from pageable memory. Otherwise it is the loader with
# its ring of buffers.


# %%
def training(load, copy, compute, ahead, n=8):
    program, copied, used = Program(), [], []
    ring, stream = ahead + 1, "copies" if ahead else "compute"
    for k in range(n):
        if k >= ring:
            program.synchronize(copied[k - ring])
            program.wait(stream, used[k - ring])
        program.fill(f"pinned {k % ring}", k, us=load)
        program.copy(f"pinned {k % ring}", f"there {k % ring}", stream, us=copy)
        copied.append(program.record(stream))
        program.wait("compute", copied[k])
        if not ahead:
            program.synchronize(copied[k])
        program.kernel(f"there {k % ring}", "compute", us=compute)
        used.append(program.record("compute"))
    return program


# %% [markdown]
# **Predict, then run.** Loading takes 50 us, copying 30 us, and computing 60 us. How long do 8 steps take without
# working ahead, and how long with 2 batches ahead? (These are round numbers for the model. They are not measured.)

# %%
guess = {"in the step": None, "2 ahead": None}  # us

times = {"in the step": training(50, 30, 60, 0).us, "2 ahead": training(50, 30, 60, 2).us}
predict(guess, times, unit="us")


# %%
figures.schedules(("in the step", training(50, 30, 60, 0)), ("2 ahead", training(50, 30, 60, 2)))

# %% [markdown]
# Grey is the host that fills a buffer, orange a copy, blue a kernel; hatched is a host that waits. In the upper picture
# the host fills the next buffer while the GPU computes, since a launch is asynchronous. But the copy stands in the row
# of the kernels, behind the one before, and the next kernel stands behind the copy. So a step takes the longer of
# loading and computing, and the copy on top.
#
# Below, all three rows are busy at the same time. After the first steps one of them is busy without a gap, and that one
# sets the pace:
#
# $$t_{\text{step}} = \max(t_{\text{load}},\ t_{\text{copy}},\ t_{\text{compute}})$$
#
# This is the third time that we meet a maximum: memory and arithmetic (chapter [20](20_memory_or_compute.ipynb)),
# launches and kernels (chapter 22), and now the ways in and the work. Try it: change the three numbers, and see which
# row is full.
#
# Who works further ahead gets nothing more if the times are the same in each step. A ring of several buffers helps
# where they differ: then a slow batch is hidden by those that are ready.
#
# **Predict, then run.** Loading now takes 90 us, copying 30, and computing 60. By which factor does a step get
# shorter if the loader works 2 ahead and not in the step? And by which if it works 6 ahead?

# %%
guess = {"2 ahead": None, "6 ahead": None}  # times as fast

plain = training(90, 30, 60, 0, n=64).us
predict(guess, {f"{n} ahead": plain / training(90, 30, 60, n, n=64).us for n in (2, 6)}, unit="times as fast")

# %% [markdown]
# The loader is the slowest part now, and no amount of working ahead makes it faster. What helps then is a cheaper
# batch (whole rows gathered at once, no Python for each example), more threads or processes that make batches, or data
# that already lies on the GPU. All 60,000 digits of MNIST are 188 MB as float32, so they fit there many times over.
#
# ## The timeline, measured
#
# The same picture, from a real training. Host times are from the host's clock, and the others from events around each
# copy and each step, on the GPU's own clock. The two clocks were aligned at a moment when the GPU was idle. The
# network is a LeNet whose step was captured as a graph, so that the host has little to do for it.


# %%
figures.timelines(kept, captured=True)

# %% [markdown]
# Look for two things in such a picture. Is there a row without gaps? It is the one to work on. And where a row has
# gaps: what ends at the moment when the gap ends? That is what it waited for.
#
# In the first two pictures the host is the row without gaps. It gathers the images, and the kernels wait for it. As
# long as that is so, working ahead wins little or nothing: the pace is that of the host, and the host's times scatter
# from one picture to the next. In the third picture a thread gathers. (The host's *load* is then waiting and sending.)
# The row of the thread is full most of the time. The kernels still have gaps, and a copy stands in each of them.
#
# So the copies do not overlap with the kernels here, although they have a stream of their own. Below the first
# picture no copy begins while a step runs. This is the event `allocated`: a batch's memory comes from the pool when
# the batch is sent, and the copy waits for all that was queued before, the last step included. In the third picture a
# batch is often sent just before it is used, and then the next step waits for this copy. Memory that is kept for the
# batches, as in the model of above, would let the copy begin earlier.
#
# The next cell sets the model to work on the record. It takes the mean time of each part from the timeline of the
# loader that works ahead, computes the pace from the maximum, and compares with the pace of the recorded steps. A
# batch that took longer than usual counts in both.


# %%
for row in figures.rows(kept, "timelines", captured=True, way="prefetched"):
    load, copy, step, launch = (figures.mean_us(row["spans"], name) for name in ("load", "copy", "step", "launch"))
    ends = [span["to"] for span in row["spans"] if span["what"] == "step"]
    print(f"load {load:.0f} us + launch {launch:.0f} us on the host, copy {copy:.0f} us, step {step:.0f} us on the GPU")
    print(f"the model says {max(load + launch, copy, step):.0f} us a step; recorded: {np.diff(ends[2:]).mean():.0f} us")
print(figures.source(kept))

# %% [markdown]
# ### Images a second
#
# The knob of this figure is the batch size, and the curves are ways of feeding the same captured LeNet. *There already*
# has the batch on the GPU and is the roof. *Loaded in the step* gathers a batch into pageable memory, copies it, and
# waits. *Through pinned memory* saves the detour, but nothing is done ahead. Then come our loader, which works ahead,
# and the same with a thread that makes the batches. PyTorch's loader stands beside it, with PyTorch's graph: first
# example by example, as it is mostly used, and then with the indices of whole batches.


# %%
figures.fed(kept)

# %% [markdown]
# Where a curve lies on the roof, the way to the GPU is hidden completely. With small batches all curves stay far below
# it. With the largest batch our loader can come near it.
#
# Over a copy through pinned memory without working ahead the loader gains little at some sizes and much at others, and
# with small batches it can lose: its events and its memory cost host time, and the host is the bound. Times of a host
# scatter from run to run, so a small distance between two of our curves says nothing. With the smallest batches a
# thread hardly helps, and can even cost time. To hand a batch from one thread to another costs host time, too, and of
# two threads only one at a time runs Python. A small batch takes little else. With larger batches most of the time goes
# into copying images inside NumPy, which another thread need not wait for. There the thread pays, since the host
# gathers and launches at the same time. It gains nothing more where the loader alone is near the roof.
#
# PyTorch's two curves show what a batch costs that is put together example by example. With large batches that curve
# is by far the lowest. With the indices of whole batches PyTorch's loader is about as fast as the best of ours with
# small batches, or faster. With large batches it is slower, or no faster.
#
# ## One copy in pieces
#
# Overlap needs pieces. A program that copies one large array to the GPU, computes, and copies the result back has
# nothing that could overlap: each part needs the whole of the one before. If the array is split, piece 2 is copied
# while piece 1 is computed and piece 0 goes back (the bus works in both directions at a time).
#
# With $p$ pieces and equal times $t$ for the three parts, the first piece takes $3t/p$, and then one more comes out
# every $t/p$. All together it is $t\,(p + 2)/p$: from $3t$ down towards $t$. But each piece costs a few launches.


# %%
def in_pieces(pieces, whole=1000.0, launch=5.0):
    program = Program(launch=launch)
    for k in range(pieces):
        program.copy(f"x {k}", f"there {k}", "in", us=whole / pieces)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=whole / pieces, writes=f"result {k}")
        program.wait("out", program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=whole / pieces)
    return program


# %% [markdown]
# **Predict, then run.** Each of the three parts takes 1,000 us for the whole, and each operation keeps the host busy
# for 5 us. With how many pieces is it done first: 1, 2, 4, 8, 16, 32, 64, 128?

# %%
guess = None  # pieces

computed = {2**k: in_pieces(2**k).us for k in range(8)}
predict(guess, min(computed, key=computed.get), unit="pieces", exact=True)


# %%
figures.pieces(kept, computed)

# %% [markdown]
# Few pieces leave the ends uncovered: nobody computes while the first piece comes, and nobody while the last one goes.
# Many pieces are launch-bound, as in chapter 22. The recorded curve turns up earlier than the model's. Are 5 us too
# little for an operation that is queued from Python? The next cell takes this time from the row with the most pieces,
# where the host is the bound, and the length of a part from the record. With both it asks the model again.

# %%
if found := figures.rows(kept, "chunks"):
    most = max(found, key=lambda row: row["pieces"])
    part, queued = max(most["alone_us"].values()), most["us"] / most["pieces"] / 3
    print(f"a part takes {part:.0f} us, and queueing an operation {queued:.0f} us")
    for row in found:
        again = in_pieces(row["pieces"], part, queued).us
        print(f"{row['pieces']:3} pieces: recorded {row['us']:6.0f} us, the model {again:6.0f} us")

# %% [markdown]
# The last row had to agree, since it was used. The rows between are the test: now the model, too, rises at the end.
# Before that it is too fast, since it takes each part to be as fast beside the others as alone. Choose pieces that
# take longer than it takes to queue them. Queue such a pipeline yourself:

# %%
exercise("feeding/pieces")


# %%
def pieces(Program, sizes):
    pass  # your code


check("feeding/pieces", pieces)

# %% [markdown]
# ## Many launches, or one
#
# A batch that is there is not computed yet: the step has to be launched. Chapter 22 showed that a launch costs the
# host a few microseconds, that a stream hides them as long as kernels are longer, and that a graph replays a list of
# kernels by one call. A training step is such a list. How long is it? Here is a small network, with two convolutions
# and one linear layer, on digits of 8 x 8.

# %%
nn.manual_seed(0)
net, (digits, _) = Net(), datasets()
optimizer = nn.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
x, y = (Tensor(array[:8]) for array in digits.arrays)
print("images", x.shape, "labels", y.shape)


# %%
def step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


# %%
def launches():
    """The kernels of a step: those that the interpreter runs, or on a GPU the nodes of its graph."""
    if device.on_gpu():
        return Counter(feeding.Training(Net, x, y).nodes() if find_spec("cupy") else {})
    step(x, y)  # the first time fills the caches
    with simt.record("run") as reports:
        step(x, y)
    return Counter(report.kernel for report in reports)


# %% [markdown]
# The forward pass has two convolutions, two activations, two poolings, a linear layer and the loss. The backward pass
# needs the gradient of each with respect to its input, and where it has weights, with respect to these. Then the
# optimiser changes all parameters in one launch.
#
# **Predict, then run.** How many kernels does one step launch?

# %%
guess = None  # launches

launched = launches()
predict(guess, sum(launched.values()), unit="launches", within=0.25)

# %%
print(*(f"{count} x {name}" for name, count in launched.most_common()), sep=", ")
for row in figures.rows(kept, "steps", batch=256):
    print("LeNet-5, batch 256, the nodes of its recorded graph:", row["nodes"])

# %% [markdown]
# There are more kernels than layers. A layer may take several, and the backward pass has more of them than the
# forward pass. Each is short: a batch of small images is little work.
#
# `nn.capture` makes one graph of them. It carries the step out a few times, so that all is compiled and allocated, and
# then records one, as in chapter 22. What it returns is called like the step. It copies the batch into the arrays that
# the graph knows, and replays it.

# %%
if find_spec("cupy") or not device.on_gpu():  # CuPy makes the graph
    captured = nn.capture(step, x, y)
    print("losses", [round(captured(x, y).item(), 4) for _ in range(2)])
    try:
        captured(*(Tensor(array[:5]) for array in digits.arrays))
    except ValueError as error:
        print("ValueError:", error)

# %% [markdown]
# (Without a GPU there are no graphs, and `captured` carries out the step as it is, with the same checks.)
#
# A graph keeps addresses and numbers, so other shapes are refused. This is why a loader for a captured step drops the
# last batch if it is short. What else a step must not do is what chapter 22 said: read a result on the host, or
# depend on one. A loss that is printed in every step is such a reading. Print it every hundred steps, outside.
#
# What of numbers that are others in each step? Adam needs the number of the step. While a step is recorded, it moves to
# the GPU, and a kernel of the graph counts on. The random numbers of dropout are not counted there: a graph would drop
# the same elements again and again. So `nn.capture` refuses a step with dropout.
#
# ### Between a call and a graph
#
# The kernels of a step are started in a hundred microseconds. A step that is called takes the host several times as
# long. What does it do? Each operation checks its arguments, chooses a kernel by their shapes, computes how many blocks
# it takes, and makes arrays for the results. In a training all of that comes out the same in every step. Only the
# addresses are others.
#
# So `pmpp.nn` carries out an operation by its own code once. Before the second time it records what the operation
# launches. From then on it allocates, writes the new addresses among the arguments, and launches:
# [replay.py](../pmpp/nn/replay.py). Unlike a graph of the whole step this needs nothing from the program. Shapes may
# change, since each has a recording of its own, and results may be read.
#
# How does it know which bytes among a kernel's arguments are addresses? It carries the operation out twice, within
# graphs that are never launched, on arrays that do not exist. Their addresses are made up, and are others the second
# time. Here is what two such graphs say of `out = 2 x + y` for 1,000 numbers.


# %%
def axpy_at(begin):
    """What a graph says of a kernel whose arrays lie at made-up addresses from ``begin`` on."""
    x, y, out = begin, 3 * begin, 5 * begin
    words = x, 1000, 2, y, 1000, out, 1000
    arguments = tuple(word.to_bytes(8, "little") for word in words)
    kernel = replay.Launched(function=1, extents=(4, 1, 1, 256, 1, 1, 0), arguments=arguments)
    return replay.Recording(begins=[x, y, out], nbytes=[4000] * 3, launched=[kernel])


first, second = axpy_at(2**30), axpy_at(2**31)
words, addresses = replay.patches(first, second, foreign=lambda word: False)
for word, piece, distance in addresses:
    print(f"word {word} is the address of piece {piece}, and {distance} bytes")
print("all others stay:", [word for i, word in enumerate(words) if i not in {place[0] for place in addresses}])

# %% [markdown]
# What differs must be an address, and what does not differ is kept. An operation that is not like that is left to its
# own code for good: one that draws another seed each time, one that needs two streams, one that reads a table which
# somebody else could free.


# %%
def draws_a_seed(begin):
    """The same with a number that is another one each time."""
    found = axpy_at(begin)
    seed = (begin >> 20).to_bytes(8, "little")
    found.launched = [replay.Launched(1, found.launched[0].extents, (*found.launched[0].arguments, seed))]
    return found


try:
    replay.patches(draws_a_seed(2**30), draws_a_seed(2**31), foreign=lambda word: False)
except replay.Unlike as why:
    print("left to its own code:", why)

# %% [markdown]
# ### Host time against GPU time
#
# The host launches a step while the GPU computes the one before, so the longer of the two times sets the pace once
# more. The next cell reads two records. One has LeNet-5 with 256 images, called and as a graph of the same kernels, and
# PyTorch beside it. The other has captured steps on batches that are there, by batch size.


# %%
try:
    ms = recorded("steps")["steps"]["LeNet-5, batch 256"]["ms"]
    for name, time in ms.items():
        print(f"batch  256: {name:<26} {1e3 * time:5.0f} us")
except RecordError as missing:
    print(missing)
for row in figures.rows(kept, "loading", way="there already"):
    us = 1e6 * row["batch"] / row["images_s"]
    print(f"batch {row['batch']:4}: a captured step {us:5.0f} us, {us / row['batch']:.2f} us an image")

# %% [markdown]
# The first lines say what the host costs: a graph has the same kernels, and the rest of the time was the host's. In the
# last lines a step takes longer with a larger batch, but not in proportion: kernels as short as these have a
# least time, and the call does as well.
#
# The figure has the host and the GPU side by side. *Host* is the time until the call returns, when the GPU had
# nothing to do before. *Whole step* is the time of a step where several are queued, one behind the other, and the
# last one is waited for. *GPU, graph* is the time that the GPU takes for the kernels of a step.

# %%
figures.steps(kept) if figures.rows(kept, "steps") else None

# %% [markdown]
# A step that is called is *launch-bound* as long as its kernels take less time than their launches. The orange lines
# show it: the GPU waits for the host, and the time of a step is that of the host, whether the batch has one image or
# hundreds. (The host's times scatter: two runs can differ by a factor of two.) With the largest batch the kernels take
# longer than the host, and the dotted line joins the GPU's.
#
# Captured, the host's share falls to one call and two small copies. The green diamonds lie far below the GPU's line,
# so the kernels are the bound for every batch in the figure, and the dotted green line lies on that of the GPU. What
# bounds the kernels themselves is another question. For small batches it is the least time that a kernel takes, and a
# larger batch costs little more. For large ones it is memory or arithmetic, and the roofline of chapter 20 says by
# which. A graph is worth most for small batches, and little for large ones.
#
# Called, a step of PyTorch is launch-bound as well, except with the largest batch. There its kernels are the bound, as
# ours are. With all other batches its step takes longer than ours: its host looks at every operation anew, in C++. With
# a graph ours is the shorter step, above all from 16 to 1,024 images. For the smallest batches and the largest one the
# two are closer.
#
# And there is another effect, which leads back to the loader. A host that is busy launching has no time to load. With
# a graph it is free for most of the step, and can load while the kernels run. The timeline of a step that is called
# shows the opposite: forward, backward and update fill most of the row of the host. (The three spans of a step in the
# row of the kernels are these parts, each from its first kernel to its last. The gaps between kernels are in them.)

# %%
figures.timelines(kept, captured=False)

# %% [markdown]
# ## What to take along
#
# - Of loading, copying, launching and computing a step costs the longest if they overlap, and the sum if they do not.
# - From pinned memory the GPU copies by itself. From pageable memory the host copies first, and waits.
# - Copies overlap with kernels on another, non-blocking stream. Events give two streams an order, and only those.
# - Three waits belong to each buffer: before it is filled, before its copy is used, before that is overwritten.
# - Working ahead hides what is shorter than the computation. It does not make the longest part shorter.
# - A short step is launch-bound. A graph makes one launch of it, and frees the host for the loader.
# - Measure first which row of the timeline is full.
#
# To read on: the CUDA C++ programming guide, "Asynchronous Concurrent Execution"; PyTorch's notes on CUDA semantics
# (streams, pinned buffers, graphs); L. Lamport, *Time, Clocks, and the Ordering of Events in a Distributed System*
# (1978), for the relation that `races` computes.
#
# ## Exercises
#
# Two stand above: the missing wait, and a copy in pieces. The third one is the heart of the loader. `check` runs your
# function, looks for races, and compares the time with the best that two buffers can do.

# %%
exercise("feeding/double_buffer")


# %%
def double_buffer(Program, load, copy, compute):
    pass  # your code


check("feeding/double_buffer", double_buffer)

# %% [markdown]
# On paper: a training has steps of 400 us on the GPU. A batch takes 300 us to gather and 100 us to copy, and launching
# the step takes the host 350 us. Does a loader that works ahead suffice? Would a graph help, whose launch takes 30 us?
# Would a thread that gathers?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
def missing_wait_answer(what, stream, name):
    behind, events = {}, {}
    for j in range(what.size):
        done = behind.setdefault(stream[j], set())
        if what[j] == 2:
            events[name[j]] = set(done)
        elif what[j] == 3:
            done |= events[name[j]]
        else:
            for i in range(j):
                shared = what[i] < 2 and name[i] == name[j] and 0 in (what[i], what[j])
                if shared and i not in done:
                    return np.array([i, j])
            done.add(j)
    return np.array([-1, -1])


assert check("feeding/missing_wait", missing_wait_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def pieces_answer(Program, sizes):
    program = Program()
    for k, size in enumerate(sizes):
        program.copy(f"x {k}", f"there {k}", "in", us=20 * size)
        program.wait("compute", program.record("in"))
        program.kernel(f"there {k}", "compute", us=15 * size, writes=f"result {k}")
        program.wait("out", program.record("compute"))
        program.copy_back(f"result {k}", f"out {k}", "out", us=22 * size)
    return pieces_report(program, len(sizes))


assert check("feeding/pieces", pieces_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def double_buffer_answer(Program, load, copy, compute):
    program, copied, used = Program(), [], []
    for k in range(load.size):
        if k >= 2:
            program.synchronize(copied[k - 2])
            program.wait("copies", used[k - 2])
        program.fill(f"pinned {k % 2}", k, us=load[k])
        program.copy(f"pinned {k % 2}", f"there {k % 2}", "copies", us=copy[k])
        copied.append(program.record("copies"))
        program.wait("compute", copied[k])
        program.kernel(f"there {k % 2}", "compute", us=compute[k])
        used.append(program.record("compute"))
    return program.report()


assert check("feeding/double_buffer", double_buffer_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
for name, host in {
    "loader": 300 + 350,
    "and a graph": 300 + 30,
    "and a thread": max(300, 350),
    "both": max(300, 30),
}.items():
    print(f"{name:13} host {host} us, copy 100 us, GPU 400 us: {max(host, 100, 400)} us a step")
print("The loader alone leaves the host the slowest. A graph or a thread suffices; both do not help further.")

# %% [markdown]
# Go on with [chapter 91](91_a_fusing_compiler.ipynb): a compiler that makes one kernel out of many.
