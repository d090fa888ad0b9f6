"""The exercises on implicit GEMM: answers that must pass, and wrong ones that must be found out for their reason."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.convolution_layer.implicit_exercises import EXERCISES, ZERO, T
from pmpp.lab.teach.exercise import check
from tests.support.answers import own_answers_run_once  # noqa: F401

RIGHT = [(one.name, one.answer) for one in EXERCISES]
WRONG = []


def answers(name, mistake=None):
    """The decorated kernel is a right answer to ``name``, or a wrong one and ``check`` must say ``mistake``."""

    def keep(kernel):
        RIGHT.append((name, kernel)) if mistake is None else WRONG.append((name, mistake, kernel))
        return kernel

    return keep


# -- table


@cuda.jit(device=True)
def in_order(k, window):
    return k // (window[0] * window[1]), k // window[1] % window[0], k % window[1]


@cuda.jit(device=True)
def columns_first(k, window):
    return k // (window[0] * window[1]), k % window[0], k // window[0] % window[1]


@cuda.jit(device=True)
def without_channels(k, window):
    return 0, k // window[1] % window[0], k % window[1]


@cuda.jit(device=True)
def rows_run_on(k, window):
    return k // (window[0] * window[1]), k // window[1], k % window[1]


def table(walk=in_order, guard=True, dilated=True, width=1):
    @cuda.jit
    def kernel(table, window, dilation, image):
        k = cuda.grid(1)
        if not guard or k < table.shape[0]:
            c, r, s = walk(k, window)
            down, right = (r * dilation[0], s * dilation[1]) if dilated else (r, s)
            table[k, 0] = c * image[0] * image[1] + down * image[width] + right
            table[k, 1] = down
            table[k, 2] = right

    return kernel


@answers("implicit/table")
@cuda.jit
def table_by_remainders(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        rest, s = divmod(k, window[1])
        c, r = divmod(rest, window[0])
        table[k, 2] = s * dilation[1]
        table[k, 1] = r * dilation[0]
        table[k, 0] = c * (image[0] * image[1]) + r * dilation[0] * image[1] + s * dilation[1]


@answers("implicit/table", "output not written")
@cuda.jit
def table_without_places(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        c, r, s = in_order(k, window)
        table[k, 0] = (c * image[0] + r * dilation[0]) * image[1] + s * dilation[1]


@cuda.jit(device=True)
def extents_exchanged(k, window):
    return k // (window[0] * window[1]), k // window[0] % window[1], k % window[0]


@answers("implicit/table", "dilation forgotten in memory")
@cuda.jit
def table_near_in_memory(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        c, r, s = in_order(k, window)
        table[k, 0] = (c * image[0] + r) * image[1] + s
        table[k, 1] = r * dilation[0]
        table[k, 2] = s * dilation[1]


WRONG += [
    ("implicit/table", "columns before rows", table(columns_first)),
    ("implicit/table", "extents exchanged", table(extents_exchanged)),
    ("implicit/table", "dilation forgotten", table(dilated=False)),
    ("implicit/table", "missing guard", table(guard=False)),
    ("implicit/table", "wrong result", table(without_channels)),
    ("implicit/table", "wrong result", table(rows_run_on)),
    ("implicit/table", "wrong result", table(width=0)),
]


# -- row


@cuda.jit(device=True)
def both_ends(column, width):
    return 0 <= column < width


@cuda.jit(device=True)
def right_end(column, width):
    return column < width


@cuda.jit(device=True)
def left_end(column, width):
    return column >= 0


@cuda.jit(device=True)
def as_unsigned(column, width):
    return np.uint32(column) < np.uint32(width)


def row(inside=both_ends, first=True, second=True, start=ZERO, padded=True, last=True, guard=True, channels_first=True):
    @cuda.jit
    def kernel(x, w, padding, out):
        w_tile, x_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        f, q = cuda.blockIdx.y * T + ty, cuda.blockIdx.x * T + tx
        terms, s = w.shape[1] * w.shape[2], w.shape[2]
        total = start
        for k0 in range(0, terms if last else max(terms // T, 1) * T, T):
            k = k0 + tx
            w_tile[ty, tx] = w[f, k // s, k % s] if f < w.shape[0] and k < terms else ZERO
            k = k0 + ty
            channel, tap = (k // s, k % s) if channels_first else (k % w.shape[1], k // w.shape[1])
            column = q + tap - (padding if padded else 0)
            x_tile[ty, tx] = x[channel, column] if k < terms and inside(column, x.shape[1]) else ZERO
            if first:
                cuda.syncthreads()
            for i in range(T):
                total += w_tile[ty, i] * x_tile[i, tx]
            if second:
                cuda.syncthreads()
        if not guard or (f < out.shape[0] and q < out.shape[1]):
            out[f, q] = total

    return kernel


@answers("implicit/row", "too much traffic")
@cuda.jit
def row_without_tiles(x, w, padding, out):
    f, q = cuda.blockIdx.y * T + cuda.threadIdx.y, cuda.blockIdx.x * T + cuda.threadIdx.x
    if f < out.shape[0] and q < out.shape[1]:
        total = ZERO
        for c in range(x.shape[0]):
            for s in range(w.shape[2]):
                column = q + s - padding
                if 0 <= column < x.shape[1]:
                    total += w[f, c, s] * x[c, column]
        out[f, q] = total


RIGHT.append(("implicit/row", row(as_unsigned)))
WRONG += [
    ("implicit/row", "negative index", row(right_end)),
    ("implicit/row", "index out of bounds", row(left_end)),
    ("implicit/row", "missing barrier", row(first=False)),
    ("implicit/row", "missing barrier", row(second=False)),
    ("implicit/row", "accidental float64", row(start=0.0)),
    ("implicit/row", "padding forgotten", row(padded=False)),
    ("implicit/row", "channels fastest", row(channels_first=False)),
    ("implicit/row", "wrong result", row(last=False)),
    ("implicit/row", "missing guard", row(guard=False)),
]


@pytest.mark.parametrize(("name", "kernel"), RIGHT)
def test_a_right_answer_passes(name, kernel):
    verdict = check(name, kernel)
    assert verdict, verdict


@pytest.mark.parametrize(("name", "mistake", "kernel"), WRONG)
def test_a_wrong_answer_is_named(name, mistake, kernel):
    verdict = check(name, kernel)
    assert not verdict
    assert verdict.mistake == mistake, verdict


def test_one_filter_and_one_channel_are_named_in_the_singular():
    names = [case.name for one in EXERCISES for case in one.inputs]
    assert sum(name.startswith("1 filter of ") for name in names) == 1
    assert sum(name.startswith("1 channel, ") for name in names) == 1
    assert not any(name.startswith(("1 filters", "1 channels")) for name in names)
