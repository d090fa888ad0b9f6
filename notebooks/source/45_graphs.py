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
# # 45. Graphs
#
# *Breadth-first search by vertices, by edges and by a list of the frontier; a grid that waits for itself; equal work
# for lists of any length; pushing and pulling; PageRank. Read chapters [28](28_histogram.ipynb),
# [34](34_scan.ipynb), [41](41_merge.ipynb) and [44](44_sparse.ipynb) before. 75 minutes. PMPP 4e: chapter 15; 5e:
# chapter 18. The code is [pmpp/kernels/graph/ladder.py](../pmpp/kernels/graph/ladder.py), with device functions in
# [lists.py](../pmpp/kernels/graph/lists.py) and [sets.py](../pmpp/kernels/graph/sets.py).*
#
# A *graph* is a set of *vertices* and of *edges* that lead from one to another: people and who knows whom, pages and
# links, crossings and roads. How many edges away is each vertex from a given one? A *breadth-first search* finds that
# out level by level: first the neighbours, then the neighbours of these, and so on.
#
# In all chapters before, a thread could compute from its number what it had to do. Here each level says what the next
# one has to do. **The question of this chapter: who works on what, if only the work itself tells where there is any?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import graph
from pmpp.kernels.graph import by_launches, pagerank, workloads
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record, roofline
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device
from pmpp.runtime.rung import Cost

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## Two graphs
#
# The first is real, and stands on your machine: the modules of Python's standard library. An edge leads from each
# module to each one that it imports.

# %%
names, tails, heads = graph.imports()
print(f"{len(names)} modules, {tails.size} imports")
for name in ("calendar", "turtle"):
    print(f"{name} imports", ", ".join(names[w] for w in heads[tails == names.index(name)]))

# %% [markdown]
# A graph is stored as a sparse matrix without values: the `neighbours` of each vertex, list by list, and where each
# list `starts`. This one is *directed*. In an undirected graph each edge is stored twice, with both of its ends.

# %%
starts, neighbours = graph.both_ways([0, 0, 1, 2, 4], [1, 2, 3, 3, 5], vertices=6)
print("starts     ", *starts)
print("neighbours ", *neighbours)
print("levels from vertex 3:", *graph.reference(starts, neighbours, 3))

# %% [markdown]
# No path leads from vertex 3 to the vertices 4 and 5: their level is -1.
#
# **Predict, then run.** `turtle` draws pictures, and imports a few modules. How many imports away from `turtle` is the
# module that is farthest away?

# %%
guess = None  # imports

library = graph.directed(tails, heads, len(names), source=names.index("turtle"))
levels_of_library = graph.reference(*library)
predict(guess, int(levels_of_library.max()), unit="imports")

# %% [markdown]
# The second graph is drawn by chance, and can have any size. The model *R-MAT* draws each edge as a walk through the
# matrix of all pairs: into one of its four quarters, in there again into one of four, and so on. The quarters have
# different probabilities. So a few vertices get very many edges: a *power law*, as in chapter 44.


# %%
def rmat(scale):
    """2^scale vertices with 16 edges drawn for each, both ways; from the first vertex that has one."""
    starts, neighbours = graph.both_ways(*graph.edges_rmat(scale, each=16), 1 << scale)
    return starts, neighbours, int(np.argmax(starts[1:] > 0))


small = rmat(10)
degrees = np.diff(small[0])
print(f"{degrees.size:,} vertices, {small[1].size:,} edges, {(degrees == 0).sum()} vertices without any")

# %% [markdown]
# **Predict, then run.** How many edges has the vertex with the most, as a multiple of the mean?

# %%
guess = None  # times the mean

predict(guess, degrees.max() / degrees.mean(), factor=1.5, unit="times")

# %% [markdown]
# How large are the frontiers of both graphs? A *frontier* is the vertices of one level.

# %%
scale = 10


def frontiers(scale):
    figure, ax = chart(3.2)
    drawn = (("the library", library), (f"R-MAT, 2^{scale} vertices", rmat(scale)))
    for number, (name, arguments) in enumerate(drawn):
        found = graph.reference(*arguments)
        share = np.bincount(found[found >= 0]) / found.size
        ax.plot(100 * share, palette.MARKERS[number], ls="-", color=palette.COLOURS[number], label=name)
    ax.set(xlabel="level", ylabel="share of all vertices (%)", title="The size of the frontier")
    figure.legend(loc="outside right upper")
    return figure


knobs.turn(frontiers, scale=(scale, (8, 10, 12)))

# %% [markdown]
# In R-MAT nearly all that can be reached is found in two or three levels, however large the graph is. Friends of
# friends are many, and their friends are everybody. Such graphs are called *small worlds*. The library's modules lie in
# layers, and its frontiers are small.
#
# ## The bound
#
# There is nothing to compute. Each list must be read once, with where it starts, and each level is written once.

# %%
show(graph.cost)

# %% [markdown]
# **Predict, then run.** R-MAT with $2^{22}$ vertices and 16 edges drawn for each, both ways, on an H200 with its
# published bandwidth: how many microseconds does a search take at least?

# %%
guess = None  # us

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
vertices, edges = 2**22, 2 * 16 * 2**22
design = graph.cost(vertices, edges)
predict(guess, design.bytes / h200.bandwidth * 1e6, factor=1.15, unit="us")

# %% [markdown]
# That is for lists which are read once, side by side. But for each edge somebody also asks whether its other end has a
# level already. That end may be any vertex. The answer has 4 bytes, and it comes in a sector of 32 bytes from the
# second-level cache.
#
# ## The reference

# %%
show(graph.reference)

# %% [markdown]
# ## A grid that waits for itself
#
# A level can begin when the one before has ended, in all blocks. The classical way is a launch for each level. Between
# two of them the host reads how many vertices were found, and stops when there are none.

# %%
show(by_launches.step_kernel)
show(by_launches.levels_by_launches)

# %% [markdown]
# Here the GPU waits for the host in every level. The other way is one launch for all levels. In it all threads of the
# grid meet at a barrier: `cuda.cg.this_grid().sync()`, of *cooperative groups*. This works only if all blocks are
# there at the same time. Otherwise those that are there wait for others that cannot begin. So the grid is as large as
# the GPU holds at once, and its threads take the vertices by turns.

# %%
show(graph.meet)
show(graph.grid_for)

# %% [markdown]
# Somebody has to count what a level has found, and all have to read the same count. A block that is ahead may count for
# the next level while another one still reads. So each level has a number of its own, and three of them are enough.
#
# While some still read the number of level 7, others may add to that of level 8. Nobody can have begun level 9, since
# all have to meet at the end of level 8. So its number can be set to 0 now, and a fourth one is not needed.
#
# A path shows what a level costs: each of its levels has one vertex.


# %%
def entries(family, *names, workload=None):
    """What the record says of contenders; of the design size, if no workload is named."""
    kept = record.load(room="graph")
    found = (
        kept.design("graph", family) if workload is None else kept.entries("graph", family=family, workload=workload)
    )
    if not found:
        raise record.RecordError(f"{kept.where} has no {family} {workload or ''} in room 'graph'")
    return [entry for entry in found if entry.contender in names], kept


def recorded(*names):
    try:
        found, kept = entries("R-MAT", *names)
        for entry in found:
            share = roofline.share(Cost(entry.flops, entry.bytes), entry.seconds, kept.ceilings("graph"))
            print(f"{entry.contender:20} {entry.median_ms * 1e3:9.4g} us, {share:6.1%} of the roof")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


def a_level():
    length = workloads.LENGTH
    for entry in entries("path", "levels_by_launches", "frontier", workload=f"of {length:,}")[0]:
        print(f"{entry.contender:20} {entry.median_ms * 1e3 / length:6.3g} us for each of {length:,} levels")


plots.drawn(a_level)

# %% [markdown]
# ## Rung 1: `by_vertex`
#
# A thread looks at each vertex in each level. If it is on the frontier, its neighbours get the next level, unless they
# have one. This is *push*.

# %%
show(graph.by_vertex_kernel)

# %% [markdown]
# Why an atomic? Several threads may find the same vertex, but all of them would write the same number. And who reads it
# meanwhile sees -1 or the new level, and neither is the frontier's. On today's GPUs a plain store would do. But the
# language does not promise that: it calls a store beside a load of the same element a race, and the compiler may rely
# on there being none. The interpreter says so, too. `atomic.cas` is a promise, and it costs little where a level is
# written once.
#
# **Predict, then run.** All loads of all warps together ask for sectors of 32 bytes. In the graph with $2^{10}$
# vertices, how many bytes are that for each edge? A neighbour and its level have 4 bytes each.

# %%
guess = None  # bytes for each edge


def asked_for(rung, arguments=small):
    """Bytes of the sectors that all loads ask for, for each edge."""
    found = lab.count(rung, *arguments)
    assert np.array_equal(found.result, graph.reference(*arguments))
    return 32 * found.counters["global_load_sectors"] / arguments[1].size


predict(guess, asked_for(graph.by_vertex), factor=1.2, unit="bytes")

# %% [markdown]
# Two sectors for each edge: lanes read different lists, so the neighbours of two lanes are as far apart as their
# levels. Lanes come back to a neighbour's sector in their next steps, and caches help with that. What is really bad
# here is who does it.

# %%
recorded("by_vertex")

# %% [markdown]
# One thread reads the longest list alone. At scale 22 that has hundreds of thousands of edges, and the thread waits for
# the neighbour and then for its level, again and again. The rest of the GPU has long finished.
#
# ## Rung 2: `pulled`
#
# Turn it round: who has no level looks whether one of its neighbours is on the frontier. The first one is enough.
# For a directed graph this needs the edges turned round as well, as a second set of lists.

# %%
show(graph.pulled_kernel)

# %% [markdown]
# **Predict, then run.** For how many bytes does `pulled` ask, for each edge of the same graph?

# %%
guess = None  # bytes for each edge

predict(guess, asked_for(graph.pulled), factor=1.3, unit="bytes")

# %% [markdown]
# Early levels are the waste. As long as the frontier is small, nearly everybody looks at all neighbours and finds
# nobody. And a vertex that cannot be reached looks in every level. Late levels are a bargain, and we come back to that.

# %%
recorded("by_vertex", "pulled")

# %% [markdown]
# ### Exercise: parents
#
# Levels say how far it is. A *parent* says where to go: a neighbour that is one level nearer to the source. Following
# parents gives a shortest path.

# %%
exercise("graph/parents")


# %%
@cuda.jit
def parents(starts, neighbours, levels, parents):
    pass  # your code


check("graph/parents", parents)

# %% [markdown]
# ## Rung 3: `by_edge`
#
# A thread takes an edge instead of a vertex. No thread has a long list, and edges are read side by side. Each edge has
# to know its tail, which is stored with it: the format COO of chapter 44.

# %%
show(graph.by_edge_kernel)

# %% [markdown]
# **Predict, then run.** And for how many bytes does `by_edge` ask?

# %%
guess = None  # bytes for each edge

predict(guess, asked_for(graph.by_edge), factor=1.3, unit="bytes")

# %% [markdown]
# Every edge is looked at in every level. But edges of one vertex lie side by side, so most lanes of a warp ask for the
# same tail's level. And all threads have equally much to do:

# %%
recorded("by_vertex", "pulled", "by_edge")

# %% [markdown]
# On a path with a million vertices, it would be a million times a million edges. Work that grows as levels times edges
# is only for small worlds.
#
# ### Exercise: shorter ways
#
# With lengths of edges, "how far" is no longer a number of steps. An edge can offer a shorter way to its head again and
# again. Bellman and Ford let all edges do that until nothing changes.

# %%
exercise("graph/shortest")


# %%
@cuda.jit
def shorter(tails, heads, weights, distances, new):
    pass  # your code


check("graph/shortest", shorter)

# %% [markdown]
# ## Rungs 4 and 5: `frontier` and `privatised`
#
# Who is on the frontier need not be searched for. Whoever finds a vertex appends it to a list, and the next level takes
# the list. Now the atomic has a second task: of all threads that see a vertex at the same time, the one that replaces
# the -1 has found it, and no other appends it.

# %%
show(graph.frontier_kernel)

# %% [markdown]
# All threads count their places in one number in memory. In `privatised` a block counts in shared memory, as for a
# histogram in [chapter 28](28_histogram.ipynb), and takes places for all of its vertices with one atomic.
#
# **Predict, then run.** How many atomics go to the count in memory, for the graph with $2^{10}$ vertices?

# %%
guess = {"frontier": None, "privatised": None}  # atomics


def to_the_count(rung):
    return sum(report.contention["totals"].lanes for report in lab.count(rung, *small).reports if report.contention)


truth = {rung.name: to_the_count(rung) for rung in (graph.frontier, graph.privatised)}
predict(guess, truth, factor=1.3, unit="atomics")

# %% [markdown]
# `frontier` needs one for each vertex that is found, and `privatised` one for each block and level.

# %%
recorded("by_vertex", "frontier", "privatised")

# %% [markdown]
# In both rungs one thread still reads the longest list alone, as in `by_vertex`. So here neither gains, and both take
# even longer. A list of the frontier is for graphs with many levels, whose frontiers are a small part of all. This is a
# grid of 4096 rows and as many columns of points, with four neighbours each and 8,191 levels:


# %%
def on_a_grid():
    for entry in entries("grid", *(rung.name for rung in graph.LADDER), workload="4096^2")[0]:
        print(f"{entry.contender:20} {entry.median_ms:9.4g} ms")


plots.drawn(on_a_grid)

# %% [markdown]
# ## Rung 6: `balanced`
#
# The edges of a frontier have numbers: first those of the list's first vertex, then those of the second, and so on.
# Then they can be cut into equal pieces anywhere, as the values of a matrix in chapter 44. Each vertex in the list
# stands with the number of its first edge, and an edge finds its vertex by a search.
#
# So whoever appends a vertex needs two numbers: its place, and how many edges all vertices before it have. Both count
# from the beginning of the level, and both must come from one atomic, or another block could come in between. So they
# are two parts of one integer of 64 bits, and one addition adds to both.

# %%
show(graph.hand_on)

# %% [markdown]
# A block scans the 64-bit numbers of its vertices, and takes places for all of them. In the next level it takes a piece
# of the edges. A warp finds the piece's first vertex with 32 questions at a time, and from there the block goes on
# tile by tile.

# %%
show(graph.expand)

# %% [markdown]
# The levels of four edges are asked for before the first is needed, so that a thread does not wait four times.
#
# **Predict, then run.** For how many bytes does `balanced` ask, for each edge?

# %%
guess = None  # bytes for each edge

predict(guess, asked_for(graph.balanced), factor=1.2, unit="bytes")

# %%
recorded("by_edge", "frontier", "balanced")

# %% [markdown]
# Neighbours are read side by side now: 4 bytes for each edge, and a sector for the level at its other end. All threads
# are busy, and what is left is that sector. And there are waits: a block's warps wait for each other several times in
# each tile.
#
# ## Rung 7: `marked`
#
# Of each neighbour a thread asks only whether it has a level. One bit is enough for the answer. A *set* has a bit for
# each vertex: that is 512 KiB for four million of them, where levels are 16 MiB. A sector has the bits of 256 vertices,
# and a part of the set stays in the first-level cache. `atomic.or_` puts a vertex into the set, and returns the
# word as it was before. From this a thread sees whether it was the first.

# %%
show(graph.put)
show(graph.enlist)
show(graph.push)

# %% [markdown]
# Each warp has a piece of the edges and goes through it at its own pace, 128 at a time. Its lanes hold the vertices of
# such a step in registers, and an edge finds its vertex by shuffles. No warp waits for another one before the end of a
# level. What it finds it keeps in shared memory, and appends 32 vertices at a time with one atomic. With one for each
# step, hundreds of thousands of atomics would take turns at a single count.
#
# **Predict, then run.** For how many bytes does `marked` ask, for each edge?

# %%
guess = None  # bytes for each edge

predict(guess, asked_for(graph.marked), factor=1.2, unit="bytes")

# %% [markdown]
# A third of these are searches for the first vertex of a warp's piece, with a sector for each lane. The graph is small,
# and so are the pieces: a hundred edges. And all of its bits stand in 128 bytes, so lanes often ask for one sector. In
# a large graph the pieces are long. But the bits lie in many sectors, and it counts that caches have them.

# %%
recorded("balanced", "marked")

# %% [markdown]
# ## Rung 8: `direction_optimising`
#
# Nearly all edges are looked at in one or two levels, those of large frontiers. And nearly all of these lead to
# vertices that have a level. If the vertices without a level looked themselves, the first neighbour on the frontier
# would be enough. How many edges are looked at in each level, if all push, or all pull?

# %%
scale = 10


def looked_at(arguments):
    """Edges for each level, by pushing and by pulling."""
    starts, neighbours, _ = arguments
    found, pushed, pulled = graph.reference(*arguments), [], []
    for depth in range(found.max() + 1):
        pushed.append(int(np.diff(starts)[found == depth].sum()))
        pulled.append(0)
        for v in np.flatnonzero((found < 0) | (found > depth)):
            near = np.flatnonzero(found[neighbours[starts[v] : starts[v + 1]]] == depth)
            pulled[-1] += int(near[0]) + 1 if near.size else int(starts[v + 1] - starts[v])
    return np.array(pushed), np.array(pulled)


def both_directions(scale):
    figure, ax = chart(3.2)
    for number, (name, found) in enumerate(zip(("push", "pull"), looked_at(rmat(scale)), strict=True)):
        ax.plot(found, palette.MARKERS[number], ls="-", color=palette.COLOURS[number], label=name)
    ax.set(xlabel="level", ylabel="edges", yscale="symlog", title=f"Edges that are looked at, 2^{scale} vertices")
    figure.legend(loc="outside right upper")
    return figure


knobs.turn(both_directions, scale=(scale, (8, 10)))

# %% [markdown]
# **Predict, then run.** If each level takes the cheaper direction, what share of the edges is looked at in all? Pushing
# alone looks at nearly 100 %.

# %%
guess = None  # percent

pushed, pulled = looked_at(small)
predict(guess, 100 * np.minimum(pushed, pulled).sum() / small[1].size, factor=1.3, unit="percent")

# %% [markdown]
# This is the idea of Beamer, Asanovic and Patterson. The kernel cannot know beforehand what pulling would cost. So it
# compares edges: those of the frontier, and those of all vertices that have no level yet.
#
# Whoever appends to a list reads where the new vertex's own list starts, and counts a place. That is lost work if the
# next level is pulled, because nobody reads the list then. So a frontier with more than a 14th of the edges that are
# left pushes without `listing`, unless it has fewer edges than a 24th of all vertices. One with more than a quarter of
# the edges that are left does not push at all.
#
# Then the vertices without a level pull. Do they need a list of the frontier? No. If a vertex without a level has a
# neighbour with one, this neighbour is on the frontier: with an earlier level it would have handed one on already. So
# the set of who has a level is enough. It must not change while others look, so a level makes a second set.

# %%
show(graph.look_first)
show(graph.pull)

# %% [markdown]
# **Predict, then run.** Of those who find a neighbour with a level when they pull for the first time, how many find it
# at the first place of their list? Take the graph with $2^{10}$ vertices, and the level behind the largest frontier.

# %%
guess = None  # percent

starts, neighbours, _ = small
levels = graph.reference(*small)
largest = int(np.argmax([degrees[levels == depth].sum() for depth in range(levels.max() + 1)]))
found = np.flatnonzero(levels == largest + 1)
predict(guess, 100 * np.mean(levels[neighbours[starts[found]]] == largest), unit="percent")

# %% [markdown]
# The frontier has nearly all edges, so nearly any neighbour will do. A lane loads one neighbour therefore, and not
# several to be on the safe side. What counts is that loads of many vertices are on their way at the same time: a warp
# takes four words of the set together. Few are left after that. Each of these is one lane's affair, and if its list is
# long, all lanes look at the rest together.
#
# Who has no neighbour at all is taken out of a third set when it looks for the first time. So the last levels read the
# words of a set, and hardly anything else.

# %%
recorded("balanced", "marked", "direction_optimising")

# %% [markdown]
# Here are the bytes for each edge of all rungs, once more as sectors that are asked for in the graph with $2^{10}$
# vertices:

# %%
figure, ax = chart(3.4)
rungs = graph.LADDER
ax.barh(range(len(rungs)), [asked_for(rung) for rung in rungs], color=palette.COLOURS[0])
ax.axvline(4, color=palette.INK, ls="--")
ax.set(yticks=range(len(rungs)), yticklabels=[rung.name for rung in rungs], xlabel="bytes of sectors for each edge")
ax.invert_yaxis()
ax.set_title("What the rungs ask for; the dashed line is a neighbour's 4 bytes")
figure

# %% [markdown]
# `direction_optimising` asks for an eighth of what `by_vertex` asks for: most lists are not read to their ends, and 256
# neighbours have their bits in one sector. It stays above the dashed line, since who needs one neighbour asks for a
# sector.

# %%
plots.drawn(plots.ladder, "graph", family="R-MAT")

# %% [markdown]
# The bars are shares of the bound, for which each list is read once. There is no library beside them: those that search
# graphs on a GPU are not installed on the measuring machines. SciPy searches on one core of the CPU.
#
# What each rung left for the next one:

# %%
for rung in graph.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# ## Small graphs and large ones

# %%
shown = ("by_edge", "balanced", "marked", "direction_optimising", "levels_by_launches")
plots.drawn(plots.sweep, "graph", family="R-MAT", xlabel="vertices", only=shown)

# %% [markdown]
# There is no arithmetic in a search, so there is no side on which arithmetic is the bound. Small graphs are bound by
# waiting: each level ends with a meeting of the whole grid, and in a level a chain of loads waits for one after
# another. (The figure calls this side launch-bound.) There `by_edge` or `marked` is the fastest: a change of direction
# saves little. Large ones are bound by memory.

# %%
plots.drawn(plots.cpu_gpu, "graph", family="R-MAT", xlabel="vertices")

# %% [markdown]
# SciPy walks through the graph with one thread of the CPU. For the smallest graph `direction_optimising` is about ten
# times as fast, and for the largest thousands of times, once the graph lies on the GPU: the line has no transfers in
# it.
#
# The extreme of waiting is a path. It has as many levels as vertices, and in each of them a single thread has something
# to do. No rung helps there, and the CPU's one thread is no slower than the best of them. Other algorithms
# give up going level by level. The other extreme is a single vertex that is joined to all others:


# %%
def extremes():
    for family, workload in (("path", f"of {workloads.LENGTH:,}"), ("hub", f"of {workloads.LEAVES:,}")):
        found, kept = entries(family, *(rung.name for rung in graph.LADDER), workload=workload)
        found += [e for e in kept.entries("graph", family=family, workload=workload) if e.kind == "numpy"]
        for entry in found:
            print(f"{family} {workload}: {entry.contender:26} {entry.median_ms:9.4g} ms")


plots.drawn(extremes)

# %% [markdown]
# Where one thread reads the whole list of the hub, the search takes longer than on the CPU. `pulled` and the rungs that
# share out edges take a thousandth of that.
#
# ## PageRank
#
# Somebody follows links by chance, and now and then jumps to any page. Where is this walker most often? The share of
# time that it spends at a vertex is the vertex's *PageRank*. In each step a vertex hands its rank on, in equal parts,
# along its edges. That is a product of a sparse matrix and a vector, and so chapter 44's `merged` does it: each vertex
# pulls what comes in. Or each edge pushes its part by an atomic.

# %%
show(pagerank.update_kernel)

# %% [markdown]
# **Predict, then run.** Which of these modules has the highest rank, if the walker follows imports?

# %%
guess = None  # one of "os", "re", "sys", "types"

ranked = pagerank.pagerank(library[0], library[1], library[3], library[4], tolerance=1e-4)
ranks = dict(zip(names, device.to_host(ranked.ranks), strict=True))
asked = ("os", "re", "sys", "types")
predict(guess, max(asked, key=ranks.get), choices=asked)

# %%
for name in sorted(names, key=ranks.get, reverse=True)[:6]:
    print(f"{name:12} {100 * ranks[name]:5.2f} %, imported by {(heads == names.index(name)).sum()} modules")
print(f"{ranked.steps} steps, the last one changed {ranked.change:.1e}")

# %% [markdown]
# Not only how many import a module counts, but also who: `functools` stands near `os`, though many more modules import
# `os`. Among those that import `functools` are `re` and `types`. These import few others, and so they hand on large
# parts. The walker who arrives at a module without imports has to jump. All of these ranks are added up in each step,
# and handed to everybody.
#
# ## What to take along
#
# Where results decide what comes next, three things cost time: to find out who has work, to share it out equally, and
# to meet. A list says who has work. Numbers for the smallest pieces of it, edges here, let it be cut anywhere. And a
# grid that waits for itself meets without the host, if all of it is there at once. A change of direction saves work
# itself: most edges need not be looked at.
#
# ## Exercises
#
# Two stand above. The third finds the parts of a graph that hang together.

# %%
exercise("graph/components")


# %%
@cuda.jit
def components(starts, neighbours, labels, out):
    pass  # your code


check("graph/components", components)

# %% [markdown]
# ### More, without a check
#
# - `balanced` never appends a vertex without neighbours. What would go wrong if it did?
# - Why does `pulled` need the edges turned round, and why does an undirected graph not?
# - A grid that waits for itself is launched with one block more than the GPU holds. What happens?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def parents_answer(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
                break
        parents[v] = parent


assert check("graph/parents", parents_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def shortest_answer(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != 2**31 - 1:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + weights[j])


assert check("graph/shortest", shortest_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def components_answer(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least = labels[v]
        for j in range(starts[v], starts[v + 1]):
            least = min(least, labels[neighbours[j]])
        out[v] = least


assert check("graph/components", components_answer)

# %% [markdown]
# *Parts of a graph.* A label travels one edge in a step, so a path takes as many steps as it has vertices. Faster
# algorithms let labels point to labels, and follow these pointers two at a time.
#
# *Vertices without neighbours.* Two of them would stand with the same first edge. A tile of 2,048 edges could then have
# more than 2,048 vertices in its list, and its arrays in shared memory would be too small.
#
# *Edges turned round.* Who pulls asks from where edges come to it. A list says to where edges lead. In an undirected
# graph both are the same vertices.
#
# *One block more.* The driver refuses a cooperative launch that does not fit. Without that, the last block would wait
# for another one to end, and all others would wait at the barrier for the last one.
#
# Go on with [chapter 46](46_pooling_and_activations.ipynb), the first on the layers of neural networks.
