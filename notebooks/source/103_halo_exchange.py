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
# # 103. Halo exchange
#
# *Several GPUs: a stencil over ranks, borders and halos, a deadlock, overlap, one-sided writes, wide halos, stores to a
# peer. You need chapters 26 and 99; it takes 80 minutes. PMPP 4e: chapter 20; 5e: chapter 23. The code is
# [pmpp/parallel/halo.py](../pmpp/parallel/halo.py), [pmpp/parallel/plates.py](../pmpp/parallel/plates.py),
# [pmpp/kernels/stencil/jacobi.py](../pmpp/kernels/stencil/jacobi.py) and
# [pmpp/parallel/exercises/halo_exchange.py](../pmpp/parallel/exercises/halo_exchange.py).*
#
# The edge of a metal plate is kept at given temperatures. Which temperature does each point inside have in the end? We
# cut the plate into cells. Each cell becomes the mean of its four neighbours, again and again, until nothing changes
# any more. This is *Jacobi's method*, and a step of it is a stencil of [chapter 26](26_stencil.ipynb).
#
# A plate that is too large, or too slow, for one GPU is cut into parts. Most cells then have all their neighbours in
# their own part. A cell at the edge of a part needs cells of another GPU.
#
# **The questions of this chapter: what do the GPUs have to send each other? In which order? And how much faster are two
# GPUs than one?** Ranks run in this process, as in chapter 99, and their clocks show a model of time. What was measured
# on GPUs comes at the end. (Ranks are threads, so this chapter does not run in the browser edition.)

# %%
import numpy as np

from pmpp import parallel, predict
from pmpp.kernels.stencil import jacobi
from pmpp.lab.draw import knobs, plots
from pmpp.lab.teach import data
from pmpp.lab.teach.source import show
from pmpp.parallel import Links, halo, halo_figures, measure_halo, plates
from pmpp.parallel.exercises import check, exercise
from pmpp.parallel.halo import solve, whole
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## One rank
#
# Here is the kernel: a thread for each cell. The outermost cells of the plate are never written.

# %%
show(jacobi.cell_kernel)

# %% [markdown]
# Our first plate is a photograph, and its grey is the temperature. The frame of the picture keeps its temperatures.
# What happens to the face?

# %%
photo = data.photograph()[20:340:8, 130:390:8].mean(axis=2).astype(np.float32)
alone = {
    steps: whole(photo, parallel.ranks(1, lambda group, n=steps: solve(group, photo, most=n, every=1000)))
    for steps in (0, 4, 40, 160)
}
halo_figures.plates({f"{steps} steps": plate for steps, plate in alone.items()})

# %% [markdown]
# (The chessboard after four steps belongs to the method: a cell's new number does not depend on its own old one.) Small
# things disappear first. In the end only the frame counts: each inner point has the mean of its surroundings, and there
# is no inner point that is hotter or colder than all others.
#
# ## The reference
#
# `halo.reference` makes the same steps in NumPy. It adds in the order of the kernel, (up + down) + (left + right), and
# a quarter of a float32 is exact. So the kernel has to give the same bits, on one rank and on several.

# %%
for steps, plate in alone.items():
    print(f"{steps:4} steps: {(plate != halo.reference(photo, steps)).sum()} cells differ")

# %% [markdown]
# Is the method right, too? A function is *harmonic* if each point is the mean of its surroundings, and that is what the
# plate tends to. Take $u = x^2 - y^2$. On a grid it is exactly the mean of its four neighbours: those to the left and
# to the right have one more than the cell on average, and those above and below have one less. So with these numbers on
# the frame, and 0 inside, all cells have to become $x^2 - y^2$.
#
# How far away are we when the largest change of a step is d? Let L be the shorter side, counted in steps from edge to
# edge. The distance is at most
#
# $$\frac{L^2}{2} (d + 2 u M)$$
#
# Here M is the largest number, u is $2^{-24}$, and 2uM is what three rounded sums and a quarter of them are off by. The
# factor is found with the parabola $2 x (L - x)$: a step lowers each of its inner cells by 1, and it is nowhere larger
# than $L^2 / 2$. If the distance from the solution changes by at most 1 in a step, it lies below this parabola.

# %%
y, x = np.mgrid[:12, :14].astype(np.float32)
exact = x**2 - y**2
start = exact.copy()
start[1:-1, 1:-1] = 0
span = min(exact.shape) - 1

distance, limit = {}, {}
for most in (1, 20, 60, 120, 240):
    found = parallel.ranks(1, lambda group, n=most: solve(group, start, most=n, every=n))
    distance[most] = abs(whole(start, found) - exact).max()
    limit[most] = span**2 / 2 * (found[0].change + 2 * 2.0**-24 * abs(exact).max())
    assert distance[most] <= limit[most]

# %% [markdown]
# The next figure also has NumPy in float64.

# %%
by_numpy = {}
grid = start.astype(np.float64)
for step in range(1, 241):
    grid[1:-1, 1:-1] = (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]) / 4
    by_numpy.update({step: abs(grid - exact).max()} if step in distance else {})
halo_figures.distances({"NumPy, float64": by_numpy, "one rank": distance, "the bound": limit})

# %% [markdown]
# One rank is as near as NumPy, and both stay below the bound. Every 20 steps or so take away a similar share. Jacobi's
# method needs many steps, about $L^2$, and other methods need fewer. But their steps are stencils as well, so what this
# chapter says holds for them.
#
# ## Parts and halos
#
# We cut the plate between rows, and each rank has a part. Around its own cells a part has a *halo*: a row above and a
# row below, with copies of the rows of the ranks next door. The rows that others need are its *border*. After each step
# the ranks exchange borders: what is the border of one part is the halo of the next.

# %%
PLATE = np.random.default_rng(103).random((50, 66), dtype=np.float32)


def rows_of(group):
    part = halo.Part(group, PLATE)
    first = part.place[0]
    return f"rank {group.rank} has rows {first} to {first + part.rows - 1}; its arrays have {part.shape[0]} rows"


print("\n".join(parallel.ranks(4, rows_of)))

# %% [markdown]
# ## What is the bound?
#
# A step reads each cell from memory once and writes it once: 8 bytes, and 4 FLOP. So memory is the bound on one GPU, as
# in chapter 26. With p ranks each has 1/p of the cells, and the best that we can hope for is 1/p of the time.
#
# A border cell has 4 bytes, and it is sent once in a step. A part has few of them: 64 in a row here, and 768 cells in
# all. That is *surface over volume*: a part that is twice as large in both directions has four times as many cells to
# compute, and twice as many to send. A message also takes its alpha, however short it is.
#
# On our clocks a cell takes 10 nanoseconds, a message 2 microseconds, and a byte 0.1 nanoseconds.

# %%
CELL, links = 10e-9, Links(latency=2e-6, bandwidth=10e9)


def clocks(step, size=4, most=2, plate=PLATE, **options):
    """The time of a step, and what the ranks returned. Each plate is compared with the reference."""
    run = lambda group: solve(group, plate, step, most=most, every=1000, cell=CELL, **options)  # noqa: E731
    found = parallel.ranks(size, run, links=links)
    assert (whole(plate, found) == halo.reference(plate, most)).all()
    return max(found.report.seconds) / most, found


single, _ = clocks(halo.both_ways, size=1)
print(f"one rank: {1e6 * single:.2f} microseconds a step; a quarter of it is {1e6 * single / 4:.2f}")
print(f"a border: {1e6 * links.seconds(4 * 66):.2f} microseconds")

# %% [markdown]
# ## Everybody sends first
#
# The first program is the one that comes to mind: each rank sends its borders to its neighbours, and then receives its
# halos. `part.send(side)` sends the border on one side, and `part.receive(side)` fills the halo there. Where nobody is,
# they do nothing.


# %%
def sends_first(group):
    part = halo.Part(group, PLATE)
    part.compute()
    for side in (halo.ABOVE, halo.BELOW):
        part.send(side)
    for side in (halo.ABOVE, halo.BELOW):
        part.receive(side)


try:
    parallel.ranks(4, sends_first)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# This is the deadlock of chapter 99. A send waits until the other rank receives. Ranks 0 and 1 wait for each other, and
# the others wait, too. MPI's `MPI_Send` may copy a short message and return. Then this program works on a small plate
# and hangs on a large one.
#
# ### Exercise: find the deadlock
#
# Which ranks never end? The simulated group knows it as soon as it happens, and now you write what finds it.

# %%
exercise("halo_exchange/stuck")


# %%
def stuck(programs):
    return [rank for rank, calls in enumerate(programs) if calls and calls[0][0] == "recv"]  # your code


check("halo_exchange/stuck", stuck)

# %% [markdown]
# ## One after another
#
# A rank may receive from above before it turns to the rank below: it answers the one above, then sends below, and waits
# for an answer from there. Rank 0 has nobody above, so it begins.
#
# **Predict, then run.** With 8 ranks, how many messages follow one another in a step?

# %%
guess = None  # messages

slow = Links(latency=1.0, bandwidth=1e30)


def in_a_row(step, size):
    """If a message takes a second and a cell nothing, the clock counts messages."""
    run = lambda group: solve(group, PLATE, step, most=1, every=1000)  # noqa: E731
    return round(max(parallel.ranks(size, run, links=slow).report.seconds))


predict(guess, in_a_row(halo.one_after_another, 8), unit="messages")

# %%
show(halo.one_after_another)

# %% [markdown]
# (The axes are for plates that are cut in two directions, which come later. Here only above and below count.) The
# message from rank 0 has to arrive before rank 1 answers and turns to rank 2. So the ranks wait in a chain: with p
# ranks $2 (p - 1)$ messages follow one another. More ranks make the exchange longer.
#
# ## Even and odd
#
# Ranks 2 and 3 can exchange while 0 and 1 do. So even ranks turn to the rank below first, and odd ranks to the rank
# above. Then the other pairs follow.

# %%
show(halo.even_odd)

# %%
for size in (2, 4, 8, 12):
    chain, pairs = in_a_row(halo.one_after_another, size), in_a_row(halo.even_odd, size)
    print(f"{size:3} ranks: one after another {chain:3} messages in a row, even and odd {pairs}")

# %% [markdown]
# Four messages in a row, however many ranks there are: there and back for one pair, and for the other one.
#
# ### Exercise: fill the halo

# %%
exercise("halo_exchange/exchange")


# %%
def exchange(group, cells):
    above, below = group.rank - 1, group.rank + 1
    if below < group.size:
        group.send(cells[-2:-1], below)
    if above >= 0:
        group.recv(cells[:1], above)  # your code


check("halo_exchange/exchange", exchange)

# %% [markdown]
# ## Both ways at once
#
# A link carries a message in each direction at a time. So all ranks send up while they receive from below, and then the
# other way round. `part.shift(side)` does this by `send_recv`, which MPI calls `MPI_Sendrecv`.

# %%
show(halo.both_ways)

# %%
show(halo.exchange)

# %% [markdown]
# Now two messages follow one another. How long is a step, with the cells?

# %%
took = {step.__name__: clocks(step)[0] for step in (halo.one_after_another, halo.even_odd, halo.both_ways)}
for name, seconds in took.items():
    print(f"{name:18} {1e6 * seconds:6.2f} microseconds a step: efficiency {single / 4 / seconds:.0%}")

# %% [markdown]
# *Efficiency* is the time of one rank, divided by the number of ranks and by their time. It is 100% if a step takes a
# quarter. Messages are still a third of the step, and nobody computes meanwhile.
#
# ## Overlap
#
# The inner cells of a part need no halo, and nobody needs them. So a rank computes its border first. While that
# travels, it computes the rest.

# %%
show(halo.overlapped)

# %% [markdown]
# `part.cells` launches a kernel and returns how long it will take, so the rank goes on, and `until` waits for its end.
#
# **Predict, then run.** A rank has 12 x 64 cells, of which two rows are border. A cell takes 10 ns, and the two
# messages take 4.05 microseconds. How long is a step now?

# %%
guess = None  # microseconds

overlapped, found = clocks(halo.overlapped, most=1)
predict(guess, 1e6 * overlapped, unit="microseconds")

# %%
_, apart = clocks(halo.both_ways, most=1)
halo_figures.timelines(
    {"both ways": [one.spans for one in apart], "overlapped": [one.spans for one in found]},
)

# %% [markdown]
# A rank has two bars: the upper one computes, and the lower one exchanges. The messages are hidden behind the other
# cells, so the step takes as long as the cells alone. (Ranks 0 and 3 have one neighbour, so half as much border.)
#
# That works as long as the messages are shorter than the rest. Turn the knobs: at which latency do they stick out?

# %%
latency, ranks = 2.0, 4


def draw(latency, ranks):
    chosen = Links(latency=latency * 1e-6, bandwidth=10e9)
    runs = {}
    for step in (halo.both_ways, halo.overlapped):
        run = lambda group, step=step: solve(group, PLATE, step, most=2, every=1000, cell=CELL)  # noqa: E731
        runs[step.__name__] = [one.spans for one in parallel.ranks(ranks, run, links=chosen)]
    return halo_figures.timelines(runs)


knobs.turn(draw, latency=(latency, (0.5, 2.0, 5.0, 10.0)), ranks=(ranks, (2, 4, 8)))

# %% [markdown]
# With four ranks the rest takes 6.4 microseconds, so two messages of more than 3.2 stick out. With eight ranks there is
# less to compute, and 2.0 is too much already.
#
# ## Writing into the neighbour's halo
#
# A send needs a receive: both ranks have to be ready. GPUs that reach each other's memory can do without. A rank writes
# its border straight into the neighbour's halo. This is *one-sided* communication. NVSHMEM and MPI's windows work like
# this, and so does a kernel that stores to a peer.
#
# The neighbour then has to be told two things: when it may read its halo, and when the writer may write there again. A
# *window* is an array that others may write to, and a *signal* tells them. The simulated group looks at every access.
# If no signal says which of two comes first, it is an error, in whatever order they happened. Here is a program without
# the wait:


# %%
def impatient(group):
    part = halo.Part(group, PLATE)
    window = group.window(part.new)
    part.compute()
    if group.rank == 0:
        window.write(part.new[part.rows : part.rows + 1], to=1, at=0)
        window.signal(to=1)
    elif group.rank == 1:
        window.rows(at=0, count=1)


try:
    parallel.ranks(2, impatient)
except parallel.CommunicationError as error:
    print(error)

# %% [markdown]
# The numbers may well be right today, since rank 0 runs first here. On two GPUs rank 1 would sometimes read the halo of
# the step before. Now with its waits:

# %%
show(halo.one_sided)

# %% [markdown]
# There is one signal for each step and side, and it says both things. A rank signals in step t when its new border is
# there. Before that it had read its halo of step t - 1 to compute this border. And there are two arrays that take
# turns: what is written in step t + 1 is the halo that was read in step t - 1. With one array a second signal would be
# needed: "I have read it".
#
# All windows of a group have one shape. NVSHMEM's *symmetric heap* asks for the same. So a rank with fewer rows has an
# array of the same size, and does not use all of it.

# %%
(long, _), (short, found) = clocks(halo.one_sided, most=6), clocks(halo.one_sided, most=2)
print(f"one_sided: {1e6 * (6 * long - 2 * short) / 4:.2f} microseconds a step; overlapped: {1e6 * overlapped:.2f}")
found.report

# %% [markdown]
# To open the windows is a collective. It happens once, so the time is that of six steps less that of two. The bytes of
# the borders are the same as before, as they must be. Signals are messages of their own here. On GPUs the flag travels
# right behind the data.
#
# ## Rows, or rows and columns?
#
# With many ranks, parts of whole rows become thin. A *mesh* cuts the plate in both directions: with 16 ranks as 4 x 4,
# a rank has up to four neighbours. A column does not lie in one piece in memory, so a kernel packs it into an array
# first.
#
# **Predict, then run.** A plate has 1024 x 1024 inner cells. With 16 ranks below each other, a rank in the middle sends
# two rows: about 8 KiB. How many KiB does it send in a mesh of 4 x 4?

# %%
guess = None  # KiB

predict(guess, halo.halo_bytes(1024, 1024, (4, 4)) / 1024, unit="KiB")

# %% [markdown]
# The halo of a square is shorter than that of a strip. With p ranks a strip has two rows of n cells, whatever p is. A
# square has four sides of $n / \sqrt{p}$ cells. We count on a smaller plate what the simulated links carry.

# %%
SIDE = 48
square = np.random.default_rng(1).random((SIDE + 2, SIDE + 2), dtype=np.float32)
meshes = {"below each other": [(3, 1), (4, 1), (9, 1), (16, 1)], "mesh": [(3, 3), (4, 4)]}
counted = {name: {} for name in meshes}
for name, shapes in meshes.items():
    for mesh in shapes:
        size, middle = mesh[0] * mesh[1], mesh[1] * (mesh[0] // 2) + mesh[1] // 2
        nbytes = clocks(halo.both_ways, size, 1, square, mesh=mesh)[1].report.nbytes
        counted[name][size] = sum(count for (source, _), count in nbytes.items() if source == middle)
        assert counted[name][size] == halo.halo_bytes(SIDE, SIDE, mesh)
halo_figures.surfaces(SIDE, SIDE, meshes, counted)

# %% [markdown]
# Each mark is on its line. A rank in a mesh of 3 x 3 already sends fewer bytes than one of nine strips. But it sends
# four messages in a row and not two, and packs columns. For a few GPUs with fast links, rows are the better choice; for
# hundreds, meshes are.
#
# ### In space
#
# A grid of three dimensions is cut along its first two axes, in the same way. A cell becomes the mean of six, a border
# is a plane, and all ways above work as they are. There is more surface for the same volume. (A sixth is no float32,
# but all ranks round it in the same way.)

# %%
cube = np.random.default_rng(2).random((20, 20, 20), dtype=np.float32)
for mesh in ((9, 1), (3, 3)):
    took, found = clocks(halo.overlapped, 9, 1, cube, mesh=mesh)
    most = max(sum(n for (source, _), n in found.report.nbytes.items() if source == rank) for rank in range(9))
    print(f"{mesh}: a rank sends at most {most:6,} bytes, and a step takes {1e6 * took:.2f} microseconds")

# %% [markdown]
# The plate of 48 x 48 has 2304 cells, and a strip of nine sent 400 bytes. This cube has 18 cells in each direction,
# which is two and a half times as many in all. A slab of nine sends eight times as many bytes.
#
# ## Wide halos
#
# For a short border the time of a message is alpha. Can there be fewer messages? A halo of k rows has enough for k
# steps. In the first of them a rank also computes k - 1 rows of its halo on each side, in the next one k - 2, and so
# on. These rows are computed twice, by two ranks.

# %%
show(halo.wide)

# %% [markdown]
# **Predict, then run.** Four ranks below each other make 12 steps with a halo of 4. How many messages are sent in all?

# %%
guess = None  # messages

_, found = clocks(halo.wide, most=12, halo=4)
predict(guess, sum(found.report.messages.values()), unit="messages")

# %% [markdown]
# There are three exchanges, and in each of them three pairs send two messages. The bytes are about those of 12
# exchanges of one row: each message is four times as long.
#
# So alpha is paid once in k steps, and the price is more work in each of them. The least time is between.

# %%
quick, dear = Links(latency=2e-6, bandwidth=10e9), Links(latency=10e-6, bandwidth=10e9)
marks = {}
for links in (quick, dear):
    marks[links.latency] = {width: clocks(halo.wide, most=width, halo=width)[0] for width in (1, 2, 4, 8)}
links = quick
halo_figures.widths(48, 64, (4, 1), CELL, (quick, dear), 12, marks)

# %% [markdown]
# The dearer a message is, the wider the best halo. A rank with more columns has more to compute for each row of halo,
# so its best halo is narrower.
#
# Wide halos and overlap are two ways to the same end. Overlap costs nothing as long as there is enough to compute; a
# wide halo also helps where a part is small.
#
# ### Exercise: how wide?

# %%
exercise("halo_exchange/width")


# %%
def width(rows, columns, cell, latency, bandwidth, most):
    return most  # your code


check("halo_exchange/width", width)

# %% [markdown]
# ## When is it done?
#
# Each rank knows the largest change of its own cells. To stop together, the ranks need the largest of all: an
# all-reduce of one number ([chapter 99](99_all_reduce.ipynb)). It has 4 bytes, so it costs its alphas, and it cannot be
# hidden: whether there is a next step depends on it.
#
# If a rank stopped by its own change, it would leave the others waiting. This is one of the planted mistakes in
# `tests/parallel/programs.py`.
#
# **Predict, then run.** With eight ranks a step of `overlapped` takes 5.3 microseconds. Now an all-reduce follows each
# step. The group's all-reduce goes around a ring, whose messages are all short here: 2 microseconds each. Which share
# of the clock does the all-reduce take?

# %%
guess = None  # %


def looked_at(every, size=8):
    run = lambda group: solve(group, PLATE, halo.overlapped, most=8, every=every, cell=CELL)  # noqa: E731
    return max(parallel.ranks(size, run, links=links).report.seconds) / 8


rarely = looked_at(100)
predict(guess, 100 * (1 - rarely / looked_at(1)), unit="%")

# %%
for every in (1, 2, 4, 8):
    print(f"every {every} steps: {1e6 * looked_at(every):6.2f} microseconds a step, without {1e6 * rarely:.2f}")

# %% [markdown]
# Fourteen messages follow one another in this ring. (Recursive doubling would need three.) So the change is looked at
# every 50 steps, say. Then up to 49 steps are made for nothing. Among thousands that does not matter.
#
# ## On GPUs
#
# All programs above take any group. `python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.plate` runs them in
# four processes, and other backends are MPI and NCCL. Only windows need ranks in one process.
#
# The calls have these names in the libraries that people use:
#
# | here | MPI | NCCL | NVSHMEM |
# |---|---|---|---|
# | `send`, `recv` | `MPI_Send`, `MPI_Recv` | `ncclSend`, `ncclRecv` | |
# | `send_recv` | `MPI_Sendrecv` | both between `ncclGroupStart` and `ncclGroupEnd` | |
# | `window` | `MPI_Win_create` | | `nvshmem_malloc` |
# | `write` and `signal` | `MPI_Put`, `MPI_Win_fence` | | `nvshmem_putmem_signal` |
# | `wait` | `MPI_Win_fence` | | `nvshmem_signal_wait_until` |
# | `all_reduce` | `MPI_Allreduce` | `ncclAllReduce` | `nvshmem_float_max_reduce` |
#
# MPI copies through the host, or from GPU to GPU if it was built for that. NCCL's calls are queued on a stream like
# kernels. NVSHMEM's can be made inside a kernel, as ours below.
#
# In one process a GPU can load and store the memory of another one, once `enable_peer_access` has been called. `plates`
# has three ways for a plate on several GPUs, as functions that queue a step:
#
# - `whole_exchange` computes, and then copies border rows from GPU to GPU.
# - `overlapped` copies on a second stream while a second kernel computes the rest. Events say what waits for what.
# - `peer_stores` launches one kernel. Its border blocks store into the neighbour's halo themselves.

# %%
show(plates.peer_stores)

# %% [markdown]
# This is the kernel. `above` and `below` are arrays of other GPUs, and in the code they are arrays like all others.

# %%
show(jacobi.peer_step_for)

# %% [markdown]
# *Flags.* After its stores a block sets a flag in the neighbour's memory by `store_release_system`: whoever sees the
# flag sees the stores before it. The neighbour's block waits with `load_acquire_system`. A plain store and a plain load
# promise neither. A flag is for one block of 1024 columns. So no block waits for a whole row, and nobody counts.
#
# *Overlap* comes by itself. The blocks of the border strips have the first numbers, so they start first. While they
# wait, the other blocks compute. And the host orders nothing: it launches the next step right away.
#
# *A limit.* A block that waits for ever would hang both GPUs. So it gives up after some seconds, and says so in the
# last flag.
#
# Here all parts are on one device, and the bits are those of the reference.

# %%
for way in plates.WAYS:
    several = plates.Plates(PLATE, [0, 0, 0], way)
    several.run(3)
    print(f"{way.__name__:15} {(several.whole() != halo.reference(PLATE, 3)).sum()} cells differ")

# %% [markdown]
# What is it worth? `python -m pmpp.parallel.measure_halo` measures it on two GPUs, and compares the bits first. The
# plate has 16384 x 16384 cells, and every 50 steps the host reads the largest change.

# %%
plots.drawn(halo_figures.measured)

# %% [markdown]
# The dashed line is an equal share of the time on one GPU. A border of 64 KiB is little beside the 2 GiB that each step
# moves, so all ways are near it, and `peer_stores` is nearest. Where is the rest lost? Here are two steps of each way,
# from events before and behind what was queued.

# %%
plots.drawn(halo_figures.measured_timelines)

# %% [markdown]
# With `whole_exchange` a GPU waits while the rows travel and until it hears that its halo is there. With `overlapped`
# the copies are hidden, but the kernels for single rows take as long as a launch takes, and nothing else runs
# meanwhile. A step of `peer_stores` is one kernel, and the next one follows at once. (Each GPU has a clock of its own.
# How far the rows of two GPUs are shifted against each other says little.)
#
# For which plates does it matter? We take the model, for two GPUs whose memory moves 4 TB/s, and a copy that takes 5
# microseconds and goes at 350 GB/s.

# %%
halo_figures.bounds([2**k for k in range(7, 16)], 8 / 4e12, Links(latency=5e-6, bandwidth=350e9))

# %% [markdown]
# On small plates the messages take longer than the cells, and nothing can hide them. Up to a side of 2048 one GPU is
# faster than two. From 4096 on memory is the bound, and overlap hides the messages. At 16384 the cells take more than
# twenty times as long as the messages. And what do GPUs do?

# %%
plots.drawn(halo_figures.efficiencies)

# %% [markdown]
# On the dashed line two GPUs are as fast as one. The model is too kind to small plates, since there is no host in it. A
# step cannot be shorter than the host takes to queue it, and it queues for one GPU after the other. `peer_stores` needs
# one launch for each GPU, and `overlapped` needs eight calls. On all plates but the largest these cost more than the
# overlap saves, and `whole_exchange` is faster. A CUDA graph ([chapter 22](22_launches.ipynb)) would replace most of
# them.
#
# With four GPUs each has half as many cells as with two, and there are twice as many launches. What does that do to the
# curves?

# %%
for found in measure_halo.recorded(4)["smaller"]:
    print(f"side {found['side']}: {1e6 * found['ways']['peer_stores']['seconds']:.0f} µs a step by peer_stores")
plots.drawn(halo_figures.efficiencies, 4)

# %% [markdown]
# They move to the right: a plate has to be larger before four GPUs are worth it. Up to a side of 8192 a step of
# `peer_stores` takes about as long, whatever the side. This is what the host needs for four launches. With a side of
# 8192 it used two GPUs well, and of four it wastes almost half. On the largest plate four GPUs are nearly four times as
# fast as one, if the way has few calls. `overlapped` has eight for each GPU, so it gains nothing from messages that are
# hidden.
#
# ## What to take along
#
# - A part has a halo around its cells, and ranks exchange borders after each step. Bits need not change.
# - If all send first, all wait. Pairs of even and odd ranks, or `send_recv`, do not.
# - The border first, then the rest: messages are hidden as long as the rest takes longer.
# - One-sided writes need signals: that the data is there, and that its place may be written again. With two arrays one
#   signal says both.
# - Strips send two rows whatever p is. Squares send less, in more messages.
# - A halo of k cells saves k - 1 of k messages, and costs cells that are computed twice.
# - The largest change of all ranks needs an all-reduce, so it is looked at rarely.
# - A kernel can store to a peer, and a flag with release and acquire says when.
#
# ## Exercises
#
# Besides the three above, without a check:
#
# 1. *A torus.* The plate's upper edge is joined to its lower edge, so rank 0 is the neighbour of the last rank. Which
#    of the ways above still work, and for which numbers of ranks?
# 2. *Nine points.* A stencil also needs the four cells at its corners. Which messages are needed in a mesh of 2 x 2,
#    and which of them does `exchange` send already?
#
# ## Answers

# %% [markdown]
# *halo_exchange/stuck:* let pairs go on until nothing happens.


# %% jupyter={"source_hidden": true} tags=["answer"]
def stuck_answer(programs):
    left = [list(calls) for calls in programs]
    going = True
    while going:
        going = False
        for rank, calls in enumerate(left):
            if calls and calls[0][0] == "send":
                peer = calls[0][1]
                if left[peer] and left[peer][0] == ("recv", rank):
                    calls.pop(0), left[peer].pop(0)
                    going = True
    return [rank for rank, calls in enumerate(left) if calls]


check("halo_exchange/stuck", stuck_answer)

# %% [markdown]
# *halo_exchange/exchange:* the pairs of even and odd. With `send_recv` each pair needs one call.


# %% jupyter={"source_hidden": true} tags=["answer"]
def exchange_answer(group, cells):
    for parity in (0, 1):
        if group.rank % 2 == parity:
            if group.rank + 1 < group.size:
                group.send_recv(cells[-2:-1], group.rank + 1, cells[-1:], group.rank + 1)
        elif group.rank > 0:
            group.send_recv(cells[1:2], group.rank - 1, cells[:1], group.rank - 1)


check("halo_exchange/exchange", exchange_answer)

# %% [markdown]
# *halo_exchange/width:* add up k steps, divide by k, and try all widths.


# %% jupyter={"source_hidden": true} tags=["answer"]
def width_answer(rows, columns, cell, latency, bandwidth, most):
    def seconds(k):
        cells = sum((rows + 2 * i) * columns for i in range(k))
        return (cells * cell + 2 * (latency + 4 * k * columns / bandwidth)) / k

    return min(range(1, most + 1), key=seconds)


check("halo_exchange/width", width_answer)

# %% [markdown]
# *A torus:* one after another is a deadlock, since nobody begins. Even and odd work for an even number of ranks. With
# an odd number the last rank and rank 0 are both even, and turn to each other in different turns: a third turn is
# needed. `send_recv` works for every number.
#
# *Nine points:* a rank also needs one cell of the rank across. `exchange` sends rows first. The columns that follow
# have the full height with the halo, so the corners come along, from a rank that has just received them.
#
# Go on with [chapter 104](104_thousands_of_gpus.ipynb): what a training waits for on many machines.
