"""Game of life: in each step a cell lives, dies or is born, by how many of its eight neighbours live.

Chapter: notebooks/51_game_of_life.ipynb.  PMPP 4e ch. 8; 5e ch. 8.

A cell with three living neighbours lives in the next step. One with two stays as it is, and every other one is dead.
That is a stencil, so memory is the bound; but what is stored of a cell is a single bit. With a byte for each cell seven
of eight bits that travel say nothing, and with a thread for each cell an addition of 32 bits counts up to nine. The
last rungs have 32 cells in a word, and add up their neighbours by logic, all 32 at the same time.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("uint8",)
WIDTH, HEIGHT = 32, 8  # cells of a block, and its threads
BLOCK = WIDTH * HEIGHT
ACROSS, DOWN = WIDTH + 2, HEIGHT + 2  # with the neighbours of its border
STRIP = 16  # rows of words that a thread has
MOST = 10**6  # steps in a call
ONE, TOP = np.uint32(1), np.uint32(31)


def reference(board: np.ndarray, steps: int = 1) -> np.ndarray:
    """Step by step: the sum of the eight neighbours, as shifted copies of a board with a dead border."""
    for _ in range(steps):
        wide = np.pad(board, 1).astype(np.int64)
        h, w = board.shape
        near = sum(wide[i : i + h, j : j + w] for i in range(3) for j in range(3)) - board
        board = ((near == 3) | ((near == 2) & (board == 1))).astype(np.uint8)
    return board.copy()


def drawn(shape: tuple[int, int], rng: np.random.Generator, share: float = 0.35) -> np.ndarray:
    """A board on which cells live by chance."""
    return (rng.random(shape) < share).astype(np.uint8)


def glider(shape: tuple[int, int], row: int = 0, column: int = 0) -> np.ndarray:
    """Five cells that are one row further down and one column to the right after four steps.

    >>> glider((3, 4))
    array([[0, 1, 0, 0],
           [0, 0, 1, 0],
           [1, 1, 1, 0]], dtype=uint8)
    """
    board = np.zeros(shape, np.uint8)
    for i, j in ((0, 1), (1, 2), (2, 0), (2, 1), (2, 2)):
        board[row + i, column + j] = 1
    return board


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(51) if rng is None else rng
    made = {
        "no row": (np.zeros((0, 5), np.uint8), 2),
        "no column": (np.zeros((4, 0), np.uint8), 1),
        "a lonely cell": (np.ones((1, 1), np.uint8), 1),
        "no step": (drawn((3, 40), rng), 0),
        "a row": (np.ones((1, 70), np.uint8), 3),
        "a column": (np.ones((50, 1), np.uint8), 4),
        "all alive": (np.ones((35, 67), np.uint8), 2),
        "a glider that leaves": (glider((40, 36), 34, 30), 9),
        "a glider from word to word": (glider((12, 80), 1, 28), 30),
        "crowded": (drawn((20, 45), rng, 0.8), 3),
        "several blocks": (drawn((3 * HEIGHT + 1, 2 * WIDTH + 5), rng), 2),
    }
    made |= {f"a word {d:+}": (drawn((6, 32 + d), rng), 2) for d in (-1, 0, 1)}
    made |= {f"a strip {d:+}": (drawn((STRIP + d, 40), rng), 2) for d in (-1, 0, 1)}
    return made


def cost(height: int, width: int, steps: int = 1) -> Cost:
    """A byte read and a byte written for each cell in each step. No FLOP: what is added up are integers."""
    return Cost(flops=0, bytes=2 * height * width * steps)


def tolerance(board: np.ndarray, steps: int = 1) -> int:
    """None: a cell lives or does not."""
    return 0


def arguments(board, steps=1, *, out=None, stream=0) -> Problem:
    """Play Conway's game of life. Beyond the border of the board all cells are dead.

    Args:
        board: a contiguous array (h, w) of uint8, h, w >= 0: 1 where a cell lives, and 0 where not. That they are 0 or
            1 is not checked.
        steps: how many, from 0 to 10^6.
        out: a device array (h, w) of uint8, apart from ``board`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, the board after so many steps, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Gardner, "The fantastic combinations of John Conway's new solitaire game 'life'" (1970).

    >>> from pmpp.kernels import game_of_life
    >>> blinker = np.uint8([[0, 0, 0], [1, 1, 1], [0, 0, 0]])
    >>> game_of_life.by_cell(blinker).copy_to_host()
    array([[0, 1, 0],
           [0, 1, 0],
           [0, 1, 0]], dtype=uint8)
    """
    stream = device.as_stream(stream)
    board = device.as_input("board", board, dtypes=DTYPES, ndim=2, stream=stream)
    steps = as_integer("steps", steps, 0, MOST)
    out = device.as_output("out", out, shape=board.shape, dtype=np.uint8, apart={"board": board}, stream=stream)
    p = Problem(out, stream=stream, board=board, steps=steps)
    if out.size and not steps:
        flat = board.reshape(board.size), out.reshape(out.size)
        copy_kernel[blocks(out.size, BLOCK), BLOCK, stream](*flat)
        p.done = True
    return p


@cuda.jit
def copy_kernel(source, target):
    i = cuda.grid(1)
    if i < target.size:
        target[i] = source[i]


def play_on(first, steps: int, last, spare, step: Callable) -> None:
    """``step(source, target)`` so often, from ``first`` to ``last``, with boards between them in turns."""
    source = first
    for number in range(steps):
        target = last if (steps - number) % 2 else spare
        step(source, target)
        source = target


def another(board, steps: int, stream) -> typing.Any:
    """A board of the same shape and dtype; of one step none is needed."""
    return device.empty(board.shape if steps > 1 else (0, 0), board.dtype, stream=stream)


# ------------------------------------------------------------------------------------------------------ a thread a cell


@cuda.jit(device=True)
def cell_of(width):
    """Row and column of a thread's cell, and of the first cell of its block."""
    across = (width + WIDTH - 1) // WIDTH
    i, j = cuda.blockIdx.x // across * HEIGHT, cuda.blockIdx.x % across * WIDTH
    return i + cuda.threadIdx.y, j + cuda.threadIdx.x, i, j


def tiles(shape: tuple[int, int]) -> int:
    """Blocks of a board."""
    return blocks(shape[0], HEIGHT) * blocks(shape[1], WIDTH)


@cuda.jit(device=True)
def lives(count, cell):
    """Whether a cell lives in the next step, by how many live in its square of 3 x 3, itself included."""
    return np.uint8(count == 3 or (count == 4 and cell == 1))


@cuda.jit
def by_cell_kernel(board, out):
    row, column, _, _ = cell_of(out.shape[1])
    if row < out.shape[0] and column < out.shape[1]:
        count = 0
        for i in range(max(row - 1, 0), min(row + 2, out.shape[0])):
            for j in range(max(column - 1, 0), min(column + 2, out.shape[1])):
                count += board[i, j]
        out[row, column] = lives(count, board[row, column])


@rung(copy_kernel, by_cell_kernel)
def by_cell(p):
    """A thread takes a cell, and reads the nine of its square. Each step is a launch.

    Source: PMPP 4e section 8.2; 5e chapter 8.

    Leaves: nine loads for a cell, and each cell is loaded by nine threads.
    """

    def step(board, out):
        by_cell_kernel[tiles(out.shape), (WIDTH, HEIGHT), p.stream](board, out)

    play_on(p.board, p.steps, p.result, another(p.result, p.steps, p.stream), step)


@cuda.jit
def tiled_kernel(board, out):
    tile = cuda.shared.array((DOWN, ACROSS), np.uint8)
    row, column, first_row, first_column = cell_of(out.shape[1])
    for k in range(cuda.threadIdx.y * WIDTH + cuda.threadIdx.x, DOWN * ACROSS, BLOCK):
        i, j = first_row + k // ACROSS - 1, first_column + k % ACROSS - 1
        inside = 0 <= i < out.shape[0] and 0 <= j < out.shape[1]
        tile[k // ACROSS, k % ACROSS] = board[i, j] if inside else 0
    cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        count = 0
        for i in range(3):
            for j in range(3):
                count += tile[cuda.threadIdx.y + i, cuda.threadIdx.x + j]
        out[row, column] = lives(count, tile[cuda.threadIdx.y + 1, cuda.threadIdx.x + 1])


@rung(copy_kernel, tiled_kernel)
def tiled(p):
    """A block brings its cells and their border to shared memory, dead cells beyond the board among them.

    Source: PMPP 4e section 8.3; 5e chapter 8.

    Leaves: nine loads from shared memory in place of nine from a cache. A cell is a byte, and a warp reads 32 of them.
    """

    def step(board, out):
        tiled_kernel[tiles(out.shape), (WIDTH, HEIGHT), p.stream](board, out)

    play_on(p.board, p.steps, p.result, another(p.result, p.steps, p.stream), step)


# --------------------------------------------------------------------------------------------------- 32 cells in a word
# Bit k of word number n of a row is column 32 n + k. A vote makes such a word of the cells that a warp's lanes have.


@cuda.jit
def pack_kernel(board, words):
    """A warp a word."""
    thread = cuda.grid(1)
    row, word = divmod(thread // 32, words.shape[1])
    column = 32 * word + cuda.laneid
    alive = row < words.shape[0] and column < board.shape[1] and board[min(row, board.shape[0] - 1), column] == 1
    bits = cuda.ballot_sync(FULL_WARP, alive)
    if row < words.shape[0] and cuda.laneid == 0:
        words[row, word] = bits


@cuda.jit
def unpack_kernel(words, out):
    """A warp a word."""
    thread = cuda.grid(1)
    row, word = divmod(thread // 32, words.shape[1])
    column = 32 * word + cuda.laneid
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = words[row, word] >> np.uint32(cuda.laneid) & ONE


class Row(typing.NamedTuple):
    """What a step needs to know of 32 cells of a row: the cells, and how many of each three live: ones + 2 twos."""

    cells: typing.Any
    ones: typing.Any
    twos: typing.Any


@cuda.jit(device=True)
def row_at(words, i, n):
    """Of word n in row i: its cells, and for each of them how many live of itself and its neighbours in the row.

    Numba's logic makes 64 bits of 32, so each number is cut to 32 again.
    """
    if i < 0 or i >= words.shape[0]:
        return Row(np.uint32(0), np.uint32(0), np.uint32(0))
    before = words[i, n - 1] if n > 0 else np.uint32(0)
    after = words[i, n + 1] if n + 1 < words.shape[1] else np.uint32(0)
    cells = words[i, n]
    left, right = np.uint32(cells << ONE | before >> TOP), np.uint32(cells >> ONE | after << TOP)
    return Row(cells, np.uint32(left ^ cells ^ right), np.uint32(left & cells | right & (left ^ cells)))


@cuda.jit(device=True)
def next_cells(above, here, below):
    """32 cells in the next step, by three numbers from 0 to 3 for each of them, added up in logic.

    ``ones`` and ``carried`` are the sum of the three ones. So a square has ones + 2 t living cells, where t is how many
    are set of the three twos and the carry. It must be 3, or 4 where the cell lives.
    """
    ones = above.ones ^ here.ones ^ below.ones
    carried = above.ones & here.ones | below.ones & (above.ones ^ here.ones)
    odd, both = above.twos ^ here.twos, above.twos & here.twos
    other_odd, other_both = below.twos ^ carried, below.twos & carried
    one_of_four = (odd ^ other_odd) & ~(both | other_both)
    two_of_four = odd & other_odd | (both ^ other_both) & ~(odd | other_odd)
    return np.uint32(ones & one_of_four | here.cells & ~ones & two_of_four)


@cuda.jit(device=True)
def in_board(n, width):
    """The bits of word n that are columns of the board."""
    left = width - 32 * n
    return np.uint32(0xFFFFFFFF) if left >= 32 else np.uint32((np.int64(1) << left) - 1)


@cuda.jit
def packed_kernel(words, width, out):
    """A thread a word."""
    i, n = divmod(cuda.grid(1), out.shape[1])
    if i < out.shape[0]:
        found = next_cells(row_at(words, i - 1, n), row_at(words, i, n), row_at(words, i + 1, n))
        out[i, n] = found & in_board(n, width)


def play_packed(p, step: Callable) -> None:
    """Pack the board, play with ``step(source, target)``, and unpack it."""
    height, across = p.result.shape[0], blocks(p.result.shape[1], 32)
    packed, other = (device.empty((height, across), np.uint32, stream=p.stream) for _ in range(2))
    grid = blocks(32 * height * across, BLOCK)
    pack_kernel[grid, BLOCK, p.stream](p.board, packed)
    last, spare = (packed, other) if p.steps % 2 == 0 else (other, packed)
    play_on(packed, p.steps, last, spare, step)
    unpack_kernel[grid, BLOCK, p.stream](last, p.result)


@rung(copy_kernel, pack_kernel, packed_kernel, unpack_kernel)
def packed(p):
    """A thread has 32 cells, a bit each. Full adders of logic count the neighbours of all of them at the same time.

    Packing and unpacking are a launch each, and done once for all steps.

    Source: the trick is known as bit slicing; Knuth, The Art of Computer Programming, volume 4A, section 7.1.3.

    Leaves: nine loads of words, and what is known of a row is worked out three times: for it, and for its neighbours.
    """

    def step(words, out):
        packed_kernel[blocks(out.size, BLOCK), BLOCK, p.stream](words, np.int64(p.result.shape[1]), out)

    play_packed(p, step)


@cuda.jit
def in_strips_kernel(words, width, out):
    """A thread has STRIP rows of one word, and keeps what it knows of the last two."""
    strip, n = divmod(cuda.grid(1), out.shape[1])
    first, mask = strip * STRIP, in_board(n, width)
    if first < out.shape[0]:
        above, here = row_at(words, first - 1, n), row_at(words, first, n)
        for i in range(first, min(first + STRIP, out.shape[0])):
            below = row_at(words, i + 1, n)
            out[i, n] = next_cells(above, here, below) & mask
            above, here = here, below


@rung(copy_kernel, pack_kernel, in_strips_kernel, unpack_kernel)
def in_strips(p):
    """A thread goes down 16 rows: three loads for a word instead of nine, and each row is worked out once.

    Source: PMPP 4e sections 8.4 and 8.5, where a thread keeps its values in registers; 5e chapter 8.
    """

    def step(words, out):
        grid = blocks(blocks(out.shape[0], STRIP) * out.shape[1], BLOCK)
        in_strips_kernel[grid, BLOCK, p.stream](words, np.int64(p.result.shape[1]), out)

    play_packed(p, step)


def best_for(shape: tuple[int, int]) -> typing.Any:
    """The rung for a board of this shape.

    If the GPU runs a thread for each word at the same time, fewer threads with a strip each would leave some of its
    places empty: then it is `packed`, and otherwise `in_strips`. A strip of a board of one row is a single word, and
    saves nothing: that board is for `packed`, too.
    """
    limits = device.limits()
    at_once = limits["multiprocessors"] * limits["max_threads_per_multiprocessor"]
    return packed if shape[0] == 1 or shape[0] * blocks(shape[1], 32) <= at_once else in_strips


LADDER = (by_cell, tiled, packed, in_strips)
