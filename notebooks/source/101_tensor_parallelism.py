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
# # 101. Tensor parallelism
#
# *Several GPUs: weights cut by columns and by rows, heads of attention, cross-entropy over cut classes, sequence
# parallelism, bytes against data parallelism. You need chapters 50, 75, 99 and 100; it takes 80 minutes. PMPP 4e:
# chapter 20; 5e: chapter 23. The code is [pmpp/parallel/tensor.py](../pmpp/parallel/tensor.py) and
# [pmpp/parallel/exercises/tensor_parallelism.py](../pmpp/parallel/exercises/tensor_parallelism.py).*
#
# In [chapter 100](100_data_parallelism.ipynb) every rank had the whole network. Some networks are too large for one
# GPU, and some answers are needed sooner than one GPU can read all weights. Then the layers themselves are cut: every
# rank has a part of each matrix, and all ranks work on the same examples. This is *tensor parallelism*.
#
# **The question of this chapter: how do we cut two linear layers, so that the ranks send as little as possible?** And
# when is that less than the gradients of data parallelism? (Ranks are threads, so this chapter does not run in the
# browser edition.)

# %%
import time

import numpy as np
from threadpoolctl import threadpool_limits

from pmpp import nn, parallel, predict
from pmpp.lab.draw import knobs
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import digits
from pmpp.parallel import Links, figures, tensor, tensor_figures
from pmpp.parallel.exercises import check, exercise
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## Two cuts of a matrix
#
# A linear layer computes $y = x W^T + b$. W has a row for each output and a column for each input, as `nn.Linear`
# stores it. There are two ways to cut it among p ranks.
#
# *By outputs.* Each rank has some rows of W, needs all of x, and computes some outputs completely. In the literature
# this is a *column-parallel* layer, since these are columns of $W^T$. The ranks have parts of y, and no message is
# sent.
#
# *By inputs.* Each rank has some columns of W, and needs only those elements of x that belong to them. It computes a
# part of every sum. This is a *row-parallel* layer. The ranks add up their parts, by an all-reduce.
#
# The digits are our data, and 32 hidden features lie between two layers.

# %%
ROWS, HIDDEN = 32, 32

images, labels = digits.datasets()[0][: 8 * ROWS]
images, labels = images.reshape(len(images), -1), labels.astype(np.int64)
x, y = images[:ROWS], labels[:ROWS]


def layers():
    nn.manual_seed(0)  # all ranks draw the same weights
    return nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, 10)


print("images", x.shape, "weights", [layer.weight.shape for layer in layers()])

# %% [markdown]
# ## The reference
#
# NumPy computes the scores in float64, on one CPU.

# %%
(w, b), (v, c) = [
    [array.detach().numpy().astype(np.float64) for array in (layer.weight, layer.bias)] for layer in layers()
]
before = x @ w.T + b
hidden = np.maximum(before, 0)
scores = hidden @ v.T + c
print(scores[0].round(3))

# %% [markdown]
# ## Columns first, rows second
#
# The first layer is cut by outputs. Rank r has some hidden features, complete. ReLU looks at each element alone, so the
# rank applies it to its own. The second layer is cut by inputs, and what it needs on rank r are just these features.
# Nothing is sent between the two layers. One all-reduce follows the second.

# %%
show(tensor.ColumnLinear.forward)

# %%
show(tensor.RowLinear.forward)

# %% [markdown]
# Here `Sum` is the all-reduce, and `Copy` does nothing forward. What is it for? Rank r uses x for its own features
# alone. So its gradient of x lacks what the features of the others contribute, and the parts have to be summed. `Sum`
# in turn does nothing backward: all ranks have the same loss of the sum, so each part has the gradient of the sum.

# %%
show(tensor.Copy.backward)


# %%
def forward_and_backward(group):
    one, two = layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    given = nn.Tensor(x, requires_grad=True)
    found = second(F.relu(first(given)))
    F.cross_entropy(found, nn.Tensor(y)).backward()
    return found.detach().numpy(), given.grad.numpy(), first.weight.grad.numpy()


# %% [markdown]
# **Predict, then run.** x needs a gradient, as it does inside a network. How many all-reduces do four ranks carry out
# in one forward and one backward pass through both layers?

# %%
guess = None  # all-reduces

four = parallel.ranks(4, forward_and_backward)
predict(guess, four.report.kinds["all_reduce"][0], unit="all-reduces")

# %% [markdown]
# One forward, of the scores, and one backward, of the gradient of x. The gradients of the weights need none: each rank
# alone has these weights, and it has seen all examples.
#
# ## Equal to one rank
#
# Four ranks add in another order than one. How far apart may the scores be? The error of a sum of K products is at most
# about $K \varepsilon / 2$ times the sum of their absolute values ([chapter 38](38_numerics.ipynb)). A hidden feature
# is a sum of 64 products and a bias, and its error goes into the scores with the absolute weights of the second layer.

# %%
eps = np.finfo(np.float32).eps
of_hidden = (64 + 1) * eps / 2 * (abs(x) @ abs(w).T + abs(b))
bound = of_hidden @ abs(v).T + (HIDDEN + 4) * eps / 2 * (hidden @ abs(v).T + abs(c))
apart = 0
for found, *_ in four:
    assert (found == four[0][0]).all()
    apart = max(apart, (abs(found - scores) / bound).max())
assert apart <= 1
alone = parallel.ranks(1, forward_and_backward)[0]
print(f"four ranks are off NumPy's scores by at most {apart:.1%} of the bound, and all have the same bits")
print(f"largest difference of dx between four ranks and one: {abs(four[0][1] - alone[1]).max():.1e}")
print("gradients of a rank's first weights:", four[0][2].shape, "of one rank's:", alone[2].shape)

# %% [markdown]
# ## An activation in the wrong place
#
# Why not rows first? Then the first layer gives every rank a part of each hidden sum, and the ReLU stands between the
# parts and their sum. Someone who wants to save a message applies it to the parts.
#
# **Predict, then run.** Four ranks apply ReLU to their parts of the hidden sums, and add up afterwards. What percentage
# of the hidden features is wrong, by more than 0.001?

# %%
guess = None  # percent

parts = [x[:, k : k + 16] @ w[:, k : k + 16].T + b / 4 for k in range(0, 64, 16)]
too_early = sum(np.maximum(part, 0) for part in parts)
predict(guess, 100 * (abs(too_early - hidden) > 1e-3).mean(), unit="percent")

# %% [markdown]
# A sum of ReLUs is the ReLU of the sum only where no two parts have different signs. No activation that is not linear
# may change places with the sum. So rows first needs an all-reduce before the activation, of the hidden features,
# which are usually four times as wide. The rule is: *columns first, then the activation, rows second*.
#
# ## A bias on each rank
#
# The bias of a row-parallel layer is no part of any rank's sum.
#
# **Predict, then run.** Four ranks add c to their parts before the all-reduce. What is the result off by, in multiples
# of c?

# %%
guess = None  # times c


def bias_before_the_sum(group):
    one, two = layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    part = F.linear(F.relu(first(nn.Tensor(x))), second.weight, second.bias)
    return tensor.Sum.apply(part, group).detach().numpy()


off = parallel.ranks(4, bias_before_the_sum)[0] - scores
predict(guess, float(np.round((off.mean(axis=0) / c).mean(), 4)), unit="times c")

# %% [markdown]
# The bias is counted four times, so it is off by three. The network may still learn, since the bias adapts. But the
# same weights give other scores on another number of ranks.
#
# ### Exercise: two layers

# %%
exercise("tensor_parallelism/two_layers")


# %%
def two_layers(group, x, w1, b1, w2, b2):
    hidden = np.maximum(x @ w1.T + b1, 0)
    return group.all_reduce(hidden @ w2.T + b2)


check("tensor_parallelism/two_layers", two_layers)

# %% [markdown]
# ## A training
#
# The program of a rank is that of one rank, with other layers. No gradient is averaged, since all ranks see all
# examples.


# %%
def train(group):
    one, two = layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    optimizer = nn.optim.SGD([*first.parameters(), *second.parameters()], lr=0.5)
    losses = []
    for k in range(0, len(labels), ROWS):
        optimizer.zero_grad()
        features = F.relu(first(nn.Tensor(images[k : k + ROWS])))
        loss = F.cross_entropy(second(features), nn.Tensor(labels[k : k + ROWS]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


trained = {size: parallel.ranks(size, train) for size in (1, 4)}

# %% [markdown]
# NumPy trains the same network for comparison.

# %%
by_numpy, weights = [], [w.copy(), b.copy(), v.copy(), c.copy()]
for k in range(0, len(labels), ROWS):
    W, B, V, C = weights
    inputs, wanted = images[k : k + ROWS], np.eye(10)[labels[k : k + ROWS]]
    h = np.maximum(inputs @ W.T + B, 0)
    exps = np.exp(h @ V.T + C)
    share = exps / exps.sum(axis=1, keepdims=True)
    by_numpy.append(-np.log((share * wanted).sum(axis=1)).mean())
    ds = (share - wanted) / ROWS
    dh = ds @ V * (h > 0)
    for one, gradient in zip(weights, (dh.T @ inputs, dh.sum(0), ds.T @ h, ds.sum(0)), strict=True):
        one -= 0.5 * gradient
figures.losses(
    {"NumPy": by_numpy} | {f"tensor parallelism, ranks: {size}": found[0] for size, found in trained.items()}
)

# %% [markdown]
# All curves lie on one line. Chapter 100 derived how far rounding may carry such a training. As there, the test is a
# loss equal to that of one rank. A loss that goes down proves nothing.
#
# ## When a rank leaves out the sum
#
# Suppose that rank 2 forgets the all-reduce, because of an `if`. The ranks then do not make the same calls, and
# that is found at once.


# %%
def forgets(group):
    one, two = layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    part = F.relu(first(nn.Tensor(x)))
    return F.linear(part, second.weight) if group.rank == 2 else second(part)


try:
    parallel.ranks(4, forgets)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# The others wait for a rank that never comes. On real machines such a program hangs, without a word.
#
# It is worse if *all* ranks forget a sum, since their calls still agree. Take a layer in front that all ranks have
# whole, and leave out `Copy`. The forward pass is right. Backward, each rank has its own part of the gradient, and the
# layers in front drift apart. `group.same` of chapter 100 finds it.


# %%
def without_copy(group):
    nn.manual_seed(1)
    front, (one, two) = nn.Linear(64, 64), layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    features = F.linear(front(nn.Tensor(x)), first.weight, first.bias)  # and not first(...)
    F.cross_entropy(second(F.relu(features)), nn.Tensor(y)).backward()
    group.same(front.weight.grad.array, "gradient")


try:
    parallel.ranks(4, without_copy)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# ## Bytes against data parallelism
#
# A block of a Transformer has two linear layers, from h features to 4h and back: 8h² weights. For B rows, tensor
# parallelism sums two arrays of B times h: the result forward, the gradient of x backward. Data parallelism sums 8h²
# gradients. In float32 and by a ring a rank sends
#
# $$\text{tensor: } 2 \frac{p - 1}{p} \cdot 4 \cdot 2 B h \qquad \text{data: } 2 \frac{p - 1}{p} \cdot 4 \cdot 8 h^2$$
#
# (A row is an example here. In a Transformer it is a token, so B counts all tokens of a batch.)
#
# **Predict, then run.** A block has h = 1,024 features. From how many rows on does data parallelism send less?

# %%
guess = None  # rows

predict(guess, next(n for n in range(1, 10**5) if np.subtract(*tensor_figures.sent(n, 1024, 8)) >= 0), unit="rows")

# %% [markdown]
# It is B = 4h, whatever the number of ranks. We count it with simulated ranks, for h = 16.


# %%
def block(group, rows):
    first, second = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)
    first, second = tensor.ColumnLinear(group, first), tensor.RowLinear(group, second)
    given = nn.Tensor(np.ones((rows, 16), np.float32), requires_grad=True)
    second(F.relu(first(given))).sum().backward()


# %% [markdown]
# With data parallelism the ranks sum the gradients of both matrices.


# %%
def gradients(group, rows):
    for shape in ((64, 16), (16, 64)):
        group.all_reduce(np.zeros(shape, np.float32), "mean")


def of_a_rank(size, function, rows):
    return sum(parallel.ranks(size, function, rows).report.nbytes.values()) / size


counted = {}
for p in (2, 4):
    for name, function in (("tensor parallelism", block), ("data parallelism", gradients)):
        counted[p, name] = [(rows, of_a_rank(p, function, rows)) for rows in (16, 64, 256)]

# %% [markdown]
# Turn the knobs. Which of the two moves the point where the lines meet?

# %%
features, ranks = 16, 4


def draw(features, ranks):
    marks = {name: found for (p, name), found in counted.items() if (p, features) == (ranks, 16)}
    return tensor_figures.sent_bytes(features, ranks, [2**k for k in range(17)], marks)


knobs.turn(draw, features=(features, (16, 256, 1024, 4096)), ranks=(ranks, (2, 4, 8, 64)))

# %% [markdown]
# The line of data parallelism is flat, since its bytes depend on the weights alone. That of tensor parallelism rises
# with the rows. The marks are what ranks really sent. Both lines have the factor (p - 1)/p, so the number of ranks
# moves both, and the point where they meet stays. The width moves it.
#
# Trainings have large batches, often far to the right of this point. There tensor parallelism sends more. It is used
# where the weights do not fit, or where a batch is small: when a network answers a few questions, it is far on the
# left.
#
# ## Why it stays inside a machine
#
# Bytes are not all. The gradients of data parallelism travel while the backward pass goes on. Here the next layer waits
# for each sum, so no all-reduce hides behind computation. The time comes from the alpha-beta model: 2,048
# rows, 4,096 features, and GPUs of which we assume 400 TFLOP/s. Links inside a machine have 450 GB/s, and those
# between machines 50 GB/s.
#
# A step has 48 B h² FLOP, of which a rank does one part in p. It sends 16 B h (p - 1)/p bytes. So it has 3h/(p - 1)
# FLOP for each byte: this is its intensity, and B has no part in it. A GPU of 400 TFLOP/s needs 889 FLOP a byte on the
# fast links, and 8,000 on the slow ones.
#
# **Predict, then run.** From which power of two of ranks on does a rank wait longer than it computes, on the fast
# links?

# %%
guess = None  # ranks

inside, between = Links(3e-6, 450e9), Links(10e-6, 50e9)
sizes = [2**k for k in range(7)]
slow = [tensor_figures.step(2048, 4096, p, inside, 400e12) for p in sizes]
predict(guess, next(p for p, one in zip(sizes, slow, strict=True) if one.waiting > one.compute), unit="ranks")

# %%
gb_inside, gb_between, wide, rows = 450, 50, 4096, 2048


def draw_steps(gb_inside, gb_between, wide, rows):
    kinds = {"in a machine": Links(3e-6, 1e9 * gb_inside), "between machines": Links(10e-6, 1e9 * gb_between)}
    return tensor_figures.steps(rows, wide, 400e12, kinds, sizes)


knobs.turn(
    draw_steps,
    gb_inside=(gb_inside, (64, 450, 900)),
    gb_between=(gb_between, (12, 50, 100)),
    wide=(wide, (1024, 4096, 16384)),
    rows=(rows, (1, 128, 2048, 65536)),
)

# %% [markdown]
# The shaded region is communication-bound: a rank waits longer than it computes. On fast links eight ranks are still
# compute-bound, and nearly five times as fast as one. On slow ones eight ranks take three quarters of the time of one:
# what they save, they spend on sums. At its right end the time rises on both, since a ring has 2 (p - 1) alphas. That
# is why tensor parallelism stays among the GPUs of one machine, which NVLink connects, and data parallelism goes
# between machines. `group.split` makes the groups for both: ranks of one machine share the layers, and ranks of the
# same number in all machines average their gradients.
#
# More rows do not help, except that alpha counts less. A wider network does. Compare chapter 100, where the examples of
# a rank were the intensity.
#
# ## A part of the weights is read faster
#
# Communication is one bound, memory another. A product of few rows is memory-bound: it reads every weight once, and
# does little with it ([chapter 32](32_matrix_vector.ipynb)). Each rank reads its part alone, so p ranks have p times
# the bandwidth. Data parallelism has nothing to offer there: one row cannot be divided. NumPy shows it on one core
# of this machine's CPU, with all weights of a block and with a quarter of them.


# %%
def timed_block(up, down, rows):
    given, took = np.ones((rows, 512), np.float32), []
    with threadpool_limits(1):
        for _ in range(15):
            begin = time.perf_counter()
            np.maximum(given @ up.T, 0) @ down.T
            took.append(time.perf_counter() - begin)
    return min(took)


# %% [markdown]
# The block has 512 features, and 2,048 hidden ones. The least of 15 times counts.

# %%
drawn, counts = np.random.default_rng(0), (1, 4, 16, 64, 256)
up, down = (drawn.normal(size=shape).astype(np.float32) for shape in ((2048, 512), (512, 2048)))
quarter = up[:512], np.ascontiguousarray(down[:, :512])
timed = {"all weights": [(n, timed_block(up, down, n)) for n in counts]}
timed["a quarter"] = [(n, timed_block(*quarter, n)) for n in counts]
tensor_figures.parts_on_a_cpu(timed)

# %% [markdown]
# Follow the upper line. From 4 to 16 rows there is four times as much arithmetic, and the time grows by less than
# that: much of it goes into reading the weights, which are the same. On the right the line is steeper. Most of the time
# goes into arithmetic there, which grows as the rows do. (For a single row NumPy has a routine of its own.) A quarter
# of the weights takes about a quarter of the time. It can take less, where a quarter fits into a cache and the whole
# does not.
#
# ## Heads of attention
#
# A layer of attention ([chapter 75](75_attention.ipynb)) has several heads, and a head needs no other one. So heads are
# a natural cut: the products that make queries, keys and values are column-parallel, a rank computes its own heads, and
# the product behind them is row-parallel. It is the same rule, with attention in the place of the ReLU.

# %%
show(tensor.SelfAttention.forward)

# %% [markdown]
# We take an image of 8 rows as 8 tokens, with 4 heads of 4 features, and look at the gradient of the tokens, too.

# %%
HEADS, SIZE = 4, 4


def attends(group):
    nn.manual_seed(3)
    qkv, out = nn.Linear(8, 3 * HEADS * SIZE, bias=False), nn.Linear(HEADS * SIZE, 8, bias=False)
    layer = tensor.SelfAttention(group, qkv, out, HEADS, causal=False)
    tokens = nn.Tensor(x.reshape(ROWS, 8, 8), requires_grad=True)
    y = layer(tokens)
    (y * y).sum().backward()
    return y.detach().numpy(), tokens.grad.numpy()


# %% [markdown]
# We compare with one rank, and count the calls.

# %%
whole = parallel.ranks(1, attends)[0]
for size in (2, 4):
    found = parallel.ranks(size, attends)
    kinds = {kind: calls for kind, (calls, *_) in found.report.kinds.items()}
    off = [abs(mine - one).max() for mine, one in zip(found[0], whole, strict=True)]
    print(f"{size} ranks: {kinds}, result off by {off[0]:.1e}, gradient by {off[1]:.1e}")

# %% [markdown]
# One all-reduce forward and one backward, as before. A rank also keeps the keys and values of its own heads alone, so
# the cache of chapter 75 is divided, too. More ranks than heads cannot be used this way.
#
# ## A loss over cut classes
#
# The last layer of a language model has a row for each token that it may say: 50,000 and more. Cut by outputs, it gives
# each rank the scores of some classes. To gather the scores would send all of them. But the loss of a row needs three
# numbers only ([chapter 50](50_softmax.ipynb)): the largest score, the sum of exponentials, and the score of the label.
# The first is a largest of the ranks' largest. The second is a sum of the ranks' sums. The third is on one rank, and
# the others add 0.

# %%
show(tensor.cross_entropy)


# %%
def gathered(group, part, wanted):
    every = np.concatenate(list(device.to_host(group.all_gather(part))), axis=1)
    return F.cross_entropy(nn.Tensor(every), nn.Tensor(wanted)).item()


def three_numbers(group, part, wanted):
    return tensor.cross_entropy(group, nn.Tensor(part), wanted).item()


# %% [markdown]
# Two ranks have five digits each. The scores are those of our two layers.


# %%
def of_scores(group, function):
    one, two = layers()
    part = tensor.ColumnLinear(group, two)(F.relu(one(nn.Tensor(x))))
    return function(group, part.detach().numpy(), y)


for function in (gathered, three_numbers):
    found = parallel.ranks(2, of_scores, function)
    print(f"{function.__name__:14} loss {found[0]:.6f}, bytes {sum(found.report.nbytes.values()):,}")

# %% [markdown]
# With ten classes little is saved. The bytes of three numbers do not depend on the classes.
#
# **Predict, then run.** Four ranks divide 1,200 classes. How many times as many bytes does gathering send?

# %%
guess = None  # times as many


def many_classes(group, function):
    return function(group, np.zeros((8, 1200 // group.size), np.float32), np.arange(8))


many = [sum(parallel.ranks(4, many_classes, one).report.nbytes.values()) for one in (gathered, three_numbers)]
predict(guess, many[0] / many[1], unit="times as many")

# %% [markdown]
# Gathering sends one number for each class, and the three all-reduces send six: each goes around the ring twice. So it
# is V/6 times as many for V classes. Gathering also gives every rank all the scores to keep.
#
# ### Exercise: cross-entropy
#
# Let all-reduces sum the three numbers. Ranks that gather them send more, from three ranks on.

# %%
exercise("tensor_parallelism/cross_entropy")


# %%
def cross_entropy(group, scores, labels):
    rows, each = scores.shape
    mine = labels - group.rank * each
    here = (mine >= 0) & (mine < each)
    picked = np.where(here, scores[np.arange(rows), np.where(here, mine, 0)], 0)
    return float((np.log(np.exp(scores).sum(axis=1)) - picked).mean())


check("tensor_parallelism/cross_entropy", cross_entropy)

# %% [markdown]
# Ten classes are no multiple of four ranks, and the layer says so. Libraries add classes that never occur.

# %%
try:
    parallel.ranks(4, lambda group: tensor.ColumnLinear(group, layers()[1]))
except ValueError as error:
    print(error)

# %% [markdown]
# ## What a rank keeps
#
# Parameters, gradients and the optimiser's state are divided by p. So are the hidden features. What stays whole on each
# rank are the inputs and outputs of the pairs of layers, and all that stands between pairs: normalisation, dropout,
# additions. There every rank does the same work on the same numbers.
#
# *Sequence parallelism* divides these, too. Between the pairs a rank has some *rows*, complete, since normalisation and
# dropout treat each row (each token) alone. Before a pair the rows are gathered. After it each rank needs the sum of
# its own rows only. An all-reduce is a reduce-scatter and an all-gather; now the second one moves to the next pair. The
# bytes stay the same, and nothing whole is kept between the pairs.
#
# Here is what a rank keeps of our two layers, in bytes of float32: weights and biases, its hidden features, and the
# scores.


# %%
def kept(group):
    one, two = layers()
    first, second = tensor.ColumnLinear(group, one), tensor.RowLinear(group, two)
    features = F.relu(first(nn.Tensor(x)))
    parameters = [*first.parameters(), *second.parameters()]
    return [sum(4 * one.size for one in arrays) for arrays in (parameters, [features], [second(features)])]


for size in (1, 2, 4, 8):
    parameters, features, found = parallel.ranks(size, kept)[0]
    print(f"ranks: {size}, parameters {parameters:6,}, hidden features {features:5,}, scores {found:5,}")

# %% [markdown]
# The scores stay whole, and so does the bias of the second layer.
#
# ### Exercise: sequence parallelism

# %%
exercise("tensor_parallelism/cut_rows")


# %%
def cut_rows(group, x, w1, w2):
    part = np.maximum(x @ w1.T, 0) @ w2.T
    return group.all_reduce(part)


check("tensor_parallelism/cut_rows", cut_rows)

# %% [markdown]
# ## What to take along
#
# - Columns first, activation, rows second: one all-reduce forward, one backward, and none for the weights' gradients.
# - An activation never stands between parts and their sum. A bias is added once, to the sum.
# - `Copy` and `Sum` are a pair: what one does forward, the other does backward. If all ranks forget one, no call is
#   wrong, and only `group.same` or a comparison with one rank finds it.
# - Tensor parallelism sends activations, data parallelism gradients. For a block with h to 4h features they are equal
#   at 4h rows.
# - Its intensity is 3h/(p - 1) FLOP a byte, and its sums hide behind nothing. So it wants the fast links of a machine.
# - With few rows a layer is memory-bound, and each rank reads a part of the weights.
# - Heads are cut as columns are. The loss over cut classes needs three numbers for each row.
#
# ## Exercises
#
# Besides the three above, without a check:
#
# 1. *One matrix for three.* Many networks keep the weights of queries, keys and values in one matrix of 3h rows. Why is
#    `ColumnLinear` of it wrong, and how must the rows be ordered?
# 2. *Dropout.* Dropout of the hidden features, and dropout of the result of the second layer: on which of the two must
#    ranks draw the same random numbers, and on which different ones?
#
# ## Answers

# %% [markdown]
# *tensor_parallelism/two_layers:* the bias is added to the sum.


# %% jupyter={"source_hidden": true} tags=["answer"]
def two_layers_answer(group, x, w1, b1, w2, b2):
    hidden = np.maximum(x @ w1.T + b1, 0)
    return device.to_host(group.all_reduce(hidden @ w2.T)) + b2


check("tensor_parallelism/two_layers", two_layers_answer)

# %% [markdown]
# *tensor_parallelism/cross_entropy:* sums of exponentials and labels' scores go in one all-reduce.


# %% jupyter={"source_hidden": true} tags=["answer"]
def cross_entropy_answer(group, scores, labels):
    rows, each = scores.shape
    largest = device.to_host(group.all_reduce(scores.max(axis=1), "max"))
    shifted = scores - largest[:, None]
    mine = labels - group.rank * each
    here = (mine >= 0) & (mine < each)
    picked = np.where(here, shifted[np.arange(rows), np.where(here, mine, 0)], 0)
    total, picked = device.to_host(group.all_reduce(np.float32([np.exp(shifted).sum(axis=1), picked])))
    return float((np.log(total) - picked).mean())


check("tensor_parallelism/cross_entropy", cross_entropy_answer)

# %% [markdown]
# *tensor_parallelism/cut_rows:* all rows in, the sum of its own rows out.


# %% jupyter={"source_hidden": true} tags=["answer"]
def cut_rows_answer(group, x, w1, w2):
    every = device.to_host(group.all_gather(x)).reshape(-1, x.shape[1])
    part = np.maximum(every @ w1.T, 0) @ w2.T
    return group.reduce_scatter(part.reshape(group.size, len(x), -1))


check("tensor_parallelism/cut_rows", cut_rows_answer)

# %% [markdown]
# *One matrix for three.* Rank 0 would get the first rows: queries alone, and of more heads than its share. The rows
# must be ordered by heads: for each rank its part of the queries, then of the keys, then of the values.
#
# *Dropout.* The result of the second layer is the same on all ranks and has to stay so: the same numbers. The hidden
# features of two ranks are different ones: with the same numbers, feature k of each rank would be dropped together.
#
# Go on with [chapter 102](102_pipeline_parallelism.ipynb): a network is cut between its layers, and sends even less.
