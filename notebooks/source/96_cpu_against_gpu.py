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
# # 96. CPU against GPU
#
# *The same training in NumPy, the time of a step over the batch size, where the GPU overtakes, setup and transfers,
# energy, and why the interpreter's time is nobody's. You need chapters 20, 22, 64 and 88; it takes 45 minutes. PMPP 4e:
# sections 1.1 and 16.2; 5e: sections 1.1 and 19.1. The code is
# [pmpp/nn/examples/numpy_network.py](../pmpp/nn/examples/numpy_network.py), and what was measured is made by
# [pmpp/nn/measure/cpu_gpu.py](../pmpp/nn/measure/cpu_gpu.py).*
#
# "A GPU is a hundred times faster" is said of whole trainings, seldom with the other side written with care. A fair
# comparison has the same network, data and accuracy, a CPU program that uses all cores, and everything that the GPU
# needs before it can begin.
#
# **The question of this chapter: when is a CPU the better choice for training a network, in time and in energy?** The
# CPU is yours: its times are measured here and now, also on a laptop. The GPU's come from a record.

# %%
import os
import time
import timeit

import matplotlib.pyplot as plt
import numpy as np

from pmpp import check, nn, predict
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record
from pmpp.lab.teach.exercise import exercise
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import choosing, numpy_network
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.examples.numpy_network import DIGITS, LENET, NumpyNetwork
from pmpp.nn.measure import cpu_gpu, recorded
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])
print(f"{os.cpu_count()} cores")

# %% [markdown]
# ## The other side, written with care
#
# A loop over pixels in Python would lose against anything. The twin of our network in NumPy does what chapter
# [64](64_im2col.ipynb) taught: it writes what each element of a result sees into a column, and a convolution becomes
# one product of matrices. NumPy hands that to a BLAS library, which uses all cores and all vector units.

# %%
show(numpy_network.convolution)

# %% [markdown]
# The activations lie as (channels, images, rows, columns). So one product serves the whole batch, and nothing is
# transposed. All else, such as ReLU, pooling and the columns themselves, NumPy does on one core. Therefore the twin can
# also share a batch out among threads, each of which does the whole step for its part. To start the threads and to wait
# for them takes time as well, so this pays for large batches only.
#
# It must be the same network. Both begin with one state and see one batch:

# %%
nn.manual_seed(0)
case = cpu_gpu.CASES["digits"]
net, (images, labels) = case.kind(), cpu_gpu.batches(case, 8, 1)[0]
loss = F.cross_entropy(net(Tensor(images)), Tensor(labels))
loss.backward()
mine, gradients = NumpyNetwork(DIGITS, net.state_dict()).gradients(images, labels)
print(f"loss: {loss.item():.6f} with our kernels, {mine:.6f} in NumPy")
for name, parameter in net.named_parameters():
    exact = parameter.grad.numpy()
    print(f"{name:14} gradients differ by at most {abs(gradients[name] - exact).max() / abs(exact).max():.1e}")

# %% [markdown]
# ## Your own CPU
#
# How fast could it be? LeNet-5 on images of 28 x 28 has a known number of operations and bytes in a step (chapter
# [97](97_choosing_a_gpu.ipynb) shows how they are counted). Two ceilings of this CPU are measured as in chapter
# [20](20_memory_or_compute.ipynb): a copy of a large array, and a product of matrices.


# %%
def seconds(call, repeat=3):
    """The fastest of some calls on this computer's CPU."""
    return min(timeit.repeat(call, number=1, repeat=repeat))


rng = np.random.default_rng(96)
source, square = np.ones(2**24, np.float32), rng.standard_normal((1024, 1024), dtype=np.float32)
target, product = np.zeros_like(source), np.empty_like(square)
bandwidth = 2 * source.nbytes / seconds(lambda: np.copyto(target, source))
arithmetic = 2 * 1024**3 / seconds(lambda: np.matmul(square, square, out=product))
mine = choosing.Gpu("this CPU", "desktop", (0, 0), arithmetic, bandwidth, 0, 0)
lenet = LeNet()
size = choosing.count(lenet)
print(f"this CPU: a copy {bandwidth / 1e9:.1f} GB/s, a product of matrices {arithmetic / 1e9:.0f} GFLOP/s")

# %% [markdown]
# **Predict, then run.** A step of LeNet-5 with one image takes some time on your CPU, in NumPy. How many times as long
# does a step with 64 images take?

# %%
guess = None  # times as long

sizes, steps = (1, 4, 16, 64, 256), {}
twin = NumpyNetwork(LENET, lenet.state_dict())
for n in sizes:
    batch = cpu_gpu.batches(cpu_gpu.CASES["LeNet-5"], n, 1)[0]
    twin.step(*batch)
    steps[n] = seconds(lambda batch=batch: twin.step(*batch), repeat=9)
predict(guess, steps[64] / steps[1], unit="times as long", within=0.5)

# %%
for n in sizes:
    least = choosing.step(choosing.operations(lenet, (n, 1, 28, 28)), size, mine).seconds
    print(f"batch {n:3}: {steps[n] * 1e3:8.2f} ms, {steps[n] / n * 1e6:7.0f} us an image; "
          f"at the two ceilings {least * 1e3:7.2f} ms")  # fmt: skip

# %% [markdown]
# A single image has its price on a CPU, too: each of the sixty calls into NumPy costs some microseconds, whatever its
# size. For large batches the time grows with the batch, and stays above the two ceilings. The columns of im2col are
# bytes that the definition does not know, and most of NumPy uses one core.
#
# These times are of a computer that may have had other work. The threads of the BLAS library share out even a small
# product and wait for each other. If one of them has no core at that moment, microseconds become a tenth of a second:
# then a small batch takes longer than a larger one, and your prediction is compared with a wrong number. Run the cells
# again when the computer is idle.
#
# ## Why the interpreter's time is no CPU time
#
# Without a GPU our kernels run in the workbook's interpreter. It takes time on a CPU, and it is tempting to compare.


# %%
def our_step():
    """A step of the small network for digits, with our kernels, wherever they run."""
    loss = F.cross_entropy(net(Tensor(images)), Tensor(labels))
    loss.backward()
    return loss.item()


small = NumpyNetwork(DIGITS, net.state_dict())
ours, theirs = seconds(our_step), seconds(lambda: small.gradients(images, labels), repeat=20)
where = "on the GPU" if device.on_gpu() else "in the interpreter"
print(f"8 digits forward and backward: our kernels {where} {ours * 1e3:.1f} ms, NumPy {theirs * 1e3:.2f} ms")

# %% [markdown]
# The interpreter carries out every statement of every *thread*, for thousands of threads, and keeps account of memory,
# warps and barriers. It was made to explain a kernel and to find its errors. The same network in NumPy, on the same
# CPU, is hundreds or thousands of times as fast. So the interpreter's time says nothing about a CPU, and nothing about
# a GPU.
#
# ## The record
#
# On a GPU, `python -m pmpp.nn.measure.cpu_gpu` trains two networks on the same digits: LeNet-5 on images that are
# enlarged to 28 x 28, and the small network for 8 x 8. Each runner begins with one state, and sees the same batches in
# the same order. A runner whose first losses are not those of NumPy is not timed. A step begins with a batch in the
# host's memory, so that the copy to the GPU is in it.

# %%
try:
    kept = recorded("cpu_gpu")
    run = kept["about"]["run"]
    print(f"{kept['about']['gpu']['name']}, {run['cpu']}, {run['date'][:10]}; {kept['data']}")
except record.RecordError as error:
    kept = {"networks": {}}
    print(error)
for name, found in kept["networks"].items():
    print(f"{name}: {found['parameters']:,} parameters")
    for runner, one in found["trainings"].items():
        print(f"    {runner:29}{one['accuracy']:6.1%} of the held-out digits, first losses differ "
              f"by {found['differs'][runner]:.0e}")  # fmt: skip
    for runner, why in found["faults"].items():
        print(f"    {runner:29}{why}")

# %% [markdown]
# The accuracy comes first. If it differed by more than chance, the times below would compare different things. With 360
# held-out digits one digit is 0.3 points, and rounding alone leads two runs to networks that differ in some of them.
#
# ## Where the GPU overtakes
#
# Now the knob: the batch size. Called launch by launch, a GPU takes about as long for one image as for a hundred. It
# waits for launches, and most of its multiprocessors are idle. The time of plain NumPy grows as soon as a batch has
# more than a few images.


# %%
def steps_figure(name, own):
    """The time of a step over the batch size: what was recorded, and this computer's NumPy."""
    figure, ax = chart(5)
    for runner, ms in kept["networks"].get(name, {}).get("ms", {}).items():
        batches = sorted(ms, key=int)
        form = "o-" if runner.startswith("CPU") else "s--"
        ax.loglog([int(n) for n in batches], [ms[n] for n in batches], form, markersize=4, label=runner)
    ax.loglog([*own], [taken * 1e3 for taken in own.values()], "k:", label="NumPy on this computer, now")
    ax.set(xlabel="images in a batch", ylabel=f"a step of {name} (ms)")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    foot(figure, f"Recorded on {kept['about']['gpu']['name']}" if "about" in kept else "No GPU has been measured yet")
    return figure


# %%
steps_figure("LeNet-5", steps)

# %%
own = {}
for n in sizes:
    batch = cpu_gpu.batches(case, n, 1)[0]
    own[n] = seconds(lambda batch=batch: small.step(*batch), repeat=9)
steps_figure("digits", own)

# %% [markdown]
# Solid lines are the CPU's, broken ones the GPU's. The dotted line is your own computer: a peak in it comes from other
# work on it. On the left NumPy with a thread a core is slower than plain NumPy, and at the right end it is faster.
#
# Where a broken line falls below all solid ones, the GPU has overtaken. Measurements have outliers, so one crossing is
# not enough: the GPU must be faster at all larger sizes as well. This is your first exercise.

# %%
exercise("choosing/crossover")


# %%
def crossover(sizes, cpu, gpu):
    pass  # your code


check("choosing/crossover", crossover)


# %%
def overtaken(found, runner):
    """From which batch size on a runner is faster than the best of the CPU's, of the sizes that all have."""
    ms = found["ms"]
    cpus = [name for name in ms if name.startswith("CPU")]
    common = sorted(set.intersection(*(set(ms[name]) for name in [*cpus, runner])), key=int)
    best = np.array([min(ms[name][n] for name in cpus) for n in common])
    mine = np.array([ms[runner][n] for n in common])
    last = np.flatnonzero(mine >= best)
    start = last[-1] + 1 if last.size else 0
    return common[start] if start < len(common) else "none of these"


for name, found in kept["networks"].items():
    for runner in found["ms"]:
        if runner.startswith("GPU"):
            print(f"{name:8} {runner:22} faster than the best of the CPU from batch {overtaken(found, runner)} on")
if not kept["networks"]:
    print("No GPU has been measured yet.")

# %% [markdown]
# Called launch by launch, a step on the GPU has a least time: that of its launches. A CPU needs less than that for a
# few images of the small network, so there the GPU wins only with a batch that is large enough. LeNet has more
# arithmetic, so a CPU takes longer for the same batch, and the GPU overtakes at the same size or at a smaller one. As a
# CUDA graph a step wins with one image or with a few, because the host's time for the launches is gone (chapter
# [22](22_launches.ipynb)). The crossings are those of the CPU in the record. Against the dotted line, your own
# computer, they lie elsewhere.
#
# ## What comes before the first step
#
# A GPU program loads a driver, makes a context, compiles kernels and records its graph. A CPU has begun meanwhile. And
# each batch has to be copied.

# %%
for name, found in kept["networks"].items():
    print(f"{name}, {kept['training']['epochs']} epochs, batch {kept['training']['batch']}; "
          f"the context took {kept['context seconds']:.2f} s")  # fmt: skip
    for runner, one in found["trainings"].items():
        print(
            f"    {runner:29} until the first step {one['setup']:7.2f} s, {one['steps']} steps {one['seconds']:7.3f} s"
        )
    copies = ", ".join(f"{n}: {ms:.3f}" for n, ms in sorted(found["transfer ms"].items(), key=lambda kv: int(kv[0])))
    print(f"    the copy of a batch alone, ms: {copies}")
if not kept["networks"]:
    print("No GPU has been measured yet.")

# %% [markdown]
# A kernel is compiled when a process needs it for the first time, so only the first runner to need it pays. The setups
# of "GPU, ours" are such compilations: the longest is that of LeNet-5, and the second network has shapes that need some
# more kernels. As a graph both found their kernels compiled. In the same way the first runner with PyTorch pays for its
# import. A program that you start has to pay for all that it uses. With our kernels that takes longer than these whole
# trainings on a CPU, so for a training of some seconds the setup decides. For one of hours it is nothing.
#
# The copy of a small batch takes about as long as that of a larger one: it is the time of the call. In a step of our
# graph with a small batch the copy is most of the time. Times of calls differ from one measurement to the next. So the
# copy alone can come out longer than a step that has a copy in it.

# %%
exercise("choosing/break_even")


# %%
def break_even(setup, cpu, gpu):
    pass  # your code


check("choosing/break_even", break_even)

# %% [markdown]
# ## Energy
#
# A GPU can take hundreds of watts, so being faster is not enough. What counts is watts times seconds. The drivers count
# joules themselves: NVML for the whole board of the GPU, RAPL for the chip of the CPU. The latter is often not there:
# a virtual machine has none, and on a real one only the administrator may read it.

# %%
for meter, words in kept.get("energy", {"cpu": cpu_gpu.rapl()[1]}).items():
    print(f"{meter} energy: {words}")
if "idle" in kept:
    idle = kept["idle"]
    print("idle:", ", ".join(f"{m} {idle[m] / idle['seconds']:.0f} W" for m in ("gpu", "cpu") if m in idle))
for name, found in kept["networks"].items():
    for runner, sizes_of in found["energy"].items():
        for n, one in sizes_of.items():
            meters = [meter for meter in ("gpu", "cpu") if meter in one]
            each = ", ".join(
                f"{one[m] / one['seconds']:4.0f} W {one[m] / one['steps'] / int(n) * 1e6:7.1f} uJ" for m in meters
            )
            print(f"{name:8} {runner:29} batch {n:>4}, {' and '.join(meters)}, an image: {each}")

# %% [markdown]
# In the rows of the CPU the meter is the GPU's as well. It has nothing to do there, and still takes about half as many
# watts as in the busiest rows: a network as small as this leaves most of it idle. Watts differ by a factor of two or
# so, and the times of two ways mostly by more. Then the faster way costs less energy on this board, whichever it is.
#
# Note what the meters miss. While the GPU trains, the host waits at full speed. Memory, fans and the loss of the power
# supply are in neither. If only the GPU's energy is known, there is still an answer: divide the GPU's joules for a step
# by the CPU's seconds for it. A CPU that takes fewer watts than that needs less energy.

# %%
for name, found in kept["networks"].items():
    for n in kept["networks"][name]["energy"].get("GPU, ours, graph", {}):
        one = found["energy"]["GPU, ours, graph"][n]
        cpu = min(ms[n] for runner, ms in found["ms"].items() if runner.startswith("CPU") and n in ms)
        watts = one["gpu"] / one["steps"] / (cpu / 1e3) if "gpu" in one else float("nan")
        print(f"{name:8} batch {n:>4}: the CPU needs less energy if it takes less than {watts:.1f} W")
if not kept["networks"]:
    print("No GPU has been measured yet.")

# %%
exercise("choosing/joules")


# %%
def joules(readings, full):
    pass  # your code


check("choosing/joules", joules)

# %% [markdown]
# Can the meter of your own computer be read? This trains for a quarter of a second, and asks.

# %%
read, words = cpu_gpu.rapl()
before, began = read() if read else 0.0, time.perf_counter()
while time.perf_counter() < began + 0.25:
    small.step(images, labels)
took = time.perf_counter() - began
print(f"{(read() - before) / took:.1f} W while NumPy trained; {words}" if read else words)

# %% [markdown]
# ## What to take along
#
# - Compare the same network, from the same state, to the same accuracy, with everything that has to happen.
# - Write the other side with care: products of matrices, all cores. Most of a "hundred times" is a slow other side.
# - A GPU that is called launch by launch can lose small batches to a CPU: its time hardly falls below that of its
#   launches. Record the step as a graph.
# - Setup and transfers are part of the time. They decide about short trainings.
# - Energy is power times time. The faster one needs less as soon as its advantage exceeds the quotient of the watts.
# - An interpreter's time is the time of an interpreter.
#
# ## Exercises
#
# All three stand in the text above. On paper: a GPU takes 300 W and a CPU 100 W, and a step takes the CPU 4 ms. How
# long may the GPU's step take at most, if it shall need less energy and its host 50 W meanwhile?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
def crossover_answer(sizes, cpu, gpu):
    first = 0
    for i in range(len(sizes) - 1, -1, -1):  # from the largest down, while the GPU is faster
        if not gpu[i] < cpu[i]:
            break
        first = int(sizes[i])
    return first


assert check("choosing/crossover", crossover_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def break_even_answer(setup, cpu, gpu):
    behind = setup
    if behind <= 0:
        return 0
    for i in range(len(cpu)):
        behind -= cpu[i] - gpu[i]
        if behind <= 0:
            return i + 1
    return -1


assert check("choosing/break_even", break_even_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
def joules_answer(readings, full):
    return float((np.diff(readings) % full).sum()) / 1e6  # right on both sides of the turn


assert check("choosing/joules", joules_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
print(f"4 ms x 100 W = 0.4 J; at 300 W + 50 W that lasts {4 * 100 / (300 + 50):.2f} ms")

# %% [markdown]
# Go on with [chapter 97](97_choosing_a_gpu.ipynb): if a GPU, then which?
