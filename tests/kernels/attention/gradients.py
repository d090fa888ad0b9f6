"""How far the gradients of an attention may be from the exact ones, and what is wrong with some."""

import math

import numpy as np
import pytest

from pmpp.kernels.attention import attention_gradients, ladder
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.dtypes import rounding
from tests.support.wrong import watch

# PyTorch computes gradients in a thread of its own, and says so when that thread is the first to call cuBLAS.
ignore_the_first_use_of_cublas = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")


def allowed(gradient, q, k, v, causal=False, window=None, scale=None):
    """How far from `reference` right gradients by q, k and v may be, element by element. All inputs are finite.

    With u = 2^-24, h half a unit in the last of 16 bits, and t half the distance of the smallest numbers of the dtype:

    - A score is a sum in float32, off by (34 u for each 16 terms + 6 u) of the sum of its absolute terms
      (`on_tensor_cores.tolerance`). A weight is 2 to the power of a score less the logarithm of a sum of such weights:
      its factor is off by what both are, and the sum by 2 (34 / 16 + 7) u for each key.
    - A weight is rounded before it is multiplied by the gradient: h of it, and t. So is a gradient by a score.
    - The sum that is taken off a row is of a result that was made of such weights, and rounded.
    - What is added up, and the result, are off as the scores are, and as a rounded result is.
    """
    dtype, exact = q.dtype, attention_gradients.reference(gradient, q, k, v, causal, window, scale)
    gradient, q, k, v = (x.astype(np.float64) for x in (gradient, q, k, v))
    heads, queries, size = q.shape[1:]
    keys, shared = k.shape[2], heads // max(k.shape[1], 1)
    scale = 1 / math.sqrt(size) if scale is None else float(scale)
    low, high = ladder.limits(queries, keys, causal, window)
    away = np.arange(keys)[None] - np.arange(queries)[:, None]
    seen = (low <= away) & (away < high)
    u, half, least = 2.0**-24, float(rounding(np.ones(1), dtype)[0]), float(rounding(np.zeros(1), dtype)[0])
    found = tuple(np.zeros(x.shape) for x in (q, k, v))

    def added(terms):
        return (34 * blocks(terms, 16) + 6) * u

    for b, h in np.ndindex(q.shape[:2]) if keys else ():
        group = h // shared
        own, key, value, slope = (abs(x) for x in (q[b, h], k[b, group], v[b, group], gradient[b, h]))
        scores = np.where(seen, scale * q[b, h] @ k[b, group].T, -np.inf)
        highest = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(highest == -np.inf, 0, highest))
        total = weights.sum(axis=1, keepdims=True)
        weights /= np.where(total == 0, 1, total)
        off = seen * added(size) * abs(scale) * (own @ key.T)
        off = np.expm1(off + off.max(axis=1, keepdims=True) + 2 * u * (34 * blocks(keys, 16) + 7 * keys + 8))
        rounded = seen * (weights * (off + half) + least)  # how far a weight of 16 bits is off
        by_weights = gradient[b, h] @ v[b, group].T
        row = (weights * by_weights).sum(axis=1, keepdims=True)
        result = weights @ v[b, group]
        off_result = (rounded + added(keys) * weights) @ value + half * abs(result) + least
        off_row = (slope * (off_result + added(size) * abs(result))).sum(axis=1, keepdims=True)
        off_slope = added(size) * (slope @ value.T) + off_row + 2 * u * (abs(by_weights) + abs(row))
        by_scores = weights * (by_weights - row)
        off_scores = weights * (off * abs(by_weights - row) + (1 + off) * off_slope)
        off_scores = seen * ((1 + half) * off_scores + half * abs(by_scores) + least)
        size_of = abs(by_scores) + off_scores
        found[0][b, h] = abs(scale) * (off_scores + added(keys) * size_of) @ key
        found[1][b, group] += abs(scale) * (off_scores + added(shared * queries) * size_of).T @ own
        found[2][b, group] += (rounded + added(shared * queries) * weights).T @ slope
    return tuple(off + rounding(one, dtype) for off, one in zip(found, exact, strict=True))


def arrays(queries, keys, size, heads=1, groups=1, seed=5, dtype=np.float16):
    rng = np.random.default_rng(seed)
    shapes = [(1, heads, queries, size)] * 2 + [(1, groups, keys, size)] * 2
    return tuple(rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)


def wrongs(results, given):
    """The gradients that are wrong, by their names."""
    expected, bounds = attention_gradients.reference(*given), allowed(*given)
    found = []
    for name, result, exact, bound in zip("qkv", results, expected, bounds, strict=True):
        result = np.asarray(device.to_host(result))
        same = result.shape == exact.shape and result.dtype == given[0].dtype
        if not same or not (abs(result.astype(np.float64) - exact) <= bound).all():
            found.append(name)
    return found


def watched(function, given):
    kept = []

    def first(*arguments):
        kept.append(function(*arguments))
        return kept[-1][0]

    _, reports = watch(first, *given)
    return kept[-1], reports
