"""Device arrays: memory that kernels work on, as the host sees it."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from pmpp.simt.host import subscripts
from pmpp.simt.machine.memory import Array, c_strides
from pmpp.simt.machine.storage import Cells, Storage, poison
from pmpp.simt.values import records
from pmpp.simt.values.dtypes import BFLOAT16
from pmpp.simt.values.errors import ArgumentError, LaunchError, UnsupportedError

#: Simulated addresses: allocations lie this many bytes apart, and so begin at a multiple of 256 as the CUDA driver's
#: do.
_SPACING = 1 << 40
_next_address = itertools.count(_SPACING, _SPACING)


#: Allocations that live, by their simulated address.
_allocations: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


def storage_at(address: int) -> tuple[Storage, int] | None:
    """The allocation that a simulated address lies in, and the bytes from its start; None if none lives there."""
    start = address % _SPACING
    storage = _allocations.get(address - start)
    return None if storage is None or start >= max(1, storage.values.nbytes) else (storage, start)


class DeviceArray:
    """An array in the interpreter's device memory; a drop-in for Numba's DeviceNDArray.

    Attributes: shape, strides (bytes), dtype, ndim, size, nbytes, flags, T.  Slicing gives views of the same memory.
    """

    def __init__(
        self, storage: Storage, view: np.ndarray, address: int | None = None, whole: Storage | None = None
    ) -> None:
        self._storage, self._view = storage, view
        self._whole = storage if whole is None else whole  # the allocation, as it was made
        self._base = next(_next_address) if address is None else address
        if address is None:
            _allocations[self._base] = storage
        self.stream: Any = 0
        self._start: int | None = None  # `_offset`, once somebody has asked
        self._in_kernels: Array | None = None  # `_argument`, likewise

    shape = property(lambda self: self._view.shape)
    strides = property(lambda self: self._view.strides)
    dtype = property(lambda self: self._view.dtype)
    ndim = property(lambda self: self._view.ndim)
    size = property(lambda self: self._view.size)
    nbytes = alloc_size = property(lambda self: self._view.nbytes)
    flags = property(lambda self: {"C_CONTIGUOUS": self.is_c_contiguous(), "F_CONTIGUOUS": self.is_f_contiguous()})
    T = property(lambda self: self.transpose())

    @classmethod
    def holding(cls, values: np.ndarray, *, fresh: bool = False) -> DeviceArray:
        """Take ownership of a contiguous array; `fresh` memory counts as never written."""
        core = _core(values)
        flat = core.reshape(-1, order="A" if core.ndim < 2 or core.flags.c_contiguous else "F")
        init = np.zeros(flat.size, np.bool_) if fresh else None
        return cls(Storage("global", flat, init=init), values)

    def _like(self, view: np.ndarray) -> DeviceArray:
        return DeviceArray(self._storage, view, self._base, self._whole)

    def _offset(self) -> int:
        """Bytes from the start of the allocation to the first element of this view."""
        if self._start is None:
            first, values = self._view, self._storage.values
            if first is values or not first.size:
                self._start = 0
            else:
                self._start = first.__array_interface__["data"][0] - values.__array_interface__["data"][0]
        return self._start

    @property
    def device_ctypes_pointer(self) -> ctypes.c_uint64:
        """The simulated address of the first element; it means something to alignment checks only.

        It has 64 bits, as a GPU's, also where a pointer of the host has 32 (in a browser).
        """
        return ctypes.c_uint64(self._address())

    def _address(self) -> int:
        return self._base + self._offset()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """As on a GPU, but the address is simulated: only `as_cuda_array` of the interpreter knows what is there."""
        return {
            "shape": self.shape,
            "strides": None if self._view.flags.c_contiguous else self.strides,
            "typestr": self.dtype.str,
            "data": (self._address() if self.size else 0, not self._storage.writeable),
            "stream": None,
            "version": 3,
        }

    def _argument(self) -> Array:
        """The array as a kernel sees it."""
        if self._in_kernels is not None:
            return self._in_kernels
        if _is_raw(self.dtype):
            raise ArgumentError(
                f"the array holds {self.dtype.str}: {self.dtype.itemsize} bytes each, of which nothing is known.  A "
                "__cuda_array_interface__ does not name the fields of records: say what they are with view(dtype)"
            )
        storage = self._storage
        field = not records.is_record(self.dtype) and records.is_record(storage.layout)
        if field:  # of records: a launch that begins again makes its storage anew
            storage = storage.leaf(self.dtype)
        size = 1 if records.is_record(self.dtype) else storage.unit
        strides = tuple(s // size for s in self.strides)
        array = Array(storage, self.dtype, self.shape, strides, self._offset() // size)
        if not field:
            self._in_kernels = array
        return array

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """A copy in host memory, or into `ary` of the same shape, dtype and strides."""
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"D->H copy not implemented for negative strides: {self.strides}")
        if ary is None:
            return _copied(self._view)
        self._compare(ary)
        ary[...] = self._view.reshape(ary.shape)
        return ary

    def _compare(self, ary: Any, *, strides: bool = True) -> None:
        """Refuse an array of another dtype or shape, or of other strides; axes of one element do not count."""
        here, there = ([(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1] for x in (self, ary))
        if [n for n, _ in here] != [n for n, _ in there] or ary.dtype != self.dtype:
            raise ArgumentError(f"ary is {ary.dtype}{ary.shape}; the device array is {self.dtype}{self.shape}")
        if strides and self.size and here != there:
            raise ArgumentError(f"ary has the strides {ary.strides}; the device array has {self.strides}")

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite with an array of the same shape and dtype; both must lie without gaps, a host array need not."""
        source = ary._view if isinstance(ary, DeviceArray) else np.asarray(ary)
        self._compare(source, strides=isinstance(ary, DeviceArray))
        own, source = _core(self._view), _core(source)
        if not own.flags.forc:
            raise ArgumentError(
                f"the device array has gaps (strides {self.strides}): write array[...] = values by slices"
            )
        if own.size != source.size:
            raise ArgumentError(
                f"of {self.size} elements, the device array has {own.size} in memory (strides {self.strides}), and ary "
                f"has {source.size}: an axis of stride 0 takes one of stride 0"
            )
        own[...] = source.reshape(own.shape)
        self._storage.mark_written(own)

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps; not if an axis has the stride 0, as in numba-cuda."""
        return self._view.flags.c_contiguous and not _repeats(self._view)

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie in Fortran order without gaps; not if an axis has the stride 0."""
        return self._view.flags.f_contiguous and not _repeats(self._view)

    def reshape(self, *shape: Any, order: str = "C") -> DeviceArray:
        """A view of another shape, of an array without gaps; an error where that would need a copy.

        NumPy's `x[None]` has the stride 0 along its axis of one element.  numba-cuda takes such an array for one with
        gaps and does not reshape it; it does reshape `x.reshape(1, -1)`.
        """
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if given == self.shape:
            return self._like(self._view)
        if order == "A":  # in NumPy an array of both orders is read in C order
            order = "F" if self.is_f_contiguous() else "C"
        view = self._view.reshape(*shape, order=order)
        if tuple(given) == self.shape:
            raise NotImplementedError(f"numba-cuda takes the shape that an array has as a tuple only, not as {given!r}")
        if self.size > 1 and not self.is_c_contiguous() and not self.is_f_contiguous():
            raise NotImplementedError(
                f"numba-cuda reshapes no array with gaps or with an axis of stride 0 (shape {self.shape}, strides "
                f"{self.strides}): operation requires copying"
            )
        if self.size > 1 and not (self.is_f_contiguous() if order == "F" else self.is_c_contiguous()):
            raise ArgumentError(
                f"an array of shape {self.shape} and strides {self.strides} cannot be reshaped in the order {order!r} "
                "without a copy"
            )
        return self._like(view)

    def ravel(self, order: str = "C") -> DeviceArray:
        """A 1-D view of an array that lies in this order without gaps."""
        if not (self.is_c_contiguous() and order in "CA") and not (self.is_f_contiguous() and order in "FA"):
            raise NotImplementedError(
                f"numba-cuda makes one axis only of an array in {order} order without gaps; this one has shape "
                f"{self.shape} and strides {self.strides}"
            )
        return self.reshape(-1, order=order)

    def transpose(self, axes: tuple[int, ...] | None = None) -> DeviceArray:
        """The transposed matrix: as in Numba a copy in C order, unlike NumPy's view, and of two axes only."""
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError(f"Numba transposes matrices only, not an array of {self.ndim} axes")
        return DeviceArray.holding(self._view.transpose(axes).copy(order="C"))

    def bind(self, stream: Any = 0) -> DeviceArray:
        """The same memory, with another default stream; here all streams are one."""
        bound = self._like(self._view)
        bound.stream = stream
        return bound

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another type; of another size only where the elements lie in C order without gaps.

        They may begin at any byte, but a kernel that reads a number from an address that is no multiple of its size is
        stopped, as on a GPU.
        """
        dtype = records.plain(np.dtype(dtype))
        shape, strides = self.shape, self.strides
        if dtype.itemsize != self.dtype.itemsize:
            if not self.is_c_contiguous():
                raise ValueError(
                    f"To change to a dtype of a different size, the array must be C-contiguous; it has shape {shape} "
                    f"and strides {strides}"
                )
            self._view.view(dtype)  # raises unless it is a whole number of elements
            shape = (*shape[:-1], shape[-1] * self.dtype.itemsize // dtype.itemsize)
            strides = (*strides[:-1], dtype.itemsize)
        return _seen(self._base, self._whole, dtype, shape, strides, self._offset())

    def split(self, section: int, stream: Any = 0) -> Iterator[DeviceArray]:
        """Views of `section` elements each along the only axis; the last may be shorter."""
        if self.ndim != 1:
            raise ArgumentError(f"split takes an array of one axis; this one has {self.ndim}")
        if self.strides != (self.dtype.itemsize,):
            raise ArgumentError(f"split takes an array without gaps; this one has strides {self.strides}")
        return (self[at : at + section] for at in range(0, self.size, section))

    def squeeze(self, axis: Any = None, stream: Any = 0) -> DeviceArray:
        """A view without the axes of extent 1."""
        if any(each < 0 for each in (axis if isinstance(axis, tuple) else (axis or 0,))):
            raise ArgumentError(f"axis is {axis}; numba-cuda counts axes from 0 and leaves those below in place")
        return self._like(self._view.squeeze(axis))

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """`self[item]`."""
        return self[item]

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """`self[key] = value`."""
        self[key] = value

    def get_ipc_handle(self) -> NoReturn:
        """Not here."""
        raise UnsupportedError("get_ipc_handle: memory of the interpreter belongs to this process and cannot be shared")

    def __getitem__(self, item: Any) -> Any:
        items = subscripts.checked(self._view, item)
        part = self._view[(*items, Ellipsis)]  # an array, even of one element
        if any(isinstance(each, slice) for each in items) or len(items) < self.ndim:
            return self._like(part)
        if records.is_record(self.dtype):
            return DeviceRecord(self._storage, part, self._base, self._whole)
        return part[()]

    def __setitem__(self, item: Any, value: Any) -> None:
        part = self._view[(*subscripts.checked(self._view, item), Ellipsis)]
        on_device = hasattr(value, "__cuda_array_interface__")
        part[...] = subscripts.assigned(part, as_cuda_array(value)._view if on_device else value, on_device)
        self._storage.mark_written(part)

    def __len__(self) -> int:
        return len(self._view)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:  # as in Numba; without it NumPy would be handed a copy after all
            raise ValueError("`copy=False` is not possible: what is on the device is copied to the host")
        return np.array(self._view, dtype=dtype)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype})"


class DeviceRecord(DeviceArray):
    """One record of a device array: `record["field"]` is a number, or a view of what the record holds."""

    def __getitem__(self, name: Any) -> Any:
        part = self._field(name)
        if records.is_record(part.dtype) and not part.ndim:
            return DeviceRecord(self._storage, part, self._base, self._whole)
        return self._like(part) if part.ndim else part[()]

    def __setitem__(self, name: Any, value: Any) -> None:
        part = self._field(name)
        if part.ndim or records.is_record(part.dtype):
            raise ArgumentError(f"the field {name!r} is no number; numba-cuda assigns numbers only to a record's field")
        part[...] = part.dtype.type(value)
        self._storage.mark_written(part)

    def _field(self, name: Any) -> np.ndarray:
        if not isinstance(name, str) or name not in self.dtype.names:
            raise KeyError(f"{name!r} is no field of the record; it has {', '.join(self.dtype.names)}")
        return self._view[name]


def _seen(
    base: int, whole: Storage, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int], start: int
) -> DeviceArray:
    """The bytes of an allocation as an array: its first element at the byte `start`, the others by its strides."""
    raw = whole.values.view(np.uint8)
    view = np.ndarray(shape, dtype, raw, start if math.prod(shape) else 0, strides)
    steps = [start, *(s for n, s in zip(shape, strides, strict=True) if n > 1)] if view.size else []
    unit = math.gcd(dtype.itemsize, *steps)
    if dtype == whole.layout and unit == dtype.itemsize:
        storage = whole
    elif records.is_record(dtype) or records.is_record(whole.layout):  # their cells are not one to an element
        whole.written()
        if records.is_record(dtype):
            storage = Storage("global", raw, layout=dtype, phase=unit)
        else:
            storage = Storage("global", records.every(raw, dtype, unit), unit=unit, cells=Cells(unit, None, raw.size))
    else:
        whole.cells.refine(unit)
        storage = Storage("global", records.every(raw, dtype, unit), unit=unit, cells=whole.cells)
    return DeviceArray(storage, view, base, whole)


def _is_raw(dtype: np.dtype) -> bool:
    """Whether it is bytes without a meaning, as which an interface describes records and bfloat16."""
    return dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and dtype != BFLOAT16


def _repeats(values: np.ndarray) -> bool:
    """Whether an axis has the stride 0: as in NumPy's `broadcast_to`, and along the new axis of its `x[None]`."""
    return values.size > 0 and 0 in values.strides


def _core(values: np.ndarray) -> np.ndarray:
    """What of an array is in memory: without the axes of stride 0."""
    if not _repeats(values):
        return values
    return values[(*(0 if stride == 0 else slice(None) for stride in values.strides), Ellipsis)]


def _copied(values: np.ndarray) -> np.ndarray:
    """A copy without gaps.  Axes of stride 0 keep it, as in numba-cuda, which copies what is in memory."""
    core = _core(values).copy(order="A")
    if not _repeats(values):
        return core
    strides = iter(core.strides)
    return np.lib.stride_tricks.as_strided(core, values.shape, [stride and next(strides) for stride in values.strides])


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """Copy a host array to device memory; C or Fortran order is kept.

    An axis of one element gets the stride of an array without gaps, as `pmpp.runtime.device.to_device` gives it on a
    GPU.  numba-cuda's own keeps the stride 0 of NumPy's `x[None]`, and then does not reshape the array.
    """
    if isinstance(obj, DeviceArray):
        return obj
    values = np.asarray(obj)
    if not records.supported(values.dtype):
        raise ArgumentError(f"obj is {_what(obj)}; device memory holds numbers, and records of numbers")
    if values.dtype != (dtype := records.plain(values.dtype)) or values.dtype.type is not dtype.type:
        values = values.view(dtype)
    if not _core(values).flags.forc:
        raise LaunchError(f"obj is not contiguous (strides {values.strides}); copy it with np.ascontiguousarray first")
    if to is not None:
        to.copy_to_device(values)
        return to
    return DeviceArray.holding(values.copy(order="A") if values.flags.forc else _copied(values))


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0
) -> DeviceArray:
    """Uninitialised device memory: here NaN or -1, and at level "check" it is a hazard to read it before writing."""
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    dtype = records.plain(np.dtype(dtype))
    if strides is not None:
        strides = (strides,) if isinstance(strides, (int, np.integer)) else tuple(strides)
        if len(strides) != len(extents) or any(s < 0 or s % dtype.itemsize for s in strides):
            raise ArgumentError(f"strides is {strides}; of shape {extents} and {dtype} it is one multiple of "
                                f"{dtype.itemsize} bytes an axis, 0 or more")  # fmt: skip
        reach = sum((n - 1) * s for n, s in zip(extents, strides, strict=True)) if math.prod(extents) else 0
        flat = poison((reach // dtype.itemsize + 1 if math.prod(extents) else 0,), dtype)
        storage = Storage("global", flat, init=np.zeros(flat.size, np.bool_))
        return DeviceArray(storage, np.ndarray(extents, dtype, flat.data, strides=strides))
    values = poison(extents, dtype)
    if order == "F":
        values = values.reshape(extents[::-1]).T
    return DeviceArray.holding(values, fresh=True)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """Uninitialised device memory of the shape, dtype and order of `ary`."""
    strides = ary.strides
    fortran = ary.ndim > 1 and strides[0] == ary.dtype.itemsize and strides[0] < strides[-1]
    return device_array(ary.shape, ary.dtype, order="F" if fortran else "C")


def is_cuda_array(obj: Any) -> bool:
    """Whether `obj` is device memory of this backend."""
    return isinstance(obj, DeviceArray)


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """`obj` as a device array, without a copy; the interpreter knows only its own."""
    if isinstance(obj, DeviceArray):
        return obj
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        if interface.get("mask") is not None:
            raise NotImplementedError("obj has a mask: Masked arrays are not supported")
        dtype, shape, address = np.dtype(interface["typestr"]), interface["shape"], interface["data"][0]
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        strides = interface.get("strides") or c_strides(shape, dtype.itemsize)
        if not (records.supported(dtype) or _is_raw(dtype)):
            raise ArgumentError(f"obj says that it holds {interface['typestr']}; device memory holds numbers here")
        if not math.prod(shape):
            return DeviceArray.holding(np.empty(shape, dtype))
        found = storage_at(address)
        if found is not None:
            whole, start = found
            reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
            first, last = (start + sum(s for s in reach if s * sign > 0) for sign in (-1, 1))
            if first < 0 or last + dtype.itemsize > whole.values.nbytes:
                raise ArgumentError(
                    f"obj says that it reaches from byte {first} to byte {last + dtype.itemsize} of its allocation, "
                    f"which has {whole.values.nbytes}"
                )
            return _seen(address - start, whole, dtype, shape, tuple(strides), start)
    raise ArgumentError(f"obj is {_what(obj)}; the interpreter has its own device memory only: use cuda.to_device(obj)")


def _what(obj: Any) -> str:
    return (
        f"an array of {obj.dtype}"
        if isinstance(obj, np.ndarray)
        else f"of type {type(obj).__module__}.{type(obj).__qualname__}"
    )
