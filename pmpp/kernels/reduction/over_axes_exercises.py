"""Exercises of notebooks/33_reduction_over_axes.ipynb: an axis in the middle, and moments of parts that are joined."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FULL = 0xFFFFFFFF
FLOAT64 = "An integer and a float32 give float64, and so does a literal such as 0.0: write np.float32(...)."


# ---------------------------------------------------------------------------------------------------- over_axes/middle


def _middle_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for outer, n, inner in ((1, 1, 1), (2, 3, 5), (3, 1, 40), (4, 17, 32), (1, 6, 300), (5, 30, 129)):
        # All negative: a maximum that starts from 0 stays there.
        x = -1 - rng.random((outer, n, inner), dtype=np.float32)
        if n > 2:
            x[outer // 2, n // 2, inner // 3] = np.nan
            x[outer // 2, 0, inner // 2] = np.nan
        elif inner > 1:
            x[0, :, -1] = -np.inf  # a maximum that starts from a larger number stays there
        expected = x.max(axis=1).ravel()
        args = x.ravel(), unwritten(outer * inner, np.float32), outer, n, inner
        cases.append(Case(f"({outer}, {n}, {inner})", args, blocks(outer * inner, BLOCK), BLOCK, {1: expected}))
    return cases


@cuda.jit
def middle_answer(x, out, outer, n, inner):
    i = cuda.grid(1)
    if i < out.size:
        a, b = i // inner, i % inner
        best = np.float32(-np.inf)
        for k in range(n):
            value = x[(a * n + k) * inner + b]
            if value > best or value != value:
                best = value
            if best != best:
                break
        out[i] = best


def _shaped(x: np.ndarray, outer: int, n: int, inner: int) -> np.ndarray:
    return x.reshape(outer, n, inner)


def _from_zero(x, out, outer, n, inner):
    found = _shaped(x, outer, n, inner)
    return {1: np.where(np.isnan(found.max(axis=1)), np.nan, np.maximum(found.max(axis=1), 0)).ravel()}


def _from_another_number(x, out, outer, n, inner):
    """Any number where all elements are minus infinity. Who is wrong where there is NaN has made another mistake."""
    largest = _shaped(x, outer, n, inner).max(axis=1)
    return {} if np.isnan(largest).any() else {1: np.where(np.isneginf(largest), np.nan, largest).ravel()}


def _other_stride(x, out, outer, n, inner):
    """As if the reduced axis were the last one: n neighbours for each result."""
    return {1: x.reshape(outer * inner, n).max(axis=1)}


def _nan_lost(x, out, outer, n, inner):
    return {1: np.fmax.reduce(_shaped(x, outer, n, inner), axis=1).ravel()}


def _nan_replaced(x, out, outer, n, inner):
    """By ``if not value <= best``, which takes a NaN, and after it whatever comes next."""
    best = np.full((outer, inner), -np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        for k in range(n):
            value = _shaped(x, outer, n, inner)[:, k]
            best = np.where(value <= best, best, value)
    return {1: best.ravel()}


def _without_a(x, out, outer, n, inner):
    """From element i instead of element b of block a."""
    places = np.arange(outer * inner)[:, None] + inner * np.arange(n)
    return {1: x[places].max(axis=1)}


# ----------------------------------------------------------------------------------------------------- over_axes/merge


def _merge_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # Of 10,000 the mean of the squares and the square of the mean agree in all of the seven digits that they have.
    for rows, parts, centre in ((1, 1, 5), (3, 2, 5), (7, 8, 5), (40, 6, 10_000), (128, 3, 5), (130, 5, 5)):
        far, u = centre > 5, 2.0**-24
        count = rng.integers(1, 60, (rows, parts)).astype(np.float32)
        mean = (centre + 3 * rng.standard_normal((rows, parts))).astype(np.float32)
        square = (count * rng.random((rows, parts))).astype(np.float32)
        if far:  # so that little is lost by a first step that begins at 0
            count[:, [0, -1]], square[:, [0, -1]] = 1, 0
        n, m, s = (one.astype(np.float64) for one in (count, mean, square))
        total = n.sum(axis=1)
        whole = (n * m).sum(axis=1) / total
        variance = (s.sum(axis=1) + (n * (m - whole[:, None]) ** 2).sum(axis=1)) / total
        # Each join rounds a mean four times, and a sum of squares six times, by u of what it is. A mean that is off by
        # e moves the square of a step by no more than 2 |step| e + e^2. Near 0 all steps may be below 2 max |mean|.
        # Far from it only the first may, with the weight of one value. The others are no longer than means are apart,
        # and their weights are 1 in all, or na nb / (na + nb) in a join, at most a quarter of the row.
        most = abs(m).max(axis=1)
        off = 4 * parts * u * most
        moved = 4 * off * most
        if far:
            moved = max(1, parts / 4) * (2 * np.ptp(m, axis=1) * off + off**2) + 2 * most * 4 * u * most / total
        args = count, mean, square, unwritten(rows, np.float32)
        name = f"count of {rows} x {parts}" + far * f" and means near {centre:,}"
        allowed = 6 * parts * u * variance + moved
        cases.append(Case(name, args, blocks(rows, BLOCK), BLOCK, {3: variance}, {3: allowed}))
    return cases


@cuda.jit
def merge_answer(count, mean, square, out):
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = np.float32(0), np.float32(0), np.float32(0)
        for part in range(count.shape[1]):
            total = n + count[row, part]
            step, share = mean[row, part] - m, count[row, part] / total
            s += square[row, part] + step * step * n * share
            m += step * share
            n = total
        out[row] = s / n


def _without_steps(count, mean, square, out):
    return {3: square.sum(axis=1, dtype=np.float64) / count.sum(axis=1)}


def _not_divided(count, mean, square, out):
    n, m = count.astype(np.float64), mean.astype(np.float64)
    whole = (n * m).sum(axis=1) / n.sum(axis=1)
    return {3: square.sum(axis=1, dtype=np.float64) + (n * (m - whole[:, None]) ** 2).sum(axis=1)}


def _by_the_last(count, mean, square, out):
    return {3: _not_divided(count, mean, square, out)[3] / count[:, -1]}


def _mean_of_variances(count, mean, square, out):
    return {3: (square.astype(np.float64) / count).mean(axis=1)}


def _by_the_parts(count, mean, square, out):
    return {3: _not_divided(count, mean, square, out)[3] / count.shape[1]}


def _by_one_less(count, mean, square, out):
    with np.errstate(all="ignore"):
        return {3: _not_divided(count, mean, square, out)[3] / (count.sum(axis=1) - 1)}


def _deviation(count, mean, square, out):
    return {3: np.sqrt(_not_divided(count, mean, square, out)[3] / count.sum(axis=1))}


def _squares_weighted(count, mean, square, out):
    return {3: _not_divided(count, mean, count * square, out)[3] / count.sum(axis=1)}


def _from_the_mean_of_means(count, mean, square, out):
    away = mean - mean.mean(axis=1, dtype=np.float64)[:, None]
    return {3: (square + count * away**2).sum(axis=1) / count.sum(axis=1)}


EXERCISES = (
    Exercise(
        "over_axes/middle",
        task="out[a * inner + b] = the largest of x over its middle axis. x is an array (outer, n, inner) in C order, "
        "given as a vector of float32; n is 1 or more. NaN where an element is NaN, as in NumPy. The launch has "
        f"{BLOCK} threads a block, one for each result.",
        parameters="x, out, outer, n, inner",
        cases=_middle_cases,
        answer=middle_answer,
        hints=(
            "Result i belongs to a = i // inner and b = i % inner. Element k + 1 lies `inner` behind element k.",
            "No element is smaller than minus infinity.",
            "A comparison with NaN is false. What is left of `if value > best: best = value` when a NaN comes?",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("starts from 0", "Start from what is smaller than every element: np.float32(-np.inf).", _from_zero),
            Trap(
                "starts too high",
                "All elements may be minus infinity: start from that, or from the first element.",
                _from_another_number,
            ),
            Trap("stride of the last axis", "The elements of a result lie `inner` apart, not 1.", _other_stride),
            Trap("NaN lost", "Where an element is NaN, the result is NaN: a comparison with it is false.", _nan_lost),
            Trap("NaN replaced", "Once the result is NaN it stays so: no later element may replace it.", _nan_replaced),
            Trap("a left out", "Before result (a, b) lie a * n * inner + b elements, not a * inner + b.", _without_a),
        ),
    ),
    Exercise(
        "over_axes/merge",
        task="out[r] = the variance of all values of row r, from what several blocks have left of it: count[r, p], "
        "mean[r, p] and square[r, p], the number of values in part p, their mean, and the sum of their squared "
        "deviations from that mean. All have shape (rows, parts) and are float32; counts are at least 1, and means may "
        "be far from 0. The variance is divided by the number of values. "
        f"The launch has {BLOCK} threads a block, one for each row.",
        parameters="count, mean, square, out",
        cases=_merge_cases,
        answer=merge_answer,
        hints=(
            "Join two parts into one, then that one with the third. You need the joined count and mean for it.",
            "The joined sum of squares is square_a + square_b + (mean_b - mean_a)^2 * count_a * count_b / (their sum).",
            "Divide once, at the end, by the number of all values.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("steps left out", "Parts with other means are further apart: add that.", _without_steps),
            Trap("not divided", "The variance is the sum of squares by the number of values.", _not_divided),
            Trap("divided by the last count", "Divide by the values of all parts, not of the last.", _by_the_last),
            Trap("mean of variances", "Parts have different counts and different means.", _mean_of_variances),
            Trap("divided by the parts", "Divide by the number of values, not of parts.", _by_the_parts),
            Trap("divided by one less", "Here it is the number of values, and not one less.", _by_one_less),
            Trap("standard deviation", "That is the root of the variance.", _deviation),
            Trap("squares weighted", "square[r, p] is a sum already: no count belongs to it.", _squares_weighted),
            Trap("mean of means", "The mean of all values has a count for each mean.", _from_the_mean_of_means),
        ),
        advice={
            "wrong result": "Take the smallest case that fails, and compute that element by hand. Are only means far "
            "from 0 wrong? Then two large numbers are subtracted that are nearly the same."
        },
    ),
)
