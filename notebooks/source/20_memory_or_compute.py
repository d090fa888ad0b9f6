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
# # 20. Memory or compute?
#
# *A kernel whose arithmetic grows, the ridge, all rooms on one roof, sizes, data types, other GPUs, your own computer.
# Read chapters [4](04_vector_add.ipynb) and [12](12_matmul.ipynb) before. 65 minutes. PMPP 4e: section 5.1 and chapter
# 6; 5e: section 5.1 and chapter 6. The code is
# [pmpp/kernels/memory_or_compute/polynomial.py](../pmpp/kernels/memory_or_compute/polynomial.py).*
#
# A kernel must move bytes and must do arithmetic. The GPU does both at once, so one of the two is what you wait for,
# and work that goes into the other is wasted.
#
# **The question of this chapter: can you say, before anything runs, on which side a kernel falls?** We take a kernel
# whose arithmetic can be chosen, and watch it cross from one side to the other. Then we ask the same of all rooms of
# the workbook, of sizes, of data types, of other GPUs, and of the CPU of your own computer. Some of the rooms come
# later; what they compute is said where it is needed.

# %%
import timeit

import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import matmul, vector_add
from pmpp.kernels.memory_or_compute import polynomial
from pmpp.kernels.memory_or_compute.exercises import moments_start
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Two numbers
#
# Count what *any* program for the task must do, however clever: the floating-point operations (FLOP), and the bytes
# that have to come from memory or go there at least once. Divide each by what the GPU can do in a second. The longer of
# the two times is the bound.

# %%
kept = record.load()
ceilings = kept.ceilings()
print(f"{kept.gpu}: {ceilings.bandwidth / 1e12:.2f} TB/s and {ceilings.fma_f32 / 1e12:.1f} TFLOP/s in float32")
for name, cost in {
    "add 2^28 pairs": vector_add.cost(2**28),
    "multiply 4096 x 4096": matmul.cost(4096, 4096, 4096),
}.items():
    least = roofline.bound(cost, ceilings)
    print(f"{name:22} memory {least.memory_seconds * 1e3:7.3f} ms, compute {least.compute_seconds * 1e3:7.3f} ms"
          f" -> {least.side}")  # fmt: skip
print(f"The two times are equal at {ceilings.ridge:.1f} FLOP a byte.")

# %% [markdown]
# The quotient of the two counts is the *arithmetic intensity*, FLOP a byte. The two times are equal at the *ridge*,
# where the intensity equals the GPU's own quotient. Below it memory decides, above it arithmetic.
#
# ## A kernel whose arithmetic grows
#
# The addition lies far on one side, and this product far on the other. To see what happens between them, we need a task
# whose intensity we can choose. Here is one: a polynomial, evaluated at each element of a long vector. It has a
# *degree* d and d + 1 coefficients, and we write the coefficient of the highest power first, as `numpy.polyval` does:
#
# $$p(x) = c_0 x^d + c_1 x^{d-1} + \dots + c_{d-1} x + c_d$$
#
# *Horner's rule* needs no powers. It begins with $c_0$, and for each further coefficient it multiplies by $x$ and adds
# the coefficient. For degree 2 that is $(c_0 x + c_1) x + c_2$. So each degree is one multiply-add, which counts as two
# operations.

# %%
show(polynomial.reference)
rng = np.random.default_rng(20)
x, c = rng.uniform(-1, 1, 2**14).astype(np.float32), rng.standard_normal(9, dtype=np.float32)
exact = np.polyval(c.astype(np.float64), x[:1000].astype(np.float64))
print("off from NumPy's by at most", abs(polynomial.reference(x[:1000], c) - exact).max())

# %% [markdown]
# Each element is read once, and each result is written once: 8 bytes an element, whatever the degree. The coefficients
# are a few numbers for millions of elements, and hardly count.

# %%
LENGTH = 2**26
for degree in (1, 8, 512):
    cost = polynomial.cost(LENGTH, degree)
    flops, moved = cost.flops / LENGTH, cost.bytes / LENGTH
    print(f"degree {degree:3}: {flops:5.0f} FLOP and {moved:.0f} bytes an element, {cost.intensity:6.2f} FLOP a byte")

# %% [markdown]
# **Predict, then run.** From which degree on is arithmetic the bound on this GPU? (Its ridge is printed further up.)

# %%
guess = None  # degree

sides = {degree: roofline.bound(polynomial.cost(LENGTH, degree), ceilings).side for degree in range(1, 513)}
predict(guess, min(degree for degree, side in sides.items() if side == "compute"), within=0.1)

# %% [markdown]
# Twice the degree, divided by 8 bytes, is a quarter of the degree. It passes the ridge where the degree passes four
# times the ridge. The next figure has the two times over the degree.

# %%
degrees = 2 ** np.arange(10)


def draw_bounds(ax, ceilings):
    """The two times that a perfect kernel needs, over the degree."""
    least = [roofline.bound(polynomial.cost(LENGTH, int(degree)), ceilings) for degree in degrees]
    ax.loglog(degrees, [one.memory_seconds * 1e3 for one in least], "--", color=palette.INK, label="memory alone")
    ax.loglog(degrees, [one.compute_seconds * 1e3 for one in least], ":", color=palette.INK, label="arithmetic alone")
    ax.set_xticks(degrees, [str(degree) for degree in degrees])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlim=(0.8, 640), xlabel="degree of the polynomial", ylabel="time (ms) for 2^26 elements")


# %%
def draw_sides(ax, ridge):
    """Colour the degrees on both sides of the ridge, and name on top what bounds a perfect kernel there."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.2)
    for side, start, end in (("memory-bound", 0.8, 4 * ridge), ("compute-bound", 4 * ridge, 640)):
        ax.axvspan(start, end, color=palette.REGIONS[side], zorder=0, linewidth=0)
        said = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 9}
        ax.text(np.sqrt(start * end), 0.98, f"a perfect kernel is\n{side}", **said)


# %%
figure, ax = chart(3.8)
draw_bounds(ax, ceilings)
draw_sides(ax, ceilings.ridge)
ax.legend(loc="lower right")
foot(figure, f"Computed from two ceilings. {kept.footer()}")
figure

# %% [markdown]
# The memory's time is the same at each degree. The time of the arithmetic grows in proportion, and the two lines cross
# at the ridge. The larger of them is the bound: it is flat on the left, and rises on the right.
#
# The same bound as a rate is the *roofline*: FLOP a second over FLOP a byte. It rises as long as memory decides, and is
# flat where arithmetic does.
#
# **Predict, then run.** A kernel does 16 operations for each element. What share of the GPU's multiply-adds can it use
# at best if it moves 8 bytes for an element, and what share if it moves 16?

# %%
guess = {"8 bytes": None, "16 bytes": None}  # %

reached = {moved: roofline.attainable(16 / moved, ceilings) / ceilings.fma_f32 for moved in (8, 16)}
predict(guess, {f"{moved} bytes": 100 * share for moved, share in reached.items()}, unit="%", factor=1.1)

# %% [markdown]
# Turn both numbers. Where ipywidgets are installed, as by `make lab`, each number has a slider above the figure.
# Without them, write other numbers into the first line of the cell, and run it again.

# %%
flops, nbytes = 16, 8  # other numbers here, or the sliders

knobs.turn(knobs.roof, flops=(flops, [2**k for k in range(11)]), nbytes=(nbytes, range(4, 65, 4)))

# %% [markdown]
# The dot is where a perfect kernel stands. On the slope, half the bytes double the rate, and the kernel takes half the
# time. Twice the operations double the rate as well, and the time stays the same. To the right of the ridge fewer bytes
# move the dot sideways and bring nothing.
#
# The two regions of the figure over the degree are named for a *perfect* kernel, too. It moves each byte once and does
# nothing but multiply-adds. A kernel that does more than it must can have another bound there. We write three.
#
# ## Rung 1: `through_memory`
#
# The first kernel keeps the value so far where the result belongs, in `out[i]`.

# %%
show(polynomial.through_memory)

# %% [markdown]
# **Predict, then run.** `x` has 16,384 elements, and the degree is 8. How many times does the kernel store to each
# element of `out`?

# %%
guess = None  # stores to each element

counted = lab.count(polynomial.through_memory, x, c)
predict(guess, counted.counters["global_store_bytes"] // (4 * x.size), unit="stores")

# %% [markdown]
# Once before the loop, and once in each step. A step also loads three numbers: the value so far, the element, and the
# coefficient. Here is what the kernel asks for at some degrees.


# %%
def asked(rung, degree):
    """Print what a rung asks for: bytes of global memory an element, and loads of a warp."""
    counters = lab.count(rung, x, np.ones(degree + 1, np.float32)).counters
    moved = counters["global_load_bytes"] + counters["global_store_bytes"]
    loads = counters["global_load_requests"] / (counters["flops"] / 64)  # a multiply-add of a warp is 64 FLOP
    print(f"{rung.name:14} degree {degree:3}: {moved / x.size:7.1f} bytes an element, "
          f"{counters['flops'] / moved:6.3f} FLOP a byte, {loads:5.2f} loads for each multiply-add")  # fmt: skip


for degree in (1, 8, 64):
    asked(polynomial.through_memory, degree)

# %% [markdown]
# The intensity that the *task* has grows with the degree. The intensity that this *kernel* asks for does not: with each
# degree come 16 more bytes, so it stays near an eighth of an operation a byte.
#
# Not all of these bytes come from device memory. A compiler saves the load of what was just stored, and the caches keep
# what is used again and again. What is left of that on a GPU the interpreter cannot know. But it knows two limits, and
# `bound` puts them on a GPU by name:

# %%
grid = x.size // polynomial.BLOCK
report = simt.profile(polynomial.through_memory_kernel, grid, polynomial.BLOCK, (x, c, np.empty_like(x)))
report.bound("H200")

# %% [markdown]
# *At least* is what no compiler and no cache can avoid. *As written* takes each access by itself. The time of the
# kernel on a GPU may lie anywhere in between, and a kernel that also waits may take longer. Chapter
# [98](98_instruments.ipynb) says more about these two columns.
#
# ### An exercise before you read on
#
# Mend the kernel yourself. To make it a task of its own, the coefficient of the *lowest* power comes first here.

# %%
exercise("memory_or_compute/polynomial")


# %%
@cuda.jit
def evaluate(x, c, out):
    pass  # your code


check("memory_or_compute/polynomial", evaluate)

# %% [markdown]
# ## Rung 2: `in_a_register`
#
# A variable of the kernel is a register. Nobody but the thread itself needs the value so far, so it can stay there.

# %%
show(polynomial.in_a_register)
for rung in (polynomial.through_memory, polynomial.in_a_register):
    asked(rung, 64)

# %% [markdown]
# The bytes of `x` and `out` are down to what the task needs, 8 an element. The others are 65 coefficients of 4 bytes.
# All threads load the same one at about the same time, so it comes from a cache, and costs device memory nothing.
#
# It is still an instruction: one load for each multiply-add. A multiprocessor of the H100 and the H200 has 128 units
# for float32 and 32 for loads and stores (NVIDIA's whitepaper on the H100, "H100 SM architecture"). So it can start a
# multiply-add for four warps in a cycle, but a load for one only. By these numbers this kernel cannot pass a quarter of
# the roof, however high the degree, and neither memory nor arithmetic is what holds it back.
#
# ### An exercise about bytes
#
# The same fault, in another kernel.

# %%
exercise("memory_or_compute/moments")

# %%
show(moments_start)


# %%
@cuda.jit
def moments(x, square, cube):
    pass  # your code


check("memory_or_compute/moments", moments)

# %% [markdown]
# ## Rung 3: `eight_each`
#
# If a thread takes more than one element, a coefficient that it has loaded serves all of them. This is the *thread
# coarsening* of chapter [12](12_matmul.ipynb). The two local arrays are registers, since all their indices are known
# once the compiler has written out the loops of eight.

# %%
show(polynomial.eight_each)

# %% [markdown]
# **Predict, then run.** At degree 64 `in_a_register` loads about once for each multiply-add. How many multiply-adds
# does a warp of `eight_each` do for each of its loads? (Count the loads of elements, too: eight, beside the 65
# coefficients.)

# %%
guess = None  # multiply-adds for each load

counters = lab.count(polynomial.eight_each, x, np.ones(65, np.float32)).counters
predict(guess, counters["flops"] / 64 / counters["global_load_requests"], unit="multiply-adds")

# %%
for rung in polynomial.LADDER:
    asked(rung, 64)

# %% [markdown]
# 8 times 64 multiply-adds for 73 loads. Four for each load would do, so loads no longer stand in the way.
#
# ## What was measured
#
# `make bench` measures all three at degrees from 1 to 512, on vectors of 2^26 elements.
#
# **Predict, then run.** How many times as long does `eight_each` take at degree 8 as at degree 1, and at degree 256 as
# at degree 64? The figure of the two bounds has the answer of a perfect kernel.

# %%
guess = {"8 against 1": None, "256 against 64": None}  # times as long


def times(high, low, rung="eight_each"):
    """How many times as long a rung took at one degree as at another."""
    found = {entry.x: entry for entry in kept.entries("polynomial", family="degree", contender=rung)}
    return found[high].seconds / found[low].seconds


def grown():
    return {"8 against 1": times(8, 1), "256 against 64": times(256, 64)}


predict(guess, grown, unit="times as long", within=0.2)


# %%
def draw_measured():
    """The measured times over the degree, with the bounds of the same run."""
    (figure, ax), run = chart(5), kept.run("polynomial")
    draw_bounds(ax, kept.ceilings("polynomial"))
    for name, (colour, marker) in plots.colours(kept, "polynomial").items():
        mine = sorted(kept.entries("polynomial", family="degree", contender=name), key=lambda entry: entry.x)
        look = {"numpy": {"marker": "x"}, "library": {"marker": marker, "mfc": "white"}, "rung": {"marker": marker}}
        label = f"{name} (CPU)" if mine[0].kind == "numpy" else name
        ax.plot([e.x for e in mine], [e.median_ms for e in mine], color=colour, label=label, **look[mine[0].kind])
    draw_sides(ax, kept.ceilings("polynomial").ridge)
    figure.legend(loc="outside right upper")
    foot(figure, f"{kept.footer('polynomial')}. CPU: {run['cpu']}; NumPy uses one of them")
    return figure


# %%
plots.drawn(draw_measured)

# %% [markdown]
# What to look for:
#
# - `eight_each` follows the larger of the two bounds, at a distance. It is flat as long as it waits for memory. There
#   the arithmetic is free: a polynomial of degree 8 takes little longer than a straight line.
# - `in_a_register` leaves the flat part at a lower degree. What it waits for then is a third thing, its loads of
#   coefficients.
# - `through_memory` leaves it earlier still, since it stores in each step.
# - PyTorch and NumPy rise from the start. They have no function that does all steps for an element at once, so each
#   degree is a pass over the whole vector, and in PyTorch a launch. (NumPy was only measured at the lowest degrees.)
# - CuPy makes a kernel of some lines of CUDA C++ that say what is to be done for an element
#   (`cupy.ElementwiseKernel`). That is no function of a library either, but it is what one would write with CuPy, and
#   it is the idea of `in_a_register`. (It is in the figure if the record has it.)
#
# The same measurements as rates are the roofline, with the degree along the axis in the place of the intensity.

# %%
plots.drawn(plots.sweep, "polynomial", xlabel="degree of the polynomial", title="The rate over the degree")

# %% [markdown]
# On the left the rate of a kernel that waits for memory grows with the degree, since more operations are done in the
# same time. On the right it can grow no further. The regions are those of a perfect kernel again.
#
# And how near does each rung come, at the degree by which the ladder is judged?

# %%
plots.drawn(plots.ladder, "polynomial")

# %% [markdown]
# A bar is the bound divided by the time. Here it is the share of the arithmetic, because this degree lies to the right
# of the ridge. `in_a_register` stays below the quarter that its loads allow. Its loop has other instructions, too: it
# counts the coefficients and tests for the last one.
#
# ## Every room under one roof
#
# The record holds how fast each room was at its *design size*, the one by which its ladder is judged. What do you
# expect of these five?
#
# - `activation` replaces each element of an array by the larger of itself and 0.
# - `convolution` makes of each pixel of an image a weighted sum of the 31 x 31 pixels around it.
# - `direct` is a layer of a neural network. Of images with 3 channels it makes images with 64. Each pixel of each
#   channel of the result is a weighted sum of 7 x 7 pixels of all 3 channels.
# - `reduction` is the sum of a vector.
# - `softmax` replaces the numbers of a row by their exponentials, divided by the sum of these.
#
# **Predict, then run.** What bounds a perfect kernel for each of them on this GPU, memory or compute? Count how many
# operations there are for each number that must be moved, and compare with four times the ridge, since a number has 4
# bytes.

# %%
guess = {"activation": None, "convolution": None, "direct": None, "reduction": None, "softmax": None}  # which bound


def side(room):
    """The bound of what a room does at its design size."""
    entry = kept.design(room)[0]
    return roofline.bound(entry.cost, ceilings).side


five = "activation", "convolution", "direct", "reduction", "softmax"
predict(guess, lambda: {room: side(room) for room in five}, choices=("memory", "compute"))

# %% [markdown]
# Here are all rooms with arithmetic, by their intensity, with the share of the roof that the best rung reaches. The
# counts are those of the definition of what a room computes.


# %%
def best(room):
    """The fastest rung of a room at its design size, or None if there is no arithmetic."""
    first, *_ = kept.families(room)
    found = [entry for entry in kept.entries(room, family=first, design=True, kind="rung") if entry.flops]
    return min(found, key=lambda entry: entry.seconds, default=None)


rooms = [(room, entry) for room in kept.rooms() if (entry := best(room))]
wide = max(len(room) for room, _ in rooms) + 2
print(f"{'room':{wide}}{'what, at which size':40}{'FLOP a byte':>12}   bound    share of the roof")
for room, entry in sorted(rooms, key=lambda pair: pair[1].cost.intensity):
    cost, own = entry.cost, kept.ceilings(room)
    what, share = f"{entry.family}: {entry.workload}", roofline.share(cost, entry.seconds, own)
    print(f"{room:{wide}}{what:40}{cost.intensity:12.3g}   {roofline.bound(cost, own).side:8}{share:14.0%}")

# %% [markdown]
# In the upper rows an element is used once or a few times, and memory is the bound. In the lower rows it is used again
# and again. Chapter [0](00_start_here.ipynb) has them in one picture.
#
# The rate of a kernel says nothing about its quality. At a quarter of an operation for each byte, a sum cannot use more
# of the GPU's arithmetic than a quarter divided by the ridge, and no program can do better. What counts is the share of
# the roof straight above.
#
# A compute-bound row passes 100 % for one of two reasons. `winograd` and `by_fft` do fewer multiplications than the
# definition of what they compute. Chapters [68](68_winograd.ipynb) and [70](70_convolution_by_fft.ipynb) tell how, and
# `input_gradients` and `weight_gradients` save them in the same way. All others above 100 % multiply on *tensor cores*,
# units for numbers of 8 or 16 bits, whose rate is not that of this roof ([chapter 40](40_tensor_cores.ipynb)). The
# memory-bound rows that pass it are another matter: they read more than they write, which is easier on the memory than
# the copy by which the bandwidth was measured.
#
# ## The size decides, too
#
# Intensity need not be a constant of the task. A vector addition uses each number once, at every length. The product of
# two square matrices uses each number as often as they have rows, so it is compute-bound from some size on, as chapter
# [0](00_start_here.ipynb) has found.
#
# But matrices need not be square. A layer of a neural network multiplies a large matrix of weights by a few columns,
# one for each input that it is given at a time, the *batch*.
#
# **Predict, then run.** A matrix of 4096 x 4096 is multiplied by one of 4096 x n. There are 2 x 4096 x 4096 x n
# operations, and as long as n is small, nearly all bytes are those of the large matrix. From which n on is the product
# compute-bound on this GPU?

# %%
guess = None  # n

sides = {n: roofline.bound(matmul.cost(4096, n, 4096), ceilings).side for n in range(1, 4097)}
predict(guess, min(n for n, side in sides.items() if side == "compute"), within=0.1)

# %%
for n in (1, 8, 64, 4096):
    cost = matmul.cost(4096, n, 4096)
    least = roofline.bound(cost, ceilings)
    print(f"n = {n:4}: {cost.intensity:6.1f} FLOP a byte, at least {least.seconds * 1e6:7.1f} us, {least.side}")

# %% [markdown]
# A weight is 4 bytes, and n multiply-adds are done with it: 2 n operations for 4 bytes. With one column the matrix has
# to come from memory for a single use of each weight. Eight columns take hardly longer. That is why networks are run on
# batches.
#
# These are bounds. Small problems have a third enemy that neither count knows: a launch takes some microseconds,
# whatever it does. The next chapter is about that.
#
# ## The data type decides
#
# A float64 is twice the bytes. It is also another unit of the GPU, and how many of those there are is a question of
# price. The table is that of the interpreter; each GPU's row has its source in `pmpp/simt/machine/gpus.py`.

# %%
print(f"{'GPU':28}{'TB/s':>6}{'TFLOP/s f32':>13}{'f64':>7}   ridge f32   ridge f64 (FLOP a byte)")
for gpu in simt.GPUS:
    rates = gpu.fp32, gpu.fp64
    print(f"{gpu.name:28}{gpu.bandwidth / 1e12:6.2f}{rates[0] / 1e12:13.1f}{rates[1] / 1e12:7.2f}"
          f"{rates[0] / gpu.bandwidth:12.1f}{rates[1] / gpu.bandwidth:12.1f}")  # fmt: skip

# %% [markdown]
# **Predict, then run.** A polynomial of degree 12 is evaluated at each element of a float64 vector, which reads 8 bytes
# an element and writes 8. On which of these GPUs is that compute-bound?

# %%
guess = {"T4": None, "RTX 4090": None, "L4": None, "A100 80GB": None}  # True or False

ridges = {gpu.name: gpu.fp64 / gpu.bandwidth for gpu in simt.GPUS}
predict(guess, {name: ridges[name] < 2 * 12 / 16 for name in ("T4", "RTX 4090", "L4", "A100 80GB")})

# %% [markdown]
# 24 operations for 16 bytes are 1.5 a byte. The answer depends on whose GPU it is. On GPUs for graphics float64 is 32
# or 64 times slower than float32, and even little arithmetic is what one waits for. That is why this workbook watches
# so closely for a float64 that slipped in by accident.
#
# ## Your own computer
#
# A CPU has a roof as well, and it can be measured here. The bandwidth is that of a copy of a large array. The rate of
# arithmetic is that of a product of matrices, for which NumPy calls a library that uses all cores. Each time is the
# fastest of three, since other programs can only make it longer.


# %%
def seconds(call):
    """The fastest of three calls on this computer's CPU."""
    return min(timeit.repeat(call, number=1, repeat=3))


source, square = np.ones(2**25, np.float32), rng.standard_normal((1024, 1024), dtype=np.float32)
target, product = np.zeros_like(source), np.empty_like(square)
bandwidth = 2 * source.nbytes / seconds(lambda: np.copyto(target, source))
arithmetic = 2 * 1024**3 / seconds(lambda: np.matmul(square, square, out=product))
print(f"this computer's CPU: a copy {bandwidth / 1e9:.1f} GB/s, a product of matrices {arithmetic / 1e9:.0f} GFLOP/s")
print(f"ridge at {arithmetic / bandwidth:.1f} FLOP a byte; that of the GPU of the record is at {ceilings.ridge:.1f}")

# %% [markdown]
# Now the polynomial in NumPy, in two ways. `whole` does each step for the whole vector. It is `through_memory` on a
# CPU: the vector is longer than most caches, so `out` and `x` pass through memory in each step. `in_pieces` takes
# 16,384 elements through all steps before it goes on to the next. They stay in a cache meanwhile.


# %%
def whole(x, c, out):
    """Horner's rule, a step at a time for all elements."""
    out.fill(c[0])
    for coefficient in c[1:]:
        out *= x
        out += coefficient


def in_pieces(x, c, out, size=2**14):
    """Horner's rule, a piece at a time for all steps."""
    for start in range(0, x.size, size):
        whole(x[start : start + size], c, out[start : start + size])


# %% [markdown]
# **Predict, then run.** How many times as long does `whole` take at degree 16 as at degree 4?

# %%
guess = None  # times as long

long = rng.random(2**24, dtype=np.float32)
out, c = np.empty_like(long), rng.standard_normal(65, dtype=np.float32)
wholes = {degree: seconds(lambda degree=degree: whole(long, c[: degree + 1], out)) for degree in (1, 4, 16)}
predict(guess, wholes[16] / wholes[4], unit="times as long", within=0.5)

# %%
pieces = {degree: seconds(lambda degree=degree: in_pieces(long, c[: degree + 1], out)) for degree in (1, 4, 16, 64)}
print("the last one is right:", np.allclose(out[:1000], np.polyval(c, long[:1000]), rtol=0, atol=1e-4))
for name, times_of in (("whole", wholes), ("in_pieces", pieces)):
    for degree, taken in times_of.items():
        rate = 2 * degree * long.size / taken / 1e9
        print(f"{name:10} degree {degree:2}: {taken * 1e3:7.1f} ms, {rate:6.2f} GFLOP/s")

# %%
figure, ax = chart(4)
span = np.geomspace(0.1, 10 * max(10, arithmetic / bandwidth), 200)
ax.loglog(span, np.minimum(arithmetic, span * bandwidth) / 1e9, color=palette.INK, label="the two ceilings")
for name, times_of, marker in (("whole", wholes, "o"), ("in_pieces", pieces, "s")):
    intensity = np.array([*times_of]) / 4  # 2 operations for 8 bytes, for each degree
    ax.plot(intensity, [2 * d * long.size / taken / 1e9 for d, taken in times_of.items()], marker=marker, label=name)
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
low, high = np.log10(ax.get_ylim())
ax.set(xlabel="arithmetic intensity of the task (FLOP/byte)", ylabel="rate (GFLOP/s)")
ax.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
ax.legend(loc="upper left")
foot(figure, "Measured on this computer's CPU when this notebook was executed")
figure

# %% [markdown]
# These figures are your computer's once you run the cells, and they differ from one computer to the next. What to look
# for is the shape. The points of `whole` soon lie at about the same height: each degree is as much work as the one
# before, and takes as long. The points of `in_pieces` rise, as long as a degree more costs little beside the way
# through memory.
#
# They flatten far below the roof. Its flat part was measured by a product of matrices, which has all cores at work on
# numbers that stay in registers, with multiply-adds where the processor has them. NumPy multiplies and adds on one
# core, one after the other, and takes each number from the cache and puts it back. The roof says what the computer can
# do. It does not say that a program comes near.
#
# ## What to take along
#
# - Divide the operations of a task by its bytes, and compare with the ridge. That takes no GPU, and says which of two
#   improvements is worth the work.
# - To the left of the ridge arithmetic is free, and to the right bytes are. The degree of the polynomial crossed it,
#   and so did the number of columns of a matrix.
# - The intensity is that of the task. A kernel that goes to memory for what a register can hold has a lower one of its
#   own, which need not grow with the task's.
# - A kernel that lies below both bounds waits for a third thing. Here it was the number of loads, and in the next
#   chapter it is the launch.
# - The ridge belongs to a GPU and to a data type. The same kernel can be on one side here and on the other there.
#
# ## Exercises
#
# `check` runs your kernel on small awkward inputs, counts, and names the mistake it finds. The first two exercises
# stand after the first and the second rung. Here is a third.

# %%
exercise("memory_or_compute/derivative")


# %%
@cuda.jit
def derivative(x, c, value, slope):
    pass  # your code


check("memory_or_compute/derivative", derivative)

# %% [markdown]
# On paper: this kernel reads 4 bytes an element and writes 8, and does four operations a degree. From which degree on
# is it compute-bound on the GPU of the record?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def evaluate_answer(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]  # once, into a register
        total = c[c.size - 1]
        for k in range(c.size - 2, -1, -1):
            total = total * value + c[k]  # Horner's rule: one multiply-add a coefficient
        out[i] = total


assert check("memory_or_compute/polynomial", evaluate_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def moments_answer(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value
        cube[i] = value * value * value


assert check("memory_or_compute/moments", moments_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def derivative_answer(x, c, value, slope):
    i = cuda.grid(1)
    if i < x.size:
        at, total, rise = x[i], c[0], np.float32(0)
        for k in range(1, c.size):
            rise = rise * at + total  # the derivative of p x + c is p' x + p, with the p from before
            total = total * at + c[k]
        value[i], slope[i] = total, rise


assert check("memory_or_compute/derivative", derivative_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
degree = next(d for d in range(1, 1000) if 4 * d / 12 > ceilings.ridge)
print(f"from degree {degree} on: 4 x {degree} operations for 12 bytes are more than {ceilings.ridge:.1f} FLOP a byte")

# %% [markdown]
# Go on with [chapter 22](22_launches.ipynb): what a launch costs, and when it is all that one waits for.
