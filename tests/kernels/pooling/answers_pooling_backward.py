"""Answers to the exercises of chapter 78 on pooling: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MEANS, POSITIONS = "pooling_backward/means", "pooling_backward/positions"
f0, f9 = np.float32(0), np.float32(9)


@cuda.jit(device=True)
def place_of(i, out):
    h, w = out.shape[1], out.shape[2]
    return i // w // h, i // w % h, i % w


# -- means


@right(MEANS)
@cuda.jit
def means_by_asking_all_four(gradient, out):
    i = cuda.grid(1)
    if i < out.size:
        plane, row, column = place_of(i, out)
        total = f0
        for up in range(2):
            for left in range(2):
                y, z = row // 2 - up, column // 2 - left
                there = 0 <= y < gradient.shape[1] and 0 <= z < gradient.shape[2]
                if there and row <= 2 * y + 2 and column <= 2 * z + 2:
                    total += gradient[plane, y, z] / f9
        out[plane, row, column] = total


def means(guard=True, low=0, more=0, ninth=f9, only_last=False, name="means"):
    """The gradient of means with one of its parts exchanged."""

    @cuda.jit
    def kernel(gradient, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            plane, row, column = place_of(i, out)
            total = f0
            for y in range(max((row - 1) // 2, low), min(row // 2 + 1, gradient.shape[1] + more)):
                for z in range(max((column - 1) // 2, low), min(column // 2 + 1, gradient.shape[2] + more)):
                    total = gradient[plane, y, z] if only_last else total + gradient[plane, y, z]
            out[plane, row, column] = total / ninth

    kernel.py_func.__name__ = name
    return kernel


@wrong(MEANS, "one window an element")
@cuda.jit
def means_of_windows_side_by_side(gradient, out):
    i = cuda.grid(1)
    if i < out.size:
        plane, row, column = place_of(i, out)
        y, z, value = row // 2, column // 2, f0
        if y < gradient.shape[1] and z < gradient.shape[2]:
            value = gradient[plane, y, z] / f9
        out[plane, row, column] = value


ANSWERS += [
    WrongAnswer(MEANS, means(guard=False, name="means_without_guard"), "index out of bounds"),
    WrongAnswer(MEANS, means(low=-1, name="means_from_minus_one"), "negative index"),
    WrongAnswer(MEANS, means(more=1, name="means_of_one_too_many"), "index out of bounds"),
    WrongAnswer(MEANS, means(ninth=np.float32(1), name="means_not_divided"), "not divided"),
    WrongAnswer(MEANS, means(ninth=9.0, name="means_in_float64"), "accidental float64"),
    WrongAnswer(MEANS, means(only_last=True, name="means_of_the_last_window"), "wrong result"),
]


# -- positions


@right(POSITIONS)
@cuda.jit
def positions_by_the_number(gradient, positions, out):
    i = cuda.grid(1)
    if i < out.size:
        plane, row, column = place_of(i, out)
        total = f0
        for number in range(9):  # where this element stands in the window
            y, z = row + 1 - number // 3, column + 1 - number % 3
            if 0 <= y < out.shape[1] and 0 <= z < out.shape[2]:
                total += gradient[plane, y, z] if positions[plane, y, z] == number else f0
        out[plane, row, column] = total


def positions_with(chosen, guard=True, more=0, last=False, name="positions"):
    """The gradient of maxima with one of its parts exchanged."""

    @cuda.jit
    def kernel(gradient, positions, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            plane, row, column = place_of(i, out)
            total = f0
            for y in range(max(row - 1, 0), min(row + 2, out.shape[1] + more)):
                for z in range(max(column - 1, 0), min(column + 2, out.shape[2] + more)):
                    if chosen(positions[plane, y, z], row - y, column - z):
                        total = gradient[plane, y, z] if last else total + gradient[plane, y, z]
            out[plane, row, column] = total

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def by_position(position, down, across):
    return position == 3 * (down + 1) + across + 1


@cuda.jit(device=True)
def mirrored(position, down, across):
    return position == 3 * (1 - down) + 1 - across


@cuda.jit(device=True)
def turned(position, down, across):
    return position == 3 * (across + 1) + down + 1


@cuda.jit(device=True)
def everyone(position, down, across):
    return True


ANSWERS += [
    WrongAnswer(POSITIONS, positions_with(by_position, guard=False, name="positions_without_guard"), "missing guard"),
    WrongAnswer(POSITIONS, positions_with(by_position, more=1, name="positions_too_many"), "index out of bounds"),
    WrongAnswer(POSITIONS, positions_with(by_position, last=True, name="positions_of_the_last"), "wrong result"),
    WrongAnswer(POSITIONS, positions_with(mirrored, name="positions_mirrored"), "mirrored"),
    WrongAnswer(POSITIONS, positions_with(turned, name="positions_by_columns"), "wrong result"),
    WrongAnswer(POSITIONS, positions_with(everyone, name="positions_to_everyone"), "all get the gradient"),
]
