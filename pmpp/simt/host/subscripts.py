"""What a device array takes in brackets on the host: no more than numba-cuda's does, with the same elements.

numba-cuda works out the view itself and knows integers and slices only.  NumPy knows more, so a program that uses more
would run here and fail on a GPU.  In three cases numba-cuda takes a subscript and addresses other elements than NumPy;
these are refused, too.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from pmpp.simt.values import dtypes, records
from pmpp.simt.values.errors import ArgumentError

_TAKEN = "a device array takes integers and slices in brackets on the host, as numba-cuda's does"


def checked(view: np.ndarray, item: Any) -> tuple[int | slice, ...]:
    """The subscript of an array as integers and slices, at most one an axis; an error that says what is not taken."""
    items = item if isinstance(item, tuple) else (item,)
    for each in items:
        if not isinstance(each, slice) and not _is_integer(each):
            raise ArgumentError(f"{_TAKEN}, not {_described(each)}")
    if len(items) > view.ndim:
        raise IndexError(f"{len(items)} subscripts, and the device array has {view.ndim} axes")
    plain = tuple(each if isinstance(each, slice) else operator.index(each) for each in items)
    _same_elements(view, plain)
    return plain


def _is_integer(thing: Any) -> bool:
    if isinstance(thing, np.bool_):
        return False
    try:
        operator.index(thing)
    except TypeError:
        return False
    return True


def _described(thing: Any) -> str:
    if thing is Ellipsis:
        return "an Ellipsis (...): write a colon for each axis that it stands for"
    if thing is None:
        return "None: reshape() gives an array another axis"
    if isinstance(thing, str):
        return f"a name ({thing!r}): index one record first, as in x[0][{thing!r}], or take the field in a kernel"
    if isinstance(thing, (list, np.ndarray, np.bool_)) or hasattr(thing, "copy_to_host"):
        flags = all(isinstance(each, bool) for each in thing) if isinstance(thing, list) else thing.dtype == np.bool_
        return f"{'a mask' if flags else 'an array or list of indices'}: select in a kernel, or on the host"
    return f"{type(thing).__name__} ({thing!r})"


def _same_elements(view: np.ndarray, items: tuple[int | slice, ...]) -> None:
    """Refuse what numba-cuda takes and resolves to other elements."""
    strides = view.strides
    if any(stride < 0 for stride in strides):
        raise NotImplementedError(
            f"this view runs backwards (strides {strides}), and numba-cuda finds wrong elements of such a view: "
            "subscript the array that it was made from"
        )
    if view.size and any(stride == 0 and extent != 1 for stride, extent in zip(strides, view.shape, strict=True)):
        raise NotImplementedError(
            f"an axis of this array has the stride 0 (shape {view.shape}, strides {strides}), and numba-cuda takes it "
            "for an axis of one element in a subscript"
        )
    if any(not isinstance(each, slice) for each in items):
        part = view[items]
        if part.ndim > 1 and part.size and part.flags.f_contiguous and not part.flags.c_contiguous:
            raise NotImplementedError(
                f"this array lies in Fortran order (strides {strides}), and numba-cuda takes what this subscript "
                "selects for an array in C order: write a slice for each integer, and reshape in the kernel"
            )


def assigned(part: np.ndarray, value: Any, on_device: bool) -> np.ndarray:
    """What `array[...] = value` stores in `part` of the array, in its dtype and converted as a kernel converts."""
    if isinstance(value, np.void):
        raise ArgumentError("the value is one record; numba-cuda assigns arrays of records: assign each field of x[i]")
    value = np.asarray(value)
    if not records.supported(value.dtype):
        raise ArgumentError(f"the value holds {value.dtype}; device memory holds numbers, and records of numbers")
    core = value[tuple(0 if stride == 0 and value.size else slice(None) for stride in value.strides)]
    if not on_device and not core.flags.forc:
        raise ArgumentError(
            f"the value is not contiguous (strides {value.strides}); copy it with np.ascontiguousarray first"
        )
    if value.ndim > part.ndim and math.prod(value.shape[: value.ndim - part.ndim]) == 1:  # NumPy would drop these axes
        raise ValueError(f"the value has {value.ndim} axes, and what it is assigned to has {part.ndim}")
    if 0 < value.ndim < part.ndim and (not value.flags.c_contiguous or 0 in value.strides):
        raise NotImplementedError(
            f"the value has fewer axes than what it is assigned to ({value.ndim} and {part.ndim}); numba-cuda takes "
            f"such a value in C order only, and its strides are {value.strides}"
        )
    if on_device and np.shares_memory(part, value) and not _same_view(part, value):
        raise ArgumentError(
            "the value overlaps what it is assigned to: on a GPU its elements change while others are read"
        )
    if records.is_record(value.dtype) or records.is_record(part.dtype):
        if value.dtype != part.dtype:
            raise ArgumentError(f"the value holds {value.dtype}; the array holds {part.dtype}")
        return value
    return dtypes.cast(value, part.dtype)


def _same_view(a: np.ndarray, b: np.ndarray) -> bool:
    one, other = (x.__array_interface__["data"][0] for x in (a, b))
    return one == other and a.shape == b.shape and a.strides == b.strides
