"""DLPack: how a library lends an array to another, without a copy.

The lender's object has two methods. ``__dlpack_device__()`` says where the memory is. ``__dlpack__()`` gives a capsule:
a Python object around the address of a C structure, `ManagedTensor`. It says where the elements lie, and which function
to call when they are no longer needed. The borrower takes the structure, renames the capsule so that nobody else does,
and calls that function, the deleter, when its own array dies. Until then the lender keeps the memory.

`look` reads what another library lends. `lend` lends an array of ours.

Chapter: notebooks/95_inside_other_libraries.ipynb.  Source: DLPack 0.8, include/dlpack/dlpack.h; Python array API
standard 2023.12, "Data interchange mechanisms".
"""

from __future__ import annotations

import ctypes
import typing
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

import numpy as np

from pmpp.runtime import device, foreign
from pmpp.runtime.dtypes import is_bfloat16

__all__ = ["CPU", "GPU", "Loan", "Look", "ManagedTensor", "Tensor", "lend", "look"]

CPU, GPU = 1, 2  # kDLCPU and kDLCUDA; there are others
NAME, USED = b"dltensor", b"used_dltensor"  # of a capsule, before and after somebody took what is in it
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # by the kind of a NumPy dtype
BRAIN = 4  # bfloat16, which NumPy has from ml_dtypes


class Device(ctypes.Structure):
    """Where the memory is: CPU or GPU, and the number of the GPU."""

    _fields_ = (("kind", c_int32), ("number", c_int32))


class DataType(ctypes.Structure):
    """What an element is: a code, bits, and lanes, 1 but for vectors."""

    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class Tensor(ctypes.Structure):
    """An array: 48 bytes. Strides count elements, not bytes; a null pointer stands for C order."""

    _fields_ = (
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),  # from data to the first element
    )


class ManagedTensor(ctypes.Structure):
    """An array on loan: what it is, something for the lender, and what the borrower has to call at the end."""


Deleter = ctypes.CFUNCTYPE(None, POINTER(ManagedTensor))
ManagedTensor._fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", Deleter))

# Of Python itself: capsules as borrowed references, since a destructor is given one that is about to die.
_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(("PyCapsule_New", _python))
_holds = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))


# ------------------------------------------------------------------------------------------------------------- reading


class Look(typing.NamedTuple):
    """What a library says of an array that it lends. Strides count elements."""

    address: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: tuple[int, int]
    byte_offset: int


def look(x: typing.Any) -> Look:
    """Read what ``x`` lends by DLPack, and give it back at once.

    Args:
        x: an object with ``__dlpack__`` (of NumPy, CuPy, PyTorch, JAX, or `lend`).

    Raises TypeError if it has none, and what its library raises for an array that it does not lend.

    >>> look(np.zeros((3, 4), np.float32)[:, ::2])[1:]
    ((3, 2), (4, 2), 'float32', (1, 0), 0)
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"x must have __dlpack__, was {type(x).__module__}.{type(x).__qualname__}")
    capsule = x.__dlpack__()
    found = ManagedTensor.from_address(_pointer(id(capsule), NAME)).tensor
    letter = {code: kind for kind, code in CODES.items()}.get(found.dtype.code)
    dtype = "bfloat16" if found.dtype.code == BRAIN else f"code {found.dtype.code}"
    strides = tuple(found.strides[: found.ndim]) if found.strides else None
    return Look(
        (found.data or 0) + found.byte_offset,
        tuple(found.shape[: found.ndim]),
        strides,
        str(np.dtype(f"{letter}{found.dtype.bits // 8}")) if letter else dtype,
        (found.device.kind, found.device.number),
        found.byte_offset,
    )  # nobody renamed the capsule, so its destructor calls the deleter


# ------------------------------------------------------------------------------------------------------------- lending

_lent: dict[int, tuple] = {}  # what must live until a deleter is called, by the address of the structure


@Deleter
def _give_back(managed: typing.Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


@ctypes.CFUNCTYPE(None, c_void_p)
def _destroyed(capsule: int) -> None:
    if _holds(capsule, NAME):  # nobody took it
        _lent.pop(_pointer(capsule, NAME), None)


class Loan:
    """Memory that can be lent: an object with ``__dlpack__`` and ``__dlpack_device__``. `lend` makes one."""

    def __init__(self, address, shape, strides, dtype, where, owner, stream=0):
        self.address, self.shape, self.dtype, self.where = address, tuple(shape), np.dtype(dtype), where
        self.strides, self.owner, self.stream = tuple(strides), owner, stream  # strides in elements

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the memory is."""
        return self.where

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A capsule. The borrower's ``stream``, a number, shall wait for what was queued here; -1 says it will not."""
        if copy or dl_device not in (None, self.where):
            raise BufferError(f"this memory is lent where it is, on {self.where}: copy it first")
        if self.where[0] == GPU and stream != -1:
            cuda = device.backend().cuda
            foreign.begin_after(cuda, int(device.as_stream(self.stream) or 0), stream or 0)
        extents, n = c_int64 * len(self.shape), len(self.shape)
        shape, strides = extents(*self.shape), extents(*self.strides)
        code = BRAIN if is_bfloat16(self.dtype) else CODES[self.dtype.kind]
        kind = DataType(code, 8 * self.dtype.itemsize, 1)
        tensor = Tensor(self.address, Device(*self.where), n, kind, shape, strides, 0)
        managed = ManagedTensor(tensor, None, _give_back)
        _lent[ctypes.addressof(managed)] = managed, shape, strides, self.owner
        return _new(ctypes.addressof(managed), NAME, ctypes.cast(_destroyed, c_void_p))


def lend(x: typing.Any, *, stream: typing.Any = 0) -> Loan:
    """An array as something that ``from_dlpack`` of any library takes without a copy.

    Args:
        x: a device array on a GPU, or a NumPy array that can be written to. It is kept while a borrower uses it.
        stream: the stream on which ``x`` was written last. A borrower's stream waits for what is queued there.

    Raises TypeError for what is no such array, an array of the interpreter included: its memory has no address that
    another library could use. ValueError for a NumPy array that is read-only, which DLPack 0.8 cannot say.

    >>> x = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> y = np.from_dlpack(lend(x[:, ::2]))
    >>> x[1, 2] = 9
    >>> y
    array([[0., 2.],
           [3., 9.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    if isinstance(x, np.ndarray):
        if not x.flags.writeable:
            raise ValueError("x must be writable, was a read-only array: the borrower could not know")
        address, where = x.__array_interface__["data"][0], (CPU, 0)
    elif device.on_gpu() and hasattr(x, "copy_to_host") and not type(x).__module__.startswith("pmpp.simt"):
        address, where = device.address(x), (GPU, x.form.device if hasattr(x, "form") else device.current())
    else:
        wanted = "a NumPy array, or on a GPU a device array"
        hint = ": pass x.copy_to_host()" if hasattr(x, "copy_to_host") else ""
        raise TypeError(f"x must be {wanted}, was {type(x).__module__}.{type(x).__qualname__}{hint}")
    if (x.dtype.kind not in CODES and not is_bfloat16(x.dtype)) or not x.dtype.isnative:
        raise TypeError(f"x must be of numbers in this machine's byte order, was {x.dtype}")
    uneven = [step for step in x.strides if step % x.dtype.itemsize]
    if uneven:
        raise ValueError(f"x must have strides of whole elements of {x.dtype.itemsize} bytes, had {tuple(x.strides)}")
    return Loan(address, x.shape, [step // x.dtype.itemsize for step in x.strides], x.dtype, where, x, stream)
