"""Random expressions and statements give what Numba's own code gives.  tests/support/fuzz.py says how, and has more."""

import ctypes.util
from unittest import mock

import numpy as np
import pytest

from pmpp.simt.values import dtypes, operators
from tests.simt.test_edges import cubes
from tests.support import fuzz, lowered
from tests.support.fuzz_cases import Case

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
if ctypes.util.find_library("m") is None:
    pytest.skip("there is no C library of mathematics to take libdevice's place", allow_module_level=True)


@pytest.mark.parametrize("count, seed, half", [(150, 20261121, False), (40, 20261121, True)])
def test_random_expressions(count, seed, half, ptx):
    if "f64" not in ptx(cubes, np.zeros(1, np.int64), np.zeros(1, np.int64)):
        pytest.skip("this version of NVVM computes powers of integers another way: see tests/simt/test_edges.py")
    assert [
        f"case {case.number}: {what}\n{case.text}"
        for case, what, explained in fuzz.differences(count, seed, half=half)
        if not explained
    ] == []


def compared(tmp_path, *texts):
    """What differs in cases that are written by hand."""
    cases = [Case(number, f"r{number} = {text}".splitlines()) for number, text in enumerate(texts)]
    ours, theirs = fuzz.interpreted(cases, 1, tmp_path), fuzz.by_numba([cases], 1, tmp_path)
    return [fuzz.difference(case, ours[case.number], theirs[case.number], 1, tmp_path) for case in cases], theirs


def test_the_examples_of_minus_and_complement(tmp_path):
    texts = ["cuda.popc(~u4a)", "-u1a * 0.5", "~u2a", "-u4b", "-i4a", "~i1a", "-ba", "~ba"]
    differences, theirs = compared(tmp_path, *texts)
    assert differences == [""] * len(texts)
    assert [theirs[k].dtype for k in range(8)] == ["uint64", "float64", "uint64", "uint64", *["int64"] * 3, "bool"]


def test_a_wrong_rule_is_found(tmp_path):
    def negate(a):
        return np.negative(dtypes.cast(a, dtypes.arithmetic(a.dtype, a.dtype)))

    with mock.patch.dict(operators.UNARY, USub=negate):
        differences, _ = compared(tmp_path, "-u1a * 0.5", "-i8a", "-u4a")
    assert [bool(what) for what in differences] == [True, False, True]


def test_what_numba_refuses_and_what_it_raises(tmp_path):
    """One that Numba does not compile, one that raises in some rows, one that it computes."""
    compiler = lowered.Compiler()
    cases = [Case(0, ["r0 = f4a & 1"]), Case(1, ["r1 = c8a / ba"], may_raise=True), Case(2, ["r2 = i4a + 1"])]
    found = lowered.outcomes(compiler, cases, 1, tmp_path)
    assert found[0].refused.startswith("TypingError")
    ba = fuzz.fuzz_cases.inputs(1)["ba_"]
    assert found[1].raised.tolist() == (~ba).tolist()
    assert found[2].values.tolist() == (fuzz.fuzz_cases.inputs(1)["i4a_"].astype(np.int64) + 1).tolist()
    ours = fuzz.interpreted(cases, 1, tmp_path)
    assert [fuzz.difference(case, ours[case.number], found[case.number], 1, tmp_path) for case in cases] == [""] * 3


@pytest.mark.parametrize("known", fuzz.KNOWN, ids=lambda known: known.name)
def test_what_is_known_to_differ_does_not_explain_a_wrong_value(known):
    case, ours = Case(0, ["r0 = i4a"]), np.zeros(1, np.int64)
    theirs = lowered.Outcome("", "int64", np.ones(1, np.int64), np.zeros(1, bool))
    assert known.name
    assert known.reason.endswith(".")
    assert not known.explains(case, ours, theirs)
