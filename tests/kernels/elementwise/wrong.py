"""Wrong elementwise operations: each with the reason for which the tests must reject it."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.elementwise import ladder
from pmpp.kernels.elementwise.ladder import apply_binary, apply_unary, place
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


@cuda.jit(device=True)
def binary_by_max(op, x, y):
    """NaN is lost: max(1, NaN) is 1 on a GPU."""
    return max(x, y) if op == ladder.MAXIMUM else apply_binary(op, x, y)


@cuda.jit(device=True)
def power_of_logarithms(op, x, y):
    return math.exp(y * math.log(x)) if op == ladder.POWER else apply_binary(op, x, y)


@cuda.jit(device=True)
def quotient_of_a_reciprocal(op, x, y):
    return x * (np.float32(1) / y) if op == ladder.DIVIDE else apply_binary(op, x, y)


@cuda.jit(device=True)
def sign_of_comparisons(op, x):
    """A NaN becomes 0."""
    if op == ladder.SIGN:
        return np.float32(1) if x > f0 else np.float32(-1) if x < f0 else f0
    return apply_unary(op, x)


@cuda.jit(device=True)
def square_in_float64(op, x):
    return np.float32(np.float64(x) * np.float64(x)) if op == ladder.SQUARE else apply_unary(op, x)


@cuda.jit(device=True)
def exchanged(steps, i0, i1, i2, i3):
    """The last two strides, each for the other's dimension, where both are there."""
    return i0 * steps.d0 + i1 * steps.d1 + i2 * steps.d3 + i3 * steps.d2


def elementwise(name, binary=apply_binary, unary=apply_unary, where=place, guard=True, repeat=True, in_place=False):
    """A thread an element, with one of its parts exchanged."""

    @cuda.jit
    def kernel(op, a, b, number, is_number, out, plan):
        i, extents = cuda.grid(1), plan.extents
        if not guard or i < out.size:
            i3, left = i % extents.d3, i // extents.d3
            i2, left = left % extents.d2, left // extents.d2
            i1, i0 = left % extents.d1, left // extents.d1
            at_a = where(plan.first, i0, i1, i2, i3)
            at_b = where(plan.second, i0, i1, i2, i3) if repeat else i % b.size
            x, y = a[at_a], number if is_number else b[at_b]
            out[i] = unary(op, x) if op < ladder.ADD else binary(op, x, y)
            if in_place:
                a[at_a] = out[i]

    def call(a, b=None, op="add"):
        p = ladder.arguments(a, b, op)
        if p.out.size:
            kernel[blocks(p.out.size, BLOCK), BLOCK](
                p.op, p.a, p.b, p.number, p.is_number, p.out, ladder.plan_of(*p.layouts)
            )
        return p.result

    call.__name__ = name
    return call


@cuda.jit
def vectors_kernel(a, b, out):
    i = 4 * cuda.grid(1)
    if i + 4 <= out.size:
        x, y = load128(a, i), load128(b, i)
        store128(out, i, (x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3]))


def vectors_anywhere(a, b=None, op="add"):
    """128-bit loads wherever the operands begin; all else is right."""
    p = ladder.arguments(a, b, op)
    plain = op == "add" and ladder.plan_of(*p.layouts).dimensions == 1 and not p.is_number and p.out.size % 4 == 0
    if not plain or device.address(p.a) % 16 == 0 == device.address(p.b) % 16:
        return ladder.tiled(a, b, op)
    vectors_kernel[blocks(p.out.size, 4 * BLOCK), BLOCK](p.a, p.b, p.out)
    return p.result


def vectors_without_a_tail(a, b=None, op="add"):
    """Up to three elements at the end are left out."""
    p = ladder.arguments(a, b, op)
    if (
        op != "add"
        or p.is_number
        or ladder.plan_of(*p.layouts).dimensions != 1
        or ladder.plan_of(*p.layouts).second.d3 == 0
        or not p.out.size
    ):
        return ladder.tiled(a, b, op)
    ladder.fill_kernel[blocks(p.out.size, 4 * BLOCK), BLOCK](p.out, f0)
    vectors_kernel[blocks(p.out.size, 4 * BLOCK), BLOCK](p.a, p.b, p.out)
    return p.result


@cuda.jit
def tile_kernel(a, out, steps, rows, columns):
    tile = cuda.shared.array((8, 9), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * 8, cuda.blockIdx.x * 8
    if top + tx < rows and left + ty < columns:
        tile[ty, tx] = a[(top + tx) * steps[0] + (left + ty) * steps[1]]
    if top + ty < rows and left + tx < columns:  # a barrier is missing above
        out[(top + ty) * columns + left + tx] = tile[tx, ty]


def tile_without_barrier(a, b=None, op="add"):
    """A transposed copy that reads the tile before it is whole."""
    p = ladder.arguments(a, b, op)
    turn = ladder.turn_of(ladder.plan_of(*p.layouts))
    if turn is None or op != "copy" or p.result.ndim != 2:
        return ladder.tiled(a, b, op)
    rows, columns = p.result.shape
    steps = tuple(stride // 4 for stride in a.strides)
    tile_kernel[(blocks(columns, 8), blocks(rows, 8)), (8, 8)](p.a, p.out, steps, rows, columns)
    return p.result


RUNGS = (
    WrongRung(elementwise("no_guard", guard=False), "out of bounds"),
    WrongRung(elementwise("maximum_that_loses_nan", binary=binary_by_max), "wrong result"),
    WrongRung(elementwise("power_of_logarithms", binary=power_of_logarithms), "wrong result"),
    WrongRung(elementwise("quotient_of_a_reciprocal", binary=quotient_of_a_reciprocal), "wrong result"),
    WrongRung(elementwise("sign_of_comparisons", unary=sign_of_comparisons), "wrong result"),
    WrongRung(elementwise("square_in_float64", unary=square_in_float64), "float64"),
    WrongRung(elementwise("strides_exchanged", where=exchanged), "wrong result"),
    WrongRung(elementwise("repeated_as_it_comes", repeat=False), "wrong result"),
    WrongRung(elementwise("in_a_as_well", in_place=True), "input changed"),
    WrongRung(vectors_anywhere, "misaligned"),
    WrongRung(vectors_without_a_tail, "wrong result"),
    WrongRung(tile_without_barrier, "race"),
)
