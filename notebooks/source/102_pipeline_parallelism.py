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
# # 102. Pipeline parallelism
#
# *Several GPUs: stages and micro-batches, GPipe and 1F1B, the bubble, what a stage keeps, uneven stages, hybrid meshes.
# You need chapters 100 and 101; it takes 75 minutes. PMPP 4e: chapter 20; 5e: chapter 23. The code is
# [pmpp/parallel/pipeline.py](../pmpp/parallel/pipeline.py) and
# [pmpp/parallel/exercises/pipeline_parallelism.py](../pmpp/parallel/exercises/pipeline_parallelism.py).*
#
# In [chapter 100](100_data_parallelism.ipynb) every rank had the whole network. A large network does not fit into one
# GPU. Then the layers are divided: rank 0 has the first ones, rank 1 the next ones, and so on. A rank with its layers
# is a *stage*. It receives activations from the stage before, and sends its own to the next one. Gradients come back
# the other way.
#
# **The questions of this chapter: how long do stages wait for one another? What do they have to keep meanwhile? And
# which links does a pipeline need?** We run ranks to answer them. Their clocks show a model of time, as in chapter 100,
# and nothing here is measured in seconds. (As before, ranks are threads, so this chapter does not run in the browser
# edition.)

# %%
import itertools

import numpy as np

from pmpp import nn, parallel, predict
from pmpp.lab.draw import knobs
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import Links, all_reduce, data, figures, pipeline, pipeline_figures, tensor
from pmpp.parallel.exercises import check, exercise
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## Stages and micro-batches
#
# We use the digits of [chapter 89](89_a_network_that_learns.ipynb), and a network of four linear layers. With four
# ranks each has one of them.

# %%
BATCH, STEPS, RATE, WIDTHS = 32, 8, 0.9, (64, 32, 32, 32, 10)

images, labels = digits.datasets()[0][:128]
images, labels = images.reshape(len(images), -1), labels.astype(np.int64)


class Layer(nn.Module):
    def __init__(self, inside, outside):
        self.linear, self.last = nn.Linear(inside, outside), outside == WIDTHS[-1]

    def forward(self, x):
        return self.linear(x) if self.last else F.relu(self.linear(x))


# %% [markdown]
# `part_of` makes a rank's layers. Every rank draws the parameters of the whole network from the same seed, and keeps
# its own. So p stages begin with the parameters of one rank.


# %%
def part_of(stage, stages):
    nn.manual_seed(0)
    layers = [Layer(inside, outside) for inside, outside in itertools.pairwise(WIDTHS)]
    share = len(layers) // stages
    return nn.Sequential(*layers[stage * share : (stage + 1) * share])


for stage in range(4):
    print(f"stage {stage} has {sum(parameter.size for parameter in part_of(stage, 4).parameters()):,} parameters")

# %% [markdown]
# If a batch goes through the stages as a whole, one rank computes, and the others wait. So the batch is cut into m
# *micro-batches*. While stage 1 has the first one, stage 0 can have the second. The gradients of the micro-batches are
# added up, and the optimiser makes one step for the batch, as in *gradient accumulation* ([chapter
# 93](93_memory.ipynb)). The loss of each micro-batch is divided by m, since the loss of the batch is a mean.
#
# `pipeline.Stage` has the layers of a rank, and its messages. A *schedule* says in which order it makes its passes.
# *GPipe* is the simplest one: all micro-batches forward, and then all of them back.

# %%
show(pipeline.gpipe)


# %%
def stage_of(group, batch, count, make=pipeline.Stage, net=None):
    net = part_of(group.rank, group.size) if net is None else net
    x, y = images[batch].reshape(count, -1, WIDTHS[0]), labels[batch].reshape(count, -1)
    width = WIDTHS[group.rank * (len(WIDTHS) - 1) // group.size]
    return make(
        group, net, (len(batch) // count, width), x, lambda z, k: F.cross_entropy(z, nn.Tensor(y[k])), (1.0, 2.0)
    )


def gradients(group, schedule, count):
    stage = stage_of(group, np.arange(BATCH), count)
    schedule(stage, count)
    return [parameter.grad.numpy() for parameter in stage.net.parameters()], sum(stage.losses)


# %% [markdown]
# A forward pass takes 1 unit of time on the clocks here, and a backward pass 2, since it has two products for each
# layer. `links` make messages free for now.
#
# **Predict, then run.** Four stages, 32 examples in 8 micro-batches. How many bytes does rank 0 send to rank 1 in a
# step? The activations are float32, and 32 for each example.

# %%
guess = None  # bytes

free = Links(latency=0.0, bandwidth=1e30)
four = parallel.ranks(4, gradients, pipeline.gpipe, 8, links=free)
predict(guess, four.report.nbytes[0, 1], unit="bytes")

# %%
four.report

# %% [markdown]
# The bytes do not depend on m: the activations of a batch cross each link, and gradients of the same shape come back.
# No parameter and no gradient of a parameter is sent. The messages are m for each direction. (The report takes a unit
# of time for a second: rank 0 ends after 33 units.)
#
# ## The reference
#
# First NumPy, in float64 and on one CPU.


# %%
def by_hand(parameters, x, y):
    """The loss, and the gradients of weights and biases in turn, layer by layer."""
    weights, biases, kept = parameters[::2], parameters[1::2], [x]
    for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
        z = kept[-1] @ w.T + b
        kept.append(np.maximum(z, 0) if k < len(weights) - 1 else np.exp(z))
    share = kept[-1] / kept.pop().sum(axis=1, keepdims=True)
    loss = -np.log(share[np.arange(len(y)), y]).mean()
    dy, found = (share - np.eye(10)[y]) / len(y), []
    for w, a in zip(reversed(weights), reversed(kept), strict=True):
        found[:0] = [dy.T @ a, dy.sum(axis=0)]
        dy = dy @ w * (a > 0)
    return loss, found


# %% [markdown]
# Four stages and one rank compute the same gradients, but they need not add in the same order: a product of four rows
# may run another kernel than one of 32, and the batch is summed in parts. How far may they be apart? A sum of K
# products is off by at most about $K u$ times the sum of their absolute values, with $u = \varepsilon / 2$. We follow
# these errors through the network: each layer adds its own, and passes on what it was given (Higham, *Accuracy and
# stability of numerical algorithms*, section 3.3). The next cell goes forward, and the one after it backward.


# %%
U = np.finfo(np.float32).eps / 2


def off_forward(parameters, x):
    """Each layer's input with its error, and the error of the scores."""
    kept, off = [(x, 0 * x)], None
    for w, b in zip(parameters[::2], parameters[1::2], strict=True):
        a, error = kept[-1]
        z, own = a @ w.T + b, (w.shape[1] + 2) * U * (abs(a) @ abs(w).T + abs(b))
        off = own + error @ abs(w).T
        kept.append((np.maximum(z, 0), off * (z > 0)))
    return kept[:-1], z, off


# %%
def off_backward(parameters, x, y):
    """The errors of the gradients, layer by layer."""
    kept, z, off = off_forward(parameters, x)
    share = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    dy, found = (share - np.eye(10)[y]) / len(y), []
    off = share * (off + (share * off).sum(axis=1, keepdims=True) + 16 * U) / len(y)
    for w, (a, error) in zip(reversed(parameters[::2]), reversed(kept), strict=True):
        off += 4 * U * abs(dy)  # what this layer is given is rounded, too
        found[:0] = [(len(y) * U * abs(dy) + off).T @ abs(a) + abs(dy).T @ error]
        found[1:1] = [(len(y) * U * abs(dy) + off).sum(axis=0)]
        off = (off + w.shape[0] * U * abs(dy)) @ abs(w) * (a > 0)
        dy = dy @ w * (a > 0)
    return found


# %% [markdown]
# Both computations may be off by so much, so they are within twice that of each other.

# %%
parameters = [parameter.detach().numpy().astype(np.float64) for parameter in part_of(0, 1).parameters()]
bounds = [2 * off for off in off_backward(parameters, images[:BATCH].astype(np.float64), labels[:BATCH])]
alone = parallel.ranks(1, gradients, pipeline.gpipe, 1)[0][0]
for schedule in (pipeline.gpipe, pipeline.one_forward_one_backward):
    parts = [array for found, _ in parallel.ranks(4, gradients, schedule, 8) for array in found]
    worst = 0.0
    for mine, other, bound in zip(parts, alone, bounds, strict=True):
        assert (abs(mine - other) <= bound).all()
        worst = max(worst, (abs(mine - other) / np.maximum(bound, 1e-30)).max())
    print(f"{schedule.__name__}: the largest difference is {worst:.2%} of its bound")
share = max(bound.max() / abs(array).max() for array, bound in zip(alone, bounds, strict=True))
print(f"a bound is at most {share:.1%} of the largest gradient of its array")

# %% [markdown]
# So a pipeline trains the network of one rank. The next figure has the losses of eight steps with the same 32 digits:
# of NumPy, of one rank, and of four stages.


# %%
def train(group, schedule, count):
    net, losses = part_of(group.rank, group.size), []
    optimizer = nn.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        stage = stage_of(group, np.arange(BATCH), count, net=net)
        schedule(stage, count)
        optimizer.step()
        losses.append(sum(stage.losses))
    return losses


# %%
curves = {"NumPy, float64": []}
for _ in range(STEPS):
    loss, found = by_hand(parameters, images[:BATCH].astype(np.float64), labels[:BATCH])
    parameters = [p - RATE * gradient for p, gradient in zip(parameters, found, strict=True)]
    curves["NumPy, float64"].append(loss)
curves["one rank"] = parallel.ranks(1, train, pipeline.gpipe, 1)[0]
curves["four stages, GPipe"] = parallel.ranks(4, train, pipeline.gpipe, 4)[-1]
figures.losses(curves)

# %% [markdown]
# All three lie on one line. Only the last stage knows the loss, so these are the losses of rank 3.
#
# ## The bubble
#
# For the questions about time the smallest network will do. Each stage here has a layer of one weight, and its clock
# counts 1 for a forward pass and 2 for a backward pass.


# %%
def passes(group, schedule, count, seconds=((1.0, 2.0),)):
    net, one = nn.Linear(1, 1), np.ones((1, 1), np.float32)
    spent = seconds[group.rank % len(seconds)]
    stage = pipeline.Stage(group, net, (1, 1), [one] * count, lambda y, k: y.sum(), spent)
    schedule(stage, count)
    return stage.passes


def clocks(stages, count, schedule=pipeline.gpipe, links=free, seconds=((1.0, 2.0),)):
    return parallel.ranks(stages, passes, schedule, count, seconds, links=links)


# %% [markdown]
# **Predict, then run.** Four stages, and the whole batch as one micro-batch. In which share of the step does a rank
# wait?

# %%
guess = None  # %


def waits(stages, count, schedule=pipeline.gpipe):
    return 1 - count * 3 / max(clocks(stages, count, schedule).report.seconds)


predict(guess, 100 * waits(4, 1), unit="%")

# %% [markdown]
# One rank computes at a time, so four ranks are as fast as one. The next figure has the same with 4 and with 8
# micro-batches.

# %%
pipeline_figures.timetables({f"m = {m}": clocks(4, m) for m in (1, 4, 8)})

# %% [markdown]
# Ranks go down, and time goes to the right. A number is that of a micro-batch, and backward passes are hatched. The
# time that ranks wait is the *bubble*: a staircase at the beginning, one in the middle, and one at the end. (A
# micro-batch takes 3 units in each row. With real ones, 8 micro-batches of one batch would each take an eighth.)
#
# How large is it? The first micro-batch arrives at the last stage after p - 1 forward passes, and its gradient has to
# come back through p - 1 backward passes. So each rank waits as long as p - 1 micro-batches take, however many there
# are. A step takes m + p - 1 of them:
#
# $$\text{bubble} = \frac{p - 1}{m + p - 1}$$
#
# **Predict, then run.** Four stages. How many micro-batches make the bubble 20%?

# %%
guess = None  # micro-batches

predict(guess, next(m for m in range(1, 40) if pipeline.bubble(4, m) <= 0.2), unit="micro-batches")

# %% [markdown]
# Here is the formula as lines, and what the clocks show as marks.

# %%
measured = {p: [(m, waits(p, m)) for m in (1, 4, 8)] for p in (2, 4, 6)}
for p, pairs in measured.items():
    assert all(abs(share - pipeline.bubble(p, m)) < 1e-9 for m, share in pairs)
pipeline_figures.bubbles(measured, [2 ** (k / 4) for k in range(25)])

# %% [markdown]
# Every mark lies on its line. Follow that of six stages: 16 micro-batches leave a bubble of 24%. A common rule is
# m of at least 4p, where the bubble is below 20%.
#
# Now messages have a price. Turn the knobs: which number of micro-batches is best, if each message takes 0.3?

# %%
stages, count, message = 4, 8, 0.3


def draw(stages, count, message):
    links = Links(latency=message, bandwidth=1e30)
    each = ((8 / count, 16 / count),)  # the batch stays the same
    schedules = {"GPipe": pipeline.gpipe, "1F1B": pipeline.one_forward_one_backward}
    return pipeline_figures.timetables(
        {f"{name}, m = {count}": clocks(stages, count, one, links, each) for name, one in schedules.items()}
    )


knobs.turn(
    draw,
    stages=(stages, (2, 3, 4, 6, 8)),
    count=(count, (1, 2, 4, 8, 16, 32)),
    message=(message, (0.0, 0.1, 0.3, 1.0)),
)

# %% [markdown]
# Here the batch stays the same, and a larger m cuts it into shorter passes. A message keeps both of its ranks. With
# many short passes the messages take longer than the passes: the step is communication-bound, and more micro-batches
# make it longer again. At 0.3 GPipe is best with 8 of them: 4 take 47.4, and 16 take 48.3. With few long passes the
# step is compute-bound, and the bubble is what is lost. 1F1B, the second schedule, is explained below. It is shorter
# here, since neighbours send to each other at the same time.
#
# ### Exercise: enough micro-batches

# %%
exercise("pipeline_parallelism/micro_batches")


# %%
def micro_batches(stages, batch, share):
    return batch  # your code


check("pipeline_parallelism/micro_batches", micro_batches)

# %% [markdown]
# ## What a stage keeps
#
# The backward pass of a micro-batch needs the activations of its forward pass. GPipe makes all forward passes first, so
# a stage keeps the activations of all m micro-batches. But the last stage can go back as soon as it has gone forward
# once. That is *1F1B*, one forward, one backward: stage s makes p - 1 - s forward passes ahead, and then a backward
# pass follows each forward pass.

# %%
pipeline_figures.timetables(
    {"GPipe": clocks(4, 8), "1F1B": clocks(4, 8, pipeline.one_forward_one_backward)},
)

# %% [markdown]
# Both take equally long, and the bubble is as large. In 1F1B it lies elsewhere. Look at rank 3: it goes back after each
# forward pass, so it keeps one micro-batch. Rank 0 keeps four, since a gradient needs the longest way to come back to
# it.
#
# We count bytes. `nn.memory` adds up what the tape holds, and `Watched` does so after each forward pass.


# %%
class Watched(pipeline.Stage):
    bytes = 0

    def forward(self, k, x, count):
        y = super().forward(k, x, count)
        held = sum(nn.memory(self.net, kept)["activations"] for _, kept in self.kept.values())
        self.bytes = max(self.bytes, held)
        return y


def kept_bytes(group, schedule, count):
    stage = stage_of(group, np.arange(4 * count), count, Watched)
    schedule(stage, count)
    return stage.bytes


# %% [markdown]
# A micro-batch has 4 examples here, and a larger m makes the batch larger.
#
# **Predict, then run.** With 8 micro-batches and four stages: how many times as many bytes of activations does rank 1
# keep with GPipe as with 1F1B?

# %%
guess = None  # times as many

many = parallel.ranks(4, kept_bytes, pipeline.gpipe, 8)
few = parallel.ranks(4, kept_bytes, pipeline.one_forward_one_backward, 8)
predict(guess, many[1] / few[1], unit="times as many")

# %%
for rank in range(4):
    print(f"rank {rank}: GPipe keeps {many[rank]:6,} bytes at most, 1F1B {few[rank]:6,}")

# %%
kept_by = {}
for name, schedule, at_8 in (("GPipe", pipeline.gpipe, many), ("1F1B", pipeline.one_forward_one_backward, few)):
    found = {m: parallel.ranks(4, kept_bytes, schedule, m) for m in (1, 4)} | {8: at_8}
    for rank in (0, 3):
        kept_by[f"{name}, rank {rank}"] = {m: nbytes[rank] for m, nbytes in found.items()}
pipeline_figures.bytes_kept(kept_by)

# %% [markdown]
# With GPipe the bytes grow with the number of micro-batches. With 1F1B they stop at that of p - s micro-batches for
# stage s: four for rank 0, and one for rank 3. So 1F1B can have as many micro-batches as it needs against the bubble,
# and this is why it is used although its bubble is no smaller.
#
# ### Exercise: the order of the passes

# %%
exercise("pipeline_parallelism/schedule")


# %%
def schedule_of(stage, stages, count):
    return [("F", k) for k in range(count)] + [("B", k) for k in range(count)]


check("pipeline_parallelism/schedule", schedule_of)

# %% [markdown]
# ### Exercise: what is kept

# %%
exercise("pipeline_parallelism/kept")


# %%
def kept(stage, stages, count, k):
    return list(range(k, count))  # your code


check("pipeline_parallelism/kept", kept)

# %% [markdown]
# ## A deadlock
#
# In 1F1B neighbours have something for each other at the same time: stage s has activations for the next stage, and
# that one has a gradient for stage s. Our `send` waits until the other rank receives. If both send first, both wait.


# %%
class SendsFirst(pipeline.Stage):
    def swap_with_next(self, y):
        self.to_next(y)
        return None if self.last else self.from_next(y.shape)

    def swap_with_before(self, dx):
        self.to_before(dx)
        return self.from_before()


def deadlocked(group):
    pipeline.one_forward_one_backward(stage_of(group, np.arange(BATCH), 8, SendsFirst), 8)


try:
    parallel.ranks(4, deadlocked)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# The switchboard of chapter 99 finds the circle, and names its ranks. `Stage` therefore calls `send_recv`, which sends
# and receives at the same time. A library whose `send` copies short messages would run this program, and stop with
# longer ones.
#
# ## Uneven stages
#
# The formula has assumed stages that are equally long. Let stage 2 of four take 1.5 times as long as the others.
#
# **Predict, then run.** The work of all stages together grows by an eighth. With 8 micro-batches, by how many percent
# does the step grow?

# %%
guess = None  # %

even, slow = (1.0, 2.0), (1.5, 3.0)
uneven = clocks(4, 8, seconds=(even, even, slow, even))
predict(guess, 100 * (max(uneven.report.seconds) / max(clocks(4, 8).report.seconds) - 1), unit="%")

# %%
pipeline_figures.timetables({"stage 2 is slow": uneven})

# %% [markdown]
# The slowest stage sets the pace: all others wait for it at every micro-batch. With GPipe a step takes the passes of
# one micro-batch through all stages, and then m - 1 times the passes of the slowest one. So layers are divided by their
# time and not by their number. The last stage has the loss as well, and in a language model a large product before it.
#
# ## Batch normalisation
#
# For a layer that treats each example by itself, micro-batches change nothing. Batch normalisation
# ([chapter 54](54_normalisation.ipynb)) takes its moments from the examples that it sees. In a pipeline these are a
# micro-batch. One rank is enough to show it: here is a stage with all layers, which differs in m alone.


# %%
def with_batch_norm(count):
    nn.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))
    x, y = images[:BATCH].reshape(count, -1, 1, 8, 8), labels[:BATCH].reshape(count, -1)
    loss = lambda z, k: F.cross_entropy(z, nn.Tensor(y[k]))  # noqa: E731
    pipeline.gpipe(pipeline.Stage(parallel.init(), net, inputs=x, loss=loss), count)
    return net[2].weight.grad.numpy()


whole = with_batch_norm(1)
for count in (2, 4, 8):
    apart = abs(with_batch_norm(count) - whole).max() / abs(whole).max()
    print(
        f"{count:2} micro-batches with {BATCH // count:2} images each: gradients off by {apart:.1%} of the largest one"
    )

# %% [markdown]
# These differences are no rounding: it is another network. `SyncBatchNorm2d` does not help here, since the
# micro-batches are not there at the same time. So networks for pipelines normalise each example by itself, as layer
# normalisation does.
#
# ## Bytes of three ways
#
# Data parallelism sends the gradients of all parameters. Tensor parallelism gives each rank a part of every layer, and
# all ranks sum activations. A pipeline sends activations, too, but only from stage to stage. We let all three compute
# the gradients of one batch, by four ranks, and count.


# %%
def by_data(group, examples):
    net, share = data.DataParallel(group, part_of(0, 1)), examples // group.size
    mine = slice(group.rank * share, (group.rank + 1) * share)
    F.cross_entropy(net(nn.Tensor(images[mine])), nn.Tensor(labels[mine])).backward()
    net.average_gradients()


def by_tensor(group, examples):
    y = nn.Tensor(images[:examples])
    for k, layer in enumerate(part_of(0, 1)):
        y = (tensor.RowLinear if k % 2 else tensor.ColumnLinear)(group, layer.linear)(y)
        y = y if layer.last else F.relu(y)
    F.cross_entropy(y, nn.Tensor(labels[:examples])).backward()


def by_pipeline(group, examples):
    pipeline.gpipe(stage_of(group, np.arange(examples), 4), 4)


# %% [markdown]
# `DataParallel` broadcasts once at its beginning. These bytes belong to no step, so the next cell leaves them out.

# %%
sent = {}
for name, function in (("data", by_data), ("tensor", by_tensor), ("pipeline", by_pipeline)):
    sent[name] = {}
    for examples in (4, 16, 64):
        kinds = parallel.ranks(4, function, examples).report.kinds
        sent[name][examples] = sum(counts[2] for kind, counts in kinds.items() if kind != "broadcast") / 4
        print(f"{name:8} {examples:4} examples: {sent[name][examples]:10,.0f} bytes from a rank")

# %%
pipeline_figures.bytes_sent(sent)

# %% [markdown]
# The bytes of data parallelism do not depend on the batch. The others grow with it, and the pipeline sends less than
# half as much as tensor parallelism: each activation crosses one link, and is not summed over all ranks. In return it
# has the bubble. Memory decides as well. Data parallelism keeps the whole network on each rank; with the two others a
# rank keeps about a p-th of the parameters.
#
# ## A mesh of two axes
#
# Large trainings use several ways at once. Here are four ranks as a *mesh* of 2 x 2: two pipelines with two stages
# each, and each pipeline has one half of the batch. `split` makes the groups. Ranks of one pipeline send activations;
# ranks of one stage average their gradients.


# %%
def hybrid(group):
    replica, place = group.rank % 2, group.rank // 2
    pipe, alike = group.split(colour=replica), group.split(colour=place)
    stage = stage_of(pipe, np.arange(BATCH)[replica * BATCH // 2 :][: BATCH // 2], 4)
    pipeline.one_forward_one_backward(stage, 4)
    for parameter in stage.net.parameters():
        alike.all_reduce(parameter.grad.array, "mean", out=parameter.grad.array)
    return pipe.members, alike.members, [parameter.grad.numpy() for parameter in stage.net.parameters()]


# %% [markdown]
# Ranks 0 and 2 are a pipeline, and ranks 0 and 1 have the same layers. The gradients have the bound from above.

# %%
mesh = parallel.ranks(4, hybrid)
for rank, (pipe, alike, _) in enumerate(mesh):
    print(f"rank {rank}: in the pipeline {pipe}, and averages with {alike}")
for replica in range(2):
    found = mesh[replica][2] + mesh[2 + replica][2]
    for mine, other, bound in zip(found, alone, bounds, strict=True):
        assert (abs(mine - other) <= bound).all()
mesh.report

# %% [markdown]
# Each axis has its own links. (The few bytes between ranks 0 and 3, and 1 and 2, are those of `split`.) Now let the
# four ranks be in two machines, with fast links inside a machine and slow ones between. Which axis gets the fast links?
# We compute it by the alpha-beta model, for a network of 8 layers that are 4096 wide. A pipeline has 8 micro-batches.

# %%
inside, between = Links(2e-6, 200e9), Links(5e-6, 25e9)
WIDE, COUNT, EACH = 4096, 8, 4 * 4096**2 * 4  # EACH: bytes of the 4 layers of a stage


def averaging(links):
    return all_reduce.seconds(all_reduce.ring, 2, EACH, links)


def along_the_pipe(examples, links):
    return 2 * COUNT * links.seconds(4 * WIDE * examples // COUNT)


# %% [markdown]
# **Predict, then run.** From how many examples in each pipeline on should the pipeline have the fast links? Try powers
# of two.

# %%
guess = None  # examples


def choices(examples):
    return (
        averaging(inside) + along_the_pipe(examples, between),
        averaging(between) + along_the_pipe(examples, inside),
    )


sizes = [2**k for k in range(8, 17)]
predict(guess, next(n for n in sizes if choices(n)[1] < choices(n)[0]), unit="examples")

# %%
print("inside a machine:   gradients  activations")
for n in sizes:
    slow_pipe, fast_pipe = choices(n)
    print(f"{n:6} examples  {1e3 * slow_pipe:9.2f} ms {1e3 * fast_pipe:9.2f} ms")

# %% [markdown]
# The axis with more bytes gets the fast links. The gradients of a stage are the same bytes for every batch, and the
# activations grow with it. In a language model each word of a text counts as an example here. The table adds up what is
# sent, and overlaps nothing: averages can be hidden behind the last backward passes (chapter 100). Tensor parallelism
# sends the most and cannot hide it, so it is placed inside a machine first.
#
# ## What to take along
#
# - A stage is a rank with some of the layers. A batch goes through the stages in m micro-batches, and their gradients
#   are added up.
# - The bubble is (p - 1) / (m + p - 1) of a step, for GPipe and for 1F1B.
# - GPipe keeps the activations of m micro-batches. 1F1B keeps those of p - s on stage s.
# - The slowest stage sets the pace.
# - The gradients are those of one rank, within rounding, unless a layer looks at several examples at once.
# - Neighbours that both send first wait for ever. `send_recv` does both.
# - A pipeline sends activations once over each link. That is the least of the three ways as long as the batch is small
#   beside the parameters.
# - In a mesh the axis that sends the most bytes gets the fastest links.
#
# ## Exercises
#
# Besides the three above, without a check:
#
# 1. *Uneven stages and 1F1B.* Draw the slow stage with 1F1B. Which ranks keep more or fewer activations than before?
# 2. *A cut.* The layers take 3, 1, 1, 2, 2 and 3 units. Cut them into three stages of neighbours, so that the slowest
#    stage is as fast as possible.
#
# ## Answers

# %% [markdown]
# *pipeline_parallelism/micro_batches:* try the divisors, from the smallest on.


# %% jupyter={"source_hidden": true} tags=["answer"]
def micro_batches_answer(stages, batch, share):
    for count in range(1, batch + 1):
        if batch % count == 0 and (stages - 1) / (count + stages - 1) <= share:
            return count
    return None


check("pipeline_parallelism/micro_batches", micro_batches_answer)

# %% [markdown]
# *pipeline_parallelism/schedule:* forward passes ahead, pairs, and the backward passes that are left.


# %% jupyter={"source_hidden": true} tags=["answer"]
def schedule_answer(stage, stages, count):
    ahead = min(stages - 1 - stage, count)
    made = [("F", k) for k in range(ahead)]
    for k in range(ahead, count):
        made += [("F", k), ("B", k - ahead)]
    return made + [("B", k) for k in range(count - ahead, count)]


check("pipeline_parallelism/schedule", schedule_answer)

# %% [markdown]
# *pipeline_parallelism/kept:* micro-batch k and those whose forward passes were made ahead, as far as there are any.


# %% jupyter={"source_hidden": true} tags=["answer"]
def kept_answer(stage, stages, count, k):
    return list(range(k, min(k + stages - stage, count)))


check("pipeline_parallelism/kept", kept_answer)

# %% [markdown]
# *Uneven stages and 1F1B:* the numbers stay, since the order of the passes is fixed. The ranks keep them for longer.

# %% jupyter={"source_hidden": true} tags=["answer"]
pipeline_figures.timetables(
    {"1F1B, stage 2 is slow": clocks(4, 8, pipeline.one_forward_one_backward, seconds=(even, even, slow, even))}
)

# %% [markdown]
# *A cut:* 3 + 1, 1 + 2 + 2 and 3, so the slowest stage takes 5. With at most 4 the first stage would have 3 or 3 + 1,
# and the last one 3. At least 5 are left for the one in the middle.
#
# Go on with [chapter 103](103_halo_exchange.ipynb): ranks share one plate, and exchange what lies at their borders.
