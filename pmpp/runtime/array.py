"""Arrays on a GPU that cost little to make: what `pmpp.runtime.device` hands to rungs and kernels there.

`Array` is one of Numba's device arrays, with all that they can do. Numba's own takes longer to make than a launch, most
of it for what a launch never asks: a description of its extents, an object for its memory. An `Array` makes these when
somebody asks for them. What a launch does ask, its type and the words that a kernel is given of it, stands ready:

    words    how a kernel that Numba compiled takes an array of n dimensions: as 5 + 2 n integers of 64 bits, which are
             0, 0, size, itemsize, address, shape, strides in bytes
    form     one object for all arrays of a dtype, rank, order and device: kernels are chosen by it

This module imports Numba, so it is imported only where kernels run on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import struct
import sys
import typing
from dataclasses import dataclass, field

import numpy as np
from numba.cuda.cudadrv import devices, driver, dummyarray
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from pmpp.runtime.dtypes import is_bfloat16

__all__ = ["Array", "Form", "Layout", "adopted", "contiguous", "device", "form_of", "layout", "library", "several"]


@dataclass(frozen=True, eq=False)
class Form:
    """What kernels are compiled for, and the device that the memory belongs to. `form_of` keeps one object for each."""

    dtype: np.dtype
    ndim: int
    order: str  # "C", "F" or "A", as in Numba's types
    device: int

    @property
    def nbytes(self) -> int:
        """Of an array's words."""
        return 8 * (5 + 2 * self.ndim)


@functools.cache
def form_of(dtype: np.dtype, ndim: int, order: str, device: int) -> Form:
    """The one form of these."""
    return Form(dtype, ndim, order, device)


@dataclass(frozen=True, eq=False)
class Layout:
    """What all arrays of a shape, strides, a dtype and a device have in common."""

    attributes: dict[str, typing.Any]  # of the array
    nbytes: int
    head: bytes  # the words before the address
    tail: bytes  # and those behind it
    seen: dict[int, Array] = field(default_factory=dict)  # see `Array.seen_at`
    views: dict[typing.Any, Layout | None] = field(default_factory=dict)  # see `Array.layout_of_view`


@functools.lru_cache(4096)
def contiguous(shape: tuple[int, ...], dtype: np.dtype, device: int) -> Layout:
    """The layout of an array in C order."""
    shape = tuple(map(operator.index, shape))  # PyTorch has a tuple of its own, and NumPy has integers
    strides, step = [], dtype.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return layout(shape, tuple(reversed(strides)), dtype, device)


@functools.lru_cache(4096)
def layout(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, device: int) -> Layout:
    """The layout of an array with these strides, in bytes and not negative."""
    size = math.prod(shape)
    nbytes = _extent(shape, strides, dtype.itemsize)
    attributes = {
        "shape": shape,
        "strides": strides,
        "dtype": dtype,
        "ndim": len(shape),
        "size": size,
        "alloc_size": nbytes,
        "form": form_of(dtype, len(shape), _order(shape, strides, dtype.itemsize), device),
        "stream": 0,
    }
    head = struct.pack("=4q", 0, 0, size, dtype.itemsize)
    made = Layout(attributes, nbytes, head, struct.pack(f"={2 * len(shape)}q", *shape, *strides))
    attributes["layout"] = made
    return made


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first to behind the last element. Strides are not negative."""
    if 0 in shape:
        return 0
    return itemsize + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def _order(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> str:
    """As Numba says it: "C" before "F", and "A" for an array that shows an element twice."""
    if 0 in strides and 0 not in shape:
        return "A"
    flags = dummyarray.Array.from_desc(0, shape, strides, itemsize).flags
    return "C" if flags["C_CONTIGUOUS"] else "F" if flags["F_CONTIGUOUS"] else "A"


class Array(DeviceNDArray):
    """A device array of the pool, or a view of memory that CuPy, PyTorch or another library owns."""

    @classmethod
    def at(cls, pointer: int, layout: Layout, owner: typing.Any) -> Array:
        """The array at an address; ``owner`` is kept alive, and with it the memory."""
        array = cls.__new__(cls)
        array.__dict__ = known = layout.attributes.copy()
        known["pointer"] = pointer
        known["owner"] = owner
        known["words"] = layout.head + pointer.to_bytes(8, "little") + layout.tail
        return array

    @classmethod
    def seen_at(cls, pointer: int, layout: Layout) -> Array:
        """The array at an address, for as long as the caller keeps the memory alive: it does not.

        One is kept for each layout and address, since pools give the same addresses again and again.
        """
        array = layout.seen.get(pointer)
        if array is None:
            if len(layout.seen) >= SEEN:
                layout.seen.clear()
            array = layout.seen[pointer] = cls.at(pointer, layout, None)
        return array

    def owned_by(self, owner: typing.Any) -> Array:
        """The same array, which keeps ``owner`` alive."""
        array = self.__class__.__new__(self.__class__)
        array.__dict__ = known = self.__dict__.copy()
        for name in ("gpu_data", "views"):  # these have an owner of their own
            known.pop(name, None)
        known["owner"] = owner
        return array

    # Made when they are first asked for. A view that Numba makes of an array brings its own.
    @functools.cached_property
    def gpu_data(self) -> typing.Any:
        address = driver.binding.CUdeviceptr(self.pointer)
        return driver.MemoryPointer(devices.get_context(), address, size=self.alloc_size, owner=self.owner)

    @functools.cached_property
    def _dummy(self) -> typing.Any:
        return dummyarray.Array.from_desc(0, self.shape, self.strides, self.dtype.itemsize)

    @functools.cached_property
    def pointer(self) -> int:
        return self.device_ctypes_pointer.value or 0

    @functools.cached_property
    def owner(self) -> typing.Any:
        return self.gpu_data

    @functools.cached_property
    def form(self) -> Form:
        return self.layout.attributes["form"]

    @functools.cached_property
    def layout(self) -> Layout:
        return layout(self.shape, self.strides, self.dtype, self.gpu_data.context.device.id)

    @functools.cached_property
    def words(self) -> bytes:
        return self.layout.head + self.pointer.to_bytes(8, "little") + self.layout.tail

    @functools.cached_property
    def views(self) -> dict[tuple, Array]:
        """Views that were asked for before, by shape. They keep the memory, not this array."""
        return {}

    def reshape(self, *newshape: typing.Any, **options: typing.Any) -> Array:
        """A view of another shape, as of NumPy's arrays; one extent may be -1."""
        try:
            return self.views[newshape]
        except KeyError:
            described = None if options else self.layout_of_view(newshape)
        except TypeError:  # a list
            return self.reshape(tuple(newshape[0]), **options)
        if described is None:
            return super().reshape(*newshape, **options)
        made = Array.at(self.pointer, described, self.owner)
        if len(self.views) < SEEN:
            self.views[newshape] = made
        return made

    def layout_of_view(self, newshape: tuple) -> Layout | None:
        """The layout of `reshape`, which this array's layout keeps; None if Numba has to look."""
        kept = self.layout.views
        if newshape in kept:
            return kept[newshape]
        shape = newshape[0] if len(newshape) == 1 and isinstance(newshape[0], tuple) else newshape
        described = None
        if self.form.order == "C":
            described = reshaped(shape, self.size, self.dtype, self.form.device)
        if len(kept) < SEEN:
            kept[newshape] = described
        return described

    def ravel(self, order: str = "C", stream: typing.Any = 0) -> Array:
        """A view of one dimension, as of NumPy's arrays."""
        return self.reshape(self.size) if order == "C" and self.form.order == "C" else super().ravel(order, stream)

    def view(self, dtype: typing.Any) -> Array:
        """The same memory as elements of another dtype, as of NumPy's arrays."""
        described = self.layout.views.get(dtype)
        if described is None:
            wanted = np.dtype(dtype)
            last = self.shape[-1] * self.dtype.itemsize if self.shape else 0
            if self.form.order != "C" or not self.shape or last % wanted.itemsize:
                return super().view(wanted)  # which says what is wrong
            described = contiguous((*self.shape[:-1], last // wanted.itemsize), wanted, self.form.device)
            self.layout.views[dtype] = described
        return Array.at(self.pointer, described, self.owner)

    def copy_to_device(self, ary: typing.Any, stream: typing.Any = 0) -> None:
        """Copy an array of the host or of a device into this one. Of NumPy's bfloat16 Numba takes no address."""
        if isinstance(ary, np.ndarray) and is_bfloat16(self.dtype) and ary.dtype == self.dtype:
            bits = Array.at(self.pointer, layout(self.shape, self.strides, BITS, self.form.device), self.owner)
            bits.copy_to_device(ary.view(BITS), stream=stream)
        else:
            super().copy_to_device(ary, stream=stream)

    def __getitem__(self, item: typing.Any) -> typing.Any:
        """As of NumPy's arrays. A slice of the first axis costs little where the array is in C order."""
        if type(item) is slice and item.step is None and self.form.order == "C" and self.size:
            first, last, _ = item.indices(self.shape[0])
            shape = (max(last - first, 0), *self.shape[1:])
            described = contiguous(shape, self.dtype, self.form.device)
            return Array.at(self.pointer + first * self.strides[0], described, self.owner)
        return super().__getitem__(item)


@functools.lru_cache(4096)
def reshaped(shape: tuple[int, ...], size: int, dtype: np.dtype, device: int) -> Layout | None:
    """The layout of an array in C order with another shape; None if its elements do not fill it."""
    if -1 in shape:
        known = -math.prod(shape)
        if known <= 0 or size % known or shape.count(-1) > 1:
            return None
        shape = tuple(size // known if extent == -1 else extent for extent in shape)
    if math.prod(shape) != size or min(shape, default=0) < 0:
        return None
    return contiguous(shape, dtype, device)


def adopted(array: DeviceNDArray) -> Array | None:
    """One of Numba's own arrays, made an `Array` where it is: the same object, which now knows its form.

    None for an array of a subclass, of pinned or managed memory, say.
    """
    if type(array) is DeviceNDArray:
        array.__class__ = Array
    return array if type(array) is Array else None


BITS = np.dtype(np.uint16)
SEEN = 64  # arrays, or layouts of views, that a layout keeps


@functools.cache
def several() -> bool:
    """Whether there is more than one GPU."""
    return len(devices.gpus) > 1


@functools.cache
def library() -> typing.Any:
    """The driver, by ctypes: its functions have no argtypes, since they are given objects of ctypes."""
    return ctypes.WinDLL("nvcuda.dll") if sys.platform == "win32" else ctypes.CDLL("libcuda.so.1")


def device() -> int:
    """The number of the current device. Where there is only one, nothing is asked."""
    if not several():
        return 0
    number = ctypes.c_int()
    failed = library().cuCtxGetDevice(ctypes.byref(number))
    return devices.get_context().device.id if failed else number.value  # a thread that has no context yet
