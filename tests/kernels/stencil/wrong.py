"""Wrong versions of `stencil` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.stencil import ladder as room
from tests.support.wrong import WrongRung

SIDE = 16


def stencil(kernel, edit=None):
    """``kernel(x, out, c, order)`` with a thread a cell of a plane; the right rung in space."""

    def stepped(x, coefficients, steps=1):
        p = room.arguments(x, coefficients, steps)
        if p.space or p.done:
            return room.basic.run(p)
        c = np.zeros(5, np.float32)
        c[: p.order + 1] = p.c
        grid = blocks(p.shape[2], SIDE), blocks(p.shape[0], SIDE)

        def launch(source, target, _):
            kernel[grid, (SIDE, SIDE)](source, target, cuda.to_device(c), p.order)

        if edit is None:
            room.make_trips(p, launch)
        else:
            edit(p, launch)
        return p.result

    stepped.__name__ = getattr(kernel, "py_func", kernel).__name__ if edit is None else edit.__name__
    return stepped


@cuda.jit
def right(x, out, c, order):
    w, z = cuda.grid(2)
    if z < x.shape[0] and w < x.shape[2]:
        total = x[z, 0, w]
        if not room.fixed(x, z, 0, w, order, False):
            total = c[0] * total
            for d in range(1, order + 1):
                total += c[d] * (x[z - d, 0, w] + x[z + d, 0, w] + (x[z, 0, w - d] + x[z, 0, w + d]))
        out[z, 0, w] = total


@cuda.jit
def border_not_copied(x, out, c, order):
    w, z = cuda.grid(2)
    if z < x.shape[0] and w < x.shape[2] and not room.fixed(x, z, 0, w, order, False):
        total = c[0] * x[z, 0, w]
        for d in range(1, order + 1):
            total += c[d] * (x[z - d, 0, w] + x[z + d, 0, w] + (x[z, 0, w - d] + x[z, 0, w + d]))
        out[z, 0, w] = total


@cuda.jit
def no_border(x, out, c, order):
    w, z = cuda.grid(2)
    if z < x.shape[0] and w < x.shape[2]:
        total = c[0] * x[z, 0, w]
        for d in range(1, order + 1):
            total += c[d] * (x[z - d, 0, w] + x[z + d, 0, w] + (x[z, 0, w - d] + x[z, 0, w + d]))
        out[z, 0, w] = total


@cuda.jit
def border_of_one(x, out, c, order):
    """The border is one cell wide, whatever the order: the neighbours of the next cells are clamped."""
    w, z = cuda.grid(2)
    h, n = x.shape[0], x.shape[2]
    if z < h and w < n:
        total = x[z, 0, w]
        if not room.fixed(x, z, 0, w, 1, False):
            total = c[0] * total
            for d in range(1, order + 1):
                near = x[max(z - d, 0), 0, w] + x[min(z + d, h - 1), 0, w]
                total += c[d] * (near + (x[z, 0, max(w - d, 0)] + x[z, 0, min(w + d, n - 1)]))
        out[z, 0, w] = total


@cuda.jit
def no_corner_of_the_tile(x, out, c, order):
    """A tile without a halo: neighbours beyond it are taken for 0."""
    tile = cuda.shared.array((SIDE, SIDE), np.float32)
    w, z = cuda.grid(2)
    b, a = cuda.threadIdx.x, cuda.threadIdx.y
    inside = z < x.shape[0] and w < x.shape[2]
    tile[a, b] = x[z, 0, w] if inside else np.float32(0)
    cuda.syncthreads()
    if inside:
        total = tile[a, b]
        if not room.fixed(x, z, 0, w, order, False):
            total = c[0] * total
            for d in range(1, order + 1):
                near = np.float32(0)
                near += tile[a - d, b] if a >= d else np.float32(0)
                near += tile[a + d, b] if a + d < SIDE else np.float32(0)
                near += tile[a, b - d] if b >= d else np.float32(0)
                near += tile[a, b + d] if b + d < SIDE else np.float32(0)
                total += c[d] * near
        out[z, 0, w] = total


@cuda.jit
def no_barrier(x, out, c, order):
    """Neighbours of a row come from shared memory, which no barrier has made whole."""
    tile = cuda.shared.array((SIDE, SIDE), np.float32)
    w, z = cuda.grid(2)
    b, a = cuda.threadIdx.x, cuda.threadIdx.y
    if z < x.shape[0] and w < x.shape[2]:
        tile[a, b] = x[z, 0, w]
        total = tile[a, b]
        if not room.fixed(x, z, 0, w, order, False):
            total = c[0] * total
            for d in range(1, order + 1):
                near = tile[a - d, b] if a >= d else x[z - d, 0, w]
                near += x[z + d, 0, w]
                total += c[d] * (near + (x[z, 0, w - d] + x[z, 0, w + d]))
        out[z, 0, w] = total


def one_step_only(p, launch):
    launch(p.x.reshape(p.shape), p.result.reshape(p.shape), 1)


def in_place(p, launch):
    """The second step reads and writes one array: some neighbours are of this step, and some of the last one."""
    out = p.result.reshape(p.shape)
    launch(p.x.reshape(p.shape), out, 1)
    for _ in range(p.steps - 1):
        launch(out, out, 1)


RUNGS = (
    WrongRung(stencil(border_not_copied), "wrong result"),
    WrongRung(stencil(no_border), "out of bounds"),
    WrongRung(stencil(border_of_one), "wrong result"),
    WrongRung(stencil(no_corner_of_the_tile), "wrong result"),
    WrongRung(stencil(no_barrier), "race"),
    WrongRung(stencil(right, one_step_only), "wrong result"),
    WrongRung(stencil(right, in_place), "race"),
)
RIGHT = (stencil(right),)
