"""Dropout: what is dropped, the way back, views, the share that is dropped, and traffic."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import dropout as room
from pmpp.kernels import random
from pmpp.runtime import device
from tests.kernels.dropout.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32


def right(result, *arguments):
    return judge.right(result, room.reference(*arguments), room.tolerance(*arguments))


def faults(drop):
    """All that is wrong with a version of dropout on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        found = judge.faults(drop, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@hypothesis.given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    begin=st.integers(0, 3),
    p=st.floats(0, 0.999),
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**40),
)
@hypothesis.settings(max_examples=15)
def test_any_shape_and_alignment(rung, shape, begin, p, seed, offset):
    x = np.random.default_rng(1).standard_normal(shape).astype(F32)
    assert right(device.to_host(rung(misaligned(x, begin), p, seed, offset)), x, p, seed, offset)


@each_rung
def test_in_place_and_elsewhere(rung):
    x = np.linspace(-3, 3, 2050, dtype=F32)
    given = device.to_device(x)
    assert rung(given, 0.25, 7, out=given) is given
    assert right(given.copy_to_host(), x, 0.25, 7)
    out = misaligned(np.zeros(2050, F32), 1)
    observe(rung, device.to_device(x), 0.25, 7, out=out)
    assert right(out.copy_to_host(), x, 0.25, 7)


@pytest.mark.parametrize("offset", [0, 5])
def test_the_way_back_drops_the_same(offset):
    """dropout is linear with a diagonal of 0 and 1 / (1 - p): its gradient is the same product."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 7, 99)).astype(F32)
    y = room.dropout(x, 0.4, seed=11, offset=offset).copy_to_host()
    dx = room.backward(dy, 0.4, seed=11, offset=offset).copy_to_host()
    np.testing.assert_array_equal(dx == 0, y == 0)
    np.testing.assert_allclose(np.vdot(dy.astype(float), y), np.vdot(dx.astype(float), x), rtol=1e-5)
    np.testing.assert_array_equal(dx, room.backward(dy, 0.4, seed=11, offset=offset).copy_to_host())
    assert not np.array_equal(dx, room.backward(dy, 0.4, seed=12, offset=offset).copy_to_host())


def test_what_decides_are_the_uniform_numbers():
    y = room.dropout(np.ones(500, F32), 0.3, seed=8, offset=3).copy_to_host()
    np.testing.assert_array_equal(y > 0, random.uniform(500, seed=8, offset=3).copy_to_host() >= F32(0.3))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_mean(p):
    n = 2**17
    y = room.dropout(np.ones(n, F32), p, seed=5).copy_to_host()
    spread = math.sqrt(p * (1 - p) / n)
    assert abs(np.mean(y == 0) - p) < 5 * spread
    assert abs(y.astype(float).mean() - 1) < 5 * spread / (1 - p)
    runs = np.mean((y[1:] == 0) & (y[:-1] == 0))
    assert abs(runs - p * p) < 10 * spread, "neighbours are dropped independently"


def test_the_ends():
    x = np.arange(9, dtype=F32)
    np.testing.assert_array_equal(room.dropout(x, 0.0, seed=1).copy_to_host(), x)
    for p, error in ((1.0, "p must be from 0 to less than 1, was 1.0"), (-0.1, "p must not be negative, was -0.1")):
        with pytest.raises(ValueError, match=error):
            room.dropout(x, p, seed=1)


X = np.ones((2, 3), F32)
BAD = {
    "a dtype": ((X.astype(np.float16),), TypeError, "x must be float32, was float16"),
    "not contiguous": ((X[:, ::2],), ValueError, "x must be contiguous in C order"),
    "p": ((X, "half"), TypeError, "p must be a number, was 'half'"),
    "a seed": ((X, 0.5, 1.5), TypeError, "seed must be an integer, was 1.5"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


@interpreter_only
def test_counters():
    """4,096 elements are 512 sectors. A stored mask moves 18 bytes an element, and stores numbers with gaps."""
    x = device.to_device(np.ones(4096, F32))
    moved = {}
    for rung in room.LADDER:
        _, reports = watch(rung, x, 0.5)
        assert total(reports, "flops_f64") == 0
        moved[rung.name] = len(reports), *(total(reports, f"global_{way}_sectors") for way in ("load", "store"))
    assert moved["redrawn"] == moved["vectorised"] == (1, 512, 512)
    # Read: numbers, x, and a mask of a quarter; written: numbers four times over, the mask and the result.
    launches, read, written = moved["stored_mask"]
    assert (launches, written) == (3, 4 * 512 + 128 + 512)
    assert 512 + 128 < read <= 2 * 512 + 128, "what is dropped need not be read"


def test_pytorchs_scale():
    torch = pytest.importorskip("torch")
    x = torch.ones(1000)
    theirs = torch.nn.functional.dropout(x, 0.3).numpy()
    ours = room.dropout(np.ones(1000, F32), 0.3, seed=1).copy_to_host()
    assert ours.max() == pytest.approx(theirs.max(), rel=1e-6)
