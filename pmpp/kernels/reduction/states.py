"""States of a reduction as tuples of numbers: in arrays, in the lanes of a warp, and as kernels load and store them.

For `pmpp.kernels.reduction.over_axes`. The operators that make and combine states stand in
`pmpp.kernels.reduction.operators`. Chapter: notebooks/33_reduction_over_axes.ipynb.

``len(state)`` is known when a kernel is compiled. So of each function here only one branch is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.operators import Operator, load_of
from pmpp.runtime.vector import load128


@cuda.jit(device=True)
def get(arrays, i):
    """State i, from an array for each of its numbers."""
    if len(arrays) == 1:
        return (arrays[0][i],)
    if len(arrays) == 2:
        return arrays[0][i], arrays[1][i]
    return arrays[0][i], arrays[1][i], arrays[2][i]


@cuda.jit(device=True)
def put(arrays, i, state):
    arrays[0][i] = state[0]
    if len(state) > 1:
        arrays[1][i] = state[1]
    if len(state) > 2:
        arrays[2][i] = state[2]


@cuda.jit(device=True)
def from_lane(state, distance):
    """The state of the lane whose number differs in one bit."""
    if len(state) == 1:
        return (cuda.shfl_xor_sync(FULL_WARP, state[0], distance),)
    if len(state) == 2:
        return (
            cuda.shfl_xor_sync(FULL_WARP, state[0], distance),
            cuda.shfl_xor_sync(FULL_WARP, state[1], distance),
        )
    return (
        cuda.shfl_xor_sync(FULL_WARP, state[0], distance),
        cuda.shfl_xor_sync(FULL_WARP, state[1], distance),
        cuda.shfl_xor_sync(FULL_WARP, state[2], distance),
    )


@functools.lru_cache(256)
def access_of(op: Operator, dtype: np.dtype, states: bool, last: bool) -> tuple[Callable, Callable]:
    """``fetch(x, i, place)``, the state of element i, and ``store(out, i, state, divisor)``.

    ``states``: x is a tuple of arrays of states, else a vector of that dtype. ``last``: out has results, else states.
    """
    load, finish = load_of(op, dtype), op.finish

    @cuda.jit(device=True)
    def fetch_element(x, i, place):
        return load(x[i], place)

    @cuda.jit(device=True)
    def fetch_state(x, i, place):
        return get(x, i)

    @cuda.jit(device=True)
    def store_result(out, i, state, divisor):
        out[0][i] = finish(state, divisor)

    @cuda.jit(device=True)
    def store_state(out, i, state, divisor):
        put(out, i, state)

    return fetch_state if states else fetch_element, store_result if last else store_state


@functools.lru_cache(256)
def cells_of(op: Operator, dtype: np.dtype, count: int) -> Callable:
    """``cells()``, which makes shared arrays for so many states."""
    kinds = [number.dtype for number in op.identity(dtype)]
    first, second, third = (*kinds, None, None)[:3]

    @cuda.jit(device=True)
    def one_array():
        return (cuda.shared.array(count, first),)

    @cuda.jit(device=True)
    def two_arrays():
        return cuda.shared.array(count, first), cuda.shared.array(count, second)

    @cuda.jit(device=True)
    def three_arrays():
        return cuda.shared.array(count, first), cuda.shared.array(count, second), cuda.shared.array(count, third)

    return (one_array, two_arrays, three_arrays)[len(kinds) - 1]


# ------------------------------------------------------------------------------------------------------- four at a time


def wide_row(load, combine):
    """The state of four neighbours of a row, from one load."""

    @cuda.jit(device=True)
    def fetch_row(x, i, place):
        a, b, c, d = load128(x, i)
        return combine(
            combine(load(a, place), load(b, place + 1)),
            combine(load(c, place + 2), load(d, place + 3)),
        )

    return fetch_row


@functools.lru_cache(256)
def one_column(fetch, combine):
    """A thread has one column."""

    @cuda.jit(device=True)
    def spread(none):
        return none

    @cuda.jit(device=True)
    def fetch_each(x, i, k, column, tile):
        return fetch(x, i, k)

    return spread, fetch_each, combine, put


def wide_columns(load, combine):
    """A thread has four columns: a state for each. In a tile of whole rows some may be in the next row."""

    @cuda.jit(device=True)
    def spread(none):
        return none, none, none, none

    @cuda.jit(device=True)
    def fetch_each(x, i, k, column, tile):
        a, b, c, d = load128(x, i)
        return (
            load(a, k),
            load(b, k + (column + 1) // tile),
            load(c, k + (column + 2) // tile),
            load(d, k + (column + 3) // tile),
        )

    @cuda.jit(device=True)
    def combine_each(a, b):
        return combine(a[0], b[0]), combine(a[1], b[1]), combine(a[2], b[2]), combine(a[3], b[3])

    @cuda.jit(device=True)
    def put_each(cells, i, states):
        put(cells, i, states[0])
        put(cells, i + 1, states[1])
        put(cells, i + 2, states[2])
        put(cells, i + 3, states[3])

    return spread, fetch_each, combine_each, put_each
