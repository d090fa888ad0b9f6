"""Which letters stand side by side in the best alignment of two texts.

A score needs three diagonals of the table, and the alignment needs all of it. So the whole table is computed, a launch
for each anti-diagonal, and the host walks back from where the alignment ends: at each cell to the neighbour that the
cell was made of. That is for texts of some thousand letters.

Source: Needleman and Wunsch (1970); Smith and Waterman (1981).
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.wavefront.alignment import BLOCK, DTYPES, arguments
from pmpp.runtime import device

MOST_CELLS = 2**31  # of a table: 8 GiB


class Alignment(typing.NamedTuple):
    """What `align` has found.

    Attributes:
        score: of this alignment, an int.
        a, b: arrays (k,) of int64: which letter of each text stands at each of k places, and -1 where a gap is.
    """

    score: int
    a: np.ndarray
    b: np.ndarray


@cuda.jit
def table_kernel(a, b, table, number, first, count, scores):
    """Diagonal ``number`` of the table, ``count`` cells from row ``first`` on."""
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if thread < count:
        i = first + thread
        j = number - i
        if i == 0 or j == 0:
            table[i, j] = scores.edge * number
        else:
            step = scores.match if a[i - 1] == b[j - 1] else scores.mismatch
            aside = max(np.int32(table[i - 1, j - 1] + step), scores.floor)
            table[i, j] = max(aside, np.int32(max(table[i - 1, j], table[i, j - 1]) + scores.gap))


def table_of(a, b, match=2, mismatch=-1, gap=-1, local=True, *, stream=0) -> typing.Any:
    """The whole table of two texts, a device array (m + 1, n + 1) of int32. Its arguments are those of `align`.

    >>> table_of(np.uint8([1, 2]), np.uint8([2])).copy_to_host().tolist()
    [[0, 0], [0, 0], [0, 2]]
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=1, stream=stream)
    b = device.as_input("b", b, dtypes=DTYPES, ndim=1, stream=stream)
    m, n = a.size, b.size
    if (m + 1) * (n + 1) > MOST_CELLS:
        raise ValueError(f"a and b must make a table of at most 2^31 cells, had {m} and {n} letters")
    scores = arguments(a, b, match, mismatch, gap, local, stream=stream).scores
    table = device.empty((m + 1, n + 1), np.int32, stream=stream)
    for number in range(m + n + 1):
        first = max(0, number - n)
        count = min(number, m) - first + 1
        place = np.int64(number), np.int64(first), np.int64(count)
        table_kernel[blocks(count, BLOCK), BLOCK, stream](a, b, table, *place, scores)
    return table


def align(a, b, match=2, mismatch=-1, gap=-1, local=True, *, stream=0) -> Alignment:
    """Find the best alignment of two texts: which letters stand side by side.

    Args:
        a: a contiguous vector (m,) of uint8, m >= 0. b: another one, (n,). A table of (m + 1) (n + 1) numbers of 4
            bytes is made, of at most 2^31 numbers.
        match: what two equal letters side by side add, an integer from 0 to 2^15 - 1.
        mismatch: what two different ones add, from -(2^15 - 1) to 0.
        gap: what a letter without a partner adds, in the same range.
        local: True for the best piece of each text; False for both as a whole.
        stream: the stream to work on. The call waits for its result.

    Returns an `Alignment`. Of several best ones it is that which ends first, by rows of the table, and which has
    letters side by side rather than a gap, looking from the end.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> found = align(np.frombuffer(b"wavefront", np.uint8), np.frombuffer(b"a waterfront", np.uint8))
    >>> found.score, "".join("wavefront"[i] if i >= 0 else "-" for i in found.a)
    (14, 'wave-front')
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=1, stream=stream)
    b = device.as_input("b", b, dtypes=DTYPES, ndim=1, stream=stream)
    table = table_of(a, b, match, mismatch, gap, local, stream=stream)
    if stream:
        stream.synchronize()
    table, first, second = (device.to_host(x) for x in (table, a, b))
    i, j = np.unravel_index(table.argmax(), table.shape) if local else (first.size, second.size)
    score, places = int(table[i, j]), []
    while (table[i, j] > 0) if local else (i or j):
        step = match if i and j and first[i - 1] == second[j - 1] else mismatch
        if i and j and table[i, j] == table[i - 1, j - 1] + step:
            i, j = i - 1, j - 1
            places.append((i, j))
        elif i and table[i, j] == table[i - 1, j] + gap:
            i -= 1
            places.append((i, -1))
        else:
            j -= 1
            places.append((-1, j))
    a_places, b_places = np.array(places[::-1], np.int64).reshape(-1, 2).T
    return Alignment(score, a_places.copy(), b_places.copy())
