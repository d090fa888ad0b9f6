"""The corpus of planted bugs: each is named, each look-alike is left alone, whatever the batches and the schedule."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.machine.machine import LEVELS
from tests.corpus import SUBJECTS, judge, pairs

PAIRS = pairs()
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])


@each_pair
def test_a_bug_is_named_and_nothing_besides(pair):
    report, _ = judge.run(pair, False)
    assert judge.faults(pair, report.hazards) == []


@each_pair
def test_a_look_alike_is_silent_and_right(pair):
    report, args = judge.run(pair, True)
    assert [hazard.message for hazard in report.hazards] == []
    assert judge.wrong(pair, args) == ""


@each_pair
def test_a_block_a_batch_changes_neither(pair):
    report, _ = judge.run(pair, False, lanes=1)
    assert judge.faults(pair, report.hazards, exact=False) == []
    report, args = judge.run(pair, True, lanes=1)
    assert [hazard.message for hazard in report.hazards] == []
    assert judge.wrong(pair, args) == ""


@pytest.mark.parametrize("seed", [0, 1])
@each_pair
def test_warps_in_random_order_change_neither(pair, seed):
    report, args = judge.run(pair, True, schedule="shuffled", seed=seed)
    assert [hazard.message for hazard in report.hazards] == []
    assert judge.wrong(pair, args) == ""
    if pair.result is not None:  # else nothing may be handed over at all
        report, _ = judge.run(pair, False, schedule="shuffled", seed=seed)
        assert judge.faults(pair, report.hazards, exact=False) == []


@each_pair
def test_results_do_not_depend_on_the_level(pair):
    results = [judge.run(pair, True, level=level)[1][-1] for level in LEVELS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_every_subject_has_pairs_and_every_bug_has_its_mark():
    assert {pair.subject for pair in PAIRS} == set(SUBJECTS)
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 150
    for pair in PAIRS:
        assert pair.lines("BUG"), pair.name


@cuda.jit
def first_half(x):
    i = cuda.grid(1)
    if i < 32:
        x[i] = i


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


def test_what_an_earlier_kernel_left_unset_is_found_by_a_later_one():
    x, out = cuda.device_array(64, np.float32), np.zeros(64, np.float32)
    assert simt.profile(first_half, 1, 64, (x,), level="check").hazards == []
    assert simt.profile(copy, 1, 32, (x, out), level="check").hazards == []
    (hazard,) = simt.profile(copy, 1, 64, (x, out), level="check", collect=True).hazards
    assert (hazard.kind, hazard.variable, hazard.thread[0]) == ("uninitialised_read", "x", 32)
    x.copy_to_device(np.zeros(64, np.float32))
    assert simt.profile(copy, 1, 64, (x, out), level="check").hazards == []
