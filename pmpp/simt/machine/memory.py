"""Memory: arrays as a kernel sees them, their loads and stores, and what each access costs and risks.

A `Storage` is one allocation (storage.py); an `Array` is a view of it with a shape and strides, both in elements.  An
access turns its indices into one position a lane, checks bounds axis by axis (memory beyond a row is the next row, not
an error, to the hardware; to a reader it is a bug), then gathers or scatters under the mask.
"""

from __future__ import annotations

import enum

import numpy as np

from pmpp.simt.machine.lanes import Mask, spread
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.storage import POISON_BYTE, Storage, flat_position, gather, lane_of, poison, scatter
from pmpp.simt.values import dtypes, records
from pmpp.simt.values.dtypes import Value, as_intp
from pmpp.simt.values.errors import UnsupportedError
from pmpp.simt.values.quick import any_of, largest, smallest

#: Memory spaces whose accesses are counted.
COUNTED = ("global", "shared", "cluster")


class Array:
    """A view of a storage: what the name of an array is bound to inside a kernel.

    Strides and offset count elements, of records bytes.  A single record is an array without axes.
    """

    __slots__ = ("dtype", "is_record", "ndim", "offset", "shape", "storage", "strides")

    def __init__(self, storage: Storage, dtype: np.dtype, shape: tuple, strides: tuple, offset: object = 0) -> None:
        self.storage, self.dtype, self.shape, self.strides, self.offset = storage, dtype, shape, strides, offset
        self.ndim, self.is_record = len(shape), records.is_record(dtype)

    def size(self) -> int:
        """Number of elements; all extents are plain ints except in slices that differ between lanes."""
        n = 1
        for extent in self.shape:
            n = n * extent
        return n

    def transposed(self) -> Array:
        """`x.T`."""
        return Array(self.storage, self.dtype, self.shape[::-1], self.strides[::-1], self.offset)

    def contiguous(self) -> bool:
        """Whether the elements lie next to each other in C or F order, in every lane; an array without any has both."""
        filled = self.size() != 0
        for order in (range(self.ndim - 1, -1, -1), range(self.ndim)):
            expected = records.pitch(self.dtype)
            for axis in order:
                apart = filled & (self.shape[axis] != 1) & (self.strides[axis] != expected)
                if any_of(np.asarray(apart)):
                    break
                expected *= self.shape[axis]
            else:
                return True
        return False


def c_strides(shape: tuple[int, ...], step: int = 1) -> tuple[int, ...]:
    """Strides of a C-ordered array, in elements or in what else `step` says of one."""
    strides = []
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


# -- from indices to positions ---------------------------------------------------------------------------------------


def _pick(m: Machine, value: object, lane: int) -> int:
    """The value of a scalar or lane array in one lane."""
    array = np.asarray(value)
    if array.size == 1:
        return array.reshape(-1)[0]
    b, t = divmod(lane, m.batch.lanes.width)
    return spread(array, (m.batch.lanes.blocks, m.batch.lanes.width))[b, t]


def as_index(m: Machine, value: Value, name: str) -> Value:
    """An index as int64."""
    if not isinstance(value, (np.generic, np.ndarray)) or value.dtype.kind not in "iu":
        kind, hint = type(value).__name__, ""
        if isinstance(value, (np.generic, np.ndarray)):
            kind, hint = value.dtype, ": write int(...)"
        elif isinstance(value, Array):
            kind, hint = "an array", ": loop over the elements that it selects"
        elif isinstance(value, enum.Enum):
            kind, hint = f"{kind}.{value.name}", ": write its .value"
        raise m.error(f"{name} is indexed by {kind}; an index must be an integer{hint}", kind=UnsupportedError)
    return value if value.dtype == dtypes.INT64 else value.astype(dtypes.INT64)


#: Said of an index that is written to be negative, as in `x[-1 - i]`: it wraps around, and the report notes it.
FROM_THE_END = "from the end"

#: Said of an index that is a distance from an address: a negative one lies before the array.
FLAT = "flat"

#: One axis of several: its number, and how many there are.
Axis = tuple[int, int]


def _along(axis: Axis, index: int) -> str:
    """An index along this axis as it is written: `:, 3`."""
    number, rank = axis
    return ", ".join(str(index) if each == number else ":" for each in range(rank))


def in_bounds(
    m: Machine,
    mask: Mask,
    index: Value,
    extent: object,
    name: str,
    space: str,
    axis: Axis,
    line: int,
    literal: bool | str,
) -> tuple[Value, Mask | None]:
    """Check one axis.  Returns a safe index for every lane, and the mask without the lanes that are out of bounds."""
    if m.dry:
        return np.int64(0), mask
    if isinstance(index, np.generic) and isinstance(extent, int):
        i = int(index)
        if 0 <= i < extent:
            return index, mask
        if -extent <= i < 0 and literal != FLAT and (literal or m.checks is None):
            _note_wrap(m, name, axis, i, extent, line, literal)
            return np.int64(i + extent), mask
        index = np.full((1, 1), i, np.int64)
    elif isinstance(extent, int) and index.size:
        unsigned = index.view(np.uint64)  # a negative index is a large number
        if largest(unsigned) < extent:
            return index, mask  # even the inactive lanes are inside
        if mask.bits is not None and extent and not any_of(mask.bits & (unsigned >= extent)):
            return np.minimum(unsigned, np.uint64(extent - 1)).view(np.int64), mask  # the active ones are
    index = np.asarray(index) if np.ndim(index) else np.full((1, 1), int(index), np.int64)
    active = np.True_ if mask.bits is None else mask.bits
    negative = active & (index < 0)
    outside = active & ((index >= extent) | (index < (0 if literal == FLAT else -np.asarray(extent))))
    if outside.any():
        lane = lane_of(m.batch.lanes, outside)
        n, i = int(_pick(m, extent, lane)), int(_pick(m, index, lane))
        valid = f"valid indices are 0 to {n - 1}" if n else "the array is empty"
        m.hazard("out_of_bounds", space, name, line, lane, f"{{who}} accesses {{name}}[{_along(axis, i)}], but {valid}")
        mask = mask.without(np.broadcast_to(outside, np.broadcast_shapes(outside.shape, (1, 1))))
    if literal == FROM_THE_END and m.warnings is not None and (negative & ~outside).any():
        lane = lane_of(m.batch.lanes, negative & ~outside)
        _note_wrap(m, name, axis, int(_pick(m, index, lane)), int(_pick(m, extent, lane)), line, literal)
    if m.checks is not None and not literal and (negative & ~outside).any():
        lane = lane_of(m.batch.lanes, negative & ~outside)
        i = int(_pick(m, index, lane))
        m.hazard(
            "out_of_bounds", space, name, line, lane,
            f"{{who}} accesses {{name}}[{_along(axis, i)}]: a negative index wraps around to the end",
        )  # fmt: skip
    wrapped = np.where(index < 0, index + extent, index)
    last = np.maximum(np.asarray(extent) - 1, 0)
    return np.clip(wrapped, 0, last), mask


def _note_wrap(m: Machine, name: str, axis: Axis, i: int, extent: int, line: int, literal: bool | str) -> None:
    if literal == FROM_THE_END and m.warnings is not None:
        message = f"{name}[{_along(axis, i)}] counts from the end: a negative index wraps around, here to {i + extent}"
        m.warnings.note("wraps", m.place.site or line, message)


#: The offset of a view or record in lanes whose index was out of bounds: they read nothing and write nothing.
LOST = -(1 << 60)


def lose(offset: Value | int, before: Mask, after: Mask | None) -> Value | int:
    """Offsets of a view, where only the lanes of `after` had an index inside."""
    if after is before:
        return offset
    return np.where(False if after is None else after.grid(), offset, LOST) if before is not None else offset


def position(
    m: Machine, mask: Mask, array: Array, indices: tuple, name: str, line: int, literals: tuple[bool | str, ...]
) -> tuple[Value, Mask | None]:
    """Element position in the storage for each lane, and the lanes that may access it."""
    total: Value | int = array.offset
    if len(indices) == 1 and total.__class__ is int and isinstance(indices[0], np.integer) and not m.dry:
        i, extent, stride = int(indices[0]), array.shape[0], array.strides[0]
        if extent.__class__ is stride.__class__ is int and 0 <= i < extent and not array.storage.crooked:
            return np.int64(total + i * stride), mask  # one element for all threads
    differs = isinstance(total, np.ndarray)
    if differs and total.size and smallest(total) < 0:
        mask = mask.without(total < 0)
        if mask is None:
            return np.int64(0), None
        total = np.maximum(total, 0)
    rank, space = len(indices), array.storage.space
    for axis, (index, extent, stride) in enumerate(zip(indices, array.shape, array.strides, strict=False)):
        # The same index in all threads, inside, is what unrolled loops over arrays in registers ask for.
        if isinstance(index, np.integer) and type(extent) is int and not m.dry:
            i = int(index)
            if 0 <= i < extent:
                total = total + i * stride
                continue
        index = as_index(m, index, name)
        index, mask = in_bounds(m, mask, index, extent, name, space, (axis, rank), line, literals[axis])
        if mask is None:
            return np.int64(0), None
        step = index if isinstance(stride, int) and stride == 1 else index * stride
        total = step if total.__class__ is int and total == 0 else total + step
    if differs:  # an inactive lane's view may begin behind the end
        total = np.minimum(total, max(0, _extent(array.storage) - 1))
    if array.storage.crooked:
        _refuse_crooked(m, mask, array, np.asarray(total), name, line)
    return (np.int64(total) if isinstance(total, int) else total), mask


def _refuse_crooked(m: Machine, mask: Mask, array: Array, at: np.ndarray, name: str, line: int) -> None:
    """Stop where a lane uses a number whose address is no multiple of what a GPU needs."""
    size, start = records.alignment(array.dtype), at * array.storage.unit
    crooked = start % size != 0
    crooked = crooked if mask.bits is None else crooked & mask.bits
    if any_of(crooked):
        lane = lane_of(m.batch.lanes, np.asarray(crooked))
        block, thread = m.batch.lanes.threads_at(lane)
        raise m.error(
            f"misaligned address: thread {thread} of block {block} uses an element of {name}, a {array.dtype}, at byte "
            f"{int(_pick(m, start, lane))} of its memory; a GPU needs a multiple of {size} there", line,
        )  # fmt: skip


# -- loads and stores ------------------------------------------------------------------------------------------------


def load(m: Machine, mask: Mask, array: Array, at: Value, name: str, line: int) -> Value:
    """Load one element a lane."""
    if m.dry:
        return array.dtype.type(0)
    storage = array.storage
    m.reads += storage.space != "local"
    if m.pending:
        m.settle_one(storage)
    if m.counts is not None and storage.space in COUNTED:
        m.access("load", line, at, mask, array.dtype.itemsize, storage, name)
    if m.checks is not None:
        m.checks.read(mask, storage, at, name, line)
    return gather(m.batch.lanes, storage, storage.values, at)


def store(m: Machine, mask: Mask, array: Array, at: Value, value: Value, name: str, line: int) -> None:
    """Store one element a lane; the value is cast to the array's dtype as the device casts."""
    if m.dry:
        return
    storage = array.storage
    writable(m, storage, name, line)
    if m.pending:
        m.settle_one(storage)
    value = dtypes.cast(value, array.dtype)
    if m.counts is not None and storage.space in COUNTED:
        m.access("store", line, at, mask, array.dtype.itemsize, storage, name)
    write(m, mask, storage, at, value, name, line)


def writable(m: Machine, storage: Storage, name: str, line: int) -> None:
    """Refuse to write to constant memory and to read-only arrays."""
    if storage.space == "const" or not storage.writeable:
        what = "constant memory" if storage.space == "const" else "a read-only array"
        raise m.error(f"{name} is {what} and cannot be written", line)


def write(m: Machine, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int) -> None:
    m.writes += 1
    several = m.checks is not None and m.checks.write(mask, storage, at, value, name, line)
    scatter(m.batch.lanes, storage, mask, at, value)
    if several:
        m.checks.written(mask, storage, at, value, name, line)


# -- arrays in registers ---------------------------------------------------------------------------------------------


def register(m: Machine, array: Array, indices: tuple) -> int | None:
    """The position of an element of a thread's own array that is the same in all threads, and inside.  None otherwise.

    Unrolled loops over such arrays are most of what many kernels access: `load_register` and `store_register` do what
    `position`, `load` and `store` would, in a third of the time.
    """
    storage, at = array.storage, array.offset
    if storage.space != "local" or m.batch.lanes is not storage.home or m.dry or m.pending or storage.crooked:
        return None
    if at.__class__ is not int or array.is_record or len(indices) != array.ndim:
        return None
    for index, extent, stride in zip(indices, array.shape, array.strides, strict=True):
        if not isinstance(index, np.integer) or extent.__class__ is not int or stride.__class__ is not int:
            return None
        i = int(index)
        if not 0 <= i < extent:
            return None
        at += i * stride
    return at


def load_register(m: Machine, mask: Mask, array: Array, at: int, name: str, line: int) -> Value:
    """Load the element at `register`."""
    storage = array.storage
    if m.checks is not None and at not in storage.cells.everywhere:
        m.checks.read(mask, storage, np.int64(at), name, line)
    return storage.values[at].copy()


def store_register(m: Machine, mask: Mask, array: Array, at: int, value: Value, name: str, line: int) -> None:
    """Store the element at `register`; the value is cast as `store` does."""
    storage = array.storage
    writable(m, storage, name, line)
    value = dtypes.cast(value, array.dtype)
    m.writes += 1
    if m.checks is not None and (at not in storage.cells.everywhere or m.checks.postpones):
        m.checks.write(mask, storage, np.int64(at), value, name, line)
    np.copyto(storage.values[at], value, where=True if mask.bits is None else mask.bits)


# -- 128-bit access --------------------------------------------------------------------------------------------------


_TAKEN_128 = ("float32", "int32", "uint32", "float64", "int64")
_OF_128_BITS = frozenset([*map(np.dtype, _TAKEN_128), *dtypes.SHORT_FLOATS])


def vector_width(m: Machine, array: Array, name: str, line: int) -> int:
    """How many elements of an array a 128-bit access moves."""
    if array.dtype not in _OF_128_BITS:
        taken = f"{', '.join(_TAKEN_128)}, float16 and bfloat16"
        raise m.error(f"128-bit access takes {taken}; {name} holds {array.dtype}", line)
    if array.storage.space == "local" and not m.dry:
        raise m.error(f"128-bit access is for global and shared memory; {name} is in local memory", line)
    if not array.contiguous():
        raise m.error(f"128-bit access needs a contiguous array; {name} has strides {array.strides}", line)
    return 16 // array.dtype.itemsize


def _vector_positions(m: Machine, mask: Mask, array: Array, index: Value, name: str, line: int) -> tuple:
    count = vector_width(m, array, name, line)
    return *aligned_position(m, mask, array, index, 16, name, line), count


def aligned_position(
    m: Machine, mask: Mask, array: Array, index: Value, size: int, name: str, line: int
) -> tuple[Value, Mask | None]:
    """Where each lane's `size` bytes begin in the storage, and the lanes that may access them, all of them.

    A lane whose bytes do not begin at a multiple of `size` ends the launch, as it does on a GPU.
    """
    count = size // array.dtype.itemsize
    flat = Array(array.storage, array.dtype, (array.size(),), (1,), array.offset)
    first, mask = position(m, mask, flat, (index,), name, line, (FLAT,))
    if mask is None:
        return first, None
    # The last element must be inside as well. It is, where both the array and the access are whole groups.
    if any_of(np.asarray(flat.shape[0] % count != 0)) or largest(index & (count - 1)):
        _, mask = position(m, mask, flat, (index + np.int64(count - 1),), name, line, (FLAT,))
        if mask is None:
            return first, None
    refuse_misaligned(m, mask, array, index, first, size, name, line)
    return first, mask


def refuse_misaligned(
    m: Machine, mask: Mask, array: Array, index: Value, first: Value, size: int, name: str, line: int
) -> None:
    """End the launch where a lane's `size` bytes do not begin at a multiple of `size`, in the array or on a GPU."""
    count = size // array.dtype.itemsize
    if array.storage.space == "cluster":  # each block has its copy at the same address
        first = first % np.int64(array.storage.values.size // m.batch.lanes.root.blocks)
    crooked = first & (count - 1) != 0
    crooked = crooked if mask.bits is None else crooked & mask.bits
    if any_of(crooked):
        lane = lane_of(m.batch.lanes, np.asarray(crooked))
        block, thread = m.batch.lanes.threads_at(lane)
        i = int(_pick(m, index, lane))
        raise m.error(
            f"misaligned {8 * size}-bit access: thread {thread} of block {block} uses {name}[{i}], "
            f"which does not start a group of {count} ({size} bytes)", line,
        )  # fmt: skip
    start = array.storage.start
    if start % size:
        raise m.error(
            f"misaligned {8 * size}-bit access: {name} is in an array that begins at byte {start} of shared memory, "
            f"behind those that are made before it; write alignment={max(8, size)} where it is made", line,
        )  # fmt: skip


def load_vector(m: Machine, mask: Mask, array: Array, index: Value, name: str, line: int) -> tuple[Value, ...]:
    """16 bytes a lane in one access, as a tuple of elements."""
    if m.dry:
        return (array.dtype.type(0),) * (16 // array.dtype.itemsize)
    storage = array.storage
    if m.pending:
        m.settle_one(storage)
    first, mask, count = _vector_positions(m, mask, array, as_index(m, index, name), name, line)
    if mask is None:
        return tuple(array.dtype.type(0) for _ in range(count))
    if m.counts is not None and storage.space in COUNTED:
        m.access("load", line, first, mask, 16, storage, name)
    # Inactive lanes may hold any index; the last group that fits keeps their gather inside.
    first = np.minimum(first, max(0, _extent(storage) - count))
    at = [first + np.int64(k) for k in range(count)]
    if m.checks is not None:
        for each in at:
            m.checks.read(mask, storage, each, name, line)
    return tuple([gather(m.batch.lanes, storage, storage.values, each) for each in at])


def store_vector(m: Machine, mask: Mask, array: Array, index: Value, values: tuple, name: str, line: int) -> None:
    """16 bytes a lane in one access."""
    if m.dry:
        return
    storage = array.storage
    writable(m, storage, name, line)
    if m.pending:
        m.settle_one(storage)
    first, mask, count = _vector_positions(m, mask, array, as_index(m, index, name), name, line)
    if mask is None:
        return
    if not isinstance(values, tuple) or len(values) != count:
        raise m.error(f"store128 to {array.dtype} takes a tuple of {count} values", line)
    if m.counts is not None and storage.space in COUNTED:
        m.access("store", line, first, mask, 16, storage, name)
    first = np.minimum(first, max(0, _extent(storage) - count))
    for k, value in enumerate(values):
        write(m, mask, storage, first + np.int64(k), dtypes.cast(value, array.dtype), name, line)


# -- registers of a tensor core --------------------------------------------------------------------------------------


def load_bytes(m: Machine, mask: Mask, array: Array, index: Value, size: int, name: str, line: int) -> np.ndarray:
    """`size` bytes of each lane in one access, (blocks, width, size); poison where a lane loads none."""
    lanes, storage, count = m.batch.lanes, array.storage, size // array.dtype.itemsize
    if m.pending:
        m.settle_one(storage)
    m.reads += storage.space != "local"
    first, found = aligned_position(m, mask, array, as_index(m, index, name), size, name, line)
    if found is None:
        return np.full((lanes.blocks, lanes.width, size), POISON_BYTE, np.uint8)
    if m.counts is not None and storage.space in COUNTED:
        m.access("load", line, first, found, size, storage, name, of="matrix" if size == 16 else "access")
    if m.checks is not None:
        for part, at in in_words(storage, first, count):
            m.checks.read(found, part, at, name, line)
    first = np.clip(first, 0, max(0, _extent(storage) - count))  # inactive lanes may hold any index
    start = spread(flat_position(lanes, storage, first), (lanes.blocks, lanes.width))
    step = lanes.size if storage.space == "local" else 1
    places = start[:, :, None] + np.arange(count, dtype=np.int64) * step
    elements = storage.values.reshape(-1).take(as_intp(places))
    if found.bits is not None:
        elements[~found.grid()] = poison((1,), elements.dtype)[0]
    return elements.view(np.uint8)


def store_bytes(m: Machine, mask: Mask, array: Array, index: Value, rows: np.ndarray, name: str, line: int) -> None:
    """Some bytes of each lane in one access, (blocks, width, bytes)."""
    storage, size = array.storage, rows.shape[2]
    writable(m, storage, name, line)
    if m.pending:
        m.settle_one(storage)
    count = size // array.dtype.itemsize
    first, found = aligned_position(m, mask, array, as_index(m, index, name), size, name, line)
    if found is None:
        return
    if m.counts is not None and storage.space in COUNTED:
        m.access("store", line, first, found, size, storage, name, of="matrix")
    first = np.clip(first, 0, max(0, _extent(storage) - count))
    elements = np.ascontiguousarray(rows).view(storage.values.dtype)
    for k in range(count):
        write(m, found, storage, first + np.int64(k), np.ascontiguousarray(elements[:, :, k]), name, line)


def in_words(storage: Storage, first: Value, count: int) -> list[tuple[Storage, Value]]:
    """Neighbouring elements as few accesses: one to a wider element, where the storage has a whole number of them."""
    size = count * storage.values.itemsize
    kind = np.dtype({2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}.get(size, np.uint8))
    row = storage.values.shape[-1] * storage.values.itemsize
    if count == 1 or storage.space == "local" or storage.unit != storage.values.itemsize or row % kind.itemsize:
        return [(storage, first + np.int64(k)) for k in range(count)]
    wide = storage.leaves.get(kind)
    if wide is None:
        values = storage.values.view(kind)
        wide = storage.leaves[kind] = Storage(storage.space, values, name=storage.name, cells=storage.cells)
    return [(wide, first // np.int64(count))]


def _extent(storage: Storage) -> int:
    return storage.values.shape[1] if storage.space == "shared" else storage.values.shape[0]
