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
# # 18. When a kernel is wrong
#
# *Reproduce, compare, suspect, ask an instrument, mend, keep the input; races, guards, barriers, unset memory;
# compute-sanitizer, cuda-gdb, errors that stay. Read chapters [4](04_vector_add.ipynb), [12](12_matmul.ipynb) and
# [16](16_transpose.ipynb) before. 60 minutes. PMPP 4e: sections 2.4 and 4.3; 5e: chapters 2 and 4. The code is
# [pmpp/kernels/debugging/bugs.py](../pmpp/kernels/debugging/bugs.py).*
#
# A program on the CPU that goes wrong usually says so: an exception, a line number. A kernel that goes wrong mostly
# says nothing. It leaves numbers in memory, and some of them are not the right ones. Or all of them are right, today.
#
# **The question of this chapter: how do you get from "the result is wrong" to the line that is wrong?** You will have
# a method, and for each kind of bug the instrument that names it, in the interpreter and on a GPU.

# %%
import timeit
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from pmpp import cuda, predict, simt
from pmpp.kernels.debugging.bugs import CASES, add_asserting, announce, bug
from pmpp.kernels.debugging.exercises import edges_start, maximum_start, roll_start, slope_start
from pmpp.lab.draw import palette
from pmpp.lab.draw.stepper import step
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import debugging
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE | {"axes.grid": False})  # the workbook's look
record = debugging.recorded()
print(device.describe().splitlines()[0])

# %% [markdown]
# ## A wrong picture
#
# Somebody has written the transpose of chapter 16, with a tile in shared memory, and tried it on a photograph. A map of
# the error stands beside the result: white where the result is right.

# %%
transpose, TILE = bug("wrong index").kernel, 32
photograph = data.photograph().mean(axis=2).astype(np.float32)[40:200, 150:310].copy()
turned = np.zeros_like(photograph)
simt.profile(transpose, (5, 5), (TILE, TILE), (photograph, turned), level="run")

ERRORS = LinearSegmentedColormap.from_list("errors", ["white", palette.WRONG])
figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.9), layout="constrained")
for ax, (title, picture) in zip(axes, {"what should come": photograph.T, "what came": turned}.items(), strict=False):
    ax.set(title=title, xticks=[], yticks=[])
    ax.imshow(picture, cmap="gray")
axes[2].set(title="|error|", xticks=range(0, 160, TILE), yticks=range(0, 160, TILE))
drawn = axes[2].imshow(np.abs(turned - photograph.T), cmap=ERRORS)
axes[2].set(xlabel="column", ylabel="row")
bar = figure.colorbar(drawn, ax=axes[2], shrink=0.8, label="grey levels")

# %% [markdown]
# The errors have straight edges, 32 apart. So they have to do with tiles. The five tiles on the diagonal are right, and
# no other tile is. That is already half of the diagnosis, and nobody has read the kernel yet.
#
# ## The method
#
# 1. **Reproduce.** Find the smallest input that fails, and one nearby that does not.
# 2. **Compare** with a slow and obvious reference, element by element. Which elements are wrong? By how much? The same
#    ones in the next run?
# 3. **Suspect.** The pattern of the wrong elements suggests a cause. Say it as a sentence that can be false.
# 4. **Ask an instrument** that would show it: a print, a profile, or a *sanitizer*. That is a tool that watches the
#    accesses and barriers of a kernel and reports what the rules forbid. The interpreter's level "check" is one.
# 5. **Mend** the cause, and nothing else.
# 6. **Keep the input.** It becomes a test, because bugs come back.
#
# The order matters. Whoever starts at step 5 changes lines until the symptom goes away, and with a race it goes away
# by itself now and then.
#
# We go through the steps with the transpose. First the smallest input. The input counts up, so that each value says
# where it comes from. A tile has 32 x 32 elements.

# %%
for n in (31, 32, 33, 64, 96):
    x, out = np.arange(n * n, dtype=np.float32).reshape(n, n), np.zeros((n, n), np.float32)
    tiles = -(-n // TILE)
    report = simt.profile(transpose, (tiles, tiles), (TILE, TILE), (x, out), level="check")
    print(f"{n} x {n}: {np.count_nonzero(out != x.T):5,} of {n * n:5,} elements are wrong")

# %% [markdown]
# With 32 x 32 all is right, and with 33 x 33 it is not: the bug needs a second tile. Of nine whole tiles six are wrong,
# those that are not on the diagonal.
#
# Now compare. The last launch had 96 x 96 elements, and x[row, column] is 96 * row + column. out[0, 40] should be
# x[40, 0]. What stands there is a number, and the number names the element that it came from.
#
# **Predict, then run.** The tiles on the diagonal are right. From which row of x, and which column, does the element
# in out[0, 40] come?

# %%
guess = {"row": None, "column": None}  # of x

row, column = divmod(int(out[0, 40]), 96)
predict(guess, {"row": row, "column": column})

# %% [markdown]
# It comes from x[8, 32], which is element (8, 0) of the tile of x at the same place, and now stands at (0, 8) of it. So
# here is the sentence that can be false: *each tile is transposed, and is written back to where it came from*. The
# kernel has to agree:

# %%
show(transpose)

# %% [markdown]
# It does. `row` and `column` are those of the load, and the store uses them again. With 96 x 96 elements no access is
# outside of an array, all barriers are there, and each element is written once. No sanitizer can find this, because
# nothing that the kernel does is forbidden. It is only not what was wanted. In the report of that launch there is no
# *hazard*, which is the interpreter's word for something forbidden. In the report of the smallest input that fails
# there is one:

# %%
print("96 x 96:", [hazard.message for hazard in report.hazards])
x, out = np.arange(33 * 33, dtype=np.float32).reshape(33, 33), np.zeros((33, 33), np.float32)
report = simt.profile(transpose, (2, 2), (TILE, TILE), (x, out), level="check")
print("33 x 33:", *(hazard.message for hazard in report.hazards), sep="\n   ")

# %% [markdown]
# In a tile that is not full the swapped place is one that nobody has written. So awkward sizes do not find missing
# guards alone. They can also turn a wrong index into a forbidden access.
#
# The kernel below is mended. Between the barrier and the store it computes the place of the tile anew, with the
# block's indices swapped. The inputs that failed are now a test, with others beside them that are no whole tiles.

# %%
mended = bug("wrong index").mended
for rows, columns in ((32, 32), (64, 64), (96, 96), (1, 1), (33, 70), (70, 33)):
    x, out = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns), np.zeros((columns, rows), np.float32)
    grid = -(-columns // TILE), -(-rows // TILE)
    simt.profile(mended, grid, (TILE, TILE), (x, out), level="check")
    assert np.array_equal(out, x.T), (rows, columns)
print("right on all six shapes")
show(mended)

# %% [markdown]
# ## Patterns
#
# The pattern of the wrong elements is the cheapest instrument that there is. Here are three more bugs. `CASES`, a
# list in the chapter's file, has each bug with a launch that shows it. The last two of the four pictures are of one
# kernel, with the warps running in two different orders.


# %%
def wrong_at(name, shape, **options):
    """Where the result of a bug is wrong, as a picture of this shape, and how large the error is."""
    _, result, expected = debugging.interpret(bug(name), **options)
    error = np.abs(result.astype(np.float64) - expected).reshape(shape)
    return np.where(error > 0, 0.35 + 0.65 * error / max(error.max(), 1), 0)


overflow, lost = wrong_at("integer overflow", (64, 64)), wrong_at("lost updates", (4, 4))
late, again = (wrong_at("missing second barrier", (16, 256), schedule="shuffled", seed=seed) for seed in (0, 1))

# %% [markdown]
# The third kernel adds, for each thread, its own element of a part of x and its right neighbour's, part after part. A
# barrier is missing between reading a part and overwriting it with the next one. The interpreter runs the warps of a
# block in random order between barriers here (`schedule="shuffled"`), as a GPU may.
#
# **Predict, then run.** Thread t reads what threads t and t + 1 have written. Lanes of one warp run together. In which
# lane are the elements that come out wrong?

# %%
guess = None  # lane, 0 to 31

lanes = np.flatnonzero(late.any(axis=0)) % 32
predict(guess, int(np.median(lanes)))

# %%
print("lanes with a wrong element:", sorted({int(lane) for lane in lanes}))
patterns = {
    "integer overflow:\n4096 rows as 64 x 64": overflow,
    "lost updates:\n16 bins as 4 x 4": lost,
    "missing second barrier:\n16 blocks, 96 threads": late[:, :96],
    "missing second barrier,\nin another order": again[:, :96],
}
figure, axes = plt.subplots(1, 4, figsize=(7.8, 2.9), layout="constrained")
for ax, (title, picture) in zip(axes, patterns.items(), strict=True):
    ax.imshow(picture, cmap=ERRORS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_title(title, fontsize=9)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=palette.EDGE)

# %%
_, counted, expected = debugging.interpret(bug("lost updates"))
print("counted: ", *(f"{value:5}" for value in counted))
print("expected:", *(f"{value:5}" for value in expected))

# %% [markdown]
# White is right, and darker is further off.
#
# - *Integer overflow*: right up to one place, wrong from there on. The place is a power of two.
# - *Lost updates*: all counts are too small, none is too large, and empty bins are right. In the interpreter all
#   threads load the same 0 before any of them stores its 1.
# - *Missing second barrier*: the last lane of each warp, the only one whose neighbour belongs to another warp. A block
#   is a row here, and its first three warps are shown. How wrong they are differs with the order of the warps.
#
# An error that is another one in every run is a matter of order: a race, or memory that nobody has set. An error that
# is always the same one is a matter of arithmetic: an index, a size, a type. So run a launch more than once. If the
# results differ, it is a matter of order. If they agree, it may still be one.
#
# The overflow is the second bug of which no sanitizer knows. A print tells. In a kernel every thread would print, so
# let a single one do it: the first one that is wrong.

# %%
_, result, expected = debugging.interpret(bug("integer overflow"))
first_wrong = int(np.flatnonzero(result != expected)[0])


@cuda.jit
def talk(width, suspect):
    row = cuda.grid(1)
    if row == suspect:
        print("row", row, "starts at", row * width, "and as int32 at", np.int32(row * width))


report = simt.profile(talk, 16, 256, (2**20, first_wrong), level="run")

# %%
show(bug("integer overflow").kernel)

# %% [markdown]
# `np.int32(...)` cut the product to 32 bits. People who come from CUDA C write it out of habit. In Numba the product
# of two int32 is an int64, and an offset stays right, until it is stored in an int32 variable or array. 2,048 rows of
# 2^20 elements are 8 GiB of float32, so this shows on large inputs alone. The pattern is what gives it away.
#
# ## What the interpreter names
#
# Most bugs break a rule. The interpreter knows the rules, and watches every access at level "check". We ask it about
# the bugs one by one: what does the message say, and how is it read?
#
# ### Outside of an array

# %%
show(bug("missing guard").kernel)

# %% [markdown]
# The launch has 4 blocks of 256 threads for 1,000 elements, and the guard is missing. In the interpreter this always
# raises an exception, at every level: `OutOfBoundsError`, an `IndexError`. With `collect=True` the launch goes on, the
# loads give 0, and the report has the message beside its line.
#
# **Predict, then run.** Are the 1,000 elements of the result right all the same? Write True or False.

# %%
guess = None  # True or False

report, result, expected = debugging.interpret(bug("missing guard"))
predict(guess, bool(np.array_equal(result, expected)))

# %%
report

# %% [markdown]
# Each thread below 1,000 did its work, and 24 threads did something else besides. A test of the result passes, here and
# on most GPUs. Read a message from its end: *which index was valid*, 0 to 999; *which one came*, 1,000; *who*, thread
# 232 of block 3; *where*, the line. 3 * 256 + 232 is 1,000: the first thread too many. So it is the guard, and not a
# wild index.
#
# The next one has a guard. It reads column 5 of a matrix of 2048 x 2048 numbers, which is stored row after row, so
# `width` is 2048.

# %%
show(bug("bytes for elements").kernel)

# %%
report, _, _ = debugging.interpret(bug("bytes for elements"))
for hazard in report.hazards:
    print(hazard.message)

# %% [markdown]
# A block has 256 threads, so thread 0 of block 2 has row 512. It should read element 512 * 2048 + 5, which is about a
# million, and it reads the element at four times that. Four is the size of a float32: the pitch was counted in bytes,
# and an index counts elements. Row 512 is the first one that leaves the array, and only just. The last row, 2047,
# asks for an element at nearly four times the length of the array. A missing guard stays near the end of its array:
# there it was the next 24 elements. This bug goes far outside, and that makes a difference on a GPU.
#
# ### Order

# %%
report, result, expected = debugging.interpret(bug("missing barrier"))
print("right in lockstep:", np.array_equal(result, expected))
report

# %% [markdown]
# The message names both ends: thread 0 *reads* what thread 255 *wrote* on the line before, *with no barrier in
# between*. The remedy is one line between these two. And the result is right: in lockstep all threads do the first line
# before any of them does the second. So no test of the result can find it in lockstep, and on a GPU a test finds such a
# bug if the warps happen to run in a bad order. The hazard is found every time.
#
# A small launch can be stepped through. Here one warp runs after the other, which a GPU may do as well: in step 4
# warp 0 reads what nobody has written yet, and each race is shown as the two accesses that make it.

# %%
x, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
step(bug("missing barrier").kernel, 1, 256, (x, out), schedule="warps")

# %% [markdown]
# Use the buttons, or the arrow keys. The result is wrong this time: the first half of it is what warps 0 to 3 read too
# early. Warps 4 to 7 find what they read, because the warps before them are done. Nothing in the kernel guarantees
# that.
#
# The missing second barrier from above:

# %%
show(bug("missing second barrier").kernel)
report, _, _ = debugging.interpret(bug("missing second barrier"))
print(*(hazard.message for hazard in report.hazards), sep="\n")

# %% [markdown]
# Thread 0 *writes* what thread 255 *read* earlier: in the next trip of the loop, although the line of the write comes
# first in the source. A barrier in a loop orders what is above it with what is below, but the end of one trip and the
# beginning of the next are neighbours, too. It takes a second barrier, at the end of the trip.
#
# The lost updates are another case:

# %%
show(bug("lost updates").kernel)
report, _, _ = debugging.interpret(bug("lost updates"))
print(*(hazard.message for hazard in report.hazards), sep="\n")

# %% [markdown]
# Here the threads are of different blocks, *with nothing that orders the two blocks*. No barrier helps
# there. `bins[v] += 1` is a load, an addition and a store, and another thread's store in between is lost. It takes
# `cuda.atomic.add`.
#
# ### Barriers
#
# A sum of each block by halves. The programmer had learnt that a barrier is needed after each step, and has put one
# there.

# %%
report, result, expected = debugging.interpret(bug("barrier in a branch"))
print("right in lockstep:", np.array_equal(result, expected))
report

# %% [markdown]
# `cuda.syncthreads()` is a promise that *all* threads of the block come to it. In the branch only half of them do. What
# a GPU makes of that is undefined: it may wait for ever, or go on with too few. Move the barrier out of the `if`.
#
# The next kernel makes a barrier of its own for the whole grid: each thread counts itself, and waits until all
# threads of the launch have been counted. The launch has 2 blocks of 32 threads for 40 elements, so 24 threads return
# at the guard. The others wait for ever. The interpreter lets the warps run by turns, and sees that nobody is left
# who could end the wait.

# %%
show(bug("waits for ever").kernel)
try:
    debugging.interpret(bug("waits for ever"))
except simt.SimtError as error:
    print(str(error).rpartition("/")[2])

# %% [markdown]
# ### What nobody has written

# %%
report, _, _ = debugging.interpret(bug("unset shared memory"))
report

# %% [markdown]
# Shared memory is not zero when a block begins. It holds what the block before has left. The message names a read,
# since a read is what goes wrong; the mistake is a line that is *not there*, before it. The same holds for
# `cuda.device_array`, which allocates and does not clear. Here is a kernel that adds up the columns of a matrix in
# `out`, which nobody has set:

# %%
show(bug("unset global memory").kernel)
report, _, _ = debugging.interpret(bug("unset global memory"))
print(*(hazard.message for hazard in report.hazards), sep="\n")

# %% [markdown]
# The last one breaks no rule, and the report has a warning in the place of a hazard:

# %%
show(bug("accidental float64").kernel)
report, _, _ = debugging.interpret(bug("accidental float64"))
print(*(warning.message for warning in report.warnings), sep="\n")

# %% [markdown]
# The float64 is no error, and its result is right. But on a consumer's GPU arithmetic in float64 is many times slower
# ([chapter 20](20_memory_or_compute.ipynb)). It is in this list because it is found in the same way.
#
# `CASES` has twelve bugs: those of this section, the transpose and the overflow. Eleven of them come to an end.
#
# **Predict, then run.** How many of the eleven leave a right result, when the threads run in lockstep?

# %%
guess = None  # bugs

right = {}
for case in CASES:
    if not case.hangs:
        _, result, expected = debugging.interpret(case)
        right[case.name] = np.array_equal(result, expected)
predict(guess, sum(right.values()), unit="bugs")

# %%
says = {case.name: debugging.says(case) for case in CASES}
for name, said in says.items():
    result = {True: "right", False: "wrong", None: "none"}[right.get(name)]
    print(f"{name:24}result {result:8}level check: {said or '-'}")

# %% [markdown]
# The two with a dash break no rule in these launches. They are found by comparing, and by nothing else. Those with a
# right result are found by level "check", and by nothing else. So a sanitizer does not replace a reference, nor a
# reference a sanitizer.
#
# ## On a GPU
#
# The hardware checks almost nothing. The same twelve launches on a GPU, ten times each, with no tool; the number of
# wrong elements is compared with the reference.

# %%
if record is None:
    print(debugging.missing(record))
else:
    print(f"{record['about']['gpu']['name']}, {record['about']['run']['date'][:10]}")
    for name, entry in record["bugs"].items():
        print(f"{name:24}{debugging.alone(entry)}")

# %% [markdown]
# There are four things that a GPU does with a bug.
#
# - **Nothing.** The result is right. An access just behind an array hits memory that belongs to nobody, or to another
#   array of yours. A race happens to go well.
# - **A wrong result**, without a word. It may differ from launch to launch.
# - **An error** that has no line: `CUDA_ERROR_ILLEGAL_ADDRESS` if an address is not mapped at all. It takes an index
#   that is far out.
# - **A hang.** Nothing comes back, and Ctrl-C does not reach the kernel. The process must be ended.
#
# ### Errors that come late, and stay
#
# A launch returns before the kernel has begun. So the error of a kernel is reported by some *later* call, one that is
# innocent. First without waiting, then with a `cuda.synchronize()` after the launch:

# %%
print(debugging.steps(record, "late"))

# %%
print(debugging.steps(record, "sticky"))

# %% [markdown]
# To find out which launch it was, wait after each of them. The first call that raises stands right behind the culprit.
# The environment variable `CUDA_LAUNCH_BLOCKING=1` does the same without a change to the program.
#
# Such an error is *sticky*. The context, which is all that the process has on the GPU, is broken for good: each later
# call fails with the same words, right kernels too. In a notebook nothing helps but to restart the kernel of the
# notebook. That is why each bug of the record has been launched in a process of its own.
#
# ### print and assert
#
# `print` works in kernels on a GPU. The text goes into a buffer on the device, and comes out when the host
# synchronises. The order of blocks and warps in it is the order of their execution, which means any. If the buffer is
# full, the oldest lines are lost. This kernel prints a line for each warp:

# %%
show(announce)
print(debugging.printed(record))

# %% [markdown]
# In Python a failing `assert` ends the program. In a kernel it ends its thread, without a word. Here that would even do
# what the missing guard should have done. Compiled with `@cuda.jit(debug=True, opt=False)`, a thread that fails writes
# down its place, and the launch waits for the kernel and raises an exception. Numba has no check of bounds for CUDA, so
# write the assertion yourself. (The interpreter raises in any case.)

# %%
show(add_asserting)
print(debugging.asserted(record))

# %% [markdown]
# ### compute-sanitizer
#
# NVIDIA's compute-sanitizer comes with the CUDA toolkit (`/usr/local/cuda/bin`). It changes the machine code while it
# is loaded, so that each access is looked at. Each of its tools looks for one kind of bug:
#
# ```
# compute-sanitizer --tool memcheck  python script.py     # out of bounds, misaligned
# compute-sanitizer --tool racecheck python script.py     # races in shared memory
# compute-sanitizer --tool initcheck python script.py     # device memory that nobody wrote
# compute-sanitizer --tool synccheck python script.py     # barriers that not all threads reach
# ```
#
# Three things are worth knowing with Numba. Compile with `@cuda.jit(lineinfo=True)`, or the report has no lines. Add
# `--report-api-errors no`, or it is full of calls by which Numba asks what the driver can do. And `initcheck
# --initcheck-address-space shared` looks at shared memory, in the versions that know it.
#
# What memcheck says about the missing guard:

# %%
print(debugging.told(record, "missing guard", "memcheck"))

# %% [markdown]
# The message has the same parts as the interpreter's, in other words: what was done, where, by which thread, and how
# far behind which allocation. memcheck knows addresses, and no names of arrays. `4,000 bytes` is how you recognise the
# array of 1,000 floats. And racecheck about the two missing barriers:

# %%
for name in ("missing barrier", "missing second barrier"):
    print(debugging.told(record, name, "racecheck"), end="\n\n")

# %% [markdown]
# **Predict, then run.** racecheck watches shared memory only. The interpreter has named three races. How many of them
# can racecheck find?

# %%
guess = None  # races

reports = [debugging.interpret(case)[0] for case in CASES if not case.hangs]
races = [hazard for report in reports for hazard in report.hazards if hazard.kind == "race"]
predict(guess, sum(hazard.space == "shared" for hazard in races), unit="races")

# %% [markdown]
# The lost updates are in device memory. All bugs, all tools; the interpreter's column was made just now:

# %%
debugging.table(record, says) if record else print(debugging.missing(record))

# %% [markdown]
# A dash: the tool was silent. *missing*: this version of the tool does not know the option. A tool that is silent has
# not said that the kernel is right. It has said that it saw nothing of its kind in this launch. So synccheck, whose
# subject they are, is silent about the barrier in a branch; the machine code need not have that branch any more. Each
# row with a dash under all tools is a bug that only a comparison, or only the interpreter, has found.
#
# ### cuda-gdb
#
# A debugger stops where it happens. `cuda-gdb --args python script.py`, then `run`: it stops at the illegal address,
# says in which kernel, block, thread and line, and `info cuda kernels` and `print i` look around. It needs
# `debug=True, opt=False` for variables, and for a breakpoint the name that Numba gives to the kernel. It is the last
# resort, for a kernel that hangs above all: Ctrl-C in cuda-gdb stops all warps, and `info cuda warps` shows where they
# wait.

# %%
print(debugging.debugged(record))

# %% [markdown]
# ## What checking costs
#
# Why is not everything checked all the time? The same sum of a matrix's rows, by NumPy on the CPU of the computer
# that executes this notebook, and by the mended kernel in the interpreter at its three levels: `run` only executes
# the kernel, `count` also counts, and `check` also looks for hazards.

# %%
case = bug("unset global memory")
matrix, total = np.ones((20, 50_000), np.float32), np.zeros(50_000, np.float32)


def fastest(statement):
    """Seconds of the fastest of five calls."""
    return min(timeit.repeat(statement, number=1, repeat=5))


took = {"NumPy": fastest(lambda: matrix.sum(axis=0, out=total))}
for level in ("run", "count", "check"):
    blocks = -(-total.size // case.block)
    took[level] = fastest(partial(simt.profile, case.mended, blocks, case.block, (matrix, total), level=level))

# %%
figure, ax = chart(2.9)
watched = debugging.slowdowns(record)
rows = [("NumPy", "D", took["NumPy"] / took["run"])]
rows += [(f"interpreter, {level}", "o", took[level] / took["run"]) for level in ("run", "count", "check")]
rows += [(f"GPU, {name}", "s", factor) for name, factor in watched.items()]
for place, (_, mark, factor) in enumerate(rows):
    ax.plot(factor, place, mark, color=palette.COLOURS["oDs".index(mark)])
    ax.annotate(
        f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}",
        (factor, place),
        (8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )
ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
ax.set(xscale="log", xlabel="times as long as without checks", title="What checking costs")
ax.set_xlim(rows[0][2] / 2, 4 * max(factor for _, _, factor in rows))
ax.invert_yaxis()
ax.grid(axis="x")
figure

# %% [markdown]
# In the interpreter counting and checking take a few times as long as a plain run. The plain run is already far behind
# NumPy, which does the same sum without following a thread for each column. Where there is a record, squares show a
# launch on a GPU, of 4 million elements, against the same launch without a tool. A process under a tool also needs
# seconds to start. There is no roof in this figure: a check is no work of the kernel, so there is no least number of
# bytes or operations to compare with.
#
# In practice: check small inputs always, in every test. Check large ones when something looks wrong. Never time
# anything under a tool.
#
# ## What to take along
#
# | Symptom | Suspicion | Instrument |
# |---|---|---|
# | only the end is wrong, or sizes that fill no block | guard, rounding of the grid | level "check", memcheck |
# | whole tiles are wrong, with straight edges | block index, origin of the tile | map of the error, counting input |
# | every 32nd element, or where warps meet | barrier between warps | level "check", racecheck |
# | another error in every run | race, or memory that nobody set | run twice; racecheck, initcheck |
# | counts too small | update without an atomic | level "check"; racecheck is blind here |
# | values that look like leftovers, or NaN | unset memory | level "check", initcheck |
# | right up to a power of two | integer overflow | compare large sizes, print |
# | right, and slow | float64 | `report.warnings` |
# | an error at a harmless call | an earlier kernel, far outside | `cuda.synchronize()` after each launch, memcheck |
# | nothing comes back | a barrier or loop that waits for a thread that left | interpreter, synccheck, cuda-gdb |
#
# - Find the smallest input that fails before you read the kernel, and look at which elements are wrong.
# - A right result proves neither a guard nor an order. A silent tool proves no index.
# - Wait for a launch before you blame the next line, and restart after an illegal address.
# - Keep the input that showed the bug.
#
# ## Exercises
#
# Four kernels to mend. Each has a bug that the text has not shown in this form. `check` on the kernel as it stands
# says what it finds first.

# %%
exercise("debugging/edges")

# %%
show(edges_start)


# %%
@cuda.jit
def edges(x, out):
    pass  # your code


check("debugging/edges", edges)

# %%
exercise("debugging/maximum")

# %%
show(maximum_start)


# %%
@cuda.jit
def maximum(x, out):
    pass  # your code


check("debugging/maximum", maximum)

# %%
exercise("debugging/roll")

# %%
show(roll_start)
x, out = np.arange(1000, dtype=np.float32).reshape(20, 50), np.zeros((20, 50), np.float32)
report = simt.profile(roll_start, (4, 3), (16, 8), (x, 13, out), level="check")
print("hazards:", report.hazards)


# %%
@cuda.jit
def roll(x, by, out):
    pass  # your code


check("debugging/roll", roll)

# %%
exercise("debugging/slope")

# %%
show(slope_start)


# %%
@cuda.jit
def slope(x, out):
    pass  # your code


check("debugging/slope", slope)

# %% [markdown]
# **Without a check.** (a) A kernel is right under cuda-gdb and under racecheck, and wrong without them. What do you
# suspect? (b) A test fails on the GPU about once in fifty runs, and level "check" is silent on the test's input. What
# do you do next? (c) After `CUDA_ERROR_ILLEGAL_ADDRESS` in cell 12 you mend the kernel and run cell 12 again. Why does
# it fail in the same way?
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def edges_answer(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[min(i + 1, x.size - 1)] - x[max(i - 1, 0)]


assert check("debugging/edges", edges_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def maximum_answer(x, out):
    part, thread = cuda.shared.array(128, np.float32), cuda.threadIdx.x
    part[thread] = x[min(cuda.grid(1), x.size - 1)]  # the last element again and again: it never wins unjustly
    stride = 64
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


assert check("debugging/maximum", maximum_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def roll_answer(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, (column - by) % x.shape[1]]


assert check("debugging/roll", roll_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def slope_answer(x, out):
    part, thread, row = cuda.shared.array(128, np.float32), cuda.threadIdx.x, cuda.blockIdx.x
    for first in range(0, x.shape[1], 128):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()  # all have written
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else x[row, max(column - 1, 0)]
            out[row, column] = part[thread] - left
        cuda.syncthreads()  # all have read


assert check("debugging/slope", slope_answer)

# %% [markdown]
# - *Edges.* `check` names the access behind the end. Once that is mended it names the negative index, which raises no
#   exception and reads the last element.
# - *Maximum.* If the last block is not full, elements of `part` are read that nobody has written. A 0 there would be
#   right for positive numbers alone.
# - *Roll.* It is right if there are as many rows as columns. Only a comparison, with another shape, shows the bug.
# - *Slope.* First the barrier that only a part of the block reaches. Then the race between the end of one trip and the
#   beginning of the next. Then, in a row shorter than a part, `part[BLOCK - 1]`, which nobody has written. Reading the
#   element before the part from `x` mends the last one.

# %% [markdown]
# *Without a check.* (a) A race: tools and debuggers change the order and the timing. (b) Look for an input that goes
# another way through the kernel: level "check" sees only the branches that were taken. Print the input when the test
# fails, and give that one to the interpreter. If it is silent there as well, suspect what it does not know: two
# launches on different streams, or the host that reads before the GPU is done. (c) The error is sticky. The context of
# the process is broken, and the mended kernel cannot run in it. Restart, and run from the top.
#
# Go on with [chapter 20](20_memory_or_compute.ipynb), which asks of a kernel what it waits for, before it runs.
