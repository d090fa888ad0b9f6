"""Alignment: results, arguments, the alignment itself, and the counters of each rung against counts done by hand."""

import difflib
import functools
import inspect

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import wavefront as subject
from pmpp.kernels.wavefront import alignment as room
from pmpp.kernels.wavefront import alignment_workloads, roofs, traceback
from pmpp.runtime import device
from tests.kernels.wavefront.wrong_alignment import RIGHT
from tests.kernels.wavefront.wrong_alignment import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

ROWS, STRIP, TILE, INPUTS = room.ROWS, room.STRIP, room.TILE, room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")
SHORT = ("one letter each", "nothing matches", "several pairs", "changed, global", "several pairs, global")
LOCAL = ("one letter each", "nothing matches", "a tile and one more", "several pairs")


def text(letters):
    return np.frombuffer(letters, np.uint8)


# -------------------------------------------------------------------------------------------------------------- results


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), 0, np.int32)


def faults(function, names=SHORT):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for name in names:
        given = INPUTS[name]
        if found := judge.faults(function, given, lambda result, given=given: right(result, *given)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    names = LOCAL if wrong.function.__name__.startswith("tile_") else SHORT
    assert faults(wrong.function, names)[:1] == [wrong.reason]


@pytest.mark.parametrize("which", RIGHT)
def test_what_the_wrong_kernels_are_made_of_is_right(which):
    for function in RIGHT[which]:
        assert faults(function, SHORT if which == "short" else LOCAL) == []


def test_the_reference_counts_what_python_finds():
    """With matches alone the score is the longest common subsequence, which is easily computed another way."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        a, b = (rng.integers(0, 3, size).astype(np.uint8) for size in rng.integers(1, 12, 2))
        subsequences = [{()}, {()}]
        for which, letters in enumerate((a, b)):
            for letter in letters.tolist():
                subsequences[which] |= {(*one, letter) for one in subsequences[which]}
        expected = max(map(len, subsequences[0] & subsequences[1]))
        assert room.reference(a, b, 1, 0, 0, True) == room.reference(a, b, 1, 0, 0, False) == expected


@each_rung
@hypothesis.given(
    m=st.sampled_from([1, 8, 31, 64, 65, 129]),
    n=st.sampled_from([1, 2, 31, 32, 33, 66]),
    pairs=st.integers(1, 3),
    scores=st.tuples(st.integers(0, 5), st.integers(-5, 0), st.integers(-5, 0), st.booleans()),
    letters=st.sampled_from([1, 4, 256]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=3)
def test_any_lengths_and_scores(rung, m, n, pairs, scores, letters, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, letters, (pairs, size)).astype(np.uint8) for size in (m, n))
    assert right(device.to_host(rung(a, b, *scores)), a, b, *scores)


@interpreter_only
@pytest.mark.parametrize("local", [True, False])
def test_strips_wait_for_one_another_in_any_order_of_blocks(local):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 4, (2, size)).astype(np.uint8) for size in (STRIP + 3, 34))
    with simt.schedule("shuffled", 1):
        assert right(device.to_host(room.one_launch(a, b, 2, -1, -1, local)), a, b, 2, -1, -1, local)


def test_filling_up_with_a_byte_that_occurs_nowhere_changes_no_local_score():
    a, b, *scores = INPUTS["equal, and one block of lanes"]
    longer = np.concatenate([a, np.full(9, 254, np.uint8)])
    np.testing.assert_array_equal(room.reference(a, b, *scores), room.reference(longer, b, *scores))


@each_rung
def test_out_and_stream(rung):
    *arguments, stream = *INPUTS["several pairs"], cuda.stream()
    out = device.to_device(np.full(5, -7, np.int32))
    a, b = map(device.to_device, arguments[:2])
    assert rung(a, b, *arguments[2:], out=out, stream=stream) is out
    stream.synchronize()
    assert right(device.to_host(out), *arguments)


# ------------------------------------------------------------------------------------------------- the alignment itself


def score_of(found, a, b, match, mismatch, gap):
    """The score of an alignment, added up place by place."""
    gaps = int((found.a < 0).sum() + (found.b < 0).sum())
    both = (found.a >= 0) & (found.b >= 0)
    equal = int((a[found.a[both]] == b[found.b[both]]).sum())
    return match * equal + mismatch * (int(both.sum()) - equal) + gap * gaps


@pytest.mark.parametrize("name", [name for name, given in INPUTS.items() if given[0].ndim == 1 and given[0].size < 100])
def test_an_alignment_has_the_score_that_it_says(name):
    a, b, match, mismatch, gap, local = INPUTS[name]
    found = subject.align(a, b, match, mismatch, gap, local)
    assert found.score == room.reference(a, b, match, mismatch, gap, local)[0]
    assert score_of(found, a, b, match, mismatch, gap) == found.score
    for places, length in ((found.a, a.size), (found.b, b.size)):
        there = places[places >= 0]
        expected = np.arange(there[0], there[0] + there.size) if there.size else []
        np.testing.assert_array_equal(there, expected if local else np.arange(length))


def test_the_lines_of_a_module_align_as_difflib_says_where_nothing_else_fits():
    lines = inspect.getsource(difflib.context_diff).splitlines()
    kinds = {line: i for i, line in enumerate(dict.fromkeys(lines))}
    a = np.array([kinds[line] for line in lines], np.uint8)
    b = np.delete(a, [3, 4, 17])
    found = subject.align(a, b, 1, 0, 0, False)
    assert found.score == b.size
    assert (found.b < 0).sum() == 3


def test_a_table_too_large_is_refused():
    with pytest.raises(ValueError, match=r"a and b must make a table of at most 2\^31 cells"):
        traceback.align(np.zeros(2**16, np.uint8), np.zeros(2**16, np.uint8))


# ------------------------------------------------------------------------------------------------------------ bad input

A, B = text(b"ab"), text(b"abc")
PAIRS = np.zeros((3, 4), np.uint8)
BAD = {
    "letters of int32": ((A.astype(np.int32), B), {}, TypeError, "a must be uint8, was int32"),
    "a text and pairs": ((A, PAIRS), {}, ValueError, "b must have as many dimensions as a, 1, had 2"),
    "pairs without partners": ((PAIRS, PAIRS[:2]), {}, ValueError, "b must have a text for each of the 3 texts of a"),
    "a match below 0": ((A, B, -1), {}, ValueError, "match must be from 0 to 32767, was -1"),
    "a mismatch above 0": ((A, B, 1, 1), {}, ValueError, "mismatch must be from -32767 to 0, was 1"),
    "half a gap": ((A, B, 1, 0, -0.5), {}, TypeError, "gap must be an integer, was -0.5"),
    "local by a word": ((A, B, 1, 0, 0, "yes"), {}, TypeError, "local must be True or False, was 'yes'"),
    "scores beyond 32 bits": (
        (np.zeros(33000, np.uint8), A, 32767),
        {},
        ValueError,
        "a and b must have fewer than 32769 letters together, .* had 33002",
    ),
    "out of int64": ((A, B), {"out": cuda.device_array(1, np.int64)}, TypeError, "out must be int32, was int64"),
    "an unknown word": ((A, B), {"gaps": -1}, TypeError, "did you mean 'gap'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        room.one_launch(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# Two tiles down and two across: 65 by 70 letters. Or two strips down: STRIP + 1 letters.


def counters_of(rung, m, n):
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 4, m).astype(np.uint8), rng.integers(0, 4, n).astype(np.uint8)
    result, reports = observe(rung, a, b)
    assert right(result, a, b)
    return [report for report in reports if report.kernel not in ("fill_kernel", "clear_kernel")]


@interpreter_only
def test_counters_of_by_diagonal():
    reports = counters_of(room.by_diagonal, 9, 14)
    assert len(reports) == 9 + 14 + 1
    assert total(reports, "global_store_bytes") == 4 * 10 * 15  # every cell, with row 0 and column 0
    assert total(reports, "global_load_bytes") == (2 + 3 * 4) * 9 * 14  # two letters and three neighbours
    assert total(reports, "atomic_lanes") == 9 * 14


@interpreter_only
def test_counters_of_tiled():
    reports = counters_of(room.tiled, TILE + 1, TILE + 6)
    assert len(reports) == 3  # diagonals of 2 x 2 tiles
    assert total(reports, "barriers") == 4 * 2 * TILE  # one in each step, and one behind them
    # Rows are PITCH apart, so neighbours on an anti-diagonal lie in different banks: no access takes longer.
    # The last column is kept by two warps of one tile, and there neighbours lie in every second bank.
    assert total(reports, "shared_load_wavefronts") == total(reports, "shared_load_requests") + 2
    # Of the two upper tiles the last row is kept, of the two on the left the last column, and of the first its corner.
    assert total(reports, "global_store_bytes") == 4 * ((TILE + 6) + (TILE + 1) + 1)


@interpreter_only
def test_counters_of_in_registers():
    [report] = counters_of(room.in_registers, 40, 70)
    # 70 columns and 31 steps in which the last lane has not begun: four times 32 steps with four shuffles each. The
    # mask and the corner are a shuffle each, and the greatest value takes five.
    assert report.counters["inst_shuffle"] == 4 * 32 * 4 + 2 + 5
    assert report.counters["barriers"] == report.counters["shared_load_requests"] == 0
    # A lane reads its rows once, and the columns come once.
    assert report.counters["global_load_bytes"] == 40 + 70


@interpreter_only
def test_counters_of_one_launch():
    [one] = counters_of(room.one_launch, STRIP, 40)
    assert one.counters["atomic_lanes"] == 1  # the score: no other strip to wait for
    [two] = counters_of(room.one_launch, STRIP + 1, 40)
    # Two tickets, two scores, a number for each column put and taken; it may be asked for more than once.
    assert two.counters["atomic_lanes"] >= 2 + 2 + 2 * 40
    assert two.counters["global_store_bytes"] == 0


@interpreter_only
def test_counters_of_many_pairs():
    a, b = (np.random.default_rng(2).integers(0, 4, (3, size)).astype(np.uint8) for size in (50, 40))
    result, reports = observe(room.many_pairs, a, b)
    assert right(result, a, b)
    report = next(report for report in reports if report.kernel == "many_pairs_kernel")
    assert report.grid[0] == 1  # four lanes have 64 rows, so eight pairs fit into a warp
    # 40 columns and 3 steps in which the last lane has not begun: 11 times 4 steps. The greatest value takes two.
    assert report.counters["inst_shuffle"] == 11 * 4 * 4 + 1 + 2
    assert report.counters["atomic_lanes"] == 0
    assert report.counters["global_store_bytes"] == 4 * 3


def test_no_shuffle_is_in_a_loop_for_some_lanes(ptx):
    """A compiler that makes a loop for lane 0 and one for the others leaves lanes that exchange nothing."""
    a, out = np.zeros((2, 300), np.uint8), np.zeros(2, np.int32)
    scores = room.Scores(*map(np.int32, (2, -1, -1, 0, 0, 1)))
    # The mask; four in a step; the greatest value, in a loop that is the same for all lanes.
    made = ptx(room.many_pairs_kernel, a, a, np.int32(16), scores, out)
    assert (made.count("shfl.sync.up"), made.count("shfl.sync.idx")) == (2, 1 + 2)


# --------------------------------------------------------------------------------------------------------- the measured


def test_the_roof_computes_what_it_says():
    operations = 3 * roofs.OPERATIONS
    chains = np.zeros((roofs.CHAINS, 32), np.int32)
    made = device.to_device(chains)
    roofs.max_add_kernel[1, 32](made, *roofs.MAX_ADD, 3)
    start = np.arange(256).reshape(32, roofs.CHAINS).T
    np.testing.assert_array_equal(device.to_host(made), start - 3 * roofs.UNROLLED)
    assert roofs.turns_for(operations) == 1


def test_the_workloads_are_verified_by_another_way():
    one = next(one for one in alignment_workloads.WORKLOADS if one.sizes["m"] <= 256 and one.sizes["pairs"] <= 1000)
    inputs = one.make(1)
    a, b = (device.to_host(x)[:3] for x in inputs)
    np.testing.assert_array_equal(alignment_workloads.scores_of(a, b), room.reference(a, b))


@functools.cache
def long_texts():
    a, b = (device.to_host(alignment_workloads.drawn(3, letters, letters)) for letters in (5001, 4001))
    return a, b, alignment_workloads.scores_of(a, b)


@pytest.mark.gpu
@each_rung
def test_long_texts(rung):
    """Many strips wait for one another, and all blocks really run at the same time."""
    a, b, expected = long_texts()
    for _ in range(3):
        np.testing.assert_array_equal(device.to_host(rung(a, b)), expected)
