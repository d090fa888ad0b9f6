"""Answers to the exercises of notebooks/95_inside_other_libraries.ipynb: wrong and right ones."""

import itertools

import numpy as np

from pmpp import cuda
from tests.support.wrong import WrongAnswer


@cuda.jit
def constant_root(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        for j in range(x.shape[1]):
            out[row, j] = dy[row, j] * weight[j] * inverse[row]


@cuda.jit
def no_weight(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += dy[row, j] * x[row, j]
        r = inverse[row]
        for j in range(x.shape[1]):
            out[row, j] = r * (dy[row, j] - x[row, j] * r * r * total / np.float32(x.shape[1]))


@cuda.jit
def no_mean(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += dy[row, j] * weight[j] * x[row, j]
        r = inverse[row]
        for j in range(x.shape[1]):
            out[row, j] = r * (dy[row, j] * weight[j] - x[row, j] * r * r * total)


@cuda.jit
def no_guard(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    total = np.float32(0)
    for j in range(x.shape[1]):
        total += dy[row, j] * weight[j] * x[row, j]
    r = inverse[row]
    for j in range(x.shape[1]):
        out[row, j] = r * (dy[row, j] * weight[j] - x[row, j] * r * r * total / np.float32(x.shape[1]))


@cuda.jit
def wrong_sign(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += dy[row, j] * weight[j] * x[row, j]
        r = inverse[row]
        for j in range(x.shape[1]):
            out[row, j] = r * (dy[row, j] * weight[j] + x[row, j] * r * r * total / np.float32(x.shape[1]))


@cuda.jit
def by_normalised_values(dy, x, weight, inverse, out):
    """With y before the weight in the place of x."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        n, r, common = np.float32(x.shape[1]), inverse[row], np.float32(0)
        for j in range(x.shape[1]):
            common += weight[j] * dy[row, j] * (x[row, j] * r) / n
        for j in range(x.shape[1]):
            out[row, j] = (weight[j] * dy[row, j] - x[row, j] * r * common) * r


def kind_of(code, bits):
    return {0: "i", 1: "u", 2: "f"}[code] + str(bits // 8)


def packed(shape, size):
    return [size * int(np.prod(shape[d + 1 :])) for d in range(len(shape))]


def in_bytes(memory, byte_offset, shape, strides, code, bits):
    steps = strides if len(strides) else packed(shape, bits // 8)
    return np.ndarray(tuple(shape), kind_of(code, bits), memory.data, byte_offset, tuple(map(int, steps)))


def always_packed(memory, byte_offset, shape, strides, code, bits):
    return np.ndarray(tuple(shape), kind_of(code, bits), memory.data, byte_offset)


def from_the_start(memory, byte_offset, shape, strides, code, bits):
    steps = [bits // 8 * int(step) for step in strides] or packed(shape, bits // 8)
    return np.ndarray(tuple(shape), kind_of(code, bits), memory.data, 0, tuple(steps))


def all_signed(memory, byte_offset, shape, strides, code, bits):
    steps = [bits // 8 * int(step) for step in strides] or packed(shape, bits // 8)
    return np.ndarray(tuple(shape), kind_of(2 if code == 2 else 0, bits), memory.data, byte_offset, tuple(steps))


def no_case_without_strides(memory, byte_offset, shape, strides, code, bits):
    steps = [bits // 8 * int(strides[d]) for d in range(len(shape))]
    return np.ndarray(tuple(shape), kind_of(code, bits), memory.data, byte_offset, tuple(steps))


def element_by_element(memory, byte_offset, shape, strides, code, bits):
    size = bits // 8
    steps = [size * int(step) for step in strides] or packed(shape, size)
    found = np.empty(tuple(shape), kind_of(code, bits))
    for index in itertools.product(*map(range, shape)):
        first = byte_offset + sum(i * step for i, step in zip(index, steps, strict=True))
        found[index] = memory[first : first + size].view(found.dtype)[0]
    return found


def as_if_packed(address, shape, strides, itemsize):
    return np.array([address, address + int(np.prod(shape)) * itemsize])


def upwards(address, shape, strides, itemsize):
    if 0 in shape:
        return np.array([address, address])
    return np.array([address, address + int(((shape - 1) * strides).sum()) + itemsize])


def to_the_last_element(address, shape, strides, itemsize):
    reach = (shape - 1) * strides if 0 not in shape else 0 * shape
    return np.array([address + np.minimum(reach, 0).sum(), address + np.maximum(reach, 0).sum()])


def not_for_nothing(address, shape, strides, itemsize):
    reach = (shape - 1) * strides
    return np.array([address + np.minimum(reach, 0).sum(), address + np.maximum(reach, 0).sum() + itemsize])


def a_stride_too_far(address, shape, strides, itemsize):
    if 0 in shape:
        return np.array([address, address])
    reach = shape * strides
    return np.array([address + np.minimum(reach, 0).sum(), address + np.maximum(reach, 0).sum()])


def by_all_corners(address, shape, strides, itemsize):
    if 0 in shape:
        return np.array([address, address])
    ends = [(0, (int(n) - 1) * int(step)) for n, step in zip(shape, strides, strict=True)]
    corners = [address + sum(corner) for corner in itertools.product(*ends)]
    return np.array([min(corners), max(corners) + itemsize])


def by_vectors(address, shape, strides, itemsize):
    reach = (shape - 1) * strides * (0 not in shape)
    last = np.maximum(reach, 0).sum() + itemsize * (0 not in shape)
    return address + np.array([np.minimum(reach, 0).sum(), last])


@cuda.jit
def by_two_stores(dy, x, weight, inverse, out):
    """The part of a constant root is stored first, and the other is taken off it."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            g = dy[row, j] * weight[j]
            out[row, j] = g * inverse[row]
            total += g * x[row, j]
        factor = total * inverse[row] * inverse[row] * inverse[row] / np.float32(x.shape[1])
        for j in range(x.shape[1]):
            out[row, j] -= factor * x[row, j]


BACKWARD, BORROW, EXTENT = "interop/backward", "interop/borrow", "interop/extent"
ANSWERS = [
    WrongAnswer(BACKWARD, constant_root, "inverse taken for a constant", "changes the root of its row"),
    WrongAnswer(BACKWARD, no_weight, "weight left out", "behind the weight"),
    WrongAnswer(BACKWARD, no_mean, "a sum for a mean", "1 / n"),
    WrongAnswer(BACKWARD, no_guard, "missing guard", "test the index first"),
    WrongAnswer(BACKWARD, wrong_sign, "wrong result", "1 x 2"),
    WrongAnswer(BORROW, in_bytes, "strides in bytes", "DLPack counts elements"),
    WrongAnswer(BORROW, always_packed, "strides left out", "Only without strides"),
    WrongAnswer(BORROW, from_the_start, "offset left out", "bytes into the memory"),
    WrongAnswer(BORROW, all_signed, "signed for unsigned", "Code 1"),
    WrongAnswer(BORROW, no_case_without_strides, "does not run", "IndexError"),
    WrongAnswer(EXTENT, as_if_packed, "taken for packed", "go by its strides"),
    WrongAnswer(EXTENT, upwards, "only upwards", "below the address"),
    WrongAnswer(EXTENT, to_the_last_element, "last element left out", "has bytes, too"),
    WrongAnswer(EXTENT, not_for_nothing, "wrong result", "with nothing"),
    WrongAnswer(EXTENT, a_stride_too_far, "wrong result", "with"),
]
ALSO_RIGHT = [
    (BACKWARD, by_normalised_values),
    (BACKWARD, by_two_stores),
    (BORROW, element_by_element),
    (EXTENT, by_all_corners),
    (EXTENT, by_vectors),
]
