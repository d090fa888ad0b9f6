"""Sparse: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import sparse as subject
from pmpp.kernels.sparse import gathers_alone, spmm, workloads
from pmpp.kernels.sparse import ladder as room
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from tests.kernels.sparse.faults import Faults
from tests.kernels.sparse.wrong import RIGHT
from tests.kernels.sparse.wrong import RUNGS as WRONG
from tests.support.wrong import hazards, name_of, observe, total, watch

BLOCK, TILE, FAULTS = room.BLOCK, room.TILE, Faults(room, further="power law")
INPUTS = FAULTS.inputs
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_input = pytest.mark.parametrize("name", INPUTS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """Beyond the room's inputs, on which tests/contract/test_rooms.py checks every rung."""
    assert FAULTS.of_misaligned(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert FAULTS.of(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert FAULTS.of(function) == []


@each_input
def test_the_reference_is_scipys(name):
    sparse = pytest.importorskip("scipy.sparse")
    values, columns, starts, x = INPUTS[name]
    with np.errstate(all="ignore"):
        matrix = sparse.csr_array((values.astype(np.float64), columns, starts), shape=(starts.size - 1, x.size))
        expected = (matrix @ x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(room.reference(*INPUTS[name]), expected, rtol=1e-6, atol=1e-30)


@each_rung
@hypothesis.given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 5, 31, 33, 300]), min_size=1, max_size=40),
    repeat=st.sampled_from([1, 1, 9]),
    width=st.integers(1, 50),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_lengths_of_rows(rung, lengths, repeat, width, wide, seed):
    rng = np.random.default_rng(seed)
    values, columns, starts = room.rows_of(lengths * repeat, width, rng)
    arguments = values, columns, starts.astype(np.int64 if wide else np.int32), rng.standard_normal(width, np.float32)
    assert FAULTS.right(device.to_host(rung(*arguments)), *arguments)


@pytest.mark.parametrize("piece", [100, 2 * TILE + 1, 7 * TILE])
def test_pieces_of_other_lengths(monkeypatch, piece):
    monkeypatch.setattr(room, "piece_of", lambda steps: piece)
    names = ("a row of several tiles", "a tile of a row, and empty rows", "a row that ends with the second tile")
    for name in (*names, "power law", "poisson"):
        assert FAULTS.right(device.to_host(room.merged(*INPUTS[name])), *INPUTS[name]), name


@pytest.mark.parametrize("rung", [room.staged, room.merged], ids=lambda rung: rung.name)
def test_the_same_call_gives_the_same_bits(rung):
    arguments, found = INPUTS["power law"], set()
    for seed in range(1 if device.on_gpu() else 2):
        with simt.schedule("shuffled", seed):
            found.add(device.to_host(rung(*arguments)).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("piece", [2, 7, 100])
def test_each_piece_begins_in_the_row_that_has_its_first_step(piece):
    lengths = np.random.default_rng(2).choice([0, 0, 1, 5, 40, 700], 150)
    values, columns, starts = room.rows_of(lengths, 9, np.random.default_rng(3))
    p = room.arguments(values, columns, starts, np.ones(9, np.float32))
    ends = starts[1:].astype(np.int64) + np.arange(150)  # the step in which each row is finished
    expected = np.searchsorted(ends, np.arange(0, values.size + 150 + piece, piece))
    np.testing.assert_array_equal(device.to_host(spmm.cuts_of(p, piece)), expected)


def test_parts_of_a_row_are_added_however_many():
    """Blocks that left no row but their own open, one block of a row, and more of one row than a block has threads."""
    rows = np.repeat(np.int64([0, 3, 4, 6]), [2, 1, 2 * BLOCK + 5, 3])  # row number 6 is beyond the last one
    sums, out = np.arange(1, rows.size + 1, dtype=np.float32), device.to_device(np.arange(6, dtype=np.float32))
    room.finish_kernel[rows.size, BLOCK](device.to_device(rows), device.to_device(sums), out)
    expected = np.arange(6) + np.bincount(rows, sums, minlength=7)[:6]
    np.testing.assert_array_equal(device.to_host(out), expected)


def test_poissons_matrix_is_the_laplacian():
    sparse = pytest.importorskip("scipy.sparse")
    values, columns, starts = room.poisson(7)
    line = sparse.diags_array([-np.ones(6), 2 * np.ones(7), -np.ones(6)], offsets=[-1, 0, 1])
    expected = (sparse.kron(line, sparse.eye_array(7)) + sparse.kron(sparse.eye_array(7), line)).toarray()
    np.testing.assert_array_equal(sparse.csr_array((values, columns, starts), shape=(49, 49)).toarray(), expected)


def test_the_plain_function():
    arguments = INPUTS["power law"]
    assert FAULTS.right(device.to_host(subject.multiply(*arguments)), *arguments)


@each_rung
def test_out_and_stream(rung):
    arguments, stream = INPUTS["poisson"], cuda.stream()
    out = device.to_device(np.full(400, np.nan, np.float32))
    assert rung(*map(device.to_device, arguments), out=out, stream=stream) is out
    stream.synchronize()
    assert FAULTS.right(device.to_host(out), *arguments)


# ------------------------------------------------------------------------------------------------------------ bad input

F, C, S, X = np.ones(3, np.float32), np.int32([0, 1, 1]), np.int32([0, 1, 3]), np.ones(2, np.float32)
BAD = {
    "values of float64": ((F.astype(float), C, S, X), {}, TypeError, "values must be float32, was float64"),
    "values in a matrix": (
        (np.ones((1, 3), np.float32), C, S, X),
        {},
        ValueError,
        "values must have 1 dimension, had 2",
    ),
    "columns of int64": ((F, C.astype(np.int64), S, X), {}, TypeError, "columns must be int32, was int64"),
    "too few columns": ((F, C[:2], S, X), {}, ValueError, r"columns must have shape \(3,\), had \(2,\)"),
    "starts of float32": ((F, C, S.astype(np.float32), X), {}, TypeError, "starts must be int32 or int64, was float32"),
    "no starts": ((F, C, S[:0], X), {}, ValueError, "starts must have at least 1 element, .*, had 0"),
    "x of int32": ((F, C, S, C), {}, TypeError, "x must be float32, was int32"),
    "no x": ((F, C, S, X[:0]), {}, ValueError, "x must have an element for each column, had 0, but 3 values"),
    "a column beyond x": ((F, np.int32([0, 2, 1]), S, X), {}, ValueError, "columns must be from 0 to 1, .* was 2 at 1"),
    "a column before the first": ((F, np.int32([0, 1, -1]), S, X), {}, ValueError, "columns must be .* was -1 at 2"),
    "starts behind 0": ((F, C, S + 1, X), {}, ValueError, "starts must be from 0 to 3, .*, was from 1 to 4"),
    "starts that end before": ((F, C, S[:2], X), {}, ValueError, "starts must be from 0 to 3, .*, was from 0 to 1"),
    "starts that fall": ((F, C, np.int64([0, 2, 1, 3]), X), {}, ValueError, "starts must never fall, was 2 at 1"),
    "every other x": ((F, C, S, np.ones(4, np.float32)[::2]), {}, ValueError, "x must be contiguous in C order"),
    "out on the host": ((F, C, S, X), {"out": np.ones(2, np.float32)}, TypeError, "out must be a device array"),
    "no stream": ((F, C, S, X), {"stream": "x"}, TypeError, "stream must be"),
    "an unknown word": ((F, C, S, X), {"outs": None}, TypeError, "did you mean 'out'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        subject.multiply(*arguments, **options)


@each_rung
def test_out_of_another_length_or_where_x_is(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(2,\), had \(3,\)"):
        rung(F, C, S, X, out=device.empty(3, np.float32))
    x = device.to_device(X)
    with pytest.raises(ValueError, match=r"out .* x"):
        rung(F, C, S, x, out=x)


@interpreter_only
def test_a_column_outside_is_found_in_the_interpreter():
    _, reports = watch(room.by_row, *map(device.to_device, (F, np.int32([0, 2, 1]), S, X)))
    assert hazards(reports)[:1] == ["out of bounds"]


# ------------------------------------------------------------------------------------------------------------- counters
#
# 512 rows of 8 values, and in each row the columns 0 to 7 in order: 4,096 products.

ROWS, LENGTH = 2 * BLOCK, 8
STORED = ROWS * LENGTH
EVEN = (
    np.linspace(-1, 1, STORED, dtype=np.float32),
    np.resize(np.arange(LENGTH, dtype=np.int32), STORED),
    np.arange(0, STORED + 1, LENGTH, dtype=np.int32),
    np.linspace(1, 2, LENGTH, dtype=np.float32),
)


def counters_of(rung, arguments=EVEN):
    result, reports = observe(rung, *arguments)
    assert FAULTS.right(result, *arguments)
    return {name: total(reports, name) for name in reports[0].counters}, reports


@interpreter_only
def test_counters_of_by_element():
    found, _ = counters_of(room.by_element)
    assert found["atomic_lanes"] == STORED
    assert found["flops"] == STORED  # the products; the atomics add
    # Nine steps of the search for 512 rows, and value, column and x: 12 loads of 4 bytes a thread.
    assert found["global_load_bytes"] == STORED * 4 * (9 + 3)


@interpreter_only
def test_counters_of_by_row():
    found, _ = counters_of(room.by_row)
    assert found["flops"] == 2 * STORED
    assert found["global_load_bytes"] == 4 * (2 * ROWS + 3 * STORED)
    # 32 rows of 8 lie in 32 sectors: a request for one value of each, or one column, touches all of these.
    warps, steps = ROWS // 32, LENGTH
    starts = warps * (4 + 5)
    assert found["global_load_sectors"] == starts + warps * steps * (32 + 32 + 1)


@interpreter_only
def test_counters_of_batched():
    found, _ = counters_of(room.batched)
    # A row of 8 takes two batches of 5. The second has 3 values, and reads the last of these two more times.
    read = 2 * room.BATCH * ROWS
    assert found["flops"] == read + STORED  # all that is read is multiplied, and what the row has is added
    assert found["global_load_bytes"] == 4 * (2 * ROWS + 3 * read)


@interpreter_only
def test_counters_of_teams():
    whole, _ = counters_of(room.warp_per_row)
    fitted, _ = counters_of(room.team_per_row)
    # A warp a row: its 8 values are one sector. Eight lanes a row: a warp reads 32 neighbours in 4 sectors.
    assert whole["global_load_requests"] > 3 * fitted["global_load_requests"]
    assert fitted["flops"] == 2 * STORED + 3 * STORED  # each lane takes part in three additions of a team
    assert whole["flops"] == 2 * STORED + 5 * 32 * ROWS


@interpreter_only
def test_counters_of_staged():
    found, _ = counters_of(room.staged)
    # Two blocks with 2,048 values each, in two pieces, 1,792 and 256: each piece's sum is added to the row's.
    assert found["flops"] == 2 * STORED + 2 * ROWS
    assert found["barriers"] == 2 * 2 * 2
    assert found["shared_store_requests"] == STORED // 32
    assert found["shared_load_requests"] == STORED // 32  # 1,792 values are the rows of seven warps
    assert found["shared_load_wavefronts"] == 8 * STORED // 32  # lanes that read 8 apart meet in four banks


@interpreter_only
def test_counters_of_merged():
    _, reports = counters_of(room.merged)
    assert [report.kernel for report in reports] == ["merged_kernel", "finish_kernel"]
    pieces = -(-(ROWS + STORED) // TILE)
    assert pieces == 3
    # After the search, after products are brought, and after they are added up.
    assert reports[0].counters["barriers"] == 3 * pieces
    # A product and an addition for each value; to each row, and to what two pieces leave open, what was left before.
    rows_and_parts = ROWS + 2
    # A row takes nine steps. Piece t begins with value 1792 t - 1792 t // 9, and reads from the beginning of its line.
    before = 1593 % 32 + 3186 % 32
    assert reports[0].counters["flops"] == 2 * STORED + rows_and_parts + before
    # No row is long. Two inner bounds are searched twice each, in two rounds of 32 questions, and each has a vote.
    assert reports[0].counters["inst_shuffle"] == 2 * 2 * 2


@interpreter_only
def test_a_piece_of_empty_rows_reads_nothing():
    """A row of a value, two pieces of empty rows, less one, and a row of two values, which begins with value 1."""
    _, reports = counters_of(room.merged, INPUTS["tiles of empty rows"])
    found, pieces, rounds = reports[0].counters, 3, -(-(TILE - 1) // BLOCK)
    assert found["barriers"] == (2 + rounds) + 1 + 3
    starts, products = 4 * BLOCK * 2 * (rounds + 1), 12 * (1 + 3)
    searches = 2 * pieces * 3 * 32 * 4  # of a piece's two bounds; three times 32 questions are enough for 2^15 rows
    assert starts + products < found["global_load_bytes"] <= starts + products + searches


@interpreter_only
def test_equal_work_whatever_the_rows():
    """The longest way of any warp: rows of one length, or one long row among short ones."""

    def instructions(rung, lengths):
        values, columns, starts = room.rows_of(lengths, 50, np.random.default_rng(1))
        found, _ = counters_of(rung, (values, columns, starts, np.ones(50, np.float32)))
        return found["warp_instructions"]

    even, hub = [8] * 512, [4] * 255 + [2048 + 4 + 256] + [3] * 256
    assert sum(even) == 4096
    assert instructions(room.by_row, hub) > 3 * instructions(room.by_row, even)
    assert instructions(room.merged, hub) < 1.2 * instructions(room.merged, even)


# --------------------------------------------------------------------------------------------------------- the measured


def test_the_workloads_are_verified_by_another_way():
    one = next(each for each in workloads.WORKLOADS if each.label == "power law 2^12 rows")
    inputs = one.make(1)
    result = device.to_host(room.merged(*inputs))
    error, tolerance = workloads.verify(view(device.to_device(result)), *map(view, inputs))
    assert error <= tolerance
    result[17] += 4 * abs(result).max() * 2**-20
    error, tolerance = workloads.verify(view(device.to_device(result)), *map(view, inputs))
    assert error > tolerance


def test_the_roof_of_gathers_is_verified():
    inputs = [device.to_device(x) for x in INPUTS["power law"]]
    values, columns, starts, x = inputs
    sums = gathers_alone.gathers_alone(values, columns, x)
    assert sums.size != starts.size - 1
    error, tolerance = workloads._verify_either(sums, *map(view, inputs))
    assert error <= tolerance
    found = device.to_host(sums)
    found[5] += 1
    error, tolerance = workloads._verify_either(device.to_device(found), *map(view, inputs))
    assert error > tolerance


def test_costs_name_what_the_workloads_store():
    for one in workloads.WORKLOADS:
        if one.family in ("hard", "power law"):
            lengths = one.make.args[0]()
            assert (lengths.size, lengths.sum()) == (one.sizes["rows"], one.sizes["stored"]), one.label


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch says once that its format is new, and what it does not check
@each_rung
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_cusparse_agrees(rung, library):
    module = pytest.importorskip(library)
    arguments = INPUTS["power law"]
    given = [module.as_tensor(x, device="cuda") if library == "torch" else module.asarray(x) for x in arguments]
    call = workloads._torch if library == "torch" else workloads._cupy
    expected = call(module, *given)
    expected = expected.cpu().numpy() if library == "torch" else expected.get()
    assert FAULTS.right(expected, *arguments)
    assert FAULTS.right(device.to_host(rung(*given)), *arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [room.by_row, room.staged, room.merged], ids=lambda rung: rung.name)
def test_more_values_than_32_bits_count(rung):
    """2^31 and more values of 1 in rows of 2^20: offsets beyond 32 bits."""
    cupy = pytest.importorskip("cupy")
    length, rows = 2**20, 2**11 + 1
    stored = length * rows
    if cupy.cuda.runtime.memGetInfo()[0] < 9 * stored:
        pytest.skip("too little memory")
    values, columns = cupy.ones(stored, np.float32), cupy.zeros(stored, np.int32)
    starts = cupy.arange(rows + 1, dtype=np.int64) * length
    found = device.to_host(rung(values, columns, starts, cupy.ones(1, np.float32)))
    assert (found == length).all()
