"""Each wrong kernel is wrong in its own way, and the kernel beside it is right; both are kernels for a GPU."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.debugging.bugs import CASES, add_asserting, announce, bug
from pmpp.lab.measure.debugging import interpret, says

#: What level "check" says of each: kind, space and variable of every hazard, in the order of their lines.
HAZARDS = {
    "missing guard": [("out_of_bounds", "global", name) for name in ("x", "y", "out")],
    "bytes for elements": [("out_of_bounds", "global", "flat")],
    "wrong index": [],
    "integer overflow": [],
    "missing barrier": [("race", "shared", "part")],
    "missing second barrier": [("race", "shared", "part")],
    "lost updates": [("race", "global", "bins")],
    "barrier in a branch": [("divergent_barrier", "register", "syncthreads()")],
    "unset shared memory": [("uninitialised_read", "shared", "mine")] * 2,
    "unset global memory": [("uninitialised_read", "global", "out")],
    "accidental float64": [],
}
#: Those whose result is wrong in lockstep. The others need a GPU, or luck, to show it.
WRONG = ["bytes for elements", "wrong index", "integer overflow", "lost updates"]

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
each_that_ends = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.hangs], ids=[case.name for case in CASES if not case.hangs]
)


@each_that_ends
def test_the_interpreter_says_what_is_wrong(case):
    report, result, expected = interpret(case)
    assert [(one.kind, one.space, one.variable) for one in report.hazards] == HAZARDS[case.name]
    if not case.name.startswith("unset"):  # there the result is what happened to be in memory
        assert np.array_equal(result, expected) != (case.name in WRONG)
    assert bool(report.warnings) == (case.name == "accidental float64")


@each_case
def test_the_mended_kernel_is_right_and_leaves_nothing_to_say(case):
    report, result, expected = interpret(case, case.mended)
    assert not report.hazards
    assert not report.warnings
    np.testing.assert_array_equal(result, expected)


def test_the_one_that_waits_for_ever_is_stopped():
    case = bug("waits for ever")
    assert says(case) == "endless loop"
    with pytest.raises(simt.SimtError, match=r"in meet: .* waits in this loop for a value that no thread will write"):
        interpret(case)


@each_case
def test_both_are_kernels_for_a_gpu(case, ptx):
    args = case.make(np.zeros)
    assert ".entry" in ptx(case.kernel, *args)
    assert ".entry" in ptx(case.mended, *args)


def test_so_are_those_that_talk_and_assert(ptx):
    x = np.ones(64, np.float32)
    assert "vprintf" in ptx(announce, x)
    assert ".entry" in ptx(add_asserting, x, x, x)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of missing guard, .*, was 'nothing'"):
        bug("nothing")
