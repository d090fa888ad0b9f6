"""States of a reduction as tuples of numbers: in arrays, in the lanes of a warp, and as kernels load and store them.

For `pmpp.kernels.reduction.over_axes`. The operators that make and combine states stand in
`pmpp.kernels.reduction.operators`. Chapter: notebooks/33_reduction_over_axes.ipynb.

``len(state)`` is known when a kernel is compiled. So of each function here only one branch is.
"""

from __future__ import annotations

import functools
import typing
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


@cuda.jit(device=True)
def chosen(condition, a, b):
    """The state a if the condition holds, else b. A choice number by number is no branch: both are there already."""
    if len(a) == 1:
        return (a[0] if condition else b[0],)
    if len(a) == 2:
        return (a[0] if condition else b[0]), (a[1] if condition else b[1])
    return (a[0] if condition else b[0]), (a[1] if condition else b[1]), (a[2] if condition else b[2])


@cuda.jit(device=True)
def quotient(a, b):
    """``a // b`` and ``a % b`` of numbers from 0 to 2^32 - 1. In 64 bits a division takes several times as long."""
    whole = np.int64(np.uint32(a) // np.uint32(b))
    return whole, np.int64(a) - whole * np.int64(b)


@cuda.jit(device=True)
def rows_on(column, tile):
    """How many rows further a place is that begins at ``column``, at most 3 behind a tile of 2 columns or more."""
    return int(column >= tile) + int(column >= 2 * tile)


# ------------------------------------------------------------------------------------------------ several loads at once
#
# A load that stands in a branch with what is done to its value is waited for before the next branch begins. So near the
# end of a row or a column all loads are made, of a place that exists, and what does not belong is replaced by the
# identity afterwards. That costs a choice for each, and saves the latency of all but one.


class RowLoads(typing.NamedTuple):
    """The state of several loads of a row, which begin at element i and lie ``step`` apart."""

    four: Callable  # four(x, i, step, place)
    three: (
        Callable  # three(x, i, step, place, end, home, none): for those that begin at ``end`` or behind, home is read
    )


@functools.lru_cache(256)
def row_loads(fetch: Callable, load: Callable, combine: Callable, width: int) -> RowLoads:
    """For loads of four neighbours, of eight, or of one."""

    @cuda.jit(device=True)
    def of_four(v, place):
        ab = combine(load(v[0], place), load(v[1], place + 1))
        return combine(ab, combine(load(v[2], place + 2), load(v[3], place + 3)))

    @cuda.jit(device=True)
    def of_eight(v, place):
        return combine(of_four(v[:4], place), of_four(v[4:], place + 4))

    of_all = of_eight if width == 8 else of_four

    @cuda.jit(device=True)
    def four_wide(x, i, step, place):
        a, b, c, d = load128(x, i), load128(x, i + step), load128(x, i + 2 * step), load128(x, i + 3 * step)
        ab = combine(of_all(a, place), of_all(b, place + step))
        return combine(ab, combine(of_all(c, place + 2 * step), of_all(d, place + 3 * step)))

    @cuda.jit(device=True)
    def three_wide(x, i, step, place, end, home, none):
        two, three = i + step < end, i + 2 * step < end
        a, b, c = load128(x, i), load128(x, i + step if two else home), load128(x, i + 2 * step if three else home)
        ab = combine(of_all(a, place), chosen(two, of_all(b, place + step), none))
        return combine(ab, chosen(three, of_all(c, place + 2 * step), none))

    @cuda.jit(device=True)
    def four_single(x, i, step, place):
        a, b = fetch(x, i, place), fetch(x, i + step, place + step)
        c, d = fetch(x, i + 2 * step, place + 2 * step), fetch(x, i + 3 * step, place + 3 * step)
        return combine(combine(a, b), combine(c, d))

    @cuda.jit(device=True)
    def three_single(x, i, step, place, end, home, none):
        two, three = i + step < end, i + 2 * step < end
        a, b = fetch(x, i, place), fetch(x, i + step if two else home, place + step)
        c = fetch(x, i + 2 * step if three else home, place + 2 * step)
        return combine(combine(a, chosen(two, b, none)), chosen(three, c, none))

    return RowLoads(four_wide, three_wide) if width > 1 else RowLoads(four_single, three_single)


@functools.lru_cache(256)
def short_loads(load: Callable, combine: Callable, n: int) -> Callable:
    """``row(tile, first, none)``: the state of a row of n elements in shared memory, read as wide as it allows."""

    @cuda.jit(device=True)
    def by_four(tile, first, none):
        total = none
        for k in range(0, n, 4):
            a, b, c, d = load128(tile, first + k)
            ab = combine(load(a, k), load(b, k + 1))
            total = combine(total, combine(ab, combine(load(c, k + 2), load(d, k + 3))))
        return total

    @cuda.jit(device=True)
    def by_one(tile, first, none):
        total = none
        for k in range(n):
            total = combine(total, load(tile[first + k], k))
        return total

    return by_one if n % 4 else by_four


class Columnwise(typing.NamedTuple):
    """What a thread does with its columns, four of them or one: the same with each."""

    spread: Callable  # spread(none): a state for each
    fetch: Callable  # fetch(x, i, k, column, tile): the states of one load; elements k of their columns
    combine: Callable
    chosen: Callable
    put: Callable


@functools.lru_cache(256)
def column_loads(fetch: Callable, load: Callable, combine: Callable, width: int) -> Columnwise:
    """For four neighbouring columns from one load, or for one. In a tile of whole rows some may be in the next row."""

    @cuda.jit(device=True)
    def spread_one(none):
        return none

    @cuda.jit(device=True)
    def spread_four(none):
        return none, none, none, none

    @cuda.jit(device=True)
    def fetch_one(x, i, k, column, tile):
        return fetch(x, i, k)

    @cuda.jit(device=True)
    def fetch_four(x, i, k, column, tile):
        a, b, c, d = load128(x, i)
        ab = load(a, k), load(b, k + rows_on(column + 1, tile))
        return ab[0], ab[1], load(c, k + rows_on(column + 2, tile)), load(d, k + rows_on(column + 3, tile))

    @cuda.jit(device=True)
    def combine_four(a, b):
        return combine(a[0], b[0]), combine(a[1], b[1]), combine(a[2], b[2]), combine(a[3], b[3])

    @cuda.jit(device=True)
    def chosen_four(condition, a, b):
        ab = chosen(condition, a[0], b[0]), chosen(condition, a[1], b[1])
        return ab[0], ab[1], chosen(condition, a[2], b[2]), chosen(condition, a[3], b[3])

    @cuda.jit(device=True)
    def put_four(cells, i, states):
        put(cells, i, states[0])
        put(cells, i + 1, states[1])
        put(cells, i + 2, states[2])
        put(cells, i + 3, states[3])

    if width == 4:
        return Columnwise(spread_four, fetch_four, combine_four, chosen_four, put_four)
    return Columnwise(spread_one, fetch_one, combine, chosen, put)
