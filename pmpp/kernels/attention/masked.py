"""Masked softmax of attention's scores: a row's weights, of the keys that its query sees, in 16 or 32 bits.

It is what training uses where scores are kept in memory; `pmpp.kernels.attention.ladder` keeps none. A warp takes a
row. It goes over it twice: for the maximum and the sum together, as in the online softmax of chapter 75, and to write.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.dtypes import dtype_of
from pmpp.runtime.vector import widened

DTYPES = ("float32", "float16", "bfloat16")
WARPS, WARP = 8, 32  # a block has a warp for each of so many rows
LEAST, f0, f1 = np.float32(-np.inf), np.float32(0), np.float32(1)


@cuda.jit
def masked_kernel(scores, weights, causal):
    """``scores`` and ``weights``: (heads, queries, keys). The last query stands at the last key."""
    row = np.int64(cuda.blockIdx.x) * WARPS + cuda.threadIdx.x // WARP
    lane, queries, keys = cuda.threadIdx.x % WARP, scores.shape[1], scores.shape[2]
    if row >= scores.shape[0] * queries:
        return
    head, query = row // queries, row % queries
    seen = min(query + 1 + keys - queries, keys) if causal else keys
    highest, total = LEAST, f0
    for j in range(lane, seen, WARP):
        x = widened(scores[head, query, j])
        above = max(highest, x)  # max drops a NaN, but the exponential of x is NaN
        base = above if above != LEAST else f0  # -inf - -inf would be NaN
        total = total * cuda.libdevice.expf(highest - base) + cuda.libdevice.expf(x - base)
        highest = above
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(FULL_WARP, highest, distance)
        their = cuda.shfl_xor_sync(FULL_WARP, total, distance)
        above = max(highest, other)
        base = above if above != LEAST else f0
        total = total * cuda.libdevice.expf(highest - base) + their * cuda.libdevice.expf(other - base)
        highest = above
    base, share = highest if highest != LEAST else f0, f1 / total if total != f0 else f0
    for j in range(lane, keys, WARP):
        weight = f0
        if j < seen:
            weight = cuda.libdevice.expf(widened(scores[head, query, j]) - base) * share
        weights[head, query, j] = weight


def masked_softmax(scores, causal=False, *, dtype=None, out=None, stream=0):
    """Softmax of each row of scores, of which a causal query sees those of the keys up to its own place.

    Args:
        scores: float32, float16 or bfloat16, shape (heads, queries, keys), contiguous in C order.
        causal: True to leave out the keys that stand behind the query. The last query stands at the last key.
        dtype: that of the weights: None for the dtype of ``scores``.
        out: a device array of the shape of ``scores`` and that dtype, apart from them in memory, or None to allocate
            one. It may be ``scores``, if that has the dtype.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. What a query does not see has the weight 0, and a query
    that sees nothing, or only scores of -inf, has only these. One that sees a NaN has NaN for all keys that it sees.
    Sums are in float32.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> masked_softmax(np.float32([[[5, 9], [7, 7]]]), causal=True).copy_to_host()
    array([[[1. , 0. ],
            [0.5, 0.5]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    scores = device.as_input("scores", scores, dtypes=DTYPES, ndim=3, stream=stream)
    causal = as_flag("causal", causal)
    if dtype is not None and str(dtype) not in DTYPES:
        raise TypeError(f"dtype must be None or one of {', '.join(DTYPES)}, was {dtype!r}")
    kind = scores.dtype if dtype is None else dtype_of(str(dtype))
    may_be = ("scores",) if kind == scores.dtype else ()
    apart = {"scores": scores}
    out = device.as_output("out", out, shape=scores.shape, dtype=kind, apart=apart, may_be=may_be, stream=stream)
    if out.size:
        rows = scores.shape[0] * scores.shape[1]
        masked_kernel[blocks(rows, WARPS), WARPS * WARP, stream](scores, out, causal)
    return out
