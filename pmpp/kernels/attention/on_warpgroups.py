"""Attention by warpgroups: queries, keys and values in float16 or bfloat16, on Hopper.

Chapter: notebooks/87_attention_on_tensor_cores.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, float16.

mma.sync reaches two thirds of what this GPU's tensor cores can do, and each warp loads its operands into registers
before. Here a warpgroup of four warps multiplies by wgmma. Queries, keys and values stay in shared memory, where a copy
engine puts them, and a warp of its own asks for them. Scores are in registers, as sums of wgmma always are. Weights are
made of them there, and the second product takes them from there: what a lane holds of the sums of 16 columns is what it
must hold of a first operand. Then a warpgroup does two things in turn, products and exponentials, and they take about
equally long. The second rung lets it do both at once.

The definition, the masks and the arguments are those of `pmpp.kernels.attention.on_tensor_cores`. The instructions are
in `pmpp.runtime.hopper` and `pmpp.runtime.hopper_registers`. They need a GPU of compute capability 9.0, and run on no
other.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import on_tensor_cores
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, f1, no_logs, reshaped
from pmpp.kernels.attention.on_tensor_cores import fill_kernel, in_chunks
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.matmul.tensor_cores import copy_kernel
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_tile,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_registers import (
    fewer_registers,
    more_registers,
    wgmma_bf16_first,
    wgmma_bf16_kept,
    wgmma_bf16_rows,
    wgmma_f16_first,
    wgmma_f16_kept,
    wgmma_f16_rows,
)
from pmpp.runtime.matrix import rounded_bf16, rounded_f16
from pmpp.runtime.rung import Problem, rung

DTYPES = on_tensor_cores.DTYPES
CAPABILITY = (9, 0)  # of the only GPUs that have wgmma
INSTRUCTIONS = {
    "float16": (wgmma_f16_first, wgmma_f16_rows, wgmma_f16_kept, rounded_f16),
    "bfloat16": (wgmma_bf16_first, wgmma_bf16_rows, wgmma_bf16_kept, rounded_bf16),
}
KERNELS = 32  # that are kept


# --------------------------------------------------------------------------------------------------------- definition

reference = on_tensor_cores.reference
inputs = on_tensor_cores.inputs
cost = on_tensor_cores.cost
tolerance = on_tensor_cores.tolerance


def arguments(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0) -> Problem:
    """Attention of several heads in 16 bits on a Hopper GPU: all arguments and errors are `on_tensor_cores.arguments`'.

    Args:
        q: float16 or bfloat16, shape (batch, heads, queries, size), with size from 1 to 128. All arrays are in C order.
        k, v: of the same dtype, shape (batch, groups, keys, size); groups divides heads.
        causal: True to let query i see only the keys up to i + keys - queries.
        window: only keys at a distance below this many, at least 1, are seen. None for all.
        scale: what scores are multiplied by, a number from 1.2e-38 to 2e38 in size, or 0; None for 1 / sqrt(size).
        out: a device array of the dtype and the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The values must be finite: those of a head's neighbours in
    memory are multiplied too, by weights of 0.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of another compute capability than 9.0.
    Source: Shah et al., FlashAttention-3, 2024.

    >>> from pmpp.kernels.attention import on_warpgroups
    >>> q, k, v = np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.array([4.0, 8.0]).reshape(1, 1, 2, 1)
    >>> q, k, v = (x.astype(np.float16) for x in (q, k, v))
    >>> on_warpgroups.overlapped(q, k, v, True, scale=1.0).copy_to_host().ravel()
    array([4., 6.], dtype=float16)
    """
    check_gpu()
    p = on_tensor_cores.arguments(q, k, v, causal, window, scale, out=out, stream=stream)
    check_rows(q, k)
    return p


def check_gpu() -> None:
    """RuntimeError for a GPU without wgmma."""
    capability = device.limits()["compute_capability"]
    if capability != CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 9.0, this one has {said}")


def check_rows(q: typing.Any, k: typing.Any) -> None:
    """ValueError for more rows than the copy engine can count."""
    for name, one in (("q", q), ("k", k)):
        if math.prod(one.shape[:3]) > MOST_ROWS:
            raise ValueError(f"{name} must have at most {MOST_ROWS} rows in all its heads, had shape {one.shape}")


MOST_ROWS = 2**31 - 512  # the copy engine counts rows with 32 bits


# ------------------------------------------------------------------------------------------------------- a block's work
# An array is a matrix: its rows are the queries or keys of one head after another. Its rows of up to 128 numbers are
# copied in panels of 64 columns, 128 bytes, since that is what the tensor cores read.

WARP, TEAM, ROWS, PANEL, STEP = 32, 128, 64, 64, 16
MAPS = 3 * 16  # words of a block's tensor maps
#: Registers of threads that ask for copies, and of others: by the teams of a block, and the blocks of a multiprocessor.
REGISTERS = {
    (1, 1): (24, 240),
    (2, 1): (24, 240),
    (3, 1): (32, 160),
    (1, 2): (24, 232),
    (1, 3): (24, 136),
    (2, 2): (24, 104),
}


class Tile(typing.NamedTuple):
    """What a block computes: so many ``columns`` of the result, from so many ``keys`` at a time.

    ``teams``: warpgroups, of 64 queries each. ``stages``: tiles of keys and values with room in shared memory.
    ``blocks``: of a multiprocessor, for which the compiler leaves registers.
    """

    columns: int
    keys: int
    teams: int
    stages: int
    blocks: int

    @property
    def threads(self) -> int:
        """Those of the teams, and a warpgroup of which one thread asks for copies."""
        return self.teams * TEAM + TEAM

    @property
    def queries(self) -> int:
        return ROWS * self.teams

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the queries, and stages of keys and values."""
        return 2 * self.columns * (self.queries + 2 * self.stages * self.keys)


@functools.cache
def spreader(count: int) -> typing.Any:
    """A device function that puts so many registers of a tuple into a local array. Halves, until four are left.

    A tuple of registers can only be indexed by constants, and a local array by the number of an unrolled loop.
    """
    half, middle = None if count == 4 else spreader(count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def spread_four(values, at, into):
        into[at], into[at + 1], into[at + 2], into[at + 3] = values[0], values[1], values[2], values[3]

    @cuda.jit(device=True, forceinline=True)
    def spread(values, at, into):
        half(values[:middle], at, into)
        half(values[middle:], at + middle, into)

    return spread_four if count == 4 else spread


@functools.cache
def scaler(count: int) -> typing.Any:
    """A device function that multiplies sums in a tuple by the factors of a lane's two rows."""
    half, middle = None if count == 4 else scaler(count // 2), count // 2

    @cuda.jit(device=True, forceinline=True)
    def scale_four(sums, upper, lower):
        return sums[0] * upper, sums[1] * upper, sums[2] * lower, sums[3] * lower

    @cuda.jit(device=True, forceinline=True)
    def scale(sums, upper, lower):
        return half(sums[:middle], upper, lower) + half(sums[middle:], upper, lower)

    return scale_four if count == 4 else scale


@functools.cache
def products(tile: Tile, kind: str) -> tuple[typing.Any, typing.Any]:
    """Two device functions, with which a warpgroup starts the products of a tile of keys, and one of values."""
    first, rows, kept, _ = INSTRUCTIONS[kind]
    wide, nothing = tile.columns == MOST_SIZE, (f0,) * (tile.keys // 2)
    q_panel, panel = np.uint32(tile.queries * PANEL), np.uint32(tile.keys * PANEL)
    apart, steps, along = np.uint32(tile.keys * PANEL if wide else 0), tile.keys // STEP, np.uint32(STEP)

    @cuda.jit(device=True, forceinline=True)
    def add_panel(shared, q, k, scores):
        """The products of 64 elements of queries and keys."""
        scores = rows(tile_descriptor(shared, q, 0), tile_descriptor(shared, k, 0), scores)
        scores = rows(tile_descriptor(shared, q + along, 0), tile_descriptor(shared, k + along, 0), scores)
        scores = rows(tile_descriptor(shared, q + 2 * along, 0), tile_descriptor(shared, k + 2 * along, 0), scores)
        return rows(tile_descriptor(shared, q + 3 * along, 0), tile_descriptor(shared, k + 3 * along, 0), scores)

    @cuda.jit(device=True, forceinline=True)
    def score(shared, q, k):
        """The scores of 64 queries that begin at ``q`` and of the keys that begin at ``k``."""
        scores = first(tile_descriptor(shared, q, 0), tile_descriptor(shared, k, 0), nothing)
        scores = rows(tile_descriptor(shared, q + along, 0), tile_descriptor(shared, k + along, 0), scores)
        scores = rows(tile_descriptor(shared, q + 2 * along, 0), tile_descriptor(shared, k + 2 * along, 0), scores)
        scores = rows(tile_descriptor(shared, q + 3 * along, 0), tile_descriptor(shared, k + 3 * along, 0), scores)
        return add_panel(shared, q + q_panel, k + panel, scores) if wide else scores

    @cuda.jit(device=True, forceinline=True)
    def add_values(shared, v, weights, sums):
        """The products of weights and of the values that begin at ``v``."""
        for s in range(steps):
            a = weights[s, 0], weights[s, 1], weights[s, 2], weights[s, 3]
            sums = kept(a, tile_descriptor(shared, v + np.uint32(s * STEP * PANEL), apart), sums)
        return sums

    return score, add_values


@functools.cache
def softmax_of(tile: Tile, kind: str) -> tuple[typing.Any, typing.Any, typing.Any]:
    """Three device functions for the scores in a lane's registers: hide some, make weights of them, round these."""
    keys, tiles, steps, rounded = tile.keys, tile.keys // 8, tile.keys // STEP, INSTRUCTIONS[kind][3]

    @cuda.jit(device=True)
    def hide(scores, row, key, sizes):
        """What a query does not see gets the score -inf. ``row``: of the warp's first query in its head."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for half in range(2):
            query = row + 8 * half + lane // 4
            low = np.int32(min(max(query + sizes.low - key, 0), keys) - lane % 4 * 2)
            high = np.int32(min(max(min(query + sizes.high, sizes.keys) - key, 0), keys) - lane % 4 * 2)
            for n in range(tiles):
                for e in range(2):
                    if not low <= 8 * n + e < high:
                        scores[4 * n + 2 * half + e] = LEAST

    @cuda.jit(device=True)
    def update(scores, scale, highest, totals, keeps):
        """Scores become weights, relative to the new maximum of their row. What was summed is to be scaled by keeps.

        A lane has two rows, with two maxima and two sums of each: few warps are there to hide that a step depends on
        the one before.
        """
        tops, bases = cuda.local.array((2, 2), np.float32), cuda.local.array(2, np.float32)
        parts = cuda.local.array((2, 2), np.float32)
        for half in range(2):
            for e in range(2):
                tops[half, e], parts[half, e] = highest[half], f0
        for n in range(tiles):
            for half in range(2):
                for e in range(2):
                    tops[half, e] = cuda.libdevice.fmaxf(tops[half, e], scores[4 * n + 2 * half + e])
        upper = cuda.libdevice.fmaxf(tops[0, 0], tops[0, 1])
        lower = cuda.libdevice.fmaxf(tops[1, 0], tops[1, 1])
        left, right = cuda.shfl_xor_sync(FULL_WARP, upper, 1), cuda.shfl_xor_sync(FULL_WARP, lower, 1)
        upper, lower = cuda.libdevice.fmaxf(upper, left), cuda.libdevice.fmaxf(lower, right)
        left, right = cuda.shfl_xor_sync(FULL_WARP, upper, 2), cuda.shfl_xor_sync(FULL_WARP, lower, 2)
        tops[0, 0], tops[1, 0] = cuda.libdevice.fmaxf(upper, left), cuda.libdevice.fmaxf(lower, right)
        for half in range(2):
            top = tops[half, 0]
            bases[half] = top * scale if top != LEAST else f0  # since -inf - -inf is NaN
            keeps[half] = cuda.libdevice.exp2f(highest[half] * scale - bases[half])
            highest[half] = top
        for n in range(tiles):
            for half in range(2):
                for e in range(2):
                    at = 4 * n + 2 * half + e
                    scores[at] = cuda.libdevice.exp2f(scores[at] * scale - bases[half])
                    parts[half, e] += scores[at]
        for half in range(2):  # of this lane's keys alone, until the end
            totals[half] = totals[half] * keeps[half] + (parts[half, 0] + parts[half, 1])

    @cuda.jit(device=True)
    def as_operand(scores, weights):
        """The sums of 16 columns in a lane are those of a first operand, two and two in a register."""
        for s in range(steps):
            for e in range(4):
                weights[s, e] = rounded(scores[8 * s + 2 * e], scores[8 * s + 2 * e + 1])

    return hide, update, as_operand


@functools.cache
def stages_of(tile: typing.Any) -> tuple[typing.Any, typing.Any]:
    """Device functions: the next stage, and one with which a thread asks for rows, a box for each panel."""
    stages, panels = tile.stages, tile.columns // PANEL

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def fetch(shared, begin, maps, at, row, rows, barriers, b):
        """Boxes of so many rows, one for each panel."""
        expect_bytes(barriers, b, 2 * PANEL * panels * rows)
        for panel in range(panels):
            to = np.uint32(begin + np.uint32(panel * PANEL) * np.uint32(rows))
            bulk_tile(shared, to, maps, at, row, panel * PANEL, barriers, b)

    return next_stage, fetch


@functools.cache
def worker(tile: Tile) -> typing.Any:
    """A device function that says what a block does in its next turn: a head, and some of its queries.

    It gives the first of them, the first key that one of them sees, and the first key that none sees any more. The
    heads of a group have their keys in the cache together. With a causal mask the last queries have the most keys: they
    begin, and every second turn goes through the blocks backwards, so that each of them gets about as much.
    """
    queries, keys = tile.queries, tile.keys

    @cuda.jit(device=True)
    def work_of(turn, total, together, sizes):
        blocks_of_all, block = np.int64(cuda.gridDim.x), np.int64(cuda.blockIdx.x)
        number = turn * blocks_of_all + (blocks_of_all - 1 - block if turn % 2 else block)
        if number >= total:  # in the last turn not all blocks have work
            return np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
        # All fit 32 bits, since there are not more tiles than rows. A division of 64 bits takes far longer.
        tiles, most = np.uint32((sizes.queries + queries - 1) // queries), np.uint32(together)
        group = np.uint32(np.uint32(number) // np.uint32(most * tiles))
        heads = min(np.uint32(np.uint32(total) // tiles - group * most), most)
        place = np.uint32(np.uint32(number) - group * most * tiles)
        later = np.uint32(place // heads)
        head = np.int64(np.uint32(group * most + place - later * heads))
        query0 = np.int64(np.uint32(tiles - np.uint32(1) - later)) * queries
        last = min(query0 + queries, sizes.queries) - 1
        key0, end = max(query0 + sizes.low, 0) // keys * keys, min(last + sizes.high, sizes.keys)
        return head, query0, key0, max(end, 0)

    return work_of


CACHED = 2**24  # bytes of keys and values that are used at the same time


@functools.cache
def helpers(tile: Tile, kind: str) -> tuple[typing.Any, typing.Any, typing.Any]:
    """Device functions: the next stage; one thread asks for all tiles; and a lane stores what it has.

    ``full[2 s]`` and ``full[2 s + 1]`` end a phase when the keys, or the values, of stage s are there, and ``empty``
    when all warps have used them. The last of both is for the queries.
    """
    queries, keys, stages = tile.queries, tile.keys, tile.stages
    size_of_queries, size_of_tile, sum_tiles = queries * tile.columns, keys * tile.columns, tile.columns // 8
    rounded, (next_stage, fetch), work_of = INSTRUCTIONS[kind][3], stages_of(tile), worker(tile)

    @cuda.jit(device=True)
    def produce(shared, full, empty, q_map, k_map, v_map, maps, total, together, sizes):
        at, now, parity, reads = np.int64(cuda.blockIdx.x) * MAPS, np.uint32(0), np.uint32(0), np.uint32(1)
        place_map(maps, at, q_map)
        place_map(maps, at + 16, k_map)
        place_map(maps, at + 32, v_map)
        turn = np.int64(0)
        while turn * cuda.gridDim.x < total:
            head, query0, key0, end = work_of(turn, total, together, sizes)
            turn += 1
            first_key = np.int64(np.uint32(head) // np.uint32(sizes.shared)) * sizes.keys  # of the head's group
            if key0 < end:
                mbarrier_wait(empty, 2 * stages, reads)  # the phase before the first counts as ended
                reads = np.uint32(reads ^ np.uint32(1))
                fetch(shared, np.uint32(0), maps, at, head * sizes.queries + query0, queries, full, 2 * stages)
            while key0 < end:
                for which in range(2):  # keys, and then values
                    b = np.uint32(np.uint32(2) * now + np.uint32(which))
                    begin = np.uint32(np.uint32(size_of_queries) + b * np.uint32(size_of_tile))
                    mbarrier_wait(empty, b, parity ^ np.uint32(1))
                    fetch(shared, begin, maps, at + 16 + 16 * which, first_key + key0, keys, full, b)
                now, parity = next_stage(now, parity)
                key0 += keys

    @cuda.jit(device=True)
    def store(sums, highest, totals, scale, first_row, row, out, logs, sizes):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for half in range(2):
            for distance in (1, 2):
                totals[half] += cuda.shfl_xor_sync(FULL_WARP, totals[half], distance)
            share = f1 / totals[half] if totals[half] != f0 else f0
            query = row + 8 * half + lane // 4
            if query < sizes.queries:
                if logs.size and lane % 4 == 0:
                    base = highest[half] * scale if highest[half] != LEAST else f0
                    logs[first_row + query] = base + cuda.libdevice.log2f(totals[half])
                for n in range(sum_tiles):
                    if 8 * n < sizes.size:
                        word = rounded(sums[4 * n + 2 * half] * share, sums[4 * n + 2 * half + 1] * share)
                        out[first_row + query, 4 * n + lane % 4] = word

    return next_stage, produce, store


@cuda.jit(device=True, forceinline=True)
def after(value):
    """Whatever waits behind this call does so after ``value``, a sum of weights, is known.

    A compiler is free to wait for products before it computes what does not depend on them: then nothing overlaps. It
    does not move a wait to before a branch, and does not know that no sum of weights is negative.
    """
    if value < f0:
        cuda.syncwarp()


@functools.cache
def weigher(tile: Tile, kind: str) -> typing.Any:
    """A device function that makes weights of the scores that a product has left in registers."""
    keys, (hide, update, _), spread = tile.keys, softmax_of(tile, kind), spreader(tile.keys // 2)

    @cuda.jit(device=True, forceinline=True)
    def weigh(found, scores, row, key0, seen, scale, sizes, highest, totals, keeps):
        """``seen``: keys from the first to before the second are seen by all queries of the warpgroup."""
        spread(found, 0, scores)
        if key0 < seen[0] or key0 + keys > seen[1]:
            hide(scores, row, key0, sizes)
        update(scores, scale, highest, totals, keeps)

    return weigh


@functools.cache
def skipper(tile: Tile) -> typing.Any:
    """A device function with which a warp hands back tiles of keys and values that its queries do not see.

    It waits until they are there: it may count itself only in the phase in which they are used.
    """
    keys, (next_stage, _) = tile.keys, stages_of(tile)

    @cuda.jit(device=True)
    def leave_out(full, empty, key0, end, now, parity):
        first = np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0
        while key0 < end:
            for which in range(2):
                b = np.uint32(np.uint32(2) * now + np.uint32(which))
                mbarrier_wait(full, b, parity)
                if first:
                    mbarrier_arrive(empty, b)
            now, parity = next_stage(now, parity)
            key0 += keys
        return now, parity

    return leave_out


@functools.cache
def one_after_the_other(tile: Tile, kind: str) -> typing.Any:
    """A device function with which a warpgroup computes its sums: it waits for each product, and then goes on.

    The keys from ``key0`` to before ``end`` come, and those from ``own_end`` on are seen by none of its queries.
    """
    keys, count, steps, score_count = tile.keys, tile.columns // 2, tile.keys // STEP, tile.keys // 2
    begin, size, nothing = np.uint32(tile.queries * tile.columns), np.uint32(keys * tile.columns), (f0,) * count
    (score, add_values), weigh, scaled = products(tile, kind), weigher(tile, kind), scaler(count)
    as_operand, (next_stage, _), queries_read = softmax_of(tile, kind)[2], stages_of(tile), 2 * tile.stages
    leave_out = skipper(tile)

    @cuda.jit(device=True, forceinline=True)
    def consume(shared, full, empty, own, row, key0, end, own_end, seen, scale, sizes, highest, totals, now, parity):
        scores, keeps = cuda.local.array(score_count, np.float32), cuda.local.array(2, np.float32)
        weights = cuda.local.array((steps, 4), np.uint32)
        first = np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0
        sums = nothing
        while key0 < own_end:
            k = np.uint32(np.uint32(2) * now)
            v = np.uint32(k + np.uint32(1))
            mbarrier_wait(full, k, parity)
            wgmma_fence()
            found = score(shared, own, np.uint32(begin + k * size))
            wgmma_commit()
            found = wgmma_wait(0, found)
            if first:
                mbarrier_arrive(empty, k)
            weigh(found, scores, row, key0, seen, scale, sizes, highest, totals, keeps)
            sums = scaled(sums, keeps[0], keeps[1])
            as_operand(scores, weights)
            mbarrier_wait(full, v, parity)
            wgmma_fence()
            sums = add_values(shared, np.uint32(begin + v * size), weights, sums)
            wgmma_commit()
            sums = wgmma_wait(0, sums)
            if first:
                mbarrier_arrive(empty, v)
            now, parity = next_stage(now, parity)
            key0 += keys
        if first:
            mbarrier_arrive(empty, queries_read)
        now, parity = leave_out(full, empty, key0, end, now, parity)
        return sums, now, parity

    return consume


@functools.cache
def both_at_once(tile: Tile, kind: str) -> typing.Any:
    """The same, but the values of a tile are multiplied while the scores of the next tile become weights."""
    keys, count, steps, score_count = tile.keys, tile.columns // 2, tile.keys // STEP, tile.keys // 2
    begin, size, nothing = np.uint32(tile.queries * tile.columns), np.uint32(keys * tile.columns), (f0,) * count
    (score, add_values), weigh, scaled = products(tile, kind), weigher(tile, kind), scaler(count)
    as_operand, (next_stage, _), queries_read = softmax_of(tile, kind)[2], stages_of(tile), 2 * tile.stages
    leave_out = skipper(tile)

    @cuda.jit(device=True, forceinline=True)
    def consume(shared, full, empty, own, row, key0, end, own_end, seen, scale, sizes, highest, totals, now, parity):
        scores, keeps = cuda.local.array(score_count, np.float32), cuda.local.array(2, np.float32)
        weights = cuda.local.array((steps, 4), np.uint32)
        first = np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0
        k, sums = np.uint32(np.uint32(2) * now), nothing
        v, parity_of_values = np.uint32(k + np.uint32(1)), parity
        mbarrier_wait(full, k, parity)
        wgmma_fence()
        found = score(shared, own, np.uint32(begin + k * size))
        wgmma_commit()
        found = wgmma_wait(0, found)
        if first:
            mbarrier_arrive(empty, k)
        weigh(found, scores, row, key0, seen, scale, sizes, highest, totals, keeps)
        as_operand(scores, weights)
        now, parity = next_stage(now, parity)
        key0 += keys
        while key0 < own_end:
            k = np.uint32(np.uint32(2) * now)
            mbarrier_wait(full, k, parity)
            mbarrier_wait(full, v, parity_of_values)
            wgmma_fence()
            found = score(shared, own, np.uint32(begin + k * size))
            wgmma_commit()
            sums = add_values(shared, np.uint32(begin + v * size), weights, sums)  # of the tile before
            wgmma_commit()
            found = wgmma_wait(1, found)
            if first:
                mbarrier_arrive(empty, k)
            weigh(found, scores, row, key0, seen, scale, sizes, highest, totals, keeps)
            after(totals[0] + totals[1])
            sums = wgmma_wait(0, sums)
            if first:
                mbarrier_arrive(empty, v)
            sums = scaled(sums, keeps[0], keeps[1])
            as_operand(scores, weights)
            v, parity_of_values = np.uint32(k + np.uint32(1)), parity
            now, parity = next_stage(now, parity)
            key0 += keys
        if first:
            mbarrier_arrive(empty, queries_read)
        mbarrier_wait(full, v, parity_of_values)
        wgmma_fence()
        sums = add_values(shared, np.uint32(begin + v * size), weights, sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        if first:
            mbarrier_arrive(empty, v)
        now, parity = leave_out(full, empty, key0, end, now, parity)
        return sums, now, parity

    return consume


@functools.lru_cache(KERNELS)
def warpgroups_kernel(tile: Tile, kind: str, consumer: typing.Callable) -> typing.Any:
    """The kernel ``(maps of q, k and v, room for them, out, logs, scale, sizes)`` of a tile.

    ``consumer``: makes the function with which a warpgroup computes its sums.
    """
    stages, consumers, count = tile.stages, 4 * tile.teams, tile.columns // 2
    work_of = worker(tile)
    consume, (_, produce, store), spread = consumer(tile, kind), helpers(tile, kind), spreader(count)
    tiles_at_once, barriers, (few, many) = 2 * stages, 2 * stages + 1, REGISTERS[tile.teams, tile.blocks]

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, tile.blocks))
    def kernel(q_map, k_map, v_map, maps, out, logs, scale, total, together, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(barriers, np.uint64), cuda.shared.array(barriers, np.uint64)
        warp = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(WARP))
        if cuda.threadIdx.x == 0:
            for b in range(barriers):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, consumers)
        cuda.syncthreads()
        if warp >= consumers:
            fewer_registers(few)
            if warp == consumers and np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0:
                produce(shared, full, empty, q_map, k_map, v_map, maps, total, together, sizes)
        else:
            more_registers(many)
            highest, totals = cuda.local.array(2, np.float32), cuda.local.array(2, np.float32)
            result = cuda.local.array(count, np.float32)
            own, done = np.uint32(warp // np.uint32(4) * np.uint32(ROWS * PANEL)), np.int64(0)
            now, parity, reads = np.uint32(0), np.uint32(0), np.uint32(0)
            while done * cuda.gridDim.x < total:
                head, query0, key0, end = work_of(done, total, together, sizes)
                row = query0 + np.int64(warp) * 16
                low = query0 + np.int64(warp // np.uint32(4)) * ROWS  # of the queries of this team
                high = min(low + ROWS, sizes.queries) - 1
                seen = high + sizes.low, min(low + sizes.high, sizes.keys)
                own_end = min(max(min(high + sizes.high, sizes.keys), key0 + 1), end)
                done += 1
                for half in range(2):
                    highest[half], totals[half] = LEAST, f0
                for i in range(count):
                    result[i] = f0
                if key0 < end:
                    mbarrier_wait(full, tiles_at_once, reads)
                    reads = np.uint32(reads ^ np.uint32(1))
                    sums, now, parity = consume(
                        shared,
                        full,
                        empty,
                        own,
                        row,
                        key0,
                        end,
                        own_end,
                        seen,
                        scale,
                        sizes,
                        highest,
                        totals,
                        now,
                        parity,
                    )
                    spread(sums, 0, result)
                if end >= 0:
                    store(result, highest, totals, scale, head * sizes.queries, row, out, logs, sizes)

    return kernel


MANY = 64  # turns after which the blocks' shares are about equal; also, how many choices are compared


@functools.lru_cache(4096)
def together(heads: int, sizes: tuple, tile: Tile, most_blocks: int) -> int:
    """Heads whose queries take turns: one, if all have equally much to do, and else as many as the cache has room for.

    Fewer of them, where the blocks get more equal shares then: their steps are counted as the kernel hands them out.
    """
    if sizes.low == -sizes.queries and sizes.high == sizes.keys:
        return 1
    most = min(max(CACHED // max(4 * sizes.keys * sizes.size, 1), 1) * sizes.shared, heads)
    tiles = blocks(sizes.queries, tile.queries)
    first = np.arange(tiles - 1, -1, -1) * tile.queries
    last = np.minimum(first + tile.queries, sizes.queries) - 1
    begin = np.maximum(first + sizes.low, 0) // tile.keys
    steps = np.maximum(-(-np.minimum(last + sizes.high, sizes.keys) // tile.keys) - begin, 0) + 1  # 1: to begin and end
    total, turns = heads * tiles, blocks(heads * tiles, most_blocks)
    if turns > MANY:
        return most

    def longest(count: int) -> int:
        """The steps of the block that has most."""
        groups = [np.repeat(steps, min(count, heads - head)) for head in range(0, heads, count)]
        each = np.zeros((turns, most_blocks), np.int64)
        each.reshape(-1)[:total] = np.concatenate(groups)
        each[1::2] = each[1::2, ::-1]
        return int(each.sum(axis=0).max())

    return min(range(most, max(most - MANY, 0), -1), key=longest)


def most_blocks(tile: Tile) -> int:
    """Blocks that run at the same time."""
    return device.limits()["multiprocessors"] * tile.blocks


def by_tile(tile: Tile, consumer: typing.Callable, p: Problem, logs: typing.Any = None) -> None:
    """A problem by the kernel of a tile. ``logs``: float32, one for each query of each head, or None."""

    def launch(q, k, v, out, sizes):
        total = p.heads * blocks(sizes.queries, tile.queries)
        grid = min(total, most_blocks(tile))
        given = tensor_map(q, tile.queries, PANEL), tensor_map(k, tile.keys, PANEL), tensor_map(v, tile.keys, PANEL)
        room = device.empty(grid * MAPS, np.uint64, stream=p.stream)
        kernel = warpgroups_kernel(tile, p.kind, consumer)
        kernel[grid, tile.threads, p.stream, tile.shared](
            *given,
            room,
            out,
            no_logs() if logs is None else logs,
            p.scale,
            np.int64(total),
            np.int64(together(p.heads, sizes, tile, grid)),
            sizes,
        )

    in_chunks(p, launch)


def tile_of(p: Problem) -> Tile:
    """The tile with room for a query."""
    return NARROW if p.sizes.size <= PANEL else WIDE


NARROW, WIDE = Tile(64, 128, 3, 3, 1), Tile(128, 128, 2, 3, 1)


@rung(warpgroups_kernel, copy_kernel)
def warpgroup(p):
    """A warpgroup has 64 queries, and multiplies 128 keys and values where they lie in shared memory.

    A warp of its own asks for the tiles. Two warpgroups share them, or three for heads of up to 64. While one of them
    makes weights another one may multiply, if they happen to be at different places. As many blocks as fit on the GPU
    go through all heads and queries: the tiles of the next queries are on their way while results are stored.
    Source: Shah et al., FlashAttention-3, 2024, section 3.1.

    Leaves: a warpgroup multiplies nothing while it makes weights of scores.
    """
    by_tile(tile_of(p), one_after_the_other, p)


@rung(warpgroups_kernel, copy_kernel)
def overlapped(p):
    """While the scores of a tile become weights, the values of the tile before are multiplied.

    wgmma does not wait for what it has started, so the order of the instructions is enough.
    Source: Shah et al., FlashAttention-3, 2024, section 3.2.
    """
    by_tile(tile_of(p), both_at_once, p)


def forward(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0) -> tuple:
    """The result, and what its gradients need of it; arguments and errors as in `overlapped`.

    Returns ``out`` and a new float32 device array of shape (batch, heads, queries): the logarithm to base 2 of the sum
    of 2^(score log2(e)) over the keys that a query sees, -inf if it sees none.

    >>> from pmpp.kernels.attention import on_warpgroups
    >>> one = np.ones((1, 1, 2, 1), np.float16)
    >>> on_warpgroups.forward(0 * one, one, one)[1].copy_to_host()
    array([[[1., 1.]]], dtype=float32)
    """
    p = arguments(q, k, v, causal, window, scale, out=out, stream=stream)
    logs = device.empty(p.result.shape[:3], np.float32, stream=p.stream)
    flat = reshaped(logs, (logs.size,))
    if not p.done:
        by_tile(tile_of(p), both_at_once, p, flat)
    elif logs.size:
        fill_kernel[blocks(logs.size, TEAM), TEAM, p.stream](flat, LEAST)
    return p.result, logs


LADDER = (warpgroup, overlapped)
