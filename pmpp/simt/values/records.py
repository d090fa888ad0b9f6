"""Records: what a structured dtype looks like in memory.

A record's fields lie at fixed offsets, so arrays of records are counted in bytes: strides and offsets of an `Array`
whose dtype has fields are bytes, where those of plain arrays are elements.  A field of an array of records is a plain
array over the same bytes.  Its elements may lie closer than their own size allows (a packed record of 13 bytes holds a
float64 at every 13th byte), so the storage behind it is seen as overlapping elements, one every `unit` bytes, where
`unit` divides every offset at which an element of this type can start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pmpp.simt.values.dtypes import BFLOAT16


def is_record(dtype: np.dtype) -> bool:
    """Whether the dtype has fields."""
    return dtype.names is not None


def plain(dtype: np.dtype) -> np.dtype:
    """The same layout without np.record's dress, so that equal layouts are equal dtypes."""
    return np.dtype((np.void, dtype)) if dtype.names is not None and dtype.type is not np.void else dtype


def supported(dtype: np.dtype) -> bool:
    """Numbers, and records of numbers, records and arrays of them."""
    if dtype.names is None:
        return (dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.isnative) or dtype == BFLOAT16
    return bool(dtype.names) and all(supported(dtype.fields[name][0].base) for name in dtype.names)


def leaves(dtype: np.dtype, start: int = 0) -> Iterator[tuple[np.dtype, int]]:
    """Type and byte offset of every number in a record, in the order of the fields."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        for k in range(math.prod(shape)):
            yield from leaves(base, start + k * base.itemsize)
    elif dtype.names is not None:
        for name in dtype.names:
            field, offset = dtype.fields[name][:2]
            yield from leaves(field, start + offset)
    else:
        yield dtype, start


def unit(layout: np.dtype, leaf: np.dtype) -> int:
    """The bytes that divide every place in an array of `layout` at which a number of type `leaf` can start."""
    return math.gcd(layout.itemsize, leaf.itemsize, *(offset for kind, offset in leaves(layout) if kind == leaf))


def alignment(dtype: np.dtype) -> int:
    """What the address of a number must be a multiple of; the parts of a complex number stand for themselves."""
    return 1 if dtype.names is not None else dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def pitch(dtype: np.dtype) -> int:
    """What the strides of an array count: 1 element, or the bytes of a record."""
    return dtype.itemsize if dtype.names is not None else 1


def overlapping(memory: np.ndarray, leaf: np.dtype, step: int) -> np.ndarray:
    """Bytes, C-contiguous, as elements of type `leaf`, one every `step` bytes along the last axis.

    The last few may reach beyond the end; no field of a record does.
    """
    if step == leaf.itemsize:
        return memory.view(leaf)
    count = memory.shape[-1] // step
    if memory.nbytes < leaf.itemsize:
        return np.zeros((*memory.shape[:-1], count), leaf)
    first = np.ndarray((1,), leaf, memory.reshape(-1))
    strides = (*memory.strides[:-1], step)
    return np.lib.stride_tricks.as_strided(
        first, (*memory.shape[:-1], count), strides, writeable=memory.flags.writeable
    )


def every(memory: np.ndarray, kind: np.dtype, step: int) -> np.ndarray:
    """Bytes, on one axis, as numbers of a type, one every `step` bytes; only those that lie in them whole."""
    if step == kind.itemsize:
        return memory[: memory.size - memory.size % step].view(kind)
    count = max(0, (memory.size - kind.itemsize) // step + 1)
    return np.ndarray((count,), kind, memory, 0, (step,))
