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
# # 105. Mixed precision
#
# *Training with numbers of 16 bits: range and spacing, updates that are lost and master weights, gradients that become
# 0 and the scale that saves them, which operation runs in which format, bytes and time. You need chapters 38, 40, 82,
# 89 and 93; it takes 70 minutes. PMPP 4e: chapter 16; 5e: chapter 19. The code is
# [pmpp/nn/amp.py](../pmpp/nn/amp.py) and [pmpp/nn/measure/mixed.py](../pmpp/nn/measure/mixed.py).*
#
# A number of 16 bits has half the bytes of a float32, and [tensor cores](40_tensor_cores.ipynb) multiply such numbers
# many times faster. But a float16 has only 11 bits for its digits, where a float32 has 24. Training is a long row of
# small corrections, and small is what 11 bits are bad at.
#
# **The questions of this chapter: can a network train with numbers of 11 bits? What goes wrong, and what has to stay
# in float32?**
#
# You can read this chapter right after [chapter 93](93_memory.ipynb). It needs nothing of chapters 94 to 104.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

from pmpp import nn, predict
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.nn.exercises import check, exercise
from pmpp.nn.measure import recorded
from pmpp.nn.tape import Tensor
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Three formats
#
# A float has a sign, an exponent and a fraction. The exponent says how large the number is, and the bits of the
# fraction say which number of that size it is. [Chapter 38](38_numerics.ipynb) has the details. Here are the formats
# that a training uses, bit by bit.

# %%
FORMATS = {"float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7)}  # bits of the exponent, and of the fraction

figure, ax = plt.subplots(figsize=(8, 2), layout="constrained")
for row, (exponent, fraction) in enumerate(FORMATS.values()):
    at = 0
    for part, n in zip(("sign", "exponent", "fraction"), (1, exponent, fraction), strict=True):
        colour = palette.COLOURS[("sign", "exponent", "fraction").index(part)]
        ax.bar(range(at, at + n), 0.8, 0.9, row - 0.4, color=colour, label=part if row == 0 else None)
        at += n
ax.set(yticks=range(3), yticklabels=list(FORMATS), xlabel="bit, from the left")
ax.invert_yaxis()
ax.grid(False)
ax.legend(ncols=3, loc="lower right")
None

# %% [markdown]
# The two formats of 16 bits divide them in different ways. A float16 has more bits in the fraction. A bfloat16 is the
# front half of a float32: it has all of its exponent, and few digits. Four numbers follow from the bits: the largest
# number, the smallest one that has all its digits, the smallest one above 0, and the distance from 1 to the next number
# above it. This distance is called *epsilon*.


# %%
def limits(exponent, fraction):
    """The largest number, the smallest with all digits, the smallest above 0, and epsilon, as powers of 2."""
    most = 2 ** (exponent - 1) - 1
    return most + np.log2(2 - 2.0**-fraction), 1 - most, 1 - most - fraction, -fraction


print(f"{'':10}{'largest':>10}{'all digits from':>17}{'above 0 from':>14}{'epsilon':>9}")
for name, bits in FORMATS.items():
    large, normal, tiny, epsilon = limits(*bits)
    print(f"{name:10}{f'2^{large:.3g}':>10}{f'2^{normal}':>17}{f'2^{tiny}':>14}{f'2^{epsilon}':>9}")

# %% [markdown]
# float16 ends at 65,504, just below 2^16, and below 2^-24 it has nothing but 0. The other two have all their digits
# from 2^-126 to 2^128. So float16 lacks range, and bfloat16 lacks digits: near 1 its numbers are 1/128 apart. Each
# weakness has its own consequence. We begin with the digits.
#
# ## An update that is lost
#
# A step of training adds a small number to a weight. Say the weight is 1, and each step adds 1e-4.
#
# **Predict, then run.** We do 1,000 such steps with a weight in float16, and round to float16 after each. How many of
# the steps change the weight?

# %%
guess = None  # steps

weight, changed, path = np.float16(1), 0, []
for _ in range(1000):
    after = weight + np.float16(1e-4)
    changed += int(after != weight)
    weight = after
    path.append(float(weight))
predict(guess, changed, unit="steps")

# %% [markdown]
# The next float16 above 1 is 1.00098. The sum, 1.0001, lies between the two, and it is much nearer to 1. So it is
# rounded to 1, in this step and in every later one. A thousand steps add up to 0.1, and none of it arrives. The cure is
# to add in float32, and to make a float16 of the weight whenever a product needs one. The float32 copy is called the
# *master weight*. The figure has the float16 weight, the master weight, and the float16 that is made of it.

# %%
master = 1 + np.float32(1e-4) * np.arange(1, 1001, dtype=np.float32)
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(path, color=palette.COLOURS[1], linestyle="--", label="float16")
ax.plot(master.astype(np.float16), color=palette.COLOURS[2], linewidth=3, label="float16 of the master weight")
ax.plot(master, color=palette.COLOURS[0], linewidth=1, label="master weight, float32")
ax.set(xlabel="steps of 1e-4", ylabel="weight")
ax.legend()
None

# %% [markdown]
# The float16 of the master weight climbs a stair. It stands still for about ten steps, and then it takes one of the
# size that float16 has. What it multiplies is off by at most half a step of the stair, and that error does not grow.
#
# A weight of 1 and a step of 1e-4 were our choice. What of a real network? The digits network of
# [chapter 89](89_a_network_that_learns.ipynb) has weights that are smaller than 1, so that its steps may be smaller,
# too. We take its gradient for 64 digits. A learning rate of 0.001 is usual near the end of a training.

# %%
training, _ = digits.datasets()


def batch_of(i, size):
    """The i-th batch of digits, and begins again when all were used."""
    at = np.arange(i * size, (i + 1) * size) % len(training)
    images, labels = training.arrays
    return Tensor(images[at]), Tensor(labels[at])


# %%
nn.manual_seed(0)
net = digits.Net()
x, y = batch_of(0, 64)
F.cross_entropy(net(x), y).backward()
weights = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
slopes = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
print(f"{weights.size} weights; half of them are below {np.median(abs(weights)):.3f} in size")
print(f"half of the gradients are below {np.median(abs(slopes)):.5f}")

# %% [markdown]
# **Predict, then run.** With weights in float16 and a rate of 0.001, which share of the weights stays exactly as it was
# in this step?

# %%
guess = None  # percent


def lost(rate):
    """The share of the weights that a step with this rate does not change, in float16."""
    short = weights.astype(np.float16)
    return 100 * np.mean(short - (rate * slopes).astype(np.float16) == short)


predict(guess, lost(0.001), unit="%")

# %%
for rate in (1.0, 0.1, 0.01, 0.001):
    print(f"rate {rate:5}: {lost(rate):5.1f} % of the weights stay as they were")

# %% [markdown]
# The share grows as the rate falls. A training with float16 weights would come to rest long before it has finished, and
# it would look as if it had converged. So the weights stay in float32. In `pmpp.nn.amp`, and in PyTorch, the parameters
# *are* the master weights: the optimiser knows only them, and float16 copies are made for products alone.
#
# ### Exercise: a step with master weights
#
# The gradients come in float16 and multiplied by a number, the *scale*. Why that is done is the subject of the next
# sections; here you divide by it. Take care in which format you divide.

# %%
exercise("mixed_precision/master")


# %%
def step(master, gradients, scale, rate):
    pass  # your code


check("mixed_precision/master", step)

# %% [markdown]
# ## Sums
#
# Weights are not the only sums. Each result of a layer is one: a product of matrices adds up thousands of terms. We add
# ones in float16, from left to right, on the CPU: `np.cumsum` keeps its sum in the format that it is told.
#
# **Predict, then run.** What is the sum of 4,096 ones, added one by one in float16?

# %%
guess = None  # the sum

ones = np.ones(4096, np.float16)
running = np.cumsum(ones, dtype=np.float16)
predict(guess, float(running[-1]))

# %% [markdown]
# From 2,048 on float16 has only every second whole number. 2,049 is as near to 2,048 as to 2,050, and the rule of
# rounding takes the even one. That is an update that is lost, again. Tensor cores take operands of 16 bits and add
# their products up in float32, as chapter 40 has shown. Only the finished sum is rounded to 16 bits. Our kernels do
# the same:

# %%
sizes = [2**k for k in range(9, 13)]
ours = []
for n in sizes:
    with nn.amp.autocast(dtype="float16"):
        ours.append((Tensor(np.ones((1, n), np.float32)) @ Tensor(np.ones((n, 1), np.float32))).numpy().item())
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(sizes, running[np.array(sizes) - 1], "--s", color=palette.COLOURS[1], label="NumPy, on the CPU: sum in float16")
ax.plot(sizes, ours, "-o", color=palette.COLOURS[0], label="our product of float16: sum in float32")
ax.set(xscale="log", yscale="log", xlabel="terms", ylabel="sum of so many ones")
ax.legend()
None

# %% [markdown]
# Both lines are the same up to 2,048. There the sum in float16 ends, and the other goes on. So operands may be short
# where the sum is long. That is what *mixed* means: each number gets the format that it needs.
#
# `autocast` applies this rule. Within it an operation looks up in a table in which format it runs, and makes copies of
# its operands if they have another.

# %%
for how in ("16 bits", "float32", "the widest"):
    names = ", ".join(function.__name__ for function, found in nn.amp.TABLE.items() if found == how)
    print(f"{how:11} {names}")

# %% [markdown]
# The first line is what tensor cores are for: products. The second has what adds up many terms, or leaves the range of
# float16. The exponential of 12 is more than float16 can hold. *The widest* means that two operands of one format stay
# in it, and that two different ones become float32. What is not in the table, such as ReLU and max pooling, runs in the
# format in which its operand arrives. It only chooses numbers, so it makes no error.
#
# **Predict, then run.** The digits network ends with a linear layer, and then comes the loss, `F.cross_entropy`. Within
# `autocast(dtype="float16")`, which formats do the scores of the linear layer and the loss have?

# %%
guess = {"scores": None, "loss": None}  # "float16" or "float32"

with nn.amp.autocast(dtype="float16"):
    scores = net(x)
    loss = F.cross_entropy(scores, y)
predict(guess, {"scores": str(scores.dtype), "loss": str(loss.dtype)}, choices=["float16", "float32"])

# %% [markdown]
# The backward pass runs outside of `autocast`. Each gradient has the format of the array that it belongs to: float16
# for the scores, and float32 for a parameter. In between, a node of the tape turns one into the other. It belongs to
# the cast that made the float16 copy of the parameter.
#
# ## A gradient that becomes 0
#
# Now to the range. How large are the gradients of the digits network? Those of parameters come from `backward`. To see
# the gradient of a layer's result as well, we add zeros to the result, as a tensor that wants a gradient. That changes
# no number, and the zeros get the gradient that the result has.


# %%
def gradients(net, factor=1.0):
    """Gradients of what each layer returns, of the loss times a factor. All is float32."""
    (x, y), zeros = batch_of(0, 64), {}

    def watched(name, result):
        zeros[name] = Tensor(np.zeros(result.shape, result.dtype), requires_grad=True)
        return result + zeros[name]

    h = net.pool(F.relu(watched("conv1", net.conv1(x))))
    h = net.pool(F.relu(watched("conv2", net.conv2(h))))
    loss = F.cross_entropy(watched("head", net.head(h.flatten(1))), y)
    (loss * factor).backward()
    return {name: zero.grad.numpy() for name, zero in zeros.items()}


# %% [markdown]
# A mean over 64 digits gives each digit a weight of 1/64. The trainings that fill data centres take the mean over
# millions of words in a step, and then a single word's share of the gradient is that small. No machine holds such a
# batch at once. It goes through the network in parts, whose gradients are added, as in chapter 93, and the loss of a
# part is multiplied by the part's share. We imitate a step of 2^18 parts. Of these we compute only one, and its loss
# counts 2^-18.


# %%
def draw_sizes(cases, title):
    """Histograms of sizes on an axis of powers of 2, with the limits of float16. Exact zeros are left out."""
    _, ax = plt.subplots(figsize=(8, 3), layout="constrained")
    for (name, found), colour, line in zip(cases.items(), palette.COLOURS, ("solid", "dashed"), strict=False):
        sizes = np.log2(abs(np.concatenate([a[a != 0] for a in found.values()])))
        ax.hist(sizes, np.arange(-48, 18), histtype="step", linewidth=2, color=colour, linestyle=line, label=name)
    ax.axvspan(-48, -25, color=palette.LIGHT, alpha=0.5)
    ax.axvline(16, color=palette.INK, linestyle=":", label="limits of float16")
    ax.axvline(-14, color=palette.INK, linestyle=":")
    ax.set(title=title, xlabel="log2 of a gradient's size (grey: float16 makes it 0)", ylabel="gradients")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


# %%
SHARE = 2.0**-18
alone, small = gradients(net), gradients(net, SHARE)
draw_sizes({"a batch of its own": alone}, "Gradients of what the layers return")

# %% [markdown]
# The batch of its own fits into float16. Only some of its gradients lie to the left of the line at -14, where float16
# begins to lose digits, and none lies in the grey area, where it has only 0. Most of float16's range, to the right, is
# empty: no gradient of these is larger than 1.
#
# **Predict, then run.** With a share of 2^-18 each gradient is multiplied by 2^-18. Which part of the gradients that
# are not 0 becomes 0 in float16, in percent?

# %%
guess = None  # percent


def vanished(found):
    """The share of the numbers, in percent, that are not 0 in float32 and that are 0 in float16."""
    sizes = np.concatenate([a[a != 0] for a in found.values()])
    return 100 * np.mean(sizes.astype(np.float16) == 0)


predict(guess, vanished(small), unit="%")

# %%
draw_sizes({"a batch of its own": alone, "one of 2^18 parts": small}, "The same gradients, times 2^-18")

# %%
for k in (0, 6, 12, 15, 18, 21):
    parts = {name: a * 2.0**-k for name, a in alone.items()}
    each = ", ".join(f"{name} {vanished({name: a}):5.1f} %" for name, a in parts.items())
    print(f"share 2^-{k:<2}: {each}")

# %% [markdown]
# A multiplication by a power of 2 shifts the histogram and does not change its shape. Now most of it lies in the grey
# area. This is *underflow*. The layers are not equal: the first convolution loses most, since its gradient has come the
# longest way: see the shares 2^-12 and 2^-15. The largest survive, but with few of their digits.
#
# ## Scaling the loss
#
# The histogram has lain too far to the left, with an empty range on its right. So we shift it. If the loss is
# multiplied by a number, the *scale*, then every gradient is, by the chain rule. After the backward pass the gradients
# of the parameters are divided by the scale, in float32, before the optimiser sees them. This is *loss scaling*. With a
# power of 2 neither the product nor the quotient is rounded, as long as both have all their digits.
#
# **Predict, then run.** How large may the scale be for these gradients of layers, as a power of 2, so that none of them
# leaves float16 at the upper end? The right end of the histogram tells you: write the exponent.

# %%
guess = None  # the exponent of the scale

largest = max(abs(a).max() for a in small.values())
predict(guess, int(np.floor(np.log2(65504 / largest))))

# %%
scaled = {name: a * 2.0**20 for name, a in small.items()}
draw_sizes(
    {"one of 2^18 parts": small, "with a scale of 2^20": scaled}, "A scale moves the gradients into float16's range"
)
print(f"without a scale {vanished(small):.1f} % become 0, with a scale of 2^20 {vanished(scaled):.1f} %")


# %%
def of_parameters(dtype, scale):
    """The gradients of all parameters with the share, divided by the scale in float32."""
    x, y = batch_of(0, 64)
    net.zero_grad()
    with nn.amp.autocast(dtype=dtype or "float16", enabled=dtype is not None):
        loss = F.cross_entropy(net(x), y)
    (loss.float() * (SHARE * scale)).backward()
    return np.concatenate([p.grad.numpy().ravel() for p in net.parameters()]) / np.float32(scale)


right = of_parameters(None, 1.0)
for scale in (1.0, 2.0**20):
    error = np.linalg.norm(of_parameters("float16", scale) - right) / np.linalg.norm(right)
    print(f"float16 with a scale of 2^{np.log2(scale):.0f}: off by {100 * error:.1f} % of the gradient's length")

# %% [markdown]
# Nearly all of the dashed histogram lies between the limits, and none of it in the grey area. There is room to either
# side, so the scale need not be exact. The last two lines come from forward and backward passes in float16, and compare
# the gradients of the parameters with those of float32. With the scale, what is left of the error is that of 11 bits.
#
# Without it the error is larger than the gradient itself. The layer that is called *head* shows why. For each digit its
# result has ten gradients: a negative one of the right class, and nine of the others, which are positive and about a
# ninth as large. With this share just the one of the right class is above 2^-25, so nine of ten vanish, which are the
# 90 %. In float32 the ten add up to 0. In float16 all of them now say: raise the right score, and lower none.
#
# But nobody knows the largest gradient before the step, and it changes during a training. A scale that is too large
# makes infinities, and one such step would ruin all weights. `GradScaler` finds the scale by trying. It begins with a
# large one. If a gradient is not finite, it leaves this step out and halves the scale. After many good steps in a row
# it doubles it.

# %%
show(nn.amp.GradScaler.update)

# %% [markdown]
# ### Exercise: the rule
#
# Write it yourself, for a back-off of 1/2 and a growth of 2.

# %%
exercise("mixed_precision/scaler")


# %%
def update(scale, good, finite, interval):
    pass  # your code


check("mixed_precision/scaler", update)

# %% [markdown]
# ## Training
#
# Here is a training with all its parts. Four things are new, and they are those of PyTorch: `autocast` around the
# forward pass, `scaler.scale` before `backward`, `scaler.step` in place of the optimiser's step, and `scaler.update`.
# The optimiser multiplies by the number of parts what the share has divided: we take a step as if all parts were like
# the one that we compute. In exact arithmetic the share changes nothing.


# %%
def train(dtype=None, scaler=None, steps=13):
    """The loss of each step, and the scale before it."""
    nn.manual_seed(0)
    net, scaler, losses, scales = digits.Net(), scaler or nn.amp.GradScaler(enabled=False), [], []
    optimizer = nn.optim.SGD(net.parameters(), lr=0.15 / SHARE, momentum=0.9)
    for x, y in (batch_of(i, 24) for i in range(steps)):
        optimizer.zero_grad()
        with nn.amp.autocast(dtype=dtype or "float16", enabled=dtype is not None):
            loss = F.cross_entropy(net(x), y)
        scales.append(scaler.get_scale())
        scaler.scale(loss * SHARE).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, scales


# %% [markdown]
# First we watch the scale. It begins at 2^40, which is too large, and it is meant to be. An interval of 4 good steps is
# very short; the default is 2,000. With both you see the rule at work in a few steps. A hint: gradients of parameters
# are sums of many, so some of them are several times as large as those in the histograms.
#
# **Predict, then run.** How many of the first 10 steps does the scaler leave out? Think of where the scale must go from
# 2^40, and of what happens after four good steps.

# %%
guess = None  # steps

scaler = nn.amp.GradScaler(init_scale=2.0**40, growth_interval=4)
_, scales = train("float16", scaler, 10)
scales.append(scaler.get_scale())
predict(guess, int(sum(after < before for before, after in itertools.pairwise(scales))), unit="steps")

# %%
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.step(range(11), np.log2(scales), where="mid", color=palette.COLOURS[0], label="scale")
skipped = [i for i in range(10) if scales[i + 1] < scales[i]]
ax.plot(skipped, np.log2([scales[i] for i in skipped]), "X", color=palette.WRONG, label="step left out")
ax.set(xlabel="step", ylabel="log2 of the scale")
ax.legend()
None

# %% [markdown]
# The scale falls until the gradients fit, and three steps are lost. A later batch has larger gradients, and the scale
# falls once more. Then come four good steps, and it climbs by one. So the scale stays near the largest that works, and
# follows the gradients when these grow or shrink. With an interval of 2,000 a step that is left out now and then costs
# next to nothing.
#
# Now four trainings: float32, float16 as it is, float16 with a scaler as it is by default, and bfloat16. We end the
# second after 11 steps; you will see why.

# %%
curves = {
    "float32": train()[0],
    "float16, no scale": train("float16", steps=11)[0],
}
curves["float16, scaler"], kept = train("float16", nn.amp.GradScaler())
if len(known(("float16", "bfloat16"))) == 2:  # bfloat16 needs the package ml_dtypes
    curves["bfloat16"] = train("bfloat16")[0]

# %%
figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, losses), colour, line in zip(curves.items(), palette.COLOURS, palette.LINES, strict=False):
    ax.plot(losses, color=colour, linestyle=line, label=name)
ax.set(xlabel="step", ylabel="loss", ylim=(0, 4))
ax.legend()
for name, losses in curves.items():
    print(f"{name:18} loss at first {losses[0]:.2f}, mean of the last four {np.mean(losses[-4:]):.2f}")
print(f"scales of the scaler: {sorted(set(kept))}")

# %% [markdown]
# Without a scale the loss of float16 does not fall, and in the end it rises. No error was raised, and no number is
# infinite. Nothing but the curve tells that too many gradients are 0, and that the others point in a wrong direction.
#
# With the scaler the curve is that of float32. Its first scale, 2^16, is large enough here and no step is left out.
# bfloat16 follows float32 without any scaler, since it has the same exponents. Its 8 bits are enough for products whose
# sums, and whose weights, are float32. This is why a training that has bfloat16 uses it, and why float16 needs care.
#
# One rule is easily forgotten. What looks at gradients between `backward` and the step sees them multiplied by the
# scale. To clip them by their norm, call `scaler.unscale_(optimizer)` first.
#
# ## Bytes
#
# Master weights are float32, and so are their gradients and what the optimiser keeps. So where do 16 bits save memory?
#
# **Predict, then run.** Activations were most of the bytes in chapter 93. With 64 digits, how many bytes of activations
# does the tape keep with float16, in percent of those with float32?

# %%
guess = None  # percent


def bytes_of(enabled):
    x, y = batch_of(0, 64)
    with nn.amp.autocast(dtype="float16", enabled=enabled):
        loss = F.cross_entropy(net(x), y)
    return nn.memory(net, loss, nn.optim.Adam(net.parameters()))


wide, short = bytes_of(False), bytes_of(True)
predict(guess, 100 * short["activations"] / wide["activations"], unit="%")

# %%
print(f"{'':12}{'float32':>10}{'float16':>10}  bytes")
for kind in wide:
    print(f"{kind:12}{wide[kind]:10,}{short[kind]:10,}")

# %% [markdown]
# Activations take little more than half. The rest over the half is what did not become shorter: bytes that say where a
# pooling found its maximum, the scores as float32 for the loss, and the float16 copies of the weights, which are there
# in addition. Parameters, gradients and optimiser state are as before. So mixed precision helps where activations are
# most of the memory. A large network with a small batch needs other means, such as to divide the optimiser's state
# among GPUs ([chapter 100](100_data_parallelism.ipynb)).
#
# ## Time on a GPU
#
# Two bounds move. Where memory is the bound, as for activations and normalisation, half the bytes take half the time at
# best. Where arithmetic is the bound, as for large products, tensor cores have many times the rate of float32. What
# stays as it is: the optimiser, which works on float32, and the launches. And there are new kernels, which cast.
#
# A convolution has one more obstacle. Tensor cores take chunks of eight numbers that lie side by side in memory, and
# that belong to one sum. In an image of shape (C, H, W) the neighbours in memory are neighbours in a row, which meet
# different weights. So [our layers of 16 bits](../pmpp/kernels/convolution_layer/mixed.py) first write the image with
# its channels last, (H, W, C). Then eight channels of a pixel are a chunk, wherever the kernel of the layer stands.
# Moving the channels takes one more trip through the memory.
#
# The same kernel computes the gradient by the input, with the weights turned around. There is a catch if the layer has
# a stride: of the places of the output, only some have met a given pixel.
#
# **Predict, then run.** A layer of 3 x 3 has stride 2. For a pixel, the kernel that computes its gradient tries all 9
# weights. On average over all pixels, how many of these 9 meet a place of the output?

# %%
guess = None  # of 9

reach = np.arange(16)[:, None] + 1 - np.arange(3)  # pixel + padding - row of the kernel
met = ((reach % 2 == 0) & (reach >= 0) & (reach < 16)).sum(axis=1)
predict(guess, float(np.outer(met, met).mean()), unit="of 9")

# %% [markdown]
# About a quarter, so three quarters of these products would be with zeros. Pixels whose rows and columns have the same
# remainders by the stride use the same weights. So large layers are computed class by class, four of them for a stride
# of 2, as in [chapter 76](76_convolution_gradients.ipynb).
#
# Threads that gather chunks compute an address for each 16 bytes. On a Hopper GPU a copy engine brings whole boxes of a
# matrix instead ([chapter 43](43_warpgroups.ipynb)), and one thread asks for them. But an image is no matrix: the pixel
# to the left of a row's first one is not there, and has to be zero. [The layers that it
# brings](../pmpp/kernels/convolution_layer/mixed_boxes.py) put the zeros into memory. Behind each row of pixels lie as
# many zeros as the layer pads with, and behind each image as many rows of them. The zeros behind a row are also those
# before the next row. In this order each weight of a kernel leads from any place to the one that lies a fixed number of
# places further. So the pixels that a weight meets at 128 neighbouring places are one box.
#
# The price is that places of zeros are multiplied, too.
#
# **Predict, then run.** The last layers of ResNet-18 have images of 4 x 4 pixels, and a padding of 1. How many percent
# more places than pixels are there?

# %%
guess = None  # %

places = {side: (side + 1) ** 2 / side**2 - 1 for side in (4, 8, 16, 32)}
predict(guess, 100 * places[4], unit="%")

# %%
for side, more in places.items():
    print(f"{side:2} x {side:2} pixels: {100 * more:4.1f} % more places")

# %% [markdown]
# For large images the zeros cost next to nothing. For the smallest ones they are a third of all places, and to multiply
# them takes longer than to compute addresses. So a layer takes boxes only where there are few zeros: `MOST_GATHERED`
# and `MOST_PADDED` in that file say how many, for the outputs and for the gradient by the weights.
#
# `python -m pmpp.nn.measure.mixed` measures whole training steps of ResNet-18 and of a transformer in float32 and in
# bfloat16, beside PyTorch. If it has been recorded, the next cell has the times.

# %%
try:
    record = recorded("mixed")
    print(record["about"]["gpu"]["name"])
except RecordError as error:
    record = {"steps": {}}
    print(f"nothing recorded: {error}")
for name, row in record["steps"].items():
    print(f"{name}: " + ", ".join(f"{who} {ms:.2f} ms" for who, ms in row["ms"].items()))
    for who in ("ours", "torch"):
        times = [ms for kind, ms in row["ms"].items() if kind.startswith(who)]
        if len(times) == 2:
            print(f"    {who}: float32 takes {max(times) / min(times):.2f} times as long as 16 bits")

# %% [markdown]
# ## What to take along
#
# - float16 has 11 bits and ends at 65,504 and at 2^-24. bfloat16 has the range of float32, and 8 bits.
# - A sum loses terms that are less than half a spacing of it. So weights and sums stay in float32, and only operands of
#   products are short.
# - Small gradients become 0 in float16, and nothing says so. A scale on the loss shifts all of them into the range.
# - The dynamic rule: halve and leave the step out if something is not finite, double after many good steps.
# - bfloat16 needs no scale.
# - Activations become half as large. What belongs to parameters does not.
#
# ## Exercises
#
# 1. *Which spacing?* Below which size of a weight does a float16 notice a step of 1e-4 at all?
# 2. *Shares.* With which number of parts does the unscaled float16 begin to lose more than half of the gradients of the
#    first convolution? Find it with `alone` and `vanished`.
#
# ## Answers
#
# *mixed_precision/master:* the gradients become float32 first. A division in float16 would lose what the scale saved.


# %% jupyter={"source_hidden": true} tags=["answer"]
def step_answer(master, gradients, scale, rate):
    wide = gradients.astype(np.float32)
    if np.isfinite(wide).all():
        master -= rate * (wide / scale)
    return master.astype(np.float16)


check("mixed_precision/master", step_answer)

# %% [markdown]
# *mixed_precision/scaler:* three cases.


# %% jupyter={"source_hidden": true} tags=["answer"]
def update_answer(scale, good, finite, interval):
    if not finite:
        return scale / 2, 0
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


check("mixed_precision/scaler", update_answer)

# %% [markdown]
# *Which spacing?* A step counts if it is more than half a spacing. Numbers from 2^e to 2^(e+1) are 2^(e-10) apart, so
# half a spacing is 2^(e-11). This is below 1e-4 for e = -3, and above it for e = -2: the weight must be below 1/4.

# %% jupyter={"source_hidden": true} tags=["answer"]
for e in range(-5, 1):
    weight = np.float16(2.0**e * 1.5)
    print(
        f"weight {float(weight):8.5f}: a step of 1e-4 {'counts' if weight + np.float16(1e-4) != weight else 'is lost'}"
    )

# %% [markdown]
# *Shares.* More than half vanish when the median is below 2^-25, the half of float16's smallest number. The answer is
# an exponent: so many doublings of the number of parts.

# %% jupyter={"source_hidden": true} tags=["answer"]
print(next(k for k in range(40) if vanished({"conv1": alone["conv1"] * 2.0**-k}) > 50))

# %% [markdown]
# Go on with [chapter 106](106_a_language_model.ipynb): a transformer that trains in mixed precision, and then writes.
