"""Exercises of notebooks/66_implicit_gemm.ipynb on implicit GEMM: a table of places, and a gathered tile."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads per block, for the table
T = 16  # side of the tile, and of the block, for the row
ZERO = np.float32(0)


# ------------------------------------------------------------------------------------------- convolution_implicit/table


def _table(table: np.ndarray, window: tuple, dilation: tuple, image: tuple) -> np.ndarray:
    c, r, s = np.unravel_index(np.arange(len(table)), (len(table) // (window[0] * window[1]), *window))
    down, right = r * dilation[0], s * dilation[1]
    return np.stack([c * image[0] * image[1] + down * image[1] + right, down, right], axis=1).astype(np.int32)


def _table_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for channels, window, distances in (
        (1, (1, 2), (1, 1)),
        (3, (3, 2), (1, 1)),
        (2, (2, 5), (3, 2)),
        (8, (4, 2), (3, 1)),  # as many as a block has threads
        (int(rng.integers(60, 80)), (3, 5), (2, 3)),
    ):
        # No two extents of an image are alike, so that none can stand for the other. Every window fits into it.
        dilation = tuple(rng.permutation(distances).tolist())
        image = tuple(rng.choice(np.arange(16, 41), 2, replace=False).tolist())
        terms = channels * window[0] * window[1]
        args = unwritten((terms, 3), np.int32), window, dilation, image
        many = f"{channels} channel{'s' * (channels > 1)}"
        name = f"{many}, a window of {window[0]} x {window[1]}, dilation {dilation}, images {image}"
        cases.append(Case(name, args, blocks(terms, BLOCK), BLOCK, {0: _table(*args)}))
    return cases


@cuda.jit
def table_answer(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        c, r, s = k // (window[0] * window[1]), k // window[1] % window[0], k % window[1]
        down, right = r * dilation[0], s * dilation[1]
        table[k, 0] = (c * image[0] + down) * image[1] + right
        table[k, 1] = down
        table[k, 2] = right


def _columns_first(table, window, dilation, image) -> dict[int, np.ndarray]:
    c, s, r = np.unravel_index(np.arange(len(table)), (len(table) // (window[0] * window[1]), *window[::-1]))
    down, right = r * dilation[0], s * dilation[1]
    return {0: np.stack([c * image[0] * image[1] + down * image[1] + right, down, right], axis=1)}


def _extents_exchanged(table, window, dilation, image) -> dict[int, np.ndarray]:
    return {0: _table(table, window[::-1], dilation, image)}


def _without_dilation(table, window, dilation, image) -> dict[int, np.ndarray]:
    return {0: _table(table, window, (1, 1), image)}


def _without_dilation_in_memory(table, window, dilation, image) -> dict[int, np.ndarray]:
    near, far = _table(table, window, (1, 1), image), _table(table, window, dilation, image)
    return {0: np.concatenate([near[:, :1], far[:, 1:]], axis=1)}


# --------------------------------------------------------------------------------------------- convolution_implicit/row


def _row(x: np.ndarray, w: np.ndarray, padding: int) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2], axis=1)  # c, q, s
    return np.einsum("kcs,cqs->kq", w.astype(np.float64), windows)


def _row_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for filters, channels, width, kernel, padding in (
        (1, 1, 3, 3, 1),
        (3, 2, 9, 1, 0),
        (16, 4, 16, 5, 2),
        (5, 7, 20, 3, 1),
        (18, 3, 40, 4, 3),
        (40, 16, 70, 3, 1),
    ):
        x = rng.standard_normal((channels, width), dtype=np.float32)
        w = rng.standard_normal((filters, channels, kernel), dtype=np.float32)
        out = unwritten((filters, width + 2 * padding - kernel + 1), np.float32)
        # A sum of n products is off by at most (n + 1) half units in the last place of the terms' sizes.
        allowed = (channels * kernel + 1) * 2.0**-24 * _row(abs(x), abs(w), padding) + 2.0**-149
        grid = blocks(out.shape[1], T), blocks(filters, T)
        many = f"{filters} filter{'s' * (filters > 1)}"
        name = f"{many} of {channels} x {kernel}, {width} columns, padding {padding}"
        expected = {3: _row(x, w, padding)}
        cases.append(Case(name, (x, w, padding, out), grid, (T, T), expected, {3: allowed}))
    return cases


@cuda.jit
def row_answer(x, w, padding, out):
    w_tile, x_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    f, q = cuda.blockIdx.y * T + ty, cuda.blockIdx.x * T + tx
    channels, kernel = w.shape[1], w.shape[2]
    total = ZERO
    for k0 in range(0, channels * kernel, T):
        k = k0 + tx
        w_tile[ty, tx] = w[f, k // kernel, k % kernel] if f < w.shape[0] and k < channels * kernel else ZERO
        k = k0 + ty
        c, column = k // kernel, q + k % kernel - padding
        x_tile[ty, tx] = x[c, column] if c < channels and 0 <= column < x.shape[1] else ZERO
        cuda.syncthreads()
        for i in range(T):
            total += w_tile[ty, i] * x_tile[i, tx]
        cuda.syncthreads()
    if f < out.shape[0] and q < out.shape[1]:
        out[f, q] = total


def _unpadded(x, w, padding, out) -> dict[int, np.ndarray]:
    wide = np.pad(x, ((0, 0), (0, 2 * padding)))
    return {3: _row(wide, w, 0)}


def _channels_fastest(x, w, padding, out) -> dict[int, np.ndarray]:
    """Product k takes x[k % C, q + k // C - padding], and the weight of (k // S, k % S)."""
    filters, channels, kernel = w.shape
    return {3: _row(x, w.reshape(filters, kernel, channels).swapaxes(1, 2), padding)}


EXERCISES = (
    Exercise(
        "implicit/table",
        task="Row k of the columns matrix is element (c, r, s) of the window: k = (c R + r) S + s. Write where it "
        "lies, seen from the window's corner: table[k, 1] = how many rows down, table[k, 2] = how many columns to the "
        "right, table[k, 0] = how far in memory, in channels of (rows, columns) = image. window is (R, S) and dilation "
        "the distances between the window's rows and columns. table is int32. "
        f"The launch has {BLOCK} threads per block, one for each k.",
        parameters="table, window, dilation, image",
        cases=_table_cases,
        answer=table_answer,
        hints=(
            "s = k % S. What is left, k // S, counts rows of the window: r is that modulo R, c that divided by R.",
            "The dilation belongs to the rows down and the columns right; the distance in memory is made of those.",
        ),
        budget=lambda case: {"flops_f64": (0, "k / n is a float64, even of whole numbers: indices take k // n.")},
        traps=(
            Trap("columns before rows", "s, the place in a row, runs fastest, then r, then c.", _columns_first),
            Trap("extents exchanged", "A row of the window has S = window[1] elements, not R.", _extents_exchanged),
            Trap("dilation forgotten", "The window's rows lie dilation[0] rows of the image apart.", _without_dilation),
            Trap(
                "dilation forgotten in memory",
                "The distance in memory, table[k, 0], is made of what table[k, 1] and table[k, 2] say: with dilation.",
                _without_dilation_in_memory,
            ),
        ),
    ),
    Exercise(
        "implicit/row",
        task="Convolve one row by implicit GEMM. x has shape (C, W), w (K, C, S), and out[f, q] is the sum over c and "
        "s of w[f, c, s] x[c, q + s - padding], with 0 outside the row. A block of 16 x 16 threads computes a tile of "
        "16 filters x 16 places (blockIdx.y and .x), in steps of 16 products: gather the tile of the columns from x "
        "into shared memory, load that of the weights, multiply. All arrays are float32.",
        parameters="x, w, padding, out",
        cases=_row_cases,
        answer=row_answer,
        hints=(
            "It is the tiled matrix product with rows k = (c, s). Only the load of the second tile is new.",
            "Row k of column q is x[k // S, q + k % S - padding], or 0 if there is no such element.",
            "A comparison for each end: the column can lie left of the row, and right of it.",
        ),
        traps=(
            Trap("padding forgotten", "The first place begins padding columns left of the row.", _unpadded),
            Trap(
                "channels fastest",
                "The weights lie as k = c S + s: c is k // S and s is k % S, for x too.",
                _channels_fastest,
            ),
        ),
    ),
)
