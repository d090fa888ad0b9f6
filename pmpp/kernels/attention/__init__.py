"""Attention: for each query the mean of all values, weighted by a softmax of the query's products with the keys.

The rooms are `pmpp.kernels.attention.ladder`, from scores that are written to memory to tiles that never leave the
multiprocessor, and `pmpp.kernels.attention.decode`, for one query on a cache of keys and values. Both are taught in
chapter notebooks/75_attention.ipynb. `pmpp.kernels.attention.on_tensor_cores` is for float16 and bfloat16, and
`pmpp.kernels.attention.attention_gradients` has the gradients: chapter notebooks/87_attention_on_tensor_cores.ipynb.
`on_warpgroups` and `gradients_on_warpgroups` are both for Hopper, in the same chapter.
`attention`, `attention_backward` and `attention_with_cache` take the rungs to use.
"""

from pmpp.kernels.attention import (
    attention_gradients,
    decode,
    gradients_on_warpgroups,
    on_tensor_cores,
    on_warpgroups,
)
from pmpp.kernels.attention.ladder import *
from pmpp.kernels.attention.ladder import streamed
from pmpp.runtime import device


def attention(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0):
    """``softmax(scale * q @ k.T) @ v`` for each head; arguments, result and errors as in `streamed`.

    If q is float16 or bfloat16, they are those of `on_warpgroups.overlapped` on a Hopper GPU, and of
    `on_tensor_cores.wide` on others.

    >>> import numpy as np
    >>> q, k = np.zeros((1, 2, 3, 8), np.float32), np.ones((1, 1, 3, 8), np.float32)
    >>> v = np.float32([3, 6, 9]).reshape(1, 1, 3, 1).repeat(8, 3)
    >>> attention(q, k, v, causal=True, scale=1.0).copy_to_host()[0, 1, :, 0]
    array([3. , 4.5, 6. ], dtype=float32)
    """
    q = device.as_input("q", q, dtypes=decode.DTYPES, ndim=4, stream=device.as_stream(stream))
    chosen = streamed
    if q.dtype != "float32":
        chosen = on_warpgroups.overlapped if _on_hopper() else on_tensor_cores.wide
    return chosen(q, k, v, causal, window, scale, out=out, stream=stream)


def _on_hopper() -> bool:
    """Whether this GPU has what the rooms by warpgroups need."""
    return device.limits()["compute_capability"] == on_warpgroups.CAPABILITY


def attention_backward(gradient, q, k, v, causal=False, window=None, scale=None, *, result=None, logs=None, stream=0):
    """The gradients of `attention` by q, k and v; arguments, result and errors as in `attention_gradients.overlapped`.

    On a Hopper GPU they are those of `gradients_on_warpgroups.in_flight`. In float16 and bfloat16 alone.
    ``result, logs = on_tensor_cores.forward(...)``, or that of `on_warpgroups`, spares it the forward pass.

    >>> import numpy as np
    >>> one = np.ones((1, 1, 2, 1), np.float16)
    >>> attention_backward(one, one, one, one, causal=True, scale=1.0)[2].copy_to_host().ravel()
    array([1.5, 0.5], dtype=float16)
    """
    given = gradient, q, k, v, causal, window, scale
    chosen = gradients_on_warpgroups.in_flight if _on_hopper() else attention_gradients.overlapped
    return chosen(*given, result=result, logs=logs, stream=stream)


def attention_with_cache(q, k, v, lengths, pages=None, scale=None, *, out=None, stream=0):
    """Attention of one query a head on the first keys of a cache.

    Arguments, result and errors are those of `decode.fed`.

    >>> import numpy as np
    >>> q, k = np.zeros((1, 2, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    >>> v = np.float32([1, 3, 100]).reshape(1, 1, 3, 1).repeat(4, 3)
    >>> attention_with_cache(q, k, v, np.int32([2]), scale=1.0).copy_to_host()[0, 1]
    array([2., 2., 2., 2.], dtype=float32)
    """
    return decode.fed(q, k, v, lengths, pages, scale, out=out, stream=stream)
