"""Memory: arrays as a kernel sees them, their loads and stores, and what each access costs and risks.

A `Storage` is one allocation; an `Array` is a view of it with a shape and strides, both in elements.  The storage's
array is

    global, const   (N,)       one copy
    shared          (B, N)     one copy a block of the batch
    local           (N, B, T)  one copy a thread

An access turns its indices into one position a lane, checks bounds axis by axis (memory beyond a row is the next row,
not an error, to the hardware; to a reader it is a bug), then gathers or scatters under the mask.
"""

from __future__ import annotations

import numpy as np

from pmpp.simt import dtypes
from pmpp.simt.dtypes import Value
from pmpp.simt.errors import UnsupportedError
from pmpp.simt.lanes import Mask
from pmpp.simt.machine import Machine
from pmpp.simt.shadow import Shadow

#: What memory that nobody wrote holds here: NaN, or a large negative number, so that reading it shows.
POISON_BYTE = 0xFF


class Storage:
    """One allocation in one memory space."""

    __slots__ = ("init", "name", "one_row", "pending", "shadow", "space", "values", "writeable")

    def __init__(self, space: str, values: np.ndarray, *, name: str = "", init: np.ndarray | None = None) -> None:
        self.space, self.values, self.name, self.init = space, values, name, init
        self.writeable = values.flags.writeable
        self.shadow: Shadow | None = None
        self.one_row = space == "shared"  # one row of `init` and `shadow` stands for all blocks
        self.pending: list[tuple] = []

    def settle(self) -> None:
        """Add up postponed floating-point atomics, block by block, so that the sum does not depend on the batch."""
        if not self.pending:
            return
        ufuncs = {entry[0] for entry in self.pending}
        for ufunc in ufuncs:
            entries = [entry for entry in self.pending if entry[0] is ufunc]
            at, values, block = (np.concatenate([entry[i] for entry in entries]) for i in (1, 2, 3))
            if len(entries) > 1:
                order = np.argsort(block, kind="stable")
                at, values = at[order], values[order]
            ufunc.at(self.values, at, values)
        self.pending.clear()


class Array:
    """A view of a storage: what the name of an array is bound to inside a kernel."""

    __slots__ = ("dtype", "offset", "shape", "storage", "strides")

    def __init__(self, storage: Storage, dtype: np.dtype, shape: tuple, strides: tuple, offset: object = 0) -> None:
        self.storage, self.dtype, self.shape, self.strides, self.offset = storage, dtype, shape, strides, offset

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

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
        """Whether the elements lie next to each other in C or F order."""
        for order in (range(self.ndim - 1, -1, -1), range(self.ndim)):
            expected = 1
            for axis in order:
                if self.shape[axis] != 1 and self.strides[axis] != expected:
                    break
                expected *= self.shape[axis]
            else:
                return True
        return False


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a C-ordered array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


# -- from indices to positions ---------------------------------------------------------------------------------------


def _lane_of(m: Machine, bad: np.ndarray) -> int:
    """Flat position of the first lane where `bad` holds."""
    return int(np.argmax(np.broadcast_to(bad, (m.lanes.blocks, m.lanes.width))))


def _pick(m: Machine, value: object, lane: int) -> int:
    """The value of a scalar or lane array in one lane."""
    array = np.asarray(value)
    if array.size == 1:
        return array.reshape(-1)[0]
    b, t = divmod(lane, m.lanes.width)
    return np.broadcast_to(array, (m.lanes.blocks, m.lanes.width))[b, t]


def as_index(m: Machine, value: Value, name: str) -> Value:
    """An index as int64."""
    if not isinstance(value, (np.generic, np.ndarray)) or value.dtype.kind not in "iu":
        kind = value.dtype if isinstance(value, (np.generic, np.ndarray)) else type(value).__name__
        raise m.error(f"{name} is indexed by {kind}; an index must be an integer", kind=UnsupportedError)
    return value if value.dtype == dtypes.INT64 else value.astype(dtypes.INT64)


def in_bounds(
    m: Machine, mask: Mask, index: Value, extent: object, name: str, space: str, axis: str, line: int, literal: bool
) -> tuple[Value, Mask | None]:
    """Check one axis.  Returns a safe index for every lane, and the mask without the lanes that are out of bounds."""
    if m.dry:
        return np.int64(0), mask
    if isinstance(index, np.generic) and isinstance(extent, int):
        i = int(index)
        if 0 <= i < extent:
            return index, mask
        if -extent <= i < 0 and (literal or not m.checking):
            return np.int64(i + extent), mask
        index = np.full((1, 1), i, np.int64)
    elif isinstance(extent, int) and index.size and int(index.view(np.uint64).max()) < extent:
        return index, mask  # even the inactive lanes are inside
    index = np.asarray(index) if np.ndim(index) else np.full((1, 1), int(index), np.int64)
    active = np.True_ if mask.bits is None else mask.bits
    negative = active & (index < 0)
    outside = active & ((index >= extent) | (index < -np.asarray(extent)))
    if outside.any():
        lane = _lane_of(m, outside)
        n, i = int(_pick(m, extent, lane)), int(_pick(m, index, lane))
        valid = f"valid indices are 0 to {n - 1}" if n else "the array is empty"
        m.hazard("out_of_bounds", space, name, line, lane, f"{{who}} accesses {name}[{_axis(axis, i)}], but {valid}")
        mask = mask.without(np.broadcast_to(outside, np.broadcast_shapes(outside.shape, (1, 1))))
    if m.checking and not literal and (negative & ~outside).any():
        lane = _lane_of(m, negative & ~outside)
        i = int(_pick(m, index, lane))
        m.hazard(
            "out_of_bounds", space, name, line, lane,
            f"{{who}} accesses {name}[{_axis(axis, i)}]: a negative index wraps around to the end",
        )  # fmt: skip
    wrapped = np.where(index < 0, index + extent, index)
    last = np.maximum(np.asarray(extent) - 1, 0)
    return np.clip(wrapped, 0, last), mask


def _axis(template: str, index: int) -> str:
    return template.replace("?", str(index))


def position(
    m: Machine, mask: Mask, array: Array, indices: tuple, name: str, line: int, literals: tuple[bool, ...]
) -> tuple[Value, Mask | None]:
    """Element position in the storage for each lane, and the lanes that may access it."""
    total: Value | int = array.offset
    rank = len(indices)
    for axis, index in enumerate(indices):
        template = ", ".join("?" if k == axis else ":" for k in range(rank)) if rank > 1 else "?"
        index = as_index(m, index, name)
        index, mask = in_bounds(
            m, mask, index, array.shape[axis], name, array.storage.space, template, line, literals[axis]
        )
        if mask is None:
            return np.int64(0), None
        stride = array.strides[axis]
        total = total + (index if isinstance(stride, int) and stride == 1 else index * stride)
    return (np.int64(total) if isinstance(total, int) else total), mask


# -- loads and stores ------------------------------------------------------------------------------------------------


def flat_position(m: Machine, storage: Storage, at: Value) -> Value:
    """Position in the storage's flattened array: shared and local memory have one copy a block or thread."""
    if storage.space == "shared":
        return at + m.lanes.block_row * storage.values.shape[1]
    if storage.space == "local":
        lanes = m.lanes
        return at * lanes.size + lanes.block_row * lanes.width + lanes.linear_thread
    return at


def _gather(m: Machine, storage: Storage, source: np.ndarray, at: Value) -> Value:
    if storage.space == "shared":
        if at.ndim == 0:
            k = int(at)
            return source[:, k : k + 1].copy()
        if at.shape[0] == 1:
            return source.take(at[0], axis=1)
        return source.reshape(-1).take(flat_position(m, storage, at))
    if storage.space == "local":
        return source[int(at)].copy() if at.ndim == 0 else source.reshape(-1).take(flat_position(m, storage, at))
    return source.take(at)


def selected(m: Machine, mask: Mask, *values: Value) -> list[np.ndarray]:
    """Each value in the active lanes only, as flat arrays in lane order."""
    shape = (m.lanes.blocks, m.lanes.width)
    if mask.bits is None:
        return [np.broadcast_to(v, shape).reshape(-1) for v in values]
    bits = mask.grid()
    return [np.broadcast_to(v, shape)[bits] for v in values]


def _scatter(m: Machine, storage: Storage, mask: Mask, at: Value, value: Value) -> None:
    target = storage.values
    if storage.space == "shared" and at.ndim and at.shape[0] == 1 and (mask.bits is None or mask.bits.shape[0] == 1):
        columns = at[0] if at.size == m.lanes.width else np.broadcast_to(at[0], m.lanes.width)
        value = np.broadcast_to(value, (m.lanes.blocks, m.lanes.width))
        if mask.bits is not None:
            on = np.broadcast_to(mask.bits, (1, m.lanes.width))[0]
            columns, value = columns[on], value[:, on]
        target[:, columns] = value
        return
    if storage.space == "local" and at.ndim == 0:
        where = True if mask.bits is None else mask.bits
        np.copyto(target[int(at)], value, where=where)
        return
    positions, values = selected(m, mask, flat_position(m, storage, at), value)
    target.reshape(-1)[positions] = values


def load(m: Machine, mask: Mask, array: Array, at: Value, name: str, line: int) -> Value:
    """Load one element a lane."""
    if m.dry:
        return array.dtype.type(0)
    storage = array.storage
    m.reads += storage.space != "local"
    if storage.pending:
        storage.settle()
    if m.counting and storage.space in ("global", "shared"):
        width = array.dtype.itemsize
        m.access("load", line, at * width, mask, width, storage, name)
    if m.checking:
        check_read(m, mask, storage, at, name, line)
    return _gather(m, storage, storage.values, at)


def store(m: Machine, mask: Mask, array: Array, at: Value, value: Value, name: str, line: int) -> None:
    """Store one element a lane; the value is cast to the array's dtype as the device casts."""
    if m.dry:
        return
    storage = array.storage
    writable(m, storage, name, line)
    if storage.pending:
        storage.settle()
    value = dtypes.cast(value, array.dtype)
    if m.counting and storage.space in ("global", "shared"):
        width = array.dtype.itemsize
        m.access("store", line, at * width, mask, width, storage, name)
    _write(m, mask, storage, at, value, name, line)


def writable(m: Machine, storage: Storage, name: str, line: int) -> None:
    """Refuse to write to constant memory and to read-only arrays."""
    if storage.space == "const" or not storage.writeable:
        what = "constant memory" if storage.space == "const" else "a read-only array"
        raise m.error(f"{name} is {what} and cannot be written", line)


def _write(m: Machine, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int) -> None:
    m.writes += 1
    if m.checking:
        same = _bits(_gather(m, storage, storage.values, at)) == _bits(value)
        check_write(m, mask, storage, at, name, line, atomic=False, same=same)
    _scatter(m, storage, mask, at, value)
    if m.checking and storage.space != "local":
        lost = _bits(_gather(m, storage, storage.values, at)) != _bits(value)
        if mask.bits is not None:
            lost = lost & mask.bits
        if lost.any():
            lane = _lane_of(m, lost)
            m.hazard(
                "race", storage.space, name, line, lane,
                f"{{who}} and another thread write different values to the same element of {name} in one statement",
            )  # fmt: skip


def _bits(value: Value) -> np.ndarray:
    """The value's bits, so that NaN equals itself."""
    value = np.ascontiguousarray(value) if np.ndim(value) else np.full((1, 1), value)
    if value.dtype.kind in "iub":
        return value
    return value.view({2: np.uint16, 4: np.uint32, 8: np.uint64}.get(value.dtype.itemsize, value.dtype))


# -- sanitizer hooks -------------------------------------------------------------------------------------------------


def _touched(m: Machine, mask: Mask, storage: Storage, at: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each active lane: the element's place in the shadow, the thread's id, and the lane's flat position.

    Shared memory that every block so far used in the same way needs one row of shadow for all blocks; the first
    access that differs between blocks gives each its own.
    """
    lanes = m.lanes
    if storage.space == "shared":
        alike = np.ndim(at) == 0 or at.shape[0] == 1
        if storage.one_row and not (alike and m.blocks_alike and (mask.bits is None or mask.bits.shape[0] == 1)):
            _split_rows(m, storage)
        if storage.one_row:
            columns = (
                np.flatnonzero(np.broadcast_to(mask.bits[0], lanes.width))
                if mask.bits is not None
                else np.arange(lanes.width)
            )
            positions = np.broadcast_to(at, (1, lanes.width))[0, columns]
            return positions, lanes.first * lanes.width + columns, columns
    ids = lanes.block_row * lanes.width + lanes.linear_thread
    positions, where = selected(m, mask, flat_position(m, storage, at), ids)
    return positions, where + lanes.first * lanes.width, where


def _split_rows(m: Machine, storage: Storage) -> None:
    storage.one_row = False
    blocks = storage.values.shape[0]
    if storage.init is not None:
        storage.init = np.repeat(storage.init, blocks, axis=0)
    if storage.shadow is not None:
        storage.shadow.repeat(blocks, m.lanes.width)


def check_read(
    m: Machine, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, atomic: bool = False
) -> None:
    """Report a read of what nobody wrote, or of what another thread may be writing now."""
    if storage.space == "local":
        if storage.init is not None:
            fresh = ~_gather(m, storage, storage.init, at)
            fresh = fresh if mask.bits is None else fresh & mask.bits
            if fresh.any():
                _report_uninitialised(m, storage, name, line, _lane_of(m, fresh))
        return
    if not storage.writeable or storage.space == "const":
        return
    positions, me, where = _touched(m, mask, storage, at)
    if storage.init is not None:
        written = storage.init.reshape(-1)[positions]
        if not written.all():
            _report_uninitialised(m, storage, name, line, int(where[np.argmin(written)]))
    m.clock.tick()
    line = m.site or line
    shadow = _shadow(storage)
    bad = shadow.on_read(m.clock, positions, me, line, m.lanes.width, atomic)
    if bad.any():
        _report_race(
            m, bad, where, storage, name, line, shadow.writer[positions], shadow.write_line[positions], "reads", "wrote"
        )


def check_write(
    m: Machine, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, atomic: bool, same: np.ndarray | None
) -> None:
    """Report a write of what another thread may be reading or writing now."""
    if storage.space == "local":
        if storage.init is not None:
            if at.ndim == 0:
                np.copyto(storage.init[int(at)], True, where=True if mask.bits is None else mask.bits)
            else:
                storage.init.reshape(-1)[selected(m, mask, flat_position(m, storage, at))[0]] = True
        return
    positions, me, where = _touched(m, mask, storage, at)
    if storage.init is not None:
        storage.init.reshape(-1)[positions] = True
    unchanged = None
    if same is not None:
        full = np.broadcast_to(same, (m.lanes.blocks, m.lanes.width))
        unchanged = full.all(axis=0)[where] if storage.one_row else full.reshape(-1)[where]
    m.clock.tick()
    line = m.site or line
    shadow = _shadow(storage)
    found = shadow.on_write(m.clock, positions, me, line, m.lanes.width, atomic, unchanged)
    for bad, who, lines, earlier in found:
        _report_race(m, bad, where, storage, name, line, who, lines, "writes", earlier)


def _shadow(storage: Storage) -> Shadow:
    if storage.shadow is None:
        storage.shadow = Shadow(storage.values.shape[1] if storage.one_row else storage.values.size)
    return storage.shadow


def _report_uninitialised(m: Machine, storage: Storage, name: str, line: int, lane: int) -> None:
    m.hazard(
        "uninitialised_read",
        storage.space,
        name,
        line,
        lane,
        f"{{who}} reads an element of {name} that nothing has written",
    )


def _report_race(
    m: Machine, bad: np.ndarray, where: np.ndarray, storage: Storage, name: str, line: int, who: np.ndarray,
    lines: np.ndarray, verb: str, earlier: str,
) -> None:  # fmt: skip
    first = int(np.argmax(bad))
    lane, other = int(where[first]), int(who[first])
    here = other // m.lanes.width == m.lanes.first + lane // m.lanes.width
    remedy = "no barrier in between" if here else "nothing that orders the two blocks"
    earlier = f"{m.other_thread(other)} {earlier} on line {int(lines[first])}"
    message = f"{{who}} {verb} an element of {name} that {earlier}, with {remedy}"
    m.hazard("race", storage.space, name, line, lane, message)


# -- 128-bit access --------------------------------------------------------------------------------------------------


def _vector_positions(m: Machine, mask: Mask, array: Array, index: Value, name: str, line: int) -> tuple:
    if array.dtype.itemsize not in (4, 8) or array.dtype.kind not in "iuf":
        raise m.error(f"128-bit access takes 4- and 8-byte numbers; {name} holds {array.dtype}", line)
    if not array.contiguous():
        raise m.error(f"128-bit access needs a contiguous array; {name} has strides {array.strides}", line)
    count = 16 // array.dtype.itemsize
    flat = Array(array.storage, array.dtype, (array.size(),), (1,), array.offset)
    first, mask = position(m, mask, flat, (index,), name, line, (False,))
    if mask is None:
        return first, None, count
    # The last element of the four must be inside as well.
    _, mask = position(m, mask, flat, (index + np.int64(count - 1),), name, line, (False,))
    if mask is None:
        return first, None, count
    crooked = first % count != 0
    crooked = crooked & (True if mask.bits is None else mask.bits)
    if np.any(crooked):
        lane = _lane_of(m, np.asarray(crooked))
        block, thread = m.lanes.threads_at(lane)
        i = int(_pick(m, index, lane))
        raise m.error(
            f"misaligned 128-bit access: thread {thread} of block {block} uses {name}[{i}], "
            f"which does not start a group of {count} (16 bytes)", line,
        )  # fmt: skip
    return first, mask, count


def load_vector(m: Machine, mask: Mask, array: Array, index: Value, name: str, line: int) -> tuple[Value, ...]:
    """16 bytes a lane in one access, as a tuple of elements."""
    if m.dry:
        return (array.dtype.type(0),) * (16 // array.dtype.itemsize)
    storage = array.storage
    if storage.pending:
        storage.settle()
    first, mask, count = _vector_positions(m, mask, array, as_index(m, index, name), name, line)
    if mask is None:
        return tuple(array.dtype.type(0) for _ in range(count))
    if m.counting and storage.space in ("global", "shared"):
        m.access("load", line, first * array.dtype.itemsize, mask, 16, storage, name)
    # Inactive lanes may hold any index; the last group that fits keeps their gather inside.
    first = np.minimum(first, max(0, _extent(storage) - count))
    at = [first + np.int64(k) for k in range(count)]
    if m.checking:
        for each in at:
            check_read(m, mask, storage, each, name, line)
    return tuple(_gather(m, storage, storage.values, each) for each in at)


def store_vector(m: Machine, mask: Mask, array: Array, index: Value, values: tuple, name: str, line: int) -> None:
    """16 bytes a lane in one access."""
    if m.dry:
        return
    storage = array.storage
    writable(m, storage, name, line)
    if storage.pending:
        storage.settle()
    first, mask, count = _vector_positions(m, mask, array, as_index(m, index, name), name, line)
    if mask is None:
        return
    if not isinstance(values, tuple) or len(values) != count:
        raise m.error(f"store128 to {array.dtype} takes a tuple of {count} values", line)
    if m.counting and storage.space in ("global", "shared"):
        m.access("store", line, first * array.dtype.itemsize, mask, 16, storage, name)
    first = np.minimum(first, max(0, _extent(storage) - count))
    for k, value in enumerate(values):
        _write(m, mask, storage, first + np.int64(k), dtypes.cast(value, array.dtype), name, line)


def _extent(storage: Storage) -> int:
    return storage.values.shape[1] if storage.space == "shared" else storage.values.shape[0]
