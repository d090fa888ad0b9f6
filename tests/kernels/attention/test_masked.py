"""The masked softmax of scores in memory: weights beside NumPy's in float64, and what becomes of NaN and infinities."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.attention import masked as room
from pmpp.kernels.attention.masked import LEAST, WARP, WARPS, f0, masked_softmax
from pmpp.kernels.common import warp_max, warp_sum
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.vector import widened
from tests.support import judge
from tests.support.wrong import result_of

F32 = np.float32


def reference(scores, causal):
    """Weights in float64. A row that sees nothing, or only scores of -inf, has zeros."""
    weights = np.zeros(scores.shape)
    for head, query in np.ndindex(scores.shape[:2]):
        keys = scores.shape[2]
        seen = min(max(query + 1 + keys - scores.shape[1], 0), keys) if causal else keys
        row = scores[head, query, :seen].astype(np.float64)
        if np.isnan(row).any():
            weights[head, query, :seen] = np.nan
        elif seen and row.max() > -np.inf:
            with np.errstate(invalid="ignore"):  # inf - inf is NaN
                made = np.exp(row - row.max())
            weights[head, query, :seen] = made / made.sum()
    return weights


def rows(keys=70, queries=3):
    return np.random.default_rng(3).standard_normal((2, queries, keys)).astype(F32)


def with_nan(at):
    scores = rows()
    scores[0, 1, at] = np.nan
    return scores


INPUTS = {
    "whole rows": (rows(), False),
    "causal": (rows(), True),
    "more queries than keys": (rows(2, 5), True),
    "a key": (rows(1), False),
    "large scores": (300 * rows(), False),
    "rows of -inf": (np.full((1, 2, 40), -np.inf, F32), False),
    "one score that is not -inf": (np.where(np.arange(70) == 66, F32(5), F32(-np.inf))[None, None], False),
    "an infinity": (np.where(np.arange(70) == 66, F32(np.inf), F32(1))[None, None], False),
    # A lane has the scores 32 apart: its first, one behind it, and the last that a causal query sees or does not see.
    "a first NaN": (with_nan(5), False),
    "a later NaN": (with_nan(40), False),
    "a NaN that is seen": (with_nan(68), True),
    "a NaN that is not seen": (with_nan(69), True),
    "nothing but NaN": (np.full((1, 1, 33), np.nan, F32), False),
    "NaN and -inf": (np.where(np.arange(33) == 0, F32(np.nan), F32(-np.inf))[None, None], False),
}


def right(scores, causal, **options):
    """Weights are right to 8 ulp of 1: exponentials have 2, and sums of 70 a few; 16 bits are rounded once more."""
    found = result_of(masked_softmax, scores, causal, **options)
    allowed = 8 * float(np.finfo(F32).eps) + (2.0**-8 if found.dtype != F32 else 0)
    return judge.right(found.astype(F32), reference(scores, causal), allowed)


@pytest.mark.parametrize("name", INPUTS)
def test_results(name):
    assert right(*INPUTS[name])


@pytest.mark.parametrize("dtype", known(room.DTYPES[1:]), ids=str)
def test_16_bits(dtype):
    for name in ("causal", "a first NaN"):
        scores, causal = INPUTS[name]
        assert right(scores.astype(dtype), causal)
        assert right(scores, causal, dtype=str(dtype))


def test_in_place():
    scores = device.to_device(rows())
    assert masked_softmax(scores, out=scores) is scores
    np.testing.assert_array_equal(device.to_host(scores), device.to_host(masked_softmax(rows())))


@cuda.jit
def adds_only_what_is_above_minus_infinity(scores, weights, causal):
    """Which keeps -inf - -inf away, and NaN as well: it is not above anything, and no maximum."""
    row = np.int64(cuda.blockIdx.x) * WARPS + cuda.threadIdx.x // WARP
    lane, queries, keys = cuda.threadIdx.x % WARP, scores.shape[1], scores.shape[2]
    if row >= scores.shape[0] * queries:
        return
    head, query = row // queries, row % queries
    seen = min(query + 1 + keys - queries, keys) if causal else keys
    highest, total = LEAST, f0
    for j in range(lane, seen, WARP):
        highest = max(highest, widened(scores[head, query, j]))
    highest = warp_max(highest)
    for j in range(lane, seen, WARP):
        x = widened(scores[head, query, j])
        if x > LEAST:
            total += cuda.libdevice.expf(x - highest)
    total = warp_sum(total)
    for j in range(lane, keys, WARP):
        x = widened(scores[head, query, j])
        weights[head, query, j] = cuda.libdevice.expf(x - highest) / total if j < seen and x > LEAST else f0


def test_a_wrong_kernel_is_rejected_for_its_reason(monkeypatch):
    monkeypatch.setattr(room, "masked_kernel", adds_only_what_is_above_minus_infinity)
    wrong = [name for name in INPUTS if not right(*INPUTS[name])]
    assert wrong == ["a first NaN", "a later NaN", "a NaN that is seen", "nothing but NaN", "NaN and -inf"]


def test_bad_input():
    with pytest.raises(ValueError, match=r"^scores must have 3 dimensions"):
        masked_softmax(rows()[0])
    with pytest.raises(TypeError, match=r"^causal must be True or False, was 1"):
        masked_softmax(rows(), 1)
    with pytest.raises(TypeError, match=r"^dtype must be None or one of float32, float16, bfloat16, was 'float64'"):
        masked_softmax(rows(), dtype="float64")
    half = device.to_device(np.ones(2 * rows().size, np.float16))
    scores, first = half.view(F32).reshape(rows().shape), half[: rows().size].reshape(rows().shape)
    with pytest.raises(ValueError, match="out must share no memory with scores"):
        masked_softmax(scores, dtype="float16", out=first)
