"""Wrong convolutions. Wrong answers to the exercises are in tests/kernels/convolution/test_exercises.py."""

import functools

import numpy as np

from pmpp import cuda
from pmpp.kernels import convolution
from pmpp.kernels.convolution.borders import BORDERS, EDGE, REFLECT, element, source
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

T = 16
f0 = np.float32(0)


@cuda.jit(device=True)
def behind_the_middle(n):
    return n // 2


@cuda.jit(device=True)
def before_the_middle(n):
    return (n - 1) // 2


@cuda.jit(device=True)
def in_the_corner(n):
    return 0


@cuda.jit(device=True)
def as_it_is(mask, r, s):
    return mask[r, s]


@cuda.jit(device=True)
def turned_over(mask, r, s):
    return mask[mask.shape[0] - 1 - r, mask.shape[1] - 1 - s]


@cuda.jit(device=True)
def columns_first(mask, r, s):
    return mask[s, r]


@cuda.jit(device=True)
def with_the_edge_twice(i, n, border):
    if border == REFLECT:
        return -1 - i if i < 0 else min(i, 2 * n - 1 - i)
    return source(i, n, border)


@cuda.jit(device=True)
def around(i, n, border):
    return i % n if border == EDGE else source(i, n, border)


@cuda.jit(device=True)
def always_zero(i, n, border):
    return i if i >= 0 and i < n else -1


@cuda.jit(device=True)
def wherever(i, n, border):
    return i


def convolver(name, centre=behind_the_middle, weight=as_it_is, place=source, guard=True, skips=False, in_place=False):
    """A convolution with some of its parts exchanged: a thread an output, as in `pmpp.kernels.convolution.basic`."""

    @cuda.jit
    def kernel(x, mask, out, border):
        column, row = cuda.grid(2)
        if not guard or (row < x.shape[0] and column < x.shape[1]):
            total = f0
            for r in range(mask.shape[0]):
                for s in range(mask.shape[1]):
                    y = place(row + r - centre(mask.shape[0]), x.shape[0], border)
                    z = place(column + s - centre(mask.shape[1]), x.shape[1], border)
                    if y >= 0 and z >= 0 and (not skips or x[y, z] == x[y, z]):
                        total += weight(mask, r, s) * x[y, z]
            out[row, column] = total

    def convolve(x, mask, border="zero"):
        x, mask = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, mask))
        out = x if in_place else device.empty(x.shape, np.float32)
        if out.size:
            kernel[(-(-x.shape[1] // T), -(-x.shape[0] // T)), (T, T)](x, mask, out, BORDERS[border])
        return out

    convolve.__name__ = name
    return convolve


def tiler(name, barrier=True, halo=1):
    """A tile in shared memory, with some of its parts left out: as in `pmpp.kernels.convolution.tiled`."""

    @cuda.jit
    def kernel(x, mask, out, border):
        tile = cuda.shared.array(0, np.float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * T, cuda.blockIdx.x * T
        wide = T + mask.shape[1] - 1
        for y in range(ty, T + mask.shape[0] - halo, T):
            for z in range(tx, wide, T):
                tile[y * wide + z] = element(x, top + y - mask.shape[0] // 2, left + z - mask.shape[1] // 2, border)
        if barrier:
            cuda.syncthreads()
        if top + ty < x.shape[0] and left + tx < x.shape[1]:
            total = f0
            for r in range(mask.shape[0]):
                for s in range(mask.shape[1]):
                    total += mask[r, s] * tile[(ty + r) * wide + tx + s]
            out[top + ty, left + tx] = total

    def convolve(x, mask, border="zero"):
        x, mask = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, mask))
        out, shared = device.empty(x.shape, np.float32), 4 * (T + mask.shape[0]) * (T + mask.shape[1])
        if out.size:
            kernel[(-(-x.shape[1] // T), -(-x.shape[0] // T)), (T, T), 0, shared](x, mask, out, BORDERS[border])
        return out

    convolve.__name__ = name
    return convolve


@functools.cache
def _by_shape(shape, values):
    return convolution.kernel_with.__wrapped__(shape, values.data)


class _Values:
    """Bytes that are all equal to a cache: as if it were asked for the shape of a mask only."""

    def __init__(self, data):
        self.data = data

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return True


def mask_of_the_first_call(x, mask, border="zero"):
    """One kernel for all masks of a shape, with the values of the first in it."""
    x, mask = (
        device.to_device(x) if isinstance(x, np.ndarray) else x,
        mask if isinstance(mask, np.ndarray) else mask.copy_to_host(),
    )
    out = device.empty(x.shape, np.float32)
    if out.size:
        grid = -(-x.shape[0] // T) * -(-x.shape[1] // T)
        _by_shape(mask.shape, _Values(mask.tobytes()))[grid, (T, T)](x, out, BORDERS[border])
    return out


@cuda.jit
def zeros_around_kernel(x, mask, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // x.shape[1], i % x.shape[1]
        total = f0
        for r in range(mask.shape[0]):
            for s in range(-1, mask.shape[1] + 1):
                weight = mask[r, s] if s >= 0 and s < mask.shape[1] else f0
                total += weight * element(x, row + r - mask.shape[0] // 2, column + s - mask.shape[1] // 2, 0)
        out[row, column] = total


def zeros_around_the_mask(x, mask, border="zero"):
    """A mask that was made wider by weights of 0: they spread what is not finite."""
    if border != "zero":
        return right(x, mask, border)
    x, mask = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, mask))
    out = device.empty(x.shape, np.float32)
    zeros_around_kernel[-(-out.size // 128), 128](x, mask, out)
    return out


@cuda.jit
def vectors_anywhere_kernel(x, mask, out):
    i = 4 * cuda.grid(1)
    if i < out.size:
        a = load128(x, i)
        store128(out, i, (mask[0, 0] * a[0], mask[0, 0] * a[1], mask[0, 0] * a[2], mask[0, 0] * a[3]))


def vectors_anywhere(x, mask, border="zero"):
    """128-bit loads wherever ``x`` begins; all else is right."""
    if mask.shape != (1, 1) or isinstance(x, np.ndarray) or device.address(x) % 16 == 0:
        return right(x, mask, border)
    out = device.empty(x.shape, np.float32)
    mask = device.to_device(mask) if isinstance(mask, np.ndarray) else mask
    vectors_anywhere_kernel[1, 64](x.reshape(-1), mask, out.reshape(-1))
    return out


right = convolver("right")

RUNGS = (
    WrongRung(convolver("no_guard", guard=False), "out of bounds"),
    WrongRung(convolver("no_border", place=wherever), "out of bounds"),
    WrongRung(convolver("rows_for_columns", weight=columns_first), "wrong result"),
    WrongRung(convolver("mask_turned_over", weight=turned_over), "wrong result"),
    WrongRung(convolver("centre_before_the_middle", centre=before_the_middle), "wrong result"),
    WrongRung(convolver("centre_in_the_corner", centre=in_the_corner), "wrong result"),
    WrongRung(convolver("edge_twice", place=with_the_edge_twice), "wrong result"),
    WrongRung(convolver("edge_from_the_other_side", place=around), "wrong result"),
    WrongRung(convolver("zero_for_all_borders", place=always_zero), "wrong result"),
    WrongRung(convolver("nan_lost", skips=True), "wrong result"),
    WrongRung(convolver("in_place", in_place=True), "race"),
    WrongRung(tiler("no_barrier", barrier=False), "race"),
    WrongRung(tiler("halo_short", halo=2), "uninitialised read"),
    WrongRung(mask_of_the_first_call, "wrong result"),
    WrongRung(zeros_around_the_mask, "wrong result"),
    WrongRung(vectors_anywhere, "misaligned"),
)
