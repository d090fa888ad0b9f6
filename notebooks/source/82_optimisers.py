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
# # 82. Optimisers
#
# *Momentum, Adam and AdamW, fusing, the roofline of a step, a table of addresses, one launch for all tensors, norms in
# a fixed order, clipping without the host. You need chapters 4, 20 and 30; it takes 50 minutes. PMPP 4e: chapters 6
# and 10; 5e: chapters 6 and 10. The code is [pmpp/kernels/optimiser/adam.py](../pmpp/kernels/optimiser/adam.py),
# [pmpp/kernels/optimiser/sgd.py](../pmpp/kernels/optimiser/sgd.py) and
# [pmpp/kernels/optimiser/gradient_norm.py](../pmpp/kernels/optimiser/gradient_norm.py).*
#
# The gradients are known. What is left of a training step is to move each parameter a little. It is a handful of
# operations for a number, the same for all of them, and no element needs its neighbour. What could be slow about that?
#
# **The questions of this chapter: what does a step cost at least? And how does one kernel reach a hundred tensors that
# lie anywhere in memory?**

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.kernels import optimiser, random
from pmpp.kernels.optimiser import adam, gradient_norm
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Three ways downhill
#
# *Gradient descent* goes a step against the gradient $g$. With *momentum* it goes against a running sum of gradients: a
# ball that rolls. *Adam* keeps two running means, of $g$ and of $g^2$, and goes by
#
# $$m \leftarrow \beta_1 m + (1-\beta_1)\,g,\qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2,\qquad
# p \leftarrow p - \eta\,\frac{m/(1-\beta_1^t)}{\sqrt{v/(1-\beta_2^t)}+\varepsilon}.$$
#
# Both means begin with 0, which makes them too small at first. In step $t$ the factors $1-\beta^t$ make up for it. The
# quotient is about 1 in size, whatever the gradient's is, so a parameter with small gradients moves as fast as others.
# We let all three go down a narrow valley, $f(x, y) = x^2/2 + 10\,y^2$.


# %%
def path(move, steps=40):
    """Where an optimiser goes from (-4, 1.2). ``move(parameters, gradients, step)`` changes them in place."""
    at = device.to_device(np.float32([-4, 1.2]))
    seen = [at.copy_to_host()]
    for step in range(1, steps + 1):
        move([at], [device.to_device(seen[-1] * np.float32([1, 20]))], step)
        seen.append(at.copy_to_host())
    return np.array(seen)


total, mean, square = ([device.to_device(np.zeros(2, np.float32))] for _ in range(3))
paths = {
    "plain": path(lambda p, g, step: optimiser.sgd_(p, g, lr=0.08)),
    "momentum": path(lambda p, g, step: optimiser.sgd_(p, g, total, lr=0.03, momentum=0.8, step=step)),
    "Adam": path(lambda p, g, step: optimiser.adam_(p, g, mean, square, lr=0.3, step=step)),
}

# %%
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
x, y = np.meshgrid(np.linspace(-4.5, 1.5, 100), np.linspace(-1.5, 1.5, 100))
ax.contour(x, y, x**2 / 2 + 10 * y**2, levels=12, colors="lightgrey")
for (name, points), colour, marker in zip(paths.items(), palette.COLOURS, palette.MARKERS, strict=False):
    ax.plot(*points.T, color=colour, marker=marker, markersize=3, linewidth=1, label=name)
ax.set(xlabel="x", ylabel="y")
ax.legend()
None

# %% [markdown]
# Plain descent jumps from side to side, since it cannot take a longer step along the valley without leaving it.
# Momentum overshoots and comes back, and so does Adam, which begins with equal steps in both directions: it measures
# each by the gradients that it has seen there.
#
# *Weight decay* pulls parameters towards 0. Added to the gradient, it goes into Adam's means, and is divided like all
# else. AdamW takes it from the parameter itself: it is *decoupled*.
#
# ## The bound
#
# A step of Adam reads four numbers of each parameter, and writes three.

# %%
n = 10**8
cost, ceilings = adam.cost(n), roofline.ceilings("vector_add")
print(f"{cost.bytes / n:.0f} bytes and {cost.flops / n:.0f} FLOP a parameter: {cost.intensity:.2f} FLOP per byte")
print(f"{cost.bytes / ceilings.bandwidth * 1e6:.0f} us for {n:,} parameters ({ceilings.source})")

# %% [markdown]
# Half a FLOP for each byte: on the roofline of any GPU this lies far down on the slope. Roots and quotients are free,
# and only bytes count. With momentum it would be 20 bytes, without 12.
#
# **Predict, then run.** A program applies the formulas of AdamW one after the other, as NumPy would, each with a
# kernel of its own that reads its operands and writes its result. There are eight. How many bytes a parameter do they
# move?

# %%
guess = None  # bytes

parts = [device.to_device(one) for one in np.ones((4, 4096), np.float32)]
decoupled = 1e-3, (0.9, 0.999), 1e-8, 0.01, True
counts = {rung.name: lab.count(rung, *parts, *decoupled) for rung in adam.LADDER}


def bytes_of(name):
    """Bytes a parameter, in sectors."""
    found = counts[name].counters
    return 32 * (found["global_load_sectors"] + found["global_store_sectors"]) / 4096


predict(guess, bytes_of("per_operation"), unit="bytes")

# %% [markdown]
# ## The first rung, `per_operation`

# %%
show(adam.lerp_kernel)
show(adam.add_square_kernel)
show(adam.add_quotient_kernel)

# %% [markdown]
# The others are as short, and none of them moves a byte too many. But what one writes the next one reads, so the whole
# moves nearly three times as many bytes as it must.
#
# ## The second rung, `fused`
#
# One kernel does all operations, and what is in between stays in registers.

# %%
show(adam.advance)
show(adam.fused_kernel)

# %% [markdown]
# `h` holds the numbers of the step. What depends on the number of the step alone, $1-\beta^t$ and its root, is computed
# once on the host in float64, and not a hundred million times.

# %%
for name in ("per_operation", "fused"):
    print(f"{name:14}{len(counts[name].reports)} launches, {bytes_of(name):5.1f} bytes a parameter")

# %% [markdown]
# ## The third rung, `one_launch`
#
# That was one tensor. A network has many, and most are small: a bias, the weights of a normalisation. Each has its
# launch, and for a thousand parameters a launch is all that it costs.
#
# A kernel cannot be given a hundred arrays as arguments. But an array is little more than an address and a size, and
# these can be put into an array of their own, a *table* on the device. Where a kernel needs one of the arrays, it makes
# it of its address: `array_at(address, size, dtype)`, one of the workbook's own instructions beside `load128`. A second
# table says for each block which tensor it works on, and on which piece of 1,024 elements.

# %%
sizes = (3000, 10, 1024, 1)
arrays = [device.to_device(np.zeros(size, np.float32)) for size in sizes]
table, chunks = optimiser.tensors.tables(arrays)
print("size of each tensor:", table.copy_to_host()[:, -1])
print("tensor and piece of each block:", *map(tuple, chunks.copy_to_host().tolist()))

# %%
show(adam.one_launch_kernel)

# %% [markdown]
# A block first reads its row, then addresses, then data: three loads that wait for one another. Is that not slow? The
# other seven blocks of the multiprocessor have their data on the way meanwhile. The bandwidth needs some tens of
# kilobytes under way in each multiprocessor. Eight blocks of 256 threads have 32, if each thread asks for the 16 bytes
# of one parameter at a time.
#
# **Predict, then run.** A network has 62 tensors, as ResNet-18 does. `per_operation` has eight launches for each. How
# many times as many launches are that as `one_launch` makes?

# %%
guess = None  # times as many

tensors_of_the_network = 62
of_one_tensor = len(counts["per_operation"].reports)
of_all = len(counts["one_launch"].reports)
predict(guess, tensors_of_the_network * of_one_tensor // of_all, unit="times as many")

# %% [markdown]
# The tables are kept. As long as the tensors stay where they are, a step is one launch and no transfer. PyTorch does
# nearly the same: it passes the addresses of some thirty tensors as arguments of a kernel, and launches several.
#
# ## The last rung, `vectorised`

# %%
show(adam.vectorised_kernel)

# %%
for name in ("one_launch", "vectorised"):
    found = counts[name].counters
    stores = found["global_store_requests"]
    print(f"{name:12}{bytes_of(name):6.1f} bytes a parameter, tables included; {stores} stores of warps")

# %% [markdown]
# A view may begin anywhere, and a vector only at multiples of 16 bytes. So the table also says how many elements of a
# tensor can be moved as vectors: all but the last three at most, or none. (What the tables add to the bytes of a small
# tensor comes from the cache.)

# %% [markdown]
# On a GPU, 100 million parameters are measured as 100 tensors of a million each, so `fused` has 100 launches and
# `per_operation` 800.

# %%
plots.drawn(plots.ladder, "adam", family="AdamW")

# %%
plots.drawn(plots.ladder, "sgd", family="momentum")

# %% [markdown]
# Of AdamW `fused` gains more than the bytes alone explain, since it also has an eighth of the launches. One launch
# for all tensors then brings both optimisers past PyTorch, and vectors bring them nearly to the roof. The ladder of
# SGD begins at `fused`.
#
# ### Exercise: an optimiser of signs

# %%
exercise("optimiser/lion")


# %%
@cuda.jit
def lion(p, g, m, lr, beta, keep, decay):
    pass  # your code


check("optimiser/lion", lion)

# %% [markdown]
# ## In place, and in a graph
#
# The rungs return new arrays, as all rungs here do. Training wants the old ones changed: `adam_` gives the same kernel
# the same addresses to read and to write. That is safe, since a thread reads an element before it writes it, and no
# other thread touches it. For the same reason no two of the arrays may overlap.

# %%
w = device.to_device(np.float32([1, 2]))
try:
    optimiser.adam_([w], [w], [device.to_device(np.zeros(2, np.float32))], [w], step=1)
except ValueError as error:
    print(error)

# %% [markdown]
# A CUDA graph records launches with their arguments, and replays them. The number of the step is an argument:
# replayed, it would be step 1 for ever. So `step` may also be an array on the device. A kernel of one thread then
# counts it, and puts what depends on it where the others read it.

# %%
show(optimiser.in_place.count_kernel)

# %%
counter = device.to_device(np.array([0]))
state = [device.to_device(np.float32([one])) for one in (1, 0.5, 0, 0)]
for _ in range(3):
    optimiser.adam_(*state, lr=0.1, step=counter)  # the very same call each time
print("steps:", counter.copy_to_host(), " parameter:", state[0].copy_to_host())

# %% [markdown]
# ## The norm of all gradients
#
# Now and then gradients explode. *Clipping* scales all of them together if their norm $\sqrt{\sum g^2}$ is too large.
# So before the step there is a reduction over all tensors, as in [chapter 30](30_reduction.ipynb), with two more
# wishes.
#
# - *The same bits each time.* Blocks that add to one cell by atomics do so in any order, and sums of floats depend on
#   it.
# - *No waiting.* A program that fetches the norm to decide something has to wait until the GPU is done with all before.

# %%
show(gradient_norm.parts_kernel)
show(gradient_norm.tensors_kernel)

# %% [markdown]
# Each block writes what it found into a cell of its own. A second kernel has a block for each tensor, which adds up
# the cells of that tensor in an order that depends on sizes alone. A third does the same for all tensors. On the way
# they find what a person wants to know when a training goes wrong.

# %%
gradients = [random.normal((40, 30), seed=1), random.normal((30,), 0.0, 1e-6, seed=2), random.normal((5, 7), seed=3)]
gradients[2][2, 3] = np.inf
print("      norm       mean    largest  not finite")
for row in gradient_norm.vectorised(gradients).copy_to_host():
    print("{:10.4g} {:10.2g} {:10.4g} {:11.0f}".format(*row))

# %% [markdown]
# The second layer hardly learns, and in the third something has overflowed. The last row is for all together. Nothing
# of it costs bytes: what is read once for the norm is read for all of them.
#
# **Predict, then run.** The bound of the norm: how many times as long does a step of Adam take at least?

# %%
guess = None  # times as long

predict(guess, adam.cost(n).bytes / gradient_norm.cost(n).bytes, unit="times as long", within=0.05)

# %%
show(optimiser.in_place.clip_kernel)

# %% [markdown]
# The kernel that scales reads the norm where the other left it. If nothing is to be clipped, its blocks end at once,
# and not a byte of the gradients is moved.

# %%
g = [device.to_device(np.float32([3, 0])), device.to_device(np.float32([4]))]
norm = optimiser.clip_norm_(g, 1.0)
print("norm:", norm.copy_to_host(), " clipped:", *(one.copy_to_host() for one in g))

# %% [markdown]
# `a_block_a_tensor`, the first rung, has one block for each tensor and one launch after another: at any time a single
# multiprocessor works. The other two divide the tensors into parts as above, and `vectorised` loads four elements at
# once. NumPy was measured on the gradients of ResNet-18 alone: that is the one mark of the CPU.

# %%
plots.drawn(plots.ladder, "gradient_norm", family="norm")

# %%
plots.drawn(plots.cpu_gpu, "gradient_norm", family="norm", xlabel="gradients")

# %% [markdown]
# ### Exercise: clipping

# %%
exercise("optimiser/clip")


# %%
@cuda.jit
def clip(parts, most, g, out):
    pass  # your code


check("optimiser/clip", clip)

# %% [markdown]
# ## All rungs on the roofline

# %%
plots.drawn(plots.roofline, "adam")

# %% [markdown]
# All of them stand below the same point of the slope: the definition has the same FLOP and bytes for each. What tells
# them apart is how many bytes they really move, how many at once, and how many launches they need.
#
# ## What to take along
#
# 1. Count the bytes first. A step of Adam is 28 bytes a parameter, and its arithmetic is hidden behind them.
# 2. A formula that is a chain of array operations moves every intermediate result twice. Fuse it.
# 3. Many small arrays want one launch: put their addresses into a table.
# 4. What the host must not wait for stays on the device: a norm, the number of a step.
# 5. An order that depends on sizes alone gives the same bits each time.
#
# ## Exercises
#
# Two stand in the text above. One is left.
#
# **Without a check.** Parameters in float16 are half as many bytes, and updates of 1e-4 of a parameter's size are lost
# in them. So *mixed precision* keeps a copy of the parameters in float32, and the gradients are float16. How many
# bytes a parameter does a step of Adam then move, if it also writes the float16 parameters for the next forward pass?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def lion_answer(p, g, m, lr, beta, keep, decay):
    i = cuda.grid(1)
    if i < p.size:
        zero, one = np.float32(0), np.float32(1)
        towards = beta * m[i] + (one - beta) * g[i]
        sign = one if towards > zero else -one if towards < zero else zero
        p[i] -= lr * (sign + decay * p[i])
        m[i] = keep * m[i] + (one - keep) * g[i]


assert check("optimiser/lion", lion_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def clip_answer(parts, most, g, out):
    i = cuda.grid(1)
    if i < g.size:
        total = np.float32(0)
        for k in range(parts.size):
            total += parts[k]
        factor = most / math.sqrt(total)
        out[i] = g[i] * factor if factor < np.float32(1) else g[i]


assert check("optimiser/clip", clip_answer)

# %% [markdown]
# *Mixed precision.* Read: a gradient of 2 bytes, and parameter and moments, 12. Written: these 12 again, and a
# parameter of 2. That is 28 as before. What becomes cheaper are the passes forward and back.
#
# Go on with [chapter 84](84_gradients_of_normalisation.ipynb): the gradients of normalisation.
