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
# # 76. Gradients of convolution layers
#
# *The chain rule with indices, scatter and gather, filters that are turned, what a stride does to the way back, long
# sums in a fixed order. PMPP 4e: sections 16.2 and 16.3; 5e: chapter 19. The code is
# [pmpp/kernels/convolution_layer/input_gradients.py](../pmpp/kernels/convolution_layer/input_gradients.py) and
# [pmpp/kernels/convolution_layer/weight_gradients.py](../pmpp/kernels/convolution_layer/weight_gradients.py).*
#
# You will derive the gradients of a convolution layer by hand, and compute them without atomics. You need
# [chapter 64](64_im2col.ipynb), [chapter 66](66_implicit_gemm.ipynb) and, for the choice of an algorithm,
# [chapter 72](72_choosing_a_convolution.ipynb). It takes about 80 minutes.
#
# To train a network is to ask of each number in it: if you were a little larger, how much larger would the loss be?
# The answers are called gradients, and they are computed from the last layer to the first. A layer is given dy, the
# gradient of the loss with respect to its output. It owes two results: dx, which the layer before it needs, and dw, by
# which its own weights are changed. So a step of training computes three convolutions for each layer, one forward and
# two backward.
#
# **The question of this chapter: are the two on the way back as fast as the one on the way there?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, Chart, chart
from pmpp.lab.measure import roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.results import compared, recorded
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.style.use(STYLE)
print(device.describe().splitlines()[0])

# %%
from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer import (
    channels_last_gradients,
    definition,
    few_channels,
    gradient_classes,
    input_gradients,
    weight_gradients,
    weight_strips,
    weight_tiles,
    winograd_adjoints,
)
from pmpp.kernels.convolution_layer import input_gradients_exercises as by_input
from pmpp.kernels.convolution_layer import weight_gradients_exercises as by_weights
from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.kernels.convolution_layer.input_gradients_exercises import ZERO
from pmpp.kernels.convolution_layer.measured_gradients import weight_sums

# %% [markdown]
# ## The chain rule, with indices
#
# Begin with one row, one channel, one filter. The layer computes y[q] = the sum over s of w[s] x[q u + s - b], with
# stride u and padding b. Which outputs does x[h] reach? Those q for which some tap s lies on it: q u + s - b = h. Each
# of them grows by w[s] times what x[h] grows by. And if y[q] grows by a little, the loss grows by dy[q] times as much.
# The loss depends on x[h] by way of all these outputs, so the products add up:
#
# $$dx[h] = \sum_{q, s:\ q u + s - b = h} dy[q]\, w[s] \qquad\qquad dw[s] = \sum_q dy[q]\, x[q u + s - b]$$
#
# The second formula is found in the same way: w[s] reaches every output q, by way of x[q u + s - b]. With images,
# channels and filters nothing new happens. In dx the filters are summed over as well, since every filter has used
# x[c, h]. In dw the images are summed over, since they all were multiplied with the same weights. The bias is added to
# every output of its filter, so its gradient is the plain sum of dy over images and pixels.
#
# The reference of each room is these formulas as loops in float64. It is tested against *central differences*: change
# one number by a half up and down, and see how much the loss, dy times the forward pass, has changed. The forward pass
# is linear in x and in w, so that the difference is exact up to rounding.

# %%
rng = np.random.default_rng(76)
x, w = rng.standard_normal((1, 1, 4, 6)), rng.standard_normal((1, 1, 3, 3))
dy = rng.standard_normal((1, 1, 2, 3))  # of a layer with stride 2 and padding 1


def loss(x):
    return (definition.reference(x, w, None, 2, 1) * dy).sum()


place = np.zeros_like(x)
place[0, 0, 2, 3] = 0.5
print("by differences:", loss(x + place) - loss(x - place))
print("by chain rule: ", input_gradients.reference(dy, w, x.shape, 2, 1)[0, 0, 2, 3])

# %% [markdown]
# ## The bound
#
# Each product of the forward pass occurs once in dx and once in dw: the arithmetic of the three is the same. So are the
# arrays, of which two are read and one is written each time. What bounds the layer bounds its gradients. For the layers
# of ResNet-50 with 32 pictures this is arithmetic nearly everywhere. A depthwise layer and a bias are bound by memory.

# %%
ceilings = roofline.ceilings()
depthwise = Layer(32, 144, 56, 56, 144, 3, 3, padding=(1, 1), groups=144)
for layer in [*list(resnet50())[:7], depthwise]:
    bound = roofline.bound(layer.cost, ceilings)
    print(f"{layer!s:40}at least {bound.seconds * 1e3:.3f} ms each, bound by {bound.side}")

# %% [markdown]
# ## Scatter or gather
#
# The forward pass reads x in a certain order. Run the same loops backwards, and where they *read* x[h], let them *add*
# to dx[h]: that is `scattered`. Each thread has an output and passes its gradient on. Many outputs share an input, so
# the additions must be atomic.
#
# `gathered` solves the equation for the output instead. A thread owns an element of dx. For each tap it asks which
# output used it here: p u = h + a - r d, where a is the padding above the rows, r is a tap, and d is the dilation. If
# the division by u leaves a remainder there is none.

# %%
show(input_gradients.gathered_kernel)

# %% [markdown]
# Atomics cost more than time. They add in the order in which threads arrive, and that differs from run to run. A sum of
# float32 depends on the order of its terms, as NumPy shows here. So a network that is trained with atomics cannot be
# trained to the same bits again, and a bug in it cannot be repeated.

# %%
terms = rng.standard_normal(576, dtype=np.float32)  # as many as an element of dx has with 64 filters of 3 x 3
sums = {float(np.cumsum(rng.permutation(terms))[-1]) for _ in range(100)}
print(f"the same {terms.size} numbers in 100 orders: {len(sums)} different sums, from {min(sums)} to {max(sums)}")

# %%
toy = Layer(2, 20, 8, 8, 8, 3, 3, (2, 2), (1, 1))
toy_shape = toy.n, toy.c, toy.h, toy.w
toy_x, toy_dy = (rng.standard_normal(shape, dtype=np.float32) for shape in (toy_shape, toy.shape))
toy_w = rng.standard_normal((toy.k, toy.c, 3, 3), dtype=np.float32)
counts = {rung: lab.count(rung, toy_dy, toy_w, toy_shape, 2, 1) for rung in input_gradients.LADDER}
for rung, counted in counts.items():
    found = counted.counters
    print(f"{rung.name:12}{found['atomic_lanes']:8,} atomic additions{found['flops']:12,} FLOP")
print(f"the definition has {toy.cost.flops:,} FLOP, and some of its products are with padding")

# %% [markdown]
# `gathered` computes each product with a real output once, and nothing else. (A multiply-add counts as two. Of
# `scattered` the counter has the multiplications, and the atomic additions are in the other column.) But it handles one
# number at a time. The later rungs compute whole tiles, and this toy fills none of them: hence their larger counts.
#
# ### Exercise: a strided row
#
# `check` runs your kernel in the interpreter with every access checked. The answers are at the end, folded away.

# %%
exercise("input_gradients/row")


# %%
@cuda.jit
def passed_back(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        dx[i // dx.shape[1], i % dx.shape[1]] = ZERO  # your sum


check("input_gradients/row", passed_back)

# %% [markdown]
# ## A convolution again
#
# Take stride 1 in the formula for dx. Then q = h + b - s, and the sum is over s of w[s] dy[h + b - s]: a convolution of
# dy, with the filter *turned*, because s has the other sign. Put s' = S - 1 - s, and it is the layer that we know, with
# padding S - 1 - b. In two dimensions the filter is turned by 180 degrees. And since dx has a channel for each channel
# of x and sums over the filters, channels and filters change roles.
#
# So for stride 1 there is nothing to write but a kernel that turns and exchanges the weights. It is a small matrix
# transpose ([chapter 16](16_transpose.ipynb)). After it the forward function chooses its algorithm by the shape, and
# with 3 x 3 it will often be Winograd's.

# %%
x1, w1 = rng.standard_normal((1, 2, 5, 6), dtype=np.float32), rng.standard_normal((3, 2, 3, 3), dtype=np.float32)
dy1 = rng.standard_normal((1, 3, 5, 6), dtype=np.float32)
turned = np.ascontiguousarray(w1.swapaxes(0, 1)[..., ::-1, ::-1])
as_forward = device.to_host(convolution_layer.convolution(dy1, turned, None, 1, 1))
print("largest difference:", abs(as_forward - input_gradients.reference(dy1, w1, x1.shape, 1, 1)).max())

# %% [markdown]
# ### What a stride does
#
# With a stride of 2 the forward pass skips every other place. On the way back one could put the zeros in: write dy with
# a row and a column of zeros between neighbours, and convolve that with stride 1. This is why the gradient is also
# called a *transposed* or *fractionally strided* convolution. Take the layer of 128 channels, 56 x 56, 3 x 3, with
# stride 2 and padding 1.
#
# **Predict, then run.** How many times as many products does the convolution with zeros compute as the forward layer?

# %%
guess = None  # times as many
strided = Layer(32, 128, 56, 56, 128, 3, 3, (2, 2), (1, 1))
with_zeros = Layer(32, 128, 2 * strided.p - 1, 2 * strided.q - 1, 128, 3, 3, padding=(1, 1))

predict(guess, round(with_zeros.cost.flops / strided.cost.flops), unit="times as many")

# %% [markdown]
# Three quarters of the products have a zero in them that is known beforehand. The equation p u = h + a - r d says which
# ones: only taps with r d = h + a, up to a multiple of u, have an output. So the places h fall into u classes by the
# remainder of h + a, and all places of a class use the *same* taps. For one class the equation has the form of stride
# 1. Here are the classes of a 3 x 3 kernel with stride 2 and padding 1, and how many taps each place of x uses.

# %%
small = Layer(1, 1, 8, 8, 1, 3, 3, (2, 2), (1, 1))
for rows, columns in gradient_classes.classes_of(small):
    taps = [
        (rows.first + i * rows.step, columns.first + j * columns.step)
        for i in range(rows.taps)
        for j in range(columns.taps)
    ]
    print(f"places ({rows.start} + 2 i, {columns.start} + 2 j): taps {taps}")


# %%
def drawn_classes():
    """The places of an 8 x 8 image, with the number of taps that each uses."""
    figure, ax = chart(3.2)
    for rows, columns in gradient_classes.classes_of(small):
        look = palette.COLOURS[(rows.taps - 1) * 2 + columns.taps - 1]
        for y in range(rows.start, 8, 2):
            for x in range(columns.start, 8, 2):
                ax.text(x, y, rows.taps * columns.taps, color=look, ha="center", va="center", weight="bold")
    ax.set(xlim=(-0.6, 7.6), ylim=(7.6, -0.6), xlabel="column of x", ylabel="row of x", aspect="equal")
    return figure


drawn_classes()

# %% [markdown]
# A place uses 4 taps, 2, 2 or 1, and on average 9 / 4. So no product is wasted, and the classes are dense convolutions
# of dy. `by_class` computes each by the forward function into workspace, and then copies its results to their places.
#
# ### One launch for all classes
#
# Four small convolutions, one after another, leave a large GPU partly idle, and their results are moved twice more.
# `in_place` puts the blocks of all classes into one launch of the implicit GEMM. A block finds in a table which class
# it works for: where in x the class begins, which taps it has, where its weights lie. The rest of the kernel is that of
# [chapter 66](66_implicit_gemm.ipynb), and the results go straight to dx. Blocks of the class with the most taps come
# first, so that the short ones fill the gaps at the end.

# %%
show(gradient_classes.axes_of)

# %% [markdown]
# ### Few channels
#
# A row of the product's tile is a channel of x. The first layer of a network on pictures has three channels, the
# colours, and a tile of `in_place` has 64 rows. So `in_place` leaves it to the forward algorithms, and their tiles of
# eight rows are not full either. What else could be rows?
#
# Look at a *cell* of 2 x 2 places of x. It has one place of each class. The first layer of ResNet-50 has 7 x 7 taps,
# stride 2 and padding 3. Here are the values of dy that each place of its first cell uses, each with its tap.

# %%
first = next(iter(resnet50()))


def drawn_cell():
    """For each place of a cell: the values of dy that it uses, and the taps (r, s) that it multiplies them with."""
    figure = Chart(figsize=(7.8, 2.5), layout="constrained")
    whole = {"xlim": (-1.6, 2.6), "ylim": (2.6, -1.6), "xticks": range(-1, 3), "yticks": range(-1, 3)}
    whole |= {"xlabel": "column of dy", "ylabel": "row of dy", "aspect": "equal"}
    for ax, (rows, columns) in zip(figure.subplots(1, 4).flat, gradient_classes.classes_of(first)[::-1], strict=True):
        for y, x in np.ndindex(rows.taps, columns.taps):
            taps = [axis.first + (axis.taps - 1 - i) * axis.step for axis, i in ((rows, y), (columns, x))]
            ax.text(columns.begin + x, rows.begin + y, "{},{}".format(*taps), ha="center", va="center", size=9)
        ax.set(title=f"place ({rows.start}, {columns.start})", **whole)
    return figure


drawn_cell()

# %% [markdown]
# All four places find what they use among the same 4 x 4 values of dy, and each has taps of its own. Together they use
# every tap once. So the rows of the product can be *places and channels*: 4 places of 3 channels make 12 rows.
# `by_class` and `in_place` load dy once for each class. Here one load serves all four.
#
# In `few_channels` a thread has eight cells, four side by side in two rows. Their 96 sums are in its registers. For
# each filter it reads from shared memory the 5 x 7 values of dy that its cells need, and every weight once. All lanes
# of a warp read the same weights at the same time, which costs little more than one lane reading them.
#
# **Predict, then run.** How many multiply-adds does a thread compute for each number that it reads?

# %%
guess = None  # multiply-adds
form = few_channels.plan_of(first, True).form
cells, reach, weights = (form.down, few_channels.SIDE), form.reach, first.terms
values = (cells[0] + reach.rows - 1) * (cells[1] + reach.columns - 1)

predict(guess, round(cells[0] * cells[1] * weights / (values + weights), 1), unit="multiply-adds")

# %% [markdown]
# In `in_place` a thread reads 8 + 8 numbers for 8 x 8 multiply-adds: 4 for each.
#
# Sums are in registers only if the compiler knows which one an instruction adds to. So stride, taps and channels are
# constants of the kernel, and each [form](../pmpp/kernels/convolution_layer/few_channels.py) of a layer has a kernel of
# its own, compiled when it is first needed. There is a second gain. Where a value and a place have no tap, as place
# (0, 0) and the last row of the picture, the product is left out when the kernel is compiled: no test is left to run.
#
# The weights are written beforehand in the order in which they are used. This small kernel has the equation of the
# chapter once more, solved for the tap: r = h + a - p u. In the kernel, `a` and `b` are the row and the column of a
# place within its cell, which were h before.

# %%
show(few_channels.spread_kernel)

# %%
places = np.prod(form.stride)
print(f"{places} places, {form.channels} channels: {places * form.channels * np.prod(cells)} sums in a thread")
print(f"products for a cell, a filter: {weights}; if all places used all values: {form.slots * np.prod(reach)}")

# %%
for rung in input_gradients.LADDER:
    print(f"{rung.name}: {rung.idea}\n     Still wrong: {rung.leaves or 'nothing that we know how to mend.'}")

# %%
recorded(input_gradients, "3x3 c128 h28", "3x3 s2 c128 h56")

# %%
recorded(input_gradients, "ResNet-50")  # the first layer
compared(input_gradients, "ResNet-50", "few_channels", "torch.convolution_backward")

# %% [markdown]
# The last column says how many times as long as our last rung PyTorch takes. Below 1 PyTorch is faster. In all layers
# here but the first, `few_channels` hands the work on to the rungs before it. Then the same kernels have run for both
# names, and a difference between their times is noise. The same holds for `by_class` and `in_place` where there is no
# stride.
#
# The first layer is what `few_channels` is for. `by_class` and `in_place` are slower there than `by_columns`, since
# most of each tile is empty. `few_channels` is several times as fast as all three, and faster than PyTorch.
#
# In all three layers that are shown with every rung, `gathered` is slower than `scattered`. It needs no atomics, but a
# thread waits for two numbers for each product. Its innermost loop goes from filter to filter. The next value of dy is
# a whole plane farther on in memory, and the next weight a whole filter. `scattered` keeps its gradient in a register,
# and its weights lie side by side. It does not wait for its additions either, since it does not use what they return.
# A stride makes it worse for `gathered`: at each tap the places of one class have an output, and the other lanes of the
# warp wait. What `gathered` shows is the equation, and the rungs after it solve the same one for whole tiles.
#
# ## The weights: few results, long sums
#
# For dw each place of each image is a term. As a product of matrices: dy is K x N P Q, the columns of im2col,
# transposed, are N P Q x C R S, and the result is K x C R S. Nothing new but the shape. The forward pass has few terms
# and many results. Here it is the other way round.
#
# Take the layer of 64 channels, 56 x 56, and 64 filters of 3 x 3, with 32 images. A block computes a tile of 64 x 64
# results.
#
# **Predict, then run.** How many blocks is that, for a GPU with 132 multiprocessors?

# %%
guess = None  # blocks
wide = Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1))

predict(guess, (wide.k // 64) * (wide.terms // 64), unit="blocks")

# %%
print(f"each a sum of {wide.n * wide.p * wide.q:,} terms")
for layer in list(resnet50())[:6]:
    plan = weight_gradients._plan_of(layer, (64, 128), 132)
    steps = -(-layer.n * layer.p * layer.q // 8)
    print(f"{layer!s:28}{plan.blocks // plan.parts:4} tiles of 64 x {plan.side:3} in {plan.parts:3} parts: ", end="")
    print(f"{plan.blocks:4} blocks of {plan.steps:4} steps, of {steps:,}")

# %% [markdown]
# Nine blocks would use a fifteenth of the GPU. So the sums are divided, as in the last rung of
# [chapter 66](66_implicit_gemm.ipynb), but here the division is the rule and not the exception. The shape decides how
# wide a tile is and how many parts there are: more parts fill the GPU more evenly, and take more time to write, to read
# and to add up.
#
# The parts lie in workspace, and a second kernel adds them always in the same order. The result has the same bits on
# every run. With atomic additions to dw there would be no workspace, no second kernel, and no such promise.

# %%
twice = [device.to_host(weight_gradients.by_shape(toy_dy, toy_x, 3, 2, 1)) for _ in range(2)]
print("the same bits:", twice[0].tobytes() == twice[1].tobytes())
print("largest error:", abs(twice[0] - weight_gradients.reference(toy_dy, toy_x, 3, 2, 1)).max())

# %% [markdown]
# ### How a tile is loaded
#
# In the forward product the columns have neighbouring places side by side, and so has the tile in shared memory. Here
# the places are what is summed over. In memory they are still neighbours, in dy and in x. But now the tile wants the
# *other* index side by side. If each lane took a row of its own, a load would touch 32 lines of memory. If the 32 lanes
# took 32 places of one row, their stores into shared memory would go to few banks, several to each.
#
# The middle is best: eight lanes take eight places, and four such groups take four rows. A load touches four lines, and
# rows of the tile begin four banks apart, so that the 32 stores go to 32 banks.

# %%
lane, pitch = np.arange(32), weight_tiles.FILTERS + weight_tiles.PAD
for places in (1, 8, 32):
    place, row = lane % places, lane // places
    banks = np.bincount((place * pitch + row) % 32, minlength=32).max()
    print(
        f"{places:2} places x {32 // places:2} rows: {32 // places:2} lines loaded, {banks} stores to the busiest bank"
    )

# %% [markdown]
# Thirty-two places would cost four passes for each store; one place costs thirty-two lines for each load.
#
# A depthwise layer has one channel in each group: a product of 1 x N P Q by N P Q x 9. No tile helps there. `reduced`
# gives each channel its blocks, whose threads read an element of dy once and use it for nine taps. `bias_gradient` is
# the same without x: each element of dy is read once, and memory is the bound.

# %%
show(weight_gradients.reduced_kernel)

# %% [markdown]
# ### Winograd's algorithm, backwards
#
# With stride 1 the gradient by the *input* took Winograd's algorithm for free: it is a convolution of dy. For the
# weights that does not hold. But [chapter 68](68_winograd.ipynb) computed a tile of the output as
#
# $$Y = A^T \big[(G\, g\, G^T) \odot (B^T d\, B)\big] A,$$
#
# and this is linear in the weights $g$. A linear map passes a gradient back by its transpose. Each matrix is
# transposed, and they are applied from right to left:
#
# $$\mathrm{d}g = G^T \big[(A\, \mathrm{d}Y A^T) \odot (B^T d\, B)\big] G.$$
#
# The gradient of a tile of 4 x 4 outputs becomes 6 x 6 numbers. The tile of the image becomes 6 x 6 as before, and
# these are multiplied. The sum over all tiles of all images comes *before* the last transform, since that is linear,
# too. So there is one transform back for each pair of a filter and a channel, and not one for each tile.
#
# **Predict, then run.** The definition takes 9 multiplications for each output. How many times fewer are there now?

# %%
guess = None  # times

predict(guess, 9 * weight_gradients.TILE**2 / weight_gradients.ELEMENTS, unit="times")

# %%
show(weight_gradients.turned_kernel)

# %% [markdown]
# For each of the 36 numbers of a tile the sum is a product of matrices, K x tiles by tiles x C. Nothing new is needed
# for it: it is the weights' gradient of a 1 x 1 layer with 36 groups, whose places are the tiles. Both operands are
# then loaded in vectors, and not gathered.

# %%
for layer in resnet50():
    if weight_gradients.is_tiled(layer):
        tiling = weight_gradients.tiling_of(layer)
        print(f"{layer!s:26} becomes the 1 x 1 layer {tiling.product}")

# %% [markdown]
# The price is that of chapter 68. The transformed arrays are 2.25 times as large as x and dy, and are written and read.
# A small layer has not enough products to pay for that and for four launches, so `tiled` leaves it to `by_shape`. And
# rounding errors are larger. [winograd_adjoints.py](../pmpp/kernels/convolution_layer/winograd_adjoints.py) has the
# bound that the tests hold the results to. It is for the worst case: all roundings in one direction.

# %%
toy = Layer(1, 16, 16, 16, 16, 3, 3, padding=(1, 1))  # just large enough for `tiled` to take it
rng = np.random.default_rng(5)
dy_of_toy, x_of_toy = (rng.standard_normal(toy.shape, dtype=np.float32) for _ in range(2))
exact = weight_sums(dy_of_toy, x_of_toy, toy)
for rung in (weight_gradients.by_shape, weight_gradients.tiled):
    found = device.to_host(rung(dy_of_toy, x_of_toy, 3, 1, 1))
    print(f"{rung.name}: off by {abs(found - exact).max():.1e} at most")
print(f"Winograd's bound: {winograd_adjoints.bound(dy_of_toy, x_of_toy, toy).max():.1e}")

# %% [markdown]
# ### `strips`, for groups of few channels
#
# Networks for phones are made of depthwise layers ([chapter 71](71_depthwise_convolution.ipynb)), and they are trained,
# too. The gradient by the input is a depthwise layer again, so that `convolution` finds the kernels of that chapter.
# For the weights there is `reduced`, and its threads find the place of each product anew.
#
# In the forward pass a thread had some outputs one below the other, and a row of x that it had loaded met all taps that
# use it. Here dy takes the place of the outputs. A thread loads up to eight elements of dy, one below the other. Then
# it goes down x, row by row, and adds to the nine sums what the row has a part in.
#
# `reduced` loads an element of dy and nine of x for each place.
#
# **Predict, then run.** How many numbers does a thread of `strips` load for each place, with 3 x 3 taps, stride 1, and
# eight elements of dy?

# %%
guess = None  # numbers

few = Layer(2, 4, 16, 32, 4, 3, 3, padding=(1, 1), groups=4)
rng = np.random.default_rng(5)
dy_of_few, x_of_few = (rng.standard_normal(few.shape, dtype=np.float32) for _ in range(2))
counted = {}
for rung in (weight_gradients.reduced, weight_gradients.strips):
    counted[rung.name] = lab.count(rung, dy_of_few, x_of_few, 3, 1, 1, 1, few.groups).counters
predict(guess, counted["strips"]["global_load_bytes"] / 4 / dy_of_few.size, unit="numbers")

# %%
for name, counters in counted.items():
    numbers = counters["global_load_bytes"] / 4 / dy_of_few.size
    work = counters["warp_instructions"] * 32 / dy_of_few.size
    print(f"{name:8} {numbers:.2f} numbers, {work:.0f} instructions for each place, by the interpreter's count")

# %%
show(weight_strips.rows_of)

# %% [markdown]
# Eight outputs span ten rows of x, and each row is three numbers: 38 loads for eight places. (At the right and the left
# edge `reduced` skips what lies outside.) The instructions are halved, too. The function of a row is made for its
# number, so that the taps it meets are known when it is compiled, and no sum is ever looked up.
#
# Below the last output nothing may be added. A zero in the place of dy would not do: times an infinity in x, it is a
# NaN.

# %%
for rung in weight_gradients.LADDER:
    print(f"{rung.name}: {rung.idea}\n     Still wrong: {rung.leaves or 'nothing that we know how to mend.'}")

# %%
recorded(weight_gradients, "3x3 c128 h28", "3x3 s2 c128 h56")
compared(weight_gradients, "ResNet-50", "strips", "torch.convolution_backward")

# %% [markdown]
# `tiled` more than halves the time of the layer of 28 x 28. The layer with a stride does not gain: there `tiled` leaves
# the work to `by_shape`. The list of ResNet-50's layers is of the last rung, which leaves layers without groups to
# `tiled`. It has those layers whose times the record has.
#
# ### Exercise: a sum in a fixed order

# %%
exercise("weight_gradients/taps")


# %%
@cuda.jit
def in_order(dy, x, padding, dw):
    k, s = cuda.blockIdx.x // dw.shape[1], cuda.blockIdx.x % dw.shape[1]
    if cuda.threadIdx.x == 0:
        dw[k, s] = ZERO  # your sum


check("weight_gradients/taps", in_order)

# %% [markdown]
# ## All rungs

# %%
plots.drawn(plots.ladder, "input_gradients", family="3x3 s2 c128 h56")

# %%
plots.drawn(plots.ladder, "weight_gradients", family="3x3 c128 h28")

# %%
plots.drawn(plots.roofline, "weight_gradients", family="3x3 c128 h28")

# %% [markdown]
# The first figure is of a layer with a stride, and with too many channels for `few_channels`: its last two bars are the
# same kernel. One launch for all classes nearly halves the time of `by_class`. The other two figures are of a layer
# without a stride. Both gradients have the intensity of the layer itself, so they stand under the same part of the
# roof. The rates count the FLOP of the definition. Winograd's algorithm computes fewer, and so `tiled` stands above the
# roof, as the forward pass did in chapter 68.
#
# Are the two on the way back as fast as the one on the way there? Look up the layer of 128 channels, 28 x 28 and 3 x 3
# in the two lists of this chapter, and in the last list of [chapter 68](68_winograd.ipynb). All three passes take
# Winograd's algorithm, and their times lie close together. The gradients take a little longer. The gradient by the
# input has to turn its weights first, and the gradient by the weights transforms x and dy, which are both large.
#
# ## Channels last
#
# [Chapter 66](66_implicit_gemm.ipynb) had images and filters with their channels last. Both gradients are the same sums
# in that order, but other numbers are neighbours in memory.
#
# The gradient by the input is a convolution of dy, class by class, as above. It is a sum over filters, which should be
# neighbours then. So the weights of each tap are transposed first.
#
# The gradient by the weights gains from the new order. It is the product of dy, transposed, and the columns of x, and
# the terms of its sums are places. With channels first places are neighbours, and every tile has to be transposed on
# its way into shared memory. With channels last the neighbours are filters and channels, which are rows and columns of
# the result. A thread loads four of each by 128 bits, and stores them as they are.

# %%
show(channels_last_gradients.put)

# %%
slopes, images = (rng.standard_normal((2, 6, 6, count), dtype=np.float32) for count in (8, 4))
found = device.to_host(channels_last_gradients.weight_gradient(slopes, images, 3, 1, 1))
channels_first = [np.ascontiguousarray(one.transpose(0, 3, 1, 2)) for one in (slopes, images)]
expected = weight_gradients.reference(*channels_first, 3, 1, 1)
print("dw has shape", found.shape, "and is off by at most", abs(found.transpose(0, 3, 1, 2) - expected).max())

# %% [markdown]
# A depthwise layer has no matrix here either. A thread takes four channels, keeps the sums of a whole window for each
# of them in registers, and walks along the rows of dy.
#
# ## What to take along
#
# - The gradient by the input is a convolution of dy, with filters turned and with channels and filters exchanged. What
#   makes the forward pass fast makes it fast, too.
# - Gather instead of scatter: solve for the source. There are no atomics then, and every run gives the same bits.
# - A stride divides the places of the input into classes with taps of their own. Nothing is multiplied by the zeros in
#   between.
# - A tile needs rows. If one index is too short for them, take a second one that uses the same data: here the classes.
# - The gradient by the weights has few results and long sums. Divide the sums, and add the parts in a fixed order.
# - In groups of few channels nothing is left of the product of matrices. Let a row that was loaded meet all taps.
#
# ## Exercises
#
# Two more, without `check`.
#
# - Which places of x get the gradient 0 from a layer of 1 x 1 with stride 2, whatever dy is? What share are they?
# - What are dx and dw of a 1 x 1 layer with stride 1 and without padding, as products of matrices? Write them with
#   NumPy's `@`.
#
# ## Answers
#
# Open a cell only after you have tried.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(by_input.row_answer)
assert check("input_gradients/row", by_input.row_answer)

# %% [markdown]
# *A strided row.* It is `gathered` in one dimension. The two guards say that such an output exists: the division leaves
# no remainder, and the quotient is one of dy's places.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
show(by_weights.taps_answer)
assert check("weight_gradients/taps", by_weights.taps_answer)

# %% [markdown]
# *A sum in a fixed order.* Each thread adds up every 32nd place, and a tree in shared memory adds up the threads' sums.
# Both orders are the same on each run.

# %% jupyter={"source_hidden": true, "outputs_hidden": true} tags=["answer"]
ones = np.ones((1, 1, 4, 4), np.float32)
print(input_gradients.reference(ones, ones[:, :, :1, :1], (1, 1, 8, 8), 2)[0, 0])
image, weights, slopes = (rng.standard_normal(shape) for shape in ((2, 3, 20), (5, 3), (2, 5, 20)))
dx, dw = weights.T @ slopes, (slopes @ image.swapaxes(1, 2)).sum(0)
four = slopes.reshape(2, 5, 4, 5), image.reshape(2, 3, 4, 5), weights[:, :, None, None]
print(np.allclose(dx.reshape(2, 3, 4, 5), input_gradients.reference(four[0], four[2], four[1].shape)), end=" ")
print(np.allclose(dw, weight_gradients.reference(*four[:2], 1)[..., 0, 0]))

# %% [markdown]
# *Places without a gradient.* Those with an odd row or an odd column: three quarters. The filter never looked at them.
#
# *A 1 x 1 layer.* The forward pass is W x for each image, with the pixels as columns. So dx is W^T dy, and dw the sum
# over images of dy x^T. These are the gradients of a matrix product.
#
# Go on with [chapter 77](77_quantisation.ipynb): numbers in 8 bits and in 4.
