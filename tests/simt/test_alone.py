"""A thread that runs by itself is looked at with Python's integers, and others with arrays: both see the same.

Under the schedule "lanes" a thread has a short batch of its own.  A trace keeps it among the lanes of its block, so the
same launch then takes the other way.
"""

import random

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from tests.corpus import judge, pairs
from tests.simt.test_rounds import kernel_in
from tests.support.parting import make_lock

PAIRS = [pair for pair in pairs() if pair.subject in ("handover", "locks", "looks", "signals")]


def seen(pair, trace):
    report, _ = judge.run(pair, False, schedule="lanes", trace=trace)
    return [report.hazards, report.counters, report.by_line, report.sectors, report.contention]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_what_is_found_and_counted_of_a_bug_is_the_same(pair):
    assert seen(pair, False) == seen(pair, True)


@cuda.jit
def of_every_width(flags, x, short, numbers):
    """Half-words, complex numbers, a signal, and an element that two threads write."""
    i = cuda.grid(1)
    short[i] = short[i] + 1
    numbers[i // 2] = numbers[i // 2] * 2j
    x[i % 7] += 1
    cuda.threadfence()
    cuda.atomic.add(flags, i % 3, 1)
    if cuda.atomic.add(flags, (i + 1) % 3, 0) > 2:
        cuda.threadfence()
        x[i % 5] = cuda.atomic.exch(flags, 3, i)


@pytest.mark.parametrize(("grid", "block"), [(1, 40), (3, 33)])
@pytest.mark.parametrize("level", ["count", "check"])
def test_numbers_of_every_width(grid, block, level):
    found = []
    for trace in (False, True):
        n = grid * block
        args = np.zeros(4, np.int32), np.zeros(7), np.zeros(n, np.int16), np.ones(n, np.complex128)
        report = simt.profile(of_every_width, grid, block, args, level=level, schedule="lanes", trace=trace)
        left = [x.tobytes() for x in args]
        found.append([left, report.hazards, report.counters, report.by_line, report.sectors, report.contention])
    assert found[0] == found[1]
    assert (level == "count") or found[0][1]


def test_a_lock_taken_by_a_block_is_silent():
    def launch(kernel, grid, block, args):
        report = simt.profile(kernel, grid, block, args, level="check")
        assert report.hazards == []
        assert report.schedule == "lanes"

    value, expected = make_lock(96)(launch)
    np.testing.assert_array_equal(value, expected)


def drawn(seed):
    """A kernel in which threads read, write, update and fence at random, here and there behind a barrier."""
    draw = random.Random(seed)
    lines = ["i = cuda.grid(1)", "v = 0"]
    for _ in range(draw.randint(5, 14)):
        at = draw.choice(["0", "i % 2", "i % 3", "(i + 1) % 3", "cuda.blockIdx.x"])
        lines.append(
            draw.choice(
                [
                    f"v += x[{at}]", f"x[{at}] = {draw.choice(['i', '1', 'v'])}", f"x[{at}] += 1",
                    f"v += cuda.atomic.add(flags, {at}, 1)", f"v += cuda.atomic.exch(flags, {at}, i)",
                    f"v += flags[{at}]", "cuda.threadfence()", "cuda.threadfence()", "cuda.threadfence_block()",
                    f"if i % {draw.randint(2, 5)} == 1: x[{at}] = v", f"if v > {draw.randint(1, 40)}: v += x[{at}]",
                    "cuda.syncthreads()" if draw.random() < 0.4 else "cuda.threadfence()",
                ]
            )
        )  # fmt: skip
    lines.append("out[i] = v")
    head = ["from pmpp.simt import cuda", "", "", "@cuda.jit", "def kernel(x, flags, out):"]
    return "\n".join([*head, *("    " + line for line in lines), ""])


@pytest.mark.parametrize("seed", range(20))
def test_kernels_at_random(seed, tmp_path):
    kernel = kernel_in(drawn(seed), seed, tmp_path)
    grid, block = [(1, 6), (2, 5), (3, 40), (1, 70)][seed % 4]
    found = []
    for trace in (False, True):
        args = np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(grid * block, np.int64)
        report = simt.profile(kernel, grid, block, args, level="check", schedule="lanes", trace=trace)
        left = [x.tobytes() for x in args]
        found.append([left, report.hazards, report.counters, report.by_line, report.sectors, report.contention])
    assert found[0] == found[1]
