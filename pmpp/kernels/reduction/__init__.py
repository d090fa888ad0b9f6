"""Reduction: sums, extremes and the like, of a vector or along any axes of an array.

The threads of a block and the blocks of a grid agree on one number: trees, warp shuffles, atomics, and a result that is
the same in every run.
The room is `pmpp.kernels.reduction.ladder`, and its chapter notebooks/30_reduction.ipynb. Along some axes of an array,
with any operator, the room `pmpp.kernels.reduction.over_axes` reduces, of notebooks/33_reduction_over_axes.ipynb. Sums
along axes alone are the room `pmpp.kernels.reduction.axis_sum`, of notebooks/88_a_tape.ipynb.
The plain functions have NumPy's names and arguments, and are those of `over_axes`: `over_axes.arguments` says which
dtypes, results and errors they have. The sum and the extremes of a whole vector are those of `ladder.vectorised`, or of
`ladder.deterministic` where that takes fewer launches. The sum of 4 to 16,384 float32 is that of `few.sum_of_few`.
"""

import numpy as np

from pmpp.kernels.reduction import few, ladder, over_axes
from pmpp.kernels.reduction.ladder import *
from pmpp.kernels.reduction.ladder import BLOCK, LOADS, deterministic, vectorised
from pmpp.kernels.reduction.operators import Operator as Operator
from pmpp.kernels.reduction.operators import operator_of as operator_of
from pmpp.kernels.reduction.over_axes import planned
from pmpp.runtime import device

FEW = BLOCK * LOADS * 16  # bytes that one block reads


def sum(x, axis=None, keepdims=False, *, stream=0):
    """The sum over axes. Without axis and keepdims a vector may be float64 or int64, too.

    >>> sum(np.float32([[1, 2], [3, 4]]), axis=0).copy_to_host()
    array([4., 6.], dtype=float32)
    """
    return _reduced(x, axis, "sum", keepdims, stream)


def max(x, axis=None, keepdims=False, *, stream=0):
    """The largest element along the axes; NaN if one is NaN. Without axis and keepdims a vector may be float64 or
    int64, too.

    >>> max(np.float32([[1, 2], [3, 4]]), axis=0).copy_to_host()
    array([3., 4.], dtype=float32)
    """
    return _reduced(x, axis, "max", keepdims, stream)


def min(x, axis=None, keepdims=False, *, stream=0):
    """The smallest element along the axes; NaN if one is NaN. Without axis and keepdims a vector may be float64 or
    int64, too.

    >>> min(np.float32([[1, 2], [3, 4]]), axis=0).copy_to_host()
    array([1., 2.], dtype=float32)
    """
    return _reduced(x, axis, "min", keepdims, stream)


def _reduced(x, axis, op, keepdims, stream):
    dtypes = dict.fromkeys((*over_axes.DTYPES, *ladder.DTYPES))
    x = device.as_input("x", x, dtypes=tuple(dtypes), stream=device.as_stream(stream))
    if axis is None and keepdims is False and x.ndim == 1 and x.dtype.name in ladder.DTYPES:
        if op == "sum" and x.dtype == np.float32 and few.takes(x):
            return few.sum_of_few(x, device.as_stream(stream)).reshape(())
        # One block has nobody to agree with: it stores its result. Else a cell must be set first, by another launch.
        best = deterministic if x.size * x.dtype.itemsize <= FEW or x.dtype.itemsize == 2 else vectorised
        return best(x, op, stream=stream).reshape(())
    return planned(x, axis, op, keepdims, stream=stream)


def prod(x, axis=None, keepdims=False, *, stream=0):
    """The product over axes.

    >>> prod(np.float32([[1, 2], [3, 4]]), axis=0).copy_to_host()
    array([3., 8.], dtype=float32)
    """
    return planned(x, axis, "prod", keepdims, stream=stream)


def mean(x, axis=None, keepdims=False, *, stream=0):
    """The mean over axes.

    >>> mean(np.float32([[1, 2], [3, 6]]), axis=1).copy_to_host()
    array([1.5, 4.5], dtype=float32)
    """
    return planned(x, axis, "mean", keepdims, stream=stream)


def var(x, axis=None, keepdims=False, *, ddof=0, stream=0):
    """The variance over axes: the sum of squared deviations from the mean, divided by n - ``ddof``.

    >>> var(np.float32([[1, 3], [2, 6]]), axis=1).copy_to_host()
    array([1., 4.], dtype=float32)
    """
    return planned(x, axis, "var", keepdims, ddof, stream=stream)


def norm(x, axis=None, keepdims=False, *, ord=2.0, stream=0):
    """The norm of what lies along the axes, as of one vector: ``ord`` is 1, 2 or ``numpy.inf``.

    >>> norm(np.float32([[3, 4], [0, 1]]), axis=1).copy_to_host()
    array([5., 1.], dtype=float32)
    """
    number = isinstance(ord, int | float | np.number) and not isinstance(ord, bool)
    op = {1: "norm1", 2: "norm2", np.inf: "norm_inf"}.get(ord) if number else None
    if op is None:
        raise ValueError(f"ord must be 1, 2 or numpy.inf, was {ord!r}")
    return planned(x, axis, op, keepdims, stream=stream)


def any(x, axis=None, keepdims=False, *, stream=0):
    """Whether some element along the axes is not 0; a NaN is not.

    >>> any(np.float32([[0, 2], [0, 0]]), axis=1).copy_to_host()
    array([ True, False])
    """
    return planned(x, axis, "any", keepdims, stream=stream)


def all(x, axis=None, keepdims=False, *, stream=0):
    """Whether no element along the axes is 0.

    >>> all(np.float32([[1, 2], [0, 1]]), axis=1).copy_to_host()
    array([ True, False])
    """
    return planned(x, axis, "all", keepdims, stream=stream)


def count_nonzero(x, axis=None, keepdims=False, *, stream=0):
    """How many elements along the axes are not 0.

    >>> count_nonzero(np.float32([[1, 2], [0, 1]]), axis=1).copy_to_host()
    array([2, 1])
    """
    return planned(x, axis, "count_nonzero", keepdims, stream=stream)


def argmax(x, axis=None, keepdims=False, *, stream=0):
    """The place of the largest element along one axis, or in the whole array; of equal ones, or of NaNs, the first.

    >>> argmax(np.float32([[1, 2], [3, 0]]), axis=1).copy_to_host()
    array([1, 0])
    """
    return planned(x, axis, "argmax", keepdims, stream=stream)


def argmin(x, axis=None, keepdims=False, *, stream=0):
    """The place of the smallest element along one axis, or in the whole array; of equal ones, or of NaNs, the first.

    >>> argmin(np.float32([[1, 2], [3, 0]]), axis=1).copy_to_host()
    array([0, 1])
    """
    return planned(x, axis, "argmin", keepdims, stream=stream)


def reduce(x, operator, axis=None, keepdims=False, *, stream=0):
    """What an operator from `operator_of` makes of the elements along the axes.

    >>> from pmpp import cuda
    >>> @cuda.jit(device=True)
    ... def nearer_to_zero(a, b):
    ...     return a if abs(a) < abs(b) else b
    >>> smallest = operator_of(nearer_to_zero, np.float32(np.inf))
    >>> reduce(np.float32([[-1, 2], [3, 0]]), smallest, axis=1).copy_to_host()
    array([-1.,  0.], dtype=float32)
    """
    if not isinstance(operator, Operator):
        raise TypeError(f"operator must be one that operator_of made, was {operator!r}")
    return planned(x, axis, operator, keepdims, stream=stream)
