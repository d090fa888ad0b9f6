"""Wrong versions of `rotation` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.images import rotation as room
from pmpp.runtime.dots import dot_high, dot_low
from tests.support.wrong import WrongRung

ROUNDS = room.ROUNDS  # Numba wants the extent of an array from a name, not from an attribute


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


def in_boxes(*, before, after):
    """A block walks down a column of tiles. Barriers stand before and after it reads what others have fetched."""

    @cuda.jit
    def in_boxes_kernel(pieces, double, out, h, words, walk):
        box, pairs = cuda.shared.array(0, np.uint16, alignment=16), cuda.shared.array(0, np.uint32, alignment=16)
        places, loaded = cuda.local.array(ROUNDS, np.int32), cuda.local.array(ROUNDS, np.uint64)
        for k in range(room.ROUNDS):
            places[k] = pieces[(cuda.threadIdx.x // 32 * room.ROUNDS + k) * 32 + cuda.threadIdx.x % 32]
        first_column = room.SIDE * cuda.blockIdx.x
        for first_row in range(0, h, room.SIDE):
            down = walk.down + first_row * walk.cos + first_column * walk.sin
            right = walk.right + first_column * walk.cos - first_row * walk.sin
            top, first, _ = room.box_of(down, right, h, words >> 1, walk)
            room.load_pieces(loaded, places, double, h, np.int32(words >> 1), top, first)
            room.put_pieces(pairs, loaded, places)
            down, right = down - (np.int64(top) << 32), right - (np.int64(first) << 35)
            if before:
                cuda.syncthreads()
            for i in range(cuda.threadIdx.x, room.SIDE**2, 32 * room.WARPS):
                row, column = i // room.SIDE, i % room.SIDE
                if first_row + row < h and first_column + column < 4 * words:
                    at_down, at_right = (
                        down + row * walk.cos + column * walk.sin,
                        right + column * walk.cos - row * walk.sin,
                    )
                    pixel = room.pixel_in(box, np.uint32(at_down >> 8), np.uint32(at_right >> 8)) >> 16
                    out[(first_row + row) * 4 * words + first_column + column] = pixel
            if after:
                cuda.syncthreads()

    def rotation(x, angle):
        p = room.arguments(x, angle)
        if p.done or not room.fits(p):
            return RIGHT(x, angle)
        (h, w), cos, sin = x.shape, int(p.cos), int(p.sin)
        sizes = np.int32(h), np.int32(w // 4), room.walk_of(h, w, cos, sin)
        double, out = p.x.reshape(-1).view(np.uint64), p.result.reshape(-1)
        given = room.pieces_of(cos, sin, False), double, out, *sizes
        in_boxes_kernel[-(-w // room.SIDE), 32 * room.WARPS, 0, room.SHARED](*given)
        return p.result

    rotation.__name__ = "the_next_box_too_early" if before else "in_boxes_without_a_barrier"
    return rotation


def with_pixels_by(pixel_in):
    """`by_dots` with another function that computes a pixel."""
    kernel = room.boxes_kernel(pixel_in, 1, 1)

    def rotation(x, angle):
        p = room.arguments(x, angle)
        if not p.done and room.fits(p):
            room.launch_boxes(kernel, p, 1, room.pieces_of(int(p.cos), int(p.sin), False))
        elif not p.done:
            room.in_words.launch(p)
        return p.result

    rotation.__name__ = pixel_in.py_func.__name__
    return rotation


@cuda.jit(device=True)
def the_lower_bytes_of_a_share(box, down, right):
    """The share is the third byte of a position. The first one is of the noise below it."""
    at = np.uint64(dot_high(room.IN_ROWS, down, np.uint32(right >> np.uint32(24))))
    weights = dot_low(room.ONE_LESS, right, np.uint32(256))
    upper = dot_low(weights, np.uint32(box[at]), np.uint32(128))
    lower = dot_low(weights, np.uint32(box[at + np.uint64(room.PITCH)]), np.uint32(128))
    return dot_high(lower, down, dot_high(upper, np.uint32(~down), upper))


@cuda.jit(device=True)
def weights_with_a_sign(box, down, right):
    """256 times a bright pixel does not fit into 15 bits. With signed weights, `dp2a.s32`, it becomes negative."""
    at = np.uint64(dot_high(room.IN_ROWS, down, np.uint32(right >> np.uint32(24))))
    weights = dot_high(room.ONE_LESS, right, np.uint32(256))
    upper = np.int16(dot_low(weights, np.uint32(box[at]), np.uint32(128)))
    lower = np.int16(dot_low(weights, np.uint32(box[at + np.uint64(room.PITCH)]), np.uint32(128)))
    below = np.int32((down >> np.uint32(16)) & np.uint32(255))
    return np.uint32(np.int32(lower) * below + np.int32(upper) * (256 - below))


@cuda.jit(device=True)
def shares_of_255(box, down, right):
    """255 less the share, and the share, are 255 in all: white becomes grey."""
    at = np.uint64(dot_high(room.IN_ROWS, down, np.uint32(right >> np.uint32(24))))
    weights = dot_high(room.ONE_LESS, right, np.uint32(256))
    upper = dot_low(weights, np.uint32(box[at]), np.uint32(128))
    lower = dot_low(weights, np.uint32(box[at + np.uint64(room.PITCH)]), np.uint32(128))
    return dot_high(lower, down, dot_high(upper, np.uint32(~down), np.uint32(0)))


RIGHT = version(right)
RUNGS = (
    WrongRung(version(no_test_of_places), "out of bounds"),
    WrongRung(version(turns_the_other_way), "wrong result"),
    WrongRung(version(about_the_corner), "wrong result"),
    WrongRung(version(the_nearest_alone), "wrong result"),
    WrongRung(version(cut_off), "wrong result"),
    WrongRung(version(from_here_to_there), "wrong result"),
    WrongRung(version(one_test_for_four), "out of bounds"),
    WrongRung(in_boxes(before=False, after=True), "race"),
    WrongRung(in_boxes(before=True, after=False), "race"),
    WrongRung(with_pixels_by(the_lower_bytes_of_a_share), "wrong result"),
    WrongRung(with_pixels_by(weights_with_a_sign), "wrong result"),
    WrongRung(with_pixels_by(shares_of_255), "wrong result"),
)
