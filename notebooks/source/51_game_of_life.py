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
# # 51. A project: the game of life
#
# *A stencil of bits: a thread a cell, tiles, votes that make words, full adders of logic, strips. Read chapters
# [8](08_warps.ipynb), [26](26_stencil.ipynb) and [28](28_histogram.ipynb) before. 45 minutes. PMPP 4e: chapter 8; 5e:
# chapter 8. The code is [pmpp/kernels/game_of_life/ladder.py](../pmpp/kernels/game_of_life/ladder.py).*
#
# A board of cells, each alive or dead. In the next step a cell with three living neighbours lives, one with two stays
# as it is, and every other one is dead. That is all, and out of it come blinkers, gliders and whole computers.
#
# For a GPU it is a stencil, as in [chapter 26](26_stencil.ipynb), and we put it together from what earlier chapters
# have: tiles with a border, votes of a warp, a histogram. **The question of this project: what can be won if a cell is
# stored in the one bit that it needs?**

# %%
import matplotlib.pyplot as plt
import numpy as np

from pmpp import cuda, lab, predict, simt
from pmpp.kernels import game_of_life, histogram
from pmpp.lab.draw import knobs, palette, plots
from pmpp.lab.draw.style import STYLE, chart
from pmpp.lab.measure import record
from pmpp.lab.teach.exercise import check, exercise
from pmpp.lab.teach.source import show
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The game
#
# Each cell has eight neighbours. Beyond the border of the board everything is dead.

# %%
show(game_of_life.reference)

# %%
step = 4


def after(step):
    board = game_of_life.glider((16, 24), 1, 2)
    board[10:12, 18:20] = 1  # a block, which stays
    board[4, 15:18] = 1  # a blinker
    figure, ax = chart(2.8)
    ax.imshow(device.to_host(game_of_life.play(board, step)), cmap="Greys", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], title=f"after {step} steps")
    return figure


knobs.turn(after, step=(step, (0, 1, 2, 3, 4, 8, 12)))

# %% [markdown]
# On the left a *glider*, which moves down and to the right. A *blinker* turns, and a *block* stays.
#
# **Predict, then run.** By how many rows is the glider lower after 24 steps?

# %%
guess = None  # rows

board = game_of_life.glider((16, 24), 1, 2)
moved = device.to_host(game_of_life.play(board, 24))
predict(guess, int(np.argwhere(moved)[0, 0] - np.argwhere(board)[0, 0]), unit="rows")

# %% [markdown]
# ## The bound
#
# A cell in a byte is read once in each step, and written once. What is counted are integers, so there is no FLOP.

# %%
show(game_of_life.cost)

# %% [markdown]
# **Predict, then run.** 64 steps of a board of 8192 x 8192 cells, a byte each, on an H200 with its published
# bandwidth: how many milliseconds do they take at least?

# %%
guess = None  # ms

h200 = next(gpu for gpu in simt.GPUS if gpu.name == "H200")
predict(guess, game_of_life.cost(8192, 8192, 64).bytes / h200.bandwidth * 1e3, factor=1.2, unit="ms")


# %%
def recorded(*names):
    """What the record says of contenders at the design size."""
    try:
        kept = record.load(room="game_of_life")
        for entry in kept.design("game_of_life"):
            if entry.contender in names:
                print(f"{entry.contender:10} {entry.median_ms:9.4g} ms for 64 steps of 8192 x 8192 cells")
    except record.RecordError as missing:
        print("not measured yet:", str(missing).partition(" has ")[2].partition(";")[0] or missing)


# %% [markdown]
# ## Rungs 1 and 2: `by_cell` and `tiled`
#
# A thread takes a cell, and reads the nine of its square. Nine loads are few bytes from memory, since a cache has eight
# of them. But each is an instruction of its own, for a byte.

# %%
show(game_of_life.by_cell_kernel)
recorded("by_cell", "torch.pad", "cupy.pad")

# %% [markdown]
# A tile in shared memory, with a border of a cell, takes the repeated loads from the cache. The loop that brings it
# also knows what lies beyond the board, so the count needs no test.

# %%
show(game_of_life.tiled_kernel)

# %% [markdown]
# **Predict, then run.** For each cell, how many bytes do the threads of `tiled` load from global memory? `by_cell`
# loads ten, nine of the square and its own once more.

# %%
guess = None  # bytes for each cell

some = game_of_life.drawn((128, 256), np.random.default_rng(0))
counted = {rung.name: lab.count(rung, some).counters for rung in game_of_life.LADDER}
loaded = {name: found["global_load_bytes"] / some.size for name, found in counted.items()}
predict(guess, loaded["tiled"], factor=1.1, unit="bytes for each cell")

# %%
recorded("by_cell", "tiled")

# %% [markdown]
# Less than a seventh of the bytes are asked for. But the nine loads are still there, from shared memory, and there are
# more instructions around them. In both rungs a warp moves 32 bytes at a time and adds up 32 numbers, none of which is
# greater than nine.
#
# ## Rung 3: `packed`
#
# A cell is a bit. 32 cells of a row fit into a word, and a vote of a warp makes it: `ballot_sync` of
# [chapter 8](08_warps.ipynb) sets bit *k* where lane *k* says yes.

# %%
show(game_of_life.pack_kernel)

# %% [markdown]
# How are neighbours counted now? Shifted by a bit, a word has in each place the left or the right neighbour. Then
# a ^ b ^ c is the last digit of the sum of three bits, and the majority of the three is the digit before it. That is a
# *full adder*, as in a processor, 32 of them in a few instructions of logic. The sum of a row has two digits, `ones`
# and `twos`.

# %%
show(game_of_life.row_at)

# %% [markdown]
# ### Exercise: a full adder

# %%
exercise("game_of_life/adder")


# %%
@cuda.jit
def adder(a, b, c, ones, twos):
    pass  # your code


check("game_of_life/adder", adder)

# %% [markdown]
# Three rows have three such numbers. We need not know their sum: only whether it is three, or four where the cell lives
# already. The cell itself is counted, so 'three neighbours' and 'two neighbours and alive' are both a sum of three, and
# 'three neighbours and alive' is four.

# %%
show(game_of_life.next_cells)

# %% [markdown]
# **Predict, then run.** `by_cell` counts one cell in a thread. Divided by all cells of the board, how many instructions
# does a step of `packed` take for a cell, with packing and unpacking left out?

# %%
guess = None  # instructions of a thread for each cell


def of_steps(rung, name):
    """Counted in two steps and not in one: what a step adds."""
    one, two = (lab.count(rung, some, steps).counters[name] for steps in (1, 2))
    return (two - one) / some.size


each = {rung.name: of_steps(rung, "thread_instructions") for rung in game_of_life.LADDER}
predict(guess, each["packed"], factor=1.5, unit="instructions for each cell")

# %%
for rung in game_of_life.LADDER:
    bytes_asked = of_steps(rung, "global_load_bytes")
    print(
        f"{rung.name:10}{each[rung.name]:7.2f} instructions and {bytes_asked:6.3f} bytes loaded, for each cell and step"
    )
recorded("tiled", "packed")

# %% [markdown]
# ## Rung 4: `in_strips`
#
# A row is worked out three times: for itself, and for the rows above and below. A thread that goes down 16 rows keeps
# what it knows of the last two, and works out one more in each turn.

# %%
show(game_of_life.in_strips_kernel)
recorded("packed", "in_strips", "torch.pad", "cupy.pad")

# %% [markdown]
# Sixteen rows for a thread are sixteen times fewer threads, and a small board has few words to begin with. `play`
# therefore takes `packed` as long as the GPU runs a thread for each word at the same time, and `in_strips` beyond. A
# strip of a board of one row is a single word, and saves nothing: that board is for `packed`, too.

# %%
show(game_of_life.best_for)

# %%
for rung in game_of_life.LADDER[:-1]:
    print(f"{rung.name} leaves: {rung.leaves}")

# %% [markdown]
# **Predict, then run.** In 64 steps the packed rungs read and write the board of bytes once, and a board of bits 64
# times. How many times fewer bytes is that than a byte in and a byte out in each step?

# %%
guess = None  # times

cells, bits = game_of_life.cost(8192, 8192).bytes, game_of_life.cost(8192, 8192 // 8).bytes
predict(guess, 64 * cells / (cells + bits + 64 * bits), factor=1.1, unit="times")

# %% [markdown]
# ## Sizes, and memory or arithmetic
#
# The recorded times, for 64 steps of square boards:

# %%
plots.drawn(plots.sweep, "game_of_life", family="64 steps", xlabel="cells")

# %% [markdown]
# A small board is bound by 64 launches. The largest board here, 8192 x 8192 bits, is 8 MiB. It and its copy stay in the
# second-level cache of an H200, so memory is needed only to pack and to unpack. The bands of the figure are for a byte
# a cell.
#
# A roofline has nothing to say about it, since there is no FLOP. What it can say is the share of the bandwidth that the
# definition would need, with a byte for each cell. More than 100 % says that a cell is less than a byte:


# %%
def shares():
    kept = record.load(room="game_of_life")
    bandwidth = kept.ceilings("game_of_life").bandwidth
    entries = [entry for entry in kept.design("game_of_life") if entry.kind in ("rung", "library")]
    figure, ax = chart(2.6)
    names = [entry.contender for entry in entries]
    colours = [palette.COLOURS[i] if e.kind == "rung" else palette.GREY for i, e in enumerate(entries)]
    ax.barh(names, [100 * entry.bytes / entry.seconds / bandwidth for entry in entries], color=colours)
    ax.axvline(100, color=palette.INK, lw=0.8)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="of the bandwidth, if a cell were a byte (%)", title="64 steps of 8192 x 8192 cells")
    return figure


plots.drawn(shares)

# %% [markdown]
# And NumPy on the CPU, which adds up shifted copies as PyTorch and CuPy do:

# %%
plots.drawn(plots.cpu_gpu, "game_of_life", family="64 steps", xlabel="cells")

# %% [markdown]
# ## What becomes of chance
#
# A board on which 35 % of all cells live by chance. A histogram with two bins counts how many are left.

# %%
population, board = [], game_of_life.drawn((96, 96), np.random.default_rng(7))
for _ in range(30):
    population.append(100 * device.to_host(histogram.histogram(board.ravel(), 2))[1] / board.size)
    board = device.to_host(game_of_life.play(board, 4))
figure, ax = chart(3.0)
ax.plot(4 * np.arange(30), population, color=palette.COLOURS[3])
ax.set(xlabel="step", ylabel="living cells (%)", ylim=(0, None), title="96 x 96 cells, 35 % of them alive at first")
figure

# %% [markdown]
# Half of the living cells are gone after twenty steps, and on the whole the number goes on falling. This is what is
# left in the end:

# %%
figure, ax = chart(3.6)
ax.imshow(board, cmap="Greys", vmin=0, vmax=1)
ax.set(xticks=[], yticks=[], title="the board after 120 steps")
figure

# %% [markdown]
# Blocks, blinkers and others that stay, and here and there something that still moves.
#
# ## What to take along
#
# What a value needs decides how much travels, and a bit is the least. Where values are bits, logic computes with 32 of
# them in one instruction: an XOR is the last digit of a sum, and a majority is the carry. Random streams, sieves, sets
# and genomes are stored like this. And a launch that packs pays if many steps follow.
#
# ## Exercises
#
# One stands above. The other is a board without a border.

# %%
exercise("game_of_life/torus")


# %%
@cuda.jit
def torus(board, out):
    pass  # your code


check("game_of_life/torus", torus)

# %% [markdown]
# ### More, without a check
#
# - Several steps in one launch, as in chapter 26: how many columns beside a word does a block need for 32 steps?
# - The sums 3 and 7 have the same last two digits. How does `next_cells` tell them apart?
#
# ## Answers
#
# Open a cell only after you have tried.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def adder_answer(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i] = a[i] ^ b[i] ^ c[i]
        twos[i] = a[i] & b[i] | c[i] & (a[i] ^ b[i])


assert check("game_of_life/adder", adder_answer)


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def torus_answer(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                if di != 0 or dj != 0:
                    count += board[(i + di + h) % h, (j + dj + w) % w]
        out[i, j] = 1 if count == 3 or (count == 2 and board[i, j] == 1) else 0


assert check("game_of_life/torus", torus_answer)

# %% [markdown]
# *Several steps.* News travels one cell a step, so 32 steps need 32 columns on either side: a word each. And a block
# needs 32 rows above and below.
#
# *3 and 7.* Both are odd: 1 + 2 t, with t = 1 and t = 3. `one_of_four` is set where exactly one of the four twos is, so
# t = 3 is not taken for it. Other digits of the sum are not needed.
#
# Go on with [chapter 54](54_normalisation.ipynb): rows and channels with mean 0 and variance 1.
