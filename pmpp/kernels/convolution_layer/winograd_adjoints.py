"""Winograd's transforms of a layer's gradient by its weights: the adjoints of F(4 x 4, 3 x 3), and their error bound.

F(4 x 4, 3 x 3) computes a tile of a layer's output as Y = A^T [(G g G^T) * (B^T d B)] A, of weights g and a tile d of
the image; * multiplies element by element. The output is linear in g, and so the gradient by g, from a tile dY of the
gradient by the output, is the transposed map (the adjoint):

    dg = G^T [(A dY A^T) * (B^T d B)] G

The matrices are those of `pmpp.kernels.convolution_layer.winograd_transforms`, from right to left.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.winograd_transforms import (
    ROUNDINGS,
    cook_toom,
    gi0,
    gi1,
    gi2,
    go0,
    go1,
    go2,
    gr,
    i1,
    i2,
    i3,
    o1,
    o2,
    o3,
)


def bound(dy: typing.Any, x: typing.Any, layer: Layer, xp: typing.Any = np) -> typing.Any:
    """How far each element of the gradient in float32 may be from the exact one: float64, shape (K, C / groups, 3, 3).

    ``dy`` has shape (N, K, P, Q) and ``x`` (N, C, H, W), as arrays of ``xp``, which is NumPy or CuPy. As the bound of
    the forward transforms: a value is rounded so often in each transform and each of its two dimensions, and once for
    each tile in the sum over them. The sizes of what is rounded are at most

        |G^T| [sum over the tiles of (|A| |dy| |A^T|) * (|B^T| |x| |B|)] |G|

    >>> dy, x = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 6, 6), np.float32)
    >>> bound(dy, x, Layer(1, 1, 6, 6, 1, 3, 3)).shape
    (1, 1, 3, 3)
    """
    a_t, g, b_t = (abs(matrix).astype(np.float64) for matrix in cook_toom(4))
    n, groups, filters, group = layer.n, layer.groups, layer.k // layer.groups, layer.c // layer.groups
    rows, columns = blocks(layer.p, 4), blocks(layer.q, 4)
    tiles = n * rows * columns
    edges = [
        (p, max(4 * t + 2 - p - e, 0)) for p, t, e in zip(layer.padding, (rows, columns), x.shape[2:], strict=True)
    ]
    x = xp.pad(abs(x).astype(np.float64), ((0, 0), (0, 0), *edges))
    edges = [(0, 4 * t - e) for t, e in zip((rows, columns), dy.shape[2:], strict=True)]
    dy = xp.pad(abs(dy).astype(np.float64), ((0, 0), (0, 0), *edges))
    size = xp.zeros((layer.k, group, 3, 3))
    for i in range(6):
        x_band = sum(b_t[i, r] * x[:, :, r : r + 4 * rows - 3 : 4] for r in range(6))
        dy_band = sum(a_t[r, i] * dy[:, :, r::4] for r in range(4))
        for j in range(6):
            v = sum(b_t[j, s] * x_band[..., s : s + 4 * columns - 3 : 4] for s in range(6))
            d = sum(a_t[s, j] * dy_band[..., s::4] for s in range(4))
            v = xp.moveaxis(v.reshape(n, groups, group, -1), 0, 2).reshape(groups, group, tiles)
            d = xp.moveaxis(d.reshape(n, groups, filters, -1), 0, 2).reshape(groups, filters, tiles)
            products = (d @ xp.swapaxes(v, 1, 2)).reshape(layer.k, group)
            for r in range(3):
                for s in range(3):
                    size[:, :, r, s] += g[i, r] * g[j, s] * products
    return (2 * sum(ROUNDINGS[4]) + tiles + 2) * 2.0**-24 * size + 2.0**-149


# --------------------------------------------------------------------------------------------- the sums, for one thread
# As in winograd_transforms: values of a row or a column of a tile begin at index ``at`` and are ``step`` apart.


@cuda.jit(device=True)
def gradient_six(y, at, step, m, to, by):
    """A of F(4, 3): from four values of y to six of m."""
    y0, y1, y2, y3 = y[at], y[at + step], y[at + 2 * step], y[at + 3 * step]
    inner, inner_odd = y0 + i2 * y2, i1 * y1 + i3 * y3
    outer, outer_odd = y0 + o2 * y2, o1 * y1 + o3 * y3
    m[to] = y0
    m[to + by] = inner + inner_odd
    m[to + 2 * by] = inner - inner_odd
    m[to + 3 * by] = outer + outer_odd
    m[to + 4 * by] = outer - outer_odd
    m[to + 5 * by] = y3


@cuda.jit(device=True)
def weights_back_six(u, at, step, g, to, by):
    """G^T of F(4, 3): from six values of u to three of g."""
    u0, u1, u2 = u[at], u[at + step], u[at + 2 * step]
    u3, u4, u5 = u[at + 3 * step], u[at + 4 * step], u[at + 5 * step]
    inner, outer = u1 + u2, u3 + u4
    g[to] = gr * u0 + gi0 * inner + go0 * outer
    g[to + by] = gi1 * (u1 - u2) + go1 * (u3 - u4)
    g[to + 2 * by] = gi2 * inner + go2 * outer + u5
