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
# # 4. Vector addition
#
# *Host and device, launch geometry, coalesced access, transfers, streams. Read [chapter 0](00_start_here.ipynb)
# before. 90 minutes. PMPP 4e: chapters 2 and 3, sections 4.1 to 4.7, 6.1 and 20.5; 5e: chapters 2 and 3, sections 4.1
# to 4.7, 6.1 and 6.3. The code is [pmpp/kernels/vector_add/ladder.py](../pmpp/kernels/vector_add/ladder.py).*
#
# A film fades from one photograph into the next. Each number of the picture halfway is the mean of two
# numbers, one from each photograph, and none of these means needs any other. They could all be computed at
# the same time.
#
# **The question of this chapter: how fast can a GPU add two long vectors, and what keeps it from being
# faster?** The arithmetic is the simplest there is. That leaves everything else in plain sight: which thread
# computes what, how numbers reach the arithmetic, and what each step costs.

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, predict, simt
from pmpp.kernels import vector_add
from pmpp.kernels.vector_add.exercises import neighbours_start
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# Our vectors are two real photographs. Each has 427 rows of 640 pixels with three colours, whole numbers from
# 0 to 255. Laid out in one row they are a vector. We store half of each number: then `x + y` is the middle of
# the fade.

# %%
china, flower = data.photographs()
x = china.ravel() / np.float32(2)
y = flower.ravel() / np.float32(2)


def draw(**pictures):
    width = 7.8 / max(3, len(pictures))  # inches
    figure = plt.figure(figsize=(width * len(pictures), 0.75 * width), layout="constrained")
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
        ax.imshow(picture.reshape(china.shape).astype(np.uint8))
        ax.set_title(title.replace("_", " "))
        ax.axis("off")


draw(first=china, second=flower, middle=x + y)

# %%
print(f"each vector: {x.size:,} numbers of type {x.dtype}, {x.nbytes / 1e6:.2f} MB")

# %% [markdown]
# ## The bound
#
# Before we write anything, we ask what the hardware allows. Each element of the result needs one addition,
# and two numbers of 4 bytes read and one written: 12 bytes must move between memory and the arithmetic units,
# whoever writes the program. A *FLOP* is one floating-point operation. FLOP divided by bytes is the
# *arithmetic intensity* ([chapter 0](00_start_here.ipynb) introduced it).

# %%
for n in (x.size, 2**28):
    cost = vector_add.cost(n)
    print(f"{n:>11,} elements: {cost.flops:>11,} FLOP, {cost.bytes:>13,} bytes, {cost.intensity:.3f} FLOP/byte")

# %% [markdown]
# A GPU has two ceilings: how many bytes its memory moves in a second (the *bandwidth*), and how many
# operations it does in a second. These were measured: on your GPU if you have one, otherwise on the one whose
# measurements ship with the workbook.

# %%
ceilings = roofline.ceilings("vector_add")
print(f"memory:       {ceilings.bandwidth / 1e12:6.2f} TB/s")
print(f"multiply-add: {ceilings.fma_f32 / 1e12:6.2f} TFLOP/s")
print(f"({ceilings.source})")

# %% [markdown]
# **Predict, then run.** How many microseconds does this GPU need at least to add our two photographs? The first
# line of each table above has what you need. A rough number will do. (TB/s is 10^12 bytes a second.)

# %%
guess = None  # microseconds

least = roofline.bound(vector_add.cost(x.size), ceilings)
predict(guess, least.seconds * 1e6, unit="us")

# %% [markdown]
# The bytes divided by the bandwidth are the memory's time. The operations divided by their own rate are the time of the
# arithmetic. Here are both, for the photographs and for long vectors.

# %%
for n in (x.size, 2**28):
    least = roofline.bound(vector_add.cost(n), ceilings)
    memory, arithmetic = least.memory_seconds * 1e6, least.compute_seconds * 1e6
    print(f"{n:>11,} elements: memory {memory:7.2f} us, arithmetic {arithmetic:5.2f} us")
print(f"Memory takes {least.memory_seconds / least.compute_seconds:.0f} times as long as the arithmetic.")

# %% [markdown]
# Loading and computing overlap, so the longer of the two is the bound, and it is the memory's by far.
# Addition is *memory-bound*. No cleverness about the arithmetic can help. What counts from here on is bytes:
# moving no more of them than necessary, and keeping the memory busy all the time.
#
# ## The reference
#
# First comes code that is slow and obviously right. Everything later is compared with it.

# %%
show(vector_add.reference)

# %%
some = slice(100_000, 101_000)
print("equal to NumPy:", np.array_equal(vector_add.reference(x[some], y[some]), x[some] + y[some]))

# %% [markdown]
# ## Two memories
#
# A program for a GPU runs on two machines at once (PMPP 2.2 to 2.4). The *host* is the CPU with its memory.
# The *device* is the GPU with a memory of its own. A *kernel*, the function that the device runs, works on
# arrays in device memory. So the host allocates there, copies in, starts the kernel, and copies the result
# back out.

# %%
x_device = device.to_device(x)  # allocate on the device, and copy: host to device
y_device = device.to_device(y)
out_device = device.empty(x.shape, x.dtype)  # only allocate: it holds whatever was there before
vector_add.one_thread_each(x_device, y_device, out=out_device)  # start the kernel, and do not wait for it
out = device.to_host(out_device)  # wait for what was started, and copy: device to host
draw(added_on_the_device=out)
print("equal to NumPy:", np.array_equal(out, x + y))

# %% [markdown]
# The first five lines of this cell are the outline of every GPU program. Without a GPU the interpreter plays the
# device: its arrays are a memory apart as well, and the lines stay the same. The functions of a room, such as
# `one_thread_each`, also take NumPy arrays, and then copy them to the device themselves. That is convenient. What it
# costs we shall see.
#
# ## A grid of threads
#
# The device runs a kernel many times at once. Each run is a *thread*. Threads come in *blocks* of equal size,
# and all the blocks of a launch are the *grid*. The host chooses both sizes when it launches: `kernel[blocks,
# threads](arguments)`. The only thing in which threads differ is their place in the grid. Let each one write
# down its own:


# %%
@cuda.jit
def who(block, thread, index):
    i = cuda.grid(1)
    block[i] = cuda.blockIdx.x
    thread[i] = cuda.threadIdx.x
    index[i] = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x


notes = {name: device.empty(12, np.int32) for name in ("block", "thread", "index")}
who[3, 4](*notes.values())  # 3 blocks of 4 threads
for name, values in notes.items():
    print(f"{name:>6}", *(f"{value:3}" for value in device.to_host(values)))

# %% [markdown]
# `cuda.blockIdx.x` is the block's number, `cuda.threadIdx.x` the thread's number inside its block, and
# `cuda.blockDim.x` the size of a block. Together they make the last row, an index that every thread has to
# itself. It is needed so often that `cuda.grid(1)` computes it.
#
# Grids and blocks have up to three dimensions (PMPP 3.1, 3.2). For a picture two come naturally: `x` counts
# columns, `y` counts rows. This kernel makes every other block darker, so that you see the grid lying on the
# photograph.


# %%
@cuda.jit
def tint(picture, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        for colour in range(3):
            out[row, column, colour] = picture[row, column, colour]
            if (cuda.blockIdx.x + cuda.blockIdx.y) % 2:
                out[row, column, colour] //= 2


tinted = device.empty(china.shape, np.uint8)
blocks = (-(-640 // 32), -(-427 // 32))  # columns, rows; each division rounded up
tint[blocks, (32, 32)](device.to_device(china), tinted)
draw(blocks_of_32_x_32_threads=device.to_host(tinted))
print(f"{blocks[0]} x {blocks[1]} blocks of 32 x 32 threads")

# %% [markdown]
# The lowest row of blocks is cut off: 427 is no multiple of 32. Its threads below the picture exist all the
# same, and the `if` sends them home. Every kernel has to face this, because blocks are always launched whole.
#
# **Predict, then run.** Our vectors have 819,840 elements, and a block shall have 256 threads. We launch as
# many blocks as we need. How many threads will find nothing to do?

# %%
guess = None  # threads with nothing to do

blocks = -(-x.size // 256)
predict(guess, blocks * 256 - x.size, unit="threads")

# %%
print(f"{x.size // 256:,} full blocks have {x.size // 256 * 256:,} threads, too few for {x.size:,} elements.")
print(f"{blocks:,} blocks have {blocks * 256:,} threads.")

# %% [markdown]
# Only the last block can have idle threads, so there are never as many as a block has. Here they are half of it.
#
# ## The first rung, `one_thread_each`: one thread each
#
# The plainest kernel gives every element a thread of its own. A chapter's kernels live in a *room*, a module
# of the package; this one is `pmpp/kernels/vector_add/ladder.py`. Its kernels form a ladder from naive to fast, and
# each step of the ladder is a *rung*: a kernel with the function that checks the arguments and launches it. `show`
# displays them.

# %%
show(vector_add.one_thread_each)

# %% [markdown]
# `@rung` calls the room's function `arguments` first. It checks what you pass, copies NumPy arrays to the device, and
# puts everything into one object `p`: the vectors, the result, and the stream, which is explained below. Then the
# launch has enough blocks of `BLOCK`, 256, threads (`blocks` divides and rounds up). The kernel itself has four lines
# and no loop: the grid is the loop. Its `if` is the *guard* for the idle threads.
#
# Every rung has such a docstring, and `help(vector_add.one_thread_each)` prints it. It says the rung's idea, and
# after `Source:` where the idea comes from. After `Leaves:` it names the fault that the rung leaves to the next
# one. What this fault means, and what it costs, this chapter finds out below.
#
# What if we forget the guard? The interpreter can watch every access. `simt.profile` runs a kernel and returns a
# report. At level `"check"` it looks for *hazards* as well, that is, for what the rules of CUDA forbid. With
# `collect=True` it lists them instead of stopping at the first. The columns of its table are explained below.


# %%
@cuda.jit
def unguarded(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


few = 1000
simt.profile(unguarded, 4, 256, (x[:few], y[:few], np.zeros(few, np.float32)), level="check", collect=True)

# %% [markdown]
# The report names the first thread at fault: thread 232 of block 3 has index 1000. On a real GPU nothing would say
# so. The kernel would read and overwrite whatever lies behind the arrays, and the first thousand results would look
# right. [Chapter 18](18_when_a_kernel_is_wrong.ipynb) is about such bugs.
#
# ## Under the microscope
#
# The hardware does not run threads one at a time. It takes 32 threads of a block with consecutive numbers, a
# *warp*, and executes each instruction for all of them together (PMPP 4.4). A thread's place in its warp is
# its *lane*. When a warp loads, its 32 lanes together make one *request*. Memory answers in *sectors* of 32
# bytes: whoever needs one byte of a sector gets the whole. The report counts all of this for every line.

# %%
report = simt.profile(vector_add.one_thread_each_kernel, blocks, 256, (x, y, np.empty_like(x)))
report

# %% [markdown]
# Read the columns from the left. *instr.*: instructions, counted once per warp. *lanes*: how many of the 32
# lanes took part, on average. *sect/req*: sectors per request, the column to watch in this chapter. *flops*:
# one addition per element. *diverg.*: branches where lanes of one warp went different ways, which costs both
# ways (PMPP 4.5); the guard caused none, because the idle threads fill whole warps. (*wave/req* is about
# shared memory, chapter 12.)
#
# Four sectors per request is the least: 32 lanes times 4 bytes are 128 bytes, or 4 sectors. Neighbouring lanes
# read neighbouring addresses, and no byte arrives in vain. Such an access is called *coalesced* (PMPP 6.1).
#
# What happens to an access that is not? In the next kernel each lane signs the element that it would use,
# `stride` elements away from its neighbour's.


# %%
@cuda.jit
def sign(memory, stride):
    lane = cuda.grid(1)
    memory[lane * stride] = lane


def signed(stride):
    memory = np.full((32, 8), -1, np.int32)  # 32 sectors: 8 numbers of 4 bytes are 32 bytes
    flat = memory.reshape(-1)
    report = simt.profile(sign, 1, 32, (flat, stride))
    return np.ma.masked_less(memory, 0), report.counters["global_store_sectors"]


# %% [markdown]
# **Predict, then run.** One warp runs this kernel, and its store is one request. How many sectors does the
# request touch at a stride of 2, and how many at a stride of 8?

# %%
guess = {"stride 2": None, "stride 8": None}  # sectors

predict(guess, {f"stride {stride}": signed(stride)[1] for stride in (2, 8)}, unit="sectors")

# %%
figure, axes = plt.subplots(1, 4, figsize=(7.8, 4.2), sharey=True, layout="constrained")
for ax, stride in zip(axes, (1, 2, 4, 8), strict=True):
    memory, sectors = signed(stride)
    picture = ax.imshow(memory, aspect="auto", vmin=0, vmax=31)
    ax.set_title(f"stride {stride}\n{sectors} sectors")
    ax.set(xticks=[], xlabel="8 elements", yticks=[])
    ax.hlines(np.arange(33) - 0.5, -0.5, 7.5, color=palette.EDGE, linewidth=0.6)
axes[0].set_ylabel("memory: each row is a sector of 32 bytes")
figure.colorbar(picture, ax=axes, label="lane that uses the element")
print(f"asked for: {32 * 4} bytes; moved at a stride of {stride}: {32 * sectors:,} bytes")

# %% [markdown]
# White elements in a used row travel for nothing. At a stride of 2 they are half of each row, and the request touches
# twice as many sectors. At a stride of 8 each lane pulls a sector of its own: the warp asks for 128 bytes, and memory
# moves 1,024. Further apart it gets no worse, as a lane cannot touch more than one sector with 4 bytes. Here is the
# same in an addition, with the bytes that it really moves, and the time that the bandwidth then allows.


# %%
@cuda.jit
def strided_add(x, y, out, stride):
    i = cuda.grid(1)
    if i < out.size:
        a = x[i * stride]
        b = y[i * stride]
        out[i] = a + b


strided, sums = {}, np.empty(51_200, np.float32)
for stride in (1, 2, 4, 8, 16):
    strided[stride] = simt.profile(strided_add, 200, 256, (x, y, sums, stride))

# %%
print("stride   sectors per load   bytes per element   least time for 2^28 elements")
for stride, report in strided.items():
    count = report.counters
    loads = count["global_load_sectors"] / count["global_load_requests"]
    moved = 32 * (count["global_load_sectors"] + count["global_store_sectors"]) / sums.size
    print(f"{stride:6} {loads:18.0f} {moved:19.0f} {moved * 2**28 / ceilings.bandwidth * 1e6:18.0f} us")

# %% [markdown]
# And line by line for a stride of 16: the loads are scattered, the stores are coalesced.

# %%
strided[16]

# %% [markdown]
# ## What is still wrong
#
# `one_thread_each` moves not one byte too many, so it should run at the bound. Does it? Without a GPU we ask
# the record: times that were measured on a real one, checked and repeated. (With a GPU, `make bench` records
# your own, and all figures below become yours.) The *share of the roof* is the bound divided by the measured
# time.

# %%
recorded = record.load()
print(recorded.footer("vector_add"))


def measured(*names):
    for entry in recorded.design("vector_add"):
        if entry.contender in names:
            share = roofline.share(vector_add.cost(entry.x), entry.seconds, recorded.ceilings("vector_add"))
            rate = entry.bytes / entry.seconds / 1e12
            time = f"{entry.median_ms:.3f} ms for {entry.workload}"
            print(f"{entry.contender:16} {time}, {rate:.2f} TB/s, {share:.0%} of the roof")


measured("one_thread_each")

# %% [markdown]
# Not quite, and no count in the report says why: it counts bytes, and the bytes are right. What the memory lacks is
# something to do. A load takes its time to arrive, the *latency*. Bytes that were requested, and have not yet
# arrived, are *in flight*. To keep the memory busy, enough bytes must be in flight at any moment: bandwidth times
# latency. (The same rule tells you how many cars are on a bridge: how many pass in a minute, times the minutes that
# each is on it.) If two of the three are known, the third follows: the latency is what is in flight, divided by the
# rate.
#
# A GPU is an array of *multiprocessors*, SM for short in names. Each holds a limited number of threads at a time, and
# a block stays on one of them from its first instruction to its last (PMPP 4.1, 4.2). A thread of this kernel has two
# loads of 4 bytes in flight. So there is a most that can be in flight, and with the measured rate it gives the most
# that the latency can be:

# %%
entry = recorded.design("vector_add")[0]
threads = recorded.data["gpu"]["sms"] * 2048  # a multiprocessor of a data-centre GPU holds 2048 threads
in_flight = threads * 8
loads = entry.bytes * 2 / 3 / entry.seconds  # byte/s: two of three transfers are loads
print(f"{threads:,} threads with 8 bytes each: {in_flight / 1e6:.2f} MB in flight at most")
print(f"measured: {loads / 1e12:.2f} TB/s of loads")
print(f"so a byte is in flight for at most {in_flight / loads * 1e9:.0f} ns")

# %% [markdown]
# Suppose that a load takes about so long. Then all the threads that fit are waiting all the time, and still the bytes
# in flight are too few to keep the memory busy. In truth they are not even all there: after its one addition a thread
# ends, and when all threads of a block have ended, a new block must start in its place. (The share of the places for
# threads that are taken is called *occupancy*, PMPP 4.7.)
#
# This is an explanation, not yet a finding. It makes two predictions, and we can test both: it should help to
# keep the threads and give each more to do, and it should help more to let each thread ask for more bytes at
# a time.
#
# ## The second rung, `grid_stride`: a grid that strides
#
# The first test: launch only as many threads as the GPU holds at once, and let each walk over the vectors in
# steps as long as the whole grid, `cuda.gridsize(1)`.

# %%
show(vector_add.grid_stride_kernel)

# %% [markdown]
# In every step neighbouring lanes still touch neighbouring elements, so the access stays coalesced. (Giving each
# thread a run of consecutive elements would not be: that is a stride between lanes.) The grid no longer depends on
# the size of the vectors, and the guard has become the loop's end. `BLOCKS_PER_SM` blocks of 256 threads are the 2048
# that a multiprocessor holds.

# %%
resident = device.limits()["multiprocessors"] * vector_add.BLOCKS_PER_SM
for n in (x.size, 2**28):
    blocks = -(-n // 256)
    print(f"{n:>11,} elements: {blocks:>9,} blocks for one_thread_each, {min(blocks, resident):,} for grid_stride")
measured("one_thread_each", "grid_stride")

# %% [markdown]
# That is nearer, but not there. A thread still asks for 4 bytes of each vector, waits, and asks again.
#
# ## The third rung, `vectorised`: 128 bits at a time
#
# The second test: a lane can load 16 bytes with one instruction, four float32 at once. `load128(x, i)`
# returns the elements `x[i]` to `x[i + 3]` as a tuple, and `store128` writes such a tuple.

# %%
show(vector_add.vectorised_kernel)

# %% [markdown]
# The 16 bytes must begin at an address that is a multiple of 16. An array begins at one, but a slice such as `x[1:]`
# may not. `vector_span` finds the part made of whole vectors, `x[head:tail]`, and `width` is how many elements one of
# them has. The elements before `head` and from `tail` on are added one at a time. If the addresses of the arrays
# differ modulo 16 bytes, there is no such part. All elements are then added one at a time, and the result is right.
#
# `widened` does nothing to our float32. It is there for other numbers, to which we come below.

# %%
whole, shifted = x_device[:1003], x_device[1:1004]
print("whole:            head, tail, width =", vector_add.vector_span(whole, whole))
print("shifted:          head, tail, width =", vector_add.vector_span(shifted, shifted))
print("one of each:      head, tail, width =", vector_add.vector_span(whole, shifted))

# %% [markdown]
# The report shows what has changed, and what cannot change.

# %%
n, out = x.size, np.empty_like(x)
runs = {
    "one_thread_each": (vector_add.one_thread_each_kernel, -(-n // 256), (x, y, out)),
    "grid_stride": (vector_add.grid_stride_kernel, resident, (x, y, out)),
    "vectorised": (vector_add.vectorised_kernel, -(-n // 1024), (x, y, out, 0, n, 4)),
}
print(f"{'':16}    load               sectors   bytes in flight")
print(f"{'':16}requests   sectors   per request        per thread")
for name, (kernel, grid, arguments) in runs.items():  # a sector is 32 bytes for 32 lanes: a byte for each, twice (x, y)
    count = simt.profile(kernel, grid, 256, arguments).counters
    requests, sectors = count["global_load_requests"], count["global_load_sectors"]
    print(f"{name:16} {requests:7,} {sectors:9,} {sectors / requests:13.0f} {2 * sectors / requests:17.0f}")
    assert np.array_equal(out, x + y)

# %% [markdown]
# All three move the same sectors: the bound does not move. But a quarter of the requests does it, and each
# thread has 32 bytes in flight in place of 8. (It also takes a quarter of the blocks, so the test is not
# quite pure.) The same addition by two libraries, PyTorch and CuPy, was measured in the same run.

# %%
measured("one_thread_each", "grid_stride", "vectorised", "torch.add", "cupy.add")

# %% [markdown]
# ## The ladder
#
# The explanation has held: both tests gained, the second more. Here are all rungs and the libraries on one
# page, naive at the top.

# %%
plots.ladder("vector_add")

# %% [markdown]
# A share just above 100 % is no miracle: the ceiling was measured with a copy, which writes a byte for every byte
# that it reads. Memory loses time when it turns from reading to writing. An addition reads two bytes for each one
# written, so it turns less often. (The sum of [chapter 30](30_reduction.ipynb) hardly writes at all, and goes further
# past the ceiling.) There is next to nothing left to gain in this kernel. A library is no guarantee of that, as
# `cupy.add` shows. The last row is NumPy, on the CPU of the same machine.
#
# On the roofline all that ran on the GPU stand above one another, because they have the same arithmetic intensity.
# Only the height differs. Both axes are logarithmic, so this small distance is the whole ladder. The star is our
# addition with a stride of 8, placed by the bytes that the interpreter counted: it moves more of them for the same
# arithmetic, so it lies further left, where the roof is lower. No tuning lifts it above its star. Only better access
# moves it to the right.

# %%
plots.roofline("vector_add", reports={"stride 8": strided[8]})

# %% [markdown]
# ## Half the bytes
#
# If bytes are all that counts, why does a number have four? NumPy has *float16*, a number of 2 bytes: between three and
# four decimal digits, and nothing above 65,504. The package `ml_dtypes` adds *bfloat16* to it, the upper half of a
# float32: the same range, and two to three digits. ([Chapter 38](38_numerics.ipynb) is about both.)
#
# Such numbers are stored, and not computed with. 128 bits are eight of them. `widened` makes a float32 of each in
# registers, the addition is that of float32, and `store128` rounds each sum once, to the nearest.
#
# **Predict, then run.** `vectorised` adds the photographs in float16. How many requests does it take to load them, and
# how many sectors does each of these touch? (The table above has both for float32.)

# %%
guess = {"requests": None, "sectors per request": None}  # numbers

halves = [device.to_device(v.astype(np.float16)) for v in (x, y)]
half_sum = device.empty(n, np.float16)
kernel, arguments = vector_add.vectorised_kernel, (*halves, half_sum, 0, n, 8)
count = simt.profile(kernel, -(-n // 2048), 256, tuple(map(device.to_host, arguments[:3])) + arguments[3:]).counters
requests, sectors = count["global_load_requests"], count["global_load_sectors"]
predict(guess, {"requests": requests, "sectors per request": sectors / requests})

# %%
vector_add.vectorised(*halves, out=half_sum)
print("equal to the sum in float32:", np.array_equal(device.to_host(half_sum), x + y))
print(f"{sectors:,} sectors, {count['flops']:,} additions of float32, {count['flops_f16']} of float16")

# %% [markdown]
# A request is as wide as before, there are half as many, and no more arithmetic than before. The sum is even the same:
# it is a multiple of one half from 0 to 255, which has nine binary digits at most, and float16 has eleven. Other sums
# are rounded. How long does it take?

# %%
plots.drawn(plots.by_dtype, "vector_add", "add")

# %% [markdown]
# Beside each bar stands how many times as fast it is as the same function in float32. The dashed line is where half the
# bytes take half the time. Where memory is the bound, the size of a number is a speed. So networks are trained and run
# in 16 bits wherever their results bear it.
#
# ## From small to large
#
# So far the vectors were as long as we liked. The GPU also has a cache, a smaller and faster memory between
# the large one and the multiprocessors, the *L2 cache*. When the three vectors fit in it, and are used again
# and again, they need not come from memory.

# %%
print(f"L2 cache of the {recorded.gpu}: {recorded.l2_bytes / 2**20:.0f} MiB (a MiB is 2^20 bytes)")

# %% [markdown]
# **Predict, then run.** Vectors have 2^k elements of 4 bytes. What is the smallest k at which three of them no longer
# fit in this cache?

# %%
guess = None  # k

predict(guess, next(k for k in range(64) if 3 * 4 * 2**k > recorded.l2_bytes))

# %%
largest = recorded.l2_bytes // 12
print(f"Three vectors of {largest:,} elements fill it. The next power of two is 2^{largest.bit_length()}.")
plots.sweep("vector_add")

# %% [markdown]
# The same kernel has three different limits. The figure shows rates, and the dashed line is what the ceilings allow:
# on the left the time of a kernel that does nothing, on the right the bandwidth of the memory. On the left the rate
# grows with the size, so the time stays the same: it is not much more than that of a kernel that does nothing. The
# kernel is *launch-bound*. In the middle the vectors are in the cache, and the rate may pass the memory's. At the
# last size that fits, the vectors take most of the cache, and the rate has already fallen. A likely reason is that
# not all of the cache is of use to one kernel. On the right the memory sets the pace. A rate without a size says
# little.
#
# The call costs the host time as well, before it returns:

# %%
entries = recorded.entries("vector_add", family="add", contender="vectorised")
for entry in sorted(entries, key=lambda entry: entry.x):
    if entry.call_ms and entry.workload in ("2^10", "2^20", "2^28"):
        call, run = entry.call_ms * 1e3, entry.median_ms * 1e3
        print(f"{entry.workload}: the call returns after {call:5.1f} us, the kernel runs for {run:6.1f} us")

# %% [markdown]
# The call checks the arguments and launches, and that is the same work whatever the length of the vectors. Its time
# scatters from size to size all the same, since the host does other things, too; the record does not tell what. It does
# not follow the length. For the longest vectors the call returns long before the kernel is done. A program can then
# queue its next launch, and the GPU never waits. A small kernel is done before its call returns, and the GPU waits for
# the host. [Chapter 22](22_launches.ipynb) is about this cost.
#
# ## End to end
#
# All this time the vectors were already on the device. Usually they are not: they start in host memory, and the
# result is wanted there. [Chapter 0](00_start_here.ipynb) has shown that NumPy on the CPU is then done first.
#
# **Predict, then run.** The whole journey leads from NumPy arrays to a NumPy array. For vectors of 2^28 elements, how
# many times the time of the kernel does it take? The right power of ten will do.

# %%
guess = None  # times as long as the kernel


def one(n, **where):
    return next(entry for entry in recorded.entries("vector_add", **where) if entry.x == n)


kernel = one(2**28, family="add", contender="vectorised")
predict(guess, kernel.end_to_end_ms / kernel.median_ms, unit="times as long", factor=3)

# %%
cpu = one(2**28, family="add", contender="numpy.add")
print(f"NumPy on the CPU:                         {cpu.median_ms:7.1f} ms")
print(f"GPU, from NumPy arrays to a NumPy array:  {kernel.end_to_end_ms:7.1f} ms")
print(f"GPU, the kernel alone:                    {kernel.median_ms:7.1f} ms")

# %% [markdown]
# Where has the time gone? The transfers were measured too, by themselves. Put together with the kernel they
# give a bill. There are two kinds of host memory in it, pageable and pinned. The difference is explained
# below; NumPy's arrays are pageable.

# %%
parts = {"NumPy on the CPU": [0, cpu.seconds, 0]}
for memory in ("pageable", "pinned"):
    there = one(2**30, family="host to device", contender=memory).seconds  # 2^28 float32 are 2^30 bytes
    back = one(2**30, family="device to host", contender=memory).seconds
    parts[f"GPU, {memory} memory"] = [2 * there, kernel.seconds, back]
parts["GPU, data already there"] = [0, kernel.seconds, 0]

# %%
colours = dict(zip(("vectors to the device", "addition", "result to the host"), palette.COLOURS, strict=False))
figure, ax = chart(3.0)
left = np.zeros(len(parts))
for (label, colour), column in zip(colours.items(), np.array([*parts.values()]).T * 1e3, strict=True):
    ax.barh([*parts], column, left=left, color=colour, label=label)
    left += column
for row, total in enumerate(left):
    ax.text(total, row, f" {total:.3g} ms", va="center")
ax.set(xlabel="time (ms) for 2^28 elements", xlim=(0, 1.15 * max(left)), ylim=(3.5, -0.5))
ax.grid(False, axis="y")
ax.legend(loc="lower right")
foot(figure, recorded.footer("vector_add"))
figure

# %% [markdown]
# The addition, the thing that we made fast, can hardly be seen at this scale. The transfers are everything.
# They go over the bus between host and device, whose rate is nowhere near that of the device's memory. Is
# that the whole bill?

# %%
whole, explained = kernel.end_to_end_ms, sum(parts["GPU, pageable memory"]) * 1e3
print(f"measured from NumPy arrays to a NumPy array: {whole:6.1f} ms")
print(f"transfers (pageable) and kernel:             {explained:6.1f} ms")
print(f"the rest:                                    {whole - explained:6.1f} ms")
print(f"the kernel's share of the whole:             {kernel.median_ms / whole:.2%}")

# %% [markdown]
# The rest is neither transfer nor arithmetic. A call with NumPy arrays also allocates: three arrays on the device,
# and one on the host for the result. The operating system provides the pages of such an array only when they are
# first written, and that is during the transfer. These costs were not measured one by one. A program that keeps its
# arrays pays them once.
#
# The next figure has the same comparison over all sizes.

# %%
plots.cpu_gpu("vector_add")

# %% [markdown]
# The dashed line is what a program gets that ships its vectors to the GPU for one addition. The lowest line is the
# kernel alone, with the vectors there. It leaves out the call from Python, which matters on the left. (The
# CPU could do better too: this NumPy works on one core.) A GPU that is slower than the CPU is a common disappointment,
# and this gap is the usual reason. The remedy is to leave data on the device and do much with them there. It decides
# how whole programs are built: a neural network's weights are sent once and stay.
#
# ## Pinned memory
#
# If there must be transfers, they should be fast. Why did it matter where in the host the vectors were? The
# operating system may move or swap out the pages of ordinary, *pageable* memory at any time. So the driver
# first copies them to a buffer that stays where it is, and the GPU fetches them from there. *Pinned* memory
# is promised to stay, and the GPU fetches it directly. There is less of it to go round, and pinning takes
# time: it pays for buffers that are used again. It is a NumPy array like any other:

# %%
x_pinned = cuda.pinned_array(x.shape, x.dtype)
x_pinned[:] = x
print("a NumPy array:", isinstance(x_pinned, np.ndarray))

# %%
plots.transfers("vector_add")

# %% [markdown]
# Small transfers cost the same whatever their size, as small launches do. Only large ones come near the rate
# of the bus. From pageable memory to the device the rate falls again for the longest vectors; a likely reason is that
# the CPU's own cache no longer holds them.
#
# ## Streams
#
# One more thing can be done: the GPU has separate engines for copying in, computing and copying out. A *stream* is a
# queue of work for the device. In one stream, work is done in order. Work in different streams may overlap (PMPP 20.5).
# So we cut the vectors into pieces, and while one piece is added, the one after it is on its way in, and the one before
# it is on its way out.


# %%
def in_pieces(x, y, out, pieces, streams):
    devices = [device.empty(x.shape, x.dtype) for _ in range(3)]
    for k in range(pieces):
        part = slice(k * x.size // pieces, (k + 1) * x.size // pieces)
        stream = streams[k % len(streams)]
        a, b, c = (array[part] for array in devices)
        a.copy_to_device(x[part], stream=stream)
        b.copy_to_device(y[part], stream=stream)
        vector_add.vectorised(a, b, out=c, stream=stream)
        c.copy_to_host(out[part], stream=stream)
    cuda.synchronize()  # wait for all streams


# %% [markdown]
# A transfer can only overlap with anything if its host memory is pinned. The interpreter does one thing after
# the other, so here we see that the result is right. How the pieces would overlap on the GPU we can compute
# from the recorded rates.

# %%
y_pinned, out_pinned = cuda.pinned_array(x.shape, x.dtype), cuda.pinned_array(x.shape, x.dtype)
y_pinned[:] = y
out_pinned[:] = -1
in_pieces(x_pinned, y_pinned, out_pinned, pieces=8, streams=[cuda.stream() for _ in range(3)])
print("equal to NumPy:", np.array_equal(out_pinned, x + y))


# %%
def schedule(pieces):
    """When each engine works on each piece, as (start, length) in seconds; each step waits for the one before it."""
    lengths = [seconds / pieces for seconds in parts["GPU, pinned memory"]]
    free = [0.0, 0.0, 0.0]  # when each engine is free again
    work = [[], [], []]
    for _ in range(pieces):
        ready = 0.0
        for engine, length in enumerate(lengths):
            start = max(ready, free[engine])
            ready = free[engine] = start + length
            work[engine].append((start, length))
    return work, ready


# %%
figure, axes = plt.subplots(2, 1, figsize=(7.8, 3.2), sharex=True, layout="constrained")
for ax, pieces in zip(axes, (1, 8), strict=True):
    work, total = schedule(pieces)
    for engine, (spans, colour) in enumerate(zip(work, colours.values(), strict=True)):
        edge = colour if engine == 1 else "white"  # or the additions would be too short to be seen
        ax.broken_barh([(1e3 * a, 1e3 * b) for a, b in spans], (engine - 0.4, 0.8), facecolors=colour, edgecolor=edge)
    ax.set_yticks(range(3), ["copy in", "add", "copy out"])
    ax.set_title(f"{pieces} piece{'s' if pieces > 1 else ''}: {total * 1e3:.1f} ms, predicted", fontsize=10, loc="left")
    ax.invert_yaxis()
axes[1].set_xlabel("time (ms) for 2^28 elements, from pinned memory")
foot(figure, f"Computed from measured transfers. {recorded.footer('vector_add')}")

# %% [markdown]
# The copies out have moved under the copies in. What remains is the time to bring the vectors in, and no
# trick shortens that. On a GPU the next cell measures it.

# %%
if device.on_gpu():
    from pmpp.lab.measure.bench import measure_host

    big = [cuda.pinned_array(2**26, np.float32) for _ in range(3)]
    for array in big:
        array[:] = 1
    streams = [cuda.stream() for _ in range(3)]
    for pieces in (1, 8):
        took = measure_host(lambda pieces=pieces: in_pieces(*big, pieces, streams))
        print(f"{pieces} piece(s): {took.median * 1e3:.2f} ms for 2^26 elements, measured")
else:
    print("no GPU here: nothing to measure")

# %% [markdown]
# When, then, is the GPU worth the journey? When what is sent is used often enough. For a fade we send the photographs
# once, and compute frame after frame from them. Here is what that means for vectors of 2^28 elements in pageable
# memory. We count the transfers of both vectors and the kernels: the frames stay on the device.

# %%
journey = parts["GPU, pageable memory"][0]
print(f"sending both vectors: {journey * 1e3:.0f} ms")
for frames in (1, 10, 100, 1000):
    on_cpu, on_gpu = frames * cpu.seconds, journey + frames * kernel.seconds
    print(f"{frames:5} frames: NumPy {on_cpu:7.2f} s, GPU {on_gpu:5.2f} s, {on_cpu / on_gpu:5.1f} times as fast")

# %% [markdown]
# ## What to take along
#
# - The bound comes first. It tells you what to work on, here bytes, and when to stop.
# - A grid is always whole blocks, so a kernel needs a guard.
# - Lanes that are neighbours should use addresses that are neighbours.
# - Moving no byte too many is not enough: enough bytes must be in flight.
# - A rate belongs to a size, and a time belongs to a place: kernel alone, or from host to host.
# - Numbers of 16 bits are half the bytes. Store them, and compute in float32.
#
# ## Exercises
#
# Each cell shows a task, with hints to open when you want one, and a kernel to complete. `check` runs your
# kernel on awkward sizes, watches every access, and tells you what it saw.

# %%
exercise("vector_add/saxpy")


# %%
@cuda.jit
def saxpy(a, x, y, out):
    pass  # your code


check("vector_add/saxpy", saxpy)

# %%
exercise("vector_add/neighbours")

# %% [markdown]
# Here is the kernel to start from, and what it does with 2,048 elements. Which column tells you what is wrong
# with it?

# %%
numbers = np.arange(2048, dtype=np.float32)
simt.profile(neighbours_start, 2, 256, (numbers, np.empty_like(numbers)))


# %%
@cuda.jit
def neighbours(x, out):
    pass  # your code


check("vector_add/neighbours", neighbours)

# %%
exercise("vector_add/cross_fade")


# %%
@cuda.jit
def cross_fade(a, b, t, out):
    pass  # your code


check("vector_add/cross_fade", cross_fade)

# %% [markdown]
# **Without a check.** One warp reads `x[i + 1]` and not `x[i]`. How many sectors does its request touch?
# Write the kernel, profile it, and explain the number. Then try `x[i + 8]`.
#
# ## Answers
#
# The cells are folded. Open one when you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def saxpy_answer(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(a) * x[i] + y[i]  # a comes as float64, and would make float64 of the sum


assert check("vector_add/saxpy", saxpy_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def neighbours_answer(x, out):
    first = cuda.blockIdx.x * 1024 + cuda.threadIdx.x
    for k in range(4):
        i = first + k * 256  # in each round the block takes 256 elements side by side: sect/req falls from 16 to 4
        if i < out.size:
            value = x[i]
            out[i] = value * value


assert check("vector_add/neighbours", neighbours_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def cross_fade_answer(a, b, t, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        weight = np.float32(t)
        for colour in range(3):
            # A uint8 has no negative numbers: convert before subtracting.
            first, second = np.float32(a[row, column, colour]), np.float32(b[row, column, colour])
            mixed = first + weight * (second - first)
            out[row, column, colour] = np.uint8(mixed + np.float32(0.5))  # a cast cuts off: 0.5 makes it round


assert check("vector_add/cross_fade", cross_fade_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def shifted_copy(x, out, shift):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i + shift]


for shift in (0, 1, 8):
    counters = simt.profile(shifted_copy, 1, 32, (x, np.empty(32, np.float32), shift)).counters
    print(f"x[i + {shift}]: {counters['global_load_sectors']} sectors")
# 32 elements that begin in the middle of a sector end in the middle of one: five sectors, not four. A shift by
# a whole sector, 8 elements, costs nothing.

# %% [markdown]
# And this is what the chapter began with: the photographs are sent once, and each frame is one launch.

# %% tags=["answer"]
frames = {}
first, second, frame = device.to_device(china), device.to_device(flower), device.empty(china.shape, np.uint8)
for t in (0.0, 0.25, 0.5, 0.75, 1.0):
    cross_fade_answer[(40, 27), (16, 16)](first, second, t, frame)
    frames[f"t = {t}"] = device.to_host(frame)
draw(**frames)

# %% [markdown]
# Go on with [chapter 8](08_warps.ipynb): what the hardware does with 268 million threads.
