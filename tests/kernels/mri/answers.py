"""Answers to the exercises of chapter 49: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- forward


def forward(sign=1, turn=2 * math.pi, guard=True, whole=True, last=0, x=0, exchanged=False):
    """The transform with another sign or turn, or with what else is wrong."""
    sign, turn = np.float32(sign), np.float32(turn)

    @cuda.jit
    def kernel(k, image, places, out):
        m = cuda.grid(1)
        if not guard or m < k.shape[0]:
            real, imaginary = np.float32(0), np.float32(0)
            kx, ky = k[m, 0], k[m, 1]
            for n in range(image.size - last):
                turns = kx * places[n, x] + ky * places[n, 1 - x]
                real += image[n] * cuda.libdevice.cosf(turn * turns)
                imaginary -= sign * image[n] * cuda.libdevice.sinf(turn * turns)
            if exchanged:
                real, imaginary = -imaginary, -real
            out[m, 0] = real
            if whole:
                out[m, 1] = imaginary

    return kernel


@right("mri/forward")
@cuda.jit
def forward_by_half_turns(k, image, places, out):
    """Sines of half turns, which need no constant."""
    m = cuda.grid(1)
    if m < k.shape[0]:
        real, imaginary = np.float32(0), np.float32(0)
        kx, ky = k[m, 0], k[m, 1]
        for n in range(image.size):
            halves = np.float32(2) * (kx * places[n, 0] + ky * places[n, 1])
            real += image[n] * cuda.libdevice.cospif(halves)
            imaginary -= image[n] * cuda.libdevice.sinpif(halves)
        out[m, 0], out[m, 1] = real, imaginary


wrong("mri/forward", "wave backwards")(forward(sign=-1))
wrong("mri/forward", "turns taken for radians")(forward(turn=1))
wrong("mri/forward", "missing guard")(forward(guard=False))
wrong("mri/forward", "output not written")(forward(whole=False))
wrong("mri/forward", "wrong result")(forward(last=1))
wrong("mri/forward", "wrong result")(forward(x=1))
wrong("mri/forward", "wrong result")(forward(exchanged=True))


@wrong("mri/forward", "accidental float64")
@cuda.jit
def forward_in_float64(k, image, places, out):
    m = cuda.grid(1)
    if m < k.shape[0]:
        real, imaginary = 0.0, 0.0
        kx, ky = k[m, 0], k[m, 1]
        for n in range(image.size):
            angle = 2 * math.pi * (kx * places[n, 0] + ky * places[n, 1])
            real += image[n] * math.cos(angle)
            imaginary -= image[n] * math.sin(angle)
        out[m, 0], out[m, 1] = real, imaginary


# -- grid


def grid(atomic=True, guard=True, nearest=False, wrap=True, exchanged=False, turned=False):
    """Samples laid on a grid without an atomic, or with what else is wrong."""

    @cuda.jit
    def kernel(samples, values, grid):
        m = cuda.grid(1)
        if not guard or m < samples.shape[0]:
            x, y = samples[m, 0], samples[m, 1]
            i, j = np.int32(math.floor(x)), np.int32(math.floor(y))
            x, y = x - np.float32(i), y - np.float32(j)
            if nearest:
                x = y = np.float32(0)
            if exchanged:
                x, y = y, x
            if turned:
                x, y = np.float32(1) - x, np.float32(1) - y
            for cell in range(4):
                right, below = cell % 2, cell // 2
                weight = (x if right else np.float32(1) - x) * (y if below else np.float32(1) - y)
                row, column = j + below, i + right
                if wrap or (row < grid.shape[0] and column < grid.shape[1]):
                    row, column = row % grid.shape[0], column % grid.shape[1]
                    for part in range(2):
                        if atomic:
                            cuda.atomic.add(grid, (row, column, part), weight * values[m, part])
                        else:
                            grid[row, column, part] += weight * values[m, part]

    return kernel


right("mri/grid")(grid())
wrong("mri/grid", "missing atomic")(grid(atomic=False))
wrong("mri/grid", "missing guard")(grid(guard=False))
wrong("mri/grid", "nearest cell only")(grid(nearest=True))
wrong("mri/grid", "nothing behind the last cell")(grid(wrap=False))
wrong("mri/grid", "wrong result")(grid(exchanged=True))
wrong("mri/grid", "wrong result")(grid(turned=True))


def grid_by_rounding(half):
    """As the chapter does it: to the nearest cell, by `rint` or by adding a half."""

    @cuda.jit
    def kernel(samples, values, grid):
        m = cuda.grid(1)
        if m < samples.shape[0]:
            x, y = samples[m, 0], samples[m, 1]
            if half:
                i, j = np.int32(x + np.float32(0.5)), np.int32(y + np.float32(0.5))
            else:
                i, j = np.int32(cuda.libdevice.rintf(x)), np.int32(cuda.libdevice.rintf(y))
            row, column = j % grid.shape[0], i % grid.shape[1]
            cuda.atomic.add(grid, (row, column, 0), values[m, 0])
            cuda.atomic.add(grid, (row, column, 1), values[m, 1])

    return kernel


wrong("mri/grid", "nearest cell only")(grid_by_rounding(half=False))
wrong("mri/grid", "nearest cell only")(grid_by_rounding(half=True))


@wrong("mri/grid", "index out of bounds")
@cuda.jit
def grid_beyond_the_last_cell(samples, values, grid):
    m = cuda.grid(1)
    if m < samples.shape[0]:
        i, j = np.int32(samples[m, 0]), np.int32(samples[m, 1])
        x, y = samples[m, 0] - np.float32(i), samples[m, 1] - np.float32(j)
        for below in range(2):
            for right in range(2):
                weight = (x if right == 1 else np.float32(1) - x) * (y if below == 1 else np.float32(1) - y)
                cuda.atomic.add(grid, (j + below, i + right, 0), weight * values[m, 0])
                cuda.atomic.add(grid, (j + below, i + right, 1), weight * values[m, 1])
