"""What a tensor core computes: d = a @ b + c, for matrices that the lanes of a warp hold together.

The layout.  `fragment` says which numbers of a matrix are in a register of a lane (PTX ISA, "Matrix fragments for
mma.m16n8k8", "mma.m16n8k16", "mma.m16n8k32").  In words: lane 4 g + t holds row g of `a` and row g + 8, column g of
`b`, and rows g and g + 8 of `c`; t says which columns of `a`, rows of `b` and columns of `c`.

The rounding.  Products of float16, bfloat16 and tf32 are exact.  A tensor core does not add them one after another.  It
shifts a group of products and `c` to the largest exponent among them, cuts what lies more than `fraction` bits behind
the point, adds exactly, and cuts the sum to a float32.  Nothing is rounded to nearest.  The exponent of a product is
the sum of its factors' exponents as they are stored, so a subnormal factor costs bits; zeros have none.  A sum of
2**128 or more is infinite, and NaN is always 0x7FFFFFFF.

Of numbers of 8 bits, e4m3 and e5m2, an H200 adds 32 products at once. It keeps 13 bits behind the point, of the sum as
well: the lower 10 bits of such a float32 are 0.

That is so for `wgmma`.  For `mma_e4m3` and `mma_e5m2` an H200 has no instruction: NVIDIA's compiler makes float16 of
the numbers.  One product of float16 adds those in the lower halves of all registers to 0, the next one those in the
upper halves, and `c` is added last, as a float32 to the nearest.

`mma_f64` is a chain of fused multiply-adds in the order of k, each rounded to the nearest.  Which of two NaN comes
through was not compared.

Source of the idea: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
Science 7 (2021), for earlier GPUs.  The numbers of HOPPER are those of an H200, whose results are these bit for bit:
tests/simt/test_tensor_cores.py.  Other GPUs have other numbers.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from pmpp.simt.values import rounding
from pmpp.simt.values.dtypes import as_intp

LANES, ROWS, COLUMNS = 32, 16, 8


class Kind(NamedTuple):
    """One instruction: the numbers in `a` and `b`, how many a register holds, and how many columns `a` has."""

    numbers: str
    a_register: int
    depth: int


KINDS = {
    "mma_f16": Kind("float16", 2, 16), "mma_bf16": Kind("bfloat16", 2, 16), "mma_tf32": Kind("tf32", 1, 8),
    "mma_s8": Kind("int8", 4, 32), "mma_f64": Kind("float64", 1, 8), "mma_e4m3": Kind("e4m3", 4, 32),
    "mma_e5m2": Kind("e5m2", 4, 32),
}  # fmt: skip

#: How many registers of each matrix a lane has.
REGISTERS = {"a": 4, "b": 2, "c": 4}


class Adder(NamedTuple):
    """How a GPU's tensor cores add.

    group     products that are added at once, by the numbers; the groups of a row follow one another
    fraction  bits that are kept behind the point of the largest summand, by the numbers
    kept      bits that are kept behind the point of the sum
    """

    group: dict[str, int]
    fraction: dict[str, int]
    kept: dict[str, int]


HOPPER = Adder(
    group={"float16": 16, "bfloat16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32},
    fraction={"float16": 25, "bfloat16": 25, "tf32": 25, "e4m3": 13, "e5m2": 13},
    kept={"float16": 23, "bfloat16": 23, "tf32": 23, "e4m3": 13, "e5m2": 13},
)

#: The exponents of the smallest normal numbers.
LEAST = {"float16": -14, "bfloat16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "float32": -126}

_FAR_BELOW = -300  # less than the exponent of any product
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)  # the only one that a tensor core makes
_NAN64 = np.uint64(0xFFF8 << 48).view(np.float64)  # the same of float64


def fragment(name: str, matrix: str, lane: int, register: int) -> list[tuple[int, int]]:
    """The rows and columns of the numbers in one register of one lane, from the lowest bits of the register on.

    name      of the instruction: one of KINDS, such as "mma_f16"
    matrix    "a", "b" or "c"; the result lies as `c`
    lane      0 to 31
    register  0 to 3, of `b` 0 or 1

    >>> fragment("mma_f16", "a", lane=5, register=1)
    [(9, 2), (9, 3)]
    """
    for what, given, allowed in (("name", name, KINDS), ("matrix", matrix, REGISTERS)):
        if not isinstance(given, str) or given not in allowed:
            raise ValueError(f"{what} is {given!r}; it must be one of {', '.join(allowed)}")
    check_place("lane", lane, LANES)
    check_place("register", register, REGISTERS[matrix])
    g, t = divmod(lane, 4)
    if matrix == "c":
        return [(g + 8 * (register // 2), 2 * t + register % 2)]
    each = KINDS[name].a_register
    along = [t * each + part for part in range(each)]
    if matrix == "a":
        return [(g + 8 * (register % 2), place + 4 * each * (register // 2)) for place in along]
    return [(place + 4 * each * register, g) for place in along]


def check_place(argument: str, given: object, count: int) -> None:
    """Refuse what is no integer from 0 up to `count`, without it."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given not in range(count):
        raise ValueError(f"{argument} is {given!r}; it must be an integer from 0 to {count - 1}")


def operations(name: str) -> int:
    """Operations of one instruction, a multiply-add being two."""
    return 2 * ROWS * COLUMNS * KINDS[name].depth


@functools.cache
def _places(name: str, matrix: str) -> np.ndarray:
    """Where the numbers of a fragment lie in the flattened matrix: (lane, register, number)."""
    columns = KINDS[name].depth if matrix == "a" else COLUMNS
    rows = [
        [[r * columns + c for r, c in fragment(name, matrix, lane, register)] for register in range(REGISTERS[matrix])]
        for lane in range(LANES)
    ]
    return as_intp(np.array(rows, np.int64))


def matrices(name: str, matrix: str, registers: np.ndarray) -> np.ndarray:
    """The matrices of some warps, (W, rows, columns), from their registers, (W, 32, registers)."""
    shape = {"a": (ROWS, KINDS[name].depth), "b": (KINDS[name].depth, COLUMNS), "c": (ROWS, COLUMNS)}[matrix]
    numbers = registers if matrix == "c" else _numbers(name, np.ascontiguousarray(registers))
    out = np.empty((len(registers), shape[0] * shape[1]), numbers.dtype)
    out[:, _places(name, matrix).reshape(-1)] = numbers.reshape(len(registers), -1)
    return out.reshape(-1, *shape)


def _numbers(name: str, registers: np.ndarray) -> np.ndarray:
    """The numbers in some registers, as float64."""
    kind = KINDS[name].numbers
    if kind == "float64":
        return registers
    if kind in ("e4m3", "e5m2"):
        return values_of_8_bits(kind)[as_intp(registers.view(np.uint8))]
    if kind == "int8":
        return registers.view(np.int8).astype(np.float64)
    if kind == "float16":
        return registers.view(np.float16).astype(np.float64)
    if kind == "bfloat16":  # the upper half of a float32
        return (registers.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return (registers & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)  # tf32: 10 bits behind the point


def multiply_add(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, adder: Adder = HOPPER) -> np.ndarray:
    """The registers of d = a @ b + c: (W, 32, 4), from those of a, (W, 32, 4), b, (W, 32, 2), and c, (W, 32, 4)."""
    with np.errstate(all="ignore"):
        rows, columns = matrices(name, "a", a), matrices(name, "b", b).swapaxes(1, 2)
        total = matrices(name, "c", c)
        if name == "mma_s8":
            total = ((rows @ columns.swapaxes(1, 2)).astype(np.int64) + total).astype(np.int32)
        elif name == "mma_f64":
            total = _chain(rows[:, :, None, :], columns[:, None, :, :], total)
        elif KINDS[name].numbers in ("e4m3", "e5m2"):
            total = _as_halves(rows[:, :, None, :], columns[:, None, :, :], total, adder)
        else:
            group = adder.group[KINDS[name].numbers]
            for first in range(0, KINDS[name].depth, group):
                part = slice(first, first + group)
                total = _add(rows[:, :, None, part], columns[:, None, :, part], total, KINDS[name].numbers, adder)
    return total.reshape(len(a), -1)[:, _places(name, "c")[:, :, 0]]


def _chain(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c and the products of float64 along the last axis, added one after another."""
    total = c
    for k in range(a.shape[-1]):
        x, y = a[..., k], b[..., k]
        added = rounding.fma64(x, y, total)
        if np.isnan(added).any():  # one that was given comes through with its bits, first of all that of the sum
            made = np.isnan(added) & ~(np.isnan(x) | np.isnan(y))
            added = np.where(np.isnan(total), total + 0.0, np.where(made, _NAN64, added))
        total = added
    return total


def _as_halves(a: np.ndarray, b: np.ndarray, c: np.ndarray, adder: Adder) -> np.ndarray:
    """c and the products of numbers of 8 bits along the last axis, as float32."""
    total, upper = np.zeros_like(c), np.arange(a.shape[-1], dtype=np.int64) % 4 // 2
    for half in range(2):
        total = _add(a[..., upper == half], b[..., upper == half], total, "float16", adder)
    total = total + c
    return np.where(np.isnan(total), _NAN, total)


# -- products of tiles -------------------------------------------------------------------------------------------------

#: Of a product of tiles: how many columns of sums a warp can have, by the registers of a lane.
TILE_COLUMNS = {32: 64, 64: 128, 96: 192, 128: 256}
TILES = {
    "wgmma_f16": "float16", "wgmma_bf16": "bfloat16", "wgmma_tf32": "tf32", "wgmma_s8": "int8", "wgmma_e4m3": "e4m3",
    "wgmma_e5m2": "e5m2",
}  # fmt: skip
TILE_BYTES = 32  # of each row of a, whatever the numbers

#: The bits of a number, as an instruction finds them in shared memory.
TILE_WORDS = {
    "float16": np.uint16, "bfloat16": np.uint16, "tf32": np.uint32, "int8": np.int8, "e4m3": np.uint8, "e5m2": np.uint8,
}  # fmt: skip

#: Instructions for which a row of b in shared memory is a column of the matrix.
BY_COLUMNS = ("wgmma_tf32", "wgmma_s8", "wgmma_e4m3", "wgmma_e5m2")


@functools.cache
def _places_in_tile(registers: int) -> np.ndarray:
    """Where the sums of a warp lie in its flattened 16 rows: (lane, register)."""
    lane, i = np.arange(LANES, dtype=np.int64)[:, None], np.arange(registers, dtype=np.int64)
    row, column = lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
    return as_intp(row * TILE_COLUMNS[registers] + column)


def tile_of(registers: np.ndarray) -> np.ndarray:
    """The sums of some warps as matrices, (W, 16, columns), from their registers, (W, 32, registers)."""
    columns = TILE_COLUMNS[registers.shape[2]]
    out = np.empty((len(registers), ROWS * columns), registers.dtype)
    out[:, _places_in_tile(registers.shape[2]).reshape(-1)] = registers.reshape(len(registers), -1)
    return out.reshape(-1, ROWS, columns)


def words_of_a(registers: np.ndarray) -> np.ndarray:
    """The bits of a first operand of 16-bit numbers that warps hold: (W, 16, 16), from their registers, (W, 32, 4)."""
    halves = np.ascontiguousarray(registers, np.uint32).view(np.uint16)
    out = np.empty((len(halves), ROWS * 16), np.uint16)
    out[:, _places("mma_f16", "a").reshape(-1)] = halves.reshape(len(halves), -1)
    return out.reshape(-1, ROWS, 16)


def registers_of(tiles: np.ndarray) -> np.ndarray:
    """The other way round."""
    return tiles.reshape(len(tiles), -1)[:, _places_in_tile(tiles.shape[2] // 2)]


def tile_operations(name: str, columns: int) -> int:
    """Operations of a warp in one product of tiles, a multiply-add being two."""
    return 2 * ROWS * columns * (TILE_BYTES // np.dtype(TILE_WORDS[TILES[name]]).itemsize)


def multiply_tiles(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, adder: Adder = HOPPER) -> np.ndarray:
    """c + a @ b of one warp, from the bits of the numbers: a has 16 rows of 32 bytes, b as many rows as a has columns.

    c has the sums, (16, columns): int32 of int8, else float32.
    """
    kind = TILES[name]
    if kind == "int8":
        return (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)  # all of it modulo 2**32
    with np.errstate(all="ignore"):
        rows, columns = (_of_bits(kind, x) for x in (a, b))
        if not all(np.isfinite(x).all() for x in (rows, columns, c)):
            return _add(rows[:, None, :], columns.T[None, :, :], c, kind, adder)
        # Tiles reach beyond the edges of small matrices. Where a row or a column is 0, the sum stays as it is.
        some = np.ix_((rows != 0).any(axis=1), (columns != 0).any(axis=0))
        down, along = rows[some[0][:, 0]], columns[:, some[1][0]]
        total = c + np.float32(0)
        total[some] = _add(down[:, None, :], along.T[None, :, :], c[some], kind, adder)
        return total


def _of_bits(kind: str, x: np.ndarray) -> np.ndarray:
    """Numbers as float64."""
    x = np.ascontiguousarray(x)
    if kind == "tf32":  # 10 bits behind the point
        return (x & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "float16":
        return x.view(np.float16).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        return values_of_8_bits(kind)[as_intp(x)]
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@functools.cache
def values_of_8_bits(kind: str) -> np.ndarray:
    """What each of the 256 numbers of a type of 8 bits is, as float64.

    kind    "e4m3": 4 bits of exponent, and no infinity; "e5m2": the upper half of a float16

    Source: Micikevicius et al., "FP8 formats for deep learning" (2022).

    >>> values_of_8_bits("e4m3")[[0x01, 0x38, 0x7E]].tolist()
    [0.001953125, 1.0, 448.0]
    """
    bits = np.arange(256, dtype=np.uint16)
    if kind == "e5m2":
        return (bits << np.uint16(8)).view(np.float16).astype(np.float64)
    exponent, fraction = bits >> np.uint16(3) & np.uint16(15), (bits & np.uint16(7)).astype(np.float64)
    normal = exponent > 0
    size = np.ldexp(fraction + 8.0 * normal, np.maximum(exponent, 1).astype(np.int32) - np.int32(10))
    size[bits & np.uint16(0x7F) == 0x7F] = np.nan
    return np.where(bits < 128, size, -size)


def _add(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str, adder: Adder) -> np.ndarray:
    """The sums of c and of the products of a and b along the last axis, as float32."""
    least, fraction, kept = LEAST[kind], adder.fraction[kind], adder.kept[kind]
    products, c = a * b, c.astype(np.float64)
    largest = (_exponent(a, least) + _exponent(b, least)).max(axis=-1)
    largest = np.maximum(np.maximum(largest, _exponent(c, LEAST["float32"])), _FAR_BELOW)
    scale = np.ldexp(1.0, fraction - largest)
    whole = np.trunc(products * scale[..., None]).sum(axis=-1, dtype=np.float64) + np.trunc(c * scale)
    exact = whole / scale
    if kept < 23:
        unit = np.ldexp(1.0, kept - np.maximum(_exponent(exact, LEAST["float32"]), _FAR_BELOW))
        exact = np.where(np.isfinite(exact), np.trunc(exact * unit) / unit, exact)
    result = rounding.narrow(exact, "rz")
    result = np.where(np.abs(exact) >= 2.0**128, np.copysign(np.float32(np.inf), result), result)
    strange = ~np.isfinite(whole)
    if strange.any():
        found = products.sum(axis=-1, dtype=np.float64) + c
        result = np.where(strange, np.where(np.isnan(found), _NAN, found.astype(np.float32)), result)
    return result


def _exponent(x: np.ndarray, least: int) -> np.ndarray:
    """The exponents of some numbers as they are stored: a subnormal has the least of its type; of a zero far below."""
    _, e = np.frexp(x)
    return np.where(x == 0, np.int32(2 * _FAR_BELOW), np.maximum(e - np.int32(1), np.int32(least)))
