"""Answers to the exercises of chapter 33: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MIDDLE, MERGE = "over_axes/middle", "over_axes/merge"
f0, f1 = np.float32(0), np.float32(1)
LEAST = np.float32(-np.inf)


# -- middle


@wrong(MIDDLE, "starts too high", "and should be -inf")
@cuda.jit
def middle_from_a_large_number(x, out, outer, n, inner):
    i = cuda.grid(1)
    if i < out.size:
        first = i // inner * n * inner + i % inner
        best = np.float32(-3e38)
        for k in range(n):
            value = x[first + k * inner]
            if value > best or value != value:
                best = value
            if best != best:
                break
        out[i] = best


@right(MIDDLE)
@cuda.jit
def middle_from_the_first(x, out, outer, n, inner):
    i = cuda.grid(1)
    if i >= outer * inner:
        return
    at = i // inner * n * inner + i % inner
    best = x[at]
    for k in range(1, n):
        value = x[at + k * inner]
        best = best if best >= value or best != best else value
    out[i] = best


@right(MIDDLE)
@cuda.jit
def middle_backwards(x, out, outer, n, inner):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        a, b, k, best = i // inner, i % inner, n, LEAST
        while k > 0:
            k -= 1
            value = x[(a * n + k) * inner + b]
            if not (value <= best) and best == best:
                best = value
        out[i] = best


@wrong(MIDDLE, "starts from 0")
@cuda.jit
def middle_from_zero(x, out, outer, n, inner):
    i, best = cuda.grid(1), f0
    if i < out.size:
        for k in range(n):
            value = x[(i // inner * n + k) * inner + i % inner]
            if value > best or value != value:
                best = value
            if best != best:
                break
        out[i] = best


@wrong(MIDDLE, "stride of the last axis")
@cuda.jit
def middle_as_rows(x, out, outer, n, inner):
    i, best = cuda.grid(1), LEAST
    if i < out.size:
        for k in range(n):
            value = x[i * n + k]
            if value > best or value != value:
                best = value
            if best != best:
                break
        out[i] = best


@wrong(MIDDLE, "NaN lost")
@cuda.jit
def middle_without_nan(x, out, outer, n, inner):
    i, best = cuda.grid(1), LEAST
    if i < out.size:
        for k in range(n):
            best = max(best, x[(i // inner * n + k) * inner + i % inner])
        out[i] = best


@wrong(MIDDLE, "NaN replaced")
@cuda.jit
def middle_that_forgets_nan(x, out, outer, n, inner):
    i, best = cuda.grid(1), LEAST
    if i < out.size:
        for k in range(n):
            value = x[(i // inner * n + k) * inner + i % inner]
            if not value <= best:
                best = value
        out[i] = best


@wrong(MIDDLE, "a left out")
@cuda.jit
def middle_from_element_i(x, out, outer, n, inner):
    i, best = cuda.grid(1), LEAST
    if i < out.size:
        for k in range(n):
            value = x[i + k * inner]
            if value > best or value != value:
                best = value
        out[i] = best


@wrong(MIDDLE, "missing guard")
@cuda.jit
def middle_without_guard(x, out, outer, n, inner):
    i, best = cuda.grid(1), LEAST
    for k in range(n):
        value = x[(i // inner * n + k) * inner + i % inner]
        if value > best or value != value:
            best = value
        if best != best:
            break
    out[i] = best


@wrong(MIDDLE, "wrong result")
@cuda.jit
def middle_but_the_last(x, out, outer, n, inner):
    i = cuda.grid(1)
    if i < outer * inner:
        best = x[i // inner * n * inner + i % inner]
        for k in range(1, n - 1):
            value = x[(i // inner * n + k) * inner + i % inner]
            best = best if best >= value or best != best else value
        out[i] = best


# -- merge


def merging(
    name,
    steps=True,
    by_last=False,
    by_parts=False,
    divided=True,
    zero=f0,
    one=f1,
    less=f0,
    guarded=True,
    weighted=True,
    counted=False,
    rooted=False,
):
    @cuda.jit
    def merge(count, mean, square, out):
        row = cuda.grid(1)
        if row < out.size or not guarded:
            n, m, s = zero, zero, zero
            for part in range(count.shape[1]):
                total = n + count[row, part]
                step, share = mean[row, part] - m, count[row, part] / total
                if steps:
                    s += step * step * n * (share if weighted else one)
                s += square[row, part] * (count[row, part] if counted else one)
                m += step * share
                n = total
            if by_last:
                n = count[row, count.shape[1] - 1]
            if by_parts:
                n = np.float32(count.shape[1])
            s = s / (n - less) if divided else s
            out[row] = math.sqrt(s) if rooted else s

    merge.py_func.__name__ = name
    return merge


wrong(MERGE, "steps left out")(merging("merge_without_steps", steps=False))
wrong(MERGE, "divided by the last count")(merging("merge_by_the_last", by_last=True))
wrong(MERGE, "divided by the parts")(merging("merge_by_the_parts", by_parts=True))
wrong(MERGE, "divided by one less")(merging("merge_by_one_less", less=f1))
wrong(MERGE, "standard deviation")(merging("merge_to_a_deviation", rooted=True))
wrong(MERGE, "squares weighted")(merging("merge_with_weighted_squares", counted=True))
wrong(MERGE, "not divided")(merging("merge_not_divided", divided=False))
wrong(MERGE, "missing guard")(merging("merge_without_guard", guarded=False))
wrong(MERGE, "wrong result")(merging("merge_without_weights", weighted=False))
wrong(MERGE, "accidental float64")(merging("merge_in_float64", zero=0.0))


@wrong(MERGE, "mean of variances")
@cuda.jit
def merge_as_a_mean(count, mean, square, out):
    row, total = cuda.grid(1), f0
    if row < out.size:
        for part in range(count.shape[1]):
            total += square[row, part] / count[row, part]
        out[row] = total / np.float32(count.shape[1])


@wrong(MERGE, "mean of means")
@cuda.jit
def merge_from_the_mean_of_means(count, mean, square, out):
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = f0, f0, f0
        for part in range(count.shape[1]):
            n += count[row, part]
            m += mean[row, part] / np.float32(count.shape[1])
        for part in range(count.shape[1]):
            away = mean[row, part] - m
            s += square[row, part] + count[row, part] * away * away
        out[row] = s / n


@wrong(MERGE, "wrong result")
@cuda.jit
def merge_of_squares_less_square(count, mean, square, out):
    """Far from 0 it subtracts two numbers that agree in all their digits."""
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = f0, f0, f0
        for part in range(count.shape[1]):
            n += count[row, part]
            m += count[row, part] * mean[row, part]
            s += square[row, part] + count[row, part] * mean[row, part] * mean[row, part]
        out[row] = s / n - (m / n) * (m / n)


@right(MERGE)
@cuda.jit
def merge_as_welford(count, mean, square, out):
    """Its first step begins at 0."""
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = f0, f0, f0
        for part in range(count.shape[1]):
            other, step = count[row, part], mean[row, part] - m
            m = (n * m + other * mean[row, part]) / (n + other)
            s += square[row, part] + other * step * (mean[row, part] - m)
            n += other
        out[row] = s / n


@right(MERGE)
@cuda.jit
def merge_variances(count, mean, square, out):
    row = cuda.grid(1)
    if row < out.size:
        n, m = count[row, 0], mean[row, 0]
        variance = square[row, 0] / n
        for part in range(1, count.shape[1]):
            share, step = count[row, part] / (n + count[row, part]), mean[row, part] - m
            within = (f1 - share) * variance + share * (square[row, part] / count[row, part])
            variance = within + share * (f1 - share) * step * step
            m += share * step
            n += count[row, part]
        out[row] = variance


@right(MERGE)
@cuda.jit
def merge_in_two_passes(count, mean, square, out):
    row = cuda.grid(1)
    if row < out.size:
        n, m, s = f0, f0, f0
        for part in range(count.shape[1]):
            n += count[row, part]
            m += count[row, part] * mean[row, part]
        m /= n
        for part in range(count.shape[1]):
            away = mean[row, part] - m
            s += square[row, part] + count[row, part] * away * away
        out[row] = s / n


@right(MERGE)
@cuda.jit
def merge_from_the_last(count, mean, square, out):
    row = cuda.grid(1)
    if row >= out.size:
        return
    part = count.shape[1] - 1
    n, m, s = count[row, part], mean[row, part], square[row, part]
    while part > 0:
        part -= 1
        other, step = count[row, part], mean[row, part] - m
        s += square[row, part] + step * step * (n * other / (n + other))
        m = (n * m + other * mean[row, part]) / (n + other)
        n += other
    out[row] = s / n
