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
# # 100. Data parallelism
#
# *Several GPUs: one batch on several ranks, averaged gradients, buckets and overlap, gradients of 16 bits, batch
# normalisation across ranks, divided optimisers, gradients and parameters, stale gradients, strong and weak scaling.
# You need chapters 54, 89, 93 and 99; it takes 105 minutes. PMPP 4e: chapter 20; 5e: chapter 23. The code is
# [pmpp/parallel/data.py](../pmpp/parallel/data.py), [pmpp/parallel/sharded.py](../pmpp/parallel/sharded.py),
# [pmpp/parallel/overlap.py](../pmpp/parallel/overlap.py) and
# [pmpp/parallel/exercises/data_parallelism.py](../pmpp/parallel/exercises/data_parallelism.py).*
#
# [Chapter 99](99_all_reduce.ipynb) summed the gradients of eight GPUs. This chapter is about what stands around that
# sum: how the examples are divided, what has to be equal on all ranks, and when the sum is made.
#
# **The questions of this chapter: which network do several ranks train, if each sees a part of the batch? And how many
# ranks are worth their price?** The first one is answered by running ranks. For the second one we use a model of time.
# (As in chapter 99 ranks are threads, so this chapter does not run in the browser edition.)

# %%
import numpy as np

from pmpp import nn, parallel, predict
from pmpp.lab.draw import knobs
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import Links, data, figures, overlap, sharded
from pmpp.parallel.exercises import check, exercise
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## A batch in parts
#
# A training step takes a batch of B examples. Its loss is the mean of the losses of the examples, and its gradient is
# the mean of their gradients $g_i$. Let p ranks have B/p examples each. Rank r computes the mean of its own part. The
# mean of these p means is the gradient of the whole batch:
#
# $$\frac{1}{p} \sum_r \left( \frac{p}{B} \sum_{i \text{ of rank } r} g_i \right) = \frac{1}{B} \sum_i g_i$$
#
# So each rank keeps a copy of the whole network, computes the gradient of its own examples, and takes part in one
# all-reduce. Then every rank makes the same step. This is *data parallelism*: the data are divided, and the network is
# not.
#
# We use the digits of [chapter 89](89_a_network_that_learns.ipynb) and a network of two linear layers. It is small
# enough that several ranks train it in the interpreter within a second.

# %%
BATCH, STEPS, RATE = 32, 8, 0.5

images, labels = digits.datasets()[0][: BATCH * STEPS]
images, labels = images.reshape(len(images), -1), labels.astype(np.int64)


class Net(nn.Module):
    def __init__(self):
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


print(images.shape, labels.shape, "parameters:", sum(parameter.size for parameter in Net().parameters()))

# %% [markdown]
# `data.batches` says which examples are a rank's own. All ranks shuffle with the same seed, and each takes its part of
# each batch. Together the ranks have the batches that one rank would have.

# %%
for rank in range(4):
    print(f"rank {rank} of 4 begins with the examples", next(data.batches(len(labels), BATCH, rank, 4)))
print("one rank begins with", next(data.batches(len(labels), BATCH, 0, 1)))

# %% [markdown]
# ## The reference
#
# First NumPy, in float64 and on one CPU. `by_hand` returns the loss of a batch and the gradients of the four arrays of
# parameters. For later it also sums the *absolute* gradients of the examples.


# %%
def by_hand(parameters, x, y):
    w, b, v, c = parameters
    hidden = np.maximum(x @ w.T + b, 0)
    scores = np.exp(hidden @ v.T + c)
    share = scores / scores.sum(axis=1, keepdims=True)
    loss = -np.log(share[np.arange(len(y)), y]).mean()
    dscores = (share - np.eye(10)[y]) / len(y)
    dhidden = dscores @ v * (hidden > 0)

    def both(dy, x):
        return dy.T @ x, dy.sum(axis=0)

    return loss, both(dhidden, x) + both(dscores, hidden), both(abs(dhidden), abs(x)) + both(abs(dscores), hidden)


# %% [markdown]
# Training begins with the parameters of seed 0. Here is their loss for the first 32 examples, which are not shuffled
# yet.


# %%
def start():
    nn.manual_seed(0)
    return [parameter.detach().numpy().astype(np.float64) for parameter in Net().parameters()]


x, y = images[:BATCH].astype(np.float64), labels[:BATCH]
print("the loss before the first step:", by_hand(start(), x, y)[0])

# %% [markdown]
# ## The program of a rank
#
# Two lines make it a program for several ranks. At the beginning rank 0 sends its parameters to all (`broadcast`). And
# between the backward pass and the step, each gradient becomes the mean of all ranks' gradients.


# %%
def network(group, alike=True):
    nn.manual_seed(group.rank)  # each rank draws numbers of its own
    net = Net()
    for parameter in net.parameters() if alike else ():
        group.broadcast(parameter.array, out=parameter.array)
        parameter.changed()
    return net


def backward(group, net, mine, op="mean"):
    loss = F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine]))
    loss.backward()
    for parameter in net.parameters():
        group.all_reduce(parameter.grad.array, op, out=parameter.grad.array)
    return group.all_reduce(loss.array, "mean").copy_to_host().item()


# %% [markdown]
# `parameter.changed()` tells the tape of [chapter 88](88_a_tape.ipynb) that the array has other numbers now. The loss
# is averaged for us alone: the training does not need it.


# %%
def weights_of(net):
    return np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in net.parameters()])


def train(group, op="mean", alike=True):
    net = network(group, alike)
    optimizer = nn.optim.SGD(net.parameters(), lr=RATE)
    losses, first = [], weights_of(net)
    for mine in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        losses.append(backward(group, net, mine, op))
        optimizer.step()
    return losses, first, weights_of(net)


# %% [markdown]
# One rank, and four:

# %%
one = parallel.ranks(1, train)
four = parallel.ranks(4, train)
four.report

# %% [markdown]
# The broadcasts in this report are those of the four arrays of parameters, at the beginning. Each step has an
# all-reduce for each of the four gradients, and one for the loss.
#
# ## How equal is equal?
#
# In exact arithmetic four ranks compute what one does. Here sums are rounded, and four ranks add in another order.
#
# **Predict, then run.** After the backward pass of the first batch there are 1,210 gradients. How many of them have
# other bits with four ranks than with one?


# %%
guess = None  # gradients


def first_gradients(group):
    net = network(group)
    backward(group, net, next(data.batches(len(labels), BATCH, group.rank, group.size)))
    return np.concatenate([parameter.grad.numpy().reshape(-1) for parameter in net.parameters()])


alone, parts = parallel.ranks(1, first_gradients)[0], parallel.ranks(4, first_gradients)
predict(guess, int((parts[0] != alone).sum()), unit="gradients")

# %% [markdown]
# How far apart may they be? A gradient is a sum of B numbers $g_i / B$. `by_hand` has the sum S of their absolute
# values. Added in any order, the error of the sum is at most about $B \varepsilon / 2$ times S, where $\varepsilon$ is
# the epsilon of float32 ([chapter 38](38_numerics.ipynb)). Two orders differ by at most twice as much: $B \varepsilon
# S$.

# %%
batch = next(data.batches(len(labels), BATCH, 0, 1))
_, exact, absolute = by_hand(start(), images[batch].astype(np.float64), labels[batch])
bound = BATCH * np.finfo(np.float32).eps * np.concatenate([part.reshape(-1) for part in absolute])
apart = abs(parts[0].astype(np.float64) - alone)
assert (apart <= bound).all()
assert all((part == parts[0]).all() for part in parts), "ranks have different gradients"
print(
    f"largest difference {apart.max():.1e}; it is at most {(apart / np.maximum(bound, 1e-30)).max():.1%} of its bound"
)

# %% [markdown]
# All four ranks have the same bits, as every algorithm of chapter 99 promises. So their networks stay equal *to the
# bit*, however long they train. Towards the training by one rank there is a difference, which the bound limits.
#
# The differences go into the parameters, and from there into the next losses. To first order a loss changes by the
# gradient times the change of the parameters. After s steps these differ by at most the rate times the bounds of all s
# gradients. The next cell follows this bound through the training.


# %%
def reference():
    parameters, eps = start(), np.finfo(np.float32).eps
    differ = [np.zeros_like(parameter) for parameter in parameters]
    losses, bounds = [], []
    for mine in data.batches(len(labels), BATCH, 0, 1):
        loss, gradients, absolute = by_hand(parameters, images[mine].astype(np.float64), labels[mine])
        losses.append(loss)
        bounds.append(BATCH * eps * loss + sum((abs(g) * d).sum() for g, d in zip(gradients, differ, strict=True)))
        for k, parameter in enumerate(parameters):
            parameter -= RATE * gradients[k]
            differ[k] += RATE * BATCH * eps * absolute[k] + eps * abs(parameter)
    return losses, bounds


# %% [markdown]
# Here are the losses of one rank and of four, with their difference and what is allowed.

# %%
by_numpy, bounds = reference()
for step, (a, b, allowed) in enumerate(zip(one[0][0], four[0][0], bounds, strict=True)):
    assert abs(a - b) <= allowed
    print(f"step {step}: one rank {a:.7f}, four ranks {b:.7f}, apart {abs(a - b):.1e}, allowed {allowed:.1e}")

# %% [markdown]
# The losses of four ranks are those of one, within a bound that we derived and did not tune. That is the test of a
# data-parallel program: not "the loss goes down", but "the loss is that of one rank". The next two programs show why.
#
# ## The sum in place of the mean
#
# **Predict, then run.** Four ranks forget to divide, and use the sum of their gradients. How many times as far does the
# first step go?

# %%
guess = None  # times as far


def length_of_a_step(group, op):
    net = network(group)
    before = weights_of(net)
    backward(group, net, next(data.batches(len(labels), BATCH, group.rank, group.size)), op)
    nn.optim.SGD(net.parameters(), lr=RATE).step()
    return np.linalg.norm(weights_of(net) - before)


lengths = [parallel.ranks(4, length_of_a_step, op)[0] for op in ("sum", "mean")]
predict(guess, lengths[0] / lengths[1], unit="times as far")

# %% [markdown]
# The sum acts as a rate that is p times as large. With a small rate nobody may notice on two ranks, and the training
# falls apart on sixteen. With Adam it hides even better, since Adam divides by the size of the gradients.
#
# ## Without the first broadcast
#
# Now the ranks average as they should, but each begins with numbers of its own.
#
# **Predict, then run.** Before the first step the parameters of rank 1 are some distance from those of rank 0. By which
# factor does the distance change in eight steps?

# %%
guess = None  # times the distance

unlike = parallel.ranks(4, train, "mean", False)
(_, first0, last0), (_, first1, last1) = unlike[:2]
predict(guess, np.linalg.norm(last1 - last0) / np.linalg.norm(first1 - first0), unit="times the distance")

# %% [markdown]
# It stays. All ranks take the same steps, from different places, so they never meet. Each of them steps by a gradient
# that belongs to none of the networks. We compare the losses.

# %%
too_far = parallel.ranks(4, train, "sum")
curves = {"NumPy, one batch": by_numpy, "one rank": one[0][0], "four ranks": four[0][0]}
figures.losses(curves | {"sum of gradients": too_far[0][0], "no broadcast": unlike[0][0]})

# %% [markdown]
# NumPy, one rank and four ranks lie on one line. With the sum the steps are too long, and the loss jumps. Without the
# broadcast the loss goes down, but slowly: a curve that looks like a training. Nobody finds such a mistake by watching
# the loss. `group.same` finds it: it compares a digest of 32 bytes, and names the array and the rank.


# %%
def compare(group):
    net = network(group, alike=False)
    for name, parameter in net.named_parameters():
        group.same(parameter.array, name)


try:
    parallel.ranks(4, compare)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# The same check finds a rank that has missed an update. It sends 32 bytes for each array, so a program can afford it
# every few hundred steps.
#
# ## Parts of different sizes
#
# The last batch of an epoch may have 10 examples for 4 ranks: 3, 3, 2 and 2. The mean of the ranks' means counts an
# example of rank 3 more than one of rank 0.
#
# ### Exercise: average

# %%
exercise("data_parallelism/average")


# %%
def average(group, gradient, count):
    return group.all_reduce(gradient, "mean")


check("data_parallelism/average", average)

# %% [markdown]
# `data.batches` avoids the question: it leaves out the last examples, which fill no batch, and shuffles anew in each
# epoch.
#
# ## More examples than fit
#
# If a rank's part does not fit into its memory, it goes through it in pieces, and adds up the gradients before it
# steps: *gradient accumulation*, as in [chapter 93](93_memory.ipynb). The all-reduce is linear, so it could be done
# after each piece, or once at the end. Once is enough, and sends a fraction of the bytes. `DataParallel` has both lines
# of our program: it broadcasts when it is made, and `average_gradients` is called once for each step. All that it does
# is to go through what `averaged` yields. (A *bucket* is several gradients that are sent together: more of them below.)

# %%
show(data.DataParallel.averaged)

# %% [markdown]
# ### Exercise: a training
#
# Here the ranks begin with different parameters, and each step has several pieces.

# %%
exercise("data_parallelism/train")


# %%
def train_in_pieces(group, net, steps, lr):
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        for x, y in pieces:
            F.cross_entropy(net(nn.Tensor(x)), nn.Tensor(y)).backward()
        optimizer.step()


check("data_parallelism/train", train_in_pieces)

# %% [markdown]
# ## Batch normalisation
#
# One layer breaks the argument of the beginning. Batch normalisation ([chapter 54](54_normalisation.ipynb)) subtracts
# the mean of the *batch*, so the result of an example depends on the others. A rank that knows its own part alone
# subtracts another mean. `SyncBatchNorm2d` sums the moments over all ranks, in the forward pass, and their gradients in
# the backward pass.

# %%
photos = images.reshape(len(images), 1, 8, 8)[:BATCH]
whole = nn.BatchNorm2d(1)(nn.Tensor(photos)).detach().numpy()


def normalised(group, make):
    share = len(photos) // group.size
    mine = slice(share * group.rank, share * (group.rank + 1))
    return abs(make(group)(nn.Tensor(photos[mine])).detach().numpy() - whole[mine]).max()


# %% [markdown]
# Each rank compares its result with that of one rank that has the whole batch. We print the largest difference.

# %%
for size in (2, 4, 8, 16):
    own = max(parallel.ranks(size, normalised, lambda group: nn.BatchNorm2d(1)))
    joined = max(parallel.ranks(size, normalised, lambda group: data.SyncBatchNorm2d(group, 1)))
    print(
        f"{size:2} ranks with {BATCH // size:2} images each: own moments off by {own:.3f}, joint ones by {joined:.1e}"
    )

# %% [markdown]
# The results have a deviation of 1. The fewer images a rank has, the worse are its own moments. The joint ones are off
# by rounding. They cost three all-reduces of a few numbers, forwards, for each such layer. These are short messages,
# and chapter 99 says what counts for short messages. That is why many networks normalise each example by itself, or
# accept the ranks' own moments where a rank has many images.
#
# ## When is the sum made?
#
# So far all programs compute, and then send. The time of the sum is lost. But the backward pass has the gradients of
# the last layer long before those of the first, and could send them meanwhile.
#
# How much that saves depends on hardware that we do not have here. So from here on all times come from a *model*:
# messages take alpha + beta n, as in chapter 99, and for the computation we assume a time. Nothing is measured.
#
# We assume 96 arrays of parameters with 0.5 MiB each, whose backward pass takes 12 ms. 32 ranks are connected by links
# with 2 microseconds a message and 10 GB/s, and sum in a ring.

# %%
KIB, MIB, RANKS = 1 << 10, 1 << 20, 32
links = Links(latency=2e-6, bandwidth=10e9)
layers = [overlap.Layer(nbytes=MIB // 2, seconds=12e-3 / 96)] * 96


def ends(bucket, during):
    return overlap.timeline(layers, bucket, RANKS, links, overlap=during)[-1].end


print(f"one sum of all gradients after the backward pass: all done after {1e3 * ends(48 * MIB, False):.1f} ms")

# %% [markdown]
# Now the other extreme. Each array is summed by itself, as soon as its gradient is there. The sum of the first one
# begins after an eighth of a millisecond, and the links work until the end.
#
# **Predict, then run.** After how many milliseconds are all sums made?

# %%
guess = None  # ms

predict(guess, 1e3 * ends(MIB // 2, True), unit="ms")

# %% [markdown]
# Nothing is gained. In a ring of 32 ranks 62 messages follow one another, so a sum takes at least 124 microseconds,
# however short it is. 96 sums pay that 96 times. So gradients are put together in *buckets*, and a bucket is summed
# when its last gradient is there. Libraries do it by a rule of a few lines.

# %%
show(data.grouped)

# %%
figures.timelines(layers, [MIB // 2, 4 * MIB, 48 * MIB], RANKS, links)

# %% [markdown]
# Time goes to the right, and the dotted line is the end of the backward pass. Small buckets begin early, and keep the
# links busy with messages that are too short. One big bucket pays the fewest alphas, and begins when nothing is left to
# overlap with. Buckets of 4 MiB are nearly hidden: what is left over is the sum of the last bucket. It can never be
# hidden, since its gradients come last.
#
# We draw the end of the sums for all sizes of buckets. Clocks of simulated ranks check the line without overlap: these
# ranks really sum 12, 3 and 1 buckets. To save memory, arrays have a KiB here for each MiB of the figure, and links are
# slower by the same factor, so that the model's times stay the same.


# %%
def sums_afterwards(group, bucket):
    parallel.work(sum(layer.seconds for layer in layers))
    for places in data.grouped([layer.nbytes for layer in layers], bucket):
        part = np.zeros(sum(layers[k].nbytes for k in places) // KIB // 4, np.float32)
        group.all_reduce(part)


slower, clocks = Links(links.latency, links.bandwidth / KIB), []
for bucket in (4 * MIB, 16 * MIB, 48 * MIB):
    found = parallel.ranks(RANKS, sums_afterwards, bucket, links=slower)
    clocks.append((bucket, max(found.report.seconds)))
sizes = [MIB // 2 * k for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)]
figures.bucket_sizes(layers, RANKS, links, sizes, clocks)

# %% [markdown]
# After the backward pass, bigger is better: fewer alphas. During the backward pass there is a best size. On its left,
# small buckets pay latency. On its right, the first bucket begins late, and the last one sticks out. PyTorch takes 25
# MiB, which fits larger networks than ours.
#
# Our `DataParallel` has both. After `loss.backward()` nothing has been sent, and `average_gradients` sends all buckets.
# With `net.backward(loss)` the tape says of each parameter when its gradient is complete:

# %%
show(data.DataParallel._ready)

# %% [markdown]
# A gradient is complete when each operation that used the parameter has handed back its part. Buckets go in one order
# on all ranks, even where a later one is full first: all-reduces that are called in different orders do not meet.
#
# Between two GPUs with fast links a sum takes less time than the gradients of its layers. Then it does not matter how
# many buckets there are, and only the last one is waited for after the backward pass. It should be small, whatever size
# the others have. `last` limits that one alone.

# %%
fast = Links(latency=4e-6, bandwidth=300e9)
for bucket, last in ((48 * MIB, None), (16 * MIB, None), (4 * MIB, None), (48 * MIB, MIB)):
    sums = overlap.timeline(layers, bucket, 2, fast, last=last)
    late = 1e6 * (sums[-1].end - sum(layer.seconds for layer in layers))
    print(f"{len(sums):2} buckets, the last of {sums[-1].nbytes / MIB:2.0f} MiB: {late:5.1f} µs after the end")

# %% [markdown]
# Two buckets are better than twelve if the second one is small. They also take fewer launches, and on a GPU a step of
# a small network waits for these. `python -m pmpp.parallel.measure_steps` trains ResNet-18 so, on two GPUs or, with
# `-n`, on more, and beside PyTorch's DDP. `python -m pmpp.parallel.targets --recorded` prints what it has measured on
# two H200, on any machine: the time of a step, its efficiency, and what was aimed at. With `-n 4` it prints the same of
# four. The efficiency of ResNet-18 as it is called may be above 1. No step gets faster by a sum: it waits for its host,
# whose times scatter. The lines with a graph have no host in them.
#
# However small it is, the last bucket sticks out. But the step is not over then, since the optimiser has to change all
# parameters, and the means of the first buckets are there. With an optimiser for each bucket, these are changed while
# the last one travels. `net.averaged()` hands over bucket by bucket, each when its mean is there.


# %%
def bucket_by_bucket(group):
    net = data.DataParallel(group, network(group), bucket=KIB)
    optimizers = [nn.optim.SGD(bucket, lr=RATE) for bucket in net.buckets]
    for mine in data.batches(len(labels), BATCH, group.rank, group.size):
        net.zero_grad()
        net.backward(F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine])))
        for _, optimizer in zip(net.averaged(), optimizers, strict=True):
            optimizer.step()
    net.check()
    return len(optimizers)


print(f"{parallel.ranks(2, bucket_by_bucket)[0]} buckets; after {STEPS} steps both ranks have the same parameters")

# %% [markdown]
# ## Half as many bytes
#
# Where links are the bound, gradients can be sent as float16: `DataParallel` casts them into its buckets, sums them so,
# and casts the mean back. Parameters stay float32. ([Chapter 105](105_mixed_precision.ipynb) is about what float16
# loses.)


# %%
def sent_as(group, dtype):
    net = data.DataParallel(group, network(group), dtype=dtype)
    optimizer, losses = nn.optim.SGD(net.parameters(), lr=RATE), []
    for mine in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine]))
        net.backward(loss)
        net.average_gradients()
        optimizer.step()
        losses.append(group.all_reduce(loss.array, "mean").copy_to_host().item())
    return losses


# %% [markdown]
# **Predict, then run.** A float16 has 11 bits, so a gradient is off by up to 1 part in 2,048. By which part of itself
# does a loss of the eight steps change at most?

# %%
guess = None  # percent

long, short = parallel.ranks(4, sent_as, "float32"), parallel.ranks(4, sent_as, "float16")
off = max(abs(a - b) / b for a, b in zip(short[0], long[0], strict=True))
predict(guess, 100 * off, unit="percent", factor=10)

# %%
for name, found in (("float32", long), ("float16", short)):
    print(f"{name}: {found.report.kinds['all_reduce'][2]:,} bytes in all-reduces, last loss {found[0][-1]:.6f}")

# %% [markdown]
# Half as many bytes. (The losses, which are sent for us, are float32 in both.) Roundings of many gradients mostly
# cancel, and the loss hardly notices. A larger network has gradients that float16 makes 0, or infinite when they are
# summed. That is why such a training scales its loss.
#
# ## What a rank keeps
#
# Each rank has all parameters, all gradients, and all of the optimiser's state. The first two it needs in each pass.
# But the state is needed in the optimiser's step alone, and all ranks make the same step. So let rank r make the step
# of the r-th part of the parameters, and keep the state of that part alone. The others are told the new parameters.
# This is the first stage of *ZeRO*.
#
# An all-reduce in a ring has two halves: sums are made, then sums are told. In between, each rank has the sum of one
# part. The optimiser goes there: `reduce_scatter` is the first half, the step changes the part, and `all_gather` is the
# second half, with parameters in the place of gradients.

# %%
show(data.ShardedOptimizer.step)


# %%
def kept(group):
    net = data.DataParallel(group, Net())
    optimizer = data.ShardedOptimizer(group, net.parameters(), lambda params: nn.optim.Adam(params, lr=1e-3))
    mine = next(data.batches(len(labels), BATCH, group.rank, group.size))
    F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine])).backward()
    optimizer.step()
    net.check()
    return optimizer.state_bytes()


for size in (1, 2, 4, 8):
    found = parallel.ranks(size, kept)
    sent = {kind: found.report.kinds[kind][2] for kind in ("reduce_scatter", "all_gather")}
    print(f"ranks {size}: {found[0]:6,} bytes of state on each, sent in all: {sent}")

# %% [markdown]
# Adam keeps two numbers for each of the 1,210 parameters. 1,210 is no multiple of 4 or 8, so there the last part is
# filled with zeros. (Part of what `all_gather` sends are the digests of `net.check()`.)
#
# What is divided has to be put together to be kept: `state_dict` gathers the parts, and returns what the optimiser of
# one rank would. So a training that eight ranks began can go on with four, or with one.
#
# **Predict, then run.** A network has 10⁹ parameters in float32, and is trained with Adam by 8 ranks. With the state
# divided, how many GB does each rank keep of parameters, gradients and state?

# %%
guess = None  # GB

count = 10**9
predict(guess, (4 + 4 + 8 / 8) * count / 1e9, unit="GB")

# %%
figures.optimiser_state(count, [1, 2, 4, 8, 16, 32, 64])

# %% [markdown]
# One rank keeps 16 bytes a parameter, and half of it is Adam's state. That half is divided by the number of ranks. The
# dotted line is what parameters and gradients take: no bar ends below it.
#
# ### Exercise: a sharded step
#
# Send no more than an all-reduce of the gradient would.

# %%
exercise("data_parallelism/sharded_step")


# %%
def sharded_step(group, weights, gradient, lr, state):
    return weights  # your code


check("data_parallelism/sharded_step", sharded_step)

# %% [markdown]
# ## Nothing is kept twice
#
# Why should a rank keep all parameters and all gradients? It computes one layer at a time. Suppose that it keeps its
# own part of each layer, and asks for the rest when the layer's turn comes. Then two questions are left: where do the
# gradients go, and what does it cost?
#
# All parts become a layer's parameters by an all-gather. On the tape of chapter 88 that is an operation like any other,
# so it needs a gradient. Rank r's part is copied to all ranks. Each of them has a gradient for the copy, and the
# gradient of the part is their sum, or here their mean. That is row r of a reduce-scatter: **the gradient of an
# all-gather is a reduce-scatter**.

# %%
show(sharded.Gathered.backward)

# %% [markdown]
# So the tape by itself hands each rank the mean gradient of its own part. Still, the tape would keep every gathered
# layer until the backward pass. Chapter 93 has the cure: a *checkpoint* keeps the input of a layer, and computes the
# layer once more when its gradient is due. Here that gathers the layer once more, too.

# %%
show(sharded.FullySharded.forward)
show(sharded.FullySharded._run)

# %% [markdown]
# This is the third stage of ZeRO. PyTorch calls it *fully sharded data parallel* (FSDP). Without the checkpoint the
# parameters stay until the backward pass, and gradients and state alone are divided. That is the second stage.
#
# First we make sure that it is the same training. Two ranks with divided parameters must end with the bits of two ranks
# with whole ones: a sum of two numbers has one order.


# %%
def in_parts(group, reshard=True):
    nn.manual_seed(group.rank)
    layers_of_net = [nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)]
    return sharded.FullySharded(group, layers_of_net, reshard_after_forward=reshard)


def fully_sharded(group):
    net = in_parts(group)
    optimizer = nn.optim.SGD(net.parameters(), lr=RATE)
    for mine in data.batches(len(labels), BATCH, group.rank, group.size):
        optimizer.zero_grad()
        F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine])).backward()
        optimizer.step()
    return np.concatenate([value.reshape(-1) for value in net.state_dict().values()])


whole = parallel.ranks(2, train)[0][2]
parts = parallel.ranks(2, fully_sharded)[0]
print("parameters with other bits:", (parts != whole).sum(), "of", whole.size)

# %% [markdown]
# **Predict, then run.** An all-reduce of the gradients is a reduce-scatter and an all-gather. How many times as many
# bytes does a step with divided parameters send?

# %%
guess = None  # times as many


def one_step(group, reshard):
    net = in_parts(group, reshard)
    mine = next(data.batches(len(labels), BATCH, group.rank, group.size))
    F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine])).backward()


def bytes_of(report):
    return sum(report.kinds[kind][2] for kind in ("all_gather", "reduce_scatter"))


third, second = (parallel.ranks(4, one_step, reshard).report for reshard in (True, False))
predict(guess, bytes_of(third) / bytes_of(second), unit="times as many")

# %% [markdown]
# The second stage sends what an all-reduce does: it gathers once and scatters once. The third gathers a second time,
# for the backward pass. It also computes every layer forwards twice. That is the price of the memory in this figure.

# %%
figures.stages(count, [2**k for k in range(11)])

# %% [markdown]
# With one or two stages a line flattens at what is still whole on each rank. With all three the line has no floor but
# one layer, which is there while it is computed (here a hundredth of the network), and the activations, which the
# figure leaves out. The bandwidth of the links decides whether a layer arrives while the one before is still being
# computed. FSDP fetches it ahead of time. Ours fetches when it needs it, so its ranks wait.
#
# ## Without waiting for the others
#
# All programs so far are *synchronous*: a step ends when the slowest rank has sent its gradient. Before all-reduces
# became common, many trainings used a **parameter server**. One rank keeps the parameters. The others, the workers,
# send it gradients and ask it for parameters, each at its own pace.


# %%
def with_a_server(group, weights, gradient):
    if group.rank > 0:
        group.send(gradient, to=0)
        return group.recv(device.empty(weights.size, np.float32), source=0)
    box = device.empty(weights.size, np.float32)
    for worker in range(1, group.size):
        weights = weights - np.float32(RATE) * device.to_host(group.recv(box, source=worker))
        group.send(weights, to=worker)
    return weights


# %% [markdown]
# **Predict, then run.** 16 workers send a gradient of 4,000 bytes each, and get the parameters back. How many times as
# many bytes go through the server as through a rank of a ring of 16, which makes an all-reduce of 4,000 bytes?

# %%
guess = None  # times as many


def through(report, rank):
    return sum(count for link, count in report.nbytes.items() if rank in link)


numbers = np.ones(1000, np.float32)
server = parallel.ranks(17, with_a_server, numbers, numbers).report
ring = parallel.ranks(16, lambda group: group.all_reduce(numbers)).report
predict(guess, through(server, 0) / through(ring, 0), unit="times as many")

# %% [markdown]
# All bytes go through one rank's links, and with more workers it is more. (Large systems divide the parameters among
# several servers.) But bytes are not the worst of it. While a worker computes, the server goes on with gradients of
# the other workers. When the worker's gradient arrives, it belongs to parameters that are several steps old. Such a
# gradient is called **stale**.
#
# The next cell trains the same network by NumPy with gradients of a fixed age: each one was computed with the
# parameters of so many steps before.


# %%
def with_stale_gradients(age, rate, epochs=3):
    past = [start()]
    for epoch in range(epochs):
        for batch in data.batches(len(labels), BATCH, 0, 1, epoch=epoch):
            old = past[max(len(past) - 1 - age, 0)]
            _, gradients, _ = by_hand(old, images[batch].astype(np.float64), labels[batch])
            past.append([parameter - rate * gradient for parameter, gradient in zip(past[-1], gradients, strict=True)])
    everything = images.astype(np.float64), labels
    return [by_hand(parameters, *everything)[0] for parameters in past]


AGES = (0, 2, 4, 8)
stale = {f"{age} steps old": with_stale_gradients(age, RATE) for age in AGES}
figures.losses(stale)

# %% [markdown]
# All four curves used the same number of gradients. With fresh ones the network learns, apart from one setback. Old
# ones say where to go from where the parameters *were*. The step is made from another place, so it overshoots, and
# those that follow cannot know that yet. The oldest gradients even make the loss climb again. A smaller rate calms it:

# %%
for rate in (RATE, RATE / 4, RATE / 16):
    ends_at = {age: with_stale_gradients(age, rate)[-1] for age in AGES}
    print(f"rate {rate:<8}", ", ".join(f"{age} steps old: {loss:.3f}" for age, loss in ends_at.items()))

# %% [markdown]
# With the smallest rate the age hardly matters, but then nothing is learned quickly. Synchronous steps wait for the
# slowest rank, and in return their gradients are fresh and their result is the same in every run. On GPUs that are all
# alike that is the better trade, and it is what this workbook, DDP and FSDP do.
#
# ## How many ranks?
#
# There are two ways to use more ranks. *Strong scaling* divides the same batch among more ranks, to end a step sooner.
# *Weak scaling* gives each rank a batch of its own, so that a step has more examples.
#
# We go on with the model. A rank computes its examples, 32 of which take 12 ms backwards and 6 ms forwards. Sums are
# made in buckets of 4 MiB during the backward pass. What they take beyond it, the rank waits.

# %%
per_example = [overlap.Layer(layer.nbytes, layer.seconds / 32) for layer in layers]
counts = [2**k for k in range(9)]


def divided(size, examples=256):
    return overlap.step(per_example, examples // size, size, links, bucket=4 * MIB)


print(f"one rank, 256 examples: {1e3 * divided(1).total:.0f} ms")

# %% [markdown]
# **Predict, then run.** The 256 examples are divided among 2, 4, 8, ... 256 ranks. With how many of them is a step
# shortest?

# %%
guess = None  # ranks

predict(guess, min(counts, key=lambda size: divided(size).total), unit="ranks")

# %%
for size in counts:
    step = divided(size)
    spent = f"computes {1e3 * step.compute:6.2f} ms, waits {1e3 * step.waiting:5.2f} ms"
    print(f"{size:3} ranks: {spent}, {divided(1).total / step.total:5.2f} times as fast as one")

# %% [markdown]
# With each doubling a rank computes half as long. The bytes that it sends stay nearly the same, about twice those of
# the gradients, and the alphas of the ring double. From some number of ranks on it waits longer than it computes: the
# step is communication-bound. More ranks soon make it longer again.
#
# Turn the knobs. Which bandwidth moves 64 ranks out of the shaded region? When does latency matter more than bandwidth?

# %%
gigabytes, latency_us, together, each = 10, 2, 256, 8


def draw(gigabytes, latency_us, together, each):
    chosen = Links(1e-6 * latency_us, 1e9 * gigabytes)
    return figures.strong_and_weak(per_example, together, each, chosen, counts, 4 * MIB)


knobs.turn(
    draw,
    gigabytes=(gigabytes, (1, 10, 25, 50, 100, 450)),
    latency_us=(latency_us, (1, 2, 5, 10, 30)),
    together=(together, (256, 1024, 4096)),
    each=(each, (1, 2, 4, 8, 16, 32)),
)

# %% [markdown]
# On the left one batch is divided, and the line bends and falls. In the shaded region a rank waits longer than it
# computes. On the right each rank has a batch of its own, however many ranks there are. Then the computation of a rank
# stays, and so do its bytes: from a few ranks on the line runs beside the dotted one. At its right end it bends, too,
# since the alphas go on growing. Weak scaling comes much further, and that is why large trainings use it. The price is
# a larger batch, and from some size on a larger batch needs no fewer steps.
#
# The knobs change which side of the border a step is on. At the latency drawn here only the largest bandwidth moves 64
# ranks out of the shaded region. With longer ones none does, so there latency matters more. Compare the border with a
# roofline: examples per rank are the intensity, since the computation grows with them, and the bytes do not. Bandwidth
# is the slope. Alpha has no place in a roofline: it is what a launch is for a kernel.
#
# ## What to take along
#
# - Each rank has the whole network and a part of the batch. The mean of equal parts' gradients is the gradient of the
#   batch.
# - The test is a loss equal to that of one rank, within a derived bound. A loss that goes down proves nothing.
# - What must be equal on all ranks: the first parameters, the gradients of each step, and so the bits of the network.
#   `group.same` finds what is not.
# - The sum in place of the mean is a rate times p. Unequal parts need weights. Pieces are averaged once, at the end.
# - Batch normalisation sees the rank's part alone, unless its moments are summed over the ranks.
# - Buckets: too small ones pay latency, too large ones leave nothing to overlap with. The last one sticks out of the
#   backward pass, and the optimiser of the others can hide it.
# - As float16 gradients take half the bytes, and the loss has to be scaled so that they fit.
# - ZeRO divides the optimiser's state, then the gradients, then the parameters. The first two send what an all-reduce
#   sends, the third half as much again, since it gathers every layer twice.
# - The gradient of an all-gather is a reduce-scatter.
# - Workers that do not wait have stale gradients. They need a smaller rate, and all bytes meet at the server.
# - Strong scaling ends where a rank waits longer than it computes. Weak scaling goes on, with larger batches.
#
# ## Exercises
#
# Besides the three above, without a check:
#
# 1. *Halving.* `overlap.timeline` takes another `algorithm`. Does the best size of buckets become smaller or larger
#    with `all_reduce.halving`? Say why before you compute it.
# 2. *A first bucket of its own.* PyTorch makes the first bucket 1 MiB and the others 25. Which of the two ends of the
#    dashed curve does that help?
#
# ## Answers

# %% [markdown]
# *data_parallelism/average:* sums of products and counts in one all-reduce.


# %% jupyter={"source_hidden": true} tags=["answer"]
def average_answer(group, gradient, count):
    both = np.append(gradient * np.float32(count), np.float32(count))
    total = device.to_host(group.all_reduce(both))
    return total[:-1] / total[-1]


check("data_parallelism/average", average_answer)

# %% [markdown]
# *data_parallelism/train:* `DataParallel` broadcasts; each loss is divided by the number of pieces.


# %% jupyter={"source_hidden": true} tags=["answer"]
def train_answer(group, net, steps, lr):
    net = data.DataParallel(group, net)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr)
    for pieces in steps:
        optimizer.zero_grad()
        for x, y in pieces:
            (F.cross_entropy(net(nn.Tensor(x)), nn.Tensor(y)) * (1 / len(pieces))).backward()
        net.average_gradients()
        optimizer.step()


check("data_parallelism/train", train_answer)

# %% [markdown]
# *data_parallelism/sharded_step:* parts of equal length, filled with zeros at the end.


# %% jupyter={"source_hidden": true} tags=["answer"]
def sharded_step_answer(group, weights, gradient, lr, state):
    n, share = weights.size, -(-weights.size // group.size)
    rows = np.zeros((2, group.size, share), np.float32)
    rows[0].reshape(-1)[:n], rows[1].reshape(-1)[:n] = weights, gradient
    mean = device.to_host(group.reduce_scatter(rows[1], "mean"))
    state["momentum"] = np.float32(0.9) * state.get("momentum", np.float32(0)) + mean
    mine = rows[0, group.rank] - np.float32(lr) * state["momentum"]
    return device.to_host(group.all_gather(mine)).reshape(-1)[:n]


check("data_parallelism/sharded_step", sharded_step_answer)

# %% [markdown]
# *Halving:* it has far fewer messages in a row, so small buckets cost less, and the best size is smaller.

# %% jupyter={"source_hidden": true} tags=["answer"]
from pmpp.parallel import all_reduce

for algorithm in (all_reduce.ring, all_reduce.halving):
    last = {size: overlap.timeline(layers, size, RANKS, links, algorithm=algorithm)[-1].end for size in sizes}
    best = min(last, key=last.get)
    print(f"{algorithm.__name__:8} best with buckets of {best / MIB:4g} MiB: {1e3 * last[best]:.2f} ms")

# %% [markdown]
# *A first bucket of its own:* the links begin earlier, so it helps the right end, where the first bucket of 25 MiB
# would begin late. It changes nothing about the last bucket.
#
# Go on with [chapter 101](101_tensor_parallelism.ipynb): the layers themselves are cut, when a network is too large for
# one GPU.
