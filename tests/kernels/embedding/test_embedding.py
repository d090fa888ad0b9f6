"""Embedding: rows looked up, indices that are no row, counters by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import embedding
from pmpp.kernels.embedding import ladder as room
from pmpp.runtime import device
from tests.kernels.embedding.wrong import RIGHT
from tests.kernels.embedding.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def case(rows, width, tokens, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, width), dtype=F32), rng.integers(0, rows, tokens)


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0)


def faults(function, names=("rows of 3", "rows of 32", "rows of 33")):
    """All that is wrong with an embedding on the first input where anything is, worst first."""
    for name in names:
        arguments = INPUTS[name]
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of indices that are no row, and what it does beyond its work."""
    table, indices = case(5, 8, 9)
    indices[[0, 4, 7]] = -1, 5, 2**40
    if found := judge.faults(function, (table, indices), lambda result: right(result, table, indices)):
        return found
    table, indices = case(50, 64, 40)
    result, reports = observe(function, table, indices)
    found = ["traffic"] * (bool(reports) and total(reports, "global_load_sectors") > 4 * result.nbytes // 32)
    return found + ["wrong result"] * (not right(result, table, indices))


@each_rung
def test_a_rung_has_no_further_fault(rung):
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
def test_the_kernel_that_the_wrong_ones_differ_from_is_right():
    assert faults(RIGHT) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    table, indices = INPUTS[name]
    np.testing.assert_array_equal(room.reference(table, indices), table[indices].astype(np.float64))


@each_rung
@hypothesis.given(
    rows=st.integers(1, 40),
    width=st.integers(0, 140),
    tokens=st.integers(0, 60),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=10)
def test_any_shape_and_alignment(rung, rows, width, tokens, offset, seed):
    table, indices = case(rows, width, tokens, seed)
    assert right(device.to_host(rung(misaligned(table, offset), indices)), table, indices)


@each_rung
def test_streams(rung):
    table, indices = INPUTS["a batch"]
    stream = cuda.stream()
    result = rung(device.to_device(table), device.to_device(indices), stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), table, indices)


TABLE, INDICES = np.ones((3, 4), F32), np.int64([0, 2])
BAD = {
    "doubles": ((TABLE.astype(np.float64), INDICES), TypeError, "table must be float32, was float64"),
    "a vector": ((TABLE[0], INDICES), ValueError, "table must have 2 dimensions"),
    "no rows": ((TABLE[:0].copy(), INDICES), ValueError, "table must have at least one row"),
    "real indices": ((TABLE, INDICES.astype(F32)), TypeError, "indices must be int32 or int64, was float32"),
    "an index too large": ((TABLE, INDICES + 1), ValueError, r"indices must be from 0 to 2 for rows=3, was 3 at \[1\]"),
    "an index below 0": ((TABLE, INDICES - 1), ValueError, r"indices must be from 0 to 2 for rows=3, was -1 at \[0\]"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_indices_are_checked_where_they_lie():
    embedding.check_indices(device.to_device(INDICES), 3)
    with pytest.raises(ValueError, match=r"indices must be from 0 to 1 for rows=2, was 2 at \[1\]"):
        embedding.check_indices(device.to_device(INDICES), 2)
    with pytest.raises(ValueError, match=r"indices must be from 0 to 2 for rows=3, was 3 at \[\]"):
        embedding.check_indices(np.array(3), 3)


@interpreter_only
def test_a_vector_is_a_request_and_an_index_serves_a_row():
    table, indices = case(50, 128, 40)  # 40 rows of 512 bytes, a warp each
    sectors = 40 * 512 // 32
    result, reports = observe(room.vectorised, table, indices)
    assert right(result, table, indices)
    assert total(reports, "global_load_requests") == 40 + 40  # the index, the row
    assert total(reports, "global_load_sectors") == 40 + sectors
    assert total(reports, "global_store_requests") == 40
    _, reports = observe(room.elementwise, table, indices)
    assert total(reports, "global_load_requests") == 4 * (40 + 40)
    assert total(reports, "flops_f64") == 0
