"""A further token joins a cache: its key and its value are written behind those of its text.

`pmpp.kernels.attention.decode` reads such a cache. Where a token goes stands on the device, in ``lengths``. So the
launch is the same for every token, and a CUDA graph can have it.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device

__all__ = ["join"]

BLOCK = 128


@cuda.jit
def join_kernel(keys, values, k, v, lengths):
    """A thread for each element of k and v: (texts, groups, size). The cache is (texts, groups, room, size)."""
    at, (_, groups, size) = cuda.grid(1), k.shape
    if at < k.size:
        column, group, text = at % size, at // size % groups, at // size // groups
        place = lengths[text] - 1
        if 0 <= place < keys.shape[2]:
            keys[text, group, place, column] = k[text, group, column]
            values[text, group, place, column] = v[text, group, column]


def join(keys, values, k, v, lengths, *, stream=0) -> None:
    """Write k and v of a token of each text into its cache, as the last of ``lengths`` tokens.

    Args:
        keys, values: the cache: float32 device arrays of shape (texts, groups, room, size), in C order.
        k, v: float32, shape (texts, groups, size), of any strides, apart from the cache in memory.
        lengths: int32, shape (texts,): how many tokens each text has, this one included. A text whose length is not
            from 1 to ``room`` is left as it is.
        stream: the stream to work on.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> keys, values = (device.to_device(np.zeros((1, 1, 3, 2), np.float32)) for _ in range(2))
    >>> join(keys, values, np.float32([[[1, 2]]]), np.float32([[[3, 4]]]), np.int32([2]))
    >>> keys.copy_to_host()[0, 0].tolist(), values.copy_to_host()[0, 0].tolist()
    ([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    """
    stream = device.as_stream(stream)
    k = device.as_input("k", k, dtypes="float32", ndim=3, layout="any", stream=stream)
    v = device.as_input("v", v, dtypes="float32", ndim=3, shape=k.shape, layout="any", stream=stream)
    texts, groups, size = k.shape
    lengths = device.as_input("lengths", lengths, dtypes="int32", ndim=1, shape=(texts,), stream=stream)
    read = {"k": k, "v": v, "lengths": lengths}
    extents = getattr(keys, "shape", ())  # of what is no array it may be anything
    room = extents[2] if isinstance(extents, tuple) and len(extents) == 4 else 0
    shape = texts, groups, room, size
    for name, kept, others in (("keys", keys, read), ("values", values, read | {"keys": keys})):
        if kept is None:
            raise TypeError(f"{name} must be a device array, was None")
        device.as_output(name, kept, shape=shape, dtype=np.float32, apart=others, stream=stream)
    if k.size:
        join_kernel[blocks(k.size, BLOCK), BLOCK, stream](keys, values, k, v, lengths)
