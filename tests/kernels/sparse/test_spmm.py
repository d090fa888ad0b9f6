"""Sparse times dense: results, arguments, and counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels.sparse import spmm as room
from pmpp.kernels.sparse import spmm_workloads as workloads
from pmpp.kernels.sparse.ladder import merged, rows_of
from pmpp.lab.measure.arrays import view
from pmpp.runtime import device
from tests.kernels.sparse.faults import Faults
from tests.kernels.sparse.wrong_spmm import RIGHT
from tests.kernels.sparse.wrong_spmm import RUNGS as WRONG
from tests.support.wrong import name_of, observe, total

FAULTS = Faults(room, further="8 columns")
INPUTS = FAULTS.inputs
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


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


def test_the_reference_is_scipys():
    sparse = pytest.importorskip("scipy.sparse")
    for values, columns, starts, b in INPUTS.values():
        with np.errstate(all="ignore"):
            matrix = sparse.csr_array((values.astype(np.float64), columns, starts), (starts.size - 1, b.shape[0]))
            expected = (matrix @ b.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(room.reference(values, columns, starts, b), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("rung", [room.vectorised, room.balanced], ids=lambda rung: rung.name)
@hypothesis.given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 5, 31, 33, 300]), min_size=1, max_size=40),
    k=st.sampled_from([1, 2, 4, 20, 40, 130]),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=3)
def test_any_lengths_of_rows(rung, lengths, k, wide, seed):
    rng = np.random.default_rng(seed)
    values, columns, starts = rows_of(lengths, 40, rng)
    starts = starts.astype(np.int64 if wide else np.int32)
    arguments = values, columns, starts, rng.standard_normal((40, k), np.float32)
    assert FAULTS.right(device.to_host(rung(*arguments)), *arguments)


def test_the_same_call_gives_the_same_bits():
    arguments, found = INPUTS["a row of several pieces"], set()
    for seed in range(1 if device.on_gpu() else 2):
        with simt.schedule("shuffled", seed):
            found.add(device.to_host(room.balanced(*arguments)).tobytes())
    assert len(found) == 1


@each_rung
def test_out_and_stream(rung):
    arguments, stream = INPUTS["8 columns"], cuda.stream()
    out = device.to_device(np.full((5, 8), np.nan, np.float32))
    assert rung(*map(device.to_device, arguments), out=out, stream=stream) is out
    stream.synchronize()
    assert FAULTS.right(device.to_host(out), *arguments)


F, C, S, B = np.ones(3, np.float32), np.int32([0, 1, 1]), np.int32([0, 1, 3]), np.ones((2, 4), np.float32)
BAD = {
    "a vector": ((F, C, S, B[0]), {}, ValueError, "b must have 2 dimensions, had 1"),
    "b by columns": ((F, C, S, np.asfortranarray(B)), {}, ValueError, "b must be contiguous in C order"),
    "b of float64": ((F, C, S, B.astype(float)), {}, TypeError, "b must be float32, was float64"),
    "no rows of b": ((F, C, S, B[:0]), {}, ValueError, "b must have a row for each column of A, had 0, but 3 values"),
    "too wide": ((F, C, S, np.ones((2, 2_097_121), np.float32)), {}, ValueError, "b must have at most 2097120 columns"),
    "no starts": ((F, C, S[:0], B), {}, ValueError, "starts must have at least 1 element, .*, had 0"),
    "a column beyond b": ((F, np.int32([0, 2, 1]), S, B), {}, ValueError, "columns must be from 0 to 1, .* was 2 at 1"),
    "starts that fall": ((F, C, np.int32([0, 2, 1, 3]), B), {}, ValueError, "starts must never fall, was 2 at 1"),
    "too few columns": ((F, C[:2], S, B), {}, ValueError, r"columns must have shape \(3,\), had \(2,\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.balanced(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# 64 rows of 4 values, whose columns are 0 to 3, and 32 columns of b: 8,192 multiply-adds.

ROWS, LENGTH, K = 64, 4, 32
STORED = ROWS * LENGTH
EVEN = (
    np.linspace(-1, 1, STORED, dtype=np.float32),
    np.resize(np.arange(LENGTH, dtype=np.int32), STORED),
    np.arange(0, STORED + 1, LENGTH, dtype=np.int32),
    np.linspace(1, 2, LENGTH * K, dtype=np.float32).reshape(LENGTH, K),
)


def counters_of(rung):
    result, reports = observe(rung, *EVEN)
    assert FAULTS.right(result, *EVEN)
    return {name: total(reports, name) for name in reports[0].counters}


@interpreter_only
def test_counters_across_lanes():
    apart, found = counters_of(room.column_by_column), counters_of(room.across_lanes)
    assert apart["flops"] == found["flops"] == 2 * STORED * K
    # A warp has one row and 32 columns: a value and a column are a sector each, and 32 elements of b are four.
    assert found["global_load_sectors"] == ROWS * (2 + LENGTH * (1 + 1 + 4))
    assert found["global_store_sectors"] == ROWS * 4
    assert apart["global_store_sectors"] == ROWS * K  # neighbours write a row apart


@interpreter_only
def test_counters_in_vectors():
    found = counters_of(room.vectorised)
    # A team of eight lanes a row, so a warp has four rows: a request for two ends, a value, a column, a part of b.
    assert found["global_load_requests"] == ROWS // 4 * (2 + 3 * LENGTH)
    assert found["global_load_bytes"] == ROWS * 8 * (8 + LENGTH * (4 + 4 + 16))


@interpreter_only
def test_counters_of_balanced():
    found = counters_of(room.balanced)
    # A warp has all 320 steps: its chunks of 128 values are read once, side by side, and b by each of four teams.
    chunks = STORED // room.CHUNK
    assert chunks == 2
    assert found["global_load_bytes"] >= 8 * STORED + 16 * 8 * STORED
    assert found["global_load_bytes"] < 1.2 * (8 * STORED + 16 * 8 * STORED)
    assert found["flops"] >= 2 * STORED * K


def test_balanced_multiplies_one_column_as_a_vector():
    values, columns, starts, b = INPUTS["a column"]
    one = device.to_host(room.balanced(values, columns, starts, b))
    assert one[:, 0].tobytes() == device.to_host(merged(values, columns, starts, b[:, 0])).tobytes()


# --------------------------------------------------------------------------------------------------------- the measured


def test_the_workloads_are_verified_by_another_way():
    inputs = INPUTS["power law"]
    result = device.to_host(room.balanced(*inputs))
    given = [view(device.to_device(x)) for x in inputs]
    error, tolerance = workloads.verify(view(device.to_device(result)), *given)
    assert error <= tolerance
    for column in (0, 6):  # one of those that are looked at by themselves, and another one
        changed = result.copy()
        changed[17, column] += abs(result).max() * 2**-10
        error, tolerance = workloads.verify(view(device.to_device(changed)), *given)
        assert error > tolerance


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
