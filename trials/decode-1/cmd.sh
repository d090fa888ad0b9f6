#!/bin/bash
# seconds: 60
# gpus: 1
cat > probe_decode.py <<'EOF_A'
import functools, os, sys, time, typing, statistics, traceback
import numpy as np
from pmpp import cuda
from pmpp.kernels.attention import decode
from pmpp.kernels.attention.decode import own_pages
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, finite_base, reshaped
from pmpp.kernels.attention.teams import row_of
from pmpp.kernels.common import FULL_WARP, blocks, round_up
from pmpp.kernels.common.division import divisor
from pmpp.kernels.matmul.tensor_cores import CHUNK, WARP, swizzled_place
from pmpp.runtime import device
from pmpp.runtime.hopper import (bulk_tile, copies_visible, expect_bytes, mbarrier_arrive, mbarrier_init, mbarrier_wait, place_map, tensor_map)
from pmpp.runtime.matrix import (commit_copies, copy_async, ldmatrix, ldmatrix_transposed, load32, mma_f16, rounded_f16, wait_copies)

HEADS, KEYS = 8, 16
ON_GPU = os.environ.get("PMPP_BACKEND") != "simt"
if ON_GPU or os.environ.get("STAMPS"):
    from llvmlite import ir
    from numba.cuda import types as nt
    from numba.cuda.extending import intrinsic

    @intrinsic
    def now_ns(typingctx):
        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(64), [])
            return builder.call(ir.InlineAsm(kind, "mov.u64 $0, %globaltimer;", "=l,~{memory}", side_effect=True), [])
        return nt.uint64(), codegen

    @intrinsic
    def smid(typingctx):
        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(32), [])
            return builder.call(ir.InlineAsm(kind, "mov.u32 $0, %smid;", "=r,~{memory}", side_effect=True), [])
        return nt.uint32(), codegen

    STAMP = True
else:
    STAMP = False
    now_ns = smid = None

CHUNKS, STEPS, SUM_TILES = 16, 8, 16
KEPT = np.int32(~0x1FFF)


class Plan(typing.NamedTuple):
    heads: int
    shared: int
    turns: int
    size: int
    page: int
    part: int
    page_times: int
    page_shift: int
    whole: int
    pieces: int


@functools.cache
def parts_kit(warps, place):
    mma, rounded = mma_f16, rounded_f16

    @cuda.jit(device=True)
    def first_bits(x):
        return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & KEPT)

    @cuda.jit(device=True)
    def step(shared, keys_at, values_at, row0, first, end, own, scores, sums, highest, total, scale):
        """16 keys from row0 on of a tile: new highest and total."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        pair = lane % 4 * 2
        for half in range(2):
            for e in range(4):
                scores[half, e] = f0
        for s in range(STEPS):
            row, chunk = np.uint32(row0 + lane // 16 * 8 + lane % 8), np.uint32(2 * s + lane // 8 % 2)
            b = ldmatrix(shared, np.uint32(keys_at + place(row, chunk) * np.uint32(CHUNK)))
            a = own[s, 0], np.uint32(0), own[s, 1], np.uint32(0)
            for half in range(2):
                c = mma(a, (b[2 * half], b[2 * half + 1]), (scores[half, 0], scores[half, 1], f0, f0))
                for e in range(2):
                    scores[half, e] = c[e]
        top = highest
        for half in range(2):
            for e in range(2):
                scores[half, e] = scores[half, e] * scale if first + 8 * half + pair + e < end else LEAST
                top = max(top, scores[half, e])
        for distance in (1, 2):
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        base = finite_base(top)
        keep = cuda.libdevice.exp2f(highest - base)
        total = total * keep
        for t in range(SUM_TILES):
            for e in range(4):
                sums[t, e] *= keep
        for half in range(2):
            for e in range(2):
                weight = cuda.libdevice.exp2f(scores[half, e] - base)
                total += weight
                scores[half, e] = first_bits(weight)
                scores[half, 2 + e] = weight - scores[half, e]
        weights = (
            rounded(scores[0, 0], scores[0, 1]), rounded(scores[0, 2], scores[0, 3]),
            rounded(scores[1, 0], scores[1, 1]), rounded(scores[1, 2], scores[1, 3]),
        )
        for n in range(STEPS):
            row, chunk = np.uint32(row0 + lane % 16), np.uint32(2 * n + lane // 16)
            b = ldmatrix_transposed(shared, np.uint32(values_at + place(row, chunk) * np.uint32(CHUNK)))
            for half in range(2):
                t = 2 * n + half
                c = mma(weights, (b[2 * half], b[2 * half + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                for e in range(4):
                    sums[t, e] = c[e]
        return top, total

    @cuda.jit(device=True)
    def finish(all_highest, all_total, all_sums, arrivals, highests, totals, means, out, first_head, some, size, row, piece, pieces, rows_left):
        """Join warps; threads 0..127 have a column. pieces > 1: the last block to come joins them."""
        thread = cuda.threadIdx.x
        last = cuda.shared.array(1, np.int32)
        cuda.syncthreads()
        if thread < size:
            for h in range(some):
                top = LEAST
                for w in range(warps):
                    top = max(top, all_highest[w, h])
                weights, added = f0, f0
                for w in range(warps):
                    keep = cuda.libdevice.exp2f(all_highest[w, h] - finite_base(top))
                    weights += all_total[w, h] * keep
                    added += all_sums[w, h, thread] * keep
                if pieces == 1:
                    out[(first_head + h) * size + thread] = added / weights if weights != f0 else f0
                else:
                    at = (np.int64(row) * pieces + piece) * HEADS + h
                    means[at * size + thread] = added
                    if thread == 0:
                        highests[at], totals[at] = top, weights
        if pieces > 1:
            cuda.threadfence()
            cuda.syncthreads()
            if thread == 0:
                last[0] = cuda.atomic.add(arrivals, row, 1)
            cuda.syncthreads()
            if last[0] == pieces - 1:
                cuda.threadfence()
                if thread == 0:
                    arrivals[row] = 0
                if thread < size:
                    for h in range(some):
                        top = LEAST
                        for p in range(pieces):
                            top = max(top, highests[(np.int64(row) * pieces + p) * HEADS + h])
                        base = finite_base(top)
                        weights, added = f0, f0
                        for p in range(pieces):
                            at = (np.int64(row) * pieces + p) * HEADS + h
                            keep = cuda.libdevice.exp2f(highests[at] - base)
                            weights += totals[at] * keep
                            added += means[at * size + thread] * keep
                        out[(first_head + h) * size + thread] = added / weights if weights != f0 else f0

    return step, finish


@cuda.jit(device=True)
def work_of(b, plan):
    if b < plan.whole:
        return b, 0, 1
    c = b - plan.whole
    return plan.whole + c // plan.pieces, c % plan.pieces, plan.pieces


@functools.cache
def planned_kernel(stages, compute):
    """Today's copies, new plan."""
    warps, TILE = 4, KEYS * MOST_SIZE
    place, others, pending = swizzled_place(CHUNKS), stages - 1, stages - 2
    step, finish = parts_kit(warps, place)

    @cuda.jit(device=True)
    def fetch(shared, begin, k, v, table, first, end, text, group, groups, sizes):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        own = row_of(table, text, np.int32(min(first + lane % 16, end - 1)), group, groups, sizes)
        chunk = lane % np.uint32(CHUNKS)
        count = CHUNK if chunk * CHUNK < sizes.size else 0
        for i in range(KEYS // 2):
            line = np.uint32(2 * i + lane // 16)
            origin = cuda.shfl_sync(FULL_WARP, own, line) * sizes.size + chunk * CHUNK
            at = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
            copy_async(shared, at, k, origin, count)
            copy_async(shared, at + np.uint32(TILE), v, origin, count)

    @cuda.jit(fastmath=True)
    def kernel(q, k, v, lengths, table, arrivals, highests, totals, means, out, scale, plan, times):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x] = now_ns()
        all_highest = cuda.shared.array((warps, HEADS), np.float32)
        all_total = cuda.shared.array((warps, HEADS), np.float32)
        all_sums = cuda.shared.array((warps, HEADS, MOST_SIZE), np.float32)
        own = cuda.local.array((STEPS, 2), np.uint32)
        scores = cuda.local.array((2, 4), np.float32)
        sums = cuda.local.array((SUM_TILES, 4), np.float32)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        head, pair = lane // 4, lane % 4 * 2
        row, piece, pieces = work_of(cuda.blockIdx.x, plan)
        groups, size = plan.heads // plan.shared, plan.size
        which, group = row % plan.turns, row // plan.turns % groups
        text = row // plan.turns // groups
        first_head = text * plan.heads + group * plan.shared + which * HEADS
        some = min(HEADS, plan.shared - which * HEADS)
        end, first = lengths[text], warp * KEYS
        if pieces > 1:
            end = min(end, (piece + 1) * plan.part)
            first += piece * plan.part
        begin = np.uint32(warp * np.uint32(stages * 2 * TILE))
        for stage in range(others):
            coming = first + stage * warps * KEYS
            if coming < end:
                fetch(shared, begin + np.uint32(stage * 2 * TILE), k, v, table, coming, end, text, group, groups, plan)
            commit_copies()
        for s in range(STEPS):
            for e in range(2):
                column = 16 * s + 8 * e + pair
                own[s, e] = np.uint32(0)
                if head < some and column < size:
                    own[s, e] = load32(q, (first_head + head) * size + column)
        for t in range(SUM_TILES):
            for e in range(4):
                sums[t, e] = f0
        highest, total = LEAST, f0
        now, into = np.uint32(0), np.uint32(others * 2 * TILE)
        while first < end:
            wait_copies(pending)
            cuda.syncwarp()
            coming = first + others * warps * KEYS
            if coming < end:
                fetch(shared, begin + into, k, v, table, coming, end, text, group, groups, plan)
            commit_copies()
            if compute:
                highest, total = step(shared, begin + now, begin + now + np.uint32(TILE), np.uint32(0), first, end, own, scores, sums, highest, total, scale)
            first += warps * KEYS
            into = now
            now = np.uint32(now + 2 * TILE) if now + 2 * TILE < stages * 2 * TILE else np.uint32(0)
        if compute:
            for distance in (1, 2):
                total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
            all_highest[warp, head], all_total[warp, head] = highest, total
            for t in range(SUM_TILES):
                for e in range(2):
                    all_sums[warp, head, 8 * t + pair + e] = sums[t, e] + sums[t, 2 + e]
            finish(all_highest, all_total, all_sums, arrivals, highests, totals, means, out, first_head, some, size, row, piece, pieces, 0)
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x + 1] = now_ns()
                times[3 * cuda.blockIdx.x + 2] = np.uint64(smid())

    kernel.room = 2 * stages * warps * 2 * TILE
    kernel.threads = 128
    return kernel


@functools.cache
def bulk_place():
    @cuda.jit(device=True)
    def place(row, chunk):
        line = np.uint32(2 * row + chunk // np.uint32(8))
        return np.uint32(line * np.uint32(8) + (chunk % np.uint32(8) ^ line % np.uint32(8)))

    return place


@functools.cache
def bulk_kernel(warps, stages, compute, rotate, stamps):
    """A warp of its own asks for tiles of 16 keys a warp by bulk copies; size 128."""
    keys = KEYS * warps
    TILE = keys * MOST_SIZE
    place = bulk_place()
    step, finish = parts_kit(warps, place)

    @cuda.jit(fastmath=True)
    def kernel(k_map, v_map, maps, q, lengths, table, arrivals, highests, totals, means, out, scale, plan, times):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x] = now_ns()
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        all_highest = cuda.shared.array((warps, HEADS), np.float32)
        all_total = cuda.shared.array((warps, HEADS), np.float32)
        all_sums = cuda.shared.array((warps, HEADS, MOST_SIZE), np.float32)
        own = cuda.local.array((STEPS, 2), np.uint32)
        scores = cuda.local.array((2, 4), np.float32)
        sums = cuda.local.array((SUM_TILES, 4), np.float32)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        head, pair = lane // 4, lane % 4 * 2
        row, piece, pieces = work_of(cuda.blockIdx.x, plan)
        groups, size = plan.heads // plan.shared, plan.size
        which, group = row % plan.turns, row // plan.turns % groups
        text = row // plan.turns // groups
        first_head = text * plan.heads + group * plan.shared + which * HEADS
        some = min(HEADS, plan.shared - which * HEADS)
        if cuda.threadIdx.x == 0:
            for b in range(stages):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, warps)
        end, begin = lengths[text], np.int64(0)
        if pieces > 1:
            end = min(end, (piece + 1) * plan.part)
            begin = np.int64(piece * plan.part)
        tiles = (end - begin + keys - 1) // keys
        turn = np.int64(row) * 37 % tiles if rotate else np.int64(0)
        now, parity = np.uint32(0), np.uint32(0)
        cuda.syncthreads()
        if warp == warps:
            if lane == 0:
                at = np.int64(cuda.blockIdx.x) * 32
                place_map(maps, at, k_map)
                place_map(maps, at + 16, v_map)
                for _ in range(tiles):
                    mbarrier_wait(empty, now, parity ^ np.uint32(1))
                    line = 2 * row_of(table, text, np.int32(begin + turn * keys), group, groups, plan)
                    expect_bytes(full, now, 4 * TILE)
                    to = np.uint32(now * np.uint32(2 * TILE))
                    bulk_tile(shared, to, maps, at, line, 0, full, now)
                    bulk_tile(shared, np.uint32(to + np.uint32(TILE)), maps, at + 16, line, 0, full, now)
                    turn = turn + 1 if turn + 1 < tiles else np.int64(0)
                    final = now == stages - 1
                    now, parity = np.uint32(0) if final else np.uint32(now + np.uint32(1)), np.uint32(parity ^ np.uint32(final))
        else:
            for s in range(STEPS):
                for e in range(2):
                    column = 16 * s + 8 * e + pair
                    own[s, e] = np.uint32(0)
                    if head < some and column < size:
                        own[s, e] = load32(q, (first_head + head) * size + column)
            for t in range(SUM_TILES):
                for e in range(4):
                    sums[t, e] = f0
            highest, total = LEAST, f0
            for _ in range(tiles):
                first = begin + turn * keys + warp * KEYS
                mbarrier_wait(full, now, parity)
                if compute:
                    if first < end:
                        to = np.uint32(now * np.uint32(2 * TILE))
                        row0 = np.uint32(warp * np.uint32(KEYS))
                        if first + KEYS > end:
                            for i in range(KEYS * MOST_SIZE // 32):
                                at = np.uint32(i * 32) + lane
                                if first + at // np.uint32(MOST_SIZE) >= end:
                                    shared[to + np.uint32(TILE) + row0 * np.uint32(MOST_SIZE) + at] = np.uint16(0)
                            copies_visible()
                            cuda.syncwarp()
                        highest, total = step(shared, to, np.uint32(to + np.uint32(TILE)), row0, first, end, own, scores, sums, highest, total, scale)
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(empty, now)
                turn = turn + 1 if turn + 1 < tiles else np.int64(0)
                final = now == stages - 1
                now, parity = np.uint32(0) if final else np.uint32(now + np.uint32(1)), np.uint32(parity ^ np.uint32(final))
            if compute:
                for distance in (1, 2):
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                all_highest[warp, head], all_total[warp, head] = highest, total
                for t in range(SUM_TILES):
                    for e in range(2):
                        all_sums[warp, head, 8 * t + pair + e] = sums[t, e] + sums[t, 2 + e]
        if compute:
            finish(all_highest, all_total, all_sums, arrivals, highests, totals, means, out, first_head, some, size, row, piece, pieces, 0)
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x + 1] = now_ns()
                times[3 * cuda.blockIdx.x + 2] = np.uint64(smid())

    kernel.room = 2 * stages * 2 * TILE
    kernel.threads = 32 * (warps + 1)
    kernel.keys = keys
    return kernel


from pmpp.kernels.matmul.warpgroups import is_last
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch


@functools.cache
def persistent_kernel(warps, stages, compute):
    """Blocks take units one after another; the producer goes on while sums are joined."""
    keys = KEYS * warps
    TILE = keys * MOST_SIZE
    place = bulk_place()
    step, _ = parts_kit(warps, place)
    heads_each = HEADS * 4 // warps

    @cuda.jit(device=True)
    def extent(unit, lengths, plan):
        row, piece, pieces = work_of(unit, plan)
        groups = plan.heads // plan.shared
        which, group = row % plan.turns, row // plan.turns % groups
        text = row // plan.turns // groups
        end, begin = lengths[text], np.int64(0)
        if pieces > 1:
            end = min(end, (piece + 1) * plan.part)
            begin = np.int64(piece * plan.part)
        return row, piece, pieces, which, group, text, begin, np.int64(end)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        final = stage == stages - 1
        return np.uint32(0) if final else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(final))

    @cuda.jit(fastmath=True)
    def kernel(words, q, lengths, table, arrivals, highests, totals, means, out, scale, plan, units, times):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        joined = cuda.shared.array(2, np.uint64)
        queue = cuda.shared.array(stages, np.int32)
        all_highest = cuda.shared.array((warps, HEADS), np.float32)
        all_total = cuda.shared.array((warps, HEADS), np.float32)
        all_sums = cuda.shared.array((warps, HEADS, MOST_SIZE), np.float32)
        own = cuda.local.array((STEPS, 2), np.uint32)
        scores = cuda.local.array((2, 4), np.float32)
        sums = cuda.local.array((SUM_TILES, 4), np.float32)
        maps = maps_of_launch(words)
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x] = now_ns()
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        head, pair = lane // 4, lane % 4 * 2
        if cuda.threadIdx.x == 0:
            for b in range(stages):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, warps)
            mbarrier_init(joined, 0, warps)
            mbarrier_init(joined, 1, warps)
        now, parity = np.uint32(0), np.uint32(0)
        cuda.syncthreads()
        groups, size = plan.heads // plan.shared, plan.size
        if warp == warps:
            if lane == 0:
                unit = np.int64(cuda.atomic.inc(arrivals, arrivals.size - 1, np.uint32(units + cuda.gridDim.x - 1)))
                while unit < units:
                    coming = np.int64(cuda.atomic.inc(arrivals, arrivals.size - 1, np.uint32(units + cuda.gridDim.x - 1)))
                    row, piece, pieces, which, group, text, begin, end = extent(unit, lengths, plan)
                    mbarrier_wait(empty, now, parity ^ np.uint32(1))
                    queue[now] = unit
                    if begin >= end:
                        mbarrier_arrive(full, now)
                        now, parity = next_stage(now, parity)
                    while begin < end:
                        mbarrier_wait(empty, now, parity ^ np.uint32(1))
                        line = 2 * row_of(table, text, np.int32(begin), group, groups, plan)
                        expect_bytes(full, now, 4 * TILE)
                        to = np.uint32(now * np.uint32(2 * TILE))
                        bulk_tile(shared, to, maps, 0, line, 0, full, now)
                        bulk_tile(shared, np.uint32(to + np.uint32(TILE)), maps, 16, line, 0, full, now)
                        begin += keys
                        now, parity = next_stage(now, parity)
                    unit = coming
                mbarrier_wait(empty, now, parity ^ np.uint32(1))
                queue[now] = -1
                mbarrier_arrive(full, now)
        else:
            mbarrier_wait(full, now, parity)
            unit = np.int64(queue[now])
            turn = np.uint32(0)
            while unit >= 0:
                row, piece, pieces, which, group, text, begin, end = extent(unit, lengths, plan)
                first_head = text * plan.heads + group * plan.shared + which * HEADS
                some = min(HEADS, plan.shared - which * HEADS)
                for s in range(STEPS):
                    for e in range(2):
                        column = 16 * s + 8 * e + pair
                        own[s, e] = np.uint32(0)
                        if head < some and column < size:
                            own[s, e] = load32(q, (first_head + head) * size + column)
                for t in range(SUM_TILES):
                    for e in range(4):
                        sums[t, e] = f0
                highest, total = LEAST, f0
                again = True
                while again:
                    mbarrier_wait(full, now, parity)
                    first = begin + warp * KEYS
                    if compute:
                        if first < end:
                            to = np.uint32(now * np.uint32(2 * TILE))
                            row0 = np.uint32(warp * np.uint32(KEYS))
                            if first + KEYS > end:
                                for i in range(KEYS * MOST_SIZE // 32):
                                    at = np.uint32(i * 32) + lane
                                    if first + at // np.uint32(MOST_SIZE) >= end:
                                        shared[to + np.uint32(TILE) + row0 * np.uint32(MOST_SIZE) + at] = np.uint16(0)
                                copies_visible()
                                cuda.syncwarp()
                            highest, total = step(shared, to, np.uint32(to + np.uint32(TILE)), row0, first, end, own, scores, sums, highest, total, scale)
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, now)
                    begin += keys
                    now, parity = next_stage(now, parity)
                    again = begin < end
                if compute:
                    for distance in (1, 2):
                        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                    mbarrier_wait(joined, 1, turn ^ np.uint32(1))
                    all_highest[warp, head], all_total[warp, head] = highest, total
                    for t in range(SUM_TILES):
                        for e in range(2):
                            all_sums[warp, head, 8 * t + pair + e] = sums[t, e] + sums[t, 2 + e]
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(joined, 0)
                    mbarrier_wait(joined, 0, turn)
                    column = warp % 4 * 32 + lane
                    head0 = np.int64(warp // 4 * heads_each)
                    for h in range(head0, min(head0 + heads_each, some)):
                        top = LEAST
                        for w in range(warps):
                            top = max(top, all_highest[w, h])
                        weights, added = f0, f0
                        for w in range(warps):
                            keep = cuda.libdevice.exp2f(all_highest[w, h] - finite_base(top))
                            weights += all_total[w, h] * keep
                            added += all_sums[w, h, column] * keep
                        if pieces == 1:
                            out[(first_head + h) * size + column] = added / weights if weights != f0 else f0
                        else:
                            at = (np.int64(row - plan.whole) * pieces + piece) * HEADS + h
                            means[at * size + column] = added
                            if lane == 0:
                                highests[at * 4 + warp % 4], totals[at * 4 + warp % 4] = top, weights
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(joined, 1)
                    turn = np.uint32(turn ^ np.uint32(1))
                    if pieces > 1:
                        if is_last(arrivals, (row - plan.whole) * warps + warp, pieces):
                            for h in range(head0, min(head0 + heads_each, some)):
                                top = LEAST
                                for p in range(pieces):
                                    at = (np.int64(row - plan.whole) * pieces + p) * HEADS + h
                                    top = max(top, highests[at * 4 + warp % 4])
                                base = finite_base(top)
                                weights, added = f0, f0
                                for p in range(pieces):
                                    at = (np.int64(row - plan.whole) * pieces + p) * HEADS + h
                                    keep = cuda.libdevice.exp2f(highests[at * 4 + warp % 4] - base)
                                    weights += totals[at * 4 + warp % 4] * keep
                                    added += means[at * size + column] * keep
                                out[(first_head + h) * size + column] = added / weights if weights != f0 else f0
                mbarrier_wait(full, now, parity)
                unit = np.int64(queue[now])
        if STAMP:
            if cuda.threadIdx.x == 0:
                times[3 * cuda.blockIdx.x + 1] = now_ns()
                times[3 * cuda.blockIdx.x + 2] = np.uint64(smid())

    kernel.room = 2 * stages * 2 * TILE
    kernel.threads = 32 * (warps + 1)
    kernel.keys = keys
    kernel.blocks = 8 // warps
    return kernel


@functools.lru_cache(1)
def counts_of():
    return device.to_device(np.zeros(65536, np.uint32))


@functools.lru_cache(1)
def times_of():
    return device.to_device(np.zeros(3 * 16384, np.uint64))


@functools.lru_cache(8)
def arrivals_of(rows):
    return device.to_device(np.zeros(max(rows, 1), np.int32))


def launch(p, kernel, whole, pieces, bulk=False):
    batch, heads, groups, page, size = p.shape
    shared = heads // groups
    q, k, v, out = (reshaped(x, (x.size,)) for x in (p.q, p.k, p.v, p.result))
    bits = [x.view(np.uint16) for x in (q, k, v)]
    turns = blocks(shared, HEADS)
    rows = batch * groups * turns
    whole = min(whole, rows)
    part = round_up(blocks(p.most, pieces), 128)
    pieces = blocks(p.most, part)
    if pieces == 1:
        whole = rows
    plan = Plan(heads, shared, turns, size, page, part, *divisor(page, min(p.most, 2**31 - 1)), whole, max(pieces, 1))
    left = rows - whole
    n = max(rows * pieces * HEADS if left else 1, 1)
    highests, totals = device.empty(n, np.float32, stream=p.stream), device.empty(n, np.float32, stream=p.stream)
    means = device.empty(n * size, np.float32, stream=p.stream)
    grid = whole + left * pieces
    if hasattr(kernel, "blocks"):
        maps = [tensor_map(x.reshape((x.size // 64, 64)), 2 * kernel.keys, 64) for x in bits[1:]]
        many = np.zeros(0)
        highests, totals = (device.empty(4 * n, np.float32, stream=p.stream) for _ in range(2))
        units = grid
        grid = min(grid, kernel.blocks * device.limits()["multiprocessors"])
        kernel[grid, kernel.threads, p.stream, kernel.room](launch_words(*maps), bits[0], p.lengths, p.table, counts_of(), highests, totals, means, out, p.scale, plan, np.int64(units), times_of())
        return
    rest = p.lengths, p.table, arrivals_of(rows), highests, totals, means, out, p.scale, plan
    if bulk:
        maps = [tensor_map(x.reshape((x.size // 64, 64)), 2 * kernel.keys, 64) for x in bits[1:]]
        room = device.empty(grid * 32, np.uint64, stream=p.stream)
        kernel[grid, kernel.threads, p.stream, kernel.room](*maps, room, bits[0], *rest, times_of())
    else:
        kernel[grid, kernel.threads, p.stream, kernel.room](*bits, *rest, times_of())


if __name__ == "__main__" and os.environ.get("PMPP_BACKEND") == "simt":
    rng = np.random.default_rng(0)
    for lens, page, H, G in (([300, 37], 0, 8, 2), ([129], 0, 3, 1), ([64, 0], 32, 4, 2)):
        b = len(lens)
        q = rng.standard_normal((b, H, 128)).astype(np.float16)
        kroom = 320
        table = None
        shape = (b, G, kroom, 128)
        if page:
            table = rng.permutation(b * kroom // page).astype(np.int32).reshape(b, -1)
            shape = (b * kroom // page, G, page, 128)
        k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
        want = decode.reference(*(x.astype(np.float64) for x in (q, k, v)), np.int32(lens), table)
        for name, kernel, bulk in (("persistent", persistent_kernel(4, 3, True), True), ("persistent8", persistent_kernel(8, 2, True), True), ("bulk rot", bulk_kernel(4, 2, True, True, False), True)):
            if page and bulk and page < 2 * 16:
                continue
            if page and bulk and kernel.keys > page:
                continue
            for whole, pieces in ((99, 1), (1, 3), (0, 2)):
                p = decode.arguments(q, k, v, np.int32(lens), table)
                t = time.time()
                try:
                    launch(p, kernel, whole, pieces, bulk)
                    got = device.to_host(p.result).astype(np.float64)
                    print(lens, page, name, whole, pieces, float(abs(got - want).max()), round(time.time() - t, 1), flush=True)
                except Exception:
                    traceback.print_exc()
                    break
EOF_A
cat > probe_run.py <<'EOF_B'
import os, time, traceback, statistics
T0 = time.time()
import numpy as np
from pmpp.kernels.attention import decode, decode_workloads as W
from pmpp.lab.measure import timing
from pmpp.lab.measure.bench import adapter
from pmpp.runtime import device
from pmpp.kernels.attention.ladder import reshaped
import probe_decode as P

def say(*a):
    print(f"[{time.time()-T0:5.1f}]", *a, flush=True)

package, convert = adapter("torch")
import torch, cupy
say("imports")
timer = timing.gpu_timer()
sets = [W.make(W.DESIGN, s, "float16") for s in (1, 2)]
outs = [device.empty((64, 32, 128), "float16") for _ in sets]
timer.synchronize()
say("inputs")

def view(x):
    return cupy.asarray(x)

def ours(kernel, whole, pieces, bulk):
    def call(q, k, v, lengths, out):
        p = decode.arguments(q, k, v, lengths, out=out)
        P.launch(p, kernel, whole, pieces, bulk)
        return out
    return call

def parts(n):
    def call(q, k, v, lengths, out):
        p = decode.arguments(q, k, v, lengths, out=out)
        decode.launch(p, decode.MOST_HEADS, n, "matrices")
        return out
    return call

def rung(q, k, v, lengths, out):
    return decode.as_matrices(q, k, v, lengths, out=out)

def sdpa(q, k, v, lengths, out):
    return W.torch_attention(torch, q, k, v, lengths, out)

def forced(name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = getattr(SDPBackend, name)

    def call(*args):
        with sdpa_kernel(backend):
            return sdpa(*args)
    return call

def group(title, named, arg_sets, torch_sets, nbytes, check=None):
    cs = {}
    for name, fn in named.items():
        is_torch = name.startswith("torch")
        cs[name] = timing.Contender(fn, torch_sets if is_torch else arg_sets, cache="cold", set_bytes=nbytes)
    rule = timing.Rule(spread=0.004, min_repeats=15, max_repeats=40, max_seconds=0.25)
    got = timing.measure_together(cs, timer=timer, rule=rule)
    base = got.get("torch")
    for name, t in got.items():
        if isinstance(t, Exception):
            say(title, name, "FAILED", repr(t)[:600])
        else:
            ratio = base.median / t.median if base is not None and not isinstance(base, Exception) else 0
            say(f"{title:10s} {name:28s} {t.median*1e6:8.2f} us [{t.low*1e6:.1f} {t.high*1e6:.1f}] n{t.repeats} x{t.batch} torch/it {ratio:.4f}")

def check(name, fn, args, want):
    q, k, v, lengths, out = args
    view(out).fill(np.nan)
    fn(*(args[:4]), out)
    timer.synchronize()
    off = float(abs(device.to_host(out).astype("float32") - want).max())
    say("check", name, off, "" if off < 2e-4 else "WRONG")

def stamps(name, fn, args, grid):
    P.times_of()
    fn(*args); timer.synchronize(); fn(*args); timer.synchronize()
    t = device.to_host(P.times_of())[: 3 * grid].reshape(-1, 3).astype(np.int64)
    b, e, sm = t[:, 0] - t[:, 0].min(), t[:, 1] - t[:, 0].min(), t[:, 2]
    last = np.array([e[sm == s].max() for s in np.unique(sm)])
    count = np.array([(sm == s).sum() for s in np.unique(sm)])
    q = lambda x: " ".join(f"{v/1e3:.1f}" for v in np.percentile(x, [0, 5, 25, 50, 75, 95, 100]))
    say("stamps", name, "span", e.max() / 1e3, "| SM's last end", q(last), "| first 264 starts", q(np.sort(b)[:264]), "| block time", q(e - b), "| blocks an SM", np.bincount(count)[1:].tolist())

full = [(*s, o) for s, o in zip(sets, outs)]
tfull = [tuple(convert(x) for x in s) for s in full]
rung(*full[0]); timer.synchronize()
want = device.to_host(outs[0]).astype("float32")
say("rung compiled", float(abs(want).max()), float(want.std()))

READ = cupy.RawKernel(r'''
extern "C" __global__ void __launch_bounds__(512) reads(const uint4* a, const uint4* b, long n, unsigned* out) {
  unsigned s = 0; long step = (long)gridDim.x * blockDim.x;
  for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
    uint4 x[4], y[4];
    #pragma unroll
    for (int u = 0; u < 4; u++) if (i + u * step < n) { x[u] = __ldcs(a + i + u * step); y[u] = __ldcs(b + i + u * step); } else { x[u] = y[u] = make_uint4(0,0,0,0); }
    #pragma unroll
    for (int u = 0; u < 4; u++) s ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w ^ y[u].x ^ y[u].y ^ y[u].z ^ y[u].w;
  }
  if (s == 0x12345678) out[0] = s;
}''', "reads")
sink = cupy.zeros(1, cupy.uint32)

def reads(grid):
    def call(q, k, v, lengths, out):
        READ((grid,), (512,), (view(k), view(v), np.int64(k.size // 8), sink))
        return out
    return call

nb = W.decode.cost(64, 32, 8, 8192, 128, 2).bytes
B = {"torch": sdpa, "rung": rung}

def attempt(fn):
    try:
        fn()
    except Exception:
        say("FAILED"); traceback.print_exc()

attempt(lambda: group("base", {**B, "launch parts 2": parts(2), "launch parts 4": parts(4), "torch flash": forced("FLASH_ATTENTION"), "torch cudnn": forced("CUDNN_ATTENTION"), "torch efficient": forced("EFFICIENT_ATTENTION"), "reads 264": reads(264), "reads 528": reads(528)}, full, tfull, nb))

PLANS = [(512, 1), (0, 2), (0, 4), (0, 8), (264, 4), (396, 4), (396, 8), (448, 8)]
COPY = [(512, 1), (0, 4), (0, 16)]
SMALL = {16: [2, 4, 8, 16], 4: [8, 16, 32], 1: [33, 64]}

def small(tag, kernel, bulk):
    for b, ps in SMALL.items():
        count = 64 // b
        n = max(b, 1)
        cut = [tuple(x[i * b:(i + 1) * b] for x in s[:3]) + (s[3][:b], o[i * b:(i + 1) * b]) for s, o in zip(sets, outs) for i in range(min(count, 8))]
        tcut = [tuple(convert(x) for x in s) for s in cut]
        group(f"{tag} b{b}", {**B, **{f"p{p}": ours(kernel, 0, p, bulk) for p in ps}}, cut, tcut, nb // 64 * b)

def family(tag, kernel, bulk, plans, compute=True, few=False):
    def go():
        named = {f"{w}+{p}": ours(kernel, w, p, bulk) for w, p in plans}
        first = list(named.values())
        first[0](*full[0]); timer.synchronize()
        say(tag, "compiled")
        if compute:
            for n, f in list(named.items())[:1] + list(named.items())[-1:]:
                check(tag + " " + n, f, full[0], want)
        group(tag, {**B, **named}, full, tfull, nb)
        if hasattr(kernel, "blocks"):
            stamps(tag + " 396+8", ours(kernel, 396, 8, bulk), full[0], 132 * kernel.blocks)
        else:
            stamps(tag + " 512", ours(kernel, 512, 1, bulk), full[0], 512)
            if compute:
                stamps(tag + " 396+8", ours(kernel, 396, 8, bulk), full[0], 396 + 116 * 8)
        if few:
            small(tag, kernel, bulk)
    attempt(go)

family("planned", P.planned_kernel(3, True), False, PLANS)
family("p copies", P.planned_kernel(3, False), False, COPY, compute=False)
family("bulk4x3", P.bulk_kernel(4, 3, True, False, False), True, PLANS, few=True)
PP = [(512, 1), (0, 4), (0, 8), (264, 4), (396, 4), (396, 8), (448, 8)]
family("pers4x3", P.persistent_kernel(4, 3, True), True, PP, few=True)
family("b copies", P.bulk_kernel(4, 3, False, False, False), True, COPY, compute=False)
family("pers8x3", P.persistent_kernel(8, 3, True), True, PP)
family("rotate", P.bulk_kernel(4, 3, True, True, False), True, [(512, 1), (396, 8)])
family("bulk8x3", P.bulk_kernel(8, 3, True, False, False), True, [(512, 1), (0, 4), (0, 8), (396, 4), (396, 8)])
say("done")
EOF_B
export PYTHONPATH=$PWD PMPP_BACKEND=numba
timeout 58 python3 probe_run.py > $OUT/table.txt 2>&1
tail -c 6000 $OUT/table.txt
