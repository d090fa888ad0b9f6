"""Exercises of notebooks/30_reduction.ipynb: a tree with an atomic, shared memory used twice, shuffles, pairs."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block, except in `reduction/warps`
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."
ONE_ATOMIC = "One a block is enough, in shared memory too: let the block agree on its sum by a tree or by shuffles."
OWN_PLACE = "Each block has its own place in out: no atomics are needed."


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)  # rounded up


# ------------------------------------------------------------------------------------------------------ reduction/dot


def _dot_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray, y: np.ndarray, tolerance: float = 0.0, blocks: int | None = None) -> Case:
        x, y = x.astype(np.float32), y.astype(np.float32)
        exact = np.array([np.dot(x.astype(np.float64), y)])
        args = x, y, np.zeros(1, np.float32)
        return Case(name, args, blocks or _blocks(x.size), BLOCK, {2: exact}, {2: tolerance})

    # Whole numbers are exact in float32 in any order, and so are 256 times their sum: 5197 products are below 2^16.
    # None is 0, so that a lost element shows.
    cases = [case(f"n = {n}", *rng.integers(1, 5, (2, n))) for n in (1, 33, BLOCK - 1, BLOCK, BLOCK + 1)]
    cases.append(case("n = 100, and two blocks with nothing to do", *rng.integers(1, 5, (2, 100)), blocks=3))
    x, y = rng.standard_normal((2, 1000), dtype=np.float32)
    # A product is rounded, and so are at most n - 1 additions on its way, each by 2^-24 of at most sum |products|.
    allowed = 2**-24 * x.size * float(np.abs(x * y).sum())
    cases.append(case("n = 1000, signs that cancel", x, y, allowed))
    cases.append(case("n = 5197", *rng.integers(1, 5, (2, 5197))))
    return cases


@cuda.jit
def dot_answer(x, y, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else np.float32(0)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


def _dot_of_whole_blocks(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    whole = x.size // BLOCK * BLOCK
    return {2: np.array([np.dot(x[:whole].astype(np.float64), y[:whole])])}


def _added_by_all(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    whole = not (x % 1).any()  # else the additions are rounded: NaN matches any value
    return {2: np.array([BLOCK * np.dot(x.astype(np.float64), y) if whole else np.nan])}


def _dot_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (case.grid, ONE_ATOMIC),
        "barriers": (10 * case.grid, "A block of 256 has eight levels: one barrier for each, and one or two beside."),
    }


# -------------------------------------------------------------------------------------------------- reduction/barrier


def _barrier_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.float32)
        parts = [x[first : first + BLOCK] for first in range(0, x.size, BLOCK)]
        # Two elements and one subtraction: there is nothing to round in another way.
        spread = np.array([part.max() - part.min() for part in parts], np.float32)
        return Case(name, (x, unwritten(len(parts), np.float32)), len(parts), BLOCK, {1: spread})

    return [
        case("one block", rng.standard_normal(BLOCK)),
        case("all negative", -1 - rng.random(BLOCK)),
        case("all equal", np.full(BLOCK, 0.1)),
        case("a block and one", rng.standard_normal(BLOCK + 1)),
        case("four blocks less one", rng.standard_normal(4 * BLOCK - 1)),
    ]


@cuda.jit(device=True)
def largest(partial):
    """The largest of the block's BLOCK values in shared memory, in every thread."""
    thread, stride = cuda.threadIdx.x, BLOCK // 2
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] = max(partial[thread], partial[thread + stride])
        stride //= 2
    cuda.syncthreads()
    return partial[0]


@cuda.jit
def spread_answer(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncthreads()  # until all have read partial[0], nobody may write it
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


def _barrier_budget(case: Case) -> dict[str, tuple[float, str]]:
    # `largest` has nine, and is called twice.
    return {
        "barriers": (19 * case.grid, "One barrier more is enough; each further one only makes the block wait."),
        "atomic_requests": (0, OWN_PLACE),
    }


# ---------------------------------------------------------------------------------------------------- reduction/warps


def _warps_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, block in (
        (32, 32),
        (1, 64),
        (64, 64),
        (200, 64),
        (255, 256),
        (256, 256),
        (257, 256),
        (1024, 1024),
        (4392, 256),
    ):
        x = rng.integers(1, 100, n).astype(np.float32)  # whole and never 0: exact in any order, and a lost one shows
        sums = np.add.reduceat(x.astype(np.float64), np.arange(0, n, block))
        name = f"n = {n} and {block} threads a block"
        cases.append(Case(name, (x, unwritten(sums.size, np.float32)), sums.size, block, {1: sums}))
    return cases


@cuda.jit(device=True)
def warp_sum(value):
    """In lane 0, the sum of the warp's 32 values."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
    return value


@cuda.jit
def block_sums_answer(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else np.float32(0))
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:  # the whole first warp: every lane has to take part in a shuffle
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else np.float32(0))
        if thread == 0:
            out[cuda.blockIdx.x] = value


def _warps_budget(case: Case) -> dict[str, tuple[float, str]]:
    warps = case.grid * case.block // 32
    return {
        "flops_f64": (0, FLOAT64),
        "barriers": (case.grid, "One barrier a block is enough: within a warp the shuffles do the waiting."),
        "shared_store_wavefronts": (warps, "Shared memory takes one value a warp, no more."),
        "shared_load_wavefronts": (warps, "What the warps wrote is read once."),
        "atomic_requests": (0, OWN_PLACE),
    }


# --------------------------------------------------------------------------------------------------- reduction/argmax


def _argmax_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.float32)
        firsts = range(0, x.size, BLOCK)
        where = np.array([first + np.argmax(x[first : first + BLOCK]) for first in firsts], np.int64)
        return Case(name, (x, unwritten(where.size, np.int64)), where.size, BLOCK, {1: where})

    return [
        case("one element", np.array([-3.0])),
        case("minus infinity only", np.full(40, -np.inf)),
        case("all negative, in half a block", -1 - rng.random(BLOCK // 2)),
        case("one block", rng.standard_normal(BLOCK)),
        case("all equal, a block and one", np.full(BLOCK + 1, 0.1)),
        case("minus infinity only, a block and a bit", np.full(BLOCK + 40, -np.inf)),
        case("the largest at the end", np.arange(2 * BLOCK + 9)),
        case("many of equal size", rng.integers(0, 4, 3 * BLOCK)),
        case("ten blocks and a bit", rng.standard_normal(10 * BLOCK + 99)),
    ]


@cuda.jit(device=True)
def beats(value, index, i, j):
    """Whether the pair at place j of the two arrays wins against the one at place i."""
    return value[j] > value[i] or (value[j] == value[i] and index[j] < index[i])


@cuda.jit
def argmax_answer(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    value, index = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int64)
    value[thread] = x[i] if i < x.size else np.float32(-np.inf)
    index[thread] = i
    while stride > 0:
        cuda.syncthreads()
        if thread < stride and beats(value, index, thread, thread + stride):
            value[thread], index[thread] = value[thread + stride], index[thread + stride]
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = index[0]


def _argmax_budget(case: Case) -> dict[str, tuple[float, str]]:
    # The last term: warps beyond the end may read the last element again, where a thread's index is cut off at it.
    sectors = _blocks(case.args[0].nbytes, 32) + BLOCK // 32
    return {
        "global_load_sectors": (sectors, "Read each element once: the tree is for shared memory or registers."),
        # Some grow two trees: one for the values, and one for the indices.
        "barriers": (20 * case.grid, "A tree over 256 has eight levels: one barrier for each, and one or two beside."),
        # Some let the threads that have the largest element agree on the least index by atomics in shared memory.
        "atomic_requests": (2 * (BLOCK // 32) * case.grid, OWN_PLACE),
    }


EXERCISES = (
    Exercise(
        "reduction/dot",
        task="Add the dot product of the float32 vectors x and y to out[0], which is 0 at the beginning. Let each "
        "block agree on its sum, add that with one atomic, and stay in float32. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, y, out",
        cases=_dot_cases,
        budget=_dot_budget,
        answer=dot_answer,
        hints=(
            "A thread beyond the end brings the product 0, and takes part in every barrier.",
            f"Put the products in a shared array of {BLOCK} float32, and grow the tree of shared_tree over it.",
            "np.float32(0) is a float32. 0.0 is a float64, and so is a choice between it and a product: a float64, "
            "converted back when it is stored.",
        ),
        traps=(
            Trap("only right for whole blocks", "The last block counts, full or not.", _dot_of_whole_blocks),
            Trap("added by every thread", "Each thread adds the block's sum: let thread 0 do it alone.", _added_by_all),
        ),
    ),
    Exercise(
        "reduction/barrier",
        task="out[block] is the spread of the block's elements: the largest less the smallest. The kernel has a race. "
        f"Mend it with one more barrier. The launch has {BLOCK} threads a block.",
        parameters="x, out",
        cases=_barrier_cases,
        budget=_barrier_budget,
        answer=spread_answer,
        hints=(
            "The verdict names a read and a write of one element. Which lines are they on?",
            "A warp that is ahead begins the second tree. What may a warp that is behind still want to read?",
        ),
    ),
    Exercise(
        "reduction/warps",
        task="Write the sum of each block's float32 elements to out[block]. You have one barrier, and a place in "
        "shared memory for each warp. The launch has a whole number of warps a block, from 1 to 32, and one thread or "
        "more for each element.",
        parameters="x, out",
        cases=_warps_cases,
        budget=_warps_budget,
        answer=block_sums_answer,
        advice={"wrong result": "If only some sizes of block are right: the size of this one is cuda.blockDim.x."},
        hints=(
            "First each warp makes its 32 values one, with five shuffles. Lane 0 puts it in partial[warp].",
            "After the barrier the first warp reads partial, and makes those values one. All 32 lanes must shuffle.",
            "A block of 256 threads has 8 warps: lanes 8 to 31 have nothing to read, and bring a 0.",
        ),
    ),
    Exercise(
        "reduction/argmax",
        task="Write to out[block] the index into x of the block's largest element; of equal ones, the smallest index. "
        f"There are no NaNs. The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, out",
        cases=_argmax_cases,
        budget=_argmax_budget,
        answer=argmax_answer,
        hints=(
            "A pair moves through the tree, a value and its index: two arrays in shared memory, or two shuffles.",
            "A pair beats another if it is larger, or equal with a smaller index.",
            "A thread beyond the end must never win, not even against minus infinity.",
        ),
    ),
)
