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
# # 93. Where the memory goes
#
# *Parameters, gradients, optimiser state and activations; bytes through a step; gradients in parts; checkpointing;
# activations in few bits; the pool and fragmentation; a leak, found and mended. You need chapters 82, 85 and 88; it
# takes 75 minutes. PMPP 4e: chapters 5 and 16; 5e: chapters 5 and 19. The code is
# [pmpp/nn/summary.py](../pmpp/nn/summary.py), [pmpp/nn/utils/checkpoint.py](../pmpp/nn/utils/checkpoint.py),
# [pmpp/nn/utils/compressed.py](../pmpp/nn/utils/compressed.py) and
# [pmpp/nn/measure/memory.py](../pmpp/nn/measure/memory.py).*
#
# A training stops with "out of memory". The network has 11 million parameters, which is 45 MB, and the GPU has 80 GB.
# What fills the rest?
#
# **The questions of this chapter: which arrays live during a training step, when are they freed, and what can be paid
# to need fewer of them?**

# %%
import gc
import tracemalloc

import matplotlib.pyplot as plt
import numpy as np

from pmpp import nn, predict
from pmpp.kernels import activation
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn import tape
from pmpp.nn.exercises import check, exercise
from pmpp.nn.measure import recorded
from pmpp.nn.measure.memory import curve, in_use
from pmpp.nn.tape import Function, Tensor
from pmpp.nn.utils.checkpoint import checkpoint
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Four kinds of bytes
#
# Here is a small network for images of 8 x 8. Everything is float32, 4 bytes a number.


# %%
def make():
    nn.manual_seed(0)
    convolutions = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64, 10))


def batch_of(n):
    rng = np.random.default_rng(n)
    return Tensor(rng.standard_normal((n, 1, 8, 8), dtype=np.float32)), Tensor(rng.integers(0, 10, n))


net, (x, y) = make(), batch_of(16)
print(nn.summary(net, x))

# %% [markdown]
# - **Parameters**: 838 numbers.
# - **Gradients**: one for each parameter that is trained.
# - **Optimiser state**: what the optimiser remembers of each parameter between steps.
# - **Activations**: what the tape saved in the forward pass, because some `backward` will need it.
#
# **Predict, then run.** The optimiser is Adam, from [chapter 82](82_optimisers.ipynb). How many bytes does it keep for
# these 838 parameters?

# %%
guess = None  # bytes

optimizer = nn.optim.Adam(net.parameters())
loss = F.cross_entropy(net(x), y)
predict(guess, nn.memory(net, loss, optimizer)["optimiser"], unit="bytes")

# %% [markdown]
# Two means for each parameter: of its gradients, and of their squares. With parameters and gradients that makes four
# arrays of one size. Plain SGD has two, SGD with momentum three.
#
# `nn.memory` walks the tape and adds up what is saved there. Two tensors may be views of one piece of memory, such as
# a matrix and the same elements flattened, so it works with addresses: a byte counts once.

# %%
show(nn.memory)

# %% [markdown]
# That is a prediction: it looks at what the arrays say of themselves. `in_use` measures. In the interpreter it adds up
# all device arrays that live, and on a GPU it asks the pool. The difference before and after is what was added.


# %%
def bytes_of(make):
    """Bytes that what ``make`` returns holds; the first call fills what kernels keep for good."""
    make()
    gc.collect()
    before = in_use()
    kept = make()
    gc.collect()
    return in_use() - before, kept


# %%
def loss_of(n=16):
    x, y = batch_of(n)
    return F.cross_entropy(net(x), y)


measured, loss = bytes_of(loss_of)
predicted = nn.memory(net, loss, optimizer)
for name, size in predicted.items():
    print(f"{name:12} {size:8,} bytes")
print(f"measured after the forward pass: {measured:,} bytes more")

# %% [markdown]
# In the interpreter the measured number is that of the activations, and 4 bytes for the loss. (The pool of a GPU gives
# each array a multiple of 512 bytes.) The activations are several times all the rest together, for 16 small images.
#
# ## Batch size
#
# Parameters, gradients and optimiser state do not know the batch. Activations are kept for each image.
#
# **Predict, then run.** With 16 images the activations are what you have just seen. How many bytes are they with 64?

# %%
guess = None  # bytes

large = batch_of(64)
loss = F.cross_entropy(net(large[0]), large[1])
predict(guess, nn.memory(net, loss)["activations"], unit="bytes")

# %% [markdown]
# Four times as many. No library escapes that. We write the same forward pass in NumPy, for a network of two linear
# layers, keep what its gradient would need, and let Python's `tracemalloc` measure what the CPU holds.

# %%
w1, w2 = (np.ones(shape, np.float32) for shape in ((64, 256), (256, 10)))


def numpy_forward(n):
    tracemalloc.start()
    x = np.ones((n, 64), np.float32)
    h = x @ w1
    kept = x, h, np.maximum(h, 0)
    scores = kept[2] @ w2
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size, scores


# %%
dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def dense_loss(n):
    return F.cross_entropy(dense(Tensor(np.ones((n, 64), np.float32))), Tensor(np.zeros(n, np.int64)))


# %%
sizes = 4, 16, 64, 256
ours = [nn.memory(dense, dense_loss(n))["activations"] for n in sizes]
numpys = [numpy_forward(n)[0] for n in sizes]
fixed = sum(4 * 4 * p.size for p in dense.parameters())
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(sizes, ours, color=palette.COLOURS[0], marker="o", label="activations on the tape")
ax.plot(sizes, numpys, color=palette.COLOURS[1], marker="s", linestyle="--", label="NumPy, on the CPU")
ax.axhline(fixed, color=palette.COLOURS[2], linestyle=":", label="parameters, gradients, Adam")
ax.set(xscale="log", yscale="log", xlabel="images in a batch", ylabel="bytes")
ax.legend()
None

# %% [markdown]
# The activations are a line through the origin: the CPU needs the same bytes for the same work. The rest is constant.
# Where the lines cross depends on the layers. A linear layer uses each weight once for an image, so this network of
# linear layers crosses between one and two hundred images. A convolution uses each weight at every pixel: our small one
# has 838 parameters, and keeps more numbers than that for a single image.
#
# ## Bytes through a step
#
# When is most memory in use? `curve` looks after the forward pass of each layer, and after the backward pass of each
# operation.

# %%
loss = None  # the last one holds a tape
net.zero_grad()
gc.collect()
with curve() as seen:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
for direction, path, size in seen.points:
    print(f"{direction:9} {path:16} {size - seen.before:9,} bytes more than before")

# %% [markdown]
# Read it from the top. Each layer adds its result. The pooling adds less: its result, and one byte for each, which says
# where the maximum stood. Flattening gives bytes back. The result of the last ReLU was kept by its name alone, since
# the pooling does not need it, and now the name stands for something else. On the way back each node computes a
# gradient of its input, and then what it saved is freed.
#
# **Predict, then run.** When the step is over and the loss is gone, what is left beyond what was there before? (The
# gradients had been dropped, by `net.zero_grad()`.)

# %%
guess = None  # what is left: "activations", "gradients" or "nothing"

del loss
gc.collect()
left = in_use() - seen.before
trained = sum(4 * p.size for p in net.parameters())
kinds = {"nothing": 0, "gradients": trained, "activations": predicted["activations"]}
predict(guess, min(kinds, key=lambda kind: abs(kinds[kind] - left)), choices=list(kinds))

# %%
print(f"{left:,} bytes are left; the parameters have {trained:,}")

# %%
levels = np.array([size - seen.before for _, _, size in seen.points])
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ways = [direction for direction, _, _ in seen.points]
for way, colour, marker in (("forward", palette.COLOURS[0], "o"), ("backward", palette.COLOURS[1], "s")):
    at = [i for i, one in enumerate(ways) if one == way]
    ax.plot(at, levels[at], color=colour, marker=marker, label=way)
ax.set(xlabel="layers forwards, then operations backwards", ylabel="bytes more than before")
ax.legend()
None

# %% [markdown]
# A mountain with two tops. Going back, the large layers come late: their activations are all still there, and the
# gradient of a result and that of an input come on top. So the tape frees as early as it can, and yet the peak is more
# than the sum of all activations. To lower it, something must be kept *less*, or *not at all*.
#
# ### Exercise: keep less
#
# A convolution keeps its input, the ReLU behind it keeps the convolution's result, and the next convolution keeps the
# ReLU's result. One of these three is not needed.

# %%
exercise("memory/relu")


# %%
class ReLU(Function):
    """max(x, 0)."""

    @staticmethod
    def forward(context, x):
        return x.array  # your code

    @staticmethod
    def backward(context, dy):
        return None  # your code


check("memory/relu", ReLU)

# %% [markdown]
# ## Gradients in parts
#
# The loss of a batch is the mean over its images, and so is its gradient. A mean can be computed in parts. Take a
# quarter of the batch, weigh its loss by a quarter, call `backward`, and do not call `zero_grad`: the gradients add up.
# The step of the optimiser comes after the last part. This is *gradient accumulation*.

# %%
images, labels = batch_of(16)


def gradients(net, parts):
    """The gradients of a batch that is cut into equal parts, and the most bytes in use."""
    net.zero_grad()
    numbers, n = labels.numpy(), 16 // parts
    with curve() as seen:
        for i in range(0, 16, n):
            loss = F.cross_entropy(net(images[i : i + n]), Tensor(numbers[i : i + n])) * (1 / parts)
            loss.backward()
    return [p.grad.numpy() for p in net.parameters()], seen.peak - seen.before


# %%
def apart(first, second):
    a, b = (np.concatenate([array.ravel() for array in arrays]) for arrays in (first, second))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# %% [markdown]
# **Predict, then run.** With four parts instead of one, which share of the peak is left?

# %%
guess = None  # percent

(whole, all_at_once), (four, a_quarter) = gradients(net, 1), gradients(net, 4)
predict(guess, 100 * a_quarter / all_at_once, unit="%")

# %% [markdown]
# Somewhat more than a quarter. The gradients of the parameters are there in both, and with four parts each is there
# twice for a moment: the sum so far, and the new one.

# %%
print(f"the gradients differ by {apart(four, whole):.1e} of their length")

# %% [markdown]
# That is rounding: sums in another order. Is it always so? It is if the loss is a mean of losses of single images.
# Batch normalisation breaks that. It normalises by the moments of the images that it sees *together*. A quarter of a
# batch has other moments.

# %%
nn.manual_seed(0)
flat = nn.Flatten(), nn.Linear(256, 10)
normalised = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *flat)
(one, _), (parts, _) = gradients(normalised, 1), gradients(normalised, 4)
print(f"with batch normalisation the gradients differ by {apart(parts, one):.0%} of their length")

# %% [markdown]
# It is no error: it is the training of another network, one that was normalised by batches of four. Layer normalisation
# looks at one example at a time, and has no such difference.
#
# ### Exercise: parts that are not equal
#
# A batch of ten, in parts of at most four.

# %%
exercise("memory/accumulate")


# %%
def accumulate(net, x, y, size):
    pass  # your code


check("memory/accumulate", accumulate)

# %% [markdown]
# ## Checkpointing: time for bytes
#
# What is not kept can be computed again. A *checkpointed* part of a network keeps its input alone. When the backward
# pass arrives there, the part runs forward once more, now with a tape, and then backward. PyTorch has the same under
# the same name. The whole of it is a `Function`:

# %%
show(nn.checkpoint._Checkpoint.forward)
show(nn.checkpoint._Checkpoint.backward)

# %% [markdown]
# `init.resume` is there for dropout: the second time it must drop the same elements.
#
# How long should a part be? Let $n$ equal layers be cut into $k$ parts. Kept are the inputs of $k$ parts. While one
# part is computed again, the activations of its $n/k$ layers live, too. Together that is $k + n/k$ activations. Few
# long parts have a large second term, many short ones a large first.

# %%
layers = nn.Sequential(*(nn.Tanh() for _ in range(16)))
values = Tensor(np.ones((64, 64), np.float32), requires_grad=True)
one = 4 * values.size  # bytes of an activation


def deep(k):
    """The gradient through 16 layers in k parts (0: none is checkpointed), the peak, and the layers' forward passes."""
    values.grad, y = None, values * 1.0
    with curve() as seen:
        for part in np.split(np.arange(16), k or 1):
            stage = nn.Sequential(*[layers[i] for i in part])
            y = checkpoint(stage, y) if k else stage(y)
        y.sum().backward()
    return values.grad.numpy(), seen.peak - seen.before, sum(way == "forward" for way, _, _ in seen.points)


# %% [markdown]
# **Predict, then run.** There are 16 layers. Which number of parts needs the fewest bytes: 1, 2, 4, 8 or 16?

# %%
guess = None  # parts

found = {k: deep(k) for k in (0, 1, 2, 4, 8, 16)}
predict(guess, min((1, 2, 4, 8, 16), key=lambda k: found[k][1]), unit="parts")

# %% [markdown]
# $k + n/k$ is smallest where its two terms are equal, at $k = \sqrt n$. This is the rule of the square root: a network
# of a hundred layers keeps about twenty activations.

# %%
plain = found[0]
for k, (gradient, peak, calls) in found.items():
    same = "the same" if (gradient == plain[0]).all() else "another"
    rule = f"{k + 16 / k:4.0f}" if k else "  16"
    print(f"parts {k:2}: peak {peak / one:4.1f} activations (rule {rule}), {calls} layers forwards, {same} gradient")

# %%
counts = np.array([1, 2, 4, 8, 16])
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
peaks = [found[k][1] / one for k in counts]
ax.plot(counts, peaks, color=palette.COLOURS[0], marker="o", label="measured")
ax.plot(counts, counts + 16 / counts, color=palette.COLOURS[1], linestyle="--", marker="s", label="k + 16 / k")
ax.axhline(plain[1] / one, color=palette.COLOURS[2], linestyle=":", label="no checkpoints")
ax.set(xscale="log", xlabel="parts k", ylabel="activations at the peak", xticks=counts, ylim=(0, 22))
ax.set_xticklabels(counts)
ax.minorticks_off()
ax.legend()
None

# %% [markdown]
# The measured curve has the form of the rule, and lies one activation above it: the gradient that has arrived at the
# end of a part waits while the part is computed again. On the way back through the part nothing is added, since each
# layer gives up an activation when it makes a gradient. One part, or sixteen, save nothing at all.
#
# The price is one more forward pass. A backward pass computes two gradients, by the input and by the weights, and costs
# about as much as two forward passes. So a step of three units becomes one of four: a third more time. What is made of
# cheap layers, as here, pays half, since there forward and backward cost the same.
#
# Two things to know. The function is called twice, so whatever it does besides its result is done twice. Batch
# normalisation updates its running mean twice. And the last part need not be checkpointed: what it keeps is needed at
# once.

# %%
bn, seen_mean = nn.BatchNorm2d(1), []
shifted = Tensor(np.full((2, 1, 2, 2), 1, np.float32) + np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2))
for use in (False, True):
    bn.running_mean.copy_(np.zeros(1, np.float32))
    y = checkpoint(bn, shifted) if use else bn(shifted)
    y.sum().backward()
    seen_mean.append(float(bn.running_mean.numpy()[0]))
print("running mean after one step, plain and checkpointed:", np.round(seen_mean, 3).tolist())

# %% [markdown]
# ## Fewer bits: noise for bytes
#
# A third way keeps every activation, in few bits. [Chapter 85](85_compressed_activations.ipynb) has the kernels. Within
# `nn.compressed_activations(bits)` a linear layer or a convolution keeps codes of its input, and ReLU a bit for each
# number. The forward pass computes with the numbers themselves. So the loss does not change, and of the gradients only
# those of the weights get noise, whose expectation is 0.

# %%
show(nn.compressed_activations.input)
show(nn.compressed_activations.signs)

# %% [markdown]
# **Predict, then run.** For `net` and its 16 images, which share of the activations' bytes is left with 4 bits? The
# batch is kept as it is, and so is what other layers keep: a byte for each result of the pooling, and what the loss
# needs. The first convolution keeps the batch, and each ReLU has a convolution's result as its input.

# %%
guess = None  # percent

whole = nn.memory(net, F.cross_entropy(net(images), labels))["activations"]
with nn.compressed_activations(4):
    packed = nn.memory(net, F.cross_entropy(net(images), labels))["activations"]
predict(guess, 100 * packed / whole, unit="percent", within=0.15)

# %% [markdown]
# The largest part of what is left is the batch.
#
# What do few bits cost? `python -m pmpp.nn.measure.compressed` trains the network of
# [chapter 89](89_a_network_that_learns.ipynb) on real digits, each time from several seeds. "Known" is the share of
# 360 digits it has not seen that it names correctly. The bytes are those of 64 images, and here the batch itself does
# not count. The distance of a gradient is a share of its length.

# %%
try:
    few = recorded("compressed")
except RecordError as error:
    few = {"training": {}, "gradient": {}, "networks": {}}
    print(error)
for way, rows in few["training"].items():
    shares = 100 * np.array([row["accuracy"] for row in rows])
    print(f"{way:16}{rows[0]['kept']:9,} bytes kept; {shares.mean():.2f} % known ({shares.min():.1f} to", end=" ")
    print(f"{shares.max():.1f}, {len(rows)} seeds)")
for way, off in few["gradient"].items():
    print(f"{way:16} a gradient is off by {off['one']:.1%}, and the mean of {few['many']} by {off['mean']:.1%}")

# %% [markdown]
# With a bit for ReLU alone nothing is lost: the gradients are the same. Yet most of the bytes are gone. In this network
# a ReLU stands before each pooling, so its input is four times as large as what the next layer keeps.
#
# With codes that are rounded at random, a gradient is off by some share of its length, and the mean of many gradients
# by far less. With codes to the nearest, the mean is as far off as each gradient.
#
# The accuracies do not tell the ways apart. Their means differ by less than the seeds of a single way do, and one digit
# of 360 is 0.28 %. What they show is that this small network learns with 2 bits, too. Even the bias of rounding to the
# nearest does no harm here that stands out from the seeds.
#
# Larger networks have larger activations. There the bytes count, and so does the time of the kernels that compress. The
# measurement begins nothing new after a number of seconds (`--budget`), so a record may lack networks or ways.

# %%
for name, ways in few["networks"].items():
    for way, row in ways.items():
        sizes = f"kept {row['kept'] / 2**20:8.1f} MiB, peak {row['peak'] / 2**20:8.1f} MiB"
        print(f"{name:24}{way:16}{sizes}, {row['ms']:6.2f} ms a step")

# %% [markdown]
# In ResNet-18 more stays. It keeps three arrays for a convolution: its input, that of the normalisation and that of the
# ReLU. The normalisation's is kept as it is. So more than a third of the bytes stays, however few bits a code has. In
# LeNet-5 a pooling follows each convolution's ReLU, as in the network of the digits, and the bits for ReLU save most.
#
# ## The pool
#
# Until now we counted what arrays hold. The driver may see more. To ask it for memory takes longer than many kernels,
# and to give memory back makes it wait for all of them. So libraries keep a *pool*. They ask for large pieces, cut
# arrays out of them, and keep what is freed for the next array of such a size. This is why `nvidia-smi` shows memory
# that no array holds, and why a training is fast from the second step on: each size has been seen before.
#
# A pool can have enough free bytes and still no place. Here is one of 8 MiB as a list of free ranges, first fit.


# %%
class Pool:
    """Free ranges of one piece of memory, in MiB; what does not fit is asked of the driver."""

    def __init__(self, size):
        self.free, self.asked = [(0, size)], size

    def take(self, size):
        for i, (first, last) in enumerate(self.free):
            if last - first >= size:
                self.free[i] = first + size, last
                return first, first + size
        self.asked += size
        return self.asked - size, self.asked

    def give(self, taken):
        self.free.append(taken)


# %% [markdown]
# **Predict, then run.** Eight arrays of 1 MiB fill it. Every second one is freed, so 4 MiB are free. Then somebody
# wants an array of 2 MiB. How many MiB has the pool asked the driver for by then?

# %%
guess = None  # MiB

pool = Pool(8)
taken = [pool.take(1) for _ in range(8)]
for one_of_them in taken[::2]:
    pool.give(one_of_them)
pool.take(2)
predict(guess, pool.asked, unit="MiB")

# %% [markdown]
# No two free megabytes are neighbours. That is *fragmentation*: "out of memory" with 4 MiB free. It comes from sizes
# that change: sentences of every length, a last batch that is smaller. The cures are to pad to a few sizes, to drop the
# last batch (`drop_last=True`), and to allocate what lives long before what lives briefly.
#
# ## Leaks
#
# Python frees an array when nobody can reach it. A *leak* is an array that somebody still reaches, and that nobody will
# use. On a tape that happens easily: a loss has a node, which has what it saved and the nodes before it.


# %%
def stepped():
    net.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss


# %% [markdown]
# **Predict, then run.** A training loop keeps its losses in a list, `losses.append(loss)`, after `loss.backward()`. The
# activations of a step are those from above. How many bytes of device memory does a step add to the list?

# %%
guess = None  # bytes

losses = [stepped()]
gc.collect()
before = in_use()
losses += [stepped(), stepped()]
gc.collect()
predict(guess, (in_use() - before) // 2, unit="bytes")

# %% [markdown]
# Only the loss itself. `backward` has freed what the nodes saved. But the nodes are there, in the memory of the host,
# some for each layer and each step. Now the same with losses of held-out images, for which nobody calls `backward`:

# %%
nodes = sum(isinstance(found, tape.Node) for found in gc.get_objects())
print(f"{nodes} nodes live")
held, kept = bytes_of(lambda: [loss_of(), loss_of()])
print(f"two losses that no backward() was called on hold {held:,} bytes")
held, kept = bytes_of(lambda: [loss_of().item(), loss_of().item()])
print(f"two numbers hold {held:,} bytes")
with nn.no_grad():
    held, kept = bytes_of(lambda: [loss_of(), loss_of()])
print(f"two losses within no_grad() hold {held:,} bytes")

# %% [markdown]
# All activations of all batches. This is the leak that ends a training during its first evaluation. A sum of such
# losses, `total = total + loss`, is no better: its node leads to all of them. Keep numbers, `loss.item()`, or evaluate
# within `no_grad()`. And a function that is called for every layer, a *hook*, must not store what it is given.
#
# ### Exercise: three leaks
#
# This epoch has all three.

# %%
exercise("memory/leak")

# %%
SEEN = []


def epoch(net, optimizer, training, held_out):
    tape.state.watch = lambda path, module, result: SEEN.append(result)
    losses, total = [], 0
    for x, y in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    for x, y in held_out:
        total = total + F.cross_entropy(net(x), y)
    return losses, total * (1 / len(held_out))


check("memory/leak", epoch)

# %% [markdown]
# ## On a GPU
#
# `python -m pmpp.nn.measure.memory` does all of this with LeNet-5 and with ResNet-18, on a GPU and beside PyTorch: as
# they are, with each stage but the last checkpointed, and in four parts. Both libraries compute in float32, without
# TF32. A record may lack some of these: the command stops when its budget is spent.

# %%
try:
    record = recorded("memory")
    print(record["about"]["gpu"]["name"])
except RecordError as error:
    record = {"rows": {}}
    print(error)
GIB = 2**30
for name, row in record["rows"].items():
    for who, found in (("ours", row["ours"]), ("PyTorch", row.get("torch"))):
        if found:
            kept, peak = found["after forward"] / GIB, found["peak"] / GIB
            print(f"{name:36}{who:8} kept {kept:.3f} GiB, peak {peak:.3f} GiB, {found['ms']:6.2f} ms")

# %% [markdown]
# *Kept* is what the forward pass adds to the memory in use. In the plain ResNet-18 PyTorch keeps less, for the reason
# that you know from the exercise *keep less*. Our ReLU keeps its input, which is the result of a batch normalisation
# or a sum, and nothing else needs that. PyTorch's ReLU keeps its result, which the next convolution keeps anyway. So
# PyTorch keeps two arrays for a convolution with its normalisation and ReLU, where we keep three. In the plain
# LeNet-5 it is the other way round. There a pooling follows each ReLU, and PyTorch's pooling keeps the place of each
# maximum as an integer of 8 bytes. Ours keeps one byte. With checkpoints both keep the inputs of the stages and what
# the last stage needs, so they are close to each other.
#
# This is what each form of a step saves and costs, as shares of the plain step. With four parts, *kept* is for one
# part:

# %%
plain = {name.rpartition(", ")[0]: row["ours"] for name, row in record["rows"].items() if name.endswith(", plain")}
for name, row in record["rows"].items():
    if (case := name.rpartition(", ")[0]) in plain:
        kept, peak, ms = (row["ours"][what] / plain[case][what] for what in ("after forward", "peak", "ms"))
        print(f"{name:36} kept {kept:.2f}, peak {peak:.2f}, time {ms:.2f}")

# %%
groups = {}
for name, row in record["rows"].items():
    groups.setdefault(name.rpartition(", ")[0], {})[name.rpartition(", ")[2]] = row["ours"]
if not groups:
    print("There is no record yet.")
for case, rows in list(groups.items())[:2]:
    figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for (variant, row), colour, style in zip(rows.items(), palette.COLOURS, ("-", "--", ":"), strict=False):
        sizes = np.array([size for _, _, size in row["points"]]) / GIB
        ax.plot(np.linspace(0, 1, len(sizes)), sizes, color=colour, linestyle=style, label=variant)
    ax.set(xlabel=f"through a step of {case}", ylabel="GiB in use")
    ax.legend()
None

# %% [markdown]
# The plain step of ResNet-18 rises steeply first, since its early layers have the largest images. Its late layers have
# most of the weights but small images, and the curve becomes flat. On the way back the order is reversed: what keeps
# most is freed last. The peaks in the list can be higher than those of the curve, because they include what kernels
# need while they run.

# %%
if record["rows"]:
    for name, row in record["rows"].items():
        mine = row["ours"]
        batch = mine["batch"] // (record["parts"] if "accumulated" in name else 1)  # was there before
        share = mine["after forward"] / (mine["predicted"]["activations"] - batch)
        print(f"{name:36} after the forward pass {share:5.2f} of what was predicted")
    print(", ".join(f"{size:,} bytes in use {when}" for when, size in record.get("flat", {}).items()))

# %% [markdown]
# The predicted bytes and the measured ones differ by the pool's rounding. The last line is a test for leaks: LeNet-5 is
# trained with AdamW on the same batch. If each step left a single array behind, of which the pool makes at least 512
# bytes, the second number would be larger than the first by 998 times 512, which is half a megabyte. If the two differ
# at all, it is by far less.
#
# Checkpointing lowers what is kept after the forward pass. It need not lower the peak. The first stage of LeNet-5 keeps
# most of its bytes. When it is computed again, all of them are there at once, with the gradient that arrives on top.
# The rule of the square root is about many layers that are alike.
#
# Parts do lower the peak, unless the whole batch is small. What they cost depends on what bounds a step. In the plain
# step of ResNet-18 with 512 images the kernels take much longer than the host needs to launch them. There checkpointing
# costs what was said above: a forward pass more, which is about a third of the time. With 128 images the host can
# hardly keep ahead of the kernels, and checkpointing may cost more, since it has more launches, too. Where the host is
# the bound already, as with LeNet-5 and 1,024 images, times scatter by more than a forward pass costs.
#
# Four parts have four times as many launches for the same work. Where the kernels of a part are short, the host becomes
# the bound, and the step can take several times as long. With ResNet-18 and 512 images a part is long enough to hide
# most of its launches, and four parts take no more time than checkpointing does. A CUDA graph
# ([chapter 22](22_launches.ipynb)) makes launches cheap.
#
# ## What to take along
#
# - Parameters, gradients and optimiser state are fixed. Activations grow with the batch, and in convolutional networks
#   they are nearly everything.
# - Bytes rise through the forward pass and fall through the backward pass. The peak lies in the backward pass, where
#   gradients of large results stand beside the activations.
# - What a layer saves is a choice: a ReLU needs its result only, which the next layer keeps anyway.
# - Accumulation: the same gradient in parts, with the activations of one part. Batch normalisation sees the parts.
# - Checkpointing: $2\sqrt n$ activations instead of $n$, for one more forward pass.
# - Few bits: every activation is kept, in a fraction of its bytes, for noise in the gradients of weights.
# - A pool keeps what was freed. Sizes that change fragment it.
# - A loss holds the tape. Keep numbers, evaluate within `no_grad()`, take hooks off again.
#
# ## Exercises
#
# 1. *Which layer?* Use `curve` to find which layer of `net` adds most bytes. Would you checkpoint it?
# 2. *Parts and parts.* Accumulation and checkpointing can be combined. Which of the two would you try first when memory
#    is short, and when can it not be used?
#
# ## Answers
#
# *memory/relu:* the result is saved, and the kernel of the gradient is given it in the place of the input.


# %% jupyter={"source_hidden": true} tags=["answer"]
class LeanReLU(Function):
    """max(x, 0), which keeps its result."""

    @staticmethod
    def forward(context, x):
        y = activation.fused(x.array, "relu")
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return activation.backward(dy, context.saved[0], "relu")


check("memory/relu", LeanReLU)

# %% [markdown]
# *memory/accumulate:* each part counts by its share of the images.


# %% jupyter={"source_hidden": true} tags=["answer"]
def accumulate_answer(net, x, y, size):
    total, numbers = 0.0, y.numpy()
    for i in range(0, len(x), size):
        part = x[i : i + size]
        loss = F.cross_entropy(net(part), Tensor(numbers[i : i + size])) * (len(part) / len(x))
        loss.backward()
        total += loss.item()
    return total


check("memory/accumulate", accumulate_answer)

# %% [markdown]
# *memory/leak:* numbers instead of losses, no tape for the held-out images, and no hook.


# %% jupyter={"source_hidden": true} tags=["answer"]
def epoch_answer(net, optimizer, training, held_out):
    losses = []
    for x, y in training:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with nn.no_grad():
        return losses, float(np.mean([F.cross_entropy(net(x), y).item() for x, y in held_out]))


check("memory/leak", epoch_answer)

# %% [markdown]
# *Which layer?* Both convolutions and the ReLUs behind them add the same, four channels of 8 x 8 for each image. To
# compute a convolution again costs most. A ReLU, or a normalisation, is cheap to compute and as large to keep:
# checkpoint those first.


# %% jupyter={"source_hidden": true} tags=["answer"]
forwards = [(path, size) for way, path, size in seen.points if way == "forward"]
steps = zip([("before", seen.before), *forwards], forwards, strict=False)
print({path: size - earlier for (_, earlier), (path, size) in steps})

# %% [markdown]
# *Parts and parts.* Accumulation first: it computes nothing twice, though smaller batches may use a GPU less well. It
# cannot be used with batch normalisation without changing the network, and not at all once a part is a single image.
#
# Go on with [chapter 94](94_incremental_learning.ipynb): a trained network that learns two new digits.
