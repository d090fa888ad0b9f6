"""Wrong versions of `game_of_life` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.game_of_life import ladder as room
from pmpp.kernels.game_of_life.ladder import ACROSS, BLOCK, DOWN, HEIGHT, ONE, STRIP, WIDTH, cell_of, in_board, lives
from tests.support.wrong import WrongRung


def by_cells(kernel, steps_of=room.play_on):
    """``kernel(board, out)`` with a thread a cell."""

    def played(board, steps=1):
        p = room.arguments(board, steps)
        if p.result.size and not p.done:
            grid = room.tiles(p.result.shape)
            spare = room.another(p.result, p.steps, 0)
            steps_of(p.board, p.steps, p.result, spare, lambda x, out: kernel[grid, (WIDTH, HEIGHT)](x, out))
        return p.result

    played.__name__ = getattr(kernel, "py_func", kernel).__name__ if steps_of is room.play_on else steps_of.__name__
    return played


def by_words(name, **kernels):
    """The last rung with other kernels in the places of its own."""

    def played(board, steps=1):
        before = {name: getattr(room, name) for name in kernels}
        vars(room).update(kernels)
        try:
            return room.in_strips(board, steps)
        finally:
            vars(room).update(before)

    played.__name__ = name
    return played


@cuda.jit
def itself_counted(board, out):
    row, column, _, _ = cell_of(out.shape[1])
    if row < out.shape[0] and column < out.shape[1]:
        count = 0
        for i in range(max(row - 1, 0), min(row + 2, out.shape[0])):
            for j in range(max(column - 1, 0), min(column + 2, out.shape[1])):
                count += board[i, j]
        out[row, column] = np.uint8(count == 3 or (count == 2 and board[row, column] == 1))


@cuda.jit
def no_border(board, out):
    row, column, _, _ = cell_of(out.shape[1])
    if row < out.shape[0] and column < out.shape[1]:
        count = 0
        for i in range(row - 1, row + 2):
            for j in range(column - 1, column + 2):
                count += board[i, j]
        out[row, column] = lives(count, board[row, column])


@cuda.jit
def no_barrier(board, out):
    tile = cuda.shared.array((DOWN, ACROSS), np.uint8)
    row, column, first_row, first_column = cell_of(out.shape[1])
    for k in range(cuda.threadIdx.y * WIDTH + cuda.threadIdx.x, DOWN * ACROSS, BLOCK):
        i, j = first_row + k // ACROSS - 1, first_column + k % ACROSS - 1
        inside = 0 <= i < out.shape[0] and 0 <= j < out.shape[1]
        tile[k // ACROSS, k % ACROSS] = board[i, j] if inside else 0
    if row < out.shape[0] and column < out.shape[1]:
        count = 0
        for i in range(3):
            for j in range(3):
                count += tile[cuda.threadIdx.y + i, cuda.threadIdx.x + j]
        out[row, column] = lives(count, tile[cuda.threadIdx.y + 1, cuda.threadIdx.x + 1])


def in_place(first, steps, last, spare, step):
    """Each step writes over the board that it reads."""
    step(first, last)
    for _ in range(steps - 1):
        step(last, last)


@cuda.jit
def borders_of_words_cut(words, width, out):
    """No bit comes from the words beside."""
    strip, n = divmod(cuda.grid(1), out.shape[1])
    for i in range(strip * STRIP, min(strip * STRIP + STRIP, out.shape[0])):
        above, here, below = alone(words, i - 1, n), alone(words, i, n), alone(words, i + 1, n)
        out[i, n] = room.next_cells(above, here, below) & in_board(n, width)


@cuda.jit(device=True)
def alone(words, i, n):
    if i < 0 or i >= words.shape[0]:
        return room.Row(np.uint32(0), np.uint32(0), np.uint32(0))
    cells = words[i, n]
    left, right = np.uint32(cells << ONE), np.uint32(cells >> ONE)
    return room.Row(cells, np.uint32(left ^ cells ^ right), np.uint32(left & cells | right & (left ^ cells)))


@cuda.jit
def alive_beyond_the_board(words, width, out):
    """The bits of the last word that are no columns are kept."""
    strip, n = divmod(cuda.grid(1), out.shape[1])
    first = strip * STRIP
    above, here = room.row_at(words, first - 1, n), room.row_at(words, first, n)
    for i in range(first, min(first + STRIP, out.shape[0])):
        below = room.row_at(words, i + 1, n)
        out[i, n] = room.next_cells(above, here, below)
        above, here = here, below


@cuda.jit
def strips_begin_alone(words, width, out):
    """The row before a strip is taken for dead."""
    strip, n = divmod(cuda.grid(1), out.shape[1])
    first = strip * STRIP
    above, here = room.row_at(words, -1, n), room.row_at(words, first, n)
    for i in range(first, min(first + STRIP, out.shape[0])):
        below = room.row_at(words, i + 1, n)
        out[i, n] = room.next_cells(above, here, below) & in_board(n, width)
        above, here = here, below


@cuda.jit
def lanes_that_left(board, words):
    """Lanes beyond the board take no part in the vote."""
    thread = cuda.grid(1)
    row, word = divmod(thread // 32, words.shape[1])
    column = 32 * word + cuda.laneid
    if row < words.shape[0] and column < board.shape[1]:
        bits = cuda.ballot_sync(FULL_WARP, board[row, column] == 1)
        if cuda.laneid == 0:
            words[row, word] = bits


RUNGS = [
    WrongRung(by_cells(itself_counted), "wrong result"),
    WrongRung(by_cells(no_border), "out of bounds"),
    WrongRung(by_cells(no_barrier), "race"),
    WrongRung(by_cells(room.by_cell_kernel, in_place), "race"),
    WrongRung(by_words("borders_of_words_cut", in_strips_kernel=borders_of_words_cut), "wrong result"),
    WrongRung(by_words("alive_beyond_the_board", in_strips_kernel=alive_beyond_the_board), "wrong result"),
    WrongRung(by_words("strips_begin_alone", in_strips_kernel=strips_begin_alone), "wrong result"),
    WrongRung(by_words("lanes_that_left", pack_kernel=lanes_that_left), "divergent barrier"),
]
RIGHT = [by_cells(room.by_cell_kernel), by_words("in_strips_again", in_strips_kernel=room.in_strips_kernel)]
