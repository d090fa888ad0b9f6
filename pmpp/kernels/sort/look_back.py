"""Tiles of `one_sweep` that tell each other how many keys of each digit they have.

It is the look-back of `pmpp.kernels.scan.look_back`, for 256 numbers at once: a tile has a word for each digit, and a
thread looks back for its digit alone. A word has the state in its upper two bits and the count in those below. A reader
sees both or neither, so no fence is needed.

Every tile waits for earlier ones only, and tiles are numbered in the order in which their blocks begin. So the earliest
unfinished tile never waits, and all tiles finish, however few blocks the GPU runs at a time.

Source: Adinets and Merrill, "Onesweep: a faster least significant digit radix sort for GPUs" (2022), section 3.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.scan.look_back import COMPLETE

NARROW, WIDE = 30, 60  # the bit of a word at which the state begins: of 32 bits, and of 64 for 2^30 keys and more


@cuda.jit(device=True)
def publish_bin(words, tile, digit, bit, state, count):
    """Write state and count of one digit as one word. Row 0 of ``words`` counts the tiles handed out."""
    if cuda.gridDim.x > 1:
        cuda.atomic.exch(words, (tile + 1, digit), np.int64(state) << bit | np.int64(count))


@cuda.jit(device=True)
def look_back_bins(words, tile, digit, bit):
    """How many keys with this digit are in all tiles before ``tile``. Each thread goes back by itself."""
    before = np.int64(0)
    row = tile  # the tile before
    while row > 0:
        word = np.int64(cuda.atomic.add(words, (row, digit), 0))  # an atomic reads memory each time
        while word == 0:
            word = np.int64(cuda.atomic.add(words, (row, digit), 0))
        before += word & (1 << bit) - 1
        if word >> bit == COMPLETE:
            break
        row -= 1
    return before
