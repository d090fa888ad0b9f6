"""Exercises of notebooks/49_mri.ipynb: what a scanner would measure, and samples laid on a grid."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
EPS = float(np.finfo(np.float32).eps)


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# --------------------------------------------------------------------------------------------------------- mri/forward


def _measured(k, image, places, out, sign: int = -1, turn: float = 2 * np.pi) -> dict[int, np.ndarray]:
    angles = sign * turn * (k.astype(np.float64) @ places.astype(np.float64).T)
    return {3: np.stack([np.cos(angles) @ image, np.sin(angles) @ image], axis=1)}


def _forward_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for m, n in ((1, 1), (1, 7), (5, 40), (BLOCK, 20), (BLOCK + 1, 33), (300, 25)):
        # Frequencies and places in eighths: few turns, so that sines are right however they are made.
        k = (rng.integers(-15, 16, (m, 2)) / 8).astype(np.float32)
        places = (rng.integers(1, 16, (n, 2)) / 8).astype(np.float32)
        if n == 1:  # sine, cosine, and both with x and y exchanged: four numbers that nobody confuses
            k, places = np.float32([[0.375, 1.125]]), np.float32([[0.125, 0.25]])
        image = rng.integers(1, 9, n).astype(np.float32)
        args = k, image, places, unwritten((m, 2), np.float32)
        tolerance = (n + 200) * EPS * image.sum()
        name = f"{m} sample{'s' * (m > 1)} and {n} voxel{'s' * (n > 1)}"
        cases.append(Case(name, args, _blocks(m), BLOCK, _measured(*args), {3: float(tolerance)}))
    return cases


@cuda.jit
def forward_answer(k, image, places, out):
    m = cuda.grid(1)
    if m < k.shape[0]:
        kx, ky = k[m, 0], k[m, 1]
        real, imaginary = np.float32(0), np.float32(0)
        for n in range(image.size):
            angle = np.float32(2 * np.pi) * (kx * places[n, 0] + ky * places[n, 1])
            real += image[n] * cuda.libdevice.cosf(angle)
            imaginary -= image[n] * cuda.libdevice.sinf(angle)
        out[m, 0], out[m, 1] = real, imaginary


# ------------------------------------------------------------------------------------------------------------ mri/grid


def _laid(samples, values, grid, nearest=None, wrap: bool = True) -> dict[int, np.ndarray]:
    """What the grid holds then. ``nearest`` says how a place is rounded, if a sample goes to one cell."""
    found, (rows, columns) = grid.astype(np.float64), grid.shape[:2]
    for (x, y), value in zip(samples.astype(np.float64), values.astype(np.float64), strict=True):
        if nearest:
            x, y = nearest(x), nearest(y)  # whole, so three of four weights are 0
        i, j = int(x), int(y)
        for right, below in ((0, 0), (1, 0), (0, 1), (1, 1)):
            weight = (x - i if right else 1 - (x - i)) * (y - j if below else 1 - (y - j))
            if wrap or (i + right < columns and j + below < rows):
                found[(j + below) % rows, (i + right) % columns] += weight * value
    return {2: found}


def _grid_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for m, rows, columns in ((1, 2, 3), (4, 1, 5), (BLOCK, 3, 4), (300, 5, 7), (500, 8, 3)):
        # In odd eighths, and whole values: no sum is rounded, and no sample lies half way between two cells.
        samples = ((2 * rng.integers(0, 4 * np.array([columns, rows]), (m, 2)) + 1) / 8).astype(np.float32)
        # Beyond the last cells on both axes; the four weights differ, and no exchange of two hides.
        samples[0] = columns - 0.625, rows - 0.125
        values = rng.integers(1, 9, (m, 2)).astype(np.float32)
        args = samples, values, np.zeros((rows, columns, 2), np.float32)
        name = f"{m} sample{'s' * (m > 1)} and {rows} x {columns} cells"
        cases.append(Case(name, args, _blocks(m), BLOCK, _laid(*args)))
    return cases


@cuda.jit
def grid_answer(samples, values, grid):
    m = cuda.grid(1)
    if m < samples.shape[0]:
        i, j = np.int32(samples[m, 0]), np.int32(samples[m, 1])
        x, y = samples[m, 0] - np.float32(i), samples[m, 1] - np.float32(j)
        for below in range(2):
            for right in range(2):
                weight = (x if right == 1 else np.float32(1) - x) * (y if below == 1 else np.float32(1) - y)
                row, column = (j + below) % grid.shape[0], (i + right) % grid.shape[1]
                cuda.atomic.add(grid, (row, column, 0), weight * values[m, 0])
                cuda.atomic.add(grid, (row, column, 1), weight * values[m, 1])


EXERCISES = (
    Exercise(
        "mri/forward",
        task="Compute what a scanner measures of a flat body: for each sample the sum over all voxels of image[n] * "
        "exp(-2 pi i (kx x + ky y)). k has kx and ky of each sample, and places x and y of each voxel. Write the real "
        "part to out[m, 0], and the imaginary part to out[m, 1]. All is float32. A thread takes a sample; the launch "
        f"has {BLOCK} threads a block.",
        parameters="k, image, places, out",
        cases=_forward_cases,
        answer=forward_answer,
        hints=(
            "exp(-i a) is cos(a) - i sin(a).",
            "This is the kernel of the chapter with samples and voxels exchanged, and the other sign.",
            "k . x is in turns, and a turn is 2 pi: np.float32(2 * np.pi). Each sample's sums stay in registers.",
        ),
        traps=(
            Trap("wave backwards", "The scanner's wave has a minus.", lambda *args: _measured(*args, sign=1)),
            Trap(
                "turns taken for radians", "A whole turn is 2 pi, and not 1.", lambda *args: _measured(*args, turn=1.0)
            ),
        ),
    ),
    Exercise(
        "mri/grid",
        task="Lay samples on a grid, as it is done before an FFT. A sample at (x, y), in cells, adds its value to four "
        "cells: those of columns i = int(x) and i + 1, and of rows j = int(y) and j + 1. The weight is (1 - a) for i "
        "and a for i + 1, where a = x - i, times the same for rows. Behind the last column comes the first again, and "
        "likewise with rows. values has two numbers for each sample, and grid two for each cell, 0 at the beginning. A "
        f"thread takes a sample; the launch has {BLOCK} threads a block.",
        parameters="samples, values, grid",
        cases=_grid_cases,
        answer=grid_answer,
        hints=(
            "Samples of different threads may meet in a cell.",
            "(i + 1) % grid.shape[1] is the column behind i, wherever i is.",
            "cuda.atomic.add(grid, (row, column, 0), weight * values[m, 0]), for four cells and two numbers.",
        ),
        traps=(
            Trap(
                "nearest cell only", "The value is shared by four cells.", lambda *args: _laid(*args, nearest=np.floor)
            ),
            Trap(
                "nearest cell only", "The value is shared by four cells.", lambda *args: _laid(*args, nearest=np.rint)
            ),
            Trap(
                "nothing behind the last cell",
                "What would go behind the last column or row goes to the first one.",
                lambda *args: _laid(*args, wrap=False),
            ),
        ),
    ),
)
