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
# # 88. A tape from scratch
#
# *The chain rule, a tape in thirty lines, broadcasting and its gradient, strides and views, what is saved and what is
# freed, changes in place, checking gradients by differences, a room as a layer. You need chapters 4, 16 and 30; it
# takes 80 minutes. PMPP 4e: chapters 3, 6, 10 and 16; 5e: chapters 3, 6, 10 and 19. The code is
# [pmpp/nn/tape.py](../pmpp/nn/tape.py), with the rooms
# [pmpp/kernels/elementwise/ladder.py](../pmpp/kernels/elementwise/ladder.py) and
# [pmpp/kernels/reduction/axis_sum.py](../pmpp/kernels/reduction/axis_sum.py).*
#
# The last chapters derived the gradient of one layer after another by hand. A network has a hundred layers, and its
# author changes them every day. Nobody derives the gradient of the whole. The program that computes the loss is
# enough: a library can watch it run, and then walk back along what it did.
#
# **The questions of this chapter: how does such a library work, what must it remember, and what do its kernels have to
# do when arrays are transposed, sliced and repeated?**

# %%
import gc
import operator
import weakref

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, nn, predict
from pmpp.kernels import elementwise, softmax
from pmpp.kernels.reduction import axis_sum
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.nn import arithmetic, tape
from pmpp.nn.tape import Function, Tensor
from pmpp.runtime import device
from pmpp.runtime.views import strided

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The chain rule, once by hand
#
# One neuron with one input $x$ predicts $y = w x + b$. The target is $t$, and the loss is $L = (y - t)^2$. A program
# computes it in four steps, each a single operation:
#
# $$p = w\,x,\qquad y = p + b,\qquad e = y - t,\qquad L = e^2.$$
#
# Each step has a simple slope: $\partial L/\partial e = 2e$, $\partial e/\partial y = 1$, $\partial y/\partial p = 1$,
# $\partial p/\partial w = x$. The chain rule multiplies them. We begin at the loss, whose slope with respect to itself
# is 1, and go from the last step to the first. What we carry along is the *gradient*: the slope of the loss with
# respect to the number at which we stand.
#
# **Predict, then run.** Let $w = 2$, $x = 3$, $b = 1$, $t = 4$. What is $\partial L/\partial w$?

# %%
guess = None  # dL/dw

w, x, b, t = 2.0, 3.0, 1.0, 4.0
p = w * x
y = p + b
e = y - t
predict(guess, 2 * e * 1 * 1 * x, exact=True)

# %% [markdown]
# The error $e$ is 3, so $2e = 6$ arrives at $p$. There the slope is $x = 3$. The loss grows 18 times as fast as the
# weight, so training makes the weight smaller.
#
# Why from the end? We could as well go forwards, and carry the slope of every number with respect to $w$. But then the
# walk must be repeated for each parameter, and a network has millions. Backwards, one walk gives the slopes with
# respect to all of them. This is *reverse mode*, and in networks it is called *backpropagation*.
#
# ## A tape in thirty lines
#
# To walk back, we must know what was done. So a number remembers what it was made from, and the slope along each edge.
# A counter gives each its place in time.


# %%
class Number:
    """A number that knows what it was made from: pairs of a number and the slope with respect to it."""

    made = 0

    def __init__(self, value, made_from=()):
        self.value, self.made_from, self.grad = value, made_from, 0.0
        Number.made += 1
        self.time = Number.made


# %% [markdown]
# An operation computes its result, and writes its slopes down. This is all that anybody has to know about
# differentiation: the slopes of single operations. The record of what was done is called the *tape*.


# %%
def plus(a, b):
    return Number(a.value + b.value, [(a, 1.0), (b, 1.0)])


def times(a, b):
    return Number(a.value * b.value, [(a, b.value), (b, a.value)])


Number.__add__, Number.__mul__ = plus, times

# %% [markdown]
# The walk takes the latest number first. It hands its gradient to each number that it was made from, multiplied by the
# slope. A number that was used twice is given two gradients, and they are *added*: if both uses push the loss, the
# effects add up.


# %%
def walk(loss):
    """Gradients of everything that ``loss`` was made from, the latest first."""
    loss.grad, waiting, visits = 1.0, {loss}, 0
    while waiting:
        number = max(waiting, key=operator.attrgetter("time"))
        waiting.remove(number)
        visits += 1
        for part, slope in number.made_from:
            part.grad += number.grad * slope
            waiting.add(part)
    return visits


# %% [markdown]
# That is the whole of automatic differentiation. We try it on the neuron. There is no subtraction yet, so we add $-t$.

# %%
w, x, b, minus_t = Number(2.0), Number(3.0), Number(1.0), Number(-4.0)
error = w * x + b + minus_t
loss = error * error
walk(loss)
print(f"loss {loss.value}: dL/dw = {w.grad}, dL/dx = {x.grad}, dL/db = {b.grad}")

# %% [markdown]
# Why the latest first? When the turn of a number comes, everything that used it was made later, and has been visited.
# So its gradient is complete, and it needs one visit. A walk that goes down every path as it comes visits numbers as
# often as there are paths to them.
#
# **Predict, then run.** We double a number ten times: `y = y + y`. There are 11 numbers. How many paths lead from the
# last to the first?

# %%
guess = None  # paths

first = y = Number(1.0)
for _ in range(10):
    y = y + y
visits = walk(y)


def paths(number):
    return sum(paths(part) for part, _ in number.made_from) if number.made_from else 1


predict(guess, paths(y), unit="paths")

# %%
print(f"{visits} visits, and the gradient is {first.grad:.0f}")

# %% [markdown]
# ## From numbers to arrays
#
# [pmpp/nn/tape.py](../pmpp/nn/tape.py) does the same with arrays on the GPU. An operation is a `Function` with two
# halves. `forward` calls kernels, and saves what the other half will need. `backward` is given the gradient of the
# result, and returns the gradients of the arguments. It does not return slopes: the slope of an array of a million
# elements with respect to another is a matrix with 10^12 entries. What we want is its product with the gradient, and
# that has a kernel.

# %%
show(arithmetic.Multiply.forward)
show(arithmetic.Multiply.backward)

# %% [markdown]
# `needs` says whose gradient is wanted: for `x * 3` nothing need be saved of `x`. `apply` carries an operation out. If
# an argument requires a gradient, it writes down a `Node`: the function, what it saved, and the nodes that its
# arguments came from. `context.watch` prepares the check of "Changes in place", further below.

# %%
show(Function.apply.__func__)

# %% [markdown]
# And here is the walk. A heap gives the node with the greatest number; `gradients` has what has arrived so far. It is
# the loop from above, with three more things. What a node saved is freed once it was visited. A *leaf*, a tensor that
# no operation made, collects its gradient in `grad`. And this is in memory of its own: a sum hands the same array to
# both of its operands, and an optimiser that scales one gradient in place would scale the other, too.
#
# (`uses` and `ready` are for somebody who wants to know at once when a leaf's gradient is complete: chapter 100 sends
# it to other GPUs then. Here nobody does, and `uses` is empty.)

# %%
show(tape.walk)

# %%
w, x = Tensor([2.0], requires_grad=True), Tensor([3.0])
loss = ((w * x + 1.0 - 4.0) ** 2).sum()
print(loss)
loss.backward()
print("dL/dw =", w.grad.numpy())

# %% [markdown]
# ## Broadcasting
#
# In `x + bias` the shapes differ. As in NumPy, shapes are compared from the last dimension on. An extent of 1, or none
# at all, is *repeated*. Nothing is copied for that: the kernel reads the same element again.
#
# What is its gradient? Each copy of a bias receives a gradient of its own. The bias moves all copies at once, so its
# gradient is their sum. Repeating in the forward pass is summing in the backward pass, along the same axes.

# %%
show(arithmetic.to_shape)

# %% [markdown]
# **Predict, then run.** `x` has shape (5, 3), `bias` has shape (3,), and the loss is the sum of `(x + bias) * 2`. What
# is the gradient of each element of the bias?

# %%
guess = None  # of each element

x, bias = Tensor(np.ones((5, 3), np.float32)), Tensor([0.0, 0.0, 0.0], requires_grad=True)
((x + bias) * 2).sum().backward()
predict(guess, float(bias.grad.numpy()[0]), exact=True)

# %% [markdown]
# Five rows, and each copy is given a gradient of 2.
#
# ### Sums along an axis
#
# So every bias of a network asks for sums along an axis. To whoever sums along one axis an array in C order is
# *(outer, n, inner)*: what lies before the axis, the axis, and what lies behind it. Its room has a thread for each sum
# to begin with.

# %%
show(axis_sum.thread_kernel)

# %% [markdown]
# With `inner` = 1 the terms of a sum are neighbours, and the threads of a warp read `n` elements apart: each load
# touches 32 sectors. And three columns of a million rows are three threads. The next rungs let the threads of a block
# share a sum, and then several blocks. What each block leaves is added by a second launch, in a fixed order. Atomics
# would be shorter. But their order differs from run to run, and then so does the last bit of every weight.
#
# The last rung mends what is left: three columns were given 32 lanes. An array of three columns is one long row, too.
# If the number of threads is a multiple of three, then each thread meets the same column again at every step. So a
# block reads neighbours, 16 bytes a thread, and finds the columns apart only at the end.

# %%
show(axis_sum.stream_kernel)

# %% [markdown]
# **Predict, then run.** 2048 rows of 3 columns are 24,576 bytes, 768 sectors. `block_per_sum` has 32 lanes for the
# three columns, and reads a row of 12 bytes by one request. How many requests are that?

# %%
guess = None  # requests

tall = np.ones((2048, 3), np.float32)
counted = {rung.name: lab.count(rung, tall, 0) for rung in axis_sum.LADDER[1:]}
predict(guess, counted["block_per_sum"].counters["global_load_requests"], unit="requests")

# %%
for name, count in counted.items():
    requests, sectors = (count.counters[f"global_load_{what}"] for what in ("requests", "sectors"))
    print(f"{name:16} {requests:5} requests, {sectors:5} sectors, {len(count.reports)} launches")

# %% [markdown]
# The least is 768 sectors. `block_per_sum` reads a fourth of its rows in two sectors, since 12 does not divide 32.
# `vectorised` has 255 threads at work, a multiple of three. Their 4,080 bytes a step end in the middle of a sector, so
# some sectors are touched twice. What matters is the column before: a request brings 16 sectors instead of one.
#
# The ladder has been measured on two arrays. The first is the gradient for the bias of an early layer: 256 images, 64
# channels, 112 x 112 pixels. The second has four columns, of 2^24 rows.

# %%
plots.drawn(plots.ladder, "axis_sum", family="channels")

# %%
plots.drawn(plots.ladder, "axis_sum", family="long columns")

# %% [markdown]
# In the first figure the pixels of a channel in an image are summed first. They lie together, and there are thousands
# of such rows. The first rung's threads read far apart, and pay for it. With a block for each row the GPU is full. So
# there is nothing to share, and `shared_by_blocks` is the same as `block_per_sum`. CuPy is behind even the first
# rung.
#
# Here the last rung is slower than the one before. To `stream_kernel` such a row is an array of one column. It reads
# the row in a dozen steps. Then it halves the sums of its 256 threads, four of each, again and again, with a barrier
# every time. `block_per_sum` ends with shuffles and a single barrier. That is the likely reason: the end of the work
# is long beside the work. Even so it is ahead of both libraries.
#
# In the second figure there are four sums. Four threads, or one block, take so long that their bars cannot be seen.
# `shared_by_blocks` fills the GPU, but only four of the 32 lanes of each warp have a column. `vectorised` reads the
# same array as one long row. This is the case that it was made for, and it comes close to PyTorch.
#
# ### Exercises: sums
#
# The mean of each column first. Then rows that are too short for a warp: eight lanes share one.

# %%
exercise("axis_sum/mean")


# %%
@cuda.jit
def mean(x, out):
    pass  # your code


check("axis_sum/mean", mean)

# %%
exercise("axis_sum/squares")


# %%
@cuda.jit
def squares(x, out):
    pass  # your code


check("axis_sum/squares", squares)

# %% [markdown]
# ## Strides and views
#
# What is an array that is transposed, sliced or repeated? An array is a pointer, a shape and *strides*: how far apart
# neighbours along each dimension lie. To transpose it is to exchange two strides. To slice it is to move the pointer.
# To repeat it is to give it a stride of 0. All of these are *views*: the same memory, and no kernel has run.

# %%
base = device.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
views = {
    "as it lies": strided(base, (3, 4), (4, 1)),
    "transposed": strided(base, (4, 3), (1, 4)),
    "second row, repeated": strided(base, (3, 4), (0, 1), first=4),
    "every second column": strided(base, (3, 2), (4, 2)),
}
for name, view in views.items():
    print(f"{name:21} shape {view.shape}, strides {tuple(step // 4 for step in view.strides)}")
    print("   ", device.to_host(view).tolist())

# %% [markdown]
# A kernel must then find its elements. Four dimensions are enough for all that we do. A thread turns its number into
# four indices, by division, and these into a place in each array.

# %%
show(elementwise.indexed)

# %% [markdown]
# The work itself is one addition for twelve bytes. Memory is the bound, by far, if finding elements does not become the
# work. A division of 64 bits is a routine of about a hundred instructions, and here are six of them for one addition,
# even where all arrays lie one element after the other.
#
# `joined` looks at the strides before it launches. Two dimensions are one where each array steps through them as
# through one. Then (2, 3, 4) is 24 in a row, and needs no division at all. Where divisions are left, and there are
# fewer than 2^31 elements, `joined` divides numbers of 32 bits, which takes a fraction of the time.

# %%
show(elementwise.ladder.plan_of)

# %% [markdown]
# **Predict, then run.** Feature maps of shape (256, 64, 112, 112) are added to a bias of shape (64, 1, 1). How many
# dimensions are left after joining?

# %%
guess = None  # dimensions


def layout(*shape):
    return shape, tuple(4 * int(np.prod(shape[d + 1 :])) for d in range(len(shape)))


maps = layout(256, 64, 112, 112)
plan = elementwise.ladder.plan_of(maps, layout(64, 1, 1), maps)
predict(guess, plan.dimensions, unit="dimensions")

# %%
print(plan.extents, "\nbias:", plan.second)

# %% [markdown]
# Height and width are one. Images and channels cannot be: along channels the bias moves on, along images it does not.
#
# Then a thread takes four neighbours, so that it needs one index for four elements, and loads 128 bits at a time
# (`vectorised`). A bias is the same for all four, and is read once.
#
# ### A transposed operand
#
# One case is left. Where an operand is transposed, the neighbours of the result lie far apart in it, and a warp touches
# 32 sectors to read 128 bytes. [Chapter 16](16_transpose.ipynb) has the cure: a tile in shared memory, read along its
# rows, and written along its columns. It works for any operation, in any two dimensions of four.

# %%
show(elementwise.ladder.turned)
show(elementwise.ladder.tiles_kernel)

# %% [markdown]
# **Predict, then run.** A matrix of 64 x 64 is transposed, 512 sectors. How many does `joined` load, in which a warp
# writes 32 neighbours of a row, and reads them as they lie?

# %%
guess = None  # sectors

square = device.to_device(np.ones((64, 64), np.float32))
turned = strided(square, (64, 64), (1, 64))
counted = {rung.name: lab.count(rung, turned, None, "copy") for rung in elementwise.LADDER}
predict(guess, counted["joined"].counters["global_load_sectors"], unit="sectors")

# %%
for name, count in counted.items():
    print(f"{name:11} {count.counters['global_load_sectors']:5} sectors loaded")

# %% [markdown]
# 4096 elements, and a sector for each: eight times what is needed. In `vectorised` a warp has 128 elements. Here these
# are two rows of the result, which are neighbours in the operand, so each sector serves two lanes. Only the tile reads
# each sector once.
#
# Now the measurements, of a sum of vectors, of the bias, and of a transposed copy.

# %%
plots.drawn(plots.ladder, "elementwise", family="add")

# %%
plots.drawn(plots.ladder, "elementwise", family="bias")

# %%
plots.drawn(plots.ladder, "elementwise", family="transposed copy")

# %% [markdown]
# The sum of vectors needs no division once its dimensions are joined, and most of the time is saved there. Loads of
# 128 bits bring it to the roof, where PyTorch is, too. A share just above 100 % is no mistake: the ceiling was
# measured with a copy, and an addition reads two bytes for each one it writes. [Chapter 4](04_vector_add.ipynb) says
# why that is quicker. Where no operand is transposed, `tiled` hands the work to `vectorised`, and their bars are the
# same.
#
# The bias cannot be joined to one dimension. `joined` still divides for every element, and is far from the roof.
# `vectorised` divides once for four, and is ahead of both libraries.
#
# With the transposed copy all are far from the roof, and the tile gains little. The counter promised more. There are
# two likely reasons. The counter counts what warps ask for, and caches answer some of that: what one warp leaves of a
# sector, another soon wants. And the tile has a price of its own. Look at `tiles_kernel` again: a thread finds its
# tile by six divisions of 64 bits, as many as in `indexed`, though for four elements. It also loads four bytes at a
# time. The last rungs of chapter 16 transpose a matrix of this size in a fraction of the time. A block of theirs
# reads its place from a grid of several dimensions, without any division. But they can do nothing else, and this
# kernel does any operation on any view. PyTorch and CuPy are no faster here.
#
# The roofline shows where such work stands. From the ridge on, arithmetic is the bound; before it, memory.

# %%
ceilings = roofline.ceilings("vector_add")
print(f"an addition: {elementwise.cost(2**28).intensity:.3f} FLOP per byte")
print(f"the ridge:   {ceilings.ridge:.1f} FLOP per byte ({ceilings.source})")

# %% [markdown]
# Elementwise operations are *memory-bound* on any machine, and no faster arithmetic would help. The only cure is to do
# several operations on an element while it is in a register.

# %%
plots.drawn(plots.roofline, "elementwise", family="add")

# %%
plots.drawn(plots.cpu_gpu, "elementwise", xlabel="elements")

# %% [markdown]
# On the roofline all stand above one another, since all do the same additions on the same bytes.
#
# The last figure has NumPy on the CPU in it. The kernel alone is slower than NumPy only for the smallest arrays,
# where a launch takes longer than the work. With transfers, the CPU is the better place for a single addition of any
# of these sizes. A network's arrays stay on the GPU from the first layer to the last, and only the loss is fetched.
#
# ### Exercises: views
#
# Copy a view, and then choose between two arrays that are broadcast.

# %%
exercise("elementwise/view")


# %%
@cuda.jit
def view_copy(x, first, down, along, out):
    pass  # your code


check("elementwise/view", view_copy)

# %%
exercise("elementwise/choose")


# %%
@cuda.jit
def choose(mask, a, b, out):
    pass  # your code


check("elementwise/choose", choose)

# %% [markdown]
# ## What is saved, and what is freed
#
# A backward pass needs numbers of the forward pass: a product needs both factors. They are the *activations*, and for
# most networks they take more memory than the parameters. The tape keeps exactly what the functions saved. A tensor
# that no `backward` needs is freed when its last name is gone.

# %%
x = Tensor(np.ones(1000, np.float32), requires_grad=True)
y = x + 1  # the gradient of a sum needs neither operand
seen = weakref.ref(y.array)
y = y.exp()  # the gradient of exp is its result, so that one is kept
gc.collect()
print("x + 1 is", "freed" if seen() is None else "kept", "though exp was computed from it")

# %% [markdown]
# `nn.memory` says what a training step needs. It walks the tape, and counts each array that was saved once.
#
# **Predict, then run.** A network is `Linear(64, 256)`, a ReLU, and `Linear(256, 10)`; a batch has 32 rows. Each of the
# three layers saves its own input. The loss saves the gradient of its scores, one for each. How many bytes of float32
# are these activations?

# %%
guess = None  # bytes

nn.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
batch = Tensor(np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32))
loss = nn.functional.cross_entropy(net(batch), Tensor(np.zeros(32, np.int32)))
predict(guess, nn.memory(net, loss)["activations"], unit="bytes")

# %%
rows, parts = 4 * 32, {"input": 64, "before the ReLU": 256, "after the ReLU": 256, "scores": 10}
print({name: f"{rows * width:,}" for name, width in parts.items()}, f"{rows * sum(parts.values()):,} in all")
print({name: f"{size:,}" for name, size in nn.memory(net, loss).items()})

# %% [markdown]
# The ReLU's input and its output are both kept, though one would do: where the output is positive, the input was, too.
# PyTorch's ReLU saves its output instead. The next layer keeps that anyway, so such a ReLU costs no memory of its own.
#
# What was saved is freed as the walk passes. So memory falls during the backward pass, and a graph can be used once.

# %%
loss.backward()
try:
    loss.backward()
except RuntimeError as error:
    print("RuntimeError:", error)

# %% [markdown]
# With `retain_graph=True` it can be used again. A second walk adds to `grad`, as every walk does: this is why a
# training loop calls `zero_grad`.
#
# ## Changes in place
#
# A node keeps an array, not a copy. If somebody overwrites it before the backward pass, then the gradient is that of
# another function, and nobody sees it. So each tensor counts how often its memory was changed, and a node remembers
# that count.

# %%
x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
y = x * 1.0
loss = (y * y).sum()
y.detach().copy_(np.zeros(3, np.float32))  # the same memory, under another name
try:
    loss.backward()
except RuntimeError as error:
    print("RuntimeError:", error)

# %% [markdown]
# ## Is a gradient right?
#
# The slope of a function can be measured: change an input by $h$ up and down, and divide the difference of the results
# by $2h$. This *central difference* has an error that grows with $h^2$, from the curvature. But the results are
# rounded, and the difference divides that error by $h$. So $h$ must be neither large nor small. We measure both on the
# CPU with NumPy, for $\exp$ at 1.

# %%
steps = 2.0 ** np.arange(-40, 2)
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for dtype, colour, marker in ((np.float32, palette.COLOURS[0], "o"), (np.float64, palette.COLOURS[1], "s")):
    h = steps.astype(dtype)
    slopes = (np.exp(dtype(1) + h) - np.exp(dtype(1) - h)) / (2 * h)
    error = abs(slopes.astype(np.float64) / np.e - 1)
    ax.plot(steps, np.maximum(error, 1e-13), color=colour, marker=marker, markersize=4, label=np.dtype(dtype).name)
ax.set(xscale="log", yscale="log", xlabel="step h", ylabel="relative error of the slope")
ax.legend()
None

# %% [markdown]
# From right to left the error falls with the square of the step, until rounding takes over. The best that float32 can
# do here is about five digits, with a step of some thousandths. At a step of $2^{-25}$ the change is lost altogether:
# the slope is 0, and the error 1. In float64 eleven digits are possible. So the tests of our rooms check the
# *reference* in float64 by differences, and the kernels against the reference.
#
# ### Why a random gradient from above
#
# A result has many elements, a check needs one number. The first idea is to sum them: every element of the gradient
# from above is 1. It hides errors. The elements of a softmax always add up to 1. Whatever moves, their sum does not.


# %%
def differences(function, x, upstream, h=1e-4):
    """Slopes of (function(x) * upstream).sum() with respect to each element of x, in float64."""
    found = np.zeros(x.size)
    for i, change in enumerate(h * np.eye(x.size)):
        above, below = ((function(x + sign * change) * upstream).sum() for sign in (1, -1))
        found[i] = (above - below) / (2 * h)
    return found


def shares(x):
    return np.exp(x) / np.exp(x).sum()


x, ones = np.random.default_rng(1).standard_normal(5), np.ones(5)

# %% [markdown]
# **Predict, then run.** What is the largest slope of `softmax(x).sum()`, with respect to any of five inputs?

# %%
guess = None  # the largest slope

predict(guess, round(float(abs(differences(shares, x, ones)).max()), 6), exact=True)

# %% [markdown]
# A `backward` that returns zeros passes that check. With random numbers from above it does not, and the same holds for
# batch normalisation, whose results add up to a constant, too.

# %%
upstream = np.random.default_rng(2).standard_normal(5)
print("ones from above:  ", differences(shares, x, ones).round(6) + 0.0)
print("random from above:", differences(shares, x, upstream).round(4))

# %% [markdown]
# ## A room becomes a layer
#
# Whatever has a forward and a backward kernel can stand in a network. Here is a layer of ten lines: the hyperbolic
# sine, $(e^x - e^{-x})/2$, whose slope is the hyperbolic cosine, $(e^x + e^{-x})/2$.


# %%
class Sinh(Function):
    """The hyperbolic sine of each element."""

    @staticmethod
    def forward(context, x):
        e = elementwise.exp(x.array)
        context.save_for_backward(e)
        return elementwise.multiply(elementwise.subtract(e, elementwise.reciprocal(e)), 0.5)

    @staticmethod
    def backward(context, dy):
        (e,) = context.saved
        return elementwise.multiply(dy, elementwise.multiply(elementwise.add(e, elementwise.reciprocal(e)), 0.5))


# %% [markdown]
# `e` is saved, so that `backward` need not compute it again: bytes against time. The check takes a random gradient from
# above, and compares with differences in float64. Float32 rounds a few times, by at most $2^{-24}$ each. A wrong
# formula is off by far more than the $10^{-5}$ that `compare` allows.


# %%
def compare(layer, function, n=6):
    """Compare the gradient of a layer with differences of its function in float64."""
    rng = np.random.default_rng(3)
    x, upstream = rng.standard_normal((2, n)).astype(np.float32)
    tensor = Tensor(x, requires_grad=True)
    layer.apply(tensor).backward(upstream)
    if tensor.grad is None:
        return "no gradient yet"
    expected = differences(function, x.astype(np.float64), upstream.astype(np.float64))
    error = abs(tensor.grad.numpy() - expected).max() / abs(expected).max()
    return f"the gradient is off by {error:.0e} of the largest: {'right' if error < 1e-5 else 'wrong'}"


print(compare(Sinh, np.sinh))

# %% [markdown]
# ### Exercise: softmax as a layer
#
# The room of [chapter 50](50_softmax.ipynb) computes a softmax of each row. Make it a layer. With $y$ the result and
# $g$ the gradient from above, the gradient is $y_i\,(g_i - \sum_j g_j y_j)$: broadcasting, and a sum along an axis.
# `elementwise.multiply`, `elementwise.subtract` and `axis_sum.vectorised` are all that it takes.


# %%
class Softmax(Function):
    """The softmax of a vector."""

    @staticmethod
    def forward(context, x):
        return softmax.softmax(x.array)  # what must be saved?

    @staticmethod
    def backward(context, dy):
        return None  # your code


print(compare(Softmax, shares))

# %% [markdown]
# ## Where did the NaN come from?
#
# A loss that is NaN says nothing about its cause, which may lie ten layers back. *Anomaly mode* looks through each
# result and each gradient as it is made, and stops at the first that is not finite. It names the operation and the
# layer. It reads everything back, so it is for looking, not for training.


# %%
class Logarithm(nn.Module):
    """A layer that is careless about 0."""

    def forward(self, x):
        return x.log()


net = nn.Sequential(nn.ReLU(), Logarithm())
try:
    with nn.detect_anomaly():
        net(Tensor([[1.0, -2.0, 3.0]], requires_grad=True))
except FloatingPointError as error:
    print("FloatingPointError:", error)

# %% [markdown]
# ## What to take along
#
# - A tape writes down each operation with what its gradient needs. The walk goes from the latest to the first, adds
#   what arrives, and visits each node once. One walk gives the gradients of all parameters.
# - What is repeated in the forward pass is summed in the backward pass.
# - A view is a pointer, a shape and strides. A kernel that works on views must find its elements cheaply: join
#   dimensions, divide by 32 bits, take four neighbours, and send a transposed operand through a tile.
# - Threads are given out by the shape of the work. Three columns of a matrix are one long row to a block whose width is
#   a multiple of three.
# - Save little: what is saved is the memory of training. Count changes, so that a wrong gradient is an error.
# - Check gradients by central differences in float64, and with random numbers from above.
#
# ## Exercises
#
# 1. *What does it save?* `(x * 3).exp().sum()`: which arrays does the tape keep? And `(x * x).log().sum()`? Predict,
#    then count with `node.context.saved`, beginning at `loss.node`. The nodes before it are in `node.inputs`: for each
#    argument a pair of a node and the number of its result, or None.
# 2. *A gradient of a gradient.* `walk` runs within `no_grad`. What would have to change so that the gradient is itself
#    on the tape?
#
# ## Answers
#
# *axis_sum/mean:* neighbouring threads take neighbouring columns.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def mean_answer(x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.shape[0]):
            total += x[row, column]
        out[column] = total / np.float32(x.shape[0])


check("axis_sum/mean", mean_answer)

# %% [markdown]
# *axis_sum/squares:* all lanes shuffle, those beyond the last row with a total of 0.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def squares_answer(x, out):
    row, lane, total = cuda.grid(1) // 8, cuda.grid(1) % 8, np.float32(0)
    if row < out.size:
        for i in range(lane, x.shape[1], 8):
            total += x[row, i] * x[row, i]
    for distance in (4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


check("axis_sum/squares", squares_answer)

# %% [markdown]
# *elementwise/view:* a stride of 0 needs no case of its own.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def view_answer(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = x[first + row * down + column * along]


check("elementwise/view", view_answer)

# %% [markdown]
# *elementwise/choose:* what is repeated along a dimension is found without its index.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def choose_answer(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[row] > np.float32(0) else b[column]


check("elementwise/choose", choose_answer)

# %% [markdown]
# *Softmax as a layer:* the result is saved, not the input.


# %% jupyter={"source_hidden": true} tags=["answer"]
class SoftmaxLayer(Function):
    """The softmax of a vector."""

    @staticmethod
    def forward(context, x):
        y = softmax.softmax(x.array)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        (y,) = context.saved
        common = axis_sum.vectorised(elementwise.multiply(dy, y), -1, True)
        return elementwise.multiply(y, elementwise.subtract(dy, common))


print(compare(SoftmaxLayer, shares))


# %% [markdown]
# *What does it save?* The first keeps one array, the result of `exp`: a product with a number needs nothing of `x`, and
# a sum only its shape. The second keeps `x` twice, as the one and as the other factor, and `x * x` for the logarithm.


# %% jupyter={"source_hidden": true} tags=["answer"]
def saved(loss):
    """Each node from the loss on, with the number of arrays that it saved."""
    node, found = loss.node, []
    while node.function is not None:
        found.append((node.function.__name__, len(node.context.saved)))
        node = next(edge[0] for edge in node.inputs if edge is not None)
    return found


x = Tensor([1.0, 2.0], requires_grad=True)
print(saved((x * 3).exp().sum()))
print(saved((x * x).log().sum()))

# %% [markdown]
# *A gradient of a gradient.* Each `backward` would have to be made of operations on tensors, and the walk would have to
# write them down. Then a gradient is a tensor like any other, and has a node.
#
# Go on with [chapter 89](89_a_network_that_learns.ipynb): all of it together: a network that learns to read digits.
