"""Wrong versions of `alignment` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.wavefront import alignment as room
from pmpp.kernels.wavefront.alignment import BLOCK, HEIGHT, LOWEST, PITCH, ROWS, TILE
from tests.support.wrong import WrongRung


def named(align, name=""):
    """``align(p)``, called as a rung is."""

    def aligned(a, b, *scores):
        p = room.arguments(a, b, *scores)
        if not p.done:
            room.set_first(p)
            align(p)
        return p.result

    aligned.__name__ = name or align.__name__
    return aligned


def with_scores(rung, name, **other):
    """A rung that is told other scores."""
    numbers = {key: np.int32(value) for key, value in other.items()}
    return named(lambda p: rung.launch(p.replace(scores=p.scores._replace(**numbers))), name)


# ------------------------------------------------------------------------------------------------------- by diagonal


def by_diagonal(kernel, name, turned=False):
    """The launches of `by_diagonal`. ``turned``: the two diagonals before are taken for one another."""

    def align(p):
        (pairs, m), n = p.a.shape, p.b.shape[1]
        before, last, now = (cuda.device_array((pairs, m + 1), np.int32) for _ in range(3))
        for number in range(m + n + 1):
            first = max(0, number - n)
            count = min(number, m) - first + 1
            order = (last, before) if turned else (before, last)
            cells = *order, now, np.int64(number), np.int64(first), np.int64(count)
            kernel[-(-pairs * count // BLOCK), BLOCK](p.a, p.b, *cells, p.scores, p.result)
            before, last, now = last, now, before

    return named(align, name)


@cuda.jit
def no_atomic_kernel(a, b, before, last, now, number, first, count, scores, out):
    thread = cuda.grid(1)
    pair, i = thread // count, first + thread % count
    if pair < a.shape[0]:
        j = number - i
        if i == 0 or j == 0:
            now[pair, i] = scores.edge * number
        else:
            step = scores.match if a[pair, i - 1] == b[pair, j - 1] else scores.mismatch
            best = max(np.int32(before[pair, i - 1] + step), scores.floor)
            best = max(best, np.int32(max(last[pair, i - 1], last[pair, i]) + scores.gap))
            now[pair, i] = best
            out[pair] = max(out[pair], best) if scores.local else best


@cuda.jit
def no_borders_kernel(a, b, before, last, now, number, first, count, scores, out):
    """Row 0 and column 0 are left as they are."""
    thread = cuda.grid(1)
    pair, i = thread // count, first + thread % count
    if pair < a.shape[0]:
        j = number - i
        if i > 0 and j > 0:
            step = scores.match if a[pair, i - 1] == b[pair, j - 1] else scores.mismatch
            best = max(np.int32(before[pair, i - 1] + step), scores.floor)
            best = max(best, np.int32(max(last[pair, i - 1], last[pair, i]) + scores.gap))
            now[pair, i] = best
            cuda.atomic.max(out, pair, best)


@cuda.jit
def letters_by_cell_kernel(a, b, before, last, now, number, first, count, scores, out):
    """Cell (i, j) belongs to the letters i - 1 and j - 1, and not to i and j."""
    thread = cuda.grid(1)
    pair, i = thread // count, first + thread % count
    if pair < a.shape[0]:
        j = number - i
        if i == 0 or j == 0:
            now[pair, i] = scores.edge * number
        else:
            step = scores.match if a[pair, i] == b[pair, j] else scores.mismatch
            best = max(np.int32(before[pair, i - 1] + step), scores.floor)
            best = max(best, np.int32(max(last[pair, i - 1], last[pair, i]) + scores.gap))
            now[pair, i] = best
            cuda.atomic.max(out, pair, best)


# -------------------------------------------------------------------------------------------------------------- tiled


def tiled(name, barrier=True, borders=True):
    """`tiled` for local alignments, without its barrier, or without the borders of the tiles in row 0 and column 0."""

    @cuda.jit
    def kernel(a, b, kept, number, first, count, down, scores, out):
        cells = cuda.shared.array((HEIGHT, PITCH), np.int32)
        place, thread = room.place_of(number, first, count, TILE, TILE, down), cuda.threadIdx.x
        row, m, n = place.row + thread, a.shape[1], b.shape[1]
        best = np.int32(0)
        if thread == 0:
            cells[0, 0] = room.corner_of(kept, place, scores)
        if row < m:
            cells[thread + 1, 0] = room.left_of(kept, place, row, scores) if borders else kept.lefts[place.pair, row]
        if place.column + thread < n:
            cells[0, thread + 1] = room.top_of(kept, place, place.column + thread, scores)
        for step in range(2 * TILE - 1):
            if barrier:
                cuda.syncthreads()
            x = step - thread
            if 0 <= x < TILE and row < m and place.column + x < n:
                same = a[place.pair, row] == b[place.pair, place.column + x]
                aside = max(np.int32(cells[thread, x] + (scores.match if same else scores.mismatch)), scores.floor)
                cell = max(aside, np.int32(max(cells[thread, x + 1], cells[thread + 1, x]) + scores.gap))
                cells[thread + 1, x + 1] = cell
                best = max(best, cell)
        cuda.syncthreads()
        if place.column + thread < n:
            kept.tops[place.pair, place.column + thread] = cells[min(TILE, m - place.row), thread + 1]
        if row < m:
            kept.lefts[place.pair, row] = cells[thread + 1, min(TILE, n - place.column)]
        if thread == 0 and place.row + TILE < m and place.column + TILE < n:
            kept.corners[place.pair, place.corner] = cells[TILE, TILE]
        cuda.atomic.max(out, place.pair, best)

    def align(p):
        down, across, made = room.borders_for(p, TILE, TILE)
        for number, first, count in room.diagonals_of_tiles(down, across):
            given = made, number, first, np.int64(count), np.int64(down), p.scores, p.result
            kernel[p.a.shape[0] * count, TILE](p.a, p.b, *given)

    return named(align, name)


# -------------------------------------------------------------------------------------------------------- in registers


def one_strip(name, mask=True, letters=True, corner=True):
    """A warp for each pair of short texts, with or without one of its parts."""

    @cuda.jit
    def kernel(a, b, scores, out):
        cells, own = cuda.local.array(ROWS, np.int32), cuda.local.array(ROWS, np.int32)
        lane, pair, n = np.int32(cuda.laneid), cuda.blockIdx.x, np.int32(b.shape[1])
        row = lane * ROWS
        for r in range(ROWS):
            there = row + r < a.shape[1]
            # Without the letters that match nothing, the last letter is there again and again.
            own[r] = np.int32(a[pair, row + r if there else a.shape[1] - 1]) if there or not letters else np.int32(-1)
            cells[r] = np.int32(scores.edge * (row + r + 1))
        wave, team = (np.int32(0), np.int32(scores.edge * row), np.int32(0)), room.Team(np.int32(32), np.int32(0), lane)
        masked = room.mask_of_first(lane) if mask else np.int32(0)
        for start in range(np.int32(0), n + 31, 32):
            here = start + lane
            fed = np.int32(b[pair, here]) if here < n else np.int32(0)
            top, x = np.int32(scores.edge * (here + 1)), np.int32(start - lane)
            wave, _ = room.next_columns(cells, own, wave, fed, top, x, (np.int32(0), n), team, masked, False, scores)
            wave = wave[0], wave[1] if corner else np.int32(0), wave[2]
        room.leave(out, pair, row, a.shape[1], cells, wave[2], True, scores)

    def align(p):
        kernel[p.a.shape[0], 32](p.a, p.b, p.scores, p.result)

    return named(align, name)


@cuda.jit
def divergent_kernel(a, b, scores, out):
    """Only lanes with a column take part in the shuffle."""
    lane, n, best, cell = np.int32(cuda.laneid), np.int32(b.shape[1]), np.int32(0), np.int32(0)
    for step in range(n + 31):
        if 0 <= step - lane < n:
            up = cuda.shfl_up_sync(FULL_WARP, cell, 1)
            cell = max(np.int32(up + scores.gap), scores.match)
            best = max(best, cell)
    cuda.atomic.max(out, cuda.blockIdx.x, best)


def shuffles_by_some_lanes(p):
    divergent_kernel[p.a.shape[0], 32](p.a, p.b, p.scores, p.result)


RUNGS = (
    WrongRung(with_scores(room.by_diagonal, "cells_below_0", floor=LOWEST), "wrong result"),
    WrongRung(with_scores(room.one_launch, "borders_of_0_where_gaps_cost", edge=0), "wrong result"),
    WrongRung(with_scores(room.in_registers, "greatest_cell_of_a_global_alignment", local=1), "wrong result"),
    WrongRung(by_diagonal(room.by_diagonal_kernel, "diagonals_exchanged", turned=True), "uninitialised read"),
    WrongRung(by_diagonal(no_atomic_kernel, "no_atomic"), "race"),
    WrongRung(by_diagonal(no_borders_kernel, "borders_not_written"), "uninitialised read"),
    WrongRung(by_diagonal(letters_by_cell_kernel, "letters_by_cell"), "out of bounds"),
    WrongRung(tiled("tile_without_barrier", barrier=False), "race"),
    WrongRung(tiled("tile_without_its_left_border", borders=False), "uninitialised read"),
    WrongRung(one_strip("lane_0_fed_by_nobody", mask=False), "wrong result"),
    WrongRung(one_strip("rows_below_the_last", letters=False), "wrong result"),
    WrongRung(one_strip("corner_forgotten_between_columns", corner=False), "wrong result"),
    WrongRung(named(shuffles_by_some_lanes), "divergent barrier"),
)
RIGHT = {
    "short": (one_strip("one_strip"), by_diagonal(room.by_diagonal_kernel, "by_diagonal")),
    "local": (tiled("tiled_right"),),
}
