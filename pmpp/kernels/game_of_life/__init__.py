"""Game of life: cells that live, die and are born by how many neighbours they have.

The room is `pmpp.kernels.game_of_life.ladder`, and its chapter notebooks/51_game_of_life.ipynb.
`play` is the function to use: a board some steps later.
"""

from pmpp.kernels.game_of_life.ladder import *
from pmpp.kernels.game_of_life.ladder import arguments, best_for


def play(board, steps=1, *, out=None, stream=0):
    """Play Conway's game of life. Beyond the border of the board all cells are dead.

    Args:
        board: a contiguous array (h, w) of uint8, h, w >= 0: 1 where a cell lives, and 0 where not. That they are 0 or
            1 is not checked.
        steps: how many, from 0 to 10^6.
        out: a device array (h, w) of uint8, apart from ``board`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, the board after so many steps, without waiting for the work to be done. A small board, and one of
    a single row, is played by the rung `packed`, and every other one by `in_strips`.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> play(np.uint8([[0, 1, 0], [0, 1, 0], [0, 1, 0]]), 3).copy_to_host()
    array([[0, 0, 0],
           [1, 1, 1],
           [0, 0, 0]], dtype=uint8)
    """
    p = arguments(board, steps, out=out, stream=stream)
    return best_for(p.board.shape).run(p)
