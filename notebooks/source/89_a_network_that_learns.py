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
# # 89. A network that learns
#
# *A convolutional network on handwritten digits, built layer by layer, trained by the kernels of this workbook. Shapes,
# parameters and FLOP predicted; curves, a confusion matrix, filters before and after, the digits that it gets wrong;
# where a training step goes. You need chapters 30, 46, 62, 74, 76, 82 and 88; it takes 70 minutes. PMPP 4e: chapter 16;
# 5e: chapter 19. The code is [pmpp/nn/examples/digits.py](../pmpp/nn/examples/digits.py) and
# [pmpp/nn/modules.py](../pmpp/nn/modules.py).*
#
# You have met every kernel that a network needs, forwards and backwards, and the tape that strings them together. In
# this chapter nothing is new but the whole: random numbers become a program that reads digits. At the end you change
# the network, and make it yours.
#
# **The questions of this chapter: how do layers become a network that learns? How do we know what it has learned? And
# where does the time of a training step go?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, nn, predict
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.nn import functional as F
from pmpp.nn.examples import digits, yours
from pmpp.nn.measure import layers, recorded
from pmpp.nn.measure.training import averages
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A training step, in kernels
#
# A training repeats one step. A *batch* of examples goes forwards through the layers and becomes scores, and these a
# single number, the loss. The backward pass finds how each parameter moves the loss. The optimiser moves all of them
# a little against it. Here is the whole of it, as `digits.train` has it:

# %%
show(digits.train)

# %% [markdown]
# Each line of the loop is a few launches. `net(images)` launches the forward kernels of chapters 46, 62 and 74, one
# after the other, and the tape of [chapter 88](88_a_tape.ipynb) writes them down. `loss.backward()` launches the
# gradients of chapters 74 to 86 in the reverse order. `optimizer.step()` is the single launch of
# [chapter 82](82_optimisers.ipynb).
#
# ## The data
#
# 1,797 digits were written by 43 people, scanned, and reduced to 8 x 8 pixels. What we want to know of a network is
# what it does with digits that it has *not* seen. So 360 are held out, by a fixed shuffle, and no training ever
# touches them.
#
# Choosing is training, too. If you try ten learning rates and keep the one that is best on the held-out digits, you
# have fitted the rate to them, and their figure says too much of any other digits. The schedule of `digits` was chosen
# on another part, taken off the digits to train on (`validate=True`).

# %%
training, held_out = digits.datasets()
images, labels = held_out.arrays
print(f"to train on: {training.arrays[0].shape}, held out: {images.shape}, labels: {np.unique(labels)}")


def draw_digits(images, titles, columns=10):
    """Images in a grid, with a title each."""
    rows = -(-len(images) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(8, 1.15 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, image, title in zip(axes.flat, images, titles, strict=False):
        ax.imshow(image.reshape(image.shape[-2:]), cmap="gray_r")
        ax.set_title(title, fontsize=8, pad=2)


draw_digits(images[:20], labels[:20])

# %% [markdown]
# Pixels were counts from 0 to 16. `digits.split` subtracts the mean of the training pixels and divides by their
# deviation. If all inputs are positive, each place of an image pulls all weights of a filter the same way: its
# gradients have one sign, and the weights can hardly move apart. Leave it out, with pixels from 0 to 1, and the
# training below gets much less far.
#
# **Predict, then run.** Before it has learned anything, a network gives each of the ten digits about the same share.
# The loss is minus the natural logarithm of the right one's share. What is it?

# %%
guess = None  # the first loss

predict(guess, float(-np.log(1 / 10)))

# %% [markdown]
# This is the first check of any training. If the first loss is far from it, then something is wrong before the first
# step: labels that do not fit, scores that are much too large, a softmax too many.
#
# ## The network, layer by layer
#
# A filter of 3 x 3 sees strokes: edges and corners. Pooling keeps the strongest answer of each 2 x 2 pixels, so that a
# stroke may lie a pixel further left. The second convolution sees strokes of strokes, over almost the whole digit. Then
# a linear layer says which of them speak for which digit.


# %%
class Net(nn.Module):
    """Two convolutions, a pooling after each, and a linear layer: for images of 8 x 8."""

    def __init__(self):
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(64, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.head(x.flatten(1))


# %% [markdown]
# The images have the shape (N, 1, 8, 8). A convolution of 3 x 3 with a padding of 1 keeps height and width, and a
# pooling of 2 halves them. So the 64 inputs of the head are 16 channels of 2 x 2.
#
# **Predict, then run.** A convolution has a weight for each filter, channel and position of the window, and a bias for
# each filter. How many parameters does `conv2` have?

# %%
guess = None  # parameters

nn.manual_seed(0)
net = Net()
predict(guess, sum(parameter.size for parameter in net.conv2.parameters()), unit="parameters")

# %% [markdown]
# 16 filters x 8 channels x 9 positions, and 16 biases. `nn.summary` calls the network once, and has a row for each call
# of a layer. `pool` is called twice.

# %%
print(nn.summary(net, Tensor(images[:1])))

# %% [markdown]
# Parameters are one thing, arithmetic another. A weight of a convolution is used once for each pixel of its result, a
# weight of a linear layer once for each image.
#
# `layers.operations` carries out the forward pass, and knows of each operation the least work that its definition asks
# for, forwards and backwards.
#
# **Predict, then run.** A multiply-add counts as two FLOP. How many FLOP does `conv2` take for one image, forwards? Its
# result has 16 channels of 4 x 4.

# %%
guess = None  # FLOP

found, _ = layers.operations(net, images[:1], labels[:1])
work = [(one.layer, one.name, *one.costs) for one in found]
((forward, backward),) = [costs for layer, _, *costs in work if layer == "conv2"]
predict(guess, forward.flops, unit="FLOP")

# %%
print(f"{'layer':<7}{'operation':<14}{'FLOP forward':>13}{'backward':>10}{'least bytes':>13}{'FLOP per byte':>15}")
for layer, name, forward, backward in work:
    both = forward + backward
    print(f"{layer:<7}{name:<14}{forward.flops:13,}{backward.flops:10,}{both.bytes:13,}{both.intensity:15.2f}")

# %% [markdown]
# `conv2` has nearly two thirds of the parameters and most of the arithmetic. Backwards it is twice as much: one product
# for the gradient of its input, and one for that of its weights. `conv1` needs only the second, since nobody asks for
# the gradient of the images.
#
# ReLU and pooling have next to no arithmetic. They read and write, and memory is their bound on every GPU.
#
# ## Training
#
# In the interpreter we train on a part of the digits and for a few epochs, to keep this chapter short. On a GPU we
# train the whole. `python -m pmpp.nn.examples.digits` trains the whole everywhere. In the interpreter that takes one to
# three minutes: start it in a terminal now, and look at what it prints later. `--help` names what it can change.

# %%
whole = device.on_gpu()
examples, epochs, batch = (len(training), digits.EPOCHS, digits.BATCH) if whole else (320, 4, 32)
part = TensorDataset(*training[:examples])
before = net.conv1.weight.detach().numpy()


def evaluate(net, dataset):
    """Mean loss, and the share of the examples that the network gets right."""
    scores = digits.scores(net, dataset.arrays[0])
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    right = shares[np.arange(len(dataset)), dataset.arrays[1]]
    return -np.log(right).mean(), (shares.argmax(axis=1) == dataset.arrays[1]).mean()


# %%
looked_at = 360 if whole else 120  # of each, after each epoch
parts = {"trained on": TensorDataset(*part[:looked_at]), "held out": TensorDataset(*held_out[:looked_at])}
history = {name: [evaluate(net, one)] for name, one in parts.items()}
print("before:", ", ".join(f"loss {loss:.3f} of those {name}" for name, ((loss, _),) in history.items()))
for epoch, loss in digits.train(net, part, epochs, batch=batch):
    for name, one in parts.items():
        history[name].append(evaluate(net, one))
    print(f"epoch {epoch + 1} of {epochs}: mean loss of the batches {loss:.3f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for (name, values), colour, mark in zip(history.items(), palette.COLOURS, palette.MARKERS, strict=False):
    for ax, curve in zip(axes, np.transpose(values), strict=True):
        ax.plot(curve, color=colour, marker=mark, markersize=4, label=name)
axes[0].axhline(-np.log(1 / 10), color=palette.GREY, linestyle=":", label="knows nothing")
axes[0].set(xlabel="epoch", ylabel="loss", ylim=(0, None))
axes[1].set(xlabel="epoch", ylabel="share that is right", ylim=(0, 1.02))
axes[0].legend()
None

# %% [markdown]
# The loss begins near the value that you predicted, and falls with every epoch. The two lines of the left figure say
# what to do next. If both are high, the network has not learned enough: train longer, or make it larger. If they part,
# so that only the digits that were trained on get better, the network learns these by heart: it wants more examples.
#
# ### Beside NumPy on the CPU
#
# Do we need convolutions at all? The simplest thing that learns is one linear layer: 640 weights and 10
# biases, and its gradient fits on one line. Here it is in NumPy, trained on the same digits.


# %%
def linear_on_the_cpu(dataset, steps=200, rate=0.1):
    """Softmax regression by NumPy, on all digits in each step."""
    x, y = dataset.arrays[0].reshape(len(dataset), -1), dataset.arrays[1]
    weight, bias, target = np.zeros((10, x.shape[1]), np.float32), np.zeros(10, np.float32), np.eye(10)[y]
    for _ in range(steps):
        shares = np.exp(x @ weight.T + bias)
        error = (shares / shares.sum(axis=1, keepdims=True) - target) / len(y)
        weight, bias = weight - rate * error.T @ x, bias - rate * error.sum(axis=0)
    return weight, bias


# %%
weight, bias = linear_on_the_cpu(part)
scores = digits.scores(net, images)
answers = scores.argmax(axis=1)


def linear_says(images):
    """The answers of the linear layer."""
    return (images.reshape(len(images), -1) @ weight.T + bias).argmax(axis=1)


for name, one in {"one linear layer, NumPy": linear_says(images), "the network": answers}.items():
    print(f"{name:<24} {(one == labels).mean():.1%} of {len(labels)} held-out digits")

# %% [markdown]
# With few digits and a short training the linear layer is hard to beat: it has one best answer, and walks straight to
# it, while the network must first find its filters. The command from above trains longer and with all digits. Look at
# what it has printed: is it more than the linear layer has here?
#
# The limit of the linear layer is that it compares pixel with pixel. How many do both get right if the digits are
# shifted sideways? Neither was trained for that.

# %%
shifts, some = range(-2, 3), len(parts["held out"])
moved = {d: np.ascontiguousarray(np.roll(images[:some], d, axis=3)) for d in shifts}
known = {
    "the network": [(digits.scores(net, moved[d]).argmax(axis=1) == labels[:some]).mean() for d in shifts],
    "one linear layer, NumPy": [(linear_says(moved[d]) == labels[:some]).mean() for d in shifts],
}
figure, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
for (name, values), colour, mark in zip(known.items(), palette.COLOURS, palette.MARKERS, strict=False):
    ax.plot(shifts, values, color=colour, marker=mark, label=name)
ax.set(xlabel="shift to the right (pixels)", ylabel="share that is right", xticks=shifts, ylim=(0, 1.02))
ax.legend()
None

# %% [markdown]
# Both lose much with a single pixel, which is an eighth of the image. The linear layer loses more: to it a shifted
# digit is another digit. A filter of the network finds its stroke wherever it is, and pooling forgives half a window.
# Its head, though, still knows places.
#
# ## What does it take for what?
#
# One figure for ten digits hides a lot. A *confusion matrix* has a row for each digit and a column for each answer, and
# counts.

# %%
confusion = np.zeros((10, 10), int)
np.add.at(confusion, (labels, answers), 1)
figure, ax = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
ax.imshow(np.sqrt(confusion), cmap="Blues")
for row, column in np.ndindex(10, 10):
    if confusion[row, column]:
        colour = "white" if confusion[row, column] > 15 else palette.TEXT
        ax.text(column, row, confusion[row, column], ha="center", va="center", fontsize=8, color=colour)
ax.set(xlabel="what the network says", ylabel="what was written", xticks=range(10), yticks=range(10))
ax.grid(False)

# %%
wrong = confusion - np.diag(np.diag(confusion))
for place in np.argsort(-wrong, axis=None)[:3]:
    row, column = np.unravel_index(place, wrong.shape)
    print(f"a {row} was taken for a {column} {wrong[row, column]} times")
print(f"{np.count_nonzero(wrong)} of the {wrong.size - 10} places beside the diagonal hold all {wrong.sum()} mistakes")

# %% [markdown]
# The diagonal is what it gets right. Mistakes are not spread evenly beside it: most places have none, and a few pairs
# have many.
#
# ### Exercise: count it on the GPU
#
# Counting is a histogram in two dimensions.

# %%
exercise("confusion/matrix")


# %%
@cuda.jit
def matrix(scores, labels, counts):
    pass  # your code


check("confusion/matrix", matrix)

# %% [markdown]
# ## The digits that it gets wrong
#
# The softmax makes shares of the scores. Above each image stands the digit that was written. Below that stand the two
# digits with the largest shares.

# %%
shares = np.exp(scores - scores.max(axis=1, keepdims=True))
shares /= shares.sum(axis=1, keepdims=True)
missed = np.flatnonzero(answers != labels)
missed = missed[np.argsort(-shares[missed].max(axis=1))][:20]  # the surest first
titles = []
for i in missed:
    second, first = np.argsort(shares[i])[-2:]
    titles.append(f"written: {labels[i]}\n{first} {shares[i, first]:.0%}, {second} {shares[i, second]:.0%}")
draw_digits(images[missed], titles, columns=8)

# %% [markdown]
# The first are those where it was surest. In many the right digit has the second share: the network hesitates where
# we would. A large share for a wrong answer shows that shares are not probabilities of being right. The loss rewards
# being sure of the digits to train on, and nothing tells the network how often it errs on others.
#
# ## What did the filters learn?
#
# The first layer has eight filters of 3 x 3: small enough to look at. Before the training they are random. Blue is
# positive, and red is negative.

# %%
after = net.conv1.weight.detach().numpy()
figure, axes = plt.subplots(2, len(after), figsize=(8, 2.3), layout="constrained")
limit = max(abs(before).max(), abs(after).max())
for row, (name, filters) in enumerate({"before": before, "after": after}.items()):
    for ax, one in zip(axes[row], filters, strict=True):
        shown = ax.imshow(one[0], cmap="RdBu", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
    axes[row][0].set_ylabel(name)
figure.colorbar(shown, ax=axes, label="weight")
moved = np.sqrt(((after - before) ** 2).mean() / (before**2).mean())
print(f"the weights moved by {moved:.0%} of what they were")

# %% [markdown]
# After training they have larger weights, and some have taken sides: one edge of the window blue, the other red. Such a
# filter answers where ink ends, along one direction. Others still look much as they began. A network does not need
# each of its filters to be clean, it needs them to be different.
#
# ## Where does a step go?
#
# Forwards and backwards each operation is a launch or a few. Which of them cost? The interpreter counts warp
# instructions and bytes for each, in the network of `digits` and for 16 images.

# %%
rows = lab.count(layers.counted, *part[:16]).result
names = [f"{row['operation']} {row['layer']}".removesuffix(" -") for row in rows]
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3), layout="constrained", sharey=True)
for ax, what in zip(axes, ("instructions", "bytes"), strict=True):
    for shift, side, colour, hatch in ((-0.2, "forward", 0, ""), (0.2, "backward", 1, "//")):
        values = [row[side][what] for row in rows]
        places = np.arange(len(rows)) + shift
        ax.barh(places, values, 0.4, color=palette.COLOURS[colour], hatch=hatch, label=side)
    ax.set(xlabel={"instructions": "warp instructions", "bytes": "bytes in sectors"}[what], xscale="log")
axes[0].set_yticks(range(len(rows)), names)
axes[0].invert_yaxis()
axes[1].legend(loc="lower right")
print({side: sum(row[side]["launches"] for row in rows) for side in ("forward", "backward")}, "launches")

# %% [markdown]
# The axes are logarithmic. The convolutions have by far the most instructions. In bytes the layers are closer together:
# each must read and write its images, whatever it computes. These are the rungs that suit the interpreter; on a GPU
# `convolution` and its gradients choose others, by shape.
#
# **Predict, then run.** Of all warp instructions of a step, forwards and backwards, how many per cent are spent in the
# two convolutions?

# %%
guess = None  # %

instructions = {"Conv2d": 0, "others": 0}
for row in rows:
    kind = row["operation"] if row["operation"] == "Conv2d" else "others"
    instructions[kind] += row["forward"]["instructions"] + row["backward"]["instructions"]
predict(guess, 100 * instructions["Conv2d"] / sum(instructions.values()), unit="%")

# %% [markdown]
# ### On a GPU: time, and what bounds it
#
# Instructions are not time. `python -m pmpp.nn.measure.layers` times each operation of LeNet-5 and of ResNet-18 on a
# GPU, alone, and puts the roofline's bound beside it: the least bytes over the bandwidth, or the FLOP over the rate of
# multiply-adds, whichever takes longer.


# %%
def bars(row, most=16):
    """(label, its numbers, how many alike) for the operations that take longest; those of one work stand together."""
    groups = {}
    for one in row["operations"]:
        for side in ("forward", "backward"):
            if one[side]:
                key = one["operation"], side, *one["shape"], one[side]["flops"], one[side]["us"]
                groups.setdefault(key, []).append((one["layer"].removesuffix("-"), one[side]))
    found = []
    for (name, side, *_), alike in groups.items():
        times = f", {len(alike)} x" if len(alike) > 1 else ""
        label = " ".join(filter(None, (name, alike[0][0], side))) + times
        found.append((label, alike[0][1], len(alike)))
    return sorted(found, key=lambda bar: -bar[1]["us"] * bar[2])[:most]


# %%
def where_a_step_goes(name, row):
    """A bar for the time of operations that are alike, all of them together, and a mark for the roofline's bound."""
    _, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    sides = {"memory": (palette.COLOURS[0], ""), "compute": (palette.COLOURS[1], "//")}
    for i, (_, found, times) in enumerate(bars(row)):
        colour, hatch = sides[found["bound by"]]
        ax.barh(i, times * found["us"], color=colour, hatch=hatch)
        ax.plot(times * found["bound us"], i, color=palette.TEXT, marker="|", markersize=12, markeredgewidth=2)
    ax.set_yticks(range(len(bars(row))), [label for label, *_ in bars(row)], fontsize=8)
    ax.set(xlabel="microseconds; the mark is the roofline's bound", title=name)
    ax.invert_yaxis()
    ax.legend(handles=[plt.Rectangle((0, 0), 1, 1, fc=c, hatch=h, label=f"{k}-bound") for k, (c, h) in sides.items()])


# %%
try:
    record = recorded("layers")
    print("measured on", record["about"]["gpu"]["name"])
    for name, row in record["networks"].items():
        where_a_step_goes(name, row)
except RecordError as error:
    print(error)

# %%
try:
    for name, row in recorded("layers")["networks"].items():
        parts = [one[d] for one in row["operations"] for d in ("forward", "backward") if one[d]] + [row["update"]]
        total, bound = (sum(found[what] for found in parts) for what in ("us", "bound us"))
        memory = sum(found["us"] for found in parts if found["bound by"] == "memory")
        print(f"{name}: {len(parts)} operations, {total:,.0f} us alone; the roofline allows {bound:,.0f} us")
        print(f"  {memory / total:.0%} of the time is in operations that memory bounds")
        print(f"  the whole step as a CUDA graph: {row['step us']:,.0f} us")
except RecordError as error:
    print(error)

# %% [markdown]
# Operations that do the same work stand in one bar. Where a bar is much longer than its mark, the kernel leaves
# something, or it is so short that starting it takes longer than the work. Most operations of LeNet-5 are of the second
# kind, and the roofline says little about them. Its convolutions are of the first, above all backwards: there they
# take longest of all, and come nowhere near their marks. Where bar and mark are close, only another algorithm can
# help, or fusing two operations into one. A bar that ends before its mark has such an algorithm: the mark counts the
# FLOP of the definition, and Winograd's convolution ([chapter 68](68_winograd.ipynb)) takes fewer, forwards and, as
# [chapter 76](76_convolution_gradients.ipynb) shows, backwards.
#
# Each operation was timed alone, with an empty cache. In the step, a layer finds in the cache what the one before has
# written. So the whole step, as a graph, can be faster than its parts.
#
# The bound of this chapter's own network, for a batch of 64, is quickly told from its counts. Which side would set it
# on a GPU?

# %%
ceilings = roofline.ceilings("matmul")
found, _ = layers.operations(net, *training[:64])
for one in found:
    forward, backward = (roofline.bound(cost, ceilings) for cost in one.costs)
    words = f"forwards {1e9 * forward.seconds:4.0f} ns, {forward.side}; backwards {1e9 * backward.seconds:4.0f} ns, "
    print(f"{one.name:<13} {one.layer:<6} {words}{backward.side}")
print(f"a kernel without work takes {1e9 * ceilings.empty_kernel:.0f} ns")

# %% [markdown]
# Every operation of this network would be done in less time than the GPU takes to start an empty kernel. Neither memory
# nor arithmetic is its bound, but launching. Larger batches help: they give each launch more to do.
#
# ### Beside PyTorch
#
# `python -m pmpp.nn.measure.training` trains LeNet-5 on 4,000 digits of MNIST from five seeds, and then from as many
# more as it has time for. PyTorch does the same from the same parameters, with the same batches.

# %%
try:
    record = recorded("training")
    for who, row in record["medians"].items():
        print(f"{who:<6} {row['accuracy']:.2%} of the held-out digits, {row['seconds']:.2f} s")
    every = [*record["seeds"], *record.get("more", [])]
    for who, (mean, error) in averages(every).items():
        print(f"{who:<6} {mean:.2f} % on average over {len(every)} seeds, give or take {error:.2f}")
    compared = record["losses"]
    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    exact = np.array(compared["float64"])
    for i, who in enumerate(("ours", "torch")):
        off = np.maximum(abs(np.array(compared[who]) - exact), 1e-9)
        ax.plot(off, color=palette.COLOURS[i], linestyle=palette.LINES[i], label=who)
    ax.plot(compared["allowed"], color=palette.GREY, linestyle=":", label="allowed")
    ax.set(xlabel="step", ylabel="distance from the loss in float64", yscale="log")
    ax.legend()
except RecordError as error:
    print(error)

# %% [markdown]
# Accuracy and time are medians of the first five seeds. Which of the two accuracies is greater is chance if they differ
# by some tenths of a point: a few digits make that difference, and another rounding changes the answers to a few
# digits. A mean over all seeds is steadier. The number behind it is its standard error: where two means differ by more
# than about three of these, look for a reason. The figure shows the first 100 steps of one training.
#
# Two right programs do not get the same losses: each rounds in its own order, and later steps can enlarge what was
# rounded before. What can be asked is that ours is as near to the exact training as PyTorch's is. So PyTorch trains in
# float64 as well, and several times in float32 from parameters that are one rounding apart. Their distance from float64
# is what rounding does, and four times the largest of them is allowed.
#
# ## Make it yours
#
# Change `Net` above, and run all cells from there on again. What to try, from small to large:
#
# - *More filters*: 12 and 24 in the place of 8 and 16. What must change in the head?
# - *Another activation*: `F.tanh`, `F.gelu`, `F.silu` or `F.sigmoid` in the place of `F.relu`.
# - *A hidden layer* before the head: `nn.Linear(64, 32)` and a ReLU. With `nn.Dropout(0.25)` behind it?
# - *A normalisation*: `nn.BatchNorm2d(16)` between `conv2` and its ReLU.
# - *Another optimiser*: `nn.optim.AdamW(net.parameters(), lr=0.01)` in the loop below.
# - *Your own operation*: the `Function` of chapter 88 stands in `forward` like any other.
#
# If shapes do not fit, the last line of the error names the layer. A network finds its layers among its attributes and
# in `nn.Sequential`, as in PyTorch, but not in a list.
#
# Here is a loop to change, without a schedule. It returns the loss of each batch, of at most one epoch. To train for
# longer, call it again with the same network.


# %%
def my_training(net, dataset, steps=4, rate=0.05):
    """Train for some batches, and return their losses."""
    optimizer = nn.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    for images, labels in DataLoader(dataset, 32, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 3))
        if len(losses) == steps:
            return losses
    return losses


nn.manual_seed(1)
print(my_training(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), part))

# %% [markdown]
# ### Exercise: predict a layer that you add
#
# **Predict, then run.** A third convolution, `nn.Conv2d(16, 32, 3)` *without* padding, is put before the second
# pooling, where the images are 4 x 4. How many inputs does the head have then, and how many parameters the network?

# %%
guess = {"inputs of the head": None, "parameters": None}  # numbers


extent = (4 - 3 + 1) // 2  # of the images after the third convolution and the pooling
inputs = 32 * extent * extent
chain = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 32, 3), nn.Linear(inputs, 10)
truth = {"inputs of the head": inputs, "parameters": sum(p.size for layer in chain for p in layer.parameters())}
predict(guess, truth)

# %% [markdown]
# ### Exercise: a smaller network
#
# Write a network with a convolution and at most 1,000 parameters. `check_network` looks at its scores and gradients,
# trains it for a moment on few digits, and says what it knows of others. It must reach 80 %.


# %%
class Mine(nn.Module):
    """Your network."""


yours.check_network(None)  # yours.check_network(Mine)

# %% [markdown]
# ## What to take along
#
# - A training step is a list of launches: forwards, backwards, and one for all parameters.
# - Predict shapes, parameters and the first loss. It costs a minute, and finds most mistakes before the first epoch.
# - Hold examples out, and choose nothing by them.
# - Look at what is wrong, not only at how much: the confusion matrix, and the examples themselves.
# - Convolutions have the arithmetic, and twice as much backwards. All else is bytes, and small layers are launches.
#
# ## Exercises
#
# 1. *By heart.* All labels to train on are shuffled once, before the training. What can the loss of the digits that are
#    trained on do then, and what that of the held-out ones? Think first. Then try it: call `my_training` many times
#    with few digits and a large hidden layer.
# 2. *Larger images.* `Net` is given images of 28 x 28. What must change, and how many parameters has it then?
#
# ## Answers
#
# *confusion/matrix:* a thread for each row, and an atomic for each count.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def matrix_answer(scores, labels, counts):
    i = cuda.grid(1)
    if i < scores.shape[0]:
        best = 0
        for k in range(1, scores.shape[1]):
            if scores[i, k] > scores[i, best]:
                best = k
        cuda.atomic.add(counts, (labels[i], best), 1)


check("confusion/matrix", matrix_answer)

# %% [markdown]
# *A smaller network:* one convolution and one pooling. With fewer layers the gradient has a shorter way to the filters,
# so a short training gets further.


# %% jupyter={"source_hidden": true} tags=["answer"]
class Small(nn.Module):
    """One convolution, one pooling, one linear layer."""

    def __init__(self):
        self.conv, self.head = nn.Conv2d(1, 5, 3, padding=1), nn.Linear(80, 10)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


yours.check_network(Small)

# %% [markdown]
# *By heart.* Nothing about an image tells its label any more. The loss of the digits to train on can still fall, if the
# network is large and trained for long: it learns them by heart. That of the others is the logarithm of ten at best, as
# of a network that knows nothing. It grows, since the network gets sure of labels that mean nothing.
#
# *Larger images.* Only the head: after two poolings the images are 7 x 7.

# %% jupyter={"source_hidden": true} tags=["answer"]
larger = Net()
larger.head = nn.Linear(larger.conv2.weight.shape[0] * 7 * 7, 10)
print(nn.summary(larger, Tensor(np.zeros((1, 1, 28, 28), np.float32))))

# %% [markdown]
# Go on with [chapter 90](90_feeding_the_gpu.ipynb): how a GPU is kept fed.
