"""Sparse: results, arguments, and the counters of each rung against counts done by hand."""

import pytest

from pmpp.kernels.sparse import ladder as room
from pmpp.runtime import device
from tests.kernels.sparse.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def right(result, x):
    return judge.right(result, room.reference(x), room.tolerance(x), x.dtype)


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    # EMPTY: every path that a rung can take: tails, and arrays that `misaligned` of tests/support/wrong.py makes.
    return []


@each_rung
def test_a_rung_has_no_fault(rung):
    assert faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


# EMPTY: the reference against NumPy or SciPy, with shapes and values drawn by hypothesis.
# EMPTY: every bad argument: the error names it, what it was, and what is accepted.
# EMPTY: the counters of each rung against counts done by hand: `observe`, and `total` of its reports.
# The counter flops includes flops_f64.
# EMPTY: the results of CuPy or PyTorch on a GPU, as @pytest.mark.gpu.
