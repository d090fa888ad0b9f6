"""What does what is written, and may surprise, is noted in the report; and what never ends is told from what waits."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit
def from_the_end(x, out):
    i = cuda.grid(1)
    j = -i - 1
    out[i] = x[-1 - i] + x[~i] * 10 + x[j] * 100


@cuda.jit
def from_the_end_of_a_matrix(m, out):
    i = cuda.grid(1)
    out[i] = m[-1 - i, -1] + m[-1][i % 2] + m[..., -1][i] + m[-1 - i, :][0]


@cuda.jit
def one_before(x, out):
    i = cuda.grid(1)
    out[i] = x[i - 1]


@cuda.jit
def too_far_from_the_end(x, out):
    i = cuda.grid(1)
    out[i] = x[-2 - i]


@cuda.jit
def beyond_64_bits(out):
    out[0] = 2**70
    out[1] = 2**31


@pytest.mark.parametrize("level", ["run", "count", "check"])
def test_an_index_that_is_written_from_the_end_wraps_at_every_level(level):
    x, out = np.arange(4.0), np.zeros(4)
    report = simt.profile(from_the_end, 1, 4, (x, out), level=level)
    assert out.tolist() == (x[::-1] * 111).tolist()
    assert report.hazards == []
    notes = [note.message for note in report.notes]
    assert all("x[-1] counts from the end: a negative index wraps around, here to 3" in note for note in notes)
    assert len(notes) == (0 if level == "run" else 1)
    assert report.warnings == []
    m = np.arange(6.0).reshape(3, 2)
    expected = [m[-1 - i, -1] + m[-1][i % 2] + m[i, -1] + m[-1 - i, 0] for i in range(3)]
    report = simt.profile(from_the_end_of_a_matrix, 1, 3, (m, out), level=level)
    assert out[:3].tolist() == expected
    assert report.hazards == []


def test_an_index_that_becomes_negative_is_a_hazard_and_so_is_one_beyond_the_end():
    x, out = np.arange(4.0), np.zeros(4)
    with pytest.raises(simt.OutOfBoundsError, match="a negative index wraps around"):
        simt.profile(one_before, 1, 4, (x, out), level="check")
    with pytest.raises(simt.OutOfBoundsError, match=r"x\[-5\], but valid indices are 0 to 3"):
        simt.profile(too_far_from_the_end, 1, 4, (x, out), level="check")


def test_a_constant_that_does_not_fit_is_noted_with_what_it_is():
    out = np.ones(2)
    (note,) = simt.profile(beyond_64_bits, 1, 1, (out,)).notes
    assert out.tolist() == [0, 2**31]
    assert (note.kind, note.message.partition(": ")[2]) == ("overflow", "2 ** 70 does not fit 64 bits: it is 0")


@cuda.jit
def stands_still(out):
    k = 0
    while k < 5:
        k = k + 0
    out[0] = k


@cuda.jit
def collatz(out):
    n = cuda.grid(1)
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    out[0] = n


@pytest.mark.parametrize("schedule", [None, "warps", "lanes"])
@pytest.mark.parametrize("kernel", [stands_still, collatz])
def test_an_endless_loop_that_reads_nothing_is_not_said_to_wait(kernel, schedule):
    with simt.loop_limit(1000), pytest.raises(simt.SimtError, match="endless") as caught:
        simt.profile(kernel, 1, 32, (np.zeros(1),), level="run", schedule=schedule)
    assert "wait" not in str(caught.value)


@cuda.jit
def waits_for_nobody(flag):
    while flag[0] == 0:
        pass


def test_one_that_reads_memory_still_waits():
    with pytest.raises(simt.SimtError, match="waits for a value"):
        simt.profile(waits_for_nobody, 1, 32, (np.zeros(1),), level="run", schedule="lockstep")
