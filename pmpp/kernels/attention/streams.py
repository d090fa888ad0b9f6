"""The kernel of attention's last rung: tiles that arrive by asynchronous copies while others are multiplied.

It stands apart from `pmpp.kernels.attention.ladder` because it needs a GPU that has these copies. A warp has 32
queries, and its lanes form the grid of 4 rows and 8 columns of `ladder.register_tiled`. A copy (chapter 40) goes from
memory straight into shared memory, so nothing that travels is in a register.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.runtime import device
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import load128, store128

CAPABILITY = (8, 0)  # of the oldest GPU that has asynchronous copies
RESERVED = 1024  # bytes of a block's shared memory that the system keeps for itself
OWN_ROWS, LANES_Y, LANES_X = 8, 4, 8  # rows of a thread; the grid of a warp's lanes
PAD, WEIGHT_PAD = 4, 8  # so rows that lanes read or write together begin in other banks
f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)
LOWEST = np.finfo(np.float32).min  # what stands for a maximum before the first score: -inf less it is no NaN
SLACK = np.float32(4)  # so far a score may be above its row's base: weights and sums are up to 2^4 times as large


def can_copy(shared_bytes: int) -> bool:
    """Whether the GPU has asynchronous copies, and room for a block with so much shared memory.

    Newer GPUs need not have more of it: a multiprocessor of compute capability 8.0 has 164 KiB, one of 8.6, 8.9 or 12.0
    has 100.
    """
    limits = device.limits()
    room = limits["max_shared_memory_per_multiprocessor"]
    return limits["compute_capability"] >= CAPABILITY and shared_bytes + RESERVED <= room


class Stream(typing.NamedTuple):
    """A block has 32 x ``warps_y`` queries, and ``keys`` of them at a time; ``warps_x`` warps share a query.

    ``columns``: of q, k, v and out, ``size`` rounded up. Keys arrive ``depth`` columns at a time, and values ``chunk``
    rows.
    """

    columns: int
    keys: int
    warps_y: int
    warps_x: int
    depth: int
    chunk: int

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return 32 * self.warps_y

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_y * self.warps_x

    @property
    def stage(self) -> int:
        """Elements of a stage: for what arrives of the keys, or of the values."""
        return max(self.keys * (self.depth + PAD), self.chunk * self.columns)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: queries, weights, two stages, and the maxima of warps that share queries."""
        maxima = self.warps_x * self.queries if self.warps_x > 1 else 0
        kept = self.queries * (self.columns + PAD) + self.keys * (self.queries + WEIGHT_PAD)
        return 4 * (kept + 2 * self.stage + maxima)


STREAMS = (
    Stream(32, keys=64, warps_y=4, warps_x=1, depth=32, chunk=64),
    Stream(64, keys=64, warps_y=4, warps_x=1, depth=32, chunk=32),
    Stream(128, keys=128, warps_y=2, warps_x=2, depth=32, chunk=32),
)


@functools.cache
def stream_kernel(tile: Stream, wide: bool, exact: bool) -> typing.Any:
    """The kernel ``(q, k, v, out, logs, scale, sizes)`` of a tile, with a block for ``tile.queries`` of a head.

    ``wide`` and ``logs`` are as in `ladder.kernel_for`. ``exact``: rows are wide and have all columns of the tile.
    Weights below 2^-126 count as 0 (``fastmath``), which spares a comparison and two multiplications for each.
    """
    columns, keys, _, warps_x, depth, chunk = tile
    queries, threads, stage = tile.queries, tile.threads, tile.stage
    pitch_q, pitch_k, pitch_w = columns + PAD, depth + PAD, queries + WEIGHT_PAD
    own_keys, own_columns = keys // (LANES_X * warps_x), columns // (LANES_X * warps_x)
    weights_at = queries * pitch_q
    stage_at = weights_at + keys * pitch_w
    maxima_at = stage_at + 2 * stage

    @cuda.jit(device=True)
    def place():
        """(y, x, warp_y, warp_x): the lane's place in the grid of its warp, and the warp's in that of its block."""
        # Four lanes in a row form a 2 x 2 square: a warp's load from shared memory then takes two passes.
        thread = np.uint32(cuda.threadIdx.x)
        y, x = thread // 16 % 2 * 2 + thread // 2 % 2, thread // 4 % 4 * 2 + thread % 2
        return y, x, thread // 32 // np.uint32(warps_x), thread // 32 % np.uint32(warps_x)

    def copier(rows, width, pitch):
        """The function that starts to copy ``rows`` rows of x[head] with ``width`` columns into shared memory.

        Row ``first`` and column ``column`` come first. Beyond the ``last`` rows and ``size`` columns there are zeros.
        """
        across = width // 4  # threads that copy a row
        lines = threads // across  # rows that are copied at a time

        @cuda.jit(device=True)
        def copy(shared, begin, x, head, first, last, column, size):
            thread = np.uint32(cuda.threadIdx.x)
            i, c = thread // np.uint32(across), np.uint32(column + thread % np.uint32(across) * 4)
            left = np.int32(np.int32(min(last - first, rows)) - np.int32(i))
            if not exact and c >= size:
                left = np.int32(0)
            at = np.uint32(begin + i * pitch + thread % np.uint32(across) * 4)
            origin = (head * last + first + i) * size + c
            for v in range(rows // lines):
                if wide:
                    count = 4 if np.int32(v * lines) < left else 0
                    copy_async(shared, at + np.uint32(v * lines * pitch), x, origin + v * lines * size, count)
                else:
                    for e in range(4):
                        element = f0
                        if np.int32(v * lines) < left and c + e < size:
                            element = x[head, first + i + v * lines, c + e]
                        shared[at + np.uint32(v * lines * pitch + e)] = element

        return copy

    copy_queries = copier(queries, columns, pitch_q)
    copy_keys, copy_values = copier(keys, depth, pitch_k), copier(chunk, columns, columns)

    @cuda.jit(device=True)
    def scale_queries(shared, scale):
        """Those that the thread has copied itself, once they have arrived: no barrier is needed.

        Neighbouring columns change places. A register file has two banks, of the registers with even and with odd
        numbers, and a multiply-add whose three numbers come out of one bank takes longer. Four columns of a query are
        loaded into four registers in a row, and so are those of a key: they would always come out of the same bank.
        """
        commit_copies()
        wait_copies(0)
        thread, across = np.uint32(cuda.threadIdx.x), np.uint32(columns // 4)
        at, i = np.uint32(thread // across * pitch_q + thread % across * 4), np.uint32(0)
        while i < queries:
            a, b, c, d = load128(shared, at)
            store128(shared, at, (b * scale, a * scale, d * scale, c * scale))
            at, i = np.uint32(at + threads // across * pitch_q), np.uint32(i + threads // across)

    # In both products the loads of a step stand before the sums of the step before it, in loops that are written out:
    # the compiler unrolls only small ones, and moves no load over the end of a loop.

    @cuda.jit(device=True)
    def load_keys(shared, k_from, k_values):
        """Four columns of the thread's keys."""
        for j in range(own_keys):
            vector = load128(shared, k_from + j * (LANES_X * pitch_k))
            for e in range(4):
                k_values[j, e] = vector[e]

    @cuda.jit(device=True)
    def row_scores(vector, i, k_values, scores):
        """Add the products of four columns to the thread's scores in its row number i. Queries have theirs turned."""
        for e in range(4):
            for j in range(own_keys):
                scores[i, j] += vector[e ^ 1] * k_values[j, e]

    @cuda.jit(device=True)
    def four_columns(shared, first, q_from, q_next, k_values, scores):
        """Add the products of four columns. ``first``: those of the first row. Returns those at ``q_next``."""
        row_scores(first, 0, k_values, scores)
        row_scores(load128(shared, q_from + 1 * (LANES_Y * pitch_q)), 1, k_values, scores)
        row_scores(load128(shared, q_from + 2 * (LANES_Y * pitch_q)), 2, k_values, scores)
        row_scores(load128(shared, q_from + 3 * (LANES_Y * pitch_q)), 3, k_values, scores)
        row_scores(load128(shared, q_from + 4 * (LANES_Y * pitch_q)), 4, k_values, scores)
        row_scores(load128(shared, q_from + 5 * (LANES_Y * pitch_q)), 5, k_values, scores)
        row_scores(load128(shared, q_from + 6 * (LANES_Y * pitch_q)), 6, k_values, scores)
        following = load128(shared, q_next)
        row_scores(load128(shared, q_from + 7 * (LANES_Y * pitch_q)), 7, k_values, scores)
        return following

    @cuda.jit(device=True)
    def add_scores(shared, q_from, k_from, deep, scores):
        """Add the products of so many columns, eight at a time."""
        now, coming = cuda.local.array((own_keys, 4), np.float32), cuda.local.array((own_keys, 4), np.float32)
        load_keys(shared, k_from, now)
        first, d = load128(shared, q_from), np.uint32(0)
        while d < deep:
            after = np.uint32(d + 8 if d + 8 < deep else 0)  # behind the last the first again, which nobody uses
            load_keys(shared, k_from + d + 4, coming)
            first = four_columns(shared, first, q_from + d, q_from + d + 4, now, scores)
            load_keys(shared, k_from + after, now)
            first = four_columns(shared, first, q_from + d + 4, q_from + after, coming, scores)
            d = np.uint32(d + 8)

    @cuda.jit(device=True)
    def load_key(shared, w_from, v_from, weights, values):
        """The weights of a key for the thread's rows, and its columns of the value."""
        for piece in range(OWN_ROWS // 4):
            vector = load128(shared, w_from + piece * (4 * LANES_Y))
            for i in range(4):
                weights[piece * 4 + i] = vector[i]
        for piece in range(own_columns // 4):
            vector = load128(shared, v_from + piece * (4 * LANES_X))
            for j in range(4):
                values[piece * 4 + j] = vector[j]

    @cuda.jit(device=True)
    def add_outer(weights, values, sums):
        """Rows from left to right and from right to left in turn: each multiply-add shares a number with the last.

        A thread keeps what a multiply-add has read for the next one, which then reads two registers and not three.
        """
        for i in range(OWN_ROWS):
            for j in range(own_columns):
                c = j if i % 2 == 0 else own_columns - 1 - j
                sums[i, c] += weights[i] * values[c]

    @cuda.jit(device=True)
    def add_values(shared, w_from, v_from, count, sums):
        """Add the values of so many keys, eight at a time: for each an outer product."""
        w_now, w_coming = cuda.local.array(OWN_ROWS, np.float32), cuda.local.array(OWN_ROWS, np.float32)
        v_now, v_coming = cuda.local.array(own_columns, np.float32), cuda.local.array(own_columns, np.float32)
        load_key(shared, w_from, v_from, w_now, v_now)
        done = np.uint32(0)
        while done < count:
            done = np.uint32(done + 8)
            load_key(shared, w_from + 1 * pitch_w, v_from + 1 * columns, w_coming, v_coming)
            add_outer(w_now, v_now, sums)
            load_key(shared, w_from + 2 * pitch_w, v_from + 2 * columns, w_now, v_now)
            add_outer(w_coming, v_coming, sums)
            load_key(shared, w_from + 3 * pitch_w, v_from + 3 * columns, w_coming, v_coming)
            add_outer(w_now, v_now, sums)
            load_key(shared, w_from + 4 * pitch_w, v_from + 4 * columns, w_now, v_now)
            add_outer(w_coming, v_coming, sums)
            load_key(shared, w_from + 5 * pitch_w, v_from + 5 * columns, w_coming, v_coming)
            add_outer(w_now, v_now, sums)
            load_key(shared, w_from + 6 * pitch_w, v_from + 6 * columns, w_now, v_now)
            add_outer(w_coming, v_coming, sums)
            load_key(shared, w_from + 7 * pitch_w, v_from + 7 * columns, w_coming, v_coming)
            add_outer(w_now, v_now, sums)
            if done < count:  # behind the last the same again, which nobody uses
                w_from, v_from = np.uint32(w_from + 8 * pitch_w), np.uint32(v_from + 8 * columns)
            load_key(shared, w_from, v_from, w_now, v_now)
            add_outer(w_coming, v_coming, sums)

    @cuda.jit(device=True)
    def hide(scores, row, key, sizes):
        """What this row does not see becomes -inf. The thread's first score is that of (row, key)."""
        for i in range(OWN_ROWS):
            query = row + i * LANES_Y
            first = np.int32(min(max(query + sizes.low - key, 0), keys))
            last = np.int32(min(max(min(query + sizes.high, sizes.keys) - key, 0), keys))
            for j in range(own_keys):
                if not first <= j * LANES_X < last:
                    scores[i, j] = LEAST

    @cuda.jit(device=True)
    def update(shared, maxima, others, scores, bases, totals, sums):
        """Scores become weights: powers of 2, relative to the base of their row.

        The base is the row's maximum when it was set. It stays as long as no score is more than ``SLACK`` above it:
        then the lanes of a row need not find their common maximum, and no sum is scaled.
        """
        tops, grown = cuda.local.array(OWN_ROWS, np.float32), 0
        for i in range(OWN_ROWS):
            tops[i] = scores[i, 0]
            for j in range(1, own_keys):
                tops[i] = max(tops[i], scores[i, j])
            if tops[i] > bases[i] + SLACK:
                grown = 1
        if anyone(grown):
            raise_bases(shared, maxima, others, tops, bases, totals, sums)
        for i in range(OWN_ROWS):
            for j in range(own_keys):
                scores[i, j] = cuda.libdevice.exp2f(scores[i, j] - bases[i])
                totals[i] += scores[i, j]  # of this lane's keys alone, until the end

    @cuda.jit(device=True)
    def anyone(grown):
        """Whether a thread has a score that is too large, of all that share queries: they raise the bases together."""
        if warps_x > 1:
            return cuda.syncthreads_or(grown) != 0
        return cuda.any_sync(FULL_WARP, grown) != 0

    @cuda.jit(device=True)
    def raise_bases(shared, maxima, others, tops, bases, totals, sums):
        """Bases become the maxima that there are until now. What was summed before is scaled.

        ``maxima``: where the warp leaves the maxima of its keys, if two share a query; ``others``: those of the other.
        """
        theirs = cuda.local.array(OWN_ROWS, np.float32)
        for distance in (1, 4, 8):  # the lanes that have the same rows
            for i in range(OWN_ROWS):  # all of them are under way before one is waited for
                theirs[i] = cuda.shfl_xor_sync(FULL_WARP, tops[i], distance)
            for i in range(OWN_ROWS):
                tops[i] = max(tops[i], theirs[i])
        if warps_x > 1:
            exchange(shared, maxima, tops)
            for i in range(OWN_ROWS):
                tops[i] = max(tops[i], shared[others + i * LANES_Y])
        for i in range(OWN_ROWS):
            top = max(bases[i], tops[i])
            keep = cuda.libdevice.exp2f(bases[i] - top)
            bases[i] = top
            totals[i] *= keep
            for j in range(own_columns):
                sums[i, j] *= keep

    @cuda.jit(device=True)
    def exchange(shared, own, values):
        """A number for each row of the warp into shared memory, where the other warp of these rows reads it."""
        if place()[1] == 0:
            for i in range(OWN_ROWS):
                shared[own + i * LANES_Y] = values[i]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def keep_weights(shared, begin, scores):
        """Turned: those of a key for the thread's eight rows are neighbours, in two pieces of four."""
        for j in range(own_keys):
            for i in range(0, OWN_ROWS, 4):
                four = scores[i, j], scores[i + 1, j], scores[i + 2, j], scores[i + 3, j]
                store128(shared, begin + j * (LANES_X * pitch_w) + i * LANES_Y, four)

    @cuda.jit(fastmath=True, max_registers=255)
    def kernel(q, k, v, out, logs, scale, sizes):
        shared = cuda.shared.array(0, np.float32, alignment=16)
        scores = cuda.local.array((OWN_ROWS, own_keys), np.float32)
        sums = cuda.local.array((OWN_ROWS, own_columns), np.float32)
        bases, totals = cuda.local.array(OWN_ROWS, np.float32), cuda.local.array(OWN_ROWS, np.float32)
        tiles = (sizes.queries + queries - 1) // queries
        # With a causal mask the last queries have the most keys: they begin first.
        head, query0 = cuda.blockIdx.x // tiles, (tiles - 1 - cuda.blockIdx.x % tiles) * queries
        group, size = head // sizes.shared, columns if exact else sizes.size
        y, x, warp_y, warp_x = place()
        row, key, own_column = warp_y * 32 + y, warp_x * (8 * own_keys) + x, warp_x * (8 * own_columns) + 4 * x
        own_weights = weights_at + warp_y * 32 + 4 * y
        maxima, others = maxima_at + warp_x * queries + row, maxima_at + (1 - warp_x) * queries + row
        for i in range(OWN_ROWS):
            bases[i], totals[i] = LOWEST, f0
            for j in range(own_columns):
                sums[i, j] = f0
        last = min(query0 + queries, sizes.queries) - 1
        key0, end = max(query0 + sizes.low, 0) // keys * keys, min(last + sizes.high, sizes.keys)
        now, other = np.uint32(stage_at), np.uint32(stage_at + stage)
        if key0 < end:
            copy_queries(shared, 0, q, head, query0, sizes.queries, 0, size)
            copy_keys(shared, now, k, group, key0, sizes.keys, 0, size)
            scale_queries(shared, scale)
        while key0 < end:
            for i in range(OWN_ROWS):
                for j in range(own_keys):
                    scores[i, j] = f0
            column = np.uint32(0)
            while column < size:
                arrived()
                after = np.uint32(column + depth)
                if after < size:  # the next columns arrive, or behind the last the first values
                    copy_keys(shared, other, k, group, key0, sizes.keys, after, size)
                else:
                    copy_values(shared, other, v, group, key0, sizes.keys, 0, size)
                deep = np.uint32(depth if exact else min(depth, size - column))
                add_scores(shared, np.uint32(row * pitch_q + column), np.uint32(now + key * pitch_k), deep, scores)
                now, other, column = other, now, after
            if key0 < last + sizes.low or key0 + keys > min(query0 + sizes.high, sizes.keys):
                hide(scores, query0 + row, key0 + key, sizes)
            update(shared, maxima, others, scores, bases, totals, sums)
            keep_weights(shared, own_weights + key * pitch_w, scores)
            first, count = np.uint32(0), np.uint32(min(keys, end - key0))
            while first < count:
                arrived()
                after = np.uint32(first + chunk)
                if after < count:  # the next values arrive, or behind the last the next keys
                    copy_values(shared, other, v, group, key0 + after, sizes.keys, 0, size)
                elif key0 + keys < end:
                    copy_keys(shared, other, k, group, key0 + keys, sizes.keys, 0, size)
                left = min(np.uint32(chunk), np.uint32(count - first))
                w_from = np.uint32(own_weights + first * pitch_w)
                add_values(shared, w_from, np.uint32(now + own_column), left, sums)
                now, other, first = other, now, after
            key0 += keys
        for i in range(OWN_ROWS):
            for distance in (1, 4, 8):
                totals[i] += cuda.shfl_xor_sync(FULL_WARP, totals[i], distance)
        if warps_x > 1:
            exchange(shared, maxima, totals)
            for i in range(OWN_ROWS):
                totals[i] += shared[others + i * LANES_Y]
        for i in range(OWN_ROWS):
            query, share = query0 + row + i * LANES_Y, f1 / totals[i] if totals[i] != f0 else f0
            if query < sizes.queries:
                if logs.size and x == 0 and warp_x == 0:
                    logs[head * sizes.queries + query] = bases[i] + cuda.libdevice.log2f(totals[i])
                for j in range(own_columns):
                    sums[i, j] *= share
                for j in range(0, own_columns, 4):
                    c = own_column + j * LANES_X
                    if wide:
                        if c < size:
                            four = sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3]
                            store128(out, (head * sizes.queries + query) * size + c, four)
                    else:
                        for e in range(4):
                            if c + e < size:
                                out[head, query, c + e] = sums[i, j + e]

    return kernel


@cuda.jit(device=True)
def arrived():
    """What the block has asked for is in shared memory, and everyone has read what stood in the other stage."""
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
