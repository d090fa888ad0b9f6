"""Exercises of notebooks/34_scan.ipynb: scans of a block, a maximum by shuffles, a chain of tiles, compaction."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads per block
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."
ENOUGH = "A scan of 256 elements has eight steps: two barriers for each, and one or two more."
LOADS = 2 * 8 * (BLOCK // 32) * 4  # of shared memory by a block: twice what 8 warps do in 8 steps, values and heads
BETWEEN = "race between blocks"
ALONE = "The threads of a block can compute this together: no atomics are needed."


def _by_blocks(x: np.ndarray, scan: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``scan`` of each block's elements by themselves, in float64."""
    parts = [x[first : first + BLOCK].astype(np.float64) for first in range(0, x.size, BLOCK)]
    return np.concatenate([scan(part) for part in parts])


def _exclusive(x: np.ndarray) -> np.ndarray:
    return np.r_[0, np.cumsum(x)[:-1]]


def _reverse(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x[::-1])[::-1]


def _mirrored_once(x: np.ndarray) -> np.ndarray:
    """In a wrong answer: the zeros that fill a block of fewer elements than threads come before the elements."""
    return np.cumsum(np.r_[x, np.zeros(BLOCK - x.size)][::-1])[: x.size]


def _segmented(x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    out, running = np.empty(x.size), 0.0
    for i in range(x.size):
        running = float(x[i]) + (0.0 if heads[i] or i % BLOCK == 0 else running)
        out[i] = running
    return out


def _heads_stay(x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """In a wrong answer: an element does not learn of the heads in the stretches that are added to it."""
    out = x.astype(np.float64)
    for first in range(0, x.size, BLOCK):
        part, head, distance = out[first : first + BLOCK], heads[first : first + BLOCK], 1
        while distance < part.size:
            part[distance:] += np.where(head[distance:] == 0, part[:-distance], 0)
            distance *= 2
    return out


def _heads_at_the_end(x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """As if a head were the last element of its segment."""
    return _segmented(x, np.r_[np.uint8(1), heads[:-1]])


SIZES = (1, 33, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 9 * BLOCK + 77)


def _budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "flops_f64": (0, FLOAT64),
        "barriers": (18 * case.grid, ENOUGH),
        "shared_load_requests": (
            LOADS * case.grid,
            "In each step a thread reads two elements, not all before its own.",
        ),
        "atomic_requests": (0, ALONE),
        # A scan by Brent and Kung has bank conflicts, as in this chapter.
        "shared_load_wavefronts": (math.inf, ""),
        "shared_store_wavefronts": (math.inf, ""),
    }


@cuda.jit(device=True)
def block_scan(scanned):
    """Running sums of the block's BLOCK values in shared memory, in place.

    It has a barrier at its start and one at its end.
    """
    thread, distance = cuda.threadIdx.x, 1
    cuda.syncthreads()
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance:
            value += scanned[thread - distance]
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2


# ------------------------------------------------------------------------------------------------------ scan/exclusive


def _exclusive_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in SIZES:
        # Whole numbers are exact in any order; none is 0, so a lost one changes the sum.
        x = rng.integers(1, 8, n).astype(np.float32)
        args = x, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {1: _by_blocks(x, _exclusive)}))
    return cases


@cuda.jit
def exclusive_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else np.float32(0)
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else np.float32(0)


# -------------------------------------------------------------------------------------------------------- scan/reverse


def _reverse_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in SIZES:
        x = rng.integers(1, 8, n).astype(np.float32)
        args = x, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {1: _by_blocks(x, _reverse)}))
    return cases


@cuda.jit
def reverse_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i] if i < x.size else np.float32(0)
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1 - thread]


# ------------------------------------------------------------------------------------------------------ scan/segmented


def _segmented_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in SIZES:
        x = rng.integers(1, 8, n).astype(np.float32)
        # Every other block has one head or two: who walks back to the last one does far more than a scan there.
        heads = (rng.random(n) < np.where(np.arange(n) // BLOCK % 2, 0.005, 0.05)).astype(np.uint8)
        heads[-1] = 1
        args = x, heads, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {2: _segmented(x, heads)}))
    return cases


@cuda.jit
def segmented_answer(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread] = x[i] if i < x.size else np.float32(0)
    head[thread] = heads[i] if i < x.size else 1
    cuda.syncthreads()
    while distance < BLOCK:
        value, seen = scanned[thread], head[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
            seen = head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


def _segmented_budget(case: Case) -> dict[str, tuple[float, str]]:
    # Some scan twice: the places of the heads first, and then the values.
    enough = (
        "A scan has eight steps, with two barriers each. At most two are needed: one of the heads, one of the values."
    )
    return _budget(case) | {"barriers": (36 * case.grid, enough)}


# -------------------------------------------------------------------------------------------------------- scan/compact


def _compact_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.float32)
        kept = x > 0
        out = unwritten(x.size + 1, np.float32)
        expected = out.copy()
        expected[: kept.sum()] = x[kept]
        return Case(name, (x, np.r_[0, np.cumsum(kept)[:-1]], out), blocks(x.size, BLOCK), BLOCK, {2: expected})

    return [
        case("one positive number", np.array([3.0])),
        case("a block of positive numbers", 1 + rng.random(BLOCK)),
        case("the positive ones at the end", np.r_[-np.ones(40), 1 + np.arange(9)]),
        case("many zeros", rng.integers(-1, 3, BLOCK + 1)),
        case("three blocks less one", rng.standard_normal(3 * BLOCK - 1)),
        case("twenty blocks and a bit", rng.standard_normal(20 * BLOCK + 7)),
    ]


@cuda.jit
def compact_answer(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[before[i]] = x[i]


# -------------------------------------------------------------------------------------------------------- scan/highest

WARP = 32


def _by_warps(x: np.ndarray, scan: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``scan`` of each warp's elements by themselves."""
    return np.concatenate([scan(x[first : first + WARP]) for first in range(0, x.size, WARP)])


def _highest_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in SIZES:
        x = -rng.permutation(np.arange(1, n + 1)).astype(np.float32)  # all negative, and no two alike
        expected = _by_warps(x, np.maximum.accumulate)
        cases.append(Case(f"n = {n}", (x, unwritten(n, np.float32)), blocks(n, BLOCK), BLOCK, {1: expected}))
    return cases


@cuda.jit
def highest_answer(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else np.float32(-np.inf)
    for distance in (1, 2, 4, 8, 16):
        value = max(value, cuda.shfl_up_sync(0xFFFFFFFF, value, distance))
    if i < x.size:
        out[i] = value


def _from_behind(x: np.ndarray) -> np.ndarray:
    return np.maximum.accumulate(x[::-1])[::-1]


def _highest_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "barriers": (0, "The lanes of a warp shuffle together: no barrier is needed."),
        "shared_store_requests": (0, "A shuffle passes a value from register to register, without shared memory."),
        "flops_f64": (0, "A literal such as 0.0 is float64: write np.float32(...)."),
    }


# ---------------------------------------------------------------------------------------------------------- scan/chain


def _chain_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 2, 9, 40, 101):
        totals = rng.integers(1, 100, n)
        args = totals, np.zeros(n, np.int64), unwritten(n, np.int64)
        expected = {1: np.ones(n, np.int64), 2: np.cumsum(totals)}
        cases.append(Case(f"{n} tile{'s' * (n > 1)}", args, n, WARP, expected))
    return cases


@cuda.jit
def chain_answer(totals, states, out):
    tile = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        before = 0
        if tile > 0:
            while cuda.atomic.add(states, tile - 1, 0) == 0:
                pass
            cuda.threadfence()
            before = out[tile - 1]
        out[tile] = before + totals[tile]
        cuda.threadfence()
        cuda.atomic.exch(states, tile, 1)


def _only_one_before(totals: np.ndarray, states: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.ones_like(states), 2: totals + np.r_[0, totals[:-1]]}


def _without_its_own(totals: np.ndarray, states: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.ones_like(states), 2: np.cumsum(totals) - totals}


EXERCISES = (
    Exercise(
        "scan/exclusive",
        task="out[i] is the sum of those elements of x that stand before i in i's own block: an exclusive scan of each "
        f"block. The launch has {BLOCK} threads per block, and one thread or more for each element. `block_scan` makes "
        "inclusive running sums of a shared array in place.",
        parameters="x, out",
        cases=_exclusive_cases,
        budget=_budget,
        answer=exclusive_answer,
        hints=(
            f"Put the elements into a shared array of {BLOCK} float32. What does a thread beyond the end bring?",
            "The exclusive sum of an element is the inclusive one of its neighbour.",
            "Thread 0 has no neighbour: scanned[-1] would be the last element.",
        ),
        traps=(
            Trap(
                "inclusive",
                "An exclusive sum does not count the element itself.",
                lambda x, out: {1: _by_blocks(x, np.cumsum)},
            ),
        ),
    ),
    Exercise(
        "scan/reverse",
        task="out[i] is the sum of x[i] and all elements behind it in its block: a scan from right to left. The launch "
        f"has {BLOCK} threads per block, and one thread or more for each element. Use `block_scan` as it is.",
        parameters="x, out",
        cases=_reverse_cases,
        budget=_budget,
        answer=reverse_answer,
        hints=(
            "Nobody says that thread t has to put its element into scanned[t].",
            "A scan from right to left is a scan from left to right of the mirrored array.",
        ),
        traps=(
            Trap(
                "forwards",
                "These are the sums up to each element, not from each element on.",
                lambda x, out: {1: _by_blocks(x, np.cumsum)},
            ),
            Trap(
                "exclusive",
                "The element itself counts.",
                lambda x, out: {1: _by_blocks(x, _reverse) - x},
            ),
            Trap(
                "mirrored once",
                "The sums are right, and in the reverse order: mirror on the way out, too.",
                lambda x, out: {1: _by_blocks(x, _mirrored_once)},
            ),
        ),
    ),
    Exercise(
        "scan/segmented",
        task="Running sums that begin afresh at each i with heads[i] = 1, and at the beginning of each block. heads is "
        f"uint8, 0 or 1. The launch has {BLOCK} threads per block, and one thread or more for each element.",
        parameters="x, heads, out",
        cases=_segmented_cases,
        budget=_segmented_budget,
        answer=segmented_answer,
        hints=(
            "Begin with the loop of `block_scan`, and with a second shared array, for the heads.",
            "A thread that has met a head adds nothing more.",
            "After a step an element stands for a stretch twice as long. Is there a head in it?",
        ),
        traps=(
            Trap(
                "heads ignored",
                "A head begins a new sum.",
                lambda x, heads, out: {2: _by_blocks(x, np.cumsum)},
            ),
            Trap(
                "exclusive",
                "The element itself counts.",
                lambda x, heads, out: {2: _segmented(x, heads) - x},
            ),
            Trap(
                "heads at the end",
                "A head is the first element of its segment, not the last of the one before.",
                lambda x, heads, out: {2: _heads_at_the_end(x, heads)},
            ),
            Trap(
                "heads stay where they are",
                "An element that has been added to stands for more elements: is there a head among them?",
                lambda x, heads, out: {2: _heads_stay(x, heads)},
            ),
        ),
    ),
    Exercise(
        "scan/compact",
        task="Stream compaction: write the elements of x that are greater than 0 to out, one after another, in their "
        "order. before[i] is the number of such elements before i: an exclusive scan. The rest of out stays as it was. "
        "x and out are float32, and before is int64. "
        f"The launch has {BLOCK} threads per block, and one thread or more for each element.",
        parameters="x, before, out",
        cases=_compact_cases,
        answer=compact_answer,
        budget=lambda case: {"atomic_requests": (0, "The scan has already counted: no atomics are needed.")},
        advice=dict.fromkeys(
            ("race", BETWEEN),
            "Two elements go to one place. Are both greater than 0, and their places counted from the start of out?",
        ),
        hints=(
            "Each thread has one element, or none. Which of them write?",
            "If three elements are kept before mine, mine goes to place 3.",
        ),
        traps=(
            Trap(
                "not moved",
                "The elements are the right ones, each in its old place: before[i] is the new one.",
                lambda x, before, out: {2: np.r_[np.where(x > 0, x, out[:-1]), out[-1:]]},
            ),
            Trap(
                "rest changed",
                "The elements of out behind the last one that is kept are not to be written.",
                lambda x, before, out: {2: np.r_[x[x > 0], np.zeros(x.size - (x > 0).sum()), np.nan]},
            ),
            Trap(
                "one place too far",
                "If nothing is kept before an element, it goes to place 0.",
                lambda x, before, out: {2: np.r_[out[:1], x[x > 0], out][: out.size]},
            ),
        ),
    ),
    Exercise(
        "scan/highest",
        task=f"A running maximum in each warp: out[i] is the largest of the elements of i's warp, of {WARP} elements, "
        "from its first one to i. Use shuffles, and no shared memory. x and out are float32. "
        f"The launch has {BLOCK} threads per block, and one thread or more for each element.",
        parameters="x, out",
        cases=_highest_cases,
        budget=_highest_budget,
        answer=highest_answer,
        hints=(
            "Begin with the loop of `warp_scan`: only the operator is another.",
            "All lanes shuffle, also those beyond the end. What do they bring that changes no maximum?",
            "A lane without a partner gets its own value back. Does that do any harm here?",
        ),
        traps=(
            Trap(
                "starts from 0",
                "All elements may be negative: begin with the element itself, or with minus infinity.",
                lambda x, out: {1: _by_warps(x, lambda part: np.maximum(np.maximum.accumulate(part), 0))},
            ),
            Trap(
                "from behind",
                "This is the maximum from each element on: shfl_up_sync brings what stands before.",
                lambda x, out: {1: _by_warps(x, _from_behind)},
            ),
            Trap(
                "the whole warp's",
                "Each lane has the maximum of its warp: it may look at lanes before it only.",
                lambda x, out: {1: _by_warps(x, lambda part: np.full(part.size, part.max()))},
            ),
            Trap(
                "a sum",
                "These are running sums: the operator is max.",
                lambda x, out: {1: _by_warps(x.astype(np.float64), np.cumsum)},
            ),
        ),
    ),
    Exercise(
        "scan/chain",
        task="Tiles pass on their totals. out[t] is totals[0] + ... + totals[t], and block t writes it: its thread 0 "
        "waits until block t - 1 is done, adds totals[t] to out[t - 1], writes out[t], and then sets states[t] from 0 "
        f"to 1. All arrays are int64. The launch has one block of {WARP} threads for each tile, and few enough that "
        "all run at once.",
        parameters="totals, states, out",
        cases=_chain_cases,
        answer=chain_answer,
        budget=lambda case: {"barriers": (0, "Only thread 0 works: a block has nothing to agree on.")},
        advice={
            "race between blocks": "Tile t reads out[t - 1] when it has seen the state, and a state is read and set by "
            "cuda.atomic. What is announced may be seen later than the announcement: write it, then a "
            "cuda.threadfence(), then the state.",
            "idle threads": "out[t - 1] has all in it that stands before tile t: two loads for each tile are enough.",
        },
        hints=(
            "Begin with the chain without a fence above.",
            "Read a state by cuda.atomic.add(states, t - 1, 0): a plain read in a loop may be done only once.",
            "Block 0 waits for nobody.",
            "A GPU needs two fences: one before the state is set, and one between the wait and the read of out[t - 1]. "
            "check() finds out only that the first is missing.",
        ),
        traps=(
            Trap("only one tile before", "Add to out[t - 1], which has all before it in it.", _only_one_before),
            Trap("exclusive", "out[t] counts tile t itself.", _without_its_own),
        ),
    ),
)
