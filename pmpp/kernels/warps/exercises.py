"""Exercises of notebooks/08_warps.ipynb: numbers of warps, branching by warp, a loop for a warp, what fits on an SM."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

WARP = 32
BLOCK = 256  # threads a block in one dimension
WARPS = BLOCK // WARP


def _blocks(n: int, each: int) -> int:
    return -(-n // each)  # rounded up


# ------------------------------------------------------------------------------------------------------ warps/branch

PAIRS = BLOCK // 2  # elements of x a block: two threads for each


def _branch_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 31, PAIRS - 1, PAIRS, PAIRS + 1, 1000):
        x = rng.uniform(1, 2, n).astype(np.float32)
        # Equal to the last bit: the root and the product of float32 are rounded once, here and there.
        expected = np.stack([np.sqrt(x), x * x])
        cases.append(Case(f"n = {n}", (x, unwritten((2, n), np.float32)), _blocks(n, PAIRS), BLOCK, {1: expected}))
    return cases


# The kernel to start from: right, and every warp goes both ways.
@cuda.jit
def branch_start(x, out):
    i = cuda.grid(1)
    k = i // 2
    if k < x.size:
        if i % 2 == 0:
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


@cuda.jit
def branch_answer(x, out):
    thread = cuda.threadIdx.x
    k = cuda.blockIdx.x * PAIRS + thread % PAIRS
    if k < x.size:
        if thread < PAIRS:  # whole warps: PAIRS is a multiple of 32
            out[0, k] = math.sqrt(x[k])
        else:
            out[1, k] = x[k] * x[k]


def _branch_budget(case: Case) -> dict[str, tuple[float, str]]:
    # The guard may diverge in the last warp of each row.
    advice = "In each warp all lanes must want the same: let thread // 32 decide between root and square, not i % 2."
    each = "A thread computes either a root or a square, and stores one number: two threads work for each element."
    x, out = case.args
    # A root is one special instruction of a warp: more of them, and warps compute both for themselves.
    return {
        "divergent_branches": (4, advice),
        "global_store_bytes": (out.nbytes, each),
        "inst_special": (1.5 * _blocks(x.size, WARP), advice),
    }


def _rows_swapped(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.stack([x * x, np.sqrt(x)])}


# ---------------------------------------------------------------------------------------------------- warps/renumber

ACROSS, DOWN = 4, 64  # threads a block along x and y
COLUMNS, ROWS = WARP, ACROSS * DOWN // WARP  # what a block has to cover: a row of it for each warp


def _renumber_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # The largest has rows that begin within a sector: there 8 neighbours are no whole sector.
    for h, w in ((1, 1), (ROWS, COLUMNS), (ROWS - 1, COLUMNS + 1), (3, 100), (41, 70), (64, 99)):
        x = rng.standard_normal((h, w), dtype=np.float32)
        grid = _blocks(w, COLUMNS), _blocks(h, ROWS)
        args = x, unwritten((h, w), np.float32)
        cases.append(Case(f"x of {h} x {w}", args, grid, (ACROSS, DOWN), {1: -x}))
    return cases


def _renumber_budget(case: Case) -> dict[str, tuple[float, str]]:
    h, w = case.args[0].shape
    firsts = np.arange(h)[:, None] * w + np.arange(0, w, WARP)
    lasts = np.arange(h)[:, None] * w + np.minimum(np.arange(WARP, w + WARP, WARP), w) - 1
    needed = int((lasts // 8 - firsts // 8 + 1).sum())  # 8 float32 are a sector
    advice = "The threads of a warp, as the hardware counts them, belong to 32 columns of one row."
    return {"global_load_sectors": (1.1 * needed, advice), "global_store_sectors": (1.1 * needed, advice)}


# The kernel to start from: right, but a warp is 4 columns wide, and half of each sector travels for nothing.
@cuda.jit
def renumber_start(x, out):
    part, ty = cuda.threadIdx.y // ROWS, cuda.threadIdx.y % ROWS
    row, column = cuda.blockIdx.y * ROWS + ty, cuda.blockIdx.x * COLUMNS + part * ACROSS + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


@cuda.jit
def renumber_answer(x, out):
    thread = cuda.threadIdx.y * ACROSS + cuda.threadIdx.x  # as the hardware counts
    row, column = cuda.blockIdx.y * ROWS + thread // WARP, cuda.blockIdx.x * COLUMNS + thread % WARP
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


# ------------------------------------------------------------------------------------------------------ warps/ragged


def _ragged_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, longest in ((1, 5), (WARPS - 1, 70), (WARPS, 40), (WARPS + 1, 100), (5 * WARPS, 300)):
        lengths = rng.integers(0, longest + 1, rows)  # a row may be empty
        lengths[rng.integers(rows)] = longest
        starts = np.concatenate([[0], np.cumsum(lengths)])
        x = rng.standard_normal(starts[-1], dtype=np.float32)
        scale = rng.uniform(1, 2, rows).astype(np.float32)
        expected = x * np.repeat(scale, lengths.astype(np.intp))  # np.repeat takes no int64 where an index has 32 bits
        args = x, starts, scale, unwritten(x.size, np.float32)
        name = f"{rows} row" + "s" * (rows > 1) + f" of up to {longest} numbers"
        cases.append(Case(name, args, _blocks(rows, WARPS), BLOCK, {3: expected}))
    return cases


# The kernel to start from: right, and a warp is busy as long as the longest of its 32 rows.
@cuda.jit
def ragged_start(x, starts, scale, out):
    row = cuda.grid(1)
    if row < scale.size:
        for j in range(starts[row], starts[row + 1]):
            out[j] = scale[row] * x[j]


@cuda.jit
def ragged_answer(x, starts, scale, out):
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < scale.size:
        for j in range(starts[row] + lane, starts[row + 1], WARP):
            out[j] = scale[row] * x[j]


def _ragged_budget(case: Case) -> dict[str, tuple[float, str | None]]:
    advice = "Each element is to be written once: let the lanes of a warp begin at different elements."
    x, starts = case.args[:2]
    # A warp stores 32 neighbours of a row at a time, and once more where it begins at a multiple of 32.
    stores = int((-(-np.diff(starts) // WARP) + 1).sum())
    # A request is 4 sectors, one more where it begins within one, and loads have one each of `starts` and `scale`. Half
    # as many again are far fewer than an uncoalesced answer moves. It has more requests, too: so this is told first.
    return {
        "global_store_bytes": (x.nbytes, advice),
        "global_store_sectors": (1.5 * 5 * stores, None),
        "global_load_sectors": (1.5 * (5 + 2) * stores, None),
        "global_store_requests": (stores, "A warp takes one row, 32 neighbours at a time."),
    }


def _every_row_by_the_first(x, starts, scale, out):
    return {3: x * scale[0]}


# ------------------------------------------------------------------------------------------------ warps/active_lanes


def active_lanes_answer(trips, block):
    active = executed = 0
    for first in range(0, trips.size, block):  # a block
        threads = trips[first : first + block]
        for lane in range(0, block, WARP):  # a warp of it, the last one perhaps not full
            warp = threads[lane : lane + WARP]
            active += int(warp.sum())
            executed += int(warp.max())
    return active / executed


def _active_lanes_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for block, blocks, most in ((32, 1, 9), (64, 3, 50), (40, 1, 9), (40, 4, 20), (100, 5, 100), (256, 4, 1000)):
        trips = rng.integers(0, most + 1, (blocks, block))
        trips[:, ::WARP] = np.maximum(trips[:, ::WARP], 1 + np.arange(-(-block // WARP)))  # no warp without a round
        trips = trips.reshape(-1)
        expected = np.float64(active_lanes_answer(trips, block))
        # Sums of integers are exact, in float32 too; only the division rounds.
        name = f"{blocks} block{'s' * (blocks > 1)} of {block} threads"
        cases.append(Case(name, (trips, block), None, None, {0: expected}, {0: 2.0**-23 * expected}))
    return cases


def _by_warp(trips: np.ndarray, block: int) -> np.ndarray:
    """A row for each warp; -1 where a warp has no thread."""
    whole = np.full((trips.size // block, _blocks(block, WARP) * WARP), -1)
    whole[:, :block] = trips.reshape(-1, block)
    return whole.reshape(-1, WARP)


def _cut_through_blocks(trips: np.ndarray, block: int) -> dict[int, np.ndarray]:
    whole = np.zeros(_blocks(trips.size, WARP) * WARP)
    whole[: trips.size] = trips
    return {0: trips.sum() / whole.reshape(-1, WARP).max(axis=1).sum()}


def _mean_of_warps(trips: np.ndarray, block: int) -> dict[int, np.ndarray]:
    warps = _by_warp(trips, block)
    return {0: np.mean(np.maximum(warps, 0).sum(axis=1) / warps.max(axis=1))}


def _longest_of_all(trips: np.ndarray, block: int) -> dict[int, np.ndarray]:
    return {0: trips.sum() / (trips.max() * _by_warp(trips, block).shape[0])}


def _longest_of_block(trips: np.ndarray, block: int) -> dict[int, np.ndarray]:
    longest = trips.reshape(-1, block).max(axis=1)
    return {0: trips.sum() / (longest.sum() * _blocks(block, WARP))}


def _a_share(trips: np.ndarray, block: int) -> dict[int, np.ndarray]:
    return {0: active_lanes_answer(trips, block) / WARP}


# ------------------------------------------------------------------------------------------------------ warps/number


def _number_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    drawn = rng.permuted([[4, 8, 16], [5, 7, 9], [6, 11, 3]], axis=1).tolist()  # the first fills its warps
    flat = int(rng.integers(9, 16)), int(rng.integers(4, 8)), 1
    for blocks, block in ((1, (WARP, 1, 1)), (1, flat), (1, drawn[2]), (2, drawn[0]), (3, drawn[1])):
        x, y, z = block
        numbers = np.arange(x * y * z).reshape(z, y, x) // WARP
        expected = np.repeat(numbers[None], blocks, axis=0)
        name = f"{blocks} block{'s' * (blocks > 1)} of {x} x {y} x {z} threads"
        cases.append(Case(name, (unwritten((blocks, z, y, x), np.int32),), blocks, block, {0: expected}))
    return cases


@cuda.jit
def number_answer(out):
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    thread = (z * cuda.blockDim.y + y) * cuda.blockDim.x + x
    out[cuda.blockIdx.x, z, y, x] = thread // WARP


def _threads_of(out: np.ndarray) -> np.ndarray:
    """The number of each thread in its block."""
    return np.resize(np.arange(out[0].size), out.size).reshape(out.shape)


def _numbers_of_threads(out: np.ndarray) -> dict[int, np.ndarray]:
    return {0: _threads_of(out)}


def _numbers_of_lanes(out: np.ndarray) -> dict[int, np.ndarray]:
    return {0: _threads_of(out) % WARP}


def _numbers_in_the_grid(out: np.ndarray) -> dict[int, np.ndarray]:
    return {0: np.arange(out.size).reshape(out.shape) // WARP}


# ---------------------------------------------------------------------------------------------------- warps/resident

PLACES, BLOCKS, SCHEDULERS, REGISTERS, UNIT = 64, 32, 4, 16384, 256  # of an SM of an H200


def _resident_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 6, 40):
        threads = rng.choice([32, 40, 64, 96, 128, 192, 256], n)
        registers = rng.integers(16, 256, n)
        if n == 1:
            threads[0], registers[0] = 256, 65
        else:  # one that blocks limit, one that warps do, and one where schedulers are left with half a warp's room
            threads[:3], registers[:3] = (32, 256, 96), (16, 16, 97)
        name = f"{n} kernel{'s' * (n > 1)}"
        cases.append(Case(name, (threads, registers), None, None, {0: resident_answer(threads, registers)}))
    return cases


def resident_answer(threads, registers):
    warps = _blocks(threads, WARP)
    a_warp = _blocks(registers * WARP, UNIT) * UNIT
    by_registers = REGISTERS // a_warp * SCHEDULERS // warps
    return np.minimum(np.minimum(PLACES // warps, BLOCKS), by_registers)


def _without_units(threads: np.ndarray, registers: np.ndarray) -> dict[int, np.ndarray]:
    warps = _blocks(threads, WARP)
    by_registers = REGISTERS * SCHEDULERS // (threads * registers)
    return {0: np.minimum(np.minimum(PLACES // warps, BLOCKS), by_registers)}


def _of_one_pool(threads: np.ndarray, registers: np.ndarray) -> dict[int, np.ndarray]:
    warps, a_warp = _blocks(threads, WARP), _blocks(registers * WARP, UNIT) * UNIT
    by_registers = REGISTERS * SCHEDULERS // (a_warp * warps)
    return {0: np.minimum(np.minimum(PLACES // warps, BLOCKS), by_registers)}


def _without_blocks(threads: np.ndarray, registers: np.ndarray) -> dict[int, np.ndarray]:
    warps, a_warp = _blocks(threads, WARP), _blocks(registers * WARP, UNIT) * UNIT
    return {0: np.minimum(PLACES // warps, REGISTERS // a_warp * SCHEDULERS // warps)}


def _in_warps(threads: np.ndarray, registers: np.ndarray) -> dict[int, np.ndarray]:
    return {0: resident_answer(threads, registers) * _blocks(threads, WARP)}


# ------------------------------------------------------------------------------------------------------------------


EXERCISES = (
    Exercise(
        "warps/branch",
        task="out[0] holds the square roots of x, and out[1] its squares; x is float32, and two threads work for each "
        "element. branch_start does it, and every warp computes both. Let each warp do one of the two. The launch has "
        f"{BLOCK} threads a block, and a block for each {PAIRS} elements.",
        parameters="x, out",
        cases=_branch_cases,
        budget=_branch_budget,
        answer=branch_answer,
        hints=(
            "Which threads of a block share a warp? Thread t is in warp t // 32.",
            f"{PAIRS} threads are four whole warps. Let the first half of the block take the roots.",
            f"Then element k of thread t is blockIdx.x * {PAIRS} + t % {PAIRS}.",
        ),
        traps=(Trap("rows swapped", "The roots belong into row 0 of out, the squares into row 1.", _rows_swapped),),
    ),
    Exercise(
        "warps/renumber",
        task=f"out = -x for a float32 matrix. The launch is given: {ACROSS} x {DOWN} threads a block, and a block for "
        f"each {COLUMNS} columns and {ROWS} rows of x, with blockIdx.x along the columns. renumber_start takes "
        f"threadIdx.x for a column, so that a warp is {ACROSS} columns wide. Number the threads anew, so that a warp "
        "takes 32 neighbours of a row.",
        parameters="x, out",
        cases=_renumber_cases,
        budget=_renumber_budget,
        answer=renumber_answer,
        hints=(
            "In which order does the hardware count the threads of a block? threadIdx.x counts fastest.",
            f"thread = threadIdx.y * {ACROSS} + threadIdx.x; its warp is thread // 32, its lane thread % 32.",
            f"A block has {ACROSS * DOWN} threads, {ROWS} warps: as many as it has rows to do.",
        ),
    ),
    Exercise(
        "warps/ragged",
        task="Rows of different lengths lie one after another in x: row r has the elements starts[r] to "
        "starts[r + 1] - 1, and may be empty. Multiply each by its own factor: out[j] = scale[r] * x[j], all float32. "
        "ragged_start gives a row to each thread, so that lanes wait for the longest row, and no two of them read "
        f"neighbours. Give a row to each warp. The launch has {BLOCK} threads a block, and a block for each {WARPS} "
        "rows.",
        parameters="x, starts, scale, out",
        cases=_ragged_cases,
        budget=_ragged_budget,
        answer=ragged_answer,
        hints=(
            "Which row does warp w of the grid take, and how does a thread compute w from cuda.grid(1)?",
            "The lanes of a warp walk through the row side by side, in steps of 32. Where does lane l begin?",
        ),
        traps=(Trap("one factor for all", "Each row has its own factor: scale[row].", _every_row_by_the_first),),
    ),
    Exercise(
        "warps/active_lanes",
        task="No kernel, but a function of the host. In a launch of whole blocks of `block` threads, one "
        "after another, thread t runs through a loop trips[t] times. Return how many lanes of a warp are active, on "
        "average over all rounds that all warps execute. trips is a NumPy array of int64, and no warp has only zeros.",
        parameters="trips, block",
        cases=_active_lanes_cases,
        answer=active_lanes_answer,
        hints=(
            "A warp executes as many rounds as its slowest lane needs.",
            "The average is a sum over a sum: lanes that were active, over rounds that warps executed.",
            "Warps are cut from one block. If `block` is no multiple of 32, the last warp of each is not full.",
        ),
        traps=(
            Trap("warps across blocks", "No warp has threads of two blocks: cut each by itself.", _cut_through_blocks),
            Trap("mean of means", "A warp with many rounds counts more: divide the sums.", _mean_of_warps),
            Trap("all wait for all", "A warp waits for its own slowest lane, not for the whole grid.", _longest_of_all),
            Trap("all wait for the block", "A warp does not wait for the others of its block.", _longest_of_block),
            Trap("a share", "This is the share of 32 lanes: the number of lanes was asked for.", _a_share),
        ),
    ),
    Exercise(
        "warps/number",
        task="Write down for each thread which warp of its block it belongs to: out[b, z, y, x] is the number of the "
        "warp of thread (x, y, z) in block b. out is int32. The grid has one dimension, a block up to three, and "
        "cuda.blockDim tells how long it is in each.",
        parameters="out",
        cases=_number_cases,
        answer=number_answer,
        advice={"accidental float64": "Divide by //: the quotient of / is a float64, of two integers, too."},
        hints=(
            "First find the number of a thread in its block: x counts fastest, then y, then z.",
            "A row has blockDim.x threads, and a layer blockDim.y rows. How many threads come before thread (0, y, z)?",
            "32 threads in a row are a warp: divide the thread's number by 32.",
        ),
        traps=(
            Trap("thread, not warp", "This is the thread's number: 32 threads are a warp.", _numbers_of_threads),
            Trap("lane, not warp", "This is the lane, the place in the warp: divide by 32.", _numbers_of_lanes),
            Trap("warps across blocks", "Each block begins with a warp 0 of its own.", _numbers_in_the_grid),
        ),
    ),
    Exercise(
        "warps/resident",
        task=f"No kernel, but a function of the host. An SM of an H200 holds at most {PLACES} warps and {BLOCKS} "
        f"blocks. Each of its {SCHEDULERS} schedulers has {REGISTERS:,} registers for its warps, and gives them to a "
        f"warp in units of {UNIT}. Kernel i takes threads[i] threads a block and registers[i] registers a thread. "
        "Return how many blocks of each kernel an SM holds, as an array. Both arguments are NumPy arrays of int64.",
        parameters="threads, registers",
        cases=_resident_cases,
        answer=resident_answer,
        hints=(
            "A block of 40 threads takes the room of two warps: -(-threads // 32) rounds up.",
            f"A warp takes 32 times the registers of a thread, rounded up to a multiple of {UNIT}.",
            "How many warps have room in the registers of one scheduler? Of all four? How many blocks is that?",
        ),
        traps=(
            Trap("units left out", f"Registers are given to whole warps, in units of {UNIT}.", _without_units),
            Trap("one pool", "A warp's registers are of one scheduler: what is left in each is lost.", _of_one_pool),
            Trap("too many blocks", f"An SM has places for {BLOCKS} blocks, however small they are.", _without_blocks),
            Trap("warps, not blocks", "This is the number of warps: the blocks were asked for.", _in_warps),
        ),
    ),
)
