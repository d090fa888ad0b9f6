"""Alignment: how well two texts of letters match, with gaps where that is better.

Chapter: notebooks/47_wavefronts.ipynb.  PMPP 5e ch. 16.

The score of an alignment adds up ``match`` or ``mismatch`` for each pair of letters that stand side by side, and
``gap`` for each letter that has no partner. The best score of the first i letters of one text and the first j of the
other follows from three neighbours in a table:

    H[i, j] = max(H[i-1, j-1] + match or mismatch, H[i-1, j] + gap, H[i, j-1] + gap)

A *global* alignment (Needleman and Wunsch) takes both texts as a whole: its score is the last element of H. A *local*
one (Smith and Waterman) takes the best piece of each: no element is less than 0, and the score is the greatest.

All elements on an anti-diagonal, where i + j is the same, can be computed at the same time, and each diagonal needs
the two before it: the work is a wave that runs through the table. A text of length m gives at most m cells at a time.
Memory is not the bound: the texts are short, and nobody asks for the table. Integer additions and maxima are.

One thing is not here: Hopper's instructions for pairs of 16 bits, which CUDA C++ calls ``__viaddmax_s16x2``. Numba has
no type for such a pair. Those for 32 bits need no name: ptxas makes one of an addition and a maximum.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("uint8",)
RESULT = np.int32  # the dtype of what the rungs return
BLOCK = 128  # threads a block of `by_diagonal`
TILE = 64  # rows and columns of a tile in shared memory, and threads a block
HEIGHT = TILE + 1  # and a row of cells above them
PITCH = TILE + 2  # a row of it: neighbours on an anti-diagonal are PITCH - 1 apart, which is odd: no bank conflicts
ROWS = 8  # of the table that a lane has in registers
STRIP = 32 * ROWS  # rows that a warp has
WIDTH = 256  # columns of a strip that a warp computes in one launch of `in_registers`
GRID = 2**31 - 1  # blocks of a launch, at most
LOWEST = -(2**30)  # less than every score
MOST = 2**15  # a match, a mismatch and a gap are less than this


class Scores(typing.NamedTuple):
    """What kernels are told about scores, all int32.

    Attributes: match, mismatch, gap: as in `arguments`. edge: by how much the first row and column of the table change
    from cell to cell, 0 or ``gap``. floor: what no cell is less than, 0 or `LOWEST`. local: 1 or 0.
    """

    match: typing.Any
    mismatch: typing.Any
    gap: typing.Any
    edge: typing.Any
    floor: typing.Any
    local: typing.Any


def reference(a: np.ndarray, b: np.ndarray, match=2, mismatch=-1, gap=-1, local=True) -> np.ndarray:
    """The table row by row, for all pairs of texts at the same time; of each the greatest or the last element."""
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    (pairs, m), n = a.shape, b.shape[1]
    table = np.zeros((m + 1, n + 1, pairs), np.int64)
    if not local:
        table[:, 0] = gap * np.arange(m + 1, dtype=np.int64)[:, None]
        table[0, :] = gap * np.arange(n + 1, dtype=np.int64)[:, None]
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            side_by_side = table[i - 1, j - 1] + np.where(a[:, i - 1] == b[:, j - 1], match, mismatch)
            best = np.maximum(side_by_side, np.maximum(table[i - 1, j], table[i, j - 1]) + gap)
            table[i, j] = np.maximum(best, 0) if local else best
    return (table.max(axis=(0, 1)) if local else table[m, n]).astype(np.int32)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(47) if rng is None else rng

    def text(*shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape).astype(np.uint8)

    same = text(40)
    changed = np.delete(same, [5, 6, 20])
    changed[25] ^= 1
    ones, twos = np.full(70, 1, np.uint8), np.full(9, 2, np.uint8)
    return {
        "one letter each": (text(1), text(1), 2, -1, -1, True),
        "an empty text, global": (text(3, 0), text(3, 5), 2, -1, -3, False),
        "an empty text, local": (text(5), text(0), 2, -1, -3, True),
        "no pair": (text(0, 4), text(0, 7), 2, -1, -1, True),
        "equal, and one block of lanes": (same, same, 1, -3, -2, True),
        "changed, global": (same, changed, 2, -1, -2, False),
        "nothing matches": (ones, twos, 5, -4, -1, True),
        "nothing matches, global": (ones, twos, 5, -4, -3, False),
        "a tile and one more": (text(TILE + 1), text(TILE + 1), 2, -1, -1, True),
        "long by short": (text(STRIP + 9), text(3), 3, -2, -1, False),
        "short by long": (text(2), text(WIDTH + 40), 3, -2, -2, True),
        "two strips": (text(STRIP + 1), text(70), 2, -1, -1, True),
        "several pairs": (text(5, 33), text(5, 31), 2, -1, -1, True),
        "several pairs, global": (text(3, 20), text(3, 35), 2, -1, -2, False),
        "no cost at all": (text(10), text(12), 0, 0, 0, True),
        "any byte, and large scores": (np.uint8([0, 255, 7, 255]), np.uint8([255, 0, 255]), MOST - 1, -9, -1, True),
    }


def cost(m: int, n: int, pairs: int = 1) -> Cost:
    """Of a cell three additions and three maxima, and a maximum over the cells; letters read, scores written once.

    Integer operations, so they are compared with a roof of their own: see `pmpp.kernels.wavefront.roofs`. To compare
    two letters counts as none.
    """
    return Cost(flops=7 * m * n * pairs, bytes=(m + n + 4) * pairs)


def tolerance(a: np.ndarray, b: np.ndarray, match=2, mismatch=-1, gap=-1, local=True) -> float:
    """Integers are added and compared: nothing is rounded."""
    return 0.0


def arguments(a, b, match=2, mismatch=-1, gap=-1, local=True, *, out=None, stream=0) -> Problem:
    """Find the score of the best alignment of two texts, or of the two texts of each of many pairs.

    Args:
        a: a contiguous vector (m,) of uint8, m >= 0: a text. Or an array (p, m): one text of each pair, p >= 0.
        b: the same with n letters: (n,), or (p, n). All texts of an array are equally long. For local alignments a
            shorter one can be filled up with a byte that occurs nowhere in the other array: it never adds to a score.
        match: what two equal letters side by side add, an integer from 0 to 2^15 - 1.
        mismatch: what two different ones add, from -(2^15 - 1) to 0.
        gap: what a letter without a partner adds, in the same range. With k letters in a row a gap adds k times that.
        local: True for the best piece of each text; False for both as a whole.
        out: a device array (p,) of int32 for the result, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, where p is 1 if the texts are vectors, without waiting for the work to be done. A local alignment
    with an empty text has the score 0, and a global one that of its gaps. Where the best alignment lies is not
    returned: `align` finds that for a pair.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Needleman and Wunsch, "A general method applicable to the search for similarities in the amino acid sequence
    of two proteins" (1970); Smith and Waterman, "Identification of common molecular subsequences" (1981).

    >>> from pmpp.kernels.wavefront import alignment
    >>> score = alignment.one_launch(np.frombuffer(b"wavefront", np.uint8), np.frombuffer(b"waterfront", np.uint8))
    >>> score.copy_to_host()
    array([14], dtype=int32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=(1, 2), stream=stream)
    b = device.as_input("b", b, dtypes=DTYPES, ndim=(1, 2), stream=stream)
    if len(a.shape) != len(b.shape):
        raise ValueError(f"b must have as many dimensions as a, {len(a.shape)}, had {len(b.shape)}")
    if len(a.shape) == 1:
        a, b = a.reshape(1, a.size), b.reshape(1, b.size)
    (pairs, m), n = a.shape, b.shape[1]
    if b.shape[0] != pairs:
        raise ValueError(f"b must have a text for each of the {pairs} texts of a, had {b.shape[0]}")
    match = as_integer("match", match, 0, MOST - 1)
    mismatch, gap = as_integer("mismatch", mismatch, 1 - MOST, 0), as_integer("gap", gap, 1 - MOST, 0)
    local = as_flag("local", local)
    largest = max(match, -mismatch, -gap, 1)
    if (m + n) * largest >= -LOWEST:
        most = -LOWEST // largest
        raise ValueError(f"a and b must have fewer than {most} letters together, for scores of 32 bits, had {m + n}")
    most = GRID // max(1, blocks(m, TILE))
    if pairs > most:
        raise ValueError(f"a must have at most {most} texts of {m} letters, for a grid of 2^31 blocks, had {pairs}")
    out = device.as_output("out", out, shape=(pairs,), dtype=RESULT, apart={"a": a, "b": b}, stream=stream)
    numbers = match, mismatch, gap, 0 if local else gap, 0 if local else LOWEST, local
    p = Problem(out, stream=stream, begin=set_first, a=a, b=b, scores=Scores(*map(np.int32, numbers)))
    if pairs and not m * n:
        set_first(p)
        p.done = True
    return p


@cuda.jit
def fill_kernel(out, value):
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < out.size:
        out[i] = value


def set_first(p):
    """Each score at the beginning: 0, or that of a global alignment with an empty text."""
    letters = p.a.shape[1] + p.b.shape[1]
    fill_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.result, np.int32(p.scores.edge * letters))


# ----------------------------------------------------------------------------------------- a launch for each diagonal


@cuda.jit
def by_diagonal_kernel(a, b, before, last, now, number, first, count, scores, out):
    """Diagonal ``number`` of the table, i + j: its cells from row ``first`` on, ``count`` of them for each pair."""
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    pair, i = thread // count, first + thread % count
    if pair < a.shape[0]:
        j = number - i
        if i == 0 or j == 0:
            now[pair, i] = scores.edge * number
        else:
            step = scores.match if a[pair, i - 1] == b[pair, j - 1] else scores.mismatch
            aside = max(np.int32(before[pair, i - 1] + step), scores.floor)
            best = max(aside, np.int32(max(last[pair, i - 1], last[pair, i]) + scores.gap))
            now[pair, i] = best
            if scores.local:
                cuda.atomic.max(out, pair, best)
            elif i == a.shape[1] and j == b.shape[1]:
                out[pair] = best


@rung(fill_kernel, by_diagonal_kernel)
def by_diagonal(p):
    """A launch computes an anti-diagonal, a thread a cell. Only the two diagonals before it are kept.

    Source: PMPP 5e ch. 16.

    Leaves: m + n + 1 launches, each of which waits for the one before; and all cells go through memory.
    """
    (pairs, m), n = p.a.shape, p.b.shape[1]
    before, last, now = (device.empty((pairs, m + 1), np.int32, stream=p.stream) for _ in range(3))
    for number in range(m + n + 1):
        first = max(0, number - n)
        count = min(number, m) - first + 1
        cells = before, last, now, np.int64(number), np.int64(first), np.int64(count)
        by_diagonal_kernel[blocks(pairs * count, BLOCK), BLOCK, p.stream](p.a, p.b, *cells, p.scores, p.result)
        before, last, now = last, now, before


# -------------------------------------------------------------------------------------------- tiles in shared memory
# Tiles wait for one another as cells do, so tiles on an anti-diagonal are computed at the same time. Between launches
# three things are kept of the table: above each column the last row that is ready, beside each row the last column, and
# on each diagonal of tiles the corner cell that the next tile on it begins with.


class Borders(typing.NamedTuple):
    """The borders of what has been computed of each pair's table, int32.

    Attributes: tops (pairs, n); lefts (pairs, m); corners (pairs, tiles that lie across): see above.
    """

    tops: typing.Any
    lefts: typing.Any
    corners: typing.Any


class Place(typing.NamedTuple):
    """Where a block's tile lies: the ``pair``, the ``row`` and ``column`` of its first cell, and its ``corner``."""

    pair: typing.Any
    row: typing.Any
    column: typing.Any
    corner: typing.Any


def borders_for(p: Problem, height: int, width: int) -> tuple[int, int, Borders]:
    """How many tiles there are down and across, and memory for what is kept between their launches."""
    (pairs, m), n = p.a.shape, p.b.shape[1]
    down, across = blocks(m, height), blocks(n, width)
    made = (device.empty((pairs, size), np.int32, stream=p.stream) for size in (n, m, down + across))
    return down, across, Borders(*made)


def diagonals_of_tiles(down: int, across: int) -> typing.Iterator[tuple[np.int64, np.int64, int]]:
    """For each diagonal of tiles its number, the first tile row that it has, and how many tiles.

    >>> [tuple(map(int, each)) for each in diagonals_of_tiles(2, 3)]
    [(0, 0, 1), (1, 0, 2), (2, 0, 2), (3, 1, 1)]
    """
    for number in range(down + across - 1):
        first = max(0, number - across + 1)
        yield np.int64(number), np.int64(first), min(number, down - 1) - first + 1


@cuda.jit(device=True)
def place_of(number, first, count, height, width, down):
    """The tile of this block: ``count`` tiles of each pair lie on a diagonal."""
    pair, tile_row = cuda.blockIdx.x // count, first + cuda.blockIdx.x % count
    tile_column = number - tile_row
    return Place(pair, tile_row * height, tile_column * width, tile_column - tile_row + down)


@cuda.jit(device=True)
def corner_of(borders, place, scores):
    """The cell before a tile's first one, up and to the left."""
    if place.row == 0 or place.column == 0:
        return np.int32(scores.edge * (place.row + place.column))
    return borders.corners[place.pair, place.corner]


@cuda.jit(device=True)
def top_of(borders, place, column, scores):
    """The cell above the tile in a column."""
    if place.row == 0:
        return np.int32(scores.edge * (column + 1))
    return borders.tops[place.pair, column]


@cuda.jit(device=True)
def left_of(borders, place, row, scores):
    """The cell on the left of the tile in a row."""
    if place.column == 0:
        return np.int32(scores.edge * (row + 1))
    return borders.lefts[place.pair, row]


@cuda.jit(device=True)
def warp_max(value):
    """In all lanes, the greatest value of the warp."""
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(FULL_WARP, value, distance))
    return value


@cuda.jit
def tiled_kernel(a, b, borders, number, first, count, down, scores, out):
    cells = cuda.shared.array((HEIGHT, PITCH), np.int32)  # row 0 and column 0 are the borders
    place, thread = place_of(number, first, count, TILE, TILE, down), cuda.threadIdx.x
    row, m, n = place.row + thread, a.shape[1], b.shape[1]
    letter, best = np.uint8(0), np.int32(0)
    if thread == 0:
        cells[0, 0] = corner_of(borders, place, scores)
    if row < m:
        letter = a[place.pair, row]
        cells[thread + 1, 0] = left_of(borders, place, row, scores)
    if place.column + thread < n:
        cells[0, thread + 1] = top_of(borders, place, place.column + thread, scores)
    for step in range(2 * TILE - 1):
        cuda.syncthreads()
        x = step - thread  # the column in the tile: a thread below is one behind
        if 0 <= x < TILE and row < m and place.column + x < n:
            same = letter == b[place.pair, place.column + x]
            aside = max(np.int32(cells[thread, x] + (scores.match if same else scores.mismatch)), scores.floor)
            cell = max(aside, np.int32(max(cells[thread, x + 1], cells[thread + 1, x]) + scores.gap))
            cells[thread + 1, x + 1] = cell
            best = max(best, cell)
            if not scores.local and row == m - 1 and place.column + x == n - 1:
                out[place.pair] = cell
    cuda.syncthreads()
    if place.row + TILE < m and place.column + thread < n:
        borders.tops[place.pair, place.column + thread] = cells[TILE, thread + 1]
    if place.column + TILE < n and row < m:
        borders.lefts[place.pair, row] = cells[thread + 1, TILE]
    if thread == 0 and place.row + TILE < m and place.column + TILE < n:
        borders.corners[place.pair, place.corner] = cells[TILE, TILE]
    best = warp_max(best)
    if scores.local and cuda.laneid == 0:
        cuda.atomic.max(out, place.pair, best)


@rung(fill_kernel, tiled_kernel)
def tiled(p):
    """A block computes a tile of 64 x 64 cells in shared memory, and a launch all tiles on a diagonal.

    Source: PMPP 5e ch. 16.

    Leaves: a barrier for every diagonal of a tile, 127 of them; at its corners few threads have a cell; and a cell is
    three loads from shared memory and a store.
    """
    down, across, borders = borders_for(p, TILE, TILE)
    for number, first, count in diagonals_of_tiles(down, across):
        given = borders, number, first, np.int64(count), np.int64(down), p.scores, p.result
        tiled_kernel[p.a.shape[0] * count, TILE, p.stream](p.a, p.b, *given)


# -------------------------------------------------------------------------------------------------- strips in registers
# A lane has 8 rows, so a warp has a strip of 256 rows. In each step every lane computes its 8 cells of one column, one
# column behind the lane above. It keeps them for the next column. All that lanes tell each other is their last row.


class Team(typing.NamedTuple):
    """The lanes of a strip: how many ``lanes``, the ``first`` one's number, a lane's own ``place``."""

    lanes: typing.Any
    first: typing.Any
    place: typing.Any


@cuda.jit(device=True)
def column_of(cells, letters, letter, corner, up, scores):
    """A lane's cells of the next column, in place of those on their left. Returns the greatest.

    ``corner`` and ``up``: the cells above, on the left and in this column. What needs no cell of this column comes
    first, so that a cell waits for the one above it in a single addition and a maximum.
    """
    best = scores.floor
    for r in range(cells.size):
        left = cells[r]
        aside = np.int32(corner + (scores.match if letters[r] == letter else scores.mismatch))
        beside = max(np.int32(left + scores.gap), scores.floor)
        aside = max(aside, beside)
        up = max(np.int32(up + scores.gap), aside)
        corner = left
        cells[r] = up
        best = max(best, up)
    return best


@cuda.jit(device=True)
def letters_of(a, pair, row, letters):
    """A lane's letters, from ``row`` on. Below the last row stand letters that match nothing.

    So no cell there is greater than all in the table.
    """
    for r in range(letters.size):
        letters[r] = np.int32(a[pair, row + r]) if row + r < a.shape[1] else np.int32(-1)


@cuda.jit(device=True)
def mask_of_first(place):
    """-1 in lanes whose ``place`` is 0, and 0 in others, after a shuffle that changes nothing: see `next_columns`."""
    mask = np.int32(-1) if place == 0 else np.int32(0)
    return cuda.shfl_sync(FULL_WARP, mask, cuda.laneid)


@cuda.jit(device=True)
def next_columns(cells, letters, wave, fed, top, x, columns, team, mask, collect, scores):
    """As many steps of a team of lanes as it has lanes. Its first lane computes the columns from its ``x`` on.

    ``wave``: what a lane takes along from step to step: the letter of its column, the corner for the next one, and its
    greatest cell so far. ``fed`` and ``top``: in lane k of the team the letter of the first lane's column in step k,
    and the cell above that. ``columns``: the first one that there is, and the one behind the last. Returns ``wave`` for
    the next steps; and if ``collect`` is true, in lane k what the last lane had in its last row after step k.

    The first lane takes other values than the lanes that have one above. No branch and no select says so, but ``mask``:
    if a condition stays the same in all steps, the compiler makes a loop for either side of it, each with its own
    shuffles, and lanes in different loops exchange nothing. Of a number that comes out of a shuffle it knows nothing.
    """
    letter, corner, best = wave
    first, end = columns
    last, kept, k = cells.size - 1, np.int32(0), np.int32(0)
    while k < team.lanes:  # Numba's range would count in 64 bits
        letter, up = cuda.shfl_up_sync(FULL_WARP, letter, 1), cuda.shfl_up_sync(FULL_WARP, cells[last], 1)
        source = np.int32(team.first + k)
        letter = np.int32(letter & ~mask | cuda.shfl_sync(FULL_WARP, fed, source) & mask)
        up = np.int32(up & ~mask | cuda.shfl_sync(FULL_WARP, top, source) & mask)
        if np.uint32(x - first) < np.uint32(end - first):
            best = max(best, column_of(cells, letters, letter, corner, up, scores))
            corner = up
        if collect:  # the same in all lanes
            lowest = cuda.shfl_sync(FULL_WARP, cells[last], np.int32(team.first + team.lanes - 1))
            kept = lowest if team.place == k else kept
        x, k = np.int32(x + 1), np.int32(k + 1)
    return (letter, corner, best), kept


@cuda.jit(device=True)
def leave(out, pair, row, m, cells, best, ends, scores):
    """Report a strip: its greatest cell; or the table's last cell, by the lane that has it, if the strip ``ends``."""
    if scores.local:
        best = warp_max(best)
        if cuda.laneid == 0:
            cuda.atomic.max(out, pair, best)
    elif ends:
        for r in range(ROWS):
            if row + r == m - 1:
                out[pair] = cells[r]


@cuda.jit
def in_registers_kernel(a, b, borders, number, first, count, down, scores, out):
    cells, letters = cuda.local.array(ROWS, np.int32), cuda.local.array(ROWS, np.int32)
    place, lane = place_of(number, first, count, STRIP, WIDTH, down), np.int32(cuda.laneid)
    row, m, n = place.row + lane * ROWS, a.shape[1], b.shape[1]
    letters_of(a, place.pair, row, letters)
    for r in range(ROWS):
        cells[r] = left_of(borders, place, row + r, scores) if row + r < m else scores.floor
    # The corner of lane 0 is the tile's, and that of another lane the cell beside the last row of the lane above it.
    above = cuda.shfl_up_sync(FULL_WARP, cells[ROWS - 1], 1)
    corner = corner_of(borders, place, scores) if lane == 0 else above
    wave, mask, team = (np.int32(0), corner, np.int32(0)), mask_of_first(lane), Team(np.int32(32), np.int32(0), lane)
    more = place.row + STRIP < m
    begin, end = np.int32(place.column), np.int32(min(place.column + WIDTH, n))
    for start in range(begin, end + 31, 32):
        top, fed = np.int32(0), np.int32(0)
        if start + lane < end:  # 32 columns come together, a lane has one of them
            fed, top = np.int32(b[place.pair, start + lane]), top_of(borders, place, start + lane, scores)
        x = np.int32(start - lane)
        wave, kept = next_columns(cells, letters, wave, fed, top, x, (begin, end), team, mask, more, scores)
        ready = start - 31 + lane
        if more and begin <= ready < end:
            borders.tops[place.pair, ready] = kept
    for r in range(ROWS):
        if row + r < m and end < n:
            borders.lefts[place.pair, row + r] = cells[r]
    if lane == 31 and place.row + STRIP < m and end < n:
        borders.corners[place.pair, place.corner] = cells[ROWS - 1]
    leave(out, place.pair, row, m, cells, wave[2], end == n, scores)


@rung(fill_kernel, in_registers_kernel)
def in_registers(p):
    """A warp computes 256 rows, a lane 8 of them in registers. What a lane has to know of the lane above is shuffled.

    Source: Liu, Wirawan and Schmidt, "CUDASW++ 3.0" (2013), for the idea that cells stay in registers.

    Leaves: a launch for each diagonal of tiles, and a tile begins with 31 steps in which lanes wait for their first
    column.
    """
    down, across, borders = borders_for(p, STRIP, WIDTH)
    for number, first, count in diagonals_of_tiles(down, across):
        given = borders, number, first, np.int64(count), np.int64(down), p.scores, p.result
        in_registers_kernel[p.a.shape[0] * count, 32, p.stream](p.a, p.b, *given)


# ----------------------------------------------------------------------------------------------------------- one launch
# A warp takes a strip of a pair from the first to the last column, in one launch. It finds the row above it in words of
# 64 bits, one for each column: a number, and which strip has written it. The strip that reads a word later writes its
# own last row there. Strips are handed out in the order in which warps begin, those of all pairs first that come first
# in their pair. So the earliest unfinished strip never waits, and all strips come to an end: see chapter 34.
# All strips of a pair ask for the same words, and memory answers one after another. Thousands that ask all the time
# keep the next one waiting. So a strip sleeps in proportion to the strips before it, for less time than these take.

NAP, LONGEST_NAP = 500, 200_000  # nanoseconds, for each strip before the next one; and in all


@cuda.jit(device=True)
def look(words, at, wanted):
    """A word as it is now, for a column that there is; else one that says it is ready."""
    return cuda.atomic.add(words, at, 0) if wanted else np.int64(0)


@cuda.jit
def one_launch_kernel(a, b, words, strips, scores, out):
    cells, letters = cuda.local.array(ROWS, np.int32), cuda.local.array(ROWS, np.int32)
    lane, pairs, m, n = np.int32(cuda.laneid), a.shape[0], a.shape[1], np.int32(b.shape[1])
    ticket = np.int64(cuda.blockIdx.x)
    if strips > 1:
        ticket = cuda.atomic.add(words, 0, 1) if lane == 0 else ticket
        ticket = cuda.shfl_sync(FULL_WARP, ticket, 0)
    strip, pair = ticket // pairs, ticket % pairs
    row, base, more = strip * STRIP + lane * ROWS, 1 + pair * n, strip + 1 < strips
    letters_of(a, pair, row, letters)
    corner = np.int32(scores.edge * row)
    for r in range(ROWS):
        cells[r] = np.int32(scores.edge * (row + r + 1))
    wave, mask, team = (np.int32(0), corner, np.int32(0)), mask_of_first(lane), Team(np.int32(32), np.int32(0), lane)
    word = look(words, base + lane, strip > 0 and lane < n)
    fed = np.int32(b[pair, lane]) if lane < n else np.int32(0)
    for start in range(np.int32(0), n + 31, 32):
        here = start + lane
        while strip > 0 and here < n and word >> 32 != strip:
            before = strip - (word >> 32)  # strips that must have written the word before it is ready
            if before > 1:
                cuda.nanosleep(np.uint32(min(NAP * (before - 1), LONGEST_NAP)))
            word = look(words, base + here, True)
        cuda.syncwarp()
        top = np.int32(word) if strip > 0 else np.int32(scores.edge * (here + 1))
        now = fed
        # The next 32 columns are asked for before these are computed. If they are not ready yet, they are asked again.
        word = look(words, base + here + 32, strip > 0 and here + 32 < n)
        fed = np.int32(b[pair, here + 32]) if here + 32 < n else np.int32(0)
        x = np.int32(start - lane)
        wave, kept = next_columns(cells, letters, wave, now, top, x, (np.int32(0), n), team, mask, more, scores)
        ready = start - 31 + lane
        if more and 0 <= ready < n:
            cuda.atomic.exch(words, base + ready, (strip + 1) << 32 | np.int64(np.uint32(kept)))
    leave(out, pair, row, m, cells, wave[2], True, scores)


@cuda.jit
def clear_kernel(words):
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < words.size:
        words[i] = 0


def few_strips(p: Problem) -> bool:
    """Whether there are fewer than four strips for each multiprocessor."""
    pairs, m = p.a.shape
    return pairs * blocks(m, STRIP) < 4 * device.limits()["multiprocessors"]


@rung(fill_kernel, clear_kernel, one_launch_kernel)
def one_launch(p):
    """One launch for all: a warp takes a strip of 256 rows to its end, and hands its last row on, number by number.

    Texts of up to 256 letters are one strip, and then no warp waits for another: a warp for each pair. Where there are
    few strips the longer text is cut into strips, for more warps: it does not matter which of two texts is the first.

    Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back" (2016), for words that say
    whether they are ready; Liu, Wirawan and Schmidt (2013).

    Leaves: a short text is over soon after the wave has run in: with 256 columns a ninth of all steps is for that.
    """
    a, b = (p.b, p.a) if p.a.shape[1] < p.b.shape[1] and few_strips(p) else (p.a, p.b)
    (pairs, m), n = a.shape, b.shape[1]
    strips = blocks(m, STRIP)
    words = device.empty(pairs * n + 1 if strips > 1 else 1, np.int64, stream=p.stream)
    if strips > 1:
        clear_kernel[blocks(words.size, BLOCK), BLOCK, p.stream](words)
    one_launch_kernel[pairs * strips, 32, p.stream](a, b, words, np.int64(strips), p.scores, p.result)


# ------------------------------------------------------------------------------------------------ several pairs a warp
# Half as many lanes with twice as many rows: the wave runs in in half the steps, and what a step costs beside its cells
# is shared by twice as many. Shorter texts need fewer lanes still, so that more pairs fit into a warp.

MANY_ROWS = 16  # of a lane
TEAMS = (4, 8, 16)  # lanes that a pair may have


def team_for(m: int) -> int:
    """How many lanes a pair gets: the fewest that have a row for each of m letters.

    >>> [team_for(m) for m in (1, 64, 65, 256)]
    [4, 4, 8, 16]
    """
    return next(lanes for lanes in TEAMS if lanes * MANY_ROWS >= m)


@cuda.jit
def many_pairs_kernel(a, b, lanes, scores, out):
    cells, letters = cuda.local.array(MANY_ROWS, np.int32), cuda.local.array(MANY_ROWS, np.int32)
    lane, m, n = np.int32(cuda.laneid), a.shape[1], np.int32(b.shape[1])
    own = np.int32(lane % lanes)
    team, mask = Team(lanes, np.int32(lane - own), own), mask_of_first(own)
    pair = np.int64(cuda.blockIdx.x) * (32 // lanes) + lane // lanes
    there = pair < a.shape[0]  # a team without a pair computes the last one, too, and reports nothing
    pair, row = min(pair, np.int64(a.shape[0] - 1)), np.int64(own * MANY_ROWS)
    letters_of(a, pair, row, letters)
    corner = np.int32(scores.edge * row)
    for r in range(MANY_ROWS):
        cells[r] = np.int32(scores.edge * (row + r + 1))
    wave = np.int32(0), corner, np.int32(0)
    for start in range(np.int32(0), n + lanes - 1, lanes):
        here = np.int32(start + own)
        fed = np.int32(b[pair, here]) if here < n else np.int32(0)
        top, x = np.int32(scores.edge * (here + 1)), np.int32(start - own)
        wave, _ = next_columns(cells, letters, wave, fed, top, x, (np.int32(0), n), team, mask, False, scores)
    best = wave[2]
    if scores.local:
        distance = lanes // 2
        while distance > 0:
            best = max(best, cuda.shfl_xor_sync(FULL_WARP, best, distance))
            distance //= 2
        if own == 0 and there:
            out[pair] = best
    elif there:
        for r in range(MANY_ROWS):
            if row + r == m - 1:
                out[pair] = cells[r]


@rung(fill_kernel, clear_kernel, one_launch_kernel, many_pairs_kernel)
def many_pairs(p):
    """A warp computes two to eight pairs of texts, and a lane 16 rows.

    Texts of over 256 letters go to `one_launch`, and so does one pair, and few pairs with a far longer second text.

    Source: Liu, Wirawan and Schmidt (2013), for a pair of texts to each group of lanes.
    """
    pairs, m = p.a.shape
    long = p.b.shape[1] > 4 * m and few_strips(p)
    if m > TEAMS[-1] * MANY_ROWS or pairs == 1 or long:
        one_launch.launch(p)
    else:
        lanes = team_for(m)
        grid = blocks(pairs, 32 // lanes)
        many_pairs_kernel[grid, 32, p.stream](p.a, p.b, np.int32(lanes), p.scores, p.result)


LADDER = (by_diagonal, tiled, in_registers, one_launch, many_pairs)
