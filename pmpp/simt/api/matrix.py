"""The instructions of tensor cores, the twins of those in `pmpp.runtime.matrix` and `matrix_f64_f8`.

What a warp's lanes hold together is taken apart and put together for all warps at once: a value that differs between
lanes becomes rows of 32.  machine/copies.py has what `copy_async` leaves under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.sync import alive
from pmpp.simt.machine import copies, memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import WARP, spread
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values import tensor_cores
from pmpp.simt.values.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, UINT32, Value, is_number

_SIZES = (1, 2, 4)
_HALVES = (FLOAT16, np.dtype(np.int16), np.dtype(np.uint16))


def _together(f: Frame, call: Any, what: str) -> None:
    """Report a lane that does not execute what its whole warp must execute together."""
    if f.mask.bits is None or f.m.dry:
        return
    here, there = (mask.grid().reshape(-1, WARP) for mask in (f.mask, f.m.batch.lanes.full))
    missing = there & ~here & here.any(axis=1, keepdims=True)
    part = here & ~there.all(axis=1, keepdims=True)
    if missing.any():
        lane = int(np.argmax(missing))
        does = "does not execute" if alive(f.m).reshape(-1)[lane] else "has returned before"
        message = f"{{who}} {does} this {what}, which all 32 lanes of a warp must execute together"
    elif part.any():
        lane = int(np.argmax(part))
        has = np.count_nonzero(there[lane // WARP])
        message = f"{{who}} executes this {what} in a warp of {has} threads: the block is no whole number of warps"
    else:
        return
    f.m.hazard("divergent_barrier", "register", what, call.line, lane, message)


def _by_warps(f: Frame, value: Value) -> np.ndarray:
    """A value in the lanes of each warp: (W, 32), or of fewer warps where it is the same in every block."""
    lanes = f.m.batch.lanes
    rows = value.shape[0] if value.ndim else 1
    return spread(value, (rows, lanes.width)).reshape(-1, WARP)


def _of_lanes(f: Frame, value: np.ndarray) -> Value:
    return value.reshape(-1, f.m.batch.lanes.width)


# -- multiply and add ------------------------------------------------------------------------------------------------


def _registers(name: str, argument: str, given: Any, count: int, dtype: np.dtype) -> tuple:
    if not isinstance(given, tuple) or len(given) != count or any(
        not is_number(part) or part.dtype != dtype for part in given
    ):  # fmt: skip
        has = f"({', '.join(map(kind_of, given))})" if isinstance(given, tuple) else kind_of(given)
        raise TypeError(f"{name}: {argument} must be a tuple of {count} {dtype}, was {has}")
    return given


def _multiply_add(name: str) -> Callable:
    number = {"mma_s8": INT32, "mma_f64": FLOAT64}.get(name, FLOAT32)
    operand = FLOAT64 if name == "mma_f64" else UINT32

    def mma(f: Frame, call: Any, a: Any, b: Any, c: Any) -> tuple[Value, ...]:
        fragments = [
            _registers(name, "a", a, 4, operand),
            _registers(name, "b", b, 2, operand),
            _registers(name, "c", c, 4, number),
        ]
        if f.m.dry:
            return (number.type(0),) * 4
        _together(f, call, f"{name}()")
        if f.m.counts is not None:
            f.m.counts.tensor(call.line, f.mask, tensor_cores.operations(name))
        parts = [[_by_warps(f, part) for part in fragment] for fragment in fragments]
        warps = max(len(part) for fragment in parts for part in fragment)
        stacked = [np.stack([_repeated(part, warps) for part in fragment], axis=2) for fragment in parts]
        result = tensor_cores.multiply_add(name, *stacked)
        return tuple(_of_lanes(f, np.ascontiguousarray(result[:, :, k])) for k in range(4))

    mma.counts_itself = True  # type: ignore[attr-defined]
    return mma


def _repeated(part: np.ndarray, warps: int) -> np.ndarray:
    """The same values in every block: they stand for those of all warps."""
    return part if len(part) == warps else np.tile(part, (warps // len(part), 1))


# -- registers out of memory -----------------------------------------------------------------------------------------


def _array(name: str, argument: str, array: Any, sizes: tuple[int, ...] = _SIZES) -> Array:
    if not isinstance(array, Array):
        raise TypeError(f"{name}: {argument} must be an array, was {kind_of(array)}")
    if array.dtype.kind not in "iuf" or array.dtype.names or array.dtype.itemsize not in sizes:
        bits = " or ".join(str(8 * size) for size in sizes)
        but = " that are no bfloat16" if array.dtype == BFLOAT16 else ""
        raise TypeError(f"{name}: {argument} must hold numbers of {bits} bits{but}, was {kind_of(array)}")
    if not array.contiguous():
        raise TypeError(f"{name}: {argument} must be contiguous (C or F order), has strides {array.strides}")
    return array


def _shared(f: Frame, name: str, argument: str, array: Any, sizes: tuple[int, ...] = _SIZES) -> Array:
    array = _array(name, argument, array, sizes)
    if array.storage.space != "shared" and not f.m.dry:
        raise TypeError(f"{name}: {argument} must be in shared memory; it is in {array.storage.space} memory")
    return array


def _load_matrices(name: str, sizes: tuple[int, ...], *, transposed: bool) -> Callable:
    def ldmatrix(f: Frame, call: Any, x: Any, i: Value) -> tuple[Value, ...]:
        m, lanes = f.m, f.m.batch.lanes
        for part in _parts(x):
            _shared(f, name, "x", part, sizes)
        if m.dry:
            return (np.uint32(0),) * 4
        _together(f, call, f"{name}()")
        if isinstance(x, Scattered):
            words = x.gather(f, lambda part: _words(f, call, part, i))
            loaded = np.stack(words, axis=-1).view(np.uint8)
        else:
            loaded = memory.load_bytes(m, f.mask, x, i, 16, call.name, call.line)
        rows = loaded.reshape(-1, 4, 8, 16)  # warp, matrix, row, byte
        if transposed:
            rows = np.ascontiguousarray(rows.view(np.uint16).swapaxes(2, 3)).view(np.uint8)
        words = rows.reshape(-1, 4, 128).view(np.uint32)  # of each matrix 32, one a lane
        return tuple(words[:, k].reshape(lanes.blocks, lanes.width) for k in range(4))

    ldmatrix.counts_itself = True  # type: ignore[attr-defined]
    return ldmatrix


def _parts(x: Any) -> list:
    """The arrays that the lanes have."""
    return [array for _, array in x.parts] if isinstance(x, Scattered) else [x]


def _words(f: Frame, call: Any, x: Array, i: Value) -> tuple[np.ndarray, ...]:
    """16 bytes of each lane as four words."""
    words = memory.load_bytes(f.m, f.mask, x, i, 16, call.name, call.line).view(UINT32)
    return tuple(words[:, :, k] for k in range(4))


def _load32(f: Frame, call: Any, x: Any, i: Value) -> Value:
    if isinstance(x, Scattered):
        return x.gather(f, lambda part: _load32(f, call, part, i))
    x = _array("load32", "x", x)
    if x.storage.space == "local" and not f.m.dry:
        raise TypeError("load32: x must be in global or shared memory; it is in local memory")
    if f.m.dry:
        return np.uint32(0)
    return memory.load_bytes(f.m, f.mask, x, i, 4, call.name, call.line).view(np.uint32)[:, :, 0]


_load32.counts_itself = True  # type: ignore[attr-defined]


def _pack_halves(f: Frame, call: Any, lo: Value, hi: Value) -> Value:
    for argument, given in (("lo", lo), ("hi", hi)):
        if not is_number(given) or given.dtype not in _HALVES:
            raise TypeError(f"pack_halves: {argument} must be float16, int16 or uint16, was {kind_of(given)}")
    low, high = (np.asarray(half).view(np.uint16).astype(UINT32) for half in (lo, hi))
    return (low | high << np.uint32(16))[()]


def _bits_of_f16(value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.where(np.isnan(value), np.uint16(_NAN), value.astype(FLOAT16).view(np.uint16))


def _bits_of_bf16(value: np.ndarray) -> np.ndarray:
    """The upper half of a float32, rounded to nearest, ties to even: a carry may reach infinity, as it should."""
    bits = np.ascontiguousarray(value).view(UINT32)
    up = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    with np.errstate(over="ignore"):  # of a NaN, which is replaced
        return np.where(np.isnan(value), np.uint16(_NAN), (bits + up >> np.uint32(16)).astype(np.uint16))


_NAN = 0x7FFF  # the only one that the instruction makes
_ROUNDED = {"rounded_f16": _bits_of_f16, "rounded_bf16": _bits_of_bf16}


def _rounded(name: str) -> Callable:
    def of_two(f: Frame, call: Any, lo: Value, hi: Value) -> Value:
        for argument, given in (("lo", lo), ("hi", hi)):
            if not is_number(given) or given.dtype != FLOAT32:
                raise TypeError(f"{name}: {argument} must be a float32, was {kind_of(given)}")
        low, high = (_ROUNDED[name](np.asarray(half)).reshape(np.shape(half)).astype(UINT32) for half in (lo, hi))
        return (low | high << np.uint32(16))[()]

    return of_two


# -- asynchronous copies ---------------------------------------------------------------------------------------------


def _copy_async(f: Frame, call: Any, shared: Any, i: Value, x: Any, j: Value, count: Value) -> None:
    if isinstance(shared, Scattered):
        shared.each(f, lambda part: _copy_async(f, call, part, i, x, j, count))
        return
    if isinstance(x, Scattered):
        x.each(f, lambda part: _copy_async(f, call, shared, i, part, j, count))
        return
    name = call.function.rpartition(".")[2]  # `copy_async_once` has this twin as well
    shared, x = _shared(f, name, "shared", shared), _array(name, "x", x)
    if shared.dtype != x.dtype:
        raise TypeError(f"{name}: shared and x must have one dtype, were {shared.dtype} and {x.dtype}")
    if x.storage.space != "global" and not f.m.dry:
        raise TypeError(f"{name}: x must be in global memory; it is in {x.storage.space} memory")
    for argument, given in (("i", i), ("j", j), ("count", count)):
        if not is_number(given) or given.dtype.kind not in "iu":
            raise TypeError(f"{name}: {argument} must be one integer, was {kind_of(given)}")
    if not f.m.dry:
        names = name, call.name, call.argument(2, "x")
        copies.begin(f.m, f.mask, (shared, i), (x, j), count, names, call.line)


_copy_async.counts_itself = True  # type: ignore[attr-defined]


def _commit_copies(f: Frame, call: Any) -> None:
    if not f.m.dry:
        copies.commit(f.m, f.mask)


def _wait_copies(f: Frame, call: Any, n: Value) -> None:
    if not call.is_literal(f, 0, "n") or not isinstance(n, np.integer) or n < 0:
        given = n if isinstance(n, np.integer) else kind_of(n)
        raise TypeError(f"wait_copies: n must be a literal, an integer from 0 on, was {given}")
    if not f.m.dry:
        copies.wait(f.m, f.mask, int(n), call.line)


MATRIX: dict[str, Callable] = {
    **{name: _multiply_add(name) for name in tensor_cores.KINDS},
    "ldmatrix": _load_matrices("ldmatrix", _SIZES, transposed=False),
    "ldmatrix_transposed": _load_matrices("ldmatrix_transposed", (2,), transposed=True),
    "load32": _load32, "pack_halves": _pack_halves, **{name: _rounded(name) for name in _ROUNDED},
    "copy_async": _copy_async, "commit_copies": _commit_copies, "wait_copies": _wait_copies,
}  # fmt: skip
