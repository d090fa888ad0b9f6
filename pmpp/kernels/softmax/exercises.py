"""Exercises of notebooks/50_softmax.ipynb: parts joined, logarithms by blocks, a mask by warps, columns, and a loss."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum, blocks, warp_max, warp_sum
from pmpp.kernels.softmax.ladder import reference, tolerance
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
WARPS = BLOCK // 32
LOWEST = np.float32(np.finfo(np.float32).min)
ZERO = np.float32(0)
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


@cuda.jit(device=True)
def row_max(value):
    """The largest of the block's values, in every thread. It has one barrier."""
    return block_max(value, cuda.shared.array(32, np.float32))


@cuda.jit(device=True)
def row_sum(value):
    """The sum of the block's values, in every thread. It has one barrier."""
    return block_sum(value, cuda.shared.array(32, np.float32))


@cuda.jit(device=True)
def lane_max(value):
    """The largest of the warp's 32 values, in every lane."""
    return warp_max(value)


@cuda.jit(device=True)
def lane_sum(value):
    """The sum of the warp's 32 values, in every lane."""
    return warp_sum(value)


# ------------------------------------------------------------------------------------------------------- softmax/join


def _join_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, m1: np.ndarray, s1: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> Case:
        m1, s1, m2, s2 = (part.astype(np.float32) for part in (m1, s1, m2, s2))
        highest, wide = np.maximum(m1, m2), [part.astype(np.float64) for part in (m1, s1, m2, s2)]
        total = wide[1] * np.exp(wide[0] - highest) + wide[3] * np.exp(wide[2] - highest)
        # The differences are rounded, the exponentials good to 2 ulp, and two products and a sum rounded.
        allowed = 2.0**-24 * total * (12 + np.abs(m1 - m2).clip(max=100))
        args = m1, s1, m2, s2, unwritten(m1.size, np.float32), unwritten(m1.size, np.float32)
        return Case(name, args, blocks(m1.size, BLOCK), BLOCK, {4: highest, 5: total}, {5: allowed})

    def parts(n: int, spread: float) -> list[np.ndarray]:
        maxima, sums = rng.standard_normal((2, n)) * spread, rng.uniform(1, 100, (2, n))
        return [maxima[0], sums[0], maxima[1], sums[1]]

    cases = [case(f"n = {n}", *parts(n, 2)) for n in (1, BLOCK - 1, BLOCK, BLOCK + 1)]
    cases.append(case("maxima around 1000", *(part + 1000 * (i % 2 == 0) for i, part in enumerate(parts(300, 5)))))
    nothing = parts(200, 3)
    nothing[0][::2], nothing[1][::2] = LOWEST, 0
    cases.append(case("parts of no elements", *nothing))
    cases.append(case("n = 5000", *parts(5000, 10)))
    return cases


@cuda.jit
def join_answer(m1, s1, m2, s2, m, s):
    i = cuda.grid(1)
    if i < m.size:
        top = max(m1[i], m2[i])
        m[i] = top
        s[i] = s1[i] * math.exp(m1[i] - top) + s2[i] * math.exp(m2[i] - top)


def _just_added(m1, s1, m2, s2, m, s):
    return {4: np.maximum(m1, m2), 5: s1 + s2}


def _first_not_rescaled(m1, s1, m2, s2, m, s):
    top = np.maximum(m1, m2)
    return {4: top, 5: s1 + s2.astype(np.float64) * np.exp(m2.astype(np.float64) - top)}


def _second_not_rescaled(m1, s1, m2, s2, m, s):
    top = np.maximum(m1, m2)
    return {4: top, 5: s1.astype(np.float64) * np.exp(m1.astype(np.float64) - top) + s2}


# -------------------------------------------------------------------------------------------------------- softmax/log


def _rows(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _log_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        out = unwritten(x.shape, np.float32)
        return Case(name, (x, out), x.shape[0], BLOCK, {1: reference(x, log=True)}, {1: tolerance(x, log=True)})

    cases = [
        case(f"{m} row{'s' * (m > 1)} of {n}", _rows((m, n), rng))
        for m, n in ((1, 1), (3, BLOCK - 1), (3, BLOCK), (5, BLOCK + 1))
    ]
    cases.append(case("values around -1000", _rows((4, 200), rng) - 1000))
    cases.append(case("values up to 1000", _rows((4, 200), rng) * 300))
    masked = _rows((4, 300), rng)
    masked[:, ::3] = -np.inf
    cases.append(case("some of minus infinity", masked))
    cases.append(case("20 rows of 1500", _rows((20, 1500), rng)))
    return cases


@cuda.jit
def log_answer(x, out):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = math.log(row_sum(total))
    for i in range(cuda.threadIdx.x, n, BLOCK):
        out[row, i] = x[row, i] - best - total


def _log_of_the_share(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True), dtype=np.float32)
        return {1: np.log(e / e.sum(axis=1, keepdims=True, dtype=np.float32))}


def _the_share_itself(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x)}


def _log_of_the_first_block(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    found = np.full(x.shape, np.nan)
    found[:, :BLOCK] = reference(x[:, :BLOCK], log=True)
    return {1: found}


def _log_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "flops_f64": (0, FLOAT64),
        "barriers": (2 * case.grid, "row_max and row_sum have a barrier each, and no other is needed."),
    }


# ----------------------------------------------------------------------------------------------------- softmax/causal


def _causal_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        n = x.shape[0]
        seen = np.where(np.tril(np.ones((n, n), bool)), x, np.float32(-np.inf))
        args = x, unwritten(x.shape, np.float32)
        allowed = tolerance(seen) + tolerance(x)  # the second for traps, which compare what should be 0
        return Case(name, args, blocks(n, WARPS), BLOCK, {1: reference(seen)}, {1: allowed})

    cases = [case(f"n = {n}", _rows((n, n), rng)) for n in (1, 2, WARPS, 31, 32, 33, 65)]
    cases.append(case("scores around 500", _rows((40, 40), rng) + 500))
    future = _rows((40, 40), rng)
    future[np.triu_indices(40, 1)] += 200  # what lies ahead must not even be looked at for the maximum
    cases.append(case("large scores ahead", future))
    cases.append(case("n = 150", _rows((150, 150), rng)))
    return cases


@cuda.jit
def causal_answer(x, out):
    row, n = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, x.shape[0]
    if row < n:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, row + 1, 32):
            best = max(best, x[row, i])
        best = lane_max(best)
        for i in range(cuda.laneid, row + 1, 32):
            total += math.exp(x[row, i] - best)
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            out[row, i] = math.exp(x[row, i] - best) / total if i <= row else ZERO


def _without_mask(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x)}


def _masked_afterwards(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.tril(reference(x))}


def _without_the_diagonal(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    n = x.shape[0]
    with np.errstate(all="ignore"):
        seen = np.where(np.tril(np.ones((n, n), bool), -1), x, np.float32(-np.inf))
        return {1: np.nan_to_num(reference(seen))}


def _causal_budget(case: Case) -> dict[str, tuple[float, str]]:
    return {
        "flops_f64": (0, FLOAT64),
        "barriers": (0, "A warp has a row to itself: lane_max and lane_sum need no barrier."),
    }


# ---------------------------------------------------------------------------------------------------- softmax/columns


def _columns_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        args, allowed = (x, unwritten(x.shape, np.float32)), tolerance(x, 0)
        return Case(name, args, blocks(x.shape[1], BLOCK), BLOCK, {1: reference(x, 0)}, {1: allowed})

    shapes = ((1, 1), (3, BLOCK - 1), (10, BLOCK), (5, BLOCK + 1))
    cases = [case(f"{n} row{'s' * (n > 1)} of {m} column{'s' * (m > 1)}", _rows((n, m), rng)) for n, m in shapes]
    cases.append(case("scores around -500", _rows((7, 150), rng) - 500))
    cases.append(case("scores up to 1000", _rows((9, 150), rng) * 300))
    masked = _rows((12, 200), rng)
    masked[::3] = -np.inf
    cases.append(case("some of minus infinity", masked))
    cases.append(case("40 rows of 500 columns", _rows((40, 500), rng)))
    return cases


@cuda.jit
def columns_answer(x, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        best, total = LOWEST, ZERO
        for i in range(x.shape[0]):
            best = max(best, x[i, column])
        for i in range(x.shape[0]):
            total += math.exp(x[i, column] - best)
        for i in range(x.shape[0]):
            out[i, column] = math.exp(x[i, column] - best) / total


def _along_the_rows(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x, 1)}


def _not_divided(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.exp(x.astype(np.float64) - x.max(axis=0))}


# -------------------------------------------------------------------------------------------------------- softmax/loss


def _loss_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        m, n = x.shape
        labels = rng.integers(0, n, m)
        at = np.arange(m), labels
        # The sum of a maximum and a logarithm, less a score, may be rounded twice at the size of the maximum.
        allowed = tolerance(x, log=True)[at] + 2.0**-23 * np.abs(x.max(axis=1))
        args = x, labels, unwritten(m, np.float32)
        return Case(name, args, blocks(m, WARPS), BLOCK, {2: -reference(x, log=True)[at]}, {2: allowed})

    shapes = ((1, 1), (3, 10), (WARPS, 31), (WARPS + 1, 32), (9, 33))
    cases = [case(f"{m} row{'s' * (m > 1)} of {n}", _rows((m, n), rng)) for m, n in shapes]
    cases.append(case("scores around -500", _rows((10, 100), rng) - 500))
    cases.append(case("scores up to 1000", _rows((10, 100), rng) * 300))
    cases.append(case("30 rows of 700", _rows((30, 700), rng)))
    return cases


@cuda.jit
def loss_answer(x, labels, out):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row < x.shape[0]:
        best, total = LOWEST, ZERO
        for i in range(cuda.laneid, x.shape[1], 32):
            value = x[row, i]
            top = max(best, value)
            total = total * math.exp(best - top) + math.exp(value - top)
            best = top
        whole = lane_max(best)
        total = lane_sum(total * math.exp(best - whole))
        if cuda.laneid == 0:
            out[row] = whole - x[row, labels[row]] + math.log(total)


def _sign_kept(x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, log=True)[np.arange(labels.size), labels]}


def _share_of_the_label(x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x)[np.arange(labels.size), labels]}


def _underflow(x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    with np.errstate(divide="ignore"):
        return {2: -np.log(reference(x)[np.arange(labels.size), labels].astype(np.float32))}


def _without_the_label(x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: x.max(axis=1) - reference(x, log=True).max(axis=1)}  # max + log(sum)


def _loss_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, labels, _ = case.args
    once = "One lane reads a score, once, into a variable: rescale the sum when the maximum grows, as `online` does."
    return {
        "flops_f64": (0, FLOAT64),
        "barriers": (0, "A warp has a row to itself: lane_max and lane_sum need no barrier."),
        "global_load_bytes": (1.2 * x.nbytes + 12 * labels.size, once),
        "global_store_bytes": (math.inf, "All lanes know the loss: let one of them write it."),
    }


EXERCISES = (
    Exercise(
        "softmax/join",
        task="Two parts of a row have been seen, one with maximum m1[i] and sum s1[i] of exp(x - m1[i]), the other "
        "with m2[i] and s2[i]. Write the maximum of both to m[i], and to s[i] the sum relative to it. "
        f"There are {BLOCK} threads a block, and one thread or more for each i.",
        parameters="m1, s1, m2, s2, m, s",
        cases=_join_cases,
        answer=join_answer,
        hints=(
            "exp(x - m) = exp(x - m1) exp(m1 - m): a sum relative to m1 becomes one relative to m by one factor.",
            "Both factors are at most 1, because m is the larger maximum: nothing can overflow.",
        ),
        traps=(
            Trap("not rescaled", "s1 and s2 are relative to different maxima: rescale both.", _just_added),
            Trap("not rescaled", "The first sum is still relative to m1: rescale it too.", _first_not_rescaled),
            Trap("not rescaled", "The second sum is still relative to m2: rescale it too.", _second_not_rescaled),
        ),
    ),
    Exercise(
        "softmax/log",
        task="Write the log-softmax of each row of the matrix x to out: x - max - log(sum(exp(x - max))). "
        f"Block b has row b, and {BLOCK} threads. row_max(value) and row_sum(value) reduce over the block.",
        parameters="x, out",
        cases=_log_cases,
        budget=_log_budget,
        answer=log_answer,
        hints=(
            "Three loops over the row, in steps of BLOCK: the maximum, the sum, the result.",
            "All threads call row_max and row_sum, those without an element too: they bring LOWEST and 0.",
            "log(exp(a) / b) is a - log(b). The left side is -inf where exp(a) is too small for a float32.",
        ),
        traps=(
            Trap(
                "log of an underflow",
                "The logarithm of a share is -inf once the share underflows: subtract log(sum) instead.",
                _log_of_the_share,
            ),
            Trap("log missing", "These are the shares, not their logarithms.", _the_share_itself),
            Trap(
                "one element a thread",
                "A row may be longer than the block: a thread takes every BLOCK-th element of it, in a loop.",
                _log_of_the_first_block,
            ),
        ),
        advice={
            "too much traffic": "Let a thread go over its own share of the row, in steps of BLOCK: row_max and row_sum "
            "combine the shares."
        },
    ),
    Exercise(
        "softmax/causal",
        task="x is a square matrix of scores: row r says how much word r looks at each word. It may not look ahead. "
        "Write the softmax of x[r, 0] to x[r, r] to out, and 0 to the right of it. "
        f"There are {BLOCK} threads a block, and a warp or more for each row: warp w of block b has row "
        f"{WARPS} b + w. lane_max(value) and lane_sum(value) reduce over the warp.",
        parameters="x, out",
        cases=_causal_cases,
        budget=_causal_budget,
        answer=causal_answer,
        hints=(
            "The row ends at row + 1 for the maximum and the sum, and at n for the result.",
            "All 32 lanes must call lane_max and lane_sum, those that saw no element too.",
        ),
        traps=(
            Trap("looks ahead", "The softmax of the whole row: what lies right of the diagonal counts.", _without_mask),
            Trap("looks ahead", "What lies ahead is 0 in out, but it was counted in the sum.", _masked_afterwards),
            Trap("diagonal missing", "A word may look at itself: the diagonal belongs to it.", _without_the_diagonal),
        ),
        advice={
            "too much traffic": "Let a lane take every 32nd element of a row: lane_max and lane_sum combine the lanes."
        },
    ),
    Exercise(
        "softmax/columns",
        task="Write the softmax of each column of the matrix x to out, so that every column adds up to 1. A thread has "
        f"a column to itself. The launch has {BLOCK} threads a block, and one thread or more for each column.",
        parameters="x, out",
        cases=_columns_cases,
        budget=lambda case: {"flops_f64": (0, FLOAT64), "barriers": (0, "A thread needs nothing from another one.")},
        answer=columns_answer,
        hints=(
            "Three loops down the column: the maximum, the sum, the result. Nobody has to agree with anybody.",
            "Begin the maximum at LOWEST, and the sum at ZERO: a literal 0.0 would be float64.",
        ),
        traps=(
            Trap("along the rows", "Here the rows add up to 1, and it should be the columns.", _along_the_rows),
            Trap("not divided", "These are the exponentials: divide them by their sum.", _not_divided),
        ),
    ),
    Exercise(
        "softmax/loss",
        task="The loss of a classifier: out[r] is minus the logarithm of the softmax of row r of x at labels[r]. Read "
        f"each score once, but for that of the label. x and out are float32, labels int64. There are {BLOCK} threads a "
        f"block, and a warp or more for each row: warp w of block b has row {WARPS} b + w. lane_max(value) and "
        "lane_sum(value) reduce over the warp.",
        parameters="x, labels, out",
        cases=_loss_cases,
        budget=_loss_budget,
        answer=loss_answer,
        hints=(
            "-log(exp(a) / b) is log(b) - a. The left side is infinite where exp(a) is too small for a float32.",
            "Let each lane keep a maximum and a sum of its own, as `append` does. Load a score once, into a variable.",
            "Then lane_max gives the row's maximum. Rescale each lane's sum to that, and add them by lane_sum.",
        ),
        traps=(
            Trap("sign kept", "A loss is minus the logarithm: it is never negative.", _sign_kept),
            Trap("share itself", "This is the share of the label, not minus its logarithm.", _share_of_the_label),
            Trap(
                "log of an underflow",
                "The logarithm of a share is infinite once the share underflows: take log(sum) - (x - max).",
                _underflow,
            ),
            Trap(
                "label missing",
                "This is max + log(sum): subtract the score of the label.",
                _without_the_label,
            ),
        ),
    ),
)
