# seconds: 60
# gpus: 1
export PYTHONPATH=$PWD OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/int4_job
cat > /tmp/int4_job/copies.py <<'END_OF_FILE'
"""Copies alone, in several shapes."""
import functools
import numpy as np
from pmpp import cuda
from pmpp.runtime.copies import copy_async_line
from pmpp.runtime.hopper import bulk_tile, expect_bytes, mbarrier_init, mbarrier_wait
from pmpp.runtime.hopper_maps import maps_of_launch
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import load128

try:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    @intrinsic
    def now_ns(typingctx):
        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(64), [])
            return builder.call(ir.InlineAsm(kind, "mov.u64 $0, %globaltimer;", "=l", side_effect=True), [])
        return types.int64(), codegen
except ImportError:
    now_ns = None


@functools.cache
def boxes(lines, pieces, stages, walk):
    """A thread brings units of ``pieces`` boxes of ``lines`` lines of 128 bytes."""
    size = lines * pieces * 128

    @cuda.jit
    def boxes_alone(given, units, chunks, row_lines, counter, stamps):
        halves = cuda.shared.array(0, np.uint16, alignment=1024)
        full = cuda.shared.array(stages, np.uint64)
        tickets = cuda.shared.array(1, np.int32)
        maps = maps_of_launch(given)
        if cuda.threadIdx.x == 0:
            begin = now_ns()
            for s in range(stages):
                mbarrier_init(full, s, 1)
            b, g = np.int32(cuda.blockIdx.x), np.int32(cuda.gridDim.x)
            units, chunks, row_lines = np.int32(units), np.int32(chunks), np.int32(row_lines)
            unit, end, step = b, units, g
            if walk == "apart":
                unit, end, step = np.int32(np.int64(units) * b // g), np.int32(np.int64(units) * (b + 1) // g), np.int32(1)
            coming = np.int32(0)
            if walk == "queue":
                coming = np.int32(g + np.int32(cuda.atomic.inc(counter, 0, np.uint32(units - 1))))
            slot, parity, arrived, count = np.int32(0), np.uint32(1), np.int64(0), np.int32(0)
            while unit < end:
                if count >= stages:
                    mbarrier_wait(full, slot, parity)
                    if count == stages:
                        arrived = now_ns()
                expect_bytes(full, slot, size)
                line = np.int32(unit // chunks * pieces * row_lines + unit % chunks * lines)
                for p in range(pieces):
                    bulk_tile(halves, slot * (size // 2) + p * (lines * 64), maps, 0, np.int32(line + p * row_lines), 0, full, slot)
                slot += np.int32(1)
                count += np.int32(1)
                if slot == stages:
                    slot = np.int32(0)
                    parity ^= np.uint32(1)
                if walk == "queue":
                    unit = coming
                    if unit < end:  # asked for a unit before it is needed
                        coming = np.int32(g + np.int32(cuda.atomic.inc(counter, 0, np.uint32(units - 1))))
                else:
                    unit = np.int32(unit + step)
            for s in range(stages):  # all that are still under way
                if count >= stages:
                    mbarrier_wait(full, slot, parity)
                elif s < count:
                    mbarrier_wait(full, s, np.uint32(0))
                slot += np.int32(1)
                if slot == stages:
                    slot = np.int32(0)
                    parity ^= np.uint32(1)
            stamps[b, 0], stamps[b, 1], stamps[b, 2] = begin, arrived, now_ns()
    return boxes_alone


@functools.cache
def asynchronous(warps, turns, kind):
    """Warps bring 2 KiB a turn: 64 bytes of each of eight rows in a copy, or 512 of one row. A block has 64 rows."""
    threads, pending = 32 * warps, turns - 2

    @cuda.jit(device=True)
    def start(words, to, w, at, apart, group):
        for i in range(4):
            if kind == "eight":  # rows line, line + 8; groups 0, 1
                place = np.int64(group) * 16 + 16 * (i // 2) + apart * (i % 2)
            elif kind == "line":  # 128 bytes of each of four rows
                place = np.int64(group) * 16 + apart * i
            else:  # one row: 512 bytes
                place = np.int64(group) * 16 + apart * i
            copy_async_line(words, np.uint32(to + np.uint32(128 * i)), w, at + place, 4)
        commit_copies()

    @cuda.jit(launch_bounds=(threads, 1))
    def asynchronous_alone(w, groups, stamps):
        words = cuda.shared.array(0, np.uint32, alignment=1024)
        begin = now_ns()
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        shares = warps // 4
        top = np.int64(cuda.blockIdx.x) * 64 + warp // np.uint32(shares) * np.uint32(16)
        pitch = np.int64(groups) * 16
        queue = np.uint32(warp * np.uint32(turns * 512) + lane * np.uint32(4))
        if kind == "eight":  # a warp has 16 rows x 2 groups
            at, apart, each = (top + lane // np.uint32(4)) * pitch + 4 * (lane % np.uint32(4)), 8 * pitch, 2
        elif kind == "line":
            at, apart, each = (top + lane // np.uint32(8)) * pitch + 4 * (lane % np.uint32(8)), 4 * pitch, 2
        else:  # 4 rows x 8 groups, of the 16 rows
            at, apart, each = top * pitch + 4 * lane, pitch, 8
        group, slot, taken = np.int32(warp % np.uint32(shares)), np.int32(0), np.int32(0)
        rounds = groups * 4 // 8 // shares * 1  # turns of a warp: groups / 2 / shares
        for t in range(turns - 1):
            if kind == "row":
                start(words, np.uint32(queue + np.uint32(t * 512)), w, at + np.int64(t % 4) * 4 * pitch, apart, np.int32(group * 8 + t // 4 * 8 * shares))
            else:
                start(words, np.uint32(queue + np.uint32(t * 512)), w, at, apart, np.int32(group * 8 + (t // 4 * 4 * shares + t % 4) * 2))
        arrived = np.int64(0)
        for turn in range(rounds):
            wait_copies(pending)
            if turn == 0:
                arrived = now_ns()
            t = np.int32(turn + turns - 1)
            to = np.uint32(queue + np.uint32(t % turns) * np.uint32(512))
            if t < rounds:
                if kind == "row":
                    start(words, to, w, at + np.int64(t % 4) * 4 * pitch, apart, np.int32(group * 8 + t // 4 * 8 * shares))
                else:
                    start(words, to, w, at, apart, np.int32(group * 8 + (t // 4 * 4 * shares + t % 4) * 2))
            else:
                commit_copies()
        wait_copies(0)
        cuda.syncthreads()
        if thread == 0:
            b = cuda.blockIdx.x
            stamps[b, 0], stamps[b, 1], stamps[b, 2] = begin, arrived, now_ns()
    return asynchronous_alone


@functools.cache
def loads(each):
    @cuda.jit
    def loads_alone(w, out):
        first = np.int64(cuda.blockIdx.x) * (cuda.blockDim.x * each) + cuda.threadIdx.x
        total = np.uint32(0)
        for i in range(each):
            a, b, c, d = load128(w, (first + i * cuda.blockDim.x) * 4)
            total ^= a ^ b ^ c ^ d
        if total == np.uint32(0x12345678):
            out[0] = total
    return loads_alone


@cuda.jit
def nothing(stamps):
    words = cuda.shared.array(0, np.uint32, alignment=1024)
    if stamps.shape[0] == 0:
        stamps[0, 0] = words[0]
END_OF_FILE
cat > /tmp/int4_job/variants.py <<'END_OF_FILE'
"""Variants of the int4 product to be measured."""
import functools
import numpy as np
from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.quantisation import weight_only as wo
from pmpp.kernels.quantisation.weight_only import (
    EIGHT, FACTOR, GROUP, RAISED_BY, flat, f0, high_half, highs, low_half, lows, pairs_of_four,
)
from pmpp.runtime.copies import copy_async_line
from pmpp.runtime.hopper import bulk_tile, expect_bytes, mbarrier_init, mbarrier_wait, tensor_map
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch
from pmpp.runtime.matrix import commit_copies, copy_async, mma_f16, wait_copies
from pmpp.runtime.vector import load128, store128


@functools.cache
def boxed_kernel(shares, warps=16):
    """queued, with boxes of 16 rows x 2 groups by the copy engine into a ring of each warp."""
    TURNS, IN_TURN, PLACE = 4, 2, 512
    threads, below, factor = 32 * warps, 16 * warps // shares, FACTOR[4]
    x_begin, number_of_barriers = np.uint32(warps * TURNS * PLACE), warps * TURNS

    @cuda.jit(device=True)
    def bring_x(words, x, parts, k):
        i = np.uint32(cuda.threadIdx.x)
        while i < parts:
            count = 4 if np.int64(i) * 8 < k else 0
            copy_async(words, np.uint32(x_begin + i * np.uint32(4)), x, np.int64(i) * 4, count)
            i = np.uint32(i + np.uint32(threads))
        commit_copies()

    @cuda.jit(device=True)
    def order_x(words, floats, less, parts):
        wait_copies(0)
        i = np.uint32(cuda.threadIdx.x)
        while i < parts:
            at = np.uint32(x_begin + i * np.uint32(4))
            x0, x1, x2, x3 = load128(words, at)
            total = low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
            total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
            for apart in (1, 2, 4, 8):
                total += cuda.shfl_xor_sync(FULL_WARP, total, apart)
            store128(words, at, (lows(x0, x2), highs(x0, x2), lows(x1, x3), highs(x1, x3)))
            if i % np.uint32(16) == 0:
                floats[less + i // np.uint32(16)] = total * RAISED_BY
            i = np.uint32(i + np.uint32(threads))

    @cuda.jit(device=True)
    def start(halves, barriers, maps, warp, place, row, group):
        b = np.uint32(warp * np.uint32(TURNS) + np.uint32(place))
        expect_bytes(barriers, b, PLACE * 4)
        bulk_tile(halves, np.uint32(b * np.uint32(2 * PLACE)), maps, 0, row, np.int32(group * 32), barriers, b)

    @cuda.jit(device=True)
    def fetch_scales(scales, lines, first, last, own):
        for side in range(2):
            for e in range(2):
                own[side, e] = scales[lines[side] + min(np.int32(first + e), last)]

    @cuda.jit(device=True)
    def add(sums, at, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3]))
        sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3] = c

    def turn(place):
        before = (place - 1) % TURNS
        ahead = np.int32((TURNS - 1) * IN_TURN if place == 0 else (place - 1) * IN_TURN)

        @cuda.jit(device=True)
        def one_turn(words, halves, barriers, maps, warp, row, first, parity, near, far, eight, groups, x_at, zeros, line, sums):
            mbarrier_wait(barriers, np.uint32(warp * np.uint32(TURNS) + np.uint32(place)), parity)
            cuda.syncwarp()
            if first and eight < groups:
                start(halves, barriers, maps, warp, before, row, np.int32(eight + ahead))
            for one in range(IN_TURN):
                at = near if one == 0 else far
                upper = load128(words, np.uint32(at + np.uint32(place * PLACE)))
                lower = load128(words, np.uint32(at + np.uint32(place * PLACE + 256)))
                column = np.uint32(place * IN_TURN + one)
                from_x = np.uint32(x_at + column * np.uint32(64)) if line == column else zeros
                for i in range(4):
                    x0, x1, x2, x3 = load128(words, np.uint32(from_x + np.uint32(4 * i)))
                    a0, a2 = pairs_of_four(upper[i], 0)
                    a1, a3 = pairs_of_four(lower[i], 0)
                    add(sums, 0, a0, a1, a2, a3, (x0, x1))
                    a0, a2 = pairs_of_four(upper[i], 1)
                    a1, a3 = pairs_of_four(lower[i], 1)
                    add(sums, 1, a0, a1, a2, a3, (x2, x3))

        return one_turn

    first_turn, second_turn, third_turn, fourth_turn = (turn(place) for place in range(TURNS))

    @cuda.jit(launch_bounds=(threads, 1))
    def boxed(given, x, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=1024)
        floats = cuda.shared.array(0, np.float32, alignment=1024)
        halves = cuda.shared.array(0, np.uint16, alignment=1024)
        barriers = cuda.shared.array(number_of_barriers, np.uint64)
        ends = cuda.shared.array((warps, 16), np.float32)
        sums, totals = cuda.local.array((2, 4), np.float32), cuda.local.array(2, np.float32)
        scale, soon = cuda.local.array((2, 2), np.float32), cuda.local.array((2, 2), np.float32)
        lines = cuda.local.array(2, np.int64)
        maps = maps_of_launch(given)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        groups, eights = np.int32((k + GROUP - 1) // GROUP), np.int32((k + EIGHT - 1) // EIGHT)
        first = lane == 0
        tall = np.int64(cuda.blockIdx.x) * below
        top = tall + warp // np.uint32(shares) * np.uint32(16)
        row = np.int32(top)
        eight = np.int32(warp % np.uint32(shares))
        if first:
            for place in range(TURNS):
                mbarrier_init(barriers, np.uint32(warp * np.uint32(TURNS) + np.uint32(place)), 1)
            if eight < eights:
                for place in range(TURNS - 1):
                    start(halves, barriers, maps, warp, place, row, np.int32(eight * 8 + place * IN_TURN))
        cuda.syncwarp()
        parts = np.uint32(np.uint32(eights) * np.uint32(EIGHT // 8))
        zeros = np.uint32(x_begin + parts * np.uint32(4))
        less = np.uint32(zeros + np.uint32(16))
        bring_x(words, x, parts, k)
        down = np.uint32(line // np.uint32(2) + line % np.uint32(2) * np.uint32(4))
        for side in range(2):
            lines[side] = min(top + np.int64(down) + 8 * side, n - 1) * np.int64(groups)
            totals[side] = f0
        queue = np.uint32(warp * np.uint32(TURNS * PLACE) + down * np.uint32(32))
        near = np.uint32(queue + (quarter ^ down) * np.uint32(4))
        far = np.uint32(queue + (quarter ^ down ^ np.uint32(4)) * np.uint32(4))
        column, last = np.int32(2 * quarter), np.int32(groups - 1)
        fetch_scales(scales, lines, np.int32(eight * 8 + column), last, soon)
        order_x(words, floats, less, parts)
        if thread < 16:
            words[zeros + thread] = np.uint32(0)
        cuda.syncthreads()
        parity = np.uint32(0)
        while eight < eights:
            here, after = np.int32(eight * 8), np.int32((eight + shares) * 8)
            for side in range(2):
                for e in range(2):
                    scale[side, e] = soon[side, e] * factor
                    sums[side, e] = sums[side, e + 2] = f0
            fetch_scales(scales, lines, np.int32(after + column), last, soon)
            x_at = np.uint32(x_begin + np.uint32(here) * np.uint32(64) + quarter * np.uint32(16))
            first_turn(words, halves, barriers, maps, warp, row, first, parity, near, far, here, groups, x_at, zeros, line, sums)
            second_turn(words, halves, barriers, maps, warp, row, first, parity, near, far, after, groups, x_at, zeros, line, sums)
            third_turn(words, halves, barriers, maps, warp, row, first, parity, near, far, after, groups, x_at, zeros, line, sums)
            fourth_turn(words, halves, barriers, maps, warp, row, first, parity, near, far, after, groups, x_at, zeros, line, sums)
            for e in range(2):
                too_much = floats[less + np.uint32(here + column + e)]
                for side in range(2):
                    both = sums[0, 2 * side + e] + sums[1, 2 * side + e]
                    totals[side] += (both + too_much) * scale[side, e]
            eight = np.int32(eight + shares)
            parity = np.uint32(parity ^ np.uint32(1))
        for side in range(2):
            total = totals[side]
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            if quarter == 0:
                ends[warp, np.uint32(8 * side) + down] = total
        cuda.syncthreads()
        if thread < below and tall + thread < n:
            total, at = f0, thread // np.uint32(16) * np.uint32(shares)
            for other in range(shares):
                total += ends[at + np.uint32(other), thread % np.uint32(16)]
            out[tall + thread] = total

    return boxed


def by_boxes(p, shares, warps=16):
    n, k = p.w.shape[0], p.x.shape[1]
    given = launch_words(tensor_map(flat(p.w, np.uint16).reshape(n, -1), 16, 64))
    shared = 4 * (warps * 2048 + blocks(k, EIGHT) * (EIGHT // 2 + 8) + 16)
    boxed_kernel(shares, warps)[blocks(n, 16 * warps // shares), 32 * warps, p.stream, shared](
        given, flat(p.x, np.uint32), flat(p.scales), flat(p.result), n, k)


# ---------------------------------------------------------------------------------------------- rows in pieces of 1 KiB
@functools.cache
def sliced_kernel(slices, teams, stages, walk, batch=32, prefetch_x=True):
    """Each warp has 16 groups of every row of its team, and x in registers; two rows a stage."""
    warps = slices * teams
    threads, piece, factor = 32 * warps, 256, FACTOR[4]
    stage = 2 * piece  # words
    number_of_barriers = warps * stages
    scale_begin = np.uint32(warps * stages * stage)  # floats
    pending, sums_of_batch = stages - 2, teams * batch * 2
    stages_32 = np.int32(stages)

    @cuda.jit(device=True)
    def start(halves, floats, barriers, maps, scales, slot, pair, slice_, lane, groups, n):
        warp_slot = slot
        if lane == 0:
            expect_bytes(barriers, warp_slot, 2048)
            line = np.int32(pair * groups + np.int32(slice_ * np.uint32(8)))
            at = np.uint32(warp_slot * np.uint32(2 * stage))
            bulk_tile(halves, at, maps, 0, line, 0, barriers, warp_slot)
            bulk_tile(halves, np.uint32(at + np.uint32(2 * piece)), maps, 0, np.int32(line + groups // 2), 0, barriers, warp_slot)
        if lane < 8:
            row = np.int64(pair) * 2 + np.int64(lane // np.uint32(4))
            group = np.int32(slice_ * np.uint32(16) + lane % np.uint32(4) * np.uint32(4))
            count = 4 if row < n and group < groups else 0
            copy_async(floats, np.uint32(scale_begin + warp_slot * np.uint32(32) + lane * np.uint32(4)), scales, row * groups + group, count)

    @cuda.jit(device=True)
    def fetch_x(x, own_x, less, group, quarter, k):
        """The lane's 32 elements of x of two groups, in order, and each group's sum."""
        for s in range(2):
            total = f0
            for i in range(4):
                at = np.int64(group + 8 * s) * GROUP + 32 * np.int64(quarter) + 8 * i
                x0, x1, x2, x3 = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
                if at < k:
                    x0, x1, x2, x3 = load128(x, at // 2)
                total += low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
                total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
                own_x[s, 4 * i], own_x[s, 4 * i + 1] = lows(x0, x2), highs(x0, x2)
                own_x[s, 4 * i + 2], own_x[s, 4 * i + 3] = lows(x1, x3), highs(x1, x3)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            less[s] = total * RAISED_BY

    @cuda.jit(device=True)
    def add(sums, at, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3]))
        sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3] = c

    @cuda.jit(launch_bounds=(threads, 1))
    def sliced(given, x, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=1024)
        floats = cuda.shared.array(0, np.float32, alignment=1024)
        halves = cuda.shared.array(0, np.uint16, alignment=1024)
        barriers = cuda.shared.array(number_of_barriers, np.uint64)
        ends = cuda.shared.array((sums_of_batch, slices), np.float32)
        own_x, less = cuda.local.array((2, 16), np.uint32), cuda.local.array(2, np.float32)
        sums = cuda.local.array((2, 4), np.float32)
        maps = maps_of_launch(given)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        slice_, team = np.uint32(warp % np.uint32(slices)), np.uint32(warp // np.uint32(slices))
        groups, pairs = np.int32((k + GROUP - 1) // GROUP), np.int32((n + 1) // 2)
        all_teams = np.int32(cuda.gridDim.x * teams)
        me = np.int32(np.int32(cuda.blockIdx.x) + np.int32(team) * np.int32(cuda.gridDim.x))
        if walk == "together":
            first_pair, step = me, all_teams
            own = np.int32((pairs - me + all_teams - 1) // all_teams) if me < pairs else np.int32(0)
        else:
            first_pair, step = np.int32(np.int64(pairs) * me // all_teams), np.int32(1)
            own = np.int32(np.int32(np.int64(pairs) * (me + 1) // all_teams) - first_pair)
        most = np.int32((pairs + all_teams - 1) // all_teams)  # of any team
        ring = np.uint32(warp * np.uint32(stages))
        if lane == 0:
            for s in range(stages):
                mbarrier_init(barriers, np.uint32(ring + np.uint32(s)), 1)
        for s in range(stages - 1):
            if s < own:
                start(halves, floats, barriers, maps, scales, np.uint32(ring + np.uint32(s)), np.int32(first_pair + np.int32(s) * step), slice_, lane, groups, n)
            commit_copies()
        fetch_x(x, own_x, less, np.int32(slice_ * np.uint32(16) + line), quarter, k)
        coming = np.int32(first_pair + np.int32(stages - 1) * step)
        now, before, parity = np.uint32(0), np.uint32(stages - 1), np.uint32(0)
        # where the lane's weights are in a piece, of the first set; those of the second are four lines further
        near = np.uint32(line // np.uint32(2) * np.uint32(32) + (((line % np.uint32(2)) * np.uint32(4) + quarter) ^ (line // np.uint32(2))) * np.uint32(4))
        far = np.uint32(near ^ np.uint32(16)) + np.uint32(128)
        own_scale = np.uint32(quarter // np.uint32(2) * np.uint32(16) + quarter % np.uint32(2) * np.uint32(8) + line)
        diagonal = np.int32(lane // np.uint32(4) * np.uint32(4) + line // np.uint32(2))
        mine = less[0] if quarter % np.uint32(2) == 0 else less[1]
        done = np.int32(0)
        cuda.syncwarp()
        while done < most:
            in_batch = np.int32(0)
            while in_batch < batch and done + in_batch < own:
                slot = np.uint32(ring + now)
                wait_copies(pending)
                mbarrier_wait(barriers, slot, parity)
                cuda.syncwarp()
                if done + in_batch + stages_32 - 1 < own:
                    start(halves, floats, barriers, maps, scales, np.uint32(ring + before), coming, slice_, lane, groups, n)
                commit_copies()
                coming = np.int32(coming + step)
                base = np.uint32(slot * np.uint32(stage))
                scale = floats[np.uint32(scale_begin + slot * np.uint32(32) + own_scale)]
                value = f0
                for s in range(2):
                    at = np.uint32(base + (near if s == 0 else far))
                    upper, lower = load128(words, at), load128(words, np.uint32(at + np.uint32(piece)))
                    for i in range(2):
                        for e in range(4):
                            sums[i, e] = f0
                    for i in range(4):
                        a0, a2 = pairs_of_four(upper[i], 0)
                        a1, a3 = pairs_of_four(lower[i], 0)
                        add(sums, 0, a0, a1, a2, a3, (own_x[s, 4 * i], own_x[s, 4 * i + 1]))
                        a0, a2 = pairs_of_four(upper[i], 1)
                        a1, a3 = pairs_of_four(lower[i], 1)
                        add(sums, 1, a0, a1, a2, a3, (own_x[s, 4 * i + 2], own_x[s, 4 * i + 3]))
                    even = line % np.uint32(2) == 0
                    of_upper = sums[0, 0] + sums[1, 0] if even else sums[0, 1] + sums[1, 1]
                    of_lower = sums[0, 2] + sums[1, 2] if even else sums[0, 3] + sums[1, 3]
                    of_upper = cuda.shfl_sync(FULL_WARP, of_upper, diagonal)
                    of_lower = cuda.shfl_sync(FULL_WARP, of_lower, diagonal)
                    if quarter % np.uint32(2) == np.uint32(s):
                        value = of_upper if quarter < np.uint32(2) else of_lower
                value = (value + mine) * (scale * factor)
                value += cuda.shfl_xor_sync(FULL_WARP, value, 1)
                value += cuda.shfl_xor_sync(FULL_WARP, value, 4)
                value += cuda.shfl_xor_sync(FULL_WARP, value, 8)
                value += cuda.shfl_xor_sync(FULL_WARP, value, 16)
                if lane == 0 or lane == 2:
                    ends[np.uint32((team * np.uint32(batch) + np.uint32(in_batch)) * np.uint32(2) + lane // np.uint32(2)), slice_] = value
                before = now
                now = np.uint32(now + np.uint32(1))
                if now == np.uint32(stages):
                    now, parity = np.uint32(0), np.uint32(parity ^ np.uint32(1))
                in_batch = np.int32(in_batch + 1)
            cuda.syncthreads()
            i = thread
            while i < np.uint32(sums_of_batch):
                of_team, within = np.int32(i // np.uint32(2 * batch)), np.int32(i % np.uint32(2 * batch))
                one = np.int32(np.int32(cuda.blockIdx.x) + of_team * np.int32(cuda.gridDim.x))
                if walk == "together":
                    pair = np.int64(one) + np.int64(done + within // 2) * all_teams
                    end = np.int64(pairs)
                else:
                    pair = np.int64(np.int64(pairs) * one // all_teams) + done + within // 2
                    end = np.int64(pairs) * (one + 1) // all_teams
                row = 2 * pair + within % 2
                if pair < end and row < n:
                    total = f0
                    for s in range(slices):
                        total += ends[i, s]
                    out[row] = total
                i = np.uint32(i + np.uint32(threads))
            done = np.int32(done + batch)
            if done < most:
                cuda.syncthreads()

    return sliced


def by_slices(p, stages, walk, grid=132, slices=None, teams=None, batch=32):
    n, k = p.w.shape[0], p.x.shape[1]
    groups = blocks(k, GROUP)
    slices = slices or blocks(groups, 16)
    teams = teams or max(1, 16 // slices)
    given = launch_words(tensor_map(flat(p.w, np.uint16).reshape(n * groups // 2, 64), 8, 64))
    warps = slices * teams
    shared = warps * stages * (2048 + 128)
    sliced_kernel(slices, teams, stages, walk, batch)[grid, 32 * warps, p.stream, shared](
        given, flat(p.x, np.uint32), flat(p.scales), flat(p.result), n, k)


def sliced_together(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_slices(p, 6, "together"); return p.result


def sliced_apart(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_slices(p, 6, "apart"); return p.result


def sliced_4(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_slices(p, 4, "together"); return p.result


@functools.cache
def pieces_kernel(slices, teams, stages, pairs, batch=32):
    """Each warp has 16 groups of every row of its team, and x in registers; 2 ``pairs`` rows a stage."""
    rows = 2 * pairs
    warps = slices * teams
    threads, piece, factor = 32 * warps, 256, FACTOR[4]
    stage, stage_bytes = rows * piece, rows * 1024  # words
    number_of_barriers = warps * stages
    scale_begin = np.uint32(warps * stages * stage)  # floats
    scale_words = np.uint32(16 * rows)
    pending, sums_of_batch = stages - 2, teams * batch * rows

    @cuda.jit(device=True)
    def start(halves, floats, barriers, maps, scales, slot, line, down, at_scale, left, lane, there):
        """Begin to copy the pieces and scales of a stage. ``left``: rows of the matrix from its first on."""
        if lane == 0:
            expect_bytes(barriers, slot, stage_bytes)
            for r in range(rows):
                at = np.uint32(slot * np.uint32(2 * stage) + np.uint32(2 * piece * r))
                bulk_tile(halves, at, maps, 0, np.int32(line + r * down), 0, barriers, slot)
        if lane < 4 * rows:
            count = 4 if there and np.int32(lane // np.uint32(4)) < left else 0
            to = np.uint32(scale_begin + slot * scale_words + lane * np.uint32(4))
            copy_async(floats, to, scales, at_scale, count)

    @cuda.jit(device=True)
    def fetch_x(x, own_x, less, group, quarter, k):
        for s in range(2):
            total = f0
            for i in range(4):
                at = np.int64(group + 8 * s) * GROUP + 32 * np.int64(quarter) + 8 * i
                x0, x1, x2, x3 = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
                if at < k:
                    x0, x1, x2, x3 = load128(x, at // 2)
                total += low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
                total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
                own_x[s, 4 * i], own_x[s, 4 * i + 1] = lows(x0, x2), highs(x0, x2)
                own_x[s, 4 * i + 2], own_x[s, 4 * i + 3] = lows(x1, x3), highs(x1, x3)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            less[s] = np.float32(-8) * total

    @cuda.jit(device=True)
    def add(sums, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[0], sums[1], sums[2], sums[3]))
        sums[0], sums[1], sums[2], sums[3] = c

    @cuda.jit(device=True)
    def keep(a, b, second, apart):
        """Keep one of two sums, b if ``second``, give the other to the lane beside, and add what it gives."""
        kept, away = b if second else a, a if second else b
        return kept + cuda.shfl_xor_sync(FULL_WARP, away, apart)

    @cuda.jit(device=True)
    def multiply(words, floats, base, own_scale, near, far, own_x, less, even, on_diagonal):
        """The lane's part of the products of two rows: of one group of each set, if it is on the diagonal."""
        sums = cuda.local.array(4, np.float32)
        value, value_below = f0, f0
        for s in range(2):
            at = np.uint32(base + (near if s == 0 else far))
            upper, lower = load128(words, at), load128(words, np.uint32(at + np.uint32(piece)))
            for e in range(4):
                sums[e] = f0
            for i in range(4):
                a0, a2 = pairs_of_four(upper[i], 0)
                a1, a3 = pairs_of_four(lower[i], 0)
                add(sums, a0, a1, a2, a3, (own_x[s, 4 * i], own_x[s, 4 * i + 1]))
                a0, a2 = pairs_of_four(upper[i], 1)
                a1, a3 = pairs_of_four(lower[i], 1)
                add(sums, a0, a1, a2, a3, (own_x[s, 4 * i + 2], own_x[s, 4 * i + 3]))
            of_upper = sums[0] if even else sums[1]
            of_lower = sums[2] if even else sums[3]
            value += (of_upper * factor + less[s]) * floats[np.uint32(own_scale + np.uint32(8 * s))]
            value_below += (of_lower * factor + less[s]) * floats[np.uint32(own_scale + np.uint32(16 + 8 * s))]
        return value if on_diagonal else f0, value_below if on_diagonal else f0

    @cuda.jit(launch_bounds=(threads, 1))
    def pieces(given, x, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=1024)
        floats = cuda.shared.array(0, np.float32, alignment=1024)
        halves = cuda.shared.array(0, np.uint16, alignment=1024)
        barriers = cuda.shared.array(number_of_barriers, np.uint64)
        ends = cuda.shared.array((sums_of_batch, slices), np.float32)
        own_x, less = cuda.local.array((2, 16), np.uint32), cuda.local.array(2, np.float32)
        maps = maps_of_launch(given)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        slice_, team = np.uint32(warp % np.uint32(slices)), np.uint32(warp // np.uint32(slices))
        groups, units = np.int32((k + GROUP - 1) // GROUP), np.int32((n + rows - 1) // rows)
        all_teams = np.int32(cuda.gridDim.x * teams)
        me = np.int32(np.int32(cuda.blockIdx.x) + np.int32(team) * np.int32(cuda.gridDim.x))
        own = np.int32((units - me + all_teams - 1) // all_teams) if me < units else np.int32(0)
        most = np.int32((units + all_teams - 1) // all_teams)  # of any team
        ring = np.uint32(warp * np.uint32(stages))
        down, step_rows = np.int32(groups // 2), np.int32(rows * all_teams)
        step_lines, step_scales = np.int32(step_rows * down), np.int64(step_rows) * np.int64(groups)
        coming_line = np.int32(me * rows * down + np.int32(slice_ * np.uint32(8)))
        left = np.int32(n - me * rows)
        group_of_scale = np.int32(slice_ * np.uint32(16) + lane % np.uint32(4) * np.uint32(4))
        there = group_of_scale < groups
        at_scale = (np.int64(me) * rows + np.int64(lane // np.uint32(4))) * groups + group_of_scale
        if lane == 0:
            for s in range(stages):
                mbarrier_init(barriers, np.uint32(ring + np.uint32(s)), 1)
        for s in range(stages - 1):
            if left > 0:
                start(halves, floats, barriers, maps, scales, np.uint32(ring + np.uint32(s)), coming_line, down, at_scale, left, lane, there)
            commit_copies()
            coming_line, left, at_scale = np.int32(coming_line + step_lines), np.int32(left - step_rows), at_scale + step_scales
        fetch_x(x, own_x, less, np.int32(slice_ * np.uint32(16) + line), quarter, k)
        now, before, parity = np.uint32(0), np.uint32(stages - 1), np.uint32(0)
        near = np.uint32(line // np.uint32(2) * np.uint32(32) + (((line % np.uint32(2)) * np.uint32(4) + quarter) ^ (line // np.uint32(2))) * np.uint32(4))
        far = np.uint32(near ^ np.uint32(16)) + np.uint32(128)
        even, on_diagonal = line % np.uint32(2) == 0, quarter == line // np.uint32(2)
        odd_lane, second_pair = lane % np.uint32(2) == 1, lane // np.uint32(2) % np.uint32(2) == 1
        done = np.int32(0)
        cuda.syncwarp()
        while done < most:
            in_batch = np.int32(0)
            end = min(np.int32(batch), np.int32(own - done))
            while in_batch < end:
                slot = np.uint32(ring + now)
                wait_copies(pending)
                mbarrier_wait(barriers, slot, parity)
                cuda.syncwarp()
                if left > 0:
                    start(halves, floats, barriers, maps, scales, np.uint32(ring + before), coming_line, down, at_scale, left, lane, there)
                commit_copies()
                coming_line, left, at_scale = np.int32(coming_line + step_lines), np.int32(left - step_rows), at_scale + step_scales
                base = np.uint32(slot * np.uint32(stage))
                own_scale = np.uint32(scale_begin + slot * scale_words + line)
                v0, v1 = multiply(words, floats, base, own_scale, near, far, own_x, less, even, on_diagonal)
                total = keep(v0, v1, odd_lane, 1)
                if pairs == 2:
                    base, own_scale = np.uint32(base + np.uint32(2 * piece)), np.uint32(own_scale + np.uint32(32))
                    v2, v3 = multiply(words, floats, base, own_scale, near, far, own_x, less, even, on_diagonal)
                    total = keep(total, keep(v2, v3, odd_lane, 1), second_pair, 2)
                else:
                    total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 4)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 8)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 16)
                if lane < rows:
                    ends[np.uint32((team * np.uint32(batch) + np.uint32(in_batch)) * np.uint32(rows) + lane), slice_] = total
                before = now
                now = np.uint32(now + np.uint32(1))
                if now == np.uint32(stages):
                    now, parity = np.uint32(0), np.uint32(parity ^ np.uint32(1))
                in_batch = np.int32(in_batch + 1)
            cuda.syncthreads()
            i = thread
            while i < np.uint32(sums_of_batch):
                of_team, within = np.int32(i // np.uint32(rows * batch)), np.int32(i % np.uint32(rows * batch))
                one = np.int32(np.int32(cuda.blockIdx.x) + of_team * np.int32(cuda.gridDim.x))
                unit = np.int64(one) + np.int64(done + within // rows) * all_teams
                row = rows * unit + within % rows
                if row < n:
                    total = f0
                    for s in range(slices):
                        total += ends[i, s]
                    out[row] = total
                i = np.uint32(i + np.uint32(threads))
            done = np.int32(done + batch)
            if done < most:
                cuda.syncthreads()

    return pieces


def by_pieces(p, stages, pairs, grid=132, slices=None, teams=None, batch=None):
    n, k = p.w.shape[0], p.x.shape[1]
    groups = blocks(k, GROUP)
    slices = slices or blocks(groups, 16)
    teams = teams or max(1, 16 // slices)
    batch = batch or 32 // pairs
    given = launch_words(tensor_map(flat(p.w, np.uint16).reshape(n * groups // 2, 64), 8, 64))
    warps = slices * teams
    shared = warps * stages * 2 * pairs * (1024 + 64)
    pieces_kernel(slices, teams, stages, pairs, batch)[grid, 32 * warps, p.stream, shared](
        given, flat(p.x, np.uint32), flat(p.scales), flat(p.result), n, k)


def pieces_2_rows(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_pieces(p, 6, 1); return p.result


def pieces_4_rows(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_pieces(p, 3, 2); return p.result


@functools.cache
def rows_kernel(slices, teams, stages, batch=16):
    """Four rows a stage; a warp has 16 groups of each, and keeps what belongs to them of x in registers."""
    warps, rows = slices * teams, 4
    threads, piece, factor = 32 * warps, 256, FACTOR[4]
    stage, row_of_scales = rows * piece, 20  # words
    scale_begin = np.uint32(warps * stages * stage)
    stage_of_scales = np.uint32(rows * row_of_scales)
    pending, sums_of_batch = stages - 2, teams * batch * rows
    words_of_ring = np.uint32(stages * stage)

    @cuda.jit(device=True)
    def start(words, floats, to, to_scales, w, scales, at, pitch, left, inside, inside_too, lane, at_scale, size):
        for r in range(rows):
            count = 4 if r < left and inside else 0
            copy_async_line(words, np.uint32(to + np.uint32(piece * r)), w, at + r * pitch, count)
            count = 4 if r < left and inside_too else 0
            copy_async_line(words, np.uint32(to + np.uint32(piece * r + 128)), w, at + r * pitch + 128, count)
        if lane < 5 * rows:
            count = np.int32(min(max(size - at_scale, np.int64(0)), np.int64(4)))
            copy_async(floats, np.uint32(to_scales + lane * np.uint32(4)), scales, at_scale, count)

    @cuda.jit(device=True)
    def fetch_x(x, own_x, less, group, quarter, k):
        for s in range(2):
            total = f0
            for i in range(4):
                at = np.int64(group + 8 * s) * GROUP + 32 * np.int64(quarter) + 8 * i
                x0, x1, x2, x3 = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
                if at < k:
                    x0, x1, x2, x3 = load128(x, at // 2)
                total += low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
                total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
                own_x[s, 4 * i], own_x[s, 4 * i + 1] = lows(x0, x2), highs(x0, x2)
                own_x[s, 4 * i + 2], own_x[s, 4 * i + 3] = lows(x1, x3), highs(x1, x3)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            less[s] = np.float32(-8) * total

    @cuda.jit(device=True)
    def add(sums, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[0], sums[1], sums[2], sums[3]))
        sums[0], sums[1], sums[2], sums[3] = c

    @cuda.jit(device=True)
    def keep(a, b, second, apart):
        """Keep one of two sums, b if ``second``, give the other to the lane beside, and add what it gives."""
        kept, away = b if second else a, a if second else b
        return kept + cuda.shfl_xor_sync(FULL_WARP, away, apart)

    @cuda.jit(device=True)
    def multiply(words, floats, base, first_scale, second_scale, own_x, less, even, wanted, wanted_too):
        """The lane's part of the products of two rows: of one group of each set, if it is on the diagonal."""
        sums = cuda.local.array(4, np.float32)
        value, value_below = f0, f0
        for s in range(2):
            at = np.uint32(base + np.uint32(128 * s))
            upper, lower = load128(words, at), load128(words, np.uint32(at + np.uint32(piece)))
            for e in range(4):
                sums[e] = f0
            for i in range(4):
                a0, a2 = pairs_of_four(upper[i], 0)
                a1, a3 = pairs_of_four(lower[i], 0)
                add(sums, a0, a1, a2, a3, (own_x[s, 4 * i], own_x[s, 4 * i + 1]))
                a0, a2 = pairs_of_four(upper[i], 1)
                a1, a3 = pairs_of_four(lower[i], 1)
                add(sums, a0, a1, a2, a3, (own_x[s, 4 * i + 2], own_x[s, 4 * i + 3]))
            of_upper = sums[0] if even else sums[1]
            of_lower = sums[2] if even else sums[3]
            scale, scale_below = f0, f0
            if (wanted if s == 0 else wanted_too):
                scale = floats[np.uint32(first_scale + np.uint32(8 * s))]
                scale_below = floats[np.uint32(second_scale + np.uint32(8 * s))]
            value += (of_upper * factor + less[s]) * scale
            value_below += (of_lower * factor + less[s]) * scale_below
        return value, value_below

    @cuda.jit(launch_bounds=(threads, 1))
    def in_rows(x, w, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=16)
        floats = cuda.shared.array(0, np.float32, alignment=16)
        ends = cuda.shared.array((sums_of_batch, slices), np.float32)
        own_x, less = cuda.local.array((2, 16), np.uint32), cuda.local.array(2, np.float32)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        slice_, team = np.uint32(warp % np.uint32(slices)), np.uint32(warp // np.uint32(slices))
        groups, units = np.int32((k + GROUP - 1) // GROUP), np.int32((n + rows - 1) // rows)
        all_teams = np.int32(cuda.gridDim.x * teams)
        me = np.int32(np.int32(cuda.blockIdx.x) + np.int32(team) * np.int32(cuda.gridDim.x))
        own = np.int32((units - me + all_teams - 1) // all_teams) if me < units else np.int32(0)
        most = np.int32((units + all_teams - 1) // all_teams)  # of any team
        group = np.int32(slice_ * np.uint32(16) + line)
        inside, inside_too = group < groups, group + 8 < groups
        pitch = np.int64(groups) * 16
        at = np.int64(me) * rows * pitch + np.int64(slice_) * 256 + np.int64(lane) * 4
        step_rows = np.int32(rows * all_teams)
        step, step_scales = np.int64(step_rows) * pitch, np.int64(step_rows) * np.int64(groups)
        left, size = np.int32(min(n - np.int64(me) * rows, np.int64(2**31 - 1))), n * np.int64(groups)
        at_scale = (np.int64(me) * rows + np.int64(lane // np.uint32(5))) * groups + np.int64(slice_) * 16
        at_scale = at_scale // 4 * 4 + np.int64(lane % np.uint32(5)) * 4
        ring = np.uint32(warp * words_of_ring + lane * np.uint32(4))
        ring_of_scales = np.uint32(scale_begin + warp * np.uint32(stages) * stage_of_scales)
        for s in range(stages - 1):
            start(words, floats, np.uint32(ring + np.uint32(s * stage)), np.uint32(ring_of_scales + np.uint32(s) * stage_of_scales),
                  w, scales, at, pitch, left, inside, inside_too, lane, at_scale, size)
            commit_copies()
            at, left, at_scale = at + step, np.int32(max(left - step_rows, np.int32(0))), at_scale + step_scales
        fetch_x(x, own_x, less, group, quarter, k)
        even = line % np.uint32(2) == 0
        wanted, wanted_too = quarter == line // np.uint32(2) and inside, quarter == line // np.uint32(2) and inside_too
        odd_lane, second_pair = lane % np.uint32(2) == 1, lane // np.uint32(2) % np.uint32(2) == 1
        now, before = np.uint32(0), np.uint32(stages - 1)
        off_1, off_2, off_3 = np.uint32(20 + groups % 4 + line), np.uint32(40 + groups * 2 % 4 + line), np.uint32(60 + groups * 3 % 4 + line)
        done = np.int32(0)
        while done < most:
            in_batch = np.int32(0)
            end = min(np.int32(batch), np.int32(own - done))
            while in_batch < end:
                wait_copies(pending)
                cuda.syncwarp()
                start(words, floats, np.uint32(ring + before * np.uint32(stage)), np.uint32(ring_of_scales + before * stage_of_scales),
                      w, scales, at, pitch, left, inside, inside_too, lane, at_scale, size)
                commit_copies()
                at, left, at_scale = at + step, np.int32(max(left - step_rows, np.int32(0))), at_scale + step_scales
                base = np.uint32(ring + now * np.uint32(stage))
                from_scales = np.uint32(ring_of_scales + now * stage_of_scales)
                v0, v1 = multiply(words, floats, base, np.uint32(from_scales + line), np.uint32(from_scales + off_1),
                                  own_x, less, even, wanted, wanted_too)
                v2, v3 = multiply(words, floats, np.uint32(base + np.uint32(2 * piece)), np.uint32(from_scales + off_2),
                                  np.uint32(from_scales + off_3), own_x, less, even, wanted, wanted_too)
                total = keep(keep(v0, v1, odd_lane, 1), keep(v2, v3, odd_lane, 1), second_pair, 2)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 4)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 8)
                total += cuda.shfl_xor_sync(FULL_WARP, total, 16)
                if lane < rows:
                    ends[np.uint32((team * np.uint32(batch) + np.uint32(in_batch)) * np.uint32(rows) + lane), slice_] = total
                before = now
                now = np.uint32(now + np.uint32(1))
                if now == np.uint32(stages):
                    now = np.uint32(0)
                in_batch = np.int32(in_batch + 1)
            cuda.syncthreads()
            i = thread
            while i < np.uint32(sums_of_batch):
                of_team, within = np.int32(i // np.uint32(rows * batch)), np.int32(i % np.uint32(rows * batch))
                one = np.int32(np.int32(cuda.blockIdx.x) + of_team * np.int32(cuda.gridDim.x))
                unit = np.int64(one) + np.int64(done + within // rows) * all_teams
                row = rows * unit + within % rows
                if row < n:
                    total = f0
                    for s in range(slices):
                        total += ends[i, s]
                    out[row] = total
                i = np.uint32(i + np.uint32(threads))
            done = np.int32(done + batch)
            if done < most:
                cuda.syncthreads()

    return in_rows


def by_rows(p, stages, grid=132, slices=None, teams=None, batch=16):
    n, k = p.w.shape[0], p.x.shape[1]
    slices = slices or blocks(blocks(k, GROUP), 16)
    teams = teams or max(1, 16 // slices)
    warps = slices * teams
    shared = warps * stages * 4 * (1024 + 80)
    rows_kernel(slices, teams, stages, batch)[grid, 32 * warps, p.stream, shared](
        flat(p.x, np.uint32), flat(p.w, np.uint32), flat(p.scales), flat(p.result), n, k)


def rows_3(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); by_rows(p, 3); return p.result


EXTRA = {"rows_3": rows_3, "pieces_2_rows": pieces_2_rows, "pieces_4_rows": pieces_4_rows, "sliced_apart": sliced_apart}
END_OF_FILE
cat > /tmp/int4_job/new_weight_only.py <<'END_OF_FILE'
"""Weight-only products: y = x @ W.T, with W in 4 or 8 bits and x in float.

Chapter: notebooks/77_quantisation.ipynb.  PMPP 5e ch. 20.

A model that writes a word multiplies each of its matrices by one vector, and so reads each weight for one multiply-add.
Memory is the bound, and the time is that of the bytes of W: with 4 bits a weight it is a quarter of the time with 16.
The weights become numbers again in registers, and memory has never seen them as such. That takes instructions, and
there are few to spend: at 4.2 TB/s a multiprocessor of an H200 gets 36 weights of 4 bits a cycle, and has 128 lanes
that each issue an instruction. That is 3.5 instructions for a weight.

A row of W is cut into groups of 128 weights along K, and each group has a scale. The weight is the scale times a whole
number: from -128 to 127 in int8, or from -8 to 7, stored with 8 added in 4 bits of a byte: those with an even k in the
lower half. Rows whose length is no multiple of 128 are filled up, and what is in the filling counts nothing.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, warp_sum
from pmpp.kernels.quantisation.calibration import calibrate
from pmpp.kernels.quantisation.ladder import vectorised as to_whole
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.copies import copy_async_line
from pmpp.runtime.matrix import commit_copies, copy_async, mma_f16, pack_halves, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

GROUP = 128  # weights along K that share a scale
BLOCK = 128  # threads a block, where nothing else decides
MOST_K = 2**31 - 1024  # columns of x: kernels count them in 32 bits, and look one round ahead
DTYPES = ("float32", "float16")  # of x
RESULT = np.float32
CAPABILITY = (8, 0)  # of the oldest GPU that has mma.sync for this shape
f0 = np.float32(0)


# --------------------------------------------------------------------------------------------------------- definition


def whole(w: np.ndarray) -> np.ndarray:
    """The whole numbers of W, of shape (N, K filled up to groups): int8 as it is, and uint8 as two of 4 bits."""
    if w.dtype == np.int8:
        return w
    numbers = np.stack([w & 15, w >> 4], axis=-1).astype(np.int8) - np.int8(8)
    return numbers.reshape(w.shape[0], 2 * w.shape[1])


def packed(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers from -8 to 7, of shape (N, even), two to a byte: uint8 of shape (N, even // 2).

    >>> packed(np.int8([[-8, 7, 0, 1]]))
    array([[240, 152]], dtype=uint8)
    """
    raised = (numbers + 8).astype(np.uint8)
    return raised[:, ::2] | raised[:, 1::2] << 4


def quantise_weights(w, bits=4, *, stream=0):
    """A matrix in 4 or 8 bits, with a scale for each group of 128 weights, so that the largest of them just fits.

    Args:
        w: float32 of shape (N, K), in C order and finite.
        bits: 4 or 8.
        stream: the stream to work on.

    Returns (whole numbers, scales), NumPy arrays as `arguments` takes them. It waits for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> numbers, scales = quantise_weights(np.float32([[7, -2, 0.4]]), 4)
    >>> whole(numbers)[0, :4].tolist(), scales.tolist()
    ([7, -2, 0, 0], [[1.0]])
    """
    stream = device.as_stream(stream)
    w = device.to_host(device.as_input("w", w, dtypes="float32", ndim=2, stream=stream))
    if as_integer("bits", bits, 4, 8) not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, was {bits}")
    n, k = w.shape
    filled = np.zeros((n, blocks(k, GROUP) * GROUP), np.float32)
    filled[:, :k] = w
    groups = filled.reshape(-1, GROUP)
    if not groups.size:
        nothing = np.zeros(filled.shape, np.int8)
        return packed(nothing) if bits == 4 else nothing, np.zeros((n, blocks(k, GROUP)), np.float32)
    numbers, scales = numbers_of_groups(groups, bits, stream)
    numbers = numbers.reshape(filled.shape)
    return packed(numbers) if bits == 4 else numbers, scales.reshape(n, -1)


def numbers_of_groups(groups: np.ndarray, bits: int, stream: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers, and a scale for each row of ``groups``."""
    scales, _ = calibrate(groups, bits=bits, per_channel=True, stream=stream)
    return device.to_host(to_whole(groups, scales, None, bits, stream=stream)), scales


def reference(x: np.ndarray, w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The product in float64, with one row of W after another as the numbers that it stands for."""
    y, numbers = np.zeros((x.shape[0], w.shape[0])), whole(w)
    for n in range(w.shape[0]):
        row = numbers[n].astype(np.float64) * np.repeat(scales[n].astype(np.float64), GROUP)
        y[:, n] = x.astype(np.float64) @ row[: x.shape[1]]
    return y


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and ``(x, w, scales)``. What fills the last group up is as random as the rest."""
    rng = np.random.default_rng(77) if rng is None else rng

    def case(m: int, n: int, k: int, bits: int = 4, dtype: str = "float16") -> tuple:
        groups = blocks(k, GROUP)
        low, high = (-8, 8) if bits == 4 else (-128, 128)
        numbers = rng.integers(low, high, (n, groups * GROUP)).astype(np.int8)
        scales = rng.uniform(0.01, 0.1, (n, groups)).astype(np.float32)
        return rng.standard_normal((m, k)).astype(dtype), packed(numbers) if bits == 4 else numbers, scales

    made = {"one": case(1, 1, 1), "no x": case(0, 3, 5), "no row": case(2, 0, 5), "nothing to add": case(2, 5, 0)}
    made |= {"a group": case(1, 16, 128), "a group and one": case(2, 17, 129), "long": case(1, 5, 1300)}
    made |= {"filled up by words": case(3, 9, 200), "nine": case(9, 20, 256), "many": case(70, 3, 136)}
    made |= {f"{name}, int8": case(*shape, 8) for name, shape in {"one": (1, 1, 1), "odd": (2, 19, 333)}.items()}
    made |= {"nine, int8": case(9, 20, 256, 8)}
    for bits in (4, 8):
        made[f"float32, {bits} bits"] = case(2, 7, 392, bits, "float32")
        made[f"float32, odd, {bits} bits"] = case(1, 3, 165, bits, "float32")
    x, w, scales = case(2, 18, 256)
    made["cancellation"] = np.hstack([x[:, :128], -x[:, :128]]), np.hstack([w[:, :64], w[:, :64]]), scales
    made["largest and smallest"] = np.where(x < 0, np.float16(6e-8), np.float16(65504)), w, scales
    made["scales of any sign"] = x, w, scales * np.float32([[-1e6, 1e-30]])
    return made


def cost(m: int, n: int, k: int, bits: int = 4, itemsize: int = 2) -> Cost:
    """A multiply-add for each of m n k products; W with its scales and x read once, y written once.

    >>> cost(1, 8192, 28672).bytes, cost(1, 8192, 28672, 16).bytes  # the second with scales, which float16 has not
    (124870656, 477192192)
    """
    groups = blocks(k, GROUP)
    return Cost(2 * m * n * k, n * groups * (GROUP * bits // 8 + 4) + itemsize * m * k + 4 * m * n)


def tolerance(x: np.ndarray, w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """How far from `reference` a right result may be.

    Float32 sums of K products, each of three factors: a term is rounded at most K + 4 times, by 2^-24 of the partial
    sums, and those have the raised numbers in them, up to 8 or 128 more than the numbers. A tensor core adds 17 terms
    with the exponent of the largest, and loses up to 2^-23 of it a term (`pmpp.kernels.matmul.tensor_cores`). But the
    exponent that it takes for a weight q 2^-18, a subnormal, is that of 2^-14: 16 or more for a weight that may be 1.
    With 8 bits it is 2^-14 for q 2^-22, so 256.
    """
    raised, most = (8, 16) if w.dtype == np.uint8 else (128, 256)
    k = x.shape[1]
    size = np.abs(x.astype(np.float64))
    numbers = np.abs(whole(w).astype(np.float64))[:, :k] + raised
    each = np.repeat(np.abs(scales.astype(np.float64)), GROUP, axis=1)[:, :k]
    total = size @ (numbers * each).T
    exact = np.abs(x.astype(np.float64)) @ (each * most).T
    return 2.0**-24 * (k + 4) * total + 2 * 17 * 2.0**-23 * exact


def arguments(x, w, scales, *, out=None, stream=0) -> Problem:
    """Multiply float rows by a matrix of small whole numbers with scales: y[m, n] = sum over k of x[m, k] W[n, k].

    Args:
        x: float16 or float32 of shape (M, K). All arrays are in C order. Extents may be 0; K = 0 gives zeros. x and the
            scales have to be finite: what is not makes results of its row that are not, by some rungs NaN for infinity.
        w: the weights, with G = K / 128 rounded up: int8 of shape (N, 128 G), or uint8 of shape (N, 64 G) with two
            weights a byte, that of the even k in the lower half, and 8 added to each (see `packed`).
        scales: float32 of shape (N, G). W[n, k] is scales[n, k // 128] times the whole number.
        out: a float32 device array of shape (M, N), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.quantisation import weight_only
    >>> w = np.zeros((1, 128), np.int8)
    >>> w[0, :2] = 3, -5
    >>> weight_only.vectorised(np.float32([[10, 1]]), w, np.float32([[0.5]])).copy_to_host()
    array([[12.5]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    m, k = x.shape
    if k > MOST_K:
        raise ValueError(f"x must have at most {MOST_K} columns, had {k}")
    groups = blocks(k, GROUP)
    w = device.as_input("w", w, dtypes=("int8", "uint8"), ndim=2, stream=stream)
    bits = 8 if w.dtype == np.int8 else 4
    wanted = groups * GROUP * bits // 8
    if w.shape[1] != wanted:
        raise ValueError(f"w must have {wanted} bytes a row for K = {k} and {bits} bits, had shape {w.shape}")
    n = w.shape[0]
    scales = device.as_input("scales", scales, dtypes="float32", ndim=2, shape=(n, groups), stream=stream)
    apart = {"x": x, "w": w, "scales": scales}
    out = device.as_output("out", out, shape=(m, n), dtype="float32", apart=apart, stream=stream)
    p = Problem(out, stream=stream, x=x, w=w, scales=scales, bits=bits)
    if out.size and not k:
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](out.reshape(-1))
        p.done = True
    return p


@cuda.jit
def zero_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = f0


# ------------------------------------------------------------------------------------------------------- a thread a row


@cuda.jit(device=True)
def weight_of_byte(w, row, k):
    return np.float32(w[row, k])


@cuda.jit(device=True)
def weight_of_half(w, row, k):
    byte = np.int32(w[row, k // 2])
    return np.float32((byte & 15 if k % 2 == 0 else byte >> 4) - 8)


@functools.cache
def thread_kernel(bits: int) -> typing.Any:
    """The kernel ``(x, w, scales, out)`` for weights of 4 or 8 bits."""
    weight = weight_of_half if bits == 4 else weight_of_byte

    @cuda.jit
    def kernel(x, w, scales, out):
        i = cuda.grid(1)
        if i < out.size:
            m, row, total = i // out.shape[1], i % out.shape[1], f0
            for k in range(x.shape[1]):
                total += scales[row, k // GROUP] * weight(w, row, k) * np.float32(x[m, k])
            out[m, row] = total

    return kernel


@rung(thread_kernel)
def thread_per_row(p):
    """A thread walks along a row of W, and makes a number of each weight.

    Source: PMPP 4e section 3.4.

    Leaves: the lanes of a warp read bytes of 32 rows, and each of these lies in a sector of its own.
    """
    thread_kernel(p.bits)[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.scales, p.result)


@functools.cache
def warp_kernel(bits: int) -> typing.Any:
    """The kernel ``(x, w, scales, out)`` for weights of 4 or 8 bits."""
    weight, each = (weight_of_half, 2) if bits == 4 else (weight_of_byte, 1)

    @cuda.jit
    def kernel(x, w, scales, out):
        i, total = cuda.grid(1) // 32, f0
        m, row = i // out.shape[1], i % out.shape[1]
        if i < out.size:
            for first in range(each * cuda.laneid, x.shape[1], each * 32):
                for k in range(first, min(first + each, x.shape[1])):
                    total += scales[row, k // GROUP] * weight(w, row, k) * np.float32(x[m, k])
        total = warp_sum(total)
        if i < out.size and cuda.laneid == 0:
            out[m, row] = total

    return kernel


@rung(warp_kernel)
def coalesced(p):
    """A warp shares a row of W: a lane has a byte, and its neighbour the next.

    Source: PMPP 4e sections 6.1 and 10.4.

    Leaves: a warp asks for 32 bytes of W at a time. And a conversion from int to float runs at an eighth of the speed.
    """
    warp_kernel(p.bits)[blocks(32 * p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.scales, p.result)


# ------------------------------------------------------------------------------------------------------- wide loads
# A load of 128 bits has 32 weights of 4 bits, or 16 of 8, all of one group. They become float32 by the bits of 2^23: a
# float32 from there on has no place behind the point, so its last bits are those of the whole number.

ROWS = 4  # of W, that a warp has at a time
MAGIC = np.uint32(0x4B000000)  # the bits of 2^23
RAISED = {4: np.float32(2.0**23 + 8), 8: np.float32(2.0**23 + 128)}


@cuda.jit(device=True)
def as_float(bits):
    return cuda.libdevice.int_as_float(np.int32(bits))


@cuda.jit(device=True)
def low_half(word):
    return cuda.libdevice.half2float(np.int16(word & np.uint32(0xFFFF)))


@cuda.jit(device=True)
def high_half(word):
    return cuda.libdevice.half2float(np.int16(word >> np.uint32(16)))


@cuda.jit(device=True)
def eight_halves(x, at, k, end):
    """Eight neighbours of a row that begins at x[2 at], from k on. x holds two float16 in a uint32."""
    if k >= end:
        return f0, f0, f0, f0, f0, f0, f0, f0
    a, b, c, d = load128(x, (at + k) // 2)
    return low_half(a), high_half(a), low_half(b), high_half(b), low_half(c), high_half(c), low_half(d), high_half(d)


@cuda.jit(device=True)
def eight_floats(x, at, k, end):
    if k >= end:
        return f0, f0, f0, f0, f0, f0, f0, f0
    a, b = load128(x, at + k), load128(x, at + k + 4)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True)
def one_before(x, at, k, end):
    return np.float32(x[at + k]) if k < end else f0


@cuda.jit(device=True)
def eight_elements(x, at, k, end):
    """The same for a row that begins anywhere, of either dtype."""
    return (
        one_before(x, at, k, end),
        one_before(x, at, k + 1, end),
        one_before(x, at, k + 2, end),
        one_before(x, at, k + 3, end),
        one_before(x, at, k + 4, end),
        one_before(x, at, k + 5, end),
        one_before(x, at, k + 6, end),
        one_before(x, at, k + 7, end),
    )


READERS = {"elements": eight_elements, "float16": eight_halves, "float32": eight_floats}


@functools.cache
def vector_kernel(bits: int, kind: str, rows: int = ROWS) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays; ``kind``: how x is read, a key of `READERS`."""
    eight, raised, mask = READERS[kind], RAISED[bits], np.uint32(2**bits - 1)
    each = 32 // bits // 2  # times eight weights in 128 bits
    turned = np.uint32(0 if bits == 4 else 0x80808080)  # adds 128 to each of four int8, as far as 8 bits can tell

    @cuda.jit(device=True)
    def add_products(parts, weights, i, x):
        """Add to the sum of each row eight products: of x, and of its weights from place 8 i on."""
        for r in range(rows):
            for j in range(8):
                word = weights[r, (8 * i + j) * bits // 32] ^ turned
                number = word >> np.uint32(j * bits % 32) & mask
                parts[r] += (as_float(number | MAGIC) - raised) * x[j]

    @cuda.jit
    def kernel(x, w, scales, out, m, n, k):
        lane, groups = cuda.laneid, (k + GROUP - 1) // GROUP
        warp, teams = cuda.grid(1) // 32, (n + rows - 1) // rows
        of_x, first = warp // teams, warp % teams * rows
        sums = cuda.local.array(rows, np.float32)
        parts = cuda.local.array(rows, np.float32)
        weights = cuda.local.array((rows, 4), np.uint32)
        for r in range(rows):
            sums[r] = f0
        at, row = lane * 8 * each, np.int64(of_x) * k  # the first weight of this lane; where x begins
        while at < k and of_x < m:
            for r in range(rows):  # all loads of W come first
                begin = np.int64(min(first + r, n - 1)) * groups * (GROUP * bits // 32)
                a, b, c, d = load128(w, begin + at * bits // 32)
                weights[r, 0], weights[r, 1], weights[r, 2], weights[r, 3] = a, b, c, d
                parts[r] = f0
            add_products(parts, weights, 0, eight(x, row, at, k))
            add_products(parts, weights, 1, eight(x, row, at + 8, k))
            if bits == 4:
                add_products(parts, weights, 2, eight(x, row, at + 16, k))
                add_products(parts, weights, 3, eight(x, row, at + 24, k))
            for r in range(rows):
                sums[r] += parts[r] * scales[np.int64(min(first + r, n - 1)) * groups + at // GROUP]
            at += 32 * 8 * each
        for r in range(rows):
            total = warp_sum(sums[r])
            if lane == 0 and first + r < n and of_x < m:
                out[np.int64(of_x) * n + first + r] = total

    return kernel


def flat(x: typing.Any, dtype: typing.Any = None) -> typing.Any:
    """A device array as a vector, of the same bytes as ``dtype``."""
    x = x.reshape(-1)
    return x if dtype is None else x.view(dtype)


def whole_vectors(x: typing.Any) -> bool:
    """Whether all rows of x begin at multiples of 16 bytes, and have a multiple of eight elements."""
    return x.shape[1] % 8 == 0 and device.address(x) % 16 == 0


def by_vectors(p: Problem, rows: int = ROWS) -> None:
    """The launch of `vectorised`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    kind, x = "elements", flat(p.x)
    if whole_vectors(p.x):
        kind, x = str(p.x.dtype), flat(p.x, np.uint32 if p.x.dtype == np.float16 else None)
    grid = blocks(32 * m * blocks(n, rows), BLOCK)
    given = x, flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    vector_kernel(p.bits, kind, rows)[grid, BLOCK, p.stream](*given)


@rung(vector_kernel, warp_kernel)
def vectorised(p):
    """A lane loads 128 bits of each of four rows of W. Weights become floats by the bits of 2^23, without conversion.

    Rows of W that do not begin at multiples of 16 bytes are left to the rung before.

    Source: PMPP 5e section 6.3; Kim et al., Who says elephants can't run, 2022, for the bits of a power of two.

    Leaves: a shift, a mask, a subtraction and a multiply-add for each weight, and a conversion for each x in float16.
    That is more than the 3.5 instructions for which there is time.
    """
    if device.address(p.w) % 16:
        coalesced.launch(p)
    else:
        by_vectors(p)


# ------------------------------------------------------------------------------------------------------- tensor cores
# A float16 whose exponent bits are 0 is a subnormal, (last ten bits) x 2^-24. So a weight of 4 bits is a float16 as
# soon as it lies in bits 6 to 9: q x 2^-18. And a word holds two of them at once. A tensor core takes them as they are.

WARPS = 8  # that share the rows of a block
HIGH = 1  # times 16 rows of W that a block has
REGISTERS = 64  # of a thread, for one vector: so four blocks of eight warps have room on a multiprocessor
MOST_TILES = 4  # of eight rows of x that a block has at a time
LESS = np.uint32(0x82008200)  # twice the float16 -8 x 2^-18, which is -128 x 2^-22
FACTOR = {4: np.float32(2.0**18), 8: np.float32(2.0**22)}


@cuda.jit(device=True)
def pairs_of_four(word, part):
    """Of eight weights of 4 bits two registers: those at places 2 part and 2 part + 4, and each of these plus 1."""
    mask = np.uint32(0x03C003C0)
    if part == 0:
        return np.uint32(word << np.uint32(6) & mask), np.uint32(word << np.uint32(2) & mask)
    return np.uint32(word >> np.uint32(2) & mask), np.uint32(word >> np.uint32(6) & mask)


@cuda.jit(device=True)
def pairs_of_eight(word):
    """Of four weights of 8 bits two registers: those at places 0 and 2, and those at 1 and 3."""
    mask, turned = np.uint32(0x03FC03FC), np.uint32(0x02000200)  # adds 128 to an int8, as far as 8 bits can tell
    even = (word << np.uint32(2) ^ turned) & mask
    odd = (word >> np.uint32(6) ^ turned) & mask
    return np.uint32(even), np.uint32(odd)


@cuda.jit(device=True)
def lows(a, b):
    """The lower halves of two registers in one. byte_perm picks four of their eight bytes, in one instruction."""
    return np.uint32(cuda.libdevice.byte_perm(np.int32(a), np.int32(b), np.int32(0x5410)))


@cuda.jit(device=True)
def highs(a, b):
    return np.uint32(cuda.libdevice.byte_perm(np.int32(a), np.int32(b), np.int32(0x7632)))


@cuda.jit(device=True)
def half_before(x, at, left):
    return x[at] if left > 0 else np.uint16(0)


@cuda.jit(device=True)
def words_of_elements(x, at, left):
    """Eight neighbours from x[at] on as four registers, 0 where fewer are ``left``. x holds the bits of a float16."""
    return (
        pack_halves(half_before(x, at, left), half_before(x, at + 1, left - 1)),
        pack_halves(half_before(x, at + 2, left - 2), half_before(x, at + 3, left - 3)),
        pack_halves(half_before(x, at + 4, left - 4), half_before(x, at + 5, left - 5)),
        pack_halves(half_before(x, at + 6, left - 6), half_before(x, at + 7, left - 7)),
    )


@cuda.jit(device=True)
def words_of_vector(x, at, left):
    """The same where x holds two float16 in a uint32, and eight neighbours are there or not as a whole."""
    if left > 0:
        return load128(x, at)
    return np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)


@functools.cache
def multiplier(bits: int, wide: bool, tiles: int, high: int) -> typing.Any:
    """A device function that adds a lane's products of a group, for 8 ``tiles`` rows of x.

    ``wide``: x has whole vectors. ``high``: times 16 rows of W that a block has.
    """
    eight, each = (words_of_vector, 2) if wide else (words_of_elements, 1)  # ``each``: of x in an element of its array
    fragments, factor = tiles * high, FACTOR[bits]
    halfway = np.int32(16 if bits == 4 else 64)  # from the first sixteen of a lane's weights to the others

    @cuda.jit(device=True)
    def add(sums, at, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3]))
        sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3] = c

    @cuda.jit(device=True)
    def multiply(sums, less, own, i, x, at, left, down, row, m):
        """Add the products of eight of the lane's weights, those from its place 8 i on, for all rows of x.

        The weights are raised. What was added to each of them, 8 or 128, is in ``less``, times -1: the same for all
        rows of W. ``at``: where x is for the first of its rows; ``left``: how much of a row there is from here on;
        ``down``: how far it is to the row that is eight further.
        """
        for tile in range(tiles):
            x0, x1, x2, x3 = eight(x, at + tile * down, left if row + 8 * tile < m else np.int32(0))
            if bits == 4:
                first, second = (lows(x0, x2), highs(x0, x2)), (lows(x1, x3), highs(x1, x3))
            else:
                first, second = (lows(x0, x1), highs(x0, x1)), (lows(x2, x3), highs(x2, x3))
            add(less, tile, LESS, LESS, LESS, LESS, first)
            add(less, tile, LESS, LESS, LESS, LESS, second)
            for two in range(high):
                if bits == 4:
                    a0, a2 = pairs_of_four(own[2 * two, i], 0)
                    a1, a3 = pairs_of_four(own[2 * two + 1, i], 0)
                else:
                    a0, a2 = pairs_of_eight(own[2 * two, 2 * i])
                    a1, a3 = pairs_of_eight(own[2 * two + 1, 2 * i])
                add(sums, tile * high + two, a0, a1, a2, a3, first)
                if bits == 4:
                    a0, a2 = pairs_of_four(own[2 * two, i], 1)
                    a1, a3 = pairs_of_four(own[2 * two + 1, i], 1)
                else:
                    a0, a2 = pairs_of_eight(own[2 * two, 2 * i + 1])
                    a1, a3 = pairs_of_eight(own[2 * two + 1, 2 * i + 1])
                add(sums, tile * high + two, a0, a1, a2, a3, second)

    @cuda.jit(device=True)
    def multiply_group(totals, own, scale, x, at, left, down, row, m):
        """Add the lane's products of a group, times the scale of each of its rows of W."""
        sums, less = cuda.local.array((fragments, 4), np.float32), cuda.local.array((tiles, 4), np.float32)
        for i in range(fragments):
            for e in range(4):
                sums[i, e] = f0
        for tile in range(tiles):
            for e in range(4):
                less[tile, e] = f0
        multiply(sums, less, own, 0, x, at, left, down, row, m)
        multiply(sums, less, own, 1, x, at + 8 // each, np.int32(left - 8), down, row, m)
        at, left = at + halfway // each, np.int32(left - halfway)
        multiply(sums, less, own, 2, x, at, left, down, row, m)
        multiply(sums, less, own, 3, x, at + 8 // each, np.int32(left - 8), down, row, m)
        for two in range(high):
            for half in range(2):
                times = factor * scale[2 * two + half]
                for tile in range(tiles):
                    for e in range(2 * half, 2 * half + 2):
                        i = tile * high + two
                        totals[i, e] += (sums[i, e] + less[tile, e]) * times

    return multiply_group


@functools.cache
def adder(tiles: int, high: int, warps: int) -> typing.Any:
    """A device function with which a block adds up the sums of its warps, and stores them."""
    columns, below = 8 * tiles, 16 * high

    @cuda.jit(device=True)
    def add_up(shared, totals, out, top, first_m, m, n):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        line, quarter = lane // 4, lane % 4
        for tile in range(tiles):
            for two in range(high):
                for e in range(4):
                    beside = 8 * tile + 2 * quarter + e % 2
                    shared[warp, 16 * two + line + e // 2 * 8, beside] = totals[tile * high + two, e]
        cuda.syncthreads()
        i = cuda.threadIdx.x
        while i < below * columns:
            down_w, beside, total = i % below, i // below, f0
            for other in range(warps):
                total += shared[other, down_w, beside]
            if top + down_w < n and first_m + beside < m:
                out[np.int64(first_m + beside) * n + top + down_w] = total
            i += 32 * warps

    return add_up


@functools.cache
def tensor_kernel(bits: int, wide: bool, tiles: int, high: int, warps: int = WARPS, most: int = 0) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays, for 8 ``tiles`` rows of x at a time.

    A block has 16 ``high`` rows of W, and its warps take turns at the groups. ``wide``: x has whole vectors. ``most``:
    registers of a thread, 0 for as many as the compiler likes.
    """
    each = 2 if wide else 1  # of x that an element of its array holds
    multiply_group, add_up = multiplier(bits, wide, tiles, high), adder(tiles, high, warps)
    columns, below = 8 * tiles, 16 * high
    sides, fragments = 2 * high, tiles * high  # rows of W, and fragments of sums, that a lane has
    run = 32 if bits == 4 else 16  # weights in a row that a lane has

    @cuda.jit(device=True)
    def fetch(w, own, begins, group):
        """Load a lane's weights of a group: 32 of each of its rows, which are as many words as a weight has bits."""
        for side in range(sides):
            for part in range(bits // 4):
                a, b, c, d = load128(w, begins[side] + np.int64(group) * (4 * bits) + 16 * part)
                own[side, 4 * part], own[side, 4 * part + 1] = a, b
                own[side, 4 * part + 2], own[side, 4 * part + 3] = c, d

    @cuda.jit(**({"max_registers": most} if most else {}))
    def kernel(x, w, scales, out, m, n, k):
        shared = cuda.shared.array((warps, below, columns), np.float32)
        own, coming = cuda.local.array((sides, bits), np.uint32), cuda.local.array((sides, bits), np.uint32)
        totals, scale = cuda.local.array((fragments, 4), np.float32), cuda.local.array(sides, np.float32)
        lines, begins = cuda.local.array(sides, np.int64), cuda.local.array(sides, np.int64)
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        line, quarter = lane // 4, lane % 4
        top, first_m = cuda.blockIdx.x * below, cuda.blockIdx.y * columns
        # What changes in the loop has 32 bits, and all that does not is computed here: addresses take instructions.
        row, rows = np.int32(first_m + line), np.int32(m)
        groups = np.int32((k + GROUP - 1) // GROUP)
        group, end, last = np.int32(warp), np.int32(k - run * quarter), np.int32(groups - 1)
        own_x, down = (np.int64(row) * k + run * quarter) // each, np.int64(k) * 8 // each
        for i in range(fragments):
            for e in range(4):
                totals[i, e] = f0
        for side in range(sides):  # rows beyond the last are the last again, and are not stored
            lines[side] = np.int64(min(top + line + 8 * side, n - 1)) * groups
            begins[side] = lines[side] * (4 * bits) + 4 * quarter
        fetch(w, own, begins, min(group, last))
        while group < groups:
            after = np.int32(group + warps)
            fetch(w, coming, begins, min(after, last))  # on its way while this group is multiplied
            for side in range(sides):
                scale[side] = scales[lines[side] + group]
            at, left = own_x + np.int64(group) * (GROUP // each), np.int32(end - group * GROUP)
            multiply_group(totals, own, scale, x, at, left, down, row, rows)
            for side in range(sides):
                for i in range(bits):
                    own[side, i] = coming[side, i]
            group = after
        add_up(shared, totals, out, top, first_m, m, n)

    return kernel


def by_tensors(p: Problem, high: int = HIGH, warps: int = WARPS, most: int | None = None) -> None:
    """The launch of `tensor`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    wide = whole_vectors(p.x)
    tiles = min(MOST_TILES, 1 << max(blocks(m, 8) - 1, 0).bit_length())
    x = flat(p.x, np.uint32 if wide else np.uint16)
    grid = blocks(n, 16 * high), blocks(m, 8 * tiles)
    if grid[1] > 65535:  # every GPU's limit for y
        raise ValueError(f"x must have at most {65535 * 8 * tiles} rows for this rung, had {m}")
    given = x, flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    most = (REGISTERS if tiles == 1 else 0) if most is None else most
    tensor_kernel(p.bits, wide, tiles, high, warps, most)[grid, 32 * warps, p.stream](*given)


@rung(tensor_kernel, vector_kernel, warp_kernel)
def tensor(p):
    """Weights lie in a float16 as subnormals, after a shift and a mask for two. Tensor cores multiply and add.

    A warp multiplies 16 rows of W by 8 rows of x, of which a decoder may fill one. For x in float32, and for a GPU
    without the instruction, this is the rung before.

    Source: Frantar et al., MARLIN, 2024, for products of few rows on tensor cores; IEEE 754-2019 section 3.4.

    Leaves: a warp asks for its next group, multiplies one, and waits: one group on its way is too few for memory.
    """
    if p.x.dtype != np.float16 or device.address(p.w) % 16 or device.limits()["compute_capability"] < CAPABILITY:
        vectorised.launch(p)
    else:
        by_tensors(p)


# -------------------------------------------------------------------------------------------------- groups on their way
# An asynchronous copy takes no registers while it travels. So a warp can have several groups on their way, and not just
# one. And x travels with them, so that no instruction of the loop waits for the L2 cache.

STAGES = 3  # that have room in shared memory at most; all but one of them travel
RESERVED = 1024  # bytes of shared memory that the system takes for each block
PAIRS, OF_PAIRS = 2, 128  # times 16 rows of W that a block has, and registers: two blocks of eight warps have room
QUADS, OF_QUADS, WARPS_OF_QUADS = 4, 168, 12  # the same of one block of twelve warps


@functools.cache
def staged_kernel(bits: int, lines: int, high: int, warps: int, stages: int, most: int = 0) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays, for one row of x or up to eight: ``lines``.

    A warp has ``stages`` in shared memory. Each has a group of its 16 ``high`` rows of W, and of x.
    """
    multiply_group, add_up = multiplier(bits, True, 1, high), adder(1, high, warps)
    below, sides, parts, run = 16 * high, 2 * high, bits // 4, 32 if bits == 4 else 16
    in_row = np.uint32(4 * parts)  # times 16 bytes, of a row of W in a group
    rows_apart, copies, copies_of_x = 8 // parts, below * 4 * parts // 32, max(lines * 16 // 32, 1)
    x_begin, ring_size = np.uint32(sides * parts * 128), np.uint32(stages * (sides * parts * 128 + 64 * lines))
    stage_size, pending = np.uint32(sides * parts * 128 + 64 * lines), stages - 2  # words: two elements of x in each

    @cuda.jit(device=True)
    def start(ring, to, w, at, pitch, rows, x, k, group, groups, m):
        """Begin to copy a group, 16 bytes at a time. Neighbouring lanes have neighbours of a row.

        ``at``: where the lane's first copy of group 0 begins. Behind the last row, the last group and the end of x all
        is 0.
        """
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(32)
        row, chunk = np.uint32(lane // in_row), np.uint32(lane % in_row)
        at += np.int64(group) * (4 * bits)
        to_w = np.uint32(to + chunk // np.uint32(4) * np.uint32(128) + chunk % np.uint32(4) * np.uint32(4))
        left = rows if group < groups else np.int32(0)
        for i in range(copies):
            line = np.uint32(row + np.uint32(i * rows_apart))
            place = np.uint32(line // 8 * np.uint32(parts * 128) + line % 8 * np.uint32(16))
            count = 4 if np.int32(line) < left else 0
            copy_async(ring, np.uint32(to_w + place), w, at + i * rows_apart * pitch, count)
        for i in range(copies_of_x):
            number = np.uint32(lane + np.uint32(32 * i))
            line, column = np.int64(number // np.uint32(16)), np.int64(group) * GROUP + number % np.uint32(16) * 8
            if line < lines:
                count = 4 if line < m and column < k else 0
                copy_async(ring, np.uint32(to + x_begin + number * np.uint32(4)), x, (line * k + column) // 2, count)
        commit_copies()

    @cuda.jit(device=True)
    def fetch(ring, at, own):
        """A lane's weights, as `tensor_kernel` has them."""
        for side in range(sides):
            for part in range(parts):
                a, b, c, d = load128(ring, np.uint32(at + np.uint32(side * parts + part) * np.uint32(128)))
                own[side, 4 * part], own[side, 4 * part + 1] = a, b
                own[side, 4 * part + 2], own[side, 4 * part + 3] = c, d

    @cuda.jit(**({"max_registers": most} if most else {}))
    def kernel(x, w, scales, out, m, n, k):
        shared = cuda.shared.array((warps, below, 8), np.float32)
        ring = cuda.shared.array(0, np.uint32, alignment=16)
        own, totals = cuda.local.array((sides, bits), np.uint32), cuda.local.array((high, 4), np.float32)
        scale, soon = cuda.local.array(sides, np.float32), cuda.local.array(sides, np.float32)
        begins = cuda.local.array(sides, np.int64)  # of scales
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(32), np.uint32(cuda.threadIdx.x) // np.uint32(32)
        line, quarter, top = lane // np.uint32(4), lane % np.uint32(4), np.int64(cuda.blockIdx.x) * below
        groups, rows = np.int32((k + GROUP - 1) // GROUP), np.int32(min(n - top, np.int64(below)))
        group, last, pitch = np.int32(warp), np.int32(groups - 1), np.int64(groups) * (4 * bits)
        at = (top + np.int64(lane // in_row)) * pitch + np.int64(lane % in_row) * 4
        for i in range(high):
            for e in range(4):
                totals[i, e] = f0
        for side in range(sides):  # rows beyond the last are the last again, and are not stored
            begins[side] = min(top + np.int64(line) + 8 * side, n - 1) * groups
            soon[side] = scales[begins[side] + min(group, last)]
        own_ring, coming = np.uint32(warp * ring_size), group
        own_x = np.uint32(x_begin + line * np.uint32(64) + quarter * np.uint32(run // 2))
        for stage in range(stages - 1):
            to = np.uint32(own_ring + np.uint32(stage) * stage_size)
            start(ring, to, w, at, pitch, rows, x, k, coming, groups, m)
            coming = np.int32(coming + warps)
        now, into = np.uint32(0), np.uint32(ring_size - stage_size)
        while group < groups:
            after = np.int32(group + warps)
            for side in range(sides):  # a scale is asked for a round before it is needed
                scale[side], soon[side] = soon[side], scales[begins[side] + min(after, last)]
            wait_copies(pending)  # the oldest stage is there: what this lane has copied,
            cuda.syncwarp()  # and all others; and everyone has read the stage that is overwritten next
            start(ring, np.uint32(own_ring + into), w, at, pitch, rows, x, k, coming, groups, m)
            coming = np.int32(coming + warps)
            begin = np.uint32(own_ring + now)
            fetch(ring, np.uint32(begin + lane * np.uint32(4)), own)
            from_x = np.int64(np.uint32(begin + own_x))
            multiply_group(totals, own, scale, ring, from_x, np.int32(GROUP), 0, np.int32(line), np.int32(m))
            into, now = now, np.uint32(now + stage_size)
            if now == ring_size:
                now = np.uint32(0)
            group = after
        add_up(shared, totals, out, top, np.int64(0), m, n)

    return kernel


class Plan(typing.NamedTuple):
    """How `staged` cuts a product."""

    lines: int  # of x: one, or up to eight
    high: int  # times 16 rows of W, of a block
    warps: int
    stages: int
    most: int  # registers of a thread

    def shared(self, bits: int) -> int:
        """Bytes of a block's stages."""
        return self.warps * self.stages * _stage(bits, self.lines, self.high)


def _stage(bits: int, lines: int, high: int) -> int:
    """Bytes of a warp's stage: of its rows of W, and of x."""
    return GROUP * (16 * high * bits + lines * 16) // 8


@functools.lru_cache(4096)
def plan(m: int, n: int, k: int, bits: int, multiprocessors: int, memory: int) -> Plan:
    """The plan for m rows of x and n of W, on a GPU whose multiprocessors have ``memory`` bytes of shared memory each.

    Blocks are few where W has few rows. Then they have more warps, but none without a group.

    >>> plan(1, 8192, 28672, 4, 132, 228 * 1024)
    Plan(lines=1, high=4, warps=12, stages=3, most=168)
    >>> plan(1, 1024, 65536, 4, 132, 228 * 1024)
    Plan(lines=1, high=1, warps=32, stages=3, most=64)
    """
    lines = 1 if m == 1 else 8

    def least(high: int, stages: int = 2) -> int:
        """Bytes of a warp: of its stages, and of its sums."""
        return stages * _stage(bits, lines, high) + 16 * high * 8 * 4

    large = 10 * blocks(n, 16 * QUADS) >= 9 * multiprocessors and blocks(k, GROUP) >= 4 * WARPS_OF_QUADS
    if large and WARPS_OF_QUADS * least(QUADS, STAGES) + RESERVED <= memory:
        return Plan(lines, QUADS, WARPS_OF_QUADS, STAGES, OF_QUADS)
    high, most, warps = HIGH, REGISTERS, WARPS
    if 2 * blocks(n, 16 * PAIRS) > multiprocessors and warps * least(PAIRS) + RESERVED <= memory:
        high, most = PAIRS, OF_PAIRS
    places = multiprocessors * 65536 // (32 * most)  # for warps, by their registers
    most_warps = min(32, blocks(k, GROUP), (memory - RESERVED) // least(high))
    while 2 * warps <= most_warps and blocks(n, 16 * high) * 2 * warps <= places:
        warps *= 2
    share = memory // max(1, 2 * WARPS // warps) - RESERVED  # two blocks of a multiprocessor, or one that is large
    stages = min(STAGES, (share // warps - least(high)) // _stage(bits, lines, high) + 2)
    return Plan(lines, high, warps, max(stages, 2), most)


def by_stages(p: Problem, chosen: Plan) -> None:
    """The launch of `staged`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    given = flat(p.x, np.uint32), flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    grid, shared = blocks(n, 16 * chosen.high), chosen.shared(p.bits)
    staged_kernel(p.bits, *chosen)[grid, 32 * chosen.warps, p.stream, shared](*given)


@rung(staged_kernel, tensor_kernel, vector_kernel, warp_kernel)
def staged(p):
    """Groups of W, and of x beside them, are on their way into shared memory while a warp multiplies others.

    A block has up to 64 rows of W where there are enough, so elements of x are put into the order that the tensor cores
    want a quarter as often. For more than eight rows of x, and where its rows do not begin at multiples of 16 bytes,
    this is the rung before.

    Source: CUDA C++ programming guide, "Asynchronous data copies"; PMPP 4e section 4.7, on latency and what hides it.

    Leaves: each warp puts x in order for itself, applies a scale for each group, and waits for what other lanes copy.
    """
    (m, k), n, limits = p.x.shape, p.w.shape[0], device.limits()
    suits = p.x.dtype == np.float16 and m <= 8 and whole_vectors(p.x) and device.address(p.w) % 16 == 0
    if not suits or limits["compute_capability"] < CAPABILITY:
        tensor.launch(p)
    else:
        held = limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"]
        by_stages(p, plan(m, n, k, p.bits, *held))


# ------------------------------------------------------------------------------------------------------ x in registers
# For one row of x, which fills one of the eight columns that a tensor core multiplies. So the columns are groups: column
# c has x of group c, and row c of the first matrix has that group of a row of W. Rows 8 to 15 are the same groups of the
# next row of W. What is wanted stands on the diagonal, eight sums for each of the two rows, and the rest is not used.
#
# All rows of W meet the same x. So a warp has the same 16 groups of each row, and keeps their part of x in registers,
# in the order that the tensor cores want. Of eight groups of a row, which are 512 bytes, a lane multiplies 16 that are
# neighbours: lane 0 the first, lane 1 the next. So each lane copies its own weights into a queue of its own in shared
# memory and waits for no other lane, and a warp copies neighbouring bytes. Only scales are copied for others.

HELD = 16  # groups of which a warp holds x: two for each column
AT_ONCE = 4  # rows of W in a place of a queue
PIECE = HELD * GROUP // 8  # words of a row in a place
SCALES = HELD + 4  # of a row in a place: copies are of 16 bytes, and a row's scales may begin within
PLACE = AT_ONCE * (PIECE + SCALES)  # words
PLACES = 3  # of a queue at most: all but one of them travel
QUEUES = 16  # warps of a block at most
TURNS = 16  # until a block adds up what its warps have found


class Queues(typing.NamedTuple):
    """How `queued` cuts a product: a block has ``teams`` of ``slices`` warps, whose queues have ``places``."""

    slices: int
    teams: int
    places: int

    @property
    def warps(self) -> int:
        return self.slices * self.teams

    @property
    def shared(self) -> int:
        """Bytes of a block's queues."""
        return 4 * self.warps * self.places * PLACE


@functools.cache
def queued_kernel(slices: int, teams: int, places: int) -> typing.Any:
    """The kernel ``(x, w, scales, out, n, k)``, of flat arrays, for weights of 4 bits and one row of x.

    The warps of a team have the same rows of W, and each of them 16 other groups: see `Queues`.
    """
    warps, half = slices * teams, PIECE // 2
    threads, pending, factor = 32 * warps, places - 2, FACTOR[4]
    of_team = TURNS * AT_ONCE  # sums that a warp keeps until they are added up
    results = teams * of_team

    @cuda.jit(device=True)
    def hold_x(x, held, too_much, group, quarter, k):
        """Load the lane's elements of x, 32 of each of two groups, in order; and what the raised weights add too much.

        That is 8 times the sum of a group, which four lanes have.
        """
        for part in range(2):
            total = f0
            for i in range(4):
                at = np.int64(group + 8 * part) * GROUP + np.int64(32 * quarter + 8 * i)
                x0, x1, x2, x3 = words_of_vector(x, at // 2, k - at)
                total += low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
                total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
                held[part, 4 * i], held[part, 4 * i + 1] = lows(x0, x2), highs(x0, x2)
                held[part, 4 * i + 2], held[part, 4 * i + 3] = lows(x1, x3), highs(x1, x3)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            too_much[part] = np.float32(8) * total

    @cuda.jit(device=True)
    def start(words, floats, place, w, at, pitch, counts, rows, scales, at_scale, lane):
        """Begin to copy the lane's weights of some ``rows``, and the warp's scales. Behind the last row all is 0."""
        own = np.uint32(place + lane * np.uint32(4))
        for row in range(AT_ONCE):
            for part in range(2):
                to = np.uint32(own + np.uint32(row * PIECE + part * half))
                copy_async_line(words, to, w, at + row * pitch + part * half, counts[part] if row < rows else 0)
        if lane < AT_ONCE * SCALES // 4:
            count = np.int32(min(max(scales.size - at_scale, 0), 4))
            copy_async(floats, np.uint32(own + np.uint32(AT_ONCE * PIECE)), scales, at_scale, count)
        commit_copies()

    @cuda.jit(device=True)
    def add(sums, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[0], sums[1], sums[2], sums[3]))
        sums[0], sums[1], sums[2], sums[3] = c

    @cuda.jit(device=True)
    def multiply(words, floats, at, scale, scale_below, held, too_much, counts, line, diagonal):
        """Of two rows of W the products on the diagonal, with their scales; 0 if the lane has none of it."""
        sums, total, total_below = cuda.local.array(4, np.float32), f0, f0
        for part in range(2):
            upper = load128(words, np.uint32(at + np.uint32(part * half)))
            lower = load128(words, np.uint32(at + np.uint32(PIECE + part * half)))
            for e in range(4):
                sums[e] = f0
            for i in range(4):
                a0, a2 = pairs_of_four(upper[i], 0)
                a1, a3 = pairs_of_four(lower[i], 0)
                add(sums, a0, a1, a2, a3, (held[part, 4 * i], held[part, 4 * i + 1]))
                a0, a2 = pairs_of_four(upper[i], 1)
                a1, a3 = pairs_of_four(lower[i], 1)
                add(sums, a0, a1, a2, a3, (held[part, 4 * i + 2], held[part, 4 * i + 3]))
            even, wanted = line % np.uint32(2) == 0, diagonal and counts[part] > 0
            own, own_below = sums[0] if even else sums[1], sums[2] if even else sums[3]
            times = floats[np.uint32(scale + np.uint32(8 * part))]
            times_below = floats[np.uint32(scale_below + np.uint32(8 * part))]
            times, times_below = times if wanted else f0, times_below if wanted else f0
            total += (own * factor - too_much[part]) * times
            total_below += (own_below * factor - too_much[part]) * times_below
        return total, total_below

    @cuda.jit(device=True)
    def keep(first, second, keeps_second, apart):
        """One of two sums, with what the lane that is ``apart`` has of it. That lane keeps the other."""
        kept, given = second if keeps_second else first, first if keeps_second else second
        return kept + cuda.shfl_xor_sync(FULL_WARP, given, apart)

    @cuda.jit(device=True)
    def sum_of_lanes(v0, v1, v2, v3, lane):
        """The sums over all lanes of four rows: lane 0 gets the first, lane 1 the second, and so on."""
        odd, upper = lane % np.uint32(2) == 1, lane // np.uint32(2) % np.uint32(2) == 1
        total = keep(keep(v0, v1, odd, 1), keep(v2, v3, odd, 1), upper, 2)
        for apart in (4, 8, 16):
            total += cuda.shfl_xor_sync(FULL_WARP, total, apart)
        return total

    @cuda.jit(device=True)
    def add_slices(ends, out, first, turn_rows, n):
        """Store the sums over the slices of each team, of rows from ``first`` on, ``turn_rows`` from turn to turn."""
        i = np.int32(cuda.threadIdx.x)
        while i < results:
            team, turn, row = i // of_team, i % of_team // AT_ONCE, i % AT_ONCE
            at, total = first + turn * turn_rows + np.int64(team * AT_ONCE + row), f0
            if at < n:
                for other in range(slices):
                    total += ends[i, other]
                out[at] = total
            i = np.int32(i + threads)

    @cuda.jit(launch_bounds=(threads, 1))
    def kernel(x, w, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=16)  # two views of the same memory
        floats = cuda.shared.array(0, np.float32, alignment=16)
        ends = cuda.shared.array((results, slices), np.float32)
        held, too_much = cuda.local.array((2, 16), np.uint32), cuda.local.array(2, np.float32)
        counts = cuda.local.array(2, np.int32)  # words that the lane copies of a row: none behind the last group
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        slice_, team = np.int32(warp % np.uint32(slices)), np.int32(warp // np.uint32(slices))
        groups, group = np.int32((k + GROUP - 1) // GROUP), np.int32(slice_ * HELD + np.int32(line))
        for part in range(2):
            counts[part] = 4 if group + 8 * part < groups else 0
        first = np.int64(cuda.blockIdx.x) * (teams * AT_ONCE)  # row of the block; of the warp, of the next place:
        coming, turn_rows = first + team * AT_ONCE, np.int64(cuda.gridDim.x) * (teams * AT_ONCE)
        pitch = np.int64(groups) * (GROUP // 8)
        at = coming * pitch + np.int64(slice_ * PIECE) + np.int64(lane) * 4
        at_scale = (coming + np.int64(lane // np.uint32(SCALES // 4))) * groups + np.int64(slice_ * HELD)
        at_scale = at_scale // 4 * 4 + np.int64(lane % np.uint32(SCALES // 4)) * 4
        queue = np.uint32(warp * np.uint32(places * PLACE))
        for number in range(places - 1):
            rows = np.int32(min(max(n - coming, 0), AT_ONCE))
            place = np.uint32(queue + np.uint32(number * PLACE))
            start(words, floats, place, w, at, pitch, counts, rows, scales, at_scale, lane)
            coming, at, at_scale = coming + turn_rows, at + turn_rows * pitch, at_scale + turn_rows * groups
        hold_x(x, held, too_much, group, np.int32(quarter), k)
        diagonal = quarter == line // np.uint32(2)
        now, before = queue, np.uint32(queue + np.uint32((places - 1) * PLACE))
        # The first of four rows begins at a multiple of 16 bytes, also in scales.
        s0 = np.uint32(np.uint32(AT_ONCE * PIECE) + line)
        s1 = np.uint32(s0 + np.uint32(SCALES + groups % 4))
        s2 = np.uint32(s0 + np.uint32(2 * SCALES + 2 * groups % 4))
        s3 = np.uint32(s0 + np.uint32(3 * SCALES + 3 * groups % 4))
        turn, turns = np.int32(0), np.int32((n + turn_rows - 1) // turn_rows)
        while turn < turns:
            kept, end = np.int32(team * of_team), min(np.int32(turn + TURNS), turns)
            while turn < end:
                wait_copies(pending)  # the oldest place is there: what this lane has copied,
                cuda.syncwarp()  # and the scales; and everyone has read those that are overwritten next
                rows = np.int32(min(max(n - coming, 0), AT_ONCE))
                start(words, floats, before, w, at, pitch, counts, rows, scales, at_scale, lane)
                coming, at, at_scale = coming + turn_rows, at + turn_rows * pitch, at_scale + turn_rows * groups
                own, below = np.uint32(now + lane * np.uint32(4)), np.uint32(now + np.uint32(2 * PIECE) + lane * np.uint32(4))
                v0, v1 = multiply(words, floats, own, now + s0, now + s1, held, too_much, counts, line, diagonal)
                v2, v3 = multiply(words, floats, below, now + s2, now + s3, held, too_much, counts, line, diagonal)
                total = sum_of_lanes(v0, v1, v2, v3, lane)
                if lane < AT_ONCE:
                    ends[kept + np.int32(lane), slice_] = total
                before = now
                now = np.uint32(now + np.uint32(PLACE))
                if now == np.uint32(queue + np.uint32(places * PLACE)):
                    now = queue
                turn, kept = np.int32(turn + 1), np.int32(kept + AT_ONCE)
            cuda.syncthreads()
            add_slices(ends, out, first, turn_rows, n)
            cuda.syncthreads()
            first += TURNS * turn_rows

    return kernel


def by_queues(p: Problem, chosen: Queues, most_blocks: int) -> None:
    """The launch of `queued`."""
    n, k = p.w.shape[0], p.x.shape[1]
    given = flat(p.x, np.uint32), flat(p.w, np.uint32), flat(p.scales), flat(p.result), n, k
    grid = min(most_blocks, blocks(n, chosen.teams * AT_ONCE))
    queued_kernel(*chosen)[grid, 32 * chosen.warps, p.stream, chosen.shared](*given)


@functools.lru_cache(4096)
def queues(n: int, k: int, multiprocessors: int, memory: int) -> Queues | None:
    """The queues for n rows of W, or None where the rung before is for them.

    A multiprocessor has one block, whose queues fill its ``memory`` bytes of shared memory. Warps are to have most of
    their 16 groups, and all multiprocessors rows.

    >>> queues(8192, 28672, 132, 228 * 1024)
    Queues(slices=14, teams=1, places=3)
    """
    groups = blocks(k, GROUP)
    slices = blocks(groups, HELD)
    if slices > QUEUES or 4 * groups < 3 * HELD * slices or n < AT_ONCE * multiprocessors:
        return None
    teams = QUEUES // slices
    room = memory - RESERVED - 4 * QUEUES * TURNS * AT_ONCE
    places = min(PLACES, room // (4 * slices * teams * PLACE))
    return Queues(slices, teams, places) if places >= 2 else None


@rung(queued_kernel, staged_kernel, tensor_kernel, vector_kernel, warp_kernel)
def queued(p):
    """A warp keeps its part of x in registers, and rows of W pass by. A lane copies its own weights, and waits for none.

    For more than one row of x, for weights of 8 bits, and for a W that is too small to fill the GPU, this is the rung
    before.

    Source: CUDA C++ programming guide, "Asynchronous data copies"; PTX ISA, "cp.async", for the hint to fetch lines.
    """
    (m, k), n, limits = p.x.shape, p.w.shape[0], device.limits()
    suits = p.bits == 4 and m == 1 and p.x.dtype == np.float16 and whole_vectors(p.x)
    aligned = device.address(p.w) % 16 == 0 and device.address(p.scales) % 16 == 0
    chosen = None
    if suits and aligned and limits["compute_capability"] >= CAPABILITY:
        chosen = queues(n, k, limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"])
    if chosen:
        by_queues(p, chosen, limits["multiprocessors"])
    else:
        staged.launch(p)


LADDER = (thread_per_row, coalesced, vectorised, tensor, staged, queued)
END_OF_FILE
cat > /tmp/int4_job/main.py <<'END_OF_FILE'
import dataclasses, inspect, sys, time
began = time.time()
sys.path.insert(0, "/tmp/int4_job"); sys.path.insert(0, ".")
import numpy as np
import copies, variants
from pmpp import cuda
from pmpp.kernels.quantisation import weight_only as wo
from pmpp.kernels.quantisation import weight_only_workloads as ww
from pmpp.kernels.common import blocks
from pmpp.lab.measure import bench, timing
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from pmpp.runtime.device import empty, to_device
from pmpp.runtime.hopper import tensor_map
from pmpp.runtime.hopper_maps import launch_words

def say(*args): print(f"{time.time() - began:5.1f}", *args, flush=True)
timer = timing.gpu_timer()
stage = bench.stage_of(dataclasses.replace(ww.WORKLOADS[0], rungs=(wo.queued,)), timer)
N, K = ww.DESIGN
LINES = N * K // 256
sets = stage.inputs
say("inputs", len(sets), "l2", timer.l2_bytes)
stamps = to_device(np.zeros((264, 3), np.int64))
counter = to_device(np.zeros(1, np.uint32))
maps = {}
def words_of(w, lines):
    key = device.address(w), lines
    if key not in maps:
        maps[key] = launch_words(tensor_map(wo.flat(w, np.uint16).reshape(LINES, 64), lines, 64))
    return maps[key]
def boxes(lines, pieces, stages, walk, row_lines=112, grid=132):
    kernel, chunks = copies.boxes(lines, pieces, stages, walk), row_lines // lines
    units = LINES // (lines * pieces)
    def call(x, w, scales, out):
        kernel[grid, 32, 0, stages * lines * pieces * 128](words_of(w, lines), units, chunks, row_lines, counter, stamps)
    return call
def asynchronous(warps, turns, kind):
    kernel = copies.asynchronous(warps, turns, kind)
    def call(x, w, scales, out):
        kernel[128, 32 * warps, 0, warps * turns * 2048](wo.flat(w, np.uint32), 224, stamps)
    return call
def loads(each, block=256):
    kernel = copies.loads(each)
    def call(x, w, scales, out):
        kernel[LINES * 8 // each // block, block, 0](wo.flat(w, np.uint32), counter)
    return call
def nothing(grid, block, shared):
    def call(x, w, scales, out):
        copies.nothing[grid, block, 0, shared](stamps)
    return call
def where(title):
    s = stamps.copy_to_host()
    s = s[s[:, 2] > 0]
    t = s - s[:, 0].min()
    q = lambda v: " ".join(f"{int(u):6d}" for u in np.percentile(v, [0, 10, 50, 90, 100]))
    say(f"  {title}: blocks {len(s)}; begin {q(t[:, 0])} | first {q(t[:, 1])} | end {q(t[:, 2])} ns")
def measure(contenders, seconds=0.25):
    rule = timing.Rule(max_seconds=seconds, spread=0.005)
    made = {}
    for name, fn in contenders.items():
        outs = stage.outputs
        made[name] = timing.Contender(fn, [(*i, o) for i, o in zip(sets, outs)], cache="cold", set_bytes=stage.workload.cost.bytes)
    for name, one in made.items():
        stamps.copy_to_device(np.zeros((264, 3), np.int64))
        try:
            r = timing.measure_together({name: one}, timer=timer, rule=rule)[name]
        except BaseException as error:
            r = error
        if isinstance(r, BaseException):
            say(name, "FAILED", repr(r)[:300])
        else:
            say(f"{name:44s} {r.median * 1e6:7.2f} us [{r.low * 1e6:.2f}, {r.high * 1e6:.2f}] batch {r.batch}; W alone {N * K / 2 / r.median / 1e12:.3f} TB/s")
            if stamps.copy_to_host()[0, 2]:
                where("stamps")

# --- the real ones
def stamped(source, marks):
    text = inspect.getsource(source)
    text = text[text.index("def "):]
    for old, new in marks:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    scope = dict(vars(sys.modules[source.__module__]), now_ns=copies.now_ns)
    exec(text, scope)
    return scope[source.__name__]
NOW = "        if cuda.threadIdx.x == 0:\n            stamps[cuda.blockIdx.x, {}] = now_ns()\n"
real = {}
def boxed(x, w, scales, out):
    p = wo.arguments(x, w, scales, out=out); variants.by_boxes(p, 4, 16); return p.result
real["queued"] = wo.queued
real["boxed"] = boxed
real |= variants.EXTRA
try:
    import new_weight_only as nw
    def new_queued(x, w, scales, out):
        return nw.queued(x, w, scales, out=out)
    say("new", nw.queues(N, K, 132, device.limits()["max_shared_memory_per_multiprocessor"]), device.limits())
    real = {"queued": wo.queued, "new_queued": new_queued} | real
except Exception as error:
    say("new", repr(error)[:300])
work = dataclasses.replace(ww.WORKLOADS[0], rungs=())
found, notes = stage.contenders()
say(list(found), notes)
for name, fn in real.items():
    if name != "queued":
        found[name] = stage._contender((lambda f: lambda *args: f(*args[:-1], out=args[-1]))(fn), lambda x: x, None)
again = {"queued again": dataclasses.replace(found["queued"])}
r = timing.measure_together(found | again, timer=timer, rule=timing.Rule(max_seconds=0.5, spread=0.004))
for name, t in r.items():
    if isinstance(t, Exception): say(name, "FAILED", repr(t)[:1500])
    else: say(f"{name:30s} {t.median * 1e6:7.2f} us [{t.low * 1e6:.2f}, {t.high * 1e6:.2f}] batch {t.batch} {wo.cost(1, N, K).bytes / t.median / 1e12:.3f} TB/s; err {t.error:.2g} of {t.tolerance:.2g}")

try:
    q = stamped(wo.queued_kernel.__wrapped__, [
        ("def kernel(x, w, scales, out, n, k):", "def kernel(x, w, scales, out, n, k, stamps):"),
        ("        bring_x(words, x, parts, k)\n        tall", NOW.format(0) + "        bring_x(words, x, parts, k)\n        tall"),
        ("        while eight < eights:", NOW.format(1) + "        while eight < eights:"),
        ("            out[tall + thread] = total\n", "            out[tall + thread] = total\n" + NOW.format(2)),
    ])(4)
    b = stamped(variants.boxed_kernel.__wrapped__, [
        ("def boxed(given, x, scales, out, n, k):", "def boxed(given, x, scales, out, n, k, stamps):"),
        ("        if first:\n            for place in range(TURNS):", NOW.format(0) + "        if first:\n            for place in range(TURNS):"),
        ("        while eight < eights:", NOW.format(1) + "        while eight < eights:"),
        ("            out[tall + thread] = total\n", "            out[tall + thread] = total\n" + NOW.format(2)),
    ])(4)
    c = stamped(variants.pieces_kernel.__wrapped__, [
        ("def pieces(given, x, scales, out, n, k):", "def pieces(given, x, scales, out, n, k, stamps):"),
        ("        if lane == 0:\n            for s in range(stages):", NOW.format(0) + "        if lane == 0:\n            for s in range(stages):"),
        ("        while done < most:\n            in_batch", NOW.format(1) + "        while done < most:\n            in_batch"),
        ("            if done < most:\n                cuda.syncthreads()\n", "            if done < most:\n                cuda.syncthreads()\n" + NOW.format(2)),
    ])(14, 1, 3, 2, 16)
    d = stamped(variants.rows_kernel.__wrapped__, [
        ("def in_rows(x, w, scales, out, n, k):", "def in_rows(x, w, scales, out, n, k, stamps):"),
        ("        for s in range(stages - 1):\n            start(words", NOW.format(0) + "        for s in range(stages - 1):\n            start(words"),
        ("        while done < most:\n            in_batch", NOW.format(1) + "        while done < most:\n            in_batch"),
        ("            if done < most:\n                cuda.syncthreads()\n", "            if done < most:\n                cuda.syncthreads()\n" + NOW.format(2)),
    ])(14, 1, 3)
    flat = wo.flat
    def stamped_rows(x, w, scales, out):
        d[132, 448, 0, 14 * 3 * 4416](flat(x, np.uint32), flat(w, np.uint32), flat(scales), flat(out), N, K, stamps)
    def stamped_sliced(x, w, scales, out):
        given = launch_words(tensor_map(flat(w, np.uint16).reshape(LINES, 64), 8, 64))
        c[132, 448, 0, 14 * 3 * 4352](given, flat(x, np.uint32), flat(scales), flat(out), N, K, stamps)
    def stamped_queued(x, w, scales, out):
        q[128, 512, 0, wo.queued_shared(K)](flat(x, np.uint32), flat(w, np.uint32), flat(scales), flat(out), N, K, stamps)
    def stamped_boxed(x, w, scales, out):
        given = launch_words(tensor_map(flat(w, np.uint16).reshape(N, -1), 16, 64))
        b[128, 512, 0, wo.queued_shared(K)](given, flat(x, np.uint32), flat(scales), flat(out), N, K, stamps)
    measure({"queued, stamped": stamped_queued, "boxed, stamped": stamped_boxed, "pieces 4 rows, stamped": stamped_sliced, "rows, stamped": stamped_rows})
except Exception as error:
    say("stamped", repr(error)[:500])

measure({
    "nothing 132 x 32": nothing(132, 32, 1024),
    "nothing 128 x 512, 190 KiB": nothing(128, 512, 190 * 1024),
    "loads 8 x 256": loads(8),
    "async 16 warps 4 turns eight rows": asynchronous(16, 4, "eight"),
    "async 16 warps 4 turns line": asynchronous(16, 4, "line"),
    "async 16 warps 4 turns row": asynchronous(16, 4, "row"),
    "boxes 16 rows x 512 B, 8 KiB x 16, apart 128": boxes(4, 16, 16, "apart", grid=128),
    "boxes 16 rows x 512 B, 8 KiB x 16, apart": boxes(4, 16, 16, "apart"),
    "boxes 16 rows x 512 B, 8 KiB x 8, apart": boxes(4, 16, 8, "apart"),
    "boxes 16 rows x 512 B, 8 KiB x 16, together": boxes(4, 16, 16, "together"),
    "boxes 16 rows x 2 KiB, 32 KiB x 4, apart": boxes(16, 16, 4, "apart"),
    "boxes contiguous 8 KiB x 16, apart": boxes(64, 1, 16, "apart", 64),
    "boxes contiguous 8 KiB x 16, together": boxes(64, 1, 16, "together", 64),
    "boxes contiguous 32 KiB x 6, apart": boxes(256, 1, 6, "apart", 256),
    "boxes contiguous 32 KiB x 6, queue": boxes(256, 1, 6, "queue", 256),
    "boxes contiguous 32 KiB x 3, 264 queue": boxes(256, 1, 3, "queue", 256, 264),
})
say("done")
END_OF_FILE
python3 -u /tmp/int4_job/main.py 2>&1 | tee $OUT/table.txt
