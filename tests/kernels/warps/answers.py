"""Wrong answers to the exercises of chapter 8."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.warps.exercises import branch_start, ragged_start, renumber_start
from tests.support.wrong import WrongAnswer

WARP, BLOCK, PAIRS, WARPS = 32, 256, 128, 8
ACROSS, COLUMNS, ROWS = 4, 32, 8

# ------------------------------------------------------------------------------------------------------ warps/branch


@cuda.jit
def branch_by_half_warps(x, out):
    i = cuda.grid(1)
    k, lane = i // WARP * 16 + i % 16, i % WARP
    if k < x.size:
        if lane < 16:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_without_guard(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if thread < PAIRS:
        out[0, k] = math.sqrt(x[k])
    else:
        out[1, k] = x[k] * x[k]


@cuda.jit
def branch_guard_off_by_one(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if k <= x.size:
        if thread < PAIRS:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_with_guard_of_the_thread(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if i < x.size:
        if thread < PAIRS:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_swapped(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if k < x.size:
        if thread < PAIRS:
            out[1, k] = math.sqrt(x[k])
        else:
            out[0, k] = x[k] * x[k]


@cuda.jit
def branch_of_the_first_block(x, out):
    thread = cuda.threadIdx.x
    k = thread % PAIRS
    if k < x.size:
        if thread < PAIRS:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_by_blocks(x, out):  # each block does one of the two, so the other is missing
    k = cuda.grid(1) // 2
    if k < x.size:
        if cuda.blockIdx.x % 2 == 0:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_in_float64(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if k < x.size:
        if thread < PAIRS:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = np.float64(x[k]) * x[k]


@cuda.jit
def branch_both_for_all(x, out):  # no branch, and each number is written twice
    k = cuda.blockIdx.x * PAIRS + cuda.threadIdx.x % PAIRS
    if k < x.size:
        out[0, k] = math.sqrt(x[k])
        out[1, k] = x[k] * x[k]


@cuda.jit
def branch_by_a_choice(x, out):  # a choice between two expressions is a branch, too
    i = cuda.grid(1)
    k = i // 2
    if k < x.size:
        out[i % 2, k] = math.sqrt(x[k]) if i % 2 == 0 else x[k] * x[k]


@cuda.jit
def branch_after_both(x, out):
    i = cuda.grid(1)
    k = i // 2
    if k < x.size:
        root, square = math.sqrt(x[k]), x[k] * x[k]
        out[i % 2, k] = root if i % 2 == 0 else square


# ---------------------------------------------------------------------------------------------------- warps/renumber


@cuda.jit
def renumber_by_half_rows(x, out):  # a warp is 16 columns wide and 2 rows high
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    warp, lane = thread // WARP, thread % WARP
    row = cuda.blockIdx.y * ROWS + warp // 2 * 2 + lane // 16
    column = cuda.blockIdx.x * COLUMNS + warp % 2 * 16 + lane % 16
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_by_parts(x, out):  # a column of ROWS to each 8 threads along y
    thread = cuda.threadIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row, column = cuda.blockIdx.y * ROWS + thread % ROWS, cuda.blockIdx.x * COLUMNS + thread // ROWS
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_lanes_down(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row, column = cuda.blockIdx.y * ROWS + thread % ROWS, cuda.blockIdx.x * COLUMNS + thread // ROWS
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_without_guard(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    out[row, column] = -x[row, column]


@cuda.jit
def renumber_with_half_a_guard(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    if row < x.shape[0]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_blocks_of_the_launch(x, out):  # as if a block covered as many rows and columns as it has threads
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row, column = cuda.blockIdx.y * 64 + thread // WARP, cuda.blockIdx.x * ACROSS + thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_by_rows_of_four(x, out):
    row, column = cuda.blockIdx.y * ROWS + cuda.threadIdx.y, cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_in_place(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        x[row, column] = -x[row, column]
        out[row, column] = x[row, column]


@cuda.jit
def renumber_whole_sectors(x, out):  # a warp is 8 columns wide and 4 rows high
    thread = cuda.threadIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


# ------------------------------------------------------------------------------------------------------ warps/ragged


@cuda.jit
def ragged_in_pieces(x, starts, scale, out):  # each lane its own piece of the row
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        each = (starts[row + 1] - starts[row] + WARP - 1) // WARP
        first = starts[row] + lane * each
        for j in range(first, min(first + each, starts[row + 1])):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_by_lane_zero(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size and lane == 0:
        for j in range(starts[row], starts[row + 1]):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_without_guard(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    for j in range(starts[row] + lane, starts[row + 1], WARP):
        out[j] = scale[row] * x[j]


@cuda.jit
def ragged_all_lanes_alike(x, starts, scale, out):
    row = cuda.grid(1) // WARP
    if row < scale.size:
        for j in range(starts[row], starts[row + 1]):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_one_round(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        j = starts[row] + lane
        if j < starts[row + 1]:
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_steps_of_the_block(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], BLOCK):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_warp_of_the_block(x, starts, scale, out):
    row, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], WARP):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_with_the_first_factor(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], WARP):
            out[j] = scale[0] * x[j]


@cuda.jit
def ragged_element_by_element(x, starts, scale, out):
    for j in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        row = 0
        while starts[row + 1] <= j:
            row += 1
        out[j] = scale[row] * x[j]


@cuda.jit
def ragged_a_row_a_half_warp(x, starts, scale, out):
    row, lane = cuda.grid(1) // 16, cuda.threadIdx.x % 16
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], 16):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_all_rows_at_the_front(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        for j in range(lane, starts[row + 1] - starts[row], WARP):
            out[j] = scale[row] * x[j]


# ------------------------------------------------------------------------------------------------ warps/active_lanes


def warps_of(trips, block):
    """A list of the warps of each block."""
    blocks = [trips[first : first + block] for first in range(0, trips.size, block)]
    return [[one[lane : lane + WARP] for lane in range(0, block, WARP)] for one in blocks]


def lanes_through_the_grid(trips, block):
    warps = [trips[first : first + WARP] for first in range(0, trips.size, WARP)]
    return sum(w.sum() for w in warps) / sum(w.max() for w in warps)


def lanes_mean_of_means(trips, block):
    return np.mean([w.sum() / w.max() for one in warps_of(trips, block) for w in one])


def lanes_slowest_of_all(trips, block):
    return trips.sum() / (trips.max() * sum(map(len, warps_of(trips, block))))


def lanes_slowest_of_block(trips, block):
    return trips.sum() / sum(max(w.max() for w in one) * len(one) for one in warps_of(trips, block))


def lanes_as_a_share(trips, block):
    warps = [w for one in warps_of(trips, block) for w in one]
    return sum(w.sum() for w in warps) / sum(WARP * w.max() for w in warps)


def lanes_mean_rounds(trips, block):
    return trips.mean()


def lanes_whole_warps_only(trips, block):
    warps = [w for one in warps_of(trips, block) for w in one if w.size == WARP]
    return sum(w.sum() for w in warps) / sum(w.max() for w in warps)


def lanes_without_a_return(trips, block):
    warps = [w for one in warps_of(trips, block) for w in one]
    sum(w.sum() for w in warps) / sum(w.max() for w in warps)


def lanes_that_use_up_the_trips(trips, block):
    active, executed = trips.sum(), 0
    while trips.any():
        executed += sum(bool(w.any()) for one in warps_of(trips, block) for w in one)
        trips[:] = np.maximum(trips - 1, 0)
    return active / executed


# ------------------------------------------------------------------------------------------------------ warps/number


@cuda.jit
def number_of_a_plane(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[cuda.blockIdx.x, z, y, x] = (y * cuda.blockDim.x + x) // WARP


@cuda.jit
def number_z_fastest(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[cuda.blockIdx.x, z, y, x] = ((x * cuda.blockDim.y + y) * cuda.blockDim.z + z) // WARP


@cuda.jit
def number_of_the_thread(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[cuda.blockIdx.x, z, y, x] = (z * cuda.blockDim.y + y) * cuda.blockDim.x + x


@cuda.jit
def number_of_the_lane(out):
    out[cuda.blockIdx.x, cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x] = cuda.laneid


@cuda.jit
def number_through_the_grid(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    thread = ((cuda.blockIdx.x * cuda.blockDim.z + z) * cuda.blockDim.y + y) * cuda.blockDim.x + x
    out[cuda.blockIdx.x, z, y, x] = thread // WARP


@cuda.jit
def number_in_the_first_block(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[0, z, y, x] = ((z * cuda.blockDim.y + y) * cuda.blockDim.x + x) // WARP


@cuda.jit
def number_with_axes_swapped(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[cuda.blockIdx.x, x, y, z] = ((z * cuda.blockDim.y + y) * cuda.blockDim.x + x) // WARP


@cuda.jit
def number_by_the_wrong_division(out):  # right, since int32 cuts the fraction off
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    out[cuda.blockIdx.x, z, y, x] = ((z * cuda.blockDim.y + y) * cuda.blockDim.x + x) / WARP


# ---------------------------------------------------------------------------------------------------- warps/resident


def resident(units=256, pools=4, blocks=32, places=64, whole=True):
    """The answer to resident with one of its parts exchanged."""

    def answer(threads, registers):
        warps = -(-threads // 32) if whole else threads / 32
        a_warp = -(-registers * 32 // units) * units
        by_registers = 65536 // pools // a_warp * pools // warps
        return np.minimum(np.minimum(places // warps, blocks), by_registers).astype(np.int64)

    return answer


def resident_of_the_thread(threads, registers):
    return np.minimum(np.minimum(64 // -(-threads // 32), 32), 65536 // (threads * registers))


def resident_warps(threads, registers):
    return resident()(threads, registers) * -(-threads // 32)


def resident_of_the_first(threads, registers):
    return np.full(threads.shape, resident()(threads, registers)[0])


def named(name, function):
    function.__name__ = name
    return function


ANSWERS = (
    WrongAnswer("warps/branch", branch_both_for_all, "too much traffic", "16,000 bytes where 8,000 will do"),
    WrongAnswer("warps/branch", branch_by_a_choice, "too much work", "In each warp all lanes"),
    WrongAnswer("warps/branch", branch_after_both, "too much work", "roots, powers or the like"),
    WrongAnswer("warps/renumber", renumber_by_half_rows, "too much traffic", "belong to 32 columns of one row"),
    WrongAnswer("warps/ragged", ragged_element_by_element, "too much traffic", "for starts alone"),
    WrongAnswer("warps/ragged", ragged_a_row_a_half_warp, "too much traffic", "A warp takes one row"),
    WrongAnswer("warps/ragged", ragged_all_rows_at_the_front, "race", "Look at the index"),
    WrongAnswer("warps/active_lanes", lanes_without_a_return, "output not written", "returns nothing"),
    WrongAnswer("warps/active_lanes", lanes_that_use_up_the_trips, "input changed", "the function writes to trips"),
    WrongAnswer("warps/branch", branch_start, "too much divergence", "branches diverge where 4"),
    WrongAnswer("warps/branch", branch_by_half_warps, "too much divergence", "thread // 32"),
    WrongAnswer("warps/branch", branch_without_guard, "missing guard", r"x\[\d+\]"),
    WrongAnswer("warps/branch", branch_guard_off_by_one, "guard off by one"),
    WrongAnswer("warps/branch", branch_with_guard_of_the_thread, "output not written"),
    WrongAnswer("warps/branch", branch_swapped, "rows swapped", "roots belong into row 0"),
    WrongAnswer("warps/branch", branch_of_the_first_block, "only right for one block"),
    WrongAnswer("warps/branch", branch_by_blocks, "output not written"),
    WrongAnswer("warps/branch", branch_in_float64, "deliberate float64", r"line \d+ asks for float64"),
    WrongAnswer("warps/renumber", renumber_start, "uncoalesced", "sectors a request where 4 do"),
    WrongAnswer("warps/renumber", renumber_by_parts, "uncoalesced"),
    WrongAnswer("warps/renumber", renumber_lanes_down, "uncoalesced"),
    WrongAnswer("warps/renumber", renumber_whole_sectors, "uncoalesced", "belong to 32 columns of one row"),
    WrongAnswer("warps/renumber", renumber_without_guard, "missing guard"),
    WrongAnswer("warps/renumber", renumber_with_half_a_guard, "missing guard", "test every index"),
    WrongAnswer("warps/renumber", renumber_blocks_of_the_launch, "output not written"),
    WrongAnswer("warps/renumber", renumber_by_rows_of_four, "output not written"),
    WrongAnswer("warps/renumber", renumber_in_place, "input changed"),
    WrongAnswer("warps/ragged", ragged_start, "uncoalesced"),
    WrongAnswer("warps/ragged", ragged_in_pieces, "uncoalesced"),
    WrongAnswer("warps/ragged", ragged_by_lane_zero, "idle threads", "of the 32 threads"),
    WrongAnswer("warps/ragged", ragged_without_guard, "missing guard"),
    WrongAnswer("warps/ragged", ragged_all_lanes_alike, "too much traffic", "written once"),
    WrongAnswer("warps/ragged", ragged_one_round, "output not written"),
    WrongAnswer("warps/ragged", ragged_steps_of_the_block, "output not written"),
    WrongAnswer("warps/ragged", ragged_warp_of_the_block, "only right for one block"),
    WrongAnswer("warps/ragged", ragged_with_the_first_factor, "one factor for all"),
    WrongAnswer("warps/active_lanes", lanes_through_the_grid, "warps across blocks"),
    WrongAnswer("warps/active_lanes", lanes_mean_of_means, "mean of means"),
    WrongAnswer("warps/active_lanes", lanes_slowest_of_all, "all wait for all"),
    WrongAnswer("warps/active_lanes", lanes_slowest_of_block, "all wait for the block"),
    WrongAnswer("warps/active_lanes", lanes_as_a_share, "a share"),
    WrongAnswer("warps/active_lanes", lanes_mean_rounds, "wrong result"),
    WrongAnswer("warps/active_lanes", lanes_whole_warps_only, "wrong result"),
    WrongAnswer("warps/number", number_of_a_plane, "wrong result"),
    WrongAnswer("warps/number", number_z_fastest, "wrong result"),
    WrongAnswer("warps/number", number_of_the_thread, "thread, not warp", "32 threads are a warp"),
    WrongAnswer("warps/number", number_of_the_lane, "lane, not warp"),
    WrongAnswer("warps/number", number_through_the_grid, "warps across blocks", "warp 0 of its own"),
    WrongAnswer("warps/number", number_in_the_first_block, "only right for one block"),
    WrongAnswer("warps/number", number_with_axes_swapped, "axes exchanged", r"out\[a, i, c, j\] holds what"),
    WrongAnswer("warps/number", number_by_the_wrong_division, "accidental float64", "gives float64; .* Divide by //"),
    WrongAnswer("warps/resident", resident_of_the_thread, "units left out"),
    WrongAnswer("warps/resident", named("resident_of_one_pool", resident(pools=1)), "one pool"),
    WrongAnswer("warps/resident", named("resident_without_blocks", resident(blocks=64)), "too many blocks"),
    WrongAnswer("warps/resident", resident_warps, "warps, not blocks"),
    WrongAnswer("warps/resident", named("resident_of_part_warps", resident(whole=False)), "wrong result"),
    WrongAnswer("warps/resident", named("resident_of_another_gpu", resident(places=48)), "wrong result"),
    WrongAnswer("warps/resident", resident_of_the_first, "wrong result"),
)


# ----------------------------------------------------------------------------------------------- other right answers

ALSO_RIGHT: list[tuple[str, object]] = []


def right(name):
    return lambda kernel: ALSO_RIGHT.append((name, kernel)) or kernel


@right("warps/branch")
@cuda.jit
def branch_by_even_and_odd_warps(x, out):
    warp, lane = cuda.grid(1) // WARP, cuda.grid(1) % WARP
    k = warp // 2 * WARP + lane
    if k < x.size:
        if warp % 2 == 0:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@right("warps/branch")
@cuda.jit
def branch_that_returns_early(x, out):
    k = cuda.blockIdx.x * PAIRS + cuda.threadIdx.x % PAIRS
    if k >= x.size:
        return
    value = x[k]
    if cuda.threadIdx.x >= PAIRS:
        out[1, k] = value * value
        return
    out[0, k] = math.sqrt(value)


@right("warps/renumber")
@cuda.jit
def renumber_by_lane_and_warp(x, out):
    y = cuda.threadIdx.y
    row = cuda.blockIdx.y * ROWS + y // 8
    column = cuda.blockIdx.x * COLUMNS + y % 8 * 4 + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@right("warps/ragged")
@cuda.jit
def ragged_while(x, starts, scale, out):
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.x // WARP
    if row >= scale.size:
        return
    factor, end = scale[row], starts[row + 1]
    j = starts[row] + cuda.laneid
    while j < end:
        out[j] = factor * x[j]
        j += WARP


@right("warps/active_lanes")
def lanes_by_padding(trips, block):
    warps = -(-block // WARP)
    padded = np.zeros((trips.size // block, warps * WARP), np.int64)
    padded[:, :block] = trips.reshape(-1, block)
    return trips.sum() / padded.reshape(-1, WARP).max(axis=1).sum()


@right("warps/branch")
@cuda.jit
def branch_by_halves_of_the_grid(x, out):
    i, half = cuda.grid(1), cuda.gridsize(1) // 2
    if i < half:
        if i < x.size:
            out[0, i] = math.sqrt(x[i])
    elif i - half < x.size:
        out[1, i - half] = x[i - half] ** 2


@right("warps/renumber")
@cuda.jit
def renumber_from_the_end(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x
    row = cuda.blockIdx.y * ROWS + ROWS - 1 - thread // WARP
    column = cuda.blockIdx.x * COLUMNS + WARP - 1 - thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@right("warps/ragged")
@cuda.jit
def ragged_from_a_multiple_of_32(x, starts, scale, out):
    for row in range(cuda.grid(1) // WARP, scale.size, cuda.gridsize(1) // WARP):
        for j in range(starts[row] // WARP * WARP + cuda.laneid, starts[row + 1], WARP):
            if j >= starts[row]:
                out[j] = scale[row] * x[j]


@right("warps/active_lanes")
def lanes_in_float32(trips, block):
    return np.float32(lanes_by_padding(trips, block))


@right("warps/number")
@cuda.jit
def number_step_by_step(out):
    block, z, y, x = cuda.blockIdx.x, cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x
    _, _, height, width = out.shape
    out[block, z, y, x] = (x + width * y + width * height * z) // 32


@right("warps/resident")
def resident_one_by_one(threads, registers):
    found = []
    for t, r in zip(threads.tolist(), registers.tolist(), strict=True):
        warps, a_warp = (t + 31) // 32, (32 * r + 255) // 256 * 256
        found.append(min(64 // warps, 32, 16384 // a_warp * 4 // warps))
    return np.array(found)


@right("warps/number")
@cuda.jit
def number_by_the_block_as_a_variable(out):
    block, thread = cuda.blockDim, cuda.threadIdx
    number = thread.x + block.x * (thread.y + block.y * thread.z)
    out[cuda.blockIdx.x, thread.z, thread.y, thread.x] = number >> 5
