"""Exercises of notebooks/42_sorting.ipynb: keys split by a bit, the rank of a key in its warp, and a warp in order."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


def _keys(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Keys of int32, from few to many, by name."""
    made = {
        "one key": np.array([6]),
        "a warp, 0 to 31": np.arange(32),
        "33 keys that are all equal": np.full(33, 9),
        "a block of 0 and 1 in turn": np.arange(BLOCK) % 2,
        "a block less one": rng.integers(0, 16, BLOCK - 1),
        "a block and one": rng.integers(0, 2**31, BLOCK + 1),
        "n = 1200": rng.integers(0, 2**31, 1200),
    }
    return {name: x.astype(np.int32) for name, x in made.items()}


# --------------------------------------------------------------------------------------------------------- sort/split


def _split(x: np.ndarray, bit: int, ones_first: bool = False, turned: bool = False) -> np.ndarray:
    """Each block's keys with the bit 0, then those with 1. ``turned``: the latter in reversed order."""
    parts = []
    for first in range(0, x.size, BLOCK):
        keys = x[first : first + BLOCK]
        one = (keys >> bit & 1).astype(bool)
        halves = [keys[~one], keys[one][::-1] if turned else keys[one]]
        parts += halves[::-1] if ones_first else halves
    return np.concatenate(parts)


def _split_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for number, (name, x) in enumerate(_keys(rng).items()):
        bit = number % 4
        args = x, bit, unwritten(x.size, np.int32)
        cases.append(Case(f"{name}, bit {bit}", args, _blocks(x.size), BLOCK, {2: _split(x, bit)}))
    return cases


@cuda.jit
def split_answer(x, bit, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    ones = cuda.shared.array(BLOCK, np.int32)
    one = x[i] >> bit & 1 if i < x.size else 0
    ones[thread] = one
    cuda.syncthreads()
    distance = 1
    while distance < BLOCK:  # ones up to this thread: the scan of chapter 34
        earlier = ones[thread - distance] if thread >= distance else 0
        cuda.syncthreads()
        ones[thread] += earlier
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        count = min(BLOCK, x.size - (i - thread))
        before = ones[thread] - one
        out[i - thread + (count - ones[BLOCK - 1] + before if one else thread - before)] = x[i]


# ---------------------------------------------------------------------------------------------------------- sort/rank


def _ranks(x: np.ndarray, itself: int = 0, whole_warp: bool = False, later: bool = False) -> np.ndarray:
    """How many keys before each one in its warp have the same last four bits."""
    out = np.zeros(x.size, np.int32)
    for i in range(x.size):
        first = i // 32 * 32
        others = x[first : first + 32] if whole_warp else x[i + 1 : first + 32] if later else x[first:i]
        out[i] = (others % 16 == x[i] % 16).sum() + itself
    return out


def _rank_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case(name, (x, unwritten(x.size, np.int32)), _blocks(x.size), BLOCK, {1: _ranks(x)})
        for name, x in _keys(rng).items()
    ]


@cuda.jit
def rank_answer(x, out):
    i = cuda.grid(1)
    digit = x[i] & 15 if i < x.size else 0
    peers = cuda.ballot_sync(FULL_WARP, i < x.size)
    for bit in range(4):
        mine = digit >> bit & 1
        ones = cuda.ballot_sync(FULL_WARP, mine)
        peers &= ones if mine else ~ones
    if i < x.size:
        out[i] = cuda.popc(np.uint32(peers & (1 << cuda.laneid) - 1))


def _rank_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "barriers": (0, "A ballot needs no barrier: the lanes of a warp vote together."),
        "declared_shared_bytes": (0, "A ballot gives its result to each lane of the warp, in a register."),
    }


# ---------------------------------------------------------------------------------------------------------- sort/warp


def _by_warps(x: np.ndarray, step: int = 1) -> np.ndarray:
    """Each 32 keys in order; ``step`` of -1: the greatest first."""
    return np.concatenate([np.sort(x[first : first + 32])[::step] for first in range(0, x.size, 32)])


def _with_empty_lanes(x: np.ndarray, word: int) -> np.ndarray:
    """What comes out if lanes of the last warp that have no key take part with this word."""
    lanes = np.append(x, np.full(-x.size % 32, word, np.int32))
    return _by_warps(lanes)[: x.size]


def _warp_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        return Case(name, (x, unwritten(x.size, np.int32)), _blocks(x.size), BLOCK, {1: _by_warps(x)})

    lowest = {
        "a warp, from 31 to 0, less 16": np.arange(15, -17, -1),
        "the least and the greatest": [-(2**31), 2**31 - 1],
    }
    cases = [case(name, np.array(x, np.int32)) for name, x in lowest.items()]
    return [case(name, x) for name, x in _keys(rng).items()] + cases


@cuda.jit
def warp_answer(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    key = x[i] if i < x.size else np.int32(2**31 - 1)  # a lane without a key comes last
    run = 2
    while run <= 32:  # runs of this many keys are in order: one rises, the next one falls
        distance = run // 2
        while distance > 0:
            other = cuda.shfl_xor_sync(FULL_WARP, key, distance)
            if (lane & distance == 0) == (lane & run == 0):
                key = min(key, other)
            else:
                key = max(key, other)
            distance //= 2
        run *= 2
    if i < x.size:
        out[i] = key


def _warp_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "barriers": (0, "The lanes of a warp pass keys on by shuffles, which need no barrier."),
        "declared_shared_bytes": (0, "The lanes of a warp pass keys on by shuffles, from register to register."),
        "global_load_bytes": (4 * case.args[0].size, "Each lane needs to read its own key only."),
    }


EXERCISES = (
    Exercise(
        "sort/split",
        task="Sort the keys of each block by one bit. Block b has x[256 b] to x[256 b + 255]. Write to the same places "
        "of out those whose bit number `bit` is 0, in their order, and behind them those whose bit is 1, in theirs. "
        f"Bit 0 is the last one. The keys are int32, 0 or more. A block has {BLOCK} threads, one for each key; the "
        "last one may have fewer keys.",
        parameters="x, bit, out",
        cases=_split_cases,
        answer=split_answer,
        hints=(
            "A key whose bit is 0 goes as far to the front as there are ones before it.",
            "A key whose bit is 1 goes behind all zeros of the block, and behind the ones before it.",
            "Both need the number of ones before each thread, and that in the whole block: a scan in shared memory.",
        ),
        traps=(
            Trap(
                "ones first",
                "The keys whose bit is 0 come first.",
                lambda x, bit, out: {2: _split(x, bit, ones_first=True)},
            ),
            Trap(
                "second part turned around",
                "The keys whose bit is 1 must keep their order, or the work of earlier passes is lost.",
                lambda x, bit, out: {2: _split(x, bit, turned=True)},
            ),
        ),
    ),
    Exercise(
        "sort/warp",
        task="Sort the keys of each warp: x[32 w] to x[32 w + 31] in ascending order to the same places of out. Pass "
        f"keys on by shuffles, without shared memory. The keys are int32. A block has {BLOCK} threads, one for each "
        "key; lane 0 of each warp has a key whose index is a multiple of 32. The last warp may have fewer keys.",
        parameters="x, out",
        cases=_warp_cases,
        budget=_warp_budget,
        answer=warp_answer,
        hints=(
            "cuda.shfl_xor_sync(0xFFFFFFFF, key, distance) gives a lane the key of lane ^ distance.",
            "Of two lanes that look at each other, one keeps the lesser key and the other one the greater.",
            "Make runs of 2, 4, 8, 16 and 32 keys. In the steps to one of them the distance is halved until it is 1. "
            "Where lane & run is 0 a run rises, and otherwise it falls, so that two of them make the next one.",
            "A lane without a key takes part as well: with a key that belongs at the end.",
        ),
        traps=(
            Trap(
                "descending",
                "The least key of a warp comes first.",
                lambda x, out: {1: _by_warps(x, -1)},
            ),
            Trap(
                "lanes without a key",
                "In the last warp some lanes have no key. The 0 that they hold is sorted among the keys: they must "
                "hold what comes behind every key.",
                lambda x, out: {1: _with_empty_lanes(x, 0)},
            ),
        ),
    ),
    Exercise(
        "sort/rank",
        task="A key's digit is its last four bits. Write to out[i] how many keys before x[i] in its warp have the same "
        f"digit. Find them by ballots, without shared memory. The keys are int32, 0 or more. A block has {BLOCK} "
        "threads, one for each key; lane 0 of each warp has a key whose index is a multiple of 32.",
        parameters="x, out",
        cases=_rank_cases,
        budget=_rank_budget,
        answer=rank_answer,
        hints=(
            "A ballot of one bit of the digit tells a lane which lanes have a 1 there. The others have a 0.",
            "The lanes with the same digit are those that agree in all four bits.",
            "All 32 lanes must vote, also those without a key. These stand behind all keys, so no rank counts them.",
        ),
        traps=(
            Trap(
                "counts itself",
                "Only keys before x[i] count: the first key with a digit has rank 0.",
                lambda x, out: {1: _ranks(x, itself=1)},
            ),
            Trap(
                "later lanes counted",
                "Count the lanes below this one only.",
                lambda x, out: {1: _ranks(x, whole_warp=True)},
            ),
            Trap(
                "later lanes alone",
                "The keys before x[i] are in lanes below, so in lower bits.",
                lambda x, out: {1: _ranks(x, later=True)},
            ),
        ),
    ),
)
