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
# # 91. A small fusing compiler
#
# *Bytes before and after fusion, tracing, common subexpressions, a rule for grouping, generated source, reductions
# inside a kernel, what fusion cannot mend, `torch.compile`. You need chapters 20, 50, 54, 82 and 88; it takes 75
# minutes. PMPP 4e: chapters 3, 6, 10 and 16; 5e: chapters 3, 6, 10 and 20. The code is in
# [pmpp/nn/fuse/](../pmpp/nn/fuse/__init__.py): [tracing](../pmpp/nn/fuse/tracing.py),
# [group](../pmpp/nn/fuse/group.py), [source](../pmpp/nn/fuse/source.py) and
# [compiled](../pmpp/nn/fuse/compiled.py).*
#
# The rooms of softmax, layer normalisation and AdamW were written by hand. Each is fast for the same reason: it reads
# every element once, does all that is to be done, and writes the result once. An array library cannot do that. It has a
# kernel for `+`, one for `*` and one for `exp`, and between two kernels every value goes to memory and back.
#
# Nobody wants to write a room for each formula. **The question of this chapter: can a program read a formula, written
# as if for NumPy, and write the kernel that we would have written?** Such a program is a compiler, and what it does
# here is called *fusion*. `torch.compile`, XLA and TVM do it for whole networks. Ours is small enough to be read in one
# sitting.

# %%
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np

from pmpp import predict, simt
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import roofline
from pmpp.lab.measure.record import RecordError
from pmpp.lab.teach.source import show
from pmpp.nn.fuse import Graph, Part, TraceError, alone, elementwise_only, errors, examples, fuse, fused, group, trace
from pmpp.nn.fuse.exercises import check_bytes, check_operation, check_rule, rms_norm
from pmpp.nn.fuse.picture import draw
from pmpp.nn.fuse.tracing import REDUCTIONS
from pmpp.nn.measure import fusing, recorded
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound: bytes
#
# This is what follows the first product of a transformer's layer: a bias is added, GELU is applied, and dropout
# multiplies by a mask.

# %%
show(examples.gelu_with_mask)

# %% [markdown]
# `x`, `mask` and the result have shape (rows, n), and `b` has n elements, which are repeated for each row. An array
# library runs a kernel for each operation. `y**3` is two products for us.
#
# **Predict, then run.** Count 4 bytes for each element that a kernel reads or writes; an array that is read twice by
# one kernel counts once, and `b` is too small to count. How many bytes does one element of the result cost, if every
# operation is a kernel?

# %%
guess = None  # bytes

rows, n = 64, 1024
x, b = fusing.normal(rows, n), fusing.normal(n, seed=1)
mask = np.float32(fusing.normal(rows, n, seed=2) > -1)
unfused = fuse(examples.gelu_with_mask, rule=alone)
predict(guess, round(unfused.program(x, b, mask).nbytes / x.size), unit="bytes")

# %% [markdown]
# Eleven kernels. Seven of them read one large array and write one, the other four read two. With a single kernel,
# what remains is `x`, `mask` and the result.

# %%
one = fuse(examples.gelu_with_mask)
for name, function in (("a kernel an operation", unfused), ("fused", one)):
    program = function.program(x, b, mask)
    print(f"{name:<22} {len(program.parts):>3} kernels, {program.nbytes / x.size:5.1f} bytes an element")
steps, ceilings = len(unfused.program(x, b, mask).parts), roofline.ceilings("vector_add")
intensity = steps * x.size / program.nbytes
print(f"\nfused, {intensity:.1f} operations a byte; the ridge is at {ceilings.ridge:.1f} ({ceilings.source})")

# %% [markdown]
# Even fused, the work is far below the ridge: memory is the bound. So time goes with bytes, and the ratio of the bytes
# is the speed that fusion can give, as long as there is work for the whole GPU.
#
# ## Tracing: run the function once, on nothing
#
# A compiler needs the formula as data. It could read the source. It is easier to *run* the function, and to give it
# arguments that write down what happens to them. That is how the tape of chapter 88 saw the forward pass. Ours are even
# simpler: they have a shape, but no elements. Here is the idea in a dozen lines.


# %%
class Noted:
    """Knows its name, and notes each operation as a line."""

    lines, numbers = [], itertools.count()

    def __init__(self, name):
        self.name = name

    def note(self, formula):
        made = Noted(f"v{next(Noted.numbers)}")
        Noted.lines.append(f"{made.name} = {formula}")
        return made

    def __add__(self, other):
        return self.note(f"{self.name} + {other.name}")

    def __mul__(self, other):
        return self.note(f"{self.name} * {other.name}")


# %%
x0, b0 = Noted("x"), Noted("b")
result = (x0 + b0) * (x0 + b0)
print("\n".join(Noted.lines))

# %% [markdown]
# These lines could be pasted into a kernel as they are. One thing should be better: `x + b` is there twice. The real
# `Graph` keeps a dictionary from an operation and its operands to the value that was made. The same operation on the
# same operands *is* the same value. This is how a compiler finds *common subexpressions*.

# %%
show(Graph.note)

# %% [markdown]
# Functions must work, too: `np.exp(x)` is NumPy's own. But before NumPy computes, it asks its argument: if that has a
# method `__array_ufunc__`, NumPy calls it and does nothing itself. So a function that was written for NumPy can be
# traced without a change. It stays a NumPy function as well, and in float64 it is our reference.

# %%
graph = trace(examples.softmax, ["x"], [(64, 1024)])
print(*graph.values, sep="\n")

# %% [markdown]
# Five operations. Each line has a number, the operation, its operands and the shape. `max` and `sum` leave (64, 1): one
# number for each row.
#
# What can tracing not see? Python's own decisions. An `if` asks a value whether it is true. There is no answer: the
# elements are not known yet, and each of them could have another one. Some tracers take one branch silently. Ours
# refuses, and says what to write.

# %%
try:
    fuse(lambda x: x if x > 0 else 0.01 * x)(x)
except TraceError as error:
    print(error)

# %% [markdown]
# An `if` on a *shape*, or a loop of fixed length, is no problem: Python runs it while the function is traced, and the
# graph has what it did.
#
# A number in the text, such as 0.5, becomes part of the kernel. A number that is an *argument* stays one. That matters:
# the corrections of AdamW change in every step, and a compiler that took them for constants would compile every step.
#
# ## Which operations share a kernel?
#
# Two operations can share a kernel if the thread that needs a value also has it. For elementwise operations that is
# always so. A reduction is another matter: the second line of softmax needs the maximum of the whole row. The
# simple answer is to end the kernel there. These are three rules, and what each makes of softmax.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 5))
for ax, rule in zip(axes, (alone, elementwise_only, fused), strict=True):
    parts = rule(graph)
    draw(ax, graph, parts, f"{rule.__name__}: {len(parts)} kernel{'s' * (len(parts) > 1)}")
plt.show()

# %% [markdown]
# A colour and a number stand for a kernel, and a thick edge means that the value goes to memory. On the left every
# operation is on its own. In the middle chains of elementwise operations are together, and each reduction is a kernel,
# so the exponentials go to memory for the sum. On the right there is one kernel, and only the result is written.
#
# Why is the right one possible? In chapter 50 a row belonged to one warp or one block. Its threads hold all elements of
# the row, and a reduction over the row ends *within* them. The next operation on the same row can follow at once. So
# the rule says: an operation has a *space*, the shape of what it goes through. **What goes through the same space,
# shares a kernel. A reduction over another space ends it.**

# %%
show(group.fused)

# %% [markdown]
# Here is a function in which the rule has to separate. The weights of each layer are scaled to length 1 before they are
# used (*weight normalisation*):


# %%
def weight_norm(x, w):
    return x * (w / np.sqrt(np.sum(w * w, axis=-1, keepdims=True)))


# %% [markdown]
# `x` has shape (rows, n), and `w` has n elements.
#
# **Predict, then run.** How many kernels does the rule make of it?

# %%
guess = None  # kernels

predict(guess, len(fuse(weight_norm).program(x, b).parts), unit="kernels")

# %%
two = trace(weight_norm, ["x", "w"], [x.shape, b.shape])
for part in fused(two):
    print(f"over {part.space}, writes {', '.join(map(repr, part.targets))}")
figure, ax = plt.subplots(figsize=(5, 4))
draw(ax, two, fused(two), "weight_norm, fused")
plt.show()

# %% [markdown]
# Two. The sum goes over the n weights, and the rest over rows and columns. A block that holds a row of `x` has no
# reason to have all of `w` as well. So the first kernel writes one number. The root, and the quotient of the weights,
# are in the *second* kernel, and are computed again for each row. That costs arithmetic, and saves a kernel and an
# array: *recomputation*. Where memory is the bound it is nearly free.
#
# The rule is greedy, and does not always find the fewest kernels. Real compilers search, with prices for bytes,
# registers and arithmetic.
#
# ## The source
#
# Now the kernel is written. Arithmetic and memory are kept apart: a device function has what happens to one element,
# and the kernel moves vectors of 128 bits.

# %%
print(one.program(x, b, mask).source)

# %% [markdown]
# It is what we would have written in chapter 46. The index of the column is `i % 1024`. The length is a constant in
# the source, so the division costs a shift. Another length of rows would be another kernel. A function without
# broadcasting has no such constant, and one kernel serves all its sizes.
#
# The source is compiled with `exec`. But the interpreter reads source, as does Python when it prints a traceback. Both
# ask the module `linecache`, and there the compiler leaves the text under a name. So an error in a generated kernel has
# a file and a line. We launch it with a result that is too short:

# %%
program = one.program(x, b, mask)
kernel, about = program.kernels[0], program.written[0]
short = np.empty(2048, np.float32)
try:
    simt.profile(kernel, about.grid, about.block, (x.ravel(), b, mask.ravel(), short, about.extent), level="check")
except simt.OutOfBoundsError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# With reductions the kernel has *phases*. A phase goes over the row and ends in reductions. Those that do not depend
# on each other end together. The next phase goes over the row again.

# %%
row = fuse(examples.softmax)
print(row.program(fusing.normal(8, 256)).source.partition("LEAST")[2].partition("\n\n\n")[2])

# %% [markdown]
# A row of 256 has two vectors for each lane of a warp. They are loaded once, in the first phase, into `x_held`: a local
# array whose indices are constants after the loops are unrolled, and so registers. A row of more than 16,384 elements
# does not fit. Then each phase loads it again.
#
# `exp` occurs in both device functions. The exponentials could have been kept instead of `x`. The compiler prefers a
# simple rule: what was *loaded* is held, and everything else is computed again.
#
# **Predict, then run.** How many exponentials does the fused kernel compute for each element, and how many does the
# version with a kernel an operation?

# %%
guess = None  # exponentials an element, fused and alone

few = fusing.normal(8, 256)
texts = [fuse(examples.softmax, rule=rule).program(few).source for rule in (fused, alone)]
predict(guess, [text.count("math.exp(") for text in texts])

# %% [markdown]
# ## The bytes, counted
#
# The compiler says how many bytes its kernels need. The interpreter counts what they move.

# %%
small = {
    examples.gelu_with_mask: (x[:16], b, mask[:16]),
    examples.softmax: (x[:16],),
    examples.layer_norm: (x[:16], b, b),
    examples.adamw: (x[0], x[1], x[2], x[3] ** 2, 1e-3, 0.9, 0.999, 1e-8, 0.01, 0.1, 0.001),
}
print(f"{'':<16}{'rule':<20}{'kernels':>8}{'predicted bytes':>17}{'counted':>10}")
for function, arguments in small.items():
    for rule in (alone, elementwise_only, fused):
        counted = fusing.counted(function, rule, *arguments)
        moved = counted["global_load_bytes"] + counted["global_store_bytes"]
        nbytes = fuse(function, rule=rule).program(*arguments).nbytes
        print(f"{function.__name__:<16}{rule.__name__:<20}{counted['launches']:>8}{nbytes:>17,}{moved:>10,}")

# %% [markdown]
# Where a bias or one number of a row is read by many threads, more is counted than predicted: the counter has each
# request, and on a GPU a cache answers most of these. AdamW has neither, and both columns agree.
#
# Are the results right? A tolerance for any formula must be computed with the formula.
# [pmpp/nn/fuse/errors.py](../pmpp/nn/fuse/errors.py) carries a bound beside each value: what the operands' errors
# become, and the rounding of the operation itself.

# %%
for function, arguments in small.items():
    made = fuse(function)
    results = made(*arguments)
    results = [device.to_host(one) for one in (results if isinstance(results, tuple) else [results])]
    known = trace(function, made.names, [np.shape(one) for one in arguments])
    bounds = errors.bounded(known, dict(zip(made.names, arguments, strict=True)))
    error, tolerance = errors.worst(results, bounds)
    print(f"{function.__name__:<16} off by {error:.1e} where {tolerance:.1e} is allowed")

# %% [markdown]
# ## Measured
#
# `python -m pmpp.nn.measure.fusing` measures on a GPU: each function under three rules, the room that was written by
# hand, and PyTorch in three ways: as it runs the same text, compiled by `torch.compile`, and by its own function where
# it has one. A result that is farther from float64 than its tolerance allows has no time: the table says who failed,
# and by how much.

# %%
try:
    record = recorded("fusing")
    cases = {name: row for name, row in record["cases"].items() if not name.startswith("chain")}
    print(record["about"]["gpu"]["name"])
    print(fusing.table(cases))
except RecordError as missing:
    record, cases = None, {}
    print(missing)

# %%
if cases:
    figure, axes = plt.subplots(2, math.ceil(len(cases) / 2), figsize=(11, 6.5), layout="constrained")
    order = ["NumPy", "PyTorch", "unfused", "elementwise", "fused", "torch.compile",
             "PyTorch's own", "the room"]  # fmt: skip
    for ax, (name, row) in zip(axes.flat, cases.items(), strict=False):
        for place, one in enumerate(one for one in order if one in row["ms"]):
            own, ms = one in fusing.RULES, row["ms"][one]
            colour = palette.OWN if one == "fused" else palette.COLOURS[0] if own else palette.GREY
            ax.plot(ms, place, "o" if own else "s", color=colour)
            ax.text(ms, place, f"   {one}  {ms:,.{0 if ms >= 100 else 3}f}", va="center", fontsize=8)
        low, high = min(row["ms"].values()), max(row["ms"].values())
        ax.set(xscale="log", title=name, xlabel="ms", yticks=[], xlim=(low / 1.5, 60 * high))
        ax.invert_yaxis()
    plt.show()

# %% [markdown]
# Circles are kernels that our compiler wrote, squares are others. The axis is logarithmic: NumPy on the CPU is at its
# far end. Whether fusion kept its promise is a matter of two ratios: that of the bytes and that of the times.

# %%
for name, row in cases.items():
    bytes_ratio = row["bytes"]["unfused"] / row["bytes"]["fused"]
    times = row["ms"]
    if "fused" in times and "unfused" in times:
        time_ratio = times["unfused"] / times["fused"]
        share = row["bytes"]["fused"] / times["fused"] / 1e-3 / ceilings.bandwidth
        words = f"bytes {bytes_ratio:4.1f} to 1, times {time_ratio:4.1f} to 1, {share:4.0%} of a copy's bandwidth"
        rivals = [f"{who} {times[who] / times['fused']:.2f}" for who in ("torch.compile", "the room") if who in times]
        print(f"{name:<21}{words}; time over ours: {', '.join(rivals)}")

# %% [markdown]
# The bytes are those of the unfused kernels over those of the fused one, and so are the times. In the first
# four cases both ratios agree: fusion has kept its promise. The generated kernel is about as fast as that of
# `torch.compile`, and as the room where there is one. (A copy is a yardstick and not a limit. It writes as much as it
# reads, and GELU reads twice what it writes.)
#
# In the last two cases the compiler's limits show. Rows of 32,768 do not fit into the registers of a block, so each
# phase reads the row again. The prediction assumes one reading. The interpreter counts:

# %%
for length in (16384, 32768):
    long = fusing.normal(1, length)
    counted = fusing.counted(examples.softmax, fused, long)
    read, written = (counted[f"global_{way}_bytes"] // long.nbytes for way in ("load", "store"))
    print(f"rows of {length:,}: each element is loaded {read} x, stored {written} x")

# %% [markdown]
# Four passes instead of two: the fused kernel reaches about half of a copy's bandwidth, by the bytes that were
# predicted. It is still faster than the unfused kernels, but `torch.compile` and the room are faster. The room keeps
# such a row in registers, those of several blocks.
#
# With 16 rows it is worse: the fused kernel is *slower* than the unfused ones. A block holds a row, so 16 blocks run,
# on a GPU that has many more multiprocessors. All others are idle. Of the unfused kernels only the reductions have that
# fault; the elementwise ones go over all elements with as many blocks as they need. PyTorch's own softmax,
# too, takes longer here than PyTorch's single operations. The room gives a long row to several blocks, and so does
# `torch.compile`, which takes more kernels for that:

# %%
for name, row in cases.items():
    print(f"{name:<21}kernels: {', '.join(f'{who} {count}' for who, count in row['kernels'].items())}")

# %% [markdown]
# ## When fusion does not help
#
# Fusion removes bytes. It leaves arithmetic as it was, or adds to it. So it helps until arithmetic is the bound. The
# experiment: a chain of k steps `x = x * a + a`. Fused, it moves 8 bytes an element whatever k is, and computes 2 k
# FLOP. Otherwise each step has two kernels.
#
# **Predict, then run.** From which k on is the fused chain bound by arithmetic? Take the ridge from above.

# %%
guess = None  # steps

predict(guess, ceilings.ridge * 8 / 2, unit="steps", within=0.25)

# %%
chains = {k: record["cases"].get(f"chain of {k}") if record else None for k in fusing.CHAINS}
chains = {k: row for k, row in chains.items() if row}
if chains:
    size = math.prod(next(iter(chains.values()))["shapes"][0])
    figure, ax = plt.subplots(figsize=(7, 4.2))
    lines = ("unfused", "PyTorch", "torch.compile", "fused")
    for who, marker, line in zip(lines, palette.MARKERS, palette.LINES, strict=False):
        drawn = {k: row["ms"][who] for k, row in chains.items() if who in row["ms"]}
        colour = palette.OWN if who == "fused" else palette.GREY if "orch" in who else palette.COLOURS[0]
        ax.plot(drawn.keys(), drawn.values(), marker=marker, ls=line, color=colour, label=who)
    steps = np.geomspace(1, 256, 50)
    bound = 1e3 * np.maximum(8 * size / ceilings.bandwidth, 2 * steps * size / ceilings.fma_f32)
    ax.plot(steps, bound, color=palette.INK, lw=1, label="the roofline")
    ax.set(xscale="log", yscale="log", xlabel="steps in the chain", ylabel="ms", xticks=list(chains))
    ax.set_xticklabels([str(k) for k in chains])
    ax.legend()
    plt.show()
else:
    print("There is no record yet: on a GPU run python -m pmpp.nn.measure.fusing")

# %% [markdown]
# The line of the roofline is flat where memory is the bound, and rises where arithmetic is. On the flat part every step
# more is free for the fused kernel, and for that of `torch.compile`. The unfused kernels pay for each step, and so does
# PyTorch: their two lines lie on each other. At the bend the fused kernel begins to pay, too. There it lies above the
# roofline, because that assumes that arithmetic hides behind memory completely. Fusion still helps, but adding to the
# chain is no longer free. A matrix product has hundreds of FLOP a byte. To fuse the addition of a bias into it saves
# the bytes of that addition, which reads the product and writes the sum, and nothing else.
#
# Fusion can also do harm.
#
# - *Too few blocks.* A kernel is fused around its rows. If these are few, operations that could have used the whole GPU
#   run on a part of it. You have seen this with 16 rows.
# - *Registers.* A fused kernel holds more values at once. With too many, fewer warps fit on a multiprocessor, or values
#   spill into memory. `HELD` in `source.py` is a limit for this reason.
# - *Recomputation.* A value that two kernels need is computed in both. For a product that is cheap. For a long chain
#   over a large array it is not.
# - *Many results.* A kernel that reads ten arrays and writes ten has twenty streams through the caches.
# - *Compilation.* The first call compiles, which takes far longer than the kernel runs. Each new length of a row does
#   so again. For a function that runs a few times that is a loss.
#
# Recomputation can be seen without a GPU:

# %%
for rule in (alone, elementwise_only, fused):
    counted = fusing.counted(weight_norm, rule, x[:16], b)
    moved = counted["global_load_bytes"] + counted["global_store_bytes"]
    print(
        f"{rule.__name__:<18} {counted['flops']:>8,} FLOP, {moved:>9,} bytes asked for, {counted['launches']} kernels"
    )

# %% [markdown]
# The fused kernel computes the quotients of the weights for every row. That is nearly twice the arithmetic, for no more
# than two arrays of n elements. With few rows it does not matter, and with many rows memory is the bound, and it does
# not matter either. It would, if the value were a long chain instead of a quotient.
#
# ## What `torch.compile` does besides
#
# The steps are the same, and each goes further.
#
# - *Tracing* reads Python's bytecode (TorchDynamo). At an `if` on data it ends the graph, lets Python decide, and
#   begins the next graph: a *graph break*. It notes on what the trace depended (*guards*), and compiles anew when that
#   changes. After a few shapes it makes a length symbolic, where we have a constant.
# - *Gradients.* It traces the backward pass as well, and decides which values the forward pass keeps and which the
#   backward pass computes again.
# - *Grouping* has prices. It fuses along more than the last axis, joins independent kernels side by side, and reuses
#   the memory of arrays that are no longer needed.
# - *Source.* It writes Triton, whose programs work on tiles, and tries several tile sizes. Rows that are too long or
#   too few are split over several blocks.
#   A softmax that was written in Triton by hand is measured beside this workbook's and PyTorch's own on a
#   [page for practitioners](../docs/practitioners/README.md).
# - *Libraries.* Matrix products stay with cuBLAS, or with templates to which a fused end can be attached.
#
# ## What to take along
#
# - Between two kernels everything goes to memory. For operations that do little with each element, the bytes decide the
#   time if the GPU is full. Fusion divides the bytes.
# - A function can be traced by running it on values without elements. What Python decides meanwhile is not in the
#   graph.
# - What goes through the same space can share a kernel. A reduction over a row need not end one, if the threads that
#   hold the row go on together.
# - Computing a value again can be cheaper than loading it.
# - Fusion ends where arithmetic, registers or too few rows become the bound.
#
# ## Exercises
#
# **1. Another operation.** `np.sign` cannot be traced yet. An entry of `OPERATIONS` is a line of source, in which `{0}`
# is the operand; `ZERO` and `ONE` have the kernel's dtype. Write the line: 1 for what is positive, -1 for what is
# negative, and the element itself otherwise, so that NaN stays NaN.

# %%
line = "ONE"
check_operation(line)

# %% [markdown]
# **2. A rule.** Write a rule by which *every reduction ends a kernel*. What comes before it is fused into it; what
# comes after is in another kernel. Nothing is written that does not have to be. `operations(graph)` gives all
# operations in order, `REDUCTIONS` the names of reductions, and `space_of(value)` what an operation goes through.
# To ask whether a value is a result, look it up in `set(graph.results)`: `==` of two values is itself an operation, and
# would be traced.


# %%
def ends_at_reductions(graph):
    return [Part(group.space_of(value), (value,)) for value in group.operations(graph)]


check_rule(ends_at_reductions)

# %% [markdown]
# **3. Bytes.** RMS normalisation divides each row by the root of the mean of its squares. Write a function of the
# number of rows and columns that returns its bytes: as one kernel, and with a kernel for each operation. A mean is a
# sum and a quotient.

# %%
show(rms_norm)


def bytes_moved(rows, n):
    return 0, 0


check_bytes(bytes_moved)

# %% [markdown]
# **4. A longer row** (open). Hold the exponentials of softmax instead of `x`. What must `Writer` know of a value to
# decide which is better? Change `_rows` so that it holds what a later phase computes again, if that has a function in
# it, and count the exponentials.
#
# **5. A graph break** (open). `if np.amax(x) > 1` cannot be traced. Write a decorator that runs such a function: it
# computes the condition with a fused kernel, lets Python decide, and compiles both ways on as they are met.

# %% [markdown]
# ## Answers
#
# *1:* the last case takes both zeros and NaN.

# %% jupyter={"source_hidden": true} tags=["answer"]
check_operation("ONE if {0} > ZERO else -ONE if {0} < ZERO else {0}")

# %% [markdown]
# *2:* what must be in memory are the reductions and the results; everything else is computed by who needs it.


# %% jupyter={"source_hidden": true} tags=["answer"]
def ends_answer(graph):
    """A kernel for each reduction and each result."""
    results = set(graph.results)
    kept = [one for one in group.operations(graph) if one.op in REDUCTIONS or one in results]
    return [Part(group.space_of(value), (value,)) for value in kept]


check_rule(ends_answer)

# %% [markdown]
# *3:* the fused kernel reads `x` and the weights, and writes. Otherwise `x * x`, the sum, the quotient by the root and
# the product with the weights move 7 large arrays. The mean, the addition and the root each read and write a number a
# row; the sum writes one and the quotient reads one.


# %% jupyter={"source_hidden": true} tags=["answer"]
def bytes_answer(rows, n):
    """Fused, and with a kernel an operation."""
    return 4 * (2 * rows * n + n), 4 * (7 * rows * n + 8 * rows + n)


check_bytes(bytes_answer)

# %% [markdown]
# Go on with [chapter 92](92_finding_the_bottleneck.ipynb): six slow trainings, and how to find out why.
