"""The device API: what each `cuda.*` name does in a kernel.

A handler takes the frame, the call site and the evaluated arguments.  A kernel may have been written for the
interpreter or for Numba; both kinds of objects are mapped to one path such as "atomic.add", without importing Numba.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pmpp.simt.api import (
    addresses,
    atomics,
    bfloat16,
    cache_hints,
    clusters,
    dots,
    float16,
    hopper,
    hopper_sparse,
    hopper_stores,
    libdevice,
    matrix,
    sparse_matrix,
    sync,
    system,
    vectors,
    warp,
)
from pmpp.simt.machine import memory
from pmpp.simt.machine.frames import Frame, GridGroup, kind_of
from pmpp.simt.machine.instructions import CONVERSION
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array, c_strides
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.storage import Storage, poison
from pmpp.simt.values import dtypes, maths, records, rounding
from pmpp.simt.values.dtypes import Value
from pmpp.simt.values.errors import UnsupportedError


@functools.lru_cache(maxsize=8192)
def as_written(node: ast.AST) -> str:
    """A part of the source as text; kept, because a call in a loop asks each time."""
    return ast.unparse(node)


@dataclass(frozen=True)
class Call:
    """One call in the source: its line, whether its result is used, and its first argument as written."""

    line: int
    used: bool
    name: str
    site: int
    node: ast.Call
    literals: tuple[bool | str, ...] = ()  # which arguments are constants; a name: if that parameter of the caller is
    named_literals: dict[str, bool | str] = field(default_factory=dict, compare=False)  # of those given by name

    @property
    def function(self) -> str:
        """The function as written."""
        return as_written(self.node.func)

    def argument(self, i: int, name: str = "") -> str:
        """The i-th argument as written, or that of this name."""
        found = self.node.args[i : i + 1] or [k.value for k in self.node.keywords if k.arg == name]
        return as_written(found[0]) if found else "?"

    def is_literal(self, f: Frame, i: int, name: str) -> bool:
        """Whether the i-th argument, or that of this name, is a constant."""
        known = self.literals[i] if i < len(self.literals) else self.named_literals.get(name, False)
        return known is True or known in f.literals


class DevicePath(str):
    """A dotted name below `cuda`, such as "threadIdx.x"."""

    __slots__ = ()


class DeviceName:
    """A name of the interpreter's `cuda` namespace that only means something inside a kernel."""

    def __init__(self, path: str, doc: str = "") -> None:
        self._path, self.__doc__, self.__name__ = path, doc or f"`cuda.{path}`, for use inside a kernel.", path

    def __getattr__(self, name: str) -> DeviceName:
        path = f"{self._path}.{name}"
        if path in SPECIAL or path in DEVICE:
            return DeviceName(path)
        raise AttributeError(f"cuda.{self._path} has no {name}")

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise UnsupportedError(f"cuda.{self._path} works only inside a kernel")

    def __repr__(self) -> str:
        return f"<cuda.{self._path}>"


#: The modules that define Numba's device functions, and where their names are below `cuda`.
_NUMBA = {
    "numba.cuda.stubs": "", "numba.cuda.intrinsics": "", "numba.cuda.cg": "", "numba.cuda.cache_hints": "",
    "numba.cuda.libdevice": "libdevice.", "numba.cuda._internal.cuda_fp16": "fp16.",
    "numba.cuda._internal.cuda_bf16": "bf16.", "numba.cuda.misc.special": "",
}  # fmt: skip
_TWINS = (
    "load128", "store128", "widened", "width128", "array_at", *matrix.MATRIX, *hopper.HOPPER, *system.SYSTEM,
    *hopper_stores.STORES, *hopper_sparse.SPARSE_TILES, *sparse_matrix.SPARSE, *dots.DOTS, *clusters.CLUSTERS,
)  # fmt: skip


def device_path(thing: Any) -> str | None:
    """The path below `cuda` that a Python object stands for, or None."""
    if isinstance(thing, DevicePath):
        return str(thing)
    if isinstance(thing, DeviceName):
        return thing._path
    if isinstance(thing, (int, float, np.generic, np.ndarray, tuple, str)) or thing is None:
        return None
    name = getattr(thing, "__name__", None)
    if name in _TWINS and (getattr(thing, "__module__", "") == "pmpp.runtime.vector" or hasattr(thing, "_defn")):
        return name
    module = getattr(thing, "__module__", None)
    if module in _NUMBA:
        return _NUMBA[module] + getattr(thing, "__qualname__", name)
    return None


# -- indices ---------------------------------------------------------------------------------------------------------


def _axis(attribute: str, axis: int) -> Callable[[Machine], Value]:
    return lambda m: getattr(m.batch.lanes, attribute)[axis]


SPECIAL: dict[str, Callable[[Machine], Value]] = {
    **{f"threadIdx.{a}": _axis("thread_index", i) for i, a in enumerate("xyz")},
    **{f"blockIdx.{a}": _axis("block_index", i) for i, a in enumerate("xyz")},
    **{f"blockDim.{a}": lambda m, i=i: np.int32(m.launch.block[i]) for i, a in enumerate("xyz")},
    **{f"gridDim.{a}": lambda m, i=i: np.int32(m.launch.grid[i]) for i, a in enumerate("xyz")},
    "laneid": lambda m: m.batch.lanes.lane,
    "warpsize": lambda m: np.int32(32),
}

NAMESPACES = {
    "threadIdx", "blockIdx", "blockDim", "gridDim", "shared", "local", "const", "atomic", "cg", "libdevice", "fp16",
    "bf16",
}  # fmt: skip


def _dimensions(count: Value) -> int:
    if not isinstance(count, np.generic) or int(count) not in (1, 2, 3):
        raise ValueError("the argument must be the literal 1, 2 or 3")
    return int(count)


def _grid(f: Frame, call: Call, count: Value) -> Value | tuple[Value, ...]:
    lanes = f.m.batch.lanes
    axes = []
    for i in range(_dimensions(count)):
        value = lanes.cached_grid.get(i)
        if value is None:
            value = lanes.block_index[i].astype(np.int64) * lanes.block[i] + lanes.thread_index[i]
            lanes.cached_grid[i] = value
        axes.append(value)
    return axes[0] if len(axes) == 1 else tuple(axes)


def _gridsize(f: Frame, call: Call, count: Value) -> Value | tuple[Value, ...]:
    sizes = tuple(np.int64(f.m.launch.grid[i] * f.m.launch.block[i]) for i in range(_dimensions(count)))
    return sizes[0] if len(sizes) == 1 else sizes


# -- arrays ----------------------------------------------------------------------------------------------------------


def _extents(shape: Any) -> tuple[int, ...]:
    extents = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in extents):
        raise TypeError(f"the shape is {shape!r}; it must be a non-negative integer or a tuple of them")
    return tuple(int(n) for n in extents)


def _strides(extents: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    return c_strides(extents, records.pitch(dtype))


def element_type(dtype: Any) -> np.dtype:
    """The dtype that an array in a kernel is made with; TypeError if arrays cannot hold it."""
    try:
        found = dtypes.as_dtype(np.dtype(dtype) if isinstance(dtype, str) else dtype)
    except TypeError as error:
        raise TypeError(f"Invalid NumPy dtype specified: {dtype!r}") from error
    if found is None or dtype is float or dtype is int:
        raise TypeError(f"the dtype is {dtype!r}; write float32, np.float32, ...")
    if not records.supported(found):
        raise TypeError(f"the dtype is {found}; arrays in a kernel hold numbers, or records of numbers")
    if dtypes.HAS_BFLOAT16 and found == dtypes.BFLOAT16:
        raise TypeError("Numba has no shared and no local arrays of bfloat16: keep float32, or the bits as uint16")
    return records.plain(found)


def bytes_of(shape: Any, dtype: Any) -> int:
    """Bytes of an array, or 0 if its shape will be refused."""
    try:
        return math.prod(_extents(shape)) * element_type(dtype).itemsize
    except TypeError:
        return 0


def _check_alignment(alignment: Any) -> None:
    """Refuse what Numba does not take."""
    given = alignment is not None
    if given and not (isinstance(alignment, np.integer) and alignment >= 8 and not alignment & (alignment - 1)):
        kind = kind_of(alignment)
        raise TypeError(f"the alignment is {alignment} ({kind}); it must be an integer, a power of two from 8 on")


def _shared_array(f: Frame, call: Call, dtype: Any, alignment: Any = None, *, shape: Any) -> Array:
    m, dtype, extents = f.m, element_type(dtype), _extents(shape)
    key = ("shared", call.site, dtype, extents)  # a device function whose caller says the size has one for each size
    array = m.batch.shared.get(key)
    if array is not None:
        return array
    _check_alignment(alignment)
    size = math.prod(extents)
    name = as_written(call.node)
    if size == 0 and m.dry:
        array = Array(Storage("shared", np.zeros((1, 1), dtype)), dtype, extents, c_strides(extents))
    elif size == 0:
        array = _dynamic_shared(m, dtype, alignment, name)
        _begin_together(m, call.line)
    else:
        m.take_shared(size * dtype.itemsize, call.line)
        init = np.zeros((1, size), np.bool_) if m.checks is not None else None
        values = poison((m.batch.lanes.root.blocks, size), dtype)
        start = _static_start(m, dtype, alignment, size)
        storage = Storage("shared", values, name=name, init=init, start=start, aligned=_aligned(dtype, alignment))
        _begin_together(m, call.line)
        array = Array(storage, dtype, extents, _strides(extents, dtype))
    m.batch.shared[key] = array
    return array


def _aligned(dtype: np.dtype, alignment: Any) -> int:
    """What divides the address of a shared array, in bytes, by what Numba tells the compiler."""
    return records.alignment(dtype) if alignment is None else int(alignment)


def _static_start(m: Machine, dtype: np.dtype, alignment: Any, size: int) -> int:
    """The byte where a GPU has the next static array: they lie one after another, each aligned to its numbers at least.

    So did ptxas 13.0 place the arrays of several kernels, without regard to their sizes and alignments.
    """
    aligned = _aligned(dtype, alignment)
    start = -(-m.batch.shared.get("end", 0) // aligned) * aligned
    m.batch.shared["end"] = start + size * dtype.itemsize
    return start


#: What divides the address of every dynamic shared array, in bytes.
_DYNAMIC = 16


def _begin_together(m: Machine, line: int) -> None:
    """Refuse dynamic shared arrays that a GPU does not begin at one byte.

    ptxas 13.0 has each of them at the first multiple of its own alignment behind the static arrays.
    """
    alignments, end = m.batch.shared.get("alignments", ()), m.batch.shared.get("end", 0)
    begins = sorted({-(-end // aligned) * aligned for aligned in alignments})
    if len(begins) > 1:
        raise m.error(
            f"cuda.shared.array(0, ...) with different alignments: these arrays begin at bytes "
            f"{' and '.join(map(str, begins))} of shared memory, behind the static ones, and are not the same memory; "
            "write the same alignment for all of them", line,
        )  # fmt: skip


def _dynamic_shared(m: Machine, dtype: np.dtype, alignment: Any, name: str) -> Array:
    """All `shared.array(0, dtype)` of a kernel are views of the same bytes."""
    aligned = max(_DYNAMIC, _aligned(dtype, alignment))
    m.batch.shared.setdefault("alignments", set()).add(aligned)
    blocks, count = m.batch.lanes.root.blocks, m.launch.dynamic_shared // dtype.itemsize
    raw = m.batch.shared.get("bytes")
    if raw is None:
        raw = m.batch.shared["bytes"] = poison((blocks, -(-m.launch.dynamic_shared // 16) * 16), np.dtype(np.uint8))
    first = m.batch.shared.get("dynamic")
    record = records.is_record(dtype)
    values = raw if record else raw.view(dtype)
    if first is None:
        init = np.zeros((1, values.shape[1]), np.bool_) if m.checks is not None else None
        storage = Storage("shared", values, name=name, init=init, layout=dtype, aligned=aligned)
        m.batch.shared["dynamic"] = storage
    elif first.layout == dtype and first.aligned == aligned:
        storage = first
    elif record or records.is_record(first.layout):
        first.written()  # what was written to a record's fields cannot be told from what was written to numbers
        storage = Storage("shared", values, name=name, layout=dtype, aligned=aligned)
    else:
        first.cells.refine(dtype.itemsize)
        storage = Storage("shared", values, name=name, cells=first.cells, aligned=aligned)
    return Array(storage, dtype, (count,), _strides((count,), dtype))


def _local_array(f: Frame, call: Call, dtype: Any, alignment: Any = None, *, shape: Any) -> Array:
    m, dtype, extents = f.m, element_type(dtype), _extents(shape)
    _check_alignment(alignment)
    if m.dry:
        return Array(Storage("local", np.zeros((1, 1, 32), dtype)), dtype, extents, _strides(extents, dtype))
    array = f.arrays.get(call.site)
    if array is None:
        full = (math.prod(extents), m.batch.lanes.blocks, m.batch.lanes.width)
        init = np.zeros(full, np.bool_) if m.checks is not None else None
        values = np.broadcast_to(np.uint8(0), full) if records.is_record(dtype) else poison(full, dtype)
        storage = Storage("local", values, name=as_written(call.node), init=init, layout=dtype,
                          home=m.batch.lanes)  # fmt: skip
        array = f.arrays[call.site] = Array(storage, dtype, extents, _strides(extents, dtype))
    return array


def _array_like(f: Frame, call: Call, array: Any) -> Array:
    if not isinstance(array, Array) or array.storage.space != "const":
        raise TypeError("const.array_like takes a global NumPy array")
    return array


# -- atomics, vectors ------------------------------------------------------------------------------------------------


def _atomic(name: str, operands: int) -> Callable:
    operation = atomics.ATOMIC[name]

    def handler(f: Frame, call: Call, array: Any, index: Any, *values: Value) -> Value | None:
        if isinstance(array, Scattered):
            return array.gather(f, lambda part: handler(f, call, part, index, *values))
        if not isinstance(array, Array):
            raise TypeError(f"the first argument is {kind_of(array)}; an atomic works on an array element")
        if len(values) != operands:
            raise TypeError(f"atomic.{name} takes an array, an index and {operands} value{'s' * (operands > 1)}")
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != array.ndim:
            raise TypeError(f"{call.name} has {array.ndim} axes and the index has {len(indices)}")
        at, mask = memory.position(f.m, f.mask, array, indices, call.name, call.line, (False,) * len(indices))
        if mask is None:
            return array.dtype.type(0)
        return atomics.atomic(f.m, mask, array, at, operation, values, call.name, call.line, call.used)

    handler.counts_itself = True  # type: ignore[attr-defined]
    return handler


def _compare_and_swap(f: Frame, call: Call, array: Any, expected: Value, new: Value) -> Value:
    return _atomic("cas", 2)(f, call, array, (np.int64(0),) * array.ndim, expected, new)


_compare_and_swap.counts_itself = True  # type: ignore[attr-defined]


def _load128(f: Frame, call: Call, x: Any, i: Value) -> tuple[Value, ...]:
    if isinstance(x, Scattered):
        return x.gather(f, lambda part: _load128(f, call, part, i))
    if not isinstance(x, Array):
        raise TypeError(f"load128 takes an array, not {kind_of(x)}")
    return memory.load_vector(f.m, f.mask, x, i, call.name, call.line)


def _store128(f: Frame, call: Call, x: Any, i: Value, values: Any) -> None:
    if isinstance(x, Scattered):
        x.each(f, lambda part: _store128(f, call, part, i, values))
        return
    if not isinstance(x, Array):
        raise TypeError(f"store128 takes an array, not {kind_of(x)}")
    for value in values if isinstance(values, tuple) else ():
        if not dtypes.is_number(value) or value.dtype == dtypes.BOOL:
            raise TypeError(f"store128: each value must be a number, one was {kind_of(value)}")
    memory.store_vector(f.m, f.mask, x, i, values, call.name, call.line)


def _widened(f: Frame, call: Call, value: Any) -> Any:
    parts = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(part, (np.generic, np.ndarray)) for part in parts):
        raise TypeError(f"it takes a number or a tuple of numbers, not {kind_of(value)}")
    short = [part.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16) for part in parts]
    if f.m.counts is not None:
        for _ in range(sum(short)):
            f.m.counts.instruction(call.line, f.mask, CONVERSION)
    parts = tuple(dtypes.cast(part, dtypes.FLOAT32) if one else part for part, one in zip(parts, short, strict=True))
    return parts if isinstance(value, tuple) else parts[0]


def _width128(f: Frame, call: Call, x: Any) -> Value:
    if isinstance(x, Scattered):
        return x.gather(f, lambda part: _width128(f, call, part))
    if not isinstance(x, Array):
        raise TypeError(f"width128 takes an array, not {kind_of(x)}")
    return np.int64(memory.vector_width(f.m, x, call.name, call.line))


_load128.counts_itself = _store128.counts_itself = True  # type: ignore[attr-defined]
_widened.counts_itself = _width128.counts_itself = True  # type: ignore[attr-defined]


# -- integer and float instructions ----------------------------------------------------------------------------------


def _integer(value: Value, widths: tuple[int, ...] = (1, 2, 4, 8)) -> None:
    if value.dtype.kind not in "iu" or value.dtype.itemsize not in widths:
        raise TypeError(f"it takes an integer of {' or '.join(str(8 * w) for w in widths)} bits, not {value.dtype}")


def _popc(f: Frame, call: Call, value: Value) -> Value:
    _integer(value)
    return libdevice.popcount(value).astype(value.dtype)[()]


def _clz(f: Frame, call: Call, value: Value) -> Value:
    _integer(value)
    return libdevice.leading_zeros(value).astype(value.dtype)


def _brev(f: Frame, call: Call, value: Value) -> Value:
    _integer(value)
    wide = value.dtype == dtypes.UINT64
    return libdevice.reversed_bits(value.astype(dtypes.UINT64 if wide else dtypes.UINT32))[()]


def _ffs(f: Frame, call: Call, value: Value) -> Value:
    _integer(value, (4, 8))
    return libdevice.first_set(value).astype(np.uint32)


def _selp(f: Frame, call: Call, choose: Value, a: Value, b: Value) -> Value:
    if a.dtype != b.dtype:
        raise TypeError(f"both values must have one type, not {a.dtype} and {b.dtype}")
    if a.dtype.kind not in "iuf" or a.dtype.itemsize == 1 or a.dtype == dtypes.FLOAT16:
        raise TypeError(f"selp chooses between integers of 16 bits or more, float32 and float64, not {a.dtype}")
    if choose.dtype != dtypes.BOOL:
        raise TypeError(f"the predicate of selp is {choose.dtype}; it must be a bool: write x != 0")
    return np.where(choose, a, b)[()]


def _fma(f: Frame, call: Call, a: Value, b: Value, c: Value) -> Value:
    narrow = all(maths.small_floating(x).dtype == dtypes.FLOAT32 for x in (a, b, c))
    dtype = dtypes.FLOAT32 if narrow else dtypes.FLOAT64
    if f.m.counts is not None:
        f.m.counts.flops(call.line, f.mask, dtype, 2)
    a, b, c = (dtypes.cast(x, dtype) for x in (a, b, c))
    return (rounding.fma32 if narrow else rounding.fma64)(a, b, c)[()]


_fma.counts_itself = True  # type: ignore[attr-defined]


def _cbrt(f: Frame, call: Call, value: Value) -> Value:
    return np.cbrt(maths.small_floating(value))


def _literal_unroll(f: Frame, call: Call, values: tuple) -> Iterator:
    if not isinstance(values, tuple):
        raise TypeError(f"literal_unroll takes a tuple, not {kind_of(values)}")
    return iter(values)  # not a tuple, whose elements would have to be of one type


def _nothing(f: Frame, call: Call, *args: Value) -> None:
    return None


DEVICE: dict[str, Callable] = {
    "grid": _grid, "gridsize": _gridsize,
    "shared.array": _shared_array, "local.array": _local_array, "const.array_like": _array_like,
    "syncthreads": sync.barrier, "syncthreads_count": sync.voting_barrier("count"),
    "syncthreads_and": sync.voting_barrier("and"), "syncthreads_or": sync.voting_barrier("or"),
    "syncwarp": sync.warp_barrier,
    "threadfence": sync.fence, "threadfence_system": sync.fence, "threadfence_block": sync.block_fence,
    "cg.this_grid": lambda f, call: GridGroup(), "this_grid": lambda f, call: GridGroup(),
    "nanosleep": _nothing, "literal_unroll": _literal_unroll,
    **warp.WARP_OPERATIONS,
    **{f"atomic.{name}": _atomic(name, 1) for name in atomics.ATOMIC if name != "cas"},
    "atomic.cas": _atomic("cas", 2), "atomic.compare_and_swap": _compare_and_swap,
    "load128": _load128, "store128": _store128, "widened": _widened, "width128": _width128,
    "array_at": addresses.array_at,
    "popc": _popc, "clz": _clz, "brev": _brev, "ffs": _ffs, "selp": _selp, "fma": _fma, "cbrt": _cbrt,
    **libdevice.LIBDEVICE, **float16.FP16, **bfloat16.BF16, **cache_hints.HINTS, **vectors.VECTORS, **matrix.MATRIX,
    **hopper.HOPPER, **hopper_stores.STORES, **hopper_sparse.SPARSE_TILES, **sparse_matrix.SPARSE, **system.SYSTEM,
    **dots.DOTS, **clusters.CLUSTERS,
}  # fmt: skip
