"""Matrices with 2:4 sparsity: of each four neighbours in a row two are stored, with a word that says where they belong.

`prune` makes such a matrix of a dense one, and `decompress` goes the way back.

The stored numbers of a row stand side by side, in an array of half as many columns. The metadata lies as mma.sp wants
it: each 32 rows by 32 columns have 32 words side by side, one for each lane. The word of lane 4 g + 2 s + h is for the
columns from 16 h on, of row 16 s + g in its lower half, and of row 16 s + g + 8 in its upper half. Of each half, the
first four columns have the lowest 4 bits. These have the place of the first number in the lower 2 bits, and that of the
second in the upper 2.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

SIDE = 32  # rows and columns of what has 32 words of metadata
PADDED_ROWS, PADDED = (
    256,
    128,
)  # to multiples of them rows and columns are filled up: no kernel meets an edge of the metadata
FIRST_TWO = np.uint32(0x44444444)  # metadata of numbers in the first two places: that of what is filled up
MAGNITUDE = np.uint16(0x7FFF)  # the bits of a float16 but for its sign: as whole numbers they are in order of size
BLOCK = 128


class Pruned(typing.NamedTuple):
    """What a product takes of a matrix: the numbers that are stored, and where they belong.

    values: float16 of shape (M, K' / 2), where K' is K, filled up to a multiple of 128.
    metadata: uint32 of shape (M' / 32, K' / 32, 32), where M' is M, filled up to a multiple of 256.
    """

    values: typing.Any
    metadata: typing.Any


def shapes(m: int, k: int) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The shapes of the values and of the metadata of an m x k matrix.

    >>> shapes(100, 130)
    ((100, 128), (8, 8, 32))
    """
    width = round_up(k, PADDED)
    return (m, width // 2), (round_up(m, PADDED_ROWS) // SIDE, width // SIDE, SIDE)


def places(metadata: np.ndarray, m: int) -> np.ndarray:
    """The columns that the stored numbers belong to: int64 of shape (m, K' / 2), from the metadata as a NumPy array.

    >>> places(np.full((1, 2, 32), FIRST_TWO), 1)[0, :6].tolist()
    [0, 1, 4, 5, 8, 9]
    """
    tiles, steps, _ = metadata.shape
    words = metadata.reshape(tiles, steps, 8, 2, 2)  # tile, step, g, s, h
    halves = np.stack([words & 0xFFFF, words >> 16], axis=-1)  # row 16 s + g, and row 16 s + g + 8
    rows = halves.transpose(0, 3, 5, 2, 1, 4).reshape(tiles * SIDE, 2 * steps)  # of each 16 columns a half
    fours = (rows[:, :, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15).reshape(tiles * SIDE, 8 * steps)
    both = np.stack([fours & 3, fours >> 2], axis=-1).astype(np.int64)
    return (both + 4 * np.arange(fours.shape[1])[:, None]).reshape(tiles * SIDE, 16 * steps)[:m]


def check_metadata(metadata: typing.Any) -> None:
    """Raise ValueError unless each 4 bits name two of four places in their order, or it is no NumPy array.

    >>> check_metadata(np.full((1, 2, 32), 0x44444441, np.uint32))
    Traceback (most recent call last):
        ...
    ValueError: metadata must name two of four places in their order, was 0b0001 in 0x44444441 at (0, 0, 0)
    """
    if not isinstance(metadata, np.ndarray):
        return
    for shift in range(0, 32, 4):
        fours = metadata >> np.uint32(shift) & np.uint32(15)
        wrong = np.argwhere((fours & 3) >= (fours >> 2))
        if wrong.size:
            at = tuple(wrong[0].tolist())
            has = f"0b{int(fours[at]):04b} in 0x{int(metadata[at]):08X} at {at}"
            raise ValueError(f"metadata must name two of four places in their order, was {has}")


@cuda.jit(device=True)
def size_at(w, row, column):
    """The size of a number as an integer in the same order, with NaN as the largest. Beyond the edge it is 0."""
    return np.int32(w[row, column] & MAGNITUDE) if column < w.shape[1] else np.int32(0)


@cuda.jit(device=True)
def four_of(w, row, column):
    """The 4 bits for the four numbers from (row, column) on: which two of them are the largest."""
    a, b = size_at(w, row, column), size_at(w, row, column + 1)
    c, d = size_at(w, row, column + 2), size_at(w, row, column + 3)
    # How many of the others come before each: the larger ones, and equal ones that stand further left.
    a_rank = np.int32(b > a) + np.int32(c > a) + np.int32(d > a)
    b_rank = np.int32(a >= b) + np.int32(c > b) + np.int32(d > b)
    c_rank = np.int32(a >= c) + np.int32(b >= c) + np.int32(d > c)
    if a_rank < 2:
        return np.uint32(4) if b_rank < 2 else (np.uint32(8) if c_rank < 2 else np.uint32(12))
    if b_rank < 2:
        return np.uint32(9) if c_rank < 2 else np.uint32(13)
    return np.uint32(14)


@cuda.jit(device=True)
def prune_half(w, values, row, column):
    """Store eight numbers of the 16 from (row, column) on, and return their 16 bits of metadata."""
    half = np.uint32(0)
    for four in range(4):
        bits, at = np.uint32(4), column + 4 * four
        if row < w.shape[0]:
            bits = four_of(w, row, at)
            left, right = at + np.int64(bits & np.uint32(3)), at + np.int64(bits >> np.uint32(2))
            values[row, at // 2] = w[row, left] if left < w.shape[1] else np.uint16(0)
            values[row, at // 2 + 1] = w[row, right] if right < w.shape[1] else np.uint16(0)
        half |= np.uint32(bits << np.uint32(4 * four))
    return half


@cuda.jit(device=True)
def place_of_word(i, steps):
    """The row and the column that word number i of the metadata begins with."""
    lane, tile = i % SIDE, i // SIDE
    row = tile // steps * SIDE + lane % 4 // 2 * 16 + lane // 4
    return row, tile % steps * SIDE + lane % 2 * 16


@cuda.jit
def prune_kernel(w, values, metadata):
    i = cuda.grid(1)
    if i < metadata.size:
        row, column = place_of_word(i, metadata.shape[1])
        low = prune_half(w, values, row, column)
        high = prune_half(w, values, row + 8, column)
        metadata[i // SIDE // metadata.shape[1], i // SIDE % metadata.shape[1], i % SIDE] = low | high << np.uint32(16)


def prune(w, *, stream=0) -> Pruned:
    """Keep the two largest of each four neighbours in a row, and store them alone.

    Args:
        w: float16 of shape (M, K), in C order. Extents may be 0. If K is no multiple of 4, zeros follow.
        stream: the stream to work on.

    Returns the stored numbers and the metadata, `Pruned`, without waiting for the work to be done. Of numbers of equal
    size the first stay, and NaN is larger than any other.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Mishra et al., "Accelerating sparse deep neural networks" (2021).

    >>> values, metadata = prune(np.float16([[1, -3, 2, 0.5, 0, 0, 7, 0]]))
    >>> values.copy_to_host()[0, :4].tolist(), hex(metadata.copy_to_host()[0, 0, 0])
    ([-3.0, 2.0, 0.0, 7.0], '0x44444489')
    """
    stream = device.as_stream(stream)
    w = device.as_input("w", w, dtypes="float16", ndim=2, stream=stream)
    of_values, of_metadata = shapes(*w.shape)
    values = device.empty(of_values, np.float16, stream=stream)
    metadata = device.empty(of_metadata, np.uint32, stream=stream)
    if metadata.size:
        prune_kernel[blocks(metadata.size, BLOCK), BLOCK, stream](w.view(np.uint16), values.view(np.uint16), metadata)
    return Pruned(values, metadata)


@cuda.jit
def decompress_kernel(values, metadata, w):
    i = cuda.grid(1)
    if i < metadata.size:
        steps = metadata.shape[1]
        row, column = place_of_word(i, steps)
        word = metadata[i // SIDE // steps, i // SIDE % steps, i % SIDE]
        for part in range(8):
            at, down = column + part % 4 * 4, row + part // 4 * 8
            first, second = np.int64(word & np.uint32(3)), np.int64(word >> np.uint32(2) & np.uint32(3))
            word = np.uint32(word >> np.uint32(4))
            if down < w.shape[0]:
                for place in range(4):
                    number = np.uint16(0)
                    if place == first:
                        number = values[down, at // 2]
                    elif place == second:
                        number = values[down, at // 2 + 1]
                    if at + place < w.shape[1]:
                        w[down, at + place] = number


def decompress(values, metadata, k, *, stream=0):
    """The dense matrix of shape (M, k) in float16, with zeros where nothing is stored.

    Args:
        values, metadata: the two parts of a `Pruned`.
        k: how many columns the matrix has.
        stream: the stream to work on.

    Returns a device array, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> values, metadata = prune(np.float16([[1, -3, 2, 0.5, 0, 0, 7, 0]]))
    >>> decompress(values, metadata, 8).copy_to_host().tolist()
    [[0.0, -3.0, 2.0, 0.0, 0.0, 0.0, 7.0, 0.0]]
    """
    stream = device.as_stream(stream)
    k = as_integer("k", k, 0, 2**31 - 1)
    values = device.as_input("values", values, dtypes="float16", ndim=2, stream=stream)
    most = 2 * values.shape[1]
    if not most - PADDED < k <= most:
        least = max(most - PADDED + 1, 0)
        raise ValueError(f"k must be from {least} to {most} for values of shape {values.shape}, was {k}")
    values, metadata = as_pruned(values, metadata, k, stream)
    w = device.empty((values.shape[0], k), np.float16, stream=stream)
    if w.size:
        grid = blocks(metadata.size, BLOCK)
        decompress_kernel[grid, BLOCK, stream](values.view(np.uint16), metadata, w.view(np.uint16))
    return w


def as_pruned(values: typing.Any, metadata: typing.Any, k: int, stream: typing.Any) -> Pruned:
    """Check the two parts of a matrix of k columns, and return them as device arrays."""
    on_host = metadata
    values = device.as_input("values", values, dtypes="float16", ndim=2, stream=stream)
    wanted, of_metadata = shapes(values.shape[0], k)
    if values.shape != wanted:
        raise ValueError(f"values must have {wanted[1]} columns for K = {k}, had shape {values.shape}")
    metadata = device.as_input("metadata", metadata, dtypes="uint32", ndim=3, shape=of_metadata, stream=stream)
    check_metadata(on_host)
    return Pruned(values, metadata)
