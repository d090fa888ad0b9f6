"""What the rungs of `convolution` share: checks of the mask, what lies beyond a border, and loading a tile."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks
from pmpp.runtime import device
from pmpp.runtime.rung import Problem
from pmpp.runtime.vector import load128, store128

ZERO, REFLECT, EDGE = 0, 1, 2
BORDERS = {"zero": ZERO, "reflect": REFLECT, "edge": EDGE}
PADS = {"zero": "constant", "reflect": "reflect", "edge": "edge"}  # the modes of numpy.pad


def border_of(border: typing.Any, extents: tuple[int, ...], mask: tuple[int, ...]) -> int:
    """The border as a number. Raises ValueError for an unknown one, or if the mask reaches too far to reflect."""
    if not isinstance(border, str) or border not in BORDERS:
        raise ValueError(f"border must be 'zero', 'reflect' or 'edge', was {border!r}")
    for axis, (n, m) in enumerate(zip(extents, mask, strict=True)):
        if border == "reflect" and n and m // 2 > n - 1:
            raise ValueError(
                f"mask must have at most {2 * n - 1} elements along axis {axis} for border='reflect', since x has {n}, "
                f"had {m}"
            )
    return BORDERS[border]


def mask_of(mask: typing.Any, ndim: int, stream: typing.Any, name: str = "mask") -> typing.Any:
    """The mask as a device array. Raises TypeError or ValueError, also for a mask without elements."""
    mask = device.as_input(name, mask, dtypes=np.float32, ndim=ndim, stream=stream)
    if not mask.size:
        raise ValueError(f"{name} must have at least one element, had shape {mask.shape}")
    return mask


def values_of(p: Problem) -> np.ndarray:
    """The values of the mask on the host. If the caller's mask is on the device, this waits for the stream."""
    if isinstance(p.given_mask, np.ndarray):
        return p.given_mask
    values = p.mask.copy_to_host(stream=p.stream)
    if hasattr(p.stream, "synchronize"):
        p.stream.synchronize()
    return values


def refuse_large(mask: tuple[int, ...], elements: int, instead: str) -> None:
    """Raise ValueError if the shared memory of a block does not hold that many float32."""
    if 4 * elements > SHARED_LIMIT:
        sizes = " x ".join(map(str, mask))
        raise ValueError(
            f"mask of {sizes} is too large for this rung: with what it sees of x it takes {4 * elements} bytes of "
            f"shared memory, and a block has {SHARED_LIMIT}; use {instead}"
        )


def factors(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """``(column, row)`` whose outer product is ``mask`` within 2^-22 of each element, or None if there are none.

    >>> factors(np.float32([[1, 2], [2, 4]]))
    (array([0.5, 1. ], dtype=float32), array([2., 4.], dtype=float32))
    """
    i, j = np.unravel_index(np.argmax(abs(mask)), mask.shape)
    if not np.isfinite(mask).all() or not mask[i, j]:
        return None
    wide = mask.astype(np.float64)
    column, row = (wide[:, j] / wide[i, j]).astype(np.float32), mask[i]
    fits = abs(np.outer(column.astype(np.float64), row) - wide) <= 2.0**-22 * abs(wide)
    return (column, row) if fits.all() else None


# ---------------------------------------------------------------------------------------------------------- in kernels


@cuda.jit(device=True)
def source(i, n, border):
    """Which of n elements along an axis stands at place i, also outside the image. -1 if there is a 0."""
    if border == EDGE:
        return min(max(i, 0), n - 1)
    if border == REFLECT:  # the outermost element is not repeated: -1 is 1, and n is n - 2
        return max(n - 1 - abs(n - 1 - abs(i)), 0)
    return i if i >= 0 and i < n else -1


@cuda.jit(device=True)
def element(x, row, column, border):
    """x[row, column], or what the border puts there."""
    row, column = source(row, x.shape[0], border), source(column, x.shape[1], border)
    # The load is made in any case, since with a branch no load could begin before the last one has ended. The index is
    # unsigned, so that the compiler need not handle negative ones, which count from the end.
    value = x[np.uint64(max(row, 0)), np.uint64(max(column, 0))]
    return value if min(row, column) >= 0 else np.float32(0)


@cuda.jit(device=True)
def corner(x, tall, wide):
    """Row and column of the first of the tall x wide outputs of this block. Blocks are numbered along the rows of x."""
    across = np.uint32((x.shape[1] + wide - 1) // wide)
    block = np.uint32(cuda.blockIdx.x)
    down = np.uint32(block // across)
    return np.int64(down) * tall, np.int64(block - down * across) * wide


def blocks_of(shape: tuple[int, ...], tall: int, wide: int) -> int:
    """How many blocks cover an image if each computes tall x wide outputs."""
    return blocks(shape[0], tall) * blocks(shape[1], wide)


def block_for(shape: tuple[int, int], side: int) -> tuple[int, int]:
    """Rows and columns of a block: side x side, or about as many threads in the shape of a thinner image."""
    tall, wide = (1 << (n - 1).bit_length() if n else 1 for n in shape)  # rounded up to a power of two
    down = min(tall, side * side // min(wide, side))
    across = min(wide, side * side // min(down, side))
    return min(down, side * side // across), across


@cuda.jit(device=True)
def thread_number():
    # In 32 bits: a division of 64 takes a hundred instructions, and Numba makes 64 bits of everything else.
    return np.uint32(cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x)


@cuda.jit(device=True)
def pick(x, row, column, border, inside):
    return x[np.uint64(row), np.uint64(column)] if inside else element(x, row, column, border)


@cuda.jit(device=True)
def fill(x, tile, first, top, left, tall, wide, border, inside, several):
    step = np.int64(cuda.blockDim.y)
    z = np.int64(cuda.threadIdx.x)
    while z < wide:
        y, row, column = np.int64(cuda.threadIdx.y), top + cuda.threadIdx.y, left + z
        at, leap = np.uint32(first + y * wide + z), np.uint32(step * wide)
        while several and y + 3 * step < tall:
            a, b = pick(x, row, column, border, inside), pick(x, row + step, column, border, inside)
            c = pick(x, row + 2 * step, column, border, inside)
            d = pick(x, row + 3 * step, column, border, inside)
            tile[at], tile[np.uint32(at + leap)] = a, b
            tile[np.uint32(at + 2 * leap)], tile[np.uint32(at + 3 * leap)] = c, d
            y, row, at = y + 4 * step, row + 4 * step, np.uint32(at + 4 * leap)
        while y < tall:
            tile[at] = pick(x, row, column, border, inside)
            y, row, at = y + step, row + step, np.uint32(at + leap)
        z += cuda.blockDim.x


@cuda.jit(device=True)
def load_patch(x, tile, first, top, left, tall, wide, border, several):
    """Fill tile[first :] with tall x wide elements of x from (top, left) on, row after row, by all threads of a block.

    If all of them lie inside x, there are no tests for the border. With ``several`` each thread has four loads under
    way at a time. That takes more registers, and pays for blocks of few threads.
    """
    if top >= 0 and left >= 0 and top + tall <= x.shape[0] and left + wide <= x.shape[1]:
        fill(x, tile, first, top, left, tall, wide, border, True, several)  # compiled for this case
    else:
        fill(x, tile, first, top, left, tall, wide, border, False, several)


@cuda.jit(device=True)
def load_flat(x, tile, first):
    """Fill tile[first :] with all elements of a matrix, row after row, by all threads of a block."""
    i = thread_number()
    while i < x.size:
        row = np.uint32(i // np.uint32(x.shape[1]))
        tile[np.uint32(first + i)] = x[row, np.uint32(i - row * x.shape[1])]
        i = np.uint32(i + cuda.blockDim.x * cuda.blockDim.y)


@cuda.jit(device=True)
def load_vector(x, tile, first):
    """The same for a vector."""
    i = thread_number()
    while i < x.size:
        tile[np.uint32(first + i)] = x[i]
        i = np.uint32(i + cuda.blockDim.x * cuda.blockDim.y)


@cuda.jit(device=True)
def load_vectors(x, tile, top, left, tall, wide):
    """Fill the tile from a part of x that lies inside, by 128-bit loads, four of them under way at a time."""
    across, thread = np.uint32(wide // 4), thread_number()
    y = np.int64(thread // across)
    z = np.int64(thread - y * across)
    # Rows that the threads load at a time. If the threads are no whole number of rows, the last ones do nothing.
    step = np.int64(np.uint32(cuda.blockDim.x * cuda.blockDim.y) // across)
    at, to = (top + y) * x.shape[1] + left + 4 * z, y * wide + 4 * z
    jump, leap = step * x.shape[1], step * wide
    if y < step:
        while y + 3 * step < tall:
            a, b, c, d = load128(x, at), load128(x, at + jump), load128(x, at + 2 * jump), load128(x, at + 3 * jump)
            store128(tile, to, a)
            store128(tile, to + leap, b)
            store128(tile, to + 2 * leap, c)
            store128(tile, to + 3 * leap, d)
            y, at, to = y + 4 * step, at + 4 * jump, to + 4 * leap
        while y < tall:
            store128(tile, to, load128(x, at))
            y, at, to = y + step, at + jump, to + leap


@cuda.jit(device=True)
def load_weights(mask, shared, first, r0, s0, rows, columns, lead, pitch):
    """Put rows x columns elements of the mask from (r0, s0) on into shared[first :], ``lead`` places to the right."""
    i = thread_number()
    while i < rows * pitch:
        r = np.uint32(i // np.uint32(pitch))
        s = np.int64(i - r * pitch) - lead
        shared[first + i] = mask[r0 + r, s0 + s] if s >= 0 and s < columns else np.float32(0)
        i = np.uint32(i + cuda.blockDim.x * cuda.blockDim.y)
