"""Wrong versions of `rotation` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.images import rotation as room
from tests.support.wrong import WrongRung


def version(kernel):
    """``kernel(x, out, cos, sin)`` as a rung is called, with a thread for each pixel."""

    def rotation(x, angle):
        p = room.arguments(x, angle)
        if not p.done:
            h, w = p.x.shape
            kernel[(-(-w // 32), -(-h // 8)), (32, 8)](p.x, p.result, p.cos, p.sin)
        return p.result

    rotation.__name__ = kernel.py_func.__name__
    return rotation


@cuda.jit(device=True)
def at_once(x, down, right):
    """Four pixels, none of which is tested."""
    i, j = np.int32(down >> 32), np.int32(right >> 32)
    upper = np.int32(x[i, j]), np.int32(x[i, j + 1])
    lower = np.int32(x[i + 1, j]), np.int32(x[i + 1, j + 1])
    return room.mean(down, right, upper[0], upper[1], lower[0], lower[1])


@cuda.jit
def right(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, sin)
        out[row, column] = room.sampled(x, down, beside)


@cuda.jit
def no_test_of_places(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, sin)
        out[row, column] = at_once(x, down, beside)


@cuda.jit
def turns_the_other_way(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, -sin)
        out[row, column] = room.sampled(x, down, beside)


@cuda.jit
def about_the_corner(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = 2 * row * cos + 2 * column * sin, 2 * column * cos - 2 * row * sin
        out[row, column] = room.sampled(x, down, beside)


@cuda.jit
def the_nearest_alone(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, sin)
        half = np.int64(2**31)
        out[row, column] = room.pixel(x, np.int32((down + half) >> 32), np.int32((beside + half) >> 32))


@cuda.jit
def cut_off(x, out, cos, sin):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, sin)
        i, j = np.int32(down >> 32), np.int32(beside >> 32)
        v, u = np.int32((down >> 24) & 255), np.int32((beside >> 24) & 255)
        upper = (256 - u) * room.pixel(x, i, j) + u * room.pixel(x, i, j + 1)
        lower = (256 - u) * room.pixel(x, i + 1, j) + u * room.pixel(x, i + 1, j + 1)
        out[row, column] = ((256 - v) * upper + v * lower) >> 16


@cuda.jit
def from_here_to_there(x, out, cos, sin):
    """Each pixel of the image is stored where it goes to: some places get none, and others several."""
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, -sin)
        half = np.int64(2**31)
        i, j = np.int32((down + half) >> 32), np.int32((beside + half) >> 32)
        if 0 <= i < out.shape[0] and 0 <= j < out.shape[1]:
            out[i, j] = x[row, column]


@cuda.jit
def one_test_for_four(x, out, cos, sin):
    """The fourth pixel may be outside where the first one is not."""
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        down, beside = room.place(row, column, out.shape[0], out.shape[1], cos, sin)
        i, j = down >> 32, beside >> 32
        if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
            out[row, column] = at_once(x, down, beside)
        else:
            out[row, column] = 0


@cuda.jit
def boxes_without_a_barrier(flat, double, out, h, words, walk):
    """A pair may be read before the thread that fetches it has put it there."""
    box, pairs = cuda.shared.array(0, np.uint16, alignment=16), cuda.shared.array(0, np.uint32, alignment=16)
    down, right = room.place(0, 0, h, 4 * words, walk.cos // 2, walk.sin // 2)
    top, first = np.int32((down + walk.highest) >> 32), np.int32(2 * np.int32((right + walk.leftmost) >> 35))
    room.fill_box(pairs, flat, double, h, words, top, first, np.int32(((down + walk.lowest) >> 32) - top + 2))
    down, right = down - (np.int64(top) << 32), right - (np.int64(first) << 34)
    for i in range(cuda.threadIdx.x, out.size, room.THREADS):
        row, column = i // (4 * words), i % (4 * words)
        at_down = down + row * walk.cos + column * walk.sin
        out[i] = room.pixel_in(box, at_down << 8, right + column * walk.cos - row * walk.sin) >> 16


def in_a_box_without_a_barrier(x, angle):
    """An image of a single tile."""
    p = room.arguments(x, angle)
    h, w = x.shape
    if p.done or w % 16 or max(h, w) > room.SIDE:
        return RIGHT(x, angle)
    walk = room.walk_of(h, w, int(p.cos), int(p.sin))
    flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1)
    double, sizes = flat.view(np.uint64), (np.int32(h), np.int32(w // 4))
    boxes_without_a_barrier[1, room.THREADS, 0, room.SHARED](flat, double, out, *sizes, walk)
    return p.result


RIGHT = version(right)
RUNGS = (
    WrongRung(version(no_test_of_places), "out of bounds"),
    WrongRung(version(turns_the_other_way), "wrong result"),
    WrongRung(version(about_the_corner), "wrong result"),
    WrongRung(version(the_nearest_alone), "wrong result"),
    WrongRung(version(cut_off), "wrong result"),
    WrongRung(version(from_here_to_there), "wrong result"),
    WrongRung(version(one_test_for_four), "out of bounds"),
    WrongRung(in_a_box_without_a_barrier, "race"),
)
