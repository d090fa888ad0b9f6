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
# # 22. What a launch costs
#
# *Host and device, the dispatcher, a prepared launch, streams, launch-bound chains, CUDA graphs. Read chapters
# [4](04_vector_add.ipynb) and [20](20_memory_or_compute.ipynb) before. 65 minutes. PMPP 4e: sections 2.6, 20.5 and
# 22.2; 5e: chapters 2 and 23. The code is [pmpp/runtime/launcher.py](../pmpp/runtime/launcher.py), and the measurements
# are those of [pmpp/lab/measure/calls.py](../pmpp/lab/measure/calls.py).*
#
# The *host* is the computer with the CPU, on which Python runs. The GPU is the *device*. A *launch* is the host's
# request that the device run a kernel: the line `kernel[grid, block](x, y, out)`. So far we have asked what the GPU
# does after that line. This chapter looks at the line itself.
#
# **The question of this chapter: what happens between `kernel[grid, block](...)` and the first thread, and when does
# a program spend its time on that, and not on the kernel?**

# %%
import struct
import time
import timeit
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, predict
from pmpp.kernels import vector_add
from pmpp.kernels.launches.exercises import add_kernel, clip_kernel, scale_kernel
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import calls, graphs, record
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The question in numbers
#
# The times in this chapter come from a record, as in the chapters before. `calls.recorded` gives what calls cost the
# host on a named GPU: a row for each call, with its time in microseconds. Besides the rooms it has two kinds of rows
# of its own, `launch` and `chain`; the time of a chain runs until the GPU is done.

# %%
run, rows = calls.recorded()
kept = record.load(run["gpu"])
ceilings = kept.ceilings()
source = f"Recorded on {kept.gpu}, {run['date'][:10]}, revision {run['revision']}"
print(source)
print(f"{len(rows)} rows, of", ", ".join(dict.fromkeys(row["room"] for row in rows)))

# %% [markdown]
# Our example is the sum of two vectors of 1,024 float32 elements, with the plainest kernel that does it.

# %%
show(calls.three_kernel)

# %% [markdown]
# The bound is that of chapter 4. The kernel must read 8 bytes and write 4 for each element, and the bytes divided by
# the bandwidth are the least time on the GPU.


# %%
def recorded_us(room, **fields):
    """The time of the one row of a room that has these fields, in microseconds."""
    [us] = [row["us"] for row in rows if row["room"] == room and fields.items() <= row.items()]
    return us


cost = vector_add.cost(1024)
least = cost.bytes / ceilings.bandwidth * 1e6
call = recorded_us("vector_add", size="tiny", kind="rung", form="device array")
print(f"{cost.bytes} bytes at {ceilings.bandwidth / 1e12:.2f} TB/s: {least:.4f} us")
print(f"a kernel without any work:       {ceilings.empty_kernel * 1e6:6.2f} us on the GPU")
print(f"a call of vector_add.vectorised: {call:6.2f} us of the host")

# %% [markdown]
# The last line is a call of a rung, which checks its arguments before it launches. A launch alone, as Numba makes it,
# takes the host even longer. What this workbook puts in its place comes further down.
#
# **Predict, then run.** How many times as long as the least time on the GPU is the host busy with a launch by Numba? A
# guess of the power of ten is enough.

# %%
guess = None  # times as long

numba = recorded_us("launch", size="3 arrays", who="Numba's own")
predict(guess, numba / least, unit="times as long", factor=3)

# %%
prepared = recorded_us("launch", size="3 arrays", who="a prepared launch", form="device array")
for name, us in {"Numba's own launch": numba, "a launch in this workbook": prepared}.items():
    print(f"{name:26}{us:6.1f} us of the host, {us / least:8,.0f} times the least time")

# %% [markdown]
# The call takes longer than the work by orders of magnitude. Even a kernel without any work keeps the GPU busy for
# longer than these bytes need: the GPU must start its blocks and notice that they have ended. And the host needs
# several times as long as that to ask for it.
#
# For a vector of 1,024 elements a better kernel therefore gains nothing at all. What could gain something is a better
# launch, or fewer launches. To see how, we follow one launch on its way.
#
# ## From the line of Python to the first thread
#
# Behind a function with `@cuda.jit` stands an object of Numba, the *dispatcher*. It keeps the machine code of the
# kernel, one version for each combination of argument types, and starts the right one. Below it is the *driver*,
# NVIDIA's software that alone talks to the GPU. A launch goes through these stations:
#
# 1. **Configure.** `kernel[grid, block]` makes an object that knows the grid, the block, the stream (the queue that
#    the launch goes to; more below), and the bytes of shared memory.
# 2. **Find the types.** `(x, y, out)` are Python objects. The dispatcher finds out what each is: an array of float32,
#    of one dimension, contiguous.
# 3. **Find the kernel.** If there is machine code for these types, it is taken. If not, Numba compiles it now. That
#    takes far longer than all other stations, but only once.
# 4. **Describe the arguments.** A kernel knows no Python objects. Each array is turned into a few integers.
# 5. **Call the driver.** Its function `cuLaunchKernel` is given the machine code, the sizes of grid and block, the
#    shared memory, the stream, and where the arguments lie.
# 6. **Queue.** The driver copies the arguments into a command for the GPU and puts it into a queue. Here the call
#    returns.
# 7. **Run.** The GPU takes the command when its turn has come, and hands blocks to its multiprocessors.
#
# ## What a kernel is given of an array
#
# Station 4 can be done by hand. Code that Numba compiled takes an array of n dimensions as 5 + 2 n *words*, integers
# of 8 bytes. The first two are 0 on a GPU; on the CPU they would say who owns the memory. Then come the number of
# elements, the bytes of an element, and the address of the first. The extents and the strides follow, one of each for
# every dimension. A *stride* is the distance in bytes from an element to the next along a dimension.


# %%
def words(x, address=0):
    """What a kernel is given of an array: 5 + 2 n integers of 64 bits, as bytes."""
    return struct.pack(f"={5 + 2 * x.ndim}q", 0, 0, x.size, x.dtype.itemsize, address, *x.shape, *x.strides)


def spell(name, x):
    """Print the words of an array, without its address, which is another one in each run."""
    _, _, size, itemsize, _, *rest = struct.unpack(f"={5 + 2 * x.ndim}q", words(x))
    print(f"{name:13}{len(words(x)) // 8} words: 0, 0, {size}, {itemsize}, its address, {', '.join(map(str, rest))}")


# %%
vector, matrix = np.zeros(1024, np.float32), np.zeros((3, 4), np.float32)
spell("vector", vector)
spell("matrix", matrix)

# %% [markdown]
# The matrix has 3 rows and 4 columns. From an element to the next row it is 16 bytes, the 4 elements of a row, and to
# the next column it is 4.
#
# **Predict, then run.** `matrix.T` is the transpose in NumPy, which copies no element. What are its last four words?

# %%
guess = None  # a list of four words

predict(guess, list(struct.unpack("=4q", words(matrix.T)[-32:])))

# %%
spell("matrix.T", matrix.T)
spell("vector[::2]", vector[::2])

# %% [markdown]
# The elements are not among the words. They stay where they are, and only their address is handed over. A transpose or
# every second element is the same memory with other words.
#
# The data type is missing, too. It is in the machine code, which was compiled for it. So station 3 has to find the
# right version, or the kernel would take the bytes for something else.
#
# On a GPU the arrays of this workbook have their words ready. The next cell compares them with ours.

# %%
there = device.to_device(matrix)
if hasattr(there, "words"):
    print("the same words:", there.words == words(there, there.pointer))
else:
    print(f"In the interpreter a kernel gets the array itself. Its words on a GPU: {len(words(there)) // 8}.")

# %% [markdown]
# ## A launch that is prepared
#
# Numba goes through all stations at each launch, mostly in Python. It asks each argument anew what it is. It makes an
# object for each number that is handed over, and lets a library in Python wrap these objects for the driver.
#
# A program mostly launches the same kernel with arguments of the same types. Little differs then: addresses, extents,
# and numbers. So the workbook puts a *prepared launch* before Numba's. The first launch with arguments of some types
# is Numba's own, with its checks and its compilation. After it a *plan* is kept for these types. A plan consists of
# the machine code, a *parameter buffer*, which is a piece of memory for the words of all arguments, and a list that
# tells the driver where in the buffer each word lies. A later launch finds the plan, writes the words into the
# buffer, and calls the driver.
#
# The cell below is a model of that, for one kernel. It finds or makes the plan and fills the buffer. It has no
# machine code, all addresses are 0, and it does not call the driver.

# %%
plans = {}


def launch(*arrays):
    """Find the plan for these types or make it, and write the words into its buffer. Returns whether it was found."""
    types = tuple((x.dtype.name, x.ndim) for x in arrays)
    found = types in plans
    if not found:
        sizes = [8 * (5 + 2 * x.ndim) for x in arrays]
        plans[types] = struct.Struct("=" + "".join(f"{size}s" for size in sizes)), bytearray(sum(sizes))
    layout, buffer = plans[types]
    layout.pack_into(buffer, 0, *[words(x) for x in arrays])
    return found


# %%
longer, wide = np.zeros(5000, np.float32), np.zeros(1024, np.float64)
five = [(vector, vector, vector), (vector, vector, vector), (longer, longer, longer), (wide, wide, wide)]
five.append((matrix, matrix))
for arrays in five:
    print("launch with", ", ".join(f"{x.dtype} {x.shape}" for x in arrays))

# %% [markdown]
# **Predict, then run.** These five are launched one after another. At how many of them is there no plan yet?

# %%
guess = None  # launches without a plan

found = [launch(*arrays) for arrays in five]
predict(guess, found.count(False), unit="launches")

# %%
for there, arrays in zip(found, five, strict=True):
    print(f"{'plan found' if there else 'first launch':14}", ", ".join(f"{x.dtype} {x.shape}" for x in arrays))
for types, (_, buffer) in plans.items():
    print(f"{len(buffer)} bytes for {types}")

# %% [markdown]
# A new length needs no new plan, since the length is one of the words. A new data type does, and so does another
# number of dimensions. The real plan also tells contiguous arrays from others, and one GPU from another.
#
# Not every launch can be prepared. NumPy arrays must first be copied to the GPU, kernels with `debug=True` look for
# errors afterwards, and some arguments are of types that the plan does not know. Those launches remain Numba's.
# [launcher.py](../pmpp/runtime/launcher.py) has all of it.
#
# ## Measured
#
# What is left of a launch's cost? The record has launches with one, two and three arrays of 1,024 elements. Beside
# them stand calls of PyTorch and of CuPy that do the same. A launch can also be given the arrays of these libraries:
# then their words have to be made at each launch, from what the library says of them. Blue is a prepared launch,
# orange is Numba's own, grey a library's call.

# %%
LOOK = {"Numba's own": palette.COLOURS[1], "a prepared launch": palette.COLOURS[0], "a CUDA graph": palette.COLOURS[2]}
sizes = list(dict.fromkeys(row["size"] for row in rows if row["room"] == "launch"))
bars = [row for row in rows if row["room"] == "launch" and "us" in row]
at = [place + sizes.index(row["size"]) for place, row in enumerate(bars)]  # a gap between the groups
whose = {"CuPy": ", CuPy's arrays", "PyTorch": ", PyTorch's arrays"}
labels = [row["who"] + whose.get(row["form"], "") for row in bars]
print(len(bars), "calls with", ", ".join(sizes))

# %%
figure, ax = chart(5.6)
ax.barh(at, [row["us"] for row in bars], color=[LOOK.get(row["who"], palette.GREY) for row in bars])
ax.set_yticks(at, labels)
ax.invert_yaxis()
ax.set(xlabel="host time of a call (us)", title="What a call costs the host, 1,024 elements")
ax.grid(visible=False, axis="y")
for size in sizes:
    first = min(place for place, row in zip(at, bars, strict=True) if row["size"] == size)
    ax.text(0.99, first, size, transform=ax.get_yaxis_transform(), ha="right", va="center", weight="bold")
foot(figure, source)
figure

# %% [markdown]
# Numba's own launch takes longer than the prepared one with the same arrays, those of the workbook. With one and with
# three arrays it takes a multiple, and the prepared one is in the range of a library's call. The libraries (grey)
# launch from C++ or Cython. Most of them also do something that our bare launch does not: they choose a kernel for
# the shapes and types that they are given. The nearest relative of our launch is `cupy.RawKernel`, a kernel in C that
# CuPy compiles and launches.
#
# Arrays of PyTorch or CuPy mostly make the same launch slower. Asking a tensor for its address, its shape and its
# strides takes its time, for each array and at each launch.
#
# Such times scatter. The host has other things to do as well, and its clock rate changes. Each bar is the median of
# many samples. If a group still falls out of line, as when two arrays cost more than three, nothing in a launch
# explains it: take it for a disturbance of the host during this run. Read from this figure what shows in more than
# one group, and nothing finer.
#
# No launch from Python comes near to zero. Some of the time is Python's own, and some is the driver's, which no
# program avoids as long as it launches kernels one by one.
#
# ## A call returns before the kernel ends
#
# Station 6 said that the call returns when the kernel is queued. A call that returns before its work is done is
# *asynchronous*. The record of chapter 4 shows it. For the largest vectors it has the time that the kernel takes on
# the GPU, and the time until the call returned.

# %%
entry = next(e for e in kept.design("vector_add") if e.kind == "rung" and e.call_ms)
print(f"{entry.workload}, {entry.contender}")
for what, ms in {"the call returns after": entry.call_ms, "the GPU works for": entry.median_ms}.items():
    print(f"{what:24}{ms * 1e3:7.0f} us: {entry.bytes / ms / 1e9:6.1f} TB/s, if that were the time of the kernel")
print(f"{'the bandwidth is':24}{ceilings.bandwidth / 1e12:18.1f} TB/s")

# %% [markdown]
# A clock around the call shows the first of these times, and with it a memory that is faster than this GPU has. **Such
# a clock measures the launch, not the kernel.** One needs a clock on the GPU, or the host must wait:
# `cuda.synchronize()` returns when all that is queued is done.
#
# The mistake works in the other direction, too. For the 1,024 elements of above, a clock around the call and a wait
# would again show hardly anything of the kernel. It would show a launch and a wait.
#
# ## A stream is a queue
#
# A *stream* is one such queue. Kernels of one stream run in the order of their launches, each after the one before
# has ended. So a kernel can read what the last one wrote, and the host does not have to wait. A launch that names no
# stream goes to the default one. Kernels in two streams that the program has made have no order between them, unless
# one is asked for. The default stream is special: ordinary streams wait for it, and it waits for them.
#
# While the GPU works, the host can already launch the next kernels. How long does a whole chain take then? A model
# needs only two numbers: the host's time for a launch, and the GPU's time for a kernel.


# %%
def timeline(host, kernel, launches):
    """When each launch begins on the host, when each kernel on the GPU, and when all is done."""
    on_host, on_gpu, free = [host * k for k in range(launches)], [], 0
    for begin in on_host:
        on_gpu.append(max(begin + host, free))  # not before it is queued, nor before the one before has ended
        free = on_gpu[-1] + kernel
    return on_host, on_gpu, free


# %% [markdown]
# **Predict, then run.** A launch keeps the host busy for 8 us, and there are 20 of them. When is all done if a kernel
# takes 2 us? And if it takes 12 us? (These are round numbers for the model. They are not measured.)

# %%
guess = {"kernels of 2 us": None, "kernels of 12 us": None}  # us until all is done

predict(guess, {f"kernels of {kernel} us": timeline(8, kernel, 20)[2] for kernel in (2, 12)}, unit="us")

# %%
for kernel in (2, 12):
    on_host, on_gpu, end = timeline(8, kernel, 20)
    print(f"kernels of {kernel:2} us: done after {end} us, in which the GPU works for {20 * kernel / end:.0%}")

# %%
figure, axes = plt.subplots(2, 1, figsize=(7.8, 3.6), sharex=True, layout="constrained")
titles = "short kernels: the GPU waits for the host (launch-bound)", "long kernels: the host is ahead of the GPU"
for ax, kernel, title in zip(axes, (2, 12), titles, strict=True):
    on_host, on_gpu, _ = timeline(8, kernel, 6)
    ax.broken_barh([(begin, 8) for begin in on_host], (0.6, 0.8), color=palette.EDGE, edgecolor="white")
    ax.broken_barh([(begin, kernel) for begin in on_gpu], (-0.4, 0.8), color=palette.COLOURS[0], edgecolor="white")
    for k, (one, other) in enumerate(zip(on_host, on_gpu, strict=True), 1):
        ax.text(one + 4, 1, k, ha="center", va="center")
        ax.text(other + kernel / 2, 0, k, ha="center", va="center", color="white", fontsize=9)
    ax.set(yticks=[1, 0], yticklabels=["host", "GPU"], title=title)
    ax.grid(visible=False)
axes[1].set_xlabel("time (us); a model, not a measurement")
plt.show()

# %% [markdown]
# Equal numbers belong together: launch 3 on the host queues kernel 3. In the upper picture the GPU finishes each kernel
# before the next is queued, and then has nothing to do. What takes the time is the launching. Such a program is
# *launch-bound*: its time is the number of launches times the cost of one, and no change to a kernel shortens it.
#
# In the lower picture only the first launch can be seen in the total. All others happen while the GPU works. The queue
# hides them, and the time is that of the kernels.
#
# So the longer one of two times decides, as in chapter [20](20_memory_or_compute.ipynb). There the two were memory and
# arithmetic. The launch comes to these.
#
# ## A chain over sizes
#
# The record has this chain for real: launches of the sum above, one after another on one stream, for vectors of many
# lengths. The clock starts before the first launch and stops when the GPU has done the last. It has the chain in
# three ways: with Numba's own launch, with a prepared one, and as a *CUDA graph*, which the next section explains;
# leave that row and that curve aside until then.
#
# For short vectors the chain must be launch-bound. For long ones the memory decides. The two are equal where the bytes
# of one kernel take as long as one launch. Here is what a launch takes in the chain of the shortest vectors.

# %%
chain = [row for row in rows if row["room"] == "chain"]
shortest = min(row["n"] for row in chain)
each = {who: recorded_us("chain", who=who, n=shortest) for who in LOOK}
print(f"{chain[0]['launches']} launches a chain, of vectors of {shortest:,} elements")
for who, us in each.items():
    print(f"{who:18}{us:6.2f} us a launch")
print(f"{'a kernel, no work':18}{ceilings.empty_kernel * 1e6:6.2f} us on the GPU")
print(f"The memory of the GPU moves {ceilings.bandwidth / 1e12:.2f} TB a second.")

# %% [markdown]
# **Predict, then run.** At which length n do the bytes of a sum, 12 an element, take as long as a prepared launch?

# %%
guess = None  # elements

meet = {who: us * 1e-6 * ceilings.bandwidth / 12 for who, us in each.items()}
predict(guess, meet["a prepared launch"], unit="elements", within=0.15)

# %% [markdown]
# The figure has the chain for all lengths, and this meeting point as a dotted line. The grey curve is a sum by NumPy,
# which has no launch to pay. It is measured on the CPU of the computer that executes this notebook.

# %%
for who, n in meet.items():
    print(f"{who:18} as long as the bytes of {n / 1e6:6.2f} million elements")
lengths = np.array(sorted({row["n"] for row in chain}))


def by_numpy(n):
    """The time of a sum of two vectors of n elements by NumPy, in microseconds: the fastest of five tries."""
    a, b, c = np.ones((3, n), np.float32)
    turns = max(1, 2**18 // n)
    return min(timeit.repeat(lambda: np.add(a, b, out=c), number=turns, repeat=5)) / turns * 1e6


# %%
figure, ax = chart()
for (who, colour), marker in zip(LOOK.items(), "osD", strict=True):
    us = [recorded_us("chain", who=who, n=int(n)) for n in lengths]
    ax.loglog(lengths, us, marker=marker, color=colour, label=who)
ax.loglog(lengths, [by_numpy(int(n)) for n in lengths], "x-", color=palette.GREY, label="NumPy, this computer")
ax.loglog(lengths, 12 * lengths / ceilings.bandwidth * 1e6, "--", color=palette.INK, label="bytes / bandwidth")
ax.axvline(meet["a prepared launch"], color=LOOK["a prepared launch"], ls=":", lw=1)
ax.set_xticks(lengths, [f"$2^{{{int(n).bit_length() - 1}}}$" for n in lengths])
ax.yaxis.set_major_formatter("{x:g}")
ax.minorticks_off()
ax.set(xlabel="length n of the vectors (elements)", ylabel="time (us a launch or sum)", ylim=(0.1, 1e5))
ax.set_title("A chain of sums: flat where launches are the bound")
ax.legend(loc="upper left", ncols=2)
foot(figure, f"{source}. Dotted: a prepared launch takes as long as the bytes")
figure

# %% [markdown]
# A launch can cost more here than in the bars above. There the clock stopped when the last of many launches was
# queued. Here it stops when the GPU is done, after twenty.
#
# On the left the curves are flat but for noise: a vector of 1,024 elements takes about as long as one of many times
# that length. What separates the curves there is the way of launching. On the right they run together and rise with
# n, because the GPU has become the slower one and the queue hides the host. They stay above the dashed line, since at
# these lengths the plain kernel, with one element a thread, does not reach the bandwidth; chapter
# [4](04_vector_add.ipynb) has better ones. So the measured curve turns before the dotted line, which is that of the
# prepared launch.
#
# NumPy starts lower than any way of launching kernels one by one. Where its curve crosses theirs the work is long
# enough to be worth a launch. (What it costs to bring vectors to the GPU comes on top, if they are not there.)
#
# A costlier launch moves the meeting point to the right. With Numba's own launch, vectors of millions of elements
# still spend part of their time on launches. Between the meeting points of the three ways one and the same kernel is
# launch-bound or memory-bound, depending on how it is launched.
#
# ## CUDA graphs
#
# Of the three ways to launch the third is the cheapest. A *CUDA graph* is a list of kernels with all their arguments
# that the driver keeps. The host *captures* it once: a stream is told to write down what is launched on it instead of
# running it. Later the host *replays* the whole list with one call. Stations 1 to 5 are not repeated, and the GPU finds
# all commands ready.
#
# In a graph a kernel of the short chain takes about as long as one without any work: compare the lines that are printed
# before the last question. What is left is the GPU's own part of a launch, station 7. Nobody waits for the host any
# more.
#
# A small model shows what such a list holds. The tape below has kernels with their configuration and their arguments,
# and a replay launches them as they are.

# %%
x, y, out = (device.to_device(np.full(1024, value, np.float32)) for value in (1, 10, 0))
tape = [(scale_kernel[8, 128], (x, np.float32(2), out)), (add_kernel[8, 128], (y, out))]


def replay():
    """Launch all that is on the tape. Returns the first element of the result."""
    for configured, arguments in tape:
        configured(*arguments)
    return float(device.to_host(out)[0])


print("out[0] =", replay())

# %% [markdown]
# The tape computes 2 x + y. Next the array x gets other contents, all 100, and the tape is replayed. After that the
# *name* x is given another array, all 5,000, and the tape is replayed again.
#
# **Predict, then run.** What is `out[0]` after the first of these replays, and what after the second?

# %%
guess = {"other contents": None, "another array": None}  # out[0]

x.copy_to_device(np.full(1024, 100, np.float32))
first = replay()
x = device.to_device(np.full(1024, 5000, np.float32))
predict(guess, {"other contents": first, "another array": replay()}, exact=True)

# %%
print(f"after other contents: {first}; after another array: {replay()}")

# %% [markdown]
# New contents are seen. A new array is not, since the tape still has the old one. A CUDA graph does the same, but it
# keeps less: not the arrays, only their addresses. **The addresses are fixed, the contents are not.** New input is
# copied into the array that was there at the capture. Numbers such as the 2 are fixed as well.
#
# Some things may not happen during a capture.
#
# - The host may not read a result. Nothing runs during a capture, so there is no result yet. An `if` in Python that
#   depends on the contents of an array is therefore impossible.
# - The host may not wait. `cuda.synchronize()` would wait for kernels that are only being written down; the driver
#   reports an error.
#
# One thing may not happen as long as the graph is used: its arrays may not be freed. Their memory could be given to
# other arrays, and the next replay would write into these. `graphs.capture` therefore keeps what was allocated during
# the capture. Arrays that were there before, as x, y and out below, you must keep yourself.
#
# On a GPU the next cell does it with a real graph: it captures 20 launches, changes the contents of x, and replays.
# (`graphs.capture` first runs them once, so that nothing is compiled during the capture. `device.as_stream` makes
# CuPy's stream one that a launch here accepts.)

# %%
x, y, out = (device.to_device(np.full(1024, value, np.float32)) for value in (1, 10, 0))


def twenty(stream):
    """Queue twenty sums."""
    for _ in range(20):
        calls.three_kernel[8, 128, device.as_stream(stream)](x, y, out)


# %%
if device.on_gpu() and find_spec("cupy"):  # CuPy makes the graph
    captured = graphs.capture(twenty)
    x.copy_to_device(np.full(1024, 100, np.float32))
    cuda.synchronize()
    captured.replay()
    captured.synchronize()
    print("after a replay with other contents, out[0] =", device.to_host(out)[0])
else:
    print("No GPU or no CuPy here, so no graph: its recorded times are in the figure above.")

# %% [markdown]
# Graphs fit programs that do the same again and again with arrays of the same shape: a step of training, a network that
# answers requests. A new shape needs a new capture.
#
# ## What follows from it
#
# ### Keep arrays on the device
#
# The cheapest call is one whose arrays are there already. The record has calls of whole rungs at their smallest size,
# with the checks of their arguments, on arrays of four kinds. Ours are those of `device.to_device`.

# %%
FORMS = "device array", "CuPy", "PyTorch", "NumPy"
print(f"{'us a call, smallest size':34}{'ours':>8}{'CuPy':>8}{'PyTorch':>9}{'NumPy':>8}   the fastest library")
for room in ("vector_add", "softmax", "matmul"):
    mine = [row for row in rows if row["room"] == room and row["size"] == "tiny" and "us" in row]
    by_form = {row["form"]: row["us"] for row in mine if row["kind"] == "rung"}
    a, b, c, d = (by_form.get(form, np.nan) for form in FORMS)
    library = min((row for row in mine if row["kind"] == "library"), key=lambda row: row["us"])
    print(
        f"{room + ', ' + library['workload']:34}{a:8.1f}{b:8.1f}{c:9.1f}{d:8.1f}   {library['who']} {library['us']:.1f}"
    )

# %% [markdown]
# With arrays on the device our rungs still cost more than the fastest library: they check their arguments in Python
# before they launch.
#
# NumPy arrays cost many times what the others do. Each call allocates memory on the GPU and copies the arrays there.
# Moreover the host waits for these copies, so the queue hides none of it. For a call that does many operations with
# each byte, such as the product of large matrices, this may not matter. For a sum of vectors it matters at every
# length. In a loop, move the data once and keep it there.
#
# ### Fuse
#
# The three kernels below make max(a x + y, 0) step by step. Each is launched for itself.

# %%
show(scale_kernel)
show(add_kernel)
show(clip_kernel)

# %% [markdown]
# To *fuse* kernels is to write one that does the work of all. That helps on both sides of the meeting point: there
# are fewer launches, and what lies between two steps need not go to memory. (Count the bytes an element; the last
# kernel may have to store every element.)
#
# **Predict, then run.** By these bounds, how many times as long as the fused kernel do the three take at 1,024
# elements, and at 100 million?

# %%
guess = {"1,024": None, "100 million": None}  # times as long


def bounds(n):
    """The least times of the three kernels and of the fused one, in us: a launch or the bytes, whichever is longer."""
    return [max(prepared, nbytes * n / ceilings.bandwidth * 1e6) for nbytes in (8, 12, 8, 12)]


small, large = bounds(1024), bounds(100_000_000)
predict(guess, {"1,024": sum(small[:3]) / small[3], "100 million": sum(large[:3]) / large[3]}, unit="times as long")

# %%
for n in (1024, 100_000_000):
    *three, one = bounds(n)
    print(f"n = {n:11,}: {sum(three):8.1f} us in three, {one:7.1f} us in one, {sum(three) / one:.2f} times")

# %% [markdown]
# One launch stands in the place of three, and 12 bytes an element in the place of 8 + 12 + 8. `clip_kernel` stores
# only what was negative, so the second gain is at most that. These are bounds from two recorded numbers, the launch
# and the bandwidth. Chapter [46](46_pooling_and_activations.ipynb) measures a fused kernel, and chapter
# [50](50_softmax.ipynb) makes one kernel of three.
#
# Now write it. `check` runs your kernel on small awkward inputs, counts, and names the first mistake that it finds. It
# finds a float64 in arithmetic and in `max(value, 0.0)`, but not in a choice such as `value if value > 0.0 else 0.0`:
# write `np.float32(0)` there, too.

# %%
exercise("launches/fused")


# %%
@cuda.jit
def fused(x, y, a, out):
    pass  # your code


check("launches/fused", fused)

# %% [markdown]
# ### And further
#
# - **Batch.** One launch for a hundred small vectors costs what a launch for one does. Put small problems of a kind
#   into one array, and give each a row.
# - **Allocate outside of the loop.** A result that is allocated anew in each step costs the host time, before the
#   launch. Pass `out=`.
# - **Do not wait in between.** Each wait lets the queue run empty. Then the GPU has nothing to do until the next launch
#   has come through. Reading an element with `x[0]` or copying an array to the host is such a wait.
# - **Replay a graph** when the same list of launches comes again.
#
# ## On your GPU
#
# If kernels run on a GPU here, this cell puts a clock around a launch with much work, without and with a wait. Then it
# measures the bars of above.

# %%
if device.on_gpu():
    large = [device.to_device(np.ones(2**24, np.float32)) for _ in range(3)]
    for _ in range(2):  # the first time compiles
        cuda.synchronize()
        start = time.perf_counter()
        calls.three_kernel[2**17, 128](*large)
        returned = time.perf_counter()
        cuda.synchronize()
        done = time.perf_counter()
    print(f"the launch returned after {(returned - start) * 1e6:.1f} us")
    print(f"the GPU was done after    {(done - start) * 1e6:.1f} us")
    for row in calls.launches():
        print(f"{row['size']:10}{row['who']:18}{row['form']:14}{row['us']:7.1f} us")
else:
    print("No GPU here: a launch in the interpreter runs the kernel, and returns when it has ended.")

# %% [markdown]
# ## What to take along
#
# - A launch costs the host microseconds, whatever the kernel does. The GPU can move megabytes in that time.
# - On the way lie the types of the arguments, the machine code for them, and the words that describe each array. What
#   is the same at each launch can be prepared.
# - A launch is asynchronous. A clock around it measures the launch; wait for the GPU, or use its own clock.
# - A stream runs its kernels in order. Its queue hides the host while the kernels are longer than their launches.
# - A chain of short kernels is launch-bound. Fuse them, batch them, or capture them into a graph.
# - A graph keeps addresses. Contents may change between replays, arrays may not.
#
# To read on: the CUDA C++ programming guide has sections on *asynchronous concurrent execution* and on *CUDA graphs*.
#
# ## Exercises
#
# The first exercise stands in the section on fusing. The second one is a chain of one step, many times. As separate
# launches it would take one for each step, and all elements would go to memory and back in each of them.

# %%
exercise("launches/logistic")


# %%
@cuda.jit
def logistic(x, r, steps, out):
    pass  # your code


check("launches/logistic", logistic)

# %% [markdown]
# On paper: a program launches 1,000 kernels on one stream. A launch takes 8 us, a kernel 20 us. After each launch the
# program calls `cuda.synchronize()`. How long does it take, and how long without these calls? Would a graph help?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def fused_answer(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        value = a * x[i] + y[i]  # in a register: nothing goes to memory in between
        out[i] = max(value, np.float32(0))


assert check("launches/fused", fused_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def logistic_answer(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * value * (np.float32(1) - value)
        out[i] = value


assert check("launches/logistic", logistic_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
waiting, queued = 1000 * (8 + 20), timeline(8, 20, 1000)[2]
print(f"with waits {waiting:,} us, since nothing overlaps; without them {queued:,} us, a launch and all the kernels")
print("A graph helps little then: the queue hides the launches already.")

# %% [markdown]
# Go on with [chapter 24](24_convolution.ipynb): weighted sums of neighbours, on photographs.
