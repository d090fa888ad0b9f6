"""Arrays of CuPy and PyTorch on a GPU as `Array`: views, made from what these libraries say of their arrays directly.

``__cuda_array_interface__`` says it too, but makes a dictionary and a string of a dtype each time, and Numba reads them
back, which takes longer than a launch. What is unusual about an array, a tensor that requires grad, say, is left to
that interface.
"""

from __future__ import annotations

import functools
import sys
import types
import typing

import numpy as np

__all__ = ["begin_after", "cupy_stream", "library", "maker", "producer", "view"]


@functools.lru_cache(256)
def library(kind: type) -> str:
    """Whose arrays are of a type: "cupy", "torch" or ""."""
    root = kind.__module__.partition(".")[0]
    arrays = getattr(sys.modules.get(root), {"torch": "Tensor", "cupy": "ndarray"}.get(root, ""), ())
    return root if issubclass(kind, arrays) else ""


def view(x: typing.Any) -> typing.Any:
    """A view, an `Array`, of an array of CuPy or PyTorch; None if it is none, or an unusual one.

    It does not keep the memory: that is up to who has the array.
    """
    make = _MAKERS.get(type(x))
    if make is None:
        make = _MAKERS[type(x)] = maker(library(type(x)))
    return make(x)


_MAKERS: dict[type, typing.Callable] = {}


@functools.cache
def maker(name: str) -> typing.Callable:
    """What makes views of a library's arrays."""
    return {"torch": _of_torch, "cupy": _of_cupy}[name]() if name else lambda x: None


def _of_torch() -> typing.Callable:
    import torch

    from pmpp.runtime.array import Array, contiguous, layout
    from pmpp.runtime.dtypes import BFLOAT16

    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    dtypes = {getattr(torch, name): np.dtype(name) for name in (*names, "complex64", "complex128")}
    if BFLOAT16 is not None:  # __cuda_array_interface__ has no word for it
        dtypes[torch.bfloat16] = BFLOAT16
    seen_at, strided = Array.seen_at, torch.strided

    def of(x: typing.Any) -> Array | None:
        dtype, device = dtypes.get(x.dtype), x.get_device()
        # The last two are views whose values are others than those in memory.
        if dtype is None or device < 0 or x.requires_grad or x.layout is not strided or x.is_neg() or x.is_conj():
            return None
        if x.is_contiguous():
            return seen_at(x.data_ptr(), contiguous(x.shape, dtype, device))
        strides = tuple([step * dtype.itemsize for step in x.stride()])
        return seen_at(x.data_ptr(), layout(tuple(x.shape), strides, dtype, device))

    return of


def _of_cupy() -> typing.Callable:
    from pmpp.runtime.array import Array, contiguous, layout

    def of(x: typing.Any) -> Array | None:
        memory, shape, dtype = x.data, x.shape, x.dtype
        described = contiguous(shape, dtype, memory.device_id)
        if x.strides != described.attributes["strides"]:
            if min(x.strides, default=0) < 0:
                return None
            described = layout(shape, x.strides, dtype, memory.device_id)
        return Array.seen_at(memory.ptr, described)

    return of


# ------------------------------------------------------------------------------------------------------------- streams


def producer(kind: type) -> int | None:
    """The handle of the stream on which an array of that type was written last, None if its library does not say."""
    return cupy_stream() if library(kind) == "cupy" else None


def cupy_stream() -> int:
    """The handle of CuPy's current stream."""
    return _plain(_cupy_stream()())


@functools.cache
def _cupy_stream() -> typing.Callable[[], int]:
    cupy = sys.modules["cupy"]
    return lambda: cupy.cuda.get_current_stream().ptr


def begin_after(cuda: types.ModuleType, producer: int | None, consumer: int) -> None:
    """Let the stream ``consumer`` begin what is queued from now on after all that is queued on ``producer`` by now.

    Both are handles. Nothing is done if they are one stream, or if the producer is None. The host does not wait.
    ``cuda`` is Numba's module.
    """
    if producer is None or _plain(producer) == _plain(consumer):
        return
    event = cuda.event(timing=False)
    event.record(_stream(cuda, producer))
    event.wait(_stream(cuda, consumer))


def _plain(handle: int) -> int:
    """The default stream has two handles, 0 and 1."""
    return 0 if handle == 1 else handle


def _stream(cuda: types.ModuleType, handle: int) -> typing.Any:
    return cuda.external_stream(handle) if _plain(handle) else cuda.default_stream()
