"""Answers to the exercises on Winograd's algorithm: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.winograd_transforms import output_four, weights_four
from tests.support.wrong import WrongAnswer

ALSO_RIGHT: list[tuple[str, object]] = []


def right(name):
    """The decorated kernel is another right answer to ``name``."""
    return lambda kernel: ALSO_RIGHT.append((name, kernel)) or kernel


@right("winograd/row")
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


@right("winograd/weights")
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


@right("winograd/row")
@cuda.jit
def row_from_a_tile_in_shared_memory(x, u, out):
    tile = cuda.shared.array(130, np.float32)
    first, j = 2 * cuda.blockIdx.x * cuda.blockDim.x, 2 * cuda.threadIdx.x
    for k in range(cuda.threadIdx.x, 130, cuda.blockDim.x):
        tile[k] = x[first + k] if first + k < x.size else np.float32(0)
    cuda.syncthreads()
    if first + j < out.size:
        m1, m2 = u[1] * (tile[j + 1] + tile[j + 2]), u[2] * (tile[j + 2] - tile[j + 1])
        out[first + j] = u[0] * (tile[j + 2] - tile[j]) + m1 + m2
        if first + j + 1 < out.size:
            out[first + j + 1] = m1 - m2 + u[3] * (tile[j + 3] - tile[j + 1])


@cuda.jit
def row_unguarded(x, u, out):
    i = 2 * cuda.grid(1)
    d0, d1, d2, d3 = x[i], x[i + 1], x[i + 2], x[i + 3]
    m0, m1, m2, m3 = u[0] * (d2 - d0), u[1] * (d1 + d2), u[2] * (d2 - d1), u[3] * (d3 - d1)
    out[i] = m0 + m1 + m2
    out[i + 1] = m1 - m2 + m3


@cuda.jit
def row_reads_a_fourth(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2, d3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        m0, m1, m2, m3 = u[0] * (d2 - d0), u[1] * (d1 + d2), u[2] * (d2 - d1), u[3] * (d3 - d1)
        out[i] = m0 + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 + m3


@cuda.jit
def row_leaves_the_last(x, u, out):
    i = 2 * cuda.grid(1)
    if i + 1 < out.size:
        d0, d1, d2, d3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        m0, m1, m2, m3 = u[0] * (d2 - d0), u[1] * (d1 + d2), u[2] * (d2 - d1), u[3] * (d3 - d1)
        out[i] = m0 + m1 + m2
        out[i + 1] = m1 - m2 + m3


@cuda.jit
def row_all_added(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2 = x[i], x[i + 1], x[i + 2]
        m1, m2 = u[1] * (d1 + d2), u[2] * (d2 - d1)
        out[i] = u[0] * (d2 - d0) + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 + m2 + u[3] * (x[i + 3] - d1)


@cuda.jit
def row_of_lavin_and_gray(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2 = x[i], x[i + 1], x[i + 2]
        m1, m2 = u[1] * (d1 + d2), u[2] * (d2 - d1)
        out[i] = u[0] * (d0 - d2) + m1 + m2  # their row 0 of G is +g0
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 + u[3] * (x[i + 3] - d1)


@cuda.jit
def row_of_the_last_sign(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        d0, d1, d2 = x[i], x[i + 1], x[i + 2]
        m1, m2 = u[1] * (d1 + d2), u[2] * (d2 - d1)
        out[i] = u[0] * (d2 - d0) + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 - u[3] * (x[i + 3] - d1)


@cuda.jit
def row_by_the_filter(x, u, out):
    i = 2 * cuda.grid(1)
    if i < out.size:
        g0, g1, g2 = -u[0], u[1] - u[2], u[3]
        out[i] = g0 * x[i] + g1 * x[i + 1] + g2 * x[i + 2]
        if i + 1 < out.size:
            out[i + 1] = g0 * x[i + 1] + g1 * x[i + 2] + g2 * x[i + 3]


@cuda.jit
def row_of_six_products(x, u, out):
    """Right for every u, with the products multiplied out."""
    i = 2 * cuda.grid(1)
    if i < out.size:
        d1, d2, middle = x[i + 1], x[i + 2], u[1] - u[2]
        out[i] = middle * d1 + (u[0] + u[1] + u[2]) * d2 - u[0] * x[i]
        if i + 1 < out.size:
            out[i + 1] = (u[1] + u[2] - u[3]) * d1 + middle * d2 + u[3] * x[i + 3]


@cuda.jit
def row_overlapping(x, u, out):
    i = cuda.grid(1)  # the first output of a thread is 2 i
    if i < out.size:
        d0, d1, d2 = x[i], x[i + 1], x[i + 2]
        m1, m2 = u[1] * (d1 + d2), u[2] * (d2 - d1)
        out[i] = u[0] * (d2 - d0) + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 + u[3] * (x[i + 3] - d1)


@cuda.jit(device=True)
def four(g0, g1, g2):
    half = np.float32(0.5)
    return -g0, half * (g0 + g1 + g2), half * (g0 - g1 + g2), g2


@cuda.jit(device=True)
def four_in_float64(g0, g1, g2):
    return -g0, 0.5 * (g0 + g1 + g2), 0.5 * (g0 - g1 + g2), g2


@cuda.jit(device=True)
def four_not_halved(g0, g1, g2):
    return -g0, g0 + g1 + g2, g0 - g1 + g2, g2


@cuda.jit(device=True)
def four_of_lavin_and_gray(g0, g1, g2):
    half = np.float32(0.5)
    return g0, half * (g0 + g1 + g2), half * (g0 - g1 + g2), g2


def weights(name, *, function=four, guard=True, transposed=False, mirrored=False, filters_fastest=False):
    @cuda.jit
    def kernel(w, u):
        at = cuda.grid(1)
        k, c = at // w.shape[1], at % w.shape[1]
        if filters_fastest:
            k, c = at % w.shape[0], at // w.shape[0]
        if not guard or (k < w.shape[0] and c < w.shape[1]):
            h = cuda.local.array((3, 4), np.float32)
            for s in range(3):
                y = 2 - s if mirrored else s
                if mirrored:
                    column = function(w[k, c, 2, y], w[k, c, 1, y], w[k, c, 0, y])
                else:
                    column = function(w[k, c, 0, y], w[k, c, 1, y], w[k, c, 2, y])
                for i in range(4):
                    h[s, i] = column[i]
            for i in range(4):
                row = function(h[0, i], h[1, i], h[2, i])
                for j in range(4):
                    u[4 * j + i if transposed else 4 * i + j, k, c] = row[j]

    kernel.__name__ = name
    return kernel


G = np.array([[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)


@cuda.jit
def weights_loaded_for_each_number(w, u):
    g, at = cuda.const.array_like(G), cuda.grid(1)
    k, c = at // w.shape[1], at % w.shape[1]
    if k < w.shape[0]:
        for i in range(4):
            for j in range(4):
                total = np.float32(0)
                for r in range(3):
                    for s in range(3):
                        total += g[i, r] * w[k, c, r, s] * g[j, s]
                u[4 * i + j, k, c] = total


@cuda.jit
def row_of_every_thread_at_its_own_number(x, u, out):
    i = cuda.grid(1)
    if i < out.size:
        m1, m2 = u[1] * (x[i + 1] + x[i + 2]), u[2] * (x[i + 2] - x[i + 1])
        out[i] = u[0] * (x[i + 2] - x[i]) + m1 + m2
        if i + 1 < out.size:
            out[i + 1] = m1 - m2 + u[3] * (x[i + 3] - x[i + 1])


ROW, WEIGHTS = "winograd/row", "winograd/weights"
ANSWERS = (
    WrongAnswer(ROW, row_unguarded, "missing guard"),
    WrongAnswer(ROW, row_reads_a_fourth, "missing guard", "test every index that is used"),
    WrongAnswer(ROW, row_leaves_the_last, "output not written"),
    WrongAnswer(ROW, row_all_added, "all added"),
    WrongAnswer(ROW, row_of_lavin_and_gray, "first sign"),
    WrongAnswer(ROW, row_of_the_last_sign, "last sign"),
    WrongAnswer(ROW, row_by_the_filter, "filter taken back"),
    WrongAnswer(ROW, row_of_six_products, "too much work", "Two outputs take four multiplications"),
    WrongAnswer(ROW, row_of_every_thread_at_its_own_number, "race", "look at the index"),
    WrongAnswer(ROW, row_overlapping, "race", "Two threads write the same element, which no barrier mends"),
    WrongAnswer(WEIGHTS, weights("no_guard", guard=False), "missing guard"),
    WrongAnswer(WEIGHTS, weights("rows_and_columns", transposed=True), "transposed"),
    WrongAnswer(WEIGHTS, weights("turned_around", mirrored=True), "mirrored"),
    WrongAnswer(WEIGHTS, weights("in_float64", function=four_in_float64), "accidental float64"),
    WrongAnswer(WEIGHTS, weights("not_halved", function=four_not_halved), "not halved"),
    WrongAnswer(WEIGHTS, weights("of_lavin_and_gray", function=four_of_lavin_and_gray), "first sign"),
    WrongAnswer(WEIGHTS, weights_loaded_for_each_number, "too much traffic", "nine weights once"),
    WrongAnswer(WEIGHTS, weights("filters_fastest", filters_fastest=True), "uncoalesced"),
)
