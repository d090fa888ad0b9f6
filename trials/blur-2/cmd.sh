# seconds: 40
# gpus: 1
export TRIAL=$(mktemp -d)
cat > $TRIAL/trial.py <<'EOF_FILE'
import sys, time, os
t0 = time.time()
sys.path.insert(0, os.environ["TRIAL"])
import numpy as np
import rings5 as R
from pmpp.kernels.images import blur
from pmpp.runtime import device
from pmpp.lab.measure import timing
from pmpp.lab.measure.arrays import view
import cupy
SIDE, RAD = 16384, 8
host = np.frombuffer(np.random.default_rng(5).bytes(SIDE * SIDE), np.uint8).reshape(SIDE, SIDE)
def dev(a): return device.as_input("x", a, dtypes=("uint8",), ndim=2, stream=0)
sets = [(dev(host), device.empty((SIDE, SIDE), np.uint8))]
second = device.empty((SIDE, SIDE), np.uint8)
view(second)[:] = cupy.roll(view(sets[0][0]), 1, 0)
sets.append((second, device.empty((SIDE, SIDE), np.uint8)))
for x, out in sets: blur.fused(x, RAD, out=out)
expected = [view(out).copy() for _, out in sets]
print(f"ready at {time.time()-t0:.1f} s", flush=True)
at = {int(view(x).data.ptr): k for k, (x, _) in enumerate(sets)}
def check(result, x, out):
    return float(int(cupy.count_nonzero(view(out) != expected[at[int(view(x).data.ptr)]]))), 0.0
def poison(x, out): view(out).fill(77)
def by(**kw):
    def go(x, out):
        R.launch(x, out, RAD, **kw); return out
    return go
timer = timing.gpu_timer()
def one(name, fn, checked=True):
    try:
        t = timing.measure(fn, sets, timer=timer, check=check if checked else None, poison=poison, set_bytes=2 * SIDE * SIDE, max_seconds=0.08, min_repeats=7)
        print(f"{name:58} {t.median*1e6:8.1f} us  [{t.low*1e6:.1f} {t.high*1e6:.1f}]  at {time.time()-t0:.1f} s", flush=True)
    except Exception as error:
        print(f"{name:58} {type(error).__name__}: {str(error)[:150]}", flush=True)
fused = lambda x, out: blur.fused(x, RAD, out=out)
one("cupy copy", lambda x, out: cupy.copyto(view(out), view(x)), False)
one("fused", fused)
def sweep(deeps, **kw):
    for deep in deeps: one(" ".join(f"{k}={v}" for k, v in kw.items()) + f" deep={deep}", by(deep=deep, **kw))
def production(label, deeps):
    for deep in deeps:
        blur.TILE = deep
        one(f"{label} TILE {deep}", lambda x, out: blur.ring_buffer(x, RAD, out=out))
production("ring_buffer, 30 lanes", (16, 24, 32, 48, 64, 96, 128))
blur.USEFUL = 28; blur.ring_for.cache_clear()
production("ring_buffer, 28 lanes", (16, 24, 32, 48, 64, 96, 128))
blur.USEFUL = 30; blur.ring_for.cache_clear(); blur.WARPS = 4
production("ring_buffer, 30 lanes, 4 warps", (24, 32, 48, 64))
blur.WARPS = 2
sweep((24, 32, 48, 64, 96), kind="tile", warps=2, useful=30)
sweep((24, 32, 48, 64, 96), kind="tile", warps=2, useful=28)
sweep((24, 32, 48, 64, 96), kind="tile", warps=2, useful=30, off=1)
sweep((32, 48), kind="tile", warps=2, useful=28, turn=0)
sweep((32, 48), kind="tile", warps=2, useful=30, turn=0)
sweep((24, 32, 48, 64, 96), kind="patch", warps=2, regs=80, useful=30)
sweep((32, 48, 64), kind="patch", warps=2, regs=80, useful=28)
one("fused", fused)
sweep((24, 32, 48), kind="tile", warps=1, useful=30)
sweep((48, 64, 96), kind="ring2", warps=2, useful=30)
one("fused", fused)
one("cupy copy", lambda x, out: cupy.copyto(view(out), view(x)), False)
EOF_FILE
cat > $TRIAL/prof.py <<'EOF_FILE'
import sys, os
sys.path.insert(0, os.environ["TRIAL"])
import numpy as np
from pmpp.kernels.images import blur
from pmpp.runtime import device
x, out = device.empty((16384, 16384), np.uint8), device.empty((16384, 16384), np.uint8)
for lanes in (30, 28):
    blur.USEFUL = lanes; blur.ring_for.cache_clear()
    for blur.TILE in (32, 64): blur.ring_buffer(x, 8, out=out)
EOF_FILE
cat > $TRIAL/rings5.py <<'EOF_FILE'
"""Variants of a blur that keeps its rows in shared memory: cp.async ring ("ring") and registers two rows ahead ("pair")."""
import functools
import numpy as np
from pmpp import cuda
from pmpp.kernels.images.blur import (NONE, EACH, HALF, PLACES, EVEN, ODD, LIFT, LARGE_BITS, lower, upper, sum_at, two_sums_at,
    rounded, share_of, four_bytes, covered, useful_lanes)
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime.vector import load128, store128
from pmpp.runtime.matrix import copy_async, commit_copies, wait_copies
from pmpp.runtime import device

SIGN = 2**31
ROW = 128  # words of a warp's row


@functools.lru_cache(maxsize=64)
def made(radius, kind="ring", ahead=4, warps=4, parts="all", mean="fma", pack="imad", cancel="shift", regs=0):
    slots = 2 * radius + 1 + {"ring": ahead, "pair": 1, "patch": 1, "ring2": ahead + 1, "tile": ahead + 1}[kind]
    ring_words, warp_words = warps * slots * ROW, slots * ROW
    enter, leave = (radius + 1) // HALF, -radius // HALF
    entering, leaving = (radius + EACH - 1) // HALF + 1 - enter, (EACH - 2 - radius) // HALF + 1 - leave
    whole, whole_end, left, right = -(radius // HALF), (radius + 1) // HALF, radius % HALF, (radius + 1) % HALF
    enter_words, leave_words, first_left = 4 * entering, 4 * leaving, -radius % HALF
    count = (2 * radius + 1) ** 2
    whole_share = np.nextafter(np.float32(1) / np.float32(count), np.float32(1))
    vertical, horizontal = parts in ("all", "sums", "vertical"), parts in ("all", "sums")
    full = 2 * radius + 1
    share_count = full + 1
    factor = np.uint32(-(-2**24 // count))
    by_integer = mean == "integer"
    later = ahead // 2 - 1 if kind in ("ring2", "tile") else ahead - 1
    walked, pairs = 2 * radius, ahead // 2
    assert not by_integer or 510 * count * (int(factor) * count - 2**24) < 2**24
    # how often LIFT is in window j
    lifts = tuple(j // 4 * 2 + min(j % 4, 2) for j in range(EACH))
    start = 0 if by_integer else LARGE_BITS
    unlift = 0 if by_integer else LIFT
    halves = tuple(np.uint32((2**23 - n * LIFT * int(factor)) % 2**32) for n in lifts)
    floats_less = tuple(np.int32(LARGE_BITS - n * LIFT) for n in lifts)

    @cuda.jit(device=True)
    def two_bytes(word, which):
        return np.uint32(cuda.libdevice.byte_perm(np.int32(word), np.int32(0), which))

    @cuda.jit(device=True)
    def from_lane(value, half):
        away = half // 2
        if away > 0:
            return cuda.shfl_down_sync(FULL_WARP, value, away)
        if away < 0:
            return cuda.shfl_up_sync(FULL_WARP, value, -away)
        return value

    coarse = np.float32(int(factor) / 2**24)
    addends = tuple(np.float32(2**23 - int(factor) / 2 + (181 if pack == "imad" and j % 4 == 3 else 0)) for j in range(EACH))
    if mean == "fma":
        assert 510 * count * (int(factor) * count - 2**24) < 2**24

        @cuda.jit(device=True)
        def mean_of(total, j):
            return cuda.libdevice.float_as_int(cuda.libdevice.fmaf_rn(cuda.libdevice.int_as_float(total), coarse, addends[j]))

        @cuda.jit(device=True)
        def edge_mean_of(total, share, j):
            mean = rounded(total, share)
            return np.int32(mean + 181) if pack == "imad" and j % 4 == 3 else mean

        if pack == "imad":
            @cuda.jit(device=True)
            def packed(a, b, c, d, base):
                return np.int32(np.int32(np.int32(np.int32(np.int32(d * base) + c) * base) + b) * base + a)
        else:
            @cuda.jit(device=True)
            def packed(a, b, c, d, base):
                return four_bytes(a, b, c, d)
    elif by_integer:
        @cuda.jit(device=True)
        def mean_of(total, j):
            return np.int32(np.uint32(total) * factor + halves[j])

        @cuda.jit(device=True)
        def edge_mean_of(total, share, j):
            return np.int32(rounded(np.int32(total + floats_less[j]), share) << 24)

        @cuda.jit(device=True)
        def packed(a, b, c, d, base):
            left, right = cuda.libdevice.byte_perm(a, b, np.int32(0x0073)), cuda.libdevice.byte_perm(c, d, np.int32(0x0073))
            return np.int32(cuda.libdevice.byte_perm(left, right, np.int32(0x5410)))
    else:
        @cuda.jit(device=True)
        def mean_of(total, j):
            return rounded(total, whole_share)

        @cuda.jit(device=True)
        def edge_mean_of(total, share, j):
            return rounded(total, share)

        @cuda.jit(device=True)
        def packed(a, b, c, d, base):
            return four_bytes(a, b, c, d)

    @cuda.jit(device=True)
    def update(sums, new, old, even, odd):
        for k in range(4):
            sums[2 * k] = np.uint32(sums[2 * k] + two_bytes(new[k], even) - two_bytes(old[k], EVEN))
            sums[2 * k + 1] = np.uint32(sums[2 * k + 1] + two_bytes(new[k], odd) - two_bytes(old[k], ODD))

    @cuda.jit(device=True)
    def update_all(sums, new, old):
        for k in range(4):
            sums[2 * k] = np.uint32(sums[2 * k] + two_bytes(new[k], EVEN) - two_bytes(old[k], EVEN))
            sums[2 * k + 1] = np.uint32(sums[2 * k + 1] + two_bytes(new[k], ODD) - two_bytes(old[k], ODD))

    @cuda.jit(device=True)
    def emit(out, here, writes, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, row, h, w, shares_of, base):
        square, sign = np.int32(base * base), np.int32(base << 23)
        for k in range(2):
            both = np.uint32(sums[4 * k] + sums[4 * k + 1] + sums[4 * k + 2] + sums[4 * k + 3])
            totals[k] = lower(both) + upper(both)
        for i in range(enter_words):
            half = enter + i // 4
            enters[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
        for i in range(leave_words):
            half = leave + i // 4
            leaves[i] = from_lane(np.int32(sums[half % 2 * 4 + i % 4]), half)
        total = np.int32(start)
        for half in range(whole, whole_end):
            total = np.int32(total + from_lane(totals[half % 2], half))
        for k in range(left):
            total = np.int32(total + sum_at(leaves, first_left + k))
        for k in range(right):
            total = np.int32(total + sum_at(enters, k))
        window[0] = total
        for j in range(0, EACH, 4):
            enter_one, leave_one = right + j, first_left + j
            one = two_sums_at(enters, enter_words, enter_one) - two_sums_at(leaves, leave_words, leave_one) + LIFT
            other = two_sums_at(enters, enter_words, enter_one + 1)
            if cancel == "shift":
                other = other - two_sums_at(leaves, leave_words, leave_one + 1) + LIFT
                window[j + 1] = np.int32(window[j] + (np.int32(np.int32(one) * square + sign) >> 16))
                window[j + 2] = np.int32(window[j + 1] + (np.int32(np.int32(other) * square + sign) >> 16))
                window[j + 3] = np.int32(window[j + 2] + (np.int32(one) >> 16))
                window[j + 4] = np.int32(window[j + 3] + (np.int32(other) >> 16))
            elif cancel:
                other = two_sums_at(leaves, leave_words, leave_one + 1) - other + LIFT
                lifted = np.int32(window[j] + lower(one))
                window[j + 1] = np.int32(lifted - LIFT)
                window[j + 2] = np.int32(lifted - lower(other))
                window[j + 3] = np.int32(window[j + 2] + (np.int32(one) >> 16))
                window[j + 4] = np.int32(window[j + 3] - (np.int32(other) >> 16))
            else:
                other = other - two_sums_at(leaves, leave_words, leave_one + 1) + LIFT
                window[j + 1] = np.int32(window[j] + lower(one) - unlift)
                window[j + 2] = np.int32(window[j + 1] + lower(other) - unlift)
                window[j + 3] = np.int32(window[j + 2] + (np.int32(one) >> 16))
                window[j + 4] = np.int32(window[j + 3] + (np.int32(other) >> 16))
        for j in range(EACH):
            means[j] = mean_of(window[j], j)
        # By the side of the image, and near its first and last row, windows have fewer pixels.
        if at_side or row < radius or np.int32(row + radius) >= h:
            rows = np.int32(min(np.int32(row + radius + 1), h) - max(np.int32(row - radius), np.int32(0)))
            if rows != shares_of:
                cuda.syncwarp()
                k = lane
                while k < share_count:
                    shares[own, k] = share_of(np.int32(rows * max(k, np.int32(1))))
                    k = np.int32(k + 32)
                cuda.syncwarp()
            shares_of = rows
            # min(row, 0) is 0
            edge = np.int32(column + min(np.int32(row), np.int32(0)))
            for j in range(EACH):
                stop = min(np.int32(edge + j + radius + 1), w)
                columns = np.int32(stop - max(np.int32(edge + j - radius), np.int32(0)))
                means[j] = edge_mean_of(window[j], shares[own, max(columns, np.int32(0))], j)
        for k in range(4):
            means[k] = packed(means[4 * k], means[4 * k + 1], means[4 * k + 2], means[4 * k + 3], base)
        if writes:
            store128(out, here, (means[0], means[1], means[2], means[3]))
        return shares_of

    @cuda.jit(device=True)
    def emit_sums(out, here, writes, sums):
        if writes:
            store128(out, here, (sums[0] + (sums[1] << 16), sums[2] + (sums[3] << 16), sums[4] + (sums[5] << 16), sums[6] + (sums[7] << 16)))

    @cuda.jit(device=True)
    def loaded_if(there, x, at, otherwise):
        if there:
            return load128(x, at)
        return otherwise

    jit = cuda.jit(max_registers=regs) if regs else cuda.jit

    @jit
    def pair_kernel(x, out, h, words, across, deep, base, useful, off, turn):
        # deep even. rows come in pairs; `slots` = 2 r + 2
        ring = cuda.shared.array(ring_words, np.uint32)
        shares = cuda.shared.array((warps, share_count), np.float32)  # by the columns of a window
        sums = cuda.local.array(8, np.uint32)
        totals = cuda.local.array(2, np.int32)
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, own = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y)
        warp = np.int32(cuda.blockIdx.x * cuda.blockDim.y + own)
        strip = np.int32(warp // across)
        w, first = np.int32(4 * words), np.int32(strip * deep)
        beside = np.int32((32 - useful) // 2)
        column = np.int32(EACH * ((warp - strip * across) * useful + lane - beside - off))
        inside = column >= 0 and column < w
        # of the warp: all its lanes go the same way
        at_side = column - EACH * lane < radius or np.int32(column - EACH * lane + 32 * EACH + radius) > w
        writes = inside and lane >= beside and lane < 32 - beside
        mine = np.int32(own * warp_words + 4 * lane)
        end = np.int32(mine + warp_words)
        shares_of = np.int32(0)
        for k in range(8):
            sums[k] = 0
        for k in range(0, slots):
            store128(ring, np.int32(mine + ROW * k), (0, 0, 0, 0))
        last = min(np.int32(first + deep), h)
        up = turn != 0 and strip % 2 == 1
        step, stride = (np.int32(-1), -words) if up else (np.int32(1), words)
        lowest = max(np.int32(first - radius), np.int32(0))
        there = np.uint32(max(np.int32(min(np.int32(last + radius), h) - lowest), np.int32(0)) if inside else np.int32(0))
        start_row = np.int32(last - 1) if up else first
        coming = np.int32(start_row - step * radius)
        coming_at = np.int64(coming) * words + column // 4
        coming = np.int32(coming - lowest)  # from here on counted from the first row that is needed
        row = np.int32(start_row - 2 * step * radius)
        here = np.int64(start_row) * words + column // 4
        left_rows = np.int32(last - first)
        todo = np.int32(left_rows + 2 * radius)
        none = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
        one = loaded_if(np.uint32(coming) < there, x, coming_at, none)
        other = loaded_if(np.uint32(coming + step) < there, x, coming_at + stride, none)
        coming = np.int32(coming + 2 * step)
        coming_at += 2 * stride
        at = mine  # slots = 2 r + 2: after the slot of the row that enters comes that of the row that leaves
        while todo > 0:
            seen = np.uint32(row + step * radius) < np.uint32(h)
            store128(ring, at, one)
            update(sums, one, load128(ring, np.int32(at + ROW)), EVEN if seen else NONE, ODD if seen else NONE)
            one = loaded_if(np.uint32(coming) < there, x, coming_at, one)
            coming_at += stride
            coming = np.int32(coming + step)
            next_at = np.int32(at + 2 * ROW)
            if next_at == end:
                next_at = mine
            seen = np.uint32(row + step * (radius + 1)) < np.uint32(h)
            store128(ring, np.int32(at + ROW), other)
            if todo <= left_rows:
                shares_of = emit(out, here, writes, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, row, h, w, shares_of, base)
                here += stride
                update(sums, other, load128(ring, next_at), EVEN if seen else NONE, ODD if seen else NONE)
                other = loaded_if(np.uint32(coming) < there, x, coming_at, other)
                shares_of = emit(out, here, writes and todo > 1, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, np.int32(row + step), h, w, shares_of, base)
                here += stride
            else:
                update(sums, other, load128(ring, next_at), EVEN if seen else NONE, ODD if seen else NONE)
                other = loaded_if(np.uint32(coming) < there, x, coming_at, other)
            coming_at += stride
            coming = np.int32(coming + step)
            at = next_at
            row = np.int32(row + 2 * step)
            todo = np.int32(todo - 2)

    @jit
    def patch_kernel(x, out, h, words, across, deep, base, useful, off, turn):
        # deep even. rows come in pairs; `slots` = 2 r + 2
        ring = cuda.shared.array(ring_words, np.uint32)
        shares = cuda.shared.array((warps, share_count), np.float32)  # by the columns of a window
        sums = cuda.local.array(8, np.uint32)
        totals = cuda.local.array(2, np.int32)
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, own = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y)
        warp = np.int32(cuda.blockIdx.x * cuda.blockDim.y + own)
        strip = np.int32(warp // across)
        w, first = np.int32(4 * words), np.int32(strip * deep)
        beside = np.int32((32 - useful) // 2)
        column = np.int32(EACH * ((warp - strip * across) * useful + lane - beside - off))
        inside = column >= 0 and column < w
        # of the warp: all its lanes go the same way
        at_side = column - EACH * lane < radius or np.int32(column - EACH * lane + 32 * EACH + radius) > w
        writes = inside and lane >= beside and lane < 32 - beside
        mine = np.int32(own * warp_words + 4 * lane)
        end = np.int32(mine + warp_words)
        shares_of = np.int32(0)
        for k in range(8):
            sums[k] = 0
        store128(ring, np.int32(end - ROW), (0, 0, 0, 0))
        last = min(np.int32(first + deep), h)
        up = turn != 0 and strip % 2 == 1
        step, stride = (np.int32(-1), -words) if up else (np.int32(1), words)
        lowest = max(np.int32(first - radius), np.int32(0))
        there = np.uint32(max(np.int32(min(np.int32(last + radius), h) - lowest), np.int32(0)) if inside else np.int32(0))
        start_row = np.int32(last - 1) if up else first
        coming = np.int32(start_row - step * radius)
        coming_at = np.int64(coming) * words + column // 4
        coming = np.int32(coming - lowest)  # from here on counted from the first row that is needed
        row = start_row
        here = np.int64(start_row) * words + column // 4
        left_rows = np.int32(last - first)
        todo = left_rows
        none = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
        for k in range(walked):
            copy_async(ring, np.int32(mine + ROW * k), x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming = np.int32(coming + step)
            coming_at += stride
        commit_copies()
        one = loaded_if(np.uint32(coming) < there, x, coming_at, none)
        other = loaded_if(np.uint32(coming + step) < there, x, coming_at + stride, none)
        coming = np.int32(coming + 2 * step)
        coming_at += 2 * stride
        at = np.int32(mine + ROW * walked)
        wait_copies(0)
        for k in range(radius):
            early, later_one = load128(ring, np.int32(mine + 2 * ROW * k)), load128(ring, np.int32(mine + 2 * ROW * k + ROW))
            for j in range(4):
                sums[2 * j] = np.uint32(sums[2 * j] + two_bytes(early[j], EVEN) + two_bytes(later_one[j], EVEN))
                sums[2 * j + 1] = np.uint32(sums[2 * j + 1] + two_bytes(early[j], ODD) + two_bytes(later_one[j], ODD))
        while todo > 0:
            seen = np.uint32(row + step * radius) < np.uint32(h)
            store128(ring, at, one)
            update(sums, one, load128(ring, np.int32(at + ROW)), EVEN if seen else NONE, ODD if seen else NONE)
            one = loaded_if(np.uint32(coming) < there, x, coming_at, one)
            coming_at += stride
            coming = np.int32(coming + step)
            next_at = np.int32(at + 2 * ROW)
            if next_at == end:
                next_at = mine
            seen = np.uint32(row + step * (radius + 1)) < np.uint32(h)
            store128(ring, np.int32(at + ROW), other)
            shares_of = emit(out, here, writes, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, row, h, w, shares_of, base)
            here += stride
            update(sums, other, load128(ring, next_at), EVEN if seen else NONE, ODD if seen else NONE)
            other = loaded_if(np.uint32(coming) < there, x, coming_at, other)
            shares_of = emit(out, here, writes and todo > 1, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, np.int32(row + step), h, w, shares_of, base)
            here += stride
            coming_at += stride
            coming = np.int32(coming + step)
            at = next_at
            row = np.int32(row + 2 * step)
            todo = np.int32(todo - 2)

    @jit
    def ring2_kernel(x, out, h, words, across, deep, base, useful, off, turn):
        ring = cuda.shared.array(ring_words, np.uint32)
        shares = cuda.shared.array((warps, share_count), np.float32)  # by the columns of a window
        sums = cuda.local.array(8, np.uint32)
        totals = cuda.local.array(2, np.int32)
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, own = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y)
        warp = np.int32(cuda.blockIdx.x * cuda.blockDim.y + own)
        strip = np.int32(warp // across)
        w, first = np.int32(4 * words), np.int32(strip * deep)
        beside = np.int32((32 - useful) // 2)
        column = np.int32(EACH * ((warp - strip * across) * useful + lane - beside - off))
        inside = column >= 0 and column < w
        # of the warp: all its lanes go the same way
        at_side = column - EACH * lane < radius or np.int32(column - EACH * lane + 32 * EACH + radius) > w
        writes = inside and lane >= beside and lane < 32 - beside
        mine = np.int32(own * warp_words + 4 * lane)
        end = np.int32(mine + warp_words)
        shares_of = np.int32(0)
        for k in range(8):
            sums[k] = 0
        for k in range(ahead, slots):
            store128(ring, np.int32(mine + ROW * k), (0, 0, 0, 0))
        last = min(np.int32(first + deep), h)
        up = turn != 0 and strip % 2 == 1
        step, stride = (np.int32(-1), -words) if up else (np.int32(1), words)
        lowest = max(np.int32(first - radius), np.int32(0))
        there = np.uint32(max(np.int32(min(np.int32(last + radius), h) - lowest), np.int32(0)) if inside else np.int32(0))
        start_row = np.int32(last - 1) if up else first
        coming = np.int32(start_row - step * radius)
        coming_at = np.int64(coming) * words + column // 4
        coming = np.int32(coming - lowest)  # from here on counted from the first row that is needed
        row = np.int32(start_row - 2 * step * radius)
        here = np.int64(start_row) * words + column // 4
        left_rows = np.int32(last - first)
        todo = np.int32(left_rows + 2 * radius)
        for k in range(ahead):
            copy_async(ring, np.int32(mine + ROW * k), x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            if k % 2 == 1:
                commit_copies()
        new_at, free_at = mine, np.int32(mine + ROW * ahead)
        while todo > 0:
            wait_copies(later)
            update_all(sums, load128(ring, new_at), load128(ring, np.int32(free_at + ROW)))
            old_at = np.int32(free_at + 2 * ROW)
            if old_at == end:
                old_at = mine
            if todo <= left_rows:
                shares_of = emit(out, here, writes, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, row, h, w, shares_of, base)
                update_all(sums, load128(ring, np.int32(new_at + ROW)), load128(ring, old_at))
                here += stride
                shares_of = emit(out, here, writes and todo > 1, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, np.int32(row + step), h, w, shares_of, base)
                here += stride
            else:
                update_all(sums, load128(ring, np.int32(new_at + ROW)), load128(ring, old_at))
            copy_async(ring, free_at, x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            copy_async(ring, np.int32(free_at + ROW), x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            commit_copies()
            free_at = old_at
            new_at = np.int32(new_at + 2 * ROW)
            if new_at == end:
                new_at = mine
            row = np.int32(row + 2 * step)
            todo = np.int32(todo - 2)

    @jit
    def tile_kernel(x, out, h, words, across, deep, base, useful, off, turn):
        ring = cuda.shared.array(ring_words, np.uint32)
        shares = cuda.shared.array((warps, share_count), np.float32)  # by the columns of a window
        sums = cuda.local.array(8, np.uint32)
        totals = cuda.local.array(2, np.int32)
        enters, leaves = cuda.local.array(enter_words, np.int32), cuda.local.array(leave_words, np.int32)
        window, means = cuda.local.array(PLACES, np.int32), cuda.local.array(EACH, np.int32)
        lane, own = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y)
        warp = np.int32(cuda.blockIdx.x * cuda.blockDim.y + own)
        strip = np.int32(warp // across)
        w, first = np.int32(4 * words), np.int32(strip * deep)
        beside = np.int32((32 - useful) // 2)
        column = np.int32(EACH * ((warp - strip * across) * useful + lane - beside - off))
        inside = column >= 0 and column < w
        # of the warp: all its lanes go the same way
        at_side = column - EACH * lane < radius or np.int32(column - EACH * lane + 32 * EACH + radius) > w
        writes = inside and lane >= beside and lane < 32 - beside
        mine = np.int32(own * warp_words + 4 * lane)
        end = np.int32(mine + warp_words)
        shares_of = np.int32(0)
        for k in range(8):
            sums[k] = 0
        store128(ring, np.int32(end - ROW), (0, 0, 0, 0))
        last = min(np.int32(first + deep), h)
        up = turn != 0 and strip % 2 == 1
        step, stride = (np.int32(-1), -words) if up else (np.int32(1), words)
        lowest = max(np.int32(first - radius), np.int32(0))
        there = np.uint32(max(np.int32(min(np.int32(last + radius), h) - lowest), np.int32(0)) if inside else np.int32(0))
        start_row = np.int32(last - 1) if up else first
        coming = np.int32(start_row - step * radius)
        coming_at = np.int64(coming) * words + column // 4
        coming = np.int32(coming - lowest)  # from here on counted from the first row that is needed
        row = start_row
        here = np.int64(start_row) * words + column // 4
        left_rows = np.int32(last - first)
        todo = left_rows
        for k in range(walked + ahead):
            copy_async(ring, np.int32(mine + ROW * k), x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            if k >= walked - 1 and k % 2 == 1:
                commit_copies()
        wait_copies(pairs)
        for k in range(radius):
            one, other = load128(ring, np.int32(mine + 2 * ROW * k)), load128(ring, np.int32(mine + 2 * ROW * k + ROW))
            for j in range(4):
                sums[2 * j] = np.uint32(sums[2 * j] + two_bytes(one[j], EVEN) + two_bytes(other[j], EVEN))
                sums[2 * j + 1] = np.uint32(sums[2 * j + 1] + two_bytes(one[j], ODD) + two_bytes(other[j], ODD))
        new_at, free_at = np.int32(mine + ROW * walked), np.int32(end - 2 * ROW)
        while todo > 0:
            wait_copies(later)
            update_all(sums, load128(ring, new_at), load128(ring, np.int32(free_at + ROW)))
            old_at = np.int32(free_at + 2 * ROW)
            if old_at == end:
                old_at = mine
            shares_of = emit(out, here, writes, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, row, h, w, shares_of, base)
            here += stride
            update_all(sums, load128(ring, np.int32(new_at + ROW)), load128(ring, old_at))
            shares_of = emit(out, here, writes and todo > 1, sums, totals, enters, leaves, window, means, shares, own, lane, column, at_side, np.int32(row + step), h, w, shares_of, base)
            here += stride
            copy_async(ring, free_at, x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            copy_async(ring, np.int32(free_at + ROW), x, coming_at, np.int32(4) if np.uint32(coming) < there else np.int32(0))
            coming_at += stride
            coming = np.int32(coming + step)
            commit_copies()
            free_at = old_at
            new_at = np.int32(new_at + 2 * ROW)
            if new_at == end:
                new_at = mine
            row = np.int32(row + 2 * step)
            todo = np.int32(todo - 2)

    return {"pair": pair_kernel, "ring2": ring2_kernel, "tile": tile_kernel, "patch": patch_kernel}[kind]


def launch(x, out, radius, kind="ring", ahead=4, warps=4, parts="all", mean="fma", pack="imad", cancel="shift", useful=0, turn=1, off=0, regs=0, deep=0, waves=1, per_sm=16, stream=0):
    h, w = x.shape
    kernel = made(radius, kind, ahead, warps, parts, mean, pack, cancel, regs)
    useful = useful or useful_lanes(radius)
    across = blocks(w // EACH + off, useful)
    strips = max(int(waves * per_sm * device.limits()["multiprocessors"]) // across, 1)
    deep = deep or max(blocks(h, strips), 8)
    deep += deep % 2
    x, out = x.view(np.uint32), out.view(np.uint32)
    grid = blocks(across * blocks(h, deep), warps)
    kernel[grid, (32, warps), device.as_stream(stream)](x, out, np.int32(h), np.int64(w // 4), np.int32(across), np.int32(deep), np.int32(256), np.int32(useful), np.int32(off), np.int32(turn))
EOF_FILE
export PYTHONPATH=$PWD
unset PMPP_BACKEND
timeout 28 python3 $TRIAL/trial.py > $OUT/table.txt 2>&1; cat $OUT/table.txt
timeout 11 ncu --clock-control none -k 'regex:ring_kernel' --metrics smsp__inst_executed.sum,sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active,smsp__issue_active.avg.pct_of_peak_sustained_active,dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_read.sum,lts__t_sectors_op_write.sum,lts__throughput.avg.pct_of_peak_sustained_elapsed,sm__cycles_active.avg,sm__cycles_elapsed.max,gpu__time_duration.sum,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio,sm__warps_active.avg.per_cycle_active python3 $TRIAL/prof.py > $OUT/ncu.txt 2>&1; tail -3 $OUT/ncu.txt
