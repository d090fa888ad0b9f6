"""Lists of tensors: what an optimiser is given, and the tables by which one kernel finds its way through all of them.

A network's parameters are many arrays of very different sizes. A kernel cannot be given a hundred arrays as arguments,
so it is given two tables on the device:

    table     a row for each tensor: the addresses of its arrays, how many of its elements can be moved 128 bits at a
              time, and how many there are
    chunks    a row for each block: the number of its tensor, and which chunk of CHUNK elements it takes of it

Both are kept (`device.cached`). ``chunks`` depends on sizes alone, and ``table`` on addresses, which for parameters are
the same in every step of a training. A CUDA graph cannot record a copy from the host that is soon freed, so in a graph
the launches of a small kernel bring the table along (`put`).
"""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Mapping

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.graphs import is_recorded

BLOCK = 256  # threads a block
CHUNK = 4 * BLOCK  # elements a block: 128 bits of each array for each thread
f0 = np.float32(0)


def given(name: str, arrays: typing.Any, like: tuple | None, *, update: bool, stream: typing.Any) -> tuple:
    """An argument of an optimiser, one array or a list of arrays, as a tuple of device arrays of float32.

    ``like``: the parameters, to each of which one of these belongs; None for the parameters themselves.
    ``update``: they are changed in place, so they must lie on the device.
    """
    several = isinstance(arrays, list | tuple)
    if several and not arrays:
        raise ValueError(f"{name} must be an array or a list with one or more, was {arrays!r}")
    if like is not None and len(like) != (count := len(arrays) if several else 1):
        had = f"a list of {count}" if several else type(arrays).__name__
        raise ValueError(f"{name} must be one array for each parameter, {len(like)} in a list, was {had}")
    made = []
    for k, one in enumerate(arrays if several else (arrays,)):
        called = f"{name}[{k}]" if several else name
        if update and isinstance(one, np.ndarray):
            use = f"it is updated, so pass pmpp.runtime.device.to_device({called})"
            raise TypeError(f"{called} must be a device array, was a NumPy array: {use}")
        shape = None if like is None else like[k].shape
        array = device.as_input(called, one, dtypes=np.float32, shape=shape, stream=stream)
        made.append(device.as_output(called, one, shape=array.shape, dtype=np.float32) if update else array)
    return tuple(made)


def results(out: typing.Any, rows: int, parameters: tuple, several: bool, apart: Mapping, stream: typing.Any) -> tuple:
    """For each tensor an array (rows, *shape) for its new state: those of ``out``, or new ones if it is None."""
    if several and out is not None and (not isinstance(out, list | tuple) or len(out) != len(parameters)):
        raise ValueError(f"out must be one array for each parameter, {len(parameters)} in a list, was {out!r}")
    outs = out if several and out is not None else (out,) * len(parameters)
    made = []
    for k, (one, parameter) in enumerate(zip(outs, parameters, strict=True)):
        name = f"out[{k}]" if several else "out"
        shape = rows, *parameter.shape
        made.append(device.as_output(name, one, shape=shape, dtype=np.float32, apart=apart, stream=stream))
    return tuple(made)


def named(**groups: tuple) -> dict[str, typing.Any]:
    """Each array of some lists by its name, as `device.as_output` takes them."""
    return {
        name if len(arrays) == 1 else f"{name}[{k}]": one
        for name, arrays in groups.items()
        for k, one in enumerate(arrays)
    }


@functools.lru_cache(64)
def refuse_overlap(names: tuple[str, ...], rows: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> None:
    """Refuse arrays, some of which are changed in place, that share memory: one would be read after another changed it.

    ``names``: of the lists, each of which has an address in every row.
    """
    spans = sorted(
        (first, first + 4 * size, f"{name}[{k}]" if len(rows) > 1 else name)
        for k, (row, size) in enumerate(zip(rows, sizes, strict=True))
        for name, first in zip(names, row, strict=True)
        if size
    )
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise ValueError(f"{other} must share no memory with {one}, had {end - begin} bytes or more in common")


# ---------------------------------------------------------------------------------------------------------- the tables


class Tables(typing.NamedTuple):
    """What the kernels are given: see the head of this file."""

    table: typing.Any  # (tensors, arrays of one + 2), int64
    chunks: typing.Any  # (blocks, 2), int32


def addresses(*groups: tuple) -> tuple[tuple[int, ...], ...]:
    """A row for each tensor: the addresses of its arrays."""
    return tuple(zip(*(tuple(map(device.address, arrays)) for arrays in groups), strict=True))


def tables(*groups: tuple, chunk: int = CHUNK, stream: typing.Any = 0) -> Tables:
    """The tables of some lists, of which one tensor has an array in each."""
    rows, sizes = addresses(*groups), tuple(one.size for one in groups[0])
    table = put(_numbers(rows, sizes), stream) if is_recorded(stream) else _table(rows, sizes)
    return Tables(table, _chunks(sizes, chunk))


@device.cached(64)
def _table(rows: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> typing.Any:
    return device.to_device(_numbers(rows, sizes))


def _numbers(rows: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> np.ndarray:
    # A vector must begin at a multiple of 16 bytes in all arrays of a tensor, or none of it is moved in vectors.
    whole = [size // 4 * 4 if all(one % 16 == 0 for one in row) else 0 for row, size in zip(rows, sizes, strict=True)]
    columns = np.array(rows, np.int64).reshape(len(sizes), -1)
    return np.column_stack([columns, np.array(whole, np.int64), np.array(sizes, np.int64)])


NUMBERS = 128  # that a launch brings along


@cuda.jit
def put_kernel(table, first, numbers):
    """Each thread writes one of the numbers that are arguments of the launch. The table may end before they do.

    Which argument a thread wants is a tree of branches. One thread would go through it once for each number; the
    threads of a warp go through it together.
    """
    i = cuda.threadIdx.x
    if first + i < table.size:
        table[first + i] = numbers[i]


def put(numbers: np.ndarray, stream: typing.Any) -> typing.Any:
    """int64 numbers on the device without a copy from the host, which a CUDA graph would make from freed memory."""
    table, flat = device.empty(numbers.size, np.int64, stream=stream), numbers.ravel().tolist()
    for first in range(0, len(flat), NUMBERS):
        some = flat[first : first + NUMBERS]
        some += [0] * (NUMBERS - len(some))
        put_kernel[1, NUMBERS, stream](table, first, tuple(np.int64(one) for one in some))
    return table.reshape(numbers.shape)


@device.cached(64)
def _chunks(sizes: tuple[int, ...], chunk: int) -> typing.Any:
    counts = [blocks(size, chunk) for size in sizes]
    tensor = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    number = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    return device.to_device(np.stack([tensor, number], axis=1))
