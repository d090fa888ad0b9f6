"""What is recorded for a CUDA graph, and what runs at once."""

from __future__ import annotations

import typing

from pmpp.runtime import device

__all__ = ["is_recorded"]


def is_recorded(stream: typing.Any) -> bool:
    """Whether what is queued on a stream becomes part of a CUDA graph. The default stream cannot be recorded.

    >>> is_recorded(0)
    False
    """
    if not device.on_gpu() or (type(stream) is int and stream == 0):
        return False
    import cupy

    return bool(cupy.cuda.runtime.streamIsCapturing(int(stream.handle)))
