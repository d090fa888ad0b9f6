"""Layer normalisations of 16-bit numbers with mistakes that people make: what should be float32 is not."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation import layernorm as room
from pmpp.runtime import device
from pmpp.runtime.vector import widened
from tests.support import judge
from tests.support.wrong import WrongRung

f0, f1 = np.float32(0), np.float32(1)


def normalisation(name, *, rounds_sums=False, rounds_mean=False, rounds_normalised=False, of_squares=False):
    """A thread for each row. ``cell`` is an array of the 16-bit dtype: what goes through it is rounded."""

    @cuda.jit
    def kernel(x, weight, bias, eps, out, cell):
        row = cuda.grid(1)
        if row < x.shape[0]:
            n = np.float32(x.shape[1])
            total, squares = f0, f0
            for i in range(x.shape[1]):
                total += widened(x[row, i])
                if rounds_sums:
                    cell[row] = total
                    total = widened(cell[row])
            mean = total / n
            if rounds_mean:
                cell[row] = mean
                mean = widened(cell[row])
            for i in range(x.shape[1]):
                deviation = widened(x[row, i]) if of_squares else widened(x[row, i]) - mean
                squares += deviation * deviation
                if of_squares:
                    cell[row] = squares
                    squares = widened(cell[row])
            var = squares / n - mean * mean if of_squares else squares / n
            scale = f1 / math.sqrt(max(var, f0) + eps)
            for i in range(x.shape[1]):
                value = (widened(x[row, i]) - mean) * scale
                if rounds_normalised:
                    cell[row] = value
                    value = widened(cell[row])
                out[row, i] = value * weight[i] + bias[i]

    def run(x, weight, bias):
        p = room.arguments(x, weight, bias)
        kernel[1, 64](p.x, p.weight, p.bias, p.eps, p.out, device.empty(p.rows, p.x.dtype))
        return p.result

    run.__name__ = name
    return run


def faults(normalise, dtype):
    """What is wrong on rows far from 0, and on rows whose result nearly cancels."""
    rng = np.random.default_rng(15)
    x = (30 + rng.standard_normal((40, 300))).astype(dtype)
    weight = np.full(300, 64, np.float32)
    normalised = room.reference(x, np.ones(300), np.zeros(300))
    cases = [(x, np.ones(300, np.float32), np.zeros(300, np.float32))]
    cases.append((x, weight, (-64 * normalised.mean(axis=0) - 64).astype(np.float32)))
    for arrays in cases:
        expected, allowed = room.reference(*arrays), room.tolerance(*arrays)
        is_right = lambda result: judge.right(result, expected, allowed, dtype)  # noqa: B023, E731
        if found := judge.faults(normalise, arrays, is_right):
            return found
    return []


RIGHT = normalisation("right")
RUNGS = [
    WrongRung(normalisation("sums_in_16_bits", rounds_sums=True), "wrong result"),
    WrongRung(normalisation("a_mean_of_16_bits", rounds_mean=True), "wrong result"),
    WrongRung(normalisation("rounded_twice", rounds_normalised=True), "wrong result"),
    WrongRung(normalisation("squares_in_16_bits", of_squares=True), "wrong result"),
]
