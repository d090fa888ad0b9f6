"""The gradient of an embedding: finite differences, frequent tokens, the same bits twice, counters by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import embedding
from pmpp.kernels.embedding import embedding_backward as room
from pmpp.kernels.embedding import ladder as forward
from pmpp.runtime import device
from tests.kernels.embedding.wrong_embedding_backward import RIGHT
from tests.kernels.embedding.wrong_embedding_backward import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def case(rows, width, tokens, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((tokens, width), dtype=F32), rng.integers(0, rows, tokens), rows


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def test_the_reference_is_what_finite_differences_say():
    rng = np.random.default_rng(0)
    table, indices, dy = rng.standard_normal((4, 3)), np.array([[2, 0], [2, 2]]), rng.standard_normal((2, 2, 3))
    expected = np.empty(table.shape)
    for at in np.ndindex(table.shape):
        moved = [table.copy(), table.copy()]
        moved[0][at] += 0.5  # the function is linear
        moved[1][at] -= 0.5
        more, less = (forward.reference(one, indices) for one in moved)
        expected[at] = (dy * (more - less)).sum()
    np.testing.assert_allclose(room.reference(dy, indices, 4), expected, rtol=0, atol=1e-12)
    expected[2] = 0
    np.testing.assert_allclose(room.reference(dy, indices, 4, 2), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    dy, indices, rows, *padding = INPUTS[name]
    back = torch.ops.aten.embedding_dense_backward
    wide = torch.tensor(dy, dtype=torch.float64)
    expected = back(wide, torch.tensor(indices, dtype=torch.int64), rows, *(padding or [-1]), False).numpy()
    np.testing.assert_allclose(room.reference(*INPUTS[name]), expected, rtol=1e-12, atol=1e-12)


# -------------------------------------------------------------------------------------------------------------- results

SOME = ["rows of 3", "rows of 32", "few tokens", "a row not trained"]


def faults(function):
    """All that is wrong with a gradient on the first input where anything is, worst first."""
    for name in SOME:
        arguments = INPUTS[name]
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of indices that are no row, and of gradients that begin between 16-byte boundaries."""
    dy, indices, rows = case(5, 8, 40)
    for offset in (0, 1):
        given = misaligned(dy, offset), indices, rows
        if found := judge.faults(function, given, lambda result: right(result, dy, indices, rows)):
            return found
    indices[[0, 4, 7]] = -1, 5, 2**40
    return judge.faults(function, (dy, indices, rows), lambda result: right(result, dy, indices, rows))


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


@each_rung
@hypothesis.given(
    rows=st.integers(1, 40),
    width=st.integers(0, 140),
    tokens=st.integers(0, 90),
    padding=st.one_of(st.none(), st.just(0)),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=10)
def test_any_shape_and_alignment(rung, rows, width, tokens, padding, offset, seed):
    arguments = *case(rows, width, tokens, seed), padding
    assert right(device.to_host(rung(misaligned(arguments[0], offset), *arguments[1:])), *arguments)


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
def test_tokens_are_added_in_their_order(rung):
    """1 and -1 between numbers so large that 1 is lost in them: another order gives another sum."""
    n = 24
    dy = np.tile(F32([2**24, 1, -(2**24), 1, 3, 2**-20]), n // 6).reshape(n, 1)
    results = {device.to_host(rung(dy, np.zeros(n, np.int64), 2)).tobytes() for _ in range(3)}
    assert len(results) == 1
    moved = np.r_[dy, dy][:, 0].repeat(4).reshape(-1, 4)  # the same sums by vectors
    wide = device.to_host(rung(moved, np.arange(2 * n) // n, 2))
    assert wide[0].tobytes() == wide[1].tobytes()
    assert wide[0, :1].tobytes() in results.pop()


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
def test_the_same_bits_twice(rung):
    for name in ("frequent tokens", "all the same", "rows of 33"):
        once, again = (device.to_host(rung(*INPUTS[name])) for _ in range(2))
        assert once.tobytes() == again.tobytes()


@each_rung
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_an_out_between_16_byte_boundaries(rung, offset):
    dy, indices, rows = case(7, 8, 5)
    base = device.to_device(np.full(7 * 8 + offset + 3, 5, F32))
    rung(dy, indices, rows, out=base[offset:-3].reshape(7, 8))
    result = base.copy_to_host()
    assert right(result[offset:-3].reshape(7, 8), dy, indices, rows)
    assert (result[:offset] == 5).all()
    assert (result[-3:] == 5).all()


@each_rung
def test_streams(rung):
    dy, indices, rows = INPUTS["a batch"]
    stream = cuda.stream()
    result = rung(device.to_device(dy), device.to_device(indices), rows, stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), dy, indices, rows)


def test_the_plain_function_takes_the_rung_that_is_asked_for():
    arguments = INPUTS["frequent tokens"]
    for deterministic, kernel in ((True, "rank_kernel"), (False, "atomic_kernel")):
        result, reports = observe(embedding.backward, *arguments, deterministic=deterministic)
        assert right(result, *arguments)
        assert device.on_gpu() or kernel in [report.kernel for report in reports]


# ------------------------------------------------------------------------------------------------------------ bad input

DY, INDICES = np.ones((2, 4), F32), np.int64([0, 2])
BAD = {
    "doubles": ((DY.astype(np.float64), INDICES, 3), TypeError, "dy must be float32, was float64"),
    "another shape": ((DY[:1].copy(), INDICES, 3), ValueError, r"dy must have shape \(2, any\), had \(1, 4\)"),
    "a dimension less": ((DY[0], INDICES, 3), ValueError, "dy must have 2 dimensions"),
    "no rows": ((DY, INDICES, 0), ValueError, "rows must be .*1.*, was 0"),
    "an index too large": ((DY, INDICES, 2), ValueError, r"indices must be from 0 to 1 for rows=2, was 2 at \[1\]"),
    "padding beyond": ((DY, INDICES, 3, 3), ValueError, "padding_idx must be from 0 to 2, was 3"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_a_search_reads_all_indices_for_each_row_and_grouping_does_not():
    dy, _, rows = case(64, 32, 96)
    indices = np.arange(96, dtype=np.int64) % 3  # 32 tokens in each of three groups
    sectors = dy.nbytes // 32
    _, reports = observe(room.search, dy, indices, rows)
    assert total(reports, "global_load_sectors") == 64 * 96 * 8 // 32 + 2 * sectors
    result, reports = observe(room.grouped, dy, indices, rows)
    assert right(result, dy, indices, rows)
    assert total(reports, "flops_f64") == 0
    last = [report for report in reports if report.kernel == "sum_vectors_kernel"]
    stored = total(last, "global_store_sectors")
    assert stored == 3 * 32 * 4 // 32  # only the rows that have tokens
