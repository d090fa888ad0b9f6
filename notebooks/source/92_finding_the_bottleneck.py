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
# # 92. Finding the bottleneck
#
# *Timelines of host and GPU, idle time and who caused it, six slow trainings and their cures, profilers. You need
# chapters 20, 22 and 88; it takes 70 minutes. PMPP 4e: chapters 5, 6 and 20; 5e: chapters 5, 6 and 23. The code is
# [pmpp/nn/timeline.py](../pmpp/nn/timeline.py), and the measurements are those of
# [pmpp/nn/measure/bottleneck.py](../pmpp/nn/measure/bottleneck.py).*
#
# A network trains, and it is slower than it should be. The first idea of many programmers is to write a faster kernel.
# That helps only if the GPU is busy with this kernel. Often it is not busy at all: it waits for a batch, for a launch,
# or for the host that reads a number.
#
# **The question of this chapter: a training is slow. How do you find out what it waits for, and what does the cure
# gain?**

# %%
import collections
import importlib.util

import matplotlib.pyplot as plt
import numpy as np

from pmpp import lab, predict
from pmpp.kernels.bottleneck import gpu as bill
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.nn.examples import gelu
from pmpp.nn.examples.queues import CASES, Queue, imagined, unknown
from pmpp.nn.measure import bottleneck, profiled, recorded
from pmpp.nn.timeline import Recorder, Timeline, draw
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# A training step has two parts. The host prepares it: it loads a batch, launches kernels, and writes a log. The GPU
# carries the kernels out. Launches are queued, so both can work at the same time, the host on the next step and the
# GPU on this one (chapter [22](22_launches.ipynb)).
#
# If a step takes the host $h$ and the GPU $g$, then it takes at least $\max(h, g)$. If one waits for the other in each
# step, it takes $h + g$. Both numbers matter before any kernel does.
#
# `Queue` is a model of the two: it adds up times, and has no clock. Its GPU runs kernels in the order of their
# launches. Each begins when it was launched and the one before is done.

# %%
show(Queue.launch)

# %%
show(Queue.wait)

# %% [markdown]
# In this model a launch takes the host 8 us, and a wait 10 us longer than what it waits for. The cell below has steps
# of 20 kernels that take 20 us each. So the host needs 160 us for a step, and the GPU 400 us.
#
# **Predict, then run.** How long do ten such steps take, if the host never waits, and if it waits after each step?

# %%
guess = {"never": None, "each step": None}  # us


def ten(waits):
    queue = Queue()
    for _ in range(10):
        queue.launch(20.0, times=20)
        if waits:
            queue.wait()
    return max(queue.host, queue.gpu)


predict(guess, {"never": ten(False), "each step": ten(True)}, unit="us")

# %%
print(f"never {ten(False):,.0f} us, each step {ten(True):,.0f} us")

# %% [markdown]
# The wait costs less than a whole 160 us a step. The GPU begins with the first kernel as soon as that is launched, and
# the host launches the others meanwhile. What is lost is the time of one launch, and the time until the host has
# noticed that the GPU is done.
#
# With kernels of 2 us the host is the slower one. Then the GPU is idle most of the time, and no wait is to blame.
#
# ## A timeline
#
# To see which of the two waits, we write down what each does and when. `Recorder` does that. The program names what
# the host is doing by `recorder.span`. The recorder puts itself in the place of launches, copies and waits while it is
# in use. On a GPU it encloses each launch by two CUDA events, and asks afterwards when these were passed.

# %%
show(Recorder.span)

# %%
show(Recorder._measured)

# %% [markdown]
# The first event passes at once if the GPU has nothing to do, and the kernel is still on its way then. So a span on the
# GPU begins when the event has passed *and* the launch has returned.
#
# In the interpreter kernels run while they are launched. There a recorder has no times of a GPU, but it counts. Here
# is one step of a small network, with a batch of four digits of 8 x 8 pixels.

# %%
job, recorder = bottleneck.Job(batch=4, steps=2, size=8), Recorder()
batches = job.on_device()
job.step(*batches[0], bottleneck.silent)  # the first step makes what the optimiser keeps
with recorder:
    loss = job.step(*batches[1], recorder.span)
    value = loss.item()
print("spans of the host:", [span.name for span in recorder.timeline().row("host")])
print({name: recorder.counts[name] for name in ("launches", "copies out", "bytes out")})

# %% [markdown]
# One number was read by the host, the loss, which is 4 bytes. The host waits for it, and that is a span, too.
#
# The times of this chapter are recorded on a GPU, by a module that is run there. Where there is no record yet, the
# model of above takes its place, with numbers that we made up.

# %%
try:
    found = recorded("bottleneck")
    about = found["about"]
    source = f"Recorded on {about['gpu']['name']}, {about['run']['date'][:10]}"
except record.RecordError as missing:
    found = None
    source = "No record yet, so this is the model, with times that are made up"
    print(missing)
print(source)


# %%
def lines(case):
    """The timeline of the slow version, and that of the cured one."""
    if found is None or case not in found["cases"]:
        return imagined(case, faulty=True), imagined(case, faulty=False)
    versions = list(found["cases"][case]["versions"].values())
    return Timeline.from_json(versions[0]["timeline"]), Timeline.from_json(versions[-1]["timeline"])


def milliseconds(case):
    """The time of a step without a recorder, slow and cured. The model has no recorder that could disturb it."""
    if found is None or case not in found["cases"]:
        return tuple(line.length / line.steps / 1e3 for line in lines(case))
    versions = list(found["cases"][case]["versions"].values())
    return versions[0]["ms"], versions[-1]["ms"]


# %% [markdown]
# ## The procedure
#
# Ask the questions in this order. Each one rules out half of the causes.
#
# 1. **Is the GPU busy?** Its idle share is the time without a kernel over the whole time.
# 2. **If not: who keeps it waiting?** Look at what the host did during the gaps. It may have been *working* on
#    something else (loading, logging), it may have been *launching* and not have come through fast enough, or it may
#    have been *waiting* itself, for a copy or for a number that it wanted to read.
# 3. **If yes: with which kernels?** Add up the time by kernel and by layer, and take the largest. **What bounds it?**
#    Compare its bytes and its FLOP with the roofline, as in chapter [20](20_memory_or_compute.ipynb).
#
# Then cure that one thing, and begin again with the first question. The next bottleneck is another one.
#
# `interrogate` answers the first two questions of a timeline. The share that a span of the host is blamed for is the
# time in which the GPU was idle while the host was in this span; if spans are nested, the innermost counts.


# %%
def interrogate(line):
    """Print the idle share, and whom the gaps fall on."""
    each = line.counts["launches"] / line.steps
    print(f"GPU idle {line.idle_share:4.0%}    host waits {line.wait_share:4.0%}    launches a step {each:.0f}")
    for name, us in list(line.blame().items())[:3]:
        if us > 0.02 * line.length:
            print(f"    idle while the host was in {name!r}: {us / line.length:.0%}")


# %% [markdown]
# ## Six cases
#
# LeNet-5 learns digits of 28 x 28 pixels. Six programs train it, and each has one fault. Here is the list of causes.
# The cases come in another order, and are called A to F.

# %%
order = np.random.default_rng(7).permutation(len(CASES))
mystery = dict(zip("ABCDEF", (CASES[i] for i in order), strict=True))
print("choices:", ", ".join(CASES))
NAMES = "forward", "backward", "update", "graph", "load", "transfer", "read", "log"  # in the order of their colours


# %%
def picture(name, cured=False):
    """The timeline of a case; its title says no more than the case's letter."""
    slow, good = lines(mystery[name])
    both = {f"Case {name}": slow, f"Case {name}, cured": good}
    return draw(both if cured else {f"Case {name}": slow}, NAMES, source)


def gain(name):
    """Print what the cure has changed."""
    slow, good = lines(mystery[name])
    before, after = milliseconds(mystery[name])
    print(f"a step {before:.3f} ms > {after:.3f} ms: {before / after:.2f} times as fast")
    print(f"GPU idle {slow.idle_share:.0%} > {good.idle_share:.0%}, host waits {slow.wait_share:.0%}", end=" ")
    print(f"> {good.wait_share:.0%}, launches a step", end=" ")
    print(" > ".join(f"{line.counts['launches'] / line.steps:.0f}" for line in (slow, good)))


# %% [markdown]
# `picture` draws a case, and `gain` says what its cure has changed. `counted` lets the small network make two steps
# with each version of a case, and prints what the second one launches and copies.


# %%
def counted(case):
    """Print what the second step of each version launches, copies and waits for, with a small network."""
    for version in bottleneck.CASES[case].versions:
        if "graph" in version and device.on_gpu() and not importlib.util.find_spec("cupy"):
            continue  # CuPy makes the graphs
        recorder = Recorder()
        go, _ = bottleneck.CASES[case].begin(version, 3, bottleneck.silent, batch=2, size=8)
        go(0)
        with recorder:
            go(1)
        counts = recorder.counts
        words = f"{counts['launches']:3} launches, {counts['copies in']} copies in, {counts['copies out']} out"
        print(f"{version:30}{words}, {counts['bytes in']:5} bytes in, {counts['waits']} waits")


# %% [markdown]
# ### Case A
#
# Three steps. The rows are the host, the GPU, and copies if there are any. A kernel has the colour of the span of the
# host in which it was queued, and a grey line marks the beginning of a step. Hatched is a host that waits.

# %%
picture("A")

# %%
interrogate(lines(mystery["A"])[0])

# %% [markdown]
# The GPU works for a short time, and then it has nothing to do for a long one. The host does not wait meanwhile. The
# legend says what it does.
#
# **Predict, then run.** Which of the six causes is it in case A? Write it as in the list.

# %%
guess = None  # one of the choices

predict(guess, mystery["A"], choices=CASES)

# %% [markdown]
# **The cause.** The step is one CUDA graph, so that launching takes the host little time. Then NumPy computes the mean
# and the mean square of the batch on the host, for a log. The next graph is queued when the log is done.
#
# **How to see it:** one long gap a step, and the host *works* in it, in a span that is no part of the training.
#
# **The cure.** The batch lies on the GPU already. Two reductions compute the same there, as a part of the graph, and
# the host reads all results when the training is over. If such work must be done on the host, do it rarely, or in
# another thread.
#
# In the next picture the GPU is idle mostly at the beginning, until the first graph is there. A recorder makes each
# launch longer. So `gain` takes the time of a step from runs without a recorder.

# %%
picture("A", cured=True)

# %%
gain("A")

# %% [markdown]
# ### Case B

# %%
picture("B")

# %%
interrogate(lines(mystery["B"])[0])

# %% [markdown]
# Here the host has no time for anything but the training, and it never waits. Still the GPU is idle for most of the
# time: not in one gap, but in a great many small ones.
#
# **Predict, then run.** Which cause does case B have?

# %%
guess = None  # one of the choices

predict(guess, mystery["B"], choices=CASES)

# %% [markdown]
# **The cause.** The batch is small, so a kernel takes less time than its launch. And there are many of them. The
# optimiser of this program is a formula in Python, four operations for each parameter.
#
# **How to see it:** gaps between all kernels, the host in the midst of launching, many launches a step. Count these
# first. The interpreter can do so as well: here is a network with a weight and a bias, two parameters.
# (The copy is a table of addresses. The optimiser makes it anew when gradients lie elsewhere. On a GPU the pool may
# give the same addresses again, and then the table is kept.)

# %%
counted("launches")

# %% [markdown]
# **The cure** has two parts. `nn.optim.SGD` updates all parameters by one launch (chapter [82](82_optimisers.ipynb)).
# Then `nn.capture` records the whole step as one CUDA graph, which is queued by one call. The interpreter has no
# graphs, so it still counts the launches one by one there. On a GPU it is one for the graph, and one for the copy of
# the loss that is kept.

# %%
picture("B", cured=True)

# %%
gain("B")

# %% [markdown]
# Most of the idle share that is left is the recorder's: it makes so short a step much longer, as the table below
# *What profilers say* shows.
#
# A larger batch would have helped, too: the kernels become longer, and the number of launches stays. But it changes
# what is trained, and a graph does not.
#
# ### Case C

# %%
picture("C")

# %%
interrogate(lines(mystery["C"])[0])

# %% [markdown]
# This looks like case A at first: one gap a step, with a host that works. But the host is in another span during the
# gap.
#
# **Predict, then run.** Which of the six causes is it in case C?

# %%
guess = None  # one of the choices

predict(guess, mystery["C"], choices=CASES)

# %% [markdown]
# **The cause.** The span is called "load": Python decodes one image after the other when the batch is asked for. All
# the rest of the loader is in order. It copies from pinned memory and works ahead. That does not help, since the one
# thread that decodes is the one that launches.
#
# **How to see it:** the gap lies before the step's first kernel, and the host is in the loader. Train on one batch
# that is used again and again: if the step is fast then, it was the loading.
#
# **The cure.** Decode all images once, by one operation of NumPy on the whole array. Where the data does not fit into
# memory, several processes decode ahead, as the workers of PyTorch's loader do.

# %%
picture("C", cured=True)

# %%
gain("C")

# %% [markdown]
# The GPU is still idle for most of the time, and the host is still in the loader: it gathers each batch. That is the
# next bottleneck.
#
# ### Case D

# %%
picture("D")

# %%
interrogate(lines(mystery["D"])[0])

# %% [markdown]
# The GPU is busy for most of the time, and at the end of each step the host waits for it. The gaps lie where the
# forward pass ends and the backward pass begins. There the layers are small, and kernels are shorter than their
# launches with a recorder. If the gaps were gone, the step would still take the time that the GPU is busy. So we go on
# with the third question: with what is it busy?

# %%
slow_d, _ = lines(mystery["D"])
total = sum(slow_d.by("phase").values())
print({phase: f"{us / total:.0%}" for phase, us in slow_d.by("phase").items()})
for name, us in list(slow_d.by("name").items())[:5]:
    print(f"{us / total:5.0%} of the GPU's time in {name}")

# %% [markdown]
# **Predict, then run.** Which cause is left for case D?

# %%
guess = None  # one of the choices

predict(guess, mystery["D"], choices=CASES)

# %% [markdown]
# **The cause.** The activation is GELU, and it is written as its formula:
# `(0.5 * x) * (1.0 + tanh(0.798 * (x + 0.0447 * (x * x * x))))`. That is nine operations, each a kernel that reads
# whole arrays and writes one. The tape keeps many of these for the backward pass, which has its own kernels.

# %%
counted("memory-bound layers")

# %% [markdown]
# What bounds such a kernel? For each element it does an operation or two, and moves 8 or 12 bytes. The fused kernel
# does all of the operations for 8 bytes.
#
# **Predict, then run.** How many bytes do the nine forward kernels read and write for each element? (A product of two
# arrays reads both, `x * x` too.)

# %%
guess = None  # bytes an element

x = np.random.default_rng(0).standard_normal(4096, dtype=np.float32)
versions = {"nine kernels": lab.count(gelu.by_operations, x), "one kernel": lab.count(gelu.fused, x)}
moved = {}
for name, count in versions.items():
    sectors = count.counters["global_load_sectors"] + count.counters["global_store_sectors"]
    moved[name] = 32 * sectors / x.size
predict(guess, moved["nine kernels"], unit="bytes")

# %%
for name, count in versions.items():
    print(f"{name}: launches {len(count.reports)}, {moved[name]:.0f} bytes an element")

# %% [markdown]
# The figure shows both under the roof, at their arithmetic intensity: the FLOP for each byte. Left of the ridge memory
# is the bound, and right of it arithmetic. For comparison it has the first linear layer of the network, which is a
# product of matrices, for two sizes of a batch.

# %%
ceilings = roofline.ceilings()


def product(batch, k=400, n=120):
    """FLOP a byte of a linear layer: each matrix is moved once."""
    return 2 * batch * k * n / (4 * (batch * k + k * n + batch * n))


operations = 9  # an element, the hyperbolic tangent taken as one
places = {f"GELU in {name}": operations / each for name, each in moved.items()}
places |= {f"linear layer, batch {batch}": product(batch) for batch in (32, 4096)}

# %%
figure, ax = chart(3.8)
across, ridge = np.geomspace(0.05, 300, 200), ceilings.ridge
ax.loglog(across, [roofline.attainable(i, ceilings) / 1e12 for i in across], color=palette.INK)
ax.axvspan(0.05, ridge, color=palette.REGIONS["memory-bound"], zorder=0)
ax.axvspan(ridge, 300, color=palette.REGIONS["compute-bound"], zorder=0)
for (name, at), marker in zip(places.items(), palette.MARKERS, strict=False):
    ax.plot(at, roofline.attainable(at, ceilings) / 1e12, marker, markersize=8, label=name)
ax.set(xlabel="FLOP a byte", ylabel="TFLOP/s at most", xlim=(0.05, 300))
ax.set_title("Memory-bound left of the ridge, compute-bound right of it")
ax.legend(loc="lower right")
foot(figure, ceilings.source)
figure

# %% [markdown]
# Both versions of GELU are memory-bound, so their times are as their bytes. The linear layer with a large batch is
# compute-bound, and fusing would not gain much there. Nsight Compute measures where a kernel stands, see below.
#
# **The cure.** One kernel: `F.gelu(x, "tanh")`. It saves x alone for the backward pass.

# %%
picture("D", cured=True)

# %%
gain("D")

# %% [markdown]
# The GPU was busy before, and it is busy now, but a step takes less time. A busy GPU is no proof of a fast program.
#
# ### Case E

# %%
picture("E")

# %%
interrogate(lines(mystery["E"])[0])

# %% [markdown]
# There is a third row here. Look at when the copies take place, and at what the GPU and the host do meanwhile.
#
# **Predict, then run.** What is the cause in case E?

# %%
guess = None  # one of the choices

predict(guess, mystery["E"], choices=CASES)

# %% [markdown]
# **The cause.** Each batch is copied when its step begins, from ordinary memory, which the operating system may move:
# it is *pageable*. So the driver copies it piece by piece into memory of its own first. The host waits for that.
#
# **How to see it:** copies and kernels take turns, and the host waits during the copies.

# %%
counted("transfer")

# %% [markdown]
# Images, labels, and the table of addresses that we met in case B are three copies. The cure copies as many bytes.
# The table is pageable as well. It is the short copy at the end of an update, and the reason why the host waits there.
#
# **The cure** changes *when*, and *from where*. The batches lie in pinned memory, and the batch of the next
# step is copied on a stream of its own while this step computes. An event tells the computing stream when it has
# arrived. `DataLoader` does it like that.

# %%
show(bottleneck.pinned)

# %%
picture("E", cured=True)

# %%
gain("E")

# %% [markdown]
# The copies are shorter now, and the host no longer waits for them. It still waits for the table at the end of the
# update. So the GPU has nothing queued when the next step begins: that is the next thing to cure.
#
# The programs of this chapter avoid one trap: their kernels have a stream of their own (`own_stream`). Work on CUDA's
# default stream waits for all ordinary streams, and they wait for it. Copies on such a stream would not overlap
# kernels that are queued there.
#
# ### Case F

# %%
picture("F")

# %%
interrogate(lines(mystery["F"])[0])

# %% [markdown]
# One letter and one cause are left, so this is no longer a riddle.
#
# **Predict, then run.** How often does the host wait in each step of case F?

# %%
guess = None  # waits a step

slow_f, cured_f = lines(mystery["F"])
predict(guess, sum(span.name == "wait" for span in slow_f.row("host")) // slow_f.steps, unit="waits")

# %% [markdown]
# **The cause** is `loss.item()`, and once more for the norm of the gradients. Each reads four bytes. For the first the
# host must wait until all that is queued is done, and then the queue is empty. So the GPU waits for the next launch.
# The second finds nothing to wait for, but a copy to the host takes its time as well.
#
# **How to see it:** the host waits in each step, and the GPU is idle from the end of its graph until the host has
# launched the next one.

# %%
counted("synchronisation")

# %% [markdown]
# **The cure.** Keep the loss on the device (`loss.detach()`), and read what was kept after the epoch, or every hundred
# steps. If a number decides what comes next, as the norm does in clipping, let a kernel decide (chapter
# [82](82_optimisers.ipynb)).

# %%
picture("F", cured=True)

# %%
gain("F")

# %% [markdown]
# How much a wait costs depends on what there is to hide. Here a step is one graph, and without the waits its launch
# hides behind the graph before. Where the host is slower than the GPU anyway, as in case B, nothing is queued ahead,
# and a wait takes little away. The first measurement for this chapter had most of the programs launch kernel by
# kernel. That hid other faults: cure the largest first, and then look again.
#
# ## What profilers say
#
# Our recorder puts two events around each launch, which costs host time: it disturbs what it measures. CUPTI, the
# interface below NVIDIA's profilers, has the GPU write down when kernels begin and end. `torch.profiler` uses it, and
# it sees all kernels of the process, ours as well. The record has both, and the time of a step without any of them.

# %%
if found is not None:
    print(f"{'':54}{'without':>9}{'recorder':>9}{'busy: ours':>11}{'CUPTI':>8}   us a step")
    for case, row in found["cases"].items():
        for version, one in row["versions"].items():
            said = one["profiler"] or {}
            cupti = f"{said['busy us a step']:8.0f}" if "busy us a step" in said else f"{'-':>8}"
            ours = 1e3 * one["recorded ms"] * (1 - one["idle"])
            print(f"{case:21}{version:33}{1e3 * one['ms']:9.0f}{1e3 * one['recorded ms']:9.0f}{ours:11.0f}{cupti}")
else:
    print("On a GPU, python -m pmpp.nn.measure.bottleneck makes the record.")

# %% [markdown]
# Where our busy time is much longer than CUPTI's, there are many kernels that take a microsecond or two: an event has
# a cost on the GPU as well. With the recorder a step takes longer in nearly every row. Times of a host scatter from run
# to run, and where a row says otherwise, they scattered by more than the recorder costs. For a graph our recorder has
# one span from its beginning to its end, and does not see the gaps between its kernels.
#
# The rows of *launches* have the two parts of its cure. One update for all has half as many launches, but a step
# still takes far more than half the time. Most of the gain is the graph's. Here is what the host did in a step of each
# version, with the recorder, and what the five repetitions took without it.

# %%
for version in ("an update for each parameter", "one update for all") if found is not None else ():
    one, spent = found["cases"]["launches"]["versions"][version], collections.Counter()
    for who, name, begin, end, *_ in (span.split("|") for span in one["timeline"]["spans"]):
        spent[name] += (float(end) - float(begin)) / one["timeline"]["steps"] * (who == "host")
    parts = ", ".join(f"{name} {spent[name]:.0f}" for name in ("forward", "backward", "update", "wait"))
    print(f"{version:29} us: {parts}; without: {min(one['all ms']):.2f} to {max(one['all ms']):.2f} ms")

# %% [markdown]
# The update is much shorter, as it should be. A part of what is left is a wait: the table of addresses was copied anew
# in each step. The forward and backward passes launch the same kernels in both versions. Their times differ all the
# same, as times of a host do from run to run. The two passes are most of a step, and only the graph spares the host
# their launches.
#
# To use PyTorch's profiler yourself, put the steps into `with torch.profiler.profile() as p:`, and print
# `p.key_averages().table()`, or write a file for a viewer by `p.export_chrome_trace("trace.json")`. The next cell does
# it in a process of its own, since CUPTI stays in a process once it is loaded.

# %%
has_torch = importlib.util.find_spec("torch") is not None
print(f"PyTorch: {'yes' if has_torch else 'no'}; a GPU: {'yes' if device.on_gpu() else 'no'}")
if has_torch and device.on_gpu():
    said = profiled.apart("launches", "one update for all") or {}
    for name, times, us in said.get("most", []):
        print(f"{us:8.1f} us a step in {times:4.1f} launches of {name}")

# %% [markdown]
# **Nsight Systems** (`nsys profile python train.py`) draws such a timeline for a whole program, with the calls of the
# driver in it. It answers the first two questions. **Nsight Compute** (`ncu --clock-control none python train.py`)
# runs each kernel several times and reads its counters. It answers the third: how near a kernel comes to the
# bandwidth of the memory, and how near to the arithmetic units. With `--tools` the measurement asks both, where they
# are installed.

# %%
try:
    told = recorded("bottleneck_tools")
    for name, said in {"nsys": told["nsys"], "ncu": told["ncu"][0], "ncu, cured": told["ncu"][-1]}.items():
        print(f"{name}: {said['missing']}" if "missing" in said else f"{name}: {said['case']}, {said['version']}")
    for kernel, ns, dram, sm, *_ in told["ncu"][0].get("rows", [])[:12]:
        print(f"    {kernel:28}{ns / 1e3:8.1f} us, {dram:3.0f} % of the memory's peak, {sm:3.0f} % of the arithmetic's")
except record.RecordError:
    print("On a GPU, python -m pmpp.nn.measure.bottleneck --tools asks them.")

# %% [markdown]
# ## A knob: the batch
#
# The same program can have another bottleneck with other sizes. The loader of case C works on the CPU, image by image,
# so its time grows with the batch. The GPU's time hardly grows as long as the kernels are short. What does that
# do to the two versions of the program?
#
# The loader decodes with NumPy, on the CPU. So this figure also shows from when on a GPU waits for it.

# %%
if found is not None and "knob" in found:
    knob = {version: (row["batch"], row["ms"], row["idle"]) for version, row in found["knob"].items()}
else:
    knob, sizes = {}, np.array([16, 64, 256, 1024, 4096])
    for version, each in {"images decoded one by one": 4.0, "decoded beforehand": 0.1}.items():
        made = []
        for size in sizes:
            queue = Queue()
            for _ in range(3):
                queue.work("load", each * size)  # NumPy on the CPU
                queue.step(us=3.0 + 0.02 * size)
            made.append(queue.timeline(3))
        knob[version] = sizes, [line.length / 3e3 for line in made], [line.idle_share for line in made]

# %%
figure, ax = chart(3.8)
for (version, (sizes, ms, idle)), marker, above in zip(knob.items(), palette.MARKERS, (7, -16), strict=False):
    ax.loglog(sizes, 1e3 * np.array(ms) / np.array(sizes), f"{marker}-", label=version)
    for size, each, share in zip(sizes, ms, idle, strict=True):
        ax.annotate(
            f"{share:.0%}", (size, 1e3 * each / size), (0, above), textcoords="offset points", ha="center", fontsize=9
        )
ax.set(xlabel="batch", ylabel="us an image", title="Time an image; beside each mark the GPU's idle share")
ax.set_xticks(sizes, [str(size) for size in sizes])
ax.minorticks_off()
ax.margins(y=0.15)
ax.legend()
foot(figure, source)
figure

# %%
for version, (sizes, ms, idle) in knob.items():
    print(version)
    for size, each, share in zip(sizes, ms, idle, strict=True):
        print(f"    batch {size:4}: {each:6.2f} ms a step, GPU idle {share:.0%}")

# %% [markdown]
# With a small batch the lines are near each other: what the host does once a step, whatever the batch, is most of the
# time in both. The lower line shows it: there a larger batch takes hardly longer at first. To the right the lines part.
# The upper one ends at the time that the CPU takes to decode an image, whatever the GPU does. The lower one goes on
# falling, and with the largest batches the GPU's idle share falls, too. Only when that is near zero are the kernels the
# bound.
#
# ## From symptom to cause to cure
#
# The last column comes from the record, or from the model where there is none. The gains belong to these six programs.
# In yours they depend on how large the fault is.

# %%
SYMPTOMS = {
    "loading": ("gap before each step, host in the loader", "decode ahead, all at once, in workers"),
    "transfer": ("copies and kernels take turns, host waits", "pinned memory, a stream for copies, one ahead"),
    "launches": ("small gaps everywhere, host launches", "fuse, one update for all, a graph, larger batches"),
    "synchronisation": ("gap behind each wait of the host", "keep on the device, read rarely"),
    "memory-bound layers": ("GPU busy with elementwise kernels", "fuse chains into one kernel"),
    "host work": ("gap in each step, host does something else", "let a kernel do it, or do it rarely"),
}
print(f"{'cause':21}{'symptom':44}{'cure':51}{'idle':>11}{'gain':>7}")
for cause, (symptom, cure) in SYMPTOMS.items():
    slow, good = lines(cause)
    before, after = milliseconds(cause)
    idle = f"{slow.idle_share:.0%} > {good.idle_share:.0%}"
    print(f"{cause:21}{symptom:44}{cure:51}{idle:>11}{before / after:6.1f}x")
print(source)

# %% [markdown]
# ## What to take along
#
# - First ask whether the GPU is busy. If it is not, no faster kernel helps.
# - A gap has a culprit: what the host did meanwhile. It worked on something else, it launched, or it waited.
# - Host and GPU take the longer of their two times if nobody waits, and up to the sum of both if somebody does.
# - A busy GPU may be busy with needless bytes. The roofline says what a kernel could do at best.
# - Take the time of a step without a recorder or a profiler, and use these only to find the cause.
# - Cure one thing, measure, and begin again: the next bottleneck is another one.
#
# ## Exercises
#
# The first two are the heart of a profiler: from spans to the idle share, and from gaps to the culprit.

# %%
exercise("bottleneck/idle")


# %%
def idle(spans, length):
    pass  # your code


check("bottleneck/idle", idle)

# %%
exercise("bottleneck/blame")


# %%
def blame(gaps, host, kinds):
    pass  # your code


check("bottleneck/blame", blame)

# %% [markdown]
# Now two timelines without a letter. The names of their spans are those of a training step, and say nothing.

# %%
draw({"First": unknown(1)[0]}, NAMES, "Model")

# %% [markdown]
# **Predict, then run.** What slows the first one down?

# %%
guess = None  # one of the choices

predict(guess, unknown(1)[1], choices=CASES)

# %%
draw({"Second": unknown(2)[0]}, NAMES, "Model")

# %% [markdown]
# **Predict, then run.** And what the second one?

# %%
guess = None  # one of the choices

predict(guess, unknown(2)[1], choices=CASES)

# %% [markdown]
# The third exercise is a cure. The loop below has three faults of this chapter at once. Everything in it goes through
# a `Gpu` that keeps a bill: the losses, then how many launches and waits there were, and how many bytes were copied.

# %%
show(bill.slow)

# %%
show(bill.step_kernel)

# %%
rng = np.random.default_rng(0)
rows, start = rng.standard_normal((6, 8), dtype=np.float32), np.zeros(8, np.float32)
*losses, launches, waits, copied = bill.slow(rows, start, np.float32(0.5))
print(f"{launches:.0f} launches, {waits:.0f} waits, {copied:.0f} bytes copied for {len(losses)} steps")

# %%
exercise("bottleneck/cure")


# %%
def cure(batches, start, rate):
    pass  # your code


check("bottleneck/cure", cure)

# %% [markdown]
# On paper: a step has 50 kernels of 4 us, and a launch takes the host 6 us. How long is a step, and what share of it
# is the GPU idle? You make the kernels twice as fast. What changes? Then you make a graph of the step, with 1 us
# between kernels. What do the faster kernels gain now?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
def idle_answer(spans, length):
    free, total, longest = 0.0, 0.0, 0.0  # free: until when the GPU has been busy so far
    for first, last in sorted(map(tuple, spans)):
        gap = max(first - free, 0.0)
        total, longest, free = total + gap, max(longest, gap), max(free, last)
    return np.array([(total + length - free) / length, max(longest, length - free)])


assert check("bottleneck/idle", idle_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def blame_answer(gaps, host, kinds):
    found = np.zeros(4)
    for (start, end), kind in zip(host, kinds, strict=True):
        for first, last in gaps:
            found[kind] += max(0.0, min(end, last) - max(start, first))
    return found


assert check("bottleneck/blame", blame_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def cure_answer(batches, start, rate):
    gpu = bill.Gpu()
    w, rows, losses = gpu.to_device(start), gpu.to_device(batches), gpu.empty(len(batches))
    for k in range(len(batches)):
        gpu.launch(bill.step_kernel, rows, k, w, rate, losses)
    return gpu.bill(gpu.to_host(losses))


assert check("bottleneck/cure", cure_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
for kernel in (4, 2):
    launched, graph = 50 * max(6, kernel), 50 * (kernel + 1)
    print(f"kernels of {kernel} us: a step {launched} us, idle {1 - 50 * kernel / launched:.0%}; as a graph {graph} us")
print("Faster kernels gain nothing as long as launches are the bound, and much once they are not.")

# %% [markdown]
# Go on with [chapter 93](93_memory.ipynb): where the memory goes.
