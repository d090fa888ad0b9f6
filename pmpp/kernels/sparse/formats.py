"""Sparse matrices in other formats than compressed rows: how they are made, and their products with a vector.

Chapter: notebooks/44_sparse.ipynb.  PMPP 4e sections 14.2 to 14.6; 5e ch. 17.

A format says in which order the stored values lie, and so which threads read neighbours:

- coordinates (COO): row by row, with the row of each value beside it.
- compressed columns (CSC): column by column.
- padded rows (ELL): the first values of all rows, then the second ones, and so on; short rows are filled up.
- hybrid: the first few values of each row padded, and the others by coordinates.
- jagged diagonals (JDS): as padded rows, but in the order of the rows' lengths, so that nothing is filled up.
- tiles: so that neither x is read nor a sum is written far apart. `propagation_blocking` says how.

All of them are made of compressed rows, and `to_rows` makes compressed rows of all of them again. `from_coordinates`
takes values in any order, and `from_dense` and `to_dense` a full matrix. Everything is made on the GPU, once for many
products. Rows keep the order of their values in each format. Where an array of a format is one of the compressed rows,
it is not copied: coordinates share ``values`` and ``columns`` with a matrix on the device, and tiles ``starts``.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan, sort
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.common.contents import check_places, check_starts
from pmpp.kernels.sparse import propagation_blocking
from pmpp.kernels.sparse.ladder import BLOCK, DTYPES, INDICES, f0, lanes_for, row_of, set_to_zero
from pmpp.kernels.sparse.propagation_blocking import GROUP, LONGEST, SHORTEST, WIDEST, Tiled, number_at
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

NOTHING = -1  # the column of a place that is only filled up


class Rows(typing.NamedTuple):
    """Compressed rows (CSR): the first three are what `ladder.arguments` takes."""

    values: typing.Any  # (stored,)
    columns: typing.Any
    starts: typing.Any  # (rows + 1,)
    shape: tuple[int, int]


class Coordinates(typing.NamedTuple):
    """Values in the order of their rows, each with its column and its row."""

    values: typing.Any  # (stored,)
    columns: typing.Any
    rows: typing.Any
    shape: tuple[int, int]


class Columns(typing.NamedTuple):
    """Values column by column, each with its row, and where each column starts."""

    values: typing.Any  # (stored,)
    rows: typing.Any
    starts: typing.Any  # (width + 1,)
    shape: tuple[int, int]


class Padded(typing.NamedTuple):
    """Value number k of row i at [k, i]. Where the row is shorter the column is -1."""

    values: typing.Any  # (longest, rows)
    columns: typing.Any
    shape: tuple[int, int]


class Hybrid(typing.NamedTuple):
    """The first values of each row, and what is left of long rows."""

    first: Padded
    rest: Coordinates
    shape: tuple[int, int]


class Jagged(typing.NamedTuple):
    """The rows in the ``order`` of their lengths, the longest first. Diagonal k has value number k of each row that has
    one, and starts at ``starts[k]``."""

    values: typing.Any  # (stored,)
    columns: typing.Any
    starts: typing.Any  # (longest + 1,)
    order: typing.Any  # (rows,)
    shape: tuple[int, int]


# ------------------------------------------------------------------------------------------------------ to make them


class _Given(typing.NamedTuple):
    values: typing.Any
    columns: typing.Any
    starts: typing.Any
    shape: tuple[int, int]
    stream: typing.Any


def _given(values, columns, starts, width, stream) -> _Given:
    """A matrix by compressed rows, checked."""
    stream = device.as_stream(stream)
    given, said = (columns, starts), f"width={width!r}"  # before they are made fit for the device
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, stream=stream)
    columns = device.as_input("columns", columns, dtypes="int32", shape=values.shape, stream=stream)
    starts = device.as_input("starts", starts, dtypes=INDICES, ndim=1, stream=stream)
    width = as_integer("width", width, 0, 2**31 - 1)
    if not starts.size:
        raise ValueError("starts must have at least 1 element, one more than there are rows, had 0")
    if values.size and not width:
        raise ValueError(f"width must be at least 1 where values are stored, was 0, but {values.size} are")
    if max(values.size, starts.size) >= 2**31:
        raise ValueError(f"values and starts must have fewer than 2^31 elements, had {values.size} and {starts.size}")
    check_places("columns", given[0], width, said)
    check_starts(given[1], values.size, "values")
    return _Given(values, columns, starts, (starts.size - 1, width), stream)


def _run(work: typing.Callable, *given: typing.Any) -> typing.Any:
    """Do the work of a public function, whose arguments have been checked: nothing is launched before."""
    return work(*given)


def _grid(n: int) -> tuple[int, int]:
    return blocks(n, BLOCK), BLOCK


@cuda.jit
def rows_kernel(starts, rows):
    j = cuda.grid(1)
    if j < rows.size:
        rows[j] = row_of(j, starts)


def _rows(given: _Given) -> typing.Any:
    rows = device.empty(given.values.size, np.int32, stream=given.stream)
    if rows.size:
        rows_kernel[*_grid(rows.size), given.stream](given.starts, rows)
    return rows


def to_coordinates(values, columns, starts, width, *, stream=0) -> Coordinates:
    """By coordinates: the row of each value, which a thread finds by searching in ``starts``.

    Args:
        values, columns, starts: a matrix by compressed rows, as `ladder.arguments` takes it. Here it is checked what
            NumPy arrays hold. What is on the device is not checked.
        width: how many columns it has, 0 <= width < 2^31.
        stream: the stream to work on.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_coordinates(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> made.rows.copy_to_host()
    array([0, 2, 2], dtype=int32)
    """
    return _run(_coordinates_of, _given(values, columns, starts, width, stream))


def _coordinates_of(given: _Given) -> Coordinates:
    return Coordinates(given.values, given.columns, _rows(given), given.shape)


@cuda.jit
def gather_kernel(order, values, rows, columns, values_out, rows_out, columns_out):
    i = cuda.grid(1)
    if i < order.size:
        at = order[i]
        values_out[i], rows_out[i], columns_out[i] = values[at], rows[at], columns[at]


@cuda.jit
def first_places_kernel(keys, starts):
    """starts[c]: how many of the sorted keys are less than c."""
    c = cuda.grid(1)
    if c < starts.size:
        low, high = 0, keys.size
        while low < high:
            middle = low + high >> 1
            if keys[middle] < c:
                low = middle + 1
            else:
                high = middle
        starts[c] = low


def to_columns(values, columns, starts, width, *, stream=0) -> Columns:
    """By compressed columns: the values are sorted by their columns, and keep the order of rows in each.

    This is the transposed matrix by compressed rows. Arguments and errors as in `to_coordinates`.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_columns(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> made.values.copy_to_host(), made.rows.copy_to_host(), made.starts.copy_to_host()
    (array([2., 5., 7.], dtype=float32), array([2, 0, 2], dtype=int32), array([0, 1, 2, 3], dtype=int32))
    """
    return _run(_columns_of, _given(values, columns, starts, width, stream))


def _columns_of(given: _Given) -> Columns:
    stored, width, empty = given.values.size, given.shape[1], functools.partial(device.empty, stream=given.stream)
    made = Columns(empty(stored, np.float32), empty(stored, np.int32), empty(width + 1, np.int32), given.shape)
    ordered = empty(stored, np.int32)
    if stored:
        order = sort.argsort(given.columns, stream=given.stream)
        parts = order, given.values, _rows(given), given.columns, made.values, made.rows, ordered
        gather_kernel[*_grid(stored), given.stream](*parts)
    first_places_kernel[*_grid(width + 1), given.stream](ordered, made.starts)
    return made


@cuda.jit
def lengths_kernel(starts, lengths):
    i = cuda.grid(1)
    if i < lengths.size:
        lengths[i] = starts[i + 1] - starts[i]


def _lengths(given: _Given) -> typing.Any:
    lengths = device.empty(given.shape[0], np.int32, stream=given.stream)
    lengths_kernel[*_grid(lengths.size), given.stream](given.starts, lengths)
    return lengths


@cuda.jit
def fill_kernel(values, columns):
    i = cuda.grid(1)
    if i < values.size:
        values[i], columns[i] = 0, NOTHING


@cuda.jit
def pad_kernel(values, columns, starts, values_out, columns_out, rest_ends, rest_values, rest_columns, rest_rows):
    """A thread a value. What lies beyond the padded part goes to the rest, if there is one."""
    j = cuda.grid(1)
    if j < values.size:
        row = row_of(j, starts)
        k, most = j - starts[row], values_out.shape[0]
        if k < most:
            values_out[k, row], columns_out[k, row] = values[j], columns[j]
        else:
            place = rest_ends[row] - (starts[row + 1] - j)
            rest_values[place], rest_columns[place], rest_rows[place] = values[j], columns[j], row


def _padded(given: _Given, longest: int) -> Padded:
    shape = longest, given.shape[0]
    if longest * given.shape[0] >= 2**31:
        raise ValueError(
            f"starts must leave room for padded rows, fewer than 2^31 places, was of {given.shape[0]} rows that are "
            f"padded to {longest} values: use to_jagged, or to_hybrid with a small most"
        )
    made = Padded(
        device.empty(shape, np.float32, stream=given.stream),
        device.empty(shape, np.int32, stream=given.stream),
        given.shape,
    )
    if made.values.size:
        flat = made.values.reshape(made.values.size), made.columns.reshape(made.values.size)
        fill_kernel[*_grid(made.values.size), given.stream](*flat)
    return made


def to_padded(values, columns, starts, width, *, stream=0) -> Padded:
    """All rows as long as the longest, by value numbers. Arguments and errors as in `to_coordinates`.

    Raises ValueError too if that is 2^31 places or more.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_padded(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> made.columns.copy_to_host()
    array([[ 1, -1,  0],
           [-1, -1,  2]], dtype=int32)
    """
    return _run(_padded_of, _given(values, columns, starts, width, stream))


def _padded_of(given: _Given) -> Padded:
    if not given.values.size:
        return _padded(given, 0)
    lengths = sort.sort(_lengths(given), descending=True, stream=given.stream)
    made = _padded(given, number_at(lengths, 0, given.stream))
    none = device.empty(0, np.int32, stream=given.stream), device.empty(0, np.float32, stream=given.stream)
    parts = made.values, made.columns, none[0], none[1], none[0], none[0]
    pad_kernel[*_grid(given.values.size), given.stream](given.values, given.columns, given.starts, *parts)
    return made


@cuda.jit
def beyond_kernel(lengths, most, beyond):
    """How many values a row has beyond the first ``most``."""
    i = cuda.grid(1)
    if i < lengths.size:
        beyond[i] = max(lengths[i] - most, 0)


def to_hybrid(values, columns, starts, width, *, most=None, stream=0) -> Hybrid:
    """The first ``most`` values of each row padded, and the others by coordinates.

    Args:
        values, columns, starts, width, stream: as in `to_coordinates`.
        most: at least 0; what the longest row has is enough. None: the most that a third of all rows have.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Bell and Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors"
    (2009), section 4.4, for the third.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_hybrid(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3, most=1)
    >>> made.first.columns.copy_to_host(), made.rest.rows.copy_to_host(), made.rest.values.copy_to_host()
    (array([[ 1, -1,  0]], dtype=int32), array([2], dtype=int32), array([7.], dtype=float32))
    """
    given = _given(values, columns, starts, width, stream)
    most = None if most is None else as_integer("most", most, 0, 2**31 - 1)
    return _run(_hybrid_of, given, most)


def _hybrid_of(given: _Given, most: int | None) -> Hybrid:
    empty = functools.partial(device.empty, stream=given.stream)
    if not given.values.size:
        nothing = Coordinates(empty(0, np.float32), empty(0, np.int32), empty(0, np.int32), given.shape)
        return Hybrid(_padded(given, 0), nothing, given.shape)
    lengths = _lengths(given)
    ordered = sort.sort(lengths, descending=True, stream=given.stream)
    if most is None:
        most = number_at(ordered, (lengths.size - 1) // 3, given.stream)
    else:
        most = min(most, number_at(ordered, 0, given.stream))
    first, beyond = _padded(given, most), empty(lengths.size, np.int32)
    beyond_kernel[*_grid(lengths.size), given.stream](lengths, most, beyond)
    ends = scan.cumsum(beyond, stream=given.stream)
    left = number_at(ends, lengths.size - 1, given.stream)
    rest = Coordinates(empty(left, np.float32), empty(left, np.int32), empty(left, np.int32), given.shape)
    parts = first.values, first.columns, ends, rest.values, rest.columns, rest.rows
    pad_kernel[*_grid(given.values.size), given.stream](given.values, given.columns, given.starts, *parts)
    return Hybrid(first, rest, given.shape)


@cuda.jit
def extents_kernel(lengths, extents):
    """extents[k]: how many rows have more than k values, of lengths that fall."""
    k = cuda.grid(1)
    if k < extents.size:
        low, high = 0, lengths.size
        while low < high:
            middle = low + high >> 1
            if lengths[middle] > k:
                low = middle + 1
            else:
                high = middle
        extents[k] = low


@cuda.jit
def places_kernel(order, places):
    i = cuda.grid(1)
    if i < order.size:
        places[order[i]] = i


@cuda.jit
def jag_kernel(values, columns, starts, places, diagonals, values_out, columns_out):
    j = cuda.grid(1)
    if j < values.size:
        row = row_of(j, starts)
        at = diagonals[j - starts[row]] + places[row]
        values_out[at], columns_out[at] = values[j], columns[j]


def to_jagged(values, columns, starts, width, *, stream=0) -> Jagged:
    """By jagged diagonals: rows are sorted by their lengths. Arguments and errors as in `to_coordinates`.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_jagged(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> made.values.copy_to_host(), made.starts.copy_to_host(), made.order.copy_to_host()
    (array([2., 5., 7.], dtype=float32), array([0, 2, 3], dtype=int32), array([2, 0, 1], dtype=int32))
    """
    return _run(_jagged_of, _given(values, columns, starts, width, stream))


def _jagged_of(given: _Given) -> Jagged:
    rows, stored, empty = given.shape[0], given.values.size, functools.partial(device.empty, stream=given.stream)
    if not stored:
        zeros = device.to_device(np.zeros(1, np.int32), stream=given.stream)
        order = sort.argsort(_lengths(given), stream=given.stream) if rows else empty(0, np.int32)
        return Jagged(empty(0, np.float32), empty(0, np.int32), zeros, order, given.shape)
    lengths = _lengths(given)
    order, places = sort.argsort(lengths, descending=True, stream=given.stream), empty(rows, np.int32)
    ordered = sort.sort(lengths, descending=True, stream=given.stream)
    longest = number_at(ordered, 0, given.stream)
    extents = empty(longest + 1, np.int32)  # the last is 0: no row has more than the longest
    extents_kernel[*_grid(extents.size), given.stream](ordered, extents)
    starts_out = scan.cumsum(extents, exclusive=True, stream=given.stream)
    places_kernel[*_grid(rows), given.stream](order, places)
    made = Jagged(empty(stored, np.float32), empty(stored, np.int32), starts_out, order, given.shape)
    parts = places, starts_out, made.values, made.columns
    jag_kernel[*_grid(stored), given.stream](given.values, given.columns, given.starts, *parts)
    return made


def to_tiled(values, columns, starts, width, *, width_of_slice=None, piece=None, stream=0) -> Tiled:
    """In tiles: slices of the columns, and pieces of equally many values.

    Args:
        values, columns, starts, width, stream: as in `to_coordinates`.
        width_of_slice: how many columns a slice has, a multiple of 4 up to 2^15. None: as many as fit shared memory.
        piece: how many values a piece has, a multiple of 1,024 up to 2^13. None: as many as fit shared memory.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted. That is also if
    there were 2^31 tiles or more.
    Source: Beamer, Asanović and Patterson, "Reducing PageRank communication via propagation blocking" (2017).

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_tiled(np.float32([5, 2, 7]), np.int32([1, 0, 6]), np.int32([0, 1, 1, 3]), 7, width_of_slice=4)
    >>> made.values.copy_to_host(), made.columns.copy_to_host()[::4], made.slices.copy_to_host()
    (array([5., 2., 2., 2., 7., 7., 7., 7.], dtype=float32), array([1, 2], dtype=uint16), array([0, 1, 2], dtype=int32))
    """
    given = _given(values, columns, starts, width, stream)
    if width_of_slice is None:
        width_of_slice = propagation_blocking.fitting(WIDEST)
    width_of_slice = as_integer("width_of_slice", width_of_slice, GROUP, WIDEST)
    if width_of_slice % GROUP:
        raise ValueError(f"width_of_slice must be a multiple of {GROUP}, was {width_of_slice}")
    slices = blocks(given.shape[1], width_of_slice)
    if piece is None:
        piece = propagation_blocking.piece_fitting(slices)
    piece = as_integer("piece", piece, SHORTEST, LONGEST)
    if piece % SHORTEST:
        raise ValueError(f"piece must be a multiple of {SHORTEST}, was {piece}")
    if not propagation_blocking.fits(most := propagation_blocking.most_products(piece, slices)):
        raise ValueError(
            f"piece must be smaller, was {piece}: up to {most} products, with tiles filled up, do not fit shared memory"
        )
    pieces = blocks(given.values.size, piece)
    if slices * (pieces + 1) >= 2**31:
        raise ValueError(
            f"width must give fewer than 2^31 tiles, was {width}: {slices} slices of {width_of_slice} columns and "
            f"{pieces} pieces of {piece} values"
        )
    return _run(_tiled_of, given, width_of_slice, piece)


def _tiled_of(given: _Given, width_of_slice: int, piece: int) -> Tiled:
    parts = given.values, given.columns, given.starts, given.shape
    return propagation_blocking.tiled_of(*parts, width_of_slice, piece, given.stream)


# -------------------------------------------------------------------------------------------- back to compressed rows


def _by_rows(values, columns, rows, shape, stream) -> Rows:
    """Of values in any order: they are sorted by their rows, and keep their order in each."""
    stored, empty = values.size, functools.partial(device.empty, stream=stream)
    made = Rows(empty(stored, np.float32), empty(stored, np.int32), empty(shape[0] + 1, np.int32), shape)
    ordered = empty(stored, np.int32)
    if stored:
        order = sort.argsort(rows, stream=stream)
        gather_kernel[*_grid(stored), stream](order, values, rows, columns, made.values, ordered, made.columns)
    first_places_kernel[*_grid(shape[0] + 1), stream](ordered, made.starts)
    return made


def from_coordinates(values, columns, rows, shape, *, stream=0) -> Rows:
    """Compressed rows of values in any order: those of a row keep theirs, and what is stored twice stays so.

    Args:
        values: a contiguous vector (s,) of float32, s < 2^31.
        columns, rows: contiguous vectors (s,) of int32: the place of each value, inside the matrix. That is checked of
            NumPy arrays, and not of what is on the device.
        shape: rows and columns of the matrix, two integers from 0 to 2^31 - 2.
        stream: the stream to work on.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.from_coordinates(np.float32([7, 5, 2]), np.int32([2, 1, 0]), np.int32([2, 0, 2]), (3, 3))
    >>> made.values.copy_to_host(), made.columns.copy_to_host(), made.starts.copy_to_host()
    (array([5., 7., 2.], dtype=float32), array([1, 2, 0], dtype=int32), array([0, 1, 1, 3], dtype=int32))
    """
    stream, given, said = device.as_stream(stream), (rows, columns), f"shape={shape!r}"
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, stream=stream)
    columns = device.as_input("columns", columns, dtypes="int32", shape=values.shape, stream=stream)
    rows = device.as_input("rows", rows, dtypes="int32", shape=values.shape, stream=stream)
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise TypeError(f"shape must be a pair of integers, rows and columns, was {shape!r}")
    shape = tuple(as_integer("shape", extent, 0, 2**31 - 2) for extent in shape)
    if values.size and not min(shape):
        raise ValueError(f"shape must have rows and columns where values are stored, was {shape}")
    if values.size >= 2**31:
        raise ValueError(f"values must have fewer than 2^31 elements, had {values.size}")
    for name, places, extent in zip(("rows", "columns"), given, shape, strict=True):
        check_places(name, places, extent, said)
    return _run(_by_rows, values, columns, rows, shape, stream)


@cuda.jit
def places_in_diagonals_kernel(starts, order, rows):
    """The row of each value: its place in its diagonal says which of the ordered rows it is of."""
    j = cuda.grid(1)
    if j < rows.size:
        rows[j] = order[j - starts[row_of(j, starts)]]


@cuda.jit
def lengths_of_padded_kernel(columns, rest_starts, lengths):
    """How many values each row has, in its padded part and in the rest. The last of ``lengths``, of no row, is 0."""
    row = cuda.grid(1)
    if row < lengths.size:
        k = 0
        if row < lengths.size - 1:
            while k < columns.shape[0] and columns[k, row] != NOTHING:
                k += 1
            k += rest_starts[row + 1] - rest_starts[row]
        lengths[row] = k


@cuda.jit
def unpad_kernel(values, columns, rest_values, rest_columns, rest_starts, starts, values_out, columns_out):
    """A thread a row: the values of the padded part, and behind them those of the rest."""
    row = cuda.grid(1)
    if row < starts.size - 1:
        at, k = starts[row], 0
        while k < columns.shape[0] and columns[k, row] != NOTHING:
            values_out[at], columns_out[at] = values[k, row], columns[k, row]
            k += 1
            at += 1
        for j in range(rest_starts[row], rest_starts[row + 1]):
            values_out[at], columns_out[at] = rest_values[j], rest_columns[j]
            at += 1


def _unpadded(padded: Padded, rest: Rows, stream) -> Rows:
    rows, empty = padded.shape[0], functools.partial(device.empty, stream=stream)
    lengths = empty(rows + 1, np.int32)
    lengths_of_padded_kernel[*_grid(rows + 1), stream](padded.columns, rest.starts, lengths)
    starts = scan.cumsum(lengths, exclusive=True, stream=stream)
    stored = number_at(starts, rows, stream)
    made = Rows(empty(stored, np.float32), empty(stored, np.int32), starts, padded.shape)
    if stored:
        parts = rest.values, rest.columns, rest.starts, starts, made.values, made.columns
        unpad_kernel[*_grid(rows), stream](padded.values, padded.columns, *parts)
    return made


def _rows_of_coordinates(matrix: Coordinates, stream) -> Rows:
    return _by_rows(matrix.values, matrix.columns, matrix.rows, matrix.shape, stream)


def _rows_of_columns(matrix: Columns, stream) -> Rows:
    columns = device.empty(matrix.values.size, np.int32, stream=stream)
    if columns.size:
        rows_kernel[*_grid(columns.size), stream](matrix.starts, columns)
    return _by_rows(matrix.values, columns, matrix.rows, matrix.shape, stream)


def _rows_of_padded(matrix: Padded, stream) -> Rows:
    nothing = device.empty(0, np.float32, stream=stream), *(device.empty(0, np.int32, stream=stream) for _ in range(2))
    return _unpadded(matrix, _by_rows(*nothing, matrix.shape, stream), stream)


def _rows_of_hybrid(matrix: Hybrid, stream) -> Rows:
    return _unpadded(matrix.first, _rows_of_coordinates(matrix.rest, stream), stream)


def _rows_of_jagged(matrix: Jagged, stream) -> Rows:
    rows = device.empty(matrix.values.size, np.int32, stream=stream)
    if rows.size:
        places_in_diagonals_kernel[*_grid(rows.size), stream](matrix.starts, matrix.order, rows)
    return _by_rows(matrix.values, matrix.columns, rows, matrix.shape, stream)


def _rows_of_tiles(matrix: Tiled, stream) -> Rows:
    stored = number_at(matrix.starts, matrix.shape[0], stream)
    made = Rows(
        device.empty(stored, np.float32, stream=stream),
        device.empty(stored, np.int32, stream=stream),
        matrix.starts,
        matrix.shape,
    )
    if stored:
        propagation_blocking.rows_again(matrix, made.values, made.columns, stream)
    return made


BACK = {
    Coordinates: _rows_of_coordinates,
    Columns: _rows_of_columns,
    Padded: _rows_of_padded,
    Hybrid: _rows_of_hybrid,
    Jagged: _rows_of_jagged,
    Tiled: _rows_of_tiles,
}


def _known(matrix) -> None:
    if type(matrix) not in BACK:
        known = ", ".join(kind.__name__ for kind in BACK)
        raise TypeError(f"matrix must be one of {known}, was {type(matrix).__name__}")


def to_rows(matrix, *, stream=0) -> Rows:
    """Compressed rows of a matrix in another format.

    Args:
        matrix: what one of this file's functions has made.
        stream: the stream to work on.

    In a row the values keep their order. Of compressed columns that is the order of the columns; of the others it is
    the one that they were made with.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_jagged(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> rows = formats.to_rows(made)
    >>> rows.values.copy_to_host(), rows.columns.copy_to_host(), rows.starts.copy_to_host()
    (array([5., 2., 7.], dtype=float32), array([1, 0, 2], dtype=int32), array([0, 1, 1, 3], dtype=int32))
    """
    _known(matrix)
    return _run(BACK[type(matrix)], matrix, device.as_stream(stream))


# --------------------------------------------------------------------------------------------------- full matrices


@cuda.jit
def spread_kernel(values, columns, starts, full):
    """A thread a row, so that values of one place are added up in their order."""
    row = cuda.grid(1)
    if row < full.shape[0]:
        for j in range(starts[row], starts[row + 1]):
            full[row, columns[j]] += values[j]


def to_dense(values, columns, starts, width, *, stream=0):
    """The full matrix (rows, width), a device array of float32. Values of one place are added up.

    Arguments and errors as in `to_coordinates`. Raises ValueError too if it has 2^31 elements or more.

    >>> from pmpp.kernels.sparse import formats
    >>> formats.to_dense(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3).copy_to_host()
    array([[0., 5., 0.],
           [0., 0., 0.],
           [2., 0., 7.]], dtype=float32)
    """
    given = _given(values, columns, starts, width, stream)
    if given.shape[0] * given.shape[1] >= 2**31:
        raise ValueError(f"width must give fewer than 2^31 elements with {given.shape[0]} rows, was {given.shape[1]}")
    return _run(_dense_of, given)


def _dense_of(given: _Given) -> typing.Any:
    full = device.empty(given.shape, np.float32, stream=given.stream)
    if full.size:
        _clear(full.reshape(full.size), given.stream)
        spread_kernel[*_grid(given.shape[0]), given.stream](given.values, given.columns, given.starts, full)
    return full


@cuda.jit
def count_kernel(full, lengths):
    """A warp a row: how many of its elements are not zero. The last of ``lengths``, of no row, is 0."""
    row, count = cuda.grid(1) // 32, 0
    if row < lengths.size:
        if row < full.shape[0]:
            for first in range(0, full.shape[1], 32):
                column = first + cuda.laneid
                there = column < full.shape[1] and full[row, column] != 0
                count += cuda.popc(cuda.ballot_sync(FULL_WARP, there))
        if cuda.laneid == 0:
            lengths[row] = count


@cuda.jit
def collect_kernel(full, starts, values, columns):
    """A warp a row: each lane's element goes behind those of the lanes before it."""
    row = cuda.grid(1) // 32
    if row < full.shape[0]:
        at, before = starts[row], (1 << cuda.laneid) - 1
        for first in range(0, full.shape[1], 32):
            column = first + cuda.laneid
            there = column < full.shape[1] and full[row, column] != 0
            votes = cuda.ballot_sync(FULL_WARP, there)
            if there:
                place = at + cuda.popc(votes & before)
                values[place], columns[place] = full[row, column], column
            at += cuda.popc(votes)


def from_dense(full, *, stream=0) -> Rows:
    """Compressed rows of a full matrix: what is not zero, row by row. A NaN is not zero; -0.0 is.

    Args:
        full: a matrix (rows, width) of float32, contiguous in C order, with fewer than 2^31 elements.
        stream: the stream to work on.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``scipy.sparse.csr_array(full)``; PMPP 5e chapter 12, for what is collected.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.from_dense(np.float32([[0, 5, 0], [0, 0, 0], [2, 0, 7]]))
    >>> made.values.copy_to_host(), made.columns.copy_to_host(), made.starts.copy_to_host()
    (array([5., 2., 7.], dtype=float32), array([1, 0, 2], dtype=int32), array([0, 1, 1, 3], dtype=int32))
    """
    stream = device.as_stream(stream)
    full = device.as_input("full", full, dtypes=DTYPES, ndim=2, stream=stream)
    if max(full.size, *full.shape) >= 2**31 - 1:
        raise ValueError(f"full must have fewer than 2^31 elements, was of shape {full.shape}")
    return _run(_rows_of_dense, full, stream)


def _rows_of_dense(full, stream) -> Rows:
    rows, empty = full.shape[0], functools.partial(device.empty, stream=stream)
    lengths = empty(rows + 1, np.int32)
    count_kernel[*_grid((rows + 1) * 32), stream](full, lengths)
    starts = scan.cumsum(lengths, exclusive=True, stream=stream)
    stored = number_at(starts, rows, stream)
    made = Rows(empty(stored, np.float32), empty(stored, np.int32), starts, tuple(full.shape))
    if stored:
        collect_kernel[*_grid(rows * 32), stream](full, starts, made.values, made.columns)
    return made


# ----------------------------------------------------------------------------------------------------------- products


@cuda.jit
def coordinates_kernel(values, columns, rows, x, out):
    """A thread a value. Lanes of a warp whose values are of one row add them up; the first of them adds to the row."""
    j = cuda.grid(1)
    row, total = np.int32(-1), f0
    if j < values.size:
        row, total = rows[j], values[j] * x[columns[j]]
    before = cuda.shfl_up_sync(FULL_WARP, row, 1)
    distance = 1
    while distance < 32:
        other_row = cuda.shfl_down_sync(FULL_WARP, row, distance)
        other = cuda.shfl_down_sync(FULL_WARP, total, distance)
        if cuda.laneid + distance < 32 and other_row == row:
            total += other
        distance *= 2
    if row >= 0 and (cuda.laneid == 0 or before != row):
        cuda.atomic.add(out, row, total)


@cuda.jit
def columns_kernel(values, rows, starts, x, lanes, out):
    """A team of lanes a column: its element of x is read once, and each product is added to another row."""
    thread = cuda.grid(1)
    column, lane = thread // lanes, thread % lanes
    if column < x.size:
        factor = x[column]
        for j in range(starts[column] + lane, starts[column + 1], lanes):
            cuda.atomic.add(out, rows[j], values[j] * factor)


@cuda.jit
def padded_kernel(values, columns, x, out):
    """A thread a row: neighbours read neighbours in each step."""
    row = cuda.grid(1)
    if row < out.size:
        total, k = f0, 0
        while k < values.shape[0] and columns[k, row] != NOTHING:
            total += values[k, row] * x[columns[k, row]]
            k += 1
        out[row] = total


@cuda.jit
def jagged_kernel(values, columns, starts, order, x, out):
    """A thread a row, in the order of their lengths: lanes of a warp end at nearly the same time."""
    place = cuda.grid(1)
    if place < order.size:
        total, k = f0, 0
        while k < starts.size - 1 and place < starts[k + 1] - starts[k]:
            j = starts[k] + place
            total += values[j] * x[columns[j]]
            k += 1
        out[order[place]] = total


def _add_coordinates(matrix: Coordinates, x, out, stream) -> None:
    if matrix.values.size:
        parts = matrix.values, matrix.columns, matrix.rows
        coordinates_kernel[*_grid(matrix.values.size), stream](*parts, x, out)


def _clear(out, stream) -> None:
    set_to_zero(out, stream)


def _by_coordinates(matrix, x, out, stream):
    _clear(out, stream)
    _add_coordinates(matrix, x, out, stream)


def _by_columns(matrix, x, out, stream):
    _clear(out, stream)
    if matrix.values.size:
        lanes = lanes_for(x.size, matrix.values.size)
        parts = matrix.values, matrix.rows, matrix.starts
        columns_kernel[*_grid(x.size * lanes), stream](*parts, x, np.int32(lanes), out)


def _by_padded(matrix, x, out, stream):
    padded_kernel[*_grid(out.size), stream](matrix.values, matrix.columns, x, out)


def _by_hybrid(matrix, x, out, stream):
    _by_padded(matrix.first, x, out, stream)
    _add_coordinates(matrix.rest, x, out, stream)


def _by_jagged(matrix, x, out, stream):
    jagged_kernel[*_grid(out.size), stream](matrix.values, matrix.columns, matrix.starts, matrix.order, x, out)


def _by_tiles(matrix, x, out, stream):
    if matrix.values.size:
        propagation_blocking.by_tiles(matrix, x, out, stream)
    else:
        _clear(out, stream)


WAYS = {
    Coordinates: _by_coordinates,
    Columns: _by_columns,
    Padded: _by_padded,
    Hybrid: _by_hybrid,
    Jagged: _by_jagged,
    Tiled: _by_tiles,
}


def _arrays(matrix) -> typing.Iterator[tuple[str, typing.Any]]:
    """The arrays of a matrix, with the names of their fields."""
    if isinstance(matrix, Hybrid):
        yield from ((f"first.{name}", array) for name, array in _arrays(matrix.first))
        yield from ((f"rest.{name}", array) for name, array in _arrays(matrix.rest))
    else:
        yield from ((name, array) for name, array in matrix._asdict().items() if hasattr(array, "dtype"))


def multiply(matrix, x, *, out=None, stream=0):
    """A sparse matrix times a vector, in whatever format the matrix is.

    Args:
        matrix: what one of this file's functions has made.
        x: a contiguous vector (width,) of float32.
        out: a device array (rows,) of float32, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. By padded rows, jagged diagonals and tiles the same call
    gives the same bits on the same GPU. By the others additions come in any order.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e sections 14.2 to 14.6; Bell and Garland (2009), whose sum of a warp by segments this one simplifies.

    >>> from pmpp.kernels.sparse import formats
    >>> made = formats.to_jagged(np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3]), 3)
    >>> formats.multiply(made, np.float32([1, 10, 100])).copy_to_host()
    array([ 50.,   0., 702.], dtype=float32)
    """
    _known(matrix)
    rows, width = matrix.shape
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, shape=(width,), stream=stream)
    apart = {"x": x, **{f"matrix.{name}": array for name, array in _arrays(matrix)}}
    out = device.as_output("out", out, shape=(rows,), dtype=np.float32, apart=apart, stream=stream)
    if rows:
        _run(WAYS[type(matrix)], matrix, x, out, stream)
    return out
