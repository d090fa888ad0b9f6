"""Streams of a GPU that wait for one another, and those on which arrays travel.

Where there is one stream, or none, as in the interpreter, nothing waits.
"""

from __future__ import annotations

import ctypes
import functools
import typing

from pmpp.runtime import device

__all__ = ["Mark", "ask", "sending_stream", "wait_for"]


def ask(name: str, *arguments: typing.Any) -> None:
    """Call a function of the driver. Raises RuntimeError with the driver's words if it fails."""
    from pmpp.runtime.array import library

    code = getattr(library(), name)(*arguments)
    if code:
        words = ctypes.c_char_p()
        library().cuGetErrorString(code, ctypes.byref(words))
        raise RuntimeError(f"{name} failed with error {code}: {(words.value or b'unknown').decode()}")


class Mark:
    """A point in the work of a stream, which other streams can wait for. It can be set again and again."""

    def __init__(self) -> None:
        self._event = device.backend().cuda.event(timing=False)

    def set(self, stream: typing.Any) -> None:
        """Behind all that is queued on the stream by now."""
        self._event.record(_stream(device._stream_handle(stream)))

    def wait(self, stream: typing.Any) -> None:
        """Let a stream go on after the point where the mark was set last."""
        self._event.wait(_stream(device._stream_handle(stream)))


def wait_for(producer: typing.Any, consumer: typing.Any) -> None:
    """Let a stream go on after all that is queued on another one by now. Nothing is done if they are one stream."""
    if device._stream_handle(producer) != device._stream_handle(consumer):
        mark = _mark(device.current())
        mark.set(producer)
        mark.wait(consumer)


def sending_stream() -> typing.Any:
    """A new stream of a GPU that has no order with the default stream, and whose blocks go first; it is kept for good.

    A backward pass fills the GPU with kernels that follow one another at once. A kernel of another stream would get no
    SM before the last of their blocks has begun: so its blocks have to go first where one becomes free.
    """
    handle = ctypes.c_void_p()
    non_blocking, greatest = ctypes.c_uint(1), ctypes.c_int(-(2**31))  # the driver takes the greatest that there is
    ask("cuStreamCreateWithPriority", ctypes.byref(handle), non_blocking, greatest)
    return device.backend().cuda.external_stream(handle.value)


@functools.cache
def _mark(number: int) -> Mark:
    """The mark of a GPU. A wait is for what was queued before it, so one is enough."""
    return Mark()


@functools.lru_cache(maxsize=64)
def _stream(handle: int) -> typing.Any:
    cuda = device.backend().cuda
    return cuda.external_stream(handle) if handle > 1 else cuda.default_stream()
