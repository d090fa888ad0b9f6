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
# # 37. Autotuning
#
# *The numbers that a kernel leaves open: why a tile has a best size, how to search for it without trying everything,
# what a model predicts and where it is wrong, and for which shapes a result holds. Read chapters
# [16](16_transpose.ipynb), [20](20_memory_or_compute.ipynb) and [36](36_products_of_any_shape.ipynb) before. 75
# minutes. PMPP 4e: chapter 6; 5e: chapter 6. The search is [pmpp/lab/measure/tune](../pmpp/lab/measure/tune/search.py).
# What is tuned are [transposes](../pmpp/kernels/autotuning/transposes.py),
# [products](../pmpp/kernels/autotuning/products.py) and the [tiles](../pmpp/kernels/autotuning/fitted.py) of the plain
# product, which [chooses](../pmpp/kernels/matmul/plans.py) by the times.*
#
# A rung of [chapter 16](16_transpose.ipynb), `coarsened`, transposes tiles of 32 x 32 with eight elements a thread.
# [Chapter 36](36_products_of_any_shape.ipynb) has nine tiles for products. Somebody has chosen these numbers: by
# experience, and by trying some others on one GPU.
#
# **The question of this chapter: how are such numbers found without trying everything, and how do we know that they
# are right for another shape and another GPU?**

# %%
import collections
import dataclasses
import math

import matplotlib.pyplot as plt

from pmpp import lab, predict, simt
from pmpp.kernels.autotuning import products, transposes
from pmpp.kernels.matmul import fitted, plans, tiles
from pmpp.lab.draw import knobs, landscape, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline, tune
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device, tuned

plt.style.use(STYLE)
h200 = tune.gpu_of("H200")
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# A transpose has no arithmetic. Each element is read once and written once, and no choice of numbers changes that. So
# the bandwidth of memory sets the least time for all configurations.

# %%
side = 16384
cost = transposes.SUBJECT.cost((side, side))
least = roofline.bound(cost, roofline.ceilings("transpose"))
print(f"{side} x {side}: {cost.bytes / 1e9:.2f} GB, at least {least.seconds * 1e6:.0f} us at the recorded bandwidth")

# %% [markdown]
# Here are the rungs of chapter 16 at their design size.

# %%
plots.drawn(plots.ladder, "transpose")

# %% [markdown]
# Three of these rungs are the same code with other numbers. `tiled`, `padded` and `coarsened` have tiles of 32 x 32.
# The first two have 32 rows of threads, and `coarsened` has four. `tiled` alone has no unused column in its tile. So
# numbers make a difference of more than a factor of four here. They can win little more: `coarsened` is close to the
# roof.
#
# ## A factory with three numbers
#
# This is the kernel with its numbers left open. As in chapter 36, a factory makes a kernel for each choice.

# %%
show(transposes.transpose_kernel)

# %% [markdown]
# A choice of all numbers is a *configuration*, and all configurations together are the *search space*. Each number is
# chosen from a short list, mostly of powers of two: between 32 and 33 there is nothing to gain.

# %%
space = transposes.SUBJECT.space
print(transposes.Configuration.__doc__)
print(*(f"{name:5} {values}" for name, values in space.values.items()), sep="\n")

# %% [markdown]
# **Predict, then run.** How many configurations are in this space?

# %%
guess = None  # configurations

predict(guess, len(space), unit="configurations")

# %% [markdown]
# The numbers multiply. A fourth number with five values would make 250 of them. A search space grows so fast that
# trying everything soon takes days. All that follows is about trying less.
#
# ## What cannot run
#
# Some configurations cannot be launched, and others make no sense. A *restriction* is a function that says which. It
# has a name, so that a refused configuration can say what refused it. This is better than an error of the compiler, an
# hour later.

# %%
show(transposes.equal_shares)

# %%
refused = collections.Counter(one.by for one in space.refused())
print(*(f"{count:3} refused by {name}" for name, count in refused.most_common()), sep="\n")
print(f"{len(space.allowed()):3} are left, such as {space.allowed()[0]}")
print("for example:", space.refusal(transposes.Configuration(128, 8, 1)).why)

# %% [markdown]
# If nothing is left, the search says so, with the names of the restrictions. A search that ends without a result and
# without a reason is one of the more tiresome faults of such tools.

# %%
try:
    space.narrowed(side=(128,)).allowed()
except tune.NothingAllowed as nothing:
    print(nothing)

# %% [markdown]
# **Your turn.** Write the restrictions of a transpose yourself, with registers added. The resources are those of
# [chapter 8](08_warps.ipynb).

# %%
exercise("autotuning/refused_by")


# %%
def refused_by(side, rows, pad, registers):
    pass  # your code


check("autotuning/refused_by", refused_by)

# %% [markdown]
# ## Why a tile has a best size
#
# Several things depend on the side of the tile, and they pull in different directions. A small tile has short rows, and
# a block of few threads has little in flight while it waits. A large tile takes more shared memory, so fewer blocks fit
# on a multiprocessor. And the banks of shared memory care about the length of a row.
#
# The last can be counted without a GPU.
#
# **Predict, then run.** A block of 32 x 8 threads transposes a tile of 32 x 32. All its accesses to shared memory
# together, stores and loads, take how many wavefronts: without unused columns, and with one?

# %%
guess = {"pad 0": None, "pad 1": None}  # wavefronts


def wavefronts(configuration):
    counters = tune.count(transposes.SUBJECT, configuration, (configuration.side,) * 2).counters
    return counters["shared_load_wavefronts"] + counters["shared_store_wavefronts"]


counted = {f"pad {pad}": wavefronts(transposes.Configuration(32, 8, pad)) for pad in (0, 1)}
predict(guess, counted, unit="wavefronts")

# %% [markdown]
# The tile has 32 rows, and a warp stores each in one wavefront. It then loads columns. Without an unused column all 32
# elements lie in one bank, and each load takes 32 wavefronts. With one, a load takes a single one. Here are more sides.

# %%
print("side  rows  pad  wavefronts an element   resident on a multiprocessor")
for c in space.narrowed(side=(8, 16, 32, 64), rows=(4,)).allowed():
    work = tune.count(transposes.SUBJECT, c, (c.side, c.side))
    fit = simt.occupancy(work.threads, work.shared_bytes, work.registers, h200)
    print(f"{c.side:4}{c.rows:6}{c.pad:5}{wavefronts(c) / c.side**2:14.3f}{fit.blocks:16} blocks, {fit.warps:2} warps")

# %% [markdown]
# For a side of 8 the unused column does harm. A warp stores four rows of 8, which are 32 neighbours without the column;
# with it, they reach over 35 places, and some meet in one bank. So the best `pad` depends on `side`. This is why
# numbers cannot be tuned one after the other: what is best for one depends on the rest.
#
# ## A large launch from a small one
#
# The counters are those of one tile. A matrix of 16384 x 16384 would take the interpreter hours. But all blocks do the
# same, so one tile, counted once, tells them all. Such a small launch is called a *probe* here, and its weight says how
# often it is contained in the large one.
#
# **Predict, then run.** How many sectors of 32 bytes do all loads and stores of the large matrix ask for, with tiles of
# 32 x 32 of float32?

# %%
guess = None  # sectors

work = tune.count(transposes.SUBJECT, transposes.Configuration(32, 8, 1), (side, side))
predict(guess, round(work.counters["global_load_sectors"] + work.counters["global_store_sectors"]), unit="sectors")

# %% [markdown]
# A product has a loop, so it needs two probes: one tile with one step of *K*, and one with two. Their difference is a
# step, and what is left of the first is done once. Does this arithmetic give what a launch of some blocks really does?

# %%
shape, tile = (128, 64, 64), products.Configuration(64, 64, 16, 2)
print(products.SUBJECT.probes(tile, shape))
told = tune.count(products.SUBJECT, tile, shape).counters
whole = lab.count(products.run, tile, *products.make(shape, 1), products.output(shape)).counters
for name in ("flops", "global_load_sectors", "shared_load_wavefronts", "barriers"):
    print(f"{name:24} from probes {told[name]:9,.0f}, counted as a whole {whole[name]:9,}")

# %% [markdown]
# It does. This product has two tiles with four steps each. A tile is the small probe and three times the difference of
# the two: the large probe three times, less the small one twice. Both tiles together give the weights.
#
# ## From counts to a time
#
# Now each count can be divided by what a GPU does in a second. All parts of a GPU work at the same time, so the longest
# of these times is the prediction. It is a roofline with more than two roofs.

# %%
show(tune.roofline_time)

# %% [markdown]
# Two parts need a word. The *busiest* multiprocessor has a block more than others: that is the tail of chapter 36. And
# a barrier tells of waiting: before it there are loads, and the block does nothing else until they have arrived. If few
# blocks are resident, nobody fills that time.
#
# **Predict, then run.** A tile of 8 x 8 has four rows of threads, a single warp. A multiprocessor takes at most 32
# blocks. By the model, what bounds the transpose of the large matrix with this tile?

# %%
guess = None  # "memory", "L2 cache", "shared", "issue" or "waiting"

predicted = tune.predictions(transposes.SUBJECT, (side, side), gpu=h200)
small = predicted[transposes.Configuration(8, 4, 1)]
predict(guess, small.part, choices=("memory", "L2 cache", "shared", "issue", "waiting"))

# %%
for c in ((8, 4, 1), (32, 8, 0), (32, 8, 1)):
    parts = predicted[transposes.Configuration(*c)].parts
    print(c, ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in parts.items()))

# %% [markdown]
# The model takes the bandwidth of the data sheet, so its time for memory is shorter than the one at the beginning,
# which was at the recorded bandwidth.
#
# With 32 blocks of 64 elements, a multiprocessor has 8 KiB on their way. That is too little: the memory could deliver
# several times as much in the time that a load takes.
#
# **Predict, then run.** Three configurations (side, rows, pad) transpose the large matrix. Which of them wins? (Where
# this GPU has a record, the measured times decide, and elsewhere the predicted ones.)

# %%
guess = None  # "8, 8, 0", "32, 32, 1" or "64, 8, 1"


def seconds_of(subject, shape):
    """The measured times where a record has some, else the predicted ones; and which they are."""
    rows, why = tune.rows_of(subject, shape)
    timed = {row.configuration: row.timing.median for row in rows if row.timing}
    estimates = tune.predictions(subject, shape, gpu=h200)
    return (timed, why) if timed else ({c: e.seconds for c, e in estimates.items()}, f"predicted for an H200: {why}")


times, source = seconds_of(transposes.SUBJECT, (side, side))
three = {"8, 8, 0": (8, 8, 0), "32, 32, 1": (32, 32, 1), "64, 8, 1": (64, 8, 1)}
predict(guess, min(three, key=lambda name: times.get(three[name], math.inf)), choices=three)

# %% [markdown]
# The first has too little on its way. The second has one element a thread and 1,024 threads a block: only two blocks
# fit, and both may wait at their barriers at the same time. Here is the whole *landscape*, with the better `pad` of
# each. A number is the predicted time, as a multiple of the best, and the best have a frame. Where nothing can run, a
# restriction is named.

# %%
estimated = {c: e.seconds for c, e in predicted.items()}
title = f"transposing {side} x {side} on an H200, predicted from counts"
landscape.ground(space, estimated, across="side", down="rows", title=title)

# %% [markdown]
# There is no peak but a plateau: for most configurations memory is the bound, and the model does not tell them apart.
# On the plateau other things decide, and it has no counter for these: how the memory's channels are hit, what the
# compiler does with the loop, in which order blocks start. So a model like this says where *not* to look. What is best
# on the plateau has to be measured.
#
# How wrong is it? Three points of the landscape have been measured: the three rungs. The last column adds all parts up,
# as if nothing overlapped.


# %%
def told_and_recorded(**rungs):
    entries = {entry.contender: entry for entry in record.load(room="transpose").design("transpose")}
    for name, c in rungs.items():
        told, entry = predicted[transposes.Configuration(*c)], entries[name]
        said = f"recorded {entry.median_ms * 1e3:5.0f} us, predicted {told.seconds * 1e6:5.0f} us by {told.part}"
        print(f"{name:10}{said:52} sum of the parts {sum(told.parts.values()) * 1e6:5.0f} us")


plots.drawn(told_and_recorded, tiled=(32, 32, 0), padded=(32, 32, 1), coarsened=(32, 4, 1))

# %% [markdown]
# The order is right, and the times of the first two are much too short. The model takes the longest part, as if all
# others were hidden behind it. With two large blocks on a multiprocessor little is hidden: while both wait, nothing
# else goes on. But each recorded time lies between the longest part, where everything overlaps, and the sum, where
# nothing does. How far parts overlap is what a roofline does not know.

# %% [markdown]
# A tuned record has times of many configurations. Where there is one, the next figure compares them with what was
# predicted.


# %%
def compared(subject, shape):
    rows, why = tune.rows_of(subject, shape)
    title = f"{subject.name}, {' x '.join(map(str, shape))}"
    if any(row.timing for row in rows):
        return landscape.against(rows, title=title, footer=why, name=lambda c: ", ".join(map(str, c)))
    return print(f"{title}: no times to compare with: {why}")


compared(transposes.SUBJECT, (side, side))

# %% [markdown]
# On the line of such a figure both times are equal. Points above it take longer than each counted part. If the fastest
# lies far to the right, the model has nearly pruned it. Here is the landscape once more, as it was measured.


# %%
def measured_ground(subject, shape, across, down):
    rows, why = tune.rows_of(subject, shape)
    seconds = {row.configuration: row.timing.median for row in rows if row.timing}
    title = f"{subject.name}, {' x '.join(map(str, shape))}, measured"
    if seconds:
        return landscape.ground(subject.space, seconds, across=across, down=down, title=title, footer=why)
    return print(f"{title}: nothing to draw: {why}")


measured_ground(transposes.SUBJECT, (side, side), "side", "rows")

# %% [markdown]
# On an H200 all 30 were timed once. Those of the plateau, which the model takes for equal, differ by a third, and its
# first guess is not the fastest. But what it expects to be slow is slow.
#
# **Your turn.** Write a model with three parts.

# %%
exercise("autotuning/predicted")


# %%
def predicted_seconds(nbytes, flops, wavefronts, blocks, sms, clock, bandwidth, peak):
    pass  # your code


check("autotuning/predicted", predicted_seconds)

# %% [markdown]
# ## Verified before it is timed
#
# A factory makes kernels that nobody has looked at. Restrictions refuse what their author thought of, and nobody thinks
# of everything. This is one that the search of this chapter had not, at first.

# %%
show(products.whole_lines)

# %% [markdown]
# Where rows of *C* begin at multiples of 16 bytes, each thread writes four elements at a time. Elsewhere threads write
# single elements, and then go on by `threads // n` lines.
#
# **Predict, then run.** A tile of 32 x 64 has 32 threads. By how many lines do they go on?

# %%
guess = None  # lines

small = products.Configuration(m=32, n=64, thread_n=8, groups=1)
predict(guess, products.threads(small) // small.n, unit="lines")

# %% [markdown]
# So they write the same lines again and again, and all others never. The search verifies each configuration before it
# is timed. Outputs are filled with NaN beforehand, shapes are awkward, and in the interpreter each access is checked.

# %%
print("odd shape:    ", tune.wrong_result(products.SUBJECT, small, [(35, 21, 70)]))
print("whole vectors:", tune.wrong_result(products.SUBJECT, small, [(36, 36, 132)]) or "right")

# %% [markdown]
# Read the second line again. On shapes that suit the tile this configuration is right. A search that verifies nothing
# but the shape that it times would have taken it, and a user with an odd shape would have met the error much later.
#
# A wrong configuration has another danger. If it leaves out work, it looks fast. So the bar for pruning, to which we
# come now, is set by the best configuration that is *right*.
#
# ## Pruned before it is tried
#
# `explore` does all this in order, and prunes what is predicted to take longer than the best by some factor.

# %%
for factor in (None, 1.5):
    found = tune.explore(transposes.SUBJECT, (side, side), gpu=h200, factor=factor)
    print(f"factor {factor}:", ", ".join(f"{count} {status}" for status, count in found.counts().items()))
print(found.table(8))

# %% [markdown]
# Here both factors leave the same number. "Verified" means: right, and not timed. In the interpreter it ends here,
# since its clock says nothing about a GPU. On a GPU, `tune` goes on and times these, in turns, until the spread is
# known.
#
# The factor is a bet on the model. If the fastest were predicted at twice the best, a factor of 1.5 would lose it. The
# recorded times above suggest a more cautious rule, `factor=None`: prune what takes longer at its best than another one
# at its worst, the longest part of the one against the sum of the other. Whether a rule is enough shows only if all are
# timed once. For the record above they were, with `python -m pmpp.lab.measure.tune transposes --factor 1000 --most 50`:
# the fastest is among those that either rule leaves, and what they prune takes more than twice its time. What does it
# cost to time all?
#
# **Predict, then run.** Suppose that a kernel takes 2 s to compile, once, and 0.3 s to time for each shape. There are
# 20 shapes. How many seconds do all allowed configurations take, and how many those that were verified?

# %%
guess = {"all": None, "verified": None}  # s

left = {"all": len(space.allowed()), "verified": found.counts()["verified"]}
predict(guess, {name: count * (2 + 20 * 0.3) for name, count in left.items()}, unit="s")

# %% [markdown]
# For a space of thousands, such as that of a convolution, pruning decides whether a search is possible at all. Much of
# the cost is the compiler's, which needs no GPU.
#
# ## Tuned for one shape, used for another
#
# Now the product. This time the multiprocessors are the bound and not the memory, and the shape matters more. To keep
# it short we take a part of the space: 16 columns a thread, and two groups.

# %%
part = dataclasses.replace(products.SUBJECT, space=products.SPACE.narrowed(thread_n=(16,), groups=(2,)))


def landscape_of(m, k, n):
    times = {c: e.seconds for c, e in tune.predictions(part, (m, k, n), gpu=h200).items()}
    title = f"{m} x {k} times {k} x {n} on an H200, predicted from counts"
    return landscape.ground(part.space, times, across="n", down="m", title=title)


landscape_of(4096, 4096, 4096)

# %% [markdown]
# Large tiles are ahead, by a little: fewer loads for each multiply-add. So a tile of 128 x 128 might be kept as "the
# best tile". Then somebody multiplies with 256 rows.
#
# **Predict, then run.** 256 x 4096 times 4096 x 4096 has 64 tiles of 128 x 128, and an H200 has 132 multiprocessors. By
# which factor is this tile slower than the best one for this shape, by the model?

# %%
guess = None  # times the best

few = {c: e.seconds for c, e in tune.predictions(part, (256, 4096, 4096), gpu=h200).items()}
predict(guess, few[products.Configuration(128, 128, 16, 2)] / min(few.values()), factor=1.2)

# %%
landscape_of(256, 4096, 4096)

# %% [markdown]
# Half of the multiprocessors have no block. What was tuned for one shape is *overfitted* to it: it is best there, and
# nothing says that it is good elsewhere. How far does a result reach? The next figure takes the best tile of one size,
# and uses it for products of all sizes. Turn the size that it is tuned for.


# %%
def lost(tuned_for, sizes):
    """How much longer the tile that is best for a size takes at other sizes, as a multiple of the best there."""
    best = min((e.order, c) for c, e in tune.predictions(part, (tuned_for,) * 3, gpu=h200).items())[1]
    found = [tune.predictions(part, (n,) * 3, gpu=h200) for n in sizes]
    return best, [one[best].seconds / min(e.seconds for e in one.values()) for one in found]


def draw(tuned_for):
    (figure, ax), sizes = chart(3.2), range(128, 6145, 64)
    best, loss = lost(tuned_for, sizes)
    ax.plot(sizes, loss, color=palette.OWN)
    for power in range(3, 7):  # where one class ends and the next begins
        ax.axvline(2 * 4**power, color=palette.GREY, lw=1, ls=":")
    ax.set(xscale="log", xlabel="n, for a product of n x n", ylabel="time, as a multiple of the best", ylim=(0.9, 2.6))
    ax.set_xticks([128, 512, 2048, 6144], ["128", "512", "2048", "6144"], minor=False)
    ax.set_title(f"the best tile for {tuned_for}, which is {best.m} x {best.n}", loc="left")
    return figure


# %%
tuned_for = 4096  # another size here, or the slider

knobs.turn(draw, tuned_for=(tuned_for, (256, 512, 1024, 2048, 4096)))

# %% [markdown]
# For large products the tile stays good. Below about 2048 blocks become few, and the loss jumps with each wave. So a
# tuned configuration is kept for a *class* of shapes: those whose extents have the same nearest power of four. The
# dotted lines are the borders of the classes. Finer classes lose less, and each of them has to be measured.
#
# The loss shows in times, too. The rung `fixed` of chapter 36 takes one tile of 128 x 128 for all shapes, and
# `by_shape` chooses among nine. Here they are for a long sum, 512 x 32768 times 32768 x 512, with NumPy on the CPU of
# the same machine.

# %%
plots.drawn(plots.ladder, "fitted")

# %% [markdown]
# With this tile, the long sum has 16 blocks. `by_shape` has chosen another one, and is several times as fast. `split_k`
# goes on where a tile cannot help: it divides the sum among blocks, as in chapter 36.
#
# What belongs into a class? Whatever changes which configuration wins: about how large each extent is, and whether rows
# can be read 16 bytes at a time. The dtype and the GPU have a place of their own in the record.

# %%
for shape in ((4096, 4096, 4096), (3000, 5000, 4100), (256, 4096, 4096), (4095, 4095, 4095)):
    print(f"{shape!s:20} {tune.key_of(products.SUBJECT, shape)}")

# %% [markdown]
# **Your turn.** Write the key of a matrix.

# %%
exercise("autotuning/shape_class")


# %%
def shape_class(m, n):
    pass  # your code


check("autotuning/shape_class", shape_class)

# %% [markdown]
# ## Where the bound changes
#
# Why do classes differ at all? Because another part is the longest. For one tile, and products of *n* x *n*, the figure
# has the time of five parts for a multiply-add. A part that is proportional to the work is a flat line.


# %%
def parts_over(configuration, sizes):
    found = [tune.predictions(part, (n,) * 3, gpu=h200)[configuration].parts for n in sizes]
    names = ("memory", "arithmetic", "L2 cache", "waiting", "issue")
    return {name: [one[name] / n**3 * 1e12 for n, one in zip(sizes, found, strict=True)] for name in names}


figure, ax = chart(3.4)
sizes = [round(2 ** (power / 4)) for power in range(24, 53)]
lines = parts_over(products.Configuration(128, 128, 16, 2), sizes).items()
for (name, values), colour, style in zip(lines, palette.COLOURS, palette.LINES, strict=False):
    ax.plot(sizes, values, ls=style, color=colour, label=name)
ax.set(xscale="log", yscale="log", xlabel="n, for a product of n x n", ylabel="ps for a multiply-add")
figure.legend(loc="outside right upper")
figure

# %% [markdown]
# On the right `issue` is the longest of the five, and all lines but that of memory are flat. It lies just above
# arithmetic, since it has the same multiply-adds and some more instructions. On the left there are fewer tiles than
# multiprocessors: arithmetic, issue and waiting rise together, since a block takes as long as ever, and for the
# smallest products waiting is the longest. The sixth part, `shared`, is left out of the figure: it is never the
# longest. Memory is never the bound of these square products. For a transpose with a good tile it was.
#
# ## What was tuned, and what was not
#
# A program asks for one thing: the configuration to use. `best` looks for a record of this GPU, dtype and class. The
# record carries the digest of each source that its times depend on. If the kernel has changed since, the record is not
# used. Then, and where nothing was tuned, the answer is the configuration with the least predicted time of those that
# were verified.

# %%
for gpu in ("nvidia-h200", "nvidia-h100-80gb-hbm3"):
    choice = tune.best(transposes.SUBJECT, (side, side), gpu=gpu)
    kind = "tuned" if choice.tuned else "guessed"
    print(f"{gpu}: {kind}: {choice.configuration}\n    {choice.why}")

# %% [markdown]
# The guess costs what the counting costs: seconds, in the interpreter. A library keeps a table of them, or a formula as
# in `fitted.cycles` of chapter 36. `best` takes such a function, `guess`.
#
# ## What the plain product does with it
#
# `matmul.matmul` chooses for every shape, and has no time to count. Two things can help it. The formula of chapter 36
# knows how many tiles the busiest multiprocessor gets, which jumps from shape to shape. And a record has times, which
# know how fast the code of each tile really is, but for a few shapes only.
#
# A table with the best tile of each class would forget what the formula knows. Here are three tiles of chapter 36 for
# two products of one class.

# %%
clock, hand = h200.clock / 1e6, (fitted.MIDDLE, fitted.LOW, fitted.FINE)
for n in (1000, 1100):
    times = [f"{tile} {fitted.cycles(fitted.plan_of(tile, n, 1), n, n, n, h200.sms) / clock:.1f} us" for tile in hand]
    print(f"{n} x {n}, {products.shape_class((n, n, n))}, by the formula: {', '.join(times)}")

# %% [markdown]
# So the formula is corrected, and not replaced. Where a tile was timed, its time divided by the formula's is its
# *correction*. It tells what the formula does not know, and changes slowly with the shape. A product takes the mean of
# the corrections at the eight nearest shapes, and then the tile whose corrected time is the least. A tile with a split
# of *K* is corrected for itself: both together are a *kind* of plans.

# %%
show(plans.corrections_near)

# %% [markdown]
# **Predict, then run.** Suppose that a product of 1000 x 1000 was timed. These three tiles took as long as the formula
# says, but 64 x 64 took 5 % longer, so that 32 x 128 was the fastest. Which tile does a product of 1100 x 1100 get?

# %%
guess = None  # "64 x 64", "32 x 128" or "32 x 64"

measured = {}
for tile in hand:
    plan = fitted.plan_of(tile, 1000, 1)
    late = 1.05 if tile == fitted.MIDDLE else 1.0
    measured[tiles.kind_of(plan)] = fitted.cycles(plan, 1000, 1000, 1000, h200.sms) * late
near = plans.measured({"1000": tuned.Times((1000, 1000, 1000), measured)}, True, h200.sms)
predict(guess, str(plans.plan_from(1100, 1100, 1100, near, h200.sms).tile), choices=("64 x 64", "32 x 128", "32 x 64"))

# %% [markdown]
# The formula expects 32 x 64 to be best at 1100, and nothing that was measured speaks against it. The table would have
# taken the tile that was best at 1000.
#
# With a choice that can be trusted, more tiles are of use: a shape more often finds one whose blocks divide well among
# the multiprocessors. The factory of chapter 36 can make them. The plain product has 22 tiles, which are 44 kinds: the
# nine, and these. Where there are no times, it goes by the formula, with the nine.

# %%
print("tile        a thread  groups  threads  blocks that fit on a multiprocessor")
for tile in tiles.MORE:
    print(f"{tile!s:12}{tile.thread_m} x {tile.thread_n:<7}{tile.groups:3}{tile.threads:9}{tile.resident:8}")

# %% [markdown]
# Is it worth the trouble? That takes a record of drawn shapes, `tuned_fitted.json`, with each of them once with rows of
# whole vectors and once with odd extents. To be fair, a shape must not be judged by its own time. So each shape is left
# out in turn, and gets the kind that the *other* shapes' times suggest. In the figure a point above the line has become
# faster. Where there is no such record, the next cell says so, and the question stays open.


# %%
def held_out():
    gpu = device.limits()["name"] if device.on_gpu() else "NVIDIA H200"
    found, why = tuned.read(plans.RECORD, gpu, tuned.RECORDED)
    if not found:
        return print(f"Nothing to draw: {why}")
    shapes = plans.held_out(found["float32"], h200.sms)
    print(f"the guess takes {plans.ratio(shapes, 'guess', 'best'):.3f} x the time of the fastest kind")
    print(f"the choice takes {plans.ratio(shapes, 'chosen', 'best'):.3f} x (geometric means of {len(shapes)} shapes)")
    points = {said: [(math.prod(s.shape), s.guess / s.chosen) for s in shapes if s.whole == whole]
              for said, whole in (("whole vectors", True), ("odd extents", False))}  # fmt: skip
    return landscape.gains(points, title="chosen by the times of other shapes", footer=why)


held_out()

# %% [markdown]
# If there is a figure: what is left between the choice and the fastest kind is what the neighbours do not know about a
# shape. `matmul.matmul` works a plan out once for each shape, and reads the record once. It goes by the formula alone
# without a record, on another GPU, when the kernel has changed, and when left-out shapes would not get faster. On this
# machine:

# %%
print(plans.here()[1])

# %% [markdown]
# ## What to take along
#
# - A kernel's numbers depend on each other, so they are searched together, and the space multiplies.
# - Refuse by name, count, prune, verify, and only then time. Each step is cheaper than the next.
# - Counters need no GPU. They tell where not to look: bank conflicts, idle multiprocessors, too little on its way. They
#   do not rank what is left.
# - Verify on shapes that the configuration does not suit, before it is timed. What leaves out work looks fast.
# - A result belongs to a GPU, a dtype, a class of shapes and the sources. Outside of these it is a guess.
# - Keep what a formula knows: times correct it, and need not replace it. Judge a choice on shapes that were left out.
#
# To read on: Ansel et al., *OpenTuner* (PACT 2014), on searching large spaces; van Werkhoven, *Kernel Tuner* (FGCS
# 2019), on tuning GPU kernels from Python; and the documentation of Triton's `autotune`, whose `key` is the class of
# this chapter.
#
# ## Exercises
#
# The three exercises with a check stand above. More to try, without a check:
#
# 1. Take the restriction `whole_lines` out of the space of products. How many configurations are then "wrong"?
# 2. Explore with `factor=1`. What is left, and what would you lose if the model is wrong by 10 %?
# 3. Give `explore` another model, one that adds the parts up. Does the order change?
#
# ## Answers
#
# **refused_by.** The order is part of the task: a configuration with two faults is refused by the first. Shared memory
# is counted with the unused elements, and registers with all threads.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
from pmpp.kernels.autotuning import exercises as answers

show(answers.refused_by_answer)
assert check("autotuning/refused_by", answers.refused_by_answer)

# %% [markdown]
# **predicted.** The tail is a factor of what multiprocessors do for themselves. All of them share the memory, so its
# time has none.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.predicted_answer)
assert check("autotuning/predicted", answers.predicted_answer)

# %% [markdown]
# **shape_class.** By ratio the border between 4 and 16 is 8, where both are a factor of two away.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(answers.shape_class_answer)
assert check("autotuning/shape_class", answers.shape_class_answer)

# %% [markdown]
# *Without `whole_lines`.* All configurations with fewer threads than columns are wrong where a row is no multiple of
# four elements, and right elsewhere.
#
# *A factor of 1.* All that share the least predicted time, and nothing else. For the transpose that is the whole
# plateau. For the product of 4096 x 4096 it is one tile, and tiles that are predicted a few per cent slower are pruned.
# A model that is wrong by 10 % would hide the real winner among them.
#
# *Parts added up.* The plateau becomes a slope, since all parts count. Which order is nearer to the measured one can be
# seen only where there are times.
#
# Go on with [chapter 38](38_numerics.ipynb): why a sum depends on the order of its terms, and what to do about it.
