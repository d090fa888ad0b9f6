"""Exercises of notebooks/35_filter.ipynb: a warp parted in two, a block that keeps its order, runs and the way back."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block
WARPS = BLOCK // 32


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# -------------------------------------------------------------------------------------------------- filter/partition


def _parted(x: np.ndarray, turned: bool = False) -> np.ndarray:
    """Each 32 elements, those above 0 first, both parts in order; ``turned``: the second part from its end."""
    parts = [x[first : first + 32] for first in range(0, x.size, 32)]
    rest = -1 if turned else 1
    return np.concatenate([np.append(part[part > 0], part[~(part > 0)][::rest]) for part in parts])


def _partition_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.int32)
        return Case(name, (x, unwritten(x.size, np.int32)), _blocks(x.size), BLOCK, {1: _parted(x)})

    return [
        case("one element", np.array([-3])),
        case("a warp, alternating", np.arange(1, 33) * np.resize([1, -1], 32)),
        case("a warp, all kept", np.arange(1, 33)),
        case("zeros and ones", np.resize([0, 0, 1], 70)),
        case("a block less one", rng.integers(-99, 99, BLOCK - 1)),
        case("two blocks", rng.integers(-99, 99, 2 * BLOCK)),
        case("n = 5000", rng.integers(-9999, 9999, 5000)),
    ]


@cuda.jit
def partition_answer(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i] if i < x.size else 0
    kept = cuda.ballot_sync(FULL_WARP, value > 0)
    below = cuda.popc(np.uint32(kept & (1 << lane) - 1))  # kept elements of lower lanes
    if i < x.size:
        if value > 0:
            out[i - lane + below] = value
        else:
            out[i - lane + cuda.popc(kept) + lane - below] = value


# ------------------------------------------------------------------------------------------------------- filter/runs


def _heads(x: np.ndarray) -> np.ndarray:
    return np.append(True, x[1:] != x[:-1])


def _runs_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.int32)
        heads = _heads(x)
        places = (np.cumsum(heads) - heads).astype(np.int32)
        starts = np.flatnonzero(heads).astype(np.int32)
        outputs = [unwritten(starts.size, np.int32) for _ in range(2)]
        return Case(name, (x, places, *outputs), _blocks(x.size), BLOCK, {2: x[starts], 3: starts})

    return [
        case("one element", np.array([7])),
        case("a block, all equal", np.full(BLOCK, 5)),
        case("no two neighbours equal", np.arange(50, 0, -1)),
        case("a run from one block into the next", np.repeat([4, 9], [BLOCK + 10, 30])),
        case("two blocks", rng.integers(0, 3, 2 * BLOCK)),
        case("n = 5000, some value twice", np.repeat(rng.integers(0, 50, 500), 10)),
    ]


@cuda.jit
def runs_answer(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and (i == 0 or x[i] != x[i - 1]):
        values[places[i]] = x[i]
        starts[places[i]] = i


def _last_of_each(x: np.ndarray, places: np.ndarray, values: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    ends = np.flatnonzero(np.append(x[1:] != x[:-1], True)).astype(np.int32)
    return {2: x[ends], 3: ends}


# ------------------------------------------------------------------------------------------------------ filter/block


def _packed(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The elements that are kept from the front of ``out`` on, and behind them what it held before."""
    return np.append(kept, out[kept.size :])[: out.size]


def _zero_kept(x: np.ndarray, starts: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _packed(x[x >= 0], out)}


def _block_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray, room: int = 0) -> Case:
        x = x.astype(np.float32)
        counts = [int((x[first : first + BLOCK] > 0).sum()) for first in range(0, x.size, BLOCK)]
        starts = (np.cumsum(counts) - counts).astype(np.int64)
        out = unwritten(max(sum(counts), room), np.float32)
        return Case(name, (x, starts, out), _blocks(x.size), BLOCK, {2: _packed(x[x > 0], out)})

    return [
        case("one element", np.array([2])),
        case("a block, one element of each warp kept", np.where(np.arange(BLOCK) % 32 == 9, np.arange(BLOCK), -1)),
        case("a block, all kept", np.arange(1, BLOCK + 1)),
        # With room to spare: who keeps a 0 stores too many elements, and would else only be told that out has no more.
        case("zeros and ones", np.resize([0, 0, 1], BLOCK), room=BLOCK),
        case("a block and one", np.arange(1, BLOCK + 2) * np.resize([1, 1, -1], BLOCK + 1)),
        case("two blocks", rng.standard_normal(2 * BLOCK)),
        case("NaN among them", np.where(np.arange(700) % 3 == 0, np.nan, rng.standard_normal(700))),
        case("n = 5000", rng.standard_normal(5000)),
    ]


@cuda.jit
def block_answer(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)  # of each warp
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x] + cuda.popc(np.uint32(lanes & (1 << cuda.laneid) - 1))
    for earlier in range(warp):
        place += counts[earlier]
    if kept:
        out[place] = x[i]


def _block_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {"atomic_requests": (0, "No atomic is needed: the places follow from ballots and from the warps' counts.")}


# ----------------------------------------------------------------------------------------------------- filter/repeat


def _repeat_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, lengths: np.ndarray) -> Case:
        values = rng.permutation(lengths.size).astype(np.int32) + 1
        ends = np.cumsum(lengths).astype(np.int32)
        out = unwritten(int(ends[-1]), np.int32)
        return Case(name, (values, ends, out), _blocks(out.size), BLOCK, {2: np.repeat(values, lengths)})

    return [
        case("one element", np.array([1])),
        case("two runs", np.array([2, 3])),
        case("each element once", np.ones(BLOCK, np.int64)),
        case("a long run among short ones", np.array([1, 2, 2 * BLOCK, 1])),
        case("runs of length 0", np.array([0, 0, 3, 0, 2, 0, 0, 5, 0])),
        case("n = 5000", np.append(np.full(624, 8), 8)),
    ]


@cuda.jit
def repeat_answer(values, ends, out):
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size - 1
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > i:  # the run, or one behind it
                high = middle
            else:
                low = middle + 1
        out[i] = values[low]


def _search_begins(values: np.ndarray, ends: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    at = np.searchsorted(ends, np.arange(out.size), side="left")
    return {2: values[at]}


def _repeat_budget(case: Case) -> dict[str, tuple[float, str]]:
    n, steps = case.args[2].size, int(case.args[1].size).bit_length()
    most = 4 * n * (steps + 2)
    return {"global_load_bytes": (most, "The ends rise: halve them in each step, and do not look at all of them.")}


EXERCISES = (
    Exercise(
        "filter/partition",
        task="Let each warp part its 32 elements of the int32 vector x: first those above 0, then the others, both in "
        f"their order, into the same 32 places of out. The launch has {BLOCK} threads a block, and one thread or more "
        "for each element. The last warp may have fewer elements.",
        parameters="x, out",
        cases=_partition_cases,
        answer=partition_answer,
        hints=(
            "cuda.ballot_sync(0xFFFFFFFF, condition) gives all lanes a bit of each lane. All 32 lanes must call it.",
            "cuda.popc(mask & (1 << lane) - 1) is how many lanes below this one are in the mask.",
            "Of the lanes below this one, those that are not kept come before it in the second part.",
        ),
        traps=(
            Trap(
                "second part turned around",
                "The elements that are not kept stay in their order, too.",
                lambda x, out: {1: _parted(x, turned=True)},
            ),
        ),
    ),
    Exercise(
        "filter/runs",
        task="A run is a stretch of equal neighbours. For each run of the int32 vector x, write its value to values "
        "and the index of its first element to starts, run after run. places[i] is the exclusive scan of a flag that "
        f"is 1 where a run begins: how many runs begin before element i. The launch has {BLOCK} threads a block, and "
        "one thread or more for each element.",
        parameters="x, places, values, starts",
        cases=_runs_cases,
        answer=runs_answer,
        hints=(
            "A run begins at element 0, and where an element differs from the one before it.",
            "Only the first element of a run may write: at places[i].",
        ),
        traps=(
            Trap("last of each run", "starts has the index of a run's first element, not of its last.", _last_of_each),
        ),
    ),
    Exercise(
        "filter/repeat",
        task="Undo run-length encoding. values[k] is the value of run k of the int32 vector out, and ends[k] the index "
        "behind its last element, so the runs before it and itself have ends[k] elements. Let each thread write one "
        f"element. A run may have no element. The last run ends with out. The launch has {BLOCK} threads a block, and "
        "one thread or more for each element.",
        parameters="values, ends, out",
        cases=_repeat_cases,
        budget=_repeat_budget,
        answer=repeat_answer,
        advice={
            "uncoalesced": "Give a thread to each element, not to each run: neighbours then write neighbours, and none "
            "waits for a long run."
        },
        hints=(
            "Element i is in the first run that ends behind it: ends[k] > i.",
            "Keep two numbers, low and high, between which the run must be, and look at the end in their middle.",
            "If ends[middle] > i the run is middle or one before it, and otherwise it is behind middle.",
        ),
        traps=(
            Trap(
                "a run too early",
                "Run k has the elements before ends[k], and not that with the number ends[k].",
                _search_begins,
            ),
        ),
    ),
    Exercise(
        "filter/block",
        task="Keep the elements of the float32 vector x that are above 0, in their order. starts[b] is the place in "
        "out of the first one that block b keeps: a scan has found it. Use no atomics. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, starts, out",
        cases=_block_cases,
        budget=_block_budget,
        answer=block_answer,
        hints=(
            "Within a warp, a ballot says how many lanes below this one keep their element.",
            f"How many do the earlier warps keep? Let each of the {WARPS} write its count to shared memory.",
            "A barrier stands between writing the counts and adding up those of the earlier warps.",
        ),
        traps=(Trap("0 is kept", "A 0 is not above 0: it is left out.", _zero_kept),),
    ),
)
