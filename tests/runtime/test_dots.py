"""What Numba emits for the dot products of `pmpp.runtime.dots`, and what it refuses. No GPU is needed."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.runtime.dots import dot_high, dot_low
from tests.support.compiled import compile_ptx


@cuda.jit
def low(x, weights, values, total):
    x[0] = dot_low(weights, values, total)


@cuda.jit
def high(x, weights, values, total):
    x[0] = dot_high(weights, values, total)


def words(**given):
    """The arguments of the kernels; a word is an uint32 unless ``given`` says otherwise."""
    return np.zeros(1, np.uint32), *(given.get(name, np.uint32(1)) for name in ("weights", "values", "total"))


def test_the_instructions():
    pytest.importorskip("numba.cuda")
    assert "dp2a.lo.u32.u32" in compile_ptx(low, *words())
    assert "dp2a.hi.u32.u32" in compile_ptx(high, *words())


def test_a_signed_number_is_extended_with_its_sign():
    pytest.importorskip("numba.cuda")
    text = compile_ptx(low, *words(weights=np.int16(-1)))
    assert ".s16" in text
    assert "dp2a.lo.u32.u32" in text


@pytest.mark.parametrize("place", ["weights", "values", "total"])
@pytest.mark.parametrize("wrong", [np.float32(1), np.int64(1), np.True_])
def test_what_is_refused(place, wrong):
    errors = [pytest.importorskip(name) for name in ("numba.core.errors", "numba.cuda.core.errors")]
    kind = "bool" if wrong is np.True_ else str(wrong.dtype)
    said = f"dot_high: {place} must be an integer of at most 32 bits, was {kind}"
    with pytest.raises(tuple(module.TypingError for module in errors), match=said):
        compile_ptx(high, *words(**{place: wrong}))
