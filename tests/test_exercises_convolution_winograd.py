"""The exercises on Winograd's algorithm: other right answers, and that answers are ones for a GPU too.

Wrong answers are in tests/wrong/convolution_winograd.py; tests/test_exercises.py tries them.
"""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.convolution_winograd_parts import output_four, weights_four
from pmpp.exercises.convolution_winograd import EXERCISES
from pmpp.lab.exercise import check, exercise

RIGHT = [(one.name, one.answer) for one in EXERCISES]


def right(name):
    return lambda kernel: RIGHT.append((name, kernel)) or kernel


@right("convolution_winograd/row")
@cuda.jit
def row_with_the_rooms_parts(x, u, out):
    """The missing fourth element is 0: the output that it enters is not stored."""
    m = cuda.local.array(4, np.float32)
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2, d3 = x[i], x[i + 1], x[i + 2], x[i + 3] if i + 3 < x.size else np.float32(0)
        m[0], m[1], m[2], m[3] = u[0] * (d2 - d0), u[1] * (d1 + d2), u[2] * (d2 - d1), u[3] * (d3 - d1)
        output_four(m, 0, 1)
        for j in range(2):
            if i + j < out.size:
                out[i + j] = m[j]


@right("convolution_winograd/weights")
@cuda.jit
def weights_with_the_rooms_parts(w, u):
    """In local arrays, by the room's own sums."""
    g, h, values = cuda.local.array(9, np.float32), cuda.local.array(12, np.float32), cuda.local.array(16, np.float32)
    at = cuda.grid(1)
    k, c = at // w.shape[1], at % w.shape[1]
    if k < w.shape[0]:
        for i in range(9):
            g[i] = w[k, c, i // 3, i % 3]
        for i in range(3):
            weights_four(g, i, 3, h, i, 3)
        for i in range(4):
            weights_four(h, 3 * i, 1, values, 4 * i, 1)
        for i in range(16):
            u[i, k, c] = values[i]


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", str(value)))
def test_right_answers_pass(name, kernel):
    verdict = check(name, kernel)
    assert verdict, verdict


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", str(value)))
def test_right_answers_compile_for_a_gpu(name, kernel, ptx):
    for case in exercise(name).inputs[:1]:
        assert ".f64" not in ptx(kernel, *case.args)
