"""Sparse matrices in other formats: they hold what they were made of, and their products are right."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, lab, simt
from pmpp.kernels.sparse import formats, propagation_blocking
from pmpp.kernels.sparse import ladder as room
from pmpp.runtime import device
from tests.kernels.sparse.wrong_formats import RIGHT
from tests.kernels.sparse.wrong_formats import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of

EVERY = room.inputs()
# No format here has tiles, and a thread a value or a row has no other paths at the borders of blocks.
INPUTS = {name: given for name, given in EVERY.items() if "tile" not in name and "block" not in name}
RNG = np.random.default_rng(14)
LENGTHS = np.minimum(200 // np.arange(1, 121), 150)[RNG.permutation(120)]
INPUTS["power law"] = *room.rows_of(LENGTHS, 120, RNG), RNG.standard_normal(120, dtype=np.float32)  # a small one
LENGTHS = [0, 3, 1500, 0, 40, 700, 1, *[2] * 60, 500, 0]
INPUTS["two pieces"] = *room.rows_of(LENGTHS, 70, RNG), RNG.standard_normal(70, dtype=np.float32)
FEW = ["power law", "no rows", "nothing stored", "one", "a row", "not finite"]  # wrong kernels fail on the first
FEW += ["two pieces"]  # or on the last


def to_small_tiles(values, columns, starts, width, **rest):
    """Slices so narrow that these matrices have several, and pieces of two warps."""
    return formats.to_tiled(values, columns, starts, width, width_of_slice=32, piece=2048, **rest)


ROWS_OR_COLUMNS = [formats.to_coordinates, formats.to_columns, formats.to_padded, formats.to_hybrid, formats.to_jagged]
MAKERS = [*ROWS_OR_COLUMNS, to_small_tiles]
each_format = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments), np.dtype(np.float32))


def faults(product, names):
    for name in names:
        given = INPUTS[name]
        if found := judge.faults(product, given, lambda result, given=given: right(result, *given)):
            return found
    return []


@functools.cache
def made_of(make, name):
    """An input in a format, for tests that only look at it."""
    values, columns, starts, x = INPUTS[name]
    return make(values, columns, starts, x.size)


def product_in(make):
    return lambda values, columns, starts, x: formats.multiply(make(values, columns, starts, x.size), x)


@each_format
def test_a_format_has_no_fault(make):
    assert faults(product_in(make), [*FEW, "empty rows first and last", "starts of 64 bits"]) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, FEW)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function, FEW) == []


@each_format
@hypothesis.given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 5, 31, 33]), min_size=1, max_size=30),
    width=st.integers(1, 50),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=3)
def test_any_lengths_of_rows(make, lengths, width, seed):
    rng = np.random.default_rng(seed)
    arguments = *room.rows_of(lengths, width, rng), rng.standard_normal(width, np.float32)
    assert right(device.to_host(product_in(make)(*arguments)), *arguments)


def full(rows, width, values, row, column):
    """A matrix with its values where they belong; of a place that occurs twice the sum."""
    out = np.zeros((rows, width))
    np.add.at(out, (row, column), values)
    return out


@each_format
@pytest.mark.parametrize("name", ["empty rows first and last", "power law", "two pieces"])
def test_a_format_holds_the_matrix(make, name):
    values, columns, starts, x = INPUTS[name]
    rows, width = starts.size - 1, x.size
    made = made_of(make, name)
    assert made.shape == (rows, width)
    parts = [made.first, made.rest] if make is formats.to_hybrid else [made]
    assert all(part.shape == (rows, width) for part in parts)
    total = sum(full(rows, width, *elements(part)) for part in parts)
    row = np.repeat(np.arange(rows), np.diff(starts))
    np.testing.assert_array_equal(total, full(rows, width, values, row, columns))


def elements(part):
    """Values, rows and columns of what a part holds."""
    on_host = {name: device.to_host(x) for name, x in part._asdict().items() if hasattr(x, "dtype")}
    if isinstance(part, formats.Coordinates):
        return on_host["values"], on_host["rows"], on_host["columns"]
    if isinstance(part, formats.Columns):
        return on_host["values"], on_host["rows"], np.repeat(np.arange(part.shape[1]), np.diff(on_host["starts"]))
    if isinstance(part, formats.Padded):
        k, row = np.nonzero(on_host["columns"] >= 0)
        assert not on_host["values"][on_host["columns"] < 0].any()
        return on_host["values"][k, row], row, on_host["columns"][k, row]
    if isinstance(part, formats.Tiled):
        return elements_of_tiles(part, on_host)
    extents = np.diff(on_host["starts"])
    assert (np.diff(extents) <= 0).all()
    row = np.concatenate([on_host["order"][:extent] for extent in extents] or [np.zeros(0, int)])
    return on_host["values"], row, on_host["columns"]


def elements_of_tiles(part, on_host):
    """Value by value: its slice and its piece are those that NumPy cuts, and bits say where rows end."""
    starts, tiles, offsets, stored = (
        *(on_host[name] for name in ("starts", "tiles", "offsets")),
        on_host["starts"][-1],
    )
    np.testing.assert_array_equal(np.diff(tiles, axis=0), np.diff(offsets, axis=1))
    np.testing.assert_array_equal(tiles[0], on_host["slices"][:-1])
    np.testing.assert_array_equal(tiles[-1], on_host["slices"][1:])  # in a slice piece by piece
    places = on_host["places"].reshape(offsets.shape[0], 4, -1, 8).transpose(0, 2, 1, 3).reshape(-1).astype(int)
    lacking, places = places[stored:], places[:stored]
    assert (lacking == 4 * offsets[-1, -1]).all()
    p, place = np.arange(stored) // part.piece, places // 4
    s = np.array([np.searchsorted(offsets[one], at, side="right") - 1 for one, at in zip(p, place, strict=True)], int)
    at = 4 * (tiles[p, s] + place - offsets[p, s]) + places % 4
    assert (np.diff(at[np.lexsort((np.arange(stored), p, s))]) > 0).all()  # in a tile row by row
    filled_up = np.maximum.accumulate(
        np.where(np.isin(np.arange(part.values.size), at), np.arange(part.values.size), 0)
    )
    np.testing.assert_array_equal(on_host["values"], on_host["values"][filled_up])
    np.testing.assert_array_equal(on_host["columns"], on_host["columns"][filled_up])
    found = on_host["values"][at], s * part.width_of_slice + on_host["columns"][at]
    is_end = np.zeros(-(-stored // 32) * 32, int)
    lengths = np.diff(starts)
    is_end[starts[1:][lengths > 0] - 1] = 1
    np.testing.assert_array_equal(on_host["filled"], np.flatnonzero(lengths))
    np.testing.assert_array_equal(on_host["lasts"], places[is_end[:stored] == 1])
    borders = np.minimum(np.arange(tiles.shape[0]) * part.piece, stored)
    np.testing.assert_array_equal(on_host["firsts"], np.append(0, np.cumsum(is_end))[borders])
    np.testing.assert_array_equal(on_host["ends"], is_end.reshape(-1, 32) @ (1 << np.arange(32)))
    return found[0], np.repeat(np.arange(lengths.size), lengths), found[1]


@pytest.mark.parametrize("name", ["power law", "a row of several tiles"])
def test_compressed_columns_are_scipys(name):
    sparse = pytest.importorskip("scipy.sparse")
    values, columns, starts, x = EVERY[name]
    expected = sparse.csr_array((values, columns, starts), shape=(starts.size - 1, x.size)).tocsc()
    made = formats.to_columns(values, columns, starts, x.size)
    np.testing.assert_array_equal(device.to_host(made.starts), expected.indptr)
    np.testing.assert_array_equal(device.to_host(made.rows), expected.indices)
    np.testing.assert_array_equal(device.to_host(made.values), expected.data)


@each_format
@pytest.mark.parametrize("name", ["no rows", "nothing stored", "empty rows first and last", "power law", "two pieces"])
def test_the_way_back(make, name):
    values, columns, starts, x = INPUTS[name]
    if make is formats.to_columns:  # it puts the values of a row in the order of their columns
        row = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        order = np.lexsort((np.arange(row.size), columns, row))
        expected = values[order], columns[order], starts
    else:
        expected = values, columns, starts
    made = formats.to_rows(made_of(make, name))
    assert made.shape == (starts.size - 1, x.size)
    for found, right_one in zip(made, expected, strict=False):
        np.testing.assert_array_equal(device.to_host(found), right_one)


def test_coordinates_in_any_order():
    values, columns, starts, x = INPUTS["power law"]
    rows = np.repeat(np.arange(starts.size - 1, dtype=np.int32), np.diff(starts))
    mixed = np.random.default_rng(3).permutation(rows.size)
    order = mixed[np.argsort(rows[mixed], kind="stable")]
    made = formats.from_coordinates(values[mixed], columns[mixed], rows[mixed], [starts.size - 1, x.size])
    assert made.shape == (starts.size - 1, x.size)
    for found, expected in zip(made, (values[order], columns[order], starts), strict=False):
        np.testing.assert_array_equal(device.to_host(found), expected)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (9, 31), (300, 33)])
def test_full_matrices_are_scipys(shape):
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(4)
    full = np.where(rng.random(shape) < 0.2, rng.standard_normal(shape), 0).astype(np.float32)
    if full.size > 1:
        full[2, 3:6] = np.nan, -0.0, np.inf
    made, expected = formats.from_dense(full), sparse.csr_array(full)
    assert made.shape == shape
    for found, right_one in zip(made, (expected.data, expected.indices, expected.indptr), strict=False):
        np.testing.assert_array_equal(device.to_host(found), right_one)
    np.testing.assert_array_equal(device.to_host(formats.to_dense(*made[:3], shape[1])), full)


def test_a_place_that_is_stored_twice_is_added_up():
    values, columns, starts, x = INPUTS["power law"]
    rows = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    expected = np.zeros((starts.size - 1, x.size), np.float32)
    np.add.at(expected, (rows, columns), values)  # one after another, as the kernel does
    np.testing.assert_array_equal(device.to_host(formats.to_dense(values, columns, starts, x.size)), expected)


def test_how_much_of_a_row_is_padded():
    values, columns, starts, x = INPUTS["power law"]
    lengths = np.sort(np.diff(starts))[::-1]
    made = formats.to_hybrid(values, columns, starts, x.size)
    assert made.first.values.shape[0] == lengths[(lengths.size - 1) // 3]
    assert made.rest.values.size == np.maximum(lengths - made.first.values.shape[0], 0).sum()
    for most in (0, 1, lengths[0] + 3, 2**31 - 1):
        made = formats.to_hybrid(values, columns, starts, x.size, most=int(most))
        assert made.first.values.shape[0] == min(most, lengths[0])
        assert right(device.to_host(formats.multiply(made, x)), values, columns, starts, x)


@each_format
def test_out_and_stream(make):
    values, columns, starts, x = INPUTS["poisson"]
    stream = cuda.stream()
    made = make(values, columns, starts, x.size, stream=stream)
    out = device.to_device(np.full(400, np.nan, np.float32))
    assert formats.multiply(made, x, out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), values, columns, starts, x)


def test_errors_name_the_argument():
    values, columns, starts, x = INPUTS["poisson"]
    with pytest.raises(ValueError, match="width must be at least 1 where values are stored, was 0, but 1920 are"):
        formats.to_columns(values, columns, starts, 0)
    with pytest.raises(ValueError, match="most must be"):
        formats.to_hybrid(values, columns, starts, x.size, most=-1)
    for call in (lambda: formats.multiply(values, x), lambda: formats.to_rows(values)):
        with pytest.raises(TypeError, match=r"matrix must be one of Coordinates, .*, was ndarray"):
            call()
    with pytest.raises(ValueError, match=r"shape must have rows and columns where values are stored, was \(0, 9\)"):
        formats.from_coordinates(values[:1], columns[:1], columns[:1], (0, 9))
    with pytest.raises(ValueError, match="width must give fewer than 2\\^31 elements with 400 rows, was 5368710"):
        formats.to_dense(values, columns, starts, 5368710)
    with pytest.raises(ValueError, match="full must have 2 dimensions, had 1"):
        formats.from_dense(x)
    made = formats.to_hybrid(values, columns, starts, x.size)
    with pytest.raises(ValueError, match="x must"):
        formats.multiply(made, x[1:])
    with pytest.raises(ValueError, match=r"matrix\.first\.values"):
        formats.multiply(made, x, out=made.first.values.reshape(made.first.values.size)[:400])


OUTSIDE = {
    "a column": ({"columns": [0, 3, 1]}, "columns must be from 0 to 2, for width=3, was 3 at 1"),
    "a column before the first": ({"columns": [0, 1, -1]}, "columns must be from 0 to 2, .* was -1 at 2"),
    "starts behind 0": ({"starts": [1, 3]}, "starts must be from 0 to 3, the length of values, was from 1 to 3"),
    "starts that end before": ({"starts": [0, 2]}, "starts must be from 0 to 3, .*, was from 0 to 2"),
    "starts that fall": ({"starts": [0, 3, 1, 3]}, "starts must never fall, was 3 at 1 and then 1"),
}


@pytest.mark.parametrize("make", [*MAKERS, formats.to_tiled, formats.to_dense], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", OUTSIDE)
def test_indices_of_numpy_arrays_are_checked(make, name):
    """Kernels would read and write beside their arrays."""
    changed, said = OUTSIDE[name]
    given = {"columns": np.int32([0, 2, 1]), "starts": np.int32([0, 1, 3])}
    given |= {key: np.int32(value) for key, value in changed.items()}
    with pytest.raises(ValueError, match=said):
        make(np.ones(3, np.float32), **given, width=3)


def test_coordinates_of_numpy_arrays_are_checked():
    inside, outside = np.int32([0, 1]), np.int32([0, 5])
    with pytest.raises(ValueError, match=r"columns must be from 0 to 3, for shape=\(2, 4\), was 5 at 1"):
        formats.from_coordinates(np.ones(2, np.float32), outside, inside, (2, 4))
    with pytest.raises(ValueError, match=r"rows must be from 0 to 1, for shape=\(2, 4\), was 5 at 1"):
        formats.from_coordinates(np.ones(2, np.float32), inside, outside, (2, 4))


@pytest.mark.parametrize("name", ["power law", "nothing stored", "no rows", "one"])
def test_tiles_of_the_sizes_that_fit(name):
    assert faults(product_in(formats.to_tiled), [name]) == []


@pytest.mark.parametrize("name", [name for name in EVERY if "tile" in name])
def test_rows_of_many_runs_and_pieces(name):
    values, columns, starts, x = EVERY[name]
    made = formats.to_tiled(values, columns, starts, x.size, width_of_slice=100, piece=1024)
    assert right(device.to_host(formats.multiply(made, x)), *EVERY[name])


@pytest.mark.parametrize("name", ["power law", "two pieces"])
def test_tiles_without_asynchronous_copies(name, monkeypatch):
    monkeypatch.setattr(
        propagation_blocking, "CAPABILITY_OF", dict.fromkeys(propagation_blocking.CAPABILITY_OF, (99, 0))
    )
    assert faults(product_in(to_small_tiles), [name]) == []


def test_tiles_and_a_vector_that_begins_anywhere():
    values, columns, starts, x = INPUTS["two pieces"]
    made = to_small_tiles(values, columns, starts, x.size)
    shifted = device.to_device(np.append(np.float32(0), x))[1:]
    assert right(device.to_host(formats.multiply(made, shifted)), values, columns, starts, x)


def test_pieces_are_shorter_where_there_are_many_slices(monkeypatch):
    """On a GPU with 64 KB of shared memory tiles that are filled up may be too many for a piece of 8,192 values."""
    less = {**device.limits(), "max_shared_memory_per_multiprocessor": 2**16}
    monkeypatch.setattr(device, "limits", lambda: less)
    values, columns, starts, _ = INPUTS["power law"]
    assert formats.to_tiled(values, columns, starts, 120).piece == 2**13
    assert formats.to_tiled(values, columns, starts, 4 * 4096, width_of_slice=4).piece == 2**11
    with pytest.raises(ValueError, match="piece must be smaller, was 8192: up to 20484 products"):
        formats.to_tiled(values, columns, starts, 4 * 4096, width_of_slice=4, piece=2**13)


def test_tiles_give_the_same_bits_in_any_order_of_blocks():
    values, columns, starts, x = INPUTS["two pieces"]
    made, found = to_small_tiles(values, columns, starts, x.size), set()
    for seed in range(1 if device.on_gpu() else 2):
        with simt.schedule("shuffled", seed):
            found.add(device.to_host(formats.multiply(made, x)).tobytes())
    assert len(found) == 1


def test_a_product_in_tiles_asks_for_neighbours():
    """Each load of a warp brings what it uses: sectors, in bytes, are hardly more than the bytes of the format."""
    values, columns, starts = room.rows_of([16] * 1024, 8192, np.random.default_rng(0))
    made, ones = formats.to_tiled(values, columns, starts, 8192, width_of_slice=4096), np.ones(8192, np.float32)
    counters = lab.count(formats.multiply, made, ones).counters
    least = (4 + 2) * values.size + 4 * ones.size + (4 + 2) * values.size  # each step; the first with x
    assert least <= 32 * counters["global_load_sectors"] <= 1.5 * least  # several blocks bring a slice of x
    gathered = lab.count(room.merged, values, columns, starts, ones).counters["global_load_sectors"]
    assert gathered > 2 * counters["global_load_sectors"]


@pytest.mark.parametrize(
    "given",
    [{"width_of_slice": 0}, {"width_of_slice": 6}, {"width_of_slice": 2**15 + 4}, {"piece": 512}, {"piece": 1025}],
)
def test_sizes_of_tiles_are_checked(given):
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} must be"):
        formats.to_tiled(*INPUTS["one"][:3], 1, **given)


def test_too_many_tiles_are_refused():
    values, columns = device.empty(2**17, np.float32), device.empty(2**17, np.int32)
    starts = device.to_device(np.int32([0, 2**17]))
    with pytest.raises(
        ValueError, match=r"width must give fewer than 2\^31 tiles, was 2147483647: 536870912 slices of 4"
    ):
        formats.to_tiled(values, columns, starts, 2**31 - 1, width_of_slice=4)


def test_padded_rows_that_are_too_many_are_refused():
    starts = device.to_device(np.int32([0, 2**16, *[2**16] * 2**15]))
    values, columns = device.empty(2**16, np.float32), device.empty(2**16, np.int32)
    with pytest.raises(ValueError, match="of 32769 rows that are padded to 65536 values: use to_jagged"):
        formats.to_padded(values, columns, starts, 9)
