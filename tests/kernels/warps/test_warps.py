"""The two recurrences of chapter 8: results, arguments, and the counters of each rung against counts done by hand."""

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.warps import ladder as room
from pmpp.kernels.warps.workloads import by_numpy
from pmpp.runtime import device
from tests.kernels.warps.wrong import RUNGS as WRONG
from tests.support.judge import judge, right
from tests.support.wrong import misaligned, name_of, observe

BLOCK = room.BLOCK
F32 = np.float32
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def is_right(result, x, rounds):
    return right(result, room.reference(x, rounds), room.tolerance(x, rounds))


def faults(two_ways):
    """All that is wrong with a function of (x, rounds), worst first. The ladder has none; wrong.py has one each."""
    for x, rounds in room.inputs().values():
        found = judge(two_ways, (x, rounds), lambda result, x=x, rounds=rounds: is_right(result, x, rounds)).faults
        if found:
            return found
    return further_faults(two_ways)


def further_faults(two_ways):
    """Of arrays that begin between multiples of 16 bytes."""
    x = np.random.default_rng(7).standard_normal(4 * 33 + 5, dtype=F32)
    for of_x, of_out in ((1, 1), (2, 2), (3, 3), (1, 0), (0, 1)):  # elements behind a multiple of 16 bytes
        out = misaligned(np.full_like(x, np.nan), of_out)
        found = judge(two_ways, (misaligned(x, of_x), 3), lambda result: is_right(result, x, 3), out=out).faults
        if found:
            return found
    return []


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """Beyond the room's inputs, on which tests/contract/test_rooms.py checks every rung."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("name", [name for name, (x, _) in room.inputs().items() if np.isfinite(x).all()])
def test_the_reference_is_a_geometric_sum(name):
    """value = x (1 + f + f^2 + ... + f^rounds)."""
    x, rounds = room.inputs()[name]
    factors = np.resize([room.EVEN, room.ODD], x.size).astype(np.float64)
    expected = x * (factors[:, None] ** np.arange(rounds + 1)).sum(axis=1)
    np.testing.assert_allclose(room.reference(x, rounds), expected, rtol=1e-14)


@each_rung
@hypothesis.given(n=st.integers(0, 700), rounds=st.integers(0, 40), offset=st.integers(0, 3), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=15)
def test_any_length_and_any_number_of_rounds(rung, n, rounds, offset, seed):
    x = np.random.default_rng(seed).standard_normal(n, dtype=F32)
    assert is_right(device.to_host(rung(misaligned(x, offset), rounds)), x, rounds)


@each_rung
def test_numpy_agrees(rung):
    x, rounds = np.random.default_rng(3).standard_normal(1000, dtype=F32), 33
    np.testing.assert_array_equal(device.to_host(rung(x, rounds)), by_numpy(x, rounds=rounds))


@each_rung
def test_rungs_agree_to_the_last_bit(rung):
    """A product with a power of two is exact, so it does not matter whether it is joined with the addition."""
    x = np.random.default_rng(4).standard_normal(500, dtype=F32)
    assert device.to_host(rung(x, 21)).tobytes() == device.to_host(room.by_lane(x, 21)).tobytes()


@each_rung
def test_output_and_stream(rung):
    x, rounds = room.inputs()["a block +1"]
    out = device.to_device(np.full_like(x, np.nan))
    stream = cuda.stream()
    assert rung(x, rounds, out=out, stream=stream) is out
    stream.synchronize()
    assert is_right(out.copy_to_host(), x, rounds)


@each_rung
def test_in_place(rung):
    x, rounds = room.inputs()["several blocks"]
    a = device.to_device(x)
    rung(a, rounds, out=a)
    assert is_right(a.copy_to_host(), x, rounds)


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR = np.ones(5, F32)
BAD = {
    "float64": ((VECTOR.astype(np.float64), 1), TypeError, "x must be float32, was float64"),
    "a matrix": ((np.ones((2, 3), F32), 1), ValueError, "x must have 1 dimension, had 2"),
    "every other": ((np.ones(10, F32)[::2], 1), ValueError, "x must be contiguous in C order"),
    "negative rounds": ((VECTOR, -1), ValueError, "rounds must be from 0 to 2147483647, was -1"),
    "too many rounds": ((VECTOR, 2**31), ValueError, "rounds must be from 0 to 2147483647, was 2147483648"),
    "half a round": ((VECTOR, 1.5), TypeError, r"rounds must be an integer, was 1\.5"),
    "no rounds": ((VECTOR, None), TypeError, "rounds must be an integer, was None"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(5,\), had \(6,\)"):
        rung(VECTOR, 1, out=device.empty(6, F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        rung(VECTOR, 1, out=device.empty(5, np.float64))
    whole = device.to_device(np.ones(6, F32))
    with pytest.raises(ValueError, match="out"):
        rung(whole[:5], 1, out=whole[1:])


# ------------------------------------------------------------------------------------------------------------- counters

N, ROUNDS = 4 * BLOCK, 40  # 32 warps
WARPS = N // 32


def counted(rung, rounds=ROUNDS):
    x = np.random.default_rng(5).standard_normal(N, dtype=F32)
    result, (report,) = observe(rung, x, rounds)
    assert is_right(result, x, rounds)
    assert report.counters["flops"] == 2 * N * rounds
    assert report.counters["flops_f64"] == 0
    return report.counters


@interpreter_only
@pytest.mark.parametrize(
    ("rung", "each", "divergent", "sectors"),
    # 32 float32 side by side are 4 sectors; every second of 64 are 8, and another warp takes what lies between.
    [
        (room.by_lane, 1, WARPS, 4),
        (room.by_data, 1, 0, 4),
        (room.by_warp, 1, 0, 8),
        (room.four_each, 4, 0, 4),
        (room.unrolled, 4, 0, 4),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_divergence_and_sectors(rung, each, divergent, sectors):
    """``sectors``: for 32 elements. ``each``: the elements of a thread."""
    counters = counted(rung)
    assert counters["divergent_branches"] == divergent  # the choice of the way, once a warp
    for way in ("load", "store"):
        assert counters[f"global_{way}_requests"] == WARPS // each
        assert counters[f"global_{way}_sectors"] == WARPS * sectors


@interpreter_only
@pytest.mark.parametrize(
    ("rung", "instructions"),
    # A round is a count, a comparison and a branch, with a multiplication and an addition for each element.
    [
        (room.by_lane, 2 * 5),  # both ways
        (room.by_data, 5),
        (room.by_warp, 5),
        (room.four_each, (3 + 4 * 2 + 1) / 4),  # a warp has 128 elements; and `one_round` returns
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_instructions_of_a_round(rung, instructions):
    """``instructions``: of a warp, for 32 elements."""
    more = counted(rung, 2 * ROUNDS)["warp_instructions"] - counted(rung)["warp_instructions"]
    assert more == instructions * ROUNDS * WARPS


@interpreter_only
def test_the_rounds_of_a_turn_are_not_counted_one_by_one():
    """A round of the rest has its count, comparison and branch. One of a turn has the step of a loop with a constant
    end, which the compiler writes out, and a turn has an addition, a comparison, a branch, a count and that loop's end.
    """
    turns = 3
    whole = counted(room.unrolled, turns * room.UNROLLED)["warp_instructions"]
    more = counted(room.unrolled, 2 * turns * room.UNROLLED)["warp_instructions"] - whole
    rest = counted(room.unrolled, turns * room.UNROLLED + 1)["warp_instructions"] - whole
    work = 4 * 2 + 1  # of one_round: a multiplication and an addition for each element, and the return
    assert more == turns * (room.UNROLLED * (work + 1) + 5) * WARPS // 4
    assert rest == (work + 3) * WARPS // 4


@pytest.mark.parametrize(("name", "together"), [("four_each", 16), ("unrolled", 64)])
def test_multiply_adds_that_the_compiler_writes_out(name, together, ptx):
    """Between two labels or jumps. A product that is subtracted becomes one multiply-add in the machine code."""
    x = np.ones(8, F32)
    pieces = re.split(r"\$L\w+:|\bbra\b", ptx(getattr(room, f"{name}_kernel"), x, x, 5, 0, 8))
    assert max(len(re.findall(r"\b(?:fma\.rn|sub)\.f32", piece)) for piece in pieces) >= together


@interpreter_only
@pytest.mark.parametrize("rung", [room.four_each, room.unrolled], ids=lambda rung: rung.name)
@pytest.mark.parametrize(("of_x", "of_out"), [(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (3, 1)])
def test_vectors_wherever_x_and_out_lie_alike(rung, of_x, of_out):
    """``of_x``, ``of_out``: how many elements behind a multiple of 16 bytes an array begins."""
    n = 4 * 33 + 5
    x = np.random.default_rng(6).standard_normal(n, dtype=F32)
    out, (report,) = observe(rung, misaligned(x, of_x), 20, out=misaligned(np.full_like(x, np.nan), of_out))
    assert is_right(out, x, 20)
    vectors = (n - -of_x % 4) // 4 if of_x == of_out else 0
    assert report.counters["thread_inst_memory"] == 2 * (vectors + n - 4 * vectors)
