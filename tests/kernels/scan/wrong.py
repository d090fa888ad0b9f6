"""Wrong scans. Wrong answers to the exercises of chapter 34 are in tests/kernels/scan/answers.py."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.reduction import SUM, combine
from pmpp.kernels.scan import BLOCK, OPERATORS, add_kernel, identity_of, kogge_stone_kernel, words_for
from pmpp.kernels.scan.look_back import COMPLETE, NOTHING, PARTIAL, look_back, next_tile, publish, warp_combine_back
from pmpp.kernels.scan.tile import scan_block
from pmpp.runtime import device
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

SLOTS = BLOCK // 32 + 1


def scanner(kernel, name="", identity=identity_of, narrow=False):
    """``kernel(x, out, totals, op, identity, exclusive)`` as a function of (x, op): the kernel scans blocks by
    themselves, NumPy scans their totals, and a launch adds them up.

    ``identity`` gives the identity; ``narrow`` keeps totals in 32 bits. Both are right if left alone.
    """

    def scan(x, op="sum", *, exclusive=False):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out, grid = device.to_device(np.zeros(x.size, x.dtype)), blocks(x.size, BLOCK)
        if not grid:
            return out
        start = identity(op, x.dtype)
        totals = device.to_device(np.full(grid, start, x.dtype))
        kernel[grid, BLOCK](x, out, totals, OPERATORS[op], start, exclusive)
        with np.errstate(all="ignore"):
            ends = totals.copy_to_host()
            ends = ends.astype({"f": np.float32, "i": np.int32}[x.dtype.kind]).astype(x.dtype) if narrow else ends
            ufunc = {"sum": np.add, "max": np.maximum}[op]
            before = np.r_[identity_of(op, x.dtype), ufunc.accumulate(ends, dtype=x.dtype)[:-1]].astype(x.dtype)
        add_kernel[grid, BLOCK](out, out, device.to_device(before), OPERATORS[op], BLOCK)
        return out

    scan.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return scan


def steps(loop):
    """A scan of blocks by `kogge_stone`'s kernel, with another loop between its first barrier and its last lines."""

    @cuda.jit
    def kernel(x, out, totals, op, identity, exclusive):
        thread, i = cuda.threadIdx.x, cuda.grid(1)
        scanned = cuda.shared.array(BLOCK, out.dtype)
        scanned[thread] = x[i] if i < x.size else identity
        cuda.syncthreads()
        loop(op, scanned)
        if i < x.size:
            if exclusive:
                out[i] = scanned[thread - 1] if thread > 0 else identity
            else:
                out[i] = scanned[thread]
        if thread == BLOCK - 1:
            totals[cuda.blockIdx.x] = scanned[thread]

    return scanner(kernel, loop.py_func.__name__)


@cuda.jit(device=True)
def no_barrier_between_read_and_write(op, scanned):
    """The scan that many a tutorial prints: some threads write before others have read."""
    thread, distance = cuda.threadIdx.x, 1
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance:
            value = combine(op, scanned[thread - distance], value)
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2


@cuda.jit(device=True)
def no_barrier_after_the_write(op, scanned):
    thread, distance = cuda.threadIdx.x, 1
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance:
            value = combine(op, scanned[thread - distance], value)
        cuda.syncthreads()
        scanned[thread] = value
        distance *= 2
    cuda.syncthreads()


@cuda.jit(device=True)
def a_barrier_for_some(op, scanned):
    thread, distance = cuda.threadIdx.x, 1
    while distance < BLOCK:
        if thread >= distance:
            value = combine(op, scanned[thread - distance], scanned[thread])
            cuda.syncthreads()
            scanned[thread] = value
        cuda.syncthreads()
        distance *= 2


@cuda.jit(device=True)
def without_the_way_down(op, scanned):
    """Brent and Kung's tree, up only: right in elements 0, 1, 3, 7, ... and in the total."""
    thread, distance = cuda.threadIdx.x, 1
    while distance < BLOCK:
        last = (thread + 1) * 2 * distance - 1
        if last < BLOCK:
            scanned[last] = combine(op, scanned[last - distance], scanned[last])
        cuda.syncthreads()
        distance *= 2


@cuda.jit(device=True)
def loses_nan(op, scanned):
    thread, distance = cuda.threadIdx.x, 1
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance:
            earlier = scanned[thread - distance]
            if op == SUM:
                value = earlier + value
            elif earlier > value:
                value = earlier
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2


@cuda.jit
def no_guard(x, out, totals, op, identity, exclusive):
    value, total = scan_block(op, identity, x[cuda.grid(1)], cuda.shared.array(SLOTS, out.dtype))
    i = cuda.grid(1)
    if i < x.size:
        out[i] = value if exclusive else combine(op, value, x[i])
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def leftovers(x, out, totals, op, identity, exclusive):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, out.dtype)
    if i < x.size:
        scanned[thread] = x[i]
    value, total = scan_block(op, identity, scanned[thread], cuda.shared.array(SLOTS, out.dtype))
    if i < x.size:
        out[i] = value if exclusive else combine(op, value, x[i])
    if thread == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def of_whole_blocks(x, out, totals, op, identity, exclusive):
    i = cuda.grid(1)
    inside = i < x.size // BLOCK * BLOCK
    value, total = scan_block(op, identity, x[i] if inside else identity, cuda.shared.array(SLOTS, out.dtype))
    if i < x.size:
        out[i] = value if exclusive else combine(op, value, x[i])
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def always_inclusive(x, out, totals, op, identity, exclusive):
    i = cuda.grid(1)
    mine = x[i] if i < x.size else identity
    value, total = scan_block(op, identity, mine, cuda.shared.array(SLOTS, out.dtype))
    if i < x.size:
        out[i] = combine(op, value, mine)
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def exclusive_by_subtraction(x, out, totals, op, identity, exclusive):
    """Inclusive less the element itself: not for a maximum, and not for infinity."""
    i = cuda.grid(1)
    mine = x[i] if i < x.size else identity
    value, total = scan_block(op, identity, mine, cuda.shared.array(SLOTS, out.dtype))
    if i < x.size:
        value = combine(op, value, mine)
        out[i] = value - mine if exclusive else value
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def total_without_the_last(x, out, totals, op, identity, exclusive):
    """Off by one where an exclusive scan gives the total."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = x[i] if i < x.size else identity
    value, _ = scan_block(op, identity, mine, cuda.shared.array(SLOTS, out.dtype))
    if i < x.size:
        out[i] = value if exclusive else combine(op, value, mine)
    if thread == BLOCK - 1:
        totals[cuda.blockIdx.x] = value


@cuda.jit
def in_float64(x, out, totals, op, identity, exclusive):
    i = cuda.grid(1)
    mine = np.float64(x[i] if i < x.size else identity)
    value, total = scan_block(op, np.float64(identity), mine, cuda.shared.array(SLOTS, np.float64))
    if i < x.size:
        out[i] = value if exclusive else combine(op, value, mine)
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


# ------------------------------------------------------------------------------------- one launch: tiles that look back


def chained(publish=publish, look_back=look_back, forgetful=False):
    """A single-pass scan from its parts, any of which may be wrong. ``forgetful``: see the branch."""

    @cuda.jit
    def kernel(x, out, states, values, op, identity, exclusive):
        tile = next_tile(states, cuda.shared.array(1, np.int64))
        i = tile * BLOCK + cuda.threadIdx.x
        mine = x[i] if i < x.size else identity
        value, total = scan_block(op, identity, mine, cuda.shared.array(SLOTS, out.dtype))
        start = cuda.shared.array(1, out.dtype)
        if cuda.threadIdx.x < 32:
            if cuda.threadIdx.x == 0:
                publish(states, values, tile, PARTIAL, total)
            earlier = look_back(states, values, tile, op, identity)
            if cuda.threadIdx.x == 0:
                publish(states, values, tile, COMPLETE, combine(op, earlier, total))
                start[0] = earlier
        cuda.syncthreads()
        if i < x.size:
            if exclusive and forgetful and cuda.threadIdx.x == 0:
                out[i] = identity  # right in the first tile only
            else:
                value = combine(op, start[0], value)
                out[i] = value if exclusive else combine(op, value, mine)

    return kernel


def single_pass(kernel, name):
    def scan(x, op="sum", *, exclusive=False):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out, tiles = device.to_device(np.zeros(x.size, x.dtype)), blocks(x.size, BLOCK)
        if tiles:
            values = device.empty((2, tiles), x.dtype)
            states = words_for(tiles, 0)
            start = identity_of(op, x.dtype)
            kernel[tiles, BLOCK](x, out, states, values, OPERATORS[op], start, exclusive)
        return out

    scan.__name__ = name
    return scan


@cuda.jit(device=True)
def publish_without_fence(states, values, tile, state, value):
    if cuda.gridDim.x > 1:
        values[state - 1, tile] = value
        cuda.atomic.exch(states, tile + 1, state)


@cuda.jit(device=True)
def publish_flag_first(states, values, tile, state, value):
    if cuda.gridDim.x > 1:
        cuda.atomic.exch(states, tile + 1, state)
        cuda.threadfence()
        values[state - 1, tile] = value


@cuda.jit(device=True)
def publish_in_one_place(states, values, tile, state, value):
    """The total up to the end replaces the tile's own, while somebody may be reading that."""
    if cuda.gridDim.x > 1:
        values[0, tile] = value
        cuda.threadfence()
        cuda.atomic.exch(states, tile + 1, state)


@cuda.jit(device=True)
def look_back_in_one_place(states, values, tile, op, identity):
    before, last = identity, tile - 1
    while last >= 0:
        state = cuda.atomic.add(states, last + 1, 0)
        while state == NOTHING:
            state = cuda.atomic.add(states, last + 1, 0)
        cuda.threadfence()
        before = combine(op, values[0, last], before)
        if state == COMPLETE:
            break
        last -= 1
    return before


@cuda.jit(device=True)
def look_back_without_waiting(states, values, tile, op, identity):
    """Skips tiles that have published nothing yet: right only if there are none."""
    before, last = identity, tile - 1
    while last >= 0:
        state = cuda.atomic.add(states, last + 1, 0)
        cuda.threadfence()
        if state != NOTHING:
            before = combine(op, values[state - 1, last], before)
        if state == COMPLETE:
            break
        last -= 1
    return before


@cuda.jit(device=True)
def look_back_past_the_complete(states, values, tile, op, identity):
    """Adds what the lanes behind the nearest complete total hold, which that total has in it."""
    before, last = identity, tile - 1
    while last >= 0:
        mine = last - cuda.laneid
        state = np.int64(COMPLETE)
        if mine >= 0:
            state = cuda.atomic.add(states, mine + 1, 0)
            while state == NOTHING:
                state = cuda.atomic.add(states, mine + 1, 0)
        cuda.syncwarp()
        cuda.threadfence()
        value = values[state - 1, mine] if mine >= 0 else identity
        before = combine(op, warp_combine_back(op, value), before)
        if cuda.any_sync(FULL_WARP, state == COMPLETE):
            break
        last -= 32
    return before


@cuda.jit(device=True)
def look_back_to_the_neighbour(states, values, tile, op, identity):
    """Takes what the tile before it has published as the total of all earlier ones: right only if it is COMPLETE."""
    before = identity
    if tile > 0:
        state = cuda.atomic.add(states, tile, 0)
        while state == NOTHING:
            state = cuda.atomic.add(states, tile, 0)
        cuda.threadfence()
        before = values[state - 1, tile - 1]
    return before


@cuda.jit
def without_a_look_at_the_address(x, out, totals, op, identity, exclusive):
    """128-bit loads of whatever it is given; a quarter of the threads scan four elements each."""
    four = 4 * cuda.threadIdx.x
    first = np.int64(cuda.blockIdx.x) * BLOCK
    a, b, c, d = identity, identity, identity, identity
    if out.itemsize == 4 and four < BLOCK and first + four + 3 < x.size:
        a, b, c, d = load128(x, first + four)
    elif four < BLOCK:
        a = x[first + four] if first + four < x.size else identity
        b = x[first + four + 1] if first + four + 1 < x.size else identity
        c = x[first + four + 2] if first + four + 2 < x.size else identity
        d = x[first + four + 3] if first + four + 3 < x.size else identity
    b = combine(op, a, b)
    c = combine(op, b, c)
    d = combine(op, c, d)
    before, total = scan_block(op, identity, d, cuda.shared.array(SLOTS, out.dtype))
    scanned = cuda.shared.array(BLOCK, out.dtype)
    if four < BLOCK:
        scanned[four], scanned[four + 1] = combine(op, before, a), combine(op, before, b)
        scanned[four + 2], scanned[four + 3] = combine(op, before, c), combine(op, before, d)
    cuda.syncthreads()
    i, thread = cuda.grid(1), cuda.threadIdx.x
    if i < x.size:
        if exclusive:
            out[i] = scanned[thread - 1] if thread > 0 else identity
        else:
            out[i] = scanned[thread]
    if thread == 0:
        totals[cuda.blockIdx.x] = total


RUNGS = (
    WrongRung(steps(no_barrier_between_read_and_write), "race"),
    WrongRung(steps(no_barrier_after_the_write), "race"),
    WrongRung(steps(a_barrier_for_some), "divergent barrier"),
    WrongRung(scanner(no_guard), "out of bounds"),
    WrongRung(scanner(leftovers), "uninitialised read"),
    WrongRung(steps(without_the_way_down), "wrong result"),
    WrongRung(scanner(of_whole_blocks), "wrong result"),
    WrongRung(scanner(always_inclusive), "wrong result"),
    WrongRung(scanner(exclusive_by_subtraction), "wrong result"),
    WrongRung(scanner(total_without_the_last), "wrong result"),
    WrongRung(steps(loses_nan), "wrong result"),
    WrongRung(scanner(in_float64), "float64"),  # and too little for a large int64
    WrongRung(scanner(kogge_stone_kernel, "from_zero", identity=lambda op, dtype: dtype.type(0)), "wrong result"),
    WrongRung(scanner(kogge_stone_kernel, "totals_in_32_bits", narrow=True), "wrong result"),
    WrongRung(scanner(without_a_look_at_the_address), "misaligned"),
    WrongRung(single_pass(chained(publish=publish_without_fence), "no_fence_before_the_flag"), "race"),
    WrongRung(single_pass(chained(publish=publish_flag_first), "flag_before_value"), "race"),
    WrongRung(
        single_pass(chained(publish=publish_in_one_place, look_back=look_back_in_one_place), "one_place"), "race"
    ),
    WrongRung(single_pass(chained(look_back=look_back_without_waiting), "no_waiting"), "wrong result"),
    WrongRung(single_pass(chained(look_back=look_back_past_the_complete), "past_the_complete"), "wrong result"),
    WrongRung(single_pass(chained(look_back=look_back_to_the_neighbour), "to_the_neighbour"), "wrong result"),
    WrongRung(single_pass(chained(forgetful=True), "forgets_the_start_of_a_tile"), "wrong result"),
)
RIGHT = (scanner(kogge_stone_kernel), single_pass(chained(), "right_by_looking_back"))
