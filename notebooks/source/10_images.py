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
# # 10. Images
#
# *Grids and blocks of two dimensions, row-major order, boundary tests, single bytes, windows, running sums, and patches
# of threads. Read chapters [4](04_vector_add.ipynb) and [8](08_warps.ipynb) before. 75 minutes. PMPP 4e: sections 3.1
# to 3.3 and 6.1; 5e: sections 3.1 to 3.3 and 6.1. The code is
# [pmpp/kernels/images/grey.py](../pmpp/kernels/images/grey.py),
# [pmpp/kernels/images/blur.py](../pmpp/kernels/images/blur.py) and
# [pmpp/kernels/images/rotation.py](../pmpp/kernels/images/rotation.py).*
#
# A camera delivers three bytes for each pixel: how red, how green and how blue it is. Many programs that look at
# pictures first make them grey, and then blur them, so that noise disappears. Every pixel of the result can be computed
# by itself, and a picture has millions of them.
#
# **The question of this chapter: how do threads share out an image, and does it matter which thread gets which pixel?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import images
from pmpp.kernels.images import blur, grey, rotation
from pmpp.lab.draw import palette, plots
from pmpp.lab.draw.style import STYLE, chart, foot
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach import data
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.dots import dot_high

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## An image is a vector
#
# Our image is a photograph of a pagoda. As an array it has three axes: rows, columns and colours.

# %%
photograph, _ = data.photographs()
h, w, colours = photograph.shape
print(f"{h} rows, {w} columns, {colours} colours, {photograph.dtype}: {photograph.nbytes:,} bytes")


def draw(**pictures):
    figure = plt.figure(figsize=(7.8, 2.4), layout="constrained")
    axes = figure.subplots(1, len(pictures))
    for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=255)
        ax.set_title(title.replace("_", " "))
        ax.set_axis_off()


draw(photograph=photograph, its_red_bytes=photograph[..., 0], its_blue_bytes=photograph[..., 2])

# %% [markdown]
# Memory has no rows and columns. It is one long line of bytes. NumPy and CUDA arrays lie in it in *row-major order*:
# all of row 0, then all of row 1, and so on (PMPP 3.2). Within a row come the columns one after another, and within a
# pixel its three colours. So the byte of a colour lies at place
#
# $$3 \, (\text{row} \cdot w + \text{column}) + \text{colour}.$$
#
# When you write `x[row, column, colour]`, this is what the compiler computes.
#
# **Predict, then run.** At which place is the green (colour 1) of the pixel in row 2 and column 10? The image has 640
# columns.

# %%
guess = None  # place

places = np.arange(photograph.size).reshape(photograph.shape)
predict(guess, int(places[2, 10, 1]))

# %% [markdown]
# Two whole rows come before, 1,280 pixels, and ten pixels of the row itself: 1,290 times three bytes, and one more.
# Remember two distances. The neighbour to the right is 3 bytes away. The neighbour below is 1,920 bytes away.
#
# ## The bound
#
# How bright is a pixel? The eye is most sensitive to green, so PMPP adds 0.21 of red, 0.72 of green and 0.07 of blue.
# We take these weights in 256ths: 54, 184 and 18. Then all arithmetic is of integers, and exact. A sum of 256 weights
# means that white stays white. The result is rounded to the nearest, and a half is rounded up. (PMPP cuts off.)

# %%
show(grey.reference)

# %%
corner = np.ascontiguousarray(photograph[:40, :40])
exact = grey.reference(corner)
rounded = np.floor(corner @ np.array([0.21, 0.72, 0.07]) + 0.5)
print("the largest difference from PMPP's weights, rounded:", int(abs(exact - rounded).max()))

# %% [markdown]
# A pixel moves three bytes in and one out. For that it needs three multiplications, three additions and a shift: less
# than two operations for each byte. As in [chapter 4](04_vector_add.ipynb) the memory is the bound.
#
# **Predict, then run.** Four bytes for each pixel of the photograph, at the bandwidth that was measured: how many
# microseconds are that?

# %%
guess = None  # microseconds

ceilings = roofline.ceilings("vector_add")
predict(guess, roofline.bound(grey.cost(h, w), ceilings).seconds * 1e6, unit="us")

# %% [markdown]
# That is less than it takes to launch a kernel at all. So a single photograph of this size is *launch-bound*. To see
# what the kernels themselves do, the record below also has images of up to 16384 x 16384 pixels.
#
# ## A grid of two dimensions
#
# A launch may give grids and blocks two sizes: `kernel[(4, 2), (32, 8)]` has 4 blocks along x and 2 along y, each of 32
# x 8 threads (PMPP 3.1). `cuda.grid(2)` returns a thread's place, x first. For images a thread takes a pixel. Its x and
# y become a column and a row, or the other way round.
#
# Blocks are launched whole, and few images are a multiple of a block in both directions. So a kernel has to test both
# coordinates. One test does not replace the other: a column that is too large is, in row-major order, a pixel of the
# next row.
#
# **Predict, then run.** The photograph has 427 x 640 pixels, and a block 8 rows of 32 threads. How many threads find no
# pixel?

# %%
guess = None  # threads

rows, columns = -(-h // 8), -(-w // 32)  # blocks, rounded up
predict(guess, rows * columns * 256 - h * w, unit="threads")

# %% [markdown]
# 640 is a multiple of 32, so no column is too large. 427 is not a multiple of 8: the last row of blocks has five rows
# of threads too many.
#
# ## Rung 1: `rows_first`
#
# The axes of an array begin with the row, so let x be the row and y be the column.

# %%
show(grey.brightness)
show(grey.rows_first_kernel)

# %%
picture = device.to_host(grey.rows_first(photograph))
some = slice(100, 110)
print("as the reference:", np.array_equal(picture[some], grey.reference(photograph[some])))
draw(photograph=photograph, grey=picture)

# %% [markdown]
# Right. But is it fast? Threads are cut into warps along x first: a warp is 32 threads with one y and neighbouring x
# ([chapter 8](08_warps.ipynb)). Here these are 32 pixels *below each other*.
#
# **Predict, then run.** A warp loads the red bytes of its 32 pixels. How many sectors of 32 bytes does this request
# touch?

# %%
guess = None  # sectors


def sectors(rung, kind="load"):
    counters = lab.count(rung, photograph).counters
    return counters[f"global_{kind}_sectors"] / counters[f"global_{kind}_requests"]


predict(guess, sectors(grey.rows_first), unit="sectors")

# %% [markdown]
# Two rows are 1,920 bytes apart, so each lane has a sector of its own. (The mean is a little lower than 32: the last
# warp of a column has fewer lanes.) The warp wants 32 bytes, and the memory sends 1,024.
#
# ## Rung 2: `columns_first`
#
# Exchange the axes: x is the column. Nothing else changes.

# %%
show(grey.columns_first_kernel)

# %%
for rung in (grey.rows_first, grey.columns_first):
    print(f"{rung.name:14} {sectors(rung):5.2f} sectors a load, {sectors(rung, 'store'):5.2f} a store")

# %% [markdown]
# Now the 32 pixels of a warp lie side by side. They are 96 bytes, three sectors, and each of the three loads touches
# all three. The store of 32 grey bytes is one sector. That is coalesced. The rule is the same for every array: **x goes
# along the axis whose neighbours lie closest together in memory.** Here these are the columns, since the three colours
# of a pixel belong to one thread.
#
# What remains? A warp's request is for 32 bytes, though it could be for 512 ([chapter 4](04_vector_add.ipynb)). A GPU
# has to keep many bytes under way, and with single bytes it needs too many requests for that.
#
# ## Rung 3: `sixteen_each`
#
# Rows and columns are only a way to count. In memory the image is a vector of pixels, and what becomes grey does not
# depend on where it stands. So go back to one dimension: a thread takes 16 pixels that lie side by side. These are 48
# bytes, three 128-bit loads, and 16 bytes of result, one store.

# %%
show(grey.four_pixels)
show(grey.sixteen_each_kernel)

# %% [markdown]
# `words` is the image once more, seen as words of four bytes. A shift and a mask (`a >> 8 & 255`) take a byte out of a
# word. The test for the end of rows has gone. A single one is left for the end of the image.

# %%
for rung in grey.LADDER:
    counters = lab.count(rung, photograph).counters
    print(f"{rung.name:14} {counters['global_load_requests']:7,} loads, {counters['global_store_requests']:6,} stores")

# %% [markdown]
# Sixteen times fewer requests for the same bytes. Here is what the ladder gives at 16384 x 16384 pixels, in shares of
# the roof.

# %%
plots.drawn(plots.ladder, "grey")

# %% [markdown]
# Each bar is a rung or a library, from naive to fast, and 100 % is the time in which the memory moves four bytes for
# each pixel. PyTorch and CuPy compute the same by several kernels, one after another, with whole arrays between them.
# Can a bar be longer than 100 %? The roof was measured by a copy, which writes as many bytes as it reads. Here three
# quarters of the bytes are read, and the memory of an H200 is a little faster at that.
#
# And the photograph itself? The next figure has the time of the last rung for images of growing size.


# %%
def times():
    kept = record.load(room="grey")
    entries = sorted(kept.entries("grey", contender=grey.LADDER[-1].name), key=lambda entry: entry.sizes["n"])
    figure, ax = chart(3.2)
    pixels = [entry.sizes["n"] for entry in entries]
    colour = palette.COLOURS[len(grey.LADDER) - 1]
    ax.plot(pixels, [1e3 * entry.median_ms for entry in entries], "o-", color=colour, label="measured")
    least = [roofline.bound(entry.cost, kept.ceilings("grey")).seconds * 1e6 for entry in entries]
    ax.plot(pixels, least, "--", color=palette.INK, label="bound by the memory")
    ax.axvline(h * w, color=palette.NOTE, linewidth=1, label="the photograph")
    ax.set(xscale="log", yscale="log", xlabel="pixels", ylabel="time (us)", title="sixteen_each")
    ax.legend()
    foot(figure, kept.footer("grey"))
    return figure


plots.drawn(times)

# %% [markdown]
# The dashed line is straight: twice the pixels, twice the time. A measured line has two parts. For few pixels it is
# flat, because to start a kernel and to wait for the memory once takes as long for a hundred pixels as for a hundred
# thousand. For many pixels it follows the dashed line. (It comes close to that line once before, at four million
# pixels. That image and its result fit into the L2 cache, where the launch before has left them.) The photograph stands
# on the flat part, so a faster kernel would gain little for it. Many photographs in one launch would gain more.
#
# NumPy on the CPU, beside the kernel alone and the kernel with both transfers:

# %%
plots.drawn(plots.cpu_gpu, "grey", xlabel="pixels")

# %% [markdown]
# The dashed line of the GPU includes the call and the way to the GPU and back. Its distance from the solid line is what
# these cost: for so little arithmetic they are nearly all of the time. The kernel alone is faster than NumPy at every
# size. With the transfers it is slower for small images, and faster for large ones: NumPy works on one core here, and
# goes over the image several times. The transfers weigh less if more is done with the image while it is on the GPU.
# (The two points close together, near $2^{18}$, are the image of 512 x 512 and the photograph.)
#
# ## A window around each pixel
#
# A *box blur* replaces each pixel by the mean of the square around it, with (2 r + 1) x (2 r + 1) pixels for a radius r
# (PMPP 3.3). Now a thread reads more than its own pixel. And there is a second kind of boundary. Near the border of the
# image a part of the square is outside. We do as PMPP does: what is outside is not counted, and the sum is divided by
# the number of pixels that are inside.

# %%
show(blur.reference)

# %%
corner = np.array([[90, 0, 0], [0, 0, 0]], np.uint8)
print(blur.reference(corner, 1))

# %% [markdown]
# In the first column four pixels are inside, and in the middle six: 90 / 4 = 22.5 is rounded up, and 90 / 6 is 15. If
# all were divided by nine, the borders would become dark.
#
# ### Rung 1: `direct`

# %%
show(blur.direct_kernel)

# %% [markdown]
# There are two tests. The outer one is of the thread: does it have a pixel? The inner one is of each place in its
# square.
#
# The bound does not depend on the radius: each byte has to be read once and written once. The work of this kernel does.
#
# **Predict, then run.** Far from the border, with a radius of 8, how many additions does it need for each pixel? How
# many is that for each of the two bytes?

# %%
guess = {"additions": None, "for each byte": None}  # of one pixel

square = (2 * 8 + 1) ** 2  # pixels
predict(guess, {"additions": square, "for each byte": square / blur.cost(1, 1).bytes})

# %% [markdown]
# When does arithmetic become the bound? An SM of an H200 does 64 additions of integers in a cycle of its clock, and the
# memory delivers about 18 bytes to an SM in that time. So from four operations a byte on it is arithmetic. With a
# radius of 1 the sum already needs nine additions for two bytes, and each comes with a load, a test and a count.
#
# ### Rung 2: `separable`
#
# The sum of a square is a sum of sums. First add up 2 r + 1 pixels *down* each column, for every pixel. Then add up 2 r
# + 1 of these sums *along* the rows.

# %%
show(blur.down_kernel)
show(blur.along_kernel)

# %%
few = np.ascontiguousarray(picture[:64, :64])
for radius in (1, 2, 4, 8):
    loaded = [lab.count(rung, few, radius).counters["global_load_bytes"] / few.size for rung in blur.LADDER[:2]]
    print(f"radius {radius}: {loaded[0]:6.1f} bytes loaded for a pixel by direct, {loaded[1]:6.1f} by separable")

# %% [markdown]
# The sums between the kernels take four bytes each, so with a small radius no bytes are saved. With a large one it is
# 2 (2 r + 1) loads, and no longer the square of 2 r + 1. The limits of the loops are computed before they begin, so
# that no place has to be tested. Two kernels are needed, because a thread needs sums that threads of other blocks have
# computed. Only the end of a kernel makes sure that all are there.
#
# ### Rung 3: `running`
#
# Go down a column by one row. The new sum has one pixel more at its lower end, and one less at its upper end. All
# others are the same. So let a thread walk, and keep a *running sum*: add what enters, subtract what leaves.

# %%
show(blur.running_down_kernel)
show(blur.running_along_kernel)

# %% [markdown]
# Down the columns, where a thread walks through up to 128 rows, this is coalesced: the lanes of a warp walk side by
# side, and read neighbours of one row. Along the rows it is not, since each lane walks through sixteen neighbours of
# its own. That walk is short, so that what a warp touches is still in the cache when its lanes come by again. But each
# walk begins with a sum of 2 r pixels, so that a large radius still costs a little more.
#
# **Predict, then run.** With the radius 8, how many times fewer bytes does `running` load than `direct`?

# %%
guess = None  # times fewer

loaded = [lab.count(rung, few, 8).counters["global_load_bytes"] for rung in (blur.direct, blur.running)]
predict(guess, loaded[0] / loaded[1], unit="times")

# %%
draw(radius_2=device.to_host(images.box_blur(picture, 2)), radius_16=device.to_host(images.box_blur(picture, 16)))

# %% [markdown]
# At the design size, 8192 x 8192 pixels and a radius of 8, the record says:

# %%
plots.drawn(plots.ladder, "blur")

# %% [markdown]
# The bars are again shares of the roof: 100 % is the time for two bytes a pixel. The figure has two more rungs, which
# come next. `running` moves more than two bytes: the sums of four bytes go to memory and come back, so that it is ten.
# That explains a factor of five, and the bar is shorter still. The likely reason for the rest is its many small
# requests, which are counted below. The last two rungs keep the sums on the chip.
#
# ### Rung 4: `fused`
#
# This rung uses what later chapters teach, and you may come back to it. One kernel makes both walks. A lane of a warp
# has 16 columns, and its *registers* hold the running sums down these columns. Lanes of a warp can read each other's
# registers by a *shuffle* ([chapter 30](30_reduction.ipynb)). So after each row a lane gets the sums of its neighbours,
# and walks along its 16 pixels. The outer lanes of a warp lack neighbours. They write nothing, and are there for the
# others.
#
# With few bytes to move, the instructions count, and there are three ways to have fewer of them. The first way: a word
# of 32 bits has room for two sums of 16. One instruction, `byte_perm`, takes the bytes 0 and 2 out of a word of four
# pixels and puts each below a byte of zeros. Then *one* addition adds them to two sums.
#
# **Predict, then run.** A sum down a column has 2 r + 1 bytes. Up to which radius does it fit into 16 bits, whatever
# the image is?

# %%
guess = None  # radius

predict(guess, next(r for r in range(1024) if 255 * (2 * (r + 1) + 1) >= 2**16))

# %% [markdown]
# 255 times 257 is 65,535, the largest number of 16 bits.
#
# The second way: the sum of a window of radius 8 has up to 17 bits, and two of them do not fit. But the *difference* of
# two windows that follow each other does. It is the sum that enters minus the sum that leaves. So one subtraction of
# words gives two differences. But if the lower difference is negative, it borrows from the upper one. With 2^15 added
# it never is.
#
# **Predict, then run.** Two differences stand in a word: 5 in the upper half, and -3 in the lower one. What is in the
# upper half, if nothing is added?

# %%
guess = None  # in the upper half

word = ((9 << 16) + 4) - ((4 << 16) + 7)
predict(guess, word >> 16)

# %%
lifted = word + 2**15
print("with 2^15 added:", lifted >> 16, "and", (lifted & 0xFFFF) - 2**15)

# %% [markdown]
# The third way: the mean needs no division of integers. A float32 between 2^23 and 2^24 has its integer in its lowest
# bits: its bits are those of 2^23 plus the integer. So the sums of the windows are added to the bits of 2^23, and
# nothing has to be converted. The sum times one over the number of pixels, plus 2^23, is a single multiply-add, of
# which an H200 does twice as many as of additions of integers. It rounds to an integer, and the mean stands in the
# lowest byte. Why is that exact, and up to which radius?

# %%
show(blur.rounded)

# %% [markdown]
# So the largest radius is 44. A larger one is left to `running`, and so is an image whose rows do not begin at
# multiples of 16 bytes. The kernel is `fused_for` in the room. The radius is a constant of it, so that the compiler
# knows beforehand which half of which word each sum is.

# %%
for rung in blur.LADDER[2:4]:
    counters = lab.count(rung, picture, 8).counters
    moved = (counters["global_load_sectors"] + counters["global_store_sectors"]) * 32 / picture.size
    loads = counters["global_load_requests"]
    print(f"{rung.name:8} {moved:6.1f} bytes asked for or stored for a pixel, in {loads:7,} loads")

# %% [markdown]
# ### Rung 5: `circular_buffer`
#
# What does `fused` do more than once? It loads a row when it enters the windows of a walk, and once more when it leaves
# them. And where a walk begins, 2 r rows have to be loaded before the first one is written. The caches have nearly all
# of these rows, but they have to deliver them. What a lane has asked for also needs registers until it comes, so that a
# warp can have few loads under way.
#
# Let each row come once, and keep it until it leaves. Shared memory has the room: with a radius of 8 a warp keeps 17
# rows of 512 bytes, and a few more that are under way. The row that leaves makes room for the next one that comes, so
# that the rows go round in a *circular buffer* ([chapter 41](41_merge.ipynb)). *Asynchronous copies* bring them
# ([chapter 40](40_tensor_cores.ipynb)). The lane that starts one goes on at once, and waits only when it needs the row.
#
# The rows around the border of a walk are still needed by two walks. So two warps begin in the middle of a tile, and
# walk away from each other. Their first windows have 2 r rows in common, and each warp fetches half of them for both.
#
# **Predict, then run.** With a radius of 8, a walk of `fused` loads 48 rows to write 16, three for each. How many rows
# does a pair of warps load now for each that it writes, if each of the two writes 32 rows?

# %%
guess = None  # rows

written = 2 * (blur.WALK[1] + 2 * 8)  # by both warps
predict(guess, (written + 2 * 8) / written, unit="rows")

# %% [markdown]
# The pair writes 64 rows, and needs 8 more on either side. Longer walks would load even less. But there would be fewer
# of them, and while the last ones run, most multiprocessors have nothing to do any more.
#
# The sums are added up as in `fused`. The kernel is `circular_buffer_for` in the room. The next figure has the radius
# on its horizontal axis.


# %%
names = ("direct", "separable", "running", "fused", "circular_buffer", "torch.avg_pool2d", "cupy.correlate1d")


def by_radius():
    kept = record.load(room="blur")
    figure, ax = chart(3.4)
    for name, colour, marker in zip(names, palette.COLOURS, palette.MARKERS, strict=False):
        entries = [entry for entry in kept.entries("blur", family="blur") if entry.contender == name]
        points = sorted((entry.sizes["radius"], entry.median_ms) for entry in entries)
        ax.plot([at for at, _ in points], [ms for _, ms in points], color=colour, marker=marker, label=name)
    bound = roofline.bound(blur.cost(8192, 8192), kept.ceilings("blur"))
    ax.axhline(1e3 * bound.seconds, color=palette.INK, linestyle="--", label="bound by the memory")
    ax.set(xscale="log", yscale="log", xlabel="radius (pixels)", ylabel="time (ms)", title="8192 x 8192 pixels")
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("blur"))
    return figure


plots.drawn(by_radius)

# %% [markdown]
# Every rung has to move the same bytes, and so it has the same dashed bound. The two libraries convert the image to
# float32 first, and move more. Where a line rises with the radius, the *instructions* of the kernel are its bound,
# loads from the cache among them: their number grows with the square of the radius in `direct`, and in proportion to it
# in `separable`. Where a line is flat, the time goes into what every radius needs. `running` and `fused` come nearer to
# that, and still rise: each walk begins with a sum of 2 r rows or columns. `fused` walks down at most 16 rows, so its
# beginnings weigh more, and with a large radius more of its lanes are there for the others only.
#
# With a small radius `circular_buffer` comes nearest to the dashed line. The larger the radius, the more rows wait in
# shared memory, and the fewer warps are on a multiprocessor. So a radius above 16 is left to `fused`, and there the two
# lines are one.
#
# On a large image most of the halo is in the caches, so that little more than two bytes for a pixel come from and go to
# the memory. Still both lines are above the dashed one. Bytes have to be unpacked, added, passed on and packed, and
# that takes time as well. Both can go on at the same time only if some warps add up while others wait. Registers limit
# the number of warps in `fused`, and shared memory does in `circular_buffer`. A blur that reads and writes floats would
# have four times the bytes, and less to unpack.
#
# ## A turned image
#
# So far a thread and its pixels had the same place. To turn an image, the thread of a pixel of the *result* asks where
# that pixel came from. The other way round, where a pixel of the image goes to, some places of the result would get
# two pixels and others none.
#
# The place where it came from lies between four pixels. *Bilinear sampling* takes a mean of them, and the nearer one
# counts more. Positions are whole numbers here, pixels times 2^32, and eight bits of the fraction are the weight, as in
# the texture units of a GPU. Numba has no access to these units, so we do by hand what they do.

# %%
show(rotation.place)
show(rotation.mean)

# %%
turned = {f"{degrees}_degrees": rotation.in_rows(picture, np.radians(degrees)) for degrees in (10, 45)}
draw(**{title: device.to_host(image) for title, image in turned.items()})

# %% [markdown]
# ### Rung 1: `in_rows`

# %%
show(rotation.sampled)
show(rotation.in_rows_kernel)

# %% [markdown]
# Each of the four loads has its own test, because the image ends somewhere between the four. In the result a warp has
# 32 neighbours of one row. In the image these lie on a slanted line, and turned by 90 degrees on a column.
#
# **Predict, then run.** A sector has 32 bytes. Turned by 90 degrees, far from the border, how many sectors does a load
# of a warp read? And how many at least, if the image is not turned?

# %%
guess = {"turned": None, "not turned": None}  # sectors a load

lanes = np.arange(32)
predict(guess, {"turned": np.unique(lanes * w // 32).size, "not turned": np.unique(lanes // 32).size})

# %% [markdown]
# ### Rung 2: `in_patches`
#
# Give the warp another piece of the result: not 32 x 1 pixels, but a patch of 8 x 4. However it is turned, it stays
# compact, and touches few rows of the image.

# %%
show(rotation.in_patches_kernel)

# %%
for degrees in (0, 15, 30, 60, 90):
    a_load = []
    for rung in rotation.LADDER[:2]:
        counters = lab.count(rung, few, np.radians(degrees)).counters
        a_load.append(counters["global_load_sectors"] / counters["global_load_requests"])
    print(f"{degrees:2} degrees: {a_load[0]:4.1f} sectors a load by in_rows, {a_load[1]:4.1f} by in_patches")

# %% [markdown]
# Without a turn the row is the better piece: the patch has four rows, and so at least four sectors. At 15 degrees the
# patch reads less already, and from 30 on at most half. Turned by any of these angles, a load of the patch reads at
# most about twice what it reads without a turn. Graphics hardware works on patches for the same reason. Whether fewer
# sectors also take less *time* is another question, which the last figure of this section answers.
#
# ### Rung 3: `in_words`
#
# What is left is instructions: the products of 64 bits for each position, four tests, and a store of one byte. Let a
# thread have four neighbours. The position of the next one is an addition away, and whole numbers make it exact. Four
# bytes are stored as one word. And the four positions lie on a line: if its two ends are between pixels of the image,
# so is the rest, and nothing has to be tested.

# %%
show(rotation.in_words_kernel)

# %% [markdown]
# ### Rung 4: `in_boxes`
#
# Each pixel of the image is loaded about four times, by lanes that do not know of each other, and every load of a warp
# touches several sectors. So let a block fetch what it needs beforehand. Its tile has 64 x 64 pixels. Turned by any
# angle, it comes from a *box* of the image with at most 92 rows. The block loads the box in *pieces* of eight pixels of
# a row, at most 13 for each row, and keeps it in *shared memory*, which all its threads can read: see
# [chapter 12](12_matmul.ipynb). Outside of the image the box has zeros, so that no pixel is tested any more. A tile
# whose box is wholly outside only stores zeros.
#
# **Predict, then run.** A tile of 64 x 64 pixels is turned by 45 degrees. How many times as many pixels as the tile has
# the smallest box around it?

# %%
guess = None  # times as many

turn = np.radians(45)
predict(guess, (np.cos(turn) + np.sin(turn)) ** 2, unit="times")

# %% [markdown]
# In shared memory each pixel stands beside its right neighbour: pixels 0 and 1, then 1 and 2. That doubles the bytes,
# and halves the loads: a *pair* is one of them. And one multiplication weights both pixels of a pair.
#
# Shared memory has 32 *banks*, and a load of a warp takes as long as its fullest bank. So the lanes have patches
# again, of 8 x 4 pixels or of 4 x 8. With which of them fewer pairs lie in one bank depends on the angle, and the
# launch counts it beforehand.

# %%
for degrees in (0, 30, 60, 90, 120, 150):
    wide, tall = (rotation.passes(*rotation.steps(np.radians(degrees)), shape) for shape in (True, False))
    print(f"{degrees:3} degrees: a load takes {wide:4.2f} passes with patches of 8 x 4, and {tall:4.2f} with 4 x 8")

# %% [markdown]
# Which pieces a block loads stands in a list, which the launch passes to the kernel. Each lane takes six pieces from
# it. It loads all of them before it puts the first one into the box, so that it waits for the memory only once. The
# pixel to the right of a piece it takes from the next lane, by a shuffle.

# %%
show(rotation.load_pieces)
show(rotation.put_pieces)
show(rotation.pixel_in)

# %% [markdown]
# The kernel fills the box, waits for all its threads, and then computes patch by patch. The results of a warp wait in
# shared memory, too, until a lane can store 16 neighbours of a row at once. The kernel is made by a function, so that
# the next rungs can replace parts of it: how many batches of six pieces a lane loads, `pixel_in`, and how many tiles a
# block computes. Here that is one.

# %%
show(rotation.boxes_kernel)

# %% [markdown]
# ### Rung 5: `in_pieces`
#
# The box stands upright in the image, and the tile is turned in it. So the corners of the box are fetched in vain.
# Which pieces the tile touches depends on the angle alone, but for where exactly it begins: up to one row and up to
# eight columns further. One list holds for all tiles, if it has each piece that *some* tile needs. The kernel stays
# what it is.
#
# **Predict, then run.** At 45 degrees the tile covers half of the smallest box around it. What share of the pieces of
# the box is in the list?

# %%
guess = None  # share


def in_list(degrees, whole):
    lanes = device.to_host(rotation.pieces_of(*rotation.steps(np.radians(degrees)), whole))
    return np.unique(lanes[lanes >= 0])


predict(guess, in_list(45, False).size / in_list(45, True).size)

# %%
figure, axes = plt.subplots(1, 4, figsize=(7.8, 2.2), layout="constrained")
for ax, degrees in zip(axes, (0, 15, 30, 45), strict=True):
    pieces = np.zeros((rotation.BOX_ROWS, rotation.BOX_PIECES))
    for whole in (True, False):
        places = in_list(degrees, whole)
        pieces[places & 255, places >> 8] += 1
    extent = (0, 8 * rotation.BOX_PIECES, rotation.BOX_ROWS, 0)
    ax.imshow(pieces, aspect="auto", cmap="Blues", vmin=0, vmax=2.5, extent=extent, interpolation="nearest")
    ax.grid(False)
    ax.set(title=f"{degrees} degrees", xlabel="column")
_ = axes[0].set_ylabel("row of the box")

# %% [markdown]
# Dark is what the list has, and light what else is in the box. The steps at the edges are pieces. Where a tile is not
# turned, it needs nearly all of its box, and the list saves little.
#
# ### Rung 6: `by_dots`
#
# What is left is arithmetic. The mean of a pair is two products and a sum, of numbers that need 9 and 8 bits of a
# register's 32. GPUs have an instruction for such *dot products*, `dp2a`, which Numba does not expose, and so we do
# ([pmpp/runtime/dots.py](../pmpp/runtime/dots.py)): `dot_low(weights, values, total)` is `total + w0 * v0 + w1 * v1`.
# The weights `w0` and `w1` are the halves of one word, 16 bits each. `v0` and `v1` are the lower two bytes of another;
# `dot_high` takes its upper two. All of these are unsigned.
#
# **Predict, then run.** The weights are 200 in the lower half of a word and 56 in the upper half. The values are the
# bytes 10, 20, 30 and 40, from the lowest on, and the total is 128. What does `dot_high` give?

# %%
guess = None  # the sum


@cuda.jit
def one_product(out, weights, values, total):
    out[0] = dot_high(weights, values, total)


found = device.empty(1, np.uint32)
values = np.uint8([10, 20, 30, 40]).view(np.uint32)[0]
one_product[1, 1](found, np.uint32(200 + (56 << 16)), values, np.uint32(128))
predict(guess, int(device.to_host(found)[0]))

# %%
show(rotation.pixel_by_dots)

# %% [markdown]
# Six dot products do nearly all of a pixel's arithmetic. Two weight the pairs, and two more weight what these give. The
# other two use a part of a position where it lies, so that no instruction has to cut it out first. One multiplies the
# row by the *pitch*, the number of pairs from one row of the box to the next, and adds the column, which a shift has
# cut out. The other one makes both weights of a pair out of one share: 256 plus 65535 times the share is the share in
# the upper half, and 256 less the share in the lower one.

# %% [markdown]
# ### Rung 7: `ahead`
#
# A block still does one thing after the other. It waits for its pieces, and only then computes. Other blocks on the
# same multiprocessor compute meanwhile, if some of them are not waiting as well. So let a block compute four tiles, one
# below the other. While it computes one, what it has to fetch for the next is on its way to *registers*. And it reads
# the list only once for four tiles.
#
# More blocks on a multiprocessor are not always better. This kernel asks for as many registers as leave room for eight
# blocks. A ninth has a box, too. It would be taken from the memory that shared memory and the L1 cache have together,
# and the pieces come by way of that cache.
#
# Two barriers are needed now. One is between the filling of the box and the first pixel that is read from it, and the
# other one between the last of these pixels and the next filling.

# %%
for rung in rotation.LADDER[2:]:
    counters = lab.count(rung, picture, np.radians(30)).counters
    loads, shared = (counters[f"{kind}_load_requests"] * 32 / picture.size for kind in ("global", "shared"))
    integer = counters["inst_integer"] * 32 / picture.size
    print(
        f"{rung.name:9} a pixel: {loads:4.2f} global loads, {shared:4.2f} shared loads, "
        f"{integer:3.0f} integer instructions"
    )

# %% [markdown]
# Recorded for 16384 x 16384 pixels, by the angle:


# %%
def by_angle():
    kept = record.load(room="rotation")
    names = (*(rung.name for rung in rotation.LADDER), "torch.grid_sample", "cupy.affine_transform")
    figure, ax = chart(3.4)
    colours = (*palette.COLOURS[: len(rotation.LADDER)], palette.INK, palette.NOTE)
    for name, colour, marker in zip(names, colours, palette.MARKERS, strict=False):
        entries = [entry for entry in kept.entries("rotation", family="rotation") if entry.contender == name]
        points = sorted((entry.sizes["degrees"], entry.median_ms) for entry in entries)
        ax.plot([at for at, _ in points], [ms for _, ms in points], color=colour, marker=marker, label=name)
    bound = roofline.bound(rotation.cost(16384, 16384), kept.ceilings("rotation"))
    ax.axhline(1e3 * bound.seconds, color=palette.INK, linestyle="--", label="bound by the memory")
    ax.set(yscale="log", xlabel="angle (degrees)", ylabel="time (ms)", title="16384 x 16384 pixels", ylim=(0.05, None))
    figure.legend(loc="outside right upper")
    foot(figure, kept.footer("rotation"))
    return figure


plots.drawn(by_angle)

# %% [markdown]
# For most angles `in_rows` and `in_patches` take the same time. Their instructions are the bound, and the cache
# delivers the sectors meanwhile, few or many. Only when the image is turned far do the sectors of a row take longer
# than the instructions, and at 90 degrees `in_rows` takes more than twice as long. So the patch buys a time that does
# not depend on the angle. What makes every angle faster is to have fewer instructions: `in_words`. Then its four loads
# from the cache become the bound, and `in_boxes` replaces them by two from shared memory. That is the largest step.
#
# For `in_pieces` the list is shorter. The counts before the figure, at 30 degrees, show half as many global loads. It
# is only a little faster, so these loads are not what the kernel waits for most. Without a turn, and at 90 degrees, the
# list saves next to nothing, and both lines meet. Fewer instructions, in `by_dots`, and loads that are on their way
# while a tile is computed, in `ahead`, make every angle faster once more. `torch.grid_sample` works on floats, and
# reads two more of them for each pixel: they say where it comes from.
#
# The dashed line is still below all of them. To move a byte in and a byte out takes less time than a pixel's loads from
# shared memory and its twenty or so integer instructions.
#
# ## What to take along
#
# An array of two or three axes lies in memory as one line, in which neighbours along the last axis are neighbours.
# Lanes of a warp differ in x first, so let x run along the axis whose neighbours lie closest together. Test every
# coordinate that a block can overshoot, and every place that a window can reach. Where rows do not matter, take the
# image as a vector, with wide loads. Where windows overlap, compute what they share once. Where threads read in a
# direction that is not known beforehand, give a warp a patch and not a row, and fetch into shared memory what a block
# will read.
#
# ## Exercises
#
# `check` runs your kernel in the interpreter on images of several shapes. Replace `pass` by your code.
#
# ### 1. Mirror
#
# Each pixel of the result comes from another place of the same row.

# %%
exercise("images/mirror")


# %%
@cuda.jit
def mirrored(x, out):
    pass  # your code


check("images/mirror", mirrored)

# %% [markdown]
# ### 2. Green
#
# Here the image comes as the line of bytes that it is, and you compute the place.

# %%
exercise("images/green")


# %%
@cuda.jit
def greens(x, out):
    pass  # your code


check("images/green", greens)

# %% [markdown]
# ### More, without a check
#
# - The blocks of `columns_first` have 32 x 8 threads. What would 8 x 32 change about the sectors of a load? Count it
#   with
#   `simt.profile`.
# - Blur an image twice with a radius of 4. Compare it with a radius of 8: which one looks smoother, and why?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def mirror_answer(x, out):
    column, row = cuda.grid(2)
    h, w = x.shape[0], x.shape[1]
    if row < h and column < w:
        for colour in range(3):
            out[row, column, colour] = x[row, w - 1 - column, colour]


assert check("images/mirror", mirror_answer)

# %% [markdown]
# *Mirror.* A warp reads its pixels from right to left. They are still 96 bytes that lie together: coalesced means that
# few sectors are touched, in whatever order.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def green_answer(x, out):
    column, row = cuda.grid(2)
    h, w = out.shape
    if row < h and column < w:
        out[row, column] = x[3 * (row * w + column) + 1]


assert check("images/green", green_answer)

# %% [markdown]
# *Green.* All pixels before this one, three bytes each, and then the second of its own.

# %% jupyter={"source_hidden": true} tags=["answer"]
for block in ((32, 8), (8, 32)):
    grid = (-(-w // block[0]), -(-h // block[1]))
    report = simt.profile(grey.columns_first_kernel, grid, block, (photograph, np.zeros((h, w), np.uint8)))
    counters = report.counters
    print(block, f"{counters['global_load_sectors'] / counters['global_load_requests']:.2f} sectors a load")

# %% [markdown]
# *8 x 32.* A warp then covers 8 columns of 4 rows: four pieces of 24 bytes, each in a sector of its own or in two.

# %% jupyter={"source_hidden": true} tags=["answer"]
twice = device.to_host(images.box_blur(images.box_blur(picture, 4), 4))
draw(twice_radius_4=twice, once_radius_8=device.to_host(images.box_blur(picture, 8)))

# %% [markdown]
# *Twice.* Both reach eight pixels far. Blurred twice, near pixels count more than far ones, and the blocky look of the
# box is gone. The weights of [chapter 24](24_convolution.ipynb) may be any.
#
# Go on with [chapter 12](12_matmul.ipynb): the matrix product, where arithmetic can become the limit.
