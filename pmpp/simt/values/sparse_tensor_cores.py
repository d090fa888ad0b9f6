"""What a tensor core computes with 2:4 sparsity: d = a @ b + c, where `a` has two numbers of each four in a row.

The layout.  The numbers that are stored of `a` lie as the `a` of the dense instruction of the same type, whose rows are
half as long, and `c` lies as there. `b` has twice as many rows, and so twice as many registers.

The metadata.  Each four neighbours of a row of `a` have 4 bits: the place of the first number in the lower two, and of
the second in the upper two, and the first place is the smaller one. So there are six words of 4 bits. `metadata` says
which lane has those of which row. With 16-bit numbers two of every four lanes have all of it, and the selector says
which two. With int8 all four have it, and the selector is 0.

The rounding.  It is that of the dense instruction, for the products that are made: see tensor_cores.py.

Source: PTX ISA, "Sparse matrix storage" and "Matrix fragments for sparse mma.m16n8k32", "mma.m16n8k64".
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from pmpp.simt.values import tensor_cores
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.tensor_cores import COLUMNS, HOPPER, LANES, ROWS, Adder


class Sparse(NamedTuple):
    """One instruction: the dense one that has its numbers, the columns of `a`, and how many selectors there are."""

    dense: str
    depth: int
    selectors: int


KINDS = {
    "mma_sp_f16": Sparse("mma_f16", 32, 2), "mma_sp_bf16": Sparse("mma_bf16", 32, 2),
    "mma_sp_s8": Sparse("mma_s8", 64, 1),
}  # fmt: skip

#: How many registers of each matrix a lane has. The metadata is one more.
REGISTERS = {"a": 4, "b": 4, "c": 4}

#: The words of 4 bits that say where two of four numbers are: the first before the second.
ORDERED = tuple(first | second << 2 for first in range(4) for second in range(first + 1, 4))
_IS_ORDERED = np.isin(np.arange(16, dtype=np.uint8), ORDERED)


def fragment(name: str, matrix: str, lane: int, register: int) -> list[tuple[int, int]]:
    """The rows and columns of the numbers in one register of one lane, from the lowest bits of the register on.

    name      of the instruction: "mma_f16", "mma_bf16", "mma_tf32", "mma_s8", "mma_sp_f16", "mma_sp_bf16", "mma_sp_s8"
    matrix    "a", "b" or "c"; the result lies as `c`. With "sp", the columns of "a" are those of the stored numbers.
    lane      0 to 31
    register  0 to 3, of `b` 0 or 1 without "sp"

    >>> fragment("mma_f16", "a", lane=5, register=1)
    [(9, 2), (9, 3)]
    >>> fragment("mma_sp_f16", "b", lane=5, register=3)
    [(26, 1), (27, 1)]
    """
    if not isinstance(name, str) or name not in KINDS:
        if not isinstance(name, str) or name not in tensor_cores.KINDS:
            raise ValueError(f"name is {name!r}; it must be one of {', '.join([*tensor_cores.KINDS, *KINDS])}")
        return tensor_cores.fragment(name, matrix, lane, register)
    tensor_cores.check_place("register", register, 4)
    if matrix != "b" or register not in (2, 3):
        return tensor_cores.fragment(KINDS[name].dense, matrix, lane, register)
    half = KINDS[name].depth // 2
    return [(row + half, column) for row, column in tensor_cores.fragment(KINDS[name].dense, "b", lane, register - 2)]


def metadata(name: str, lane: int, selector: int = 0) -> list[tuple[int, int]]:
    """What the metadata of one lane is for: the row of `a`, and the first of four columns, from the lowest 4 bits on.

    name      of the instruction: "mma_sp_f16", "mma_sp_bf16" or "mma_sp_s8"
    lane      0 to 31
    selector  0 or 1; with "mma_sp_s8" 0

    The list is empty if the instruction does not look at the lane's metadata.

    >>> metadata("mma_sp_f16", lane=5, selector=0)
    [(1, 16), (1, 20), (1, 24), (1, 28), (9, 16), (9, 20), (9, 24), (9, 28)]
    >>> metadata("mma_sp_f16", lane=5, selector=1)
    []
    """
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"name is {name!r}; it must be one of {', '.join(KINDS)}")
    tensor_cores.check_place("lane", lane, LANES)
    tensor_cores.check_place("selector", selector, KINDS[name].selectors)
    g, t = divmod(lane, 4)
    if KINDS[name].selectors == 1:
        return [(g + 8 * (t % 2), 32 * (t // 2) + 4 * four) for four in range(8)]
    if t // 2 != selector:
        return []
    return [(g + 8 * (four // 4), 16 * (t % 2) + 4 * (four % 4)) for four in range(8)]


def operations(name: str) -> int:
    """Operations of one instruction, a multiply-add being two: those of the numbers that are stored of `a`."""
    return ROWS * COLUMNS * KINDS[name].depth


@functools.cache
def _places_of_b(name: str) -> np.ndarray:
    """Where the numbers of `b` lie in the flattened matrix: (lane, register, number), flattened."""
    places = [
        r * COLUMNS + c
        for lane in range(LANES)
        for register in range(REGISTERS["b"])
        for r, c in fragment(name, "b", lane, register)
    ]
    return as_intp(np.array(places, np.int64))


@functools.cache
def _sources(name: str, selector: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each row and each four columns of `a`: the lane that has the metadata, and by how many bits it is shifted."""
    lanes, shifts = np.zeros((2, ROWS, KINDS[name].depth // 4), np.int64)
    for lane in range(LANES):
        for four, (row, column) in enumerate(metadata(name, lane, selector)):
            lanes[row, column // 4], shifts[row, column // 4] = lane, 4 * four
    return as_intp(lanes), shifts.astype(np.uint32)


def _fours(name: str, selector: int, e: np.ndarray) -> np.ndarray:
    """The 4 bits of each four columns of some warps: (W, 16, depth / 4), from a register, (W, 32)."""
    lanes, shifts = _sources(name, selector)
    return e[:, lanes] >> shifts & np.uint32(15)


def disordered(name: str, selector: int, e: np.ndarray) -> tuple[int, int, int] | None:
    """The first warp whose metadata, (W, 32), is none: (warp, lane, those 4 bits), or None.  What they do is undefined.

    >>> disordered("mma_sp_f16", 0, np.full((1, 32), 0x44444444, np.uint32))
    >>> disordered("mma_sp_f16", 0, np.full((1, 32), 0x44441444, np.uint32))
    (0, 0, 1)
    """
    fours = _fours(name, selector, e)
    wrong = ~_IS_ORDERED[as_intp(fours)]
    if not wrong.any():
        return None
    warp, row, four = np.argwhere(wrong)[0].tolist()
    return warp, int(_sources(name, selector)[0][row, four]), int(fours[warp, row, four])


def multiply_add(
    name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, e: np.ndarray, selector: int, adder: Adder = HOPPER
) -> np.ndarray:
    """The registers of a @ b + c, (W, 32, 4), from those of a, b and c, (W, 32, 4) each, and the metadata, (W, 32)."""
    dense, depth, _ = KINDS[name]
    numbers = tensor_cores.KINDS[dense].numbers
    fours = _fours(name, selector, e)
    first = 4 * np.arange(depth // 4, dtype=np.uint32)
    # Of each number that is stored in a row of a, the row of b that it is multiplied by: (W, 16, depth / 2).
    rows = np.stack([first + (fours & np.uint32(3)), first + (fours >> np.uint32(2))], axis=-1)
    rows = as_intp(rows.reshape(len(e), ROWS, depth // 2).astype(np.int64))
    with np.errstate(all="ignore"):
        stored, total = tensor_cores.matrices(dense, "a", a), tensor_cores.matrices(dense, "c", c)
        all_of_b = np.empty((len(b), depth * COLUMNS), np.float64)
        all_of_b[:, _places_of_b(name)] = tensor_cores._numbers(dense, np.ascontiguousarray(b)).reshape(len(b), -1)
        warps = as_intp(np.arange(len(b), dtype=np.int64))[:, None, None]
        chosen = all_of_b.reshape(-1, depth, COLUMNS)[warps, rows].swapaxes(2, 3)  # (W, 16, 8, depth / 2)
        if numbers == "int8":
            added = (stored[:, :, None, :] * chosen).sum(axis=-1, dtype=np.float64)
            total = (added.astype(np.int64) + total).astype(np.int32)
        else:
            group = adder.group[numbers]
            for begin in range(0, depth // 2, group):
                part = slice(begin, begin + group)
                total = tensor_cores._add(stored[:, :, None, part], chosen[..., part], total, numbers, adder)
    return total.reshape(len(a), -1)[:, tensor_cores._places(dense, "c")[:, :, 0]]
