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
# # 98. The instruments
#
# *The interpreter as a measuring instrument: counters, hazards, schedules, occupancy, bounds, pictures, limits;
# Nsight Compute and compute-sanitizer beside it. PMPP 4e: chapters 4 and 6; 5e: chapters 4 and 6. Read chapters
# [4](04_vector_add.ipynb) and [16](16_transpose.ipynb) before. 60 minutes.*
#
# Every chapter of this workbook makes claims: 32 sectors a request, no bank conflicts, a race on line 7. Few readers
# have a profiler at hand, so most claims come from the workbook's own interpreter, `pmpp.simt`. It is a program, and
# programs are wrong now and then.
#
# **The question of this appendix: when can you believe what it says, and what can it not say at all?** To answer it we
# hold it against the hardware: the same launches under NVIDIA's profiler, counter by counter.

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, predict, simt
from pmpp.kernels.instruments.exercises import precision_start, race_start, sectors_start
from pmpp.lab.draw import plots, shapes
from pmpp.lab.draw.style import STYLE
from pmpp.lab.measure import agreement, sanitizers
from pmpp.lab.measure.record import RECORDED
from pmpp.lab.measure.shapes import report as shapes_report
from pmpp.lab.measure.shapes.running import load
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE | {"axes.grid": False})
print(device.describe().splitlines()[0])

# %% [markdown]
# ## What it is
#
# The interpreter reads a kernel's Python source and executes it statement by statement, for many threads at once. A
# variable of the kernel is a NumPy array with one element a thread. A branch narrows the set of threads that take part.
# Types follow Numba's rules, not Python's: `int32` plus `int32` is `int64`, and a literal `0.1` is `float64`. Nothing
# of it knows a GPU. So it runs on any laptop, and it can write down what a GPU would have had to do.
#
# `simt.profile(kernel, grid, block, args)` runs one launch and returns a report. It has three levels.
#
# | `level=` | what you get | what for |
# |---|---|---|
# | `"run"` | results | a plain launch, `kernel[grid, block](...)`, without a GPU |
# | `"count"` | and counters, as a profiler has them | the default of `simt.profile` |
# | `"check"` | and hazards, as a sanitizer has them | `check()` in the exercises, and all tests |
#
# The results are the same at every level. To have plain launches checked as well, set `PMPP_CHECK=1` before you start
# Python: the first hazard then raises an error with its line.
#
# ## A report, column by column
#
# Our specimen counts how often each brightness occurs in a photograph, with 64 bins. Each block counts its own pixels
# in shared memory, and adds its counts to everybody's at the end.

# %%
BINS = 64


@cuda.jit
def histogram(picture, bins):
    mine = cuda.shared.array(BINS, np.int32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if thread < BINS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < picture.size:
        cuda.atomic.add(mine, picture[i] // 4, 1)
    cuda.syncthreads()
    if thread < BINS:
        cuda.atomic.add(bins, thread, mine[thread])


# %% [markdown]
# The pixels of the photograph are bytes, one after another. A sector has 32 bytes.
#
# **Predict, then run.** How many sectors does a warp's request for 32 pixels touch?

# %%
guess = None  # sectors a request

picture = data.photograph().mean(axis=2).astype(np.uint8).ravel()[:300_010]
bins = np.zeros(BINS, np.int32)
report = simt.profile(histogram, -(-picture.size // 256), 256, (picture, bins))
counters = report.counters
predict(guess, counters["global_load_sectors"] // counters["global_load_requests"], unit="sectors")

# %%
print("the same as NumPy:", np.array_equal(bins, np.bincount(picture // 4, minlength=BINS)))
report

# %% [markdown]
# One line of source, six numbers. (Outside a notebook `report.show()` prints the same.)
#
# - *instr.* counts instructions, one for each warp that executes one. Every operator, comparison, load, store and call
#   is one instruction here.
# - *lanes* is how many of the 32 lanes took part, on average.
# - *sect/req* is the sectors of 32 bytes that a request to global memory touches. 32 pixels are 32 bytes: one sector.
# - *wave/req* is the wavefronts that a request to shared memory takes.
# - *flops* counts floating-point operations. There are none: `//` is one of integers here.
# - *diverg.* counts the branches at which a warp splits. Here that is one warp of the last block, in which the
#   photograph ends.
#
# The numbers behind it are in `report.counters`, and by line in `report.by_line`; `report.mix()` sorts the
# instructions by kind. Some facts belong to an array, not to a line: how many *different* sectors were touched, and
# how atomics crowded.
#
# There are remarks, too. `report.warnings` names what is slow by accident, such as float64 in a float32 kernel.
# `report.notes` names what is allowed and seldom meant: an index like `x[-1 - i]`, which counts from the end, and a
# constant that does not fit 64 bits.

# %%
for name, sectors in report.sectors.items():
    print(f"{name:8} {sectors.load:6,} different sectors loaded, {sectors.store:4,} stored to")
for name, crowd in report.contention.items():
    print(
        f"{name:8} {crowd.requests:6,} atomics in {crowd.passes:,} turns; at worst {crowd.worst_warp} lanes of a warp"
    )
    print(f"{'':8} on one address, and {crowd.peak:,} updates of {name}[{crowd.where}]")

# %% [markdown]
# The profiler counts most of this as well, under names that take getting used to. Here is every counter beside what
# Nsight Compute calls it. A dash means that the profiler has no such metric. Keep the table for the day when you sit in
# front of `ncu`.

# %%
report.metrics()

# %% [markdown]
# ## Held against the hardware
#
# The record behind the next cells was made on a GPU, with all launches under `ncu`. There are the rungs of the first
# four rooms; those of the rooms on images, stencils, histograms, filters, merging, sorting, sparse matrices, graphs,
# wavefronts, potentials, MRI, random numbers, Monte Carlo and the game of life, a launch each; and probes that do one
# thing each: copies with strides, bank conflicts of every degree, shuffles, divergent loops, float64, local arrays. The
# same launches now run in the interpreter. Where a kernel has changed since it was recorded, its launch is left out of
# the tables below.

# %%
runs, launches = agreement.recorded()
rows = agreement.rows(launches)
first = next(iter(runs.values()))
print(f"{first['gpu']['name']}, ncu {first['ncu']}, numba-cuda {first['versions']['numba-cuda']}")
print(f"{len(launches)} launches of {len({run.kernel for run in launches.values()})} kernels")

# %% [markdown]
# The profiler counts what the GPU did, and the interpreter counts what the source says. Between the two stands a
# compiler. It may not change what a kernel stores, nor where. But it may choose other instructions.
#
# **Predict, then run.** Of which of these metrics are both values equal in at least nine of ten launches? Write True or
# False.

# %%
guess = {"global store sectors": None, "divergent branches": None, "lanes an instruction": None}  # True or False


def equal(metric):
    """The share of launches with equal values, of those in which the metric is not 0."""
    of = [row for row in rows if row.metric == metric and (row.hardware or row.interpreter)]
    return sum(not row.differs for row in of) / len(of)


metrics = "global store sectors", "divergent branches", "lanes an instruction"
predict(guess, {metric: equal(metric) >= 0.9 for metric in metrics})

# %%
agreement.by_metric(rows)

# %% [markdown]
# And by room: how many of the values that are not 0 are the very same number.

# %%
agreement.by_room(rows)

# %% [markdown]
# Requests, sectors, wavefronts, bank conflicts, atomics and floating-point operations belong to the kernel. They agree
# to the last digit, unless the compiler changed the kernel, or chance has a part: an atomic on floats is tried again, a
# block asks until another has finished, or the warp that comes first gets the first places. In the rungs on graphs
# there is a third cause. The barrier of a whole grid is a function whose machine code the profiler does not show. The
# lower rows differ more often. A branch in the source need not be a branch in the machine code. And an average over
# instructions depends on which instructions there are.
#
# So "it differs" is no answer. The machine code says why. NVIDIA's assembly language is called SASS, and the profiler
# shows how often each of its instructions was executed. Each difference has been looked up there. These are the reasons
# that explain most; `python -m pmpp.lab.measure.agreement` prints every difference with its reason.

# %%
agreement.by_reason(rows, most=12)

# %% [markdown]
# Three reasons deserve a closer look. First, a load that is written twice and executed once.


# %%
def beside(case, *opcodes):
    """The rows of one launch that are not 0, and how often its warps executed some machine instructions."""
    for row in rows:
        if row.case == case and (row.hardware or row.interpreter):
            print(f"{row.metric:24}{row.hardware:>9,g} on the GPU{row.interpreter:>9,g} here")
    for name, (warps, lanes) in launches[case].opcodes.items():
        if name.lstrip("@").startswith(opcodes):
            print(f"{name:24}{warps:>9,} times, {lanes / warps:.1f} lanes")


case = next(one for one in agreement.cases() if one.name == "one load for two")
show(case.kernel)
beside(case.name, "LDG", "FMUL", "STG")

# %% [markdown]
# The compiler sees that `x[i]` cannot change in between, and keeps it in a register. The interpreter counts what is
# written. So its counts are an upper limit where a line loads the same element again.
#
# Second, the sum of a warp by shuffles, from chapter 30. Each of five steps is an addition in all 32 lanes. The
# profiler counts fewer.

# %%
beside("shuffle", "SHFL", "FADD", "EXIT", "STG")

# %%
sum_of_a_warp = next(one.kernel for one in agreement.cases() if one.name == "shuffle")
show(sum_of_a_warp)

# %% [markdown]
# Only lane 0 stores the result, so only lane 0 needs the last addition. The compiler moves it behind the test, and 31
# lanes leave before. They leave by an EXIT with a *predicate*, written `@EXIT`: an instruction that only some lanes
# obey. A predicate is cheaper than a branch, and it is not counted as one. Other short tests become predicates, too, or
# selects of one of two values. This is behind most differences in *divergent branches*. The lanes idle all the same.
#
# Third, one that surprised us.

# %%
beside("grid-stride loop", "LDG", "STG")

# %%
show(next(one.kernel for one in agreement.cases() if one.name == "grid-stride loop"))

# %% [markdown]
# A few sectors too many, of the loads and of the stores. 768 threads share 4,097 elements, so 257 threads have a sixth
# trip: eight whole warps, and lane 0 of a ninth, whose other lanes have five. The compiler has unrolled the loop by
# four, and runs the odd trips first. Lane 0 does two of those, the others do one. From then on lane 0 is one trip ahead
# of its neighbours, for four trips, and each time it touches a sector of its own. In the source all lanes are at the
# same trip. Who reads only the source cannot know this.
#
# ### What the hardware taught the interpreter
#
# When this table was first made, a handful of rows could not be explained. The interpreter took four wavefronts for
# every 128-bit load from shared memory that is free of conflicts: eight lanes at a time, as chapter 16 says. The GPU
# took two in the fast matrix product of chapter 12, and wherever lanes share:

# %%
show(next(one.kernel for one in agreement.cases() if one.name == "shared load, 128 bits, pairs"))
for row in rows:
    if row.case.startswith("shared load, 128 bits") and row.metric == "shared load wavefronts":
        requests = launches[row.case].executed("LDS")
        print(
            f"{row.case:40}{row.hardware / requests:6.2f} wavefronts a request, {row.interpreter / requests:6.2f} here"
        )

# %% [markdown]
# A few hundred patterns of lanes later the rule was found. If in the whole warp each lane asks for the same element as
# the lane beside it (0 and 1, 2 and 3, ...; here *pairs*), sixteen lanes are served at a time. The same holds if each
# asks for what the lane two further asks for (*squares*). In *quarters* lanes share, too, but not with those
# neighbours, and it does not help. The interpreter now counts so. The last row is one launch with hundreds of patterns,
# and is part of the record to keep it so. We know of no manual that mentions the rule.
#
# ## Hazards
#
# A profiler counts, and a sanitizer looks for errors. At level "check" the interpreter remembers for every element of
# shared and global memory who wrote and who read it since the last barrier. This kernel moves a vector down by one, in
# place.


# %%
@cuda.jit
def shift(x):
    i = cuda.grid(1)
    if i + 1 < x.size:
        x[i] = x[i + 1]


x = np.arange(1000, dtype=np.float32)
checked = simt.profile(shift, 4, 256, (x,), level="check")
print("right, here:", np.array_equal(x[:-1], np.arange(1, 1000)))
for hazard in checked.hazards:
    print(hazard.kind, "in", hazard.space, "memory:", hazard.message)

# %% [markdown]
# The result is right, and the kernel is wrong. In lockstep all threads load before any of them stores, so the values
# are those that one hoped for. On a GPU warp 1 may store `x[32]` before warp 0 has loaded it. (The message names the
# first pair, two lanes of one warp. Even these may run apart since NVIDIA's Volta, unless `cuda.syncwarp()` is in
# between.) A test of the result may pass many times before it fails once. The hazard is found every time.
#
# NVIDIA's compute-sanitizer is the tool for this on a GPU. Its *racecheck* watches shared memory only, so it has
# nothing to say about `shift`. We planted bugs in small kernels, and asked both.

# %%
print(sanitizers.table())

# %% [markdown]
# A *look-alike* is the correct kernel beside each bug: a tool should be silent there. compute-sanitizer reports six of
# them, just as it reports the bugs beside them. In four a warp waits for a flag in shared memory, and *racecheck* does
# not see that it waits. Two are reported by *memcheck*. One is a copy whose part beyond the end is filled with zeros:
# memcheck takes it for as long as its place. The other is a product of warpgroups that reads one panel twice. Some
# bugs may hang a GPU. They were not launched there, and count as not named.
#
# Do not read this as a contest: we planted the bugs. That the interpreter names every one says that it does what it was
# built for, and not that it misses nothing. compute-sanitizer sees the machine code that really runs, in programs of
# any size, in any language, and libraries too. The interpreter sees a small launch of one kernel in Python, but it sees
# all of it: every access, its line and its variable. They are good at different things. Use both.
#
# All these pairs are in `tests/corpus`. `python -m tests.corpus` asks the interpreter again, without a GPU.
#
# ## Who runs when
#
# A GPU runs warps in an order of its own. Lockstep is one order, and a friendly one. `schedule="shuffled"` runs the
# warps in random order between barriers, and `seed=` says in which. A correct kernel gives the same result for every
# seed. This one, from the exercises below, smooths a vector in shared memory.

# %%
show(race_start)

# %%
noise = np.random.default_rng(1).standard_normal(1000, dtype=np.float32)
lockstep = np.empty_like(noise)
simt.profile(race_start, 4, 256, (noise, lockstep))
for seed in range(4):
    shuffled = np.empty_like(noise)
    simt.profile(race_start, 4, 256, (noise, shuffled), schedule="shuffled", seed=seed)
    wrong = shuffled != lockstep
    most = np.abs(shuffled - lockstep).max()
    print(f"seed {seed}: {np.count_nonzero(wrong)} elements differ from lockstep, by {most:.2f} at most")

# %% [markdown]
# The wrong elements lie where two warps meet, and how wrong they are depends on which of the two came first. Mend it:

# %%
exercise("instruments/race")

# %%
simt.profile(race_start, 4, 256, (noise, lockstep), level="check")


# %%
@cuda.jit
def race(x, out):
    pass  # your code


check("instruments/race", race)

# %% [markdown]
# What `check` has found is kept in its verdict. `verdict.line` is the line, and `verdict.inputs` has the arguments of
# the case that shows the mistake, by name, as they were before the launch. `kernel[verdict.launch](*verdict.inputs)`
# launches that case again. So every instrument of this chapter can be put on it. A small launch can be stepped
# through as well: `step(kernel, verdict)`, from `pmpp.lab.draw.stepper`, shows it line by line, as in [chapter
# 18](18_when_a_kernel_is_wrong.ipynb).

# %%
verdict = check("instruments/race", race_start)
print(verdict.mistake, "with", verdict.case, {name: value.shape for name, value in verdict.inputs._asdict().items()})
simt.profile(race_start, *verdict.launch[:2], verdict.inputs, level="check", collect=True)

# %% [markdown]
# Blocks may also wait for one another, as long as a GPU would get on. In a *relay* each block waits for the one before.
# If all run in lockstep, the first wait lasts for ever. The interpreter notices that a loop reads and nobody writes,
# starts again, and lets blocks take turns.


# %%
@cuda.jit
def relay(flags, order):
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while block > 0 and cuda.atomic.add(flags, block - 1, 0) == 0:
            pass
        order[block] = cuda.atomic.add(flags, flags.size - 1, 1)  # the last flag counts the blocks so far
        cuda.threadfence()
        cuda.atomic.exch(flags, block, 1)


flags, order = np.zeros(9, np.int32), np.zeros(8, np.int32)
relayed = simt.profile(relay, 8, 32, (flags, order), level="check")
print(f"schedule: {relayed.schedule}; the blocks came in the order {order.tolist()}; {len(relayed.hazards)} hazards")

# %% [markdown]
# And if nobody will ever raise the flag? Then the launch would hang on a GPU, and here it is refused.


# %%
@cuda.jit
def wait_for_godot(flag):
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass


try:
    simt.profile(wait_for_godot, 2, 32, (np.zeros(1, np.int32),))
except simt.SimtError as error:
    print(error)

# %% [markdown]
# ## How fast could it be?
#
# The interpreter has no clock, and its counters are not times. They do set limits. `report.occupancy(gpu)` says how
# many blocks of this size fit on a multiprocessor. `report.bound(gpu)` divides each counter by what a named GPU can do
# in a second. The longest of these times is a floor: no version that does the same work is faster. It takes the data to
# be in device memory at first; if an earlier launch has left them in the cache, that part may take less. It leaves out
# the launch itself, which for a photograph as small as this one takes longer than all the rest (chapter
# [22](22_launches.ipynb)).

# %%
report.occupancy("H200")

# %%
report.bound("H200")

# %% [markdown]
# Two columns, because a source does not say all. *At least* assumes that caches forget nothing and that the compiler
# merges and fuses what can be. *As written* takes every access and every operator by itself. The truth lies above the
# first, and not always below the second: a kernel also waits, for memory, for barriers, for too few warps. Nobody has
# counted that here.
#
# The same launch on other GPUs: bytes go by the bandwidth of the memory, and turns of atomics by how many
# multiprocessors there are, and how fast their clock is.

# %%
names = "RTX 4060 Laptop", "T4", "A100 80GB", "H200"
for gpu in (one for one in simt.GPUS if one.name in names):
    clock = f"{gpu.sms:4} multiprocessors at {gpu.clock / 1e9:.2f} GHz"
    print(f"{gpu.name:16}{gpu.bandwidth / 1e12:6.2f} TB/s, {clock}")

# %% [markdown]
# As written, this launch is bound by atomics on the H200. The table further up has the times of all parts.
#
# **Predict, then run.** By which factor is the laptop's GPU behind in bandwidth, and by which in multiprocessors times
# their clock? Then what is the launch bound by there, as written?

# %%
guess = None  # "device memory" or "atomics"

predict(guess, report.bound("RTX 4060 Laptop").binding, choices=("device memory", "atomics"))

# %%
for name in names:
    bound = report.bound(name)
    print(f"{name:16} at least {bound.seconds * 1e6:6.2f} us, bound by {bound.resource};", end=" ")
    print(f"as written {bound.written * 1e6:6.2f} us, by {bound.binding}")

# %% [markdown]
# The laptop's memory is slower by a larger factor than its multiprocessors are. So the bytes take over from the
# atomics.

# %% [markdown]
# ## Pictures
#
# With `trace=True` a report keeps every access and every step of one block. Chapter 16 draws sectors with
# `plots.access` and banks with `plots.banks`. Here are two more. The first is *time*: which lane works when. The kernel
# counts, for a row of points, how many steps of z = z * z + c it takes until z is large, as for a picture of the
# Mandelbrot set.


# %%
@cuda.jit
def escape(counts, most):
    i = cuda.grid(1)
    real, imaginary, steps = np.float32(0), np.float32(0), 0
    c = np.float32(-2) + np.float32(i) * np.float32(0.05)
    while real * real + imaginary * imaginary < np.float32(4) and steps < most:
        real, imaginary = real * real - imaginary * imaginary + c, np.float32(2) * real * imaginary + np.float32(0.2)
        steps += 1
    counts[i] = steps


escaping = simt.profile(escape, 1, 64, (np.zeros(64, np.int32), 12), trace=True)
plots.divergence(escaping, warp=[0, 1])

# %% [markdown]
# Red is waiting: a warp goes on until its last lane is done. The points at both ends of the row lie far out and escape
# soon, and their lanes wait for those in the middle.
#
# The second picture is *heat*: how often each element of an array is touched. This is the smoothing kernel of a matrix,
# in the naive way, every neighbour from global memory.


# %%
@cuda.jit
def neighbours(x, out):
    column, row = cuda.grid(2)
    if 0 < row < x.shape[0] - 1 and 0 < column < x.shape[1] - 1:
        around = x[row - 1, column] + x[row + 1, column] + x[row, column - 1] + x[row, column + 1]
        out[row, column] = np.float32(0.25) * around


small = np.zeros((24, 48), np.float32)
touched = simt.profile(neighbours, (3, 3), (16, 8), (small, small.copy()), trace=True)
plots.heat(touched, ["x", "out"])

# %% [markdown]
# Away from the border every element is loaded four times, and once would do. That is what shared memory can save, or
# the caches, of which the interpreter knows nothing.
#
# ## What it cannot tell you
#
# - **No time.** It counts work, not waiting. A kernel with perfect counters can be slow: too few bytes under way, too
#   few warps, a launch that is too small. Chapters 4 and 16 meet such kernels. Only a GPU tells.
# - **No caches.** A sector that is asked for twice counts twice. `report.sectors` has the other extreme, where each
#   counts once. A GPU lies in between.
# - **No compiler.** Counts are those of the source, and the table above shows what a compiler may change: it merges
#   loads, hoists them out of loops, fuses and moves arithmetic, turns branches into predicates. Registers, spills and
#   instruction counts are the compiler's alone.
# - **Local arrays are free.** If an array is indexed by a value that is only known at run time, it lies in device
#   memory on a GPU. Here it is registers.
# - **Functions are single operations.** A division is one operation, a square root none. On a GPU both are routines of
#   several, and an atomic addition of floats in shared memory is a loop of compare-and-swap.
# - **One order at a time.** Level "check" finds a race in any order, since it looks at barriers and not at luck. But
#   only for the input and the launch that you gave it. A branch that was not taken was not checked.
# - **Small launches.** It runs thousands of times slower than a GPU. Choose the smallest launch that shows the effect.
# - **Other GPUs.** The record is of one GPU and one compiler. Sectors and banks have been the same for many
#   generations; what a compiler merges changes with every version.
#
# ## Nsight Compute and compute-sanitizer on your own kernel
#
# You need a machine with an NVIDIA GPU and the CUDA toolkit, which has both tools.
#
# 1. Put the kernel into a script that launches it once or twice, on an input as large as in earnest. The script should
#    do nothing else on the GPU. Compile with line numbers: `@cuda.jit(lineinfo=True)`.
# 2. Run it alone first: `PMPP_BACKEND=numba python script.py`. A profiler adds nothing to a script that does not work.
# 3. Profile. The names after `--metrics` are those of `report.metrics()`. With `--set full` you get everything, and it
#    takes longer, since each kernel is run again for every few counters.
#
#    ```
#    ncu --metrics l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum \
#        python script.py
#    ncu --set full --export profile python script.py
#    ```
#
#    The second command writes `profile.ncu-rep`, and `ncu-ui profile.ncu-rep` opens it in a window. Its source page has
#    the SASS, with how often each instruction was executed.
# 4. If `ncu` says `ERR_NVGPUCTRPERM`, the driver keeps the counters to the administrator. The message has a link to
#    what can be done about it. On a rented machine it is often not in your hands.
# 5. Check. Each tool looks for one thing, and makes the program much slower, so take a small input here.
#
#    ```
#    compute-sanitizer --tool memcheck  python script.py     # out of bounds, misaligned
#    compute-sanitizer --tool racecheck python script.py     # races in shared memory
#    compute-sanitizer --tool initcheck python script.py     # device memory that nobody wrote
#    compute-sanitizer --tool synccheck python script.py     # barriers that not all threads reach
#    ```
#
# 6. Compare with `simt.profile` of the same launch. Where they differ, look at the SASS: `kernel.inspect_sass()` prints
#    it, and so does the profiler's window.
#
# The table of this appendix is made so, by `python -m pmpp.lab.measure.agreement --gpu record.json`. `make
# instruments` prints it in full, without a GPU.
#
# ## Held against the libraries
#
# A room's ladder is measured at sizes that its author chose. An author can choose well without meaning to. So other
# sizes are drawn by a rule, from a seed that is a date, and all rooms are measured at them beside PyTorch and CuPy:
# `python -m pmpp.lab.measure.shapes`. A test holds the digest of what is drawn, so that nobody can draw again until the
# sizes are pleasant. Each result is verified before its time counts.
#
# A dot is a shape, and each panel has those of one kind of work. To the right stands more work: the least time that the
# roofline allows. The solid line at 1 is the better library. What each shape is held to is dashed, and what the mean of
# a panel is held to is dotted; both were written down before these shapes were measured. A panel whose shapes were not
# measured on this GPU says so.

# %%
plots.drawn(lambda: shapes.ratios(load()))

# %% [markdown]
# Look at the spread before the mean. A geometric mean of 1 can hide a shape at half the library's speed, and that shape
# may be the one that you train with.
#
# The next cell draws the same shapes on an H100, once somebody has measured them there; until then it says that
# nothing is recorded. No tuned sizes are recorded for an H100, so the figure would show what a choice is worth on a
# GPU that it was not made for.

# %%
plots.drawn(lambda: shapes.ratios(load(RECORDED / "nvidia-h100-80gb-hbm3" / "shapes.json")))

# %% [markdown]
# If you have both figures, compare them panel by panel: where the dots lie lower on the second GPU, a choice may suit
# the first one alone.
#
# The report names the worst shapes of each line on the first GPU, beside what the line is held to. Its numbers are
# ratios to the better library, as in the figure. Only a line that is held to a share "of the roof" has shares there. A
# run that has not yet come to all shapes says how many it has measured.
#
# Some of the drawn shapes are too short to be timed on the GPU, and the figure has no dots for them. The last block
# compares what a call of them costs the host. Below 1 our call takes longer than the library's.

# %%
plots.drawn(lambda: print(shapes_report.report(load())))

# %% [markdown]
# What the dots below the line have in common tells where a room is weak. Read the names in the lines with "worst": are
# they the largest, the thinnest, or those whose sides are no multiple of anything?
#
# In the last block most medians are far below 1. A call of ours costs the host more, since a room checks its arguments
# and launches its kernels in Python. With short work that is what one waits for, unless the calls are recorded as a
# CUDA graph (chapter [22](22_launches.ipynb)).
#
# ## What to take along
#
# - A count of the interpreter is a count of the source. Where the compiler leaves a kernel as it is, the hardware
#   counts the same; where not, the machine code says why.
# - Stores and barriers agree best. Loads agree less often, since a compiler may leave one out, or make one of several,
#   and so do atomics, of which some are tried again. What belongs to instructions, such as branches and averages over
#   instructions, agrees seldom. Requests to local memory, which the compiler alone makes, agree nowhere.
# - A right result proves no order. Level "check" names the race even where the result is right, but only for the launch
#   that it was given.
# - A bound is a floor and not a time. Only a GPU tells the time.
# - Take the smallest launch that shows an effect to the interpreter, and the real program to Nsight Compute and
#   compute-sanitizer.
#
# ## Exercises
#
# Read the instrument first, then mend the kernel. The first exercise stands where its kernel was run in other orders.

# %%
exercise("instruments/sectors")

# %%
show(sectors_start)


# %%
@cuda.jit
def sectors(factor, x, out):
    pass  # your code


check("instruments/sectors", sectors)

# %%
exercise("instruments/precision")

# %%
simt.profile(precision_start, 4, 256, (noise, lockstep))


# %%
@cuda.jit
def precision(x, out):
    pass  # your code


check("instruments/precision", precision)

# %% [markdown]
# **Without a check.** Three lines, each in a kernel of its own. Which counters would Nsight Compute and the interpreter
# see differently, and why? (a) `out[i] = x[i] / y[i]`. (b) `out[i] = a[i] * b[i] + c[i]`. (c)
# `while k < trips[i]: total += x[k]; k += 1`.
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def race_answer(x, out):
    part, thread, i = cuda.shared.array(256, np.float32), cuda.threadIdx.x, cuda.grid(1)
    last = min(256, x.size - cuda.blockIdx.x * 256) - 1
    part[thread] = x[min(i, x.size - 1)]
    for _ in range(3):
        cuda.syncthreads()  # all have written
        beside = part[max(thread - 1, 0)] + part[min(thread + 1, last)]
        value = np.float32(0.5) * part[thread] + np.float32(0.25) * beside
        cuda.syncthreads()  # all have read
        part[thread] = value
    if thread <= last:
        out[i] = part[thread]


# %% jupyter={"source_hidden": true} tags=["answer"]
assert check("instruments/race", race_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def sectors_answer(factor, x, out):
    for i in range(cuda.grid(1), x.shape[0] * x.shape[1], cuda.gridsize(1)):
        row, column = i // x.shape[1], i % x.shape[1]
        out[row, column] = factor[row] * x[row, column]


assert check("instruments/sectors", sectors_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def precision_answer(x, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        out[i] = np.float32(0.5) * value * (np.float32(1) + value * value / np.float32(3))


assert check("instruments/precision", precision_answer)

# %% jupyter={"source_hidden": true} tags=["answer"]
for name in ("division", "multiply-add", "loop, a count for each lane"):
    print(name)
    for row in rows:
        if row.case == name and row.differs:
            print(f"    {row.metric}: {row.hardware:,g} on the GPU, {row.interpreter:,g} here: {row.reason}")

# %% [markdown]
# *Three lines.* (a) The division is one operation here, and a routine of several on a GPU: *flops* differ.
# (b) None. The compiler makes one FFMA of the product and the sum, and a multiply-add counts as two operations in both.
# (c) `trips[i]` is loaded before each trip as it is written, and once by the GPU: requests and sectors differ. The loop
# is unrolled, so there are fewer branches.
#
# Go on with [chapter 99](99_all_reduce.ipynb): several GPUs, and how they make a sum.
