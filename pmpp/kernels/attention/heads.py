"""Heads apart: the queries, keys and values of each head, which a linear layer has made side by side, and back.

A layer's result has a row for each token, and in it the queries of all heads, then the keys, then the values. The
kernels of `pmpp.kernels.attention.on_tensor_cores` want a matrix of its own for each head. `apart` writes those, in one
launch for all three, and `together` writes results back into rows of tokens. Both move 16 bytes at a time.

A kernel here is a copy, so its bound is the memory: each element is read once and written once.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.common.division import divisor, quotient
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.vector import load128, store128

__all__ = ["DTYPES", "apart", "together"]

DTYPES = ("float16", "bfloat16")
BLOCK = 256
CHUNK = 8  # elements in 16 bytes
MOST = 2**31  # chunks


class Extents(typing.NamedTuple):
    """Of ``parts`` parts with a matrix, length x size, for each text and head. ``size`` and ``chunk`` are in words.

    ``chunk``: so many words are moved at a time.
    """

    parts: int
    texts: int
    heads: int
    length: int
    size: int
    chunk: int
    chunks_times: int  # what divides by the chunks of a row, by `length`, by `heads`, and by the chunks of a part
    chunks_shift: int
    length_times: int
    length_shift: int
    heads_times: int
    heads_shift: int
    part_times: int
    part_shift: int


@cuda.jit(device=True)
def places(i, part, s):
    """Where the i-th chunk of the matrices of a part lies among them, and where among the rows of tokens."""
    row = quotient(i, s.chunks_times, s.chunks_shift)
    head = quotient(row, s.length_times, s.length_shift)  # counted in all texts
    text = quotient(head, s.heads_times, s.heads_shift)
    chunk, token, head = i * s.chunk - row * s.size, row - head * s.length, head - text * s.heads
    return i * s.chunk, (((text * s.length + token) * s.parts + part) * s.heads + head) * s.size + chunk


@cuda.jit(device=True)
def move_one(target, at, source, begin):
    target[at] = source[begin]


@cuda.jit(device=True)
def move_chunk(target, at, source, begin):
    store128(target, at, load128(source, begin))


@functools.cache
def kernels(wide: bool) -> tuple[typing.Any, typing.Any]:
    """The kernels of `apart` and of `together`: on words of 32 bits, four at a time, or on words of 16 bits."""
    move = move_chunk if wide else move_one

    @cuda.jit
    def apart_kernel(rows, matrices, s):
        i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
        if i * s.chunk < matrices.size:
            part = quotient(i, s.part_times, s.part_shift)
            _, source = places(i - part * s.texts * s.heads * s.length * (s.size // s.chunk), part, s)
            move(matrices, i * s.chunk, rows, source)

    @cuda.jit
    def together_kernel(matrices, rows, part, s):
        i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
        if i * s.chunk < matrices.size:
            source, target = places(i, part, s)
            move(rows, target, matrices, source)

    return apart_kernel, together_kernel


def _words(parts: int, shape: tuple[int, ...], *arrays: typing.Any) -> tuple[bool, Extents, list]:
    """Whether 16 bytes can be moved at a time, the extents in words, and the arrays as vectors of words."""
    texts, heads, length, size = shape
    wide = size % CHUNK == 0 and not any(device.address(x) % 16 for x in arrays)
    words = [x.reshape(-1).view(np.uint32 if wide else np.uint16) for x in arrays]
    size, chunk = (size // 2, CHUNK // 2) if wide else (size, 1)
    each = texts * heads * length * (size // chunk)
    if parts * each >= MOST:
        what = "chunks of 16 bytes" if wide else "elements, as a head's size is no multiple of 8"
        raise ValueError(f"rows must have fewer than {MOST} {what}, had {parts * each}")
    divisors = (divisor(d, parts * each) for d in (size // chunk, length, heads, each))
    given = parts, texts, heads, length, size, chunk, *(x for pair in divisors for x in pair)
    return wide, Extents(*map(np.int64, given)), words


def apart(rows, heads, parts=3, *, stream=0) -> tuple:
    """The matrices of each head.

    Args:
        rows: float16 or bfloat16, shape (texts, length, parts * heads * size), in C order: for each token one part
            after another, and in each head after head.
        heads: how many heads a part has.
        parts: 3 for queries, keys and values.
        stream: the stream to work on.

    Returns ``parts`` new device arrays of shape (texts, heads, length, size), parts of one piece of memory, without
    waiting for the work to be done. Raises TypeError or ValueError that names the argument at fault.

    >>> rows = np.arange(8, dtype=np.float16).reshape(1, 2, 4)  # two tokens; a query and a key, of two heads
    >>> [x.copy_to_host().ravel().tolist() for x in apart(rows, heads=2, parts=2)]
    [[0.0, 4.0, 1.0, 5.0], [2.0, 6.0, 3.0, 7.0]]
    """
    stream = device.as_stream(stream)
    rows = device.as_input("rows", rows, dtypes=DTYPES, ndim=3, stream=stream)
    heads, parts = as_integer("heads", heads, 1, MOST), as_integer("parts", parts, 1, MOST)
    texts, length, width = rows.shape
    if width % (parts * heads):
        raise ValueError(f"rows must be cut evenly by heads={heads} and parts={parts}, had shape {rows.shape}")
    size = width // (parts * heads)
    made = device.empty((parts, texts, heads, length, size), rows.dtype, stream=stream)
    if made.size:
        wide, s, words = _words(parts, (texts, heads, length, size), rows, made)
        kernels(wide)[0][blocks(made.size // (CHUNK if wide else 1), BLOCK), BLOCK, stream](*words, s)
    return tuple(made[part] for part in range(parts))


def together(matrices, *, stream=0) -> typing.Any:
    """The reverse of `apart`: rows of tokens, of the matrices of each part.

    Args:
        matrices: a tuple or a list of float16 or bfloat16 arrays, each of shape (texts, heads, length, size), in C
            order, all of one dtype.
        stream: the stream to work on.

    Returns a new device array of shape (texts, length, parts * heads * size), without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault.

    >>> one = np.arange(4, dtype=np.float16).reshape(1, 2, 2, 1)
    >>> together([one, one + 4]).copy_to_host().tolist()
    [[[0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0]]]
    """
    stream = device.as_stream(stream)
    if not isinstance(matrices, tuple | list) or not matrices:
        raise TypeError(f"matrices must be a tuple or a list of at least one array, was {matrices!r}")
    first = device.as_input("matrices", matrices[0], dtypes=DTYPES, ndim=4, stream=stream)
    more = [
        device.as_input("matrices", x, dtypes=first.dtype, ndim=4, shape=first.shape, stream=stream)
        for x in matrices[1:]
    ]
    texts, heads, length, size = first.shape
    parts = 1 + len(more)
    rows = device.empty((texts, length, parts * heads * size), first.dtype, stream=stream)
    for part, x in enumerate([first, *more] if rows.size else []):
        wide, s, words = _words(parts, x.shape, x, rows)
        kernels(wide)[1][blocks(x.size // (CHUNK if wide else 1), BLOCK), BLOCK, stream](*words, np.int64(part), s)
    return rows
